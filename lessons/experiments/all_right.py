"""Why does it pay to train on all-right groups? Their gradient against a placebo. Read
by lesson 19.

    python lessons/experiments/all_right.py            all runs, the primary comparison first
    python lessons/experiments/all_right.py --publish  also writes all_right.json here

RLOO gives a group of right completions the advantage 0. With 1/2 instead, training ended higher.
Either these completions' gradient says something, or it only keeps the steps going when few groups
are mixed. The placebo gives each of them +1/2 or -1/2 at random: a gradient as long, which says
nothing. Completions of one group are often copies, whose signs cancel. So another arm draws one
sign for the whole group, whose gradient is then exactly as long as with 1/2.

Everything else is dr_grpo.py's training without KL, four updates a batch. AdamW's steps are scaled
to one length, so that no arm moves the policy further than another; the first three arms are also
trained with AdamW's own steps. For each task the length and the learning rate are those at which
RLOO ended highest, on three seeds that are used for nothing else, and every arm has them. The signs
have a random generator of their own, so that arms with the same seed begin alike.

The gradient of a minibatch has two parts, from its mixed and from its all-right groups. PROJECTED
removes from the second what lies along the first, so that the two are orthogonal (before AdamW
divides them); if no group is mixed, nothing is removed. SHORTENED multiplies the length of a step
by the share of mixed groups in the batch.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from algorithms import dr_grpo, rloo
from lessons.experiments.baselines import best_rates
from lessons.experiments.harness import grid, paired
from lessons.experiments.harness.grid import Grid, GridConfig, rounded, select
from lessons.experiments.harness.learning import clipped_step, learn, warm_up
from lessons.experiments.weights import step_of_length
from toy_env.model import load_policy
from toy_env.run import parse
from toy_env.tasks import TASKS, base_model, find_module

RESULTS = Path(__file__).parent / "all_right.json"
TUNED = RESULTS.with_name("all_right_tuning.json")
RLOO, HALF, PLACEBO = "RLOO", "all-right groups ½", "all-right groups ±½"
PROJECTED, ONE_SIGN = "all-right groups ½, projected", "all-right groups ±½, one sign a group"
BARE, SHORTENED = "A = R on mixed groups", "step × share of mixed groups"
FIRST = (RLOO, HALF, PLACEBO)
ARMS = (*FIRST, ONE_SIGN, PROJECTED, BARE, SHORTENED)
LONG, LONG_SEEDS = 240, 5
# Where the search for a length or a learning rate begins: by task, scaled or not
START = dict(zip(product(TASKS, (True, False)), (0.016, 1e-4, 0.016, 2e-4)))
PARTS = [  # arms, scaled or not, batches: in the order of the runs
    ((HALF, PLACEBO), True, 60),
    ((RLOO,), True, 60),
    ((PROJECTED, BARE, SHORTENED), True, 60),
    (FIRST, False, 60),
    (FIRST, True, LONG),
    ((ONE_SIGN,), True, 60),
]

# Committed before the first run. Known was from shrinkage.json (ten seeds, AdamW's own steps) that
# all-right groups at 1/2 have RLOO end .7 [.2, 1.3] points higher, on expressions at another rate;
# and from baselines.json (one update a batch) that A = R ends 2.2 and 1.0 points lower without
# these groups.
PREDICTIONS = """
Of the mean of both tasks at the end, with scaled steps and 60 batches, unless it says otherwise:
primary: ½ is above ±½, by .3 to 1.5 points.
gain: ½ is above RLOO, by .2 to 1.2 points.
placebo: ±½ is within half a point of RLOO, and so is ±½ with one sign a group.
projected: it keeps more than half of what ½ gains on RLOO.
bare: A = R on mixed groups is within half a point of RLOO.
shortened: it has less than half of what ½ gains on RLOO.
AdamW: with its own steps, too, ½ is above ±½, by .3 to 1.5 points.
long: after 240 batches ½ is further above ±½ than the same five seeds after 60.
"""


@dataclass
class Config(GridConfig):
    seeds: int = 20  # seeds 0, 1, ... of every arm


@dataclass(frozen=True)
class Run:
    """One training run."""

    task: str
    arm: str  # one of ARMS
    scaled: bool  # every step has the same length
    rate: float  # that length, or AdamW's learning rate
    seed: int
    steps: int = 60


def in_two_parts(arm: str, R: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(P, G, 2): the advantages of mixed groups, 0 elsewhere, and those of all-right groups, from
    rewards (P, G)."""
    all_right = R.all(axis=1, keepdims=True)
    mixed = rloo.compute_advantages(rewards=torch.from_numpy(R)).numpy()
    if arm == BARE:
        mixed = R * ~all_right
    drawn = rng.choice((-1, 1), size=R.shape)
    signs = {HALF: 1, PROJECTED: 1, PLACEBO: drawn, ONE_SIGN: drawn[:, :1]}
    return np.stack([mixed, R * all_right * signs.get(arm, 0) / 2], axis=2)


