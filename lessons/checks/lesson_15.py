"""What the exercises of lesson 15 are checked against. `kit.check` explains the keys."""

import numpy as np


def one_step_errors(rewards: np.ndarray, values: np.ndarray, after: float = 0.0) -> np.ndarray:
    """delta_t, with the value `after` after the last token."""
    return rewards + np.append(values[1:], after) - values


def faded(terms: np.ndarray, gae_lambda: float) -> np.ndarray:
    """The sum of the terms from each token on, faded by their distances: the definition, n^2 terms."""
    t = np.arange(len(terms))
    return np.triu(gae_lambda ** np.abs(t - t[:, None])) @ terms


def gae(rewards: np.ndarray, values: np.ndarray, gae_lambda: float, after: float = 0.0) -> np.ndarray:
    return faded(one_step_errors(rewards, values, after), gae_lambda)


def first_value(pi: np.ndarray, ref: np.ndarray, R: np.ndarray, beta: float, sign: float = -1.0) -> float:
    """The mean reward of a completion, less what its two tokens are charged."""
    return (pi * (R + sign * beta * np.log(pi / ref))).sum()


def shift(c: float, n: int, gae_lambda: float) -> np.ndarray:
    """What c adds to every advantage: only the last one-step error changes, by -c."""
    return -c * gae_lambda ** np.arange(n)[::-1]


pi, ref = np.random.default_rng(1).dirichlet(np.ones(9), size=2).reshape(2, 3, 3)
rewards = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])

CHECKS = {
    "15.1": {
        "expected": gae,
        "inputs": [
            {"rewards": np.array([0, 0, 1.0]), "values": np.array([0.5, 0.6, 0.7]), "gae_lambda": 0.95},
            {"rewards": np.array([0.1, -0.2, 0, 1.0]), "values": np.array([0.5, 0.1, 0.9, 0.3]), "gae_lambda": 0.5},
        ],
        "mistakes": {
            "that is λ = 0: nothing of the errors that follow": lambda *x: one_step_errors(*x[:2]),
            "later errors count, not those before it": lambda R, V, x: faded(one_step_errors(R, V)[::-1], x)[::-1],
            "the value after the last token is 0, not the last value again": lambda *x: gae(*x, after=x[1][-1]),
            "here it fades the rewards, not the errors": lambda R, values, gae_lambda: faded(R, gae_lambda) - values,
            "that is λ = 1: the return minus the value": lambda rewards, values, gae_lambda: gae(rewards, values, 1.0),
        },
    },
    "15.2": {
        "expected": first_value,
        "inputs": [{"pi": pi, "ref": ref, "R": rewards, "beta": beta} for beta in (0.5, 0.0)]
        + [{"pi": ref, "ref": pi, "R": 1 - rewards, "beta": 2.0}],
        "mistakes": {
            "the sign: a token that has become likelier is charged": lambda *x: first_value(*x, sign=1.0),
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
            "that is λ = 1": lambda c, n, gae_lambda: shift(c, n, 1.0),
            "c does not cancel in every one-step error": lambda c, n, gae_lambda: np.zeros(n),
            "counted from the other end: what follows a token is what judges it": lambda *x: shift(*x)[::-1],
            "the sign: an optimistic critic is disappointed": lambda *x: -shift(*x),
        },
    },
}
