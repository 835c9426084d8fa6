# %% [markdown] 35 minutes
# # 14 · One gradient until the ratio moves
#
# GRPO, GSPO, CISPO, SAPO, GMPO and DPPO look like six algorithms. On the first update after sampling they are one: **given one way of
# averaging, all six have the same gradient as long as every ratio is 1.** They differ only in how they respond once the policy has moved
# since it sampled.
#
# | symbol | meaning |
# |---|---|
# | $\pi_{old},\ \pi$ | the policy that sampled the rollout batch; the policy now |
# | $\rho_t,\ \ell_t$ | a token's ratio $\pi(y_t)/\pi_{old}(y_t)$; its $\log\pi(y_t)$ |
# | $\bar\rho$ | a completion's ratio in GSPO: the geometric mean of its tokens' ratios |
# | $A$ | the advantage of the token's completion |
# | $U$ | staleness: how many updates share a rollout batch; the last minibatch is $U-1$ updates old |
# | $\mathrm{sg}[\cdot]$ | stop-gradient: treated as a constant when differentiating |
#
# ## The proof
#
# The proof uses only $\nabla\rho_t = \rho_t\,\nabla\ell_t$ and $\rho_t = 1$:
#
# 1. *The ratio within bounds.* GRPO's bounds do not bind at 1 and DPPO drops nothing there, so
#    $\nabla(\rho_t A) = \rho_t A\,\nabla\ell_t = A\,\nabla\ell_t$. CISPO's $\mathrm{sg}[\min(\rho_t, 5)]\,A\,\ell_t$ has this gradient
#    directly.
# 2. *A smooth function of the ratio.* SAPO's gate $\frac4\tau\,\mathrm{sigmoid}(\tau(\rho - 1))$ has at $\rho = 1$ the slope
#    $4\,\mathrm{sigmoid}'(0) = 1$.
# 3. *One ratio per completion.* GSPO's $\bar\rho A$ (GMPO: with clipped $\rho_t$) has
#    $\nabla(\bar\rho A) = \bar\rho A\,\frac1{|y|}\sum_t\nabla\ell_t$: at $\bar\rho = 1$ the mean over tokens of $A\,\nabla\ell_t$, like
#    the others after averaging. ∎
#
# Three of the six are scripts of this repository; these are the other three:

# %%
import random
from itertools import combinations, product
from math import erfc

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from lessons.checks.lesson_14 import gradient_of
from lessons.experiments import staleness
from lessons.experiments.staleness import ARMS, difference, select, written
from lessons.figures.lesson_14 import accuracy_against_staleness, factors, one_group
from lessons.float64 import to_float64
from lessons.kit import check, knob, say, show, show_source
from lessons.losses import LOSSES, dppo, gmpo, sapo
from toy_env.model import load_policy
from toy_env.rollout import completion_logps

torch.set_num_threads(1)
for loss in (sapo, gmpo, dppo):
    show_source(loss)

# %% [markdown]
# On the real model, in double precision, we compute the gradients of all six losses on one rollout batch with respect to all parameters,
# and again after a step along GRPO's gradient.

# %%
policy, tokenizer = load_policy("base")
policy = to_float64(policy)
_, rollout, A = staleness.collect(policy, tokenizer, 4, random.Random(1), torch.Generator().manual_seed(1))
old_logps = completion_logps(policy, rollout, 1.0).detach()


def gradients():
    """The gradient of each loss with respect to all parameters, one vector each, and its relative distance from GRPO's."""
    vectors = {}
    for name, loss in LOSSES.items():
        logps = completion_logps(policy, rollout, 1.0)
        value = loss(logps=logps, old_logps=old_logps, advantages=A.double(), mask=rollout.mask)
        vectors[name] = parameters_to_vector(torch.autograd.grad(value, list(policy.parameters())))
    norm = vectors["GRPO"].norm()
    return vectors, {name: ((vector - vectors["GRPO"]).norm() / norm).item() for name, vector in vectors.items()}


fresh, errors = gradients()
print("at ratio 1, relative difference of the six gradients < 1e-12:", max(errors.values()) < 1e-12)
step = 0.3 * fresh["GRPO"] / fresh["GRPO"].norm()
vector_to_parameters(parameters_to_vector(policy.parameters()).detach() - step, policy.parameters())
_, apart = gradients()
print("after a step:", ", ".join(f"{name} {apart[name]:.0%} off" for name in apart if name != "GRPO"))
assert max(errors.values()) < 1e-12 and min(apart[name] for name in apart if name != "GRPO") > 0.02

