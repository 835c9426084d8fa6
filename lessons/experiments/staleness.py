"""What if the policy has moved since it sampled? Five answers to this, against staleness. Lesson 14 reads the results.

    python lessons/experiments/staleness.py              5 seeds of everything: half an hour on two cores
    python lessons/experiments/staleness.py --quick      1 seed, a sixth of the updates, fewer settings: a minute
    python lessons/experiments/staleness.py --publish    also writes staleness.json here

Staleness. Every run makes 192 updates on 32 completions each, 6,144 in all, each used once. Only the size of a rollout
batch differs: it holds the completions of U updates, so that the last of them are U - 1 updates old when they are used
(and a minibatch, which is whole groups at U = 1, holds completions of many groups above).
The arms differ in nothing but what they do with the ratio: advantages are GRPO's, every loss is averaged as GRPO's is,
there is no KL. At U = 1 every ratio is 1 and the arms are one.

Reuse. Rollout batches of 256 completions, used in four epochs of 8 updates; 3,072 completions in all.

Samplers. GRPO's clip at U = 4, with completions sampled by a copy of the policy in another precision than that of the
trainer, with and without truncated importance sampling.

Runs go on in parallel, one thread each; those that are finished are not run again.
"""

from toy_env import UsageError, take_over_ctrl_c

if __name__ == "__main__":
    take_over_ctrl_c()

import copy
import json
import random
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from algorithms import cispo, dapo, grpo, gspo
from lessons.experiments.pool import in_parallel, lock_folder
from toy_env.arithmetic import LEVELS, held_out_problems, reward, sample_problems
from toy_env.cli import at_least, run_main
from toy_env.evaluate import evaluate
from toy_env.model import load_policy
from toy_env.rollout import completion_logps, sample

RESULTS = Path(__file__).parent / "staleness.json"
G, MINIBATCH, MAX_NEW_TOKENS, LEARNING_RATE, WARMUP = 8, 32, 56, 2e-4, 10
UPDATES = 192
STALENESS = (1, 4, 8, 16, 32)  # U: updates for each rollout batch
EVALUATIONS = 4  # of held-out accuracy, spread evenly over a run of 8 minibatches a batch; of others one, at the end
T_975 = {5: 2.776, 10: 2.262}  # quantile of Student's t, by number of seeds
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
    """A policy_loss that is a mean over the batch's tokens, made one over each completion's and then over completions.

    It is linear in the advantages: each is multiplied by the number of tokens of the batch over those of its own
    completion, over the number of completions. One without tokens counts among these, as in GRPO.
    """

    def loss(*, advantages: Tensor, mask: Tensor, **batch) -> Tensor:
        lengths = mask.sum(dim=1, keepdim=True).to(advantages)
        weight = lengths.sum() / (len(mask) * lengths.clamp(min=1))
        return token_mean(advantages=advantages * weight, mask=mask, **batch)

    return loss


def script_loss(script, like_grpo: bool, **settings) -> Callable:
    """The script's policy_loss, averaged over the tokens of each completion and then over completions.

    `like_grpo`: whether it does so itself.
    """
    config = script.Config(max_new_tokens=MAX_NEW_TOKENS, **settings)
    if like_grpo:
        return partial(script.policy_loss, config=config, ref_logps=None)
    return partial(averaged_as_grpo(script.policy_loss), config=config)


def uncorrected(*, logps: Tensor, old_logps: Tensor, **batch: Tensor) -> Tensor:
    """GRPO's loss as if the policy had not moved: every ratio 1."""
    return ARMS["GRPO's clip"](logps=logps, old_logps=logps.detach(), **batch)


ARMS: dict[str, Callable] = {
    "no correction": uncorrected,
    "GRPO's clip": script_loss(grpo, True, kl_coef=0.0),
    "clip-higher": script_loss(dapo, False),
    "GSPO": script_loss(gspo, True, kl_coef=0.0),
    "CISPO": script_loss(cispo, False),
}
CORRECTIONS = {"bfloat16": ("none", "token", "sequence"), "float8": ("none", "sequence")}  # by sampler


@dataclass
class Config:
    seeds: at_least(1, 1000) = 5  # seeds 0, 1, ... of every setting
    quick: bool = False  # 1 seed, 32 updates, U = 1, 8 and 32, no float8; in the folder OUTPUT-quick
    processes: at_least(0) = 0  # runs at a time, of one thread each; 0 for one per core
    output: str = "runs/staleness"  # folder for the runs
    publish: bool = False  # write staleness.json, which lesson 14 reads

    def check(self) -> None:
        if self.publish and (self.quick or self.seeds != 5):
            raise UsageError("--publish is for full runs; leave out --quick and --seeds")


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

    def file(self) -> str:
        return re.sub(r"[^\w.-]", "", "-".join(map(str, asdict(self).values()))) + ".json"


