"""The pictures of lesson 0, and the right answers and usual mistakes of its exercises."""

from functools import partial
from math import exp

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from lessons.workshop.kit import ORANGE, PURPLE, RED, new_figure


def fans(curves: dict[tuple[str, float], Tensor], rate: float) -> Figure:
    """Lesson 0: the success probability along 1,000 runs with three baselines: the median and eight
    runs in ten. curves: (updates + 1, runs) of each baseline and learning rate.
    """
    figure, panels = new_figure(8.5, 2.9, columns=3, sharey=True)
    names = ("b = 0", "b = −1", "b = −3")
    for axis, name, color in zip(panels, names, (ORANGE, PURPLE, RED)):
        runs = curves[name, rate]
        low, median, high = np.quantile(runs, [0.1, 0.5, 0.9], axis=1)
        axis.fill_between(range(201), low, high, color=color, alpha=0.3, linewidth=0)
        axis.plot(median, color=color)
        lost = (runs[-1] < 0.1).double().mean()
        axis.set(title=f"{name}\n{lost:.1%} lost", xlabel="updates", ylim=(0, 1.02))
    panels[0].set_ylabel("probability p")
    figure.suptitle(f"learning rate {rate:g}", x=0.01, ha="left", fontsize=11)
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def updated(z, R, b, rate, score=lambda R, p: R - p):
    p = 1 / (1 + exp(-z))
    return z + rate * (R - b) * score(R, p)


def variance(p, b):
    """Variance of (R - b) times the score R - p, which takes two values."""
    return p * (1 - p) * ((1 - b) * (1 - p) - b * p) ** 2


def least_noisy(p, candidates, noise=variance):
    return min(candidates, key=lambda b: noise(p, b))


WRONG_SCORES = {
    "score as if right": partial(updated, score=lambda R, p: 1 - p),
    "slope of p": partial(updated, score=lambda R, p: p * (1 - p) * (2 * R - 1)),
    "sign turned": partial(updated, score=lambda R, p: p - R),
}

CHECKS = {
    "0.1": {
        "expected": updated,
        "inputs": [
            {"z": 0.4, "R": 1, "b": 0.0, "rate": 1.0},
            {"z": 0.4, "R": 0, "b": 0.5, "rate": 0.5},
        ],
        "mistakes": {
            "R = 0: it is the log-probability of the wrong one that counts": (
                WRONG_SCORES["score as if right"]
            ),
            "that is the slope of the probability": WRONG_SCORES["slope of p"],
        },
    },
    "0.2": {
        "expected": least_noisy,
        "inputs": [
            # Multiples of 1/8, so that equal noises are equal to the last digit
            {"p": 0.875, "candidates": [0.875, 0.5, 0.0]},
            {"p": 0.75, "candidates": [0.0, 0.375, 0.75]},
        ],
        "mistakes": {
            "that is the candidate nearest to p: multiply by the score first": partial(
                least_noisy, noise=lambda p, b: abs(b - p)
            ),
            "the first candidate, as if all were equally noisy: the score belongs in the square": (
                lambda p, candidates: candidates[0]
            ),
            "the two outcomes are not equally likely": partial(
                least_noisy, noise=lambda p, b: ((1 - b) * (1 - p)) ** 2 + (b * p) ** 2
            ),
        },
    },
}


def mean_success(update) -> list[float]:
    """The mean of the success probability over 100 runs, each with one completion an update, b = .5
    and a rate of 1, from p = .12."""
    rng, z, means = np.random.default_rng(0), [-2.0] * 100, []
    for _ in range(61):
        p = 1 / (1 + np.exp(-np.array(z)))
        means.append(p.mean())
        R = (rng.random(100) < p).astype(int)
        z = [float(update(each, int(reward), 0.5, 1.0)) for each, reward in zip(z, R)]
    return means


TRAINED = {
    "0.1": {
        "curve": mean_success,
        "mistakes": WRONG_SCORES,
        "labels": ("updates", "p, mean of 100 runs"),
    }
}
