"""Right answers and usual mistakes of lesson 15's exercises; `kit.check` explains the keys."""

from collections.abc import Callable

import numpy as np


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
