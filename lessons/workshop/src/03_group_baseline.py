# %% [markdown] 45 minutes, without the second reading
# # 3 · GRPO's baseline
#
# Group relative policy optimization (GRPO) samples a **group** of $G$ completions of the same prompt, independently, and
# subtracts the group's mean reward from each reward. The mean takes the place of PPO's critic ([lesson 15](15_critic.ipynb)).
#
# > **Subtracting the group's mean shortens the average update, which still points along the gradient of the success probability; dividing by
# > σ, the rewards' standard deviation, keeps the direction, but in groups of four or more counts very hard and very easy prompts more.**
# >
# > With the mean of a group of $G$ the average update is $(G-1)/G$ of the gradient, with the mean of the *others* all of it. In groups of 8, σ counts a
# > prompt up to 1.4 times as much as a medium one.
#
# A group of four, with both means:
#
# | completion | 1 | 2 | 3 | 4 |
# |---|---|---|---|---|
# | reward | 1 | 0 | 0 | 1 |
# | mean of the group | 1/2 | 1/2 | 1/2 | 1/2 |
# | **reward − mean of the group** | **1/2** | **−1/2** | **−1/2** | **1/2** |
# | mean of the *other three* | 1/3 | 2/3 | 2/3 | 1/3 |
# | **reward − mean of the others** | **2/3** | **−2/3** | **−2/3** | **2/3** |
#
# A reward lies closer to a mean that contains it: the first bold row is three quarters of the second.
#
# The mean of the others is RLOO's baseline (REINFORCE leave-one-out), the mean of the group that of Dr. GRPO ("GRPO done right") and of GRPO,
# which then divides by σ.
#
# A tiny policy is asked for two digits from 0 to 2 that add up to 2: of its nine completions three are right. Here are its updates from all
# groups of *two*, without σ:

# %% [fold]
import numpy as np
import torch
from torch.autograd.functional import jacobian

from algorithms import dr_grpo, grpo, rloo
from lessons import identity
from lessons.workshop.kit import check, knob, show, show_diff, trains
from lessons.workshop.parts.lesson_03 import cloud_of_groups, factors_of_prompts

rewards = torch.tensor([a + b == 2 for a in range(3) for b in range(3)]).double()  # 00 to 22

def log_probs(theta):
    """(9,): the log-probability of each completion, first digit plus second digit."""
    first, second = theta[:3].log_softmax(dim=0), theta[3:].view(3, 3).log_softmax(dim=1)
    return (first.unsqueeze(1) + second).flatten()

def study(shift):
    """Probabilities (9,), scores (9, 12), grad p (12,). A larger shift makes p larger."""
    theta = torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    theta = (theta + shift * torch.cat([torch.zeros(3), rewards])).requires_grad_()
    probs = log_probs(theta).exp()
    grad_p = torch.autograd.grad(probs @ rewards, theta)[0]
    return probs.detach(), jacobian(log_probs, theta), grad_p

policy = study(shift=0)
probs, scores, grad_p = policy
p = (probs @ rewards).item()
assert max((probs @ scores).norm(), ((probs * rewards) @ scores - grad_p).norm()) < 1e-12

pairs = torch.cartesian_prod(*[torch.arange(9)] * 2)  # (81, 2): all groups of two
updates = {name: (script.compute_advantages(rewards=rewards[pairs])[..., None] * scores[pairs])
           .mean(dim=1) for name, script in (("RLOO", rloo), ("Dr. GRPO", dr_grpo))}
ones = [script.compute_advantages(rewards=rewards[pairs]) for script in (rloo, grpo)]
assert torch.allclose(*ones, rtol=1e-12, atol=0)  # as the caption says
show(cloud_of_groups(updates, probs[pairs].prod(dim=1), grad_p))

# %% [markdown]
# *A dot is the update of one group, its size the group's probability. The arrow: the gradient of the success probability $p$, $\nabla p$.
# The vertical axis: the direction across $\nabla p$ in which updates vary most. At the origin: groups whose two rewards agree. The black circle is the average of all
# groups, for RLOO at the tip of the arrow, for Dr. GRPO half way: $(G-1)/G = 1/2$. GRPO's groups of two lie exactly where RLOO's do.*
#
# | symbol | meaning |
# |---|---|
# | $s_i$ | the score of completion $i$: $\nabla_\theta \log \pi_\theta(y_i)$, summed over its tokens |
# | $\bar R,\ b_i$ | the mean of the group's rewards; the **leave-one-out** mean, of all but $R_i$ |
# | $A_i$ | the advantage: $R_i - b_i$ (RLOO), $R_i - \bar R$ (Dr. GRPO), $(R_i - \bar R)/\sigma$ (GRPO) |
# | $g$ | the update of one group: $\frac1G \sum_i A_i\, s_i$ |
#
# The claim without σ: $\mathbb E[g] = \nabla p$ for RLOO, $\mathbb E[g] = \frac{G-1}{G}\nabla p$ for Dr. GRPO. In our scripts:

# %% [fold]
show_diff(dr_grpo.compute_advantages, rloo.compute_advantages)
four = torch.tensor([[1.0, 0, 0, 1]]).double()
own, others = (script.compute_advantages(rewards=four)[0] for script in (dr_grpo, rloo))
assert torch.allclose(own, 3 / 4 * others) and own[0] == 1 / 2  # the group of four

# %% [markdown]
# ## The proof
#
# **Step 1: pairs.** RLOO's advantage is the mean of $R_i - R_j$ over the other completions $j$. In its update the terms $(i, j)$ and
# $(j, i)$ together make $(R_i - R_j)(s_i - s_j)$:
#
# $$g_{\text{RLOO}} = \frac1{G(G-1)}\sum_{i \ne j}(R_i - R_j)\,s_i = \frac1{G(G-1)}\sum_{i<j}(R_i - R_j)(s_i - s_j)$$
#
# **Step 2: one pair is unbiased.** $\mathbb E[s] = 0$ and $\mathbb E[R\,s] = \nabla p$ ([lesson 1](01_score_function.ipynb)), and the two
# completions are independent. Multiplying out gives $\mathbb E[(R_i - R_j)(s_i - s_j)] = 2\,\nabla p$. There are $G(G-1)/2$ pairs, so
# $\mathbb E[g] = \nabla p$.
#
# **Step 3: the mean of the group contains the completion's own reward**, with weight $\frac1G$. So
# $R_i - \bar R = \frac{G-1}{G}(R_i - b_i)$: in every group Dr. GRPO's advantages are RLOO's times $\frac{G-1}G$, and
# $\mathbb E[g] = \frac{G-1}{G}\nabla p$. ∎
#
# Dr. GRPO is often called unbiased. It is, up to this constant.
#
# Two completions with the same reward contribute nothing: **only pairs of a right and a wrong completion count**. A group without such a
# pair is **silent** ([lesson 6](06_identity.ipynb)): it trains nothing.
#
# **Scope.** The first update after sampling, on which nothing is clipped ([lesson 2](02_ppo.ipynb)). There is no KL (Kullback–Leibler) term,
# rewards are 0 and 1 where σ divides, and scores are summed over tokens; GRPO's division by length is [lesson 5](05_length.ipynb)'s subject.
#
# ## And GRPO?
#
# GRPO divides $R_i - \bar R$ by σ, which varies from group to group, so step 3 does not apply. In a group of three, let $j$ of
# the *others* be right. Completion $i$ has the advantage $A(\text{right}, j)$ if it is right itself, $A(\text{wrong}, j)$ if not:
#
# | $j$ | 0 | 1 | 2 |
# |---|---|---|---|
# | $A(\text{right}, j)$ | 1.41 | .71 | 0 |
# | $A(\text{wrong}, j)$ | 0 | −.71 | −1.41 |
# | **difference** | **1.41** | **1.41** | **1.41** |
#
# (For $j = 0$: rewards 1, 0, 0, mean 1/3, σ = $\sqrt2/3$ = .47, and (1 − 1/3)/.47 = 1.41.) In groups of four the differences are 1.73, 1.58,
# 1.58 and 1.73.
#
# The others are independent of completion $i$, and $\mathbb E[(1-R)\,s] = -\mathbb E[R\,s] = -\nabla p$. So for each $j$
#
# $$\mathbb E[A_i s_i \mid j] = A(\text{right}, j)\,\mathbb E[R\,s] + A(\text{wrong}, j)\,\mathbb E[(1-R)\,s]
# = \big(A(\text{right}, j) - A(\text{wrong}, j)\big)\,\nabla p$$
#
# and on average over $j$
#
# $$\mathbb E[g] = w(p)\,\nabla p, \qquad w(p) = \mathbb E_j\big[A(\text{right}, j) - A(\text{wrong}, j)\big],
# \quad j \sim \mathrm{Binomial}(G-1, p)$$
#
# So GRPO keeps the direction. In groups of two $w = 1$, in groups of three 1.41; from $G = 4$ on, $w$ depends on $p$: on a very hard
# prompt mostly $j = 0$, on a very easy one $j = G-1$, and there the difference is largest. The reason: on a very hard prompt the groups that
# train have one right completion, and σ is small. In groups of 8 it turns that completion's advantage .875 into 2.65, three times as much; in a
# half-right group .5 into 1, only twice.
#
# %% [text]
# ## The check: all groups
#
# The policy of the picture ($p$ = {=p:.3f}) has $9^G$ groups. The scripts' own functions compute their advantages:


