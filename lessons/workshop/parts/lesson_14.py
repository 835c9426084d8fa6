"""The pictures of lesson 14, and the right answers and usual mistakes of its exercises."""

from collections.abc import Callable

import numpy as np
import torch
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from lessons.experiments.staleness import CLIP, ONCE_ARMS, REUSE, REUSE_ARMS, STALENESS, select
from lessons.workshop import kit
from lessons.workshop.kit import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, new_figure, ticks
from lessons.workshop.parts.lesson_04 import gradient
from toy_env.rollout import Rollout

STYLES = {  # colour and line of each loss and arm
    "no correction": (GREY, ":"),
    "GRPO": (BLUE, "-"),
    "GRPO's clip": (BLUE, "-"),
    "clip-higher": (PURPLE, "-."),
    "GSPO": (ORANGE, "--"),
    "CISPO": (GREEN, "-"),
    "clip without weights": (PURPLE, "--"),
    "SAPO": (PURPLE, "-."),
    "GMPO": (RED, ":"),
    "DPPO": ("black", (0, (5, 1, 1, 1, 1, 1))),
}


def factor(loss, ratio: Tensor, p: float, sign: float) -> Tensor:
    """The factor of a token's A grad log pi, (n,), at each ratio (n,), by autograd: completions of
    one token that was sampled with probability p. sign: that of A."""
    old_logps = torch.full((len(ratio), 1), np.log(p), dtype=torch.float64)
    logps = (old_logps + ratio.log().view(-1, 1)).requires_grad_()
    advantages = torch.full_like(old_logps, sign)
    mask = torch.ones_like(old_logps).bool()
    value = loss(logps=logps, old_logps=old_logps, advantages=advantages, mask=mask)
    return -sign * len(ratio) * torch.autograd.grad(value, logps)[0].flatten()


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
        axis.set(xscale="log", xlim=(0.4, 2.5), ylim=(-0.08, 2.6), xlabel="ratio")
        axis.set_title(f"{name}, a token sampled with p = {p:.2f}")
        labels = [".4", ".6", ".8", "1", "1.25", "1.6", "2", "2.5"]
        ticks(axis.xaxis, [float(label) for label in labels], labels)
    panels[0].set_ylabel("factor of A ∇log π")
    at = [0.24, 0.36] if kit.narrow else [0.17, 0.26]
    for i, name in enumerate(losses):
        (color, line), inside = STYLES[name], panels[0].transAxes
        panels[0].text(0.05, 0.92 - 0.085 * i, name, color=color, transform=inside)
        y = 0.935 - 0.085 * i
        panels[0].plot(at, [y, y], linestyle=line, color=color, transform=inside, linewidth=1.8)
    return figure


def one_group(rollout: Rollout, logps: Tensor, losses: dict, title: str) -> Figure:
    """The tokens of a group, one completion a row: colour for the ratio; a blue bar below what GRPO
    stops, a black one above what DPPO stops, an orange frame around what GSPO stops.

    logps: (G, T), now; those of the rollout are the old ones.
    """
    texts, mask, advantages = rollout.texts, rollout.mask, rollout.advantages
    ratio = (logps - rollout.old_logps).exp()
    stopped = {}
    for name in ("GRPO", "GSPO", "DPPO"):
        leaf = logps.clone().requires_grad_()
        batch = {"old_logps": rollout.old_logps, "advantages": advantages, "mask": mask}
        loss = losses[name](logps=leaf, **batch)
        stopped[name] = (torch.autograd.grad(loss, leaf)[0] == 0) & mask
    G, T = len(texts), int(mask.sum(dim=1).max())
    figure, axis = new_figure(0.29 * T + 1.8, 0.4 * G + 0.9, fixed=True)
    shown = ratio[:, :T].where(mask[:, :T], torch.nan).numpy()
    image = axis.imshow(shown, cmap="PuOr_r", norm=TwoSlopeNorm(1, 0.4, 2.5), aspect="auto")
    for row in range(G):
        length = int(mask[row].sum())
        for t in range(length):
            color = "black" if 0.6 < ratio[row, t] < 1.7 else "white"
            token = texts[row][t] if t < len(texts[row]) else "∎"
            axis.text(t, row, token, ha="center", va="center", fontsize=10, color=color)
        if stopped["GSPO"][row].any():
            frame = Rectangle(
                (-0.46, row - 0.45), length - 0.08, 0.9, fill=False, linewidth=2, edgecolor=ORANGE
            )
            axis.add_patch(frame)
    for name, shift in (("GRPO", 0.33), ("DPPO", -0.33)):
        rows, columns = stopped[name][:, :T].nonzero().T.numpy()
        axis.hlines(rows + shift, columns - 0.4, columns + 0.4, color="white", linewidth=5)
        axis.hlines(
            rows + shift, columns - 0.36, columns + 0.36, color=STYLES[name][0], linewidth=3
        )
    axis.set_yticks(range(G), [f"A = {a:+.2f}" for a in advantages.flatten().tolist()], fontsize=9)
    axis.set_xticks([])
    axis.set_title(title)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    ticks = figure.colorbar(image, ax=axis, ticks=[0.4, 0.7, 1, 1.75, 2.5], label="ratio").ax
    ticks.set_yticklabels(["≤ .4", ".7", "1", "1.75", "≥ 2.5"])
    return figure


