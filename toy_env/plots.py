"""curves.png: a run's metrics over its steps as small multiples."""

import math
from pathlib import Path

# Okabe and Ito's palette, which colour-blind readers can tell apart
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, GREY = "#CC79A7", "#777777"
STYLES = ((BLUE, ".-"), (RED, ".--"), (GREY, ".:"))  # of the lines of a panel, in their order

PANELS = {  # heading: {metric: label}
    "Accuracy": {
        "accuracy": "training problems, sampled",
        "held_out": "held-out problems, sampled",
    },
    "Completion length, tokens": {
        "length_right": "right completions",
        "length_wrong": "wrong completions",
    },
    "Entropy, nats per token": {"entropy": ""},
    "Silent groups (σ = 0), share": {
        "silent_right": "all right",
        "silent_wrong": "all wrong",
        # last, so that it shows where it coincides with another
        "silent": "all right or all wrong",
    },
    "Share of completions that": {
        "worked": "work step by step",
        "truncated": "reach the length limit",
    },
    "Gradient norm, before clipping": {"grad_norm": ""},
    "Share of tokens stopped by the clip": {
        "clipped_up": "upwards (advantage > 0)",
        "clipped_down": "downwards (advantage < 0)",
    },
    "KL to the base model, nats per token": {"kl": ""},
    "Critic": {
        "explained_variance": "explained variance",
        "value_loss": "value loss",
    },
}


def draw_curves(rows: list[dict], path: Path, title: str) -> None:
    """Write a picture of all that these rows of metrics.jsonl have numbers for."""
    from matplotlib.figure import Figure  # no start of a script should wait for it

    drawn = {name for row in rows for name, value in row.items() if value is not None}
    panels = {heading: lines for heading, lines in PANELS.items() if drawn & {*lines}}
    columns, steps = (len(panels) + 1) // 2, [row["step"] for row in rows]
    figure = Figure(figsize=(3.9 * columns, 6.4), layout="constrained")
    figure.suptitle(title)
    figure.supxlabel("step")
    for place, (heading, lines) in enumerate(panels.items(), start=1):
        axis = figure.add_subplot(2, columns, place, title=heading)
        for (name, label), (color, style) in zip(lines.items(), STYLES):
            if name in drawn:
                values = [math.nan if row.get(name) is None else row[name] for row in rows]
                axis.plot(steps, values, style, color=color, label=label, linewidth=1.3, ms=5)
        if heading != "Critic":
            axis.set_ylim(bottom=0)
        axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        axis.grid(alpha=0.25)
        if len(lines) > 1:  # below the axes, where it covers no curve
            axis.legend(
                loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2, fontsize=8, frameon=False
            )
    figure.savefig(path, dpi=130)
