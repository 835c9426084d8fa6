"""Statistics over seeds and problems: t intervals, paired differences, Holm's correction, and the
bootstrap.

P values and their correction need the extra `stats`.
"""

from math import ceil

import numpy as np

try:
    from scipy import stats
    from statsmodels.stats.multitest import multipletests
except ImportError:  # the lessons do without them
    stats = None

LEVEL = 0.05
Z_975, Z_80 = 1.959964, 0.841621  # quantiles of the normal distribution
DRAWS = 2000  # samples of the bootstrap


def require() -> None:
    """Raises SystemExit if scipy or statsmodels is missing."""
    if stats is None:
        raise SystemExit("the statistics need scipy and statsmodels; pip install -e '.[stats]'")


# ---------------------------------------------------------------------- over seeds


def t_quantile(degrees: int) -> float:
    """The .975 quantile of Student's t with some degrees of freedom. t is sqrt(degrees) tan(angle),
    where the density of the angle is proportional to cos(angle)^(degrees - 1)."""
    edges = np.linspace(0, np.pi / 2, 100_001)
    shares = np.cumsum(np.cos((edges[1:] + edges[:-1]) / 2) ** (degrees - 1))
    angle = np.interp(0.95 * shares[-1], shares, edges[1:])
    return float(np.sqrt(degrees) * np.tan(angle))


def t_interval(values: np.ndarray) -> np.ndarray:
    """(2, ...): the 95 % t interval of the mean over axis 0, the seeds, of values (n, ...)."""
    n = len(values)
    half = t_quantile(n - 1) * values.std(axis=0, ddof=1) / np.sqrt(n)
    return np.stack([values.mean(axis=0) - half, values.mean(axis=0) + half])


def estimate(values: list[float]) -> dict:
    """Mean over seeds, its 95 % t interval, and the values themselves. There is no interval (None)
    for a single value, nor for equal ones, which are equal by construction."""
    numbers = np.array(values)
    interval = t_interval(numbers).tolist() if np.ptp(numbers) > 1e-12 else None
    return {"mean": float(numbers.mean()), "interval": interval, "seeds": values}


def difference(values: list[float], others: list[float]) -> dict:
    """Two arms compared seed by seed: the mean difference, its 95 % t interval, its standard
    deviation over seeds and its p value (paired t test, None without scipy). If there is one seed,
    or if the differences are equal, there is no interval and no standard deviation (None), and p is
    1."""
    gaps = np.array(values) - np.array(others)
    result = {"difference": float(gaps.mean()), "interval": None, "sd": None, "p": 1.0}
    if np.ptp(gaps) > 1e-12:
        result |= {"interval": t_interval(gaps).tolist(), "sd": float(gaps.std(ddof=1))}
        result["p"] = float(stats.ttest_rel(values, others).pvalue) if stats else None
    return result


def holm(family: list[dict]) -> None:
    """Put into each comparison of a family its p value after Holm's correction (1979), `p_holm`."""
    corrected = multipletests([comparison["p"] for comparison in family], method="holm")[1]
    for comparison, p in zip(family, corrected):
        comparison["p_holm"] = float(p)


def seeds_needed(sd: float, size: float) -> int:
    """The number of pairs at which a difference `size`, whose standard deviation over seeds is
    `sd`, is seen in 80 % of repetitions (paired t test, two-sided, level .05, no correction for
    many comparisons). Guenther's approximation (1981), which may be one pair off."""
    return max(3, ceil(((Z_975 + Z_80) * sd / size) ** 2 + Z_975**2 / 2))


# ---------------------------------------------------------------------- over seeds and problems


def bootstrap_means(rates: np.ndarray) -> np.ndarray:
    """(DRAWS,): means of rates (seeds, problems) whose seeds and problems are both drawn with
    replacement."""
    rng, (seeds, problems) = np.random.default_rng(0), rates.shape
    means = []
    for _ in range(DRAWS):
        of_seeds = rates[rng.integers(seeds, size=seeds)]
        means.append(of_seeds[:, rng.integers(problems, size=problems)].mean())
    return np.array(means)


def interval_over_both(rates: np.ndarray) -> list[float]:
    """95 % bootstrap interval of the mean of rates (seeds, problems)."""
    return np.percentile(bootstrap_means(rates), [2.5, 97.5]).tolist()


def difference_over_both(gaps: np.ndarray) -> dict:
    """Like `difference`, from differences (seeds, problems): interval and p value are those of the
    bootstrap."""
    means = bootstrap_means(gaps)
    beyond = min((means <= 0).sum(), (means >= 0).sum())
    return {
        "difference": float(gaps.mean()),
        "interval": np.percentile(means, [2.5, 97.5]).tolist(),
        "p": min(1.0, 2 * (beyond + 1) / (len(means) + 1)),
    }
