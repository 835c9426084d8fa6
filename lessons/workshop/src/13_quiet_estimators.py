# %% [markdown] 35 minutes
# # 13 · Which estimator is quiet?
#
# GRPO, Dr. GRPO, MaxRL and REINFORCE push in the same direction on average: that of $\nabla p$, the gradient of the success probability
# ([lesson 7](07_group_size.ipynb)). One update points there only roughly, because it is noisy. What makes it noisier?
#
# > **Whether a group's update is divided by the standard deviation of its rewards (GRPO) or not (Dr. GRPO) hardly matters for the noise.
# > What is subtracted from the rewards, the baseline, matters far more.**

# %% [fold]
import numpy as np

from lessons import identity
from lessons.experiments import estimators, weights
from lessons.experiments.grid import load_runs, markdown
from lessons.experiments.paired import difference
from lessons.workshop.kit import check, knob, show
from lessons.workshop.parts.lesson_13 import (
    cosines,
    over_all_draws,
    points_by_power,
    progress_and_length,
    two_choices,
)

STUDENTS = {task: task for task in weights.TASKS} | {"slips": estimators.SLIPS}
results = load_runs(estimators.RESULTS)
stages = {(name, step): [run for run in results if (run["task"], run["step"]) == (task, step)]
          for name, task in STUDENTS.items() for step in estimators.STEPS}
seeds, n = len(stages["slips", 0]), results[0]["completions"]
ROWS = {
    "σ^1": "σ, GRPO",
    "σ^2": "σ², Dr. GRPO",
    "(G − k)/G": "(G − k)/G, MaxRL",
    "c(k)": "c(k), inverse variance",
    "σ, k < G − 2": "σ, without 1 or 2 wrong",
    "no baseline": "A = R, baseline 0",
    "b = 1": "A = R − 1, baseline 1",
    "best b of the others": "A = R − b, best b",
}

def cosine(student, step, name, divisor="sum", scale="gradient"):
    return estimators.cosine(STUDENTS[student], step, name, divisor, scale)

columns = [(name, step) for name in STUDENTS for step in (0, 20)]
table = {name: [cosine(*column, name) for column in columns] for name in ROWS}
before = {name: row[::2] for name, row in table.items()}
divide = {"yes: GRPO": before["σ^1"], "no: Dr. GRPO": before["σ^2"]}
subtract = {"0": before["no baseline"], "1": before["b = 1"], "the group's mean": before["σ^2"]}
questions = {"Divide by the standard deviation?": divide,
             "What to subtract from the reward?": subtract}
show(two_choices(questions, list(STUDENTS)))
apart = max(abs(a - b) for a, b in zip(table["σ^1"], table["σ^2"]))
far = np.array(table["no baseline"]) - table["σ^2"]
best = np.max([*table.values()], axis=0)
spread = np.ptp([table[name] for name in ("no baseline", "b = 1")], axis=0).max()
behind = best - table["best b of the others"]  # the last column: slips, step 20
assert far.argmax() == 5 and far.argmin() == 2 and best[2] == table["b = 1"][2]
assert behind[-1] == behind.max() and 0.4 < behind[-1] / (best - table["σ^2"])[-1] < 0.6

# %% [text]
# *The cosine of the angle between one batch's update and the true gradient, before training: 1 without noise, smaller with more. The rows are three
# small language models, described below. Left, the two dots nearly coincide. Right, they lie apart. With 0 subtracted only right completions
# push, with 1 only wrong ones. Both rules on the left subtract the group's mean.*
#
# **Before training and after 20 steps of GRPO, division by the standard deviation, σ, changes the cosine by {=apart:.3f} at most. To subtract nothing
# instead of the group's mean changes it by up to {=abs(far).max():.2f}**, up or down; between the extremes, 0 and 1, lie up to {=spread:.2f}. Which
# baseline is best depends on the model:

# %% [fold]
show(cosines({ROWS[name]: row for name, row in table.items()}, columns))

