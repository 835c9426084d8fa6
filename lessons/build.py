"""Build the lessons: lessons/src/NN_name.py to lessons/NN_name.ipynb, executed.

    python lessons/build.py             all lessons
    python lessons/build.py --only 6    one of them
    python lessons/build.py --check     does every notebook match its source?
    python lessons/build.py --html      the notebooks as a site, in seconds: lessons/html
    python lessons/build.py --draw      its pictures first, in minutes: every slider position, for two widths

A source is a Python file in percent format, and begins with "# %% [markdown] 30 minutes": the time it
takes a reader. What stands under the title, and the links at the end, are made here. Its cells:

    # %% [markdown]        text, as comments
    # %% [text]            text with {=expressions:.2f}, filled in when built
    # %%                   code
    # %% [fold]            code that only draws or checks: folded in JupyterLab
    # %% [exercise]        the stub that the reader fills in
    # %% [check]           what says whether it is right
    # %% [hint]            text, folded
    # %% [solution]        code, folded; in a test it must pass the check
    # %% [wrong] MESSAGE   code that only the test runs: the check must reject
                           it with MESSAGE

The same source gives the same bytes: cell ids are numbers, and times, widget
ids and machine names are left out. The metadata are those that JupyterLab
writes, so that opening a lesson changes nothing in its file but the version of
Python, if the reader's is another.
"""

from toy_env import UsageError, take_over_ctrl_c

if __name__ == "__main__":
    take_over_ctrl_c()

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from lessons.experiments.pool import in_parallel
from lessons.kit import WIDGET
from toy_env.cli import run_main

LESSONS = Path(__file__).parent
KINDS = ("markdown", "text", "code", "fold", "exercise", "check", "hint", "solution", "wrong")
MARKER = re.compile(r"# %%(?: \[(\w+)\])?[ ]?(.*)")
HOW_TO = (
    "*About {}. Start with Run All, then move the sliders. Write your answer in place of `...`, or repair the code "
    "where the exercise is to find a bug; run that cell, then the next, which checks it. (To work in a copy: "
    "`python lessons/start.py`.)*"
)
TO_BEGIN_WITH = (0, 1, 2, 3, 4, 5, 6, 10)
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


@dataclass
class Config:
    only: tuple[int, ...] = ()  # numbers of the lessons to build; none: all
    check: bool = False  # say whether every notebook is built from its source, and execute nothing
    html: bool = False  # write lessons/html, the site, from the notebooks as they are, and execute nothing
    draw: bool = False  # execute the sources to draw the site's pictures, then write it


@dataclass
class Cell:
    kind: str  # one of KINDS
    text: str  # code, or markdown without the comment signs
    note: str  # what follows the marker on its line
    line: int  # where it starts in the source


def read_cells(source: Path) -> list[Cell]:
    """The cells of a source file. Raises UsageError, with the line, for a kind of cell that does not exist."""
    cells: list[Cell] = []
    for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), start=1):
        if match := MARKER.fullmatch(line):
            kind = match[1] or "code"
            if kind not in KINDS:
                raise UsageError(f"{source.name}, line {number}: no kind of cell is called [{kind}]; "
                                 f"choose from {', '.join(KINDS)}")  # fmt: skip
            cells.append(Cell(kind, "", match[2], number))
        elif cells:
            cells[-1].text += line + "\n"
    for cell in cells:
        if cell.kind in ("markdown", "text", "hint"):
            cell.text = re.sub(r"^# ?", "", cell.text, flags=re.MULTILINE)
        cell.text = cell.text.strip("\n")
    return cells


def filling(template: str) -> str:
    """The code that shows a text with its expressions filled in."""
    return f"from lessons import kit as _kit\n_kit.say(_kit.fill({template!r}, globals()))"


def run(cells: list[Cell], source: Path) -> dict:
    """Execute cells in one namespace, as a notebook does, and return it."""
    space: dict = {"__name__": "__main__"}
    for cell in cells:
        text = filling(cell.text) if cell.kind == "text" else cell.text
        code = compile("\n" * cell.line + text, str(source), "exec")  # tracebacks show the line of the source
        exec(code, space)
    return space


def framed(source: Path) -> list[Cell]:
    """The cells of a source, with how to begin under the title and the links to the neighbours at the end."""
    cells = read_cells(source)
    title, *rest = cells[0].text.split("\n")
    if minutes := cells[0].note:
        cells[0].text = "\n".join([title, "", HOW_TO.format(minutes), *rest])
        others = reading_order()
        at = others.index(source)
        links = [
            f"[← {heading(others[at - 1])}]({others[at - 1].stem}.ipynb)" if at else "",
            "[all lessons](README.md)",
            f"[{heading(others[at + 1])} →]({others[at + 1].stem}.ipynb)" if at + 1 < len(others) else "",
        ]
        cells.append(Cell("markdown", " · ".join(filter(None, links)), "", 0))
    return cells


def reading_order() -> list[Path]:
    """All sources: those to begin with, then the others."""
    return sorted(sources(), key=lambda source: (int(source.name[:2]) not in TO_BEGIN_WITH, source.name))


