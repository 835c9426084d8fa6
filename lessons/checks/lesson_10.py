"""What the exercises of lesson 10 are checked against. `kit.check` explains the keys."""

import numpy as np
import torch

from lessons.identity import silent_rate


def capped_redraw(p: float, G: int, draws: int) -> float:
    """Weight over GRPO's of a prompt whose group is drawn again while it is silent, at most `draws`
    times in all: each draw adds the probability that it is needed."""
    return sum(silent_rate(p, G) ** i for i in range(draws))


def wasted(p: np.ndarray, G: int) -> float:
    """G times the expected number of silent groups before the first that is not."""
    S = silent_rate(p, G).mean()
    return G * S / (1 - S)


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
    },
    "10.2": {
        "expected": wasted,
        "inputs": [
            {"p": np.array([0.05, 0.5]), "G": 8},
            {"p": np.array([0.01, 0.3, 0.9]), "G": 16},
        ],
    },
    "10.3": {
        "expected": lambda shaped: mixed,
        "inputs": [{"shaped": torch.tensor(MIXED + SILENT).double()}],
    },
}
