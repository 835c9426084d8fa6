"""The pictures of lesson 2, and the right answers and usual mistakes of its exercises."""

from collections.abc import Callable

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lessons.workshop.notebook import GREY, RIGHT, WRONG, new_figure


def clip_and_gradient(objective: Callable, ratio: float, eps: float) -> Figure:
    """Lesson 2: the objective of one token, and its gradient, against the ratio, for A = +1 and A =
    -1.

    objective(ratios, A, eps) gives both. Dots: at `ratio`. Thick lines: where the gradient is
    exactly 0.
    """
    figure, (left, right) = new_figure(8.5, 3.5, columns=2)
    grid = np.linspace(0.02, 3, 299)
    for A, color, name in ((1, RIGHT, "A = +1"), (-1, WRONG, "A = −1")):
        (*J, J_there), (*gradient, there) = objective(np.append(grid, ratio), A, eps)
        alive = np.not_equal(gradient, 0)
        left.plot(grid, A * grid, ":", color=color, linewidth=1.2)
        left.plot(grid, J, color=color, label=name)
        left.plot(ratio, J_there, "o", color=color, markersize=9)
        state = f"{there:+.2f}".replace("-", "−") if there else "stopped, exactly 0"
        right.plot(grid, np.where(alive, gradient, np.nan), color=color, label=f"{name}: {state}")
        right.plot(grid, np.where(alive, np.nan, 0), color=color, linewidth=5, alpha=0.6)
        right.plot(ratio, there, "o", color=color, markersize=9)
    left.set_title("J (dotted: without the clip)")
    right.set_title("Gradient of J in the log-probability")
    for axis in (left, right):
        axis.set(xlabel="ratio ρ", xlim=(0, 3), ylim=(-3.3, 3.3))
        axis.axvspan(1 - eps, 1 + eps, color=GREY, alpha=0.18, linewidth=0)
        axis.axhline(0, color="black", linewidth=0.6)
        axis.legend(loc="upper left")
    return figure


def share_outside(shares: Tensor) -> Figure:
    """Lesson 2: the share of tokens whose ratio lies outside the clip's range, before each step and
    after the last, with the clip and without: (2, steps + 1)."""
    figure, axis = new_figure(7, 2.8)
    for name, along, style in zip(("clip", "no clip"), shares, ("-", "--")):
        axis.plot(along, style, color=RIGHT, label=name)
    axis.set(title="Tokens with a ratio outside 0.8 to 1.2", ylabel="share of tokens")
    axis.set(xlabel="steps on one batch", xticks=range(0, 17, 4), ylim=(0, None))
    axis.legend(loc="upper left")
    return figure


# Exercises; `notebook.check` explains the keys of CHECKS


def stopped(ratio, A, mask, eps):
    """The share of tokens that the clip stops: those that have left the range as A pushes them."""
    return ((A.sign() * (ratio - 1))[mask] > eps).double().mean().item()


ratios = torch.tensor([[0.5, 1.1, 1.5, 1.9, 0.7, 2.5], [1.3, 0.75, 0.4, 1, 1, 1]]).double()
batch = {
    "ratio": ratios,
    "A": torch.tensor([[0.5], [-2]]).expand(2, 6),
    "mask": ratios != 1,  # 1 on the padding
}
six = {
    "ratio": torch.tensor([0.5, 1.0, 1.5] * 2).double(),
    "A": torch.tensor([1.0] * 3 + [-1.0] * 3).double(),
}


def objective(ratio, A, eps):
    return torch.minimum(ratio * A, ratio.clamp(1 - eps, 1 + eps) * A)


def smaller_ratio(ratio, A, eps):
    return A * ratio.clamp(max=1 + eps)


def no_clip(ratio, A, eps):
    return A * ratio


CHECKS = {
    "2.1": {
        "expected": stopped,
        "inputs": [batch | {"eps": 0.2}, batch | {"eps": 0.6}],
        "mistakes": {
            "tokens that have moved the other way are not stopped": (
                lambda ratio, A, mask, eps: ((ratio - 1).abs() > eps)[mask].double().mean()
            ),
        },
    },
    "2.2": {
        "bug": smaller_ratio,
        "expected": objective,
        "inputs": [six | {"eps": 0.2}, six | {"eps": 0.6}],
        "mistakes": {
            "now nothing is clipped": no_clip,
            "the clipped ratio alone also stops tokens that have moved the wrong way": (
                lambda ratio, A, eps: A * ratio.clamp(1 - eps, 1 + eps)
            ),
        },
    },
}


def best_token(objective: Callable) -> list[float]:
    """The probability of the best of ten tokens before each batch, the mean of 100 runs. It is
    right with probability .9, the others with .5; ten steps on each batch of eight."""
    generator, logits, curve = torch.Generator().manual_seed(0), torch.zeros(100, 10), []
    for _ in range(40):
        pi = logits.softmax(dim=1).detach()
        curve.append(pi[:, 0].mean().item())
        drawn = pi.multinomial(8, True, generator=generator)  # (100, 8)
        R = (0.5 + 0.4 * (drawn == 0)).bernoulli(generator=generator)
        old = pi.gather(1, drawn)
        for _ in range(10):
            ratio = logits.requires_grad_().softmax(dim=1).gather(1, drawn) / old
            J = objective(ratio, R - R.mean(dim=1, keepdim=True), 0.2).sum()
            logits.data += 1.25 * torch.autograd.grad(J, logits)[0]
    return curve


TRAINED = {
    "2.2": {
        "curve": best_token,
        "mistakes": {
            "the bug": smaller_ratio,
            "no clip": no_clip,
        },
        "labels": ("batches, ten steps each", "probability of the best token"),
    }
}
