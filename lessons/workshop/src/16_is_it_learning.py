# %% [markdown] 30 minutes
# # 16 · Is it learning?
#
# A broken run does not stop. It draws curves, and most of them look reasonable. **Claim: most faults can be named from which curves leave
# the band of healthy runs, and when; some show in no curve.** [The clinic](clinic/README.md) has 27 published bugs,
# each a patch of a few lines, and seven harmless changes that look like bugs. All were run for 60 steps with GRPO (group relative policy
# optimization) at the defaults of `grpo.py`, so here the truth is known.
#
# | word | meaning |
# |---|---|
# | curve | a metric's mean over five steps; of its logarithm, if the metric changes by powers of ten |
# | band | the mean of ten healthy runs with different seeds, plus and minus four standard deviations |
# | sign | a curve outside the band, on one side, for three steps: it *leaves the band* |
# | silent | of a group: all its completions are right, or all wrong, so its advantages are 0 |
# | ratio | a token's probability under the policy now, over that when it was sampled |
# | `mismatch` | how far sampler and trainer differ in a token's log-probability before a step's first update |
#
# Here is a run with a thirtieth of the usual learning rate, against the band ([all metrics](../toy_env/README.md#glossary-of-metrics)):

# %%
from math import erfc

import numpy as np
import torch

from algorithms import grpo
from lessons.clinic import signs
from lessons.workshop.kit import check, knob, show

results = signs.results()
band, runs, patches = results["band"], results["curves"], results["patches"]
LOOK = ["reward", "silent", "silent_right", "length", "worked", "entropy", "loss", "grad_norm"]
LOOK += ["update_norm", "ratio_deviation", "mismatch", "kl"]


def draw(curves):
    return signs.draw({"run": curves}, LOOK, band, columns=4)


show(draw(runs["rate_low"]))
first = signs.signs(runs["rate_low"], band)
for name, (step, side) in list(first.items())[:6]:
    print(f"{name:16} leaves the band at step {step:2}, {'above' if side > 0 else 'below'}")

# %% [text]
# *Grey: the band. Blue: the run.* The reward leaves it at step {=first["reward"][0]}, `update_norm` and `kl` in the first step:
# **a fault of the update shows in the update's metrics before it shows in the samples**.
#
# ## In which order to look
#
# 1. *What is sampled*: the reward, cut completions, the share of silent groups in the **first** step, when nothing has been learnt yet.
# 2. *What is scored*: `mismatch` in the first step. Sampler and trainer have the same weights there, so it is rounding or a bug.
# 3. *What is moved*: `grad_norm`, `update_norm`, the ratio, the KL. Is there a gradient, do weights follow it, does the policy follow them?
# 4. Only then the reward. It says that something is wrong, rarely what.
#
# ## Why four standard deviations?
#
# We look at 20 metrics and 60 steps. A curve is a mean over five steps, so that is about 20 · 12 looks at one run. If curves were normal
# and the band exact, how many of them would be outside in a healthy run?

# %%
for width in (2, 3, 4):
    print(f"{width} standard deviations: {20 * 12 * erfc(width / np.sqrt(2)):.3f} of 240")
healthy, alarms = len(patches[""]["taken for"]), patches[""]["outside"]
assert alarms == 0
floors = np.sqrt(1.1) * np.array([*signs.FLOORS.values()])
assert np.isclose(np.nanmin(band[1] / floors[:, None]), 1, atol=1e-3)

# %% [text]
# With two, about eleven. A band of ten runs is not exact (so the deviation is taken times $\sqrt{1 + \frac1{10}}$, and each metric has a least
# one) and curves are not normal, so we tried it: of the 20 metrics of
# {=healthy} further healthy runs, none leaves the band.
#
# ## Six runs
#
# Move the slider. Each run has one of these ten changes:
#
# | candidate | what was changed |
# |---|---|
# | `rate_high` | a learning rate ten times as large |
# | `stale_optimizer` | the optimizer holds another copy of the model |
# | `stale_sampler` | completions come from the base model at every step |
# | `temperature` | sampled at .7, scored at 1 |
# | `one_late` | log-probabilities of the tokens one position later |
# | `tiled` | groups mix the completions of different prompts |
# | `eos_masked` | the end-of-sequence token (EOS) is left out of the mask |
# | `same_prompts` | the same 32 prompts at every step |
# | `verifier_strict` | the verifier accepts nothing that the model writes |
# | `loss_zero` | harmless: the loss minus a detached copy of itself |
#
# **Write down six names before you open the answers.**

# %%
unknown = [list(runs)[number] for number in (22, 14, 5, 18, 8, 24)]
knob(lambda run: draw(runs[unknown[run - 1]]), run=(1, 6, 1, 1))

