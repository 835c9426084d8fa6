"""What the tables of compare.py say, in sentences whose numbers come from the same results.

Where the results no longer bear out what a sentence claims, an assertion fails, and the sentence is to be written anew.
"""

from itertools import pairwise

from lessons.experiments import update_length_tables
from lessons.experiments.compare_runs import ABLATION, GROUP_SIZES, KS, TO_REINFORCE
from lessons.experiments.compare_tables import filled, find
from lessons.experiments.paired import LEVEL
from toy_env import RunFailed


def short(value: float, digits: int = 3) -> str:
    """.926"""
    return f"{value:.{digits}f}".removeprefix("0")


def listed(items: list[str]) -> str:
    """a, b and c"""
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]]))


def told(found: dict, number: str, other: str = "GRPO") -> str:
    """Which arms lie above and below another, by how many points: those whose difference holds after correction; then
    those whose interval excludes 0, but whose difference does not."""
    against = [c for c in found["comparisons"] if (c["number"], c["other"]) == (number, other) and c["interval"]]
    against.sort(key=lambda c: -abs(c["difference"]))
    seen = [c for c in against if c["p_holm"] < LEVEL]
    doubtful = [c for c in against if c not in seen and c["interval"][0] * c["interval"][1] > 0]

    def names(comparisons: list[dict]) -> str:
        return listed([f"{c['arm']} ({100 * c['difference']:+.1f})".replace("-", "−") for c in comparisons])

    def sides(comparisons: list[dict], first: str = "") -> str:
        """ "A (+1.0) and B (+0.5) are above GRPO and C (−2.0) is below it" """
        parts = []
        for word, sign in (("above", 1), ("below", -1)):
            if arms := [c for c in comparisons if c["difference"] * sign > 0]:
                verb = "" if not first else " is" if len(arms) == 1 else " are"
                parts.append(f"{names(arms)}{verb} {word} {'it' if parts or not first else first}")
        return " and ".join(parts)

    text = sides(seen, other) or "no difference survives the correction"
    return text + (f" (before the correction also {sides(doubtful)})" if doubtful else "")


def points(comparison: dict, sign: int = 1) -> str:
    """A difference and its interval in text, "1.2 [0.3, 2.1]", in points if of accuracy; with sign -1, of a loss."""
    scale = sign * (1 if comparison["number"] == "length_wrong" else 100)
    mean, low, high = (scale * value for value in (comparison["difference"], *comparison["interval"]))
    return f"{mean:.1f} [{min(low, high):.1f}, {max(low, high):.1f}]".replace("-", "−")


def shared(found: dict) -> str:
    arms = found["arms"]
    ends = [n["at_budget"]["mean"] for n in arms.values()]
    times = [arms[name]["completions"]["mean"] / arms[name]["budget"] for name in ("DAPO", "CISPO")]
    on = [arms[name]["final"]["mean"] for name in ("DAPO", "CISPO")]
    assert min(on) > max(ends) and sum(n["completions"]["mean"] > n["budget"] for n in arms.values()) == 2
    return f"""
    **At equal completions all nine lie between {short(min(ends))} and {short(max(ends))}**:
    {told(found, "at_budget")}.
    Averaged over training {told(found, "mean_accuracy")}.
    DAPO and CISPO go on to {short(on[0])} and {short(on[1])}, for {times[0]:.1f} and {times[1]:.1f} times the
    completions; the others stop at {arms["GRPO"]["budget"]:,}.
    """


