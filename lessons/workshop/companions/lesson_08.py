"""The pictures of lesson 8, and the right answers and usual mistakes of its exercises."""

from itertools import product
from math import comb

import numpy as np
from matplotlib.figure import Figure

from lessons.identity import silent_rate, silent_rate_plug_in, silent_rate_unbiased
from lessons.workshop.companions.drawing import key
from lessons.workshop.companions.lesson_11 import judged, numbers, says
from lessons.workshop.notebook import BLUE, GREY, ORANGE, RIGHT, WRONG, new_figure


def our_model(rates: np.ndarray, table: dict) -> Figure:
    """Lesson 8: S(p) for groups of 8, at the base model's solve rates, (problems,), and on average;
    and the silent share in % by group size: counted, predicted, and at the mean p."""
    figure, (left, right) = new_figure(8.5, 3.2, columns=2)
    p = np.linspace(0, 1, 101)
    left.plot(p, 100 * silent_rate(p, 8), color=GREY)
    left.plot(rates, 100 * silent_rate(rates, 8), "o", color=GREY, alpha=0.3)
    mean = rates.mean()
    left.plot([mean] * 2, [100 * silent_rate(mean, 8), table[8][0]], "o:k")
    left.plot([0.1, 0.9], [43, 43], "--k")
    left.set(title="% of groups of 8 silent", xlabel="p, share solved", ylim=(0, 100))
    for name, values, style, color in zip(
        ("counted", "predicted", "if every p were the mean"),
        zip(*table.values()),
        ("o-", "x--", ":"),
        (BLUE, ORANGE, GREY),
    ):
        right.plot(values, style, color=color, label=name)
    right.set(title="% of groups silent", xlabel="G", ylim=(0, 100))
    right.set_xticks(range(3), table)
    right.legend(fontsize=9)
    return figure


def histogram(share: np.ndarray) -> Figure:
    """Lesson 8: Big-Math's bars, (65,)."""
    figure, axis = new_figure(7, 2.8)
    axis.bar(range(65), 100 * share, 0.9, color=[WRONG, *[GREY] * 63, RIGHT])
    axis.set(title="% of Big-Math's problems", xlabel="right completions of 64")
    key(axis, {"■ none right": WRONG, "■ all right": RIGHT}, x=0.4)
    return figure


def in_training(shares: list) -> Figure:
    """Lesson 8: the all-wrong and the all-right groups in %, (steps,) each, stacked."""
    figure, axis = new_figure(7, 2.8)
    axis.stackplot(range(1, 61), shares, colors=[WRONG, RIGHT])
    axis.set(title="% of groups silent", xlabel="step")
    key(axis, {"■ all right": RIGHT, "■ all wrong": WRONG})
    return figure


# Exercises; `notebook.check` explains the keys of CHECKS


FOUR = "wanted is a list of four numbers, the p of each prompt"
BETWEEN = "every p is to lie between .05 and .95"
MEAN = "the mean of the four is not .36"
TOO_FEW = "the mean is right, but fewer than 28 % of the groups are silent"


@judged
def tenfold(p) -> str:
    """Does p of four prompts, with mean .36, make groups of 8 ten times as often silent as .36
    does?"""
    p = numbers(p)
    if p.shape != (4,):
        return FOUR
    if p.min() < 0.05 or p.max() > 0.95:
        return BETWEEN
    if abs(p.mean() - 0.36) > 1e-9:
        return MEAN
    return "right" if silent_rate(p, 8).mean() >= 10 * silent_rate(0.36, 8) else TOO_FEW


def silent_with_credit(p, h, G):
    """The chance of all groups whose rewards are equal, counted one by one."""
    chance = (p, (1 - p) * h, (1 - p) * (1 - h))  # of a reward of 1, 1/2 and 0
    groups = product(range(3), repeat=G)
    return sum(np.prod([chance[i] for i in group]) for group in groups if len({*group}) == 1)


# What exercises 8.1 and 8.4 say
assert f"{silent_rate(0.36, 8):.1%}" == "2.8%"
assert f"{silent_rate(0.01, 8):.0%}, {silent_with_credit(0.01, 0.5, 8):.1%}" == "92%, 0.7%"

CHECKS = {
    "8.1": {
        "expected": lambda: "right",
        "inputs": [{}],
        "mistakes": says(FOUR, BETWEEN, MEAN, TOO_FEW),
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
        "expected": lambda n, G: (n + 1) / (n + G + 1),  # the mean of q^G, weighted by q^n
        "inputs": [{"n": 64, "G": 8}, {"n": 64, "G": 64}, {"n": 16, "G": 1}],
        "mistakes": {
            "that puts 0 of n for p; nothing is certain after n misses": lambda n, G: 1.0,
            "that is E[q] to the power G: take the power first, average last": (
                lambda n, G: ((n + 1) / (n + 2)) ** G
            ),
        },
    },
    "8.4": {
        "expected": silent_with_credit,
        "inputs": [{"p": 0.2, "h": 0.5, "G": 4}, {"p": 0.05, "h": 0.9, "G": 3}],
        "mistakes": {
            "a group of half points alone is silent, too": (
                lambda p, h, G: p**G + ((1 - p) * (1 - h)) ** G
            ),
            "h is the share of the wrong completions, not of all": (
                lambda p, h, G: p**G + h**G + (1 - p - h) ** G
            ),
        },
    },
}
