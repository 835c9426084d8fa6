"""The pictures of lesson 7, and the right answers and usual mistakes of its exercises."""

from functools import partial
from math import sqrt

import numpy as np
from matplotlib.figure import Figure

from lessons import identity
from lessons.workshop.kit import BLUE, GREEN, GREY, ORANGE, PURPLE, label_line, new_figure, ticks
from lessons.workshop.parts.drawing import curve, note

SMALLEST = 2  # group size of the first entry of each curve


def length_and_efficiency(
    p: float,
    target: float,
    G: int,
    v_ratio: float,
    fidelity: np.ndarray,
    lines: dict[str, np.ndarray],
) -> Figure:
    """Lesson 7: fidelity over G with the exact group size and the rule's (left), and efficiency
    over G (right).

    fidelity, and lines, efficiencies by the name of a weight: at G = 2, 3, ..., long enough to
    reach the target.
    """
    figure, (left, right) = new_figure(8.4, 3.7, columns=2)
    sizes = np.arange(len(fidelity)) + SMALLEST
    left.axhline(target, color=GREY, linewidth=1)
    curve(left, sizes, identity.fidelity_expansion(p, sizes), PURPLE, ":")
    curve(left, sizes, fidelity, BLUE)
    left.plot(G, fidelity[G - SMALLEST], "o", color=BLUE, markersize=9)
    exact = sizes[np.argmax(fidelity >= target)]
    rule = round(float(identity.group_size_law(p, 1 - target)))
    for size, name, color, y in ((exact, "exact", BLUE, 0.16), (rule, "rule", PURPLE, 0.05)):
        reached = fidelity[size - SMALLEST]
        left.plot([size, size], [0, reached], color=color, linewidth=1)
        left.plot(size, reached, "s", color=color, markersize=5)
        x, side = (-5, "right") if name == "rule" or size > 90 else (5, "left")
        place = {"xytext": (x, 0), "ha": side, "va": "baseline"}
        label_line(left, size, y, f"{name}: {size}", color, **place)
    left.set(title=f"Fidelity at p = {p:.2f}", ylabel="length, 1 for large groups")
    left.set_yticks([0, 0.25, 0.5, 0.75, target], ["0", ".25", ".5", ".75", f".{100 * target:.0f}"])
    white = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    note(left, 0.98, 0.4, "GRPO, exact", BLUE, ha="right", bbox=white)
    note(left, 0.98, 0.32, "its expansion", PURPLE, ha="right", bbox=white)
    styles = zip(lines.items(), (BLUE, ORANGE, GREEN, GREY, PURPLE), ("-", "--", "-.", ":", "-"))
    for (name, values), color, style in styles:
        width = 3 if name == "the best" else 2
        right.plot(sizes, values, style, color=color, label=name, linewidth=width, alpha=0.8)
        right.plot(G, values[G - SMALLEST], "o", color=color)
    right.legend(loc="lower right")
    right.set(title=f"Efficiency, v₋/v₊ = {v_ratio}", ylabel="signal-to-noise², 1 for large groups")
    for axis in (left, right):
        axis.set(xscale="log", xlabel="G", xlim=(1.9, 135), ylim=(0, 1.06))
        ticks(axis.xaxis, [2, 8, 32, 128])
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def best_weights(G, v_right, v_wrong):
    """The inverse variance of the difference of two means, of k scores and of G - k; the largest
    1."""
    k = np.arange(1, G)
    weights = 1 / (v_right / k + v_wrong / (G - k))
    return weights / weights.max()


def logged_fidelity(rewards, p, sigma=lambda rewards: rewards.std(axis=1).mean()):
    return sigma(rewards) / sqrt(p * (1 - p))


def mean_of_mixed(rewards):
    sigmas = rewards.std(axis=1)
    return sigmas[sigmas > 0].mean()


rewards = (np.random.default_rng(1).random((4000, 8)) < 0.05).astype(float)

CHECKS = {
    "7.1": {
        "expected": best_weights,
        "inputs": [
            {"G": 8, "v_right": 1.0, "v_wrong": 10.0},
            {"G": 5, "v_right": 3.0, "v_wrong": 1.0},
        ],
        "mistakes": {
            "that is best only where right and wrong scores vary equally": (
                lambda G, v_right, v_wrong: best_weights(G, 1, 1)
            ),
            "that weighs by the inverse of the standard deviation": (
                lambda G, v_right, v_wrong: best_weights(G, v_right, v_wrong) ** 0.5
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
}
