"""The pictures of lesson 6, and the right answers and usual mistakes of its exercises."""

from functools import partial

import numpy as np
import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from torch import Tensor

from algorithms import grpo
from lessons import identity
from lessons.workshop.notebook import BLUE, ORANGE, RIGHT, WRONG, new_figure
from toy_env.rollout import Rollout

G = 8


def advantages_and_coefficients(k: int) -> Figure:
    """Lesson 6: the advantages of a group of 8 with k right completions, and the coefficient of its
    update."""
    at, ks = np.arange(G), np.arange(G + 1)
    sigma, deviations = identity.sigma(ks, G), (at < k) - k / G
    figure, (left, right) = new_figure(8.5, 3.3, columns=2)
    left.set(title=f"Advantages: {k} right, {G - k} wrong", ylim=(-3, 3))
    left.set_xlabel("✓ right, × wrong completion")
    right.set(title="Coefficient of the group's update", ylim=(-0.03, 0.6))
    right.set(xlabel="k, right completions of 8", xticks=ks)
    for x, advantages, coefficients, color, name, symbol in (
        (-0.2, deviations / (sigma[k] or 1), sigma, BLUE, "GRPO, DAPO", "σ"),
        (0.2, deviations, sigma**2, ORANGE, "Dr. GRPO", "σ²"),
    ):
        left.bar(at + x, advantages, 0.4, color=color, label=name)
        right.plot(ks, coefficients, "o-", color=color, markersize=4, label=f"{symbol}: {name}")
        right.plot(k, coefficients[k], "o", color=color, markersize=11)
    left.axhline(0, color="black", linewidth=0.8)
    left.set_xticks(at, "✓" * k + "×" * (G - k))
    left.legend(loc="lower left" if k < 4 else "upper right")
    right.legend(loc="lower center")
    return figure


def token_changes(group: Rollout, change: Tensor, advantages: Tensor, tokenizer) -> Figure:
    """Lesson 6: the tokens of a group, one completion a row, coloured by how their log-probability
    has changed.

    change: (G, T); advantages: (G,). The colours are logarithmic beyond 0.01, so that small changes
    are seen.
    """
    most = change.abs().max().item()
    colors = ScalarMappable(SymLogNorm(0.01, vmin=-most, vmax=most), "RdBu")
    figure, axis = new_figure(8.5, 0.36 * len(group) + 0.8)
    for i, A in enumerate(advantages.tolist()):
        verdict, color = ("right", RIGHT) if A > 0 else ("wrong", WRONG)
        label = f"{verdict}, A = {A:+.2f}".replace("-", "−")
        axis.text(-0.8, -i, label, ha="right", va="center", fontsize=9.5, color=color)
    for i, t in group.mask.nonzero().tolist():
        face = colors.to_rgba(change[i, t].item())
        ink = "white" if np.dot(face[:3], (0.3, 0.6, 0.1)) < 0.55 else "black"
        token = tokenizer.decode(group.completion_ids[i, t]).replace(tokenizer.eos_token, "∎")
        box = {"boxstyle": "round", "facecolor": face, "edgecolor": "#BBBBBB"}
        axis.text(t, -i, token, ha="center", va="center", color=ink, family="monospace", bbox=box)
    axis.set(xlim=(-6, group.mask.sum(dim=1).max()), ylim=(-len(group) + 0.4, 0.6))
    axis.axis("off")
    axis.set_title("Change of each token's log-probability", x=0.01)
    marks = [-0.5, -0.1, -0.01, 0, 0.01, 0.1, 0.5]
    bar = figure.colorbar(colors, ax=axis, ticks=marks, format="{x:g}", aspect=14)
    bar.ax.tick_params(labelsize=9)
    return figure


# Exercises; `notebook.check` explains the keys of CHECKS

scores = np.random.default_rng(0).normal(size=(5, 3))  # of any model whatever


def rloo(k, G):
    """A+, A- and the weight of the contrast in the update."""
    return np.array([G - k, -k, k * (G - k) / G]) / (G - 1)


def update(rewards, scores, divisor=np.std):
    """GRPO's update from one group."""
    return (rewards - rewards.mean()) @ scores / len(scores) / divisor(rewards)


def two_classes(rewards, scores):
    above = rewards > rewards.mean()
    return rewards.std() * (scores[above].mean(axis=0) - scores[~above].mean(axis=0))


def advantages(groups: Tensor) -> Tensor:
    return grpo.compute_advantages(rewards=groups)


TILED = {
    "the bug": lambda R, P, G: advantages(R.view(P, G)).T.flatten(),
    "its groups, right order": lambda R, P, G: advantages(R.view(P, G)).flatten(),
}
tiled = torch.tensor([1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 1, 0]).double()

CHECKS = {
    "6.1": {
        "expected": rloo,
        "inputs": [{"k": 1, "G": 8}, {"k": 3, "G": 4}],
        "mistakes": {
            "its own reward is still in the baseline: that is Dr. GRPO": (
                lambda k, G: rloo(k, G) * (G - 1) / G
            ),
        },
    },
    "6.2": {
        "bug": TILED["the bug"],
        "expected": lambda R, P, G: advantages(R.view(G, P).T).T.flatten(),
        "inputs": [{"rewards": tiled, "P": 3, "G": 4}],
        "mistakes": {
            "a group is a column, a row is a round of prompts": (
                lambda R, P, G: advantages(R.view(G, P)).T.flatten()
            ),
            "that compares prompts with each other: a row is a round, a group is a column": (
                lambda R, P, G: advantages(R.view(G, P)).flatten()
            ),
        },
    },
    "6.3": {
        "expected": update,
        "inputs": [{"rewards": np.array([1, 0.5, 0, 0, 1]), "scores": scores}],
        "mistakes": {
            "without the division it is Dr. GRPO's update": partial(
                update, divisor=lambda rewards: 1
            ),
            "the two-class form does not hold: a completion with 0.5 belongs to neither class": (
                two_classes
            ),
        },
    },
}


def mean_success(advantages_tiled) -> list[float]:
    """The mean success probability of three prompts, coins with a logit each, over ten runs; groups
    of 8, a rate of .3."""
    generator, means = torch.Generator().manual_seed(0), []
    z = torch.tensor([0.9, 0.5, 0.1]).logit().expand(10, 1, 3)
    for _ in range(61):
        p = z.sigmoid()  # (runs, 1, prompts)
        means.append(p.mean().item())
        R = p.expand(10, 8, 3).bernoulli(generator=generator)
        A = torch.stack([advantages_tiled(run.flatten(), 3, 8).view(8, 3) for run in R])
        z = z + 0.3 * (A * (R - p)).mean(dim=1, keepdim=True)
    return means


TRAINED = {
    "6.2": {
        "curve": mean_success,
        "mistakes": TILED,
        "labels": ("updates", "p, mean of three prompts"),
    }
}
