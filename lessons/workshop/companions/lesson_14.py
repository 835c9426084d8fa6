"""The pictures of lesson 14, and the right answers and usual mistakes of its exercises."""

from collections.abc import Callable

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lessons.experiments.harness import paired
from lessons.experiments.staleness import (
    CISPO,
    CLIP,
    OLD,
    STEP_LENGTHS,
    UNWEIGHTED,
    select,
)
from lessons.workshop.companions.lesson_04 import gradient
from lessons.workshop.notebook import BLUE, GREEN, GREY, PURPLE, new_figure, ticks

ARMS = {  # what each of four arms does: its name in the runs, and its colour
    "neither": (OLD, GREY),
    "weight": (CISPO, GREEN),
    "bound": (UNWEIGHTED, PURPLE),
    "both": (CLIP, BLUE),
}


def factor(loss: Callable, ratio: Tensor, p: float, sign: float) -> Tensor:
    """The factor of a token's A grad log pi, (n,), at each ratio (n,), by autograd: completions of
    one token that was sampled with probability p. sign: that of A."""
    old_logps = torch.full((len(ratio), 1), np.log(p), dtype=torch.float64)
    batch = {"advantages": torch.full_like(old_logps, sign), "mask": old_logps < 1}
    logps = (old_logps + ratio.log().view(-1, 1)).requires_grad_()
    value = loss(logps=logps, old_logps=old_logps, **batch)
    return -sign * len(ratio) * torch.autograd.grad(value, logps)[0].flatten()


def distance_and_end(runs: list[dict]) -> Figure:
    """How far tokens have moved, and the accuracy at the end, of the four arms, with 95 % intervals
    over runs, against the length of every optimizer step."""
    figure, (left, right) = new_figure(9.6, 3.6, columns=2)
    for part, (arm, color) in ARMS.items():
        runs_of = [select(runs, arm=arm, epochs=4, step_length=x) for x in STEP_LENGTHS]
        moved = [[run["moved"] for run in each] for each in runs_of]
        ends = [[run["accuracy"][-1] for run in each] for each in runs_of]
        for axis, values in ((left, np.array(moved)), (right, np.array(ends))):
            axis.fill_between(range(3), *paired.t_interval(values.T), color=color, alpha=0.15)
            axis.plot(values.mean(axis=1), "o-", color=color, label=part)
    left.set(title="How far tokens have moved: mean |log ρ|", yscale="log")
    right.set(title="Accuracy at the end", ylim=(0, 1))
    left.legend()
    for axis in (left, right):
        axis.set(xlabel="length of every optimizer step", xticks=range(3))
        axis.set_xticklabels([".008", ".016", ".032"])
    ticks(left.yaxis, [0.02, 0.05, 0.1, 0.2, 0.5])
    return figure


# Exercises; `notebook.check` explains the keys of CHECKS


def gradient_of(loss: Callable) -> Callable:
    """The function that gives the gradient of a loss (logps, ...) with respect to logps, or what
    `gradient` makes of something that is no loss."""

    def answer(logps: Tensor, *others) -> Tensor | str:
        logps = logps.clone().requires_grad_()
        return gradient(loss(logps, *others), logps)

    return answer


def clip_with(weight: Callable, kept: Callable) -> Callable:
    """The gradient of minus the mean of weight(ratio) A log pi over the tokens that
    kept(ratio, eps, sign of A) does not stop."""

    def loss(logps: Tensor, old_logps: Tensor, A: float, eps: float) -> Tensor:
        ratio = (logps - old_logps).exp().detach()
        return -(weight(ratio) * kept(ratio, eps, np.sign(A)) * A * logps).mean()

    return gradient_of(loss)


def within(ratio: Tensor, eps: float, sign: float) -> Tensor:
    """Whether the clip keeps a token."""
    return sign * (ratio - 1) <= eps


old = torch.tensor([-2.0, -0.5, -3.0, -1.0]).double()
moved = torch.tensor([0.3, -0.3, 0.1, -0.1])


def free(ratio: Tensor, eps: float, sign: float) -> Tensor:
    """Stops no token."""
    return ratio > 0


PARTS = {
    "both": clip_with(torch.clone, within),
    "weight": clip_with(torch.clone, free),
    "neither": clip_with(torch.ones_like, free),
}

CHECKS = {
    "14.1": {
        "expected": clip_with(torch.ones_like, within),
        "inputs": [
            {"logps": old + moved, "old_logps": old, "A": A, "eps": 0.2} for A in (1.5, -0.5)
        ],
        "mistakes": {
            "the ratio still weights the kept tokens (GRPO)": PARTS["both"],
            "no token is stopped": PARTS["neither"],
            "a token is stopped on the side of A's sign only": clip_with(
                torch.ones_like, lambda ratio, eps, sign: (ratio - 1).abs() <= eps
            ),
        },
    },
}


def passing(gradient: Callable) -> list[float]:
    """How often an answer passes: the mean of 32 runs, whose policy is a softmax over ten answers.
    One passes with probability .9, the others with .5. gradient: as `gradient_of` makes it."""
    generator, z, curve = torch.Generator().manual_seed(0), torch.zeros(32, 10), []
    passes = torch.tensor([0.9] + [0.5] * 9)
    for _ in range(21):
        pi = z.softmax(dim=1)
        curve.append((pi @ passes).mean().item())
        y = pi.multinomial(16, True, generator=generator)
        passed = torch.rand(y.shape, generator=generator) < passes[y]
        old = pi.log().gather(1, y)
        for _ in range(16):
            logps, loss = z.requires_grad_().log_softmax(dim=1).gather(1, y), 0
            for A, chosen in ((0.5, passed), (-0.5, ~passed)):
                mean = gradient(logps[chosen].detach(), old[chosen], A, 0.2)
                loss = loss + chosen.sum() * mean @ logps[chosen]
            z = (z - torch.autograd.grad(loss, z)[0] / 4).detach()
    return curve


TRAINED = {
    "14.1": {
        "curve": passing,
        "right": "bound (right)",
        "mistakes": PARTS,
        "labels": ("batches, of 16 updates each", "how often an answer passes"),
    }
}
