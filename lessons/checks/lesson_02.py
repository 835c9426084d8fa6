"""What the exercises of lesson 2 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable

import torch
from torch import Tensor


def share(is_stopped: Callable, padding: bool = False) -> Callable:
    """The share of tokens for which is_stopped(ratio, A, eps, c); with the padding among them, if asked for."""

    def value(ratio: Tensor, A: Tensor, mask: Tensor, eps: float, c: float) -> float:
        chosen = is_stopped(ratio, A, eps, c)
        return ((chosen & mask) if padding else chosen[mask]).double().mean().item()

    return value


def clip(ratio: Tensor, A: Tensor, eps: float, c: float = 0.0) -> Tensor:
    """What PPO's clip stops."""
    return torch.where(A > 0, ratio > 1 + eps, ratio < 1 - eps)


def dual_clip(ratio: Tensor, A: Tensor, eps: float, c: float) -> Tensor:
    """The same, and what the dual clip stops."""
    return clip(ratio, A, eps) | ((A < 0) & (ratio > c))


ratios = torch.tensor([[0.5, 1.1, 1.5, 1.9, 0.7, 2.5], [1.3, 0.75, 0.4, 1.0, 1.0, 1.0]]).double()
real = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]).bool()
advantages = torch.tensor([[0.5] * 6, [-2.0] * 6]).double()
six = {"ratio": torch.tensor([0.5, 1.0, 1.5] * 2).double(), "A": torch.tensor([1.0] * 3 + [-1.0] * 3).double()}

CHECKS = {
    "2.1": {
        "expected": share(dual_clip),
        "inputs": [
            {"ratio": ratios, "A": sign * advantages, "mask": real, "eps": eps, "c": c}
            for sign, eps, c in ((1, 0.2, 1.4), (-1, 0.2, 2.0), (-1, 0.45, 1.8), (1, 0.2, 3.0))
        ],
        "mistakes": {
            "that is the clip without the dual clip": share(clip),
            "the dual clip is for A < 0 alone": share(lambda r, A, eps, c: clip(r, A, eps) | (r > c) | (r < 1 / c)),
            "a share of the real tokens: the padding does not count": share(dual_clip, padding=True),
        },
    },
    "2.2": {
        "expected": lambda ratio, A, eps: ratio > 1 + eps,
        "inputs": [{**six, "eps": 0.2}, {**six, "eps": 0.6}, {**six, "A": -3 * six["A"], "eps": 0.2}],
        "mistakes": {
            "that is what PPO stops, the minimum of the two products": clip,
            "the smaller ratio is a constant on one side of the range only": lambda rho, A, eps: (rho - 1).abs() > eps,
            "those are the two cases that PPO leaves alive: the sign of A": lambda rho, A, eps: clip(rho, -A, eps),
        },
    },
    "2.3": {
        "expected": lambda p_old, eps: min(1, p_old * (1 + eps)),  # where the ratio p / p_old is 1 + eps
        "inputs": [{"p_old": p_old, "eps": eps} for eps in (0.2, 0.28) for p_old in (0.01, 0.5, 0.9)],
        "mistakes": {
            "the bound is on the ratio: it multiplies, it does not add": lambda p_old, eps: min(1, p_old + eps),
            "right where p_old is small; but no probability is above 1": lambda p_old, eps: (1 + eps) * p_old,
        },
    },
}
