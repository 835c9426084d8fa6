"""The pictures of lesson 13, and the right answers and usual mistakes of its exercises."""

from functools import partial

import numpy as np
from matplotlib.figure import Figure

from lessons.workshop.kit import BLUE, GREY, ORANGE, new_figure
from lessons.workshop.parts.drawing import key


def three_rules(titles: list, table: dict) -> Figure:
    """The cosines of rules (rows) in models, by their titles (panels): mean, lowest and highest.
    table: by rule, (models, repetitions)."""
    figure, axes = new_figure(9.5, 2.3, columns=len(titles), sharey=True)
    rows = np.arange(len(table))[::-1]
    for axis, title, values in zip(axes, titles, zip(*table.values())):
        for y, cosines, color in zip(rows, values, (BLUE, BLUE, ORANGE)):
            axis.plot([cosines.min(), cosines.max()], [y, y], color=color)
            axis.plot(cosines.mean(), y, "o", color=color, markersize=8)
        axis.set(title=title, xlabel="cosine (1: no noise)", xlim=(0.5, 0.9), ylim=(-0.5, 2.5))
        axis.set_yticks(rows, table)
    return figure


def noise_of_baselines(b: np.ndarray, noise: np.ndarray, marks: dict, title: str) -> Figure:
    """The noise (n,) of a constant baseline b (n,), and named points (b, noise) on it or beside
    it."""
    figure, axis = new_figure(7.5, 3.6)
    axis.plot(b, noise, color=BLUE)
    for i, (name, point) in enumerate(marks.items()):
        axis.plot(*point, "o", color=ORANGE, markersize=7)
        beside = (0, -16 if i % 2 else 9)  # every other name below its point
        side = "left" if point[0] < 0.2 else "right"
        axis.annotate(name, point, beside, textcoords="offset points", ha=side)
    axis.set(title=title, xlabel="baseline b", ylabel="noise (b*: 1)")
    top = 2 * max(*noise, *(height for _, height in marks.values()))
    axis.set(yscale="log", xlim=(-0.02, 1.02), ylim=(0.6, top))
    axis.yaxis.set_major_formatter("{x:g}")
    return figure


def points_by_power(points: np.ndarray, names: tuple, tasks: tuple) -> Figure:
    """Lesson 13: the gain of powers of sigma over sigma itself, for each task (panels).

    points: (powers, tasks, 2, 3), at the end and over training: the mean difference and its 95 %
    interval.
    """
    figure, axes = new_figure(9.5, 3.4, columns=2, sharey=True)
    x = np.arange(len(names))
    for axis, task, of_task in zip(axes, tasks, np.moveaxis(points, 1, 0)):
        axis.axhline(0, color=GREY, linewidth=0.8)
        for i, color in enumerate((BLUE, ORANGE)):
            mean, low, high = of_task[:, i].T
            axis.errorbar(x + 0.2 * i - 0.1, mean, [mean - low, high - mean], fmt="os"[i],
                          color=color, markersize=5)  # fmt: skip
        key(axis, {"at the end": BLUE, "over training": ORANGE})
        axis.set_xticks(x, [f"$\\sigma^{{{name.removeprefix('σ^')}}}$" for name in names])
        axis.set(title=f"{task}: points against σ", ylim=(-6, 6))
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def completions_for(target, cosine, n):
    """How many completions have the cosine `target`, if n have another one."""
    return n * (1 / cosine**2 - 1) / (1 / target**2 - 1)


def weighted_mean(R, scores, power=2):
    """The mean reward, weighted by a power of the score's length; 2 gives the best b."""
    return np.average(R, weights=np.linalg.norm(scores, axis=1) ** power)


CHECKS = {
    "13.1": {
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
    "13.2": {
        "expected": weighted_mean,
        "inputs": [
            {
                "R": np.array([1.0, 1, 0, 0, 0, 1]),
                "scores": np.random.default_rng(seed).normal(size=(6, 3)),
            }
            for seed in range(2)
        ],
        "mistakes": {
            "that is best only where right and wrong scores are equally long": (
                partial(weighted_mean, power=0)
            ),
            "it is the squared length that weighs": partial(weighted_mean, power=1),
        },
    },
}
