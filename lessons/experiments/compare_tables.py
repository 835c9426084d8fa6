"""The numbers of compare.py: its comparisons, its tables, and answers in sentences whose numbers come from the results.

An answer asserts what its words claim. Where new results no longer bear that out, it must be written anew.
"""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np

from lessons.experiments import estimators, grid, paired
from lessons.experiments.grid import cell, filled, listed, markdown, short, signed
from lessons.experiments.paired import LEVEL
from toy_env import RunFailed

RESULTS = Path(__file__).parent / "results.json"
README, FRONT = RESULTS.parent / "README.md", RESULTS.parents[2] / "README.md"
LADDER = {"REINFORCE": "reinforce", "PPO": "ppo", "GRPO": "grpo", "Dr. GRPO": "dr_grpo", "DAPO": "dapo"}
LENGTHS = ("length_right", "length_wrong")
NUMBERS = (
    "final", "at_budget", "mean_accuracy", "completions", "update_norm", "clipped_up_probability", "entropy", *LENGTHS,
    "truncated", "silent", "silent_trained_on",
)  # fmt: skip
IN_POINTS = ("at_budget", "mean_accuracy")  # of accuracy
SAMPLED = (("pass", 1), ("majority", 4), ("majority", 64), ("pass", 4), ("pass", 16), ("pass", 64))
LEGEND = "Brackets: 95 % intervals. Bold: p < .05 after Holm's correction over the comparisons of the table."
ONE_FAMILY = ("shared", "matched", "tuned")  # all ask which script differs from GRPO, and they share runs
AIME_2024 = (30, 36, 38, 41, 42, 50)  # of the rows of DAPO's Table 1


def load() -> dict:
    """The committed results by experiment."""
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}


# ---------------------------------------------------------------------- numbers


def training_numbers(arms: dict[str, list[dict | None]]) -> dict:
    """The numbers of an experiment, from the summaries of each arm by seed; None for a run that diverged."""
    results = {}
    for arm, runs in arms.items():
        first = next(filter(None, runs))
        results[arm] = {name: first[name] for name in ("learning_rate", "budget")}
        results[arm] |= {name: paired.estimate([run and run[name] for run in runs]) for name in NUMBERS}
    return results


def sampling_numbers(arms: dict[str, dict[str, np.ndarray]], ks: tuple[int, ...]) -> dict:
    """The same from each arm's rates of "pass" and "majority", arrays (seeds, ks, problems): the mean at each k with
    its interval; and the differences from the base that the table shows, problem by problem."""

    def each_k(rates: np.ndarray) -> list[dict]:
        return [
            {"k": k, "mean": float(rates[:, i].mean()), "interval": paired.interval_over_both(rates[:, i])}
            for i, k in enumerate(ks)
        ]

    comparisons = [
        {"arm": arm, "other": "base", "number": f"{kind}@{k}"}
        | paired.difference_over_both(kinds[kind][:, ks.index(k)] - arms["base"][kind][:, ks.index(k)])
        for arm, kinds in arms.items() if arm != "base" for kind, k in SAMPLED[:-1]  # .999 of the base leaves no room
    ]  # fmt: skip
    paired.holm(comparisons)
    means = {arm: {kind: each_k(rates) for kind, rates in kinds.items()} for arm, kinds in arms.items()}
    return {"arms": means, "comparisons": comparisons}


def sizes(arms: dict) -> list[int]:
    """The group sizes of the arms "GRPO, G = 2", ..."""
    return [int(arm.split("= ")[1]) for arm in arms if arm.startswith("GRPO, G")]


def family(experiment: str, arms: dict) -> list[tuple[str, str, str]]:
    """The comparisons of an experiment's table: arm, other arm, number."""
    if experiment in ("ablation", "reinforce"):
        return [(arm, above, number) for above, arm in pairwise(arms) for number in IN_POINTS]
    if experiment == "group_size":
        against_8 = [(f"{script}, G = {G}", f"{script}, G = 8", number) for number in IN_POINTS
                     for script in ("GRPO", "Dr. GRPO") for G in sizes(arms) if G != 8]  # fmt: skip
        return against_8 + [(f"Dr. GRPO, G = {G}", f"GRPO, G = {G}", n) for n in IN_POINTS for G in sizes(arms)]
    numbers = (*IN_POINTS, "length_wrong", "entropy") if experiment == "pieces" else IN_POINTS
    return [(arm, "GRPO", number) for arm in arms if arm != "GRPO" for number in numbers]


