"""The pictures of the site: every figure and every position of its sliders as SVG, drawn by running the sources.

    python lessons/site/website.py --draw

Each lesson is run twice, wide and narrow (kit.narrow). What a run leaves in the site's folder figures/ are an SVG for
each picture as it starts, and one script with all positions of its sliders:

    drawn["06_identity-wide"] = {"source": digest, "pictures": [{"sliders": ..., "lines": ..., "frames": ...}, ...]}

A frame is the list of its lines' numbers in `lines`: most lines, such as axes and letters, are the same in all frames.
"""

import contextlib
import io
import json
import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha256
from itertools import product
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from lessons import kit
from lessons.experiments.pool import in_parallel
from lessons.site import sources

WIDTHS = ("wide", "narrow")
MOST = 60  # positions drawn of the sliders of one picture
STYLE = {"svg.fonttype": "path", "svg.hashsalt": "lessons", "svg.image_inline": True}
RUN = ("code", "fold", "text", "exercise", "check")


def draw_lessons(chosen: Sequence[Path], folder: Path) -> None:
    """Draw the pictures of these lessons into the site's folder, on all cores."""
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    tasks = [(source, width, folder / "figures") for source in chosen for width in WIDTHS]
    in_parallel(draw_lesson, tasks, what="lessons in two widths")


def draw_lesson(source: Path, width: str, figures: Path) -> None:
    """Run a source and leave its pictures in `figures`."""
    pictures: list[dict] = []
    for old in figures.glob(f"{source.stem}-*-{width}.svg"):
        old.unlink()

    def record(draw, sliders: dict) -> None:
        frames, picture = record_frames(draw, sliders)
        pictures.append(picture)
        (figures / f"{source.stem}-{len(pictures)}-{width}.svg").write_text(frames, encoding="utf-8")

    kit.recorder, kit.narrow = record, width == "narrow"
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            sources.run_cells([cell for cell in sources.read_cells(source) if cell.kind in RUN], source)
    finally:
        kit.recorder, kit.narrow = None, False
    found = json.dumps({"source": digest(source), "pictures": pictures}, ensure_ascii=False, separators=(",", ":"))
    (figures / f"{source.stem}-{width}.js").write_text(f'drawn["{source.stem}-{width}"] = {found};\n', encoding="utf-8")


def load(source: Path, figures: Path) -> dict[str, list[dict]] | None:
    """The pictures of a lesson by width, or None if they are not drawn or belong to another version of its source."""
    found = {}
    for width in WIDTHS:
        path = figures / f"{source.stem}-{width}.js"
        if not path.is_file():
            return None
        one = json.loads(path.read_text(encoding="utf-8").partition(" = ")[2].rstrip(";\n"))
        if one["source"] != digest(source):
            return None
        found[width] = one["pictures"]
    return found


def digest(source: Path) -> str:
    """Of what the pictures are drawn with: the source, its figures' module, and all code and data that it may use."""
    figures = sources.LESSONS / "figures" / f"lesson_{source.name[:2]}.py"
    parts = [path.read_bytes() for path in (source, figures) if path.is_file()]
    return sha256(b"".join([*parts, shared_digest()])).hexdigest()[:16]


@cache
def shared_digest() -> bytes:
    """Of the modules of this folder, of the experiments with their data, of the scripts and of the environment."""
    root = Path(__file__).parents[2]
    folders = (
        "lessons",
        "lessons/experiments",
        "algorithms",
        "toy_env",
        "toy_env/base_model",
        "toy_env/base_expressions",
    )
    kinds = (".py", ".json", ".npz", ".safetensors")
    files = sorted(path for folder in folders for path in (root / folder).iterdir() if path.suffix in kinds)
    files += [Path(sources.__file__), Path(__file__)]
    return sha256(b"".join(sha256(path.read_bytes()).digest() for path in files)).digest()


