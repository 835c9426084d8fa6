# %% [markdown] 40 minutes
# # 17 · A verifier that errs
#
# No verifier is perfect: it accepts some wrong completions and rejects some right ones. Does a model learn from such verdicts, and what?
#
# > **Errors that come at random shorten a prompt's expected update and keep its direction, as long as the verifier is better than a coin.
# > Errors that follow a rule act as a different reward: the policy learns that one, if it finds it.**
#
# First the random errors. A wrong completion passes with probability $f$ (false acceptance), a right one fails with probability $m$ (false
# rejection). The axis of the left picture is $J = 1 - f - m$: 1 for a perfect verifier, 0 for a coin. Move the sliders.

# %% [fold]
from itertools import product

import numpy as np
import torch

from algorithms import dr_grpo, grpo
from lessons import identity
from lessons.experiments import erring, estimators
from lessons.experiments.grid import change, load_runs, markdown
from lessons.workshop.kit import check, knob, show
from lessons.workshop.parts.lesson_17 import NAMES, accuracy_and_rates, forms, lags

runs = load_runs(erring.RESULTS)
NONE, table = erring.NO_ERRORS, erring.slopes(runs)
kept = table["clipped", "AdamW"][0]  # (J, kind)
rank = np.corrcoef([each.argsort().argsort() for each in erring.made_by_clip(table)])[0, 1]
outcomes = [row.split(" | ")[1] for row in erring.verdicts(runs).splitlines()[2:]]
held = sum(outcome.startswith("held") for outcome in outcomes)


def value(settings, what="end"):
    return np.mean(erring.values(runs, settings, what))


def points(*pair, what="end"):
    """A difference in points (or hundredths) with its interval."""
    return change(erring.gap(runs, *pair, what)).strip("*")


def seeds(*settings):
    """How many seeds these arms have."""
    counts = {len(erring.select(runs, each)) for each in settings}
    return " or ".join(map(str, sorted(counts)))


def slopes_and_ends():
    rows = []
    for made, shares in zip(erring.COMPOSITIONS, kept.T):
        ends = [points(erring.COMPOSED[J, made], NONE) for J in (0.4, 0.2)]
        rows.append([NAMES[made], f"{100 * shares[2]:.0f} %", *ends])
    columns = ["initial slope, $J = .4$", "end, $J = .4$", "end, $J = .2$"]
    return markdown(["errors", *columns], rows)


def rules():
    errs = ("3 % of the wrong", "47 % of the wrong", "23 % of the right")
    rows = []
    for (rule, settings), often in zip(erring.FORMS.items(), errs):
        shares = [f"{value(settings, what):.2f}" for what in ("passed", "right")]
        found = points(settings, erring.AS_OFTEN.get(rule, NONE))
        found += "" if rule in erring.AS_OFTEN else " (against no errors)"
        rows.append([rule, often, *shares, found])
    columns = ["errs at first on", "pass at the end", "are right"]
    return markdown(["rule", *columns, "points against as many random errors"], rows)


def share(updates, batch, made):
    arm = erring.JS.index(0.4), erring.COMPOSITIONS.index(made)
    ratio, low, high = (numbers[arm] for numbers in table[updates, batch])
    return f"{ratio:.2f} [{low:.2f}, {high:.2f}]"


alike = [value(each, "slope") / value(NONE, "slope") for each in erring.SIGNAL.values()]
by_clip, free = (table[updates, erring.CALM] for updates in ("clipped", "unclipped"))
assert by_clip[2][2, 2] < free[1][2, 2] and free[0].min() > 0.5  # the intervals lie apart
assert rank >= 0.7 and table["unclipped", "AdamW"][2][2, 2] < 1  # what the second reading says
coin = [erring.gap(runs, erring.RANDOM[clip], None, "drift") for clip in ("none", "symmetric")]
assert coin[0]["interval"][1] < coin[1]["interval"][0]

base = [run for run in estimators.published()
        if (run["task"], run["step"]) == ("arithmetic", 0)]
of_prompts = [prompt["moments"][0][0][:3] for run in base for prompt in run["of prompts"]]
v_right, v_wrong, squared = np.nanmedian(of_prompts, axis=0)


def rates(f, m, p=0.3, G=8):
    """GRPO's expected update for one prompt, along grad p; its noise; and the cosine with grad p
    of the mean of eight groups' updates; for the median prompt's scores."""
    seen, *moments = identity.with_errors(p, v_right, v_wrong, squared, f, m)
    expected = identity.weight("GRPO", seen, G) * (1 - f - m) * p * (1 - p) * squared**0.5
    noise = np.sqrt(identity.mean_square("GRPO", seen, G, *moments) - expected**2)
    return np.array([expected, noise, expected / np.hypot(expected, noise / 8**0.5)])


