"""The band of healthy runs, the signs by which a run leaves it, and the patches that leave it in
the same way.

A curve is the mean of a metric over five steps (of metrics that grow by factors, the logarithm's).
The band is the mean of ten healthy runs plus and minus WIDTH standard deviations. A sign is a curve
outside, on one side, for three steps.
"""

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.lib.stride_tricks import sliding_window_view

from toy_env.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, RED

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"  # written by lessons/experiments/clinic.py
STEPS, WINDOW, PERSISTENT, WIDTH = 60, 5, 3, 4.0
ALIKE = 0.2  # the least similarity to a patch that counts
SURE, AHEAD, FAR = 0.8, 0.1, 0.7  # to be named: similarity, lead, and at most a factor of five
FLOORS = {  # every metric, and the least standard deviation it is given
    "reward": 0.005,
    "silent": 0.005,
    "silent_right": 0.005,
    "silent_wrong": 0.005,
    "sigma": 0.005,
    "length": 0.1,
    "length_right": 0.1,
    "length_wrong": 0.1,
    "truncated": 0.002,
    "worked": 0.005,
    "entropy": 0.005,
    "loss": 0.001,
    "grad_norm": 0.02,
    "update_norm": 0.02,
    "clipped_up": 0.0003,
    "clipped_down": 0.0003,
    "clipped_up_probability": 0.02,
    "ratio_deviation": 0.02,
    "mismatch": 0.02,
    "kl": 0.02,
}
# Of these metrics the logarithm is taken, after adding this.
ADDED = {
    "grad_norm": 1e-3,
    "update_norm": 1e-5,
    "ratio_deviation": 1e-4,
    "mismatch": 1e-4,
    "kl": 1e-5,
}


def patches() -> dict[str, dict]:
    """The patches of this folder by name: the fields of the header, "Symptom" and so on, or "Alarm"
    and "Harmless" of a control, and the "patch" itself."""
    found = {}
    for path in sorted(HERE.glob("*.diff")):
        header, git, patch = path.read_text("utf-8").partition("diff --git")
        fields = re.findall(r"^(\w+): (.*(?:\n  .*)*)", header, flags=re.MULTILINE)
        found[path.stem] = {name: " ".join(text.split()) for name, text in fields}
        found[path.stem]["patch"] = git + patch
    return found


@cache
def results() -> dict:
    """The committed results, as `summary` of lessons/experiments/clinic.py makes them, with arrays
    for lists."""
    data = json.loads(RESULTS.read_text("utf-8"))
    data["band"] = np.array(data["band"], dtype=float)
    for name in ("signatures", "curves"):
        data[name] = {patch: np.array(values, dtype=float) for patch, values in data[name].items()}
    return data


