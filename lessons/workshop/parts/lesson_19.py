"""The picture of lesson 19, and the right answers and usual mistakes of its exercises."""

import numpy as np
import torch
from matplotlib.figure import Figure

from lessons.workshop.kit import BLUE, ORANGE, new_figure


def who_brings(medians: dict) -> Figure:
    """The share of a prompt's gradient that all-right groups of eight bring if A = R, over its p.
    medians: p by name, marked on the curve."""
    figure, axis = new_figure(7.5, 3)
    p = np.linspace(0, 1, 101)
    names = ("all-right groups", "mixed groups")
    axis.stackplot(p, p**7, 1 - p**7, colors=(ORANGE, BLUE), alpha=0.4, labels=names)
    for marker, (name, x) in zip("os", medians.items()):
        axis.plot(x, x**7, marker, color="black", label=name)
    axis.set(xlabel="p", ylabel="share of ∇p", xlim=(0, 1), ylim=(0, 1))
    axis.legend(loc="upper left", frameon=True)
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


CHECKS = {
    "19.1": {
        "expected": lambda p, difference: (1 - p) * difference,
        "inputs": [{"p": p, "difference": torch.tensor([2.0, -1.0])} for p in (0.25, 0.9)],
        "mistakes": {
            "a silent group moves nothing only if its mean is subtracted": (
                lambda p, difference: 0 * difference
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
        },
    },
    "19.3": {
        "expected": lambda p, right, wrong: (1 - p) * (1 + wrong / right),
        "inputs": [
            {"p": 0.9, "right": 1.0, "wrong": 4.0},
            {"p": 0.5, "right": 2.0, "wrong": 1.0},
        ],
        "mistakes": {
            "with A = R all-right groups move, too": lambda p, right, wrong: 1 + wrong / right,
            "RLOO also pushes wrong ones down": lambda p, right, wrong: 1 - p,
        },
    },
}
