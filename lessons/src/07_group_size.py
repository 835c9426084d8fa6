# %% [markdown] 30 minutes
# # 7 · Expected gradient and group size
#
# In GRPO (group relative policy optimization) one group's update is $\sigma$ times a contrast of scores ([lesson 6](06_identity.ipynb)).
# Groups are random. What is the update *on average*? For any policy:
#
# $$\mathbb E[g] \;=\; \frac{\mathbb E[\sigma]}{p\,q}\,\nabla p$$
#
# Its direction is that of the prompt's policy gradient; the group size changes only its length. A published rule follows from that length:
# $G^\star = 1/(8\,(1-\varphi)\,pq)$ completions bring the expected step to a share $\varphi$ of its length for large groups. **The rule is
# the leading order of an expansion, and too small in every row of the paper's own table of exact sizes.**
#
# | symbol | meaning |
# |---|---|
# | $G,\ k$ | completions in a group, all of one prompt; how many of them are right |
# | $p,\ q$ | the probability that a completion is right; $q = 1 - p$ |
# | $\sigma$ | the standard deviation of the group's rewards, $\sqrt{k(G-k)}/G$; *silent*: $\sigma = 0$, otherwise *mixed* |
# | $s_i$ | the score of completion $i$: $\nabla_\theta \log \pi_\theta(y_i)$, summed over its tokens |
# | $\bar s_\pm;\ m_\pm$ | the mean score of a group's right (+) or wrong (−) completions; its expectation |
# | $g$ | the update of one group, $\frac1G \sum_i A_i s_i$ with the advantages $A_i$ |
# | $\varphi$ | fidelity, $\mathbb E[\sigma]/\sqrt{pq}$ |

# %% [markdown]
# ## Proof
#
# **Step 1: fix k.** Given how many completions are right, each right one is a draw from the policy's right completions, each wrong one from
# its wrong completions. So in every mixed group $\bar s_+ - \bar s_-$ has the mean $m_+ - m_-$, and by lesson 6
# $\mathbb E[g \mid k] = \sigma\,(m_+ - m_-)$.
#
# **Step 2: the contrast.** A score has mean 0, and $\mathbb E[R\,s] = \nabla p$ ([lesson 1](01_score_function.ipynb)). Split both means by the
# reward: $p\,m_+ + q\,m_- = 0$ and $p\,m_+ = \nabla p$. So $m_+ = \nabla p/p$ and $m_- = -\nabla p/q$; their difference is
# $\nabla p/(pq)$.
#
# **Step 3: average over k**, which is binomial. A silent group has $g = 0$ and $\sigma = 0$. ∎
# Dr. GRPO (GRPO done right: no division by σ) has $\sigma^2$ in place of $\sigma$. As $\mathbb E[\sigma^2] = pq\,(1 - \frac1G)$, its weight is
# $1 - \frac1G$ for every prompt ([lesson 3](03_group_baseline.ipynb)).
#
# The paper (arXiv:2607.00152, Prop. 2) states this for a prompt with a single parameter; the proof does not need that. It needs
# completions sampled from the policy itself (the first step after sampling), rewards of 0 and 1, no clip, no KL (Kullback–Leibler) penalty, and
# scores summed over tokens. With $1/|y|$ step 2 fails, because the mean of $s/|y|$ is not 0.

# %% [markdown]
# ## Every group of a small policy
#
# A network with 36 parameters writes up to three tokens: 0, 1 or the end. That makes 15 completions, so that we can visit every group. The
# advantages come from the scripts, $\nabla p$ from autograd alone.

# %%
import math
from itertools import combinations_with_replacement

import numpy as np
import torch
from torch.autograd.functional import jacobian

from algorithms import dr_grpo, grpo
from lessons import identity
from lessons.experiments import compare_tables
from lessons.figures.lesson_07 import length_and_efficiency
from lessons.kit import check, knob

