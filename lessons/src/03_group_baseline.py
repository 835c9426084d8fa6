# %% [markdown]
# # 3 · GRPO's baseline
#
# PPO ([lesson 2](02_ppo.ipynb)) trains a second network, the critic, to predict the reward. GRPO has none: it samples
# G answers to the same prompt and takes their mean reward as the baseline. This lesson proves what that does to the
# expected update, on-policy, where $\nabla p$ is the gradient of the probability of a right answer:
#
# $$\mathbb E[g] = \frac{G-1}{G}\,\nabla p \quad\text{(Dr. GRPO: reward minus group mean)}, \qquad
# \mathbb E[g] = \nabla p \quad\text{(RLOO: reward minus the mean of the others)}$$
#
# The mean contains the answer's own reward. That shrinks the expected update and leaves its direction unchanged.
#
# From `ppo.py` to `grpo.py`, in words. *Out*: the critic, its loss, GAE, whitening, the KL penalty inside the reward,
# the mean over all tokens of the batch. *In*: the group's mean as the baseline (this lesson), the division by the
# group's standard deviation ([lesson 6](06_identity.ipynb)), a KL term in the loss ([lesson 4](04_kl.ipynb)), the mean
# over each answer's tokens ([lesson 5](05_length.ipynb)). The ratio and its clip stay.
#
# | symbol | meaning |
# |---|---|
# | $y_1, \dots, y_G$ | a **group**: G answers to one prompt, sampled independently from the policy with parameters θ |
# | $R_i$ | the reward of answer $i$: 1 if it is right, 0 if it is wrong |
# | $p,\ q$ | the probability that an answer is right; $q = 1 - p$ |
# | $s_i$ | the score of answer $i$: $\nabla_\theta \log \pi_\theta(y_i)$, summed over its tokens |
# | $\bar R$ | the mean reward of the group, answer $i$ included |
# | $b_i$ | the **leave-one-out** mean: of the other $G - 1$ rewards, answer $i$ left out |
# | $A_i$ | the advantage: $R_i - \bar R$ (Dr. GRPO), $(R_i - \bar R)/\sigma$ (GRPO, σ the standard deviation of the group's rewards), $R_i - b_i$ (RLOO) |
# | $g$ | the update of one group: $\frac1G \sum_i A_i\, s_i$ |

# %%
import numpy as np
import torch
from torch.autograd.functional import jacobian

from algorithms import dr_grpo, grpo
from lessons import identity
from lessons.kit import BLUE, GREEN, GREY, ORANGE, RED, check, knob, label_line, new_figure, show_diff, show_source
from toy_env.arithmetic import Problem, reward
from toy_env.model import load_policy
from toy_env.rollout import completion_logps, sample

# %% [markdown]
# ## A policy small enough to enumerate
#
# An expectation needs no sampling if we can visit everything that may happen. Our prompt: *write two digits from 0 to
# 2 that add up to 2*. Of the nine answers, `00` to `22`, three are right. The policy has 12 parameters: three logits
# for the first digit, three for the second after each first. So $p$ is a sum of three terms, and autograd gives
# $\nabla p$: our truth, in which no advantage occurs.

# %%
RIGHT = torch.tensor([a + b == 2 for a in range(3) for b in range(3)]).double()  # (9,) the rewards of 00, 01, ..., 22


def log_probs(theta):
    """(9,): the log-probability of every answer, first digit plus second digit."""
    first, second = theta[:3].log_softmax(dim=0), theta[3:].view(3, 3).log_softmax(dim=1)
    return (first.unsqueeze(1) + second).flatten()


def tiny_policy(p):
    """(12,): random parameters, the logits of right second digits shifted until a right answer has probability p."""
    start = torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    low, high = -30.0, 30.0
    for _ in range(60):
        shift = (low + high) / 2
        theta = start + shift * torch.cat([torch.zeros(3), RIGHT])
        low, high = (shift, high) if log_probs(theta).exp() @ RIGHT < p else (low, shift)
    return theta.requires_grad_()


