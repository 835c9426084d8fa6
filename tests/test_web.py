"""The site of the lessons: links, formulas, pictures and sliders; what needs a real browser is slow."""

import base64
import json
import re
import sys
from html.parser import HTMLParser
from math import prod
from pathlib import Path

import nbformat
import pytest
from matplotlib.figure import Figure

from lessons import kit
from lessons.site import build, drawn, sources, website
from toy_env import UsageError

INSTALL = "pip install -e '.[page]' and apt install chromium"
pytest.importorskip("latex2mathml", reason=f"the site needs latex2mathml: {INSTALL}")
SOURCES = sources.find_sources()
PIXEL = base64.b64encode(kit.png(Figure(figsize=(0.1, 0.1)))).decode()
TINY = """# %% [markdown] 5 minutes
# # 1 · X
#
# Say $|p| = -1$ (needs the cells above), see [the table](README.md).

# %%
from lessons.kit import check, knob, new_figure, show

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
    """A lesson in a folder of its own, with a notebook as if it were executed: its source, and the site's folder."""
    monkeypatch.setattr(sources, "LESSONS", tmp_path / "lessons")
    source = tmp_path / "lessons/src/01_x.py"
    source.parent.mkdir(parents=True)
    (tmp_path / "lessons/README.md").write_text("# All\n\nFirst:\n- [1 · X](01_x.ipynb): it turns\n", "utf-8")
    (tmp_path / "algorithms").mkdir()
    (tmp_path / "algorithms/README.md").write_text("# Scripts\n\n`algorithms/a.py`\n", "utf-8")
    (tmp_path / "algorithms/a.py").write_text('"""Two\nlines."""\n', "utf-8")
    source.write_text(TINY, "utf-8")
    notebook = build.notebook_of(source)
    for cell in notebook.cells:
        if cell.cell_type == "code" and re.search(r"knob\(|show\(|^check\(", cell.source, re.MULTILINE):
            cell.outputs = [nbformat.v4.new_output("display_data", {"image/png": PIXEL})]
            text = "two\n"
            if cell.source.startswith("check"):
                cell.outputs, text = [], "– not attempted\n"
            cell.outputs.append(nbformat.v4.new_output("stream", name="stdout", text=text))
    nbformat.write(notebook, tmp_path / "lessons/01_x.ipynb")
    return source, tmp_path / "lessons/html"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole site without drawn pictures."""
    return website.write_site(SOURCES, tmp_path_factory.mktemp("site")).parent


def draw(source: Path, folder: Path) -> None:
    """The pictures of a lesson, drawn in this process."""
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for width in drawn.WIDTHS:
        drawn.draw_lesson(source, width, folder / "figures")


class Page(HTMLParser):
    """What a page links to and loads, its ids, its pictures' texts, and its text without code."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links, self.loads, self.ids, self.alts, self.text, self.inside = [], [], [], [], "", []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "a":
            self.links.append(attrs["href"])
        self.loads += [attrs[name] for name in ("src", "srcset") if name in attrs]
        self.loads += [attrs["href"]] if tag == "link" else []
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.alts += [attrs.get("alt")] if tag == "img" else []
        if tag in ("pre", "code", "script"):
            self.inside.append(tag)

    def handle_endtag(self, tag):
        if tag in self.inside:
            self.inside.remove(tag)

    def handle_data(self, data):
        self.text += "" if self.inside else data


def test_links_pictures_and_ids(site):
    pages = {path.relative_to(site).as_posix(): Page(path) for path in site.rglob("*.html")}
    wanted = {"README.html", "group.html", "algorithms/grpo.py.html", *(f"{source.stem}.html" for source in SOURCES)}
    assert wanted < set(pages) and not any(name.endswith(".html.html") for name in pages)
    assert "index.html" in pages["group.html"].links and "06_identity.html" in pages["group.html"].links
    for name, page in pages.items():
        assert len(page.ids) == len(set(page.ids)), name
        assert all(alt and alt.strip() for alt in page.alts), name
        for address in page.links + page.loads:
            if re.match("https?:", address):
                assert address in page.links, f"{name} loads {address}"
            elif address != "data:,":
                path, _, anchor = address.partition("#")
                to = (site / name).parent / path if path else site / name
                assert to.is_file(), f"{name} links to {address}"
                if anchor:
                    assert anchor in pages[to.resolve().relative_to(site.resolve()).as_posix()].ids, (
                        f"{name}: {address}"
                    )


