"""The pictures of lesson 19, and the right answers and usual mistakes of its exercises."""

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from algorithms import rloo
from lessons.workshop.kit import BLUE, GREY, ORANGE, new_figure
from lessons.workshop.parts.lesson_01 import as_noisy_as_none


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


# Exercises; `kit.check` explains the keys of CHECKS


def of_the_others(rewards: Tensor, weights: Tensor) -> Tensor:
    """R less the mean reward of the other completions of the group, weighted."""
    total, weight = (x.sum(dim=1, keepdim=True) - x for x in (weights * rewards, weights))
    return rewards - total / weight


R, LENGTHS = (
    torch.tensor([[1.0, 0, 0, 1], [0, 0, 0, 1]]),
    torch.tensor([[24.0, 6, 5, 30], [4, 8, 5, 20]]),
)

CHECKS = {
    "19.1": {
        "expected": as_noisy_as_none,
        "inputs": [{"p": p} for p in (0.3, 0.5, 0.9)],
        "mistakes": {
            "there the best b falls below p: is 0 already nearer to it than p?": lambda p: 1.0,
            "that is where b = 1 is as noisy as b = p": lambda p: p / (1 + p),
            "p and q are exchanged": lambda p: (1 + p) / p,
            "that is a+ / a-": lambda p: 1 / as_noisy_as_none(p),
        },
    },
    "19.2": {
        "expected": of_the_others,
        "inputs": [{"rewards": R, "lengths": LENGTHS}],
        "mistakes": {
            "that is OPO itself: the own reward is in its baseline": lambda rewards, lengths: (
                rewards - (lengths * rewards).sum(1, True) / lengths.sum(1, True)
            ),
            "that is leave-one-out: the lengths do not weigh": (
                lambda rewards, lengths: rloo.compute_advantages(rewards=rewards)
            ),
            "a long completion is to weigh more, not less": (
                lambda rewards, lengths: of_the_others(rewards, 1 / lengths)
            ),
        },
    },
    "19.3": {
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
}