def front(results: dict) -> str:
    """What the front page says of all results."""
    _, dr_grpo, no_kl, *_ = TO_REINFORCE
    found, gained = results["shared"], find(results["reinforce"], no_kl, dr_grpo)
    arms, dapo, without = found["arms"], found["arms"]["DAPO"], results["reinforce"]["arms"][no_kl]["at_budget"]["mean"]
    ends = [n["at_budget"]["mean"] for n in arms.values()]
    (seen,) = [c for c in found["comparisons"] if c["number"] == "at_budget" and c["p_holm"] < LEVEL]
    assert (seen["arm"], seen["difference"] > 0) == ("REINFORCE", True) and dapo["final"]["mean"] > max(ends)
    assert gained["p_holm"] < LEVEL and gained["difference"] > 0 and without > arms["REINFORCE"]["at_budget"]["mean"]
    return f"""
    At equal completions all nine lie from {short(min(ends))} to {short(max(ends))}; after correction only REINFORCE
    differs from GRPO. That is a statement about defaults: REINFORCE has no KL term.
    Dr. GRPO, whose paper has none either, gains {points(gained)} points without it and ends at {short(without)}.
    DAPO goes on to {short(dapo["final"]["mean"])}, for {dapo["completions"]["mean"] / dapo["budget"]:.1f} times the
    completions.
    """


def pieces(found: dict) -> str:
    sigma, length, both = ([find(found, arm, "GRPO", number) for number in ("mean_accuracy", "length_wrong")]
                           for arm in ("GRPO, not / σ", "GRPO, constant length", "Dr. GRPO"))  # fmt: skip
    assert sigma[0]["difference"] < 0 < both[0]["difference"] < length[0]["difference"] and sigma[1]["difference"] < 0
    assert max(c["p_holm"] for c in (sigma[0], length[0], both[0], sigma[1], both[1])) < LEVEL < length[1]["p_holm"]
    steps = [found["arms"][arm]["update_norm"]["mean"] / found["arms"]["GRPO"]["update_norm"]["mean"] - 1
             for arm in ("GRPO, not / σ", "GRPO, constant length")]  # fmt: skip
    assert steps[0] < 0 < steps[1]
    return f"""
    **The two pull in opposite directions**: averaged over training, the constant length gains {points(length[0])}
    points and no ÷ σ costs {points(sigma[0], -1)}.
    Without ÷ σ wrong completions get shorter, by {points(sigma[1], -1)} tokens; the constant length changes them
    little.
    Updates change with the accuracy, too: {-steps[0]:.0%} shorter without ÷ σ, {steps[1]:.0%} longer with the constant
    length.
    """


