# %% [markdown] 40 minutes, without the second reading
# # 5 · Length normalisation
#
# A completion is right or wrong as a whole, and the loss adds up its tokens. GRPO (group relative policy optimization) divides this sum by
# the completion's length.
#
# > **Dividing by length makes right completions shorter and wrong ones longer, if the policy can set the two lengths separately; dividing by
# > a constant does neither.**
# >
# > In our training runs little of this is left. Dividing by length made wrong completions 0.4 [−0.6, 1.5] tokens longer (23.4 instead of 23.0).
# > Without GRPO's other divisor, the standard deviation σ of the rewards, it made them 1.5 [0.7, 2.3] longer (18.5 instead of 17.0). Right
# > ones did not become shorter.
#
# The smallest case is one group of four: a right completion of 5 tokens and one of 50, and a wrong one of 5 and one of 50. Right ones have the
# **advantage** 1, wrong ones −1: their tokens are pushed up or down by 1 over a divisor. How hard?
#
# | rule, and its divisor | right, 5 tokens | right, 50 | wrong, 5 | wrong, 50 |
# |---|---|---|---|---|
# | GRPO: 4 × the completion's length | .05 | .005 | −.05 | −.005 |
# | DAPO: all 110 tokens | .0091 | .0091 | −.0091 | −.0091 |
# | Dr. GRPO: 4 × a constant, here 56 | .0045 | .0045 | −.0045 | −.0045 |
#
# GRPO pushes the tokens of a short completion ten times as hard. Among right ones that is a push up: the short one gains. Among wrong ones
# it is a push *down*: the long one gains. The other two rules push all tokens equally hard. (DAPO: decoupled clip and dynamic sampling policy
# optimization; Dr. GRPO: "GRPO done right".)
#
# Where does this lead? Take a small policy: with probability .3 a completion will be right, whatever its length. Right and wrong completions have
# a logit each, which gives the probability of stopping after a token. Each of the three rules trains these two logits:

# %% [fold]
import math
from itertools import combinations_with_replacement

import numpy as np
import torch
from torch.func import jvp

from algorithms import dapo, dr_grpo, grpo
from lessons import identity
from lessons.experiments import compare_tables
from lessons.workshop.kit import check, show, show_diff, trains
from lessons.workshop.parts import lesson_05

C = dr_grpo.Config().max_new_tokens

def doubles(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)

def loss_of_script(script, rewards, logps, mask):
    """policy_loss of groups with these rewards (P, G), where every ratio is 1."""
    batch = {"logps": logps, "old_logps": logps.detach(), "mask": mask}
    if script is not dapo:  # which has no KL term
        batch["ref_logps"] = logps.detach()
    A = script.compute_advantages(rewards=rewards).view(-1, 1)
    return script.policy_loss(**batch, advantages=A, config=script.Config())

RULES = {"GRPO": grpo, "DAPO": dapo, "Dr. GRPO": dr_grpo}
right = (torch.rand(256, 1, generator=torch.Generator().manual_seed(0)) < 0.3).long()
grown = {}  # lengths of wrong and right completions, (updates, 2)
for name, script in RULES.items():
    def loss_of(logps, right, mask, script=script):
        return loss_of_script(script, 2.0 * right.view(32, 8).double() - 1, logps, mask)

    grown[name] = lesson_05.mean_lengths(loss_of, right, updates=101, rate=1.0)
ends = {name: lengths[-1] for name, lengths in grown.items()}
assert ends["GRPO"][0] > 40 and ends["GRPO"][1] < 1.2  # from 10 tokens
assert all(abs(ends[name] - 10).max() < 0.7 for name in list(RULES)[1:])
show(lesson_05.three_rules(grown))

# Our training runs, in the box and in the table further down:
results = compare_tables.load()
arms, ablation = results["pieces"]["arms"], results["ablation"]["arms"]


def interval(gaps, form=".1f"):
    """Mean over ten seeds and its 95 % interval, by Student's t."""
    mean, half = gaps.mean(), 2.262 * gaps.std(ddof=1) / math.sqrt(len(gaps))
    return f"{mean:{form}} [{mean - half:{form}}, {mean + half:{form}}]".replace("-", "−")

by_length, by_sigma, gap = {}, {}, {}
for kind in ("right", "wrong"):
    names = ("GRPO", "GRPO, not / σ", "GRPO, constant length", "Dr. GRPO")
    both, length_only, sigma_only, neither = (
        np.array(arms[name][f"length_{kind}"]["seeds"]) for name in names)
    divided, not_divided = both - sigma_only, length_only - neither  # ÷ σ or not
    by_length[kind] = [interval(gaps, ".2f") for gaps in (divided, not_divided)]
    by_mean, by_constant = both - length_only, sigma_only - neither
    by_sigma[kind] = [interval(gaps) for gaps in (by_mean, by_constant)]
    gap[kind] = (both - neither).mean()
