"""The numbers of compare.py: its comparisons and its tables.

tests/test_compare.py holds the text of the pages to these numbers.
"""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np

from lessons.experiments import grid, paired
from lessons.experiments.grid import cell, markdown, short
from lessons.experiments.paired import LEVEL

RESULTS = Path(__file__).parent / "results.json"
README, FRONT = RESULTS.parent / "README.md", RESULTS.parents[2] / "README.md"
LADDER = {
    "REINFORCE": "reinforce",
    "PPO": "ppo",
    "GRPO": "grpo",
    "Dr. GRPO": "dr_grpo",
    "DAPO": "dapo",
}
NUMBERS = (
    "final", "at_budget", "completions", "update_norm", "clipped_up_probability", "entropy",
    "length_wrong", "truncated", "silent", "silent_trained_on",
)  # fmt: skip
SAMPLED = (("pass", 1), ("majority", 64), ("pass", 4), ("pass", 64))
# Experiments that ask again which script differs from GRPO, as `shared` does, and so are not
# tested: their columns stand beside those of `shared`, under these titles.
UNTESTED = {"no_kl": "both without KL", "matched": "at equal update length"}
STEPWISE = ("ablation", "movement")  # each arm is compared with the one above it
AIME_2024 = (30, 36, 38, 41, 42, 50)  # the rows of DAPO's Table 1
BESIDE = {  # the columns to the left and to the right of the accuracy
    "shared": ([], ["goes on to"]),
    "no_kl": ([], ["goes on to"]),
    "matched": (["learning rate, update length"], ["goes on to"]),
    "ablation": (["AIME 2024, published"], ["silent share trained on", "goes on to"]),
    "movement": ([], ["update length"]),
}


def load() -> dict:
    """The committed results by experiment."""
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}


# ---------------------------------------------------------------------- numbers


def training_numbers(arms: dict[str, list[dict | None]]) -> dict:
    """The numbers of an experiment, from the summaries of each arm by seed; None for a run that
    diverged."""
    results = {}
    for arm, runs in arms.items():
        first = next(filter(None, runs))
        results[arm] = {name: first[name] for name in ("learning_rate", "budget")}
        for name in NUMBERS:
            results[arm][name] = paired.estimate([run and run[name] for run in runs])
    return results


def sampling_numbers(arms: dict[str, dict[str, np.ndarray]], ks: tuple[int, ...]) -> dict:
    """The same from each arm's rates of "pass" and "majority", arrays (seeds, ks, problems): the
    mean at each k with its interval; and the differences from the base that the table shows,
    problem by problem."""

    def at(rates: np.ndarray, k: int) -> dict:
        of_k = rates[:, ks.index(k)]  # (seeds, problems)
        return {"k": k, "mean": float(of_k.mean()), "interval": paired.interval_over_both(of_k)}

    means, comparisons = {}, []
    for arm, kinds in arms.items():
        means[arm] = {kind: [at(rates, k) for k in ks] for kind, rates in kinds.items()}
    for arm, kinds in arms.items():
        for kind, k in SAMPLED[:-1] if arm != "base" else ():  # the base's .999 leaves no room
            gaps = (kinds[kind] - arms["base"][kind])[:, ks.index(k)]
            names = {"arm": arm, "other": "base", "number": f"{kind}@{k}"}
            comparisons.append(names | paired.difference_over_both(gaps))
    paired.holm(comparisons)
    return {"arms": means, "comparisons": comparisons}


def family(experiment: str, arms: dict) -> list[tuple[str, str, str]]:
    """The comparisons of an experiment's table: arm, other arm, number."""
    if experiment in STEPWISE:
        return [(arm, above, "at_budget") for above, arm in pairwise(arms)]
    numbers = ("at_budget", "length_wrong", "entropy") if experiment == "pieces" else ("at_budget",)
    return [(arm, "GRPO", number) for arm in arms if arm != "GRPO" for number in numbers]


