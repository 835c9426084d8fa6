# %% [markdown] 40 minutes, without the second reading
# # 8 · Silent groups
#
# GRPO (group relative policy optimization) learns from disagreement. If all completions of a prompt are right, or all are wrong, their
# rewards do not differ, and the group gives no gradient ([lesson 6](06_identity.ipynb)). Such a group is **silent**. [Lesson 10](10_dapo.ipynb) took
# one prompt's silent share as given. How large is it in a whole set of prompts?
#
# > **The mean share of right completions does not tell how many groups are silent: easy and hard problems together can have many times as many
# > silent groups as problems that are all of medium difficulty, at the same mean.**
# >
# > On arithmetic, 29 % of our base model's groups of 8 are silent; were every problem solved as often as the mean, 3 %. In ten runs of GRPO
# > training first lowered this, then raised it to nearly two groups in three, almost all of them all right.
#
# The smallest case: two sets of two problems. In both sets half of all completions are right. They differ in $p$, the probability that a
# completion of a problem is right:
#
# | $p$ of the two problems | silent groups of 2 | silent groups of 8 |
# |---|---|---|
# | .5 and .5 | .5² + .5² = 50 % | 0.8 % |
# | .1 and .9 | .1² + .9² = 82 % | 43 % |
#
# Now a real model: our base model answers 128 problems, 32 times each. From the first 16 completions of each problem we predict how often
# groups of the *other* 16 are silent.

# %% [fold]
import random
from math import comb

import numpy as np
import torch

from lessons import identity
from lessons.clinic import signs
from lessons.experiments import bigmath
from lessons.experiments.estimators import collect
from lessons.workshop.companions import lesson_08
from lessons.workshop.companions.lesson_08 import tenfold
from lessons.workshop.notebook import check, show
from toy_env import arithmetic
from toy_env.model import load_policy

policy, tokenizer = load_policy("base")
draws = random.Random(8), torch.Generator().manual_seed(8)
_, R = collect(policy, tokenizer, arithmetic, 128, 32, *draws)  # 128 problems, 32 completions each
solve_rates, table = R.mean(axis=1), {}
for G in (2, 4, 8):
    predicted = identity.silent_rate_unbiased(R[:, :16].sum(axis=1).astype(int), 16, G)
    counted = np.isin(R[:, 16:].reshape(128, -1, G).mean(axis=2), (0, 1)).mean(axis=1)
    gap, at_mean = counted - predicted, identity.silent_rate(R.mean(), G)
    missed = 100 * (gap.mean() + 1.96 * gap.std() / np.sqrt(128) * np.array([0, -1, 1]))
    assert missed[1] < 0 < missed[2]  # within chance
    table[G] = [100 * share for share in (counted.mean(), predicted.mean(), at_mean)]
assert 0.3 < R.mean() < 0.4
assert [round(table[8][of]) for of in (0, 2)] == [29, 3]  # as the claim says
assert [round(100 * identity.silent_rate(p, 8), 1) for p in (0.5, 0.1)] == [0.8, 43.0]
show(lesson_08.our_model(solve_rates, table))

