"""The pictures of lesson 19."""

import numpy as np
from matplotlib.figure import Figure

from lessons.kit import BLUE, GREY, ORANGE, new_figure


def noise_of_baselines(
    b: np.ndarray, noise: np.ndarray, marks: dict[str, tuple[float, float]], title: str
) -> Figure:
    """The noise (n,) of a constant baseline b (n,), and named points (b, noise) on it or beside
    it."""
    figure, axis = new_figure(7.5, 3.6)
    axis.plot(b, noise, color=BLUE)
    for i, (name, (at, height)) in enumerate(marks.items()):
        axis.plot(at, height, "o", color=ORANGE, markersize=7)
        beside = (0, -16 if i % 2 else 9)  # every other name below its point
        side = "left" if at < 0.2 else "right"
        axis.annotate(name, (at, height), beside, textcoords="offset points", ha=side)
    axis.set(title=title, xlabel="baseline b", ylabel="noise, in that of the best b")
    axis.set(yscale="log", xlim=(-0.02, 1.02))
    axis.set_ylim(0.6, 2 * max(noise.max(), *(height for _, height in marks.values())))
    return figure


def by_baseline(
    table: dict[str, list[list[float]]], columns: list[tuple[str, int]], label: str
) -> Figure:
    """A quantity from 0 to 1 of each baseline, by task (panels) and step of training: means, and
    seeds as small marks.

    table: by baseline, for each of the columns (task, step) the values of the seeds.
    """
    tasks = list(dict.fromkeys(task for task, _ in columns))
    figure, axes = new_figure(9.5, 3.6, columns=len(tasks), sharey=True)
    y = np.arange(len(table))[::-1]
    for axis, task in zip(axes, tasks):
        steps = [step for name, step in columns if name == task]
        for i, (step, color) in enumerate(zip(steps, (BLUE, ORANGE, GREY))):
            values = [row[columns.index((task, step))] for row in table.values()]
            means, height = np.mean(values, axis=1), y + 0.22 * (1 - i)
            axis.plot(means, height, "os^"[i], color=color, markersize=6, label=f"step {step}")
            axis.plot(values, height, "|", color=color, markersize=6, alpha=0.6)
        axis.set(title=task, xlim=(-0.03, 1.03), xlabel=label)
        axis.set_yticks(y, table)
    axes[0].legend(loc="lower right", fontsize=8)
    return figure
