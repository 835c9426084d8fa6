"""The right answers and usual mistakes of lesson 16's exercises; `kit.check` explains the keys."""

from functools import partial

import torch

from lessons.workshop.parts.lesson_01 import up_to_eos

ids = torch.tensor([[5, 7, 2, 2], [5, 2, 2, 2], [5, 7, 8, 9]])  # the EOS, 2, pads too
logits = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)).double()
sequence = torch.tensor([1, 3, 0, 2, 2, 1, 0])


def scores(logits, sequence, n, early=1, normalised=torch.log_softmax):
    """The log-probabilities of the tokens behind the first n, from outputs so many positions
    early."""
    rows = normalised(logits, 1)[n - early : len(logits) - early]
    return rows.gather(1, sequence[n:, None])[:, 0]


CHECKS = {
    "16.1": {
        "bug": lambda ids, end: ids != end,
        "expected": up_to_eos,
        "inputs": [{"ids": ids, "end": 2}, {"ids": ids.flip(0)[:, :3], "end": 2}],
        "mistakes": {
            "the padding is under the mask too: nothing may follow the first EOS": (
                lambda ids, end: torch.ones_like(ids)
            ),
            "one token too many: the mask ends with the first EOS, not behind it": (
                lambda ids, end: up_to_eos(ids, end).roll(1, 1) | (ids != end)
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
