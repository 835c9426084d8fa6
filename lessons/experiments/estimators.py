"""How noisy, and how well aimed, is each estimator? Exact scores on three tasks while GRPO trains:
lessons 7 and 13.

    python lessons/experiments/estimators.py              3 seeds
    python lessons/experiments/estimators.py --quick      1 seed, few completions
    python lessons/experiments/estimators.py --publish    also writes estimators.json here

The score of a completion is the gradient of its log-probability. At three steps of training two
things are measured. Prompts: from many completions to each of 16 held-out prompts the moments of
the scores of right and of wrong ones, in two halves, to see how well they agree. Batches: 256
completions to training prompts, in groups of 4 to 64. The update of every estimator is a linear
combination of their scores, so its length and its progress follow from inner products: of the
scores with each other, and with the true gradient, which comes from 16,384 other completions.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from algorithms import grpo
from lessons import identity
from lessons.experiments.grid import Grid, GridConfig, config_of, load_runs, rounded
from toy_env import pretrain
from toy_env.cli import run_main, silence
from toy_env.evaluate import held_out
from toy_env.model import load_policy
from toy_env.rollout import Rollout, completion_logps, sample, sequences
from toy_env.save import newest_save
from toy_env.tasks import TASKS, base_model, load_task

RESULTS = Path(__file__).parent / "estimators.json"
SLIPS = "lessons.experiments.slips"  # its base is made here; the other two come with the repository
STEPS, GROUP_SIZES, BATCH, SIZES = (0, 20, 60), (4, 8, 16, 64), 256, (256, 1024, 4096, 32_768)


Config = config_of("estimators", seeds=3, quick=1)


@dataclass(frozen=True)
class Run:
    """A policy to measure: after `step` steps of grpo.py, or the base model."""

    task: str
    step: int
    seed: int
    prompts: int = 16  # held-out prompts
    completions: int = 4096  # to each: one half predicts, the other is predicted
    batches: int = 16  # of 256 completions to training prompts, for each group size
    gradient: int = 16_384  # completions for the true gradient

    def name(self) -> str:
        return f"{self.task}-{self.step}-{self.seed}"


# ---------------------------------------------------------------------- scores


def scores(policy, rollout: Rollout, at_once: int = 64) -> Tensor:
    """(B, parameters): the gradient of the log-probability of each completion, all its tokens and
    the EOS."""
    ids, first = sequences(rollout), rollout.prompt_mask.sum(dim=1, keepdim=True)
    position = torch.arange(1, ids.shape[1])
    predicted = (position >= first) & (
        position < first + rollout.mask.sum(dim=1, keepdim=True)
    )  # (B, S - 1)
    weights = {name: weight.detach() for name, weight in policy.named_parameters()}

    def total(weights: dict, ids: Tensor, predicted: Tensor) -> Tensor:
        logits = functional_call(
            policy, weights, (), {"input_ids": ids[None], "use_cache": False}
        ).logits[0, :-1]
        return (logits.log_softmax(dim=-1).gather(1, ids[1:, None])[:, 0] * predicted).sum()

    gradients = vmap(grad(total), in_dims=(None, 0, 0))
    parts, order = [], predicted.sum(dim=1).add(first[:, 0]).argsort()
    for rows in order.split(at_once):
        width = int((first[:, 0] + predicted.sum(dim=1))[rows].max())
        with sdpa_kernel(SDPBackend.MATH):  # vmap has no rule for the faster kernel
            part = gradients(weights, ids[rows, :width], predicted[rows, : width - 1])
        parts.append(torch.cat([gradient.flatten(1) for gradient in part.values()], dim=1))
    return torch.cat(parts)[order.argsort()]


# ---------------------------------------------------------------------- prompts


def moments(drawn: np.ndarray, right: np.ndarray, inner: np.ndarray) -> list[float]:
    """v+, v-, |dm|^2 of completions, without bias; nan with fewer than two right or two wrong ones.

    v+, v-: sums over parameters of the variances of right and of wrong scores (ddof 1). |dm|^2: the
    squared length of the difference of their means, less what their noise adds.

    drawn: (n,) index of each completion among U different ones. right: (U,) bool. inner: (U, U).
    """
    chosen = [drawn[right[drawn] == which] for which in (True, False)]
    counts = [len(part) for part in chosen]
    if min(counts) < 2:
        return [np.nan] * 3
    means = [np.bincount(part, minlength=len(right)) / len(part) for part in chosen]
    v = [(m @ np.diag(inner) - m @ inner @ m) * n / (n - 1) for m, n in zip(means, counts)]
    contrast = means[0] - means[1]
    return [*v, contrast @ inner @ contrast - sum(variance / n for variance, n in zip(v, counts))]


@dataclass
class Completions:
    """Completions of one prompt. U of them are different; each is represented by its index among
    these."""

    drawn: np.ndarray  # (n,) the index of every completion, in the order in which they were drawn
    different: Rollout  # U rows
    right: np.ndarray  # (U,) bool
    inner: np.ndarray  # (U, U) inner products of the scores

    @staticmethod
    def draw(policy, tokenizer, task, problem, n: int, generator: torch.Generator) -> "Completions":
        rollout = sample(policy, tokenizer, [problem.prompt], n, 56, 1.0, generator)
        keys = [
            *zip(rollout.texts, rollout.truncated.tolist())
        ]  # a text that was cut differs from the same one ended
        index = {key: u for u, key in enumerate(dict.fromkeys(keys))}
        different = rollout[torch.tensor([keys.index(key) for key in index])]
        S = scores(policy, different).double()
        right = np.array([task.reward(problem, text) == 1 for text in different.texts])
        return Completions(
            np.array([index[key] for key in keys]), different, right, (S @ S.T).numpy()
        )


def measure_prompt(completions: Completions) -> dict:
    """The moments of one prompt's scores, of sums over tokens and of means, from both halves of its
    completions; v+ and v- from the first ones; and the share of the commonest wrong completion
    among the wrong ones, 0 without any."""
    drawn, right, inner = completions.drawn, completions.right, completions.inner
    lengths = completions.different.mask.sum(dim=1).numpy()
    kinds, halves = (inner, inner / np.outer(lengths, lengths)), np.array_split(drawn, 2)
    wrong = np.bincount(drawn[~right[drawn]], minlength=1)
    return {
        "right": [int(right[half].sum()) for half in halves],
        "moments": [[moments(half, right, kind) for kind in kinds] for half in halves],
        "growth": [moments(drawn[:n], right, inner)[:2] for n in SIZES if n <= len(drawn)],
        "commonest": wrong.max() / max(wrong.sum(), 1),
    }


# ---------------------------------------------------------------------- batches


@dataclass
class Batch:
    """Scores of P groups of G training completions, and what an estimator may use."""

    rewards: np.ndarray  # (P, G)
    lengths: np.ndarray | None = None  # (P, G) tokens
    squared: np.ndarray | None = None  # (P, G) |score|^2
    v_ratio: float = 1.0  # v- / v+ of the policy, from other completions to other prompts
    proxies: np.ndarray | None = (
        None  # (P, G, T) 1 - 2 pi + sum of pi^2 of each sampled token, 0 off the mask
    )


def weighing(weight: Callable) -> Callable:
    """The estimator whose update is weight(k, G) times the contrast of a mixed group."""

    def estimator(batch: Batch) -> np.ndarray:
        R, G = batch.rewards, batch.rewards.shape[1]
        table = [
            [identity.contrast(weight)(r, k - r, G) if k >= r else 0.0 for r in (0, 1)]
            for k in range(G + 1)
        ]
        return np.array(table)[R.sum(axis=1, keepdims=True).astype(int), R.astype(int)]

    return estimator


def leave_one_out(weights: Callable) -> Callable:
    """R less the mean reward of the others in its group, weighted by weights(batch) (P, G)."""

    def estimator(batch: Batch) -> np.ndarray:
        R, w = batch.rewards, weights(batch)
        return R - ((w * R).sum(1, keepdims=True) - w * R) / (w.sum(1, keepdims=True) - w)

    return estimator


ESTIMATORS: dict[str, Callable[[Batch], np.ndarray]] = {  # advantages (P, G)
    **{
        f"σ^{c:g}": weighing(lambda k, G, c=c: identity.sigma(k, G) ** c) for c in (0, 0.5, 1, 2, 3)
    },
    "(G − k)/G": weighing(lambda k, G: (G - k) / G),
    "k/G": weighing(lambda k, G: k / G),
    "c(k)": lambda batch: weighing(identity.quietest(batch.v_ratio))(batch),
    "σ, k < G − 2": weighing(lambda k, G: identity.sigma(k, G) * (k < G - 2)),
    "no baseline": lambda batch: batch.rewards,
    "b = 1": lambda batch: batch.rewards - 1,
    "OPO": lambda batch: batch.rewards - np.average(batch.rewards, 1, batch.lengths, keepdims=True),
    "best b of the others": leave_one_out(lambda batch: batch.squared),
}


def collect(
    policy, tokenizer, task, P: int, G: int, rng: random.Random, generator, max_new_tokens: int = 56
) -> tuple[Rollout, np.ndarray]:
    """A rollout of G completions to each of P training prompts, and the rewards (P, G)."""
    problems = task.sample_problems(P, task.LEVELS, rng)
    rollout = sample(
        policy,
        tokenizer,
        [problem.prompt for problem in problems],
        G,
        max_new_tokens,
        1.0,
        generator,
    )
    rewards = [task.reward(problems[i // G], text) for i, text in enumerate(rollout.texts)]
    return rollout, np.array(rewards, dtype=float).reshape(P, G)


def true_gradient(policy, draw: Callable, completions: int) -> Tensor:
    """(2, parameters): two independent estimates of the gradient of p, its mean over training
    prompts."""
    halves, n = torch.zeros(2, policy.num_parameters()), completions // BATCH
    for i in range(n):
        rollout, R = draw(BATCH // 16, 16)
        G = R.shape[1]
        A = (
            torch.from_numpy((R - R.mean(axis=1, keepdims=True)) * G / (G - 1)).float().view(-1)
        )  # RLOO's: unbiased
        value = (completion_logps(policy, rollout, 1.0).sum(dim=1) * A).mean()
        gradient = torch.autograd.grad(value, list(policy.parameters()))
        halves[i % 2] += torch.cat([part.flatten() for part in gradient]) / (n / 2)
    return halves


def measure_batches(
    policy, draw: Callable, n: int, G: int, D: Tensor, scales: dict, v_ratio: float
) -> dict:
    """For every estimator, divisor and scale: the mean cosine, over batches, with the gradient D.
    And of the contrast of the groups, by k: see `by_k`.

    D: (2, parameters). scales: by name (parameters,), what a gradient is multiplied with before it
    moves the policy.
    """
    length = (
        float((D[0] @ D[1]).clamp(min=0)) ** 0.5
    )  # without the noise that a square of the mean would add
    cosines, groups = {}, []
    for _ in range(n):
        rollout, R = draw(BATCH // G, G)
        S, lengths = scores(policy, rollout), rollout.mask.sum(dim=1).numpy()
        for scale, factor in scales.items():
            moved = S * factor
            inner, progress = (
                (moved @ moved.T).double().numpy(),
                (moved @ D.mean(dim=0)).double().numpy(),
            )
            if scale == "gradient":
                batch = Batch(R, lengths.reshape(R.shape), np.diag(inner).reshape(R.shape), v_ratio)
                groups += by_group(R, inner, progress)
            for name, estimator in ESTIMATORS.items():
                for divisor, tokens in (("sum", 1), ("mean", lengths)):
                    a = estimator(batch).flatten() / len(lengths) / tokens
                    cosine = a @ progress / np.sqrt(max(a @ inner @ a, 1e-30)) / length
                    cosines.setdefault((name, divisor, scale), []).append(cosine)
    rows = [[*key, np.mean(values)] for key, values in cosines.items()]
    return {"G": G, "estimators": rows, "by k": by_k(groups, G)}


def by_group(
    R: np.ndarray, inner: np.ndarray, progress: np.ndarray
) -> Iterator[tuple[int, float, float]]:
    """k of each mixed group, and the squared length and the progress of its contrast s+ - s-."""
    G = R.shape[1]
    for i, rewards in enumerate(R):
        if 0 < (k := int(rewards.sum())) < G:
            a, rows = np.where(rewards == 1, 1 / k, -1 / (G - k)), slice(i * G, i * G + G)
            yield k, a @ inner[rows, rows] @ a, a @ progress[rows]


def by_k(groups: list, G: int) -> list[list[float]]:
    """For k = 1..G-1: number of groups, mean and median of the contrast's squared length, mean of
    its progress and of progress / length."""
    table = []
    for k in range(1, G):
        squared, progress = (
            np.array([group[1:] for group in groups if group[0] == k]).reshape(-1, 2).T
        )
        cosine = progress / np.sqrt(np.maximum(squared, 1e-30))
        means = (np.mean, np.median, np.mean, np.mean), (squared, squared, progress, cosine)
        table.append([len(squared), *(mean(x) if len(x) else 0.0 for mean, x in zip(*means))])
    return table


@cache
def published() -> list[dict]:
    """The committed results."""
    return load_runs(RESULTS)


def cosine(
    task: str, step: int, name: str, divisor: str = "sum", scale: str = "gradient", G: int = 8
) -> float:
    """The mean cosine with the true gradient in the committed results, over batches and training
    seeds."""
    runs = [run for run in published() if (run["task"], run["step"]) == (task, step)]
    batches = [next(batches for batches in run["of batches"] if batches["G"] == G) for run in runs]
    return float(
        np.mean(
            [
                row[3]
                for b in batches
                for row in b["estimators"]
                if row[:3] == [name, divisor, scale]
            ]
        )
    )


# ---------------------------------------------------------------------- all of them


def policy_of(run: Run, folder: Path) -> tuple:
    """The policy and the tokenizer of a stage, and the folder of its training run; None for the
    base model."""
    base = str(folder / "base") if run.task == SLIPS else base_model(load_task(run.task))
    trained = train(run, base, folder / run.name()) if run.step else None
    return *load_policy(str(trained / "checkpoint") if trained else base), trained


def wrong_texts(policy, tokenizer, task, draws: random.Random) -> list[str]:
    """Three wrong ones of 16 completions to each of 64 held-out prompts, not among the three
    commonest."""
    problems = held_out(task, -(-64 // len(task.LEVELS)), task.LEVELS)
    generator = torch.Generator().manual_seed(draws.getrandbits(62))
    rollout = sample(
        policy, tokenizer, [problem.prompt for problem in problems], 16, 56, 1.0, generator
    )
    pairs = [(problems[i // 16], text) for i, text in enumerate(rollout.texts)]
    counts = Counter(
        f"{problem.prompt} {text}" for problem, text in pairs if task.reward(problem, text) != 1
    )
    others = sorted(counts.keys() - dict(counts.most_common(3)).keys())
    return draws.sample(others, min(3, len(others)))


def measure(run: Run, folder: Path) -> dict:
    """Train a policy and measure it. Returns the moments of each prompt, the numbers of the batches
    of each G, and examples of wrong completions."""
    torch.set_num_threads(1)
    task, draws = load_task(run.task), random.Random(run.name())  # no two measurements share a draw
    policy, tokenizer, trained = policy_of(run, folder)
    generator = torch.Generator().manual_seed(draws.getrandbits(62))

    problems = held_out(task, -(-run.prompts // len(task.LEVELS)), task.LEVELS)[: run.prompts]
    common = {"n": run.completions, "generator": generator}
    prompts = [
        measure_prompt(Completions.draw(policy, tokenizer, task, problem, **common))
        for problem in problems
    ]
    sums = np.nansum(
        [prompt["moments"][half][0][:2] for prompt in prompts for half in (0, 1)], axis=0
    )
    scales = {"gradient": torch.ones(())}
    if trained:
        state = newest_save(trained)[0]["optimizer"]["state"]
        parts = (state[i] for i in range(len(state)))
        second = torch.cat(
            [part["exp_avg_sq"].flatten() / (1 - 0.999 ** part["step"]) for part in parts]
        )
        scales["Adam"] = 1 / (
            second.sqrt() + 1e-8
        )  # of the step that it would take, momentum aside

    def draw(P: int, G: int) -> tuple[Rollout, np.ndarray]:
        return collect(policy, tokenizer, task, P, G, draws, generator)

    D = true_gradient(policy, draw, run.gradient)
    batches = [
        measure_batches(policy, draw, run.batches, G, D, scales, sums[1] / sums[0])
        for G in GROUP_SIZES
    ]
    texts = wrong_texts(policy, tokenizer, task, random.Random(f"texts {run.name()}"))
    return rounded(
        {"of prompts": prompts, "v_ratio": sums[1] / sums[0], "of batches": batches, "texts": texts}
    )


def train(run: Run, base: str, folder: Path) -> Path:
    """Train a policy with grpo.py, or continue to. Returns the run's folder."""
    if not (folder / "results.json").is_file():  # written last
        settings = grpo.Config(
            task=run.task, model=base, seed=run.seed, steps=run.step, run_dir=str(folder), eval_every=0,
            eval_problems=16, device="cpu", resume=(folder / "config.json").is_file(),
        )  # fmt: skip
        with silence():
            grpo.train(settings)
    return folder


def main(config: GridConfig) -> None:
    """Measure the policies that are missing, and with --publish write estimators.json."""
    config = config.sized()
    sizes = (
        {"prompts": 4, "completions": 512, "batches": 2, "gradient": 1024} if config.quick else {}
    )
    stages = product(range(config.seeds), STEPS, (*TASKS, SLIPS))
    runs = [Run(task, step, seed, **sizes) for seed, step, task in stages]
    with Grid(config, "estimators") as grid:
        if not (grid.path / "base" / "tokenizer.json").is_file():  # written last
            steps = 400 if config.quick else 4000
            pretrain.main(pretrain.Config(task=SLIPS, steps=steps, out_dir=str(grid.path / "base")))
        results = grid.run(partial(measure, folder=grid.path), runs)
        if config.publish:
            grid.publish(RESULTS, results)


if __name__ == "__main__":
    run_main(Config, main, __doc__)
