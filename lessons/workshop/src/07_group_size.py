# %% [markdown] 40 minutes
# # 7 · Expected gradient and the best weight
#
# A verifier marks each completion of a prompt right or wrong. A rule turns the marks of a group into advantages, and the advantages move the
# policy. There are dozens of rules. In what can they differ?
#
# > **If advantages depend on the marks alone, every rule's expected update of a prompt is a multiple of the gradient of the probability of a
# > right completion, and rules differ only in this factor and in the noise.**
#
# So on one prompt a new rule is judged by two numbers; the two curves below show them for every difficulty. A larger learning rate makes up for
# a small factor on one prompt, but not for noise. (The factor is [lesson 3](03_group_baseline.ipynb)'s $w(p)$. It is positive for every rule
# below. A rule that favours wrong completions has a negative one, and unlearns.)
#
# *Scope: the same mark gets the same advantage; scores are summed over tokens, without a punishment for length; completions come from the
# policy itself; no clip, no KL penalty.*

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
from lessons.workshop.parts.lesson_07 import needed, two_differences, up_to_a_factor

WEIGHTS = {
    "GRPO": identity.sigma,
    "Dr. GRPO": lambda k, G: identity.sigma(k, G) ** 2,
    "MaxRL": lambda k, G: (G - k) / G,
}


def completions_needed(p, G, v_ratio):
    """Of each rule, over those of the best weight of a group. v_ratio: v₋/v₊."""
    rules = {name: identity.contrast(weight) for name, weight in WEIGHTS.items()}
    rules["REINFORCE"] = "REINFORCE"  # A = R
    best = identity.efficiency(identity.contrast(identity.quietest(v_ratio)), p, G, v_ratio)
    return {name: best / identity.efficiency(rule, p, G, v_ratio) for name, rule in rules.items()}


ps = np.linspace(0.01, 0.99, 99)
factors = {name: identity.weight(name, ps, 8) for name in WEIGHTS}
alike = completions_needed(ps, 8, 1)
show(two_differences(ps, factors, {name: alike[name] for name in WEIGHTS}))
hard = {name: factor[4] for name, factor in factors.items()}  # p = .05
most = math.ceil(100 * max(alike["MaxRL"])) / 100  # an upper bound
assert np.isclose(ps[4], 0.05) and hard["MaxRL"] == max(hard.values())
assert np.allclose(alike["Dr. GRPO"], 1) and most > max(alike["GRPO"])
# An identity between two formulas of this library:
same = identity.fidelity(ps, 8) ** 2 / (1 - identity.silent_rate(ps, 8))
assert np.allclose(identity.efficiency("GRPO", ps, 8), same)

# %% [text]
# *GRPO (group relative policy optimization), Dr. GRPO ("GRPO done right") and MaxRL (maximum likelihood reinforcement learning), groups of
# eight. Left: the factor. On a prompt solved one time in twenty MaxRL's step is {=hard["MaxRL"] / hard["Dr. GRPO"]:.1f} times as long as Dr. GRPO's. Right: how many completions a rule needs
# until its step stands out equally from the noise. With right and wrong completions equally noisy that is at most {=most:.2f} times Dr. GRPO's number.*
#
# | symbol | meaning |
# |---|---|
# | $G,\ k$ | completions in a group, all of one prompt; how many of them are right |
# | $p,\ q$ | the probability that a completion is right; $q = 1 - p$ |
# | $s_i$ | the score of completion $i$: $\nabla_\theta \log \pi_\theta(y_i)$, summed over its tokens |
# | $\bar s_+,\ \bar s_-$ | the mean score of a group's right completions, and of its wrong ones; $\bar s_+ - \bar s_-$ is the **contrast** |
# | $g$ | the update of one group, $\frac1G \sum_i A_i s_i$ with the advantages $A_i$ |

# %% [markdown]
# ## One group
#
# Four completions, the first is right ($k = 1$):
#
# | rule | advantages | update |
# |---|---|---|
# | REINFORCE, $A = R$ | 1, 0, 0, 0 | $.25\,\bar s_+$ |
# | GRPO | 1.73, −.58, −.58, −.58 | $.43\,(\bar s_+ - \bar s_-)$ |
# | Dr. GRPO | .75, −.25, −.25, −.25 | $.19\,(\bar s_+ - \bar s_-)$ |
# | MaxRL | 3, −1, −1, −1 | $.75\,(\bar s_+ - \bar s_-)$ |
#
# So every rule is two coefficients: $g = \alpha_k\,\bar s_+ - \beta_k\,\bar s_-$. The last three have $\alpha_k = \beta_k$: they *weigh the
# contrast*. REINFORCE does not.
#
# ## The proof
#
# **Step 1: the two mean scores lie on one line.** A score has mean 0, and $\mathbb E[R\,s] = \nabla p$
# ([lesson 1](01_score_function.ipynb)). Let $m_+$ and $m_-$ be the expected scores of a right and of a wrong completion. Split both means by the mark:
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
# | REINFORCE | $k/G$ | 0 | 1 |
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
    # So the mean without it is p q^G, and w = q^(G-1): the slope of Pass@G = 1 - q^G, over G.
    return (1 - p) ** (G - 1)