steps = ("+ token-level loss", "+ soft overlong punishment")
token_level = np.subtract(*(ablation[name]["length_wrong"]["seeds"] for name in steps))
falls = ["−" in text for text in by_length["wrong"] + by_length["right"]]
assert falls == [True, False, True, True]
assert "−" not in by_sigma["wrong"][0] + by_sigma["wrong"][1] and token_level.mean() > 0
assert by_length["wrong"] == ["0.44 [−0.61, 1.48]", "1.48 [0.66, 2.29]"]  # as in the box
tokens = {kind: [arms[name][f"length_{kind}"]["mean"] for name in names] for kind in by_length}
assert [f"{mean:.1f}" for mean in tokens["wrong"]] == ["23.4", "18.5", "23.0", "17.0"]  # the box
assert [round(mean) for mean in tokens["right"]] == [25] * 4
assert [f'{gap["wrong"]:.1f}', *(text[:3] for text in by_sigma["wrong"])] == ["6.4", "4.9", "6.0"]

# %% [text]
# *Mean length in tokens (at most {=C}), with batches of 256 completions. Under GRPO right completions end at {=ends["GRPO"][1]:.1f} tokens and wrong ones at
# {=ends["GRPO"][0]:.0f}, although every length is equally good. Seven of ten are wrong, so the mean of all rises, too.*
#
# ## The three losses
#
# Let $f_{i,t}$ be the loss of token $t$ of completion $i$, which has $\lvert y_i\rvert$ tokens, end-of-sequence included. An optimizer batch has $B$
# completions.
#
# | name | formula | used by |
# |---|---|---|
# | `seq_mean` | $\frac1B\sum_i\frac{1}{\lvert y_i\rvert}\sum_t f_{i,t}$ | GRPO |
# | `token_mean` | $\frac{1}{\sum_{i}\lvert y_i\rvert}\sum_{i}\sum_t f_{i,t}$ | DAPO, over the optimizer batch (in its paper over a group) |
# | `seq_sum_const` | $\frac{1}{BC}\sum_i\sum_t f_{i,t}$ | Dr. GRPO; $C$ is `max_new_tokens`, here 56 (1 in its equation) |
#
# What Dr. GRPO changes in GRPO's loss:

# %%
show_diff(grpo.policy_loss, dr_grpo.policy_loss)

# %% [fold]
def token_push(script, rewards, lengths):
    """(G, T): minus the derivative of the script's loss by each token's log-probability."""
    mask = torch.arange(int(lengths.max())) < lengths.view(-1, 1)
    logps = torch.full(mask.shape, -0.5).double().requires_grad_()
    loss = loss_of_script(script, rewards.view(1, -1), logps, mask)
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
print("the losses of the three scripts push as in the table above: True")
one_long = token_push(dapo, doubles(1, 1, -1, -1), torch.tensor([10, 10, 10, 500])).abs()
share = (one_long[3].sum() / one_long.sum()).item()

# The next section's law, against all 165 compositions of a group of 8 in the scripts' losses:
G, rewards = 8, doubles(1, 1, 0, 0)

def shares(logits):
    """P(long | right), P(long | wrong), P(long) and p."""
    P = logits.softmax(dim=0)
    return torch.stack([P[1] / P[:2].sum(), P[3] / P[2:].sum(), P[1] + P[3], P[:2].sum()])

# A logit for right, one for wrong, and one length parameter for both, as logits of four kinds:
SHARED = torch.tensor([[1, 0, 0], [1, 0, 1], [0, 1, 0], [0, 1, 1]]).double()

def drift(script, p, shared=False):
    """How the values of `shares` change in one expected step, per unit of learning rate."""
    pi, push = doubles(p, p, 1 - p, 1 - p) / 2, doubles(0, 0, 0, 0)
    for group in combinations_with_replacement(range(4), G):
        counts, kinds = [group.count(kind) for kind in range(4)], torch.tensor(group)
        ways = math.factorial(G) / math.prod(map(math.factorial, counts))
        on_token = token_push(script, rewards[kinds], lengths[kinds])[:, 0]  # on each alike
        push.index_add_(0, kinds, ways * pi[kinds].prod() * on_token)
    step = push - pi * push.sum()  # a kind's score: 1 at its own logit, less pi
    if shared:
        step = SHARED @ (SHARED.T @ step)  # the parameters' gradient, and the logits it moves
    return jvp(shares, (pi.log(),), (step,))[1].numpy()  # the derivative along the step