def test_formulas_are_rendered_and_notes_for_jupyter_are_left_out(site):
    for path in site.rglob("*.html"):
        page = Page(path)
        assert "$" not in page.text and not re.search(r"\\[a-zA-Z]", page.text), path.name
        assert "not attempted\n" not in page.text and "Run All" not in page.text, path.name
        assert not re.search(r"needs?\s(all|the)\s[\w\s]*cells?\b", page.text, re.IGNORECASE), path.name
        for formula in re.findall(r"<math.*?</math>", path.read_text("utf-8")):
            assert "double-struck" not in formula  # which browsers do not show


def test_every_lesson_is_on_the_index_with_its_claim_and_minutes(site):
    text = (site / "index.html").read_text("utf-8")
    assert text.count('<li><a href="') == len(SOURCES) == len(re.findall(r">\d+ minutes<", text))
    assert text.count("<h2>") == 2 and '<figure><a href="06_identity.html">' in text
    assert all(re.findall(r'<span class="claim">(.*?)</span>', text)), "a claim is missing in lessons/README.md"


def test_formulas():
    assert "&#x1D53C;" in website.mathml(r"\mathbb E[R]")
    bars = re.findall(r'form="(\w+)"', website.mathml(r"1/|y|"))
    assert bars == ["prefix", "postfix"] == re.findall(r'form="(\w+)"', website.mathml(r"\|s\|"))
    assert 'form="prefix"' in website.mathml("b = -3") and 'form="prefix"' not in website.mathml("a - 3")
    assert 'form="prefix"' not in website.mathml(r"\pi\Vert\rho")
    assert website.mathml("x", display=True).startswith("<math") and 'display="block"' in website.mathml(
        "x", display=True
    )


def test_a_lesson_without_drawn_pictures_shows_the_notebooks(tiny):
    source, folder = tiny
    text = website.write_site([source], folder).with_name("01_x.html").read_text("utf-8")
    assert text.count('<img style="--least: 40rem" src="figures/01_x-') == 2 and "sliders.js" not in text
    assert "sliders move <code>a</code> and <code>word</code>" in text and "(needs" not in text
    assert 'alt="1 · X"' in text and "About 5 minutes. Exercises are answered in JupyterLab" in text
    assert text.count(f"<summary>{website.FOLDED}</summary>") == 1  # the knob; the other cell prints
    assert "answer = ..." in website.html.unescape(re.sub("<[^>]*>", "", text)) and "not attempted" not in text
    assert website.FOLDED in text and text.index("figures/01_x-1.png") < text.index(website.FOLDED)


def test_sliders_are_drawn_and_frames_reassemble(tiny):
    source, folder = tiny
    draw(source, folder)
    first = {
        path: path.read_bytes() for path in [*folder.rglob("*"), website.write_site([source], folder)] if path.is_file()
    }
    text = (folder / "01_x.html").read_text("utf-8")
    assert text.count('<input type="range"') == 2 and text.count("-narrow.svg") == 2 and ".png" not in text
    assert 'value="1"' in text and website.ONE_AT_A_TIME not in text and 'data-together="yes"' in text
    pictures = drawn.load(source, folder / "figures")
    for width in drawn.WIDTHS:
        turning, still = pictures[width]
        assert len(turning["frames"]) == 6 and still["sliders"] == []
        frames = {at: "\n".join(turning["lines"][i] for i in frame) for at, frame in turning["frames"].items()}
        assert len(set(frames.values())) == 6
        assert frames["1,0"] + "\n" == (folder / f"figures/01_x-1-{width}.svg").read_text("utf-8")
    assert [website.size_of(folder / f"figures/01_x-1-{width}.svg")[0] for width in drawn.WIDTHS] == [384, 374]
    kit.narrow = True
    try:
        space = sources.run_cells(sources.read_cells(source)[1:2], source)
        assert frames["2,1"] + "\n" == drawn.svg(space["draw"](2, "yy"))
    finally:
        kit.narrow = False
    draw(source, folder)
    website.write_site([source], folder)
    assert all(path.read_bytes() == content for path, content in first.items()), "the same bytes for the same source"


def test_pictures_of_another_source_are_not_used(tiny):
    source, folder = tiny
    draw(source, folder)
    source.write_text(source.read_text("utf-8") + "\n# %% [hint]\n# one more\n", "utf-8")
    assert ".png" in website.write_site([source], folder).with_name("01_x.html").read_text("utf-8")
    source.write_text(TINY, "utf-8")
    assert ".png" not in website.write_site([source], folder).with_name("01_x.html").read_text("utf-8")
    notebook = nbformat.read(sources.LESSONS / "01_x.ipynb", as_version=4)
    notebook.cells[1].outputs = []
    nbformat.write(notebook, sources.LESSONS / "01_x.ipynb")
    assert ".svg" not in website.write_site([source], folder).with_name("01_x.html").read_text("utf-8"), (
        "one picture is missing"
    )


