"""The numbers of compare.py, the comparisons that its tables make, and the tables."""

import json
import re
import textwrap
from itertools import pairwise

import numpy as np

from lessons.experiments import paired
from lessons.experiments.compare_runs import ABLATION, GROUP_SIZES, KS, LADDER, SCRIPTS, TO_REINFORCE

NUMBERS = (
    "final", "at_budget", "mean_accuracy", "completions", "update_norm", "clipped",
    "clipped_up_probability", "entropy", "length_right", "length_wrong", "truncated", "silent", "silent_trained_on",
)  # fmt: skip
IN_POINTS = ("at_budget", "mean_accuracy")  # of accuracy
SAMPLED = (("pass", 1), ("majority", 4), ("majority", 64), ("pass", 4), ("pass", 16), ("pass", 64))
LEGEND = "Brackets: 95 % intervals. Bold: p < .05 after Holm's correction over the comparisons of the table."
# All ask which script differs from GRPO, and some of their runs are the same.
ONE_FAMILY = ("shared", "matched", "tuned")
AIME_2024 = (30, 36, 38, 41, 42, 50)  # of the rows of DAPO's Table 1

# ---------------------------------------------------------------------- numbers


def training_numbers(arms: dict[str, list[dict | None]]) -> dict:
    """Plain data of an experiment, from the summaries of each arm by seed; None for a run that diverged."""
    results = {}
    for arm, runs in arms.items():
        first = next(filter(None, runs))
        results[arm] = {name: first[name] for name in ("learning_rate", "budget")}
        results[arm] |= {name: paired.estimate([run and run[name] for run in runs]) for name in NUMBERS}
    return results


def sampling_numbers(arms: dict[str, dict[str, np.ndarray]]) -> dict:
    """Plain data from each arm's rates of "pass" and "majority", arrays (seeds, KS, problems): of each k the mean with
    its interval; and the differences from the base that the table shows, problem by problem."""

    def each_k(rates: np.ndarray) -> list[dict]:
        return [
            {"k": k, "mean": float(rates[:, i].mean()), "interval": paired.interval_over_both(rates[:, i])}
            for i, k in enumerate(KS)
        ]

    comparisons = [
        {"arm": arm, "other": "base", "number": f"{kind}@{k}"}
        | paired.difference_over_both(kinds[kind][:, KS.index(k)] - arms["base"][kind][:, KS.index(k)])
        for arm, kinds in arms.items() if arm != "base" for kind, k in SAMPLED[:-1]  # .999 of the base's leaves no room
    ]  # fmt: skip
    paired.holm(comparisons)
    shown = {arm: {kind: each_k(rates) for kind, rates in kinds.items()} for arm, kinds in arms.items()}
    return {"arms": shown, "comparisons": comparisons}


def family(experiment: str) -> list[tuple[str, str, str]]:
    """The comparisons of an experiment's table: arm, other arm, number."""
    if experiment in ("ablation", "reinforce"):
        arms = ABLATION if experiment == "ablation" else TO_REINFORCE
        return [(arm, above, number) for above, arm in pairwise(arms) for number in IN_POINTS]
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
    spread = [c["sd"] for c in comparisons if c["number"] == "at_budget" and c["sd"]]
    sd = float(np.median(spread)) if spread else None
    return {"comparisons": comparisons, "sd": sd, "seeds_for_a_point": sd and paired.seeds_needed(sd, 0.01)}


def correct(results: dict) -> int:
    """Correct the comparisons of the tables in ONE_FAMILY together, each once, however many tables show it: those of
    the same runs get the same `p_holm`. Returns how many different ones there are."""
    same: dict[tuple, list[dict]] = {}
    for found in (results[name] for name in ONE_FAMILY if name in results):
        for c in found["comparisons"]:
            seeds = (tuple(found["arms"][arm][c["number"]]["seeds"]) for arm in (c["arm"], c["other"]))
            same.setdefault((c["number"], *seeds), []).append(c)
    different = [copies[0] for copies in same.values()]
    paired.holm(different)
    for first, *copies in same.values():
        for copy in copies:
            copy["p_holm"] = first["p_holm"]
    return len(different)


def rounded(data: dict) -> dict:
    """The same plain data with its floats to 4 significant digits."""
    return json.loads(json.dumps(data), parse_float=lambda text: float(f"{float(text):.4g}"))


# ---------------------------------------------------------------------- tables


def cell(number: dict, digits: int = 3) -> str:
    """Mean and interval, ".926 [.919, .932]", and of how many runs, where some diverged."""
    values = [number["mean"], *(number["interval"] or [])]
    mean, *ends = (re.sub(r"^(-?)0\.", r"\1.", f"{value:,.{digits}f}") for value in values)
    seeds = number.get("seeds", [])
    of = f" ({len(seeds) - seeds.count(None)} of {len(seeds)} runs)" if None in seeds else ""
    return f"{mean} [{', '.join(ends)}]{of}" if ends else mean + of


def find(found: dict, arm: str, other: str, number: str = "at_budget") -> dict:
    """A comparison of an experiment."""
    (comparison,) = (c for c in found["comparisons"] if (c["arm"], c["other"], c["number"]) == (arm, other, number))
    return comparison


