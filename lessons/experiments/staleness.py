"""What if the policy has moved since it sampled? Five answers to this, against staleness. Lesson 14 reads the results.

    python lessons/experiments/staleness.py              5 seeds of everything: half an hour on two cores
    python lessons/experiments/staleness.py --quick      1 seed, a sixth of the updates, fewer settings: a minute
    python lessons/experiments/staleness.py --publish    also writes staleness.json here

Staleness. Every run makes 192 updates on 32 completions each, 6,144 in all, each used once. Only the size of a rollout
batch differs: it holds the completions of U updates, so that the last of them are U - 1 updates old when they are used.
(At U = 1 a minibatch is whole groups; at larger U it mixes completions of many groups.) The arms differ only in what
they do with the ratio: advantages are GRPO's, every loss is averaged as GRPO's is, and there is no KL. At U = 1 every
ratio is 1 and all arms are the same.

Reuse. Rollout batches of 256 completions, used in four epochs of 8 updates; 3,072 completions in all.

Samplers. GRPO's clip at U = 4, with completions sampled by a copy of the policy in another precision than that of the
trainer, with and without truncated importance sampling.
"""

from toy_env import take_over_ctrl_c

if __name__ == "__main__":
    take_over_ctrl_c()

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from algorithms import cispo, dapo, grpo, gspo
from lessons.experiments import paired
from lessons.experiments.grid import Grid, GridConfig, load_runs, signed
from toy_env.arithmetic import LEVELS, Problem, held_out_problems, reward, sample_problems
from toy_env.cli import at_least, run_main
from toy_env.evaluate import evaluate
from toy_env.model import load_policy
from toy_env.rollout import Rollout, completion_logps, sample

RESULTS = Path(__file__).parent / "staleness.json"
G, MINIBATCH, MAX_NEW_TOKENS, LEARNING_RATE, WARMUP = 8, 32, 56, 2e-4, 10
UPDATES = 192
STALENESS = (1, 4, 8, 16, 32)  # U: updates for each rollout batch
EVALUATIONS = 4  # of held-out accuracy, spread evenly over a run of 8 minibatches a batch; other runs have one
FOLLOW_UP = ("GRPO's clip", "CISPO")  # of reuse, on seeds 5 to 9: decided after the first five, to settle them
CAP = 2.0  # C, of the weights of truncated importance sampling

# Written down before the runs, after pilots that have no part in the results: one run, with seed 100, of most settings
# of the staleness experiment, and one batch of the base model in each precision. Accuracy: held out, end of the run.
PREDICTIONS = {
    "fresh": "Up to U = 4 no two arms differ by more than 3 points.",
    "no correction": "It loses less than 3 points up to U = 8, and ends below the base model's .39 at U = 32.",
    "GRPO's clip": "At U = 32 it is 3 to 10 points below U = 1, and no run ends below .7.",
    "clip-higher": "It is within 3 points of GRPO's clip up to U = 16, and above it at 32.",
    "GSPO": "At U = 32 it stops at least three times as many tokens as GRPO's clip and is within 4 points of it.",
    "CISPO": "At U = 32 it is above GRPO's clip, by 2 points or more.",
    "reuse": "Four epochs are better than one at equal completions, by 5 points or more, for every arm but no "
    "correction, which ends below all of them.",
    "bfloat16": "The ratio of a token, trainer over sampler, spreads by .005 to .03 and never passes 2; accuracy is "
    "within 2 points of the float32 sampler's, with and without correction.",
    "float8": "The spread is .03 to .2, fewer than 1 token in 1,000 passes 2, and accuracy without correction is "
    "within 4 points of the float32 sampler's; a correction changes it by less than 3.",
}


