"""What the exercises of lesson 5 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable

import torch
from torch import Tensor


def push_on_shared(long_right: float, long_wrong: float, L1: int, L2: int, sign: int = -1) -> float:
    """(1 / L2 - 1 / L1) times the difference of the variances of "long" in the two classes, or their sum."""
    return (1 / L2 - 1 / L1) * (variance(long_right) + sign * variance(long_wrong))


def variance(share: float) -> float:
    return share * (1 - share)


def token_mean(f: Tensor, mask: Tensor, size: int = 1) -> Tensor:
    """Over the tokens of the whole batch, for any `size`."""
    return (f * mask).sum() / mask.sum()


def mean_of(average: Callable) -> Callable:
    """What micro-batches give if each is averaged by `average` and then all of them are."""
    return lambda f, mask, size: torch.stack([average(*part) for part in zip(f.split(size), mask.split(size))]).mean()


terms = torch.tensor([[1.0, 2, 9, 9], [3, 9, 9, 9], [1, 1, 1, 5], [0.5, 9, 9, 9]]).double()
real = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]).bool()

CHECKS = {
    "5.1": {
        "expected": [[-1, 0, -1], [0, 1, 1]],
        "mistakes": {
            "a constant pushes the tokens of short and long completions alike": [[-1, 1, -1], [-1, 1, 1]],
            "where A < 0, the tokens of the short completion are lowered hardest": [[-1, 0, -1], [0, -1, -1]],
            "the two rows are exchanged": [[0, 1, 1], [-1, 0, -1]],
            "most completions are wrong, but that says only how the two classes are weighted": [[-1, 0, 1], [0, 1, 1]],
        },
    },
    "5.2": {
        "expected": push_on_shared,
        "inputs": [
            {"long_right": 0.1, "long_wrong": 0.5, "L1": 5, "L2": 50},
            {"long_right": 0.6, "long_wrong": 0.2, "L1": 4, "L2": 10},
        ],
        "mistakes": {
            "the sign: right completions are pushed up": lambda *x: -push_on_shared(*x),
            "the two classes are pushed with opposite signs": lambda *x: -push_on_shared(*x, sign=1),
            "the score of a short completion is not 0 either": lambda P, Q, L1, L2: (variance(P) - variance(Q)) / L2,
        },
    },
    "5.3": {
        "expected": token_mean,
        "inputs": [{"f": terms, "mask": real, "size": size} for size in (1, 2, 4)],
        "bug": mean_of(token_mean),
        "mistakes": {
            "the sum of the means: divide by all tokens": lambda *x: mean_of(token_mean)(*x) * len(x[0]) / x[2],
            "padding is counted as tokens": mean_of(lambda f, mask: (f * mask).mean()),
            "divided twice: all tokens of the batch are enough": lambda *x: token_mean(*x) * x[2] / len(x[0]),
        },
    },
}
