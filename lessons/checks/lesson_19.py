"""What the exercises of lesson 19 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable

import torch
from torch import Tensor


def quieter_from(p: float, tolerance: float = 1e-9) -> float:
    """The least a- / a+ from which b = 0 is less noisy than b = p, by bisection."""

    def excess(ratio: float) -> float:
        noises = [p * (1 - b) ** 2 + (1 - p) * b**2 * ratio for b in (0.0, p)]
        return noises[0] - noises[1]

    low, high = 0.0, 1e6
    while high - low > tolerance * high:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


def of_the_others(weight: Callable[[Tensor], Tensor], own: bool = False) -> Callable[[Tensor, Tensor], Tensor]:
    """R less the mean reward of the other completions of the group (or of all), weighted by weight(lengths); in
    loops."""

    def advantages(rewards: Tensor, lengths: Tensor) -> Tensor:
        A, w = torch.zeros_like(rewards), weight(lengths)
        for g, group in enumerate(rewards):
            for i, reward in enumerate(group):
                others = [j for j in range(len(group)) if own or j != i]
                A[g, i] = reward - sum(w[g, j] * group[j] for j in others) / sum(w[g, j] for j in others)
        return A

    return advantages


R, LENGTHS = torch.tensor([[1.0, 0, 0, 1], [0, 0, 0, 1]]), torch.tensor([[24.0, 6, 5, 30], [4, 8, 5, 20]])

CHECKS = {
    "19.1": {
        "expected": quieter_from,
        "inputs": [{"p": p} for p in (0.3, 0.5, 0.9)],
        "mistakes": {
            "there the best b falls below p: is 0 already nearer to it than p?": lambda p: 1.0,
            "that is where b = 1 is as noisy as b = p": lambda p: p / (1 + p),
            "that is a+ / a-": lambda p: 1 / quieter_from(p),
            "p and q are exchanged": lambda p: quieter_from(1 - p),
        },
    },
    "19.2": {
        "expected": of_the_others(lambda lengths: lengths),
        "inputs": [{"rewards": R, "lengths": LENGTHS}],
        "mistakes": {
            "that is OPO itself: the own reward is in its baseline": of_the_others(lambda lengths: lengths, own=True),
            "that is leave-one-out: the lengths do not weigh": of_the_others(torch.ones_like),
            "a long completion is to weigh more, not less": of_the_others(lambda lengths: 1 / lengths),
        },
    },
    "19.3": {
        "expected": lambda p, difference: (1 - p) * difference,
        "inputs": [{"p": p, "difference": torch.tensor([2.0, -1.0])} for p in (0.25, 0.9)],
        "mistakes": {
            "a group without disagreement moves nothing only if its mean is subtracted": lambda p, difference: (
                0 * difference
            ),
            "that is the mean score of a wrong completion, but for its sign": lambda p, difference: p * difference,
            "that is the gradient of p: the mean over all groups": lambda p, difference: p * (1 - p) * difference,
            "right completions are the rarer, the more there is to learn from one": lambda p, difference: difference,
        },
    },
}
