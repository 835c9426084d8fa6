"""The pictures of lesson 15, and the right answers and usual mistakes of its exercises."""

import re
from functools import partial

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from lessons.workshop import kit
from lessons.workshop.kit import GREY, ORANGE, RIGHT, WRONG, label_line, new_figure, ticks
from lessons.workshop.parts.drawing import key
from toy_env.arithmetic import Problem


def right_steps(problem: Problem) -> str:
    """The right completion that writes its steps, such as "29+46=75;75-36=39;#39"."""
    total, *numbers = map(int, re.findall("[+-]?[0-9]+", problem.expression))
    text = ""
    for number in numbers:
        text += f"{total}{number:+d}={total + number};"
        total += number
    return f"{text}#{total}"


def slip_of(true: Tensor, reward: float) -> int | None:
    """The token at which the true value falls most; None for a right completion."""
    return None if reward else int(true.diff().argmin())


def blame(text: str, values: dict, advantages: dict, slip: int | None, title: str) -> Figure:
    """Lesson 15: the values before each token of a completion, and the advantages of its tokens, by
    the critic and by the true values. The token at `slip` is in the colour of mistakes."""
    figure = Figure(figsize=(8.5, 4.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    places, looks = np.arange(len(text) + 1), {"the critic": ORANGE, "the true values": GREY}
    for i, (name, color) in enumerate(looks.items()):
        above.plot(places - 0.5, values[name], "o-", color=color, markersize=3.5)
        below.bar(places + 0.36 * i - 0.18, advantages[name], 0.36, color=color)
    if slip is not None:
        for axis in (above, below):
            axis.axvspan(slip - 0.5, slip + 0.5, color=WRONG, alpha=0.15, linewidth=0, zorder=0)
    key(above, looks, 0.75, 0.6, 0.14)
    above.set(title=title, ylabel="value before the token", ylim=(-0.08, 1.1))
    below.axhline(0, color="black", linewidth=0.6)
    below.set(ylabel="advantage", xlim=(-0.9, max(len(places), 21) - 0.3), ylim=(-1.15, 1.15))
    below.set_xticks(places, f"{text}∎", fontsize=11, family="monospace")
    above.grid(axis="x", visible=False)
    below.grid(axis="x", visible=False)
    return figure


def errors_by_lambda(lambdas: np.ndarray, errors: dict, chosen: int) -> Figure:
    """Lesson 15: the error of the gradient against λ, with critics trained on `chosen` completions;
    others in grey. errors, (2, lambdas), by number of completions: of the mean, and noise."""
    figure, axis = new_figure(8.0, 3.4)
    for n, parts in errors.items():
        axis.plot(lambdas, parts.sum(axis=0), color=GREY, linewidth=1, alpha=0.5)
        side = {2048: "bottom", 8192: "top"}.get(n, "center")  # these two ends are close
        label_line(axis, 0, parts[:, 0].sum(), f"{n:,}", RIGHT if n == chosen else GREY,
                   xytext=(-8, 0), ha="right", va=side)  # fmt: skip
    label_line(axis, 0, 15, "training\ncompletions", GREY, xytext=(-8, 0), ha="right", va="bottom")
    total, place = errors[chosen].sum(axis=0), errors[chosen].sum(axis=0).argmin()
    axis.plot(lambdas, total, color=RIGHT)
    axis.plot(lambdas, errors[chosen][0], "--", color=WRONG, linewidth=1.5)
    axis.plot(lambdas[place], total[place], "o", color=RIGHT, markersize=9)
    where = f"best: λ = {lambdas[place]:.2f}"
    label_line(axis, lambdas[place], total[place], where, RIGHT, xytext=(0, 12 if place else -16),
               ha="center", bbox={"color": "white", "alpha": 0.8, "pad": 0})  # fmt: skip
    key(axis, {"total error": RIGHT, "dashed: from the bias": WRONG}, 0.3)
    axis.set(yscale="log", xlabel="λ", ylabel="squared error (REINFORCE: 1)")
    axis.set(xlim=(-0.4 if kit.narrow else -0.18, 1.1), ylim=(0.01, 100))
    axis.set_title(f"Critic trained on {chosen:,} completions")
    ticks(axis.yaxis, [0.01, 0.1, 1, 10])
    ticks(axis.xaxis, [0, 0.2, 0.4, 0.6, 0.8, 1])
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def faded(errors, gae_lambda, counted=np.triu):
    """The sum of the errors from each token on, faded by their distances: the definition, n^2
    terms."""
    t = np.arange(len(errors))
    return counted(gae_lambda ** abs(t - t[:, None])) @ errors


def gae(rewards, values, gae_lambda, after=0.0, counted=np.triu):
    """after: the value after the last token."""
    return faded(rewards + np.append(values[1:], after) - values, gae_lambda, counted)


def first_value(pi, ref, R, beta):
    """The mean reward of a completion, less what its two tokens are charged."""
    return (pi * (R - beta * np.log(pi / ref))).sum()


def shift(c, n, gae_lambda):
    """The term that c adds to every advantage: only the last one-step error changes, by -c."""
    return -c * gae_lambda ** np.arange(n)[::-1]


GAE = {
    "λ = 0": lambda rewards, values, gae_lambda: gae(rewards, values, 0.0),
    "λ = 1": lambda rewards, values, gae_lambda: gae(rewards, values, 1.0),
    "earlier errors": partial(gae, counted=np.tril),
    "λ on the next value": (
        lambda rewards, values, gae_lambda: faded(rewards, gae_lambda) - values
    ),
}
pi, ref = np.random.default_rng(1).dirichlet(np.ones(9), size=2).reshape(2, 3, 3)

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
            "later errors count, not those before it": GAE["earlier errors"],
            "the value after the last token is 0, not the last value again": (
                lambda rewards, values, gae_lambda: gae(rewards, values, gae_lambda, values[-1])
            ),
            "λ belongs to A_{t+1} only; on V_{t+1} it acts like a discount": (
                GAE["λ on the next value"]
            ),
            "that is λ = 1: the return minus the value": GAE["λ = 1"],
            "that is λ = 0: the later errors are missing": GAE["λ = 0"],
            "those are the returns: subtract V_t": (
                lambda rewards, values, gae_lambda: gae(rewards, values, gae_lambda) + values
            ),
        },
    },
    "15.2": {
        "expected": shift,
        "inputs": [{"c": 0.5, "n": 4, "gae_lambda": 0.9}, {"c": 1, "n": 1, "gae_lambda": 0.5}],
        "mistakes": {
            "that is λ = 1": lambda c, n, gae_lambda: np.full(n, -c),
            "that is λ = 0: with a larger λ the last error reaches earlier tokens, too": (
                lambda c, n, gae_lambda: shift(c, n, 0.0)
            ),
            "V is too high everywhere, but after the last token, where it is 0, by nothing": (
                lambda c, n, gae_lambda: np.zeros(n)
            ),
        },
    },
    "15.3": {
        "expected": first_value,
        "inputs": [{"pi": pi, "ref": ref, "R": np.eye(3), "beta": beta} for beta in (0.5, 2.0)],
        "mistakes": {
            "the sign: a token that has become likelier is charged": (
                lambda pi, ref, R, beta: first_value(pi, ref, R, -beta)
            ),
            "the KL is missing": lambda pi, ref, R, beta: (pi * R).sum(),
            "that is the KL of the first token alone": lambda pi, ref, R, beta: (
                (pi * R).sum() + first_value(pi.sum(axis=1), ref.sum(axis=1), 0, beta)
            ),
            "the KL the other way round: the completions are sampled from the policy": (
                lambda pi, ref, R, beta: (pi * R).sum() + first_value(ref, pi, 0, beta)
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
