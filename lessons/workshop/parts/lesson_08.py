"""The pictures of lesson 8, and the right answers and usual mistakes of its exercises."""

from itertools import product
from math import comb

import numpy as np
from matplotlib.figure import Figure

from lessons.identity import silent_rate, silent_rate_plug_in, silent_rate_unbiased
from lessons.workshop.kit import BLUE, GREY, ORANGE, RIGHT, WRONG, new_figure, ticks
from lessons.workshop.parts.drawing import curve, key, two_panels
from lessons.workshop.parts.lesson_11 import judged, numbers, says

SHIFTS = np.linspace(-3, 3, 61)


def histogram_and_rates(share: np.ndarray, plug_in: dict, unbiased: dict) -> Figure:
    """Lesson 8: Big-Math's bars, (65,), and the silent share in % by group size, estimated in two
    ways."""
    figure, left, right = two_panels(
        3.6,
        {
            "title": "Big-Math: 215,608 problems",
            "xlabel": "right completions of 64",
            "ylabel": "% of problems",
        },
        {
            "title": "Silent groups",
            "xlabel": "G",
            "ylabel": "%",
            "xscale": "log",
            "ylim": (0, 65),
            "xlim": (3.5, 115),
        },
    )
    left.bar(range(65), 100 * share, 0.9, color=[WRONG, *[GREY] * 63, RIGHT])
    left.annotate(f"none right: {share[0]:.1%}", (0.5, 3.9), (12, 5.2), color=WRONG,
                  arrowprops={"arrowstyle": "-", "color": WRONG})  # fmt: skip
    left.text(61, 6.9, f"all right: {share[64]:.1%}", color=RIGHT, ha="right")
    for rates, color, style, label, place in (
        (plug_in, ORANGE, "--o", "plug-in: too high", {"xytext": (4, 12)}),
        (unbiased, BLUE, "-o", "unbiased", {"xytext": (-8, -9), "va": "top", "ha": "right"}),
    ):
        curve(right, list(rates), list(rates.values()), color, style, label, at=3, **place)
    ticks(right.xaxis, list(plug_in))
    return figure


def our_model(rates: np.ndarray, table: dict) -> Figure:
    """Lesson 8: the base model's solve rates, (problems,); and the silent share in % by group size:
    counted, predicted, and at the mean p."""
    figure, (left, right) = new_figure(8.5, 3.0, columns=2)
    left.hist(rates, np.linspace(0, 1, 17), color=GREY)
    left.axvline(rates.mean(), color="black", linewidth=1, linestyle=":")
    left.set(title="128 problems", xlabel="share solved (dotted: mean)")
    looks = (
        ("o-", BLUE, "● counted", (0, 15)),
        ("x--", ORANGE, "× predicted", (0, 30)),
        (":", GREY, "all p = mean", (-80, -5)),
    )
    for values, (style, color, name, place) in zip(zip(*table.values()), looks):
        curve(right, range(3), values, style=style, color=color, label=name, at=1, xytext=place)
    right.set(title="% of groups silent", xlabel="G", ylim=(0, 100))
    right.set_xticks(range(3), table)
    return figure


def in_training(shares: list) -> Figure:
    """Lesson 8: the shares in % of groups all wrong and all right, by step."""
    figure, axis = new_figure(5.5, 2.6)
    axis.stackplot(range(1, len(shares[0]) + 1), *shares, colors=[WRONG, RIGHT])
    axis.set(title="% of groups silent, while training", xlabel="step", ylim=(0, 100))
    key(axis, {"■ all right": RIGHT, "■ all wrong": WRONG}, y=0.88, step=0.13)
    return figure


