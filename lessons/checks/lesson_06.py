"""Right answers and usual mistakes of lesson 6's exercises; `kit.check` explains the keys."""

import numpy as np
import torch
from torch import Tensor

from algorithms import grpo

vectors = np.random.default_rng(0).normal(size=(16, 40))  # scores of any model whatever


def rloo(k: int, G: int) -> np.ndarray:
    """A+, A- and the weight of the contrast in the update."""
    return np.array([G - k, -k, k * (G - k) / G]) / (G - 1)


def advantages(rewards: Tensor) -> Tensor:
    """GRPO's advantages, (P, G)."""
    return grpo.compute_advantages(rewards=rewards)


def update(rewards: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """GRPO's update from one group."""
    return advantages(torch.tensor(rewards).view(1, -1))[0].numpy() @ scores / len(scores)


def two_classes(rewards: np.ndarray, scores: np.ndarray) -> np.ndarray:
    above = rewards > rewards.mean()
    return rewards.std() * (scores[above].mean(axis=0) - scores[~above].mean(axis=0))


tiled = torch.tensor([1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 1, 0]).double()

CHECKS = {
    "6.1": {
        "expected": rloo,
        "inputs": [{"k": 1, "G": 8}, {"k": 3, "G": 4}, {"k": 8, "G": 16}],
        "mistakes": {
            "its own reward is still in the baseline: that is Dr. GRPO": (
                lambda k, G: rloo(k, G) * (G - 1) / G
            ),
            "the sign of A₋: a wrong completion is pushed down": lambda k, G: abs(rloo(k, G)),
            "the advantages are right; weigh them as in step 2": (
                lambda k, G: np.array([G - k, -k, G]) / (G - 1)
            ),
        },
    },
    "6.2": {
        "expected": update,
        "inputs": [
            {"rewards": np.array(rewards), "scores": vectors[: len(rewards), :3]}
            for rewards in ([1, 0.5, 0, 0, 1], [0, 0, 1, 0, 0.25])
        ],
        "mistakes": {
            "divide by the standard deviation, not by the variance": (
                lambda rewards, scores: update(rewards, scores) / rewards.std()
            ),
            "without the division it is Dr. GRPO's update": (
                lambda rewards, scores: update(rewards, scores) * rewards.std()
            ),
            "the two-class form does not hold: a completion with 0.5 belongs to neither class": (
                two_classes
            ),
            "ddof: the standard deviation divides by G": lambda rewards, scores: (
                update(rewards, scores) * rewards.std() / rewards.std(ddof=1)
            ),
        },
    },
    "6.3": {
        "bug": lambda R, P, G: advantages(R.view(P, G)).T.flatten(),
        "expected": lambda R, P, G: advantages(R.view(G, P).T).T.flatten(),
        "inputs": [{"rewards": tiled, "P": 3, "G": 4}, {"rewards": tiled, "P": 2, "G": 6}],
        "mistakes": {
            "a group is a column, a row is a round of prompts": (
                lambda R, P, G: advantages(R.view(G, P)).T.flatten()
            ),
            "right groups, but A comes back in another order": (
                lambda R, P, G: advantages(R.view(G, P).T).flatten()
            ),
        },
    },
}
