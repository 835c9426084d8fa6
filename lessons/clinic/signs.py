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


def table(columns: int) -> list[list[str]]:
    """The cells, without outer backticks, of the table of RULES.md with so many columns."""
    lines = re.findall(r"^\|(.*)\|$", (HERE / "RULES.md").read_text("utf-8"), flags=re.MULTILINE)
    rows = [[cell.strip(" `") for cell in line.split("|")] for line in lines]
    return [row for row in rows if len(row) == columns][2:]


METRICS = table(5)
FLOORS = {name: float(floor) for name, _, _, floor, _ in METRICS if floor}
ADDED = {name: float(added) for name, *_, added in METRICS if added}
LOGARITHMIC = [name in ADDED for name in FLOORS]


def patches() -> dict[str, dict]:
    """The headers of this folder's patches by name: "Symptom" and so on, or "Alarm" and "Harmless"
    of a control."""
    found = {}
    for path in sorted(HERE.glob("*.diff")):
        fields = re.findall(r"^(\w+): (.*(?:\n  .*)*)", path.read_text("utf-8"), re.MULTILINE)
        found[path.stem] = {name: " ".join(text.split()) for name, text in fields}
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


def mean(arrays: Sequence[np.ndarray], axis: int = 0) -> np.ndarray:
    """The mean of the finite values along an axis; nan where there are none."""
    return np.ma.masked_invalid(arrays).mean(axis=axis).filled(np.nan)


def curves(rows: Sequence[dict], length: int = STEPS) -> np.ndarray:
    """The curves (metrics, length) of the first rows of a log; nan where five rows hold no value,
    and at the end."""
    values = np.full((len(FLOORS), WINDOW - 1 + length), np.nan)
    for i, row in enumerate(rows[:length], WINDOW - 1):
        values[:, i] = [row.get(name) for name in FLOORS]
    added = [[value] for value in ADDED.values()]
    values[LOGARITHMIC] = np.log10(values[LOGARITHMIC].clip(0) + added)
    means = mean(sliding_window_view(values, WINDOW, axis=1), axis=2)
    means[:, len(rows) :] = np.nan
    return means


def band(healthy: Sequence[np.ndarray]) -> np.ndarray:
    """Mean and standard deviation, (2, metrics, 60), of the curves of healthy runs. The deviation
    is that of one more run from this mean, so it includes the mean's own."""
    least = [[floor] for floor in FLOORS.values()]
    deviation = np.std(healthy, axis=0, ddof=1).clip(least) * np.sqrt(1 + 1 / len(healthy))
    return np.stack([np.mean(healthy, axis=0), deviation])


def outside(run: np.ndarray, healthy: np.ndarray) -> np.ndarray:
    """The curves of a run as distances from the middle of the band, in units of half its width:
    beyond 1 and -1 they are outside."""
    return (run - healthy[0]) / healthy[1] / WIDTH


def signs(run: np.ndarray, healthy: np.ndarray) -> dict[str, tuple[int, int]]:
    """The metrics of a run that leave the band: the first step and the side, 1 above and -1
    below."""
    z, names, found = outside(run, healthy), [*FLOORS], {}
    sides = np.where(np.abs(z) > 1, np.sign(z), 0)
    sides = sliding_window_view(sides, PERSISTENT, axis=1).mean(axis=2).T  # (steps, metrics)
    for step, metric in np.argwhere(np.abs(sides) == 1).tolist():
        found.setdefault(names[metric], (step + 1, int(sides[step, metric])))
    return found


def signature(run: np.ndarray, healthy: np.ndarray) -> np.ndarray:
    """(metrics, 12): how far a run is outside after every five steps, at most 3; less than .5
    counts as 0."""
    z = outside(run, healthy)[:, WINDOW - 1 :: WINDOW]
    return (z - z.clip(-0.5, 0.5)).clip(-3, 3)


def diagnosis(
    run: np.ndarray, healthy: np.ndarray, signatures: dict[str, np.ndarray]
) -> list[tuple[float, str]]:
    """The patches whose signature is like that of a run, the most similar first; none if the run
    has no sign. 1 stands for the same signature, 0 for nothing in common: 2 a·b / (|a|^2 + |b|^2)
    over what both have."""
    if not signs(run, healthy):
        return []
    ranked, own = [], signature(run, healthy)
    for name, other in signatures.items():
        both = np.isfinite(own + other)
        a, b = own[both], other[both]
        likeness = 2 * a @ b / max(a @ a + b @ b, 1e-9)
        if likeness > ALIKE:
            ranked.append((likeness, name))
    return sorted(ranked, reverse=True)


def named(run: np.ndarray, kind: str, without: str = "") -> str:
    """The patch of a class that a run in the band is clearly like, "" if there is none: the most
    similar of all, well ahead, and in logarithmic metrics never far from that patch's own run."""
    data, near = results(), {}
    for name, signature in data["signatures"].items():
        gaps = np.nan_to_num(np.abs(run - data["curves"][name])[LOGARITHMIC])
        if name != without and np.median(gaps, axis=1).max() < FAR:
            near[name] = signature
    (best, name), (second, _), *_ = *diagnosis(run, data["band"], near), (0, ""), (0, "")
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
