"""Right answers and usual mistakes of lesson 19's exercises; `kit.check` explains the keys."""

import torch
from torch import Tensor

from algorithms import rloo
from lessons.checks.lesson_01 import as_noisy_as_none


def of_the_others(rewards: Tensor, weights: Tensor) -> Tensor:
    """R less the mean reward of the other completions of the group, weighted."""
    total, weight = (x.sum(dim=1, keepdim=True) - x for x in (weights * rewards, weights))
    return rewards - total / weight


R, LENGTHS = (
    torch.tensor([[1.0, 0, 0, 1], [0, 0, 0, 1]]),
    torch.tensor([[24.0, 6, 5, 30], [4, 8, 5, 20]]),
)

CHECKS = {
    "19.1": {
        "expected": as_noisy_as_none,
        "inputs": [{"p": p} for p in (0.3, 0.5, 0.9)],
        "mistakes": {
            "there the best b falls below p: is 0 already nearer to it than p?": lambda p: 1.0,
            "that is where b = 1 is as noisy as b = p": lambda p: p / (1 + p),
            "p and q are exchanged": lambda p: (1 + p) / p,
            "that is a+ / a-": lambda p: 1 / as_noisy_as_none(p),
        },
    },
    "19.2": {
        "expected": of_the_others,
        "inputs": [{"rewards": R, "lengths": LENGTHS}],
        "mistakes": {
            "that is OPO itself: the own reward is in its baseline": lambda rewards, lengths: (
                rewards - (lengths * rewards).sum(1, True) / lengths.sum(1, True)
            ),
            "that is leave-one-out: the lengths do not weigh": (
                lambda rewards, lengths: rloo.compute_advantages(rewards=rewards)
            ),
            "a long completion is to weigh more, not less": (
                lambda rewards, lengths: of_the_others(rewards, 1 / lengths)
            ),
        },
    },
    "19.3": {
        "expected": lambda p, difference: (1 - p) * difference,
        "inputs": [{"p": p, "difference": torch.tensor([2.0, -1.0])} for p in (0.25, 0.9)],
        "mistakes": {
            "a silent group moves nothing only if its mean is subtracted": (
                lambda p, difference: 0 * difference
            ),
            "that is the mean score of a wrong completion, but for its sign": (
                lambda p, difference: p * difference
            ),
            "that is the gradient of p: the mean over all groups": (
                lambda p, difference: p * (1 - p) * difference
            ),
        },
    },
}
