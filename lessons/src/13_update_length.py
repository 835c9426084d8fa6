# %% [markdown]
# # 13 · How long is an update?
#
# The paper behind the identity says of GRPO's update that its "length […] is exactly the group reward standard deviation",
# "for any policy in any dimension". What is exact ([lesson 6](06_identity.ipynb)) is that σ *multiplies* the contrast
# $\bar s_+ - \bar s_-$. A prompt with one parameter has a contrast of length 1. That of a language model is a difference of two
# noisy means, and the mean of one answer's score is noisier than that of four.
#
# **How does the length of the update depend on $k$, the number of right answers among G?** We measure it inside language models
# that are training: on two tasks, at four group sizes.
#
# | symbol | meaning |
# |---|---|
# | $G,\ k$ | answers in a group, all to one prompt; how many of them are right |
# | $p,\ q$ | the probability that an answer is right; $q = 1 - p$ |
# | $\sigma$ | the standard deviation of the group's rewards, $\sqrt{k(G-k)}/G$; **silent**: $\sigma = 0$; otherwise **mixed** |
# | $s_i$ | the score of answer $i$: $\nabla_\theta \log \pi_\theta(y_i)$, summed over its tokens |
# | $\bar s_\pm$ | the mean score of a group's right (+) or wrong (−) answers |
# | $m_\pm,\ v_\pm$ | expectation and variance (summed over all parameters) of the score of one such answer; $\Delta m = m_+ - m_-$ |
# | $g$ | the update of one group: $\frac1G \sum_i A_i s_i$ |
#
# ## One formula
#
# The mean of $k$ independent scores has the variance $v_+/k$, that of $G-k$ the variance $v_-/(G-k)$. So the contrast has the mean
# square $\|\Delta m\|^2 + v_+/k + v_-/(G-k)$, and with $\sigma^2 = k(G-k)/G^2$ in front of it GRPO's update has
#
# $$\mathbb E\,\|g\|^2 = \underbrace{\sigma^2\,\|\Delta m\|^2}_{\text{signal}} + \underbrace{\frac{(G-k)\,v_+ + k\,v_-}{G^2}}_{\text{noise}}$$
#
# (Dr. GRPO's is $\sigma^2$ times that.) The signal is symmetric in $k$. The noise is a straight line, and **which way it leans is a
# matter of $v_-/v_+$**: where wrong answers vary more, groups of many right and few wrong answers make long updates, because the few
# wrong ones have large advantages. How much noise there is beside the signal is a matter of G.
#
# ## Two tasks
#
# *Arithmetic* has one right answer and few ways to work it out, and many ways to be wrong. In *expressions*, `39?` asks for any
# expression with that value, `#12+27` or `#50-11`: right answers are diverse, and the usual wrong one just repeats the number, `#39`.

# %%
import numpy as np

from lessons import identity
from lessons.experiments import update_length_tables as tables
from lessons.experiments.update_length import GROUP_SIZES, KS, PREDICTIONS, SCRIPTS, TRAINED_AT
from lessons.figures.lesson_13 import draw_profile, draw_signal_and_noise
from lessons.kit import BLUE, GREEN, ORANGE, check, knob, new_figure, say, show

results = tables.load()
stages = {key: tables.stage(results, *key) for key in tables.stages_of(results)}  # by task, script, G trained at, step
TASKS, NAMES = ("arithmetic", "expressions"), {script: name for name, script in SCRIPTS.items()}
base = {task: stages[task, "", 0, 0] for task in TASKS}
n_prompts = {task: base[task]["p"].shape[1] for task in TASKS}
seeds, answers = base["arithmetic"]["p"].shape[0], int(results["answers"])
assert np.nanmax(results["error"]) < 1e-4  # both sides of the identity, through the scripts' losses, in float32


def after(task, step):
    """The stages of all runs on a task at one step of training."""
    return [stage for (t, _, _, s), stage in stages.items() if (t, s) == (task, step)]


