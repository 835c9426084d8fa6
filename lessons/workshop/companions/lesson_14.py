"""Lesson 14: its pictures, its example of 15 texts, and the right answers and usual mistakes of its
exercises."""

from collections.abc import Callable
from itertools import product
from math import inf

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lessons.experiments.harness import paired
from lessons.experiments.losses import LOSSES
from lessons.experiments.staleness import CISPO, CLIP, LENGTHS, OLD, UNWEIGHTED, select
from lessons.workshop.notebook import BLUE, GREEN, GREY, ORANGE, PURPLE, new_figure

ARMS = {  # what each of four arms does: its name in the runs, its colour and width of line
    "neither": (OLD, GREY, 6),
    "weight": (CISPO, GREEN, 6),
    "bound": (UNWEIGHTED, PURPLE, 2),
    "both": (CLIP, BLUE, 2),
}


def factors(loss: Callable, ratios: Tensor, A: float) -> Tensor:
    """What a loss multiplies A grad log pi of each token by, (B, T), by autograd, for completions
    whose tokens have these ratios, (B, T)."""
    old_logps = torch.full_like(ratios, -3.0)
    logps = (old_logps + ratios.log()).requires_grad_()
    batch = {"advantages": torch.full_like(ratios[:, :1], A), "mask": ratios > 0}
    value = loss(logps=logps, old_logps=old_logps, **batch)
    return -ratios.numel() / A * torch.autograd.grad(value, logps)[0]


def factor_picture() -> Figure:
    """The factors of the four arms and of SAPO against a token's ratio, by the sign of A."""
    figure, axes = new_figure(9.6, 3.3, columns=2, sharey=True)
    ratios = torch.linspace(0.4, 2.1, 500).double().view(-1, 1)
    for axis, A, title in zip(axes, (1.0, -1.0), ("Pushed up: A > 0", "Pushed down: A < 0")):
        for name, (arm, color, width) in (ARMS | {"SAPO": ("SAPO", ORANGE, 2)}).items():
            f = factors(LOSSES[arm], ratios, A)
            axis.plot(ratios, f, color=color, linewidth=width, label=name)
        axis.set(title=title, xlabel="ratio ρ of the token", ylabel="factor of A ∇ℓ")
    axes[0].legend()
    return figure


def ends_picture(runs: list[dict]) -> Figure:
    """The accuracy at the end of the four arms, with 95 % intervals over seeds, against the length
    of every optimizer step."""
    figure, axis = new_figure(7, 3.3)
    for name, (arm, color, _) in ARMS.items():
        ends = [
            [run["accuracy"][-1] for run in select(runs, arm=arm, epochs=4, step_length=length)]
            for length in LENGTHS
        ]
        axis.fill_between(range(3), *paired.t_interval(np.transpose(ends)), color=color, alpha=0.15)
        axis.plot(np.mean(ends, axis=1), "o-", color=color, label=name)
    axis.set(xlabel="length of every optimizer step", ylabel="accuracy at the end", ylim=(0, 1))
    axis.set_xticks(range(3), [".008", ".016", ".032"])
    axis.legend()
    return figure


# ---------------------------------------------------------------------- 15 texts
#
# A policy that writes at most three letters, each an a or a b. $ ends texts of fewer.

TEXTS = ["".join(letters) for n in range(4) for letters in product("ab", repeat=n)]
TOKENS = [(text + "$")[:3] for text in TEXTS]
R = (torch.arange(15) % 3 == 0).double()
generator = torch.Generator().manual_seed(0)
# The trainer's logits after each of the 7 prefixes; the sampler's are LOGITS + NOISE
LOGITS, noise = torch.randn(2, 7, 3, generator=generator, dtype=torch.float64)
NOISE = 1.5 * noise


N_TOKENS = torch.tensor([[len(text)] for text in TOKENS])


def token_logps(logits: Tensor) -> Tensor:
    """(15, 3), 0 where a text has ended."""
    logps = logits.log_softmax(dim=1)
    rows = [[logps[TEXTS.index(y[:t]), "ab$".index(y[t])] for t in range(len(y))] for y in TOKENS]
    return pad_sequence([torch.stack(row) for row in rows], batch_first=True)


def solve_rate(logits: Tensor) -> float:
    """The probability of a right text."""
    return (token_logps(logits).sum(dim=1).exp() @ R).item()


