"""The pictures of lesson 13, and the right answers and usual mistakes of its exercises."""

from functools import partial

import numpy as np
from matplotlib.figure import Figure

from lessons.workshop.kit import BLUE, ORANGE, new_figure, ticks


def mean_squares(p: float, ratio: float) -> Figure:
    """The mean square of (R - b) s against the constant b, over that of the best b. ratio: the mean
    squared length of wrong scores over that of right ones."""

    best = p / (p + (1 - p) * ratio)
    lowest = best * (1 - p) * ratio

    def relative(b):
        return (p * (1 - b) ** 2 + (1 - p) * b**2 * ratio) / lowest

    figure, axis = new_figure(7.5, 3.4)
    b = np.linspace(0, 1, 201)
    axis.plot(b, relative(b), color=BLUE)
    for name, at in {"0": 0, "b*": best, "p": p, "1": 1}.items():
        axis.plot(at, relative(at), "o", color=ORANGE)
        beside = (0, -16 if name == "b*" else 9)
        axis.annotate(name, (at, relative(at)), beside, textcoords="offset points", ha="center")
    axis.set(title=f"p = {p:.1f}, $a_-/a_+$ = {ratio:g}", xlabel="baseline b", yscale="log")
    ticks(axis.yaxis, [1, 2, 5, 10, 20, 50])
    axis.set(ylabel="mean square (b*: 1)", ylim=(0.6, 2 * max(relative(b))))
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def limit_in_groups(p, G, variance=lambda p, G: p * (1 - p) / (G - 1), twice=1):
    """The ratio of squared lengths at which the mean of the others is as noisy as nothing; with
    another variance of that mean, or not counted twice, a wrong one."""
    q, v = 1 - p, variance(p, G)
    return p * (1 - q**2 - twice * v) / (q * (p**2 + v))


def completions_for(target, cosine, n):
    """How many completions have the cosine `target`, if n have another one."""
    return n * (1 / cosine**2 - 1) / (1 / target**2 - 1)


CHECKS = {
    "13.1": {
        "expected": limit_in_groups,
        "inputs": [{"p": 0.5, "G": 2}, {"p": 0.2, "G": 5}, {"p": 0.7, "G": 8}],
        "mistakes": {
            "1 + 1/q holds for a constant b; this one varies": lambda p, G: 1 + 1 / (1 - p),
            "b is the mean of the G − 1 others": partial(
                limit_in_groups, variance=lambda p, G: p * (1 - p) / G
            ),
            "(1 − b)² has the variance in its mean, too": partial(limit_in_groups, twice=0),
        },
    },
    "13.2": {
        "expected": completions_for,
        "inputs": [
            {"target": 0.9, "cosine": 0.6, "n": 256},
            {"target": 0.3, "cosine": 0.5, "n": 64},
        ],
        "mistakes": {
            "other way round: a larger cosine needs more completions": (
                lambda target, cosine, n: completions_for(cosine, target, n)
            ),
            "the formula has the square of the cosine": (
                lambda target, cosine, n: completions_for(target**0.5, cosine**0.5, n)
            ),
            "cos² grows in proportion to n only while it is small": (
                lambda target, cosine, n: n * (target / cosine) ** 2
            ),
        },
    },
}