def span(values, form=".2f"):
    values = [getattr(value, "value", value) for value in values]
    return f"{min(values):{form}} to {max(values):{form}}"


# %% [text]
# GRPO and Dr. GRPO, each trained at G = {=", ".join(map(str, TRAINED_AT))} with 256 answers a step, {=seeds} seeds; measured
# before training and after 20 and 60 steps: {=len(stages)} stages. At each, {=n_prompts["arithmetic"]} held-out prompts a task get
# {=answers:,} answers each. **Half of them give $v_+$, $v_-$ and $\|\Delta m\|^2$; of the other half groups are formed**, with every
# $k$. So a prediction shares no answer with what it predicts. (The identity itself was checked at every stage through the
# scripts' own losses: relative error below 1e-4 in float32.) Brackets are 95 % intervals from resampling prompts and seeds.
#
# ## The profile leans with $v_-/v_+$

# %%
figure, axes = new_figure(9.5, 4.0, columns=2, sharey=True)
for axis, task in zip(axes, TASKS):
    for G, color in ((4, ORANGE), (16, BLUE), (64, GREEN)):
        draw_profile(axis, base[task], G, color)
    ratio = tables.median(tables.lopsidedness(base[task]))
    axis.set(title=f"{task}, before training: median v₋/v₊ = {ratio.value:.{int(ratio.value < 9) * 2}f}")
axes[0].set_ylabel("length, the even split is 1")
show(figure)
lone = {(task, G, k): tables.lone(base[task], G, k) for task in TASKS for G in (4, 64) for k in (1, G - 1)}

# %% [text]
# *Dots: measured. Lines: predicted from other answers. Dashed: σ. A prompt counts where every $k$ can be formed.*
#
# At G = 4 on arithmetic, one *wrong* answer of four moves the model {=lone["arithmetic", 4, 3]} times as far as an even split, one
# right answer {=lone["arithmetic", 4, 1]}; on expressions it is the reverse, {=lone["expressions", 4, 3]} and
# {=lone["expressions", 4, 1]}. σ says {=2 * identity.sigma(1, 4):.2f} for all four. At G = 64 the signal
# dominates and both are nearer to σ's {=2 * identity.sigma(1, 64):.2f}: {=lone["arithmetic", 64, 63]} and
# {=lone["arithmetic", 64, 1]}, {=lone["expressions", 64, 63]} and {=lone["expressions", 64, 1]}. **Neither σ nor a power of it fits:**
# a power is symmetric in $k$, and the same at every G.
#
# Move the knobs: task, run, the G it was trained at, the step, and the G of the groups.


# %%
def draw(task="expressions", run="GRPO", trained_at=8, step=60, G=4):
    key = (task, SCRIPTS[run], trained_at, step) if step else (task, "", 0, 0)
    return draw_signal_and_noise(stages[key], G, f"{task}, " + (f"{run}, step {step}" if step else "before training"))


knob(draw, task=TASKS[::-1], run=list(SCRIPTS), trained_at=[8, 4, 16, 64], step=[60, 20, 0], G=[4, 8, 16, 32, 64])

# %% [markdown]
# ## Is the formula right?
#
# $|\text{predicted} / \text{measured} - 1|$, median over prompts. In the table the middle one of these over all stages and $k$, in
# brackets the largest.

# %%
steps, off = (0, 20, 60), {}
rows = ["| | " + " | ".join(f"G = {G}" for G in GROUP_SIZES) + " |", "|---" * (len(GROUP_SIZES) + 1) + "|"]
for task in TASKS:
    for step in steps:
        for G in GROUP_SIZES:
            off[task, step, G] = [e for stage in after(task, step) for e in tables.errors(stage, G) if e.n]
        values = [np.array([e.value for e in off[task, step, G]]) for G in GROUP_SIZES]
        cells = " | ".join(f"{np.median(v):.1%} ({v.max():.0%})" for v in values)
        rows.append(f"| {task}, step {step} | {cells} |")
say("\n".join(rows))
fewest = {task: min(e.n for G in GROUP_SIZES for e in off[task, 60, G]) for task in TASKS}

