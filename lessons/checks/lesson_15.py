"""What the exercises of lesson 15 are checked against. `kit.check` explains the keys."""

import numpy as np


def gae(rewards: np.ndarray, values: np.ndarray, gae_lambda: float) -> np.ndarray:
    """The sum of the one-step errors from each token on, faded by their distances: the definition,
    n^2 terms."""
    errors, t = rewards + np.append(values[1:], 0.0) - values, np.arange(len(rewards))
    return np.triu(gae_lambda ** np.abs(t - t[:, None])) @ errors


def first_value(pi: np.ndarray, ref: np.ndarray, R: np.ndarray, beta: float) -> float:
    """The mean reward of a completion, less what its two tokens are charged."""
    return (pi * (R - beta * np.log(pi / ref))).sum()


def shift(c: float, n: int, gae_lambda: float) -> np.ndarray:
    """What c adds to every advantage: only the last one-step error changes, by -c."""
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
    },
    "15.2": {
        "expected": first_value,
        "inputs": [{"pi": pi, "ref": ref, "R": rewards, "beta": beta} for beta in (0.5, 0.0)]
        + [{"pi": ref, "ref": pi, "R": 1 - rewards, "beta": 2.0}],
    },
    "15.3": {
        "expected": shift,
        "inputs": [{"c": 0.5, "n": 4, "gae_lambda": 0.9}, {"c": 1, "n": 1, "gae_lambda": 0.5}],
    },
}
