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
RESULTS = HERE / "results.json"  # written by lessons/clinic/make.py
STEPS, WINDOW, WIDTH = 60, 5, 4.0


def table(columns: int) -> list[list[str]]:
    """The cells, without outer backticks, of the table of RULES.md with so many columns."""
    lines = (HERE / "RULES.md").read_text("utf-8").splitlines()
    rows = [line.split("|")[1:-1] for line in lines]
    return [[cell.strip(" `") for cell in row] for row in rows if len(row) == columns][2:]


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
    """The committed results, as `summary` of lessons/clinic/make.py makes them, with arrays
    for lists."""
    data = json.loads(RESULTS.read_text("utf-8"))
    data["band"] = np.array(data["band"], dtype=float)
    data["curves"] = {name: np.array(run, dtype=float) for name, run in data["curves"].items()}
    return data


def curves(rows: Sequence[dict]) -> np.ndarray:
    """The curves (metrics, steps) of a log; nan where five rows hold no value."""
    values = np.array([[row.get(name) for name in FLOORS] for row in rows], dtype=float)
    values[:, LOGARITHMIC] = np.log10(values[:, LOGARITHMIC].clip(0) + [*ADDED.values()])
    padded = np.pad(values, ((WINDOW - 1, 0), (0, 0)), constant_values=np.nan)
    windows = np.ma.masked_invalid(sliding_window_view(padded, WINDOW, axis=0))
    return windows.mean(axis=2).filled(np.nan).T


def band(healthy: Sequence[np.ndarray]) -> np.ndarray:
    """Mean and standard deviation, (2, metrics, 60), of the curves of healthy runs. The deviation
    is that of one more run from this mean, so it includes the mean's own."""
    deviation = np.std(healthy, axis=0, ddof=1).clip([[floor] for floor in FLOORS.values()])
    return np.stack([np.mean(healthy, axis=0), deviation * np.sqrt(1 + 1 / len(healthy))])


def outside(run: np.ndarray, healthy: np.ndarray) -> np.ndarray:
    """The curves of a run as distances from the middle of the band, in units of half its width:
    beyond 1 and -1 they are outside. What is further than 6 counts as 6."""
    middle, deviation = healthy[:, :, : run.shape[1]]
    return ((run[:, :STEPS] - middle) / deviation / WIDTH).clip(-6, 6)


def signs(run: np.ndarray, healthy: np.ndarray) -> dict[str, tuple[int, str]]:
    """The metrics of a run that leave the band: the first step, and the side."""
    z, found = outside(run, healthy), {}
    for step in range(1, z.shape[1] - 1):
        for name, three in zip(FLOORS, z[:, step - 1 : step + 2]):
            if three.min() > 1 or three.max() < -1:
                found.setdefault(name, (step, "high" if three[0] > 1 else "low"))
    return found


def named(run: np.ndarray, kind: str, without: str = "") -> str:
    """The patch of a class whose own run is like this one, "" if there is none. Two runs are alike
    if no metric's median distance is as much as the band is wide."""
    data = results()
    z = outside(run, data["band"])
    for name, patch in data["patches"].items():
        if patch["class"] == kind and patch["signs"] and name != without:
            other = outside(data["curves"][name], data["band"])[:, : z.shape[1]]
            apart = np.nan_to_num(np.abs(z - other))  # 0 if a metric is not logged
            if np.median(apart, axis=1).max() < 2:
                return name
    return ""


def draw(
    runs: dict[str, np.ndarray], names: Sequence[str], healthy: np.ndarray, columns: int = 5
) -> Figure:
    """The curves of runs by metric, each in the band of healthy runs, unless that is nan."""
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(2.6 * columns, 1.9 * rows), layout="constrained")
    for number, name in enumerate(names, 1):
        axis, metric = figure.add_subplot(rows, columns, number), [*FLOORS].index(name)
        for run, color in zip(runs.values(), (BLUE, RED, GREEN, ORANGE, PURPLE)):
            axis.plot(range(1, run.shape[1] + 1), run[metric], color=color)
        middle, half = healthy[0, metric], WIDTH * healthy[1, metric]
        axis.fill_between(range(1, STEPS + 1), middle - half, middle + half, color=GREY, alpha=0.3)
        axis.set_title(f"log10 {name}" if name in ADDED else name, fontsize=9, loc="left")
    if len(runs) > 1:
        figure.legend(figure.axes[0].lines, runs, loc="outside lower center", ncols=5, fontsize=9)
    return figure