def compared(experiment: str, arms: dict) -> dict:
    """The comparisons of an experiment's table, p values corrected over all of them; and the seeds at which a
    difference of one point at equal completions would be seen, from the median of their standard deviations."""
    comparisons = []
    for arm, other, number in family(experiment, arms):
        gap = paired.difference(arms[arm][number]["seeds"], arms[other][number]["seeds"])
        comparisons.append({"arm": arm, "other": other, "number": number} | gap)
    paired.holm(comparisons)
    spread = [c["sd"] for c in comparisons if c["number"] == "at_budget" and c["sd"]]
    sd = float(np.median(spread)) if spread else None
    return {"comparisons": comparisons, "sd": sd, "seeds_for_a_point": sd and paired.seeds_needed(sd, 0.01)}


def correct(results: dict) -> int:
    """Correct the comparisons of the tables in ONE_FAMILY together, each once, however many tables show it: comparisons
    of the same runs get the same `p_holm`. Returns the number of different comparisons."""
    same: dict[tuple, list[dict]] = {}
    for numbers in (results[name] for name in ONE_FAMILY if name in results):
        for c in numbers["comparisons"]:
            seeds = (tuple(numbers["arms"][arm][c["number"]]["seeds"]) for arm in (c["arm"], c["other"]))
            same.setdefault((c["number"], *seeds), []).append(c)
    different = [copies[0] for copies in same.values()]
    paired.holm(different)
    for first, *copies in same.values():
        for copy in copies:
            copy["p_holm"] = first["p_holm"]
    return len(different)


# ---------------------------------------------------------------------- tables


def find(results: dict, arm: str, other: str, number: str = "at_budget") -> dict:
    """A comparison of an experiment."""
    (comparison,) = (c for c in results["comparisons"] if (c["arm"], c["other"], c["number"]) == (arm, other, number))
    return comparison


def scale(comparison: dict) -> int:
    """100 for accuracies, whose differences are in points."""
    return 1 if comparison["number"] in ("length_wrong", "entropy") else 100


def change(comparison: dict, digits: int = 1) -> str:
    """A difference with its interval, "+1.2 [+0.3, +2.1]", of accuracies in points; bold if p < .05 after Holm."""
    return grid.change(comparison, digits, scale(comparison))


def table(experiment: str, results: dict) -> str:
    """An experiment's table, at most seven columns, and a note below it."""
    if experiment in ("shared", "matched", "tuned"):
        rows = script_table(experiment, results)
    elif experiment in ("ablation", "reinforce"):
        rows = stepwise_table(experiment, results)
    else:
        rows = {"pieces": pieces_table, "group_size": group_size_table, "sampling": sampling_table}[experiment](results)
    return f"{rows}\n\n{note(results)}"


def budget_of(results: dict) -> str:
    """ "at 15,360 completions", where an experiment compares."""
    return f"at {next(iter(results['arms'].values()))['budget']:,} completions"


def goes_on(numbers: dict, digits: int | None = None) -> str:
    """Where an arm with dynamic sampling ends, beyond the budget; empty for the others."""
    drawn = numbers["completions"]
    if drawn["mean"] <= numbers["budget"]:
        return ""
    return f"{cell(numbers['final'])} at {cell(drawn, 0) if digits is None else short(drawn['mean'], digits)}"


def accuracies(results: dict, arm: str, other: str) -> list[str]:
    """Accuracy at the budget and averaged over training, each followed by its difference from another arm, if any."""
    cells = []
    for number in IN_POINTS:
        gap = change(find(results, arm, other, number)) if other not in ("", arm) else ""
        cells += [cell(results["arms"][arm][number]), gap]
    return cells


