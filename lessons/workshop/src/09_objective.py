# %% [markdown] 40 minutes, without the second reading
# # 9 · What is being climbed
#
# GRPO (group relative policy optimization) divides a group's advantages by the standard deviation of its rewards. Dr. GRPO ("GRPO done
# right") does not. That one line decides how much a prompt counts.
#
# > **Dr. GRPO weighs all prompts alike; GRPO weighs very hard and very easy prompts more than medium ones, but within a bound: less than 1.5
# > times as much in groups of 8, and in groups of 2 or 3 all weigh the same.**
# >
# > So Dr. GRPO climbs the mean of the prompts' success probabilities, and so does GRPO in groups of 2 or 3. In larger groups GRPO climbs the
# > mean of a curve of them that is steeper at both ends.
#
# The **weight** of a prompt is the factor before the gradient of its success probability $p$ in the expected update (the first after sampling,
# with scores summed over tokens). A large weight is not a long step: the step is the weight times that gradient. For a coin with a logit of its
# own the gradient is $p(1-p)$. A hard prompt in groups of 8, each number over that of a medium prompt:
#
# | $p = .05$, over $p = .5$ | weight | gradient | step of a coin |
# |---|---|---|---|
# | Dr. GRPO | 1 | .19 | .19 |
# | GRPO | 1.33 | .19 | .25 |
#
# So GRPO moves hard prompts little, too, though more than Dr. GRPO. The picture shows GRPO's weight, divided by that at $p = ½$.

# %% [fold]
import math
from itertools import product

import numpy as np
import torch

from algorithms import dr_grpo, grpo
from lessons import identity
from lessons.experiments import controlled_run
from lessons.experiments.controlled_run import at_progress, run, run_arms, start
from lessons.workshop.kit import check, knob, show
from lessons.workshop.parts.lesson_09 import NAMES, grpo_weights, weight_and_objective

for size, factor in ((2, 2), (3, 3 / math.sqrt(2))):
    rewards = torch.tensor(list(product((0.0, 1.0), repeat=size)), dtype=torch.float64)
    divided, plain = (script.compute_advantages(rewards=rewards) for script in (grpo, dr_grpo))
    assert torch.allclose(divided, factor * plain, atol=1e-12)  # in every group
for size in range(2, 65):
    ks = torch.arange(size + 1).view(-1, 1)  # in row k the first k are right
    A = grpo.compute_advantages(rewards=(torch.arange(size) < ks).double())
    differences = A[1:, 0] - A[:-1, -1]  # j others are right: right less wrong
    assert differences.max() < math.sqrt(size - 1) + 1e-12
    assert np.allclose(identity.weight("GRPO", [0.0, 1.0], size), math.sqrt(size - 1))
ps = np.linspace(0, 1, 41)
by_hand = math.sqrt(3) * ps + (3 - 2 * math.sqrt(3)) * (ps**2 / 2 - ps**3 / 3)
assert np.allclose(identity.objective("GRPO", ps, 4), by_hand)

edge, at_05, J_1 = {}, {}, {}
for size in (2, 3, 8, 64):
    w = identity.weight("GRPO", np.array([0.0, 0.05, 0.5]), size)
    edge[size], at_05[size] = w[:2] / w[2]
    J_1[size] = float(identity.objective("GRPO", 1.0, size))
    of_lesson_7 = identity.expected_sigma(ps[1:-1], size) / (ps * (1 - ps))[1:-1]
    assert np.allclose(identity.weight("GRPO", ps[1:-1], size), of_lesson_7)
assert np.allclose([edge[2], edge[3]], 1) and 1.4 < edge[8] < 1.5  # the claim
pq_05 = 0.05 * 0.95 / 0.25
assert [round(x, 2) for x in (at_05[8], pq_05, at_05[8] * pq_05)] == [1.33, 0.19, 0.25]
w_8 = identity.weight("GRPO", np.array([0.0, 0.5]), 8)
show(grpo_weights())

