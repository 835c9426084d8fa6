"""The pictures of lesson 2, and the right answers and usual mistakes of its exercises."""

from collections.abc import Callable
from math import inf

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lessons.workshop.kit import GREY, RIGHT, WRONG, label_line, new_figure, ticks


def clip_and_gradient(objective: Callable, ratio: float, eps: float) -> Figure:
    """Lesson 2: the objective of one token, and its gradient, against the ratio, for A = +1 and A =
    -1.

    objective(ratios, A, eps) gives both. Dots: at `ratio`. Thick lines: where the gradient is
    exactly 0.
    """
    figure, (left, right) = new_figure(8.5, 3.5, columns=2)
    grid = np.linspace(0.02, 3, 299)
    for A, color, name in ((1, RIGHT, "A = +1"), (-1, WRONG, "A = −1")):
        J, gradient = objective(np.append(grid, ratio), A, eps)
        alive = gradient[:-1] != 0
        left.plot(grid, A * grid, ":", color=color, linewidth=1.2)
        left.plot(grid, J[:-1], color=color)
        left.plot(ratio, J[-1], "o", color=color, markersize=9)
        right.plot(grid, np.where(alive, gradient[:-1], np.nan), color=color)
        right.plot(grid, np.where(alive, np.nan, 0), color=color, linewidth=5, alpha=0.6)
        right.plot(ratio, gradient[-1], "o", color=color, markersize=9)
        state = f"{gradient[-1]:+.2f}".replace("-", "−") if gradient[-1] else "stopped, exactly 0"
        right.text(0.03, 0.5 + 0.46 * A, f"{name}: {state}", color=color, va="center",
                   transform=right.transAxes)  # fmt: skip
        label_line(left, 2.1, np.interp(2.1, grid, J[:-1]), name, color, xytext=(6, 11))
    left.set(title="J (dotted: without the clip)", xlabel="ratio ρ")
    right.set(title="Gradient of J in the log-probability", xlabel="ratio ρ")
    for axis in (left, right):
        axis.set(xlim=(0, 3), ylim=(-3.3, 3.3))
        axis.axvspan(1 - eps, 1 + eps, color=GREY, alpha=0.18, linewidth=0)
        axis.axvline(ratio, color=GREY, linewidth=1)
        axis.axhline(0, color="black", linewidth=0.6)
    return figure


def furthest_ratios(
    history: dict[str, list[Tensor]], old_logps: Tensor, A: Tensor, mask: Tensor
) -> Figure:
    """Lesson 2: the ratios of the tokens that moved furthest where their advantage pushes them,
    step by step.

    history: log-probabilities (B, T) before each step and after the last, with the clip and
    without. A: (B, 1).
    """
    figure, axis = new_figure(7.5, 3.6)
    axis.axhspan(0.8, 1.2, color=GREY, alpha=0.18, linewidth=0)
    steps = len(history["clip"]) - 1
    for name, style in (("clip", "-"), ("no clip", "--")):
        for sign, color in ((1, RIGHT), (-1, WRONG)):
            chosen = (sign * A > 0) & mask
            quantile = 0.95 if sign > 0 else 0.05
            log_ratios = [(logps - old_logps)[chosen] for logps in history[name]]
            tail = [each.quantile(quantile).exp().item() for each in log_ratios]
            axis.plot(range(steps + 1), tail, style, color=color)
            if sign < 0:
                label_line(axis, steps, tail[-1], f"A < 0, {name}", color)
            elif name == "clip":
                label_line(axis, steps, tail[-1], "A > 0, either way", color)
    axis.set(xlabel="steps on one batch", yscale="log", xlim=(0, steps + 4))
    axis.set_title(
        "Ratio of the tokens that moved furthest (95th percentile for A > 0, 5th for A < 0)"
    )
    axis.set_xticks(range(0, steps + 1, 4))
    ticks(axis.yaxis, [1, 0.1, 0.01, 0.001])
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def by_clip(ratio: Tensor, A: Tensor, eps: float) -> Tensor:
    return torch.where(A > 0, ratio > 1 + eps, ratio < 1 - eps)


def stopped(ratio: Tensor, A: Tensor, mask: Tensor, eps: float, c: float) -> float:
    """The share of tokens that PPO's clip or the dual clip stops."""
    either = by_clip(ratio, A, eps) | ((A < 0) & (ratio > c))
    return either[mask].double().mean().item()


def dual_for_either_sign(ratio: Tensor, A: Tensor, mask: Tensor, eps: float, c: float) -> float:
    either = by_clip(ratio, A, eps) | (ratio > c) | (ratio < 1 / c)
    return either[mask].double().mean().item()


ratios = torch.tensor([[0.5, 1.1, 1.5, 1.9, 0.7, 2.5], [1.3, 0.75, 0.4, 1.0, 1.0, 1.0]]).double()
real = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]).bool()
advantages = torch.tensor([[0.5] * 6, [-2.0] * 6]).double()
six = {
    "ratio": torch.tensor([0.5, 1.0, 1.5] * 2).double(),
    "A": torch.tensor([1.0] * 3 + [-1.0] * 3).double(),
}

CHECKS = {
    "2.1": {
        "expected": stopped,
        "inputs": [
            {"ratio": ratios, "A": sign * advantages, "mask": real, "eps": eps, "c": c}
            for sign, eps, c in ((1, 0.2, 1.4), (-1, 0.2, 2.0), (-1, 0.45, 1.8), (1, 0.2, 3.0))
        ],
        "mistakes": {
            "that is the clip without the dual clip": (
                lambda ratio, A, mask, eps, c: stopped(ratio, A, mask, eps, inf)
            ),
            "the dual clip is for A < 0 alone": dual_for_either_sign,
            "a share of the real tokens: the padding does not count": (
                lambda ratio, A, mask, eps, c: (
                    stopped(ratio, A, mask, eps, c) * mask.double().mean()
                )
            ),
        },
    },
    "2.2": {
        "expected": lambda ratio, A, eps: ratio > 1 + eps,
        "inputs": [
            {**six, "eps": 0.2},
            {**six, "eps": 0.6},
            {**six, "A": -3 * six["A"], "eps": 0.2},
        ],
        "mistakes": {
            "that is what PPO stops, the minimum of the two products": by_clip,
            "the smaller ratio is a constant on one side of the range only": (
                lambda ratio, A, eps: (ratio - 1).abs() > eps
            ),
            "those are the two cases that PPO leaves alive: the sign of A": (
                lambda ratio, A, eps: by_clip(ratio, -A, eps)
            ),
        },
    },
    "2.3": {
        # The gradient stops where the ratio p / p_old is 1 + eps.
        "expected": lambda p_old, eps: min(1, p_old * (1 + eps)),
        "inputs": [
            {"p_old": p_old, "eps": eps} for eps in (0.2, 0.28) for p_old in (0.01, 0.5, 0.9)
        ],
        "mistakes": {
            "the bound is on the ratio: it multiplies, it does not add": (
                lambda p_old, eps: min(1, p_old + eps)
            ),
            "right where p_old is small; but no probability is above 1": (
                lambda p_old, eps: p_old * (1 + eps)
            ),
        },
    },
}
