"""Write the lessons as a site, lessons/html: pages that need no network, and no script except for the sliders.

    python lessons/site/website.py            from the notebooks as they are, in seconds; nothing is executed
    python lessons/site/website.py --draw     its pictures first, in minutes: every slider position, for two widths

The pictures are those of lessons/site/drawn.py, or the notebooks' own where none are drawn. A lesson links to scripts
and other texts of the repository; these become pages too, and so does everything they link to. The site contains a copy
of lessons/group.html, the page that runs the model.
"""

from toy_env import UsageError, take_over_ctrl_c

if __name__ == "__main__":
    take_over_ctrl_c()

import ast
import base64
import html
import json
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import cycle
from pathlib import Path

import nbformat

from lessons.site import drawn, sources
from toy_env.cli import run_main

INSTALL = "pip install -e '.[page]'"
DRAWS = {"knob", "show", "check", "say", "show_source", "show_diff"}  # what a folded cell may call
GROUP = "lessons/group.html"  # a page already
FOLDED = "how this was computed"
PREPARES = "code that prepares what follows"
HOW_TO = "About {}. Exercises are answered in JupyterLab, which also checks them: <code>python lessons/start.py</code>."
NEEDS = re.compile(r"\s\((?:the\ssliders?\s)?needs?\s[^()]*cells?[^()]*\)", re.IGNORECASE)  # true of a kernel only
ONE_AT_A_TIME = "Here one slider moves at a time, and the others go back to where they started; in JupyterLab all move."
STACKED = '<p class="note phone">On a phone, the left picture is above and the right one below.</p>\n'
PHONE = "(max-width: 700px)"
BEFORE_SIGN = "[=,([;]|&#x(?:0003[CDE]|0226[45]|02192|0002C|00028|0005B);"
INK = {  # latex2mathml's MathML to what browsers show as TeX does: a pattern and what takes its place
    r"<mi>&#x0007E;</mi>": r"<mo>&#x0223C;</mo>",  # \sim
    r"<mi>&#x00394;</mi>": r'<mi mathvariant="normal">&#x00394;</mi>',  # \Delta is upright
    r"<mo>(&#x0221E;|&#x02202;)</mo>": r'<mi mathvariant="normal">\1</mi>',  # \infty, \partial: no operators
    r"<mover>(.{1,60}?)<mo stretchy=\"true\">&#x000AF;</mo>":
        r'<mover accent="true">\1<mo stretchy="false">&#x000AF;</mo>',
    r"<mo>&#x0002F;</mo>": r'<mo lspace="0" rspace="0">/</mo>',
    r"(<mrow>|<mo>&#x0002C;</mo>)<mo>&#x0003C;</mo>": r'\1<mo lspace="0" rspace="0">&lt;</mo>',  # y_{<t}
    r'<mn mathvariant="double-struck">1</mn>': r"<mn>&#x1D7D9;</mn>",
    # a sign, not a difference: after a relation, a comma or an opening bracket
    rf"(<mo[^>]*>(?:{BEFORE_SIGN})</mo>(?:<mspace[^>]*/>|<mtext>&#x000A0;</mtext>)*)<mo>(&#x02212;|&#x0002B;)</mo>":
        r'\1<mo form="prefix" lspace="0" rspace="0">\2</mo>',
    # functions: a small space to what is beside them, but none to brackets
    r"<(mi|mo)>(log|exp|min|max|sin|arcsin|Pr|Var)</\1>(?=<mo[^>]*>(?:&#x00028;|\(|&#x0005B;|\[))":
        r'<mo form="prefix" lspace="0.1em" rspace="0">\2</mo>',
    r"<(mi|mo)>(log|exp|min|max|sin|arcsin|Pr|Var)</\1>":
        r'<mo form="prefix" lspace="0.1em" rspace="0.17em">\2</mo>',
}  # fmt: skip


@dataclass
class Config:
    draw: bool = False  # execute the sources first, to draw the site's pictures
    only: tuple[int, ...] = ()  # numbers of the lessons to draw; by default all


def require_packages() -> None:
    """Raises UsageError, with the command that installs them, if a package that the site needs is missing."""
    try:
        for name in ("latex2mathml.converter", "nbconvert.filters.markdown_mistune"):
            import_module(name)
    except ImportError as error:
        raise UsageError(f"the site needs the package {error.name}: {INSTALL}") from None


