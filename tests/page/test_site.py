"""The site of the lessons: links, formulas and pictures; test_in_browser.py opens it."""

import re

import pytest
from bs4 import BeautifulSoup

from lessons.workshop import sources
from lessons.workshop.site import markup, website

pytest.importorskip("latex2mathml", reason="pip install -e '.[page]'")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The whole site: its folder, and its pages by address."""
    folder = website.write_site(sources.reading_order(), tmp_path_factory.mktemp("site")).parent
    paths = folder.rglob("*.html")
    return folder, {path: BeautifulSoup(path.read_text("utf-8"), "html.parser") for path in paths}


def test_links_pictures_and_ids(pages):
    folder, pages = pages
    ids = {path: [tag["id"] for tag in page(id=True)] for path, page in pages.items()}
    for path, page in pages.items():
        assert len(ids[path]) == len(set(ids[path])), path
        assert all(image["alt"].strip() for image in page("img")), path
        loads = [tag["src"] for tag in page(src=True)]
        for address in loads + [link["href"] for link in page(["a", "link"])]:
            if re.match("https?:|data:", address):
                continue
            file, _, anchor = address.partition("#")
            target = (path.parent / file).resolve() if file else path
            assert target.is_file(), f"{path} links to {address}"
            assert not anchor or anchor in ids[target], f"{path} links to {address}"
    lessons = [f"{source.stem}.html" for source in sources.reading_order()]
    index = {link["href"] for link in pages[folder / "index.html"]("a")}
    assert {"group.html", *lessons} <= index
    ends = [link["href"] for link in pages[folder / lessons[2]].select("nav.end a")]
    assert ends == [lessons[1], lessons[3]]
    assert "index.html" in {link["href"] for link in pages[folder / "group.html"]("a")}


@pytest.mark.slow
def test_formulas_are_rendered_and_notes_for_jupyter_are_left_out(pages):
    for path, page in pages[1].items():
        strings = page.find_all(string=True)
        text = "".join(s for s in strings if not s.find_parent(["pre", "code", "script"]))
        assert "$" not in text and not re.search(r"\\[a-zA-Z]", text), path.name
        assert not re.search(r"Run All|needs?\s(all|the)\s[\w\s]*cells?\b", text), path.name
        assert "double-struck" not in str(page), f"{path.name}: browsers do not show these letters"


def test_formulas():
    assert "&#x1D53C;" in markup.mathml(r"\mathbb E[R]")
    bars = re.findall(r'form="(\w+)"', markup.mathml(r"1/|y|"))
    assert bars == ["prefix", "postfix"] == re.findall(r'form="(\w+)"', markup.mathml(r"\|s\|"))
    assert 'form="prefix"' in markup.mathml("b = -3")
    for tex in ("a - 3", r"\pi\Vert\rho"):
        assert 'form="prefix"' not in markup.mathml(tex)
