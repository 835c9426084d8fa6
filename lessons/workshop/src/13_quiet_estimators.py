# %% [markdown] 30 minutes
# # 13 · Which estimator is quiet?
#
# For one prompt GRPO, Dr. GRPO, MaxRL and REINFORCE push in the same direction on average: that of $\nabla p$, the gradient of the success
# probability ([lesson 7](07_group_size.ipynb)). A single update points there only roughly, because it is noisy. What makes it noisier?
#
# > **Whether a group's update is divided by the standard deviation of its rewards (GRPO) or not (Dr. GRPO) hardly matters for the noise.
# > What is subtracted from the rewards, the baseline, matters far more: 0 or the group's mean. Which of these two is quieter depends on the
# > task.**

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
    "c(k)": "c(k), the best weight",
    "no baseline": "baseline 0",
    "b = 1": "baseline 1",
    "best b of the others": "best baseline",
}

def cosine(student, step, name, divisor="sum", scale="gradient"):
    return estimators.cosine(STUDENTS[student], step, name, divisor, scale)

columns = [(name, step) for name in STUDENTS for step in (0, 20)]
table = {name: [cosine(*column, name) for column in columns] for name in ROWS}
before = {name: row[::2] for name, row in table.items()}
divide = {"yes: GRPO": before["σ^1"], "no: Dr. GRPO": before["σ^2"]}
subtract = {"0": before["no baseline"], "the group's mean": before["σ^2"]}
questions = {"Divide by the standard deviation?": divide,
             "What to subtract from the reward?": subtract}
show(two_choices(questions, list(STUDENTS)))
apart = max(abs(a - b) for a, b in zip(table["σ^1"], table["σ^2"]))
far = np.array(table["no baseline"]) - table["σ^2"]
gained = np.max(np.array(table["c(k)"]) - table["σ^1"])
lost = np.max(np.array(table["σ^1"]) - table["(G − k)/G"])
averaged = [cosine(*column, "σ^1", "mean") for column in columns]
shorter = np.array(averaged) - table["σ^1"]
estimated = np.array(table["best b of the others"]) - table["no baseline"]
assert far.argmax() == 5 and far.argmin() == 2 and shorter.argmin() == 0
assert (estimated[[0, 1, 4, 5]] < 0).all() and (estimated[[2, 3]] > 0).all()


def worth(first, second):
    """How many times as many completions the first rule needs for the second's cosine."""
    low, high = np.array([table[first], table[second]])
    return (1 / low**2 - 1) / (1 / high**2 - 1)


divided = worth("σ^1", "σ^2")
divided = max(*divided, *1 / divided)

# %% [text]
# *The cosine of the angle between one batch's update and the true gradient, before training: smaller with more noise. The rows are three
# small language models, described below. Left, the two dots nearly coincide. Right, they lie apart. Both rules on the left subtract the group's
# mean.*
#
# **Division by the standard deviation, σ, changes the cosine by {=apart:.3f} at most, before training and after 20 steps of GRPO. The choice between
# 0 (REINFORCE) and the group's mean changes it by up to {=abs(far).max():.2f}.**
#
# ## What is a cosine worth?
#
# Completions. An update is a mean over the $n$ completions of a batch. Its expectation is the signal, whatever $n$ is. Its mean squared length is the
# squared signal plus a noise that falls like $1/n$. The cosine is about the signal over the length:
#
# $$\cos^2 \approx \frac{\text{signal}^2}{\text{signal}^2 + \text{noise}/n}$$
#
# (About, also because GRPO and MaxRL weigh prompts unequally, [lesson 9](09_objective.ipynb): over many prompts their cosine stops short of 1
# even without noise.)
#
# **1. A larger batch.** With `n` completions in a batch a rule has the cosine `cosine`. How many does it need for the cosine `target`?


# %% [exercise]
def completions_for(target, cosine, n):
    """The number of completions at which the cosine is `target`."""
    return ...


# %% [check]
check("13.1", completions_for)

# %% [hint]
# Solve the formula for noise/signal². It is the same number for both batches.


# %% [solution]
def completions_for(target, cosine, n):
    noise = n * (1 / cosine**2 - 1)  # over the squared signal
    return noise / (1 / target**2 - 1)


