"""One knob between the mean of the others and no baseline. Read by lesson 19.

    python lessons/experiments/shrinkage.py            all runs: one to two hours on two cores
    python lessons/experiments/shrinkage.py --publish  also writes shrinkage.json here

Dr. GRPO's training without KL, four updates a batch, with the advantages

    A_i = R_i - b_i,   b_i = (sum of the others' rewards + kappa m0) / (G - 1 + kappa)

The baseline b_i does not depend on completion i, so the expected update is grad p for every kappa
and every m0 that is fixed before the group is drawn. kappa = 0 is RLOO, kappa = inf with m0 = 0 is
A = R. With m0 < 1 an all-right group trains, with A = kappa (1 - m0) / (G - 1 + kappa). Shrinking
towards the batch's mean is arXiv:2511.03710.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from pathlib import Path

import numpy as np
import torch

from algorithms import dr_grpo
from lessons.experiments.baselines import best_rates
from lessons.experiments.harness import grid
from lessons.experiments.harness.grid import Grid, GridConfig, rounded, select
from lessons.experiments.harness.learning import learn
from toy_env.evaluate import pass_at_k
from toy_env.evaluation import evaluate, held_out
from toy_env.model import load_policy
from toy_env.rollout import Rollout
from toy_env.run import parse
from toy_env.tasks import TASKS, base_model, find_module

RESULTS = Path(__file__).parent / "shrinkage.json"
TUNED = RESULTS.with_name("shrinkage_tuning.json")
KAPPAS = {f"κ = {kappa}": float(kappa) for kappa in (0, 1, 3, 7)} | {"κ = ∞": inf}
# Advantages kappa / (G - 1 + kappa) of all-right groups, as at kappa 1 and 7, and no other change.
ALL_RIGHT = {"κ = 0, all-right groups ⅛": 1 / 8, "κ = 0, all-right groups ½": 1 / 2}
TO_ACCURACY = {f"{name}, m₀ = accuracy": KAPPAS[name] for name in KAPPAS if KAPPAS[name]}
REPLACED = "κ = 0, silent groups replaced"  # as DAPO does, at as many completions
ARMS = [*KAPPAS, *TO_ACCURACY, *ALL_RIGHT, REPLACED]
# An arm takes the rate of the one that it is compared with, so that one thing changes.
RATE_OF = dict(zip(TO_ACCURACY, list(KAPPAS)[1:])) | dict(zip(ALL_RIGHT, ("κ = 1", "κ = 7")))
LONG_ARMS, LONG, LONG_SEEDS = ("κ = 0", "κ = 3", "κ = ∞", REPLACED), 240, 5
BEST = dict(zip(TASKS, (1e-4, 2e-4)))  # where the search begins
G, PROMPTS = 8, 32
COLUMNS = {task: [task] for task in TASKS} | {"both": TASKS}  # tasks by heading

# Committed before the first run. Known was, from runs that these replaced in baselines.json, that
# A = R (κ = ∞) ends 1.6 and .9 points above the group's mean, and the kappa with the least noise of
# each policy in estimators.json (its closed form is in commit 809f478).
PREDICTIONS = """
first: κ = 3 ends above κ = 0, by .5 to 2 points on the mean of both tasks. (Equivalent: within .5.)
order: at the end κ = 0 < 1 < 3 < 7 on both tasks; κ = ∞ is above 7 on arithmetic, below on
    expressions.
why: it is the all-right groups, not the noise: κ = 0 with all-right groups at ⅛ and ½ ends within
    .5 points of κ = 1 and κ = 7, on both tasks.
m₀: with m₀ = accuracy of the batch before, κ = 3 gains less than half of what m₀ = 0 gains.
replaced: at as many completions, replacing silent groups ends below κ = 3 on both tasks.
long: after 61,440 completions κ = ∞ has a lower entropy than κ = 0 on both tasks, Pass@64 within
    one point, and an accuracy that is no lower by more than .5 points.
