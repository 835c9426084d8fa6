"""The scripts against each other, over ten seeds: tables with paired statistics, and figures.

    python lessons/experiments/compare.py                      the scripts as they are
    python lessons/experiments/compare.py --quick              3 seeds, 25 steps
    python lessons/experiments/compare.py --experiments pieces ablation
    python lessons/experiments/compare.py --first_seed 200     a replication

Every run is the script's own `train`. A run that several experiments need is made once, and a run
that was stopped is continued. Experiments:

    shared       all nine scripts at one learning rate
    no_kl        the same, but without the KL of the six that have one
    matched      the ladder's five, at rates at which all mean updates are as long as GRPO's
    pieces       GRPO with one of Dr. GRPO's two changes: no / sigma, no / length
    ablation     from GRPO to DAPO one change at a time, as in DAPO's Table 1
    movement     its last change, dynamic sampling, at a rate at which its updates are as long as
                 those without it, beside the row above
    sampling     pass@k and majority@k of the base model and of the ladder's five after `shared`

With --publish the numbers go to results.json, the figures to figures/, and the tables into
README.md of this folder (and one onto the front page). Statistics need `pip install -e '.[stats]'`.
"""

import json
import platform
import re
import shutil
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Literal, get_args
from unittest.mock import patch

import numpy as np
import torch

from lessons.experiments import compare_figures, compare_tables, paired
from lessons.experiments.compare_tables import LADDER, README, RESULTS
from lessons.experiments.grid import Grid, GridConfig, compact, into_page, rounded, write_pages
from lessons.experiments.pool import silence
from lessons.experiments.update_norm import measured
from lessons.workshop.losses import averaged_as_grpo
from toy_env.arithmetic import LEVELS, extract_answer, held_out_problems
from toy_env.evaluate import majority_at_k, pass_at_k
from toy_env.held_out import evaluate
from toy_env.model import load_policy
from toy_env.run import parse

SCRIPTS = LADDER | {"RLOO": "rloo", "MaxRL": "maxrl", "GSPO": "gspo", "CISPO": "cispo"}
COMMON = {"eval_every": 5}  # settings of every run
OFTEN = {"eval_every": 2}  # dynamic sampling draws more a step, so that curves have as many points
RATE = 2e-4
KS, SAMPLES = (1, 2, 4, 8, 16, 32, 64), 128  # for pass@k and majority@k

# At the defaults no completion reaches the limit of 56 tokens, and with 4 updates a batch the clip
# hardly ever binds.
ABLATION_SETTING = {"max_new_tokens": 36, "num_minibatches": 16}
SAMPLE_LEVEL = "sample-level loss"
ABLATION = {  # each change against the row above; until "+ token-level loss" all are SAMPLE_LEVEL
    "GRPO without KL": {"dynamic_sampling": False, "clip_eps_high": 0.2, "overlong_buffer": 0},
    "+ overlong filtering": {"overlong_filtering": True},
    "+ clip-higher": {"clip_eps_high": 0.28},
    "+ soft overlong punishment": {"overlong_buffer": 8},
    "+ token-level loss": {},
    "+ dynamic sampling": {"dynamic_sampling": True} | OFTEN,
}
Experiment = Literal["shared", "no_kl", "matched", "pieces", "ablation", "movement", "sampling"]


@dataclass
class Config(GridConfig):
    experiments: tuple[Experiment, ...] = ()  # by default shared, or with --publish all
    first_seed: int = 0  # the first seed of every comparison
    seeds: int = 10  # seeds first_seed, first_seed + 1, ...
    steps: int = 60  # rollout batches of every run
    quick: bool = False  # 3 seeds and 25 steps, in the folder OUTPUT-quick
    output: str = "runs/compare"  # folder for the runs, the numbers and the figures

    QUICK = {"seeds": 3, "steps": 25}
    LEAST_SEEDS = 2


# ---------------------------------------------------------------------- arms


@dataclass(frozen=True)
class Arm:
    """A script with its settings, trained with several seeds. `replaced` names a function that is
    taken from dr_grpo.py instead; SAMPLE_LEVEL stands for dapo.py's loss, averaged as in GRPO."""

    name: str  # names its folders
    script: str
    settings: dict = field(default_factory=dict)
    replaced: str = ""


