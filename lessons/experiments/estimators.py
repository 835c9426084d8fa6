"""The noise and the aim of each estimator, by exact scores on three tasks while GRPO trains. Read
by lessons 7 and 13.

    python lessons/experiments/estimators.py              3 seeds
    python lessons/experiments/estimators.py --quick      few policies and completions
    python lessons/experiments/estimators.py --publish    also writes estimators.json here

The score of a completion is the gradient of its log-probability. At three steps of training two
things are measured. Prompts: from many completions to each of 16 held-out prompts the moments of
the scores of right and of wrong ones, in two halves, to see how well they agree. Batches: 256
completions to training prompts, in groups of 4 to 64. The update of every estimator is a linear
combination of their scores, so its length and its progress follow from inner products: of the
scores with each other, and with the true gradient, which comes from 16,384 other completions.
"""

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from algorithms import grpo, rloo
from lessons import identity
from lessons.experiments.grid import Grid, GridConfig, load_runs, results_of, rounded, select
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
SMALL = {"prompts": 4, "completions": 512, "batches": 2, "gradient": 1024}  # of --quick
SIZES = (256, 1024, 4096, 32_768)  # numbers of completions, to see how estimates depend on it


@dataclass
class Config(GridConfig):
    seeds: int = 3  # seeds 0, 1, ...


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
        """Its name, the seed of its draws."""
        return f"{self.task}-{self.step}-{self.seed}"


# ---------------------------------------------------------------------- scores


def scores(policy, rollout: Rollout, at_once: int = 64) -> Tensor:
    """(B, parameters): the gradient of the log-probability of each completion, all its tokens and
    the EOS."""
    ids, first = sequences(rollout), rollout.prompt_mask.sum(dim=1)
    end, position = first + rollout.mask.sum(dim=1), torch.arange(1, ids.shape[1])
    predicted = (position >= first[:, None]) & (position < end[:, None])  # (B, S - 1)
    weights = {name: weight.detach() for name, weight in policy.named_parameters()}

    def total(weights: dict, ids: Tensor, predicted: Tensor) -> Tensor:
        inputs = {"input_ids": ids[None], "use_cache": False}
        logits = functional_call(policy, weights, (), inputs).logits[0, :-1]
        return (logits.log_softmax(dim=-1).gather(1, ids[1:, None])[:, 0] * predicted).sum()

    gradients = vmap(grad(total), in_dims=(None, 0, 0))
    parts, order = [], end.argsort()
    for rows in order.split(at_once):
        width = int(end[rows].max())
        with sdpa_kernel(SDPBackend.MATH):  # vmap has no rule for the faster kernel
            part = gradients(weights, ids[rows, :width], predicted[rows, : width - 1])
        parts.append(torch.cat([gradient.flatten(1) for gradient in part.values()], dim=1))
    return torch.cat(parts)[order.argsort()]


# ---------------------------------------------------------------------- prompts


def class_means(drawn: np.ndarray, right: np.ndarray) -> tuple[list, list]:
    """How many completions are right and how many wrong, and the mean score of each class as
    weights (U,) of the different completions."""
    classes = [drawn[right[drawn] == which] for which in (True, False)]
    counts = [len(part) for part in classes]
    means = [np.bincount(part, minlength=len(right)) / max(len(part), 1) for part in classes]
    return counts, means


def moments(drawn: np.ndarray, right: np.ndarray, inner: np.ndarray) -> list[float]:
    """v+, v-, |dm|^2 of completions, without bias; nan with fewer than two right or two wrong ones.

    v+, v-: sums over parameters of the variances of right and of wrong scores (ddof 1). |dm|^2: the
    squared length of the difference of their means, less what their noise adds.

    drawn: (n,) index of each completion among U different ones. right: (U,) bool. inner: (U, U).
    """
    counts, means = class_means(drawn, right)
    if min(counts) < 2:
        return [np.nan] * 3
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
        keys, index = zip(rollout.texts, rollout.truncated.tolist()), {}
        drawn = np.array([index.setdefault(key, len(index)) for key in keys])
        _, first = np.unique(drawn, return_index=True)
        different = rollout[torch.from_numpy(first)]
        S = scores(policy, different).double()
        right = np.array([task.reward(problem, text) == 1 for text in different.texts])
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


WEIGHTS = {  # weight(k, G) of a mixed group's contrast; GRPO: σ^1
    **{f"σ^{c:g}": lambda k, G, c=c: identity.sigma(k, G) ** c for c in (0, 0.5, 1, 2, 3)},
    "(G − k)/G": lambda k, G: (G - k) / G,
    "σ, k < G − 2": lambda k, G: identity.sigma(k, G) * (k < G - 2),
}


def rule_of(name: str, v_ratio: float) -> identity.AdvantageRule:
    """The rule of one of WEIGHTS, or of c(k), the quietest weight, which depends on v- / v+."""
    return identity.contrast(identity.quietest(v_ratio) if name == "c(k)" else WEIGHTS[name])