def mean(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The mean over arrays, entry by entry, of their finite values; nan where there are none."""
    finite = np.isfinite(arrays)
    total, count = np.where(finite, arrays, 0).sum(axis=0), finite.sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def curves(rows: Sequence[dict], length: int = STEPS) -> np.ndarray:
    """The curves (metrics, length) of the first rows of a log; nan where five rows hold no value,
    and at the end."""
    values = np.full((len(FLOORS), WINDOW - 1 + length), np.nan)
    for i, row in enumerate(rows[:length], WINDOW - 1):
        for metric, name in enumerate(FLOORS):
            value = row.get(name)
            if value is not None and name in ADDED:
                value = np.log10(max(value, 0) + ADDED[name])
            values[metric, i] = np.nan if value is None else value
    means = mean(np.moveaxis(sliding_window_view(values, WINDOW, axis=1), 2, 0))
    means[:, len(rows) :] = np.nan
    return means


def band(healthy: Sequence[np.ndarray]) -> np.ndarray:
    """Mean and standard deviation, (2, metrics, 60), of the curves of healthy runs. The deviation
    is that of one more run from this mean, so it includes the mean's own."""
    deviation = np.maximum(np.std(healthy, axis=0, ddof=1), np.array([*FLOORS.values()])[:, None])
    return np.stack([np.mean(healthy, axis=0), deviation * np.sqrt(1 + 1 / len(healthy))])


def outside(run: np.ndarray, healthy: np.ndarray) -> np.ndarray:
    """The curves of a run as distances from the middle of the band, in units of half its width:
    beyond 1 and -1 they are outside."""
    return (run - healthy[0]) / healthy[1] / WIDTH


def signs(run: np.ndarray, healthy: np.ndarray) -> dict[str, tuple[int, int]]:
    """The metrics of a run that leave the band: the first step and the side, 1 above and -1
    below."""
    z, found = outside(run, healthy), {}
    sides = np.where(np.abs(z) > 1, np.sign(z), 0)
    sides = sliding_window_view(sides, PERSISTENT, axis=1).mean(axis=2)
    for name, side in zip(FLOORS, sides):
        steps = np.flatnonzero(np.abs(side) == 1)
        if len(steps):
            found[name] = int(steps[0]) + 1, int(side[steps[0]])
    return dict(sorted(found.items(), key=lambda sign: sign[1]))


def signature(run: np.ndarray, healthy: np.ndarray) -> np.ndarray:
    """(metrics, 12): how far a run is outside after every five steps, at most 3; less than .5
    counts as 0."""
    z = outside(run, healthy)[:, WINDOW - 1 :: WINDOW]
    return np.sign(z) * (np.abs(z) - 0.5).clip(0, 3)


def diagnosis(
    run: np.ndarray, healthy: np.ndarray, signatures: dict[str, np.ndarray]
) -> list[tuple[float, str]]:
    """The patches whose signature is like that of a run, the most similar first; none if the run
    has no sign. 1 stands for the same signature, 0 for nothing in common: 1 - |a - b|^2 / (|a|^2 +
    |b|^2) over what both have."""
    if not signs(run, healthy):
        return []
    ranked, own = [], signature(run, healthy)
    for name, other in signatures.items():
        both = np.isfinite(own) & np.isfinite(other)
        a, b = own[both], other[both]
        likeness = 1 - (a - b) @ (a - b) / max(a @ a + b @ b, 1e-9)
        if likeness > ALIKE:
            ranked.append((likeness, name))
    return sorted(ranked, reverse=True)


def named(run: np.ndarray, kind: str, without: str = "") -> str:
    """The patch of a class that a run in the band is clearly like, "" if there is none: the most
    similar of all, well ahead, and in logarithmic metrics never far from that patch's own run."""
    data, near = results(), {}
    logarithmic = [metric for metric, name in enumerate(FLOORS) if name in ADDED]
    for name, signature in data["signatures"].items():
        gap = np.abs(run - data["curves"][name])[logarithmic]
        far = np.median(np.where(np.isfinite(gap), gap, 0), axis=1).max()
        if name != without and far < FAR:
            near[name] = signature
    (best, name), (second, _), *_ = *diagnosis(run, data["band"], near), (0.0, ""), (0.0, "")
    sure = best > SURE and best - second > AHEAD and patches()[name].get("Class") == kind
    return name if sure else ""


def draw(
    runs: dict[str, np.ndarray], names: Sequence[str], healthy: np.ndarray | None = None, columns=5
) -> Figure:
    """The curves of runs by metric, each in the band of healthy runs, if there is one."""
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(2.6 * columns, 1.9 * rows), layout="constrained")
    for number, name in enumerate(names, 1):
        axis = figure.add_subplot(rows, columns, number)
        metric = [*FLOORS].index(name)
        if healthy is not None:
            middle, half = healthy[0, metric], WIDTH * healthy[1, metric]
            steps = range(1, STEPS + 1)
            axis.fill_between(steps, middle - half, middle + half, color=GREY, alpha=0.3)
        for (run, values), color in zip(runs.items(), (BLUE, RED, GREEN, ORANGE, PURPLE)):
            axis.plot(range(1, values.shape[1] + 1), values[metric], color=color, label=run)
        axis.set_title(f"log10 {name}" if name in ADDED else name, fontsize=9, loc="left")
    if len(runs) > 1:
        lines = figure.axes[0].get_legend_handles_labels()
        figure.legend(*lines, loc="outside lower center", ncols=5, fontsize=9)
    return figure