def of_script(title: str, rate: float = RATE, kl: bool = True) -> Arm:
    """A script as it is, except for its learning rate and KL."""
    name, settings = title, dict(COMMON)
    if SCRIPTS[title] in ("dapo", "cispo"):
        settings |= OFTEN
    if not kl:
        name, settings = f"{name} + no KL", settings | {"kl_coef": 0.0}
    if rate != RATE:
        name, settings = f"{name} {rate:g}", settings | {"learning_rate": rate}
    return Arm(name, SCRIPTS[title], settings)


def pieces() -> dict[str, Arm]:
    """From GRPO to Dr. GRPO: each of the two changes alone."""
    return {
        "GRPO": of_script("GRPO"),
        "GRPO, not / σ": Arm("GRPO not by sigma", "grpo", COMMON, "compute_advantages"),
        "GRPO, constant length": Arm("GRPO constant length", "grpo", COMMON, "policy_loss"),
        "Dr. GRPO": of_script("Dr. GRPO"),
    }


def ablation() -> dict[str, Arm]:
    """From GRPO to DAPO, one change at a time."""
    arms, settings = {}, COMMON | ABLATION_SETTING
    for row, (name, change) in enumerate(ABLATION.items()):
        settings = settings | change
        replaced = SAMPLE_LEVEL if row < 4 else ""
        arms[name] = Arm(f"ablation {row} {name}", "dapo", settings, replaced)
    return arms


def movement() -> dict[str, Arm]:
    """The last two arms of the ablation, the last one at a lower rate. In the committed ablation
    its updates are 1.083 times as long as those of the arm above it: 2e-4 / 1.083^(1 / 0.75) is
    1.8e-4, see `matched_rates`."""
    arms = ablation()
    last, slower = arms["+ dynamic sampling"], {"learning_rate": 1.8e-4}
    slow = replace(last, name=f"{last.name} 1.8e-4", settings=last.settings | slower)
    return {"+ token-level loss": arms["+ token-level loss"], "dynamic sampling, 1.8e-4": slow}


def scripts(kl: bool = True, names: Iterable[str] = ()) -> dict[str, Arm]:
    """All scripts, or these, as they are; or without the KL where they have one."""
    without_one = ("REINFORCE", "DAPO", "CISPO")
    return {name: of_script(name, kl=kl or name in without_one) for name in names or SCRIPTS}


FIXED = {
    "shared": scripts,
    "pieces": pieces,
    "ablation": ablation,
    "movement": movement,
    "no_kl": partial(scripts, False),
}


# ---------------------------------------------------------------------- a run


@dataclass(frozen=True)
class Run:
    """One training run; without a script the base model."""

    arm: Arm
    seed: int
    steps: int

    def folder(self, output: Path) -> Path:
        name = re.sub("[^a-z0-9.]+", "-", self.arm.name.lower()).strip("-")
        return output / f"{name}-{self.steps}-{self.seed}"

    def config(self, output: Path):
        """The script's own config, which continues the run where there is one."""
        folder = self.folder(output)
        settings = {"seed": self.seed, "steps": self.steps, "device": "cpu", "run_dir": str(folder)}
        resume = (folder / "config.json").is_file()
        module = import_module(f"algorithms.{self.arm.script}")
        return module.Config(resume=resume, **settings, **self.arm.settings)


def train(run: Run, output: Path) -> dict:
    """Train silently, from where the run stands. Returns its summary, or {"diverged": why}."""
    torch.set_num_threads(1)
    script, name = import_module(f"algorithms.{run.arm.script}"), run.arm.replaced
    replaced = nullcontext()
    if name == SAMPLE_LEVEL:
        replaced = patch.object(script, "policy_loss", averaged_as_grpo(script.policy_loss))
    elif name:
        replaced = patch.object(script, name, getattr(import_module("algorithms.dr_grpo"), name))
    folder = run.folder(output)
    if not (folder / "results.json").is_file():  # written last
        try:
            with silence(), measured(), replaced:
                script.train(run.config(output))
        except FloatingPointError as error:
            return {"diverged": str(error)}
    return summary(folder)


