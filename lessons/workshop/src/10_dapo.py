# %% [markdown] 40 minutes
# # 10 · DAPO
#
# *(Read after [lesson 6](06_identity.ipynb); lessons 7 to 9 are optional before it.)*
#
# GRPO (group relative policy optimization) learns nothing from a **silent** group, whose completions are all right or all wrong: its
# advantages are 0. DAPO (decoupled clip and dynamic sampling policy optimization) discards such groups and refills the batch with groups of
# *other* prompts. One would expect this to favour medium-hard prompts. It does not.
#
# > **Dropping silent groups and refilling with other prompts leaves the direction of GRPO's expected update unchanged and multiplies it by
# > one number. Sampling the *same* prompt again until its completions disagree is a different algorithm: it favours hard and easy prompts.**
#
# In the picture each of nine prompts is a coin. We draw groups of 8, treat the silent ones in three ways, and measure how much each prompt
# weighs in the update. Redrawing the same prompt appears twice: without a limit on the draws, and with a limit that you can move.

# %% [fold]
import inspect
import tempfile
from textwrap import dedent
from unittest.mock import patch

import numpy as np
import torch

from algorithms import dapo, grpo
from lessons import identity
from lessons.experiments import compare_tables, controlled_run, grid, paired
from lessons.experiments.pool import silence
from lessons.workshop.kit import check, knob, show_diff, show_source, trains
from lessons.workshop.parts.lesson_10 import capped_redraw, clip_room, weights
from toy_env.model import load_policy

results, aime = compare_tables.load(), compare_tables.AIME_2024
ours = compare_tables.steps_of(results["ablation"])  # rows of arm, accuracy, change
without_kl = paired.difference(*(results[name]["arms"]["GRPO"]["at_budget"]["seeds"]
                                 for name in ("no_kl", "shared")))
front_page = f'{results["no_kl"]["arms"]["GRPO"]["at_budget"]["mean"]:.3f}'[1:]
assert without_kl["interval"][0] > 0 and [row[2][:2] for row in ours].count("**") == 1
kl_gain = grid.change(without_kl)

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
mixed = dapo.is_kept(correct, dapo.Config())
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
exact |= {name: w * [capped_redraw(x, G, n) for x in p] for name, n in zip(capped, DRAWS)}
for name, (weight, error) in (measured | capped).items():
    assert (np.abs(weight - exact[name]) < 4.5 * error).all(), name
print("all simulated weights within 4.5 standard errors of the exact ones: True")
at_small_p = identity.weight_same_prompt_resampling(1e-6, G) * 1e-6
assert np.isclose(at_small_p, np.sqrt(G - 1) / G, rtol=1e-3)

def draw_weights(at_most_draws):
    name = f"same prompt, at most {at_most_draws}"
    shown = measured | {name: capped[name]}
    return weights(p, {name: weight for name, (weight, _) in shown.items()}, G, at_most_draws)

knob(draw_weights, at_most_draws=DRAWS)

# %% [text]
# *The weight of each prompt; each rule's weight at $p = ½$ is set to 1. Markers are simulated, lines exact. DAPO's crosses lie in GRPO's circles: all its
# weights are {=1 / (1 - S).mean():.2f} times GRPO's, and the common factor disappears here. Redrawing favours both ends.*
#
# The claim is about the direction of an update. It does not explain why DAPO learns well: in our runs dynamic sampling gains a few points, and we
# do not know why (*What is gained?*). One published "DAPO" run draws the same prompt again, at most four times in all
# ([2607.00152](https://arxiv.org/abs/2607.00152), called the identity paper here). What it shows is redrawing, not DAPO.
#
# | symbol | meaning |
# |---|---|
# | $x,\ p,\ q$ | a prompt; the probability that a completion of it is right; $q = 1-p$ |
# | $G,\ P$ | completions in a group; groups in a batch |
# | $\sigma$ | standard deviation of the group's rewards; a group is **silent** if $\sigma = 0$, otherwise **mixed** |
# | $S(p)$ | the probability that a group is silent, $p^G + q^G$ |
# | $g,\ w(p)$ | the update of one group; GRPO's weight of a prompt, $\mathbb E[g] = w(p)\,\nabla p$ ([lesson 3](03_group_baseline.ipynb)) |
#
# The claim in a formula, for prompts $x$ with success probabilities $p_x$:
#
# $$\mathbb E[\text{DAPO's update}] = \frac{1}{\mathbb E_x[1 - S(p_x)]}\;\mathbb E[\text{GRPO's update}]$$

