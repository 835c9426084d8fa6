# %% [markdown] 35 minutes
# # 13 · Which estimator is quiet?
#
# GRPO, Dr. GRPO, MaxRL and REINFORCE all push along $\nabla p$ on average ([lesson 7](07_group_size.ipynb)). They differ in their noise. **Between
# σ and σ² there is little to choose, in noise and in learning; the baseline and ÷ length change the noise more; and groups with few wrong
# completions, the noisiest, must be kept.** We measure this in small language models that are training.
#
# | symbol | meaning |
# |---|---|
# | $G,\ k,\ \sigma$ | completions to one prompt; how many are right; $\sqrt{k(G-k)}/G$ |
# | $s_i,\ \bar s_\pm$ | the score $\nabla_\theta \log \pi_\theta(y_i)$; its mean over a group's right (+) or wrong (−) completions |
# | $m_\pm,\ v_\pm$ | mean and variance (summed over parameters) of the score of a right or wrong completion; $\Delta m = m_+ - m_-$ |
# | $g$ | the update of one group; GRPO's is $\sigma\,(\bar s_+ - \bar s_-)$ ([lesson 6](06_identity.ipynb)) |
#
# ## σ is the progress, the rest of the length is noise
#
# Given $k$, the contrast $\bar s_+ - \bar s_-$ has the mean $\Delta m$, which points along $\nabla p$, and the variance $v_+/k + v_-/(G-k)$. So
#
# $$\mathbb E\,\langle g, \Delta m\rangle = \sigma\,\|\Delta m\|^2, \qquad
# \mathbb E\,\|g\|^2 = \sigma^2\,\|\Delta m\|^2 + \frac{(G-k)\,v_+ + k\,v_-}{G^2}$$
#
# **An update's progress for its own prompt is σ, exactly, whatever the variances.** What the length adds to it is noise, more of it
# for large $k$ if $v_- > v_+$. Groups with $k$ and with $G-k$ right make the same progress, so the longer update has the smaller cosine with $\nabla p$, by the
# same factor.
#
# ## Three students
#
# *Arithmetic* has one right answer. In *expressions*, `39?` asks for any expression of that value, as `#12+27`: right completions are diverse, and
# the usual wrong one repeats the number, `#39`. In *slips*, the same task, the student miscalculates instead: both kinds are diverse. GRPO
# trains each; before, and after 20 and 60 steps, we compute every completion's score.

# %%
import numpy as np

from lessons import identity
from lessons.experiments import estimators, weights
from lessons.experiments.grid import change, load_runs, markdown
from lessons.experiments.paired import difference
from lessons.workshop.kit import check, knob, say, show
from lessons.workshop.parts.lesson_13 import (
    cosines,
    over_all_draws,
    points_by_power,
    progress_and_length,
)

STUDENTS = {task: task for task in weights.TASKS} | {"slips": estimators.SLIPS}
results = load_runs(estimators.RESULTS)
stages = {(name, step): [run for run in results if (run["task"], run["step"]) == (task, step)]
          for name, task in STUDENTS.items() for step in estimators.STEPS}
seeds, n = len(stages["slips", 0]), results[0]["completions"]