# %% [text]
# *Above the line: a group's update is the mean score of its right completions minus that of its wrong ones, times this weight ($c(k)$ is the
# best one of [lesson 7](07_group_size.ipynb); division by σ turns σ² into σ). Below it: each score is multiplied by $A$, the reward $R$ minus a
# baseline.*
#
# (A *score* is the gradient of a completion's log-probability. A batch has 256 completions in groups of $G = 8$, without ÷ length;
# the true gradient comes from {=results[0]["gradient"]:,} others.)
#
# - *Arithmetic* has one right answer: the baseline 0 is quieter than 1.
# - In *expressions*, `39?` asks for any expression with this value, such as `#12+27`. Right completions are diverse. The usual wrong one repeats
#   the number, `#39`, so wrong scores vary little. $A = R$, which ignores wrong completions, has a cosine {=-far.min():.2f} lower than Dr. GRPO's
#   before training. $A = R - 1$, which ignores the right ones, is best.
# - *Slips* is the same task, but the model miscalculates: both kinds are diverse, and wrong completions are noisier. There $A = R$ has a cosine
#   {=far.max():.2f} higher than Dr. GRPO's after 20 steps.
#
# The best constant baseline can be estimated from the other completions' scores (exercise 2). Its cosine is at most {=behind[:-1].max():.2f} below the
# best of its column, except on slips at step 20, where it is halfway between Dr. GRPO and the best.
#
# ÷ length changes as much. On arithmetic before training, noisy wrong completions are short, and a mean over tokens makes them count more:
# the cosine of σ falls from {=cosine("arithmetic", 0, "σ^1"):.2f} to {=cosine("arithmetic", 0, "σ^1", "mean"):.2f}, $A = R$ from
# {=table["no baseline"][0]:.2f} to {=cosine("arithmetic", 0, "no baseline", "mean"):.2f}.
#
# ## Progress and noise of one group
#
# | symbol | meaning |
# |---|---|
# | $G,\ k,\ \sigma$ | completions to one prompt; how many are right; $\sqrt{k(G-k)}/G$ |
# | $s_i,\ \bar s_\pm$ | the score $\nabla_\theta \log \pi_\theta(y_i)$; its mean over a group's right (+) or wrong (−) completions |
# | $m_\pm,\ v_\pm$ | mean and variance (summed over parameters) of the score of a right or wrong completion; $\Delta m = m_+ - m_-$ |
# | $g$ | the update of one group; GRPO's is $\sigma\,(\bar s_+ - \bar s_-)$ ([lesson 6](06_identity.ipynb)) |
#
# Given $k$, the contrast $\bar s_+ - \bar s_-$ has the mean $\Delta m$, which points along $\nabla p$, and the variance $v_+/k + v_-/(G-k)$. So
# GRPO's update has
#
# $$\mathbb E\,\langle g, \Delta m\rangle = \sigma\,\|\Delta m\|^2, \qquad
# \mathbb E\,\|g\|^2 = \sigma^2\,\|\Delta m\|^2 + \frac{(G-k)\,v_+ + k\,v_-}{G^2}$$
#
# Let $\langle g, \Delta m\rangle / \|\Delta m\|^2$ be the update's *progress* for its own prompt. **Its mean is σ, whatever the variances.** The last
# term of the squared length is noise. If wrong scores vary more, $v_- > v_+$, it grows with $k$. Groups with $k$ and with $G-k$ right make the same
# progress; the longer update is the noisier one.

