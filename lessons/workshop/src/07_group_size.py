# %% [markdown] 30 minutes, without the second reading
# # 7 · Expected gradient and the best weight
#
# A verifier marks each completion of a prompt right or wrong. A rule, such as GRPO (group relative policy optimization), turns the marks of a
# group into advantages, and these move the policy.
#
# > **If a rule gives all right completions of a group one advantage and all wrong ones another, its expected update is a multiple of $\nabla p$,
# > the gradient of the probability $p$ of a right completion. Rules differ in the factor.**
# >
# > This holds for the first update after sampling, with scores summed over tokens and no KL (Kullback–Leibler) penalty. It is proved here, and
# > checked on every possible group of a network with 15 completions. Noise, in which rules differ too, is the second reading.
#
# [Lesson 3](03_group_baseline.ipynb) found such factors from the other completions of a group, one completion at a time. Here the group is taken as a
# whole, as in [lesson 6](06_identity.ipynb), and the factor of a new rule becomes a line of algebra.
#
# ## The smallest case
#
# A policy has three completions and a logit for each. A is right and has probability ½; B and C are wrong and have ¼ each. A completion's
# **score** $s$ is the gradient of its log-probability: 1 at its own logit, less the three probabilities. So $s_A = (½, -¼, -¼)$, and
# $\nabla p = p\,s_A = (¼, -⅛, -⅛)$.
#
# Draw groups of two. An update $g$ is the mean of advantage times score. A mixed group has the advantages ½ and −½ under Dr. GRPO ("GRPO done
# right"), 1 and −1 under GRPO; the other groups have none.
#
# | group | probability | Dr. GRPO's $g$ | GRPO's $g$ |
# |---|---|---|---|
# | A and B | ¼ | $¼(s_A - s_B) = (¼, -¼, 0)$ | $(½, -½, 0)$ |
# | A and C | ¼ | $¼(s_A - s_C) = (¼, 0, -¼)$ | $(½, 0, -½)$ |
# | mean of all groups | | $(⅛, -\frac1{16}, -\frac1{16}) = ½\,\nabla p$ | $(¼, -⅛, -⅛) = \nabla p$ |
#
# No mixed group moves exactly along $\nabla p$. The mean does, and the factor is ½ or 1. In larger groups it can change with $p$. A third
# rule, MaxRL (maximum likelihood reinforcement learning), divides Dr. GRPO's advantages by the mean mark of the group:

# %% [fold]
import math
from itertools import combinations_with_replacement, product

import numpy as np
import torch
from torch.autograd.functional import jacobian

from algorithms import dr_grpo, grpo, maxrl, reinforce
from lessons import identity
from lessons.experiments import baselines, baselines_tables, grid
from lessons.workshop.kit import check, show
from lessons.workshop.parts.lesson_07 import over_p, up_to_a_factor

RULES = ("GRPO", "Dr. GRPO", "MaxRL")


def completions_needed(p, G, v_ratio):
    """Of each rule, over those of the best weight of the contrast. v_ratio: v₋/v₊."""
    best = identity.efficiency(identity.contrast(identity.quietest(v_ratio)), p, G, v_ratio)
    return {name: best / identity.efficiency(name, p, G, v_ratio) for name in RULES}


ps = np.linspace(0.01, 0.99, 99)
factors = {name: identity.weight(name, ps, 8) for name in RULES}
show(over_p({"Expected update, in units of ∇p": factors}, highest=9))
hard = {name: factor[4] for name, factor in factors.items()}  # p = .05
assert np.isclose(ps[4], 0.05) and hard["MaxRL"] == max(hard.values())
# An identity between two formulas of this library:
same = identity.fidelity(ps, 8) ** 2 / (1 - identity.silent_rate(ps, 8))
assert np.allclose(identity.efficiency("GRPO", ps, 8), same)
# The smallest case, by the scripts:
chances, apart = np.array([1 / 4, 1 / 4]), np.array([[1, -1, 0], [1, 0, -1]])
for script, of_gradient in ((dr_grpo, 1 / 2), (grpo, 1)):
    advantage = float(script.compute_advantages(rewards=torch.tensor([[1.0, 0]]))[0, 0])
    mean_update = chances @ (advantage / 2 * apart)
    assert np.allclose(mean_update, of_gradient * np.array([1 / 4, -1 / 8, -1 / 8]))

