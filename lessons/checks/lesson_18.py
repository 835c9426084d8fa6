"""What the exercises of lesson 18 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable

import torch
from torch import Tensor

from lessons.checks.lesson_04 import NO_GRADIENT
from lessons.checks.lesson_14 import gradient_of


def corrected(weight: Callable, of_sampler: bool = False, sign: float = -1.0) -> Callable:
    """The gradient of GRPO's clipped loss of one completion times weight(log pi_old - log pi_sampler, C). of_sampler:
    whether the clip's ratio is over the sampler's policy."""

    def loss(logps: Tensor, old_logps: Tensor, sampler_logps: Tensor, A: float, eps: float, C: float) -> Tensor:
        ratio = (logps - (sampler_logps if of_sampler else old_logps)).exp()
        clipped = torch.minimum(ratio * A, ratio.clamp(1 - eps, 1 + eps) * A)
        return sign * (weight(old_logps - sampler_logps, C) * clipped).mean()

    return gradient_of(loss)


def whole(log_ratio: Tensor, C: float) -> Tensor:
    return log_ratio.sum().exp().clamp(max=C)


old = torch.tensor([-2.0, -0.5, -3.0, -1.0]).double()
now = old + torch.tensor([0.3, -0.3, 0.1, -0.1])
two_engines = torch.tensor([[1.2, -0.5, -0.5], [0.1, 0.2, 0.0], [0.5, 0.6, 0.7], [-1.0, 2.0, -1.0]]).double()

CHECKS = {
    "18.1": {
        "expected": corrected(whole),
        "inputs": [
            {"logps": now, "old_logps": old, "sampler_logps": old - apart, "A": A, "eps": 0.2, "C": 2.0}
            for A in (1.5, -0.5)
            for apart in (torch.tensor([0.15, -0.2, 0.3, 0.05]), torch.tensor([0.9, 0.4, -0.1, 0.2]))
        ],
        "mistakes": {
            "the clip's ratio is the trainer's alone, π over π_old": corrected(whole, of_sampler=True),
            "that is a weight for each token": corrected(lambda log_ratio, C: log_ratio.exp().clamp(max=C)),
            "the weight has no bound": corrected(lambda log_ratio, C: log_ratio.sum().exp()),
            "a loss is minimised: minus": corrected(whole, sign=1.0),
        }
        | NO_GRADIENT,
    },
    "18.2": {
        "expected": lambda log_ratio, C: log_ratio.sum(dim=1, keepdim=True).exp().clamp(max=C),
        "inputs": [{"log_ratio": two_engines, "C": 2.0}, {"log_ratio": -two_engines, "C": 1.5}],
        "bug": lambda log_ratio, C: log_ratio.exp().clamp(max=C).prod(dim=1, keepdim=True),
        "mistakes": {
            "untruncated, the weight of a long completion has no bound": lambda r, C: r.sum(dim=1, keepdim=True).exp(),
            "a geometric mean is no importance weight": lambda r, C: r.mean(dim=1, keepdim=True).exp().clamp(max=C),
        },
    },
}
