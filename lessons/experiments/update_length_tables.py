"""What the results of update_length.py say: lengths, predictions and shares, with intervals."""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np

from lessons import identity
from lessons.experiments.paired import Estimate, geometric_mean, mean, median, share
from toy_env import UsageError

RESULTS = Path(__file__).parent / "update_length.npz"
GROUP_SIZES = (4, 8, 16, 32, 64)
KS = {G: sorted({k for j in range(6) if 2**j < G for k in (2**j, G - 2**j)}) for G in GROUP_SIZES}
EVERY_TOKEN, MEAN = 0, 1  # a score sums the gradients of its tokens (Dr. GRPO), or averages them (GRPO's loss)
ANY = -1  # step

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
    """The measurements of one stage, (seeds, prompts, ...) each; with "n", the number of answers that p, v+, v- and
    |dm|^2 come from, and "p", the share of right ones among them. Rows without a prompt are left out."""
    chosen = (results["task"] == task) & (results["script"] == script) & (results["G"] == G) & (results["step"] == step)
    arrays = {name: values[chosen] for name, values in results.items() if values.ndim > 1}
    is_prompt = np.isfinite(arrays["right"][0, :, 0])
    arrays = {name: values[:, is_prompt].astype(float) for name, values in arrays.items()}
    n = int(results["answers"]) // 2
    return arrays | {"n": n, "p": arrays["right"][:, :, 0] / n}


def measured(stage: dict, G: int, kind: int = EVERY_TOKEN) -> np.ndarray:
    """(seeds, prompts, ks): root mean square length of GRPO's update over groups of a prompt with each k of KS[G]."""
    return np.sqrt(stage["squared"][:, :, GROUP_SIZES.index(G), kind, : len(KS[G])])


def signal_and_noise(stage: dict, G: int, kind: int = EVERY_TOKEN) -> tuple[np.ndarray, np.ndarray]:
    """(seeds, prompts, ks) each: the two parts of the squared length by the formula, with v+, v- and |dm|^2 from the
    answers that form no groups. nan where there is no such group."""
    k = np.array(KS[G])
    v_right, v_wrong, contrast = np.moveaxis(stage["parts"][:, :, kind, :, None], 2, 0)
    parts = identity.sigma(k, G) ** 2 * contrast, ((G - k) * v_right + k * v_wrong) / G**2
    return tuple(np.where(np.isfinite(measured(stage, G, kind)), part, np.nan) for part in parts)


def predicted(stage: dict, G: int, kind: int = EVERY_TOKEN) -> np.ndarray:
    """(seeds, prompts, ks): the root mean square length by the formula."""
    return np.sqrt(np.maximum(sum(signal_and_noise(stage, G, kind)), 0))


def errors(stage: dict, G: int, kind: int = EVERY_TOKEN) -> list[Estimate]:
    """At each k of KS[G] the median over prompts of |predicted / measured - 1|."""
    off = np.abs(predicted(stage, G, kind) / measured(stage, G, kind) - 1)
    return [median(off[:, :, j]) for j in range(len(KS[G]))]