"""


@dataclass(frozen=True)
class Run:
    """One training run."""

    task: str
    arm: str  # one of ARMS
    rate: float
    seed: int
    steps: int = 60


def shrunk(rewards: np.ndarray, kappa: float, m0: float = 0.0) -> np.ndarray:
    """Advantages (P, G) from rewards (P, G): R less the mean of the others' rewards and of kappa
    further ones of m0."""
    n = rewards.shape[1] - 1
    others = (rewards.sum(axis=1, keepdims=True) - rewards) / n
    kept = n / (n + kappa)
    return rewards - kept * others - (1 - kept) * m0


def train(run: Run) -> dict:
    """Train a policy. Returns its accuracy at the end; of a LONG run also its entropy (nats per
    token) and Pass@64 on held-out problems."""
    settings = {"task": run.task, "seed": run.seed, "steps": run.steps, "learning_rate": run.rate}
    task = find_module(run.task)
    policy, tokenizer = load_policy(base_model(task))
    completions, accuracy = 0, 0.0  # so far; of the batch before

    def advantages(policy, rollout: Rollout, rewards: torch.Tensor) -> np.ndarray:
        nonlocal accuracy
        R, m0 = rewards.numpy(), accuracy if run.arm in TO_ACCURACY else 0.0
        A = shrunk(R, (KAPPAS | TO_ACCURACY).get(run.arm, 0.0), m0)
        A[R.mean(axis=1) == 1] += ALL_RIGHT.get(run.arm, 0.0)
        accuracy = R.mean()
        return A

    def collect(*arguments) -> tuple[Rollout, torch.Tensor] | None:
        """Draw batches until there are 32 mixed groups; None if that takes too many."""
        nonlocal completions
        rollouts, kept = [], torch.empty(0, G)
        while len(kept) < PROMPTS:
            if completions >= run.steps * PROMPTS * G:
                return None
            rollout, rewards = dr_grpo.collect(*arguments)
            completions += len(rollout)
            mixed = (rewards != rewards[:, :1]).any(dim=1).nonzero()[: PROMPTS - len(kept), 0]
            rollouts.append(rollout.groups(mixed, G))
            kept = torch.cat([kept, rewards[mixed]])
        return Rollout.concatenate(rollouts), kept

    replaced = {"collect": collect} if run.arm == REPLACED else {}
    learnt = learn(dr_grpo, settings, policy=policy, advantages=advantages, **replaced)
    result = {"end": learnt["end"]}
    if run.steps == LONG:
        problems = held_out(task, 32, ())
        sampled = evaluate(policy, tokenizer, problems, samples=128, max_new_tokens=56, task=task)
        solved = [pass_at_k(128, int(n), 64) for n in sampled.correct.sum(axis=1)]
        result |= {"entropy": sampled.entropy, "pass@64": float(np.mean(solved))}
    return rounded(result)


# ---------------------------------------------------------------------- the results


def outcomes(runs: list[dict], arm: str, tasks: Sequence[str], outcome: str, steps=60) -> list:
    """An outcome of the runs of an arm by seed, the mean over tasks."""
    of_tasks = (select(runs, {"arm": arm, "task": task, "steps": steps}) for task in tasks)
    return np.mean([[run[outcome] for run in of] for of in of_tasks], axis=0).tolist()


def compared(runs: list[dict]) -> dict[str, dict]:
    """By arm and column the accuracy at the end, and its difference ("gap") from κ = 0. The primary
    comparison, of κ = 3 on both tasks, stands alone."""
    table = {}
    for arm in ARMS:
        table[arm] = {name: outcomes(runs, arm, tasks, "end") for name, tasks in COLUMNS.items()}
    return grid.against(table, ARMS[0], alone="both")


def main(config: GridConfig) -> None:
    """Print the predictions, make the runs that are missing, and with --publish write
    shrinkage.json and shrinkage_tuning.json."""
    print(PREDICTIONS)
    folder, runs, trials = Grid(config, "shrinkage"), [], []
    for arm, task in product(ARMS, TASKS):
        tuned = Run(task, RATE_OF.get(arm, arm), BEST[task], 0)
        (rate,), of_arm = best_rates(folder, train, tuned, [BEST[task]], ["end"])
        trials += of_arm if arm not in RATE_OF else []
        runs += [Run(task, arm, rate, seed) for seed in range(config.seeds)]
    runs.sort(key=lambda run: run.seed)  # so that a command that is stopped has made all arms
    runs += [
        replace(run, steps=LONG) for run in runs if run.arm in LONG_ARMS and run.seed < LONG_SEEDS
    ]
    grid.results_of(config, train, runs, RESULTS)
    if config.publish:
        folder.publish(TUNED, trials)


if __name__ == "__main__":
    main(parse(GridConfig, __doc__))