def change(comparison: dict, digits: int = 1) -> str:
    """A difference with its interval, "+1.2 [+0.3, +2.1]", of accuracies in points; bold if p < .05 after Holm."""
    if comparison["difference"] is None:
        return ""
    scale = 1 if comparison["number"] in ("length_wrong", "entropy") else 100
    values = [comparison["difference"], *(comparison["interval"] or [])]
    values[0] = round(scale * values[0], digits) / scale + 0.0  # never "−0.0"; the ends of an interval keep their sign
    mean, *ends = (f"{scale * value:+.{digits}f}".replace("-", "−") for value in values)
    text = f"{mean} [{', '.join(ends)}]" if ends else mean
    return f"**{text}**" if comparison["p_holm"] < paired.LEVEL else text


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table as GitHub reads it."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def table(experiment: str, found: dict) -> str:
    """An experiment's table, at most seven columns, and below it what its numbers are."""
    make = {"pieces": pieces_table, "ablation": ablation_table, "reinforce": reinforce_table,
            "sampling": sampling_table, "group_size": group_size_table}  # fmt: skip
    rows = make[experiment](found) if experiment in make else script_table(experiment, found)
    return f"{rows}\n\n{note(found)}"


def budget_of(found: dict) -> str:
    """ "at 15,360 completions", those at which an experiment compares."""
    budget = next(iter(found["arms"].values()))["budget"]
    return f"at {budget:,} completions"


def script_table(experiment: str, found: dict) -> str:
    """shared, matched and tuned: besides accuracies, what the experiment is about."""
    arms, told = found["arms"], {arm: [] for arm in found["arms"]}
    title = {"shared": [], "matched": ["learning rate, update length"], "tuned": ["learning rate"]}[experiment]
    for arm, n in arms.items():
        rate = f"{1e4 * n['learning_rate']:g}e-4"
        if experiment == "matched":
            told[arm] = [f"{rate}, {cell(n['update_norm'], 4)}"]
        elif experiment == "tuned":
            smallest, *_, largest = found["tuning"][arm]
            told[arm] = [rate + " (the edge)" * (n["learning_rate"] in (float(smallest), float(largest)))]
    header = ["script", *title, budget_of(found), "against GRPO", "mean over training", "against GRPO", "goes on to"]
    rows = []
    for arm, n in arms.items():
        at_budget, mean = ("" if arm == "GRPO" else change(find(found, arm, "GRPO", name)) for name in IN_POINTS)
        goes_on = n["completions"]["mean"] > n["budget"]  # only with dynamic sampling
        end = f"{cell(n['final'])} at {cell(n['completions'], 0)}" if goes_on else ""
        rows.append([arm, *told[arm], cell(n["at_budget"]), at_budget, cell(n["mean_accuracy"]), mean, end])
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
    header, *rows = one_by_one(found)
    header[1:1] = ["AIME 2024, published"]
    for row, n, published in zip(rows, found["arms"].values(), AIME_2024):
        silent = n["silent_trained_on"]
        row[1:1] = [str(published)]
        row += [cell(silent, 2) if any(silent["seeds"]) else "0, by construction"]
    return markdown([*header, "silent share trained on"], rows)


def reinforce_table(found: dict) -> str:
    header, *rows = one_by_one(found)
    for row, n in zip(rows, found["arms"].values()):
        row += [cell(n["update_norm"], 4), cell(n["entropy"])]
    return markdown([*header, "update length", "entropy"], rows)


def one_by_one(found: dict) -> list[list[str]]:
    """Header and rows where each arm is compared with the one above it."""
    above = {arm: other for other, arm in pairwise(found["arms"])}
    rows = [["change, on top of the row above", budget_of(found), "against the row above",
             "mean over training", "against the row above"]]  # fmt: skip
    for arm, n in found["arms"].items():
        at_budget, mean = (change(find(found, arm, above[arm], name)) if arm in above else "" for name in IN_POINTS)
        rows.append([arm, cell(n["at_budget"]), at_budget, cell(n["mean_accuracy"]), mean])
    return rows


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
    names = {"pass": "Pass", "majority": "Maj"}
    header = ["policy", "Pass@1 = Maj@1", *(f"{names[kind]}@{k}" for kind, k in SAMPLED[1:])]
    rows = [["base", *(cell(found["arms"]["base"][kind][KS.index(k)]) for kind, k in SAMPLED)]]
    for arm, of in found["arms"].items():
        if arm != "base":
            *means, last = (cell(of[kind][KS.index(k)]).split(" ")[0] for kind, k in SAMPLED)
            changes = (change(find(found, arm, "base", f"{kind}@{k}")) for kind, k in SAMPLED[:-1])
            rows.append([arm, *map(", ".join, zip(means, changes)), last])
    return markdown(header, rows)


def filled(text: str) -> str:
    """The same words in lines of at most 120 characters."""
    return "\n".join(textwrap.wrap(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False))


def note(found: dict) -> str:
    """How many seeds a table has, what its bold type means, and what it would take to see one point."""
    comparisons = found["comparisons"]
    over = (
        "" if "sd" in found else "; brackets: bootstrap over seeds and problems; after the comma, points above the base"
    )
    bold = sum(c["p_holm"] < paired.LEVEL for c in comparisons)
    text = f"{len(found['seeds'])} seeds{over}; {bold} of this table's {len(comparisons)} comparisons are bold."
    if "sd" in found and (lost := sum(None in arm["final"]["seeds"] for arm in found["arms"].values())):
        text += f" Runs that diverged (in {lost} of the arms) are left out, which flatters these."
    if found.get("sd"):
        text += f" To see one point takes {found['seeds_for_a_point']} seeds (median sd of a difference "
        text += f"{100 * found['sd']:.1f})."
    return filled(text)
