"""The scripts against each other, over ten seeds: tables with paired statistics, and figures.

    python lessons/experiments/compare.py                      all experiments
    python lessons/experiments/compare.py --experiments pieces ablation

Every run is the script's own `train`. A run that several experiments need is made once.
Experiments:

    shared       nine scripts at one learning rate
    no_kl        the same, but without the KL of the six that have one
    pieces       GRPO with one of Dr. GRPO's two changes: no / sigma, no / length
    ablation     from GRPO to DAPO one change at a time, as in DAPO's Table 1
    movement     its last change, dynamic sampling, at a rate at which its updates are as long as
                 those without it, beside the row above
    batch_sigma  Dr. GRPO with / sigma of the batch, with KL and without, and with the KL times
                 sigma instead; and a token mean over all groups, or over mixed ones
    sampling     pass@k and majority@k of the base model and of the ladder's five after `shared`

When all runs are made, their numbers replace those in the committed results.json, and the tables of
README.md in this folder are printed; `no_kl` is two columns in that of `shared`. With --publish
results.json and the page are written, and the figures go to figures/. Statistics need
`pip install -e '.[stats]'`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Literal
from unittest.mock import patch

import numpy as np
import torch

from algorithms import dr_grpo
from lessons.experiments import compare_tables
from lessons.experiments.compare_figures import PANELS, draw
from lessons.experiments.compare_tables import FIGURES, LADDER, README, RESULTS
from lessons.experiments.harness import paired
from lessons.experiments.harness.grid import (
    Grid,
    GridConfig,
    compact,
    machine,
    rounded,
    write_pages,
)
from lessons.experiments.harness.learning import pass_and_majority, trained
from lessons.experiments.losses import averaged_as_grpo, over_mixed
from lessons.experiments.update_norm import measured
from toy_env import arithmetic
from toy_env.arithmetic import LEVELS, held_out_problems
from toy_env.evaluation import evaluate
from toy_env.model import load_policy
from toy_env.run import parse

SCRIPTS = LADDER | {"RLOO": "rloo", "MaxRL": "maxrl", "GSPO": "gspo", "CISPO": "cispo"}
WITHOUT_KL = ("REINFORCE", "DAPO", "CISPO")
KS, SAMPLES = (1, 4, 64), 128  # for pass@k and majority@k
STEPS = 60  # rollout batches of every run
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


@dataclass(frozen=True)
class Arm:
    """A script with settings, trained with several seeds. `replaced` says what takes the place of
    its functions: see `replacements`."""

    script: str
    settings: dict = field(default_factory=dict)
    replaced: str = ""


# ---------------------------------------------------------------------- the arms

NO_KL = {"kl_coef": 0.0}
SHARED = {title: Arm(script) for title, script in SCRIPTS.items()}

SAMPLE_LEVEL, MIXED = "sample-level loss", "over mixed groups"
KL_TIMES_SIGMA = "kl times sigma of the batch"
PLAIN_DAPO = {"dynamic_sampling": False, "clip_eps_high": 0.2, "overlong_buffer": 0}
# At the defaults no completion reaches the limit of 56 tokens, and with 4 updates a batch the clip
# hardly ever binds.
ABLATION_SETTING = {"max_new_tokens": 36, "num_minibatches": 16}
ABLATION = {  # each change against the row above
    "GRPO without KL": PLAIN_DAPO,
    "+ overlong filtering": {"overlong_filtering": True},
    "+ clip-higher": {"clip_eps_high": 0.28},
    "+ soft overlong punishment": {"overlong_buffer": 8},
    "+ token-level loss": {},  # those above have a sample-level loss
    "+ dynamic sampling": {"dynamic_sampling": True},
}


def ablation() -> dict[str, Arm]:
    """From GRPO to DAPO, one change at a time."""
    arms, settings, replaced = {}, ABLATION_SETTING, SAMPLE_LEVEL
    for name, change in ABLATION.items():
        settings = settings | change
        if name == "+ token-level loss":
            replaced = ""
        arms[name] = Arm("dapo", settings, replaced)
    return arms


ROWS = ablation()
# In the committed ablation the updates of the last arm are 1.083 times as long as those of the arm
# above it: 2e-4 / 1.083^(1 / 0.75) is 1.8e-4.
SLOWER = ROWS["+ dynamic sampling"].settings | {"learning_rate": 1.8e-4}
EXPERIMENTS = {  # the arms of each by their names in the tables
    "shared": SHARED,
    "no_kl": {
        title: arm if title in WITHOUT_KL else Arm(arm.script, NO_KL)
        for title, arm in SHARED.items()
    },
    "pieces": {  # each of Dr. GRPO's two changes alone
        "GRPO": SHARED["GRPO"],
        "GRPO, not / σ": Arm("grpo", replaced="compute_advantages"),
        "GRPO, constant length": Arm("grpo", replaced="policy_loss"),
        "Dr. GRPO": SHARED["Dr. GRPO"],
    },
    "ablation": ROWS,
    "movement": {
        "+ token-level loss": ROWS["+ token-level loss"],
        "dynamic sampling, 1.8e-4": Arm("dapo", SLOWER),
    },
    "batch_sigma": {
        "Dr. GRPO": SHARED["Dr. GRPO"],
        "÷ σ of the batch": Arm("batch_sigma"),
        "KL × σ of the batch": Arm("dr_grpo", replaced=KL_TIMES_SIGMA),
        "Dr. GRPO without KL": Arm("dr_grpo", NO_KL),
        "÷ σ of the batch without KL": Arm("batch_sigma", NO_KL),
        "token mean": Arm("dapo", PLAIN_DAPO),
        "token mean over mixed groups": Arm("dapo", PLAIN_DAPO, MIXED),
    },
    "sampling": {"base": Arm("")} | {title: SHARED[title] for title in LADDER},
}


def replacements(script, name: str) -> dict:
    """The functions of a script that an arm replaces, by their names: by wrapped ones, or by the
    function of this name of dr_grpo.py."""
    loss = script.policy_loss
    if name == SAMPLE_LEVEL:
        return {"policy_loss": averaged_as_grpo(loss)}
    if name == MIXED:
        return {"policy_loss": over_mixed(loss)}
    if name == KL_TIMES_SIGMA:
        return kl_times_sigma(script.compute_advantages, loss)
    return {name: getattr(dr_grpo, name)} if name else {}


def kl_times_sigma(centred: Callable, loss: Callable) -> dict:
    """The functions that replace compute_advantages (without / sigma) and policy_loss, so that
    kl_coef is multiplied by sigma of the batch."""
    sigma = 0.0

    def compute_advantages(*, rewards):
        nonlocal sigma
        advantages = centred(rewards=rewards)
        sigma = advantages.std(correction=0).item()
        return advantages

    def policy_loss(*, config, **batch):
        return loss(config=replace(config, kl_coef=sigma * config.kl_coef), **batch)

    return {"compute_advantages": compute_advantages, "policy_loss": policy_loss}


# ---------------------------------------------------------------------- a run


@dataclass
class Config(GridConfig):
    experiments: tuple[Literal[tuple(EXPERIMENTS)], ...] = tuple(EXPERIMENTS)
    device: str = "cpu"  # on another, runs are made one after the other


@dataclass(frozen=True)
class Run:
    """One training run; without a script the base model."""

    arm: Arm
    seed: int
    device: str = "cpu"


def train(run: Run) -> dict:
    """Train silently. Returns the summary; for the arms of `sampling` also what `sampled` does."""
    torch.set_num_threads(1)
    name, own = run.arm.script, run.arm.settings
    if not name:
        return sampled("base", run.device)
    script = import_module(f"algorithms.{name}")
    # Dynamic sampling draws more a step, so that its curves have as many points.
    draws_more = own.get("dynamic_sampling", name in ("dapo", "cispo"))
    settings = {"seed": run.seed, "steps": STEPS, "eval_every": 2 if draws_more else 5} | own
    settings["device"] = run.device
    replaced = patch.dict(vars(script), replacements(script, run.arm.replaced))
    with measured(), replaced, trained(script, settings) as (folder, rows):
        result = summary(folder, rows)
        if run.arm in EXPERIMENTS["sampling"].values():
            result |= sampled(str(folder / "checkpoint"), run.device)
        return result


def sampled(model: str, device: str) -> dict:
    """`pass_and_majority` of a model on held-out problems: lists (KS, problems)."""
    problems = held_out_problems(64, LEVELS)
    policy, tokenizer = load_policy(model, device)
    completions = evaluate(policy, tokenizer, problems, samples=SAMPLES, max_new_tokens=56)
    rates = [pass_and_majority(completions, problems, arithmetic, k) for k in KS]
    return {kind: [of_k[kind] for of_k in rates] for kind in ("pass", "majority")}


def summary(folder: Path, rows: list[dict]) -> dict:
    """The numbers of a finished run: single ones, and by panel of a figure its curve, [xs, ys]:
    accuracy at each evaluation, the other metrics as means over windows of 5 steps.

    `at_budget` is the held-out accuracy, interpolated between two evaluations, after `budget`
    completions, the number that a script without dynamic sampling draws.
    """
    config = json.loads((folder / "config.json").read_text("utf-8"))
    results = json.loads((folder / "results.json").read_text("utf-8"))
    for row in rows:
        if "clipped_up" in row:
            row["clipped"] = row["clipped_up"] + row["clipped_down"]

    def mean(name: str, rows: list[dict] = rows) -> float | None:
        values = [row[name] for row in rows if row.get(name) is not None]
        return float(np.mean(values)) if values else None

    before, after = (results[when]["accuracy"]["all"]["sampled"] for when in ("before", "after"))
    rows[-1]["held_out"] = after
    evaluated = [row for row in rows if row["held_out"] is not None]
    held_out = [before, *(row["held_out"] for row in evaluated)]
    completions = [0, *(row["completions"] for row in evaluated)]
    updates = config.get("num_minibatches", 1) * config.get("epochs", 1)  # of a step
    curves = {
        "completions": [completions, held_out],
        "updates": [[0, *(updates * row["step"] for row in evaluated)], held_out],
    }
    windows = [rows[i : i + 5] for i in range(0, len(rows), 5)]
    steps = [mean("step", window) for window in windows]
    for name in ("clipped", "truncated", "silent", "entropy", "length_wrong"):
        curves[name] = [steps, [mean(name, window) for window in windows]]
    budget = config["steps"] * config["prompts_per_step"] * config["group_size"]
    over_the_last_ten = ("entropy", "length_right", "length_wrong")
    return {
        "learning_rate": config["learning_rate"],
        "budget": budget,
        "final": after,
        "at_budget": float(np.interp(budget, completions, held_out)),
        "completions": completions[-1],
        **{name: mean(name) for name in ("update_norm", "truncated", "silent")},
        **{name: mean(name, rows[-10:]) for name in over_the_last_ten},
        "curves": curves,
    }


# ---------------------------------------------------------------------- experiments


def made(experiment: str, config: Config, grid: Grid) -> dict:
    """Make the runs of an experiment and draw its figure. Returns its numbers as plain data."""
    arms = {}
    for name, arm in EXPERIMENTS[experiment].items():
        seeds = range(config.seeds if arm.script else 1)
        arms[name] = grid.run(train, [Run(arm, seed, config.device) for seed in seeds])
    if experiment in PANELS:
        figure = (FIGURES if config.publish else grid.path) / f"{experiment}.png"
        draw(PANELS[experiment], arms, figure)
    numbers = {"machine": machine(), "seeds": [*range(config.seeds)]}
    if config.device != "cpu":
        numbers["machine"] += f", {config.device}"
    return rounded(numbers | compare_tables.numbers_of(experiment, arms, KS))


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