# %% [markdown]
# ## Which tokens does each method stop?
#
# Away from 1, each loss multiplies $A\,\nabla\ell_t$ by a factor, computed here by autograd on completions of one token. Near 1 all
# factors lie on the line $\rho$ (SAPO's is tangent to it); they differ in where they leave it. Move $p$, the token's probability when it
# was sampled.

# %%
knob(lambda p: factors(LOSSES, p), p=(0.02, 0.98, 0.02, 0.3))

# %% [markdown]
# *GRPO stops a token where its own push has moved the ratio by a fifth, GMPO where it has risen by half or fallen by a third. CISPO
# follows the line up to 5 and stops nothing. SAPO bends away from it. DPPO bounds the probability: a rare token's may grow many times
# over, a likely token's may not move by more than .2.* A token sampled with $p > 5/6$ cannot reach a ratio of 1.2: GRPO's upper clip
# never touches it.
#
# GSPO and GMPO use the completion's ratio, so one token says little about them. Here is one group, while its batch of 1,024 completions
# is used for up to 32 updates. Move back from 31 updates to 1: which tokens are stopped first?

# %%
policy, tokenizer = load_policy("base")
generator = torch.Generator().manual_seed(0)
problems, rollout, A = staleness.collect(policy, tokenizer, 128, random.Random(0), generator)
optimizer = torch.optim.AdamW(policy.parameters(), lr=staleness.LEARNING_RATE, weight_decay=0.0)
group, moved = torch.arange(8) + 8 * 27, {}  # the group in which GRPO ends up stopping most tokens
for update, chosen in enumerate(torch.randperm(1024, generator=generator).split(staleness.MINIBATCH)):
    if update in (1, 3, 7, 15, 31):
        moved[update] = completion_logps(policy, rollout[group], 1.0).detach()
    part = rollout[chosen]
    logps = completion_logps(policy, part, 1.0)
    optimizer.zero_grad()
    LOSSES["GRPO"](logps=logps, old_logps=part.logps, advantages=A[chosen], mask=part.mask).backward()
    optimizer.step()


def draw(updates=31):
    figure = one_group(rollout[group], moved[updates], A[group], LOSSES)
    figure.axes[0].set_title(
        f"{problems[27].prompt}   after {updates} update{'s' * (updates > 1)} (∎: end of the completion)"
    )
    return figure


knob(draw, updates=[31, 15, 7, 3, 1])

# %% [markdown]
# *Stopped by GRPO: a blue bar below the token. By DPPO: a black one above it. By GSPO: an orange frame, always around a whole
# completion.*

# %% [markdown]
# ## Does it matter?
#
# On the left, every run makes 192 updates on 32 completions each, using every completion once. The axis is how many updates share a
# rollout batch (which also decides what a minibatch holds: whole groups at U = 1, completions of many groups above); the arms differ in
# their use of the ratio. All have GRPO's advantages and averages, no KL, learning rate 2e-4, five seeds. On the right, each batch of 256
# completions is used in four epochs of 8 updates. *Before you look: which arms fall?*

