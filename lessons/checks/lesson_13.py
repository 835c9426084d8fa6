"""What the exercises of lesson 13 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable
from itertools import product

import numpy as np


def over_all_draws(estimate: Callable) -> Callable:
    """The mean of an estimate over all 4,096 draws of 8 right and 4 wrong scores, each (2,) one of two: its exact
    expectation. What is no estimate, as it is."""

    def answer(mean_over: str) -> float:
        rights, wrongs = (np.array(list(product(scores, repeat=n))) for scores, n in ((RIGHT, 8), (WRONG, 4)))
        values = [estimate(right.copy(), wrong.copy()) for right in rights for wrong in wrongs]
        return ... if values[0] is None or values[0] is ... else np.mean(values, axis=0)

    return answer


def less(noise: Callable) -> Callable:
    """The squared distance of the two means, less noise(scores) of either."""

    def answer(right: np.ndarray, wrong: np.ndarray) -> float:
        contrast = right.mean(axis=0) - wrong.mean(axis=0)
        return contrast @ contrast - noise(right) - noise(wrong)

    return answer


def vertex(R: np.ndarray, scores: np.ndarray) -> float:
    """Where the sum of |(R - b) s|^2 is least, from its values at b = -1, 0 and 1."""
    low, middle, high = ((((R - b)[:, None] * scores) ** 2).sum() for b in (-1, 0, 1))
    return (low - high) / (2 * (low + high - 2 * middle))


def weighted(weight: Callable) -> Callable:
    """The mean reward, weighted by weight(scores)."""
    return lambda R, scores: np.average(R, weights=weight(scores))


def lengths(scores: np.ndarray) -> np.ndarray:
    return np.linalg.norm(scores, axis=1)


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
        "expected": vertex,
        "inputs": [
            {"R": np.array([1.0, 1, 0, 0, 0, 1]), "scores": np.random.default_rng(seed).normal(size=(6, 3))}
            for seed in range(2)
        ],
        "mistakes": {
            "that is best only where right and wrong scores are equally long": weighted(lambda s: np.ones(len(s))),
            "it is the squared length that weighs": weighted(lengths),
            "that weighs by the wrong ones: which reward do the others have?": lambda R, scores: 1 - vertex(R, scores),
        },
    },
}
