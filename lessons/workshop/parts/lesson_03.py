"""The pictures of lesson 3, and the right answers and usual mistakes of its exercises."""

from itertools import groupby

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lessons.workshop.kit import BLUE, GREEN, GREY, ORANGE, new_figure

STYLES = {  # colour and line of each curve
    "RLOO": (GREEN, "--"),
    "Dr. GRPO": (ORANGE, "-"),
    "GRPO": (BLUE, "-"),
    "group": (ORANGE, "-"),
    "no baseline": (GREY, ":"),
}


def factor_and_variance(
    G: int, p: np.ndarray, factors: dict, variances: dict
) -> tuple[Figure, np.ndarray]:
    """Lesson 3: the factor of grad p in the expected update, and the variance per completion
    relative to that with the exact p, against p. factors and variances: (n,) each, by name. Returns
    the figure and its two axes."""
    figure, axes = new_figure(8.5, 3.7, columns=2)
    for axis, curves, top, highest in zip(axes, (factors, variances), (4.2, 3.2), (0.94, 0.2)):
        for i, (name, values) in enumerate(curves.items()):
            color, line = STYLES[name]
            axis.plot(p, values, line, color=color, zorder=3 if name == "RLOO" else 2)
            at = highest - 0.085 * i
            axis.plot([0.32, 0.42], [at] * 2, line, color=color, transform=axis.transAxes)
            label = f"mean of a group of {G}" if name == "group" else name
            axis.text(0.45, at, label, color=color, va="center", transform=axis.transAxes)
        axis.set(xlabel="p, probability of a right completion", xlim=(0, 1), ylim=(0, top))
    axes[0].set_title(f"Factor of ∇p in E[g], G = {G}")
    axes[1].set_title("Variance per completion; 1: exact p")
    return figure, axes


# Exercises; `kit.check` explains the keys of CHECKS


def total(rewards: Tensor, verified: Tensor) -> Tensor:
    return (rewards * verified).sum(dim=1, keepdim=True)


def number(verified: Tensor) -> Tensor:
    return verified.sum(dim=1, keepdim=True)


def leave_one_out(rewards: Tensor, verified: Tensor) -> Tensor:
    """Rewards less the mean of the others that were verified; 0 for what was not."""
    others = total(rewards, verified) - rewards
    return (rewards - others / (number(verified) - 1)) * verified


def centred(groups: Tensor, dim: int) -> Tensor:
    return (groups - groups.mean(dim=dim, keepdim=True)).flatten()


def by_text(texts: list[str], rewards: Tensor, G: int) -> Tensor:
    """The bug: all completions of one text are one group."""
    means = [rewards[[text == other for other in texts]].mean() for text in texts]
    return rewards - torch.stack(means)


def by_neighbours(texts: list[str], rewards: Tensor, G: int) -> Tensor:
    """Completions of one text are one group where they follow each other."""
    sizes = [len(list(rows)) for _, rows in groupby(texts)]
    return torch.cat([centred(group, dim=0) for group in rewards.split(sizes)])


some_rewards = torch.tensor([[1, 0, 0, 1, 1], [0, 0.5, 1, 0.25, 0]]).double()
some_verified = torch.tensor([[1, 1, 0, 1, 0], [1, 1, 1, 1, 0]]).bool()
pictures = ["how many?"] * 4 + ["what colour?"] * 4 + ["how many?"] * 4
marks = torch.tensor([0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1]).double()

CHECKS = {
    "3.1": {
        "expected": leave_one_out,
        "inputs": [
            {"rewards": some_rewards, "verified": some_verified},
            {"rewards": 1 - some_rewards, "verified": some_verified.flip(0)},
        ],
        "mistakes": {
            "that baseline contains the own reward: it is Dr. GRPO's": lambda rewards, verified: (
                (rewards - total(rewards, verified) / number(verified)) * verified
            ),
            "after a timeout there are fewer others than G - 1": lambda rewards, verified: (
                (rewards - (total(rewards, verified) - rewards) / (rewards.shape[1] - 1)) * verified
            ),
            "the own reward is still in the sum": lambda rewards, verified: (
                (rewards - total(rewards, verified) / (number(verified) - 1)) * verified
            ),
            "what was not verified must not be pushed": lambda rewards, verified: (
                rewards - (total(rewards, verified) - rewards) / (number(verified) - 1)
            ),
        },
    },
    "3.2": {
        "expected": lambda G: ((G - 1) / G) ** 0.5,
        "inputs": [{"G": 2}, {"G": 8}, {"G": 64}],
        "mistakes": {
            "the wrong way round: does ddof 1 make sigma larger or smaller?": (
                lambda G: (G / (G - 1)) ** 0.5
            ),
            "that is the factor of the variance inside sigma": lambda G: G / (G - 1),
            "that is what the group mean does to E[g]; here the variance inside sigma changes": (
                lambda G: (G - 1) / G
            ),
        },
    },
    "3.3": {
        "bug": by_text,
        "expected": lambda texts, rewards, G: centred(rewards.view(-1, G), dim=1),
        "inputs": [
            {"texts": pictures, "rewards": marks, "G": 4},
            {"texts": ["how many?"] * 6, "rewards": marks[3:9], "G": 2},
        ],
        "mistakes": {
            "two groups with the same text are still merged where one follows the other": (
                by_neighbours
            ),
            "that is the mean of the batch: each group has its own": (
                lambda texts, rewards, G: centred(rewards, dim=0)
            ),
            "the wrong axis: over the prompts": (
                lambda texts, rewards, G: centred(rewards.view(-1, G), dim=0)
            ),
            "the wrong order: groups are contiguous": (
                lambda texts, rewards, G: centred(rewards.view(G, -1), dim=0)
            ),
        },
    },
}
