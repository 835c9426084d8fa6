"""What the exercises of lesson 6 are checked against. `kit.check` explains the keys."""

import numpy as np
import torch
from torch import Tensor

from algorithms import grpo

vectors = np.random.default_rng(0).normal(size=(16, 40))  # scores of any model whatever


def rloo(k: int, G: int) -> np.ndarray:
    """A+, A- and the weight of the contrast in the update."""
    return np.array([G - k, -k, k * (G - k) / G]) / (G - 1)


def advantages(rewards: Tensor) -> Tensor:
    """GRPO's, (P, G)."""
    return grpo.compute_advantages(rewards=rewards)


def update(rewards: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """GRPO's, of one group."""
    return advantages(torch.tensor(rewards).view(1, -1))[0].numpy() @ scores / len(scores)


tiled = torch.tensor([1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 1, 0]).double()

CHECKS = {
    "6.1": {
        "expected": rloo,
        "inputs": [{"k": 1, "G": 8}, {"k": 3, "G": 4}, {"k": 8, "G": 16}],
    },
    "6.2": {
        "expected": update,
        "inputs": [
            {"rewards": np.array(rewards), "scores": vectors[: len(rewards), :3]}
            for rewards in ([1, 0.5, 0, 0, 1], [0, 0, 1, 0, 0.25])
        ],
    },
    "6.3": {
        "expected": lambda R, P, G: advantages(R.view(G, P).T).T.flatten(),
        "inputs": [{"rewards": tiled, "P": 3, "G": 4}, {"rewards": tiled, "P": 2, "G": 6}],
    },
}
