# %% [markdown] 44 minutes, without the second reading
# # 16 · Is it learning?
#
# A broken run does not stop. It draws curves, most of which look reasonable.
#
# > **Most bugs show in which curves leave the range of healthy runs, and in which order. A bug that one has seen before can then be named.**
# >
# > In our runs, of one small model on one task, 23 of 27 published bugs leave that range. Of six bugs that our rules had not seen they first named one,
# > and misnamed three.
#
# | word | meaning ([all metrics](../toy_env/README.md#glossary-of-metrics)) |
# |---|---|
# | `silent` | the share of groups all right or all wrong, whose advantages are 0 |
# | `mismatch` | how far sampler and trainer differ in a token's log-probability before a step's first update |
# | `grad_norm`, `update_norm` | the length of the gradient; of the weights' step |
# | `kl` | the Kullback–Leibler (KL) divergence from the base model |
# | curve | a metric or its logarithm, averaged over the last five steps |
# | band | mean of ten healthy runs (seeds) ± four standard deviations |
# | a curve *leaves the band* | is outside, on one side, for three steps |
#
# Four curves of a run that learns too slowly:

# %% [fold]
import json
from math import erfc, sqrt

from lessons.clinic import score, signs
from lessons.workshop.notebook import check, knob, show

results = signs.results()
band, runs, patches = results["band"], results["curves"], results["patches"]
LOOK = ["reward", "silent", "length", "loss", "grad_norm", "update_norm", "mismatch", "kl"]


def draw(curves, names=LOOK):
    figure = signs.draw({"run": curves}, names, band, 4)
    for name, axis in zip(names, figure.axes):
        axis.set_xlabel("step")
        if name == "mismatch":
            axis.set_ylim(-4.5, 0.5)
    return figure


first = signs.signs(runs["rate_low"], band)
show(draw(runs["rate_low"], ["reward", "mismatch", "update_norm", "kl"]))
place = [*signs.FLOORS].index("update_norm")  # its curve is a logarithm
too_small = 10 ** (band[0] - runs["rate_low"])[place]
bugs = [name for name, patch in signs.patches().items() if "Fix" in patch]
hidden = [name for name in bugs if not patches[name]["signs"]]
seen = [name for name in bugs if name not in hidden]
# Of 240 looks at a healthy run, if curves were normal
beyond = {width: 240 * erfc(width / sqrt(2)) for width in (2, 4)}
alarms = results["alarms"]  # of each further healthy run
assert not any(alarms)
tests = f"{signs.table(3)}"  # the rules
assert all(test in tests for test in ("first mismatch > .05", "growth mismatch > 3",
    "early silent > .95", "first loss > 10", "first loss <= -10", "max update_norm <= 1e-7"))  # fmt: skip
assert hidden == ["batch_statistics", "entropy_bonus", "no_positions", "verifier_lax"]
scores = json.loads(score.SCORES.read_text("utf-8"))
n, bare = scores["ours"]["counts"], scores["ours, bare"]["counts"]["class right"]
assert (n["class right"], n["bug"]) == (23, 27)  # as in the box

# %% [text]
# *Blue: a run with a 33rd of the usual learning rate. Grey: the band of healthy runs. `mismatch` is cut off at −4: below is rounding.*
#
# The reward leaves the band only at step {=first["reward"][0]}. But `update_norm` is out from step {=first["update_norm"][0]} on: {=too_small[0]:.0f} times too
# small at first, {=too_small[-1]:.0f} times at the end. The KL is below its band at
# first, too, and catches up at the end.
#
# **A fault of the update shows in the update's metrics before it shows in the samples.**
#
# ## In which order to look
#
# A step samples, scores and moves. Check them in this order, in the **first** steps: an early fault spoils the rest.
#
# 1. *What is sampled*: the reward, the length, the share of silent groups.
# 2. *What is scored*: `mismatch`. Sampler and trainer have the same weights, so a difference is rounding or a bug.
# 3. *What is moved*: `grad_norm`, `update_norm`, the KL. Do the weights follow the gradient?
# 4. Only then the reward *over time*: it rarely says what is wrong.
#
# [The clinic](clinic/README.md) has 27 published bugs and seven harmless changes, run for 60 steps with `grpo.py`.
#
# ## A second run: predict, then look
#
# A bug named `tiled` mixes completions of eight different prompts in each group. What must its first step show?
#
# 1. *Sampled*: the usual texts, the usual reward. But `silent` must fall. Eight completions of a prompt with solve rate .9 are all
#    right with probability $.9^8 = .43$. Say a group has four of these and four of a prompt with .1: $.9^4 \cdot .1^4 = .00007$.
# 2. *Scored and moved*: as ever. `mismatch` stays 0, `update_norm` in the band.