# %% [text]
# TEXT ERRORS
#
# ## What training does to it

# %%
runs = [(task, step) for task in TASKS for step in steps]
found = {
    "right answers": lambda stage: stage["p"].mean(),
    "median $v_-/v_+$": lambda stage: tables.median(tables.lopsidedness(stage)),
    "G with signal = noise": tables.even_size,
    "1 right of 4": lambda stage: tables.lone(stage, 4, 1),
    "1 wrong of 4": lambda stage: tables.lone(stage, 4, 3),
    "1 right of 64": lambda stage: tables.lone(stage, 64, 1),
    "1 wrong of 64": lambda stage: tables.lone(stage, 64, 63),
}
values = {run: {name: [of(stage) for stage in after(*run)] for name, of in found.items()} for run in runs}
rows = ["| | " + " | ".join(found) + " |", "|---" * (len(found) + 1) + "|"]
for task, step in runs:
    cells = []
    for name, estimates in values[task, step].items():
        numbers = [value for e in estimates if np.isfinite(value := getattr(e, "value", e))]
        form = ".0f" if max(numbers) > 20 else ".2f"
        cells.append(f"{numbers[0]:{form}}" if step == 0 else span(numbers, form))
    rows.append(f"| {task}, step {step} | {' | '.join(cells)} |")
say("\n".join(rows))

# %% [text]
# *From the smallest to the largest of eight runs. The last four columns: length over that of the even split.*
#
# TEXT TRAINING
#
# ## Which groups there are
#
# The profile is that of groups formed on purpose. Those that a run draws are another matter: GRPO at the G it was trained at, step 20.

# %%
percent = lambda estimate: f"{estimate.value:.0%}"
rows = [
    "| task, G | silent (predicted) | $k < G/4$ | middle | $k > 3G/4$ | extreme prompts | their share of length | of σ (closed form) |"
]
rows.append("|---" * 8 + "|")
silent, mass = {}, {}
for (task, script, G, step), stage in stages.items():
    for size in GROUP_SIZES:
        silent[task, script, G, step, size] = tables.silent(stage, size)
        for update in [script] if script else SCRIPTS.values():
            mass[task, update, G, step, size] = tables.mass(stage, update, size)
    if (script, step) == ("grpo", 20):
        s, m, k = silent[task, script, G, step, G], mass[task, script, G, step, G], tables.frequencies(stage, G)
        extreme = tables.mean(((stage["p"] <= 0.1) | (stage["p"] > 0.9)).astype(float))
        cells = [f"{percent(s['counted'])} ({percent(s['predicted'])})", *map(percent, k[1:4]), percent(extreme)]
        cells += [percent(m["|g|"]), f"{percent(m['sigma'])} ({percent(m['closed form'])})"]
        rows.append(f"| {task}, {G} | {' | '.join(cells)} |")
say("\n".join(rows))
off_silent = [abs(s["difference"].value) for s in silent.values()]
missed = sum(0 not in s["difference"] for s in silent.values())

# %% [text]
# TEXT GROUPS
#
# ## What became of the predictions
#
# They were written down, and committed, before the code that measures.


# %%
def verdict(held):
    held = list(held)
    return "**held**" if all(held) else "**failed**" if not any(held) else "**partly**"


all_errors = [e.value for es in off.values() for e in es]
ratio = {run: [e.value for e in values[run]["median $v_-/v_+$"]] for run in runs}
above = {
    run: [np.nanmean(tables.lopsidedness(s)[np.isfinite(tables.lopsidedness(s))] > 1) for s in after(*run)]
    for run in runs
}
of_arithmetic = [ratio["arithmetic", step] for step in steps]
long = {run: [[e.value for e in values[run][name]] for name in list(found)[3:]] for run in runs}
even = [e.value for run in runs for e in values[run]["G with signal = noise"]]


