# %% [markdown] 38 minutes, without the second reading
# # 13 · Which estimator is quiet?
#
# REINFORCE pushes a completion along its *score* $s$, the gradient of its log-probability, times its reward. Dr. GRPO first subtracts the mean
# reward of the group. For one prompt both push along $\nabla p$ on average, the gradient of its success probability
# ([lesson 3](03_group_baseline.ipynb)). A single batch is noisy. Does subtracting the mean make it quieter?
#
# > **Subtracting the mean reward makes one prompt's update quieter, unless the squared scores of its wrong completions exceed those of its
# > right ones by more than a factor that grows with the solve rate.**
# >
# > In groups of 8 the factor is 1 at a solve rate of ⅛ and 2.5 at ½. We checked whether noise, measured before training, says which rule
# > trains better. On one of two tasks it named the wrong one.
#
# **The smallest case.** Half of a prompt's completions are right. With a number $b$ subtracted from the rewards, a right completion adds $(1-b)\,s$
# to the update, a wrong one $-b\,s$. For every constant $b$ the mean is $\nabla p$ ([lesson 1](01_score_function.ipynb)): the signal. The rest is noise, so the
# quietest $b$ is that with the smallest mean square. Let the squared lengths of the two kinds' scores be 4 and 1:
#
# | | $b = 0$: nothing | $b = ½$: the mean reward | $b = 1$ |
# |---|---|---|---|
# | wrong scores long | ½ · 1 = **.5** | ½ · ¼ · 1 + ½ · ¼ · 4 = .625 | ½ · 4 = 2 |
# | right scores long | ½ · 4 = 2 | ½ · ¼ · 4 + ½ · ¼ · 1 = .625 | ½ · 1 = **.5** |
#
# It pays to ignore the noisy kind.
#
# ## The ratio that decides
#
# How much noisier must it be? Let a prompt be solved with probability $p$, and let $q = 1 - p$. The mean $\|s\|^2$ is $a_+$ for right completions and
# $a_-$ for wrong ones. Then
#
# $$\mathbb E\,\|(R-b)\,s\|^2 = p\,(1-b)^2\,a_+ + q\,b^2\,a_-$$
#
# With $b = 0$ only $p\,a_+$ is left. When is that less than with the mean reward, $b = p$?

# %% [fold]
import numpy as np
import torch

from algorithms import rloo
from lessons import identity
from lessons.experiments import baselines, estimators, group_mean, weights
from lessons.experiments.harness.grid import change, load_runs, markdown, select
from lessons.experiments.harness.paired import difference
from lessons.workshop.companions.lesson_13 import GROUPS as groups
from lessons.workshop.companions.lesson_13 import PI as pi
from lessons.workshop.companions.lesson_13 import REWARDS as R
from lessons.workshop.companions.lesson_13 import batch, limit_in_groups
from lessons.workshop.notebook import BLUE, ORANGE, check, knob, new_figure, trains

STUDENTS = {task: task for task in weights.TASKS} | {"slips": estimators.SLIPS}
results = load_runs(estimators.RESULTS)
stages = {(name, step): [run for run in results if (run["task"], run["step"]) == (task, step)]
          for name, task in STUDENTS.items() for step in estimators.STEPS}
seeds, n = len(stages["slips", 0]), results[0]["completions"]

def by_seed(student, step, name):
    """The cosine of each run."""
    return np.array([run["cosines"][name] for run in stages[student, step]])

def cosine(*column):
    return by_seed(*column).mean()

columns = [(name, 0) for name in STUDENTS]
rules = ("σ^1", "σ^2", "no baseline")
table = {name: np.array([cosine(*column, name) for column in columns]) for name in rules}
for student in STUDENTS:  # the repetitions agree
    nothing, mean = (by_seed(student, 0, name) for name in ("no baseline", "σ^2"))
    assert nothing.min() > mean.max() or mean.min() > nothing.max()
change_by_mean = table["σ^2"] - table["no baseline"]
assert [*change_by_mean.round(2)] == [-0.07, 0.15, -0.15]  # the last table
assert max(abs(table["σ^1"] - table["σ^2"])) <= 0.015
averaged = np.array([cosine(*column, "σ^1 ÷ length") for column in columns])
shorter = averaged - table["σ^1"]
assert shorter.argmin() == 0


needs = {name: 1 / cosines**2 - 1 for name, cosines in table.items()}  # completions, in proportion
times = needs["σ^2"] / needs["no baseline"]  # of Dr. GRPO, REINFORCE's


