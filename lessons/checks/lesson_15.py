"""What the exercises of lesson 15 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable

import numpy as np


def one_step_errors(rewards: np.ndarray, values: np.ndarray, after: float = 0.0) -> np.ndarray:
    """delta_t, with the value `after` after the last token."""
    return rewards + np.append(values[1:], after) - values


def faded(terms: np.ndarray, gae_lambda: float, forward: bool = False) -> np.ndarray:
    """The sums of the terms from each token on (or up to it), each faded by its distance: the definition, n^2 terms."""
    n = len(terms)
    distance = np.array([[t - j if forward else j - t for j in range(n)] for t in range(n)])
    return np.array([sum(gae_lambda**d * x for d, x in zip(row, terms) if d >= 0) for row in distance])


def gae(rewards: np.ndarray, values: np.ndarray, gae_lambda: float) -> np.ndarray:
    return faded(one_step_errors(rewards, values), gae_lambda)


def first_value(pi: np.ndarray, ref: np.ndarray, R: np.ndarray, beta: float, sign: float = -1.0) -> float:
    """Token by token over all completions."""
    total = 0.0
    for first in range(len(pi)):
        r_1 = sign * beta * (np.log(pi[first].sum()) - np.log(ref[first].sum()))
        for then in range(len(pi)):
            now, before = pi[first, then] / pi[first].sum(), ref[first, then] / ref[first].sum()
            r_2 = R[first, then] + sign * beta * (np.log(now) - np.log(before))
            total += pi[first].sum() * now * (r_1 + r_2)
    return total


def shift(c: float, n: int, gae_lambda: float) -> np.ndarray:
    """The difference of two runs of GAE, on made-up rewards and values."""
    rewards, values = np.random.default_rng(0).random((2, n))
    return gae(rewards, values + c, gae_lambda) - gae(rewards, values, gae_lambda)


def at(values: Callable) -> Callable:
    """values(positions, c, n, gae_lambda) as a function of c, n and gae_lambda."""
    return lambda c, n, gae_lambda: values(np.arange(n), c, n, gae_lambda)


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
            "that is λ = 0: each token gets its own one-step error and nothing of those that follow": (
                lambda rewards, values, gae_lambda: one_step_errors(rewards, values)
            ),
            "a token is judged by the errors that follow it, not those before it": lambda rewards, values, gae_lambda: (
                faded(one_step_errors(rewards, values), gae_lambda, forward=True)
            ),
            "the value after the last token is 0, not the last value again": lambda rewards, values, gae_lambda: faded(
                one_step_errors(rewards, values, after=values[-1]), gae_lambda
            ),
            "these are the critic's targets: leave V_t out": lambda rewards, values, gae_lambda: (
                gae(rewards, values, gae_lambda) + values
            ),
            "λ fades the errors that follow; here it fades the rewards": lambda rewards, values, gae_lambda: (
                faded(rewards, gae_lambda) - values
            ),
            "that is λ = 1: the return minus the value": lambda rewards, values, gae_lambda: gae(rewards, values, 1.0),
        },
    },
    "15.2": {
        "expected": first_value,
        "inputs": [{"pi": pi, "ref": ref, "R": rewards, "beta": beta} for beta in (0.5, 0.0)]
        + [{"pi": ref, "ref": pi, "R": 1 - rewards, "beta": 2.0}],
        "mistakes": {
            "the sign: a token that has become likelier is charged": lambda pi, ref, R, beta: first_value(
                pi, ref, R, beta, sign=1.0
            ),
            "the KL the other way round: the completions are sampled from the policy": lambda pi, ref, R, beta: (
                (pi * R).sum() - beta * (ref * np.log(ref / pi)).sum()
            ),
            "the tokens of wrong completions are charged too": lambda pi, ref, R, beta: (
                pi * R * (1 - beta * np.log(pi / ref))
            ).sum(),
            "that is the success probability: the charges are missing": lambda pi, ref, R, beta: (pi * R).sum(),
            "a mean over completions as they are sampled: weigh each by its probability": lambda pi, ref, R, beta: (
                R - beta * np.log(pi / ref)
            ).mean(),
        },
    },
    "15.3": {
        "expected": shift,
        "inputs": [
            {"c": c, "n": n, "gae_lambda": gae_lambda}
            for c, n, gae_lambda in ((0.5, 4, 0.9), (-0.2, 6, 0.5), (1, 1, 0.5))
        ],
        "mistakes": {
            "that is λ = 1": at(lambda t, c, n, gae_lambda: -c + 0 * t),
            "that is λ = 0": at(lambda t, c, n, gae_lambda: -c * (t == n - 1)),
            "c does not cancel in every one-step error": at(lambda t, c, n, gae_lambda: 0.0 * t),
            "counted from the other end: what follows a token is what judges it": at(
                lambda t, c, n, gae_lambda: -c * gae_lambda**t
            ),
            "the sign: an optimistic critic is disappointed": at(
                lambda t, c, n, gae_lambda: c * gae_lambda ** (n - 1.0 - t)
            ),
        },
    },
}
