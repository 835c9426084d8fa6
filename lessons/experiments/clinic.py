"""The clinic's runs: every bug and every harmless change of lessons/clinic, applied to a copy of the tree.

    python lessons/experiments/clinic.py              five seeds of each, and fifteen healthy runs
    python lessons/experiments/clinic.py --quick      one seed of ten steps, and four healthy runs
    python lessons/experiments/clinic.py --publish    also writes lessons/clinic/results.json and the table of its page

A run is grpo.py at its defaults, but for fewer held-out problems, in a copy of algorithms/ and toy_env/. What would
stop it, the checks of the model and of the first minibatch, is noted and passed over. The final policy is evaluated by
the code as it stands here. The band comes from ten healthy seeds; bugs, controls and five further healthy runs, which
give the rate of false alarms, have other seeds.
"""

from toy_env import take_over_ctrl_c

if __name__ == "__main__":
    take_over_ctrl_c()

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lessons.clinic import signs
from lessons.clinic.signs import patches
from lessons.experiments.grid import Grid, GridConfig, compact, markdown, rounded, signed, write_pages
from lessons.experiments.paired import difference
from toy_env import RunFailed
from toy_env.cli import at_least, run_main
from toy_env.evaluate import evaluate, held_out
from toy_env.model import load_policy
from toy_env.tasks import TASKS, load_task

ROOT, PAGE, FIGURES = signs.HERE.parents[1], signs.HERE / "README.md", signs.HERE / "figures"
SETTINGS = {"device": "cpu", "measure_updates": True, "eval_problems": 32, "save_every": 1000, "run_dir": "run"}
TESTS = ("rollout", "group_methods", "published", "arithmetic")  # of tests/, the files that take seconds
BAND, FURTHER = 10, 5  # healthy seeds that make the band, and those that try it
PROGRAM = """
import atexit, json, sys
from toy_env import model, run
noted = {}
def passed_over(check):
    def call(*arguments):
        try:
            said = check(*arguments) or ""
        except Exception as error:
            said = noted[check.__name__] = f"{type(error).__name__}: {error}"
        if "do not sum to 0" in said:
            noted[check.__name__] = "the advantages of a group do not sum to 0"
        return said
    return call
atexit.register(lambda: print("\\n" + json.dumps(noted)))
settings = json.loads(sys.argv[1])
if settings:
    run.check_model, run.self_check = map(passed_over, (run.check_model, run.self_check))
    from algorithms import grpo
    grpo.train(grpo.Config(**settings))
else:
    from transformers import GPT2Config, GPT2LMHeadModel
    config = GPT2Config(vocab_size=19, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2)
    passed_over(run.check_model)(GPT2LMHeadModel(config).eval(), model.load_policy()[1], 16)
"""  # what runs in a copy: a training run, or without settings the check of a tiny GPT-2


@dataclass
class Config(GridConfig):
    seeds: at_least(1, FURTHER) = FURTHER  # seeds of every bug and control
    steps: at_least(2, signs.STEPS) = signs.STEPS  # rollout batches of a run
    band: at_least(3, BAND) = BAND  # healthy seeds that make the band
    output: str = "runs/clinic"  # folder for the runs

    QUICK = {"seeds": 1, "steps": 10, "band": 3}


@dataclass(frozen=True)
class Run:
    """One training run of a patch; of the tree as it is for the patch ""."""

    patch: str
    seed: int
    steps: int


@dataclass(frozen=True)
class Check:
    """The checks of one patch."""

    patch: str


def runs_of(config: Config) -> list[Run]:
    """Healthy seeds 0 to 9, which make the band; then, from seed 10, further healthy runs and those of all patches."""
    healthy = [Run("", seed, config.steps) for seed in range(config.band)]
    others = [Run(name, seed, config.steps) for name in ("", *patches()) for seed in range(BAND, BAND + config.seeds)]
    return healthy + others


def broken_copy(folder: Path, patch: str, parts=("algorithms", "toy_env")) -> Path:
    """Copy parts of the tree into a folder and apply a patch there. Raises RunFailed if it does not apply."""
    for part in parts:
        (shutil.copytree if (ROOT / part).is_dir() else shutil.copy)(ROOT / part, folder / part)
    if patch:
        text, above = patches()[patch]["patch"], os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
        done = subprocess.run(["git", "apply"], input=text, text=True, cwd=folder, env=above, capture_output=True)
        if done.returncode:
            raise RunFailed(f"lessons/clinic/{patch}.diff does not apply: {done.stderr.strip()}")
    return folder


def in_copy(folder: Path, *arguments: str) -> list[str]:
    """The lines that Python prints in a copy, its errors among them."""
    settings = {"cwd": folder, "env": os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}}
    joined = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run([sys.executable, *arguments], **settings, **joined, text=True).stdout.splitlines()


def train(run: Run) -> dict:
    """Make a run. Returns its metrics by step ("rows"), what the checks said, the line that ended it early, if one did,
    and the accuracy of the final policy, by the code of this tree, on 256 held-out problems."""
    with tempfile.TemporaryDirectory() as name:
        folder = broken_copy(Path(name), run.patch)
        lines = in_copy(folder, "-c", PROGRAM, json.dumps(SETTINGS | {"seed": run.seed, "steps": run.steps}))
        text = (folder / "run/metrics.jsonl").read_text("utf-8") if (folder / "run/metrics.jsonl").is_file() else ""
        rows = [json.loads(line) for line in text.splitlines()]
        result = {"rows": {name: [row.get(name) for row in rows] for name in signs.FLOORS}, "accuracy": None}
        result |= {"checks": json.loads(lines[-1]), "ended": "" if len(rows) == run.steps else lines[-3]}
        if (folder / "run/checkpoint").is_dir():
            task = load_task("arithmetic")
            final = evaluate(*load_policy(str(folder / "run/checkpoint")), held_out(task, 64, ()), samples=4, max_new_tokens=56)
            result["accuracy"] = float(final.correct.mean())
    return rounded(result)


def check(of: Check) -> dict:
    """What the check of a model says of a tiny GPT-2 under a patch, and the tests that fail."""
    with tempfile.TemporaryDirectory() as name:
        folder = broken_copy(Path(name), of.patch, ("algorithms", "lessons", "tests", "toy_env", "pyproject.toml"))
        said = json.loads(in_copy(folder, "-c", PROGRAM, "{}")[-1])
        files = [f"tests/test_{name}.py" for name in TESTS]
        lines = in_copy(folder, "-m", "pytest", "-q", "--tb=no", "-rf", "-p", "no:cacheprovider", *files)
    failed = [line.split(" - ")[0].removeprefix("FAILED ") for line in lines if line.startswith("FAILED ")]
    return {"gpt2": said.get("check_model", ""), "tests": failed}
