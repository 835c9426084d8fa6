"""The clinic's runs: every bug and every harmless change of lessons/clinic, applied to a copy of
the tree, and healthy runs of all scripts.

    python lessons/experiments/clinic.py               all runs, an hour; print the tables
    python lessons/experiments/clinic.py --quick       one seed of ten steps, eleven healthy runs
    python lessons/experiments/clinic.py --publish     also write results, benchmark, page, pictures

A run is grpo.py at its defaults, but with fewer held-out problems, and without the check of the
first minibatch, which would stop some. Ten healthy seeds make the band. Patches have other seeds,
and so have further healthy runs.
"""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from algorithms import grpo
from lessons.clinic import signs
from lessons.clinic.logs import TRL
from lessons.experiments.grid import (
    Grid,
    GridConfig,
    change,
    compact,
    markdown,
    rounded,
    write_pages,
)
from lessons.experiments.paired import difference
from toy_env import arithmetic
from toy_env.held_out import evaluate, held_out
from toy_env.model import load_policy
from toy_env.run import parse

ROOT, PAGE = signs.HERE.parents[1], signs.HERE / "TABLES.md"
PATCHES = {"": {}} | signs.patches()  # "" stands for none
BAND = 10  # healthy seeds that make the band
NO_CHECK = "\ncheck_ratio = lambda *arguments: None\n"  # at the end of toy_env/metrics.py


@dataclass
class Config(GridConfig):
    seeds: int = 5  # seeds of every bug and control
    quick: bool = False  # one seed of ten steps; publishes nothing


@dataclass(frozen=True)
class Run:
    """One training run under a patch."""

    patch: str
    seed: int
    steps: int = signs.STEPS
    script: str = "grpo"
    settings: str = ""  # one more setting, such as --learning_rate=1e-4


SCRIPTS = ["cispo", "dapo", "dr_grpo", "gspo", "maxrl", "ppo", "reinforce", "rloo"]
SETTINGS = ["task=expressions", "learning_rate=1e-4", "learning_rate=4e-4", "num_minibatches=1"]
OTHERS = [Run("", BAND, script=script) for script in SCRIPTS]  # healthy, not the band's
OTHERS += [Run("", BAND, settings=f"--{setting}") for setting in SETTINGS]


