# %% [markdown] 38 minutes, without the second reading
# # 3 · GRPO's baseline
#
# Group relative policy optimization (GRPO) samples a **group** of $G$ completions of the same prompt, independently, and
# subtracts the group's mean reward from each reward. The mean takes the place of PPO's critic ([lesson 15](15_critic.ipynb)).
#
# > **Subtracting the group's mean only shortens the average update; dividing by σ, the rewards' standard deviation, also keeps its
# > direction, but in groups of four or more makes very hard and very easy prompts count more.**
# >
# > The mean of a group of $G$ leaves $(G-1)/G$ of the gradient. In groups of 8, σ counts a prompt up to 1.4 times as much as a medium one.
# > (Exact, for the first update, rewards of 0 and 1, no KL penalty and no ÷ length.)
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
# which then divides by σ (a mean over $G$; PyTorch's `.std()` divides by $G - 1$). In our scripts:

# %% [fold]
import numpy as np
import torch
from torch.autograd.functional import jacobian

from algorithms import dr_grpo, grpo, rloo
from lessons import identity
from lessons.workshop.companions.lesson_03 import cloud_of_groups, counts_of_prompts
from lessons.workshop.notebook import check, show, show_diff, trains

show_diff(dr_grpo.compute_advantages, rloo.compute_advantages)
four = torch.tensor([[1.0, 0, 0, 1]]).double()
own, others = (script.compute_advantages(rewards=four)[0] for script in (dr_grpo, rloo))
assert torch.allclose(own, 3 / 4 * others) and own[0] == 1 / 2  # the group of four

# %% [markdown]
# | symbol | meaning |
# |---|---|
# | $s_i$ | the score of completion $i$: $\nabla_\theta \log \pi_\theta(y_i)$, summed over its tokens |
# | $\bar R,\ b_i$ | the mean of the group's rewards; the **leave-one-out** mean, of all but $R_i$ |
# | $A_i$ | the advantage: $R_i - b_i$ (RLOO), $R_i - \bar R$ (Dr. GRPO), $(R_i - \bar R)/\sigma$ (GRPO) |
# | $g$ | the update of one group: $\frac1G \sum_i A_i\, s_i$ |
#
# ## Without σ: the direction stays
#
# Where does $g$ point on average?
#
# **Step 1: RLOO.** $b_i$ contains only the *other* completions, which are independent of completion $i$. So it is a baseline that does not
# depend on the completion, and [lesson 1](01_score_function.ipynb)'s theorem holds: $\mathbb E[(R_i - b_i)\, s_i] = \nabla p$, the gradient of the
# success probability $p$. The mean over the group is $\nabla p$, too: $\mathbb E[g] = \nabla p$.
#
# **Step 2: Dr. GRPO.** The mean of the group contains the completion's own reward, with weight $\frac1G$. So
# $R_i - \bar R = \frac{G-1}{G}(R_i - b_i)$: in every group the advantages are RLOO's times $\frac{G-1}G$, and
# $\mathbb E[g] = \frac{G-1}{G}\nabla p$. ∎
#
# Dr. GRPO is often called unbiased. It is, up to this constant.
#
# (We look at the first update after sampling, on which nothing is clipped, without a KL term, with rewards of 0 and 1. Scores are summed over
# tokens; GRPO's division by length is [lesson 5](05_length.ipynb)'s subject.)
#
# ## With σ: the direction stays, but prompts count differently
#
# GRPO divides $R_i - \bar R$ by σ, which varies from group to group, so step 2 does not apply.
# By hand: in a group of three, let $j$ of the *others* be right. Completion $i$ has the advantage $A(\text{right}, j)$ if it is right itself,
# $A(\text{wrong}, j)$ if not:
#
# | $j$ | 0 | 1 | 2 |
# |---|---|---|---|
# | $A(\text{right}, j)$ | 1.41 | .71 | 0 |
# | $A(\text{wrong}, j)$ | 0 | −.71 | −1.41 |
# | **difference** | **1.41** | **1.41** | **1.41** |
#
# For $j = 0$: rewards 1, 0, 0, mean 1/3, σ = $\sqrt2/3$ = .47, and (1 − 1/3)/.47 = 1.41. (Zeros: three equal rewards. Such a group
# is **silent**, it trains nothing.)
#
# Only the differences matter. The others are independent of completion $i$, and $\mathbb E[R\,s] = \nabla p$,
# $\mathbb E[(1-R)\,s] = -\nabla p$. So for each $j$
#
# $$\mathbb E[A_i s_i \mid j] = A(\text{right}, j)\,\mathbb E[R\,s] + A(\text{wrong}, j)\,\mathbb E[(1-R)\,s]
# = \big(A(\text{right}, j) - A(\text{wrong}, j)\big)\,\nabla p$$
#
# and on average over $j$
#
# $$\mathbb E[g] = w(p)\,\nabla p, \qquad w(p) = \mathbb E_j\big[A(\text{right}, j) - A(\text{wrong}, j)\big],
# \quad j \sim \mathrm{Binomial}(G-1, p)$$
#
# So ÷ σ keeps the direction, and a prompt counts $w(p)$ times. In groups of three all mixed groups have one σ, so $w = 1.41$ for every
# prompt. From four on there are several: with σ = .43 and .5 the differences are 1.73, 1.58, 1.58 and 1.73, largest for $j = 0$, as on a very
# hard prompt, and for $j = 3$, as on a very easy one. In larger groups it matters more:

