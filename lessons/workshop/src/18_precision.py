# %% [markdown] 30 minutes, without the second reading
# # 18 · The sampler is not the trainer
#
# Real systems sample with one engine and train with another. The model's parameters are the same, the kernels and the precision are not. So
# each token's probability differs a little between the two, and over a completion the differences multiply. Which weight corrects for this,
# and when does it matter?
#
# > **Where an update sums the scores $\nabla\log\pi$ of its tokens, one weight makes the mean update right: the whole completion's
# > probability in the trainer over that in the sampler; weights of single tokens do not.**
# >
# > In our runs, with GRPO and completions of twenty tokens, five seeds do not tell the samplers apart.
#
# REINFORCE and Dr. GRPO sum. GRPO divides by the length, and then a weight is not enough (*The condition*, below).
#
# **The smallest case.** The text *aa* has three tokens: a, a and the end. Each engine gives each token a probability:
#
# | | a | a | end | the whole text |
# |---|---|---|---|---|
# | sampler, $\pi_{sampler}$ | .5 | .4 | .2 | .04 |
# | trainer, $\pi_{old}$ | .4 | .4 | .5 | .08 |
# | weight, $w = \pi_{old}/\pi_{sampler}$ | .8 | 1 | 2.5 | 2 |
#
# Of 100 completions the sampler writes *aa* 4 times. The trainer would write it 8 times. So each of the four must count twice, *in all its
# tokens*. By the tokens' own weights the first a counts .8 times, less than with no weight at all.
#
# The picture adds up all 15 texts of at most three letters, for two engines that are much further apart than real ones.

# %% [fold]
from itertools import product
from math import erfc, inf

import numpy as np
import torch

from lessons.experiments import staleness
from lessons.experiments.grid import change, load_runs, markdown
from lessons.experiments.precision import CORRECTIONS
from lessons.experiments.staleness import U_4, gap, select, verdicts
from lessons.workshop.kit import check, say, show
from lessons.workshop.parts.lesson_18 import batch_errors, groups_needed

runs = load_runs(staleness.RESULTS)
texts = ["".join(letters) for n in range(4) for letters in product("ab", repeat=n)]
tokens = [(text + "$")[:3] for text in texts]  # $ ends texts of fewer than three letters
lengths = torch.tensor([[[len(text)]] for text in tokens])
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
    """Dr. GRPO's update by a group of two, if completions are drawn from log-probabilities
    `sampled`, (15, 3), and their scores have weights (15, 1) or (15, 3): its mean (21,), and its
    noise, the root mean square distance from the mean."""
    chance = sampled.sum(dim=1).exp()
    chance = chance[:, None] * chance
    weighted = (weights[:, :, None] * scores).sum(dim=1)  # (15, 21)
    # A is plus or minus (R1 - R2) / 2
    pairs = (R[:, None] - R)[:, :, None] / 4 * (weighted[:, None] - weighted)
    mean = (chance[:, :, None] * pairs).sum(dim=(0, 1))
    return mean, (chance * (pairs - mean).square().sum(dim=2)).sum().sqrt()


def measure(distance, unit, C=inf, scores=scores):
    """How far off the mean update is, and the noise, both over the length of the true mean."""
    sampled = token_logps(logits + distance * noise)
    log_w = {"none": 0 * old[:, :1], "token": old - sampled,
             "completion": (old - sampled).sum(dim=1, keepdim=True)}[unit]
    mean, rms = update(log_w.exp().clamp(max=C), sampled, scores)
    truth, _ = update(torch.ones(15, 1), old, scores)
    return np.array([(mean - truth).norm(), rms]) / truth.norm().item()


ways = {"nothing": ("none",), "tokens": ("token",),
        "completions, capped at 2": ("completion", 2), "completions": ("completion",)}
none, of_tokens, capped, exact = (measure(1.5, *way) for way in ways.values())
crossings = groups_needed(*none, *capped), groups_needed(*capped, *exact)
over_length, _ = measure(1.5, "completion", scores=scores / lengths)
sampled = token_logps(logits + 1.5 * noise)
As = (R - sampled.sum(dim=1).exp() @ R)[:, None] * scores.sum(dim=1)


def off(mean_update, C):
    """How far the mean of exercise 1 is off, over the length of the trainer's."""
    truth = mean_update(old, old, As, 1)
    return ((mean_update(old, sampled, As, C) - truth).norm() / truth.norm()).item()


assert exact[0] < 1e-12 and abs(over_length - of_tokens[0]) < 0.01
show(batch_errors(np.geomspace(3, 1e5, 100), dict(zip(ways, (none, of_tokens, capped, exact)))))

