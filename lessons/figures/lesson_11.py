"""The pictures of lesson 11."""

import numpy as np
from matplotlib.figure import Figure

from lessons import kit
from lessons.kit import BLUE, GREEN, GREY, ORANGE, RED, RIGHT, WRONG, label_line, new_figure


def sharpening(before: dict, after: dict, Ks: tuple[int, ...], name: str) -> Figure:
    """Lesson 11: the effect of sharpening. Left, p of each problem; right, the two curves and M.

    before, after: "p" (problems,), "mode right" (problems,) bool, and the curves "Pass@K" and
    "Maj@K" (Ks,).
    """
    figure, (left, right) = new_figure(8.5, 3.7, columns=2)
    order = np.argsort(-before["p"])
    x, is_right = np.arange(len(order)), before["mode right"][order]
    left.plot(x, before["p"][order], "-", color=GREY, linewidth=1.2)
    for rows, color, marker, label in (
        (is_right, RIGHT, "o", "mode right before"),
        (~is_right, WRONG, "s", "mode wrong before"),
    ):
        left.plot(
            x[rows], after["p"][order][rows], marker, color=color, markersize=4.5, label=label
        )
    left.set(
        title=f"p of each problem, {name}",
        xlabel="problems, by p before (grey line)",
        ylim=(-0.03, 1.25),
    )
    left.set_yticks(np.arange(0, 1.1, 0.2))
    left.legend(loc="upper right", handletextpad=0.1, borderaxespad=0)
    for curves, colors, width in ((before, (GREY, GREY), 1.2), (after, (BLUE, ORANGE), 2)):
        for kind, color, line in zip(("Pass@K", "Maj@K"), colors, ("-", "--")):
            right.plot(Ks, curves[kind], line, color=color, linewidth=width)
    level = after["mode right"].mean()
    right.axhline(level, color=GREEN, linestyle=":", linewidth=1.5)
    label_line(right, Ks[0], level, "M", GREEN, xytext=(-4, 9))
    label_line(right, Ks[-1], max(after["Pass@K"][-1], level + 0.08), "Pass@K", BLUE)
    label_line(right, Ks[-1], after["Maj@K"][-1], "Maj@K", ORANGE, xytext=(5, -9))
    right.set_xscale("log", base=2)
    right.set_xticks(Ks, [str(K) for K in Ks])
    right.set(
        title="mean over problems (grey: before)",
        xlabel="K",
        ylim=(0, 1.03),
        xlim=(0.8, 3.6 * Ks[-1]),
    )
    return figure


def curves_of_training(p: dict[str, np.ndarray]) -> Figure:
    """Lesson 11: Pass@K of the base, of the base cooled, of the trained policies, and of a guesser.

    p: by name, the probability of the right answer, (seeds, problems). Thin lines are seeds, thick
    ones their means.
    """
    Ks = 2 ** np.arange(13)
    looks = {"base": (GREY, "-"), "base, T = 0.3": (GREEN, "-."), "GRPO, small steps": (BLUE, "-")}
    looks |= {"GRPO, small steps, 27 batches": (BLUE, "--"), "GRPO, large steps": (RED, "-")}
    figure, axis = new_figure(8.5, 4.0)
    for name, (color, line) in looks.items():
        curves = (1 - (1 - p[name][..., None]) ** Ks).mean(axis=1)  # (seeds, Ks)
        if len(curves) > 1:
            axis.plot(Ks, curves.T, line, color=color, linewidth=0.6, alpha=0.5)
        axis.plot(Ks, curves.mean(axis=0), line, color=color)
    axis.plot(Ks, 1 - 0.99**Ks, ":", color="black", linewidth=1.5)
    for x, y, name, color in (
        (4096, 1.0, "small steps\n(dashed: 27 batches)", BLUE),
        (1.5, 0.17, "base", GREY),
        (4096, 0.91, "large steps", RED),
        (4096, 0.83, "base, T = 0.3", GREEN),
        (48, 0.22, "guessing 0 to 99", "black"),
    ):
        label_line(axis, x, y, name, color)
    axis.set_xscale("log", base=2)
    every = Ks[:: 4 if kit.narrow else 2]
    axis.set_xticks(every, [str(K) for K in every])
    axis.set(
        title="Pass@K, completions of four tokens, exact (thin lines: seeds)",
        xlabel="K, answers to each problem",
    )
    axis.set(ylim=(0, 1.05), xlim=(0.9, 90000))
    return figure
