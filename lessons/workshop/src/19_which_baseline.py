# %% [markdown] 27 minutes
# # 19 · Which baseline?
#
# GRPO and Dr. GRPO subtract the mean reward of the group. If all completions of a group are right, every advantage is then 0, and the group
# moves nothing. REINFORCE subtracts nothing: its advantage is the reward, $A = R$. Does it pay to train on such groups?
#
# > **Right completions are enough for a prompt's gradient, so even an all-right group points along it on average; subtracting the group's mean
# > silences such groups.**
# > In our runs: $A = R$, which trains on them, ended above the group's mean on both tasks, clearly with one update a batch, by a small margin with
# > four (ten seeds). For one prompt it is the less noisy of the two only where wrong completions have much longer scores than
# > right ones.
#
# Late in a run most groups are all right. This lesson says what they still teach, and which line lets them train.

# %% [fold]
import numpy as np

from lessons.experiments import baselines, baselines_tables, estimators, paired, shrinkage
from lessons.experiments.grid import cell, change, load_runs, markdown, select
from lessons.workshop.kit import check, show
from lessons.workshop.parts.lesson_19 import gains, who_brings

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
    return alone(above(learned[row][f"{task}, at the end"]["gap"]))


def lost(task):
    """By leaving out the all-right groups of A = R."""
    return above(baselines_tables.difference(learned, "R", LEFT_OUT, f"{task}, at the end"))


# %% [text]
# *Accuracy after 15,360 completions, in points above Dr. GRPO (line at 0): means of ten seeds with 95 % intervals. See the orange dots first: only
# this arm trains on all-right groups. $R - 1$ trains on wrong completions only; the three $b^*$ estimate the least noisy baseline ([lesson
# 13](13_quiet_estimators.ipynb)). One update a batch, no KL; each arm has the rate that was best for it on three other seeds.*
#
# **$A = R$ ends highest on both tasks**, clearly: {=points("R", "arithmetic")} points above Dr. GRPO on arithmetic, {=points("R", "expressions")} on expressions. Without all-right
# groups it loses {=lost("arithmetic")} and {=lost("expressions")} of these points (95 % intervals, ten seeds). (On the [front page](../README.md#results), where all scripts share
# one learning rate, REINFORCE is below GRPO.)
#
# | symbol | meaning |
# |---|---|
# | $G,\ p,\ q$ | completions of one prompt; the probability that one is right; $1-p$ |
# | $R,\ s$ | the reward of a completion, 0 or 1; its score $\nabla_\theta \log \pi_\theta(y)$ |
# | $m_+,\ m_-,\ \Delta m$ | the mean score of right and of wrong completions; $m_+ - m_-$ |
#
# ## Right completions are enough
#
# The gradient of $p$ is the mean of $R\,s$ ([lesson 1](01_score_function.ipynb)). A wrong completion has $R = 0$ and drops out:
#
# $$\nabla p = \mathbb E[R\,s] = p\,m_+$$
#
# So the mean score of right completions points along the gradient, whatever the others of their group are. (So are wrong ones enough:
# $\nabla p = -q\,m_-$, the arm $R - 1$.)
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
# Both means are $\nabla p$. But with $A = R$ nine tenths of it come from all-right groups. In RLOO the 18 % of mixed groups bring everything, each
# with a wrong completion's noise.
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


starts = [(task, step, f"{task}, {when}") for task in baselines.TASKS
          for step, when in ((0, "base"), (60, "step 60"))]
show(who_brings({name: median_p[task, step] for task, step, name in starts}))

knob_runs = load_runs(shrinkage.RESULTS)
arms, (eighth, half) = shrinkage.compared(knob_runs), shrinkage.ALL_RIGHT
assert "**" not in shrinkage.gaps_table(arms)


def rates(arm):
    """On both tasks."""
    chosen = (select(knob_runs, {"arm": arm, "task": task})[0] for task in baselines.TASKS)
    return ", ".join(f"{1e4 * run['rate']:.0f}e-4" for run in chosen)


def above_half(column):
    """What A = R ends above the row with ½, at the same rates."""
    tasks = shrinkage.COLUMNS[column]
    values = (shrinkage.outcomes(knob_runs, arm, tasks, "end") for arm in ("κ = ∞", half))
    return change(paired.difference(*values), 2)


