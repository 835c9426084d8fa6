# %% [markdown] 40 minutes, without the second reading
# # 19 · Which baseline?
#
# GRPO and Dr. GRPO subtract the mean reward of the group. If all its completions are right, every advantage is 0 and the group teaches nothing.
# REINFORCE's advantage is the bare reward, $A = R$. Late in a run most groups are all right. Does it pay to train on them?
#
# > **With the bare reward as advantage, all-right groups teach, too; on nearly solved prompts they bring most of the gradient. Subtracting the
# > mean silences them; for one prompt, mixed groups then bring the same mean, and only the noise differs.**
# >
# > In our runs, on two tasks and each rule at the learning rate that did best on three other seeds, the bare reward ended 2.8 and 2.1 points
# > higher than the group's mean with one update a batch. With four it led RLOO, by less. Noise alone did not predict the order.
#
# **The smallest case.** Take a policy of one parameter whose answer is right with probability $p = .9$. The score, the gradient of the answer's
# log-probability, is then .1 for a right answer and −.9 for a wrong one, and $\nabla p = p\,(1-p) = .09$. Draw groups of two.
# [RLOO](../algorithms/rloo.py) subtracts the reward of the other answer (in groups of two this is $2(R - $ mean$)$, and its mean is exactly
# $\nabla p$). The update of each kind of group:
#
# | the group | how often | $A = R$ | RLOO |
# |---|---|---|---|
# | both right | .81 | .1 | 0 |
# | one right | .18 | .05 | .5 |
# | both wrong | .01 | 0 | 0 |
# | **mean** | | **.09** | **.09** |
#
# (One right, $A = R$: half of .1. RLOO: half of $1 \cdot .1 + (-1)(-.9)$.) With $A = R$ nine tenths of it come from
# all-right groups. With RLOO the 18 % of mixed groups bring everything, in rare, long steps.

# %% [fold]
from itertools import product

import numpy as np
import torch

from algorithms import rloo
from lessons.experiments import baselines, baselines_tables, estimators, paired, shrinkage
from lessons.experiments.grid import cell, change, load_runs, markdown, select, short
from lessons.workshop.kit import check, show
from lessons.workshop.parts.lesson_19 import times_as_noisy, who_brings

MEAN, LEFT_OUT = baselines_tables.MEAN, "R, all-right groups left out"
stages = load_runs(baselines.MEASURED_STAGES)


def at(task, step):
    return select(stages, {"task": task, "step": step})


def measured(task, step):
    return [prompt for stage in at(task, step) for prompt in stage["prompts_measured"] if prompt]


def of_prompts(task, step):
    """p, a₋/a₊ and exercise 2's answer for groups of eight, for each prompt."""
    p, best = np.array([(prompt["p"], prompt["best b"]) for prompt in measured(task, step)]).T
    ratio = p * (1 - best) / ((1 - p) * best)  # b* is p a₊ / (p a₊ + q a₋)
    return p, ratio, times_as_noisy(p, 8, 1, ratio)


def times(name, other, task, step):
    """How many times the signal-to-noise ratio of another one."""
    return baselines.efficiency(at(task, step), name, other)


def noise_table():
    rows = []
    for task in baselines.TASKS:
        for step, model in ((0, "base"), (60, "60 steps")):
            p, ratio, answer = np.median(of_prompts(task, step), axis=1)
            digits = 0 if ratio > 10 else 1
            p, ratio = round(p, 3), round(ratio, digits)  # as printed
            at_medians, found = times_as_noisy(p, 8, 1, ratio), times("R", MEAN, task, step)
            numbers = f"{ratio:.{digits}f}", f"{at_medians:.3g}", f"{found:.3g}"
            rows.append([f"{task}, {model}", short(p), *numbers])
            assert (answer > 1) == (at_medians > 1) == (found > 1)
    return markdown(["", "$p$", "$a_-/a_+$", "your formula, $G = 8$", "measured"], rows)


def plain(text):
    """As a text has a difference: without a mark of significance, and without a plus."""
    return text.strip("*").replace("+", "")


trials = load_runs(baselines.TUNED)
learned = baselines_tables.learned(load_runs(baselines.RESULTS), trials)


def best_rate(row, task):
    """The rate that did best on the seeds that chose it."""
    of_arm = {"task": task, "advantage": row, "minibatches": 1}
    return baselines.best_rate(select(trials, of_arm), "end")


def gap(row, task):
    """In points above R − mean at the end, with its interval."""
    return change(learned[row][f"{task}, at the end"]["gap"]).strip("*")


