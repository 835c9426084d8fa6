"""The numbers of compare.py: its comparisons and its tables.

tests/lessons/test_compare.py holds the text of the page to these numbers.
"""

import json
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path

import numpy as np

from lessons.experiments.harness import grid, paired
from lessons.experiments.harness.grid import cell, change, markdown, short

RESULTS = Path(__file__).parent / "results.json"
README, FIGURES = RESULTS.parent / "README.md", RESULTS.parent / "figures"
LADDER = {
    "REINFORCE": "reinforce",
    "PPO": "ppo",
    "GRPO": "grpo",
    "Dr. GRPO": "dr_grpo",
    "DAPO": "dapo",
}
NUMBERS = (
    "final", "at_budget", "completions", "update_norm", "entropy", "length_right", "length_wrong",
    "truncated", "silent",
)  # fmt: skip
SAMPLED = (("pass", 1), ("majority", 64), ("pass", 4), ("pass", 64))
AIME_2024 = (30, 36, 38, 41, 42, 50)  # the rows of DAPO's Table 1


def load() -> dict:
    """The committed results by experiment."""
    return json.loads(RESULTS.read_text("utf-8"))


# ---------------------------------------------------------------------- numbers


def training_numbers(arms: dict[str, list[dict]]) -> dict:
    """The numbers of an experiment, from the summaries of each arm by seed; without those that some
    seed lacks."""
    results = {}
    for arm, runs in arms.items():
        results[arm] = {name: runs[0][name] for name in ("learning_rate", "budget")}
        for name in NUMBERS:
            values = [run[name] for run in runs]
            if None not in values:
                results[arm][name] = paired.estimate(values)
    return results


def sampling_numbers(arms: dict[str, list[dict]], ks: tuple[int, ...]) -> dict:
    """The same from each arm's rates by seed of "majority" and "pass", (ks, problems): the mean at
    each k with its interval; and the differences from the base that the table shows, problem by
    problem."""

    def rates(arm: str, kind: str, k: int) -> np.ndarray:  # (seeds, problems)
        return np.array([run[kind][ks.index(k)] for run in arms[arm]])

    means, comparisons = {}, []
    for arm in arms:
        means[arm] = {"majority": [], "pass": []}
        for kind, k in product(means[arm], ks):
            of_k = rates(arm, kind, k)
            rate = {"k": k, "mean": float(of_k.mean())}
            means[arm][kind].append(rate | {"interval": paired.interval_over_both(of_k)})
        if arm == "base":
            continue
        for kind, k in SAMPLED[:-1]:  # the base's .999 leaves no room at the last
            gap = paired.difference_over_both(rates(arm, kind, k) - rates("base", kind, k))
            comparisons.append({"arm": arm, "other": "base", "number": f"{kind}@{k}"} | gap)
    paired.holm(comparisons)
    return {"arms": means, "comparisons": comparisons}


def compared(arms: dict) -> dict:
    """The comparisons of an experiment's table, each arm with GRPO or with the arm above it: one
    family whose p values are corrected; and the seeds at which a difference of one point at equal
    completions would be seen, from the median of their standard deviations."""
    pairs = [(arm, "GRPO") for arm in arms if arm != "GRPO"]
    if "GRPO" not in arms:
        pairs = [(arm, above) for above, arm in pairwise(arms)]
    comparisons = []
    for arm, other in pairs:
        names = {"arm": arm, "other": other, "number": "at_budget"}
        values = [arms[name]["at_budget"]["seeds"] for name in (arm, other)]
        comparisons.append(names | paired.difference(*values))
    paired.holm(comparisons)
    spread = [c["sd"] for c in comparisons if c["sd"]]
    sd = float(np.median(spread)) if spread else None
    seeds = paired.seeds_needed(sd, 0.01) if sd else None
    return {"comparisons": comparisons, "sd": sd, "seeds_for_a_point": seeds}


def numbers_of(experiment: str, runs: dict[str, list[dict]], ks: tuple[int, ...]) -> dict:
    """What results.json holds of an experiment, from the results of each arm by seed."""
    if experiment == "sampling":
        return sampling_numbers(runs, ks)
    arms = training_numbers(runs)
    return {"arms": arms} | compared(arms)