# %% [text]
# *Left: the silent share of groups of 8 over $p$; dashed: a chord. Grey: each problem's solve rate, placed on the curve. Upper black dot: all problems together,
# {=R.mean():.0%} solved and {=table[8][0]:.0f} % silent, counted. Lower black dot: the curve at this mean, {=table[8][2]:.1f} %. Right: "predicted" is
# computed problem by problem. (It misses "counted" by no more than chance; at $G = 8$ by {=missed[0]:.1f} ± {=missed[2] - missed[0]:.1f} points, a 95 % interval.)*
#
# ## The formula
#
# So one has to go problem by problem. The reason is a formula. For a prompt solved with probability $p$ and groups of $G$:
#
# $$S(p) \;=\; p^G + (1-p)^G$$
#
# | symbol | meaning |
# |---|---|
# | $G$ | completions in a group, all of one prompt |
# | $p,\ q$ | the probability that a completion of this problem is right; $q = 1 - p$ |
# | $S$ | the silent probability; for a set of problems, its mean |
# | $n,\ c$ | completions drawn for a problem, and how many are right |
#
# **Proof.** Completions are drawn independently: all $G$ are right with probability $p^G$, all are wrong with probability $q^G$, and never
# both. ∎ (A KL, Kullback–Leibler, penalty still pulls.)
#
# **Why the mean misleads.** Take two prompts with $p = ½$, groups of 2, and let one lose $d$ and the other gain it. The mean stays, but
#
# $$S = \tfrac12\big[S(½ - d) + S(½ + d)\big] = (½ - d)^2 + (½ + d)^2 = ½ + 2d^2$$
#
# Every move apart adds silence. So it is at every $G$ and $p$, since $S$ is **convex**: $S'' = G(G-1)\,(p^{G-2} + q^{G-2}) > 0$, so its curve bends
# upwards, and a chord runs above it (Jensen's inequality). In the left picture that from $p = .1$ to .9 stays at 43 %; the curve falls to 0.8 %.
#
# **1. Same mean, ten times the silence.** At our model's mean, $p = .36$, 2.8 % of the groups of 8 are silent. Choose $p$ for four prompts
# with this mean, so that at least ten times as many groups are silent. (Keep every $p$ between .05 and .95.)

# %% [exercise]
prompts_p = ...  # [?, ?, ?, ?]: p of each prompt


# %% [check]
check("8.1", tenfold(prompts_p))

# %% [hint]
# For which $p$ is $p^8 + q^8$ large? Take as many such prompts as possible. The last one makes the mean right.

# %% [solution]
prompts_p = [0.05, 0.05, 0.95, 0.39]  # silent: 66, 66, 66 and 2 %, on average 50 %

# %% [markdown]
# ## A real set of problems
#
# How wide is the spread in practice? Big-Math ([2502.17387](https://arxiv.org/abs/2502.17387)) states, for each of 215,608 problems, how many of 64 completions of a Llama-3.1-8B
# model are right:

# %% [fold]
right64, h = np.arange(65), bigmath.SHARE  # h[k]: the share of problems with k of 64 right
# The paper's plug-in and subsets, in %:
published = {4: (59, 59), 8: (44, 43), 16: (32, 30), 32: (23,), 64: (17,)}
plug_in, unbiased = {}, {}
for G, printed in published.items():
    plug_in[G] = 100 * h @ identity.silent_rate_plug_in(right64, 64, G)
    unbiased[G] = 100 * h @ identity.silent_rate_unbiased(right64, 64, G)
    assert (round(plug_in[G]), round(unbiased[G]))[: len(printed)] == printed
assert [round(100 * share, 1) for share in (h[64] + h[0], h[64], h[0])] == [11.2, 7.2, 4.0]

known = np.array([0.0, 0.01, 0.1, 0.3, 0.5, 0.8, 0.99])  # known p: which is biased?
counts = identity.binomial(known, 64)  # (7, 65): P(k of 64 right)
for G in published:
    truth = known**G + (1 - known) ** G
    estimates = identity.silent_rate_unbiased(right64, 64, G)
    assert np.allclose(counts @ estimates, truth, atol=1e-12)
    assert (counts @ identity.silent_rate_plug_in(right64, 64, G) >= truth).all()
mean_right = h @ right64 / 64
at_mean = {G: 100 * identity.silent_rate(mean_right, G) for G in published}
show(lesson_08.histogram(h))

# %% [text]
# *{=h[64]:.1%} of the problems are solved 64 times in 64, {=h[0]:.1%} never. On average {=mean_right:.0%} of the completions are
# right.*
#
# The formula wants a problem's $p$; all we know is that $c$ of $n = 64$ completions were right. But **any $G$ of 64 independent completions are $G$
# independent completions, that is, a group.** So the share of silent ones among *all* subsets of size $G$ is an **unbiased** estimate of $S(p)$.
#
# **2. Unbiased, from n completions.** Write this estimate. (Plain integers; `comb(n, k)` is imported.) With `h[c]`, the share of problems
# with $c$ of 64 right, `h @ [estimate(c, 64, 8) for c in range(65)]` is then Big-Math's share of silent groups of 8.


