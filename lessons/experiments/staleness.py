"""Train on completions of an older policy, or of one in another precision. Read by lesson 14.

    python lessons/experiments/staleness.py              all runs: about an hour on two cores
    python lessons/experiments/staleness.py --publish    also writes staleness.json here

Every run is `learning.learn` with GRPO's advantages, 32 completions an update, and no KL. The arms
differ only in what they do with the ratio; every loss is averaged as GRPO's is. Four groups of
runs:

Once (5 seeds): 6,144 completions, each used once. A rollout batch holds the completions of U
updates, so that the last are U - 1 updates old when they are used. Reuse (10 seeds): 3,072
completions in batches of 256, each used in four epochs of 8 updates; with AdamW's own steps, and
with every optimizer step scaled to the same length. Repeats: a run of reuse ten times, each with
the base model's weights changed by about one rounding of float32. Samplers (5 seeds): GRPO's clip
at U = 4, with completions sampled in another precision than the trainer's, with and without
truncated importance sampling.
"""

from dataclasses import dataclass
from itertools import count, product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from algorithms import grpo
from lessons.experiments.harness import grid, paired
from lessons.experiments.harness.grid import GridConfig, rounded
from lessons.experiments.harness.learning import clipped_step, learn, warm_up
from lessons.experiments.losses import LOSSES
from lessons.experiments.precision import CORRECTIONS, in_precision, sampling_weights, spread
from lessons.experiments.weights import step_of_length
from toy_env.model import load_policy
from toy_env.rollout import Rollout, completion_logps
from toy_env.run import parse

RESULTS = Path(__file__).parent / "staleness.json"
MINIBATCH = 32  # completions of an update
ONCE, REUSED = 6144, 3072  # completions of a run that uses each once, or four times
STALENESS = (4, 32)  # U: updates for each rollout batch
LENGTHS = (0.008, 0.016, 0.032)  # of every optimizer step
REPEATED, REPEATS, ROUNDING = 5, 10, 1e-7  # the seed that is repeated; relative changes of weights
OLD, CLIP, CISPO, UNWEIGHTED = "no correction", "GRPO's clip", "CISPO", "clip without weights"
U_4 = {"arm": CLIP, "staleness": 4}  # the runs of other samplers
ONCE_ARMS, REUSE_ARMS = (OLD, CLIP, "clip-higher", "GSPO", CISPO), (OLD, CLIP, CISPO, UNWEIGHTED)

# Written before these runs, and after: staleness, samplers, and reuse at 2e-4 with other draws; a
# trial of CISPO and the clip at 1e-4 and at equal steps; six repeats; single runs of seed 100. In
# brackets are the differences in the runs, in points; a prediction held if all of them are as it
# says. Commit 7a996b2 computes them, and has the runs at other U and rates, which were left out of
# staleness.json when no text used them any more.
PREDICTIONS = """
- held: Without correction 2 to 8 points are lost at U = 8, against U = 1. (−5.2 [−13.0, +2.5])
- held: At U = 32 it is 20 points or more below GRPO's clip. (−45.2 [−58.4, −32.1])
- held: At U = 32 clip-higher, GSPO and CISPO are within 3 points of GRPO's clip. (+1.2 [−0.9,
    +3.4]; −1.3 [−4.4, +1.8]; +1.7 [−2.9, +6.3])
- held: After 768 completions, at 2e-4, CISPO is 5 to 20 points above GRPO's clip. (+11.1 [+5.5,
    +16.7])
- held: At the end CISPO is a point or more below GRPO's clip at each rate: 1e-4, 2e-4, 4e-4. (−2.5
    [−5.6, +0.5]; −6.3 [−9.0, −3.6]; −46.8 [−59.1, −34.5])
- held: With steps of .008 and of .016 it ends within 3 points of GRPO's clip. (+0.7 [−1.0, +2.4];
    −2.2 [−8.2, +3.8])
- held: With steps of .032 it ends 3 points or more below. (−31.8 [−45.6, −18.0])
- failed: The clip without weights ends within 3 points of GRPO's clip at each rate and step
    length. (+0.2 [−1.3, +1.8]; +0.2 [−2.8, +3.1]; +2.1 [−5.0, +9.2]; +1.0 [−0.5, +2.6]; +3.2
    [−1.2, +7.6]; +7.7 [−0.6, +16.0])
- held: With a bfloat16 sampler accuracy is within 3 points of the float32 sampler's. (−0.7 [−2.9,
    +1.5]; +0.1 [−2.7, +3.0]; −0.8 [−2.1, +0.5])
- held: With a float8 sampler it is within 4 points. (−0.6 [−4.3, +3.0]; −1.2 [−4.3, +2.0])
- held: The sd of a run's end over repeats is within 1 point of that over seeds. (−0.4)
"""


@dataclass(frozen=True)
class Run:
    """One training run."""

    arm: str
    seed: int
    staleness: int = 8  # U / epochs: minibatches of a rollout batch
    completions: int = ONCE
    epochs: int = 1
    rate: float = 2e-4
    step_length: float = 0.0  # length of every optimizer step; 0: AdamW's own at this rate
    sampler: str = "float32"
    correction: str = "none"  # the ratio in min(pi_trainer / pi_sampler, CAP): token, sequence
    repeat: int = 0  # draws the change of the base model's weights; 0: unchanged


