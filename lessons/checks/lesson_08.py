"""Right answers and usual mistakes of lesson 8's exercises; `kit.check` explains the keys."""

from math import comb

import numpy as np

from lessons.identity import silent_rate, silent_rate_plug_in, silent_rate_unbiased


def completions(p: np.ndarray, weights: np.ndarray, G: int) -> float:
    """G over the probability that a group from the mix is not silent."""
    return G / (1 - weights @ silent_rate(p, G))


CHECKS = {
    "8.1": {
        "expected": silent_rate_unbiased,
        "inputs": [{"c": 3, "n": 12, "G": 4}, {"c": 9, "n": 10, "G": 2}, {"c": 5, "n": 10, "G": 8}],
        "mistakes": {
            "that is the plug-in: c / n put for p, too high on average": silent_rate_plug_in,
            "that is the all-right half; the all-wrong groups are silent too": (
                lambda c, n, G: comb(c, G) / comb(n, G)
            ),
        },
    },
    "8.2": {
        "expected": completions,
        "inputs": [
            {"p": np.array([0.5, 0.02]), "weights": np.array([0.5, 0.5]), "G": 8},
            {"p": np.array([0.1, 0.3, 0.99]), "weights": np.array([0.2, 0.3, 0.5]), "G": 4},
        ],
        "mistakes": {
            "that redraws the same problem; average rates first": (
                lambda p, weights, G: weights @ (G / (1 - silent_rate(p, G)))
            ),
            "you put the mean p into the formula; average the rates": (
                lambda p, weights, G: G / (1 - silent_rate(weights @ p, G))
            ),
            "that counts the silent groups; the useful group is sampled too": (
                lambda p, weights, G: completions(p, weights, G) - G
            ),
        },
    },
    "8.3": {
        "expected": lambda n, G: (n + 1) / (n + G + 1),  # the mean of q^G, weighted by q^n
        "inputs": [{"n": 64, "G": 8}, {"n": 64, "G": 64}, {"n": 16, "G": 1}],
        "mistakes": {
            "that puts 0 of n for p; nothing is certain after n misses": lambda n, G: 1.0,
            "that is E[q] to the power G: take the power first, average last": (
                lambda n, G: ((n + 1) / (n + 2)) ** G
            ),
        },
    },
}