# %% [markdown]
# ## The proof
#
# A silent group contributes nothing, so
#
# $$\mathbb E[g] = \Pr(\text{mixed})\;\mathbb E[g \mid \text{mixed}] + \Pr(\text{silent})\cdot 0$$
#
# A refilled batch holds the first $P$ mixed groups that were drawn. Each is a random mixed group, so its expected update is
# $\mathbb E[g \mid \text{mixed}] = \mathbb E[g]/\mathbb E_x[1-S(p_x)]$. ∎
#
# The proof assumes
#
# 1. rewards of two values, and no KL term,
# 2. a loss that is a mean over groups (`dapo.py` takes it over all tokens of a minibatch, so there the claim is approximate),
# 3. the first update after sampling,
# 4. a batch that fills up (the first groups to *finish* would favour short completions).
#
# Prompt by prompt: DAPO keeps a prompt with probability $1-S(p)$, and a kept group's expected update is $1/(1-S(p))$ times GRPO's. The
# product is GRPO's. Redrawing keeps *every* prompt, so the first factor is missing:
#
# $$w_{\text{redraw}}(p) = \frac{w(p)}{1-S(p)} \;\to\; \frac{\sqrt{G-1}}{G\,p} \quad (p \to 0)$$
#
# GRPO's own weight stays finite, $w \to \sqrt{G-1}$. The weight under redrawing grows like $1/p$.
#
# **1. A limit on the draws.** The identity paper's run draws the same prompt again while its group is silent, at most `draws` times in all. By what factor does
# the prompt's weight then exceed GRPO's? (`identity.silent_rate(p, G)` is $S$.)


# %% [exercise]
def factor(p, G, draws):
    """The weight of a prompt over GRPO's; a number."""
    return ...


# %% [check]
check("10.1", factor)

# %% [hint]
# How probable is it that the last group drawn is mixed? A mixed group's expected σ does not depend on how many draws came before it.


# %% [solution]
def factor(p, G, draws):
    S = identity.silent_rate(p, G)
    # also the expected number of draws: never more than `draws`
    return (1 - S**draws) / (1 - S)


# %% [markdown]
# ## What it costs
#
# **2. The wasted completions.** Prompts with success probabilities `p` are equally frequent. DAPO replaces a silent group by a
# group of another prompt, until it is mixed. How many completions are discarded, on average, for each group that is kept?


# %% [exercise]
def wasted(p, G):
    """p: an array of probabilities. Expected number of discarded completions for each kept
    group."""
    return ...


# %% [check]
check("10.2", wasted)

# %% [hint]
# Waiting for an event of probability ⅓ takes 3 draws on average, including the success. How probable is a mixed group, if every draw is a
# new prompt?


# %% [solution]
def wasted(p, G):
    silent = identity.silent_rate(p, G).mean()
    return G * silent / (1 - silent)


# %% [fold]
find, change = compare_tables.find, compare_tables.change
ablation, movement = results["ablation"]["arms"], results["movement"]["arms"]
dapo_runs, seeds = results["shared"]["arms"]["DAPO"], len(results["ablation"]["seeds"])
cost = dapo_runs["completions"]["mean"] / dapo_runs["budget"]  # drawn for each one trained on
usual, P = dapo_runs["silent"]["mean"], dapo.Config().prompts_per_step
tries = range(1, 20)  # batches of P groups: one more is needed while fewer than P are mixed
in_batches = 1 + sum(identity.binomial(1 - usual, P * n)[:P].sum() for n in tries)
*_, above, last = ablation
*_, slower = movement
arms = (ablation[above], ablation[last], movement[slower])
without, alone, unmoved = (arm["update_norm"]["mean"] for arm in arms)
main, no_kl = (find(results[name], "DAPO", "GRPO") for name in ("shared", "no_kl"))
gained = find(results["ablation"], last, above)
at_equal_length = find(results["movement"], slower, above)
assert min(gap["interval"][0] for gap in (main, gained, at_equal_length)) > 0
assert no_kl["interval"][1] < 0 and alone > without > unmoved
before, after = (ablation[arm] for arm in ("+ overlong filtering", "+ clip-higher"))
more = {name: np.greater(after[name]["seeds"], before[name]["seeds"]).sum()
        for name in ("final", "entropy")}

