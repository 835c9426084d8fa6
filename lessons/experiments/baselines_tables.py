"""What baselines.py found: its comparisons, and its tables and figures on the page of results.

What the pages say of them in words is asserted in tests/test_compare.py.
"""

from itertools import product
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from lessons.experiments import baselines, paired
from lessons.experiments.baselines import BUDGETS, GROUP_SIZES, SIGN_SIZES, TASKS
from lessons.experiments.compare_figures import doublings, draw_line, finish, look, tidy
from lessons.experiments.estimators import BATCH
from lessons.experiments.grid import cell, change, load_runs, markdown
from lessons.experiments.paired import LEVEL
from toy_env.plots import BLUE, GREY, ORANGE

PAGE, FIGURES = baselines.RESULTS.parent / "README.md", baselines.RESULTS.parent / "figures"
MEAN = "R − mean"  # what the others are compared with
COLUMNS = {  # of a table of differences: a task and an outcome
    f"{task}, {'at the end' if outcome == 'end' else 'over training'}": (task, outcome)
    for task, outcome in product(TASKS, baselines.OUTCOMES)
}
ROWS = {name: (1, name) for name in baselines.BASELINES}  # updates a batch, advantages
ROWS |= {f"4 updates: {name}": (4, name) for name in baselines.WITH_UPDATES}
SHOWN = (1024, 4096, 15_360, 61_440)  # completions, of BUDGETS


def chosen(runs: list[dict], **settings) -> list[dict]:
    """The runs with these settings, by seed."""
    found = [run for run in runs if all(run[name] == value for name, value in settings.items())]
    return sorted(found, key=lambda run: run["seed"])


def compared(found: dict[str, dict]) -> dict[str, dict]:
    """Numbers by row and column, each with its difference ("gap") from R − mean in the same column
    and with as many updates a batch. The differences are one family, corrected by Holm if scipy is
    there."""
    for row, of_row in found.items():
        for column, number in of_row.items():
            mean = found[f"4 updates: {MEAN}" if row.startswith("4") else MEAN][column]
            number["gap"] = paired.difference(number["seeds"], mean["seeds"])
    others = [of_row for row, of_row in found.items() if not row.endswith(MEAN)]
    if paired.stats:
        paired.holm([number["gap"] for of_row in others for number in of_row.values()])
    return found


def gaps_table(found: dict[str, dict]) -> str:
    """Differences from R − mean, accuracies in its own rows, and how many differences survive the
    correction."""
    rows = [[row, *(cell(number) if row.endswith(MEAN) else change(number["gap"]) for number in of_row.values())]
            for row, of_row in found.items()]  # fmt: skip
    tested = [number["gap"]["p_holm"] < LEVEL for row in found.values() for number in row.values()
              if "p_holm" in number["gap"]]  # fmt: skip
    note = f"{len([*found[MEAN].values()][0]['seeds'])} seeds; {sum(tested)} of {len(tested)} comparisons are bold."
    return f"{markdown(['A', *found[MEAN]], rows)}\n\n{note}"


def learned(runs: list[dict], trials: list[dict]) -> dict[str, dict]:
    """The accuracy of each of ROWS in each of COLUMNS, at the arm's best rate for the outcome."""
    found: dict[str, dict] = {row: {} for row in ROWS}
    for (row, (updates, name)), (column, (task, outcome)) in product(ROWS.items(), COLUMNS.items()):
        arm = {
            "task": task,
            "advantage": name,
            "minibatches": updates,
            "G": 8,
            "steps": 60,
            "kl": "none",
        }
        rate = baselines.best_rate(chosen(trials, **arm), outcome)
        found[row][column] = paired.estimate(
            [run[outcome] for run in chosen(runs, **arm, rate=rate)]
        ) | {"rate": rate}
    return compared(found)


def signs(runs: list[dict]) -> dict[str, dict]:
    """The accuracy at the end by advantages and group size, with four updates a batch."""
    arm = {"task": TASKS[0], "minibatches": 4, "rate": baselines.RATE, "steps": 60, "kl": "none"}
    return compared({
        name: {f"G = {G}": paired.estimate([run["end"] for run in chosen(runs, **arm, advantage=name, G=G)])
               for G in SIGN_SIZES} for name in baselines.SIGNS
    })  # fmt: skip


