"""What the exercises of lesson 1 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def score(logits: np.ndarray, token: int) -> Tensor:
    z = torch.tensor(logits, requires_grad=True)
    return torch.autograd.grad(z.log_softmax(dim=0)[token], z)[0]


def variance(b: float, pi: np.ndarray, R: np.ndarray, s: np.ndarray) -> float:
    """The mean squared distance of (R - b) s from its mean, by listing."""
    g = (R - b)[:, None] * s
    return pi @ ((g - pi @ g) ** 2).sum(axis=1)


def lowest_point(pi: np.ndarray, R: np.ndarray, s: np.ndarray) -> float:
    """Of the parabola through the variance at three places."""
    square, linear, _ = np.polyfit([-1, 0, 1], [variance(b, pi, R, s) for b in (-1, 0, 1)], 2)
    return -linear / (2 * square)


def weighted_by(weight: Callable) -> Callable:
    """The function that gives the mean reward, weighted with pi and weight(s)."""
    return lambda pi, R, s: pi @ (R * weight(s)) / (pi @ weight(s))


def squared_length(s: np.ndarray) -> np.ndarray:
    return (s**2).sum(axis=1)


def up_to_eos(ids: Tensor, eos: int) -> Tensor:
    ends = [row.index(eos) + 1 if eos in row else len(row) for row in ids.tolist()]
    return torch.tensor([[t < end for t in range(ids.shape[1])] for end in ends])


def centred(pi: np.ndarray, R: np.ndarray, s: np.ndarray) -> dict:
    """With scores that have mean 0, as every policy's have."""
    return {"pi": pi, "R": R, "s": s - pi @ s}


rng = np.random.default_rng(1)
policies = [
    centred(rng.dirichlet(np.ones(6)), np.array([1.0, 0, 1, 0, 0, 1]), rng.normal(size=(6, 4))),
    centred(np.array([0.9, 0.1]), np.array([1.0, 0.0]), np.array([[0.1], [-0.9]])),
    centred(np.array([0.5, 0.3, 0.2]), np.array([0.0, 1.0, 2.0]), np.array([[1.0, 0], [0, 2], [3, 1]])),
]

CHECKS = {
    "1.1": {
        "expected": score,
        "inputs": [
            {"logits": np.array([0.0, 1.0, -1.0]), "token": 1},
            {"logits": np.array([2.0, 0.5, 0.0, 1.0]), "token": 3},
        ],
        "mistakes": {
            "the sign: this is the gradient of the cross-entropy, minus the log-probability": lambda **given: (
                -score(**given)
            ),
            "that is the gradient of the probability; the logarithm divides it by the probability": (
                lambda logits, token: score(logits, token) * torch.tensor(logits).softmax(dim=0)[token]
            ),
            "the 1 belongs to the sampled token's logit only": lambda logits, token: (
                1 - torch.tensor(logits).softmax(dim=0)
            ),
            "the other logits matter too: they are in the denominator of the softmax": lambda logits, token: (
                score(logits, token) * (torch.arange(len(logits)) == token)
            ),
            "that is the first term alone; the denominator of the softmax depends on the logits too": (
                lambda logits, token: (torch.arange(len(logits)) == token).double()
            ),
        },
    },
    "1.2": {
        "expected": lowest_point,
        "inputs": policies,
        "mistakes": {
            "that is p, the mean reward, and does not know the scores": lambda pi, R, s: pi @ R,
            "step 4 has the square of the score's length, not the length": weighted_by(
                lambda s: np.linalg.norm(s, axis=1)
            ),
            "the derivative has a second term with b in it: solve for b": lambda pi, R, s: pi @ (R * squared_length(s)),
            "completions are not equally likely: average with pi": lambda pi, R, s: (
                R @ squared_length(s) / squared_length(s).sum()
            ),
            "twice too large: the derivative of (R - b)^2 is -2 (R - b)": lambda pi, R, s: 2 * lowest_point(pi, R, s),
        },
    },
    "1.3": {
        "expected": up_to_eos,
        "inputs": [
            {"ids": torch.tensor([[0, 1, 2, 2, 2], [0, 2, 2, 2, 2], [2, 2, 2, 2, 2], [0, 1, 1, 0, 1]]), "eos": 2},
            {"ids": torch.tensor([[1, 1, 2, 0, 0], [1, 2, 0, 0, 0], [1, 1, 1, 1, 1]]), "eos": 2},  # other padding
        ],
        "bug": lambda ids, eos: ids != eos,
        "mistakes": {
            "the EOS itself is still left out": lambda ids, eos: up_to_eos(ids, eos) & (ids != eos),
            "this trains the padding too": lambda ids, eos: torch.ones_like(ids, dtype=torch.bool),
            "after the first EOS nothing counts, whatever its id": lambda ids, eos: (ids == eos).cumsum(dim=1) <= 1,
            "an EOS counts only once: the padding behind it is EOS too": lambda ids, eos: (
                up_to_eos(ids, eos) | (ids == eos)
            ),
        },
    },
}