def record_frames(draw, sliders: dict) -> tuple[str, dict]:
    """The picture as it starts, as SVG; and what the site's script needs: the sliders with the text and the number of
    the start of each, whether all their positions are drawn together (`whole`) or one slider moves at a time, the
    lines of all frames, and the frames by position."""
    choices = {name: values_of(spec) for name, spec in sliders.items()}
    kept, whole, at = positions(choices)
    numbers: dict[str, int] = {}  # of a line
    frames, titles, first = {}, "", ""
    start = tuple(row.index(choices[name][1]) for name, row in zip(choices, kept))
    for position in at:
        figure = draw(**{name: choices[name][0][row[i]] for name, row, i in zip(choices, kept, position)})
        picture = svg(figure)
        frames[",".join(map(str, position))] = [numbers.setdefault(line, len(numbers)) for line in picture.splitlines()]
        if position == start:
            first, titles = picture, titles_of(figure)
    shown = [
        {"name": name, "values": [text_of(choices[name][0][i]) for i in row], "start": row.index(choices[name][1])}
        for name, row in zip(choices, kept)
    ]
    if not sliders:
        return first, {"sliders": [], "titles": titles}
    return first, {"sliders": shown, "titles": titles, "whole": whole, "lines": list(numbers), "frames": frames}


def values_of(spec: tuple | Sequence) -> tuple[list, int]:
    """The values of a slider as kit.knob takes it, and the number of the one it starts at."""
    if not isinstance(spec, tuple):
        return list(spec), 0
    low, high, step, start = spec
    values = [low + i * step for i in range(round((high - low) / step) + 1)]
    if not all(isinstance(number, int) for number in spec):
        values = [round(value, 10) for value in values]
    return values, min(range(len(values)), key=lambda i: abs(values[i] - start))


def positions(choices: dict[str, tuple[list, int]]) -> tuple[list[list[int]], bool, list[tuple[int, ...]]]:
    """Which values of each slider are drawn, by number; whether in all combinations; and the positions, as numbers
    among those that are drawn. At most MOST in all: of each numeric slider an even part and its start; if not even half
    of its values would go together with all others, one slider moves at a time, the others standing at their start."""

    def thinned(most: int) -> list[list[int]]:
        return [
            thin(len(values), start, most if numeric(values) else len(values)) for values, start in choices.values()
        ]

    longest = max([len(values) for values, _ in choices.values()], default=1)
    for most in range(longest, 0, -1):
        kept = thinned(most)
        enough = all(2 * len(row) >= len(values) for row, (values, _) in zip(kept, choices.values()))
        if enough and math.prod(map(len, kept)) <= MOST:
            return kept, True, list(product(*(range(len(row)) for row in kept)))
    fewer = (thinned(most) for most in range(longest, 0, -1))
    kept = next(kept for kept in fewer if 1 + sum(len(row) - 1 for row in kept) <= MOST)
    start = tuple(row.index(first) for row, (_, first) in zip(kept, choices.values()))
    moved = [(*start[:i], j, *start[i + 1 :]) for i, row in enumerate(kept) for j in range(len(row))]
    return kept, False, list(dict.fromkeys(moved))


def thin(n: int, start: int, most: int) -> list[int]:
    """At most `most` of the numbers below n, evenly, the first, the last and the start among them."""
    if n <= most:
        return list(range(n))
    kept = {round(i * (n - 1) / max(1, most - 2)) for i in range(most - 1)} | {start}
    return sorted(kept)


def numeric(values: Iterable) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


def text_of(value) -> str:
    return value if isinstance(value, str) else f"{value:g}".replace("-", "−")


def titles_of(figure: Figure) -> str:
    """The titles of the panels, for a picture without a sentence below it."""
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
    text = file.getvalue().partition("?>")[2].partition("<svg")
    paths = re.sub(r' d="[^"]*"', lambda d: re.sub(r"(\.\d\d)\d+", r"\1", d[0]).replace("\n", " "), text[1] + text[2])
    return re.sub(r"\n\s*", "\n", re.sub(r"<!--.*?-->", "", paths, flags=re.DOTALL)).strip() + "\n"
