"""The pictures of lesson 5, and the right answers and usual mistakes of its exercises."""

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from algorithms import dr_grpo
from lessons import identity
from lessons.workshop import kit
from lessons.workshop.kit import BLUE, GREEN, ORANGE, RIGHT, WRONG, new_figure

C, G = dr_grpo.Config().max_new_tokens, 8
GRID = np.linspace(0, 1, 81)


def token_mean(L: float, short: int, long: int, B: int) -> float:
    """E[B / (L + lengths of the other B - 1)], each of them short or long with probability one
    half."""
    others_long = np.arange(B)
    tokens = L + others_long * long + (B - 1 - others_long) * short
    return float(identity.binomial(0.5, B - 1) @ (B / tokens))


def push_and_drift(short: int = 5, long: int = 50, A: str = "both signs") -> Figure:
    """Lesson 5: push on one token against the length of its completion, and the drift of length
    against p."""
    signs = [sign for sign in (1, -1) if "only" not in A or (sign > 0) == (">" in A)]
    rules = (
        ("GRPO", BLUE, lambda L: 1 / L),
        ("DAPO, B = 8", GREEN, lambda L: token_mean(L, short, long, G)),
        ("Dr. GRPO", ORANGE, lambda L: L * 0 + 1 / C),
    )
    figure, (left, right) = new_figure(8.5, 3.7, columns=2)
    size = identity.expected_sigma(GRID, G) / identity.expected_sigma(0.5, G)
    L = np.arange(3, C + 1)
    for i, (name, color, divisor) in enumerate(rules):
        one, other = divisor(short), divisor(long)
        favour = (one - other) / (one + other)  # for a step that raises p = 1/2 by one
        for sign in signs:
            left.plot(L, [sign * C * divisor(n) for n in L], "-" if sign > 0 else "--", color=color)
            left.plot(
                [short, long], [sign * C * one, sign * C * other], "o", color=color, markersize=6
            )
            right.plot(GRID, -sign * size * favour, "-" if sign > 0 else "--", color=color)
        if len(signs) == 2:
            right.plot(GRID, size * (1 - 2 * GRID) * favour, ":", color=color)
        left.text(0.62, 0.93 - 0.08 * i, name, color=color, transform=left.transAxes)
    left.axhline(0, color="black", linewidth=0.8)
    left.set(title="Push on one token", xlabel="tokens of its completion")
    left.set(ylabel="units of Dr. GRPO's", xlim=(0, C + 1), ylim=(-15, 15))
    left.set_xticks([0, 10, 20, 30, 40, 50])
    right.set(title="Drift of the share of long completions", xlabel="p")
    right.set(ylabel="points, if p = ½ rises by one", xlim=(0, 1), ylim=(-1.05, 1.05))
    right.set_yticks([-1, -0.5, 0, 0.5, 1])
    for y, sign, text in ((0.95, -1, "wrong (dashed)"), (0.02, 1, "right (solid)")):
        if sign in signs:
            right.text(0.5, y, text, ha="center", transform=right.transAxes, fontsize=9)
            y, label = (0.66, "A > 0 (solid)") if sign > 0 else (0.3, "A < 0 (dashed)")
            left.text(0.62, y, label, fontsize=9, transform=left.transAxes)
    if len(signs) == 2:
        right.text(0.98, 0.95, "all: dotted", ha="right", transform=right.transAxes, fontsize=9)
    return figure


