"""The pictures of lesson 1, and the right answers and usual mistakes of its exercises."""

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lessons.workshop import kit
from lessons.workshop.kit import BLUE, GREEN, GREY, ORANGE, RED, label_line
from lessons.workshop.parts.drawing import in_plane, key, two_panels


def cloud_and_variance(
    b: float, pi, R, s, grad_p, texts: list[str], variance, b_best: float
) -> Figure:
    """Lesson 1: each completion's estimate (R - b) s with the mean of all, and Var(b).

    pi, R: (15,); s: (15, parameters).
    """
    flat, pi, R = in_plane(s, pi, grad_p), pi.numpy(), R.numpy()
    dots, before = (R - b)[:, None] * flat, R[:, None] * flat
    title = f"Var(b) = {variance(b):.2f}, {variance(b) / variance(b_best):.2f} times the best"
    figure, left, right = two_panels(
        3.7,
        {
            "title": f"Estimates with b = {b:.2f}",
            "xlabel": "along ∇p",
            "ylabel": "across",
            "aspect": "equal",
            "xlim": (-1.6, 1.6),
            "ylim": (-1.6, 1.6),
        },
        {"title": title, "xlabel": "b", "xlim": (-0.35, 1.35), "ylim": (0, 1.2)},
    )
    for value, color in ((1, BLUE), (0, RED)):
        rows = value == R
        left.scatter(*dots[rows].T, s=1500 * pi[rows], color=color, alpha=0.55, linewidth=0)
    for i in np.flatnonzero(R):
        left.scatter(*before[i], s=1500 * pi[i], facecolor="none", edgecolor=GREY, linewidth=0.8)
        away = 4 + 22 * pi[i] ** 0.5  # across the ray along which the dot moves
        beside = (0, -away - 4) if abs(before[i, 0]) > abs(before[i, 1]) else (away, 0)
        label_line(left, *before[i], texts[i], GREY, xytext=beside)
    left.plot(*(pi @ dots), "+", color="black", markersize=18, markeredgewidth=2.5)
    x = 1.05 if kit.narrow else 0.03  # beside the square, which is full
    names = {"● right": BLUE, "● wrong": RED, "+ mean": "black", "○ right, b = 0": GREY}
    key(left, names, x, 0.93, 0.08)

    grid = np.linspace(-0.3, 1.3, 81)
    right.plot(grid, [variance(x) for x in grid], color=GREY)
    for name, x, color, offset, side in (
        ("none", 0, GREY, (6, 6), "left"),
        ("p", pi @ R, ORANGE, (9, -5), "left"),
        ("best", b_best, GREEN, (0, -16), "center"),
    ):
        right.plot(x, variance(x), "o", color=color, markersize=8)
        label_line(right, x, variance(x), name, color, xytext=offset, ha=side)
    right.plot(b, variance(b), "o", color="black", markersize=14, fillstyle="none",
               markeredgewidth=1.5)  # fmt: skip
    return figure


def noise_of_prompts(measured: dict, noise, bests: dict) -> Figure:
    """Lesson 1: the noise of the estimate against the baseline, over that without one, a panel for
    each prompt. measured: the arguments of noise(b, p, ...), by prompt."""
    figure, axes = kit.new_figure(8.5, 2.9, columns=3, sharey=True)
    for axis, (prompt, arguments) in zip(axes, measured.items()):
        p, unit, grid = arguments[0], noise(0, *arguments), np.linspace(0, 1, 81)
        axis.plot(grid, noise(grid, *arguments) / unit, color=GREY)
        for name, b, color, up in (
            ("none", 0, GREY, 13),
            ("best", bests[prompt], GREEN, -15),
            ("p", p, ORANGE, 13),
        ):
            y = noise(b, *arguments) / unit
            axis.plot(b, y, "o", color=color, markersize=8)
            label_line(axis, b, y, name, color, xytext=(0, up), ha="center")
        times = f"{y:.{1 if y > 2 else 2}f}"
        axis.set(title=f"{prompt}\nb = p: {times} × the noise", xlabel="baseline b")
        axis.set(xlim=(-0.15, 1.05), yscale="log", ylim=(0.25, 20))
    kit.ticks(axes[0].yaxis, [0.5, 1, 2, 5, 10])
    axes[0].set_ylabel("noise (none: 1)")
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum()


