"""Build the notebooks: lessons/workshop/src/NN_name.py to lessons/NN_name.ipynb, executed.

    python lessons/workshop/build.py             all lessons
    python lessons/workshop/build.py --only 6    one of them
    python lessons/workshop/build.py --check     does every notebook match its source?

`sources.py` says what a source consists of. The same source gives the same bytes: cell ids are
numbers, and times, widget ids and machine names are left out.
"""

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from lessons.experiments.harness.pool import in_parallel
from lessons.workshop import sources
from toy_env.run import parse

WIDGET = "application/vnd.jupyter.widget-view+json"
REBUILD = "run python lessons/workshop/build.py"
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


@dataclass
class Config:
    only: tuple[int, ...] = ()  # numbers of the lessons to build; by default all
    check: bool = False  # only compare notebooks with their sources; nothing is executed


def notebook_path(source: Path) -> Path:
    """The notebook of a source."""
    return sources.LESSONS / f"{source.stem}.ipynb"


def notebook_of(source: Path) -> nbformat.NotebookNode:
    """The notebook, not yet executed. A text cell keeps a digest of its template, because execution
    fills it in."""
    notebook = new_notebook()
    notebook.metadata.kernelspec = KERNELSPEC
    for i, cell in enumerate(sources.notebook_cells(source)):
        text = f"```python\n{cell.text}\n```" if cell.kind == "solution" else cell.text
        if cell.kind in ("hint", "solution"):
            summary = f"<summary>{cell.kind.capitalize()}</summary>"
            text = f"<details>{summary}\n\n{text}\n\n</details>"
        new_cell = new_code_cell if cell.kind in sources.CODE else new_markdown_cell
        new = new_cell(text, id=f"cell-{i}")
        if cell.kind == "text":
            new.metadata.template = sha256(text.encode()).hexdigest()[:16]
        if cell.kind == "fold":
            new.metadata.jupyter = {"source_hidden": True}
        if cell.note == "guess":
            new.metadata.setdefault("jupyter", {})["outputs_hidden"] = True
        notebook.cells.append(new)
    return notebook


def execute(notebook: nbformat.NotebookNode, name: str) -> None:
    """Run the cells in a fresh kernel. Raises nbclient's CellExecutionError if one fails, and
    SystemExit if one leaves a warning.

    Text cells run as code among the others, and are text again afterwards.
    """
    texts = {i: cell for i, cell in enumerate(notebook.cells) if "template" in cell.metadata}
    for i, cell in texts.items():
        notebook.cells[i] = new_code_cell(sources.code_of_text(cell.source), id=cell.id)
    client = NotebookClient(
        notebook,
        timeout=120,
        resources={"metadata": {"path": str(sources.LESSONS)}},
        coalesce_streams=True,  # without it a text is cut into pieces that differ from run to run
        store_widget_state=False,
        record_timing=False,
        extra_arguments=["--IPKernelApp.log_level=40"],
    )
    client.execute()
    for i, cell in texts.items():
        cell.source = notebook.cells[i].outputs[0].data["text/markdown"]
        notebook.cells[i] = cell
    for number, cell in enumerate(code_cells(notebook), start=1):
        cell.execution_count = number
        for output in cell.outputs:
            if output.get("name") == "stderr":
                raise SystemExit(f"{name} leaves a warning in the notebook: {output.text.strip()}")
            if "execution_count" in output:
                output.execution_count = number
        # Sliders need the kernel, which has ended; the picture below them stays.
        cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def is_built(source: Path) -> bool:
    """True if the notebook of a source has exactly the cells of that source, executed without an
    error."""
    if not notebook_path(source).is_file():
        return False
    existing = nbformat.read(notebook_path(source), as_version=4)
    built, wanted = (
        [(cell.cell_type, cell.metadata.get("template") or cell.source) for cell in notebook.cells]
        for notebook in (existing, notebook_of(source))
    )
    return built == wanted and all(
        cell.execution_count and all(output.output_type != "error" for output in cell.outputs)
        for cell in code_cells(existing)
    )


def build(source: Path) -> None:
    """Execute a source and write its notebook."""
    notebook = notebook_of(source)
    execute(notebook, source.stem)
    nbformat.write(notebook, notebook_path(source))


def main(config: Config) -> None:
    """Build the chosen lessons, or compare their notebooks with their sources."""
    chosen = sources.find_sources(config.only)
    if config.check:
        if stale := [source.stem for source in chosen if not is_built(source)]:
            raise SystemExit(f"not built from its source: {', '.join(stale)}; {REBUILD}")
        print(f"{len(chosen)} notebooks are built from their sources")
        return
    # For the kernels: with more threads the last digits can change.
    os.environ["OMP_NUM_THREADS"] = "1"
    if len(chosen) > 1:
        in_parallel(build, [(source,) for source in chosen], what="lessons")
    else:
        build(chosen[0])


if __name__ == "__main__":
    main(parse(Config, __doc__))