def weighing(name: str) -> Callable:
    """The estimator whose update is a weight times the contrast of a mixed group."""

    def estimator(batch: Batch) -> np.ndarray:
        R = batch.rewards
        rule = np.vectorize(rule_of(name, batch.v_ratio), otypes=[float])
        return rule(R, R.sum(axis=1, keepdims=True) - R, R.shape[1])

    return estimator


def leave_one_out(weights: Callable) -> Callable:
    """R less the mean reward of the others in its group, weighted by weights(batch) (P, G)."""

    def estimator(batch: Batch) -> np.ndarray:
        R, w = batch.rewards, weights(batch)
        return R - ((w * R).sum(1, keepdims=True) - w * R) / (w.sum(1, keepdims=True) - w)

    return estimator


ESTIMATORS = {  # advantages (P, G) from a Batch
    **{name: weighing(name) for name in (*WEIGHTS, "c(k)")},
    "no baseline": lambda batch: batch.rewards,
    "b = 1": lambda batch: batch.rewards - 1,
    "OPO": lambda batch: batch.rewards - np.average(batch.rewards, 1, batch.lengths, keepdims=True),
    "best b of the others": leave_one_out(lambda batch: batch.squared),
}


def collect(
    policy, tokenizer, task, P: int, G: int, rng: random.Random, generator
) -> tuple[Rollout, np.ndarray]:
    """A rollout of G completions to each of P training prompts, and the rewards (P, G)."""
    run = SimpleNamespace(task=task, device="cpu")
    config = grpo.Config(prompts_per_step=P, group_size=G)
    rollout, rewards = grpo.collect(run, policy, tokenizer, config, rng, generator)
    return rollout, rewards.double().numpy()


