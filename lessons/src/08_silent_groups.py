# %% [markdown] 30 minutes
# # 8 · Silent groups
#
# GRPO (group relative policy optimization) learns from disagreement. If all $G$ completions of a prompt are right, or all are wrong, the
# rewards' standard deviation is 0 and the group gives no gradient ([lesson 6](06_identity.ipynb)). **Such a *silent* group has probability**
#
# $$S \;=\; p^G + q^G$$
#
# Averaged over a realistic mix of problems this is 59, 44, 32, 23 and 17 % at G = 4, 8, 16, 32 and 64, if measured solve rates are put in for
# $p$; the unbiased estimate is lower, and 11.2 % at 64. The problems that are silent in all of 64 completions have been called
# irreducible. That does not follow: if completions are independent draws, at most 4.4 of these 11.2 points can be.
#
# | symbol | meaning |
# |---|---|
# | $G$ | completions in a group, all of one prompt |
# | $p,\ q$ | the probability that a completion of this problem is right; $q = 1 - p$ |
# | $S$ | the silent probability; of a mix of problems, its mean over them |
# | $n,\ c;\ \hat p$ | completions drawn of a problem, and right ones among them; $c/n$ |
# | $h_k$ | the share of problems with $k$ of 64 completions right |
#
# **Proof.** Completions are drawn independently: all $G$ are right with probability $p^G$, all are wrong with probability $q^G$, and never both. In
# either case every reward equals the group's mean, so every advantage is 0, and so is the update. ∎ (A KL (Kullback–Leibler) penalty still
# pulls.)

# %% [markdown]
# ## Counted
#
# The base model answers 128 problems 32 times each. From the first 16 completions of each problem we predict how often groups formed of the
# *other* 16 are silent.

# %%
import random
from math import comb

import numpy as np
import torch

from lessons import identity
from lessons.experiments import bigmath
from lessons.figures.lesson_08 import beyond_the_data, histogram_and_rates, moved_mix
from lessons.kit import check, knob, show
from toy_env.arithmetic import LEVELS, reward, sample_problems
from toy_env.model import load_policy
from toy_env.rollout import sample