# %%
runs = staleness.load()
show(accuracy_against_staleness(runs))
say(staleness.verdicts(runs))
CLIP = "GRPO's clip"
old = [run["accuracy"][-1] for run in select(runs, arm="no correction", staleness=32)]
stops = {arm: np.mean([run["stopped"] for run in select(runs, arm=arm, staleness=32)]) for arm in (CLIP, "GSPO")}
corrected = [arm for arm in ARMS if arm != "no correction"]
again = {arm: select(runs, arm=arm, staleness=8, epochs=4) for arm in corrected}
sooner = [difference(again[arm], select(runs, arm=arm, staleness=8), at=1, others_at=0)[0] for arm in corrected]
ahead = written(difference(again["CISPO"], again[CLIP], at=0, others_at=0))
behind = written(difference(again["CISPO"], again[CLIP]))
more = [select(runs, range(5, 10), arm=arm, staleness=8, epochs=4) for arm in ("CISPO", CLIP)]
behind_again = written(difference(*more))
pairs = [(u, a, b) for u in (4, 8, 16, 32) for a, b in combinations(corrected, 2)]
gaps = {(u, *ab): difference(*(select(runs, arm=arm, staleness=u) for arm in ab)) for u, *ab in pairs}
significant = {key: gap for key, gap in gaps.items() if not gap[1] < 0 < gap[2]}
assert list(significant) == [(16, CLIP, "GSPO")] and min(sooner) > 5 and difference(*more)[2] < 0
moved = {arm: np.mean([run["moved"] for run in again[arm]]) for arm in (CLIP, "CISPO")}
ahead_again = written(difference(*more, at=0, others_at=0))
half = select(runs, arm=CLIP, staleness=4, sampler="bfloat16")
spread = {what: np.mean([run[f"spread of {what}"] for run in half]) for what in ("tokens", "completions")}
length, scaled = (np.mean(x) for x in zip(*((r["length"], r["spread of completions"] / r["length"]) for r in half)))
above_two = sum(run["tokens above 2"] * run["length"] * 6144 for run in runs if run["sampler"] == "bfloat16")
outside = {T: erfc(3e-4 * np.sqrt(T / 2) / spread["tokens"]) for T in (1_000, 10_000)}

# %% [text]
# *(Points of accuracy, paired by seed, with 95 % t intervals; predictions are judged by the means. "Stops": the share of tokens with an
# advantage whose gradient is 0.)*
#
# **Stale completions need a correction; at U = 32 five seeds show no difference between four of them.** (Of {=len(pairs)} differences at
# U = 4 to 32 one excludes 0, as by chance: GRPO's clip minus GSPO at 16, {=written(*significant.values())}.) Without correction, accuracy
# falls from U = 8 on, and at 32 the runs end anywhere from {=min(old):.2f} to {=max(old):.2f} (base model: .39). The four cope in
# different ways: GSPO stops {=stops['GSPO']:.0%} of the tokens, GRPO's clip {=stops[CLIP]:.0%}, CISPO none.
#
# **When completions are used four times, CISPO, which stops nothing, leads at first and falls behind.** At first every corrected arm
# gains: {=min(sooner):.0f} to {=max(sooner):.0f} points after 1,536 completions. At 3,072, where the prediction was made, no gain is
# left, and a reused completion costs four times the updates. CISPO is fastest ({=ahead} against GRPO's clip after 768 completions), then
# loses its lead ({=behind} at 3,072). Five more seeds, run to settle this, agree: {=ahead_again}, then {=behind_again}. Up to a ratio of
# 5 the two gradients differ only in the stopped tokens: in CISPO, for A > 0, nothing ends the push of a reused completion. But at the
# same learning rate its policy also moves further: $|\log\rho|$ is {=moved["CISPO"]:.3f} on average, not {=moved[CLIP]:.3f}. **So this
# does not tell whether reuse needs a bound or shorter steps.**
#
# **What this cannot show**: one task of short completions, one small model, one learning rate.

# %% [markdown]
# ## Sampler ≠ trainer
#
# Real systems sample with one engine and train with another, with different kernels and precision. Then the ratio is not 1 even before
# the first update; the self-check at the start of every run prints the difference. In the last two rows above, the sampler is a copy of
# the policy in bfloat16 or with float8 weights, the trainer is in float32, with GRPO's clip at U = 4.
#
# **Truncated importance sampling** ([Yao et al. 2025](https://openreview.net/forum?id=8MHqvb4lK9)) multiplies the loss by
# $\mathrm{sg}[\min(\pi_{old}/\pi_{sampler},\ C)]$, for each token or for the whole completion (the product), with C = 2. $\pi_{old}$ is
# the *trainer's* policy when the batch was sampled; the clip still uses $\pi/\pi_{old}$. With the product and without a cap, the expected
# gradient at ratio 1 is that of samples from $\pi_{old}$, if scores are summed over tokens and advantages are not divided by σ. (σ and
# the group's mean are those of the sampler's groups; the mean drops out if the expected score is 0, but the expectation of a score
# divided by $|y|$ is not.) A token's own ratio leaves out all other tokens: the prefix that led to it, and the rest that earns the
# reward. C bounds the variance. We enumerate all groups of two from 15 texts:

