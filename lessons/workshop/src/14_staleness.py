# %% [markdown] 33 minutes
# # 14 · One gradient until the ratio moves
#
# A batch of completions is often used for several updates. At the first one the policy is still the one that sampled them. Then it moves: a token
# becomes more or less probable than it was when it was sampled. Its probability now over its probability then is the token's *ratio* $\rho$.
# GRPO, GSPO, CISPO, SAPO, GMPO and DPPO look like six algorithms. All six are answers to such ratios.
#
# > **At ratio 1 the six have one gradient, up to averaging over tokens; once the policy has moved, all six weight tokens by a ratio, and they
# > differ in whether, and where, a token that has moved is stopped or faded out.**
# >
# > In our runs: with short steps the weight or the bound was enough. With steps so long that every arm ended more than 20 points below its own end with short ones, only arms with
# > a bound stayed above .5.
#
# So before you choose among six names, choose how far one batch may move the policy: shorten the steps first.

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
from lessons.workshop.kit import check, knob, say, show
from lessons.workshop.losses import LOSSES
from lessons.workshop.parts.lesson_14 import (
    factors,
    gradient_of,
    one_group,
    weight_or_bound,
)
from toy_env import arithmetic
from toy_env.model import load_policy
from toy_env.rollout import completion_logps


def draw(A, p):
    return factors(LOSSES, p, 1.0 if A == "above 0" else -1.0)


knob(draw, A=["above 0", "below 0"], p=[0.15, 0.05, 0.3, 0.6, 0.9])

# %% [markdown]
# *Each method moves a token along the gradient of its log-probability, times its advantage $A$, times the factor drawn here. (Completions of one
# token; $p$ is its probability when it was sampled.) See first the black point: at ratio 1 all six factors are 1. On the left the curves lie on
# one another until one drops to 0: see where.*
#
# | method | weight | bound |
# |---|---|---|
# | **GRPO**, group relative policy optimization | $\rho$ | stops the token at ratio 1.2 or .8 |
# | **GSPO**, group sequence policy optimization | $\bar\rho$, the geometric mean of the ratios of a completion | stops the completion when $\bar\rho$ is about 1 % from 1 |
# | **GMPO**, geometric-mean policy optimization | $\bar\rho$ of the bounded ratios | stops the token at about 1.5 or 2/3 |
# | **DPPO**, divergence proximal policy optimization | $\rho$ | stops the token once its *probability* has changed by .2 |
# | **SAPO**, soft adaptive policy optimization | $\rho$ | none; beyond a ratio of about 2 the factor falls: the token fades out |
# | **CISPO**, clipped importance-sampling-weight policy optimization | $\rho$, at most 5 | none |
#
# GRPO, GSPO, GMPO and DPPO stop a token only on the side to which its own push moves it: above 1 where $A > 0$, below 1 where $A < 0$.
#
# ## Why there is one gradient
#
# | symbol | meaning |
# |---|---|
# | $\rho_t,\ \ell_t$ | token $t$'s ratio $\pi(y_t)/\pi_{old}(y_t)$, of the policy now and the one that sampled; its $\log\pi(y_t)$ |
# | $\mathrm{sg}[\cdot]$ | stop-gradient: treated as a constant when differentiating |
#
# The proof uses only $\nabla\rho_t = \rho_t\,\nabla\ell_t$ and $\rho_t = 1$:
#
# 1. *The ratio within bounds.* GRPO's bounds do not bind at 1 and DPPO drops nothing there, so
#    $\nabla(\rho_t A) = \rho_t A\,\nabla\ell_t = A\,\nabla\ell_t$. CISPO's $\mathrm{sg}[\min(\rho_t, 5)]\,A\,\ell_t$ has this gradient
#    directly.
# 2. *A smooth function of the ratio.* SAPO's gate $\frac4\tau\,\mathrm{sigmoid}(\tau(\rho - 1))$ has at $\rho = 1$ the slope
#    $4\,\mathrm{sigmoid}'(0) = 1$.
# 3. *One ratio per completion.* GSPO's $\bar\rho A$ (GMPO: with clipped $\rho_t$) has
#    $\nabla(\bar\rho A) = \bar\rho A\,\frac1{|y|}\sum_t\nabla\ell_t$: at $\bar\rho = 1$ the mean over tokens of $A\,\nabla\ell_t$, like
#    the others after averaging. ∎
#
# On the real model, in double precision, with one way of averaging: the six gradients before and after a step along GRPO's.

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
print("at ratio 1, relative difference of the six gradients < 1e-12:", largest < 1e-12)
vector_to_parameters(parameters_to_vector(weights).detach() - step, weights)
apart = errors(gradients())
log_ratio = (completion_logps(policy, rollout, 1.0).detach() - old_logps)[rollout.mask]
print(f"after a long step (|log ρ| is {log_ratio.abs().mean():.2f} on average), away from GRPO's:")
print(", ".join(f"{name} {error:.0%}" for name, error in apart.items()))
assert largest < 1e-12 and min(apart.values()) > 0.02

