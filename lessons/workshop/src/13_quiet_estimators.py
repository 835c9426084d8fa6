# %% [markdown] 38 minutes, without the second reading
# # 13 · Which estimator is quiet?
#
# REINFORCE pushes a completion along its *score* $s$, the gradient of its log-probability, times its reward. Dr. GRPO first subtracts the mean
# reward of the group. For one prompt both push along $\nabla p$ on average, the gradient of its success probability
# ([lesson 3](03_group_baseline.ipynb)). A single batch is noisy. Does subtracting the mean make it quieter?
#
# > **Subtracting the mean reward makes one prompt's update quieter, unless the scores of its wrong completions are much longer than those of its right
# > ones: with half right, in groups of eight, more than 2.5 times in mean square.**
# >
# > Quieter did not mean better. On two tasks we also trained with both rules, and what this ratio chose ended higher on one of them.
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
from itertools import product

import numpy as np
import torch

from algorithms import rloo
from lessons import identity
from lessons.experiments import estimators, weights
from lessons.experiments.grid import load_runs, markdown
from lessons.experiments.paired import difference
from lessons.workshop.kit import check, knob
from lessons.workshop.parts.lesson_13 import limit_in_groups, mean_squares

STUDENTS = {task: task for task in weights.TASKS} | {"slips": estimators.SLIPS}
results = load_runs(estimators.RESULTS)
stages = {(name, step): [run for run in results if (run["task"], run["step"]) == (task, step)]
          for name, task in STUDENTS.items() for step in estimators.STEPS}
seeds, n = len(stages["slips", 0]), results[0]["completions"]

def cosine(student, step, name):
    return estimators.cosine(STUDENTS[student], step, name)

def by_seed(student, step, name):
    """The cosines of `cosine`, one for each run."""
    return np.array([run["cosines"][name] for run in stages[student, step]])

columns = [(name, step) for name in STUDENTS for step in (0, 20)]
rules = ("σ^1", "σ^2", "no baseline")
table = {name: np.array([cosine(*column, name) for column in columns]) for name in rules}
for student in STUDENTS:  # the repetitions agree
    nothing, mean = (by_seed(student, 0, name) for name in ("no baseline", "σ^2"))
    assert nothing.min() > mean.max() or mean.min() > nothing.max()
change_by_mean = table["σ^2"] - table["no baseline"]
assert [*change_by_mean[::2].round(2)] == [-0.07, 0.15, -0.15]  # the last table
below = by_seed("expressions", 20, "no baseline") < by_seed("expressions", 20, "σ^2")
assert below.sum() == 2 and len(below) == 3  # the repetitions disagree
assert max(abs(table["σ^1"] - table["σ^2"])) <= 0.015
assert [*(change_by_mean[1::2] < 0)] == [True, False, True]  # after 20 steps
averaged = np.array([cosine(*column, "σ^1 ÷ length") for column in columns])
shorter = averaged - table["σ^1"]
assert shorter.argmin() == 0


def worth(first, second):
    """How many times as many completions the first rule needs for the second's cosine."""
    return (1 / table[first]**2 - 1) / (1 / table[second]**2 - 1)



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
    cosines = [f"{table[name][2 * i]:.3f}" for name in ("σ^2", "no baseline")]
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
largest = max(abs(100 * gap["difference"]) for gap in (lowest, highest))
costly = [worth("σ^2", "no baseline")[0], worth("no baseline", "σ^2")[2]]
assert largest <= 2 and [round(x, 1) for x in costly] == [1.5, 2.3]
plain = {length: gaps(("σ^1", False), ("σ^1", True), length) for length in by_length}
undivided = [[100 * four[i]["difference"] for four in plain.values()] for i in (1, 3)]