# %%
texts = ["".join(letters) for n in range(4) for letters in product("ab", repeat=n)]
tokens = [(text + "$")[:3] for text in texts]  # $ ends texts of fewer than three letters
lengths, R = torch.tensor([[len(text)] for text in tokens]), (torch.arange(15) % 3 == 0).double()
generator = torch.Generator().manual_seed(0)
logits, noise = torch.randn(2, 7, 3, generator=generator, dtype=torch.float64)  # after each of the 7 prefixes


def log_probabilities(logits):
    logps = logits.log_softmax(dim=1)
    return torch.stack([sum(logps[texts.index(y[:t]), "ab$".index(y[t])] for t in range(len(y))) for y in tokens])


def expected(weights, chance, scores):
    """The mean of Dr. GRPO's update over all groups of two: R minus the group's mean is (R_i - R_j) / 2."""
    return (chance * weights * ((R[:, None] - R) / 2 @ chance)) @ scores


summed = torch.autograd.functional.jacobian(log_probabilities, logits).flatten(1)  # scores, (15, 21)
old, sampler = (log_probabilities(z).exp() for z in (logits, logits + 0.1 * noise))
for name, scores in (("summed", summed), ("over |y|", summed / lengths)):
    truth, estimate = expected(1.0, old, scores), expected(old / sampler, sampler, scores)
    off = ((estimate - truth).norm() / truth.norm()).item()
    print(f"scores {name}: the expected update with weights is off by {off:.1%}")
    assert (off < 1e-12) == (name == "summed")

# %% [text]
# In bfloat16 {=above_two:.0f} tokens in all 15 runs pass 2, the other weights are near 1, and neither correction changes accuracy by an
# amount that five seeds can show; nor, with float8, does that of whole completions. But a completion's ratio spreads by
# {=spread['completions']:.3f} while a token's spreads by {=spread['tokens']:.3f}, {=spread['completions'] / spread['tokens']:.0f} times
# as far (the root of the number of tokens would be {=np.sqrt(length):.0f}). If it grew as the root, 10,000 tokens would make it nearly 1,
# too wide for a product of ratios to be a weight without a cap. And if the sampler's log-probs serve as the old ones, GSPO's published
# range, 3e-4, would clip completions as short as these by rounding alone: divided by the length, their spread is {=scaled:.1e}. If
# the log-ratios of tokens were independent and normal with the spread of ours, {=outside[1_000]:.0%} of completions would still lie
# outside at 1,000 tokens, and {=outside[10_000]:.2%} at 10,000.

# %% [markdown]
# ## Exercises
#
# **1. Write CISPO.** The loss of one completion: the mean over its tokens of minus sg[min(ρ, cap)] · A · log π. The check compares
# gradients.


# %% [exercise]
def cispo_loss(logps, old_logps, A, cap):
    """From tensors (T,), (T,), a number and a number: a scalar loss."""
    return ...


# %% [check]
check("14.1", gradient_of(cispo_loss))

# %% [hint]
# `.detach()` is sg. Compare `policy_loss` in `algorithms/cispo.py`.


# %% [solution]
def cispo_loss(logps, old_logps, A, cap):
    weight = (logps - old_logps).exp().detach().clamp(max=cap)
    return -(weight * A * logps).mean()


# %% [wrong] return one number
def cispo_loss(logps, old_logps, A, cap):
    return -(logps - old_logps).exp().detach().clamp(max=cap) * A * logps


# %% [wrong] detach it
def cispo_loss(logps, old_logps, A, cap):
    return -((logps - old_logps).exp().clamp(max=cap) * A * logps).mean()


# %% [wrong] must multiply log π
def cispo_loss(logps, old_logps, A, cap):
    return -((logps - old_logps).exp().clamp(max=cap) * A).mean()


# %% [wrong] the cap is missing
def cispo_loss(logps, old_logps, A, cap):
    return -((logps - old_logps).exp().detach() * A * logps).mean()


# %% [markdown]
# **2. Which tokens does GSPO stop?** From log-ratios (G, T), a mask (G, T), advantages (G, 1) and the two widths of the range, return
# True for every token of a completion whose gradient is 0. (No advantage is 0. Keep the names.)


# %% [exercise]
def gspo_stops(log_ratio, mask, A, low, high):
    """(G, T), bool."""
    return ...


# %% [check]
check("14.2", gspo_stops)

# %% [hint]
# First the ratio $\bar\rho$ (G, 1), then the side of the range that belongs to the sign of A; broadcasting does the rest.


