"""The pictures of lesson 15, and the right answers and usual mistakes of its exercises."""

import re
from functools import partial

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from lessons.workshop.companions.drawing import curve, key
from lessons.workshop.notebook import GREY, ORANGE, RIGHT, WRONG, new_figure, ticks
from toy_env.arithmetic import Problem


def right_steps(problem: Problem) -> str:
    """The right completion that writes its steps, such as "29+46=75;75-36=39;#39"."""
    total, *numbers = map(int, re.findall("[+-]?[0-9]+", problem.expression))
    text = ""
    for number in numbers:
        text += f"{total}{number:+d}={total + number};"
        total += number
    return f"{text}#{total}"


def error(won, n):
    """Half the 95 % interval of the share of pairs won, from two counts by problem, (256,)."""
    return 31.36 * (won - won.sum() / n.sum() * n).std() / n.sum()


def slip_of(true: Tensor, reward: float) -> int | None:
    """The token at which the true value falls most; None for a right completion."""
    return None if reward else int(true.diff().argmin())


def blame(text: str, values: dict, advantages: dict, slip: int | None, title: str) -> Figure:
    """Values before each token, and advantages by λ, of the critic and of the true values."""
    figure = Figure(figsize=(8.5, 5.6), layout="constrained")
    above, *below = panels = figure.subplots(1 + len(advantages), 1, sharex=True)
    places, looks = np.arange(len(text) + 1), {"the critic": ORANGE, "the true values": GREY}
    for i, (name, color) in enumerate(looks.items()):
        above.plot(places - 0.5, values[name], "o-", color=color, markersize=3.5)
        for axis, each in zip(below, advantages.values()):
            axis.bar(places + 0.36 * i - 0.18, each[i], 0.36, color=color)
    key(above, looks, 0.75, 0.6, 0.14)
    above.set(title=title, ylabel="value", xlim=(-0.9, max(len(text), 20) + 0.7), ylim=(-0.1, 1.1))
    for axis, name in zip(below, advantages):
        axis.axhline(0, color="black", linewidth=0.6)
        axis.set(ylabel=f"advantage, {name}", ylim=(-1.15, 1.15))
    above.set_xticks(places, f"{text}∎", fontsize=11, family="monospace")
    for axis in panels:
        axis.grid(axis="x", visible=False)
        if slip is not None:
            axis.axvspan(slip - 0.5, slip + 0.5, color=WRONG, alpha=0.15, linewidth=0, zorder=0)
    return figure


def errors_by_lambda(lambdas: np.ndarray, errors: dict) -> Figure:
    """Lesson 15: the error of the gradient against λ, (lambdas,), by critic; a dot at
    the lowest."""
    figure, axis = new_figure(7.5, 3.3)
    for (name, error), color in zip(errors.items(), (GREY, WRONG, ORANGE, RIGHT)):
        curve(axis, lambdas, error, color, label=name, at=0, xytext=(-8, 0), ha="right")
        axis.plot(lambdas[error.argmin()], error.min(), "o", color=color)
    axis.set(yscale="log", xlabel="λ", xlim=(-0.25, 1.05))
    axis.set_title("Squared error of the gradient of 256 completions (REINFORCE: 1)")
    ticks(axis.yaxis, [0.1, 1, 10])
    ticks(axis.xaxis, [0, 0.2, 0.4, 0.6, 0.8, 1])
    return figure


# Exercises; `notebook.check` explains the keys of CHECKS


def faded(errors, gae_lambda, counted=np.triu):
    """The sum of the errors from each token on, faded by their distances: the definition, n^2
    terms."""
    t = np.arange(len(errors))
    return counted(gae_lambda ** abs(t - t[:, None])) @ errors


def gae(rewards, values, gae_lambda, counted=np.triu):
    return faded(rewards + np.append(values[1:], 0) - values, gae_lambda, counted)


def blamed(values, mistake, R, reward_too=0):
    """V after the mistake minus V before it; R minus V before it."""
    return values[mistake + 1] + reward_too * R - values[mistake], R - values[mistake]


GAE = {
    "λ = 0": lambda rewards, values, gae_lambda: gae(rewards, values, 0.0),
    "λ = 1": lambda rewards, values, gae_lambda: gae(rewards, values, 1.0),
    "bug: sums earlier errors": partial(gae, counted=np.tril),
    "bug: λ times the next value": (
        lambda rewards, values, gae_lambda: faded(rewards, gae_lambda) - values
    ),
}

CHECKS = {
    "15.1": {
        "expected": gae,
        "inputs": [
            {
                "rewards": np.array([0.1, -0.2, 0, 1.0]),
                "values": np.array([0.5, 0.1, 0.9, 0.3]),
                "gae_lambda": gae_lambda,
            }
            for gae_lambda in (0.95, 0.5)
        ],
        "mistakes": {
            "later errors count, not those before it": GAE["bug: sums earlier errors"],
            "λ belongs to A_{t+1} only; on V_{t+1} it acts like a discount": (
                GAE["bug: λ times the next value"]
            ),
            "that is λ = 1: the return minus the value": GAE["λ = 1"],
            "that is λ = 0: the later errors are missing": GAE["λ = 0"],
        },
    },
    "15.2": {
        "expected": blamed,
        "inputs": [
            {"values": np.array([0.6, 0.9, 0.2, 0.3]), "mistake": 1, "R": 0},
            {"values": np.array([0.7, 0.8, 0.1, 0.5]), "mistake": 1, "R": 1},
        ],
        "mistakes": {
            "the value before the mistake is values[mistake]": (
                lambda values, mistake, R: blamed(values, mistake - 1, R)
            ),
            "the reward comes after the last token: at λ = 0 it is not the mistake's": (
                partial(blamed, reward_too=1)
            ),
        },
    },
}


def mean_success(gae) -> list[float]:
    """The probability that all of 16 tokens are right, each with its own logit: 32 completions an
    update, the true values but blind to the last token, λ = .7, whitened advantages, rate .5."""
    rng, z, means = np.random.default_rng(0), np.full(16, 2.2), []
    for _ in range(61):
        p = 1 / (1 + np.exp(-z))
        means.append(p.prod())
        right = rng.random((32, 16)) < p
        flawless = right.cumprod(axis=1)  # up to and including each token
        rewards, ahead = flawless * np.eye(16)[15], p[::-1].cumprod()[::-1]
        values = ahead * np.insert(flawless, [0, 0], 1, axis=1)[:, :16]
        A = np.array([*map(gae, rewards, values, [0.7] * 32)], float)
        z = z + 0.5 * ((A - A.mean()) / (A.std() + 1e-8) * (right - p)).mean(axis=0)
    return means


TRAINED = {
    "15.1": {
        "curve": mean_success,
        "mistakes": GAE,
        "labels": ("updates", "success probability p"),
    }
}