# %% [text]
# *The factor of $\nabla p$ in groups of eight.* For one prompt the learning rate makes up for it; over many prompts it weighs the easy ones
# against the hard ones ([lesson 9](09_objective.ipynb)).

# %% [markdown]
# ## The proof
#
# Why along $\nabla p$, although no single group points there? Because the mean score of a right completion does, and that of a wrong one
# points the opposite way.
#
# Let $k$ of the $G$ completions of a group be right, and $q = 1 - p$. A rule gives one advantage, $A_+$, to all right completions of a group and
# one, $A_-$, to all wrong ones. With the mean scores $\bar s_+$ and $\bar s_-$ of the two kinds (0 where there are none) the update is
#
# $$g = \alpha_k\,\bar s_+ - \beta_k\,\bar s_-, \qquad \alpha_k = \frac{k A_+}{G}, \qquad \beta_k = -\frac{(G-k) A_-}{G}$$
#
# GRPO, for example, with one of four right has $A_+ = 1.73$ and $A_- = -.58$: $\alpha_1 = 1.73/4 = .43$ and $\beta_1 = 3 \cdot .58/4 = .43$.
#
# **Step 1: the two mean scores lie on one line.** A score has mean 0, and $\mathbb E[R\,s] = \nabla p$ with the mark $R$, 1 or 0
# ([lesson 1](01_score_function.ipynb)). Let $m_\pm$ be the expected scores of a right and of a wrong completion. Split $\mathbb E[s] = 0$ and $\mathbb E[R\,s] = \nabla p$ by the mark:
# $p\,m_+ + q\,m_- = 0$ and $p\,m_+ = \nabla p$. So $m_+ = \nabla p/p$ and $m_- = -\nabla p/q$.
#
# **Step 2: put them in.** At a fixed $k$ the mean update is $\alpha_k m_+ - \beta_k m_- = (\alpha_k q + \beta_k p)\,\nabla p/(pq)$.
#
# **Step 3: average over k**, which is binomial:
#
# $$\mathbb E[g] \;=\; w(p)\,\nabla p, \qquad w(p) = \frac{\mathbb E[\alpha_k q + \beta_k p]}{p\,q} \qquad ∎$$
#
# | rule | $\alpha_k$ | $\beta_k$ | $w(p)$ |
# |---|---|---|---|
# | REINFORCE: the advantage is the mark | $k/G$ | 0 | 1 |
# | GRPO | $\sigma = \sqrt{k(G-k)}/G$ | $\sigma$ | $\mathbb E[\sigma]/(pq)$ |
# | Dr. GRPO | $\sigma^2$ | $\sigma^2$ | $1 - 1/G$ |
# | MaxRL, 0 at $k = 0$ | $(G-k)/G$ | $(G-k)/G$ | $(1 - q^{G-1})/p$ |
#
# **1. A rule of your own.** All completions of a group, right and wrong, get the advantage 1 if at least one of them is right, and 0 otherwise.
# What is $w(p)$?


# %% [exercise]
def step(p, G):
    """w(p) of this rule."""
    return ...


# %% [check]
check("7.1", step)

# %% [hint]
# For $k > 0$, $\alpha_k = k/G$ and $\beta_k = -(G-k)/G$. Simplify $\alpha_k q + \beta_k p$. Its mean over *all* $k$ would be 0; which $k$ is missing?


# %% [solution]
def step(p, G):
    # alpha q + beta p = k/G - p, without k = 0. The mean over all k is 0; k = 0 has -p q^G.
    # So the mean without it is p q^G, and w = q^(G-1). This is the slope of Pass@G, divided
    # by G: the rule climbs the probability that at least one of G completions is right.
    return (1 - p) ** (G - 1)


# %% [markdown]
# ## The check
#
# Does the formula hold in a network, whose parameters are shared? Ours writes up to three tokens; we go through every possible group, under the four
# rules of the table. Then we break a condition: scores divided by lengths are outside the proof, and the mean leaves $\nabla p$'s direction.

# %% [fold]
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