END = 2
COMPLETIONS = [(END,)] + [(a, END) for a in (0, 1)] + [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1, END)]
theta = torch.randn(36, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def log_probs(theta):
    """log π of each completion, (15,). The network sees the position and the token before."""
    position, before = theta[:24].view(2, 3, 4)
    hidden = torch.tanh(position[:, None] + before)  # (position, token before, 4)
    logp = (hidden @ theta[24:].view(4, 3)).log_softmax(dim=-1)  # (position, token before, token)
    return torch.stack([sum(logp[t, (END, *y)[t], y[t]] for t in range(len(y))) for y in COMPLETIONS])


# %%
def every_group(script, G, R):
    """All groups of G, without order: the probability of each (n,), and what its update has of each score (n, 15)."""
    groups = torch.tensor(list(combinations_with_replacement(range(15), G)))
    counts = torch.nn.functional.one_hot(groups, 15).sum(dim=1)  # (n, 15)
    factorials = torch.tensor([math.factorial(i) for i in range(G + 1)]).double()
    ways = math.factorial(G) / factorials[counts].prod(dim=1)
    A = script.compute_advantages(rewards=R[groups])  # (n, G)
    return ways * (probs**counts).prod(dim=1), torch.zeros(counts.shape).double().scatter_add(1, groups, A / G)


probs, scores = log_probs(theta).exp(), jacobian(log_probs, theta)  # (15,), (15, 36)
ODD = torch.tensor([y.count(1) % 2 for y in COMPLETIONS]).double()  # right: an odd number of 1s
ELEVEN = torch.tensor([y == (1, 1, END) for y in COMPLETIONS]).double()  # right: 1, 1, end
print("  p     G   E[g] over ∇p: GRPO   Dr. GRPO   cosine with 1/|y|")
for R in (ODD, ELEVEN):
    p, grad_p = (probs @ R).item(), jacobian(lambda theta, R=R: log_probs(theta).exp() @ R, theta)
    for G in (2, 4, 6):
        claims = {dr_grpo: 1 - 1 / G, grpo: float(identity.expected_sigma(p, G)) / (p * (1 - p))}
        for script, weight in claims.items():
            chance, push = every_group(script, G, R)
            assert (chance @ push @ scores - weight * grad_p).norm() < 1e-12 * grad_p.norm()  # direction and length
        by_length = chance @ push @ (scores / torch.tensor([len(y) for y in COMPLETIONS])[:, None])
        cosine = torch.cosine_similarity(by_length, grad_p, dim=0).item()
        print(f"{p:.3f}   {G}          {claims[grpo]:.4f}          {claims[dr_grpo]:.4f}         {cosine:.3f}")

# %% [markdown]
# *In all six cases $\mathbb E[g]$ is the claimed multiple of ∇p to twelve digits. Divided by |y|, it points elsewhere.*
#
# ## Fidelity: how long is the expected step?
#
# For large groups $\sigma$ tends to $\sqrt{pq}$. The share of this that groups of $G$ reach on average is called **fidelity**,
# $\varphi = \mathbb E[\sigma]/\sqrt{pq}$. The *delta method* approximates it. As a function of the share $x = k/G$ of right completions,
# $\sigma(x) = \sqrt{x(1-x)}$; $x$ has mean $p$ and variance $pq/G$; and $\sigma''(p) = -\frac14 (pq)^{-3/2}$. Taylor's series to second order:
#
# $$\mathbb E[\sigma] \approx \sigma(p) + \tfrac12\,\sigma''(p)\,\frac{pq}{G} \quad\Longrightarrow\quad
# \varphi \approx 1 - \frac{1}{8Gpq} \quad\Longrightarrow\quad G^\star = \frac{1}{8\,(1-\varphi)\,pq}$$
#
# These are the paper's Cor. 1 and 2. The next term (ours) is $-\frac{7-16pq}{128\,(Gpq)^2}$, negative because
# $16pq \le 4$. So for large groups the expansion promises too much at every $p$, not only near 0 and 1 as the paper expects. Its Table
# 2 has 24 numbers: the smallest $G$ that reaches each target, and $G^\star$. We add what $G^\star$ reaches.

# %%
EXACT = {0.5: (7, 11, 51), 0.3: (9, 14, 61), 0.1: (22, 36, 144), 0.05: (42, 69, 273)}  # as published
RULE = {0.5: (5, 10, 50), 0.3: (6, 12, 60), 0.1: (14, 28, 139), 0.05: (26, 53, 263)}
print(" p     target   exact G    G*   fidelity at G*")
for p in EXACT:
    assert (np.diff([identity.fidelity(p, G) for G in range(2, 300)]) > 0).all()  # once reached, a target stays reached
    for target, exact, rule in zip((0.9, 0.95, 0.99), EXACT[p], RULE[p]):
        assert identity.group_size_exact(p, target) == exact
        assert round(float(identity.group_size_law(p, 1 - target))) == rule
        reached = float(identity.fidelity(p, rule))
        assert reached < target and rule < exact
        print(f"{p:<4}     {target:.0%}      {exact:4}    {rule:4}       {reached:.2%}")

outcomes = np.array([[bits >> i & 1 for i in range(8)] for bits in range(2**8)])  # all groups of 8
for p in (0.5, 0.05):
    chance, pq, G = p ** outcomes.sum(axis=1) * (1 - p) ** (8 - outcomes.sum(axis=1)), p * (1 - p), 800
    assert abs(chance @ outcomes.std(axis=1) / np.sqrt(pq) - identity.fidelity(p, 8)) < 1e-12
    next_term = float(identity.fidelity(p, G) - identity.fidelity_expansion(p, G))
    assert abs(next_term / (-(7 - 16 * pq) / (128 * (G * pq) ** 2)) - 1) < 0.05
right = [identity.group_size_exact(p, 0.9) * p for p in (0.05, 0.02, 0.01)]
assert all(2 < number < 2.15 for number in right)

# %% [text]
# *All 24 published numbers are right, and the rule misses its own target in all twelve rows.* So the paper's "$\varphi \ge 1-\varepsilon$ once
# $G \ge G^\star$" (its ε is our $1 - \varphi$) holds to leading order, not as an inequality. Hard prompts fare worst: at $p = .05$,
# {=RULE[0.05][0]} completions reach {=identity.fidelity(0.05, RULE[0.05][0]):.0%}, not 90 %. For hard prompts a simpler rule
# does: 90 % takes {=right[0]:.1f} right completions a group on average at $p = .05$, {=right[2]:.1f} at .01.

# %% [text]
# ## A longer step or a better one?
#
# The paper reads its table as advice: "one uniform group size spends [...] too little on the hard tails". For one prompt that does not follow: at
# G = 8 and $p = .05$ the fidelity is {=identity.fidelity(0.05, 8):.2f}, but the direction is the same, and a larger learning rate makes the step
# longer. *Between* prompts no learning rate helps: this prompt weighs
# {=identity.weight("GRPO", 0.05, 8) / identity.weight("GRPO", 0.5, 8):.2f} times as much as one of $p = .5$, in the limit
# {=identity.weight_limit(0.05) / identity.weight_limit(0.5):.2f} times ([lesson 9](09_objective.ipynb)).
#
# At a fixed number of completions what counts is noise. Let $v_\pm$ be the variance of a right (wrong) completion's score perpendicular to
# $\nabla p$. In a group with $k$ right, the perpendicular part of the contrast has mean 0 and mean square
# $\frac{v_+}{k} + \frac{v_-}{G-k}$. Multiplied by $\sigma^2$ and averaged over $k$:
#
# $$\mathbb E\,\|g_\perp\|^2 = \frac{v_+(q - q^G) + v_-(p - p^G)}{G}$$
#
# Per completion, the squared signal-to-noise ratio is $\|\mathbb E[g]\|^2 / (G\,\mathbb E\|g_\perp\|^2)$; divided by its limit for large $G$, this is
# the **efficiency** of $G$. If $v_+ = v_-$, it is
#
# $$\frac{\varphi^2}{1 - p^G - q^G} \;\le\; 1 - \frac1G$$
#
# by Cauchy and Schwarz: as $\sigma = 0$ in silent groups, $\mathbb E[\sigma]^2 \le \mathbb E[\sigma^2]\,(1 - p^G - q^G)$. Dr. GRPO then has
# $1 - \frac1G$ at every $p$: of $G$ completions, one pays for the baseline.


# %%
def efficiency(p, G, v_ratio=1.0, power=1):
    """Squared signal-to-noise ratio per completion, 1 for G → ∞. v_ratio: v₋/v₊. GRPO: power 1, Dr. GRPO: 2."""
    q, k, chance = 1 - p, np.arange(1, G), identity.binomial(p, G)[..., 1:-1]
    length = identity.sigma(k, G) ** power
    noise = G * ((length**2 * (1 / k + v_ratio / (G - k))) @ chance.T)
    return (chance @ length) ** 2 / noise * (q + v_ratio * p) / (p * q)


for R in (ODD, ELEVEN):  # the formula for the noise against every group of the small policy
    p, grad_p = (probs @ R).item(), (probs * R) @ scores
    across = scores - torch.outer(scores @ grad_p, grad_p) / (grad_p @ grad_p)
    v_right, v_wrong = (((probs * which) @ across.square().sum(dim=1) / (probs @ which)).item() for which in (R, 1 - R))
    for G in (2, 4, 6):
        chance, push = every_group(grpo, G, R)
        claimed = (v_right * (1 - p - (1 - p) ** G) + v_wrong * (p - p**G)) / G
        assert abs((chance @ (push @ across).square().sum(dim=1)).item() / claimed - 1) < 1e-10
print("v₋/v₊    p    efficiency of G = 2, 4, 8, 16, 32, 64")
for v_ratio, p in ((1, 0.5), (1, 0.05), (10, 0.05), (10, 0.95)):
    print(f"{v_ratio:4}   {p:.2f}  ", *(f"{efficiency(p, 2**i, v_ratio):.2f}" for i in range(1, 7)), sep="  ")
lowest = min(efficiency(p, 8) for p in np.linspace(0.001, 0.999, 999))
for p, G in ((0.05, 8), (0.3, 3)):
    closed = float(identity.fidelity(p, G)) ** 2 / (1 - float(identity.silent_rate(p, G)))
    assert abs(efficiency(p, G) - closed) < 1e-12 and abs(efficiency(p, G, power=2) - (1 - 1 / G)) < 1e-12

# %% [text]
# If right and wrong scores vary equally, G = 8 has at least {=lowest:.0%} of the efficiency of large groups *at every difficulty*,
# {=efficiency(0.05, 8):.2f} at $p = .05$. Where the more common kind of completion varies more, small groups cost more:
# {=", ".join("%.2f" % efficiency(0.05, 8, ratio) for ratio in (4.1, 5.9, 46.2))} at $v_-/v_+ = 4.1, 5.9, 46.2$, the ratios
# of [lesson 6](06_identity.ipynb)'s prompts. Where the rarer kind does, they cost less, and efficiency may even fall with $G$.
#
# ## Move p, the target and G
#
# Left, fidelity with the exact group size and the rule's; right, efficiency at an equal number of completions. The dots are your G. (Needs
# the cells above.)

# %%
every_p, SIZES = np.arange(1, 20) / 20, range(2, 301)
fidelities = np.array([identity.fidelity(every_p, G) for G in SIZES])  # (299, 19)
efficiencies = {
    (v_ratio, power): np.array([efficiency(every_p, G, v_ratio, power) for G in SIZES])
    for v_ratio in (1, 3, 10)
    for power in (1, 2)
}


def draw(p, target, G, v_ratio):
    at = round(20 * p) - 1
    curves = [efficiencies[v_ratio, power][:, at] for power in (1, 2)]
    return length_and_efficiency(p, target / 100, G, v_ratio, fidelities[:, at], *curves)


knob(draw, p=(0.05, 0.95, 0.05, 0.05), target=[90, 95, 99], G=(2, 128, 1, 8), v_ratio=[1, 3, 10])

# %% [markdown]
# *At p = .05 groups of 8 have half the length of a large group's step, and most of its efficiency only if v₋/v₊ is near 1.*
#
# Efficiency is about one step on one prompt. At a fixed budget larger groups also mean *fewer different prompts*. Training itself:
# 15,360 completions in batches of 256, six seeds; held-out accuracy, and points against groups of 8.

# %%
results = compare_tables.load()["group_size"]
print("              GRPO                against G = 8          Dr. GRPO            against G = 8")
for G in (2, 4, 8, 16, 32, 64):
    line = f"G = {G:2}"
    for script in ("GRPO", "Dr. GRPO"):
        accuracy = compare_tables.cell(results["arms"][f"{script}, G = {G}"]["at_budget"])
        pair = f"{script}, G = {G}", f"{script}, G = 8"
        line += f"   {accuracy}   {compare_tables.change(compare_tables.find(results, *pair)) if G != 8 else '':20}"
    print(line.rstrip())
seen = [c["arm"] for c in results["comparisons"] if c["number"] == "at_budget" and c["p_holm"] < 0.05]
assert seen == ["GRPO, G = 64", "Dr. GRPO, G = 2", "Dr. GRPO, G = 64"]
lost = {
    arm: -100 * compare_tables.find(results, arm, "GRPO, G = 8")["difference"]
    for arm in ("GRPO, G = 2", "GRPO, G = 64")
}

# %% [text]
# *Brackets: 95 % intervals; differences are paired by seed. Between stars: p < .05 after correction for all comparisons.* From 4 to 32 no
# difference survives it. Groups of 64 leave four prompts in a batch, and lose {=lost["GRPO, G = 64"]:.1f} points; GRPO's
# {=lost["GRPO, G = 2"]:.1f} at G = 2 does not survive the correction, Dr. GRPO's loss there does. (One task, one small model, one learning rate.
# The abstract of arXiv:2510.00977 reports about 98 % of the performance of groups of 16 for groups of 2, whose fidelity is at most ½.)
#
# ## Exercises
#
# **1. The hardest prompt.** You use groups of $G$. Which is the smallest $p \le \frac12$ at which the exact fidelity reaches `target`? (To three
# digits. You may use `identity.expected_sigma`; fidelity rises with $p$ up to ½.)


# %% [exercise]
def hardest(G, target):
    """The smallest p with E[sigma] / sqrt(pq) >= target."""
    return ...


# %% [check]
check("7.1", hardest)

# %% [hint]
# Halve the interval from 0 to ½ again and again, or try p = .001, .002, … What does the rule give for comparison?


# %% [solution]
def hardest(G, target):
    low, high = 0.0, 0.5
    for _ in range(30):
        p = (low + high) / 2
        reached = identity.expected_sigma(p, G) / np.sqrt(p * (1 - p)) >= target
        low, high = (low, p) if reached else (p, high)
    return high  # at G = 8 and 90 %: .302, where the rule says .194


# %% [wrong] that solves the rule
def hardest(G, target):
    return (1 - np.sqrt(1 - 4 / (8 * G * (1 - target)))) / 2


# %% [wrong] at most
def hardest(G, target):
    return next((p for p in np.arange(0.001, 0.5, 0.001) if identity.expected_sigma(p, G) >= target), 0.5)


# %% [wrong] the largest
def hardest(G, target):
    grid = np.arange(0.001, 1, 0.001)
    return grid[identity.expected_sigma(grid, G) / np.sqrt(grid * (1 - grid)) >= target].max()


# %% [markdown]
# **2. Does ddof 1 mend it?** Let $\sigma_1 = \sigma\sqrt{G/(G-1)}$ be the standard deviation with ddof 1, the default of `torch.std`.
# (a) What is $\mathbb E[\sigma_1]/\sqrt{pq}$, from φ and $G$? (b) Now the advantages are $(R - \bar R)/\sigma_1$: what is the new fidelity, the
# length of $\mathbb E[g]$ relative to its limit for large $G$?


# %% [exercise]
def with_ddof1(phi, G):
    """Both numbers: (a), (b)."""
    return ...


# %% [check]
check("7.2", with_ddof1)

# %% [hint]
# $\sqrt{G/(G-1)}$ does not depend on $k$, so it can be taken out of every expectation: once as a factor, once as a divisor.


# %% [solution]
def with_ddof1(phi, G):
    bessel = np.sqrt(G / (G - 1))
    return phi * bessel, phi / bessel  # p = .5, G = 8: .93 becomes .99 and .87; it mends the estimate, not the update


# %% [wrong] its root is not
def with_ddof1(phi, G):
    return 1, 1


# %% [wrong] divided by a larger number
def with_ddof1(phi, G):
    return phi * np.sqrt(G / (G - 1)), phi * np.sqrt(G / (G - 1))


# %% [wrong] belongs to the variance
def with_ddof1(phi, G):
    return phi * G / (G - 1), phi * (G - 1) / G


# %% [markdown]
# **3. Find the bug.** A run logs the rewards of every group it draws of one prompt, and this function estimates the prompt's fidelity from
# them. For a hard prompt it says 1.6. Repair it.


# %% [exercise]
def logged_fidelity(rewards, p):
    """rewards (groups, G) of one prompt with success probability p: an estimate of E[sigma] / sqrt(pq)."""
    sigma = rewards.std(axis=1)
    sigma = sigma[sigma > 0]  # silent groups have no gradient anyway
    return sigma.mean() / np.sqrt(p * (1 - p))


# %% [check]
check("7.3", logged_fidelity)

# %% [hint]
# Over which groups does the theorem take its expectation?


# %% [solution]
def logged_fidelity(rewards, p):
    return rewards.std(axis=1).mean() / np.sqrt(p * (1 - p))


# %% [wrong] the root of the mean variance
def logged_fidelity(rewards, p):
    return np.sqrt((rewards.std(axis=1) ** 2).mean() / (p * (1 - p)))


# %% [wrong] ddof
def logged_fidelity(rewards, p):
    return rewards.std(axis=1, ddof=1).mean() / np.sqrt(p * (1 - p))


# %% [wrong] that pools all groups
def logged_fidelity(rewards, p):
    return rewards.std() / np.sqrt(p * (1 - p))


# %% [markdown]
# ## To remember
#
# - For any policy, GRPO's expected update for a prompt is $\frac{\mathbb E[\sigma]}{pq}\,\nabla p$ (first step after sampling, no clip, no KL, scores
#   summed over tokens).
# - $G^\star = 1/(8\,(1-\varphi)\,pq)$ is the leading order of the exact group size and too small in all twelve published rows.
# - Fidelity says how long one prompt's expected step is, not how good: at a fixed number of completions what counts is signal-to-noise.
#
# Sources: *GRPO, Dr. GRPO, and DAPO Are Three Operations on One Number*, [arXiv:2607.00152](https://arxiv.org/abs/2607.00152), Prop. 2,
# Cor. 1 and 2, Table 2; weights of any rule: Davis and Recht, [2510.13651](https://arxiv.org/abs/2510.13651); groups
# of two: [2510.00977](https://arxiv.org/abs/2510.00977). The next term and the efficiency are ours.