p0 = np.linspace(0.02, 0.98, 2000)
paper = controlled_run.run("GRPO", p0, seed=0, G=G, silent="redraw", max_draws=4)
drawn = paper.groups[-1] / controlled_run.STEPS  # groups for each prompt and step
still_silent = 1 - paper.mixed[-1] / controlled_run.STEPS
assert abs(drawn - 3.5) < 0.05  # as published

# %% [text]
# **DAPO's cost grows as prompts are solved.** In our {=len(results["shared"]["seeds"])} runs of `dapo.py` a step has {=100 * usual:.1f} % silent groups on
# average. If they were replaced one by one, as in your formula, {=1 / (1 - usual):.1f} completions would be drawn for each one trained on. In whole batches of
# {=P} groups, as in the script, it would be {=in_batches:.1f}. Measured: {=cost:.2f}, because late steps have more silent groups and draw most.
#
# **With at most four draws redrawing costs at most four times as much as GRPO.** The identity paper's run draws 3.5 times as many groups (repeated here: {=drawn:.2f}): the
# mean of your factor of exercise 1, which is also the expected number of draws. At the end of the draws {=100 * still_silent:.0f} % of the groups are still
# silent (mean over the run).

# %% [text]
# ## What DAPO changes, and what it brings
#
# Each row adds one change to the row above, and keeps all earlier ones.
#
# | change | the paper's reason | AIME 2024: score | ours: accuracy, then the change |
# |---|---|---|---|
# | GRPO (ours without KL) | | {=aime[0]} | {=ours[0][1]} |
# | **overlong filtering**: completions cut at the limit do not train (on from here; by default `dapo.py` has it off) | a cut is not an error; entropy explodes without it (Fig. 5) | {=aime[1]} | {=ours[1][2]} |
# | **clip-higher**: for $A > 0$ a token's gradient stops above a ratio of 1.28, not 1.2 | entropy collapses; a wider *lower* range would let rare tokens fall to 0 | {=aime[2]} | {=ours[2][2]} |
# | **overlong punishment**: up to 1 less near the limit | a slope instead of a jump | {=aime[3]} | {=ours[3][2]} |
# | **token mean** ([lesson 5](05_length.ipynb)) | tokens of long completions counted less | {=aime[4]} | {=ours[4][2]} |
# | **dynamic sampling**: the `while` in `train`, `is_kept` | fewer and fewer groups train | {=aime[5]} | {=ours[5][2]} |
#
# *AIME 2024, in %: [Table 1](https://arxiv.org/abs/2503.14476), one benchmark, no seeds. Ours: changes in points at equal
# completions; {=len(results["ablation"]["seeds"])} seeds, 95 % intervals, bold: corrected p < .05 ([results](experiments/README.md)).*
#
# Our set-up is another: at most 36 tokens and 16 updates a batch, so that the limit and the clip have something to do. Hence
# {=ours[0][1].split()[0]}, and not the {=front_page} that the [front page](../README.md) has for GRPO without KL.
#
# There is also **no KL** (Kullback-Leibler) term: reasoning must leave the reference anyway (section 2.3). On the front page
# this pays: without it GRPO gains {=kl_gain} points.
#
# GRPO's paper ([2402.03300](https://arxiv.org/abs/2402.03300), 4.2) makes one update per batch, so every ratio is 1 and no clip acts. DAPO's
# paper makes 16 updates per batch.
#
# In code: the loss, which groups are kept, and dynamic sampling in `train` (the rest: [all differences](../algorithms/DIFFS.md)).