def stale_and_reused(runs: list[dict]) -> Figure:
    """Left: accuracy at the end against U. Middle: along the runs that use batches of 256
    completions four times, at 2e-4, and (squares) GRPO's clip that uses them once. Right: the end
    of such runs against the mean length of their optimizer steps; filled at three rates, open where
    every step has one length. Dots are runs, lines their means."""
    figure, (left, middle, right) = new_figure(11.5, 3.9, columns=3, sharey=True)
    panels = (
        (left, ONCE_ARMS, [{"staleness": u} for u in STALENESS]),
        (middle, REUSE_ARMS, [{"epochs": 4}]),
    )
    for axis, arms, settings in panels:
        for i, arm in enumerate(arms):
            color, line = STYLES[arm]
            chosen = [select(runs, arm=arm, **each) for each in settings]
            accuracy = [[run["accuracy"] for run in part] for part in chosen]
            if axis is left:
                points = [[run[-1] for run in part] for part in accuracy]
            else:
                points = np.transpose(accuracy[0])
            x = np.arange(len(points))
            axis.plot(x, [np.mean(part) for part in points], linestyle=line, color=color)
            for at, part in zip(x, points):
                beside = np.full(len(part), at + 0.06 * (i - 2))
                axis.plot(beside, part, "o", color=color, markersize=3.5, alpha=0.6)
    for arm in REUSE_ARMS:
        color, line = STYLES[arm]
        for settings, marker in ((REUSE[:3], "o"), (REUSE[3:], "s")):
            parts = [select(runs, arm=arm, **each) for each in settings]
            steps = [np.mean([run["step"] for run in part]) for part in parts]
            ends = [np.mean([run["accuracy"][-1] for run in part]) for part in parts]
            right.plot(steps, ends, marker=marker, linestyle=line, color=color,
                       markerfacecolor=color if marker == "o" else "white")  # fmt: skip
    once = np.mean([run["accuracy"] for run in select(runs, arm=CLIP)], axis=0)
    middle.plot(range(4), once[:4], "s", color=BLUE, markersize=7, markerfacecolor="none",
                markeredgewidth=1.8)  # fmt: skip
    middle.annotate("used once", (1, once[1]), (4, -13), textcoords="offset points", color=BLUE)
    for axis, arms in ((left, ONCE_ARMS), (right, REUSE_ARMS)):
        for i, arm in enumerate(arms):
            axis.text(0.05, 0.40 - 0.08 * i, arm, color=STYLES[arm][0], transform=axis.transAxes)
    left.set_xticks(range(len(STALENESS)), STALENESS)
    left.set(title="6,144 completions, used once", ylim=(0, 1))
    left.set_xlabel("U, updates for each rollout batch")
    middle.set_xticks(range(4), ["768", "1,536", "2,304", "3,072"])
    middle.set(title="Used four times, rate 2e-4", xlabel="completions")
    right.set(
        title="The end, by length of steps", xlabel="mean length of an optimizer step", xscale="log"
    )
    ticks(right.xaxis, [0.008, 0.016, 0.032], [".008", ".016", ".032"])
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
        return -(weight((logps - old_logps).exp(), bound, 1 if A > 0 else -1) * A * logps).mean()

    return gradient_of(loss)


