"""The pictures of lesson 6, and the right answers and usual mistakes of its exercises."""

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import FuncNorm
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from torch import Tensor

from algorithms import grpo
from lessons import identity
from lessons.workshop.kit import BLUE, GREEN, GREY, ORANGE, RIGHT, WRONG, label_line, new_figure
from toy_env.rollout import Rollout

G = 8


def advantages_and_coefficients(k: int) -> Figure:
    """Lesson 6: the advantages of a group of 8 with k right completions, and the coefficient of its
    update."""
    figure, (left, right) = new_figure(8.5, 3.3, columns=2)
    at, ks, spread = np.arange(G), np.arange(G + 1), float(identity.sigma(k, G))
    deviations = (at < k) - k / G
    divided = deviations / spread if spread else 0 * deviations
    left.bar(at - 0.2, divided, 0.4, color=BLUE, label="GRPO, DAPO")
    left.bar(at + 0.2, deviations, 0.4, color=ORANGE, label="Dr. GRPO")
    left.axhline(0, color="black", linewidth=0.8)
    left.set(
        title=f"Advantages: {k} right, {G - k} wrong",
        xlabel="✓ right, × wrong completion",
        ylim=(-3, 3),
    )
    left.set_xticks(at, ["✓" if i < k else "×" for i in at])
    left.legend(loc="lower left" if k < 4 else "upper right")
    for power, color, name in ((1, BLUE, "σ: GRPO, DAPO"), (2, ORANGE, "σ²: Dr. GRPO")):
        values = identity.sigma(ks, G) ** power
        right.plot(ks, values, "o-", color=color, markersize=4)
        right.plot(k, values[k], "o", color=color, markersize=11)
        label_line(right, G / 2, values[G // 2], name, color, xytext=(0, 11), ha="center")
    right.set(title="Coefficient of the group's update", xlabel="k, right completions of 8")
    right.set(ylim=(-0.03, 0.6), xticks=ks)
    if k in (0, G):
        right.text(G / 2, 0.03, "silent: DAPO draws another prompt", ha="center", color=GREEN)
    return figure


def token_changes(group: Rollout, change: Tensor, advantages: Tensor, tokenizer) -> Figure:
    """Lesson 6: the tokens of a group, one completion a row, coloured by how their log-probability
    has changed.

    change: (G, T); advantages: (G,). The colours follow the 0.4th power of a change, so that small
    ones are seen.
    """
    most = change.abs().max().item()
    norm = FuncNorm(
        (lambda x: np.sign(x) * np.abs(x) ** 0.4, lambda x: np.sign(x) * np.abs(x) ** 2.5),
        -most,
        most,
    )
    colors, longest = ScalarMappable(norm, colormaps["RdBu"]), int(group.mask.sum(dim=1).max())
    figure, axis = new_figure(8.5, 0.36 * len(group) + 0.8, fixed=True)
    for i, (ids, n) in enumerate(zip(group.completion_ids, group.mask.sum(dim=1).tolist())):
        verdict, color = ("right", RIGHT) if advantages[i] > 0 else ("wrong", WRONG)
        label = f"{verdict}, A = {advantages[i]:+.2f}".replace("-", "−")
        axis.text(-0.8, -i, label, ha="right", va="center", fontsize=9.5, color=color)
        for t in range(n):
            ended = t == n - 1 and not group.truncated[i]
            face = colors.to_rgba(change[i, t].item())
            box = FancyBboxPatch(
                (t - 0.4, -i - 0.34), 0.8, 0.68, boxstyle="round,pad=0.03", linewidth=0.6
            )
            box.set(facecolor=face, edgecolor="#BBBBBB")
            axis.add_patch(box)
            ink = "white" if np.dot(face[:3], (0.3, 0.6, 0.1)) < 0.55 else "black"
            token = "∎" if ended else tokenizer.decode([int(ids[t])])
            axis.text(t, -i, token, ha="center", va="center", color=ink, fontsize=10,
                      family="DejaVu Sans Mono")  # fmt: skip
    axis.set(xlim=(-6, longest), ylim=(-len(group) + 0.4, 0.6))
    axis.axis("off")
    axis.set_title("Change of each token's log-probability", x=0.01)
    bar = figure.colorbar(colors, ax=axis, ticks=[-0.5, -0.1, -0.01, 0, 0.01, 0.1, 0.5], aspect=14)
    bar.ax.set_yticklabels(["−0.5", "−0.1", "−0.01", "0", "0.01", "0.1", "0.5"], fontsize=9)
    return figure


def lengths_over_k(panels: Sequence[dict], ks: np.ndarray, G: int) -> Figure:
    """Lesson 6: length of the update at each k, measured and by the formula, relative to the
    formula's at G/2."""
    figure, axes = new_figure(8.5, 2.9, columns=len(panels), sharey=True)
    for axis, panel in zip(axes, panels):
        unit = panel["line"][G // 2 - 1]
        axis.plot(ks, 2 * identity.sigma(ks, G), "--", color=GREY)
        axis.plot(ks, panel["line"] / unit, color=BLUE)
        axis.plot(ks, panel["dots"] / unit, "o", color=BLUE)
        axis.set(ylim=(0, 1.5), xticks=ks, xlabel=f"k, right completions of {G}")
        ratio = f"{panel['ratio']:.1f}" if panel["ratio"] < 10 else f"{panel['ratio']:.0f}"
        axis.set_title(f"{panel['prompt']}  v₋/v₊ = {ratio}", fontsize=10)
    axes[0].set_ylabel("length, 1 at k = 4")
    return figure


# Exercises; `kit.check` explains the keys of CHECKS

vectors = np.random.default_rng(0).normal(size=(16, 40))  # scores of any model whatever


def rloo(k: int, G: int) -> np.ndarray:
    """A+, A- and the weight of the contrast in the update."""
    return np.array([G - k, -k, k * (G - k) / G]) / (G - 1)


def advantages(rewards: Tensor) -> Tensor:
    """GRPO's advantages, (P, G)."""
    return grpo.compute_advantages(rewards=rewards)


def update(rewards: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """GRPO's update from one group."""
    return advantages(torch.tensor(rewards).view(1, -1))[0].numpy() @ scores / len(scores)


def two_classes(rewards: np.ndarray, scores: np.ndarray) -> np.ndarray:
    above = rewards > rewards.mean()
    return rewards.std() * (scores[above].mean(axis=0) - scores[~above].mean(axis=0))


tiled = torch.tensor([1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 1, 0]).double()

CHECKS = {
    "6.1": {
        "expected": rloo,
        "inputs": [{"k": 1, "G": 8}, {"k": 3, "G": 4}, {"k": 8, "G": 16}],
        "mistakes": {
            "its own reward is still in the baseline: that is Dr. GRPO": (
                lambda k, G: rloo(k, G) * (G - 1) / G
            ),
            "the sign of A₋: a wrong completion is pushed down": lambda k, G: abs(rloo(k, G)),
            "the advantages are right; weigh them as in step 2": (
                lambda k, G: np.array([G - k, -k, G]) / (G - 1)
            ),
        },
    },
    "6.2": {
        "expected": update,
        "inputs": [
            {"rewards": np.array(rewards), "scores": vectors[: len(rewards), :3]}
            for rewards in ([1, 0.5, 0, 0, 1], [0, 0, 1, 0, 0.25])
        ],
        "mistakes": {
            "divide by the standard deviation, not by the variance": (
                lambda rewards, scores: update(rewards, scores) / rewards.std()
            ),
            "without the division it is Dr. GRPO's update": (
                lambda rewards, scores: update(rewards, scores) * rewards.std()
            ),
            "the two-class form does not hold: a completion with 0.5 belongs to neither class": (
                two_classes
            ),
            "ddof: the standard deviation divides by G": lambda rewards, scores: (
                update(rewards, scores) * rewards.std() / rewards.std(ddof=1)
            ),
        },
    },
    "6.3": {
        "bug": lambda R, P, G: advantages(R.view(P, G)).T.flatten(),
        "expected": lambda R, P, G: advantages(R.view(G, P).T).T.flatten(),
        "inputs": [{"rewards": tiled, "P": 3, "G": 4}, {"rewards": tiled, "P": 2, "G": 6}],
        "mistakes": {
            "a group is a column, a row is a round of prompts": (
                lambda R, P, G: advantages(R.view(G, P)).T.flatten()
            ),
            "right groups, but A comes back in another order": (
                lambda R, P, G: advantages(R.view(G, P).T).flatten()
            ),
        },
    },
}
