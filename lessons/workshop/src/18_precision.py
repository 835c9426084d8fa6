# %% [markdown] 34 minutes, without the second reading
# # 18 · The sampler is not the trainer
#
# Real systems sample with one engine and train with another. The parameters are the same, the kernels and the precision are not. So each
# token's probability differs a little, and over a completion the differences multiply. Which weight corrects for this, and what does it cost?
#
# > **If sampler and trainer give a completion different probabilities, weighting the completion by their ratio makes the mean update right (if the
# > update sums tokens' gradients). Each token's own weight does not, nor does a capped one where the cap binds.**
# >
# > We looked for a loss in real training, on completions of 20 tokens, and found none: with a bfloat16 sampler one of more than 2.9 points is
# > excluded, with float8 one of more than 4.3. Longer completions we did not train.
#
# **The smallest case.** The text *aa* has three tokens: a, a and the end. Each engine gives each token a probability:
#
# | | a | a | end | the whole text |
# |---|---|---|---|---|
# | sampler, $\pi_{sampler}$ | .5 | .4 | .2 | .04 |
# | trainer, $\pi_{old}$ (before any update on the batch) | .4 | .4 | .5 | .08 |
# | weight, $w = \pi_{old}/\pi_{sampler}$ | .8 | 1 | 2.5 | 2 |
#
# Of 100 completions the sampler writes *aa* 4 times. The trainer would write it 8 times. So each of the four must count twice, *in all its
# tokens*. By the tokens' own weights the first a counts .8 times, less than with no weight at all.
#
# What is lost with other weights? The example from here on: all 15 texts of at most three letters, each an a or a b. The sampler's logits are the trainer's
# plus noise of standard deviation 1.5.

# %% [fold]
from math import inf

import numpy as np
import torch

from lessons.experiments import staleness
from lessons.experiments.harness.grid import load_runs, markdown
from lessons.experiments.precision import CORRECTIONS
from lessons.experiments.staleness import U_4, gap, select
from lessons.workshop.companions import lesson_18
from lessons.workshop.companions.drawing import key
from lessons.workshop.companions.lesson_18 import LOGITS as logits
from lessons.workshop.companions.lesson_18 import NOISE as noise
from lessons.workshop.companions.lesson_18 import R, token_logps
from lessons.workshop.notebook import BLUE, GREEN, GREY, ORANGE, check, new_figure, show, trains

runs = load_runs(staleness.RESULTS)
lengths = torch.tensor([[[len(text)]] for text in lesson_18.TOKENS])

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


def measure(distance, unit, C=inf, above=None, scores=scores):
    """How far off the mean update is, and the noise, both over the length of the true mean. A
    weight above the cap C counts as C, or as `above`."""
    sampled = token_logps(logits + distance * noise)
    log_w = {"none": 0 * old[:, :1], "token": old - sampled,
             "completion": (old - sampled).sum(dim=1, keepdim=True)}[unit]
    w = log_w.exp()
    w[w > C] = C if above is None else above
    mean, rms = update(w, sampled, scores)
    truth, _ = update(torch.ones(15, 1), old, scores)
    return np.array([(mean - truth).norm(), rms]) / truth.norm().item()


CAPS = (2, 3, 10, inf)


def by_cap(*unit, **above):
    """A row of the table of caps."""
    return " | ".join(f"{measure(1.5, *unit, C, **above)[0]:.2f}" for C in CAPS)


ways = {"nothing": ("none",), "tokens, capped at 3": ("token", 3),
        "completions, capped at 3": ("completion", 3), "completions": ("completion",)}
measured = {name: measure(1.5, *way) for name, way in ways.items()}
none, _, capped, exact = measured.values()


def groups_needed(off, noise, other_off, other_noise):
    """From how many groups on the second way has the smaller squared error."""
    return (other_noise**2 - noise**2) / (off**2 - other_off**2)


def batch_errors(n):
    """The error of a batch over its number of groups, n: (m,)."""
    figure, axis = new_figure(7.5, 3.2)
    colors = dict(zip(measured, (GREY, ORANGE, GREEN, BLUE)))
    for name, (off, rms) in measured.items():
        axis.plot(n, np.sqrt(off**2 + rms**2 / n), color=colors[name])
    axis.set(title="Error of a batch (1: the trainer's update)")
    axis.set(xlabel="groups in the batch", xscale="log", ylim=(0, 1.4))
    key(axis, colors, 0.45)
    return figure


crossings = groups_needed(*none, *capped), groups_needed(*capped, *exact)
of_trainer, w = old.sum(dim=1).exp(), (old - token_logps(logits + 1.5 * noise)).sum(dim=1).exp()
magnified, dropped = (of_trainer @ w - 1).sqrt(), of_trainer[w > 3].sum()
over_length = [measure(1.5, unit, scores=scores / lengths)[0] for unit in ("none", "completion")]
assert exact[0] < 1e-12 and [f"{x:.2f}" for x in over_length] == ["0.45", "0.50"]
MEASURED = ("spread of tokens", "spread of completions", "length")
(d, spread, length), (d_8, spread_8, _) = (
    [np.mean([run[what] for run in select(runs, **U_4, sampler=sampler, correction="none")])
     for what in MEASURED] for sampler in CORRECTIONS)