NAMES = {reinforce: "REINFORCE", grpo: "GRPO", dr_grpo: "Dr. GRPO", maxrl: "MaxRL"}
probs, scores = log_probs(theta).exp(), jacobian(log_probs, theta)  # (15,), (15, 36)
lengths = torch.tensor([len(y) for y in COMPLETIONS])[:, None]
ODD = torch.tensor([y.count(1) % 2 for y in COMPLETIONS]).double()  # an odd number of 1s
ELEVEN = torch.tensor([y == (1, 1, END) for y in COMPLETIONS]).double()
found, cosines = 0, []  # the cosines: of a rule outside the claim
for R in (ODD, ELEVEN):
    for G in (2, 4, 6):
        measured = {name: factor_and_noise(script, G, R) for script, name in NAMES.items()}
        for name, (p, factor, noise, claimed, _) in measured.items():
            expected = [identity.weight(name, p, G), claimed]
            found += np.allclose([factor, noise], expected, rtol=1e-10, atol=1e-12)
        cosines.append(measured["GRPO"][-1])
print("4 rules, G = 2, 4 and 6, two verifiers: E[g] is w(p) times ∇p in", found, "of 24 cases")
print("GRPO, scores divided by lengths: cosine of E[g] and ∇p",
      f"{min(cosines):.3f} to {max(cosines):.3f}")
assert found == 24 and max(cosines) < 0.999

# %% [markdown]
# ## To remember
#
# - With one advantage for right completions and one for wrong ones, the expected update of a prompt is $w(p)\,\nabla p$.
# - $w(p)$ is a learning rate for one prompt, and a choice between prompts for many.
#
# ## For a second reading (25 minutes): the quietest weight, and which group size?
#
# The learning rate makes up for the factor, not for noise. We count noise across $\nabla p$, which changes where a step goes. In GRPO, Dr. GRPO and
# MaxRL $\alpha_k = \beta_k$: each is a weight $c(k)$ times the **contrast** $\bar s_+ - \bar s_-$. If a right and a wrong score have the
# variances $v_+$ and $v_-$ across $\nabla p$, the contrast has $n_k = \frac{v_+}k + \frac{v_-}{G-k}$.
#
# The mean of $N$ groups has $1/N$ of the variance. So the completions needed until the noise is as small as the step are in proportion to
# $\mathbb E[c^2\,n]\,/\,\mathbb E[c]^2$.
#
# **2. The best weight.** Say $k = 1$ and $k = 2$ occur equally often, with $n_1 = 1$ and $n_2 = 3$. Which $c(1) : c(2)$ makes the quotient
# smallest? Then for all $k$: which $c(k)$ does?


# %% [exercise]
def best_weight(k, G, v_right, v_wrong):
    """c(k) of a mixed group, up to a factor that does not depend on k."""
    return ...


# %% [check]
check("7.2", up_to_a_factor(best_weight))

# %% [hint]
# Hold the sum $c(1) + c(2)$ fixed: the derivative of the noise is 0 where $c(1)\,n_1 = c(2)\,n_2$. With more values of $k$ you can shift weight
# between any two of them. How often a value of $k$ occurs cancels: it multiplies both $\mathbb E[c]$ and $\mathbb E[c^2n]$.


# %% [solution]
def best_weight(k, G, v_right, v_wrong):
    # On paper 3 : 1. In general c(k) n_k is the same for all k: c is a multiple of 1/n.
    # (Or by Cauchy and Schwarz: E[c]^2 = E[c sqrt(n) · 1/sqrt(n)]^2 <= E[c^2 n] E[1/n].)
    # Equally noisy scores: a multiple of k (G - k), which is Dr. GRPO's. If wrong ones are far
    # noisier, it tends to a multiple of G - k: MaxRL's.
    return 1 / (v_right / k + v_wrong / (G - k))


# %% [markdown]
# How far are the rules from the best weight?

# %% [fold]
panels = {f"$v_-/v_+$ = {r:g}": completions_needed(ps, 8, r) for r in (0.1, 1, 10)}
show(over_p(panels, 2.5, "completions needed"))
all_p, ratios = np.linspace(0.001, 0.999, 999), 10.0 ** np.arange(-3, 3.1, 0.25)
everywhere = [completions_needed(all_p, 8, r) for r in ratios]
worst = {name: max(e[name].max() for e in everywhere) for name in RULES}
worst = {name: math.ceil(100 * x) / 100 for name, x in worst.items()}  # an upper bound
assert min(e[name].min() for e in everywhere for name in RULES) > 1 - 1e-12
assert worst["GRPO"] <= 1.15  # the claim
assert worst["Dr. GRPO"] <= 1.25  # "matters little"
baseline = {}  # completions of the best R - b at p = 1/2, over those of the best weight
for r in (0.1, 1, 10):
    best = identity.efficiency(identity.contrast(identity.quietest(r)), 0.5, 8, r)
    constant = identity.efficiency(lambda R, others, G, b=1 / (1 + r): R - b, 0.5, 8, r)
    assert np.isclose(constant, (1 + r) * (1 + 1 / r) / 4)
    assert constant > max(identity.efficiency(name, 0.5, 8, r) for name in identity.RULES)
    baseline[r] = best / constant