def error_by_count(stage: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(n,) each, over prompts, seeds and group sizes: the number of answers of the rarer kind that the prediction rests
    on, the mean over k of |predicted / measured - 1|, and the mean of predicted / measured."""
    rarer, parts = np.minimum(stage["right"][:, :, 0], stage["n"] - stage["right"][:, :, 0]), []
    for G in GROUP_SIZES:
        ratio = predicted(stage, G) / measured(stage, G)
        known = np.isfinite(ratio).any(axis=2)
        parts.append((rarer[known], np.nanmean(abs(ratio[known] - 1), axis=1), np.nanmean(ratio[known], axis=1)))
    return tuple(np.concatenate(part) for part in zip(*parts))


def lone(stage: dict, G: int, k: int, lengths: Callable = measured) -> Estimate:
    """The length with k right answers of G over that of a prompt's even split: the geometric mean over prompts."""
    of_k = lengths(stage, G)
    return geometric_mean(of_k[:, :, KS[G].index(k)] / of_k[:, :, KS[G].index(G // 2)])


def profile(lengths: np.ndarray, G: int) -> list[Estimate]:
    """At each k the length over that of the prompt's own even split: the geometric mean over the prompts that have all
    k. lengths: (seeds, prompts, ks)."""
    has_every_k = np.isfinite(lengths).all(axis=2)
    even = np.where(has_every_k, lengths[:, :, KS[G].index(G // 2)], np.nan)
    return [geometric_mean(lengths[:, :, j] / even) for j in range(len(KS[G]))]


def lopsidedness(stage: dict, kind: int = EVERY_TOKEN) -> np.ndarray:
    """(seeds, prompts): v- / v+; inf where all right answers are the same."""
    v_right, v_wrong, _ = np.moveaxis(stage["parts"][:, :, kind], 2, 0)
    with np.errstate(divide="ignore"):
        return v_wrong / v_right


def even_size(stage: dict, kind: int = EVERY_TOKEN) -> Estimate:
    """G at which an evenly split group has as much signal as noise: 2 (v+ + v-) / |dm|^2, each summed over prompts.

    nan if the signal is too small beside the noise of its estimate: if the interval of |dm|^2 holds 0.
    """
    v_right, v_wrong, signal = np.moveaxis(stage["parts"][:, :, kind], 2, 0)
    is_known = mean(signal).low > 0
    return share(2 * (v_right + v_wrong), signal if is_known else np.nan * signal)


def frequencies(stage: dict, G: int) -> list[Estimate]:
    """Of all groups as they were drawn, the shares with k = 0, below G / 4, from there to 3 G / 4, above, and k = G."""
    return [mean(stage["drawn"][:, :, GROUP_SIZES.index(G), j]) for j in range(5)]


def silent(stage: dict, G: int) -> dict[str, Estimate]:
    """Share of silent groups: counted, predicted from the other answers without bias, and the difference."""
    drawn, right, n = stage["drawn"][:, :, GROUP_SIZES.index(G)], stage["right"][:, :, 0], stage["n"]
    counted, closed = drawn[:, :, 0] + drawn[:, :, 4], identity.silent_rate_unbiased(right.astype(int), n, G)
    shares = {"counted": counted, "predicted": closed, "difference": counted - closed}
    return {name: mean(values) for name, values in shares.items()}


def mass(stage: dict, script: str, G: int) -> dict[str, Estimate]:
    """The share that prompts with p up to .1 or above .9 have in the sum over all updates: of |g| as the script's loss
    makes it, of sigma (Dr. GRPO: sigma^2), and of the closed form for the mean of sigma; and |g| less sigma."""
    first, p = {"grpo": 0, "dr_grpo": 2}[script], stage["p"]
    of_groups = stage["length"][:, :, GROUP_SIZES.index(G), first : first + 2]
    closed = p * (1 - p) * (1 - 1 / G) if script == "dr_grpo" else identity.expected_sigma(p, G)
    extreme = (p <= 0.1) | (p > 0.9)

    def difference(times: np.ndarray, a: np.ndarray, b: np.ndarray, extreme: np.ndarray) -> np.ndarray:
        return (times @ (a * extreme)) / (times @ a) - (times @ (b * extreme)) / (times @ b)

    quantities = {"|g|": of_groups[..., 0], "sigma": of_groups[..., 1], "closed form": closed}
    shares = {name: share(values * extreme, values) for name, values in quantities.items()}
    return shares | {"difference": Estimate(difference, *np.moveaxis(of_groups, 2, 0), extreme)}


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


def profiles_apart(stages: dict, task: str) -> tuple[float, float]:
    """Largest difference over k between two profiles at G = 8 of one task, means over scripts: of policies trained at 4
    and at 64, at step 60; and of the same policies at steps 20 and 60."""

    def apart(one: tuple, other: tuple) -> float:
        values = (np.array([e.value for e in profile(measured(stages[key], 8), 8)]) for key in (one, other))
        return np.abs(np.subtract(*values)).max()

    runs = sorted({key[:2] for key in stages if key[0] == task and key[1]})
    by_size = [apart((*run, 4, 60), (*run, 64, 60)) for run in runs]
    return np.mean(by_size), np.mean([apart((*run, G, 20), (*run, G, 60)) for run in runs for G in (4, 64)])


def seeds_apart(stages: dict) -> list[float]:
    """The same difference between two seeds of one run, at step 60: of every pair of every run."""
    gaps = []
    for lengths in (measured(stage, 8) for key, stage in stages.items() if key[3] == 60):
        profiles = [np.array([e.value for e in profile(lengths[[i]], 8)]) for i in range(len(lengths))]
        gaps += [np.nanmax(abs(a - b)) for a, b in combinations(profiles, 2) if np.isfinite(a - b).any()]
    return gaps


def verdicts(stages: dict) -> dict[str, tuple[str, str]]:
    """The outcome of each of PREDICTIONS: a word, and what was measured. stages: by task, script, G and step."""

    def at(task: str, step: int, number: Callable) -> list[float]:
        numbers = [number(stage) for (t, _, _, s), stage in stages.items() if t == task and step in (s, ANY)]
        return [getattr(number, "value", number) for number in numbers]

    def span(values: list[float], form: str = ".2f") -> str:
        return f"{np.nanmin(values):{form}} to {np.nanmax(values):{form}}"

    def above_1(stage: dict) -> float:
        ratio = lopsidedness(stage)
        return (ratio[~np.isnan(ratio)] > 1).mean()

    def extra_mass(task: str, step: int) -> list[float]:
        return [
            mass(stage, script, G)["difference"].value
            for (t, of_run, _, s), stage in stages.items() if t == task and step in (s, ANY)
            for script in ([of_run] if of_run else ("grpo", "dr_grpo")) for G in GROUP_SIZES
        ]  # fmt: skip

    ratio = at("arithmetic", ANY, lambda stage: median(lopsidedness(stage)))
    of_4, of_64 = (at("arithmetic", ANY, lambda stage, G=G: lone(stage, G, G - 1)) for G in (4, 64))
    right, wrong = (at("expressions", 0, lambda stage, k=k: lone(stage, 4, k))[0] for k in (1, 3))
    below, later = 1 - at("expressions", 0, above_1)[0], at("expressions", 60, above_1)
    off = max(e.value for stage in stages.values() for G in GROUP_SIZES for e in errors(stage, G) if e.n)
    even = at("arithmetic", ANY, even_size) + at("expressions", ANY, even_size)
    apart = [profiles_apart(stages, task) for task in ("arithmetic", "expressions")]
    silence = 100 * max(abs(silent(stage, G)["difference"].value) for stage in stages.values() for G in GROUP_SIZES)
    more, before = extra_mass("arithmetic", ANY), extra_mass("expressions", 0)
    outcomes = {
        "formula": (off < 0.1, f"the largest median is {off:.0%}"),
        "arithmetic": (
            min(ratio) > 2 and min(of_4) > 1 > max(of_64),
            f"v-/v+ of {span(ratio, '.0f')} (medians); {span(of_4)} times the even split at G = 4, {span(of_64)} at 64",
        ),
        "expressions": (
            below > 0.5 and right > 1 >= wrong,
            f"at most 1 on {below:.0%}; one right of four {right:.2f} times the even split, one wrong {wrong:.2f}",
        ),
        "training": (
            "held in part" if min(later) > 0.5 and min(ratio) > 4 else "failed",
            f"above 1 on {span(later, '.0%')} of the prompts, and above 4 on arithmetic; what wrong ones say was "
            "not recorded",
        ),
        "noise": (
            np.nanmin(even) >= 4 and np.nanmax(even) <= 64,
            f"at G of {span(even, '.1f')}; not known at {np.isnan(even).sum()} of {len(even)} stages "
            "(no interval lies outside 4 to 64)",
        ),
        "trained at": (
            all(by_size < by_step for by_size, by_step in apart),
            "{:.2f} between G and {:.2f} between steps on arithmetic, {:.2f} and {:.2f} on expressions".format(
                *apart[0], *apart[1]
            ),
        ),
        "silent": (silence < 2, f"the largest difference is {silence:.1f} points"),
        "mass": (
            min(more) > 0 >= max(before),
            f"length (GRPO's ÷ tokens) less sigma: {span(more)} on arithmetic, {span(before)} on expressions before "
            "training",
        ),
    }
    words = {True: "held", False: "failed"}
    return {about: (words.get(held, held), what) for about, (held, what) in outcomes.items()}


def table(results: dict) -> str:
    """What the command prints: a line for each stage."""
    sizes = ", ".join(map(str, GROUP_SIZES))
    lines = [
        f"{'task, script, G, step':31} right   v-/v+, median (at most 1)   signal = noise at       error at G = {sizes}"
    ]
    for key in stages_of(results):
        of_stage = stage(results, *key)
        ratio = lopsidedness(of_stage)
        by_size = [[e.value for e in errors(of_stage, G) if e.n] for G in GROUP_SIZES]
        off = [f"{np.median(values):.1%}" if values else "-" for values in by_size]
        lines.append(
            f"{key[0]}, {key[1] or 'base'}, {key[2]}, {key[3]}".ljust(31)
            + f" {of_stage['p'].mean():5.2f}   {median(ratio)!s:>20} ({(ratio[~np.isnan(ratio)] <= 1).mean():4.0%})   "
            + f"{even_size(of_stage)!s:>20}   {'  '.join(off)}"
        )
    return "\n".join(lines)
