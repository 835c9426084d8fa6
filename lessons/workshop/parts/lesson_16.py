"""The right answers and usual mistakes of lesson 16's exercises; `kit.check` explains the keys."""

from functools import partial

import torch

from algorithms import grpo

logits = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)).double()
sequence = torch.tensor([1, 3, 0, 2, 2, 1, 0])
R = torch.tensor([[1.0, 0, 0, 0, 0, 0], [1, 1, 0, 1, 1, 0], [0, 1, 0, 1, 0, 1]])
by_group, by_batch = grpo.compute_advantages(rewards=R), (R - R.mean()) / R.std()
one_by_group = torch.cat([by_group[:1], by_batch[1:]])


def own_means(A, kept=lambda A: A.sum(dim=1).abs() < 1e-4, of_all=torch.all):
    """True if the advantages of every group, (P, G), add up to 0."""
    return bool(of_all(kept(A)))


def scores(logits, sequence, n, early=1, normalised=torch.log_softmax):
    """The log-probabilities of the tokens behind the first n, from outputs so many positions
    early."""
    rows = normalised(logits, 1)[n - early : len(logits) - early]
    return rows.gather(1, sequence[n:, None])[:, 0]


CHECKS = {
    "16.1": {
        "expected": own_means,
        "inputs": [
            {"A": A} for A in (by_group, by_batch, one_by_group, by_group - 0.1, by_group.T)
        ],
        "mistakes": {
            "the sum over the batch is 0 both ways: look at every group": (
                partial(own_means, kept=lambda A: A.sum().abs() < 1e-4)
            ),
            "one group with the sum 0 is not enough": partial(own_means, of_all=torch.any),
            "a sum of floats is seldom exactly 0: allow for rounding": (
                partial(own_means, kept=lambda A: A.sum(dim=1) == 0)
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