# %% [markdown]
# We check $w(p)$ for the rules of the table on a network with 36 parameters that writes up to three tokens, with every possible group. The
# advantages come from the scripts, $\nabla p$ from autograd alone.

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
print("GRPO with each score divided by the completion's length: cosine of E[g] and ∇p",
      f"{min(cosines):.3f} to {max(cosines):.3f}")
assert found == 24 and max(cosines) < 0.999

# %% [markdown]
# The last line is outside the claim: divided by lengths, the expected update leaves the line.
#
# ## The least noisy weight of the contrast
#
# Let a rule weigh the contrast by $c(k)$: $g = c(k)\,(\bar s_+ - \bar s_-)$ in a mixed group, as GRPO, Dr. GRPO and MaxRL do. Which $c(k)$ is
# the least noisy?
#
# **Step.** With $\alpha_k = \beta_k = c$ the theorem gives the length $\mathbb E[c]/(pq)$, in units of $\nabla p$.
#
# **Noise.** Orthogonal to $\nabla p$ all of $g$ is noise. (Along $\nabla p$, one direction of very many, noise changes how far a step goes, not
# where.) Let the score of a right completion have the variance $v_+$ in these directions
# (summed over them), that of a wrong one $v_-$. A mean of $k$ scores has $v_+/k$. So the contrast has $n_k = \frac{v_+}k + \frac{v_-}{G-k}$,
# and the update $\mathbb E[c^2\,n]$.
#
# **Completions needed.** The mean of N groups has the same step and 1/N of the noise. So the N at which a step stands out equally is
# proportional to
#
# $$\frac{\text{noise}}{\text{step}^2} \;\propto\; \frac{\mathbb E[c^2\,n]}{\mathbb E[c]^2}$$
#
# **2. The best weight of the contrast.** Which $c(k)$ makes the right-hand quotient smallest? Any multiple of it is accepted. Then put in
# $v_- = v_+$, and a $v_-$ that is far larger: which rules do you get?


# %% [exercise]
def best_weight(k, G, v_right, v_wrong):
    """c(k) of a mixed group, up to a factor that does not depend on k."""
    return ...


# %% [check]
check("7.2", up_to_a_factor(best_weight))

# %% [hint]
# Set the derivative of $\mathbb E[c^2\,n]$ by one $c(k)$ in proportion to that of $\mathbb E[c]$. Or write $\mathbb E[c]$ as the mean of a product,
# $c\sqrt n \cdot 1/\sqrt n$, and use Cauchy and Schwarz.


# %% [solution]
def best_weight(k, G, v_right, v_wrong):
    # E[c]^2 = E[c sqrt(n) · 1/sqrt(n)]^2 <= E[c^2 n] E[1/n], by Cauchy and Schwarz. So the
    # quotient is at least 1 / E[1/n]; it is equal where c sqrt(n) is a multiple of 1/sqrt(n),
    # c = 1/n: one over the variance, at every p.
    # v_wrong = v_right: k (G - k), Dr. GRPO. v_wrong far larger: G - k, MaxRL, which relies on
    # groups with few right completions. v_right far larger: k.
    return 1 / (v_right / k + v_wrong / (G - k))


# %% [markdown]
# What does it cost to use another rule? Move $v_-/v_+$, how many times noisier wrong scores are than right ones.

# %% [fold]
RATIOS, SIZES = [10, 0.1, 0.3, 1, 3], [8, 2, 4, 16, 64]


def draw(v_ratio, G):
    return needed(ps, completions_needed(ps, G, v_ratio))


knob(draw, v_ratio=RATIOS, G=SIZES)
all_p, ratios = np.linspace(0.001, 0.999, 999), 10.0 ** np.arange(-3, 3.1, 0.25)
everywhere = [completions_needed(all_p, 8, r) for r in ratios]
worst = {name: max(e[name].max() for e in everywhere) for name in WEIGHTS}
worst = {name: math.ceil(100 * x) / 100 for name, x in worst.items()}  # an upper bound
assert min(e[name].min() for e in everywhere for name in WEIGHTS) > 1 - 1e-12
half = {r: completions_needed(0.5, 8, r)["REINFORCE"] for r in (0.1, 10)}
of_all = {}
for r in (1, 10):  # at p = 1/2; v₋/v₊ = 1/10 gives what 10 gives
    least = identity.contrast(identity.quietest(r))
    rules = least, lambda reward, others, G, b=1 / (1 + r): reward - b
    weighed, constant = (identity.efficiency(rule, 0.5, 8, r) for rule in rules)
    of_all[r] = weighed / constant
    assert of_all[r] < min(completions_needed(0.5, 8, r).values())