with_errors, without = rates(0.3, 0.3), rates(0, 0)


def draw(f, m):
    return accuracy_and_rates(runs, f, m, rates(f, m), without)


knob(draw, f=(0.0, 0.9, 0.1, 0.3), m=(0.0, 0.9, 0.1, 0.3))

# %% [text]
# *Left: the true accuracy on held-out problems that the model of arithmetic reaches by GRPO, in 40 batches of 256 completions. The same $J$ comes from
# wrong ones accepted, from right ones rejected, or from both alike. (Below $J = .2$ a little of the other kind is added: for $J \ge 0$ no rate exceeds .8.) Bands: 95 %
# intervals over {=seeds(NONE, *erring.COMPOSED.values())} seeds. Dashed: the chosen $J$. Dotted: before training.*
#
# *Right: what the errors do to the update for one prompt. Expected update and noise without errors are 1; the cosine is that of the mean of eight
# groups, noise included. (By the formulas of [lesson 13](13_quiet_estimators.ipynb) and the median scores of the base model.)*
#
# At $f = m = .3$ the expected update keeps {=100 * with_errors[0] / without[0]:.0f} % of its length, and its noise grows to
# {=100 * with_errors[1] / without[1]:.0f} %. So the update of eight groups points less surely along the gradient: its cosine is
# {=with_errors[2]:.2f} instead of {=without[2]:.2f}. Now try f = .6, m = 0, and then f = 0, m = .6: $J$ is the same .4. If wrong ones are
# accepted, the cosine is {=rates(0.6, 0)[2]:.2f}; if right ones are rejected, {=rates(0, 0.6)[2]:.2f}.
#
# | symbol | meaning |
# |---|---|
# | $R,\ \tilde R$ | whether a completion is right; the verdict, 1 if it passes |
# | $f,\ m,\ J$ | the two error rates; $1 - f - m$, Youden's index |
# | $p,\ \tilde p$ | the probability that a completion is right; that it passes, $f + Jp$ ($\tilde q = 1-\tilde p$) |
# | $s,\ \sigma,\ G$ | the score $\nabla_\theta\log\pi_\theta(y)$; the standard deviation of a group's verdicts; its completions |
#
# ## Why the direction stays
#
# A wrong completion passes with probability $f$, a right one with probability $1 - m = f + J$. So given the text, a verdict has the mean
# $\mathbb E[\tilde R \mid y] = f + J R$. The constant $f$ does nothing, because the expected score is 0:
#
# $$\mathbb E[\tilde R\,s] = J\,\mathbb E[R\,s] = J\,\nabla p .$$
#
# This is REINFORCE's update. The advantages of a group see verdicts only. So [lesson 3](03_group_baseline.ipynb)'s formula holds for them
# with the *observed* $\tilde p$ in place of $p$, and with $\nabla\tilde p = J\,\nabla p$:
#
# $$\mathbb E[g] = w(\tilde p)\,J\,\nabla p$$
#
# For Dr. GRPO $w$ is $(G-1)/G$. For GRPO it is $\mathbb E[\sigma] / (\tilde p\,\tilde q)$, so errors also change how prompts are weighed.
# This is checked on a policy with six answers, over all groups of three and their verdicts, through the scripts' advantages:

# %% [fold]
pi = torch.tensor([0.5, -0.3, 0.1, 0.9, -1.2, 0.0], dtype=torch.float64).softmax(dim=0)
R = torch.tensor([1.0, 1, 0, 0, 0, 0], dtype=torch.float64)
S = torch.eye(6, dtype=torch.float64) - pi  # scores in rows
f, m, G = 0.3, 0.1, 3
p, J = pi @ R, 1 - f - m
passes = f + J * R  # (6,) the probability that an answer passes
groups = torch.tensor([*product(range(6), repeat=G)])
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
silent = (chances * (verdicts == verdicts[:, :1]).all(dim=1)).sum()
predicted = identity.silent_rate(float(f + J * p), G)
print("silent share as predicted:", bool(abs(silent - predicted) < 1e-12))

