"""The clinic's runs: every bug and every harmless change of lessons/clinic, applied to a copy of
the tree.

    python lessons/experiments/clinic.py               five seeds of each, and fifteen healthy runs
    python lessons/experiments/clinic.py --quick       one seed of ten steps, eleven healthy runs
    python lessons/experiments/clinic.py --publish     also write results.json, pictures and tables
    python lessons/experiments/clinic.py --found_by    only update the column "found by" of these

A run is grpo.py at its defaults, but with fewer held-out problems, and without the check of the
first minibatch, which would stop some. Ten healthy seeds make the band. Patches have other seeds,
and so have the five further healthy runs that give the rate of false alarms.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from lessons.clinic import signs
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

ROOT, PAGE = signs.HERE.parents[1], signs.HERE / "README.md"
PARTS = ("algorithms", "lessons", "tests", "toy_env", "pyproject.toml")  # what is copied
SETTINGS = ["--eval_every=0", "--eval_problems=4", "--save_every=1000", "--run_dir=run"]
TESTS = [f"tests/test_{name}.py" for name in ("rollout", "group_methods", "arithmetic")]
BAND, FURTHER = 10, 5  # healthy seeds that make the band, and those that try it
NO_CHECK = "\ncheck_ratio = lambda *arguments: None\n"  # at the end of toy_env/metrics.py


@dataclass
class Config(GridConfig):
    seeds: int = FURTHER  # seeds of every bug and control
    found_by: bool = False  # only see again what finds each patch, and publish that


@dataclass(frozen=True)
class Run:
    """One training run under a patch; of the tree as it is under the patch ""."""

    patch: str
    seed: int
    steps: int


def runs_of(seeds: int, steps: int = signs.STEPS) -> list[Run]:
    """The seeds from 0 that make the band; then, from seed 10, the further healthy runs and those
    of all patches."""
    runs = [Run("", seed, steps) for seed in range(BAND)]
    for seed in range(BAND, BAND + seeds):
        runs += [Run(patch, seed, steps) for patch in ("", *signs.patches())]
    return runs


def broken_copy(folder: Path, patch: str) -> None:
    """Copy the tree into a folder and apply a patch there. Raises CalledProcessError if it does not
    apply."""
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, folder / part)
    if patch:
        text, ceiling = signs.patches()[patch]["patch"], str(folder.parent)
        env = os.environ | {"GIT_CEILING_DIRECTORIES": ceiling}  # the copy is in no repository
        subprocess.run(["git", "apply"], cwd=folder, env=env, input=text, text=True, check=True)


def python(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Run Python in a copy of the tree; its exit code and the lines of its output and errors."""
    env = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    end = subprocess.run([sys.executable, *arguments], cwd=folder, env=env, **streams)
    return end.returncode, end.stdout.splitlines()


