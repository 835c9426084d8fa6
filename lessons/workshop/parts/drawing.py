"""What the pictures of several lessons share."""

from lessons.workshop.kit import label_line, new_figure


def two_panels(height: float, left: dict, right: dict):
    """A figure and its two axes, with the settings of each."""
    figure, axes = new_figure(8.5, height, columns=2)
    for axis, settings in zip(axes, (left, right)):
        axis.set(**settings)
    return figure, *axes


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
