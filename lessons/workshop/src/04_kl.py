# %% [markdown] 40 minutes, without the second reading
# # 4 · KL estimators
#
# Training moves the policy $\pi$ away from the model that it started as, the **reference** $\pi_\text{ref}$. A penalty on the KL
# (Kullback–Leibler) divergence, which measures how far apart the two are, pulls it back. GRPO (group relative policy optimization) estimates the
# KL from the tokens that the policy samples.
#
# > **An estimate that is right as a number can have the wrong gradient as a loss. GRPO's estimate $k_3$ has KL(policy‖reference) as its mean; as a
# > loss it lowers KL(reference‖policy), with the two models exchanged.**
# >
# > In our example of one token, a rare rewarded token ends at a probability of .56 with $k_3$, and at .27 with an estimate whose gradient is that
# > of KL(policy‖reference).
#
# The smallest case has two tokens and one logit. With $u = \pi_\text{ref}/\pi$, the ratio of a token's two probabilities, two estimates are
# $k_1 = -\log u$ and $k_3 = u - 1 - \log u$. The **score** $s$ is the derivative of the token's $\log\pi$ with respect to the logit:
#
# | token | $\pi$ | $\pi_\text{ref}$ | $u$ | $k_1$ | $k_3$ | $s$ | $k_3$'s derivative: $(1-u)\,s$ | in the KL's derivative: $k_1\,s$ |
# |---|---|---|---|---|---|---|---|---|
# | 1 | ½ | .1 | .2 | 1.61 | .81 | ½ | .4 | .80 |
# | 2 | ½ | .9 | 1.8 | −.59 | .21 | −½ | .4 | .29 |
# | **mean** | | | 1 | **.51** | **.51** | 0 | **.4** | **.55** |
#
# The values agree: both means are KL(policy‖reference). The gradients do not. The derivative of that KL is the mean of the last column, .55
# (proof below). The derivative of KL(reference‖policy) is $\pi - \pi_\text{ref}$ = .5 − .1 = .4, that of $k_3$.
#
# We train a policy over five tokens, starting at the reference. Two tokens are rewarded: a rare one (blue), which the
# reference writes in 5 % of cases, with 1, and the common token 2 with 0.8. The loss contains 0.2 times a penalty: $k_1$, $k_3$, or a third
# estimate, $k_2 = \tfrac12\,(\log u)^2$.

# %% [fold]
import inspect

import torch

from algorithms import grpo, ppo
from lessons.workshop.kit import check, show, trains
from lessons.workshop.parts import lesson_04
from lessons.workshop.parts.drawing import bars

ESTIMATORS = {
    "k1": lambda log_u: -log_u,
    "k2": lambda log_u: log_u**2 / 2,
    "k3": lambda log_u: log_u.exp() - 1 - log_u,
}

log_u, s = torch.tensor([0.2, 1.8]).log(), torch.tensor([0.5, -0.5])  # the smallest case
k1, k3 = ESTIMATORS["k1"](log_u), ESTIMATORS["k3"](log_u)
means = [one.mean().item() for one in (k1, k3, k1 * s, (1 - log_u.exp()) * s)]
assert [round(mean, 2) for mean in means] == [0.51, 0.51, 0.55, 0.4]

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
# *Left: the reference, and the two rewards. Then the policy after training with each penalty in the loss. Outlines: the exact optimum of
# mean reward minus 0.2 KL(policy‖reference), which the bars reach with $k_2$, and minus 0.2 KL(reference‖policy), which they reach with $k_3$.*
#
# With $k_1$ as a loss nothing holds the policy: it writes only the rare token. $k_2$ mainly charges the policy for writing what the reference
# would not, such as the rare token. $k_3$ mainly charges it for losing what the reference writes: the tokens without reward keep
# {=ends["k3"][2:].sum():.0%}.
#
# From here on, $\mathbb E$ is the mean over tokens $y$ sampled from $\pi$, and $s = \nabla_\theta \log \pi(y)$ has an entry for each parameter.
# $\mathrm{KL}(\pi\Vert\pi_\text{ref}) = \sum_y \pi \log(\pi/\pi_\text{ref})$, KL(policy‖reference), is called the **reverse** KL;
# $\mathrm{KL}(\pi_\text{ref}\Vert\pi) = \sum_y \pi_\text{ref} \log(\pi_\text{ref}/\pi)$ the **forward** KL.