def groups_table():
    shown = {"RLOO": "κ = 0", "RLOO, all-right groups: ½": half, "A = R": "κ = ∞"}
    rows = [[name, rates(arm), *map(cell if arm == "κ = 0" else gap_of, arms[arm].values())]
            for name, arm in shown.items()]
    rows.append(["A = R less the row with ½", "same", *map(above_half, shrinkage.COLUMNS)])
    return markdown(["", "rates", *shrinkage.COLUMNS], rows)


def gap_of(number):
    return change(number["gap"])


def gained(arm, *rounding):
    return above(arms[arm]["both"]["gap"], *rounding)


def late_gap(task, outcome, *rounding):
    chosen = ([baselines.TASKS[task]], outcome, shrinkage.LONG)
    values = (shrinkage.outcomes(knob_runs, arm, *chosen) for arm in ("κ = ∞", "κ = 0"))
    return above(paired.difference(*values), *rounding)


# The words of the text
assert rates("κ = 0") == "1e-4, 2e-4" and rates(half) == rates("κ = ∞") == "1e-4, 1e-4"
assert rates(eighth) == "1e-4, 4e-4"
gain = [arms[arm]["both"]["gap"]["difference"] for arm in (half, "κ = ∞")]
of_rloo = {"task": "expressions", "arm": "κ = 0"}
tuned = [np.mean([run["end"] for run in select(load_runs(shrinkage.TUNED), of_rloo | {"rate": rate})])
         for rate in (1e-4, 2e-4)]
assert 0.5 < gain[0] / gain[1] < 0.65

# %% [text]
# *$A = R$, groups of eight: who brings ∇p of a prompt, over its $p$. See the two dots on the right first: in trained models all-right groups bring
# most, {=median_p["arithmetic", 60]**7:.0%} and {=median_p["expressions", 60]**7:.0%}. Under RLOO all would be blue. Dots: the median prompt, of those with right and wrong completions.*
#
# ## Which is less noisy?
#
# For one prompt the means are equal, so noise decides. The baseline 0 is less noisy than $p$ if wrong completions have much longer scores than
# right ones ([lesson 13](13_quiet_estimators.ipynb)). After 60 steps this holds on {=quieter("arithmetic"):.0%} of the prompts of arithmetic and on
# {=quieter("expressions"):.0%} of those of expressions. The test is the measured signal-to-noise ratio of one group's update (squared signal over noise), as a share of
# what the best constant baseline would give (medians over prompts):
#
# {=efficiencies()}
#
# $A = R$ does better than $R - $ mean. **Without its all-right groups it loses most of its signal-to-noise ratio.**
#
# ## Is it these groups?
#
# $A = R$ also leaves the wrong completions of mixed groups alone. So we ran RLOO with $A = ½$ for all completions of all-right groups. Four updates
# a batch, ten seeds; accuracy of RLOO, and points above it (rates: arithmetic, expressions):
#
# {=groups_table()}
#
# **All-right groups alone give a part of the gain**: over both tasks a little more than half, by these means. Both gains are small, and the
# intervals are wide. The last row compares at equal rates: over both tasks $A = R$ ends less than half a point higher still (the interval just
# leaves out 0).
#
# **A caution: on expressions RLOO ran at twice the rate of the rows below it.** There two things differ. The rate probably explains little: on three other
# seeds RLOO ended at {=tuned[0]:.3f} with 1e-4 and at {=tuned[1]:.3f} with 2e-4 (`shrinkage_tuning.json`).
#
# The runs support two choices:
#
# - **$A = R$ itself** ended highest in both comparisons. Against it: it is the noisier one where right completions have the longer scores (below).
# - **The row with ½** is the smallest change, one line. Against it: it gained less; with ⅛ there is no difference from RLOO that we can see,
#   {=gained(eighth)} (on expressions at twice RLOO's rate); and easy prompts get up to 1.5 times their weight. (The knob κ of the second reading
#   avoids that.)
#
# ```python
# A[R.mean(axis=1) == 1] = 0.5
# ```
#
# Both train all-right groups for ever; on average the push, $q\,\Delta m$, fades as $p$ nears 1. What happens to entropy we know for $A = R$ only
# (second reading).
#
# ## What this does not decide
#
# - *Which baseline suits an untrained model.* The base model of expressions mostly repeats the number. These wrong completions have short scores,
#   and there $A = R$ has {=efficiency("R", "expressions", 0):.0f} % of the best signal-to-noise ratio, $R - $ mean {=efficiency("R − mean", "expressions", 0):.0f} %.
# - *Whether noise is all.* On expressions $A = R$ without all-right groups is far noisier than $R - $ mean, and yet ends {=points(LEFT_OUT, "expressions")} points above it
#   (interval in the first picture). We do not know why.
# - *Larger models.* Ours have 152,192 parameters, two tasks, completions of at most 56 tokens, and a verifier without errors.
#
# ## To remember
#
# - $\nabla p = p\,m_+$: right completions are enough for the gradient of one prompt.
# - With $A = R$ all-right groups bring the share $p^{G-1}$ of it. A group's mean silences them, and mixed groups bring all.
# - In our runs $A = R$ learned best, and these groups gave a part of its lead. It is the less noisy choice only if wrong completions have much
#   longer scores than right ones.

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


