# %% [markdown] 38 minutes, without the second reading
# # 9 · What is being climbed
#
# GRPO (group relative policy optimization) divides a group's advantages by σ, the standard deviation of its rewards. Dr. GRPO ("GRPO done
# right") does not. That one line decides how much a prompt counts.
#
# > **With no KL (Kullback–Leibler) term and no ÷ length, Dr. GRPO climbs the mean solve rate. GRPO then climbs a function that is steeper at both ends:
# > very hard and very easy prompts count more than medium ones, by less than half in groups of 8, not at all in groups of 2 or 3.**
# >
# > Our runs train coins, no language model. Where they compete, GRPO's weight saves a few hard ones that Dr. GRPO gives up; in groups of 8, without the
# > help of chance, from one start of ten.
#
# The expected update of a prompt is a number times $\nabla p$, the gradient of its success probability. That number is the prompt's **weight**.
#
# A large weight is not a long step. Take a coin: a prompt with a logit of its own. Its $\nabla p$ is $p(1-p)$, small if the coin is
# hard. In groups of 8, a hard coin ($p = .05$) over a medium one ($p = .5$):
#
# | | weight | gradient | step of a coin |
# |---|---|---|---|
# | Dr. GRPO | 1 | .19 | .19 |
# | GRPO | 1.33 | .19 | .25 |
#
# So GRPO, too, moves hard prompts little. (Rewards of 0 and 1, first update after sampling, scores summed over tokens,
# no KL term.) The weight at every $p$:

# %% [fold]
import math
from itertools import product

import numpy as np
import torch

from algorithms import dr_grpo, grpo
from lessons import identity
from lessons.experiments import controlled_run
from lessons.experiments.controlled_run import at_progress, run, run_arms, start
from lessons.workshop.companions.lesson_09 import NAMES, grpo_weights, objective
from lessons.workshop.notebook import check, knob, show, trains

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
edge, at_05 = {}, {}
for size in (2, 3, 8, 64):
    w = identity.weight("GRPO", np.array([0.0, 0.05, 0.5]), size)
    edge[size], at_05[size] = w[:2] / w[2]
assert np.allclose([edge[2], edge[3]], 1) and 1.4 < edge[8] < 1.5  # the claim
pq_05 = 0.05 * 0.95 / 0.25
assert [round(x, 2) for x in (at_05[8], pq_05, at_05[8] * pq_05)] == [1.33, 0.19, 0.25]
w_8 = identity.weight("GRPO", np.array([0.0, 0.5]), 8)
show(grpo_weights())

# %% [text]
# *GRPO's weight, divided by that at $p = ½$. In groups of 8 the hardest and the easiest weigh {=edge[8]:.2f} times as much as a medium one; in groups
# of 64, {=edge[64]:.0f} times. Dashed: the limit, which has no bound.*
#
# ## What is climbed
#
# A weight that varies with $p$ changes the goal of training. Let $J$ be the function of $p$ with the slope $w$:
#
# $$\text{expected update} \;=\; w(p)\,\nabla p \;=\; \nabla J(p), \qquad J' = w$$
#
# Training climbs the mean of $J$ over the prompts. Dr. GRPO's weight is a constant, so it climbs $p$ itself. GRPO's varies.
#
# | symbol | meaning |
# |---|---|
# | $G$ | completions of one prompt, a group |
# | $p,\ q$ | the probability that a completion is right; $q = 1 - p$ |
# | $j,\ b$ | of the other $G-1$ completions of the group, how many are right, and how many wrong |
# | $A(+\mid j),\ A(-\mid j)$ | a completion's advantage if it is right itself, and if it is wrong |
# | $w(p),\ J(p)$ | the weight of a prompt; the objective, $J' = w$ and $J(0) = 0$ |
#
# ## The claim in numbers
#
# [Lesson 3](03_group_baseline.ipynb) proves, for every advantage that depends on the group's rewards alone:
#
# $$w(p) = \mathbb E_{j\sim \mathrm{Bin}(G-1,\,p)}\big[A(+\mid j) - A(-\mid j)\big], \qquad
# \text{GRPO:}\quad A(+\mid j) = \sqrt{\tfrac{b}{j+1}}, \quad A(-\mid j) = -\sqrt{\tfrac{j}{b+1}}$$
#
# For G = 2 and 3 the difference is the same at every $j$: 1 and $\sqrt2$. For G = 8 it depends on $j$:
#
# | $j$ of the other seven are right | 0 or 7 | 1 or 6 | 2 or 5 | 3 or 4 |
# |---|---|---|---|---|
# | $A(+\mid j) - A(-\mid j)$ | $\sqrt7 = 2.646$ | 2.110 | 1.868 | $1 + \sqrt{.6} = 1.775$ |
# | probability at $p = ½$, both together | $\frac1{64}$ | $\frac7{64}$ | $\frac{21}{64}$ | $\frac{35}{64}$ |
#
# The mean is $w(½) = {=w_8[1]:.3f}$. As $p \to 0$ or 1, only $j = 0$ or 7 is left, and $w \to \sqrt7$. So the extreme prompts weigh
# 2.646 / {=w_8[1]:.3f} = {=edge[8]:.2f} times as much. No difference exceeds $\sqrt7$, so no prompt weighs more.
#
# **Dr. GRPO.** For every $j$ the difference is $\big(1 - \frac{j+1}G\big) + \frac jG = 1 - \frac1G$: one weight for all prompts.

