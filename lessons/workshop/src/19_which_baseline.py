# %% [markdown] 25 minutes
# # 19 · Which baseline?
#
# GRPO and Dr. GRPO subtract the mean reward of the group. If all completions of a group are right, every advantage is then 0, and the group
# moves nothing. REINFORCE subtracts nothing: its advantage is the reward, $A = R$. Does it pay to train on such groups?
#
# > **Right completions alone carry a prompt's gradient, so on average even an all-right group points along it. Subtracting the group's mean
# > silences such groups. In our runs $A = R$ learned best of seven advantages, and much of its lead came from them.**
#
# Late in a run most groups are all right. This lesson says what they still teach, and which line lets them train.

# %% [fold]
import numpy as np

from lessons.experiments import baselines, baselines_tables, estimators, paired, shrinkage
from lessons.experiments.grid import change, gaps_table, load_runs, markdown
from lessons.workshop.kit import check, show
from lessons.workshop.parts.lesson_19 import gains

LEFT_OUT = "R, all-right groups left out"
NAMES = {
    "R": "A = R", LEFT_OUT: "A = R, mixed groups only", "R − 1": "A = R − 1",
    "R − mean": "R − mean (Dr. GRPO)", "OPO": "b* from lengths (OPO)",
    "OTB": "b* from logits (OTB)", "best b of the others": "b* from scores",
}
learned = baselines_tables.learned(*map(load_runs, (baselines.RESULTS, baselines.TUNED)))
show(gains(learned, {row: name for row, name in NAMES.items() if row != "R − mean"}))


def above(comparison, *rounding):
    return change(comparison, *rounding).strip("*").replace("+", "")


def alone(text):
    """A difference without its interval."""
    return text.split(" [")[0]


def points(row, task):
    return above(learned[row][f"{task}, at the end"]["gap"])


def lost(task):
    """By leaving out the all-right groups of A = R."""
    return alone(above(baselines_tables.difference(learned, "R", LEFT_OUT, f"{task}, at the end")))


# %% [text]
# *Accuracy after 15,360 completions, in points above Dr. GRPO (line at 0): means of ten seeds with 95 % intervals. See the orange dots first: only
# this arm trains on all-right groups. $R - 1$ trains on wrong completions only; the three $b^*$ estimate the least noisy baseline ([lesson
# 13](13_quiet_estimators.ipynb)). One update a batch, no KL; each arm has the rate that was best for it on three other seeds.*
#
# **$A = R$ ends highest on both tasks.** Its lead over Dr. GRPO is {=alone(points("R", "arithmetic"))} points on arithmetic and {=alone(points("R", "expressions"))} on expressions. Without
# all-right groups it loses {=lost("arithmetic")} and {=lost("expressions")} of these points. (The [front page](../README.md#results) has REINFORCE below GRPO. There all
# scripts share one learning rate, tuned for none.)
#
# | symbol | meaning |
# |---|---|
# | $G,\ p,\ q$ | completions of one prompt; the probability that one is right; $1-p$ |
# | $R,\ s$ | the reward of a completion, 0 or 1; its score $\nabla_\theta \log \pi_\theta(y)$ |
# | $m_+,\ m_-,\ \Delta m$ | the mean score of right and of wrong completions; $m_+ - m_-$ |
#
# ## Right completions alone carry the gradient
#
# The gradient of $p$ is the mean of $R\,s$ ([lesson 1](01_score_function.ipynb)). A wrong completion has $R = 0$ and drops out:
#
# $$\nabla p = \mathbb E[R\,s] = p\,m_+$$
#
# So the mean score of right completions points along the gradient. It does not matter whether the others of their group are right or wrong.
# With $A = R$ the update of an all-right group is the mean of its scores, and its expectation is $m_+$.
#
# **1. An all-right group.** Express this expectation by $p$ and $\Delta m$.


# %% [exercise]
def all_right_update(p, difference):
    """From p and the vector dm = m+ - m-."""
    return ...


# %% [check]
check("19.1", all_right_update)

# %% [hint]
# All scores together have the mean 0: $p\,m_+ + q\,m_- = 0$. Put $m_- = m_+ - \Delta m$ into it.


# %% [solution]
def all_right_update(p, difference):
    return (1 - p) * difference  # ∇p is p times this


