"""What the exercises of lesson 19 are checked against. `kit.check` explains the keys."""

import torch
from torch import Tensor

from lessons.checks.lesson_01 import as_noisy_as_none


def of_the_others(rewards: Tensor, lengths: Tensor) -> Tensor:
    """R less the mean reward of the other completions of the group, weighted by their lengths."""
    total, weights = (x.sum(dim=1, keepdim=True) - x for x in (lengths * rewards, lengths))
    return rewards - total / weights


R, LENGTHS = (
    torch.tensor([[1.0, 0, 0, 1], [0, 0, 0, 1]]),
    torch.tensor([[24.0, 6, 5, 30], [4, 8, 5, 20]]),
)

CHECKS = {
    "19.1": {
        "expected": as_noisy_as_none,
        "inputs": [{"p": p} for p in (0.3, 0.5, 0.9)],
    },
    "19.2": {
        "expected": of_the_others,
        "inputs": [{"rewards": R, "lengths": LENGTHS}],
    },
    "19.3": {
        "expected": lambda p, difference: (1 - p) * difference,
        "inputs": [{"p": p, "difference": torch.tensor([2.0, -1.0])} for p in (0.25, 0.9)],
    },
}