def study(p):
    """Probabilities (9,), scores (9, 12) and the gradient of p (12,), all by enumeration and autograd."""
    theta = tiny_policy(p)
    probs = log_probs(theta).exp()
    grad_p = torch.autograd.grad(probs @ RIGHT, theta)[0]
    return probs.detach(), jacobian(log_probs, theta), grad_p


p = 0.3
probs, scores, grad_p = study(p)
for answer in probs.argsort(descending=True)[:4].tolist():
    print(f"{answer // 3}{answer % 3}   probability {probs[answer]:.3f}   R = {RIGHT[answer]:.0f}")
print(f"p = {probs @ RIGHT:.3f}; the mean score is 0: {bool((probs @ scores).abs().max() < 1e-12)}")

# %% [markdown]
# ## The theorem, in four steps
#
# **Step 1: what [lesson 1](01_score_function.ipynb) gave us.** $\mathbb E[R\,s] = \nabla p$ and $\mathbb E[s] = 0$.
#
# **Step 2: the group's mean contains the own reward.** It is made of the own reward, once, and of the others, $G-1$
# times:
#
# $$\bar R = \frac{R_i + (G-1)\,b_i}{G} \qquad\Longrightarrow\qquad R_i - \bar R = \frac{G-1}{G}\,(R_i - b_i)$$
#
# This is algebra: in every group the two advantages of every answer differ by the same factor.
#
# **Step 3: leave-one-out is unbiased.** $b_i$ is made of other answers, which are independent of answer $i$. So
# $\mathbb E[b_i s_i] = \mathbb E[b_i]\,\mathbb E[s_i] = 0$, and
# $\mathbb E[(R_i - b_i)\, s_i] = \mathbb E[R_i s_i] = \nabla p$.
#
# **Step 4.** Average over $i$: RLOO has $\mathbb E[g] = \nabla p$. By step 2, Dr. GRPO has
# $\mathbb E[g] = \frac{G-1}{G}\nabla p$. ∎
#
# Equivalently, since $\mathbb E[s] = 0$, $\nabla p$ is the *covariance* of $R$ and $s$. RLOO is the sample covariance
# divided by $G-1$, Dr. GRPO the one divided by $G$: the factor is Bessel's correction.
#
# The theorem holds for the first update after sampling (every ratio is 1, nothing is clipped), for scores summed over
# tokens, without a KL term. In the loss, Dr. GRPO divides by one more constant, GRPO by each answer's length ([lesson
# 5](05_length.ipynb)). Below, all answers have two tokens.
#
# ### And GRPO?
#
# Its σ varies from group to group, so step 2 fails. But one line covers every rule in which $A_i$ depends on the own
# reward and on $S$, how many of the *others* are right. Given $S$, use $\mathbb E[R\,s] = \nabla p$ and
# $\mathbb E[(1-R)\,s] = -\nabla p$:
#
# $$\mathbb E[A_i s_i] = w(p)\,\nabla p, \qquad w(p) = \mathbb E_S\big[A(\text{right}, S) - A(\text{wrong}, S)\big],
# \quad S \sim \mathrm{Binomial}(G-1, p)$$
#
# Again a number times $\nabla p$, but GRPO's depends on $p$: prompts are weighted by difficulty. `identity.weight` has
# this formula; lesson 7 goes deeper.
#
# ## The experiment: all groups there are
#
# With nine answers there are $9^G$ groups, 59,049 for G = 5. We visit each one, ask the scripts for its advantages,
# and weight its update with its probability. RLOO is in no script, so here it is, as defined:


# %%
def rloo(*, rewards):
    """Advantages (n, G): each reward minus the mean of the others, answer by answer."""
    G = rewards.shape[1]
    others = [torch.cat([rewards[:, :i], rewards[:, i + 1 :]], dim=1).mean(dim=1) for i in range(G)]
    return rewards - torch.stack(others, dim=1)


def all_groups(G):
    """(9^G, G): every group of answers."""
    return torch.cartesian_prod(*[torch.arange(9)] * G)


