"""The picture of lesson 0."""

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from lessons.kit import GREY, ORANGE, PURPLE, RED, new_figure


def updates_needed(curves: Tensor, level: float = 0.9, share: float = 0.9) -> str:
    """The number of updates after which this share of the runs has at least this success
    probability, or a dash. curves: (updates + 1, runs)."""
    reached = (curves >= level).double().mean(dim=1) >= share
    return str(int(reached.int().argmax())) if reached.any() else "–"


def fans(curves: dict[tuple[str, float], Tensor], rate: float) -> Figure:
    """Lesson 0: the success probability along 200 runs with each baseline: the median, half of the
    runs, eight in ten.

    curves: (updates + 1, runs) of each baseline and learning rate.
    """
    names = list(dict.fromkeys(name for name, _ in curves))
    figure, panels = new_figure(8.5, 2.9, columns=len(names), sharey=True)
    for axis, name, color in zip(panels, names, (ORANGE, GREY, PURPLE, RED)):
        runs = curves[name, rate]
        low, lower, median, upper, high = np.quantile(runs, [0.1, 0.25, 0.5, 0.75, 0.9], axis=1)
        x = np.arange(len(runs))
        axis.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
        axis.fill_between(x, lower, upper, color=color, alpha=0.3, linewidth=0)
        axis.plot(x, median, color=color)
        axis.axhline(0.9, color=GREY, linewidth=0.8, linestyle=":")
        needed = updates_needed(runs)
        when = "not in 200 updates" if needed == "–" else f"after {needed} updates"
        label = f"9 in 10 runs above .9\n{when}"
        axis.text(0.97, 0.05, label, ha="right", fontsize=9, transform=axis.transAxes)
        axis.set(title=name, xlabel="updates", xlim=(0, 200), ylim=(0, 1.02))
        axis.set_xticks([0, 100, 200])
    panels[0].set_ylabel("success probability p")
    figure.suptitle(f"learning rate {rate:g}", x=0.01, ha="left", fontsize=11)
    return figure


def table(curves: dict[tuple[str, float], Tensor], variances: dict[str, float]) -> str:
    """Lesson 0: the updates that nine runs in ten need, by baseline and learning rate, as
    Markdown."""
    rates = list(dict.fromkeys(rate for _, rate in curves))
    lines = [
        "| | variance | " + " | ".join(f"rate {rate:g}" for rate in rates) + " |",
        "|---" * (len(rates) + 2) + "|",
    ]
    for name, variance in variances.items():
        needed = " | ".join(updates_needed(curves[name, rate]) for rate in rates)
        lines.append(f"| {name} | {variance:.2f} | {needed} |")
    return "\n".join(lines)
