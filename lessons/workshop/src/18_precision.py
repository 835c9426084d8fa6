# %% [markdown] 30 minutes
# # 18 · The sampler is not the trainer
#
# Real systems sample with one engine and train with another, with other kernels and another precision. So a token's probability differs
# between the two even before the first update. The differences of the tokens multiply: in completions of twenty tokens they hardly matter,
# in completions of ten thousand they may.
#
# > **A weight can correct for this exactly, if the scores of the tokens are summed, as in REINFORCE and Dr. GRPO: a completion's probability
# > in the trainer, divided by that in the sampler. Weights of single tokens cannot. A cap on the weight brings an error back.**

# %% [fold]
from itertools import product
from math import erfc

import numpy as np
import torch

from lessons.experiments import staleness
from lessons.experiments.grid import change, load_runs, markdown
from lessons.experiments.precision import CORRECTIONS
from lessons.experiments.staleness import U_4, gap, select, verdicts
from lessons.workshop.kit import check, knob, say
from lessons.workshop.parts.lesson_14 import gradient_of
from lessons.workshop.parts.lesson_18 import off_and_noise

texts = ["".join(letters) for n in range(4) for letters in product("ab", repeat=n)]
tokens = [(text + "$")[:3] for text in texts]  # $ ends texts of fewer than three letters
lengths = torch.tensor([[len(text)] for text in tokens])
R = (torch.arange(15) % 3 == 0).double()
generator = torch.Generator().manual_seed(0)
# After each of the 7 prefixes
logits, noise = torch.randn(2, 7, 3, generator=generator, dtype=torch.float64)


def token_logps(logits):
    """(15, 3), 0 where a text has ended."""
    logps = logits.log_softmax(dim=1)
    rows = []
    for y in tokens:
        row = [logps[texts.index(y[:t]), "ab$".index(y[t])] for t in range(len(y))]
        rows.append(torch.stack(row + [logps.new_zeros(())] * (3 - len(y))))
    return torch.stack(rows)


# The score of every token, (15, 3, 21)
scores = torch.autograd.functional.jacobian(token_logps, logits).flatten(2)
old = token_logps(logits)


def update(weights, sampled, scores):
    """Dr. GRPO's update over all groups of two, if completions are drawn from
    log-probabilities `sampled`, (15, 3), and their scores have weights (15, 1) or (15, 3):
    its mean (21,), and its root mean square distance from the mean."""
    chance = sampled.sum(dim=1).exp()
    advantages = (R[:, None] - R) / 2  # R minus the group's mean
    weighted = (weights[:, :, None] * scores).sum(dim=1)  # (15, 21)
    mean = (chance * (advantages @ chance)) @ weighted
    squared = (chance * (advantages.square() @ chance)) @ weighted.square().sum(dim=1)
    return mean, (squared - mean @ mean).sqrt()


truth, _ = update(torch.ones(15, 1), old, scores)
CAPS = np.linspace(1.6, 6, 23)


def errors(distance):
    """By weights: off, and noise, for each cap, both over the length of the true mean."""
    sampled = token_logps(logits + distance * noise)
    log_weights = {"none": 0 * old[:, :1], "token": old - sampled,
                   "completion": (old - sampled).sum(dim=1, keepdim=True)}
    lines = {}
    for name, log_w in log_weights.items():
        updates = [update(log_w.exp().clamp(max=C), sampled, scores) for C in CAPS]
        off_and_rms = np.array([[(mean - truth).norm(), rms] for mean, rms in updates])
        lines[name] = off_and_rms / truth.norm().item()
    return lines


knob(lambda distance: off_and_noise(CAPS, errors(distance)), distance=(0.1, 1.5, 0.1, 0.5))
far, near, shown = errors(1.5), errors(0.1), errors(0.5)
assert abs(shown["token"][-1, 0] - shown["none"][-1, 0]) < 0.01
assert near["completion"][np.isclose(CAPS, 2), 0] < 1e-12 and near["none"][0, 0] < 0.06
assert far["completion"][-1, 0] < 0.2 and far["token"][-1, 0] > 0.4
assert far["completion"][-1, 1] > far["token"][-1, 1] > far["none"][-1, 1]
sampled, off = token_logps(logits + 0.1 * noise), {}
whole = (old - sampled).sum(dim=1, keepdim=True).exp()
for name, of_tokens in (("summed", scores), ("over |y|", scores / lengths[:, :, None])):
    wanted, _ = update(torch.ones(15, 1), old, of_tokens)
    estimate, _ = update(whole, sampled, of_tokens)
    off[name] = ((estimate - wanted).norm() / wanted.norm()).item()
    assert (off[name] < 1e-12) == (name == "summed")

