"""What the exercises of lesson 8 are checked against. `kit.check` explains the keys."""

import numpy as np

from lessons.identity import silent_rate, silent_rate_unbiased


def completions(p: np.ndarray, weights: np.ndarray, G: int) -> float:
    """G over the probability that a group from the mix is not silent."""
    return G / (1 - weights @ silent_rate(p, G))


CHECKS = {
    "8.1": {
        "expected": silent_rate_unbiased,
        "inputs": [{"c": 3, "n": 12, "G": 4}, {"c": 9, "n": 10, "G": 2}, {"c": 5, "n": 10, "G": 8}],
    },
    "8.2": {
        "expected": completions,
        "inputs": [
            {"p": np.array([0.5, 0.02]), "weights": np.array([0.5, 0.5]), "G": 8},
            {"p": np.array([0.1, 0.3, 0.99]), "weights": np.array([0.2, 0.3, 0.5]), "G": 4},
        ],
    },
    "8.3": {
        "expected": lambda n, G: (n + 1) / (n + G + 1),  # the mean of q^G, weighted by q^n
        "inputs": [{"n": 64, "G": 8}, {"n": 64, "G": 64}, {"n": 16, "G": 1}],
    },
}
