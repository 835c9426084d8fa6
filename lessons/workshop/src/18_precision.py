# %% [markdown] 28 minutes
# # 18 · The sampler is not the trainer
#
# Real systems sample with one engine and train with another, with other kernels and another precision. So a token's probability differs
# between the two even before the first update, and the differences of the tokens multiply.
#
# > **If the scores of tokens are summed (REINFORCE, Dr. GRPO), one weight makes the mean update right: the completion's probability in the trainer
# > over that in the sampler.**
# >
# > Capping it lowers the noise and leaves part of the error. In our runs: with completions of twenty tokens, five seeds do not tell the samplers
# > apart.
#
# With longer completions it may matter: with the differences of our tokens, a batch of completions of about 9,000 tokens would count as half a
# batch if it is weighted exactly (exercise 3). This lesson says what a weight repairs, what it costs, and from which batch on it pays.

# %% [fold]
from itertools import product
from math import ceil, erfc, inf

import numpy as np
import torch

from lessons.experiments import staleness
from lessons.experiments.grid import change, load_runs, markdown
from lessons.experiments.precision import CORRECTIONS
from lessons.experiments.staleness import U_4, gap, select, verdicts
from lessons.workshop.kit import check, knob, say, show
from lessons.workshop.parts.lesson_18 import batch_errors, groups_needed, off_and_noise

runs = load_runs(staleness.RESULTS)
texts = ["".join(letters) for n in range(4) for letters in product("ab", repeat=n)]
tokens = [(text + "$")[:3] for text in texts]  # $ ends texts of fewer than three letters
lengths = torch.tensor([[len(text)] for text in tokens])
R = (torch.arange(15) % 3 == 0).double()
generator = torch.Generator().manual_seed(0)
# After each of the 7 prefixes
logits, noise = torch.randn(2, 7, 3, generator=generator, dtype=torch.float64)


def mean_of(name, **settings):
    return np.mean([run[name] for run in select(runs, **U_4, **settings)])


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


truth, _ = update(torch.ones(15, 1), old, scores)


def measure(distance, unit, C):
    """How far off the mean update is, and the noise, both over the length of the true mean."""
    sampled = token_logps(logits + distance * noise)
    log_w = {"none": 0 * old[:, :1], "token": old - sampled,
             "completion": (old - sampled).sum(dim=1, keepdim=True)}[unit]
    mean, rms = update(log_w.exp().clamp(max=C), sampled, scores)
    return np.array([(mean - truth).norm(), rms]) / truth.norm().item()


CAPS = np.linspace(1.6, 6, 23)


def errors(distance):
    """By weights: (23, 2), for each cap."""
    return {unit: np.array([measure(distance, unit, C) for C in CAPS])
            for unit in ("none", "token", "completion")}


knob(lambda distance: off_and_noise(CAPS, errors(distance)), distance=(0.1, 1.5, 0.1, 0.5))
far, near, shown = errors(1.5), errors(0.1), errors(0.5)
assert abs(shown["token"][-1, 0] - shown["none"][-1, 0]) < 0.01
assert near["completion"][np.isclose(CAPS, 2), 0] < 1e-12
for i in range(2, 16):
    assert measure(i / 10, "completion", 6)[1] > measure(i / 10, "none", 1)[1]
sampled, off = token_logps(logits + 0.1 * noise), {}
plain, coarse = ({"sampler": name, "correction": "none"} for name in ("bfloat16", "float8"))
spread = {what: mean_of(f"spread of {what}", **plain) for what in ("tokens", "completions")}
one = (old - token_logps(logits + 0.5 * noise))[tokens.index("aa$")].exp()
assert one[:2].max() < 1 < one.prod()
whole = (old - sampled).sum(dim=1, keepdim=True).exp()
spread_near = (sampled.sum(dim=1).exp() @ (whole[:, 0] - 1).square()).sqrt().item()
for name, of_tokens in (("summed", scores), ("over |y|", scores / lengths[:, :, None])):
    wanted, _ = update(torch.ones(15, 1), old, of_tokens)
    estimate, _ = update(whole, sampled, of_tokens)
    off[name] = ((estimate - wanted).norm() / wanted.norm()).item()
    assert (off[name] < 1e-12) == (name == "summed")

