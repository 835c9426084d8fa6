# %% [markdown] 40 minutes, without the second reading
# # 3 · GRPO's baseline
#
# Group relative policy optimization (GRPO) samples a **group** of G completions of the same prompt, independently of each other, and
# subtracts the group's mean reward from each reward. The mean takes the place of PPO's critic ([lesson 15](15_critic.ipynb)).
#
# > **Subtract the mean of the *others*, and the average update is exactly the gradient of the success probability; subtract the mean of the
# > whole group, and it is $(G-1)/G$ of that gradient, which the learning rate makes up for. GRPO's division by σ, the standard deviation of
# > the group's rewards, does have a consequence: it keeps the direction, but from G = 4 on some prompts count more than others.**
# >
# > This is proved for rewards of 0 and 1 and the first update after sampling. Which prompts count more, and how much:
# > [lesson 9](09_objective.ipynb).
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
# The mean of the others is RLOO's baseline (REINFORCE leave-one-out), the mean of the group that of Dr. GRPO ("GRPO done right") and of GRPO.
# Here are the updates of all groups of *two* under a tiny policy, without the division by σ, which comes after the proof:

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
show(cloud_of_groups(updates, probs[pairs].prod(dim=1), grad_p))

# %% [text]
# *A dot is the update of one group, its size the group's probability. Two of the policy's 12 dimensions are drawn: along the gradient of the
# success probability $p$ (the arrow, $\nabla p$) and, across it, the direction in which updates vary most. At the origin: groups whose two
# rewards agree. The black circle is the average of all groups: for RLOO at the tip of the arrow, for Dr. GRPO half way, as
# $(G-1)/G = 1/2$.*
#
# | symbol | meaning |
# |---|---|
# | $s_i$ | the score of completion $i$: $\nabla_\theta \log \pi_\theta(y_i)$, summed over its tokens |
# | $\bar R$ | the mean of the group's rewards $R_1, \dots, R_G$, completion $i$ included |
# | $b_i$ | the **leave-one-out** mean, that of the other $G - 1$ rewards |
# | $A_i$ | the advantage: $R_i - b_i$ (RLOO), $R_i - \bar R$ (Dr. GRPO), $(R_i - \bar R)/\sigma$ (GRPO) |
# | $g$ | the update of one group: $\frac1G \sum_i A_i\, s_i$ |
#
# In symbols the claim is $\mathbb E[g] = \nabla p$ for RLOO, and $\mathbb E[g] = \frac{G-1}{G}\nabla p$ for Dr. GRPO. In our scripts the
# change from Dr. GRPO's advantage to RLOO's is this; below it, the group of four:

# %% [fold]
show_diff(dr_grpo.compute_advantages, rloo.compute_advantages)
four = torch.tensor([[1.0, 0, 0, 1]]).double()
own, others = (script.compute_advantages(rewards=four)[0] for script in (dr_grpo, rloo))
print(f"Dr. GRPO {own.numpy()}\nRLOO     {others.numpy().round(3)}")
assert torch.allclose(own, 3 / 4 * others)

# %% [markdown]
# ## The proof
#
# **Step 1: pairs.** RLOO's advantage is the mean of $R_i - R_j$ over the other completions $j$. So its update is a sum over ordered pairs.
# The terms $(i, j)$ and $(j, i)$ together make $(R_i - R_j)(s_i - s_j)$:
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
# Dr. GRPO is often called unbiased. It is, up to this constant: its update is the sample covariance of $R$ and $s$ with divisor $G$,
# RLOO's the one with divisor $G-1$ (Bessel's correction).
#
# The pairs show more. Two completions with the same reward contribute nothing: **only pairs of a right and a wrong completion count**. A
# group without such a pair is **silent** ([lesson 6](06_identity.ipynb)): it trains nothing.
#
# **Scope.** The theorem holds for the first update after sampling (every ratio is 1 and nothing is clipped), for scores summed over
# tokens, without a KL (Kullback–Leibler) term. In their losses, Dr. GRPO also divides by a constant and GRPO by each completion's length;
# below, all completions have two tokens.
#
# %% [text]
# ## The experiment: all groups
#
# The policy of the picture has the prompt *write two digits from 0 to 2 that add up to 2*. Of the nine completions, `00` to `22`, three are
# right; here $p$ = {=p:.3f}. The policy has 12 parameters: three logits for the first digit, and three for the second after each first
# digit. Nine completions make $9^G$ groups. We compute each group's advantages with the scripts' own functions and weight its update by
# its probability.


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