# %% [text]
# ## How much is left
#
# **$J$ decides whether the model learns; the kind of errors decides how fast.** At every $J > 0$ accuracy rises; below 0 it falls.
#
# {=slopes_and_ends()}
#
# *Slope: over the first 4,096 completions, as a share of that without errors. End: accuracy after 10,240 completions, in points against no
# errors, with 95 % intervals.*
#
# Under REINFORCE a rejection only withholds a push; under a group's mean it also pushes a right completion down, but at first few are right. An
# acceptance pushes a wrong completion up, and at first most are wrong. (Exercise 2 puts numbers to this.)
#
# **Errors look harmless to those who look late.** At $J = .4$ two of the three kinds cost more than half of the slope. Yet at the end all
# are within three points, because all have come near the same ceiling.
#
# Most of the cost is noise. With $1/J^2$ times as many completions in each batch, the slope per update is that without errors:
# {=alike[0]:.2f} of it at $J = .8$, {=alike[1]:.2f} at $.6$ (errors of both kinds).
#
# ## Errors that follow a rule
#
# So far every verdict erred anew. Now the errors are drawn once for each text: the same completion always meets the same verdict. At
# $J = .2$ this alone changes the accuracy at the end by {=points(erring.FIXED[0.2], erring.COMPOSED[0.2, "both"])} points.
#
# Next, the verifier errs by a rule. It accepts the answer 0; or it looks at the last digit only; or it rejects what is longer than 16
# characters. *Which of these rules does the policy find? Guess, then open the output (click the … under the cell).*

# %% guess
show(forms(runs, erring.FORMS, erring.AS_OFTEN))

# %% [text]
# *Solid: right. Dashed: pass. Dotted: right, with as many errors made at random.*
#
# {=rules()}
#
# **The last digit and shortness are found, the rare 0 is not** (in 40 batches). Where long completions are rejected, the model stops
# working problems out: it ends at {=value(erring.FORMS["long ones rejected"], "length"):.1f} tokens, without errors at {=value(NONE, "length"):.1f}. The reward shows
# none of this: it rises in all three (dashed). The two rules that were learnt favour what the policy already wrote often. (These are three rules, no law.)
#
# ## A coin as the verifier
#
# At $J = 0$ nothing can be learnt, and something is lost. Over 40 batches the accuracy on the training samples changes by
# {=points(erring.COMPOSED[0.0, "both"], None, what="drift")} points (first window to last; errors of both kinds). The mean update is 0, but its
# noise makes the policy wander away from what it knew.
#
# **What this cannot say.** One task, 152,192 parameters. A large model may find a rare form sooner.
#
# ## Exercises
#
# **1. Which groups are silent?** How large is the share of silent groups, if the verifier errs?


# %% [exercise]
def silent_share(p, f, m, G):
    return ...


# %% [check]
check("17.1", silent_share)

# %% [hint]
# A group is silent if all of its completions pass, or none. What is the probability that one passes?


# %% [solution]
def silent_share(p, f, m, G):
    passes = f + (1 - f - m) * p
    return passes**G + (1 - passes) ** G


# %% [markdown]
# **2. What an error costs.** Take REINFORCE, $\tilde R\,s$, with all scores equally long, and $p$ small enough that the noise is the mean square.
# How many times as many completions does it take for the signal-to-noise ratio that a perfect verifier has?


# %% [exercise]
def completions_needed(p, f, m):
    return ...


# %% [check]
check("17.2", completions_needed)

# %% [hint]
# n completions have the ratio n · signal² / noise. The signal is multiplied by J. The noise is the mean of R̃².


# %% [solution]
def completions_needed(p, f, m):
    J = 1 - f - m
    return (f + J * p) / p / J**2


# %% [text]
# At $J = .4$ and the base model's $p = {=erring.BASE:.2f}$ your formula gives 2.5 times as many for rejections, and {=(0.6 + 0.4 * erring.BASE) / erring.BASE / 0.16:.0f} times as many for acceptances.
# The slopes above have the same order: {=100 * kept[2, 1]:.0f} % are kept with rejections, {=100 * kept[2, 0]:.0f} % with acceptances. They differ less; the runs subtract the group's mean, and $p$ grows
# while the slope is measured.
#
# **3. Audit a verifier.** You cannot see $f$ and $m$, but you can read some completions. The share $t$ of all completions passes. Of those
# that pass, the share $a$ is right; of those that fail, the share $r$ is right. What is $J$?


# %% [exercise]
def youden(t, a, r):
    return ...


# %% [check]
check("17.3", youden)

# %% [hint]
# Write down four shares: right and passed, right and failed, wrong and passed, wrong and failed. $f$ is a share of the wrong ones.


# %% [solution]
def youden(t, a, r):
    right, wrong = t * a + (1 - t) * r, t * (1 - a) + (1 - t) * (1 - r)
    return 1 - t * (1 - a) / wrong - (1 - t) * r / right


