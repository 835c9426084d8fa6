"""Does a quieter estimator learn faster? Weights of a group's contrast, at equal length of every
optimizer step.

    python lessons/experiments/weights.py              10 seeds
    python lessons/experiments/weights.py --quick      1 seed
    python lessons/experiments/weights.py --publish    also writes weights.json here

The update of a group with k of G right is weight(k) times (mean score of the right - mean score of
the wrong): sigma in GRPO, its square in Dr. GRPO. An arm is a weight. Everything else is grpo.py at
its defaults, without the KL: 60 batches of 32 x 8, four optimizer steps each. After each of these,
what AdamW has added to the weights is scaled to a given length, so that no arm moves the policy
further than another. The predictions of which arm is ahead come from estimators.json alone, by
rules in which no result of these runs enters: `predictions`. They were committed after the runs of
the first ten seeds and before those of FRESH, which repeat the arms at the first of STEP_LENGTHS.
"""

from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np

from algorithms import dr_grpo, grpo
from lessons import identity
from lessons.experiments import estimators
from lessons.experiments.estimators import ESTIMATORS, Batch
from lessons.experiments.grid import GridConfig, config_of, load_runs, results_of, rounded
from lessons.experiments.learning import learn
from lessons.experiments.paired import difference
from toy_env.cli import run_main
from toy_env.tasks import TASKS

RESULTS = Path(__file__).parent / "weights.json"
POWERS = ("σ^0", "σ^0.5", "σ^1", "σ^2", "σ^3")
OTHERS = (
    "(G − k)/G",
    "c(k)",
    "σ, k < G − 2",
)  # MaxRL; the quietest; GRPO without groups of one or two wrong
STEP_LENGTHS = (
    0.016,
    0.008,
    0.032,
)  # of the weights' change in an optimizer step; grpo.py's own is about the first
G, FRESH = 8, range(100, 105)
NOTICED = {  # what may tell which of two arms learns more: the one with the larger value. Means over three stages
    "quiet": "signal-to-noise of a group",  # by the moments of completions to held-out prompts
    "cosine": "cosine of a batch",  # of its update with the true gradient
    "Adam": "cosine after Adam",  # the same once Adam has scaled the update
    "few wrong": "share of few wrong",  # of the progress, that of groups with one or two wrong completions
}
KINDS = (
    "powers of σ",
    "÷ length or not",
    "another weight",
    "groups dropped",
)  # what a pair of arms differs in


Config = config_of("weights", seeds=10, quick=1)


@dataclass(frozen=True)
class Run:
    """One training run."""

    task: str
    weight: str
    per_token: (
        bool  # whether a completion's loss is the mean over its tokens (GRPO) or the sum (Dr. GRPO)
    )
    step_length: float
    seed: int


def runs_of(config: GridConfig) -> list[Run]:
    """All runs: first the powers of sigma at GRPO's own step length, then the other weights, then
    the other lengths."""
    arms, others, fresh = [(weight, True, STEP_LENGTHS[0]) for weight in POWERS], [], ()
    if not config.quick:
        arms += [(weight, True, STEP_LENGTHS[0]) for weight in OTHERS]
        arms += [(weight, False, STEP_LENGTHS[0]) for weight in (*POWERS, *OTHERS)]
        others = [
            (w, kept, length)
            for length in STEP_LENGTHS[1:]
            for kept in (True, False)
            for w in POWERS
        ]
        fresh = FRESH
    grids = (arms, range(config.seeds)), (others, range(config.seeds)), (arms, fresh)
    return [
        Run(task, *arm, seed)
        for grid, seeds in grids
        for arm in grid
        for task in TASKS
        for seed in seeds
    ]


def v_ratio(task: str, step: int) -> float:
    """v- / v+ for the weight c(k): measured on other completions, at the step of training that is
    nearest."""
    nearest = min(estimators.STEPS, key=lambda measured: abs(measured - step))
    return float(np.mean([stage["v_ratio"] for stage in stages(task) if stage["step"] == nearest]))


@cache
def stages(task: str) -> list[dict]:
    """What estimators.json says of a task."""
    return [run for run in load_runs(estimators.RESULTS) if run["task"] == task]


def train(run: Run) -> dict:
    """Train a policy. Returns its accuracy on held-out problems at the end, and that on training
    problems."""

    def advantages(batch: Batch, step: int) -> np.ndarray:
        return ESTIMATORS[run.weight](Batch(batch.rewards, v_ratio=v_ratio(run.task, step)))

    script = grpo if run.per_token else dr_grpo
    learnt = learn(run.task, run.seed, advantages, script, rate=1e-4, step_length=run.step_length)
    return rounded({name: learnt[name] for name in ("end", "training")})


