# %% [markdown] 40 minutes, without the second reading
# # 17 · A verifier that errs
#
# Every verifier errs: it lets some wrong completions pass and fails some right ones. What does a model learn from such verdicts?
#
# > **Random errors keep the direction of each prompt's expected update, as long as right completions pass more often than wrong ones, and shorten it
# > under GRPO and Dr. GRPO; errors that follow a rule are a different reward, and that is what is climbed.**
# >
# > We trained one small model on one task under three such rules. It found two of them, and then ended right 22 and 28 points less often than
# > with as many random errors.
#
# **The smallest case.** Of ten right completions a verifier passes 8, of ten wrong ones 3. REINFORCE pushes up each one that passes: on average a
# right completion by .8, a wrong one by .3. But pushing *all* completions by .3 does nothing on average ([lesson 1](01_score_function.ipynb)). What
# is left is a push of .5 for right ones only: the update of a perfect verifier, halved.
#
# In general a wrong completion passes with probability $f$ (false acceptance), here .3, and a right one fails with probability $m$ (false
# rejection), here .2. Youden's index $J = 1 - f - m$ is 1 for a perfect verifier
# and 0 if right and wrong completions pass equally often. Here half of the push is left because $J = .5$.

# %% [fold]
from itertools import product

import numpy as np
import torch

from algorithms import dr_grpo, grpo
from lessons import identity
from lessons.experiments import erring
from lessons.experiments.harness.grid import change, load_runs, markdown, short
from lessons.workshop.companions.lesson_13 import GROUPS as groups
from lessons.workshop.companions.lesson_13 import PI as pi
from lessons.workshop.companions.lesson_13 import REWARDS as R
from lessons.workshop.companions.lesson_17 import forms, lags, learning
from lessons.workshop.notebook import check, fill, say, show, trains

runs = load_runs(erring.RESULTS)
NONE, BASE, table = erring.NO_ERRORS, erring.BASE, erring.slopes(runs)
NAMES = {
    "rejected": ("right ones rejected, $m = .6$", 0, 0.6),
    "both": ("half of each, $f = m = .3$", 0.3, 0.3),
    "accepted": ("wrong ones accepted, $f = .6$", 0.6, 0),
}
rank = np.corrcoef([each.argsort().argsort() for each in erring.made_by_clip(table)])[0, 1]
outcomes = erring.PREDICTIONS.split("\n- ")[1:]
held = sum(outcome.startswith("held") for outcome in outcomes)


def value(settings, what="end"):
    return np.mean(erring.values(runs, settings, what))


def points(*pair):
    """A difference at the end, in points with its interval."""
    return change(erring.gap(runs, *pair)).strip("*")


def seeds(*settings):
    """How many seeds these arms have."""
    counts = {len(erring.select(runs, each)) for each in settings}
    return " or ".join(map(str, sorted(counts)))


def slope(updates, batch, made):
    """Of an arm with J = .4, in per cent of that without errors, and its interval."""
    return 100 * table[updates, batch][:, 2, erring.COMPOSITIONS.index(made)]


def explained(f, m, p=BASE):
    """Mean A² of right and of wrong ones (GRPO, large groups), and signal over noise."""
    seen = f + (1 - f - m) * p
    odds = (1 - seen) / seen
    A_right, A_wrong = (1 - m) * odds + m / odds, f * odds + (1 - f) / odds
    noise = p * A_right + 6.4 * (1 - p) * A_wrong  # 6.4: lesson 13
    return A_right, A_wrong, (1 - f - m) * (odds**0.5 + odds**-0.5) / noise**0.5


def share(*errors):
    """Of signal over noise, in per cent of that without errors."""
    return 100 * explained(*errors)[2] / explained(0, 0, *errors[2:])[2]


def costs():
    squares = [f"{A:.2f}" for A in explained(0, 0)[:2]]
    rows = [["none", *squares, "100", "100 %", f"{value(NONE):.2f}"]]
    for made, (name, *errors) in NAMES.items():
        squares = [f"{A:.2f}" for A in explained(*errors)[:2]]
        measured = "{:.0f} % [{:.0f}, {:.0f}]".format(*slope("clipped", "AdamW", made))
        end = f"{value(erring.COMPOSED[0.4, made]):.2f}"
        rows.append([name, *squares, f"{share(*errors):.0f}", measured, end])
    assert [row[3] for row in rows] == ["100", "75", "33", "33"]
    heads = "$A_+^2$", "$A_-^2$", "signal / noise", "slope", "end"
    return markdown(["errors, $J = .4$", *heads], rows)


