"""Which baseline? Advantages against each other where rewards are 0 or 1, and what a comparison must keep apart.

    python lessons/experiments/baselines.py              10 seeds, some five hours on two cores
    python lessons/experiments/baselines.py --quick      1 seed, few arms
    python lessons/experiments/baselines.py --publish    also writes baselines.json here

Every run is dr_grpo.py's training with other advantages (`learning.learn`): without the KL unless a question is about
it, 15,360 completions in batches of 256. Five questions, in the order of the runs:

    baseline   which baseline, on two tasks, with one update a batch and four, each at its best rate
    all right  REINFORCE without its pushes on all-right groups: among the baselines
    kl         the scripts without the KL, and GRPO with the KL on mixed groups only
    sign       R, 2R - 1, R - mean and R - 1 in groups of 2 to 16
    budget     which group size after 1,024 to 61,440 completions, at one rate

A rate is the best of 1e-4 to 8e-4 on three seeds that are used for nothing else; where the best is at the edge, the
grid is widened. A mean over training is compared at rates chosen for the mean over training.
"""

from toy_env import Diverged, take_over_ctrl_c

if __name__ == "__main__":
    take_over_ctrl_c()

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from algorithms import dr_grpo, grpo, maxrl, rloo
from lessons.experiments.estimators import ESTIMATORS, Batch
from lessons.experiments.grid import Grid, GridConfig, rounded
from lessons.experiments.learning import learn
from toy_env.cli import at_least, run_main
from toy_env.tasks import TASKS

RESULTS, TUNED = (Path(__file__).parent / name for name in ("baselines.json", "baselines_tuning.json"))
COMMITTED = {"runs": RESULTS, "tuning": TUNED}  # where a new folder of runs begins; without these files, from nothing
RATES, TUNING, RATE = (1e-4, 2e-4, 4e-4, 8e-4), (100, 101, 102), 2e-4
GROUP_SIZES, SIGN_SIZES = (2, 4, 8, 16, 32, 64), (2, 4, 8, 16)
SIGNS = ("R", "2R − 1", "R − mean", "R − 1")
BUDGETS = (4, 8, 16, 32, 60, 120, 240)  # batches


def token_baseline(batch: Batch) -> np.ndarray:
    """(P, G, T): R less a baseline for each position, the mean reward weighted by the sum of the proxies so far, over
    completions that are that long (the Optimal Token Baseline, arXiv:2602.07078, as in verl). Where a single completion
    of the group is left the baseline is 0."""
    mask = np.arange(batch.proxies.shape[2]) < batch.lengths[:, :, None]
    weights = batch.proxies.cumsum(axis=2) * mask
    rewards = batch.rewards[:, :, None]
    b = (rewards * weights).sum(axis=1, keepdims=True) / (weights.sum(axis=1, keepdims=True) + 1e-8)
    return (rewards - b * (mask.sum(axis=1, keepdims=True) > 1)) * mask


ADVANTAGES: dict[str, Callable[[Batch], np.ndarray]] = {  # (P, G), or (P, G, T) for each token
    "R": ESTIMATORS["no baseline"],
    "R, all-right groups left out": lambda batch: batch.rewards * (batch.rewards.mean(axis=1, keepdims=True) < 1),
    "R − 1": ESTIMATORS["b = 1"],
    "R − mean": ESTIMATORS["σ^2"],
    "OPO": ESTIMATORS["OPO"],
    "OTB": token_baseline,
    "best b of the others": ESTIMATORS["best b of the others"],
    "2R − 1": lambda batch: 2 * batch.rewards - 1,
}
BASELINES = [name for name in ADVANTAGES if name != "2R − 1"]
MEASURED = {"OTB": ("proxies",), "best b of the others": ("squared",)}
OUTCOMES = ("end", "training")
SCRIPTS = {"GRPO": grpo, "Dr. GRPO": dr_grpo, "RLOO": rloo, "MaxRL": maxrl}
KL = {"none": 0.0, "all groups": 0.04, "mixed groups": 0.04}

# Committed before the first run, from lesson 13's cosines of a batch with the gradient (the mean of three steps of
# training) and, for what they do not say, from what a group without disagreement can teach.
PREDICTIONS = """
baseline, over training, one update a batch, arithmetic: R > best b of the others > R − mean > OPO > R − 1.
baseline, over training, one update a batch, expressions: best b of the others = R − mean = OPO = R − 1 > R.
baseline, at the end, both tasks: R > R − mean, and R, all-right groups left out = R − mean: these groups are the gain.
OTB is within a point of R − mean on both tasks: on tokens of one weight it is nearly that.
kl: without it GRPO, Dr. GRPO, RLOO and MaxRL end 2 to 4 points higher; with it on mixed groups only GRPO gets back
less than half of that.
sign: 2R − 1 is the worst at every G on arithmetic, where wrong completions are noisy; no 45 points at G = 4.
budget: the best G grows with the budget by at most a factor of 2 from 4,096 to 61,440 completions.
"""


