# %% [markdown] 38 minutes, without the second reading
# # 4 · KL estimators
#
# Training moves the policy $\pi$ away from the model that it started as, the **reference** $\pi_\text{ref}$. A penalty on the KL
# (Kullback–Leibler) divergence, which measures how far apart the two are, pulls it back. GRPO (group relative policy optimization) estimates the
# KL from the tokens that the policy samples.
#
# > **An estimate of the KL that is right as a number can be wrong as a loss: GRPO's $k_3$ has the mean KL(policy‖reference), but as a loss it lowers
# > KL(reference‖policy), with the models exchanged. $k_2$ is the other way round.**
# >
# > This is for single tokens: in our example a rare rewarded token ends at a probability of .56 with $k_3$, at .27 with $k_2$. In
# > a completion each token must also be charged for those after it.
#
# The smallest case is one token out of two, with one logit. With $u = \pi_\text{ref}/\pi$, three
# estimates are $k_1 = -\log u$, $k_2 = \tfrac12\,(\log u)^2$ and $k_3 = u - 1 - \log u$. The **score** $s$ is the derivative of the token's
# $\log\pi$ with respect to the logit:
#
# | $\pi$ | $\pi_\text{ref}$ | $u$ | $k_1$ | $k_2$ | $k_3$ | $s$ | $k_1\,s$, derivative of $k_2$ | $(1-u)\,s$, of $k_3$ |
# |---|---|---|---|---|---|---|---|---|
# | ½ | .1 | .2 | 1.61 | 1.30 | .81 | ½ | .80 | .4 |
# | ½ | .9 | 1.8 | −.59 | .17 | .21 | −½ | .29 | .4 |
# | **mean** | | 1 | **.51** | **.73** | **.51** | 0 | **.55** | **.4** |
#
# As numbers $k_1$ and $k_3$ are right: both means are KL(policy‖reference), and $k_2$'s is not. The derivative of this KL is .55, as with $k_2$.
# That of $k_3$, .4, belongs to KL(reference‖policy): $\pi - \pi_\text{ref}$ = .5 − .1.
#
# **Does it matter?** We train a policy over five tokens, starting at the reference. Two tokens are rewarded: a rare one (blue), which the
# reference writes in 5 % of cases, with 1, and the common token 2 with 0.8. The loss contains 0.2 times one of the three.

# %% [fold]
import inspect

import torch

from algorithms import grpo, ppo
from lessons.workshop.companions import lesson_04
from lessons.workshop.companions.drawing import bars
from lessons.workshop.notebook import check, show, trains

ESTIMATORS = {
    "k1": lambda log_u: -log_u,
    "k2": lambda log_u: log_u**2 / 2,
    "k3": lambda log_u: log_u.exp() - 1 - log_u,
}

log_u, s = torch.tensor([0.2, 1.8]).log(), torch.tensor([0.5, -0.5])  # the smallest case
k1, k2, k3 = (k(log_u) for k in ESTIMATORS.values())
means = [one.mean().item() for one in (k1, k2, k3, k1 * s, (1 - log_u.exp()) * s)]
assert [round(mean, 2) for mean in means] == [0.51, 0.73, 0.51, 0.55, 0.4]

five = torch.tensor([0.05, 0.35, 0.3, 0.2, 0.1]).double().log()  # the reference
reward = torch.tensor([1, 0.8, 0, 0, 0]).double()


def trained(penalty):
    """Where training with a penalty ends: the probabilities of the five tokens."""
    z = five.clone().requires_grad_()
    for _ in range(1000):
        logps = z.log_softmax(dim=0)
        loss = logps.detach().exp() @ (0.2 * penalty(logps) - reward * logps)
        z.data -= 5 * torch.autograd.grad(loss, z)[0]
    return logps.detach().exp()


ends = {name: trained(lambda logps, k=k: k(five - logps)) for name, k in ESTIMATORS.items()}
forward = 0.2 * five.exp() / (0.2 + ends["k3"] @ reward - reward)
reverse = (five + reward / 0.2).softmax(dim=0)
assert torch.allclose(ends["k2"], reverse, atol=1e-3)
assert torch.allclose(ends["k3"], forward, atol=1e-3)
assert [round(ends[name][0].item(), 2) for name in ("k2", "k3")] == [0.27, 0.56]  # the claim
titles = {"k1": "$k_1$", "k2": "$k_2$", "k3": "$k_3$ (GRPO)"}
tables = {"reference, rewards": five.exp().numpy()}
tables |= {title: ends[name].numpy() for name, title in titles.items()}
figure = bars(tables, [1, 2, 3, 4, 5], chosen=0)
for token, R in enumerate(("1", "0.8")):
    figure.axes[0].text(token, five[token].exp() + 0.03, R, ha="center")
