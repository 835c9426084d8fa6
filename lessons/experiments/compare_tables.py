"""The numbers of compare.py: its comparisons and its tables.

What the pages say of them in words and numbers is asserted in tests/test_compare.py.
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
UNTESTED = {  # they ask again which script differs from GRPO, which `shared` tests: their columns beside its own
    "no_kl": "both without KL", "matched": "at equal update length",
}  # fmt: skip
STEPWISE = ("ablation", "movement")  # each arm is compared with the one above it
AIME_2024 = (30, 36, 38, 41, 42, 50)  # of the rows of DAPO's Table 1
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
        results[arm] |= {
            name: paired.estimate([run and run[name] for run in runs]) for name in NUMBERS
        }
    return results


def sampling_numbers(arms: dict[str, dict[str, np.ndarray]], ks: tuple[int, ...]) -> dict:
    """The same from each arm's rates of "pass" and "majority", arrays (seeds, ks, problems): the
    mean at each k with its interval; and the differences from the base that the table shows,
    problem by problem."""

    def each_k(rates: np.ndarray) -> list[dict]:
        return [
            {
                "k": k,
                "mean": float(rates[:, i].mean()),
                "interval": paired.interval_over_both(rates[:, i]),
            }
            for i, k in enumerate(ks)
        ]

    comparisons = [
        {"arm": arm, "other": "base", "number": f"{kind}@{k}"}
        | paired.difference_over_both(kinds[kind][:, ks.index(k)] - arms["base"][kind][:, ks.index(k)])
        for arm, kinds in arms.items() if arm != "base" for kind, k in SAMPLED[:-1]  # .999 of the base leaves no room
    ]  # fmt: skip
    paired.holm(comparisons)
    means = {
        arm: {kind: each_k(rates) for kind, rates in kinds.items()} for arm, kinds in arms.items()
    }
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
    return {
        "comparisons": comparisons,
        "sd": sd,
        "seeds_for_a_point": sd and paired.seeds_needed(sd, 0.01),
    }


# ---------------------------------------------------------------------- tables


def find(results: dict, arm: str, other: str, number: str = "at_budget") -> dict:
    """A comparison of an experiment."""
    (comparison,) = (
        c
        for c in results["comparisons"]
        if (c["arm"], c["other"], c["number"]) == (arm, other, number)
    )
    return comparison


def change(comparison: dict, digits: int = 1) -> str:
    """A difference with its interval, "+1.2 [+0.3, +2.1]", of accuracies in points; bold if p < .05
    after Holm."""
    return grid.change(
        comparison, digits, 1 if comparison["number"] in ("length_wrong", "entropy") else 100
    )


def table(experiment: str, results: dict) -> str:
    """An experiment's table, at most seven columns, and a note below it."""
    own = {"pieces": pieces_table, "sampling": sampling_table}
    rows = own[experiment](results) if experiment in own else accuracy_table(experiment, results)
    return f"{rows}\n\n{note(results)}"


def budget_of(results: dict) -> str:
    """ "at 15,360 completions", where an experiment compares."""
    return f"at {next(iter(results['arms'].values()))['budget']:,} completions"


def goes_on(numbers: dict) -> str:
    """Where an arm with dynamic sampling ends, beyond the budget; empty for the others."""
    drawn = numbers["completions"]
    if drawn["mean"] <= numbers["budget"]:
        return ""
    return f"{cell(numbers['final'])} at {cell(drawn, 0)}"


def accuracy_table(experiment: str, results: dict) -> str:
    """Accuracy at the budget beside its difference: from GRPO, or, in STEPWISE experiments, from
    the arm above. Around them stands what else the experiment shows."""
    other, rows, (left, right) = "" if experiment in STEPWISE else "GRPO", [], BESIDE[experiment]
    first, above = (
        ("script", "GRPO") if other else ("change, on top of the row above", "the row above")
    )
    for row, (arm, n) in enumerate(results["arms"].items()):
        cells = [
            cell(n["at_budget"]),
            change(find(results, arm, other)) if other not in ("", arm) else "",
        ]
        shown = {"update length": cell(n["update_norm"], 4), "goes on to": goes_on(n)}
        shown["learning rate, update length"] = f"{rate(n)}, {shown['update length']}"
        if experiment == "ablation":
            silent = n["silent_trained_on"]
            shown["silent share trained on"] = (
                cell(silent, 2) if any(silent["seeds"]) else "0, by construction"
            )
            shown["AIME 2024, published"] = str(AIME_2024[row])
        rows.append([arm, *map(shown.get, left), *cells, *map(shown.get, right)])
        other = arm if experiment in STEPWISE else other
    return markdown([first, *left, budget_of(results), f"against {above}", *right], rows)


