"""What the exercises of lesson 18 are checked against. `kit.check` explains the keys."""

import torch
from torch import Tensor

from lessons.checks.lesson_14 import gradient_of


def corrected(
    logps: Tensor, old_logps: Tensor, sampler_logps: Tensor, A: float, eps: float, C: float
) -> Tensor:
    """GRPO's clipped loss of one completion times the weight of the whole completion."""
    ratio, weight = (logps - old_logps).exp(), (old_logps - sampler_logps).sum().exp().clamp(max=C)
    return -(weight * torch.minimum(ratio * A, ratio.clamp(1 - eps, 1 + eps) * A)).mean()


old = torch.tensor([-2.0, -0.5, -3.0, -1.0]).double()
now = old + torch.tensor([0.3, -0.3, 0.1, -0.1])
two_engines = torch.tensor(
    [[1.2, -0.5, -0.5], [0.1, 0.2, 0.0], [0.5, 0.6, 0.7], [-1.0, 2.0, -1.0]]
).double()

CHECKS = {
    "18.1": {
        "expected": gradient_of(corrected),
        "inputs": [
            {
                "logps": now,
                "old_logps": old,
                "sampler_logps": old - apart,
                "A": A,
                "eps": 0.2,
                "C": 2.0,
            }
            for A in (1.5, -0.5)
            for apart in (
                torch.tensor([0.15, -0.2, 0.3, 0.05]),
                torch.tensor([0.9, 0.4, -0.1, 0.2]),
            )
        ],
    },
    "18.2": {
        "expected": lambda log_ratio, C: log_ratio.sum(dim=1, keepdim=True).exp().clamp(max=C),
        "inputs": [{"log_ratio": two_engines, "C": 2.0}, {"log_ratio": -two_engines, "C": 1.5}],
    },
}
