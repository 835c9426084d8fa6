"""The pictures of lesson 14, and the right answers and usual mistakes of its exercises."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from lessons.experiments.staleness import (
    OLD,
    ONCE_ARMS,
    REUSE_ARMS,
    STALENESS,
    STEP_LENGTHS,
    select,
)
from lessons.workshop import kit
from lessons.workshop.kit import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    label_line,
    new_figure,
    ticks,
)
from lessons.workshop.parts.drawing import key
from lessons.workshop.parts.lesson_04 import gradient
from lessons.workshop.parts.lesson_12 import token_table
from toy_env.rollout import Rollout

STYLES = {  # colour and line of each loss and arm
    "no correction": (GREY, ":"),
    "GRPO": (BLUE, "-"),
    "GRPO's clip": (BLUE, "-"),
    "clip-higher": (RED, "-."),
    "GSPO": (ORANGE, "--"),
    "CISPO": (GREEN, "-"),
    "clip without weights": (PURPLE, "--"),
    "SAPO": (PURPLE, "-."),
    "GMPO": (RED, ":"),
    "DPPO": ("black", (0, (5, 1, 1, 1, 1, 1))),
}


def push(loss: Callable, logps: Tensor, **batch) -> Tensor:
    """Minus the gradient of a loss of rollouts with respect to logps, (B, T)."""
    logps = logps.clone().requires_grad_()
    return -torch.autograd.grad(loss(logps=logps, **batch), logps)[0]


def factor(loss: Callable, ratio: Tensor, p: float, sign: float) -> Tensor:
    """The factor of a token's A grad log pi, (n,), at each ratio (n,), by autograd: completions of
    one token that was sampled with probability p. sign: that of A."""
    old_logps = torch.full((len(ratio), 1), np.log(p), dtype=torch.float64)
    batch = {"advantages": torch.full_like(old_logps, sign), "mask": old_logps < 1}
    update = push(loss, old_logps + ratio.log().view(-1, 1), old_logps=old_logps, **batch)
    return sign * len(ratio) * update.flatten()


def factors(losses: dict, p: float) -> Figure:
    """The factors of all losses against the ratio, for A > 0 and for A < 0."""
    figure, panels = new_figure(9.6, 3.9, columns=2, sharey=True)
    for axis, sign, name in zip(panels, (1.0, -1.0), ("A > 0", "A < 0")):
        ends = np.log(0.4), np.log(min(2.5, 1 / p))
        ratio = torch.linspace(*ends, 1500, dtype=torch.float64).exp()
        for method, loss in losses.items():
            color, line = STYLES[method]
            width, alpha = (5, 0.35) if method == "CISPO" else (1.8, 1.0)
            axis.plot(ratio, factor(loss, ratio, p, sign), linestyle=line, color=color,
                      linewidth=width, alpha=alpha)  # fmt: skip
        axis.axvline(1, color=GREY, linewidth=0.8)
        axis.plot(1, 1, "o", color="black", zorder=5)
        axis.set(xscale="log", xlim=(0.4, 2.5), ylim=(-0.08, 2.6), xlabel="ratio")
        axis.set_title(f"{name}, a token sampled with p = {p:.2f}")
        ticks(axis.xaxis, [".4", ".6", ".8", "1", "1.25", "1.6", "2", "2.5"])
    label_line(panels[1], 1, 1, "ratio 1: all six", "black", xytext=(-8, 8), ha="right")
    left, at = panels[0], [0.24, 0.36] if kit.narrow else [0.17, 0.26]
    left.set_ylabel("factor of A ∇log π")
    key(left, {name: STYLES[name][0] for name in losses}, 0.05, 0.92, 0.085)
    for i, name in enumerate(losses):
        (color, line), y = STYLES[name], 0.935 - 0.085 * i
        left.plot(at, [y, y], linestyle=line, color=color, transform=left.transAxes, linewidth=1.8)
    return figure


def one_group(rollout: Rollout, logps: Tensor, losses: dict, title: str) -> Figure:
    """The tokens of a group, one completion a row: colour for the ratio; a blue bar below what GRPO
    stops, a black one above what DPPO stops, an orange frame around what GSPO stops.

    logps: (G, T), now; those of the rollout are the old ones.
    """
    mask, lengths = rollout.mask, rollout.mask.sum(dim=1).tolist()
    batch = {"advantages": rollout.advantages, "mask": mask}

    def stopped(name: str) -> Tensor:
        update = push(losses[name], logps, old_logps=rollout.old_logps, **batch)
        return (update == 0) & mask

    figure, axis = new_figure(0.29 * max(lengths) + 1.8, 0.4 * len(mask) + 0.9, fixed=True)
    ratio = (logps - rollout.old_logps).exp().where(mask, torch.nan)[:, : max(lengths)].numpy()
    dark = (ratio <= 0.6) | (ratio >= 1.7)
    image = token_table(axis, rollout.texts, ratio, dark, 10, cmap="PuOr_r",
                        norm=TwoSlopeNorm(1, 0.4, 2.5))  # fmt: skip
    for row in stopped("GSPO").any(dim=1).nonzero().flatten().tolist():
        corner, width = (-0.46, row - 0.45), lengths[row] - 0.08
        axis.add_patch(Rectangle(corner, width, 0.9, fill=False, linewidth=2, edgecolor=ORANGE))
    for name, shift in (("GRPO", 0.33), ("DPPO", -0.33)):
        rows, columns = stopped(name).nonzero().T.numpy()
        for half, color, width in ((0.4, "white", 5), (0.36, STYLES[name][0], 3)):
            ends = columns - half, columns + half
            axis.hlines(rows + shift, *ends, color=color, linewidth=width)
    names = [f"A = {a:+.2f}" for a in rollout.advantages.flatten().tolist()]
    axis.set_yticks(range(len(mask)), names, fontsize=9)
    axis.set_title(title)
    bar = figure.colorbar(image, ax=axis, label="ratio")
    bar.set_ticks([0.4, 0.7, 1, 1.75, 2.5], labels=["≤ .4", ".7", "1", "1.75", "≥ 2.5"])
    return figure


def stale_and_reused(runs: list[dict]) -> Figure:
    """Left: accuracy at the end against U. Middle: along the runs that use batches of 256
    completions four times, at 2e-4. Right: the end of such runs against the length of their
    optimizer steps, where every step has one length. Dots are runs, lines their means."""
    figure, (left, middle, right) = new_figure(11.5, 3.9, columns=3, sharey=True)

    def measured(what: str, arm: str, **settings) -> np.ndarray:
        return np.array([run[what] for run in select(runs, arm=arm, **settings)])

    def ends(arm: str, **settings) -> np.ndarray:
        return measured("accuracy", arm, **settings)[:, -1]

    for axis, arms, points_of in (
        (left, ONCE_ARMS, lambda arm: [ends(arm, staleness=u) for u in STALENESS]),
        (middle, REUSE_ARMS, lambda arm: measured("accuracy", arm, epochs=4).T),
    ):
        for i, arm in enumerate(arms):
            color, line = STYLES[arm]
            points = np.array(points_of(arm))  # (positions, runs)
            x = np.arange(len(points))
            axis.plot(x, points.mean(axis=1), linestyle=line, color=color)
            axis.plot(x + 0.06 * (i - 2), points, "o", color=color, markersize=3.5, alpha=0.6)
    for arm in REUSE_ARMS:
        color, line = STYLES[arm]
        accuracy = [ends(arm, epochs=4, step_length=x).mean() for x in STEP_LENGTHS]
        right.plot(STEP_LENGTHS, accuracy, linestyle=line, color=color, marker="s")
    for axis, arms in ((left, ONCE_ARMS), (right, REUSE_ARMS)):
        names = {"neither" if arm == OLD else arm: STYLES[arm][0] for arm in arms}
        key(axis, names, 0.05, *((0.68, 0.14) if kit.narrow else (0.40, 0.08)))
    left.set(title="Stale: used once, late", xlabel="U, updates for each rollout batch")
    left.set(xticks=range(len(STALENESS)), xticklabels=STALENESS, ylim=(0, 1), ylabel="accuracy")
    middle.set(title="Reused: four times, rate 2e-4", xlabel="completions", xticks=range(4))
    middle.set(xticklabels=["768", "1,536", "2,304", "3,072"])
    right.set(title="Reused, at equal steps: the end", xlabel="length of every optimizer step")
    right.set(xscale="log")
    ticks(right.xaxis, [".008", ".016", ".032"])
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def gradient_of(loss: Callable) -> Callable:
    """The function that gives the gradient of a loss (logps, ...) with respect to logps, or what
    `gradient` makes of something that is no loss."""

    def answer(logps: Tensor, *others) -> Tensor | str:
        logps = logps.clone().requires_grad_()
        return gradient(loss(logps, *others), logps)

    return answer


def weighted(weight: Callable) -> Callable:
    """The gradient of minus the mean of weight(ratio, cap or eps, sign of A) A log pi."""

    def loss(logps: Tensor, old_logps: Tensor, A: float, bound: float) -> Tensor:
        return -(weight((logps - old_logps).exp(), bound, np.sign(A)) * A * logps).mean()

    return gradient_of(loss)


def total(log_ratio: Tensor, mask: Tensor) -> Tensor:
    return (log_ratio * mask).sum(dim=1, keepdim=True)


def mean_of_tokens(log_ratio: Tensor, mask: Tensor) -> Tensor:
    return total(log_ratio, mask) / mask.sum(dim=1, keepdim=True)


def stopped(log_ratio, mask, A, low, high, of_completion=mean_of_tokens) -> Tensor:
    """The tokens that GSPO stops: it decides by the geometric mean of a completion's ratios."""
    ratio = of_completion(log_ratio, mask).exp()
    return torch.where(A > 0, ratio > 1 + high, ratio < 1 - low) & mask