def moments(rule, G, policy):
    """E[g] and the variance of g (summed over the 12 parameters), over all groups."""
    probs, scores, _ = policy
    groups = all_groups(G)
    A = rule(rewards=RIGHT[groups])  # (9^G, G)
    g = (A.unsqueeze(2) * scores[groups]).mean(dim=1)  # (9^G, 12)
    chance = probs[groups].prod(dim=1)
    mean = chance @ g
    return mean, chance @ (g - mean).square().sum(dim=1)


def factor(mean, grad_p):
    """The number f in mean = f * grad p. Fails if the directions differ."""
    f = (mean @ grad_p / (grad_p @ grad_p)).item()
    assert (mean - f * grad_p).norm() < 1e-12 * grad_p.norm()
    return f


print("E[g] = factor times grad p, at p = 0.3, over all 9^G groups")
print("G   RLOO     Dr. GRPO  (G-1)/G   GRPO     w(p)     equal to 12 digits")
for G in (2, 3, 4, 5):
    found = [
        factor(moments(rule, G, (probs, scores, grad_p))[0], grad_p)
        for rule in (rloo, dr_grpo.compute_advantages, grpo.compute_advantages)
    ]
    expected = [1, (G - 1) / G, float(identity.weight("GRPO", p, G))]
    equal = np.allclose(found, expected, rtol=1e-12, atol=0)
    assert equal
    print(f"{G}   {found[0]:.4f}   {found[1]:.4f}    {expected[1]:.4f}    {found[2]:.4f}   {expected[2]:.4f}   {equal}")

# %% [markdown]
# *Every expectation points along $\nabla p$; the rules differ in its length.* (`factor` raises an error if there
# is a sideways component.) Dr. GRPO's factor is the same for every prompt, so it belongs to the learning rate; GRPO's
# is not, except in groups of two and three (exercise 3).
#
# At G = 1 the factor is 0: an answer compared with itself teaches nothing. The script refuses. Public code has passed
# the raw reward through instead, or returned NaN (ddof 1 of one number).

# %%
show_source(dr_grpo.compute_advantages)
try:
    dr_grpo.compute_advantages(rewards=torch.ones(4, 1))
except ValueError as error:
    print("ValueError:", error)

# %% [markdown]
# ## The mean of the group, not of the batch
#
# Why not subtract the mean of the whole batch, over P prompts? That too is unbiased up to a constant: it contains the
# own reward with weight $\frac{1}{PG}$, so the same steps give $\big(1 - \frac{1}{PG}\big)\nabla p$. Here are an easy
# prompt ($p = 0.9$) and a hard one ($p = 0.1$) with two answers each, and all $9^4$ batches. The script takes the batch
# mean if we hand it the batch as one group of four:

# %%
easy, hard = study(0.9), study(0.1)
pairs = all_groups(2)
chance = torch.outer(easy[0][pairs].prod(dim=1), hard[0][pairs].prod(dim=1)).flatten()  # (81 * 81,)
first, second = pairs.repeat_interleave(81, dim=0), pairs.repeat(81, 1)  # the easy prompt's answers, the hard one's
A = dr_grpo.compute_advantages(rewards=torch.cat([RIGHT[first], RIGHT[second]], dim=1))  # (81 * 81, 4)
for name, policy, answers, columns in (("easy", easy, first, A[:, :2]), ("hard", hard, second, A[:, 2:])):
    found = factor(chance @ (columns.unsqueeze(2) * policy[1][answers]).mean(dim=1), policy[2])
    assert abs(found - (1 - 1 / 4)) < 1e-12
    print(f"batch mean, {name} prompt: E[g] = {found:.4f} grad p; 1 - 1/(PG) = {1 - 1 / 4:.4f}")

usual = torch.tensor([[1, 1], [0, 0]]).double()  # the easy prompt all right, the hard one all wrong
print("\nadvantages with the group's mean:", (dr_grpo.compute_advantages(rewards=usual).flatten() + 0.0).tolist())
print("advantages with the batch's mean:", dr_grpo.compute_advantages(rewards=usual.view(1, 4)).flatten().tolist())

