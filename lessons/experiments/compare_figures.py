"""The figures of compare.py."""

import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lessons.experiments.harness.paired import t_interval
from toy_env.plots import BLUE, GREEN, ORANGE, RED

BLACK = "#000000"
# A side rung has the colour of the script that it hangs on; dashes and markers tell all from each
# other.
LOOKS = {
    "REINFORCE": (BLACK, "-", "o"),
    "PPO": (ORANGE, "-", "s"),
    "GRPO": (BLUE, "-", "^"),
    "Dr. GRPO": (GREEN, "-", "D"),
    "DAPO": (RED, "-", "v"),
    "RLOO": (GREEN, "--", "P"),
    "MaxRL": (GREEN, ":", "X"),
    "GSPO": (BLUE, "--", "<"),
    "CISPO": (RED, "--", ">"),
    # the ablation, row by row darker
    "GRPO without KL": ("#7ad151", "-", "o"),
    "+ overlong filtering": ("#2cb17e", "--", "^"),
    "+ clip-higher": ("#228b8d", "-.", "s"),
    "+ soft overlong punishment": ("#32648e", ":", "D"),
    "+ token-level loss": ("#453781", (0, (6, 1, 1, 1, 1, 1)), "v"),
    "+ dynamic sampling": ("#440154", (0, (2, 1)), "X"),
}

# The panels of a figure: held-out accuracy over completions or optimizer steps, or a metric over
# rollout batches.
PANELS = {
    "shared": ("completions", "updates", "length_wrong", "entropy", "silent", "clipped"),
    "ablation": ("completions", "entropy", "clipped", "truncated", "length_wrong", "silent"),
}
HEADINGS = {
    "length_wrong": "Length of wrong completions, tokens",
    "entropy": "Entropy, nats per token",
    "silent": "Silent groups, share of those drawn",
    "clipped": "Tokens stopped or capped, share",
    "truncated": "Completions cut at the limit, share",
}
OVER = {"completions": "completions sampled", "updates": "optimizer steps"}


def look(arm: str) -> dict:
    """The style of an arm's line. Arms differ in dashes and markers, not in colour alone."""
    color, dashes, marker = LOOKS[arm]
    style = {"color": color, "linestyle": dashes, "linewidth": 1.5, "marker": marker}
    return style | {"markersize": 4, "markerfacecolor": "white"}


def draw(panels: tuple[str, ...], runs: dict[str, list[dict]], path: Path) -> None:
    """Small multiples; each line is an arm's mean over its seeds, with the t interval."""
    rows = math.ceil(len(panels) / 3)
    figure = Figure(figsize=(12, 3.1 * rows + 0.6), layout="constrained")
    for axis, panel in zip(figure.subplots(rows, 3).flat, panels):
        for arm, of_arm in runs.items():
            curves = np.array([run["curves"][panel] for run in of_arm], dtype=float)
            xs, ys = curves[:, 0], curves[:, 1]  # (seeds, points); None has become NaN
            if panel == "completions":  # which differ between runs with dynamic sampling
                grid = np.linspace(0, 1.25 * of_arm[0]["budget"], 16)
                ys = np.array([np.interp(grid, *curve, right=np.nan) for curve in curves])
                xs = grid[None]
            if np.isfinite(ys).any():
                x, style = xs.mean(axis=0), look(arm)
                axis.fill_between(x, *t_interval(ys), color=style["color"], alpha=0.12, lw=0)
                axis.plot(x, ys.mean(axis=0), **style, label=arm)
        tidy(axis, HEADINGS.get(panel, "Held-out accuracy"), OVER.get(panel, "rollout batch"))
        axis.set_ylim((0.35, 1) if panel in OVER else (0, None))
    finish(figure, path)


def tidy(axis, heading: str, label: str) -> None:
    """Headings, grid and a few numbers below the axis."""
    axis.set_title(heading, fontsize=10, loc="left")
    axis.set_xlabel(label, fontsize=9)
    axis.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)


def finish(figure: Figure, path: Path) -> None:
    """Put the legend below all panels, long ones in two rows, and write the file."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    rows = 1 + sum(map(len, labels)) // 100
    layout = {"ncols": len(labels) // rows, "frameon": False, "handlelength": 3.5}
    figure.legend(handles, labels, loc="outside lower center", **layout)
    figure.savefig(path, dpi=110)