def detached(logps: Tensor, old_logps: Tensor, A: float, bound: float) -> str:
    return "detached"


def geometric_mean(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """(G, 1): the ratio of each completion, as GSPO defines it."""
    return ((log_ratio * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)).exp()


def beyond(ratio: Tensor, A: Tensor, low: float, high: float) -> Tensor:
    return torch.where(A > 0, ratio > 1 + high, ratio < 1 - low)


def stopped(log_ratio: Tensor, mask: Tensor, A: Tensor, low: float, high: float) -> Tensor:
    """The tokens that GSPO stops: it decides by the geometric mean of a completion's ratios."""
    return beyond(geometric_mean(log_ratio, mask), A, low, high) & mask


def either_side(log_ratio: Tensor, mask: Tensor, A: Tensor, low: float, high: float) -> Tensor:
    ratio = geometric_mean(log_ratio, mask)
    return ((ratio > 1 + high) | (ratio < 1 - low)) & mask


def other_side(log_ratio: Tensor, mask: Tensor, A: Tensor, low: float, high: float) -> Tensor:
    ratio = geometric_mean(log_ratio, mask)
    return torch.where(A > 0, ratio < 1 - low, ratio > 1 + high) & mask


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
mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 1], [1, 0, 0], [1, 1, 0]]).bool()
signs = torch.tensor([[1.0], [-1.0], [-1.0], [1.0], [1.0]])
moved, far = torch.tensor([0.3, -0.3, 0.1, -0.1]), torch.tensor([1.5, -0.3, 0.4, -1.5])

CHECKS = {
    "14.1": {
        "expected": weighted(lambda ratio, cap, _: ratio.detach().clamp(max=cap)),
        "inputs": [{"logps": old + far, "old_logps": old, "A": A, "cap": 2.0} for A in (1.5, -0.5)],
        "mistakes": {
            "return one number: the mean of the tokens' losses": gradient_of(
                lambda logps, old_logps, A, cap: logps
            ),
            "the weight is a constant: detach it": (
                weighted(lambda ratio, cap, _: ratio.clamp(max=cap))
            ),
            "a clipped ratio has no gradient; the weight must multiply log π": gradient_of(
                lambda logps, old_logps, A, cap: (
                    -((logps - old_logps).exp().clamp(max=cap) * A).mean()
                )
            ),
            "the cap is missing": weighted(lambda ratio, cap, _: ratio.detach()),
            "a loss is minimised: minus": (
                weighted(lambda ratio, cap, _: -ratio.detach().clamp(max=cap))
            ),
            "no gradient reaches the policy: everything in this loss is detached": detached,
        },
    },
    "14.2": {
        "expected": stopped,
        "inputs": [
            {"log_ratio": log_ratios, "mask": mask, "A": signs * sign, "low": 0.03, "high": 0.04}
            for sign in (1.0, -1.0)
        ],
        "mistakes": {
            "the mean of the log-ratios, not their sum": lambda log_ratio, mask, A, low, high: (
                beyond((log_ratio * mask).sum(dim=1, keepdim=True).exp(), A, low, high) & mask
            ),
            "a mean over the tokens, not over the padding": lambda log_ratio, mask, A, low, high: (
                beyond(log_ratio.mean(dim=1, keepdim=True).exp(), A, low, high) & mask
            ),
            "GSPO decides for a completion as a whole": lambda log_ratio, mask, A, low, high: (
                beyond(log_ratio.exp(), A, low, high) & mask
            ),
            "only where its own push has moved it, on one side of the range": either_side,
            "the sides are exchanged: for A > 0 above the range, for A < 0 below": other_side,
            "padding is no token: the mask": lambda log_ratio, mask, A, low, high: beyond(
                geometric_mean(log_ratio, mask), A, low, high
            ).expand_as(mask),
            "for each token of the completion: (G, T), not (G, 1)": (
                lambda log_ratio, mask, A, low, high: beyond(
                    geometric_mean(log_ratio, mask), A, low, high
                )
            ),
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
            "a loss is minimised: minus": (
                weighted(lambda ratio, eps, sign: -1.0 * (sign * (ratio - 1) <= eps))
            ),
            "no gradient reaches the policy: everything in this loss is detached": detached,
        },
    },
}
