"""The pictures of lesson 0, and the right answers and usual mistakes of its exercises."""

from functools import partial
from itertools import product
from math import exp

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from lessons.workshop.notebook import BLUE, ORANGE, PURPLE, RED, new_figure

# The policy of lessons 0 and 1 has three tokens: 1, 2, and the full stop, which is the EOS
EOS, LIMIT = 2, 3  # a completion has at most three tokens
COMPLETIONS = [
    y
    for n in range(1, LIMIT + 1)
    for y in product(range(3), repeat=n)
    if EOS not in y[:-1] and (y[-1] == EOS or n == LIMIT)
]
PREFIXES = sorted({y[:t] for y in COMPLETIONS for t in range(len(y))})


def text_of(y: tuple[int, ...]) -> str:
    return "".join("12."[token] for token in y)


def fans(curves: dict[str, Tensor], rate: float) -> Figure:
    """Lesson 0: the success probability along 1,000 runs with each baseline: the median and eight
    runs in ten. curves: (updates + 1, runs) of each baseline."""
    figure, panels = new_figure(9, 2.9, columns=4, sharey=True)
    colors = (BLUE, ORANGE, RED, PURPLE)
    for axis, (name, runs), color in zip(panels, curves.items(), colors):
        low, median, high = np.quantile(runs, [0.1, 0.5, 0.9], axis=1)
        axis.fill_between(range(201), low, high, color=color, alpha=0.3, linewidth=0)
        axis.plot(median, color=color)
        lost = (runs[-1] < 0.1).double().mean()
        axis.set(title=f"{name}\n{lost:.1%} lost", xlabel="updates", ylim=(0, 1.02))
    panels[0].set_ylabel("probability p")
    figure.suptitle(f"learning rate {rate:g}", x=0.01, ha="left", fontsize=11)
    return figure


# Exercises; `notebook.check` explains the keys of CHECKS


def learn(z, uniforms, b, rate, score=lambda R, p: R - p):
    """The success probability before each update of the loop."""
    curve = []
    for u in uniforms:
        p = 1 / (1 + exp(-z))
        curve.append(p)
        R = int(u < p)
        z += rate * (R - b) * score(R, p)
    return curve


def variance(p, b):
    """Variance of (R - b) times the score R - p, which takes two values."""
    return p * (1 - p) * ((1 - b) * (1 - p) - b * p) ** 2


def least_noisy(p, candidates, noise=variance):
    return min(candidates, key=lambda b: noise(p, b))


WRONG_SCORES = {
    "score as if right": partial(learn, score=lambda R, p: 1 - p),
    "slope of p": partial(learn, score=lambda R, p: p * (1 - p) * (2 * R - 1)),
}

CHECKS = {
    "0.1": {
        "expected": learn,
        "inputs": [
            {"z": 0.4, "uniforms": [0.3, 0.9, 0.5, 0.7], "b": 0.0, "rate": 1.0},
            {"z": 0.4, "uniforms": [0.8, 0.1, 0.2], "b": 0.5, "rate": 0.5},
        ],
        "mistakes": {
            "R = 0: it is the log-probability of the wrong one that counts": (
                WRONG_SCORES["score as if right"]
            ),
            "that is the slope of the probability": WRONG_SCORES["slope of p"],
            "that is p after each update": (
                lambda z, uniforms, b, rate: learn(z, [*uniforms, 0], b, rate)[1:]
            ),
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


def mean_success(loop) -> list[float]:
    """The mean of the success probability over 100 runs, each with one completion an update, b = .5
    and a rate of 1, from p = .12."""
    uniforms = np.random.default_rng(0).random((100, 61)).tolist()
    return np.mean([loop(-2.0, run, 0.5, 1.0) for run in uniforms], axis=0)


TRAINED = {
    "0.1": {
        "curve": mean_success,
        "mistakes": WRONG_SCORES,
        "labels": ("updates", "p, mean of 100 runs"),
    }
}