# %% [text]
# *Completions needed, as a multiple of those of the best weight of the contrast. GRPO and Dr. GRPO lie near 1 wherever you move. REINFORCE does not
# weigh the contrast, so it may lie below 1.*
#
# **σ or σ² matters little.** For $p$ from .001 to .999 and $v_-/v_+$ from .001 to 1,000, at G = 8, GRPO needs at most {=worst["GRPO"]:.2f} times as many
# completions as the best weight of the contrast, Dr. GRPO {=worst["Dr. GRPO"]:.2f} times, MaxRL {=worst["MaxRL"]:.2f} times.
#
# **To use the wrong completions or not matters more.** REINFORCE has $\beta_k = 0$: it leaves out their scores, and the noise in them. At $p = ½$ it needs
# {=half[10]:.2f} times as many completions as the best weight of the contrast if wrong scores are ten times noisier, and {=half[0.1]:.1f} times as many if
# they are ten times quieter.
#
# **The best of all rules** is, by the same inequality, $\alpha_k = kq/v_+$ and $\beta_k = (G-k)\,p/v_-$: the advantages $R - b$ with the
# constant $b = pv_+/(pv_+ + qv_-)$. At $p = ½$ it needs {=of_all[1]:.2f} times as many completions as the best weight of the contrast if right and wrong scores are
# equally noisy, {=of_all[10]:.2f} times if one kind is ten times noisier. But one has to know $p$ and $v_-/v_+$ in advance
# ([lesson 13](13_quiet_estimators.ipynb) estimates such a $b$).
#
# ## To remember
#
# - With rewards of 0 and 1, every rule of advantages has the expected update $w(p)\,\nabla p$ on a prompt. Rules differ in $w(p)$ and in the noise.
# - Among rules that weigh the contrast, $1/(v_+/k + v_-/(G-k))$ is the least noisy weight; GRPO and Dr. GRPO are near it.
# - Whether a rule uses the wrong completions at all matters more than σ or σ².
#
# ## For a second reading (15 minutes): which group size?
#
# In large groups $\sigma$ tends to $\sqrt{pq}$. The share of this that groups of $G$ reach on average,
# $\varphi = \mathbb E[\sigma]/\sqrt{pq}$, is GRPO's **fidelity**: its share of the full step. At $p = .05$ groups of 8 take
# {=identity.fidelity(0.05, 8):.0%} of it.
#
# **3. Find the bug.** A run logs the rewards of every group it draws of one prompt, and this function estimates φ from them. For a hard prompt
# it says 1.6, but no fidelity can exceed 1. Repair it.


# %% [exercise]
def logged_fidelity(rewards, p):
    """rewards (groups, G) of one prompt with success probability p: an estimate of
    E[sigma] / sqrt(pq)."""
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


# %% [markdown]
# **A published rule for G.** Expand $\sigma = \sqrt{x(1-x)}$ around $x = p$, where $x = k/G$ has the variance $pq/G$:
#
# $$\varphi \approx 1 - \frac{1}{8Gpq} \quad\Longrightarrow\quad G^\star = \frac{1}{8\,(1-\varphi)\,pq}$$
#
# These are Cor. 1 and 2 of [2607.00152](https://arxiv.org/abs/2607.00152), whose Table 2 has the smallest $G$ that reaches a target, and $G^\star$. The
# next term (ours), $-\frac{7-16pq}{128\,(Gpq)^2}$, is negative: the expansion promises too much. The rows for 90 %:

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
# *All 24 published numbers are right, and the rule misses its own target in all twelve rows*: it holds to leading order, not as an
# inequality. For hard prompts a simpler rule does: for 90 % a group needs {=right[0]:.1f} right completions on average at $p = .05$,
# {=right[2]:.1f} at .01. And φ is a *length*: a longer step of one prompt, not a better one.
#
# **Which group size is best at a fixed budget?** Larger groups mean fewer different prompts. We trained Dr. GRPO without a KL
# (Kullback–Leibler) penalty, in batches of 256 completions, with five seeds. Held-out accuracy after so many completions, the best of six
# sizes in italics ([all six](experiments/README.md)):

# %% [fold]
sizes = baselines_tables.budgets(grid.load_runs(baselines.RESULTS))
late = {G: of_size[-1]["mean"] for G, of_size in sizes.items()}
few = [late[2], late[4], late[8]]
assert late[2] == max(few) and late[64] < late[32] < late[16] < min(few)
say(baselines_tables.budgets_table({G: sizes[G] for G in (2, 4, 8, 64)}))

# %% [text]
# *Brackets: 95 % intervals over seeds.* Groups of 4 or 8 are the best at first. At the end groups of 2 lead groups of 8 by
# {=100 * (late[2] - late[8]):.1f} points: small, and the intervals overlap. Groups of 64 leave four prompts in a batch, and end clearly lower,
# {=100 * (late[2] - late[64]):.1f} points below groups of 2. (One task, one small model, one learning rate. In
# [2510.00977](https://arxiv.org/abs/2510.00977) groups of 2 nearly match groups of 16.)

# %% [markdown]
# Sources: *GRPO, Dr. GRPO, and DAPO Are Three Operations on One Number*, [arXiv:2607.00152](https://arxiv.org/abs/2607.00152), Prop. 2 (for a
# prompt with a single parameter), Cor. 1 and 2, Table 2; weights of any rule: Davis and Recht, [2510.13651](https://arxiv.org/abs/2510.13651); MaxRL:
# [2602.02710](https://arxiv.org/abs/2602.02710). The next term and the best weight of the contrast are ours.
