"""Weight: syntax nodes of Python and words of Markdown, printed by
`python -m pytest -s tests/test_weight.py`.

A limit stands 5 to 10 % above what there is, so that an idea fits and a habit does not. Whoever
deletes lowers it; whoever needs more says in the commit what the weight buys."""

import ast
import re
from pathlib import Path

from conftest import ROOT

MOST = {  # syntax nodes
    "algorithms": 11_000,
    "toy_env": 12_400,
    "loaded by grpo.py": 10_800,
    "lessons": 110_000,
    "tests": 63_000,
}
MOST_WORDS = {"all pages": 22_000, "the longest page": 3_000}


def loaded_by(path: Path, loaded: set[Path]) -> set[Path]:
    """`loaded`, the script or module, and the files of toy_env that it imports."""
    loaded = loaded | {path}
    for other in set(ROOT.glob("toy_env/*.py")) - loaded:
        if re.search(rf"from toy_env(\.| import .*\b){other.stem}\b", path.read_text("utf-8")):
            loaded = loaded_by(other, loaded)
    return loaded


def test_python():
    files = {name: set((ROOT / name).rglob("*.py")) for name in MOST if (ROOT / name).is_dir()}
    files["loaded by grpo.py"] = loaded_by(ROOT / "algorithms/grpo.py", set())
    too_heavy = []
    for name, most in MOST.items():
        sources = [path.read_text("utf-8") for path in files[name]]
        nodes = sum(sum(1 for _ in ast.walk(ast.parse(source))) for source in sources)
        print(f"{nodes:8,} nodes of at most {most:8,}  {name}")
        if nodes > most:
            too_heavy.append(name)
    assert not too_heavy, "replace something, or say in the commit what the weight buys"


def test_pages():
    folders = ("algorithms", "lessons", "tests", "toy_env")
    pages = [
        *ROOT.glob("*.md"),
        *(page for name in folders for page in (ROOT / name).rglob("*.md")),
    ]
    words = [len(page.read_text("utf-8").split()) for page in pages]
    print(f"{sum(words):8,} words on {len(words)} pages, at most {max(words):,} on one")
    assert sum(words) <= MOST_WORDS["all pages"]
    assert max(words) <= MOST_WORDS["the longest page"]
