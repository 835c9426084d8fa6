# %% [markdown] 25 minutes
# # 13 · Which estimator is quiet?
#
# GRPO divides a group's update by σ, the standard deviation of its rewards. Dr. GRPO does not. Both subtract the group's mean from the rewards;
# REINFORCE subtracts nothing. For one prompt all three push along the prompt's $\nabla p$ on average ([lesson 7](07_group_size.ipynb)). A single batch
# points there only roughly, because its update is noisy. Which of the two choices matters for the noise, ÷ σ or the baseline?
#
# > **For one prompt, subtracting nothing is quieter than subtracting the group's mean if wrong completions have much longer scores than right
# > ones, and noisier if right ones have the longer scores.**
# > In our runs: how well a batch points along $\nabla p$ (a cosine, 1 = exactly) changes by .07 to .15 with the baseline, and by at most .015 with
# > ÷ σ (three base models, means of three repetitions).
#
# Noise costs completions. This lesson says which choice can save some, and what to measure first. (A *score* $s$ is the gradient of a completion's
# log-probability. *Quiet* is the opposite of noisy.)

# %% [fold]
from itertools import product
from math import ceil

import numpy as np
import torch

from algorithms import rloo
from lessons import identity
from lessons.experiments import baselines, estimators, weights
from lessons.experiments.grid import change, load_runs, markdown
from lessons.experiments.paired import difference
from lessons.workshop.kit import check, knob, show
from lessons.workshop.parts.lesson_13 import (
    noise_of_baselines,
    points_by_power,
    three_rules,
)

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
titles = [f"{name}\n{kind} scores longer" for name, kind in zip(STUDENTS, ("wrong", "right", "wrong"))]
named = {"GRPO: − mean, ÷ σ": "σ^1", "Dr. GRPO: − mean": "σ^2", "REINFORCE": "no baseline"}
show(three_rules(titles, {rule: np.array([by_seed(student, 0, name) for student in STUDENTS])
                          for rule, name in named.items()}))
at_base = {name: values[::2] for name, values in table.items()}
moved = abs(at_base["no baseline"] - at_base["σ^2"])
assert moved.min().round(2) == 0.07 and moved.max().round(2) == 0.15
alone = max(abs(by_seed(*column, "σ^1") - by_seed(*column, "σ^2")).max() for column in columns)
below = by_seed("expressions", 20, "no baseline") < by_seed("expressions", 20, "σ^2")
late = [estimators.cosine("expressions", 60, name) for name in ("no baseline", "σ^2")]
in_19 = [np.mean([np.mean(stage["cosines"][name]) for stage in load_runs(baselines.MEASURED_STAGES)
                  if (stage["task"], stage["step"]) == ("expressions", 60)])
         for name in ("R", "R − mean")]
assert below.sum() == 2 and late[0] < late[1] and in_19[0] > in_19[1]
assert max(abs(table["σ^1"] - table["σ^2"])) <= 0.015
quieter = table["no baseline"][1::2] > table["σ^2"][1::2]  # after 20 steps
assert [*quieter] == [True, False, True]
averaged = np.array([cosine(*column, "σ^1 ÷ length") for column in columns])
shorter = averaged - table["σ^1"]
assert shorter.argmin() == 0


def worth(first, second):
    """How many times as many completions the first rule needs for the second's cosine."""
    return (1 / table[first]**2 - 1) / (1 / table[second]**2 - 1)


divided = worth("σ^1", "σ^2")
extra = ceil(100 * (max(*divided, *1 / divided) - 1))  # %

# %% [text]
# *Three small models before training. A dot is the cosine of the angle between a batch's update (256 completions, scores summed over tokens) and the mean
# ∇p over prompts, the direction in which the average accuracy rises fastest; its line goes from the lowest to the highest of three repetitions. See
# the two blue dots first: ÷ σ hardly moves them. The orange dot, without a baseline, lies right, left, right of them.*
#
# - *Arithmetic*: a prompt has one right answer and many different wrong guesses.
# - *Expressions*: `39?` asks for any expression with this value, such as `#12+27`. The usual wrong answer repeats the number, `#39`.
# - *Slips*: the same task, but the model miscalculates, in many ways.
#
# ## What is a cosine worth?
#
# An update is its mean, the signal, plus noise; that of one completion is called noise here. Squared, it falls like $1/n$ in a batch of $n$ completions. The cosine is about
# the signal over the update's length:
#
# $$\cos^2 \approx \frac{\text{signal}^2}{\text{signal}^2 + \text{noise}^2/n}$$
#
# (GRPO weighs prompts unequally, [lesson 9](09_objective.ipynb): over many prompts its cosine stops a little short of 1 even without noise.)
#
# **1. A larger batch.** With `n` completions in a batch a rule has the cosine `cosine`. How many does it need for the cosine `target`?


