"""What the exercises of lesson 10 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable

import numpy as np
import torch

from lessons.identity import silent_rate


def capped_redraw(p: float, G: int, draws: int) -> float:
    """Weight over GRPO's of a prompt whose group is drawn again while it is silent, at most `draws` times in all: each
    draw adds the probability that it is needed."""
    return sum(silent_rate(p, G) ** i for i in range(draws))


def wasted(p: np.ndarray, G: int) -> float:
    """G times the expected number of silent groups before the first that is not."""
    S = silent_rate(p, G).mean()
    return G * S / (1 - S)


def spread_above(least: float) -> Callable:
    return lambda shaped: shaped.std(dim=1) > least


MIXED = [[1, 1, 1, -1], [0, -1, -1, -2], [0, -1, -1, -1], [0.2, 0.1, 0, -1]]
SILENT = [[1, 1, 0.4, 1], [-1, -1.8, -1, -1], [1, 0, 1, 0], [-1, -1, -1, -1], [1, 1, 1, 1], [1, 0.9, 0.8, 1]]
mixed = torch.arange(10) < len(MIXED)

CHECKS = {
    "10.1": {
        "expected": capped_redraw,
        "inputs": [{"p": 0.02, "G": 8, "draws": 4}, {"p": 0.3, "G": 4, "draws": 2}, {"p": 0.9, "G": 16, "draws": 1}],
        "mistakes": {
            "that has no limit on the draws": lambda p, G, draws: 1 / (1 - silent_rate(p, G)),
            "a group is drawn again only while it is silent": lambda p, G, draws: draws,
            "the probability of a mixed end; GRPO's is not 1": lambda p, G, draws: 1 - silent_rate(p, G) ** draws,
        },
    },
    "10.2": {
        "expected": wasted,
        "inputs": [{"p": np.array([0.05, 0.5]), "G": 8}, {"p": np.array([0.01, 0.3, 0.9]), "G": 16}],
        "mistakes": {
            "that is the cost of redrawing the same prompt": lambda p, G: G * (1 / (1 - silent_rate(p, G)) - 1).mean(),
            "the completions of the kept group are not wasted": lambda p, G: wasted(p, G) + G,
            "those are groups; each has G completions": lambda p, G: wasted(p, G) / G,
            "average S over the prompts, not p": lambda p, G: wasted(p.mean(keepdims=True), G),
            "turned round: those are the completions kept for each silent group": lambda p, G: G * G / wasted(p, G),
        },
    },
    "10.3": {
        "expected": lambda shaped: mixed,
        "inputs": [{"shaped": torch.tensor(MIXED + SILENT).double()}],
        "bug": spread_above(0),
        "mistakes": {
            "no threshold will do: a silent group can spread more than a mixed one": spread_above(0.5),
            "a right completion at the limit has a shaped reward of 0": (
                lambda shaped: (shaped > 0).any(dim=1) & (shaped <= 0).any(dim=1)
            ),
            "rounded rewards still differ: 1 and .4 are both right": lambda shaped: spread_above(0)(shaped.round()),
            "right at the limit has 0, whose sign is neither 1 nor −1": lambda shaped: spread_above(0)(shaped.sign()),
            "a right completion may have less than 1: its reward is shaped": (
                lambda shaped: (shaped == 1).any(dim=1) & (shaped != 1).any(dim=1)
            ),
            "these are the groups to discard": lambda shaped: ~mixed,
        },
    },
}
