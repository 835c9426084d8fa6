"""The clinic's runs: every bug and every harmless change of lessons/clinic, applied to a copy of the tree.

    python lessons/experiments/clinic.py              five seeds of each, and fifteen healthy runs
    python lessons/experiments/clinic.py --quick      one seed of ten steps, and four healthy runs
    python lessons/experiments/clinic.py --publish    also writes lessons/clinic/results.json, its pictures and tables

A run is grpo.py at its defaults, but for fewer held-out problems, and without the checks of the model and of the first
minibatch, which would stop some. Ten healthy seeds make the band. Patches have other seeds, and so have the five
further healthy runs that give the rate of false alarms.
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
from transformers import GPT2Config, GPT2LMHeadModel

from lessons.clinic import signs
from lessons.experiments.grid import Grid, GridConfig, change, compact, markdown, rounded, write_pages
from lessons.experiments.paired import difference
from toy_env import RunFailed
from toy_env.cli import at_least, run_main
from toy_env.evaluate import evaluate, held_out
from toy_env.model import load_policy
from toy_env.tasks import load_task

ROOT, FIGURES = signs.HERE.parents[1], signs.HERE / "figures"
PARTS = ("algorithms", "lessons", "tests", "toy_env", "pyproject.toml")  # what is copied
SETTINGS = ["--measure_updates", "--eval_every", "0", "--eval_problems", "4", "--save_every", "1000", "--run_dir", "run"]
TESTS = [f"tests/test_{name}.py" for name in ("rollout", "group_methods", "arithmetic")]
BAND, FURTHER = 10, 5  # healthy seeds that make the band, and those that try it
NO_CHECKS = "\ncheck_model = self_check = lambda *arguments, **settings: ''\n"  # at the end of toy_env/run.py


@dataclass
class Config(GridConfig):
    seeds: at_least(1, FURTHER) = FURTHER  # seeds of every bug and control
    steps: at_least(2, signs.STEPS) = signs.STEPS  # rollout batches of a run
    band: at_least(3, BAND) = BAND  # healthy seeds that make the band
    output: str = "runs/clinic"  # folder for the runs

    QUICK = {"seeds": 1, "steps": 10, "band": 3}


@dataclass(frozen=True)
class Run:
    """One training run under a patch; of the tree as it is under the patch ""."""

    patch: str
    seed: int
    steps: int


def runs_of(config: Config) -> list[Run]:
    """The seeds from 0 that make the band; then, from seed 10, the further healthy runs and those of all patches."""
    others = [(name, seed) for seed in range(BAND, BAND + config.seeds) for name in ("", *signs.patches())]
    return [Run(*run, config.steps) for run in [("", seed) for seed in range(config.band)] + others]


def broken_copy(folder: Path, patch: str) -> None:
    """Copy the tree into a folder and apply a patch there. Raises RunFailed if it does not apply."""
    for part in PARTS:
        (shutil.copytree if (ROOT / part).is_dir() else shutil.copy)(ROOT / part, folder / part)
    here = {"cwd": folder, "env": os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}, "text": True}
    if patch and subprocess.run(["git", "apply"], input=signs.patches()[patch]["patch"], **here).returncode:
        raise RunFailed(f"lessons/clinic/{patch}.diff does not apply")


def train(run: Run) -> dict:
    """Make a run. Returns the rows of its metrics, the line that ended it early, if one did, and the accuracy of the
    final policy, by the code of this tree, on 256 held-out problems. The first seed of full length also returns
    what finds the patch: the checks, with our base model and with a tiny GPT-2, and TESTS."""
    with tempfile.TemporaryDirectory() as name:
        folder, found = Path(name), {}

        def printed(*arguments: str) -> list[str]:
            here = {"cwd": folder, "env": os.environ | {"PYTHONPATH": name, "OMP_NUM_THREADS": "1"}, "text": True}
            both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            return subprocess.run([sys.executable, *arguments], **here, **both).stdout.splitlines()

        broken_copy(folder, run.patch)
        if run.patch and run.seed == BAND and run.steps == signs.STEPS:
            load_policy()[1].save_pretrained(folder / "GPT-2")
            sizes = {"vocab_size": 19, "n_positions": 99, "n_embd": 32, "n_layer": 2, "n_head": 2}
            GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)).save_pretrained(folder / "GPT-2")
            for model in ("base", "GPT-2"):
                short = ["--model", model, "--steps", "1", "--eval_problems", "1", "--run_dir", f"try-{model}"]
                said = [s for s in printed("algorithms/grpo.py", *short) if "rror: " in s or "do not sum to 0" in s]
                found |= {model: said[-1].strip()} if said else {}
            failed = [line for line in printed("-m", "pytest", "-qx", "--tb=no", "-rf", *TESTS) if line[:6] == "FAILED"]
            found |= {"tests": failed[0].split()[1].split("::")[1]} if failed else {}
        with (folder / "toy_env/run.py").open("a", encoding="utf-8") as file:
            file.write(NO_CHECKS)
        lines = printed("algorithms/grpo.py", *SETTINGS, "--seed", str(run.seed), "--steps", str(run.steps))
        path = folder / "run/metrics.jsonl"  # none if the first step has diverged
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []
        result = {"rows": rows, "found by": found, "ended": "" if len(rows) == run.steps else lines[-1]}
        if not result["ended"]:
            problems, sampling = held_out(load_task("arithmetic"), 64, ()), {"samples": 4, "max_new_tokens": 56}
            final = evaluate(*load_policy(str(folder / "run/checkpoint")), problems, **sampling)
        return rounded(result | {"accuracy": None if result["ended"] else float(final.correct.mean())})


def listed(array: np.ndarray) -> list:
    """A nested list with None for nan."""
    return np.where(np.isfinite(array), array, None).tolist()


def summary(runs: list[dict]) -> dict:
    """What is committed: the band, the share of metrics x further healthy runs with a sign, and of each patch, by
    metric, [the step by which four of five seeds have left the band, the side, how many have]."""
    arms: dict[str, list[dict]] = {}
    for run in runs:
        arms.setdefault("band" if run["seed"] < BAND else run["patch"], []).append(run)
    curves = {name: [signs.curves(run["rows"]) for run in arm] for name, arm in arms.items()}
    band = signs.band(curves.pop("band"))
    each = {name: [signs.signs(run, band) for run in arm] for name, arm in curves.items()}
    share = {name: np.mean([len(found) / len(band) for found in arm]) for name, arm in each.items()}
    data = {"false alarms": share[""], "band": {name: listed(values) for name, values in band.items()}, "patches": {}}
    for name in signs.patches():
        common, needed = {}, len(arms[name]) - len(arms[name]) // 5
        for metric, side in ((metric, side) for metric in band for side in (1, -1)):
            firsts = sorted(found[metric][0] for found in each[name] if found.get(metric, (0, 0))[1] == side)
            if len(firsts) >= needed:
                common[metric] = [firsts[needed - 1], side, len(firsts)]
        rewards = [
            [signs.mean([r["reward"] for r in run["rows"]] or [np.nan]) for run in arms[arm]] for arm in (name, "")
        ]
        accuracies = [[run["accuracy"] for run in arms[arm]] for arm in (name, "")]
        data["patches"][name] = {
            "signs": dict(sorted(common.items(), key=lambda sign: sign[1])),
            "outside": share[name],
            "ended": [run["ended"] for run in arms[name] if run["ended"]],
            "accuracy": difference(*accuracies),
            "reward": difference(*rewards),
            "found by": arms[name][0]["found by"],
            "signature": listed(signs.mean([signs.signature(run, band) for run in curves[name]])),
            "curves": {metric: listed(values) for metric, values in curves[name][0].items()},
        }
    return json.loads(json.dumps(data), parse_float=lambda text: float(f"{float(text):.3g}"))


def tables(data: dict) -> dict[str, str]:
    """The texts of the page: the signs by metric, and what shows each patch."""
    shown = [name for name in signs.FLOORS if any(name in patch["signs"] for patch in data["patches"].values())]
    rows, kinds = [], []
    for name, patch in data["patches"].items():
        cells = [f"{'↓ ↑'[side + 1]} {step}" + f" ({n})" * (n < FURTHER) for step, side, n in patch["signs"].values()]
        rows.append([f"[{name}]({name}.diff)", *(dict(zip(patch["signs"], cells)).get(metric, "") for metric in shown)])
        gaps = [patch["accuracy"], patch["reward"]]
        slower = any(gap["interval"] and not np.prod(gap["interval"]) < 0 for gap in gaps)
        kind = "a curve" if cells else "a slower rise alone" if slower else "no metric"
        kinds.append([name, kind, *map(change, gaps), "; ".join(f"{key}: {s}" for key, s in patch["found by"].items())])
    header = ["", "shown by", "held-out accuracy, points", "reward over training, points", "found by"]
    return {"signs": markdown(["", *(f"`{name}`" for name in shown)], rows), "kinds": markdown(header, kinds)}


def main(config: Config) -> None:
    """Make the runs that are missing, and with --publish write the results, the pictures and the tables of the page."""
    config = config.sized()
    with Grid(config, "clinic.py") as grid:
        data = summary(grid.run(train, runs_of(config)))
    print(*tables(data).values(), f"share of false alarms: {data['false alarms']}", sep="\n\n")
    if config.publish:
        signs.RESULTS.write_text(compact(data, 3) + "\n", "utf-8")
        FIGURES.mkdir(exist_ok=True)
        for name, patch in signs.results()["patches"].items():
            if patch["signs"]:
                picture = signs.draw(patch["curves"], [*patch["signs"]][:4], signs.results()["band"], columns=4)
                picture.savefig(FIGURES / f"{name}.png", dpi=70)
        write_pages({signs.HERE / "README.md": tables(data)})


if __name__ == "__main__":
    run_main(Config, main, __doc__)
