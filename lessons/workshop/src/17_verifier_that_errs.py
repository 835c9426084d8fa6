# %% [markdown] 40 minutes
# # 17 · A verifier that errs
#
# No verifier is perfect: it accepts some wrong completions and rejects some right ones. Does a model learn from such verdicts, and what?
#
# > **Errors that come at random shorten a prompt's expected update and keep its direction. Errors that follow the text are another reward, and the
# > policy learns that one.**
#
# First the random ones. A wrong completion passes with probability $f$ (false acceptance), and a right one fails with probability $m$ (false rejection). We train the model of
# arithmetic by GRPO, 40 batches of 256 completions, with such verdicts drawn anew for each completion (ten seeds). What counts is the true accuracy, on held-out problems. Left: how much of it is
# left at $J = 1 - f - m$, which is 1 for a perfect verifier and 0 for a coin. Move the sliders.

# %% [fold]
from itertools import product

import numpy as np
import torch

from algorithms import dr_grpo, grpo
from lessons import identity
from lessons.experiments import erring, estimators
from lessons.experiments.grid import change, load_runs, markdown
from lessons.workshop.kit import check, knob, show
from lessons.workshop.parts.lesson_17 import accuracy_and_rates, forms, lags

runs = load_runs(erring.RESULTS)
NONE, table = erring.NO_ERRORS, erring.slopes(runs)
kept, unclipped = table["clipped", "AdamW"][0], table["unclipped", erring.CALM][0]  # (J, kind)
rank = np.corrcoef([each.argsort().argsort() for each in erring.made_by_clip(table)])[0, 1]
outcomes = [row.split(" | ")[1] for row in erring.verdicts(runs).splitlines()[2:]]
held = sum(outcome.startswith("held") for outcome in outcomes)


def value(settings, what="end"):
    return np.mean(erring.values(runs, settings, what))


def points(*pair, what="end"):
    """A difference in points (or hundredths) with its interval."""
    return change(erring.gap(runs, *pair, what)).strip("*")


def slopes_kept():
    names = "wrong ones accepted", "right ones rejected", "both alike"
    rows = [[name, *(f"{share:.0%}" for share in of_kind)] for name, of_kind in zip(names, kept.T)]
    return markdown(["initial slope that GRPO keeps", "$J = .8$", "$J = .6$", "$J = .4$"], rows)


def share(updates, batch, J=0.4, made="accepted"):
    arm = erring.JS.index(J), erring.COMPOSITIONS.index(made)
    ratio, low, high = (numbers[arm] for numbers in table[updates, batch])
    return f"{ratio:.2f} [{low:.2f}, {high:.2f}]"


lost = {key: 100 * (value(NONE) - value(settings)) for key, settings in erring.COMPOSED.items()}
first = {name: np.mean([run["windows"][name][0] for run in erring.select(runs, NONE)]) for name in ("right", "entropy")}
alike = [value(each, "slope") / value(NONE, "slope") for each in erring.SIGNAL.values()]


base = [run for run in estimators.published()
        if (run["task"], run["step"]) == ("arithmetic", 0)]
of_prompts = [prompt["moments"][0][0][:3] for run in base for prompt in run["of prompts"]]
v_right, v_wrong, squared = np.nanmedian(of_prompts, axis=0)


def rates(f, m, p=0.3, G=8):
    """The silent share of GRPO's groups, the root mean square of its update for one prompt,
    and the cosine with grad p of the mean of eight groups' updates, for the median prompt's
    scores."""
    seen, *moments = identity.with_errors(p, v_right, v_wrong, squared, f, m)
    progress = identity.weight("GRPO", seen, G) * (1 - f - m) * p * (1 - p) * squared**0.5
    square = identity.mean_square("GRPO", seen, G, *moments)
    cosine = progress / np.sqrt(progress**2 + (square - progress**2) / 8)
    return identity.silent_rate(seen, G), square**0.5, cosine


# %%
def draw(f, m):
    return accuracy_and_rates(runs, f, m, rates(f, m), rates(0, 0))