# %% [exercise]
def completions_for(target, cosine, n):
    """The number of completions at which the cosine is `target`."""
    return ...


# %% [check]
check("13.1", completions_for)

# %% [hint]
# Solve the formula for noise²/signal². It is the same number for both batches.


# %% [solution]
def completions_for(target, cosine, n):
    noise = n * (1 / cosine**2 - 1)  # over the squared signal
    return noise / (1 / target**2 - 1)


# %% [text]
# By your formula the noisier of GRPO and Dr. GRPO, before training and after 20 steps, needs at most {=extra} % more completions than the other. (The box's .015
# holds at both times; in a single repetition the cosines differ by up to {=alone:.3f}.) The baseline is worth more. To be as quiet as REINFORCE, Dr. GRPO
# needs about {=worth("σ^2", "no baseline")[0]:.1f} times as many on arithmetic and {=worth("σ^2", "no baseline")[4]:.1f} times on slips. On expressions REINFORCE needs {=worth("no baseline", "σ^2")[2]:.1f} times as many as Dr. GRPO.
#
# ## Why ÷ σ hardly matters
#
# If $k$ of the $G$ completions are right, $\sigma = \sqrt{k(G-k)}/G$: one number for the whole group. Dividing by it leaves the direction of the group's update
# as it is, and changes only how much the group counts in the batch. In groups of eight σ runs from $\sqrt7/8 = .331$ ($k = 1$) to .5 ($k = 4$). So the
# most that a group gains on another is a factor of $4/\sqrt7 = 1.51$. (In groups of 64: 4.03.)
#
# The baseline acts inside each group: it says how much right completions count against wrong ones.
#
# ## Why the baseline matters
#
# With a constant baseline $b$ a completion of reward $R$, 1 or 0, adds $(R - b)\,s$ to the update. The mean is $\nabla p$ for every $b$
# ([lesson 1](01_score_function.ipynb)), so the noise depends on $b$ as the mean square does. With $q = 1 - p$ and the mean $\|s\|^2$ of right and of
# wrong completions, $a_+$ and $a_-$:
#
# $$\mathbb E\,\|(R-b)\,s\|^2 = p\,(1-b)^2\,a_+ + q\,b^2\,a_-$$
#
# At $p = ½$ this is
#
# | | $b = 0$ | $b = p = ½$ | $b = 1$ |
# |---|---|---|---|
# | wrong scores long: $a_+ = 1,\ a_- = 4$ | **.5** | .625 | 2 |
# | right scores long: $a_+ = 4,\ a_- = 1$ | 2 | .625 | **.5** |
#
# Without a baseline ($b = 0$) the wrong completions are ignored, with $b = 1$ the right ones. It pays to ignore the noisy kind.

# %%
def draw(p, ratio):
    def noise(b):
        return p * (1 - b) ** 2 + (1 - p) * b**2 * ratio

    best = p / (p + (1 - p) * ratio)
    others = noise(p) + p * (1 - p) / 7 * (p + (1 - p) * ratio)
    marks = {"0": (0, noise(0)), "b*": (best, noise(best)), "mean of the other 7": (p, others),
             "p": (p, noise(p)), "1": (1, noise(1))}
    b = np.linspace(0, 1, 201)
    marks = {name: (at, height / noise(best)) for name, (at, height) in marks.items()}
    title = f"p = {p:.1f}, $a_-/a_+$ = {ratio:g}"
    return noise_of_baselines(b, noise(b) / noise(best), marks, title)


knob(draw, p=(0.1, 0.9, 0.1, 0.5), ratio=[8, 0.125, 0.25, 0.5, 1, 2, 4, 16, 32])

# %% [fold]
pi = torch.tensor([0.5, -0.3, 0.1, 0.9, -1.2, 0.0], dtype=torch.float64).softmax(dim=0)
R = torch.tensor([1.0, 1, 0, 0, 0, 0], dtype=torch.float64)
squared, p = (torch.eye(6, dtype=torch.float64) - pi).square().sum(dim=1), pi @ R
right, wrong = (pi * R) @ squared, (pi * (1 - R)) @ squared  # p a₊, q a₋
groups = torch.tensor([*product(range(6), repeat=3)])
A = rloo.compute_advantages(rewards=R[groups])
exact = (pi[groups].prod(dim=1)[:, None] * A**2 * squared[groups]).sum() / 3
# The noise of the mean of the others: that of p, and its own
expected = (1 - p) ** 2 * right + p**2 * wrong + p * (1 - p) / 2 * (right + wrong)
assert abs(exact / expected - 1) < 1e-12

