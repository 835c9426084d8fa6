"""The pictures of lesson 17, and the right answers and usual mistakes of its exercises."""

from functools import partial
from itertools import product

import numpy as np
from matplotlib.figure import Figure

from lessons.experiments import paired
from lessons.experiments.erring import (
    BASE,
    CALM,
    COMPOSED,
    COMPOSITIONS,
    JS,
    WINDOW,
    errors,
    push_back,
    select,
    values,
)
from lessons.identity import silent_rate
from lessons.workshop.kit import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, new_figure

COLORS = dict(zip(COMPOSITIONS, (ORANGE, BLUE, GREY)))
NAMES = dict(zip(COMPOSITIONS, ("wrong ones accepted", "right ones rejected", "both alike")))


def accuracy_and_rates(runs: list, f: float, m: float, rates: np.ndarray, plain: np.ndarray):
    """Accuracy over J by composition, with 95 % intervals over seeds, and the chosen f and m; and
    their effect on one prompt: expected update, noise and cosine, with errors (rates) and without
    (plain)."""
    figure, (left, right) = new_figure(9.6, 3.8, columns=2, width_ratios=(3, 2))
    J = sorted([1.0, *JS])
    for made, color in COLORS.items():
        ends = np.array([values(runs, COMPOSED.get((j, made), {}), "end") for j in J]).T
        left.fill_between(J, *paired.t_interval(ends), color=color, alpha=0.2, linewidth=0)
        left.plot(J, ends.mean(axis=0), "o-", color=color, markersize=4, label=NAMES[made])
    left.axhline(BASE, color="black", linewidth=0.8, linestyle=":")
    left.axvline(1 - f - m, color=PURPLE, linewidth=1.2, linestyle="--")
    left.set(
        title=f"f = {f:.1f}, m = {m:.1f}: J = {round(1 - f - m, 1) + 0.0:.1f}",
        xlabel="J = 1 − f − m",
        ylabel="true accuracy at the end",
        ylim=(0, 1),
    )
    left.legend(loc="lower right", fontsize=9)

    y, unit = np.arange(3)[::-1], [*plain[:2], 1]
    right.barh(y + 0.17, rates / unit, 0.32, color=PURPLE, label="with these errors")
    right.barh(y - 0.17, plain / unit, 0.32, color=GREY, alpha=0.5, label="without")
    right.set_yticks(y, ["expected\nupdate", "its noise", "cosine\nwith ∇p"])
    right.axvline(0, color="black", linewidth=0.8)
    right.set(xlim=(min(-0.1, *rates) * 1.1, 1.6), ylim=(-0.5, 3.2))
    right.set_title("GRPO, a prompt with p = .3")
    right.legend(loc="upper right", fontsize=9)
    return figure


def lags(slopes: dict) -> Figure:
    """The share of the slope without errors that each arm keeps, with 95 % intervals, over B:
    gradient descent at 1/J times the rate, and AdamW, by how the updates of a batch are made."""
    figure, axes = new_figure(9.6, 3.8, columns=2, sharey=True)
    looks = {"clipped": ("o", None), "unclipped": ("o", "white"), "one": ("x", None)}
    labels = ("four updates, clipped", "four, no clip", "one update")
    for axis, batch in zip(axes, (CALM, "AdamW")):
        for (updates, (marker, face)), label in zip(looks.items(), labels):
            arms = product(JS[:3], COMPOSITIONS)
            for (J, made), (ratio, *interval) in zip(arms, slopes[updates, batch].reshape(3, 9).T):
                x, look = push_back(BASE, *errors(J, made).values()), {"color": COLORS[made]}
                axis.plot([x, x], interval, linewidth=1, alpha=0.5, **look)
                axis.plot(x, ratio, marker, markersize=6, mfc=face, **look)
            axis.plot([], [], marker, color="black", mfc=face, label=label)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set(xlabel="B, by the formula", ylim=(0, 1.5))
    axes[0].set(title="gradient descent", ylabel="initial slope (1: no errors)")
    axes[1].set_title("AdamW, at one rate")
    axes[1].legend(loc="upper right", fontsize=9)
    return figure


def forms(runs: list, forms: dict, as_often: dict) -> Figure:
    """Over training, means over seeds of the shares of completions that pass (dashed) and that are
    right: with errors of a form, and (dotted, right only) with as many random errors."""
    figure, axis = new_figure(8.5, 3.6)

    def over_training(settings: dict, what: str, line: str, **look) -> None:
        shares = np.mean([run["windows"][what] for run in select(runs, settings)], axis=0)
        axis.plot(256 * WINDOW * (np.arange(len(shares)) + 0.5), shares, line, **look)

    for (form, settings), color in zip(forms.items(), (PURPLE, GREEN, RED)):
        over_training(settings, "passed", "--", color=color, linewidth=1.5)
        over_training(settings, "right", "-", color=color, label=form)
        if form in as_often:
            over_training(as_often[form], "right", ":", color=color, linewidth=1.5)
    styles = {"--": "pass", "-": "right", ":": "right, errors at random"}
    for line, name in styles.items():
        axis.plot([], [], line, color="black", label=name)
    axis.set(xlabel="completions", ylabel="share of the completions", ylim=(0, 1))
    axis.set_title("Last digit and length are found, the rare 0 is not")
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
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
    "17.4": {
        "expected": lambda f, m: (1.0, 1 / (1 - f - m)),
        "inputs": [{"f": 0.2, "m": 0.1}, {"f": 0.5, "m": 0.3}],
        "mistakes": {
            "division by sigma takes any factor of the rewards out again": (
                lambda f, m: (1 / (1 - f - m), 1 / (1 - f - m))
            ),
            "without division by sigma a factor of the rewards stays in the advantages": (
                lambda f, m: (1.0, 1.0)
            ),
        },
    },
}
