"""The results of baselines.py: its comparisons, and its tables on the page of results.

tests/lessons/test_compare.py holds the text of the pages to these numbers.
"""

from itertools import product
from pathlib import Path

from lessons.experiments import baselines, shrinkage
from lessons.experiments.baselines import BUDGETS, GROUP_SIZES, TASKS
from lessons.experiments.compare_tables import README
from lessons.experiments.estimators import BATCH
from lessons.experiments.harness import grid, paired
from lessons.experiments.harness.grid import cell, load_runs, markdown, select

MEAN = "R − mean"  # what the others are compared with
COLUMNS = {  # by heading: a task and an outcome
    f"{task}, {'at the end' if outcome == 'end' else 'over training'}": (task, outcome)
    for task, outcome in product(TASKS, baselines.OUTCOMES)
}


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
    rows = {G: [str(G), *map(cell, numbers)] for G, numbers in table.items()}
    for i in range(len(BUDGETS)):
        best = max(table, key=lambda G: table[G][i]["mean"])
        rows[best][i + 1] = f"*{rows[best][i + 1]}*"
    return markdown(["G", *(f"after {BATCH * n:,}" for n in BUDGETS)], [*rows.values()])


def found() -> tuple[dict, dict]:
    """`learned` and `budgets` of the committed runs."""
    runs, trials = load_runs(baselines.RESULTS), load_runs(baselines.TUNED)
    return learned(runs, trials), budgets(runs)


def texts() -> dict[Path, dict[str, str]]:
    """The tables, by the page and the place where they stand."""
    table, of_sizes = found()
    gaps = [number["gap"] for row in table if row != MEAN for number in table[row].values()]
    seeds = table[MEAN]["arithmetic, at the end"]["seeds"]
    of_knob = shrinkage.compared(load_runs(shrinkage.RESULTS))
    tables = {
        "baselines": f"{grid.gaps_table('A', table, MEAN)}\n\n{grid.note(seeds, gaps)}",
        "group_size": budgets_table(of_sizes),
        "shrinkage": grid.gaps_table("A = R − b", of_knob, shrinkage.ARMS[0]),
    }
    return {README: tables}
