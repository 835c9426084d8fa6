# %% [markdown] 38 minutes, without the second reading
# # 5 · Length normalisation
#
# A completion is right or wrong as a whole, and the loss adds up its tokens. GRPO (group relative policy optimization) divides this sum by
# the completion's length.
#
# > **In a policy that can set the lengths of right and of wrong completions separately, dividing by length makes right ones shorter and wrong
# > ones longer; dividing by a constant does neither.**
# >
# > A network need not be such a policy. In our runs of GRPO, with its KL (Kullback–Leibler) penalty, neither shows: right completions have 25.0
# > tokens with either divisor, 0.02 [−0.06, 0.10] more if divided by length, wrong ones 23.4 against 23.0, 0.44 [−0.61, 1.48] more.
#
# The smallest case is one group of four: right completions of 5 and of 50 tokens, and wrong ones of 5 and of 50. The **advantage** of
# right ones is 1, that of wrong ones −1. (Dr. GRPO, "GRPO done right", has half of that; to compare divisors we hold them equal.)
# Each token's push is the advantage over a divisor:
#
# | divisor | right, 5 tokens | right, 50 | wrong, 5 | wrong, 50 |
# |---|---|---|---|---|
# | GRPO: 4 × the completion's length | .05 | .005 | −.05 | −.005 |
# | Dr. GRPO: 4 × a constant, here 56 | .0045 | .0045 | −.0045 | −.0045 |
#
# GRPO pushes each token of a short completion ten times as hard. The sum over its tokens is the same, 5 × .05 = 50 × .005. But *one* token decides
# whether to stop, and that one is pushed with .05 in the short completion, .005 in the long one. Among right ones
# that is a push up: stopping gains. Among wrong ones it is a push *down*: going on gains. Dr. GRPO pushes all tokens equally hard.
#
# Let a policy write only these four. With probability .3 a completion will be right, whatever its length. After 5
# tokens it stops or goes on to 50: one logit decides this for right completions, one for wrong ones. At first both are equally probable:

# %% [fold]
import math
from itertools import combinations_with_replacement

import numpy as np
import torch

from algorithms import dapo, dr_grpo, grpo
from lessons import identity
from lessons.experiments import compare_tables
from lessons.experiments.harness.grid import change
from lessons.experiments.harness.paired import difference
from lessons.workshop.companions import lesson_05
from lessons.workshop.notebook import check, show, show_diff, trains

C = dr_grpo.Config().max_new_tokens

def doubles(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)

RULES = {"GRPO": grpo, "Dr. GRPO": dr_grpo, "DAPO": dapo}
right = (torch.rand(1024, 1, generator=torch.Generator().manual_seed(0)) < 0.3).long()
grown = {}  # lengths of wrong and right completions, (updates, 2)
for name, script in RULES.items():
    def loss_of(logps, right, mask, script=script):
        return lesson_05.loss_of_script(script, right.view(128, 8).double(), logps, mask)

    grown[name] = lesson_05.mean_lengths(loss_of, right, updates=101, rate=10.0)
ends = {name: lengths[-1] for name, lengths in grown.items()}
assert ends["GRPO"][0] > 45 and ends["GRPO"][1] < 10  # from 27.5 tokens
assert all(abs(ends[name] - 27.5).max() < 1 for name in list(RULES)[1:])
show(lesson_05.two_rules(grown))

# Our training runs, in the box and in the table further down:
results = compare_tables.load()
arms = results["pieces"]["arms"]


def interval(gaps, digits=1):
    """Mean over ten seeds and its 95 % interval, by Student's t."""
    return change(difference(gaps, 0 * gaps), digits, scale=1).replace("+", "")

by_length, by_sigma = {}, {}
for kind in ("right", "wrong"):
    names = ("GRPO", "GRPO, not / σ", "GRPO, constant length", "Dr. GRPO")
    both, length_only, sigma_only, neither = (
        np.array(arms[name][f"length_{kind}"]["seeds"]) for name in names)
    divided, not_divided = both - sigma_only, length_only - neither  # ÷ σ or not
    by_length[kind] = [interval(gaps, 2) for gaps in (divided, not_divided)]
    by_mean, by_constant = both - length_only, sigma_only - neither
    by_sigma[kind] = [interval(gaps) for gaps in (by_mean, by_constant)]
lighter = {p: identity.weight("GRPO", p, 8) / identity.weight("Dr. GRPO", p, 8) for p in (0.38, 0.95)}


def longer(experiment, *pair):
    """How much longer the wrong completions of one arm are than another's."""
    arms = results[experiment]["arms"]
    return interval(np.subtract(*(arms[name]["length_wrong"]["seeds"] for name in pair)))

