# %% [markdown] 35 minutes
# # 7 · Expected gradient, group size, and the best weight
#
# A verifier marks each of a prompt's G completions right or wrong, and a rule turns these marks into advantages. Whatever the rule, the group's
# update is $\alpha_k\,\bar s_+ - \beta_k\,\bar s_-$ ([lesson 6](06_identity.ipynb)). Its expectation is a number times the gradient of $p$:
#
# $$\mathbb E[g] \;=\; w(p)\,\nabla p, \qquad w(p) = \frac{\mathbb E[\alpha_k q + \beta_k p]}{p\,q}$$
#
# So rules differ in two things only: how *long* the expected step of a prompt is, and how *noisy*. For the length there is a published rule of
# group size, too small in every row of the paper's own table. For the noise there is a best weight: **Dr. GRPO (GRPO done right) has it if
# right and wrong scores are equally noisy, MaxRL (maximum likelihood RL) if wrong ones are far noisier, and GRPO (group relative policy
# optimization) is never far from it.**
#
# | symbol | meaning |
# |---|---|
# | $G,\ k$ | completions in a group, all of one prompt; how many of them are right |
# | $p,\ q$ | the probability that a completion is right; $q = 1 - p$ |
# | $\sigma$ | the standard deviation of the group's rewards, $\sqrt{k(G-k)}/G$; *silent*: $\sigma = 0$, otherwise *mixed* |
# | $s_i$ | the score of completion $i$: $\nabla_\theta \log \pi_\theta(y_i)$, summed over its tokens |
# | $\bar s_\pm$ | the mean score of a group's right (+) or wrong (−) completions |
# | $m_\pm,\ v_\pm$ | expectation of the score of one right or wrong completion; its variance *across* $\nabla p$, summed over all orthogonal directions |
# | $g$ | the update of one group, $\frac1G \sum_i A_i s_i$ with the advantages $A_i$ |

# %% [markdown]
# ## Proof
#
# **Step 1: fix k.** All right completions of a group share one advantage, and all wrong ones another. With $\alpha_k = \frac kG A_+$ and
# $\beta_k = -\frac{G-k}G A_-$ the update is $\alpha_k\bar s_+ - \beta_k\bar s_-$, and its mean is $\alpha_k m_+ - \beta_k m_-$.
#
# **Step 2: the two means.** A score has mean 0, and $\mathbb E[R\,s] = \nabla p$ ([lesson 1](01_score_function.ipynb)). Split both by the
# reward: $p\,m_+ + q\,m_- = 0$ and $p\,m_+ = \nabla p$. So $m_+ = \nabla p/p$ and $m_- = -\nabla p/q$, opposite directions on one line, and
# $\mathbb E[g \mid k] = (\alpha_k q + \beta_k p)\,\frac{\nabla p}{pq}$: **any pair of coefficients points the right way**.
#
# **Step 3: average over k**, which is binomial. ∎
#
# | rule | $\alpha_k$ | $\beta_k$ | $w(p)$ |
# |---|---|---|---|
# | no baseline (REINFORCE) | $k/G$ | 0 | 1 |
# | GRPO | $\sigma$ | $\sigma$ | $\mathbb E[\sigma]/(pq)$ |
# | Dr. GRPO | $\sigma^2$ | $\sigma^2$ | $1 - 1/G$ |
# | MaxRL, 0 at $k = 0$ | $(G-k)/G$ | $(G-k)/G$ | $(1 - q^{G-1})/p$ |
#
# It needs completions sampled from the policy itself, rewards of 0 and 1, no clip, no KL (Kullback–Leibler) penalty, and scores
# summed over tokens: the mean of $s/|y|$ is not 0.
#
# **The noise.** $g_\perp$ is the part of $g$ across $\nabla p$. There $m_\pm$ has no part, and a mean of $k$ scores has the variance $v_+/k$:
#
# $$\mathbb E\,\|g_\perp\|^2 = \mathbb E\Big[\alpha_k^2\,\frac{v_+}k + \beta_k^2\,\frac{v_-}{G-k}\Big]$$

# %% [markdown]
# ## Every group of a small policy
#
# A network with 36 parameters writes up to three tokens: 0, 1 or the end. The advantages come from the scripts, $\nabla p$ from autograd alone.

