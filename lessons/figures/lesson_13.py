"""The pictures of lesson 13."""

import numpy as np
from matplotlib.figure import Figure

from lessons import identity
from lessons.experiments import update_length_tables as tables
from lessons.experiments.update_length import KS
from lessons.kit import BLUE, GREY, ORANGE, new_figure


def draw_profile(axis, stage: dict, G: int, color: str) -> None:
    """Lesson 13: length of GRPO's update over the share of right answers, measured (dots) and predicted (line)."""
    x, prompts = np.array(KS[G]) / G, stage["p"].shape[1]
    found, line = (tables.profile(lengths(stage, G), G) for lengths in (tables.measured, tables.predicted))
    value, low, high = (np.array([getattr(e, name) for e in found]) for name in ("value", "low", "high"))
    axis.plot(x, [e.value for e in line], color=color)
    label = f"G = {G} ({found[0].n / stage['p'].shape[0]:.0f} of {prompts} prompts)"
    axis.errorbar(x, value, [value - low, high - value], fmt="o", color=color, markersize=5, label=label)
    grid = np.linspace(0, 1, 200)
    axis.plot(grid, 2 * np.sqrt(grid * (1 - grid)), "--", color=GREY, linewidth=1)
    axis.set(xlabel="k / G, share of right answers", ylim=(0, None))
    axis.legend(frameon=False, loc="lower center")


def draw_signal_and_noise(stage: dict, G: int, title: str) -> Figure:
    """Lesson 13: squared length at each k, measured, and the formula's two parts; a prompt's even split is 1."""
    figure, axis = new_figure(8, 3.8)
    even, (signal, noise) = [KS[G].index(G // 2)], tables.signal_and_noise(stage, G)
    pairs = ((signal, signal + noise), (noise, signal + noise), (squared := tables.measured(stage, G) ** 2, squared))
    parts = [part / whole[:, :, even] for part, whole in pairs]
    estimates = [[tables.mean(part[:, :, j]) for part in parts] for j in range(len(KS[G]))]
    shown = [j for j, row in enumerate(estimates) if row[2].n]  # k that some prompt has
    ks, x = np.array(KS[G])[shown], np.arange(len(shown))
    signal, noise, value = (np.array([estimates[j][i].value for j in shown]) for i in range(3))
    low, high = (np.array([getattr(estimates[j][2], name) for j in shown]) for name in ("low", "high"))
    axis.bar(x, noise, 0.7, color=ORANGE, alpha=0.4)
    axis.bar(x, signal, 0.7, bottom=noise, color=BLUE, alpha=0.35)
    axis.plot(x, 4 * identity.sigma(ks, G) ** 2, "--", color=GREY)
    axis.errorbar(x, value, [value - low, high - value], fmt="o", color="black", markersize=6)
    for i, (name, color) in enumerate((("measured", "black"), ("signal", BLUE), ("noise", ORANGE), ("σ²", GREY))):
        axis.text(1.01, 0.92 - 0.09 * i, name, color=color, transform=axis.transAxes)
    axis.set(title=title, xlabel="k, right answers (and prompts that have them)", ylabel="squared length", ylim=(0, 2))
    axis.set_xticks(x, [f"{k}\n({estimates[j][2].n})" for j, k in zip(shown, ks)])
    return figure