# %% [exercise]
def estimate(c, n, G):
    """Unbiased estimate of p^G + q^G from c right completions of n."""
    return ...


# %% [check]
check("8.2", estimate)

# %% [hint]
# Every subset of G of the n completions is a group. How many subsets are there, and how many contain no wrong completion?


# %% [solution]
def estimate(c, n, G):
    return (comb(c, G) + comb(n - c, G)) / comb(n, G)


# %% [text]
# The mean misses most of the silence:
#
# | silent groups in %, $G$ = | 4 | 8 | 16 | 64 |
# |---|---|---|---|---|
# | problem by problem, then the mean (unbiased) | {=unbiased[4]:.0f} | {=unbiased[8]:.0f} | {=unbiased[16]:.0f} | {=unbiased[64]:.0f} |
# | if every problem had $p$ = {=mean_right:.2f} | {=at_mean[4]:.0f} | {=at_mean[8]:.1f} | {=at_mean[16]:.1f} | {=at_mean[64]:.1f} |

# %% [markdown]
# **3. Wrong 64 times. And the next group?** None of $n$ completions of a problem was right. Beforehand, every $p$ from 0 to 1 was equally
# likely. How probable is it that the next $G$ completions are all wrong?


# %% [exercise]
def next_all_wrong(n, G):
    """P(the next G are all wrong), given that n were wrong and p was uniform on [0, 1]
    before."""
    return ...


# %% [check]
check("8.3", next_all_wrong)

# %% [hint]
# Given n misses, $p$ has a density proportional to $(1-p)^n$. The mean of $(1-p)^G$ under it is a quotient of two integrals.


# %% [solution]
def next_all_wrong(n, G):
    return (n + 1) / (n + G + 1)


# For 64 after 64 that is 65/129: half of the problems never solved are solved in the next 64.
# (The histogram says that small p are commoner than in this prior: then more stay silent.)


# %% [markdown]
# ## Training moves the silence
#
# So far the model stood still. As it learns, most $p$ rise, towards the right end of the curve. In ten runs of `grpo.py` (those of [lesson 16](16_is_it_learning.ipynb);
# [results.json](clinic/results.json): `band`):

# %% [fold]
names, (healthy, _) = list(signs.FLOORS), signs.results()["band"]
trained = [100 * healthy[names.index(f"silent_{side}")] for side in ("wrong", "right")]
at_first, at_last = (sum(side[step] for side in trained) for step in (0, -1))
assert [round(at_first), round(at_last)] == [31, 64] and trained[0][20:].max() < 1
assert identity.silent_rate(0.01, 230) < 0.1 < identity.silent_rate(0.01, 229)
show(lesson_08.in_training(trained))

# %% [text]
# *Stacked (means of ten runs and of five steps). The all-wrong groups, {=trained[0][0]:.0f} % at first, are gone by step 20; the all-right ones
# grow from {=trained[1][0]:.0f} to {=trained[1][-1]:.0f} %.*
#
# At the end nearly two groups in three teach nothing. Where problems come again, one could leave out those
# already solved (we did not try it). To replace silent groups by groups of other problems (DAPO) takes {=1 / (1 - at_last / 100):.1f} times the completions. Larger groups are
# dear: at $p = .01$ it takes groups of 230 for nine in ten to be mixed.

# %% [text]
# ## To remember
#
# - A group is silent with probability $p^G + q^G$: compute it for each problem, average last. From $n$ completions, count silent subsets.
# - In our runs training moves the silence from all-wrong to all-right groups: it falls first, then rises far higher.
#
# ## For a second reading (20 minutes): partial credit; silent for ever? A curve that fits
#
# **4. Partial credit.** Can all-wrong groups be made to speak? A wrong completion now gets half a point if its format is right, which happens
# with probability $h$. A group is silent if all its rewards are equal. How often is that? (Then put in $p = .01$, $G = 8$, once with $h = 0$ and
# once with $h = .5$.)


# %% [exercise]
def silent_with_credit(p, h, G):
    """P(silent): a completion is right with probability p, and a wrong one has the right
    format with probability h."""
    return ...


# %% [check]
check("8.4", silent_with_credit)

# %% [hint]
# Three kinds of group are silent. With which probability does a completion get half a point?


