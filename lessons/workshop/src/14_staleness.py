# %% [markdown] 36 minutes, without the second reading
# # 14 · One gradient until the ratio moves
#
# A batch of completions is often used for several updates. From the second on, the policy is no longer the one that sampled them. A token's
# probability now, over its probability when it was sampled, is its *ratio* $\rho$.
#
# > **Against a policy that has moved, algorithms weight a token by its ratio, stop it at a bound, or both. Until the policy moves, this changes
# > nothing: six published methods have one gradient.**
# >
# > In our runs, all steps scaled to one length, weight or bound alone could not be told apart from both if steps were short. With steps four times
# > as long even the best arm ended 22 points lower.
#
# ## One token, four arms
#
# With a token's log-probability $\ell$, the ratio is $\rho = e^{\ell - \ell^{old}}$, so $\nabla\rho = \rho\,\nabla\ell$. GRPO's loss
# $-\min\big(\rho A,\ \mathrm{clip}(\rho, .8, 1.2)\,A\big)$ pushes a token along $A\,\nabla\ell$ times $\rho$ (the weight), until it has moved
# out of the clip's range the way it is pushed (the bound). The factor, with each part or without it:
#
# | token | neither | weight | bound | both |
# |---|---|---|---|---|
# | $A > 0$, ratio 1.3 | 1 | 1.3 | 0 | 0 |
# | $A > 0$, ratio .7 | 1 | .7 | 1 | .7 |
# | $A < 0$, ratio .7 | 1 | .7 | 0 | 0 |
# | $A < 0$, ratio 1.3 | 1 | 1.3 | 1 | 1.3 |
#
# **So the weight grows with the token's probability: as it is pushed up, it speeds up; pushed down, it slows.** The bound stops both, one step late: it looks at the ratio before a step.
#
# *Both* is GRPO's clip, *weight* is CISPO. Nobody's method is *bound*, so you write it.
#
# **1. The bound alone.** The loss of one completion, a mean over its tokens. A token that GRPO's clip stops has no gradient;
# every other token has the gradient that it would have at ratio 1. Below the check it trains a toy. There a larger weight makes a longer step; in the
# training after it all steps have one length.

# %% [fold]
import random

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector

from algorithms import grpo
from lessons.experiments import staleness
from lessons.experiments.estimators import collect
from lessons.experiments.float64 import to_float64
from lessons.experiments.harness.grid import change, load_runs, markdown
from lessons.experiments.losses import LOSSES
from lessons.experiments.staleness import CISPO, CLIP, OLD, UNWEIGHTED, gap, select
from lessons.workshop.companions.lesson_14 import (
    distance_and_end,
    factor,
    gradient_of,
    passing,
)
from lessons.workshop.notebook import check, show, trains
from toy_env import arithmetic
from toy_env.model import load_policy
from toy_env.rollout import completion_logps


# %% [exercise]
def unweighted_clip(logps, old_logps, A, eps):
    """From tensors (T,), (T,), a number and a number: a scalar loss."""
    return ...


# %% [check]
check("14.1", gradient_of(unweighted_clip))
trains("14.1", gradient_of(unweighted_clip))

# %% [markdown]
# *A toy: of ten answers one passes nine times in ten, the others every second time. A batch of 16 is used for 16 updates, with $A = ½$ or $-½$; means
# of 32 runs. See first which curves stop rising. ("Bound" and "both" coincide: only the check tells them apart.)*

# %% [hint]
# A token is kept where $\rho \le 1 + \varepsilon$ if A > 0, and where $\rho \ge 1 - \varepsilon$ if A < 0. `.detach()` makes a constant.


# %% [solution]
def unweighted_clip(logps, old_logps, A, eps):
    ratio = (logps - old_logps).exp().detach()
    kept = ratio <= 1 + eps if A > 0 else ratio >= 1 - eps
    return -(kept * A * logps).mean()


# %% [markdown]
# Without a bound the toy's policies are fast, then stuck: they have settled on an answer that was lucky in one batch. With it they are slow and
# arrive. The weight alone is worst: it pushes rising tokens ever harder, and here a step grows with it.


# %% [text]
# ## In training
#
# Now the same in one small language model, on one task of short completions: four arms, ten seeds, each batch of 256 completions used in four epochs of
# 8 updates. Every optimizer step of a run has one length: arms differ in direction only. **So a weight cannot lengthen a step
# here, as it does in the toy,** nor a bound shorten it.
#
# *At which of three lengths of step, .008, .016 or .032, does the weight alone begin to lag behind both? Guess, then open the output (…).*

# %% [fold] guess
runs = load_runs(staleness.RESULTS)
outcomes = staleness.PREDICTIONS.split("\n- ")[1:]  # before: 34d9c16, 4bd5f7f
held = [outcome.startswith("held") for outcome in outcomes]


def mean(what, **settings):
    return np.mean([run[what] for run in select(runs, **settings)])