for axis, best in zip(figure.axes[2:], (reverse, forward)):
    axis.bar(range(5), best.numpy(), fill=False, edgecolor="black", linewidth=1.5)
show(figure)

# %% [text]
# *Left: the reference, and the rewards. Then the policy after training with each penalty. Outlines: the exact optimum of mean reward
# minus 0.2 KL(policy‖reference), reached with $k_2$, and minus 0.2 KL(reference‖policy), reached with $k_3$.*
#
# With $k_1$ nothing holds the policy: it writes only the rare token. $k_2$ mainly charges the policy for writing what the reference
# would not, $k_3$ for losing what the reference writes: the tokens without reward keep {=ends["k3"][2:].sum():.0%}.

# %% [markdown]
# ## The map
#
# So the estimate decides what the policy becomes. KL(policy‖reference), $\sum_y \pi \log(\pi/\pi_\text{ref})$, is called the **reverse** KL, and
# KL(reference‖policy), $\sum_y \pi_\text{ref} \log(\pi_\text{ref}/\pi)$, the **forward** KL. This is what a penalty lowers, as a term of the loss (GRPO)
# or subtracted from the reward (PPO, proximal policy optimization):
#
# | for one token | value | as a loss | in the reward |
# |---|---|---|---|
# | $k_1$ | unbiased | nothing | **reverse KL** |
# | $k_2$ | biased | **reverse KL** | neither |
# | $k_3$ | unbiased | forward KL | reverse − forward |
#
# The next two sections prove it, all but $k_2$'s bias and its effect in the reward.
#
# ## As values
#
# Let $\mathbb E$ be the mean over tokens $y$ sampled from $\pi$. $\mathbb E[k_1]$ is the definition of the reverse KL. Next,
# $\mathbb E[u] = \sum_y \pi\,\frac{\pi_\text{ref}}{\pi} = \sum_y \pi_\text{ref} = 1$, if $\pi > 0$ wherever $\pi_\text{ref} > 0$. So $u - 1$ has
# mean zero, and $k_3 = k_1 + (u - 1)$ has the same mean as $k_1$.
#
# ## As losses
#
# A good number is not yet a good gradient. Autograd differentiates the loss at the sampled $y$, and does not know that $y$ was drawn from $\pi$.
# With the score $s = \nabla_\theta \log \pi(y)$, now with an entry for each parameter, $\nabla \pi = \pi s$. By the product rule,
#
# $$\nabla\,\mathbb E[k] \;=\; \nabla \sum_y \pi\,k \;=\; \underbrace{\mathbb E[\nabla k]}_{k \text{ as a loss}} \;+\;
# \underbrace{\mathbb E[k\,s]}_{k \text{ in the reward}}$$
#
# A loss brings only the first half. The second is the policy gradient of a reward $k$ ([lesson 1](01_score_function.ipynb)). Because
# $\nabla \log u = -s$,
#
# $$\nabla k_1 = s, \qquad \nabla k_2 = -\log u \; s, \qquad \nabla k_3 = (1 - u)\, s$$
#
# Three means complete the proof:
#
# $$\mathbb E[s] = \sum_y \nabla \pi = \nabla 1 = 0$$
#
# $$\nabla\mathrm{KL}(\pi\Vert\pi_\text{ref}) = \sum_y \nabla\pi \log\frac{\pi}{\pi_\text{ref}} + \sum_y \pi s
# = \mathbb E[-\log u\; s]$$
#
# $$\nabla\mathrm{KL}(\pi_\text{ref}\Vert\pi) = -\sum_y \pi_\text{ref}\,s = -\mathbb E[u\,s] = \mathbb E[(1-u)\,s]
# \qquad \blacksquare$$
#
# So $k_1$ as a loss is nothing but noise. And $k_3$ *in the reward* gives the other half: reverse minus forward gradient.
#
# All nine entries of the map, by autograd:


# %% [fold]
counts = torch.tensor([8, 4, 2, 1, 1])
batch = torch.arange(5).repeat_interleave(counts)  # in proportion: its mean is the expectation
logits = (counts.double() / 16).log().requires_grad_()  # the parameters
ref = torch.tensor([0.10, 0.15, 0.05, 0.40, 0.30], dtype=torch.float64).log()  # log pi_ref


def same(a, b):
    return bool((a - b).abs().max() < 1e-14)


