"""The pictures of lesson 7, and the right answers and usual mistakes of its exercises."""

from collections.abc import Callable
from functools import partial
from math import sqrt

import numpy as np
from matplotlib.figure import Figure

from lessons.workshop.kit import BLUE, GREEN, ORANGE, PURPLE, new_figure, ticks
from lessons.workshop.parts.drawing import key

SMALLEST = 2  # group size of the first entry of each curve
LOOKS = {  # of each rule's lines; the first lies below the others
    "the best": {"color": PURPLE, "linewidth": 5, "alpha": 0.5},
    "GRPO": {"color": BLUE},
    "Dr. GRPO": {"color": ORANGE, "linestyle": "--"},
    "MaxRL": {"color": GREEN, "linestyle": "-."},
}


def two_differences(p: np.ndarray, factors: dict, efficiency: dict) -> Figure:
    """Lesson 7: over p, the factor of the expected step (left) and the efficiency (right). Both
    dictionaries have a curve for each rule."""
    figure, (left, right) = new_figure(8.4, 3.2, columns=2)
    for axis, curves in ((left, factors), (right, efficiency)):
        for name, curve in curves.items():
            axis.plot(p, curve, **LOOKS[name])
        axis.set(xlim=(0, 1), xlabel="p, probability of a right completion")
    left.set(title="How long? Step, as a multiple of the gradient", yscale="log", ylim=(0.6, 9))
    ticks(left.yaxis, [1, 2, 4, 8])
    right.set(title="How noisy? Efficiency (higher: quieter)", ylim=(0, 1.06))
    key(left, {name: LOOKS[name]["color"] for name in factors}, 0.6)
    return figure


def length_and_efficiency(
    p: float, v_ratio: float, G: int, lengths: dict[str, np.ndarray], lines: dict[str, np.ndarray]
) -> Figure:
    """Lesson 7: the length of the expected step over G (left), and efficiency over G (right).

    lengths and lines: at G = 2, 3, ..., by the name of a rule.
    """
    figure, axes = new_figure(8.4, 3.7, columns=2)
    titles = f"Length of the step, p = {p:.2f}", f"Efficiency, p = {p:.2f}, v₋/v₊ = {v_ratio}"
    for axis, title, curves in zip(axes, titles, (lengths, lines)):
        for name, look in LOOKS.items():
            if name in curves:
                axis.plot(np.arange(len(curves[name])) + SMALLEST, curves[name], label=name, **look)
                axis.plot(G, curves[name][G - SMALLEST], "o", color=look["color"])
        axis.legend(loc="lower right", fontsize=9)
        axis.set(title=title, xscale="log", xlabel="G", xlim=(1.9, 135), ylim=(0, 1.06))
        ticks(axis.xaxis, [2, 8, 32, 128])
    axes[0].set_ylabel("1: in very large groups")
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


def best_pair(k, G, p, v_right, v_wrong):
    """The least noise at a step of 1, by Lagrange: three linear equations."""
    rows = [[v_right / k, 0, 1 - p], [0, v_wrong / (G - k), p], [1 - p, p, 0]]
    return np.linalg.solve(rows, [0, 0, 1])[:2]


def pair(k, G, p, v_right, v_wrong, step=True, powers=(1, 1)):
    """Wrong answers: without scaling to a step of 1, or with other powers of q and p."""
    q = 1 - p
    alpha, beta = q ** powers[0] * k / v_right, p ** powers[1] * (G - k) / v_wrong
    return np.array([alpha, beta]) / (q * alpha + p * beta if step else 1)


def logged_fidelity(rewards, p, sigma=lambda rewards: rewards.std(axis=1).mean()):
    return sigma(rewards) / sqrt(p * (1 - p))


def mean_of_mixed(rewards):
    sigmas = rewards.std(axis=1)
    return sigmas[sigmas > 0].mean()


rewards = (np.random.default_rng(1).random((4000, 8)) < 0.05).astype(float)

CHECKS = {
    "7.1": {
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
    "7.2": {
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
    "7.3": {
        "expected": best_pair,
        "inputs": [
            {"k": 2, "G": 8, "p": 0.2, "v_right": 1.0, "v_wrong": 10.0},
            {"k": 3, "G": 5, "p": 0.4, "v_right": 3.0, "v_wrong": 1.0},
        ],
        "mistakes": {
            "that is one weight for both kinds; let α and β differ": (
                lambda k, G, p, v_right, v_wrong: (1, 1)
            ),
            "the right ratio, but αq + βp is not 1": partial(pair, step=False),
            "that looks at the noise alone: α also counts q times in the step, β p times": partial(
                pair, powers=(0, 0)
            ),
            "the step counts α q times and β p times, not the other way round": (
                lambda k, G, p, v_right, v_wrong: best_pair(k, G, 1 - p, v_right, v_wrong)
            ),
        },
    },
}