def write_site(lessons: Sequence[Path], folder: Path) -> Path:
    """Write the site, in place of what is there, once all of it could be made; returns its index."""
    require_packages()
    root = sources.LESSONS.parent.resolve()
    assets = [Path(__file__).with_name(name) for name in ("sliders.js", "style.css")]
    files: dict[str, bytes] = {path.name: path.read_bytes() for path in assets}
    if has_group := (root / GROUP).is_file():
        text = re.sub(r'data-lesson="(\w+)"', r'href="\1.html"', (root / GROUP).read_text(encoding="utf-8"))
        text = text.replace("<main>", '<main>\n<p><a href="index.html">All lessons</a></p>', 1)
        files["group.html"] = text.encode()
    entries, wanted = [], {path.relative_to(root).as_posix() for path in (root / "algorithms").glob("[a-z]*.py")}
    wanted |= {f for f in ("README.md", "lessons/README.md", "algorithms/README.md") if (root / f).is_file()}
    still = []
    for before, source, after in zip([None, *lessons], lessons, [*lessons[1:], None]):
        lesson = LessonPage(source, folder, files)
        files[f"{source.stem}.html"] = lesson.html(before, after).encode()
        entries.append((source, lesson.minutes))
        wanted |= lesson.linked
        if not lesson.pictures:
            still.append(str(int(source.name[:2])))
    done: set[str] = set()
    while rest := wanted - done:
        for name in rest:
            wanted |= add_linked(root, name, files)
        done |= rest
    files["index.html"] = index(entries, files, has_group).encode()
    for old in folder.rglob("*"):
        if old.is_file() and (old.parent.name != "figures" or old.suffix == ".png"):
            old.unlink()  # all but what is drawn
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    if still:
        print(f"still pictures, without sliders, in lessons {', '.join(still)}: add --draw")
    return folder / "index.html"


# ---------------------------------------------------------------------- text


def page_of(name: str) -> str:
    """The page of a file of the repository: lessons/06_identity.ipynb is 06_identity.html; pictures keep their name."""
    if name.endswith(".ipynb") or name == GROUP:
        return posixpath.basename(name).replace(".ipynb", ".html")
    return name if name.endswith((".png", ".svg")) else name.removesuffix(".md") + ".html"


def mathml(tex: str, display: bool = False) -> str:
    """A formula as MathML. Absolute values and norms open and close in turn, which TeX does not say."""
    from latex2mathml.converter import convert

    tex = re.sub(r"\\mathbb ?([A-Z1])", r"\\mathbb{\1}", tex.strip())
    tex = re.sub(r"\\[lr]vert\b ?", "|", tex)
    found = convert(tex, display="block" if display else "inline")
    found = re.sub(r"<mo[^>]*>(?:&#x0007C;|\|)</mo>", brackets(), found)
    if "\\Vert" not in tex:  # which stands between two distributions
        found = re.sub(r"<mo[^>]*>&#x02016;</mo>", brackets(), found)
    for pattern, new in INK.items():
        found = re.sub(pattern, new, found)
    return found


def brackets() -> Callable[[re.Match], str]:
    """What replaces bars by an opening and a closing one in turn."""
    forms = cycle(("prefix", "postfix"))
    return lambda bar: re.sub(r"<mo[^>]*>", f'<mo form="{next(forms)}" stretchy="false">', bar[0])


def renderer(here: str, linked: set[str]) -> Callable[[str], str]:
    """What turns the Markdown of a file of the repository into HTML. Notes in `linked` the files that it links to."""
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    class Renderer(IPythonRenderer):
        def block_math(self, body: str) -> str:
            return f'<span class="formula">{mathml(body, display=True)}</span>'

        def inline_math(self, body: str) -> str:
            return mathml(body)

        def heading(self, text: str, level: int, **attrs) -> str:
            slug = (
                re.sub(r"[^\w\- ]", "", html.unescape(re.sub(r"<[^>]*>", "", text)).lower()).strip().replace(" ", "-")
            )
            times = self.seen[slug] = self.seen.get(slug, -1) + 1
            return f'<h{level} id="{slug}{f"-{times}" if times else ""}">{text}</h{level}>\n'

        def link(self, text: str, url: str, title: str | None = None) -> str:
            return f'<a href="{html.escape(address(url))}">{text}</a>'

        def image(self, text: str, url: str, title: str | None = None) -> str:
            return f'<span class="scroll"><img src="{html.escape(address(url))}" alt="{html.escape(text)}"></span>'

        def codespan(self, text: str) -> str:
            shown = super().codespan(text)
            if not re.fullmatch(r"algorithms/\w+\.py", text) or not (sources.LESSONS.parent / text).is_file():
                return shown
            return f'<a href="{html.escape(address(relative(text, here)))}">{shown}</a>'

        def block_code(self, code: str, info: str | None = None) -> str:
            return highlighted(code, (info or "text").split()[0])

    def address(url: str) -> str:
        """The address of a link, from the page it stands on."""
        if re.match(r"[a-z]+:|#", url):
            return url
        path, mark, anchor = url.partition("#")
        name = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
        linked.add(name)
        return relative(page_of(name), page_of(here)) + mark + anchor

    markdown = MarkdownWithMath(renderer=(one := Renderer(escape=False)))
    one.seen = {}

    def render(text: str) -> str:
        text = markdown.render(text)
        text = re.sub(r"<p>(<span class=\"(?:formula|scroll)\">)", r"\1", text)
        block = r'<span class="(formula|scroll)">(.*?)</span>(?:</p>)?'
        text = re.sub(block, r'<div class="\1">\2</div>', text, flags=re.DOTALL)
        text = re.sub(
            r"(<math(?:(?!</math>).)*</math>)([.,;:?!)]+)", r'<span class="whole">\1\2</span>', text, flags=re.DOTALL
        )
        text = re.sub(r"<table>(?=\s*<thead>\s*<tr>\s*<th>symbol)", '<table class="symbols">', text)
        return text.replace("<table", '<div class="scroll"><table').replace("</table>", "</table></div>")

    return render


