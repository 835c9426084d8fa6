"""The band of healthy runs, the signs by which a run leaves it, and the patches of this folder that leave it alike.

A curve is a metric as its mean over five steps, of metrics that grow by factors the logarithm. The band is the mean of
ten healthy runs plus and minus WIDTH standard deviations. A sign is a curve outside, on one side, for three steps.
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
STEPS, WINDOW, PERSISTENT, WIDTH = 60, 5, 3, 4.0
FLOORS = {  # every metric, and the smallest standard deviation that is believed
    "reward": 0.005, "held_out": 0.005, "silent": 0.005, "silent_right": 0.005, "silent_wrong": 0.005, "sigma": 0.005,
    "length": 0.1, "length_right": 0.1, "length_wrong": 0.1, "truncated": 0.002, "worked": 0.005, "entropy": 0.005,
    "loss": 0.001, "grad_norm": 0.02, "update_norm": 0.02, "clipped_up": 0.0003, "clipped_down": 0.0003,
    "clipped_up_probability": 0.02, "ratio_deviation": 0.02, "mismatch": 0.02, "kl": 0.02,
}  # fmt: skip
ADDED = {"grad_norm": 1e-3, "update_norm": 1e-5, "ratio_deviation": 1e-4, "mismatch": 1e-4, "kl": 1e-5}  # before log10


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
    """The committed results, as `summary` of lessons/experiments/clinic.py makes them, with arrays for lists."""
    data = json.loads(RESULTS.read_text("utf-8"))
    for part in (data["band"], *(bug["curves"] for bug in data["patches"].values())):
        part.update({name: np.array(values, dtype=float) for name, values in part.items()})
    return data


def mean(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The mean over arrays of what is finite there; nan where nothing is."""
    finite = np.isfinite(arrays)
    total, count = np.where(finite, arrays, 0).sum(axis=0), finite.sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def curves(rows: Sequence[dict]) -> dict[str, np.ndarray]:
    """The curves (60,) of the metrics in rows of metrics.jsonl, by name; nan before the first value, and after the last
    row. A row stands for the steps since the one before it, a missing value for the last one."""
    found = {}
    for name in FLOORS:
        values, last = np.full(STEPS, np.nan), 0
        for row in (row for row in rows if row["step"] <= STEPS):
            value, before = row.get(name), values[last - 1] if last else np.nan
            if value is not None and name in ADDED:
                value = np.log10(max(value, 0) + ADDED[name])
            values[last : row["step"]], last = before if value is None else value, row["step"]
        if np.isfinite(values).any():
            means = [mean(values[max(0, t - WINDOW) : t]) for t in range(1, STEPS + 1)]
            found[name] = np.where(np.arange(STEPS) < last, means, np.nan)
    return found


def band(healthy: Sequence[dict]) -> dict[str, np.ndarray]:
    """Mean and standard deviation, (2, 60), of each metric of healthy runs, from their curves. The deviation, pooled
    over five neighbouring steps, is that of one more run from this mean, so it includes the mean's own."""
    made = {}
    for name in (name for name in FLOORS if all(name in run for run in healthy)):
        values = np.stack([run[name] for run in healthy])  # (runs, 60)
        variances = values.var(axis=0, ddof=1)
        pooled = np.array([mean(variances[max(0, t - 2) : t + 3]) for t in range(STEPS)])
        deviation = np.sqrt(np.maximum(pooled, FLOORS[name] ** 2) * (1 + 1 / len(healthy)))
        made[name] = np.stack([values.mean(axis=0), deviation])
    return made


def outside(run: dict, healthy: dict) -> dict[str, np.ndarray]:
    """The curves of a run, from the middle of the band in half widths: beyond 1 and -1 they are outside."""
    return {name: (run[name] - healthy[name][0]) / healthy[name][1] / WIDTH for name in healthy if name in run}


def signs(run: dict, healthy: dict) -> dict[str, tuple[int, int]]:
    """The metrics of a run that leave the band: the first step and the side, 1 above and -1 below. A run that ends
    outside needs no three steps."""
    found = {}
    for name, z in outside(run, healthy).items():
        for t in np.flatnonzero(np.abs(z) > 1)[::-1]:
            following = z[t : t + PERSISTENT] * np.sign(z[t])
            if (following[np.isfinite(following)] > 1).all():
                found[name] = int(t) + 1, int(np.sign(z[t]))
    return dict(sorted(found.items(), key=lambda sign: sign[1]))


def signature(run: dict, healthy: dict) -> np.ndarray:
    """(metrics, 12): how far a run is outside after every five steps, at most 3; less than .5 counts as 0, and nan
    stands for what the run does not have."""
    found = outside(run, healthy)
    z = np.stack([found.get(name, np.full(STEPS, np.nan)) for name in healthy])[:, WINDOW - 1 :: WINDOW]
    return np.sign(z) * (np.abs(z) - 0.5).clip(0, 3)


def resembling(run: dict) -> list[tuple[float, str]]:
    """The patches with signs, the most similar to a run first: 1 for the same signature, 0 for one that has nothing in
    common, 1 - |a - b|^2 / (|a|^2 + |b|^2) over what both have."""
    ranked, own = [], signature(run, results()["band"])
    for name, bug in results()["patches"].items():
        other = np.array(bug["signature"], dtype=float)
        a, b = (x[np.isfinite(own) & np.isfinite(other)] for x in (own, other))
        if bug["signs"] and a @ a + b @ b:
            ranked.append((1 - (a - b) @ (a - b) / (a @ a + b @ b), name))
    return sorted(ranked, reverse=True)


def draw(run: dict, names: Sequence[str] = (), healthy: dict | None = None, columns: int = 5) -> Figure:
    """The curves of a run, all or those of these names, each in the band `healthy`, if there is one."""
    names, healthy = [name for name in names or FLOORS if name in run], healthy or {}
    rows, steps = -(-len(names) // columns), np.arange(1, STEPS + 1)
    figure = Figure(figsize=(2.6 * columns, 1.9 * rows), layout="constrained")
    for name, axis in zip(names, figure.subplots(rows, columns, squeeze=False).flat):
        middle, deviation = healthy.get(name, np.full((2, STEPS), np.nan))
        axis.fill_between(steps, middle - WIDTH * deviation, middle + WIDTH * deviation, color=GREY, alpha=0.3)
        axis.plot(steps, run[name], color=BLUE)
        axis.set_title(f"log10 {name}" if name in ADDED else name, fontsize=9, loc="left")
    for axis in figure.axes[len(names) :]:
        axis.set_visible(False)
    return figure