log_pi = logits.log_softmax(dim=0)
truth = log_pi.exp() @ (log_pi - ref)
logp = log_pi[batch]  # (16,), its gradient is the score


def reverse_kl(logits, ref):
    log_pi = logits.log_softmax(dim=-1)
    return (log_pi.exp() * (log_pi - ref)).sum()


def forward_kl(logits, ref):
    return (ref.exp() * (ref - logits.log_softmax(dim=-1))).sum()


def gradient(value, wrt=logits):
    return torch.autograd.grad(value, wrt, retain_graph=True)[0]


def name_of(computed, wrt=logits):
    """The name of the known gradient that `computed` equals, within 1e-14."""
    reverse, forward = gradient(reverse_kl(wrt, ref), wrt), gradient(forward_kl(wrt, ref), wrt)
    known = {
        "0": 0 * reverse,
        "reverse": reverse,
        "forward": forward,
        "reverse - forward": reverse - forward,
    }
    return next((name for name, value in known.items() if same(computed, value)), "neither")


table = {}
print(f"KL(pi || ref) = {truth:.4f}")
for name, k in ESTIMATORS.items():
    value = k(ref[batch] - logp)
    as_loss, in_reward = value.mean(), (value.detach() * logp).mean()
    table[name] = name_of(gradient(as_loss)), name_of(gradient(in_reward))
    assert same(as_loss, truth) == (name != "k2")
    print(f"{name} {as_loss:.4f}  as a loss: {table[name][0]:8} in the reward: {table[name][1]}")
expected = [("0", "reverse"), ("reverse", "neither"), ("forward", "reverse - forward")]
assert list(table.values()) == expected

# %% [markdown]
# ## More than one token
#
# So far a token stood alone. In a completion it also decides what comes after it. Take completions of two tokens, each 0 or 1:
#
# | first token | $\pi$ | $\pi_\text{ref}$ | its own $k_1$ | reverse KL of the second token after it | together |
# |---|---|---|---|---|---|
# | 0 | ¾ | .6 | .22 | .22 | .45 |
# | 1 | ¼ | .4 | −.47 | 1.19 | .72 |
#
# Charged for itself alone, a first 0 looks too probable: .22 against −.47. But after a 1 the policy is far from the reference, so together the 1 costs
# more: to lower the KL of the pair, 0 must become *more* probable. The derivative by its logit is $\tfrac34 \cdot \tfrac14$ times the difference of
# the rows: .130 with its own $k_1$ alone, which is $k_2$ as a loss, −.051 for the KL of the pair. **So $k_2$, token by token, can push the
# wrong way: each token must be charged for the later ones, too.** By autograd:

# %% [fold]
by_token = lesson_04.sequence_gradient(lambda logps, ref: ((logps - ref) ** 2 / 2).sum(1).mean())
of_pair = lesson_04.kl_of_sequences  # its gradient, by the sum over all four pairs
k2_there, kl_there = (which(lesson_04.other_ref) for which in (by_token, of_pair))
whole = lesson_04.sequence_gradient(lambda logps, ref: (logps - ref).sum(1).square().mean() / 2)
assert same(whole(lesson_04.other_ref), kl_there)  # k2 of the total log-ratio, in exercise 2
assert same(k2_there[1:], kl_there[1:]) and not same(k2_there[0], kl_there[0])
assert [f"{x[0, 0]:+.3f}" for x in (k2_there, kl_there)] == ["+0.130", "-0.051"]
assert f"{reverse_kl(lesson_04.theta[2], lesson_04.other_ref[2]):.2f}" == "1.19"  # after a 1
print(
    f"derivative by the logit of a first 0: k2 as a loss {k2_there[0, 0]:+.3f}, "
    f"KL of the pair {kl_there[0, 0]:+.3f}\nby the logits of the second token: the same"
)

# %% [markdown]
# ## What to use
#
# PPO subtracts $\beta k_1$ from the reward of every token, and every token is pushed by the rewards from itself on: the reverse KL, of whole
# completions, too. GRPO has $k_3$ in its loss, in these two lines, and charges each token alone: in whole
# completions the other KL of each token, after the policy's own beginnings. For single tokens:

# %% [fold]
lines = inspect.getsource(grpo.policy_loss).splitlines()
print("\n".join(line.strip() for line in lines if "log_u" in line))
zeros = torch.zeros(16, 1).double()  # 16 completions of one token
old = {"old_logps": logp.detach().view(16, 1), "mask": torch.ones(16, 1).bool()}
new, ref_logps = old | {"logps": logp.view(16, 1)}, {"ref_logps": ref[batch].view(16, 1)}