# %% [fold]
import math
from itertools import combinations_with_replacement, product

import numpy as np
import torch
from torch.autograd.functional import jacobian

from algorithms import dr_grpo, grpo, maxrl, reinforce
from lessons import identity
from lessons.experiments import baselines, baselines_tables, grid
from lessons.workshop.kit import check, knob, say
from lessons.workshop.parts.lesson_07 import length_and_efficiency

END = 2
COMPLETIONS = [(END,), (0, END), (1, END), *product((0, 1), (0, 1), (0, 1, END))]
theta = torch.randn(36, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def log_probs(theta):
    """log π of each completion, (15,). The network sees the position and the token before."""
    position, before = theta[:24].view(2, 3, 4)
    hidden = torch.tanh(position[:, None] + before)  # (position, token before, 4)
    logp = (hidden @ theta[24:].view(4, 3)).log_softmax(dim=-1)  # (position, before, token)
    return torch.stack(
        [sum(logp[t, (END, *y)[t], y[t]] for t in range(len(y))) for y in COMPLETIONS])


# %%
def every_group(script, G, R):
    """All groups of G, unordered: their probabilities (n,); coefficients of scores (n, 15)."""
    groups = torch.tensor(list(combinations_with_replacement(range(15), G)))
    counts = torch.nn.functional.one_hot(groups, 15).sum(dim=1)  # (n, 15)
    factorials = torch.tensor([math.factorial(i) for i in range(G + 1)]).double()
    ways = math.factorial(G) / factorials[counts].prod(dim=1)
    A = script.compute_advantages(rewards=R[groups])  # (n, G)
    coefficients = torch.zeros(counts.shape).double().scatter_add(1, groups, A / G)
    return ways * (probs**counts).prod(dim=1), coefficients


def factor_and_noise(script, G, R):
    """The factor in E[g] = factor · ∇p; E|g|² across ∇p, found and from v₊ and v₋; the cosine
    of E[g] with ∇p after ÷ |y|."""
    p, grad_p = probs @ R, jacobian(lambda theta: log_probs(theta).exp() @ R, theta)
    along = scores @ grad_p / (grad_p @ grad_p)  # (15,)
    across = scores - torch.outer(along, grad_p)
    v = [(probs * of) @ across.square().sum(dim=1) / (probs @ of) for of in (R, 1 - R)]
    chance, push = every_group(script, G, R)
    mean = chance @ push  # (15,)
    assert (mean @ across).norm() < 1e-12 * grad_p.norm()  # E[g] points along ∇p
    cosine = torch.cosine_similarity(mean @ (scores / lengths), grad_p, dim=0)
    noise = chance @ (push @ across).square().sum(dim=1)
    numbers = p, mean @ along, noise, identity.noise(NAMES[script], p, G, *v), cosine
    return [float(x) for x in numbers]


# %%
NAMES = {reinforce: "REINFORCE", grpo: "GRPO", dr_grpo: "Dr. GRPO", maxrl: "MaxRL"}
probs, scores = log_probs(theta).exp(), jacobian(log_probs, theta)  # (15,), (15, 36)
lengths = torch.tensor([len(y) for y in COMPLETIONS])[:, None]
ODD = torch.tensor([y.count(1) % 2 for y in COMPLETIONS]).double()  # an odd number of 1s
ELEVEN = torch.tensor([y == (1, 1, END) for y in COMPLETIONS]).double()
names = "  ".join(f"{name:9}" for name in NAMES.values())
print(f"  p     G   E[g] over ∇p:  {names}  GRPO's cosine with 1/|y|")
for R in (ODD, ELEVEN):
    for G in (2, 4, 6):
        measured = {name: factor_and_noise(script, G, R) for script, name in NAMES.items()}
        for name, (p, factor, noise, claimed, _) in measured.items():
            expected = [identity.weight(name, p, G), claimed]
            assert np.allclose([factor, noise], expected, rtol=1e-10, atol=1e-12)
        factors = "  ".join(f"{row[1]:<9.4f}" for row in measured.values())
        p, *_, cosine = measured["GRPO"]
        print(f"{p:.3f}   {G}                  {factors}  {cosine:.3f}")

# %% [markdown]
# *In all 24 cases $\mathbb E[g]$ is the claimed multiple of ∇p, and the noise is the formula's. Divided by |y|, it points elsewhere.*
#
# ## How long is the expected step?
#
# For large groups GRPO's $\sigma$ tends to $\sqrt{pq}$. The share of this that groups of $G$ reach on average is its **fidelity**,
# $\varphi = \mathbb E[\sigma]/\sqrt{pq}$. Taylor's series of $\sigma = \sqrt{x(1-x)}$ around $x = p$, where $x = k/G$ has the variance $pq/G$:
#
# $$\varphi \approx 1 - \frac{1}{8Gpq} \quad\Longrightarrow\quad G^\star = \frac{1}{8\,(1-\varphi)\,pq}$$
#
# These are Cor. 1 and 2 of arXiv:2607.00152. The next term (ours), $-\frac{7-16pq}{128\,(Gpq)^2}$, is negative: the expansion promises too much
# at every $p$. The paper's Table 2 has the smallest $G$ that reaches each target, and $G^\star$. We add what $G^\star$ reaches.

# %% [fold]
# As published:
EXACT = {0.5: (7, 11, 51), 0.3: (9, 14, 61), 0.1: (22, 36, 144), 0.05: (42, 69, 273)}
RULE = {0.5: (5, 10, 50), 0.3: (6, 12, 60), 0.1: (14, 28, 139), 0.05: (26, 53, 263)}
print(" p     target   exact G    G*   fidelity at G*")
for p in EXACT:
    rising = np.diff([identity.fidelity(p, G) for G in range(2, 300)]) > 0
    assert rising.all()  # once reached, a target stays reached
    for target, exact, rule in zip((0.9, 0.95, 0.99), EXACT[p], RULE[p]):
        assert identity.group_size_exact(p, target) == exact
        assert round(float(identity.group_size_law(p, 1 - target))) == rule
        reached = float(identity.fidelity(p, rule))
        assert reached < target and rule < exact
        print(f"{p:<4}     {target:.0%}      {exact:4}    {rule:4}       {reached:.2%}")


p, G = 0.05, 800
next_term = float(identity.fidelity(p, G) - identity.fidelity_expansion(p, G))
assert abs(next_term / (-(7 - 16 * p * (1 - p)) / (128 * (G * p * (1 - p)) ** 2)) - 1) < 0.05
right = [identity.group_size_exact(p, 0.9) * p for p in (0.05, 0.02, 0.01)]
assert all(2 < number < 2.15 for number in right)

# %% [text]
# *All 24 published numbers are right, and the rule misses its own target in all twelve rows*: "$\varphi \ge 1-\varepsilon$ once
# $G \ge G^\star$" holds to leading order, not as an inequality. For hard prompts a simpler rule does: for 90 % a group
# needs {=right[0]:.1f} right completions on average at $p = .05$, {=right[2]:.1f} at .01. But a short step is not a bad one: a larger learning rate makes
# it longer.
#
# ## The best weight
#
# What counts is noise, at a fixed number of completions. Take $\alpha_k = \beta_k = c(k)$, any function of $k$ times the contrast
# $\bar s_+ - \bar s_-$, whose noise is $n_k = \frac{v_+}k + \frac{v_-}{G-k}$. Over mixed groups Cauchy and Schwarz say
#
# $$\frac{\mathbb E[c]^2}{\mathbb E[c^2\,n]} \;\le\; \mathbb E\Big[\frac1n\Big], \qquad
# \text{with equality for}\quad c(k) \propto \frac1{v_+/k + v_-/(G-k)}$$
#
# at every $p$. This is weighting by the inverse variance. Three special cases:
#
# - $v_- = v_+$: $c \propto k\,(G-k)$, which is $\sigma^2$: **Dr. GRPO**;
# - $v_- \gg v_+$, wrong completions are the noisy ones: $c \propto G - k$, **MaxRL**, which relies on groups with few right ones;
# - $v_+ \gg v_-$: $c \propto k$, its mirror image.
#
# **Efficiency** is $\mathbb E[c]^2/\mathbb E[c^2 n]$ per completion, divided by its limit for large $G$, which all these rules share:

# %% [fold]
WEIGHTS = {
    "GRPO": identity.sigma,
    "Dr. GRPO": lambda k, G: identity.sigma(k, G) ** 2,
    "MaxRL": lambda k, G: (G - k) / G,
    "mirror image": lambda k, G: k / G,
}


def efficiencies(p, G, v_ratio):
    """Of the four weights, of the best one, and of no baseline. v_ratio: v₋/v₊."""
    rules = {name: identity.contrast(weight) for name, weight in WEIGHTS.items()}
    rules["the best"] = identity.contrast(identity.quietest(v_ratio))
    rules["no baseline"] = "REINFORCE"
    return {name: identity.efficiency(rule, p, G, v_ratio) for name, rule in rules.items()}


# %% [fold]
table = {(r, p): efficiencies(p, 8, r) for r in (0.1, 1, 10) for p in (0.1, 0.5, 0.9)}
print("G = 8   v₋/v₊    p    " + "   ".join(table[1, 0.5]))
for (v_ratio, p), efficiency in table.items():
    assert all(efficiency[name] <= efficiency["the best"] + 1e-12 for name in WEIGHTS)
    cells = [f"{float(e):<{len(name) + 3}.2f}" for name, e in efficiency.items()]
    print(f"{v_ratio:13}   {p:.1f}    " + "".join(cells).rstrip())
all_p, ratios = np.linspace(0.001, 0.999, 999), 10.0 ** np.arange(-3, 3.1, 0.25)
everywhere = [efficiencies(all_p, 8, r) for r in ratios]
worst = {name: min((e[name] / e["the best"]).min() for e in everywhere) for name in WEIGHTS}
assert np.isclose(worst["MaxRL"], worst["mirror image"])
alike = efficiencies(0.05, 8, 1)  # v₋ = v₊
mixed = 1 - float(identity.silent_rate(0.05, 8))
assert abs(alike["GRPO"] - float(identity.fidelity(0.05, 8)) ** 2 / mixed) < 1e-12
assert abs(alike["Dr. GRPO"] - 7 / 8) < 1e-12

# %% [text]
# With $v_- = v_+$ Dr. GRPO has $1 - \frac1G$ at every $p$: of $G$ completions, one pays for the baseline. **σ or σ² matters
# little:** over all $p$ and all $v_-/v_+$ from .001 to 1,000, GRPO has at least {=math.floor(100 * worst["GRPO"])} % of the best weight's efficiency at G = 8, Dr. GRPO
# {=math.floor(100 * worst["Dr. GRPO"])} %, MaxRL and its mirror image {=math.floor(100 * worst["MaxRL"])} %. The rarer kind matters more: where it is the noisy one
# ($v_-/v_+ = 10$, $p = .9$) groups of 8 are nearly as efficient as large ones; where it is the quiet one ($p = .1$) they lose a third.
#
# The *common* weight is a choice, too. Without a baseline $\beta_k = 0$: wrong completions are ignored, and their noise with them. At
# $v_-/v_+ = 10$ and $p = .5$ that is {=table[10, 0.5]["no baseline"]:.1f} times as efficient as large groups, at $v_-/v_+ = .1$ only
# {=table[0.1, 0.5]["no baseline"]:.2f} times. (Given $k$, the best pair is $\alpha : \beta = \frac{q\,k}{v_+} : \frac{p\,(G-k)}{v_-}$.)
# [Lesson 13](13_quiet_estimators.ipynb) measures $v_-/v_+$ in a language model, summed over all parameters.
#
# ## Move p, v₋/v₊ and G
#
# The dots are your G. On the left, fidelity, with the exact group size for 90 % and the rule's. (Needs the cells above.)

# %% [fold]
every_p, SIZES, RATIOS = np.arange(1, 20) / 20, range(2, 129), [1, 0.1, 0.3, 3, 10]
fidelities = np.array([identity.fidelity(every_p, G) for G in SIZES])  # (127, 19)
curves = {r: [efficiencies(every_p, G, r) for G in SIZES] for r in RATIOS}


def draw(p, v_ratio, G):
    at = round(20 * p) - 1
    names = (*WEIGHTS, "the best")
    lines = {name: np.array([e[name][at] for e in curves[v_ratio]]) for name in names}
    return length_and_efficiency(p, 0.9, G, v_ratio, fidelities[:, at], lines)


knob(draw, p=(0.05, 0.95, 0.05, 0.05), v_ratio=RATIOS, G=(2, 128, 1, 8))

# %% [markdown]
# *At p = .05 groups of 8 have half the length of a large group's step, and most of its efficiency only if v₋/v₊ is not far above 1.*
#
# For a $p$ or a list of solve rates of your own, `python lessons/identity.py --help`. Prompts of which a twentieth is solved, in groups of 8:

# %%
print(identity.describe(np.array([0.05]), 8))

# %% [markdown]
# Larger groups also mean *fewer different prompts* at a fixed budget. Dr. GRPO without KL, in batches of 256 completions, five seeds:
# held-out accuracy after so many completions, the best in italics.

# %%
sizes = baselines_tables.budgets(grid.load_runs(baselines.RESULTS))
say(baselines_tables.budgets_table(sizes))
late = {G: of_size[-1]["mean"] for G, of_size in sizes.items()}
assert late[2] == max(late.values()) and late[64] < late[32] < late[16] < min(late[4], late[8])

# %% [text]
# *Brackets: 95 % intervals.* Groups of 4 or 8 are the best at first, of 2 at the end, {=100 * (late[2] - late[8]):.1f} points ahead of 8, a lead that
# five seeds do not establish; groups of 64 leave four prompts in a batch, and end {=100 * (late[2] - late[64]):.1f} points below. (One task, one small model, one learning rate. In
# [2510.00977](https://arxiv.org/abs/2510.00977) groups of two nearly match 16.)
#
# ## Exercises
#
# **1. The best weight.** One group of $G$ has $k$ right completions, for $k = 1, \dots, G-1$. Write the weights $c(1), \dots, c(G-1)$ of the contrast
# with the best efficiency, scaled so that the largest is 1. Derive them from Cauchy and Schwarz before you look up.


# %% [exercise]
def best_weights(G, v_right, v_wrong):
    """(G - 1,): c(k) for k = 1..G-1, the largest 1."""
    return ...


# %% [check]
check("7.1", best_weights)

# %% [hint]
# Write E[c] as E[c√n · 1/√n]. When is the inequality of Cauchy and Schwarz an equality?


# %% [solution]
def best_weights(G, v_right, v_wrong):
    k = np.arange(1, G)
    c = 1 / (v_right / k + v_wrong / (G - k))
    return c / c.max()


# %% [markdown]
# **2. Find the bug.** A run logs the rewards of every group it draws of one prompt, and this function estimates the prompt's fidelity from
# them. For a hard prompt it says 1.6. Repair it.


# %% [exercise]
def logged_fidelity(rewards, p):
    """rewards (groups, G) of one prompt with success probability p: an estimate of
    E[sigma] / sqrt(pq)."""
    sigma = rewards.std(axis=1)
    sigma = sigma[sigma > 0]  # silent groups have no gradient anyway
    return sigma.mean() / np.sqrt(p * (1 - p))


# %% [check]
check("7.2", logged_fidelity)

# %% [hint]
# Over which groups does the theorem take its expectation?


# %% [solution]
def logged_fidelity(rewards, p):
    return rewards.std(axis=1).mean() / np.sqrt(p * (1 - p))


# %% [markdown]
# ## To remember
#
# - Any rule of advantages has the expected update $w(p)\,\nabla p$ for 0–1 rewards; rules differ in its length and its noise.
# - $G^\star$ is the leading order of the exact group size, and too small in all twelve published rows.
# - The least noisy weight of the contrast is $1/(v_+/k + v_-/(G-k))$: Dr. GRPO's if right and wrong scores vary equally, MaxRL's if wrong ones
#   vary far more. Between σ and σ² the difference is small.
#
# Sources: *GRPO, Dr. GRPO, and DAPO Are Three Operations on One Number*, [arXiv:2607.00152](https://arxiv.org/abs/2607.00152), Prop. 2 (for a
# prompt with a single parameter), Cor. 1 and 2, Table 2; weights of any rule: Davis and Recht, [2510.13651](https://arxiv.org/abs/2510.13651); MaxRL:
# [2602.02710](https://arxiv.org/abs/2602.02710). The next term and the best weight are ours.