def runs_of(seeds: int, steps: int = signs.STEPS) -> list[Run]:
    """The healthy seeds that make the band; then, from seed 10, further healthy runs and those of
    all patches."""
    runs = [Run("", seed, steps) for seed in range(BAND)]
    return runs + [Run(patch, BAND + i, steps) for patch in PATCHES for i in range(seeds)]


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
        with (folder / "toy_env/metrics.py").open("a", encoding="utf-8") as file:
            file.write(NO_CHECK)
        command = f"""{sys.executable} -m lessons.experiments.update_norm
            algorithms/{run.script}.py --seed={run.seed} --steps={run.steps} {run.settings}
            --run_dir=run --eval_every=0 --eval_problems=4 --save_every=1000"""
        env = os.environ | {"PYTHONPATH": name, "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
        subprocess.run(command.split(), cwd=folder, env=env, capture_output=True)
        lines = (folder / "run/metrics.jsonl").read_text("utf-8").splitlines()
        policy, problems = load_policy(str(folder / "run/checkpoint")), held_out(arithmetic, 64, ())
        final = evaluate(*policy, problems, samples=4, max_new_tokens=56)
        return rounded({"rows": [*map(json.loads, lines)], "accuracy": final.correct.mean()})


def in_most(found: list[dict]) -> dict[str, tuple[int, int, int]]:
    """The signs that four of five seeds share, by metric: the step by which these have it, the
    side, the number of seeds. found: the signs of each seed."""
    firsts, needed = {}, len(found) - len(found) // 5
    for run in found:
        for metric, (step, side) in run.items():
            firsts.setdefault((metric, side), []).append(step)
    return {
        metric: (sorted(steps)[needed - 1], side, len(steps))
        for (metric, side), steps in firsts.items()
        if len(steps) >= needed
    }


def acting() -> dict:
    """The settings of the band that act on curves."""
    names = [*grpo.Config.__annotations__, "task", "levels", "model", "dtype"]
    return {"script": "grpo"} | {name: getattr(grpo.Config, name) for name in names}


def summary(runs: list[dict]) -> dict:
    """The results that are committed: the band, the curves of each patch's first seed, the
    signatures of patches with signs and, by patch, its signs, its differences from healthy runs of
    the same seeds, and the patch that each seed is most alike, given the signatures of the other
    seeds."""
    arms, patches, signatures = {}, {}, {}
    for run in runs:
        run["reward"] = np.mean([row["reward"] for row in run["rows"]])
        arms.setdefault("band" if run["seed"] < BAND else run["patch"], []).append(run)
    curves = {name: [signs.curves(run["rows"]) for run in arm] for name, arm in arms.items()}
    band = signs.band(curves.pop("band"))
    shapes = {name: [signs.signature(run, band) for run in arm] for name, arm in curves.items()}
    for name, arm in curves.items():
        found = [signs.signs(run, band) for run in arm]
        patch = patches[name] = {"signs": in_most(found), "taken for": []}
        for what in ("accuracy", "reward"):
            patch[what] = difference(*([run[what] for run in arms[each]] for each in (name, "")))
        patch["outside"] = np.mean([len(run) / len(signs.FLOORS) for run in found])
        if patch["signs"] and name:
            signatures[name] = signs.mean(shapes[name])
    for name, arm in curves.items():
        for seed, run in enumerate(arm):
            others = signatures.copy()
            if name in others:
                others[name] = signs.mean(np.delete(shapes[name], seed, axis=0))
            alike = signs.diagnosis(run, band, others)
            patches[name]["taken for"].append(alike[0][1] if alike else "")
    data = {"settings": acting(), "band": band, "signatures": signatures}
    data |= {"curves": {name: arm[0] for name, arm in curves.items()}, "patches": patches}
    text = json.dumps(data, default=lambda x: np.where(np.isfinite(x), x, None).tolist())
    return rounded(json.loads(text))


def tables(data: dict) -> dict[str, str]:
    """The tables of the page: the signs by metric, and all patches."""
    rows, kinds = [], []
    for name, patch in data["patches"].items():
        link, taken_for = f"[{name}]({name}.diff)" if name else "healthy", patch["taken for"]
        cells = dict.fromkeys(signs.FLOORS, "")
        for metric, (step, side, n) in patch["signs"].items():
            count = f" ({n})" if n < len(taken_for) else ""
            cells[metric] = f"{'↑' if side > 0 else '↓'}{step}{count}"
        if patch["signs"]:
            rows.append([link, *cells.values()])
        gaps = [patch["accuracy"], patch["reward"]]
        slower = any(gap["interval"] and gap["interval"][1] < 0 for gap in gaps)
        kind = "a curve" if patch["signs"] else "a slower rise" if slower else "no metric"
        where = PATCHES[name].get("Class", "")
        counts = Counter(other or "healthy" for other in taken_for).items()
        alike = ", ".join(f"{other} {n}" for other, n in counts)
        kinds.append([link, where, kind if where else "", *map(change, gaps), alike])
    table = markdown(["", *(f"`{name}`" for name in signs.FLOORS)], rows)
    differences = ["accuracy at the end, points", "reward over training, points"]
    kinds = markdown(["", "class", "shown by", *differences, "most alike"], kinds)
    return {"signs": table, "kinds": kinds}


def benchmark(runs: list[dict]) -> str:
    """JSON lines, one for each run: what it is, its settings, and its rows in TRL's names, or in
    ours where TRL has none. reward_std is TRL's, with G - 1 degrees of freedom."""
    names, lines = {ours: trl for trl, ours in TRL.items()}, []
    for run in runs:
        header, log = PATCHES[run["patch"]], []
        for row in run["rows"]:
            row["reward_std"] = round(row["sigma"] * np.sqrt(8 / 7), 4)
            log.append({names.get(n, n): x for n, x in row.items() if isinstance(x, float | int)})
        settings = dict(x[2:].split("=") for x in run["settings"].split())
        about = {
            "kind": "bug" if "Fix" in header else "control" if header else "healthy",
            "class": header.get("Class", ""),
            "patch": run["patch"],
            "settings": {"script": run["script"], "seed": run["seed"]} | settings,
            "log_history": log,
        }
        lines.append(json.dumps(about) + "\n")
    return "".join(lines)


def publish(data: dict) -> None:
    """Write the results, the tables of the page, and its pictures: ![metrics of patches](file)."""
    signs.RESULTS.write_text(compact(data, 2) + "\n", "utf-8")
    signs.results.cache_clear()
    write_pages({PAGE: tables(data)})
    results, page = signs.results(), (signs.HERE / "README.md").read_text("utf-8")
    for metrics, names, file in re.findall(r"!\[(.*) of (.*)\]\((.*)\)", page):
        runs = {name: results["curves"][name] for name in names.split(", ")}
        figure = signs.draw(runs, metrics.split(", "), results["band"], 3)
        figure.savefig(signs.HERE / file, dpi=70)


def main(config: Config) -> None:
    """Make the runs that are missing, and with --publish write the results."""
    grid = Grid(config, "clinic")
    runs = runs_of(1, 10) if config.quick else runs_of(config.seeds)
    data = summary(grid.run(train, runs))
    if config.publish and not config.quick:
        text = benchmark(grid.run(train, [run for run in runs if run.seed == BAND] + OTHERS))
        (signs.HERE / "benchmark.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        publish(data)
    print(*tables(data).values(), sep="\n\n")


if __name__ == "__main__":
    main(parse(Config, __doc__))
