"""The pictures of lesson 11, and the right answers and usual mistakes of its exercises."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import combinations
from math import ceil, floor

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
from lessons.workshop.parts.drawing import two_panels
from toy_env.evaluate import majority_at_k


def sharpening(before: dict, after: dict, Ks: tuple[int, ...], name: str) -> Figure:
    """Lesson 11: the effect of sharpening. Left, p of each problem; right, the two curves and M.

    before, after: "p" (problems,), "mode right" (problems,) bool, and the curves "Pass@K" and
    "Maj@K" (Ks,).
    """
    figure, left, right = two_panels(
        3.7,
        {
            "title": f"p of each problem, {name}",
            "xlabel": "64 problems, sorted by p before (grey)",
            "ylim": (-0.03, 1.25),
            "yticks": np.arange(0, 1.1, 0.2),
        },
        {
            "title": "mean over problems (grey: before)",
            "xlabel": "K",
            "ylim": (0, 1.03),
            "xlim": (0.8, 3.6 * Ks[-1]),
        },
    )
    order = np.argsort(-before["p"])
    is_right, p = before["mode right"][order], after["p"][order]
    left.plot(before["p"][order], color=GREY, linewidth=1.2)
    for mode, rows, color, marker in (
        ("right", is_right, RIGHT, "o"),
        ("wrong", ~is_right, WRONG, "s"),
    ):
        label = f"mode {mode} before"
        left.plot(rows.nonzero()[0], p[rows], marker, color=color, markersize=4.5, label=label)
    left.legend(loc="upper right", handletextpad=0.1, borderaxespad=0)
    for kind, line, color in (("Pass@K", "-", BLUE), ("Maj@K", "--", ORANGE)):
        right.plot(Ks, before[kind], line, color=GREY, linewidth=1.2)
        right.plot(Ks, after[kind], line, color=color)
    level = after["mode right"].mean()
    right.axhline(level, color=GREEN, linestyle=":", linewidth=1.5)
    label_line(right, Ks[0], level, "M", GREEN, xytext=(-4, 9))
    label_line(right, Ks[-1], max(after["Pass@K"][-1], level + 0.08), "Pass@K", BLUE)
    label_line(right, Ks[-1], after["Maj@K"][-1], "Maj@K", ORANGE, xytext=(5, -9))
    right.set_xscale("log", base=2)
    right.set_xticks(Ks, Ks)
    return figure


def curves_of_training(p: dict[str, np.ndarray]) -> Figure:
    """Lesson 11: Pass@K of the base, of the base cooled, of the trained policies, and of a guesser.

    p: by name, the probability of the right answer, (seeds, problems). Thin lines are seeds, thick
    ones their means.
    """
    Ks = 2 ** np.arange(13)
    figure, axis = new_figure(8.5, 4.0)
    for name, color, line in (
        ("base", GREY, "-"),
        ("base, T = 0.3", GREEN, "-."),
        ("GRPO, small steps", BLUE, "-"),
        ("GRPO, small steps, 27 batches", BLUE, "--"),
        ("GRPO, large steps", RED, "-"),
    ):
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
    shown = Ks[:: 4 if kit.narrow else 2]
    axis.set_xticks(shown, shown)
    axis.set(
        title="Pass@K, completions of four tokens, exact (thin lines: seeds)",
        ylim=(0, 1.05),
        xlim=(0.9, 90000),
        xlabel="K, answers to each problem",
    )
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def all_subsets(answers: list, right: int, k: int, worth: Callable = float) -> float:
    """Maj@k by counting: the mean over all k-subsets of the right answer's share of the winners.
    worth: what a share counts for."""
    shares = []
    for subset in combinations(answers, k):
        votes = Counter(answer for answer in subset if answer is not None)
        winners = [answer for answer in votes if votes[answer] == max(votes.values())]
        shares.append(worth(right in winners and 1 / len(winners)))
    return np.mean(shares)


def first_of_a_tie(answers, right, k):
    votes = (Counter(a for a in one if a is not None) for one in combinations(answers, k))
    return np.mean([right in dict(counter.most_common(1)) for counter in votes])


def pass_by_counting(answers, right, k):
    return np.mean([right in subset for subset in combinations(answers, k)])


def own_code(answer: Callable) -> Callable:
    """Replace an answer that only calls one of the lesson's estimators by the word "borrowed"."""
    names = set(answer.__code__.co_names)
    return borrowed if names & {"majority_at_k", "all_subsets"} else answer