no_kl = {name: arm["length_wrong"]["mean"] for name, arm in results["no_kl"]["arms"].items()}
steps = ("+ token-level loss", "+ soft overlong punishment")
assert by_length["wrong"] == ["0.44 [−0.61, 1.48]", "1.48 [0.66, 2.29]"]  # as in the box
assert by_length["right"] == ["0.02 [−0.06, 0.10]", "−0.07 [−0.21, 0.08]"]  # one of four
tokens = {kind: [arms[name][f"length_{kind}"]["mean"] for name in names] for kind in by_length}
# The box and the table: GRPO; not / σ; constant length; neither
measured = {kind: [f"{mean:.1f}" for mean in tokens[kind]] for kind in tokens}
assert measured["wrong"] == ["23.4", "18.5", "23.0", "17.0"]
assert measured["right"] == ["25.0", "24.6", "25.0", "24.6"]
assert [text[:3] for text in by_sigma["wrong"]] == ["4.9", "6.0"]

# %% [text]
# *Mean length in tokens. Under GRPO right completions end
# at {=ends["GRPO"][1]:.0f} tokens and wrong ones at {=ends["GRPO"][0]:.0f}.*
#
# The two logits are the assumption: a network need not know, while it writes, whether it will be right.
#
# In the scripts:

# %%
show_diff(grpo.policy_loss, dr_grpo.policy_loss)

# %% [fold]
def token_push(script, rewards, lengths):
    """(G, T): minus the derivative of the script's loss by each token's log-probability."""
    mask = torch.arange(int(lengths.max())) < lengths.view(-1, 1)
    logps = torch.full(mask.shape, -0.5).double().requires_grad_()
    loss = lesson_05.loss_of_script(script, rewards.view(1, -1), logps, mask)
    return -torch.autograd.grad(loss, logps)[0]

short, long, lengths = 5, 50, torch.tensor([5, 50, 5, 50])
by_hand = {  # the table of the smallest case, from rewards of 1 and -1
    grpo: [1 / 20, 1 / 200, -1 / 20, -1 / 200],
    dapo: [1 / 110, 1 / 110, -1 / 110, -1 / 110],
    dr_grpo: [1 / 224, 1 / 224, -1 / 224, -1 / 224],
}
for script, expected in by_hand.items():
    push = token_push(script, doubles(1, 1, -1, -1), lengths)
    real = torch.arange(long) < lengths.view(4, 1)  # 0 on the padding
    assert torch.allclose(push, doubles(*expected).view(4, 1) * real, rtol=1e-12, atol=0)
print("the scripts' own losses push as in the first table: True")
one_long = token_push(dapo, doubles(1, 1, -1, -1), torch.tensor([10, 10, 10, 500])).abs()
share = (one_long[3].sum() / one_long.sum()).item()
# %% [text]
# ## Why, and how fast?
#
# In any group let $k$ of the $G$ completions be right, and σ the standard deviation of their rewards,
# 1 or 0: $\sigma^2 = k(G-k)/G^2$. GRPO's advantage of a right one is $(1 - k/G)/\sigma$. Over the $k$ right ones, divided by $G$, this adds up to σ; over
# the wrong ones to −σ.
#
# What does this do to a logit of our policy? Its **score** is the derivative of the log-probability of the choice: ½ if the completion is
# long and −½ if it is short, while both are equally probable. GRPO weighs it by one over the length:
#
# | | probability | score | 1 / length | score × 1 / length |
# |---|---|---|---|---|
# | 5 tokens | ½ | −½ | .2 | −.1 |
# | 50 tokens | ½ | ½ | .02 | .01 |
# | **mean** | | **0** | | **−.045** |
#
# So the expected push on the logit of right completions is $-.045\;\mathbb E[\sigma]$, and on that of wrong ones $+.045\;\mathbb E[\sigma]$. With a constant
# divisor both are 0, as the mean score is. ∎ The scripts' own losses:

# %% [fold]
G, rewards = 8, doubles(1, 1, 0, 0)


def expected_pushes(script, p):
    """(2, 2): right and wrong, short and long; over all 165 compositions of a group of 8."""
    pi, push = doubles(p, p, 1 - p, 1 - p) / 2, doubles(0, 0, 0, 0)
    for group in combinations_with_replacement(range(4), G):
        counts, kinds = [group.count(kind) for kind in range(4)], torch.tensor(group)
        ways = math.factorial(G) / math.prod(map(math.factorial, counts))
        on_token = token_push(script, rewards[kinds], lengths[kinds])[:, 0]  # on each alike
        push.index_add_(0, kinds, ways * pi[kinds].prod() * on_token)
    return push.view(2, 2)


