"""The pictures of the site: every figure and every position of its sliders as SVG, drawn by running
the sources.

Each lesson is run twice, wide and narrow (notebook.narrow). A picture of one width is a dictionary:

    sliders     for each: its name, the texts of its values, and the number of the first one
    titles      those of the panels, for readers who cannot see the picture
    size        width and height, in CSS pixels
    whole       true if all combinations of values are drawn; else one slider moves at a time
    lines       the lines of all frames: most, such as axes and letters, are the same in many
    frames      for each position, such as "3,0", the numbers of the lines of its SVG
"""

import io
import re
import textwrap
from collections.abc import Sequence
from itertools import product
from operator import ne
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from lessons.experiments.harness.pool import in_parallel, silence
from lessons.workshop import notebook, sources

MOST = 90  # combinations of slider values that are drawn for one picture
STYLE = {"svg.fonttype": "path", "svg.hashsalt": "lessons", "svg.image_inline": True}


def draw_lessons(chosen: Sequence[Path]) -> dict[Path, list[dict[str, dict]]]:
    """The pictures of these lessons as `draw_lesson` returns them, drawn on all cores."""
    pictures = {}

    def keep(i: int, drawn: list[dict[str, dict]]) -> None:
        pictures[chosen[i]] = drawn

    in_parallel(draw_lesson, [(source,) for source in chosen], what="lessons", keep=keep)
    return pictures


def draw_lesson(source: Path) -> list[dict[str, dict]]:
    """Run a source once for each width, and return each of its pictures in both."""
    cells = [cell for cell in sources.read_cells(source) if cell.kind in (*sources.CODE, "text")]

    def drawn(narrow: bool) -> list[dict]:
        pictures: list[dict] = []
        notebook.recorder = lambda *picture: pictures.append(drawn_picture(*picture))
        notebook.narrow = narrow
        try:
            with silence():
                sources.run_cells(cells, source)
        finally:
            notebook.recorder, notebook.narrow = None, False
        return pictures

    return [{"wide": wide, "narrow": narrow} for wide, narrow in zip(drawn(False), drawn(True))]


def drawn_picture(draw, sliders: dict) -> dict:
    """A picture at all positions of its sliders; where these are more than MOST, one slider moves
    at a time and the others stay at their start."""
    starts = tuple(start for _, start in sliders.values())
    combinations = list(product(*(range(len(values)) for values, _ in sliders.values())))
    whole = len(combinations) <= MOST
    numbers: dict[str, int] = {}  # the number of each line
    frames = {}
    for position in combinations:
        if not whole and sum(map(ne, position, starts)) > 1:
            continue
        figure = draw(**{name: sliders[name][0][i] for name, i in zip(sliders, position)})
        lines = svg(figure).splitlines()
        at = ",".join(map(str, position))
        if position == starts:
            first = figure
        frames[at] = [numbers.setdefault(line, len(numbers)) for line in lines]
    titles = [axis.get_title(loc="left").replace("\n", " ") for axis in first.axes]
    return {
        "sliders": [
            {"name": name, "values": [*map(text_of, values)], "start": start}
            for name, (values, start) in sliders.items()
        ],
        "titles": "; ".join(filter(None, titles)),
        "size": [round(96 * side) for side in first.get_size_inches()],
        "whole": whole,
        "lines": list(numbers),
        "frames": frames,
    }


def frame(picture: dict, position: Sequence[int]) -> str:
    """The SVG at a position."""
    numbers = picture["frames"][",".join(map(str, position))]
    return "\n".join(picture["lines"][number] for number in numbers)


def text_of(value) -> str:
    """The text of a value, with a typographic minus."""
    return value if isinstance(value, str) else f"{value:g}".replace("-", "−")


def svg(figure: Figure) -> str:
    """A figure as SVG, the same text for the same figure: letters as outlines, a path in one
    line, coordinates to a thousandth of a point."""
    if notebook.narrow and figure.get_figwidth() < 4:
        for axis in figure.axes:
            axis.set_title(textwrap.fill(axis.get_title(loc="left"), 42), loc="left", fontsize=10)
    file = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = re.sub(r"\n(?=[A-Zz])", " ", text[text.index("<svg") :])  # a path in one line
    return re.sub(r"(\.\d{3})\d+", r"\1", text)
