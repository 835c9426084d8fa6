"""The pictures of lesson 19, and the right answers and usual mistakes of its exercises."""

from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure

from algorithms import rloo
from lessons.experiments.baselines import TASKS
from lessons.workshop.kit import BLUE, GREY, ORANGE, new_figure
from lessons.workshop.parts.lesson_13 import by_column


def gains(learned: dict, names: dict) -> Figure:
    """Points above R - mean at the end of training, with 95 % intervals, for each task (panels).
    learned: `baselines_tables.learned`; names: what to call its rows."""
    figure, axes = new_figure(9.5, 3, columns=2, sharey=True)
    y = np.arange(len(names))[::-1]
    for axis, task in zip(axes, TASKS):
        for height, row in zip(y, names):
            gap = learned[row][f"{task}, at the end"]["gap"]
            color = ORANGE if row == "R" else BLUE
            axis.plot(100 * np.array(gap["interval"]), [height] * 2, color=color, linewidth=1.5)
            axis.plot(100 * gap["difference"], height, "o", color=color, markersize=6)
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set(title=task, xlabel="points, R − mean: 0")
        axis.set_yticks(y, names.values())
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


def by_baseline(table: dict, columns: list, label: str) -> Figure:
    """A quantity from 0 to 1 of each baseline, by task (panels) and step of training: means, and
    seeds as small marks.

    table: by baseline, for each of the columns (task, step) the values of the seeds.
    """
    figure, panels = by_column(3.6, table, columns, xlim=(-0.03, 1.03), xlabel=label)
    for axis, y, i, step, values in panels:
        look = {"color": (BLUE, ORANGE, GREY)[i], "markersize": 6}
        height = y + 0.22 * (1 - i)
        axis.plot(np.mean(values, axis=1), height, "os^"[i], label=f"step {step}", **look)
        axis.plot(values, height, "|", alpha=0.6, **look)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=3)
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def shrunk(rewards, kappa, m0, own=0, counted=1):
    """R less a mean of the others' rewards, of the own one `own` times, and of kappa further ones,
    which count in the divisor `counted` times."""
    total = rewards.sum(dim=1, keepdim=True) - (1 - own) * rewards + kappa * m0
    return rewards - total / (rewards.shape[1] - 1 + own + counted * kappa)


R = torch.tensor([[1.0, 0, 0, 1], [0, 0, 0, 1]])

CHECKS = {
    "19.1": {
        "expected": shrunk,
        "inputs": [{"rewards": R, "kappa": 3.0, "m0": m0} for m0 in (0.2, 0.6)],
        "mistakes": {
            "the own reward is in its baseline": partial(shrunk, own=1),
            "the κ further ones count in the divisor, too": partial(shrunk, counted=0),
            "where are the κ further completions?": lambda rewards, kappa, m0: (
                rloo.compute_advantages(rewards=rewards)
            ),
        },
    },
    "19.2": {
        "expected": lambda p, difference: (1 - p) * difference,
        "inputs": [{"p": p, "difference": torch.tensor([2.0, -1.0])} for p in (0.25, 0.9)],
        "mistakes": {
            "a silent group moves nothing only if its mean is subtracted": (
                lambda p, difference: 0 * difference
            ),
            "that is the mean score of a wrong completion, but for its sign": (
                lambda p, difference: p * difference
            ),
            "that is the gradient of p: the mean over all groups": (
                lambda p, difference: p * (1 - p) * difference
            ),
        },
    },
    "19.3": {
        "expected": lambda p, G: (1 - p) / p,
        "inputs": [{"p": 0.3, "G": 8}, {"p": 0.9, "G": 4}],
        "mistakes": {
            "that is right and wrong exchanged": lambda p, G: p / (1 - p),
            "the variance of a mean of G - 1 rewards is pq/(G - 1), not pq": (
                lambda p, G: (G - 1) * (1 - p) / p
            ),
            "that is c; solve for κ": lambda p, G: p * (G - 1) / (p * (G - 1) + 1 - p),
            "b is a mean of G - 1 others, not of G": lambda p, G: (G - 1) / G * (1 - p) / p,
            "the others' mean has a noise of its own: E X² is larger than p²": lambda p, G: 0.0,
        },
    },
}