def ablation(found: dict) -> str:
    arms = found["arms"]
    (seen,) = (c for c in found["comparisons"] if c["number"] == "at_budget" and c["p_holm"] < LEVEL)
    punished, token_level = (
        find(found, arm, above, "mean_accuracy")
        for above, arm in pairwise(ABLATION) if arm in ("+ soft overlong punishment", "+ token-level loss")
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


def matched(found: dict) -> str:
    reinforce, rates = find(found, "REINFORCE", "GRPO"), {arm: n["learning_rate"] for arm, n in found["arms"].items()}
    assert reinforce["p_holm"] < LEVEL and reinforce["difference"] < 0
    assert rates["PPO"] == rates["Dr. GRPO"] == rates["GRPO"] > rates["DAPO"] > rates["REINFORCE"]
    return f"""
    **At equal completions {told(found, "at_budget")}**; averaged over training {told(found, "mean_accuracy")}.
    REINFORCE, with a quarter of the updates, is still climbing at {found["arms"]["GRPO"]["budget"]:,}.
    """


def tuned(found: dict) -> str:
    ends = {arm: n["at_budget"]["mean"] for arm, n in found["arms"].items()}
    assert max(ends, key=ends.get) == "REINFORCE"
    return f"""
    **Tuned, all nine lie between {short(min(ends.values()))} and {short(max(ends.values()))}:
    {told(found, "at_budget")}.**
    Rates are chosen for the end, not for the mean over training.
    """


def reinforce(found: dict) -> str:
    dr_grpo, no_kl, one_update, no_baseline = (find(found, arm, above) for above, arm in pairwise(TO_REINFORCE))
    assert max(c["p_holm"] for c in (no_kl, one_update, no_baseline)) < LEVEL < dr_grpo["p_holm"]
    assert no_kl["difference"] > no_baseline["difference"] > 0 > one_update["difference"]
    results = update_length_tables.load()
    stages = [key for key in update_length_tables.stages_of(results) if key[0] == "arithmetic"]  # first the base
    variances = [
        update_length_tables.variance_without_baseline(update_length_tables.stage(results, *key)) for key in stages
    ]
    assert max(e.value for e in variances) < 1
    assert max(e.high for (*_, step), e in zip(stages, variances) if step < 60) < 1
    return f"""
    **Two changes lift it, one holds it back**: at equal completions Dr. GRPO gains {points(no_kl)} points without its
    KL term and {points(no_baseline)} without the baseline; one update a batch in place of four costs
    {points(one_update, -1)}.
    Without a baseline a gradient has {variances[0]} of the variance that it has with the mean of seven others
    ([lesson 3](../03_group_baseline.ipynb); lesson 13's base; below 1 after 20 steps too, not settled after 60).
    That need not be why it ends higher: without a baseline all-right groups push, too.
    """


def group_size(found: dict) -> str:
    def against_8(script: str, G: int) -> dict:
        return find(found, f"{script}, G = {G}", f"{script}, G = 8")

    ends = {(script, G): against_8(script, G) for script in ("GRPO", "Dr. GRPO") for G in GROUP_SIZES if G != 8}
    lost = {where for where, c in ends.items() if c["p_holm"] < LEVEL}
    assert lost == {("GRPO", 64), ("Dr. GRPO", 64), ("Dr. GRPO", 2)} and all(ends[at]["difference"] < 0 for at in lost)
    silent = [found["arms"][f"GRPO, G = {G}"]["silent"]["mean"] for G in (2, 64)]
    two = find(found, "Dr. GRPO, G = 2", "GRPO, G = 2")
    assert two["interval"][1] < 0 < LEVEL < two["p_holm"] and silent[1] < 0.1 < 0.7 < silent[0]
    return f"""
    **At equal completions no difference from 8 survives from 4 to 32; 64 loses {points(ends["GRPO", 64], -1)} points
    under GRPO and {points(ends["Dr. GRPO", 64], -1)} under Dr. GRPO, 2 loses {points(ends["Dr. GRPO", 2], -1)} under
    Dr. GRPO.**
    Fewest silent groups do not make the best size: at 64 only {short(silent[1], 2)} are silent (at 2:
    {short(silent[0], 2)}), but a batch holds four prompts.
    At 2, where ÷ σ is a constant ([lesson 9](../09_objective.ipynb)), Dr. GRPO ends {points(two, -1)} below GRPO before
    the correction: the length divisor and the KL's relative weight are left.
    """


def sampling(found: dict) -> str:
    def of(arm: str, kind: str, k: int) -> float:
        return found["arms"][arm][kind][KS.index(k)]["mean"]

    trained = [arm for arm in found["arms"] if arm != "base"]
    maj, passed = (min(of(arm, *at) for arm in trained) for at in (("majority", 64), ("pass", 4)))
    assert all(c["p_holm"] < LEVEL and c["difference"] > 0 for c in found["comparisons"])
    assert of("base", "pass", 64) > 0.99 and of("base", "majority", 64) < 0.5
    return f"""
    **Here RL lifts both**: Maj@64 from {short(of("base", "majority", 64), 2)} to {short(maj, 2)} or more, Pass@4 from
    {short(of("base", "pass", 4), 2)} to {short(passed, 2)} or more.
    The base solves nearly everything in 64 attempts (Pass@64 = {short(of("base", "pass", 64))}), while on more than
    half of the problems its most frequent answer is wrong.
    """


def answer(experiment: str, found: dict) -> str:
    """What an experiment of compare.py shows (`front`: all together), in lines of at most 120 characters.

    Raises RunFailed if the results do not bear out what is said of them here.
    """
    write = {
        of.__name__: of for of in (shared, front, matched, tuned, reinforce, pieces, ablation, group_size, sampling)
    }
    try:
        return filled(write[experiment](found))
    except (AssertionError, ValueError):  # a claim, or that a comparison is the only one
        raise RunFailed(
            f"the results of {experiment!r} no longer bear out what compare_answers.py says of them; write that anew"
        ) from None