def score(logits, token):
    return np.eye(len(logits))[token] - softmax(logits)


def as_noisy_as_none(p: float) -> float:
    """The w at which p (1 - b)^2 + (1 - p) b^2 w, the mean of |(R - b) s|^2, is the same for b = p
    as for b = 0."""
    return (p - p * (1 - p) ** 2) / ((1 - p) * p**2)


def up_to_eos(ids: Tensor, eos: int) -> Tensor:
    is_eos = (ids == eos).int()
    return is_eos.cumsum(dim=1) - is_eos == 0


CHECKS = {
    "1.1": {
        "expected": score,
        "inputs": [
            {"logits": np.array([0.0, 1.0, -1.0]), "token": 1},
            {"logits": np.array([2.0, 0.5, 0.0, 1.0]), "token": 3},
        ],
        "mistakes": {
            "the 1 belongs to the sampled token's logit only": (
                lambda logits, token: 1 - softmax(logits)
            ),
            "that is the gradient of the probability": (
                lambda logits, token: softmax(logits)[token] * score(logits, token)
            ),
        },
    },
    "1.2": {
        "expected": as_noisy_as_none,
        "inputs": [{"p": 0.1}, {"p": 0.46}, {"p": 0.93}],
        "mistakes": {
            "there b = p is the best baseline; it is as noisy as none where it is twice the best": (
                lambda p: 1.0
            ),
            "right and wrong completions are not equally likely": lambda p: (2 - p) / p,
            "the advantage 1 - p of the right completions is squared, too": lambda p: 1 / (1 - p),
        },
    },
    "1.3": {
        "bug": torch.ne,
        "expected": up_to_eos,
        "inputs": [{"ids": torch.tensor([[0, 1, 2, 2], [2, 2, 2, 2], [1, 2, 0, 0]]), "eos": 2}],
        "mistakes": {
            "the EOS itself is still left out": lambda ids, eos: (ids == eos).cumsum(dim=1) == 0,
            "after the first EOS nothing counts, whatever its id": (
                lambda ids, eos: (ids == eos).cumsum(dim=1) <= 1
            ),
            "padding is no part of the completion": lambda ids, eos: ids == ids,
        },
    },
}


def success(mask_of) -> list[float]:
    """The share of right completions before each update by REINFORCE, without a baseline, with the
    mask mask_of(ids, eos). The policy has a distribution for each of three places."""
    generator, theta, curve = torch.Generator().manual_seed(0), torch.zeros(3, 3), []
    for _ in range(60):
        log_pi = theta.requires_grad_().log_softmax(dim=1)
        drawn = log_pi.exp().multinomial(5000, True, generator=generator).T
        ids = drawn.masked_fill(~up_to_eos(drawn, 2), 2)  # (5000, 3), cut at token 2, the EOS
        R = (3 * ids[:, :2] + ids[:, 1:] == 5).any(dim=1, keepdim=True)  # it ends with 1, 2
        curve.append(R.double().mean().item())
        J = (R * log_pi[range(3), ids] * mask_of(ids, 2)).mean()
        theta.data += 3 * torch.autograd.grad(J, theta)[0]
    return curve


TRAINED = {
    "1.3": {
        "curve": success,
        "mistakes": {
            "the bug": torch.ne,
            "first token left out": lambda ids, eos: up_to_eos(ids, eos) & (torch.arange(3) > 0),
        },
        "labels": ("updates", "share right, of 5,000"),
    }
}
