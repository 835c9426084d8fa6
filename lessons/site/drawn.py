"""The pictures of the site: every figure and every position of its sliders as SVG, drawn by running the sources.

Each lesson is run twice, wide and narrow (kit.narrow). A run leaves in the site's folder figures/ an SVG of each
picture with its sliders at the start, and one script with all of their positions:

    drawn["06_identity-wide"] = {"source": digest, "pictures": [{"sliders": ..., "lines": ..., "frames": ...}, ...]}

A frame is a list of numbers of lines in `lines`: most lines, such as axes and letters, are the same in all frames.
"""

import contextlib
import io
import json
import math
import re
import textwrap
from collections.abc import Sequence
from hashlib import sha256
from itertools import product
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from lessons import kit
from lessons.experiments.pool import in_parallel
from lessons.site import sources

WIDTHS = ("wide", "narrow")
MOST = 60  # positions of the sliders of one picture
STYLE = {"svg.fonttype": "path", "svg.hashsalt": "lessons", "svg.image_inline": True}
EXECUTED = ("code", "fold", "text", "exercise", "check")  # kinds of cells
# The files that pictures can depend on, besides a lesson's source and its module of figures.
FOLDERS = ("lessons", "lessons/experiments", "algorithms", "toy_env", "toy_env/base_model", "toy_env/base_expressions")
SUFFIXES = (".py", ".json", ".npz", ".safetensors")


def draw_lessons(chosen: Sequence[Path], folder: Path) -> None:
    """Draw the pictures of these lessons into the site's folder, on all cores."""
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    tasks = [(source, width, folder / "figures") for source in chosen for width in WIDTHS]
    in_parallel(draw_lesson, tasks, what="lessons in two widths")


def draw_lesson(source: Path, width: str, figures: Path) -> None:
    """Run a source and write its pictures of one width into `figures`."""
    pictures: list[dict] = []
    for old in figures.glob(f"{source.stem}-*-{width}.svg"):
        old.unlink()

    def record(draw, sliders: dict) -> None:
        at_start, picture = record_frames(draw, sliders)
        pictures.append(picture)
        (figures / f"{source.stem}-{len(pictures)}-{width}.svg").write_text(at_start, encoding="utf-8")

    kit.recorder, kit.narrow = record, width == "narrow"
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            sources.run_cells([cell for cell in sources.read_cells(source) if cell.kind in EXECUTED], source)
    finally:
        kit.recorder, kit.narrow = None, False
    content = {"source": digest(source), "pictures": pictures}
    script = f'drawn["{source.stem}-{width}"] = {json.dumps(content, ensure_ascii=False, separators=(",", ":"))};\n'
    (figures / f"{source.stem}-{width}.js").write_text(script, encoding="utf-8")


def load(source: Path, figures: Path) -> dict[str, list[dict]] | None:
    """The pictures of a lesson by width, or None if they are not drawn or belong to another version of its source."""
    pictures = {}
    for width in WIDTHS:
        path = figures / f"{source.stem}-{width}.js"
        script = path.read_text(encoding="utf-8") if path.is_file() else " = {}"
        content = json.loads(script.partition(" = ")[2].rstrip(";\n"))
        if content.get("source") != digest(source):
            return None
        pictures[width] = content["pictures"]
    return pictures


def digest(source: Path) -> str:
    """Of everything that the pictures are drawn with: the source, its module of figures, and shared code and data."""
    root = Path(__file__).parents[2]
    own = [source, sources.LESSONS / f"figures/lesson_{source.name[:2]}.py", Path(sources.__file__), Path(__file__)]
    shared = [path for folder in FOLDERS for path in sorted((root / folder).iterdir()) if path.suffix in SUFFIXES]
    contents = [path.read_bytes() for path in own + shared if path.is_file()]
    return sha256(b"".join(sha256(content).digest() for content in contents)).hexdigest()[:16]


