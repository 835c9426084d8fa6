"""The numbers of compare.py, the comparisons that its tables make, and the tables."""

import json
import re
from itertools import pairwise

import numpy as np

from lessons.experiments import paired
from lessons.experiments.compare_runs import ABLATION, GROUP_SIZES, KS, LADDER, SCRIPTS

NUMBERS = (
    "final", "greedy", "at_budget", "mean_accuracy", "completions", "update_norm", "clipped",
    "clipped_up_probability", "entropy", "length_right", "length_wrong", "truncated", "silent", "silent_trained_on",
)  # fmt: skip
IN_POINTS = ("at_budget", "mean_accuracy")  # of accuracy; other differences are in units of their own
AIME_2024 = (30, 36, 38, 41, 42, 50)  # of the rows of DAPO's Table 1

# ---------------------------------------------------------------------- numbers


def training_numbers(arms: dict[str, list[dict | None]]) -> dict:
    """Plain data of an experiment, from the summaries of each arm by seed; None for a run that diverged."""
    results = {}
    for arm, runs in arms.items():
        first = next(filter(None, runs), {"learning_rate": None, "budget": None})
        results[arm] = {name: first[name] for name in ("learning_rate", "budget")}
        results[arm] |= {name: paired.estimate([run and run[name] for run in runs]) for name in NUMBERS}
    return results


def sampling_numbers(arms: dict[str, dict[str, np.ndarray]]) -> dict:
    """Plain data from each arm's rates of "pass" and "majority": arrays (seeds, KS, problems)."""

    def each_k(rates: np.ndarray) -> list[dict]:
        return [
            {"k": k, "mean": float(rates[:, i].mean()), "interval": paired.interval_over_both(rates[:, i])}
            for i, k in enumerate(KS)
        ]

    return {arm: {kind: each_k(rates) for kind, rates in kinds.items()} for arm, kinds in arms.items()}


def family(experiment: str) -> list[tuple[str, str, str]]:
    """The comparisons of an experiment's table: arm, other arm, number."""
    if experiment == "ablation":
        return [(arm, above, number) for above, arm in pairwise(ABLATION) for number in IN_POINTS]
    if experiment == "group_size":
        G_8 = [(f"{script}, G = {G}", f"{script}, G = 8", number) for number in IN_POINTS
               for script in ("GRPO", "Dr. GRPO") for G in GROUP_SIZES if G != 8]  # fmt: skip
        return G_8 + [(f"Dr. GRPO, G = {G}", f"GRPO, G = {G}", number) for number in IN_POINTS for G in GROUP_SIZES]
    if experiment == "pieces":
        arms, numbers = ("GRPO, not / σ", "GRPO, constant length", "Dr. GRPO"), (*IN_POINTS, "length_wrong", "entropy")
    else:
        arms, numbers = [name for name in (LADDER if experiment == "matched" else SCRIPTS) if name != "GRPO"], IN_POINTS
    return [(arm, "GRPO", number) for arm in arms for number in numbers]


def compared(experiment: str, arms: dict) -> dict:
    """The comparisons of an experiment's table, p values corrected over all of them; and the seeds at which a
    difference of one point at equal completions would be seen, from the median of their standard deviations."""
    comparisons = []
    for arm, other, number in family(experiment):
        found = paired.difference(arms[arm][number]["seeds"], arms[other][number]["seeds"])
        comparisons.append({"arm": arm, "other": other, "number": number} | found)
    paired.holm(comparisons)
    sd = float(np.median([comparison["sd"] for comparison in comparisons if comparison["number"] == "at_budget"]))
    return {"comparisons": comparisons, "sd": sd, "seeds_for_a_point": paired.seeds_needed(sd, 0.01)}


def rounded(data: dict) -> dict:
    """The same plain data with its floats to 4 significant digits."""
    return json.loads(json.dumps(data), parse_float=lambda text: float(f"{float(text):.4g}"))


# ---------------------------------------------------------------------- tables


def cell(number: dict, digits: int = 3) -> str:
    """Mean and interval, ".926 [.919, .932]"."""
    if number["mean"] is None:
        return "diverged"
    if number["interval"] is None:
        return f"{number['mean']:,.{digits}f}, always"
    return "{} [{}, {}]".format(
        *(re.sub(r"^(-?)0\.", r"\1.", f"{value:,.{digits}f}") for value in (number["mean"], *number["interval"]))
    )


def find(found: dict, arm: str, other: str, number: str = "at_budget") -> dict:
    """A comparison of an experiment."""
    (comparison,) = (c for c in found["comparisons"] if (c["arm"], c["other"], c["number"]) == (arm, other, number))
    return comparison


def change(comparison: dict, digits: int = 1) -> str:
    """A difference with its interval, "+1.2 [+0.3, +2.1]", of accuracies in points; bold if p < .05 after Holm."""
    if comparison["interval"] is None:
        return "no interval"
    scale = 100 if comparison["number"] in IN_POINTS else 1
    text = "{} [{}, {}]".format(
        *(f"{scale * value:+.{digits}f}".replace("-", "−") for value in
          (comparison["difference"], *comparison["interval"]))
    )  # fmt: skip
    return f"**{text}**" if comparison["p_holm"] < paired.LEVEL else text


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table as GitHub reads it."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def table(experiment: str, found: dict) -> str:
    """An experiment's table, at most seven columns, and below it what its numbers are."""
    make = {"pieces": pieces_table, "ablation": ablation_table, "group_size": group_size_table}
    if experiment == "sampling":
        return f"{sampling_table(found)}\n\nBrackets are 95 % bootstrap intervals: seeds and problems, both drawn anew."
    return f"{make.get(experiment, script_table)(found)}\n\n{note(found)}"


