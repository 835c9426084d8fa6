# %% [markdown] 45 minutes, without the second reading
# # 14 · One gradient until the ratio moves
#
# A batch of completions is often used for several updates. From the second update on, the policy is no longer the one that sampled them. A token's
# probability now, over its probability when it was sampled, is its *ratio* $\rho$. Six algorithms differ in what they do about it. They are built
# from two parts: a *weight* on each token, and a *bound* that stops it.
#
# > **Until the policy has moved, the six have one gradient; afterwards they weight a token by a ratio, its own or its completion's, some with a
# > damper or a cap, and differ in where they stop it, if anywhere.**
# >
# > In our runs with short steps, the weight alone and the bound alone could not be told apart from both. With steps four times as long even the best
# > arm ended 22 points lower, those without a bound far more.
#
# We compare the six by formula, and train GRPO's clip (both parts), CISPO (the weight), the
# bound alone, and neither.

# %% [fold]
import random

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from algorithms import grpo
from lessons.experiments import staleness
from lessons.experiments.estimators import collect
from lessons.experiments.grid import change, load_runs, markdown
from lessons.experiments.staleness import CISPO, CLIP, OLD, UNWEIGHTED, gap, select
from lessons.workshop.float64 import to_float64
from lessons.workshop.kit import check, knob, show
from lessons.workshop.losses import LOSSES
from lessons.workshop.parts.lesson_14 import (
    distance_and_end,
    factor,
    factors,
    gradient_of,
    pushed,
)
from toy_env import arithmetic
from toy_env.model import load_policy
from toy_env.rollout import completion_logps


def draw(A, p):
    return factors(LOSSES, p, 1.0 if A == "above 0" else -1.0)


knob(draw, A=["above 0", "below 0"], p=[0.15, 0.05, 0.3, 0.6, 0.9])
at = {name: factor(loss, torch.tensor([1.3]).double(), 0.15, 1.0).item() + 0  # + 0: not -0
      for name, loss in LOSSES.items()}
arms = {"neither": (False, False), "weight": (True, False), "bound": (False, True), "both": (True, True)}
uses = {"$d = .1$, 4 updates": (4, 0.1), "$d = .1$, 32": (32, 0.1), "$d = .4$, 32": (32, 0.4)}
rows = [[name, *(f"{pushed(*use, *arm):.2f}" for use in uses.values())] for name, arm in arms.items()]
pushes = markdown(["ratio after", *uses], rows)

# %% [text]
# *Each method moves a token along the gradient of its log-probability, times its advantage $A$, times the factor drawn here. See first the black
# point: at ratio 1 all factors are 1. Then follow a curve to the right until it drops to 0: there the method stops the token.* (A completion of one
# token. GSPO's narrow bound is made for a mean over many, which moves less.)
#
# ## One token in numbers
#
# A token of a right completion ($A > 0$) had probability $p = .15$ when it was sampled. Now it has .195, so $\rho = 1.3$. ($\bar\rho$ is the geometric mean of a completion's ratios; $\mathrm{sg}$, stop-gradient, makes a constant.)
# Read GRPO's row and CISPO's first: the training below needs only these.
#
# | method | loss of a token | what it stops | factor at 1.3 |
# |---|---|---|---|
# | GRPO: group relative | $-\min\big(\rho A,\ \mathrm{clip}(\rho, .8, 1.2)\,A\big)$ | the token, at ratio 1.2 or .8 | {=at["GRPO"]:.3g} |
# | GSPO: group sequence | the same, with $\bar\rho$ for $\rho$ and a narrow clip | the completion, at $\bar\rho$ = .9997 or 1.0004 (published); here .991 or 1.012 | {=at["GSPO"]:.3g} |
# | GMPO: geometric-mean | $-\bar\rho A$, each ratio in $\bar\rho$ bounded | the token, at $e^{.4} = 1.49$ or $e^{-.4} = .67$ | {=at["GMPO"]:.3g} |
# | DPPO: divergence proximal | $-\rho A$ | the token, once its *probability* has changed by .2: here at ratio 2.33 | {=at["DPPO"]:.3g} |
# | SAPO: soft adaptive | $-\frac4\tau\,\mathrm{sigmoid}(\tau(\rho - 1))\,A$; $\tau = 1$, or 1.05 if $A < 0$ | nothing; above 2 the token fades out | {=at["SAPO"]:.3g} |
# | CISPO: clipped importance-sampling-weight | $-\mathrm{sg}[\min(\rho, 5)]\,A\,\log\pi$ (the cap of 5 is ours) | nothing | {=at["CISPO"]:.3g} |
#
# (PO: policy optimization.) The upper four stop a token only after it has moved the way it is pushed: above 1 if $A > 0$, below 1 if $A < 0$.
#
# ## Why there is one gradient
#
# With a token's log-probability $\ell_t = \log\pi(y_t)$, the ratio is $\rho_t = e^{\ell_t - \ell_t^{old}}$. So
# $\nabla\rho_t = \rho_t\,\nabla\ell_t$, which is $\nabla\ell_t$ at $\rho_t = 1$. The rest is three cases:
#
# 1. *The ratio within bounds* (GRPO, DPPO, CISPO). At 1 no bound binds: $\nabla(\rho_t A) = A\,\nabla\ell_t$. CISPO's
#    $\mathrm{sg}[\min(\rho_t, 5)]\,A\,\ell_t$ has this gradient directly.
# 2. *One ratio for a completion $y$* (GSPO, GMPO). $\nabla(\bar\rho A) = \bar\rho A\,\frac1{|y|}\sum_t\nabla\ell_t$, at $\bar\rho = 1$ the
#    mean of $A\,\nabla\ell_t$ over its tokens. Case 1 is the same, averaged over a completion.
# 3. *A smooth function of the ratio* (SAPO): yours.
#
# **1. SAPO at ratio 1.** SAPO's loss of a token is $-A\,g(\rho)$ with $g(\rho) = \frac4\tau\,\mathrm{sigmoid}(\tau(\rho - 1))$. Its gradient
# is a factor times $-A\,\nabla\ell$. Which factor, for any $\tau$?


