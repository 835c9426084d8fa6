"""What the exercises of lesson 7 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable
from math import sqrt

import numpy as np


def every_group(p: float, G: int) -> tuple[np.ndarray, np.ndarray]:
    """The rewards of all groups of G, (2^G, G), and the probability of each, (2^G,)."""
    rewards = np.array([[bits >> i & 1 for i in range(G)] for bits in range(2**G)])
    k = rewards.sum(axis=1)
    return rewards, p**k * (1 - p) ** (G - k)


def best_weights(G: int, v_right: float, v_wrong: float, p: float = 0.3) -> np.ndarray:
    """c(1..G-1), the largest 1, with the least E[c^2 n] at a given E[c], from Lagrange's equations over all groups."""
    rewards, chance = every_group(p, G)
    k = rewards.sum(axis=1)
    chances = np.array([chance[k == i].sum() for i in range(1, G)])
    contrasts = [np.where(rewards[k == i][0] == 1, 1 / i, -1 / (G - i)) for i in range(1, G)]
    noises = np.array([(a**2) @ np.where(a > 0, v_right, v_wrong) for a in contrasts])
    system = np.block([[np.diag(2 * chances * noises), -chances[:, None]], [chances[None], np.zeros((1, 1))]])
    c = np.linalg.solve(system, np.append(np.zeros(G - 1), 1))[:-1]
    return c / c.max()


def as_weights(c: Callable) -> Callable:
    """Weights that are proportional to c(k, G, v_right, v_wrong), the largest 1."""

    def weights(G: int, v_right: float, v_wrong: float) -> np.ndarray:
        values = c(np.arange(1, G), G, v_right, v_wrong)
        return values / values.max()

    return weights


def by_counting(rewards: np.ndarray, p: float) -> float:
    G = rewards.shape[1]
    return sum(sqrt(k * (G - k)) / G for k in rewards.sum(axis=1)) / len(rewards) / sqrt(p * (1 - p))


logs = [
    {"rewards": (np.random.default_rng(seed).random((4000, G)) < p).astype(float), "p": p}
    for seed, p, G in ((1, 0.05, 8), (2, 0.3, 4))
]

CHECKS = {
    "7.1": {
        "expected": best_weights,
        "inputs": [{"G": 8, "v_right": 1.0, "v_wrong": 10.0}, {"G": 5, "v_right": 3.0, "v_wrong": 1.0}],
        "mistakes": {
            "that is best only where right and wrong scores vary equally": as_weights(lambda k, G, v, w: k * (G - k)),
            "that weighs by the inverse of the standard deviation; the best weight is that of the variance": as_weights(
                lambda k, G, v, w: (v / k + w / (G - k)) ** -0.5
            ),
            "a mean of k scores has the variance v / k, and the k right ones have v_right": as_weights(
                lambda k, G, v, w: 1 / (v / (G - k) + w / k)
            ),
        },
    },
    "7.2": {
        "expected": by_counting,
        "inputs": logs,
        "bug": lambda rewards, p: (
            rewards.std(axis=1)[rewards.any(axis=1) & ~rewards.all(axis=1)].mean() / sqrt(p * (1 - p))
        ),
        "mistakes": {
            "that is the root of the mean variance: E[sigma] is smaller (Jensen)": lambda rewards, p: sqrt(
                rewards.var(axis=1).mean() / (p * (1 - p))
            ),
            "ddof: you divided by G - 1 inside the standard deviation": lambda rewards, p: (
                rewards.std(axis=1, ddof=1).mean() / sqrt(p * (1 - p))
            ),
            "that pools all groups: their means differ, so it is always near 1": lambda rewards, p: (
                rewards.std() / sqrt(p * (1 - p))
            ),
        },
    },
}
