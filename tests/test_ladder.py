"""The ladder: each script differs from its neighbour by as little as its idea allows, and in the same places.

`python tests/test_ladder.py` prints the counts that the README shows.
"""

import ast
import difflib
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = ["reinforce", "ppo", "grpo", "dr_grpo", "dapo"]
BUDGETS = {  # changed code lines, added and removed together
    ("reinforce", "ppo"): 80,
    ("ppo", "grpo"): 66,
    ("grpo", "dr_grpo"): 8,
    ("dr_grpo", "dapo"): 44,
    ("grpo", "dapo"): 40,
}
OWN_PARTS = {"ppo": ["value_loss"], "dapo": ["overlong_penalty"]}
PARTS = ["Config", "compute_advantages", "policy_loss", "train", "main"]


def source(name: str) -> str:
    return (ROOT / "algorithms" / f"{name}.py").read_text()


def code_lines(text: str) -> list[str]:
    """The lines of a script without docstrings, comments and blank lines."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            first, last = node.body[0].lineno, node.body[0].end_lineno
            lines[first - 1 : last] = [""] * (last - first + 1)
    return [line.rstrip() for line in lines if line.strip()]


def changes(before: str, after: str) -> tuple[int, int]:
    """Added and removed code lines from one script to another."""
    diff = difflib.unified_diff(code_lines(source(before)), code_lines(source(after)), n=0, lineterm="")
    signs = [line[0] for line in diff if not line.startswith(("+++", "---", "@@"))]
    return signs.count("+"), signs.count("-")


def test_code_lines_are_counted_right():
    text = (
        '''"""Module."""\nx = 1  # one\n\n# alone\ndef f():\n    """Two\n    lines."""\n    return "# no comment"\n'''
    )
    assert code_lines(text) == ["x = 1", "def f():", '    return "# no comment"']


@pytest.mark.parametrize("pair", BUDGETS)
def test_every_step_of_the_ladder_keeps_to_its_budget(pair):
    assert sum(changes(*pair)) <= BUDGETS[pair], changes(*pair)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_has_the_same_parts_in_the_same_order(name):
    tree = ast.parse(source(name))
    parts = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    assert [part for part in parts if part not in OWN_PARTS.get(name, [])] == PARTS
    assert set(OWN_PARTS.get(name, [])) <= set(parts)
    numbered = re.findall(r"^        # (\d)\. (\w+)", source(name), flags=re.MULTILINE)
    assert numbered == [("1", "Sample"), ("2", "Verify"), ("3", "Judge"), ("4", "Update"), ("5", "Log")]


def test_a_setting_has_one_name_one_place_and_one_help_text():
    """Settings that two scripts share stand in the same order and say the same thing."""
    settings = {
        name: [(f.target.id, ast.unparse(f.value.keywords[-1])) for f in tree.body if isinstance(f, ast.AnnAssign)]
        for name in SCRIPTS
        for tree in [next(n for n in ast.parse(source(name)).body if isinstance(n, ast.ClassDef))]
    }
    for name in SCRIPTS[1:]:
        shared = {field for field, _ in settings["grpo"]} & {field for field, _ in settings[name]}
        ours, theirs = ([f for f in settings[n] if f[0] in shared] for n in (name, "grpo"))
        assert ours == theirs


@pytest.mark.parametrize("pair", [pair for pair in BUDGETS if pair != ("grpo", "dapo")])
def test_the_docstring_names_the_predecessor_and_lists_the_changes(pair):
    before, after = pair
    docstring = ast.get_docstring(ast.parse(source(after)))
    assert f"Against {before}.py" in docstring
    assert re.search(r"^    [+-] ", docstring, flags=re.MULTILINE)


def test_the_readme_shows_the_counts():
    readme = (ROOT / "README.md").read_text()
    for pair in BUDGETS:
        added, removed = changes(*pair)
        assert f"{pair[0]} → {pair[1]}: +{added} −{removed}" in readme


if __name__ == "__main__":
    for pair in BUDGETS:
        print("{} → {}: +{} −{}".format(*pair, *changes(*pair)))