# %% [markdown]
# ## As values
#
# $\mathbb E[k_1]$ is the definition of the KL. Next, $\mathbb E[u] = \sum_y \pi\,\frac{\pi_\text{ref}}{\pi} = \sum_y \pi_\text{ref} = 1$,
# provided that $\pi > 0$ wherever $\pi_\text{ref} > 0$. So $u - 1$ has mean zero, and $k_3 = k_1 + (u - 1)$ has the same mean as $k_1$.
# $k_3$ is never negative, because $\log u \le u - 1$. $k_2$ is biased.
#
# To check this without sampling noise, take a policy over five tokens whose probabilities are multiples of 1/16. In the batch below every
# token occurs exactly in proportion, so a mean over the batch *is* the expectation.

# %%
counts = torch.tensor([8, 4, 2, 1, 1])
batch = torch.arange(5).repeat_interleave(counts)  # (16,) tokens
logits = (counts.double() / 16).log().requires_grad_()  # the parameters
ref = torch.tensor([0.10, 0.15, 0.05, 0.40, 0.30], dtype=torch.float64).log()  # log pi_ref


def same(a, b):
    return bool((a - b).abs().max() < 1e-14)


log_pi = logits.log_softmax(dim=0)
truth = log_pi.exp() @ (log_pi - ref)
logp = log_pi[batch]  # (16,), its gradient is the score
print(f"KL(pi || ref) = {truth:.4f}\n        mean     std  lowest  unbiased")
for name, k in ESTIMATORS.items():
    v = k(ref[batch] - logp).detach()
    unbiased = same(v.mean(), truth)
    assert unbiased == (name != "k2")
    print(f"{name} {v.mean():9.4f} {v.std(correction=0):7.4f} {v.min():7.4f}  {unbiased}")

# %% [markdown]
# ## As losses
#
# Autograd differentiates the loss at the sampled $y$. It does not know that $y$ was drawn from $\pi$. By the product rule,
# with $\nabla \pi = \pi s$,
#
# $$\nabla\,\mathbb E[k] \;=\; \nabla \sum_y \pi\,k \;=\; \underbrace{\mathbb E[\nabla k]}_{k \text{ as a loss}} \;+\;
# \underbrace{\mathbb E[k\,s]}_{k \text{ in the reward}}$$
#
# A penalty can also stand in the reward, as $k_1$ does in PPO (proximal policy optimization): the second half is its policy gradient
# ([lesson 1](01_score_function.ipynb)). So $k$ as a loss brings only the first half, and $k$ in the reward only the second. Because $\nabla \log u = -s$,
#
# $$\nabla k_1 = s, \qquad \nabla k_2 = -\log u \; s, \qquad \nabla k_3 = (1 - u)\, s$$
#
# Three means complete the proof, one for each $k$:
#
# $$\mathbb E[s] = \sum_y \nabla \pi = \nabla 1 = 0$$
#
# $$\nabla\mathrm{KL}(\pi\Vert\pi_\text{ref}) = \sum_y \nabla\pi \log\frac{\pi}{\pi_\text{ref}} + \sum_y \pi s
# = \mathbb E[-\log u\; s]$$
#
# $$\nabla\mathrm{KL}(\pi_\text{ref}\Vert\pi) = -\sum_y \pi_\text{ref}\,s = -\mathbb E[u\,s] = \mathbb E[(1-u)\,s]
# \qquad \blacksquare$$
#
# So $k_1$ as a loss is nothing but noise. And $k_3$ *in the reward* is wrong too: it gives the other half, the reverse gradient minus the
# forward gradient. Near the reference these two nearly cancel, so the penalty hardly acts; farther off it can even drive the policy away
# (exercise 1).
#
# We check all six by autograd, against autograd on the two sums:


# %% [fold]
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
for name, k in ESTIMATORS.items():
    value = k(ref[batch] - logp)
    as_loss, in_reward = value.mean(), (value.detach() * logp).mean()
    table[name] = name_of(gradient(as_loss)), name_of(gradient(in_reward))
    print(f"{name} as a loss: {table[name][0]:10} in the reward: {table[name][1]}")
expected = [("0", "reverse"), ("reverse", "neither"), ("forward", "reverse - forward")]
assert list(table.values()) == expected

# %% [markdown]
# ## In the scripts
#
# PPO subtracts $\beta k_1$ from the reward of every token. GRPO's penalty is in the two lines below. With everything else switched off
# (advantages, or rewards and values, are 0), which KL's gradient is left?

