# %% [markdown] 40 minutes
# # 7 · Expected gradient, group size, and the best weight
#
# A verifier marks each completion of a prompt right or wrong. A rule turns the marks of a group into advantages, and the advantages move the
# policy.
#
# > **If the advantages depend on the marks of the group alone, the same mark getting the same advantage, and scores are summed over tokens, a prompt's expected update points along the
# > gradient of the probability of a right completion. Rules then differ in two things only: how long this step is, and how noisy.**
#
# A rule that looks at anything else, such as a punishment for length, is outside the claim. The picture shows length and noise of the step
# for GRPO (group relative policy optimization), Dr. GRPO ("GRPO done right") and MaxRL (maximum likelihood
# reinforcement learning), in groups of eight completions.

# %% [fold]
import math
from itertools import combinations_with_replacement, product

import numpy as np
import torch
from torch.autograd.functional import jacobian

from algorithms import dr_grpo, grpo, maxrl, reinforce
from lessons import identity
from lessons.experiments import baselines, baselines_tables, grid
from lessons.workshop.kit import check, knob, say, show
from lessons.workshop.parts.lesson_07 import (
    length_and_efficiency,
    two_differences,
    up_to_a_factor,
)

WEIGHTS = {
    "GRPO": identity.sigma,
    "Dr. GRPO": lambda k, G: identity.sigma(k, G) ** 2,
    "MaxRL": lambda k, G: (G - k) / G,
    "c = k/G": lambda k, G: k / G,
}
LARGE_GROUPS = {"GRPO": identity.weight_limit, "Dr. GRPO": np.ones_like, "MaxRL": np.reciprocal}


def efficiencies(p, G, v_ratio):
    """Of the four weights, of the best one, and of A = R. v_ratio: v₋/v₊."""
    rules = {name: identity.contrast(weight) for name, weight in WEIGHTS.items()}
    rules["the best"] = identity.contrast(identity.quietest(v_ratio))
    rules["REINFORCE"] = "REINFORCE"  # A = R, no contrast
    return {name: identity.efficiency(rule, p, G, v_ratio) for name, rule in rules.items()}


ps = np.linspace(0.01, 0.99, 99)
factors = {name: identity.weight(name, ps, 8) for name in LARGE_GROUPS}
alike = efficiencies(ps, 8, 1)
show(two_differences(ps, factors, {name: alike[name] for name in LARGE_GROUPS}))
hard = {name: factor[4] for name, factor in factors.items()}  # p = .05
most = max(max(alike[a] / alike[b]) for a in LARGE_GROUPS for b in LARGE_GROUPS)
assert np.isclose(ps[4], 0.05) and hard["MaxRL"] == max(hard.values())
sizes = baselines_tables.budgets(grid.load_runs(baselines.RESULTS))
late = {G: of_size[-1]["mean"] for G, of_size in sizes.items()}
few = [late[2], late[4], late[8]]
assert late[2] == max(few) and late[64] < late[32] < late[16] < min(few)

# %% [text]
# *Left: the expected step is this factor times the gradient. On a prompt solved one time in twenty MaxRL's step is
# {=hard["MaxRL"] / hard["Dr. GRPO"]:.1f} times as long as Dr. GRPO's, GRPO's {=hard["GRPO"] / hard["Dr. GRPO"]:.1f} times. Right: efficiency, the
# squared step over the noise, per completion. Its unit 1 is what these three rules reach in very large groups; REINFORCE can exceed it (below). Here right and wrong completions are equally noisy, and no two rules differ by more than a
# factor of {=most:.1f}.*
#
# | symbol | meaning |
# |---|---|
# | $R_i$ | the mark, called reward: 1 if right, 0 if wrong |
# | $G,\ k$ | completions in a group, all of one prompt; how many of them are right |
# | $p,\ q$ | the probability that a completion is right; $q = 1 - p$ |
# | $s_i$ | the score of completion $i$: $\nabla_\theta \log \pi_\theta(y_i)$, summed over its tokens |
# | $\bar s_\pm$ | the mean score of a group's right (+) or wrong (−) completions |
# | $g$ | the update of one group, $\frac1G \sum_i A_i s_i$ with the advantages $A_i$ |
# | $\alpha_k,\ \beta_k$ | the rule's two coefficients: $\frac kG$ times the advantage of a right completion, and $-\frac{G-k}G$ times that of a wrong one |
#
# The claim in a formula:
#
# $$g = \alpha_k\,\bar s_+ - \beta_k\,\bar s_-, \qquad \mathbb E[g] \;=\; w(p)\,\nabla p, \qquad w(p) = \frac{\mathbb E[\alpha_k q + \beta_k p]}{p\,q}$$

