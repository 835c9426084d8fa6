# %% [markdown] 40 minutes, without the second reading
# # 10 · DAPO's dynamic sampling
#
# GRPO (group relative policy optimization) learns nothing from a **silent** group, whose completions are all right or all wrong: its
# advantages are 0. All other groups are **mixed**. What should take the place of a silent group in the batch? DAPO (decoupled clip and
# dynamic sampling policy optimization) draws another prompt and calls this *dynamic sampling*. One published run called DAPO
# ([2607.00152](https://arxiv.org/abs/2607.00152)) draws the same prompt again.
#
# > **With a loss that is a mean over groups, replacing silent groups by groups of *other* prompts, as DAPO does, only lengthens GRPO's expected
# > update; drawing the *same* prompt again turns it towards very hard and very easy ones.**
# >
# > This is about the expected update, not its noise; for DAPO's own token mean it is approximate. In groups of 8, under GRPO and DAPO, a
# > prompt solved once in a hundred times weighs 1.4 times one solved every second time; redrawn until mixed, 18 times.
#
# **Two prompts by hand.** A hard prompt's group is silent with probability $S = .9$, a medium one's with $S = .5$. GRPO draws 100 groups of each.
# (A prompt's **weight** is the factor before $\nabla p$, the gradient of its success probability, in the expected update: [lesson
# 3](03_group_baseline.ipynb).)
#
# | | hard, $S = .9$ | medium, $S = .5$ |
# |---|---|---|
# | of 100 groups, mixed | 10 | 50 |
# | share of GRPO's batch | ½ | ½ |
# | share of DAPO's batch, mixed groups alone | 10/60 | 50/60 |
# | so the share is multiplied by | ⅓ | 5/3 |
# | its mixed groups' mean update ÷ the mean over all its groups | 10 times | 2 times |
# | **weight over GRPO's: other prompts (DAPO)** | **10/3** | **10/3** |
# | **weight over GRPO's: same prompt redrawn** | **10** | **2** |
#
# DAPO gives the hard prompt fewer places, each of which counts for more. These cancel: dynamic sampling does not favour medium-hard
# prompts. With the same prompt redrawn, its share stays ½, and only the factors 10 and 2 remain.
#
# Does this hold beyond two prompts? Here are nine, simulated as coins with a $p$ each, in groups of 8. The slider limits the draws of
# the same prompt.

# %% [fold]
from itertools import pairwise

import numpy as np
import torch

from algorithms import dapo
from lessons import identity
from lessons.experiments import compare_tables, shrinkage
from lessons.experiments.harness import grid, paired
from lessons.workshop.companions import lesson_10
from lessons.workshop.companions.lesson_10 import capped_redraw, is_mixed, on_two_kinds
from lessons.workshop.notebook import check, knob, trains

G, slots, rng = 8, 100_000, np.random.default_rng(10)
p = np.array([0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99])

def complete(prompts):
    """A group for each prompt: (len(prompts), G), 1 for right and 0 for wrong."""
    return torch.tensor(rng.random((len(prompts), G)) < p[prompts][:, None]).double()

def measure(prompts, correct):
    """The weight of each prompt in this batch and its standard error, (9,) each."""
    A = dapo.compute_advantages(rewards=2 * correct - 1)
    score = correct - torch.tensor(p[prompts])[:, None]  # the gradient by a coin's logit
    update = (A * score).mean(dim=1).numpy() / (p * (1 - p))[prompts]
    each = update[:, None] * (prompts[:, None] == np.arange(9)) * 9
    return each.mean(axis=0), each.std(axis=0) / np.sqrt(len(each))

def redraw(prompts, correct, draws):
    silent = np.arange(len(prompts))
    for _ in range(draws - 1):
        silent = silent[(correct[silent] == correct[silent, :1]).all(dim=1).numpy()]
        correct[silent] = complete(prompts[silent])  # the same prompts
    return measure(prompts, correct)