# %% [fold]
def moments(stage, kind=0):
    """p, v₊, v₋, |Δm|² of every prompt, from both halves: (seeds, prompts, halves, 4)."""
    rows = [[[[k / (n // 2), *half[kind][:3]]
              for k, half in zip(prompt["right"], prompt["moments"])]
             for prompt in run["of prompts"]] for run in stage]
    return np.array(rows, dtype=float)


noise_of = np.vectorize(lambda p, *moments: identity.noise("GRPO", p, 8, *moments))
ratio, growth, errors, common = {}, {}, {}, {}
for where, stage in stages.items():
    prompts = [prompt for run in stage for prompt in run["of prompts"]]
    p, v_right, v_wrong, _ = np.moveaxis(moments(stage), -1, 0)  # (seeds, prompts, halves)
    by_size = np.array([prompt["growth"] for prompt in prompts], dtype=float)  # (n, sizes, 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        growth[where] = np.nanmedian(by_size[:, :, 1] / by_size[:, :, 0], axis=0)
        noise = noise_of(p, v_right, v_wrong)
        error = abs(noise[..., 0] / noise[..., 1] - 1)
    rarer = np.minimum(p, 1 - p).min(axis=2) * n / 2
    errors[where] = error[(rarer >= 100) & np.isfinite(error)]
    common[where] = np.median([prompt["commonest"] for prompt in prompts if prompt["commonest"]])
    ratio[where] = np.nansum(v_wrong) / np.nansum(v_right)
halves = np.median(np.concatenate([*errors.values()]))
worst = [np.median(errors["expressions", step]) for step in estimators.STEPS]
assert max(worst) == max(np.median(error) for error in errors.values())

# %% [text]
# Measured on {=len(results[0]["of prompts"])} held-out prompts of {=n:,} completions each and {=seeds} seeds, $v_-/v_+$ is {=ratio["arithmetic", 0]:.0f}
# on arithmetic, {=ratio["expressions", 0]:.1f} on expressions and {=ratio["slips", 0]:.0f} on slips before training, and
# {=ratio["arithmetic", 60]:.0f}, {=ratio["expressions", 60]:.0f} and {=ratio["slips", 60]:.0f} after 60 steps (ratios of the sums over prompts). After training, wrong completions are
# rare, diverse and improbable, so $v_- \gg v_+$ in every model.
#
# ## Does quiet mean fast?
#
# We trained with powers of σ as weights, all else GRPO's (without KL). *Every optimizer step was scaled to the same length*, so that no arm
# moves further than another: ten seeds, 60 batches of 32 × 8. *Which power learns most? Guess, then move the sliders.*

# %% [fold]
runs = load_runs(weights.RESULTS)
by_length = {length: weights.arms(runs, length) for length in weights.STEP_LENGTHS}

def gaps(arm, reference, length):
    """Of an arm (weight, ÷ length?) less another: by task, at the end and over training."""
    arms, found = by_length[length], []
    for task in weights.TASKS:
        first, second = (arms[task, kept, weight] for weight, kept in (arm, reference))
        found += [difference(first[when], second[when]) for when in ("end", "training")]
    return found

def draw(step_length, divisor):
    kept = divisor == "÷ length"
    points = [[gap["difference"], *(gap["interval"] or [0, 0])] for name in weights.POWERS
              for gap in gaps((name, kept), ("σ^1", kept), step_length)]
    points = 100 * np.array(points).reshape(5, 2, 2, 3)
    return points_by_power(points, weights.POWERS, weights.TASKS)

knob(draw, step_length=list(by_length), divisor=["÷ length", "no ÷ length"])
pairs, fresh = (weights.compared(runs, fresh) for fresh in (False, True))
counts = {name: [*zip(weights.judged(pairs, name), weights.judged(fresh, name))]
          for name in weights.NOTICED}
for pair in pairs + fresh:
    powers = [float(name[2:]) if name in weights.POWERS else 0 for _, name in pair["arms"]]
    pair["power"] = powers[0] - powers[1]
larger_again, quiet_again = weights.judged(fresh, "power")[0], counts["quiet"][0][1]
assert larger_again[0] == larger_again[1] == quiet_again[0]
assert len({*counts["quiet"][3][1]}) == 1
of_power = {name: [gap for length in by_length for kept in (True, False)
                   for gap in gaps((name, kept), ("σ^1", kept), length)]
            for name in weights.POWERS if name != "σ^1"}
squared = max(abs(100 * gap["difference"]) for gap in of_power["σ^2"])
powers = [gap for four in of_power.values() for gap in four]
most = max(abs(100 * gap["difference"]) for gap in powers)
seen = sum(np.prod(gap["interval"]) > 0 for gap in powers)
plain = {length: gaps(("σ^1", False), ("σ^1", True), length) for length in by_length}
undivided = [[100 * four[i]["difference"] for four in plain.values()] for i in (1, 3)]

# %% [text]
# *Points of accuracy above or below σ, paired by seed, with 95 % intervals: on held-out problems at the end, and on the training problems of all batches.*
#
# **Larger powers of σ learned faster, by little.** σ² differs from σ by {=squared:.1f} points at most, any power by {=most:.1f}. (The sliders show {=len(powers)} intervals in
# all: {=seen} exclude 0, where chance gives {=0.05 * len(powers):.0f}.) ÷ length costs more than ÷ σ. Without ÷ length, GRPO gains {=min(undivided[0]):.1f} to {=max(undivided[0]):.1f}
# points over training on arithmetic, where the cosines predict a gain, and at most {=max(undivided[1]):.1f} on expressions, where they predict none.
#
# Can the noise predict the winner? We fixed a rule in advance: of two powers, the one with the larger signal-to-noise ratio of one group wins. On five
# new seeds it was right in {=quiet_again[0]} of {=quiet_again[1]} significant comparisons. But the simpler rule "the larger power wins" was right in as
# many, so these runs cannot say whether it is because they are quieter.
#
# **What this cannot say.** These are small models of one architecture with short completions, trained with weights of the contrast only.
# [Lesson 19](19_which_baseline.ipynb) trains with other baselines.
#
# ## Exercises
#
# (Exercise 1 is at the end, in the second reading.)
#
# **2. The best baseline.** From the rewards of many completions to one prompt and their scores, one row each, estimate the constant $b$ with the
# least $\mathbb E\,\|(R - b)\,s\|^2$.


# %% [exercise]
def best_baseline(R, scores):
    """R: (n,) zeros and ones, scores: (n, d). The best constant b."""
    return ...


# %% [check]
check("13.2", best_baseline)

# %% [hint]
# The mean square is a parabola in b. Where is its vertex?


# %% [solution]
def best_baseline(R, scores):
    squared = (scores**2).sum(axis=1)
    # long wrong scores: near 0; long right ones: near 1
    return (R * squared).sum() / squared.sum()


# %% [markdown]
# ## To remember
#
# - σ, σ² and the best weight of the contrast are nearly equally quiet, and learn nearly equally fast. The baseline and ÷ length change more.
# - σ is the progress of an update for its own prompt. The rest of its length is noise.
# - Late in training nearly all mixed groups have one or two wrong completions. They are noisy, and must be kept (below).
#
# ## For a second reading (15 minutes): progress and length by k
#
# What share of the progress and of the squared length have groups with $k$ right? **Here progress is measured along the gradient of all
# prompts together**, not of the group's own prompt. So $k$ and $G-k$ may differ.

# %% [fold]
def by_k(student, step, G):
    """(seeds, k = 1..G-1, 5): groups; of s₊ − s₋ mean and median of |.|², progress, cosine."""
    return np.array([next(of_G["by k"] for of_G in run["of batches"] if of_G["G"] == G)
                     for run in stages[student, step]])

def draw(student, step, G):
    return progress_and_length(by_k(student, step, G), G, f"{student}, step {step}")

knob(draw, student=list(STUDENTS), step=[0, 20, 60], G=[8, 4, 16])


# %% [fold]
def shares(student, step, ks, G=8):
    """Of the squared length and the progress of GRPO's updates, and of the mixed groups, the share
    that groups with these k have."""
    n, squared, _, progress, _ = np.moveaxis(by_k(student, step, G), 2, 0)
    sigma = identity.sigma(np.arange(1, G), G)
    parts = [(n * x).sum(axis=0) for x in (sigma**2 * squared, sigma * progress, 1)]
    return [part[[k - 1 for k in ks]].sum() / part.sum() for part in parts]


lone = {(name, step): shares(name, step, [7]) for name, step in stages}
late, few = np.array([shares(name, 60, [6, 7])[1:] for name in STUDENTS]).T
dropped = gaps(("σ, k < G − 2", True), ("σ^1", True), 0.016)
costs = [-100 * gap["difference"] for gap in dropped[::2]]

def short(x):
    return f"{x:.{2 if x < 1 else 1 if x < 10 else 0}f}"

sizes = [f"{size:,} completions" for size in estimators.SIZES if size <= n]
by_size = markdown(["", *sizes], [[name, *map(short, growth[name, 0])] for name in STUDENTS])

# %% [text]
# *Left: shares of all mixed groups; black marks are single seeds. Right: the length of an update, beside σ. The root mean
# square is far above the median where a few updates are very long.*
#
# - On arithmetic before training, groups with one wrong completion of eight have {=lone["arithmetic", 0][0]:.0%} of the squared length and
#   {=lone["arithmetic", 0][1]:.0%} of the progress: what moves an easy prompt need not help the others.
# - After 60 steps groups with one or two wrong make {=min(late):.0%} to {=max(late):.0%} of the progress; they are {=min(few):.0%} to
#   {=max(few):.0%} of the mixed groups. Dropping them costs {=min(costs):.0f} to {=max(costs):.0f} points of accuracy.
#
# **How many completions does $v_-$ need?** Many, where one wrong completion hides the others. Before training on expressions the commonest is
# {=common["expressions", 0]:.0%} of the wrong ones (median over prompts). The median of $v_-/v_+$ before training, from so many completions of each prompt:
#
# {=by_size}
#
# (On expressions this is far below the {=ratio["expressions", 0]:.1f} given above. That one is a ratio of sums, in which the noisiest prompts count
# most; the median shows the typical prompt.)
#
# The noise of an update, predicted from one half of a prompt's completions and from the other, differs by {=halves:.0%} in the median over
# all prompts. It differs most on expressions, by {=min(worst):.0%} to {=max(worst):.0%}.
#
# **1. Signal without noise.** The squared distance of two noisy means is too large on average. From the scores of a prompt's right and
# wrong completions, one row each, estimate $\|\Delta m\|^2$ so that the noise adds nothing on average.


# %% [exercise]
def signal_squared(right, wrong):
    """An estimate of |m+ - m-|^2 whose mean over many draws is right; right: (n, d), wrong:
    (m, d)."""
    return ...


# %% [check]
check("13.1", over_all_draws(signal_squared))

# %% [hint]
# How large is E‖x̄‖² for a mean x̄ of n independent scores? Subtract what it has too much, with an estimate of the variance that is itself
# right on average.


# %% [solution]
def signal_squared(right, wrong):
    contrast = right.mean(axis=0) - wrong.mean(axis=0)
    noise = sum(part.var(axis=0, ddof=1).sum() / len(part) for part in (right, wrong))
    return contrast @ contrast - noise


def of_halves(right, wrong):  # right, too, but noisier: the noise of two halves is independent
    one, other = (right[i::2].mean(axis=0) - wrong[i::2].mean(axis=0) for i in (0, 1))
    return one @ other


assert abs(over_all_draws(of_halves)("") - 5) < 1e-9


# %% [markdown]
# Sources: the length as "exactly the group reward standard deviation": [arXiv:2607.00152](https://arxiv.org/abs/2607.00152), §3; OPO:
# [2505.23585](https://arxiv.org/abs/2505.23585); the best baseline: [Greensmith, Bartlett and Baxter
# 2004](https://www.jmlr.org/papers/v5/greensmith04a.html). The measurements are ours: `lessons/experiments/estimators.py` and `weights.py`,
# each with `--publish`, make every number on this page.
