"""Draw the README's two figures: how strongly a group pushes the model, from lessons/identity.py,
and how well the five scripts train it, from the committed results.

    python lessons/experiments/front_figures.py
"""

import numpy as np
from matplotlib.figure import Figure

from lessons import identity
from lessons.experiments import compare_tables
from toy_env.plots import BLUE, GREEN, GREY, RED

G = 8  # completions of one question


def push() -> Figure:
    """Draw the weight of a group's update by how many of its completions are right. The update is
    this weight times the contrast: the right completions' mean score minus the wrong ones'."""
    figure, axis = new_figure("How hard a group of 8 completions pushes")
    k, smooth = np.arange(G + 1), np.linspace(0, G, 400)
    for name, power, color in (("GRPO", 1, BLUE), ("Dr. GRPO", 2, GREEN)):
        axis.plot(smooth, identity.sigma(smooth, G) ** power, color=color, linewidth=2)
        axis.plot(k, identity.sigma(k, G) ** power, "o", color=color, markersize=7, label=name)
    kept, ring = k[1:-1], {"markersize": 13, "fillstyle": "none", "markeredgewidth": 1.5}
    axis.plot(kept, identity.sigma(kept, G), "o", color=RED, label="DAPO", **ring)
    axis.plot([0, G], [0, 0], "o", color=GREY, markersize=9, zorder=3)

    for right, times in ((1, "3×"), (4, "2×")):
        low, high = identity.sigma(right, G) ** 2, identity.sigma(right, G)
        arrow = {"arrowstyle": "<->", "color": GREY, "shrinkA": 8, "shrinkB": 5}
        axis.annotate("", (right, low), (right, high), arrowprops=arrow)
        axis.text(right + 0.12, (low + high) / 2, times, color=GREY, va="center")
    axis.text(1.7, 0.5, "GRPO: σ", color=BLUE, ha="right", weight="bold")
    axis.text(5.9, 0.5, "DAPO: σ, silent\ngroups replaced", color=RED, weight="bold")
    axis.text(4, 0.16, "Dr. GRPO: σ²", color=GREEN, ha="center", weight="bold")
    for x, verdict, side in ((-0.2, "wrong", "left"), (G + 0.2, "right", "right")):
        silent = f"silent (all {verdict}):\nnothing learnt"
        axis.text(x, -0.04, silent, color=GREY, ha=side, va="top")
    axis.set(xlabel="right completions among the 8", ylabel="strength of the push")
    axis.set(xticks=k, yticks=[0, 0.25, 0.5], ylim=(-0.15, 0.6))
    return figure


def scores(results: dict) -> Figure:
    """Draw each script's held-out accuracy after training, with its interval: as it stands, and
    without the KL term where it has one."""
    figure, axis = new_figure("Accuracy on held-out problems after training, %")
    kinds = (("shared", "o", BLUE, "as the script stands"), ("no_kl", "D", RED, "without KL term"))
    for row, arm in enumerate(compare_tables.LADDER):
        last = None
        for name, marker, color, label in kinds:
            number = results[name]["arms"][arm]["at_budget"]
            if number == last:  # the script has no KL term
                continue
            low, high = number["interval"]
            x, y = 100 * np.array([low, number["mean"], high]), row + 0.25 * (name == "no_kl")
            axis.plot(x, [y] * 3, color=color, marker=marker, markevery=[1], label=arm, lw=2, ms=8)
            if arm == "GRPO":
                axis.text(x[1], y - 0.25, label, color=color, ha="center")
            last = number
    axis.set_xlabel("mean and 95 % interval of ten seeds")
    axis.set(yticks=range(row + 1), yticklabels=compare_tables.LADDER, ylim=(row + 0.6, -0.5))
    return figure


def new_figure(title: str) -> tuple:
    """A figure to be read on a phone; its white margin sets it off a dark page."""
    figure = Figure(figsize=(5.3, 3.2), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
    axis = figure.add_subplot()
    axis.set_title(title, fontsize=12.5, loc="left", x=-0.1)
    axis.spines[["top", "right"]].set_visible(False)
    return figure, axis


if __name__ == "__main__":
    pictures = {"push": push(), "scores": scores(compare_tables.load())}
    for name, figure in pictures.items():
        figure.savefig(compare_tables.FIGURES / f"{name}.png", dpi=140)
