"""What the exercises of lesson 19 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable

import torch
from torch import Tensor

from lessons.checks.lesson_01 import as_noisy_as_none


def of_the_others(weight: Callable[[Tensor], Tensor], own: int = 0) -> Callable[[Tensor, Tensor], Tensor]:
    """R less the mean reward of the other completions of the group (own = 1: of all), weighted by weight(lengths)."""

    def advantages(rewards: Tensor, lengths: Tensor) -> Tensor:
        w = weight(lengths)
        total, weights = (x.sum(dim=1, keepdim=True) - (1 - own) * x for x in (w * rewards, w))
        return rewards - total / weights

    return advantages


R, LENGTHS = torch.tensor([[1.0, 0, 0, 1], [0, 0, 0, 1]]), torch.tensor([[24.0, 6, 5, 30], [4, 8, 5, 20]])

CHECKS = {
    "19.1": {
        "expected": as_noisy_as_none,
        "inputs": [{"p": p} for p in (0.3, 0.5, 0.9)],
        "mistakes": {
            "there the best b falls below p: is 0 already nearer to it than p?": lambda p: 1.0,
            "that is where b = 1 is as noisy as b = p": lambda p: p / (1 + p),
            "that is a+ / a-": lambda p: 1 / as_noisy_as_none(p),
            "p and q are exchanged": lambda p: as_noisy_as_none(1 - p),
        },
    },
    "19.2": {
        "expected": of_the_others(lambda lengths: lengths),
        "inputs": [{"rewards": R, "lengths": LENGTHS}],
        "mistakes": {
            "that is OPO itself: the own reward is in its baseline": of_the_others(lambda lengths: lengths, own=1),
            "that is leave-one-out: the lengths do not weigh": of_the_others(torch.ones_like),
            "a long completion is to weigh more, not less": of_the_others(lambda lengths: 1 / lengths),
        },
    },
    "19.3": {
        "expected": lambda p, difference: (1 - p) * difference,
        "inputs": [{"p": p, "difference": torch.tensor([2.0, -1.0])} for p in (0.25, 0.9)],
        "mistakes": {
            "a silent group moves nothing only if its mean is subtracted": lambda p, difference: 0 * difference,
            "that is the mean score of a wrong completion, but for its sign": lambda p, difference: p * difference,
            "that is the gradient of p: the mean over all groups": lambda p, difference: p * (1 - p) * difference,
        },
    },
}
