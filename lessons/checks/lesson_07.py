"""What the exercises of lesson 7 are checked against. `kit.check` explains the keys."""

from math import sqrt

import numpy as np


def every_group(p: float, G: int) -> tuple[np.ndarray, np.ndarray]:
    """The rewards of all groups of G, (2^G, G), and the probability of each, (2^G,)."""
    rewards = np.array([[bits >> i & 1 for i in range(G)] for bits in range(2**G)])
    k = rewards.sum(axis=1)
    return rewards, p**k * (1 - p) ** (G - k)


def fidelity(p: float, G: int) -> float:
    rewards, chance = every_group(p, G)
    return chance @ rewards.std(axis=1) / sqrt(p * (1 - p))


def hardest(G: int, target: float) -> float:
    """The smallest p up to one half at which fidelity, counted over all groups, reaches the target."""
    low, high = 0.0, 0.5
    for _ in range(20):
        p = (low + high) / 2
        low, high = (low, p) if fidelity(p, G) >= target else (p, high)
    return high


def by_the_rule(G: int, target: float) -> float:
    return (1 - sqrt(1 - 4 / (8 * G * (1 - target)))) / 2


def with_ddof1(p: float, G: int) -> np.ndarray:
    """Both numbers for a coin with the log-odds as its parameter, whose scores are R - p, over all groups."""
    rewards, chance = every_group(p, G)
    s = rewards.std(axis=1, ddof=1)
    g = ((rewards - rewards.mean(axis=1, keepdims=True)) * (rewards - p)).mean(axis=1) / np.where(s > 0, s, 1)
    return np.array([chance @ s, chance @ g]) / sqrt(p * (1 - p))


def by_counting(rewards: np.ndarray, p: float) -> float:
    G = rewards.shape[1]
    return sum(sqrt(k * (G - k)) / G for k in rewards.sum(axis=1)) / len(rewards) / sqrt(p * (1 - p))


coins = [(0.5, 2), (0.3, 4), (0.05, 8)]
of_group = {G: with_ddof1(p, G) for p, G in coins}
logs = [
    {"rewards": (np.random.default_rng(seed).random((4000, G)) < p).astype(float), "p": p}
    for seed, p, G in ((1, 0.05, 8), (2, 0.3, 4))
]

CHECKS = {
    "7.1": {
        "expected": hardest,
        "inputs": [{"G": 4, "target": 0.75}, {"G": 8, "target": 0.9}, {"G": 10, "target": 0.92}],
        "tolerance": 1e-3,
        "mistakes": {
            "that solves the rule for p: the leading order only": by_the_rule,
            "E[sigma] alone is at most 1/2 and never gets there: divide by sqrt(pq)": lambda G, target: 0.5,
            "that is the largest p; the prompt that is asked for is a hard one": lambda G, target: (
                1 - hardest(G, target)
            ),
        },
    },
    "7.2": {
        "expected": lambda phi, G: of_group[G],
        "inputs": [{"phi": fidelity(p, G), "G": G} for p, G in coins],
        "mistakes": {
            "the square of sigma_1 is unbiased, its root is not (Jensen)": lambda phi, G: (1, 1),
            "(b): the advantages are divided by a larger number, and the limit stays where it is": lambda phi, G: (
                phi * sqrt(G / (G - 1)),
                phi * sqrt(G / (G - 1)),
            ),
            "the factor belongs to the variance: take its root": lambda phi, G: (
                phi * G / (G - 1),
                phi * (G - 1) / G,
            ),
            "(a) and (b) are swapped": lambda phi, G: (phi / sqrt(G / (G - 1)), phi * sqrt(G / (G - 1))),
        },
    },
    "7.3": {
        "expected": by_counting,
        "inputs": logs,
        "bug": lambda rewards, p: (
            rewards.std(axis=1)[rewards.any(axis=1) & ~rewards.all(axis=1)].mean() / sqrt(p * (1 - p))
        ),
        "mistakes": {
            "that is the root of the mean variance: E[sigma] is smaller (Jensen)": lambda rewards, p: sqrt(
                rewards.var(axis=1).mean() / (p * (1 - p))
            ),
            "ddof: you divided by G - 1 inside the standard deviation": lambda rewards, p: (
                rewards.std(axis=1, ddof=1).mean() / sqrt(p * (1 - p))
            ),
            "that pools all groups: their means differ, so it is always near 1": lambda rewards, p: (
                rewards.std() / sqrt(p * (1 - p))
            ),
        },
    },
}