def rules():
    rows = []
    for rule, settings in erring.FORMS.items():
        ends = [value(arm) for arm in (settings, erring.AS_OFTEN.get(rule, NONE))]
        shares = [value(settings, what) for what in ("passed", "right")]
        rows.append([rule, *(f"{share:.3f}"[1:] for share in shares + ends)])
    heads = "passes", "is right", "right, held-out", "with random errors"
    return markdown(["rule", *heads], rows)


accepted = points(*(erring.COMPOSED[0.4, made] for made in ("rejected", "accepted")))
accepted = accepted.replace("+", "")
by_clip, free = (table[updates, erring.CALM] for updates in ("clipped", "unclipped"))
assert (by_clip[2][2, ::2] < free[1][2, ::2]).all() and free[0].min() > 0.5  # intervals apart
_, low, high = table["clipped", "AdamW"]
assert rank >= 0.7 and low[2, 1] > high[2, 0]  # what the second reading says
read = 50  # of each kind, at t = .4, a = .9, b = .1: slopes of J in a and b, one error .3/√50 each


def audited(t=0.4, a=0.9, b=0.1):
    right = t * a + (1 - t) * b
    return (a - b) * t * (1 - t) / right / (1 - right)


in_a, in_b = audited(a=0.9 + 1e-6) - audited(), audited(b=0.1 + 1e-6) - audited()
within = 1.96 * 0.3 * np.hypot(in_a, in_b) / 1e-6 / read**0.5
assert short(within, 2) == ".13"
p, f, m = np.meshgrid(*[np.linspace(0.01, 0.99, 50)] * 3)
weights = [identity.weight("GRPO", each, 8) for each in (f + (1 - f - m) * p, p)]
assert ((1 - f - m) * weights[0] < weights[1]).all()  # errors shorten an update
show(learning(runs))

# %% [text]
# *GRPO on arithmetic with random errors, $f = m$: the share of the training samples that is really right. Look first at the order: the smaller $J$, the
# slower; at $J = -.2$ it falls. Bands: 95 % intervals over {=seeds(NONE, *erring.COMPOSED.values())} seeds. All runs: [erring.json](experiments/erring.json).*
#
# | symbol | meaning |
# |---|---|
# | $R,\ \tilde R$ | 1 if a completion is right; 1 if it passes |
# | $p,\ \tilde p$ | the probability that a completion is right; that it passes ($q,\ \tilde q$: that not) |
# | $s$ | the score of a completion, $\nabla_\theta\log\pi_\theta(y)$ |
# | $w,\ G$ | the weight of a prompt; completions of a group |
#
# ## Why the direction stays
#
# A completion passes with probability $\mathbb E[\tilde R \mid y] = f + J R$, and the expected score is 0:
#
# $$\mathbb E[\tilde R\,s] = f\,\mathbb E[s] + J\,\mathbb E[R\,s] = J\,\nabla p .$$
#
# A group's advantages see verdicts only. So [lesson 3](03_group_baseline.ipynb)'s formula holds with the share that passes,
# $\tilde p = f + Jp$, in place of $p$. Its gradient is $\nabla\tilde p = J\,\nabla p$:
#
# $$\mathbb E[g] = w(\tilde p)\,J\,\nabla p$$
#
# GRPO's $w$ depends on $\tilde p$, so errors also change how prompts count against each other. The factor $J\,w(\tilde p)/w(p)$ is $J$ under Dr. GRPO and
# below 1 under GRPO (checked in groups of 8). Not every rule shortens: with $w = q^{G-1}$ (exercise 3 of [lesson 7](07_group_size.ipynb)) rejecting
# half of the right ones makes the update {=0.5 * 0.75**7 / 0.5**7:.1f} times as long at $p = ½$ and $G = 8$.
# By enumeration of six answers, all groups of three and all verdicts:

# %% [fold]
S = torch.eye(6, dtype=torch.float64) - pi  # scores in rows
f, m, G = 0.3, 0.1, 3
p, J = pi @ R, 1 - f - m
passes = f + J * R  # (6,) the probability that an answer passes
verdicts = torch.tensor([*product([0.0, 1.0], repeat=G)], dtype=torch.float64)
pass_rates = passes[groups][:, None]  # (groups, 1, G)
chances = torch.where(verdicts == 1, pass_rates, 1 - pass_rates).prod(dim=2)
chances = chances * pi[groups].prod(dim=1)[:, None]  # (groups, verdicts)

for name, script in (("GRPO", grpo), ("Dr. GRPO", dr_grpo)):
    A = script.compute_advantages(rewards=verdicts)  # (verdicts, G)
    update = torch.einsum("gv,vi,gip->p", chances, A, S[groups]) / G
    predicted = identity.weight(name, float(f + J * p), G) * J * (pi * (R - p))
    off = (update - predicted).norm() / predicted.norm()
    print(f"{name}: relative error of E[g] < 1e-12:", bool(off < 1e-12))