# ---------------------------------------------------------------------- what was measured, against what was learnt


@cache
def predictions(task: str, per_token: bool, weight: str) -> dict[str, float]:
    """What NOTICED names, of an arm: means over three steps of GRPO's training, its seeds, and
    prompts."""
    values = {name: [] for name in NOTICED}
    for stage in stages(task):
        for prompt in stage["of prompts"]:
            p = sum(prompt["right"]) / stage["completions"]
            v_right, v_wrong = np.mean([half[per_token][:2] for half in prompt["moments"]], axis=0)
            if v_right > 0 and v_wrong > 0:
                rule = contrast(weight, v_ratio(task, stage["step"]))
                values["quiet"].append(identity.efficiency(rule, p, G, v_wrong / v_right))
        batches = next(batches for batches in stage["of batches"] if batches["G"] == G)
        for name, divisor, scale, cosine, *_ in batches["estimators"]:
            if (name, divisor) == (weight, ("sum", "mean")[per_token]):
                values["cosine" if scale == "gradient" else "Adam"].append(cosine)
        progress = [n * contrast(weight, v_ratio(task, stage["step"]))(1, k - 1, G) * k * mean
                    for k, (n, _, _, mean, _) in enumerate(batches["by k"], 1)]  # fmt: skip
        values["few wrong"].append(sum(progress[-2:]) / sum(progress) if any(progress) else 0.0)
    return {name: float(np.mean(of_stages)) for name, of_stages in values.items()}


def contrast(weight: str, ratio: float) -> identity.AdvantageRule:
    """The rule of an arm, as a function (own reward, others right, G) -> advantage."""

    def rule(reward: int, others: int, G: int) -> float:
        R = (np.arange(G) < others + reward).astype(float)[None]
        return float(ESTIMATORS[weight](Batch(R, None, None, ratio))[0, 0 if reward else -1])

    return rule


def arms(
    results: list[dict], step_length: float = STEP_LENGTHS[0], fresh: bool = False
) -> dict[tuple, dict]:
    """(task, per_token, weight) -> by seed, those of FRESH or the others, the "end" and the
    "training" accuracy."""
    grouped: dict[tuple, dict[str, list[float]]] = {}
    for run in sorted(results, key=lambda run: run["seed"]):
        if run["step_length"] == step_length and (run["seed"] in FRESH) == fresh:
            arm = grouped.setdefault(
                (run["task"], run["per_token"], run["weight"]), {"end": [], "training": []}
            )
            for outcome, values in arm.items():
                values.append(run[outcome])
    return grouped


def compared(results: list[dict], fresh: bool = False) -> list[dict]:
    """The pairs of arms that differ in one thing, the weight or the divisor, at the first of
    STEP_LENGTHS: the paired difference in held-out accuracy at the end and in training accuracy,
    and the differences in what NOTICED names."""
    rows = []
    for (one, first), (other, second) in combinations(arms(results, fresh=fresh).items(), 2):
        if one[0] == other[0] and (one[1] == other[1]) != (one[2] == other[2]):
            expected = [predictions(*arm) for arm in (one, other)]
            rows.append({
                "task": one[0], "arms": (one[1:], other[1:]),
                **{outcome: difference(first[outcome], second[outcome]) for outcome in first},
                **{name: expected[0][name] - expected[1][name] for name in NOTICED},
            })  # fmt: skip
    return rows


def kind(pair: dict) -> str:
    """What a pair of arms differs in, one of KINDS."""
    weights = {weight for _, weight in pair["arms"]}
    if len(weights) == 1:
        return KINDS[1]
    return KINDS[3] if OTHERS[2] in weights else KINDS[2] if weights - {*POWERS} else KINDS[0]


def judged(pairs: list[dict], name: str) -> list[tuple[int, int]]:
    """For each of KINDS, of the differences at the end and over training whose interval excludes 0:
    how many the arm with the larger `name` leads; how many there are."""
    counts = dict.fromkeys(KINDS, (0, 0))
    for pair in pairs:
        for outcome in (pair["end"], pair["training"]):
            if outcome["interval"] and np.prod(outcome["interval"]) > 0:
                right, decided = counts[kind(pair)]
                counts[kind(pair)] = right + (outcome["difference"] * pair[name] > 0), decided + 1
    return [*counts.values()]


def main(config: GridConfig) -> None:
    """Make the runs that are missing, and with --publish write weights.json."""
    config = config.sized()
    results_of(config, train, runs_of(config), RESULTS)


if __name__ == "__main__":
    run_main(Config, main, __doc__)