def averaged_as_grpo(token_mean: Callable) -> Callable:
    """A policy_loss that averages over the tokens of each completion and then over completions, made from one that
    averages over the tokens of the batch.

    It is linear in the advantages: each is multiplied by the number of tokens in the batch, over the number in its own
    completion, over the number of completions. A completion without tokens is counted, as in GRPO.
    """

    def loss(*, advantages: Tensor, mask: Tensor, **batch) -> Tensor:
        lengths = mask.sum(dim=1, keepdim=True).to(advantages)
        weight = lengths.sum() / (len(mask) * lengths.clamp(min=1))
        return token_mean(advantages=advantages * weight, mask=mask, **batch)

    return loss


def uncorrected(*, logps: Tensor, old_logps: Tensor, **batch: Tensor) -> Tensor:
    """GRPO's loss as if the policy had not moved: every ratio 1."""
    return ARMS["GRPO's clip"](logps=logps, old_logps=logps.detach(), **batch)


ARMS: dict[str, Callable] = {
    "no correction": uncorrected,
    "GRPO's clip": partial(grpo.policy_loss, config=grpo.Config(kl_coef=0.0), ref_logps=None),
    "clip-higher": averaged_as_grpo(partial(dapo.policy_loss, config=dapo.Config())),
    "GSPO": partial(gspo.policy_loss, config=gspo.Config(kl_coef=0.0), ref_logps=None),
    "CISPO": averaged_as_grpo(partial(cispo.policy_loss, config=cispo.Config())),
}
CORRECTIONS = {"bfloat16": ("none", "token", "sequence"), "float8": ("none", "sequence")}  # by sampler


@dataclass
class Config(GridConfig):
    seeds: at_least(1, 1000) = 5  # seeds 0, 1, ... of every setting
    quick: bool = False  # 1 seed, 32 updates, U = 1, 8 and 32, no float8; in the folder OUTPUT-quick
    output: str = "runs/staleness"  # folder for the runs

    QUICK = {"seeds": 1}


@dataclass(frozen=True)
class Run:
    """One training run."""

    arm: str
    staleness: int  # U / epochs: minibatches of a rollout batch
    seed: int
    epochs: int = 1
    updates: int = UPDATES
    sampler: str = "float32"
    correction: str = "none"  # or token or sequence: what the weight min(pi_trainer / pi_sampler, CAP) is made of

    def evaluations(self) -> int:
        return EVALUATIONS if self.staleness == 8 else 1


def runs_of(config: Config) -> list[Run]:
    """All runs; at U = 1, where all arms are the same, only GRPO's clip."""
    seeds, updates, stale, samplers = range(config.seeds), UPDATES, STALENESS, [*CORRECTIONS]
    if config.quick:
        updates, stale, samplers = 32, (1, 8, 32), ["bfloat16"]
    runs = [Run(arm, u, seed, 1, updates) for seed in seeds for u in stale for arm in ARMS
            if u > 1 or arm == "GRPO's clip"]  # fmt: skip
    runs += [Run(arm, 8, seed, 4, 2 * updates) for seed in seeds for arm in ARMS]
    if config.seeds == 5:
        runs += [Run(arm, 8, 5 + seed, 4, 2 * updates) for seed in seeds for arm in FOLLOW_UP]
    runs += [Run("GRPO's clip", 4, seed, 1, updates, sampler, correction)
             for seed in seeds for sampler in samplers for correction in CORRECTIONS[sampler]]  # fmt: skip
    return runs


def in_precision(policy: torch.nn.Module, precision: str) -> torch.nn.Module:
    """The policy that samples: itself for float32; a copy that computes in bfloat16; or a copy whose linear layers
    (including the head and the embeddings tied to it) have weights rounded to float8 (e4m3), scaled so that the largest
    weight of a layer is the largest float8.

    A linear layer in bfloat16 sums in float32 and rounds the sum, as accelerators do. Here the sum is a float32 product
    of the rounded numbers, which is up to ten times as fast where a processor has no bfloat16 instructions.
    """
    if precision == "float32":
        return policy
    copied = copy.deepcopy(policy).requires_grad_(False)
    linear = [layer for layer in copied.modules() if isinstance(layer, torch.nn.Linear)]
    for layer in linear:
        if precision == "bfloat16":
            weight = layer.weight.bfloat16().float()
            layer.forward = lambda x, weight=weight: F.linear(x.float(), weight).bfloat16()
        else:
            scale = layer.weight.abs().max() / torch.finfo(torch.float8_e4m3fn).max
            layer.weight.copy_((layer.weight / scale).to(torch.float8_e4m3fn).float() * scale)
    return copied.to(torch.bfloat16) if precision == "bfloat16" else copied


