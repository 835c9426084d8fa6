"""The clinic's runs: every bug and every harmless change of lessons/clinic, applied to a copy of
the tree, and healthy runs of all scripts.

    python lessons/clinic/make.py --table       print all signs of the committed runs
    python lessons/clinic/make.py               all runs, 45 minutes; print their signs
    python lessons/clinic/make.py --seeds 1     one seed of each, a quarter of an hour
    python lessons/clinic/make.py --publish     also write results, benchmark and pictures

A run is grpo.py at its defaults, but with fewer held-out problems, no picture, and no check of the
first minibatch, which would stop some. Ten healthy seeds make the band. Patches have other seeds,
and so have further healthy runs. A printed sign is a metric, the side on which it leaves the band,
and the step by which it has in all seeds, the earliest first. Differences are from healthy runs of
the same seeds, in points, with 95 % t intervals, not corrected: of the accuracy at the end, and of
the mean reward over training.
"""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from algorithms import grpo
from lessons.clinic import signs
from lessons.clinic.logs import TRL
from lessons.experiments.harness.grid import Grid, GridConfig, change, compact, rounded
from lessons.experiments.harness.paired import difference
from toy_env import arithmetic
from toy_env.evaluation import evaluate, held_out
from toy_env.model import load_policy
from toy_env.run import parse

ROOT = signs.HERE.parents[1]
PATCHES = {"": {}} | signs.patches()  # "" stands for none
BAND = 10  # healthy seeds that make the band
ACTING = {"script": "grpo"} | {  # the settings of the band that act on curves
    name: getattr(grpo.Config, name)
    for name in [*grpo.Config.__annotations__, "task", "levels", "model", "dtype"]
}
LEFT_OUT = {"metrics": "check_ratio", "plots": "draw_curves"}  # by module of toy_env


@dataclass
class Config(GridConfig):
    seeds: int = 4  # seeds of every bug and control
    table: bool = False  # make no runs, print the signs of the committed ones


@dataclass(frozen=True)
class Run:
    """One training run under a patch."""

    patch: str
    seed: int
    steps: int = signs.STEPS
    script: str = "grpo"
    settings: str = ""  # one more setting, such as --learning_rate=1e-4


SCRIPTS = ["cispo", "dapo", "dr_grpo", "gspo", "maxrl", "ppo", "reinforce", "rloo"]
SETTINGS = [
    "--task=expressions",
    "--learning_rate=1e-4",
    "--learning_rate=4e-4",
    "--num_minibatches=1",
]
OTHERS = [  # healthy, but not in the band
    *(Run("", BAND, script=script) for script in SCRIPTS),
    *(Run("", BAND, settings=setting) for setting in SETTINGS),
]


def runs_of(seeds: int) -> list[Run]:
    """The healthy seeds that make the band; then, from seed 10, further healthy runs and those of
    all patches."""
    runs = [Run("", seed) for seed in range(BAND)]
    return runs + [Run(patch, BAND + i) for patch in PATCHES for i in range(seeds)]


def broken_copy(folder: Path, patch: str) -> None:
    """Copy the tree into a folder and apply a patch there. Raises CalledProcessError if it does not
    apply."""
    for part in ("algorithms", "lessons", "toy_env"):
        shutil.copytree(ROOT / part, folder / part)
    if patch:
        command = ["git", "apply", signs.HERE / f"{patch}.diff"]
        env = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}  # of no repository
        subprocess.run(command, cwd=folder, env=env, check=True)


