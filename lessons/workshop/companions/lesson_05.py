"""The pictures of lesson 5, and the right answers and usual mistakes of its exercises."""

from collections.abc import Callable
from functools import partial
from types import ModuleType

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import logsigmoid

from algorithms import dapo
from lessons.workshop.notebook import RIGHT, WRONG, new_figure


def loss_of_script(
    script: ModuleType, rewards: Tensor, logps: Tensor, mask: Tensor, old=None, ref=None
) -> Tensor:
    """policy_loss of groups with these rewards (P, G); by default the old policy and the reference
    are the policy itself."""
    here = logps.detach()
    batch = {"logps": logps, "old_logps": here if old is None else old, "mask": mask}
    if script is not dapo:  # which has no KL term
        batch["ref_logps"] = here if ref is None else ref
    A = script.compute_advantages(rewards=rewards).view(-1, 1)
    return script.policy_loss(**batch, advantages=A, config=script.Config())


def two_rules(grown: dict) -> Figure:
    """Lesson 5: mean lengths over the updates, a panel for each of the first two rules.
    grown[rule]: of wrong and of right completions, (updates, 2)."""
    figure, axes = new_figure(8.5, 3.0, columns=2, sharey=True)
    for axis, (rule, lengths) in zip(axes, grown.items()):
        axis.plot(lengths[:, 1], "-", color=RIGHT, label="right")
        axis.plot(lengths[:, 0], "--", color=WRONG, label="wrong")
        axis.plot(lengths @ (0.7, 0.3), ":", color="black", label="all")
        axis.set(title=rule, xlabel="updates", ylim=(0, 55))
    axes[0].set_ylabel("tokens")
    axes[-1].legend(fontsize=9, loc="upper right", ncols=3, handlelength=1.5, columnspacing=1)
    return figure


# Exercises; `notebook.check` explains the keys of CHECKS


def push_on_shared(long_right, long_wrong, L1, L2, right_sign=-1, short_score=1):
    """(short_score / L1 - 1 / L2) times the variance of "long" in the wrong class, plus right_sign
    times that in the right one."""
    right, wrong = (share * (1 - share) for share in (long_right, long_wrong))
    return (short_score / L1 - 1 / L2) * (wrong + right_sign * right)


def sums(f, mask, size):
    """The sum over the tokens of each part of `size` completions."""
    return [part.sum() for part in (f * mask).split(size)]


def means(f, mask, size):
    """The mean over the tokens of each part of `size` completions."""
    return [total / real.sum() for total, real in zip(sums(f, mask, size), mask.split(size))]


def token_means(f, mask, size):
    """The share of each part in the token mean of the whole batch."""
    return [total / mask.sum() for total in sums(f, mask, size)]


def mean_of_means(f, mask, size):
    return [mean * size / len(f) for mean in means(f, mask, size)]


terms = torch.tensor([[1, 2, 9, 9], [3, 9, 9, 9], [1, 1, 1, 5], [0.5, 9, 9, 9]]).double()

CHECKS = {
    "5.1": {
        "expected": [[-1, 0, -1], [0, 1, 1]],
        "mistakes": {
            "a constant pushes the tokens of short and long completions alike": (
                [[-1, 1, -1], [-1, 1, 1]]
            ),
            "where A < 0, the tokens of the short completion are lowered hardest": (
                [[-1, 0, -1], [0, -1, -1]]
            ),
        },
    },
    "5.2": {
        "bug": mean_of_means,
        "expected": token_means,
        "inputs": [{"f": terms, "mask": terms < 9, "size": size} for size in (1, 2)],
        "mistakes": {
            "those are means: divide by the tokens of the whole batch": means,
            "padding is counted as tokens": lambda f, mask, size: (
                [part / f.numel() for part in sums(f, mask, size)]
            ),
        },
    },
    "5.3": {
        "expected": push_on_shared,
        "inputs": [
            {"long_right": 0.1, "long_wrong": 0.5, "L1": 5, "L2": 50},
            {"long_right": 0.6, "long_wrong": 0.2, "L1": 4, "L2": 10},
        ],
        "mistakes": {
            "the two classes are pushed with opposite signs": partial(push_on_shared, right_sign=1),
            "a share does not push: multiply d(L) by the score, then take the mean": (
                lambda long_right, long_wrong, L1, L2: (1 / L1 - 1 / L2) * (long_wrong - long_right)
            ),
            "the score of a short completion is not 0 either": partial(
                push_on_shared, short_score=0
            ),
        },
    },
}


def mean_lengths(loss_of: Callable, right: Tensor, updates: int, rate: float) -> np.ndarray:
    """The mean length of wrong and of right completions, (updates, 2), while two logits are
    trained: of going on to 50 tokens after the fifth, in either kind.

    loss_of(logps, right, mask), from (B, 50), (B, 1) and (B, 50). right: 1 or 0.
    """
    rng, logits, lengths = np.random.default_rng(0), torch.zeros(2).double(), []
    place = torch.arange(1, 51)
    for _ in range(updates):
        share = logits.sigmoid()
        lengths.append(5 + 45 * share)
        long = torch.tensor(rng.random(right.shape)) < share[right]
        logits.requires_grad_()
        z = logits[right]  # (B, 1)
        logps = (place == 5) * logsigmoid(torch.where(long, z, -z))  # (B, 50)
        loss = loss_of(logps, right, place <= torch.where(long, 50, 5))
        logits = (logits - rate * torch.autograd.grad(loss, logits)[0]).detach()
    return torch.stack(lengths).numpy()


def wrong_lengths(losses_in_parts) -> list[float]:
    """Of 96 completions half are right: A is -1 or 1."""

    def loss_of(logps, right, mask):
        return sum(losses_in_parts((1 - 2 * right) * logps, mask, 1))

    return mean_lengths(loss_of, torch.arange(96).view(-1, 1) % 2, 81, 4.0)[:, 0].tolist()


TRAINED = {
    "5.2": {
        "curve": wrong_lengths,
        "right": "the solution",
        "mistakes": {
            "the bug, parts of 1": mean_of_means,
            "the bug, parts of 4": lambda f, mask, size: mean_of_means(f, mask, 4),
        },
        "labels": ("updates", "tokens, wrong completion"),
    }
}