@dataclass
class Config(GridConfig):
    seeds: at_least(2, 100) = 10  # seeds 0, 1, ... of each arm
    quick: bool = False  # 2 seeds of R and R − mean at one rate, in the folder OUTPUT-quick
    output: str = "runs/baselines"  # folder for the runs

    QUICK = {"seeds": 2}


@dataclass(frozen=True)
class Run:
    """One training run."""

    task: str
    advantage: str  # one of ADVANTAGES, or of SCRIPTS
    minibatches: int
    rate: float
    seed: int
    G: int = 8
    kl: str = "none"  # one of KL
    steps: int = 60


def train(run: Run) -> dict:
    """Train a policy. Returns its accuracy at the end, at BUDGETS where the run is about these, and over training; 0
    if it diverges."""
    script = SCRIPTS.get(run.advantage, dr_grpo)

    def advantages(batch: Batch, step: int) -> np.ndarray:
        if run.advantage in SCRIPTS:
            return script.compute_advantages(rewards=torch.from_numpy(batch.rewards)).numpy()
        return ADVANTAGES[run.advantage](batch)

    kl = {"kl_coef": KL[run.kl], "kl_on_silent": run.kl != "mixed groups"}
    sizes = {"rate": run.rate, "minibatches": run.minibatches, "G": run.G, "steps": run.steps}
    often = BUDGETS if run.steps == BUDGETS[-1] else ()
    measured = MEASURED.get(run.advantage, ())
    try:
        return rounded(learn(run.task, run.seed, advantages, script, **sizes, **kl, measured=measured, evaluated=often))
    except Diverged:
        return dict.fromkeys(OUTCOMES, 0.0) | {"held_out": [0.0] * len(often)}


# ---------------------------------------------------------------------- which runs


def best_rates(grid: Grid, runs: list[Run]) -> dict[Run, dict[str, float]]:
    """The best rate of each run, whose own rate and seed do not count, by outcome: at the end, and over training."""
    tried = {run: set(RATES) for run in runs}
    while True:
        trials = [
            replace(run, rate=rate, seed=seed)
            for run, rates in tried.items()
            for rate in sorted(rates)
            for seed in TUNING
        ]
        results, best = dict(zip(trials, grid.run(train, trials, "tuning"))), {}
        for run, rates in tried.items():
            means = {
                rate: [
                    np.mean([results[replace(run, rate=rate, seed=seed)][name] for seed in TUNING]) for name in OUTCOMES
                ]
                for rate in sorted(rates)
            }
            best[run] = {name: max(means, key=lambda rate: means[rate][i]) for i, name in enumerate(OUTCOMES)}  # noqa: B023
        edges = {run: {*best[run].values()} & {min(rates), max(rates)} for run, rates in tried.items()}
        wider = {run: {2 * rate if rate == max(tried[run]) else rate / 2 for rate in edges[run]} for run in tried}
        if not any(wider.values()):
            return best
        for run, rates in wider.items():
            tried[run] |= rates


def questions(seeds: range) -> list[Run]:
    """The runs of all questions but the first, at one rate."""
    runs = [Run(TASKS[0], name, 4, RATE, seed, kl=kl) for name in SCRIPTS for kl in KL for seed in seeds
            if kl != "mixed groups" or name == "GRPO"]  # fmt: skip
    runs += [
        Run(task, name, 4, RATE, seed, G) for task in TASKS for name in SIGNS for G in SIGN_SIZES for seed in seeds
    ]
    return runs + [Run(task, "R − mean", 4, RATE, seed, G, steps=BUDGETS[-1]) for seed in seeds[:5]
                   for task in TASKS for G in GROUP_SIZES]  # fmt: skip


def main(config: Config) -> None:
    """Print the predictions, make the runs that are missing, and with --publish write baselines.json."""
    config = config.sized()
    print(PREDICTIONS)
    seeds = range(config.seeds)
    arms = [Run(task, name, updates, RATE, 0) for task in TASKS for name in BASELINES for updates in (1, 4)]
    with Grid(config, "baselines.py") as grid:
        for name, committed in COMMITTED.items():
            if not config.quick and committed.is_file() and not (grid.path / f"{name}.json").is_file():
                shutil.copy(committed, grid.path / f"{name}.json")
        if config.quick:
            runs = [replace(arm, seed=seed) for arm in arms if arm.advantage in ("R", "R − mean") for seed in seeds]
        else:
            rates = {arm: sorted({*best.values()}) for arm, best in best_rates(grid, arms).items()}
            runs = [replace(arm, rate=rate, seed=seed) for seed in seeds for arm in arms for rate in rates[arm]]
            runs += questions(seeds)
        results = grid.run(train, runs)
        if config.publish:
            grid.publish(RESULTS, results)


if __name__ == "__main__":
    run_main(Config, main, __doc__)
