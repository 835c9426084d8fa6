"""What the exercises of lesson 5 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from algorithms import dapo
from lessons import identity

RIGHT = torch.tensor([1.0, 1.0, 0.0, 0.0]).double()  # of the four kinds: right and short, right and long, wrong ...


def pushes(pi: Tensor, lengths: Tensor) -> Tensor:
    """GRPO's expected push on the log-probability of each of the four kinds, from all groups of 4 of them."""
    push = torch.zeros(4).double()
    for group in product(range(4), repeat=4):
        kinds = torch.tensor(group)
        R = RIGHT[kinds]
        if 0 < R.mean() < 1:
            A = (R - R.mean()) / R.std(correction=0)
            push.index_add_(0, kinds, pi[kinds].prod() * A / 4 / lengths[kinds])
    return push


def shares(logits: Tensor) -> Tensor:
    """P(long | right), P(long | wrong), P(long)."""
    P = logits.softmax(dim=0)
    return torch.stack([P[1] / (P[0] + P[1]), P[3] / (P[2] + P[3]), P[1] + P[3]])


def moves(*divisors: float, p: float = 0.3) -> list[int]:
    """Signs of the changes of these in one small step, if each kind has its own divisor."""
    pi = torch.tensor([p, p, 1 - p, 1 - p]).double() / 2
    push = pushes(pi, torch.tensor(divisors))
    change = shares(pi.log() + 1e-4 * (push - pi * push.sum())) - shares(pi.log())
    return (change.sign() * (change.abs() > 1e-7)).tolist()


def push_on_shared(long_right: float, long_wrong: float, L1: int, L2: int, p: float = 0.3) -> float:
    """By autograd through the log-probabilities of the four kinds."""
    z = torch.zeros(1).double().requires_grad_()
    long = (torch.tensor([long_right, long_wrong]).double().logit() + z).sigmoid()
    pi = torch.stack([p * (1 - long[0]), p * long[0], (1 - p) * (1 - long[1]), (1 - p) * long[1]])
    objective = pushes(pi.detach(), torch.tensor([L1, L2, L1, L2])) @ pi.log()
    return torch.autograd.grad(objective, z)[0].item() / identity.expected_sigma(p, 4)


def token_mean(f: Tensor, mask: Tensor, size: int) -> Tensor:
    """DAPO's own loss, with token terms of f, because the ratio is 1 and the advantages are -f; for any `size`."""
    zero = torch.zeros_like(f)
    return dapo.policy_loss(logps=zero, old_logps=zero, advantages=-f, mask=mask, config=dapo.Config())


def mean_of(average: Callable) -> Callable:
    """What micro-batches give if each is averaged by `average` and then all of them are."""
    return lambda f, mask, size: torch.stack([average(*part) for part in zip(f.split(size), mask.split(size))]).mean()


def variance(share: float) -> float:
    return share * (1 - share)


terms = torch.tensor([[1.0, 2, 9, 9], [3, 9, 9, 9], [1, 1, 1, 5], [0.5, 9, 9, 9]]).double()
real = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]).bool()

CHECKS = {
    "5.1": {
        "expected": [moves(5, 50, 56, 56), moves(56, 56, 5, 50)],
        "mistakes": {
            "a constant pushes the tokens of short and long completions alike": [[-1, 1, -1], [-1, 1, 1]],
            "a constant favours no length, whatever p is": [[-1, 1, 1], [-1, 1, 1]],
            "where A < 0, the tokens of the short completion are lowered hardest": [[-1, 0, -1], [0, -1, -1]],
            "the two rows are exchanged": [moves(56, 56, 5, 50), moves(5, 50, 56, 56)],
            "most completions are wrong, but that says only how the two classes are weighted": [[-1, 0, 1], [0, 1, 1]],
        },
    },
    "5.2": {
        "expected": push_on_shared,
        "inputs": [
            {"long_right": 0.1, "long_wrong": 0.5, "L1": 5, "L2": 50},
            {"long_right": 0.6, "long_wrong": 0.2, "L1": 4, "L2": 10},
            {"long_right": 0.3, "long_wrong": 0.7, "L1": 5, "L2": 20},
        ],
        "mistakes": {
            "the sign: right completions are pushed up": lambda long_right, long_wrong, L1, L2: (
                (1 / L1 - 1 / L2) * (variance(long_right) - variance(long_wrong))
            ),
            "the two classes are pushed with opposite signs": lambda long_right, long_wrong, L1, L2: (
                (1 / L1 - 1 / L2) * (variance(long_right) + variance(long_wrong))
            ),
            "the score of a short completion is not 0 either": lambda long_right, long_wrong, L1, L2: (
                (variance(long_right) - variance(long_wrong)) / L2
            ),
        },
    },
    "5.3": {
        "expected": token_mean,
        "inputs": [{"f": terms, "mask": real, "size": size} for size in (1, 2, 4)],
        "bug": mean_of(lambda f, mask: (f * mask).sum() / mask.sum()),
        "mistakes": {
            "that is the sum of the means: divide by the tokens of the whole batch": lambda f, mask, size: (
                mean_of(lambda f, mask: (f * mask).sum() / mask.sum())(f, mask, size) * (len(f) / size)
            ),
            "padding is counted as tokens": mean_of(lambda f, mask: (f * mask).mean()),
            "divided twice: the token count of the whole batch is enough": lambda f, mask, size: (
                token_mean(f, mask, size) / (len(f) / size)
            ),
        },
    },
}
