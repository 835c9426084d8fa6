"""What the results of update_length.py say: lengths, predictions and shares, with intervals."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from lessons import identity
from lessons.experiments.update_length import EVERY_TOKEN, GROUP_SIZES, KS, RESULTS
from toy_env import UsageError


@dataclass(frozen=True)
class Estimate:
    """A number over all prompts and seeds of a stage, and its 95 % interval from resampling both."""

    value: float
    low: float
    high: float
    n: int  # prompts, each counted once a seed

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@cache
def resamplings(seeds: int, prompts: int) -> np.ndarray:
    """(2001, seeds * prompts): how often each prompt of each seed counts: once in the first row, and as often as its
    seed times as often as its prompt is drawn in the others. All seeds have the same prompts."""
    rng = np.random.default_rng(0)
    of_seed, of_prompt = (rng.multinomial(n, np.full(n, 1 / n), size=2000) for n in (seeds, prompts))
    times = (of_seed[:, :, None] * of_prompt[:, None, :]).reshape(2000, -1)
    return np.vstack([np.ones(seeds * prompts), times])


def estimate(statistic: Callable, *values: np.ndarray) -> Estimate:
    """statistic(times, *values) of values (seeds, prompts) each; a prompt where one of them is nan is left out.

    times: (2001, n) from `resamplings`, values: (n,). What a resampling without any prompt gives is left out as well.
    """
    there = np.isfinite(np.sum(np.broadcast_arrays(*values), axis=0))
    if not there.any():
        return Estimate(np.nan, np.nan, np.nan, 0)
    times = resamplings(*there.shape)[:, there.flatten()]
    with np.errstate(invalid="ignore", divide="ignore"):
        found = statistic(times, *(part[there].astype(float) for part in values))
    return Estimate(found[0], *np.nanquantile(found[1:], [0.025, 0.975]), int(there.sum()))


def mean(values: np.ndarray) -> Estimate:
    return share(values, np.ones(values.shape))


def geometric_mean(values: np.ndarray) -> Estimate:
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = mean(np.log(values))
    return Estimate(*np.exp([logs.value, logs.low, logs.high]), logs.n)


def share(part: np.ndarray, whole: np.ndarray) -> Estimate:
    """Sum of one over sum of the other."""
    return estimate(lambda times, part, whole: (times @ part) / (times @ whole), part, whole)


def median(values: np.ndarray) -> Estimate:
    def weighted(times: np.ndarray, values: np.ndarray) -> np.ndarray:
        order = values.argsort()
        below = times[:, order].cumsum(axis=1)
        found = values[order][(below >= below[:, -1:] / 2).argmax(axis=1)]
        return np.where(below[:, -1] > 0, found, np.nan)

    return estimate(weighted, values)


# ---------------------------------------------------------------------- one stage


def load(path: Path = RESULTS) -> dict[str, np.ndarray]:
    """The results, as `update_length.collect` gives them. Raises UsageError if there are none."""
    if not path.is_file():
        raise UsageError(f"there is no {path.name}; python lessons/experiments/update_length.py --publish makes it")
    return dict(np.load(path))


def stages_of(results: dict) -> list[tuple]:
    """Task, script, group size and step of all stages; the base model's script is "" and its step 0."""
    names = ("task", "script", "G", "step")
    return list(dict.fromkeys(zip(*(results[name].tolist() for name in names))))


def stage(results: dict, task: str, script: str = "", G: int = 0, step: int = 0) -> dict[str, np.ndarray]:
    """What was measured at one stage: (seeds, prompts, ...) each; with "n", the answers that p, v+, v- and |dm|^2 come
    from, and "p", the share of them that is right. Rows without a prompt are left out."""
    chosen = (results["task"] == task) & (results["script"] == script) & (results["G"] == G) & (results["step"] == step)
    found = {name: values[chosen] for name, values in results.items() if values.ndim > 1}
    there = np.isfinite(found["right"][0, :, 0])
    found = {name: values[:, there].astype(float) for name, values in found.items()}
    n = int(results["answers"]) // 2
    return found | {"n": n, "p": found["right"][:, :, 0] / n}


def measured(stage: dict, G: int, kind: int = EVERY_TOKEN) -> np.ndarray:
    """(seeds, prompts, ks): root mean square length of GRPO's update over groups of a prompt with each k of KS[G]."""
    return np.sqrt(stage["squared"][:, :, GROUP_SIZES.index(G), kind, : len(KS[G])])


def signal_and_noise(stage: dict, G: int, kind: int = EVERY_TOKEN) -> tuple[np.ndarray, np.ndarray]:
    """(seeds, prompts, ks) each: the two parts of the squared length by the formula, with v+, v- and |dm|^2 of the
    answers that no group is made of. nan where there is no such group."""
    k = np.array(KS[G])
    v_right, v_wrong, contrast = np.moveaxis(stage["parts"][:, :, kind, :, None], 2, 0)
    parts = identity.sigma(k, G) ** 2 * contrast, ((G - k) * v_right + k * v_wrong) / G**2
    return tuple(np.where(np.isfinite(measured(stage, G, kind)), part, np.nan) for part in parts)


def predicted(stage: dict, G: int, kind: int = EVERY_TOKEN) -> np.ndarray:
    """(seeds, prompts, ks): the root mean square length that the formula says."""
    return np.sqrt(np.maximum(sum(signal_and_noise(stage, G, kind)), 0))


def errors(stage: dict, G: int, kind: int = EVERY_TOKEN) -> list[Estimate]:
    """At each k of KS[G] the median over prompts of |predicted / measured - 1|."""
    off = np.abs(predicted(stage, G, kind) / measured(stage, G, kind) - 1)
    return [median(off[:, :, j]) for j in range(len(KS[G]))]


