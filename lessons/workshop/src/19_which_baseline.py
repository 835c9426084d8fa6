# %% [markdown] 35 minutes
# # 19 · Which baseline?
#
# A baseline changes the noise of the gradient and not its mean ([lesson 1](01_score_function.ipynb)). GRPO subtracts the mean reward of the
# group. **The odds $b/(1-b)$ of the least noisy baseline are those of a right completion times a ratio of squared score norms.** Before
# training that baseline lies near 0 on one of our tasks and near 1 on the other, afterwards far below the mean reward on both; length does not tell where.
#
# | symbol | meaning |
# |---|---|
# | $G,\ p,\ q$ | completions of one prompt; the probability that one is right; $1-p$ |
# | $R,\ s$ | the reward of a completion, 0 or 1; its score $\nabla_\theta \log \pi_\theta(y)$ |
# | $a_+,\ a_-$ | the mean of $\|s\|^2$ over right and over wrong completions |
# | $b,\ b^*$ | a constant baseline for a prompt: the advantage is $R - b$; the least noisy one |
# | $m_\pm,\ \Delta m$ | the mean score of right and of wrong completions; $m_+ - m_-$ ([lesson 13](13_quiet_estimators.ipynb)) |
#
# ## The best constant
#
# The update $(R-b)\,s$ of one completion has the mean $\nabla p$ whatever $b$ is, so its noise depends on $b$ as its mean square does:
#
# $$\mathbb E\,\|(R-b)\,s\|^2 = p\,(1-b)^2 a_+ + q\,b^2 a_-, \qquad \frac{b^*}{1-b^*} = \frac pq\cdot\frac{a_+}{a_-}$$
#
# So $b^*$ is the mean reward weighted by $\|s\|^2$ (Greensmith, Bartlett and Baxter 2004). It is $p$ only if $a_+ = a_-$. Where
# wrong completions are the noisy ones, $b^* \to 0$: leave them alone, as REINFORCE does. Where right ones are, $b^* \to 1$.
#
# A group's mean is not a constant. The mean of the *other* completions ([RLOO](../algorithms/rloo.py)) is $p$ plus its own noise, which adds
# $\frac{pq}{G-1}(p\,a_+ + q\,a_-)$. We check both on a policy with six answers, over all of them, and over all groups of three:

# %% [fold]
from itertools import product

import numpy as np
import torch

from algorithms import rloo
from lessons.experiments import baselines, baselines_tables, estimators, paired, shrinkage
from lessons.experiments.grid import change, load_runs, markdown, signed
from lessons.workshop.kit import check, knob, say
from lessons.workshop.parts.lesson_19 import by_baseline, noise_of_baselines

stages = load_runs(baselines.MEASURED_STAGES)
columns = [(task, step) for task in baselines.TASKS for step in baselines.STEPS]
of = {column: [s for s in stages if (s["task"], s["step"]) == column] for column in columns}
NAMES = {
    "best b of the prompt": "b* of the prompt, known", "R": "none, A = R",
    "R, all-right groups left out": "none, all-right groups left out",
    "R − 1": "b = 1, A = R − 1", "R − mean": "group's mean, Dr. GRPO",
    "OPO": "OPO, weighted by length", "OTB": "OTB, weighted by logits",
    "best b of the others": "b* from the others' scores",
}

# %%
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

# %% [markdown]
# Move the sliders. How noisy is each baseline?


# %%
def draw(p, ratio, G):
    def noise(b):
        return p * (1 - b) ** 2 + (1 - p) * b**2 * ratio

    best = p / (p + (1 - p) * ratio)
    others = noise(p) + p * (1 - p) / (G - 1) * (p + (1 - p) * ratio)
    marks = {"none, b = 0": (0, noise(0)), "b*": (best, noise(best)),
             f"mean of the other {G - 1}": (p, others),
             "p": (p, noise(p)), "b = 1": (1, noise(1))}
    b = np.linspace(0, 1, 201)
    marks = {name: (at, height / noise(best)) for name, (at, height) in marks.items()}
    title = f"p = {p:.2f}, $a_-/a_+$ = {ratio:g}"
    return noise_of_baselines(b, noise(b) / noise(best), marks, title)


knob(draw, p=(0.05, 0.95, 0.05, 0.4), ratio=[8, 0.1, 0.25, 0.5, 1, 2, 4, 32], G=(2, 32, 1, 8))

