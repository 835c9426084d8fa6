"""The pictures of lesson 8, and the right answers and usual mistakes of its exercises."""

import textwrap
from math import comb

import numpy as np
from matplotlib.figure import Figure

from lessons.identity import silent_rate, silent_rate_plug_in, silent_rate_unbiased
from lessons.workshop import kit
from lessons.workshop.kit import BLUE, GREY, ORANGE, RIGHT, WRONG, label_line, new_figure, ticks

SHIFTS = np.linspace(-3, 3, 61)


def histogram_and_rates(share: np.ndarray, plug_in: dict, unbiased: dict) -> Figure:
    """Lesson 8: Big-Math's bars, (65,), and the silent share in % by group size, estimated in two
    ways."""
    figure, (left, right) = new_figure(8.5, 3.6, columns=2)
    k, percent = np.arange(65), 100 * share
    left.bar(k[1:-1], percent[1:-1], 0.9, color=GREY)
    left.bar(k[[0, 64]], percent[[0, 64]], 0.9, color=[WRONG, RIGHT])
    left.annotate(f"none right: {share[0]:.1%}", (0.5, 3.9), (12, 5.2), color=WRONG,
                  arrowprops={"arrowstyle": "-", "color": WRONG})  # fmt: skip
    left.text(61, 6.9, f"all right: {share[64]:.1%}", color=RIGHT, ha="right")
    left.set(
        title="Big-Math: 215,608 problems", xlabel="right completions of 64", ylabel="% of problems"
    )
    sizes = np.array(list(plug_in))
    for values, color, style in ((plug_in, ORANGE, "--"), (unbiased, BLUE, "-")):
        right.plot(sizes, [values[G] for G in sizes], style, color=color, marker="o")
    label_line(right, 32, plug_in[32], "plug-in: too high", ORANGE, xytext=(4, 12))
    label_line(right, 32, unbiased[32], "unbiased", BLUE, xytext=(-8, -9), va="top", ha="right")
    right.set(
        title="Silent groups", xlabel="G", ylabel="%", xscale="log", ylim=(0, 65), xlim=(3.5, 115)
    )
    ticks(right.xaxis, sizes)
    return figure


def beyond_the_data(
    sizes: np.ndarray, curves: dict[float, np.ndarray], counted: dict[int, float]
) -> Figure:
    """Lesson 8: the share of all-right groups beyond G = 64, with none and with some of the
    problems stuck at p = 1, and what the 64 completions show."""
    figure, axis = new_figure(8, 3.4)
    for (stuck, curve), color, style in zip(curves.items(), (BLUE, ORANGE), ("-", "--")):
        axis.plot(sizes, 100 * np.array(curve), style, color=color)
        name = f"{stuck:.0%} always right" if stuck else "none always right"
        label_line(axis, sizes[-1], 100 * curve[-1], name, color)
    axis.plot(list(counted), [100 * share for share in counted.values()], "ko", markersize=6)
    axis.axvline(64, color="black", linewidth=0.8, linestyle=":")
    text = "what 64 completions a problem can show ends here"
    y, width = (20, 24) if kit.narrow else (24, 99)
    axis.text(70, y, textwrap.fill(text, width), fontsize=9)
    axis.set(title="Groups that are all right", xlabel="G", ylabel="%", xscale="log")
    axis.set(xlim=(3.5, 2e5 if kit.narrow else 7e4), ylim=(-1.5, 31))
    at = [4, 64, 1000, 10000] if kit.narrow else [4, 16, 64, 256, 1000, 10000]
    ticks(axis.xaxis, at, [f"{G:,}" for G in at])
    return figure


def moved_mix(log_odds: np.ndarray, mix: np.ndarray, shift: float, G: int) -> Figure:
    """Lesson 8: the mix with a constant added to all log-odds, its silent part in colour; and the
    silent share over that constant. mix: the share of problems at each of the log-odds."""
    shifted = 1 / (1 + np.exp(-(log_odds + SHIFTS[:, None])))  # (61, problems)
    wrong, right = (1 - shifted) ** G @ mix, shifted**G @ mix
    p = 1 / (1 + np.exp(-(log_odds + shift)))
    figure, (bars, curve) = new_figure(8.5, 3.5, columns=2)
    bins = np.linspace(0, 1, 21)
    for part, color in ((1, "#cccccc"), (p**G + (1 - p) ** G, RIGHT), ((1 - p) ** G, WRONG)):
        heights = np.histogram(p, bins, weights=100 * mix * part)[0]
        bars.bar(bins[:-1], heights, 0.045, align="edge", color=color)
    bars.set(
        title=f"The mix moved by {shift:+.2f} (from a fit)", xlabel="p", ylabel="% of problems"
    )
    bars.set(ylim=(0, 60))
    curve.stackplot(SHIFTS, 100 * wrong, 100 * right, colors=[WRONG, RIGHT])
    curve.axvline(shift, color="black", linewidth=1)
    curve.text(-2.85, 5, "all wrong", color="white", fontweight="bold")
    curve.text(2.85, 5, "all right", color="white", fontweight="bold", ha="right")
    silent = mix @ (p**G + (1 - p) ** G)
    curve.set(
        title=f"Silent at G = {G}: {silent:.0%} of the groups",
        xlabel="added to the log-odds",
        ylabel="%",
    )
    curve.set(ylim=(0, 100), xlim=(-3, 3))
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def completions(p: np.ndarray, weights: np.ndarray, G: int) -> float:
    """G over the probability that a group from the mix is not silent."""
    return G / (1 - weights @ silent_rate(p, G))


CHECKS = {
    "8.1": {
        "expected": silent_rate_unbiased,
        "inputs": [{"c": 3, "n": 12, "G": 4}, {"c": 9, "n": 10, "G": 2}, {"c": 5, "n": 10, "G": 8}],
        "mistakes": {
            "that is the plug-in: c / n put for p, too high on average": silent_rate_plug_in,
            "that is the all-right half; the all-wrong groups are silent too": (
                lambda c, n, G: comb(c, G) / comb(n, G)
            ),
        },
    },
    "8.2": {
        "expected": completions,
        "inputs": [
            {"p": np.array([0.5, 0.02]), "weights": np.array([0.5, 0.5]), "G": 8},
            {"p": np.array([0.1, 0.3, 0.99]), "weights": np.array([0.2, 0.3, 0.5]), "G": 4},
        ],
        "mistakes": {
            "that redraws the same problem; average rates first": (
                lambda p, weights, G: weights @ (G / (1 - silent_rate(p, G)))
            ),
            "you put the mean p into the formula; average the rates": (
                lambda p, weights, G: G / (1 - silent_rate(weights @ p, G))
            ),
            "that counts the silent groups; the useful group is sampled too": (
                lambda p, weights, G: completions(p, weights, G) - G
            ),
        },
    },
    "8.3": {
        "expected": lambda n, G: (n + 1) / (n + G + 1),  # the mean of q^G, weighted by q^n
        "inputs": [{"n": 64, "G": 8}, {"n": 64, "G": 64}, {"n": 16, "G": 1}],
        "mistakes": {
            "that puts 0 of n for p; nothing is certain after n misses": lambda n, G: 1.0,
            "that is E[q] to the power G: take the power first, average last": (
                lambda n, G: ((n + 1) / (n + 2)) ** G
            ),
        },
    },
}
