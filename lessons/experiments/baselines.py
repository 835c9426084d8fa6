"""Which baseline? Advantages against each other where rewards are 0 or 1, and what a comparison
must keep apart.

    python lessons/experiments/baselines.py              10 seeds, some four hours on two cores
    python lessons/experiments/baselines.py --publish    also writes baselines.json here

Every run is dr_grpo.py's training with other advantages (`learning.learn`): without the KL unless a
question is about it, 15,360 completions in batches of 256. Four questions, in the order of the
runs (shrinkage.py has the baselines with four updates a batch):

    baseline   Which baseline, on two tasks, with one update a batch, each at its best rate?
    kl         GRPO with the KL, with it on mixed groups only, and without. (The other scripts are
               in no_kl of compare.py.)
    sign       R, 2R - 1, R - mean and R - 1 in groups of 2 to 16.
    budget     Which group size after 1,024 to 61,440 completions, at one rate (five seeds)?

The last three are asked on arithmetic only. The pages test one family of comparisons: every arm of
the first question against R - mean, on both tasks, at the end and over training.

A rate is the best of 1e-4 to 8e-4 on three seeds that are used for nothing else; where the best is
at the edge, the grid is widened. A mean over training is compared at rates chosen for the mean over
training.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector

from algorithms import dr_grpo, grpo
from lessons.experiments import estimators
from lessons.experiments.estimators import (
    BATCH,
    Completions,
    Stage,
    class_means,
    scores,
    true_gradient,
)
from lessons.experiments.harness.grid import Grid, GridConfig, rounded, select
from lessons.experiments.harness.learning import learn
from toy_env.rollout import Rollout, at_completions, completion_logps, sequences, token_logps
from toy_env.run import parse
from toy_env.tasks import TASKS

FOLDER = Path(__file__).parent
RESULTS, TUNED = FOLDER / "baselines.json", FOLDER / "baselines_tuning.json"
MEASURED_STAGES = FOLDER / "baselines_stages.json"
RATES, TUNING, RATE = (1e-4, 2e-4, 4e-4, 8e-4), (100, 101, 102), 2e-4
GROUP_SIZES, SIGN_SIZES = (2, 4, 8, 16, 32, 64), (2, 4, 8, 16)
SIGNS = ("R", "2R − 1", "R − mean", "R − 1")
BUDGETS = (4, 16, 60, 240)  # batches


# ---------------------------------------------------------------------- advantages


@dataclass
class Batch:
    """P groups of G training completions, as an advantage sees them."""

    rewards: np.ndarray  # (P, G)
    lengths: np.ndarray | None = None  # (P, G) tokens
    squared: np.ndarray | None = None  # (P, G) |score|^2
    proxies: np.ndarray | None = None  # (P, G, T)


def proxies(policy, rollout: Rollout) -> torch.Tensor:
    """(B, T): 1 - 2 pi + sum of pi^2 over the vocabulary, for each sampled token of probability pi:
    the squared length of the gradient of its log-probability in the logits, which arXiv:2602.07078
    takes for that in the parameters."""
    with torch.no_grad():
        log_p = token_logps(policy(input_ids=sequences(rollout), use_cache=False).logits, 1.0)
    squares = at_completions(log_p.exp().square().sum(dim=-1), rollout)
    return (1 - 2 * rollout.old_logps.exp() + squares) * rollout.mask


def batch_of(rollout: Rollout, R: np.ndarray) -> Batch:
    """A rollout with rewards R (P, G)."""
    return Batch(R, rollout.mask.sum(dim=1).numpy().reshape(R.shape))


def best_of_the_others(batch: Batch) -> np.ndarray:
    """R less the mean reward of the others in its group, weighted by |score|^2."""
    R, w = batch.rewards, batch.squared
    return R - ((w * R).sum(1, keepdims=True) - w * R) / (w.sum(1, keepdims=True) - w)


def token_baseline(batch: Batch) -> np.ndarray:
    """(P, G, T): R less a baseline for each position, the mean reward weighted by the sum of the
    proxies so far, over completions that are that long (the Optimal Token Baseline,
    arXiv:2602.07078, as in verl). Where a single completion of the group is left the baseline is
    0."""
    mask = np.arange(batch.proxies.shape[2]) < batch.lengths[:, :, None]
    weights = batch.proxies.cumsum(axis=2) * mask
    rewards = batch.rewards[:, :, None]
    b = (rewards * weights).sum(axis=1, keepdims=True) / (weights.sum(axis=1, keepdims=True) + 1e-8)
    return (rewards - b * (mask.sum(axis=1, keepdims=True) > 1)) * mask


ADVANTAGES = {  # from a Batch (P, G), or (P, G, T) for each token
    "R": lambda batch: batch.rewards,
    "R, all-right groups left out": lambda batch: (
        batch.rewards * (batch.rewards.mean(axis=1, keepdims=True) < 1)
    ),
    "R − 1": lambda batch: batch.rewards - 1,
    "R − mean": lambda batch: batch.rewards - batch.rewards.mean(axis=1, keepdims=True),
    "OPO": lambda batch: batch.rewards - np.average(batch.rewards, 1, batch.lengths, keepdims=True),
    "OTB": token_baseline,
    "best b of the others": best_of_the_others,
    "2R − 1": lambda batch: 2 * batch.rewards - 1,
}
BASELINES = [name for name in ADVANTAGES if name != "2R − 1"]
AIMED = ("R", "R − mean", "OPO")  # whose cosines with the gradient are measured
OUTCOMES = ("end", "training")
KL = {"none": 0.0, "all groups": 0.04, "mixed groups": 0.04}

# Committed before the first run, from lesson 13's cosines of a batch with the gradient (the mean of
# three steps of training) and, for what they do not say, from what a group without disagreement can
# teach.
PREDICTIONS = """
baseline, over training, one update a batch, arithmetic: R > best b of the others > R − mean > OPO >
    R − 1.