# %%
show_diff(grpo.policy_loss, dapo.policy_loss)
show_source(dapo.is_kept)
lines = inspect.getsource(dapo.train).splitlines()
start = next(number for number, line in enumerate(lines) if "while is_kept" in line)
print(dedent("\n".join(lines[start - 1 : start + 5])))

# %% [text]
# ## What is gained?
#
# The batch does not shrink as prompts are solved. But plain GRPO with that many more prompts per batch gets the same
# mixed groups from the same completions. So the claim promises no gain at equal *completions*. In our runs
# dynamic sampling gains all the same. The whole of DAPO is ahead of GRPO with its KL term, and behind GRPO without it:
#
# | compared, at equal completions | difference in points |
# |---|---|
# | with dynamic sampling and without (last row of the table of changes) | {=change(gained).strip("*")} |
# | the same, but with a smaller learning rate: its steps are {=1 - unmoved / without:.0%} *shorter* than without | {=change(at_equal_length).strip("*")} |
# | the whole of DAPO and GRPO, at the settings of the front page | {=change(main).strip("*")} |
# | the whole of DAPO and GRPO without its KL term | {=change(no_kl).strip("*")} |
#
# So longer steps are not the reason. A possible one (untested): the same completions give fewer updates, each from mixed groups alone.
#
# ## Which groups to keep when rewards are shaped
#
# With the overlong punishment rewards take more than two values. Division by σ discards how *small* a difference is: among eight right completions, one
# that is slightly too long, with reward .999, has the advantage −{=dapo.compute_advantages(rewards=torch.tensor([[1.0] * 7 + [0.999]]).double()).min().abs():.3f}; a single wrong one has
# −{=dapo.compute_advantages(rewards=torch.tensor([[1.0] * 7 + [-1.0]])).min().abs():.3f}. So DAPO decides by *right and wrong* which groups to
# keep, not by the shaped reward. A discarded
# all-right group then has an update that is not zero, so the claim does not hold exactly.
#
# **3. Find the bug.** This filter gets the shaped rewards (groups, G), which are 1 or −1, and up to 1 less for a long completion. It
# marks the groups to keep. The code runs, and the model learns brevity where it should learn nothing. Repair it. Below the check it trains
# a policy that chooses between short completions and long ones at the limit.


# %% [exercise]
def keep(shaped):
    """(groups,) bool: which groups DAPO keeps."""
    return shaped.std(dim=1) > 0  # <- runs, and is wrong


# %% [check]
check("10.3", keep)
trains("10.3", keep)

# %% [markdown]
# *How often the trained policy is right: with long completions .95, with short ones .5.*

# %% [hint]
# Between which values do the rewards of right completions lie, and those of wrong ones? First recover which completions are right. (In a
# script, it is better to filter before shaping.)


# %% [solution]
def keep(shaped):
    # by the sign, > 0, a right completion at the limit counts as wrong
    right = shaped >= 0  # right: 1 to 0; wrong: -1 to -2
    return (right != right[:, :1]).any(dim=1)


# %% [markdown]
# ## To remember
#
# - Refilling with *other* prompts keeps GRPO's expected direction and the size of the batch; redrawing the *same* prompt gives hard prompts
#   a weight that grows like $1/p$.
# - The cost grows as prompts are solved (exercise 2), and nothing guarantees a gain at equal completions.
# - Groups are filtered by right and wrong, never by the shaped reward.

# %% [markdown]
# ## For a second reading (7 minutes): clip-higher
#
# For $A > 0$ a token's gradient stops once its ratio $\rho$ exceeds $1+\varepsilon_{high}$ ([lesson 2](02_ppo.ipynb)). The bound is a *factor*: a token of
# probability .01 is stopped at .012 under GRPO's 1.2 and at .0128 under 1.28. So a rare token gains
# the least.


# %% [fold]
def push(p_old, ratio, A, **bounds):
    """The factor of a token's score in minus the loss's gradient, at each ratio (n,)."""
    old = torch.full((len(ratio), 1), p_old, dtype=torch.float64).log()
    new = (old + torch.tensor(ratio).view(-1, 1).log()).requires_grad_()
    mask, advantages = torch.ones_like(old).bool(), torch.full_like(old, A)
    batch = {"logps": new, "old_logps": old, "advantages": advantages, "mask": mask}
    loss = dapo.policy_loss(**batch, config=dapo.Config(**bounds))
    return -len(ratio) * torch.autograd.grad(loss, new)[0].flatten()