assert f"{d:.4f}" == "0.0088" and round(np.log(2) / d**2, -3) == 9000 and 19 < length < 21
arms = [{"sampler": sampler, "correction": correction}
        for sampler, corrections in CORRECTIONS.items() for correction in corrections]
gaps = [gap(runs, U_4 | arm, U_4) for arm in arms]
lowest, highest = np.transpose([one["interval"] for one in gaps])
means = np.abs([one["difference"] for one in gaps])
assert (means[:3] < 0.03).all() and (means[3:] < 0.04).all()  # as predicted
assert {len(select(runs, **U_4, **arm)) for arm in arms} == {len(arms)} == {5}
assert (highest > 0).all() and [f"{x:.3f}" for x in lowest[[0, 3]]] == ["-0.029", "-0.043"]
assert lowest[:3].min() == lowest[0] and lowest[3:].min() > -0.0435  # as in the box
trained = (lesson_18.weight, *lesson_18.TRAINED["18.1"]["mistakes"].values())
ends = [lesson_18.values(way, 0)[-1] for way in trained]  # without a KL
assert min(ends) > 0.99 and max(ends) == ends[1]


def by_noise():
    rows = []
    for name, way in ways.items():
        at = [measure(distance, *way) for distance in (spread, spread_8, 1.5)]
        cells = [f"{off:.3f}" if off > 1e-12 else "0" for off, _ in at]
        rows.append([name, *cells, f"{at[2][1]:.2f}"])
    return markdown(["weighted", "bfloat16", "float8", "magnified", "its noise"], rows)


show(batch_errors(np.geomspace(3, 1e5, 100)))

# %% [text]
# *Dr. GRPO's update in groups of two, by what is weighted; 1 is the length of the trainer's mean update. See the right end first: only the blue line goes
# on down to 0, because its mean is right. In a small batch blue, the noisiest, is worst. Capped at 3: a larger weight counts as 3.*
#
# **The picture is a magnifying glass.** Its completions' weights have a spread (standard deviation) of {=magnified:.1f}. With our float32 trainer and its bfloat16 or float8 copies
# it is {=spread:.2f} or {=spread_8:.2f}. How far off is the mean update then?
#
# {=by_noise()}
#
# *Its noise: of one group's magnified update.* With real rounding the mean is off by {=100 * measure(spread, "none")[0]:.0f} or {=100 * measure(spread_8, "none")[0]:.0f} % without a weight. The
# cap of 3 never binds there.
#
# ## Why the weight is right
#
# Let $s(y)$ be the score of a completion $y$, the sum of its tokens' $\nabla\log\pi$, and $A$ its advantage. Its contribution to the first update is
# $A\,s(y)$. Weighted by $w(y)$, the sampler's mean of it becomes the trainer's:
#
# $$\sum_y \pi_{sampler}(y)\, w(y)\,A\,s(y) = \sum_y \pi_{old}(y)\,A\,s(y)$$
#
# ($A$ also holds the mean reward of other completions, the sampler's. It multiplies $w(y)\,s(y)$, whose mean is $\sum_y \pi_{old}(y)\,s(y) = 0$, so it drops
# out. GRPO's ÷ length spoils this: second reading.)
#
# A token's own weight leaves out the others: the prefix that led to it, and the rest that earns the reward, like the end of *aa*. And a **cap** $C$,
# $\min(w, C)$, bounds the noise but moves the mean.
#
# **1. Write the weight** of whole completions, with a cap. You get the log-probabilities of the tokens of some texts, 0 after a text's end. Your
# function then trains the 15-text policy, uncapped, beside three other weights. It shall gain reward and stay near its start: what counts is the reward
# minus half the KL, at best .77.


# %% [exercise]
def weight(old, sampled, C):
    """old, sampled: (texts, tokens), log-probabilities. Returns (texts, 1), at most C."""
    return ...


# %% [check]
check("18.1", weight)
trains("18.1", weight)  # mean updates, C = ∞

# %% [hint]
# A product of probabilities is a sum of logarithms. The cap comes after the product.


# %% [solution]
def weight(old, sampled, C):
    return (old - sampled).sum(dim=1, keepdim=True).exp().clamp(max=C)


# %% [markdown]
# <details><summary>After the exercise</summary>
#
# Whole completions have the trainer's own mean update, so their curve is the same for every sampler. Without a weight the policy first gets better, then
# worse: its mean update vanishes elsewhere. Each token's own weight is no repair, and a cap of 3 stops short.
#
# A wrong mean shows where two forces must balance. With the reward alone all four end above .99, unweighted the highest.
#
# </details>