def train(run: Run) -> dict:
    """Make a run. Returns the rows of its metrics, and the accuracy of the final policy, by the
    code of this tree, on 64 held-out problems of each level."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broken_copy(folder, run.patch)
        with (folder / "toy_env/metrics.py").open("a", encoding="utf-8") as file:
            file.write(NO_CHECK)
        program = ["-m", "lessons.experiments.update_norm", "algorithms/grpo.py", *SETTINGS]
        python(folder, *program, f"--seed={run.seed}", f"--steps={run.steps}")
        lines = (folder / "run/metrics.jsonl").read_text("utf-8").splitlines()
        policy, tokenizer = load_policy(str(folder / "run/checkpoint"))
        problems = held_out(arithmetic, 64, ())
        final = evaluate(policy, tokenizer, problems, samples=4, max_new_tokens=56)
        accuracy = float(final.correct.mean())
        return rounded({"rows": [json.loads(line) for line in lines], "accuracy": accuracy})


def found_by(run: Run) -> dict[str, str]:
    """Try to find a patch without training. "base" is the line that ends a run at its first
    minibatch, "tests" one of TESTS that fails; each is left out if there is none."""
    with tempfile.TemporaryDirectory() as name:
        folder, found = Path(name), {}
        broken_copy(folder, run.patch)
        settings = ["--steps=1", "--eval_problems=1", "--run_dir=try"]
        code, lines = python(folder, "algorithms/grpo.py", *settings)
        if code:
            found["base"] = lines[-1]
        _, lines = python(folder, "-m", "pytest", "-qx", "--tb=no", "-rf", *TESTS)
        failed = [line.split()[1] for line in lines if line.startswith("FAILED")]
        if failed:
            found["tests"] = failed[0].split("::")[1]
        return {"found by": found}


def in_most(found: list[dict]) -> dict[str, list[int]]:
    """The signs that four of five seeds share, by metric: [the step by which these have it, the
    side, the number of seeds]; the first ones first. found: the signs of each seed."""
    common, needed = {}, len(found) - len(found) // 5
    for metric, side in product(signs.FLOORS, (1, -1)):
        firsts = sorted(run[metric][0] for run in found if run.get(metric, (0, 0))[1] == side)
        if len(firsts) >= needed:
            common[metric] = [firsts[needed - 1], side, len(firsts)]
    return dict(sorted(common.items(), key=lambda sign: sign[1]))


def summary(runs: list[dict]) -> dict:
    """The results that are committed: the band, the curves of each patch's first seed, the
    signatures of patches with signs and, by patch, its signs, its differences from healthy runs of
    the same seeds, and the patch that each seed is taken for, given the signatures of the other
    seeds. The patch "" stands for none."""
    arms = {}
    for run in runs:
        run["reward"] = float(np.mean([row["reward"] for row in run["rows"]]))
        arms.setdefault("band" if run["seed"] < BAND else run["patch"], []).append(run)
    curves = {name: [signs.curves(run["rows"]) for run in arm] for name, arm in arms.items()}
    band, patches = signs.band(curves.pop("band")), {}
    found = {name: [signs.signs(run, band) for run in arm] for name, arm in curves.items()}
    with_signs = [name for name in found if name and in_most(found[name]) and len(found[name]) > 1]
    shapes = {name: [signs.signature(run, band) for run in curves[name]] for name in with_signs}
    for name, arm in curves.items():
        patch = patches[name] = {}
        for what in ("accuracy", "reward"):
            here, healthy = ([run[what] for run in arms[one]] for one in (name, ""))
            patch[what] = difference(here, healthy)
        patch |= {"signs": in_most(found[name]), "taken for": [], "found by": {}}
        for seed, run in enumerate(arm):
            others = {}
            for other, shape in shapes.items():
                others[other] = signs.mean(shape[:seed] + shape[seed + 1 :])
            alike = signs.diagnosis(run, band, others)
            patch["taken for"].append(alike[0][1] if alike else "")
        patch["outside"] = np.mean([len(run) / len(signs.FLOORS) for run in found[name]])
    means = {name: signs.mean(shape) for name, shape in shapes.items()}
    data = {
        "band": band,
        "signatures": means,
        "curves": {name: arm[0] for name, arm in curves.items()},
    }
    text = json.dumps(
        data | {"patches": patches}, default=lambda x: np.where(np.isfinite(x), x, None).tolist()
    )
    return json.loads(text, parse_float=lambda number: float(f"{float(number):.3g}"))


def tables(data: dict) -> dict[str, str]:
    """The texts of the page: the signs by metric, the table of all patches, and the false
    alarms."""
    patches, rows, kinds = data["patches"], [], []
    found = {name for patch in patches.values() for name in patch["signs"]}
    shown = [name for name in signs.FLOORS if name in found]
    controls = [name for name, patch in signs.patches().items() if "Harmless" in patch]
    for name, patch in patches.items():
        link, seeds = f"[{name}]({name}.diff)" if name else "healthy", len(patch["taken for"])
        cells = {}
        for metric, (step, side, n) in patch["signs"].items():
            count = f" ({n})" if n < seeds else ""
            cells[metric] = f"{'↑' if side > 0 else '↓'}{step}{count}"
        if cells:
            rows.append([link, *(cells.get(metric, "") for metric in shown)])
        gaps = [patch["accuracy"], patch["reward"]]
        if name in ("", *controls):
            kind = ""
        elif cells:
            kind = "a curve"
        else:
            slower = any(gap["interval"] and gap["interval"][1] < 0 for gap in gaps)
            kind = "a slower rise" if slower else "no metric"
        differences = [change(gap) for gap in gaps] if name else ["", ""]
        counts = Counter(patch["taken for"]).items()
        taken_for = ", ".join(f"{other or 'healthy'} {n}" for other, n in counts)
        finders = "; ".join(f"`{text.split('[')[0]}`" for text in patch["found by"].values())
        kinds.append([link, kind, *differences, taken_for, finders.replace("|", "\\|")])
    differences = ["accuracy at the end, points", "reward over training, points"]
    header = ["", "shown by", *differences, "taken for", "found by"]
    named = [patches[name]["taken for"].count(name) for name in data["signatures"]]
    healthy, harmless = (
        np.mean([patches[name]["outside"] for name in names]) for names in ([""], controls)
    )
    alarms = (
        f"Of the metrics of {seeds} further healthy seeds {healthy:.1%} leave the band, "
        f"of those of the controls {harmless:.1%}. Of the runs of patches with signs "
        f"{sum(named)} of {seeds * len(named)} are taken for what they are."
    )
    table = markdown(["", *(f"`{name}`" for name in shown)], rows)
    return {"signs": table, "kinds": markdown(header, kinds), "alarms": alarms}


def publish(data: dict) -> None:
    """Write the results, the tables of the page, and its pictures: ![metrics of patches](file)."""
    signs.RESULTS.write_text(compact(data, 2) + "\n", "utf-8")
    write_pages({PAGE: tables(data)})
    results = signs.results()
    for metrics, names, file in re.findall(r"!\[(.*) of (.*)\]\((.*)\)", PAGE.read_text("utf-8")):
        runs = {name: results["curves"][name] for name in names.split(", ")}
        figure = signs.draw(runs, metrics.split(", "), results["band"], 3)
        figure.savefig(signs.HERE / file, dpi=70)


def main(config: Config) -> None:
    """Make the runs that are missing, and with --publish write the results."""
    grid = Grid(config, "clinic")
    if config.found_by:
        shutil.rmtree(grid.path / "patches", ignore_errors=True)
        data = json.loads(signs.RESULTS.read_text("utf-8"))
    else:
        runs = runs_of(1, 10) if config.quick else runs_of(config.seeds)
        data = summary(grid.run(train, runs))
    if config.publish or config.found_by:
        patches = [Run(name, 0, 0) for name in signs.patches()]
        for result in grid.run(found_by, patches, "patches"):
            data["patches"][result["patch"]]["found by"] = result["found by"]
        publish(data)
    print(*tables(data).values(), sep="\n\n")


if __name__ == "__main__":
    main(parse(Config, __doc__))
