"""What the exercises of lesson 7 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable
from math import sqrt

import numpy as np


def as_weights(c: Callable) -> Callable:
    """Weights that are proportional to c(k, G, v_right, v_wrong), the largest 1."""

    def weights(G: int, v_right: float, v_wrong: float) -> np.ndarray:
        values = c(np.arange(1, G), G, v_right, v_wrong)
        return values / values.max()

    return weights


def inverse_variance(k: np.ndarray, G: int, v_right: float, v_wrong: float) -> np.ndarray:
    """Of the difference of two means, of k scores and of G - k."""
    return 1 / (v_right / k + v_wrong / (G - k))


def over_limit(sigma: Callable) -> Callable:
    """sigma(rewards) over its limit for G -> infinity."""
    return lambda rewards, p: sigma(rewards) / sqrt(p * (1 - p))


logs = [
    {"rewards": (np.random.default_rng(seed).random((4000, G)) < p).astype(float), "p": p}
    for seed, p, G in ((1, 0.05, 8), (2, 0.3, 4))
]

CHECKS = {
    "7.1": {
        "expected": as_weights(inverse_variance),
        "inputs": [{"G": 8, "v_right": 1.0, "v_wrong": 10.0}, {"G": 5, "v_right": 3.0, "v_wrong": 1.0}],
        "mistakes": {
            "that is best only where right and wrong scores vary equally": as_weights(lambda k, G, v, w: k * (G - k)),
            "that weighs by the inverse of the standard deviation": as_weights(lambda *x: inverse_variance(*x) ** 0.5),
            "a mean of k scores has the variance v / k": as_weights(lambda k, G, v, w: inverse_variance(k, G, w, v)),
        },
    },
    "7.2": {
        "expected": over_limit(lambda R: R.std(axis=1).mean()),
        "inputs": logs,
        "bug": over_limit(lambda R: R.std(axis=1)[R.any(axis=1) & ~R.all(axis=1)].mean()),
        "mistakes": {
            "the root of the mean variance; E[sigma] is smaller": over_limit(lambda R: R.var(axis=1).mean() ** 0.5),
            "ddof: you divided by G - 1 inside sigma": over_limit(lambda R: R.std(axis=1, ddof=1).mean()),
            "that pools all groups: their means differ, so it is always near 1": over_limit(lambda R: R.std()),
        },
    },
}