# %% [markdown]
# So $\nabla p = p\,q\,\Delta m$. A mixed group moves along $\Delta m$, an all-right one along the same direction.
#
# ## Who brings the gradient?
#
# Take groups of two and $p = .9$. Compare $A = R$ with [RLOO](../algorithms/rloo.py), which subtracts the reward of the other completion and has
# the direction of $R - $ mean. The expected update of each kind of group:
#
# | the group | how often | $A = R$ | RLOO |
# |---|---|---|---|
# | both right | .81 | $.1\,\Delta m$ | 0 |
# | one right | .18 | $.05\,\Delta m$ | $.5\,\Delta m$ |
# | none right | .01 | 0 | 0 |
# | **mean** | | $.09\,\Delta m$ | $.09\,\Delta m$ |
#
# Both means are $\nabla p$. But with $A = R$ nine tenths of it comes from all-right groups. In RLOO the 18 % of mixed groups bring everything, and
# each of them brings a wrong completion's noise.
#
# **2. Their share.** With $A = R$, which share of $\nabla p$ do all-right groups of $G$ bring?


# %% [exercise]
def share(p, G):
    return ...


# %% [check]
check("19.2", share)

# %% [hint]
# How often is a group all right, and what is its expected update? Divide the product by $\nabla p$.


# %% [solution]
def share(p, G):
    return p ** (G - 1)  # p^G times m+, over p m+: the other G - 1 must be right, too


# %% [fold]
stages = load_runs(baselines.MEASURED_STAGES)
columns = [(task, step) for task in baselines.TASKS for step in baselines.STEPS]
of = {column: [s for s in stages if (s["task"], s["step"]) == column] for column in columns}
measured = {c: [prompt for s in of[c] for prompt in s["prompts_measured"] if prompt] for c in columns}
p, best = ({c: np.array([prompt[key] for prompt in measured[c]]) for c in columns} for key in ("p", "best b"))
median_p = {column: np.median(p[column]) for column in columns}


def quieter(task):
    """The share of prompts on which 0 is less noisy than b = p after 60 steps."""
    return np.mean(best[task, 60] < p[task, 60] / 2)


def cosine(name, task, step):
    return np.mean([np.mean(stage["cosines"][name]) for stage in of[task, step]])


def efficiency(name, task, step):
    """The signal-to-noise ratio of one prompt's update, in % of that with a constant b*."""
    return 100 * baselines.efficiency(of[task, step], name)


def efficiencies():
    shown = ("R", LEFT_OUT, "R − mean")
    values = {name: [f"{efficiency(name, task, 60):.0f} %" for task in baselines.TASKS] for name in shown}
    return markdown(["after 60 steps", *baselines.TASKS], [[NAMES[name], *values[name]] for name in shown])


knob_runs = load_runs(shrinkage.RESULTS)
arms, (_, half) = shrinkage.compared(knob_runs), shrinkage.ALL_RIGHT
shown = {"RLOO": arms["κ = 0"], "RLOO, all-right groups: ½": arms[half], "R": arms["κ = ∞"]}
assert "**" not in gaps_table("A", shown, "RLOO")