def ahead(arm, other, **settings):
    """By how many points an arm is above another, "1.2 [0.3, 2.1]"."""
    found = gap(runs, {"arm": arm, **settings}, {"arm": other, **settings})
    return change(found).strip("*").replace("+", "")


def end(arm, **settings):
    """The mean accuracy of an arm at the end."""
    return f"{np.mean([run['accuracy'][-1] for run in select(runs, arm=arm, **settings)]):.2f}"


all_arms = OLD, CISPO, UNWEIGHTED, CLIP
short, middle, long = ({"epochs": 4, "step_length": x} for x in staleness.STEP_LENGTHS)
for step in (short, middle, long):
    none, weight, *others = (mean("moved", arm=arm, **step) for arm in all_arms)
    assert none > weight > max(others)
for step in staleness.REUSE:
    assert end(UNWEIGHTED, **step) >= end(CLIP, **step)
for arm in all_arms:
    assert float(end(arm, **short)) - float(end(arm, **long)) > 0.2
    assert (float(end(arm, **long)) < 0.3) == (arm in (OLD, CISPO))
show(distance_and_end(runs))
table = {"once, in 32 updates (so up to 31 late), rate 2e-4": {"staleness": 32}}
table |= {f"four times, steps of {step['step_length']}".replace("0.", "."): step
          for step in (short, middle, long)}
rows = []
for name, step in table.items():
    bound = ahead(UNWEIGHTED, CLIP, **step) if "epochs" in step else ""
    rows.append([name, end(CLIP, **step), ahead(CLIP, OLD, **step), ahead(CLIP, CISPO, **step), bound])
differences = markdown(["used", "both", "both − neither", "both − weight", "bound − both"], rows)
of_repeats, of_seeds = staleness.sds(runs)
rows = [[rate, ahead(CLIP, CISPO, epochs=4, rate=float(rate))] for rate in ("1e-4", "2e-4", "4e-4")]
at_one_rate = markdown(["rate, four epochs", "CISPO below GRPO's clip, points"], rows)
moved = [mean("moved", arm=CLIP, **step) for step in staleness.REUSE]  # three rates, then lengths
assert all(0.8 < moved[i + 3] / moved[i] < 1 for i in range(3))
best = {step["step_length"]: max(float(end(arm, **step)) for arm in all_arms)
        for step in (short, middle, long)}
falling = gradient_of(lambda now, old, A, eps: -(A * ((now - old).exp() if A < 0 else now)).mean())
braked = passing(falling)[-1]
assert braked > 0.85
assert round(100 * (best[0.008] - best[0.032])) == 22  # the box
for half, step in ((short, middle), (middle, long)):
    assert float(end(OLD, **half)) >= best[step["step_length"]] - 0.005

# %% [text]
# *See first the order on the left, at every length of step. (Points: means. Bands: 95 % intervals over seeds.)*
#
# - **Tokens move furthest with neither, and least with a bound.**
# - **With short steps either part is enough.** At .008 the arm with neither ends {=ahead(CLIP, OLD, **short)} points below both. The other three cannot be told apart.
# - **Long steps need the bound.** At .016 the weight's lag is undecided; at .032 it ends {=ahead(CLIP, CISPO, **long)} points below both. But there the best arm has
#   {=end(UNWEIGHTED, **long)}; at .008 the best has {=best[0.008]:.2f}.
# - **Halving the steps did as much as the best correction.** With neither part, steps of .008 and .016 end at {=end(OLD, **short)} and {=end(OLD, **middle)}; the best arm at
#   twice the length, at {=best[0.016]:.2f} and {=best[0.032]:.2f}.
#
# **Why the weight is worst only in the toy.** In training steps cannot grow. In the toy, too, if only tokens that are pushed down get the
# weight, it ends at {=braked:.2f}, far above *neither*.
#
# ## Six methods in one table
#
# Two arms are published; four more methods have other weights and bounds. Let a token's probability have risen from .15 to .195, so
# $\rho = 1.3$, and let $A > 0$: which methods still push it?

# %% [fold]
at = {name: factor(loss, torch.tensor([1.3]).double(), 0.15, 1.0).item() + 0  # + 0: not -0
      for name, loss in LOSSES.items()}

