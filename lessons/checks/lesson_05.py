"""Right answers and usual mistakes of lesson 5's exercises; `kit.check` explains the keys."""

import torch
from torch import Tensor


def push_on_shared(long_right: float, long_wrong: float, L1: int, L2: int) -> float:
    """(1 / L2 - 1 / L1) times the difference of the variances of "long" in the two classes."""
    return (1 / L2 - 1 / L1) * (long_right * (1 - long_right) - long_wrong * (1 - long_wrong))


def token_mean(f: Tensor, mask: Tensor, size: int = 1) -> Tensor:
    """Mean over the tokens of the whole batch, for any `size`."""
    return (f * mask).sum() / mask.sum()


def sum_of_means(f: Tensor, mask: Tensor, size: int) -> Tensor:
    return sum(token_mean(*part) for part in zip(f.split(size), mask.split(size)))


terms = torch.tensor([[1.0, 2, 9, 9], [3, 9, 9, 9], [1, 1, 1, 5], [0.5, 9, 9, 9]]).double()
real = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]).bool()

CHECKS = {
    "5.1": {
        "expected": [[-1, 0, -1], [0, 1, 1]],
        "mistakes": {
            "a constant pushes the tokens of short and long completions alike": (
                [[-1, 1, -1], [-1, 1, 1]]
            ),
            "where A < 0, the tokens of the short completion are lowered hardest": (
                [[-1, 0, -1], [0, -1, -1]]
            ),
            "the two rows are exchanged": [[0, 1, 1], [-1, 0, -1]],
            "most completions are wrong, but that says only how the two classes are weighted": (
                [[-1, 0, 1], [0, 1, 1]]
            ),
        },
    },
    "5.2": {
        "expected": push_on_shared,
        "inputs": [
            {"long_right": 0.1, "long_wrong": 0.5, "L1": 5, "L2": 50},
            {"long_right": 0.6, "long_wrong": 0.2, "L1": 4, "L2": 10},
        ],
        "mistakes": {
            "the sign: right completions are pushed up": (
                lambda long_right, long_wrong, L1, L2: (
                    -push_on_shared(long_right, long_wrong, L1, L2)
                )
            ),
            "the two classes are pushed with opposite signs": (
                lambda long_right, long_wrong, L1, L2: (
                    (1 / L1 - 1 / L2)
                    * (long_right * (1 - long_right) + long_wrong * (1 - long_wrong))
                )
            ),
            "the score of a short completion is not 0 either": (
                lambda long_right, long_wrong, L1, L2: (
                    (long_right * (1 - long_right) - long_wrong * (1 - long_wrong)) / L2
                )
            ),
        },
    },
    "5.3": {
        "bug": lambda f, mask, size: sum_of_means(f, mask, size) * size / len(f),
        "expected": token_mean,
        "inputs": [{"f": terms, "mask": real, "size": size} for size in (1, 2, 4)],
        "mistakes": {
            "the sum of the means: divide by all tokens": sum_of_means,
            "padding is counted as tokens": lambda f, mask, size: (f * mask).mean(),
            "divided twice: all tokens of the batch are enough": (
                lambda f, mask, size: token_mean(f, mask) * size / len(f)
            ),
        },
    },
}
