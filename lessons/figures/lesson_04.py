"""The pictures of lesson 4."""

import numpy as np
from matplotlib.figure import Figure

from lessons.kit import BLUE, GREY, ORANGE, label_line, new_figure, ticks

STYLES = [(GREY, ":"), (BLUE, "-"), (ORANGE, "--")]  # colour and line: k1, k2, k3


def estimates_of_gaussians(d: float, shifts: np.ndarray, stds: np.ndarray) -> Figure:
    """Lesson 4: the noise of k1, k2 and k3, and the coefficient of the score of each as a loss, for
    the policy N(0, 1) and the reference N(d, 1). stds (3, n): the standard deviation of each at the
    shifts (n,)."""
    figure, (left, right) = new_figure(8.5, 3.7, columns=2)
    at = np.abs(shifts - d).argmin()
    for i, (color, line) in enumerate(STYLES):
        relative = stds[i] / (shifts**2 / 2)
        left.plot(shifts, relative, line, color=color)
        left.plot(d, relative[at], "o", color=color, markersize=8)
        label_line(left, shifts[-1], relative[-1], f"$k_{i + 1}$", color)
    left.axvline(d, color=GREY, linewidth=0.8)
    left.set(
        title="Std of one sample, relative to the KL",
        xlabel=f"d, shift of the reference; KL = {d**2 / 2:.3g}",
    )
    left.set(yscale="log", xlim=(0, 3.25), ylim=(0.5, 25))
    ticks(left.yaxis, [0.5, 1, 2, 5, 10, 20])

    x = np.linspace(-3, 6, 400)  # log(pi / ref), which is N(d²/2, d²) under pi
    bell = 3 * np.exp(-((x - d**2 / 2) ** 2) / (2 * d**2))
    right.fill_between(x, -7, -7 + bell, color=GREY, alpha=0.25, linewidth=0)
    for (color, line), values in zip(STYLES, (np.ones_like(x), x, 1 - np.exp(-x))):
        right.plot(x, values, line, color=color)
    label_line(right, 4.6, 4.6, "$k_2$: $-\\log u$", BLUE, xytext=(-8, 4), ha="right")
    label_line(right, 6, 1, "$k_1$: 1", GREY, xytext=(0, 10), ha="right")
    label_line(right, -1.4, 1 - np.exp(1.4), "$k_3$: $1 - u$", ORANGE, xytext=(8, -2))
    right.axhline(0, color="black", linewidth=0.8)
    right.set(
        xlabel=r"$\log(\pi/\pi_\mathrm{ref}) = -\log u$ of the sample", xlim=(-3, 6), ylim=(-7, 6.5)
    )
    right.set_title("Coefficient of the score in a loss")
    return figure
