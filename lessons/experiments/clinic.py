"""The clinic's runs: every bug and every harmless change of lessons/clinic, applied to a copy of
the tree, and healthy runs of all scripts.

    python lessons/experiments/clinic.py               the runs of patches that have no results yet
    python lessons/experiments/clinic.py --quick       one seed of ten steps, eleven healthy runs
    python lessons/experiments/clinic.py --publish     also write results, benchmark, page, pictures

Without results.json all runs are made anew. A run is grpo.py at its defaults, but with fewer
held-out problems, and without the check of the first minibatch, which would stop some. Ten healthy
seeds make the band. Patches have other seeds, and so have further healthy runs.
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
from itertools import product
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
from toy_env.run import RunConfig, parse

ROOT, PAGE = signs.HERE.parents[1], signs.HERE / "TABLES.md"
BENCHMARK = signs.HERE / "benchmark.jsonl.gz"
PARTS = ("algorithms", "lessons", "tests", "toy_env", "pyproject.toml")  # what is copied
SETTINGS = ["--eval_every=0", "--eval_problems=4", "--save_every=1000", "--run_dir=run"]
BAND = 10  # healthy seeds that make the band
NO_CHECK = "\ncheck_ratio = lambda *arguments: None\n"  # at the end of toy_env/metrics.py
SCRIPTS = ("cispo", "dapo", "dr_grpo", "gspo", "maxrl", "ppo", "reinforce", "rloo")
OTHERS = ("--task=expressions", "--learning_rate=1e-4", "--learning_rate=4e-4")
OTHERS += ("--num_minibatches=1",)  # healthy settings that are not the band's


@dataclass
class Config(GridConfig):
    seeds: int = 5  # seeds of every bug and control


@dataclass(frozen=True)
class Run:
    """One training run under a patch; of the tree as it is under the patch ""."""

    patch: str
    seed: int
    steps: int = signs.STEPS
    script: str = "grpo"
    settings: str = ""  # one more setting, such as --learning_rate=1e-4


def runs_of(seeds: int, known: dict, steps: int = signs.STEPS) -> list[Run]:
    """The healthy seeds that make the band, unless it is known; then, from seed 10, further healthy
    runs and those of all patches that are not known."""
    runs = [] if known else [Run("", seed, steps) for seed in range(BAND)]
    new = [name for name in signs.patches() if name not in known.get("patches", ())]
    for seed in range(BAND, BAND + seeds):
        runs += [Run(patch, seed, steps) for patch in ("", *new)]
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


def train(run: Run) -> dict:
    """Make a run. Returns the rows of its metrics, and the accuracy of the final policy, by the
    code of this tree, on 64 held-out problems of each level."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broken_copy(folder, run.patch)
        with (folder / "toy_env/metrics.py").open("a", encoding="utf-8") as file:
            file.write(NO_CHECK)
        program = ["-m", "lessons.experiments.update_norm", f"algorithms/{run.script}.py"]
        settings = [f"--seed={run.seed}", f"--steps={run.steps}", *run.settings.split()]
        env = {"PYTHONPATH": name, "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
        command = [sys.executable, *program, *SETTINGS, *settings]
        subprocess.run(command, cwd=folder, env=os.environ | env, capture_output=True)
        lines = (folder / "run/metrics.jsonl").read_text("utf-8").splitlines()
        policy, tokenizer = load_policy(str(folder / "run/checkpoint"))
        problems = held_out(arithmetic, 64, ())
        final = evaluate(policy, tokenizer, problems, samples=4, max_new_tokens=56)
        accuracy = float(final.correct.mean())
        return rounded({"rows": [json.loads(line) for line in lines], "accuracy": accuracy})


def in_most(found: list[dict]) -> dict[str, list[int]]:
    """The signs that four of five seeds share, by metric: [the step by which these have it, the
    side, the number of seeds]; the first ones first. found: the signs of each seed."""
    common, needed = {}, len(found) - len(found) // 5
    for metric, side in product(signs.FLOORS, (1, -1)):
        firsts = sorted(run[metric][0] for run in found if run.get(metric, (0, 0))[1] == side)
        if len(firsts) >= needed:
            common[metric] = [firsts[needed - 1], side, len(firsts)]
    return dict(sorted(common.items(), key=lambda sign: sign[1]))


def acting() -> dict:
    """The settings of the band that act on curves, as config.json has them."""
    settings = json.loads(json.dumps(vars(grpo.Config())))
    names = settings.keys() - vars(RunConfig()).keys() | {"task", "levels", "model", "dtype"}
    return {"script": "grpo"} | {name: settings[name] for name in sorted(names)}


def summary(runs: list[dict], known: dict) -> dict:
    """The results that are committed: the band, the curves of each patch's first seed, the
    signatures of patches with signs and, by patch, its signs, its differences from healthy runs of
    the same seeds, and the patch that each seed is most alike, given the signatures of the other
    seeds. The patch "" stands for none. known: earlier results, which are kept."""
    arms = {}
    for run in runs:
        run["reward"] = float(np.mean([row["reward"] for row in run["rows"]]))
        arms.setdefault("band" if run["seed"] < BAND else run["patch"], []).append(run)
    curves = {name: [signs.curves(run["rows"]) for run in arm] for name, arm in arms.items()}
    data = known or {"settings": acting(), "band": signs.band(curves.pop("band"))}
    band, shapes = np.array(data["band"], dtype=float), {}
    parts = [data.setdefault(part, {}) for part in ("signatures", "curves", "patches")]
    for name in [name for name in curves if name not in parts[2]]:
        found = [signs.signs(run, band) for run in curves[name]]
        patch = parts[2][name] = {"signs": in_most(found)}
        for what in ("accuracy", "reward"):
            here, healthy = ({run["seed"]: run[what] for run in arms[one]} for one in (name, ""))
            patch[what] = difference([*here.values()], [healthy[seed] for seed in here])
        patch["outside"] = np.mean([len(run) / len(signs.FLOORS) for run in found])
        parts[1][name] = curves[name][0]
        shapes[name] = [signs.signature(run, band) for run in curves[name]]
        if patch["signs"] and name and len(found) > 1:
            parts[0][name] = signs.mean(shapes[name])
    means = {name: np.array(mean, dtype=float) for name, mean in parts[0].items()}
    for name, own in shapes.items():
        taken = parts[2][name]["taken for"] = []
        for seed, run in enumerate(curves[name]):
            rest = {name: signs.mean(own[:seed] + own[seed + 1 :])} if name in means else {}
            alike = signs.diagnosis(run, band, means | rest)
            taken.append(alike[0][1] if alike else "")
    text = json.dumps(data, default=lambda x: np.where(np.isfinite(x), x, None).tolist())
    return json.loads(text, parse_float=lambda number: float(f"{float(number):.3g}"))


def tables(data: dict) -> dict[str, str]:
    """The tables of the page: the signs by metric, and all patches."""
    patches, rows, kinds = data["patches"], [], []
    shown = [name for name in signs.FLOORS if any(name in p["signs"] for p in patches.values())]
    headers = signs.patches()
    for name, patch in patches.items():
        link, seeds = f"[{name}]({name}.diff)" if name else "healthy", len(patch["taken for"])
        cells = {}
        for metric, (step, side, n) in patch["signs"].items():
            count = f" ({n})" if n < seeds else ""
            cells[metric] = f"{'↑' if side > 0 else '↓'}{step}{count}"
        if cells:
            rows.append([link, *(cells.get(metric, "") for metric in shown)])
        gaps = [patch["accuracy"], patch["reward"]]
        slower = any(gap["interval"] and gap["interval"][1] < 0 for gap in gaps)
        kind = "a curve" if cells else "a slower rise" if slower else "no metric"
        where = headers.get(name, {}).get("Class", "")
        counts = Counter(patch["taken for"]).items()
        taken_for = ", ".join(f"{other or 'healthy'} {n}" for other, n in counts)
        kinds.append([link, where, kind * bool(where), *map(change, gaps), taken_for])
    table = markdown(["", *(f"`{name}`" for name in shown)], rows)
    differences = ["accuracy at the end, points", "reward over training, points"]
    kinds = markdown(["", "class", "shown by", *differences, "most alike"], kinds)
    return {"signs": table, "kinds": kinds}


def benchmark(results: list[dict]) -> str:
    """JSON lines, one for each run: what it is, its settings, and its rows in TRL's names, or in
    ours where TRL has none. reward_std is TRL's, with G - 1 degrees of freedom."""
    names, headers, lines = {ours: trl for trl, ours in TRL.items()}, signs.patches(), []
    for run in results:
        header, log = headers.get(run["patch"], {}), []
        kind = "bug" if "Fix" in header else "control" if header else "healthy"
        for row in run["rows"]:
            row["reward_std"] = round(row["sigma"] * np.sqrt(8 / 7), 4)
            numbers = {name: x for name, x in row.items() if isinstance(x, float | int)}
            log.append({names.get(name, name): x for name, x in numbers.items()})
        about = {"kind": kind, "class": header.get("Class", ""), "patch": run["patch"]}
        settings = dict(x[2:].split("=") for x in run["settings"].split())
        about["settings"] = {"script": run["script"], "seed": run["seed"]} | settings
        lines.append(json.dumps(about | {"log_history": log}))
    return "\n".join(lines) + "\n"


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
    grid, known = Grid(config, "clinic"), {}
    if signs.RESULTS.is_file() and not config.quick:
        known = json.loads(signs.RESULTS.read_text("utf-8"))
    runs = runs_of(1, {}, 10) if config.quick else runs_of(config.seeds, known)
    data = summary(grid.run(train, runs), known)
    if config.publish:
        runs = [Run(patch, BAND) for patch in ("", *signs.patches())]
        runs += [Run("", BAND, script=script) for script in SCRIPTS]
        runs += [Run("", BAND, settings=other) for other in OTHERS]
        BENCHMARK.write_bytes(gzip.compress(benchmark(grid.run(train, runs)).encode(), mtime=0))
        publish(data)
    print(*tables(data).values(), sep="\n\n")


if __name__ == "__main__":
    main(parse(Config, __doc__))