# %% [text]
# ## What errors cost
#
# The mean keeps its direction. Do two kinds of errors with the same $J$ cost the same?
#
# {=costs()}
#
# *GRPO. $A_+^2$, $A_-^2$: mean squared advantage of right and of wrong ones. Signal / noise: formula below. Slope: rise of the accuracy over 4,096 completions, with 95 %
# intervals. End: held-out problems, after 10,240. {=seeds(NONE, *(erring.COMPOSED[0.4, made] for made in NAMES))} seeds.*
#
# **At equal $J$, rejecting right ones costs least. The end hides it**: near the ceiling all have nearly caught up.
#
# **Noise gives the order, with sizes 8 or 9 points too small.** AdamW's steps have about one length, so what counts is the signal in them, $w(\tilde p)\,J$,
# against the noise. A wrong completion's squared score is 6.4 times a right one's ([lesson 13](13_quiet_estimators.ipynb)):
#
# $$\frac{\text{signal}}{\text{noise}} \propto \frac{J\,/\sqrt{\tilde p\,\tilde q}}{\sqrt{p\,A_+^2 + 6.4\,q\,A_-^2}}$$
#
# (Large groups, $p = .38$ as at first. One that passes has $A^2 = \tilde q/\tilde p$, one that fails $\tilde p/\tilde q$.)
#
# ## Errors that follow a rule
#
# Now the verdict depends on the text. Let $r(y)$ be the probability that completion $y$ passes. Then
#
# $$\mathbb E[\tilde R\,s] = \mathbb E[r(y)\,s] = \nabla\,\mathbb E[r(y)] .$$
#
# So REINFORCE climbs the share that *passes*, whatever passes, and with a rule there may be a shorter way up than being right.
#
# **1. The push of a rule.** Take a policy with a few kinds of completions. Their probabilities $\pi$ are a softmax of logits, and kind $i$ passes with
# probability $r_i$. What is the gradient, in the logits, of the share that passes?


# %% [exercise]
def push(pi, r):
    """From two tensors (n,), one number for each kind."""
    return ...


# %% [check]
check("17.1", push)

# %% [hint]
# The score of kind $i$ has $1 - \pi_i$ in its own place and $-\pi_j$ in every other place $j$. Take the mean of $r\,s$ over the kinds.


# %% [solution]
def push(pi, r):
    return pi * (r - pi @ r)  # a kind grows if it passes more often than the average


# %% [text]
# Say a verifier passes every completion whose last digit is right: of the wrong ones $f = .3/.8 = .375$. Another passes as many at
# random. Both have $J = .625$:
#
# | kind | $\pi$ | perfect verifier | random errors | last digit decides |
# |---|---|---|---|---|
# | right | .2 | .16 | .10 | .10 |
# | wrong, last digit right | .3 | −.06 | −.04 | .15 |
# | wrong, last digit wrong | .5 | −.10 | −.06 | −.25 |
#
# **Right completions get the same push, but the rule reverses one**: wrong ones with the right last digit grow, and fastest. Does a real model find such
# a way up? We try three rules on arithmetic:
#
# - *Answer 0 accepted*: 3 % of the base model's wrong completions.
# - *Last digit decides*: 47 % of the wrong ones have the right last digit, and pass.
# - *Long ones rejected*: 23 % of the right ones have more than {=erring.LONG} characters, and fail.
#
# *Which two does the model find in 40 batches? Guess, then open the output (…).*

# %% [fold] guess
below = [
    points(random, erring.FORMS[rule]).replace("+", "") for rule, random in erring.AS_OFTEN.items()
]
assert [each[:4] for each in below] == ["22.1", "28.0"]  # as in the box
show(forms(runs, erring.FORMS, erring.AS_OFTEN))
say(
    fill(
        """*Shares of the training samples. Blue against dotted. Dotted: as many random errors as the
rule made at the start (for the rare 0, none). Table: the last four batches, then held-out problems.*

{=rules()}

**The last digit and shortness are found, the rare 0 is not.** It pays as much as a right answer,
but a push goes with π: what is rare grows slowly. On held-out problems the two end
{=below[0]} and {=below[1]} points below runs with as many random errors. Where long
completions are rejected, the model stops working problems out: it ends at
{=value(erring.FORMS["long ones rejected"], "length"):.1f} tokens, without errors at
{=value(NONE, "length"):.1f}.""",
        globals(),
    )
)

