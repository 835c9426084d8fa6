"""What a log shows, by the tests of RULES.md, in their order."""

from collections.abc import Iterator, Sequence

import numpy as np

from lessons.clinic import signs


def trend(values: np.ndarray) -> str:
    """Name the trend of a column. A change between tenths counts if it is four standard errors of
    the rows' own noise, which the differences of neighbours show."""
    if len(values) < 10:
        return "too few rows"
    n = max(len(values) // 10, 3)
    least = 5 * np.abs(np.diff(values)).mean() / np.sqrt(n)  # 5 is 4 sqrt(pi / 2)
    means = np.convolve(values, np.ones(n) / n, "valid")
    rise, fall = means.max() - means[[0, -1]]
    if rise > least and fall > max(least, rise / 2):
        return "rises and then falls"
    if abs(rise - fall) > least:
        return "rises" if rise > fall else "falls"
    return "at the top" if 0.95 < means[0] <= 1 else "flat"


def holds(test: str, rows: Sequence[dict], left: dict) -> bool:
    """Whether a test of RULES.md holds, such as "first kl > 10", "not trend reward = rises". Of a
    metric that is not logged, nan, none does. left: what leaves the band of healthy runs, {} where
    there is none."""
    if test.startswith("not "):
        return not holds(test[4:], rows, left)
    fact, name, relation, bound = test.split(maxsplit=3)
    over, _, under = name.partition("/")  # a quotient, such as loss/sigma
    values = [row[over] / (row.get(under) or 1) for row in rows if over in row]
    values = np.array(values or [np.nan])
    n = max(len(values) // 10, 3)
    step, side = left.get(name, (0, ""))
    facts = {
        "first": values[0],
        "early": values[:n].mean(),
        "late": values[-n:].mean(),
        "growth": values[-n:].mean() / max(values[0], 1e-9),
        "max": values.max(),
        "trend": trend(values),
        side: step,
    }
    value = facts.get(fact, np.nan)
    if relation == "=":
        return value == bound
    return value <= float(bound) if relation == "<=" else value > float(bound)


def findings(rows: Sequence[dict], left: dict) -> Iterator[tuple[str, str]]:
    """What is seen, as classes and sentences; the first class is the cause."""
    for row in rows:
        bad = [name for name in signs.FLOORS if not np.isfinite(row.get(name, 0))]
        if bad:
            yield "numerics", f"{', '.join(bad)}: not a number from step {row['step']:.0f}"
            return
    for kind, sign, tests in signs.table(3):
        if all(holds(test, rows, left) for test in tests.split("`, `")):
            yield kind.strip("*"), sign
            if kind.startswith("**"):
                return