def true_gradient(stage: "Stage") -> tuple[Tensor, float]:
    """(parameters,): the gradient of p, its mean over training prompts; and its length, from two
    independent halves, because the square of their mean has noise added."""
    policy, n = stage.policy, stage.run.gradient // BATCH
    halves = torch.zeros(2, policy.num_parameters())
    for i in range(n):
        rollout, R = stage.draw(BATCH // 16, 16)
        A = rloo.compute_advantages(rewards=torch.from_numpy(R)).float().view(-1)  # no bias
        value = (completion_logps(policy, rollout, 1.0).sum(dim=1) * A).mean()
        gradient = torch.autograd.grad(value, list(policy.parameters()))
        halves[i % 2] += torch.cat([part.flatten() for part in gradient]) / (n / 2)
    return halves.mean(dim=0), max(0.0, (halves[0] @ halves[1]).item()) ** 0.5


def measure_batches(
    stage: "Stage", G: int, gradient: Tensor, length: float, v_ratio: float
) -> dict:
    """For every estimator, divisor and scale the mean cosine of a batch with the true gradient,
    (parameters,), of this length; and the numbers of `by_k`."""
    cosines, groups = {}, []
    for _ in range(stage.run.batches):
        rollout, R = stage.draw(BATCH // G, G)
        S, lengths = scores(stage.policy, rollout), rollout.mask.sum(dim=1).numpy()
        for scale, factor in stage.scales.items():
            moved = S * factor
            inner = (moved @ moved.T).double().numpy()
            progress = (moved @ gradient).double().numpy()
            if scale == "gradient":
                batch = Batch(R, lengths.reshape(R.shape), np.diag(inner).reshape(R.shape), v_ratio)
                groups.append(contrasts(batch, inner, progress))
            for name, estimator in ESTIMATORS.items():
                for divisor, tokens in (("sum", 1), ("mean", lengths)):
                    a = estimator(batch).flatten() / len(lengths) / tokens
                    cosine = a @ progress / np.sqrt(max(a @ inner @ a, 1e-30)) / length
                    cosines.setdefault((name, divisor, scale), []).append(cosine)
    rows = [[*key, np.mean(values)] for key, values in cosines.items()]
    return {"G": G, "estimators": rows, "by k": by_k(np.concatenate(groups), G)}


def contrasts(batch: Batch, inner: np.ndarray, progress: np.ndarray) -> np.ndarray:
    """(P, 3): k of each group, and the squared length and the progress of its contrast s+ - s-."""
    P, G = batch.rewards.shape
    a = ESTIMATORS["σ^0"](batch) / G  # (P, G): 1 / k for right, -1 / (G - k) for wrong ones
    own = inner.reshape(P, G, P, G)[np.arange(P), :, np.arange(P)]  # (P, G, G), within groups
    squared = np.einsum("pi,pij,pj->p", a, own, a)
    return np.stack([batch.rewards.sum(1), squared, (a * progress.reshape(P, G)).sum(1)], axis=1)


def by_k(groups: np.ndarray, G: int) -> list[list[float]]:
    """For k = 1..G-1: number of groups, mean and median of the contrast's squared length, mean of
    its progress and of progress / length; zeros without groups. groups: (n, 3), see `contrasts`."""
    table = np.zeros((G - 1, 5))
    for k in range(1, G):
        squared, progress = groups[groups[:, 0] == k, 1:].T
        if len(squared):
            cosine = progress / np.sqrt(np.maximum(squared, 1e-30))
            lengths = squared.mean(), np.median(squared)
            table[k - 1] = len(squared), *lengths, progress.mean(), cosine.mean()
    return table.tolist()


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
    for run in select(published(), {"task": task, "step": step}):
        batches = next(batches for batches in run["of batches"] if batches["G"] == G)
        rows = {tuple(row[:3]): row[3] for row in batches["estimators"]}
        cosines.append(rows[name, divisor, scale])
    return float(np.mean(cosines))


# ---------------------------------------------------------------------- all of them


class Stage:
    """A policy to measure, and what is drawn from it. `scales`: by name (parameters,), what a
    gradient is multiplied by before it moves the policy."""

    def __init__(self, run: Run, folder: Path, draws: random.Random) -> None:
        torch.set_num_threads(1)
        self.run, self.draws, self.task = run, draws, load_task(run.task)
        self.scales = {"gradient": torch.ones(())}
        base = str(folder / "base") if run.task == SLIPS else base_model(self.task)
        self.policy, self.tokenizer = load_policy(base)
        if run.step:
            self.train(base)
        self.generator = torch.Generator().manual_seed(draws.getrandbits(62))

    def train(self, base: str) -> None:
        """Train the policy with grpo.py. After the last step Adam would multiply a gradient by the
        scale "Adam", momentum aside."""
        settings = {"task": self.run.task, "seed": self.run.seed, "steps": self.run.step}
        settings |= {"model": base, "eval_every": 0, "eval_problems": 16, "device": "cpu"}
        with tempfile.TemporaryDirectory() as folder, silence():
            grpo.train(grpo.Config(run_dir=f"{folder}/run", **settings))
            self.policy, _ = load_policy(f"{folder}/run/checkpoint")
            state = torch.load(f"{folder}/run/state.pt", weights_only=True)["optimizer"]["state"]
        second = [
            state[i]["exp_avg_sq"].flatten() / (1 - 0.999 ** state[i]["step"])
            for i in range(len(state))
        ]
        self.scales["Adam"] = 1 / (torch.cat(second).sqrt() + 1e-8)

    def problems(self, n: int) -> list:
        """n held-out problems, as many of each level."""
        levels = self.task.LEVELS
        return held_out(self.task, -(-n // len(levels)), levels)[:n]

    def prompts(self) -> Iterator[Completions]:
        """The completions of each held-out prompt that is measured."""
        for problem in self.problems(self.run.prompts):
            drawn = self.task, problem, self.run.completions, self.generator
            yield Completions.draw(self.policy, self.tokenizer, *drawn)

    def draw(self, P: int, G: int) -> tuple[Rollout, np.ndarray]:
        """Completions of training prompts, and their rewards."""
        draws = self.draws, self.generator
        return collect(self.policy, self.tokenizer, self.task, P, G, *draws)

    def wrong_texts(self, draws: random.Random) -> list[str]:
        """Three wrong ones of 16 completions to each of 64 held-out prompts, not among the three
        commonest."""
        problems = self.problems(64)
        generator = torch.Generator().manual_seed(draws.getrandbits(62))
        prompts = [problem.prompt for problem in problems]
        rollout = sample(self.policy, self.tokenizer, prompts, 16, 56, 1.0, generator)
        counts = Counter()
        for i, text in enumerate(rollout.texts):
            problem = problems[i // 16]
            if self.task.reward(problem, text) != 1:
                counts[f"{problem.prompt} {text}"] += 1
        others = sorted(counts.keys() - dict(counts.most_common(3)).keys())
        return draws.sample(others, min(3, len(others)))


def measure(run: Run, folder: Path) -> dict:
    """Train a policy and measure it. Returns the moments of each prompt, the numbers of the batches
    of each G, and examples of wrong completions."""
    stage = Stage(run, folder, random.Random(run.name()))  # no two measurements share a draw
    prompts = [measure_prompt(drawn) for drawn in stage.prompts()]
    of_halves = [half[0][:2] for prompt in prompts for half in prompt["moments"]]
    v_right, v_wrong = np.nansum(of_halves, axis=0)
    (gradient, length), v_ratio = true_gradient(stage), v_wrong / v_right
    batches = [measure_batches(stage, G, gradient, length, v_ratio) for G in GROUP_SIZES]
    texts = stage.wrong_texts(random.Random(f"texts {run.name()}"))
    return rounded(
        {"of prompts": prompts, "v_ratio": v_ratio, "of batches": batches, "texts": texts}
    )


def main(config: Config) -> None:
    """Measure the policies that are missing, and with --publish write estimators.json."""
    grid, sizes = Grid(config, "estimators"), SMALL if config.quick else {}
    stages = product(range(config.seeds), STEPS, (*TASKS, SLIPS))
    runs = [Run(task, step, seed, **sizes) for seed, step, task in stages]
    base = grid.path / "base"
    if not (base / "tokenizer.json").is_file():  # written last
        steps = 400 if config.quick else 4000
        pretrain.main(pretrain.Config(task=SLIPS, steps=steps, out_dir=str(base)))
    results_of(config, partial(measure, folder=grid.path), runs, RESULTS)


if __name__ == "__main__":
    main(parse(Config, __doc__))
