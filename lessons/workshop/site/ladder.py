"""The page ladder.html: any two of the scripts side by side, what each of their tags means, and
what changes between their options in TRL and verl.

It is made from algorithms/*.py, from algorithms/README.md, which explains each tag, and from
algorithms/options.json.
"""

import ast
import json
import re
from difflib import SequenceMatcher
from itertools import product
from pathlib import Path

from lessons.workshop.site.markup import Renderer, colored, filled, page

TAG = re.compile(r"\[([A-Z][\w. ]*: [^\]]+)\]")
# An entry of algorithms/README.md: **[tag]** why<br> equation; paper; lesson
ENTRY = re.compile(r"^- \*\*\[(.+?)\]\*\* ((?:.|\n  )+?)<br>((?:\n  .+)+)", re.MULTILINE)


def tags(root: Path) -> dict[str, tuple[str, str]]:
    """By tag, why the change was made, and its equation, paper and lesson, as Markdown with links
    from algorithms/."""
    text = (root / "algorithms/README.md").read_text(encoding="utf-8")
    return {
        tag: tuple(" ".join(part.split()) for part in rest) for tag, *rest in ENTRY.findall(text)
    }


def ladder(root: Path, linked: set[str]) -> str:
    """The page. Adds what it links to, as a renderer does.

    Of a script it has the docstring and the code that follows the imports, with its lines as HTML;
    the changes between two scripts are those that difflib finds.
    """
    codes, data = {}, {"scripts": {}, "changes": {}, "about": {}, "tags": {}}
    options = json.loads((root / "algorithms/options.json").read_text(encoding="utf-8"))
    data["options"] = options
    scripts = [name for name in options if name != "all scripts"]
    for name in scripts:
        text = (root / f"algorithms/{name}.py").read_text(encoding="utf-8")
        data["about"][name] = ast.get_docstring(ast.parse(text))
        code = text[text.index("@dataclass") :]
        codes[name] = code.splitlines()
        shown = TAG.sub(r'<button data-tag="\1">[\1]</button>', colored(code))
        data["scripts"][name] = shown.split("\n")
    for a, b in product(scripts, repeat=2):
        matcher = SequenceMatcher(None, codes[a], codes[b], autojunk=False)
        data["changes"][f"{a}-{b}"] = matcher.get_opcodes()
    for tag, texts in tags(root).items():
        renderer = Renderer("algorithms/README.md", linked, "ladder.html")
        data["tags"][tag] = [re.sub("</?p>", "", renderer.to_html(text)) for text in texts]
    data = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    body = filled("ladder.html", scripts=scripts, data=data)
    return page("ladder.html", "The ladder: any two scripts side by side", body, script="ladder.js")