print("expected push on the logit of right and of wrong completions, groups of 8, p = .3")
for name in ("GRPO", "Dr. GRPO"):
    on_logits = expected_pushes(RULES[name], 0.3) @ doubles(-1, 1) / 2
    in_sigmas = on_logits / identity.expected_sigma(0.3, G)
    law = doubles(-1, 1) * (0.045 if name == "GRPO" else 0)
    assert (in_sigmas - law).abs().max() < 1e-12
    of_right, of_wrong = (round(x, 3) + 0.0 for x in in_sigmas.tolist())  # no -0.0
    print(f"{name:8} {of_right:6} E[σ] {of_wrong:6} E[σ]")


def unevenness(script):  # how much harder short right completions are pushed than long ones
    of_short, of_long = expected_pushes(script, 0.5)[0]
    return (of_short - of_long) / (of_short + of_long)


assert 1 / G < unevenness(dapo) / unevenness(grpo) < 1.3 / G  # "about 1/B"

# %% [text]
# For all completions together the first push counts $p$ times, the second $1 - p$ times. **So in this
# policy, while most completions are wrong, the mean length of all rises; once most are right, it falls.**
#
# ## Our training runs
#
# **We looked for both drifts in a network that is also held by a KL penalty. With GRPO's ÷ σ neither shows; without it the completions that are
# still wrong are 0.7 to 2.3 tokens longer, as predicted.** Taking the length out of GRPO's divisor shortened wrong completions by 0.4 of 23 tokens,
# perhaps by none. One parameter may set both lengths there, and then the two pushes cancel, at least in part.
#
# We replaced the length in the divisor by the constant. GRPO also divides by σ, Dr. GRPO does not: we did both. Mean tokens,
# divided by length → by the constant, and what dividing by length adds (arithmetic, last ten of 60 steps, ten seeds, 95 % intervals;
# [results.json](experiments/results.json): `pieces`):
#
# | completions | prediction | with ÷ σ, as in GRPO | without, as in Dr. GRPO |
# |---|---|---|---|
# | right | shorter | {=measured["right"][0]} → {=measured["right"][2]}: {=by_length["right"][0]} | {=measured["right"][1]} → {=measured["right"][3]}: {=by_length["right"][1]} |
# | wrong | longer | {=measured["wrong"][0]} → {=measured["wrong"][2]}: {=by_length["wrong"][0]} | {=measured["wrong"][1]} → {=measured["wrong"][3]}: {=by_length["wrong"][1]} |
#
# One of four intervals excludes 0. Even that one need not be the bias: it compares the completions that are *still* wrong, and each rule leaves
# other problems unsolved. Right completions could hardly show it: nearly all end up with every step written out, and then the problem fixes the
# length. On long chains of thought Dr. GRPO's paper (Fig. 6), which has no KL, sees wrong ones grow, and less without both divisions.
#
# **Why does ÷ σ make wrong completions {=by_sigma["wrong"][0]} and {=by_sigma["wrong"][1]} tokens longer (length, constant)? Through the KL.** Without
# ÷ σ the mean update is {=lighter[0.38]:.1f} ($p = .38$) to {=lighter[0.95]:.1f} times ($p = .95$) smaller. So the same KL weighs that much more, and the base, to which it pulls, writes
# 6.7 tokens on average. Two more pairs of arms agree (`batch_sigma`, `no_kl`):
#
# - Dr. GRPO with a smaller KL (times the batch's σ), its advantages untouched: wrong completions {=longer("batch_sigma", "KL × σ of the batch", "Dr. GRPO")} tokens longer.
# - No KL: {=no_kl["GRPO"]:.2f} tokens with GRPO, {=no_kl["Dr. GRPO"]:.2f} with Dr. GRPO, which has neither division: a difference of {=longer("no_kl", "Dr. GRPO", "GRPO")}.
#
# So the two nulls above hold with this KL and on this task.
#
# ## Exercises
#
# **1. Predict.** Two proposals: (a) divide by the length where $A > 0$ and by a constant where $A < 0$; (b) the other way round. With the policy
# above, $p = 0.3$ and one small step, will the share of long completions rise (1), fall (−1) or stay (0) among right ones, among
# wrong ones, among all? First row (a), second row (b).

# %% [exercise]
prediction = ...  # [[?, ?, ?], [?, ?, ?]]

# %% [check]
check("5.1", prediction)

# %% [hint]
# Make the table of *Why, and how fast?* once with one over the length and once with a constant. Which of the two holds for right ones, which for wrong?

# %% [solution]
# (a) wrong ones: a constant, so no drift. (b): the same for the right ones.
prediction = [[-1, 0, -1], [0, 1, 1]]

# %% [markdown]
# **2. Find the bug.** DAPO (decoupled clip and dynamic sampling policy optimization) divides by the number of tokens of the whole batch. This
# **token mean** pushes all tokens equally, like the constant. But to save memory a batch is cut into micro-batches whose gradients are added
# up, and several trainers averaged the micro-batches' token means (prime-rl pull request 583, open-instruct 1161). In micro-batches of one
# completion that is GRPO's rule. Repair the function. Your loss then trains the lesson's policy in such micro-batches, at $p = ½$.


