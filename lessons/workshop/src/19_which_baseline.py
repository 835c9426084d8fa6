# %% [markdown] 34 minutes, without the second reading
# # 19 · Which baseline?
#
# GRPO and Dr. GRPO subtract the mean reward of the group. If all its completions are right, every advantage is 0 and the group teaches nothing.
# REINFORCE's advantage is the bare reward, $A = R$. Late in a run most groups are all right. Does it pay to train on them?
#
# > **If the bare reward is the advantage, groups that are all right teach, too; subtracting the mean of the others in the group silences them,
# > and mixed groups then bring the same mean update, with other noise.**
# >
# > On two small tasks, at one update a batch and each rule's best rate, the bare reward ended 2.8 and 2.1 points higher than the group's mean. With
# > four, it led the mean of the others by 1.2 points over both tasks; after 240 batches (five seeds) by 0.9 and 0.0.
#
# **The smallest case.** Take a policy of one parameter whose answer is right with probability $p = .9$. The score, the gradient of the answer's
# log-probability, is then .1 for a right answer and −.9 for a wrong one, and $\nabla p = p\,(1-p) = .09$. The groups of two,
# where [RLOO](../algorithms/rloo.py) subtracts the mean of the others, which gives $R - $ mean times $G/(G-1)$, here 2:
#
# | the group | how often | $A = R$ | RLOO |
# |---|---|---|---|
# | both right | .81 | .1 | 0 |
# | one right | .18 | .05 | .5 |
# | both wrong | .01 | 0 | 0 |
# | **mean** | | **.09** | **.09** |
#
# (One right, $A = R$: half of .1. RLOO: half of $1 \cdot .1 + (-1)(-.9)$.) Both rules learn the same on average, from different groups: $A = R$
# nine tenths from all-right ones, RLOO everything from rare, long steps of mixed ones.

# %% [fold]
from itertools import product

import numpy as np
import torch

from algorithms import rloo
from lessons.experiments import baselines, baselines_tables, estimators, shrinkage
from lessons.experiments.harness import paired
from lessons.experiments.harness.grid import cell, change, load_runs, markdown, select, short
from lessons.workshop.companions.lesson_19 import times_as_noisy, who_brings
from lessons.workshop.notebook import check, show, trains

MEAN, LEFT_OUT = baselines_tables.MEAN, "R, all-right groups left out"
stages = load_runs(baselines.MEASURED_STAGES)


def at(task, step):
    return select(stages, {"task": task, "step": step})


def measured(task, step):
    return [prompt for stage in at(task, step) for prompt in stage["prompts_measured"] if prompt]


def of_prompts(task, step):
    """For each prompt p, a₋/a₊, and the formula's answer for groups of eight, less the mean update,
    which is no noise."""
    prompts = measured(task, step)
    p, best = np.array([(prompt["p"], prompt["best b"]) for prompt in prompts]).T
    ratio = p * (1 - best) / ((1 - p) * best)  # b* is p a₊ / (p a₊ + q a₋)
    mean, along, across = np.transpose([prompt["noise"]["R"] for prompt in prompts])
    share = mean**2 / (mean**2 + 8 * (along + across))  # of the mean in |A s|²
    return p, ratio, (times_as_noisy(p, 8, 1, ratio) - share) / (1 - share)


def times(name, other, task, step):
    """How many times the signal-to-noise ratio of another one."""
    return baselines.efficiency(at(task, step), name, other)


def noise_table():
    rows = []
    for task, (step, model) in product(baselines.TASKS, ((0, "base"), (60, "60 steps"))):
        p, ratio, answer = np.median(of_prompts(task, step), axis=1)
        found = times("R", MEAN, task, step)
        assert (answer > 1) == (found > 1)
        cells = [f"{number:.3g}" for number in (ratio, answer, found)]
        rows.append([f"{task}, {model}", short(p), *cells])
    return markdown(["medians of", "$p$", "$a_-/a_+$", "formula's, $G = 8$", "measured"], rows)


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
    rows = []
    for name, row in {MEAN: MEAN, "A = R": "R", "A = R, mixed groups only": LEFT_OUT}.items():
        rows.append([name])
        for task in baselines.TASKS:
            mean = cell(learned[MEAN][f"{task}, at the end"])
            rows[-1].append(mean if row == MEAN else gap(row, task))
            rows[-1].append(f"{1e4 * best_rate(row, task):.0f}e-4")
    arithmetic, expressions = baselines.TASKS
    return markdown(["at the end", arithmetic, "rate", expressions, "rate"], rows)