def relative(to: str, here: str) -> str:
    return posixpath.relpath(to, posixpath.dirname(here) or ".")


def highlighted(code: str, language: str = "python", numbers: bool = False) -> str:
    """Code with its syntax in colours; with numbers, every line is an anchor L1, L2, ..."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import TextLexer, get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        lexer = get_lexer_by_name(language, stripnl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False)
    found = highlight(code.rstrip("\n") + "\n", lexer, HtmlFormatter(nowrap=True)).rstrip("\n")
    if numbers:
        lines = enumerate(found.split("\n"), start=1)
        found = "\n".join(
            f'<span id="L{i}"><a class="line" tabindex="-1" href="#L{i}">{i}</a>{line}</span>' for i, line in lines
        )
    return f'<pre tabindex="0"><code>{found}</code></pre>\n'


def page(name: str, title: str, body: str, end: str = "", script: bool = False) -> str:
    """A page of the site, at its address `name`."""
    up = "../" * name.count("/")
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f'<link rel="stylesheet" href="{up}style.css">\n'
        + (f'<script src="{up}sliders.js" defer></script>\n' if script else "")
        + f'<nav aria-label="Site"><a href="{up}index.html">All lessons</a>'
        f'<span><a href="{up}README.html">Start</a> · <a href="{up}lessons/README.html#every-symbol">Symbols</a> · '
        f'<a href="{up}algorithms/README.html">Scripts and diffs</a></span></nav>\n'
        f"<main>\n{body}</main>\n{end}</html>\n"
    )


def add_linked(root: Path, name: str, files: dict[str, bytes]) -> set[str]:
    """Add the page of a text or a script of the repository, or a picture; returns what it links to."""
    path, to = (root / name).resolve(), page_of(name)
    if not (path.is_file() and path.is_relative_to(root)):
        raise UsageError(f"a link leads to {name}, which is no file of the repository")
    linked: set[str] = set()
    if path.suffix in (".png", ".svg"):
        files[to] = path.read_bytes()
    elif path.suffix == ".md":
        text = re.sub(r"<!--.*?-->\n?", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        files[to] = page(to, text.split("\n")[0].lstrip("# "), renderer(name, linked)(text)).encode()
    elif to not in files:  # no lesson's page, nor group.html
        body = f"<h1><code>{name}</code></h1>\n"
        body += highlighted(path.read_text(encoding="utf-8"), path.suffix[1:], numbers=True)
        files[to] = page(to, name, body).encode()
    return linked


# ---------------------------------------------------------------------- lessons


class LessonPage:
    """One lesson: its notebook, and its pictures if they are drawn."""

    def __init__(self, source: Path, folder: Path, files: dict[str, bytes]) -> None:
        self.source, self.folder, self.files, self.linked = source, folder, files, set()
        self.notebook = nbformat.read(sources.LESSONS / f"{source.stem}.ipynb", as_version=4)
        self.minutes = sources.read_cells(source)[0].note
        self.render = renderer(f"lessons/{source.stem}.ipynb", self.linked)
        self.pictures = drawn.load(source, folder / "figures")
        outputs = [output for cell in self.notebook.cells for output in cell.get("outputs", [])]
        shown = sum("image/png" in output.get("data", {}) for output in outputs)
        if self.pictures and shown != len(self.pictures["wide"]):
            self.pictures = None  # the notebook is of another source
        self.count, self.heading = 0, ""

    def html(self, before: Path | None, after: Path | None) -> str:
        """The page, with links to its neighbours."""
        cells = [cell for cell in self.notebook.cells if "[all lessons](README.md)" not in cell.source]
        body = "".join(map(self.cell, cells))
        end = ""
        for other, form in ((before, "← {}"), (after, "{} →")):
            name = html.escape(form.format(sources.heading(other))) if other else ""
            end += f'<a href="{other.stem}.html">{name}</a>' if other else "<span></span>"
        scripted = bool(self.pictures) and any(picture["sliders"] for picture in self.pictures["wide"])
        end = f'<nav class="end" aria-label="Lessons before and after">{end}</nav>\n'
        return page(f"{self.source.stem}.html", sources.heading(self.source), body, end, scripted)

    def cell(self, cell) -> str:
        """One cell as HTML: its code, folded if it only draws or checks, and what it shows. The check of an exercise,
        not attempted here, is left out."""
        if cell.cell_type == "markdown":
            return self.text(cell.source)
        if is_check(cell.source):
            return ""
        outputs = "".join(self.output(output, cell) for output in cell.outputs)
        code = highlighted(cell.source)
        if cell.metadata.get("jupyter", {}).get("source_hidden") or only_draws(cell.source):
            return f"{outputs}<details><summary>{FOLDED if outputs else PREPARES}</summary>\n{code}</details>\n"
        return code + outputs

    def text(self, source: str) -> str:
        """Markdown; what sources.HOW_TO_BEGIN says of notebooks is said of the page instead."""
        source = source.replace(sources.HOW_TO_BEGIN.format(self.minutes), "HOW TO BEGIN")
        found = self.render(NEEDS.sub("", source))
        if headings := re.findall(r"<h\d[^>]*>(.*?)</h", found):
            self.heading = plain(headings[-1])
        return found.replace("<p>HOW TO BEGIN</p>", f'<p class="how">{HOW_TO.format(self.minutes)}</p>')

    def output(self, output, cell) -> str:
        """What a cell shows."""
        data = output.get("data", {})
        if "image/png" in data:
            return self.picture(data["image/png"], cell)
        if "text/markdown" in data:
            return self.render(data["text/markdown"])
        text = (output.get("text") or data.get("text/plain", "")).rstrip()
        return f'<pre class="out" tabindex="0">{html.escape(text, quote=False)}</pre>\n' if text else ""

    def picture(self, png: str, cell) -> str:
        """The next picture: as it is drawn, with its sliders, or else as the notebook shows it."""
        self.count += 1
        name = f"figures/{self.source.stem}-{self.count}"
        if not self.pictures:
            self.files[f"{name}.png"] = base64.b64decode(png)
            names = " and ".join(f"<code>{slider}</code>" for slider in sliders_of(cell.source))
            note = f'<p class="note">A still picture: in JupyterLab sliders move {names}.</p>\n' if names else ""
            image = f'<img style="--least: 40rem" src="{name}.png" alt="{html.escape(self.heading)}">'
            return f'<figure><div class="picture">{image}</div>\n{note}</figure>\n'
        wide = self.pictures["wide"][self.count - 1]
        sizes = [size_of(self.folder / f"{name}-{width}.svg") for width in drawn.WIDTHS]
        (w, h), (narrow_w, narrow_h) = sizes
        least = narrow_w if sizes[0] == sizes[1] else 0  # a picture that keeps its width on a phone is scrolled
        found = (
            f'<div class="picture"><picture><source media="{PHONE}" srcset="{name}-narrow.svg" width="{narrow_w}" '
            f'height="{narrow_h}"><img src="{name}-wide.svg" width="{w}" height="{h}" style="--least: {least}px" '
            f'alt="{html.escape(wide["titles"] or self.heading)}"></picture></div>\n'
            + STACKED
            * ("; " in wide["titles"] and not least)
        )
        if not wide["sliders"]:
            return f"<figure>{found}</figure>\n"
        rows = "".join(slider_row(f"slider-{self.count}-{i}", slider) for i, slider in enumerate(wide["sliders"], 1))
        note = "" if wide["whole"] else f'<p class="note">{ONE_AT_A_TIME}</p>\n'
        return (
            f'<figure data-lesson="{self.source.stem}" data-picture="{self.count - 1}" '
            f'data-together="{"yes" if wide["whole"] else "no"}">{found}'
            f'<div class="sliders" hidden>\n{rows}</div>\n{note}</figure>\n'
        )


def slider_row(mark: str, slider: dict) -> str:
    """A slider with its name and what it says."""
    values = slider["values"]
    return (
        f'<label for="{mark}">{html.escape(slider["name"].replace("_", " "))}</label>'
        f'<input type="range" id="{mark}" min="0" max="{len(values) - 1}" value="{slider["start"]}" autocomplete="off" '
        f'data-values="{html.escape(json.dumps(values, ensure_ascii=False))}">'
        f'<output for="{mark}" style="min-width: {max(map(len, values))}ch">'
        f"{html.escape(values[slider['start']])}</output>\n"
    )


def only_draws(code: str) -> bool:
    """Whether a cell only imports, defines `draw`, asserts, and calls what draws or checks."""

    def draws(node: ast.stmt) -> bool:
        if isinstance(node, ast.FunctionDef):
            return node.name == "draw"
        called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "")
        return called in DRAWS or isinstance(node, (ast.Import, ast.ImportFrom, ast.Assert))

    return all(map(draws, ast.parse(code).body))


def is_check(code: str) -> bool:
    """Whether a cell is the check of an exercise."""
    return re.fullmatch(r'check\("[\d.]+", .*\)', code.strip(), re.DOTALL) is not None


def sliders_of(code: str) -> list[str]:
    """The names of the sliders that a cell makes."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    return [word.arg for call in calls if getattr(call.func, "id", "") == "knob" for word in call.keywords if word.arg]


