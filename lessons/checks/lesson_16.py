"""What the exercises of lesson 16 are checked against. `kit.check` explains the keys."""

import numpy as np
import torch
from torch import Tensor

EOS = 2
ids = torch.tensor([[5, 7, EOS, EOS], [5, EOS, EOS, EOS], [5, 7, 8, 9]])  # EOS pads too
logits, sequence = torch.from_numpy(np.random.default_rng(0).normal(size=(7, 4))), torch.tensor([1, 3, 0, 2, 2, 1, 0])


def mask(ids: Tensor, end: int, with_end: bool = True) -> Tensor:
    """By a loop over the tokens of each row."""
    rows = [[end not in row[: t + 1 - with_end] for t in range(len(row))] for row in ids.tolist()]
    return torch.tensor(rows)


def scores(logits: Tensor, sequence: Tensor, n: int, late: int = 0) -> Tensor:
    """The log-probabilities of the tokens behind the first n, each from the output before it, or `late` further on."""
    outputs = [min(t - 1 + late, len(sequence) - 1) for t in range(n, len(sequence))]
    chosen = [logits[i] - logits[i].exp().sum().log() for i in outputs]
    return torch.stack([row[token] for row, token in zip(chosen, sequence[n:].tolist())])


CHECKS = {
    "16.1": {
        "expected": mask,
        "inputs": [{"ids": ids, "end": EOS}, {"ids": ids.flip(0)[:, :3], "end": EOS}],
        "bug": lambda ids, end: mask(ids, end, with_end=False),
        "mistakes": {
            "the padding is under the mask too: nothing may follow the first EOS": lambda ids, end: ids == ids,
            "one token too many: the mask ends with the first EOS, not behind it": (
                lambda ids, end: torch.cat([torch.ones(len(ids), 1).bool(), mask(ids, end)[:, :-1]], dim=1)
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
