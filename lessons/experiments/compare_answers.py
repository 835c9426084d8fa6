"""What the tables of compare.py say, in sentences whose numbers come from the same results.

Where the results no longer bear out what a sentence claims, an assertion fails: write the sentence anew.
"""

from itertools import pairwise

from lessons.experiments import live_run
from lessons.experiments.compare_runs import ABLATION, GROUP_SIZES, KS, TO_REINFORCE
from lessons.experiments.compare_tables import filled, find
from lessons.experiments.paired import LEVEL


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

    parts = []
    for word in ("above", "below"):
        if arms := [c for c in seen if (c["difference"] > 0) == (word == "above")]:
            parts.append(f"{names(arms)} {'is' if len(arms) == 1 else 'are'} {word} {'it' if parts else other}")
    text = " and ".join(parts) or "no difference survives the correction"
    return text + (f" (before the correction also {names(doubtful)})" if doubtful else "")


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
    assert min(on) > max(ends)
    return f"""
    **At equal completions all nine lie between {short(min(ends))} and {short(max(ends))}**:
    {told(found, "at_budget")}.
    Averaged over training {told(found, "mean_accuracy")}: who starts fast does not end best.
    DAPO and CISPO go on to {short(on[0])} and {short(on[1])}, more than any other script, for {times[0]:.1f} and
    {times[1]:.1f} times the completions.
    """


def front(results: dict) -> str:
    """What the front page says of all results."""
    found, no_kl = results["shared"], find(results["reinforce"], "+ no KL", "Dr. GRPO")
    arms, dapo = found["arms"], found["arms"]["DAPO"]
    ends = [n["at_budget"]["mean"] for n in arms.values()]
    (seen,) = [c for c in found["comparisons"] if c["number"] == "at_budget" and c["p_holm"] < LEVEL]
    assert seen["arm"] == "REINFORCE" and dapo["final"]["mean"] > max(ends)
    assert no_kl["p_holm"] < LEVEL and no_kl["difference"] > 0
    return f"""
    At equal completions all nine lie from {short(min(ends))} to {short(max(ends))}; after correction only REINFORCE
    differs from GRPO.
    It has no KL term: without one, as in its paper, Dr. GRPO gains {points(no_kl)} points.
    DAPO ends best, for {dapo["completions"]["mean"] / dapo["budget"]:.1f} times the completions.
    """