# %% [text]
# *The error of an update by a batch of groups of two: its root mean square distance from the trainer's mean update, over the length of the latter.
# See the right end first. Only the blue line goes on down to 0: its mean is right. The others stop at {=none[0]:.2f}, {=of_tokens[0]:.2f} and {=capped[0]:.2f}, where their means are wrong. Then see the
# left end: in a small batch blue, the noisiest, is worst. Green allows no weight above 2.*
#
# ## Why the weight is right
#
# Let $s(y)$ be the score of a completion $y$, the sum of its tokens' $\nabla\log\pi$, and $A$ its advantage. To the first update after sampling it contributes $A\,s(y)$. Weighted by $w(y)$, the mean
# over what the sampler draws is the mean over what the trainer would draw:
#
# $$\sum_y \pi_{sampler}(y)\, w(y)\,A\,s(y) = \sum_y \pi_{old}(y)\,A\,s(y)$$
#
# A token's own weight leaves out the others: the prefix that led to it, and the rest that earns the reward, like the end of *aa*.
#
# A **cap** $C$ on the weight, $\min(w, C)$, bounds the noise.
#
# **The condition.** $A$ contains the mean reward of the sampler's group, not of the trainer's. Times a summed score, which has mean 0, this drops
# out (second reading). Divided by its length a score no longer has mean 0. So under GRPO the sampler's mean reward stays in the update: in the
# picture's example even the exact weight would be {=over_length:.2f} off, as far as the weights of tokens. GRPO's $\sigma$ is that of the sampler's groups, too.
#
# **1. The mean update.** What is the mean of $\min(w, C)\,A\,s$ over what the sampler draws, with weights of whole completions? You get the
# log-probabilities of the tokens, 0 after a text's end, and $A\,s$ of each text. Then see how far your mean is from the trainer's in the
# picture's example: `[off(mean_update, C) for C in (1, 2, inf)]`


# %% [exercise]
def mean_update(old, sampled, As, C):
    """old, sampled: (n, T), all n texts there are; As: (n, d). Returns (d,)."""
    return ...


# %% [check]
check("18.1", mean_update)

# %% [hint]
# How probable is a text in the sampler? The cap comes after the product over the tokens.


# %% [solution]
def mean_update(old, sampled, As, C):
    w = (old - sampled).sum(dim=1).exp().clamp(max=C)
    return (sampled.sum(dim=1).exp() * w) @ As


# %% [text]
# It is {=measure(1.5, "completion", 1)[0]:.2f}, {=capped[0]:.2f} and 0 away, over the length of the trainer's mean. **Only without a cap the distance is 0.** A cap of 1 is worse than no
# weights, {=none[0]:.2f}.
#
# ## When does a weight pay?
#
# A mean that is off stays off however large the batch is. The squared noise falls like $1/n$ with the number $n$ of groups. So a batch has the squared error
#
# $$\text{off}^2 + \text{noise}^2/n$$
#
# Its root is what the picture shows, with these numbers:
#
# | weighted | off | noise of one group |
# |---|---|---|
# | nothing | {=none[0]:.3f} | {=none[1]:.2f} |
# | completions, capped at 2 | {=capped[0]:.3f} | {=capped[1]:.2f} |
# | completions | 0 | {=exact[1]:.2f} |
#
# **2. From which batch on?** Of two ways to weight, the second one is noisier and less far off. From how many groups on has it the smaller squared
# error?


# %% [exercise]
def pays_from(off, noise, other_off, other_noise):
    return ...


# %% [check]
check("18.2", pays_from)

# %% [hint]
# Set the two squared errors equal and solve for n.


# %% [solution]
def pays_from(off, noise, other_off, other_noise):
    return (other_noise**2 - noise**2) / (off**2 - other_off**2)


# %% [text]
# Your formula gives the crossings of the picture: a cap of 2 beats no weights from {=np.ceil(crossings[0]):.0f} groups on, and the exact weight beats the cap from
# {=np.ceil(crossings[1]):.0f} on. **The larger the batch, the higher the cap.**
#
# In code it is one line, a constant factor of the loss: **truncated importance sampling** ([Yao et al. 2025](https://openreview.net/forum?id=8MHqvb4lK9)).
#
# ```python
# w = (old_logps - sampler_logps).sum(dim=1, keepdim=True).exp().clamp(max=C)
# ```
#
# ## Should our runs of short completions show anything?
#
# Where weights differ much, most completions hardly count. Of $n$ weighted completions the *effective* number is $n\,(\mathbb E w)^2/\mathbb E w^2$.
#
# **3. How much of the batch is left?** Let the $\log w$ of tokens be independent and normal with standard deviation $d$. Which share of the batch is effective, for completions of $T$
# tokens, without a cap?


# %% [exercise]
def effective_share(d, T):
    return ...


# %% [check]
check("18.3", effective_share)

# %% [hint]
# The variances of the tokens add: $\log w$ of a completion has $\tau^2 = T d^2$. If it has the mean $\mu$, then
# $\mathbb E w = e^{\mu + \tau^2/2}$ and $\mathbb E w^2 = e^{2\mu + 2\tau^2}$.


# %% [solution]
def effective_share(d, T):
    return np.exp(-T * d**2)


# %% [fold]
def mean_of(name, **settings):
    return np.mean([run[name] for run in select(runs, **U_4, **settings)])