print("   factor of grad p in E[g]\nG      RLOO  Dr. GRPO  (G-1)/G")
for G in (2, 3, 4, 5):
    loo, dr = (moments(script, G, policy)[0] for script in (rloo, dr_grpo))
    assert np.allclose([loo, dr], [1, (G - 1) / G], rtol=1e-12, atol=0)
    print(f"{G}  {loo:8.4f}  {dr:8.4f}  {(G - 1) / G:7.4f}")

# %% [markdown]
# ## And GRPO?
#
# GRPO divides $R_i - \bar R$ by σ, which varies from group to group, so step 3 does not apply. Look at completion $i$ in a group of three,
# and let $j$ of the *others* be right. Write $A(\text{right}, j)$ for its advantage if it is right itself, $A(\text{wrong}, j)$ if not:
#
# | $j$ | 0 | 1 | 2 |
# |---|---|---|---|
# | $A(\text{right}, j)$ | 1.41 | .71 | 0 |
# | $A(\text{wrong}, j)$ | 0 | −.71 | −1.41 |
# | **difference** | **1.41** | **1.41** | **1.41** |
#
# In groups of four the differences are 1.73, 1.58, 1.58 and 1.73: there it matters how many of the others are right.
#
# Since $\mathbb E[R\,s] = \nabla p$ and $\mathbb E[(1-R)\,s] = -\nabla p$, the mean of $A_i s_i$ is the difference times $\nabla p$. This
# holds for each $j$, so also on average:
#
# $$\mathbb E[A_i s_i] = w(p)\,\nabla p, \qquad w(p) = \mathbb E_j\big[A(\text{right}, j) - A(\text{wrong}, j)\big],
# \quad j \sim \mathrm{Binomial}(G-1, p)$$
#
# So GRPO's average update still has the gradient's direction. `identity.weight` is this formula; again over all groups:

# %% [fold]
for G, differences in ((3, [1.41] * 3), (4, [1.73, 1.58, 1.58, 1.73])):
    last = torch.ones(G, G).tril(-1).double()  # j right ones, then a wrong one, which is turned
    of_last = [grpo.compute_advantages(rewards=last + turn)[:, -1]
               for turn in (torch.eye(G)[-1], 0)]
    assert np.allclose(of_last[0] - of_last[1], differences, atol=0.005)  # the table
for G in (2, 3, 4, 5):
    full, w = moments(grpo, G, policy)[0], float(identity.weight("GRPO", p, G))
    assert np.isclose(full, w, rtol=1e-12, atol=0)
    print(f"G = {G}: GRPO's factor {full:.4f}, w(p) {w:.4f}")

# %% [markdown]
# In groups of two $w = 1$, in groups of three 1.41. From $G = 4$ on, $w$ depends on $p$.
#
# ## Easy and hard prompts
#
# Now we vary $p$, by raising or lowering the logits of the three right second digits. A flat line counts easy and hard prompts alike. Move
# $G$.

# %% [fold]
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

knob(draw, G=(2, 64, 1, 8))

# %% [markdown]
# *The factor of $\nabla p$ in the average update, from the formulas. (Up to G = 4 there are also dots, computed over all groups.) GRPO's
# factor is flat only at G = 2 and 3. The larger the groups, the more very hard and very easy prompts count against medium ones
# ([lesson 9](09_objective.ipynb)).*
#
# How noisy the updates are is another question: see the second reading, for GRPO [lesson 7](07_group_size.ipynb).
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
# **2. Find the bug.** For some completions the verifier timed out: their entries in `rewards` mean nothing and may be NaN. The function
# below counts them as wrong. Repair it: RLOO compares a verified completion with the *other* verified ones of its group; the rest get the
# advantage 0. Use no loop. (Every group has at least two verified completions.) Below the check, your advantages train a policy. Its
# right completion times out four times in five; another is fast and earns half a point.


# %% [exercise]
def rloo_verified(rewards, verified):
    """(P, G) and (P, G), bool, to (P, G)."""
    rewards = torch.where(verified, rewards, 0.0)
    return rloo.compute_advantages(rewards=rewards)  # <- runs, and is wrong


# %% [check]
check("3.2", rloo_verified)
trains("3.2", rloo_verified)

# %% [markdown]
# *The mean of 200 policies. If a timeout counts as wrong (the bug), they learn to be fast and half right. The other two mistakes learn the right
# completion, more slowly: one divides by $G - 1$ although fewer others were verified, the other keeps a completion's own reward in the mean.*

