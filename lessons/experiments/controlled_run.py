"""The identity paper's controlled run (arXiv:2607.00152, section 8 and `experiment_dynamics.py`), in NumPy.

    python lessons/experiments/controlled_run.py
    python lessons/experiments/controlled_run.py --group_size 64

It prints the paper's arms, and Dr. GRPO with the length of GRPO's first step, which the paper leaves out. There are
6,000 prompts, each a coin with a logit of its own: p = sigmoid(theta). In every step G completions of every prompt are
drawn, and its logit moves by the learning rate times the group's update. There is no language model, and prompts share
nothing. As in the paper, they start from solve rates of Big-Math (bigmath.py).
"""

from toy_env import take_over_ctrl_c

if __name__ == "__main__":
    take_over_ctrl_c()

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lessons import identity
from lessons.experiments import bigmath
from toy_env.cli import at_least, run_main

PROMPTS, STEPS, LEARNING_RATE, GROUP_SIZE = 6000, 150, 0.5, 8  # the paper's; the learning rate is only in its script
PUBLISHED = {"GRPO": 0.99, "Dr. GRPO": 0.88, "same-prompt redraw": 0.998}  # hardest quartile; the last from the figure

# ---------------------------------------------------------------------- where it starts


def start(seed: int, n: int = PROMPTS) -> np.ndarray:
    """n initial success probabilities, as in the paper: solve rates strictly between 0 and 1, clipped to [.02, .98]."""
    interior = bigmath.COUNTS[1:-1] / bigmath.COUNTS[1:-1].sum()
    return np.random.default_rng(seed).choice(bigmath.RATES[1:-1], size=n, p=interior).clip(0.02, 0.98)


def extreme_share(rule: str, p0: np.ndarray, G: int = GROUP_SIZE, groups: int = 0, seed: int = 0) -> float:
    """Share of all updates at the start that comes from the first and the last tenth of difficulty ([0, .1), [.9, 1]):
    the expectation, or measured in `groups` groups a prompt."""
    if groups:
        rng = np.random.default_rng(seed)
        update = sum(_updates(_advantage_sums(rule, G), rng.binomial(G, p0), p0) for _ in range(groups))
    else:
        update = identity.weight(rule, p0, G) * p0 * (1 - p0)
    return float(update[(p0 < 0.1) | (p0 >= 0.9)].sum() / update.sum())


def matched_learning_rate(rule: str, p0: np.ndarray, G: int, learning_rate: float) -> float:
    """The learning rate with which a rule's expected first step is as long as GRPO's, on average over the prompts."""
    grpo, ours = ((identity.weight(name, p0, G) * p0 * (1 - p0)).mean() for name in ("GRPO", rule))
    return float(learning_rate * grpo / ours)


# ---------------------------------------------------------------------- the run


@dataclass
class Run:
    """The records of a run, before the first step and after each."""

    hard: np.ndarray  # (steps + 1,) mean solve rate of the quarter that is hardest at the start
    mean: np.ndarray  # (steps + 1,) mean solve rate of all prompts
    groups: np.ndarray  # (steps + 1,) groups drawn so far, per prompt
    mixed: np.ndarray  # (steps + 1,) groups so far that moved something, per prompt
    silent: np.ndarray  # (steps,) share of silent groups among the first draws of a step
    expected_silent: np.ndarray  # (steps,) the mean of p^G + q^G over the prompts
    silent_variance: np.ndarray  # (steps,) of `silent` around its expectation, through sampling
    smallest_update: float  # of any prompt in any step
    p: np.ndarray  # (n,) solve rates at the end