by_hand = ((0.01, 0.2, 0.012), (0.01, 0.28, 0.0128), (0.5, 0.2, 0.6), (0.5, 0.28, 0.64))
for p_old, eps, stops in by_hand:
    ratios = np.array([stops - 1e-9, stops + 1e-9]) / p_old
    before_it, after_it = push(p_old, ratios, 1.0, clip_eps_high=eps)
    assert before_it > 1 and after_it == 0

def draw(eps_low, eps_high, probability):
    def factor(ratio, A):
        return push(probability, ratio, A, clip_eps_low=eps_low, clip_eps_high=eps_high)
    return clip_room(factor, eps_low, eps_high, probability)

knob(draw, eps_low=(0.05, 0.5, 0.01, 0.2), eps_high=(0.05, 0.6, 0.01, 0.28),
     probability=[0.1, 0.01, 0.5, 0.8, 0.9])

# %% [markdown]
# *Left: the push stops at your bounds. Right: the probability that a token can gain or lose before it stops; the triangles are your token.*
#
# Which tokens does GRPO's bound of 1.2 stop in a real run? One step of `dapo.train` with that bound and 16 updates:

# %% [fold]
tokenizer, clipped = load_policy("base")[1], []
update_metrics = dapo.update_metrics

def keep_clipped(part, logps, low, high):
    ratio = (logps.detach() - part.old_logps).exp()
    stopped = (part.advantages > 0) & (ratio > 1 + high) & part.mask
    for row, t in stopped.nonzero().tolist():
        before = torch.cat([part.prompt_ids[row], part.completion_ids[row, :t]])
        ids = (before, part.completion_ids[row, t])
        texts = [tokenizer.decode(x, skip_special_tokens=True) for x in ids]
        numbers = part.old_logps[row, t].exp().item(), ratio[row, t].item()
        clipped.append((*texts, *numbers, t == 0))
    return update_metrics(part, logps, low, high)

settings = {"max_new_tokens": 36, "num_minibatches": 16, "warmup_steps": 0, "steps": 1,
            "clip_eps_high": 0.2, "device": "cpu", "eval_problems": 1, "eval_every": 0}
replaced = patch.object(dapo, "update_metrics", keep_clipped)
with tempfile.TemporaryDirectory() as folder, silence(), replaced:
    dapo.train(dapo.Config(run_dir=f"{folder}/run", **settings))
print("every ninth:       completion so far     token   its probability   ratio")
for text, token, sampled, ratio, _ in clipped[::9]:
    print(f"{text:>36}     {token!r:>5}   {sampled:15.2f}   {ratio:5.2f}")
sampled, ratio = (np.array([row[i] for row in clipped]) for i in (2, 3))
begins = np.array([is_first and token != "#" for _, token, _, _, is_first in clipped])
assert begins.mean() > 0.5 and (ratio > 1.28).mean() > 0.5 and sampled.mean() < 0.3

# %% [text]
# The {=len(clipped)} stopped tokens had a mean probability of {=sampled.mean():.2f} (below .2 in DAPO's Fig. 3a), and
# {=100 * begins.mean():.0f} % are the digit that *begins* a worked solution. Would clip-higher free them?
#
# - Rarely: {=100 * (ratio > 1.28).mean():.0f} % of the ratios exceed 1.28 as well. Each completion is used once: its ratio was moved by
#   *other* completions' updates, which the clip does not stop.
# - Clip-higher does not keep entropy up: it raises entropy in {=more["entropy"]} of {=seeds} seeds, accuracy in {=more["final"]}. (Our vocabulary
#   has {=len(tokenizer)} tokens.)
#
# Sources: DAPO, [2503.14476](https://arxiv.org/abs/2503.14476), sections 2.3 and 3.1-3.4, Eq. 7-13; the identity paper,
# [2607.00152](https://arxiv.org/abs/2607.00152), for the run. The weights are ours.