# %% [fold]
show(draw(runs["tiled"], ["reward", "silent", "mismatch", "update_norm"]))
silent = [*signs.FLOORS].index("silent")
assert list(signs.signs(runs["tiled"], band))[0] == "silent"
strict, late = (signs.signs(runs[name], band) for name in ("verifier_strict", "one_late"))
assert strict["reward"] == (1, "low") and strict["silent"] == late["mismatch"] == (1, "high")
assert late["reward"][1] == "low"
# The last column: which of the curves shown leave first
firsts = {"stale_optimizer": "update_norm kl", "eos_masked": "length", "stale_sampler": "mismatch",
          "same_prompts": "update_norm", "loss_zero": "loss"}  # fmt: skip
for name, curves in firsts.items():
    left = {curve: sign for curve, sign in signs.signs(runs[name], band).items() if curve in LOOK}
    start = min(step for step, side in left.values())
    assert {curve for curve in left if left[curve][0] == start} == {*curves.split()}, name

# %% [text]
# *Only `silent` leaves the band: just below it in the first step ({=runs["tiled"][silent, 0]:.2f} of the groups, in healthy runs {=band[0, silent, 0]:.2f}), clearly around step 10.* The
# reward rises nearly as usual: the mean over other prompts is a baseline, too.
#
# ## Five runs
#
# Each position of the slider is a run with one of these changes, but not the two filled in. First write down the
# last column: which curve should leave the band first, on which side?
#
# | candidate | what was changed | leaves first |
# |---|---|---|
# | `stale_optimizer` | the optimizer holds another copy of the model | |
# | `stale_sampler` | completions come from the base model at every step | |
# | `one_late` | the log-probabilities belong to the tokens one position later | `mismatch`, above |
# | `eos_masked` | the end-of-sequence token (EOS) is left out of the mask | |
# | `same_prompts` | the same 32 prompts at every step | |
# | `verifier_strict` | the verifier accepts nothing that the model writes | `reward`, below; `silent`, above |
# | `loss_zero` | harmless: the loss minus a detached copy of itself | |
#
# **Then name each run, and the curve that decides it, before you open the answers.**

# %%
unknown = [sorted(runs)[number] for number in (27, 5, 22, 10, 26)]
knob(lambda run: draw(runs[unknown[run - 1]]), run=(1, 5, 1, 1))

# %% [text]
# <details><summary>Run 1</summary>
#
# `stale_sampler`. In the first step everything is as it should be; then `mismatch` rises. The policy moves (`update_norm`) but the
# samples do not change: they come from another model, so the reward is flat. So is the length,
# where a healthy run's grows.
#
# </details>
# <details><summary>Run 2</summary>
#
# `eos_masked`. `length` is one token short from the first step, because it counts the tokens under the mask. ([Lesson 1](01_score_function.ipynb), exercise 2, repairs this bug.)
#
# </details>
# <details><summary>Run 3</summary>
#
# `same_prompts`. Reward and silent groups rise faster than in any healthy run. *Better than healthy is a sign, too*: held-out accuracy
# is lower.
#
# </details>
# <details><summary>Run 4</summary>
#
# `loss_zero`, which is no bug. Only the loss is outside: its value is 0 (a healthy loss starts near 0, too; its band leaves 0 at step 23). Its
# gradient is unchanged, as every other curve shows.
#
# </details>
# <details><summary>Run 5</summary>
#
# `stale_optimizer`. There is a gradient (`grad_norm` looks healthy for fifty steps), but the weights do not follow it: `update_norm` is below the
# band in the first step, with the KL. So the reward stays flat.
#
# </details>
# <details><summary>The last column</summary>
#
# | candidate | leaves first |
# |---|---|
# | `stale_optimizer` | `update_norm` and `kl`, below |
# | `stale_sampler` | `mismatch`, above, at step 2 |
# | `eos_masked` | `length`, below |
# | `same_prompts` | `update_norm`, above, at step 5; then `silent` and `reward`, above |
# | `loss_zero` | `loss`, below, at step 23 |
#
# </details>

# %% [markdown]
# **1. Let a rule look.** You get a curve as distances from the middle of the band, in units of half its width: above 1 and below −1 it is outside. When
# does it leave the band, by the table?


# %% [exercise]
def leaves(z):
    """z: an array (steps,). The first of three steps outside on one side, counted from 1; None
    if there is none."""
    return ...


# %% [check]
check("16.1", leaves)

# %%
for number, name in enumerate(unknown, 1):  # when the curves shown leave, by your rule
    found = zip(signs.FLOORS, map(leaves, signs.outside(runs[name], band)))
    steps = {curve: step for curve, step in found if curve in LOOK and step not in (None, ...)}
    print(f"run {number}:", steps)

