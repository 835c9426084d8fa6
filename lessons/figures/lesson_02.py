"""The pictures of lesson 2."""

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from lessons.kit import GREY, RIGHT, WRONG, label_line, new_figure, ticks


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
