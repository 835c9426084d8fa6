# %% [markdown] 38 minutes, without the second reading
# # 6 · The identity: σ times a contrast
#
# A language model completes one prompt G times, and a verifier gives each completion a reward, 1 (right) or 0 (wrong). GRPO (group relative
# policy optimization) turns these rewards into one update $g$ of the model.
#
# > **GRPO's update of a prompt is σ, the standard deviation of its rewards, times the *contrast*: the mean direction that makes right
# > completions more probable, minus the mean direction that makes wrong ones more probable.**
# >
# > It is algebra: it holds for any model, as long as every reward is 0 or 1 and no KL (Kullback–Leibler) penalty is added.
#
# The direction that makes completion $i$ more probable is its **score** $s_i$, the gradient of its log-probability. With the mean scores
# $\bar s_+$ of right and $\bar s_-$ of wrong completions, the claim is
#
# $$g \;=\; \sigma\,\big(\bar s_+ - \bar s_-\big)$$
#
# **The smallest case.** Take groups of four, with two and with three right completions. A completion's **advantage**
# $A_i$ is its reward less the mean of the group, divided by σ (a mean over $G$; PyTorch's `.std()` divides by $G - 1$). The update is $g = \frac14\sum_i A_i s_i$.
#
# | rewards | σ | advantages | $g$ |
# |---|---|---|---|
# | 1 0 1 0 | .5 | 1, −1, 1, −1 | $\frac14(2\,\bar s_+ - 2\,\bar s_-) = .5\,(\bar s_+ - \bar s_-)$ |
# | 1 1 1 0 | .433 | .58, .58, .58, −1.73 | $\frac14(3 \cdot .58\,\bar s_+ - 1.73\,\bar s_-) = .433\,(\bar s_+ - \bar s_-)$ |
#
# Both means have the coefficient σ. Dr. GRPO ("GRPO done right") does not divide by σ. So its update is σ
# times GRPO's, and its coefficient is σ²: here .25 and .19.
#
# Eight completions: if four are wrong, GRPO gives each the advantage −1; a single wrong one gets −2.6. Yet the contrast's weight is
# smaller then: .33 against .50 (Dr. GRPO: .11 against .25). Move $k$, the number of right completions:

# %% [fold]
import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from algorithms import batch_sigma, dapo, dr_grpo, grpo
from lessons import identity
from lessons.experiments import estimators
from lessons.experiments.float64 import to_float64
from lessons.workshop.companions import lesson_06 as figures
from lessons.workshop.companions.lesson_05 import loss_of_script
from lessons.workshop.notebook import check, knob, say, show, trains
from toy_env import arithmetic
from toy_env.model import load_policy
from toy_env.rollout import completion_logps, sample

knob(figures.advantages_and_coefficients, k=(0, 8, 1, 7))
hardest = {k: grpo.compute_advantages(rewards=(torch.arange(8) < k).double()[None]).min()
           for k in (7, 4)}
assert f"{hardest[7] / hardest[4]:.1f}" == "2.6"  # as in the text
coefficients = [identity.sigma(k, of) ** power for power in (1, 2)
                for k, of in ((7, 8), (4, 8), (3, 4), (2, 4))]
in_text = [0.33, 0.50, 0.433, 0.5, 0.11, 0.25, 0.19, 0.25]
assert np.allclose(coefficients, in_text, rtol=0, atol=0.005)
p = np.linspace(0.01, 0.99, 99)
factor = identity.weight("GRPO", p, 8)  # lesson 3's
assert np.allclose(identity.expected_sigma(p, 8) / (p * (1 - p)), factor)
assert (np.diff(factor[:50]) < 0).all() and np.allclose(factor, factor[::-1])  # least at 1/2