# %% [markdown]
# The two differ in their noise. Against a batch mean near ½ nearly all answers to the easy prompt are pushed up and
# nearly all to the hard one down, better than usual *for that prompt* or not. Those pushes cancel only on average.
#
# ## What the group costs, and what it saves
#
# Compare at equal numbers of samples: averaging groups of G, the variance *per sample* is $G \cdot \mathrm{Var}[g]$.
# Let $r_i = R_i - p$. RLOO's update splits in two:
#
# $$g = \frac1G\sum_i r_i s_i \;-\; \frac{1}{G(G-1)}\sum_{i\ne j} r_j s_i$$
#
# The first part is the estimate with the exact $p$ as its baseline. The second has mean 0, is uncorrelated with the
# first, and is the price of estimating $p$. In its square, the term of $(i,j)$ survives only with itself and with
# $(j,i)$:
#
# $$G\cdot\mathrm{Var}[g_{\text{RLOO}}] = \underbrace{\mathbb E\big[(R-p)^2\|s\|^2\big] - \|\nabla
# p\|^2}_{\text{baseline } p} \;+\; \frac{p\,q\;\mathbb E\|s\|^2 + \|\nabla p\|^2}{G-1}$$
#
# Dr. GRPO's variance is $\big(\frac{G-1}{G}\big)^2$ times that. This is no gain: signal and noise shrink by the same
# factor.


# %%
def per_sample(policy, baseline):
    """G times the variance of g with a constant baseline, the same for every G."""
    probs, scores, grad_p = policy
    return (probs @ ((RIGHT - baseline) ** 2 * scores.square().sum(dim=1)) - grad_p @ grad_p).item()


def price(policy):
    """(p q E|s|^2 + |grad p|^2): divided by G - 1, what the group adds for estimating p."""
    probs, scores, grad_p = policy
    p = probs @ RIGHT
    return (p * (1 - p) * (probs @ scores.square().sum(dim=1)) + grad_p @ grad_p).item()


policy = (probs, scores, grad_p)
print("variance per sample at p = 0.3")
print(f"no baseline {per_sample(policy, 0):.4f}, baseline p {per_sample(policy, p):.4f}\n")
print("G   RLOO     Dr. GRPO   Dr. GRPO / factor^2   formula to 12 digits")
for G in (2, 3, 4, 5):
    ours, shorter = (G * moments(rule, G, policy)[1].item() for rule in (rloo, dr_grpo.compute_advantages))
    rescaled = shorter * (G / (G - 1)) ** 2
    equal = np.allclose([ours, rescaled], per_sample(policy, p) + price(policy) / (G - 1), rtol=1e-12, atol=0)
    assert equal
    print(f"{G}   {ours:.4f}   {shorter:.4f}     {rescaled:.4f}                {equal}")
a_right, a_wrong = (
    probs[mask] @ scores[mask].square().sum(dim=1) / probs[mask].sum() for mask in (RIGHT > 0, RIGHT < 1)
)
extra = p**2 * ((2 - p) * a_right - (1 - p) * a_wrong)  # what no baseline adds to baseline p, used below
assert np.isclose(per_sample(policy, 0) - per_sample(policy, p), extra, rtol=1e-12, atol=0)

# %% [markdown]
# ## Change the group size
#
# Left, the factor in front of $\nabla p$. Right, the variance per sample, each estimate divided by its own factor,
# relative to a baseline that knows $p$ (a good one, not the best: lesson 1). Black dots are enumerations, lines the
# formula; the dashed line is the mean of a large batch whose prompts average ½.