# %% [text]
# *In groups of 2 and 3 all prompts weigh the same, as under Dr. GRPO. In groups of 8 the hardest and the easiest weigh {=edge[8]:.2f} times as
# much as a medium one; in groups of 64, {=edge[64]:.2f} times. Only in the limit (dashed) is there no bound.*
#
# The paper behind lesson 6's identity ([2607.00152](https://arxiv.org/abs/2607.00152), "the paper" from here) takes that limit: a prompt with
# $p = .05$ has "more than twice the weight of a coin-flip prompt", against 1.33 times in groups of 8. (It says itself that the effect is milder
# at finite $G$.)
#
# In a formula: for one prompt, the expected update is the gradient of a function $J$ of its success probability:
#
# $$\mathbb E[g] \;=\; w(p)\,\nabla p \;=\; \nabla J(p), \qquad J' = w$$
#
# Training climbs the mean of $J$ over the prompts. Dr. GRPO climbs $p$ itself; GRPO climbs $2\arcsin\sqrt p$, but only in the limit $G \to \infty$
# (second reading).
#
# | symbol | meaning |
# |---|---|
# | $G,\ k$ | completions of one prompt, a group; how many of them are right |
# | $p,\ q$ | the probability that a completion is right; $q = 1 - p$ |
# | $\mu,\ \sigma$ | mean and standard deviation of the group's rewards: $k/G$ and $\sqrt{k(G-k)}/G$ |
# | $A(+\mid j),\ A(-\mid j)$ | advantage of a right and of a wrong completion when $j$ of the other $G-1$ are right |
# | $s,\ g$ | a completion's score $\nabla_\theta\log\pi_\theta(y)$, summed over tokens; the group's update $\frac1G\sum_i A_i s_i$ |
# | $w(p),\ J(p)$ | the weight of a prompt; the objective, $J' = w$ and $J(0) = 0$ |

# %% [text]
# ## One formula for every advantage
#
# Pick one completion of a group, and let $j$ be the number of right completions among the other $G-1$. [Lesson 3](03_group_baseline.ipynb)
# (*And GRPO?*) proved, for every advantage that depends on the group's rewards alone:
#
# $$\mathbb E[g] = w(p)\,\nabla p, \qquad w(p) = \mathbb E_{j\sim \mathrm{Bin}(G-1,\,p)}\big[A(+\mid j) - A(-\mid j)\big]$$
#
# (Davis and Recht, [2510.13651](https://arxiv.org/abs/2510.13651). For GRPO this is [lesson 7](07_group_size.ipynb)'s $\mathbb E[\sigma]/(pq)$. In this
# form nothing is 0/0 at $p = 0$, and the bound can be read off.)
#
# ## The claim in numbers
#
# Let $j$ of the others be right and $b = G-1-j$ wrong. A right completion makes $k = j + 1$, a wrong one leaves $k = j$. With the σ above,
#
# $$A(+\mid j) = \sqrt{\tfrac{b}{j+1}}, \qquad A(-\mid j) = -\sqrt{\tfrac{j}{b+1}}$$
#
# **G = 3.** The difference is $\sqrt2$ for every $j$ (lesson 3's table), so every prompt has the weight $\sqrt2$. The reason: groups with one or two
# right have the same σ. For G = 2 the difference is always 1.
#
# **G = 8.** Here it depends on $j$:
#
# | $j$ of the other seven are right | 0 or 7 | 1 or 6 | 2 or 5 | 3 or 4 |
# |---|---|---|---|---|
# | $A(+\mid j) - A(-\mid j)$ | $\sqrt7 = 2.646$ | 2.110 | 1.868 | $1 + \sqrt{.6} = 1.775$ |
# | probability at $p = ½$, both together | $\frac1{64}$ | $\frac7{64}$ | $\frac{21}{64}$ | $\frac{35}{64}$ |
#
# The mean is the weight of a prompt with $p = ½$: $w(½) = {=w_8[1]:.3f}$. As $p \to 0$ all the others are wrong, so only $j = 0$ is left, and $w \to \sqrt7 = {=w_8[0]:.3f}$. As $p \to 1$
# only $j = 7$ is left, with the same value. So the extreme prompts weigh {=w_8[0]:.3f} / {=w_8[1]:.3f} = {=edge[8]:.2f} times as much: **the claim**.
#
# **Dr. GRPO.** For every $j$ the difference is $\big(1 - \frac{j+1}G\big) + \frac jG = 1 - \frac1G$: one weight for all prompts.
#
# **No prompt weighs more than $\sqrt{G-1}$.** In the table no difference exceeds $\sqrt7$, so neither does their mean, the weight. In general no
# difference exceeds $\sqrt{G-1}$ (second reading). That the weight is lowest at $p = ½$ we read off the picture.
#