def distance(one, other):
    """Largest difference between two profiles at G = 8."""
    pairs = zip(*(tables.profile(tables.measured(stages[key], 8), 8) for key in (one, other)))
    return max(abs(a.value - b.value) for a, b in pairs)


by_G = [distance((task, script, 4, 60), (task, script, 64, 60)) for task in TASKS for script in NAMES]
by_step = [
    distance((task, script, G, 20), (task, script, G, 60)) for task in TASKS for script in NAMES for G in (4, 64)
]
more = {task: [m["difference"].value > 0 for key, m in mass.items() if key[0] == task] for task in TASKS}
before = [m["difference"].value <= 0 for key, m in mass.items() if key[0] == "expressions" and key[3] == 0]

# %% [text]
# TEXT VERDICTS

# %% [markdown]
# ## Exercises
#
# **1. Signal without noise.** The squared distance of two noisy means is too large on average. From the scores of a prompt's right and
# wrong answers, one row each, estimate $\|\Delta m\|^2$ so that the noise adds nothing on average.


# %% [exercise]
def signal_squared(right, wrong):
    """An estimate of |m+ - m-|^2 whose expectation is right; right: (n, d), wrong: (m, d)."""
    return ...


# %% [check]
check("13.1", signal_squared)

# %% [hint]
# How large is E‖x̄‖² for a mean x̄ of n independent scores? Subtract what it has too much, with an estimate of the variance that is itself
# right on average.


# %% [solution]
def signal_squared(right, wrong):
    contrast = right.mean(axis=0) - wrong.mean(axis=0)
    noise = sum(part.var(axis=0, ddof=1).sum() / len(part) for part in (right, wrong))
    return contrast @ contrast - noise


# %% [wrong] the noise of both means
def signal_squared(right, wrong):
    return ((right.mean(axis=0) - wrong.mean(axis=0)) ** 2).sum()


# %% [wrong] ddof 0
def signal_squared(right, wrong):
    contrast = right.mean(axis=0) - wrong.mean(axis=0)
    return contrast @ contrast - right.var(axis=0).sum() / len(right) - wrong.var(axis=0).sum() / len(wrong)


# %% [wrong] 1/n of it
def signal_squared(right, wrong):
    contrast = right.mean(axis=0) - wrong.mean(axis=0)
    return contrast @ contrast - right.var(axis=0, ddof=1).sum() - wrong.var(axis=0, ddof=1).sum()


# %% [markdown]
# **2. Where it turns round.** From which $v_-/v_+$ on does one wrong answer of G move the model further than an even split? The answer
# depends on G and on the strength of the signal, $\|\Delta m\|^2 / v_+$ (about .7 on expressions, before training).


# %% [exercise]
def turning_point(G, signal):
    """v- / v+ at which E|g|^2 is the same for k = G - 1 and k = G / 2; signal: |dm|^2 / v+; G: 4 or more, and even."""
    return ...


# %% [check]
check("13.2", turning_point)

# %% [hint]
# Multiply both squared lengths by G²/v₊: (G − 1)·signal + 1 + (G − 1)r on one side, and on the other?


# %% [solution]
def turning_point(G, signal):
    return 1 + (G / 2 - 1) * signal


# %% [wrong] without signal
def turning_point(G, signal):
    return 1.0


# %% [wrong] the signal at k = G - 1
def turning_point(G, signal):
    return 1 + signal * G**2 / 4 / (G / 2 - 1)


# %% [markdown]
# ## To remember
#
# - The update is σ times a contrast, and the contrast is noisy: its length depends on $v_-/v_+$, $\|\Delta m\|^2$ and G as well.
# - Which side moves the model more is decided by whose answers vary more, and training may turn that round.
# - Predict from other answers than those you measure on; compare groups of one prompt.
#
# Sources: *GRPO, Dr. GRPO, and DAPO Are Three Operations on One Number*, [arXiv:2607.00152](https://arxiv.org/abs/2607.00152), §3, Theorem
# `identity`, Limitations. The measurement is ours: `lessons/experiments/update_length.py --publish` makes every number on this page.