# %%
def moments(script, G, policy):
    """The factor in E[g] = factor * grad p and the variance of g, over all groups."""
    probs, scores, grad_p = policy
    groups = torch.cartesian_prod(*[torch.arange(9)] * G)  # (9^G, G)
    A = script.compute_advantages(rewards=rewards[groups])  # (9^G, G)
    g = (A.unsqueeze(2) * scores[groups]).mean(dim=1)  # (9^G, 12)
    chance = probs[groups].prod(dim=1)  # (9^G,)
    mean = chance @ g
    factor = (mean @ grad_p / (grad_p @ grad_p)).item()
    assert (mean - factor * grad_p).norm() < 1e-12 * grad_p.norm()  # exactly along grad p
    return factor, (chance @ (g - mean).square().sum(dim=1)).item()

print("    factor of grad p in E[g]\nG     RLOO Dr. GRPO  (G-1)/G    GRPO    w(p)")
for G in (2, 3, 4, 5):
    found = [moments(script, G, policy)[0] for script in (rloo, dr_grpo, grpo)]
    w = float(identity.weight("GRPO", p, G))
    assert np.allclose(found, [1, (G - 1) / G, w], rtol=1e-12, atol=0)
    print(G, *(f"{x:8.4f}" for x in (*found[:2], (G - 1) / G, found[2], w)))

# %% [markdown]
# ## Easy and hard prompts
#
# A flat line counts easy and hard prompts alike. Move $G$.

# %% [fold]
for G, differences in ((3, [1.41] * 3), (4, [1.73, 1.58, 1.58, 1.73])):
    last = torch.ones(G, G).tril(-1).double()  # j right ones, then a wrong one, which is turned
    of_last = [grpo.compute_advantages(rewards=last + turn)[:, -1]
               for turn in (torch.eye(G)[-1], 0)]
    assert np.allclose(of_last[0] - of_last[1], differences, atol=0.005)  # the table
lone = torch.eye(8)[:1].double()  # one right completion of eight
lone_A = [script.compute_advantages(rewards=lone)[0, 0] for script in (dr_grpo, grpo)]
assert np.allclose(lone_A, [0.875, 2.65], atol=0.005)
of_eight = identity.weight("GRPO", np.array([1e-9, 0.5]), 8)
assert round(of_eight[0] / of_eight[1], 1) == 1.4  # as the claim says
policies = [study(shift) for shift in np.linspace(-5, 6, 45)]
ps = np.array([(probs @ rewards).item() for probs, _, _ in policies])
picked = slice(6, 45, 5)
dots = {  # (8, 3): policy, script
    G: [[moments(script, G, policy)[0] for script in (rloo, dr_grpo, grpo)]
        for policy in policies[picked]]
    for G in (2, 3, 4)}

def draw(G):
    factors = {"GRPO": identity.weight("GRPO", ps, G), "RLOO": 1 + 0 * ps,
               "Dr. GRPO": (G - 1) / G + 0 * ps}
    figure, axis = factors_of_prompts(G, ps, factors)
    if G in dots:
        axis.plot(ps[picked], dots[G], "k.")
    return figure

knob(draw, G=(2, 64, 1, 4))

# %% [markdown]
# *The factor of $\nabla p$ in the average update, from the formulas; dots, up to G = 4: over all groups. The larger the groups, the more very hard and very easy prompts count against medium ones ([lesson 9](09_objective.ipynb)).*
#
# ## Exercises
#
# **1. By what factor?** Let the baseline be any weighted sum of the group's rewards, $b_i = \sum_j W_{ij} R_j$. RLOO has 0 on the diagonal
# of the table $W$ and $\frac1{G-1}$ elsewhere, Dr. GRPO $\frac1G$ everywhere. The weights of a row need not add up to 1. Which factor of
# $\nabla p$ is $\mathbb E[g]$?


# %% [exercise]
def factor(W):
    """The factor of grad p in E[g], from the weights (G, G), a numpy array."""
    return ...


# %% [check]
check("3.1", factor)

# %% [hint]
# Take the mean of $(R_i - \sum_j W_{ij} R_j)\,s_i$ term by term. What is $\mathbb E[R_j s_i]$ for $j \ne i$, and for $j = i$?


# %% [solution]
def factor(W):
    return 1 - np.trace(W) / len(W)


# %% [markdown]
# Only a completion's *own* weight shortens the update: the others' rewards are independent of its score.
#
# **2. Find the bug.** For some completions the verifier timed out. Their entries in `rewards` are 0, and the function below counts them as
# wrong. Repair it: RLOO compares a verified completion with the *other* verified ones of its group (a group has none or at least two); the rest
# get the advantage 0. Below the check, your advantages train a policy. Its right completion times out four times in five; another is fast and earns
# half a point.


# %% [exercise]
def rloo_verified(rewards, verified):
    """(P, G) and (P, G), bool, to (P, G)."""
    return rloo.compute_advantages(rewards=rewards)  # <- runs, and is wrong


