"""The pictures of lesson 12."""

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from lessons.kit import RIGHT, WRONG, new_figure

SHADES = LinearSegmentedColormap.from_list("w", [WRONG, "white", RIGHT])


def coefficients_of_a_group(
    texts: list[str], rewards: np.ndarray, w: list[np.ndarray], most: float, title: str
) -> Figure:
    """Lesson 12: the tokens of a group, one completion a row, in the colour of their coefficients;
    right ones first.

    w: the coefficients of each completion, (tokens,). The colours run from -most to most, and white
    is 0; beside a row stands the mean over its tokens, divided by most.
    """
    order, longest = np.argsort(-rewards, kind="stable"), max(map(len, w))
    figure, axis = new_figure(8.5, 0.36 * len(texts) + 0.9)
    shown = np.full((len(texts), longest), np.nan)
    for row, i in enumerate(order):
        shown[row, : len(w[i])] = w[i] / most
        for t in range(len(w[i])):
            token = texts[i][t] if t < len(texts[i]) else "∎"
            color = "white" if abs(shown[row, t]) > 0.8 else "black"
            axis.text(t, row, token, ha="center", va="center", fontsize=10.5, color=color)
        mean = f"{w[i].mean() / most:+.2f}".replace("-", "−") if w[i].any() else "0"
        axis.text(longest - 0.1, row, mean, ha="left", va="center", fontsize=10)
    axis.text(longest - 0.1, -0.85, "mean", ha="left", va="center", fontsize=10)
    axis.imshow(shown, cmap=SHADES, vmin=-1, vmax=1, aspect="auto")
    axis.axhline(rewards.sum() - 0.5, color="black", linewidth=1.2)
    axis.set_yticks(range(len(texts)), ["right" if rewards[i] else "wrong" for i in order])
    axis.set_xticks([])
    axis.set_xlim(-0.5, longest + 1.5)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    axis.set_title(title, pad=16)
    return figure