def summary(folder: Path) -> dict:
    """The numbers of a finished run: single ones, a curve over its evaluations, and means over
    windows of 5 steps.

    `at_budget` is the held-out accuracy, interpolated between two evaluations, after `budget`
    completions, the number that a script without dynamic sampling draws.
    """
    config = json.loads((folder / "config.json").read_text("utf-8"))
    results = json.loads((folder / "results.json").read_text("utf-8"))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    for row in rows:
        if "clipped_up" in row:
            row["clipped"] = row["clipped_up"] + row["clipped_down"]

    def mean(name: str, rows: list[dict] = rows) -> float | None:
        values = [row[name] for row in rows if row.get(name) is not None]
        return float(np.mean(values)) if values else None

    before, after = (results[when]["accuracy"]["all"]["sampled"] for when in ("before", "after"))
    if rows[-1]["held_out"] is None:  # the last step was not evaluated during training
        rows[-1]["held_out"] = after
    evaluated = [row for row in rows if row["held_out"] is not None]
    updates = config.get("num_minibatches", 1) * config.get("epochs", 1)
    curve = {
        "updates": [0] + [row["step"] * updates for row in evaluated],
        "completions": [0] + [row["rollouts"] for row in evaluated],
        "held_out": [before] + [row["held_out"] for row in evaluated],
    }
    budget = config["steps"] * config["prompts_per_step"] * config["group_size"]
    over_all_steps = ("update_norm", "clipped_up_probability", "truncated", "silent")
    over_the_last_ten = ("entropy", "length_wrong")
    in_windows = ("step", "clipped", *over_all_steps, *over_the_last_ten)
    windows = [rows[i : i + 5] for i in range(0, len(rows), 5)]
    return {
        "learning_rate": config["learning_rate"],
        "budget": budget,
        "final": after,
        "at_budget": float(np.interp(budget, curve["completions"], curve["held_out"])),
        "completions": rows[-1]["rollouts"],
        **{name: mean(name) for name in over_all_steps},
        **{name: mean(name, rows[-10:]) for name in over_the_last_ten},
        # Dynamic sampling draws silent groups and does not train on them.
        "silent_trained_on": 0.0 if config.get("dynamic_sampling") else mean("silent"),
        "curve": curve,
        "windows": {name: [mean(name, window) for window in windows] for name in in_windows},
    }


def sample_many(run: Run, output: Path) -> dict:
    """The unbiased pass@k and majority@k of each held-out problem, from SAMPLES completions: lists
    (KS, problems)."""
    torch.set_num_threads(1)
    model = str(run.folder(output) / "checkpoint") if run.arm.script else "base"
    problems = held_out_problems(64, LEVELS)
    sampled = evaluate(*load_policy(model), problems, samples=SAMPLES, max_new_tokens=56)
    right = [int(correct.sum()) for correct in sampled.correct]
    answers = [[extract_answer(text) for text in texts] for texts in sampled.texts]
    votes = [(of_one, problem.answer) for of_one, problem in zip(answers, problems)]
    return {
        "pass": [[pass_at_k(SAMPLES, n, k) for n in right] for k in KS],
        "majority": [[majority_at_k(*of_one, k) for of_one in votes] for k in KS],
    }


# ---------------------------------------------------------------------- experiments