# %% [fold]
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
ps = np.linspace(0, 1, 401)
counts = {G: identity.weight("GRPO", ps, G) / identity.weight("GRPO", 0.5, G) for G in (4, 8, 64)}
dots = [((case[0] @ rewards).item(), moments(grpo, 4, case)[0])
        for case in map(study, np.linspace(-3, 4, 8))]  # p, factor
assert np.allclose([identity.weight("GRPO", p, 4) for p, _ in dots], [w for _, w in dots])
show(counts_of_prompts(ps, counts, [(p, w / identity.weight("GRPO", 0.5, 4)) for p, w in dots]))

# %% [markdown]
# *How much a prompt counts in GRPO's average update, against one with $p = ½$: $w(p)/w(½)$. Without σ: 1 everywhere. Dots: computed from
# all groups of four of eight small policies, below.*
#
# Why? On a very hard prompt the groups that train have one right completion, and σ is small. In groups of 8 it turns that completion's
# advantage .875 into 2.65, three times as much; in a half-right group .5 into 1, only twice.
#
# %% [text]
# ## The check: all groups
#
# A tiny policy is asked for two digits from 0 to 2 that add up to 2: of its nine completions three are right
# ($p$ = {=p:.3f}). It has $9^G$ groups. From all of them, with the scripts' own functions, the factor of $\nabla p$ in $\mathbb E[g]$:

# %% [fold]
print("G     RLOO Dr. GRPO  (G-1)/G    GRPO    w(p)")
for G in (2, 3, 4, 5):
    found = [moments(script, G, policy)[0] for script in (rloo, dr_grpo, grpo)]
    w = float(identity.weight("GRPO", p, G))
    assert np.allclose(found, [1, (G - 1) / G, w], rtol=1e-12, atol=0)
    print(G, *(f"{x:8.4f}" for x in (*found[:2], (G - 1) / G, found[2], w)))

# %% [markdown]
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
# <details><summary>After the exercise</summary>
#
# Only a completion's *own* weight shortens the update: the others' rewards are independent of its score.
#
# </details>
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
# <details><summary>After the exercise</summary>
#
# The repaired rule climbs the mean reward of the *verified* completions (second reading). **A completion that would be wrong gains by timing
# out**: it gets 0 in place of $-b$. With the bug a right completion loses by being slow. Either can be exploited.
#
# "Own reward in the mean" multiplies a group's advantages by $(n-1)/n$, where $n$ are verified in *that* group. The average direction
# stays, but prompts with many timeouts count less.
#
# </details>

# %% [markdown]
# ## To remember
#
# - A baseline of the *others'* rewards keeps the average update. The group's mean shortens it to $(G-1)/G$, which AdamW divides out.
# - With no ÷ length and no KL, GRPO's average update is a multiple of $\nabla p$, from $G = 4$ on a larger one for very hard and very easy prompts.
#
# ## For a second reading (15 minutes)
#
# **What a group costs.** A group takes $G$ completions, and the mean of $n$ updates has the variance $\operatorname{Var}[g]/n$. So at equal
# cost we compare $G\operatorname{Var}[g]$, the variance *per completion*. RLOO's update is the estimate with the exact $p$ as its baseline,
# plus a part with mean 0:
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
#
# **What exercise 2's repair climbs.** Let $v$ be 1 for a verified completion and 0 for a timeout, whose chance depends on the completion alone.
# If another one of the group is verified, the others' mean $b$ has the mean $\mathbb E[R \mid v = 1]$, whatever completion $i$ is. So, with
# $P = \mathbb E[v]$ (the last step is a quotient's derivative),
#
# $$\mathbb E[v\,(R - b)\,s] = \nabla\,\mathbb E[v R] - \mathbb E[R \mid v = 1]\,\nabla P = P\;\nabla\,\mathbb E[R \mid v = 1]$$
#
# The bug climbs $\mathbb E[vR]$. (In the exercise's training two of eight completions never time out, so this holds roughly.)


