"""The toy of lesson 13, and the right answers and usual mistakes of its exercises."""

from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure

from lessons import identity
from lessons.workshop.notebook import BLUE, GREEN, ORANGE, new_figure, ticks

# The policy of lessons 13 and 17: six answers, two of them right; and all groups of three
PI = torch.tensor([0.5, -0.3, 0.1, 0.9, -1.2, 0.0], dtype=torch.float64).softmax(dim=0)
REWARDS = torch.tensor([1.0, 1, 0, 0, 0, 0], dtype=torch.float64)
GROUPS = torch.cartesian_prod(*[torch.arange(6)] * 3)  # (216, 3)


def batch(p, spread, seed=0) -> tuple:
    """Rewards (32, 40) and scores (32, 40, 33) of 32 policies. A score is R - p in its first entry,
    and noise in all: with this standard deviation if R = 0, and .5 if R = 1."""
    rng = np.random.default_rng(seed)
    R = (rng.random((32, 40)) < p) * 1.0
    scores = rng.normal(size=(32, 40, 33)) * np.where(R, 0.5, spread)[..., None]
    scores[..., 0] += R - p
    return R, scores


def update(R, b, scores) -> np.ndarray:
    """(32, 33): the mean over the first 8 completions."""
    return np.einsum("ij,ijk->ik", (R - b)[:, :8], scores[:, :8]) / 8


def parabola(p, G, ratio) -> Figure:
    """The noise of the update over c = 1 / (G - 1 + kappa), relative to A = R. ratio: a- / a+."""

    def noise(c):
        return identity.shrunk_variance(p, G, 1 / np.maximum(c, 1e-12) - (G - 1), ratio)

    best = 1 / (G - 1 + identity.best_kappa(p, G, ratio))
    figure, axis = new_figure(7, 3.2)
    c = np.linspace(0, 1.15 * max(best, 1 / (G - 1)), 200)
    axis.plot(c, noise(c), color=BLUE)
    for at, name, side in ((0, "A = R", "left"), (1 / (G - 1), "mean of the others", "right")):
        axis.plot(at, noise(at), "ko")
        axis.annotate(name, (at, noise(at)), (0, 9), textcoords="offset points", ha=side)
    axis.plot(best, noise(best), "o", color=ORANGE)
    axis.annotate("κ*", (best, noise(best)), (0, -16), textcoords="offset points", ha="center")
    axis.axhline(1, color="black", linestyle=":", linewidth=1)
    axis.set(xlabel="c = 1 / (G − 1 + κ)", ylabel="noise, relative to A = R")
    axis.margins(y=0.2)
    return figure


def sides(counted: list[dict], G: int) -> Figure:
    """The prompts that experiments/group_mean.py measured: p and a- / a+, by task, filled where
    subtracting was noisier; and the border by the theorem."""
    tasks = list(dict.fromkeys(cell["task"] for cell in counted))
    figure, axes = new_figure(8.5, 3.6, columns=len(tasks), sharey=True)
    p = np.linspace(0.005, 0.995, 400)
    for axis, task in zip(axes, tasks):
        axis.plot(p, limit_in_groups(p, G), color="black", linewidth=1.2)
        for step, color in ((0, BLUE), (20, GREEN), (60, ORANGE)):
            shown = [
                (cell["p"], cell["ratio"], cell["noisier"])
                for cell in counted
                if (cell["task"], cell["step"], cell["G"]) == (task, step, G) and cell["decided"]
            ]
            for noisier in (True, False):
                dots = [dot[:2] for dot in shown if dot[2] == noisier]
                fill = color if noisier else "none"
                x, y = np.reshape(dots, (-1, 2)).T
                axis.scatter(x, y, 16, fill, edgecolors=color, linewidths=1.2)
            axis.plot([], [], "o", color=color, label=f"{step} steps" if step else "base")
        axis.set(title=task, xscale="logit", yscale="log", xlabel="p")
        ticks(axis.xaxis, (".01", ".1", ".5", ".9", ".99"))
    axes[0].set_ylabel("a₋/a₊")
    axes[0].legend(fontsize=9)
    return figure


# Exercises; `notebook.check` explains the keys of CHECKS


def limit_in_groups(p, G, variance=lambda p, G: p * (1 - p) / (G - 1), twice=1):
    """The ratio of squared lengths at which the mean of the others is as noisy as nothing; with
    another variance of that mean, or not counted twice, a wrong one."""
    q, v = 1 - p, variance(p, G)
    return p * (1 - q**2 - twice * v) / (q * (p**2 + v))


def weighted(rewards, scores, power=1.0):
    """The mean reward, each completion weighted by a power of its squared score length."""
    return np.average(rewards, weights=(scores**2).sum(axis=1) ** power)


CHECKS = {
    "13.1": {
        "expected": limit_in_groups,
        "inputs": [{"p": 0.5, "G": 2}, {"p": 0.2, "G": 5}, {"p": 0.7, "G": 8}],
        "mistakes": {
            "1 + 1/q holds for a constant b; this one varies": lambda p, G: 1 + 1 / (1 - p),
            "b is the mean of the G − 1 others": partial(
                limit_in_groups, variance=lambda p, G: p * (1 - p) / G
            ),
            "(1 − b)² has the variance in its mean, too": partial(limit_in_groups, twice=0),
        },
    },
    "13.2": {
        "expected": weighted,
        "inputs": [
            {
                "rewards": np.array([1.0, 0, 0, 1]),
                "scores": np.array([[x, -1.0], [0.5, x], [2.0, 0.0], [1.0, 1.0]]),
            }
            for x in (3, -0.5)
        ],
        "mistakes": {
            "that is p: every completion counts alike": partial(weighted, power=0),
            "the lengths are to be squared": partial(weighted, power=0.5),
        },
    },
}


def mean_success(baseline) -> list[float]:
    """The mean p over two prompts, of 32 policies each: wrong scores are three times as long in
    one, and a third as long in the other. The baseline is of 32 other completions; steps of .2."""
    curves = []
    for spread in (1.5, 0.17):
        z = np.full((32, 1), -2.2)
        for seed in range(61):
            p = 1 / (1 + np.exp(-z))
            curves.append(p.mean())
            R, scores = batch(p, spread, seed)
            b = [[baseline(*others)] for others in zip(R[:, 8:], scores[:, 8:])]
            step = update(R, b, scores)
            z = z + 0.2 * step[:, :1] / (np.linalg.norm(step, axis=1)[:, None] + 1e-9)
    return np.reshape(curves, (2, 61)).mean(axis=0)


TRAINED = {
    "13.2": {
        "curve": mean_success,
        "right": "b* (right)",
        "mistakes": {
            "b = 0": lambda rewards, scores: 0.0,
            "b = p": partial(weighted, power=0),
        },
        "labels": ("updates of one length", "success probability p"),
    }
}