assert np.isclose(baseline[0.1], baseline[10]) and baseline[10] < 1 / 3  # "far quieter"
sizes = baselines_tables.budgets(grid.load_runs(baselines.RESULTS))
late = {G: of_size[-1]["mean"] for G, of_size in sizes.items()}
few = [late[2], late[4], late[8]]
assert max(few) - min(few) < 0.015  # "close together"
assert late[2] == max(few) and late[64] < late[32] < late[16] < min(few)

# %% [text]
# *Relative to the best weight (1), in groups of eight.*
#
# **So σ or σ² matters little for one prompt's noise**: GRPO needs at most {=worst["GRPO"]:.2f} times the completions of the best weight, Dr. GRPO
# {=worst["Dr. GRPO"]:.2f} and MaxRL {=worst["MaxRL"]:.2f} times ($p$ from .001 to .999, $v_-/v_+$ from .001 to 1,000). The mark less
# [lesson 1](01_score_function.ipynb)'s best baseline can be far quieter, {=baseline[10]:.2f} times at $p = ½$ and $v_-/v_+ = 10$, but has to be estimated.
#
# **Which group size?** With one budget, 61,440 completions, groups of 2, 4 and 8 ended close together, groups of 64
# {=100 * (late[2] - late[64]):.1f} points below groups of 2 ([all runs](experiments/README.md)). We do not know why.
#
# **A published rule** ([2607.00152](https://arxiv.org/abs/2607.00152), Cor. 1 and 2) says when σ is near its limit in large groups, $\sqrt{pq}$. It
# expands the **fidelity** $\varphi = \mathbb E[\sigma]/\sqrt{pq}$ and solves for $G$:
#
# $$\varphi \approx 1 - \frac{1}{8Gpq} \quad\Longrightarrow\quad G^\star = \frac{1}{8\,(1-\varphi)\,pq}$$
#
# Its Table 2 for 90 %, with the smallest $G$ that reaches it:

# %% [fold]
# As published, for .9, .95 and .99:
EXACT = {0.5: (7, 11, 51), 0.3: (9, 14, 61), 0.1: (22, 36, 144), 0.05: (42, 69, 273)}
RULE = {0.5: (5, 10, 50), 0.3: (6, 12, 60), 0.1: (14, 28, 139), 0.05: (26, 53, 263)}
print(" p     exact G    G*   fidelity at G*")
for p in EXACT:
    rising = np.diff([identity.fidelity(p, G) for G in range(2, 300)]) > 0
    assert rising.all()  # once reached, a target stays reached
    for target, exact, rule in zip((0.9, 0.95, 0.99), EXACT[p], RULE[p]):
        assert identity.group_size_exact(p, target) == exact
        assert round(float(identity.group_size_law(p, 1 - target))) == rule
        reached = float(identity.fidelity(p, rule))
        assert reached < target and rule < exact
        if target == 0.9:
            print(f"{p:<4}    {exact:4}     {rule:4}      {reached:.1%}")


p, G = 0.05, 800  # the next term of the expansion, ours
next_term = float(identity.fidelity(p, G) - identity.fidelity_expansion(p, G))
assert abs(next_term / (-(7 - 16 * p * (1 - p)) / (128 * (G * p * (1 - p)) ** 2)) - 1) < 0.05
# %% [text]
# *Read as an inequality, the rule misses its target in all twelve rows of that table*: the next term of the expansion is negative. And φ is a
# *length*: a longer step of one prompt, not a better one.

# %% [markdown]
# Sources: *GRPO, Dr. GRPO, and DAPO Are Three Operations on One Number*, [arXiv:2607.00152](https://arxiv.org/abs/2607.00152), Prop. 2 (for a
# prompt with a single parameter); weights of any rule: Davis and Recht, [2510.13651](https://arxiv.org/abs/2510.13651); MaxRL:
# [2602.02710](https://arxiv.org/abs/2602.02710). The best weight of the contrast is ours.
