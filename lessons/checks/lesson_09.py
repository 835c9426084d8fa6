"""Right answers and usual mistakes of lesson 9's exercises; `kit.check` explains the keys."""

from math import log, sqrt

import numpy as np

from lessons import identity


def powers(p: float, n: int) -> float:
    """The sum of (1 - q^j) / j for j = 1..n."""
    return sum((1 - (1 - p) ** j) / j for j in range(1, n + 1))


def gap(others, G: int):
    """GRPO's A(right) - A(wrong) where so many of the other G - 1 are right."""
    return np.sqrt((G - 1 - others) / (others + 1)) + np.sqrt(others / (G - others))


def over_mixed_groups(p: float, G: int) -> float:
    """The bug: both advantages are taken from one group, with k = 1..G-1 right."""
    k = np.arange(1, G)
    return identity.binomial(p, G)[1:G] @ (np.sqrt((G - k) / k) + np.sqrt(k / (G - k)))


CHECKS = {
    "9.1": {
        "expected": lambda G: [identity.weight("MaxRL", p, G) for p in (1e-9, 1 - 1e-9)],
        "inputs": [{"G": 2}, {"G": 8}, {"G": 64}],
        "mistakes": {
            "a wrong completion among wrong ones is in an all-wrong group: its advantage is 0": (
                lambda G: (G, 1)
            ),
            "that is GRPO's: divide by the mean, not by σ": lambda G: (sqrt(G - 1), sqrt(G - 1)),
            "near p = 1 a wrong completion's advantage is not 0: its group is not all wrong": (
                lambda G: (G - 1, 0)
            ),
            "minus a negative number: the weight is A(+) − A(−)": lambda G: (G - 1, -1),
        },
    },
    "9.2": {
        "expected": powers,
        "inputs": [{"p": 0.3, "G": 2}, {"p": 0.05, "G": 8}, {"p": 0.9, "G": 5}],
        "mistakes": {
            "one power of q is missing: the weight has G terms": lambda p, G: powers(p, G - 1),
            "right up to a constant: make J(0) = 0": (
                lambda p, G: -sum((1 - p) ** j / j for j in range(1, G + 1))
            ),
            "that is the limit for G → ∞, where J(0) is not finite": lambda p, G: log(p),
            "that is the weight; integrate it": lambda p, G: (1 - (1 - p) ** G) / p,
            "the integral of q^(j−1) over p, not over q: mind its sign": (
                lambda p, G: -powers(p, G)
            ),
        },
    },
    "9.3": {
        "bug": over_mixed_groups,
        "expected": lambda p, G: identity.weight("GRPO", p, G),
        "inputs": [{"p": 0.02, "G": 3}, {"p": 0.5, "G": 8}, {"p": 0.9, "G": 5}],
        "mistakes": {
            "the mixed share is no cure: the two completions do not see the same others": (
                lambda p, G: over_mixed_groups(p, G) / (1 - identity.silent_rate(p, G))
            ),
            "j counts the others, of whom there are G − 1": (
                lambda p, G: identity.binomial(p, G)[:G] @ gap(np.arange(G), G)
            ),
            "j = 0 and j = G − 1 count too": lambda p, G: (
                identity.binomial(p, G - 1)[1 : G - 1] @ gap(np.arange(1, G - 1), G)
            ),
            "that is the limit for G → ∞": lambda p, G: identity.weight_limit(p),
        },
    },
}
