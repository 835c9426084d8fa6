"""Weight: syntax nodes of Python and words of Markdown, printed by
`python -m pytest -s tests/test_weight.py`.

A limit stands 5 to 10 % above what there is, so that an idea fits and a habit does not. Whoever
deletes lowers it; whoever needs more says in the commit what the weight buys."""

import ast
import re
from pathlib import Path

from conftest import ROOT

MOST = {  # syntax nodes
    "algorithms": 10_900,
    "toy_env": 12_300,
    "loaded by grpo.py": 10_900,
    "lessons": 110_000,
    "tests": 64_000,
}
MOST_WORDS = 20_000


def loaded_by(path: Path, loaded: set[Path]) -> set[Path]:
    """`loaded`, the script or module, and the files of toy_env that it imports."""
    loaded = loaded | {path}
    for other in set(ROOT.glob("toy_env/*.py")) - loaded:
        if re.search(rf"from toy_env(\.| import .*\b){other.stem}\b", path.read_text("utf-8")):
            loaded = loaded_by(other, loaded)
    return loaded


def test_weight():
    files = {name: set((ROOT / name).rglob("*.py")) for name in MOST}
    files["loaded by grpo.py"] = loaded_by(ROOT / "algorithms/grpo.py", set())
    heavy = set()
    for name, most in MOST.items():
        sources = [path.read_text("utf-8") for path in files[name]]
        nodes = sum(len([*ast.walk(ast.parse(source))]) for source in sources)
        print(f"{nodes:8,} nodes of at most {most:8,}  {name}")
        heavy |= {name} if nodes > most else set()
    assert not heavy, "replace something, or say in the commit what the weight buys"


def test_words():
    pages = [page for name in MOST for page in (ROOT / name).rglob("*.md")]
    words = [len(page.read_text("utf-8").split()) for page in [*pages, *ROOT.glob("*.md")]]
    print(f"{sum(words):8,} words of at most {MOST_WORDS:,}, {max(words):,} on the longest page")
    assert sum(words) <= MOST_WORDS and max(words) <= 3000