# %% [markdown]
# *The noise of the update, relative to that of $b^*$. At $p$ = .4 and $a_-/a_+$ = 8, $b = 0$ is quieter than the mean of any
# group; at ¼ it is the noisiest.*
#
# ## In models that are training
#
# GRPO trains our two models: *arithmetic*, with one right answer, and *expressions*, where `39?` asks for any expression of that value.
# Before training and after 20 and 60 steps, we compute the scores of 4,096 completions of each of 16 held-out prompts. One half gives
# the direction of $\nabla p$ and $b^*$; groups of eight from the other half show how noisy each baseline is.


# %%
def by_seed(quantity, names):
    return {NAMES[name]: [[quantity(s, name) for s in of[column]] for column in columns]
            for name in names}


signal = by_seed(lambda stage, name: baselines.efficiency([stage], name),
                 [name for name in NAMES if name != "OTB"])
cosine = by_seed(lambda stage, name: np.mean(stage["cosines"][name]),
                 [name for name in NAMES if "prompt" not in name])


def draw(measure):
    if measure == "a group":
        return by_baseline(signal, columns, "signal to noise of a group, that of b* is 1")
    return by_baseline(cosine, columns, "cosine of a batch with the gradient")


knob(draw, measure=["a group", "a batch"])

# %% [fold]
rows, prompts = [], {c: [prompt for s in of[c] for prompt in s["prompts_measured"] if prompt] for c in columns}
for c in columns:
    p, b = (np.array([prompt[key] for prompt in prompts[c]]) for key in ("p", "best b"))
    fits = [*np.mean([prompt["fits"] for prompt in prompts[c]], axis=0), np.mean([s["fit of tokens"] for s in of[c]])]
    ratio = np.median(p / (1 - p) * (1 - b) / b)
    rows.append([*c, np.median(p), ratio, np.median(b), *fits])
fits = np.array([row[5:] for row in rows])
titles = ["$p$", "$a_-/a_+$", "$b^*$", "from length", "from logits", "token, from logits"]
cells = [[f"{task}, step {step}", *(f"{x:.2f}" if x < 1 else f"{x:.2g}" if x < 100 else f"{x:.0f}" for x in row)]
         for task, step, *row in rows]  # fmt: skip
say(markdown(["medians over prompts, then $r^2$ of $\\|s\\|^2$", *titles], cells))


def mean(table, name, task, step):
    return np.mean(table[NAMES[name]][columns.index((task, step))])


late = [(task, 60) for task in baselines.TASKS]
kept = [mean(cosine, "R", *c) for c in late]
left_out = [mean(cosine, "R, all-right groups left out", *c) for c in late]
by_mean = [mean(cosine, "R − mean", *c) for c in late]
assert left_out[1] < by_mean[1]
by_variances, of_means = [], []  # in the policies that were trained, medians over prompts
for task, step in [c for c in columns if c[1]]:
    measured = [prompt for run in estimators.published() if (run["task"], run["step"]) == (task, step)
                for prompt in run["of prompts"]]
    p = np.array([sum(prompt["right"]) for prompt in measured]) / 4096
    v_right, v_wrong, squared = np.array([prompt["moments"][0][0][:3] for prompt in measured]).T
    by_variances.append(np.nanmedian(p * v_right / (p * v_right + (1 - p) * v_wrong)))
    listed = ", ".join(f"{x:.2f}" for x in by_variances)
    of_means.append(np.nanmedian(p**2 * squared / (v_wrong + p**2 * squared)))

