"""The pictures of lesson 10, and the right answers and usual mistakes of its exercises."""

from collections.abc import Callable
from itertools import cycle

import numpy as np
import torch
from matplotlib.figure import Figure

from algorithms import dapo
from lessons.identity import silent_rate
from lessons.workshop.notebook import BLUE, GREEN, ORANGE, RED, new_figure, ticks


def weights(p: np.ndarray, shown: dict) -> Figure:
    """Lesson 10: weight of a prompt relative to that of p = 1/2, the middle of p (n,). shown: by
    the rule's name, the measured weights as markers and the exact ones as a line, (n,) each."""
    figure, axis = new_figure(8.2, 3.8)
    big = {"markersize": 9, "markeredgewidth": 2}
    looks = ((BLUE, "-", "o"), (GREEN, ":", "x"), (RED, "-", "s"), (ORANGE, "-", "^"))
    for (name, (measured, exact)), (color, style, marker) in zip(shown.items(), looks):
        middle = len(p) // 2
        axis.plot(p, exact / exact[middle], style, color=color, linewidth=1.5)
        axis.plot(p, measured / measured[middle], marker, color=color, label=name, **big)
    axis.set(
        title="Weight of a prompt (1: p = ½)",
        xscale="logit",
        yscale="log",
        xlabel="p, probability of a right completion",
        ylim=(0.8, 40),
    )
    ticks(axis.xaxis, [".01", ".1", ".5", ".9", ".99"])
    ticks(axis.yaxis, [1, 2, 5, 10, 20])
    axis.legend(loc="upper center")
    return figure


# Exercises; `notebook.check` explains the keys of CHECKS


def capped_redraw(p, G, draws):
    """Weight over GRPO's of a prompt whose group is drawn again while it is silent, at most `draws`
    times in all: each draw adds the probability that it is needed."""
    return sum(silent_rate(p, G) ** i for i in range(draws))


def wasted(p, G):
    """Completions of the silent groups before the first that is not."""
    S = silent_rate(p, G).mean()
    return G * S / (1 - S)


# Two kinds of prompts: how often a short completion is right, and a long one
EASY, HARD = (0.6, 0.5), (0.01, 0.05)


def is_mixed(group: np.ndarray) -> bool:
    """True if some of its completions are right and some wrong. group: (2, 8); the first row says
    which completions are right, the second which are long."""
    return group[0].any() and not group[0].all()


def on_two_kinds(fill: Callable) -> Callable:
    """The function that gives a batch of groups, (P, 2, 8), as `fill` collects them, from the
    share of long completions, P and a seed or generator."""

    def batch(long_share: float, P: int, seed) -> np.ndarray:
        rng = np.random.default_rng(seed)

        def sample(prompt):
            long = rng.random(8) < long_share
            return np.array([rng.random(8) < np.where(long, prompt[1], prompt[0]), long])

        return np.array(fill(sample, cycle([EASY, HARD, HARD, EASY]), P))

    return batch


def redrawn(sample, prompts, P):
    groups = []
    while len(groups) < P:
        prompt = next(prompts)
        groups.append(sample(prompt))
        while not is_mixed(groups[-1]):
            groups[-1] = sample(prompt)
    return groups


def replaced(sample, prompts, P):
    groups = []
    while len(groups) < P:
        groups += filter(is_mixed, [sample(next(prompts))])
    return groups


def all_kept(sample, prompts, P):
    return [sample(next(prompts)) for _ in range(P)]


BUG, GRPO = on_two_kinds(redrawn), on_two_kinds(all_kept)

CHECKS = {
    "10.1": {
        "expected": lambda S: np.array([1 / (1 - S).mean() + 0 * S, 1 / (1 - S)]),
        "inputs": [{"S": np.array([0.9, 0.5])}, {"S": np.array([0.2, 0.6, 0.95])}],
        "mistakes": {
            "DAPO's row has the shares of the batch alone: a mixed group also counts for more": (
                lambda S: np.array([(1 - S) / (1 - S).mean(), 1 / (1 - S)])
            ),
        },
    },
    "10.2": {
        "bug": BUG,
        "expected": on_two_kinds(replaced),
        "inputs": [{"long_share": 0.5, "P": 32, "seed": 0}],
        "mistakes": {"silent groups are in the batch: that is GRPO": GRPO},
    },
    "10.3": {
        "expected": wasted,
        "inputs": [
            {"p": np.array([0.05, 0.5]), "G": 8},
            {"p": np.array([0.01, 0.3, 0.9]), "G": 16},
        ],
        "mistakes": {
            "that is the cost of redrawing the same prompt": (
                lambda p, G: np.mean([wasted(each, G) for each in p])
            ),
            "average S over the prompts, not p": lambda p, G: wasted(p.mean(), G),
        },
    },
}


def long_shares(batch) -> np.ndarray:
    """The mean share of long completions in eight runs on such batches."""
    return np.mean([one_run(batch, seed) for seed in range(8)], axis=0)


def one_run(batch, seed: int) -> list[float]:
    """The share of long completions of a policy with one logit."""
    rng, z, shares = np.random.default_rng(seed), 0.0, []
    for _ in range(81):
        shares.append(1 / (1 + np.exp(-z)))
        right, long = batch(shares[-1], 32, rng).swapaxes(0, 1)
        A = dapo.compute_advantages(rewards=torch.tensor(right).double()).numpy()
        z += 4 * (A * (long - shares[-1])).mean()
    return shares


TRAINED = {
    "10.2": {
        "curve": long_shares,
        "mistakes": {"the bug": BUG, "GRPO": GRPO},
        "labels": ("updates", "long completions, mean of 8 runs"),
    }
}