knob(draw, f=(0.0, 0.9, 0.1, 0.3), m=(0.0, 0.9, 0.1, 0.3))

# %% [text]
# *Each $J$ is reached in three ways: by false acceptances, by false rejections, by both alike. (Below .2 mostly by one kind, because one alone would pass or fail nearly everything.)
# Bands: 95 % intervals. Right: what the errors do to one prompt, by the formulas of [lesson 13](13_quiet_estimators.ipynb) and the median scores of the base model; the cosine is that of
# the mean of eight groups. Try f = .6, m = 0, then f = 0, m = .6.*
#
# **$J$ decides whether the model learns, its composition how fast.** At every $J > 0$ accuracy rises; below 0 it falls. Over the first 4,096 completions:
#
# {=slopes_kept()}
#
# Rejections alone cost little. A rejection withholds a push; an acceptance pushes a wrong completion up, and at first most are wrong. Most of the cost is noise. With $1/J^2$ times as many
# completions a batch, the arm with both kinds learns as fast as without errors, per update: {=alike[0]:.2f} ($J = .8$) and {=alike[1]:.2f} ($.6$) times the slope.
#
# **"Harmless" is a matter of when one looks.** After 10,240 completions all arms with $J \ge .4$ end within {=max(points for (J, _), points in lost.items() if J >= 0.4):.1f} points of no errors. At $J = .2$ rejections
# cost {=lost[0.2, "rejected"]:.1f} points, acceptances {=lost[0.2, "accepted"]:.1f}, both alike {=lost[0.2, "both"]:.1f}.
#
# | symbol | meaning |
# |---|---|
# | $R,\ \tilde R$ | whether a completion is right; the verdict, 1 if it passes |
# | $f,\ m,\ J$ | the two error rates; $1 - f - m$, Youden's index |
# | $p,\ \tilde p$ | the probability that a completion is right; that it passes, $f + Jp$ |
# | $q,\ \tilde q$ | $1-p$; $1-\tilde p$ |
# | $s,\ \sigma,\ G$ | the score $\nabla_\theta\log\pi_\theta(y)$; the standard deviation of a group's verdicts; its completions |
#
# ## Two lines
#
# Given the text, a verdict has the mean $\mathbb E[\tilde R \mid y] = f + J R$, and $\mathbb E\,s = 0$, so
#
# $$\mathbb E[\tilde R\,s] = J\,\mathbb E[R\,s] = J\,\nabla p .$$
#
# A group's advantages see verdicts only. So [lesson 7](07_group_size.ipynb) holds for them, with $\tilde p$ in place of $p$ and
# $\nabla\tilde p = J\,\nabla p$:
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
# That is one update. Over training it matters whether a completion that is drawn again meets the same error again: with verdicts fixed for each completion, accuracy ends
# {=points(erring.FIXED[0.6], erring.COMPOSED[0.6, "both"])} points from that with fresh ones at $J = .6$, and {=points(erring.FIXED[0.2], erring.COMPOSED[0.2, "both"])} at $.2$.
#
# ## Errors that follow the text
#
# Now the verifier errs by rule: it accepts the answer 0 (3 % of the base model's wrong completions), it looks at the last digit only (47 % of them
# pass), or it rejects what is longer than 16 characters (23 % of the right ones). *Which of them is found by the policy? Guess, then open the output (…).*

# %% guess
show(forms(runs, erring.FORMS, erring.AS_OFTEN))