def shares(student, step, ks, G=estimators.G):
    """Of the squared length and the progress of GRPO's updates, and of the mixed groups, the share
    that groups with these k have."""
    by_k = np.array([run["by k"] for run in stages[student, step]])  # (seeds, k = 1..G-1, 3)
    n, squared, progress = np.moveaxis(by_k, 2, 0)
    sigma = identity.sigma(np.arange(1, G), G)
    parts = [(n * x).sum(axis=0) for x in (sigma**2 * squared, sigma * progress, 1)]
    return [part[[k - 1 for k in ks]].sum() / part.sum() for part in parts]


lone = shares("arithmetic", 0, [7])
few = [shares(name, 60, [6, 7])[2] for name in STUDENTS]
dropped = gaps(("σ, k < G − 2", True), ("σ^1", True), 0.016)
costs = [-100 * gap["difference"] for gap in dropped[::2]]


knob(mean_squares, p=(0.1, 0.9, 0.2, 0.5), ratio=[2, 0.125, 0.5, 1, 3, 5, 8, 11, 32])
pi = torch.tensor([0.5, -0.3, 0.1, 0.9, -1.2, 0.0], dtype=torch.float64).softmax(dim=0)
R = torch.tensor([1.0, 1, 0, 0, 0, 0], dtype=torch.float64)
squared, p = (torch.eye(6, dtype=torch.float64) - pi).square().sum(dim=1), pi @ R
right, wrong = (pi * R) @ squared, (pi * (1 - R)) @ squared  # p a₊, q a₋
groups = torch.tensor([*product(range(6), repeat=3)])
A = rloo.compute_advantages(rewards=R[groups])
exact = (pi[groups].prod(dim=1)[:, None] * A**2 * squared[groups]).sum() / 3
# The mean of the others: the mean square of p, and its own noise
v, sizes = p * (1 - p) / 2, np.array([2, 8, 100])
expected = (1 - p) ** 2 * right + p**2 * wrong + v * (right + wrong)
assert abs(exact / expected - 1) < 1e-12
at_limit = p * ((1 - p) ** 2 + v) + (1 - p) * (p**2 + v) * limit_in_groups(p, 3)
assert abs(at_limit / p - 1) < 1e-12 and np.allclose(limit_in_groups(0.5, sizes), 3 - 4 / sizes)

# %% [markdown]
# *The mean square at each constant $b$, over that at the best, $b^*$: lower is quieter. See first that $b = p$ lies below $b = 0$; then raise the ratio
# $a_-/a_+$ until it does not.*
#
# $b = 0$ is quieter exactly if $q\,p^2\,a_-$ exceeds $p\,a_+(1 - q^2)$, which is $p^2\,a_+(1 + q)$:
#
# $$\frac{a_-}{a_+} > 1 + \frac1q$$
#
# At $p = ½$ the limit is 3: subtracting the mean pays for most ratios. That is for a constant $b$. In a group $b$ varies, which costs noise.
#
# **1. The limit in a group.** Let $b$ be the mean of the $G - 1$ other rewards: it does not depend on the own reward, and
# has the mean $p$ and the variance $pq/(G-1)$. (Dr. GRPO's own mean changes only the length of the step: [lesson 3](03_group_baseline.ipynb).) Assume that
# a group's update is mostly noise; then the mean square decides again. From which $a_-/a_+$ on is $b = 0$ quieter? (At $p = ½$, $G = 8$: 2.5, as in
# the claim.)


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


# At p = ½ it is 3 - 4/G: 1 in groups of two, 2.5 in groups of eight, 3 in large ones.