def script_table(experiment: str, results: dict) -> str:
    """shared, matched and tuned: besides accuracies, what the experiment varies."""
    title = {"shared": [], "matched": ["learning rate, update length"], "tuned": ["learning rate"]}[experiment]
    header = ["script", *title, budget_of(results), "against GRPO", "mean over training", "against GRPO", "goes on to"]
    rows = []
    for arm, n in results["arms"].items():
        rate, varied = f"{1e4 * n['learning_rate']:g}e-4", []
        if experiment == "matched":
            varied = [f"{rate}, {cell(n['update_norm'], 4)}"]
        elif experiment == "tuned":
            smallest, *_, largest = map(float, results["tuning"][arm])
            varied = [rate + " (the edge)" * (n["learning_rate"] in (smallest, largest))]
        rows.append([arm, *varied, *accuracies(results, arm, "GRPO"), goes_on(n)])
    return markdown(header, rows)


def stepwise_table(experiment: str, results: dict) -> str:
    """ablation and reinforce: each arm is compared with the one above it."""
    header = ["change, on top of the row above", budget_of(results), "against the row above",
              "mean over training", "against the row above"]  # fmt: skip
    rows, above = [], ""
    for arm, n in results["arms"].items():
        rows.append([arm, *accuracies(results, arm, above)])
        silent = n["silent_trained_on"]
        if experiment == "reinforce":
            rows[-1] += [cell(n["update_norm"], 4), cell(n["entropy"])]
        else:
            rows[-1].append(cell(silent, 2) if any(silent["seeds"]) else "0, by construction")
            rows[-1].insert(1, str(AIME_2024[len(rows) - 1]))
        above = arm
    if experiment == "reinforce":
        return markdown([*header, "update length", "entropy"], rows)
    return markdown([header[0], "AIME 2024, published", *header[1:], "silent share trained on"], rows)


def summary_table(results: dict) -> str:
    """What the front page shows of the experiment `shared`: the ladder."""
    rows = []
    for arm in LADDER:
        gap = "" if arm == "GRPO" else change(find(results, arm, "GRPO"))
        rows.append([arm, cell(results["arms"][arm]["at_budget"]), gap, goes_on(results["arms"][arm], 0)])
    return markdown(["script", budget_of(results), "against GRPO, points", "goes on to"], rows)


def pieces_table(results: dict) -> str:
    header = ["", budget_of(results), "mean over training", "length of wrong completions", "entropy"]
    digits = {"at_budget": (3, 1), "mean_accuracy": (3, 1), "length_wrong": (1, 1), "entropy": (3, 3)}
    grpo, *others = results["arms"]
    rows = [[grpo, *(cell(results["arms"][grpo][number], of_mean) for number, (of_mean, _) in digits.items())]]
    for arm in others:
        gaps = (change(find(results, arm, grpo, number), of_gap) for number, (_, of_gap) in digits.items())
        rows.append([f"{arm}: against GRPO", *gaps])
    return markdown(header, rows)


def group_size_table(results: dict) -> str:
    arms, rows, all_sizes = results["arms"], [], sizes(results["arms"])
    for title, number in zip((budget_of(results), "mean over training"), IN_POINTS):
        for script in ("GRPO", "Dr. GRPO"):
            names = {G: f"{script}, G = {G}" for G in all_sizes}
            rows.append([f"{script}, {title}", *(cell(arms[arm][number]) for arm in names.values())])
            gaps = ["" if G == 8 else change(find(results, arm, names[8], number)) for G, arm in names.items()]
            rows.append(["against G = 8", *gaps])
        pairs = [(f"Dr. GRPO, G = {G}", f"GRPO, G = {G}") for G in all_sizes]
        rows.append(["Dr. GRPO against GRPO", *(change(find(results, *pair, number)) for pair in pairs)])
    rows.append(["silent share, GRPO", *(cell(arms[f"GRPO, G = {G}"]["silent"], 2) for G in all_sizes)])
    return markdown(["G", *map(str, all_sizes)], rows)


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
    """How many seeds a table has, how many comparisons are bold, and what it would take to see one point."""
    comparisons, text = results["comparisons"], f"{len(results['seeds'])} seeds"
    if "sd" not in results:
        text += "; brackets: bootstrap over seeds and problems; after the comma, points above the base"
    bold = sum(c["p_holm"] < LEVEL for c in comparisons)
    text += f"; {bold} of this table's {len(comparisons)} comparisons are bold."
    if "sd" in results and (lost := sum(None in arm["final"]["seeds"] for arm in results["arms"].values())):
        text += f" Runs that diverged (in {lost} of the arms) are left out, which flatters these."
    if results.get("sd"):
        text += f" To see one point takes {results['seeds_for_a_point']} seeds (median sd of a difference "
        text += f"{100 * results['sd']:.1f})."
    return filled(text)