def runs_of(config: Config) -> list[Run]:
    """All runs; at U = 1 the arms are the same, so there is one of them."""
    seeds, updates, stale = range(config.seeds), UPDATES, STALENESS
    if config.quick:
        seeds, updates, stale = range(1), 32, (1, 8, 32)
    runs = [Run(arm, u, seed, 1, updates) for seed in seeds for u in stale for arm in ARMS
            if u > 1 or arm == "GRPO's clip"]  # fmt: skip
    runs += [Run(arm, 8, seed, 4, 2 * updates) for seed in seeds for arm in ARMS]
    if config.seeds == 5 and not config.quick:
        runs += [Run(arm, 8, 5 + seed, 4, 2 * updates) for seed in seeds for arm in FOLLOW_UP]
    samplers = ["bfloat16"] if config.quick else CORRECTIONS
    runs += [Run("GRPO's clip", 4, seed, 1, updates, sampler, correction)
             for seed in seeds for sampler in samplers for correction in CORRECTIONS[sampler]]  # fmt: skip
    return runs


def in_precision(policy: torch.nn.Module, precision: str) -> torch.nn.Module:
    """The policy as a sampler has it: itself for float32; a copy that computes in bfloat16; or a copy whose linear
    layers (the head, and the embeddings tied to it, among them) have weights rounded to float8 (e4m3), scaled so that
    the largest of a layer is the largest float8.

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
    """Truncated importance sampling: min(pi_trainer / pi_sampler, CAP), of each token (B, T) or completion (B, 1), from
    the log-ratios (B, T), 0 off the mask; 1 without a correction."""
    if correction == "none":
        return torch.ones_like(log_ratio[:, :1])
    summed = log_ratio if correction == "token" else log_ratio.sum(dim=1, keepdim=True)
    return summed.exp().clamp(max=CAP)


def spread(log_ratio: Tensor, mask: Tensor) -> dict[str, float]:
    """How far trainer and sampler are apart: standard deviation of the ratio, and share above CAP, of the tokens and of
    the completions of a rollout batch."""
    found = {}
    for name, ratio in (("tokens", log_ratio[mask].exp()), ("completions", log_ratio.sum(dim=1).exp())):
        found[f"spread of {name}"] = ratio.std().item()
        found[f"{name} above {CAP:g}"] = (ratio > CAP).double().mean().item()
    return found


def collect(sampler, tokenizer, P: int, rng: random.Random, generator: torch.Generator):
    """Sample G completions for each of P new problems and verify them.

    Returns the problems, the rollout and GRPO's advantages (P·G, 1).
    """
    problems = sample_problems(P, LEVELS, rng)
    prompts = [problem.prompt for problem in problems]
    rollout = sample(sampler, tokenizer, prompts, G, MAX_NEW_TOKENS, 1.0, generator)
    rewards = torch.tensor([reward(problems[row // G], text) for row, text in enumerate(rollout.texts)])
    return problems, rollout, grpo.compute_advantages(rewards=rewards.view(-1, G)).view(-1, 1)


def train(run: Run) -> dict:
    """Train, and return the run's settings with what is kept of it: held-out accuracy along the way and the rest at the
    end; means over all updates of the share of tokens whose gradient is stopped (of those with an advantage) and of
    |log ratio|; and of every batch how far sampler and trainer were apart, if they differ."""
    torch.set_num_threads(1)
    policy, tokenizer = load_policy("base")
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    rng, generator = random.Random(run.seed), torch.Generator().manual_seed(run.seed)
    update, accuracy, stopped, moved, apart = 0, [], [], [], []
    while update < run.updates:
        sampler = in_precision(policy, run.sampler)
        _, rollout, advantages = collect(sampler, tokenizer, run.staleness * MINIBATCH // G, rng, generator)

        # The weights of another sampler's completions, put into the advantages: every loss is linear in them
        if sampler is not policy:
            with torch.no_grad():
                logps = completion_logps(policy, rollout, 1.0)
            apart.append(spread(logps - rollout.logps, rollout.mask))
            advantages = advantages * sampling_weights(logps - rollout.logps, run.correction)  # (B, 1) or (B, T)
            rollout.logps = logps  # the ratio is that of the trainer's policies, then and now

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
    return asdict(run) | {"accuracy": accuracy} | {name: float(f"{x:.4g}") for name, x in numbers.items()}


def load(path: Path = RESULTS) -> list[dict]:
    """What `train` returned, of every run."""
    return json.loads(path.read_text("utf-8"))["runs"]


def select(runs: list[dict], seeds: range = range(5), **settings) -> list[dict]:
    """The runs with these settings, by seed; where none is given, those of the staleness experiment. Without the
    follow-up's, whose seeds are range(5, 10)."""
    runs = [run for run in runs if run["seed"] in seeds]
    settings = {"epochs": 1, "sampler": "float32", "correction": "none"} | settings
    if settings.get("staleness") == 1 and settings["epochs"] == 1:
        settings["arm"] = "GRPO's clip"  # at U = 1 all arms are the same
    return [run for run in runs if all(run[name] == value for name, value in settings.items())]


