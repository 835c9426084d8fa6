"""Right answers and usual mistakes of lesson 1's exercises; `kit.check` explains the keys."""

import numpy as np
import torch
from torch import Tensor


def is_token(logits: np.ndarray, token: int) -> Tensor:
    return (torch.arange(len(logits)) == token).double()


def softmax(logits: np.ndarray) -> Tensor:
    return torch.tensor(logits).softmax(dim=0)


def score(logits: np.ndarray, token: int) -> Tensor:
    return is_token(logits, token) - softmax(logits)


def as_noisy_as_none(p: float) -> float:
    """The w at which p (1 - b)^2 + (1 - p) b^2 w, the mean of |(R - b) s|^2, is the same for b = p
    as for b = 0."""
    return (p - p * (1 - p) ** 2) / ((1 - p) * p**2)


def up_to_eos(ids: Tensor, eos: int) -> Tensor:
    is_eos = (ids == eos).int()
    return is_eos.cumsum(dim=1) - is_eos == 0


CHECKS = {
    "1.1": {
        "expected": score,
        "inputs": [
            {"logits": np.array([0.0, 1.0, -1.0]), "token": 1},
            {"logits": np.array([2.0, 0.5, 0.0, 1.0]), "token": 3},
        ],
        "mistakes": {
            "the sign: this is the gradient of the cross-entropy, minus the log-probability": (
                lambda logits, token: -score(logits, token)
            ),
            "the 1 belongs to the sampled token's logit only": (
                lambda logits, token: 1 - softmax(logits)
            ),
            "that is the gradient of the probability": (
                lambda logits, token: softmax(logits)[token] * score(logits, token)
            ),
            "the other logits matter too, in the softmax": (
                lambda logits, token: is_token(logits, token) * score(logits, token)
            ),
        },
    },
    "1.2": {
        "expected": as_noisy_as_none,
        "inputs": [{"p": 0.1}, {"p": 0.46}, {"p": 0.93}],
        "mistakes": {
            "there b = p is the best baseline; it is as noisy as none where it is twice the best": (
                lambda p: 1.0
            ),
            "right and wrong completions are not equally likely": lambda p: (2 - p) / p,
            "w is the ratio of the squares, and not of the lengths": (
                lambda p: as_noisy_as_none(p) ** 0.5
            ),
            "the other way round: w is wrong over right": lambda p: 1 / as_noisy_as_none(p),
        },
    },
    "1.3": {
        "bug": lambda ids, eos: ids != eos,
        "expected": up_to_eos,
        "inputs": [
            {
                "ids": torch.tensor(
                    [[0, 1, 2, 2, 2], [0, 2, 2, 2, 2], [2, 2, 2, 2, 2], [0, 1, 1, 0, 1]]
                ),
                "eos": 2,
            },
            {  # other padding
                "ids": torch.tensor([[1, 1, 2, 0, 0], [1, 2, 0, 0, 0], [1, 1, 1, 1, 1]]),
                "eos": 2,
            },
        ],
        "mistakes": {
            "the EOS itself is still left out": lambda ids, eos: (ids == eos).cumsum(dim=1) == 0,
            "after the first EOS nothing counts, whatever its id": (
                lambda ids, eos: (ids == eos).cumsum(dim=1) <= 1
            ),
        },
    },
}