def moved_mix(log_odds: np.ndarray, mix: np.ndarray, shift: float, G: int) -> Figure:
    """Lesson 8: the mix with a constant added to all log-odds, its silent part in colour; and the
    silent share over that constant. mix: the share of problems at each of the log-odds."""
    p = 1 / (1 + np.exp(-(log_odds + shift)))
    wrong, right = (1 - p) ** G, p**G
    figure, bars, curves = two_panels(
        3.5,
        {
            "title": f"Big-Math, moved by {shift:+.2f}",
            "xlabel": "p",
            "ylabel": "% of problems",
            "ylim": (0, 60),
        },
        {
            "title": f"Silent at G = {G}: {mix @ (right + wrong):.0%} of the groups",
            "xlabel": "added to the log-odds",
            "ylabel": "%",
            "ylim": (0, 100),
            "xlim": (-3, 3),
        },
    )
    bins = np.linspace(0, 1, 21)
    for part, color in ((1, "#cccccc"), (right + wrong, RIGHT), (wrong, WRONG)):
        heights = np.histogram(p, bins, weights=100 * mix * part)[0]
        bars.bar(bins[:-1], heights, 0.045, align="edge", color=color)
    key(bars, {"■ all right": RIGHT, "■ all wrong": WRONG, "■ mixed": "#999999"}, x=0.36)
    shifted = 1 / (1 + np.exp(-(log_odds + SHIFTS[:, None])))  # (61, problems)
    shares = 100 * ((1 - shifted) ** G @ mix), 100 * (shifted**G @ mix)
    curves.stackplot(SHIFTS, *shares, colors=[WRONG, RIGHT])
    curves.axvline(shift, color="black", linewidth=1)
    curves.text(-2.85, 5, "all wrong", color="white", fontweight="bold")
    height = shares[0][-1] + shares[1][-1] / 3
    curves.text(2.85, height, "all right", color="white", fontweight="bold", ha="right")
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


TWO_SETS = "wanted are two lists of four numbers: p of the first set, then of the second"
BETWEEN = "every p is to lie between .05 and .95"


@judged
def tenfold(sets) -> list[bool] | str:
    """Have two sets of four prompts the same mean p, and the first ten times the silent groups of
    8?"""
    p = numbers(sets)
    if p.size != 8:
        return TWO_SETS
    if p.min() < 0.05 or p.max() > 0.95:
        return BETWEEN
    first, second = p.reshape(2, 4)
    silent, other = (silent_rate(one, 8).mean() for one in (first, second))
    return [abs(first.mean() - second.mean()) < 1e-9, silent >= 10 * other]


def silent_with_credit(p, h, G):
    """The chance of all groups whose rewards are equal, counted one by one."""
    chance = (p, (1 - p) * h, (1 - p) * (1 - h))  # of a reward of 1, 1/2 and 0
    groups = product(range(3), repeat=G)
    return sum(np.prod([chance[i] for i in group]) for group in groups if len({*group}) == 1)


# The solutions of exercises 8.1 and 8.3 say so
assert f"{silent_rate(0.05, 8):.0%}, {silent_rate(0.5, 8):.1%}" == "66%, 0.8%"
assert f"{silent_rate(0.01, 8):.2f}, {silent_with_credit(0.01, 0.5, 8):.3f}" == "0.92, 0.007"

CHECKS = {
    "8.1": {
        "expected": lambda: [True, True],
        "inputs": [{}],
        "mistakes": {
            "the means are equal, but the first set is not silent ten times as often": (
                lambda: [True, False]
            ),
            "ten times as often, but the means differ, and that may be why": (
                lambda: [False, True]
            ),
            "neither are the means equal nor is the first set silent ten times as often": (
                lambda: [False, False]
            ),
            **says(TWO_SETS, BETWEEN),
        },
    },
    "8.2": {
        "expected": silent_rate_unbiased,
        "inputs": [{"c": 3, "n": 12, "G": 4}, {"c": 9, "n": 10, "G": 2}, {"c": 5, "n": 10, "G": 8}],
        "mistakes": {
            "that is the plug-in: c / n put for p, too high on average": silent_rate_plug_in,
            "that is the all-right half; the all-wrong groups are silent too": (
                lambda c, n, G: comb(c, G) / comb(n, G)
            ),
        },
    },
    "8.3": {
        "expected": silent_with_credit,
        "inputs": [{"p": 0.2, "h": 0.5, "G": 4}, {"p": 0.05, "h": 0.9, "G": 3}],
        "mistakes": {
            "that is the rate without partial credit": lambda p, h, G: silent_rate(p, G),
            "a group of half points alone is silent, too": (
                lambda p, h, G: p**G + ((1 - p) * (1 - h)) ** G
            ),
            "a group without a right completion or a right format is silent, too": (
                lambda p, h, G: p**G + ((1 - p) * h) ** G
            ),
            "h is the share of the wrong completions, not of all": (
                lambda p, h, G: p**G + h**G + (1 - p - h) ** G
            ),
        },
    },
    "8.4": {
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