def test_a_page_that_is_gone_is_removed_and_a_page_of_its_own_is_copied(tiny):
    source, folder = tiny
    folder.mkdir()
    (folder / "00_old.html").touch()
    (sources.LESSONS / "group.html").write_text("<p>One group</p>", "utf-8")
    text = website.write_site([source], folder).read_text("utf-8")
    assert not (folder / "00_old.html").exists() and (folder / "group.html").read_text("utf-8") == "<p>One group</p>"
    assert text.index("group.html") < text.index("01_x.html")
    script = (folder / "algorithms/a.py.html").read_text("utf-8")
    assert 'id="L2"' in script and 'href="a.py.html"' in (folder / "algorithms/README.html").read_text("utf-8")


def test_html_executes_nothing_and_says_what_is_missing(tiny, monkeypatch, capsys):
    source, folder = tiny
    for module, name in ((build, "execute"), (sources, "run_cells"), (drawn, "in_parallel"), (drawn, "draw_lessons")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("executed"))
    website.main(website.Config())
    still = "still pictures, without sliders, in lessons 1: add --draw"
    assert capsys.readouterr().out == f"{still}\nopen {folder}/index.html\n"
    monkeypatch.setitem(sys.modules, "latex2mathml.converter", None)
    with pytest.raises(UsageError, match=r"^the site needs the package .*pip install -e '.\[page\]'$"):
        website.main(website.Config())


@pytest.mark.parametrize("link", ["nowhere.md", "../lessons/02_gone.ipynb", "../lessons/group.html", "../../secret.md"])
def test_a_link_out_of_the_repository_or_to_nothing_leaves_the_old_site(link, tiny, tmp_path):
    source, folder = tiny
    website.write_site([source], folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    (tmp_path.parent / "secret.md").touch()
    (tmp_path / "algorithms/README.md").write_text(f"[x]({link})", "utf-8")
    with pytest.raises(UsageError, match=f"^a link leads to .*{link[-9:]}, which is no file of the repository$"):
        website.write_site([source], folder)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


SLIDERS = [
    {},
    {"k": (0, 8, 1, 1)},
    {"G": (2, 64, 1, 4)},
    {"ratio": (0.1, 2.9, 0.1, 1.5), "eps": (0.05, 0.6, 0.05, 0.2)},
    {"rule": list("abcde"), "G": (2, 64, 1, 8)},
    {"completion": list("abcd"), "gae_lambda": (0.0, 1.0, 0.05, 0.95)},
    {"eps_low": (0.05, 0.5, 0.01, 0.2), "eps_high": (0.05, 0.6, 0.01, 0.28), "p": [0.1, 0.01, 0.5]},
]


@pytest.mark.parametrize("sliders", SLIDERS, ids=lambda sliders: "-".join(sliders) or "none")
def test_positions(sliders):
    """At most 60; the start is among them; all together, or one at a time from the start."""
    choices = {name: drawn.values_of(spec) for name, spec in sliders.items()}
    kept, whole, at = drawn.positions(choices)
    start = tuple(row.index(first) for row, (_, first) in zip(kept, choices.values()))
    assert len(at) == len(set(at)) <= 60 and start in at
    for row, (values, _), spec in zip(kept, choices.values(), sliders.values()):
        assert row[0] == 0 and row[-1] == len(values) - 1 and row == sorted(set(row))
        assert not isinstance(spec, list) or row == list(range(len(spec))), "a choice is left out"
    if whole:
        assert len(at) == prod(map(len, kept))
    else:
        assert all(sum(a != b for a, b in zip(position, start)) <= 1 for position in at)
    assert whole == ("eps" not in sliders and "rule" not in sliders and "eps_low" not in sliders)


def test_slider_values():
    assert drawn.values_of((0.1, 0.4, 0.1, 0.3)) == ([0.1, 0.2, 0.3, 0.4], 2)
    assert drawn.values_of((2, 5, 1, 4)) == ([2, 3, 4, 5], 2) and drawn.values_of(["b", "a"]) == (["b", "a"], 0)
    assert drawn.text_of(-0.25) == "−0.25" and drawn.text_of(3.0) == "3" and drawn.text_of("x y") == "x y"


def test_what_is_folded():
    assert website.only_draws("import x\n\ndef draw(a):\n    return a\n\nknob(draw, a=[1])\nassert x")
    assert not website.only_draws("a = 1\nshow(a)") and not website.only_draws("def train():\n    pass\nknob(train)")
    assert website.is_check('check("1.2", f)') and not website.is_check("check(f)\nx = 1")


# ---------------------------------------------------------------------- in a real browser


@pytest.fixture(scope="module")
def drawn_site(tmp_path_factory):
    """The whole site with the pictures of lessons 0 and 13 drawn."""
    folder = tmp_path_factory.mktemp("drawn")
    drawn.draw_lessons(list(sources.find_sources((0, 13))), folder)
    return website.write_site(SOURCES, folder).parent


def opened(browser, site: Path, name: str, width: int):
    """A page of the site, and what went wrong on it so far."""
    page, wrong = browser.new_page(viewport={"width": width, "height": 850}), []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request",
        lambda request: None if request.url.startswith(("file:", "data:", "blob:")) else wrong.append(request.url),
    )
    page.on("requestfailed", lambda request: wrong.append(f"failed: {request.url}"))
    page.goto((site / name).as_uri())
    return page, wrong


