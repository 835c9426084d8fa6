"""The right answers and usual mistakes of lesson 16's exercises; `notebook.check` explains
the keys."""

from functools import partial

import torch

logits = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)).double()
sequence = torch.tensor([1, 3, 0, 2, 2, 1, 0])


def leaves(z, steps=3, low=-1, size=torch.clone, first=1):
    """The first of so many steps outside the band, on one side."""
    for step in range(len(z) - steps + 1):
        part = size(z[step : step + steps])
        if part.min() > 1 or part.max() < low:
            return step + first


def scores(logits, sequence, n, early=1, normalised=torch.log_softmax):
    """The log-probabilities of the tokens behind the first n, from outputs so many positions
    early."""
    rows = normalised(logits, 1)[n - early : len(logits) - early]
    return rows.gather(1, sequence[n:, None])[:, 0]


CHECKS = {
    "16.1": {
        "expected": leaves,
        "inputs": [
            {"z": torch.tensor(z)} for z in ([2.0, 0, 3, 2, 4], [-3.0, -2, -5], [2.0, -2, 3])
        ],
        "mistakes": {
            "one step outside is not yet three": partial(leaves, steps=1),
            "a curve can leave the band below, too": partial(leaves, low=-9),
            "three steps outside, but on one side": partial(leaves, size=torch.abs),
            "steps are counted from 1": partial(leaves, first=0),
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
        },
    },
}