def mean_update(
    logits: Tensor, weight: Callable, noise: Tensor, divisor: Tensor | int = 1
) -> Tensor:
    """Dr. GRPO's mean update of a policy, (7, 3), up to a constant factor, where the sampler's
    logits are logits + noise. weight: as in exercise 2. divisor: of the scores, (15, 1) or 1."""
    logits = logits.clone().requires_grad_()
    logps, sampled = token_logps(logits), token_logps(logits.detach() + noise)
    weighted = weight(logps.detach(), sampled, inf) * logps / divisor
    chance = sampled.sum(dim=1).exp()
    return torch.autograd.grad(chance * (R - chance @ R) @ weighted.sum(dim=1), logits)[0]


def off(weight: Callable, divisor: Tensor | int = 1) -> float:
    """The distance of the sampler's mean update from the trainer's, over the length of the
    trainer's."""
    ours = mean_update(LOGITS, weight, NOISE, divisor)
    truth = mean_update(LOGITS, unweighted, 0 * NOISE, divisor)
    return ((ours - truth).norm() / truth.norm()).item()


# ---------------------------------------------------------------------- exercises
#
# `notebook.check` explains the keys of CHECKS.

GRPO_ROW, CISPO_ROW = [0, 0.6, 1.35, 0], [1.35, 0.6, 1.35, 0.6]
BOUND_ROW, GSPO_ROW = [0, 1, 1, 0], [0.9, 0.9, 0, 0]


def unweighted(old: Tensor, sampled: Tensor, C: float) -> float:
    return 1.0


def of_tokens(old: Tensor, sampled: Tensor, C: float) -> Tensor:
    return (old - sampled).exp().clamp(max=C)


def of_completions(old: Tensor, sampled: Tensor, C: float) -> Tensor:
    return (old - sampled).sum(dim=1, keepdim=True).exp().clamp(max=C)


def capped(old: Tensor, sampled: Tensor, C: float) -> Tensor:
    """The weights of completions, at most 3."""
    return of_completions(old, sampled, 3)


CHECKS = {
    "14.1": {
        "expected": [CISPO_ROW, BOUND_ROW, GSPO_ROW],
        "mistakes": {
            "CISPO stops nothing": [GRPO_ROW, BOUND_ROW, GSPO_ROW],
            "without a weight a token counts 1 or 0": [CISPO_ROW, GRPO_ROW, GSPO_ROW],
            "a clip stops only what A pushes further out": [CISPO_ROW, [0] * 4, GSPO_ROW],
            "GSPO has one ratio for both tokens": [CISPO_ROW, BOUND_ROW, GRPO_ROW],
            "GSPO: a geometric mean has a root": [CISPO_ROW, BOUND_ROW, [0.81, 0.81, 0, 0]],
        },
    },
    "14.2": {
        "expected": of_completions,
        "inputs": [{"old": token_logps(LOGITS), "sampled": token_logps(LOGITS + NOISE), "C": 1.5}],
        "mistakes": {
            "each token has a weight of its own: those of a completion must be one": of_tokens,
            "cap once, after the product over the tokens": (
                lambda old, sampled, C: of_tokens(old, sampled, C).prod(dim=1, keepdim=True)
            ),
            "a product of ratios, not GSPO's mean": (
                lambda old, sampled, C: (old - sampled).mean(dim=1, keepdim=True).exp().clamp(max=C)
            ),
            "the weight has no bound": lambda old, sampled, C: of_completions(old, sampled, inf),
            "what the sampler writes too often must count less": (
                lambda old, sampled, C: of_completions(sampled, old, C)
            ),
        },
    },
}


def values(weight: Callable, beta: float = 0.5) -> list[float]:
    """Reward - beta KL over training by mean updates without a cap, at a rate of 2; the KL is that
    from the start, and its gradient exact."""
    theta, start, curve = LOGITS, token_logps(LOGITS).sum(dim=1), []
    for _ in range(51):
        theta = theta.clone().requires_grad_()
        total = token_logps(theta).sum(dim=1)
        kl = total.exp() @ (total - start)
        curve.append((total.exp() @ R - beta * kl).item())
        push = mean_update(theta.detach(), weight, NOISE) - beta * torch.autograd.grad(kl, theta)[0]
        theta = theta.detach() + 2 * push
    return curve


TRAINED = {
    "14.2": {
        "curve": values,
        "right": "whole completions",
        "mistakes": {
            "no weight": unweighted,
            "each token's own": of_tokens,
            "completions, cap 3": capped,
        },
        "labels": ("updates", "reward − KL / 2"),
    }
}