# %%
def draw(G, p):
    figure, (left, right) = new_figure(9.5, 3.6, columns=2)
    sizes = np.arange(2, 65)
    curves = (
        ("GRPO", BLUE, "-", np.array([identity.weight("GRPO", p, int(size)) for size in sizes])),
        ("RLOO", GREEN, "--", np.ones(len(sizes))),
        ("Dr. GRPO", ORANGE, "-", (sizes - 1) / sizes),
    )
    for name, color, style, values in curves:
        left.plot(sizes, values, style, color=color)
        left.plot(G, values[G - 2], "o", color=color, markersize=9)
        label_line(left, 64, values[-1], name, color, xytext=(8, {"RLOO": 6, "Dr. GRPO": -6}.get(name, 0)))
    left.set(title=f"E[g] = factor · ∇p, at p = {p:.1f}", ylabel="factor", ylim=(0, 3.7))

    policy = study(p)
    known = per_sample(policy, p)
    group = 1 + price(policy) / (sizes - 1) / known
    none, half = (per_sample(policy, baseline) / known for baseline in (0, 0.5))
    right.plot(sizes, group, color=ORANGE)
    right.plot(G, group[G - 2], "o", color=ORANGE, markersize=9)
    right.plot([2, 3, 4], [size * moments(rloo, size, policy)[1].item() / known for size in (2, 3, 4)], "k.", zorder=3)
    right.plot([2, 64], [none, none], ":", color=GREY)
    right.plot([2, 64], [half, half], "--", color=RED)
    labels = [(group[-1], "group mean, RLOO", ORANGE), (none, "no baseline", GREY), (half, "batch mean, if ½", RED)]
    height = 0
    for value, name, color in sorted(labels):  # from below, each at least a line above the one before
        height = max(value, height + 0.22)
        label_line(right, 64, height, name, color, xytext=(8, 0))
    right.set(title="Variance per sample; 1: baseline p", ylabel="relative variance", ylim=(0.7, 3.9))
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_xticks([2, 4, 8, 16, 32, 64], ["2", "4", "8", "16", "32", "64"])
        axis.set(xlabel="G", xlim=(1.85, 68))
    return figure


knob(draw, G=(2, 64, 1, 8), p=(0.1, 0.9, 0.1, 0.2))

# %% [markdown]
# *Here a group of two or three is noisier than no baseline at all, larger groups are less noisy, and the price of not
# knowing $p$ falls as 1/(G − 1).*
#
# Is that a law? Let $a_+$ and $a_-$ be the mean of $\|s\|^2$ over right and over wrong answers. Going without a
# baseline is noisier than baseline $p$ by $p^2\big[(1+q)\,a_+ - q\,a_-\big]$. If $a_+ = a_- = a$, the group wins when
# $Gp > 1 + \|\nabla p\|^2/(pa)$: when you expect more than one right answer in it, and a little more than that. But if
# the scores of wrong answers are long enough, the bracket is negative, and going without is less noisy than any group.
# Our base model has both cases:

# %%
model, tokenizer = load_policy("base")
weights, n, G = list(model.parameters()), 256, 8
resamples = np.random.default_rng(0).integers(n, size=(2000, n))
resamples[0] = np.arange(n)  # the answers as drawn
for problem in (Problem("9+1", answer=10, level=1), Problem("11+9-9", answer=11, level=2)):
    generator = torch.Generator().manual_seed(0)
    drawn = sample(
        model, tokenizer, [problem.prompt], group_size=n, max_new_tokens=56, temperature=1.0, generator=generator
    )
    R = np.array([reward(problem, text) for text in drawn.texts])
    squares = np.zeros(n)  # |s|^2 of each answer
    for row in range(n):
        logp = completion_logps(model, drawn[torch.tensor([row])], temperature=1.0).sum()
        squares[row] = sum(part.square().sum().item() for part in torch.autograd.grad(logp, weights))
    logps = completion_logps(model, drawn, temperature=1.0).sum(dim=1)
    mean = torch.autograd.grad((torch.tensor(R - R.mean()) * logps).mean(), weights)  # of r s, whose expectation is ∇p
    second = ((R - R.mean()) ** 2 * squares).mean()
    grad_p = (n * sum(part.square().sum().item() for part in mean) - second) / (n - 1)  # |∇p|²: the noise taken off

    r, a = R[resamples], squares[resamples]  # (2000, n)
    rate = r.mean(axis=1, keepdims=True)
    none, known = ((r**2 * a).mean(axis=1) - grad_p, ((r - rate) ** 2 * a).mean(axis=1) - grad_p)
    group = known + (rate[:, 0] * (1 - rate[:, 0]) * a.mean(axis=1) + grad_p) / (G - 1)
    longer = squares[R == 0].mean() / squares[R == 1].mean()
    print(f"{problem.prompt} p = {R.mean():.2f}, a-/a+ = {longer:.1f}, |∇p|² = {grad_p / second:.0%} of E[(R-p)²|s|²]")
    for name, ratio in (("no baseline", none / known), (f"group of {G}", group / known)):
        low, high = np.quantile(ratio[1:], [0.025, 0.975])
        print(f"    variance relative to baseline p, {name}: {ratio[0]:.2f} [{low:.2f}, {high:.2f}]")
    assert ((none > group)[1:].mean() > 0.975) if problem.level == 1 else ((none < known)[1:].mean() > 0.975)