def _advantage_sums(rule: str, G: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums of the advantages of right completions and of wrong ones, for k = 0..G right: two arrays (G + 1,)."""
    advantage = identity.RULES[rule]
    right = np.array([0.0] + [k * advantage(1, k - 1, G) for k in range(1, G + 1)])
    wrong = np.array([(G - k) * advantage(0, k, G) for k in range(G)] + [0.0])
    return right, wrong


def _updates(sums: tuple[np.ndarray, np.ndarray], k: np.ndarray, p: np.ndarray) -> np.ndarray:
    """mean of A (R - p) over a group with k right: what moves the logit, since R - p is the score of one completion."""
    right, wrong = sums
    return (right[k] * (1 - p) - wrong[k] * p) / (len(right) - 1)


def run(
    rule: str,
    p0: np.ndarray,
    seed: int,
    *,
    G: int = GROUP_SIZE,
    learning_rate: float = LEARNING_RATE,
    steps: int = STEPS,
    silent: str = "keep",
    max_draws: int = 4,
    compete: float = 0.0,
) -> Run:
    """Train the prompts with a rule from identity.RULES.

    silent: what happens to a silent group. "keep" it, and nothing moves. "redraw" the same prompt until its group is
        mixed, at most `max_draws` groups in all: the paper's DAPO arm.
    compete: which share of the prompts' mean push is taken from every prompt. 1 keeps the sum of the logits.
    """
    rng, n, sums = np.random.default_rng((seed, 1)), len(p0), _advantage_sums(rule, G)
    theta, hardest = np.log(p0 / (1 - p0)), p0 <= np.quantile(p0, 0.25)
    drawn = moved = 0
    smallest, states, silences = np.inf, [], []
    for step in range(steps + 1):
        p = 1 / (1 + np.exp(-theta))
        states.append((p[hardest].mean(), p.mean(), drawn / n, moved / n))
        if step == steps:
            break
        order = rng.permutation(n)  # in which the prompts are drawn
        k = rng.binomial(G, p[order])
        drawn += n
        mixed = (k > 0) & (k < G)
        S = identity.silent_rate(p[order], G)
        silences.append((1 - mixed.mean(), S.mean(), (S * (1 - S)).mean() / n))
        for _ in range(max_draws - 1 if silent == "redraw" else 0):
            again = np.flatnonzero(~mixed)
            k[again] = rng.binomial(G, p[order[again]])
            drawn += len(again)
            mixed = (k > 0) & (k < G)
        moved += np.count_nonzero(mixed)
        update = np.empty(n)
        update[order] = _updates(sums, k, p[order])
        smallest = min(smallest, update.min())
        push = learning_rate * update
        theta += push - compete * push.mean()
    return Run(*np.array(states).T, *np.array(silences).T, smallest, p)


def at_progress(run: Run, mean: float) -> float:
    """The hardest quartile's solve rate at the moment when all prompts together are at `mean`."""
    return float(np.interp(mean, run.mean, run.hard))


def r_squared(run: Run) -> float:
    """R² of the expected silent shares against the measured ones, over the steps."""
    return float(1 - ((run.silent - run.expected_silent) ** 2).sum() / ((run.silent - run.silent.mean()) ** 2).sum())


def expected_r_squared(run: Run) -> float:
    """R² if the expectation is right and only sampling separates the two."""
    S = run.expected_silent
    return float(1 - run.silent_variance.sum() / ((S - S.mean()) ** 2).sum())


# ---------------------------------------------------------------------- the arms


def arms(p0: np.ndarray, *, G: int = GROUP_SIZE, learning_rate: float = LEARNING_RATE, steps: int = STEPS) -> dict:
    """Settings of `run` by name: the paper's three arms, then the one that it leaves out."""
    named = {
        "GRPO": {"rule": "GRPO"},
        "Dr. GRPO": {"rule": "Dr. GRPO"},
        "same-prompt redraw": {"rule": "GRPO", "silent": "redraw"},
        "Dr. GRPO, matched first step": {
            "rule": "Dr. GRPO", "learning_rate": matched_learning_rate("Dr. GRPO", p0, G, learning_rate),
        },
    }  # fmt: skip
    return {name: {"G": G, "learning_rate": learning_rate, "steps": steps} | own for name, own in named.items()}


def run_arms(seeds: Sequence[int], names: Sequence[str] = (), **settings) -> dict[str, list[Run]]:
    """Every arm (or those in `names`) from every seed. A seed fixes the prompts, so that arms are paired."""
    results: dict[str, list[Run]] = {}
    for seed in seeds:
        p0 = start(seed)
        for name, own in arms(p0, **settings).items():
            if not names or name in names:
                results.setdefault(name, []).append(run(p0=p0, seed=seed, **own))
    return results


# ---------------------------------------------------------------------- the command


@dataclass
class Config:
    seeds: at_least(1, most=1000) = 5  # number of seeds: each draws other prompts and other completions
    group_size: at_least(2, most=128) = GROUP_SIZE  # completions in a group (G)
    steps: at_least(2, most=100_000) = STEPS  # of every arm
    learning_rate: at_least(0.001, most=10.0) = LEARNING_RATE  # of GRPO, and of every arm that is not matched to it


def main(config: Config) -> None:
    G, seeds = config.group_size, range(config.seeds)
    results = run_arms(seeds, G=G, learning_rate=config.learning_rate, steps=config.steps)

    def spread(values, digits: int = 3) -> str:
        sd = f" ({np.std(values, ddof=1):.{digits}f})" if len(seeds) > 1 else ""
        return f"{np.mean(values):.{digits}f}{sd}"

    defaults = (G, config.steps, config.learning_rate) == (GROUP_SIZE, STEPS, LEARNING_RATE)
    print(f"{PROMPTS:,} prompts, start: Big-Math; G = {G}, {config.steps} steps; {len(seeds)} seeds")
    print(f"\n{'':36}groups per      hardest quartile at the end    and when all are at: mean (sd)")
    print(f"{'':36}prompt & step   ours            published      .7              .8              .9")
    for name, runs in results.items():
        cost = np.mean([r.groups[-1] for r in runs]) / config.steps
        published = str(PUBLISHED[name]) if defaults and name in PUBLISHED else "-"
        row = f"{name:36}{cost:<15.2f} {spread([r.hard[-1] for r in runs]):15} {published:14} "
        for level in (0.7, 0.8, 0.9):
            reached = all(r.mean[-1] > level for r in runs)
            row += f"{spread([at_progress(r, level) for r in runs]) if reached else '-':16}"
        print(row.rstrip())
    print(
        f"\nsilent share, R² in the GRPO arm: {spread([r_squared(r) for r in results['GRPO']], 4)}; "
        f"from sampling alone: {np.mean([expected_r_squared(r) for r in results['GRPO']]):.4f}"
    )
    for rule in ("GRPO", "Dr. GRPO"):
        shares = [100 * extreme_share(rule, start(seed), G) for seed in seeds]
        print(f"updates from the extreme tenths at the start, {rule}: {spread(shares, 1)} %")
    print(f"smallest update of any prompt: {min(r.smallest_update for runs in results.values() for r in runs):g}")


if __name__ == "__main__":
    run_main(Config, main, __doc__)