# %% [markdown]
# *Left: how hard each completion is pushed, by its advantage. Right: the weight of the contrast. DAPO (decoupled clip and dynamic sampling policy
# optimization) has GRPO's advantages.*
#
# Why σ, and nothing else?
#
# ## The proof, in four steps
#
# With the reward $R_i$ of completion $i$, GRPO's advantage is $A_i = (R_i - k/G)/\sigma$.
#
# **Step 1.** Rewards are 0 or 1, so the advantage takes two values. With $\sigma = \sqrt{k(G-k)}/G$ they are
#
# $$A_+ = \frac{1 - k/G}{\sigma} = \sqrt{\frac{G-k}{k}}, \qquad A_- = \frac{0 - k/G}{\sigma} = -\sqrt{\frac{k}{G-k}}$$
#
# **Step 2.** Split the sum in $g$ into right and wrong completions. The scores of the right ones add up to $k$ times their mean:
#
# $$g = \frac1G \sum_i A_i s_i = \frac{k}{G} A_+\, \bar s_+ + \frac{G-k}{G} A_-\, \bar s_-$$
#
# **Step 3.** Insert the two values:
#
# $$\frac{k}{G}\sqrt{\frac{G-k}{k}} = \frac{\sqrt{k(G-k)}}{G} = \sigma, \qquad
# -\frac{G-k}{G}\sqrt{\frac{k}{G-k}} = -\sigma$$
#
# **Step 4.** So $g = \sigma\,(\bar s_+ - \bar s_-)$, and Dr. GRPO's update is $\sigma^2\,(\bar s_+ - \bar s_-)$.
# In a **silent** group, all right or all wrong, every $R_i$ equals the mean, and $g = 0$. ∎
#
# The steps assume nothing about the scores: **the identity holds for any vectors**. So it also holds if each completion's score is divided by its
# length, as in `grpo.py`.
#
# ## σ is not the weight of $\nabla p$
#
# By now σ looks as if GRPO cared least for very hard and very easy prompts; [lesson 3](03_group_baseline.ipynb) says that it favours them. Both are
# true: σ is the weight of the *contrast*, not of $\nabla p$, the gradient of the probability $p$ of a right completion.
#
# For a score $s$ that is a sum over tokens, $\mathbb E[R\,s] = \nabla p$ and $\mathbb E[s] = 0$ ([lesson 1](01_score_function.ipynb)). Let right scores
# have the mean $m_+$, wrong ones $m_-$, and $q = 1 - p$. Then $p\,m_+ = \nabla p$ and $p\,m_+ + q\,m_- = 0$, so
#
# $$m_+ = \frac{\nabla p}{p}, \qquad m_- = -\frac{\nabla p}{q}, \qquad m_+ - m_- = \frac{\nabla p}{pq}$$
#
# So in units of $\nabla p$ the contrast is longest at the ends. Whatever $k$ is, a mixed group's has this mean, and GRPO's mean update is $\nabla p$ times
# $\mathbb E[\sigma]/(pq)$: lesson 3's $w(p)$, from $G = 4$ on least at $p = ½$.
#
# ## A group of our base model
#
# What does such an update do to real tokens? Eight completions of a sum, and how a step of length 0.01 along the update of `grpo.py`
# changes each token's log-probability:

# %% [fold]
policy, tokenizer = load_policy("base")
policy = to_float64(policy)  # double precision, so that "equal" can mean twelve digits
G, generator = 8, torch.Generator().manual_seed(6)
problem = arithmetic.Problem("2+10+2", answer=14, level=2)
group = sample(policy, tokenizer, [problem.prompt], G, 56, 1.0, generator)  # 56 tokens at most
R = torch.tensor([arithmetic.reward(problem, text) for text in group.texts]).double()
k = int(R.sum())


def gradients(values):
    """(n, parameters): the gradient of each of n values."""
    weights = list(policy.parameters())
    parts = [torch.autograd.grad(value, weights, retain_graph=True) for value in values]
    return torch.stack([torch.cat([part.flatten() for part in one]) for one in parts])


def totals():
    """(G,): each completion's log-probability, summed over its tokens, EOS included."""
    return completion_logps(policy, group, temperature=1.0).sum(dim=1)


def loss_gradient(script, rewards, old=None, ref=None):
    """Minus the gradient of policy_loss; by default old and ref are the policy itself."""
    logps = completion_logps(policy, group, temperature=1.0)
    return gradients([-loss_of_script(script, rewards.view(1, G), logps, group.mask, old, ref)])[0]


start = parameters_to_vector(policy.parameters()).detach()
before, step = completion_logps(policy, group, 1.0).detach(), loss_gradient(grpo, R)


def move(distance):  # along the step; returns each token's change of log-probability
    vector_to_parameters(start + distance * step / step.norm(), policy.parameters())
    return completion_logps(policy, group, 1.0) - before  # (G, T)


