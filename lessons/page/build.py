"""Write lessons/group.html, the page that runs the real model in a browser, from the files beside this one.

    python lessons/page/build.py            from its sources, with the weights that the page already holds
    python lessons/page/build.py --train    train the policies first, in runs/page (about six minutes)

The page is one file that requests nothing from a network. It holds the weights of the shipped base model and, for each
trained policy, the difference from them in 8 bits per weight.
"""

from toy_env import UsageError, take_over_ctrl_c

if __name__ == "__main__":
    take_over_ctrl_c()

import ast
import base64
import difflib
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

from algorithms import dapo, dr_grpo, grpo
from toy_env.cli import run_main
from toy_env.model import load_policy

SOURCES = Path(__file__).parent
ROOT = SOURCES.parents[1]
PAGE = SOURCES.parent / "group.html"
# In the order in which they import one another: what workers run as well, and the rest of the page.
ENGINE, MODULES = ("model", "arithmetic", "rollout", "algorithms", "training"), ("closed", "pictures", "page")
BASE = "base model"
RUNS = {  # name on the page: script, steps
    "GRPO, after 20 of 60 steps": ("grpo", 20),
    "REINFORCE, after 60 steps": ("reinforce", 60),
    "PPO, after 60 steps": ("ppo", 60),
    "GRPO, after 60 steps": ("grpo", 60),
    "Dr. GRPO, after 60 steps": ("dr_grpo", 60),
    "DAPO, after 60 steps": ("dapo", 60),
}
# The model's tensors in the order of the page.
TENSORS = ["model.embed_tokens.weight", "model.norm.weight"]
for layer in range(3):
    parts = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    parts += ["input_layernorm", "post_attention_layernorm"]
    TENSORS += [f"model.layers.{layer}.{part}.weight" for part in parts]


@dataclass
class Config:
    train: bool = False  # train the policies that runs/page does not hold yet, and pack their weights


# ---------------------------------------------------------------------- weights


def rows_of(policy) -> list[np.ndarray]:
    """The tensors of a policy as (rows, columns) in float32."""
    weights = policy.state_dict()
    return [np.atleast_2d(weights[name].numpy()) for name in TENSORS]


def pack(base: list[np.ndarray], others: list[list[np.ndarray]]) -> bytes:
    """The float32 weights of the base; for each other policy one float32 scale per row and 8 bits per weight."""
    out = [tensor.tobytes() for tensor in base]
    for other in others:
        changes = [b - a for a, b in zip(base, other)]
        scales = [np.maximum(np.abs(change).max(axis=1, keepdims=True) / 127, 1e-12) for change in changes]
        out += [scale.astype(np.float32).tobytes() for scale in scales]
        out += [np.rint(change / scale).astype(np.int8).tobytes() for change, scale in zip(changes, scales)]
    return b"".join(out)


def trained() -> bytes:
    """Train what runs/page does not hold yet, each script with its default settings, and pack all policies."""
    policies = []
    for script, steps in RUNS.values():
        folder = ROOT / "runs/page" / f"{script}-{steps}"
        if not (folder / "results.json").exists():
            module = import_module(f"algorithms.{script}")
            module.train(module.Config(steps=steps, run_dir=str(folder), resume=folder.exists()))
        policies.append(rows_of(load_policy(str(folder / "checkpoint"))[0]))
    return pack(rows_of(load_policy("base")[0]), policies)


def part_of(page: str, name: str) -> str:
    """The content of a page's script `name`: "weights", packed and in base64, or "policy-names". Empty if the page is
    cut off before its end."""
    match = re.search(rf'<script type="[^"]*" id="{name}">(.*?)</script>', page, flags=re.DOTALL)
    return match[1].strip() if match else ""


# ---------------------------------------------------------------------- code


def code_of(function: Callable) -> list[str]:
    """The lines of a function's body, without its docstring and the check of the group size."""
    source = inspect.getsource(function)
    body = ast.parse(source).body[0].body[1:]
    lines = source.splitlines()
    return [line[4:] for node in body if not isinstance(node, ast.If) or "kl_coef" in lines[node.lineno - 1]
            for line in lines[node.lineno - 1 : node.end_lineno]]  # fmt: skip


def diffs() -> dict[str, list[list[str]]]:
    """What GRPO computes, and how Dr. GRPO and DAPO differ from it: [mark, line], mark one of " ", "+", "-" and "#"."""
    sampled = [["#", "algorithms/dapo.py, train"], *(["+", line] for line in training_step())]
    shown = {"GRPO": [], "Dr. GRPO": [], "DAPO": sampled}
    for lines, script in zip(shown.values(), (grpo, dr_grpo, dapo)):
        for part in ("compute_advantages", "policy_loss"):
            before, after = code_of(getattr(grpo, part)), code_of(getattr(script, part))
            lines.append(["#", f"{script.__name__.replace('.', '/')}.py, {part}"])
            if script is grpo:
                lit = ("# [GRPO: / sigma]", "# [GRPO: / length]", "/ sigma)")
                lines += [["+" if line.endswith(lit) else " ", line] for line in after]
            else:
                diff = list(difflib.unified_diff(before, after, n=99, lineterm=""))[3:]
                lines += [[line[0], line[1:]] for line in diff or [f" {line}" for line in after]]
    return shown


def training_step() -> list[str]:
    """The lines of DAPO's training step that draw until enough groups are mixed, and compute the rewards."""
    step = inspect.getsource(dapo.train)
    parts = re.findall(r"^ +while len.*?\n(?= +rollout = )|^ +rewards = .*?\n", step, flags=re.DOTALL | re.MULTILINE)
    return inspect.cleandoc("\n" + "".join(parts)).splitlines()


# ---------------------------------------------------------------------- the page


def script_of(names: tuple[str, ...]) -> str:
    """Modules as one: a page opened by a double click may not import, so imports and exports are removed."""
    modules = "\n".join((SOURCES / f"{name}.js").read_text(encoding="utf-8") for name in names)
    return re.sub(r"^import .*?;\n|^export ", "", modules, flags=re.MULTILINE | re.DOTALL)


def whole_page(weights: str) -> str:
    """The whole page around weights in base64."""
    parts = {
        "style": (SOURCES / "style.css").read_text(encoding="utf-8"),
        "code": json.dumps(diffs(), ensure_ascii=False),
        "policies": json.dumps([BASE, *RUNS]),
        "engine": script_of(ENGINE),
        "script": script_of(MODULES),
        "weights": weights,
    }
    page = (SOURCES / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]].strip(), page)


def main(config: Config) -> None:
    page = PAGE.read_text(encoding="utf-8", errors="replace") if PAGE.exists() else ""
    if config.train:
        weights = base64.b64encode(trained()).decode()
    elif (weights := part_of(page, "weights")) == "" or part_of(page, "policy-names") != json.dumps([BASE, *RUNS]):
        raise UsageError(f"{PAGE} does not hold the weights of {', '.join([BASE, *RUNS])}; restore it, or add --train")
    PAGE.write_text(whole_page(weights), encoding="utf-8")
    print(f"{PAGE}: {PAGE.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    run_main(Config, main, __doc__)
