# %% [markdown]
# # 13 · The identity in a live run
#
# The paper behind the identity (arXiv:2607.00152) checks it on coins: prompts with one parameter each. Its Limitations name
# what is missing: "a full language-model training loop that logs silent groups and per-difficulty gradient mass across G".
# Here is one, on a model so small that every gradient can be computed exactly. And one question in particular. The abstract
# says that "the disagreement is exactly the size of the training update". Lesson 6 showed what is exact: σ *multiplies* the
# contrast $\bar s_+ - \bar s_-$. So
#
# **is the length of GRPO's update proportional to σ, or nearly the same for every mixed group, while Dr. GRPO's is the one
# that is proportional to σ?**
#
# | symbol | meaning |
# |---|---|
# | $G,\ k$ | answers in a group, all to one prompt; how many of them are right |
# | $p,\ q$ | the probability that an answer is right; $q = 1 - p$ |
# | $\sigma$ | the standard deviation of the group's rewards, $\sqrt{k(G-k)}/G$; **silent**: $\sigma = 0$; otherwise **mixed** |
# | $s_i$ | the score of answer $i$: $\nabla_\theta \log \pi_\theta(y_i)$, summed over its tokens |
# | $\bar s_\pm,\ m_\pm,\ v_\pm$ | mean score of a group's right (+) or wrong (−) answers; what it is expected to be; variance of one score, summed over parameters |
# | $g$ | the update of one group: $\frac1G \sum_i A_i s_i$ with the script's advantages |
# | $b$ | the exponent in $\lVert g\rVert \propto \sigma^b$: 1 if the length is the disagreement, 0 if all mixed groups move the model equally far |
#
# Every number on this page is computed from `live_run.npz`, which `python lessons/live_run.py --publish` writes.
#
# ## Predictions
#
# Written down, and committed, before the first measurement:

# %%
import json

import numpy as np
from matplotlib.patches import FancyBboxPatch

from lessons import identity, live_run
from lessons.kit import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, check, knob, label_line, new_figure, say, show
from lessons.live_measure import GROUP_SIZES, KS, MEAN, SCRIPTS, SUM, UPDATES