half, eighth = (
    {what: mean_of(what, sampler=sampler, correction="none")
     for what in ("spread of tokens", "spread of completions", "length")}
    for sampler in CORRECTIONS)
d, length = half["spread of tokens"], half["length"]
assert round(np.log(2) / d**2, -3) == 9000 and 19 < length < 21
# As far apart as the two samplers of our runs, by the spread of completions' w
near = [measure(distance, "none")[0] for distance in (0.036, 0.146)]
# Half of erfc is one side: a mean of T log-ratios below −3e-4, or above 4e-4
outside = {T: sum(erfc(end * np.sqrt(T / 2) / d) / 2 for end in (3e-4, 4e-4))
           for T in (1_000, 10_000)}

# %% [text]
# We sampled with a copy of the policy in bfloat16, and with one whose parameters are in float8. The trainer is in float32. What should we expect?
#
# | | bfloat16 | float8 |
# |---|---|---|
# | spread (standard deviation) of a token's $w$: $d$ | {=d:.4f} | {=eighth["spread of tokens"]:.3f} |
# | spread of a completion's $w$ | {=half["spread of completions"]:.3f} | {=eighth["spread of completions"]:.3f} |
# | share that is effective at $T$ = 20, by your formula | {=np.exp(-20 * d**2):.3f} | {=np.exp(-20 * eighth["spread of tokens"]**2):.2f} |
# | how far off the mean update of the picture's example would be with engines this close, without weights | {=100 * near[0]:.0f} % | {=100 * near[1]:.0f} % |
#
# So we should expect no difference that five seeds can see. Length changes this: at $T$ = {=round(np.log(2) / d**2, -3):,.0f}, with bfloat16's spread, half of the batch is lost.
#
# ## Our runs do not tell the samplers apart
#
# The runs are those of [lesson 14](14_staleness.ipynb) with four updates a rollout batch. They keep GRPO's clip and *GRPO's divisions*, so here even weights of
# completions are only about right. $C = 2$.

# %% [fold]
UNITS = {"none": "none", "token": "tokens", "sequence": "completions"}  # by correction
gaps = {(sampler, UNITS[correction]):
        gap(runs, U_4 | {"sampler": sampler, "correction": correction}, U_4)
        for sampler, corrections in CORRECTIONS.items() for correction in corrections}
say(markdown(["sampler", "weights of", "points against a float32 sampler"],
             [[*names, change(difference)] for names, difference in gaps.items()]))
assert all(low < 0 < high for low, high in (one["interval"] for one in gaps.values()))

# %% [text]
# *(Points of held-out accuracy, paired by seed, five seeds, with 95 % t intervals.)*
#
# All intervals contain 0, but a loss of two points could hide in each. **What this cannot show**: completions of thousands of tokens, a
# mixture of experts, kernels that differ in more than precision.
#
# ## To remember
#
# - Only weights of whole completions, without a cap and with summed scores, give the right mean.
# - A cap trades noise for error. The larger the batch, the higher the cap that pays.
# - Print the spread before you correct for it: over our twenty tokens even float8 has only {=eighth["spread of completions"]:.2f}.

# %% [text]
# ## For a second reading (3 minutes)
#
# **The group's mean under another sampler.** $A$ contains the mean of the sampler's group. The other completions' part of it drops out, because the
# expected score is 0. A completion's own part shortens both sides by $(G-1)/G$ ([lesson 3](03_group_baseline.ipynb)).
#
# **Exercise 3 and the root of the length.** At 9,000 tokens the spread of $w$ is 1. The rule "spread of a token, times the root of the length" holds
# for small spreads only: it would say {=round(1 / d**2, -3):,.0f}.
#
# **One ratio for both tasks.** The clip bounds what our updates have moved; the weight corrects for the engines. So the clip looks at
# $\rho = \pi/\pi_{old}$ alone, where $\pi$ is the trainer's policy now. If the sampler's log-probabilities serve as the old ones, it sees $\rho w$,
# and stops tokens that no update has moved. GSPO clips the mean ratio of a completion. Its published range is 3e-4 down
# and 4e-4 up. Rounding alone would move completions of twenty tokens out of it: their log-ratio, divided by the length, spreads by about {=10_000 * half["spread of completions"] / length:.0f}e-4.
#
# Longer ones stay inside more often. If the log-ratios of tokens were independent and normal with the spread of ours,
# {=100 * outside[1_000]:.0f} % of completions would lie outside at 1,000 tokens, and {=100 * outside[10_000]:.2f} % at 10,000. Half of these would be clipped: those on
# the side that belongs to the sign of $A$.
#
# **Predictions.** What we predicted, after an earlier version of these runs, and what came out:

# %% [fold]
say(verdicts(runs, ["bfloat16", "float8"]))

# %% [markdown]
# Sources: truncated importance sampling, [Yao et al. 2025](https://openreview.net/forum?id=8MHqvb4lK9); GSPO
# [2507.18071](https://arxiv.org/abs/2507.18071).
