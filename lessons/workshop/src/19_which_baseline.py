# %% [markdown] 45 minutes
# # 19 · Which baseline?
#
# A baseline changes the noise of the gradient and not its mean ([lesson 1](01_score_function.ipynb)). REINFORCE trains on the reward itself,
# $A = R$. GRPO and Dr. GRPO subtract the mean reward of the group. Does it pay, and should one look for the least noisy baseline?
#
# > **Of all that we tried, training on the reward itself, without a baseline, learned best, and during training it also aimed best. We can name
# > one reason: groups in which every completion is right train then, and under a group's mean they cannot. One number κ leads from the mean to no baseline.**

# %% [fold]
from itertools import product

import numpy as np
import torch

from algorithms import rloo
from lessons.experiments import baselines, baselines_tables, estimators, paired, shrinkage
from lessons.experiments.grid import change, load_runs, markdown, signed
from lessons.workshop.kit import check, knob, show
from lessons.workshop.parts.lesson_19 import by_baseline, gains, noise_of_baselines

stages = load_runs(baselines.MEASURED_STAGES)
columns = [(task, step) for task in baselines.TASKS for step in baselines.STEPS]
of = {column: [s for s in stages if (s["task"], s["step"]) == column] for column in columns}
NAMES = {
    "R": "A = R", "R, all-right groups left out": "A = R, all-right groups left out",
    "R − 1": "A = R − 1: only wrong ones count", "R − mean": "R − mean (Dr. GRPO)",
    "OPO": "b* from lengths (OPO)", "OTB": "b* from logits (OTB)",
    "best b of the others": "b* from scores",
}
runs, trials = load_runs(baselines.RESULTS), load_runs(baselines.TUNED)
learned = baselines_tables.learned(runs, trials)


def above(comparison, *rounding):
    return change(comparison, *rounding).strip("*").replace("+", "")


def points(row, task):
    return above(learned[row][f"{task}, at the end"]["gap"])


def apart(row, other, task):
    return above(baselines_tables.difference(learned, row, other, f"{task}, at the end"))


cosine = {NAMES[name]: [[np.mean(stage["cosines"][name]) for stage in of[column]] for column in columns]
          for name in NAMES}


def mean(name, task, step):
    return np.mean(cosine[NAMES[name]][columns.index((task, step))])


LEFT_OUT = "R, all-right groups left out"
best = {column: max(NAMES, key=lambda name: mean(name, *column)) for column in columns}
assert all(best[task, step] == "R" for task in baselines.TASKS for step in (20, 60))
for column in columns:  # where A = R is better aimed, and where not
    others = [mean(name, *column) for name in NAMES if name not in ("R", LEFT_OUT)]
    assert mean("R", *column) > max(others) if column != ("expressions", 0) else (
        mean("R", *column) < min(others))
assert mean(LEFT_OUT, "expressions", 60) < mean("R − mean", "expressions", 60)


def places(values):
    return np.argsort(np.argsort(values))


def in_order(task, outcome):
    """The rank correlation of the aim at step 20 with an outcome, over the seven arms."""
    aims = [mean(name, task, 20) for name in NAMES]
    outcomes = [np.mean(learned[name][f"{task}, {outcome}"]["seeds"]) for name in NAMES]
    return np.corrcoef(places(aims), places(outcomes))[0, 1]


def share_of_best(name):
    """The lowest and the highest share of the signal-to-noise ratio of a constant b*, over both
    tasks at steps 20 and 60."""
    shares = [100 * baselines.efficiency(of[column], name) for column in columns if column[1]]
    return f"{min(shares):.0f} to {max(shares):.0f} %"


# %%
names = {row: NAMES[row] for row in baselines.BASELINES if row != "R − mean"}
show(gains(learned, names))

