"""Write the lessons as a site, lessons/html: pages that need no network; only sliders and the
ladder need scripts.

    python lessons/workshop/site/website.py            from the notebooks as they are; takes seconds
    python lessons/workshop/site/website.py --draw     draw every slider's positions; takes minutes

Without --draw the pictures are those of the notebooks, and nothing is executed. A lesson links to
scripts and other texts of the repository; these become pages too, and so does everything they link
to. ladder.py makes ladder.html; lessons/group.html is copied.
"""

import base64
import html
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import nbformat

from lessons.workshop import kit, sources
from lessons.workshop.site import drawn
from lessons.workshop.site.ladder import ladder
from lessons.workshop.site.markup import (
    GROUP,
    PICTURES,
    ROOM,
    Renderer,
    address_of,
    filled,
    highlighted,
    page,
    plain,
)
from toy_env.run import parse

SHARED = ("sliders.js", "ladder.js", "style.css")
FOLDED = "how this was computed"
PREPARES = "code that prepares what follows"
GUESS = "guess first, then open"
HOW_TO = (
    "About {}. Exercises are answered in JupyterLab, which also checks them: "
    "<code>python lessons/start.py</code>."
)
HOME = '<p><a href="index.html">sigma-ladder</a></p>'
# A remark that is true only in a notebook
NEEDS_CELLS = re.compile(r"\s\((?:the\ssliders?\s)?needs?\s[^()]*cells?[^()]*\)", re.IGNORECASE)
# The cell that judges an exercise
CHECK = re.compile(r'\s*check\("[\d.]+", .*\)\s*', re.DOTALL)


@dataclass
class Config:
    draw: bool = False  # execute the sources first, to draw the site's pictures


def write_site(lessons: Sequence[Path], folder: Path, pictures: dict[Path, dict]) -> Path:
    """Write the site in place of an old one, once every page has been made; returns its index.
    pictures: those that are drawn, by lesson."""
    root = sources.LESSONS.parent.resolve()
    files: dict[str, str | bytes] = {name: (ROOM / name).read_bytes() for name in SHARED}
    group = (root / GROUP).read_text(encoding="utf-8")
    group = re.sub(r'data-lesson="(\w+)"', r'href="\1.html"', group)
    files["group.html"] = group.replace("<main>", f"<main>\n{HOME}", 1)
    wanted = {path.relative_to(root).as_posix() for path in (root / "algorithms").glob("[a-z]*.py")}
    wanted |= {"README.md", "lessons/README.md", "algorithms/README.md"}
    for source in lessons:
        lesson = LessonPage(source, pictures.get(source, {}), files, wanted)
        files[f"{source.stem}.html"] = lesson.html()
    files["ladder.html"] = ladder(root, wanted)
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


