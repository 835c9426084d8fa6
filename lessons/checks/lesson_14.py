"""What the exercises of lesson 14 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable

import torch
from torch import Tensor

from lessons.checks.lesson_04 import NO_GRADIENT, gradient


def gradient_of(loss: Callable) -> Callable:
    """The function that gives the gradient of a loss (logps, ...) with respect to logps; what is no loss, as it is."""

    def answer(logps: Tensor, *others) -> Tensor | str:
        logps = logps.clone().requires_grad_()
        return gradient(loss(logps, *others), logps)

    return answer


def weighted(weight: Callable) -> Callable:
    """The gradient of minus the mean of weight(ratio, cap or eps, sign of A) A log pi."""

    def loss(logps: Tensor, old_logps: Tensor, A: float, bound: float) -> Tensor:
        return -(weight((logps - old_logps).exp(), bound, 1 if A > 0 else -1) * A * logps).mean()

    return gradient_of(loss)


def geometric_mean(log_ratio: Tensor, mask: Tensor) -> Tensor:
    return ((log_ratio * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)).exp()


def stopped(ratio: Callable = geometric_mean) -> Callable:
    """What GSPO stops, if its ratio is that of `ratio`(log_ratio, mask)."""

    def answer(log_ratio: Tensor, mask: Tensor, A: Tensor, low: float, high: float) -> Tensor:
        of_completion = ratio(log_ratio, mask)
        return torch.where(A > 0, of_completion > 1 + high, of_completion < 1 - low) & mask

    return answer


def opposite(log_ratio: Tensor, mask: Tensor, A: Tensor, low: float, high: float) -> Tensor:
    """What GSPO would stop with the sides exchanged."""
    return stopped()(log_ratio, mask, -A, low, high)


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
            {"logps": old + torch.tensor([1.5, -0.3, 0.4, -1.5]), "old_logps": old, "A": A, "cap": 2.0}
            for A in (1.5, -0.5)
        ],
        "mistakes": {
            "the weight is a constant: detach it": weighted(lambda ratio, cap, _: ratio.clamp(max=cap)),
            "a clipped ratio has no gradient; the weight must multiply log π": gradient_of(
                lambda logps, old_logps, A, cap: -((logps - old_logps).exp().clamp(max=cap) * A).mean()
            ),
            "the cap is missing": weighted(lambda ratio, cap, _: ratio.detach()),
            "a loss is minimised: minus": weighted(lambda ratio, cap, _: -ratio.detach().clamp(max=cap)),
        }
        | NO_GRADIENT,
    },
    "14.2": {
        "expected": stopped(),
        "inputs": [
            {"log_ratio": log_ratios, "mask": mask, "A": signs * sign, "low": 0.03, "high": 0.04}
            for sign in (1.0, -1.0)
        ],
        "mistakes": {
            "the mean of the log-ratios, not their sum": stopped(lambda r, m: (r * m).sum(dim=1, keepdim=True).exp()),
            "a mean over the tokens, not over the padding": stopped(lambda r, m: r.mean(dim=1, keepdim=True).exp()),
            "GSPO decides for a completion as a whole": stopped(lambda r, m: r.exp()),
            "only where its own push has moved it, on one side of the range": lambda *x: stopped()(*x) | opposite(*x),
            "the sides are exchanged: for A > 0 above the range, for A < 0 below": opposite,
            "padding is no token: the mask": lambda *x: stopped()(*x).any(dim=1, keepdim=True).expand_as(x[1]),
            "for each token of the completion: (G, T), not (G, 1)": lambda *x: stopped()(*x).any(dim=1, keepdim=True),
        },
    },
    "14.3": {
        "expected": weighted(lambda ratio, eps, sign: sign * (ratio - 1) <= eps),
        "inputs": [
            {"logps": old + torch.tensor([0.3, -0.3, 0.1, -0.1]), "old_logps": old, "A": A, "eps": 0.2}
            for A in (1.5, -0.5)
        ],
        "mistakes": {
            "the ratio still weights the kept tokens (GRPO)": weighted(
                lambda r, eps, sign: r.detach() * (sign * (r - 1) <= eps)
            ),
            "a token is stopped on the side of A's sign only": weighted(
                lambda ratio, eps, sign: (ratio - 1).abs() <= eps
            ),
            "a loss is minimised: minus": weighted(lambda ratio, eps, sign: -1.0 * (sign * (ratio - 1) <= eps)),
        }
        | NO_GRADIENT,
    },
}
