# %% [markdown] 30 minutes
# # 13 · How long is an update?
#
# The paper behind the identity says of GRPO's update that its "length […] is exactly the group reward standard deviation",
# "for any policy in any dimension". What is exact ([lesson 6](06_identity.ipynb)) is that σ *multiplies* the contrast
# $\bar s_+ - \bar s_-$. If a prompt's only parameter is the logit of $p$, the contrast has length 1. That of a language model is a difference of two
# noisy means, and the mean of one completion's score is noisier than that of four.
#
# **How does the length of the update depend on $k$, the number of right completions among G?** We measure it in language models that are training.
#
# | symbol | meaning |
# |---|---|
# | $G,\ k$ | completions in a group, all to one prompt; how many of them are right |
# | $p,\ q$ | the probability that a completion is right; $q = 1 - p$ |
# | $\sigma$ | the standard deviation of the group's rewards, $\sqrt{k(G-k)}/G$; **silent**: $\sigma = 0$; otherwise **mixed** |
# | $s_i$ | the score of completion $i$: $\nabla_\theta \log \pi_\theta(y_i)$, summed over its tokens |
# | $\bar s_\pm$ | the mean score of a group's right (+) or wrong (−) completions |
# | $m_\pm,\ v_\pm$ | expectation and variance (summed over all parameters) of the score of one such completion; $\Delta m = m_+ - m_-$ |
# | $g$ | the update of one group: $\frac1G \sum_i A_i s_i$ |
#
# ## One formula
#
# The mean of $k$ independent scores has the variance $v_+/k$, that of $G-k$ the variance $v_-/(G-k)$. So the contrast has the mean
# square $\|\Delta m\|^2 + v_+/k + v_-/(G-k)$, and with $\sigma^2 = k(G-k)/G^2$ in front of it GRPO's update has
#
# $$\mathbb E\,\|g\|^2 = \underbrace{\sigma^2\,\|\Delta m\|^2}_{\text{signal}} + \underbrace{\frac{(G-k)\,v_+ + k\,v_-}{G^2}}_{\text{noise}}$$
#
# (Dr. GRPO's is $\sigma^2$ times that. GRPO's loss also divides each score by the completion's number of tokens; here scores are summed, so
# that only the advantage differs.) The signal is symmetric in $k$. The noise is a straight line, and **which way it leans is a
# matter of $v_-/v_+$**: where wrong completions vary more, groups of many right and few wrong ones make long updates, because the few
# wrong ones have large advantages.
#
# ## Two tasks
#
# *Arithmetic* has one right answer and few ways to work it out, and many ways to be wrong. In *expressions*, `39?` asks for any
# expression with that value, `#12+27` or `#50-11`: right completions are diverse, and the usual wrong one just repeats the number, `#39`.

# %%
from itertools import combinations

import numpy as np

from lessons import identity
from lessons.checks.lesson_13 import over_all_draws
from lessons.experiments import update_length_tables as tables
from lessons.experiments.update_length import GROUP_SIZES, PREDICTIONS, SCRIPTS, TRAINED_AT
from lessons.figures.lesson_13 import draw_profile, draw_signal_and_noise
from lessons.kit import BLUE, GREEN, ORANGE, check, knob, new_figure, say, show

results = tables.load()
stages = {key: tables.stage(results, *key) for key in tables.stages_of(results)}  # by task, script, G trained at, step
TASKS, NAMES = ("arithmetic", "expressions"), {script: name for name, script in SCRIPTS.items()}
base = {task: stages[task, "", 0, 0] for task in TASKS}
n_prompts = {task: base[task]["p"].shape[1] for task in TASKS}
seeds, n = base["arithmetic"]["p"].shape[0], int(results["answers"])
trained_at, sigma = ", ".join(map(str, TRAINED_AT)), {G: 2 * identity.sigma(1, G) for G in (4, 64)}
assert np.nanmax(results["error"]) < 1e-4  # both sides of the identity, through the scripts' losses, in float32