# %% [text]
# By your formula, the noisier of GRPO and Dr. GRPO needs at most {=divided - 1:.0%} more completions than the other. To be as quiet as
# the baseline 0, Dr. GRPO needs {=worth("σ^2", "no baseline")[0]:.1f} times as many on arithmetic and {=worth("σ^2", "no baseline")[4]:.1f} times as many on slips.
# On expressions it is the other way round: the baseline 0 needs {=worth("no baseline", "σ^2")[2]:.1f} times as many as Dr. GRPO. Why?
#
# ## Which baseline?
#
# A completion's *score* $s$ is the gradient of its log-probability. Its reward $R$ is 1 if it is right and 0 if it is wrong. With a constant baseline $b$
# it adds $(R - b)\,s$ to the update: $(1 - b)\,s$ if it is right, $-b\,s$ if it is wrong. The mean is $\nabla p$ for every $b$
# ([lesson 1](01_score_function.ipynb)). The noise is not the same: $b = 0$ ignores the wrong completions, $b = 1$ the right ones. Nobody trains with
# $b = 1$; it shows the other end.
#
# - *Arithmetic*: a prompt has one right answer and many wrong ones. The wrong scores vary more, and 0 is quieter than 1.
# - *Expressions*: `39?` asks for any expression with this value, such as `#12+27`. There are many right answers. The usual wrong one repeats
#   the number, `#39`, so wrong scores vary little. Here 1 is quieter than 0.
# - *Slips*: the same task, but the model miscalculates. Both kinds are diverse, the wrong ones are noisier, and 0 is quieter than 1 again.
#
# **2. The best baseline.** From the rewards of many completions to one prompt and their scores, one row each, estimate the constant $b$ with the least
# $\mathbb E\,\|(R - b)\,s\|^2$.


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
    return (R * squared).sum() / squared.sum()


