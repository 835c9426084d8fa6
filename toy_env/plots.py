"""curves.png: a run's metrics over its steps as small multiples."""

import math
from pathlib import Path

# Okabe and Ito's palette, which colour-blind readers can tell apart
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, GREY = "#CC79A7", "#777777"

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
        # last, so that it shows where it coincides with another
        "silent": ("all right or all wrong", GREY, ":"),
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
    """Draw the panels that the run has numbers for. `rows` of metrics.jsonl, `results` of
    results.json."""
    from matplotlib.figure import Figure  # no start of a script should wait for it

    panels = {}
    for heading, lines in PANELS.items():
        if any(set(lines) <= set(row) for row in rows):
            panels[heading] = lines
    if len({row["sampled"] for row in rows}) == 1:  # the same number at every step
        del panels["Completions sampled per step"]
    columns = math.ceil(len(panels) / 2)
    figure = Figure(figsize=(3.9 * columns, 5.8), layout="constrained")
    figure.suptitle(title, fontsize=11)
    axes = list(figure.subplots(2, columns, sharex=True).flat)
    steps = [row["step"] for row in rows]
    for axis, (heading, lines) in zip(axes, panels.items()):
        for name, (label, color, style) in lines.items():
            values = [math.nan if row.get(name) is None else row[name] for row in rows]
            axis.plot(steps, values, style, color=color, label=label, linewidth=1.3)
        if heading == "Accuracy":
            ends = [results[when]["accuracy"]["all"] for when in ("before", "after")]
            held_out = {row["step"]: row["held_out"] for row in rows if row["held_out"] is not None}
            held_out = {0: ends[0]["sampled"]} | held_out | {steps[-1]: ends[1]["sampled"]}
            greedy = {0: ends[0]["greedy"], steps[-1]: ends[1]["greedy"]}
            marks = {"markersize": 4, "clip_on": False}
            axis.plot(*zip(*held_out.items()), "o--", color=RED, label="held out, sampled", **marks)
            marks["markersize"] = 6
            axis.plot(*zip(*greedy.items()), "^", color=GREEN, label="held out, greedy", **marks)
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
