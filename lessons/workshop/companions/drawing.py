"""What the pictures of several lessons share."""

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lessons.workshop.notebook import GREY, RIGHT, label_line, new_figure


def curve(axis, x, y, color: str, style: str = "-", label: str = "", at: int = -1, **place) -> None:
    """Draw y over x, with a label in the curve's colour beside its point `at`, by default the
    last."""
    axis.plot(x, y, style, color=color)
    if label:
        label_line(axis, x[at], y[at], label, color, **place)


def note(axis, x: float, y: float, text: str, color: str = "black", **settings) -> None:
    """A text inside an axis: x and y go from 0 at the lower left to 1 at the upper right."""
    axis.text(x, y, text, color=color, transform=axis.transAxes, **settings)


def key(axis, colors: dict, x: float = 0.03, y: float = 0.92, step: float = 0.09) -> None:
    """Names in their colours, below each other from (x, y) on, as in `note`."""
    for i, (name, color) in enumerate(colors.items()):
        note(axis, x, y - step * i, name, color)


def in_plane(vectors: Tensor, chance: Tensor, direction: Tensor) -> np.ndarray:
    """(n, 2) from (n, parameters): the vectors along a direction, and in the one across it in which
    they vary most. chance: (n,), of each vector."""
    along = direction / direction.norm()
    across = vectors - (vectors @ along).outer(along)
    widest = torch.linalg.svd(chance.sqrt()[:, None] * across, full_matrices=False)[2][0]
    widest *= widest[widest.abs().argmax()].sign()
    return (vectors @ torch.stack([along, widest], dim=1)).numpy()


def bars(tables: dict, names: list, chosen: int) -> Figure:
    """A panel of bars for each table of probabilities, (n,), by title; the one at `chosen` in
    colour. names: of the n bars."""
    figure, axes = new_figure(8.5, 2.6, columns=len(tables), sharey=True)
    for axis, (title, table) in zip(axes, tables.items()):
        axis.bar(
            range(len(names)), table, color=np.where(np.arange(len(names)) == chosen, RIGHT, GREY)
        )
        axis.set_xticks(range(len(names)), names)
        axis.set(title=title, ylim=(0, 1))
    axes[0].set_ylabel("probability")
    return figure
