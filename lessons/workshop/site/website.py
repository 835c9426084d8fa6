"""Write the lessons as a site, lessons/html: pages that need neither network nor scripts.

    python lessons/workshop/site/website.py

The pictures are those of the notebooks, still, and nothing is executed. A lesson links to scripts
and other texts of the repository; these become pages too, and so does everything they link to.
lessons/group.html is copied.
"""

import base64
import html
import re
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import nbformat

from lessons.workshop import build, notebook, sources
from lessons.workshop.site.markup import (
    GROUP,
    PICTURES,
    ROOM,
    Renderer,
    address_of,
    filled,
    highlighted,
    page,
)

FOLDED = "how this was computed"
PREPARES = "code that prepares what follows"
GUESS = "guess first, then open"
HOME = '<p><a href="index.html">sigma-ladder</a></p>'
# A remark that is true only in a notebook
NEEDS_CELLS = re.compile(r"\s\((?:the\ssliders?\s)?needs?\s[^()]*cells?[^()]*\)", re.IGNORECASE)


def write_site(lessons: Sequence[Path], folder: Path) -> Path:
    """Write the site in place of an old one, once every page has been made; returns its index."""
    root = sources.LESSONS.parent.resolve()
    files: dict[str, str | bytes] = {"style.css": (ROOM / "style.css").read_bytes()}
    group = (root / GROUP).read_text(encoding="utf-8")
    group = re.sub(r'data-lesson="(\w+)"', r'href="\1.html"', group)
    files["group.html"] = group.replace("<main>", f"<main>\n{HOME}", 1)
    wanted = {"README.md", "lessons/README.md", "algorithms/README.md"}
    for source in lessons:
        files[f"{source.stem}.html"] = lesson_page(source, files, wanted)
    files["index.html"] = index()
    while wanted:
        name = wanted.pop()
        if address_of(name) not in files:
            files[address_of(name)] = linked_file(root, name, wanted)
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / "index.html"


def linked_file(root: Path, name: str, linked: set[str]) -> str | bytes:
    """The page of a text or a script of the repository, or a picture. Adds what it links to."""
    path = root / name
    if path.suffix in PICTURES:
        return path.read_bytes()
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
        title, body = text.split("\n")[0].lstrip("# "), Renderer(name, linked).to_html(text)
    else:
        code = highlighted(text, path.suffix[1:])
        title, body = name, f"<h1><code>{name}</code></h1>\n{code}"
    return page(address_of(name), title, body)


# ---------------------------------------------------------------------- lessons


def lesson_page(source: Path, files: dict[str, str | bytes], linked: set[str]) -> str:
    """The page of a lesson, with links to its neighbours. The notebook's last cell, which has no
    source, links to other notebooks and is left out. Adds pictures to `files`, and the names of
    what the page links to to `linked`."""
    render = Renderer(f"lessons/{source.stem}.ipynb", linked).to_html
    numbers, title = count(1), sources.heading(source)

    def cell_as_html(cell: sources.Cell, built: nbformat.NotebookNode) -> str:
        """One cell, its code and its outputs folded where the notebook folds them. Of a check only
        pictures are left, because nobody attempts the exercise here."""
        if built.cell_type == "markdown":
            markdown = cell.text if cell.kind == "markdown" else built.source
            return render(NEEDS_CELLS.sub("", markdown))
        if cell.kind == "check":
            return "".join(map(output_as_html, filter(is_picture, built.outputs)))
        code, outputs = highlighted(cell.text), "".join(map(output_as_html, built.outputs))
        if cell.note == "guess":
            outputs = f"<details><summary>{GUESS}</summary>\n{outputs}</details>\n"
        if cell.kind == "fold":
            summary = f"<summary>{FOLDED if outputs else PREPARES}</summary>"
            return f"{outputs}<details>{summary}\n{code}</details>\n"
        return code + outputs

    def output_as_html(output: nbformat.NotebookNode) -> str:
        """One output of a cell."""
        data = output.get("data", {})
        if is_picture(output):
            return next_picture(data)
        if "text/markdown" in data:
            return render(data["text/markdown"])
        text = (output.get("text") or data.get("text/plain", "")).rstrip()
        text = html.escape(text, quote=False)
        return f'<pre class="out" tabindex="0">{text}</pre>\n' if text else ""

    def next_picture(data: dict) -> str:
        """The next picture, as the notebook shows it."""
        number = next(numbers)
        name = f"figures/{source.stem}-{number}.png"
        files[name] = base64.b64decode(data["image/png"])
        has_sliders = data["text/plain"] == notebook.WITH_SLIDERS
        alt = f"{title}, picture {number}"
        return filled("picture.html", name=name, alt=alt, has_sliders=has_sliders)

    cells = sources.read_cells(source)
    built = nbformat.read(build.notebook_path(source), as_version=4)
    before, after = sources.neighbours(source)
    return page(
        f"{source.stem}.html",
        title,
        "".join(map(cell_as_html, cells, built.cells)),
        "lesson.html",
        minutes=cells[0].note,
        before=before,
        after=after,
        heading=sources.heading,
    )


def is_picture(output: nbformat.NotebookNode) -> bool:
    return "image/png" in output.get("data", {})


# ---------------------------------------------------------------------- index


def index() -> str:
    """The first page: the README up to its first section, where to go, and the lessons as
    lessons/README.md lists them, with the time that each needs."""

    def with_minutes(line: re.Match) -> str:
        source = sources.LESSONS / f"workshop/src/{line[2]}.py"
        minutes = sources.read_cells(source)[0].note.partition(",")[0]
        claim = f'<span class="claim">{line[3]}</span>'
        return f'{line[1]} <span class="minutes">{minutes}</span>{claim}'

    text = (sources.LESSONS / "README.md").read_text(encoding="utf-8")
    item = r"- \[\d.+\n(?:  .+\n)*"  # wrapped lines are indented
    shelves = "".join(re.findall(rf"^## .+\n\n(?:{item})+", text, flags=re.MULTILINE))
    shelves = re.sub(r"(- \[.+\]\((\w+)\.ipynb\)):\s+(.+(?:\n  .+)*)", with_minutes, shelves)
    lessons = Renderer("lessons/README.md", set(), "index.html").to_html(shelves)
    readme = (sources.LESSONS.parent / "README.md").read_text(encoding="utf-8")
    opening = Renderer("README.md", set(), "index.html").to_html(readme.partition("\n## ")[0])
    body = filled("index.html", opening=opening, lessons=lessons)
    return page("index.html", "sigma-ladder", body)


def main() -> None:
    """Write the site."""
    if not find_spec("latex2mathml"):
        raise SystemExit("the site needs latex2mathml; type pip install -e '.[page]'")
    print(f"open {write_site(sources.reading_order(), sources.LESSONS / 'html')}")


if __name__ == "__main__":
    main()
