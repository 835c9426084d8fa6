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
those of FRESH, which repeat the arms at the first of STEP_LENGTHS.
"""

from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from algorithms import dr_grpo, grpo
from lessons.experiments import estimators, grid
from lessons.experiments.estimators import ESTIMATORS, Batch, rule_of
from lessons.experiments.grid import GridConfig, rounded
from lessons.experiments.learning import learn, warm_up
from lessons.experiments.paired import difference
from lessons.identity import efficiency
from toy_env.run import parse
from toy_env.tasks import TASKS

RESULTS = Path(__file__).parent / "weights.json"
POWERS = ("σ^0", "σ^0.5", "σ^1", "σ^2", "σ^3")
# MaxRL's; the quietest; GRPO's without groups of one or two wrong completions.
OTHERS = ("(G − k)/G", "c(k)", "σ, k < G − 2")
# How far an optimizer step moves the weights. grpo.py's own steps are about as long as the first.
STEP_LENGTHS = (0.016, 0.008, 0.032)
G, FRESH = 8, range(100, 105)
NOTICED = ("quiet",)  # measures that may tell which of two arms learns more
# The kinds of differences between two arms.
KINDS = ("powers of σ", "÷ length or not", "another weight", "groups dropped")


@dataclass(frozen=True)
class Run:
    """One training run."""

    task: str
    weight: str
    per_token: bool  # a completion's loss is the mean over its tokens (GRPO), not the sum
    step_length: float
    seed: int


def runs_of(seeds: int) -> list[Run]:
    """All runs: every weight at GRPO's own step length, with FRESH seeds too, and the powers of
    sigma at the other lengths."""
    runs = []
    for divided, weight, task in product((True, False), (*POWERS, *OTHERS), TASKS):
        for length in STEP_LENGTHS if weight in POWERS else STEP_LENGTHS[:1]:
            runs += [Run(task, weight, divided, length, seed) for seed in range(seeds)]
        runs += [Run(task, weight, divided, STEP_LENGTHS[0], seed) for seed in FRESH]
    return runs


def v_ratio(task: str, step: int) -> float:
    """v- / v+ for the weight c(k): measured on other completions, at the step of training that is
    nearest."""
    nearest = min(estimators.STEPS, key=lambda measured: abs(measured - step))
    stages = grid.select(estimators.published(), {"task": task, "step": nearest})
    return float(np.mean([stage["v_ratio"] for stage in stages]))


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

    def advantages(policy, rollout, rewards: torch.Tensor, step: int) -> np.ndarray:
        batch = Batch(rewards.numpy(), v_ratio=v_ratio(run.task, step))
        return ESTIMATORS[run.weight](batch)

    def update(policy, optimizer: torch.optim.Optimizer, config, step: int) -> None:
        step_of_length(run.step_length * warm_up(config, step), policy, optimizer)

    settings = {"task": run.task, "seed": run.seed, "learning_rate": 1e-4}
    script = grpo if run.per_token else dr_grpo
    learnt = learn(script, settings, advantages, update=update)
    return rounded({name: learnt[name] for name in ("end", "training")})


# ---------------------------------------------------------------------- prediction and outcomes


@cache
def quiet(task: str, per_token: bool, weight: str) -> float:
    """The signal-to-noise ratio of a group's update, from the moments of completions to held-out
    prompts: the mean over three steps of GRPO's training, its seeds, and prompts."""
    ratios = []
    for stage in grid.select(estimators.published(), {"task": task}):
        rule = rule_of(weight, v_ratio(task, stage["step"]))
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


def compared(results: list[dict], fresh: bool = False) -> list[dict]:
    """The pairs of arms that differ in one thing, the weight or the divisor, at the first of
    STEP_LENGTHS: the paired difference in held-out accuracy at the end and in training accuracy,
    and how much quieter the first arm is."""
    rows = []
    for (one, first), (other, second) in combinations(arms(results, fresh=fresh).items(), 2):
        if one[0] == other[0] and (one[1] == other[1]) != (one[2] == other[2]):
            row = {"task": one[0], "arms": (one[1:], other[1:])}
            row |= {outcome: difference(first[outcome], second[outcome]) for outcome in first}
            rows.append(row | {"quiet": quiet(*one) - quiet(*other)})
    return rows


def kind(pair: dict) -> str:
    """The kind of difference between the two arms of a pair, one of KINDS."""
    weights = {weight for _, weight in pair["arms"]}
    if len(weights) == 1:
        return KINDS[1]
    if OTHERS[2] in weights:
        return KINDS[3]
    return KINDS[2] if weights - {*POWERS} else KINDS[0]


def judged(pairs: list[dict], name: str) -> list[tuple[int, int]]:
    """For each of KINDS, of the differences at the end and over training whose interval excludes 0:
    how many the arm with the larger `name` leads, and how many there are."""
    leads = {each: [] for each in KINDS}
    for pair in pairs:
        for gap in (pair["end"], pair["training"]):
            if gap["interval"] and np.prod(gap["interval"]) > 0:
                leads[kind(pair)].append(gap["difference"] * pair[name] > 0)
    return [(sum(decided), len(decided)) for decided in leads.values()]


def main(config: GridConfig) -> None:
    """Make the runs that are missing, and with --publish write weights.json."""
    grid.results_of(config, train, runs_of(config.seeds), RESULTS)


if __name__ == "__main__":
    main(parse(GridConfig, __doc__))
