"""What the exercises of lesson 14 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable

import torch
from torch import Tensor

from lessons.checks.lesson_04 import NO_GRADIENT, gradient


def gradient_of(loss: Callable) -> Callable:
    """The function that gives the gradient of a loss (logps, ...) with respect to logps; what is no loss, as it is."""

    def answer(logps: Tensor, **rest) -> Tensor:
        logps = logps.clone().requires_grad_()
        value = loss(logps, **rest)
        return value if value is None or value is ... else gradient(value, logps)

    return answer


def cispo(logps: Tensor, old_logps: Tensor, A: float, cap: float) -> Tensor:
    return -((logps - old_logps).exp().detach().clamp(max=cap) * A * logps).mean()


def with_gradient_in_the_weight(logps: Tensor, old_logps: Tensor, A: float, cap: float) -> Tensor:
    return -((logps - old_logps).exp().clamp(max=cap) * A * logps).mean()


def without_log_pi(logps: Tensor, old_logps: Tensor, A: float, cap: float) -> Tensor:
    return -((logps - old_logps).exp().clamp(max=cap) * A).mean()


def without_cap(logps: Tensor, old_logps: Tensor, A: float, cap: float) -> Tensor:
    return -((logps - old_logps).exp().detach() * A * logps).mean()


def with_lower_bound(logps: Tensor, old_logps: Tensor, A: float, cap: float) -> Tensor:
    return -((logps - old_logps).exp().detach().clamp(1 / cap, cap) * A * logps).mean()


def geometric_mean(log_ratio: Tensor, mask: Tensor) -> Tensor:
    return ((log_ratio * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)).exp()


def stopped(ratio: Callable = geometric_mean, both_sides: bool = False) -> Callable:
    """What GSPO stops, if its ratio is that of `ratio`(log_ratio, mask)."""

    def answer(log_ratio: Tensor, mask: Tensor, A: Tensor, low: float, high: float) -> Tensor:
        above, below = ratio(log_ratio, mask) > 1 + high, ratio(log_ratio, mask) < 1 - low
        return (above | below if both_sides else ((A > 0) & above) | ((A < 0) & below)) & mask

    return answer


old = torch.tensor([-2.0, -0.5, -3.0, -1.0]).double()
log_ratios = torch.tensor(
    [
        [0.3, -0.24, 9.0],
        [0.02, 0.02, 0.02],
        [-0.3, 0.31, -0.3],
        [-0.04, 9.0, 9.0],
        [0.05, 0.05, 9.0],
        [0.05, 0.029, 9.0],  # a mean of .0395: the ratio is above 1.04
        [-0.05, -0.0104, 9.0],  # a mean of -.0302: the ratio is above .97
    ]
)
mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 0], [1, 1, 0]]).bool()
signs = torch.tensor([[1.0], [-1.0], [-1.0], [1.0], [1.0], [1.0], [-1.0]])
two_engines = torch.tensor([[1.2, -0.5, -0.5], [0.1, 0.2, 0.0], [0.5, 0.6, 0.7], [-1.0, 2.0, -1.0]]).double()

CHECKS = {
    "14.1": {
        "expected": gradient_of(cispo),
        "inputs": [
            {"logps": old + torch.tensor([1.5, -0.3, 0.4, -1.5]), "old_logps": old, "A": A, "cap": 2.0}
            for A in (1.5, -0.5)
        ],
        "mistakes": {
            "the weight is a constant: detach it": gradient_of(with_gradient_in_the_weight),
            "a clipped ratio has no gradient; the weight must multiply log π": gradient_of(without_log_pi),
            "the cap is missing": gradient_of(without_cap),
            "the ratio is bounded from above only": gradient_of(with_lower_bound),
            "a loss is minimised: minus": gradient_of(lambda *inputs, **named: -cispo(*inputs, **named)),
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
            "that is the ratio of the whole completion: the mean of the log-ratios, not their sum": stopped(
                lambda r, m: (r * m).sum(dim=1, keepdim=True).exp()
            ),
            "the mean runs over the completion's own tokens, not over the padding": stopped(
                lambda r, m: r.mean(dim=1, keepdim=True).exp()
            ),
            "a geometric mean: exp of the mean log-ratio, not the mean of the ratios": stopped(
                lambda r, m: (r.exp() * m).sum(dim=1, keepdim=True) / m.sum(dim=1, keepdim=True)
            ),
            "GSPO decides for a completion as a whole": stopped(lambda r, m: r.exp()),
            "compare the ratio with 1 + high, not its logarithm with high": stopped(
                lambda r, m: 1 + geometric_mean(r, m).log()
            ),
            "only where its own push has moved it: for A > 0 above the range, for A < 0 below": stopped(
                both_sides=True
            ),
            "the sides are exchanged: for A > 0 above the range, for A < 0 below": lambda A, **inputs: stopped()(
                A=-A, **inputs
            ),
            "padding is no token that could be stopped: the mask": lambda mask, **inputs: (
                stopped()(mask=mask, **inputs).any(dim=1, keepdim=True).expand_as(mask)
            ),
            "those are the tokens that are not stopped": lambda mask, **inputs: ~stopped()(mask=mask, **inputs) & mask,
            "for each token of the completion: (G, T), not (G, 1)": lambda **inputs: stopped()(**inputs).any(
                dim=1, keepdim=True
            ),
        },
    },
    "14.3": {
        "expected": lambda log_ratio, C: log_ratio.sum(dim=1, keepdim=True).exp().clamp(max=C),
        "inputs": [{"log_ratio": two_engines, "C": 2.0}, {"log_ratio": -two_engines, "C": 1.5}],
        "bug": lambda log_ratio, C: log_ratio.exp().clamp(max=C).prod(dim=1, keepdim=True),
        "mistakes": {
            "without its truncation the weight of a long completion has no bound": lambda log_ratio, C: log_ratio.sum(
                dim=1, keepdim=True
            ).exp(),
            "that is the geometric mean, GSPO's ratio: no importance weight": lambda log_ratio, C: (
                log_ratio.mean(dim=1, keepdim=True).exp().clamp(max=C)
            ),
            "turned round: that is the sampler over the trainer": lambda log_ratio, C: (
                (-log_ratio).sum(dim=1, keepdim=True).exp().clamp(max=C)
            ),
        },
    },
}
