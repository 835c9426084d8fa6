"""Weight in syntax nodes, printed by `python -m pytest -s tests/test_weight.py`. (The linter sees
to lines of 100 columns.) A limit moves with what it buys. After the diet (9,000, 11,000, 70,000 and
9,500): the tenth script took 1,000 nodes; what the folders of real models hold (ends of a turn,
adapters, paths, silent starts) 300; the tests of both, of a real model, of other programs' logs, of
the page's strip and switches and of wrong answers 6,000; of what the benchmark has TRL read 100."""

import ast
import re
from pathlib import Path

from conftest import ROOT

MOST = {"algorithms": 10_000, "toy_env": 11_300, "tests": 76_600, "loaded by grpo.py": 9_800}


def loaded_by(path: Path, loaded: set[Path]) -> set[Path]:
    """`loaded`, the script or module, and the files of toy_env that it imports."""
    loaded = loaded | {path}
    for other in set(ROOT.glob("toy_env/*.py")) - loaded:
        if re.search(rf"from toy_env(\.| import .*\b){other.stem}\b", path.read_text("utf-8")):
            loaded = loaded_by(other, loaded)
    return loaded


def test_weight():
    folders = ("algorithms", "toy_env", "lessons", "tests")
    files = {name: set((ROOT / name).rglob("*.py")) for name in folders}
    files["loaded by grpo.py"] = loaded_by(ROOT / "algorithms/grpo.py", set())
    nodes = {}
    for name, paths in files.items():
        nodes[name] = sum(len([*ast.walk(ast.parse(path.read_text("utf-8")))]) for path in paths)
        print(f"{nodes[name]:8,} {name}")
    assert all(nodes[name] <= most for name, most in MOST.items())
    assert len(files["toy_env"]) <= 13
