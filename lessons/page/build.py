"""Write lessons/group.html, the page that trains the real model in a browser, from the files beside
this one.

    python lessons/page/build.py

The page is one file that requests nothing from a network. It holds the weights of the shipped base
model in float32.
"""

import ast
import base64
import inspect
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from algorithms import batch_sigma, cispo, dapo, dr_grpo, grpo, gspo, maxrl, ppo, reinforce, rloo
from lessons.clinic import signs
from lessons.page import product
from lessons.published import ADDRESS, REPOSITORY
from toy_env import arithmetic
from toy_env.model import load_policy

SOURCES = Path(__file__).parent
ROOT = SOURCES.parents[1]
PAGE = SOURCES.parent / "group.html"
# Each uses names of those before it: what workers run too, and the rest of the page.
ENGINE = ("product", "model", "arithmetic", "rollout", "algorithms", "training")
MODULES = ("lanes", "magnifier", "strip", "page")
SCRIPTS = {
    "REINFORCE": reinforce, "PPO": ppo, "GRPO": grpo, "Dr. GRPO": dr_grpo, "DAPO": dapo,
    "RLOO": rloo, "MaxRL": maxrl, "Batch sigma": batch_sigma, "GSPO": gspo, "CISPO": cispo,
}  # fmt: skip
# The lines that a switch of lanes.js changes, and two kinds that none does
SWITCHES = {
    "kl": r"\bkl\b|kl_coef|log_u", "higher": r"ratio\.clamp", "length": r"^return .*per_token",
    "critic": r"Critic\(", "rewards": r"^rewards = 2|\[DAPO: overlong\]",
}  # fmt: skip
# An entry of algorithms/README.md: **[tag]** why<br> equation; paper; lesson
ENTRY = re.compile(r"^- \*\*\[(.+?)\]\*\* ((?:.|\n  )+?)<br>", re.MULTILINE)
REST = {"train": "replace", "compute_advantages": "sigma"}  # whose other lines a switch has
HELD_OUT = 32  # held-out problems of each level, for measuring accuracy
DESCRIPTION = (
    "A real language model trains by GRPO, Dr. GRPO, DAPO and seven more algorithms, "
    "in your browser: step by step, "
    "or two algorithms side by side, with the push on every token."
)
PUBLISHED = """<meta property="og:url" content="{0}group.html">
<meta property="og:image" content="{0}lessons/experiments/figures/push.png">
<meta name="twitter:card" content="summary_large_image">"""
# The model's tensors in the order in which the page holds them
TENSORS = ["model.embed_tokens.weight", "model.norm.weight"]
for layer in range(3):
    parts = [f"self_attn.{name}_proj" for name in "qkvo"] + [
        f"mlp.{name}_proj" for name in ("gate", "up", "down")
    ]
    parts += ["input_layernorm", "post_attention_layernorm"]
    TENSORS += [f"model.layers.{layer}.{part}.weight" for part in parts]


def base_weights() -> str:
    """The base model's weights as the page holds them: float32 in base64."""
    weights = load_policy("base")[0].state_dict()
    return base64.b64encode(b"".join(weights[name].numpy().tobytes() for name in TENSORS)).decode()


def code_of(function: Callable) -> list[str]:
    """The lines of a function's body, after its docstring."""
    source = inspect.getsource(function)
    start = ast.parse(source).body[0].body[0].end_lineno
    return [line[4:] for line in source.splitlines()[start:] if line]


def code_of_script(script: ModuleType) -> dict[str, list[str]]:
    """The lines that make a script its algorithm, by the switch that changes them, or else by
    function. Of `train` they are those that sample, and those with a tag before them."""
    step = r"# 1\. .*?\n(.*?)\n\n +# 2\. "
    source = inspect.getsource(script.train)
    lines = textwrap.dedent(re.search(step, source, re.DOTALL)[1]).splitlines()
    functions = {"train": re.findall(r"^ +(.*# \[.*)", source.split("# 1. ")[0], re.M) + lines}
    for name in ("compute_advantages", "sequence_ratio", "policy_loss"):
        if hasattr(script, name):
            functions[name] = code_of(getattr(script, name))
    code = {}
    for name, lines in functions.items():
        for line in lines:
            switches = (key for key, pattern in SWITCHES.items() if re.search(pattern, line))
            key = next(switches, REST.get(name, name))
            code.setdefault(key, []).append(line)
    return code


def patches() -> dict[str, dict]:
    """For each patch of the clinic that page.html offers: why it hurts, and the lines that it
    removes and those that it adds."""
    page, found = (SOURCES / "page.html").read_text(encoding="utf-8"), {}
    for name, header in signs.patches().items():
        if f'value="{name}"' in page:
            text = (signs.HERE / f"{name}.diff").read_text(encoding="utf-8")
            changed = (re.findall(rf"^[{mark}](?![{mark}]{{2}})(.*)", text, re.M) for mark in "-+")
            lines = [[line.strip() for line in lines] for lines in changed]
            found[name] = {"why": header["Mathematics"], "lines": lines}
    return found


def reasons() -> dict[str, str]:
    """Why each tag's change was made, from algorithms/README.md, as plain text."""
    text = (ROOT / "algorithms/README.md").read_text(encoding="utf-8")
    return {tag: " ".join(why.split()) for tag, why in ENTRY.findall(text)}


def script_of(names: tuple[str, ...]) -> str:
    """Files as one script: a page opened by a double click may not import."""
    files = "\n".join((SOURCES / f"{name}.js").read_text(encoding="utf-8") for name in names)
    return files.replace("{{product}}", base64.b64encode(product.binary()).decode())


def whole_page() -> str:
    """The text of lessons/group.html."""
    held_out = arithmetic.held_out_problems(HELD_OUT)
    data = {
        "CODE": {name: code_of_script(script) for name, script in SCRIPTS.items()},
        "HELD_OUT": [problem.expression for problem in held_out],
        "PATCHES": patches(),
        "REASONS": reasons(),
    }
    parts = {
        "description": DESCRIPTION,
        "published": PUBLISHED.format(ADDRESS) if ADDRESS else "",
        "repository": f' (<a href="{REPOSITORY}">repository</a>)' if REPOSITORY else "",
        "style": (SOURCES / "style.css").read_text(encoding="utf-8"),
        "data": json.dumps(data, ensure_ascii=False),
        "engine": script_of(ENGINE),
        "script": script_of(MODULES),
        "weights": base_weights(),
    }
    page = (SOURCES / "page.html").read_text(encoding="utf-8")
    if ADDRESS:  # without it, only lessons/workshop/site/website.py makes links to the lessons
        page = re.sub(r'data-lesson="(\w+)"', rf'href="{ADDRESS}\1.html"', page)
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]].strip(), page)


if __name__ == "__main__":
    PAGE.write_text(whole_page(), encoding="utf-8")
    print(f"{PAGE}: {PAGE.stat().st_size / 1e6:.2f} MB")
