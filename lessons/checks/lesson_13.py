"""Right answers and usual mistakes of lesson 13's exercises; `kit.check` explains the keys."""

from collections.abc import Callable
from itertools import product

import numpy as np


def over_all_draws(estimate: Callable) -> Callable:
    """The mean of an estimate over all 4,096 draws of 8 right and 4 wrong scores, each (2,) one of
    two: its exact expectation. `...` and None are no estimates, and give `...`."""

    def answer(mean_over: str) -> float:
        rights, wrongs = (
            np.array(list(product(scores, repeat=n))) for scores, n in ((RIGHT, 8), (WRONG, 4))
        )
        values = [estimate(right.copy(), wrong.copy()) for right in rights for wrong in wrongs]
        return ... if values[0] is None or values[0] is ... else np.mean(values, axis=0)

    return answer


def less_variances(ddof: int, per_mean: bool) -> Callable:
    """The squared contrast less the estimated variances of the two classes, each divided by the
    number of its scores where `per_mean`."""

    def estimate(right: np.ndarray, wrong: np.ndarray) -> float:
        value = ((right.mean(axis=0) - wrong.mean(axis=0)) ** 2).sum()
        for scores in (right, wrong):
            value -= scores.var(axis=0, ddof=ddof).sum() / (len(scores) if per_mean else 1)
        return value

    return estimate


def weighted_mean(R: np.ndarray, scores: np.ndarray, power: int) -> float:
    """The mean reward, weighted by a power of the score's length; 2 gives the best b."""
    return np.average(R, weights=np.linalg.norm(scores, axis=1) ** power)


# The means are (2, 0) and (0, -1).
RIGHT, WRONG = np.array([[2.0, 3.0], [2.0, -3.0]]), np.array([[3.0, 0.0], [-3.0, -2.0]])

CHECKS = {
    "13.1": {
        "expected": lambda mean_over: 5.0,
        "inputs": [{"mean_over": "all draws of 8 right and 4 wrong scores"}],
        "mistakes": {
            "the noise of both means is still in it": over_all_draws(
                lambda right, wrong: ((right.mean(axis=0) - wrong.mean(axis=0)) ** 2).sum()
            ),
            "ddof 0 is too small": over_all_draws(less_variances(ddof=0, per_mean=True)),
            "one score's variance: a mean has 1/n of it": (
                over_all_draws(less_variances(ddof=1, per_mean=False))
            ),
        },
    },
    "13.2": {
        "expected": lambda R, scores: weighted_mean(R, scores, 2),
        "inputs": [
            {
                "R": np.array([1.0, 1, 0, 0, 0, 1]),
                "scores": np.random.default_rng(seed).normal(size=(6, 3)),
            }
            for seed in range(2)
        ],
        "mistakes": {
            "that is best only where right and wrong scores are equally long": (
                lambda R, scores: R.mean()
            ),
            "it is the squared length that weighs": lambda R, scores: weighted_mean(R, scores, 1),
            "that weighs by the wrong ones: which reward do the others have?": (
                lambda R, scores: weighted_mean(1 - R, scores, 2)
            ),
        },
    },
}