# %% [solution]
def silent_with_credit(p, h, G):
    return p**G + ((1 - p) * h) ** G + ((1 - p) * (1 - h)) ** G


# At p = .01 and G = 8, 92 % are silent with h = 0, and 0.7 % with h = .5. But more than nine
# in ten groups still have no right completion: they speak, but they teach only the format.


# %% [text]
# **Are silent problems silent for ever?** 11.2 % of Big-Math's problems are silent in all 64 completions (the coloured bars). Bay and Yearick
# call them irreducible: "no amount of additional sampling" helps. That does not follow.
#
# - **4.0 points are all wrong.** They are what a filter left: the dataset's card lists the removal of problems "unsolvable in 8
#   rollouts from Llama-3.1-405B or 64 rollouts from Llama-3.1-8B" (four sources are exempt). So this bar says nothing about the problems
#   that the model cannot solve.
# - **7.2 points are all right.** But a problem with $p = 95.4$ % still has 64 right completions in a row one time in twenty.

# %% [markdown]
# **And the 7.2 points?** If a problem's completions are independent draws with one $p$, the histogram is a mixture of binomials. We fit one
# to bars 1 to 64, with and without problems that are always solved:

# %% [fold]
grid = np.sin(np.linspace(0, np.pi / 2, 103)[1:-1]) ** 2  # values of p, denser at both ends
likelihood = identity.binomial(grid, 64)  # (101, 65)

def fit(stuck):
    """The misfits of bars 1 to 64, in standard errors, if p = 1 for a share `stuck`."""
    fitted, fixed = right64 > 0, stuck * (right64 == 64)
    weights = np.full(len(grid), 1 / len(grid))
    for _ in range(10_000):
        pull = likelihood[:, fitted] @ (h / (weights @ likelihood + fixed))[fitted]
        weights = weights * pull / likelihood[:, fitted].sum(axis=1)
    bars = weights @ likelihood + fixed
    return ((h - bars) * np.sqrt(bigmath.COUNTS.sum() / bars))[1:]

assert abs(0.954**64 - 0.05) < 0.002
none, three, four = map(fit, (0.0, 0.03, 0.04))
sums = [(misfit**2).sum() for misfit in (none, three, four)]
print("sum of squared misfits (in standard errors) of 64 bars: {:.0f} with no problem stuck at p = 1, {:.0f} with 3 %, "
      "{:.0f} with 4 %".format(*sums))
largest, added = abs(none).max(), sums[2] - sums[0]
assert largest < 2
# 2.71 and 3.84: significant at 5 %, one- and two-sided
assert sums[1] - sums[0] < 2.71 and added > 15

# %% [text]
# **So roughly 0 to 3 of the 7.2 points can be stuck at $p = 1$** (for this model): with 4 % the fit is clearly worse, with none no bar is off by two
# standard errors. (Roughly, because each mixture is fitted anew, which the usual thresholds do not count.)
#
# **A curve that fits.** Bay and Yearick read the share of all-right prompts in DAPO's log (its Fig. 3b) as the mean of $p^{32}$. One free timescale
# fits its rise with $R^2 = .92$; a curve without any theory reaches .98, as they say themselves. And DAPO's text speaks of training samples, in groups
# of 16: that would be the mean of $p^{16}$, on Big-Math {=100 * sum(h[c] * comb(c, 16) for c in right64.tolist()) / comb(64, 16):.0f} % in place of {=100 * sum(h[c] * comb(c, 32) for c in right64.tolist()) / comb(64, 32):.0f} %.
#
# Sources: Big-Math, [2502.17387](https://arxiv.org/abs/2502.17387), and its
# [card](https://huggingface.co/datasets/SynthLabsAI/Big-Math-RL-Verified), which names Llama-3.1-8B (the authors'
# [script](https://github.com/SynthLabsAI/big-math): its Instruct version); Bay and Yearick, *GRPO, Dr. GRPO, and DAPO Are Three Operations on
# One Number*, [2607.00152](https://arxiv.org/abs/2607.00152), whose figure (CC BY 4.0) has the counts (`bigmath.py` says how accurately we
# read them). The fits are ours.