change, A = move(0.01).detach(), grpo.compute_advantages(rewards=R.view(1, G))[0]
vector_to_parameters(start, policy.parameters())
show(figures.token_changes(group, change, A, tokenizer))
assert before[5, 1:20].min().exp() > 0.975  # the long right completion
row = dict(zip(group.texts, change))
assert row["#13"][2] < -0.3 and row["#14"][2] > 0.3
assert row["#14"][0] < 0 < row["2+10=12;12+2=14;#14"][0] and row["#2"][1] > 0 > row["#0"][1]

# %% [text]
# *Prompt `{=problem.prompt}`. Blue: more probable; red: less, on a logarithmic scale; small block: end of the completion.* A shared prefix
# is pushed both ways: `#`, with which one right and six wrong completions begin, falls a little. Where
# they diverge, the last digit of `#13` falls by {=-row["#13"][2]:.2f}, that of `#14` rises by {=row["#14"][2]:.2f}. The `2` of `#2` and
# `#20` rises: it is pushed down, but so are two `0` in its place, and what they lose goes to other tokens. The long right completion stays
# pale: after its first token each has a probability of .98 or more already, and `grpo.py` divides its push by the length
# ([lesson 5](05_length.ipynb)). The check below takes sums instead.
#
# Is it σ times the contrast, with $k = 2$?


# %%
def contrast(vectors, right):
    return vectors[right].mean(dim=0) - vectors[~right].mean(dim=0)  # no advantage anywhere

def relative_error(computed, expected):
    return ((computed - expected).norm() / expected.norm()).item()

s, sigma = gradients(totals()), float(identity.sigma(k, G))
for script, coefficient in ((grpo, sigma), (dr_grpo, sigma**2)):
    A = script.compute_advantages(rewards=R.view(1, G)).flatten()
    error = relative_error((A.unsqueeze(1) * s).mean(dim=0), coefficient * contrast(s, R == 1))
    assert error < 1e-12
    print(f"{script.__name__:18} coefficient {coefficient:.4f}, relative error < 1e-12")

# %% [markdown]
# ## Where it holds
#
# The identity is about one whole group with rewards 0 and 1. Later updates and the clip change only the vectors. A KL penalty adds its own
# gradient, even to silent groups. Minibatches that cut groups, or a third reward value, such as DAPO's punishment of long completions, break it.
#
# The coefficient is not the update's length: a mean of four wrong scores averages their noise, a single one keeps it. On our base model, GRPO's
# update is about as long with seven right as with four (second reading).
#
# ## Exercises
#
# **1. RLOO** (REINFORCE leave-one-out) subtracts from each reward the mean reward of the *other* completions of the group. What are its two
# advantages and its coefficient of $\bar s_+ - \bar s_-$?


# %% [exercise]
def rloo(k, G):
    """(A_right, A_wrong, coefficient) of a group with k of G right, 0 < k < G."""
    return ...


# %% [check]
check("6.1", rloo)

# %% [hint]
# For a right completion, k − 1 of the other G − 1 are right; for a wrong one, k of them. Then do step 2.


# %% [solution]
def rloo(k, G):
    return (G - k) / (G - 1), -k / (G - 1), k * (G - k) / G / (G - 1)


# %% [markdown]
# <details><summary>After the exercise</summary>
#
# RLOO's coefficient is Dr. GRPO's σ² times $G/(G-1)$: they differ only in the length of the step.
#
# </details>
#
# **2. Find the bug: tiled prompts.** Sampling code often repeats prompts as `a b c a b c` (tiled), while other code expects `a a b b c c`. This
# function gets rewards in the *tiled* order, G rounds over P prompts, and should return GRPO's advantages in that order. Repair it. It then
# trains three prompts, each with its own logit.


# %% [exercise]
def advantages_tiled(rewards, P, G):
    """rewards (G * P,), tiled: row i belongs to prompt i % P. Advantages, same order."""
    groups = rewards.view(P, G)  # <- runs, and is wrong
    A = grpo.compute_advantages(rewards=groups)
    return A.T.flatten()  # back in the tiled order


# %% [check]
check("6.2", advantages_tiled)
trains("6.2", advantages_tiled)  # from p = .9, .5 and .1, with groups of 8

# %% [markdown]
# *Means of ten runs.*

# %% [hint]
# Each row of `rewards.view(G, P)` is one round over all prompts. Where is a group then?


# %% [solution]
def advantages_tiled(rewards, P, G):
    groups = rewards.view(G, P).T
    A = grpo.compute_advantages(rewards=groups)
    return A.T.flatten()