# %% [text]
# (In brackets: 95 % of the ratios when the answers are resampled, $\|\nabla p\|^2$ held.) On the second prompt the
# scores of wrong answers are {=longer:.0f} times as long, squared: pushing them down adds more noise than the baseline
# takes away.
#
# ## Exercises
#
# **1. RLOO in one line.** No loop over the answers, no `cat`: the advantages of leave-one-out from `rewards` (P, G).


# %% [exercise]
def rloo_line(rewards):
    """(P, G): each reward minus the mean of the other G - 1."""
    return ...


# %% [check]
some_rewards = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 1], [0.5, 0, 1, 0.25]], dtype=torch.float64)
check(
    rloo_line,
    lambda rewards: np.array([[row[i] - np.delete(row, i).mean() for i in range(len(row))] for row in rewards.numpy()]),
    inputs=[{"rewards": some_rewards}, {"rewards": some_rewards[:, :2]}],
    mistakes={
        "that is Dr. GRPO's: its mean contains the own reward": lambda rewards: dr_grpo.compute_advantages(
            rewards=rewards
        ),
        "the own reward is still in the sum that you divide by G - 1": lambda rewards: (
            rewards - rewards.sum(dim=1, keepdim=True) / (rewards.shape[1] - 1)
        ),
        "the others are G - 1: you divided their sum by G": lambda rewards: (
            rewards - (rewards.sum(dim=1, keepdim=True) - rewards) / rewards.shape[1]
        ),
    },
)

# %% [hint]
# The sum of the others is the sum of all minus the own reward. Or use step 2 and the script.


# %% [solution]
def rloo_line(rewards):
    return rewards - (rewards.sum(dim=1, keepdim=True) - rewards) / (rewards.shape[1] - 1)


# %% [wrong] that is Dr. GRPO's
def rloo_line(rewards):
    return rewards - rewards.mean(dim=1, keepdim=True)


# %% [wrong] the own reward is still in the sum
def rloo_line(rewards):
    return rewards - rewards.sum(dim=1, keepdim=True) / (rewards.shape[1] - 1)


# %% [wrong] you divided their sum by G
def rloo_line(rewards):
    return rewards - (rewards.sum(dim=1, keepdim=True) - rewards) / rewards.shape[1]


# %% [markdown]
# **2. The Bessel factor of σ.** DeepSeekMath does not say whether the variance inside σ is divided by G (ddof 0, our
# script) or by G − 1 (ddof 1, `torch.std`'s default). By what number does ddof 1 multiply GRPO's advantages?


# %% [exercise]
def bessel(G):
    """Advantages with ddof 1 = this number times advantages with ddof 0."""
    return ...


# %% [check]
def measured_bessel(G):
    rewards = (torch.arange(G) < 1).double().view(1, G)
    with_default = (rewards - rewards.mean()) / rewards.std()
    return (with_default / grpo.compute_advantages(rewards=rewards))[0, 0]


check(
    bessel,
    measured_bessel,
    inputs=[{"G": 2}, {"G": 8}, {"G": 64}],
    mistakes={
        "upside down: ddof 1 makes sigma larger, so the advantages shrink": lambda G: np.sqrt(G / (G - 1)),
        "that is the factor of the variance: sigma is its square root": lambda G: (G - 1) / G,
    },
)