def whole(arm: str, mixed: Tensor, right: Tensor) -> Tensor:
    """The gradient of a minibatch from its two parts."""
    if arm == PROJECTED and mixed.any():
        right = right - mixed * (right @ mixed) / (mixed @ mixed)
    return mixed + right


def train(run: Run) -> dict:
    """Train a policy. Returns its accuracy at the end and over training; for each sixth of training
    the shares of mixed and of all-right groups, and the entropy (nats per token); and two means
    over the updates: the cosine between the parts of the gradient, and how many times as long as
    the other the part of the all-right groups is ("times")."""
    policy, _ = load_policy(base_model(find_module(run.task)))
    parameters, rng = list(policy.parameters()), np.random.default_rng(run.seed)
    right, batches, gradients = None, [], []

    def advantages(policy, rollout, rewards: Tensor) -> np.ndarray:
        R = rewards.numpy()
        A = in_two_parts(run.arm, R, rng)
        entropy = float(rollout.entropies.sum() / rollout.mask.sum())
        batches.append([A[:, :, 0].any(axis=1).mean(), R.all(axis=1).mean(), entropy])
        return A

    def policy_loss(*, advantages: Tensor, **inputs) -> Tensor:
        """Keep the gradient of the all-right groups, and return the loss of the mixed ones."""
        nonlocal right
        right, (of_mixed, of_right) = None, advantages.split(1, dim=1)
        if of_right.any():
            loss = dr_grpo.policy_loss(advantages=of_right, **inputs)
            right = parameters_to_vector(torch.autograd.grad(loss, parameters, retain_graph=True))
        return dr_grpo.policy_loss(advantages=of_mixed, **inputs)

    def update(policy, optimizer: torch.optim.Optimizer, config, step: int) -> None:
        if right is not None:
            parts = [parameter.grad for parameter in parameters]
            mixed = parameters_to_vector(parts)
            if mixed.any():
                cosine = cosine_similarity(right, mixed, dim=0).item()
                gradients.append([cosine, (right.norm() / mixed.norm()).item()])
            vector_to_parameters(whole(run.arm, mixed, right), parts)
        if run.scaled:
            share = batches[-1][0] if run.arm == SHORTENED else 1
            step_of_length(run.rate * warm_up(config, step) * share, policy, optimizer)
        else:
            clipped_step(policy, optimizer, config, step)

    settings = {"task": run.task, "seed": run.seed, "steps": run.steps}
    settings["learning_rate"] = 1e-4 if run.scaled else run.rate
    hooks = {"advantages": advantages, "policy_loss": policy_loss, "update": update}
    learnt = learn(dr_grpo, settings, policy=policy, **hooks)
    sixths = np.reshape(batches, (6, -1, 3)).mean(axis=1).T
    result = {name: learnt[name] for name in ("end", "training")}
    result |= dict(zip(("mixed", "all_right", "entropy"), sixths.tolist()))
    if gradients:
        result |= dict(zip(("cosine", "times"), np.mean(gradients, axis=0).tolist()))
    return rounded(result)