# %% [markdown]
# ## Proof
#
# **Step 1: fix k.** All right completions of a group share one advantage, and all wrong ones another. So the update is
# $\alpha_k\bar s_+ - \beta_k\bar s_-$. Let $m_+$ and $m_-$ be the expected scores of a right and of a wrong completion. Then the update's mean is
# $\alpha_k m_+ - \beta_k m_-$.
#
# **Step 2: the two means.** A score has mean 0, and $\mathbb E[R\,s] = \nabla p$ ([lesson 1](01_score_function.ipynb)). Split both by the
# reward: $p\,m_+ + q\,m_- = 0$ and $p\,m_+ = \nabla p$. So $m_+ = \nabla p/p$ and $m_- = -\nabla p/q$, opposite directions on one line, and
# $\mathbb E[g \mid k] = (\alpha_k q + \beta_k p)\,\frac{\nabla p}{pq}$.
#
# **Step 3: average over k**, which is binomial. ∎
#
# With $\sigma = \sqrt{k(G-k)}/G$, the standard deviation of the group's rewards:
#
# | rule | $\alpha_k$ | $\beta_k$ | $w(p)$ |
# |---|---|---|---|
# | REINFORCE, $A = R$ | $k/G$ | 0 | 1 |
# | GRPO | $\sigma$ | $\sigma$ | $\mathbb E[\sigma]/(pq)$ |
# | Dr. GRPO | $\sigma^2$ | $\sigma^2$ | $1 - 1/G$ |
# | MaxRL, 0 at $k = 0$ | $(G-k)/G$ | $(G-k)/G$ | $(1 - q^{G-1})/p$ |
#
# The proof needs completions sampled from the policy itself, rewards of 0 and 1, no clip, no KL penalty, and scores summed over tokens.
#
# We check $w(p)$ on a network with 36 parameters that writes up to three tokens, with every possible group. The advantages come from
# the scripts, $\nabla p$ from autograd alone.

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
found, cosines = 0, []
for R in (ODD, ELEVEN):
    for G in (2, 4, 6):
        measured = {name: factor_and_noise(script, G, R) for script, name in NAMES.items()}
        for name, (p, factor, noise, claimed, _) in measured.items():
            expected = [identity.weight(name, p, G), claimed]
            found += np.allclose([factor, noise], expected, rtol=1e-10, atol=1e-12)
        cosines.append(measured["GRPO"][-1])
print("4 rules, G = 2, 4 and 6, two verifiers: E[g] is w(p) times ∇p in", found, "of 24 cases")
assert found == 24

# %% [text]
# If scores are divided by the length of the completion, $\mathbb E[g]$ leaves the line: GRPO's cosine with $\nabla p$ is then {=min(cosines):.3f} to
# {=max(cosines):.3f}.
#
# ## The best weight
#
# A larger learning rate makes a short step longer. It does not make a noisy step less noisy. So noise is what counts, at a fixed number of
# completions. Let $g_\perp$ be the part of $g$ orthogonal to $\nabla p$: all of it is noise. Let $v_+$ and $v_-$ be the variance of the score of a right and
# of a wrong completion in these directions, summed over them. A mean of $k$ scores has the variance $v_+/k$, so
#
# $$\mathbb E\,\|g_\perp\|^2 = \mathbb E\Big[\alpha_k^2\,\frac{v_+}k + \beta_k^2\,\frac{v_-}{G-k}\Big]$$
#
# Take $\alpha_k = \beta_k = c(k)$: one weight for the whole group, times the *contrast* $\bar s_+ - \bar s_-$. Its noise is then $\mathbb E[c^2\,n]$ with
# $n_k = \frac{v_+}k + \frac{v_-}{G-k}$, the variance of the contrast. Its step is $w = \mathbb E[cq + cp]/(pq) = \mathbb E[c]/(pq)$. A factor of $c$ can be
# undone by the learning rate. So compare weights by $\mathbb E[c]^2 / \mathbb E[c^2\,n]$, the squared step over the noise.
#
# **1. The best weight.** Which $c(k)$ makes this quotient largest? Any multiple of it is accepted: the check compares $c(1), \dots, c(G-1)$ as shares of
# their sum.