# ---------------------------------------------------------------------- answers


def ranked(results: dict, number: str, other: str = "GRPO") -> str:
    """Which arms lie above and below another, by how many points: those whose difference holds after correction; then
    those whose interval excludes 0 although their difference does not hold."""
    against = [c for c in results["comparisons"] if (c["number"], c["other"]) == (number, other) and c["interval"]]
    against.sort(key=lambda c: -abs(c["difference"]))
    seen = [c for c in against if c["p_holm"] < LEVEL]
    doubtful = [c for c in against if c not in seen and c["interval"][0] * c["interval"][1] > 0]

    def sides(comparisons: list[dict], first: str = "") -> str:
        """ "A (+1.0) and B (+0.5) are above GRPO and C (−2.0) is below it" """
        parts = []
        for word, sign in (("above", 1), ("below", -1)):
            names = [f"{c['arm']} ({signed(100 * c['difference'])})" for c in comparisons if c["difference"] * sign > 0]
            if names:
                verb = "" if not first else " is" if len(names) == 1 else " are"
                parts.append(f"{listed(names)}{verb} {word} {'it' if parts or not first else first}")
        return " and ".join(parts)

    text = sides(seen, other) or "no difference survives the correction"
    return text + (f" (before the correction also {sides(doubtful)})" if doubtful else "")


def points(comparison: dict, sign: int = 1) -> str:
    """A difference and its interval in text, "1.2 [0.3, 2.1]", in points if of accuracy; with sign -1, a loss."""
    times = sign * scale(comparison)
    mean, low, high = (times * value for value in (comparison["difference"], *comparison["interval"]))
    return f"{mean:.1f} [{min(low, high):.1f}, {max(low, high):.1f}]".replace("-", "−")


def means(results: dict, number: str) -> dict[str, float]:
    return {arm: numbers[number]["mean"] for arm, numbers in results["arms"].items()}


def shared(results: dict) -> str:
    arms, ends, drawn = results["arms"], means(results, "at_budget").values(), means(results, "completions")
    budget = arms["GRPO"]["budget"]
    final = [arms[name]["final"]["mean"] for name in ("DAPO", "CISPO")]
    assert min(final) > max(ends) and sum(completions > budget for completions in drawn.values()) == 2
    return f"""
    **At equal completions all nine lie between {short(min(ends))} and {short(max(ends))}**:
    {ranked(results, "at_budget")}.
    Averaged over training {ranked(results, "mean_accuracy")}.
    DAPO and CISPO go on to {short(final[0])} and {short(final[1])}, for {drawn["DAPO"] / budget:.1f} and
    {drawn["CISPO"] / budget:.1f} times the completions; the others stop at {budget:,}.
    """


def front(results: dict) -> str:
    """What the front page says, from the results of all experiments."""
    (_, dr_grpo, no_kl, *_), comparison = results["reinforce"]["arms"], results["shared"]
    gained, without = find(results["reinforce"], no_kl, dr_grpo), means(results["reinforce"], "at_budget")[no_kl]
    ends, dapo = means(comparison, "at_budget"), comparison["arms"]["DAPO"]
    (seen,) = [c for c in comparison["comparisons"] if c["number"] == "at_budget" and c["p_holm"] < LEVEL]
    assert (seen["arm"], seen["difference"] > 0) == ("REINFORCE", True) and dapo["final"]["mean"] > max(ends.values())
    assert gained["p_holm"] < LEVEL and gained["difference"] > 0 and without > ends["REINFORCE"]
    return f"""
    At equal completions all nine lie from {short(min(ends.values()))} to {short(max(ends.values()))}; after correction
    only REINFORCE differs from GRPO. That is a statement about defaults: REINFORCE has no KL term.
    Dr. GRPO, whose paper has none either, gains {points(gained)} points without it and ends at {short(without)}.
    DAPO goes on to {short(dapo["final"]["mean"])}, for {dapo["completions"]["mean"] / dapo["budget"]:.1f} times the
    completions.
    """


