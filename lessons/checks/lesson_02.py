"""What the exercises of lesson 2 are checked against. `kit.check` explains the keys."""

import torch
from torch import Tensor


def stopped(ratio: Tensor, A: Tensor, mask: Tensor, eps: float, c: float) -> float:
    """The share of tokens that PPO's clip or the dual clip stops."""
    by_clip = torch.where(A > 0, ratio > 1 + eps, ratio < 1 - eps)
    return (by_clip | ((A < 0) & (ratio > c)))[mask].double().mean().item()


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
    },
    "2.2": {
        "expected": lambda ratio, A, eps: ratio > 1 + eps,
        "inputs": [
            {**six, "eps": 0.2},
            {**six, "eps": 0.6},
            {**six, "A": -3 * six["A"], "eps": 0.2},
        ],
    },
    "2.3": {
        "expected": lambda p_old, eps: min(
            1, p_old * (1 + eps)
        ),  # where the ratio p / p_old is 1 + eps
        "inputs": [
            {"p_old": p_old, "eps": eps} for eps in (0.2, 0.28) for p_old in (0.01, 0.5, 0.9)
        ],
    },
}