def results_table():
    rows, heads = [], ["at the end"]
    for name, row in {MEAN: MEAN, "A = R": "R", "A = R, mixed groups only": LEFT_OUT}.items():
        rows.append([name])
        for task in baselines.TASKS:
            mean = cell(learned[MEAN][f"{task}, at the end"])
            rows[-1] += [mean if row == MEAN else gap(row, task)]
            rows[-1].append(f"{1e4 * best_rate(row, task):.0f}e-4")
    for task in baselines.TASKS:
        heads += [task, "rate"]
    return markdown(heads, rows)


def lost(task):
    """By leaving out the all-right groups of A = R."""
    difference = baselines_tables.difference(learned, "R", LEFT_OUT, f"{task}, at the end")
    return plain(change(difference))


knob_runs = load_runs(shrinkage.RESULTS)
arms, (_, half) = shrinkage.compared(knob_runs), shrinkage.ALL_RIGHT


def gained(arm, column="both", *rounding):
    """In points above RLOO, with four updates a batch."""
    return change(arms[arm][column]["gap"], *rounding)


def rates(arm):
    """On both tasks."""
    return [select(knob_runs, {"arm": arm, "task": task})[0]["rate"] for task in baselines.TASKS]


def late_gap(task, outcome, *rounding):
    chosen = ([task], outcome, shrinkage.LONG)
    values = (shrinkage.outcomes(knob_runs, arm, *chosen) for arm in ("κ = ∞", "κ = 0"))
    return plain(change(paired.difference(*values), *rounding))


def cosine(name, task, step):
    return np.mean([np.mean(stage["cosines"][name]) for stage in at(task, step)])


of_13 = [estimators.cosine("expressions", 60, name) for name in ("no baseline", "σ^2")]

# Exercise 2 by all groups of four, with the advantages of rloo.py
p, squared = 0.7, np.array([5.0, 2.0])  # |s|² of wrong and of right ones
R = np.array([*product((0, 1), repeat=4)])
chance = np.where(R, p, 1 - p).prod(axis=1)
rloo_A = rloo.compute_advantages(rewards=torch.tensor(R, dtype=torch.float64)).numpy()
of_rloo, of_R = (chance @ (A**2 * squared[R]).sum(axis=1) for A in (rloo_A, R))
assert np.isclose(of_rloo / of_R, times_as_noisy(p, 4, 2, 5))

# The row that misses: prompts with more signal than noise, and by how much the formula is off
def signal_to_noise(name):
    noises = [prompt["noise"][name] for prompt in measured("arithmetic", 60)]
    mean, along, across = np.array(noises).T
    return mean**2 / (along + across)


loud = signal_to_noise("R") > 1
off = signal_to_noise("R") / signal_to_noise(MEAN) / of_prompts("arithmetic", 60)[2]
assert np.median(off[loud]) > 1.9 and abs(np.median(off[~loud]) - 1) < 0.05

# The words of the text
for row in (MEAN, "R", LEFT_OUT):
    for task in baselines.TASKS:
        of_arm = select(trials, {"task": task, "advantage": row, "minibatches": 1})
        grid = sorted({run["rate"] for run in of_arm})
        assert best_rate(row, task) in grid[1:-1]
assert rates(half) == rates("κ = ∞")
behind = -100 * learned[LEFT_OUT]["expressions, over training"]["gap"]["difference"]
assert all(learned["R"][f"{task}, at the end"]["gap"]["p_holm"] < paired.LEVEL
           < min(arms[arm][task]["gap"]["p_holm"] for arm in ("κ = ∞", half))
           for task in baselines.TASKS)
assert [gap("R", task)[:4] for task in baselines.TASKS] == ["+2.8", "+2.1"]
noisier = [times(LEFT_OUT, MEAN, "expressions", step) for step in baselines.STEPS]
assert max(noisier) < 0.4
length_fits = np.array([np.mean([prompt["fits"][0] for prompt in measured(task, step)])
                        for task in baselines.TASKS for step in baselines.STEPS])
assert cosine("OPO", "arithmetic", 0) < cosine(MEAN, "arithmetic", 0) - 0.1
assert [best_rate("R", task) / best_rate(MEAN, task) for task in baselines.TASKS] == [2, 0.5]
late = {task: np.median(of_prompts(task, 60)[0]) for task in baselines.TASKS}


def progress(task):
    """The length of each prompt's mean update, with all groups and with mixed ones only."""
    return np.array([[prompt["noise"][name][0] for name in ("R", LEFT_OUT)]
                     for prompt in measured(task, 60)]).T


