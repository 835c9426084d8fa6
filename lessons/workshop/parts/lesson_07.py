"""The pictures of lesson 7, and the right answers and usual mistakes of its exercises."""

from math import sqrt

import numpy as np
from matplotlib.figure import Figure

from lessons import identity
from lessons.workshop.kit import BLUE, GREEN, GREY, ORANGE, PURPLE, new_figure

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
    left.plot(sizes, identity.fidelity_expansion(p, sizes), ":", color=PURPLE)
    left.plot(sizes, fidelity, color=BLUE)
    left.plot(G, fidelity[G - SMALLEST], "o", color=BLUE, markersize=9)
    exact = sizes[np.argmax(fidelity >= target)]
    rule = round(float(identity.group_size_law(p, 1 - target)))
    for size, name, color, y in ((exact, "exact", BLUE, 0.16), (rule, "rule", PURPLE, 0.05)):
        reached = fidelity[size - SMALLEST]
        left.plot([size, size], [0, reached], color=color, linewidth=1)
        left.plot(size, reached, "s", color=color, markersize=5)
        side = -1 if name == "rule" or size > 90 else 1
        left.annotate(f"{name}: {size}", (size, y), (5 * side, 0), textcoords="offset points",
                      color=color, ha="left" if side > 0 else "right")  # fmt: skip
    left.set(title=f"Fidelity at p = {p:.2f}", ylabel="length, 1 for large groups", ylim=(0, 1.06))
    left.set_yticks([0, 0.25, 0.5, 0.75, target], ["0", ".25", ".5", ".75", f".{100 * target:.0f}"])
    styles = zip(lines.items(), (BLUE, ORANGE, GREEN, GREY, PURPLE), ("-", "--", "-.", ":", "-"))
    for (name, values), color, style in styles:
        width = 3 if name == "the best" else 2
        right.plot(sizes, values, style, color=color, label=name, linewidth=width, alpha=0.8)
        right.plot(G, values[G - SMALLEST], "o", color=color, markersize=6)
    right.legend(loc="lower right")
    right.set(
        title=f"Efficiency, v₋/v₊ = {v_ratio}",
        ylabel="signal-to-noise², 1 for large groups",
        ylim=(0, 1.06),
    )
    for i, (name, color) in enumerate((("GRPO, exact", BLUE), ("its expansion", PURPLE))):
        left.text(0.98, 0.4 - 0.08 * i, name, color=color, transform=left.transAxes, ha="right",
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip
    for axis in (left, right):
        axis.set(xscale="log", xlabel="G", xlim=(1.9, 135))
        axis.set_xticks([2, 8, 32, 128], ["2", "8", "32", "128"])
        axis.set_xticks([], minor=True)
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def weights(G: int, v_right: float, v_wrong: float) -> np.ndarray:
    """The inverse variance of the difference of two means, of k scores and of G - k; the largest
    1."""
    k = np.arange(1, G)
    values = 1 / (v_right / k + v_wrong / (G - k))
    return values / values.max()


logs = [
    {"rewards": (np.random.default_rng(seed).random((4000, G)) < p).astype(float), "p": p}
    for seed, p, G in ((1, 0.05, 8), (2, 0.3, 4))
]

CHECKS = {
    "7.1": {
        "expected": weights,
        "inputs": [
            {"G": 8, "v_right": 1.0, "v_wrong": 10.0},
            {"G": 5, "v_right": 3.0, "v_wrong": 1.0},
        ],
        "mistakes": {
            "that is best only where right and wrong scores vary equally": (
                lambda G, v_right, v_wrong: weights(G, 1.0, 1.0)
            ),
            "that weighs by the inverse of the standard deviation": (
                lambda G, v_right, v_wrong: weights(G, v_right, v_wrong) ** 0.5
            ),
            "a mean of k scores has the variance v / k": (
                lambda G, v_right, v_wrong: weights(G, v_wrong, v_right)
            ),
        },
    },
    "7.2": {
        "bug": lambda rewards, p: (
            rewards.std(axis=1)[rewards.std(axis=1) > 0].mean() / sqrt(p * (1 - p))
        ),
        "expected": lambda rewards, p: rewards.std(axis=1).mean() / sqrt(p * (1 - p)),
        "inputs": logs,
        "mistakes": {
            "the root of the mean variance; E[sigma] is smaller": lambda rewards, p: sqrt(
                rewards.var(axis=1).mean() / (p * (1 - p))
            ),
            "ddof: you divided by G - 1 inside sigma": lambda rewards, p: (
                rewards.std(axis=1, ddof=1).mean() / sqrt(p * (1 - p))
            ),
            "that pools all groups: their means differ, so it is always near 1": (
                lambda rewards, p: rewards.std() / sqrt(p * (1 - p))
            ),
        },
    },
}
