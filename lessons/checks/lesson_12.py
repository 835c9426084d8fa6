"""What the exercises of lesson 12 are checked against. `kit.check` explains the keys."""

import numpy as np
import torch
import torch.nn.functional as F


def dpo(log_ratios: np.ndarray, rewards: np.ndarray, beta: float) -> np.ndarray:
    """The coefficients that DPO's loss of every pair gives: minus its gradient, by autograd."""
    leaf = torch.tensor(log_ratios, dtype=torch.float64, requires_grad=True)
    margins = leaf[rewards == 1].unsqueeze(1) - leaf[rewards == 0]  # (right, wrong)
    return torch.autograd.grad(F.logsigmoid(beta * margins).sum(), leaf)[0].numpy()


def dr_grpo_and_dapo(k: int, lengths: list[int], C: int) -> list[float]:
    G = len(lengths)
    return [(1 - k / G) / (G * C), ((G - k) / k) ** 0.5 / sum(lengths)]


some_log_ratios = np.array([1.5, -2.0, 0.0, 4.0, -7.0])

CHECKS = {
    "12.1": {
        "expected": dpo,
        "inputs": [
            {"log_ratios": some_log_ratios, "rewards": np.array([1.0, 0, 0, 1, 0]), "beta": 0.1},
            {"log_ratios": some_log_ratios, "rewards": np.array([0.0, 1, 1, 1, 0]), "beta": 0.5},
            {
                "log_ratios": 0 * some_log_ratios,
                "rewards": np.array([1.0, 0, 0, 0, 0]),
                "beta": 0.1,
            },
        ],
    },
    "12.2": {
        "expected": dr_grpo_and_dapo,
        "inputs": [
            {"k": 1, "lengths": [20, 4, 4, 8], "C": 56},
            {"k": 3, "lengths": [4, 20, 20, 8, 5], "C": 30},
        ],
    },
    "12.3": {
        "expected": lambda R: R * len(R) / max(R.sum(), 1),
        "inputs": [
            {"rewards": np.array(row)} for row in ([1.0, 0, 0, 1, 0], [0.0, 0, 0], [1.0, 0, 0, 0])
        ],
    },
}
