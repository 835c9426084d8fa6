"""What the exercises of lesson 7 are checked against. `kit.check` explains the keys."""

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
    },
    "7.2": {
        "expected": lambda rewards, p: rewards.std(axis=1).mean() / sqrt(p * (1 - p)),
        "inputs": logs,
    },
}
