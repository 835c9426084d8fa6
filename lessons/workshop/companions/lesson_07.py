"""The picture of lesson 7, and the right answers and usual mistakes of its exercises."""

from functools import partial

import numpy as np
from matplotlib.figure import Figure

from lessons.workshop.notebook import BLUE, GREEN, ORANGE, new_figure

LOOKS = {"GRPO": (BLUE, "-"), "Dr. GRPO": (ORANGE, "--"), "MaxRL": (GREEN, "-.")}


def needed_over_p(panels: dict) -> Figure:
    """Lesson 7: by title, a curve over p for each rule, the p of a prompt, and a dot there for each
    rule."""
    figure, axes = new_figure(8.5, 3.2, len(panels), sharey=True)
    for axis, (title, (curves, p, dots)) in zip(axes, panels.items()):
        for name, (color, style) in LOOKS.items():
            axis.plot(np.linspace(0.01, 0.99, 99), curves[name], style, color=color, label=name)
            axis.plot(p, dots[name], "o", color=color)
        axis.set(title=title, xlabel="p", xlim=(0, 1))
    axes[0].set_ylabel("completions")
    axes[-1].legend(loc="upper left", fontsize=9)
    return figure


# Exercises; `notebook.check` explains the keys of CHECKS


def contrast_noise(k, G, v_right, v_wrong):
    return v_right / k + v_wrong / (G - k)


def needed(c, n, chance, power=2):
    """What the weight c needs over what the best does; with another power of c in the noise."""
    return (chance @ (c**power * n)) * (chance @ (1 / n)) / (chance @ c) ** 2


CHECKS = {
    "7.1": {
        "expected": contrast_noise,
        "inputs": [{"k": 2, "G": 8, "v_right": 1, "v_wrong": 12}],
        "mistakes": {
            "the noises of two independent means add, also in their difference": (
                lambda k, G, v_right, v_wrong: v_right / k - v_wrong / (G - k)
            ),
            "k of the completions are right: the mean of k scores belongs to v₊": (
                lambda k, G, v_right, v_wrong: contrast_noise(k, G, v_wrong, v_right)
            ),
        },
    },
    "7.2": {
        "expected": needed,
        "inputs": [{"c": np.arange(3), "n": np.arange(1, 4), "chance": np.arange(1, 4) / 8}],
        "mistakes": {
            "that is what c needs; divide by what the best weight needs": (
                lambda c, n, chance: chance @ (c**2 * n) / (chance @ c) ** 2
            ),
            "in the noise c is squared": partial(needed, power=1),
        },
    },
    "7.3": {
        "expected": lambda p, G: (1 - p) ** (G - 1),
        "inputs": [{"p": 0.1, "G": 4}, {"p": 0.5, "G": 8}],
        "mistakes": {
            "that is how often a group has a right completion; how does it change with p?": (
                lambda p, G: 1 - (1 - p) ** G
            ),
            "1 is the factor of A = R; here wrong completions have an advantage, too": (
                lambda p, G: 1
            ),
        },
    },
}