def either_side(log_ratio, mask, A, low, high) -> Tensor:
    return stopped(log_ratio, mask, A, low, high) | stopped(log_ratio, mask, -A, low, high)


old = torch.tensor([-2.0, -0.5, -3.0, -1.0]).double()
log_ratios = torch.tensor(
    [
        [0.3, -0.24, 9.0],
        [0.02, 0.02, 0.02],
        [-0.3, 0.31, -0.3],
        [-0.04, 9.0, 9.0],
        [0.05, 0.05, 9.0],
    ]
)
signs = torch.tensor([[1.0], [-1.0], [-1.0], [1.0], [1.0]])
moved, far = torch.tensor([0.3, -0.3, 0.1, -0.1]), torch.tensor([1.5, -0.3, 0.4, -1.5])

CHECKS = {
    "14.1": {
        "expected": stopped,
        "inputs": [
            {"log_ratio": log_ratios, "mask": log_ratios < 9, "A": A, "low": 0.03, "high": 0.04}
            for A in (signs, -signs)
        ],
        "mistakes": {
            "the mean of the log-ratios, not their sum": partial(stopped, of_completion=total),
            "a mean over the tokens, not over the padding": partial(
                stopped, of_completion=lambda log_ratio, _: log_ratio.mean(dim=1, keepdim=True)
            ),
            "GSPO decides for a completion as a whole": partial(
                stopped, of_completion=lambda log_ratio, _: log_ratio
            ),
            "only where its own push has moved it, on one side of the range": either_side,
        },
    },
    "14.2": {
        "expected": weighted(lambda ratio, cap, _: ratio.detach().clamp(max=cap)),
        "inputs": [{"logps": old + far, "old_logps": old, "A": A, "cap": 2.0} for A in (1.5, -0.5)],
        "mistakes": {
            "the weight is a constant: detach it": (
                weighted(lambda ratio, cap, _: ratio.clamp(max=cap))
            ),
            "a clipped ratio has no gradient; the weight must multiply log π": gradient_of(
                lambda logps, old, A, cap: -((logps - old).exp().clamp(max=cap) * A).mean()
            ),
            "the cap is missing": weighted(lambda ratio, cap, _: ratio.detach()),
        },
    },
    "14.3": {
        "expected": weighted(lambda ratio, eps, sign: sign * (ratio - 1) <= eps),
        "inputs": [
            {"logps": old + moved, "old_logps": old, "A": A, "eps": 0.2} for A in (1.5, -0.5)
        ],
        "mistakes": {
            "the ratio still weights the kept tokens (GRPO)": weighted(
                lambda ratio, eps, sign: (sign * (ratio - 1) <= eps) * ratio.detach()
            ),
            "a token is stopped on the side of A's sign only": (
                weighted(lambda ratio, eps, sign: (ratio - 1).abs() <= eps)
            ),
        },
    },
}