prompts = rng.integers(9, size=3 * slots)
correct = complete(prompts)
mixed = dapo.is_mixed(correct)
kept = mixed.nonzero().flatten()[:slots].numpy()  # the first mixed groups
refilled = measure(prompts[kept], correct[kept])
prompts, correct = prompts[:slots], correct[:slots]
measured = {
    "GRPO": measure(prompts, correct),
    "DAPO: other prompts": refilled,
    "same prompt, until mixed": redraw(prompts, correct.clone(), draws=400),
}
DRAWS = [4, 1, 2, 8, 16]
capped = {f"same prompt, at most {n}": redraw(prompts, correct.clone(), draws=n) for n in DRAWS}
S, w = identity.silent_rate(p, G), identity.weight("GRPO", p, G)
exact = dict(zip(measured, (w, w / (1 - S).mean(), w / (1 - S))))
exact |= {name: w * capped_redraw(p, G, n) for name, n in zip(capped, DRAWS)}
for name, (weight, error) in (measured | capped).items():
    assert (np.abs(weight - exact[name]) < 4.5 * error).all(), name
at_small_p = identity.weight_same_prompt_resampling(1e-6, G) * 1e-6
assert np.isclose(at_small_p, np.sqrt(G - 1) / G, rtol=1e-3)
assert [round(weight[0] / weight[4], 1) for weight in (w, w / (1 - S))] == [1.4, 18.1]  # the claim

def draw_weights(at_most_draws):
    name = f"same prompt, at most {at_most_draws}"
    shown = measured | {name: capped[name]}
    pairs = {name: (weight, exact[name]) for name, (weight, _) in shown.items()}
    return lesson_10.weights(p, pairs)

knob(draw_weights, at_most_draws=DRAWS)

# %% [text]
# *At the two ends DAPO's crosses lie in GRPO's circles, within the simulation's noise; squares and triangles leave them. Each
# rule's weight at $p = ½$ is set to 1, so DAPO's common factor disappears. Markers are simulated, lines exact.*
#
# From here on, $p$ is a prompt's probability of a right completion, $q = 1-p$, $S = p^G + q^G$ the probability that its group of $G$ is
# silent, and $g$ the group's update.

# %% [markdown]
# **1. Any number of prompts.** Now $n$ prompts are equally frequent, and prompt $i$ is silent with probability `S[i]`. Compute the weight of
# each prompt over its weight under GRPO: for DAPO, and for redrawing until mixed.


# %% [exercise]
def over_grpo(S):
    """S: (n,) -> (2, n), an array: DAPO's weights over GRPO's, then those of redrawing."""
    return ...


# %% [check]
check("10.1", over_grpo)

# %% [hint]
# DAPO's share of prompt $i$ is $1 - S_i$ over the sum of all $1 - S_j$. GRPO's is $1/n$. What multiplies a prompt's update if only its mixed
# groups are counted?


# %% [solution]
def over_grpo(S):
    share = (1 - S) / (1 - S).mean()  # of DAPO's batch, over 1 / n
    per_group = 1 / (1 - S)  # a mixed group, over the mean of all
    return np.array([share * per_group, per_group])


# %% [markdown]
# ## The proof
#
# Why do the two factors cancel? A silent group contributes nothing. So for one prompt
#
# $$\mathbb E[g] = (1-S)\;\mathbb E[g \mid \text{mixed}] + S \cdot 0, \qquad \mathbb E[g \mid \text{mixed}] = \frac{\mathbb E[g]}{1-S}$$
#
# The same holds for a group of a *random* prompt, with the mean of $S$ in place of $S$. DAPO's batch consists of such mixed groups. Therefore
#
# $$\mathbb E[\text{DAPO's update}] = \frac{1}{\text{mean of } (1 - S)}\;\mathbb E[\text{GRPO's update}] \qquad ∎$$
#
# Redrawing gives each prompt its own factor instead, $1/(1-S)$. For a hard prompt $1 - S \approx Gp$: the factor grows like $1/p$ without bound. With at
# most $m$ draws it is $1 + S + \dots + S^{m-1}$, at most $m$ (the triangles).
#
# The proof assumes
#
# 1. equal rewards in a silent group, and no KL (Kullback–Leibler) term,
# 2. a loss that is a mean over groups,
# 3. the first update after sampling,
# 4. a batch that fills up (taking the first groups to *finish* would favour short completions).
#
# ## Does it matter?
#
# Redrawing can also be worse. Take two kinds of prompts, equally frequent, and a policy with one choice: a
# short completion or a long one.
#
# | right with probability | short | long |
# |---|---|---|
# | easy prompts | .60 | .50 |
# | hard prompts | .01 | .05 |
#
# On average a short completion is right more often, .305 against .275.
#
# **2. Find the bug.** This function is to fill DAPO's batch with mixed groups. Guess what the policy
# will choose; then run the check, which trains it, and repair the function. (`sample(prompt)` draws a group, `prompts` is endless, and
# `is_mixed(group)` says whether a group is mixed.)


