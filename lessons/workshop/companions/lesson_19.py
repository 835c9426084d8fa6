"""The picture of lesson 19, and the right answers and usual mistakes of its exercises."""

from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure
from torch.nn.functional import normalize

from lessons.workshop.notebook import BLUE, ORANGE, new_figure


def who_brings(medians: np.ndarray) -> Figure:
    """Which groups of eight bring ∇p if A = R, over p, for a policy of one parameter: ∇p = pq.
    medians: (n,) the p of models, marked on the border of the two areas."""
    figure, axis = new_figure(7.5, 3.4)
    p = np.linspace(0, 1, 101)
    axis.stackplot(p, p**8 * (1 - p), (p - p**8) * (1 - p), colors=(ORANGE, BLUE), alpha=0.4,
                   labels=("all-right groups", "mixed groups"))  # fmt: skip
    axis.plot(medians, medians**8 * (1 - medians), "ko", label="our models after 60 steps")
    axis.set(xlabel="p", ylabel="∇p", xlim=(0, 1), ylim=(0, 0.35))
    axis.legend(loc="upper left")
    return figure


# Exercises; `notebook.check` explains the keys of CHECKS


def times_as_noisy(p, G, right, wrong):
    """The mean of |A s|^2 with RLOO over that with A = R. right, wrong: the mean of |s|^2."""
    q, n = 1 - p, G - 1
    return q * (q + p / n + (p + q / n) * wrong / right)


def with_knob(R, kappa, own=0):
    return R - (R.sum(dim=1, keepdim=True) - (1 - own) * R) / (R.shape[1] - 1 + kappa)


rewards = torch.tensor([[1.0, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 1]])
CHECKS = {
    "19.1": {
        "expected": lambda p, G: p ** (G - 1),
        "inputs": [{"p": 0.9, "G": 8}, {"p": 0.5, "G": 4}],
        "mistakes": {
            "that is how often a group is all right; its update is longer than ∇p": (
                lambda p, G: p**G
            ),
        },
    },
    "19.2": {
        "expected": with_knob,
        "inputs": [{"R": rewards, "kappa": kappa} for kappa in (0, 7)],
        "mistakes": {
            "the own reward is in b: subtract it from the sum of the group": (
                partial(with_knob, own=1)
            ),
            "that is RLOO: κ is missing": lambda R, kappa: with_knob(R, 0),
        },
    },
}


def share_wrong(advantages, runs=30) -> list:
    """The logarithm of the share of wrong completions over training: eight prompts whose logits
    are linear in twelve parameters, groups of eight, updates of length .15."""
    torch.manual_seed(0)
    x, theta, curve = (torch.randn(runs, 8, 12) + 0.5) / 12**0.5, torch.zeros(runs, 12), []
    for _ in range(121):
        p = torch.einsum("rnd,rd->rn", x, theta).sigmoid().unsqueeze(2)
        curve.append((1 - p).mean().log10().item())
        R = (torch.rand(runs, 8, 8) < p).float()
        A = advantages(R.flatten(0, 1), 7).view_as(R)
        theta += 0.15 * normalize(torch.einsum("rng,rnd->rd", A * (R - p), x))
    return curve


TRAINED = {
    "19.2": {
        "curve": share_wrong,
        "right": "κ = 7",
        "mistakes": {
            "κ = 0: RLOO": lambda R, kappa: with_knob(R, 0),
            "κ = ∞: A = R": lambda R, kappa: R,
        },
        "labels": ("updates", "log10 of the share wrong"),
    }
}