# %% [hint]
# ddof 1 multiplies the *variance* by G/(G−1). The advantage is divided by the standard deviation.


# %% [solution]
def bessel(G):
    return np.sqrt((G - 1) / G)  # 0.935 at G = 8, for every prompt: a change of the learning rate


# %% [wrong] upside down
def bessel(G):
    return np.sqrt(G / (G - 1))


# %% [wrong] that is the factor of the variance
def bessel(G):
    return (G - 1) / G


# %% [markdown]
# **3. Pairs.** In a group with $k$ of $G$ right ($0 < k < G$), GRPO's advantages are a number times Dr. GRPO's. Which?
# Put $G = 2$: every mixed pair has $k = 1$, so the number is always the same, and GRPO *is* Dr. GRPO with another
# learning rate. (So it is for G = 3, but not for G = 4.)


# %% [exercise]
def grpo_over_dr(k, G):
    """GRPO's advantages = this number times Dr. GRPO's."""
    return ...


# %% [check]
def measured_ratio(k, G):
    rewards = (torch.arange(G) < k).double().view(1, G)
    return (grpo.compute_advantages(rewards=rewards) / dr_grpo.compute_advantages(rewards=rewards))[0, 0]


check(
    grpo_over_dr,
    measured_ratio,
    inputs=[{"k": 1, "G": 2}, {"k": 1, "G": 3}, {"k": 2, "G": 3}, {"k": 1, "G": 4}, {"k": 2, "G": 4}],
    mistakes={
        "that is sigma: GRPO divides by it": lambda k, G: np.sqrt(k * (G - k)) / G,
        "that is one over the variance: GRPO divides by sigma, once": lambda k, G: G**2 / (k * (G - k)),
        "ddof: you divided by G - 1 inside the standard deviation": lambda k, G: np.sqrt(G * (G - 1) / (k * (G - k))),
    },
)

# %% [hint]
# The two rules differ in the division by σ, the standard deviation of k ones and G − k zeros: √(k(G−k))/G.


# %% [solution]
def grpo_over_dr(k, G):
    return G / np.sqrt(k * (G - k))  # 2 for pairs; 3/sqrt(2) for G = 3; 2.31 or 2 for G = 4


# %% [wrong] that is sigma
def grpo_over_dr(k, G):
    return np.sqrt(k * (G - k)) / G


# %% [wrong] one over the variance
def grpo_over_dr(k, G):
    return 1 / (k / G * (1 - k / G))


# %% [markdown]
# **4. Find the bug.** A batch holds the question *how many?* twice, with two different pictures. The code below finds
# the groups by the text of the prompt, as public training code has done. The G rows of a
# group are contiguous. Repair the line (Dr. GRPO's advantages).


# %% [exercise]
def advantages_by_prompt(texts, rewards, G):
    """texts: one a row; rewards (P * G,). Advantages (P * G,), same order."""
    A = torch.zeros_like(rewards)
    groups = [[row for row, other in enumerate(texts) if other == text] for text in set(texts)]  # <- runs, and is wrong
    for rows in groups:
        A[rows] = dr_grpo.compute_advantages(rewards=rewards[rows].view(1, -1))[0]
    return A


# %% [check]
def by_hand(texts, rewards, G):
    mine = [rewards.numpy()[start : start + G] for start in range(0, len(rewards), G)]
    return np.concatenate([group - group.mean() for group in mine])


def merged(label):
    def compute(texts, rewards, G):
        labels = np.array(label(np.array(texts)))
        same = labels[:, None] == labels  # (rows, rows)
        return rewards.numpy() - same @ rewards.numpy() / same.sum(axis=1)

    return compute