# %% [text]
# *An example small enough to enumerate: groups of two from 15 texts of at most three letters, with Dr. GRPO's advantages. See the blue line on the left
# first: it comes down to 0. The sampler's logits are the trainer's plus noise; the slider, distance, is its size. At .1 the weights of
# completions have the standard deviation {=spread_near:.2f}. So our bfloat16 sampler is at about {=spread["completions"]:.2f}, float8 at {=mean_of("spread of completions", **coarse):.2f}.*
#
# **Weights of whole completions** come close to the true mean as the cap $C$ rises. From a distance of .2 on they are noisier than no weights:
# {=shown["completion"][-1, 1]:.1f} against {=shown["none"][-1, 1]:.1f} at .5 and {=far["completion"][-1, 1]:.1f} against {=far["none"][-1, 1]:.1f} at 1.5 ($C = 6$).
#
# **Weights of tokens** keep an error that no cap removes. Take the text *aa*, at .5. Its tokens a, a and the end have the weights {=one[0]:.2f}, {=one[1]:.2f} and
# {=one[2]:.2f}; the text's own is their product, {=one.prod():.2f}. So all three should count {=one.prod():.2f}, and two of them count less than 1. Over all texts, without a cap,
# such weights are no better than none at .5: both are off by {=100 * shown["token"][-1, 0]:.0f} %. At .1 they help a little ({=100 * near["token"][-1, 0]:.1f} % against {=100 * near["none"][-1, 0]:.1f} %).
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
# ([Yao et al. 2025](https://openreview.net/forum?id=8MHqvb4lK9)) multiplies the loss by $\min(w, C)$.
#
# *Whole completions.* At $\rho = 1$ the mean over what the sampler draws is the mean over samples from $\pi_{old}$:
#
# $$\sum_y \pi_{sampler}(y)\, w(y)\,A\,s(y) = \sum_y \pi_{old}(y)\,A\,s(y)$$
#
# (That $A$ contains the mean of the sampler's group does no harm: second reading.) GRPO's two divisions break this: the expectation of a score
# divided by $|y|$ is not 0 (in the example the mean is then off by {=100 * off["over |y|"]:.1f} % at .1), and σ is that of the sampler's groups.
#
# *Tokens.* A token's own weight leaves out all others: the prefix that led to it, and the rest that earns the reward, like the end of *aa*.
# *The cap* bounds the noise; what it cuts off is missing in the mean.
#
# **1. The mean update.** From the log-probabilities of the tokens, 0 after a text's end, and from $A\,s$ of each text: the mean of $\min(w, C)\,A\,s$ over
# what the sampler draws, with weights of whole completions.


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


# %% [fold]
WAYS = {"no weights": ("none", 1), "C = 2": ("completion", 2), "C = 6": ("completion", 6),
        "no cap": ("completion", inf)}
ways = {distance: {name: measure(distance, *way) for name, way in WAYS.items()}
        for distance in (0.1, 0.5, 1.5)}
say(markdown(["distance", *WAYS], [[f"{distance}", *(f"{100 * off:.0f} %" for off, _ in of.values())]
                                   for distance, of in ways.items()]))

# %% [markdown]
# *How far the mean update is off, by your formula. Without a cap it is exact.*
#
# ## When does a weight pay?
#
# The error of the mean stays as the batch grows; the squared noise falls like $1/n$ with the number $n$ of groups. The expected squared error of
# a batch is
#
# $$\text{off}^2 + \text{noise}^2/n$$
#
# **2. From which batch on?** Of two ways to weight, the second one is noisier and less far off. From how many groups on has it the smaller squared
# error? (noise: of one group)


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


