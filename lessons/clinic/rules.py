"""What a log shows, by the tests of RULES.md, in their order."""

from collections.abc import Sequence

import numpy as np

from lessons.clinic import signs

LEAST = 10  # rows; fewer say nothing of a trend


def trend(values: np.ndarray) -> str:
    """Name the trend of a column. A change between tenths counts if it is four standard errors of
    the rows' own noise, which the differences of neighbours show."""
    if len(values) < LEAST:
        return "too few rows"
    noise, n = np.abs(np.diff(values)).mean() * np.sqrt(np.pi) / 2, max(len(values) // 10, 3)
    least = 4 * noise * np.sqrt(2 / n)
    means = np.convolve(values, np.ones(n) / n, "valid")
    start, end, top = means[0], means[-1], means.max()
    if top > start + least and end < top - max(least, (top - start) / 2):
        return "rises and then falls"
    if abs(end - start) > least:
        return "rises" if end > start else "falls"
    return "at the top" if 0.95 < start <= 1 else "flat"


def column(rows: Sequence[dict], name: str) -> np.ndarray:
    """The numbers of a metric, or of a quotient of two. One nan, for which no comparison holds, if
    there are none."""
    if name == "gap":  # of the reward to held-out accuracy
        return column(rows, "reward")[-1:] - column(rows, "held_out")[-1:]
    name, _, divisor = name.partition("/")
    values = [row[name] / (row.get(divisor) or 1) for row in rows if name in row]
    return np.array(values or [np.nan])


def facts(values: np.ndarray, step: float, side: int) -> dict:
    """What tests speak of: see RULES.md. A metric leaves the band at a step, on a side."""
    n = max(len(values) // 10, 3)
    late = values[-n:].mean()
    return {
        "first": values[0],
        "early": values[:n].mean(),
        "late": late,
        "growth": late / max(values[0], 1e-9),
        "min": values.min(),
        "max": values.max(),
        "trend": trend(values),
        "high": step if side > 0 else np.inf,
        "low": step if side < 0 else np.inf,
    }


def holds(test: str, rows: Sequence[dict], left: dict) -> bool:
    """Whether a test of RULES.md holds, such as "first kl > 10", "not trend reward = rises"."""
    if test.startswith("not "):
        return not holds(test[4:], rows, left)
    fact, name, relation, bound = test.split(maxsplit=3)
    value = facts(column(rows, name), *left.get(name, (np.inf, 0)))[fact]
    if relation == "=":
        return value == bound
    return value <= float(bound) if relation == "<=" else value > float(bound)


def findings(rows: Sequence[dict], left: dict) -> list[tuple[str, str]]:
    """What is seen, as classes and sentences; the first class is the cause. left: the metrics that
    leave the band of healthy runs, {} where there is none."""
    for row in rows:
        bad = [name for name in signs.FLOORS if not np.isfinite(row.get(name, 0))]
        if bad:
            return [("numerics", f"{', '.join(bad)}: not a number from step {row['step']:.0f}")]
    seen = []
    for kind, sign, tests in signs.table(3):
        if all(holds(test, rows, left) for test in tests.split("`, `")):
            seen.append((kind.strip("*"), sign))
            if kind.startswith("**"):
                break
    return seen
