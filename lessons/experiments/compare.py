"""The scripts against each other, over ten seeds: tables with paired statistics, and figures.

    python lessons/experiments/compare.py                      all experiments
    python lessons/experiments/compare.py --experiments pieces ablation

Every run is the script's own `train`. A run that several experiments need is made once.
Experiments:

    shared       all nine scripts at one learning rate
    no_kl        the same, but without the KL of the six that have one
    matched      the ladder's five, at rates at which all mean updates are as long as GRPO's
    pieces       GRPO with one of Dr. GRPO's two changes: no / sigma, no / length
    ablation     from GRPO to DAPO one change at a time, as in DAPO's Table 1
    movement     its last change, dynamic sampling, at a rate at which its updates are as long as
                 those without it, beside the row above
    batch_sigma  Dr. GRPO with / sigma of the batch, with KL and without, and with the KL times
                 sigma instead; and a token mean over all groups, or over mixed ones
    sampling     pass@k and majority@k of the base model and of the ladder's five after `shared`

When all runs are made, their numbers replace those in the committed results.json, and the tables
are printed: those of README.md in this folder. `no_kl` and `matched` are columns of the table of
`shared`. With --publish results.json and the page are written, and the figures go to figures/.
Statistics need `pip install -e '.[stats]'`.
"""

import json
import platform
import shutil
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Literal, get_args
from unittest.mock import patch

import numpy as np
import torch

from algorithms import dr_grpo
from lessons.experiments import compare_figures, compare_tables
from lessons.experiments.compare_tables import FIGURES, LADDER, README, RESULTS
from lessons.experiments.harness import paired
from lessons.experiments.harness.grid import Grid, GridConfig, compact, digest, rounded, write_pages
from lessons.experiments.harness.learning import pass_and_majority
from lessons.experiments.harness.pool import silence
from lessons.experiments.losses import averaged_as_grpo, over_mixed
from lessons.experiments.update_norm import measured
from toy_env import arithmetic
from toy_env.arithmetic import LEVELS, held_out_problems
from toy_env.evaluation import evaluate
from toy_env.model import load_policy
from toy_env.run import parse

SCRIPTS = LADDER | {"RLOO": "rloo", "MaxRL": "maxrl", "GSPO": "gspo", "CISPO": "cispo"}
COMMON = {"eval_every": 5}  # settings of every run
OFTEN = {"eval_every": 2}  # dynamic sampling draws more a step, so that curves have as many points
WITHOUT_KL = ("REINFORCE", "DAPO", "CISPO")
# Rates at which the mean update should be as long as GRPO's in `shared`; 2e-4 for the others. Under
# Adam it grows about with the power 0.75 of the rate, and at 2e-4 REINFORCE's is 1.525 times as
# long as GRPO's, DAPO's 1.035 times.
MATCHED = {"REINFORCE": {"learning_rate": 1.1e-4}, "DAPO": {"learning_rate": 1.9e-4}}
KS, SAMPLES = (1, 4, 64), 128  # for pass@k and majority@k
STEPS = 60  # rollout batches of every run

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
KL_TIMES_SIGMA, MIXED = "kl times sigma of the batch", "over mixed groups"
TOKEN_MEAN = {"dynamic_sampling": False, "clip_eps_high": 0.2, "overlong_buffer": 0}
# Committed before the runs of `batch_sigma`. Known were three seeds of another machine: / sigma of
# the batch at +.9, +3.1 and +2.6 points with the KL, at -1.3, -1.1 and -.7 without.
PREDICTIONS = """
with the KL, / sigma of the batch ends 1 to 3 points above Dr. GRPO;
without, 0 to 1.5 points below it;
the first difference is larger than the second in 8 seeds of 10 or more;
/ sigma of the batch and KL times sigma of the batch, whose gradients differ by one factor a batch,
    end within a point of each other;
a token mean over mixed groups ends within a point of one over all.
"""
Experiment = Literal[
    "shared", "no_kl", "matched", "pieces", "ablation", "movement", "batch_sigma", "sampling"
]


@dataclass
class Config(GridConfig):
    experiments: tuple[Experiment, ...] = get_args(Experiment)


# ---------------------------------------------------------------------- arms


