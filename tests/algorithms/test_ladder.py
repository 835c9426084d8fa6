"""The ladder: each script differs from its neighbour by as little as its idea allows, and in the
same places.

`python tests/algorithms/test_ladder.py` prints the number of changed lines for each pair, and
writes them into algorithms/README.md and the diff of Dr. GRPO into README.md.
"""

import ast
import difflib
import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LADDER = {
    "reinforce": "REINFORCE",
    "ppo": "PPO",
    "grpo": "GRPO",
    "dr_grpo": "Dr. GRPO",
    "dapo": "DAPO",
}
SIDE_RUNGS = {
    "rloo": "RLOO",
    "maxrl": "MaxRL",
    "batch_sigma": "Batch sigma",
    "gspo": "GSPO",
    "cispo": "CISPO",
}
SCRIPTS = LADDER | SIDE_RUNGS
BUDGETS = {  # changed code lines, added and removed together
    ("reinforce", "ppo"): 128,
    ("ppo", "grpo"): 100,
    ("grpo", "dr_grpo"): 6,
    ("dr_grpo", "dapo"): 54,
    ("grpo", "dapo"): 50,
    ("dr_grpo", "rloo"): 8,
    ("dr_grpo", "maxrl"): 12,
    ("dr_grpo", "batch_sigma"): 4,
    ("grpo", "gspo"): 15,
    ("dapo", "cispo"): 15,
}
NEIGHBOURS = [pair for pair in BUDGETS if pair != ("grpo", "dapo")]
PARTS = ["Config", "collect", "compute_advantages", "policy_loss", "train"]
OWN_PARTS = {
    "ppo": ["Critic", "value_loss", "explained_variance"],
    "dapo": ["overlong_penalty", "is_mixed"],
    "gspo": ["sequence_ratio"],
    "cispo": ["overlong_penalty", "is_mixed"],
}
FRONT, PAGE = ROOT / "README.md", ROOT / "algorithms/README.md"
COMMAND = "python tests/algorithms/test_ladder.py"


def source(name: str) -> str:
    return (ROOT / "algorithms" / f"{name}.py").read_text("utf-8")


def code_lines(text: str, comments: bool = False) -> list[str]:
    """The lines of a script without docstrings and blank lines; with `comments`, those at the end
    of a line stay."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    if not comments:
        lines = [line.split("  # ")[0] for line in lines]
    return [line for line in lines if line.strip() and not line.strip().startswith("#")]


def changes(before: str, after: str) -> tuple[int, int]:
    """Added and removed code lines from one script to another."""
    diff = difflib.unified_diff(
        code_lines(source(before)), code_lines(source(after)), n=0, lineterm=""
    )
    signs = [line[0] for line in diff if not line.startswith(("+++", "---", "@@"))]
    return signs.count("+"), signs.count("-")


def shown_diff(before: str, after: str) -> str:
    """The diff of the code of two scripts as Markdown, each hunk under the name of the part that it
    is in."""
    old, new = (code_lines(source(name), comments=True) for name in (before, after))
    lines = [f"--- algorithms/{before}.py", f"+++ algorithms/{after}.py"]
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(1):
        heads = [line for line in new[: group[0][3] + 2] if re.match(r"(def|class) ", line)]
        lines.append(f"@@ {re.split(r'[(:]', heads[-1])[0] if heads else 'imports'} @@")
        hunk = []
        for tag, a, b, c, d in group:
            if tag == "equal":  # not the head of the next part
                hunk += [f" {line}" for line in old[a:b] if line.startswith(" ")]
            else:
                hunk += [f"-{line}" for line in old[a:b]] + [f"+{line}" for line in new[c:d]]
        indent = min(len(re.match(r".( *)", line)[1]) for line in hunk)
        lines += [line[0] + line[1 + indent :] for line in hunk]
    return "```diff\n" + "\n".join(lines) + "\n```"


def counts(before: str, after: str) -> str:
    """The changed code lines of a pair, as algorithms/README.md states them."""
    added, removed = changes(before, after)
    lines = "line" if added == 1 else "lines"
    return f"From `{before}.py` to `{after}.py`: {added} {lines} added, {removed} removed."


def with_diff(front: str) -> str:
    """README.md with the diff of Dr. GRPO between its two comments."""
    start, end = "<!-- grpo-dr_grpo -->", "<!-- /grpo-dr_grpo -->"
    head, rest = front.split(start)
    return f"{head}{start}\n{shown_diff('grpo', 'dr_grpo')}\n{end}{rest.split(end)[1]}"


def with_counts(page: str) -> str:
    """algorithms/README.md with the changed lines of each pair."""
    for before, after in BUDGETS:
        said = rf"From `{before}\.py` to `{after}\.py`: \d+ lines? added, \d+ removed\."
        page = re.sub(said, counts(before, after), page)
    return page


def tags(text: str) -> list[tuple[str, str]]:
    """(script, label) of each tag in a text: "# [GRPO: / sigma]" has ("GRPO", "/ sigma")."""
    return re.findall(r"\[([A-Z][\w. ]*): ([^\]]+)\]", text)


def settings(name: str) -> list[tuple[str, str]]:
    """The name and the help text of each field of a script's Config."""
    fields = source(name).split("@dataclass")[1].split("\ndef ")[0]
    return re.findall(r"^    (\w+): [^=]+ = .*?  # (.*)$", fields, flags=re.MULTILINE)


