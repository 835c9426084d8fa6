"""What the exercises of lesson 13 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable

import numpy as np

from lessons import identity


def mean_product(scores: np.ndarray) -> float:
    """Of all pairs of different rows: an estimate of the squared mean without noise."""
    n, total = len(scores), scores.sum(axis=0)
    return (total @ total - (scores**2).sum()) / (n * (n - 1))


def contrast_squared(right: np.ndarray, wrong: np.ndarray) -> float:
    return mean_product(right) + mean_product(wrong) - 2 * right.mean(axis=0) @ wrong.mean(axis=0)


def less(noise: Callable) -> Callable:
    """The squared distance of the two means, less noise(scores) of either."""

    def of(right: np.ndarray, wrong: np.ndarray) -> float:
        contrast = right.mean(axis=0) - wrong.mean(axis=0)
        return contrast @ contrast - noise(right) - noise(wrong)

    return of


def turning_point(G: int, signal: float, k: int = -1) -> float:
    """Where two squared lengths, straight lines in v- / v+, are the same, from their values at 0 and 1."""
    one, other = (
        identity.update_norm_squared(k % G, G, signal, 1, r) - identity.update_norm_squared(G // 2, G, signal, 1, r)
        for r in (0, 1)
    )
    return one / (one - other)


rng = np.random.default_rng(0)
some_scores = [{"right": rng.normal(size=(n, 3)), "wrong": 1 + rng.normal(size=(m, 3))} for n, m in ((4, 3), (5, 20))]

CHECKS = {
    "13.1": {
        "expected": contrast_squared,
        "inputs": some_scores,
        "mistakes": {
            "the noise of both means is still in it": less(lambda scores: 0),
            "a variance with ddof 0 is too small": less(lambda scores: scores.var(axis=0).sum() / len(scores)),
            "that is the variance of one score: the mean of n has 1/n of it": less(
                lambda scores: scores.var(axis=0, ddof=1).sum()
            ),
        },
    },
    "13.2": {
        "expected": turning_point,
        "inputs": [{"G": 4, "signal": 0.7}, {"G": 64, "signal": 0.7}, {"G": 8, "signal": 0.0}],
        "mistakes": {
            "that is the case without signal, of which the even split has more": lambda G, signal: turning_point(G, 0),
            "that is one right answer of G: v- comes with k": lambda G, signal: turning_point(G, signal, k=1),
            "a lone wrong answer has signal too: sigma squared is k (G - k) / G^2": lambda G, signal: (
                1 + signal * G**2 / 4 / (G / 2 - 1)
            ),
        },
    },
}