@dataclass(frozen=True)
class Arm:
    """A script with settings, trained with several seeds. `replaced` names a function that is taken
    from dr_grpo.py instead, or what `replacements` makes of the script's own."""

    script: str
    settings: dict
    replaced: str = ""


def of_script(title: str, **settings) -> Arm:
    """A script as it is, except for these settings."""
    common = COMMON | OFTEN if SCRIPTS[title] in ("dapo", "cispo") else COMMON
    return Arm(SCRIPTS[title], common | settings)


def ablation() -> dict[str, Arm]:
    """From GRPO to DAPO, one change at a time."""
    arms, settings = {}, COMMON | ABLATION_SETTING
    for row, (name, change) in enumerate(ABLATION.items()):
        settings = settings | change
        arms[name] = Arm("dapo", settings, SAMPLE_LEVEL if row < 4 else "")
    return arms


NO_KL = {"kl_coef": 0.0}
SHARED = {title: of_script(title) for title in SCRIPTS}
ROWS = ablation()
# In the committed ablation the updates of the last arm are 1.083 times as long as those of the arm
# above it: 2e-4 / 1.083^(1 / 0.75) is 1.8e-4.
SLOWER = ROWS["+ dynamic sampling"].settings | {"learning_rate": 1.8e-4}
EXPERIMENTS = {  # the arms of each by their names in the tables
    "shared": SHARED,
    "no_kl": {title: of_script(title, **NO_KL) for title in SCRIPTS}
    | {title: SHARED[title] for title in WITHOUT_KL},
    "matched": {title: of_script(title, **MATCHED.get(title, {})) for title in LADDER},
    "pieces": {  # each of Dr. GRPO's two changes alone
        "GRPO": SHARED["GRPO"],
        "GRPO, not / σ": Arm("grpo", COMMON, "compute_advantages"),
        "GRPO, constant length": Arm("grpo", COMMON, "policy_loss"),
        "Dr. GRPO": SHARED["Dr. GRPO"],
    },
    "ablation": ROWS,
    "movement": {
        "+ token-level loss": ROWS["+ token-level loss"],
        "dynamic sampling, 1.8e-4": Arm("dapo", SLOWER),
    },
    "batch_sigma": {
        "Dr. GRPO": SHARED["Dr. GRPO"],
        "÷ σ of the batch": Arm("batch_sigma", COMMON),
        "KL × σ of the batch": Arm("dr_grpo", COMMON, KL_TIMES_SIGMA),
        "Dr. GRPO without KL": of_script("Dr. GRPO", **NO_KL),
        "÷ σ of the batch without KL": Arm("batch_sigma", COMMON | NO_KL),
        "token mean": Arm("dapo", COMMON | TOKEN_MEAN),
        "token mean over mixed groups": Arm("dapo", COMMON | TOKEN_MEAN, MIXED),
    },
    "sampling": {"base": Arm("", {})} | {title: SHARED[title] for title in LADDER},
}


# ---------------------------------------------------------------------- a run


@dataclass(frozen=True)
class Run:
    """One training run; without a script the base model."""

    arm: Arm
    seed: int

    def folder(self, output: Path) -> Path:
        return output / digest(self)


def replacements(script, name: str) -> dict:
    """The functions of a script that an arm replaces, by their names."""
    loss = script.policy_loss
    if name == SAMPLE_LEVEL:
        return {"policy_loss": averaged_as_grpo(loss)}
    if name == MIXED:
        return {"policy_loss": over_mixed(loss)}
    if name != KL_TIMES_SIGMA:
        return {name: getattr(dr_grpo, name)} if name else {}
    centred, sigma = script.compute_advantages, 0.0

    def compute_advantages(*, rewards):
        nonlocal sigma
        advantages = centred(rewards=rewards)
        sigma = advantages.std(correction=0).item()
        return advantages

    def policy_loss(*, config, **batch):
        return loss(config=replace(config, kl_coef=sigma * config.kl_coef), **batch)

    return {"compute_advantages": compute_advantages, "policy_loss": policy_loss}


