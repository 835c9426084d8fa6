"""The right answers and usual mistakes of lesson 16's exercises; `kit.check` explains the keys."""

import numpy as np
import torch
from torch import Tensor

from lessons.workshop.parts.lesson_01 import up_to_eos

EOS = 2
ids = torch.tensor([[5, 7, EOS, EOS], [5, EOS, EOS, EOS], [5, 7, 8, 9]])  # EOS pads too
logits = torch.from_numpy(np.random.default_rng(0).normal(size=(7, 4)))
sequence = torch.tensor([1, 3, 0, 2, 2, 1, 0])


def one_more(ids: Tensor, end: int) -> Tensor:
    mask = up_to_eos(ids, end)
    return torch.cat([mask[:, :1], mask[:, :-1]], dim=1)


def scores(outputs: Tensor, sequence: Tensor, n: int) -> Tensor:
    """The outputs for the tokens behind the first n, one from each row."""
    return outputs.gather(1, sequence[n:, None])[:, 0]


CHECKS = {
    "16.1": {
        "bug": lambda ids, end: ids != end,
        "expected": up_to_eos,
        "inputs": [{"ids": ids, "end": EOS}, {"ids": ids.flip(0)[:, :3], "end": EOS}],
        "mistakes": {
            "the padding is under the mask too: nothing may follow the first EOS": (
                lambda ids, end: torch.ones_like(ids).bool()
            ),
            "one token too many: the mask ends with the first EOS, not behind it": one_more,
        },
    },
    "16.2": {
        "bug": lambda logits, sequence, n: scores(logits[n:].log_softmax(dim=1), sequence, n),
        "expected": lambda logits, sequence, n: scores(
            logits[n - 1 : -1].log_softmax(dim=1), sequence, n
        ),
        "inputs": [{"logits": logits, "sequence": sequence, "n": n} for n in (3, 5)],
        "mistakes": {
            "the right outputs, but logits: log_softmax over the vocabulary is missing": (
                lambda logits, sequence, n: scores(logits[n - 1 : -1], sequence, n)
            ),
            "one position early now": lambda logits, sequence, n: scores(
                logits[n - 2 : -2].log_softmax(dim=1), sequence, n
            ),
        },
    },
}