# %% [text]
# *Accuracy after 15,360 completions, in points above Dr. GRPO's $R - $ mean, with 95 % intervals (ten seeds). $b^*$ is the least noisy constant,
# estimated from the group in three ways. One update a batch, no KL; each arm has the rate that was best for it on three other seeds.*
#
# **$A = R$, without a baseline, ends highest on both tasks.** Leave its all-right groups out, and {=apart("R", LEFT_OUT, "arithmetic").split(" [")[0]} points are
# lost on arithmetic and {=apart("R", LEFT_OUT, "expressions").split(" [")[0]} on expressions. In all other arms of the picture these groups have the advantage 0: with
# $b = 1$, and with every mean of the group's own rewards. (The [front page](../README.md#results) has REINFORCE below GRPO. There all scripts
# share one learning rate, tuned for none.)
#
# | symbol | meaning |
# |---|---|
# | $G,\ p,\ q$ | completions of one prompt; the probability that one is right; $1-p$ |
# | $R,\ s$ | the reward of a completion, 0 or 1; its score $\nabla_\theta \log \pi_\theta(y)$ |
# | $m_+,\ m_-,\ \Delta m$ | the mean score of right and of wrong completions; $m_+ - m_-$ |
# | $a_+,\ a_-$ | the mean of $\|s\|^2$ over right and over wrong completions |
# | $b,\ b^*$ | a constant baseline for a prompt: the advantage is $R - b$; the least noisy one |
# | $\kappa,\ m_0$ | how many imaginary completions join the others in the baseline; their reward |
#
# ## One knob
#
# $R - $ mean and $A = R$ differ in three things: in noise, in all-right groups, and in all-wrong ones. One number κ leads from one to the
# other. Add κ imaginary completions of reward $m_0$ to the others:
#
# $$b_i = \frac{\sum_{j\ne i} R_j + \kappa\,m_0}{G - 1 + \kappa}$$
#
# The own reward $R_i$ is not in $b_i$. So the mean update is $\nabla p$ for every κ, and for every $m_0$ fixed before the group is drawn.
# κ = 0 is [RLOO](../algorithms/rloo.py), whose direction is that of $R - $ mean; κ = ∞ with $m_0 = 0$ is $A = R$.
#
# **1. The knob.** Write its advantages, without a loop. ($A = R$ is the limit of a large κ.)


# %% [exercise]
def shrunk(rewards, kappa, m0):
    """Advantages (P, G) from rewards (P, G) and two numbers."""
    return ...


# %% [check]
check("19.1", shrunk)

# %% [hint]
# The sum of the others' rewards is the group's sum less the own reward.


# %% [solution]
def shrunk(rewards, kappa, m0):
    others = rewards.sum(1, True) - rewards
    return rewards - (others + kappa * m0) / (rewards.shape[1] - 1 + kappa)


# %% [fold]
rows, prompts = {}, {c: [prompt for s in of[c] for prompt in s["prompts_measured"] if prompt] for c in columns}
for c in columns:
    p, b = (np.array([prompt[key] for prompt in prompts[c]]) for key in ("p", "best b"))
    rows[c] = {"p": np.median(p), "b": np.median(b)}
    rows[c]["fits"] = np.mean([prompt["fits"] for prompt in prompts[c]], axis=0)
    assert c[1] == 0 or rows[c]["b"] < 0.5 < rows[c]["p"]
fits = np.array([row["fits"] for row in rows.values()])
elsewhere = [estimators.cosine("arithmetic", 0, name) for name in ("no baseline", "σ^2")]
knob_runs = load_runs(shrinkage.RESULTS)
arms, (eighth, half) = shrinkage.compared(knob_runs), shrinkage.ALL_RIGHT
shown = {name: arms[name] for name in ("κ = 0", "κ = 3", "κ = 7", "κ = ∞", half)}
gap = {(arm, column): 100 * number["gap"]["difference"]
       for arm, row in arms.items() for column, number in row.items()}
off = [gap[a, task] - gap[kappa, task] for task in baselines.TASKS
       for a, kappa in ((eighth, "κ = 1"), (half, "κ = 7"))]
to_accuracy, replaced = "κ = 3, m₀ = accuracy", "κ = 0, silent groups replaced"
assert max(map(abs, off)) < 0.5 and gap["κ = 3", "both"] < 0.5  # as the predictions' table says
assert 2 * gap[to_accuracy, "both"] > gap["κ = 3", "both"]
for task in baselines.TASKS:
    assert gap[replaced, task] < gap["κ = 3", task]
assert gap["κ = 1", "arithmetic"] < 0 < gap["κ = ∞", "expressions"] - gap["κ = 7", "expressions"]
assert "**" not in shrinkage.gaps_table(shown)


tested = [number["gap"]["p_holm"] < paired.LEVEL for columns_of in learned.values()
          for number in columns_of.values() if "p_holm" in number["gap"]]