# %% [markdown]
# <details><summary>Run 1</summary>
#
# `stale_sampler`. In the first step everything is as it should be; then `mismatch` rises. The policy moves (`update_norm`) but the
# samples do not change: they come from another model, so the reward is flat.
#
# </details>
# <details><summary>Run 2</summary>
#
# `rate_high`. `update_norm`, the ratio and the KL are above the band in the first step. The reward is *above* the band at first, then
# falls.
#
# </details>
# <details><summary>Run 3</summary>
#
# `eos_masked`. `length` is one token short from the first step, because it counts the tokens under the mask. Nearly everything else
# looks healthy. Exercise 1 fixes it.
#
# </details>
# <details><summary>Run 4</summary>
#
# `same_prompts`. Reward and silent groups rise faster than in any healthy run. *Better than healthy is a sign, too*: held-out accuracy
# is lower.
#
# </details>
# <details><summary>Run 5</summary>
#
# `loss_zero`, which is no bug. Only the loss is outside: its value is 0 and its gradient is unchanged, as every other curve shows.
#
# </details>
# <details><summary>Run 6</summary>
#
# `tiled`. In the first step hardly a group is silent: completions of eight different prompts are seldom all right or all wrong. The
# reward rises nearly as usual.
#
# </details>
#
# ## The same by computation
#
# One can compare how far outside a run is, in each metric at every fifth step, with the mean of each patch. The
# six likenesses are to means that include the run itself; in the count, each run is compared with the means of the other seeds:

# %%
for name in unknown:
    likeness, best = signs.diagnosis(runs[name], band, results["signatures"])[0]
    print(f"run {unknown.index(name) + 1} looks like {best} ({likeness:.2f} of 1)")
bugs = [name for name, patch in signs.patches().items() if "Fix" in patch]
shown = [name for name in bugs if name in results["signatures"]]  # tried with five seeds
hidden = [name for name in bugs if not patches[name]["signs"]]
named = sum(patches[name]["taken for"].count(name) for name in shown)
seeds = len(patches["cut"]["taken for"])
harmless = [name for name in patches if name not in bugs]
accused = sum(taken in bugs for name in harmless for taken in patches[name]["taken for"])
print(f"named right: {named} of {seeds * len(shown)}; "
      f"harmless runs taken for a bug: {accused}")
print("no curve shows:", ", ".join(hidden))

# %% [text]
# {=named} of {=seeds * len(shown)} runs of bugs that leave the band are named right. That holds for this task and model at
# these settings. For a bug outside the collection, `python -m lessons.clinic RUN` names a class at best
# ([the benchmark](clinic/README.md#a-benchmark)).
#
# ## What no curve shows
#
# {=len(hidden)} of {=len(bugs)} bugs do not leave the band within 60 steps: {=", ".join(hidden)}. Checks find them, by comparing
# what must be equal. For example, the advantages of a group must sum to 0. With mean and σ over the batch they do not:

# %%
chances = torch.tensor([[0.1], [0.4], [0.6], [0.9]])  # of being right, by group
R = (torch.rand(4, 8, generator=torch.Generator().manual_seed(0)) < chances).float()
whole_batch = (R - R.mean()) / R.std(correction=0)
for what, A in (("by group", grpo.compute_advantages(rewards=R)), ("by batch", whole_batch)):
    print(what, [f"{x:+.2f}" for x in A.sum(dim=1).tolist()], f"all: {abs(A.sum()):.2f}")
assert whole_batch.sum().abs() < 1e-4 < whole_batch.sum(dim=1).abs().min()

# %% [markdown]
# The sum over the *batch* is 0 both ways, and so is the loss before the first update: its curve cannot tell them apart.
#
# ## Exercises
#
# In both, the curves have named the fault. Find it in the code by experiment: call the function on inputs so small that you know the
# answer, change one thing at a time, and fix it.
#
# **1. Find the bug of run 3.** Which tokens are trained on? Completions are padded with the end-of-sequence token itself. Try a
# completion that ends, one that ends at once, and one that is cut.


# %% [exercise]
def completion_mask(ids, end):
    """ids (B, T), padded with `end`. The mask (B, T): True for the tokens that are trained
    on."""
    return ids != end  # <- runs, and is wrong


# %% [check]
check("16.1", completion_mask)

# %% [hint]
# Stopping is an action too. For each position, count the ends *before* it: `(ids == end).cumsum(dim=1)` counts its own as well.


# %% [solution]
def completion_mask(ids, end):
    ends = ids == end
    return ends.cumsum(dim=1) - ends.long() == 0


# %% [markdown]
# **2. Find the bug that `mismatch` shows in the first step.** The model has read a whole sequence; `logits[t]` is its output at position
# $t$, and the first $n$ tokens are the prompt. Try logits that make one token certain.


# %% [exercise]
def completion_logps(logits, sequence, n):
    """From logits (S, V) and tokens (S,): the log-probability of each token of the completion,
    (S - n,)."""
    logps = logits[n:].log_softmax(dim=1)  # <- runs, and is wrong
    return logps.gather(1, sequence[n:].unsqueeze(1)).squeeze(1)


# %% [check]
check("16.2", completion_logps)

# %% [hint]
# The output at a position predicts the *next* token. Which output predicts the first token of the completion?


# %% [solution]
def completion_logps(logits, sequence, n):
    logps = logits[n - 1 : -1].log_softmax(dim=1)
    return logps.gather(1, sequence[n:].unsqueeze(1)).squeeze(1)


# %% [markdown]
# ## To remember
#
# - Look at what is sampled, what is scored and what is moved, in the first steps; the reward comes last.
# - A band needs several healthy seeds, and how wide it must be depends on how many curves you look at.
# - Loss 0, KL 0 at the start, ratio 1 with one update per batch and silent groups late are not bugs.
# - Some bugs show in no curve. Checks that compare what must be equal find them.