# %% [fold]
def after(task, step):
    """The stages of all runs on a task at one step of training."""
    return [stage for (t, _, _, s), stage in stages.items() if (t, s) == (task, step)]


def span(values, form=".2f"):
    low, high = (
        f"{bound([getattr(value, 'value', value) for value in values]):{form}}" for bound in (np.nanmin, np.nanmax)
    )
    return low if low == high else f"{low} to {high}"


# %% [text]
# GRPO and Dr. GRPO, each trained at G = {=trained_at} with 256 completions a step, {=seeds} seeds; measured
# before training and after 20 and 60 steps: {=len(stages)} stages. At each, {=n_prompts["arithmetic"]} held-out prompts a task get
# {=n:,} completions each. **Half of them give $v_+$, $v_-$ and $\|\Delta m\|^2$; of the other half groups are formed**, with every
# $k$. So a prediction shares no completion with what it predicts. Brackets are 95 % intervals from resampling prompts and seeds.
#
# ## The profile leans with $v_-/v_+$

# %%
figure, axes = new_figure(9.5, 4.0, columns=2, sharey=True)
for axis, task in zip(axes, TASKS):
    for G, color in ((4, ORANGE), (16, BLUE), (64, GREEN)):
        draw_profile(axis, base[task], G, color)
    ratio = tables.median(tables.lopsidedness(base[task]))
    axis.set(title=f"{task}, before training: median v₋/v₊ = {ratio.value:.{int(ratio.value < 9) * 2}f}")
axes[0].set_ylabel("length, the even split is 1")
show(figure)
lone = {(task, G, k): tables.lone(base[task], G, k) for task in TASKS for G in (4, 64) for k in (1, G - 1)}

# %% [text]
# *Dots: measured. Lines: predicted from other completions. Dashed: σ.*
#
# At G = 4 on arithmetic, one *wrong* completion of four moves the model {=lone["arithmetic", 4, 3]} times as far as an even split, one
# right one {=lone["arithmetic", 4, 1]}; on expressions the order is reversed,
# {=lone["expressions", 4, 3]} and {=lone["expressions", 4, 1]}, though the lone right one is no longer than the even split. σ says {=sigma[4]:.2f} for all four. At G = 64, where it
# says {=sigma[64]:.2f}, one wrong of 64 makes {=lone["arithmetic", 64, 63]} on arithmetic and {=lone["expressions", 64, 63]} on
# expressions, one right of 64 {=lone["arithmetic", 64, 1]} and {=lone["expressions", 64, 1]}. **No power of σ fits:** it would be
# a function of $k/G$ alone, and symmetric.
#
# Move the task, the run, the G it was trained at, the step and the groups' G: which way does it lean?


# %%
def draw(task="expressions", run="GRPO", trained_at=8, step=60, G=4):
    key = (task, SCRIPTS[run], trained_at, step) if step else (task, "", 0, 0)
    return draw_signal_and_noise(stages[key], G, f"{task}, " + (f"{run}, step {step}" if step else "before training"))


knob(draw, task=list(TASKS[::-1]), run=list(SCRIPTS), trained_at=[8, 4, 16, 64], step=[60, 20, 0], G=[4, 8, 16, 32, 64])

# %% [markdown]
# ## How well do other completions predict it?
#
# The formula is a theorem: with the moments of the very completions that groups are formed of, it is exact (the cell first checks this
# over all groups). What is measured is how well other completions give these moments: $|\text{predicted} / \text{measured} - 1|$, median over prompts: the middle one over all
# $k$ and runs, and in brackets the largest with its interval.