# %% [text]
# *Dotted: with as many errors, made at random.*
#
# **The last digit is found.** {=value(erring.FORMS["last digit decides"], "passed"):.2f} of the completions pass at the end, and {=value(erring.FORMS["last digit decides"], "right"):.2f} are right:
# {=points(erring.FORMS["last digit decides"], erring.AS_OFTEN["last digit decides"])} points against random errors as often. **Shortness is found, too.** The model stops working problems out
# ({=value(erring.FORMS["long ones rejected"], "length"):.2f} tokens instead of {=value(NONE, "length"):.2f}): {=points(erring.FORMS["long ones rejected"], erring.AS_OFTEN["long ones rejected"])} points. **The rare 0 is not**, in 40 batches
# ({=points(erring.FORMS["answer 0 accepted"], NONE)} points against no errors). The reward shows none of this: it rises in all three. A form is learnt if the policy already writes it, and costs what it displaces.
#
# ## A coin as the verifier
#
# At $J = 0$ nothing can be learnt, and something is lost: over 40 batches the accuracy changes by {=points(erring.COMPOSED[0.0, "both"], None, what="drift")} points. The mean update
# is 0; its noise makes the policy wander away from what it knew.
#
# ## What five papers claim, and what we see
#
# We have read their abstracts only.
#
# | paper | claim | here |
# |---|---|---|
# | [2601.04411](https://arxiv.org/abs/2601.04411) | $J$ alone decides; for $J>0$ noise rescales time | The sign: yes, but a coin does harm. The time: by gradient descent without a clip nearly (see the end); by AdamW no, at one $J$ it differs by a factor of {=kept[2, 1] / kept[2, 0]:.1f} |
# | [2604.07666](https://arxiv.org/abs/2604.07666) | 15 % of both kinds cost under 2 points at the peak; prefer precision | 10 % and 20 %: {=points(erring.COMPOSED[0.8, "both"], NONE)}, {=points(erring.COMPOSED[0.6, "both"], NONE)} at the end. Precision is $f$ |
# | [2605.02909](https://arxiv.org/abs/2605.02909) | systematic rejections are like random ones; systematic acceptances lead to plateaus or collapse | Acceptances: yes, if found. Rejections of the form that solves the problem: no |
# | [2509.26114](https://arxiv.org/abs/2509.26114), [2512.16912](https://arxiv.org/abs/2512.16912) | under random rewards the clip lowers entropy | Not seen: with the clip it ends {=points(erring.RANDOM["symmetric"], erring.RANDOM["none"], what="entropy")} hundredths of a nat from no clip |
#
# Of our {=len(outcomes)} predictions, written before their runs, {=held} held (`python lessons/experiments/erring.py` prints
# them). We had expected the composition to show at the end, a coin to do no harm, and the clip to lower entropy.
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
    return (f + J * p) / p / J**2  # rejections alone: 1 / (1 - m)


# %% [markdown]
# **3. Correct the verdicts.** With known rates, $(\tilde R - f)/J$ has the mean $R$ given the text: an unbiased reward. By which factors does it
# change the advantages of GRPO and of Dr. GRPO, if it is put in place of $\tilde R$?


# %% [exercise]
def factors(f, m):
    """Of GRPO, and of Dr. GRPO."""
    return ...


# %% [check]
check("17.3", factors)

# %% [hint]
# What do the group's mean and σ do to a reward to which a constant is added, and which is multiplied?


# %% [solution]
def factors(f, m):
    return 1.0, 1 / (1 - f - m)  # AdamW takes Dr. GRPO's out again: nothing is gained


# %% [markdown]
# ## To remember
#
# - Random errors multiply the expected update by $J = 1-f-m$ and by the weight at the observed $\tilde p$: the direction stays while $J > 0$.
# - At one $J$, accepting wrong completions slows learning more than rejecting right ones, while few are right. Both together cost
#   most once $J$ is small.
# - A form that always passes is learnt if the policy already writes it. The reward does not tell: check accepted completions.
#
# ## For a second reading: four clipped updates push back
#
# By **gradient descent**, at $1/J$ times the rate, Dr. GRPO should learn as fast as without errors. With four updates a batch it does not. Given
# the text, an advantage has two parts, $\mathbb E[A \mid y] = A_+ - A_-$. Inside the clip's range a token feels both; below it only $A_+$, above it
# only $A_-$. Without errors that part is 0 for a token that moved as it should: the clip is a brake. With errors the clip pushes back: a wrong completion
# below .8 goes up, by $A_+ = (1-\frac1G) f\tilde q$, and a right one above 1.2 goes down, by $A_- = (1-\frac1G) m\tilde p$. Over all completions, at $1/J$ times the rate:
#
# $$B = \frac{q\,A_+ + p\,A_-}{J} = \Big(1-\frac1G\Big)\Big(q^2 f + p^2 m + \frac{f m}{J}\Big)$$
#
# Acceptances weigh $q^2$, rejections $p^2$, and both kinds together also $fm/J$. $B$ does not depend on the batch, so a larger one does not help. One
# update a batch, of four times the rate, has no ratio and no clip.