def plain(text: str) -> str:
    """HTML without its tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", text)).split())


def size_of(path: Path) -> tuple[int, int]:
    """Width and height of an SVG, in CSS pixels."""
    head = path.read_text(encoding="utf-8")[:2000]
    return tuple(round(float(re.search(rf'{name}="([\d.]+)pt"', head)[1]) * 96 / 72) for name in ("width", "height"))


# ---------------------------------------------------------------------- index


def index(entries: list[tuple[Path, str]], files: dict[str, bytes], own: bool) -> str:
    """The first page: a picture, and the lessons in the two parts of lessons/README.md with claim and minutes."""
    claims, part = {}, "Lessons"
    readme = sources.LESSONS / "README.md"
    for line in readme.read_text(encoding="utf-8").splitlines() if readme.is_file() else []:
        if match := re.fullmatch(r"- \[.*\]\((\d\d_\w+)\.ipynb\): (.+)", line):
            claims[match[1]] = part, match[2]
        elif line.endswith(":") and not line.startswith(" "):
            part = line[:-1]
    parts: dict[str, list[str]] = {}
    render = renderer("lessons/README.md", set())
    for source, minutes in entries:
        of, claim = claims.get(source.stem, ("Lessons", ""))
        parts.setdefault(of, []).append(
            f'<li><a href="{source.stem}.html">{html.escape(sources.heading(source))}</a> '
            f'<span class="minutes">{minutes}</span><span class="claim">{plain(render(claim))}</span></li>\n'
        )
    body = (
        "<h1>sigma-ladder: the lessons</h1>\n"
        "<p>REINFORCE, PPO, GRPO, Dr. GRPO and DAPO on a tiny task: each lesson proves one claim, shows it in one "
        "experiment and has a slider to move. Exercises are answered in JupyterLab: "
        "<code>python lessons/start.py</code>.</p>\n"
    )
    if own:
        body += (
            '<p><a href="group.html">See one group</a>: the real model writes eight completions in your browser, and '
            "you see what each algorithm does with them.</p>\n"
        )
    body += cover(entries, files)
    for name, items in parts.items():
        body += f'<h2>{html.escape(name)}</h2>\n<ul class="lessons">\n{"".join(items)}</ul>\n'
    return page("index.html", "sigma-ladder: the lessons", body)


def cover(entries: list[tuple[Path, str]], files: dict[str, bytes]) -> str:
    """The picture of the index: that of lesson 6, the identity, or of the first lesson."""
    stem = next((source.stem for source, _ in entries if source.name.startswith("06")), entries[0][0].stem)
    text = files[f"{stem}.html"].decode()
    if not (found := re.search(r'<div class="picture">.*?</div>', text, re.S)):
        return ""
    found = re.sub(r'alt="[^"]*"', 'alt="Lesson 6, the identity"', found[0])
    return (
        f'<figure><a href="{stem}.html">{found}</a><p class="note">What one group of eight teaches, by how many of its '
        "completions are right: GRPO divides by σ, Dr. GRPO does not.</p></figure>\n"
    )


def main(config: Config) -> None:
    require_packages()
    folder = sources.LESSONS / "html"
    if config.draw:
        drawn.draw_lessons(sources.find_sources(config.only), folder)
    print(f"open {write_site(sources.reading_order(), folder)}")


if __name__ == "__main__":
    run_main(Config, main, __doc__)