def record_frames(draw, sliders: dict) -> tuple[str, dict]:
    """The picture with its sliders at the start, as SVG; and what the site's script needs: the sliders, each with the
    texts of its values and the number of the first; whether all combinations are drawn (`whole`) or one slider moves at
    a time; the lines of all frames; and the frames by position."""
    if not sliders:
        figure = draw()
        return svg(figure), {"sliders": [], "titles": titles_of(figure)}
    choices = {name: values_of(spec) for name, spec in sliders.items()}
    kept, whole, drawn_positions = positions(choices)
    shown = [
        {"name": name, "values": [text_of(values[i]) for i in numbers], "start": numbers.index(start)}
        for (name, (values, start)), numbers in zip(choices.items(), kept)
    ]
    line_numbers: dict[str, int] = {}
    frames, titles, at_start = {}, "", ""
    for position in drawn_positions:
        values = {name: choices[name][0][numbers[i]] for name, numbers, i in zip(choices, kept, position)}
        figure = draw(**values)
        picture = svg(figure)
        lines = picture.splitlines()
        frames[",".join(map(str, position))] = [line_numbers.setdefault(line, len(line_numbers)) for line in lines]
        if position == tuple(slider["start"] for slider in shown):
            at_start, titles = picture, titles_of(figure)
    drawn = {"sliders": shown, "titles": titles, "whole": whole, "lines": list(line_numbers), "frames": frames}
    return at_start, drawn


def values_of(spec: tuple | Sequence) -> tuple[list, int]:
    """The values of a slider as kit.knob takes it, and the number of the one that it starts at."""
    if not isinstance(spec, tuple):
        values = kit.in_order(spec)
        return values, values.index(spec[0])
    low, high, step, start = spec
    values = [low + i * step for i in range(round((high - low) / step) + 1)]
    if not all(isinstance(number, int) for number in spec):
        values = [round(value, 10) for value in values]
    return values, min(range(len(values)), key=lambda i: abs(values[i] - start))


def positions(choices: dict[str, tuple[list, int]]) -> tuple[list[list[int]], bool, list[tuple[int, ...]]]:
    """Which values of each slider are drawn, by number; whether in all combinations; and the positions, as numbers
    among those values. There are at most MOST positions. A numeric slider is thinned evenly and keeps its start. If not
    even half of its values could be combined with all others, one slider moves at a time and the others stand at their
    start."""

    def thinned(most: int) -> list[list[int]]:
        return [thin(len(values), start, len(values) if isinstance(values[0], str) else most)
                for values, start in choices.values()]  # fmt: skip

    longest = max(len(values) for values, _ in choices.values())
    candidates = [thinned(most) for most in range(longest, 0, -1)]
    for kept in candidates:
        half = all(2 * len(numbers) >= len(values) for numbers, (values, _) in zip(kept, choices.values()))
        if half and math.prod(map(len, kept)) <= MOST:
            return kept, True, list(product(*(range(len(numbers)) for numbers in kept)))
    kept = next(kept for kept in candidates if 1 + sum(len(numbers) - 1 for numbers in kept) <= MOST)
    start = tuple(numbers.index(first) for numbers, (_, first) in zip(kept, choices.values()))
    moved = [(*start[:i], j, *start[i + 1 :]) for i, numbers in enumerate(kept) for j in range(len(numbers))]
    return kept, False, list(dict.fromkeys(moved))


def thin(n: int, start: int, most: int) -> list[int]:
    """At most `most` of the numbers below n, evenly, including the first, the last and the start."""
    if n <= most:
        return list(range(n))
    return sorted({round(i * (n - 1) / max(1, most - 2)) for i in range(most - 1)} | {start})


def text_of(value) -> str:
    return value if isinstance(value, str) else f"{value:g}".replace("-", "−")


def titles_of(figure: Figure) -> str:
    """The titles of the panels, for readers who cannot see the picture."""
    return "; ".join(title.replace("\n", " ") for axis in figure.axes if (title := axis.get_title(loc="left")))


def svg(figure: Figure) -> str:
    """A figure as SVG, the same text for the same figure: letters as outlines, one element a line, coordinates to a
    hundredth of a point."""
    if kit.narrow and figure.get_figwidth() < 4:
        for axis in figure.axes:
            axis.set_title(textwrap.fill(axis.get_title(loc="left"), 42), loc="left", fontsize=10)
    file = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]  # without the declaration
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]).replace("\n", " "), text)
    return re.sub(r"\n\s*", "\n", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)).strip() + "\n"