def difference(runs: list[dict], others: list[dict], at: int = -1, others_at: int = -1) -> tuple[float, float, float]:
    """Mean difference of held-out accuracy, runs - others, in points, with the ends of its 95 % t interval. Paired by
    seed: the prompts of a seed are the same in all runs. at: which of the evaluations. Of 5 or 10 pairs."""
    assert [run["seed"] for run in runs] == [run["seed"] for run in others]
    points = 100 * np.array([a["accuracy"][at] - b["accuracy"][others_at] for a, b in zip(runs, others)])
    half = T_975[len(points)] * points.std(ddof=1) / np.sqrt(len(points))
    return points.mean(), points.mean() - half, points.mean() + half


def judge(runs: list[dict]) -> dict[str, tuple[bool, str]]:
    """Of each prediction whether it held, and the numbers it speaks of (points of accuracy, with 95 % intervals)."""
    clip, old, last = "GRPO's clip", "no correction", STALENESS[-1]

    def end(arm: str, u: int) -> np.ndarray:
        return 100 * np.array([run["accuracy"][-1] for run in select(runs, arm=arm, staleness=u)])

    def against(arm: str, u: int, other: str, v: int) -> tuple[float, float, float]:
        return difference(select(runs, arm=arm, staleness=u), select(runs, arm=other, staleness=v))

    def off(sampler: str, correction: str) -> tuple[float, float, float]:
        sampled = select(runs, arm=clip, staleness=4, sampler=sampler, correction=correction)
        return difference(sampled, select(runs, arm=clip, staleness=4))

    means = [end(arm, 4).mean() for arm in ARMS]
    fresh = max(means) - min(means)
    early, clip_lost = {u: against(old, u, old, 1) for u in (4, 8)}, against(clip, last, clip, 1)
    higher = {u: against("clip-higher", u, clip, u) for u in STALENESS[1:]}
    stopped = {arm: np.mean([run["stopped"] for run in select(runs, arm=arm, staleness=last)]) for arm in ARMS}
    gspo_off, cispo_off = (against(arm, last, clip, last) for arm in ("GSPO", "CISPO"))
    again = {arm: select(runs, arm=arm, staleness=8, epochs=4) for arm in ARMS}
    gains = {arm: difference(again[arm], select(runs, arm=arm, staleness=8), others_at=1) for arm in ARMS}
    least = min(gains[arm][0] for arm in ARMS if arm != old)
    ends = {arm: np.mean([run["accuracy"][-1] for run in again[arm]]) for arm in ARMS}
    found = {
        "fresh": (fresh <= 3, f"largest difference of two means {fresh:.1f}"),
        "no correction": (
            min(lost[0] for lost in early.values()) > -3 and end(old, last).mean() < 39,
            f"{written(early[8])} at U = 8; .{end(old, last).mean() * 10:03.0f} at 32, runs from "
            f".{end(old, last).min() * 10:03.0f} to .{end(old, last).max() * 10:03.0f}",
        ),
        "GRPO's clip": (
            3 <= -clip_lost[0] <= 10 and end(clip, last).min() >= 70,
            f"{written(clip_lost)}; lowest run .{end(clip, last).min() * 10:03.0f}",
        ),
        "clip-higher": (
            all(abs(higher[u][0]) <= 3 for u in (4, 8, 16)) and higher[last][0] > 0,
            "; ".join(f"{written(higher[u])} at {u}" for u in higher),
        ),
        "GSPO": (
            stopped["GSPO"] >= 3 * stopped[clip] and abs(gspo_off[0]) <= 4,
            f"stops {stopped['GSPO']:.0%} against {stopped[clip]:.0%}; {written(gspo_off)}",
        ),
        "CISPO": (cispo_off[0] >= 2, written(cispo_off)),
        "reuse": (
            least >= 5 and min(ends, key=ends.get) == old,
            "; ".join(f"{arm} {written(gains[arm])}" for arm in ARMS),
        ),
    }
    for sampler, low, high, most_above, bound, change in (
        ("bfloat16", 0.005, 0.03, 0.0, 2, 4),
        ("float8", 0.03, 0.2, 1e-3, 4, 3),
    ):
        all_of_it = [
            run
            for c in CORRECTIONS[sampler]
            for run in select(runs, arm=clip, staleness=4, sampler=sampler, correction=c)
        ]
        tokens, above = (np.mean([run[name] for run in all_of_it]) for name in ("spread of tokens", "tokens above 2"))
        by = {correction: off(sampler, correction) for correction in CORRECTIONS[sampler]}
        found[sampler] = (
            low <= tokens <= high
            and above <= most_above
            and max(abs(by[c][0]) for c in (by if sampler == "bfloat16" else ["none"])) <= bound
            and max(abs(by[c][0] - by["none"][0]) for c in by) < change,
            f"spread {tokens:.3f}, share above 2: {above:.0e}; "
            + "; ".join(f"{'no correction' if c == 'none' else c} {written(by[c])}" for c in by),
        )
    return found