silenced = {}  # the share of all prompts' progress that all-right groups bring
for task, p_late in late.items():
    whole, of_mixed = progress(task)
    silenced[task] = 1 - of_mixed.sum() / whole.sum()
    assert abs(np.median(1 - of_mixed / whole) - p_late**7) < 0.01
show(who_brings(np.array([*late.values()])))

# %% [text]
# *The gradient $\nabla p$ of this policy over its solve rate $p$, and which groups of eight bring it with $A = R$ (with RLOO all is blue). See the
# right end first: all-right groups bring most of what is left. Dots: the median $p$ of our trained models, {=short(late["arithmetic"], 4)} and {=short(late["expressions"], 4)} on two tasks.*
#
# | symbol | meaning |
# |---|---|
# | $G,\ p,\ q$ | completions of one prompt; the probability that one is right; $1-p$ |
# | $R,\ s$ | the reward of a completion, 0 or 1; its score $\nabla_\theta \log \pi_\theta(y)$ |
# | $m_+$ | the mean score of right completions |
# | $a_+,\ a_-$ | the mean of $\|s\|^2$ of right and of wrong completions |
#
# ## Right completions are enough
#
# The gradient of $p$ is the mean of $R\,s$ ([lesson 1](01_score_function.ipynb)). A wrong completion has $R = 0$ and drops out:
#
# $$\nabla p = \mathbb E[R\,s] = p\,m_+$$
#
# So right completions point along the gradient in the mean.
#
# **1. The share of all-right groups.** With $A = R$, which share of $\nabla p$ do all-right groups of $G$ bring?


# %% [exercise]
def share(p, G):
    return ...


# %% [check]
check("19.1", share)

# %% [hint]
# How often is a group all right? Its expected update is $m_+$. Divide the product by $\nabla p$.


# %% [solution]
def share(p, G):
    return p ** (G - 1)  # p^G times m+, over p m+: the other G - 1 must be right, too


# %% [text]
# At $p = .9$ it is .9 in groups of two, as in the table, and .48 in groups of eight. At the dots it is {=late["arithmetic"]**7:.0%} and {=late["expressions"]**7:.0%}.
# Of the gradients of all measured prompts together (hard ones have longer gradients) it is {=silenced["arithmetic"]:.0%} and {=silenced["expressions"]:.0%}.
#
# ## Does it pay to train on them?
#
# From the base models, one update a batch, no KL, each rule at the rate that did best on three other seeds (rates
# by factors of two; the best is never the grid's lowest or highest). Accuracy of $R - $ mean, and points above it:
#
# {=results_table()}
#
# *Means and 95 % intervals, ten seeds. The gains of $A = R$ survive Holm's correction over all 24 comparisons.*
#
# Its rate is twice that of $R - $ mean on one task and half on the other, so longer steps do not explain both leads.
#
# **Without its all-right groups $A = R$ loses {=lost("arithmetic")} and {=lost("expressions")} points.**
#
# At one rate for all, as on the [front page](../README.md#results), REINFORCE is *below* GRPO. All our models are small.
#
# ## Is it the noise?
#
# Only RLOO uses the wrong answer's score, in the smallest case nine times as long as the right one's.
#
# **2. How much noisier?** Assume that a group's update is mostly noise. Then only the mean of $\|A\,s\|^2$ over completions matters. RLOO's $b$, the
# mean of the $G - 1$ other rewards, is independent of the own one. It has the mean $p$ and the variance $pq/(G-1)$. How many times as large is
# the mean of $\|A\,s\|^2$ with RLOO as with $A = R$?


# %% [exercise]
def noise_ratio(p, G, a_right, a_wrong):
    """RLOO's mean of |A s|^2 over that of A = R."""
    return ...


# %% [check]
check("19.2", noise_ratio)

# %% [hint]
# A right completion has $(1-b)^2\,a_+$ in the mean, a wrong one $b^2\,a_-$. And $\mathbb E[b^2]$ is $p^2$ plus the variance of $b$.


# %% [solution]
def noise_ratio(p, G, a_right, a_wrong):
    q, variance = 1 - p, p * (1 - p) / (G - 1)
    rloo = p * (q**2 + variance) * a_right + q * (p**2 + variance) * a_wrong
    return rloo / (p * a_right)


