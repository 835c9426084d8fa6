"""The picture of lesson 19, and the right answers and usual mistakes of its exercises."""

from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure

from algorithms import rloo
from lessons.experiments.baselines import TASKS
from lessons.workshop.kit import BLUE, ORANGE, new_figure
from lessons.workshop.parts.drawing import key


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
        axis.set(title=task, xlabel="points above R − mean")
        axis.set_yticks(y, names.values())
    return figure


def who_brings(medians: dict) -> Figure:
    """The share of a prompt's gradient that all-right groups of eight bring if A = R, over its p.
    medians: p by name, marked on the curve."""
    figure, axis = new_figure(7.5, 3)
    p = np.linspace(0, 1, 101)
    axis.fill_between(p, p**7, color=ORANGE, alpha=0.4, linewidth=0)
    axis.fill_between(p, p**7, 1, color=BLUE, alpha=0.3, linewidth=0)
    for i, (name, x) in enumerate(medians.items()):
        axis.plot(x, x**7, "o", color="black")
        beside, side = ((-10, -4), "right") if i % 2 else ((0, 24 - 8 * i), "center")
        axis.annotate(name, (x, x**7), beside, textcoords="offset points", ha=side)
    axis.set(title="Who brings ∇p?", xlabel="p", ylabel="share", xlim=(0, 1), ylim=(0, 1))
    key(axis, {"mixed groups": BLUE, "all-right groups": ORANGE})
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
    "19.2": {
        "expected": lambda p, G: p ** (G - 1),
        "inputs": [{"p": 0.9, "G": 8}, {"p": 0.5, "G": 4}],
        "mistakes": {
            "that is how often a group is all right; its update is longer than ∇p": (
                lambda p, G: p**G
            ),
            "that is the update of these groups over Δm; divide by ∇p, which is pq Δm": (
                lambda p, G: p**G * (1 - p)
            ),
            "a group's mean silences them; here A = R": lambda p, G: 0.0,
        },
    },
    "19.3": {
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
}