# %% [fold]
def moments(stage):
    """p, v₊, v₋, |Δm|² of each prompt, from both halves: (seeds, prompts, halves, 4)."""
    rows = [[[[k / (n // 2), *half[0][:3]]
              for k, half in zip(prompt["right"], prompt["moments"])]
             for prompt in run["of prompts"]] for run in stage]
    return np.array(rows, dtype=float)


ratio, growth, common, best_b = {}, {}, {}, {}
for where, stage in stages.items():
    prompts = [prompt for run in stage for prompt in run["of prompts"]]
    p, v_right, v_wrong, dm = np.moveaxis(moments(stage), -1, 0)
    right, wrong = p * (v_right + (1 - p) ** 2 * dm), (1 - p) * (v_wrong + p**2 * dm)
    best_b[where] = np.nanmedian(right / (right + wrong))
    by_size = np.array([prompt["growth"] for prompt in prompts], dtype=float)  # (n, sizes, 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        growth[where] = np.nanmedian(by_size[:, :, 1] / by_size[:, :, 0], axis=0)
    common[where] = np.median([prompt["commonest"] for prompt in prompts if prompt["commonest"]])
    ratio[where] = np.nansum(v_wrong) / np.nansum(v_right)
late_growth = min(growth[name, 60][-1] for name in STUDENTS)

# %% [text]
# The best $b$ is the mean reward, weighted by squared lengths: near 0 if wrong scores are long, near 1 if right ones are. Applied to the measured scores
# before training, your formula gives {=best_b["arithmetic", 0]:.2f} on arithmetic, {=best_b["expressions", 0]:.2f} on expressions and {=best_b["slips", 0]:.2f} on slips (medians over
# {=len(results[0]["of prompts"])} held-out prompts and {=seeds} seeds).
#
# ## Which weight?
#
# GRPO, Dr. GRPO and MaxRL subtract the group's mean. Of the $G$ completions to one prompt $k$ are right; $\bar s_+$ and $\bar s_-$ are the mean
# scores of the right and of the wrong ones. The group's update is a weight times the *contrast* $\bar s_+ - \bar s_-$: GRPO's weight is
# $\sigma = \sqrt{k(G-k)}/G$, Dr. GRPO's $\sigma^2$, MaxRL's $(G-k)/G$ ([lesson 7](07_group_size.ipynb)).
#
# The score of a right completion has the mean $m_+$ and the variance $v_+$ (summed over parameters), that of a wrong one $m_-$ and $v_-$. So the
# contrast has the mean $\Delta m = m_+ - m_-$, which points along $\nabla p$, and the variance $v_+/k + v_-/(G-k)$. The least noisy weight is the inverse
# of the variance:
#
# $$c(k) = \frac1{v_+/k + v_-/(G-k)}$$

# %% [fold]
rows = {ROWS[name]: row for name, row in table.items()}
show(cosines({"σ, GRPO": table["σ^1"], "GRPO, ÷ length": averaged} | rows, columns))

# %% [text]
# *Above the line: the contrast times a weight. In the row "÷ length" each score is also divided by its number of tokens. Below the line: $R - b$ times
# the score; the best $b$ is estimated from the group's other completions. A batch has 256 completions in groups of 8; the true gradient comes from
# {=results[0]["gradient"]:,} others.*
#
# **The weight matters little.** Even $c(k)$, which knows $v_-/v_+$, is at most {=gained:.2f} above GRPO's σ. MaxRL's weight is up to {=lost:.2f} below it.
#
# **The baseline matters more, in both directions.** The baseline 0 is {=-far.min():.2f} below Dr. GRPO on expressions before training, and
# {=far.max():.2f} above it on slips after 20 steps.
#
# **Why does the best baseline lose to 0 on arithmetic and on slips?** Because it is estimated. Call your best constant $b^*$. At the vertex of the
# parabola the mean square is $1 - b^*$ times what it is at $b = 0$. So with $b^* = {=best_b["arithmetic", 0]:.2f}$ even the exact constant would remove only
# {=best_b["arithmetic", 0]:.0%} of it. An estimate adds its own error, and is better than 0 only while the mean square of this error is below $b^{*2}$. Seven other
# completions are too few for that. On expressions before training, where $b^*$ is far from 0, they are enough: the cosine is
# {=table["best b of the others"][2]:.2f} against {=table["no baseline"][2]:.2f} for the baseline 0.
#
# **Division by length can matter as much as the baseline.** On arithmetic before training wrong completions are short and noisy, and a mean over
# tokens makes short ones count more: GRPO's cosine falls from {=table["σ^1"][0]:.2f} to {=averaged[0]:.2f}. In the other five cases it changes by {=abs(shorter[1:]).max():.2f} at most.
# Such an update does not point along $\nabla p$ even on average ([lesson 7](07_group_size.ipynb)), which may be part of the fall.
#
# ## Does quiet mean fast?
#
# We trained with powers of σ as weights, all else GRPO's (without KL). *Every optimizer step was scaled to the same length*, so that no arm
# moves further than another: ten seeds, 60 batches of 32 × 8. *Which power learns most? Guess, then open the output (…) and move the sliders.*

# %% [fold] guess
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
# **The powers of σ learn nearly equally fast.** σ² differs from σ by {=squared:.1f} points at most, any power by {=most:.1f}. Mostly the larger power is a little
# ahead, but not everywhere: in the picture as printed σ³ ends below σ on arithmetic. **Whether quiet is the reason, these runs cannot say**: where one
# power clearly won on new seeds, it was both the quieter and the larger one.
#
# **÷ length costs more than ÷ σ.** Without it GRPO gains {=min(undivided[0]):.1f} to {=max(undivided[0]):.1f} points over training on arithmetic, where the
# cosines predict a gain, and at most {=max(undivided[1]):.1f} on expressions, where they predict none.
#
# (Small models of one architecture, short completions. [Lesson 19](19_which_baseline.ipynb) trains with other baselines.)

# %% [markdown]
# ## To remember
#
# - A cosine is worth completions: the number needed grows like $\cos^2/(1 - \cos^2)$.
# - σ, σ² and the best weight of the contrast are nearly equally quiet. σ and σ² also learn nearly equally fast.
# - The baseline changes the noise more. The best constant weights rewards by $\|s\|^2$; near 0, an estimate from eight completions loses to 0 itself.
# - ÷ length can change it as much, depending on the task.
#
# ## For a second reading (20 minutes): progress and noise by k
#
# GRPO's update of one group is $g = \sigma\,(\bar s_+ - \bar s_-)$. Mean and variance of the contrast give, for each $k$,
#
# $$\mathbb E\,\langle g, \Delta m\rangle = \sigma\,\|\Delta m\|^2, \qquad
# \mathbb E\,\|g\|^2 = \sigma^2\,\|\Delta m\|^2 + \frac{(G-k)\,v_+ + k\,v_-}{G^2}$$
#
# Let $\langle g, \Delta m\rangle / \|\Delta m\|^2$ be the update's *progress* for its own prompt. **Its mean is σ, whatever the variances.** The last
# term of the squared length is noise. If wrong scores vary more, $v_- > v_+$, it grows with $k$. Groups with $k$ and with $G-k$ right make the same
# progress; the longer update is the noisier one.
#
# **3. Signal without noise.** Both formulas need $\|\Delta m\|^2$, and all that can be measured is the distance of two noisy means. Its square is too large
# on average. From the scores of a prompt's right and wrong completions, one row each, estimate $\|\Delta m\|^2$ so that the noise adds nothing on average.


# %% [exercise]
def signal_squared(right, wrong):
    """An estimate of |m+ - m-|^2 whose mean over many draws is right; right: (n, d), wrong:
    (m, d)."""
    return ...


# %% [check]
check("13.3", over_all_draws(signal_squared))

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


# %% [text]
# On the same completions as above, the median of $v_-/v_+$ before training is {=growth["arithmetic", 0][-1]:.0f} on arithmetic, {=growth["expressions", 0][-1]:.2f} on
# expressions and {=growth["slips", 0][-1]:.1f} on slips. After 60 steps it is {=late_growth:.0f} or more in each of them: wrong completions are then rare, diverse
# and improbable.
#
# What share of the progress and of the squared length have groups with $k$ right? **From here on progress is measured along the gradient of all
# prompts together**, not of the group's own prompt. So $k$ and $G-k$ may differ.

# %% [fold]
def by_k(student, step, G):
    """(seeds, k = 1..G-1, 5): groups; of s₊ − s₋ mean and median of |.|², progress, cosine."""
    return np.array([next(of_G["by k"] for of_G in run["of batches"] if of_G["G"] == G)
                     for run in stages[student, step]])

def draw(student, step, G):
    return progress_and_length(by_k(student, step, G), G, f"{student}, step {step}")

knob(draw, student=list(STUDENTS), step=[0, 20, 60], G=[8, 4, 16])


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
#   {=max(few):.0%} of the mixed groups. They are noisy, and must be kept: dropping them costs {=min(costs):.0f} to {=max(costs):.0f} points of accuracy.
#
# **How many completions does $v_-$ need?** Many, where one wrong completion hides the others. Before training on expressions the commonest is
# {=common["expressions", 0]:.0%} of the wrong ones (median over prompts). The median of $v_-/v_+$ before training, from so many completions of each prompt:
#
# {=by_size}
#
# The ratio of the sums over prompts is {=ratio["arithmetic", 0]:.0f}, {=ratio["expressions", 0]:.1f} and {=ratio["slips", 0]:.0f}. It differs on
# expressions, because in a ratio of sums the noisiest prompts count most; the median shows the typical prompt.
#
# **Powers of σ, the count.** Of the {=len(powers)} intervals that the sliders show {=seen} exclude 0, where chance gives {=0.05 * len(powers):.0f}. On five new seeds the rule "the
# quieter power wins", fixed in advance, was right in {=quiet_again[0]} of {=quiet_again[1]} significant comparisons. So was the rule "the larger power wins".
#
# Sources: the length as "exactly the group reward standard deviation": [arXiv:2607.00152](https://arxiv.org/abs/2607.00152), §3; OPO:
# [2505.23585](https://arxiv.org/abs/2505.23585); the best baseline: [Greensmith, Bartlett and Baxter
# 2004](https://www.jmlr.org/papers/v5/greensmith04a.html). The measurements are ours: `lessons/experiments/estimators.py` and `weights.py`,
# each with `--publish`, make every number on this page.