baseline, over training, one update a batch, expressions: best b of the others = R − mean = OPO =
    R − 1 > R.
baseline, at the end, both tasks: R > R − mean, and R, all-right groups left out = R − mean: these
    groups are the gain.
OTB is within a point of R − mean on both tasks: on tokens of one weight it is nearly that.
kl: without it GRPO, Dr. GRPO, RLOO and MaxRL end 2 to 4 points higher; with it on mixed groups only
    GRPO gets back less than half of that.
sign: 2R − 1 is the worst at every G on arithmetic, where wrong completions are noisy; no 45 points
    at G = 4.
budget: the best G grows with the budget by at most a factor of 2 from 4,096 to 61,440 completions.
"""


@dataclass(frozen=True)
class Run:
    """One training run."""

    task: str
    advantage: str  # one of ADVANTAGES, or GRPO
    minibatches: int
    rate: float
    seed: int
    G: int = 8
    kl: str = "none"  # one of KL
    steps: int = 60


def without_silent(*, logps, ref_logps, advantages, **inputs) -> torch.Tensor:
    """GRPO's loss with the KL on mixed groups only: in a silent one, whose advantages are 0, the
    policy is its own reference."""
    ref_logps = torch.where(advantages == 0, logps.detach(), ref_logps)
    return grpo.policy_loss(logps=logps, ref_logps=ref_logps, advantages=advantages, **inputs)


def train(run: Run) -> dict:
    """Train a policy. Returns its accuracy at the end, at BUDGETS where the run is about these, and
    over training."""
    settings = {
        "task": run.task,
        "seed": run.seed,
        "steps": run.steps,
        "prompts_per_step": BATCH // run.G,
        "group_size": run.G,
        "num_minibatches": run.minibatches,
        "learning_rate": run.rate,
        "kl_coef": KL[run.kl],
    }
    if run.advantage == "GRPO":
        policy_loss = without_silent if run.kl == "mixed groups" else None
        return rounded(learn(grpo, settings, policy_loss=policy_loss))

    def advantages(policy, rollout: Rollout, rewards: torch.Tensor) -> np.ndarray:
        batch = batch_of(rollout, rewards.numpy())
        if run.advantage == "best b of the others":
            batch.squared = scores(policy, rollout).square().sum(dim=1).view(rewards.shape).numpy()
        if run.advantage == "OTB":
            batch.proxies = proxies(policy, rollout).view(*rewards.shape, -1).numpy()
        return ADVANTAGES[run.advantage](batch)

    evaluated = BUDGETS if run.steps == BUDGETS[-1] else ()
    return rounded(learn(dr_grpo, settings, advantages=advantages, evaluated=evaluated))


# ---------------------------------------------------------------------- noise, with exact norms


def noise_of(drawn: Completions, rng: np.random.Generator, G: int = 8, n: int = 4000) -> dict:
    """Measure the noise of baselines with one value a completion, on completions of one prompt.

    Groups, n of G completions, come from one half of them; the contrast, the mean score of right
    completions less that of wrong ones, from the other half. Returns for each of five baselines
    ("noise") the mean of the update along the contrast, its variance along it, and its mean square
    across it; and how well length predicts |score|^2 ("fits"): the squared correlation over
    completions. Returns nothing if a half has no right or no wrong completions.
    """
    reference, groups = np.array_split(drawn.drawn, 2)
    counts, means = class_means(reference, drawn.right)
    if not all(counts):
        return {}
    contrast = means[0] - means[1]
    along = drawn.inner @ contrast / np.sqrt(contrast @ drawn.inner @ contrast)  # (U,)
    squared, lengths = np.diag(drawn.inner), drawn.different.mask.sum(dim=1).numpy()
    best = (squared * drawn.right)[reference].sum() / squared[reference].sum()

    picked = rng.choice(groups, (n, G))
    batch = Batch(drawn.right[picked].astype(float), squared=squared[picked])
    names = ("R", "R, all-right groups left out", "R − mean", "best b of the others")
    advantages = {name: ADVANTAGES[name](batch) for name in names}
    advantages["best b of the prompt"] = batch.rewards - best
    rows = {}
    for name, A in advantages.items():
        a = A / G  # (n, G)
        progress = (a * along[picked]).sum(axis=1)
        norms = np.einsum("ni,nj,nij->n", a, a, drawn.inner[picked[:, :, None], picked[:, None]])
        rows[name] = [progress.mean(), progress.var(), norms.mean() - (progress**2).mean()]
    seen, x = squared[groups], lengths[groups]
    fit = np.corrcoef(seen, x)[0, 1] ** 2 if np.ptp(x) > 0 else 0.0
    return {"p": drawn.right[reference].mean(), "best b": best, "noise": rows, "fits": [fit]}


def measure(run: estimators.Run, folder: Path) -> dict:
    """Measure a policy: `noise_of` its completions to each prompt, and the cosines of AIMED with
    the gradient."""
    stage = Stage(run, folder, random.Random(f"baselines {run.name()}"))
    policy, rng = stage.policy, np.random.default_rng(stage.draws.getrandbits(62))
    prompts = [noise_of(drawn, rng) for drawn in stage.prompts()]
    gradient, length = true_gradient(stage)
    parameters = list(policy.parameters())
    cosines = {name: [] for name in AIMED}
    for _ in range(run.batches):
        rollout, R = stage.draw(32, 8)
        logps = completion_logps(policy, rollout, 1.0)
        for name in AIMED:
            A = torch.from_numpy(ADVANTAGES[name](batch_of(rollout, R))).float().view(-1, 1)
            parts = torch.autograd.grad((logps * A).sum(), parameters, retain_graph=True)
            update = parameters_to_vector(parts)
            cosines[name].append(float(update @ gradient / update.norm() / length))
    return rounded({"prompts_measured": prompts, "cosines": cosines})


def efficiency(stages: list[dict], name: str, other: str = "best b of the prompt") -> float:
    """The signal-to-noise ratio of a group's update with a baseline, over that with another one:
    the median over stages and prompts that have right and wrong completions."""
    noises = [prompt["noise"] for stage in stages for prompt in stage["prompts_measured"] if prompt]
    progress, along, across = np.array([[noise[name], noise[other]] for noise in noises]).T
    ours, others = progress**2 / np.maximum(along + across, 1e-30)
    return float(np.median(ours / others))


# ---------------------------------------------------------------------- which runs


def best_rate(trials: list[dict], outcome: str) -> float:
    """The rate with the highest mean outcome over the seeds of an arm's trials."""

    def mean(rate: float) -> float:
        return np.mean([run[outcome] for run in select(trials, {"rate": rate})])

    return max(sorted({run["rate"] for run in trials}), key=mean)


