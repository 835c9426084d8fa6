"""What the exercises of lesson 3 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def leave_one_out(rewards: Tensor, verified: Tensor) -> np.ndarray:
    """RLOO's advantages among the verified completions, one by one, and 0 for the others."""
    A = np.zeros(rewards.shape)
    for i, (group, usable) in enumerate(zip(rewards.tolist(), verified.tolist())):
        for j in range(len(group)):
            others = [reward for n, reward in enumerate(group) if usable[n] and n != j]
            A[i, j] = (group[j] - sum(others) / len(others)) * usable[j]
    return A


def slip(baseline: Callable, push_all: bool = False) -> Callable:
    """Advantages with the baseline(reward, total of the verified, number of them, G)."""

    def answer(rewards: Tensor, verified: Tensor) -> Tensor:
        total = (rewards * verified).sum(dim=1, keepdim=True)
        n = verified.sum(dim=1, keepdim=True)
        return (rewards - baseline(rewards, total, n, rewards.shape[1])) * (verified | push_all)

    return answer


def timed_out_in_the_sum(rewards: Tensor, verified: Tensor) -> Tensor:
    others = rewards.sum(dim=1, keepdim=True) - rewards
    return (rewards - others / (verified.sum(dim=1, keepdim=True) - 1)) * verified


def all_are_verified(rewards: Tensor, verified: Tensor) -> Tensor:
    return rewards - (rewards.sum(dim=1, keepdim=True) - rewards) / (rewards.shape[1] - 1)


def measured_bessel(G: int) -> float:
    """The ratio of the advantages of a group of one right completion, by numpy's two standard deviations."""
    rewards = np.arange(G) < 1
    return rewards.std() / rewards.std(ddof=1)


def by_hand(texts: list[str], rewards: Tensor, G: int) -> np.ndarray:
    groups = [rewards.numpy()[start : start + G] for start in range(0, len(rewards), G)]
    return np.concatenate([group - group.mean() for group in groups])


def grouped_by(label: Callable) -> Callable:
    """Advantages where rows of one label(texts, G) are a group."""

    def answer(texts: list[str], rewards: Tensor, G: int) -> np.ndarray:
        labels = np.asarray(label(np.array(texts), G))
        same = labels[:, None] == labels  # (rows, rows)
        return rewards.numpy() - same @ rewards.numpy() / same.sum(axis=1)

    return answer


some_rewards = torch.tensor([[1, 0, 0, 1, 1], [0, 0.5, 1, 0.25, 0]]).double()
some_verified = torch.tensor([[1, 1, 0, 1, 0], [1, 1, 1, 1, 0]]).bool()
pictures = ["how many?"] * 4 + ["what colour?"] * 4 + ["how many?"] * 4
marks = torch.tensor([0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1]).double()

CHECKS = {
    "3.1": {
        "expected": leave_one_out,
        "inputs": [
            {"rewards": some_rewards, "verified": some_verified},
            {"rewards": 1 - some_rewards, "verified": some_verified.flip(0)},
        ],
        "mistakes": {
            "that baseline contains the own reward: it is Dr. GRPO's": slip(lambda r, total, n, G: total / n),
            "the own reward is still in the sum": slip(lambda r, total, n, G: total / (n - 1)),
            "after a timeout there are fewer others than G - 1": slip(lambda r, total, n, G: (total - r) / (G - 1)),
            "the sum of the others has fewer terms than that": slip(lambda r, total, n, G: (total - r) / n),
            "a completion that was not verified must not be pushed": slip(
                lambda r, total, n, G: (total - r) / (n - 1), push_all=True
            ),
            "the meaningless rewards are among the others": timed_out_in_the_sum,
            "that is RLOO as if all had been verified": all_are_verified,
        },
    },
    "3.2": {
        "expected": measured_bessel,
        "inputs": [{"G": 2}, {"G": 8}, {"G": 64}],
        "mistakes": {
            "the wrong way round: does ddof 1 make sigma larger or smaller?": lambda G: 1 / measured_bessel(G),
            "that is the factor of the variance inside sigma": lambda G: G / (G - 1),
            "that is what the group mean does to E[g]; here the variance inside sigma changes": lambda G: (G - 1) / G,
        },
    },
    "3.3": {
        "expected": by_hand,
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
            "the mean runs over the wrong axis: over the prompts, not over the completions of one": grouped_by(
                lambda texts, G: np.arange(len(texts)) % G
            ),
            "the rows are read in the wrong order: those of a group are contiguous": grouped_by(
                lambda texts, G: np.arange(len(texts)) % (len(texts) // G)
            ),
        },
    },
}
