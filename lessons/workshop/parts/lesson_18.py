"""The pictures of lesson 18, and the right answers and usual mistakes of its exercises."""

from functools import partial
from math import inf, log, sqrt

import numpy as np
import torch
from matplotlib.figure import Figure

from lessons.workshop.kit import BLUE, GREY, ORANGE, new_figure
from lessons.workshop.parts.drawing import curve, key
from lessons.workshop.parts.lesson_14 import gradient_of

# Colour and line, by the unit that has a weight
STYLES = {"none": (GREY, ":"), "token": (ORANGE, "--"), "completion": (BLUE, "-")}


def off_and_noise(caps: np.ndarray, lines: dict) -> Figure:
    """The error of the mean update (left) and its noise (right) against the cap (n,), for each kind
    of weight: lines (n, 2)."""
    figure, (left, right) = new_figure(9.6, 3.5, columns=2)
    left.set(title="Error of the mean update", xlabel="C, the largest weight allowed", ylim=(0, 1))
    right.set(title="Noise of one completion's update", xlabel="C, the largest weight allowed")
    for name, values in lines.items():
        for axis, y in zip((left, right), values.T):
            curve(axis, caps, y, *STYLES[name])
    names = {"no weights": GREY, "weights of tokens": ORANGE, "weights of completions": BLUE}
    key(left, names, 0.5)
    left.set_ylabel("relative to the true mean")
    right.set(ylim=(0, None), ylabel="relative to the true mean")
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def corrected(logps, old_logps, sampler_logps, A, eps, C, unit=torch.sum, below=1):
    """GRPO's clipped loss of one completion times the weight of the whole completion. below: which
    argument the clip's ratio has below."""
    weight = unit(old_logps - sampler_logps).exp().clamp(max=C)
    ratio = (logps - (logps, old_logps, sampler_logps)[below]).exp()
    return -(weight * torch.minimum(ratio * A, ratio.clamp(1 - eps, 1 + eps) * A)).mean()


def truncated(log_ratio, C):
    return log_ratio.sum(dim=1, keepdim=True).exp().clamp(max=C)


old = torch.tensor([-2.0, -0.5, -3.0, -1.0]).double()
now = old + torch.tensor([0.3, -0.3, 0.1, -0.1])
gaps = torch.tensor([[0.15, -0.2, 0.3, 0.05], [0.9, 0.4, -0.1, 0.2]])
two_engines = torch.tensor(
    [[1.2, -0.5, -0.5], [0.1, 0.2, 0.0], [0.5, 0.6, 0.7], [-1.0, 2.0, -1.0]]
).double()

CHECKS = {
    "18.1": {
        "expected": gradient_of(corrected),
        "inputs": [
            {"logps": now, "old_logps": old, "sampler_logps": old - gap}
            | {"A": A, "eps": 0.2, "C": 2.0}
            for A in (1.5, -0.5)
            for gap in gaps
        ],
        "mistakes": {
            "the clip's ratio is the trainer's alone, π over π_old": (
                gradient_of(partial(corrected, below=2))
            ),
            "that is a weight for each token": gradient_of(partial(corrected, unit=torch.clone)),
            "the weight has no bound": gradient_of(lambda *batch: corrected(*batch[:-1], inf)),
        },
    },
    "18.2": {
        "bug": lambda log_ratio, C: log_ratio.exp().clamp(max=C).prod(dim=1, keepdim=True),
        "expected": truncated,
        "inputs": [{"log_ratio": two_engines, "C": 2.0}, {"log_ratio": -two_engines, "C": 1.5}],
        "mistakes": {
            "untruncated, the weight of a long completion has no bound": (
                lambda log_ratio, C: truncated(log_ratio, inf)
            ),
            "a geometric mean is no importance weight": (
                lambda log_ratio, C: truncated(log_ratio / log_ratio.shape[1], C)
            ),
        },
    },
    "18.3": {
        "expected": lambda d: log(2) / d**2,
        "inputs": [{"d": 0.0088}, {"d": 0.5}],
        "mistakes": {
            "the tokens' variances add, not their standard deviations": lambda d: sqrt(log(2)) / d,
            "that is E w² alone: divide by the square of E w": lambda d: log(2) / (2 * d**2),
            "that is where the spread of log w is 1": lambda d: 1 / d**2,
        },
    },
}