policy, tokenizer = load_policy("base")
problems = sample_problems(128, LEVELS, random.Random(8))
prompts, generator = [problem.prompt for problem in problems], torch.Generator().manual_seed(8)
rollout = sample(policy, tokenizer, prompts, group_size=32, max_new_tokens=56, temperature=1.0, generator=generator)
R = np.array([reward(problems[row // 32], text) for row, text in enumerate(rollout.texts)]).reshape(128, 32)

# %%
of_problem = R.mean(axis=1)
print(f"{R.mean():.0%} of the completions are right; by problem, from {of_problem.min():.0%} to {of_problem.max():.0%}")
print("G   silent: predicted   counted     p^G + q^G at the mean p")
for G in (2, 4, 8):
    predicted = identity.silent_rate_unbiased(R[:, :16].sum(axis=1).astype(int), 16, G)
    counted = np.isin(R[:, 16:].reshape(128, -1, G).mean(axis=2), (0, 1)).mean(axis=1)
    assert abs((predicted - counted).mean()) < 2.5 * (predicted - counted).std() / np.sqrt(128)  # what chance explains
    at_mean = identity.silent_rate(R.mean(), G)
    print(f"{G}               {predicted.mean():5.1%}     {counted.mean():5.1%}                       {at_mean:5.1%}")

# %% [markdown]
# *Prediction and count differ by no more than chance (one model, 128 problems). At the mean $p$ hardly any group of 8 would be silent: silence comes from the spread of
# difficulty, so compute $S$ for each problem and average last.*
#
# ## A realistic mix, without the data
#
# Big-Math ([2502.17387](https://arxiv.org/abs/2502.17387)) counts, for 215,608 problems, how many of 64 completions of Llama-3.1-8B are right. The
# paper of lesson 6's identity ([2607.00152](https://arxiv.org/abs/2607.00152), "the paper") prints eleven statistics of these counts. The data is not
# shipped here. `bigmath.reconstruct()` finds, among all distributions over 0 … 64 that agree with the eleven up to rounding, the one of largest
# entropy: **a reconstruction, not the data.**
#
# **Plug-in or unbiased?** The paper's closed form puts $\hat p = c/64$ in for $p$. Since $p^G + q^G$ is convex, the noise in $\hat p$ raises its mean
# (Jensen's inequality). The share of silent groups among *all subsets* of $G$ of the 64 completions is unbiased: a random subset of independent
# completions is a group. (The paper prints that too, for $G$ up to 16.)

# %%
right64, share = (
    np.arange(65),
    bigmath.reconstruct(),
)  # with the data: bigmath.histogram(bigmath.load_solve_rates(FILE))
subsets = {4: 59, 8: 43, 16: 30}  # the paper's unbiased row, which the reconstruction is not told
bars = dict(
    zip(bigmath.SILENT, (58.59, 43.07, 30.19, 19.64, 11.18))
)  # the data, read off the bars of the paper's figure
counts = np.array([[8661, 14611], [15446, 8867]]) / bigmath.PROBLEMS  # h_0, h_1 and h_64, h_63, by the same bars
plug_in, unbiased = {}, {}
print("silent, %        plug-in                    unbiased")
print(" G   published  reconstruction   published  data  reconstruction")
for G, (published, _) in bigmath.SILENT.items():
    plug_in[G] = 100 * share @ identity.silent_rate_plug_in(right64, 64, G)
    unbiased[G] = 100 * share @ identity.silent_rate_unbiased(right64, 64, G)
    assert abs(plug_in[G] - published) < 0.501 and abs(unbiased[G] - bars[G]) < 0.65
    two = f"{subsets.get(G, '-'):>2}      {bars[G]:.1f}      {unbiased[G]:.1f}"
    print(f"{G:2}      {published}          {plug_in[G]:.1f}            {two}")

known = np.array([0.0, 0.01, 0.1, 0.3, 0.5, 0.8, 0.99])  # problems whose p we know: what is biased, and what is not?
for G in bigmath.SILENT:
    of_64, truth = identity.binomial(known, 64), known**G + (1 - known) ** G  # (7, 65), how many of 64 are right; (7,)
    assert np.allclose(of_64 @ identity.silent_rate_unbiased(right64, 64, G), truth, atol=1e-12)
    assert (of_64 @ identity.silent_rate_plug_in(right64, 64, G) >= truth).all()
show(histogram_and_rates(share, plug_in, unbiased, bars))

# %% [text]
# *The plug-in overstates silence, by {=plug_in[8] - unbiased[8]:.0f} point at G = 8 and by {=plug_in[64] - unbiased[64]:.0f} at 64.* Its column agrees with the
# published one because it went in; the unbiased column is a test, and is off by up to {=max(abs(unbiased[G] - bars[G]) for G in bars):.1f} points. What
# the reconstruction does not know is left from right: of the eleven numbers only the shares at 0 and 64 change when right and wrong are
# exchanged, so it is symmetric between them. The data is not: one of 64 is right for {=counts[0, 1]:.1%} of the problems, 63 of 64 for
# {=counts[1, 1]:.1%} (here {=share[1]:.1%} both).

# %% [markdown]
# ## Is "irreducible" irreducible?
#
# The paper calls the 11.2 % irreducible. But 0 of 64 does not mean $p = 0$: with $p = 4.6$ %, 64 misses in a row still happen one time in twenty
# (the "rule of three", about 3/64).
#
# How many problems can be *stuck* at exactly 0, if each problem's completions are independent draws with one $p$, so that the bars are a mixture
# of binomials? Stuck problems are in $h_0$ only. The others have $h_1 = 64\,\mathbb E[p\,q^{63}]$ and $h_2 = 2016\,\mathbb E[p^2 q^{62}]$,
# and by Cauchy and Schwarz $\mathbb E[p\,q^{63}]^2 \le \mathbb E[q^{64}]\;\mathbb E[p^2 q^{62}]$. So they themselves put a share of at least
#
# $$\mathbb E[q^{64}] \;\ge\; \frac{(h_1/64)^2}{h_2/2016}$$
#
# into the bar at 0. What lies above this bound can be stuck; if $h_0$ is *below* it, no mixture has these bars. The same holds at the other
# end.


# %%
def room(bars):
    """What any mixture needs at h_0, and what can be stuck there, from h_0, h_1 and h_2 (the last axis)."""
    needed = (bars[..., 1] / 64) ** 2 / (bars[..., 2] / 2016)
    return np.array([needed, bars[..., 0] - needed])


known_mix = 0.3 * (right64 == 0) + 0.7 * identity.binomial(0.03, 64)  # 30 % stuck, all others alike: the bound is exact
assert np.allclose(room(known_mix), [0.7 * 0.97**64, 0.3]) and abs(identity.binomial(0.046, 64)[0] - 0.05) < 0.002
figure_bars = np.column_stack([counts, [0.0449, 0.0304]])  # h_2 and h_62, worked back from the bounds 5.03 and 4.43
of_figure = 100 * room(figure_bars)  # (needed or stuck, which end)
of_reconstruction = 100 * room(np.stack([share[:3], share[:-4:-1]]))
print("in points                          bar   a mixture needs   can be stuck")
for source, ends, (needed, stuck) in (
    ("reconstruction", share[[0, 64]], of_reconstruction),
    ("the paper's figure", figure_bars[:, 0], of_figure),
):
    for i, name in enumerate(("all wrong", "all right")):
        print(f"{source:18}   {name}   {100 * ends[i]:5.2f}        {needed[i]:10.2f}     {stuck[i]:10.2f}")
resampled = np.random.default_rng(0).multinomial(bigmath.PROBLEMS, [*figure_bars[0], 1 - figure_bars[0].sum()], 4000)
vanishes = 2016 * (figure_bars[0, 1] / 64) ** 2 / figure_bars[0, 0]  # the h_2 at which a mixture needs no more than h_0
errors = -of_figure[1, 0] / (100 * room(resampled / bigmath.PROBLEMS)[1].std())
assert np.allclose([of_figure[1], of_reconstruction[1]], [[-1.02, 4.43], [-0.13, 3.07]], atol=0.006) and errors > 9

# %% [text]
# **If the bars are a mixture, at most {=of_figure[1, 1]:.1f} of the {=100 * counts[:, 0].sum():.1f} points ({=of_figure[1, 1] / counts[:, 0].sum():.0f} %) are
# irreducible**, all at the all-right end (at most {=of_reconstruction[1, 1]:.1f} of {=100 * share[[0, 64]].sum():.1f} by the reconstruction), and none need be. But
# at 0 of 64 the mixture is itself **rejected**: it needs {=of_figure[0, 0]:.2f} %, the figure shows {=100 * figure_bars[0, 0]:.2f},
# more than {=int(errors)} standard errors too few. (The reconstruction misses its own bound too: {=100 * share[0]:.2f} < {=of_reconstruction[0, 0]:.2f}.)
# ($h_2$ and $h_{62}$ are not printed in the paper; ours are worked back from bounds noted when its figure was read. The contradiction would
# vanish at $h_2$ = {=100 * vanishes:.1f} % in place of {=100 * figure_bars[0, 2]:.1f}.) Independent draws do not explain that end, so the bound does not tell who is stuck there. And a silent share speaks of 64 completions of one
# model, not of the problems.

# %% [markdown]
# What would more completions show? Weigh every $p$ on a grid from .01 to .99, and let expectation–maximisation fit the weights to the
# reconstruction, with all, a quarter or none of the silent problems stuck at 0 and 1.

# %%
grid = 0.5 + 0.49 * np.sin(np.linspace(-np.pi / 2, np.pi / 2, 301))  # .01 to .99, denser at the ends
likelihood = identity.binomial(grid, 64)  # (301, 65)


def fit(stuck):
    """Weights over the grid, and the bars of what is stuck, with this part of the silent problems at p = 0 or 1."""
    fixed = stuck * share * np.isin(right64, (0, 64))
    weights = np.full(len(grid), (1 - fixed.sum()) / len(grid))
    for _ in range(100):
        weights = weights * (likelihood @ (share / (weights @ likelihood + fixed)))
        weights *= (1 - fixed.sum()) / weights.sum()
    return weights, fixed


sizes, curves = np.unique(np.logspace(np.log10(4), 4, 60).astype(int)), {}
for stuck in (1.0, 0.25, 0.0):
    weights, fixed = fit(stuck)
    curves[stuck] = np.array([weights @ identity.silent_rate(grid, int(G)) + fixed.sum() for G in sizes])
    off = abs(weights @ likelihood + fixed - share).sum() / 2
    at = {G: weights @ identity.silent_rate(grid, G) + fixed.sum() for G in (64, 1000)}
    print(
        f"stuck {fixed.sum():5.1%}   bars that differ {off:.1%}   silent at G = 64 {at[64]:.1%}, at 1,000 {at[1000]:.1%}"
    )
assert off < 0.02 and 0.111 < at[64] < 0.113 and at[1000] < 0.001  # none stuck
show(beyond_the_data(sizes, curves, share[[0, 64]].sum()))

# %% [markdown]
# *With no problem beyond 1 and 99 %, 64 completions show 11 % silence (the dot) and 1,000 show none. If all the silent problems were stuck, 64
# completions would show more silence than they do.* (Fits to a reconstruction; they miss 2 to 6 % of it.)
#
# ## Move the mix
#
# The knob adds a constant to every problem's log-odds (a caricature of training, which does not move all problems alike), starting from the fit
# with none stuck. (Needs the cells above.)

# %%
log_odds, mix = np.log(grid / (1 - grid)), weights / weights.sum()


def draw(shift, G):
    return moved_mix(log_odds, mix, shift, G)


knob(draw, shift=(-3.0, 3.0, 0.25, 0.0), G=(2, 64, 1, 8))

# %% [markdown]
# *Silence changes sides: a weak model loses groups to all-wrong, a strong one to all-right.*
#
# ## Exercises
#
# **1. Unbiased, from n completions.** You drew $n$ completions of a problem, and $c$ are right. Estimate, without bias, how often groups of
# $G \le n$ are silent. (Plain integers; `comb(n, k)` is imported.)


# %% [exercise]
def estimate(c, n, G):
    """Unbiased estimate of p^G + q^G from c right completions of n."""
    return ...


# %% [check]
check("8.1", estimate)

# %% [hint]
# Every subset of G of the n completions is a group. How many subsets are there, and how many have no wrong one in them?


# %% [solution]
def estimate(c, n, G):
    return (comb(c, G) + comb(n - c, G)) / comb(n, G)


# %% [wrong] that is the plug-in
def estimate(c, n, G):
    return (c / n) ** G + (1 - c / n) ** G


# %% [wrong] that is the all-right half
def estimate(c, n, G):
    return comb(c, G) / comb(n, G)


# %% [markdown]
# **2. The price of a useful group.** DAPO (decoupled clip and dynamic sampling policy optimization) replaces a silent group by a group of
# *another* problem, drawn from the mix ([lesson 10](10_dapo.ipynb)). Problems have probabilities `p`, with shares `weights`. How many completions
# are sampled on average until a group is not silent?


# %% [exercise]
def price(p, weights, G):
    """Expected completions for a group that is not silent, from arrays p and weights."""
    return ...


# %% [check]
check("8.2", price)

# %% [hint]
# How often is a group drawn from the mix silent? And how many draws does it take, on average, until the first success?


# %% [solution]
def price(p, weights, G):
    return G / (1 - weights @ (p**G + (1 - p) ** G))


# %% [wrong] that redraws the same problem
def price(p, weights, G):
    return weights @ (G / (1 - p**G - (1 - p) ** G))


# %% [wrong] you put the mean p
def price(p, weights, G):
    mean = weights @ p
    return G / (1 - mean**G - (1 - mean) ** G)


# %% [markdown]
# **3. Wrong 64 times. And the next group?** None of $n$ completions of a problem was right. Before that, every $p$ from 0 to 1 was equally likely.
# How probable is it that the next $G$ completions are all wrong?


# %% [exercise]
def next_all_wrong(n, G):
    """P(the next G are all wrong), given that n were wrong and p was uniform on [0, 1] before."""
    return ...


# %% [check]
check("8.3", next_all_wrong)

# %% [hint]
# Given n misses, $p$ has a density proportional to $(1-p)^n$. The mean of $(1-p)^G$ under it is a quotient of two integrals.


# %% [solution]
def next_all_wrong(n, G):
    return (n + 1) / (n + G + 1)  # one half for 64 after 64


# %% [wrong] nothing is certain after
def next_all_wrong(n, G):
    return 1.0


# %% [wrong] average last
def next_all_wrong(n, G):
    return ((n + 1) / (n + 2)) ** G


# %% [markdown]
# ## To remember
#
# - A group is silent with probability $p^G + q^G$: compute it for each problem and average last, and from $n$ completions count silent subsets
#   instead of putting $\hat p$ into the formula.
# - Silent in 64 completions is not silent for ever: of Big-Math's 11.2 points at most 4.4 can be, if completions are independent draws.
# - At the all-wrong end independent draws are themselves rejected, so that nothing is known about who is stuck there.
#
# Sources: Big-Math, [arXiv:2502.17387](https://arxiv.org/abs/2502.17387); *GRPO, Dr. GRPO, and DAPO Are Three Operations on One Number*,
# [2607.00152](https://arxiv.org/abs/2607.00152), its section on real data; dynamic sampling: DAPO,
# [2503.14476](https://arxiv.org/abs/2503.14476). The bound and the fits are ours.
