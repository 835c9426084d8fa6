"""The noise and the aim of estimators, by exact scores on three tasks while GRPO trains. Read
by lessons 7 and 13.

    python lessons/experiments/estimators.py              3 seeds
    python lessons/experiments/estimators.py --publish    also writes estimators.json here

The score of a completion is the gradient of its log-probability. At three steps of training two
things are measured. Prompts: from many completions to each of 16 held-out prompts the moments of
the scores of right and of wrong ones, in two halves, to see how well they agree. Batches: 256
completions to training prompts, in groups of 8. The update of an estimator is a linear
combination of their scores, so its length and its progress follow from inner products: of the
scores with each other, and with the true gradient, which comes from 16,384 other completions.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from algorithms import grpo, rloo
from lessons.experiments.harness.grid import Grid, GridConfig, results_of, rounded
from lessons.experiments.harness.learning import learn
from toy_env import pretrain
from toy_env.evaluation import held_out
from toy_env.model import load_policy
from toy_env.rollout import Rollout, completion_logps, sample
from toy_env.run import parse
from toy_env.tasks import TASKS, base_model, find_module

RESULTS = Path(__file__).parent / "estimators.json"
SLIPS = "lessons.experiments.slips"  # its base is made here; the other two come with the repository
STEPS, G, BATCH = (0, 20, 60), 8, 256


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
    batches: int = 16  # batches of 256 completions to training prompts
    gradient: int = 16_384  # completions for the true gradient

    def name(self) -> str:
        """Its name, the seed of its draws."""
        return f"{self.task}-{self.step}-{self.seed}"


# ---------------------------------------------------------------------- scores


def scores(policy, rollout: Rollout) -> Tensor:
    """(B, parameters): the gradient of the log-probability of each completion, all its tokens and
    the EOS."""
    parameters, gradients = list(policy.parameters()), []
    for row in torch.arange(len(rollout)).split(1):
        logp = completion_logps(policy, rollout[row], 1.0).sum()
        gradients.append(parameters_to_vector(torch.autograd.grad(logp, parameters)))
    return torch.stack(gradients)


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
        keys = [f"{text} {cut}" for text, cut in zip(rollout.texts, rollout.truncated.tolist())]
        _, first, drawn = np.unique(keys, return_index=True, return_inverse=True)
        different = rollout[torch.from_numpy(first)]
        S = scores(policy, different).double()
        right = np.array([task.reward(problem, text) == 1 for text in different.texts])
        return Completions(drawn, different, right, (S @ S.T).numpy())


def measure_prompt(completions: Completions) -> dict:
    """The moments of one prompt's scores, of sums over tokens and of means, from both halves of its
    completions."""
    drawn, right, inner = completions.drawn, completions.right, completions.inner
    lengths = completions.different.mask.sum(dim=1).numpy()
    kinds, halves = (inner, inner / np.outer(lengths, lengths)), np.array_split(drawn, 2)
    return {
        "right": [int(right[half].sum()) for half in halves],
        "moments": [[moments(half, right, kind) for kind in kinds] for half in halves],
    }


# ---------------------------------------------------------------------- batches


def estimators(R: np.ndarray, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """The advantages (P, G) of GRPO, of Dr. GRPO, of GRPO with each loss divided by its length, and
    of REINFORCE, from rewards (P, G) and lengths (P, G)."""
    grpos = grpo.compute_advantages(rewards=torch.from_numpy(R)).numpy()
    return {
        "σ^1": grpos,
        "σ^2": R - R.mean(axis=1, keepdims=True),
        "σ^1 ÷ length": grpos / lengths,
        "no baseline": R,
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
        halves[i % 2] += parameters_to_vector(gradient) / (n / 2)
    return halves.mean(dim=0), max(0.0, (halves[0] @ halves[1]).item()) ** 0.5


def measure_batches(stage: "Stage", gradient: Tensor, length: float) -> dict:
    """For each of `estimators` the mean cosine of a batch with the true gradient, (parameters,), of
    this length; and `by_k`."""
    cosines, groups = {}, []
    for _ in range(stage.run.batches):
        rollout, R = stage.draw(BATCH // G, G)
        S, lengths = scores(stage.policy, rollout), rollout.mask.sum(dim=1).numpy()
        inner, progress = (S @ S.T).double().numpy(), (S @ gradient).double().numpy()
        groups += contrasts(R, inner, progress)
        for name, A in estimators(R, lengths.reshape(R.shape)).items():
            a = A.flatten()
            cosine = a @ progress / np.sqrt(max(a @ inner @ a, 1e-30)) / length
            cosines.setdefault(name, []).append(cosine)
    means = {name: np.mean(values) for name, values in cosines.items()}
    return {"cosines": means, "by k": by_k(groups)}


def contrasts(R: np.ndarray, inner: np.ndarray, progress: np.ndarray) -> list[tuple]:
    """k of each mixed group, and the squared length and the progress of its contrast s+ - s-."""
    groups = []
    for i, rewards in enumerate(R):
        k, own = int(rewards.sum()), slice(G * i, G * (i + 1))
        if 0 < k < G:
            a = rewards / k - (1 - rewards) / (G - k)
            groups.append((k, a @ inner[own, own] @ a, a @ progress[own]))
    return groups


def by_k(groups: list[tuple]) -> list[list[float]]:
    """For k = 1..G-1: number of groups, and means of the contrast's squared length and progress;
    zeros without groups. groups: see `contrasts`."""
    table, numbers = np.zeros((G - 1, 3)), np.reshape(groups, (-1, 3))
    for k in range(1, G):
        of_k = numbers[numbers[:, 0] == k, 1:]
        if len(of_k):
            table[k - 1] = len(of_k), *of_k.mean(axis=0)
    return table.tolist()


# ---------------------------------------------------------------------- all of them


class Stage:
    """A policy to measure, and what is drawn from it: `draw` is `collect`."""

    def __init__(self, run: Run, folder: Path, draws: random.Random) -> None:
        torch.set_num_threads(1)
        self.run, self.draws, self.task = run, draws, find_module(run.task)
        base = str(folder / "base") if run.task == SLIPS else base_model(self.task)
        self.policy, self.tokenizer = load_policy(base)
        if run.step:
            settings = {"task": run.task, "seed": run.seed, "steps": run.step, "model": base}
            learn(grpo, settings | {"kl_coef": grpo.Config.kl_coef}, policy=self.policy)
        self.generator = torch.Generator().manual_seed(draws.getrandbits(62))
        of_policy = partial(collect, self.policy, self.tokenizer, self.task)
        self.draw = partial(of_policy, rng=draws, generator=self.generator)  # draw(P, G)

    def prompts(self) -> Iterator[Completions]:
        """The completions of each held-out prompt that is measured, as many of each level."""
        levels = self.task.LEVELS
        for problem in held_out(self.task, self.run.prompts // len(levels), levels):
            drawn = self.task, problem, self.run.completions, self.generator
            yield Completions.draw(self.policy, self.tokenizer, *drawn)


def measure(run: Run, folder: Path) -> dict:
    """Train a policy and measure it. Returns the moments of each prompt, and the numbers of the
    batches."""
    stage = Stage(run, folder, random.Random(run.name()))  # no two measurements share a draw
    prompts = [measure_prompt(drawn) for drawn in stage.prompts()]
    return rounded({"of prompts": prompts} | measure_batches(stage, *true_gradient(stage)))


def runs_of(seeds: Sequence[int], tasks: Sequence[str]) -> list[Run]:
    """The policies to measure."""
    return [Run(task, step, seed) for seed, step, task in product(seeds, STEPS, tasks)]


def main(config: Config) -> None:
    """Measure the policies that are missing, and with --publish write estimators.json."""
    runs = runs_of(range(config.seeds), (*TASKS, SLIPS))
    folder = Grid(config, "estimators").path
    base = folder / "base"
    if not (base / "tokenizer.json").is_file():  # written last
        pretrain.main(pretrain.Config(task=SLIPS, steps=4000, out_dir=str(base)))
    results_of(config, partial(measure, folder=folder), runs, RESULTS)


if __name__ == "__main__":
    main(parse(Config, __doc__))
