"""The pictures of lesson 13, and the right answers and usual mistakes of its exercises."""

from collections.abc import Callable
from itertools import product

import numpy as np
from matplotlib.figure import Figure

from lessons import identity
from lessons.workshop.kit import BLUE, GREY, ORANGE, new_figure


def progress_and_length(table: np.ndarray, G: int, title: str) -> Figure:
    """Lesson 13: by k, the shares of progress and of squared length of GRPO's updates (left), and
    their length (right).

    table: (seeds, G - 1, 5), of groups as they are drawn: how many have k right; of their contrast,
    the mean and the median of its squared length, its mean progress, and its mean cosine with the
    true gradient.
    """
    figure, (left, right) = new_figure(9.5, 3.8, columns=2)
    n, squared, median, progress, _ = np.moveaxis(table, 2, 0)
    k = np.arange(1, G)
    sigma = identity.sigma(k, G)
    for values, color, side in (
        (n * sigma * progress, BLUE, -0.2),
        (n * sigma**2 * squared, ORANGE, 0.2),
    ):
        left.bar(k + side, values.sum(axis=0) / values.sum(), 0.4, color=color, alpha=0.6)
        by_seed = values / values.sum(axis=1, keepdims=True)
        left.plot(k + side, by_seed.T, "_", color="black", markersize=5)
    left.set(title=f"{title}: shares of", xlabel="k, right completions (and share of groups)")
    left.set_ylim(top=1.25 * left.get_ylim()[1])  # for these names
    for i, (name, color) in enumerate((("progress", BLUE), ("squared length", ORANGE))):
        left.text(0.03, 0.92 - 0.09 * i, name, color=color, transform=left.transAxes)
    shown, total = k if G <= 8 else k[::2], n.sum()
    left.set_xticks(shown, [f"{i}\n{n[:, i - 1].sum() / total:.0%}" for i in shown], fontsize=8)
    seen = n.sum(axis=0) >= 10
    counts = np.maximum(n.sum(axis=0), 1)
    rms = sigma * np.sqrt((n * squared).sum(axis=0) / counts)
    middle = sigma * np.sqrt((n * median).sum(axis=0) / counts)
    scale = rms[seen].max()
    right.plot(k[seen], rms[seen] / scale, "o-", color=ORANGE, label="root mean square")
    right.plot(k[seen], middle[seen] / scale, "s--", color=GREY, label="median")
    right.plot(k, sigma / sigma.max(), ":", color="black", label="σ")
    right.set(
        title="Length of an update, the largest is 1", xlabel="k, right completions", ylim=(0, 1.08)
    )
    right.set_xlim(0.5, G - 0.5)
    right.set_xticks(shown)
    right.legend(loc="lower center")
    return figure


def cosines(table: dict[str, list[float]], columns: list[tuple[str, int]]) -> Figure:
    """Lesson 13: the cosine of each estimator's update with the true gradient, by student (panels)
    and step.

    table: by estimator, one cosine for each of the columns (student, step).
    """
    students, steps = (list(dict.fromkeys(part)) for part in zip(*columns))
    figure, axes = new_figure(9.5, 3.2, columns=len(students), sharey=True)
    y = np.arange(len(table))[::-1]
    for axis, student in zip(axes, students):
        for step, color in zip(steps, (BLUE, ORANGE)):
            values = [row[columns.index((student, step))] for row in table.values()]
            axis.plot(values, y, "o", color=color, markersize=6)
        axis.set(title=student, xlim=(0, 1), xlabel="cosine with the gradient")
        axis.set_yticks(y, table)
    for step, color, height in zip(steps, (BLUE, ORANGE), (0.92, 0.83)):
        axes[0].text(0.03, height, f"step {step}", color=color, transform=axes[0].transAxes)
    return figure


