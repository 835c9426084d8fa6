"""The noise and the aim of each estimator, by exact scores on three tasks while GRPO trains. Read
by lessons 7 and 13.

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
from lessons.experiments.grid import Grid, GridConfig, load_runs, rounded
from lessons.experiments.pool import silence
from toy_env import pretrain
from toy_env.held_out import held_out
from toy_env.model import load_policy
from toy_env.rollout import Rollout, completion_logps, sample, sequences
from toy_env.run import parse
from toy_env.tasks import TASKS, base_model, load_task

RESULTS = Path(__file__).parent / "estimators.json"
SLIPS = "lessons.experiments.slips"  # its base is made here; the other two come with the repository
STEPS, GROUP_SIZES, BATCH = (0, 20, 60), (4, 8, 16, 64), 256
SIZES = (256, 1024, 4096, 32_768)  # numbers of completions, to see how estimates depend on it


@dataclass
class Config(GridConfig):
    seeds: int = 3  # seeds 0, 1, ...
    output: str = "runs/estimators"  # folder for the runs


@dataclass(frozen=True)
class Run:
    """A policy to measure: after `step` steps of grpo.py, or the base model."""

    task: str
    step: int
    seed: int
    prompts: int = 16  # held-out prompts
    completions: int = 4096  # completions of each prompt, whose halves predict each other
    batches: int = 16  # batches of 256 completions to training prompts, for each group size
    gradient: int = 16_384  # completions for the true gradient

    def name(self) -> str:
        """The name of its folder, and the seed of its draws."""
        return f"{self.task}-{self.step}-{self.seed}"


# ---------------------------------------------------------------------- scores


def scores(policy, rollout: Rollout, at_once: int = 64) -> Tensor:
    """(B, parameters): the gradient of the log-probability of each completion, all its tokens and
    the EOS."""
    ids, first = sequences(rollout), rollout.prompt_mask.sum(dim=1, keepdim=True)
    position, end = torch.arange(1, ids.shape[1]), first + rollout.mask.sum(dim=1, keepdim=True)
    predicted = (position >= first) & (position < end)  # (B, S - 1)
    weights = {name: weight.detach() for name, weight in policy.named_parameters()}

    def total(weights: dict, ids: Tensor, predicted: Tensor) -> Tensor:
        inputs = {"input_ids": ids[None], "use_cache": False}
        logits = functional_call(policy, weights, (), inputs).logits[0, :-1]
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
        """Sample n completions of a problem and score the different ones."""
        rollout = sample(policy, tokenizer, [problem.prompt], n, 56, 1.0, generator)
        # A text that was cut at the limit differs from the same text that ended there.
        keys = [*zip(rollout.texts, rollout.truncated.tolist())]
        index = {key: u for u, key in enumerate(dict.fromkeys(keys))}
        different = rollout[torch.tensor([keys.index(key) for key in index])]
        S = scores(policy, different).double()
        right = np.array([task.reward(problem, text) == 1 for text in different.texts])
        drawn = np.array([index[key] for key in keys])
        return Completions(drawn, different, right, (S @ S.T).numpy())


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
    """P groups of G training completions, as an estimator sees them."""

    rewards: np.ndarray  # (P, G)
    lengths: np.ndarray | None = None  # (P, G) tokens
    squared: np.ndarray | None = None  # (P, G) |score|^2
    v_ratio: float = 1.0  # v- / v+ of the policy, from other completions to other prompts
    proxies: np.ndarray | None = None  # (P, G, T), see baselines.proxies


def weighing(weight: Callable) -> Callable:
    """The estimator whose update is weight(k, G) times the contrast of a mixed group."""

    def estimator(batch: Batch) -> np.ndarray:
        R, G = batch.rewards, batch.rewards.shape[1]
        rule, table = identity.contrast(weight), np.zeros((G + 1, 2))  # row k, column: own reward
        for k in range(G + 1):
            table[k, 0] = rule(0, k, G)
            table[k, 1] = rule(1, k - 1, G) if k else 0.0
        return table[R.sum(axis=1, keepdims=True).astype(int), R.astype(int)]

    return estimator


def power_of_sigma(c: float) -> Callable:
    """The estimator with the weight sigma^c: GRPO's at c = 1, Dr. GRPO's at c = 2."""
    return weighing(lambda k, G: identity.sigma(k, G) ** c)


def leave_one_out(weights: Callable) -> Callable:
    """R less the mean reward of the others in its group, weighted by weights(batch) (P, G)."""

    def estimator(batch: Batch) -> np.ndarray:
        R, w = batch.rewards, weights(batch)
        return R - ((w * R).sum(1, keepdims=True) - w * R) / (w.sum(1, keepdims=True) - w)

    return estimator


ESTIMATORS: dict[str, Callable[[Batch], np.ndarray]] = {  # advantages (P, G)
    **{f"σ^{c:g}": power_of_sigma(c) for c in (0, 0.5, 1, 2, 3)},
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
    prompts = [problem.prompt for problem in problems]
    rollout = sample(policy, tokenizer, prompts, G, max_new_tokens, 1.0, generator)
    rewards = [task.reward(problems[i // G], text) for i, text in enumerate(rollout.texts)]
    return rollout, np.array(rewards, dtype=float).reshape(P, G)


def true_gradient(policy, draw: Callable, completions: int) -> Tensor:
    """(2, parameters): two independent estimates of the gradient of p, its mean over training
    prompts."""
    halves, n = torch.zeros(2, policy.num_parameters()), completions // BATCH
    for i in range(n):
        rollout, R = draw(BATCH // 16, 16)
        G = R.shape[1]
        A = (R - R.mean(axis=1, keepdims=True)) * G / (G - 1)  # RLOO's advantages: no bias
        A = torch.from_numpy(A).float().view(-1)
        value = (completion_logps(policy, rollout, 1.0).sum(dim=1) * A).mean()
        gradient = torch.autograd.grad(value, list(policy.parameters()))
        halves[i % 2] += torch.cat([part.flatten() for part in gradient]) / (n / 2)
    return halves


def measure_batches(
    policy, draw: Callable, n: int, G: int, D: Tensor, scales: dict, v_ratio: float
) -> dict:
    """For every estimator, divisor and scale the mean cosine, over n batches, with the gradient D;
    and the numbers of `by_k`.

    draw(P, G): a rollout and its rewards. D: (2, parameters). scales: by name (parameters,), what a
    gradient is multiplied by before it moves the policy.
    """
    length = float((D[0] @ D[1]).clamp(min=0)) ** 0.5  # the square of the mean would add noise
    cosines, groups = {}, []
    for _ in range(n):
        rollout, R = draw(BATCH // G, G)
        S, lengths = scores(policy, rollout), rollout.mask.sum(dim=1).numpy()
        for scale, factor in scales.items():
            moved = S * factor
            inner = (moved @ moved.T).double().numpy()
            progress = (moved @ D.mean(dim=0)).double().numpy()
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
        k, rows = int(rewards.sum()), slice(i * G, i * G + G)
        if 0 < k < G:
            a = np.where(rewards == 1, 1 / k, -1 / (G - k))
            yield k, a @ inner[rows, rows] @ a, a @ progress[rows]


def by_k(groups: list, G: int) -> list[list[float]]:
    """For k = 1..G-1: number of groups, mean and median of the contrast's squared length, mean of
    its progress and of progress / length."""
    table = []
    for k in range(1, G):
        chosen = [group[1:] for group in groups if group[0] == k]
        if not chosen:
            table.append([0, 0.0, 0.0, 0.0, 0.0])
            continue
        squared, progress = np.array(chosen).T
        cosine = progress / np.sqrt(np.maximum(squared, 1e-30))
        lengths = [np.mean(squared), np.median(squared)]
        table.append([len(chosen), *lengths, np.mean(progress), np.mean(cosine)])
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
    cosines = []
    for run in published():
        if (run["task"], run["step"]) == (task, step):
            batches = next(batches for batches in run["of batches"] if batches["G"] == G)
            rows = {tuple(row[:3]): row[3] for row in batches["estimators"]}
            cosines.append(rows[name, divisor, scale])
    return float(np.mean(cosines))


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
    prompts = [problem.prompt for problem in problems]
    rollout = sample(policy, tokenizer, prompts, 16, 56, 1.0, generator)
    counts: Counter = Counter()
    for i, text in enumerate(rollout.texts):
        problem = problems[i // 16]
        if task.reward(problem, text) != 1:
            counts[f"{problem.prompt} {text}"] += 1
    others = sorted(counts.keys() - dict(counts.most_common(3)).keys())
    return draws.sample(others, min(3, len(others)))


def measure(run: Run, folder: Path) -> dict:
    """Train a policy and measure it. Returns the moments of each prompt, the numbers of the batches
    of each G, and examples of wrong completions."""
    torch.set_num_threads(1)
    task, draws = load_task(run.task), random.Random(run.name())  # no two measurements share a draw
    policy, tokenizer, trained = policy_of(run, folder)
    generator = torch.Generator().manual_seed(draws.getrandbits(62))

    prompts = []
    for problem in held_out(task, -(-run.prompts // len(task.LEVELS)), task.LEVELS)[: run.prompts]:
        drawn = Completions.draw(policy, tokenizer, task, problem, run.completions, generator)
        prompts.append(measure_prompt(drawn))
    of_halves = [half[0][:2] for prompt in prompts for half in prompt["moments"]]
    v_right, v_wrong = np.nansum(of_halves, axis=0)
    scales = {"gradient": torch.ones(())}
    if trained:
        scales["Adam"] = adams_scale(trained / "state.pt")

    def draw(P: int, G: int) -> tuple[Rollout, np.ndarray]:
        return collect(policy, tokenizer, task, P, G, draws, generator)

    D, v_ratio = true_gradient(policy, draw, run.gradient), v_wrong / v_right
    batches = [
        measure_batches(policy, draw, run.batches, G, D, scales, v_ratio) for G in GROUP_SIZES
    ]
    texts = wrong_texts(policy, tokenizer, task, random.Random(f"texts {run.name()}"))
    return rounded(
        {"of prompts": prompts, "v_ratio": v_ratio, "of batches": batches, "texts": texts}
    )


def adams_scale(save: Path) -> Tensor:
    """(parameters,): what Adam would multiply a gradient by, momentum aside, after the last step of
    a saved run."""
    state = torch.load(save, weights_only=True)["optimizer"]["state"]
    second = [
        state[i]["exp_avg_sq"].flatten() / (1 - 0.999 ** state[i]["step"])
        for i in range(len(state))
    ]
    return 1 / (torch.cat(second).sqrt() + 1e-8)


def train(run: Run, base: str, folder: Path) -> Path:
    """Train a policy with grpo.py, or continue to. Returns the run's folder."""
    if not (folder / "results.json").is_file():  # written last
        settings = {"task": run.task, "model": base, "seed": run.seed, "steps": run.step}
        settings |= {"eval_every": 0, "eval_problems": 16, "device": "cpu"}
        resume = (folder / "config.json").is_file()
        with silence():
            grpo.train(grpo.Config(run_dir=str(folder), resume=resume, **settings))
    return folder


def main(config: Config) -> None:
    """Measure the policies that are missing, and with --publish write estimators.json."""
    config = config.sized()
    sizes = {}
    if config.quick:
        sizes = {"prompts": 4, "completions": 512, "batches": 2, "gradient": 1024}
    stages = product(range(config.seeds), STEPS, (*TASKS, SLIPS))
    runs = [Run(task, step, seed, **sizes) for seed, step, task in stages]
    grid = Grid(config, "estimators")
    if not (grid.path / "base" / "tokenizer.json").is_file():  # written last
        steps = 400 if config.quick else 4000
        pretrain.main(pretrain.Config(task=SLIPS, steps=steps, out_dir=str(grid.path / "base")))
    results = grid.run(partial(measure, folder=grid.path), runs)
    if config.publish:
        grid.publish(RESULTS, results)


if __name__ == "__main__":
    main(parse(Config, __doc__))