# %% [text]
# Your share grows steeply. In 60 steps of GRPO the $p$ of a median prompt of arithmetic rises from {=median_p["arithmetic", 0]:.2f} to {=median_p["arithmetic", 60]:.2f}, and in groups of eight the share
# from nearly 0 to {=median_p["arithmetic", 60]**7:.2f}. On expressions $p$ ends at {=median_p["expressions", 60]:.2f} and the share at {=median_p["expressions", 60]**7:.2f}. (Of the prompts that have right and wrong completions.)
#
# ## Which is less noisy?
#
# For one prompt the means are equal, so noise decides. The baseline 0 is less noisy than $p$ where wrong completions have much the longer scores:
# where the least noisy baseline $b^*$ is below $p/2$ ([lesson 13](13_quiet_estimators.ipynb)). After 60 steps this holds on {=quieter("arithmetic"):.0%} of the prompts of arithmetic
# and on {=quieter("expressions"):.0%} of those of expressions.
#
# The test is the measured signal-to-noise ratio of one group's update (squared signal over noise), as a share of what the constant $b^*$ would give
# (medians over prompts):
#
# {=efficiencies()}
#
# $A = R$ does better than $R - $ mean. **Without its all-right groups it loses most of its signal-to-noise ratio.**
#
# ## Is it these groups?
#
# $A = R$ also leaves the wrong completions of mixed groups alone. So we changed one thing only: RLOO, but every completion of an all-right
# group has $A = ½$. Four updates a batch, ten seeds; accuracy of RLOO, and points above it:
#
# {=gaps_table("A", shown, "RLOO")}
#
# **Over both tasks $A = R$ gains about a point, and most of it comes with these groups alone.** (Each arm has its best rate; the middle one takes that of
# $\kappa = 7$ below. [All arms](experiments/README.md#which-baseline).)
#
# **What we would try** is the middle row. It is one line, and RLOO as long as no group is all right:
#
# ```python
# A[R.mean(axis=1) == 1] = 0.5
# ```
#
# (It gives easy prompts more weight. The knob κ in the second reading does not.)
#
# ## What this does not decide
#
# - *Which baseline suits an untrained model.* The base model of expressions mostly repeats the number. These wrong completions have short scores,
#   and there $A = R$ has {=efficiency("R", "expressions", 0):.0f} % of the best signal-to-noise ratio, $R - $ mean {=efficiency("R − mean", "expressions", 0):.0f} %.
# - *Whether noise is all.* On expressions $A = R$ without all-right groups is much the noisier one, and yet ends {=points(LEFT_OUT, "expressions")} points above
#   $R - $ mean. We do not know why.
# - *Larger models.* Ours have 152,192 parameters, two tasks, completions of at most 56 tokens, and a verifier without errors.
#
# ## To remember
#
# - $\nabla p = p\,m_+$: right completions alone carry the gradient of one prompt.
# - With $A = R$ all-right groups bring the share $p^{G-1}$ of it. A group's mean silences them, and mixed groups bring all.
# - In our runs $A = R$ learned best, and much of its lead came from these groups. It is the quieter choice only where wrong completions have
#   much the longer scores.

# %% [fold]
gap = {(arm, column): 100 * number["gap"]["difference"]
       for arm, row in arms.items() for column, number in row.items()}
replaced, to_accuracy = shrinkage.REPLACED, "κ = ∞, m₀ = accuracy"
off = [gap[a, task] - gap[kappa, task] for task in baselines.TASKS
       for a, kappa in zip(shrinkage.ALL_RIGHT, ("κ = 1", "κ = 7"))]
# Two of six predictions held: all-right groups alone do what κ does; replacing ends below κ = 3
assert max(map(abs, off)) < 0.5 and gap["κ = 3", "both"] < 0.5
assert 2 * gap["κ = 3, m₀ = accuracy", "both"] > gap["κ = 3", "both"]
assert all(gap[replaced, task] < gap["κ = 3", task] for task in baselines.TASKS)
assert gap["κ = 1", "arithmetic"] < 0 < gap["κ = ∞", "expressions"] - gap["κ = 7", "expressions"]
tested = [number["gap"]["p_holm"] < paired.LEVEL for columns_of in learned.values()
          for number in columns_of.values() if "p_holm" in number["gap"]]
assert all(learned["R"][f"{task}, at the end"]["gap"]["p_holm"] < paired.LEVEL
           for task in baselines.TASKS)
fits = np.array([np.mean([prompt["fits"] for prompt in measured[c]], axis=0) for c in columns])


def aims(task):
    return f"{cosine('R', task, 60):.2f} against {cosine('R − mean', task, 60):.2f}"


def aims_of_13(task):
    there = (estimators.cosine(task, 60, name) for name in ("no baseline", "σ^2"))
    return "{:.2f} against {:.2f}".format(*there)


def gained(arm, *rounding):
    return above(arms[arm]["both"]["gap"], *rounding)


def late_gap(task, outcome, *rounding):
    chosen = ([baselines.TASKS[task]], outcome, shrinkage.LONG)
    values = (shrinkage.outcomes(knob_runs, arm, *chosen) for arm in ("κ = ∞", "κ = 0"))
    return above(paired.difference(*values), *rounding)


# %% [markdown]
# ## For a second reading (10 minutes)
#
# **One knob from RLOO to $A = R$.** Add κ imaginary completions of reward $m_0$ to the others:
#
# $$b_i = \frac{\sum_{j\ne i} R_j + \kappa\,m_0}{G - 1 + \kappa}$$
#
# The own reward is not in $b_i$. So the mean update is $\nabla p$ for every κ, and for every $m_0$ fixed before the group is drawn.
# κ = 0 is RLOO; κ = ∞ with $m_0 = 0$ is $A = R$.
#
# **3. The knob.** Write its advantages, without a loop.