def moments(stage, kind=0):
    """p, v₊, v₋, |Δm|² of every prompt, from both halves: (seeds, prompts, halves, 4)."""
    rows = [[[[k / (n // 2), *half[kind][:3]]
              for k, half in zip(prompt["right"], prompt["moments"])]
             for prompt in run["of prompts"]] for run in stage]
    return np.array(rows, dtype=float)


# %% [fold]
def number(x):
    digits = 2 if x < 1 else 1 if x < 10 else 0
    return "∞" if np.isinf(x) else f"{x:.{digits}f}"

noise_of = np.vectorize(lambda p, *moments: identity.noise("GRPO", p, 8, *moments))
rows, errors = [], []
for (name, step), stage in stages.items():
    prompts = [prompt for run in stage for prompt in run["of prompts"]]
    p, v_right, v_wrong, _ = np.moveaxis(moments(stage), -1, 0)  # (seeds, prompts, halves)
    growth = np.array([prompt["growth"] for prompt in prompts], dtype=float)  # (n, sizes, 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        medians = np.nanmedian(growth[:, :, 1] / growth[:, :, 0], axis=0)
        noise = noise_of(p, v_right, v_wrong)
        error = abs(noise[..., 0] / noise[..., 1] - 1)
    rarer = np.minimum(p, 1 - p).min(axis=2) * n / 2
    errors.append(error[(rarer >= 100) & np.isfinite(error)])
    common = np.median([prompt["commonest"] for prompt in prompts if prompt["commonest"]])
    ratios = [*medians, np.nansum(v_wrong) / np.nansum(v_right)]
    cells = [f"{name}, {step}", f"{p.mean():.2f}", *map(number, ratios), f"{common:.0%}"]
    rows.append([*cells, f"{np.median(errors[-1]):.0%} ({len(errors[-1])})"])
sizes = [f"{size:,}" for size in estimators.SIZES if size <= n]
titles = ["$v_-/v_+$ by", "accuracy", *sizes, "sums", "commonest", "halves differ"]
say(markdown(titles, rows))
for name in ("expressions", "slips"):
    print(f"wrong, {name}, step 60: {', '.join(stages[name, 60][0]['texts'])}")

# %% [text]
# *{=len(results[0]["of prompts"])} held-out prompts of {=n:,} completions, {=seeds} seeds. $v_-/v_+$: the median over prompts, from their first 256, 1,024 and all
# completions, and the ratio of the sums. Commonest: its share of the wrong ones (median). Halves differ: the noise of GRPO's update
# ($G = 8$), predicted from one half of the completions and from the other (median over prompts with 100 of the rarer kind; how many).*
#
# The ratio depends on the student, not only on the task; after training, when wrong completions are rare, diverse and improbable, $v_- \gg v_+$ in every model. **How many completions does $v_-$ need?** Where one
# wrong completion hides the others, as at the base of expressions, it grows with their number. The halves agree to
# {=np.median(np.concatenate(errors)):.0%}, on trained expressions to {=np.median(np.concatenate(errors[4:6])):.0%}: a few rare completions make the noise there.
#
# ## Progress and length of the same groups
#
# In batches as they are drawn, what share of the progress and of the squared length do groups with $k$ right have? **Here progress is
# along the gradient of all prompts together**, not the prompt's own, so $k$ and $G-k$ may differ.


# %%
def by_k(student, step, G):
    """(seeds, k = 1..G-1, 5): groups; of s₊ − s₋ mean and median of |.|², progress, cosine."""
    return np.array([next(of_G["by k"] for of_G in run["of batches"] if of_G["G"] == G)
                     for run in stages[student, step]])

def draw(student, step, G):
    return progress_and_length(by_k(student, step, G), G, f"{student}, step {step}")

knob(draw, student=list(STUDENTS), step=[0, 20, 60], G=[8, 4, 16])


# %% [fold]
def shares(student, step, ks, G=8):
    """Of the squared length and the progress of GRPO's updates, and of the mixed groups, the share
    that groups with these k have."""
    n, squared, _, progress, _ = np.moveaxis(by_k(student, step, G), 2, 0)
    sigma = identity.sigma(np.arange(1, G), G)
    parts = [(n * x).sum(axis=0) for x in (sigma**2 * squared, sigma * progress, 1)]
    return [part[[k - 1 for k in ks]].sum() / part.sum() for part in parts]


lone = {(name, step): shares(name, step, [7]) for name, step in stages}
late, few = np.array([shares(name, 60, [6, 7])[1:] for name in STUDENTS]).T
lengths = [
    np.sqrt(by_k("expressions", 20, 4)[..., i].mean(axis=0)) * identity.sigma(np.arange(1, 4), 4) for i in (1, 2)
]
rms, median = (length[2] / length[1] for length in lengths)  # three right of four over two right

# %% [text]
# *Left: shares of all mixed groups, marks are seeds. Right: length, root mean square and median, beside σ.* On arithmetic's base, groups with
# one wrong completion of eight have {=lone["arithmetic", 0][0]:.0%} of the squared length and {=lone["arithmetic", 0][1]:.0%} of the progress: what
# moves an easy prompt need not help the others. After 60 steps groups with one or two wrong make {=min(late):.0%} to {=max(late):.0%} of
# the progress, for they are {=min(few):.0%} to {=max(few):.0%} of the mixed groups. And only a few updates are long: on expressions at step 20
# one wrong completion of four makes an update {=rms:.2f} times as long as an even split in the root mean square, {=median:.2f} times in the median.
#
# ## Which estimator is quiet?
#
# The mean cosine between the update of a batch (256 completions, $G = 8$, no ÷ length) and the true gradient, from {=results[0]["gradient"]:,} others:

# %%
ROWS = {
    "σ^1": "σ, GRPO",
    "σ^2": "σ², Dr. GRPO",
    "(G − k)/G": "(G − k)/G, MaxRL",
    "c(k)": "c(k), inverse variance",
    "σ, k < G − 2": "σ without one or two wrong",
    "no baseline": "no baseline, A = R",
    "b = 1": "A = R − 1",
    "best b of the others": "best b, from the others' norms",
}

def cosine(student, step, name, divisor="sum", scale="gradient"):
    return estimators.cosine(STUDENTS[student], step, name, divisor, scale)

columns = [(name, step) for name in STUDENTS for step in (0, 20)]
table = {name: [cosine(*column, name) for column in columns] for name in ROWS}
show(cosines({ROWS[name]: row for name, row in table.items()}, columns))
apart = max(abs(a - b) for a, b in zip(table["σ^1"], table["σ^2"]))
far = np.array(table["no baseline"]) - table["σ^2"]
best = np.max([*table.values()], axis=0)
behind = best - table["best b of the others"]  # the last column: slips, step 20
assert behind[-1] == behind.max() and 0.4 < behind[-1] / (best - table["σ^2"])[-1] < 0.6

# %% [text]
# **σ or σ² changes the cosine by {=apart:.2f} at most.** The baseline decides: none at all is {=far.max():+.2f} against Dr. GRPO on
# slips, where wrong completions are noisy and it ignores them, and −{=-far.min():.2f} on the base of expressions, where they are quiet. There $A = R - 1$,
# which ignores the right ones, is best. The baseline from the others' norms is within {=behind[:-1].max():.2f} of the best, but on slips at
# step 20 only halfway there from Dr. GRPO.
#
# ÷ length reverses this: on arithmetic's base, where noisy wrong completions are short, σ falls from {=cosine("arithmetic", 0, "σ^1"):.2f} to
# {=cosine("arithmetic", 0, "σ^1", "mean"):.2f}, no baseline from {=table["no baseline"][0]:.2f} to {=cosine("arithmetic", 0, "no baseline", "mean"):.2f}. Adam scales
# each parameter: at step 20 the cosine of its update is {=cosine("arithmetic", 20, "σ^1", scale="Adam"):.2f} instead of {=cosine("arithmetic", 20, "σ^1"):.2f}.

# %% [markdown]
# ## Does quiet mean fast?
#
# We trained with powers of σ and other weights of the contrast, all else GRPO's (without KL), *every optimizer step scaled to the same length*:
# ten seeds, 60 batches of 32 × 8. The prediction, from the measurements above alone: the arm with the larger cosine (or another quantity, below) is ahead.

# %% [fold]
runs = load_runs(weights.RESULTS)
by_length = {length: weights.arms(runs, length) for length in weights.STEP_LENGTHS}

def gaps(arm, reference, length):
    """Of an arm (weight, ÷ length?) less another: by task, at the end and over training."""
    arms, found = by_length[length], []
    for task in weights.TASKS:
        first, second = (arms[task, kept, weight] for weight, kept in (arm, reference))
        found += [difference(first[when], second[when]) for when in ("end", "training")]
    return found

def draw(step_length, divisor):
    kept = divisor == "÷ length"
    points = [[gap["difference"], *(gap["interval"] or [0, 0])] for name in weights.POWERS
              for gap in gaps((name, kept), ("σ^1", kept), step_length)]
    points = 100 * np.array(points).reshape(5, 2, 2, 3)
    return points_by_power(points, weights.POWERS, weights.TASKS)

knob(draw, step_length=list(by_length), divisor=["÷ length", "no ÷ length"])

# %% [markdown]
# *Points of accuracy against σ, paired by seed, with 95 % intervals: held-out problems at the end, and training problems of all batches.* What else
# was tried, against σ with ÷ length:

# %% [fold]
other = {ROWS[name]: gaps((name, True), ("σ^1", True), 0.016) for name in weights.OTHERS}
titles = [f"{task}, {when}" for task in weights.TASKS for when in ("end", "over training")]
say(markdown(["", *titles], [[name, *map(change, row)] for name, row in other.items()]))

pairs, fresh = (weights.compared(runs, fresh) for fresh in (False, True))
counts = {name: [*zip(weights.judged(pairs, name), weights.judged(fresh, name))]
          for name in weights.NOTICED}
rows = [[what, *("{}/{}, {}/{}".format(*first, *again) for first, again in counts[name])]
        for name, what in weights.NOTICED.items()]
say(markdown(["ahead is the arm with the larger", *weights.KINDS], rows))

# %% [fold]
for pair in pairs + fresh:
    powers = [float(name[2:]) if name in weights.POWERS else 0 for _, name in pair["arms"]]
    pair["power"] = powers[0] - powers[1]
larger, larger_again = (weights.judged(part, "power")[0] for part in (pairs, fresh))
(first, again), guess = counts["quiet"][0], counts["cosine"][0][1]
assert larger_again[0] == larger_again[1] == again[0] and guess[0] < 0.7 * guess[1]
assert len({*counts["quiet"][3][1]}) == 1
of_power = {name: [gap for length in by_length for kept in (True, False)
                   for gap in gaps((name, kept), ("σ^1", kept), length)]
            for name in weights.POWERS if name != "σ^1"}
squared = max(abs(100 * gap["difference"]) for gap in of_power["σ^2"])
powers = [gap for four in of_power.values() for gap in four]
most = max(abs(100 * gap["difference"]) for gap in powers)
seen = sum(np.prod(gap["interval"]) > 0 for gap in powers)
plain = {length: gaps(("σ^1", False), ("σ^1", True), length) for length in by_length}
undivided = [", ".join(f"{100 * four[i]['difference']:.1f}".replace("-0.0", "0.0")
                       for four in plain.values()) for i in (1, 3)]
steps = ", ".join(f"{length:.3f}"[1:] for length in by_length)
dropped = [-100 * gap["difference"] for gap in other[ROWS["σ, k < G − 2"]][::2]]

# %% [text]
# *Second table: all pairs of arms that differ in one thing (two tasks, end and training, steps of .016). {=first[0]}/{=first[1]}: of {=first[1]} differences whose
# interval excludes 0, the arm with the larger value led in {=first[0]}; first ten seeds, then five fresh ones, run after the predictions were
# committed. Pairs share arms.*
#
# - **Quieter was faster, by little.** σ² differs from σ by {=squared:.1f} points at most, any power by {=most:.1f} ({=seen} of {=len(powers)} intervals exclude 0; chance gives
#   {=0.05 * len(powers):.0f}). Larger powers were ahead on both tasks, in {=larger[0]} of {=larger[1]} differences and {=larger_again[0]} of {=larger_again[1]} fresh ones. The
#   signal-to-noise of one group tells which, but so would anything that grows with the power. (The cosine of a batch does not.)
# - **Dropping the noisiest groups costs {=min(dropped):.0f} to {=max(dropped):.0f} points**: late in training nearly all mixed groups are of this kind.
# - **÷ length costs more than ÷ σ**: without it σ gains {=undivided[0]} points over training on arithmetic, as the cosines say, and {=undivided[1]} on
#   expressions, where they say nothing (steps of {=steps}).
# - MaxRL's weight and $c(k)$, which give hard prompts more weight, are quiet and yet behind over training on expressions: noise is not all.
#
# **What this cannot say.** Small models of one architecture, short completions, weights of the contrast only: [lesson
# 19](19_which_baseline.ipynb) trains with other baselines.
#
# ## Exercises
#
# **1. Signal without noise.** The squared distance of two noisy means is too large on average. From the scores of a prompt's right and
# wrong completions, one row each, estimate $\|\Delta m\|^2$ so that the noise adds nothing on average.


# %% [exercise]
def signal_squared(right, wrong):
    """An estimate of |m+ - m-|^2 whose mean over many draws is right; right: (n, d), wrong:
    (m, d)."""
    return ...


# %% [check]
check("13.1", over_all_draws(signal_squared))

# %% [hint]
# How large is E‖x̄‖² for a mean x̄ of n independent scores? Subtract what it has too much, with an estimate of the variance that is itself
# right on average.


# %% [solution]
def signal_squared(right, wrong):
    contrast = right.mean(axis=0) - wrong.mean(axis=0)
    noise = sum(part.var(axis=0, ddof=1).sum() / len(part) for part in (right, wrong))
    return contrast @ contrast - noise


def of_halves(right, wrong):  # right, too, but noisier: the noise of two halves is independent
    one, other = (right[i::2].mean(axis=0) - wrong[i::2].mean(axis=0) for i in (0, 1))
    return one @ other


assert abs(over_all_draws(of_halves)("") - 5) < 1e-9


# %% [markdown]
# **2. The best baseline.** From the rewards of many completions to one prompt and their scores, one row each, estimate the constant $b$ with the
# least $\mathbb E\,\|(R - b)\,s\|^2$.


# %% [exercise]
def best_baseline(R, scores):
    """R: (n,) zeros and ones, scores: (n, d). The best constant b."""
    return ...


# %% [check]
check("13.2", best_baseline)

# %% [hint]
# The mean square is a parabola in b. Where is its vertex?


# %% [solution]
def best_baseline(R, scores):
    squared = (scores**2).sum(axis=1)
    # long wrong scores: near 0; long right ones: near 1
    return (R * squared).sum() / squared.sum()


# %% [markdown]
# ## To remember
#
# - σ is the progress of an update for its own prompt; what the length adds is noise.
# - σ, σ² and the best weight of the contrast are nearly equally quiet, and learn nearly equally fast; the baseline and ÷ length change more.
# - Groups with one or two wrong completions are the noisiest, and late in training nearly all that are mixed: keep them.
#
# Sources: the length as "exactly the group reward standard deviation": [arXiv:2607.00152](https://arxiv.org/abs/2607.00152), §3; OPO:
# [2505.23585](https://arxiv.org/abs/2505.23585); the best baseline: [Greensmith, Bartlett and Baxter
# 2004](https://www.jmlr.org/papers/v5/greensmith04a.html). The measurements are ours: `lessons/experiments/estimators.py` and `weights.py`,
# each with `--publish`, make every number on this page.