# %% [markdown]
# *The noise of each baseline; that of the best constant, $b^*$, is 1. Here wrong scores are long: $b = 0$ is quieter than $b = p$. The mean of the group's
# others is $p$ plus a noise of its own. Now set $a_-/a_+$ to .125.*
#
# The curve is a parabola with its lowest point at $b^*$. So $b = 0$ is quieter than $b = p$ exactly if $b^* < p/2$. By the formula this is
# $a_-/a_+ > 1 + 1/q$: more than 3 at $p = ½$, more than 11 at $p = .9$.
#
# **2. The best baseline.** From the rewards of many completions to one prompt and their scores, one row each, estimate $b^*$, the constant with the least
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


def short(x):
    return f"{x:.{2 if x < 1 else 1 if x < 10 else 0}f}"


rows, later = [], 0
for where, stage in stages.items():
    prompts = [prompt for run in stage for prompt in run["of prompts"]]
    p, v_right, v_wrong, dm = np.moveaxis(moments(stage), -1, 0)
    a_right, a_wrong = v_right + (1 - p) ** 2 * dm, v_wrong + p**2 * dm
    best = p * a_right / (p * a_right + (1 - p) * a_wrong)
    zero = np.mean((best < p / 2)[~np.isnan(best)])
    if where[1] == 0:
        numbers = short(np.nanmedian(a_wrong / a_right)), f"{np.nanmedian(best):.2f}"
        rows.append([where[0], *numbers, f"{100 * zero:.0f} %"])
    later = 100 * zero if where == ("expressions", 20) else later
predicted = markdown(["before training", "$a_-/a_+$", "$b^*$", "prompts where $b = 0$ is quieter than $p$"], rows)

# %% [text]
# So $b^*$ is the mean reward, weighted by $\|s\|^2$. Your formula on measured scores (medians over {=len(results[0]["of prompts"])} held-out prompts and {=seeds} seeds):
#
# {=predicted}
#
# In the base models the last column agrees with the orange dots: right, left, right.
#
# **Its limit: it speaks of one prompt, a batch has many.** In batches the rule held in all three base models, and after 20 steps of GRPO in two of the three. It failed on
# expressions: it recommends no baseline on {=later:.0f} % of the prompts, but the cosine of batches is {=table["no baseline"][3]:.2f} without and {=table["σ^2"][3]:.2f} with one (it is behind in two of three
# repetitions). Prompts that are nearly always right are one reason: without a baseline they add noise, with the group's mean hardly any. After 60
# steps it is undecided there: {=late[0]:.2f} against {=late[1]:.2f} here, {=in_19[0]:.2f} against {=in_19[1]:.2f} with the other batches of [lesson 19](19_which_baseline.ipynb).
#
# So $a_-/a_+$ says which baseline to try. To know which is quieter in your batches, compare their cosines, in more than one run.
#
# ## To remember
#
# - ÷ σ changes how much whole groups count, at $G = 8$ by a factor of 1.51 at most. The baseline changes how right completions count against wrong ones.
# - For one prompt $b = 0$ is quieter than $b = p$ exactly if $a_-/a_+ > 1 + 1/q$.
# - A cosine is worth completions: the number needed grows like $\cos^2/(1 - \cos^2)$.
# - The ratio $a_-/a_+$ speaks of one prompt. It changes as the model learns, and a batch need not follow it.
# - All our measurements are of small models of one architecture.
#
# ## For a second reading (12 minutes): does quiet mean fast?
#
# We trained with five powers of σ as a group's weight, all else GRPO's, without KL, and every optimizer step scaled to the same length (ten seeds, 60
# batches of 32 × 8). σ is GRPO's weight, σ² Dr. GRPO's; the two are nearly equally quiet.

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
quieter, larger, decided = weights.ahead(runs)
assert quieter == larger == decided
of_power = {name: [gap for length in by_length for kept in (True, False)
                   for gap in gaps((name, kept), ("σ^1", kept), length)]
            for name in weights.POWERS if name != "σ^1"}


def shown(gap):
    return change(gap).replace("+", "")