class LessonPage:
    """One lesson: its notebook, and its pictures if they are drawn. Adds pictures to `files`, and
    the names of what it links to to `linked`."""

    def __init__(
        self,
        source: Path,
        pictures: dict[str, list[dict]],
        files: dict[str, str | bytes],
        linked: set[str],
    ) -> None:
        self.source, self.pictures, self.files = source, pictures, files
        self.notebook = nbformat.read(sources.LESSONS / f"{source.stem}.ipynb", as_version=4)
        self.minutes = sources.time_needed(sources.read_cells(source))
        self.render = Renderer(f"lessons/{source.stem}.ipynb", linked).to_html
        self.count, self.heading = 0, ""
        for width, drawn_pictures in pictures.items():
            name = f"{source.stem}-{width}"
            content = json.dumps(drawn_pictures, ensure_ascii=False, separators=(",", ":"))
            files[f"figures/{name}.js"] = f'drawn["{name}"] = {content};\n'

    def html(self) -> str:
        """The page, with links to its neighbours."""
        name, (before, after) = self.source.stem, sources.neighbours(self.source)
        *cells, _ = self.notebook.cells  # the last one has links to other notebooks
        outputs = [output for cell in cells for output in cell.get("outputs", [])]
        count = sum(map(is_picture, outputs))
        if any(len(drawn_pictures) != count for drawn_pictures in self.pictures.values()):
            raise SystemExit(f"{name}.ipynb is old; run python lessons/workshop/build.py")
        return page(
            f"{name}.html",
            sources.heading(self.source),
            "".join(map(self.cell, cells)),
            "lesson.html",
            before=before,
            after=after,
            heading=sources.heading,
            script="sliders.js" if self.pictures else "",
        )

    def cell(self, cell) -> str:
        """One cell as HTML, its code and its outputs folded where the notebook folds them. Of a
        check only pictures are left, because nobody attempts the exercise here."""
        if cell.cell_type == "markdown":
            return self.text(cell.source)
        if CHECK.match(cell.source):
            pictures = filter(is_picture, cell.outputs)
            return "".join(map(self.output, pictures))
        outputs = "".join(map(self.output, cell.outputs))
        hidden = cell.metadata.get("jupyter", {})
        if "outputs_hidden" in hidden:
            outputs = f"<details><summary>{GUESS}</summary>\n{outputs}</details>\n"
        code = highlighted(cell.source)
        if "source_hidden" in hidden:
            summary = f"<summary>{FOLDED if outputs else PREPARES}</summary>"
            return f"{outputs}<details>{summary}\n{code}</details>\n"
        return code + outputs

    def text(self, markdown: str) -> str:
        """Markdown as HTML, with the site's note on how to begin in place of the notebook's."""
        how = f'<p class="how">{HOW_TO.format(self.minutes)}</p>'
        markdown = markdown.replace(sources.HOW_TO_BEGIN.format(self.minutes), how)
        text = self.render(NEEDS_CELLS.sub("", markdown))
        if headings := re.findall(r"<h\d[^>]*>(.*?)</h", text):
            self.heading = plain(headings[-1])
        return text

    def output(self, output) -> str:
        """One output of a cell."""
        data = output.get("data", {})
        if is_picture(output):
            return self.picture(data)
        if "text/markdown" in data:
            return self.render(data["text/markdown"])
        text = (output.get("text") or data.get("text/plain", "")).rstrip()
        text = html.escape(text, quote=False)
        return f'<pre class="out" tabindex="0">{text}</pre>\n' if text else ""

    def picture(self, data: dict) -> str:
        """The next picture: as it is drawn, with its sliders, or as the notebook shows it."""
        self.count += 1
        name, picture, sizes = f"figures/{self.source.stem}-{self.count}", None, []
        for width, drawn_pictures in self.pictures.items():
            picture = drawn_pictures[self.count - 1]
            svg = drawn.frame(picture, [slider["start"] for slider in picture["sliders"]])
            self.files[f"{name}-{width}.svg"] = svg
            sizes.append(picture["size"])
        if not picture:
            self.files[f"{name}.png"] = base64.b64decode(data["image/png"])
        return filled(
            "picture.html",
            name=name,
            drawn=picture,
            sizes=sizes,
            has_sliders=data["text/plain"] == kit.WITH_SLIDERS,
            lesson=self.source.stem,
            number=self.count,
            heading=self.heading,
        )


def is_picture(output) -> bool:
    return "image/png" in output.get("data", {})


# ---------------------------------------------------------------------- index


def index() -> str:
    """The first page: where to go, and the lessons as lessons/README.md lists them, with their
    claims and minutes."""
    shelves, render = {}, Renderer("lessons/README.md", set()).to_html
    for line in (sources.LESSONS / "README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            shelf = line[3:]
        elif lesson := re.fullmatch(r"- \[(.*)\]\((\d\d_\w+)\.ipynb\): (.+)", line):
            name, stem, claim = lesson.groups()
            minutes = sources.read_cells(sources.LESSONS / f"workshop/src/{stem}.py")[0].note
            entry = {"name": name, "stem": stem, "minutes": minutes, "claim": plain(render(claim))}
            shelves.setdefault(shelf, []).append(entry)
    return page("index.html", "sigma-ladder", filled("index.html", shelves=shelves))


def main(config: Config) -> None:
    """Draw the pictures, if wanted, and write the site."""
    if not find_spec("latex2mathml"):
        raise SystemExit("the site needs latex2mathml; type pip install -e '.[page]'")
    order = sources.reading_order()
    pictures = drawn.draw_lessons(order) if config.draw else {}
    print(f"open {write_site(order, sources.LESSONS / 'html', pictures)}")
    if not config.draw:
        print("its pictures are still: add --draw for sliders")


if __name__ == "__main__":
    main(parse(Config, __doc__))