def compared(experiment: str, arms: dict) -> dict:
    """The comparisons of an experiment's table, one family whose p values are corrected, unless it
    is UNTESTED; and the seeds at which a difference of one point at equal completions would be
    seen, from the median of their standard deviations."""
    comparisons = []
    for arm, other, number in family(experiment, arms):
        gap = paired.difference(arms[arm][number]["seeds"], arms[other][number]["seeds"])
        comparisons.append({"arm": arm, "other": other, "number": number} | gap)
    if experiment not in UNTESTED:
        paired.holm(comparisons)
    spread = [c["sd"] for c in comparisons if c["number"] == "at_budget" and c["sd"]]
    sd = float(np.median(spread)) if spread else None
    seeds = paired.seeds_needed(sd, 0.01) if sd else None
    return {"comparisons": comparisons, "sd": sd, "seeds_for_a_point": seeds}


# ---------------------------------------------------------------------- tables


def find(results: dict, arm: str, other: str, number: str = "at_budget") -> dict:
    """A comparison of an experiment."""
    for comparison in results["comparisons"]:
        if (comparison["arm"], comparison["other"], comparison["number"]) == (arm, other, number):
            return comparison
    raise KeyError((arm, other, number))


def change(comparison: dict, digits: int = 1) -> str:
    """A difference with its interval, "+1.2 [+0.3, +2.1]", of accuracies in points; bold if p < .05
    after Holm's correction."""
    scale = 1 if comparison["number"] in ("length_wrong", "entropy") else 100
    return grid.change(comparison, digits, scale)


def table(experiment: str, results: dict) -> str:
    """An experiment's table, at most seven columns, and a note below it."""
    own = {"pieces": pieces_table, "sampling": sampling_table}
    rows = own[experiment](results) if experiment in own else accuracy_table(experiment, results)
    return f"{rows}\n\n{note(results)}"


def budget_of(results: dict) -> str:
    """The heading of accuracies at the budget: "at 15,360 completions"."""
    return f"at {next(iter(results['arms'].values()))['budget']:,} completions"


def goes_on(numbers: dict) -> str:
    """The accuracy at which an arm with dynamic sampling ends, beyond the budget; empty for the
    others."""
    drawn = numbers["completions"]
    if drawn["mean"] <= numbers["budget"]:
        return ""
    return f"{cell(numbers['final'])} at {cell(drawn, 0)}"


def accuracy_table(experiment: str, results: dict) -> str:
    """Accuracy at the budget beside its difference: from GRPO, or, in STEPWISE experiments, from
    the arm above. The columns of BESIDE stand around them."""
    left, right = BESIDE[experiment]
    first, against, other = "script", "GRPO", "GRPO"
    if experiment in STEPWISE:
        first, against, other = "change, on top of the row above", "the row above", ""
    rows = []
    for row, (arm, n) in enumerate(results["arms"].items()):
        gap = change(find(results, arm, other)) if other not in ("", arm) else ""
        length = cell(n["update_norm"], 4)
        shown = {"update length": length, "goes on to": goes_on(n)}
        shown["learning rate, update length"] = f"{rate(n)}, {length}"
        if experiment == "ablation":
            shown["AIME 2024, published"] = str(AIME_2024[row])
            silent = n["silent_trained_on"]
            share = cell(silent, 2) if any(silent["seeds"]) else "0, by construction"
            shown["silent share trained on"] = share
        cells = [cell(n["at_budget"]), gap]
        rows.append([arm, *map(shown.get, left), *cells, *map(shown.get, right)])
        if experiment in STEPWISE:
            other = arm
    return markdown([first, *left, budget_of(results), f"against {against}", *right], rows)


def rate(numbers: dict) -> str:
    """An arm's learning rate."""
    return f"{1e4 * numbers['learning_rate']:g}e-4"


def headline(results: dict) -> str:
    """The table of several experiments: the scripts as they stand, then the differences from GRPO
    in the UNTESTED ones. Where an experiment's run is the one of `shared`, as GRPO's is, it is
    shown once."""
    shared, again = results["shared"], [name for name in UNTESTED if name in results]
    rows = []
    for arm, n in shared["arms"].items():
        row = [
            arm,
            cell(n["at_budget"]),
            change(find(shared, arm, "GRPO")) if arm != "GRPO" else "",
        ]
        for name in again:
            numbers = results[name]["arms"].get(arm)
            shown, same = [], arm == "GRPO"
            if numbers and name == "matched":
                shown = [rate(numbers)]
                same |= numbers["learning_rate"] == n["learning_rate"]
            if numbers and not same:
                shown.append(change(find(results[name], arm, "GRPO")))
            row.append(": ".join(shown))
        rows.append(row)
    titles = ["script", "as it stands", "against GRPO", *(UNTESTED[name] for name in again)]
    return f"{markdown(titles, rows)}\n\n{note(shared)}"