def train(run: Run, output: Path) -> dict:
    """Train silently, unless it is done. Returns the summary."""
    torch.set_num_threads(1)
    script = import_module(f"algorithms.{run.arm.script}")
    replaced = patch.dict(vars(script), replacements(script, run.arm.replaced))
    folder = run.folder(output)
    if not (folder / "results.json").is_file():  # written last
        shutil.rmtree(folder, ignore_errors=True)
        settings = {"seed": run.seed, "steps": STEPS, "device": "cpu", "run_dir": str(folder)}
        with silence(), measured(), replaced:
            script.train(script.Config(**settings | run.arm.settings))
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
    evaluated = [{"step": 0, "completions": 0, "held_out": before}]
    evaluated += [row for row in rows if row["held_out"] is not None]
    updates = config.get("num_minibatches", 1) * config.get("epochs", 1)
    curve = {
        "updates": [row["step"] * updates for row in evaluated],
        "completions": [row["completions"] for row in evaluated],
        "held_out": [row["held_out"] for row in evaluated],
    }
    budget = config["steps"] * config["prompts_per_step"] * config["group_size"]
    over_all_steps = ("update_norm", "truncated", "silent")
    over_the_last_ten = ("entropy", "length_right", "length_wrong")
    in_windows = ("step", "clipped", "truncated", "silent", "entropy", "length_wrong")
    windows = [rows[i : i + 5] for i in range(0, len(rows), 5)]
    return {
        "learning_rate": config["learning_rate"],
        "budget": budget,
        "final": after,
        "at_budget": float(np.interp(budget, curve["completions"], curve["held_out"])),
        "completions": rows[-1]["completions"],
        **{name: mean(name) for name in over_all_steps},
        **{name: mean(name, rows[-10:]) for name in over_the_last_ten},
        "curve": curve,
        "windows": {name: [mean(name, window) for window in windows] for name in in_windows},
    }


def sample_many(run: Run, output: Path) -> dict:
    """`pass_and_majority` on held-out problems, from SAMPLES completions of a trained policy: lists
    (KS, problems)."""
    model = "base"
    if run.arm.script:
        train(run, output)
        model = str(run.folder(output) / "checkpoint")
    problems = held_out_problems(64, LEVELS)
    sampled = evaluate(*load_policy(model), problems, samples=SAMPLES, max_new_tokens=56)
    rates = [pass_and_majority(sampled, problems, arithmetic, k) for k in KS]
    return {kind: [of_k[kind] for of_k in rates] for kind in rates[0]}


# ---------------------------------------------------------------------- experiments


def made(experiment: str, config: Config, grid: Grid) -> dict:
    """Make the runs of an experiment and draw its figure. Returns its numbers as plain data."""
    function, folder = (sample_many, "samples") if experiment == "sampling" else (train, "runs")
    results = {}
    for name, arm in EXPERIMENTS[experiment].items():
        runs = [Run(arm, seed) for seed in range(config.seeds if arm.script else 1)]
        results[name] = grid.run(partial(function, output=grid.path), runs, folder)
    machine = f"{platform.machine()}, torch {torch.__version__}"
    numbers = {"machine": machine, "seeds": [*range(config.seeds)]}
    if experiment == "sampling":
        return rounded(numbers | compare_tables.sampling_numbers(results, KS))
    if experiment in compare_figures.PANELS:
        figure = (FIGURES if config.publish else grid.path) / f"{experiment}.png"
        compare_figures.draw(compare_figures.PANELS[experiment], results, figure)
    numbers["arms"] = compare_tables.training_numbers(results)
    return rounded(numbers | compare_tables.compared(experiment, numbers["arms"]))


def main(config: Config) -> None:
    """Make the runs that are missing, draw the figures and print the tables; with --publish put all
    of these among the committed ones."""
    paired.require()
    if "batch_sigma" in config.experiments:
        print(PREDICTIONS)
    grid, results = Grid(config, "compare"), compare_tables.load()
    for experiment in config.experiments:
        results[experiment] = made(experiment, config, grid)
    texts = compare_tables.texts(results)
    print(*texts[README].values(), sep="\n\n")
    if config.publish:
        write_pages(texts)
        RESULTS.write_text(compact(results, 3) + "\n", "utf-8")


if __name__ == "__main__":
    main(parse(Config, __doc__))