def pieces(found: dict) -> str:
    sigma, length, both = ([find(found, arm, "GRPO", number) for number in ("mean_accuracy", "length_wrong")]
                           for arm in ("GRPO, not / σ", "GRPO, constant length", "Dr. GRPO"))  # fmt: skip
    assert sigma[0]["difference"] < 0 < both[0]["difference"] < length[0]["difference"]
    assert max(c["p_holm"] for c in (sigma[0], length[0], both[0], sigma[1], both[1])) < LEVEL < length[1]["p_holm"]
    return f"""
    **The two work against each other**: averaged over training, the constant length gains {points(length[0])} points
    and no ÷ σ costs {points(sigma[0], -1)}; Dr. GRPO, with both, lies between.
    Without ÷ σ wrong completions get shorter, by {points(sigma[1], -1)} tokens; with the constant length no
    difference in them is seen.
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
    last = arms[seen["arm"]]
    return f"""
    **At equal completions only dynamic sampling is seen**, {points(seen)} points; it goes on to
    {short(last["final"]["mean"])} at {last["completions"]["mean"]:,.0f}.
    Averaged over training the token-level loss gains {points(token_level)} and the soft punishment costs
    {points(punished, -1)}.
    The punishment does what it says: completions cut at the limit fall from {cut[0]:.0%} to {cut[1]:.0%}, wrong ones
    from {wrong[0]:.0f} tokens to {wrong[1]:.0f}.
    """


def matched(found: dict) -> str:
    reinforce, rates = find(found, "REINFORCE", "GRPO"), {arm: n["learning_rate"] for arm, n in found["arms"].items()}
    assert reinforce["p_holm"] < LEVEL and reinforce["difference"] < 0
    assert rates["PPO"] == rates["Dr. GRPO"] == rates["GRPO"] > rates["REINFORCE"]
    return f"""
    **At equal completions {told(found, "at_budget")}**; averaged over training {told(found, "mean_accuracy")}.
    REINFORCE makes a quarter of the updates, so it needs longer ones.
    """


def reinforce(found: dict) -> str:
    no_kl, one_update, no_baseline = (
        [find(found, arm, above, number) for number in ("at_budget", "mean_accuracy")]
        for above, arm in pairwise(TO_REINFORCE)
    )
    assert all(c["p_holm"] < LEVEL for c in found["comparisons"])
    assert min(no_kl[0]["difference"], no_baseline[0]["difference"], no_baseline[1]["difference"]) > 0
    assert one_update[0]["difference"] < 0 and one_update[1]["difference"] < 0
    base = live_run.variance_without_baseline(live_run.at(live_run.load(), "", 0))
    assert base.high < 1
    return f"""
    **It has no KL term**: at equal completions Dr. GRPO gains {points(no_kl[0])} points without it, while one update a
    batch in place of four costs {points(one_update[0], -1)}.
    To drop the baseline gains {points(no_baseline[0])}: wrong answers have the longer scores here, and then a baseline
    adds variance (lessons [1](../01_score_function.ipynb) and [3](../03_group_baseline.ipynb); on the base's answers of
    lesson 13, without one it is {base} of that with p).
    """


def group_size(found: dict) -> str:
    def against_8(script: str, G: int) -> dict:
        return find(found, f"{script}, G = {G}", f"{script}, G = 8")

    ends = {(script, G): against_8(script, G) for script in ("GRPO", "Dr. GRPO") for G in GROUP_SIZES if G != 8}
    lost = {where for where, c in ends.items() if c["p_holm"] < LEVEL and c["difference"] < 0}
    assert lost == {("GRPO", 64), ("Dr. GRPO", 64), ("Dr. GRPO", 2)}
    assert all(
        c["difference"] < 0 for c in found["comparisons"] if c["p_holm"] < LEVEL and c["other"].endswith("G = 8")
    )
    silent = [found["arms"][f"GRPO, G = {G}"]["silent"]["mean"] for G in (2, 64)]
    two = find(found, "Dr. GRPO, G = 2", "GRPO, G = 2")
    assert two["interval"][1] < 0 < LEVEL < two["p_holm"]
    return f"""
    **From 4 to 16 no difference from 8 survives the correction; 64 loses {points(ends["GRPO", 64], -1)} points under
    GRPO and {points(ends["Dr. GRPO", 64], -1)} under Dr. GRPO, 2 loses {points(ends["Dr. GRPO", 2], -1)} under Dr.
    GRPO.**
    Silent groups ({short(silent[0], 2)} of all at 2, {short(silent[1], 2)} at 64) do not decide it: at 64 a batch holds
    four prompts.
    At 2, where ÷ σ is a constant ([lesson 9](../09_objective.ipynb)), Dr. GRPO ends {points(two, -1)} below GRPO before
    the correction, perhaps because the KL weighs twice as much against its halved advantages.
    """


def sampling(found: dict) -> str:
    def of(arm: str, kind: str, k: int) -> float:
        return found["arms"][arm][kind][KS.index(k)]["mean"]

    trained = [arm for arm in found["arms"] if arm != "base"]
    maj, passed = (min(of(arm, *at) for arm in trained) for at in (("majority", 64), ("pass", 4)))
    assert all(c["p_holm"] < LEVEL and c["difference"] > 0 for c in found["comparisons"] if c["number"] != "pass@64")
    return f"""
    **Here RL lifts both**: Maj@64 from {short(of("base", "majority", 64), 2)} to {short(maj, 2)} or more, Pass@4 from
    {short(of("base", "pass", 4), 2)} to {short(passed, 2)} or more.
    The base solves nearly everything in 64 attempts (Pass@64 = {of("base", "pass", 64):.3f}), while its most frequent
    answer stays wrong however often it is asked.
    """


def answer(experiment: str, found: dict) -> str:
    """What an experiment of compare.py shows (`front`: all together), in lines of at most 120 characters."""
    write = {of.__name__: of for of in (shared, front, matched, reinforce, pieces, ablation, group_size, sampling)}
    return filled(write[experiment](found))
