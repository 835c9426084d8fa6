"""The pictures of lesson 13, and the right answers and usual mistakes of its exercises."""

from functools import partial

import numpy as np
from matplotlib.figure import Figure

from lessons.workshop.kit import BLUE, ORANGE, new_figure, ticks


def three_rules(titles: list, table: dict) -> Figure:
    """The cosines of rules (rows) in models, by their titles (panels): mean, lowest and highest.
    table: by rule, (models, repetitions)."""
    figure, axes = new_figure(9.5, 2.3, columns=len(titles), sharey=True)
    rows = [2, 1, 0]
    for axis, title, values in zip(axes, titles, zip(*table.values())):
        for y, cosines, color in zip(rows, values, (BLUE, BLUE, ORANGE)):
            axis.hlines(y, cosines.min(), cosines.max(), color=color)
            axis.plot(cosines.mean(), y, "o", color=color)
        axis.set(title=title, xlabel="cosine with the mean ∇p", xlim=(0.5, 0.9), ylim=(-0.5, 2.5))
        axis.set_yticks(rows, table)
    return figure


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


def limit_at_half(G, variance=lambda G: 1 / 4 / (G - 1), twice=1):
    """The ratio of squared lengths at which the mean of the others is as noisy as nothing, at
    p = 1/2; with another variance of that mean, or not counted twice, a wrong one."""
    return (3 / 4 - twice * variance(G)) / (1 / 4 + variance(G))


def completions_for(target, cosine, n):
    """How many completions have the cosine `target`, if n have another one."""
    return n * (1 / cosine**2 - 1) / (1 / target**2 - 1)


CHECKS = {
    "13.1": {
        "expected": limit_at_half,
        "inputs": [{"G": 2}, {"G": 5}, {"G": 8}],
        "mistakes": {
            "3 holds for a constant b; this one varies": lambda G: 3,
            "b is the mean of the G − 1 others": partial(
                limit_at_half, variance=lambda G: 1 / 4 / G
            ),
            "(1 − b)² has the variance in its mean, too": partial(limit_at_half, twice=0),
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
