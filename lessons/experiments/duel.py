"""A duel: two scripts, or one under two settings, trained on the same seeds and compared.

    python -m lessons.experiments.duel grpo dr_grpo --seeds 5 --steps 15
    python -m lessons.experiments.duel "grpo --kl_coef 0" "grpo --kl_coef 0.04"
    python -m lessons.experiments.duel my_variants/lite.py batch_sigma --levels 3 4

A script is a name in algorithms/, or the path of a file with a `Config` and a `train` like those
there, wherever it lies. In quotes it may have settings of its own; those behind both scripts go to
both. Each run is the script's own `train`. What it prints is in a log beside its folder. Each core
makes a run at a time; on a GPU, or with another --model, there is one at a time.

The same command goes on where it stopped, and more --seeds add to those that are done. After a
change to a script, only its own runs are made again. A change to a module that it imports goes
unnoticed: then give another --run_dir.
"""

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from itertools import product
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import numpy as np
import tyro
from matplotlib.figure import Figure

from lessons.experiments.compare_figures import finish, tidy
from lessons.experiments.harness.grid import change, digest, short
from lessons.experiments.harness.paired import difference, seeds_needed
from lessons.experiments.harness.pool import in_parallel, silence
from toy_env.model import pick_device
from toy_env.plots import BLUE, ORANGE
from toy_env.run import parse

ALGORITHMS = Path(__file__).parents[2] / "algorithms"
COLUMNS = {"sampled": 3, "greedy": 3, "length": 1, "completions": 0}  # of the table, with digits
PANELS = {  # metrics, with their headings in the picture
    "accuracy": "Accuracy of the training batches",
    "held_out": "Accuracy on held-out problems, sampled",
    "length": "Completion length, tokens",
}


@dataclass
class Config:
    """The settings of a duel. All others are those of the scripts."""

    seeds: int = 3  # seeds 0, 1, ... of both
    run_dir: str = "runs/duel"  # folder of all runs and pictures


@dataclass(frozen=True)
class Arm:
    """One of the two."""

    script: str  # its path
    text: str  # of the script, which may change before the next duel
    settings: dict

    def __str__(self) -> str:
        return f"{Path(self.script).stem}-{digest(self)[:8]}"


# ---------------------------------------------------------------------- the two scripts


@contextmanager
def loaded(path: Path) -> Iterator[ModuleType]:
    """Inside, a file as a module, which can import the files beside it, as `python PATH` can. Then
    all of these are forgotten, because another folder may have files with the same names."""
    known, spec = {*sys.modules}, spec_from_file_location(f"script {path}", path)
    sys.modules[spec.name] = script = module_from_spec(spec)
    with patch.object(sys, "path", [str(path.parent), *sys.path]):
        spec.loader.exec_module(script)
        yield script
    for name in sys.modules.keys() - known:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == path.parent:
            del sys.modules[name]


def read(typed: str, flags: list[str]) -> Arm:
    """A script as it was typed; its own settings come behind those of both, and win."""
    name, *own = shlex.split(typed)
    path = ALGORITHMS / f"{name}.py"
    if not path.is_file():
        path = Path(name).expanduser().resolve()
    if path.suffix != ".py" or not path.is_file():
        raise SystemExit(f"no script {name!r}; give a name such as grpo, or the path of a file")
    with loaded(path) as script, patch.object(sys, "argv", [str(path), *flags, *own]):
        try:
            settings = vars(parse(script.Config, script.__doc__))
        except SystemExit as mistake:
            raise SystemExit(f"{name}: {mistake}") from None
    if settings["seed"] or settings["run_dir"] or settings["resume"]:
        raise SystemExit("a duel sets seed, run_dir and resume of its runs; give it --seeds 3")
    settings["device"] = str(pick_device(settings["device"]))
    return Arm(str(path), path.read_text("utf-8"), settings)


def train(arm: Arm, seed: int, folder: Path) -> None:
    """Train silently, or go on with a run that was stopped."""
    own = {"seed": seed, "run_dir": str(folder), "resume": folder.exists()}
    with loaded(Path(arm.script)) as script, silence(f"{folder}.log"):
        script.train(script.Config(**arm.settings | own))
    (folder / "state.pt").unlink()  # three times as large as the model


def result(folder: Path) -> dict:
    """The numbers of a finished run before training and after, and the rows of its log from step 0
    on."""
    results = json.loads((folder / "results.json").read_text("utf-8"))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    before, after = (results[when]["accuracy"]["all"] for when in ("before", "after"))
    before["completions"], after["completions"] = 0, rows[-1]["completions"]
    rows[-1]["held_out"] = after["sampled"]
    return {"before": before, "after": after, "rows": [{"held_out": before["sampled"]}, *rows]}