config = grpo.Config(kl_coef=1.0)
loss = grpo.policy_loss(**new, **ref_logps, advantages=zeros, config=config)  # no reward
in_grpo = name_of(gradient(loss))

inputs = old | ref_logps | {"rewards": zeros.view(2, 8), "values": zeros}
_, returns = ppo.compute_advantages(**inputs, config=ppo.Config(kl_coef=1.0))
in_ppo = name_of(gradient(ppo.policy_loss(**new, advantages=returns, config=ppo.Config())))

print(f"grpo.py: {in_grpo} KL, ppo.py: {in_ppo} KL")
assert (in_grpo, in_ppo) == ("forward", "reverse")

# %% [markdown]
# The forward KL keeps what the reference writes, the reverse KL suppresses what it does not. So
# use $k_1$ in the reward if completions must stay plausible to the reference; if the policy only must not forget, $k_3$ as a loss is simpler.
#
# ## Exercises
#
# **1. Find the bug.** Somebody moves GRPO's $k_3$ from the loss into the reward. Repair the function, so that it descends the reverse KL. Your
# rewards then train a policy over five tokens. No completion is right, so it should return to the reference.


# %% [exercise]
def token_rewards(rewards, logps, ref_logps, mask, beta):
    """(B, n): -beta * kl for every token, and the reward of the completion (B,) on its last
    token."""
    kl = (ref_logps - logps).exp() - 1 - (ref_logps - logps)  # <- runs, and is wrong
    last = mask.sum(dim=1, keepdim=True) - 1
    return (-beta * kl * mask).scatter_add(1, last, rewards.view(-1, 1))


# %% [check]
check("4.1", token_rewards)
trains("4.1", token_rewards)

# %% [markdown]
# *One run of each penalty.*

# %% [hint]
# Which $k$ has the gradient of the reverse KL in the reward? Mind its sign: it is positive where the policy's probability is above the
# reference's. Compare the line marked `[PPO: KL in the reward] k1` in
# `algorithms/ppo.py`.


# %% [solution]
def token_rewards(rewards, logps, ref_logps, mask, beta):
    kl = logps - ref_logps
    last = mask.sum(dim=1, keepdim=True) - 1
    return (-beta * kl * mask).scatter_add(1, last, rewards.view(-1, 1))


# %% [markdown]
# <details><summary>After the exercise</summary>
#
# In the reward $k_3$ drives the policy away: near the reference its two gradients nearly cancel, farther off the forward KL's, which it climbs,
# can win. $|k_1|$ (yellow) does not bring it back, either. Both also charge for tokens that the policy writes too seldom, so it writes them still
# less; $k_1$ is negative there, a bonus. Pink has $k_1$'s sign turned, as printed in "The N Implementation Details of RLHF with PPO" (the code that
# it describes has a minus).
#
# </details>

# %% [markdown]
# ## To remember
#
# - As a loss $k$ brings $\mathbb E[\nabla k]$, in the reward $\mathbb E[k\,s]$; its mean says nothing about either.
# - To lower KL(policy‖reference), use $k_1$ in the reward, each token charged for the later ones, too, or $k_2$ of the *total* log-ratio
#   as a loss. GRPO's $k_3$ as a loss lowers KL(reference‖policy) for single tokens, for whole completions neither KL exactly.
# - To log KL(policy‖reference), use $k_3$ near the reference, $k_1$ far from it.
#
# ## For a second reading (20 minutes): a pair's KL, the paper, the ratio, noise
#
# **2. Find the bug.** This loss has the gradient of $k_2$: each token is charged alone. Repair it, so that its mean gradient is that of
# $\mathrm{KL}(\pi\Vert\pi_\text{ref})$ of the pair.


# %% [exercise]
def sequence_kl_loss(logps, ref_logps):
    """For sampled tokens (B, 2), on-policy. Returns a scalar with the mean gradient of
    KL(pi || ref) of the pair."""
    k1 = (logps - ref_logps).detach()  # autograd must not go through the penalty
    return (k1 * logps).sum(dim=1).mean()  # <- runs, and is wrong


# %% [check]
check("4.2", lesson_04.sequence_gradient(sequence_kl_loss))

# %% [hint]
# Do as PPO does with $k_1$ in the reward: each token's log-probability times its own penalty and those of the later tokens.


