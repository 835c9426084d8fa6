"""The pictures of lesson 0, and the right answers and usual mistakes of its exercises."""

from math import exp

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from lessons.workshop.kit import GREY, ORANGE, PURPLE, RED, new_figure


def updates_needed(curves: Tensor, level: float = 0.9, share: float = 0.9) -> str:
    """The number of updates after which this share of the runs has at least this success
    probability, or a dash. curves: (updates + 1, runs)."""
    reached = (curves >= level).double().mean(dim=1) >= share
    return str(int(reached.int().argmax())) if reached.any() else "–"


def fans(curves: dict[tuple[str, float], Tensor], rate: float) -> Figure:
    """Lesson 0: the success probability along 200 runs with each baseline: the median, half of the
    runs, eight in ten.

    curves: (updates + 1, runs) of each baseline and learning rate.
    """
    names = list(dict.fromkeys(name for name, _ in curves))
    figure, panels = new_figure(8.5, 2.9, columns=len(names), sharey=True)
    for axis, name, color in zip(panels, names, (ORANGE, GREY, PURPLE, RED)):
        runs = curves[name, rate]
        low, lower, median, upper, high = np.quantile(runs, [0.1, 0.25, 0.5, 0.75, 0.9], axis=1)
        x = np.arange(len(runs))
        axis.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
        axis.fill_between(x, lower, upper, color=color, alpha=0.3, linewidth=0)
        axis.plot(x, median, color=color)
        axis.axhline(0.9, color=GREY, linewidth=0.8, linestyle=":")
        needed = updates_needed(runs)
        when = "not in 200 updates" if needed == "–" else f"after {needed} updates"
        label = f"9 in 10 runs above .9\n{when}"
        axis.text(0.97, 0.05, label, ha="right", fontsize=9, transform=axis.transAxes)
        axis.set(title=name, xlabel="updates", xlim=(0, 200), ylim=(0, 1.02))
        axis.set_xticks([0, 100, 200])
    panels[0].set_ylabel("success probability p")
    figure.suptitle(f"learning rate {rate:g}", x=0.01, ha="left", fontsize=11)
    return figure


def table(curves: dict[tuple[str, float], Tensor], variances: dict[str, float]) -> str:
    """Lesson 0: the updates that nine runs in ten need, by baseline and learning rate, as
    Markdown."""
    rates = list(dict.fromkeys(rate for _, rate in curves))
    lines = [
        "| | variance | " + " | ".join(f"rate {rate:g}" for rate in rates) + " |",
        "|---" * (len(rates) + 2) + "|",
    ]
    for name, variance in variances.items():
        needed = " | ".join(updates_needed(curves[name, rate]) for rate in rates)
        lines.append(f"| {name} | {variance:.2f} | {needed} |")
    return "\n".join(lines)


# Exercises; `kit.check` explains the keys of CHECKS


def probability(z: float) -> float:
    return 1 / (1 + exp(-z))


def moved(z: float, R: int, b: float, rate: float) -> float:
    return z + rate * (R - b) * (R - probability(z))


def variance(p: float, b: float) -> float:
    """Variance of (R - b) times the score R - p, which takes two values."""
    return p * (1 - p) * ((1 - b) * (1 - p) - b * p) ** 2


CHECKS = {
    "0.1": {
        "expected": moved,
        "inputs": [
            {"z": 0.4, "R": 1, "b": 0.0, "rate": 1.0},
            {"z": 0.4, "R": 0, "b": 0.5, "rate": 0.5},
            {"z": -1.2, "R": 1, "b": 0.25, "rate": 2.0},
        ],
        "mistakes": {
            "R = 0: it is the log-probability of the wrong one that counts": lambda z, R, b, rate: (
                z + rate * (R - b) * (1 - probability(z))
            ),
            "that is the slope of the probability": lambda z, R, b, rate: (
                z + rate * (R - b) * probability(z) * (1 - probability(z)) * (1 if R else -1)
            ),
            "the baseline is missing": lambda z, R, b, rate: moved(z, R, 0, rate),
            "the sign: a positive advantage must raise what was sampled": lambda z, R, b, rate: (
                moved(z, R, b, -rate)
            ),
        },
    },
    "0.2": {
        "expected": lambda p, candidates: min(candidates, key=lambda b: variance(p, b)),
        "inputs": [
            {"p": 0.9, "candidates": [0.9, 0.5, 0.0]},
            {"p": 0.2, "candidates": [0.2, 0.0, 1.0]},
            {"p": 0.7, "candidates": [0.0, 0.7, 0.4]},
            {"p": 0.1, "candidates": [-1.0, 0.2, 2.2]},
        ],
        "mistakes": {
            "that is the candidate nearest to p: multiply by the score first": (
                lambda p, candidates: min(candidates, key=lambda b: abs(b - p))
            ),
            "the two outcomes are not equally likely": lambda p, candidates: min(
                candidates, key=lambda b: ((1 - b) * (1 - p)) ** 2 + (b * p) ** 2
            ),
            "R - b has the same variance for every b: multiply by the score first": (
                lambda p, candidates: candidates[0]
            ),
            "no baseline is not always the least noisy": (
                lambda p, candidates: min(candidates, key=abs)
            ),
        },
    },
}
