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
unnoticed: then give another --run_dir. A script can import the files beside it; if both import a
file of one name from different folders, rename one of the two. A duel at one learning rate says
nothing about others.
"""

import json
import shlex
import sys
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
from matplotlib.figure import Figure
from tyro.conf import Positional

from lessons.experiments.compare_figures import finish, tidy
from lessons.experiments.harness.grid import change, digest, markdown, short
from lessons.experiments.harness.paired import difference, seeds_needed
from lessons.experiments.harness.pool import in_parallel, silence
from toy_env.evaluation import held_out
from toy_env.model import pick_device
from toy_env.plots import BLUE, ORANGE
from toy_env.run import parse, read_flags
from toy_env.tasks import load_task

ALGORITHMS = Path(__file__).parents[2] / "algorithms"
NUMBERS = {"sampled": 3, "greedy": 3, "length": 1, "completions": 0}  # and their digits
PANELS = {  # metrics, with their headings in the picture
    "accuracy": "Accuracy of the training batches",
    "held_out": "Accuracy on held-out problems, sampled",
    "length": "Completion length, tokens",
}


@dataclass
class Config:
    """The settings of a duel. All others are those of the scripts."""

    scripts: Positional[tuple[str, str]]  # each a name or a path, in quotes with its own settings
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


def load(path: Path) -> ModuleType:
    """A file as a module, which can import the files beside it, as `python PATH` can."""
    spec = spec_from_file_location(f"script {path}", path)
    sys.modules[spec.name] = script = module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(script)
    return script


def read(typed: str, flags: list[str]) -> Arm:
    """A script as it was typed; its own settings come behind those of both, and win."""
    name, *own = shlex.split(typed)
    path = ALGORITHMS / f"{name}.py"
    if not path.is_file():
        path = Path(name).expanduser().resolve()
    if path.suffix != ".py" or not path.is_file():
        raise SystemExit(f"no script {name!r}; give a name such as grpo, or the path of a file")
    script, sys.argv = load(path), [str(path), *flags, *own]
    try:
        config = parse(script.Config, script.__doc__)
        held_out(load_task(config), 1, config.levels)  # ends here if there is no such task or level
    except SystemExit as mistake:
        raise SystemExit(f"{name}: {mistake}") from None
    settings = vars(config)
    if any(settings[name] for name in ("seed", "run_dir", "resume")):
        raise SystemExit("a duel sets seed, run_dir and resume of its runs; give it --seeds 3")
    settings["device"] = str(pick_device(settings["device"]))
    return Arm(str(path), path.read_text("utf-8"), settings)


def train(arm: Arm, seed: int, folder: Path) -> None:
    """Train silently, or go on with a run that was stopped."""
    own = {"seed": seed, "run_dir": str(folder), "resume": folder.exists()}
    script = load(Path(arm.script))
    with silence(f"{folder}.log"):
        script.train(script.Config(**arm.settings | own))
    (folder / "state.pt").unlink()  # three times as large as the model


def result(folder: Path) -> dict:
    """The numbers of a finished run before training and after, and its curves: a list of (step,
    value) for each panel."""
    results = json.loads((folder / "results.json").read_text("utf-8"))
    before, after = (results[when]["accuracy"]["all"] for when in ("before", "after"))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    after["completions"], rows[-1]["held_out"] = rows[-1]["completions"], after["sampled"]
    rows.insert(0, {"step": 0, "held_out": before["sampled"]})
    curves = {}
    for name in PANELS:
        curves[name] = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
    return {"before": before, "after": after, "curves": curves}


# ---------------------------------------------------------------------- the report


def differing(names: list[str], arms: list[Arm]) -> str:
    """A table of the settings in which two scripts differ, and of the names of their runs."""
    rows = []
    for name in arms[0].settings | arms[1].settings:
        values = [str(arm.settings.get(name, "has none")) for arm in arms]
        if values[0] != values[1]:
            rows.append([name, *values])
    return markdown(["settings that differ", *names], [*rows, ["folders", *map(str, arms)]])


def table(runs: list[list[dict]]) -> str:
    """Each number of both before training, at the end by seed, and its mean."""
    rows = []
    for number, digits in NUMBERS.items():
        for letter, of_arm in zip("AB", runs):
            ends = [run["after"][number] for run in of_arm]
            values = [of_arm[0]["before"].get(number, 0), *ends, np.mean(ends)]
            rows.append([f"{number}, {letter}", *(short(value, digits) for value in values)])
    return markdown(["seed", "before", *map(str, range(len(runs[0]))), "mean"], rows)


def verdict(runs: list[list[dict]], kind: str) -> str:
    """The paired difference of A and B at the end, and what it decides."""
    gap = difference(*([run["after"][kind] for run in of_arm] for of_arm in runs))
    said = f"Accuracy at the end, {kind}: A − B is {change(gap)} points"
    if not gap["interval"]:
        return f"{said}, without an interval: one seed, or the same difference on all."
    low, high = gap["interval"]
    decided = "A ends higher" if low > 0 else "A ends lower"
    if low <= 0 <= high:
        decided = "undecided, because the interval holds 0"
    needed = f"about {seeds_needed(gap['sd'], 0.01):,} seeds, by the spread of these"
    said += f" (paired by seed, with the 95 % t interval): {decided}."
    return f"{said}\n    One point would show in 80 % of repetitions with {needed}."


def draw(names: list[str], runs: list[list[dict]], path: Path) -> None:
    """The curves of every run, thin, and thick the mean of a script's seeds."""
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    for axis, (panel, heading) in zip(figure.subplots(1, 3), PANELS.items()):
        for name, of_arm, color in zip(names, runs, (BLUE, ORANGE)):
            x, y = np.array([run["curves"][panel] for run in of_arm]).T  # (points, seeds) each
            axis.plot(x, y, color=color, linewidth=0.7, alpha=0.5)
            axis.plot(x[:, 0], y.mean(axis=1), ".-", color=color, linewidth=2, label=name)
        axis.xaxis.get_major_locator().set_params(integer=True)
        tidy(axis, heading, "step")
    finish(figure, path)


def main() -> None:
    """Print the settings that differ, make the runs that are missing, print the report and draw the
    curves."""
    config, flags = read_flags(Config, __doc__)
    if config.seeds < 1:
        raise SystemExit("--seeds must be 1 or more")
    arms = [read(typed, flags) for typed in config.scripts]
    if arms[0] == arms[1]:
        raise SystemExit("the same script with the same settings twice; change one of them")
    names = [f"{letter}: {typed}" for letter, typed in zip("AB", config.scripts)]
    print(differing(names, arms))
    folder = Path(config.run_dir).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    tasks = [(arm, seed, folder / f"{arm}-{seed}") for seed in range(config.seeds) for arm in arms]
    missing = [task for task in tasks if not (task[2] / "results.json").is_file()]
    # Several large models, or several on one GPU, may not fit into memory.
    places = {arm.settings[name] for arm in arms for name in ("device", "model")}
    in_parallel(train, missing, at_once=0 if places == {"cpu", "base"} else 1)
    results = [result(path) for *_, path in tasks]
    runs = [results[::2], results[1::2]]
    picture = folder / f"{arms[0]}-{arms[1]}.png"
    draw(names, runs, picture)
    report = ["", table(runs), "", verdict(runs, "sampled"), verdict(runs, "greedy")]
    print(*report, f"The runs and {picture.name}, the curves, are in {folder}", sep="\n")


if __name__ == "__main__":
    main()