# %% [fold]
lines = inspect.getsource(grpo.policy_loss).splitlines()
print("\n".join(line.strip() for line in lines if "log_u" in line))
zeros = torch.zeros(16, 1).double()  # 16 completions of one token
old = {"old_logps": logp.detach().view(16, 1), "mask": torch.ones(16, 1).bool()}
new, ref_logps = old | {"logps": logp.view(16, 1)}, {"ref_logps": ref[batch].view(16, 1)}

config = grpo.Config(kl_coef=1.0)
loss = grpo.policy_loss(**new, **ref_logps, advantages=zeros, config=config)
in_grpo = name_of(gradient(loss))

inputs = old | ref_logps | {"rewards": zeros.view(2, 8), "values": zeros}
_, returns = ppo.compute_advantages(**inputs, config=ppo.Config(kl_coef=1.0))
in_ppo = name_of(gradient(ppo.policy_loss(**new, advantages=returns, config=ppo.Config())))

A, u = torch.linspace(-1, 1, 16).double(), (ref[batch] - logp).exp().detach()
eq_21 = -gradient(((A + 0.04 * (u - 1)) * logp).mean())  # as printed, for one token each
config = grpo.Config(kl_coef=0.04)
loss = grpo.policy_loss(**new, **ref_logps, advantages=A.view(16, 1), config=config)
as_printed = same(gradient(loss), eq_21)
print(f"grpo.py: {in_grpo} KL. Same gradient as the paper's Eq. 20-21: {as_printed}")
print(f"ppo.py:  {in_ppo} KL")
assert (in_grpo, in_ppo, as_printed) == ("forward", "reverse", True)

# %% [markdown]
# DeepSeekMath, GRPO's paper, names $\mathrm{KL}(\pi\Vert\pi_\text{ref})$ in its objective (Eq. 3), but the gradient that it prints (Eq. 20–21), like
# `grpo.py`, descends the other KL. Neither is the wrong choice: the forward KL keeps what the reference writes, the reverse KL suppresses what it
# does not.
#
# All of this is for one token. For longer completions see *The limit* after exercise 1.

# %% [markdown]
# ## Exercises
#
# **1. Find the bug.** Somebody moves GRPO's $k_3$ from the loss into the reward: its value is unbiased and never negative. What does
# such a penalty descend? Repair the function, so that it descends the reverse KL. Below the check, your rewards train the policy in
# sixteenths of *As values*. No completion is right, so the policy should return to the reference.


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
# *The distance from the reference, in one run of each penalty, 64 tokens an update. Yellow: $|k_1|$, also never negative. Pink: the right penalty with its
# sign turned, as printed in "The N Implementation Details of RLHF with PPO" (the code that it describes has a minus).*

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
# In the reward $k_3$ drives the policy away, and $|k_1|$ does not bring it back, either. Both also charge for tokens that the policy writes too
# seldom, so it writes them still less. ($k_1$ is negative there, a bonus.)
#
# **The limit: one token.** A penalty on each token ignores that an earlier token decides which later ones are reached. Take
# completions of two tokens, and $k_2$ as a loss, token by token:

# %% [fold]
by_token = lesson_04.sequence_gradient(lambda logps, ref: ((logps - ref) ** 2 / 2).sum(1).mean())
of_pair = lesson_04.kl_of_sequences  # its gradient, by the sum over all four pairs
k2_there, kl_there = (which(lesson_04.other_ref) for which in (by_token, of_pair))
whole = lesson_04.sequence_gradient(lambda logps, ref: (logps - ref).sum(1).square().mean() / 2)
assert same(whole(lesson_04.other_ref), kl_there)  # k2 of the total log-ratio, in exercise 2
assert same(k2_there[1:], kl_there[1:]) and not same(k2_there[0], kl_there[0])
assert [f"{x[0, 0]:+.3f}" for x in (k2_there, kl_there)] == ["+0.130", "-0.051"]
print(
    f"derivative by a logit of the first token: k2 as a loss {k2_there[0, 0]:+.3f}, "
    f"KL of the pair {kl_there[0, 0]:+.3f}\nby the logits of the second: the same"
)

