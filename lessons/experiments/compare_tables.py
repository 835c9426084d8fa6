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
# Experiments that ask again which script differs from GRPO: their columns stand beside those of
# `shared`. Of `matched` nothing is tested.
BESIDE = ("no_kl", "matched")
STEPWISE = ("ablation", "movement")  # each arm is compared with the one above it
AIME_2024 = (30, 36, 38, 41, 42, 50)  # the rows of DAPO's Table 1


def load() -> dict:
    """The committed results by experiment."""
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}


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
        if arm == "base":
            continue
        for kind, k in SAMPLED[:-1]:  # the base's .999 leaves no room at the last
            gaps = (kinds[kind] - arms["base"][kind])[:, ks.index(k)]
            names = {"arm": arm, "other": "base", "number": f"{kind}@{k}"}
            comparisons.append(names | paired.difference_over_both(gaps))
    paired.holm(comparisons)
    return {"arms": means, "comparisons": comparisons}


def family(experiment: str, arms: dict) -> list[tuple[str, str, str]]:
    """The comparisons of an experiment's table: arm, other arm, number."""
    if experiment in STEPWISE:
        return [(arm, above, "at_budget") for above, arm in pairwise(arms)]
    if experiment == "batch_sigma":
        dr, over, kl_times, dr_no_kl, over_no_kl, all_groups, mixed = arms
        pairs = (over, dr), (over_no_kl, dr_no_kl), (over, kl_times), (mixed, all_groups)
        return [(*pair, "at_budget") for pair in pairs]
    numbers = ("at_budget", "length_wrong", "entropy") if experiment == "pieces" else ("at_budget",)
    return [(arm, "GRPO", number) for arm in arms if arm != "GRPO" for number in numbers]


def compared(experiment: str, arms: dict) -> dict:
    """The comparisons of an experiment's table, one family whose p values are corrected, unless it
    is `matched`; and the seeds at which a difference of one point at equal completions would be
    seen, from the median of their standard deviations."""
    comparisons = []
    for arm, other, number in family(experiment, arms):
        gap = paired.difference(arms[arm][number]["seeds"], arms[other][number]["seeds"])
        comparisons.append({"arm": arm, "other": other, "number": number} | gap)
    if experiment == "batch_sigma":
        with_kl, without = (
            np.subtract(*(arms[arm]["at_budget"]["seeds"] for arm in pair[:2]))
            for pair in family(experiment, arms)[:2]
        )
        names = {"arm": "with KL", "other": "without", "number": "at_budget"}
        comparisons.append(names | paired.difference(with_kl.tolist(), without.tolist()))
    if experiment != "matched":
        paired.holm(comparisons)
    spread = [c["sd"] for c in comparisons if c["number"] == "at_budget" and c["sd"]]
    sd = float(np.median(spread)) if spread else None
    seeds = paired.seeds_needed(sd, 0.01) if sd else None
    return {"comparisons": comparisons, "sd": sd, "seeds_for_a_point": seeds}


# ---------------------------------------------------------------------- tables


def find(results: dict, arm: str, other: str, number: str = "at_budget") -> dict:
    """A comparison of an experiment."""
    names = {"arm": arm, "other": other, "number": number}
    return next(c for c in results["comparisons"] if names.items() <= c.items())


def change(comparison: dict, digits: int = 1) -> str:
    """A difference with its interval, "+1.2 [+0.3, +2.1]", of accuracies in points; bold if p < .05
    after Holm's correction."""
    scale = 1 if comparison["number"] in ("length_wrong", "entropy") else 100
    return grid.change(comparison, digits, scale)


def budget_of(results: dict) -> str:
    """The heading of accuracies at the budget: "at 15,360 completions"."""
    return f"at {next(iter(results['arms'].values()))['budget']:,} completions"


BOTH = ("without KL", "against GRPO", "as it stands", "against GRPO")


def against_grpo(results: dict | None, arm: str) -> list[str]:
    """The accuracy of an arm and its difference from GRPO's; empty where there is none."""
    if not results:
        return ["", ""]
    gap = change(find(results, arm, "GRPO")) if arm != "GRPO" else ""
    return [cell(results["arms"][arm]["at_budget"]), gap]


def against_both(results: dict, arm: str) -> list[str]:
    """`against_grpo` without a KL term, then as the scripts stand."""
    return against_grpo(results.get("no_kl"), arm) + against_grpo(results["shared"], arm)