# %% [fold]
seeds, MATCHED = range(10), "Dr. GRPO, matched first step"
arms = run_arms(seeds[:4], ("GRPO", "Dr. GRPO", MATCHED))
ends = {name: np.mean([one.hard[-1] for one in runs]) for name, runs in arms.items()}

def lead(level):
    """GRPO's lead on the hardest quarter, in points, when the mean solve rate is `level`."""
    pairs = zip(arms["GRPO"], arms[MATCHED])
    return 100 * np.mean([at_progress(a, level) - at_progress(b, level) for a, b in pairs])

rivals, gap = {}, {}
for size in (3, 8, 64):
    for rule in ("GRPO", "Dr. GRPO"):
        for seed in seeds if size > 3 else seeds[:1]:
            p0 = start(seed)
            rate = controlled_run.matched_learning_rate(rule, p0, size, 0.5)
            rival = run(rule, p0, seed, G=size, compete=1.0, learning_rate=rate)
            rivals.setdefault((rule, size), []).append(rival)
    pairs = zip(rivals["GRPO", size], rivals["Dr. GRPO", size])
    gap[size] = 100 * np.array([a.hard[-1] - b.hard[-1] for a, b in pairs])
at_end = {arm: 100 * np.mean([one.hard[-1] for one in runs]) for arm, runs in rivals.items()}
back = 100 * np.mean([one.hard for one in rivals["GRPO", 64]], axis=0)
quarter = [one.p[np.argsort(start(seed), kind="stable")[: len(one.p) // 4]]
           for seed, one in enumerate(rivals["GRPO", 64])]
solved, sunk = (100 * np.mean(chosen) for chosen in (np.array(quarter) > 0.5,
                                                     np.array(quarter) < 0.01))
before = 100 * np.mean([one.hard[0] for one in rivals["GRPO", 8]])
assert max(at_end[arm] for arm in at_end if arm != ("GRPO", 64)) < before
assert back.min() < 1 and back[-1] > 0.97 * before and back[-1] > back[-11]  # it comes back
assert [round(ends[name], 3) for name in ("GRPO", MATCHED)] == [0.993, 0.991]
# 3 standard deviations of one run:
assert abs(ends["Dr. GRPO"] - controlled_run.PUBLISHED["Dr. GRPO"]) < 0.018
assert 0.5 < lead(0.7) < 1.5 and abs(lead(0.8)) < 0.5 and abs(lead(0.9)) < 0.2
assert max(map(lead, np.linspace(0.52, 0.98, 47))) < lead(0.7) + 0.05  # its largest lead
assert min(one.smallest_update for runs in arms.values() for one in runs) == 0
assert np.abs(gap[3]).max() < 1e-6 and min(gap[8].min(), gap[64].min()) > 0.9
assert len(seeds) == 10 and gap[64].min() > gap[8].mean()

# %% [text]
# ## Does the weight change the training?
#
# The paper trains 6,000 prompts, each a coin with its own logit, for 150 steps at G = 8, with every rule at one learning rate. The quarter
# that is hardest at the start ends at a solve rate of .99 under GRPO and .88 under Dr. GRPO; the paper concludes that GRPO's preference "changes
# the learning trajectory" of hard prompts. (It calls the run a check of its formulas on scalar prompts.) But $\sigma \le \frac12$ implies
# $\sigma \ge 2\sigma^2$: GRPO's steps are at least twice as long on *every* prompt.
#
# We repeat the run from the same solve rates ([lesson 8](08_silent_groups.ipynb)). Then we give Dr. GRPO the learning rate that makes its mean
# *first* step as long as GRPO's. The hardest quarter's solve rate at the end:
#
# | | GRPO | Dr. GRPO |
# |---|---|---|
# | one learning rate | {=ends["GRPO"]:.3f} | {=ends["Dr. GRPO"]:.3f} |
# | first steps equally long | {=ends["GRPO"]:.3f} | {=ends[MATCHED]:.3f} |
#
# (Means of four seeds. The paper's .88 is one run.) **With equal first steps the gap is nearly gone.** On the way, at equal progress, GRPO leads by at
# most {=lead(.7):.1f} points: all prompts rise towards 1, and the weights decide only the order. Prompts that compete are another matter (second
# reading).
#
# ## The formula in code
#
# **1. Find the bug.** This function should return GRPO's weight, but at G = 3 it gives a prompt with $p = .02$ a thirteenth of the weight of
# one with $p = .5$. Repair it. Then use it: at which G does a prompt with $p = 0$ first weigh at least twice as much as one with $p = .5$?


# %% [exercise]
def grpo_weight(p, G):
    total = 0.0
    for k in range(1, G):  # a group with k right, neither none nor all
        chance = math.comb(G, k) * p**k * (1 - p) ** (G - k)
        right, wrong = math.sqrt((G - k) / k), -math.sqrt(k / (G - k))
        total += chance * (right - wrong)
    return total


# %% [check]
check("9.1", grpo_weight)

# %% [hint]
# Which completions does $j$ count in the formula, and which does $k$ count in the code? How many of the *others* are right for a right
# completion of such a group, and how many for a wrong one?


# %% [solution]
def grpo_weight(p, G):
    total = 0.0
    for j in range(G):
        chance = math.comb(G - 1, j) * p**j * (1 - p) ** (G - 1 - j)
        right = math.sqrt((G - j - 1) / (j + 1))  # k = j + 1; 0 if all are right
        wrong = -math.sqrt(j / (G - j))  # k = j; 0 if all are wrong
        total += chance * (right - wrong)
    return total


# next(G for G in range(2, 65) if grpo_weight(0, G) >= 2 * grpo_weight(0.5, G))

# %% [markdown]
# In the formula both completions have the same $j$ right others. In the bug both are in one group with $k$ right: the right one then has $k - 1$
# right others, the wrong one $k$. Twice the weight is reached at G = 16.
#
# ## Compare the rules
#
# Move G upwards from 2, then try two other rules: the mean over the right completions (rejection sampling), and MaxRL (maximum likelihood
# reinforcement learning) with the advantage $(R - \mu)/\mu$, 0 if none is right. Which of them favours easy prompts?

# %%
knob(weight_and_objective, rule=list(NAMES), G=(2, 64, 1, 8))

# %% [markdown]
# *Left: the weight, on a logarithmic scale. Right: the function that is climbed. GRPO favours easy prompts as much as hard ones. The two
# others favour only hard prompts.*
#
# All this holds for 0-1 rewards on the first update after sampling, without clipping and without a KL (Kullback-Leibler) term. With
# GRPO's division by length, $1/|y|$, training climbs no function of $p$ alone ([lesson 5](05_length.ipynb)).
#
# **2. Rejection sampling climbs log p, up to an order.** The mean of the scores of the right completions (0 if none is right) has the
# weight $(1 - q^G)/p$. Since $p = 1 - q$, this is a geometric sum. Which $J$ with $J(0) = 0$ has this derivative?


# %% [exercise]
def climbed(p, G):
    """J(p): a sum over powers of q = 1 - p."""
    return ...


# %% [check]
check("9.2", climbed)

# %% [hint]
# $\frac{1-q^G}{1-q} = 1 + q + \dots + q^{G-1}$. Integrate $q^{j-1}$ over $p$ from 0. For $G \to \infty$ the sum tends to $\log p$, up to a
# constant that grows with G.


# %% [solution]
def climbed(p, G):
    return sum((1 - (1 - p) ** j) / j for j in range(1, G + 1))


# %% [text]
# ## To remember
#
# - The weight of a prompt under any advantage is $\mathbb E[A(+\mid j) - A(-\mid j)]$, and training climbs its integral.
# - Dr. GRPO climbs $p$. GRPO's weight is constant at G = 2 and 3, and at most $\sqrt{G-1}$ at any G.
# - The published comparison at one learning rate measured mostly the length of the steps.
#
# ## For a second reading (15 minutes): the bound, the limit, MaxRL, prompts that compete
#
# **No difference exceeds $\sqrt{G-1}$.** With $j$ of the others right and $b = G-1-j$ wrong, its square is
#
# $$\Big(\sqrt{\tfrac{b}{j+1}} + \sqrt{\tfrac{j}{b+1}}\Big)^2 \;\le\; j + b$$
#
# At $j = 3$, $b = 4$ the squares are 1 and .6, and twice the product of the roots is $2\sqrt{.6} \approx 1.55$: together 3.15, at most 7. In general:
#
# - The first square is $\frac{b}{j+1} = b - \frac{jb}{j+1}$, the second $\frac{j}{b+1} = j - \frac{jb}{b+1}$.
# - So the squares are $j + b$ less $jb\left(\frac1{j+1} + \frac1{b+1}\right)$. A sum of two numbers is at least twice the root of their product. So at least
#   $\frac{2jb}{\sqrt{(j+1)(b+1)}}$ is taken off.
# - Twice the product of the roots puts $\frac{2\sqrt{jb}}{\sqrt{(j+1)(b+1)}}$ on top. Since $\sqrt{jb} \le jb$ for whole numbers, this is at most what was taken off.
#
# So the sum is at most $j + b = G-1$, and it reaches this at $jb = 0$: at $j = 0$ and at $j = G-1$. ∎
#
# **The limit.** As $G \to \infty$, $j/(G-1)$ tends to $p$, and the difference to $\frac{q}{\sqrt{pq}} + \frac{p}{\sqrt{pq}} = \frac{1}{\sqrt{pq}}$. With
# $p = \sin^2 u$ its integral is $2u = 2\arcsin\sqrt p$ (also Thrampoulidis et al., [2510.23049](https://arxiv.org/abs/2510.23049)). Convergence is
# slow: at G = 64, $J(1)$ still falls short of π by {=100 - 100 * J_1[64] / np.pi:.0f} %.
#
# **How much do the other rules favour hard prompts?** As $p \to 0$ only $j = 0$ is left. A right completion is then the only one: $\mu = \frac1G$, and its
# advantage under MaxRL is $(1 - \frac1G)/\frac1G = G - 1$; a wrong one has 0. As $p \to 1$ only $j = G - 1$ is left: a right one has 0, a wrong one
# $-1$. So the hardest prompts weigh $G - 1$ times as much as the easiest. (Under rejection sampling: $G$ times, by exercise 2's formula.)
#
# **When prompts compete, GRPO's preference shows, the more the larger G.** From every prompt we subtract the mean push, so that one prompt's gain
# is the others' loss; the first steps are equally long. The hardest quarter starts at {=before / 100:.4f} and falls while easier prompts rise. It ends at
#
# | | GRPO | Dr. GRPO |
# |---|---|---|
# | G = 8 | {=at_end["GRPO", 8] / 100:.4f} | {=at_end["Dr. GRPO", 8] / 100:.4f} |
# | G = 64 | {=at_end["GRPO", 64] / 100:.4f} | {=at_end["Dr. GRPO", 64] / 100:.4f} |
#
# (Ten seeds.) At G = 8 GRPO leads by {=gap[8].mean():.1f} points ({=gap[8].min():.1f} to {=gap[8].max():.1f} over the seeds), at G = 64 by {=gap[64].mean():.1f} ({=gap[64].min():.1f} to {=gap[64].max():.1f}); at G = 3 the two end alike (one seed).
#
# But the lead belongs to few prompts. At G = 64 GRPO's quarter falls to {=back.min() / 100:.4f} and comes back: as medium prompts are solved, the push that is
# subtracted shrinks. (It still rose when we stopped.) At the end {=solved:.1f} % of its prompts are solved (rate above ½) and {=sunk:.0f} % are given up (below .01).
#
# (A caricature: real prompts share parameters unevenly and may help each other.)

# %% [markdown]
# Sources: the formula for $w$ and the limits of GRPO and rejection sampling: Davis and Recht,
# [2510.13651](https://arxiv.org/abs/2510.13651); MaxRL: [2602.02710](https://arxiv.org/abs/2602.02710); the name "question-level difficulty
# bias": Dr. GRPO, [2503.20783](https://arxiv.org/abs/2503.20783), section 3.1; the run: the paper, section 8 and its script.
# The bound, the matched comparison and the competing prompts are ours.
