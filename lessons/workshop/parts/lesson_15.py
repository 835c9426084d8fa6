"""The pictures of lesson 15, and the right answers and usual mistakes of its exercises."""

import re
from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from lessons.workshop.kit import GREY, ORANGE, RIGHT, WRONG
from toy_env.arithmetic import Problem

END = "∎"  # the end-of-sequence token


def tokens_on(axis: Axes, tokens: list[str], slip: int | None) -> None:
    """One tick for each token; the one at `slip` is in the colour of mistakes."""
    axis.set_xticks(range(len(tokens)), tokens, fontsize=11, family="monospace")
    axis.set_xlim(-0.7, len(tokens) - 0.3)
    axis.tick_params(axis="x", length=0)
    axis.grid(axis="x", visible=False)
    if slip is not None:
        axis.axvspan(slip - 0.5, slip + 0.5, color=WRONG, alpha=0.15, linewidth=0)
        axis.get_xticklabels()[slip].set(color=WRONG, fontweight="bold")


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


def values_along(
    texts: list[str], shown: dict[str, int], values: Tensor, truth: dict, rewards: Tensor
) -> Figure:
    """Lesson 15: the critic's values and the true ones before each token of four completions, and
    the rewards.

    shown: a name for each of four completions, by row. values: (B, T). truth: (n_tokens,) by row.
    """
    widest = max(len(truth[i]) for i in list(shown.values())[:2])
    figure = Figure(figsize=(8.5, 4.6), layout="constrained")
    axes = figure.subplots(2, 2, sharey=True, gridspec_kw={"width_ratios": [widest, 7]}).T.flatten()
    for axis, (name, i) in zip(axes, shown.items()):
        tokens = [*texts[i], END]
        tokens_on(axis, tokens, slip_of(truth[i], rewards[i]))
        at = [t - 0.5 for t in range(len(tokens))]
        axis.plot(at, truth[i], "--", color=GREY)
        axis.plot(at, values[i, : len(tokens)], color=ORANGE, marker="o", markersize=3.5)
        color = RIGHT if rewards[i] else WRONG
        axis.plot(len(tokens) - 0.5, rewards[i], "s", color=color, markersize=8, clip_on=False)
        axis.set(title=name, ylim=(-0.08, 1.1))
    axes[0].text(4.6, 0.42, "the critic", color=ORANGE)
    axes[0].text(4.6, 0.22, "true values (dashed)", color=GREY)
    axes[0].text(4.6, 0.02, "square: the reward", color=RIGHT)
    axes[0].set_ylabel("value")
    axes[1].set_ylabel("value")
    return figure


def credit(text: str, advantages: dict[str, Tensor], slip: int | None, title: str) -> Figure:
    """Lesson 15: the advantage of each token of one completion, a panel for each source of
    values."""
    tokens = [*text, END]
    figure = Figure(figsize=(8.0, 4.2), layout="constrained")
    for axis, (name, A) in zip(figure.subplots(2, 1, sharey=True), advantages.items()):
        tokens_on(axis, tokens, slip)
        color = ORANGE if "critic" in name else GREY
        axis.bar(range(len(tokens)), A.numpy(), width=0.6, color=color)
        axis.axhline(0, color="black", linewidth=0.6)
        axis.set(xlim=(-0.7, max(len(tokens), 21) - 0.3), ylim=(-1.15, 1.15))
        axis.set_title(f"{title}: advantages with {name}")
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def faded(errors: np.ndarray, gae_lambda: float) -> np.ndarray:
    """The sum of the errors from each token on, faded by their distances: the definition, n^2
    terms."""
    t = np.arange(len(errors))
    return np.triu(gae_lambda ** np.abs(t - t[:, None])) @ errors


def errors(rewards: np.ndarray, values: np.ndarray, after: float = 0.0) -> np.ndarray:
    """The one-step errors; `after` is the value after the last token."""
    return rewards + np.append(values[1:], after) - values


def gae(rewards: np.ndarray, values: np.ndarray, gae_lambda: float) -> np.ndarray:
    return faded(errors(rewards, values), gae_lambda)


def with_lambda(value: float) -> Callable:
    return lambda rewards, values, gae_lambda: gae(rewards, values, value)


def first_value(pi: np.ndarray, ref: np.ndarray, R: np.ndarray, beta: float) -> float:
    """The mean reward of a completion, less what its two tokens are charged."""
    return (pi * (R - beta * np.log(pi / ref))).sum()


def shift(c: float, n: int, gae_lambda: float) -> np.ndarray:
    """The term that c adds to every advantage: only the last one-step error changes, by -c."""
    return -c * gae_lambda ** np.arange(n)[::-1]


pi, ref = np.random.default_rng(1).dirichlet(np.ones(9), size=2).reshape(2, 3, 3)
rewards = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])

CHECKS = {
    "15.1": {
        "expected": gae,
        "inputs": [
            {
                "rewards": np.array([0, 0, 1.0]),
                "values": np.array([0.5, 0.6, 0.7]),
                "gae_lambda": 0.95,
            },
            {
                "rewards": np.array([0.1, -0.2, 0, 1.0]),
                "values": np.array([0.5, 0.1, 0.9, 0.3]),
                "gae_lambda": 0.5,
            },
        ],
        "mistakes": {
            "that is λ = 0: nothing of the errors that follow": with_lambda(0.0),
            "later errors count, not those before it": lambda rewards, values, gae_lambda: faded(
                errors(rewards, values)[::-1], gae_lambda
            )[::-1],
            "the value after the last token is 0, not the last value again": (
                lambda rewards, values, gae_lambda: faded(
                    errors(rewards, values, after=values[-1]), gae_lambda
                )
            ),
            "here it fades the rewards, not the errors": lambda rewards, values, gae_lambda: (
                faded(rewards, gae_lambda) - values
            ),
            "that is λ = 1: the return minus the value": with_lambda(1.0),
        },
    },
    "15.2": {
        "expected": first_value,
        "inputs": [{"pi": pi, "ref": ref, "R": rewards, "beta": beta} for beta in (0.5, 0.0)]
        + [{"pi": ref, "ref": pi, "R": 1 - rewards, "beta": 2.0}],
        "mistakes": {
            "the sign: a token that has become likelier is charged": (
                lambda pi, ref, R, beta: first_value(pi, ref, R, -beta)
            ),
            "the KL the other way round: the completions are sampled from the policy": (
                lambda pi, ref, R, beta: (pi * R).sum() - beta * (ref * np.log(ref / pi)).sum()
            ),
            "the tokens of wrong completions are charged too": (
                lambda pi, ref, R, beta: (pi * R * (1 - beta * np.log(pi / ref))).sum()
            ),
        },
    },
    "15.3": {
        "expected": shift,
        "inputs": [{"c": 0.5, "n": 4, "gae_lambda": 0.9}, {"c": 1, "n": 1, "gae_lambda": 0.5}],
        "mistakes": {
            "that is λ = 1": lambda c, n, gae_lambda: np.full(n, -c),
            "c does not cancel in every one-step error": lambda c, n, gae_lambda: np.zeros(n),
            "counted from the other end: what follows a token is what judges it": (
                lambda c, n, gae_lambda: shift(c, n, gae_lambda)[::-1]
            ),
            "the sign: an optimistic critic is disappointed": (
                lambda c, n, gae_lambda: -shift(c, n, gae_lambda)
            ),
        },
    },
}