# %% [hint]
# Three steps. NaN times 0 is NaN, so `torch.where` puts a 0 in its place. The sum of the others' rewards is the sum of all minus the
# completion's own; how many others were verified? Last, what is the advantage of a completion that was not?


# %% [solution]
def rloo_verified(rewards, verified):
    rewards = torch.where(verified, rewards, 0.0)  # a product would keep NaN
    total = rewards.sum(dim=1, keepdim=True)
    others = verified.sum(dim=1, keepdim=True) - 1
    return (rewards - (total - rewards) / others) * verified


# %% [markdown]
# ## To remember
#
# - The group's mean contains the completion's own reward, which multiplies the expected gradient by $(G-1)/G$; RLOO leaves it out and
#   gives exactly $\nabla p$. For training this is a matter of the learning rate.
# - GRPO's expectation is a multiple of $\nabla p$ as well, but from $G = 4$ on the multiple depends on $p$: prompts count differently.
#
# ## For a second reading (10 minutes): what the group costs, and groups by text
#
# A group costs $G$ completions, and the mean of $n$ updates has the variance $\operatorname{Var}[g]/n$. So at equal cost the number to
# compare is $G\operatorname{Var}[g]$, the variance *per completion*. RLOO's update is the estimate with the exact $p$ as its baseline, plus a
# part with mean 0 that is the price of estimating $p$ (here $q = 1 - p$):
#
# $$g = \frac1G\sum_i (R_i - p)\, s_i \;-\; \frac{1}{G(G-1)}\sum_{i\ne i'} (R_{i'} - p)\, s_i$$
#
# $$G\operatorname{Var}[g_{\text{RLOO}}] = \underbrace{\mathbb E\big[(R-p)^2\|s\|^2\big] - \|\nabla
# p\|^2}_{\text{with the exact } p} \;+\; \frac{p\,q\;\mathbb E\|s\|^2 + \|\nabla p\|^2}{G-1}$$
#
# The two parts are uncorrelated: multiply a term of the first sum by one of the second, and some $R_{i'} - p$ or $s_i$ is left alone, as
# an independent factor with mean 0. For the same reason only two kinds of product survive in the square of the second sum, the term
# $(i, i')$ with itself and with $(i', i)$. There are $G(G-1)$ of each; their means are $p\,q\;\mathbb E\|s\|^2$ and $\|\nabla p\|^2$.
#
# Dr. GRPO's variance is $\big(\frac{G-1}{G}\big)^2$ times as large. That is no gain: scaled to the same length, its noise is RLOO's.


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
print(f"variance per completion: b = 0 {none:.4f}, exact p {exact:.4f}")
print("G   RLOO     Dr. GRPO   Dr. GRPO / factor²")
for G in (2, 3, 4, 5):
    loo, shorter = (G * moments(script, G, policy)[1] for script in (rloo, dr_grpo))
    rescaled = shorter * (G / (G - 1)) ** 2
    assert np.allclose([loo, rescaled], exact + price(policy) / (G - 1), rtol=1e-12, atol=0)
    print(f"{G}   {loo:.4f}   {shorter:.4f}     {rescaled:.4f}")

# %% [markdown]
# With this policy RLOO is noisier than no baseline in groups of two and three, and less noisy from four on. (With $b = 0$ a wrong
# completion has the advantage 0, so its score adds no noise.)
#
# **Groups by text.** A batch may hold the question *how many?* twice, with two different pictures. Public training code has found the groups
# by the prompt's text, which merges the two. Then a hard picture (all wrong) gets −1/2 and an easy one (all right) 1/2, for nothing.
#
# **Bessel once more.** Inside GRPO's σ the variance is divided by $G$ in `grpo.py`, by $G - 1$ in `torch.std`; DeepSeekMath does not say. The
# latter multiplies every advantage by $\sqrt{(G-1)/G}$: a change of the learning rate.
#
# Sources: GRPO, [arXiv:2402.03300](https://arxiv.org/abs/2402.03300), section 4.1.2; Dr. GRPO and its relation to RLOO,
# [2503.20783](https://arxiv.org/abs/2503.20783), App. A; RLOO: Kool, van Hoof and Welling 2019, *Buy 4 REINFORCE Samples, Get a Baseline
# for Free!*, and Ahmadian et al., [2402.14740](https://arxiv.org/abs/2402.14740); the weight $w(p)$: Davis and Recht,
# [2510.13651](https://arxiv.org/abs/2510.13651). Groups merged by text: NeMo-RL's pull request 3882. The formulas for the variance are
# ours.