def heading(source: Path) -> str:
    """The first heading of a source."""
    return next(line[4:] for line in source.read_text(encoding="utf-8").splitlines() if line.startswith("# # "))


def notebook_of(source: Path) -> nbformat.NotebookNode:
    """The notebook, not yet executed. A text cell knows its template by a digest: its source will be filled in."""
    notebook = nbformat.v4.new_notebook()
    notebook.metadata.kernelspec = KERNELSPEC
    for cell in framed(source):
        if cell.kind == "wrong":
            continue
        folded = {"hint": "Hint", "solution": "Solution"}.get(cell.kind)
        if cell.kind == "solution":
            new = nbformat.v4.new_markdown_cell(fold(folded, f"```python\n{cell.text}\n```"))
        elif folded:
            new = nbformat.v4.new_markdown_cell(fold(folded, cell.text))
        elif cell.kind in ("markdown", "text"):
            new = nbformat.v4.new_markdown_cell(cell.text)
            if cell.kind == "text":
                new.metadata.template = sha256(cell.text.encode()).hexdigest()[:16]
        else:
            new = nbformat.v4.new_code_cell(cell.text)
            if cell.kind == "fold":
                new.metadata.jupyter = {"source_hidden": True}
        new.id = f"cell-{len(notebook.cells)}"
        notebook.cells.append(new)
    return notebook


def fold(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def execute(notebook: nbformat.NotebookNode, name: str) -> None:
    """Run the cells in a fresh kernel. Raises UsageError with the failing cell if one fails, or with a warning.

    Text cells run as code among the others, and are text again afterwards.
    """
    texts = {i: cell for i, cell in enumerate(notebook.cells) if "template" in cell.metadata}
    for i, cell in texts.items():
        notebook.cells[i] = nbformat.v4.new_code_cell(filling(cell.source), id=cell.id)
    client = NotebookClient(
        notebook,
        timeout=120,
        resources={"metadata": {"path": str(LESSONS)}},
        coalesce_streams=True,  # or the same text comes in other pieces every time
        extra_arguments=["--IPKernelApp.log_level=40"],
    )
    try:
        client.execute()
    except CellExecutionError as error:
        raise UsageError(f"{name} does not run to its end:\n{error}") from None
    for i, cell in texts.items():
        cell.source = notebook.cells[i].outputs[0].data["text/markdown"]
        notebook.cells[i] = cell
    for number, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), start=1):
        cell.execution_count = number
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                raise UsageError(f"{name} leaves a warning in the notebook: {output.text.strip()}")
        if "outputs" in cell:  # sliders live in the kernel that is gone; the picture below them stays
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]


def sources(only: Sequence[int] = ()) -> Iterator[Path]:
    """The sources in the order of their numbers. Raises UsageError if the one asked for does not exist."""
    found = sorted((LESSONS / "src").glob("[0-9][0-9]_*.py"))
    chosen = [path for path in found if not only or int(path.name[:2]) in only]
    if missing := [number for number in only if number not in {int(path.name[:2]) for path in chosen}]:
        raise UsageError(
            f"there is no lesson {missing[0]}; choose from {', '.join(str(int(p.name[:2])) for p in found)}"
        )
    yield from chosen


def is_built(source: Path) -> bool:
    """Whether the notebook beside a source has exactly the cells of that source, executed without an error."""
    path = LESSONS / f"{source.stem}.ipynb"
    if not path.is_file():
        return False
    built, wanted = nbformat.read(path, as_version=4), notebook_of(source)

    def signature(notebook: nbformat.NotebookNode) -> list[tuple[str, str]]:
        return [(cell.cell_type, cell.metadata.get("template") or cell.source) for cell in notebook.cells]

    same = signature(built) == signature(wanted)
    code = [cell for cell in built.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    return same and all(c.execution_count for c in code) and all(o.output_type != "error" for o in outputs)


def build(source: Path) -> None:
    """Execute a source and write its notebook."""
    notebook = notebook_of(source)
    execute(notebook, source.stem)
    nbformat.write(notebook, LESSONS / f"{source.stem}.ipynb")


def main(config: Config) -> None:
    chosen = list(sources(config.only))
    if config.check:
        stale = [source.stem for source in chosen if not is_built(source)]
        if stale:
            raise UsageError(f"not built from its source: {', '.join(stale)}; run python lessons/build.py")
        print(f"{len(chosen)} notebooks are built from their sources")
        return
    if config.html or config.draw:
        from lessons import drawn, web

        web.require_packages()
        if config.draw:
            drawn.draw(chosen, LESSONS / "html")
        print(f"open {web.write(reading_order(), LESSONS / 'html')}")
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # for the kernels: other numbers of threads round otherwise in the last digit
    if len(chosen) > 1:
        in_parallel(build, [(source,) for source in chosen], what="lessons")
    else:
        build(chosen[0])


if __name__ == "__main__":
    run_main(Config, main, __doc__)
