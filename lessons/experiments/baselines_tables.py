"""What baselines.py found: its comparisons, and its tables and figures on the page of results.

What the pages say of them in words is asserted in tests/test_estimators.py.
"""

from itertools import product
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from lessons.experiments import baselines, paired
from lessons.experiments.compare_figures import doublings, draw_line, finish, look, tidy
from lessons.experiments.estimators import BATCH
from lessons.experiments.grid import cell, change, load_runs, markdown

PAGE, FIGURES = baselines.RESULTS.parent / "README.md", baselines.RESULTS.parent / "figures"
COLUMNS = {  # of a table of differences: a task and an outcome
    f"{task}, {'at the end' if outcome == 'end' else 'over training'}": (task, outcome)
    for task, outcome in product(baselines.TASKS, baselines.OUTCOMES)
}
ROWS = [(1, name) for name in baselines.BASELINES] + [
    (4, name) for name in baselines.WITH_UPDATES
]  # updates a batch, advantages
SHOWN = (1024, 4096, 15_360, 61_440)  # completions, of BUDGETS


def chosen(runs: list[dict], **settings) -> list[dict]:
    """The runs with these settings, by seed."""
    found = [run for run in runs if all(run[name] == value for name, value in settings.items())]
    return sorted(found, key=lambda run: run["seed"])


def learned(runs: list[dict], trials: list[dict]) -> dict[tuple[int, str], dict[str, dict]]:
    """By row and column: the accuracy at the arm's best rate for the outcome, its mean and interval over seeds, and
    its difference from R − mean with as many updates a batch. The differences are one family, corrected by Holm."""
    found: dict[tuple[int, str], dict[str, dict]] = {row: {} for row in ROWS}
    for row, (column, (task, outcome)) in product(ROWS, COLUMNS.items()):
        arm = {"task": task, "advantage": row[1], "minibatches": row[0], "G": 8, "steps": 60, "kl": "none"}
        rate = baselines.best_rate(chosen(trials, **arm), outcome)
        values = [run[outcome] for run in chosen(runs, **arm, rate=rate)]
        found[row][column] = paired.estimate(values) | {"rate": rate}
    for (updates, name), column in product(ROWS, COLUMNS):
        number, mean = (found[updates, arm][column] for arm in (name, "R − mean"))
        number["gap"] = paired.difference(number["seeds"], mean["seeds"])
    paired.holm([of[column]["gap"] for (_, name), of in found.items() if name != "R − mean" for column in COLUMNS])
    return found


def learned_table(found: dict) -> str:
    """`learned` as a table."""
    rows = [
        [name if updates == 1 else f"{updates} updates: {name}"]
        + [cell(of[column]) if name == "R − mean" else change(of[column]["gap"]) for column in COLUMNS]
        for (updates, name), of in found.items()
    ]
    return markdown(["A", *COLUMNS], rows)


def budgets(runs: list[dict]) -> dict[int, list[dict]]:
    """By group size, the accuracy after each of BUDGETS: mean and interval over seeds."""
    of_size = {G: chosen(runs, steps=baselines.BUDGETS[-1], G=G) for G in baselines.GROUP_SIZES}
    return {G: [paired.estimate([run["held_out"][i] for run in found]) for i in range(len(baselines.BUDGETS))]
            for G, found in of_size.items()}  # fmt: skip


