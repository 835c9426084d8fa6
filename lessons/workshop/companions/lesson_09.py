"""The pictures of lesson 9, and the right answers and usual mistakes of its exercises."""

import numpy as np
from matplotlib.figure import Figure

from lessons import identity
from lessons.workshop.companions.drawing import curve
from lessons.workshop.notebook import (
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

NAMES = {  # the slider offers these rules of identity.RULES
    "GRPO": "GRPO",
    "Dr. GRPO, RLOO": "Dr. GRPO",
    "mean over the right": "mean over the right",
    "MaxRL": "MaxRL",
}
SIZES = {3: GREY, 4: GREEN, 8: BLUE, 16: PURPLE, 64: RED}
p_log = 1 / (1 + np.exp(-np.linspace(-6.9, 6.9, 301)))  # .001 to .999, evenly in log-odds
p_even = np.linspace(0, 1, 201)


def logit_axis(axis) -> None:
    """Show p from .001 to .999, with enough space at both ends."""
    axis.set(xscale="logit", yscale="log", xlabel="p")
    ticks(axis.xaxis, [".001", ".01", ".1", ".5", ".9", ".99", ".999"])


def grpo_weights() -> Figure:
    """Lesson 9: GRPO's weight of a prompt over that of p = 1/2, at six group sizes and in the
    limit."""
    figure, axis = new_figure(8.0, 3.6)
    limit = identity.weight_limit(p_log) / 2
    axis.plot(p_log, limit, "--", color="black", linewidth=1.5)
    label_line(axis, 0.0035, 8.4, "G → ∞", "black", xytext=(8, 0))
    for G, color in SIZES.items():
        w = identity.weight("GRPO", p_log, G) / identity.weight("GRPO", 0.5, G)
        label = "G = 2, 3" if G == 3 else f"G = {G}"
        apart = {3: -5, 4: 5}.get(G, 0)
        curve(axis, p_log, w, color, "-", label, at=0, xytext=(-6, apart), ha="right")
    logit_axis(axis)
    axis.set(xlim=(1e-4, 0.9992), ylim=(0.85, 10))
    axis.set(title="GRPO's weight of a prompt (1: p = ½)")
    axis.set_xlabel("p, probability of a right completion")
    ticks(axis.yaxis, [1, 1.5, 2, 4, 8])
    return figure


def objective(rule: str, G: int) -> Figure:
    """Lesson 9: a rule's objective, beside Dr. GRPO's and GRPO's limit."""
    figure, axis = new_figure(6.0, 3.5)
    J = identity.objective(NAMES[rule], p_even, G)
    for y, name, color, style, values in (
        (0.14, "Dr. GRPO", ORANGE, "-", p_even),
        (0.04, "GRPO, G → ∞ (dashed)", GREY, "--", 2 / np.pi * np.arcsin(np.sqrt(p_even))),
        (0.24, rule, BLUE, "-", J / J[-1]),
    ):
        axis.plot(p_even, values, style, color=color)
        axis.text(0.98, y, name, color=color, ha="right")
    axis.set(title=f"{rule}, G = {G}: J(p) / J(1)", xlabel="p", xlim=(0, 1), ylim=(0, 1.05))
    return figure


# Exercises; `notebook.check` explains the keys of CHECKS


def minus_mean(push):
    """What is left of each push when all pay for it."""
    return push - push.mean()


def competing(p, w):
    """The expected moves of the logits of coins."""
    return minus_mean(w * p * (1 - p))


def without_weight(p, w):
    return minus_mean(p * (1 - p))


def without_gradient(p, w):
    return minus_mean(w)


def without_payment(p, w):
    return w * p * (1 - p)


def over_mixed_groups(p, G):
    """The bug: both advantages are taken from one group, with k = 1..G-1 right."""
    odds = np.arange(1, G) / np.arange(G - 1, 0, -1)  # k / (G - k)
    return identity.binomial(p, G)[1:G] @ (np.sqrt(1 / odds) + np.sqrt(odds))


CHECKS = {
    "9.1": {
        "bug": over_mixed_groups,
        "expected": lambda p, G: identity.weight("GRPO", p, G),
        "inputs": [{"p": 0.02, "G": 3}, {"p": 0.5, "G": 8}],
        "mistakes": {
            "the mixed share is no cure: the two completions do not see the same others": (
                lambda p, G: over_mixed_groups(p, G) / (1 - identity.silent_rate(p, G))
            ),
        },
    },
    "9.2": {
        "expected": competing,
        "inputs": [{"p": np.array([0.06, 0.5, 0.98]), "w": np.array([3.6, 2.0, 5.8])}],
        "mistakes": {
            "w is missing: those are the moves under Dr. GRPO": without_weight,
            "a weight is not a step: a coin's gradient is p(1 - p)": without_gradient,
            "those are the coins' own pushes: nobody pays yet": without_payment,
        },
    },
}


def hard_coin(moves, G=64) -> list[float]:
    """p of the hardest of twelve coins that compete, under expected updates of GRPO."""
    weights, p, curve = (
        identity.weight("GRPO", p_log, G),
        np.repeat([0.06, 0.5, 0.98], [1, 3, 8]),
        [],
    )
    for _ in range(161):
        curve.append(p[0])
        odds = p / (1 - p) * np.exp(moves(p, np.interp(p, p_log, weights)))
        p = odds / (1 + odds)
    return curve


TRAINED = {
    "9.2": {
        "curve": hard_coin,
        "right": "right (GRPO, G = 64)",
        "mistakes": {
            "Dr. GRPO": without_weight,
            "the weights alone": without_gradient,
            "no competition": without_payment,
        },
        "labels": ("updates", "p of the hard coin"),
    }
}
assert hard_coin(competing)[-1] > 0.8 > 0.01 > hard_coin(competing, G=8)[-1]  # as 9.2 says
# Exercise 9.1 says so
assert round(over_mixed_groups(0.5, 3) / over_mixed_groups(0.02, 3)) == 13