# %% [hint]
# Look at three steps at a time. On one side means that all three are above 1, or all three below −1.


# %% [solution]
def leaves(z):
    for step in range(len(z) - 2):
        three = z[step : step + 3]
        if three.min() > 1 or three.max() < -1:
            return step + 1


# %% [text]
# ## What looks like a bug and is none
#
# | seen | reason |
# |---|---|
# | loss 0 | a group's advantages add up to 0 (in run 4 a copy is subtracted). The gradient is not 0 |
# | KL 0 at the start | policy and reference are still the same model |
# | many silent groups, late | most prompts are solved: the reward is high |
#
# ## Without healthy runs
#
# Five signs need no band. They find {=bare} of the {=len(bugs)} bugs:
#
# | sign | threshold of [our rules](clinic/RULES.md) | found |
# |---|---|---|
# | `mismatch` far above rounding | over .05, first; or late, tripled | `one_late`, `temperature`; `stale_sampler` |
# | only silent groups at first | over 95 % of the first tenth | `verifier_strict` |
# | a first loss far from 0 | beyond ±10 | `leave_one_out` |
# | no weight moves | `update_norm` never above 1e-7 | `stale_optimizer` |
# | the reward rises, then falls | by four standard errors, and half of its rise | `rate_high` |
#
# ## What no curve shows
#
# Four of the {=len(bugs)} bugs stay in the band for 60 steps (to `no_positions` our model is immune: only distances between tokens matter to it). Checks
# find all four:
#
# | bug | what was changed | check |
# |---|---|---|
# | `batch_statistics` | advantages from the mean and σ of the whole batch, not of the group | each group's advantages add up to 0 |
# | `entropy_bonus` | a bonus of .001 for entropy, left on | the loss of a small batch, by hand |
# | `no_positions` | the padding before a prompt counts as positions | a prompt's positions alone, and in a padded batch |
# | `verifier_lax` | a completion is right if the answer stands anywhere in it | wrong texts: `42+1=43` for 42 |

# %% [markdown]
# **2. Repair a bug that `mismatch` shows at once.** `logits[t]` is the model's output at position $t$ of a
# sequence whose first $n$ tokens are the prompt.


# %% [exercise]
def completion_logps(logits, sequence, n):
    """From logits (S, V) and tokens (S,): the log-probability of each token of the completion,
    (S - n,)."""
    logps = logits[n:].log_softmax(dim=1)  # <- runs, and is wrong
    return logps.gather(1, sequence[n:].unsqueeze(1)).squeeze(1)


# %% [check]
check("16.2", completion_logps)

# %% [hint]
# Try logits that make one token certain. The output at a position predicts the *next* token. Which output predicts the first token of the completion?


# %% [solution]
def completion_logps(logits, sequence, n):
    logps = logits[n - 1 : -1].log_softmax(dim=1)
    return logps.gather(1, sequence[n:].unsqueeze(1)).squeeze(1)


# %% [text]
# ## To remember
#
# - In the first steps, look at what is sampled, scored and moved, in this order. The reward over time comes last.
# - Size shows only beside healthy runs, of several seeds: keep the logs of runs that learned.
# - Some bugs show in no curve. Only checks find them, by comparing what must be equal.
#
# ## For a second reading (8 minutes)
#
# **The same by computation.** `python -m lessons.clinic RUN` reads the log of a run and names the *class* of its bug, by
# [rules that one can follow by hand](clinic/RULES.md). In [the benchmark](clinic/README.md#a-benchmark) ([scores.json](clinic/scores.json)) it judged one run of each change (folded, because it names the five runs):

# %% [fold] guess
said = scores["ours"]
for number, name in enumerate(unknown, 1):
    print(f"run {number}:", said["named"][name][0] or "nothing looks like a bug")
assert n["bug accused"] == n["class right"] == len(seen) and n["bug"] == len(bugs)
assert n["patch wrong"] == n["control accused"] == n["healthy accused"] == 0

# %% [text]
# Before we mended them, the rules named the class of one of the six bugs that they had not seen, and a wrong class for three. After it they name the
# right class of all {=n["class right"]} bugs that leave the band. They accuse none of the {=n["control"]} harmless changes, and none of {=n["healthy"]} healthy runs, some of
# other scripts and settings.
#
# **Why four standard deviations?** Because we look often: 20 metrics (the pictures show eight) and 60 steps, averaged over the last five, are 20 · 12
# looks at one run. If curves were normal, a healthy run would be outside in {=beyond[2]:.0f} of these looks at two standard deviations, in {=beyond[4]:.3f} at four.
# They are not normal, so we tried it: of {=len(alarms)} more healthy runs, none leaves the band.