# %% [exercise]
def sapo_factor(ratio, tau):
    """ratio: an array. The factor of A ∇ℓ at each ratio."""
    return ...


# %% [check]
check("14.1", sapo_factor)

# %% [hint]
# $\nabla g = g'(\rho)\,\nabla\rho$. The slope of the sigmoid $s$ is $s(1 - s)$.


# %% [solution]
def sapo_factor(ratio, tau):
    s = 1 / (1 + np.exp(-tau * (ratio - 1)))
    return 4 * s * (1 - s) * ratio


# %% [markdown]
# At ratio 1, $s = ½$, so the factor is $4 \cdot ½ \cdot ½ \cdot 1 = 1$ for every $\tau$: SAPO has the gradient of the others. ∎
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


def errors(vectors):
    """How far each gradient is from GRPO's, relative to the length of GRPO's."""
    first = vectors["GRPO"]
    return {name: ((vector - first).norm() / first.norm()).item()
            for name, vector in vectors.items() if name != "GRPO"}


fresh = gradients()
step = 0.3 * fresh["GRPO"] / fresh["GRPO"].norm()
largest = max(errors(fresh).values())
print("at ratio 1 the six gradients differ by less than 1e-12 of their length:", largest < 1e-12)
vector_to_parameters(parameters_to_vector(weights).detach() - step, weights)
apart = errors(gradients())
print(f"after a long step they differ from GRPO's by {min(apart.values()):.0%} to {max(apart.values()):.0%}")
assert largest < 1e-12 and min(apart.values()) > 0.02

# %% [markdown]
# ## Weight or bound?
#
# CISPO is the *weight* alone, GRPO's clip is *both*, and none of the six is the *bound* alone. The factors:
#
# | token | neither | weight | bound | both |
# |---|---|---|---|---|
# | $A > 0$, ratio 1.3 | 1 | 1.3 | 0 | 0 |
# | $A > 0$, ratio .7 | 1 | .7 | 1 | .7 |
# | $A < 0$, ratio .7 | 1 | .7 | 0 | 0 |
# | $A < 0$, ratio 1.3 | 1 | 1.3 | 1 | 1.3 |
#
# **2. Bound only: the clip without weights.** The loss of one completion, a mean over its tokens. A token that GRPO's clip stops has no gradient;
# every other token has the gradient that it would have at ratio 1.


# %% [exercise]
def unweighted_clip(logps, old_logps, A, eps):
    """From tensors (T,), (T,), a number and a number: a scalar loss."""
    return ...


# %% [check]
check("14.2", gradient_of(unweighted_clip))

# %% [hint]
# A token is kept where $\rho \le 1 + \varepsilon$ if A > 0, and where $\rho \ge 1 - \varepsilon$ if A < 0. `.detach()` makes a constant.


# %% [solution]
def unweighted_clip(logps, old_logps, A, eps):
    ratio = (logps - old_logps).exp().detach()
    kept = ratio <= 1 + eps if A > 0 else ratio >= 1 - eps
    return -(kept * A * logps).mean()


# %% [markdown]
# ## How far can one batch push a token?
#
# A token of a wrong completion ($A < 0$) is pushed down in each of $n$ updates, which lower $\log\rho$ by $d$ times the factor. With
# $d = .1$ and neither part, $\log\rho$ is $-.1$, $-.2$, and so on. The bound stops the token below .8.
#
# **3. The ratio after n updates,** with or without each part.


# %% [exercise]
def ratio_after(n, d, weight, bound):
    """weight, bound: True or False, whether the arm has it. The ratio after n updates."""
    return ...


# %% [check]
check("14.3", ratio_after)

# %% [hint]
# In a loop: look at the ratio, stop if it is below .8 and there is a bound, else make a step.


