"""The pictures of lesson 11, and the right answers and usual mistakes of its exercises."""

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from lessons.workshop.notebook import BLUE, GREY, ORANGE, new_figure, ticks


def two_curves(Ks: tuple[int, ...], curves: dict, M: float, M_after: float) -> Figure:
    """Lesson 11: Pass@K and Maj@K of three policies, (Ks,) each, by name; on the right, M before
    and after training."""
    figure, axes = new_figure(8.5, 3.4, columns=2, sharey=True)
    for axis, title, lines in zip(axes, ("Pass@K", "Maj@K (dotted: M)"), zip(*curves.values())):
        for name, line, color in zip(curves, lines, (GREY, BLUE, ORANGE)):
            axis.plot(Ks, line, "o-", color=color, markersize=4, label=name)
        axis.set(title=title, xlabel="K", xscale="log", ylim=(0, 1.03))
        ticks(axis.xaxis, Ks)
    axes[1].axhline(M, color=GREY, linestyle=":")
    axes[1].axhline(M_after, color=BLUE, linestyle=":")
    axes[0].legend(loc="lower right")
    return figure


# Exercises; `notebook.check` explains the keys of CHECKS


def judged(judge: Callable) -> Callable:
    """Turn judge(answer) into the function of an answer that `notebook.check` calls; what is not
    attempted is returned unchanged."""

    def judge_later(answer):
        is_open = answer is None or "Ellipsis" in repr(answer)
        return lambda: answer if is_open else judge(answer)

    return judge_later


RIGHT_MODE = "no wrong answer is more probable than the right one"
ONE_LIST = "wanted is one list of probabilities, which sum to 1"


def says(*messages: str) -> dict:
    """Entries of `mistakes` for answers of which the judge returns one of these messages."""
    return {message: lambda message=message: message for message in messages}


def numbers(values) -> np.ndarray:
    """An array of the values; an empty one if they are not numbers in rows of one length."""
    try:
        return np.array(values, dtype=float)
    except (TypeError, ValueError):
        return np.array([])


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
    if pi.ndim != 1 or abs(pi.sum() - 1) > 1e-9 or pi.min() < 0:
        return ONE_LIST
    if pi[0] > pi[1:].max(initial=0) - 1e-9:
        return RIGHT_MODE
    sharp = pi**2 / (pi**2).sum()
    return [sharp[0] > pi[0] + 1e-9, majority_of_three(sharp) > majority_of_three(pi) + 1e-9]


def changed(before, after):
    """(problems,): do the leaders differ?"""
    return before.argmax(axis=1) != after.argmax(axis=1)


def clear(votes):
    """(problems,): does the leader lead by two standard errors?"""
    second, first = np.sort(votes, axis=1)[:, -2:].T
    return first - second > 2 * np.sqrt(first + second)


def seen_to_change(before, after):
    """The share of all problems whose leaders are clear, and differ."""
    return (changed(before, after) & clear(before) & clear(after)).mean()


BEFORE, AFTER = np.random.default_rng(2).multinomial(64, [0.4, 0.4, 0.2], (2, 24))

CHECKS = {
    "11.1": {
        "expected": lambda: [True, True],
        "inputs": [{}],
        "mistakes": {
            "Pass@1 rises, but Maj@3 does not": lambda: [True, False],
            "the most probable answer is wrong, but neither Pass@1 nor Maj@3 rises": (
                lambda: [False, False]
            ),
            **says(ONE_LIST, RIGHT_MODE),
        },
    },
    "11.2": {
        "expected": seen_to_change,
        "inputs": [{"before": BEFORE, "after": AFTER}],
        "mistakes": {
            "near ties are still counted": lambda before, after: changed(before, after).mean(),
            "wanted is the share of all problems": lambda before, after: changed(before, after)[
                clear(before) & clear(after)
            ].mean(),
        },
    },
}