d = {grpo: (1 / short, 1 / long), dr_grpo: (1 / C, 1 / C)}  # d(L) of the two completions
for script, (d_short, d_long) in d.items():
    p_change = drift(script, 0.5)[3]  # the size of a step that raises p = 1/2 by 1
    for p in (0.3, 0.7):
        *drifts, _ = drift(script, p)
        size = identity.expected_sigma(p, G) if script is not dr_grpo else 0.0
        law = size / 8 * (d_short - d_long) * np.array([-1, 1, 1 - 2 * p])
        assert np.abs(drifts - law).max() < 1e-12 * p_change
*tied, p_change = drift(grpo, 0.3, shared=True)
assert np.abs(tied).max() < 1e-12 * p_change
at_half = {script: drift(script, 0.5) for script in (grpo, dapo)}
points, points_dapo = (right_wrong_all[1] / gain for *right_wrong_all, gain in at_half.values())
assert np.isclose(points, (1 / short - 1 / long) / (1 / short + 1 / long))
assert 1 / G < points_dapo / points < 1.3 / G  # "somewhat more"

# %% [text]
# ## How fast: three steps
#
# We take a second policy, in which $p$, the probability of a right completion, moves as well, and which has only two lengths. Half of the right
# completions and half of the wrong ones have $L_1$ tokens, the others $L_2 > L_1$. Each of these four kinds has its own logit. A rule multiplies
# the push on a completion by $d(L)$: $1/L$ for GRPO, $1/C$ for Dr. GRPO. Let $q = 1 - p$, and σ the standard deviation of the rewards, 1 or 0, of
# a **group**: $G$ completions of one prompt.
#
# **Step 1.** Under GRPO the $k$ right completions of a group have the advantage $\sqrt{(G-k)/k}$. Added up and divided by $G$ that is
# $\sqrt{k(G-k)}/G = \sigma$. Over the wrong ones it is $-\sigma$. Half of either class is short, half is long. So the expected pushes on the four
# logits are $\tfrac12\mathbb E[\sigma]$ times
#
# | right, short | right, long | wrong, short | wrong, long |
# |---|---|---|---|
# | $d(L_1)$ | $d(L_2)$ | $-d(L_1)$ | $-d(L_2)$ |
#
# Under Dr. GRPO σ² takes the place of σ. A softmax moves a logit by its own push, less its probability times the sum of all four pushes. Here
# this sum is 0.
#
# **Step 2.** Within a class the long logit minus the short one changes by the difference of two columns, times $\tfrac\eta2\,\mathbb E[\sigma]$
# with the learning rate η. A share $P = \frac12$ changes by $P(1-P) = \frac14$ of that:
#
# $$\Delta P(\text{long}\mid\text{right}) = -\frac\eta8\,\mathbb E[\sigma]\,\big(d(L_1)-d(L_2)\big), \qquad
# \Delta P(\text{long}\mid\text{wrong}) = +\frac\eta8\,\mathbb E[\sigma]\,\big(d(L_1)-d(L_2)\big)$$
#
# **Step 3.** All completions together: $p$ times the first plus $q$ times the second, so the same size times $1 - 2p$. **While most completions
# are wrong, the mean length of all rises; once most are right, it falls.** With a constant divisor all three changes are 0. ∎
#
# **How large is this?** At $p = ½$ each kind has the probability ¼. So by the first two columns $p$ rises by
# $\frac\eta8\,\mathbb E[\sigma]\,\big(d(L_1)+d(L_2)\big)$ in the same step. While $p$ gains one point, the two shares of step 2 move by
#
# $$\frac{d(L_1)-d(L_2)}{d(L_1)+d(L_2)} = \frac{.2-.02}{.2+.02} = {=points:.2f}\text{ points with 5 and 50 tokens.}$$
#
# The scripts' own losses agree, over all groups of eight.
#
# **DAPO's** rule is almost a constant, but a completion is part of its own denominator. If all the others had the mean length, $1/B$ of GRPO's
# bias would be left. Their lengths vary, so it is somewhat more: {=points_dapo / points:.2f} instead of .125 at $B = 8$.
#
# ## Our training runs
#
# A network need not know, while it writes, whether it will be right. With one length parameter for both classes the drift is gone, or both
# move the same way (exercise 3, in the second reading). And where long completions are right more often, length should change.
#
# GRPO and Dr. GRPO differ in two divisors, the length and σ, so we removed one at a time. Mean length of *wrong* completions in the last ten of
# 60 steps, over ten seeds, with 95 % intervals:
#
# | tokens | with ÷ σ | without |
# |---|---|---|
# | ÷ length | {=tokens["wrong"][0]:.1f} (GRPO) | {=tokens["wrong"][1]:.1f} |
# | ÷ a constant | {=tokens["wrong"][2]:.1f} | {=tokens["wrong"][3]:.1f} (Dr. GRPO) |
# | what ÷ length adds | {=by_length["wrong"][0]} | {=by_length["wrong"][1]} |
#
# Only without σ does the length divisor show clearly. Right completions, of 25 tokens in all four, should become shorter, but no such effect is
# visible: ÷ length adds {=by_length["right"][0]} with σ and {=by_length["right"][1]} without. (÷ σ itself makes wrong completions longer by
# {=by_sigma["wrong"][0]} and {=by_sigma["wrong"][1]} tokens; why, we do not know.)
#
# ## Exercises
#
# **1. Predict.** Two proposals: (a) divide by $|y|$ where $A > 0$ and by $C$ where $A < 0$; (b) the other way round. With the four kinds
# above, $p = 0.3$ and one small step, will the share of long completions rise (1), fall (−1) or stay (0) among right ones, among
# wrong ones, among all? First row (a), second row (b).

