"""The figures of compare.py."""

import math
from pathlib import Path

import numpy as np
from matplotlib import colormaps
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
    "GRPO, not / σ": (BLACK, "--", "o"),
    "GRPO, constant length": (ORANGE, "-.", "s"),
}
DASHES, MARKERS = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (2, 1))), "o^sDvX"

# The panels of a figure: held-out accuracy over completions or optimizer steps, or a metric over
# rollout batches.
PANELS = {
    "shared": ("completions", "updates", "length_wrong", "entropy", "silent", "clipped"),
    "pieces": ("completions", "length_wrong", "entropy"),
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


def look(name: str, row: int = 0, rows: int = 0) -> dict:
    """The style of an arm's line. Arms differ in dashes and markers, not in colour alone; one
    without a style of its own is a row of a sequence."""
    if name in LOOKS:
        color, dashes, marker = LOOKS[name]
    else:
        color = colormaps["viridis_r"](0.2 + 0.8 * row / max(rows - 1, 1))
        dashes, marker = DASHES[row % len(DASHES)], MARKERS[row % len(MARKERS)]
    style = {"color": color, "linestyle": dashes, "linewidth": 1.5, "marker": marker}
    return style | {"markersize": 4, "markerfacecolor": "white"}


def draw(panels: tuple[str, ...], runs: dict[str, list[dict]], path: Path) -> None:
    """Small multiples; each line is an arm's mean over its seeds, with the t interval."""
    figure = Figure(figsize=(12, 3.1 * math.ceil(len(panels) / 3) + 0.6), layout="constrained")
    axes = figure.subplots(math.ceil(len(panels) / 3), 3).flat
    for axis, panel in zip(axes, panels):
        where, x, y = ("curve", panel, "held_out") if panel in OVER else ("windows", "step", panel)
        for row, (arm, of_arm) in enumerate(runs.items()):
            xs = np.array([run[where][x] for run in of_arm], dtype=float)
            ys = np.array([run[where][y] for run in of_arm], dtype=float)  # None becomes NaN
            if x == "completions":  # which differ between runs with dynamic sampling
                grid = np.linspace(0, 1.25 * of_arm[0]["budget"], 16)
                ys = np.array([np.interp(grid, *of_run, right=np.nan) for of_run in zip(xs, ys)])
                xs = grid[None]
            if np.isfinite(ys).any():
                xs, style = xs.mean(axis=0), look(arm, row, len(runs))
                axis.fill_between(xs, *t_interval(ys), color=style["color"], alpha=0.12, lw=0)
                axis.plot(xs, ys.mean(axis=0), **style, label=arm)
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