# %% [fold]
left = torch.where(R[groups] == 1, -1, 1)[:, None] * A  # what the clip may leave, see below
left = (chances[:, :, None] * left.clamp(min=0)).sum() / G / J
print("B as predicted:", bool(abs(left - erring.push_back(p, f, m, G)) < 1e-12))
show(lags(table))

# %% [text]
# *Initial slope over $B$. Left: batches of 2,048, which have little noise, by gradient descent; right: of 256, by AdamW. {=len(erring.select(runs, erring.LAGS["one", erring.CALM, 1.0, "both"]))} seeds (AdamW, clipped: ten). Orange: wrong ones accepted. Blue: right
# ones rejected. Grey: both.*
#
# At $J = .4$ acceptances keep {=share("clipped", erring.CALM)} of the slope with the clip, {=share("unclipped", erring.CALM)} without it, and {=share("one", erring.CALM)} with one update. Both kinds
# keep {=share("clipped", erring.CALM, made="both")}, {=share("unclipped", erring.CALM, made="both")} and {=share("one", erring.CALM, made="both")}. Over the nine arms, what the clip costs ranks as $B$ does
# (rank correlation {=rank:.2f}); without it they keep {=unclipped.min():.2f} to {=unclipped.max():.2f}. In batches of 256 the noise costs more: without the clip acceptances keep {=share("unclipped", 256)}.
# Under AdamW the clip is not the reason: {=share("clipped", "AdamW")} with it, {=share("unclipped", "AdamW")} without.
#
# **And the coin?** Without the clip it costs {=points(erring.COIN["unclipped"], None, what="drift")} points, for the clip leads back. Here is the mean update of GRPO's
# loss over all answers and verdicts, for a policy that has become flatter since it sampled, and for one that has become sharper:


# %%
def mean_update(moved):
    """The mean gradient of the objective over answers that `pi` sampled and advantages of 1
    and -1, in the logits (6,)."""
    logits = moved.log().requires_grad_()
    logps, old_logps = logits.log_softmax(dim=0).view(6, 1, 1), pi.log().view(6, 1, 1)
    config, mask = grpo.Config(kl_coef=0.0), torch.ones(1, 1).bool()
    loss = 0.0
    for answer, A in product(range(6), (-1.0, 1.0)):
        batch = {"logps": logps[answer], "old_logps": old_logps[answer], "mask": mask}
        batch["advantages"] = torch.full((1, 1), A).double()
        of_answer = grpo.policy_loss(**batch, ref_logps=None, config=config)
        loss = loss + pi[answer] / 2 * of_answer
    return -torch.autograd.grad(loss, logits)[0]


def entropy(policy):
    return -(policy * policy.log()).sum()


for power in (0.5, 1.0, 2.0):  # flatter than pi, pi, sharper
    moved = (pi.log() * power).softmax(dim=0)
    after = (moved.log() + mean_update(moved)).softmax(dim=0)
    print(f"entropy when sampled {entropy(pi):.3f}, now {entropy(moved):.3f}, "
          f"after the mean update {entropy(after):.3f}")

# %% [text]
# The clip stops pushes that lead further away and lets those pass that lead back: under random verdicts it is a force towards the policy that
# sampled, whichever of the two has the lower entropy. In the model, with 16 updates a batch, the share of right completions falls from {=first["right"]:.2f} to {=value(erring.RANDOM["symmetric"], "right"):.2f} with GRPO's clip and to
# {=value(erring.RANDOM["none"], "right"):.2f} with none; entropy rises from {=first["entropy"]:.2f} nats to {=value(erring.RANDOM["symmetric"], "entropy"):.2f} and {=value(erring.RANDOM["none"], "entropy"):.2f}.