# %% [exercise]
def best_weight(k, G, v_right, v_wrong):
    """c(k) of a mixed group, up to a factor that does not depend on k."""
    return ...


# %% [check]
check("7.1", up_to_a_factor(best_weight))

# %% [hint]
# Set the derivative of $\mathbb E[c^2\,n]$ by one $c(k)$ in proportion to that of $\mathbb E[c]$. Or write $\mathbb E[c]$ as the mean of a product,
# $c\sqrt n \cdot 1/\sqrt n$, and use Cauchy and Schwarz.


# %% [solution]
def best_weight(k, G, v_right, v_wrong):
    return 1 / (v_right / k + v_wrong / (G - k))


# %% [markdown]
# By Cauchy and Schwarz $\mathbb E[c]^2 = \mathbb E[c\sqrt n \cdot 1/\sqrt n]^2 \le \mathbb E[c^2 n]\,\mathbb E[1/n]$, with equality where $c\sqrt n$ is a multiple of
# $1/\sqrt n$. So the best weight is the inverse of the variance, $c = 1/n$, at every $p$. Three special cases:
#
# - right and wrong scores equally noisy, $v_- = v_+$: $c \propto k\,(G-k)$, which is $\sigma^2$: **Dr. GRPO**;
# - wrong ones far noisier, $v_- \gg v_+$: $c \propto G - k$: **MaxRL**, which relies on groups with few right completions;
# - right ones far noisier, $v_+ \gg v_-$: $c \propto k$.
#
# What does a rule lose that is not the best? **Efficiency** is the squared step over the noise, per completion, divided by its limit for large $G$, which
# GRPO, Dr. GRPO and MaxRL share. So 1 is no upper bound: it is these three rules in very large groups.

# %% [fold]
SHOWN = ("GRPO", "Dr. GRPO", "MaxRL", "the best", "REINFORCE")
table = {(r, p): efficiencies(p, 8, r) for r, p in ((10, 0.9), (10, 0.1), (10, 0.5), (0.1, 0.5))}
print("G = 8   v₋/v₊    p    " + "   ".join(SHOWN))
for (v_ratio, p), efficiency in table.items():
    assert all(efficiency[name] <= efficiency["the best"] + 1e-12 for name in WEIGHTS)
    cells = [f"{float(efficiency[name]):<{len(name) + 3}.2f}" for name in SHOWN]
    print(f"{v_ratio:13}   {p:.1f}    " + "".join(cells).rstrip())
all_p, ratios = np.linspace(0.001, 0.999, 999), 10.0 ** np.arange(-3, 3.1, 0.25)
everywhere = [efficiencies(all_p, 8, r) for r in ratios]
worst = {name: min((e[name] / e["the best"]).min() for e in everywhere) for name in WEIGHTS}
assert np.isclose(worst["MaxRL"], worst["c = k/G"])
assert np.allclose(alike["GRPO"], identity.fidelity(ps, 8) ** 2 / (1 - identity.silent_rate(ps, 8)))
assert np.allclose(alike["Dr. GRPO"], 7 / 8)

