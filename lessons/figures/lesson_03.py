"""The pictures of lesson 3."""

import numpy as np
from matplotlib.figure import Figure

from lessons.kit import BLUE, GREEN, GREY, ORANGE, new_figure

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