# %%
right, wrong = np.random.default_rng(0).normal(size=(2, 6, 3))  # six scores each; all groups of 3 right and 1 wrong
squared = [((np.mean(three, axis=0) - one) ** 2).sum() * 3 / 16 for three in combinations(right, 3) for one in wrong]
v_right, v_wrong = (scores.var(axis=0, ddof=1).sum() for scores in (right, wrong))
signal = ((right.mean(axis=0) - wrong.mean(axis=0)) ** 2).sum() - (v_right + v_wrong) / 6  # as in exercise 1
assert np.isclose(np.mean(squared), 3 / 16 * signal + (v_right + 3 * v_wrong) / 16, rtol=1e-12)

steps = (0, 20, 60)
runs = [(task, step) for task in TASKS for step in steps]
off = {(*run, G): [e for s in after(*run) for e in tables.errors(s, G) if e.n] for run in runs for G in GROUP_SIZES}
middle = {key: np.median([e.value for e in estimates]) for key, estimates in off.items()}
largest = {key: max(estimates, key=lambda e: e.value) for key, estimates in off.items()}
rows = ["| | " + " | ".join(f"G = {G}" for G in GROUP_SIZES) + " |", "|---" * (len(GROUP_SIZES) + 1) + "|"]
for run in runs:
    cells = [(middle[(*run, G)], largest[(*run, G)]) for G in GROUP_SIZES]
    cells = [f"{m:.0%} ({100 * e.value:.0f} [{100 * e.low:.0f}, {100 * e.high:.0f}])" for m, e in cells]
    rows.append(f"| {run[0]}, step {run[1]} | {' | '.join(cells)} |")
say("\n".join(rows))
worst = {run: max(middle[(*run, G)] for G in GROUP_SIZES) for run in runs}
rarer, error, over = (np.concatenate(x) for x in zip(*map(tables.error_by_count, after("expressions", 60))))
few, many = (np.median(error[rows]) for rows in (rarer < 20, rarer >= 100))
assert max(worst["arithmetic", step] for step in steps) < 0.1 and worst["expressions", 0] < 0.05 and many < few / 2

# %% [text]
# **The typical error is {=max(worst["arithmetic", step] for step in steps):.0%} at most on arithmetic, at every G and step, and
# {=worst["expressions", 0]:.0%} on expressions before training. After training it is up to
# {=max(worst["expressions", 20], worst["expressions", 60]):.0%} there.** A trained policy gives few wrong completions, so $v_-$ is
# poorly known from either half, the predicting or the measured one. Where the first holds fewer than 20 completions of the rarer kind the error is {=few:.0%} in the median (step 60), with 100 or more (few
# prompts) {=many:.0%}. Errors go both ways: predicted over measured is {=np.median(over):.2f} in the median.
#
# ## What training does to it

# %%
found = {
    "accuracy": lambda stage: stage["p"].mean(),
    "median $v_-/v_+$": lambda stage: tables.median(tables.lopsidedness(stage)).value,
    "even split: signal = noise at G": lambda stage: tables.even_size(stage).value,
    "length, 1 right of 4": lambda stage: tables.lone(stage, 4, 1).value,
    "length, 1 wrong of 4": lambda stage: tables.lone(stage, 4, 3).value,
    "different right": lambda stage: np.median(stage["different"][:, :, 0]),
    "different wrong": lambda stage: np.median(stage["different"][:, :, 1]),
}
values = {run: {name: [of(stage) for stage in after(*run)] for name, of in found.items()} for run in runs}
rows = ["| | " + " | ".join(found) + " |", "|---" * (len(found) + 1) + "|"]
for task, step in runs:
    cells = [span(numbers, ".0f" if np.nanmax(numbers) > 1.5 else ".2f") for numbers in values[task, step].values()]
    rows.append(f"| {task}, step {step} | {' | '.join(cells)} |")
say("\n".join(rows))
apart = {task: tables.profiles_apart(stages, task) for task in TASKS}
turned = sum(
    wrong > right
    for run in runs[4:]
    for right, wrong in zip(*(values[run][f"length, 1 {which} of 4"] for which in ("right", "wrong")))
)
at_most_1 = tables.mean(np.where(np.isnan(r := tables.lopsidedness(base["expressions"])), np.nan, r <= 1))

