"""The identity paper's controlled run (arXiv:2607.00152, section 8 and `experiment_dynamics.py`),
in NumPy: lesson 9.

There are 6,000 prompts, each a coin with a logit of its own: p = sigmoid(theta). In every step G
completions of every prompt are drawn, and its logit moves by the learning rate times the group's
update. There is no language model, and prompts share nothing. As in the paper, they start from
solve rates of Big-Math (bigmath.py). To the paper's arms one is added that it leaves out: Dr. GRPO
with the length of GRPO's first step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from lessons import identity
from lessons.experiments import bigmath

# The paper's settings. The learning rate stands only in its script.
PROMPTS, STEPS, LEARNING_RATE, GROUP_SIZE = 6000, 150, 0.5, 8
# The published solve rates of the hardest quartile at the end; the last is read off the figure.
PUBLISHED = {"GRPO": 0.99, "Dr. GRPO": 0.88, "same-prompt redraw": 0.998}

# ---------------------------------------------------------------------- where it starts


def start(seed: int) -> np.ndarray:
    """(PROMPTS,): initial success probabilities, as in the paper: solve rates strictly between 0
    and 1, clipped to [.02, .98]."""
    interior = bigmath.COUNTS[1:-1] / bigmath.COUNTS[1:-1].sum()
    rates = np.random.default_rng(seed).choice(bigmath.RATES[1:-1], size=PROMPTS, p=interior)
    return rates.clip(0.02, 0.98)


def matched_learning_rate(rule: str, p0: np.ndarray, G: int, learning_rate: float) -> float:
    """The learning rate with which a rule's expected first step is as long as GRPO's, on average
    over the prompts."""
    grpo, ours = ((identity.weight(name, p0, G) * p0 * (1 - p0)).mean() for name in ("GRPO", rule))
    return float(learning_rate * grpo / ours)


# ---------------------------------------------------------------------- the run


@dataclass
class Run:
    """The records of a run, before the first step and after each."""

    hard: np.ndarray  # (steps + 1,) mean solve rate of the n // 4 prompts hardest at the start
    mean: np.ndarray  # (steps + 1,) mean solve rate of all prompts
    groups: np.ndarray  # (steps + 1,) groups drawn so far, per prompt
    smallest_update: float  # the smallest of any prompt in any step
    p: np.ndarray  # (n,) solve rates at the end


_coefficients = cache(identity.coefficients)  # the same in every step


def _updates(rule: str, G: int, k: np.ndarray, p: np.ndarray) -> np.ndarray:
    """The mean of A (R - p) over a group with k right, which moves the logit: R - p is the score of
    one completion."""
    alpha, beta = _coefficients(rule, G)
    return alpha[k] * (1 - p) + beta[k] * p


def run(
    rule: str,
    p0: np.ndarray,
    seed: int,
    *,
    G: int = GROUP_SIZE,
    learning_rate: float = LEARNING_RATE,
    steps: int = STEPS,
    max_draws: int = 1,
    compete: float = 0.0,
) -> Run:
    """Train the prompts with a rule from identity.RULES.

    max_draws: how many groups of a prompt are drawn, at most, until one is mixed; 4 in the paper's
        DAPO arm.
    compete: the share of the prompts' mean push that is taken from every prompt. 1 keeps the sum of
        the logits.
    """
    rng, n = np.random.default_rng((seed, 1)), len(p0)
    # Exactly a quarter. The paper takes all p0 up to the quantile, with ties up to 27 %.
    theta, hardest = np.log(p0 / (1 - p0)), np.argsort(p0, kind="stable")[: n // 4]
    drawn, smallest, states = 0, np.inf, []
    for step in range(steps + 1):
        p = 1 / (1 + np.exp(-theta))
        states.append((p[hardest].mean(), p.mean(), drawn / n))
        if step == steps:
            break
        order = rng.permutation(n)
        k, mixed = np.zeros(n, dtype=int), np.zeros(n, dtype=bool)
        for _ in range(max_draws):
            again = np.flatnonzero(~mixed)
            k[again] = rng.binomial(G, p[order[again]])
            drawn += len(again)
            mixed = (k > 0) & (k < G)
        update = np.empty(n)
        update[order] = _updates(rule, G, k, p[order])
        smallest = min(smallest, update.min())
        push = learning_rate * update
        theta += push - compete * push.mean()
    return Run(*np.array(states).T, smallest, p)


def at_progress(run: Run, mean: float) -> float:
    """The hardest quartile's solve rate at the moment when all prompts together are at `mean`."""
    return float(np.interp(mean, run.mean, run.hard))


# ---------------------------------------------------------------------- the arms


def run_arms(seeds: Sequence[int], names: Sequence[str] = ()) -> dict[str, list[Run]]:
    """The paper's three arms and the one that it leaves out (or those in `names`) from every seed.
    A seed fixes the prompts, so that arms are paired."""
    results = {}
    for seed in seeds:
        p0 = start(seed)
        matched = matched_learning_rate("Dr. GRPO", p0, GROUP_SIZE, LEARNING_RATE)
        arms = {
            "GRPO": {"rule": "GRPO"},
            "Dr. GRPO": {"rule": "Dr. GRPO"},
            "same-prompt redraw": {"rule": "GRPO", "max_draws": 4},
            "Dr. GRPO, matched first step": {"rule": "Dr. GRPO", "learning_rate": matched},
        }
        for name in names or arms:
            results.setdefault(name, []).append(run(p0=p0, seed=seed, **arms[name]))
    return results