def lost(task):
    """By leaving out the all-right groups of A = R."""
    difference = baselines_tables.difference(learned, "R", LEFT_OUT, f"{task}, at the end")
    return plain(change(difference))


knob_runs = load_runs(shrinkage.RESULTS)
arms, (_, half) = shrinkage.compared(knob_runs), shrinkage.ALL_RIGHT


def gained(arm, *rounding):
    """In points above RLOO, with four updates a batch."""
    return plain(change(arms[arm]["both"]["gap"], *rounding))


def late_gap(task):
    chosen = ([task], "end", shrinkage.LONG)
    values = (shrinkage.outcomes(knob_runs, arm, *chosen) for arm in ("κ = ∞", "κ = 0"))
    return plain(change(paired.difference(*values)))


def cosine(name, task, step):
    return np.mean([np.mean(stage["cosines"][name]) for stage in at(task, step)])



# The formula by all groups of four, with the advantages of rloo.py
p, squared = 0.7, np.array([5.0, 2.0])  # |s|² of wrong and of right ones
R = np.array([*product((0, 1), repeat=4)])
chance = np.where(R, p, 1 - p).prod(axis=1)
rloo_A = rloo.compute_advantages(rewards=torch.tensor(R, dtype=torch.float64)).numpy()
of_rloo, of_R = (chance @ (A**2 * squared[R]).sum(axis=1) for A in (rloo_A, R))
assert np.isclose(of_rloo / of_R, times_as_noisy(p, 4, 2, 5))

# The words of the text
assert [late_gap(task)[:3] for task in baselines.TASKS] == ["0.9", "0.0"]
behind = -100 * learned[LEFT_OUT]["expressions, over training"]["gap"]["difference"]
assert all(learned["R"][f"{task}, at the end"]["gap"]["p_holm"] < paired.LEVEL
           for task in baselines.TASKS)
assert [gap("R", task)[:4] for task in baselines.TASKS] == ["+2.8", "+2.1"]
noisier = [times(LEFT_OUT, MEAN, "expressions", step) for step in estimators.STEPS]
assert max(noisier) < 0.4
length_fits = np.array([np.mean([prompt["fits"][0] for prompt in measured(task, step)])
                        for task in baselines.TASKS for step in estimators.STEPS])
assert cosine("OPO", "arithmetic", 0) < cosine(MEAN, "arithmetic", 0) - 0.1
assert [best_rate("R", task) / best_rate(MEAN, task) for task in baselines.TASKS] == [2, 0.5]
page = (baselines.FOLDER / "README.md").read_text("utf-8")
assert "−0.4 [−1.4, +0.6]" in page and "−1.1 [−2.1, −0.1]" in page  # Dr. GRPO, REINFORCE

late, silenced, harder = {}, {}, {}  # p; shares of the gradients, by all-right groups, by hard prompts
for task in baselines.TASKS:
    p, noises = of_prompts(task, 60)[0], [prompt["noise"] for prompt in measured(task, 60)]
    late[task] = np.median(p)  # below: the length of each prompt's mean update
    whole, of_mixed = np.transpose([[noise[name][0] for name in ("R", LEFT_OUT)] for noise in noises])
    silenced[task] = 1 - of_mixed.sum() / whole.sum()
    harder[task] = whole[p < late[task]].sum() / whole.sum()
    assert abs(np.median(1 - of_mixed / whole) - late[task]**7) < 0.01
show(who_brings(np.array([*late.values()])))

