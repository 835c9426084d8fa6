"""What the exercises of lesson 0 are checked against. `kit.check` explains the keys."""

import math
from collections.abc import Callable

import torch


def p_of(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def by_autograd(z: float, R: int, b: float, rate: float) -> float:
    """One step of gradient descent on minus the advantage times the log-probability of what was sampled."""
    leaf = torch.tensor(z, dtype=torch.float64, requires_grad=True)
    p = leaf.sigmoid()
    loss = -(R - b) * torch.log(p if R else 1 - p)
    loss.backward()
    return (leaf - rate * leaf.grad).item()


def step_along(direction: Callable, advantage: Callable = lambda R, b: R - b) -> Callable:
    """The update that would take `direction`(p, R) for the score."""
    return lambda z, R, b, rate: z + rate * advantage(R, b) * direction(p_of(z), R)


def score(p: float, R: int) -> float:
    return 1 - p if R else -p


def variance(p: float, b: float) -> float:
    """Of (R - b) s, by listing both outcomes."""
    outcomes = [(p, (1 - b) * score(p, 1)), (1 - p, (0 - b) * score(p, 0))]
    mean = sum(share * g for share, g in outcomes)
    return sum(share * (g - mean) ** 2 for share, g in outcomes)


def fewest(noise: Callable) -> Callable:
    """The function that picks the candidate b with the lowest of(p, b)."""
    return lambda p, candidates: min(candidates, key=lambda b: noise(p, b))


CHECKS = {
    "0.1": {
        "expected": by_autograd,
        "inputs": [
            {"z": 0.4, "R": 1, "b": 0.0, "rate": 1.0},
            {"z": 0.4, "R": 0, "b": 0.5, "rate": 0.5},
            {"z": -1.2, "R": 1, "b": 0.25, "rate": 2.0},
            {"z": -1.2, "R": 0, "b": -1.0, "rate": 0.1},
        ],
        "mistakes": {
            "when the wrong completion was sampled, it is the log-probability of the wrong one that counts": step_along(
                lambda p, R: 1 - p
            ),
            "that is the slope of the probability; the logarithm divides it by the probability": step_along(
                lambda p, R: p * (1 - p) * (1 if R else -1)
            ),
            "the update goes down the hill: a positive advantage must make what was sampled more probable": (
                step_along(lambda p, R: -score(p, R))
            ),
            "the baseline is missing": step_along(score, lambda R, b: R),
            "multiply by the score: what was improbable moves further than what was probable": step_along(
                lambda p, R: 1 if R else -1
            ),
        },
    },
    "0.2": {
        "expected": fewest(variance),
        "inputs": [
            {"p": 0.9, "candidates": [0.9, 0.5, 0.0]},
            {"p": 0.2, "candidates": [0.2, 0.0, 1.0]},
            {"p": 0.7, "candidates": [0.0, 0.7, 0.4]},
            {"p": 0.5, "candidates": [0.1, 0.5, 0.8]},
            {"p": 0.1, "candidates": [-1.0, 0.2, 2.2]},
        ],
        "mistakes": {
            "that is the candidate nearest to p: it makes the advantages small, not their products with the scores": (
                fewest(lambda p, b: abs(b - p))
            ),
            "no baseline is not always the least noisy": fewest(lambda p, b: abs(b)),
            "the two outcomes are not equally likely": fewest(
                lambda p, b: ((1 - b) * score(p, 1)) ** 2 + (b * score(p, 0)) ** 2
            ),
            "that is the noisiest": lambda p, candidates: max(candidates, key=lambda b: variance(p, b)),
            "R - b has the same variance for every b: multiply by the score first": lambda p, candidates: candidates[0],
        },
    },
}
