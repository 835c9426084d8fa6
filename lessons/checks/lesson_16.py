"""What the exercises of lesson 16 are checked against. `kit.check` explains the keys."""

import numpy as np
import torch
from torch import Tensor

from lessons.checks.lesson_01 import up_to_eos

EOS = 2
ids = torch.tensor([[5, 7, EOS, EOS], [5, EOS, EOS, EOS], [5, 7, 8, 9]])  # EOS pads too
logits, sequence = (
    torch.from_numpy(np.random.default_rng(0).normal(size=(7, 4))),
    torch.tensor([1, 3, 0, 2, 2, 1, 0]),
)


def scores(logits: Tensor, sequence: Tensor, n: int) -> Tensor:
    """The log-probabilities of the tokens behind the first n, each from the output before it."""
    return logits.log_softmax(dim=1)[n - 1 : -1].gather(1, sequence[n:, None])[:, 0]


CHECKS = {
    "16.1": {
        "expected": up_to_eos,
        "inputs": [{"ids": ids, "end": EOS}, {"ids": ids.flip(0)[:, :3], "end": EOS}],
    },
    "16.2": {
        "expected": scores,
        "inputs": [{"logits": logits, "sequence": sequence, "n": n} for n in (3, 5)],
    },
}
