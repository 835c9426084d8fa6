"""Right answers and usual mistakes of lesson 7's exercises; `kit.check` explains the keys."""

from math import sqrt

import numpy as np


def weights(G: int, v_right: float, v_wrong: float) -> np.ndarray:
    """The inverse variance of the difference of two means, of k scores and of G - k; the largest
    1."""
    k = np.arange(1, G)
    values = 1 / (v_right / k + v_wrong / (G - k))
    return values / values.max()


logs = [
    {"rewards": (np.random.default_rng(seed).random((4000, G)) < p).astype(float), "p": p}
    for seed, p, G in ((1, 0.05, 8), (2, 0.3, 4))
]

CHECKS = {
    "7.1": {
        "expected": weights,
        "inputs": [
            {"G": 8, "v_right": 1.0, "v_wrong": 10.0},
            {"G": 5, "v_right": 3.0, "v_wrong": 1.0},
        ],
        "mistakes": {
            "that is best only where right and wrong scores vary equally": (
                lambda G, v_right, v_wrong: weights(G, 1.0, 1.0)
            ),
            "that weighs by the inverse of the standard deviation": (
                lambda G, v_right, v_wrong: weights(G, v_right, v_wrong) ** 0.5
            ),
            "a mean of k scores has the variance v / k": (
                lambda G, v_right, v_wrong: weights(G, v_wrong, v_right)
            ),
        },
    },
    "7.2": {
        "bug": lambda rewards, p: (
            rewards.std(axis=1)[rewards.std(axis=1) > 0].mean() / sqrt(p * (1 - p))
        ),
        "expected": lambda rewards, p: rewards.std(axis=1).mean() / sqrt(p * (1 - p)),
        "inputs": logs,
        "mistakes": {
            "the root of the mean variance; E[sigma] is smaller": lambda rewards, p: sqrt(
                rewards.var(axis=1).mean() / (p * (1 - p))
            ),
            "ddof: you divided by G - 1 inside sigma": lambda rewards, p: (
                rewards.std(axis=1, ddof=1).mean() / sqrt(p * (1 - p))
            ),
            "that pools all groups: their means differ, so it is always near 1": (
                lambda rewards, p: rewards.std() / sqrt(p * (1 - p))
            ),
        },
    },
}