def budget_of(found: dict) -> str:
    budget = next(iter(found["arms"].values()))["budget"]
    return f"at {budget:,} completions"


def script_table(found: dict) -> str:
    """shared, matched and tuned: what is told of a script besides its accuracy is what the experiment is about."""
    arms = found["arms"]
    rates = {arm: f"{n['learning_rate']:g}" for arm, n in arms.items()}
    if "tuning" in found:
        title, told = "learning rate", rates
    elif len(set(rates.values())) > 1:
        title, told = (
            "learning rate, update length",
            {arm: f"{rates[arm]}, {cell(arms[arm]['update_norm'], 4)}" for arm in arms},
        )
    else:
        title, told = "completions", {arm: f"{n['completions']['mean']:,.0f}" for arm, n in arms.items()}
    header = ["script", title, "at the end", budget_of(found), "against GRPO", "mean over training", "against GRPO"]
    rows = []
    for arm, n in arms.items():
        at_budget, mean = ("" if arm == "GRPO" else change(find(found, arm, "GRPO", name)) for name in IN_POINTS)
        rows.append([arm, told[arm], cell(n["final"]), cell(n["at_budget"]), at_budget, cell(n["mean_accuracy"]), mean])
    return markdown(header, rows)


def pieces_table(found: dict) -> str:
    header = ["", budget_of(found), "mean over training", "length of wrong completions", "entropy"]
    digits = {"at_budget": (3, 1), "mean_accuracy": (3, 1), "length_wrong": (1, 1), "entropy": (3, 3)}
    rows = [["GRPO", *(cell(found["arms"]["GRPO"][name], of) for name, (of, _) in digits.items())]]
    for arm in found["arms"]:
        if arm != "GRPO":
            changes = (change(find(found, arm, "GRPO", name), of) for name, (_, of) in digits.items())
            rows.append([f"{arm}: against GRPO", *changes])
    return markdown(header, rows)


def ablation_table(found: dict) -> str:
    header = ["change, on top of the row above", "AIME 2024, published", budget_of(found), "against the row above",
              "mean over training", "against the row above", "silent share trained on"]  # fmt: skip
    above = {arm: other for other, arm in pairwise(ABLATION)}
    rows = []
    for (arm, n), published in zip(found["arms"].items(), AIME_2024):
        at_budget, mean = (change(find(found, arm, above[arm], name)) if arm in above else "" for name in IN_POINTS)
        silent = n["silent_trained_on"]
        silent = cell(silent, 2) if any(silent["seeds"]) else "0, by construction"
        rows.append([arm, str(published), cell(n["at_budget"]), at_budget, cell(n["mean_accuracy"]), mean, silent])
    return markdown(header, rows)


def group_size_table(found: dict) -> str:
    arms, rows = found["arms"], []
    for title, number in zip((budget_of(found), "mean over training"), IN_POINTS):
        for script in ("GRPO", "Dr. GRPO"):
            names = [f"{script}, G = {G}" for G in GROUP_SIZES]
            rows.append([f"{script}, {title}", *(cell(arms[arm][number]) for arm in names)])
            less = ["" if arm == names[2] else change(find(found, arm, names[2], number)) for arm in names]
            rows.append(["against G = 8", *less])
        pairs = [(f"Dr. GRPO, G = {G}", f"GRPO, G = {G}") for G in GROUP_SIZES]
        rows.append(["Dr. GRPO against GRPO", *(change(find(found, *pair, number)) for pair in pairs)])
    rows.append(["silent share, GRPO", *(cell(arms[f"GRPO, G = {G}"]["silent"], 2) for G in GROUP_SIZES)])
    return markdown(["G", *map(str, GROUP_SIZES)], rows)


def sampling_table(found: dict) -> str:
    shown = [("pass", 1), ("majority", 4), ("majority", 64), ("pass", 4), ("pass", 16), ("pass", 64)]
    header = ["policy", "Pass@1 = Maj@1", "Maj@4", "Maj@64", "Pass@4", "Pass@16", "Pass@64"]
    rows = [[arm, *(cell(of[kind][KS.index(k)]) for kind, k in shown)] for arm, of in found["arms"].items()]
    return markdown(header, rows)


def note(found: dict) -> str:
    """What the brackets and the bold type of a table mean, its family, and what it would take to see one point."""
    in_all, seeds = len(found["comparisons"]), len(found["seeds"])
    seen = sum(comparison["p_holm"] < paired.LEVEL for comparison in found["comparisons"])
    return f"""\
{seeds} seeds; brackets are 95 % t intervals. Differences are paired by seed, in points of accuracy (others in their own
units); bold: p < .05 after Holm's correction over this table's {in_all} comparisons ({seen} of them). To see 1 point at
equal completions (sd over seeds {100 * found["sd"]:.1f}) in four repetitions of five, as the only comparison, takes
{found["seeds_for_a_point"]} seeds."""
