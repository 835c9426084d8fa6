"""Statistics of a few seeds: t intervals, paired differences, Holm's correction. Most need the extra `stats`."""

from itertools import count

import numpy as np

from toy_env import UsageError

try:
    from scipy import stats
    from statsmodels.stats.multitest import multipletests
    from statsmodels.stats.power import TTestPower
except ImportError:  # the lessons do without
    stats = None

POWER, LEVEL = 0.8, 0.05


def require() -> None:
    """Raises UsageError if scipy or statsmodels is not there."""
    if stats is None:
        raise UsageError("the statistics need scipy and statsmodels; pip install -e '.[stats]'")


def estimate(values: list[float | None]) -> dict:
    """Mean over seeds, its 95 % t interval, and the values themselves; a seed without a value (None) counts in neither.
    Equal values, as of what is so by construction, have no interval (None), nor has a single one."""
    found = np.array([value for value in values if value is not None])
    interval = None
    if len(found) > 1 and np.ptp(found) > 1e-12:
        interval = [float(end) for end in stats.ttest_1samp(found, 0).confidence_interval(0.95)]
    return {"mean": float(found.mean()) if len(found) else None, "interval": interval, "seeds": values}


def band(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95 % t interval of the mean over axis 0, the seeds: (n, ...) to two arrays (...)."""
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values, axis=0)
    return values.mean(axis=0) - half, values.mean(axis=0) + half


def difference(values: list[float | None], others: list[float | None]) -> dict:
    """Of two arms, value by seed: the mean difference, its 95 % t interval, its standard deviation over seeds and its p
    value (paired t test), from the `pairs` seeds that have both. With fewer than two, or equal differences, there is no
    interval and no standard deviation (None), and p is 1."""
    pairs = np.array([(a, b) for a, b in zip(values, others) if a is not None and b is not None]).reshape(-1, 2)
    gaps = pairs[:, 0] - pairs[:, 1]
    found = {"difference": float(gaps.mean()) if len(gaps) else None, "interval": None, "sd": None, "p": 1.0}
    if len(gaps) > 1 and np.ptp(gaps) > 1e-12:
        test = stats.ttest_rel(*pairs.T)
        found |= {"interval": [float(end) for end in test.confidence_interval(0.95)], "p": float(test.pvalue)}
        found["sd"] = float(gaps.std(ddof=1))
    return found | {"pairs": len(gaps)}


def holm(family: list[dict]) -> None:
    """Put into each comparison of a family its p value after Holm's correction (1979), `p_holm`."""
    corrected = multipletests([comparison["p"] for comparison in family], method="holm")[1]
    for comparison, p in zip(family, corrected):
        comparison["p_holm"] = float(p)


def seeds_needed(sd: float, size: float) -> int:
    """Pairs, at least 2, at which a difference `size`, whose standard deviation over seeds is `sd`, is seen in 80 % of
    repetitions (paired t test, two-sided, level .05, no correction for many comparisons)."""
    return next(n for n in count(2) if TTestPower().power(size / sd, n, LEVEL) >= POWER)


def means_over_both(rates: np.ndarray, draws: int = 2000) -> np.ndarray:
    """(draws,): means of (seeds, problems), both drawn anew with replacement (bootstrap)."""
    rng, (seeds, problems) = np.random.default_rng(0), rates.shape
    return np.array([
        rates[rng.integers(seeds, size=seeds)][:, rng.integers(problems, size=problems)].mean() for _ in range(draws)
    ])  # fmt: skip


def interval_over_both(rates: np.ndarray) -> list[float]:
    """95 % percentile bootstrap interval of the mean of (seeds, problems), both drawn anew with replacement."""
    return np.percentile(means_over_both(rates), [2.5, 97.5]).tolist()


def difference_over_both(gaps: np.ndarray) -> dict:
    """Like `difference`, of differences (seeds, problems): the interval and p value of the bootstrap over both."""
    means = means_over_both(gaps)
    beyond = min((means <= 0).sum(), (means >= 0).sum())
    return {
        "difference": float(gaps.mean()),
        "interval": np.percentile(means, [2.5, 97.5]).tolist(),
        "p": min(1.0, 2 * (beyond + 1) / (len(means) + 1)),
        "pairs": len(gaps),
    }
