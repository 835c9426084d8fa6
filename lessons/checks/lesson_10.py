"""Right answers and usual mistakes of lesson 10's exercises; `kit.check` explains the keys."""

import numpy as np
import torch
from torch import Tensor

from lessons.identity import silent_rate


def capped_redraw(p: float, G: int, draws: int) -> float:
    """Weight over GRPO's of a prompt whose group is drawn again while it is silent, at most `draws`
    times in all: each draw adds the probability that it is needed."""
    return sum(silent_rate(p, G) ** i for i in range(draws))


def silent_per_kept(p: np.ndarray, G: int) -> float:
    """The expected number of silent groups before the first that is not."""
    S = silent_rate(p, G).mean()
    return S / (1 - S)


def differ(verdicts: Tensor) -> Tensor:
    """(groups,), bool, from (groups, G), bool: the groups whose verdicts are not all the same."""
    return (verdicts != verdicts[:, :1]).any(dim=1)


MIXED = [[1, 1, 1, -1], [0, -1, -1, -2], [0, -1, -1, -1], [0.2, 0.1, 0, -1]]
SILENT = [
    [1, 1, 0.4, 1],
    [-1, -1.8, -1, -1],
    [1, 0, 1, 0],
    [-1, -1, -1, -1],
    [1, 1, 1, 1],
    [1, 0.9, 0.8, 1],
]
mixed = torch.arange(10) < len(MIXED)

CHECKS = {
    "10.1": {
        "expected": capped_redraw,
        "inputs": [
            {"p": 0.02, "G": 8, "draws": 4},
            {"p": 0.3, "G": 4, "draws": 2},
            {"p": 0.9, "G": 16, "draws": 1},
        ],
        "mistakes": {
            "that has no limit on the draws": lambda p, G, draws: 1 / (1 - silent_rate(p, G)),
            "the probability of a mixed end; GRPO's is not 1": (
                lambda p, G, draws: 1 - silent_rate(p, G) ** draws
            ),
            "a group is drawn again only while it is silent": lambda p, G, draws: draws,
        },
    },
    "10.2": {
        "expected": lambda p, G: G * silent_per_kept(p, G),
        "inputs": [
            {"p": np.array([0.05, 0.5]), "G": 8},
            {"p": np.array([0.01, 0.3, 0.9]), "G": 16},
        ],
        "mistakes": {
            "that is the cost of redrawing the same prompt": (
                lambda p, G: G * np.mean([silent_per_kept(each, G) for each in p])
            ),
            "the completions of the kept group are not wasted": (
                lambda p, G: G * (1 + silent_per_kept(p, G))
            ),
            "those are groups; each has G completions": silent_per_kept,
            "average S over the prompts, not p": lambda p, G: G * silent_per_kept(p.mean(), G),
            "turned round: those are the completions kept for each silent group": (
                lambda p, G: G / silent_per_kept(p, G)
            ),
        },
    },
    "10.3": {
        "bug": lambda shaped: shaped.std(dim=1) > 0,
        "expected": lambda shaped: mixed,
        "inputs": [{"shaped": torch.tensor(MIXED + SILENT).double()}],
        "mistakes": {
            "no threshold will do: a silent group can spread more than a mixed one": (
                lambda shaped: shaped.std(dim=1) > 0.5
            ),
            "a right completion at the limit has a shaped reward of 0": (
                lambda shaped: differ(shaped > 0)
            ),
            "rounded rewards still differ: 1 and .4 are both right": (
                lambda shaped: differ(shaped.round())
            ),
            "right at the limit has 0, whose sign is neither 1 nor −1": (
                lambda shaped: differ(shaped.sign())
            ),
            "a right completion may have less than 1: its reward is shaped": (
                lambda shaped: differ(shaped == 1)
            ),
            "these are the groups to discard": lambda shaped: ~mixed,
        },
    },
}