results = live_run.load()
config = json.loads(str(results["config"]))
steps = live_run.steps_of(results, "grpo")
start, middle, end = steps[0], steps[len(steps) // 2], steps[-1]
COLORS = {"grpo": BLUE, "dr_grpo": ORANGE, "dapo": GREEN}
NAMES = {script: name for name, script in SCRIPTS.items()}
after = {script: [step for step in steps if step > 0] for script in NAMES}
stages = {(script, step): live_run.at(results, script, step) for script in NAMES for step in steps}
different = [("grpo", 0)] + [
    (script, step) for script in NAMES for step in after[script]
]  # the base is one stage, not 3


def named(script, step):
    return "base model" if step == 0 else f"{NAMES[script]}, step {step}"


def escape(text):
    """For a cell of a table: a bar would end it."""
    return text.replace("|", "\\|")


say(
    "\n".join(
        ["| about | prediction |", "|---|---|"] + [f"| {k} | {escape(v)} |" for k, v in live_run.PREDICTIONS.items()]
    )
)

# %% [markdown]
# ## Method
#
# The runs are the scripts as they stand. At each measured step, every held-out prompt gets many answers. **One half of them
# gives $p$ and $\nabla p$, the other half is cut into groups**, so that nothing that is compared shares an answer. The model
# repeats itself, so the scores of all *different* answers can be computed one by one, and from their inner products follows
# the length, the cosine and the variance of anything made of them. $\lVert m_+ - m_-\rVert^2$ is the inner product of two
# independent estimates, one from each half: the square of one noisy estimate would count its noise as signal.
#
# Easy prompts differ from hard ones in more than $k$: their scores have other lengths. So to see what $k$ does, groups with
# different $k$ are formed **of the same prompt's answers**, 64 of each kind.

# %%
largest32, largest64 = (np.nanmax(results[name]) for name in ("error_float32", "error_float64"))
assert largest32 < 1e-4 and largest64 < 1e-11
moved, told = (np.concatenate([stages[stage]["slope"][:, i] for stage in different]).astype(float) for i in (0, 1))
slope = live_run.ratio(moved, told)
assert slope.low < 1 < slope.high
seen = np.concatenate([stages[stage]["seen"] for stage in different])
different_answers = np.concatenate([stages[stage]["different"] for stage in different])

# %% [text]
# {=config['seeds']} seeds of each script, measured at steps {=', '.join(map(str, steps))}, on {=config['prompts']}
# prompts a seed with {=config['answers']:,} answers each; groups of {=', '.join(map(str, GROUP_SIZES))}. Among the
# answers to one prompt {=np.median(different_answers):.0f} are different (median), and these carry
# {=np.nanmedian(seen):.1%} of all probability. Brackets are 95 % intervals from resampling prompts; they do not speak
# of other training runs.
#
# **Both sides of the identity, through the scripts' own losses:** one mixed group of 4 prompts for every G, seed, run
# and step. Relative error below 1e-4 in float32: {=largest32 < 0.0001}; below 1e-11 in float64: {=largest64 < 1e-11}.
#
# **Is $\nabla p$ what it claims to be?** We moved the model a little along the estimate from one half of the answers
# and added up the probabilities of all right answers before and after. $p$ changed {=slope} times as fast as the
# other half says.

# %% [markdown]
# ## The length of an update
#
# Turn the knob first: the run, the training step, G, and whose update it is. Dots are the root mean square length over groups
# of one prompt, averaged over prompts (of logarithms); the even split is 1.


# %%
def profile(prompts, G, kind=SUM):
    """Mean over prompts of log |g| at each k against the even split: (ks, Estimates), for prompts with every k."""
    lengths = live_run.of_size(prompts, "same_prompt", G)[:, kind, : len(KS[G])].astype(float)
    logs = np.log(lengths / lengths[:, [KS[G].index(G // 2)]])
    logs[~np.isfinite(logs).all(axis=1)] = np.nan
    return np.array(KS[G]), [live_run.ratio(column) for column in logs.T]


def formula(prompts, G):
    """The same from the class means and variances of all prompts together, without any group."""
    contrast, (v_right, v_wrong) = prompts["contrast_squared"][:, SUM], prompts["variances"][:, SUM].T
    rows = np.isfinite(live_run.of_size(prompts, "same_prompt", G)[:, SUM, : len(KS[G])]).all(axis=1)
    rows &= np.isfinite(contrast + v_right + v_wrong)
    squared = np.array(
        [identity.update_norm_squared(k, G, contrast[rows], v_right[rows], v_wrong[rows]) for k in KS[G]]
    )
    ratios = squared / squared[KS[G].index(G // 2)]
    return np.exp(np.log(np.maximum(ratios, 1e-9)).mean(axis=1) / 2)


def draw(run="GRPO", step=end, G=8, update="GRPO"):
    prompts = stages[SCRIPTS[run], step]
    ks, points = profile(prompts, G, MEAN if update == "GRPO with 1/|y|" else SUM)
    power = 1 if update == "Dr. GRPO" else 0
    sigma = identity.sigma(ks, G) / 0.5
    value, low, high = (
        np.exp([getattr(point, name) for point in points]) * sigma**power for name in ("value", "low", "high")
    )
    figure, axis = new_figure(8, 3.8)
    axis.plot(ks, sigma, "--", color=GREY)
    axis.plot(ks, np.ones(len(ks)) if power == 0 else sigma**2, ":", color=GREY)
    axis.errorbar(ks, value, [value - low, high - value], fmt="o", color=BLUE if power == 0 else ORANGE, markersize=7)
    axis.plot(
        ks, formula(prompts, G) * sigma**power, "-", color=BLUE if power == 0 else ORANGE, linewidth=1.2, alpha=0.7
    )
    label_line(axis, ks[-1], sigma[-1], "∝ σ", GREY, xytext=(8, 0))
    label_line(
        axis,
        ks[-1],
        1 if power == 0 else sigma[-1] ** 2,
        "the same for all" if power == 0 else "∝ σ²",
        GREY,
        xytext=(8, -2),
    )
    label_line(axis, ks[-1], value[-1], "measured", BLUE if power == 0 else ORANGE, xytext=(8, 10))
    axis.set(
        title=f"Length of {update}'s update, one prompt: run of {run}, step {step}, G = {G}",
        xlabel="k, right answers in the group",
        ylim=(0, 1.35),
        xlim=(0, ks[-1] + G / 4.5),
    )
    axis.set_xticks(ks if G < 32 else [k for k in ks if k not in (1, 2, G - 2, G - 1)])
    return figure


knob(
    draw,
    run=list(SCRIPTS),
    step=steps[::-1],
    G=[8, 4, 16, 32, 64],
    update=["GRPO", "GRPO with 1/|y|", "Dr. GRPO"],
)

# %%
rows = []
halves = {
    side: {s: live_run.exponent(stages[s], 8, SUM, side) for s in different}
    for side in ("few right", "few wrong", "both")
}
for script in NAMES:
    for step in steps if script == "grpo" else after[script]:
        e = [halves[side][script, step] for side in ("few right", "few wrong", "both")]
        name = named(script, step)
        rows.append(f"| {name} | {stages[script, step]['p'].mean():.2f} | {e[0]} | {e[1]} | {e[2]} |")
say(
    "\n".join(
        [
            "| | accuracy | $b$, half or fewer right | $b$, half or fewer wrong | $b$, both sides |",
            "|---|---|---|---|---|",
        ]
        + rows
    )
)
few_right, few_wrong, both = (
    np.array([halves[side][s].value for s in different]) for side in ("few right", "few wrong", "both")
)
ends = {k: np.exp([profile(stages[s], 8)[1][k - 1].value for s in different]) for k in (1, 7)}
assert few_right.min() > 0.8 and np.abs(few_wrong).max() < 0.4 and ends[1].max() < 0.75 and ends[7].min() > 0.85

# %% [text]
# *Up to the even split GRPO's length follows σ ($b$ from {=few_right.min():.2f} to {=few_right.max():.2f}); beyond
# it, it hardly changes ($b$ from {=few_wrong.min():.2f} to {=few_wrong.max():.2f}). G = 8.*
#
# **So both are right, each on one side.** One right answer among eight: {=ends[1].min():.2f} to {=ends[1].max():.2f}
# of the even split's length, where σ says {=identity.sigma(1, 8) / 0.5:.2f}. One *wrong* answer among eight:
# {=ends[7].min():.2f} to {=ends[7].max():.2f}, where σ says {=identity.sigma(7, 8) / 0.5:.2f}. A lone failure moves
# the model about as far as an even split does; a lone success does not. Dr. GRPO's length has one σ more: it follows
# σ² where few are right, and σ where few are wrong. It is so before training, in the middle and at the end, in all
# three runs.

# %% [markdown]
# ## What decides it
#
# From lesson 6, given $k$, for GRPO:
#
# $$\mathbb E\,\|g\|^2 = \underbrace{\sigma^2\,\|m_+ - m_-\|^2}_{\text{signal}} + \underbrace{\frac{(G-k)\,v_+ + k\,v_-}{G^2}}_{\text{noise}}$$
#
# The signal is as symmetric in $k$ as σ. The noise is not, if one kind of answer is more varied than the other: $v_-$ comes with
# $k$, because in a group of many right answers the few wrong ones have large advantages. (Thin line in the knob: this formula.)

# %%
table = [
    "| | $v_-/v_+$ | G with signal = noise | signal in $\\lVert g\\rVert^2$: G = 2 | 8 | 64 |",
    "|---|---|---|---|---|---|",
]
spread, crossing, share = {}, {}, {}
for script, step in different:
    prompts = stages[script, step]
    v_right, v_wrong = prompts["variances"][:, SUM].T
    spread[script, step] = live_run.ratio(v_wrong, np.where(np.isfinite(v_wrong), v_right, np.nan))
    crossing[script, step] = live_run.half_size(prompts)
    share[script, step] = {G: live_run.signal_share(prompts, G) for G in GROUP_SIZES}
    name = named(script, step)
    cells = [f"{share[script, step][G]}" for G in (2, 8, 64)]
    table.append(f"| {name} | {spread[script, step].value:.0f} | {crossing[script, step].value:.0f} "
                 f"[{crossing[script, step].low:.0f}, {crossing[script, step].high:.0f}] | {' | '.join(cells)} |")  # fmt: skip
say("\n".join(table))
gap = np.concatenate(
    [np.log(formula(stages[s], 8)) - [point.value for point in profile(stages[s], 8)[1]] for s in different]
)
assert np.abs(gap).max() < 0.25
at_start, at_end = share["grpo", 0][8], [share[script, end][8].value for script in NAMES]
by_size = {G: [live_run.exponent(stages[s], G).value for s in different] for G in GROUP_SIZES[1:]}
effective = {s: [np.nanmedian(stages[s]["effective"][:, i]) for i in (0, 1)] for s in different}
grown = [spread[script, end].value > spread["grpo", 0].value for script in NAMES]

# %% [text]
# **Right answers are alike; every wrong answer is wrong in its own way.** The scores of wrong answers vary
# {=min((e.value for e in spread.values())):.0f} to {=max((e.value for e in spread.values())):.0f} times as much as
# those of right ones. Counted as if all were equally frequent (exp of the entropy, median prompt), there are
# {=effective['grpo', 0][0]:.1f} different right and {=effective['grpo', 0][1]:.1f} different wrong answers before
# training, {=min((effective[script, end][0] for script in NAMES)):.1f} to
# {=max((effective[script, end][0] for script in NAMES)):.1f} right and
# {=min((effective[script, end][1] for script in NAMES)):.1f} to
# {=max((effective[script, end][1] for script in NAMES)):.1f} wrong ones at step {=end}. Rare answers have long
# scores. At the end of {=sum(grown)} of {=len(grown)} runs the ratio is larger than at the start.
#
# **The group size decides the rest.** An evenly split group has as much signal as noise at
# $G = 2(v_+ + v_-)/\lVert m_+ - m_-\rVert^2$: {=crossing['grpo', 0].value:.0f} before training,
# {=min((crossing[s, t].value for s, t in different if t)):.0f} to
# {=max((crossing[s, t].value for s, t in different if t)):.0f} later. Larger groups average the noise away: at G = 4
# the exponent over both sides is {=min(by_size[4]):.2f} to {=max(by_size[4]):.2f}, at G = 64 {=min(by_size[64]):.2f}
# to {=max(by_size[64]):.2f}. The abstract's sentence is the limit of large groups.
#
# At G = 8, {=at_start.value:.0%} of the squared length is signal before training [{=at_start.low:.0%},
# {=at_start.high:.0%}], and {=min(at_end):.0%} to {=max(at_end):.0%} at step {=end}, with wide intervals: no sign
# that training drowns the signal. The formula agrees with the groups: its lines in the knob miss the dots by
# {=np.exp(np.abs(gap).max()) - 1:.0%} at most.

# %% [markdown]
# The quantities themselves, at G = 8 (variances and squares in thousands):

# %%
table = ["| | σ, all groups | length of Δs: k = 1 | k = 4 | k = 7 | $\\lVert m_+ - m_-\\rVert^2$ | $v_+$ | $v_-$ | cosine of Δs and $\\nabla p$ |",
         "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
for script, step in different:
    prompts = stages[script, step]
    lengths = live_run.of_size(prompts, "same_prompt", 8)[:, SUM, :7] / identity.sigma(np.arange(1, 8), 8)
    v_right, v_wrong = (live_run.ratio(column / 1000) for column in prompts["variances"][:, SUM].T)
    numbers = [live_run.ratio(live_run.of_size(prompts, "sigma", 8)[:, 0])]
    cells = [f"{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]" for e in numbers]
    cells += [
        f"{e.value:.0f} [{e.low:.0f}, {e.high:.0f}]" for e in (live_run.ratio(lengths[:, k - 1]) for k in (1, 4, 7))
    ]
    cells += [str(e) for e in (live_run.ratio(prompts["contrast_squared"][:, SUM] / 1000), v_right, v_wrong)]
    cells += [str(live_run.ratio(live_run.of_size(prompts, "cosine", 8)))]
    table.append(f"| {named(script, step)} | " + " | ".join(cells) + " |")
say("\n".join(table))

# %% [markdown]
# **Comparing different prompts would mislead.** A batch holds one group of each prompt, so that is what a training log shows.
# Hard prompts have small $k$ and easy ones large $k$, and their scores differ for other reasons:

# %%
across = {s: live_run.exponent_across(stages[s]) for s in different}
figure, (left, right) = new_figure(9.5, 3.6, columns=2)
for axis, (script, step) in zip((left, right), (("grpo", 0), ("grpo", end))):
    prompts = stages[script, step]
    counts, squares = prompts["by_k"].sum(axis=0)[:, 1:-1]
    mixed_prompts = np.sqrt(squares / counts)
    ks, within = profile(prompts, 8)
    axis.plot(ks, mixed_prompts / mixed_prompts[3], "s-", color=PURPLE, markersize=5)
    axis.plot(ks, np.exp([e.value for e in within]), "o-", color=BLUE)
    axis.plot(ks, identity.sigma(ks, 8) / 0.5, "--", color=GREY)
    axis.text(0.04, 0.06, "groups as they come,\nmany prompts", color=PURPLE, transform=axis.transAxes)
    label_line(axis, 7, np.exp(within[6].value), "one prompt", BLUE, xytext=(6, 0))
    label_line(axis, 7, identity.sigma(7, 8) / 0.5, "∝ σ", GREY, xytext=(6, 0))
    top = max(1.5, 1.25 * (mixed_prompts / mixed_prompts[3]).max())
    axis.set(
        title=named(script, step),
        xlabel="k, right answers of 8",
        xlim=(0.7, 8.9),
        ylim=(0, top),
    )
left.set_ylabel("RMS length, k = 4 is 1")
show(figure)

# %% [text]
# *The same updates, two comparisons.* Over the {=len(different)} stages the exponent between prompts comes out
# anywhere from {=min(across.values()):.1f} to {=max(across.values()):.1f}, within prompts from {=both.min():.2f} to
# {=both.max():.2f}. A log of $\lVert g\rVert$ against σ from a training run answers another question than the
# abstract's.

# %% [markdown]
# ## Silent groups
#
# Counted in the groups of one half of the answers, predicted from $p$ by the other half (without bias: the share of all
# G-subsets that are silent). Beside it two plug-ins: the other half's $\hat p$ put into $p^G + q^G$, and the group's own $k/G$.

# %%
silent = {(s, G): live_run.silent_shares(stages[s], G) for s in different for G in GROUP_SIZES}
n = config["answers"] // 2
groups = {G: config["seeds"] * config["prompts"] * (n // G) for G in GROUP_SIZES}
tests = []
for s in different:
    for G in GROUP_SIZES:
        for side in ("all right", "all wrong"):
            difference = silent[s, G][f"{side}, difference"]
            if (silent[s, G][side].value - difference.value) * groups[G] >= 10:  # else an interval says little
                tests.append(difference)
missed = sum(not e.low <= 0 <= e.high for e in tests)
figure, (left, right) = new_figure(9.5, 3.6, columns=2)
left.plot([0, 1], [0, 1], color=GREY, linewidth=1)
for script in NAMES:
    x, y = (
        np.array([silent[(script, t), G][n].value for t in after[script] for G in GROUP_SIZES])
        for n in ("predicted", "counted")
    )
    left.plot(x, y, "o", color=COLORS[script], markersize=4, alpha=0.8)
    label_line(
        left, 0.6, {"grpo": 0.35, "dr_grpo": 0.25, "dapo": 0.15}[script], f"run of {NAMES[script]}", COLORS[script]
    )
left.set(
    title="Silent share: every step and G",
    xlabel="predicted from other answers",
    ylabel="counted",
    xlim=(0, 1),
    ylim=(0, 1),
)
x = np.arange(len(GROUP_SIZES))
for key, color, marker in (("plug-in, the group itself", RED, "o"), ("plug-in, other answers", BLUE, "s")):
    y = [
        np.mean([100 * (silent[s, G][key].value - silent[s, G]["predicted"].value) for s in different])
        for G in GROUP_SIZES
    ]
    right.plot(x, y, f"{marker}-", color=color)
    label_line(right, x[2 if "itself" in key else 3], y[2 if "itself" in key else 3], key, color, xytext=(8, 12))
right.set(title="Error of the plug-ins, in points (mean of stages)", xlabel="G", xlim=(-0.2, 6))
right.set_xticks(x, GROUP_SIZES)
show(figure)
table = ["| | all right: G = 4 | 8 | 64 | all wrong: G = 4 | 8 | 64 |", "|---|---|---|---|---|---|---|"]
for script, step in [("grpo", 0)] + [(script, end) for script in NAMES]:
    cells = []
    for side in ("all right", "all wrong"):
        for G in (4, 8, 64):
            counted, difference = silent[(script, step), G][side], silent[(script, step), G][f"{side}, difference"]
            cells.append(f"{counted.value:.3f} ({counted.value - difference.value:.3f})")
    table.append(f"| {named(script, step)} | " + " | ".join(cells) + " |")
say("\n".join(table + ["", "(counted, and in brackets predicted)"]))
own = [100 * (silent[s, 8]["plug-in, the group itself"].value - silent[s, 8]["predicted"].value) for s in different]
other = [100 * (silent[s, 64]["plug-in, other answers"].value - silent[s, 64]["predicted"].value) for s in different]

# %% [text]
# *The formula holds; where its $p$ comes from matters.* Where at least ten silent groups are predicted there are
# {=len(tests)} intervals for the difference (all right and all wrong apart, every step and G; those of one stage
# share answers). {=missed} of them miss 0; at 95 % one expects {=0.05 * len(tests):.0f}. A group's own $k/G$
# overstates its silence by {=min(own):.1f} to {=max(own):.1f} points at G = 8. $\hat p$ of {=n} other answers is good
# enough, up to {=max(other):.1f} points at G = 64.

# %% [markdown]
# ## The expected update
#
# $\mathbb E[g] = w_G(p)\,\nabla p$ ([lesson 7](07_group_size.ipynb)): the component of the mean update along the *other* half's
# $\nabla p$, by range of $p$, against the closed form and its cap $\sqrt{G-1}$ ([lesson 9](09_objective.ipynb)).

# %%
everything = {name: np.concatenate([stages[s][name] for s in different]) for name in stages["grpo", 0] if name != "n"}
ranges = [(0.02, 0.1), (0.1, 0.2), (0.2, 0.35), (0.35, 0.65), (0.65, 0.85), (0.85, 0.95), (0.95, 1.0)]
figure, axis = new_figure(8, 3.8)
grid = np.linspace(0.002, 0.998, 300)
above_cap = []
for G, color in ((2, GREY), (8, BLUE), (64, GREEN)):
    axis.plot(grid, identity.weight("GRPO", grid, G), "-", color=color, linewidth=1.2)
    for low, high in ranges:
        inside = (everything["p"] >= low) & (everything["p"] < high + (high == 1))
        weight = live_run.weights(everything, G, "grpo", (low, high))["measured"]
        mean_p = np.average(everything["p"][inside], weights=np.maximum(everything["gradient_squared"][inside, 0], 0))
        axis.errorbar(
            mean_p,
            weight.value,
            [[weight.value - weight.low], [weight.high - weight.value]],
            fmt="o",
            color=color,
            markersize=5,
        )
        above_cap.append(weight.low > np.sqrt(G - 1))
    label_line(axis, 1, identity.weight("GRPO", 0.998, G), f"G = {G}, cap {np.sqrt(G - 1):.2f}", color, xytext=(8, 0))
    axis.plot([0, 1], [np.sqrt(G - 1)] * 2, ":", color=color, linewidth=1)
axis.set(title="E[g] over grad p: measured (dots) and exact", xlabel="p", xlim=(0, 1.28), ylim=(0, 8.5))
axis.set_xticks(np.linspace(0, 1, 6))
show(figure)
ratios = {(s, G): live_run.weights(stages[s], G)["measured / closed form"] for s in different for G in GROUP_SIZES}
dr = [live_run.weights(stages[s], 8, "dr_grpo")["measured"].value for s in different]
cosines = {G: [float(np.nanmean(live_run.of_size(stages[s], "cosine", G))) for s in different] for G in (2, 8, 64)}

# %% [text]
# *All stages together.* Per stage and G, {=sum((not e.low <= 1 <= e.high for e in ratios.values()))} of
# {=len(ratios)} intervals for measured over exact miss 1; it lies between
# {=min((e.value for e in ratios.values())):.2f} and {=max((e.value for e in ratios.values())):.2f}. Dr. GRPO's weight
# at G = 8 between {=min(dr):.2f} and {=max(dr):.2f}, exact {=1 - 1 / 8:.3f}. A single group is another matter: the
# cosine of its contrast with $\nabla p$ is {=min(cosines[2]):.2f} to {=max(cosines[2]):.2f} at G = 2,
# {=min(cosines[8]):.2f} to {=max(cosines[8]):.2f} at 8, {=min(cosines[64]):.2f} to {=max(cosines[64]):.2f} at 64
# (means over mixed groups; the estimate of $\nabla p$ is noisy too, so these are lower bounds).

# %% [markdown]
# ## Who moves the model
#
# Share of the total update by difficulty at G = 8: as length $\lVert g\rVert$ (with each script's way to average tokens), as σ
# (σ² for Dr. GRPO), and the closed form at finite G. The first is what moves parameters; the others are what is usually plotted.

# %%
edges = (0, 0.1, 0.3, 0.7, 0.9, 1.0)
names = ["p < .1", ".1 to .3", ".3 to .7", ".7 to .9", "> .9"]
figure, axes = new_figure(10, 3.4, columns=3, sharey=True)
mass = {s: {m: live_run.mass_shares(stages[s], 8, m, edges) for m in NAMES} for s in different}
for axis, step in zip(axes, (start, middle, end)):
    shares = mass["grpo", step]["grpo"]
    for j, (key, color) in enumerate((("|g|", BLUE), ("sigma", ORANGE), ("closed form", GREY))):
        value, low, high = (
            np.array([100 * getattr(e, name) for e in shares[key]]) for name in ("value", "low", "high")
        )
        axis.bar(
            np.arange(5) + 0.27 * (j - 1),
            value,
            0.27,
            color=color,
            yerr=[value - low, high - value],
            error_kw={"linewidth": 1},
        )
        axis.text(
            0.45 if step == 0 else 0.02,
            0.93 - 0.09 * j,
            {"|g|": "length |g|", "sigma": "σ, measured"}.get(key, "E[σ], closed form"),
            color=color,
            transform=axis.transAxes,
        )
    axis.set_title(named("grpo", step))
    axis.set_xticks(range(5), names, fontsize=8)
axes[0].set_ylabel("share of the update, %")
show(figure)


def extremes(s, method, key):
    return 100 * sum(mass[s][method][key][i].value for i in (0, 4))


longer = {m: [extremes(s, m, "|g|") - extremes(s, m, "sigma") for s in different] for m in NAMES}
exact = max(abs(extremes(s, m, "sigma") - extremes(s, m, "closed form")) for s in different for m in NAMES)
own_runs = [s for s in different if s[1] == end]
by_run = "; ".join(
    f"{NAMES[s[0]]} {extremes(s, s[0], '|g|'):.0f} % as length, {extremes(s, s[0], 'sigma'):.0f} % as {('σ²' if s[0] == 'dr_grpo' else 'σ')}"
    for s in own_runs
)

# %% [text]
# *σ, measured, is its closed form within {=exact:.1f} points. As a picture of who moves the model it is a fair
# guess:* for the prompts with p below .1 or above .9, length minus σ is {=min(longer['grpo']):+.0f} to
# {=max(longer['grpo']):+.0f} points over all {=len(different)} stages under GRPO, {=min(longer['dapo']):+.0f} to
# {=max(longer['dapo']):+.0f} under DAPO, and length minus σ² {=min(longer['dr_grpo']):+.0f} to
# {=max(longer['dr_grpo']):+.0f} under Dr. GRPO. The sign depends on how tokens are averaged: GRPO's $1/|y|$ lengthens
# the updates of short answers. At step {=end} of their own runs: {=by_run}. (DAPO's filter changes no shares: it
# drops what counts 0.)

# %% [markdown]
# ## Later minibatches
#
# The identity is about the first step after sampling. Each script makes four updates from a batch. Before each one we compare the
# gradient of the loss with what it would be if all ratios were 1, at the same parameters and on the same answers. How much of
# that vector is left? First with the ratios alone, then with the clip, then with everything (KL, DAPO's overlong punishment).

# %%
where = {script: (results["script"] == script) for script in NAMES}
figure, axes = new_figure(10, 3.6, columns=3, sharey=True)
for axis, script in zip(axes, NAMES):
    for what, (label, color) in enumerate((("ratios", GREY), ("+ clip", BLUE), ("all of the loss", RED))):
        values = results["minibatch"][where[script], :, what, 0]
        axis.plot(range(len(UPDATES)), np.nanmedian(values, axis=0), "o-", color=color, markersize=5)
        axis.fill_between(
            range(len(UPDATES)), *np.nanquantile(values, [0.25, 0.75], axis=0), color=color, alpha=0.12, linewidth=0
        )
        axis.text(0.05, 0.3 - 0.09 * what, label, color=color, transform=axis.transAxes)
    axis.axvline(3.5, color="black", linewidth=0.8, linestyle=":")
    axis.set_xticks(range(len(UPDATES)), [u + 1 for u in UPDATES])
    axis.set(title=NAMES[script], xlabel="update of the batch", ylim=(-0.3, 1.25))
axes[0].set_ylabel("what is left along the identity")
show(figure)
fresh = results["minibatch"][:, 3, :, 0][results["script"] != ""]
used = results["group"][:, 3, :, :, 0][results["script"] != ""]
again = results["minibatch"][:, 4, :, 0][results["script"] != ""]
clip_share = results["clipped"][:, 3][results["script"] != ""]
rest = results["minibatch"][:, 3, :, 1][results["script"] != ""]
turned = results["turned"][:, 3][results["script"] != ""]
part = results["part"][results["script"] != ""]
has_kl = np.isin(results["script"], ("grpo", "dr_grpo"))[results["script"] != ""]
clip_takes, kl_takes = fresh[:, 0] - fresh[:, 1], np.abs(fresh[:, 1] - fresh[:, 2])[has_kl]

# %% [text]
# *Medians over seeds and steps, with quartiles. Left of the dotted line a minibatch is used for the first time; the
# scripts go no further (one pass).* At the fourth update {=np.median(fresh[:, 0]):.2f} is left with ratios alone,
# {=np.median(fresh[:, 1]):.2f} with the clip, {=np.median(fresh[:, 2]):.2f} with everything (quartiles
# {=np.quantile(fresh[:, 2], 0.25):.2f} and {=np.quantile(fresh[:, 2], 0.75):.2f}, {=len(fresh)} measurements). The
# clip takes {=np.median(clip_takes):.2f} and stops {=np.median(clip_share):.1%} of the tokens; the KL term takes
# {=np.median(kl_takes):.2f}. What points elsewhere has {=np.median(rest[:, 2]):.2f} of the identity's length.
#
# A second pass is another world. Before the eighth update, on answers that were used once,
# {=np.median(again[:, 0]):.2f} is left with ratios and {=np.median(again[:, 1]):.2f} with the clip. The same shows on
# whole groups before the fourth update, three quarters of whose answers were used: {=np.nanmedian(used[:, 0]):.2f}
# and {=np.nanmedian(used[:, 1]):.2f}. The identity's own vector has hardly turned meanwhile: its cosine with itself
# at the sampling policy is {=np.nanmedian(turned):.3f}. And a minibatch is a quarter of the rows, cut without regard
# to groups: even before the first update its identity has a cosine of {=np.median(part):.2f} with that of the whole
# batch.

# %% [markdown]
# ## One group, token by token
#
# How can the clip take so much while it stops so few tokens? Because few tokens are the update. Each token's term of the
# update, projected on the whole update: the shares sum to 1.

# %%
stage = int(np.flatnonzero((results["script"] == "grpo") & (results["step"] == steps[1]))[0])
view = json.loads(str(results["tokens"][stage]))
longest = max(len(answer) for answer in view["answers"])
figure, axis = new_figure(11, 0.42 * len(view["answers"]) + 0.9)
top = max(abs(token["share"]) for answer in view["answers"] for token in answer)
for i, (A, answer) in enumerate(zip(view["advantages"], view["answers"])):
    axis.text(
        -0.6,
        -i,
        f"{'right' if A > 0 else 'wrong'}, A = {A:+.2f}",
        ha="right",
        va="center",
        fontsize=9,
        color=BLUE if A > 0 else RED,
    )
    for t, token in enumerate(answer):
        strength = min(1.0, abs(token["share"]) / top) ** 0.5
        face = BLUE if token["share"] > 0 else RED
        box = FancyBboxPatch(
            (t - 0.42, -i - 0.36),
            0.84,
            0.72,
            boxstyle="round,pad=0.02",
            facecolor=face,
            alpha=0.85 * strength,
            edgecolor="none",
        )
        axis.add_patch(box)
        if token["clipped"]:
            axis.add_patch(
                FancyBboxPatch(
                    (t - 0.42, -i - 0.36),
                    0.84,
                    0.72,
                    boxstyle="round,pad=0.02",
                    facecolor="none",
                    edgecolor="black",
                    linewidth=1.8,
                )
            )
        text = "⏎" if token["token"] == "EOS" else token["token"]
        axis.text(
            t,
            -i,
            text,
            ha="center",
            va="center",
            family="DejaVu Sans Mono",
            fontsize=10,
            color="white" if strength > 0.55 else "black",
        )
axis.set(
    xlim=(-7, longest + 0.5),
    ylim=(-len(view["answers"]) + 0.4, 0.7),
    title=f"{view['prompt']}  share of the update (shade), stopped by the clip before the 4th update (frame)",
)
axis.axis("off")
show(figure)
tokens = [token for answer in view["answers"] for token in answer]
assert abs(sum(token["share"] for token in tokens) - 1) < 1e-3
largest = max(
    (token for token in tokens if token["clipped"]),
    key=lambda token: token["share"],
    default=max(tokens, key=lambda t: t["share"]),
)
carried = results["carried"][results["script"] != ""].reshape(-1, 3)
carried = carried[np.isfinite(carried).all(axis=1)]
place = {script: np.nanmean(results["places"][where[script]].reshape(-1, 4), axis=0) for script in NAMES}
table = [
    "| share of a group's update, mean | first token | rest of the working | digits of the answer | # and end |",
    "|---|---|---|---|---|",
]
table += [
    f"| {NAMES[script]} | " + " | ".join(f"{round(value, 2) + 0:.0%}" for value in place[script]) + " |"
    for script in NAMES
]
places_table = "\n".join(table)

# %% [text]
# *Blue: along the update; red: against it; ⏎: end of the answer.* A token of which the policy is nearly certain has
# hardly a gradient, and the working consists of such tokens. The update sits where the policy chooses.
#
# {=places_table}
#
# Over {=len(carried)} mixed groups, the 5 % of the tokens with the largest shares carry
# {=np.median(carried[:, 0]):.0%} of the update (median; quartiles {=np.quantile(carried[:, 0], 0.25):.0%} and
# {=np.quantile(carried[:, 0], 0.75):.0%}; some others count against it). Before the fourth update the clip stops
# {=np.mean(carried[:, 2]):.1%} of a group's tokens, and these carried {=np.mean(carried[:, 1]):.0%} of its first
# update, on average. In the picture `{=largest['token']}` went from a probability of
# {=np.exp(largest['logp_old']):.2f} to {=np.exp(largest['logp']):.2f} in three updates. **What moves the model most
# moves most itself, and is clipped first.**

# %% [markdown]
# ## What became of the predictions

# %%
at8 = {s: live_run.exponent(stages[s], 8) for s in different}
mean8 = {s: live_run.exponent(stages[s], 8, MEAN) for s in different}
rises = sum(np.all(np.diff([live_run.exponent(stages[s], G).value for G in GROUP_SIZES[1:]]) > 0) for s in different)
crosses = sum(share[s][2].value < 0.5 < share[s][16].value for s in different)
falls = [at8[script, end].value < at8["grpo", 0].value for script in NAMES]
length_gap = max(abs(at8[s].value - mean8[s].value) for s in different)
mass_wins = sum(extremes(s, "grpo", "|g|") > extremes(s, "grpo", "sigma") for s in different)


def verdict(held):
    held = list(held)
    return "**held**" if all(held) else "**failed**" if not any(held) else "**partly**"


verdicts = {
    "identity": (verdict([largest32 < 1e-4 and largest64 < 1e-11]), "in every group that was checked"),
    "silent": (
        verdict([missed <= 0.1 * len(tests), min(own) >= 5]),
        f"{missed} of {len(tests)} intervals miss 0; a group's own k/G is {min(own):.1f} to {max(own):.1f} points too high",
    ),
    "weight": (
        verdict([all(abs(e.value - 1) < 0.1 for e in ratios.values()), not any(above_cap)]),
        f"off by {max(abs(e.value - 1) for e in ratios.values()):.0%} at most; above the cap by more than its interval: {sum(above_cap)} of {len(above_cap)} ranges",
    ),
    "start": (
        verdict([0.3 < at8["grpo", 0].value < 0.8]),
        f"b = {at8['grpo', 0]}; but the number hides that one side follows σ and the other is flat, which no prediction was about",
    ),
    "training": (
        verdict(falls),
        f"b is {', '.join(f'{at8[script, end].value:.2f}' for script in NAMES)} at the end, {at8['grpo', 0].value:.2f} at the start",
    ),
    "group size": (
        verdict([rises == len(different), crosses == len(different)]),
        f"b rises with every G at {rises} of {len(different)} checkpoints; the signal passes half between 2 and 16 at {crosses}",
    ),
    "length": (verdict([length_gap < 0.15]), f"changes b by {length_gap:.2f} at most"),
    "mass": (
        verdict([mass_wins == len(different)] if mass_wins in (0, len(different)) else [True, False]),
        f"at {mass_wins} of {len(different)} checkpoints",
    ),
    "staleness": (
        verdict(
            [
                np.median(fresh[:, 2]) >= 0.9,
                np.median(clip_takes) < 0.01,
                np.median(kl_takes) > np.median(clip_takes[has_kl]),
            ]
        ),
        f"left at the fourth update: {np.median(fresh[:, 2]):.2f}; taken by the clip {np.median(clip_takes):.2f}, by the KL term {np.median(kl_takes):.2f} (medians)",
    ),
}
assert set(verdicts) == set(live_run.PREDICTIONS)
say(
    "\n".join(
        ["| about | verdict | measured |", "|---|---|---|"] + [f"| {k} | {v} | {w} |" for k, (v, w) in verdicts.items()]
    )
)
off = max(abs(e.value - 1) for e in ratios.values())

# %% [text]
# ## Answer
#
# Is GRPO's update as long as the group's disagreement? **In this model, on prompts where few answers are right, yes;
# where few are wrong, no: there every mixed group moves it about equally far, and it is Dr. GRPO's length that
# follows σ.** The variety of wrong answers decides it, and the group size. It is so from the first step to the last.
# What the identity says of expectations, $\mathbb E[g] = w_G(p)\nabla p$, holds within {=off:.0%} through the whole
# of training, and what it says of silence within chance. Of the four updates of a batch the first is the identity; of
# the fourth's, {=np.median(fresh[:, 2]):.0%} is left (median), because a handful of tokens are the update and the
# clip stops them.

# %% [markdown]
# **What this cannot say.** One small model and one task, in which a problem has one right answer and few ways to work it out. Where right
# answers are as varied as wrong ones (proofs, programs, chains of thought), the lopsidedness may be gone or turned around; the quantity to
# look at is $v_-/v_+$. Lengths are Euclidean, and Adam follows other ones. Few training seeds; the intervals are over prompts.
#
# ## Exercises
#
# **1. Signal without noise.** From two independent halves of a prompt's answers you have two estimates `d1`, `d2` of the contrast
# $m_+ - m_-$ (arrays). Estimate $\lVert m_+ - m_-\rVert^2$ so that noise does not add to it on average.


# %% [exercise]
def signal_squared(d1, d2):
    """An estimate of |m+ - m-|^2 whose expectation is right."""
    return ...


# %% [check]
_d = [
    {"d1": np.array([1.0, 2.0]), "d2": np.array([0.5, 3.0])},
    {"d1": np.array([1.0, 0.0]), "d2": np.array([-1.0, 0.5])},
]
check(
    signal_squared,
    lambda d1, d2: float(d1 @ d2),
    inputs=_d,
    mistakes={
        "the square of the mean still holds half of the noise": lambda d1, d2: float(((d1 + d2) / 2) @ ((d1 + d2) / 2)),
        "each square holds all of its own noise": lambda d1, d2: float((d1 @ d1 + d2 @ d2) / 2),
        "it may come out negative; cutting that off brings the bias back": lambda d1, d2: max(0.0, float(d1 @ d2)),
    },
)

# %% [hint]
# E[d1 · d2] = E[d1] · E[d2] if the two are independent. What is E[d1 · d1]?


# %% [solution]
def signal_squared(d1, d2):
    return float(d1 @ d2)


# %% [wrong] the square of the mean
def signal_squared(d1, d2):
    mean = (d1 + d2) / 2
    return float(mean @ mean)


# %% [wrong] cutting that off
def signal_squared(d1, d2):
    return max(0.0, float(d1 @ d2))


# %% [markdown]
# **2. Where signal equals noise.** From the formula above with $k = G/2$: at which G are the two terms equal? Give it from
# `contrast_squared` $= \lVert m_+ - m_-\rVert^2$ and the two variances.


# %% [exercise]
def equal_at(contrast_squared, v_right, v_wrong):
    """The group size (any positive number) at which half of E|g|^2 is signal in an evenly split group."""
    return ...


# %% [check]
check(
    equal_at,
    lambda contrast_squared, v_right, v_wrong: 2 * (v_right + v_wrong) / contrast_squared,
    inputs=[
        {"contrast_squared": 4.0, "v_right": 1.0, "v_wrong": 3.0},
        {"contrast_squared": 1.0, "v_right": 2.0, "v_wrong": 20.0},
    ],
    mistakes={
        "sigma is 1/2 at the even split, and it is squared": lambda contrast_squared, v_right, v_wrong: (
            (v_right + v_wrong) / 2 / contrast_squared
        ),
        "each class has G/2 answers, so that each variance is multiplied by G/2 over G squared": lambda contrast_squared, v_right, v_wrong: (
            4 * (v_right + v_wrong) / contrast_squared
        ),
    },
)

# %% [hint]
# σ² = 1/4. The noise is (G/2)(v₊ + v₋)/G².


# %% [solution]
def equal_at(contrast_squared, v_right, v_wrong):
    return 2 * (v_right + v_wrong) / contrast_squared


# %% [wrong] sigma is 1/2
def equal_at(contrast_squared, v_right, v_wrong):
    return (v_right + v_wrong) / 2 / contrast_squared


# %% [wrong] each class has G/2 answers
def equal_at(contrast_squared, v_right, v_wrong):
    return 4 * (v_right + v_wrong) / contrast_squared


# %% [markdown]
# **3. Predict the lone failure.** No signal at all, and only wrong answers vary ($v_+ = 0$). How long is GRPO's update with one wrong
# answer of G, relative to the even split? And Dr. GRPO's?


# %% [exercise]
def lone_failure(G):
    """(GRPO, Dr. GRPO): root mean square length at k = G - 1 over that at k = G / 2."""
    return ...


# %% [check]
check(
    lone_failure,
    lambda G: (
        np.sqrt(identity.update_norm_squared(G - 1, G, 0, 0, 1) / identity.update_norm_squared(G // 2, G, 0, 0, 1)),
        np.sqrt(identity.update_norm_squared(G - 1, G, 0, 0, 1) / identity.update_norm_squared(G // 2, G, 0, 0, 1))
        * identity.sigma(G - 1, G)
        / 0.5,
    ),
    inputs=[{"G": 8}, {"G": 32}],
    mistakes={
        "that is sigma's ratio: it holds for signal, not for noise": lambda G: (
            2 * np.sqrt(G - 1) / G,
            (2 * np.sqrt(G - 1) / G) ** 2,
        ),
        "that is the squared length: take the root": lambda G: (
            2 * (G - 1) / G,
            2 * (G - 1) / G * 2 * np.sqrt(G - 1) / G,
        ),
        "the noise is not flat if only one class varies: it is k v- / G squared": lambda G: (
            1.0,
            2 * np.sqrt(G - 1) / G,
        ),
    },
)

# %% [hint]
# The noise is k v₋/G². Put k = G − 1 and k = G/2. Dr. GRPO: times σ once more.


# %% [solution]
def lone_failure(G):
    grpo = np.sqrt((G - 1) / (G / 2))
    return grpo, grpo * np.sqrt(G - 1) / G / 0.5


# %% [wrong] sigma's ratio
def lone_failure(G):
    sigma = np.sqrt(G - 1) / G / 0.5
    return sigma, sigma**2


# %% [wrong] the squared length
def lone_failure(G):
    return (G - 1) / (G / 2), (G - 1) / (G / 2) * np.sqrt(G - 1) / G / 0.5


# %% [wrong] the noise is not flat
def lone_failure(G):
    return 1.0, np.sqrt(G - 1) / G / 0.5


# %% [markdown]
# **4. Find the bug.** A training log has, for each prompt and step, σ and the length of its update. This function is to say how the
# length goes with σ, and gives another exponent every time the mix of prompts changes. Repair it: σ of one prompt is to be compared with
# σ of the same prompt. (All arrays have one entry a group; every prompt has several.)


# %% [exercise]
def exponent(prompt, sigma, length):
    """b in length ~ sigma^b within prompts: least squares on logarithms, each prompt with a factor of its own."""
    x, y = np.log(sigma), np.log(length)
    x, y = x - x.mean(), y - y.mean()
    return ...  # the bug, to be replaced: return (x @ y) / (x @ x)


# %% [check]
def _log(seed):
    rng = np.random.default_rng(seed)
    prompt = np.repeat(np.arange(20), 5)
    sigma = identity.sigma(rng.integers(1, 8, size=100), 8)
    return {
        "prompt": prompt,
        "sigma": sigma,
        "length": np.exp(rng.normal(size=20))[prompt] * sigma**0.7 * np.exp(0.05 * rng.normal(size=100)),
    }


def _truth(prompt, sigma, length):
    x, y = np.log(sigma), np.log(length)
    which = prompt[:, None] == np.unique(prompt)
    x, y = (v - which @ (which.T @ v / which.sum(axis=0)) for v in (x, y))
    return (x @ y) / (x @ x)


check(
    exponent,
    _truth,
    inputs=[_log(0), _log(1)],
    mistakes={
        "one mean for all prompts: this is the bug": lambda prompt, sigma, length: np.polyfit(
            np.log(sigma), np.log(length), 1
        )[0],
        "a slope for each prompt, then their mean: prompts with little spread in sigma count too much": lambda prompt, sigma, length: (
            np.mean(
                [np.polyfit(np.log(sigma[prompt == i]), np.log(length[prompt == i]), 1)[0] for i in np.unique(prompt)]
            )
        ),
    },
)

# %% [hint]
# Subtract from x and from y the mean of *their prompt*: `x[prompt == i] -= x[prompt == i].mean()`.


# %% [solution]
def exponent(prompt, sigma, length):
    x, y = np.log(sigma), np.log(length)
    for i in np.unique(prompt):
        x[prompt == i] -= x[prompt == i].mean()
        y[prompt == i] -= y[prompt == i].mean()
    return (x @ y) / (x @ x)


# %% [wrong] one mean for all prompts
def exponent(prompt, sigma, length):
    x, y = np.log(sigma), np.log(length)
    x, y = x - x.mean(), y - y.mean()
    return (x @ y) / (x @ x)


# %% [wrong] a slope for each prompt
def exponent(prompt, sigma, length):
    slopes = [np.polyfit(np.log(sigma[prompt == i]), np.log(length[prompt == i]), 1)[0] for i in np.unique(prompt)]
    return np.mean(slopes)


# %% [markdown]
# ## What to take along
#
# - The identity is exact in every group of a language model that trains, through the scripts' own losses. What it says of lengths depends
#   on how varied right and wrong answers are: look at $v_-/v_+$ and at G.
# - Compare groups of one prompt. Between prompts, $k$ stands for too much else.
# - Take independent answers for everything you compare: $p$ and silence, gradient and update, signal and noise.
# - A few tokens are the update, and the clip stops exactly these: after the first pass little of it is left.
#
# Sources: *GRPO, Dr. GRPO, and DAPO Are Three Operations on One Number*, [arXiv:2607.00152](https://arxiv.org/abs/2607.00152), abstract, Theorem
# `identity`, Limitations. The measurement is ours; `lessons/live_run.py` and `lessons/live_measure.py` make it.
