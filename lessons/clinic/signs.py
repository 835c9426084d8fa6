"""The band of healthy runs, the signs by which a run leaves it, and the bugs of this folder that leave it alike.

A curve is one number for each of 60 steps: a metric, its last value where it has none, as the mean of the last five
steps; of metrics that grow by factors, the logarithm. The band is the mean of ten healthy runs plus and minus `width`
standard deviations, pooled over five neighbouring steps. A sign is a curve outside on one side for three steps.
"""

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from toy_env.plots import BLUE, GREY

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"  # written by lessons/experiments/clinic.py
STEPS, WINDOW, PERSISTENT = 60, 5, 3
FLOORS = {  # every metric, and the smallest standard deviation that is believed
    "reward": 0.005, "held_out": 0.005, "silent": 0.005, "silent_right": 0.005, "silent_wrong": 0.005, "sigma": 0.005,
    "length": 0.1, "length_right": 0.1, "length_wrong": 0.1, "truncated": 0.002, "worked": 0.005, "entropy": 0.005,
    "loss": 0.001, "grad_norm": 0.02, "update_norm": 0.02, "clipped_up": 0.0003, "clipped_down": 0.0003,
    "clipped_up_probability": 0.02, "ratio_deviation": 0.02, "mismatch": 0.02, "kl": 0.02,
}  # fmt: skip
ADDED = {"grad_norm": 1e-3, "update_norm": 1e-5, "ratio_deviation": 1e-4, "mismatch": 1e-4, "kl": 1e-5}  # then log10


def patches() -> dict[str, dict]:
    """The patches of this folder by name: the fields of the header, "Symptom" and so on, or "Alarm" and "Harmless" of a
    control, and the "patch" itself."""
    found = {}
    for path in sorted(HERE.glob("*.diff")):
        header, git, patch = path.read_text("utf-8").partition("diff --git")
        fields = re.findall(r"^(\w+): (.*(?:\n  .*)*)", header, flags=re.MULTILINE)
        found[path.stem] = {name: " ".join(text.split()) for name, text in fields} | {"patch": git + patch}
    return found


@cache
def results() -> dict:
    """The committed results: "healthy", "width", "false alarms", "bugs" and "settings"."""
    return json.loads(RESULTS.read_text("utf-8"))


def curves(rows: Sequence[dict]) -> dict[str, np.ndarray]:
    """The curves (60,) of the metrics in rows of metrics.jsonl, by name; nan before the first value, and after the last
    row. Steps that were not logged have the values of the next row, which are means over them."""
    found = {}
    for name, added in ((name, ADDED.get(name)) for name in FLOORS):
        values, last = np.full(STEPS, np.nan), 0
        for row in (row for row in rows if row["step"] <= STEPS):
            value = row.get(name)
            previous = values[last - 1] if last else np.nan
            values[last : row["step"]] = previous if value is None else value if added is None else log(value, added)
            last = row["step"]
        if np.isfinite(values).any():
            parts = [values[max(0, t + 1 - WINDOW) : t + 1] for t in range(last)]
            means = [part[np.isfinite(part)].mean() if np.isfinite(part).any() else np.nan for part in parts]
            found[name] = np.array(means + [np.nan] * (STEPS - last))
    return found


def log(value: float, added: float) -> float:
    return float(np.log10(max(value, 0) + added))


def band(healthy: Sequence[dict]) -> dict[str, np.ndarray]:
    """Mean and standard deviation, (2, 60), of each metric of healthy runs, from their curves. The deviation is that
    of one more run from this mean, so it includes the mean's own."""
    made = {}
    for name in (name for name in FLOORS if all(name in run for run in healthy)):
        values = np.stack([run[name] for run in healthy])  # (runs, 60)
        variances = values.var(axis=0, ddof=1)
        windows = [variances[max(0, t - 2) : t + 3] for t in range(STEPS)]
        pooled = [w[np.isfinite(w)].mean() if np.isfinite(v) else np.nan for v, w in zip(variances, windows)]
        deviation = np.sqrt(np.maximum(pooled, FLOORS[name] ** 2) * (1 + 1 / len(healthy)))
        made[name] = np.stack([values.mean(axis=0), deviation])
    return made