def runs_of(seeds: int) -> list[Run]:
    """All runs."""
    half = range(seeds // 2)
    runs = [Run(arm, seed, u) for seed, u, arm in product(half, STALENESS, ONCE_ARMS)]
    for length, seed, arm in product((0.0, *LENGTHS), range(seeds), REUSE_ARMS):
        runs.append(Run(arm, seed, 8, REUSED, 4, step_length=length))
    runs += [Run(CLIP, REPEATED, 8, REUSED, 4, repeat=1 + i) for i in range(REPEATS)]
    for seed, (sampler, corrections) in product(half, CORRECTIONS.items()):
        runs += [Run(CLIP, seed, 4, sampler=sampler, correction=each) for each in corrections]
    return runs


def train(run: Run) -> dict:
    """Train. Returns the held-out accuracy at the end (if U = 8 also after three batches); means
    over all updates of the share of tokens whose gradient is stopped ("stopped", among those with
    an advantage) and of |log ratio| ("moved"); and means over all batches of the tokens of a
    completion ("length") and, if sampler and trainer differ, of their `spread`."""
    policy, _ = load_policy("base")
    if run.repeat:
        generator = torch.Generator().manual_seed(run.repeat)
        for weight in policy.parameters():
            weight.data *= 1 + ROUNDING * torch.randn(weight.shape, generator=generator)
    seen, weights, numbers = {"stopped": [], "moved": [], "length": []}, [], count(1)

    def collect(learner, policy, *others) -> tuple[Rollout, Tensor]:
        """Sample in another precision; the loss's ratio is between the trainer's policies, now and
        when it sampled."""
        sampler = in_precision(policy, run.sampler)
        rollout, rewards = grpo.collect(learner, sampler, *others)
        seen["length"].append(rollout.mask.sum(dim=1).double().mean())
        log_ratio = torch.zeros_like(rollout.old_logps)
        if sampler is not policy:
            with torch.no_grad():
                trainers = completion_logps(policy, rollout, 1.0)
            log_ratio, rollout.old_logps = trainers - rollout.old_logps, trainers
            for name, value in spread(log_ratio, rollout.mask).items():
                seen.setdefault(name, []).append(value)
        weights.append(sampling_weights(log_ratio, run.correction))  # (P·G, 1) or (P·G, T)
        return rollout, rewards

    def advantages(policy, rollout, rewards: Tensor) -> Tensor:
        """GRPO's, times the weights, which may stand here because every loss is linear in the
        advantages."""
        return grpo.compute_advantages(rewards=rewards).view(-1, 1) * weights[-1]

    def policy_loss(*, logps: Tensor, ref_logps, config, **batch: Tensor) -> Tensor:
        """The arm's. Before an update, note what it stops and how far the policy has moved."""
        loss, A, mask = LOSSES[run.arm](logps=logps, **batch), batch["advantages"], batch["mask"]
        if A.any() or not run.step_length:  # else there is no step
            (gradient,) = torch.autograd.grad(loss, logps, retain_graph=True)  # (b, T)
            seen["stopped"].append((gradient == 0)[mask & (A != 0)].double().mean().nan_to_num())
            seen["moved"].append((logps.detach() - batch["old_logps"]).abs()[mask].double().mean())
        return loss

    def update(policy, optimizer: torch.optim.Optimizer, config, step: int) -> None:
        """An optimizer step whose warm-up is over updates, not over batches."""
        step = next(numbers)
        if run.step_length:
            step_of_length(run.step_length * warm_up(config, step), policy, optimizer)
        else:
            clipped_step(policy, optimizer, config, step)

    settings = {
        "seed": run.seed,
        "steps": run.completions // (MINIBATCH * run.staleness),
        "prompts_per_step": MINIBATCH * run.staleness // 8,
        "num_minibatches": run.staleness,
        "epochs": run.epochs,
        "learning_rate": run.rate,
    }
    replaced = {"collect": collect, "policy_loss": policy_loss, "update": update}
    evaluated = (3,) if run.staleness == 8 else ()
    learnt = learn(
        grpo, settings, policy=policy, advantages=advantages, evaluated=evaluated, **replaced
    )
    means = {name: float(np.mean(values)) for name, values in seen.items()}
    return rounded({"accuracy": [*learnt["held_out"], learnt["end"]]} | means)


def select(runs: list[dict], **settings) -> list[dict]:
    """The runs with these settings, by seed; settings that are not given are the defaults of
    `Run`, and as many completions as go with them."""
    wanted = grid.defaults(Run) | settings
    del wanted["completions"]
    return grid.select(runs, wanted)


def gap(runs: list[dict], one: dict, other: dict) -> dict:
    """`paired.difference` in held-out accuracy at the end between the runs of two settings."""
    ours, theirs = (
        [run["accuracy"][-1] for run in select(runs, **settings)] for settings in (one, other)
    )
    return paired.difference(ours, theirs)


def main(config: GridConfig) -> None:
    """Print the predictions, make the missing runs, and publish with --publish."""
    print(PREDICTIONS)
    grid.results_of(config, train, runs_of(config.seeds), RESULTS)


if __name__ == "__main__":
    main(parse(GridConfig, __doc__))
