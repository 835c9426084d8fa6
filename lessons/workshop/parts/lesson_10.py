"""The pictures of lesson 10, and the right answers and usual mistakes of its exercises."""

from collections.abc import Callable

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.lines import CARETDOWNBASE, CARETUPBASE

from algorithms import dapo
from lessons import identity
from lessons.identity import silent_rate
from lessons.workshop.kit import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    RIGHT,
    WRONG,
    label_line,
    new_figure,
    ticks,
)
from lessons.workshop.parts.drawing import note, two_panels

MARKERS = {  # ways to treat a silent group: colour, marker, and the sign in its label
    "GRPO": (BLUE, "o", "●"),
    "DAPO: other prompts": (GREEN, "x", "✕"),
    "same prompt, until mixed": (RED, "s", "■"),
}
CAPPED = ORANGE, "^", "▲"


def weights(p: np.ndarray, measured: dict, G: int, draws: int) -> Figure:
    """Lesson 10: weight of a prompt relative to that of p = 1/2, the middle of p (n,): measured
    (n,) as markers, exact as lines. The last of `measured` has at most `draws` draws."""
    *_, last = measured
    looks = MARKERS | {last: CAPPED}
    figure, axis = new_figure(8.2, 3.8)
    grid = 1 / (1 + np.exp(-np.linspace(-4.8, 4.8, 121)))
    w = identity.weight("GRPO", grid, G)
    exact = {
        "GRPO": w,
        "same prompt, until mixed": w / (1 - silent_rate(grid, G)),
        last: w * capped_redraw(grid, G, draws),
    }
    for name, line in exact.items():
        axis.plot(grid, line / line[60], color=looks[name][0], linewidth=1.5)
    for i, (name, (color, marker, sign)) in enumerate(looks.items()):
        relative, size = measured[name] / measured[name][len(p) // 2], 9 if marker == "x" else 6
        axis.plot(p, relative, marker, color=color, markersize=size, markeredgewidth=1.8)
        label_line(axis, 0.5, 5.0 * 1.55**i, f"{sign} {name}", color, xytext=(0, 0), ha="center")
    axis.set(
        title="Weight of a prompt (1: p = ½)",
        xscale="logit",
        yscale="log",
        xlabel="p, probability of a right completion",
        ylim=(0.8, 40),
    )
    ticks(axis.xaxis, [".01", ".1", ".5", ".9", ".99"])
    ticks(axis.yaxis, [1, 2, 5, 10, 20])
    return figure


def clip_room(push: Callable, eps_low: float, eps_high: float, p: float) -> Figure:
    """Lesson 10: where DAPO's clip stops a token sampled with probability p, and how much
    probability each token can gain or lose until then. push: (ratios, sign of A) -> the factor of
    the token's score."""
    figure, left, right = two_panels(
        3.5,
        {
            "title": f"Push on a token sampled with probability {p:g}",
            "xlabel": "ratio",
            "xlim": (0.3, 1.8),
            "ylim": (-2.1, 2.1),
        },
        {
            "title": "Room before the gradient stops",
            "xlabel": "probability when sampled",
            "ylabel": "probability gained",
            "xlim": (0, 1),
            "ylim": (-0.55, 0.45),
        },
    )
    ratios, sampled = np.linspace(0.3, 1.8, 601), np.linspace(0.001, 0.999, 400)
    possible = ratios[ratios * p < 1]

    def room(x, change):
        return np.minimum(x * change, 1 - x)

    right.plot(sampled, room(sampled, 0.2), "--", color=GREY, linewidth=1.5)
    for A, color, name, y, change, marker in (  # carets, which stand apart at a small p
        (1.0, RIGHT, "right, A = 1", 0.93, eps_high, CARETUPBASE),
        (-1.0, WRONG, "wrong, A = −1", 0.07, -eps_low, CARETDOWNBASE),
    ):
        left.plot(possible, push(possible, A), color=color)
        note(left, 0.03, y, name, color, va="center")
        right.plot(sampled, room(sampled, change), color=color)
        right.plot(p, room(p, change), marker=marker, color=color, markersize=10)
        end = p * (1 + change)
        stops = f"{name}: stopped at {end:.3g}" if end < 1 else f"{name}: never stopped"
        note(right, 0.03, y, stops, color, va="center")
    left.axvline(1, color=GREY, linewidth=1, linestyle=":")
    if len(possible) < len(ratios):
        left.axvspan(1 / p, 1.8, color=GREY, alpha=0.2, linewidth=0)
        left.text(1.78, -0.25, "more than\nprobability 1", color=GREY, va="center", ha="right",
                  fontsize=9)  # fmt: skip
    right.axhline(0, color="black", linewidth=0.8)
    note(right, 0.98, 0.84, "dashed: 20%", GREY, ha="right", fontsize=9)
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def capped_redraw(p, G, draws):
    """Weight over GRPO's of a prompt whose group is drawn again while it is silent, at most `draws`
    times in all: each draw adds the probability that it is needed."""
    return sum(silent_rate(p, G) ** i for i in range(draws))


def silent_per_kept(p, G):
    """The expected number of silent groups before the first that is not."""
    S = silent_rate(p, G).mean()
    return S / (1 - S)


def differ(verdicts):
    """(groups,), bool, from (groups, G), bool: the groups whose verdicts are not all the same."""
    return (verdicts != verdicts[:, :1]).any(dim=1)


FILTERS = {
    "the bug": lambda shaped: shaped.std(dim=1) > 0,
    "by the sign": lambda shaped: differ(shaped > 0),
}
MIXED = [[1, 1, 1, -1], [0, -1, -1, -2], [0, -1, -1, -1], [0.2, 0.1, 0, -1]]
SILENT = [
    [1, 1, 0.4, 1],
    [-1, -1.8, -1, -1],
    [1, 0, 1, 0],
    [0.9, 0, 0.6, 0.5],
    [-1, -1, -1, -1],
    [1, 0.9, 0.8, 1],
]

CHECKS = {
    "10.1": {
        "expected": capped_redraw,
        "inputs": [{"p": 0.02, "G": 8, "draws": 4}, {"p": 0.3, "G": 4, "draws": 2}],
        "mistakes": {
            "that has no limit on the draws": lambda p, G, draws: 1 / (1 - silent_rate(p, G)),
            "the probability of a mixed end; GRPO's is not 1": (
                lambda p, G, draws: 1 - silent_rate(p, G) ** draws
            ),
            "a group is drawn again only while it is silent": lambda p, G, draws: draws,
            "the first draw is one of the `draws`": (
                lambda p, G, draws: capped_redraw(p, G, draws + 1)
            ),
        },
    },
    "10.2": {
        "expected": lambda p, G: G * silent_per_kept(p, G),
        "inputs": [
            {"p": np.array([0.05, 0.5]), "G": 8},
            {"p": np.array([0.01, 0.3, 0.9]), "G": 16},
        ],
        "mistakes": {
            "that is the cost of redrawing the same prompt": (
                lambda p, G: G * np.mean([silent_per_kept(each, G) for each in p])
            ),
            "that counts the kept group, too; it is not wasted": (
                lambda p, G: G * (1 + silent_per_kept(p, G))
            ),
            "those are groups; each has G completions": silent_per_kept,
            "average S over the prompts, not p": lambda p, G: G * silent_per_kept(p.mean(), G),
        },
    },
    "10.3": {
        "bug": FILTERS["the bug"],
        "expected": lambda shaped: differ(shaped >= 0),
        "inputs": [{"shaped": torch.tensor(MIXED + SILENT).double()}],
        "mistakes": {
            "no threshold will do: a silent group can spread as far as a mixed one": (
                lambda shaped: shaped.amax(dim=1) - shaped.amin(dim=1) >= 1
            ),
            "no bound on the deviation will do: a silent group can spread as far as a mixed one": (
                lambda shaped: shaped.std(dim=1) > 0.5
            ),
            "rounding does not undo the penalty, which can be anything from 0 to 1": (
                lambda shaped: differ(shaped.round())
            ),
            "a right completion at the limit has 0, whose sign is neither 1 nor −1": (
                lambda shaped: differ(shaped.sign())
            ),
            "a right completion at the limit has a shaped reward of 0": (FILTERS["by the sign"]),
            "a right completion may have less than 1: its reward is shaped": (
                lambda shaped: differ(shaped == 1)
            ),
        },
    },
}


def accuracy(keep) -> list[float]:
    """The success probability of a policy with one logit, of a completion at the limit: right with
    probability .95, a short one .5. A batch: the first 64 kept of 512 groups of 8."""
    rng, z, means = np.random.default_rng(0), 0.0, []
    for _ in range(61):
        p = 1 / (1 + np.exp(-z))
        means.append(0.5 + 0.45 * p)
        long = rng.random((512, 8)) < p
        right = rng.random((512, 8)) < 0.5 + 0.45 * long
        shaped = torch.tensor(2.0 * right - 1 - long)
        kept = keep(shaped).nonzero().flatten()[:64]
        A = dapo.compute_advantages(rewards=shaped[kept]).numpy()
        z += 2 * (A * (long[kept] - p)).sum() / 512
    return means


TRAINED = {
    "10.3": {
        "curve": accuracy,
        "mistakes": FILTERS,
        "labels": ("updates", "success probability p"),
    }
}