def lone(stage: dict, G: int, k: int, lengths: Callable = measured) -> Estimate:
    """The length with k right answers of G over that of a prompt's even split: the geometric mean over prompts."""
    of_k = lengths(stage, G)
    return geometric_mean(of_k[:, :, KS[G].index(k)] / of_k[:, :, KS[G].index(G // 2)])


def profile(lengths: np.ndarray, G: int) -> list[Estimate]:
    """At each k the geometric mean over prompts of the length over that of the prompt's own even split. lengths:
    (seeds, prompts, ks). Of the prompts that have every k."""
    there = np.isfinite(lengths).all(axis=2)
    even = np.where(there, lengths[:, :, KS[G].index(G // 2)], np.nan)
    return [geometric_mean(lengths[:, :, j] / even) for j in range(len(KS[G]))]


def lopsidedness(stage: dict, kind: int = EVERY_TOKEN) -> np.ndarray:
    """(seeds, prompts): v- / v+."""
    v_right, v_wrong, _ = np.moveaxis(stage["parts"][:, :, kind], 2, 0)
    with np.errstate(divide="ignore"):
        return v_wrong / v_right


def even_size(stage: dict, kind: int = EVERY_TOKEN) -> Estimate:
    """G at which an evenly split group has as much signal as noise: 2 (v+ + v-) / |dm|^2, each summed over prompts."""
    v_right, v_wrong, signal = np.moveaxis(stage["parts"][:, :, kind], 2, 0)
    return share(2 * (v_right + v_wrong), signal)


def frequencies(stage: dict, G: int) -> list[Estimate]:
    """Of all groups as they were drawn, the shares with k = 0, below G / 4, from there to 3 G / 4, above, and k = G."""
    return [mean(stage["drawn"][:, :, GROUP_SIZES.index(G), j]) for j in range(5)]


def silent(stage: dict, G: int) -> dict[str, Estimate]:
    """Share of silent groups: counted, predicted from the other answers without bias, and the difference."""
    drawn, right, n = stage["drawn"][:, :, GROUP_SIZES.index(G)], stage["right"][:, :, 0], stage["n"]
    counted, closed = drawn[:, :, 0] + drawn[:, :, 4], identity.silent_rate_unbiased(right.astype(int), n, G)
    found = {"counted": counted, "predicted": closed, "difference": counted - closed}
    return {name: mean(values) for name, values in found.items()}


def mass(stage: dict, script: str, G: int) -> dict[str, Estimate]:
    """Share of the summed lengths of all updates that prompts with p up to .1 or above .9 have: of |g| as the script's
    loss makes it, of sigma (Dr. GRPO: sigma^2), and of the closed form for the mean of that; and |g| less sigma."""
    first, p = {"grpo": 0, "dr_grpo": 2}[script], stage["p"]
    of_groups = stage["length"][:, :, GROUP_SIZES.index(G), first : first + 2]
    closed = p * (1 - p) * (1 - 1 / G) if script == "dr_grpo" else identity.expected_sigma(p, G)
    extreme = (p <= 0.1) | (p > 0.9)

    def difference(times: np.ndarray, a: np.ndarray, b: np.ndarray, extreme: np.ndarray) -> np.ndarray:
        return (times @ (a * extreme)) / (times @ a) - (times @ (b * extreme)) / (times @ b)

    quantities = {"|g|": of_groups[..., 0], "sigma": of_groups[..., 1], "closed form": closed}
    found = {name: share(values * extreme, values) for name, values in quantities.items()}
    return found | {"difference": estimate(difference, *np.moveaxis(of_groups, 2, 0), extreme)}


def variance_without_baseline(stage: dict, G: int = 8) -> Estimate:
    """Variance of an answer's gradient R s without a baseline, over that with the mean of the G - 1 others of its group
    (lesson 3; per answer, so that both have the mean grad p); each summed over prompts.

    From E[R s] = grad p and E[s] = 0: right answers have the mean score grad p / p, wrong ones -grad p / q, so that
    dm = grad p / (p q).
    """
    p = stage["p"]
    q, (v_right, v_wrong, signal) = 1 - p, np.moveaxis(stage["parts"][:, :, EVERY_TOKEN], 2, 0)
    right, wrong, squared = v_right + q**2 * signal, v_wrong + p**2 * signal, (p * q) ** 2 * signal
    with_p = p * q * (q * right + p * wrong) - squared
    price = (p * q * (p * right + q * wrong) + squared) / (G - 1)  # of not knowing p
    return share(p * right - squared, with_p + price)


def table(results: dict) -> str:
    """What the command prints: a line for each stage."""
    sizes = ", ".join(map(str, GROUP_SIZES))
    lines = [
        f"{'task, script, G, step':31} right   v-/v+, median (at most 1)   signal = noise at       error at G = {sizes}"
    ]
    for key in stages_of(results):
        of_stage = stage(results, *key)
        ratio = lopsidedness(of_stage)
        there = np.isfinite(ratio)
        off = [np.nanmedian([e.value for e in errors(of_stage, G)] or [np.nan]) for G in GROUP_SIZES]
        lines.append(
            f"{key[0]}, {key[1] or 'base'}, {key[2]}, {key[3]}".ljust(31)
            + f" {of_stage['p'].mean():5.2f}   {median(ratio)!s:>20} ({(ratio[there] <= 1).mean():4.0%})   "
            + f"{even_size(of_stage)!s:>20}   {'  '.join(f'{value:.1%}' for value in off)}"
        )
    return "\n".join(lines)
