# %% [markdown]
# # 8 · Silent groups
#
# Eight answers to one question, all right or all wrong: the rewards do not disagree, σ is 0, and the group teaches
# nothing. The claim of this lesson: such a **silent** group has probability
#
# $$S_G(p) \;=\; p^G + (1-p)^G$$
#
# and on a realistic mix of problems that is 59, 44, 32, 23 and 17 % of all groups at G = 4, 8, 16, 32 and 64, if
# measured solve rates are put in. The 11.2 % of problems that are silent in all of 64 answers have been called
# irreducible. That does not follow: if answers are independent draws, at most 4.4 of these 11.2 points can be.
#
# | symbol | meaning |
# |---|---|
# | $G,\ k$ | answers in a group; how many of them are right |
# | $p,\ q$ | the probability that an answer to this problem is right; $q = 1 - p$ |
# | $R_i,\ \sigma$ | the reward of answer $i$, 1 or 0; the rewards' standard deviation $\sqrt{k(G-k)}/G$ |
# | $s_i,\ A_i$ | the score $\nabla_\theta \log \pi_\theta(y_i)$; the advantage, the score's factor |
# | $S$ | the silent rate: $S_G(p)$ averaged over problems |
#
# **Proof.** Answers are drawn independently: all G are right with probability $p \cdot p \cdots p = p^G$, all wrong
# with $q^G$, and never both. In either case each $R_i$ equals the mean, every $A_i$ is 0, and so is the update
# ([lesson 6](06_identity.ipynb)). ∎ (A KL term still pulls. If rewards take more values $v$, the rate is
# $\sum_v \Pr[R = v]^G$.)
#
# ## Counted
#
# The base model answers 128 problems 32 times each. From 16 of the answers we predict how often groups formed of the
# *other* 16 are silent (by the unbiased estimate explained below).

# %%
import random
from math import comb

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from algorithms import grpo, ppo
from lessons import identity
from lessons.experiments import bigmath
from lessons.kit import BLUE, GREEN, GREY, ORANGE, RIGHT, WRONG, check, knob, label_line, new_figure, show
from toy_env.arithmetic import LEVELS, extract_answer, is_worked, reward, sample_problems
from toy_env.model import load_policy
from toy_env.rollout import completion_logps, in_passes, sample