# %% [exercise]
def losses_in_parts(f, mask, size):
    """The loss of each micro-batch of `size` completions. Their sum: the token_mean of
    f (B, T)."""
    losses, parts = [], len(f) / size
    for start in range(0, len(f), size):
        part, real = f[start : start + size], mask[start : start + size]
        losses.append((part * real).sum() / real.sum() / parts)  # <- runs, and is wrong
    return losses


# %% [check]
check("5.2", losses_in_parts)
trains("5.2", losses_in_parts)

# %% [markdown]
# *The mean length of wrong completions, one run each. It should stay near 27.5 tokens.*

# %% [hint]
# Give one completion 5 tokens and one 50. What weight does a token of each completion get in micro-batches of one?


# %% [solution]
def losses_in_parts(f, mask, size):
    tokens = mask.sum()  # in the whole batch, known before the first backward pass
    losses = []
    for start in range(0, len(f), size):
        part, real = f[start : start + size], mask[start : start + size]
        losses.append((part * real).sum() / tokens)
    return losses


# %% [text]
# ## To remember
#
# - $1/|y|$ pushes the tokens of short completions harder in *both* directions. In our small policy right completions shorten and wrong
#   ones lengthen; a constant divisor does neither.
# - In practice: divide by a constant or by the batch's tokens. At our 23 to 25 tokens, with ÷ σ and a KL, no drift was seen; longer ones we did
#   not try. Log the lengths of right and of wrong ones apart.
# - Two algorithms with one KL coefficient do not have one KL: its weight counts beside their updates.
#
# ## For a second reading (15 minutes): the token mean, a shared parameter
#
# **The losses.** Let $f_{i,t}$ be the loss of token $t$ of completion $i$, with $\lvert y_i\rvert$ tokens (end-of-sequence included), in an optimizer
# batch of $B$.
#
# | name | formula | used by |
# |---|---|---|
# | `seq_mean` | $\frac1B\sum_i\frac{1}{\lvert y_i\rvert}\sum_t f_{i,t}$ | GRPO |
# | `token_mean` | $\frac{1}{\sum_{i}\lvert y_i\rvert}\sum_{i}\sum_t f_{i,t}$ | DAPO (in its paper over a group) |
# | `seq_sum_const` | $\frac{1}{BC}\sum_i\sum_t f_{i,t}$ | Dr. GRPO; $C$ is `max_new_tokens` |
#
# **What a token mean leaves.** A completion is part of its own denominator: about $1/B$ of GRPO's bias (short − long over short + long) is left. And one long completion
# can dominate: of lengths 10, 10, 10 and 500 the last has {=share:.0%} of the
# weight. In our runs of DAPO's parts ([lesson 10](10_dapo.ipynb), no KL; `ablation`) it makes wrong completions {=longer("ablation", *steps)} tokens *longer* than $1/|y|$.
#
# **A widespread reading** calls GRPO "biased toward shorter responses". This is only the half with $A > 0$; Dr. GRPO's
# section 3.1 has both.

# %% [markdown]
# **3. A shared parameter.** Let one parameter $z$ be added to both logits. The shares of long completions need no longer be ½. What is
# GRPO's expected push on $z$, as a multiple of $\mathbb E[\sigma]$?


# %% [exercise]
def push_on_shared(long_right, long_wrong, L1, L2):
    """From P(long | right), P(long | wrong) and the lengths L1 < L2: the expected push on z,
    divided by E[sigma]."""
    return ...


# %% [check]
check("5.3", push_on_shared)

# %% [hint]
# Write $P$ for the share of long completions in one class. The score of a long one is then $1 - P$, that of a short one $-P$. Make the table
# again; right completions count with σ, wrong ones with −σ.


# %% [solution]
def push_on_shared(long_right, long_wrong, L1, L2):
    variance_right, variance_wrong = (P * (1 - P) for P in (long_right, long_wrong))
    # where the lengths of wrong ones vary more, both classes lengthen
    return (1 / L1 - 1 / L2) * (variance_wrong - variance_right)


# %% [markdown]
# <details><summary>After the exercise</summary>
#
# If lengths vary equally in both classes, nothing is left; otherwise both classes move the same way.
#
# </details>
#
# Sources: Dr. GRPO, [arXiv:2503.20783](https://arxiv.org/abs/2503.20783), section 3.1, Fig. 6, Listing 1; GRPO, [2402.03300](https://arxiv.org/abs/2402.03300), Eq. 3; DAPO, [2503.14476](https://arxiv.org/abs/2503.14476),
# Eq. 8. The drift is our derivation.
