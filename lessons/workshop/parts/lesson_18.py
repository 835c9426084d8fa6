"""The pictures of lesson 18, and the right answers and usual mistakes of its exercises."""

from functools import partial
from math import inf, log

import numpy as np
import torch
from matplotlib.figure import Figure

from lessons.workshop.kit import BLUE, GREEN, GREY, ORANGE, new_figure
from lessons.workshop.parts.drawing import key


def batch_errors(n: np.ndarray, ways: dict) -> Figure:
    """The error of a batch over its number of groups, n: (m,). ways: by name how far the mean is
    off, and the noise of one group."""
    figure, axis = new_figure(7.5, 3.2)
    colors = dict(zip(ways, (GREY, ORANGE, GREEN, BLUE)))
    for name, (off, noise) in ways.items():
        axis.plot(n, np.sqrt(off**2 + noise**2 / n), color=colors[name])
    axis.set(title="Error of a batch (1: the trainer's update)")
    axis.set(xlabel="groups in the batch", xscale="log", ylim=(0, 1.4))
    key(axis, colors, 0.45)
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def mean_update(old, sampled, As, C, drawn_from=1):
    """The mean of min(w, C) A s."""
    w = (old - sampled).sum(dim=1).exp().clamp(max=C)
    return ((old, sampled)[drawn_from].sum(dim=1).exp() * w) @ As


def groups_needed(off, noise, other_off, other_noise):
    """From how many groups on the second way has the smaller squared error."""
    return (other_noise**2 - noise**2) / (off**2 - other_off**2)


old = torch.tensor([[0.6, 0.5], [0.3, 0.8]]).double().log()
shift = torch.tensor([[0.9, 0.4], [0.2, 0.3]]).double()
As = torch.tensor([[1.0, 0.5], [0.6, 2.0]]).double()

CHECKS = {
    "18.1": {
        "expected": mean_update,
        "inputs": [{"old": old, "sampled": old - d, "As": As, "C": 2.0} for d in (shift, -shift)],
        "mistakes": {
            "the sampler draws, not the trainer": partial(mean_update, drawn_from=0),
            "cap once, after the product over the tokens": lambda old, sampled, As, C: (
                (sampled + (old - sampled).clamp(max=log(C))).sum(dim=1).exp() @ As
            ),
            "the weight has no bound": lambda old, sampled, As, C: mean_update(
                old, sampled, As, inf
            ),
        },
    },
    "18.2": {
        "expected": groups_needed,
        "inputs": [
            {"off": 0.5, "noise": 2.0, "other_off": off, "other_noise": 5.0} for off in (0.0, 0.3)
        ],
        "mistakes": {
            "the squares of error and noise add": lambda off, noise, other_off, other_noise: (
                (other_noise - noise) / (off - other_off)
            ),
            "the squared noise falls like 1/n, not like 1/n²": lambda *ways: (
                groups_needed(*ways) ** 0.5
            ),
            "the other way keeps an error of its own": lambda *ways: groups_needed(
                *ways[:2], 0, ways[3]
            ),
        },
    },
}
