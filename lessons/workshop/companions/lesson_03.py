"""The pictures of lesson 3, and the right answers and usual mistakes of its exercises."""

from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from algorithms import rloo
from lessons.workshop.companions.drawing import in_plane
from lessons.workshop.notebook import BLUE, GREEN, GREY, ORANGE, new_figure


def counts_of_prompts(p: np.ndarray, counts: dict, dots: list) -> Figure:
    """Lesson 3: how much a prompt counts, w(p) / w(1/2), (n,) for each group size. dots: the same,
    (p, w(p) / w(1/2)), of groups of four."""
    figure, axis = new_figure(7, 3.2)
    axis.axhline(1, linestyle="--", color=GREY)
    for (G, values), color in zip(counts.items(), (GREEN, BLUE, ORANGE)):
        axis.plot(p, values, color=color, label=f"groups of {G}: up to {values.max():.2f}")
    axis.plot(*zip(*dots), "k.")
    axis.set(
        title="How much a prompt counts (one with p = ½: 1)",
        xlim=(0, 1),
        ylim=(0, 4.2),
        xlabel="p, probability of a right completion",
    )
    axis.legend(loc="upper center")
    return figure


def cloud_of_groups(updates: dict, chance: Tensor, grad_p: Tensor) -> Figure:
    """Lesson 3: the update of every group, (n, parameters) by name, with their mean and grad p.
    chance: (n,)"""
    figure, axes = new_figure(8.5, 3.2, columns=2, sharex=True, sharey=True)
    for axis, (name, g), color in zip(axes, updates.items(), (GREEN, ORANGE)):
        flat = in_plane(g, chance, grad_p)
        axis.scatter(*flat.T, s=1200 * chance, color=color, alpha=0.5, linewidth=0)
        axis.plot(grad_p.norm(), 0, "k+", markersize=14)
        axis.plot(*(chance.numpy() @ flat), "ko", markersize=14, fillstyle="none")
        axis.set(title=f"{name}, all groups of two", xlabel="along ∇p")
    axes[0].set_ylabel("across")
    return figure


# Exercises; `notebook.check` explains the keys of CHECKS


def rloo_verified(rewards, verified, own=0, timeouts=False):
    """Rewards less the mean of the others that were verified; 0 for what was not, as is its reward.
    The mean may include the own reward, or count what was not verified."""
    total = rewards.sum(dim=1, keepdim=True)
    number = (verified | timeouts).sum(dim=1, keepdim=True)
    others = total - (1 - own) * rewards
    return (rewards - others / (number - 1 + own)) * verified


def as_wrong(rewards, verified):
    """The bug: a timeout counts as a wrong completion."""
    return rloo.compute_advantages(rewards=rewards)


WRONG_BASELINES = {
    "the bug": as_wrong,
    "divided by G - 1": partial(rloo_verified, timeouts=True),
    "own reward in the mean": partial(rloo_verified, own=1),
}
some = {
    "rewards": torch.tensor([[1, 0, 0, 1, 0], [0, 0.5, 1, 0.25, 0]]).double(),
    "verified": torch.tensor([[1, 1, 0, 1, 0], [1, 1, 1, 1, 0]]).bool(),
}

CHECKS = {
    "3.1": {
        "expected": lambda W: 1 - np.diag(W).mean(),
        "inputs": [
            {"W": np.array([[0.2, 0.5, 0.1], [0.3, 0.0, 0.4], [0.25, 0.25, 0.5]])},
            {"W": np.full((2, 2), 0.3)},
        ],
        "mistakes": {
            "g is a mean over the group: the mean of the diagonal, not its sum": (
                lambda W: 1 - np.diag(W).sum()
            ),
            "the others' rewards are independent of s_i: only the diagonal counts": (
                lambda W: 1 - W.sum() / len(W)
            ),
        },
    },
    "3.2": {
        "bug": as_wrong,
        "expected": rloo_verified,
        "inputs": [some],
        "mistakes": {
            "that baseline contains the own reward: it is Dr. GRPO's": (
                WRONG_BASELINES["own reward in the mean"]
            ),
            "after a timeout there are fewer others than G - 1": (
                WRONG_BASELINES["divided by G - 1"]
            ),
        },
    },
}


def slow_but_right(advantages_of) -> list[float]:
    """The probability of the right completion before each update, mean of 200 prompts. Each has
    four completions: one right, for which the verifier times out four times in five; one half right
    and fast; two wrong. Groups of eight, whose first two never time out."""
    generator, curve = torch.Generator().manual_seed(0), []
    logits = torch.zeros(200, 4, requires_grad=True)
    for _ in range(60):
        pi = logits.softmax(dim=1)
        curve.append(pi[:, 0].mean().item())
        drawn = pi.multinomial(8, True, generator=generator)  # (200, 8)
        verified = (drawn > 0) | (torch.arange(8) < 2)
        verified |= torch.rand(200, 8, generator=generator) < 0.2
        R = (1 - drawn / 2).clamp(min=0) * verified
        J = (advantages_of(R, verified) * pi.gather(1, drawn).log()).sum() / 8
        logits.data += torch.autograd.grad(J, logits)[0]
    return curve


TRAINED = {
    "3.2": {
        "curve": slow_but_right,
        "mistakes": WRONG_BASELINES,
        "labels": ("updates", "right completion, probability"),
    }
}
