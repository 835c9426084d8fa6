"""Right answers and usual mistakes of lesson 17's exercises; `kit.check` explains the keys."""

from lessons.identity import silent_rate


def passing(p: float, f: float, m: float) -> float:
    """The probability that a completion passes, kind by kind."""
    return p * (1 - m) + (1 - p) * f


def needed(p: float, f: float, m: float) -> float:
    """REINFORCE's noise / signal^2 with errors, relative to that without."""
    return passing(p, f, m) / ((1 - m) - f) ** 2 / p


RATES = [
    {"p": 0.3, "f": 0.4, "m": 0.0},
    {"p": 0.3, "f": 0.0, "m": 0.4},
    {"p": 0.1, "f": 0.2, "m": 0.3},
]

CHECKS = {
    "17.1": {
        "expected": lambda p, f, m, G: silent_rate(passing(p, f, m), G),
        "inputs": [rates | {"G": 8} for rates in RATES],
        "mistakes": {
            "a group is silent if its verdicts agree: count who passes, not who is right": (
                lambda p, f, m, G: silent_rate(p, G)
            ),
            "right completions are not accepted by mistake: f concerns the share 1 - p": (
                lambda p, f, m, G: silent_rate(f + (1 - m) * p, G)
            ),
            "a group in which all fail is silent, too": lambda p, f, m, G: passing(p, f, m) ** G,
        },
    },
    "17.2": {
        "expected": needed,
        "inputs": RATES,
        "mistakes": {
            "that is the signal's part; the errors are also in the noise": (
                lambda p, f, m: 1 / (1 - f - m) ** 2
            ),
            "the signal counts squared": lambda p, f, m: passing(p, f, m) / p / (1 - f - m),
            "that is the share that is left; asked for is how many times as many": (
                lambda p, f, m: 1 / needed(p, f, m)
            ),
        },
    },
    "17.3": {
        "expected": lambda f, m: (1.0, 1 / (1 - f - m)),
        "inputs": [{"f": 0.2, "m": 0.1}, {"f": 0.5, "m": 0.3}],
        "mistakes": {
            "division by sigma takes any factor of the rewards out again": (
                lambda f, m: (1 / (1 - f - m), 1 / (1 - f - m))
            ),
            "the correction divides by J": lambda f, m: (1.0, 1 - f - m),
            "without division by sigma a factor of the rewards stays in the advantages": (
                lambda f, m: (1.0, 1.0)
            ),
        },
    },
}