def rate(numbers: dict) -> str:
    """An arm's learning rate."""
    return f"{1e4 * numbers['learning_rate']:g}e-4"


def headline(results: dict) -> str:
    """The table of several experiments: the scripts as they stand, then the differences from GRPO
    in the UNTESTED ones. Where an experiment's run is the one of `shared`, as GRPO's is, it is
    shown once."""
    shared, rows, again = results["shared"], [], [name for name in UNTESTED if name in results]
    for arm, n in shared["arms"].items():
        cells = [cell(n["at_budget"]), change(find(shared, arm, "GRPO")) if arm != "GRPO" else ""]
        for name in again:
            of_one, shown = results[name], []
            if arm in of_one["arms"]:
                same = (
                    name == "matched" and of_one["arms"][arm]["learning_rate"] == n["learning_rate"]
                )
                shown = [rate(of_one["arms"][arm])] if name == "matched" else []
                shown += [change(find(of_one, arm, "GRPO"))] if arm != "GRPO" and not same else []
            cells.append(": ".join(shown))
        rows.append([arm, *cells])
    titles = ["script", "as it stands", "against GRPO", *(UNTESTED[name] for name in again)]
    return f"{markdown(titles, rows)}\n\n{note(shared)}"


def summary_table(results: dict) -> str:
    """What the front page shows of the experiment `shared`, the ladder, and beside it of
    `no_kl`."""
    shared, no_kl, rows = results["shared"], results.get("no_kl"), []
    for arm in LADDER:
        gaps = [
            change(find(each, arm, "GRPO")) if each and arm != "GRPO" else ""
            for each in (shared, no_kl)
        ]
        rows.append([arm, cell(shared["arms"][arm]["at_budget"]), *gaps])
    return markdown(
        ["script", budget_of(shared), "against GRPO", "against GRPO, both without KL"], rows
    )


def pieces_table(results: dict) -> str:
    header = ["", budget_of(results), "length of wrong completions", "entropy"]
    digits = {"at_budget": (3, 1), "length_wrong": (1, 1), "entropy": (3, 3)}
    grpo, *others = results["arms"]
    rows = [
        [
            grpo,
            *(
                cell(results["arms"][grpo][number], of_mean)
                for number, (of_mean, _) in digits.items()
            ),
        ]
    ]
    for arm in others:
        gaps = (
            change(find(results, arm, grpo, number), of_gap)
            for number, (_, of_gap) in digits.items()
        )
        rows.append([f"{arm}: against GRPO", *gaps])
    return markdown(header, rows)


def rate_of(results: dict, arm: str, kind: str, k: int) -> dict:
    """pass@k or majority@k of an arm of `sampling`."""
    return next(rate for rate in results["arms"][arm][kind] if rate["k"] == k)


def sampling_table(results: dict) -> str:
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
    """How many seeds a table has, how many comparisons are bold, and what it would take to see one
    point."""
    tested, text = (
        [c for c in results["comparisons"] if "p_holm" in c],
        f"{len(results['seeds'])} seeds",
    )
    if "sd" not in results:
        text += (
            "; brackets: bootstrap over seeds and problems; after the comma, points above the base"
        )
    if tested:
        text += (
            f"; {sum(c['p_holm'] < LEVEL for c in tested)} of {len(tested)} comparisons are bold"
        )
    text += "."
    if "sd" in results and (
        lost := sum(None in arm["final"]["seeds"] for arm in results["arms"].values())
    ):
        text += f" Runs that diverged (in {lost} of the arms) are left out, which flatters these."
    if results.get("sd"):
        text += f" To see one point takes {results['seeds_for_a_point']} seeds."
    return text


def place(experiment: str) -> str:
    """Where an experiment's table stands on the page of results."""
    return "headline" if experiment in ("shared", *UNTESTED) else experiment


def texts(results: dict) -> dict[Path, dict[str, str]]:
    """The tables, by the page and the place where they stand."""
    own = {name: table(name, numbers) for name, numbers in results.items() if place(name) == name}
    if "shared" in results:
        own["headline"] = headline(results)
    return {README: own, FRONT: {"summary": summary_table(results)} if "shared" in results else {}}