# %% [solution]
def sequence_kl_loss(logps, ref_logps):
    k1 = (logps - ref_logps).detach()  # autograd must not go through the penalty
    # this token's penalty and those of the later ones
    to_come = k1.flip(1).cumsum(dim=1).flip(1)
    # or with k1.sum(dim=1, keepdim=True) for to_come: noisier. That is the gradient of k2 as a
    # loss on the whole completion, ½ (log-ratio of the completion)²
    return (to_come * logps).sum(dim=1).mean()


# %% [markdown]
# **The paper.** DeepSeekMath names $\mathrm{KL}(\pi\Vert\pi_\text{ref})$ in its objective (Eq. 3), but the gradient that it prints (Eq. 20–21), like
# `grpo.py`, descends the other KL.

# %% [fold]
A, u = torch.linspace(-1, 1, 16).double(), (ref[batch] - logp).exp().detach()
eq_21 = -gradient(((A + 0.04 * (u - 1)) * logp).mean())  # as printed, for one token each
config = grpo.Config(kl_coef=0.04)
loss = grpo.policy_loss(**new, **ref_logps, advantages=A.view(16, 1), config=config)
assert same(gradient(loss), eq_21)
print("grpo.py's gradient is that of Eq. 20-21: True")

# %% [markdown]
# **Multiplied by the ratio, $k_3$ has the right gradient.** From the second minibatch on, $y$ comes from an older policy
# $\pi_\text{old}$. With the ratio $\rho = \pi/\pi_\text{old}$, $\mathbb E_\text{old}[\rho\,k_3] = \sum_y \pi\,k_3$, with $\theta$ *inside* the sum.
# So if autograd also goes through $\rho$, $k_3$ yields the reverse KL, even where $\rho$ is 1. Sample by sample,
#
# $$\nabla(\rho\,k_3) = \rho\,(k_3 + 1 - u)\,s = \rho\,k_1\,s$$
#
# TRL (a training library of Hugging Face) has done so by default since 1.10, after DeepSeek-V3.2. (With
# `importance_sampling_level="sequence"` the gradient is neither KL's, [issue 6586](https://github.com/huggingface/trl/issues/6586).) This, too, is
# for one token. At a second minibatch:


# %% [fold]
def rho_k3(logps, old_logps, ref_logps):
    return (logps - old_logps).exp() * ESTIMATORS["k3"](ref_logps - logps)


end = trained(lambda logps: rho_k3(logps, logps.detach(), five))
assert torch.allclose(end, reverse, atol=1e-3)

moved = (logits.detach() + torch.tensor([0.5, -0.3, 0.2, 0.9, -0.6])).requires_grad_()
new_logp = moved.log_softmax(dim=0)[batch]  # updated; the batch is the old policy's

k3, rho = ESTIMATORS["k3"](ref[batch] - new_logp), (new_logp - logp.detach()).exp()
per_token = rho_k3(new_logp, logp.detach(), ref[batch])
results = {
    "k3, as in grpo.py": name_of(gradient(k3.mean(), moved), moved),
    "rho k3": name_of(gradient(per_token.mean(), moved), moved),
    "rho k3, rho detached": name_of(gradient((rho.detach() * k3).mean(), moved), moved),
}
assert same(gradient(per_token.sum(), new_logp), rho * ESTIMATORS["k1"](ref[batch] - new_logp))
print("\n".join(f"{name:21} {result}" for name, result in results.items()))
assert list(results.values()) == ["neither", "reverse", "forward"]

# %% [markdown]
# **Is $k_3$ less noisy?** Let the policy be $N(0,1)$ and the reference $N(d,1)$. Then $\log u$ has the variance $d^2$, $u$ has
# $e^{d^2} - 1$, and their covariance is $d^2$. So $\operatorname{Var} k_1 = d^2$ and $\operatorname{Var} k_3 = e^{d^2} - 1 - d^2$: quieter near the
# reference, noisier from about $d = 1.12$ on.
#
# Sources: Schulman (2020), [*Approximating KL Divergence*](http://joschu.net/blog/kl-approx.html); DeepSeekMath,
# [2402.03300](https://arxiv.org/abs/2402.03300); Tang and Munos, [2506.09477](https://arxiv.org/abs/2506.09477), and Liu et al.,
# [2510.01555](https://arxiv.org/abs/2510.01555), on KL estimates as losses (abstracts read); DeepSeek-V3.2,
# [2512.02556](https://arxiv.org/abs/2512.02556), as TRL's documentation cites it; TRL, pull request
# [6503](https://github.com/huggingface/trl/pull/6503); Huang et al. (2023),
# [Hugging Face blog](https://huggingface.co/blog/the_n_implementation_details_of_rlhf_with_ppo). The proofs and examples are ours.
