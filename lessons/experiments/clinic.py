"""The clinic's runs: every bug and every harmless change of lessons/clinic, applied to a copy of
the tree.

    python lessons/experiments/clinic.py              five seeds of each, and fifteen healthy runs
    python lessons/experiments/clinic.py --quick      one seed of ten steps, and eleven healthy runs
    python lessons/experiments/clinic.py --publish    also writes lessons/clinic/results.json, its
    pictures and tables

A run is grpo.py at its defaults, but for fewer held-out problems, and without the checks of the
model and of the first minibatch, which would stop some. Ten healthy seeds make the band. Patches
have other seeds, and so have the five further healthy runs that give the rate of false alarms.
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
from toy_env import RunFailed
from toy_env.cli import at_least, run_main
from toy_env.evaluate import evaluate, held_out
from toy_env.model import load_policy
from toy_env.tasks import load_task

ROOT, PAGE = signs.HERE.parents[1], signs.HERE / "README.md"
PARTS = ("algorithms", "lessons", "tests", "toy_env", "pyproject.toml")  # what is copied
SETTINGS = [
    "--measure_updates",
    "--eval_every=0",
    "--eval_problems=4",
    "--save_every=1000",
    "--run_dir=run",
]
TESTS = [f"tests/test_{name}.py" for name in ("rollout", "group_methods", "arithmetic")]
BAND, FURTHER = 10, 5  # healthy seeds that make the band, and those that try it
NO_CHECKS = "\ncheck_model = self_check = lambda *arguments, **settings: ''\n"  # at the end of toy_env/run.py


@dataclass
class Config(GridConfig):
    seeds: at_least(1, FURTHER) = FURTHER  # seeds of every bug and control
    steps: at_least(2, signs.STEPS) = signs.STEPS  # rollout batches of a run
    output: str = "runs/clinic"  # folder for the runs

    QUICK = {"seeds": 1, "steps": 10}


@dataclass(frozen=True)
class Run:
    """One training run under a patch; of the tree as it is under the patch ""."""

    patch: str
    seed: int
    steps: int


def runs_of(config: Config) -> list[Run]:
    """The seeds from 0 that make the band; then, from seed 10, the further healthy runs and those
    of all patches."""
    others = [
        (name, seed) for seed in range(BAND, BAND + config.seeds) for name in ("", *signs.patches())
    ]
    return [Run(*run, config.steps) for run in [("", seed) for seed in range(BAND)] + others]


def broken_copy(folder: Path, patch: str) -> None:
    """Copy the tree into a folder and apply a patch there. Raises RunFailed if it does not
    apply."""
    for part in PARTS:
        (shutil.copytree if (ROOT / part).is_dir() else shutil.copy)(ROOT / part, folder / part)
    here = {
        "cwd": folder,
        "env": os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)},
        "text": True,
    }
    if (
        patch
        and subprocess.run(
            ["git", "apply"], input=signs.patches()[patch]["patch"], **here
        ).returncode
    ):
        raise RunFailed(f"lessons/clinic/{patch}.diff does not apply")


def train(run: Run) -> dict:
    """Make a run. Returns the rows of its metrics, the line that ended it early, if one did, and
    the accuracy of the final policy, by the code of this tree, on 64 held-out problems of each
    level. The first seed of full length also returns what finds the patch: what a run with the base
    model says before its first update, and one of TESTS."""
    with tempfile.TemporaryDirectory() as name:
        folder, found = Path(name), {}

        def printed(*arguments: str) -> list[str]:
            here = {
                "cwd": folder,
                "env": os.environ | {"PYTHONPATH": name, "OMP_NUM_THREADS": "1"},
                "text": True,
            }
            both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            return subprocess.run([sys.executable, *arguments], **here, **both).stdout.splitlines()

        broken_copy(folder, run.patch)
        if run.patch and run.seed == BAND and run.steps == signs.STEPS:
            lines = printed(
                "algorithms/grpo.py", "--steps", "1", "--eval_problems", "1", "--run_dir", "try"
            )
            said = [line.strip() for line in lines if "rror: " in line or "do not sum to 0" in line]
            failed = [
                line
                for line in printed("-m", "pytest", "-qx", "--tb=no", "-rf", *TESTS)
                if line[:6] == "FAILED"
            ]
            lines = {
                "base": said[-1:],
                "tests": [line.split()[1].split("::")[1] for line in failed],
            }
            found = {what: last[0] for what, last in lines.items() if last}
        with (folder / "toy_env/run.py").open("a", encoding="utf-8") as file:
            file.write(NO_CHECKS)
        lines = printed(
            "algorithms/grpo.py", *SETTINGS, "--seed", str(run.seed), "--steps", str(run.steps)
        )
        path = folder / "run/metrics.jsonl"  # none if the first step has diverged
        rows = (
            [json.loads(line) for line in path.read_text("utf-8").splitlines()]
            if path.is_file()
            else []
        )
        if len(rows) < run.steps:
            return rounded({"rows": rows, "found by": found, "ended": lines[-1], "accuracy": None})
        problems = held_out(load_task("arithmetic"), 64, ())
        final = evaluate(
            *load_policy(str(folder / "run/checkpoint")), problems, samples=4, max_new_tokens=56
        )
        return rounded(
            {"rows": rows, "found by": found, "ended": "", "accuracy": float(final.correct.mean())}
        )


def in_most(found: list[dict]) -> dict[str, list[int]]:
    """Of the signs of each seed, by metric, those of four of five: [the step by which they are
    there, the side, how many], the first ones first."""
    common, needed = {}, len(found) - len(found) // 5
    for metric, side in ((metric, side) for metric in signs.FLOORS for side in (1, -1)):
        firsts = sorted(run[metric][0] for run in found if run.get(metric, (0, 0))[1] == side)
        if len(firsts) >= needed:
            common[metric] = [firsts[needed - 1], side, len(firsts)]
    return dict(sorted(common.items(), key=lambda sign: sign[1]))


def summary(runs: list[dict]) -> dict:
    """What is committed: the band, the curves of each patch's first seed, the signatures of patches
    with signs and, by patch, its signs, its differences from healthy runs of the same seeds, and
    what each seed is taken for, given the signatures of the other seeds. The patch "" stands for
    none."""
    arms: dict[str, list[dict]] = {}
    for run in runs:
        run["reward"] = float(np.mean([row["reward"] for row in run["rows"]]))
        arms.setdefault("band" if run["seed"] < BAND else run["patch"], []).append(run)
    curves = {name: [signs.curves(run["rows"]) for run in arm] for name, arm in arms.items()}
    band, patches = signs.band(curves.pop("band")), {}
    found = {name: [signs.signs(run, band) for run in arm] for name, arm in curves.items()}
    with_signs = [name for name in found if name and in_most(found[name]) and len(found[name]) > 1]
    shapes = {name: [signs.signature(run, band) for run in curves[name]] for name in with_signs}
    for name, arm in curves.items():
        pairs = {
            what: [[run[what] for run in arms[one]] for one in (name, "")]
            for what in ("accuracy", "reward")
        }
        taken_for = []
        for seed, run in enumerate(arm):
            others = {
                patch: signs.mean(shape[:seed] + shape[seed + 1 :])
                for patch, shape in shapes.items()
            }
            taken_for += [patch for _, patch in signs.diagnosis(run, band, others)[:1]] or [""]
        patches[name] = {what: difference(*pair) for what, pair in pairs.items()}
        patches[name] |= {
            "signs": in_most(found[name]),
            "taken for": taken_for,
            "found by": arms[name][0]["found by"],
        }
        patches[name]["outside"] = np.mean([len(run) / len(signs.FLOORS) for run in found[name]])
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
    """The texts of the page: the signs by metric, what shows each patch, and the false alarms."""
    patches, rows, kinds = data["patches"], [], []
    shown = [
        name for name in signs.FLOORS if any(name in patch["signs"] for patch in patches.values())
    ]
    controls = [name for name, patch in signs.patches().items() if "Harmless" in patch]
    for name, patch in patches.items():
        link, seeds = f"[{name}]({name}.diff)" if name else "healthy", len(patch["taken for"])
        cells = {
            m: f"{'↓ ↑'[side + 1]}{t}" + f" ({n})" * (n < seeds)
            for m, (t, side, n) in patch["signs"].items()
        }
        rows += [[link, *(cells.get(metric, "") for metric in shown)]] if cells else []
        slower = any(
            gap["interval"] and gap["interval"][1] < 0
            for gap in (patch["accuracy"], patch["reward"])
        )
        kind = (
            ""
            if name in ("", *controls)
            else "a curve"
            if cells
            else "a slower rise"
            if slower
            else "no metric"
        )
        gaps = [change(patch["accuracy"]), change(patch["reward"])] if name else ["", ""]
        counts = ", ".join(
            f"{other or 'healthy'} {n}" for other, n in Counter(patch["taken for"]).items()
        )
        checks = "; ".join(
            f"`{text.split('[')[0]}`" for text in patch["found by"].values()
        ).replace("|", "\\|")
        kinds.append([link, kind, *gaps, counts, checks])
    header = [
        "",
        "shown by",
        "accuracy at the end, points",
        "reward over training, points",
        "taken for",
        "found by",
    ]
    healthy, harmless = (
        np.mean([patches[name]["outside"] for name in names]) for names in ([""], controls)
    )
    named = [
        sum(other == name for other in patches[name]["taken for"]) for name in data["signatures"]
    ]
    share = f"Of the metrics of {seeds} further healthy seeds {healthy:.1%} leave the band, of those of the controls"
    right = f"Of the runs of patches with signs {sum(named)} of {seeds * len(named)} are taken for what they are"
    table = markdown(["", *(f"`{name}`" for name in shown)], rows)
    return {
        "signs": table,
        "kinds": markdown(header, kinds),
        "alarms": f"{share} {harmless:.1%}. {right}.",
    }


def main(config: Config) -> None:
    """Make the runs that are missing, and with --publish write the results, the tables of the page,
    and its pictures: ![metrics of patches](file)."""
    config = config.sized()
    with Grid(config, "clinic") as grid:
        data = summary(grid.run(train, runs_of(config)))
    print(*tables(data).values(), sep="\n\n")
    if config.publish:
        signs.RESULTS.write_text(compact(data, 2) + "\n", "utf-8")
        write_pages({PAGE: tables(data)})
        for metrics, names, file in re.findall(
            r"!\[(.*) of (.*)\]\((.*)\)", PAGE.read_text("utf-8")
        ):
            runs = {name: signs.results()["curves"][name] for name in names.split(", ")}
            signs.draw(runs, metrics.split(", "), signs.results()["band"], 3).savefig(
                signs.HERE / file, dpi=70
            )


if __name__ == "__main__":
    run_main(Config, main, __doc__)
