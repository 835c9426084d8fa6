"""What if the policy has moved since it sampled? Answers to this, against staleness. Read by
lessons 14 and 18.

    python lessons/experiments/staleness.py              all runs: 80 minutes on two cores python
    lessons/experiments/staleness.py --quick      few settings and completions, one seed: a minute
    python lessons/experiments/staleness.py --publish    also writes staleness.json here

Every run is `learning.learn` with GRPO's advantages, 32 completions an update, and no KL. The arms
differ only in what they do with the ratio; every loss is averaged as GRPO's is. Four groups of
runs:

Staleness (5 seeds): 6,144 completions, each used once. A rollout batch holds the completions of U
updates, so that the last are U - 1 updates old when they are used. (At U = 1 a minibatch is whole
groups, and all arms are the same.) Reuse (10 seeds): 3,072 completions in batches of 256, each used
in four epochs of 8 updates; at equal rates, and with every optimizer step scaled to the same
length. Repeats: a run of reuse ten times, each with the base model's weights changed by about one
rounding of float32. Samplers (5 seeds): GRPO's clip at U = 4, with completions sampled in another
precision than the trainer's, with and without truncated importance sampling.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from algorithms import grpo
from lessons.experiments import paired
from lessons.experiments.estimators import Batch, collect
from lessons.experiments.grid import GridConfig, change, config_of, markdown, results_of, rounded
from lessons.experiments.learning import learn
from lessons.experiments.precision import CORRECTIONS, in_precision, sampling_weights, spread
from lessons.losses import ARMS
from toy_env.cli import run_main
from toy_env.model import load_policy
from toy_env.rollout import Rollout, completion_logps

RESULTS = Path(__file__).parent / "staleness.json"
MINIBATCH, ONCE, REUSED = (
    32,
    6144,
    3072,
)  # completions: of an update, of a run that uses them once, or four times
STALENESS = (1, 4, 8, 16, 32)  # U: updates for each rollout batch
RATES, STEP_LENGTHS = (1e-4, 2e-4, 4e-4), (0.008, 0.016, 0.032)
REUSE = [{"epochs": 4, "rate": x} for x in RATES] + [
    {"epochs": 4, "step_length": x} for x in STEP_LENGTHS
]
EVALUATED = (3, 6, 9, 12)  # batches after which runs with U = 8 are evaluated, besides the end
REPEATED, REPEATS, ROUNDING = 5, 10, 1e-7  # the seed that is repeated; relative changes of weights
OLD, CLIP, CISPO, UNWEIGHTED = "no correction", "GRPO's clip", "CISPO", "clip without weights"
ONCE_ARMS, REUSE_ARMS = (OLD, CLIP, "clip-higher", "GSPO", CISPO), (OLD, CLIP, CISPO, UNWEIGHTED)


Config = config_of("staleness", seeds=10, quick=2)


@dataclass(frozen=True)
class Run:
    """One training run."""

    arm: str
    seed: int
    staleness: int = 8  # U / epochs: minibatches of a rollout batch
    completions: int = ONCE
    epochs: int = 1
    rate: float = 2e-4
    step_length: float = 0.0  # of every optimizer step; 0: AdamW's own at this rate
    sampler: str = "float32"
    correction: str = (
        "none"  # or token or sequence: what the weight min(pi_trainer / pi_sampler, CAP) is made of
    )
    repeat: int = 0  # draws the change of the base model's weights; 0: unchanged


def runs_of(config: GridConfig) -> list[Run]:
    """All runs; at U = 1, where all arms are the same, only GRPO's clip."""
    seeds, half, stale, reuse = range(config.seeds), range(config.seeds // 2), STALENESS, REUSE
    once, reused, repeats = ONCE, REUSED, range(1, REPEATS + 1)
    if config.quick:
        stale, reuse, once, reused, repeats = (1, 8), REUSE[1::3], 256, 256, (1,)
    runs = [
        Run(arm, seed, u, once)
        for seed in half
        for u in stale
        for arm in ONCE_ARMS
        if u > 1 or arm == CLIP
    ]
    runs += [
        Run(arm, seed, 8, reused, **step) for step in reuse for seed in seeds for arm in REUSE_ARMS
    ]
    runs += [Run(CLIP, REPEATED, 8, reused, 4, repeat=repeat) for repeat in repeats]
    return runs + [Run(CLIP, seed, 4, once, sampler=sampler, correction=correction)
                   for seed in half for sampler in CORRECTIONS for correction in CORRECTIONS[sampler]]  # fmt: skip


def train(run: Run) -> dict:
    """Train, and return held-out accuracy along the way and at the end. Means over all updates: the
    share of tokens whose gradient is stopped ("stopped", among those with an advantage), |log
    ratio| ("moved"), and the length of the optimizer's step ("step"). Means over all batches: the
    number of tokens of a completion ("length") and, if sampler and trainer differ, their
    `spread`."""
    policy, _ = load_policy("base")
    if run.repeat:
        generator = torch.Generator().manual_seed(run.repeat)
        for weight in policy.parameters():
            weight.data *= 1 + ROUNDING * torch.randn(weight.shape, generator=generator)
    arm, updates, batches, last = ARMS[run.arm], [], [], {}

    def sampled(policy, *settings) -> tuple[Rollout, np.ndarray]:
        sampler = in_precision(policy, run.sampler)
        rollout, R = collect(sampler, *settings)
        batches.append({"length": rollout.mask.sum(dim=1).double().mean().item()})
        with (
            torch.no_grad()
        ):  # the loss's ratio is between the trainer's policies, now and when it sampled
            old_logps = (
                rollout.logps if sampler is policy else completion_logps(policy, rollout, 1.0)
            )
        log_ratio, rollout.logps = old_logps - rollout.logps, old_logps
        if sampler is not policy:
            batches[-1] |= spread(log_ratio, rollout.mask)
        last["weights"] = sampling_weights(log_ratio, run.correction).view(
            *R.shape, -1
        )  # (P, G, 1 or T)
        return rollout, R

    def advantages(batch: Batch, step: int) -> np.ndarray:
        """With the weights, which may stand here because every loss is linear in the advantages."""
        A = grpo.compute_advantages(rewards=torch.from_numpy(batch.rewards))
        return (A.unsqueeze(2) * last["weights"]).numpy()

    def loss(*, logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        inputs = {"old_logps": old_logps, "advantages": advantages, "mask": mask}
        leaf, with_signal = logps.detach().requires_grad_(), mask & (advantages != 0)
        (gradient,) = torch.autograd.grad(
            arm(logps=leaf, **inputs), leaf
        )  # (b, T), 0 where a token is stopped
        moved, stopped = (leaf - old_logps).abs()[mask], (gradient == 0)[with_signal]
        vector = parameters_to_vector(policy.parameters()).detach()
        step = (vector - last.get("vector", vector)).norm().item()  # of the update before
        last["vector"] = vector
        updates.append(
            [stopped.double().mean().nan_to_num().item(), moved.double().mean().item(), step]
        )
        return arm(logps=logps, **inputs)

    steps = run.completions // (MINIBATCH * run.staleness)
    learnt = learn(
        "arithmetic", run.seed, advantages, grpo, rate=run.rate, step_length=run.step_length, steps=steps,
        batch=MINIBATCH * run.staleness, minibatches=run.staleness, epochs=run.epochs, warm_by_update=True,
        policy=policy, sampled=sampled, loss=loss,
        evaluated=tuple(step for step in EVALUATED if step < steps and run.staleness == 8),
    )  # fmt: skip
    means = dict(zip(("stopped", "moved", "step"), np.mean(updates, axis=0).tolist()))
    means["step"] *= len(updates) / max(1, len(updates) - 1)  # the first has none before it
    means |= {name: float(np.mean([batch[name] for batch in batches])) for name in batches[0]}
    return rounded({"accuracy": [*learnt["held_out"], learnt["end"]]} | means)


def select(runs: list[dict], **settings) -> list[dict]:
    """The runs with these settings, by seed; settings that are not given are the defaults of
    `Run`."""
    free = ("arm", "seed", "completions")
    settings = {
        field.name: field.default for field in fields(Run) if field.name not in free
    } | settings
    settings |= {"arm": CLIP} if settings["staleness"] == 1 else {}  # where all arms are the same
    return [run for run in runs if settings.items() <= run.items()]


def gap(runs: list[dict], one: dict, other: dict, at: int = -1) -> dict:
    """`paired.difference` in held-out accuracy between the runs of two settings, over the seeds
    that both have. at: the number of the evaluation."""
    by_seed = [
        {run["seed"]: run["accuracy"][at] for run in select(runs, **settings)}
        for settings in (one, other)
    ]
    seeds = sorted(by_seed[0].keys() & by_seed[1].keys())
    return paired.difference(*([accuracy[seed] for seed in seeds] for accuracy in by_seed))


def sds(runs: list[dict]) -> list[float]:
    """The sd of the end of GRPO's clip in reuse: over the repeats of one seed, and over seeds."""
    repeats = [
        run for i in range(1, REPEATS + 1) for run in select(runs, arm=CLIP, epochs=4, repeat=i)
    ]
    seeds = select(runs, arm=CLIP, epochs=4)
    return [
        float(np.std([run["accuracy"][-1] for run in part], ddof=1)) for part in (repeats, seeds)
    ]


def versus(arms: Sequence[str], other: str, *settings: dict) -> list[tuple[dict, dict]]:
    """Pairs of settings: each arm and the other arm, with each of the settings."""
    return [({"arm": arm, **each}, {"arm": other, **each}) for arm in arms for each in settings]


# Written before these runs, and after: staleness, samplers, and reuse at 2e-4 with other draws; a trial of CISPO and
# the clip at 1e-4 and at equal steps; six repeats; single runs of seed 100. Each prediction is that all differences in
# accuracy between its pairs of settings lie between two bounds, in points; "repeats" is about `sds`.
STALEST, U_4 = {"staleness": 32}, {"arm": CLIP, "staleness": 4}
PREDICTIONS = {
    "stale": (-8, -2, "Without correction 2 to 8 points are lost at U = 8, against U = 1.",
              [({"arm": OLD}, {"arm": OLD, "staleness": 1})]),
    "stalest": (-100, -20, "At U = 32 it is 20 points or more below GRPO's clip.", versus([OLD], CLIP, STALEST)),
    "corrected": (-3, 3, "At U = 32 clip-higher, GSPO and CISPO are within 3 points of GRPO's clip.",
                  versus(ONCE_ARMS[2:], CLIP, STALEST)),
    "begun": (5, 20, "After 768 completions, at 2e-4, CISPO is 5 to 20 points above GRPO's clip.",
              versus([CISPO], CLIP, REUSE[1]), 0),
    "equal rate": (-100, -1, "At the end CISPO is a point or more below GRPO's clip at each rate: 1e-4, 2e-4, 4e-4.",
                   versus([CISPO], CLIP, *REUSE[:3])),
    "equal steps": (-3, 3, "With steps of .008 and of .016 it ends within 3 points of GRPO's clip.",
                    versus([CISPO], CLIP, *REUSE[3:5])),
    "long steps": (-100, -3, "With steps of .032 it ends 3 points or more below.", versus([CISPO], CLIP, REUSE[5])),
    "no weights": (-3, 3, "The clip without weights ends within 3 points of GRPO's clip at each rate and step length.",
                   versus([UNWEIGHTED], CLIP, *REUSE)),
    "repeats": (-1, 1, "The sd of a run's end over repeats is within 1 point of that over seeds.", []),
    "bfloat16": (-3, 3, "With a bfloat16 sampler accuracy is within 3 points of the float32 sampler's.",
                 [(U_4 | {"sampler": "bfloat16", "correction": name}, U_4) for name in CORRECTIONS["bfloat16"]]),
    "float8": (-4, 4, "With a float8 sampler it is within 4 points.",
               [(U_4 | {"sampler": "float8", "correction": name}, U_4) for name in CORRECTIONS["float8"]]),
}  # fmt: skip


def judge(runs: list[dict]) -> dict[str, tuple[bool, str]]:
    """Whether each prediction held, and its numbers."""
    outcomes = {}
    for about, (low, high, _, pairs, *at) in PREDICTIONS.items():
        gaps = [gap(runs, *pair, *at) for pair in pairs] or [
            {"difference": -np.diff(sds(runs))[0], "interval": None}
        ]
        held = all(low <= 100 * found["difference"] <= high for found in gaps)
        outcomes[about] = held, "; ".join(map(change, gaps))
    return outcomes


def verdicts(runs: list[dict], abouts: list[str]) -> str:
    """Some predictions and their outcomes, as a table in Markdown."""
    outcomes = judge(runs)
    rows = [[PREDICTIONS[about][2], f"{'held' if outcomes[about][0] else '**did not hold**'}: {outcomes[about][1]}"]
            for about in abouts]  # fmt: skip
    return markdown(["predicted, before the runs", "outcome"], rows)


def main(config: GridConfig) -> None:
    """Make the missing runs, print what they say of the predictions, and with --publish write
    staleness.json."""
    config = config.sized()
    results = results_of(config, train, runs_of(config), RESULTS)
    print(*(results if config.quick else [verdicts(results, [*PREDICTIONS])]), sep="\n")


if __name__ == "__main__":
    run_main(Config, main, __doc__)