def moments(stage):
    """p, v₊, v₋, |Δm|² of each prompt, from both halves: (seeds, prompts, halves, 4)."""
    rows = [[[[k / (n // 2), *half[0][:3]]
              for k, half in zip(prompt["right"], prompt["moments"])]
             for prompt in run["of prompts"]] for run in stage]
    return np.array(rows, dtype=float)


rows, last = [], []
says = {True: "subtract nothing", False: "subtract"}
for i, student in enumerate(STUDENTS):
    stage = stages[student, 0]
    p, v_right, v_wrong, dm = np.moveaxis(moments(stage), -1, 0)
    ratio = (v_wrong + p**2 * dm) / (v_right + (1 - p) ** 2 * dm)
    beyond = np.mean(ratio > limit_in_groups(p, estimators.G))
    p, ratio = np.median(p).round(2), np.median(ratio)
    limit, choice = limit_in_groups(p, estimators.G), says[bool(beyond > 0.5)]
    assert (ratio > limit) == (ratio > 1 + 1 / (1 - p)) == (beyond > 0.5)
    rows.append([student, f"{p:.2f}", f"{limit:.1f}", f"{ratio:.2g}", f"{100 * beyond:.0f} %"])
    cosines = [f"{table[name][i]:.3f}" for name in ("σ^2", "no baseline")]
    assert (cosines[1] > cosines[0]) == (beyond > 0.5)
    last.append([student, choice, *cosines])
sides = markdown(["before training", "$p$", "limit, $G = 8$", "$a_-/a_+$", "prompts above their limit"], rows)
for row, trained in zip(last, (says[True], says[True], "not trained")):
    row.append(trained)  # lesson 19's first table
heads = "", "the ratio says", "cosine, subtracted", "cosine, nothing", "ended higher in training"
verdict = markdown(heads, last)


runs = load_runs(weights.RESULTS)
by_length = {length: weights.arms(runs, length) for length in weights.STEP_LENGTHS}

def gaps(arm, reference, length):
    """Of an arm (weight, ÷ length?) less another: by task, at the end and over training."""
    arms, found = by_length[length], []
    for task in weights.TASKS:
        first, second = (arms[task, kept, weight] for weight, kept in (arm, reference))
        found += [difference(first[when], second[when]) for when in ("end", "training")]
    return found

quieter, larger, decided = weights.ahead(runs)
assert quieter == larger == decided
of_two = [gap for length in by_length for kept in (True, False)
          for gap in gaps(("σ^2", kept), ("σ^1", kept), length)]
lowest, *_, highest = sorted(of_two, key=lambda gap: gap["difference"])
beyond = -100 * min(gap["interval"][0] for gap in of_two)
largest = change(highest).replace("+", "")
noises = load_runs(baselines.MEASURED_STAGES)
quieter_late = {step: baselines.efficiency(
    select(noises, {"task": "expressions", "step": step}), "R", "R − mean") for step in estimators.STEPS}
counted = group_mean.cells(load_runs(group_mean.RESULTS))
others = {step: np.median([one["times"] for one in counted
                           if (one["task"], one["step"], one["G"]) == ("expressions", step, 8)])
          for step in estimators.STEPS}
assert max(quieter_late[0], others[0]) < 0.5
assert [times[0].round(1), (1 / times[1]).round(1)] == [1.5, 2.3]
plain = {length: gaps(("σ^1", False), ("σ^1", True), length) for length in by_length}
undivided = [[100 * four[i]["difference"] for four in plain.values()] for i in (1, 3)]


# Of GRPO's updates on arithmetic, by k = 1..7: the share of their squared length and of their progress
by_k = np.array([run["by k"] for run in stages["arithmetic", 0]])  # (seeds, 7, 3)
sigma = identity.sigma(np.arange(1, 8), 8)[:, None] ** [2, 1]
parts = (by_k[..., :1] * sigma * by_k[..., 1:]).sum(axis=0)
lone = parts[6] / parts.sum(axis=0)


def clouds(p, ratio):
    """160 updates of 8 completions with each b: along the gradient of p, and across it."""
    (R, scores), best = batch(p, 0.5 * ratio**0.5), p / (p + (1 - p) * ratio)
    figure, axes = new_figure(8.5, 3.2, columns=3, sharex=True, sharey=True)
    for axis, b, name in zip(axes, (0, p, best), ("b = 0", "b = p", f"b = b* = {best:.2f}")):
        updates = ((R - b)[..., None] * scores).reshape(160, 8, 33).mean(axis=1)
        axis.plot(*updates[:, :2].T, ".", color=BLUE, alpha=0.4)
        axis.plot(p * (1 - p), 0, "+", color=ORANGE, markersize=18, markeredgewidth=3)
        axis.set(title=name, aspect="equal", xlabel="along $\\nabla p$")
    return figure

knob(clouds, p=(0.1, 0.9, 0.2, 0.5), ratio=[2, 0.125, 0.5, 1, 3, 5, 8, 11])
squared, p = (torch.eye(6, dtype=torch.float64) - pi).square().sum(dim=1), pi @ R
right, wrong = (pi * R) @ squared, (pi * (1 - R)) @ squared  # p a₊, q a₋
A = rloo.compute_advantages(rewards=R[groups])
exact = (pi[groups].prod(dim=1)[:, None] * A**2 * squared[groups]).sum() / 3
# The mean of the others: the mean square of p, and its own noise
v, sizes = p * (1 - p) / 2, np.array([2, 8, 100])
expected = (1 - p) ** 2 * right + p**2 * wrong + v * (right + wrong)
assert abs(exact / expected - 1) < 1e-12
at_limit = p * ((1 - p) ** 2 + v) + (1 - p) * (p**2 + v) * limit_in_groups(p, 3)
assert abs(at_limit / p - 1) < 1e-12 and np.allclose(limit_in_groups(0.5, sizes), 3 - 4 / sizes)
assert np.allclose(limit_in_groups(1 / sizes, sizes), 1)

# %% [markdown]
# *A toy. A dot is an update of 8 completions, along $\nabla p$ and in one of 32 directions across it; the cross is their mean. See first that the dots of $b = p$
# scatter less than those of $b = 0$; then raise the ratio $a_-/a_+$ until they scatter more. ($b^*$: below.)*
#
# $b = 0$ is quieter exactly if $q\,p^2\,a_-$ exceeds $p\,a_+(1 - q^2)$, which is $p^2\,a_+(1 + q)$:
#
# $$\frac{a_-}{a_+} > 1 + \frac1q$$
#
# At $p = ½$ the limit is 3. That is for a constant $b$. In a group $b$ varies, which costs noise.
#
# **1. The limit in a group.** Let $b$ be the mean of the $G - 1$ other rewards: it does not depend on the own reward, and
# has the mean $p$ and the variance $pq/(G-1)$. (Dr. GRPO's own mean changes only the length of the step: [lesson 3](03_group_baseline.ipynb).) Assume that
# a group's update is mostly noise; then the mean square decides again. From which $a_-/a_+$ on is $b = 0$ quieter?


# %% [exercise]
def limit_in_groups(p, G):
    """The ratio a₋/a₊ above which subtracting nothing is quieter."""
    return ...


# %% [check]
check("13.1", limit_in_groups)

# %% [hint]
# $\mathbb E[b^2]$ is $p^2$ plus the variance of $b$. What is $\mathbb E[(1-b)^2]$? Put both into the formula for the mean square.


# %% [solution]
def limit_in_groups(p, G):
    q, variance = 1 - p, p * (1 - p) / (G - 1)
    return p * (1 - q**2 - variance) / (q * (p**2 + variance))


# At p = 1/G it is 1: with equally long scores subtracting is noisier below. At p = ½ it is 3 - 4/G: 1 in groups of two, 2.5 in groups of eight, 3 in large ones.


# %% [text]
# ## The quietest number
#
# Is anything quieter than both? The mean square is a parabola in $b$. Its slope $-2p\,(1-b)\,a_+ + 2q\,b\,a_-$ is 0 at
#
# $$b^* = \frac{p\,a_+}{p\,a_+ + q\,a_-}$$
#
# In the smallest case it is .2 or .8, with a mean square of .4. A batch can estimate it: $b^*$ is a mean of rewards in which each completion has a weight.
#
# **2. The baseline of a batch.** With which weight? Below the check your baseline trains policies.


# %% [exercise]
def quietest(rewards, scores):
    """An estimate of b*, from numpy arrays (n,), 0 or 1, and (n, parameters)."""
    return ...


# %% [check]
check("13.2", quietest)
trains("13.2", quietest)

# %% [markdown]
# *The toy, trained: the mean $p$ of two prompts. Wrong scores are three times as long in one, right scores in the other. Updates of 8 completions, the baseline
# from 32 others, all steps of one length: what noise takes of a step, the signal lacks. See first which curve is ahead.*

# %% [hint]
# $p\,a_+$ is the mean of $R\,\|s\|^2$ over all completions. What is $p\,a_+ + q\,a_-$?


# %% [solution]
def quietest(rewards, scores):
    weights = (scores**2).sum(axis=1)
    return (weights * rewards).sum() / weights.sum()


# The noisy kind counts for more, so b lies near its reward, and it is nearly ignored.


# %% [text]
# ## Three models
#
# In the toy quieter is faster. And in training? On which side of the limit are real prompts? *Arithmetic*: one right answer, many different wrong guesses. *Expressions*: `39?` asks for any expression with this
# value, such as `#12+27`, and the usual wrong answer repeats the number. *Slips*: arithmetic again, but the model miscalculates in many ways. Medians over
# {=len(results[0]["of prompts"])} held-out prompts and {=seeds} repetitions, each in two halves, and your limit at the median $p$:
#
# {=sides}
#
# How quiet is a batch of many prompts? Take the cosine between its update and the mean of $\nabla p$ over prompts: 1 without noise.
#
# {=verdict}
#
# *Batches of 256 completions, means of {=seeds} repetitions, whose ranges do not overlap. Training: [lesson 19](19_which_baseline.ipynb), each rule at a rate of its own.*
#
# **The ratio names the quieter rule**, for all three models. A larger batch is quieter, too: Dr. GRPO needs {=times[0]:.1f} times as many completions as REINFORCE for
# its cosine on arithmetic, {=times[2]:.1f} times on slips; on expressions REINFORCE needs {=1 / times[1]:.1f} times as many.
#
# **Measured before training, noise named the wrong rule on expressions:** nothing subtracted was the noisier of the two, and ended higher. The noise
# changes as the model learns. On the base model subtracting nothing has {=quieter_late[0]:.2f} times the squared signal-to-noise ratio of one prompt's update, after 20 and 60 steps
# {=quieter_late[20]:.1f} and {=quieter_late[60]:.1f} times (medians, `baselines_stages.json`). On other prompts it was {=others[0]:.2f}, then {=others[20]:.1f} and {=others[60]:.1f}, but by then few are decided
# (`group_mean.json`). By whole batches two measurements disagree.
#
# ## To remember
#
# - Ignore the noisy kind: for one prompt and a constant $b$, subtracting nothing is quieter exactly if $a_-/a_+ > 1 + 1/q$. In groups the limit is lower.
# - The quietest constant is $b^*$: the mean reward, with each completion weighted by its squared score length.
# - In a toy quieter was faster. In real training the noise changes, so a measurement on the base model need not name the better rule. ($b^*$
#   itself we tried in the toy only.)
#
# ## For a second reading (10 minutes): does quiet mean fast?
#
# **σ or σ²?** GRPO also divides by $\sigma = \sqrt{k(G-k)}/G$, if $k$ of $G$ completions are right. That changes how much a whole group counts,
# in groups of eight by $4/\sqrt7 = 1.51$ at most, and cosines by .015 at most. We trained with either, every optimizer step scaled
# to one length: ten seeds, two tasks, three lengths of step, with and without ÷ length, judged at the end and over training. σ² ends up to {=largest} points above σ: on
# expressions, with the shortest steps, without ÷ length, which survives Holm's correction over these {=len(of_two)} comparisons. With long steps up to {=beyond:.1f} points in favour of σ are not excluded.
#
# From `estimators.json` we predicted, before five more seeds were run, that of two powers of σ the quieter leads. **In {=quieter} of {=decided} decided comparisons it did.**
# In all of them it is also the larger power, so the two reasons cannot be told apart.
#
# **÷ length** (`grpo.py`) matters more. On arithmetic before training it lowers the cosine from {=table["σ^1"][0]:.2f} to {=averaged[0]:.2f}.
# Without it GRPO gains {=min(undivided[0]):.1f} to {=max(undivided[0]):.1f} points over training there, on expressions at most {=max(undivided[1]):.1f}.
#
# **Two meanings of progress.** GRPO's update of one group is $g = \sigma\,(\bar s_+ - \bar s_-)$, with the mean scores of its right and wrong completions.
# Let scores have the means $m_\pm$ and the variances $v_\pm$ (summed over parameters), and $\Delta m = m_+ - m_-$. For each $k$
#
# $$\mathbb E\,\langle g, \Delta m\rangle = \sigma\,\|\Delta m\|^2, \qquad
# \mathbb E\,\|g\|^2 = \sigma^2\,\|\Delta m\|^2 + \frac{(G-k)\,v_+ + k\,v_-}{G^2}$$
#
# Progress *for its own prompt* is σ on average, the same for $k$ and $G-k$. The last term is noise: so of $k$ and $G-k$, the one whose update is longer is noisier.
# Progress *along the gradient of all prompts* may differ. On arithmetic before training groups with one wrong completion of eight bring {=lone[0]:.0%} of the squared length
# and {=lone[1]:.0%} of the progress.
#
# Sources: the length as "exactly the group reward standard deviation": [2607.00152](https://arxiv.org/abs/2607.00152), §3; the best baseline:
# [Greensmith, Bartlett and Baxter 2004](https://www.jmlr.org/papers/v5/greensmith04a.html). Measured by `lessons/experiments/estimators.py`
# and `weights.py`.