class Comparison:
    """The experiments of a config, on a grid."""

    def __init__(self, config: Config, grid: Grid) -> None:
        self.config, self.grid = config, grid
        self.seeds = range(config.first_seed, config.first_seed + config.seeds)

    def train(self, arms: dict[str, Arm]) -> dict[str, list[dict | None]]:
        """The summaries of each arm's runs, by seed; None for a run that diverged, for which a line
        is printed. Raises SystemExit if all runs of an arm diverged."""
        runs = [Run(arm, seed, self.config.steps) for seed in self.seeds for arm in arms.values()]
        summaries: dict[str, list] = {}
        for run in self.grid.run(partial(train, output=self.grid.path), runs):
            if "diverged" in run:
                print(f"{run['arm']['name']}, seed {run['seed']}: {run['diverged']}")
            summaries.setdefault(run["arm"]["name"], []).append(None if "diverged" in run else run)
        for name, arm in arms.items():
            if not any(summaries[arm.name]):
                raise SystemExit(f"every run of {name} diverged: there is nothing to compare")
        return {name: summaries[arm.name] for name, arm in arms.items()}

    def arms(self, experiment: str) -> dict[str, Arm]:
        """The arms by their names in the tables. `matched` makes the runs of `shared`, which tell
        the rates."""
        if experiment == "matched":
            return {name: of_script(name, rate) for name, rate in self.matched_rates().items()}
        return FIXED[experiment]()

    def matched_rates(self) -> dict[str, float]:
        """Learning rates, to two digits, at which every script's mean update should be as long as
        GRPO's in `shared`.

        Under Adam the mean length grows a little slower than the rate, about with its power 0.75:
        REINFORCE's from .0175 to .0269 between 1.13e-4 and 2e-4. The table shows how well the
        lengths agree.
        """
        lengths, rates = {}, {}
        for name, runs in self.train(scripts(names=LADDER)).items():
            lengths[name] = np.mean([run["update_norm"] for run in runs if run])
        for name, length in lengths.items():
            rates[name] = float(f"{RATE * (lengths['GRPO'] / length) ** (1 / 0.75):.2g}")
        return rates

    def sampling(self) -> dict[str, dict[str, np.ndarray]]:
        """pass@k and majority@k of the base and of each script of the ladder: arrays (seeds, KS,
        problems)."""
        runs = [Run(Arm("base", ""), 0, self.config.steps)]
        for name, trained in self.train(scripts(names=LADDER)).items():
            runs += [Run(of_script(name), run["seed"], self.config.steps) for run in trained if run]
        rates: dict[str, dict[str, list]] = {}
        for result in self.grid.run(partial(sample_many, output=self.grid.path), runs, "samples"):
            of_arm = rates.setdefault(result["arm"]["name"], {"majority": [], "pass": []})
            for kind, seeds in of_arm.items():
                seeds.append(result[kind])
        return {
            name: {kind: np.array(seeds) for kind, seeds in kinds.items()}
            for name, kinds in rates.items()
        }

    def run(self, experiment: str) -> tuple[dict, Path]:
        """The numbers of an experiment as plain data, and its figure."""
        first = self.config.first_seed
        name = f"{experiment}-{first}" if first else experiment
        figure = self.grid.path / f"{name}.png"
        machine = f"{platform.machine()}, torch {torch.__version__}"
        numbers = {"machine": machine, "seeds": [*self.seeds], "steps": self.config.steps}
        if experiment == "sampling":
            rates = self.sampling()
            compare_figures.draw_sampling(rates, KS, figure)
            return numbers | compare_tables.sampling_numbers(rates, KS), figure
        runs = self.train(self.arms(experiment))
        numbers["arms"] = compare_tables.training_numbers(runs)
        numbers |= compare_tables.compared(experiment, numbers["arms"])
        compare_figures.draw(compare_figures.PANELS[experiment], runs, figure)
        return numbers, figure


def publish(experiment: str, numbers: dict, figure: Path) -> None:
    """Put an experiment's numbers and its figure among the committed ones, and its table onto the
    pages."""
    results = compare_tables.load() | {experiment: rounded(numbers)}
    write_pages(compare_tables.texts(results))  # first, because it may fail
    RESULTS.write_text(compact(results, 3) + "\n", "utf-8")
    if figure.name in README.read_text("utf-8"):
        shutil.copy(figure, RESULTS.parent / "figures")


def main(config: Config) -> None:
    """Make the runs that are missing; write and print the tables and draw the figures, experiment
    by experiment."""
    paired.require()
    config = config.sized()
    chosen = config.experiments or (get_args(Experiment) if config.publish else ("shared",))
    if config.publish:  # look for the places of the tables on the page before the work
        places = dict.fromkeys(map(compare_tables.place, chosen), "")
        into_page(README.read_text("utf-8"), places)
    comparison = Comparison(config, Grid(config, "compare"))
    for experiment in dict.fromkeys(chosen):
        numbers, figure = comparison.run(experiment)
        numbers = rounded(numbers)
        figure.with_suffix(".json").write_text(json.dumps(numbers, indent=1) + "\n", "utf-8")
        print(f"\n{experiment}\n{compare_tables.table(experiment, numbers)}\n")
        print(f"written: {figure}, and the numbers beside it")
        if config.publish:
            publish(experiment, numbers, figure)


if __name__ == "__main__":
    main(parse(Config, __doc__))