def pieces(results: dict) -> str:
    grpo, *arms = results["arms"]
    sigma, length, both = ([find(results, arm, grpo, n) for n in ("mean_accuracy", "length_wrong")] for arm in arms)
    assert sigma[0]["difference"] < 0 < both[0]["difference"] < length[0]["difference"] and sigma[1]["difference"] < 0
    assert max(c["p_holm"] for c in (sigma[0], length[0], both[0], sigma[1], both[1])) < LEVEL < length[1]["p_holm"]
    steps = means(results, "update_norm")
    shorter, longer = (steps[arm] / steps[grpo] - 1 for arm in arms[:2])
    assert shorter < 0 < longer
    return f"""
    **The two pull in opposite directions**: averaged over training, the constant length gains {points(length[0])}
    points and no ÷ σ costs {points(sigma[0], -1)}.
    Without ÷ σ wrong completions get shorter, by {points(sigma[1], -1)} tokens; the constant length changes them
    little.
    Updates change with the accuracy, too: {-shorter:.0%} shorter without ÷ σ, {longer:.0%} longer with the constant
    length.
    """


def ablation(results: dict) -> str:
    arms = results["arms"]
    (seen,) = (c for c in results["comparisons"] if c["number"] == "at_budget" and c["p_holm"] < LEVEL)
    punished, token_level = (
        find(results, arm, above, "mean_accuracy")
        for above, arm in pairwise(arms) if arm in ("+ soft overlong punishment", "+ token-level loss")
    )  # fmt: skip
    assert seen["arm"] == "+ dynamic sampling" and max(c["p_holm"] for c in (punished, token_level)) < LEVEL
    assert punished["difference"] < 0 < token_level["difference"]
    before, after = (arms[name] for name in ("+ clip-higher", "+ soft overlong punishment"))
    cut, wrong = ([n[number]["mean"] for n in (before, after)] for number in ("truncated", "length_wrong"))
    assert seen["difference"] > 0 and cut[0] > 5 * cut[1] and wrong[0] > 2 * wrong[1]
    last = arms[seen["arm"]]
    return f"""
    **At equal completions only dynamic sampling survives the correction**, {points(seen)} points; it goes on to
    {short(last["final"]["mean"])} at {last["completions"]["mean"]:,.0f}.
    Averaged over training the token-level loss gains {points(token_level)} and the soft punishment costs
    {points(punished, -1)}.
    The punishment does what it says: {cut[1]:.0%} of completions are cut and not {cut[0]:.0%}, and wrong ones end at
    {wrong[1]:.0f} tokens and not {wrong[0]:.0f}.
    """


def matched(results: dict) -> str:
    reinforce, arms = find(results, "REINFORCE", "GRPO"), results["arms"]
    rates = {arm: n["learning_rate"] for arm, n in arms.items()}
    assert reinforce["p_holm"] < LEVEL and reinforce["difference"] < 0
    assert rates["PPO"] == rates["Dr. GRPO"] == rates["GRPO"] > rates["DAPO"] > rates["REINFORCE"]
    return f"""
    **At equal completions {ranked(results, "at_budget")}**; averaged over training {ranked(results, "mean_accuracy")}.
    REINFORCE, with a quarter of the updates, is still climbing at {arms["GRPO"]["budget"]:,}.
    """


def tuned(results: dict) -> str:
    ends = means(results, "at_budget")
    assert max(ends, key=ends.get) == "REINFORCE"
    return f"""
    **Tuned, all nine lie between {short(min(ends.values()))} and {short(max(ends.values()))}:
    {ranked(results, "at_budget")}.**
    Rates are chosen for the end, not for the mean over training.
    """


def reinforce(results: dict) -> str:
    dr_grpo, no_kl, one_update, no_baseline = (find(results, arm, above) for above, arm in pairwise(results["arms"]))
    assert max(c["p_holm"] for c in (no_kl, one_update, no_baseline)) < LEVEL < dr_grpo["p_holm"]
    assert no_kl["difference"] > no_baseline["difference"] > 0 > one_update["difference"]
    without, with_baseline = (
        [estimators.cosine("arithmetic", step, name) for step in (0, 60)] for name in ("no baseline", "σ^2")
    )
    assert all(a > b for a, b in zip(without, with_baseline))
    return f"""
    **Two changes lift it, one holds it back**: at equal completions Dr. GRPO gains {points(no_kl)} points without its
    KL term and {points(no_baseline)} without the baseline; one update a batch in place of four costs
    {points(one_update, -1)}.
    Without a baseline the update of a batch is closer to the true gradient: [lesson 13](../13_quiet_estimators.ipynb)
    measures a cosine of {short(without[0], 2)} at the base against {short(with_baseline[0], 2)}, and after 60 steps
    {short(without[1], 2)} against {short(with_baseline[1], 2)}.
    That need not be why it ends higher: without a baseline all-right groups push, too.
    """


