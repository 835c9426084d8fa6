"""The picture of lesson 18."""

import numpy as np
from matplotlib.figure import Figure

from lessons.kit import BLUE, GREY, ORANGE, new_figure

# Colour and line, by the unit that has a weight
STYLES = {"none": (GREY, ":"), "token": (ORANGE, "--"), "completion": (BLUE, "-")}


def off_and_noise(caps: np.ndarray, lines: dict[str, np.ndarray]) -> Figure:
    """The error of the mean update (left) and its noise (right) against the cap (n,), for each kind
    of weight: lines (n, 2)."""
    figure, (left, right) = new_figure(9.6, 3.5, columns=2)
    for i, (name, values) in enumerate(lines.items()):
        color, line = STYLES[name]
        for axis, column in ((left, 0), (right, 1)):
            axis.plot(caps, values[:, column], linestyle=line, color=color)
        label = name if name == "none" else f"of each {name}"
        left.text(0.62, 0.92 - 0.09 * i, label, color=color, transform=left.transAxes)
    left.set(title="The mean update is off by", xlabel="C", ylim=(0, 1))
    right.set(title="Noise of one completion's update", xlabel="C", ylim=(0, None))
    right.set_ylabel("÷ length of the true mean")
    return figure