# %% [text]
# **σ or σ² matters little.** Over all $p$ and all $v_-/v_+$ from .001 to 1,000, GRPO has at least {=math.floor(100 * worst["GRPO"])} % of the best weight's
# efficiency at G = 8, Dr. GRPO {=math.floor(100 * worst["Dr. GRPO"])} %, MaxRL and $c = k/G$ {=math.floor(100 * worst["MaxRL"])} %.
#
# **Which kind is rare matters more.** In the first two rows wrong scores are ten times as noisy. Where wrong completions are rare ($p$ = .9), groups of 8 are
# nearly as efficient as large ones. Where right ones are rare, they lose more than a third.
#
# **One weight for both kinds is a choice, too.** REINFORCE has $\beta_k = 0$: it ignores wrong completions, and their noise with them. If wrong scores
# are noisier (third row), it is {=table[10, 0.5]["REINFORCE"]:.1f} times as efficient as large groups. If they are quieter (last row), it is
# {=table[0.1, 0.5]["REINFORCE"]:.2f} times as efficient. [Lesson 13](13_quiet_estimators.ipynb) measures $v_-/v_+$ in a language model.
#
# ## Which group size?
#
# In large groups $\sigma$ tends to $\sqrt{pq}$. The share of this that groups of $G$ reach on average,
# $\varphi = \mathbb E[\sigma]/\sqrt{pq}$, is GRPO's **fidelity**: its share of the full step. Move $p$, the size of the group $G$, and $v_-/v_+$,
# how many times noisier wrong scores are than right ones.

# %% [fold]
every_p, SIZES, RATIOS = np.arange(1, 20) / 20, range(2, 129), [1, 0.1, 0.3, 3, 10]
steps = {name: np.array([identity.weight(name, every_p, G) for G in SIZES]) / limit(every_p)
         for name, limit in LARGE_GROUPS.items()}  # (127, 19) each
curves = {r: [efficiencies(every_p, G, r) for G in SIZES] for r in RATIOS}


def draw(p, v_ratio, G):
    at, names = round(20 * p) - 1, (*LARGE_GROUPS, "the best")
    lengths = {name: step[:, at] for name, step in steps.items()}
    lines = {name: np.array([e[name][at] for e in curves[v_ratio]]) for name in names}
    return length_and_efficiency(p, v_ratio, G, lengths, lines)


knob(draw, p=(0.05, 0.95, 0.05, 0.05), v_ratio=RATIOS, G=(2, 128, 1, 8))
part = {name: step[6, 0] for name, step in steps.items()}  # G = 8, p = .05

# %% [text]
# *The dots are your $G$; 1 is what a rule reaches in very large groups. The thick line is the best that a weight of the whole group can do. On a prompt
# solved one time in twenty, GRPO with groups of 8 takes {=100 * part["GRPO"]:.1f} % of the full step (this is φ), Dr. GRPO
# {=100 * part["Dr. GRPO"]:.1f} %, MaxRL {=100 * part["MaxRL"]:.1f} %.*
#
# **2. Find the bug.** A run logs the rewards of every group it draws of one prompt, and this function estimates GRPO's fidelity φ from them.
# For a hard prompt it says 1.6, but no fidelity can exceed 1. Repair it. (A *silent* group is all right or all wrong: σ is 0.)


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
# For one prompt, larger groups give a longer step, and usually a less noisy one. But at a fixed budget they also mean *fewer different prompts*.
# What that costs, our runs show in the second reading.

# %% [markdown]
# ## To remember
#
# - With rewards of 0 and 1, every rule of advantages has the expected update $w(p)\,\nabla p$. Rules differ in its length and its noise.
# - The least noisy weight of a group is $1/(v_+/k + v_-/(G-k))$: Dr. GRPO's if right and wrong scores are equally noisy, MaxRL's if wrong ones
#   are far noisier. Between σ and σ² the difference is small.
# - Larger groups of one prompt are longer steps with less noise, but at a fixed budget also fewer prompts.
#
# ## For a second reading (20 minutes): a published rule for G, and G at a fixed budget
#
# Expand $\sigma = \sqrt{x(1-x)}$ around $x = p$, where $x = k/G$ has the variance $pq/G$:
#
# $$\varphi \approx 1 - \frac{1}{8Gpq} \quad\Longrightarrow\quad G^\star = \frac{1}{8\,(1-\varphi)\,pq}$$
#
# These are Cor. 1 and 2 of [2607.00152](https://arxiv.org/abs/2607.00152), whose Table 2 has the smallest $G$ that reaches a target, and $G^\star$. The
# next term (ours), $-\frac{7-16pq}{128\,(Gpq)^2}$, is negative: the expansion promises too much at every $p$. The rows for 90 %:

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


