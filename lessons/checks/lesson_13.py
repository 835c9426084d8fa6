"""What the exercises of lesson 13 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable
from itertools import product

import numpy as np


def over_all_draws(estimate: Callable) -> Callable:
    """The mean of an estimate over all 4,096 draws of 8 right and 4 wrong scores, each (2,) one of
    two: its exact expectation. What is no estimate, as it is."""

    def answer(mean_over: str) -> float:
        rights, wrongs = (
            np.array(list(product(scores, repeat=n))) for scores, n in ((RIGHT, 8), (WRONG, 4))
        )
        values = [estimate(right.copy(), wrong.copy()) for right in rights for wrong in wrongs]
        return ... if values[0] is None or values[0] is ... else np.mean(values, axis=0)

    return answer


def best_b(R: np.ndarray, scores: np.ndarray) -> float:
    """The mean reward, weighted by the squared length of the score."""
    return np.average(R, weights=np.linalg.norm(scores, axis=1) ** 2)


RIGHT, WRONG = (
    np.array([[2.0, 3.0], [2.0, -3.0]]),
    np.array([[3.0, 0.0], [-3.0, -2.0]]),
)  # means (2, 0) and (0, -1)

CHECKS = {
    "13.1": {
        "expected": lambda mean_over: 5.0,
        "inputs": [{"mean_over": "all draws of 8 right and 4 wrong scores"}],
    },
    "13.2": {
        "expected": best_b,
        "inputs": [
            {
                "R": np.array([1.0, 1, 0, 0, 0, 1]),
                "scores": np.random.default_rng(seed).normal(size=(6, 3)),
            }
            for seed in range(2)
        ],
    },
}