# %% [text]
# *The smallest and the largest of eight runs (signal = noise is not known for one). Lengths are over that of the even
# split; $v_-/v_+$ is infinite where all right completions are the same; "different": completions among the {=n:,} of a prompt, median
# over prompts.*
#
# **Training reverses the lean on expressions.** Before it $v_-/v_+$ is at most 1 on {=at_most_1.value:.0%} of the prompts, and a single
# right completion of four makes a longer update than a single wrong one. From step 20 on it is the reverse, in {=turned} of 16 stages.
# Wrong completions have become rare and differ more; what they say was not recorded, but rare ones tend to have
# long scores. On arithmetic the lean was there from the start. Does the G that a policy was trained at matter? At G = 8 the profiles
# of policies trained at 4 and at 64 differ by {=apart["arithmetic"][0]:.2f} on arithmetic and {=apart["expressions"][0]:.2f} on
# expressions (largest difference over $k$), those of steps 20 and 60 by {=apart["arithmetic"][1]:.2f} and
# {=apart["expressions"][1]:.2f}. Single seeds of one run differ as much: by {=span(tables.seeds_apart(stages))}.
#
# ## Which groups there are
#
# So far groups were formed on purpose. Which ones does a policy draw? Here GRPO's policies at step 20, at the G that they were trained
# at. Lengths are now of *Dr. GRPO's* update, whose loss sums over tokens, as the scores here do: σ² times the contrast.

# %%
head = "task, G | silent (predicted) | $k < G/4$ | middle | $k > 3G/4$ | extreme prompts | their share of length | of σ² (closed form)"
rows, silent, mass, few_right = [f"| {head} |", "|---" * 8 + "|"], {}, {}, []
for (task, script, G, step), stage in stages.items():
    for size in GROUP_SIZES:
        silent[task, script, G, step, size] = tables.silent(stage, size)
        mass[task, script, G, step, size] = tables.mass(stage, "dr_grpo", size)
    if (script, step) == ("grpo", 20):
        s, m, k = silent[task, script, G, step, G], mass[task, script, G, step, G], tables.frequencies(stage, G)
        extreme = tables.mean(((stage["p"] <= 0.1) | (stage["p"] > 0.9)).astype(float))
        cells = [s["counted"], s["predicted"], *k[1:4], extreme, m["|g|"], m["sigma"], m["closed form"]]
        a, b, *c, d, e = (f"{estimate.value:.0%}" for estimate in cells)
        rows.append(f"| {task}, {G} | {a} ({b}) | {' | '.join(c)} | {d} ({e}) |")
        few_right.append(k[1].value)
say("\n".join(rows))
differences = [s["difference"] for s in silent.values()]
most = max(abs(e.value) for e in differences)
of_64 = mass["expressions", "grpo", 64, 20, 64]
early = {task: tables.frequencies(base[task], 16)[1].value for task in TASKS}
assert not any(0 not in e for e in differences)
seen = [0 not in m["difference"] for key, m in mass.items() if key[0] == "arithmetic"]
assert sum(seen) < 0.05 * len(seen) and 0 not in of_64["difference"]

# %% [text]
# *Shares of all groups, and of prompts; extreme: $p$ up to .1 or above .9.*
#
# Silence is what $p^G + q^G$ says, if $p$ comes from other completions: over {=len(differences)} pairs of stage and G the difference is
# {=100 * most:.1f} points at most (at G = 64 a prompt gives 16 groups), and no interval excludes 0. **But the coefficient is not the
# length:** on expressions, trained at G = 64, the extreme prompts have {=of_64["|g|"].value:.0%} of the summed length and
# {=of_64["sigma"].value:.0%} of the summed σ² (difference {=of_64["difference"]}); on arithmetic {=sum(seen)} of {=len(seen)}
# such intervals exclude 0, no more than by chance. And some groups hardly occur. Before training those with fewer than a quarter right are
# common, {=early["arithmetic"]:.0%} of all at G = 16 on arithmetic and {=early["expressions"]:.0%} on expressions; at step 20 they are
# {=max(few_right):.1%} at most. (At G = 4 no mixed group has $k < 1$ or $k > 3$.)
#
# ## What became of the predictions
#
# They were written down, and committed, before the code that measures.  The base model of expressions was made after them, so that
# $v_-$ is small: that part is design, not a finding. The number of completions was set later, too.