def sampling_weights(log_ratio: Tensor, correction: str) -> Tensor:
    """The weights of truncated importance sampling, min(pi_trainer / pi_sampler, CAP), for each token (B, T) or each
    completion (B, 1); 1 without a correction. log_ratio: (B, T), 0 off the mask."""
    if correction == "none":
        return torch.ones_like(log_ratio[:, :1])
    summed = log_ratio if correction == "token" else log_ratio.sum(dim=1, keepdim=True)
    return summed.exp().clamp(max=CAP)


def spread(log_ratio: Tensor, mask: Tensor) -> dict[str, float]:
    """How far trainer and sampler are apart: the standard deviation of their ratio and the share of ratios above CAP,
    over the tokens and over the completions of a rollout batch."""
    spreads = {}
    for name, ratio in (("tokens", log_ratio[mask].exp()), ("completions", log_ratio.sum(dim=1).exp())):
        spreads[f"spread of {name}"] = ratio.std().item()
        spreads[f"{name} above {CAP:g}"] = (ratio > CAP).double().mean().item()
    return spreads


def collect(
    sampler, tokenizer, P: int, rng: random.Random, generator: torch.Generator, max_new_tokens: int = MAX_NEW_TOKENS
) -> tuple[list[Problem], Rollout, Tensor]:
    """Sample G completions for each of P new problems and verify them.

    Returns the problems, the rollout and GRPO's advantages (P·G, 1).
    """
    problems = sample_problems(P, LEVELS, rng)
    prompts = [problem.prompt for problem in problems]
    rollout = sample(sampler, tokenizer, prompts, G, max_new_tokens, 1.0, generator)
    rewards = torch.tensor([reward(problems[row // G], text) for row, text in enumerate(rollout.texts)])
    return problems, rollout, grpo.compute_advantages(rewards=rewards.view(-1, G)).view(-1, 1)


def train(run: Run) -> dict:
    """Train, and return held-out accuracy along the way; entropy, length and truncated share at the end; over all
    updates the mean share of tokens whose gradient is stopped (among those with an advantage) and the mean |log ratio|;
    and, if sampler and trainer differ, the mean of their `spread` over the batches."""
    torch.set_num_threads(1)
    policy, tokenizer = load_policy("base")
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    rng, generator = random.Random(run.seed), torch.Generator().manual_seed(run.seed)
    update, accuracy, stopped, moved, apart = 0, [], [], [], []
    while update < run.updates:
        sampler = in_precision(policy, run.sampler)
        _, rollout, advantages = collect(sampler, tokenizer, run.staleness * MINIBATCH // G, rng, generator)

        # If another policy sampled, weights correct for it. They multiply the advantages, in which every loss is linear
        if sampler is not policy:
            with torch.no_grad():
                logps = completion_logps(policy, rollout, 1.0)
            apart.append(spread(logps - rollout.logps, rollout.mask))
            advantages = advantages * sampling_weights(logps - rollout.logps, run.correction)  # (B, 1) or (B, T)
            rollout.logps = logps  # the loss's ratio is between the trainer's policies, now and when it sampled

        epochs = [torch.randperm(len(rollout), generator=generator) for _ in range(run.epochs)]
        for rows in torch.cat(epochs).split(MINIBATCH):
            update += 1
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * min(1.0, update / (WARMUP + 1))
            part, A = rollout[rows], advantages[rows]
            logps = completion_logps(policy, part, 1.0)
            leaf = logps.detach().requires_grad_()
            loss = ARMS[run.arm](logps=leaf, old_logps=part.logps, advantages=A, mask=part.mask)
            (gradient,) = torch.autograd.grad(loss, leaf)  # (b, T), 0 where a token is stopped
            with_signal = part.mask & (A != 0)
            stopped.append((gradient[with_signal] == 0).double().mean().item() if with_signal.any() else 0.0)
            moved.append((leaf - part.logps).abs()[part.mask].double().mean().item())
            optimizer.zero_grad()
            logps.backward(gradient)
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            if update % (run.updates // run.evaluations()) == 0:
                report = evaluate(policy, tokenizer, held_out_problems(64, LEVELS), samples=2, max_new_tokens=56)
                accuracy.append(round(float(report.correct.mean()), 4))
    numbers = {"stopped": np.mean(stopped), "moved": np.mean(moved), "entropy": report.entropy,
               "length": report.lengths.mean(), "truncated": report.truncated.mean()}  # fmt: skip
    numbers |= {name: np.mean([batch[name] for batch in apart]) for name in (apart[0] if apart else ())}
    return {"accuracy": accuracy} | {name: float(f"{x:.4g}") for name, x in numbers.items()}


def load() -> list[dict]:
    """The committed runs: their settings and what `train` returned."""
    return load_runs(RESULTS)


def select(runs: list[dict], seeds: range = range(5), **settings) -> list[dict]:
    """The runs with these settings, by seed; settings that are not given are those of the staleness experiment. The
    follow-up has the seeds range(5, 10)."""
    settings = {"epochs": 1, "sampler": "float32", "correction": "none"} | settings
    if settings.get("staleness") == 1 and settings["epochs"] == 1:
        settings["arm"] = "GRPO's clip"  # at U = 1 all arms are the same
    return [run for run in runs if run["seed"] in seeds and settings.items() <= run.items()]


def difference(runs: list[dict], others: list[dict], at: int = -1, others_at: int = -1) -> tuple[float, float, float]:
    """Mean difference of held-out accuracy, runs - others, in points, with the ends of its 95 % t interval. Paired by
    seed: the prompts of a seed are the same in all runs. at, others_at: the number of an evaluation."""
    assert [run["seed"] for run in runs] == [run["seed"] for run in others]
    result = paired.difference([run["accuracy"][at] for run in runs], [run["accuracy"][others_at] for run in others])
    mean = 100 * result["difference"]
    return mean, *(100 * end for end in result["interval"] or (mean / 100, mean / 100))


def judge(runs: list[dict]) -> dict[str, tuple[bool, str]]:
    """Whether each prediction held, and its numbers (points of accuracy, with 95 % intervals)."""
    clip, old, last = "GRPO's clip", "no correction", STALENESS[-1]

    def at(arm: str, u: int, **settings) -> list[dict]:
        return select(runs, arm=arm, staleness=u, **settings)

    def ends(runs: list[dict]) -> np.ndarray:
        return 100 * np.array([run["accuracy"][-1] for run in runs])

    def thousandths(points: float) -> str:
        return f".{points * 10:03.0f}"

    means = [ends(at(arm, 4)).mean() for arm in ARMS]
    apart = max(means) - min(means)
    outcomes = {"fresh": (apart <= 3, f"largest difference of two means {apart:.1f}")}

    lost, end = [difference(at(old, u), at(old, 1)) for u in (4, 8)], ends(at(old, last))
    outcomes["no correction"] = (
        min(lost)[0] > -3 and end.mean() < 39,
        f"{written(lost[1])} at U = 8; {thousandths(end.mean())} at 32, runs from {thousandths(end.min())} to "
        f"{thousandths(end.max())}",
    )
    change, lowest = difference(at(clip, last), at(clip, 1)), ends(at(clip, last)).min()
    held = 3 <= -change[0] <= 10 and lowest >= 70
    outcomes["GRPO's clip"] = held, f"{written(change)}; lowest run {thousandths(lowest)}"

    gaps = {u: difference(at("clip-higher", u), at(clip, u)) for u in STALENESS[1:]}
    held = all(abs(gaps[u][0]) <= 3 for u in (4, 8, 16)) and gaps[last][0] > 0
    outcomes["clip-higher"] = held, "; ".join(f"{written(gap)} at {u}" for u, gap in gaps.items())

    stopped = {arm: np.mean([run["stopped"] for run in at(arm, last)]) for arm in ARMS}
    gspo, cispo = (difference(at(arm, last), at(clip, last)) for arm in ("GSPO", "CISPO"))
    held = stopped["GSPO"] >= 3 * stopped[clip] and abs(gspo[0]) <= 4
    outcomes["GSPO"] = held, f"stops {stopped['GSPO']:.0%} against {stopped[clip]:.0%}; {written(gspo)}"
    outcomes["CISPO"] = cispo[0] >= 2, written(cispo)

    gains = {arm: difference(at(arm, 8, epochs=4), at(arm, 8), others_at=1) for arm in ARMS}
    worst = min(ARMS, key=lambda arm: ends(at(arm, 8, epochs=4)).mean())
    held = min(gains[arm][0] for arm in ARMS if arm != old) >= 5 and worst == old
    outcomes["reuse"] = held, "; ".join(f"{arm} {written(gain)}" for arm, gain in gains.items())

    for sampler, low, high, most_above, bounded, bound, most_change in (
        ("bfloat16", 0.005, 0.03, 0.0, CORRECTIONS["bfloat16"], 2, 4),
        ("float8", 0.03, 0.2, 1e-3, ["none"], 4, 3),
    ):
        by = {correction: at(clip, 4, sampler=sampler, correction=correction) for correction in CORRECTIONS[sampler]}
        tokens, above = (
            np.mean([run[name] for by_seed in by.values() for run in by_seed])
            for name in ("spread of tokens", "tokens above 2")
        )
        gaps = {correction: difference(by_seed, at(clip, 4)) for correction, by_seed in by.items()}
        outcomes[sampler] = (
            low <= tokens <= high
            and above <= most_above
            and max(abs(gaps[correction][0]) for correction in bounded) <= bound
            and max(abs(gap[0] - gaps["none"][0]) for gap in gaps.values()) < most_change,
            f"spread {tokens:.3f}, share above 2: {above:.0e}; "
            + "; ".join(f"{'no correction' if name == 'none' else name} {written(gap)}" for name, gap in gaps.items()),
        )
    return outcomes


def verdicts(runs: list[dict]) -> str:
    """The predictions and their outcomes, as a table in Markdown."""
    rows = ["| about | predicted, before the runs and after pilots with another seed | outcome |", "|---|---|---|"]
    for about, (held, numbers) in judge(runs).items():
        rows.append(f"| {about} | {PREDICTIONS[about]} | {'held' if held else '**did not hold**'}: {numbers} |")
    return "\n".join(rows)


def written(interval: tuple[float, float, float]) -> str:
    mean, low, high = map(signed, interval)
    return f"{mean} [{low}, {high}]"


def table(results: list[dict]) -> str:
    """A line for each setting: accuracy at the end, mean and range over seeds, and the share of stopped tokens."""
    groups: dict[str, list[dict]] = {}
    for run in results:
        setting = f"{run['arm']}, U = {run['staleness']}, {run['epochs']} epochs, {run['sampler']}, {run['correction']}"
        groups.setdefault(setting, []).append(run)
    lines = []
    for setting, runs in groups.items():
        end, stopped = [run["accuracy"][-1] for run in runs], np.mean([run["stopped"] for run in runs])
        lines.append(f"{setting}: {np.mean(end):.3f} [{min(end):.3f}, {max(end):.3f}], {stopped:.1%} stopped")
    return "\n".join(lines)


def main(config: Config) -> None:
    """Make the runs that are missing, print a line for each setting, and with --publish write staleness.json."""
    config = config.sized()
    with Grid(config, "staleness.py") as grid:
        results = grid.run(train, runs_of(config))
        print(f"{table(results)}\n\nAccuracy at the end: mean and range over seeds.")
        if config.publish:
            grid.publish(RESULTS, results)


if __name__ == "__main__":
    run_main(Config, main, __doc__)
