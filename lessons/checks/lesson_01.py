"""What the exercises of lesson 1 are checked against. `kit.check` explains the keys."""

import numpy as np
import torch
from torch import Tensor


def score(logits: np.ndarray, token: int) -> Tensor:
    return (torch.arange(len(logits)) == token).double() - softmax(logits)


def softmax(logits: np.ndarray) -> Tensor:
    return torch.tensor(logits).softmax(dim=0)


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
    },
    "1.2": {
        "expected": as_noisy_as_none,
        "inputs": [{"p": 0.1}, {"p": 0.46}, {"p": 0.93}],
    },
    "1.3": {
        "expected": up_to_eos,
        "inputs": [
            {
                "ids": torch.tensor(
                    [[0, 1, 2, 2, 2], [0, 2, 2, 2, 2], [2, 2, 2, 2, 2], [0, 1, 1, 0, 1]]
                ),
                "eos": 2,
            },
            {
                "ids": torch.tensor([[1, 1, 2, 0, 0], [1, 2, 0, 0, 0], [1, 1, 1, 1, 1]]),
                "eos": 2,
            },  # other padding
        ],
    },
}
