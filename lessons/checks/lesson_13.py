"""What the exercises of lesson 13 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable
from itertools import product

import numpy as np

from lessons import identity


def over_all_draws(estimate: Callable) -> Callable:
    """The mean of an estimate over all 4,096 draws of 8 right and 4 wrong scores, each (2,) one of two: its exact
    expectation. What is no estimate, as it is."""

    def of(mean_over: str) -> float:
        rights, wrongs = (np.array(list(product(scores, repeat=n))) for scores, n in ((RIGHT, 8), (WRONG, 4)))
        values = [estimate(right.copy(), wrong.copy()) for right in rights for wrong in wrongs]
        return ... if values[0] is None or values[0] is ... else np.mean(values, axis=0)

    return of


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


RIGHT, WRONG = np.array([[2.0, 3.0], [2.0, -3.0]]), np.array([[3.0, 0.0], [-3.0, -2.0]])  # means (2, 0) and (0, -1)

CHECKS = {
    "13.1": {
        "expected": lambda mean_over: 5.0,
        "inputs": [{"mean_over": "all draws of 8 right and 4 wrong scores"}],
        "tolerance": 0.05,
        "mistakes": {
            "the noise of both means is still in it": over_all_draws(less(lambda scores: 0)),
            "a variance with ddof 0 is too small": over_all_draws(
                less(lambda scores: scores.var(axis=0).sum() / len(scores))
            ),
            "that is the variance of one score: the mean of n has 1/n of it": over_all_draws(
                less(lambda scores: scores.var(axis=0, ddof=1).sum())
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