two_pictures = ["how many?"] * 4 + ["what colour?"] * 4 + ["how many?"] * 4
three_pictures = ["how many?"] * 6
marks = torch.tensor([0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1]).double()
check(
    advantages_by_prompt,
    by_hand,
    inputs=[
        {"texts": two_pictures, "rewards": marks, "G": 4},
        {"texts": three_pictures, "rewards": marks[3:9], "G": 2},
    ],
    mistakes={
        "two groups with the same text are still merged where one follows the other": merged(
            lambda texts: np.cumsum(np.append(False, texts[1:] != texts[:-1]))
        ),
        "that is the mean of the batch: each group has its own": lambda texts, rewards, G: rewards - rewards.mean(),
        "the mean runs over the wrong axis: over the prompts, not over the answers of one": lambda texts, rewards, G: (
            dr_grpo.compute_advantages(rewards=rewards.view(-1, G).T).T.flatten()
        ),
    },
    bug=merged(lambda texts: texts),
)

# %% [hint]
# What makes rows a group is that they were sampled together. Rows 0 to G − 1 are the first group, G to 2G − 1 the
# second. No text is needed.


# %% [solution]
def advantages_by_prompt(texts, rewards, G):
    A = torch.zeros_like(rewards)
    groups = [list(range(start, start + G)) for start in range(0, len(rewards), G)]
    for rows in groups:
        A[rows] = dr_grpo.compute_advantages(rewards=rewards[rows].view(1, -1))[0]
    return A  # or, without a loop: dr_grpo.compute_advantages(rewards=rewards.view(-1, G)).flatten()


# %% [wrong] still merged where one follows the other
def advantages_by_prompt(texts, rewards, G):
    A = torch.zeros_like(rewards)
    starts = [row for row in range(len(texts)) if row == 0 or texts[row] != texts[row - 1]] + [len(texts)]
    for start, end in zip(starts, starts[1:]):
        rows = list(range(start, end))
        A[rows] = dr_grpo.compute_advantages(rewards=rewards[rows].view(1, -1))[0]
    return A


# %% [wrong] that is the mean of the batch
def advantages_by_prompt(texts, rewards, G):
    return dr_grpo.compute_advantages(rewards=rewards.view(1, -1)).flatten()


# %% [wrong] the wrong axis
def advantages_by_prompt(texts, rewards, G):
    groups = rewards.view(-1, G)
    return (groups - groups.mean(dim=0)).flatten()


# %% [markdown]
# The damage: say one picture is hard (all wrong), the other easy (all right). Merged, the two silent groups get
# advantages of −½ and +½. Even if the problem *is* the same, its factor becomes $\frac{2G-1}{2G}$ instead of
# $\frac{G-1}{G}$: the repeated prompt weighs more than the others.
#
# ## What to remember
#
# - The group's mean contains the own reward. That multiplies the expected gradient by $(G-1)/G$ and changes nothing
#   else; RLOO, which leaves it out, gives exactly $\nabla p$. "Unbiased", said of Dr. GRPO, means up to this constant.
# - GRPO's expectation is a multiple of $\nabla p$ as well, but the multiple depends on $p$.
# - A baseline is there for the variance. Not knowing $p$ costs the group a price that falls as $1/(G-1)$; whether it
#   beats no baseline depends on $G$, $p$ and how long the scores of wrong answers are.
#
# Next: [lesson 4](04_kl.ipynb), the KL term. Below, what Dr. GRPO changes in the advantage.

# %%
show_diff(grpo.compute_advantages, dr_grpo.compute_advantages)

# %% [markdown]
# Sources: GRPO, [arXiv:2402.03300](https://arxiv.org/abs/2402.03300), section 4.1.2; Dr. GRPO and its relation to
# RLOO, [2503.20783](https://arxiv.org/abs/2503.20783), App. A; RLOO: Kool, van Hoof and Welling 2019, *Buy 4 REINFORCE
# Samples, Get a Baseline for Free!*, and Ahmadian et al., [2402.14740](https://arxiv.org/abs/2402.14740); the weight
# $w(p)$: Davis and Recht, [2510.13651](https://arxiv.org/abs/2510.13651). Groups merged by text: pull request 3882 of
# NeMo-RL. The formula for the variance and the rule $Gp > 1$ with its conditions are ours.