# %% [text]
# <details><summary>After the exercise</summary>
#
# Mixing prompts alone costs little here (yellow: the bug's groups, but each completion gets its own advantage): the mean of several prompts is still
# a baseline. But `A.T.flatten()` hands the advantages to other completions: only
# {=sum(3 * b + a == 8 * a + b for a in range(3) for b in range(8))} of 24 rows get their own. No error is raised, and nothing is learned.
#
# </details>
#
# ## To remember
#
# - For right-or-wrong rewards, GRPO's update of one prompt is σ times the contrast, Dr. GRPO's σ² times.
# - σ is the weight of the contrast, not of $\nabla p$, and not the length of the update.
#
# ## For a second reading (20 minutes): length, partial credit, losses, later updates
#
# **How long is the update?** With variances $v_\pm$ of right and wrong scores (about their means, summed over parameters), the contrast, given $k$,
# has the variance $v_+/k + v_-/(G-k)$. So
#
# $$\mathbb E\,\|g\|^2 = \sigma^2\,\|m_+ - m_-\|^2 + \frac{(G-k)\,v_+ + k\,v_-}{G^2}$$
#
# On our base model wrong scores are noisier, and the last term grows with $k$. Length with $k = 7$ over length with $k = 4$ (root mean squares of
# 500 groups each):

# %% [fold]
def squared_lengths(k, completions, half, n=500):
    """(n,): squared lengths of GRPO's update, of groups from `half` with k right ones."""
    rewards = (torch.arange(G) < k).double().view(1, G)
    a, squares = grpo.compute_advantages(rewards=rewards)[0].numpy() / G, []
    right, wrong = half[completions.right[half]], half[~completions.right[half]]
    parts = ((right, k), (wrong, G - k))
    for _ in range(n):
        rows = np.concatenate([rng.choice(part, m, replace=False) for part, m in parts])
        squares.append(a @ completions.inner[np.ix_(rows, rows)] @ a)
    return squares

ks, rng = np.arange(1, G), np.random.default_rng(0)
off, ratios, rows = [], [], ""
for prompt in arithmetic.held_out_problems(1, levels=(1, 2, 3)):
    n = 1536 if prompt.level == 1 else 640  # at level 1 few completions are wrong
    pool = estimators.Completions.draw(policy, tokenizer, arithmetic, prompt, n, generator)
    for_line, for_groups = np.array_split(pool.drawn, 2)
    v_right, v_wrong, signal = estimators.moments(for_line, pool.right, pool.inner)
    line = [identity.update_norm_squared(int(k), G, signal, v_right, v_wrong) for k in ks]
    dots = [np.mean(squared_lengths(k, pool, for_groups)) for k in ks]
    line, dots = np.sqrt(line), np.sqrt(dots)
    off.extend(abs(dots / line - 1))
    ratios.append(dots[6] / dots[3])
    in_small = ratios[-1] * identity.sigma(7, G) / identity.sigma(4, G)
    rows += f"\n| `{prompt.prompt}` | {v_wrong / v_right:.0f} | {ratios[-1]:.2f} | {in_small:.2f} |"
by_sigma = float(identity.sigma(7, G) / identity.sigma(4, G))
say(f"""| prompt | variance of wrong scores ÷ of right ones | GRPO | Dr. GRPO |
|---|---|---|---|
| by the coefficient alone | | {by_sigma:.2f} | {by_sigma**2:.2f} |{rows}""")
assert min(ratios) > 0.75 and np.median(off) < 0.1 and max(off) < 0.4

# %% [text]
# *The formula misses these lengths by {=np.median(off):.0%} in the median, by {=max(off):.0%} at most (all $k$).*
#
# *The identity's paper calls σ the size of the update: true for a prompt with one parameter, the log-odds of a right completion,
# where the contrast is 1.*
#
# **3. Partial credit.** If some completions get 0.5 or 0.25, there are no longer two classes. Write GRPO's update without any
# advantage: from the group's means of $R$, of $s$ and of their product, and one standard deviation.


# %% [exercise]
def update(rewards, scores):
    """From numpy arrays (G,), rewards not all equal, and (G, n): the update (n,)."""
    return ...


# %% [check]
check("6.3", update)

# %% [hint]
# Multiply out (R − mean of R) · s and take the mean. Which well-known statistic of two variables is this?