# %% [solution]
def gspo_stops(log_ratio, mask, A, low, high):
    s = ((log_ratio * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)).exp()
    return torch.where(A > 0, s > 1 + high, s < 1 - low) & mask


# %% [wrong] not their sum
def gspo_stops(log_ratio, mask, A, low, high):
    s = (log_ratio * mask).sum(dim=1, keepdim=True).exp()
    return torch.where(A > 0, s > 1 + high, s < 1 - low) & mask


# %% [wrong] not over the padding
def gspo_stops(log_ratio, mask, A, low, high):
    s = log_ratio.mean(dim=1, keepdim=True).exp()
    return torch.where(A > 0, s > 1 + high, s < 1 - low) & mask


# %% [wrong] for a completion as a whole
def gspo_stops(log_ratio, mask, A, low, high):
    s = log_ratio.exp()
    return torch.where(A > 0, s > 1 + high, s < 1 - low) & mask


# %% [wrong] only where its own push
def gspo_stops(log_ratio, mask, A, low, high):
    s = ((log_ratio * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)).exp()
    return ((s > 1 + high) | (s < 1 - low)) & mask


# %% [wrong] the sides are exchanged
def gspo_stops(log_ratio, mask, A, low, high):
    s = ((log_ratio * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)).exp()
    return torch.where(A > 0, s < 1 - low, s > 1 + high) & mask


# %% [wrong] padding is no token
def gspo_stops(log_ratio, mask, A, low, high):
    s = ((log_ratio * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)).exp()
    return torch.where(A > 0, s > 1 + high, s < 1 - low).expand_as(mask)


# %% [wrong] that are not stopped
def gspo_stops(log_ratio, mask, A, low, high):
    s = ((log_ratio * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)).exp()
    return torch.where(A > 0, s <= 1 + high, s >= 1 - low) & mask


# %% [wrong] not (G, 1)
def gspo_stops(log_ratio, mask, A, low, high):
    s = ((log_ratio * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)).exp()
    return torch.where(A > 0, s > 1 + high, s < 1 - low)


# %% [markdown]
# **3. Find the bug.** This function should return the weights of truncated importance sampling for whole completions,
# min(π_old/π_sampler, C), (G, 1). For one token it is right; for more, its weight is too small when other tokens make up for a truncated
# one, and may exceed C. Repair it.


# %% [exercise]
def weights(log_ratio, C):
    """log_ratio = log π_old − log π_sampler, (G, T), 0 off the mask."""
    return log_ratio.exp().clamp(max=C).prod(dim=1, keepdim=True)  # <- runs, and is wrong


# %% [check]
check("14.3", weights)

# %% [hint]
# Another token's ratio below 1 may compensate for a ratio above C. Truncate once, at the end.


# %% [solution]
def weights(log_ratio, C):
    return log_ratio.sum(dim=1, keepdim=True).exp().clamp(max=C)


# %% [wrong] has no bound
def weights(log_ratio, C):
    return log_ratio.sum(dim=1, keepdim=True).exp()


# %% [wrong] no importance weight
def weights(log_ratio, C):
    return log_ratio.mean(dim=1, keepdim=True).exp().clamp(max=C)


# %% [markdown]
# ## To remember
#
# - With one update per rollout batch all six methods are one, up to how they average over tokens (lesson 5) and as long as the sampler is
#   the trainer.
# - The ratio accounts for where the data came from, the bound for how far one batch may push. Stale data needs the ratio, reused data the
#   bound or shorter steps.
# - Different precision need not mean a different policy: print the spread between sampler and trainer before you correct for it.
#
# **What to use when:** one update per batch: any of them; several updates on fresh completions: GRPO's clip, until your own measurement
# says otherwise; several epochs: one that stops tokens (GRPO's clip, GSPO), and stop early; long completions or a sampler far from its
# trainer: truncated weights as well.
#
# Sources: GSPO [2507.18071](https://arxiv.org/abs/2507.18071) Eq. 5, 7; CISPO [2506.13585](https://arxiv.org/abs/2506.13585) Eq. 4, 5; SAPO
# [2511.20347](https://arxiv.org/abs/2511.20347); GMPO [2507.20673](https://arxiv.org/abs/2507.20673); DPPO
# [2602.04879](https://arxiv.org/abs/2602.04879) and its [repository](https://github.com/sail-sg/Stable-RL).