# %% [solution]
def ratio_after(n, d, weight, bound):
    log_ratio = 0.0
    for _ in range(n):
        ratio = np.exp(log_ratio)
        if bound and ratio < 0.8:
            break
        log_ratio -= d * (ratio if weight else 1)
    return np.exp(log_ratio)


# %% [text]
# By your function:
#
# {=pushes}
#
# The weight slows a falling token but never stops it (and for $A > 0$ it *grows* with the ratio). The bound looks at the ratio before each update, so a token
# passes .8 by one step.
#
# ## In training
#
# Four arms with GRPO's advantages, without KL. A batch of 256 completions is used in four epochs of 8 updates. Every optimizer
# step of a run moves the weights by one length, so arms differ in direction only, and a bound cannot shorten a step. Ten seeds.
#
# *At which of three lengths of step, .008, .016 or .032, does the weight alone begin to lag behind both? Guess, then open the output (…).*

# %% [fold] guess
runs = load_runs(staleness.RESULTS)
held = [outcome for outcome, _ in staleness.judge(runs).values()]  # before: 34d9c16, 4bd5f7f


def mean(what, **settings):
    return np.mean([run[what] for run in select(runs, **settings)])


def ahead(arm, other, at=-1, **settings):
    """By how many points an arm is above another, "1.2 [0.3, 2.1]"."""
    found = gap(runs, {"arm": arm, **settings}, {"arm": other, **settings}, at)
    return change(found).strip("*").replace("+", "")


def end(arm, **settings):
    """The mean accuracy of an arm at the end."""
    return f"{np.mean([run['accuracy'][-1] for run in select(runs, arm=arm, **settings)]):.2f}"


short, middle, long = ({"epochs": 4, "step_length": x} for x in staleness.STEP_LENGTHS)
for step in (short, middle, long):
    none, weight, *others = (mean("moved", arm=arm, **step) for arm in (OLD, CISPO, UNWEIGHTED, CLIP))
    assert none > weight > max(others)
for step in staleness.REUSE:
    assert end(UNWEIGHTED, **step) >= end(CLIP, **step)
for arm in (OLD, CISPO, UNWEIGHTED, CLIP):
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
at_one_rate = markdown(["rate", "CISPO below GRPO's clip, points"], rows)
moved = [mean("moved", arm=CLIP, **step) for step in staleness.REUSE]  # three rates, then lengths
assert all(0.8 < moved[i + 3] / moved[i] < 1 for i in range(3))
all_arms = OLD, CISPO, UNWEIGHTED, CLIP
best = {step["step_length"]: max(float(end(arm, **step)) for arm in all_arms)
        for step in (short, middle, long)}
assert round(100 * (best[0.008] - best[0.032])) == 22  # the box
for half, step in ((short, middle), (middle, long)):
    assert float(end(OLD, **half)) >= best[step["step_length"]] - 0.005

# %% [text]
# *See first the order on the left, at every length of step. (Points: means. Bands: 95 % intervals over seeds.)*
#
# - **Tokens move furthest with neither, and least with a bound**, as in your table (which we made after the runs).
# - **With short steps either part is enough.** At .008 the arm with neither ends {=ahead(CLIP, OLD, **short)} points below both. The other three cannot be told apart.
# - **Long steps need the bound.** At .016 the weight's lag is undecided; at .032 it ends {=ahead(CLIP, CISPO, **long)} points below both. But there no arm does well:
#   {=end(UNWEIGHTED, **long)} and {=end(CLIP, **long)} with a bound (the best has {=best[0.008]:.2f} at .008), {=end(CISPO, **long)} and {=end(OLD, **long)} without.
# - **Halving the steps did as much as the best correction.** With neither part, steps of .008 and .016 end at {=end(OLD, **short)} and {=end(OLD, **middle)}; the best arm at
#   twice the length ends at {=best[0.016]:.2f} and {=best[0.032]:.2f}. We tried none shorter.
# - **Late completions need a part, too.** Completions used once, but up to 31 updates late: the arm with neither ends {=ahead(CLIP, OLD, staleness=32)} points below both (five
#   seeds, learning rate 2e-4).
#
# One small model and one task of short completions.
#
# ## To remember
#
# - With one update per rollout batch all six methods are one, up to how they average over tokens ([lesson 5](05_length.ipynb)), if the sampler is the
#   trainer ([lesson 18](18_precision.ipynb)).
# - The weight slows a token that falls. The bound stops it, one step late.
# - In our runs, halving the steps did as much as the best correction. The bound was needed only at steps at which even the best arm ended 22 points lower.
#
# ## For a second reading (12 minutes)
#
# **All differences.** Accuracy at the end of the arm with both, and differences in points.
#
# {=differences}
#
# In the first row GSPO and clip-higher (DAPO's wider range upwards) end at {=end("GSPO", staleness=32)} and {=end("clip-higher", staleness=32)}: between four corrections no difference is seen.
#
# **At one learning rate CISPO trails.** But its ratios also move further: at 2e-4 $|\log\rho|$ is {=mean("moved", arm=CISPO, epochs=4):.3f} on average, against {=moved[1]:.3f}.
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