# %% [markdown]
# ## Weight or bound?
#
# CISPO has the weight alone. SAPO fades a token out, the other four have weight and bound. None has the bound alone. Here are the factors of
# $A\,\nabla\ell$ for neither, each, and both (GRPO's clip):
#
# | token | neither | weight | bound | both |
# |---|---|---|---|---|
# | ratio 1 | 1 | 1 | 1 | 1 |
# | $A > 0$, ratio 1.3 | 1 | 1.3 | 0 | 0 |
# | $A > 0$, ratio .7 | 1 | .7 | 1 | .7 |
# | $A < 0$, ratio .7 | 1 | .7 | 0 | 0 |
#
# You write the two losses in the middle.
#
# **1. Weight only: CISPO.** The loss of one completion: the mean over its tokens of minus sg[min(ρ, cap)] · A · log π. (The check compares
# gradients.)


# %% [exercise]
def cispo_loss(logps, old_logps, A, cap):
    """From tensors (T,), (T,), a number and a number: a scalar loss."""
    return ...


# %% [check]
check("14.1", gradient_of(cispo_loss))

# %% [hint]
# `.detach()` is sg. Compare `policy_loss` in `algorithms/cispo.py`.


# %% [solution]
def cispo_loss(logps, old_logps, A, cap):
    weight = (logps - old_logps).exp().detach().clamp(max=cap)
    return -(weight * A * logps).mean()


# %% [markdown]
# **2. Bound only: the clip without weights.** The loss of one completion in which the tokens that GRPO's clip stops have no gradient, and every other
# token has the gradient that it would have at ratio 1.


# %% [exercise]
def unweighted_clip(logps, old_logps, A, eps):
    """From tensors (T,), (T,), a number and a number: a scalar loss."""
    return ...


# %% [check]
check("14.2", gradient_of(unweighted_clip))

# %% [hint]
# A token is kept where $\rho \le 1 + \varepsilon$ if A > 0, and where $\rho \ge 1 - \varepsilon$ if A < 0.


# %% [solution]
def unweighted_clip(logps, old_logps, A, eps):
    ratio = (logps - old_logps).exp().detach()
    kept = ratio <= 1 + eps if A > 0 else ratio >= 1 - eps
    return -(kept * A * logps).mean()


# %% [markdown]
# ## What training needs
#
# The weight corrects each token for itself, not for the tokens around it, which the older policy sampled too ([lesson 18](18_precision.ipynb)). And it
# does not limit how far a token is pushed: for $A > 0$ it *grows* with the ratio. Only the bound limits a batch. So the longer the steps, the more should depend on it.
#
# Four arms are compared: neither, the weight (CISPO), the bound (your clip without weights), both (GRPO's clip). All have GRPO's advantages and
# averages, and no KL.
#
# - *Used once, late.* A batch is cut into $U$ updates of 32 completions. The last uses completions that are $U - 1$ updates old. 6,144
#   completions, five seeds, without the bound alone.
# - *Used four times.* Batches of 256 completions, four epochs of 8 updates. Every optimizer step of a run has one length, so that arms differ in
#   direction only. 3,072 completions, ten seeds.
#
# *Which arms fall, and where? Guess, then open the output (…).*

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
    """The mean accuracy of an arm at the end; empty if it was not run."""
    chosen = [run["accuracy"][-1] for run in select(runs, arm=arm, **settings)]
    return f"{np.mean(chosen):.2f}" if chosen else ""