def train(run: Run) -> dict:
    """Make a run. Returns the rows of its metrics, and the accuracy of the final policy, by the
    code of this tree, on 64 held-out problems of each level."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broken_copy(folder, run.patch)
        for module, function in LEFT_OUT.items():
            with (folder / f"toy_env/{module}.py").open("a", encoding="utf-8") as file:
                file.write(f"\n{function} = lambda *arguments: None\n")
        command = f"""{sys.executable} -m lessons.experiments.update_norm
            algorithms/{run.script}.py --seed={run.seed} --steps={run.steps} {run.settings}
            --run_dir=run --eval_every=0 --eval_problems=1 --save_every=1000"""
        env = os.environ | {"PYTHONPATH": name, "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
        subprocess.run(command.split(), cwd=folder, env=env, capture_output=True)
        lines = (folder / "run/metrics.jsonl").read_text("utf-8").splitlines()
        policy, problems = load_policy(str(folder / "run/checkpoint")), held_out(arithmetic, 64, ())
        final = evaluate(*policy, problems, samples=4, max_new_tokens=56)
        return rounded({"rows": [*map(json.loads, lines)], "accuracy": final.correct.mean()})


def in_all(found: list[dict]) -> list[tuple[int, str, str]]:
    """The signs that all seeds share: the step by which they have it, the side and the metric.
    found: the signs of each seed."""
    firsts = {}
    for run in found:
        for metric, (step, side) in run.items():
            firsts.setdefault((metric, side), []).append(step)
    return sorted(
        (max(steps), side, metric)
        for (metric, side), steps in firsts.items()
        if len(steps) == len(found)
    )


def summary(runs: list[dict]) -> dict:
    """The results that are committed: the band, the number of curves that leave it in each further
    healthy run, the curves of each patch's first seed and, by patch, its signs and its differences
    from healthy runs of the same seeds."""
    arms, patches = {}, {}
    for run in runs:
        run["curves"] = signs.curves(run["rows"])
        run["reward"] = np.mean([row["reward"] for row in run["rows"]])
        arms.setdefault("band" if run["seed"] < BAND else run["patch"], []).append(run)
    band, healthy = signs.band([run["curves"] for run in arms.pop("band")]), arms.pop("")
    for name, arm in arms.items():
        found = in_all([signs.signs(run["curves"], band) for run in arm])
        patches[name] = {"class": PATCHES[name].get("Class"), "signs": found}
        for what in ("accuracy", "reward"):
            values, others = ([run[what] for run in each] for each in (arm, healthy))
            patches[name][what] = difference(values, others)
    data = {
        "settings": ACTING,
        "band": band,
        "patches": patches,
        "alarms": [len(signs.signs(run["curves"], band)) for run in healthy],
        "curves": {name: arm[0]["curves"] for name, arm in arms.items()},
    }
    return rounded(json.loads(json.dumps(data, default=np.ndarray.tolist).replace("NaN", "null")))


def table(data: dict) -> str:
    """The class of each patch, its differences from healthy runs and its signs."""
    text = ""
    for name, patch in data["patches"].items():
        gaps = f"accuracy {change(patch['accuracy'])}, reward {change(patch['reward'])}"
        text += f"{name} ({patch['class'] or 'control'}): {gaps}\n"
        marks = [f"{metric} {side} {step}" for step, side, metric in patch["signs"]]
        text += f"    {', '.join(marks) or 'no metric leaves the band'}\n"
    return text


def benchmark(runs: list[dict]) -> str:
    """JSON lines, one for each run: what it is, its settings, and its rows in TRL's names, or in
    ours where TRL has none. reward_std is TRL's, with G - 1 degrees of freedom."""
    lines = []
    for run in runs:
        header, log = PATCHES[run["patch"]], []
        for row in run["rows"]:
            row["reward_std"] = round(row["sigma"] * np.sqrt(8 / 7), 4)
            log.append({TRL.get(n, n): x for n, x in row.items() if isinstance(x, float | int)})
        settings = dict(re.findall("--(.*)=(.*)", run["settings"]))
        about = {
            "kind": "bug" if "Fix" in header else "control" if header else "healthy",
            "class": header.get("Class", ""),
            "patch": run["patch"],
            "settings": {"script": run["script"], "seed": run["seed"]} | settings,
            "log_history": log,
        }
        lines.append(json.dumps(about) + "\n")
    return "".join(lines)


def main(config: Config) -> None:
    """Make the runs that are missing, and with --publish write the results."""
    if config.table:
        return print(table(json.loads(signs.RESULTS.read_text("utf-8"))))
    grid = Grid(config, "clinic")
    runs = runs_of(config.seeds)
    data = summary(grid.run(train, runs))
    print(table(data))
    if not config.publish:
        return
    text = benchmark(grid.run(train, [run for run in runs if run.seed == BAND] + OTHERS))
    (signs.HERE / "benchmark.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    signs.RESULTS.write_text(compact(data, 2) + "\n", "utf-8")
    results, page = signs.results(), (signs.HERE / "README.md").read_text("utf-8")
    for metrics, names, file in re.findall(r"!\[(.*) of (.*)\]\((.*)\)", page):  # its pictures
        shown = {name: results["curves"][name] for name in names.split(", ")}
        picture = signs.draw(shown, metrics.split(", "), results["band"], 3)
        picture.savefig(signs.HERE / file, dpi=70)


if __name__ == "__main__":
    main(parse(Config, __doc__))
