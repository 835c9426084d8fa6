"""The pictures of lesson 13, and the right answers and usual mistakes of its exercises."""

from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
from matplotlib.figure import Figure

from lessons import identity
from lessons.workshop.kit import BLUE, GREY, ORANGE, label_line, new_figure
from lessons.workshop.parts.drawing import key


def progress_and_length(table: np.ndarray, G: int, title: str) -> Figure:
    """Lesson 13: by k, the shares of the groups, and of progress and squared length of GRPO's
    updates (left), and their length (right).

    table: (seeds, G - 1, 5), of groups as they are drawn: how many have k right; of their contrast,
    the mean and the median of its squared length, its mean progress, and its mean cosine with the
    true gradient.
    """
    figure, (left, right) = new_figure(9.5, 3.8, columns=2)
    n, squared, median, progress, _ = np.moveaxis(table, 2, 0)
    k = np.arange(1, G)
    sigma, groups = identity.sigma(k, G), n.sum(axis=0)
    for values, color, x in (
        (n, GREY, k - 0.27),
        (n * sigma * progress, BLUE, k),
        (n * sigma**2 * squared, ORANGE, k + 0.27),
    ):
        left.bar(x, values.sum(axis=0) / values.sum(), 0.27, color=color, alpha=0.6)
        by_seed = values / values.sum(axis=1, keepdims=True)
        left.plot(x, by_seed.T, "_", color="black", markersize=5)
    left.set(title=f"{title}: shares by k", xlabel="k, right completions")
    left.set_ylim(top=1.5 * left.get_ylim()[1])  # for these names
    key(left, {"of the groups": GREY, "of the progress": BLUE, "of the squared length": ORANGE})
    shown = k if G <= 8 else k[::2]
    left.set_xticks(shown)

    def length(squares: np.ndarray) -> np.ndarray:
        return sigma * np.sqrt((n * squares).sum(axis=0) / np.maximum(groups, 1))

    seen = groups >= 10
    longest = length(squared)[seen].max()
    for name, squares, look, color in (
        ("root mean square", squared, "o-", ORANGE),
        ("median", median, "s--", GREY),
    ):
        right.plot(k[seen], length(squares)[seen] / longest, look, color=color, label=name)
    right.plot(k, sigma / sigma.max(), ":", color="black", label="σ")
    right.set(
        title="Length of an update, the largest is 1",
        xlabel="k, right completions",
        ylim=(0, 1.08),
        xlim=(0.5, G - 0.5),
        xticks=shown,
    )
    right.legend(loc="lower center")
    return figure


def two_choices(questions: dict, tasks: list) -> Figure:
    """Lesson 13: what two choices change, by task (rows). questions: for each title, its two
    answers and their cosines, (tasks,)."""
    figure, axes = new_figure(8.5, 2.5, columns=2, sharey=True)
    rows = np.arange(len(tasks))[::-1]
    for axis, (title, answers) in zip(axes, questions.items()):
        ends = [pick([*answers.values()], axis=0) for pick in (np.min, np.max)]
        axis.hlines(rows, *ends, color=GREY, linewidth=4, alpha=0.5)
        looks = zip(answers.items(), (BLUE, ORANGE), (11, -11))
        for (name, values), color, above in looks:
            axis.plot(values, rows, "o", color=color, markersize=8)
            label_line(axis, values[0], 2, name, color, xytext=(0, above), ha="center")
        axis.set(title=title, xlabel="cosine (1: no noise)", xlim=(0, 1), ylim=(-0.5, 2.7))
        axis.set_yticks(rows, tasks)
    return figure


def by_column(height: float, table: dict, columns: list, **settings):
    """A figure with a panel for each task, where a row belongs to each name in the table; and for
    each of the columns (task, step) its axis, the rows, the number of the step, the step, and its
    values, one for each name. table: by name, what belongs to the columns."""
    tasks, steps = (list(dict.fromkeys(part)) for part in zip(*columns))
    figure, axes = new_figure(9.5, height, columns=len(tasks), sharey=True)
    rows, panels = np.arange(len(table))[::-1], []
    for axis, task in zip(axes, tasks):
        axis.set(title=task, **settings)
        axis.set_yticks(rows, table)
    for (task, step), values in zip(columns, zip(*table.values())):
        panels.append((axes[tasks.index(task)], rows, steps.index(step), step, values))
    return figure, panels


def cosines(table: dict, columns: list) -> Figure:
    """Lesson 13: the cosine of each estimator's update with the true gradient, by student (panels)
    and step. table: by estimator, one cosine for each of the columns (student, step)."""
    look = {"xlim": (0, 1), "xlabel": "cosine with the true gradient"}
    figure, panels = by_column(3.5, table, columns, **look)
    colors = {}
    for axis, y, i, step, values in panels:
        colors[f"step {step}"] = color = (BLUE, ORANGE)[i]
        axis.plot(values, y, "o", color=color, markersize=6)
    for axis in figure.axes:
        axis.axhline(2.5, color=GREY, linewidth=0.8)  # weights above, baselines below
    key(figure.axes[0], colors, step=0.13)
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


def over_all_draws(estimate: Callable) -> Callable:
    """The mean of an estimate over all 4,096 draws of 8 right and 4 wrong scores, each (2,) one of
    two: its exact expectation. `...` and None are no estimates, and give `...`."""

    def answer(mean_over: str):
        rights, wrongs = (
            np.array([*product(scores, repeat=n)]) for scores, n in ((RIGHT, 8), (WRONG, 4))
        )
        values = [estimate(right.copy(), wrong.copy()) for right in rights for wrong in wrongs]
        return ... if values[0] is None or values[0] is ... else np.mean(values, axis=0)

    return answer


def signal(right, wrong, noise=lambda scores: 0.0):
    """The squared contrast less an estimate of the noise of both means."""
    contrast = right.mean(axis=0) - wrong.mean(axis=0)
    return contrast @ contrast - noise(right) - noise(wrong)


def completions_for(target, cosine, n):
    """How many completions have the cosine `target`, if n have another one."""
    return n * (1 / cosine**2 - 1) / (1 / target**2 - 1)


def weighted_mean(R, scores, power=2):
    """The mean reward, weighted by a power of the score's length; 2 gives the best b."""
    return np.average(R, weights=np.linalg.norm(scores, axis=1) ** power)


# The means are (2, 0) and (0, -1).
RIGHT, WRONG = np.array([[2.0, 3.0], [2.0, -3.0]]), np.array([[3.0, 0.0], [-3.0, -2.0]])

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
    "13.3": {
        "expected": lambda mean_over: 5.0,
        "inputs": [{"mean_over": "all draws of 8 right and 4 wrong scores"}],
        "mistakes": {
            "the noise of both means is still in it": over_all_draws(signal),
            "ddof 0 is too small": over_all_draws(
                partial(signal, noise=lambda scores: scores.var(axis=0).sum() / len(scores))
            ),
            "one score's variance: a mean has 1/n of it": over_all_draws(
                partial(signal, noise=lambda scores: scores.var(axis=0, ddof=1).sum())
            ),
        },
    },
}