# %% [check]
check("3.2", rloo_verified)
trains("3.2", rloo_verified)

# %% [markdown]
# *The mean of 200 policies. With the bug they learn to be fast and half right. "Divided by G − 1": timeouts
# count among the others. "Own reward in the mean": Dr. GRPO's baseline.*

# %% [hint]
# The sum of the others' rewards is the sum of all minus the completion's own. How many others were verified?


# %% [solution]
def rloo_verified(rewards, verified):
    total = rewards.sum(dim=1, keepdim=True)
    others = verified.sum(dim=1, keepdim=True) - 1
    return (rewards - (total - rewards) / others) * verified


# %% [markdown]
# ## To remember
#
# - Only a completion's *own* weight in its baseline shortens the expected update: the group's mean to $(G-1)/G$ of $\nabla p$, a matter of
#   the learning rate.
# - GRPO's expected update is a multiple of $\nabla p$ as well, from $G = 4$ on a larger one for very hard and very easy prompts.
#
# ## For a second reading (15 minutes)
#
# **What a group costs.** A group takes $G$ completions, and the mean of $n$ updates has the variance $\operatorname{Var}[g]/n$. So at equal
# cost we compare $G\operatorname{Var}[g]$, the variance *per completion*. RLOO's update is the estimate with the exact $p$ as its baseline,
# plus a part with mean 0, the price of estimating $p$:
#
# $$g = \frac1G\sum_i (R_i - p)\, s_i \;-\; \frac{1}{G(G-1)}\sum_{i\ne i'} (R_{i'} - p)\, s_i$$
#
# $$G\operatorname{Var}[g_{\text{RLOO}}] = \underbrace{\mathbb E\big[(R-p)^2\|s\|^2\big] - \|\nabla
# p\|^2}_{\text{with the exact } p} \;+\; \frac{p\,q\;\mathbb E\|s\|^2 + \|\nabla p\|^2}{G-1}$$
#
# The two parts are uncorrelated: every product of a term of one with a term of the other contains some completion once only, as a factor
# with mean 0. In the square of the second sum only the products of the term $(i, i')$ with itself and with $(i', i)$ survive: the last fraction.
#
# Dr. GRPO's variance is $\big(\frac{G-1}{G}\big)^2$ times as large: scaled to the same length, its noise is RLOO's.


# %% [fold]
def per_completion(policy, baseline):
    """G times the variance of g with a constant baseline: the same for every G."""
    probs, scores, grad_p = policy
    squares = scores.square().sum(dim=1)
    return (probs @ ((rewards - baseline) ** 2 * squares) - grad_p @ grad_p).item()

def price(policy):
    """The variance that estimating p adds, times G - 1: p q E|s|^2 + |grad p|^2."""
    probs, scores, grad_p = policy
    p = probs @ rewards
    return (p * (1 - p) * (probs @ scores.square().sum(dim=1)) + grad_p @ grad_p).item()

none, exact = per_completion(policy, 0), per_completion(policy, p)
print(f"variance per completion\n  b = 0:       {none:.4f}\n  exact p:     {exact:.4f}")
for G in (2, 3, 4, 5):
    loo, shorter = (G * moments(script, G, policy)[1] for script in (rloo, dr_grpo))
    rescaled = shorter * (G / (G - 1)) ** 2
    assert np.allclose([loo, rescaled], exact + price(policy) / (G - 1), rtol=1e-12, atol=0)
    print(f"  RLOO, G = {G}: {loo:.4f}")

# %% [markdown]
# Here RLOO is noisier than no baseline in groups of two and three, and less noisy from four on.
#
# **Groups by text.** A batch may hold the question *how many?* twice, with two different pictures. Some public trainers group completions by
# the prompt's text, which merges the two. Then every completion for a hard picture (all wrong) gets −1/2 and every one for an easy picture
# (all right) 1/2, though neither group should train.
#
# **Bessel's correction.** Inside GRPO's σ the variance is divided by $G$ in `grpo.py`, by $G - 1$ in `torch.std`.
# The latter multiplies every advantage by $\sqrt{(G-1)/G}$: a change of the learning rate.
#
# Sources: GRPO, [arXiv:2402.03300](https://arxiv.org/abs/2402.03300), section 4.1.2; Dr. GRPO and its relation to RLOO,
# [2503.20783](https://arxiv.org/abs/2503.20783), App. A; RLOO: Kool, van Hoof and Welling 2019, *Buy 4 REINFORCE Samples, Get a Baseline
# for Free!*, and Ahmadian et al., [2402.14740](https://arxiv.org/abs/2402.14740); the weight $w(p)$: Davis and Recht,
# [2510.13651](https://arxiv.org/abs/2510.13651). Groups merged by text: NeMo-RL's pull request 3882. The formulas for the variance are
# ours.