p, G = 0.05, 800
next_term = float(identity.fidelity(p, G) - identity.fidelity_expansion(p, G))
assert abs(next_term / (-(7 - 16 * p * (1 - p)) / (128 * (G * p * (1 - p)) ** 2)) - 1) < 0.05
right = [identity.group_size_exact(p, 0.9) * p for p in (0.05, 0.02, 0.01)]
assert all(2 < number < 2.15 for number in right)

# %% [text]
# *All 24 published numbers are right, and the rule misses its own target in all twelve rows*: "$\varphi \ge 1-\varepsilon$ once
# $G \ge G^\star$" holds to leading order, not as an inequality. For hard prompts a simpler rule does: for 90 % a group
# needs {=right[0]:.1f} right completions on average at $p = .05$, {=right[2]:.1f} at .01. (For a $p$ of your own: `python lessons/identity.py --help`.)
#
# **3. The best pair.** Now let α and β differ. A group has $k$ right completions. Among all pairs with the expected step
# $\alpha q + \beta p = 1$, which has the least noise $\alpha^2 \frac{v_+}k + \beta^2 \frac{v_-}{G-k}$? (At the minimum the derivatives of noise and
# step are proportional: $\alpha \frac{v_+}k = \lambda q$ and $\beta \frac{v_-}{G-k} = \lambda p$.)


# %% [exercise]
def best_pair(k, G, p, v_right, v_wrong):
    """(alpha, beta), two numbers."""
    return ...


# %% [check]
check("7.3", best_pair)

# %% [hint]
# The two conditions give the ratio of α and β; the step of 1 gives λ.


# %% [solution]
def best_pair(k, G, p, v_right, v_wrong):
    alpha, beta = (1 - p) * k / v_right, p * (G - k) / v_wrong
    step = (1 - p) * alpha + p * beta
    return alpha / step, beta / step


# %% [markdown]
# Dr. GRPO's $\alpha = \beta$ is the best pair only where $qk/v_+ = p\,(G-k)/v_-$; with equal noise, where $k/G = p$.
#
# **Which group size is best at a fixed budget?** Larger groups mean fewer different prompts. We trained Dr. GRPO
# without a KL (Kullback–Leibler) penalty, in batches of 256 completions, with five seeds. Held-out accuracy after so many completions, the best of six sizes in italics
# ([all six](experiments/README.md)):

# %% [fold]
say(baselines_tables.budgets_table({G: sizes[G] for G in (2, 4, 8, 64)}))

# %% [text]
# *Brackets: 95 % intervals over seeds.* Groups of 4 or 8 are the best at first. At the end groups of 2 lead groups of 8 by
# {=100 * (late[2] - late[8]):.1f} points, a lead that five seeds do not establish. Groups of 64 leave four prompts in a batch, and end
# {=100 * (late[2] - late[64]):.1f} points below groups of 2. (One task, one small model, one learning rate. In
# [2510.00977](https://arxiv.org/abs/2510.00977) groups of 2 nearly match groups of 16.)

# %% [markdown]
# Sources: *GRPO, Dr. GRPO, and DAPO Are Three Operations on One Number*, [arXiv:2607.00152](https://arxiv.org/abs/2607.00152), Prop. 2 (for a
# prompt with a single parameter), Cor. 1 and 2, Table 2; weights of any rule: Davis and Recht, [2510.13651](https://arxiv.org/abs/2510.13651); MaxRL:
# [2602.02710](https://arxiv.org/abs/2602.02710). The next term and the best weight are ours.
