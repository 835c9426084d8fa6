"""The pictures of the site: every figure and every position of its sliders as SVG, drawn by running
the sources.

Each lesson is run twice, wide and narrow (kit.narrow). A picture is a dictionary:

    sliders     for each: its name, the texts of its values, and the number of the first one
    titles      those of the panels, for readers who cannot see the picture
    size        width and height, in CSS pixels
    whole       true if all combinations of values are drawn; else one slider moves at a time
    lines       the lines of all frames: most, such as axes and letters, are the same in many
    frames      for each position, such as "3,0", the numbers of the lines of its SVG
"""

import contextlib
import io
import re
import textwrap
from collections.abc import Sequence
from itertools import product
from operator import ne
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from lessons.experiments.pool import in_parallel
from lessons.workshop import kit, sources

WIDTHS = ("wide", "narrow")
MOST = 90  # combinations of slider values that are drawn for one picture
STYLE = {"svg.fonttype": "path", "svg.hashsalt": "lessons", "svg.image_inline": True}


def draw_lessons(chosen: Sequence[Path]) -> dict[Path, dict[str, list[dict]]]:
    """The pictures of these lessons by width, drawn on all cores."""
    tasks = [(source, width) for source in chosen for width in WIDTHS]
    drawn = {}

    def keep(i: int, pictures: list[dict]) -> None:
        drawn[tasks[i]] = pictures

    in_parallel(draw_lesson, tasks, what="lessons in two widths", keep=keep)
    return {source: {width: drawn[source, width] for width in WIDTHS} for source in chosen}


def draw_lesson(source: Path, width: str) -> list[dict]:
    """Run a source and return its pictures of one width."""
    pictures: list[dict] = []
    kit.recorder = lambda draw, sliders: pictures.append(drawn_picture(draw, sliders))
    kit.narrow = width == "narrow"
    cells = [cell for cell in sources.read_cells(source) if cell.kind in (*sources.CODE, "text")]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            sources.run_cells(cells, source)
    finally:
        kit.recorder, kit.narrow = None, False
    return pictures


def drawn_picture(draw, sliders: dict) -> dict:
    """A picture at all positions of its sliders; where these are more than MOST, one slider moves
    at a time and the others stay at their start."""
    choices = [kit.positions(spec) for spec in sliders.values()]
    starts = tuple(start for _, start in choices)
    combinations = list(product(*(range(len(values)) for values, _ in choices)))
    whole = len(combinations) <= MOST
    numbers: dict[str, int] = {}  # the number of each line
    frames = {}
    for position in combinations:
        if not whole and sum(map(ne, position, starts)) > 1:
            continue
        chosen = [values[i] for (values, _), i in zip(choices, position)]
        figure = draw(**dict(zip(sliders, chosen)))
        lines = svg(figure).splitlines()
        at = ",".join(map(str, position))
        frames[at] = [numbers.setdefault(line, len(numbers)) for line in lines]
        if position == starts:
            titles = [axis.get_title(loc="left").replace("\n", " ") for axis in figure.axes]
            size = [round(96 * side) for side in figure.get_size_inches()]
    return {
        "sliders": [
            {"name": name, "values": [*map(text_of, values)], "start": start}
            for name, (values, start) in zip(sliders, choices)
        ],
        "titles": "; ".join(filter(None, titles)),
        "size": size,
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
    """A figure as SVG, the same text for the same figure: letters as outlines, one element a line,
    coordinates to a hundredth of a point."""
    if kit.narrow and figure.get_figwidth() < 4:
        for axis in figure.axes:
            axis.set_title(textwrap.fill(axis.get_title(loc="left"), 42), loc="left", fontsize=10)
    file = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]  # without the declaration
    text = re.sub(
        r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]).replace("\n", " "), text
    )
    return re.sub(r"\n\s*", "\n", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)).strip() + "\n"
