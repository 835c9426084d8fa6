"""The pictures of lesson 17, and the right answers and usual mistakes of its exercises."""

from functools import partial

import numpy as np
from matplotlib.figure import Figure

from lessons.experiments import paired
from lessons.experiments.erring import (
    CALM,
    COMPOSED,
    COMPOSITIONS,
    WINDOW,
    made_by_clip,
    select,
)
from lessons.identity import silent_rate
from lessons.workshop.kit import BLUE, GREY, ORANGE, PURPLE, RIGHT, new_figure, ticks
from lessons.workshop.parts.drawing import key

SHOWN = {1: GREY, 0.4: BLUE, 0.2: PURPLE, -0.2: ORANGE}
NAMES = dict(zip(COMPOSITIONS, ("wrong ones accepted", "right ones rejected", "both alike")))


def right_and_rates(runs: list, f: float, m: float, p: float, kept: np.ndarray):
    """The share that is right over training at four J, with 95 % intervals over seeds; and the
    expected update of one prompt with solve rate p and its noise with the errors f and m, as
    shares of those without."""
    figure, (left, right) = new_figure(9.6, 3.8, columns=2, width_ratios=(3, 2))
    for J, color in SHOWN.items():
        chosen = select(runs, COMPOSED.get((J, "both"), {}))
        shares = np.array([run["windows"]["right"] for run in chosen])
        completions = 256 * WINDOW * (np.arange(shares.shape[1]) + 0.5)
        left.fill_between(completions, *paired.t_interval(shares), color=color, alpha=0.2)
        left.plot(completions, shares.mean(axis=0), color=color)
    key(left, {f"J = {J}".replace("-", "−"): color for J, color in SHOWN.items()}, 0.05, 0.92)
    left.set(title="Errors of both kinds alike", xlabel="completions", ylabel="share that is right")
    left.set(xlim=(0, 10240), ylim=(0, 1))
    right.barh(["its noise", "expected\nupdate"], kept[::-1], 0.4, color=PURPLE)
    right.axvline(0, color="black", linewidth=0.8)
    right.axvline(1, color=GREY)
    right.text(1.03, 1.4, "without errors", color=GREY)
    right.set(xlim=(min(-0.1, *kept) * 1.1, 1.8), ylim=(-0.5, 1.6))
    right.set_title(f"p = {p}, f = {f:.1f}, m = {m:.1f}: J = {round(1 - f - m, 1) + 0.0:.1f}")
    return figure


def lags(slopes: dict) -> Figure:
    """The share of the slope without errors that each arm keeps, with 95 % intervals, over B:
    gradient descent at 1/J times the rate, and AdamW, by how the updates of a batch are made."""
    figure, axes = new_figure(9.6, 3.8, columns=2, sharey=True)
    ways = {"clipped": BLUE, "unclipped": ORANGE, "one": GREY}
    for axis, batch in zip(axes, (CALM, "AdamW")):
        for i, (updates, color) in enumerate(ways.items()):
            kept, low, high = slopes[updates, batch].reshape(3, 9)
            x = made_by_clip(slopes)[0] + 0.003 * (i - 1)
            axis.errorbar(x, kept, (kept - low, high - kept), fmt="o", color=color, linewidth=1)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set(xlabel="B, by the formula", ylim=(0, 1.5))
    names = ("four updates, clipped", "four updates, no clip", "one update")
    key(axes[0], dict(zip(names, ways.values())), 0.05, 0.23)
    axes[0].set(title="Gradient descent", ylabel="initial slope (1: no errors)")
    axes[1].set_title("AdamW")
    return figure


def forms(runs: list, forms: dict, as_often: dict) -> Figure:
    """Over training, means over seeds of the shares of completions that pass and that are right, a
    panel for each form of errors; and the share that is right with as many random errors."""
    figure, axes = new_figure(9.6, 3.4, columns=3, sharey=True)
    looks = {"passes": ("--", ORANGE), "is right": ("-", RIGHT)}
    looks["is right, random errors"] = (":", GREY)
    for axis, (form, settings) in zip(axes, forms.items()):
        lines = (settings, "passed"), (settings, "right"), (as_often.get(form, {}), "right")
        for (chosen, what), (line, color) in zip(lines, looks.values()):
            shares = np.mean([run["windows"][what] for run in select(runs, chosen)], axis=0)
            completions = 256 * WINDOW * (np.arange(len(shares)) + 0.5)
            axis.plot(completions, shares, line, color=color)
        axis.set(title=form, ylim=(0, 1), xlim=(0, 10240), xlabel="completions")
        ticks(axis.xaxis, [0, 5000, 10000])
    axes[0].set_ylabel("share of completions")
    key(axes[0], {name: color for name, (_, color) in looks.items()}, 0.25, 0.32, 0.14)
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def passing(p, f, m):
    """The probability that a completion passes, kind by kind."""
    return p * (1 - m) + (1 - p) * f


def needed(p, f, m, power=2):
    """REINFORCE's noise / signal^2 with errors, relative to that without."""
    return passing(p, f, m) / p / (1 - f - m) ** power


def variance(p):
    return p * (1 - p)


RATES = [{"p": 0.3, "f": 0.4, "m": 0.0}, {"p": 0.1, "f": 0.2, "m": 0.3}]

CHECKS = {
    "17.1": {
        "expected": lambda p, f, m, G: silent_rate(passing(p, f, m), G),
        "inputs": [rates | {"G": 8} for rates in RATES],
        "mistakes": {
            "a group is silent if its verdicts agree: count who passes, not who is right": (
                lambda p, f, m, G: silent_rate(p, G)
            ),
            "right completions are not accepted by mistake: f concerns the share 1 - p": (
                lambda p, f, m, G: silent_rate(f + (1 - m) * p, G)
            ),
            "a group in which all fail is silent, too": lambda p, f, m, G: passing(p, f, m) ** G,
        },
    },
    "17.2": {
        "expected": needed,
        "inputs": RATES,
        "mistakes": {
            "that is the signal's part; the errors are also in the noise": (
                lambda p, f, m: 1 / (1 - f - m) ** 2
            ),
            "the signal counts squared": partial(needed, power=1),
        },
    },
    "17.3": {
        "expected": lambda t, a, r: (a - r) * t * (1 - t) / variance(t * a + (1 - t) * r),
        "inputs": [{"t": 0.4, "a": 0.7, "r": 0.2}, {"t": 0.6, "a": 0.5, "r": 0.3}],
        "mistakes": {
            "1 - a is a share of those that pass; f is a share of the wrong ones": (
                lambda t, a, r: a - r
            ),
            "f and m are shares of the wrong and of the right ones, not of all": (
                lambda t, a, r: 1 - t * (1 - a) - (1 - t) * r
            ),
            "there are right ones among those that fail: m is not 0": (
                lambda t, a, r: 1 - t * (1 - a) / (1 - t * a - (1 - t) * r)
            ),
        },
    },
}