table = {"once, $U = 32$": {"staleness": 32}}
for length in staleness.STEP_LENGTHS:
    table["four times, steps of " + f"{length}".lstrip("0")] = {"epochs": 4, "step_length": length}
rows = []
for name, step in table.items():
    bound = ahead(UNWEIGHTED, CLIP, **step) if "epochs" in step else ""
    rows.append([name, end(CLIP, **step), ahead(CLIP, OLD, **step), ahead(CLIP, CISPO, **step), bound])
for step in staleness.REUSE:
    assert end(UNWEIGHTED, **step) >= end(CLIP, **step)
show(weight_or_bound(runs))
say("Accuracy at the end of the arm with both, and differences in points (95 % intervals over seeds):")
say(markdown(["", "both", "both − neither", "both − weight", "bound − both"], rows))

# %% [text]
# What the runs say:
#
# - **Shorten the steps first.** With neither weight nor bound, steps of .008 end as high as the best arm with .016.
# - **With short steps weight or bound is enough.** With neither a run falls behind. Adding the second makes no difference we can measure.
# - **Long steps need the bound**, but these are long: at .032 every arm ends more than 20 points below its end at .008. At .016 the bound alone is
#   {=ahead(UNWEIGHTED, CISPO, epochs=4, step_length=0.016)} points above the weight alone: undecided.
# - **The bound alone ends at least as high as both**, by the means. Each difference is undecided.
#
# (Bands: 95 % intervals. One task of short completions, and one small model. We did not train SAPO, GMPO and DPPO.)
#
# ## To remember
#
# - With one update per rollout batch all six methods are one, up to how they average over tokens ([lesson 5](05_length.ipynb)) and as long
#   as the sampler is the trainer ([lesson 18](18_precision.ipynb)).
# - The weight corrects each token for itself, not for the tokens around it ([lesson 18](18_precision.ipynb)). The bound limits how far one batch may push.
# - Shorten the steps first. Only steps that cost every arm more than 20 points needed the bound.
# - Compare methods at equal steps, not only at equal rates, and never by one run.
#
# ## For a second reading (11 minutes)
#
# **Which tokens are stopped?** Here is one group of the real model, while its batch of 1,024 completions is used for up to 32 updates. Move back from
# 31 updates to 1: which tokens are stopped first?

