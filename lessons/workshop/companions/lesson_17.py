"""The pictures of lesson 17, and the right answers and usual mistakes of its exercises."""

from itertools import product

import numpy as np
import torch
from matplotlib.figure import Figure

from lessons.experiments.erring import CALM, COMPOSED, WINDOW, made_by_clip, shares
from lessons.experiments.harness import paired
from lessons.workshop.notebook import BLUE, GREY, ORANGE, PURPLE, RIGHT, new_figure, ticks

COMPLETIONS = 256 * WINDOW * (np.arange(10) + 0.5)  # sampled by the middle of each window
SHOWN = {1: GREY, 0.4: BLUE, 0.2: PURPLE, -0.2: ORANGE}


def learning(runs: list) -> Figure:
    """The share that is right over training at four J, with 95 % intervals over seeds."""
    figure, axis = new_figure(7.5, 3.6)
    for J, color in SHOWN.items():
        table = shares(runs, COMPOSED.get((J, "both"), {}), "right")
        axis.fill_between(COMPLETIONS, *paired.t_interval(table), color=color, alpha=0.2)
        axis.plot(COMPLETIONS, table.mean(axis=0), color=color, label=f"J = {J}")
    axis.set(xlabel="completions", ylabel="share that is right", xlim=(0, 10240), ylim=(0, 1))
    axis.legend(loc="upper left")
    return figure


def lags(slopes: dict) -> Figure:
    """The share of the slope without errors that each of nine arms keeps, with 95 % intervals, over
    B: gradient descent at 1/J times the rate, by how the updates of a batch are made."""
    figure, axis = new_figure(7.5, 3.4)
    ways = {"clipped": "four updates, clip", "unclipped": "four, no clip", "one": "one update"}
    for (way, label), color in zip(ways.items(), (BLUE, ORANGE, GREY)):
        kept, low, high = slopes[way, CALM].reshape(3, 9)
        interval = kept - low, high - kept
        axis.errorbar(made_by_clip(slopes)[0], kept, interval, fmt="o", color=color, label=label)
    axis.set(xlabel="B, by the formula", ylabel="initial slope (1: no errors)", ylim=(0, 1.5))
    axis.legend(loc="lower left")
    return figure


def forms(runs: list, forms: dict, as_often: dict) -> Figure:
    """Over training, means over seeds of the shares of completions that pass and that are right, a
    panel for each form of errors; and the share that is right with as many random errors."""
    figure, axes = new_figure(9.6, 3.4, columns=3, sharey=True)
    for axis, (form, settings) in zip(axes, forms.items()):
        lines = [
            (settings, "passed", "passes", "--", ORANGE),
            (settings, "right", "is right", "-", RIGHT),
            (as_often.get(form, {}), "right", "is right, random errors", ":", GREY),
        ]
        for arm, what, label, style, color in lines:
            mean = shares(runs, arm, what).mean(axis=0)
            axis.plot(COMPLETIONS, mean, style, color=color, label=label)
        axis.set(title=form, ylim=(0, 1), xlim=(0, 10240), xlabel="completions")
        ticks(axis.xaxis, [0, 5000, 10000])
    axes[0].set_ylabel("share of completions")
    axes[0].legend(loc="lower right", fontsize=9)
    return figure


# Exercises; `notebook.check` explains the keys of CHECKS


def corrected(passed, read, right, rate):
    """A reward whose mean over `read` is `right`."""
    return passed + read * (right - passed) / rate


def mended(passed, read, right, rate):
    return passed + read * (right - passed)


KINDS = torch.tensor([0.2, 0.2, 0.6])  # right and short, right and long, wrong
passed, read, right = torch.tensor([*product([0.0, 1.0], repeat=3)]).T
CHECKS = {
    "17.1": {
        "expected": lambda pi, r: pi * (r - pi @ r),
        "inputs": [{"pi": KINDS, "r": torch.tensor(r)} for r in ([1.0, 0, 0], [0.8, 0.8, 0.3])],
        "mistakes": {
            "where one kind grows the others shrink: the score of a kind has 1 - pi in its own "
            "place and -pi in every other": lambda pi, r: pi * r,
            "how often is a kind drawn? The mean runs over completions": (lambda pi, r: r - pi @ r),
        },
    },
    "17.2": {
        "expected": corrected,
        "inputs": [{"passed": passed, "read": read, "right": read * right, "rate": 0.1}],
        "mistakes": {
            "that is the verdict: nothing that you read is in it": lambda passed, *_: passed,
            "a misjudged completion still passes nine times in ten: one read stands for ten": (
                mended
            ),
            "where nothing is read, `right` is 0 and says nothing": (
                lambda passed, read, right, rate: passed + (right - passed) / rate
            ),
            "right on average, but it drops the verdicts on what you have not read": (
                lambda passed, read, right, rate: right / rate
            ),
        },
    },
}


def share_right(reward, runs=50) -> list[float]:
    """The share of right completions over training: three kinds, of which the first is right and
    the first two pass; 32 completions an update, one in ten of which is read; rate .5."""
    torch.manual_seed(0)
    z, right, passed = torch.tensor([0.2, 0.3, 0.5]).log().repeat(runs, 1), *torch.eye(3)[:2]
    passed, curve = right + passed, []
    for _ in range(101):
        pi = z.softmax(dim=1)
        curve.append(pi[:, 0].mean().item())
        kind = torch.multinomial(pi, 32, replacement=True)
        read = (torch.rand(runs, 32) < 0.1).float()
        R = reward(passed[kind], read, read * right[kind], 0.1)
        A = R - R.mean(dim=1, keepdim=True)
        z = z + 0.5 * torch.einsum("rn,rnk->rk", A, torch.eye(3)[kind] - pi[:, None]) / 32
    return curve


TRAINED = {
    "17.2": {
        "curve": share_right,
        "mistakes": {
            "the verdict alone": lambda passed, *_: passed,
            "the truth where read": mended,
        },
        "labels": ("updates", "share that is right"),
    }
}