# %% [text]
# *Above: a group's signal to noise (median over prompts with right and wrong completions) or the mean cosine of a batch with
# the gradient (menu; also for OTB); small marks are the {=len(of["arithmetic", 0])} seeds. Below: $r^2$, over the completions of a prompt,
# between $\|s\|^2$ and the completion's length, or the sum over its tokens of OTB's logit proxy; last, over tokens.*
#
# **The mean reward is nowhere the best baseline.** On arithmetic's base model $b^*$ is {=rows[0][4]:.2f}: wrong completions are blurted guesses with long
# scores, so $b = 0$ is better aimed than the group's mean (cosine {=mean(cosine, "R", "arithmetic", 0):.2f} against {=mean(cosine, "R − mean", "arithmetic", 0):.2f}). On that of expressions
# the usual wrong completion repeats the number and has a short score: $b^*$ is {=rows[3][4]:.2f} at $p$ = {=rows[3][2]:.2f}, and $b = 0$ is the worst. After training
# $p$ is near 1 and $b^*$ below ½ on both. The spread of the scores makes it: their variances alone give {=listed}. With one parameter,
# where scores of a kind are equal, it would be $1 - p$ ([lesson 0](00_loop.ipynb)); here $\|m_-\|^2$ is {=100 * min(of_means):.0f} to {=100 * max(of_means):.0f} % of $a_-$.
#
# **With a constant baseline below 1 an all-right group is not silent**, and it carries signal: its mean score is $q\,\Delta m$ on average ($\mathbb E\,s = 0$).
# After 60 steps, leaving these groups out lowers the cosine of $b = 0$ from {=kept[0]:.2f} to {=left_out[0]:.2f} and from {=kept[1]:.2f} to {=left_out[1]:.2f}; the group's mean
# has {=by_mean[0]:.2f} and {=by_mean[1]:.2f}.
#
# ## Two cheap substitutes for the score's norm
#
# Each score costs a backward pass. OPO ([2505.23585](https://arxiv.org/abs/2505.23585)) takes $\|s\|^2$ to be proportional to length; OTB
# ([2602.07078](https://arxiv.org/abs/2602.07078)) takes the squared gradient of a token's log-probability in the *logits*, $1 - 2\pi + \sum \pi^2$, and has a baseline for each position.
#
# Length explains {=100 * fits[:, 0].min():.0f} to {=100 * fits[:, 0].max():.0f} % of the variance of $\|s\|^2$, the logits {=100 * fits[:, 1].min():.0f} to {=100 * fits[:, 1].max():.0f} %. On arithmetic long completions are the worked ones, which
# are right and have short scores: there OPO's weight points the wrong way (cosine {=mean(cosine, "OPO", "arithmetic", 0):.2f} on the base model, the mean's is {=mean(cosine, "R − mean", "arithmetic", 0):.2f}).
#
# ## Which learns best?
#
# Dr. GRPO's training without KL and with these advantages, 15,360 completions, one update a batch. Every number is at the rate that
# was best for it on three other seeds; ten seeds. *Does the best aim learn best? Guess, then open the output (…).*

# %% guess
runs, trials = load_runs(baselines.RESULTS), load_runs(baselines.TUNED)
learned = baselines_tables.learned(runs, trials)
say(baselines_tables.gaps_table(learned))


def points(row, column="arithmetic, at the end", table=learned):
    return change(table[row][column]["gap"]).strip("*")


def apart(row, other, column="arithmetic, at the end"):
    return change(baselines_tables.difference(learned, row, other, column))


LEFT_OUT, EXPRESSIONS = "R, all-right groups left out", "expressions, at the end"
pair = ("R", LEFT_OUT)
knob_runs = load_runs(shrinkage.RESULTS)
arms, (eighth, half) = shrinkage.compared(knob_runs), shrinkage.ALL_RIGHT
gap = {(arm, column): 100 * number["gap"]["difference"]
       for arm, row in arms.items() for column, number in row.items()}
off = [gap[a, task] - gap[kappa, task] for task in baselines.TASKS
       for a, kappa in ((eighth, "κ = 1"), (half, "κ = 7"))]
assert max(map(abs, off)) < 0.5 and gap["κ = 3", "both"] < 0.5
just = signed(off[3])


def gained(arm):
    return change(arms[arm]["both"]["gap"]).strip("*")


def late_gap(task, outcome, digits=1, scale=100):
    chosen = ([baselines.TASKS[task]], outcome, shrinkage.LONG)
    values = (shrinkage.outcomes(knob_runs, arm, *chosen) for arm in ("κ = ∞", "κ = 0"))
    return change(paired.difference(*values), digits, scale)


