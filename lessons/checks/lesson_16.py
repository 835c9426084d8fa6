"""What the exercises of lesson 16 are checked against. `kit.check` explains the keys."""

import numpy as np
import torch
from torch import Tensor

from lessons.checks.lesson_01 import up_to_eos

EOS = 2
ids = torch.tensor([[5, 7, EOS, EOS], [5, EOS, EOS, EOS], [5, 7, 8, 9]])  # EOS pads too
logits, sequence = torch.from_numpy(np.random.default_rng(0).normal(size=(7, 4))), torch.tensor([1, 3, 0, 2, 2, 1, 0])


def scores(logits: Tensor, sequence: Tensor, n: int, late: int = 0) -> Tensor:
    """The log-probabilities of the tokens behind the first n, each from the output before it, or `late` further on."""
    outputs = logits.log_softmax(dim=1)[n - 1 + late : len(sequence) - 1 + late]
    return outputs.gather(1, sequence[n:, None])[:, 0]


CHECKS = {
    "16.1": {
        "expected": up_to_eos,
        "inputs": [{"ids": ids, "end": EOS}, {"ids": ids.flip(0)[:, :3], "end": EOS}],
        "bug": lambda ids, end: up_to_eos(ids, end) & (ids != end),
        "mistakes": {
            "the padding is under the mask too: nothing may follow the first EOS": lambda ids, end: ids == ids,
            "one token too many: the mask ends with the first EOS, not behind it": (
                lambda ids, end: torch.cat([torch.ones(len(ids), 1).bool(), up_to_eos(ids, end)[:, :-1]], dim=1)
            ),
        },
    },
    "16.2": {
        "expected": scores,
        "inputs": [{"logits": logits, "sequence": sequence, "n": n} for n in (3, 5)],
        "bug": lambda logits, sequence, n: scores(logits, sequence, n, late=1),
        "mistakes": {
            "the right outputs, but logits: log_softmax over the vocabulary is missing": (
                lambda logits, sequence, n: logits[n - 1 : -1].gather(1, sequence[n:, None])[:, 0]
            ),
            "one position early now": lambda logits, sequence, n: scores(logits, sequence, n, late=-1),
        },
    },
}