# %% [exercise]
def fill(sample, prompts, P):
    """A list of P mixed groups."""
    groups = []
    while len(groups) < P:
        prompt = next(prompts)
        group = sample(prompt)
        while not is_mixed(group):
            group = sample(prompt)  # <- runs, and is wrong
        groups.append(group)
    return groups


# %% [check] guess
check("10.2", on_two_kinds(fill))
trains("10.2", on_two_kinds(fill))

# %% [hint]
# What should happen to the *prompt* of a silent group?


# %% [solution]
def fill(sample, prompts, P):
    groups = []
    while len(groups) < P:
        group = sample(next(prompts))
        if is_mixed(group):
            groups.append(group)
    return groups


# %% [markdown]
# <details><summary>After the exercise</summary>
#
# GRPO and DAPO choose short completions, DAPO in fewer updates. **With the bug the policy chooses long ones, and is right less often** (.305, less
# .03 times the share of long ones). At the start a hard prompt's group ($p = .03$) is silent in nearly four cases of five, an easy one's
# ($p = .55$) in one of a hundred. So redrawing multiplies the hard prompts' weight by 4.6.
#
# The published "DAPO" run redraws like this, with at most four draws in all. What it shows is redrawing, not DAPO. (`dapo.py` draws whole batches of
# new prompts until enough groups are mixed.)
#
# </details>

# %% [fold]
results, aime = compare_tables.load(), compare_tables.AIME_2024
added = [None] + [after - before for before, after in pairwise(aime)]
at_start = identity.silent_rate(np.array([0.03, 0.55]), 8)  # hard and easy, half of them long
assert [*at_start.round(2)] == [0.78, 0.01] and round(1 / (1 - at_start[0]), 1) == 4.6
ours = compare_tables.steps_of(results["ablation"])  # rows of arm, accuracy, change
without_kl = paired.difference(*(results[name]["arms"]["GRPO"]["at_budget"]["seeds"]
                                 for name in ("no_kl", "shared")))
assert without_kl["interval"][0] > 0 and [row[2][:2] for row in ours].count("**") == 1

gaps_of, change = compare_tables.gaps_of, compare_tables.change
ablation, movement = results["ablation"]["arms"], results["movement"]["arms"]
*_, above, last = ablation
*_, slower = movement
arms = (ablation[above], ablation[last], movement[slower])
without, alone, unmoved = (arm["update_norm"]["mean"] for arm in arms)
(main,), (no_kl,) = (gaps_of(results[name], "DAPO") for name in ("shared", "no_kl"))
(gained,) = gaps_of(results["ablation"], last)
(at_equal_length,) = gaps_of(results["movement"], slower)
assert min(gap["interval"][0] for gap in (main, gained, at_equal_length)) > 0
assert no_kl["interval"][1] < 0 and alone > without > unmoved
elsewhere = shrinkage.compared(grid.load_runs(shrinkage.RESULTS))[shrinkage.REPLACED]
before, after = (ablation[arm] for arm in ("+ overlong filtering", "+ clip-higher"))
rises = np.greater(after["entropy"]["seeds"], before["entropy"]["seeds"]).sum()

