"""The pictures of lesson 14, and the right answers and usual mistakes of its exercises."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from lessons.experiments import paired
from lessons.experiments.staleness import (
    CISPO,
    CLIP,
    OLD,
    STALENESS,
    STEP_LENGTHS,
    UNWEIGHTED,
    select,
)
from lessons.workshop.kit import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, new_figure, ticks
from lessons.workshop.parts.drawing import key
from lessons.workshop.parts.lesson_04 import gradient
from lessons.workshop.parts.lesson_12 import token_table
from toy_env.rollout import Rollout

STYLES = {  # colour and line of each loss
    "GRPO": (BLUE, "-"),
    "GSPO": (ORANGE, "--"),
    "CISPO": (GREEN, "-"),
    "SAPO": (PURPLE, "-."),
    "GMPO": (RED, ":"),
    "DPPO": ("black", (0, (5, 1, 1, 1, 1, 1))),
}
COLORS = {OLD: GREY, CISPO: GREEN, UNWEIGHTED: PURPLE, CLIP: BLUE}
PARTS = dict(zip(("neither", "weight", "bound", "both"), COLORS))  # what each of four arms does


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


def factors(losses: dict, p: float, sign: float) -> Figure:
    """The factors of all losses against the ratio, for advantages of a sign: of those that stop
    tokens, and of those that do not."""
    figure, panels = new_figure(9.6, 3.9, columns=2)
    stop = ("GRPO", "GSPO", "GMPO", "DPPO")
    for axis, names, end in zip(panels, (stop, ("CISPO", "SAPO")), (2.7, 6.7)):
        ends = np.log(0.4), np.log(min(end, 1 / p))
        ratio = torch.linspace(*ends, 1500, dtype=torch.float64).exp()
        axis.plot(ratio, ratio, color=GREY, linewidth=6, alpha=0.35)
        for name in names:
            color, line = STYLES[name]
            axis.plot(ratio, factor(losses[name], ratio, p, sign), linestyle=line, color=color)
        axis.plot(1, 1, "o", color="black", zorder=5)
        key(axis, {"the ratio itself": GREY} | {name: STYLES[name][0] for name in names}, 0.05)
        axis.set(xscale="log", xlim=(0.4, end), ylim=(-0.03 * end, end), xlabel="ratio")
    panels[0].set(ylabel="factor of A ∇log π")
    panels[0].set_title(f"A {'>' if sign > 0 else '<'} 0, p = {p}: these stop the token")
    panels[1].set_title("These do not stop it")
    ticks(panels[0].xaxis, [".4", ".6", ".8", "1", "1.25", "1.6", "2", "2.5"])
    ticks(panels[1].xaxis, [".4", ".6", "1", "2", "3", "4", "5", "6"])
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


def weight_or_bound(runs: list[dict]) -> Figure:
    """Accuracy at the end, with 95 % intervals over runs, by what an arm does with the ratio:
    against U, completions used once; and against the length of every optimizer step, completions
    used four times."""
    figure, (left, right) = new_figure(9.6, 3.8, columns=2, sharey=True)
    once = [{"staleness": u} for u in STALENESS]
    reused = [{"epochs": 4, "step_length": x} for x in STEP_LENGTHS]
    for axis, settings, arms in (
        (left, once, (OLD, CISPO, CLIP)),
        (right, reused, PARTS.values()),
    ):
        for arm in arms:
            runs_of = [select(runs, arm=arm, **each) for each in settings]
            ends = np.array([[run["accuracy"][-1] for run in each] for each in runs_of])
            x = np.arange(len(ends))
            axis.fill_between(x, *paired.t_interval(ends.T), color=COLORS[arm], alpha=0.15)
            axis.plot(x, ends.mean(axis=1), "o-", color=COLORS[arm])
    key(left, {part: COLORS[arm] for part, arm in PARTS.items()}, 0.05, 0.4, 0.1)
    left.set(title="Used once, late", xlabel="U, updates for each rollout batch", ylim=(0, 1))
    left.set(xticks=range(len(STALENESS)), xticklabels=STALENESS, ylabel="accuracy at the end")
    right.set(title="Used four times", xlabel="length of every optimizer step")
    right.set(xticks=range(3), xticklabels=[".008", ".016", ".032"])
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
    "14.2": {
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
    "14.3": {
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
}
