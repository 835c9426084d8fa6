"""Weight: syntax nodes of Python and words of Markdown, printed by
`python -m pytest -s tests/test_weight.py`.

A limit stands 5 to 10 % above what there is, so that an idea fits and a habit does not. Whoever
deletes lowers it; whoever needs more says in the commit what the weight buys."""

import ast

from conftest import ROOT

MOST = {"algorithms": 11_100, "toy_env": 13_800, "lessons": 110_000, "tests": 63_500}  # nodes
MOST_WORDS = 21_000


def test_weight():
    heavy = []
    for name, most in MOST.items():
        sources = [path.read_text("utf-8") for path in (ROOT / name).rglob("*.py")]
        nodes = sum(len([*ast.walk(ast.parse(source))]) for source in sources)
        print(f"{nodes:8,} nodes of at most {most:8,}  {name}")
        heavy += [name] if nodes > most else []
    assert not heavy, "replace something, or say in the commit what the weight buys"


def test_words():
    pages = [page for name in MOST for page in (ROOT / name).rglob("*.md")]
    words = [len(page.read_text("utf-8").split()) for page in [*pages, *ROOT.glob("*.md")]]
    print(f"{sum(words):8,} words of at most {MOST_WORDS:,}, {max(words):,} on the longest page")
    assert sum(words) <= MOST_WORDS and max(words) <= 3000