# %% [text]
# ## Does it learn better?
#
# It depends on the setting. Where a batch serves 16 updates and a limit cuts completions, dynamic sampling gains; where it serves 4 and
# hardly any are cut, no gain is seen. (The settings differ in more; which difference decides we did not measure.) Its steps are only {=alone / without - 1:.0%} longer over the whole run (AdamW divides a
# constant factor out), and it gains even where they are shorter.
#
# | first setting | arithmetic, DAPO's other changes, no KL term, at most 36 tokens |
# |---|---|
# | compared | accuracy at equal completions, discarded ones included |
# | without dynamic sampling | {=arms[0]["at_budget"]["mean"]:.1%}, after 60 batches of 16 updates |
# | with it | at most half as many updates; {=1 - arms[1]["budget"] / arms[1]["completions"]["mean"]:.0%} of a run's completions are discarded |
#
# | dynamic sampling, against none | points ({=len(results["ablation"]["seeds"])} seeds, 95 % intervals) |
# |---|---|
# | at one learning rate | {=change(gained).strip("*")} |
# | at a rate a tenth lower (steps {=1 - unmoved / without:.0%} shorter) | {=change(at_equal_length).strip("*")} |
# | second setting: RLOO without KL, 4 updates, 56 tokens, best rates | {=grid.change(elsewhere["arithmetic"]["gap"]).strip("*")}, not corrected |
#
# *[results.json](experiments/results.json): `ablation`, `movement`, `no_kl`; second setting: [shrinkage.json](experiments/shrinkage.json).*
#
# ## To remember
#
# - Replacing silent groups by *other* prompts: GRPO's expected direction, a longer step, if the loss is a mean over groups.
# - Redrawing the *same* prompt: another algorithm. A hard prompt's weight grows like $1/p$.
# - At equal cost, dynamic sampling gains in one of our settings, with shorter steps, too; in the other no gain is seen.
#
# ## For a second reading (15 minutes): cost, and DAPO's other changes
#
# **3. The wasted completions.** Prompts with success probabilities `p` are equally frequent. How many completions does dynamic
# sampling discard, on average, for each group kept?


# %% [exercise]
def wasted(p, G):
    """p: an array of probabilities. Discarded completions for each kept group."""
    return ...


# %% [check]
check("10.3", wasted)

# %% [hint]
# Waiting for an event of probability ⅓ takes 3 draws on average, including the success. `identity.silent_rate(p, G)` is $S$.


# %% [solution]
def wasted(p, G):
    silent = identity.silent_rate(p, G).mean()
    return G * silent / (1 - silent)


# %% [text]
# **DAPO's table, and ours**, a change a row.
#
# | | AIME 2024 | ours |
# |---|---|---|
# | GRPO | {=aime[0]} | {=100 * ablation["GRPO without KL"]["at_budget"]["mean"]:.1f} [{=100 * ablation["GRPO without KL"]["at_budget"]["interval"][0]:.1f}, {=100 * ablation["GRPO without KL"]["at_budget"]["interval"][1]:.1f}] |
# | overlong filtering: cut completions do not train | +{=added[1]} | {=ours[1][2]} |
# | clip-higher: where $A > 0$, 1.28 instead of 1.2 | +{=added[2]} | {=ours[2][2]} |
# | overlong punishment: up to 1 less near the limit | +{=added[3]} | {=ours[3][2]} |
# | token mean ([lesson 5](05_length.ipynb)) | +{=added[4]} | {=ours[4][2]} |
# | dynamic sampling | +{=added[5]} | {=ours[5][2]} |
#
# *In % and points. AIME 2024: [Table 1](https://arxiv.org/abs/2503.14476), no seeds. Ours: the first setting, 95 % intervals; bold: corrected p < .05.*
#
# **Why clip-higher?** Entropy collapses, says the paper, because a rare token stops being pushed up after a small gain. Here
# entropy rises in {=rises} of {=len(results["ablation"]["seeds"])} seeds: not clear. **Why no KL term?** Reasoning must leave the reference anyway.
#
# **And DAPO as a whole?** In this table it gains, from {=100 * ablation["GRPO without KL"]["at_budget"]["mean"]:.1f} to {=ablation[last]["at_budget"]["mean"]:.1%}; on the [front page](../README.md) it loses: {=change(no_kl).strip("*")} against GRPO
# without KL. (Against GRPO: {=change(main).strip("*")}; dropping the KL alone: {=grid.change(without_kl)}.) Counting and rate are the same; the settings are the two
# above. The first was chosen to give the changes work: {=ablation["GRPO without KL"]["truncated"]["mean"]:.0%} of GRPO's completions are cut. Each
# result holds in its setting. Whether updates or limit decide, we did not measure.
#
# Sources: DAPO, [2503.14476](https://arxiv.org/abs/2503.14476), sections 2.3 and 3; the run:
# [2607.00152](https://arxiv.org/abs/2607.00152). The weights are ours.