assert all(learned["R"][f"{task}, at the end"]["gap"]["p_holm"] < paired.LEVEL
           for task in baselines.TASKS)


def ahead(task):
    return above(arms["κ = ∞"][task]["gap"]).split(" [")[0]


def gained(arm):
    return above(arms[arm]["both"]["gap"])


def late_gap(task, outcome, *rounding):
    chosen = ([baselines.TASKS[task]], outcome, shrinkage.LONG)
    values = (shrinkage.outcomes(knob_runs, arm, *chosen) for arm in ("κ = ∞", "κ = 0"))
    return above(paired.difference(*values), *rounding)


def predictions():
    def of(arm, columns=baselines.TASKS):
        return ", ".join(signed(gap[arm, column]) for column in columns)

    above_7 = signed(gap["κ = ∞", "expressions"] - gap["κ = 7", "expressions"])
    entropies = ", ".join(late_gap(task, "entropy", 3, 1).split(" [")[0] for task in (0, 1))
    return markdown(["predicted, before the runs", "outcome, in points"], [
        ["κ = 3 ends above κ = 0 by half a point or more, over both tasks",
         f"**did not hold**: {above(arms['κ = 3']['both']['gap'], 2)}"],
        ["κ = 1 ends above κ = 0 on both tasks", f"**did not hold**: {of('κ = 1')}"],
        ["κ = ∞ ends below κ = 7 on expressions", f"**did not hold**: {above_7}"],
        ["all-right groups at ⅛ and ½ end within half a point of κ = 1 and κ = 7",
         f"held, just: ⅛ {signed(off[0], 2)}, {signed(off[2], 2)}; "
         f"½ {signed(off[1], 2)}, {signed(off[3], 2)}"],
        ["with $m_0$ = accuracy, κ = 3 keeps less than half of its gain",
         f"**did not hold**: {of(to_accuracy, ['both'])} of {of('κ = 3', ['both'])}"],
        ["replacing silent groups ends below κ = 3 on both tasks",
         f"held: {of(replaced)} against {of('κ = 3')}"],
        ["after 240 batches κ = ∞ has the lower entropy on both tasks",
         f"**did not hold**: {entropies} nats a token"],
    ])


# %% [text]
# By your formula an all-right group has $A = \kappa(1 - m_0)/(G - 1 + \kappa)$: 0 at κ = 0, and ½ at κ = 7 in groups of eight, with $m_0 = 0$.
#
# We trained with four updates a batch and ten seeds. Accuracy of κ = 0, and points above it:
#
# {=shrinkage.gaps_table(shown)}
#
# **Over both tasks the knob brought about a point, and most of it came from all-right groups**: in the last row nothing but their advantage is
# changed, to ½. (Each arm has its best rate; the last takes that of κ = 7. [All arms](experiments/README.md#which-baseline).)
#
# **What we would try.** Let all-right groups train. With κ = $G - 1$, the largest finite κ tried, that is one changed line.
#
# ## What an all-right group knows
#
# What can a group without a wrong completion know about the gradient? Its direction: $\nabla p = \mathbb E[R\,s] = p\,m_+$. With a constant
# baseline below 1 an all-right group has an advantage, and its expected update points along $m_+$. A mixed group moves along the contrast
# $\Delta m$.
#
# **2. What an all-right group knows.** With $b = 0$ its update is the mean score of its completions. Express its expectation by $p$ and
# $\Delta m$.


# %% [exercise]
def all_right_update(p, difference):
    """From p and the vector dm = m+ - m-."""
    return ...


# %% [check]
check("19.2", all_right_update)

# %% [hint]
# All scores together have the mean 0: $p\,m_+ + q\,m_- = 0$. Put $m_- = m_+ - \Delta m$ into it.


# %% [solution]
def all_right_update(p, difference):
    return (1 - p) * difference  # ∇p is p times this


# %% [markdown]
# So both are one direction. The update of an all-right group is shorter the nearer $p$ is to 1, but such groups are then the most.
#
# What is their part in the aim of a whole batch? GRPO trains our two models: *arithmetic*, with one right answer, and *expressions*, where
# `39?` asks for any expression of that value. Before training and after 20 and 60 steps we measure the direction of $\nabla p$, and the cosine
# of one batch's update with it: 1 without noise.

