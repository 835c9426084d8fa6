"""The pictures of lesson 11, and the right answers and usual mistakes of its exercises."""

from collections import Counter
from collections.abc import Callable
from itertools import combinations

import numpy as np
from matplotlib.figure import Figure

from lessons.workshop import kit
from lessons.workshop.kit import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    RIGHT,
    WRONG,
    label_line,
    new_figure,
)
from toy_env.evaluate import majority_at_k


def sharpening(before: dict, after: dict, Ks: tuple[int, ...], name: str) -> Figure:
    """Lesson 11: the effect of sharpening. Left, p of each problem; right, the two curves and M.

    before, after: "p" (problems,), "mode right" (problems,) bool, and the curves "Pass@K" and
    "Maj@K" (Ks,).
    """
    figure, (left, right) = new_figure(8.5, 3.7, columns=2)
    order = np.argsort(-before["p"])
    x, is_right = np.arange(len(order)), before["mode right"][order]
    left.plot(x, before["p"][order], "-", color=GREY, linewidth=1.2)
    for rows, color, marker, label in (
        (is_right, RIGHT, "o", "mode right before"),
        (~is_right, WRONG, "s", "mode wrong before"),
    ):
        left.plot(
            x[rows], after["p"][order][rows], marker, color=color, markersize=4.5, label=label
        )
    left.set(
        title=f"p of each problem, {name}",
        xlabel="problems, by p before (grey line)",
        ylim=(-0.03, 1.25),
    )
    left.set_yticks(np.arange(0, 1.1, 0.2))
    left.legend(loc="upper right", handletextpad=0.1, borderaxespad=0)
    for curves, colors, width in ((before, (GREY, GREY), 1.2), (after, (BLUE, ORANGE), 2)):
        for kind, color, line in zip(("Pass@K", "Maj@K"), colors, ("-", "--")):
            right.plot(Ks, curves[kind], line, color=color, linewidth=width)
    level = after["mode right"].mean()
    right.axhline(level, color=GREEN, linestyle=":", linewidth=1.5)
    label_line(right, Ks[0], level, "M", GREEN, xytext=(-4, 9))
    label_line(right, Ks[-1], max(after["Pass@K"][-1], level + 0.08), "Pass@K", BLUE)
    label_line(right, Ks[-1], after["Maj@K"][-1], "Maj@K", ORANGE, xytext=(5, -9))
    right.set_xscale("log", base=2)
    right.set_xticks(Ks, [str(K) for K in Ks])
    right.set(
        title="mean over problems (grey: before)",
        xlabel="K",
        ylim=(0, 1.03),
        xlim=(0.8, 3.6 * Ks[-1]),
    )
    return figure


def curves_of_training(p: dict[str, np.ndarray]) -> Figure:
    """Lesson 11: Pass@K of the base, of the base cooled, of the trained policies, and of a guesser.

    p: by name, the probability of the right answer, (seeds, problems). Thin lines are seeds, thick
    ones their means.
    """
    Ks = 2 ** np.arange(13)
    looks = {"base": (GREY, "-"), "base, T = 0.3": (GREEN, "-."), "GRPO, small steps": (BLUE, "-")}
    looks |= {"GRPO, small steps, 27 batches": (BLUE, "--"), "GRPO, large steps": (RED, "-")}
    figure, axis = new_figure(8.5, 4.0)
    for name, (color, line) in looks.items():
        curves = (1 - (1 - p[name][..., None]) ** Ks).mean(axis=1)  # (seeds, Ks)
        if len(curves) > 1:
            axis.plot(Ks, curves.T, line, color=color, linewidth=0.6, alpha=0.5)
        axis.plot(Ks, curves.mean(axis=0), line, color=color)
    axis.plot(Ks, 1 - 0.99**Ks, ":", color="black", linewidth=1.5)
    for x, y, name, color in (
        (4096, 1.0, "small steps\n(dashed: 27 batches)", BLUE),
        (1.5, 0.17, "base", GREY),
        (4096, 0.91, "large steps", RED),
        (4096, 0.83, "base, T = 0.3", GREEN),
        (48, 0.22, "guessing 0 to 99", "black"),
    ):
        label_line(axis, x, y, name, color)
    axis.set_xscale("log", base=2)
    every = Ks[:: 4 if kit.narrow else 2]
    axis.set_xticks(every, [str(K) for K in every])
    axis.set(
        title="Pass@K, completions of four tokens, exact (thin lines: seeds)",
        xlabel="K, answers to each problem",
    )
    axis.set(ylim=(0, 1.05), xlim=(0.9, 90000))
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def over_subsets(score: Callable) -> Callable:
    """From score(votes, right) of the answers of one subset to its mean over all k-subsets."""

    def answer(answers, right, k) -> float:
        return float(np.mean([score(subset, right) for subset in combinations(answers, k)]))

    return answer


