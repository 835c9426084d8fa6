"""What the exercises of lesson 3 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def less(baseline: Callable, push_all: bool = False) -> Callable:
    """Rewards less baseline(rewards, total of the verified, number of them, G); 0 for what was not verified."""

    def answer(rewards: Tensor, verified: Tensor) -> Tensor:
        total = (rewards * verified).sum(dim=1, keepdim=True)
        n = verified.sum(dim=1, keepdim=True)
        return (rewards - baseline(rewards, total, n, rewards.shape[1])) * (verified | push_all)

    return answer


def by_group(texts: list[str], rewards: Tensor, G: int) -> Tensor:
    groups = rewards.view(-1, G)
    return (groups - groups.mean(dim=1, keepdim=True)).flatten()


def grouped_by(label: Callable) -> Callable:
    """Advantages where completions with the same label(texts, G) are a group."""

    def answer(texts: list[str], rewards: Tensor, G: int) -> np.ndarray:
        labels = np.asarray(label(np.array(texts), G))
        same = labels[:, None] == labels  # (P * G, P * G)
        return rewards.numpy() - same @ rewards.numpy() / same.sum(axis=1)

    return answer


some_rewards = torch.tensor([[1, 0, 0, 1, 1], [0, 0.5, 1, 0.25, 0]]).double()
some_verified = torch.tensor([[1, 1, 0, 1, 0], [1, 1, 1, 1, 0]]).bool()
pictures = ["how many?"] * 4 + ["what colour?"] * 4 + ["how many?"] * 4
marks = torch.tensor([0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1]).double()

CHECKS = {
    "3.1": {
        "expected": less(lambda r, total, n, G: (total - r) / (n - 1)),
        "inputs": [
            {"rewards": some_rewards, "verified": some_verified},
            {"rewards": 1 - some_rewards, "verified": some_verified.flip(0)},
        ],
        "mistakes": {
            "that baseline contains the own reward: it is Dr. GRPO's": less(lambda r, total, n, G: total / n),
            "the own reward is still in the sum": less(lambda r, total, n, G: total / (n - 1)),
            "after a timeout there are fewer others than G - 1": less(lambda r, total, n, G: (total - r) / (G - 1)),
            "what was not verified must not be pushed": less(lambda r, s, n, G: (s - r) / (n - 1), push_all=True),
        },
    },
    "3.2": {
        "expected": lambda G: ((G - 1) / G) ** 0.5,
        "inputs": [{"G": 2}, {"G": 8}, {"G": 64}],
        "mistakes": {
            "the wrong way round: does ddof 1 make sigma larger or smaller?": lambda G: (G / (G - 1)) ** 0.5,
            "that is the factor of the variance inside sigma": lambda G: G / (G - 1),
            "that is what the group mean does to E[g]; here the variance inside sigma changes": lambda G: (G - 1) / G,
        },
    },
    "3.3": {
        "expected": by_group,
        "inputs": [
            {"texts": pictures, "rewards": marks, "G": 4},
            {"texts": ["how many?"] * 6, "rewards": marks[3:9], "G": 2},
        ],
        "bug": grouped_by(lambda texts, G: texts),
        "mistakes": {
            "two groups with the same text are still merged where one follows the other": grouped_by(
                lambda texts, G: np.cumsum(np.append(False, texts[1:] != texts[:-1]))
            ),
            "that is the mean of the batch: each group has its own": lambda texts, rewards, G: rewards - rewards.mean(),
            "the wrong axis: over the prompts": grouped_by(lambda texts, G: np.arange(len(texts)) % G),
            "the wrong order: groups are contiguous": grouped_by(lambda t, G: np.arange(len(t)) % (len(t) // G)),
        },
    },
}