@pytest.mark.slow
def test_pages_fit_the_window_and_ask_for_nothing(browser, drawn_site):
    """At the width of a phone and of a desk, with everything unfolded."""
    page, wrong = opened(browser, drawn_site, "index.html", 1280)
    for path in sorted(drawn_site.rglob("*.html")):
        page.goto(path.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach((details) => details.open = true)")
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 850})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{path.name} at {width}"
        found = page.evaluate(STATE)
        assert found == {"pictures": True, "formulas": True}, f"{path.name}: {found}"
        assert "$" not in page.evaluate(WITHOUT_CODE), path.name
        assert wrong == [], path.name


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("stem", [source.stem for source in sources.find_sources((0, 13))])
def test_every_slider_changes_its_picture(browser, drawn_site, stem, width):
    page, wrong = opened(browser, drawn_site, f"{stem}.html", width)
    for figure in page.query_selector_all("figure[data-picture]"):
        image, inputs = figure.query_selector("img"), figure.query_selector_all("input")
        assert inputs and all(one.is_visible() for one in inputs)
        seen = {page.evaluate(CONTENT, image)}
        kind = "narrow" if width == 390 else "wide"
        picture = drawn.load(next(s for s in SOURCES if s.stem == stem), drawn_site / "figures")[kind]
        picture = picture[int(figure.get_attribute("data-picture"))]
        for i, one in enumerate(inputs):
            values = json.loads(one.get_attribute("data-values"))
            before, start = image.evaluate("(image) => image.currentSrc"), int(one.input_value())
            one.focus()
            page.keyboard.press("ArrowRight" if start + 1 < len(values) else "ArrowLeft")
            page.wait_for_function(DRAWN, arg=[image, before])
            now = page.evaluate(CONTENT, image)
            assert now not in seen, "this position shows nothing new"
            seen.add(now)
            positions = ",".join(other.input_value() for other in inputs)
            assert now == "\n".join(picture["lines"][line] for line in picture["frames"][positions])
            output = page.query_selector(f"output[for='{one.get_attribute('id')}']")
            assert output.inner_text() == values[int(one.input_value())] == one.get_attribute("aria-valuetext")
            if figure.get_attribute("data-together") == "no":
                others = [other for other in inputs if other.get_attribute("id") != one.get_attribute("id")]
                assert all(other.input_value() == other.get_attribute("value") for other in others), (
                    f"slider {i} of many"
                )
        assert image.evaluate("(image) => image.naturalWidth") > 300
    assert wrong == []


STATE = """async () => ({
  pictures: await Promise.all([...document.images].map((image) => image.decode())).then(() => true, () => false),
  formulas: [...document.querySelectorAll("math")].every((math) => math.getBoundingClientRect().height > 4) })"""
WITHOUT_CODE = """() => {
  const copy = document.body.cloneNode(true);
  copy.querySelectorAll("pre, code, script").forEach((code) => code.remove());
  return copy.textContent }"""
DRAWN = "([image, before]) => image.currentSrc && image.currentSrc !== before && image.complete"
# The SVG that an image shows, as text; of a file, which a page may not read, its address.
CONTENT = (
    "async (image) => image.currentSrc.startsWith('blob:') ? (await fetch(image.currentSrc)).text() : image.currentSrc"
)
