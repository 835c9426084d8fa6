"""The pictures of lesson 1, and the right answers and usual mistakes of its exercises."""

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lessons.workshop import notebook
from lessons.workshop.companions.drawing import in_plane
from lessons.workshop.notebook import BLUE, GREEN, GREY, ORANGE, RED


def cloud(b: float, pi: Tensor, R: Tensor, s: Tensor, grad_p: Tensor, square: float) -> Figure:
    """Lesson 1: each completion's estimate (R - b) s, the mean of all and their mean square.

    pi, R: (15,); s: (15, parameters).
    """
    dots = (R.numpy() - b)[:, None] * in_plane(s, pi, grad_p)
    figure, axis = notebook.new_figure(5, 4.2)
    for value, color, name in ((1, BLUE, "right"), (0, RED, "wrong")):
        rows = value == R
        axis.scatter(*dots[rows].T, s=1500 * pi[rows], color=color, alpha=0.55, linewidth=0)
        axis.plot([], "o", color=color, label=name)
    axis.plot(*(pi.numpy() @ dots), "+", color="black", markersize=18, markeredgewidth=2.5)
    axis.set(title=f"Estimates with b = {b:.2f}: mean square {square:.2f}", xlabel="along ∇p")
    axis.set(ylabel="across", xlim=(-1.6, 1.6), ylim=(-1.6, 1.6))
    axis.legend(loc="upper left")
    return figure


def mean_squares(measured: dict, mean_square, best) -> Figure:
    """Lesson 1: the mean square of the estimate against the baseline, over that without one, a
    panel for each prompt. measured: the arguments of mean_square(b, ...) and best(...), by prompt.
    """
    figure, axes = notebook.new_figure(8.5, 2.9, columns=3, sharey=True)
    for axis, (prompt, case) in zip(axes, measured.items()):

        def relative(b, case=case):
            return mean_square(b, *case) / mean_square(0, *case)

        grid, p = np.linspace(0, 1, 81), case[1].mean()
        axis.plot(grid, [relative(b) for b in grid], color=GREY)
        baselines = {"none": 0, "best": best(*case), "p": p}
        for (name, b), color in zip(baselines.items(), (GREY, GREEN, ORANGE)):
            axis.plot(b, relative(b), "o", color=color, markersize=8, label=name)
        axis.set(title=f"{prompt}\nb = p: {relative(p):.2f} times b = 0", xlabel="baseline b")
        axis.set(yscale="log", ylim=(0.5, 20))
    notebook.ticks(axes[0].yaxis, [0.5, 1, 2, 5, 10])
    axes[0].set_ylabel("mean square (none: 1)")
    axes[0].legend(loc="upper left")
    return figure


# Exercises; `notebook.check` explains the keys of CHECKS


def as_noisy_as_none(p: float) -> float:
    """The w at which p (1 - b)^2 + (1 - p) b^2 w, the mean of |(R - b) s|^2, is the same for b = p
    as for b = 0."""
    return (p - p * (1 - p) ** 2) / ((1 - p) * p**2)


def up_to_eos(ids: Tensor, eos: int) -> Tensor:
    is_eos = (ids == eos).int()
    return is_eos.cumsum(dim=1) - is_eos == 0


CHECKS = {
    "1.1": {
        "expected": as_noisy_as_none,
        "inputs": [{"p": 0.1}, {"p": 0.46}, {"p": 0.93}],
        "mistakes": {
            "there b = p is the best baseline; it is as noisy as none where it is twice the best": (
                lambda p: 1.0
            ),
            "right and wrong completions are not equally likely": lambda p: (2 - p) / p,
        },
    },
    "1.2": {
        "bug": torch.ne,
        "expected": up_to_eos,
        "inputs": [{"ids": torch.tensor([[0, 1, 2, 2], [2, 2, 2, 2], [1, 2, 0, 0]]), "eos": 2}],
        "mistakes": {
            "the EOS itself is still left out": lambda ids, eos: (ids == eos).cumsum(dim=1) == 0,
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
    "1.2": {
        "curve": success,
        "mistakes": {
            "the bug": torch.ne,
            "first token left out": lambda ids, eos: up_to_eos(ids, eos) & (torch.arange(3) > 0),
        },
        "labels": ("updates", "share right, of 5,000"),
    }
}
