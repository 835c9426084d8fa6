"""What the exercises of lesson 14 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable

import torch
from torch import Tensor

from lessons.checks.lesson_04 import gradient


def gradient_of(loss: Callable) -> Callable:
    """The function that gives the gradient of a loss (logps, ...) with respect to logps; what is no
    loss, as it is."""

    def answer(logps: Tensor, *others) -> Tensor | str:
        logps = logps.clone().requires_grad_()
        return gradient(loss(logps, *others), logps)

    return answer


def weighted(weight: Callable) -> Callable:
    """The gradient of minus the mean of weight(ratio, cap or eps, sign of A) A log pi."""

    def loss(logps: Tensor, old_logps: Tensor, A: float, bound: float) -> Tensor:
        return -(weight((logps - old_logps).exp(), bound, 1 if A > 0 else -1) * A * logps).mean()

    return gradient_of(loss)


def stopped(log_ratio: Tensor, mask: Tensor, A: Tensor, low: float, high: float) -> Tensor:
    """What GSPO stops: by the geometric mean of a completion's ratios."""
    ratio = ((log_ratio * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)).exp()
    return torch.where(A > 0, ratio > 1 + high, ratio < 1 - low) & mask


old = torch.tensor([-2.0, -0.5, -3.0, -1.0]).double()
log_ratios = torch.tensor(
    [
        [0.3, -0.24, 9.0],
        [0.02, 0.02, 0.02],
        [-0.3, 0.31, -0.3],
        [-0.04, 9.0, 9.0],
        [0.05, 0.05, 9.0],
    ]
)
mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 1], [1, 0, 0], [1, 1, 0]]).bool()
signs = torch.tensor([[1.0], [-1.0], [-1.0], [1.0], [1.0]])

CHECKS = {
    "14.1": {
        "expected": weighted(lambda ratio, cap, _: ratio.detach().clamp(max=cap)),
        "inputs": [
            {
                "logps": old + torch.tensor([1.5, -0.3, 0.4, -1.5]),
                "old_logps": old,
                "A": A,
                "cap": 2.0,
            }
            for A in (1.5, -0.5)
        ],
    },
    "14.2": {
        "expected": stopped,
        "inputs": [
            {"log_ratio": log_ratios, "mask": mask, "A": signs * sign, "low": 0.03, "high": 0.04}
            for sign in (1.0, -1.0)
        ],
    },
    "14.3": {
        "expected": weighted(lambda ratio, eps, sign: sign * (ratio - 1) <= eps),
        "inputs": [
            {
                "logps": old + torch.tensor([0.3, -0.3, 0.1, -0.1]),
                "old_logps": old,
                "A": A,
                "eps": 0.2,
            }
            for A in (1.5, -0.5)
        ],
    },
}