# %% [markdown]
# **1. Find the bug.** The formula is easy to get wrong. This function should return GRPO's weight, but at G = 3 it gives a prompt with $p = .02$ a thirteenth of the weight of
# one with $p = .5$. Repair it.


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
    # The formula fixes j, the right others. The bug fixes k: there the right completion has
    # k - 1 right others, the wrong one k.

# %% [markdown]
# The slider shows what is climbed, $J$. At G = 64 it is clearly steeper at both ends; at G = 8 it is nearly a line.

# %%
knob(objective, rule=list(NAMES), G=(2, 64, 1, 64))

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
solved = {arm: 100 * np.mean([one.p[np.argsort(start(seed), kind="stable")[:1500]] > 0.5
                              for seed, one in enumerate(runs)]) for arm, runs in rivals.items()}
grid = np.linspace(-40, 40, 8001)  # of logits

def without_chance(rule, size, p0):
    """The % of the hardest quarter above 1/2 if every prompt takes its expected update."""
    theta, hardest = np.log(p0 / (1 - p0)), np.argsort(p0, kind="stable")[: len(p0) // 4]
    p = 1 / (1 + np.exp(-grid))
    pushes = controlled_run.matched_learning_rate(rule, p0, size, 0.5) * p * (1 - p)
    pushes *= identity.weight(rule, p, size)
    for _ in range(controlled_run.STEPS):
        push = np.interp(theta, grid, pushes)
        theta += push - push.mean()
    return 100 * (theta[hardest] > 0).mean()

def cell(shares):
    return f"{np.mean(shares):.1f} % ({min(shares):.1f} to {max(shares):.1f})"

sure = {arm: [without_chance(*arm, start(seed)) for seed in seeds] for arm in rivals if arm[1] > 3}
assert [round(np.mean(sure[arm]), 1) for arm in sorted(sure)] == [0, 0, 0.2, 2.5]
assert np.count_nonzero(sure["GRPO", 8]) == 1  # the claim
assert [round(solved[arm], 1) for arm in sorted(sure)] == [1.3, 0.1, 2.7, 4.6]  # the table
assert round(identity.weight("GRPO", p0, 8) @ (p0 - p0**2) / 12_000, 2) == 0.13  # rate .5
assert round(identity.sigma(1, 8) / 2, 2) == 0.17
assert [round(ends[name], 3) for name in ("GRPO", MATCHED)] == [0.993, 0.991]
assert 0.5 < lead(0.7) < 1.5 and abs(lead(0.8)) < 0.5 and abs(lead(0.9)) < 0.2
assert max(map(lead, np.linspace(0.52, 0.98, 47))) < lead(0.7) + 0.05  # its largest lead
assert min(one.smallest_update for runs in arms.values() for one in runs) == 0
assert np.abs(gap[3]).max() < 1e-6 and min(gap[8].min(), gap[64].min()) > 0.9
# The variance of a coin's update, σ: p (1 - p) 7/8 is the mean of σ²
variance = [p * (1 - p) * 7 / 8 - identity.expected_sigma(p, 8) ** 2 for p in (0.5, 0.05)]
raised = p0 / (p0 + (1 - p0) * 0.96 ** np.arange(150)[:, None])  # logits in 150 even steps
silent = np.isin(np.random.default_rng(0).binomial(8, raised), (0, 8)).mean(axis=1)
untrained = np.corrcoef(silent, identity.silent_rate(raised, 8).mean(axis=1))[0, 1] ** 2

# %% [text]
# ## Does the weight change the training?
#
# If every prompt had parameters of its own, all these $J$ would be highest with all solved, and the
# weight would decide only how soon. But a network's prompts share parameters: a step for
# one moves the others, up or down.
#
# So we let 6,000 coins compete (ten seeds), the harshest way: each logit moves by its own push minus the mean of all pushes, so one coin's gain is the others' loss.
# They start at solve rates of Big-Math, from .02 to .98, and take 150 updates, GRPO's at rate .5, Dr. GRPO's at one that makes its first step
# as long. On the right, each takes its *expected* update, without chance:
#
# | of the quarter hardest at the start, above ½ in the end | GRPO | Dr. GRPO | GRPO, no chance | Dr. GRPO, no chance |
# |---|---|---|---|---|
# | G = 64 | {=solved["GRPO", 64]:.1f} % | {=solved["Dr. GRPO", 64]:.1f} % | {=cell(sure["GRPO", 64])} | {=np.mean(sure["Dr. GRPO", 64]):.1f} % |
# | G = 8 | {=solved["GRPO", 8]:.1f} % | {=solved["Dr. GRPO", 8]:.1f} % | {=cell(sure["GRPO", 8])} | {=np.mean(sure["Dr. GRPO", 8]):.1f} % |
#
# *Means of ten starts, in brackets from the lowest to the highest. GRPO's hardest quarter ends at a higher solve rate from every start, by
# {=min(gap[8].min(), gap[64].min()):.2f} points or more (G = 3: one rule, no difference).*
#
# Most hard coins are given up under both rules. At G = 64 GRPO's weight itself saves some, from {=np.count_nonzero(sure["GRPO", 64])} of ten starts; **at G = 8 chance alone saves about half of what weight and chance save together**. Under GRPO each coin loses .13 at first, more than a hard one moves by itself on average. But a lucky group of 8, one right, moves it
# by .17. A streak lifts it, and the higher it stands, the more it
# pushes itself. (Under Dr. GRPO a lucky group's step is shorter.) Now without chance:
#
# **2. Who is given up?** Twelve coins compete: a hard one ($p = .06$), three at .5, and eight at .98: a start chosen near the border where the
# weight decides. For each you get $p$ and the weight $w$, GRPO's in groups of 64. Write how far each logit moves on average, up to the learning rate. Below
# the check, your function trains the coins.


# %% [exercise]
def moves(p, w):
    """How far each logit moves. p, w: arrays (numpy) with a number for each coin."""
    return ...


# %% [check]
check("9.2", moves)
trains("9.2", moves)

# %% [hint]
# A coin's own push is its expected update, the weight times its gradient. What do all coins pay?


# %% [solution]
def moves(p, w):
    push = w * p * (1 - p)
    return push - push.mean()


# %% [text]
# <details><summary>After the exercise</summary>
#
# The easy coins push less, so the mean is low. Under GRPO the hard coin's first push is just above it (.23 against .22), and the coin is kept.
# Without $w$ it is below (.06 against .08); then the less the coin is solved, the less it pushes. In groups of 8 this coin is lost under GRPO, too.
#
# </details>

# %% [text]
# ## To remember
#
# - The expected update of a prompt is its weight $w(p)$ times $\nabla p$, and training climbs the integral of $w$.
# - Dr. GRPO climbs $p$. So does GRPO at G = 2 and 3, where its weight is constant; at G = 8 the extremes weigh {=edge[8]:.2f} times a medium prompt.
# - Where coins compete, the weight saves a few hard ones; at G = 8, without chance, from one start of ten.
#
# ## For a second reading (20 minutes): a published gap, the bound at every G, the limit, other rules
#
# **A published gap.** [Lesson 6](06_identity.ipynb)'s paper ([2607.00152](https://arxiv.org/abs/2607.00152)) trains 6,000 coins that share nothing, in groups
# of 8, at one learning rate. The hardest quarter ends at .99 under GRPO, at .88 under Dr. GRPO; GRPO's preference "changes the learning trajectory", it
# concludes. But GRPO's update has the factor σ ≤ ½, Dr. GRPO's σ²: GRPO steps at least twice as far on *every* prompt. We repeat the run
# ({=ends["GRPO"]:.3f}, {=ends["Dr. GRPO"]:.3f}; four seeds) and match the mean *first* steps by Dr. GRPO's learning rate: then it ends at {=ends[MATCHED]:.3f}.
# That is near the ceiling. Earlier GRPO's weight shows: when the mean solve rate is .7, its hardest quarter is {=lead(0.7):.1f} points ahead, its largest lead;
# at .8 and .9 it is less than half a point. (No coin can get worse in this run: σ is never below 0.)
#
# The paper's other check is of its random numbers: silent groups follow their formula with $R^2 = .999$. So they do, with {=untrained:.4f}, where
# nothing trains and we raise the logits by hand.
#
# **No prompt weighs more than $\sqrt{G-1}$,** since no difference does. With $b = G-1-j$, its square is
#
# $$\Big(\sqrt{\tfrac{b}{j+1}} + \sqrt{\tfrac{j}{b+1}}\Big)^2 = \frac{b}{j+1} + \frac{j}{b+1} + \frac{2\sqrt{jb}}{\sqrt{(j+1)(b+1)}} \;\le\; j + b$$
#
# The first two terms are less than $j + b$ by $jb\left(\frac1{j+1} + \frac1{b+1}\right)$, which is at least $\frac{2jb}{\sqrt{(j+1)(b+1)}}$ (a sum is at least
# twice the root of the product). The third term is at most as much, since $\sqrt{jb} \le jb$ for whole numbers. ∎
#
# **The limit.** As $G \to \infty$, $j/(G-1)$ tends to $p$, and the difference to $\frac{q}{\sqrt{pq}} + \frac{p}{\sqrt{pq}} = \frac{1}{\sqrt{pq}}$. With
# $p = \sin^2 u$ its integral is $2u = 2\arcsin\sqrt p$ (also Thrampoulidis et al., [2510.23049](https://arxiv.org/abs/2510.23049)). On Big-Math this
# limit raises the share of the update that goes to prompts below .1 or above .9 from Dr. GRPO's 13.9 % to 24.7 % (the paper's Table 3); groups of
# 8, from these starts, from 14.2 to 16.9 % (the paper's run: 14.3 to 17.0 %).
#
# By this weight, says the paper, "estimator variance is equalized". That of $2\arcsin\sqrt{k/G}$ is, in the limit. That of the update is not: in
# groups of 8 a coin's update has the variance {=variance[0]:.4f} at $p = ½$ and {=variance[1]:.4f} at .05.
#
# **Rules that favour hard prompts only** (in the slider). MaxRL (maximum likelihood reinforcement learning) has the advantage $(R - \mu)/\mu$, with the
# group's mean reward $\mu$. As $p \to 0$ a right completion is the only one, and its advantage is $G - 1$; a wrong one is in a group without a right one, and has 0. As $p \to 1$ a right
# one has 0, a wrong one $-1$. So the hardest prompts weigh $G - 1$ times as much as the easiest. Its weight, $1 + q + \dots + q^{G-2}$, is the slope of
# the series of $\log p$ up to order $G - 1$ (the paper states $G$). The mean over the right completions alone
# (rejection sampling) has the weight $(1 - q^G)/p = 1 + q + \dots + q^{G-1}$: it climbs $\sum_{j \le G} (1 - q^j)/j$.

# %% [markdown]
# Sources: the formula for $w$ and the limits of GRPO and rejection sampling: Davis and Recht,
# [2510.13651](https://arxiv.org/abs/2510.13651); MaxRL: [2602.02710](https://arxiv.org/abs/2602.02710); the name "question-level difficulty
# bias": Dr. GRPO, [2503.20783](https://arxiv.org/abs/2503.20783), section 3.1; the run: [2607.00152](https://arxiv.org/abs/2607.00152), section 8 and its script.
# The bound, the matched comparison and the competing prompts are ours.