def summary_table(results: dict) -> str:
    """The table of the front page: the ladder in `shared`, and beside it in `no_kl`."""
    shared, no_kl, rows = results["shared"], results.get("no_kl"), []
    for arm in LADDER:
        gaps = ["", ""]
        if arm != "GRPO":
            gaps = [change(find(each, arm, "GRPO")) if each else "" for each in (shared, no_kl)]
        rows.append([arm, cell(shared["arms"][arm]["at_budget"]), *gaps])
    titles = ["script", budget_of(shared), "against GRPO", "against GRPO, both without KL"]
    return markdown(titles, rows)


def pieces_table(results: dict) -> str:
    """The table of `pieces`: GRPO's numbers, then each arm's differences from them."""
    header = ["", budget_of(results), "length of wrong completions", "entropy"]
    digits = {"at_budget": (3, 1), "length_wrong": (1, 1), "entropy": (3, 3)}  # means, differences
    grpo, *others = results["arms"]
    numbers = results["arms"][grpo]
    rows = [[grpo, *(cell(numbers[number], mean) for number, (mean, _) in digits.items())]]
    for arm in others:
        row = [f"{arm}: against GRPO"]
        for number, (_, of_gap) in digits.items():
            row.append(change(find(results, arm, grpo, number), of_gap))
        rows.append(row)
    return markdown(header, rows)


def rate_of(results: dict, arm: str, kind: str, k: int) -> dict:
    """pass@k or majority@k of an arm of `sampling`."""
    return next(rate for rate in results["arms"][arm][kind] if rate["k"] == k)


def sampling_table(results: dict) -> str:
    """The table of `sampling`: the base's rates, then each arm's, with their differences."""
    names = {"pass": "Pass", "majority": "Maj"}
    header = ["policy", "Pass@1 = Maj@1", *(f"{names[kind]}@{k}" for kind, k in SAMPLED[1:])]
    base, *others = results["arms"]
    rows = [[base, *(cell(rate_of(results, base, *column)) for column in SAMPLED)]]
    for arm in others:
        *means, last = (short(rate_of(results, arm, *column)["mean"]) for column in SAMPLED)
        gaps = (change(find(results, arm, base, f"{kind}@{k}")) for kind, k in SAMPLED[:-1])
        rows.append([arm, *map(", ".join, zip(means, gaps)), last])
    return markdown(header, rows)


def note(results: dict) -> str:
    """The sentence below a table: how many seeds it has, how many comparisons are bold, and how
    many seeds it would take to see one point."""
    over_seeds = "sd" in results  # not over seeds and problems
    parts = [f"{len(results['seeds'])} seeds"]
    if not over_seeds:
        parts.append("brackets: bootstrap over seeds and problems")
        parts.append("after the comma, points above the base")
    tested = [c["p_holm"] < LEVEL for c in results["comparisons"] if "p_holm" in c]
    if tested:
        parts.append(f"{sum(tested)} of {len(tested)} comparisons are bold")
    text = f"{'; '.join(parts)}."
    diverged = [
        arm for arm in results["arms"].values() if over_seeds and None in arm["final"]["seeds"]
    ]
    if diverged:
        text += (
            f" Runs that diverged (in {len(diverged)} of the arms) are left out, which flatters "
        )
        text += "these."
    if results.get("sd"):
        text += f" To see one point takes {results['seeds_for_a_point']} seeds."
    return text


def place(experiment: str) -> str:
    """The name of the place for an experiment's table on the page of results."""
    return "headline" if experiment in ("shared", *UNTESTED) else experiment


def texts(results: dict) -> dict[Path, dict[str, str]]:
    """The tables, by the page and the place where they stand."""
    own = {name: table(name, numbers) for name, numbers in results.items() if place(name) == name}
    front = {}
    if "shared" in results:
        own["headline"] = headline(results)
        front["summary"] = summary_table(results)
    return {README: own, FRONT: front}
