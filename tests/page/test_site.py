"""The site of the lessons: links, formulas, pictures and the positions of sliders;
test_in_browser.py opens it."""

import base64
import json
import re
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from matplotlib.figure import Figure

from lessons.workshop import build, notebook, sources
from lessons.workshop.site import drawn, markup, website

pytest.importorskip("latex2mathml", reason="pip install -e '.[page]'")
PIXEL = base64.b64encode(notebook.png(Figure(figsize=(0.1, 0.1)))).decode()
TINY = """# %% [markdown] 5 minutes
# # 1 · X
#
# Say $|p| = -1$ (needs the cells above), see [the table](README.md).

# %% [fold]
from lessons.workshop.notebook import check, knob, new_figure, show

def draw(a, word="x", b=2):
    figure, axis = new_figure(4, 2)
    axis.plot([0, a], [b, len(word)])
    axis.set_title("A line")
    return figure


knob(draw, a=(0, 2, 1, 1), word=["x", "yy"])

# %% [markdown]
# *The line turns with $a$.* More.

# %%
show(draw(2))
print("two")

# %% [exercise]
answer = ...

# %% [check]
check("1.1", answer)
"""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A repository with one lesson and its notebook, which seems to be executed: the source, and
    the site's folder."""
    files = {
        "README.md": "# The repository\n",
        "algorithms/README.md": "# Scripts\n\n[a](a.py)\n",
        "algorithms/a.py": "",
        "lessons/README.md": "# All\n\n## First\n\n- [1 · X](01_x.ipynb): it turns\n",
        "lessons/group.html": "<main>One group</main>",
        "lessons/workshop/src/01_x.py": TINY,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.setattr(sources, "LESSONS", tmp_path / "lessons")
    monkeypatch.setattr(website, "ladder", lambda root, linked: "")
    source = tmp_path / "lessons/workshop/src/01_x.py"
    built = build.notebook_of(source)
    for cell in built.cells:
        if "show(" in cell.source or "knob(" in cell.source:
            text = notebook.WITH_SLIDERS if "knob(" in cell.source else "a figure"
            data = {"image/png": PIXEL, "text/plain": text}
            cell.outputs = [nbformat.v4.new_output("display_data", data)]
        if "print(" in cell.source:
            cell.outputs.append(nbformat.v4.new_output("stream", text="two\n"))
    nbformat.write(built, tmp_path / "lessons/01_x.ipynb")
    return source, tmp_path / "lessons/html"


def write(source: Path, folder: Path, pictures: list[dict]) -> str:
    """The lesson's page. pictures: those that are drawn."""
    index = website.write_site([source], folder, {source: pictures})
    return index.with_name("01_x.html").read_text("utf-8")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The whole site without drawn pictures: its folder, and its pages by address."""
    folder = website.write_site(sources.reading_order(), tmp_path_factory.mktemp("site"), {}).parent
    paths = folder.rglob("*.html")
    return folder, {path: BeautifulSoup(path.read_text("utf-8"), "html.parser") for path in paths}


def test_links_pictures_and_ids(pages):
    folder, pages = pages
    ids = {path: [tag["id"] for tag in page(id=True)] for path, page in pages.items()}
    names = {path.relative_to(folder).as_posix() for path in pages}
    lessons = {f"{source.stem}.html" for source in sources.find_sources()}
    assert {"README.html", "group.html", "algorithms/grpo.py.html"} | lessons < names
    for path, page in pages.items():
        assert len(ids[path]) == len(set(ids[path])), path
        assert all(image["alt"].strip() for image in page("img")), path
        loads = [tag["src"] for tag in page(src=True)] + [link["href"] for link in page("link")]
        assert not any(re.match("https?:", address) for address in loads), path
        for address in [link["href"] for link in page("a")] + loads:
            if re.match("https?:|data:", address):
                continue
            file, _, anchor = address.partition("#")
            target = (path.parent / file).resolve() if file else path
            assert target.is_file(), f"{path} links to {address}"
            assert not anchor or anchor in ids[target], f"{path} links to {address}"
    links = {link["href"] for link in pages[folder / "group.html"]("a")}
    assert {"index.html", "06_identity.html"} <= links
    links = [link["href"] for link in pages[folder / "02_ppo.html"].select("nav.end a")]
    assert links == ["01_score_function.html", "03_group_baseline.html"]
    links = [link["href"] for link in pages[folder / "index.html"]("a")]
    assert lessons < set(links) and {"group.html", "ladder.html"} < set(links)


@pytest.mark.slow
def test_formulas_are_rendered_and_notes_for_jupyter_are_left_out(pages):
    for path, page in pages[1].items():
        strings = page.find_all(string=True)
        text = "".join(s for s in strings if not s.find_parent(["pre", "code", "script"]))
        assert "$" not in text and not re.search(r"\\[a-zA-Z]", text), path.name
        assert "not attempted\n" not in text and "Run All" not in text, path.name
        assert not re.search(r"needs?\s(all|the)\s[\w\s]*cells?\b", text, re.IGNORECASE), path.name
        assert "double-struck" not in str(page), f"{path.name}: browsers do not show these letters"


def test_formulas():
    assert "&#x1D53C;" in markup.mathml(r"\mathbb E[R]")
    bars = re.findall(r'form="(\w+)"', markup.mathml(r"1/|y|"))
    assert bars == ["prefix", "postfix"] == re.findall(r'form="(\w+)"', markup.mathml(r"\|s\|"))
    assert 'form="prefix"' in markup.mathml("b = -3")
    for tex in ("a - 3", r"\pi\Vert\rho"):
        assert 'form="prefix"' not in markup.mathml(tex)


def test_a_lesson_without_drawn_pictures_shows_the_notebooks(tiny):
    text = write(*tiny, [])
    pictures = re.findall(r'<img [^>]*src="figures/01_x-(.).png" alt="1 · X, picture \1"', text)
    assert pictures == ["1", "2"]
    assert "sliders.js" not in text and text.count("A still picture") == 1 and "(needs" not in text
    # The knob's cell is folded; the other one prints.
    assert text.count(f"<summary>{website.FOLDED}</summary>") == 1
    assert text.index("figures/01_x-1.png") < text.index(website.FOLDED)
    assert "answer" in text and 'check("1.1"' not in BeautifulSoup(text, "html.parser").text


@pytest.mark.slow
def test_sliders_are_drawn_and_frames_reassemble(tiny, monkeypatch):
    source, folder = tiny
    pictures = drawn.draw_lesson(source)
    text = write(source, folder, pictures)
    assert text.count('<input type="range"') == 2 and ".png" not in text
    assert 'value="1"' in text and 'data-together="yes"' in text
    for width in ("wide", "narrow"):
        turning, still = (picture[width] for picture in pictures)
        frames = {at: drawn.frame(turning, at.split(",")) for at in turning["frames"]}
        assert len(frames) == len(set(frames.values())) == 6 and still["sliders"] == []
        assert frames["1,0"] == (folder / f"figures/01_x-1-{width}.svg").read_text("utf-8")
        script = (folder / f"figures/01_x-1-{width}.js").read_text("utf-8")
        assert json.loads(script.partition(" = ")[2].removesuffix(";\n")) == turning
    monkeypatch.setattr(notebook, "narrow", True)
    namespace = sources.run_cells(sources.read_cells(source)[1:2], source)
    assert frames["2,1"] + "\n" == drawn.svg(namespace["draw"](2, "yy"))
