"""A duel: two scripts, or one under two settings, trained on the same seeds and compared.

    python -m lessons.experiments.duel grpo dr_grpo --seeds 5 --steps 15
    python -m lessons.experiments.duel "grpo --kl_coef 0" "grpo --kl_coef 0.04"
    python -m lessons.experiments.duel my_variants/lite.py batch_sigma --levels 3 4

A script is a name in algorithms/, or the path of a file with a `Config` and a `train` like those
there, wherever it lies. In quotes it may have settings of its own; those behind both scripts go to
both. Each run is the script's own `train`. What it prints is in a log beside its folder.

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
from itertools import takewhile
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
USAGE = 'python -m lessons.experiments.duel grpo "dr_grpo --kl_coef 0" --seeds 3 --steps 15'
COLUMNS = "sampled", "greedy", "length", "completions"
OF_A_RUN = {"seed": 0, "run_dir": "", "resume": False}  # settings that belong to the duel
PANELS = {  # metrics, with their headings in the picture
    "accuracy": "Accuracy of the training batches",
    "held_out": "Accuracy on held-out problems, sampled",
    "length": "Completion length, tokens",
}


@dataclass
class Config:
    """The settings of a duel. All others are those of the scripts."""

    seeds: int = 3  # seeds 0, 1, ... of both
    at_once: int = 0  # runs at a time; by default one per core, on a GPU or with a --model one
    run_dir: str = "runs/duel"  # folder of all runs and pictures


@dataclass(frozen=True)
class Arm:
    """One of the two."""

    script: str  # its path
    text: str  # of the script, which may be changed before the next duel
    settings: dict

    def name(self) -> str:
        """The script's name and a hash of all that it is."""
        return f"{Path(self.script).stem}-{digest(self)[:8]}"


# ---------------------------------------------------------------------- the two arms


def find(name: str) -> Path:
    """The file of a script, from its name or its path. Raises SystemExit if there is none."""
    ours = ALGORITHMS / f"{name}.py"
    path = ours if ours.is_file() else Path(name).expanduser().resolve()
    if path.suffix != ".py" or not path.is_file():
        known = ", ".join(sorted(path.stem for path in ALGORITHMS.glob("[a-z]*.py")))
        raise SystemExit(f"no script {name!r}; give the path of a file, or one of {known}")
    return path


@contextmanager
def loaded(path: str | Path) -> Iterator[ModuleType]:
    """Inside, a file as a module, which can import the files beside it, as `python PATH` can. Then
    all of these are forgotten, because another folder may have files with the same names."""
    folder, known = Path(path).parent, {*sys.modules}
    spec = spec_from_file_location(f"script {path}", path)
    sys.modules[spec.name] = script = module_from_spec(spec)
    with patch.object(sys, "path", [str(folder), *sys.path]):
        spec.loader.exec_module(script)
        if not {"Config", "train"} <= vars(script).keys():
            raise SystemExit(f"{path} is no script: it needs a Config and a train(config)")
        yield script
    for name in sys.modules.keys() - known:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == folder:
            del sys.modules[name]


def read(typed: str, flags: list[str]) -> Arm:
    """An arm as it was typed. Its own settings go before those of both."""
    name, *own = shlex.split(typed) or [""]
    path = find(name)
    with loaded(path) as script, patch.object(sys, "argv", [str(path), *flags, *own]):
        settings = vars(parse(script.Config, script.__doc__))
    if any(settings.pop(name) != default for name, default in OF_A_RUN.items()):
        raise SystemExit("a duel sets seed, run_dir and resume itself; give --seeds 3, --run_dir")
    settings["device"] = str(pick_device(settings["device"]))
    return Arm(str(path), path.read_text("utf-8"), settings)


def differences(first: dict, second: dict) -> list[list[str]]:
    """The settings in which two arms differ. One that an arm does not have is shown as "none"."""
    rows = []
    for name in first | second:
        values = [str(settings.get(name, "none")) for settings in (first, second)]
        if values[0] != values[1]:
            rows.append([name, *values])
    return rows


# ---------------------------------------------------------------------- runs


def train(arm: Arm, seed: int, folder: Path) -> None:
    """Train silently, or go on with a run that was stopped."""
    own = {"seed": seed, "run_dir": str(folder), "resume": folder.exists()}
    with loaded(arm.script) as script, silence(f"{folder}.log"):
        script.train(script.Config(**arm.settings | own))
    (folder / "state.pt").unlink()  # three times as large as the model


def result(folder: Path) -> dict:
    """The held-out reports of a finished run, and by panel a value for each step from 0 on, or
    None."""
    results = json.loads((folder / "results.json").read_text("utf-8"))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    before, after = (results[when]["accuracy"]["all"] for when in ("before", "after"))
    rows[-1]["held_out"] = after["sampled"]
    curves = {panel: [None, *(row[panel] for row in rows)] for panel in PANELS}
    curves["held_out"][0] = before["sampled"]
    before["completions"], after["completions"] = 0, rows[-1]["completions"]
    return {"before": before, "after": after, "curves": curves}