# ---------------------------------------------------------------------- tables


def gaps_of(results: dict, arm: str) -> list[dict]:
    """The comparisons of an arm with others."""
    return [comparison for comparison in results["comparisons"] if comparison["arm"] == arm]


def at_budget(results: dict, arm: str) -> str:
    return cell(results["arms"][arm]["at_budget"])


def gap(results: dict, arm: str) -> str:
    """The difference of an arm from the one that it is compared with, if any."""
    return "".join(map(change, gaps_of(results, arm)))


def update_length(results: dict, arm: str) -> str:
    return cell(results["arms"][arm]["update_norm"], 4)


def rows_of(results: dict, *columns: Callable) -> list[list[str]]:
    """A row for each arm: its name, and its text in each column."""
    return [[arm, *(column(results, arm) for column in columns)] for arm in results["arms"]]


def headline(results: dict) -> str:
    """The scripts without a KL term, and as they stand, each with its difference from GRPO."""
    no_kl, shared = results["no_kl"], results["shared"]
    rows = []
    for arm in shared["arms"]:
        numbers = [column(each, arm) for each in (no_kl, shared) for column in (at_budget, gap)]
        rows.append([arm, *numbers])
    header = ["script", "without KL", "against GRPO", "as it stands", "against GRPO"]
    return f"{markdown(header, rows)}\n\n{note(no_kl)} As they stand: {note(shared)}"


def steps_of(results: dict) -> list[list[str]]:
    """The arms of `ablation` or `movement`: name, accuracy at the budget, and its difference from
    that of the arm above."""
    return rows_of(results, at_budget, gap)


def ablation_table(results: dict) -> str:
    """The table of `ablation`; an arm with dynamic sampling goes on beyond the budget, and draws
    silent groups without training on them."""
    rows = []
    for (arm, *of_arm), published in zip(steps_of(results), AIME_2024):
        numbers = results["arms"][arm]
        share, goes_on = cell(numbers["silent"], 2), ""
        if numbers["completions"]["mean"] > numbers["budget"]:
            share = "0, by construction"
            goes_on = f"{cell(numbers['final'])} at {cell(numbers['completions'], 0)}"
        rows.append([arm, str(published), *of_arm, share, goes_on])
    header = ["change, on top of the row above", "AIME 2024, published", "at 15,360 completions"]
    header += ["against the row above", "silent share trained on", "goes on to"]
    return markdown(header, rows)


def movement_table(results: dict) -> str:
    header = ["change, on top of the row above", "at 15,360 completions", "against the row above"]
    rows = rows_of(results, at_budget, gap, update_length)
    return markdown([*header, "update length"], rows)


def sampling_table(results: dict) -> str:
    """The table of `sampling`: the base's rates, then each arm's, with their differences."""
    rows = []
    for arm, kinds in results["arms"].items():
        rates = {(kind, rate["k"]): rate for kind in kinds for rate in kinds[kind]}
        row = [cell(rates[column]) for column in SAMPLED]
        if arm != "base":
            row = [short(rates[column]["mean"]) for column in SAMPLED]
            for i, comparison in enumerate(gaps_of(results, arm)):
                row[i] += f", {change(comparison)}"
        rows.append([arm, *row])
    return markdown(["policy", "Pass@1 = Maj@1", "Maj@64", "Pass@4", "Pass@64"], rows)


def note(results: dict) -> str:
    """The sentence below a table: how many seeds it has, how many comparisons are bold, and how
    many seeds it would take to see one point."""
    more = "; brackets: bootstrap over seeds and problems; after the comma, points above the base"
    text = grid.note(results["seeds"], results["comparisons"], "" if "sd" in results else more)
    if results.get("sd"):
        text += f" To see one point takes {results['seeds_for_a_point']} seeds."
    return text


TABLES = {  # of the experiments that have one of their own
    "ablation": ablation_table,
    "movement": movement_table,
    "sampling": sampling_table,
}


def texts(results: dict) -> dict[Path, dict[str, str]]:
    """The tables, by the page and the place where they stand."""
    own = {"headline": headline(results)}
    for name, table in TABLES.items():
        own[name] = f"{table(results[name])}\n\n{note(results[name])}"
    return {README: own}