def budgets(runs: list[dict]) -> dict[int, list[dict]]:
    """By group size, the accuracy after each of BUDGETS: mean and interval over seeds."""
    of_size = {G: chosen(runs, steps=BUDGETS[-1], G=G) for G in GROUP_SIZES}
    return {G: [paired.estimate([run["held_out"][i] for run in found]) for i in range(len(BUDGETS))]
            for G, found in of_size.items()}  # fmt: skip


def budgets_table(found: dict[int, list[dict]]) -> str:
    """`budgets` as a table; in each column the best is in italics."""
    columns = [BUDGETS.index(completions // BATCH) for completions in SHOWN]
    best = {i: max(found, key=lambda G: found[G][i]["mean"]) for i in columns}
    rows = [[str(G), *(f"*{cell(of_size[i])}*" if best[i] == G else cell(of_size[i]) for i in columns)]
            for G, of_size in found.items()]  # fmt: skip
    return markdown(["G", *(f"after {completions:,}" for completions in SHOWN)], rows)


def draw_learned(found: dict[str, dict], path: Path) -> None:
    """The differences of `learned` with their intervals, a panel for each column."""
    figure, rows = (
        Figure(figsize=(12, 3.6), layout="constrained"),
        [row for row in found if not row.endswith(MEAN)],
    )
    y = np.arange(len(rows))[::-1]
    for axis, column in zip(figure.subplots(1, len(COLUMNS), sharey=True), COLUMNS):
        for height, row in zip(y, rows):
            gap, color = found[row][column]["gap"], BLUE if ROWS[row][0] == 1 else ORANGE
            axis.plot(100 * np.array(gap["interval"]), [height] * 2, color=color, linewidth=1.5)
            axis.plot(
                100 * gap["difference"],
                height,
                "o" if ROWS[row][0] == 1 else "s",
                color=color,
                markersize=5,
            )
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set_yticks(y, rows)
        tidy(axis, column, "points above R − mean")
    figure.savefig(path, dpi=110)


def draw_budgets(found: dict[int, list[dict]], path: Path) -> None:
    """Accuracy over completions for each group size, and over the group size after each number of
    completions."""
    figure, sizes, x = (
        Figure(figsize=(10, 4), layout="constrained"),
        [*found],
        np.array(BUDGETS) * BATCH,
    )
    over_completions, over_size = figure.subplots(1, 2)
    means = np.array([[number["mean"] for number in of_size] for of_size in found.values()])
    for i, (G, of_size) in enumerate(found.items()):
        interval = np.array([number["interval"] for number in of_size]).T
        draw_line(over_completions, x, means[i], interval, f"G = {G}", look("", i, len(found)))
    for i, completions in enumerate(x):
        over_size.plot(sizes, means[:, i], color=GREY, linewidth=1)
        over_size.plot(
            sizes[means[:, i].argmax()], means[:, i].max(), "o", color="black", markersize=5
        )
        name, start = (
            "" if 8192 < completions < x[-1] else f"{completions:,}",
            (2, means[0, i]),
        )  # else on each other
        over_size.annotate(
            name, start, (-5, -3), textcoords="offset points", fontsize=8, ha="right"
        )
    over_size.set_xlim(1.2, 80)
    doublings(over_completions, [*SHOWN], "Held-out accuracy", "completions sampled")
    doublings(
        over_size,
        sizes,
        "The same after so many completions; dot: the best",
        "G, completions of a group",
    )
    finish(figure, path)


def found() -> tuple[dict, dict, dict]:
    """`learned`, `signs` and `budgets` of the committed runs."""
    runs, trials = load_runs(baselines.RESULTS), load_runs(baselines.TUNED)
    return learned(runs, trials), signs(runs), budgets(runs)


def texts() -> dict[Path, dict[str, str]]:
    """The tables, by the page and the place where they stand."""
    of_baselines, _, of_sizes = found()
    return {PAGE: {"baselines": gaps_table(of_baselines), "group_size": budgets_table(of_sizes)}}


def draw() -> None:
    """The figures of the page."""
    of_baselines, _, of_sizes = found()
    draw_learned(of_baselines, FIGURES / "baselines.png")
    draw_budgets(of_sizes, FIGURES / "group_size.png")
