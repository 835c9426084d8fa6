"""The page ladder.html: any two of the scripts side by side, and what each of their tags means.

It is made from algorithms/*.py, from algorithms/TAGS.md, which has a row for each tag, and from
algorithms/OUTGROW.md, whose rows are the options in TRL and verl that a row of TAGS.md names.
"""

import json
import re
from difflib import SequenceMatcher
from itertools import permutations
from pathlib import Path

from lessons.site.markup import ROOM, Renderer, highlighted, page

SCRIPTS = ("reinforce", "ppo", "grpo", "dr_grpo", "dapo", "rloo", "maxrl", "gspo", "cispo")
TAG = re.compile(r"\[([A-Z][\w. ]*: [^\]]+)\]")
CODE = re.compile(r"^(@dataclass|class |def )", re.MULTILINE)  # begins after docstring and imports
ENTRY = """**[{tag}]** {equation} ([symbols](SHEET.md)). Paper: {paper}. Seen in {seen in}
([metrics](../toy_env/README.md#glossary-of-metrics)). Lesson {lesson}.

{options}

{defaults} [How each option was checked](OUTGROW.md#the-options)"""


def table_rows(text: str) -> list[dict[str, str]]:
    """The rows of the Markdown tables of a text, by the heads of their columns."""
    rows: list[dict[str, str]] = []
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        head, _, *body = (
            [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
        )
        rows += [dict(zip(head, cells)) for cells in body]
    return rows


def options(outgrow: str) -> dict[str, str]:
    """The rows of OUTGROW.md as items of a list, by script and name, such as "grpo: advantage",
    without the marks that say how they were checked."""
    text = re.sub(r" (?:[SPVE]|\*src\*)(?=[ ,;|])", "", outgrow)
    return {
        f"{script}: {row['']}": f"- *{script}, {row['']}.* TRL: {row['TRL'] or 'none'}. verl: {row['verl']}."
        for script, section in re.findall(r"^### (.+)\n((?:(?!##).*\n)*)", text, flags=re.MULTILINE)
        for row in table_rows(section)
    }


def tags(root: Path) -> dict[str, str]:
    """By tag, what the page says of it, as Markdown with links from algorithms/."""
    outgrow = (root / "algorithms/OUTGROW.md").read_text(encoding="utf-8")
    known, defaults = (
        options(outgrow),
        re.search(r"^Without these options (?:.+\n)+", outgrow, flags=re.MULTILINE)[0],
    )
    rows = table_rows((root / "algorithms/TAGS.md").read_text(encoding="utf-8"))
    return {
        row["tag"]: ENTRY.format(
            **row,
            options="\n".join(known[name] for name in row["TRL and verl"].split("; ")),
            defaults=defaults.strip(),
        )
        for row in rows
    }


def changes(a: str, b: str) -> list[list[tuple[str, int, int, int, int]]]:
    """The changes from one script to another, as difflib gives them: of docstring and imports, and
    of the code."""
    starts, lines = (
        [text[: CODE.search(text).start()].count("\n") for text in (a, b)],
        (a.splitlines(), b.splitlines()),
    )
    heads, code = (
        [of[:start] for of, start in zip(lines, starts)],
        [of[start:] for of, start in zip(lines, starts)],
    )
    of_heads, of_code = (
        SequenceMatcher(None, *pair, autojunk=False).get_opcodes() for pair in (heads, code)
    )
    m, n = starts
    return [
        of_heads,
        [
            (kind, start + m, end + m, to + n, to_end + n)
            for kind, start, end, to, to_end in of_code
        ],
    ]


def ladder(root: Path, linked: set[str]) -> str:
    """The page. Adds what it links to, as a renderer does."""
    texts = {name: (root / f"algorithms/{name}.py").read_text(encoding="utf-8") for name in SCRIPTS}
    shown = {}
    for name, text in texts.items():
        lines = re.search("<code>(.*)</code>", highlighted(text), flags=re.DOTALL)[1].split("\n")
        shown[name] = [TAG.sub(r'<button data-tag="\1">[\1]</button>', line) for line in lines]
    data = {
        "scripts": shown,
        "changes": {f"{a}-{b}": changes(texts[a], texts[b]) for a, b in permutations(SCRIPTS, 2)},
        "tags": {
            tag: Renderer("algorithms/TAGS.md", linked, "ladder.html").to_html(text)
            for tag, text in tags(root).items()
        },
    }
    body = (ROOM / "ladder.html").read_text(encoding="utf-8").format(
        choices="".join(f"<option>{name}</option>" for name in SCRIPTS),
        data=json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/"),
    )  # fmt: skip
    return page("ladder.html", "The ladder: any two scripts side by side", body, script="ladder.js")
