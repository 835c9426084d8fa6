"""The pictures of the site: every figure and every position of its sliders as SVG, drawn by running
the sources.

Each lesson is run twice, wide and narrow (kit.narrow). A picture is a dictionary:

    sliders     for each: its name, the texts of its values, and the number of the first one
    titles      those of the panels, for readers who cannot see the picture
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
EXECUTED = ("code", "fold", "text", "exercise", "check")  # the kinds of cells that run


def draw_lessons(chosen: Sequence[Path]) -> dict[Path, dict[str, list[dict]]]:
    """The pictures of these lessons by width, drawn on all cores."""
    tasks = [(source, width) for source in chosen for width in WIDTHS]
    pictures: dict[Path, dict[str, list[dict]]] = {source: {} for source in chosen}

    def keep(i: int, drawn: list[dict]) -> None:
        source, width = tasks[i]
        pictures[source][width] = drawn

    in_parallel(draw_lesson, tasks, what="lessons in two widths", keep=keep)
    return pictures


def draw_lesson(source: Path, width: str) -> list[dict]:
    """Run a source and return its pictures of one width."""
    pictures: list[dict] = []
    kit.recorder = lambda draw, sliders: pictures.append(drawn_picture(draw, sliders))
    kit.narrow = width == "narrow"
    cells = [cell for cell in sources.read_cells(source) if cell.kind in EXECUTED]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            sources.run_cells(cells, source)
    finally:
        kit.recorder, kit.narrow = None, False
    return pictures


def drawn_picture(draw, sliders: dict) -> dict:
    """A picture at all positions of its sliders."""
    choices = {name: values_of(spec) for name, spec in sliders.items()}
    whole, drawn_positions = positions(choices)
    start = tuple(i for _, i in choices.values())
    numbers: dict[str, int] = {}  # the number of each line
    frames = {}
    for position in drawn_positions:
        chosen = {name: values[i] for (name, (values, _)), i in zip(choices.items(), position)}
        figure = draw(**chosen)
        frame_numbers = [
            numbers.setdefault(line, len(numbers)) for line in svg(figure).splitlines()
        ]
        frames[",".join(map(str, position))] = frame_numbers
        if position == start:
            titles = [axis.get_title(loc="left").replace("\n", " ") for axis in figure.axes]
    return {
        "sliders": [
            {"name": name, "values": [*map(text_of, values)], "start": i}
            for name, (values, i) in choices.items()
        ],
        "titles": "; ".join(filter(None, titles)),
        "whole": whole,
        "lines": list(numbers),
        "frames": frames,
    }


def frame(picture: dict, position: Sequence[int]) -> str:
    """The SVG at a position."""
    numbers = picture["frames"][",".join(map(str, position))]
    return "\n".join(picture["lines"][number] for number in numbers)


def values_of(spec: tuple | Sequence) -> tuple[list, int]:
    """The values of a slider as kit.knob takes it, and the number of the one that it starts at."""
    if not isinstance(spec, tuple):
        values = kit.in_order(spec)
        return values, values.index(spec[0])
    low, high, step, start = spec
    values = [round(low + i * step, 10) for i in range(round((high - low) / step) + 1)]
    return values, values.index(start)


def positions(choices: dict[str, tuple[list, int]]) -> tuple[bool, list[tuple[int, ...]]]:
    """The positions to draw, as numbers of values, and first whether they are all combinations. If
    there are more than MOST of these, one slider moves at a time and the others stay at their
    start."""
    combinations = list(product(*(range(len(values)) for values, _ in choices.values())))
    if len(combinations) <= MOST:
        return True, combinations
    starts = [start for _, start in choices.values()]
    return False, [position for position in combinations if sum(map(ne, position, starts)) <= 1]


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
