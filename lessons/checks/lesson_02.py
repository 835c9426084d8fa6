"""Right answers and usual mistakes of lesson 2's exercises; `kit.check` explains the keys."""

from math import inf

import torch
from torch import Tensor


def by_clip(ratio: Tensor, A: Tensor, eps: float) -> Tensor:
    return torch.where(A > 0, ratio > 1 + eps, ratio < 1 - eps)


def stopped(ratio: Tensor, A: Tensor, mask: Tensor, eps: float, c: float) -> float:
    """The share of tokens that PPO's clip or the dual clip stops."""
    either = by_clip(ratio, A, eps) | ((A < 0) & (ratio > c))
    return either[mask].double().mean().item()


def dual_for_either_sign(ratio: Tensor, A: Tensor, mask: Tensor, eps: float, c: float) -> float:
    either = by_clip(ratio, A, eps) | (ratio > c) | (ratio < 1 / c)
    return either[mask].double().mean().item()


ratios = torch.tensor([[0.5, 1.1, 1.5, 1.9, 0.7, 2.5], [1.3, 0.75, 0.4, 1.0, 1.0, 1.0]]).double()
real = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]).bool()
advantages = torch.tensor([[0.5] * 6, [-2.0] * 6]).double()
six = {
    "ratio": torch.tensor([0.5, 1.0, 1.5] * 2).double(),
    "A": torch.tensor([1.0] * 3 + [-1.0] * 3).double(),
}

CHECKS = {
    "2.1": {
        "expected": stopped,
        "inputs": [
            {"ratio": ratios, "A": sign * advantages, "mask": real, "eps": eps, "c": c}
            for sign, eps, c in ((1, 0.2, 1.4), (-1, 0.2, 2.0), (-1, 0.45, 1.8), (1, 0.2, 3.0))
        ],
        "mistakes": {
            "that is the clip without the dual clip": (
                lambda ratio, A, mask, eps, c: stopped(ratio, A, mask, eps, inf)
            ),
            "the dual clip is for A < 0 alone": dual_for_either_sign,
            "a share of the real tokens: the padding does not count": (
                lambda ratio, A, mask, eps, c: (
                    stopped(ratio, A, mask, eps, c) * mask.double().mean()
                )
            ),
        },
    },
    "2.2": {
        "expected": lambda ratio, A, eps: ratio > 1 + eps,
        "inputs": [
            {**six, "eps": 0.2},
            {**six, "eps": 0.6},
            {**six, "A": -3 * six["A"], "eps": 0.2},
        ],
        "mistakes": {
            "that is what PPO stops, the minimum of the two products": by_clip,
            "the smaller ratio is a constant on one side of the range only": (
                lambda ratio, A, eps: (ratio - 1).abs() > eps
            ),
            "those are the two cases that PPO leaves alive: the sign of A": (
                lambda ratio, A, eps: by_clip(ratio, -A, eps)
            ),
        },
    },
    "2.3": {
        # The gradient stops where the ratio p / p_old is 1 + eps.
        "expected": lambda p_old, eps: min(1, p_old * (1 + eps)),
        "inputs": [
            {"p_old": p_old, "eps": eps} for eps in (0.2, 0.28) for p_old in (0.01, 0.5, 0.9)
        ],
        "mistakes": {
            "the bound is on the ratio: it multiplies, it does not add": (
                lambda p_old, eps: min(1, p_old + eps)
            ),
            "right where p_old is small; but no probability is above 1": (
                lambda p_old, eps: p_old * (1 + eps)
            ),
        },
    },
}
