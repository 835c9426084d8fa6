"""curves.png: a run's metrics over its steps as small multiples."""

import math
from pathlib import Path

from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart
BLUE, ORANGE, GREEN, RED, PURPLE, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#777777",
)

PANELS = {  # heading: {metric: (label, colour, line style)}
    "Accuracy": {"accuracy": ("training problems, sampled", BLUE, "-")},
    "Completion length, tokens": {
        "length_right": ("right completions", BLUE, "-"),
        "length_wrong": ("wrong completions", RED, "--"),
    },
    "Entropy, nats per token": {"entropy": ("", BLUE, "-")},
    "Silent groups (σ = 0), share of all groups": {
        "silent_right": ("all right", BLUE, "-"),
        "silent_wrong": ("all wrong", RED, "--"),
        "silent": (
            "all right or all wrong",
            GREY,
            ":",
        ),  # last, so that it shows where it coincides with another
    },
    "Share of completions that": {
        "worked": ("work step by step", BLUE, "-"),
        "truncated": ("reach the length limit", RED, "--"),
    },
    "Gradient norm, before clipping": {"grad_norm": ("", BLUE, "-")},
    "Share of tokens stopped by the clip": {
        "clipped_up": ("upwards (advantage > 0)", BLUE, "-"),
        "clipped_down": ("downwards (advantage < 0)", RED, "--"),
    },
    "KL to the base model, nats per token": {"kl": ("", BLUE, "-")},
    "Critic": {
        "explained_variance": ("explained variance", BLUE, "-"),
        "value_loss": ("value loss", RED, "--"),
    },
    "Completions sampled per step": {"sampled": ("", BLUE, "-")},
}


def draw_curves(rows: list[dict], results: dict, path: Path, title: str) -> None:
    """Write `path`: the panels that the run has numbers for. `rows` of metrics.jsonl, `results` of
    results.json."""
    panels = {
        heading: lines
        for heading, lines in PANELS.items()
        if any(set(lines) <= set(row) for row in rows)
    }
    if len({row["sampled"] for row in rows}) == 1:  # the same number at every step
        del panels["Completions sampled per step"]
    columns = math.ceil(len(panels) / 2)
    figure = Figure(figsize=(3.9 * columns, 5.8), layout="constrained")
    figure.suptitle(title, fontsize=11)
    axes = list(figure.subplots(2, columns, sharex=True).flat)
    for axis, (heading, lines) in zip(axes, panels.items()):
        for name, (label, color, style) in lines.items():
            values = [math.nan if row.get(name) is None else row[name] for row in rows]
            axis.plot(
                [row["step"] for row in rows],
                values,
                style,
                color=color,
                label=label,
                linewidth=1.3,
            )
        if heading == "Accuracy":
            ends = [results[when]["accuracy"]["all"] for when in ("before", "after")]
            held_out = {row["step"]: row["held_out"] for row in rows if row["held_out"] is not None}
            sampled = {0: ends[0]["sampled"]} | held_out | {rows[-1]["step"]: ends[1]["sampled"]}
            axis.plot(
                *zip(*sampled.items()),
                "o--",
                markersize=4,
                color=RED,
                clip_on=False,
                label="held out, sampled",
            )
            greedy = [end["greedy"] for end in ends]
            axis.plot(
                [0, rows[-1]["step"]],
                greedy,
                "^",
                color=GREEN,
                clip_on=False,
                label="held out, greedy",
            )
            axis.set_ylim(0, 1)
        elif heading != "Critic":
            axis.set_ylim(bottom=0)
        axis.set_title(heading, fontsize=9.5, loc="left")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if len(axis.lines) > 1:
            axis.legend(fontsize=8, frameon=False)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis in axes[columns:]:
        axis.set_xlabel("step")
    figure.savefig(path, dpi=130, format="png")
