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


def best_b(R: np.ndarray, scores: np.ndarray, power: int = 2) -> float:
    """The mean reward, weighted by a power of the score's length."""
    return np.average(R, weights=np.linalg.norm(scores, axis=1) ** power)


RIGHT, WRONG = np.array([[2.0, 3.0], [2.0, -3.0]]), np.array([[3.0, 0.0], [-3.0, -2.0]])  # means (2, 0) and (0, -1)

CHECKS = {
    "13.1": {
        "expected": lambda mean_over: 5.0,
        "inputs": [{"mean_over": "all draws of 8 right and 4 wrong scores"}],
        "mistakes": {
            "the noise of both means is still in it": over_all_draws(less(lambda scores: 0)),
            "ddof 0 is too small": over_all_draws(less(lambda scores: scores.var(axis=0).sum() / len(scores))),
            "one score's variance: a mean has 1/n of it": over_all_draws(less(lambda s: s.var(axis=0, ddof=1).sum())),
        },
    },
    "13.2": {
        "expected": best_b,
        "inputs": [
            {"R": np.array([1.0, 1, 0, 0, 0, 1]), "scores": np.random.default_rng(seed).normal(size=(6, 3))}
            for seed in range(2)
        ],
        "mistakes": {
            "that is best only where right and wrong scores are equally long": lambda R, scores: R.mean(),
            "it is the squared length that weighs": lambda R, scores: best_b(R, scores, power=1),
            "that weighs by the wrong ones: which reward do the others have?": lambda R, scores: 1 - best_b(R, scores),
        },
    },
}