# %%
show(by_baseline(cosine, columns, "cosine with ∇p"))

# %% [text]
# *Means, and the {=len(of["arithmetic", 0])} seeds as small marks.*
#
# **During training $A = R$ aims best** (orange and grey). At 60 steps it has {=mean("R", "arithmetic", 60):.2f} and {=mean("R", "expressions", 60):.2f}, $R - $ mean
# {=mean("R − mean", "arithmetic", 60):.2f} and {=mean("R − mean", "expressions", 60):.2f}. Without its all-right groups $A = R$ falls to {=mean(LEFT_OUT, "arithmetic", 60):.2f} and {=mean(LEFT_OUT, "expressions", 60):.2f}. Before training
# it aims well on arithmetic, and worst on expressions (blue). Why there?
#
# ## The least noisy baseline
#
# The update $(R-b)\,s$ of one completion has the mean $\nabla p$ whatever the constant $b$ is, so its noise depends on $b$ as its mean square does.
# As in [lesson 1](01_score_function.ipynb):
#
# $$\mathbb E\,\|(R-b)\,s\|^2 = p\,(1-b)^2 a_+ + q\,b^2 a_-, \qquad \frac{b^*}{1-b^*} = \frac pq\cdot\frac{a_+}{a_-}$$
#
# So $b^*$ is the mean reward weighted by $\|s\|^2$ (Greensmith, Bartlett and Baxter 2004), and it is $p$ only if $a_+ = a_-$. Where
# wrong completions are the noisy ones, $b^*$ is near 0: they are best left alone, as REINFORCE leaves them. Where right ones are, $b^*$ is near 1.

# %% [markdown]
# Move the sliders. How noisy is each baseline?


# %%
def draw(p, ratio, G):
    def noise(b):
        return p * (1 - b) ** 2 + (1 - p) * b**2 * ratio

    best = p / (p + (1 - p) * ratio)
    others = noise(p) + p * (1 - p) / (G - 1) * (p + (1 - p) * ratio)
    marks = {"b = 0": (0, noise(0)), "b*": (best, noise(best)),
             f"mean of the other {G - 1}": (p, others),
             "p": (p, noise(p)), "b = 1": (1, noise(1))}
    b = np.linspace(0, 1, 201)
    marks = {name: (at, height / noise(best)) for name, (at, height) in marks.items()}
    title = f"p = {p:.2f}, $a_-/a_+$ = {ratio:g}"
    return noise_of_baselines(b, noise(b) / noise(best), marks, title)


knob(draw, p=(0.05, 0.95, 0.05, 0.4), ratio=[8, 0.1, 0.25, 0.5, 1, 2, 4, 32], G=(2, 32, 1, 8))

# %% [text]
# *The noise of the update; that of $b^*$ is 1. At $p = .4$ and $a_-/a_+ = 8$, $b = 0$ is less noisy than the mean of any
# group. Set $a_-/a_+$ to .25: now $b = 0$ is the noisiest.*
#
# **So which baseline is quiet depends on the model.** The base model of arithmetic blurts out wrong guesses, which have long scores: $b^*$ is
# {=rows["arithmetic", 0]["b"]:.2f}. The base model of expressions usually repeats the number, which is wrong and has a short score: $b^*$ is
# {=rows["expressions", 0]["b"]:.2f}, and $A = R$ is the worst. Once trained, both have a $b^*$ below ½, although most completions are right. (Medians over
# prompts.)
#
# **An estimate of $b^*$ is not $b^*$.** A group has eight rewards. Used for a baseline, they cost in three ways:
#
# - *Noise.* The mean of the *others* is $p$ plus its own noise, which adds $\frac{pq}{G-1}(p\,a_+ + q\,a_-)$.
# - *The own reward.* Lesson 1's theorem needs a baseline that does not depend on the completion. A mean with the own reward inside shortens
#   the mean update to $(G-1)/G$ ([lesson 3](03_group_baseline.ipynb)). If the mean is weighted by scores or lengths, the mean update also turns.
#   OPO and OTB are such means. Our $b^*$ from scores leaves the own completion out.
# - *All-right groups.* Every weighted mean of ones is 1.
#
# The first two are checked on a policy with six answers, over all groups of three:

# %% [fold]
pi = torch.tensor([0.5, -0.3, 0.1, 0.9, -1.2, 0.0], dtype=torch.float64).softmax(dim=0)
R = torch.tensor([1.0, 1, 0, 0, 0, 0], dtype=torch.float64)
S = torch.eye(6, dtype=torch.float64) - pi  # scores in rows
squared, p = S.square().sum(dim=1), pi @ R
a_right, a_wrong = (pi * R) @ squared / p, (pi * (1 - R)) @ squared / (1 - p)


def mean_square(b):
    return pi @ ((R - b) ** 2 * squared)


odds = p / (1 - p) * a_right / a_wrong
best = (odds / (1 + odds)).requires_grad_()
(slope,) = torch.autograd.grad(mean_square(best), best)
flat = bool(abs(slope) < 1e-12)
print(f"p = {p:.3f}, best baseline = {best:.3f}; slope of the noise there < 1e-12: {flat}")
groups = torch.tensor([*product(range(6), repeat=3)])
A = rloo.compute_advantages(rewards=R[groups])
exact = (pi[groups].prod(dim=1)[:, None] * A**2 * squared[groups]).sum() / 3
added = p * (1 - p) / 2 * (p * a_right + (1 - p) * a_wrong)
agrees = bool(abs(exact / (mean_square(p) + added) - 1) < 1e-12)
print("noise of the mean of the others, relative error < 1e-12:", agrees)

own = squared[groups]  # weights of a group's rewards: with the own one, and of the others alone
weighted = {
    "own reward inside": (own * R[groups]).sum(dim=1, keepdim=True) / own.sum(dim=1, keepdim=True),
    "the others alone": ((own * R[groups]).sum(dim=1, keepdim=True) - own * R[groups])
    / (own.sum(dim=1, keepdim=True) - own),
}
exact = pi * (R - p)  # the gradient of p
for name, b in weighted.items():
    A = R[groups] - b
    update = torch.einsum("g,gi,gip->p", pi[groups].prod(dim=1), A, S[groups]) / 3
    along = torch.cosine_similarity(update, exact, dim=0)
    print(f"b* of the group, {name}: the mean update is grad p:",
          bool((update - exact).norm() < 1e-12), f"(cosine {along:.3f})")

# %% [text]
# For single prompts of the models at 20 and 60 steps, take the signal-to-noise ratio of a constant $b^*$ as 100 %. $A = R$ has {=share_of_best("R")} of it,
# the group's estimate from scores {=share_of_best("best b of the others")}, and $R - $ mean {=share_of_best("R − mean")}. (Medians over prompts.)
#
# **Does the less noisy baseline learn faster, then?** In [lesson 0](00_loop.ipynb) noise limits the speed: there the baselines' variances differ far more than
# here. In [lesson 13](13_quiet_estimators.ipynb) GRPO, Dr. GRPO and other powers of σ are nearly equally quiet, and runs cannot say whether the rest matters.
# Here baselines differ more, and the aim at step 20 nearly orders the seven arms by their accuracy over training: the rank correlation is
# {=in_order("arithmetic", "over training"):.2f} on arithmetic and {=in_order("expressions", "over training"):.2f} on expressions. It does not order the ends ({=in_order("arithmetic", "at the end"):.2f} and {=signed(in_order("expressions", "at the end"), 2)}). (We looked for this
# after the runs.) So noise counts where it differs much. But it is a property of baseline *and* policy: on expressions, whoever chose by the base
# model would have left out the arm that learned best.
#
# **3. The quietest κ.** Take $m_0 = 0$, and let all scores be equally long, so that the noise is that of $R - b_i$. For which κ is it least?


# %% [exercise]
def quietest(p, G):
    return ...


# %% [check]
check("19.3", quietest)

# %% [hint]
# $b_i = cX$, where $X$ is the mean of the others and $c = \frac{G-1}{G-1+\kappa}$. Minimise $\mathbb E(R - cX)^2$ over $c$: $R$ and $X$ are
# independent, $\mathbb E X = p$, and $\mathbb E X^2 = p^2 + \frac{pq}{G-1}$. Then solve for κ.


# %% [solution]
def quietest(p, G):
    # c = p^2 / (p^2 + pq / (G - 1)) = (G - 1) / (G - 1 + q/p)
    return (1 - p) / p


