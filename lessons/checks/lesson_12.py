"""What the exercises of lesson 12 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F


def by_autograd(loss: Callable) -> Callable:
    """The coefficients that a loss(log_ratios, rewards, beta) gives: minus its gradient."""

    def answer(log_ratios: np.ndarray, rewards: np.ndarray, beta: float) -> np.ndarray:
        leaf = torch.tensor(log_ratios, dtype=torch.float64, requires_grad=True)
        return -torch.autograd.grad(loss(leaf, torch.tensor(rewards), beta), leaf)[0].numpy()

    return answer


def margins(log_ratios: torch.Tensor, rewards: torch.Tensor) -> torch.Tensor:
    """(right, wrong): of every pair."""
    return log_ratios[rewards == 1].unsqueeze(1) - log_ratios[rewards == 0]


def dpo(log_ratios: torch.Tensor, rewards: torch.Tensor, beta: float) -> torch.Tensor:
    return -F.logsigmoid(beta * margins(log_ratios, rewards)).sum()


def against_mean(log_ratios: torch.Tensor, rewards: torch.Tensor, beta: float) -> torch.Tensor:
    """Not each pair, but the mean of the right against the mean of the wrong, as often as there are pairs."""
    pairs = margins(log_ratios, rewards)
    return -pairs.numel() * F.logsigmoid(beta * pairs.mean())


expected_dpo = by_autograd(dpo)


def placed(first: Callable, second: Callable) -> Callable:
    """Both coefficients, from functions of k, G, the lengths and C."""
    return lambda k, lengths, C: [rule(k, len(lengths), lengths, C) for rule in (first, second)]


def dr(k, G, lengths, C):
    return (1 - k / G) / (G * C)


def grpo(k, G):
    return ((G - k) / k) ** 0.5


def dapo(k, G, lengths, C):
    return grpo(k, G) / sum(lengths)


some_log_ratios = np.array([1.5, -2.0, 0.0, 4.0, -7.0])

CHECKS = {
    "12.1": {
        "expected": expected_dpo,
        "inputs": [
            {"log_ratios": some_log_ratios, "rewards": np.array([1.0, 0, 0, 1, 0]), "beta": 0.1},
            {"log_ratios": some_log_ratios, "rewards": np.array([0.0, 1, 1, 1, 0]), "beta": 0.5},
            {"log_ratios": 0 * some_log_ratios, "rewards": np.array([1.0, 0, 0, 0, 0]), "beta": 0.1},
        ],
        "mistakes": {
            "a factor is missing, the one that is missing in Eq. 14": by_autograd(lambda *x: dpo(*x) / x[2]),
            "the sign inside the sigmoid: a large margin should get less": lambda *x: expected_dpo(-x[0], *x[1:]),
            "a wrong completion is pushed down, by its pairs": lambda *x: expected_dpo(*x) * x[1],
            "every pair has a margin of its own: the mean margin will not do": by_autograd(against_mean),
            "beta stands inside the sigmoid, too": by_autograd(lambda *x: -x[2] * F.logsigmoid(margins(*x[:2])).sum()),
            "the signs: a right completion is pushed up, a wrong one down": lambda *x: -expected_dpo(*x),
        },
    },
    "12.2": {
        "expected": placed(dr, dapo),
        "inputs": [{"k": 1, "lengths": [20, 4, 4, 8], "C": 56}, {"k": 3, "lengths": [4, 20, 20, 8, 5], "C": 30}],
        "mistakes": {
            "Dr. GRPO does not divide by σ": placed(lambda k, G, _, C: grpo(k, G) / (G * C), dapo),
            "DAPO: by all tokens, not by the completion's own": placed(dr, lambda k, G, L, C: grpo(k, G) / (G * L[0])),
            "σ doubles, too: DAPO's advantage is not doubled": placed(dr, lambda *x: 2 * dapo(*x)),
            "Dr. GRPO: by C, not by the completion's own length": placed(lambda k, G, L, C: dr(k, G, L, L[0]), dapo),
            "DAPO's advantage is divided by σ": placed(dr, lambda k, G, lengths, C: (1 - k / G) / sum(lengths)),
            "the other way round: first Dr. GRPO, then DAPO": placed(dapo, dr),
        },
    },
    "12.3": {
        "expected": lambda R: R * len(R) / max(R.sum(), 1),
        "inputs": [{"rewards": np.array(row)} for row in ([1.0, 0, 0, 1, 0], [0.0, 0, 0], [1.0, 0, 0, 0])],
        "mistakes": {
            "that is online RFT, a sum: a mean over the right ones also divides by their number": lambda R: R,
            "the loss of reinforce.py divides by G already: put G back": lambda R: R / max(R.sum(), 1),
            "a group without right completions: 0, not a division by 0": lambda R: R * len(R) / (R.sum() or np.nan),
        },
    },
}
