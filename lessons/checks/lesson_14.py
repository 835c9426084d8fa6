"""Right answers and usual mistakes of lesson 14's exercises; `kit.check` explains the keys."""

from collections.abc import Callable

import torch
from torch import Tensor

from lessons.checks.lesson_04 import gradient


def gradient_of(loss: Callable) -> Callable:
    """The function that gives the gradient of a loss (logps, ...) with respect to logps, or what
    `gradient` makes of something that is no loss."""

    def answer(logps: Tensor, *others) -> Tensor | str:
        logps = logps.clone().requires_grad_()
        return gradient(loss(logps, *others), logps)

    return answer


def weighted(weight: Callable) -> Callable:
    """The gradient of minus the mean of weight(ratio, cap or eps, sign of A) A log pi."""

    def loss(logps: Tensor, old_logps: Tensor, A: float, bound: float) -> Tensor:
        return -(weight((logps - old_logps).exp(), bound, 1 if A > 0 else -1) * A * logps).mean()

    return gradient_of(loss)


def detached(logps: Tensor, old_logps: Tensor, A: float, bound: float) -> str:
    return "detached"


def geometric_mean(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """(G, 1): the ratio of each completion, as GSPO defines it."""
    return ((log_ratio * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)).exp()


def beyond(ratio: Tensor, A: Tensor, low: float, high: float) -> Tensor:
    return torch.where(A > 0, ratio > 1 + high, ratio < 1 - low)


def stopped(log_ratio: Tensor, mask: Tensor, A: Tensor, low: float, high: float) -> Tensor:
    """The tokens that GSPO stops: it decides by the geometric mean of a completion's ratios."""
    return beyond(geometric_mean(log_ratio, mask), A, low, high) & mask


def either_side(log_ratio: Tensor, mask: Tensor, A: Tensor, low: float, high: float) -> Tensor:
    ratio = geometric_mean(log_ratio, mask)
    return ((ratio > 1 + high) | (ratio < 1 - low)) & mask


def other_side(log_ratio: Tensor, mask: Tensor, A: Tensor, low: float, high: float) -> Tensor:
    ratio = geometric_mean(log_ratio, mask)
    return torch.where(A > 0, ratio < 1 - low, ratio > 1 + high) & mask


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
moved, far = torch.tensor([0.3, -0.3, 0.1, -0.1]), torch.tensor([1.5, -0.3, 0.4, -1.5])

CHECKS = {
    "14.1": {
        "expected": weighted(lambda ratio, cap, _: ratio.detach().clamp(max=cap)),
        "inputs": [{"logps": old + far, "old_logps": old, "A": A, "cap": 2.0} for A in (1.5, -0.5)],
        "mistakes": {
            "return one number: the mean of the tokens' losses": gradient_of(
                lambda logps, old_logps, A, cap: logps
            ),
            "the weight is a constant: detach it": (
                weighted(lambda ratio, cap, _: ratio.clamp(max=cap))
            ),
            "a clipped ratio has no gradient; the weight must multiply log π": gradient_of(
                lambda logps, old_logps, A, cap: (
                    -((logps - old_logps).exp().clamp(max=cap) * A).mean()
                )
            ),
            "the cap is missing": weighted(lambda ratio, cap, _: ratio.detach()),
            "a loss is minimised: minus": (
                weighted(lambda ratio, cap, _: -ratio.detach().clamp(max=cap))
            ),
            "no gradient reaches the policy: everything in this loss is detached": detached,
        },
    },
    "14.2": {
        "expected": stopped,
        "inputs": [
            {"log_ratio": log_ratios, "mask": mask, "A": signs * sign, "low": 0.03, "high": 0.04}
            for sign in (1.0, -1.0)
        ],
        "mistakes": {
            "the mean of the log-ratios, not their sum": lambda log_ratio, mask, A, low, high: (
                beyond((log_ratio * mask).sum(dim=1, keepdim=True).exp(), A, low, high) & mask
            ),
            "a mean over the tokens, not over the padding": lambda log_ratio, mask, A, low, high: (
                beyond(log_ratio.mean(dim=1, keepdim=True).exp(), A, low, high) & mask
            ),
            "GSPO decides for a completion as a whole": lambda log_ratio, mask, A, low, high: (
                beyond(log_ratio.exp(), A, low, high) & mask
            ),
            "only where its own push has moved it, on one side of the range": either_side,
            "the sides are exchanged: for A > 0 above the range, for A < 0 below": other_side,
            "padding is no token: the mask": lambda log_ratio, mask, A, low, high: beyond(
                geometric_mean(log_ratio, mask), A, low, high
            ).expand_as(mask),
            "for each token of the completion: (G, T), not (G, 1)": (
                lambda log_ratio, mask, A, low, high: beyond(
                    geometric_mean(log_ratio, mask), A, low, high
                )
            ),
        },
    },
    "14.3": {
        "expected": weighted(lambda ratio, eps, sign: sign * (ratio - 1) <= eps),
        "inputs": [
            {"logps": old + moved, "old_logps": old, "A": A, "eps": 0.2} for A in (1.5, -0.5)
        ],
        "mistakes": {
            "the ratio still weights the kept tokens (GRPO)": weighted(
                lambda ratio, eps, sign: (sign * (ratio - 1) <= eps) * ratio.detach()
            ),
            "a token is stopped on the side of A's sign only": (
                weighted(lambda ratio, eps, sign: (ratio - 1).abs() <= eps)
            ),
            "a loss is minimised: minus": (
                weighted(lambda ratio, eps, sign: -1.0 * (sign * (ratio - 1) <= eps))
            ),
            "no gradient reaches the policy: everything in this loss is detached": detached,
        },
    },
}