# %% [text]
# How far off is one mean update? Your weight is in the second row; libraries offer the others, too:
#
# | mean off by, with a cap of | 2 | 3 | 10 | no cap |
# |---|---|---|---|---|
# | tokens, capped | {=by_cap("token")} |
# | completions, capped | {=by_cap("completion")} |
# | completions, 0 if above the cap | {=by_cap("completion", above=0)} |
#
# Without weights it is {=none[0]:.2f}. **A higher cap helps whole completions only**, here.
#
# ## When does a weight pay?
#
# A mean that is off stays off however large the batch is, while the squared noise falls like $1/n$ with the number $n$ of groups. So a batch has the
# squared error, the square of what the picture shows,
#
# $$\text{off}^2 + \text{noise}^2/n$$
#
# *By hand: without a weight the mean is off by {=none[0]:.3f} at noise {=none[1]:.2f}, with a cap of 3 by {=capped[0]:.3f} at {=capped[1]:.2f}. From how many groups on does the cap win?*
#
# <details><summary>Solution</summary>
#
# Set the two squared errors equal: $n = ({=capped[1]:.2f}^2 - {=none[1]:.2f}^2)\,/\,({=none[0]:.3f}^2 - {=capped[0]:.3f}^2)$, so from {=np.ceil(crossings[0]):.0f} groups on. The exact weight beats the cap
# from about {=round(crossings[1], -1):.0f} on.
#
# </details>
#
# ## And in a real model?
#
# Each token adds noise. Let the $\log w$ of $T$ tokens be independent and normal with standard deviation $d$. Then $w$ of the completion is lognormal, with
# $\mathbb E w^2 = e^{Td^2}(\mathbb E w)^2$, and of $n$ weighted completions the *effective* number is
#
# $$n\,\frac{(\mathbb E w)^2}{\mathbb E w^2} = n\,e^{-Td^2}$$
#
# We sampled with copies of the policy in bfloat16, and with parameters in float8:
#
# | | spread of a token's $w$: $d$ | left of a batch, $T$ = 20 | 1,000 | 9,000 |
# |---|---|---|---|---|
# | bfloat16 | {=d:.4f} | {=np.exp(-20 * d**2):.0%} | {=np.exp(-1000 * d**2):.0%} | {=np.exp(-9000 * d**2):.0%} |
# | float8 | {=d_8:.4f} | {=np.exp(-20 * d_8**2):.0%} | {=np.exp(-1000 * d_8**2):.0%} | {=np.exp(-9000 * d_8**2):.0%} |
#
# ($d\sqrt{20}$ is {=d * 20**0.5:.2f} and {=d_8 * 20**0.5:.2f}, the measured spread {=spread:.2f} and {=spread_8:.2f}: nearly independent.) **Length decides.** A rule from the formula, untested:
#
# - $Td^2$ below .05, as in our runs: do nothing.
# - Up to 1: weight whole completions, with a cap that few reach.
# - Above 1, here from {=round(1 / d**2, -3):,.0f} (bfloat16) or {=round(1 / d_8**2, -2):.0f} tokens (float8) on: mend the engines. Uncapped weights leave under 37 % of the batch;
#   a cap of 2 binds for one completion in nine even at 1.
#
# **Our completions, of {=length:.0f} tokens, are too short to show an effect.** We trained GRPO on both kinds of samples, with no weight and with weights capped
# at 2: five arms of five seeds. As predicted, none differs from a float32 sampler (the box: what the intervals exclude).
#
# ## To remember
#
# - Only weights of whole completions that no cap touches give the right mean, and only where the update sums scores.
# - A cap trades noise for a wrong mean. In our example, the larger the batch, the higher the cap that pays.
# - Before you correct, print $Td^2$, the variance of the completions' $\log w$. Near 0 do nothing; above 1 mend the engines.
#
# ## For a second reading (8 minutes)
#
# **Its name.** Capped, such a weight, of a token or a completion and a constant factor of the loss, is called **truncated importance sampling**
# ([Yao et al. 2025](https://openreview.net/forum?id=8MHqvb4lK9)). With padding, multiply `old - sampled` by the mask first.
#
# **What libraries do.** In TRL 1.16 the rows of the table of caps are the values `token_truncate`, `sequence_truncate` and `sequence_mask` of
# `vllm_importance_sampling_mode`. The default is the last, with a cap of 3. In our example it drops the texts that the trainer would write {=dropped:.0%} of
# the time. In verl 0.9.1 `rollout_is` is `token` or `sequence`, capped at 2, and off by default.
#
# **Why dividing by the length spoils it.** Divided by its length, a score no longer has mean 0, so the sampler's mean reward stays
# in the update: in the example GRPO's ÷ length leaves the mean update {=over_length[0]:.2f} of its length off without a weight, and {=over_length[1]:.2f} with it.
#
# **One ratio for both tasks.** The clip bounds what our updates have moved; the weight corrects for the engines. If one puts the sampler's
# log-probabilities in place of the old ones, the clip also stops tokens that no update has moved. GSPO clips a completion's mean ratio at 3e-4 down and
# 4e-4 up ([lesson 14](14_staleness.ipynb)). With our bfloat16 and {=length:.0f} tokens it spreads by about {=10_000 * spread / length:.0f}e-4: rounding alone would put most outside
# (with 1,000 tokens {=10_000 * d / 1000**0.5:.0f}e-4).
