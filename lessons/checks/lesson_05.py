"""What the exercises of lesson 5 are checked against. `kit.check` explains the keys."""

import torch
from torch import Tensor


def push_on_shared(long_right: float, long_wrong: float, L1: int, L2: int) -> float:
    """(1 / L2 - 1 / L1) times the difference of the variances of "long" in the two classes."""
    return (1 / L2 - 1 / L1) * (long_right * (1 - long_right) - long_wrong * (1 - long_wrong))


def token_mean(f: Tensor, mask: Tensor, size: int = 1) -> Tensor:
    """Over the tokens of the whole batch, for any `size`."""
    return (f * mask).sum() / mask.sum()


terms = torch.tensor([[1.0, 2, 9, 9], [3, 9, 9, 9], [1, 1, 1, 5], [0.5, 9, 9, 9]]).double()
real = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]).bool()

CHECKS = {
    "5.1": {
        "expected": [[-1, 0, -1], [0, 1, 1]],
    },
    "5.2": {
        "expected": push_on_shared,
        "inputs": [
            {"long_right": 0.1, "long_wrong": 0.5, "L1": 5, "L2": 50},
            {"long_right": 0.6, "long_wrong": 0.2, "L1": 4, "L2": 10},
        ],
    },
    "5.3": {
        "expected": token_mean,
        "inputs": [{"f": terms, "mask": real, "size": size} for size in (1, 2, 4)],
    },
}