# %% [fold]
policy, tokenizer = load_policy("base")
rng, generator = random.Random(0), torch.Generator().manual_seed(0)
rollout, R = collect(policy, tokenizer, arithmetic, 128, 8, rng, generator)
rollout.advantages = grpo.compute_advantages(rewards=torch.from_numpy(R).float()).view(-1, 1)
optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-4, weight_decay=0.0)
group = rollout[torch.arange(8) + 8 * 27]  # the one in which GRPO ends up stopping most tokens
prompt = tokenizer.decode(group.prompt_ids[0], skip_special_tokens=True)
now = {}  # the group's log-probabilities after some updates
for update, part in enumerate(rollout.minibatches(1, 1024 // staleness.MINIBATCH, generator)):
    if update in (1, 3, 7, 15, 31):
        now[update] = completion_logps(policy, group, 1.0).detach()
    logps = completion_logps(policy, part, 1.0)
    batch = {"old_logps": part.old_logps, "advantages": part.advantages, "mask": part.mask}
    optimizer.zero_grad()
    LOSSES["GRPO"](logps=logps, **batch).backward()
    optimizer.step()


def draw(updates=31):
    title = (f"{prompt}   after {updates} update{'s' * (updates > 1)} "
             "(∎: end of the completion)")
    return one_group(group, now[updates], LOSSES, title)


knob(draw, updates=[31, 15, 7, 3, 1])

# %% [markdown]
# *Stopped by GRPO: a blue bar below the token. By DPPO: a black one above it. By GSPO: an orange frame, always around a whole completion. In the two
# right completions (A > 0), GRPO and DPPO stop the first token alone. GSPO, with our range, stops all of their tokens.* (Its paper has .03 and
# .04 %, for completions of thousands of tokens, whose mean ratio hardly moves. Ours have a few dozen: `gspo.py` takes a range thirty times as wide.)
#
# **3. Which tokens does GSPO stop?** From log-ratios (G, T), a mask (G, T), advantages (G, 1) and the two widths of the range, return
# True for every token of a completion whose gradient is 0. (No advantage is 0. Keep the names.)


# %% [exercise]
def gspo_stops(log_ratio, mask, A, low, high):
    """(G, T), bool."""
    return ...


# %% [check]
check("14.3", gspo_stops)

# %% [hint]
# First the ratio $\bar\rho$ (G, 1), then the side of the range that belongs to the sign of A; broadcasting does the rest.


# %% [solution]
def gspo_stops(log_ratio, mask, A, low, high):
    s = ((log_ratio * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)).exp()
    return torch.where(A > 0, s > 1 + high, s < 1 - low) & mask


# %% [fold]
repeated = [run["accuracy"][-1] for i in range(1, staleness.REPEATS + 1)
            for run in select(runs, arm=CLIP, epochs=4, repeat=i)]
of_repeats, of_seeds = staleness.sds(runs)
rows = [[rate, ahead(CLIP, CISPO, epochs=4, rate=float(rate))] for rate in ("1e-4", "2e-4", "4e-4")]
at_one_rate = markdown(["rate", "CISPO below GRPO's clip, points"], rows)
stops = {arm: mean("stopped", arm=arm, staleness=32) for arm in (CLIP, "GSPO")}
moved = {arm: mean("moved", arm=arm, epochs=4) for arm in (CLIP, CISPO)}

# %% [text]
# **Four corrections for stale completions.** At U = 32, GSPO and clip-higher (GRPO's clip with DAPO's wider range upwards) end at
# {=end("GSPO", staleness=32)} and {=end("clip-higher", staleness=32)}. They are not alike: GSPO stops {=stops['GSPO']:.0%} of the tokens, GRPO's clip {=stops[CLIP]:.0%}, CISPO none.
#
# **At one learning rate CISPO leads, then trails.** Used four times at 2e-4, it is {=ahead(CISPO, CLIP, 0, epochs=4)} points above GRPO's clip after 768 completions. At the end:
#
# {=at_one_rate}
#
# But at one rate its ratios move further ($|\log\rho|$ is {=moved[CISPO]:.3f} on average, against {=moved[CLIP]:.3f}). At equal steps of .008 and .016 nothing separates the two.
#
# **A single run cannot be repeated on another machine.** We repeated one run ten times, each with the base model's weights changed by about
# one rounding of float32. The ends lie between {=min(repeated):.3f} and {=max(repeated):.3f}; their standard deviation is
# {=100 * of_repeats:.1f} points, over ten seeds {=100 * of_seeds:.1f}. Another rounding (another processor, another version of a library)
# changes a sampled token, and the run goes another way. Means over seeds can be repeated, within their intervals.
#
# **Predictions.** Of the {=len(held)} in `staleness.py` {=sum(held)} held, judged by the means alone. They were written after an earlier version of
# these runs, with other draws, in which 4 of 9 had failed.
#
# SAPO, GMPO and DPPO are in [`losses.py`](workshop/losses.py); the others are scripts of this repository.
#
# Sources: GSPO [2507.18071](https://arxiv.org/abs/2507.18071) Eq. 5, 7; CISPO [2506.13585](https://arxiv.org/abs/2506.13585) Eq. 4, 5; SAPO
# [2511.20347](https://arxiv.org/abs/2511.20347); GMPO [2507.20673](https://arxiv.org/abs/2507.20673); DPPO
# [2602.04879](https://arxiv.org/abs/2602.04879) and its [repository](https://github.com/sail-sg/Stable-RL).