def deviations(run: dict, healthy: dict) -> dict[str, np.ndarray]:
    """By how many standard deviations of the band `healthy` the curves of a run leave its mean: (60,) each."""
    return {name: (run[name] - healthy[name][0]) / healthy[name][1] for name in healthy if name in run}


def signs(run: dict, healthy: dict, width: float) -> dict[str, tuple[int, int]]:
    """The metrics of a run that leave the band: the first step and the side, 1 above and -1 below. A run that ends
    outside needs no three steps."""
    found = {}
    for name, z in deviations(run, healthy).items():
        for t, side in ((t, int(np.sign(z[t]))) for t in range(STEPS) if abs(z[t]) > width):
            following = z[t : t + PERSISTENT]
            if (following[np.isfinite(following)] * side > width).all():
                found[name] = (t + 1, side)
                break
    return found


def width_for(healthy: Sequence[dict], most: float = 0.01) -> float:
    """The narrowest width at which at most a share `most` of metrics x runs has a sign, each healthy run being judged
    by the band of the others."""
    others = [(run, band([other for other in healthy if other is not run])) for run in healthy]
    for width in np.arange(2.5, 10, 0.25):
        alarms = [len(signs(run, made, width)) / len(made) for run, made in others]
        if np.mean(alarms) <= most:
            break
    return float(width)


def signature(run: dict, healthy: dict, width: float) -> np.ndarray:
    """(metrics, 12): how far a run is outside over every five steps, in widths, cut at 3; what is less than half a
    width counts as 0, and nan stands for what the run does not have."""
    z = [deviations(run, healthy).get(name, np.full(STEPS, np.nan)) / width for name in healthy]
    z = np.stack(z)[:, WINDOW - 1 :: WINDOW].clip(-3, 3)
    return np.sign(z) * np.maximum(np.abs(z) - 0.5, 0)


def similarity(one: np.ndarray, other: np.ndarray) -> float:
    """1 for equal signatures, 0 for those that have nothing in common: 1 - |a - b|^2 / (|a|^2 + |b|^2), over what both
    have."""
    a, b = (x[np.isfinite(one) & np.isfinite(other)] for x in (one, other))
    length = a @ a + b @ b
    return float(1 - (a - b) @ (a - b) / length) if length else 0.0


def resembling(run: dict) -> list[tuple[float, str]]:
    """The bugs and controls of the committed results that have signs, the most similar to a run's curves first."""
    made, width = load_band()
    own = signature(run, made, width)
    ranked = [
        (similarity(own, np.array(bug["signature"], dtype=float)), name)
        for name, bug in results()["bugs"].items()
        if bug["signs"]
    ]
    return sorted(ranked, reverse=True)


def load_band() -> tuple[dict[str, np.ndarray], float]:
    """The committed band, and its width."""
    return {name: np.array(values) for name, values in results()["healthy"].items()}, results()["width"]


def draw(run: dict, names: Sequence[str] = (), in_band: bool = True, columns: int = 5) -> Figure:
    """The curves of a run, all or those of these names, each in the band of healthy runs unless not `in_band`."""
    (made, width), names = load_band() if in_band else ({}, 0), [name for name in names or FLOORS if name in run]
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(2.6 * columns, 1.9 * rows), layout="constrained")
    steps = np.arange(1, STEPS + 1)
    for axis, name in zip(figure.subplots(rows, columns, squeeze=False, sharex=True).flat, names):
        lines = [run[name]]
        if name in made:
            mean, deviation = made[name]
            lines += [mean - width * deviation, mean + width * deviation]
        lines = [10**line - ADDED[name] if name in ADDED else line for line in lines]
        if name in made:
            axis.fill_between(steps, *lines[1:], color=GREY, alpha=0.3, linewidth=0)
        axis.plot(steps, lines[0], color=BLUE)
        axis.set_title(name, fontsize=9, loc="left")
        axis.tick_params(labelsize=7)
        if name in ADDED and (lines[0][np.isfinite(lines[0])] > 0).any():
            axis.set_yscale("log")
    for axis in figure.axes[len(names) :]:
        axis.set_visible(False)
    return figure
