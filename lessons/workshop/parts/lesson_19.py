"""The picture of lesson 19, and the right answers and usual mistakes of its exercises."""

import numpy as np
from matplotlib.figure import Figure

from lessons.workshop.kit import BLUE, ORANGE, new_figure


def who_brings(medians: np.ndarray) -> Figure:
    """Which groups of eight bring ∇p if A = R, over p, for a policy of one parameter: ∇p = pq.
    medians: (n,) the p of models, marked on the border of the two areas."""
    figure, axis = new_figure(7.5, 3.4)
    p = np.linspace(0, 1, 101)
    axis.stackplot(p, p**8 * (1 - p), (p - p**8) * (1 - p), colors=(ORANGE, BLUE), alpha=0.4,
                   labels=("all-right groups", "mixed groups"))  # fmt: skip
    axis.plot(medians, medians**8 * (1 - medians), "ko", label="our models after 60 steps")
    axis.set(xlabel="p", ylabel="∇p", xlim=(0, 1), ylim=(0, 0.35))
    axis.legend(loc="upper left")
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def times_as_noisy(p, G, right, wrong):
    """The mean of |A s|^2 with RLOO over that with A = R. right, wrong: the mean of |s|^2."""
    q, n = 1 - p, G - 1
    return q * (q + p / n + (p + q / n) * wrong / right)


CHECKS = {
    "19.1": {
        "expected": lambda p, G: p ** (G - 1),
        "inputs": [{"p": 0.9, "G": 8}, {"p": 0.5, "G": 4}],
        "mistakes": {
            "that is how often a group is all right; its update is longer than ∇p": (
                lambda p, G: p**G
            ),
        },
    },
    "19.2": {
        "expected": times_as_noisy,
        "inputs": [
            {"p": 0.9, "G": 8, "right": 1.0, "wrong": 4.0},
            {"p": 0.5, "G": 3, "right": 2.0, "wrong": 1.0},
        ],
        "mistakes": {
            "b is p only on average: it varies": (
                lambda p, G, right, wrong: times_as_noisy(p, np.inf, right, wrong)
            ),
        },
    },
}
