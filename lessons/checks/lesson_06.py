"""What the exercises of lesson 6 are checked against. `kit.check` explains the keys."""

import numpy as np
import torch
from torch import Tensor

from algorithms import grpo
from algorithms import rloo as rloo_script

vectors = np.random.default_rng(0).normal(size=(16, 40))  # scores of any model whatever


def rloo(k: int, G: int) -> np.ndarray:
    """From the script's advantages, and from the update that they make of arbitrary scores."""
    rewards = (torch.arange(G) < k).double()
    A = rloo_script.compute_advantages(rewards=rewards.view(1, G))[0].numpy()
    update = (A[:, None] * vectors[:G]).mean(axis=0)
    contrast = vectors[:k].mean(axis=0) - vectors[k:G].mean(axis=0)
    return np.array([A[0], A[-1], update @ contrast / (contrast @ contrast)])


def advantages(rewards: Tensor) -> Tensor:
    """GRPO's, (P, G)."""
    return grpo.compute_advantages(rewards=rewards)


def update(rewards: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """GRPO's, of one group."""
    return advantages(torch.tensor(rewards).view(1, -1))[0].numpy() @ scores / len(scores)


def two_classes(rewards: np.ndarray, scores: np.ndarray) -> np.ndarray:
    above = rewards > rewards.mean()
    return rewards.std() * (scores[above].mean(axis=0) - scores[~above].mean(axis=0))


def by_prompt(rewards: Tensor, P: int, G: int) -> Tensor:
    """Advantages of tiled rewards, one prompt after the other."""
    values = torch.zeros(P * G).double()
    for prompt in range(P):
        values[prompt::P] = advantages(rewards[prompt::P].view(1, G))[0]
    return values


tiled = torch.tensor([1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 1, 0]).double()

CHECKS = {
    "6.1": {
        "expected": rloo,
        "inputs": [{"k": 1, "G": 8}, {"k": 3, "G": 4}, {"k": 8, "G": 16}],
        "mistakes": {
            "its own reward is still in the baseline: that is Dr. GRPO": lambda k, G: rloo(k, G) * (1 - 1 / G),
            "GRPO's: nothing is divided by sigma here": lambda k, G: rloo(k, G) * (G - 1) / np.sqrt(k * (G - k)),
            "the sign of A₋: a wrong completion is pushed down": lambda k, G: rloo(k, G) * [1, -1, 1],
            "the advantages are right; weigh them as in step 2": lambda k, G: (*rloo(k, G)[:2], G / (G - 1)),
            "right and wrong are exchanged": lambda k, G: rloo(k, G)[[1, 0, 2]],
        },
    },
    "6.2": {
        "expected": update,
        "inputs": [
            {"rewards": np.array(rewards), "scores": vectors[: len(rewards), :3]}
            for rewards in ([1, 0.5, 0, 0, 1], [0, 0, 1, 0, 0.25])
        ],
        "mistakes": {
            "divide by the standard deviation, not by the variance": lambda R, scores: update(R, scores) / R.std(),
            "without the division it is Dr. GRPO's update": lambda R, scores: update(R, scores) * R.std(),
            "the two-class form does not hold: a completion with 0.5 belongs to neither class": two_classes,
            "ddof: the standard deviation divides by G": lambda R, scores: update(R, scores) * R.std() / R.std(ddof=1),
        },
    },
    "6.3": {
        "expected": by_prompt,
        "inputs": [{"rewards": tiled, "P": 3, "G": 4}, {"rewards": tiled, "P": 2, "G": 6}],
        "bug": lambda R, P, G: advantages(R.view(P, G)).T.flatten(),
        "mistakes": {
            "each row is now one round over all prompts; a group is a column": (
                lambda R, P, G: advantages(R.view(G, P)).T.flatten()
            ),
            "a group is a column, and those advantages are in order already": (
                lambda R, P, G: advantages(R.view(G, P)).flatten()
            ),
            "the groups are right, but the advantages come back in another order": (
                lambda R, P, G: advantages(R.view(G, P).T).flatten()
            ),
        },
    },
}