# %%
rows = [f"| {PREDICTIONS[about]} | **{word}**: {what} |" for about, (word, what) in tables.verdicts(stages).items()]
say("\n".join(["| prediction | what came |", "|---|---|", *rows]).replace("|g|", "length"))

# %% [text]
# **What this cannot say.** Two tasks and one small model; {=seeds} training seeds (before
# training, three draws from one model). Lengths are Euclidean, and of one group's gradient; a step averages many groups and goes through
# Adam. Where right
# completions are as varied as wrong ones, as proofs, programs and chains of thought may be, the profile will differ.

# %% [markdown]
# ## Exercises
#
# **1. Signal without noise.** The squared distance of two noisy means is too large on average. From the scores of a prompt's right and
# wrong completions, one row each, estimate $\|\Delta m\|^2$ so that the noise adds nothing on average.


# %% [exercise]
def signal_squared(right, wrong):
    """An estimate of |m+ - m-|^2 whose mean over many draws is right; right: (n, d), wrong: (m, d)."""
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


# %% [wrong] the noise of both means
def signal_squared(right, wrong):
    return ((right.mean(axis=0) - wrong.mean(axis=0)) ** 2).sum()


# %% [wrong] ddof 0
def signal_squared(right, wrong):
    contrast = right.mean(axis=0) - wrong.mean(axis=0)
    return contrast @ contrast - right.var(axis=0).sum() / len(right) - wrong.var(axis=0).sum() / len(wrong)


# %% [wrong] 1/n of it
def signal_squared(right, wrong):
    contrast = right.mean(axis=0) - wrong.mean(axis=0)
    return contrast @ contrast - right.var(axis=0, ddof=1).sum() - wrong.var(axis=0, ddof=1).sum()


# %% [markdown]
# **2. Where it turns round.** Above which $v_-/v_+$ does one wrong completion of G move the model further than an even split? The answer
# depends on G and on the strength of the signal, $\|\Delta m\|^2 / v_+$ (about .7 on expressions, before training).


# %% [exercise]
def turning_point(G, signal):
    """v- / v+ at which E|g|^2 is the same for k = G - 1 and k = G / 2; signal: |dm|^2 / v+; G: 4 or more, and even."""
    return ...


# %% [check]
check("13.2", turning_point)

# %% [hint]
# Multiply both squared lengths by G²/v₊: (G − 1)·signal + 1 + (G − 1)r on one side, and on the other?


# %% [solution]
def turning_point(G, signal):
    return 1 + (G / 2 - 1) * signal


# %% [wrong] without signal
def turning_point(G, signal):
    return 1.0


# %% [wrong] a lone wrong answer has signal too
def turning_point(G, signal):
    return 1 + signal * G**2 / 4 / (G / 2 - 1)


# %% [markdown]
# ## To remember
#
# - The update is σ times a contrast, and the contrast is noisy: its length depends on $v_-/v_+$, $\|\Delta m\|^2$ and G as well.
# - A few wrong completions among many right ones, or the reverse: the side that varies more moves the model further, and training may
#   turn that round.
# - Predict from other completions than those you measure on; compare groups of one prompt.
#
# Sources: *GRPO, Dr. GRPO, and DAPO Are Three Operations on One Number*, [arXiv:2607.00152](https://arxiv.org/abs/2607.00152), §3. The
# measurement is ours: `lessons/experiments/update_length.py --publish` makes every number on this page.