def share_of_winners(votes, right) -> float:
    """1 if the right answer has the most votes, less in a tie. Raises ValueError without votes."""
    counts = Counter(votes)
    winners = [vote for vote in counts if counts[vote] == max(counts.values())]
    return (right in winners) / len(winners)


def without_none(subset) -> list:
    return [answer for answer in subset if answer is not None]


def is_a_winner(subset, right) -> bool:
    votes = without_none(subset)
    return right in votes and votes.count(right) == max(map(votes.count, votes))


def is_alone(subset, right) -> bool:
    return is_a_winner(subset, right) and share_of_winners(without_none(subset), right) == 1


# The vote of a subset without votes is lost; a tie counts in part.
all_subsets = over_subsets(
    lambda subset, right: share_of_winners(without_none(subset) or [None], right)
)


def probabilities(values) -> np.ndarray:
    values = np.array(values, dtype=float)
    if values.min() < 0 or values.max() > 1:
        raise ValueError("a probability lies between 0 and 1")
    return values


def leads(pair) -> Callable:
    """From the probabilities of A and of B on four problems: does A lead at K = 1, and B at
    K = 64?"""

    def answer():
        if pair is ... or pair is None:
            return pair
        A, B = probabilities(pair).reshape(2, 4)
        lead = [(1 - (1 - A) ** K).mean() - (1 - (1 - B) ** K).mean() for K in (1, 64)]
        return [lead[0] > 1e-9, lead[1] < -1e-9]

    return answer


def majority_of_three(pi: np.ndarray) -> float:
    """The probability that the first answer wins a vote of three: it has two votes or three, or a
    third of a tie."""
    p, others_differ = pi[0], (1 - pi[0]) ** 2 - (pi[1:] ** 2).sum()
    return p**2 * (3 - 2 * p) + 3 * p * others_differ / 3


def rises(problem) -> Callable:
    """Does sharpening raise Pass@1, and Maj@3? Only asked where the most probable answer is wrong:
    of any other problem, the reason why it does not count. The first answer is right."""

    def answer():
        if problem is ... or problem is None:
            return problem
        pi = probabilities(problem)
        if abs(pi.sum() - 1) > 1e-9:
            raise ValueError("the probabilities must sum to 1")
        if pi[0] > pi[1:].max(initial=0) - 1e-9:
            return "a tie" if pi[0] < pi[1:].max(initial=0) + 1e-9 else "the mode is right"
        sharp = pi**2 / (pi**2).sum()
        return [sharp[0] > pi[0] + 1e-9, majority_of_three(sharp) > majority_of_three(pi) + 1e-9]

    return answer


CHECKS = {
    "11.1": {
        "expected": majority_at_k,
        "inputs": [
            {"answers": [5, 5, 6, 7, None], "right": 5, "k": 2},
            {"answers": [5, 6, 6, None, None, 7], "right": 6, "k": 3},
            {"answers": [1, 1, 2, 2, 2, 3], "right": 1, "k": 4},
            {"answers": [5, None, None, None, 6], "right": 5, "k": 2},  # three pairs without a vote
        ],
        "mistakes": {
            "a tie counts as right: with k = 2 that would be Pass@2": over_subsets(is_a_winner),
            "a tie counts as wrong": over_subsets(is_alone),
            "None is not an answer: it has no vote": over_subsets(share_of_winners),
            "in some subsets nobody votes: there `max` has nothing to compare": over_subsets(
                lambda subset, right: max(without_none(subset))  # as it fails: a ValueError
            ),
        },
    },
    "11.2": {
        "expected": lambda: [True, True],
        "inputs": [{}],
        "mistakes": {
            "B leads at K = 64, but A does not lead at K = 1": lambda: [False, True],
            "A leads at K = 1, but B does not lead at K = 64": lambda: [True, False],
            "neither leads where it should": lambda: [False, False],
        },
    },
    "11.3": {
        "expected": lambda: [True, True],
        "inputs": [{}],
        "mistakes": {
            "a tie: no wrong answer is more probable than the right one": lambda: "a tie",
            "here the most probable answer is right": lambda: "the mode is right",
            "Pass@1 rises, but Maj@3 does not": lambda: [True, False],
            "the most probable answer is wrong, but neither Pass@1 nor Maj@3 rises": (
                lambda: [False, False]
            ),
        },
    },
}