def lengths_by_arm(arms: dict) -> Figure:
    """Lesson 5: mean length of right and of wrong completions at the end of training, four arms of
    `pieces`."""
    names = {
        "GRPO": "GRPO:\n1/|y|, ÷ σ",
        "GRPO, constant length": "constant, ÷ σ",
        "GRPO, not / σ": "1/|y|, not ÷ σ",
        "Dr. GRPO": "Dr. GRPO:\nconstant, not ÷ σ",
    }
    size, beside = (8, 6) if kit.narrow else (10, 9)
    if kit.narrow:
        names = {arm: name.replace(", ", ",\n").replace(": ", ":\n") for arm, name in names.items()}
    figure, axis = new_figure(8.5, 3.4)
    for x, arm in enumerate(names):
        for verdict, color, marker, side in (("right", RIGHT, "o", -1), ("wrong", WRONG, "s", 1)):
            n, at = arms[arm][f"length_{verdict}"], x + 0.12 * side
            band = {"linewidth": 11, "alpha": 0.25, "solid_capstyle": "butt"}
            axis.plot([at] * 2, n["interval"], color=color, **band)
            axis.plot(np.full(len(n["seeds"]), at), n["seeds"], marker, color=color, markersize=3.5)
            axis.annotate(f"{n['mean']:.1f}", (at, n["mean"]), (beside * side, 0), va="center",
                          ha="left" if side > 0 else "right", textcoords="offset points",
                          color=color, fontsize=size)  # fmt: skip
    axis.set_xticks(range(len(names)), names.values(), fontsize=size)
    axis.set(xlim=(-0.6, len(names) - 0.4), ylim=(0, 32), ylabel="tokens, last ten steps")
    axis.text(-0.5, 7, "● right completions", color=RIGHT)
    axis.text(-0.5, 3, "■ wrong completions", color=WRONG)
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def push_on_shared(long_right: float, long_wrong: float, L1: int, L2: int) -> float:
    """(1 / L2 - 1 / L1) times the difference of the variances of "long" in the two classes."""
    return (1 / L2 - 1 / L1) * (long_right * (1 - long_right) - long_wrong * (1 - long_wrong))


def mean_of_tokens(f: Tensor, mask: Tensor, size: int = 1) -> Tensor:
    """Mean over the tokens of the whole batch, for any `size`."""
    return (f * mask).sum() / mask.sum()


def sum_of_means(f: Tensor, mask: Tensor, size: int) -> Tensor:
    return sum(mean_of_tokens(*part) for part in zip(f.split(size), mask.split(size)))


terms = torch.tensor([[1.0, 2, 9, 9], [3, 9, 9, 9], [1, 1, 1, 5], [0.5, 9, 9, 9]]).double()
real = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]).bool()

CHECKS = {
    "5.1": {
        "expected": [[-1, 0, -1], [0, 1, 1]],
        "mistakes": {
            "a constant pushes the tokens of short and long completions alike": (
                [[-1, 1, -1], [-1, 1, 1]]
            ),
            "where A < 0, the tokens of the short completion are lowered hardest": (
                [[-1, 0, -1], [0, -1, -1]]
            ),
            "the two rows are exchanged": [[0, 1, 1], [-1, 0, -1]],
            "most completions are wrong, but that says only how the two classes are weighted": (
                [[-1, 0, 1], [0, 1, 1]]
            ),
        },
    },
    "5.2": {
        "expected": push_on_shared,
        "inputs": [
            {"long_right": 0.1, "long_wrong": 0.5, "L1": 5, "L2": 50},
            {"long_right": 0.6, "long_wrong": 0.2, "L1": 4, "L2": 10},
        ],
        "mistakes": {
            "the sign: right completions are pushed up": (
                lambda long_right, long_wrong, L1, L2: (
                    -push_on_shared(long_right, long_wrong, L1, L2)
                )
            ),
            "the two classes are pushed with opposite signs": (
                lambda long_right, long_wrong, L1, L2: (
                    (1 / L1 - 1 / L2)
                    * (long_right * (1 - long_right) + long_wrong * (1 - long_wrong))
                )
            ),
            "the score of a short completion is not 0 either": (
                lambda long_right, long_wrong, L1, L2: (
                    (long_right * (1 - long_right) - long_wrong * (1 - long_wrong)) / L2
                )
            ),
        },
    },
    "5.3": {
        "bug": lambda f, mask, size: sum_of_means(f, mask, size) * size / len(f),
        "expected": mean_of_tokens,
        "inputs": [{"f": terms, "mask": real, "size": size} for size in (1, 2, 4)],
        "mistakes": {
            "the sum of the means: divide by all tokens": sum_of_means,
            "padding is counted as tokens": lambda f, mask, size: (f * mask).mean(),
            "divided twice: all tokens of the batch are enough": (
                lambda f, mask, size: mean_of_tokens(f, mask) * size / len(f)
            ),
        },
    },
}