# %% [text]
# ($\bar\rho$ is the geometric mean of a completion's ratios, here of one token; $\mathrm{sg}$, stop-gradient, makes a constant; PO: policy optimization.)
#
# | method | loss of a token | what it stops | factor of $A\,\nabla\ell$ |
# |---|---|---|---|
# | GRPO: group relative | $-\min\big(\rho A,\ \mathrm{clip}(\rho, .8, 1.2)\,A\big)$ | the token, at ratio 1.2 or .8 | {=at["GRPO"]:.3g} |
# | GSPO: group sequence | the same, with $\bar\rho$ for $\rho$ and a narrow clip | the completion, at $\bar\rho$ = .9997 or 1.0004; ours: .991 or 1.012 | {=at["GSPO"]:.3g} |
# | GMPO: geometric-mean | $-\bar\rho A$, each ratio in $\bar\rho$ bounded | the token, at $e^{.4} = 1.49$ or $e^{-.4} = .67$ | {=at["GMPO"]:.3g} |
# | DPPO: divergence proximal | $-\rho A$ | the token, once its *probability* has changed by .2: here at ratio 2.33 | {=at["DPPO"]:.3g} |
# | SAPO: soft adaptive | $-\frac4\tau\,\mathrm{sigmoid}(\tau(\rho - 1))\,A$; $\tau = 1$, or 1.05 if $A < 0$ | nothing; its factor is largest, 1.57, at ratio 2.06 and fades to both sides | {=at["SAPO"]:.3g} |
# | CISPO: clipped importance-sampling-weight | $-\mathrm{sg}[\min(\rho, 5)]\,A\,\log\pi$ (the cap of 5 is ours) | nothing | {=at["CISPO"]:.3g} |
#
# **Why there is one gradient.** At ratio 1 no bound binds (GRPO, DPPO), and $\nabla(\rho A) = A\,\nabla\ell$; CISPO's loss has this gradient
# directly. One ratio for a completion of $|y|$ tokens (GSPO, GMPO) gives $\nabla(\bar\rho A) = \bar\rho A\,\frac1{|y|}\sum_t\nabla\ell_t$: at
# $\bar\rho = 1$ the same, averaged. For SAPO, the sigmoid's slope at 0 is ¼, so $\frac4\tau \cdot \tau \cdot ¼ = 1$ for every $\tau$. ∎
#
# On the real model, with one way of averaging:

# %% [fold]
policy, tokenizer = load_policy("base")
policy = to_float64(policy)
weights = list(policy.parameters())
rng, generator = random.Random(1), torch.Generator().manual_seed(1)
rollout, R = collect(policy, tokenizer, arithmetic, 4, 8, rng, generator)
A = grpo.compute_advantages(rewards=torch.from_numpy(R)).view(-1, 1)
old_logps = completion_logps(policy, rollout, 1.0).detach()


def gradients():
    """The gradient of each loss with respect to all parameters, one vector each."""
    vectors = {}
    for name, loss in LOSSES.items():
        logps = completion_logps(policy, rollout, 1.0)
        value = loss(logps=logps, old_logps=old_logps, advantages=A, mask=rollout.mask)
        vectors[name] = parameters_to_vector(torch.autograd.grad(value, weights))
    return vectors


fresh = gradients()
first = fresh["GRPO"]
largest = max((vector - first).norm() / first.norm() for vector in fresh.values())
assert largest < 1e-12
print("at ratio 1 the six gradients differ by less than 1e-12 of their length")

# %% [text]
# ## To remember
#
# - With one update per batch all six methods are one, up to how they average over tokens ([lesson 5](05_length.ipynb)), if sampler and trainer
#   agree ([lesson 18](18_precision.ipynb)).
# - The weight speeds up a token that is pushed up and slows one that is pushed down. The bound stops both, one step late.
# - In our runs, with steps of one length, halving the steps did as much as the best correction. The bound was needed only where every arm lost
#   more than 20 points.
#
# ## For a second reading (12 minutes)
#
# **All differences.** Accuracy at the end of the arm with both, and differences in points.
#
# {=differences}
#
# In the first row GSPO and clip-higher (DAPO's wider range upwards) end at {=end("GSPO", staleness=32)} and {=end("clip-higher", staleness=32)}: between four corrections no difference is seen.
#
# **At one learning rate CISPO trails** if a batch is used in four epochs, without scaled steps (used once, it does not: first row). But its
# ratios also move further: at 2e-4 $|\log\rho|$ is {=mean("moved", arm=CISPO, epochs=4):.3f} on average, against {=moved[1]:.3f}.
#
# {=at_one_rate}
#
# **A single run cannot be repeated on another machine.** Ten repeats of one run, each with the base model's weights changed by about
# one rounding of float32, end with a standard deviation of {=100 * of_repeats:.1f} points; over ten seeds it is {=100 * of_seeds:.1f}.
#
# **Predictions.** {=sum(held)} of {=len(held)} held, by the means alone; they were written knowing an earlier version of these runs, in which 4 of 9 had failed.
#
# Sources: GSPO, [2507.18071](https://arxiv.org/abs/2507.18071) Eq. 5, 7; CISPO, [2506.13585](https://arxiv.org/abs/2506.13585) Eq. 4, 5; SAPO,
# [2511.20347](https://arxiv.org/abs/2511.20347); GMPO, [2507.20673](https://arxiv.org/abs/2507.20673); DPPO,
# [2602.04879](https://arxiv.org/abs/2602.04879) and [code](https://github.com/sail-sg/Stable-RL).
