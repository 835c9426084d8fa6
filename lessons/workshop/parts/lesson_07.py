"""The pictures of lesson 7, and the right answers and usual mistakes of its exercises."""

from collections.abc import Callable
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from lessons.workshop.kit import BLUE, GREEN, ORANGE, new_figure, ticks

LOOKS = {
    "GRPO": {"color": BLUE},
    "Dr. GRPO": {"color": ORANGE, "linestyle": "--"},
    "MaxRL": {"color": GREEN, "linestyle": "-."},
}


def over_p(panels: dict, highest: float, label: str = "") -> Figure:
    """Lesson 7: a panel for each title, with a curve over p for each rule."""
    figure, axes = new_figure(8.4, 3.2, len(panels), sharey=True, squeeze=False)
    for axis, (title, curves) in zip(axes.flat, panels.items()):
        for name, curve in curves.items():
            axis.plot(np.linspace(0.01, 0.99, 99), curve, label=name, **LOOKS[name])
        axis.set(title=title, xlabel="p", xlim=(0, 1), yscale="log")
        ticks(axis.yaxis, [1, 1.5, 2, 3, 5, 8])
        axis.set_ylim(0.8, highest)
    axes[0, 0].set_ylabel(label)
    axis.legend(loc="upper right")
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def up_to_a_factor(weight: Callable) -> Callable:
    """The function that gives a weight of the groups with k = 1..G-1 as shares of their sum. `...`
    and None are no weights, and give `...`."""

    def answer(G: int, v_right: float, v_wrong: float):
        weights = [weight(k, G, v_right, v_wrong) for k in range(1, G)]
        return ... if weights[0] is None or weights[0] is ... else weights / np.sum(weights)

    return answer


def inverse_variance(k, G, v_right, v_wrong, power=1):
    """The best weight of a group's contrast, or another power of it."""
    return (v_right / k + v_wrong / (G - k)) ** -power


CHECKS = {
    "7.1": {
        "expected": lambda p, G: (1 - p) ** (G - 1),
        "inputs": [{"p": 0.1, "G": 4}, {"p": 0.5, "G": 8}],
        "mistakes": {
            "that is how often a group has a right completion; how does it change with p?": (
                lambda p, G: 1 - (1 - p) ** G
            ),
            "the advantage is one for all, but whether it is 1 depends on their marks": (
                lambda p, G: 0
            ),
            "1 is the factor of A = R; here wrong completions have an advantage, too": (
                lambda p, G: 1
            ),
        },
    },
    "7.2": {
        "expected": up_to_a_factor(inverse_variance),
        "inputs": [
            {"G": 8, "v_right": 1.0, "v_wrong": 10.0},
            {"G": 5, "v_right": 3.0, "v_wrong": 1.0},
        ],
        "mistakes": {
            "that is σ², the best only where right and wrong scores are equally noisy": (
                up_to_a_factor(lambda k, G, v_right, v_wrong: k * (G - k))
            ),
            "that weight is larger where the noise is larger": up_to_a_factor(
                partial(inverse_variance, power=-1)
            ),
            "one over the standard deviation: c is squared in the noise, but not in the step": (
                up_to_a_factor(partial(inverse_variance, power=0.5))
            ),
            "k of the completions are right: the mean of k scores belongs to v₊": up_to_a_factor(
                lambda k, G, v_right, v_wrong: inverse_variance(k, G, v_wrong, v_right)
            ),
        },
    },
}