# ---------------------------------------------------------------------- the report


def aligned(rows: list[list[str]]) -> str:
    """A table in columns."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def line(name: str, reports: list[dict]) -> list[str]:
    """A line of the table, with means over held-out reports."""
    means = [np.mean([report[column] for report in reports]) for column in COLUMNS]
    return [name, short(means[0]), short(means[1]), f"{means[2]:.1f}", f"{means[3]:,.0f}"]


def table(runs: dict[str, list[dict]], gaps: list[dict]) -> str:
    """Both arms before and after training, mean and each seed, and their differences."""
    rows = [line(f"{name} before", [of_arm[0]["before"]]) for name, of_arm in runs.items()]
    if rows[0][1:] == rows[1][1:]:
        rows = [["before", *rows[0][1:]]]
    for name, of_arm in runs.items():
        ends = [run["after"] for run in of_arm]
        rows.append(line(f"{name} after", ends))
        rows += [line(f"  seed {seed}", [end]) for seed, end in enumerate(ends)]
    rows.append(["B - A in points", *map(change, gaps), "", ""])
    return aligned([["", *COLUMNS], *rows])


def verdict(gap: dict, seeds: int) -> str:
    """What the paired difference of B and A decides."""
    if seeds == 1:
        return "undecided: one seed gives no interval; give --seeds 3 or more"
    if gap["interval"] is None:
        return "the difference is the same on every seed, which gives no interval"
    low, high = gap["interval"]
    decided = "B ends higher" if low > 0 else "B ends lower"
    if low <= 0 <= high:
        decided = "undecided, because the interval holds 0; that does not make them equal"
    needed = seeds_needed(gap["sd"], 0.01)
    return f"{decided}. To see one point in 80 % of repetitions takes {needed:,} seeds"


def draw(runs: dict[str, list[dict]], path: Path) -> None:
    """The curves of every run, thin, and thick the mean of an arm's seeds."""
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    for axis, (panel, heading) in zip(figure.subplots(1, 3), PANELS.items()):
        for (name, of_arm), color, dashes in zip(runs.items(), (BLUE, ORANGE), ("-", "--")):
            curves = np.array([run["curves"][panel] for run in of_arm], dtype=float)
            (steps,) = np.isfinite(curves).all(axis=0).nonzero()
            ys = curves[:, steps].T  # (steps, seeds)
            axis.plot(steps, ys, dashes, color=color, linewidth=0.7, alpha=0.5)
            axis.plot(steps, ys.mean(axis=1), dashes, color=color, linewidth=2, label=name)
        tidy(axis, heading, "step")
    finish(figure, path)


def main() -> None:
    """Make the runs that are missing, print the report and draw the curves."""
    typed = [*takewhile(lambda word: not word.startswith("-"), sys.argv[1:])]
    config, flags = tyro.cli(
        Config,
        args=sys.argv[1 + len(typed) :],
        description=__doc__,
        return_unknown_args=True,
        use_underscores=True,
    )
    if len(typed) != 2 or config.seeds < 1:
        raise SystemExit(f"give two scripts, then the settings of both: {USAGE}")
    arms = [read(text, flags) for text in typed]
    if arms[0] == arms[1]:
        raise SystemExit("these are the same script with the same settings; change one of them")
    folder = Path(config.run_dir).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    named = [f"{letter}: {text}" for letter, text in zip("AB", typed)]
    differing = differences(*(arm.settings for arm in arms)) or [["none", "", ""]]
    print(*named, "", aligned([["settings that differ", "A", "B"], *differing]), "", sep="\n")

    tasks = [
        (arm, seed, folder / f"{arm.name()}-{seed}") for seed in range(config.seeds) for arm in arms
    ]
    missing = [task for task in tasks if not (task[2] / "results.json").is_file()]
    light = all(arm.settings["device"] == "cpu" and arm.settings["model"] == "base" for arm in arms)
    in_parallel(train, missing, at_once=config.at_once or (0 if light else 1))
    results = [result(path) for *_, path in tasks]
    runs = {"A": results[::2], "B": results[1::2]}
    gaps = []
    for kind in COLUMNS[:2]:
        ends = ([run["after"][kind] for run in of_arm] for of_arm in (runs["B"], runs["A"]))
        gaps.append(difference(*ends))
    print(table(runs, gaps), "", sep="\n")
    for kind, gap in zip(COLUMNS, gaps):
        print(f"{kind}: {verdict(gap, config.seeds)}")
    picture = folder / f"{arms[0].name()}-{arms[1].name()}.png"
    draw(dict(zip(named, runs.values())), picture)
    print(f"\nSee {picture} and the runs in {folder}")


if __name__ == "__main__":
    main()
