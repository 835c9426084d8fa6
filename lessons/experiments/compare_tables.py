"""The numbers of compare.py: its comparisons and its tables.

tests/test_compare.py holds the text of the pages to these numbers.
"""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np

from lessons.experiments.harness import grid, paired
from lessons.experiments.harness.grid import cell, markdown, short

RESULTS = Path(__file__).parent / "results.json"
README = RESULTS.parent / "README.md"
FIGURES = RESULTS.parent / "figures"
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
STEPWISE = ("ablation", "movement")  # each arm is compared with the one above it
BATCH_SIGMA = (  # pairs of arms; the first two gaps are compared, too
    ("÷ σ of the batch", "Dr. GRPO"),
    ("÷ σ of the batch without KL", "Dr. GRPO without KL"),
    ("÷ σ of the batch", "KL × σ of the batch"),
    ("token mean over mixed groups", "token mean"),
)
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

    def at(rates: np.ndarray, k: int) -> dict:
        of_k = rates[:, ks.index(k)]  # (seeds, problems)
        return {"k": k, "mean": float(of_k.mean()), "interval": paired.interval_over_both(of_k)}

    rates, means, comparisons = {}, {}, []
    for arm, runs in arms.items():
        rates[arm] = {kind: np.array([run[kind] for run in runs]) for kind in ("majority", "pass")}
        means[arm] = {kind: [at(each, k) for k in ks] for kind, each in rates[arm].items()}
        if arm == "base":
            continue
        for kind, k in SAMPLED[:-1]:  # the base's .999 leaves no room at the last
            gaps = (rates[arm][kind] - rates["base"][kind])[:, ks.index(k)]
            names = {"arm": arm, "other": "base", "number": f"{kind}@{k}"}
            comparisons.append(names | paired.difference_over_both(gaps))
    paired.holm(comparisons)
    return {"arms": means, "comparisons": comparisons}


def family(experiment: str, arms: dict) -> list[tuple[str, str, str]]:
    """The comparisons of an experiment's table: arm, other arm, number."""
    if experiment in STEPWISE:
        return [(arm, above, "at_budget") for above, arm in pairwise(arms)]
    if experiment == "batch_sigma":
        return [(*pair, "at_budget") for pair in BATCH_SIGMA]
    numbers = ("at_budget", "length_wrong", "entropy") if experiment == "pieces" else ("at_budget",)
    return [(arm, "GRPO", number) for arm in arms if arm != "GRPO" for number in numbers]


def compared(experiment: str, arms: dict) -> dict:
    """The comparisons of an experiment's table, one family whose p values are corrected, unless it
    is `matched`; and the seeds at which a difference of one point at equal completions would be
    seen, from the median of their standard deviations."""
    pairs = {}
    for arm, other, number in family(experiment, arms):
        pairs[arm, other, number] = [arms[name][number]["seeds"] for name in (arm, other)]
    if experiment == "batch_sigma":
        gaps = [np.subtract(*values).tolist() for values in pairs.values()]
        pairs["with KL", "without", "at_budget"] = gaps[:2]
    comparisons = [
        dict(zip(("arm", "other", "number"), names)) | paired.difference(*values)
        for names, values in pairs.items()
    ]
    if experiment != "matched":
        paired.holm(comparisons)
    spread = [c["sd"] for c in comparisons if c["number"] == "at_budget" and c["sd"]]
    sd = float(np.median(spread)) if spread else None
    seeds = paired.seeds_needed(sd, 0.01) if sd else None
    return {"comparisons": comparisons, "sd": sd, "seeds_for_a_point": seeds}


# ---------------------------------------------------------------------- tables


def gaps_of(results: dict, arm: str) -> list[dict]:
    """The comparisons of an arm with others."""
    return [comparison for comparison in results["comparisons"] if comparison["arm"] == arm]


def change(comparison: dict, digits: int = 1) -> str:
    """A difference with its interval, "+1.2 [+0.3, +2.1]", of accuracies in points; bold if p < .05
    after Holm's correction."""
    scale = 1 if comparison["number"] in ("length_wrong", "entropy") else 100
    return grid.change(comparison, digits, scale)


def budget_of(results: dict) -> str:
    """The heading of accuracies at the budget: "at 15,360 completions"."""
    return f"at {next(iter(results['arms'].values()))['budget']:,} completions"


def accuracy(results: dict, arm: str) -> list[str]:
    """The accuracy of an arm, and its difference from the arm that it is compared with, if any."""
    return [cell(results["arms"][arm]["at_budget"]), "".join(map(change, gaps_of(results, arm)))]


def headline(results: dict) -> str:
    """The scripts without a KL term, as they stand, and the ladder's at equal length of updates,
    each with its differences from GRPO."""
    shared, matched = results["shared"]["arms"], results["matched"]["arms"]
    rows = []
    for arm in shared:
        at_equal_length = ""
        if arm in matched:
            rate = matched[arm]["learning_rate"]
            at_equal_length = f"{1e4 * rate:g}e-4"
            if rate != shared[arm]["learning_rate"]:
                at_equal_length += f": {accuracy(results['matched'], arm)[1]}"
        both = accuracy(results["no_kl"], arm) + accuracy(results["shared"], arm)
        rows.append([arm, *both, at_equal_length])
    header = ["script", "without KL", "against GRPO", "as it stands", "against GRPO"]
    table = markdown([*header, "at equal update length"], rows)
    return f"{table}\n\n{note(results['no_kl'])} As they stand: {note(results['shared'])}"


def steps_of(results: dict) -> list[list[str]]:
    """The arms of a STEPWISE experiment: name, accuracy at the budget, and its difference from that
    of the arm above."""
    return [[arm, *accuracy(results, arm)] for arm in results["arms"]]


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
        gaps = [f"{change(gap)} from {gap['other']}" for gap in gaps_of(results, arm)]
        length = cell(numbers["update_norm"], 4)
        rows.append([arm, cell(numbers["at_budget"]), "; ".join(gaps), length])
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
        gaps = (change(gap, digits[gap["number"]][1]) for gap in gaps_of(results, arm))
        rows.append([f"{arm}: against GRPO", *gaps])
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
        gaps = map(change, gaps_of(results, arm))
        rows.append([arm, *map(", ".join, zip(means, gaps)), last])
    return markdown(header, rows)


def note(results: dict) -> str:
    """The sentence below a table: how many seeds it has, how many comparisons are bold, and how
    many seeds it would take to see one point."""
    more = "; brackets: bootstrap over seeds and problems; after the comma, points above the base"
    text = grid.note(results["seeds"], results["comparisons"], "" if "sd" in results else more)
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
    own = {"headline": headline(results)}
    for name, table in TABLES.items():
        own[name] = f"{table(results[name])}\n\n{note(results[name])}"
    return {README: own}