# %% [text]
# Your κ does not depend on $G$, and is small where most completions are right. At $p = .9$ it is 1/9, and an all-right group of eight has $A = 1/64$. Runs did
# better with ½; there scores are not equally long.
#
# **What this cannot say.** Two tasks, models of 152,192 parameters, completions of at most 56 tokens, a verifier without errors.
#
# ## To remember
#
# - One number κ leads from the mean of the others to no baseline, and the mean update stays $\nabla p$: the own reward is not in the baseline.
# - The mean score of right completions points along the gradient, so all-right groups carry signal. A group's mean throws it away.
# - $A = R$ ended highest: {=points("R", "arithmetic").split(" [")[0]} and {=points("R", "expressions").split(" [")[0]} points above $R - $ mean with one update a batch, {=ahead("arithmetic")} and {=ahead("expressions")} above
#   RLOO with four (arithmetic, expressions).
# - The least noisy constant is the mean reward weighted by $\|s\|^2$. An estimate from eight completions is not that constant.
#
# ## For a second reading (8 minutes)
#
# **How sure is it?** With one update a batch, {=sum(tested)} of {=len(tested)} differences from $R - $ mean survive Holm's correction, those of $A = R$ at the end on both tasks
# among them. With four no difference on one task survives. The comparison named in advance, κ = 3 on both tasks, is undecided: {=above(arms["κ = 3"]["both"]["gap"], 2)} points.
#
# **Aim is not everything.** On expressions $A = R$ without all-right groups is worse aimed than $R - $ mean at all three stages. It learns more slowly, as it should
# ({=above(learned[LEFT_OUT]["expressions, over training"]["gap"])} points over training). Yet it ends {=points(LEFT_OUT, "expressions")} points above. We do not know why.
#
# **How the aim is measured.** The scores of 4,096 completions of each of 16 held-out prompts are computed. One half gives the direction of $\nabla p$;
# batches from the other half show how well each baseline aims. On the base model of arithmetic $A = R$ has {=mean("R", "arithmetic", 0):.2f} and the group's mean
# {=mean("R − mean", "arithmetic", 0):.2f} (in the other batches of lesson 13 {=elsewhere[0]:.2f} and {=elsewhere[1]:.2f}).
#
# **Two cheap substitutes.** Each score costs a backward pass. OPO ([2505.23585](https://arxiv.org/abs/2505.23585)) takes $\|s\|^2$ to be proportional to
# length. OTB ([2602.07078](https://arxiv.org/abs/2602.07078)) takes the squared gradient of a token's log-probability in the *logits*,
# $1 - 2\pi + \sum \pi^2$, and has a baseline for each position. Among the completions of a prompt, length explains {=100 * fits[:, 0].min():.0f} to {=100 * fits[:, 0].max():.0f} % of the
# variance of $\|s\|^2$, the logits {=100 * fits[:, 1].min():.0f} to {=100 * fits[:, 1].max():.0f} %. On arithmetic long completions are the worked ones, which are right and have short
# scores. There OPO's weight points the wrong way: its cosine on the base model is {=mean("OPO", "arithmetic", 0):.2f}.
#
# **After 240 batches nothing is lost** (five seeds). κ = ∞ ends {=late_gap(0, "end")} points above RLOO on arithmetic and {=late_gap(1, "end")} on expressions.
# Its entropy differs from RLOO's by {=late_gap(0, "entropy", 3, 1)} and {=late_gap(1, "entropy", 3, 1)} nats a token (on expressions its rate is half of
# RLOO's, which may be why). Pass@64 is .998 or more in all arms.
#
# **Two other ways.** DAPO replaces silent groups. At as many completions this changes the accuracy by {=gained(replaced)} points from RLOO's. With the accuracy
# of the last batch as $m_0$ ([2511.03710](https://arxiv.org/abs/2511.03710) shrinks towards it), all-right groups train less and less, and κ = ∞ changes
# it by {=gained("κ = ∞, m₀ = accuracy")}.
#
# **What we predicted**, and what came out (arithmetic, expressions):
#
# {=predictions()}

# %% [markdown]
# Sources: the best baseline: Weaver and Tao, *The Optimal Reward Baseline for Gradient-Based Reinforcement Learning*, UAI 2001 (the mean reward), and Greensmith,
# Bartlett and Baxter, JMLR 2004. The measurements are ours (`lessons/experiments/baselines.py`, `shrinkage.py`).
