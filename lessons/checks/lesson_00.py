"""What the exercises of lesson 0 are checked against. `kit.check` explains the keys."""

from math import exp


def moved(z: float, R: int, b: float, rate: float) -> float:
    return z + rate * (R - b) * (R - 1 / (1 + exp(-z)))


def variance(p: float, b: float) -> float:
    """Of (R - b) times the score, R - p, which has two values."""
    return p * (1 - p) * ((1 - b) * (1 - p) - b * p) ** 2


CHECKS = {
    "0.1": {
        "expected": moved,
        "inputs": [
            {"z": 0.4, "R": 1, "b": 0.0, "rate": 1.0},
            {"z": 0.4, "R": 0, "b": 0.5, "rate": 0.5},
            {"z": -1.2, "R": 1, "b": 0.25, "rate": 2.0},
        ],
    },
    "0.2": {
        "expected": lambda p, candidates: min(candidates, key=lambda b: variance(p, b)),
        "inputs": [
            {"p": 0.9, "candidates": [0.9, 0.5, 0.0]},
            {"p": 0.2, "candidates": [0.2, 0.0, 1.0]},
            {"p": 0.7, "candidates": [0.0, 0.7, 0.4]},
            {"p": 0.1, "candidates": [-1.0, 0.2, 2.2]},
        ],
    },
}
