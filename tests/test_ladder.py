"""The ladder: each script differs from its neighbour by as little as its idea allows, and in the same places.

`python tests/test_ladder.py` prints the counts that the README shows.
"""

import ast
import difflib
import io
import tokenize
from pathlib import Path

ALGORITHMS = Path(__file__).parent.parent / "algorithms"
BUDGETS = {  # changed code lines, added and removed together
    ("grpo", "dr_grpo"): 8,
    ("dr_grpo", "dapo"): 60,
    ("grpo", "dapo"): 60,
}
NAMES = ["reinforce", "ppo", "grpo", "dr_grpo", "dapo"]


def code_lines(source: str) -> list[str]:
    """The lines of a script without docstrings, comments and blank lines."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            for row in range(node.body[0].lineno, node.body[0].end_lineno + 1):
                lines[row - 1] = ""
    return [line.rstrip() for line in lines if line.strip()]


def changes(before: str, after: str) -> tuple[int, int]:
    """Added and removed code lines from one script to another."""
    a, b = (code_lines((ALGORITHMS / f"{name}.py").read_text()) for name in (before, after))
    diff = [line for line in difflib.unified_diff(a, b, n=0, lineterm="") if not line.startswith(("+++", "---", "@@"))]
    return sum(line[0] == "+" for line in diff), sum(line[0] == "-" for line in diff)


if __name__ == "__main__":
    for pair in [*zip(NAMES, NAMES[1:]), ("grpo", "dapo")]:
        print("{} -> {}: +{} -{}".format(*pair, *changes(*pair)))
