"""Right answers and usual mistakes of lesson 0's exercises; `kit.check` explains the keys."""

from math import exp


def probability(z: float) -> float:
    return 1 / (1 + exp(-z))


def moved(z: float, R: int, b: float, rate: float) -> float:
    return z + rate * (R - b) * (R - probability(z))


def variance(p: float, b: float) -> float:
    """Variance of (R - b) times the score R - p, which takes two values."""
    return p * (1 - p) * ((1 - b) * (1 - p) - b * p) ** 2


CHECKS = {
    "0.1": {
        "expected": moved,
        "inputs": [
            {"z": 0.4, "R": 1, "b": 0.0, "rate": 1.0},
            {"z": 0.4, "R": 0, "b": 0.5, "rate": 0.5},
            {"z": -1.2, "R": 1, "b": 0.25, "rate": 2.0},
        ],
        "mistakes": {
            "R = 0: it is the log-probability of the wrong one that counts": lambda z, R, b, rate: (
                z + rate * (R - b) * (1 - probability(z))
            ),
            "that is the slope of the probability": lambda z, R, b, rate: (
                z + rate * (R - b) * probability(z) * (1 - probability(z)) * (1 if R else -1)
            ),
            "the baseline is missing": lambda z, R, b, rate: moved(z, R, 0, rate),
            "the sign: a positive advantage must raise what was sampled": lambda z, R, b, rate: (
                moved(z, R, b, -rate)
            ),
        },
    },
    "0.2": {
        "expected": lambda p, candidates: min(candidates, key=lambda b: variance(p, b)),
        "inputs": [
            {"p": 0.9, "candidates": [0.9, 0.5, 0.0]},
            {"p": 0.2, "candidates": [0.2, 0.0, 1.0]},
            {"p": 0.7, "candidates": [0.0, 0.7, 0.4]},
            {"p": 0.1, "candidates": [-1.0, 0.2, 2.2]},
        ],
        "mistakes": {
            "that is the candidate nearest to p: multiply by the score first": (
                lambda p, candidates: min(candidates, key=lambda b: abs(b - p))
            ),
            "the two outcomes are not equally likely": lambda p, candidates: min(
                candidates, key=lambda b: ((1 - b) * (1 - p)) ** 2 + (b * p) ** 2
            ),
            "R - b has the same variance for every b: multiply by the score first": (
                lambda p, candidates: candidates[0]
            ),
            "no baseline is not always the least noisy": (
                lambda p, candidates: min(candidates, key=abs)
            ),
        },
    },
}
