"""The results of baselines.py: its comparisons, and its tables and figures on the page of results.

tests/test_compare.py holds the text of the pages to these numbers.
"""

from itertools import product
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from lessons.experiments import baselines, grid, paired, shrinkage
from lessons.experiments.baselines import BUDGETS, GROUP_SIZES, TASKS
from lessons.experiments.compare_figures import doublings, draw_line, finish, look, tidy
from lessons.experiments.compare_tables import FIGURES, README
from lessons.experiments.estimators import BATCH
from lessons.experiments.grid import cell, load_runs, markdown, select
from lessons.experiments.paired import LEVEL
from toy_env.plots import BLUE, GREY

MEAN = "R − mean"  # what the others are compared with
COLUMNS = {  # by heading: a task and an outcome
    f"{task}, {'at the end' if outcome == 'end' else 'over training'}": (task, outcome)
    for task, outcome in product(TASKS, baselines.OUTCOMES)
}
SHOWN = (1024, 4096, 15_360, 61_440)  # completions, of BUDGETS


def gaps_table(table: dict[str, dict]) -> str:
    """The differences from R − mean, accuracies in its own row, and how many differences survive
    the correction."""
    gaps = [number["gap"] for columns in table.values() for number in columns.values()]
    tested = [gap["p_holm"] < LEVEL for gap in gaps if "p_holm" in gap]
    seeds = len(table[MEAN]["arithmetic, at the end"]["seeds"])
    note = f"{seeds} seeds; {sum(tested)} of {len(tested)} comparisons are bold."
    return f"{grid.gaps_table('A', table, MEAN)}\n\n{note}"


def learned(runs: list[dict], trials: list[dict]) -> dict[str, dict]:
    """The accuracy of each advantage in each of COLUMNS, at its best rate for the outcome, and its
    difference ("gap") from R − mean."""
    table = {name: {} for name in baselines.BASELINES}
    common = {"minibatches": 1, "G": 8, "steps": 60, "kl": "none"}
    for name, (column, (task, outcome)) in product(table, COLUMNS.items()):
        arm = {"task": task, "advantage": name} | common
        rate = baselines.best_rate(select(trials, arm), outcome)
        table[name][column] = [run[outcome] for run in select(runs, arm | {"rate": rate})]
    return grid.against(table, MEAN)


def difference(table: dict[str, dict], row: str, other: str, column: str) -> dict:
    """`paired.difference` between two rows of `learned`."""
    return paired.difference(*(table[name][column]["seeds"] for name in (row, other)))


def budgets(runs: list[dict]) -> dict[int, list[dict]]:
    """By group size, the accuracy after each of BUDGETS: mean and interval over seeds."""
    table = {}
    for G in GROUP_SIZES:
        of_size = select(runs, {"steps": BUDGETS[-1], "G": G})
        accuracies = [run["held_out"] for run in of_size]
        table[G] = [paired.estimate(list(after)) for after in zip(*accuracies)]
    return table


def budgets_table(table: dict[int, list[dict]]) -> str:
    """`budgets` as a table; in each column the best is in italics."""
    columns = [BUDGETS.index(completions // BATCH) for completions in SHOWN]
    best = {i: max(table, key=lambda G: table[G][i]["mean"]) for i in columns}
    rows = []
    for G, numbers in table.items():
        cells = {i: cell(numbers[i]) for i in columns}
        rows.append([str(G), *(f"*{cells[i]}*" if best[i] == G else cells[i] for i in columns)])
    return markdown(["G", *(f"after {completions:,}" for completions in SHOWN)], rows)


def draw_learned(table: dict[str, dict], path: Path) -> None:
    """The differences of `learned` with their intervals, a panel for each column."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    rows = [row for row in table if row != MEAN]
    y = np.arange(len(rows))[::-1]
    for axis, column in zip(figure.subplots(1, len(COLUMNS), sharey=True), COLUMNS):
        for height, row in zip(y, rows):
            gap = table[row][column]["gap"]
            axis.plot(100 * np.array(gap["interval"]), [height] * 2, color=BLUE, linewidth=1.5)
            axis.plot(100 * gap["difference"], height, "o", color=BLUE, markersize=5)
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set_yticks(y, rows)
        tidy(axis, column, "points above R − mean")
    figure.savefig(path, dpi=110)


def draw_budgets(table: dict[int, list[dict]], path: Path) -> None:
    """Accuracy over completions for each group size, and over the group size after each number of
    completions."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    sizes, x = [*table], np.array(BUDGETS) * BATCH
    over_completions, over_size = figure.subplots(1, 2)
    means = np.array([[number["mean"] for number in numbers] for numbers in table.values()])
    for i, (G, numbers) in enumerate(table.items()):
        interval = np.array([number["interval"] for number in numbers]).T
        draw_line(over_completions, x, means[i], interval, f"G = {G}", look("", i, len(table)))
    for i, completions in enumerate(x):
        over_size.plot(sizes, means[:, i], color=GREY, linewidth=1)
        best = means[:, i].argmax()
        over_size.plot(sizes[best], means[best, i], "o", color="black", markersize=5)
        name = f"{completions:,}" if not 8192 < completions < x[-1] else ""  # they would overlap
        text = {"textcoords": "offset points", "fontsize": 8, "ha": "right"}
        over_size.annotate(name, (2, means[0, i]), (-5, -3), **text)
    over_size.set_xlim(1.2, 80)
    doublings(over_completions, [*SHOWN], "Held-out accuracy", "completions sampled")
    heading = "The same after so many completions; dot: the best"
    doublings(over_size, sizes, heading, "G, completions of a group")
    finish(figure, path)


def found() -> tuple[dict, dict]:
    """`learned` and `budgets` of the committed runs."""
    runs, trials = load_runs(baselines.RESULTS), load_runs(baselines.TUNED)
    return learned(runs, trials), budgets(runs)


def texts() -> dict[Path, dict[str, str]]:
    """The tables, by the page and the place where they stand."""
    of_baselines, of_sizes = found()
    knob = shrinkage.gaps_table(shrinkage.compared(load_runs(shrinkage.RESULTS)))
    tables = {"baselines": gaps_table(of_baselines), "group_size": budgets_table(of_sizes)}
    return {README: tables | {"shrinkage": knob}}


def draw() -> None:
    """Draw the figures of the page."""
    of_baselines, of_sizes = found()
    draw_learned(of_baselines, FIGURES / "baselines.png")
    draw_budgets(of_sizes, FIGURES / "group_size.png")