length_fits = np.array([np.mean([prompt["fits"][0] for prompt in measured[c]]) for c in columns])


def aims(task):
    return f"{cosine('R', task, 60):.2f} against {cosine('R − mean', task, 60):.2f}"


def aims_of_13(task):
    there = (estimators.cosine(task, 60, name) for name in ("no baseline", "σ^2"))
    return "{:.2f} against {:.2f}".format(*there)

# %% [markdown]
# ## For a second reading (10 minutes): one knob
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
# ([2511.03710](https://arxiv.org/abs/2511.03710) shrinks towards it) these groups train less and less, and κ = ∞ differs from RLOO by {=gained(to_accuracy)}. DAPO's
# way, replacing silent groups, differs by {=gained(replaced)} at as many completions.
#
# **How sure is it?** (Our predictions, and which held: [experiments](experiments/README.md#which-baseline).) With one update a batch, {=sum(tested)} of {=len(tested)} differences from $R - $ mean
# survive Holm's correction, those of $A = R$ at the end on both tasks among them. With four no difference on one task survives.
#
# **After 240 batches** (five seeds) $A = R$ ends {=late_gap(0, "end")} points above RLOO on arithmetic and {=late_gap(1, "end")} on expressions. Its entropy differs by
# {=late_gap(0, "entropy", 3, 1)} nats a token on arithmetic and by {=late_gap(1, "entropy", 3, 1)} on expressions, where its rate is half of RLOO's, which may be why. Pass@64 is .998
# or more in all arms. The row with ½ was not run that long.
#
# **Does a whole batch aim better?** After 60 steps the cosine of a batch's update with the mean ∇p over prompts is {=aims("arithmetic")} on arithmetic
# and {=aims("expressions")} on expressions ($A = R$ first). In lesson 13, with other batches, it is {=aims_of_13("arithmetic")} and {=aims_of_13("expressions")}. So on arithmetic it
# does; on expressions the two disagree.
#
# **Why not estimate $b^*$?** An estimate is noisy itself. After 60 steps the one from the others' scores has {=efficiency("best b of the others", "arithmetic", 60):.0f} % of the best signal-to-noise
# ratio on arithmetic and {=efficiency("best b of the others", "expressions", 60):.0f} % on expressions. In an all-right group every weighted mean of rewards is 1, so these groups stay silent.
# OPO ([2505.23585](https://arxiv.org/abs/2505.23585)) takes $\|s\|^2$ to be proportional to length, which explains
# {=100 * length_fits.min():.0f} to {=100 * length_fits.max():.0f} % of its variance here; on the base model of arithmetic its cosine is {=cosine("OPO", "arithmetic", 0):.2f}, that of $R - $ mean {=cosine("R − mean", "arithmetic", 0):.2f}, that of $A = R$ {=cosine("R", "arithmetic", 0):.2f}. OTB ([2602.07078](https://arxiv.org/abs/2602.07078)) takes a
# token's squared gradient in the logits, with a baseline for each position (0 where one completion of the group is left, so this tail of an
# all-right group does train).

# %% [markdown]
# Sources: the best baseline: Greensmith, Bartlett and Baxter, JMLR 2004. The measurements are ours (`lessons/experiments/baselines.py`, `shrinkage.py`).
