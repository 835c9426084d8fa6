"""The sources of the lessons, src/NN_name.py: where they are, in which order to read them, and
their cells.

A source is a Python file in percent format. It begins with "# %% [markdown] 30 minutes", the time
that a reader needs. How to begin is added below the title, and links to the neighbouring lessons at
the end. Its cells:

    # %% [markdown]        text, as comments
    # %% [text]            text with expressions such as {=x:.2f}: the build writes their values
    # %%                   code
    # %% guess             code whose output is folded until the reader has guessed; [fold], too
    # %% [fold]            code that only prepares, draws or checks, folded in JupyterLab
    # %% [exercise]        the stub that the reader completes
    # %% [check]           the call that judges the reader's answer
    # %% [hint]            text, folded
    # %% [solution]        code, folded; a test requires that it passes the check
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LESSONS = Path(__file__).parents[1]
CODE = ("code", "fold", "exercise", "check")
KINDS = (*CODE, "markdown", "text", "hint", "solution")
MARKER = re.compile(r"^# %%(?: \[(\w+)\])? ?(.*)\n", re.MULTILINE)
HOW_TO_BEGIN = (
    "*About {}. Run All first. Write your answer in place of `...`, run that cell and the next, "
    "which checks it. (To work in a copy: `python lessons/start.py`.)*"
)
# The course, the rest of the two papers, studies of our own
ORDER = (0, 1, 2, 3, 4, 5, 6, 10, 7, 8, 9, 11, 12, 15, 13, 14, 16, 17, 19)


@dataclass
class Cell:
    kind: str  # one of KINDS
    text: str  # code, or markdown without the comment signs
    note: str  # the rest of the marker's line
    line: int  # number of the marker's line in the source


def number(source: Path) -> int:
    """The number of a lesson."""
    return int(source.name[:2])


def find_sources(only: Sequence[int] = ()) -> list[Path]:
    """All sources by number, or only those of these lessons. SystemExit for a lesson that
    does not exist."""
    sources = sorted((LESSONS / "workshop/src").glob("[0-9][0-9]_*.py"))
    numbers = [number(source) for source in sources]
    if missing := set(only) - set(numbers):
        known = ", ".join(map(str, numbers))
        raise SystemExit(f"there is no lesson {min(missing)}; choose from {known}")
    return [source for source in sources if not only or number(source) in only]


def reading_order() -> list[Path]:
    """All sources, shelf by shelf."""
    return sorted(find_sources(), key=lambda source: ORDER.index(number(source)))


def neighbours(source: Path) -> tuple[Path | None, Path | None]:
    """The lessons before and after one of them, in reading order."""
    order = [None, *reading_order(), None]
    place = order.index(source)
    return order[place - 1], order[place + 1]


def heading(source: Path) -> str:
    """The first heading of a source."""
    return re.search("^# # (.+)", source.read_text(encoding="utf-8"), flags=re.MULTILINE)[1]


def read_cells(source: Path) -> list[Cell]:
    """The cells of a source file."""
    cells, line = [], 1
    parts = MARKER.split(source.read_text(encoding="utf-8"))[1:]
    for kind, note, text in zip(parts[::3], parts[1::3], parts[2::3]):
        start, line = line, line + text.count("\n") + 1
        if kind in ("markdown", "text", "hint"):
            text = re.sub("^# ?", "", text, flags=re.MULTILINE)
        cells.append(Cell(kind or "code", text.strip("\n"), note, start))
    return cells


def notebook_cells(source: Path) -> list[Cell]:
    """The cells of a source, with how to begin below the title and links to the neighbouring
    lessons at the end."""
    cells = read_cells(source)
    title, *rest = cells[0].text.split("\n")
    if minutes := cells[0].note:
        cells[0].text = "\n".join([title, "", HOW_TO_BEGIN.format(minutes), *rest])
        before, after = neighbours(source)
        links = ["[all lessons, in this order](README.md)"]
        if before:
            links.insert(0, f"[← {heading(before)}]({before.stem}.ipynb)")
        if after:
            links.append(f"[{heading(after)} →]({after.stem}.ipynb)")
        cells.append(Cell("markdown", " · ".join(links), "", 0))
    return cells


def code_of_text(template: str) -> str:
    """The code that shows a text with the values of its expressions."""
    imports = "from lessons.workshop import notebook as _notebook"
    return f"{imports}\n_notebook.say(_notebook.fill({template!r}, globals()))"


def run_cells(cells: Sequence[Cell], source: Path) -> dict:
    """Execute cells in one namespace, as a notebook does, and return it."""
    namespace: dict = {"__name__": "__main__"}
    for cell in cells:
        text = code_of_text(cell.text) if cell.kind == "text" else cell.text
        # Blank lines in front, so that tracebacks show the line of the source.
        exec(compile("\n" * cell.line + text, str(source), "exec"), namespace)
    return namespace