# %% [text]
# ## To remember
#
# - Random errors multiply the expected update by $J = 1-f-m$ and by the weight at the observed $\tilde p$: the direction stays while $J > 0$.
# - At one $J$, accepting wrong completions slows learning more than rejecting right ones, while few are right. Both together cost
#   most once $J$ is small.
# - Errors that follow a rule are another reward. The curve of the reward does not show it: read completions, passed and failed.
#
# ## For a second reading (16 minutes)
#
# **Two published claims.** We have read the abstracts only, and the tasks differ from ours: this is one setting beside theirs, and no test.
#
# - [2601.04411](https://arxiv.org/abs/2601.04411): $J$ alone determines the drift, a coin is neutral, and for $J > 0$ errors primarily rescale time.
#   In our runs, too, $J$ decides the direction. A coin is neutral in the mean, but its noise does harm. Time is roughly rescaled by gradient
#   descent without a clip (below), and by AdamW not.
# - [2605.02909](https://arxiv.org/abs/2605.02909): systematic rejections act like random ones, systematic acceptances may lead to collapse; the pattern
#   decides, not the rate. The last is so here, too. But our systematic rejection costs far more than as many random ones.
#
# **Predictions.** Of our {=len(outcomes)}, written before their runs, {=held} held (`python lessons/experiments/erring.py` prints them).
#
# **The clip pulls back.** Train Dr. GRPO by *gradient descent*, at $1/J$ times the rate. By the theorem it should learn as fast as without
# errors. With four clipped updates a batch it does not. Why?
#
# Given the text, the mean advantage is a positive part minus a negative one, $A_+ - A_-$. Inside the clip's range a token feels both. Below
# the range the clip leaves only $A_+$, above it only $A_-$. Without errors that part is 0 for a token that has moved as it should: the clip is
# a brake. With errors that part pushes the token back:
#
# - a wrong completion below .8 goes up, by its acceptances: $A_+ = (1-\frac1G) f\tilde q$;
# - a right one above 1.2 goes down, by its rejections: $A_- = (1-\frac1G) m\tilde p$.
#
# Over all completions, at $1/J$ times the rate and with $q = 1-p$, this makes
#
# $$B = \frac{q\,A_+ + p\,A_-}{J} = \Big(1-\frac1G\Big)\Big(q^2 f + p^2 m + \frac{f m}{J}\Big)$$
#
# If the clip is the reason, an arm loses more of its slope the larger $B$ is, and nothing without a clip.

# %% [fold]
left = torch.where(R[groups] == 1, -1, 1)[:, None] * A  # what the clip may leave
left = (chances[:, :, None] * left.clamp(min=0)).sum() / G / J
print("B as predicted:", bool(abs(left - erring.push_back(p, f, m, G)) < 1e-12))
show(lags(table))

# %% [text]
# *Left: gradient descent, batches of 2,048, which have little noise. Right: AdamW, batches of 256. Orange: wrong ones accepted. Blue: right
# ones rejected. Grey: both alike. Bars: 95 % intervals over {=seeds(*erring.LAGS.values())} seeds.*
#
# **By gradient descent it is mostly the clip.** At $J = .4$ and errors of both kinds, where $B$ is largest, the slope is
# {=share("clipped", erring.CALM, "both").split(" [")[0]} with the clip and {=share("unclipped", erring.CALM, "both").split(" [")[0]} without it. Over the nine arms the clip costs more
# where $B$ is larger (rank correlation {=rank:.2f}). **By AdamW it is not:** the same arm keeps {=share("clipped", "AdamW", "both").split(" [")[0]} with the clip and
# {=share("unclipped", "AdamW", "both").split(" [")[0]} without.
#
# **The same force protects from a coin**, because it leads back to the policy that sampled. Random verdicts of both kinds change the accuracy by
# {=points(erring.COIN["clipped"], None, what="drift")} points with the clip and by {=points(erring.COIN["unclipped"], None, what="drift")} without.


# %% [markdown]
# **4. Correct the verdicts.** With known rates, $(\tilde R - f)/J$ has the mean $R$ given the text: an unbiased reward. By which factors does it
# change the advantages of GRPO and of Dr. GRPO, if it is put in place of $\tilde R$?


# %% [exercise]
def factors(f, m):
    """Of GRPO, and of Dr. GRPO."""
    return ...


# %% [check]
check("17.4", factors)

# %% [hint]
# What do the group's mean and σ do to a reward to which a constant is added, and which is multiplied?


# %% [solution]
def factors(f, m):
    return 1.0, 1 / (1 - f - m)  # AdamW cancels Dr. GRPO's factor: nothing is gained