def verdicts(runs: list[dict]) -> str:
    """The predictions and what came of them, as a table in Markdown."""
    rows = ["| about | predicted, before the runs and after pilots with another seed | outcome |", "|---|---|---|"]
    for about, (held, numbers) in judge(runs).items():
        rows.append(f"| {about} | {PREDICTIONS[about]} | {'held' if held else '**did not hold**'}: {numbers} |")
    return "\n".join(rows)


def written(interval: tuple[float, float, float]) -> str:
    mean, low, high = interval
    return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]".replace("-", "−")


def write(run: Run, folder: Path) -> None:
    """Train and write what is kept; in the process that trains, so that a stop loses nothing that is finished."""
    path = folder / run.file()
    path.with_suffix(".tmp").write_text(json.dumps(train(run)), "utf-8")
    path.with_suffix(".tmp").rename(path)


def read(run: Run, folder: Path) -> dict:
    """What is kept of a run. Raises UsageError if the file holds something else."""
    path = folder / run.file()
    try:
        found = json.loads(path.read_text("utf-8"))
        fits = {name: found[name] for name in asdict(run)} == asdict(run)
        fits = fits and len(found["accuracy"]) == run.evaluations()
    except (KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise UsageError(f"{path} is of another version; delete it, or choose another --output")
    return found


def main(config: Config) -> None:
    """Run what is not there yet, print a line for each setting, and with --publish write staleness.json."""
    folder = Path(f"{config.output}-quick" if config.quick else config.output)
    runs = runs_of(config)
    with lock_folder(str(folder), "staleness.py"):
        left = [(run, folder) for run in runs if not (folder / run.file()).exists()]
        in_parallel(write, left, config.processes, total=len(runs))
    results = [read(run, folder) for run in runs]
    print(table(results))
    if config.publish:
        lines = ",\n".join(json.dumps(run) for run in results)
        command = "python lessons/experiments/staleness.py --publish"
        RESULTS.write_text(f'{{"command": "{command}", "runs": [\n{lines}\n]}}\n', "utf-8")
        print(f"written: {RESULTS}")


def table(results: list[dict]) -> str:
    """A line for each setting: accuracy at the end, mean and range over seeds, and the share of stopped tokens."""
    settings = ("arm", "staleness", "epochs", "sampler", "correction")
    lines = [f"{'arm':<15}{'U':>4}{'epochs':>8}  {'sampler':<10}{'correction':<12}accuracy at the end     stopped"]
    for values in dict.fromkeys(tuple(run[name] for name in settings) for run in results):
        same = [run for run in results if tuple(run[name] for name in settings) == values]
        end, stopped = [run["accuracy"][-1] for run in same], np.mean([run["stopped"] for run in same])
        arm, staleness, epochs, sampler, correction = values
        arm = "all" if staleness * epochs == 1 else arm
        lines.append(
            f"{arm:<15}{staleness:>4}{epochs:>8}  {sampler:<10}{correction:<12}"
            f"{np.mean(end):.3f} [{min(end):.3f}, {max(end):.3f}]  {stopped:7.3f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    run_main(Config, main, __doc__)