def headline(results: dict) -> str:
    """The scripts without a KL term, as they stand, and at equal length of updates, each with its
    differences from GRPO, where there are any."""
    shared, no_kl, matched = (results.get(name) for name in ("shared", *BESIDE))
    rows = []
    for arm, numbers in shared["arms"].items():
        at_equal_length = ""
        if matched and arm in matched["arms"]:
            rate = matched["arms"][arm]["learning_rate"]
            at_equal_length = f"{1e4 * rate:g}e-4"
            if rate != numbers["learning_rate"]:
                at_equal_length += f": {against_grpo(matched, arm)[1]}"
        rows.append([arm, *against_both(results, arm), at_equal_length])
    titles = ["script", *BOTH, "at equal update length"]
    notes = [note(each) for each in (no_kl, shared) if each]
    return f"{markdown(titles, rows)}\n\n{' As they stand: '.join(notes)}"


def summary_table(results: dict) -> str:
    """The table of the front page: the ladder in `no_kl` and in `shared`."""
    return markdown(["script", *BOTH], [[arm, *against_both(results, arm)] for arm in LADDER])


def steps_of(results: dict) -> list[list[str]]:
    """The arms of a STEPWISE experiment: name, accuracy at the budget, and its difference from that
    of the arm above."""
    gaps = {comparison["arm"]: change(comparison) for comparison in results["comparisons"]}
    arms = results["arms"].items()
    return [[arm, cell(numbers["at_budget"]), gaps.get(arm, "")] for arm, numbers in arms]


def ablation_table(results: dict) -> str:
    """The table of `ablation`; an arm with dynamic sampling goes on beyond the budget."""
    rows = []
    for (arm, *accuracy), published in zip(steps_of(results), AIME_2024):
        numbers, goes_on = results["arms"][arm], ""
        silent = numbers["silent_trained_on"]
        share = cell(silent, 2) if any(silent["seeds"]) else "0, by construction"
        if numbers["completions"]["mean"] > numbers["budget"]:
            goes_on = f"{cell(numbers['final'])} at {cell(numbers['completions'], 0)}"
        rows.append([arm, str(published), *accuracy, share, goes_on])
    header = ["change, on top of the row above", "AIME 2024, published", budget_of(results)]
    header += ["against the row above", "silent share trained on", "goes on to"]
    return markdown(header, rows)


def movement_table(results: dict) -> str:
    """The table of `movement`."""
    rows = [[*row, cell(results["arms"][row[0]]["update_norm"], 4)] for row in steps_of(results)]
    header = ["change, on top of the row above", budget_of(results), "against the row above"]
    return markdown([*header, "update length"], rows)


def batch_sigma_table(results: dict) -> str:
    """The table of `batch_sigma`, and in its last row the difference of two differences."""
    rows = []
    for arm, numbers in results["arms"].items():
        gaps = [f"{change(c)} from {c['other']}" for c in results["comparisons"] if c["arm"] == arm]
        accuracy, length = cell(numbers["at_budget"]), cell(numbers["update_norm"], 4)
        rows.append([arm, accuracy, "; ".join(gaps), length])
    gap = change(results["comparisons"][-1])
    rows.append(["first difference less the one without KL", "", gap, ""])
    return markdown(["", budget_of(results), "difference", "update length"], rows)


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
    header = ["policy", "Pass@1 = Maj@1", "Maj@64", "Pass@4", "Pass@64"]  # SAMPLED
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
    parts = [f"{len(results['seeds'])} seeds"]
    if "sd" not in results:  # over seeds and problems
        parts.append("brackets: bootstrap over seeds and problems")
        parts.append("after the comma, points above the base")
    tested = [c["p_holm"] < LEVEL for c in results["comparisons"]]
    text = f"{'; '.join(parts)}; {sum(tested)} of {len(tested)} comparisons are bold."
    if results.get("sd"):
        text += f" To see one point takes {results['seeds_for_a_point']} seeds."
    return text


TABLES = {  # of the experiments that have one of their own
    "pieces": pieces_table,
    "batch_sigma": batch_sigma_table,
    "ablation": ablation_table,
    "movement": movement_table,
    "sampling": sampling_table,
}


def texts(results: dict) -> dict[Path, dict[str, str]]:
    """The tables, by the page and the place where they stand."""
    own, front = {}, {}
    for name, table in TABLES.items():
        if name in results:
            own[name] = f"{table(results[name])}\n\n{note(results[name])}"
    if "shared" in results:
        own["headline"] = headline(results)
        front["summary"] = summary_table(results)
    return {README: own, FRONT: front}