# ---------------------------------------------------------------------- the results

COLUMNS = {  # by heading: scaled or not, batches, outcome, tasks
    "arithmetic": (True, 60, "end", TASKS[:1]),
    "expressions": (True, 60, "end", TASKS[1:]),
    "both": (True, 60, "end", TASKS),
    "both, over training": (True, 60, "training", TASKS),
    "both, AdamW's own steps": (False, 60, "end", TASKS),
    "both, 240 batches": (True, LONG, "end", TASKS),
}
PRIMARY = f"{HALF}, against ±½", "both"
ROWS = {arm: (arm, RLOO) for arm in ARMS} | {PRIMARY[0]: (HALF, PLACEBO)}


def by_seed(runs: list[dict], arm: str, column: str) -> dict[int, float]:
    """The outcome of an arm in one of COLUMNS by seed, the mean over its tasks; without the seeds
    that lack one."""
    scaled, steps, outcome, tasks = COLUMNS[column]
    of_arm = select(runs, {"arm": arm, "scaled": scaled, "steps": steps})
    of_task = [{r["seed"]: r[outcome] for r in of_arm if r["task"] == task} for task in tasks]
    seeds = sorted(set.intersection(*map(set, of_task)))
    return {seed: float(np.mean([values[seed] for values in of_task])) for seed in seeds}


def compared(runs: list[dict]) -> dict[str, dict[str, dict]]:
    """The outcome of each arm, and its difference ("gap") from RLOO, in the last row from the
    placebo: by row and column of the table, over the seeds that both arms have. Paired t tests: the
    PRIMARY one stands alone, and the others in columns of both tasks are one family, corrected by
    Holm if scipy is installed."""
    table, family = {row: {} for row in ROWS}, []
    for (row, pair), column in product(ROWS.items(), COLUMNS):
        ours, others = (by_seed(runs, arm, column) for arm in pair)
        if seeds := ours.keys() & others.keys():
            values = [[of[seed] for seed in sorted(seeds)] for of in (ours, others)]
            gap = paired.difference(*values)
            table[row][column] = paired.estimate(values[0]) | {"gap": gap}
            if row != RLOO and COLUMNS[column][3] == TASKS and (row, column) != PRIMARY:
                family.append(gap)
    if paired.stats and family:
        paired.holm(family)
    return table


def late(runs: list[dict], arm: str, task: str, name: str) -> float:
    """The mean over seeds of a result of `train`, in the last sixth of training if it has sixths:
    with scaled steps and 60 batches."""
    chosen = select(runs, {"arm": arm, "task": task, "scaled": True, "steps": 60})
    return float(np.mean([np.ravel(run[name])[-1] for run in chosen]))


def main(config: Config) -> None:
    """Print the predictions, make the runs that are missing, and with --publish write
    all_right.json and all_right_tuning.json."""
    print(PREDICTIONS)
    folder, rates, trials, runs = Grid(config, "all_right"), {}, [], []
    for (task, scaled), start in START.items():
        tuned = Run(task, RLOO, scaled, start, 0)
        (rates[task, scaled],), tried = best_rates(folder, train, tuned, [start], ["end"])
        trials += tried
    if config.publish:
        folder.publish(TUNED, trials)
    for arms, scaled, steps in PARTS:
        seeds = min(config.seeds, LONG_SEEDS) if steps == LONG else config.seeds
        for seed, arm, task in product(range(seeds), arms, TASKS):
            runs.append(Run(task, arm, scaled, rates[task, scaled], seed, steps))
    grid.results_of(config, train, runs, RESULTS)


if __name__ == "__main__":
    main(parse(Config, __doc__))