policy, tokenizer = load_policy("base")
N, n = 128, 32  # problems, answers to each
problems = sample_problems(N, LEVELS, random.Random(8))
rollout = sample(
    policy,
    tokenizer,
    [problem.prompt for problem in problems],
    group_size=n,
    max_new_tokens=56,
    temperature=1.0,
    generator=torch.Generator().manual_seed(8),
)
R = np.array([reward(problems[row // n], text) for row, text in enumerate(rollout.texts)]).reshape(N, n)
first, second = np.arange(n) < n // 2, np.arange(n) >= n // 2  # two halves of the answers to each problem
mean_p = R.mean()
print(
    f"{len(rollout)} answers, {mean_p:.0%} right; by problem, "
    f"from {R.mean(axis=1).min():.0%} to {R.mean(axis=1).max():.0%}"
)

# %%
half = n // 2
right_first = R[:, first].sum(axis=1).astype(int)  # of 16, for the prediction
print(" G   all wrong: predicted counted   all right: predicted counted   p^G + q^G at the mean p")
for G in (2, 4, 8):
    ways = np.array([comb(c, G) for c in range(half + 1)]) / comb(half, G)
    k = R[:, second].reshape(N, -1, G).sum(axis=2)  # (problems, groups)
    columns = []
    for predicted, counted in ((ways[half - right_first], k == 0), (ways[right_first], k == G)):
        difference = predicted - counted.mean(axis=1)
        assert abs(difference.mean()) < 2.5 * difference.std() / np.sqrt(N)  # no more than chance explains
        columns += [predicted.mean(), counted.mean()]
    a, b, c, d = columns
    assert np.isclose(a + c, identity.silent_rate_unbiased(right_first, half, G).mean())
    print(
        f"{G:2}              {a:5.1%}     {b:5.1%}              {c:5.1%}     {d:5.1%}              "
        f"{identity.silent_rate(mean_p, G):5.1%}"
    )

# %% [markdown]
# Prediction and count differ by no more than chance (128 problems, one model). The last column: at the *mean* p hardly
# any group of 8 would be silent. Silence comes from the spread of difficulty: average last.
#
# ## A realistic mix, without the data
#
# Big-Math ([2502.17387](https://arxiv.org/abs/2502.17387)) counts, for 215,608 problems, how many of 64 answers of
# Llama-3.1-8B are right. The paper of the identity ([2607.00152](https://arxiv.org/abs/2607.00152), "the paper") prints
# eleven statistics of it. The data is not shipped here. `bigmath.reconstruct()` finds, among all distributions over 0 …
# 64 that agree with the eleven, the one of largest entropy: **a reconstruction**.
#
# Printed numbers are rounded, and *no* distribution has all eleven exactly: each says that some average over problems,
# minus the published value, is 0. Multiply the eleven by the numbers below and add: the sum is positive at each of the
# 65 solve rates, so it cannot average to 0. Hence intervals, half a unit of the last digit to either side.

# %%
p64, right64 = bigmath.rates(), np.arange(65)
share = bigmath.reconstruct()  # with the data: bigmath.histogram(bigmath.load_solve_rates("a_file.csv"))
rows = [(right64 == 0) - bigmath.NEVER_SOLVED[0] / 100, (right64 == 64) - bigmath.ALWAYS_SOLVED[0] / 100]
rows += [p64**G + (1 - p64) ** G - published / 100 for G, (published, _) in bigmath.SILENT.items()]
for (method, region), (published, _) in bigmath.MASS_SHARES.items():
    inside = (p64 < 0.1) | (p64 > 0.9) if region == "extreme" else abs(p64 - 0.5) <= 0.1
    rows.append((p64 * (1 - p64)) ** (1.0 if method == "Dr. GRPO" else 0.5) * (inside - published / 100))
multipliers = np.array([5347, 5347, -4846, 7198, -10512, 27164, -24769, 100000, -29016, -4134, 1991])
assert (multipliers @ np.array(rows)).min() > 1
print("no distribution has the eleven printed values exactly: True")

published_subsets = {4: 59, 8: 43, 16: 30}  # the paper's second row; no constraint of the reconstruction
from_bars = {4: 58.59, 8: 43.07, 16: 30.19, 32: 19.64, 64: 11.18}  # the data, read off the bars of the paper's figure
print("\nsilent groups, %        plug-in               unbiased")
print(" G    published  reconstruction    published  data  reconstruction")
plug_in, unbiased = {}, {}
for G, (published, _) in bigmath.SILENT.items():
    plug_in[G] = 100 * share @ identity.silent_rate_plug_in(right64, 64, G)
    unbiased[G] = 100 * share @ identity.silent_rate_unbiased(right64, 64, G)
    assert abs(plug_in[G] - published) < 0.501 and abs(unbiased[G] - from_bars[G]) < 0.65
    print(
        f"{G:2}       {published}          {plug_in[G]:.1f}            {published_subsets.get(G, '-'):>2}     "
        f"{from_bars[G]:.1f}      {unbiased[G]:.1f}"
    )

# The plug-in is biased upwards, the subsets are not: exactly, for problems whose p we know
known = np.array([0.0, 0.01, 0.1, 0.3, 0.5, 0.8, 0.99])
for G in (4, 8, 16, 32, 64):
    of_64 = identity.binomial(known, 64)  # (7, 65): how many of 64 answers are right
    truth = known**G + (1 - known) ** G
    assert np.allclose(of_64 @ identity.silent_rate_unbiased(right64, 64, G), truth, atol=1e-12)
    assert (of_64 @ identity.silent_rate_plug_in(right64, 64, G) >= truth).all()
print("plug-in too high, subsets exact, at each of seven known p: True")

print("\n                mean    1 of 64 right   63 of 64")
print(f"reconstruction  {share @ p64:.3f}      {share[1]:.1%}          {share[63]:.1%}")
print("data            0.485      6.8%          4.1%     (read off the figure too)")

# %% [markdown]
# The plug-in column comes out because it went in. The unbiased column is a test, and is off by up to 0.6 points.
#
# **Why two columns.** The paper's closed form puts $\hat p = c/64$ in for $p$, with $c$ right of 64. Because
# $p^G + q^G$ is convex, the noise of $\hat p$ raises its average (Jensen). The share of all G-subsets of the 64 that
# are silent, $\big[\binom{c}{G} + \binom{64-c}{G}\big]/\binom{64}{G}$, is unbiased: a random subset of independent
# answers *is* a group. At G = 64 the plug-in says 17 % about data of which 11.2 % are silent.

# %%
figure, (left, right) = new_figure(10.5, 3.6, columns=2)
left.bar(right64[1:-1], 100 * share[1:-1], 0.9, color=GREY)
left.bar([0, 64], 100 * share[[0, 64]], 0.9, color=[WRONG, RIGHT])
left.annotate(
    f"none right: {share[0]:.1%}",
    (0, 100 * share[0]),
    xytext=(4, 6.3),
    color=WRONG,
    arrowprops={"arrowstyle": "-", "color": WRONG},
)
left.annotate(f"all right: {share[64]:.1%}", (64, 100 * share[64]), xytext=(61, 6.9), color=RIGHT, ha="right")
left.text(32, 2.6, "A RECONSTRUCTION from eleven\nrounded numbers, not the data", ha="center", fontsize=9)
left.set(title="Big-Math, reconstructed", xlabel="right answers of 64", ylabel="% of problems")
sizes = np.array(list(bigmath.SILENT))
for values, color, name, style in ((plug_in, ORANGE, "plug-in: too high", "--"), (unbiased, BLUE, "unbiased", "-")):
    right.plot(sizes, [values[G] for G in sizes], style, color=color, marker="o")
    label_line(right, 64, values[64], name, color, xytext=(10, 0))
right.plot(sizes, [from_bars[G] for G in sizes], "k+", markersize=11, markeredgewidth=1.5)
label_line(right, 4, from_bars[4], "+  the data, off the paper's figure", "black", xytext=(10, 4))
right.set(
    title="Silent groups (lines: the reconstruction)",
    xlabel="G",
    ylabel="%",
    xscale="log",
    ylim=(0, 65),
    xlim=(3.5, 220),
)
right.set_xticks(sizes, sizes)
right.minorticks_off()
show(figure)

# %% [markdown]
# *Putting $\hat p$ into the formula overstates silence, by 1 point at G = 8 and by 5 at G = 64.*
#
# **What the reconstruction does not know**: left from right. Only the shares at 0 and 64 change when right and wrong
# are exchanged, so its inside is symmetric; the data's is not. About 4.5 % of the problems would have to change their
# bar to turn one into the other (by the paper's figure).
#
# ## Where the update comes from, at the G you have
#
# How much of the update comes from extreme problems ($p$ below .1 or above .9)? The paper: 13.9 % under Dr. GRPO (∝
# $pq$), 24.7 % under GRPO (∝ $\sqrt{pq}$, which is $\mathbb E[\sigma]$ for *infinite* G). At G = 8, as it says itself,
# the shift is milder: 14.3 to 17.0 % in its run. A finite group of an extreme problem is mostly silent:

# %%
rng = np.random.default_rng(0)
extreme = (p64 < 0.1) | (p64 > 0.9)
edges = [0, 0.1, 0.9 + 1e-9, 1]  # 0.1 and 0.9 are no multiples of 1/64


def extreme_share(size):
    return 100 * identity.gradient_mass_shares(p64, share, edges, size)[[0, 2]].sum()


dr, mass = extreme_share(lambda p: p * (1 - p)), {"infinite": extreme_share(lambda p: np.sqrt(p * (1 - p)))}
for G in (64, 16, 8, 4, 3, 2):
    mass[G] = extreme_share(lambda p, G=G: identity.expected_sigma(p, G))
    k = rng.binomial(G, np.repeat(p64, 2000)).reshape(65, -1)  # the same by drawing groups
    drawn = share * np.sqrt(k * (G - k)).mean(axis=1) / G
    assert abs(100 * drawn[extreme].sum() / drawn.sum() - mass[G]) < 0.5
assert abs(dr - 13.9) < 0.051 and abs(mass["infinite"] - 24.7) < 0.051
assert abs(mass[8] - 16.5) < 0.3 and abs(mass[8] - dr - (17.0 - 14.3)) < 0.2  # the data, by the figure; the paper's run
assert abs(mass[2] - dr) < 1e-9 and abs(mass[3] - dr) < 1e-9
print("share of the update from extreme problems, on the reconstruction")
print(f"   Dr. GRPO, any G    {dr:.1f} %")
for G, value in mass.items():
    print(f"   GRPO, G {G:>8}   {value:.1f} %   ({value - dr:+.1f})")

# %% [markdown]
# The shift of 11 points is the limit. At G = 8 it is 3 points, at G = 2 and 3 exactly 0, for every mix: there
# $\mathbb E[\sigma]$ is a constant times $pq$ ([lesson 7](07_group_size.ipynb)), and silence takes back all that the
# division by σ gives to lopsided groups.
#
# ## Is "irreducible" irreducible?
#
# The paper calls the 11.2 % irreducible. But 0 of 64 does not mean $p = 0$: with $p = 4.6$ %, 64 misses in a row still
# happen one time in twenty (the "rule of three", about 3/64).
#
# How many can be *stuck* at exactly 0, if each problem's answers are independent draws with one $p$ (the bars: a
# mixture of binomials)? Write $h_k$ for the share of problems with $k$ of 64 right. Stuck problems are in $h_0$ only.
# Of the others, $h_1 = 64\,\mathbb E[pq^{63}]$ and $h_2 = 2016\,\mathbb E[p^2q^{62}]$, and by Cauchy and Schwarz
# $\mathbb E[pq^{63}]^2 \le \mathbb E[q^{64}]\;\mathbb E[p^2q^{62}]$. So they show 0 of 64 with a share of at least
#
# $$\mathbb E[q^{64}] \;\ge\; \frac{(h_1/64)^2}{h_2/2016}$$
#
# What is above the bound can be stuck; if $h_0$ is *below* it, no mixture has these bars. The same holds at the other
# end. A demonstration: weigh every $p$ on a grid from .01 to .99, and let expectation-maximisation move the weights
# towards the reconstruction's bars, with a part of the silent problems stuck, or none.

# %%
bound = 1 - 0.05 ** (1 / 64)
assert abs(identity.binomial(bound, 64)[0] - 0.05) < 1e-12
print(f"0 of 64: p up to {bound:.1%} at 95 %")


def room(h):
    """(what any mixture needs at h_0, what can be stuck there), from h_0, h_1 and h_2 along the last axis."""
    needed = (h[..., 1] / 64) ** 2 / (h[..., 2] / 2016)
    return needed, h[..., 0] - needed


known_mix = 0.3 * (right64 == 0) + 0.7 * identity.binomial(0.03, 64)
assert np.allclose(room(known_mix), [0.7 * 0.97**64, 0.3])  # 30 % stuck, all others alike: the bound is exact
counts = np.array([[8661, 14611], [15446, 8867]]) / bigmath.PROBLEMS  # h_0, h_1 and h_64, h_63, by the figure
figure_bars = np.column_stack([counts, [0.0449, 0.0304]])  # h_2 and h_62, worked back from the bounds 5.03 and 4.43
found = {}
print("in points                          bar   a mixture needs   can be stuck")
for source, bars in (("reconstruction", np.stack([share[:3], share[:-4:-1]])), ("the paper's figure", figure_bars)):
    needed, found[source] = 100 * np.array(room(bars))
    for name, bar, least, stuck in zip(("all wrong", "all right"), 100 * bars[:, 0], needed, found[source]):
        print(f"{source:18}   {name}   {bar:5.2f}        {least:10.2f}     {stuck:10.2f}")
resampled = np.random.default_rng(0).multinomial(bigmath.PROBLEMS, [*figure_bars[0], 1 - figure_bars[0].sum()], 4000)
errors = -found["the paper's figure"][0] / (100 * room(resampled / bigmath.PROBLEMS)[1].std())
print(f"the figure's 0 of 64 are more than {int(errors)} standard errors too few for a mixture")
assert np.allclose(found["the paper's figure"], [-1.02, 4.43], atol=0.006) and errors > 9
assert np.allclose(found["reconstruction"], [-0.13, 3.07], atol=0.006)
assert round(100 * 4.43 / (100 * counts[:, 0].sum())) == 40  # % of the 11.2 points

grid = 0.5 + 0.49 * np.sin(np.linspace(-np.pi / 2, np.pi / 2, 301))  # 0.01 .. 0.99, denser at the ends
likelihood = identity.binomial(grid, 64)  # (301, 65)


def fit(stuck):
    """(weights over the grid, bars predicted, share stuck) with this part of the silent problems at p = 0 or 1."""
    fixed = stuck * share * ((right64 == 0) | (right64 == 64))
    weights = np.full(len(grid), (1 - fixed.sum()) / len(grid))
    for _ in range(100):
        weights = weights * (likelihood @ (share / (weights @ likelihood + fixed)))
        weights *= (1 - fixed.sum()) / weights.sum()
    return weights, weights @ likelihood + fixed, fixed.sum()


far = np.unique(np.logspace(np.log10(4), 4, 60).astype(int))
curves = {}
print("\nstuck    bars that differ   silent at G = 64   at G = 1,000   none of 64 right: none of 1,000 more")
for stuck in (0.0, 0.25, 1.0):
    weights, predicted, fixed = fit(stuck)
    curves[stuck] = np.array([weights @ identity.silent_rate(grid, int(G)) + fixed for G in far])
    at = {G: weights @ identity.silent_rate(grid, G) + fixed for G in (64, 1000)}
    never = (weights @ (1 - grid) ** 1064 + stuck * share[0]) / predicted[0]
    off = abs(predicted - share).sum() / 2
    if stuck == 0:
        world = weights / weights.sum()
        p_drawn = rng.choice(grid, bigmath.PROBLEMS, p=world)  # simulate: as many problems, 64 answers, then 1,000 more
        k_64, k_1000 = rng.binomial(64, p_drawn), rng.binomial(1000, p_drawn)
        assert abs(np.isin(k_64, (0, 64)).mean() - at[64]) < 0.003 and off < 0.02 and at[64] > 0.111
        assert (k_1000[k_64 == 0] == 0).mean() < 0.005 and np.isin(k_1000, (0, 1000)).mean() < 0.001
        h = np.bincount(k_64, minlength=65) / len(k_64)  # a mixture, none stuck: the bound must hold
        assert room(h)[1] > 0 and room(h[::-1])[1] > 0
    print(
        f"{fixed:5.1%}        {off:5.1%}             {at[64]:5.1%}            {at[1000]:5.1%}            {never:4.0%}"
    )

figure, axis = new_figure(7.5, 3.4)
for stuck, color, name in (
    (1.0, GREY, "all of the 11.3 % stuck"),
    (0.25, ORANGE, "a quarter of them stuck"),
    (0.0, BLUE, "none stuck: all p in .01 … .99"),
):
    axis.plot(far, 100 * curves[stuck], color=color, linestyle="-" if stuck < 1 else "--")
    label_line(axis, far[-1], 100 * curves[stuck][-1], name, color, xytext=(5, 6 if stuck == 0.25 else 0))
axis.plot(64, 100 * (share[0] + share[64]), "ko", markersize=7)
axis.axvline(64, color="black", linewidth=0.8, linestyle=":")
axis.text(70, 52, "what 64 answers a problem can see ends here", fontsize=9)
axis.set(title="Silent groups beyond the data (fits to a reconstruction)", xlabel="G", ylabel="%", xscale="log")
axis.set(xlim=(4, 3e5), ylim=(-3, 60))
axis.set_xticks([4, 16, 64, 256, 1000, 10000], ["4", "16", "64", "256", "1,000", "10,000"])
axis.minorticks_off()
show(figure)

# %% [markdown]
# *With no problem beyond 1 and 99 %, 64 answers show 11 % silence (the dot) and 1,000 show none. If all the silent were
# stuck, 64 answers would show more silence than they do.* (Fits to a reconstruction; they miss 2 to 6 % of it.)
#
# If it is a mixture, at most 4.4 of the 11.2 points (40 %) are irreducible by the paper's figure, all at the right end
# (at most 3.1 of 11.3 by the reconstruction), and none need be. But at 0 of 64 the mixture is **rejected**: it needs
# 5.03 %, the figure shows 4.02. (The reconstruction misses its own bound too: 4.05 < 4.18.) Independent answers do not
# explain that end, and the bound does not tell who is stuck there. A silent share speaks of 64 answers of one model,
# not of the problems.
#
# ## What a useful group costs
#
# DAPO throws silent groups away and draws other problems until its batch is full ([lesson 10](10_dapo.ipynb)). A draw
# is useful with probability $1 - S$, so in expectation
#
# $$\text{completions per useful group} = \frac{G}{1 - S}$$
#
# For G = 2, $1 - S = 2\,\mathbb E[pq]$; for G = 3 it is $3\,\mathbb E[pq]$. Both cost $1/\mathbb E[pq]$, whatever the
# mix.

# %%
print(" G   silent   draws per useful group   completions")
cost = {}
for G in (2, 3, 4, 6, 8, 16, 32, 64):
    S = share @ identity.silent_rate_unbiased(right64, 64, G)
    cost[G] = G / (1 - S)
    problem = rng.choice(65, size=20_000, p=share)  # draw problems, and G of their 64 answers
    k = rng.hypergeometric(problem, 64 - problem, G)
    useful = np.flatnonzero((k > 0) & (k < G))
    draws = np.diff(useful, prepend=-1)  # from one useful group to the next
    assert abs(draws.mean() * G / cost[G] - 1) < 0.04
    print(f"{G:2}   {S:5.1%}          {1 / (1 - S):.2f}                {cost[G]:5.1f}")
assert min(cost, key=cost.get) in (2, 3) and abs(cost[2] - cost[3]) < 1e-9
pair = 2 * (right64 * (64 - right64)) / (64 * 63)  # two different answers of the 64 disagree
assert np.isclose(cost[2], 2 / (share @ pair))

# %% [markdown]
# Pairs and triples are cheapest. That is no advice to use pairs: what a group is *worth* is left out here, and
# [lesson 7](07_group_size.ipynb) counts it. (At G = 8 it takes 1.74 draws on this mix. The paper's run reports 3.5: it
# redraws the *same* problem, at most three times.)
#
# ## Move the mix
#
# The knob adds a constant to every problem's log-odds (a caricature of training, which does not move all alike),
# starting from the fit with none stuck. In colour: the silent part of each bar.


# %%
log_odds = np.log(grid / (1 - grid))
shifts = np.linspace(-4, 6, 61)


def draw(shift, G):
    def moved(by):
        return 1 / (1 + np.exp(-(log_odds + by)))

    wrong, right_ = (np.array([world @ f(moved(by)) ** G for by in shifts]) for f in (lambda p: 1 - p, lambda p: p))
    p = moved(shift)
    silent = world @ identity.silent_rate(p, G)
    figure, (left, right) = new_figure(10.5, 3.5, columns=2)
    bins = np.linspace(0, 1, 21)
    for weights, color in (
        (world, "#cccccc"),
        (world * p**G + world * (1 - p) ** G, RIGHT),
        (world * (1 - p) ** G, WRONG),
    ):
        heights = np.histogram(p, bins, weights=100 * weights)[0]
        left.bar(bins[:-1], heights, 0.045, align="edge", color=color)
    left.set(title=f"The mix moved by {shift:+.1f} (from a reconstruction)", xlabel="p", ylabel="% of problems")
    right.stackplot(shifts, 100 * wrong, 100 * right_, colors=[WRONG, RIGHT], alpha=0.75)
    right.axvline(shift, color="black", linewidth=1)
    right.text(-3.8, 6, "all wrong", color="white", fontweight="bold")
    right.text(5.8, 6, "all right", color="white", fontweight="bold", ha="right")
    right.text(
        0.98,
        0.97,
        f"{silent:.0%} silent; {G / (1 - silent):.1f} completions per useful group",
        ha="right",
        va="top",
        transform=right.transAxes,
        fontsize=9,
        backgroundcolor="white",
    )
    right.set(title=f"Silent groups, G = {G}", xlabel="log-odds added", ylabel="%", ylim=(0, 115), xlim=(-4, 6))
    right.set_yticks([0, 25, 50, 75, 100])
    return figure


knob(draw, shift=(-4.0, 6.0, 0.5, 0.0), G=(2, 64, 1, 8))

# %% [markdown]
# *Silence changes sides: a weak model loses groups to all-wrong, a strong one to all-right.* DAPO
# ([2503.14476](https://arxiv.org/abs/2503.14476), Fig. 3b) reports a growing share of all-right prompts in training.
#
# ## The other fix: rewards with more values
#
# Instead of replacing silent groups one can make them speak. Two partial credits for wrong answers: half the share of
# digits that are right, and half of 1 minus the distance to the truth in hundreds.


# %%
def digits(answer, truth):
    """The share of the digits that stand right; 0 if the numbers differ in length."""
    answer, truth = str(answer), str(truth)
    return sum(a == b for a, b in zip(answer, truth)) / len(truth) if len(answer) == len(truth) else 0.0


def nearness(answer, truth):
    return max(0.0, 1 - abs(answer - truth) / 100)


def with_credit(credit, problem, text):
    """1 if right, else half the credit; 0 without an answer."""
    answer = extract_answer(text)
    return reward(problem, text) or (0.5 * credit(answer, problem.answer) if answer is not None else 0.0)


G = 8
shaped = {
    credit: np.array([with_credit(credit, problems[row // n], text) for row, text in enumerate(rollout.texts)])
    for credit in (digits, nearness)
}
k = R.reshape(-1, G).sum(axis=1)  # (512,) groups of 8 from all answers
print(f"{len(k)} groups: {(k == 0).sum()} all wrong, {(k == G).sum()} all right")
for credit, values in shaped.items():
    groups = values.reshape(-1, G)
    A = grpo.compute_advantages(rewards=torch.tensor(groups)).numpy()
    revived = groups.max(axis=1) > groups.min(axis=1)
    assert not revived[k == G].any()
    assert np.allclose((A**2).sum(axis=1), G * revived)  # full weight, however small the spread
    print(
        f"{credit.__name__:9} revives {revived[k == 0].mean():4.0%} of the all wrong, "
        f"{revived[k == G].mean():.0%} of the all right; "
        f"median sigma {np.median(groups[(k == 0) & revived].std(axis=1)):.3f}"
    )
    if credit is nearness:
        row = np.flatnonzero((k == 0) & (groups.std(axis=1) < 0.01) & revived)[0]
        problem = problems[row * G // n]
        print(f"\n{problem.prompt} the answer is {problem.answer}")
        print("   answered ", "  ".join(f"{extract_answer(rollout.texts[i]):5}" for i in range(row * G, row * G + G)))
        print("   reward   ", "  ".join(f"{value:5.3f}" for value in groups[row]))
        print("   advantage", "  ".join(f"{value:5.2f}" for value in A[row]))

noise = torch.tensor([[0.3, 0.3, 0.1 + 0.2, 0.3]], dtype=torch.float64)  # 0.1 + 0.2 is 0.30000000000000004
three = np.full(3, 0.1)
assert ((three - three.mean()) / three.std() == -1).all()  # exercise 5
print("\nfour equal rewards, up to rounding:", grpo.compute_advantages(rewards=noise).numpy().round(2)[0])

# %% [markdown]
# - **All-right groups stay silent.** Credit for wrong answers cannot help where none is wrong.
# - **A revived group enters with full weight.** GRPO divides by σ, so $\sum A_i^2 = G$ whether the rewards differ by 1
#   or by .01. The guess of 68, off by 5, is pushed nearly like a lone success. (Dr. GRPO, without ÷ σ, keeps the tiny
#   spread tiny.)
# - **Rounding noise is blown up too**: the last line. Rewards of 0 and 1 are safe from that, sums of fractions are not.
#
# ### What the credit teaches
#
# With the credit the policy is paid for more than being right. In an all-wrong group it can
# only rank failures. Which behaviour does that favour? From the first halves of the answers, through GRPO's advantages,
# we take the update of the plain reward, and the part of the update with `digits` that comes from revived groups. After
# a tiny step along each, the second halves tell where the gain in $p$ comes from: answers that work the problem out, or
# direct ones.

# %%
A_rows, B_rows = (torch.tensor(np.flatnonzero(np.tile(part, N))) for part in (first, second))
plain, credited = (torch.tensor(values.ravel())[A_rows].view(-1, G) for values in (R, shaped[digits]))
silent_wrong = plain.sum(dim=1, keepdim=True) == 0
advantages = {
    "plain reward": grpo.compute_advantages(rewards=plain),
    "revived groups": grpo.compute_advantages(rewards=credited) * silent_wrong,
}
directions = dict.fromkeys(advantages, 0)
for rows in torch.arange(len(A_rows)).split(512):
    logps = completion_logps(policy, rollout[A_rows[rows]], temperature=1.0).sum(dim=1)
    for name, A in advantages.items():
        loss = (A.flatten()[rows].float() * logps).sum()
        parts = torch.autograd.grad(loss, list(policy.parameters()), retain_graph=True)
        directions[name] = directions[name] + torch.cat([part.flatten() for part in parts])

assert directions["revived groups"].norm() < 0.5 * directions["plain reward"].norm()
worked = np.array([is_worked(text) for text in rollout.texts])
held = R.ravel()[B_rows] == 1
kinds = np.stack([held & worked[B_rows], held & ~worked[B_rows]]).reshape(2, N, -1).astype(float)
start = parameters_to_vector(policy.parameters()).detach().clone()
with torch.no_grad():
    before = completion_logps(policy, rollout[B_rows], temperature=1.0).sum(dim=1)
    gains = {}
    for name, direction in directions.items():
        vector_to_parameters(start + 0.001 * direction / direction.norm(), policy.parameters())
        rise = (completion_logps(policy, rollout[B_rows], temperature=1.0).sum(dim=1) - before).double().view(N, -1)
        centred = kinds - kinds.mean(axis=2, keepdims=True)  # d P(kind) = cov(kind, rise of log-probability)
        gains[name] = (centred * rise.numpy()).sum(axis=2) / (half - 1) / 0.001  # (2, problems)
    vector_to_parameters(start, policy.parameters())

wrong_worked = worked[A_rows].reshape(-1, G)[silent_wrong[:, 0].numpy()].mean()
print(f"worked answers: {worked.mean():.0%} of all, {wrong_worked:.1%} in all-wrong groups")
shares = {}
for name, (by_working, direct) in gains.items():
    total = by_working + direct
    part = by_working.mean() / total.mean()
    margin = 1.96 * (by_working - part * total).std() / np.sqrt(N) / total.mean()
    shares[name] = part, margin
    print(f"{name:15} of each point that p gains, {part:4.0%} (+- {margin:.0%}) comes from working the problem out")
(p_part, p_margin), (r_part, r_margin) = shares.values()
assert p_part - p_margin > r_part + r_margin and gains["revived groups"].sum(axis=0).mean() > 0

# %%
figure, axis = new_figure(7.5, 2.2)
for y, (part, margin) in enumerate(shares.values()):
    axis.barh(-y, 100 * part, 0.6, color=BLUE)
    axis.barh(-y, 100 * (1 - part), 0.6, left=100 * part, color=ORANGE)
    axis.errorbar(100 * part, -y, xerr=100 * margin, color="black", capsize=4, linewidth=1.2)
axis.set_yticks([0, -1], list(shares))
axis.text(2, 0.42, "from working the problem out", color=BLUE)
axis.text(98, 0.42, "from better direct answers", color=ORANGE, ha="right")
axis.set(title="Where one point of p comes from", xlabel="%", ylim=(-1.5, 0.8), xlim=(-25, 100))
axis.grid(False)
show(figure)

# %% [text]
# *All-wrong groups hold hardly any worked answers: the credit can only compare direct answers with direct answers.*
#
# So the bias has a direction. Revived groups do raise $p$, by better direct answers; what they add to working the
# problem out is {=100 * r_part:.0f} ± {=100 * r_margin:.0f} % of that, no more than noise. The limits: first order,
# base model, one credit, 256 groups; margins are 95 % over problems for this one update. Most of the update still comes
# from mixed groups, so a training run need not end worse. To find out, replace `grpo.collect` by one that rewards with
# `with_credit`, and train.
#
# ## The critic's side
#
# PPO's baseline is a critic's value $V$. On a saturated prompt a good critic has $V \approx R$, and advantages near
# zero; the group's are *exactly* zero. We train `ppo.py`'s critic by its own value loss on the first
# halves (on plain returns of the fixed policy, as VAPO does before it trains,
# [2504.05118](https://arxiv.org/abs/2504.05118)). Then `ppo.compute_advantages` judges the second halves.

# %%
torch.manual_seed(0)
critic = ppo.Critic(policy)
optimizer = torch.optim.AdamW(critic.parameters(), lr=2e-3, weight_decay=0.0)
config = ppo.Config(kl_coef=0.0, value_clip=1.0)  # the policy is its own reference; a clip of 1 clips nothing here
returns = torch.tensor(R.ravel(), dtype=torch.float32).view(-1, 1) * rollout.mask
batches = A_rows[torch.randperm(len(A_rows))].split(32)
for i, rows in enumerate(batches):
    optimizer.param_groups[0]["lr"] = 2e-3 * (1 - i / len(batches))
    values = in_passes(critic, rollout[rows], config.max_tokens_per_pass)
    batch = {"values": values, "old_values": values.detach(), "returns": returns[rows], "mask": rollout.mask[rows]}
    optimizer.zero_grad()
    ppo.value_loss(**batch, config=config).backward()
    torch.nn.utils.clip_grad_norm_(critic.parameters(), config.max_grad_norm)
    optimizer.step()

judged = rollout[B_rows]
with torch.no_grad():
    values = in_passes(critic, judged, config.max_tokens_per_pass)


def gae(rows):
    """(plain, whitened) advantages of these rows as one batch, both (rows, T)."""
    whitened, returns = ppo.compute_advantages(
        rewards=torch.tensor(R.ravel()[B_rows][rows], dtype=torch.float32).view(-1, 1),
        values=values[rows],
        old_logps=judged.logps[rows],
        ref_logps=judged.logps[rows],
        mask=judged.mask[rows],
        config=config,
    )
    return returns - values[rows], whitened


def rms(advantages, mask):
    return (advantages[mask].square().mean().sqrt()).item()


plain_A, _ = gae(torch.arange(len(judged)))
group_R = R[:, second].reshape(-1, G)
k = group_R.sum(axis=1).astype(int)
in_k = [torch.tensor(np.repeat(k == c, G)) for c in range(G + 1)]
by_k = np.array([rms(plain_A[rows], judged.mask[rows]) for rows in in_k])
in_groups = zip(plain_A.split(G), judged.mask.split(G))
each = np.array([rms(advantages, mask) for advantages, mask in in_groups])  # (256,) groups
p_others = (np.repeat(R.sum(axis=1), 2) - k) / (n - G)  # of each problem, from the answers outside the group
silent = (k == 0) | (k == G)
group_A = grpo.compute_advantages(rewards=torch.tensor(group_R)).numpy()
assert (group_A[silent] == 0).all() and (each[silent] > 0).all()
squared = plain_A.square().sum(dim=1).view(-1, G).sum(dim=1).numpy()
part = squared[silent].sum() / squared.sum()
print(f"{silent.mean():.0%} of the groups are silent; they hold {part:.0%} of the critic's squared advantages")
for name, which, from_end in (("all-wrong", k == 0, p_others), ("all-right", k == G, 1 - p_others)):
    near = from_end <= np.median(from_end[which])
    means = each[which & near].mean(), each[which & ~near].mean()
    assert 0 < means[0] < means[1]
    print(
        f"{name} groups, root mean square: {means[0]:.2f} in the half with p nearer to the end, "
        f"{means[1]:.2f} in the other"
    )

rows = torch.tensor(np.repeat(silent, G)).nonzero()[:, 0]
alone, whitened = gae(rows)
before, after = rms(alone, judged.mask[rows]), rms(whitened, judged.mask[rows])
assert abs(after - 1) < 1e-3
print(f"a batch of silent groups only: root mean square {before:.2f}, after whitening {after:.2f}")

figure, (left, right) = new_figure(10.5, 3.5, columns=2)
left.plot(range(G + 1), by_k, "o-", color=GREEN)
left.plot(range(G + 1), identity.sigma(np.arange(G + 1), G), "s-", color=BLUE)
label_line(left, 4, by_k[4], "critic: GAE", GREEN, xytext=(0, -14), ha="center")
label_line(left, 4, 0.5, "group: R − mean", BLUE, xytext=(0, 9), ha="center")
left.set(title="Size of the advantages (root mean square)", xlabel="k, right answers of 8", ylim=(-0.02, 0.65))
for which, color in ((k == 0, WRONG), (k == G, RIGHT)):
    right.plot(p_others[which], each[which], "o", color=color, alpha=0.6, markersize=5)
right.plot([0, 1], [0, 0], color="black")
right.text(0.6, 0.012, "the group's advantage in all of them: exactly 0", ha="center", fontsize=9)
x = np.array([0, 0.52])
right.plot(x, x, ":", color=WRONG, linewidth=1.2)
right.plot(1 - x, x, ":", color=RIGHT, linewidth=1.2)
right.text(0.02, 0.66, "all wrong", color=WRONG)
right.text(0.98, 0.66, "all right", color=RIGHT, ha="right")
right.text(0.5, 0.6, "dotted: if V were p", ha="center", color=GREY, fontsize=9)
right.set(
    title="Silent groups only: the critic's advantages",
    xlabel="p, from the answers outside the group",
    ylim=(-0.02, max(0.72, 1.05 * each[silent].max())),
)
show(figure)

# %% [markdown]
# *In silent groups the critic's advantages are not zero, and smaller towards the ends.* (A short training, one seed.)
#
# **Whitening undoes this**: `ppo.py` divides by the standard deviation of the batch's advantages. In a batch of
# saturated prompts, what is left, the critic's errors included, is blown up to 1. In a mixed batch the factor is common
# to all.
#
# **Does the group baseline lose what the critic keeps?** Say $V = p$. All-right groups push by $q$, all-wrong ones by
# $-p$. Since $\mathbb E[s \mid R{=}1] = \nabla p/p$ and $\mathbb E[s \mid R{=}0] = -\nabla p/q$, silent groups
# carry
#
# $$p^{G-1}q + q^{G-1}p$$
#
# of the gradient $\nabla p$. Yet the leave-one-out baseline ([lesson 3](03_group_baseline.ipynb)), exactly zero in
# silent groups, has expectation $\nabla p$ as well: its mixed groups carry all of it. By enumeration, for a policy of
# one logit:

# %%
for G_ in (2, 8, 64):
    largest = 0
    for p in np.linspace(0.005, 0.995, 199):
        k, q = np.arange(G_ + 1), 1 - p
        chance = identity.binomial(p, G_)  # one logit: scores are q (right) and -p (wrong), and grad p = p q
        by_critic = chance * (k * q * q + (G_ - k) * p * p) / G_ / (p * q)
        loo = chance * (k * (1 - (k - 1) / (G_ - 1)) * q + (G_ - k) * (k / (G_ - 1)) * p) / G_ / (p * q)
        assert abs(by_critic.sum() - 1) < 1e-12 and abs(loo.sum() - 1) < 1e-12 and abs(loo[[0, -1]]).max() < 1e-12
        assert abs(by_critic[[0, -1]].sum() - (p ** (G_ - 1) * q + q ** (G_ - 1) * p)) < 1e-12
        largest = max(largest, by_critic[[0, -1]].sum())
    print(f"G = {G_:2}: silent groups carry at most {largest:4.1%} of the gradient under a critic with V = p")

# %% [markdown]
# So for one problem silence costs *samples*, not direction: at G = 8 a critic that knows $p$ finds at most 5 % of the
# gradient there.
#
# ## Exercises
#
# **1. The rate, for any reward.** A reward takes several values, with the given probabilities. How often are G rewards
# all equal?


# %% [exercise]
def silent_rate(probabilities, G):
    """P(all G rewards of a group are the same); probabilities (values,), summing to 1."""
    return ...


# %% [check]
check(
    silent_rate,
    lambda probabilities, G: sum(np.prod(np.full(G, x)) for x in probabilities),
    inputs=[
        {"probabilities": np.array([0.1, 0.9]), "G": 8},
        {"probabilities": np.array([0.5, 0.3, 0.2]), "G": 4},
        {"probabilities": np.array([0.0, 1.0]), "G": 2},
    ],
    mistakes={
        "that is the rate of one value only; any value can be shared by all": lambda probabilities, G: (
            probabilities[-1] ** G
        ),
        "the first answer may take any value; you count G - 1 matches of a fixed one": lambda probabilities, G: (
            probabilities ** (G - 1)
        ).sum(),
    },
)

# %% [hint]
# All G rewards equal v with probability Pr[R = v] to the power G. Different v exclude each other.


# %% [solution]
def silent_rate(probabilities, G):
    return (probabilities**G).sum()


# %% [wrong] one value only
def silent_rate(probabilities, G):
    return probabilities[-1] ** G


# %% [wrong] you count G - 1 matches
def silent_rate(probabilities, G):
    return (probabilities ** (G - 1)).sum()


# %% [markdown]
# **2. Unbiased, from n answers.** You sampled n answers to a problem and c are right. Estimate, without bias, how often
# groups of $G \le n$ would be silent (plain integers, `math.comb`).


# %% [exercise]
def estimate(c, n, G):
    """Unbiased estimate of p^G + q^G from c right answers of n."""
    return ...


# %% [check]
def average_over_subsets(c, n, G):
    """The share of silent groups among all of them, one by one."""
    from itertools import combinations

    silent = [sum(group) in (0, G) for group in combinations([1] * c + [0] * (n - c), G)]
    return sum(silent) / len(silent)


check(
    estimate,
    average_over_subsets,
    inputs=[{"c": 3, "n": 12, "G": 4}, {"c": 9, "n": 10, "G": 2}, {"c": 5, "n": 10, "G": 8}],
    mistakes={
        "that is the plug-in: c / n put for p, too high on average": lambda c, n, G: (c / n) ** G + (1 - c / n) ** G,
        "that is the all-right half; the all-wrong groups are silent too": lambda c, n, G: comb(c, G) / comb(n, G),
    },
)

# %% [hint]
# Every subset of G of the n answers is a group. comb(c, G) of them are all right. How many are all wrong?


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
# **3. The price.** Problems have probabilities `p`, and shares `weights`. How many completions does a useful group take
# if a silent one is replaced by a group of *another* problem, drawn from the mix?


# %% [exercise]
def price(p, weights, G):
    """Expected completions per useful group."""
    return ...


# %% [check]
check(
    price,
    lambda p, weights, G: G / (weights @ np.array([identity.binomial(x, G)[1:-1].sum() for x in p])),
    inputs=[
        {"p": np.array([0.5, 0.02]), "weights": np.array([0.5, 0.5]), "G": 8},
        {"p": np.array([0.1, 0.3, 0.99]), "weights": np.array([0.2, 0.3, 0.5]), "G": 4},
    ],
    mistakes={
        "that redraws the same problem until it is mixed: average the rate first, then divide": lambda p, weights, G: (
            weights @ (G / (1 - identity.silent_rate(p, G)))
        ),
        "you put the mean p into the formula; average the rates instead": lambda p, weights, G: (
            G / (1 - identity.silent_rate(weights @ p, G))
        ),
    },
)

# %% [hint]
# The silent rate of the mix is weights @ (p**G + (1 - p)**G). Draws until the first success: one over its probability.


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
# **4. A reward that revives.** Give 1 to the right answer, 0 to a response without one, and otherwise half of
# $1/(1+d)$, where $d$ is the distance to the truth. (`extract_answer(text)` is an integer or `None`.)


# %% [exercise]
def partial(text, truth):
    """The reward of a response, between 0 and 1."""
    return ...


# %% [check]
check(
    partial,
    lambda text, truth: {
        "#39": 1.0,
        "#38": 0.25,
        "29+46=75;75-36=42;#42": 0.125,
        "#-60": 0.005,
        "39": 0.0,
        "#3 9": 0.0,
    }[text],
    inputs=[{"text": text, "truth": 39} for text in ("#39", "#38", "29+46=75;75-36=42;#42", "#-60", "39", "#3 9")],
    mistakes={
        "a miss by one should get half of 1/2: right must stay clearly apart from near": lambda text, truth: (
            0.0 if extract_answer(text) is None else 1 / (1 + abs(extract_answer(text) - truth))
        ),
        "the right answer should keep its full 1": lambda text, truth: (
            0.0 if extract_answer(text) is None else 0.5 / (1 + abs(extract_answer(text) - truth))
        ),
    },
)

# %% [hint]
# Three cases: extract_answer(text) is None, equals truth, or else. Distances are absolute.


# %% [solution]
def partial(text, truth):
    answer = extract_answer(text)
    if answer is None:
        return 0.0
    return 1.0 if answer == truth else 0.5 / (1 + abs(answer - truth))


# %% [wrong] right must stay clearly apart from near
def partial(text, truth):
    answer = extract_answer(text)
    return 0.0 if answer is None else 1 / (1 + abs(answer - truth))


# %% [wrong] the right answer should keep its full 1
def partial(text, truth):
    answer = extract_answer(text)
    return 0.0 if answer is None else 0.5 / (1 + abs(answer - truth))


# %% [markdown]
# **5. Find the bug.** A trainer with fractional rewards guards against silent groups as below. A group with rewards .1,
# .1, .1 then gets advantages of −1 each: their mean is 0.10000000000000002. Repair it: a group is silent if its largest
# and smallest reward differ by less than $10^{-6}$; all others keep their advantages.


# %% [exercise]
def safe_advantages(rewards):
    """GRPO's advantages of one group, zeros if it is silent up to rounding; rewards (G,), numpy."""
    sigma = rewards.std()
    if sigma == 0:
        return np.zeros(len(rewards))
    return (rewards - rewards.mean()) / sigma


# %% [check]
lone = np.array([-1, -1, -1, 3]) / np.sqrt(3)  # three equal rewards and a larger one, however close
check(
    safe_advantages,
    lambda rewards: lone if rewards[-1] in (1.0, 0.300002) else np.zeros(len(rewards)),
    inputs=[
        {"rewards": np.array([0.1, 0.1, 0.1])},
        *({"rewards": np.array([0.3, 0.3, 0.3, last])} for last in (0.1 + 0.2, 0.3 + 5e-7, 0.300002, 1.0)),
    ],
    mistakes={
        "0.1 + 0.2 is not 0.3 in floating point: compare with a tolerance": lambda rewards: (
            np.zeros(len(rewards)) if (rewards == rewards[0]).all() else (rewards - rewards.mean()) / rewards.std()
        ),
        "1e-8 below the fraction is no guard: rewards 5e-7 apart still get advantages": lambda rewards: (
            (rewards - rewards.mean()) / (rewards.std() + 1e-8)
        ),
        "the guard is right; without the 1e-8 below the fraction near ties keep their advantages too": lambda rewards: (
            (rewards - rewards.mean()) / (rewards.std() + 1e-8) * (np.ptp(rewards) >= 1e-6)
        ),
        "2e-6 apart is mixed: compare the rewards, not sigma (and mind allclose's rtol)": lambda rewards: (
            np.zeros(len(rewards)) if rewards.std() < 1e-6 else (rewards - rewards.mean()) / rewards.std()
        ),
        "a mixed group must keep its advantages": lambda rewards: np.zeros(len(rewards)),
    },
    bug=lambda rewards: np.zeros(len(rewards)) if rewards.std() == 0 else (rewards - rewards.mean()) / rewards.std(),
)

# %% [hint]
# Do not ask σ. Ask the rewards: is the largest minus the smallest below the tolerance?


# %% [solution]
def safe_advantages(rewards):
    if rewards.max() - rewards.min() < 1e-6:
        return np.zeros(len(rewards))
    return (rewards - rewards.mean()) / rewards.std()


# %% [wrong] is no guard
def safe_advantages(rewards):
    return (rewards - rewards.mean()) / (rewards.std() + 1e-8)


# %% [wrong] 2e-6 apart is mixed
def safe_advantages(rewards):
    if np.allclose(rewards, rewards[0], atol=1e-6):
        return np.zeros(len(rewards))
    return (rewards - rewards.mean()) / rewards.std()


# %% [wrong] compare with a tolerance
def safe_advantages(rewards):
    if (rewards == rewards[0]).all():
        return np.zeros(len(rewards))
    return (rewards - rewards.mean()) / rewards.std()


# %% [markdown]
# ## What to take along
#
# - A group is silent with probability $p^G + q^G$: per problem, averaged last. From n answers count silent subsets; do
#   not plug $\hat p$ in.
# - Silent in 64 is not silent for ever: of Big-Math's 11.2 points at most 4.4 can be, if answers are independent draws.
# - Replacing silent groups costs $G/(1-S)$ completions each. Partial credit revives the all-wrong ones, with full
#   weight, and teaches what it ranks.
# - Silence costs samples, not the expected direction of a problem's update.
#
# Which function of $p$ is climbed by all this, silent groups included? [Lesson 9](09_objective.ipynb).
