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
MARKER = re.compile(r"# %%(?: \[(\w+)\])?[ ]?(.*)")
HOW_TO_BEGIN = (
    "*About {}. Run All first. Write your answer in place of `...`, run that cell and the next, "
    "which checks it. (To work in a copy: `python lessons/start.py`.)*"
)
# The course, the rest of the two papers, studies of our own
ORDER = (0, 1, 2, 3, 4, 5, 6, 10, 7, 8, 9, 11, 12, 15, 13, 14, 16, 17, 18, 19)


@dataclass
class Cell:
    kind: str  # one of KINDS
    text: str  # code, or markdown without the comment signs
    note: str  # the rest of the marker's line
    line: int  # number of the marker's line in the source


def find_sources(only: Sequence[int] = ()) -> list[Path]:
    """All sources by number, or only those of these lessons. SystemExit for a lesson that
    does not exist."""
    sources = {
        int(path.name[:2]): path
        for path in sorted((LESSONS / "workshop/src").glob("[0-9][0-9]_*.py"))
    }
    if missing := [number for number in only if number not in sources]:
        raise SystemExit(
            f"there is no lesson {missing[0]}; choose from {', '.join(map(str, sources))}"
        )
    return [path for number, path in sources.items() if not only or number in only]


def reading_order() -> list[Path]:
    """All sources, shelf by shelf."""
    return sorted(find_sources(), key=lambda path: ORDER.index(int(path.name[:2])))


def neighbours(source: Path) -> tuple[Path | None, Path | None]:
    """The lessons before and after one of them, in reading order."""
    order = [None, *reading_order(), None]
    place = order.index(source)
    return order[place - 1], order[place + 1]


def heading(source: Path) -> str:
    """The first heading of a source."""
    return re.search("^# # (.+)", source.read_text(encoding="utf-8"), flags=re.MULTILINE)[1]


def time_needed(cells: Sequence[Cell]) -> str:
    """What a lesson says of the time that it takes, "" if its first line says none."""
    again = any("## For a second reading" in cell.text for cell in cells)
    return cells[0].note + (", without the second reading" if cells[0].note and again else "")


def read_cells(source: Path) -> list[Cell]:
    """The cells of a source file. SystemExit, with the line, for a kind of cell that does
    not exist, and for {=…} in one that is not filled in."""
    cells: list[Cell] = []
    for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), start=1):
        if match := MARKER.fullmatch(line):
            kind = match[1] or "code"
            if kind not in KINDS:
                place = f"{source.name}, line {number}"
                raise SystemExit(f"{place}: [{kind}] is no kind of cell; try {', '.join(KINDS)}")
            cells.append(Cell(kind, "", match[2], number))
        elif cells:
            cells[-1].text += line + "\n"
    for cell in cells:
        if "{=" in cell.text and cell.kind in ("markdown", "hint", "solution"):
            place = f"{source.name}, line {cell.line}"
            raise SystemExit(f"{place}: only a [text] cell fills in {{=…}}")
        if cell.kind in ("markdown", "text", "hint"):
            cell.text = re.sub(r"^# ?", "", cell.text, flags=re.MULTILINE)
        cell.text = cell.text.strip("\n")
    return cells


def notebook_cells(source: Path) -> list[Cell]:
    """The cells of a source, with how to begin below the title and links to the neighbouring
    lessons at the end."""
    cells = read_cells(source)
    title, *rest = cells[0].text.split("\n")
    if minutes := time_needed(cells):
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
    return f"from lessons.workshop import kit as _kit\n_kit.say(_kit.fill({template!r}, globals()))"


def run_cells(cells: Sequence[Cell], source: Path) -> dict:
    """Execute cells in one namespace, as a notebook does, and return it."""
    namespace: dict = {"__name__": "__main__"}
    for cell in cells:
        text = code_of_text(cell.text) if cell.kind == "text" else cell.text
        # Blank lines in front, so that tracebacks show the line of the source.
        exec(compile("\n" * cell.line + text, str(source), "exec"), namespace)
    return namespace
