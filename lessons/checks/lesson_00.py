"""What the exercises of lesson 0 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable
from math import exp


def step(push: Callable) -> Callable:
    """The update by rate * push(p, R, b)."""
    return lambda z, R, b, rate: z + rate * push(1 / (1 + exp(-z)), R, b)


def variance(p: float, b: float) -> float:
    """Of (R - b) times the score, R - p, which has two values."""
    return p * (1 - p) * ((1 - b) * (1 - p) - b * p) ** 2


def fewest(noise: Callable) -> Callable:
    """The function that picks the candidate b with the lowest noise(p, b)."""
    return lambda p, candidates: min(candidates, key=lambda b: noise(p, b))


CHECKS = {
    "0.1": {
        "expected": step(lambda p, R, b: (R - b) * (R - p)),
        "inputs": [
            {"z": 0.4, "R": 1, "b": 0.0, "rate": 1.0},
            {"z": 0.4, "R": 0, "b": 0.5, "rate": 0.5},
            {"z": -1.2, "R": 1, "b": 0.25, "rate": 2.0},
        ],
        "mistakes": {
            "R = 0: it is the log-probability of the wrong one that counts": step(lambda p, R, b: (R - b) * (1 - p)),
            "that is the slope of the probability": step(lambda p, R, b: (R - b) * p * (1 - p) * (1 if R else -1)),
            "the sign: a positive advantage must raise what was sampled": step(lambda p, R, b: (b - R) * (R - p)),
            "the baseline is missing": step(lambda p, R, b: R * (R - p)),
        },
    },
    "0.2": {
        "expected": fewest(variance),
        "inputs": [
            {"p": 0.9, "candidates": [0.9, 0.5, 0.0]},
            {"p": 0.2, "candidates": [0.2, 0.0, 1.0]},
            {"p": 0.7, "candidates": [0.0, 0.7, 0.4]},
            {"p": 0.1, "candidates": [-1.0, 0.2, 2.2]},
        ],
        "mistakes": {
            "that is the candidate nearest to p: multiply by the score first": fewest(lambda p, b: abs(b - p)),
            "no baseline is not always the least noisy": fewest(lambda p, b: abs(b)),
            "the two outcomes are not equally likely": fewest(lambda p, b: ((1 - b) * (1 - p)) ** 2 + (b * p) ** 2),
            "R - b has the same variance for every b: multiply by the score first": lambda p, candidates: candidates[0],
        },
    },
}
