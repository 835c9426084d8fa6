"""What the exercises of lesson 2 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable

import torch
from torch import Tensor

from algorithms import ppo


def gradient_of(loss: Callable) -> Callable:
    """The function that gives the gradient of a loss (logps, ...) with respect to logps; what is no loss, as it is."""

    def of(logps: Tensor, **rest) -> Tensor:
        logps = logps.clone().requires_grad_()
        value = loss(logps=logps, **rest)
        return torch.autograd.grad(value, logps)[0] if isinstance(value, Tensor) else value

    return of


def loss_of_the_script(logps: Tensor, old_logps: Tensor, A: Tensor, eps: float) -> Tensor:
    mask = torch.ones(1, len(logps)).bool()
    config = ppo.Config(clip_eps=eps)
    return ppo.policy_loss(logps=logps[None], old_logps=old_logps[None], advantages=A[None], mask=mask, config=config)


def stopped_share(ratio: Tensor, A: Tensor, mask: Tensor, eps: float) -> float:
    """By autograd through the script's loss, token by token."""
    logps = ratio[mask].log()
    gradient = gradient_of(loss_of_the_script)(logps, old_logps=torch.zeros_like(logps), A=A[mask], eps=eps)
    return (gradient == 0).double().mean().item()


def share(of: Callable, padding: bool = False) -> Callable:
    """The share of tokens for which of(ratio, A, eps) is true; with the padding among them, if asked for."""

    def value(ratio: Tensor, A: Tensor, mask: Tensor, eps: float) -> float:
        chosen = of(ratio, A, eps)
        return ((chosen & mask) if padding else chosen[mask]).double().mean().item()

    return value


def both(ratio: Tensor, A: Tensor, eps: float) -> Tensor:
    return torch.where(A > 0, ratio > 1 + eps, ratio < 1 - eps)


def loss_with(objective: Callable) -> Callable:
    """The gradient of minus the mean of objective(A, ratio, clipped)."""

    def loss(logps: Tensor, old_logps: Tensor, A: Tensor, eps: float) -> Tensor:
        ratio = (logps - old_logps).exp()
        return -objective(A, ratio, ratio.clamp(1 - eps, 1 + eps)).mean()

    return gradient_of(loss)


def where_autograd_stops(p_old: float, eps: float) -> float:
    """The probability at which the gradient becomes 0, by bisection; 1 if it never does."""

    def pushed(p: float) -> bool:
        given = {"old_logps": torch.tensor([p_old]).double().log(), "A": torch.ones(1).double(), "eps": eps}
        return bool(gradient_of(loss_of_the_script)(torch.tensor([p]).double().log(), **given) != 0)

    low, high = p_old, 1.0
    if pushed(high):
        return 1.0
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (middle, high) if pushed(middle) else (low, middle)
    return low


ratios = torch.tensor([[0.5, 1.1, 1.5, 1.9, 0.7, 2.5], [1.3, 0.75, 0.4, 1.0, 1.0, 1.0]]).double()
real = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]).bool()
advantages = torch.tensor([[0.5] * 6, [-2.0] * 6]).double()
six = {
    "logps": torch.tensor([0.5, 1.0, 1.5] * 2).double().log(),
    "old_logps": torch.zeros(6).double(),
    "A": torch.tensor([1.0] * 3 + [-1.0] * 3).double(),
}

CHECKS = {
    "2.1": {
        "expected": stopped_share,
        "inputs": [
            {"ratio": ratios, "A": sign * advantages, "mask": real, "eps": eps}
            for sign, eps in ((1, 0.2), (-1, 0.2), (1, 0.45))
        ],
        "mistakes": {
            "that is every token outside the range; in two of the four cases the gradient is alive": share(
                lambda ratio, A, eps: (ratio - 1).abs() > eps
            ),
            "the sign: these are the two cases in which the gradient is alive": share(
                lambda ratio, A, eps: both(ratio, -A, eps)
            ),
            "that is one of the two cases": share(lambda ratio, A, eps: (A > 0) & (ratio > 1 + eps)),
            "that is one of the two cases; the other is missing": share(
                lambda ratio, A, eps: (A < 0) & (ratio < 1 - eps)
            ),
            "a share of the real tokens: the padding does not count": share(both, padding=True),
            "the number of real tokens is the divisor; you divided by nothing": lambda ratio, A, mask, eps: (
                (both(ratio, A, eps) & mask).sum().item()
            ),
        },
    },
    "2.2": {
        "expected": gradient_of(loss_of_the_script),
        "inputs": [{**six, "eps": 0.2}, {**six, "eps": 0.6}, {**six, "A": -3 * six["A"], "eps": 0.2}],
        "bug": loss_with(lambda A, ratio, clipped: A * torch.minimum(ratio, clipped)),
        "mistakes": {
            "now A < 0 is right, and A > 0 is wrong": loss_with(
                lambda A, ratio, clipped: A * torch.maximum(ratio, clipped)
            ),
            "the larger of the two products is the optimistic one": loss_with(
                lambda A, ratio, clipped: torch.maximum(A * ratio, A * clipped)
            ),
            "now all four cases are stopped: nothing brings back a token that went the wrong way": loss_with(
                lambda A, ratio, clipped: A * clipped
            ),
            "the sign: an optimizer makes a loss smaller": loss_with(
                lambda A, ratio, clipped: -torch.minimum(A * ratio, A * clipped)
            ),
        },
    },
    "2.3": {
        "expected": where_autograd_stops,
        "inputs": [{"p_old": p_old, "eps": eps} for eps in (0.2, 0.28) for p_old in (0.01, 0.5, 0.9)],
        "mistakes": {
            "the bound is on the ratio: it multiplies, it does not add": lambda p_old, eps: min(1, p_old + eps),
            "right where p_old is small; but no probability is above 1": lambda p_old, eps: (1 + eps) * p_old,
            "it is the ratio that ends there; you are asked for the probability": lambda p_old, eps: 1 + eps,
        },
    },
}
