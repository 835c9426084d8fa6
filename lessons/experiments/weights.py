"""Does a quieter estimator learn faster? Weights of a group's contrast, at equal length of every
optimizer step.

    python lessons/experiments/weights.py              10 seeds
    python lessons/experiments/weights.py --publish    also writes weights.json here

The update of a group with k of G right is weight(k) times (mean score of the right - mean score of
the wrong): sigma in GRPO, its square in Dr. GRPO. An arm is a weight. Everything else is grpo.py at
its defaults, without the KL: 60 batches of 32 x 8, four optimizer steps each. After each of these,
what AdamW has added to the weights is scaled to a given length, so that no arm moves the policy
further than another. The prediction of which arm is ahead comes from estimators.json alone, by a
rule in which no result of these runs enters: `quiet`. It was committed, with three others that
cosines and groups gave (commit d51cbe3 has them), after the runs of the first ten seeds and before
those of FRESH, which repeat the arms at the first of STEP_LENGTHS. (The quietest weight and MaxRL's
were trained, too: commit 4af4f7d has the runs.)
"""

from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from algorithms import dr_grpo, grpo
from lessons.experiments import estimators
from lessons.experiments.harness import grid
from lessons.experiments.harness.grid import GridConfig, rounded
from lessons.experiments.harness.learning import learn, warm_up
from lessons.experiments.harness.paired import difference
from lessons.identity import contrast, efficiency, sigma
from toy_env.run import parse
from toy_env.tasks import TASKS

RESULTS = Path(__file__).parent / "weights.json"
POWERS = {f"σ^{c:g}": lambda k, G, c=c: sigma(k, G) ** c for c in (0, 0.5, 1, 2, 3)}
# The last is GRPO's without groups of one or two wrong completions.
WEIGHTS = POWERS | {"σ, k < G − 2": lambda k, G: sigma(k, G) * (k < G - 2)}  # of the contrast
# How far an optimizer step moves the weights. grpo.py's own steps are about as long as the first.
STEP_LENGTHS = (0.016, 0.008, 0.032)
G, FRESH = 8, range(100, 105)


@dataclass(frozen=True)
class Run:
    """One training run."""

    task: str
    weight: str  # one of WEIGHTS
    per_token: bool  # a completion's loss is the mean over its tokens (GRPO), not the sum
    step_length: float
    seed: int


def runs_of(seeds: int) -> list[Run]:
    """All runs: every weight at GRPO's own step length, with FRESH seeds too, and the powers of
    sigma at the other lengths."""
    runs = []
    for divided, weight, task in product((True, False), WEIGHTS, TASKS):
        for length in STEP_LENGTHS if weight in POWERS else STEP_LENGTHS[:1]:
            runs += [Run(task, weight, divided, length, seed) for seed in range(seeds)]
        runs += [Run(task, weight, divided, STEP_LENGTHS[0], seed) for seed in FRESH]
    return runs


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


# ---------------------------------------------------------------------- prediction and outcomes


@cache
def quiet(task: str, per_token: bool, weight: str) -> float:
    """The signal-to-noise ratio of a group's update, from the moments of completions to held-out
    prompts: the mean over three steps of GRPO's training, its seeds, and prompts."""
    ratios, rule = [], contrast(WEIGHTS[weight])
    for stage in grid.select(grid.load_runs(estimators.RESULTS), {"task": task}):
        for prompt in stage["of prompts"]:
            p = sum(prompt["right"]) / stage["completions"]
            v_right, v_wrong = np.mean([half[per_token][:2] for half in prompt["moments"]], axis=0)
            if v_right > 0 and v_wrong > 0:
                ratios.append(efficiency(rule, p, G, v_wrong / v_right))
    return float(np.mean(ratios))


def arms(
    results: list[dict], step_length: float = STEP_LENGTHS[0], fresh: bool = False
) -> dict[tuple, dict]:
    """(task, per_token, weight) -> by seed, those of FRESH or the others, the "end" and the
    "training" accuracy."""
    grouped = {}
    for run in grid.select(results, {"step_length": step_length}):
        if (run["seed"] in FRESH) == fresh:
            arm = run["task"], run["per_token"], run["weight"]
            values = grouped.setdefault(arm, {"end": [], "training": []})
            for outcome in values:
                values[outcome].append(run[outcome])
    return grouped


def ahead(results: list[dict]) -> tuple[int, int, int]:
    """Of the differences between two powers of sigma, at the end and over training, that exclude 0
    with the seeds of FRESH: how many the quieter arm leads, how many the larger power, and how many
    there are."""
    table, quieter, larger = arms(results, fresh=True), [], []
    pairs = combinations(POWERS, 2)  # the smaller power first
    for task, per_token, pair in product(TASKS, (True, False), pairs):
        one, other = ((task, per_token, weight) for weight in pair)
        for outcome in table[one]:
            gap = difference(table[one][outcome], table[other][outcome])
            if np.prod(gap["interval"]) > 0:
                leads = gap["difference"] > 0
                quieter.append(leads == (quiet(*one) > quiet(*other)))
                larger.append(not leads)
    return sum(quieter), sum(larger), len(larger)


def main(config: GridConfig) -> None:
    """Make the runs that are missing, and with --publish write weights.json."""
    grid.results_of(config, train, runs_of(config.seeds), RESULTS)


if __name__ == "__main__":
    main(parse(GridConfig, __doc__))