def test_every_rung_is_known():
    for path in (ROOT / "algorithms").glob("*.py"):
        is_rung = "\nAgainst " in path.read_text("utf-8")
        known = path.stem in SCRIPTS and path.stem in {after for _, after in BUDGETS}
        assert known or not is_rung, f"{path.name}: add it to SIDE_RUNGS and BUDGETS in this file"


@pytest.mark.parametrize("pair", BUDGETS)
def test_every_step_of_the_ladder_keeps_to_its_budget(pair):
    assert sum(changes(*pair)) <= BUDGETS[pair], counts(*pair)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_has_the_same_parts_in_the_same_order(name):
    parts = re.findall(r"^(?:def|class) (\w+)", source(name), flags=re.MULTILINE)
    own = OWN_PARTS.get(name, [])
    assert [part for part in parts if part not in own] == PARTS and {*own} <= {*parts}


@pytest.mark.parametrize("pair", NEIGHBOURS)
def test_what_a_tag_calls_new_is_in_the_diff_and_in_the_docstring(pair):
    """A line tagged with the file's own name differs from the predecessor, and the docstring lists
    its label."""
    before, after = pair
    docstring = ast.get_docstring(ast.parse(source(after)))
    assert f"Against {before}.py" in docstring, f"say so in the docstring of {after}.py"
    listed = re.findall(r"^    ([+-]) (.+)", docstring, flags=re.MULTILINE)
    listed = tuple(("no " if sign == "-" else "") + text for sign, text in listed)
    old = {line.split("  #")[0] for line in source(before).splitlines()}
    assert f"[{SCRIPTS[after]}: " in source(after), (
        f"{after}.py: tag what is new, # [{SCRIPTS[after]}: its name]"
    )
    for line, below in pairwise(source(after).splitlines()):
        code = below if line.strip().startswith("#") else line  # a comment speaks of the line below
        for title, label in tags(line):
            if title == SCRIPTS[after]:
                assert code.split("  #")[0] not in old, f"[{label}] is not new: {code}"
                assert any(text.startswith(label) for text in listed), (
                    f"the docstring lacks {label!r}"
                )


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_tag_names_the_script_where_the_idea_is_from(name):
    """Of a line from another script, which stands there too: one further down the ladder, and never
    on a side rung."""
    homes = {title: script for script, title in SCRIPTS.items()}
    order, predecessors = list(LADDER), {after: before for before, after in NEIGHBOURS}
    last = name
    while last not in LADDER:  # the predecessor of a side rung may be one
        last = predecessors[last]
    for title, label in tags(source(name)):
        home = homes[title]
        assert home == name or order.index(home) <= order.index(last), f"{title}: {label}"
        assert f"[{title}: {label}]" in source(home)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_setting_has_one_name_one_place_and_one_help_text(name):
    """Settings that a script shares with grpo.py stand in the same order and say the same thing."""
    shared = dict(settings(name)).keys() & dict(settings("grpo")).keys()
    ours, theirs = ([f for f in settings(n) if f[0] in shared] for n in (name, "grpo"))
    assert ours == theirs != []


def test_nothing_below_the_scripts_knows_an_algorithm():
    """toy_env names no script and no setting of one script, outside docstrings and messages."""
    names = "grpo|dapo|ppo|rloo|maxrl|batch_sigma|gspo|cispo"
    fields = "clip_eps|kl_coef|gae_lambda|overlong|max_draws|critic|max_ratio"
    for path in (ROOT / "toy_env").glob("*.py"):
        for line in code_lines(path.read_text("utf-8")):
            assert "SystemExit" in line or not re.search(rf"\b({names}|{fields})", line), path


def test_the_readme_shows_the_diff_of_dr_grpo():
    front = FRONT.read_text("utf-8")
    assert with_diff(front) == front, f"run {COMMAND}"


@pytest.mark.parametrize("pair", BUDGETS)
def test_the_page_of_the_ladder_counts_the_changed_lines(pair):
    stated = counts(*pair) in PAGE.read_text("utf-8")
    assert stated, f"{PAGE} should say {counts(*pair)!r}; write it there, or run {COMMAND}"


if __name__ == "__main__":
    for before, after in BUDGETS:
        print(counts(before, after), "Budget:", BUDGETS[before, after])
    FRONT.write_text(with_diff(FRONT.read_text("utf-8")), "utf-8")
    PAGE.write_text(with_counts(PAGE.read_text("utf-8")), "utf-8")
