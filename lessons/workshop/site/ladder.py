"""The page ladder.html: any two of the scripts side by side, and what each of their tags means.

It is made from algorithms/*.py, from algorithms/TAGS.md, which has a row for each tag, and from
algorithms/OUTGROW.md, whose rows are the options in TRL and verl that a row of TAGS.md names.
"""

import ast
import json
import re
from difflib import SequenceMatcher
from itertools import product
from pathlib import Path

from lessons.workshop.site.markup import Renderer, colored, filled, page

SCRIPTS = (
    "reinforce",
    "ppo",
    "grpo",
    "dr_grpo",
    "dapo",
    "rloo",
    "maxrl",
    "batch_sigma",
    "gspo",
    "cispo",
)
TAG = re.compile(r"\[([A-Z][\w. ]*: [^\]]+)\]")
ENTRY = """**[{tag}]** {why}

{equation} ([symbols](SHEET.md)). Paper: {paper}. Seen in {seen in}
([metrics](../toy_env/README.md#glossary-of-metrics)). Lesson {lesson}."""
OPTIONS = """{options}

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
    text, items = re.sub(r" (?:[SPVE]|\*src\*)(?=[ ,;|])", "", outgrow), {}
    for script, section in re.findall(r"^### (.+)\n((?:(?!##).*\n)*)", text, flags=re.MULTILINE):
        for row in table_rows(section):
            name, trl, verl = row[""], row["TRL"] or "none", row["verl"]
            items[f"{script}: {name}"] = f"- *{script}, {name}.* TRL: {trl}. verl: {verl}."
    return items


def tags(root: Path) -> dict[str, tuple[str, str, str]]:
    """Why each tag's change was made, what it means, and its options, as Markdown with links from
    algorithms/."""
    outgrow = (root / "algorithms/OUTGROW.md").read_text(encoding="utf-8")
    defaults = re.search(r"^Without these options (?:.+\n)+", outgrow, flags=re.MULTILINE)[0]
    known, entries = options(outgrow), {}
    for row in table_rows((root / "algorithms/TAGS.md").read_text(encoding="utf-8")):
        items = "\n".join(known[name] for name in row["TRL and verl"].split("; "))
        choices = OPTIONS.format(options=items, defaults=defaults.strip())
        entries[row["tag"]] = row["why"], ENTRY.format(**row), choices
    return entries


def ladder(root: Path, linked: set[str]) -> str:
    """The page. Adds what it links to, as a renderer does.

    Of a script it has the docstring and the code that follows the imports, with its lines as HTML;
    the changes between two scripts are those that difflib finds.
    """
    codes, data = {}, {"scripts": {}, "changes": {}, "about": {}, "tags": {}}
    for name in SCRIPTS:
        text = (root / f"algorithms/{name}.py").read_text(encoding="utf-8")
        data["about"][name] = ast.get_docstring(ast.parse(text))
        code = text[text.index("@dataclass") :]
        codes[name] = code.splitlines()
        shown = TAG.sub(r'<button data-tag="\1">[\1]</button>', colored(code))
        data["scripts"][name] = shown.split("\n")
    for a, b in product(SCRIPTS, repeat=2):
        matcher = SequenceMatcher(None, codes[a], codes[b], autojunk=False)
        data["changes"][f"{a}-{b}"] = matcher.get_opcodes()
    for tag, texts in tags(root).items():
        renderer = Renderer("algorithms/TAGS.md", linked, "ladder.html")
        data["tags"][tag] = [renderer.to_html(text) for text in texts]
    data = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    body = filled("ladder.html", scripts=SCRIPTS, data=data)
    return page("ladder.html", "The ladder: any two scripts side by side", body, script="ladder.js")
