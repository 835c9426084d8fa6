"""What the exercises of lesson 17 are checked against. `kit.check` explains the keys."""

from lessons import identity


def passing(p: float, f: float, m: float) -> float:
    """The probability that a completion passes, kind by kind."""
    return p * (1 - m) + (1 - p) * f


def silent(passes: float, G: int) -> float:
    """The probability that none or all of G completions pass."""
    chances = identity.binomial(passes, G)
    return chances[0] + chances[-1]


def needed(p: float, f: float, m: float) -> float:
    """Of REINFORCE with errors, noise / signal^2, in that of REINFORCE without."""
    return passing(p, f, m) / ((1 - m) - f) ** 2 / p


RATES = [
    {"p": 0.3, "f": 0.4, "m": 0.0},
    {"p": 0.3, "f": 0.0, "m": 0.4},
    {"p": 0.1, "f": 0.2, "m": 0.3},
]

CHECKS = {
    "17.1": {
        "expected": lambda p, f, m, G: silent(passing(p, f, m), G),
        "inputs": [rates | {"G": 8} for rates in RATES],
    },
    "17.2": {
        "expected": needed,
        "inputs": RATES,
    },
    "17.3": {
        "expected": lambda f, m: (1.0, 1 / (1 - f - m)),
        "inputs": [{"f": 0.2, "m": 0.1}, {"f": 0.5, "m": 0.3}],
    },
}