# %% [text]
# ## Three models, and what quiet is worth
#
# Which side are real prompts on? *Arithmetic*: one right answer, many different wrong guesses. *Expressions*: `39?` asks for any expression with this
# value, such as `#12+27`, and the usual wrong answer repeats the number. *Slips*: arithmetic again, but the model miscalculates in many ways. Medians over
# {=len(results[0]["of prompts"])} held-out prompts and {=seeds} repetitions (lesson 19 measures anew, so its medians differ a little), and your limit at the median $p$:
#
# {=sides}
#
# To see whether a batch of many prompts is quieter, too, take the cosine between its update and the mean of $\nabla p$ over prompts: 1 without noise.
# Noise can be paid for with completions: a batch of $n$ has the noise of one, over $\sqrt n$. The cosine is about the signal over the
# length of the update, so
#
# $$\cos^2 \approx \frac{\text{signal}^2}{\text{signal}^2 + \text{noise}^2/n}$$
#
# **2. A larger batch.** With `n` completions in a batch a rule has the cosine `cosine`. How many does it need for the cosine `target`?


# %% [exercise]
def completions_for(target, cosine, n):
    """The number of completions at which the cosine is `target`."""
    return ...


# %% [check]
check("13.2", completions_for)

# %% [hint]
# Solve the formula for noise²/signal². It is the same number for both batches.


# %% [solution]
def completions_for(target, cosine, n):
    noise_squared = n * (1 / cosine**2 - 1)  # over the squared signal
    return noise_squared / (1 / target**2 - 1)


# %% [text]
# ## What the ratio says, and what trained better
#
# {=verdict}
#
# *Cosines: batches of 256 completions in groups of eight, means of {=seeds} repetitions, whose ranges do not overlap. Training: [lesson 19](19_which_baseline.ipynb), each rule at a learning rate
# of its own.*
#
# **The ratio names the quieter rule**, here for all three models. By your formula Dr. GRPO needs {=worth("σ^2", "no baseline")[0]:.1f} times as many completions as
# REINFORCE on arithmetic to be as quiet, and {=worth("σ^2", "no baseline")[4]:.1f} times on slips; on expressions REINFORCE needs {=worth("no baseline", "σ^2")[2]:.1f} times as many.
#
# **Quieter need not train better:** on expressions the noisier rule ended higher. So let the ratio tell you which rule can do with a smaller batch, and a
# training run which rule to use. All models are small.
#
# ## To remember
#
# - Ignore the noisy kind: for one prompt and a constant $b$, subtracting nothing is quieter exactly if $a_-/a_+ > 1 + 1/q$. In groups the limit is lower.
# - A higher cosine saves completions: the number needed grows like $\cos^2/(1 - \cos^2)$.
# - Neither says which rule trains better: only a training run does.
#
# ## For a second reading (12 minutes): does quiet mean fast?
#
# **After 20 steps of GRPO** the ratio still names the rule with the higher mean cosine on arithmetic and slips. On expressions, where the median prompt is near
# its limit, it does not.
#
# **÷ σ hardly matters.** GRPO also divides by $\sigma = \sqrt{k(G-k)}/G$, if $k$ of $G$ completions are right. That changes only how much a whole group counts,
# in groups of eight by $4/\sqrt7 = 1.51$ at most; cosines change by .015 at most. We trained with either, every optimizer step scaled
# to one length: ten seeds, two tasks, three lengths of step, with and without ÷ length. None of {=len(of_two)} comparisons exceeds {=largest:.1f} points of accuracy.
#
# **÷ length** (`grpo.py`) matters more. On arithmetic before training, where wrong completions are short and noisy, it lowers the cosine from {=table["σ^1"][0]:.2f} to {=averaged[0]:.2f}.
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
# and {=lone[1]:.0%} of the progress. After 60 steps of training groups with one or two wrong are at least {=min(few):.0%} of the mixed groups: noisy, but
# dropping them costs {=min(costs):.0f} to {=max(costs):.0f} points of accuracy.
#
# Sources: the length as "exactly the group reward standard deviation": [2607.00152](https://arxiv.org/abs/2607.00152), §3; the best baseline:
# [Greensmith, Bartlett and Baxter 2004](https://www.jmlr.org/papers/v5/greensmith04a.html). Measured by `lessons/experiments/estimators.py`
# and `weights.py`.