lowest, *_, highest = sorted(of_power["σ^2"], key=lambda gap: gap["difference"])
cubed = max(of_power["σ^3"], key=lambda gap: gap["difference"])
undecided = sum(np.prod(gap["interval"]) <= 0 for gap in of_power["σ^2"])
assert max(abs(100 * gap["difference"]) for gap in (lowest, highest)) <= 2
plain = {length: gaps(("σ^1", False), ("σ^1", True), length) for length in by_length}
undivided = [[100 * four[i]["difference"] for four in plain.values()] for i in (1, 3)]

# %% [text]
# *Points of accuracy above σ, with 95 % intervals: on held-out problems at the end, and on the training problems of all batches. See first how near
# 0 most points lie.*
#
# **σ² differs from σ by small amounts, both ways**: by {=shown(lowest)} to {=shown(highest)} points over all positions of the sliders, and {=undecided} of {=len(of_power["σ^2"])}
# intervals contain 0. A larger power tends to be ahead, σ³ by up to {=shown(cubed)} points, and we cannot say that noise is the reason: on five new seeds the rule
# "the quieter power wins", fixed in advance, was right in {=quieter} of {=decided} significant comparisons, and so was "the larger power wins".
#
# **÷ length can matter as much as the baseline.** On arithmetic before training wrong completions are short and noisy, and a mean over tokens makes
# short ones count more: GRPO's cosine falls from {=table["σ^1"][0]:.2f} to {=averaged[0]:.2f}. In the other five cases it changes by {=abs(shorter[1:]).max():.2f} at most. Such an update does not point
# along $\nabla p$ even on average, which may be part of the fall. Without ÷ length GRPO gains {=min(undivided[0]):.1f} to {=max(undivided[0]):.1f} points over training on arithmetic,
# and at most {=max(undivided[1]):.1f} on expressions.
#
# **Progress and noise by k.** GRPO's update of one group is $g = \sigma\,(\bar s_+ - \bar s_-)$, with the mean scores of its right and wrong completions.
# Let their scores have the means $m_\pm$ and the variances $v_\pm$, summed over parameters, and $\Delta m = m_+ - m_-$. For each $k$
#
# $$\mathbb E\,\langle g, \Delta m\rangle = \sigma\,\|\Delta m\|^2, \qquad
# \mathbb E\,\|g\|^2 = \sigma^2\,\|\Delta m\|^2 + \frac{(G-k)\,v_+ + k\,v_-}{G^2}$$
#
# The update's *progress* for its own prompt, $\langle g, \Delta m\rangle / \|\Delta m\|^2$, has the mean σ, whatever the variances. The last term is noise. If
# $v_- > v_+$ it grows with $k$: groups with $k$ and with $G-k$ right make the same progress, and the longer update is the noisier one.

# %% [fold]
def shares(student, step, ks, G=estimators.G):
    """Of the squared length and the progress of GRPO's updates, and of the mixed groups, the share
    that groups with these k have."""
    by_k = np.array([run["by k"] for run in stages[student, step]])  # (seeds, k = 1..G-1, 3)
    n, squared, progress = np.moveaxis(by_k, 2, 0)
    sigma = identity.sigma(np.arange(1, G), G)
    parts = [(n * x).sum(axis=0) for x in (sigma**2 * squared, sigma * progress, 1)]
    return [part[[k - 1 for k in ks]].sum() / part.sum() for part in parts]


lone = shares("arithmetic", 0, [7])
late_progress, few = np.array([shares(name, 60, [6, 7])[1:] for name in STUDENTS]).T
dropped = gaps(("σ, k < G − 2", True), ("σ^1", True), 0.016)
costs = [-100 * gap["difference"] for gap in dropped[::2]]
# %% [text]
# **Whose progress?** Now measure it along the gradient of all prompts together; then $k$ and $G-k$ may differ. On arithmetic before training groups with one
# wrong completion of eight have {=lone[0]:.0%} of the squared length and {=lone[1]:.0%} of the progress: what moves an easy prompt need not help the others. After
# 60 steps groups with one or two wrong make {=min(late_progress):.0%} to {=max(late_progress):.0%} of the progress; they are {=min(few):.0%} to {=max(few):.0%} of the mixed groups. They are noisy, and must
# be kept: dropping them costs {=min(costs):.0f} to {=max(costs):.0f} points of accuracy.
#
# Sources: the length as "exactly the group reward standard deviation": [arXiv:2607.00152](https://arxiv.org/abs/2607.00152), §3; the best baseline:
# [Greensmith, Bartlett and Baxter 2004](https://www.jmlr.org/papers/v5/greensmith04a.html). The true gradient comes from
# {=results[0]["gradient"]:,} completions, the batches are others, in groups of 8. The measurements are ours: `lessons/experiments/estimators.py`
# and `weights.py`, each with `--publish`, make every number on this page.