# %% [exercise]
prediction = ...  # [[?, ?, ?], [?, ?, ?]]

# %% [check]
check("5.1", prediction)

# %% [hint]
# Go through the steps with a $d$ for each sign of A. The pushes no longer sum to 0: does what remains change the share of long completions
# within a class?

# %% [solution]
# (a) wrong ones: d = 1/C at both lengths, so no drift. (b): the same for the right ones.
# The pushes no longer sum to 0, but the rest moves p, not the shares within a class.
prediction = [[-1, 0, -1], [0, 1, 1]]

# %% [markdown]
# **2. Find the bug.** To save memory, an optimizer batch is cut into micro-batches whose gradients are added up. Several trainers
# averaged the micro-batches' token means (prime-rl pull request 583, open-instruct 1161). With micro-batches of one completion that is
# GRPO's rule. Repair the function. Your loss then trains a policy like that of the first picture, half of it right, in micro-batches of one.


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
# *The mean length of wrong completions, one run each, 32 completions an update. It should stay near 10 tokens. With the bug it grows, faster
# in parts of one completion than in parts of four.*

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
# - $1/|y|$ pushes the tokens of short completions harder in *both* directions. With a length parameter for each kind, right completions
#   shorten and wrong ones lengthen.
# - A constant divisor does not; a token mean over the whole batch keeps about $1/B$ of the bias.
# - In our training runs the effect on wrong completions was 0.4 or 1.5 tokens, and none was visible on right ones. If wrong completions grow long
#   in your run, look at ÷ σ, too.
#
# ## For a second reading (10 minutes): a shared parameter
#
# **More on our runs** (`compare.py --experiments pieces`). GRPO's wrong completions end {=gap["wrong"]:.1f} tokens longer than Dr. GRPO's. σ also adds
# {=by_sigma["right"][0]} and {=by_sigma["right"][1]} tokens to right completions. In our ablation of DAPO ([lesson 10](10_dapo.ipynb)) the token mean in place
# of $1/|y|$ makes wrong completions {=interval(token_level)} tokens *longer*, against the prediction. There a punishment of long ones acts as well.
#
# **Two remarks.** A widespread reading compares two *right* completions and calls GRPO "biased toward shorter responses". This is only the half
# with $A > 0$; Dr. GRPO's section 3.1 has both. And in a token mean one long completion can dominate: of lengths 10, 10, 10 and 500
# the last has {=share:.0%} of the weight.

# %% [markdown]
# **3. A shared parameter.** Let one parameter $z$ be added to the log-odds of a long completion, among right and wrong ones alike. What is
# GRPO's expected push on $z$, as a multiple of $\mathbb E[\sigma]$?


# %% [exercise]
def push_on_shared(long_right, long_wrong, L1, L2):
    """From P(long | right), P(long | wrong) and the lengths L1 < L2: the expected push on z,
    divided by E[sigma]."""
    return ...


# %% [check]
check("5.3", push_on_shared)

# %% [hint]
# Write $P$ for P(long) in one class. With respect to $z$ the score of a long completion of this class is $1 - P$, that of a short one
# $-P$. Take the mean of $d(L)$ times the score over the class; right completions count with σ, wrong ones with −σ.


# %% [solution]
def push_on_shared(long_right, long_wrong, L1, L2):
    variance_right, variance_wrong = (P * (1 - P) for P in (long_right, long_wrong))
    # where the wrong vary more, both classes lengthen
    return (1 / L1 - 1 / L2) * (variance_wrong - variance_right)


# %% [markdown]
# Sources: Dr. GRPO, [arXiv:2503.20783](https://arxiv.org/abs/2503.20783), section 3.1, Fig. 6, Listing 1; GRPO, [2402.03300](https://arxiv.org/abs/2402.03300), Eq. 3; DAPO, [2503.14476](https://arxiv.org/abs/2503.14476),
# Eq. 8. The drift is our derivation.