# %% [fold]
show(batch_errors(np.geomspace(4, 4096, 50), ways[1.5]))


def from_groups(distance, *names):
    return f"{ceil(groups_needed(*(x for name in names for x in ways[distance][name]))):,}"

# %% [text]
# *The root of this sum at a distance of 1.5, with weights of completions. See how the lowest line changes.*
#
# By your formula a cap of 2 is better than no weights from {=from_groups(1.5, "no weights", "C = 2")} groups on, a cap of 6 better than 2 from {=from_groups(1.5, "C = 2", "C = 6")} on, and no cap better than 6 from
# {=from_groups(1.5, "C = 6", "no cap")} on. At .5 a cap of 2 pays from {=from_groups(0.5, "no weights", "C = 2")} groups on. **The larger the batch, the higher the cap.**
#
# In code it is one line. The cap comes once, after the product:
#
# ```python
# w = (old_logps - sampler_logps).sum(dim=1, keepdim=True).exp().clamp(max=C)
# ```
#
# ## Our runs of short completions do not tell the samplers apart
#
# We repeat runs of [lesson 14](14_staleness.ipynb), with GRPO's clip, its divisions (so the weight is only about right) and four updates a rollout
# batch. The sampler is a copy of the policy
# in bfloat16, or with float8 weights; the trainer is in float32; $C = 2$. (Every run prints the difference in its first step, as `mismatch`.)

# %% [fold]
rows = []
UNITS = {"none": "none", "token": "tokens", "sequence": "completions"}  # by correction


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
length = mean_of("length", **plain)
scaled = spread["completions"] / length
# Half of erfc is one side: a mean of T log-ratios below −3e-4, or above 4e-4
assert round(np.log(2) / spread["tokens"] ** 2, -3) == 9000 and 19 < length < 21
outside = {T: sum(erfc(end * np.sqrt(T / 2) / spread["tokens"]) / 2 for end in (3e-4, 4e-4))
           for T in (1_000, 10_000)}

# %% [text]
# *(Spread: the standard deviation. Points of held-out accuracy, paired by seed, five seeds, with 95 % t intervals.)*
#
# All intervals contain 0, but a loss of two points could hide in each. Little was to be expected: these $w$ spread less than at a
# distance of .2 in the example.
#
# **What this cannot show**: completions of thousands of tokens, a mixture of experts, kernels that differ in more than precision.

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
# With a token's spread of {=spread['tokens']:.4f}, as in our runs, your formula gives {=round(np.log(2) / spread['tokens'] ** 2, -3):,.0f} tokens.
#
# ## To remember
#
# - Two ratios: the clip bounds what our updates have moved, the weight corrects for the difference between the engines.
# - Only weights of whole completions, without a cap and with summed scores, give the right mean. They are noisy, and the noise grows with the length.
# - A cap trades noise for error. The larger the batch, the higher the cap that pays.
# - Print the spread before you correct for it: another precision need not mean another policy.

# %% [text]
# ## For a second reading (4 minutes)
#
# **The group's mean under another sampler.** $A$ contains the mean of the sampler's group. The other completions' part of it drops out, because the
# expected score is 0. A completion's own part shortens both sides by $(G-1)/G$ ([lesson 3](03_group_baseline.ipynb)).
#
# **Exercise 3 and the root of the length.** At 9,000 tokens the spread of $w$ is 1. The rule "spread of a token, times the root of the length" holds
# for small spreads only: it would say {=round(1 / spread['tokens'] ** 2, -3):,.0f}.
#
# **One ratio for both tasks.** If the sampler's log-probabilities serve as the old ones, the clip sees $\rho w$. GSPO clips the mean ratio of a completion. Its published range is 3e-4 down
# and 4e-4 up. Rounding alone would move completions of twenty tokens out of it: their log-ratio, divided by the length, spreads by about {=10_000 * scaled:.0f}e-4.
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