# %% [text]
# *The gradient $\nabla p$ of this policy, and which groups of eight bring it with $A = R$ (with RLOO all is blue). See the right end first.
# Dots: the median $p$ of our trained models, {=short(late["arithmetic"], 4)} and {=short(late["expressions"], 4)}.*
#
# | symbol | meaning |
# |---|---|
# | $G,\ p,\ q$ | completions of one prompt; the probability that one is right; $1-p$ |
# | $R,\ s$ | the reward of a completion, 0 or 1; its score $\nabla_\theta \log \pi_\theta(y)$ |
# | $m_+$ | the mean score of right completions |
#
# ## Right completions are enough
#
# The gradient of $p$ is the mean of $R\,s$ ([lesson 1](01_score_function.ipynb)). A wrong completion has
# $R = 0$ and drops out:
#
# $$\nabla p = \mathbb E[R\,s] = p\,m_+$$
#
# So right completions point along the gradient in the mean, in all-right groups, too.
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
# **All-right groups bring much of what is left to learn.** At the dots your formula gives {=late["arithmetic"] ** 7:.0%} and {=late["expressions"] ** 7:.0%}. Of the gradients of all prompts
# together it is {=silenced["arithmetic"]:.0%} and {=silenced["expressions"]:.0%}: the harder half of the prompts holds {=harder["arithmetic"]:.0%} and {=harder["expressions"]:.0%} of these, and is less often all right.
#
# ## Does it pay to train on them?
#
# RLOO gets the same mean from mixed groups, so only training can tell. One update a batch, no KL, each rule at its best rate of 1e-4 to
# 8e-4 (or beyond) by three other seeds, accuracy of $R - $ mean, and points above it:
#
# {=results_table()}
#
# *Means and 95 % intervals, ten seeds, 60 batches. RLOO would be the first row: AdamW hardly notices its factor 8/7.*
#
# **Without its all-right groups $A = R$ loses {=lost("arithmetic")} and {=lost("expressions")} points.** Its rate is twice that of $R - $ mean on one task and half on the other, so longer
# steps do not explain both leads.
#
# **The lead is smaller** with four updates a batch (240 batches: five seeds):
#
# | with four updates a batch | $A = R$ above RLOO, points |
# | --- | --- |
# | 60 batches, both tasks together | {=gained("κ = ∞")} |
# | 240 batches, arithmetic | {=late_gap("arithmetic")} |
# | 240 batches, expressions | {=late_gap("expressions")} |
#
# And in [the comparison of scripts](experiments/README.md), at GRPO's rate and a quarter of its updates, REINFORCE ends 1.1 [0.1, 2.1] points *below* GRPO.
#
# ## One knob between the two rules
#
# Let $b$ be the mean of the other rewards, among which we count κ imaginary wrong completions.
#
# **2. RLOO with a knob.** Write the advantages $R - b$ of groups of $G$. κ = 0 must be RLOO, κ = ∞ is $A = R$.


# %% [exercise]
def advantages(R, kappa):
    """R: (prompts, G), rewards 0 and 1. Returns (prompts, G)."""
    return ...


# %% [check]
check("19.2", advantages)
trains("19.2", advantages)  # eight prompts, kappa = 7

# %% [hint]
# The sum of the others is the sum of the group less the own reward. An imaginary wrong completion adds nothing to the sum, and one to the count.


# %% [solution]
def advantages(R, kappa):
    others = R.sum(dim=1, keepdim=True) - R
    return R - others / (R.shape[1] - 1 + kappa)


# %% [markdown]
# <details><summary>After the exercise</summary>
#
# The own reward is not in $b$, so every κ has the mean update $\nabla p$. An all-right group has $A = \kappa/(G - 1 + \kappa)$, at κ = 7 and $G = 8$ a half.
#
# Each update of the toy is rescaled to one length, as Adam does roughly, so a quieter update gets further. Late, most of RLOO's groups are all right and
# silent. The few mixed ones make a noisy step, and without any there is none. (Mean of 30 runs.)
#
# This shows that all-right groups *can* pay. It is made for it: prompts share twelve parameters but can all be solved, and a wrong answer's score is $p/q$
# times as long as a right one's.
#
# </details>