def points_by_power(points: np.ndarray, names: tuple[str, ...], tasks: tuple[str, ...]) -> Figure:
    """Lesson 13: the gain of powers of sigma over sigma itself, for each task (panels).

    points: (powers, tasks, 2, 3), at the end and over training: the mean difference and its 95 %
    interval.
    """
    figure, axes = new_figure(9.5, 3.4, columns=2, sharey=True)
    x = np.arange(len(names))
    for axis, task, of_task in zip(axes, tasks, np.moveaxis(points, 1, 0)):
        axis.axhline(0, color=GREY, linewidth=0.8)
        for i, (name, color) in enumerate((("at the end", BLUE), ("over training", ORANGE))):
            mean, low, high = of_task[:, i].T
            around = [mean - low, high - mean]
            axis.errorbar(x + 0.2 * i - 0.1, mean, around, fmt="os"[i], color=color, markersize=5)
            axis.text(0.03, 0.92 - 0.09 * i, name, color=color, transform=axis.transAxes)
        axis.set_xticks(x, [f"$\\sigma^{{{name.removeprefix('σ^')}}}$" for name in names])
        axis.set(title=f"{task}: points against σ", ylim=(-8, 8))
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def over_all_draws(estimate: Callable) -> Callable:
    """The mean of an estimate over all 4,096 draws of 8 right and 4 wrong scores, each (2,) one of
    two: its exact expectation. `...` and None are no estimates, and give `...`."""

    def answer(mean_over: str) -> float:
        rights, wrongs = (
            np.array(list(product(scores, repeat=n))) for scores, n in ((RIGHT, 8), (WRONG, 4))
        )
        values = [estimate(right.copy(), wrong.copy()) for right in rights for wrong in wrongs]
        return ... if values[0] is None or values[0] is ... else np.mean(values, axis=0)

    return answer


def less_variances(ddof: int, per_mean: bool) -> Callable:
    """The squared contrast less the estimated variances of the two classes, each divided by the
    number of its scores where `per_mean`."""

    def estimate(right: np.ndarray, wrong: np.ndarray) -> float:
        value = ((right.mean(axis=0) - wrong.mean(axis=0)) ** 2).sum()
        for scores in (right, wrong):
            value -= scores.var(axis=0, ddof=ddof).sum() / (len(scores) if per_mean else 1)
        return value

    return estimate


def weighted_mean(R: np.ndarray, scores: np.ndarray, power: int) -> float:
    """The mean reward, weighted by a power of the score's length; 2 gives the best b."""
    return np.average(R, weights=np.linalg.norm(scores, axis=1) ** power)


# The means are (2, 0) and (0, -1).
RIGHT, WRONG = np.array([[2.0, 3.0], [2.0, -3.0]]), np.array([[3.0, 0.0], [-3.0, -2.0]])

CHECKS = {
    "13.1": {
        "expected": lambda mean_over: 5.0,
        "inputs": [{"mean_over": "all draws of 8 right and 4 wrong scores"}],
        "mistakes": {
            "the noise of both means is still in it": over_all_draws(
                lambda right, wrong: ((right.mean(axis=0) - wrong.mean(axis=0)) ** 2).sum()
            ),
            "ddof 0 is too small": over_all_draws(less_variances(ddof=0, per_mean=True)),
            "one score's variance: a mean has 1/n of it": (
                over_all_draws(less_variances(ddof=1, per_mean=False))
            ),
        },
    },
    "13.2": {
        "expected": lambda R, scores: weighted_mean(R, scores, 2),
        "inputs": [
            {
                "R": np.array([1.0, 1, 0, 0, 0, 1]),
                "scores": np.random.default_rng(seed).normal(size=(6, 3)),
            }
            for seed in range(2)
        ],
        "mistakes": {
            "that is best only where right and wrong scores are equally long": (
                lambda R, scores: R.mean()
            ),
            "it is the squared length that weighs": lambda R, scores: weighted_mean(R, scores, 1),
            "that weighs by the wrong ones: which reward do the others have?": (
                lambda R, scores: weighted_mean(1 - R, scores, 2)
            ),
        },
    },
}
