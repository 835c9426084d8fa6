"""The pictures of lesson 7, and the right answers and usual mistakes of its exercises."""

from collections.abc import Callable
from functools import partial
from math import sqrt

import numpy as np
from matplotlib.figure import Figure

from lessons.workshop.kit import BLUE, GREEN, ORANGE, PURPLE, new_figure, ticks
from lessons.workshop.parts.drawing import key

LOOKS = {
    "GRPO": {"color": BLUE},
    "Dr. GRPO": {"color": ORANGE, "linestyle": "--"},
    "MaxRL": {"color": GREEN, "linestyle": "-."},
    "REINFORCE": {"color": PURPLE, "linestyle": ":"},
}


def draw_rules(axis, p: np.ndarray, curves: dict, x: float, **settings) -> None:
    """A curve for each rule over p, with their names from x on."""
    for name, curve in curves.items():
        axis.plot(p, curve, **LOOKS[name])
    axis.set(xlim=(0, 1), xlabel="p, probability of a right completion", **settings)
    key(axis, {name: LOOKS[name]["color"] for name in curves}, x)


def two_differences(p: np.ndarray, factors: dict, completions: dict) -> Figure:
    """Lesson 7: over p, the factor of the expected step (left) and the completions needed (right).
    Both dictionaries have a curve for each rule."""
    figure, (left, right) = new_figure(8.4, 3.2, columns=2)
    title = "How long? Step, as a multiple of the gradient"
    draw_rules(left, p, factors, 0.6, title=title, yscale="log", ylim=(0.6, 9))
    ticks(left.yaxis, [1, 2, 4, 8])
    title = "How noisy? Completions needed (Dr. GRPO: 1)"
    draw_rules(right, p, completions, 0.6, title=title, ylim=(0, 2))
    return figure


def needed(p: np.ndarray, completions: dict) -> Figure:
    """Lesson 7: over p, the completions that each rule needs, over those of the best weight of the
    contrast."""
    figure, axis = new_figure(7.0, 3.4)
    title = "Completions needed (best weight of the contrast: 1)"
    draw_rules(axis, p, completions, 0.03, title=title, yscale="log", ylim=(0.15, 15))
    ticks(axis.yaxis, [".2", ".5", 1, 2, 5, 10])
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


def logged_fidelity(rewards, p, sigma=lambda rewards: rewards.std(axis=1).mean()):
    return sigma(rewards) / sqrt(p * (1 - p))


def mean_of_mixed(rewards):
    sigmas = rewards.std(axis=1)
    return sigmas[sigmas > 0].mean()


rewards = (np.random.default_rng(1).random((4000, 8)) < 0.05).astype(float)

CHECKS = {
    "7.1": {
        "expected": lambda p, G: (1 - p) ** (G - 1),
        "inputs": [{"p": 0.1, "G": 4}, {"p": 0.5, "G": 8}],
        "mistakes": {
            "that is how often a group has a right completion; how does it change with p?": (
                lambda p, G: 1 - (1 - p) ** G
            ),
            "g is a mean over the G completions": lambda p, G: G * (1 - p) ** (G - 1),
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
            "that is σ, which does not look at the noise": up_to_a_factor(
                lambda k, G, v_right, v_wrong: sqrt(k * (G - k))
            ),
            "that is σ², the best only where right and wrong scores are equally noisy": (
                up_to_a_factor(lambda k, G, v_right, v_wrong: k * (G - k))
            ),
            "that is MaxRL, the limit of far noisier wrong scores": up_to_a_factor(
                lambda k, G, v_right, v_wrong: G - k
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
            "a mean of k scores has the variance v₊/k, not k v₊": up_to_a_factor(
                lambda k, G, v_right, v_wrong: 1 / (v_right * k + v_wrong * (G - k))
            ),
        },
    },
    "7.3": {
        "bug": partial(logged_fidelity, sigma=mean_of_mixed),
        "expected": logged_fidelity,
        "inputs": [{"rewards": rewards, "p": 0.05}],
        "mistakes": {
            "the root of the mean variance; E[sigma] is smaller": partial(
                logged_fidelity, sigma=lambda rewards: sqrt(rewards.var(axis=1).mean())
            ),
            "ddof: you divided by G - 1 inside sigma": partial(
                logged_fidelity, sigma=lambda rewards: rewards.std(axis=1, ddof=1).mean()
            ),
            "that pools all groups: their means differ, so it is always near 1": partial(
                logged_fidelity, sigma=np.std
            ),
        },
    },
}