def budgets_table(found: dict[int, list[dict]]) -> str:
    """`budgets` as a table; in each column the best is in italics."""
    columns = [baselines.BUDGETS.index(completions // BATCH) for completions in SHOWN]
    best = {i: max(found, key=lambda G: found[G][i]["mean"]) for i in columns}
    rows = [[str(G), *(f"*{cell(of[i])}*" if best[i] == G else cell(of[i]) for i in columns)]
            for G, of in found.items()]  # fmt: skip
    return markdown(["G", *(f"after {completions:,}" for completions in SHOWN)], rows)


def signs(runs: list[dict]) -> dict[str, dict[int, dict]]:
    """By advantages and group size, the accuracy at the end with four updates a batch, and its difference from
    R − mean; these differences are one family."""
    found = {name: {G: paired.estimate([run["end"] for run in chosen(
        runs, task=baselines.TASKS[0], advantage=name, minibatches=4, rate=baselines.RATE, G=G, steps=60, kl="none")])
        for G in baselines.SIGN_SIZES} for name in baselines.SIGNS}  # fmt: skip
    for name, G in product(baselines.SIGNS, baselines.SIGN_SIZES):
        found[name][G]["gap"] = paired.difference(found[name][G]["seeds"], found["R − mean"][G]["seeds"])
    paired.holm([of[G]["gap"] for name, of in found.items() if name != "R − mean" for G in baselines.SIGN_SIZES])
    return found


def signs_table(found: dict) -> str:
    """`signs` as a table."""
    rows = [[name, *(cell(of[G]) if name == "R − mean" else change(of[G]["gap"]) for G in baselines.SIGN_SIZES)]
            for name, of in found.items()]  # fmt: skip
    return markdown(["A", *(f"G = {G}" for G in baselines.SIGN_SIZES)], rows)


def draw_learned(found: dict, path: Path) -> None:
    """The differences of `learned` with their intervals, a panel for each column."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    rows = [row for row in found if row[1] != "R − mean"]
    y = np.arange(len(rows))[::-1]
    for axis, column in zip(figure.subplots(1, len(COLUMNS), sharey=True), COLUMNS):
        for height, row in zip(y, rows):
            gap = found[row][column]["gap"]
            style = look("GRPO" if row[0] == 1 else "DAPO") | {"linestyle": "-", "marker": ""}
            axis.plot(100 * np.array(gap["interval"]), [height] * 2, **style)
            axis.plot(100 * gap["difference"], height, color=style["color"], marker="o")
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set_yticks(y, [name if updates == 1 else f"{updates} updates: {name}" for updates, name in rows])
        tidy(axis, column, "points above R − mean")
    figure.savefig(path, dpi=110)


def draw_budgets(found: dict[int, list[dict]], path: Path) -> None:
    """Accuracy over completions for each group size, and over the group size after each number of completions."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    over_completions, over_size = figure.subplots(1, 2)
    means = np.array([[number["mean"] for number in of] for of in found.values()])
    for i, (G, of) in enumerate(found.items()):
        interval = np.array([number["interval"] for number in of]).T
        draw_line(
            over_completions,
            np.array(baselines.BUDGETS) * BATCH,
            means[i],
            interval,
            f"G = {G}",
            look("", i, len(found)),
        )
    for i, batches in enumerate(baselines.BUDGETS):
        over_size.plot([*found], means[:, i], color="0.6")
        over_size.plot([*found][means[:, i].argmax()], means[:, i].max(), "o", color="black", markersize=5)
        over_size.annotate(f"{batches * BATCH:,}", ([*found][-1], means[-1, i]), (4, -3), textcoords="offset points",
                           fontsize=8)  # fmt: skip
    over_size.margins(x=0.16)
    doublings(over_completions, [*SHOWN], "Held-out accuracy", "completions sampled")
    doublings(over_size, [*found], "The same after so many completions; the best", "G, completions of a group")
    finish(figure, path)


def texts() -> dict[Path, dict[str, str]]:
    """The tables, by the page and the place where they stand."""
    runs, trials = load_runs(baselines.RESULTS), load_runs(baselines.COMMITTED["tuning"])
    tables = {"baselines": learned_table(learned(runs, trials)), "group_size": budgets_table(budgets(runs))}
    return {PAGE: tables | {"signs": signs_table(signs(runs))}}


def draw() -> None:
    """The figures of the page."""
    runs, trials = load_runs(baselines.RESULTS), load_runs(baselines.COMMITTED["tuning"])
    draw_learned(learned(runs, trials), FIGURES / "baselines.png")
    draw_budgets(budgets(runs), FIGURES / "group_size.png")