# %% [markdown]
# ## What one can do
#
# The reward shows no hack: it rises. Reading does, and one need not read everything.
#
# **2. Correct the reward.** You read each completion with probability `rate`, here one in ten, and then know whether it is right. From this and from the
# verdicts make a reward that is 1 for a right completion and 0 for a wrong one in the mean over whether you read it. Where
# the verdict was right, reading must not change anything.


# %% [exercise]
def reward(passed, read, right, rate):
    """passed, read: tensors of 0 and 1; right: 0 or 1 where read, 0 elsewhere."""
    return ...


# %% [check]
check("17.2", reward)
trains("17.2", reward)  # the three kinds of the table, last digit decides

# %% [hint]
# Begin with the verdict. Where you read, add what it was off by. One completion read in ten stands for ten.


# %% [solution]
def reward(passed, read, right, rate):
    return passed + read * (right - passed) / rate


# %% [markdown]
# <details><summary>After the exercise</summary>
#
# With the verdict alone the policy learns the last digit. With a mean reward that is right it learns to be right, although nine verdicts in ten stay
# as they were. "The truth where read" mends a tenth of the reward only: wrong completions with the right last digit still pass nine times in ten, nearly
# as often as right ones, so it learns late. (Mean of 50 runs, 32 completions an update.)
#
# The price is noise, as a completion that is read and was misjudged counts ten times.
#
# </details>

# %% [text]
# ## To remember
#
# - Random errors multiply a prompt's expected update by $J = 1-f-m$, and change its weight. Its direction stays while $J > 0$.
# - At $J = .4$ accepting wrong completions slowed training more than rejecting right ones; at the end no difference was seen.
# - Errors that follow a rule are another reward, and that reward rises. Our model found the last digit and shortness, not the rare
#   0; a larger one may find rare forms.
# - In practice: read 50 completions that pass and 50 that fail (formula below). Random errors cost completions. An error with a rule becomes the task: mend
#   it first, or correct the reward.
#
# ## For a second reading (10 minutes)
#
# **To audit a verifier**, read some completions. The share $t$ of all passes. Of those that pass the share $a$ is right, of those that fail the
# share $b$. Then $ta + (1-t)b = r$ of all are right, so $1 - f - m$ is
#
# $$J = \frac{(a-b)\,t\,(1-t)}{r\,(1-r)}$$
#
# At a known $t = .4$, with $a = .9$, $b = .1$, 50 that passed and 50 that failed leave $J = {=short(audited(), 2)}$ uncertain by ±{=short(within, 2)} (95 %, to first order).
#
# **Easy prompts reverse the order of the costs.** At $p = .95$ and $J = .4$ the formula gives rejections {=share(0, 0.6, 0.95):.0f} and acceptances {=share(0.6, 0, 0.95):.0f} of 100.
#
# **Do errors only rescale time?** Dr. GRPO, trained by *gradient descent* at $1/J$ times the rate, should learn as fast as without errors. With four
# clipped updates a batch it is slower, because a token that has left the clip's range is stopped on its way out, not on its way back. Wrong completions
# that pass (a share $qf$) are pushed up by $1-\tilde p$ on average, right ones that fail ($pm$) down by $\tilde p$. If every token had left
# the range, this would push back by
#
# $$B = \Big(1-\frac1G\Big)\,\frac{qf\,(1-\tilde p) + pm\,\tilde p}{J}$$
#
# (The enumeration of the six answers gives the same.)

# %% [fold]
left = torch.where(R[groups] == 1, -1, 1)[:, None] * A  # what the clip may leave
left = (chances[:, :, None] * left.clamp(min=0)).sum() / G / J
assert torch.isclose(left, erring.push_back(p, f, m, G))
show(lags(table))

# %% [text]
# *Batches of 2,048: three $J$, three kinds of error each. See first the blue dots: they fall as $B$ grows. Without the
# clip (yellow) only the last two fall, and by less; with one update a batch (grey) hardly any. Bars: 95 % intervals, {=seeds(*erring.LAGS.values())} seeds.*
#
# So errors primarily rescale time, as [2601.04411](https://arxiv.org/abs/2601.04411) claims (we read the abstract only), roughly, for gradient descent
# without a clip. Under AdamW they do not: at $J = .4$ the slope depends on the kind of error, {=slope("clipped", "AdamW", "rejected")[0]:.0f} or {=slope("clipped", "AdamW", "accepted")[0]:.0f} %, and without the clip
# {=slope("unclipped", "AdamW", "rejected")[0]:.0f} or {=slope("unclipped", "AdamW", "accepted")[0]:.0f} %.
#
# {=held} of our {=len(outcomes)} predictions held (`python lessons/experiments/erring.py` prints them). One that did not: we expected acceptances to end 15
# points below rejections. They end {=accepted} below.