def borrowed(answers, right, k) -> str:
    return "borrowed"


def judged(judge: Callable) -> Callable:
    """Turn judge(answer) into the function of an answer that `kit.check` calls; what is not
    attempted is returned unchanged."""

    def judge_later(answer):
        is_open = answer is None or "Ellipsis" in repr(answer)
        return lambda: answer if is_open else judge(answer)

    return judge_later


TWO_LISTS = "wanted are two lists of four numbers: p of the problems under A, then under B"
ONE_LIST = "wanted is one list of numbers"
RANGE = "a probability lies between 0 and 1"
SUM = "the probabilities of a problem's answers must sum to 1"


def says(*messages: str) -> dict:
    """Entries of `mistakes` for answers of which the judge returns one of these messages."""
    return {message: lambda message=message: message for message in messages}


def numbers(values) -> np.ndarray:
    """An array of the values; an empty one if they are not numbers in rows of one length."""
    try:
        return np.array(values, dtype=float)
    except (TypeError, ValueError):
        return np.array([])


@judged
def leads(pair) -> list[bool] | str:
    """From the probabilities of A and of B on four problems: does A lead at K = 1, and B at
    K = 64?"""
    p = numbers(pair)
    if p.size != 8:
        return TWO_LISTS
    if p.min() < 0 or p.max() > 1:
        return RANGE
    q_A, q_B = 1 - p.reshape(2, 4)
    one, many = ((q_B**K).mean() - (q_A**K).mean() for K in (1, 64))
    return [one > 1e-9, many < -1e-9]


def majority_of_three(pi: np.ndarray) -> float:
    """The probability that the first answer wins a vote of three: it has two votes or three, or a
    third of a tie."""
    p, others_differ = pi[0], (1 - pi[0]) ** 2 - (pi[1:] ** 2).sum()
    return p**2 * (3 - 2 * p) + p * others_differ


@judged
def rises(problem) -> list[bool] | str:
    """Does sharpening raise Pass@1, and Maj@3? Only asked where the most probable answer is wrong:
    of any other problem, the reason why it does not count. The first answer is right."""
    pi = numbers(problem)
    if pi.ndim != 1 or not pi.size:
        return ONE_LIST
    if pi.min() < 0 or pi.max() > 1:
        return RANGE
    if abs(pi.sum() - 1) > 1e-9:
        return SUM
    lead = pi[0] - pi[1:].max(initial=0)
    if lead > -1e-9:
        return "a tie" if lead < 1e-9 else "the mode is right"
    sharp = pi**2 / (pi**2).sum()
    return [sharp[0] > pi[0] + 1e-9, majority_of_three(sharp) > majority_of_three(pi) + 1e-9]


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
            "that is the function to write: count the votes yourself": borrowed,
            "a tie counts as right: with k = 2 that would be Pass@2": (
                partial(all_subsets, worth=ceil)
            ),
            "a tie counts as wrong": partial(all_subsets, worth=floor),
            "a tie is broken by a fair draw, not by which answer came first": first_of_a_tie,
            "that is Pass@k: the right answer must also win the vote": pass_by_counting,
            "None is not an answer: it has no vote": lambda answers, right, k: all_subsets(
                [answer or 0 for answer in answers], right, k
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
            **says(TWO_LISTS, RANGE),
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
            **says(ONE_LIST, RANGE, SUM),
        },
    },
}