# %% [text]
# *An example small enough to enumerate: groups of two from 15 texts of at most three letters, with Dr. GRPO's advantages. Left: the error of
# the mean update, as a share of its length. Right: the noise. The sampler's logits are the trainer's plus noise; the slider, *distance*, is its size.*
#
# **Weights of whole completions** come close to the true mean as the cap $C$ rises, and become noisier. Now move the slider. At .1 a cap
# of 2 cuts off nothing. At 1.5 even a cap of 6 does, and the weights are noisier than none at all.
#
# **Weights of tokens** keep an error that no cap removes. At a distance of .5 they are, without a cap, no better than no weights: both are off by
# {=100 * shown["token"][-1, 0]:.0f} %.
#
# | symbol | meaning |
# |---|---|
# | $\pi_{sampler}$ | the policy as the sampling engine computes it |
# | $\pi_{old},\ \pi$ | the trainer's policy when the batch was sampled; the trainer's policy now |
# | $\rho$ | $\pi/\pi_{old}$, for each token: what the clip looks at |
# | $w$ | a weight that corrects for the sampler, $\pi_{old}/\pi_{sampler}$, of a token or a completion |
# | $C$ | the cap: the largest weight that is allowed |
# | $A,\ s$ | a completion's advantage; its score, $\nabla\log\pi$ |
#
# ## Two ratios, two tasks
#
# $\pi/\pi_{sampler}$ is the product of $\rho$, which our own updates have moved, and $w$, which the engines make. A clip of the product would
# stop tokens that no update has moved. So $\rho$ is clipped and $w$ is a constant factor: **truncated importance sampling**
# ([Yao et al. 2025](https://openreview.net/forum?id=8MHqvb4lK9)) multiplies the loss by $\min(w, C)$, for each token or for the whole
# completion.
#
# *Whole completions.* At $\rho = 1$ the mean over what the sampler draws is the mean over samples from $\pi_{old}$:
#
# $$\sum_y \pi_{sampler}(y)\, w(y)\,A\,s(y) = \sum_y \pi_{old}(y)\,A\,s(y)$$
#
# ($A$ contains the mean of the sampler's group. The other completions' part of it drops out, because the expected score is 0. A completion's
# own part shortens both sides by $(G-1)/G$, see [lesson 3](03_group_baseline.ipynb).)
#
# GRPO's two divisions break this. The expectation of a score divided by $|y|$ is not 0: in the example the mean is then off by
# {=100 * off["over |y|"]:.1f} %. And σ is that of the sampler's groups. Our runs keep both divisions, and exercise 1 that by $|y|$: there the
# correction is only approximate.
#
# *Tokens.* A token's own weight leaves out all other tokens: the prefix that led to it, and the rest that earns the reward.
#
# *The cap* bounds the variance. What it cuts off is missing in the mean.
#
# ## In our runs of short completions we see no effect
#
# We repeat runs of [lesson 14](14_staleness.ipynb), with GRPO's clip and four updates a rollout batch. The sampler is a copy of the policy in bfloat16, or with float8
# weights; the trainer is in float32; $C = 2$. (Every run prints the difference in its first step, as `mismatch`.)

# %% [fold]
runs, rows = load_runs(staleness.RESULTS), []
UNITS = {"none": "none", "token": "tokens", "sequence": "completions"}  # by correction


def mean_of(name, **settings):
    return np.mean([run[name] for run in select(runs, **U_4, **settings)])


for sampler, corrections in CORRECTIONS.items():
    for correction in corrections:
        settings = {"sampler": sampler, "correction": correction}
        rows.append([sampler, UNITS[correction],
                     f"{mean_of('spread of tokens', **settings):.3f}",
                     f"{mean_of('spread of completions', **settings):.3f}",
                     change(gap(runs, U_4 | settings, U_4))])
titles = ["sampler", "weights of", "spread of tokens' $w$", "of completions' $w$",
          "points against a float32 sampler"]
say(markdown(titles, rows))
assert all(abs(gap(runs, U_4 | {"sampler": sampler, "correction": correction}, U_4)["difference"])
           < 0.03 for sampler in CORRECTIONS for correction in CORRECTIONS[sampler])
plain = {"sampler": "bfloat16", "correction": "none"}
spread = {what: mean_of(f"spread of {what}", **plain) for what in ("tokens", "completions")}
length = mean_of("length", **plain)
scaled = spread["completions"] / length
# Half of erfc is one side: a mean of T log-ratios below −3e-4, or above 4e-4
outside = {T: sum(erfc(end * np.sqrt(T / 2) / spread["tokens"]) / 2 for end in (3e-4, 4e-4))
           for T in (1_000, 10_000)}

