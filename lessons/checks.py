"""What the exercises of lessons 13 and 14 are checked against: not in the notebook, where it would answer them.

`check(answer, **CHECKS["13.1"])`; what the keys of an exercise mean is explained at `kit.check`.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lessons import identity

# ---------------------------------------------------------------------- lesson 13


def mean_product(scores: np.ndarray) -> float:
    """Of all pairs of different rows: an estimate of the squared mean without noise."""
    n, total = len(scores), scores.sum(axis=0)
    return (total @ total - (scores**2).sum()) / (n * (n - 1))


def contrast_squared(right: np.ndarray, wrong: np.ndarray) -> float:
    return mean_product(right) + mean_product(wrong) - 2 * right.mean(axis=0) @ wrong.mean(axis=0)


def less(noise: Callable) -> Callable:
    """The squared distance of the two means, less noise(scores) of either."""

    def of(right: np.ndarray, wrong: np.ndarray) -> float:
        contrast = right.mean(axis=0) - wrong.mean(axis=0)
        return contrast @ contrast - noise(right) - noise(wrong)

    return of


def turning_point(G: int, signal: float, k: int = -1) -> float:
    """Where two squared lengths, straight lines in v- / v+, are the same, from their values at 0 and 1."""
    one, other = (
        identity.update_norm_squared(k % G, G, signal, 1, r) - identity.update_norm_squared(G // 2, G, signal, 1, r)
        for r in (0, 1)
    )
    return one / (one - other)


rng = np.random.default_rng(0)
some_scores = [{"right": rng.normal(size=(n, 3)), "wrong": 1 + rng.normal(size=(m, 3))} for n, m in ((4, 3), (5, 20))]

# ---------------------------------------------------------------------- lesson 14


def gradient_of(loss: Callable) -> Callable:
    """The function that gives the gradient of a loss (logps, ...) with respect to logps; what is no loss, as it is."""

    def of(logps: Tensor, **rest) -> Tensor:
        logps = logps.clone().requires_grad_()
        value = loss(logps, **rest)
        return torch.autograd.grad(value, logps)[0] if isinstance(value, Tensor) else value

    return of


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

    def of(log_ratio: Tensor, mask: Tensor, A: Tensor, low: float, high: float) -> Tensor:
        above, below = ratio(log_ratio, mask) > 1 + high, ratio(log_ratio, mask) < 1 - low
        return (above | below if both_sides else ((A > 0) & above) | ((A < 0) & below)) & mask

    return of


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
    "13.1": {
        "expected": contrast_squared,
        "inputs": some_scores,
        "mistakes": {
            "the noise of both means is still in it": less(lambda scores: 0),
            "a variance with ddof 0 is too small": less(lambda scores: scores.var(axis=0).sum() / len(scores)),
            "that is the variance of one score: the mean of n has 1/n of it": less(
                lambda scores: scores.var(axis=0, ddof=1).sum()
            ),
        },
    },
    "13.2": {
        "expected": turning_point,
        "inputs": [{"G": 4, "signal": 0.7}, {"G": 64, "signal": 0.7}, {"G": 8, "signal": 0.0}],
        "mistakes": {
            "that is the case without signal, of which the even split has more": lambda G, signal: turning_point(G, 0),
            "that is one right answer of G: v- comes with k": lambda G, signal: turning_point(G, signal, k=1),
            "a lone wrong answer has signal too: sigma squared is k (G - k) / G^2": lambda G, signal: (
                1 + signal * G**2 / 4 / (G / 2 - 1)
            ),
        },
    },
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
            "a loss is minimised: minus": gradient_of(lambda *given, **named: -cispo(*given, **named)),
        },
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