def group_size(results: dict) -> str:
    ends = {(script, G): find(results, f"{script}, G = {G}", f"{script}, G = 8")
            for script in ("GRPO", "Dr. GRPO") for G in sizes(results["arms"]) if G != 8}  # fmt: skip
    lost = {arm for arm, c in ends.items() if c["p_holm"] < LEVEL}
    assert lost == {("GRPO", 64), ("Dr. GRPO", 64), ("Dr. GRPO", 2)} and all(
        ends[arm]["difference"] < 0 for arm in lost
    )
    silent, two = means(results, "silent"), find(results, "Dr. GRPO, G = 2", "GRPO, G = 2")
    at_64, at_2 = silent["GRPO, G = 64"], silent["GRPO, G = 2"]
    assert two["interval"][1] < 0 < LEVEL < two["p_holm"] and at_64 < 0.1 < 0.7 < at_2
    return f"""
    **At equal completions no difference from 8 survives from 4 to 32; 64 loses {points(ends["GRPO", 64], -1)} points
    under GRPO and {points(ends["Dr. GRPO", 64], -1)} under Dr. GRPO, 2 loses {points(ends["Dr. GRPO", 2], -1)} under
    Dr. GRPO.**
    Fewest silent groups do not make the best size: at 64 only {short(at_64, 2)} are silent (at 2:
    {short(at_2, 2)}), but a batch holds four prompts.
    At 2, where ÷ σ is a constant ([lesson 9](../09_objective.ipynb)), Dr. GRPO ends {points(two, -1)} below GRPO before
    the correction: the length divisor and the KL's relative weight are left.
    """


def sampling(results: dict) -> str:
    base, *others = results["arms"]
    first = {column: rate_of(results, base, *column)["mean"] for column in SAMPLED}
    least = {column: min(rate_of(results, arm, *column)["mean"] for arm in others) for column in SAMPLED}
    assert all(c["p_holm"] < LEVEL and c["difference"] > 0 for c in results["comparisons"])
    assert first["pass", 64] > 0.99 and first["majority", 64] < 0.5
    return f"""
    **Here RL lifts both**: Maj@64 from {short(first["majority", 64], 2)} to {short(least["majority", 64], 2)} or more,
    Pass@4 from {short(first["pass", 4], 2)} to {short(least["pass", 4], 2)} or more.
    The base solves nearly everything in 64 attempts (Pass@64 = {short(first["pass", 64])}), while on more than
    half of the problems its most frequent answer is wrong.
    """


def answer(experiment: str, results: dict) -> str:
    """What an experiment of compare.py shows, in lines of at most 120 characters; `front`: what all of them show.

    Raises RunFailed if the results do not bear out what is said of them here.
    """
    answers = (shared, front, matched, tuned, reinforce, pieces, ablation, group_size, sampling)
    write = {function.__name__: function for function in answers}
    try:
        return filled(write[experiment](results))
    except (AssertionError, ValueError):  # a claim does not hold, or a comparison is not the only one
        raise RunFailed(
            f"the results of {experiment!r} no longer bear out what compare_tables.py says of them; write that anew"
        ) from None


def texts(results: dict) -> dict[Path, dict[str, str]]:
    """The tables and answers, by the page and the place where they stand."""
    of_readme = {}
    for experiment, numbers in results.items():
        of_readme |= {experiment: table(experiment, numbers), f"{experiment}-answer": answer(experiment, numbers)}
    of_front = {}
    if {"shared", "reinforce"} <= results.keys():
        of_front["summary"] = f"{summary_table(results['shared'])}\n\n{answer('front', results)}"
    return {README: of_readme, FRONT: of_front}