# %% [exercise]
def shrunk(rewards, kappa, m0):
    """Advantages (P, G) from rewards (P, G) and two numbers."""
    return ...


# %% [check]
check("19.3", shrunk)

# %% [hint]
# The sum of the others' rewards is the group's sum less the own reward.


# %% [solution]
def shrunk(rewards, kappa, m0):
    others = rewards.sum(1, True) - rewards
    return rewards - (others + kappa * m0) / (rewards.shape[1] - 1 + kappa)


# %% [text]
# An all-right group now has $A = \kappa(1 - m_0)/(G - 1 + \kappa)$: ½ at κ = 7 in groups of eight, with $m_0 = 0$. Over both tasks κ = 7 ends {=gained("κ = 7")} points
# above RLOO. κ = 3, the comparison named in advance, is undecided: {=gained("κ = 3", 2)}. With the accuracy of the last batch as $m_0$
# ([2511.03710](https://arxiv.org/abs/2511.03710) shrinks towards it) these groups train less and less, and κ = ∞ changes it by {=gained(to_accuracy)}. DAPO's
# way, replacing silent groups, changes it by {=gained(replaced)} at as many completions.
#
# Two of six [predictions](experiments/README.md#which-baseline) held. Four failed: that κ = 3 gains half a point or more; that κ = 1 ends above κ = 0, and
# κ = ∞ below 7 on expressions; that $m_0$ = accuracy takes more than half of κ = 3's gain; that after 240 batches κ = ∞ has the lower entropy
# on both tasks.
#
# **How sure is it?** With one update a batch, {=sum(tested)} of {=len(tested)} differences from $R - $ mean survive Holm's correction, those of $A = R$ at the end on both tasks
# among them. With four no difference on one task survives.
#
# **After 240 batches nothing is lost** (five seeds). $A = R$ ends {=late_gap(0, "end")} points above RLOO on arithmetic and {=late_gap(1, "end")} on expressions.
# Its entropy differs by {=alone(late_gap(0, "entropy", 3, 1))} and {=alone(late_gap(1, "entropy", 3, 1))} nats a token (on expressions its rate is half of RLOO's, which may be why). Pass@64 is .998
# or more in all arms.
#
# **Does a whole batch aim better?** That adds prompts that are nearly always right: noise under $A = R$, silence under $R - $ mean. After 60 steps the
# cosine of a batch's update with the mean ∇p over prompts is {=aims("arithmetic")} on arithmetic, and {=aims("expressions")} on expressions ($A = R$
# first). Lesson 13 drew other batches from models trained alike: {=aims_of_13("arithmetic")} and {=aims_of_13("expressions")}. So on arithmetic it does; on
# expressions the two disagree.
#
# **Why not estimate $b^*$?** An estimate is not $b^*$. After 60 steps the estimate from the others' scores has {=efficiency("best b of the others", "arithmetic", 60):.0f} % of the best signal-to-noise ratio on
# arithmetic and {=efficiency("best b of the others", "expressions", 60):.0f} % on expressions. In an all-right group every weighted mean of rewards is 1. And
# a mean weighted by scores or lengths turns the mean update if the own reward is in it.
#
# **Two cheap substitutes.** OPO ([2505.23585](https://arxiv.org/abs/2505.23585)) takes $\|s\|^2$ to be proportional to length; OTB
# ([2602.07078](https://arxiv.org/abs/2602.07078)) takes a token's squared gradient in the *logits*, with a baseline for each position (0 where one completion
# of the group is left, so this tail of an all-right group trains). Among the
# completions of a prompt, length explains {=100 * fits[:, 0].min():.0f} to {=100 * fits[:, 0].max():.0f} % of the variance of $\|s\|^2$, the logits {=100 * fits[:, 1].min():.0f} to {=100 * fits[:, 1].max():.0f} %. On the base model of arithmetic right
# completions are long and have short scores. There OPO's cosine is {=cosine("OPO", "arithmetic", 0):.2f},
# that of $R - $ mean {=cosine("R − mean", "arithmetic", 0):.2f}, and that of $A = R$ {=cosine("R", "arithmetic", 0):.2f}.

# %% [markdown]
# Sources: the best baseline: Greensmith, Bartlett and Baxter, JMLR 2004. The measurements are ours (`lessons/experiments/baselines.py`, `shrinkage.py`).