# ---------------------------------------------------------------------- the report


def aligned(rows: list[list[str]]) -> str:
    """A table in columns."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def differing(arms: list[Arm]) -> str:
    """A table of the settings in which two scripts differ."""
    rows = [["settings that differ", "A", "B"]]
    for name in arms[0].settings | arms[1].settings:
        values = [str(arm.settings.get(name, "has none")) for arm in arms]
        if values[0] != values[1]:
            rows.append([name, *values])
    return aligned(rows) if rows[1:] else "no setting differs"


def table(runs: list[list[dict]]) -> str:
    """Each number of both before training, at the end by seed, and its mean."""
    columns = [["seed", "before", *map(str, range(len(runs[0]))), "mean"]]
    for (number, digits), (letter, of_arm) in product(COLUMNS.items(), zip("AB", runs)):
        ends = [run["after"][number] for run in of_arm]
        values = [of_arm[0]["before"][number], *ends, np.mean(ends)]
        columns.append([f"{letter} {number}", *(short(value, digits) for value in values)])
    return aligned([*zip(*columns)])


def verdict(runs: list[list[dict]], kind: str) -> str:
    """The paired difference of A and B at the end, and what it decides."""
    first, second = ([run["after"][kind] for run in of_arm] for of_arm in runs)
    gap = difference(first, second)
    said = f"{kind}: A − B is {change(gap)} points"
    if not gap["interval"]:
        why = "one seed gives no interval" if len(first) == 1 else "it is the same on every seed"
        return f"{said}: {why}."
    low, high = gap["interval"]
    decided = "A ends higher" if low > 0 else "A ends lower"
    if low <= 0 <= high:
        decided = "undecided, because the interval holds 0"
    needed = f"about {seeds_needed(gap['sd'], 0.01):,} seeds, by the spread of these {len(first)}"
    return f"{said}: {decided}.\n    One point would show in 80 % of repetitions with {needed}."


def draw(names: list[str], runs: list[list[dict]], path: Path) -> None:
    """The curves of every run, thin, and thick the mean of a script's seeds."""
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    for axis, (panel, heading) in zip(figure.subplots(1, 3), PANELS.items()):
        for name, of_arm, color, dashes in zip(names, runs, (BLUE, ORANGE), ("-", "--")):
            rows = [[row.get(panel) for row in run["rows"]] for run in of_arm]  # (seeds, steps)
            curves = np.array(rows, dtype=float)  # None becomes NaN
            (steps,) = np.isfinite(curves).all(axis=0).nonzero()
            values = curves[:, steps].T  # (steps, seeds)
            axis.plot(steps, values, dashes, color=color, linewidth=0.7, alpha=0.5)
            axis.plot(steps, values.mean(axis=1), dashes, color=color, linewidth=2, label=name)
        tidy(axis, heading, "step")
    finish(figure, path)


def main() -> None:
    """Print the settings that differ, make the runs that are missing, print the report and draw the
    curves."""
    _, *typed = sys.argv[:3]
    rest = sys.argv[3:] if len(typed) == 2 else ["--help"]
    config, flags = tyro.cli(
        Config, args=rest, description=__doc__, return_unknown_args=True, use_underscores=True
    )
    if config.seeds < 1:
        raise SystemExit("--seeds must be 1 or more")
    first, second = arms = [read(text, flags) for text in typed]
    if first == second:
        raise SystemExit("the same script with the same settings twice; change one of them")
    names = [f"{letter}: {text}" for letter, text in zip("AB", typed)]
    folder = Path(config.run_dir).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    for name, arm in zip(names, arms):
        print(f"{name}   ({folder / str(arm)}-*)")
    print(f"\n{differing(arms)}\n")
    tasks = [(arm, seed, folder / f"{arm}-{seed}") for seed in range(config.seeds) for arm in arms]
    missing = [task for task in tasks if not (task[2] / "results.json").is_file()]
    # Several large models, or several on one GPU, may not fit into memory.
    light = all(arm.settings["device"] == "cpu" and arm.settings["model"] == "base" for arm in arms)
    in_parallel(train, missing, at_once=0 if light else 1)
    results = [result(path) for _, _, path in tasks]
    runs = [results[::2], results[1::2]]
    picture = folder / f"{first}-{second}.png"
    draw(names, runs, picture)
    verdicts = [verdict(runs, kind) for kind in ("sampled", "greedy")]
    print(table(runs), "", *verdicts, f"The curves are in {picture}", sep="\n")


if __name__ == "__main__":
    main()
