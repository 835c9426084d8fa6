"""The pictures of lesson 5, and the right answers and usual mistakes of its exercises."""

import re
from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure
from torch.nn.functional import logsigmoid

from algorithms import dr_grpo
from lessons import identity
from lessons.workshop import kit
from lessons.workshop.kit import BLUE, GREEN, ORANGE, RIGHT, WRONG, new_figure
from lessons.workshop.parts.drawing import curve, note, two_panels

C, G = dr_grpo.Config().max_new_tokens, 8
GRID = np.linspace(0, 1, 81)
SIGNS = {  # sign, line, and the labels of both panels
    "A > 0 only": (1, "-", 0.66, "A > 0 (solid)", 0.02, "right (solid)"),
    "A < 0 only": (-1, "--", 0.3, "A < 0 (dashed)", 0.95, "wrong (dashed)"),
}


def token_mean(L: float, short: int, long: int, B: int) -> float:
    """E[B / (L + lengths of the other B - 1)], each of them short or long with probability one
    half."""
    others_long = np.arange(B)
    tokens = L + others_long * long + (B - 1 - others_long) * short
    return float(identity.binomial(0.5, B - 1) @ (B / tokens))


def push_and_drift(short: int, long: int, A: str) -> Figure:
    """Lesson 5: push on one token against the length of its completion, and the drift of length
    against p."""
    shown = [SIGNS[A]] if A in SIGNS else SIGNS.values()
    L = np.arange(3, C + 1)
    rules = (
        ("GRPO", BLUE, 1 / L),
        ("DAPO, B = 8", GREEN, np.array([token_mean(n, short, long, G) for n in L])),
        ("Dr. GRPO", ORANGE, 0 * L + 1 / C),
    )
    figure, left, right = two_panels(
        3.7,
        {
            "title": "Push on one token",
            "xlabel": "tokens of its completion",
            "ylabel": "in units of Dr. GRPO's",
            "xticks": range(0, 51, 10),
            "xlim": (0, C + 1),
            "ylim": (-15, 15),
        },
        {
            "title": "Drift of the share of long completions",
            "xlabel": "p",
            "ylabel": "in units of p's rise at p = ½",
            "xlim": (0, 1),
            "yticks": [-1, -0.5, 0, 0.5, 1],
            "ylim": (-1.05, 1.05),
        },
    )
    size = identity.expected_sigma(GRID, G) / identity.expected_sigma(0.5, G)
    for i, (name, color, weight) in enumerate(rules):
        one, other = ends = weight[[short - 3, long - 3]]
        favour = (one - other) / (one + other)  # for a step that raises p = 1/2 by one
        for sign, style, *_ in shown:
            curve(left, L, sign * C * weight, color, style)
            left.plot([short, long], sign * C * ends, "o", color=color, markersize=6)
            curve(right, GRID, -sign * size * favour, color, style)
        if len(shown) == 2:
            label = "" if i else "all (dotted)"
            y = size * (1 - 2 * GRID) * favour
            curve(right, GRID, y, color, ":", label, at=16, xytext=(2, 9))
        note(left, 0.62, 0.93 - 0.08 * i, name, color)
    left.axhline(0, color="black", linewidth=0.8)
    for _, _, y, text, y_right, text_right in shown:
        note(left, 0.62, y, text, fontsize=9)
        note(right, 0.5, y_right, text_right, fontsize=9, ha="center")
    return figure


def lengths_by_arm(arms: dict) -> Figure:
    """Lesson 5: mean length of right and of wrong completions at the end of training, four arms of
    `pieces`."""
    names = {
        "GRPO": "GRPO:\n1/|y|, ÷ σ",
        "GRPO, constant length": "constant, ÷ σ",
        "GRPO, not / σ": "1/|y|, not ÷ σ",
        "Dr. GRPO": "Dr. GRPO:\nconstant, not ÷ σ",
    }
    size, beside = (8, 6) if kit.narrow else (10, 9)
    if kit.narrow:
        names = {arm: re.sub("([,:]) ", r"\1\n", name) for arm, name in names.items()}
    figure, axis = new_figure(8.5, 3.4)
    for verdict, color, marker, side in (("right", RIGHT, "o", -1), ("wrong", WRONG, "s", 1)):
        for x, arm in enumerate(names):
            n, at = arms[arm][f"length_{verdict}"], x + 0.12 * side
            band = {"linewidth": 11, "alpha": 0.25, "solid_capstyle": "butt"}
            axis.plot([at] * 2, n["interval"], color=color, **band)
            axis.plot([at] * len(n["seeds"]), n["seeds"], marker, color=color, markersize=3.5)
            axis.annotate(f"{n['mean']:.1f}", (at, n["mean"]), (beside * side, 0), va="center",
                          ha="left" if side > 0 else "right", textcoords="offset points",
                          color=color, fontsize=size)  # fmt: skip
    axis.set_xticks(range(4), names.values(), fontsize=size)
    axis.set(xlim=(-0.6, 3.6), ylim=(0, 32), ylabel="tokens, last ten steps")
    axis.text(-0.5, 7, "● right completions", color=RIGHT)
    axis.text(-0.5, 3, "■ wrong completions", color=WRONG)
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


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
        "expected": push_on_shared,
        "inputs": [
            {"long_right": 0.1, "long_wrong": 0.5, "L1": 5, "L2": 50},
            {"long_right": 0.6, "long_wrong": 0.2, "L1": 4, "L2": 10},
        ],
        "mistakes": {
            "the two classes are pushed with opposite signs": partial(push_on_shared, right_sign=1),
            "the score of a short completion is not 0 either": partial(
                push_on_shared, short_score=0
            ),
        },
    },
    "5.3": {
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
}


def wrong_lengths(losses_in_parts) -> list[float]:
    """The mean length of a wrong completion, at most C, while two logits are trained: of stopping
    after a token, in wrong and in right completions. Of 32 completions half are right: A is -1 or
    1."""
    rng, logits, lengths = np.random.default_rng(0), torch.tensor([-2.2, -2.2]).double(), []
    right, place = torch.arange(32).view(-1, 1) % 2, torch.arange(1, C + 1)
    for _ in range(81):
        stop = logits.sigmoid()
        lengths.append(min(C, 1 / stop[0].item()))
        last = torch.tensor(rng.geometric(stop[right]))
        logits.requires_grad_()
        z = logits[right]  # (B, 1)
        f = (1 - 2 * right) * logsigmoid(torch.where(place == last, z, -z))  # (B, C)
        loss = sum(losses_in_parts(f, place <= last, 1))
        logits = (logits - torch.autograd.grad(loss, logits)[0] / 2).detach()
    return lengths


TRAINED = {
    "5.3": {
        "curve": wrong_lengths,
        "right": token_means,
        "mistakes": {
            "the bug, parts of 1": mean_of_means,
            "the bug, parts of 4": lambda f, mask, size: mean_of_means(f, mask, 4),
            "sum of means": means,
        },
        "labels": ("updates", "tokens, wrong completion"),
    }
}