# %% [text]
# ## Is it the noise?
#
# The toy suggests it. In our runs we cannot tell. On expressions $A = R$ on mixed groups only has {=100 * min(noisier):.0f} to {=max(noisier):.0%} of the
# signal-to-noise ratio of $R - $ mean at all times, and over training it is {=behind:.1f} points behind. Its lead at the end (last row above) is one of 24
# comparisons and does not survive their correction: there may be nothing to explain.
#
# Nor are all-right groups the whole reason for the lead of $A = R$: on expressions half of it is left without them. Its rate is another one than that of $R - $ mean, which
# was not run with ten seeds at that rate.
#
# ## To remember
#
# - Right completions are enough for the gradient of one prompt. With $A = R$ all-right groups bring a share of it, near $p = 1$ most.
# - In our short runs $A = R$ ended highest, in part by all-right groups; in long ones, with four updates a batch, it led RLOO by 0.9 and 0.0 points.
# - In practice: log the share of all-right groups. Where it is large, try $A = R$ at a rate of its own.
#
# ## The end of the course
#
# 1. For one prompt, REINFORCE, RLOO, GRPO and Dr. GRPO have the same mean direction, by proof, before the policy moves and if scores are summed over
#    tokens (not ÷ length). They differ in a factor and in noise ([3](03_group_baseline.ipynb), [6](06_identity.ipynb), here).
# 2. A learning rate belongs to its rule: differences shrank or turned when rates or steps were matched ([9](09_objective.ipynb), [14](14_staleness.ipynb), here).
# 3. What the verifier rewards mattered more than the baseline: 22 and 28 points by two of three rules ([17](17_verifier_that_errs.ipynb)), against one to three.
# 4. Noise changes as the model learns: on one task of two, that of the base model named the wrong rule ([13](13_quiet_estimators.ipynb)).
# 5. All but the first was measured on small models, short completions and two or three tasks: test it on yours.

# %% [text]
# ## For a second reading (12 minutes)
#
# **When is $A = R$ quieter?** If a group's update is mostly noise, the mean of $\|A\,s\|^2$ over completions counts. Let $a_+$ and $a_-$ be the mean
# $\|s\|^2$ of right and of wrong ones. RLOO's $b$ is independent of the own
# reward and has the mean $p$ and the variance $pq/(G-1)$. So RLOO's mean is that of $A = R$ times
#
# $$q\,\Big[\,q + \frac p{G-1} + \Big(p + \frac q{G-1}\Big)\,\frac{a_-}{a_+}\Big]$$
#
# In groups of two this is $q\,(1 + a_-/a_+)$: $A = R$ is quieter exactly if $a_-/a_+ > p/q$. For our prompts:
#
# {=noise_table()}
#
# *The first three columns are medians over prompts, each its own, so the formula at the printed medians gives other numbers. It is less the mean
# update, which is no noise. Measured: squared signal-to-noise ratio of an update, $A = R$ over $R - $ mean.*
#
# **The knob in real training**, four updates a batch, both tasks: κ = 7 ends {=gained("κ = 7")} points above RLOO. κ = 3, predicted to gain half a point or more, is undecided: {=gained("κ = 3", 2)}. ([All arms; two of six predictions held](experiments/README.md#which-baseline).)
#
# With the line `A[R.mean(axis=1) == 1] = 0.5` RLOO ended {=gained(half)} points higher, one of eleven such comparisons, not corrected. On expressions its
# rate was another one, too (1e-4 instead of 2e-4).
#
# **OPO** ([2505.23585](https://arxiv.org/abs/2505.23585)) weighs rewards by length, which is to stand for $\|s\|^2$. Here length explains {=100 * length_fits.min():.0f} to {=100 * length_fits.max():.0f} % of its variance, and on
# the base model of arithmetic its batches are noisier than those of $R - $ mean.
#
# Sources: the best baseline: Greensmith, Bartlett and Baxter, JMLR 2004. The measurements are ours (`lessons/experiments/baselines.py`, `shrinkage.py`).
