"""What a log shows, by the tests of RULES.md, in their order."""

import re
from collections.abc import Sequence

import numpy as np

from lessons.clinic import signs

LEAST = 10  # rows; fewer say nothing of a trend
FEATURES = {
    "first": lambda x: x[0],
    "early": lambda x: x[: tenth(x)].mean(),
    "late": lambda x: x[-tenth(x) :].mean(),
    "growth": lambda x: x[-tenth(x) :].mean() / max(x[0], 1e-9),
    "min": np.min,
    "max": np.max,
}


def tenth(values: np.ndarray) -> int:
    return max(len(values) // 10, 3)


def trend(values: np.ndarray) -> str:
    """Name the trend of a column. A change between tenths counts if it is four standard errors of
    the rows' own noise, which the differences of neighbours show."""
    if len(values) < LEAST:
        return "too few rows"
    noise, n = np.abs(np.diff(values)).mean() * np.sqrt(np.pi) / 2, tenth(values)
    least = 4 * noise * np.sqrt(2 / n)
    means = np.convolve(values, np.ones(n) / n, "valid")
    start, end, top = means[0], means[-1], means.max()
    if top > start + least and end < top - max(least, (top - start) / 2):
        return "rises and then falls"
    if abs(end - start) > least:
        return "rises" if end > start else "falls"
    return "at the top" if 0.95 < start <= 1 else "flat"


def column(rows: Sequence[dict], name: str) -> np.ndarray:
    """The numbers of a metric. One nan, for which no comparison holds, if there are none."""
    if name == "gap":  # of the reward to held-out accuracy
        return column(rows, "reward")[-1:] - column(rows, "held_out")[-1:]
    name, _, divisor = name.partition("/")
    values = [row[name] / (row.get(divisor) or 1) for row in rows if row.get(name) is not None]
    return np.array(values or [np.nan])


def holds(test: str, rows: Sequence[dict], left: dict) -> bool:
    """Whether a test of RULES.md holds, such as "first kl > 10", "reward rises", "low kl 30"."""
    first, name, *rest = test.split()
    if first == "not":
        return not holds(test[4:], rows, left)
    if first in ("low", "high"):
        step, side = left.get(name, (np.inf, 0))
        return step <= int(rest[0]) and (side > 0) == (first == "high")
    if first in FEATURES:
        value, bound = FEATURES[first](column(rows, name)), float(rest[1])
        return bool(value > bound if rest[0] == ">" else value < bound)
    return trend(column(rows, first)) == test.removeprefix(f"{first} ")


def findings(rows: Sequence[dict], left: dict) -> list[tuple[str, str]]:
    """What is seen, as classes and sentences, the cause first. left: the metrics that leave the
    band of healthy runs, {} where there is none."""
    bad, seen = {}, []
    for row in rows:
        for name in signs.FLOORS:
            if not np.isfinite(row.get(name) or 0):
                bad.setdefault(name, f"{name} is not a number from step {row['step']:.0f}")
    if bad:
        return [("numerics", ", ".join(bad.values()))]
    for line in (signs.HERE / "RULES.md").read_text("utf-8").splitlines():
        _, kind, sign, tests, *_ = [cell.strip() for cell in f"{line}||||".split("|")]
        tests = re.findall("`(.*?)`", tests)
        if tests and all(holds(test, rows, left) for test in tests):
            seen.append((kind.strip("*"), sign))
            if kind.startswith("**"):
                break
    return seen