# %% [fold]
pairs = torch.cartesian_prod(*[torch.arange(9)] * 2)  # (81, 2): all groups of two
updates = {name: (script.compute_advantages(rewards=rewards[pairs])[..., None] * scores[pairs])
           .mean(dim=1) for name, script in (("RLOO", rloo), ("Dr. GRPO", dr_grpo))}
ones = [script.compute_advantages(rewards=rewards[pairs]) for script in (rloo, grpo)]
assert torch.allclose(*ones, rtol=1e-12, atol=0)  # as the caption says
show(cloud_of_groups(updates, probs[pairs].prod(dim=1), grad_p))

# After exercise 2: what the repaired rule climbs, on this task
v, uniform = torch.arange(9).double() / 9, torch.zeros(12).double()  # v: how often verified

def right_if_verified(theta):
    return (log_probs(theta) + v.log()).softmax(dim=0) @ rewards

climbed = v * (rewards - right_if_verified(uniform)) @ jacobian(log_probs, uniform)
assert torch.allclose(climbed, v.sum() * jacobian(right_if_verified, uniform))

squares = scores.square().sum(dim=1)

def per_completion(baseline):
    """G times the variance of g with a constant baseline: the same for every G."""
    return (probs @ ((rewards - baseline) ** 2 * squares) - grad_p @ grad_p).item()

price = (p * (1 - p) * (probs @ squares) + grad_p @ grad_p).item()  # times G - 1, of estimating p
none, exact = per_completion(0), per_completion(p)
print(f"variance per completion\n  b = 0:       {none:.4f}\n  exact p:     {exact:.4f}")
for G in (2, 3, 4, 5):
    loo, shorter = (G * moments(script, G, policy)[1] for script in (rloo, dr_grpo))
    rescaled = shorter * (G / (G - 1)) ** 2
    assert np.allclose([loo, rescaled], exact + price / (G - 1), rtol=1e-12, atol=0)
    print(f"  RLOO, G = {G}: {loo:.4f}")

# %% [text]
# *A dot is the update of one group of two, its size the group's probability; the cross is $\nabla p$, the circle the average. GRPO's groups of
# two lie where RLOO's do.* RLOO is noisier than no baseline in groups of two and three, and less noisy from four on.
#
# **Is it biased, after all?** "Your Group-Relative Advantage Is Biased" ([2601.08521](https://arxiv.org/abs/2601.08521)) finds advantages too low on
# hard prompts. That is so *given a mixed group*: at $p = .1$ a mixed group of 8 has the mean reward {=(0.1 - 0.1**8) / (1 - 0.1**8 - 0.9**8):.2f}, not .1. The silent groups,
# which bring no update, make up for it: over all groups $R - b_i$ has no bias (step 1).
#
# **Groups by text.** A batch may hold the question *how many?* twice, with two different pictures. Some public trainers group completions by
# the prompt's text, which merges the two. Then every completion for a hard picture (all wrong) gets −1/2 and every one for an easy one
# (all right) 1/2, though neither group should train.
#
# Sources: GRPO, [arXiv:2402.03300](https://arxiv.org/abs/2402.03300), section 4.1.2; Dr. GRPO and its relation to RLOO,
# [2503.20783](https://arxiv.org/abs/2503.20783), App. A; RLOO: Kool, van Hoof and Welling 2019, *Buy 4 REINFORCE Samples, Get a Baseline
# for Free!*, and Ahmadian et al., [2402.14740](https://arxiv.org/abs/2402.14740); the weight $w(p)$: Davis and Recht,
# [2510.13651](https://arxiv.org/abs/2510.13651). Groups merged by text: NeMo-RL's pull request 3882. The formulas for the variance are
# ours.