def best_rates(
    grid: Grid, train: Callable, arm, rates: Sequence[float], outcomes: Sequence[str]
) -> tuple[list[float], list[dict]]:
    """The best rates of an arm, for each outcome, and the trials that tell. The arm's own rate and
    seed do not count; half and twice the best rate are tried, too."""
    rates = set(rates)
    while True:
        order = product(sorted(rates), TUNING)
        runs = [replace(arm, rate=rate, seed=seed) for rate, seed in order]
        trials = grid.run(train, runs, "tuning")
        best = {best_rate(trials, outcome) for outcome in outcomes}
        neighbours = {factor * rate for factor in (0.5, 2) for rate in best}
        if neighbours <= rates:
            return sorted(best), trials
        rates |= neighbours


def questions(seeds: range) -> list[Run]:
    """The runs of all questions but the first, at one rate."""
    runs = [Run(TASKS[0], "GRPO", 4, RATE, seed, kl=kl) for kl in KL for seed in seeds]
    for name in SIGNS:
        runs += [Run(TASKS[0], name, 4, RATE, seed, G) for G in SIGN_SIZES for seed in seeds]
    for seed in seeds[:5]:
        budget = Run(TASKS[0], "R − mean", 4, RATE, seed, steps=BUDGETS[-1])
        runs += [replace(budget, G=G) for G in GROUP_SIZES]
    return runs


def main(config: GridConfig) -> None:
    """Print the predictions, make the runs that are missing, and with --publish write
    baselines.json."""
    print(PREDICTIONS)
    grid, seeds, runs, trials = Grid(config, "baselines"), range(config.seeds), [], []
    stages = estimators.runs_of(range(3), TASKS)
    for task, name in product(TASKS, BASELINES):
        arm = Run(task, name, 1, RATE, 0)
        rates, of_arm = best_rates(grid, train, arm, RATES, OUTCOMES)
        trials += of_arm
        runs += [replace(arm, rate=rate, seed=seed) for rate in rates for seed in seeds]
    runs += questions(seeds)
    measured = grid.run(partial(measure, folder=grid.path), stages, "stages")
    results = grid.run(train, runs)
    if config.publish:
        grid.publish(TUNED, trials)
        grid.publish(MEASURED_STAGES, measured)
        grid.publish(RESULTS, results)


if __name__ == "__main__":
    main(parse(GridConfig, __doc__))