# %% [markdown]
# It even pushes the first token the wrong way. Of the token-by-token penalties above, only $k_1$ in the reward can give the gradient of the
# KL of whole completions, and only if each token is charged for the later ones, too.
#
# ## To remember
#
# | for one token | value | as a loss | in the reward |
# |---|---|---|---|
# | $k_1$ | unbiased | nothing | **reverse KL** |
# | $k_2$ | biased | **reverse KL** | neither |
# | $k_3$ | unbiased | forward KL | reverse − forward |
#
# - To lower KL(policy‖reference), use $k_1$ in the reward or $k_2$ as a loss. To log it, use $k_3$ near the reference, $k_1$ far from it.
# - For longer completions charge each token the later ones' $k_1$, too, or take $k_2$ of the *total* log-ratio as a loss: token by token,
#   $k_2$ can push the wrong way.
#
# ## For a second reading (25 minutes): two tokens, the ratio, noise
#
# **2. Completions of two tokens.** Write a loss whose mean gradient is that of $\mathrm{KL}(\pi\Vert\pi_\text{ref})$ of the sequences.


# %% [exercise]
def sequence_kl_loss(logps, ref_logps):
    """For sampled tokens (B, 2), on-policy. Returns a scalar with the mean gradient of
    KL(pi || ref) of sequences."""
    return ...


# %% [check]
check("4.2", lesson_04.sequence_gradient(sequence_kl_loss))

# %% [hint]
# Do as PPO does with $k_1$ in the reward: the return of a token (with λ = 1) includes the penalties of the later tokens. As in any policy
# gradient, autograd must not go through the penalty.


# %% [solution]
def sequence_kl_loss(logps, ref_logps):
    k1 = (logps - ref_logps).detach()
    # this token's penalty and those of the later ones
    to_come = k1.flip(1).cumsum(dim=1).flip(1)
    # or with k1.sum(dim=1, keepdim=True) for to_come: noisier. That is the gradient of k2 as a
    # loss on the whole completion, ½ (log-ratio of the completion)²
    return (to_come * logps).sum(dim=1).mean()


# %% [markdown]
# **Multiplied by the ratio, $k_3$ has the right gradient.** From the second minibatch on, $y$ comes from an older policy
# $\pi_\text{old}$. Multiply $k_3$ by the ratio $\rho = \pi/\pi_\text{old}$: then $\mathbb E_\text{old}[\rho\,k_3] = \sum_y \pi\,k_3$, with $\theta$ *inside* the sum.
# So if autograd also goes through $\rho$, $k_3$ yields the reverse KL, even on the first minibatch: there $\rho$ is 1, but its gradient
# is not 0 and supplies the missing half. Sample by sample,
#
# $$\nabla(\rho\,k_3) = \rho\,(k_3 + 1 - u)\,s = \rho\,k_1\,s$$
#
# TRL (a training library of Hugging Face) has multiplied $k_3$ by $\rho$ by default since 1.10, for this reason and after DeepSeek-V3.2. (With its
# `importance_sampling_level="sequence"` the gradient is neither KL's, [issue 6586](https://github.com/huggingface/trl/issues/6586).) This
# repair, too, is for one token. At a second minibatch:


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
# **Is $k_3$ less noisy?** Let the policy be the Gaussian $N(0,1)$ and the reference $N(d,1)$. Then $\log u$ has the variance $d^2$, $u$ has
# $e^{d^2} - 1$, and their covariance is $d^2$. So $\operatorname{Var} k_1 = d^2$ and $\operatorname{Var} k_3 = e^{d^2} - 1 - d^2$. Near the reference
# $k_3$ is quieter; from about $d = 1.12$ on, where $e^{d^2} = 1 + 2d^2$, it is noisier.
#
# Sources: Schulman (2020), [*Approximating KL Divergence*](http://joschu.net/blog/kl-approx.html); DeepSeekMath,
# [arXiv:2402.03300](https://arxiv.org/abs/2402.03300); Tang and Munos, [2506.09477](https://arxiv.org/abs/2506.09477) (token losses give
# "a partial gradient at best"), and Liu et al., [2510.01555](https://arxiv.org/abs/2510.01555) ($k_2$ as a loss is equivalent to $k_1$ in
# the reward, on-policy; of these two we read only the abstracts); DeepSeek-V3.2, [2512.02556](https://arxiv.org/abs/2512.02556), as TRL's
# documentation cites it; pull request [6503](https://github.com/huggingface/trl/pull/6503) of TRL; Huang et al. (2023),
# [Hugging Face blog](https://huggingface.co/blog/the_n_implementation_details_of_rlhf_with_ppo). The proofs, the policies trained here
# and the sequence example are ours.
