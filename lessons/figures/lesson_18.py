"""The picture of lesson 18."""

import numpy as np
from matplotlib.figure import Figure

from lessons.kit import BLUE, GREY, ORANGE, new_figure

STYLES = {
    "none": (GREY, ":"),
    "token": (ORANGE, "--"),
    "completion": (BLUE, "-"),
}  # by what has a weight


def off_and_noise(caps: np.ndarray, lines: dict[str, np.ndarray]) -> Figure:
    """Against the cap (n,), by weights: how far the mean update is off (left), and its noise
    (right), lines (n, 2)."""
    figure, (left, right) = new_figure(9.6, 3.5, columns=2)
    for i, (name, values) in enumerate(lines.items()):
        color, line = STYLES[name]
        for axis, column in ((left, 0), (right, 1)):
            axis.plot(caps, values[:, column], linestyle=line, color=color)
        left.text(0.62, 0.92 - 0.09 * i, name if name == "none" else f"of each {name}", color=color,
                  transform=left.transAxes)  # fmt: skip
    left.set(title="The mean update is off by", xlabel="C", ylim=(0, 1))
    right.set(title="Noise of one completion's update", xlabel="C", ylim=(0, None))
    right.set_ylabel("÷ length of the true mean")
    return figure