# %% [text]
# *Accuracy of $R - $ mean; the others' differences from it in points, with 95 % intervals; bold: p < .05 after Holm's correction.*
#
# **No baseline learns best, because all-right groups train.** With $A = 0$ there, it is worse aimed than the group's mean on expressions ({=left_out[1]:.2f} against {=by_mean[1]:.2f}, above),
# and still ends {=points(LEFT_OUT, EXPRESSIONS)} points from it. Training on these groups is worth {=apart(*pair)} and {=apart(*pair, EXPRESSIONS)} points. Aim does not order the rest: exact norms are
# better aimed than OPO's lengths, and end {=apart("best b of the others", "OPO")} and {=apart("best b of the others", "OPO", EXPRESSIONS)} points from them.
#
# ## One knob
#
# The mean and no baseline differ in noise, in all-right groups and in all-wrong ones. Count κ more completions of reward $m_0$ among the others:
#
# $$b_i = \frac{\sum_{j\ne i} R_j + \kappa\,m_0}{G - 1 + \kappa}$$
#
# The mean update is $\nabla p$ for every κ, and every $m_0$ fixed before the group is drawn. κ = 0 is RLOO; κ = ∞ with $m_0 = 0$ is $A = R$; an all-right group has
# $A = \kappa(1 - m_0)/(G - 1 + \kappa)$, ⅛ at κ = 1 and ½ at κ = 7. With the last batch's accuracy as $m_0$ it is smaller ([2511.03710](https://arxiv.org/abs/2511.03710)
# shrinks towards that). Four updates a batch, ten seeds, each arm at its best rate or that of its κ; points above κ = 0:
#
# {=shrinkage.gaps_table(arms)}
#
# {=shrinkage.long_table(knob_runs)}
#
# *Bold: p < .05 by Holm over the {=2 * (len(arms) - 1)} differences on one task. Below: 240 batches, five seeds; nats per token.*
#
# **The knob is worth about a point, and all-right groups are most of it.** κ = 7 and κ = ∞ end {=gained("κ = 7")} and {=gained("κ = ∞")} points above RLOO on the two tasks together (no difference on one task survives the correction). RLOO with nothing
# but these groups at ½ gains {=gained("κ = 0, all-right groups ½")}; where $m_0$ is the accuracy they train less and less, and κ = ∞ gains {=gained("κ = ∞, m₀ = accuracy")}. The primary comparison, κ = 3, is
# undecided at {=gained("κ = 3")}. Replacing silent groups, at as many completions, ends {=gained("κ = 0, silent groups replaced")} from RLOO.
#
# **Nothing is lost after 240 batches.** κ = ∞ ends {=late_gap(0, "end")} and {=late_gap(1, "end")} points above RLOO. Its entropy is {=late_gap(0, "entropy", 3, 1)} nats from RLOO's on arithmetic. On expressions,
# where many answers are right, it is {=late_gap(1, "entropy", 3, 1)}, as at κ = 3: both have half of RLOO's rate, which may be why. Pass@64 is .998 or more in all arms.
#
# Two of six predictions held: all-right groups at ⅛ and ½ end within half a point of κ = 1 and κ = 7 (just so on expressions, {=just}), and replacing ends below κ = 3.
#
# **What to do with it.** Let all-right groups train. Measure $\|s\|^2$ for a few hundred right and wrong completions and work out $b^*$ from the odds:
# far from the mean reward, a constant near it is less noisy than the group's mean.
#
# **What this cannot say.** Two tasks, models of 152,192 parameters, completions of at most 56 tokens, a verifier without errors.
#
# ## Exercises
#
# **1. No baseline or the mean?** From which ratio $a_-/a_+$ on is $b = 0$ less noisy than $b = p$?


# %% [exercise]
def quieter_from(p):
    """The least a- / a+ from which b = 0 is less noisy than b = p."""
    return ...


# %% [check]
check("19.1", quieter_from)

# %% [hint]
# The noise is a parabola in b, lowest at b*. Which of 0 and p is nearer to it?


# %% [solution]
def quieter_from(p):
    return (2 - p) / (1 - p)  # b* < p / 2, and b* = p / (p + (1 - p) ratio)


# %% [markdown]
# **2. The knob.** Write its advantages, without a loop.


# %% [exercise]
def shrunk(rewards, kappa, m0):
    """Advantages (P, G) from rewards (P, G) and two numbers."""
    return ...


# %% [check]
check("19.2", shrunk)

# %% [hint]
# The sum of the others' rewards is the group's sum less the own reward.


# %% [solution]
def shrunk(rewards, kappa, m0):
    others = rewards.sum(1, True) - rewards
    return rewards - (others + kappa * m0) / (rewards.shape[1] - 1 + kappa)


# %% [markdown]
# **3. What an all-right group knows.** With $b = 0$ its update is the mean score of its completions. What is that on average?


# %% [exercise]
def all_right_update(p, difference):
    """From p and the vector dm = m+ - m-."""
    return ...


# %% [check]
check("19.3", all_right_update)

# %% [hint]
# All scores together have the mean 0: $p\,m_+ + q\,m_- = 0$.


# %% [solution]
def all_right_update(p, difference):
    return (1 - p) * difference


# %% [markdown]
# ## To remember
#
# - The least noisy constant baseline is the mean reward weighted by $\|s\|^2$; its odds are $\frac pq \cdot \frac{a_+}{a_-}$.
# - It is the mean reward only where $a_+ = a_-$, which nothing ensures; here it is well below once wrong completions are rare.
# - Neither length nor logits replace $\|s\|^2$ here. All-right groups carry signal that a group's mean throws away; because of them no
#   baseline ended highest on both tasks: two points with one update a batch, one with four.
#
# Sources: the best baseline: Weaver and Tao, *The Optimal Reward Baseline for Gradient-Based Reinforcement Learning*, UAI 2001 (the mean reward), and Greensmith,
# Bartlett and Baxter, JMLR 2004; OPO, [2505.23585](https://arxiv.org/abs/2505.23585); OTB, [2602.07078](https://arxiv.org/abs/2602.07078). The measurements are ours
# (`lessons/experiments/baselines.py`).