# %% [solution]
def update(rewards, scores):
    product = rewards.mean() * scores.mean(axis=0)
    covariance = (rewards[:, None] * scores).mean(axis=0) - product
    return covariance / rewards.std()


# %% [markdown]
# <details><summary>After the exercise</summary>
#
# For any rewards GRPO's update is the covariance of reward and score, over σ. With rewards 0 and 1 the covariance is σ² times the contrast.
#
# </details>
#
# **Through the scripts' own losses.** Dr. GRPO's loss divides every completion's sum by the constant $C$ (`max_new_tokens`), so its gradient is
# $\frac{\sigma^2}{C}(\bar s_+ - \bar s_-)$. DAPO divides by the batch's tokens, `batch_sigma.py` by the batch's $\sigma_B$ in place of σ.

# %% [fold]
lengths, C = group.mask.sum(dim=1), dr_grpo.Config().max_new_tokens
mean_scores, tokens = gradients(totals() / lengths), int(lengths.sum())
scripts, held = (grpo, dr_grpo, dapo, batch_sigma), []
for declared in range(G + 1):
    right, size = torch.arange(G) < declared, float(identity.sigma(declared, G))
    by_sum, by_mean = contrast(s, right), contrast(mean_scores, right)
    claims = [size * by_mean, size**2 / C * by_sum, size * G / tokens * by_sum]
    claims.append(size / C * by_sum)  # sigma^2 over that of the batch, which is this group
    found = [loss_gradient(script, right.double()) for script in scripts]
    holds = [relative_error(g, claim) < 1e-12 if size else g.norm().item() == 0
             for g, claim in zip(found, claims)]
    assert all(holds)
    held += holds
print(f"k = 0 to 8, {len(scripts)} scripts: coefficient times contrast to 1e-12, and exactly 0 at "
      f"k = 0 and 8, in {sum(held)} of {len(held)} cases")
# Two updates that are not σ times the contrast: one with a KL to the start, a later one
move(0.01)
with_kl, silent = (loss_gradient(grpo, rewards, ref=before) for rewards in (R, 0 * R))
expected = sigma * contrast(gradients(totals() / lengths), R == 1)
kl_error = relative_error(with_kl, expected)
assert relative_error(with_kl - silent, expected) < 1e-12 < 0.01 < min(kl_error, silent.norm())
stopped = []  # at a later update, after steps of three lengths
for log_ratio in (move(distance) for distance in (0.01, 0.05, 0.15)):
    ratio = log_ratio.exp()
    kept = torch.where(R.view(G, 1) == 1, ratio.clamp(max=1.2), ratio.clamp(min=0.8))
    later = contrast(gradients((kept * group.mask).sum(dim=1) / lengths), R == 1)
    assert relative_error(loss_gradient(grpo, R, before), sigma * later) < 1e-12
    stopped.append(int((kept != ratio).sum()))
vector_to_parameters(start, policy.parameters())

# %% [text]
# **Later updates.** Now tokens carry ratios $\rho_t$, and the clip stops some, depending on $\rho_t$ and the *sign* of A, never on A's size.
# So completion $i$ contributes $A_i$ times the gradient of
#
# $$u_i = \frac1{|y_i|}\sum_t \min(\rho_t,\, 1.2)\ \text{(right)}, \qquad
# u_i = \frac1{|y_i|}\sum_t \max(\rho_t,\, 0.8)\ \text{(wrong)}$$
#
# and steps 1 to 4 hold: checked to $10^{-12}$ after three steps, where the clip stops {=stopped[0]}, {=stopped[1]} and {=stopped[2]} of {=tokens} tokens.
#
# Source of the identity: *GRPO, Dr. GRPO, and DAPO Are Three Operations on One Number*,
# [arXiv:2607.00152](https://arxiv.org/abs/2607.00152), Theorem 1. (Its Table 1 gives DAPO a row of its own, σ in mixed groups. That is GRPO's row:
# in a silent group σ is 0 anyway. Only what replaces a silent group differs, [lesson 10](10_dapo.ipynb).) GRPO: [2402.03300](https://arxiv.org/abs/2402.03300), Eq. 3; Dr. GRPO:
# [2503.20783](https://arxiv.org/abs/2503.20783), App. A; DAPO: [2503.14476](https://arxiv.org/abs/2503.14476), Eq. 8–9. The formula for
# the length is ours.