# %% [text]
# $$q\,\Big[\,q + \frac p{G-1} + \Big(p + \frac q{G-1}\Big)\,\frac{a_-}{a_+}\Big]$$
#
# In groups of two this is $q\,(1 + a_-/a_+)$, so **$A = R$ is less noisy exactly if $a_-/a_+ > p/q$**. In the smallest case: 81, squared, against 9. In larger
# groups the limit is higher ([lesson 13](13_quiet_estimators.ipynb)). A test at our prompts' median $p$ and $a_-/a_+$:
#
# {=noise_table()}
#
# *Measured, median over prompts: the squared signal-to-noise ratio of a group's update with $A = R$, over that with $R - $ mean. Above 1: $A = R$ is
# less noisy.*
#
# The formula names the noisier rule in all four rows. The second row misses most: on {=loud.sum()} of its {=loud.size} prompts the signal exceeds the noise.
#
# **Noise alone does not predict the order.** On expressions $A = R$ on mixed groups only has {=100 * min(noisier):.0f} to {=max(noisier):.0%} of the signal-to-noise ratio of $R - $ mean, before
# and during training. Over training it is {=behind:.1f} points behind, yet it ends higher (first table, last row). We do not know why.
#
# ## To remember
#
# - Right completions are enough for the gradient of one prompt. With $A = R$ all-right groups bring the share $p^{G-1}$ of it; a group's mean silences
#   them, and mixed groups bring all.
# - Near $p = 1$ $A = R$ is the less noisy choice only if wrong completions have much longer scores than right ones.
# - In our runs, each rule at its own rate, $A = R$ ended highest, and all-right groups gave a part of its lead.
# - In practice: log the share of all-right groups. Where it is large, let these groups train, at a rate of their rule's own; on our tasks this was worth
#   one to three points.
#
# Here the course ends. You now know what each script's advantage does to one prompt, and that a table of rules is also a table of learning rates.

# %% [text]
# ## For a second reading (12 minutes)
#
# **One knob from RLOO to $A = R$.** Add κ imaginary wrong completions to the others:
#
# $$b_i = \frac{\sum_{j\ne i} R_j}{G - 1 + \kappa}$$
#
# The own reward is not in $b_i$, so the mean update is $\nabla p$ for every κ. κ = 0 is RLOO; κ = ∞ is $A = R$. An all-right group has
# $A = \kappa/(G - 1 + \kappa)$, at κ = 7 and $G = 8$ a half. **With four updates a batch**, pooled over both tasks, $A = R$ ends {=plain(gained("κ = ∞"))} points above
# RLOO and κ = 7 {=plain(gained("κ = 7"))}; for $A = R$ neither task alone survives Holm's correction. κ = 3, of which we had
# predicted half a point or more, is undecided: {=plain(gained("κ = 3", "both", 2))}. ([All arms; two of six predictions held](experiments/README.md#which-baseline).)
#
# **One line** gives RLOO's all-right groups this half, and leaves the rest alone:
#
# ```python
# A[R.mean(axis=1) == 1] = 0.5
# ```
#
# With it RLOO ends {=plain(gained(half))} points higher (at the rate of $A = R$). So training all-right groups gives a part of the gain. The price: easy prompts get
# up to 1.5 times their weight.
#
# **After 240 batches** (five seeds, four updates a batch) $A = R$ ends {=late_gap("arithmetic", "end")} points above RLOO on arithmetic and {=late_gap("expressions", "end")} on expressions.
#
# **Whole batches.** On arithmetic after 60 steps the cosine of a batch's update with the mean $\nabla p$ over prompts is {=cosine("R", "arithmetic", 60):.2f} with $A = R$, {=cosine(MEAN, "arithmetic", 60):.2f} with $R - $ mean.
# On expressions it is {=cosine("R", "expressions", 60):.2f} and {=cosine(MEAN, "expressions", 60):.2f}, but {=of_13[0]:.2f} and {=of_13[1]:.2f} in the other batches of [lesson 13](13_quiet_estimators.ipynb).
#
# **OPO** ([2505.23585](https://arxiv.org/abs/2505.23585)) weighs rewards by length, which is to stand for $\|s\|^2$. Here length explains {=100 * length_fits.min():.0f} to {=100 * length_fits.max():.0f} % of its variance, and on
# the base model of arithmetic its batches are noisier than those of $R - $ mean. A weighted mean of rewards silences all-right groups, whatever the weights: it is
# 1 there.
#
# Sources: the best baseline: Greensmith, Bartlett and Baxter, JMLR 2004. The measurements are ours (`lessons/experiments/baselines.py`, `shrinkage.py`).