# %% [text]
# *(Spread: the standard deviation. Points of held-out accuracy, paired by seed, five seeds, with 95 % t intervals. Weights of tokens were not run with float8.)*
#
# All means are within 3 points, and all intervals contain 0. But a completion's $w$ spreads {=spread['completions'] / spread['tokens']:.1f} times as wide as a token's (bfloat16). That is about the root of its length: it has {=length:.0f} tokens, whose root is
# {=np.sqrt(length):.1f}. At how many tokens is it too wide for weights without a cap? That is exercise 3.
#
# **What this cannot show**: completions of thousands of tokens, a mixture of experts, kernels that differ in more than precision.

# %% [markdown]
# ## Exercises
#
# **1. Write the loss.** Of one completion: GRPO's clipped loss, mean over its tokens, times the truncated weight of the whole completion.


# %% [exercise]
def corrected_loss(logps, old_logps, sampler_logps, A, eps, C):
    """From three tensors (T,) and three numbers: a scalar loss. logps has a gradient, the
    trainer's policy now."""
    return ...


# %% [check]
check("18.1", gradient_of(corrected_loss))

# %% [hint]
# The clip's ratio has old_logps below, the weight has them above: sampler_logps stand in the weight only.


# %% [solution]
def corrected_loss(logps, old_logps, sampler_logps, A, eps, C):
    ratio = (logps - old_logps).exp()
    weight = (old_logps - sampler_logps).sum().exp().clamp(max=C)
    return -(weight * torch.minimum(ratio * A, ratio.clamp(1 - eps, 1 + eps) * A)).mean()


# %% [markdown]
# **2. Find the bug.** This function should return the weights of truncated importance sampling for whole completions,
# min(π_old/π_sampler, C), (G, 1). For one token it is right; for more, its weight is too small when other tokens make up for a truncated
# one, and may exceed C. Repair it.


# %% [exercise]
def weights(log_ratio, C):
    """log_ratio = log π_old − log π_sampler, (G, T), 0 off the mask."""
    return log_ratio.exp().clamp(max=C).prod(dim=1, keepdim=True)  # <- runs, and is wrong


# %% [check]
check("18.2", weights)

# %% [hint]
# Another token's ratio below 1 may compensate for a ratio above C. Truncate once, at the end.


# %% [solution]
def weights(log_ratio, C):
    return log_ratio.sum(dim=1, keepdim=True).exp().clamp(max=C)


# %% [markdown]
# **3. How long may completions be?** Let the $\log w$ of tokens be independent and normal with standard deviation $d$. Of $n$ weighted completions
# only $n\,(\mathbb E w)^2 / \mathbb E w^2$ count, the *effective* number. At how many tokens is it $n/2$, without a cap?


# %% [exercise]
def length_at_half(d):
    return ...


# %% [check]
check("18.3", length_at_half)

# %% [hint]
# The variances of the tokens add: $\log w$ of a completion has $\tau^2 = T d^2$. If it has the mean $\mu$, then
# $\mathbb E w = e^{\mu + \tau^2/2}$ and $\mathbb E w^2 = e^{2\mu + 2\tau^2}$.


# %% [solution]
def length_at_half(d):
    return np.log(2) / d**2


# %% [text]
# With a token's spread of {=spread['tokens']:.4f}, as in our runs, your formula gives {=round(np.log(2) / spread['tokens'] ** 2, -3):,.0f} tokens. (There the spread of $w$ is 1. The rule "spread of a token, times
# the root of the length", which holds for small spreads only, would say {=round(1 / spread['tokens'] ** 2, -3):,.0f}.)
#
# ## To remember
#
# - Two ratios: the clip bounds what our updates have moved, the weight corrects for the difference between the engines.
# - Only weights of whole completions, without a cap and with summed scores, give the right mean. Their spread grows with the length.
# - Print the spread before you correct for it: another precision need not mean another policy.

# %% [text]
# ## For a second reading (5 minutes): one ratio for both tasks
#
# If the sampler's log-probabilities serve as the old ones, the clip sees $\rho w$. GSPO clips the mean ratio of a completion. Its published range is 3e-4 down
# and 4e-4 up. Rounding alone would take completions as short as ours out of it: their log-ratio, divided by the length, spreads by about {=10_000 * scaled:.0f}e-4.
#
# Longer ones stay inside more often. If the log-ratios of tokens were independent and normal with the spread of ours,
# {=100 * outside[1_000]:.0f} % of completions would lie outside at 1,000 tokens, and {=100 * outside[10_000]:.2f} % at 10,000. Half of these would be clipped: those on
# the side that belongs to the sign of $A$.
#
# What we predicted, after an earlier version of these runs, and what came out:

# %% [fold]
say(verdicts(runs, ["bfloat16", "float8"]))

# %% [markdown]
# Sources: truncated importance sampling, [Yao et al. 2025](https://openreview.net/forum?id=8MHqvb4lK9); GSPO
# [2507.18071](https://arxiv.org/abs/2507.18071).
