"""The right answers and usual mistakes of lesson 16's exercises; `kit.check` explains the keys."""

from functools import partial

import numpy as np
import torch

logits = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)).double()
sequence = torch.tensor([1, 3, 0, 2, 2, 1, 0])


def leaves_band(curve, mean, deviation, steps=3, side=np.sign):
    """The first of so many steps, counted from 1, that are outside on one side; 0 without them."""
    z = (curve - mean) / deviation
    sides = side(z) * (abs(z) > 4)
    for t in range(len(z) - steps + 1):
        if abs(sides[t : t + steps].sum()) == steps:
            return t + 1
    return 0


def scores(logits, sequence, n, early=1, normalised=torch.log_softmax):
    """The log-probabilities of the tokens behind the first n, from outputs so many positions
    early."""
    rows = normalised(logits, 1)[n - early : len(logits) - early]
    return rows.gather(1, sequence[n:, None])[:, 0]


CHECKS = {
    "16.1": {
        "expected": leaves_band,
        "inputs": [
            {
                "curve": 1 + 0.1 * np.array(z),
                "mean": np.ones(len(z)),
                "deviation": np.full(len(z), 0.1),
            }
            for z in ([0, 5, 6, 0, 9, -9, 9, -5, -6, -7, 0], [9, 8, 7, 0], [3, 5, 5, 3, 5, 5])
        ],
        "mistakes": {
            "count the steps from 1": lambda *run: leaves_band(*run) - 1,
            "the first of the three steps is wanted, not the last": (
                lambda *run: leaves_band(*run) + 2 * (leaves_band(*run) > 0)
            ),
            "all three steps must be on the same side": partial(leaves_band, side=np.ones_like),
            "one step outside is not enough: three in a row": partial(leaves_band, steps=1),
            "the side is missing: a curve below the band has left it, too": (
                partial(leaves_band, side=lambda z: z > 0)
            ),
            "the distance from the mean must be divided by the standard deviation": (
                lambda curve, mean, deviation: leaves_band(curve, mean, np.ones_like(mean))
            ),
        },
    },
    "16.2": {
        "bug": partial(scores, early=0),
        "expected": scores,
        "inputs": [{"logits": logits, "sequence": sequence, "n": n} for n in (3, 5)],
        "mistakes": {
            "the right outputs, but logits: log_softmax over the vocabulary is missing": (
                partial(scores, normalised=lambda logits, _: logits)
            ),
            "one position early now": partial(scores, early=2),
        },
    },
}
