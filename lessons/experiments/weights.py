"""Does a quieter estimator learn faster? Weights of a group's contrast, at equal length of every
optimizer step.

    python lessons/experiments/weights.py              10 seeds
    python lessons/experiments/weights.py --publish    also writes weights.json here

The update of a group with k of G right is weight(k) times (mean score of the right - mean score of
the wrong): sigma in GRPO, its square in Dr. GRPO. An arm is a weight. Everything else is grpo.py at
its defaults, without the KL: 60 batches of 32 x 8, four optimizer steps each. After each of these,
what AdamW has added to the weights is scaled to a given length, so that no arm moves the policy
further than another.

The committed weights.json has more: other powers of sigma, GRPO without groups of one or two wrong
completions, and seeds 100 to 104. They were made for a prediction from the noise in
estimators.json: that of two powers of sigma the quieter one is ahead. It was right in all 15
comparisons whose interval excludes 0; but so is "the larger power". (Commit a63b1c4 makes those
runs and computes both.)
"""

from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from algorithms import dr_grpo, grpo
from lessons.experiments.harness import grid
from lessons.experiments.harness.grid import GridConfig, rounded
from lessons.experiments.harness.learning import learn, warm_up
from lessons.identity import contrast, sigma
from toy_env.run import parse
from toy_env.tasks import TASKS

RESULTS = Path(__file__).parent / "weights.json"
WEIGHTS = {"σ^1": sigma, "σ^2": lambda k, G: sigma(k, G) ** 2}  # of the contrast
# How far an optimizer step moves the weights. grpo.py's own steps are about as long as the first.
STEP_LENGTHS = (0.016, 0.008, 0.032)
G = 8


@dataclass(frozen=True)
class Run:
    """One training run."""

    task: str
    weight: str  # one of WEIGHTS
    per_token: bool  # a completion's loss is the mean over its tokens (GRPO), not the sum
    step_length: float
    seed: int


def runs_of(seeds: int) -> list[Run]:
    """All runs."""
    order = product(TASKS, WEIGHTS, (True, False), STEP_LENGTHS, range(seeds))
    return [Run(*settings) for settings in order]


def step_of_length(length: float, policy, optimizer: torch.optim.Optimizer) -> None:
    """Make an optimizer step whose change of the weights is scaled to a Euclidean length. Without a
    gradient there is no step: AdamW's momentum alone would be scaled to a whole one."""
    if not any(weight.grad.any() for weight in policy.parameters()):
        return
    before = parameters_to_vector(policy.parameters()).detach()
    optimizer.step()
    change = parameters_to_vector(policy.parameters()).detach() - before
    vector_to_parameters(before + change * (length / change.norm()), policy.parameters())


def train(run: Run) -> dict:
    """Train a policy. Returns its accuracy on held-out problems at the end, and that on training
    problems."""

    def advantages(policy, rollout, rewards: torch.Tensor) -> np.ndarray:
        R, rule = rewards.numpy(), np.vectorize(contrast(WEIGHTS[run.weight]), otypes=[float])
        return rule(R, R.sum(axis=1, keepdims=True) - R, G)

    def update(policy, optimizer: torch.optim.Optimizer, config, step: int) -> None:
        step_of_length(run.step_length * warm_up(config, step), policy, optimizer)

    settings = {"task": run.task, "seed": run.seed, "learning_rate": 1e-4}
    script = grpo if run.per_token else dr_grpo
    learnt = learn(script, settings, advantages=advantages, update=update)
    return rounded({name: learnt[name] for name in ("end", "training")})


def arms(results: list[dict], step_length: float) -> dict[tuple, dict]:
    """(task, per_token, weight) -> by seed below 100, the "end" and the "training" accuracy."""
    grouped = defaultdict(lambda: {"end": [], "training": []})
    for run in grid.select(results, {"step_length": step_length}):
        if run["seed"] < 100:
            for outcome, values in grouped[run["task"], run["per_token"], run["weight"]].items():
                values.append(run[outcome])
    return grouped


def main(config: GridConfig) -> None:
    """Make the runs that are missing, and with --publish write weights.json."""
    grid.results_of(config, train, runs_of(config.seeds), RESULTS)


if __name__ == "__main__":
    main(parse(GridConfig, __doc__))
