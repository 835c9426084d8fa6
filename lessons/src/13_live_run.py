# %% [markdown]
# # 13 · The identity in a live run
#
# The paper behind the identity (arXiv:2607.00152) checks its algebra numerically, and its predictions in a training run on
# prompts with one parameter each. It names "a full language-model training loop that logs silent groups and per-difficulty
# gradient mass across G" as the natural next test. Here is one, on a model so small that every gradient can be computed
# exactly. And one question in particular. The paper says of GRPO's update that its "length […] is exactly the group reward
# standard deviation", "for any policy in any dimension". What is exact (lesson 6) is that σ *multiplies* the contrast
# $\bar s_+ - \bar s_-$. The contrast of a prompt with one parameter has length 1; that of a model is noisy, and the fewer answers
# it is made of, the noisier.
#
# **How does the length of GRPO's update depend on how many of G answers are right?**
#
# | symbol | meaning |
# |---|---|
# | $G,\ k$ | answers in a group, all to one prompt; how many of them are right |
# | $p,\ q$ | the probability that an answer is right; $q = 1 - p$ |
# | $\sigma$ | the standard deviation of the group's rewards, $\sqrt{k(G-k)}/G$; **silent**: $\sigma = 0$; otherwise **mixed** |
# | $s_i$ | the score of answer $i$: $\nabla_\theta \log \pi_\theta(y_i)$, summed over its tokens |
# | $\bar s_\pm,\ m_\pm,\ v_\pm$ | mean score of a group's right (+) or wrong (−) answers; its expectation; the variance of one such score, summed over parameters. $\Delta m = m_+ - m_-$ |
# | $g$ | the update of one group: $\frac1G \sum_i A_i s_i$ with the script's advantages |
# | $b$ | the exponent in $\lVert g\rVert \propto \sigma^b$ among groups of one prompt: 1 if the length is proportional to σ, 0 if all mixed groups move the model equally far |
#
# Every number on this page is computed from `live_run.npz`, which `python lessons/experiments/live_run.py --publish` writes.
#
# ## Predictions
#
# Written down, and committed, before the first measurement. They speak of one exponent for all $k$; that the half with few
# right answers and the half with few wrong ones are looked at apart came later, so nothing said of the halves was predicted.

# %%
import json

import numpy as np
from matplotlib.patches import FancyBboxPatch

from algorithms import dapo, dr_grpo, grpo
from lessons import identity
from lessons.experiments import live_run
from lessons.experiments.live_measure import GROUP_SIZES, KS, MEAN, SCRIPTS, SUM, UPDATES
from lessons.kit import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, check, knob, label_line, new_figure, say, show

results = live_run.load()
config = json.loads(str(results["config"]))
steps = live_run.steps_of(results, "grpo")
start, middle, end = steps[0], steps[len(steps) // 2], steps[-1]
COLORS = {"grpo": BLUE, "dr_grpo": ORANGE, "dapo": GREEN}
NAMES = {script: name for name, script in SCRIPTS.items()}
after = {script: [step for step in steps if step > 0] for script in NAMES}
stages = {(script, step): live_run.at(results, script, step) for script in NAMES for step in steps}
different = [("grpo", 0), *((script, step) for script in NAMES for step in after[script])]  # the base only once


def named(script, step):
    return "base model" if step == 0 else f"{NAMES[script]}, step {step}"


def escape(text):
    """For a cell of a table: a bar would end it."""
    return text.replace("|", "\\|")


rows = [f"| {name} | {escape(text)} |" for name, text in live_run.PREDICTIONS.items()]
say("\n".join(["| about | prediction |", "|---|---|", *rows]))

# %% [markdown]
# ## Method
#
# The runs are the scripts as they stand, trained with G = 8. At each measured step, every held-out prompt gets many answers.
# **One half of them gives $p$ and $\nabla p$, the other half is cut into groups** of several sizes. The model repeats itself, so
# the scores of all *different* answers can be computed one by one, and from their inner products follows the length, the cosine
# and the variance of anything made of them. $\lVert\Delta m\rVert^2$ is the inner product of two independent estimates, one from
# each half: the square of one noisy estimate would count its noise as signal.
#
# Easy prompts differ from hard ones in more than $k$: their scores have other lengths. So to see what $k$ does, 64 groups with
# each $k$ are formed **of the same prompt's answers**. These, and $v_\pm$, use both halves.

# %%
largest32, largest64 = (np.nanmax(results[name]) for name in ("error_float32", "error_float64"))
assert largest32 < 1e-4 and largest64 < 1e-11
moved, told = (np.concatenate([stages[stage]["slope"][:, i] for stage in different]).astype(float) for i in (0, 1))
slope = live_run.ratio(moved, told)
assert slope.low < 1 < slope.high
seen = np.concatenate([stages[stage]["seen"] for stage in different])
different_answers = np.concatenate([stages[stage]["different"] for stage in different])
n_prompts, rate = config["seeds"] * config["prompts"], grpo.Config().learning_rate
assert all((s.Config().group_size, s.Config().learning_rate) == (8, rate) for s in (grpo, dr_grpo, dapo))

# %% [text]
# {=config['seeds']} seeds of each script, measured at steps {=', '.join(map(str, steps))}, on {=config['prompts']}
# prompts a seed with {=config['answers']:,} answers each; groups of {=', '.join(map(str, GROUP_SIZES))}. The base model counts
# once, which makes {=len(different)} stages. Among the answers to one prompt {=np.median(different_answers):.0f} are different
# (median), and these carry {=np.nanmedian(seen):.1%} of all probability. Brackets are 95 % intervals from resampling prompts;
# they do not speak of other training runs.
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
# From lesson 6, given $k$, for GRPO (for Dr. GRPO everything is multiplied by $\sigma^2$ once more):
#
# $$\mathbb E\,\|g\|^2 = \underbrace{\sigma^2\,\|\Delta m\|^2}_{\text{signal}} + \underbrace{\frac{(G-k)\,v_+ + k\,v_-}{G^2}}_{\text{noise}}$$
#
# The signal is symmetric in $k$, as σ is. The noise is not, if one kind of answer varies more: $v_-$ comes with $k$, because in a
# group of many right answers the few wrong ones have large advantages. Move the knob: the run, the training step, G, and whose
# update it is.


# %%
def draw(run="GRPO", step=end, G=8, update="GRPO"):
    prompts, kind, ks = stages[SCRIPTS[run], step], MEAN if update == "GRPO with 1/|y|" else SUM, np.array(KS[G])
    parts = live_run.profile(prompts, G, kind)
    sigma_squared = 4 * ks * (G - ks) / G**2  # the even split is 1
    power = sigma_squared if update == "Dr. GRPO" else 1.0
    value, low, high = (
        power * np.array([getattr(e, name) for e in parts["measured"]]) for name in ("value", "low", "high")
    )
    signal, noise = (power * np.array([e.value for e in parts[name]]) for name in ("signal", "noise"))
    figure, axis = new_figure(8, 3.8)
    axis.fill_between(ks, 0, noise, color=ORANGE, alpha=0.35, linewidth=0)
    axis.fill_between(ks, noise, noise + signal, color=BLUE, alpha=0.3, linewidth=0)
    axis.plot(ks, sigma_squared, "--", color=GREY)
    axis.errorbar(ks, value, [value - low, high - value], fmt="o", color="black", markersize=6)
    names = (("measured", "black"), ("signal", BLUE), ("noise", ORANGE), ("if length ∝ σ", GREY))
    for i, (name, color) in enumerate(names):
        axis.text(0.84, 0.92 - 0.09 * i, name, color=color, transform=axis.transAxes)
    axis.set(
        title=f"Squared length of {update}'s update, mean of {live_run.complete(prompts, G)} prompts: "
        f"{named(SCRIPTS[run], step)}, G = {G}",
        xlabel="k, right answers in the group",
        ylabel="the prompt's even split is 1",
        ylim=(0, None),
        xlim=(0, ks[-1] + G / 4.5),
    )
    axis.set_xticks(ks if G < 32 else [k for k in ks if k not in (1, 2, G - 2, G - 1)])
    return figure


updates = ["GRPO", "GRPO with 1/|y|", "Dr. GRPO"]
knob(draw, run=list(SCRIPTS), step=steps[::-1], G=[8, 4, 16, 32, 64], update=updates)

# %% [markdown]
# *Dots: measured. Areas: the formula's two parts, from the class means and variances without any group. If the length were
# proportional to σ, the dots would lie on the dashed line.*
#
# ## No exponent fits all G
#
# $b$ for each half of the profile, mean over prompts. In brackets, how many prompts have right and
# wrong answers enough for every $k$ of that half; the others drop out.

# %%
sizes, sides = GROUP_SIZES[1:], ("few right", "few wrong")
b = {(s, G, side): live_run.exponent(stages[s], G, SUM, side) for s in different for G in sizes for side in sides}
alone = {(s, G): live_run.noise_exponent(stages[s], G, "few right") for s in different for G in sizes}
remaining = {(s, G): [live_run.complete(stages[s], G, side) for side in sides] for s in different for G in sizes}
shown = [("grpo", 0), ("grpo", end)]


def span(values, form=".2f"):
    values = [getattr(value, "value", value) for value in values]
    return f"{min(values):{form}} to {max(values):{form}}"


header = [f"{named(*s)}: {what}" for s in shown for what in sides]
header += [f"all {len(different)} stages: few right", "few wrong", "few right, noise alone"]
table = ["| G | " + " | ".join(header) + " |", "|---" * (len(header) + 1) + "|"]
for G in sizes:
    cells = [f"{b[s, G, side]} ({n})" for s in shown for side, n in zip(sides, remaining[s, G])]
    cells += [span(b[s, G, side] for s in different) for side in sides] + [span(alone[s, G] for s in different)]
    table.append(f"| {G} | " + " | ".join(cells) + " |")
say("\n".join(table))

gap = []  # length by the formula over measured length, at every stage, G and k
for s in different:
    for G in sizes:
        value, signal, noise = (np.array([e.value for e in part]) for part in live_run.profile(stages[s], G).values())
        gap += list(np.sqrt((signal + noise) / value) - 1)
change = {side: [live_run.exponent_change(stages[s], 4, 64, side) for s in different] for side in sides}
lone = {(s, G): live_run.lone_failure(stages[s], G) for s in different for G in sizes}
off_one = sum(not b[s, 8, "few right"].low <= 1 <= b[s, 8, "few right"].high for s in different)
assert all(e.high < 0 for e in change["few right"]) and all(e.low > 0 for e in change["few wrong"])
assert all(lone[s, 4].low > 1 for s in different) and all(lone[s, 64].high < 1 for s in different)
assert np.abs(gap).max() < 0.06 and min(b[s, 8, "few right"].value for s in different) > 1 and off_one >= 10

# %% [text]
# **The length is σ times a noisy contrast, and not a power of σ.** A power would have one $b$ at every G and on both sides. On
# the same prompts, from G = 4 to 64, $b$ falls by {=-max(e.value for e in change['few right']):.1f} to
# {=-min(e.value for e in change['few right']):.1f} where few are right and rises by
# {=min(e.value for e in change['few wrong']):.1f} to {=max(e.value for e in change['few wrong']):.1f} where few are wrong;
# at all {=len(different)} stages both intervals exclude 0. At G = 4 a lone failure moves the model *further* than an even split:
# {=span((lone[s, 4] for s in different))} times as far, where σ says {=2 * identity.sigma(3, 4):.2f}. At 8 it is
# {=span((lone[s, 8] for s in different))} (σ: {=2 * identity.sigma(7, 8):.2f}), at 64 {=span((lone[s, 64] for s in different))}
# (σ: {=2 * identity.sigma(63, 64):.2f}).
#
# At G = 8 the halves look like two clean laws, σ where few are right and a constant where few are wrong. That is a
# coincidence of this G. Noise alone would give {=span((alone[s, 8] for s in different))} on the first half; what is
# measured is {=span((b[s, 8, 'few right'] for s in different))}, and the interval excludes 1 at {=off_one} of
# {=len(different)} stages. Dr. GRPO's exponents are these plus 1.
#
# The formula's lengths are within {=np.abs(gap).max():.0%} of the measured ones at every stage, G and $k$. Both come from the same
# answers, so this tests the formula and forecasts nothing. Most prompts drop out where most are solved: at G = 64
# and DAPO's step {=end}, {=remaining[('dapo', end), 64][0]} and {=remaining[('dapo', end), 64][1]} of {=n_prompts} are left.

# %% [markdown]
# ## What sets the profile
#
# $v_-/v_+$ says how lopsided the noise is, and $G$ against $(v_+ + v_-)/\lVert\Delta m\rVert^2$ how much of it there is. (Variances and
# squares in thousands. The last column: mixed groups of 8 as they were drawn, by $k$.)

# %%
table = [
    "| | accuracy | $\\lVert\\Delta m\\rVert^2$ | $v_+$ | $v_-$ | $v_-/v_+$ | G with signal = noise | signal in $\\lVert g\\rVert^2$, G = 8 | $k < 4$, $k = 4$, $k > 4$ |",
    "|---|---|---|---|---|---|---|---|---|",
]
spread, crossing, share, natural = {}, {}, {}, {}
for s in different:
    prompts = stages[s]
    v_right, v_wrong = prompts["variances"][:, SUM].T
    spread[s] = live_run.ratio(v_wrong, np.where(np.isfinite(v_wrong), v_right, np.nan))
    crossing[s] = live_run.half_size(prompts)
    share[s] = {G: live_run.signal_share(prompts, G) for G in GROUP_SIZES}
    natural[s] = live_run.mixed_shares(prompts)
    cells = [str(live_run.ratio(v / 1000)) for v in (prompts["contrast_squared"][:, SUM], v_right, v_wrong)]
    cells += [f"{e.value:.0f} [{e.low:.0f}, {e.high:.0f}]" for e in (spread[s], crossing[s])] + [str(share[s][8])]
    cells.append(", ".join(f"{e.value:.1%}" for e in natural[s].values()))
    table.append(f"| {named(*s)} | {prompts['p'].mean():.2f} | {' | '.join(cells)} |")
say("\n".join(table))
base, ends = ("grpo", 0), [(script, end) for script in NAMES]
effective = {s: [np.nanmedian(stages[s]["effective"][:, i]) for i in (0, 1)] for s in different}
v_ratio = stages[base]["variances"][:, SUM, 1] / stages[base]["variances"][:, SUM, 0]
lasting = live_run.ratio(stages[base]["variances"][:, SUM, 1], stages[base]["contrast_squared"][:, SUM])

# %% [text]
# **On this task right answers are alike and wrong ones differ.** The scores of wrong answers vary {=span(spread.values(), '.0f')}
# times as much as those of right ones (prompt by prompt at the base: {=np.quantile(v_ratio, 0.05):.1f} to
# {=np.quantile(v_ratio, 0.95):.0f} for nine in ten). A problem has one right answer and few ways to work it out: counted as if
# equally frequent (exp of the entropy, median prompt), {=effective[base][0]:.1f} different right and {=effective[base][1]:.1f}
# different wrong answers before training, {=span(effective[s][0] for s in ends)} and {=span(effective[s][1] for s in ends)} at
# step {=end}.
#
# **The group size.** An even split has as much signal as noise at $G = 2(v_+ + v_-)/\lVert\Delta m\rVert^2$:
# {=crossing[base].value:.0f} before training, {=span((crossing[s] for s in different if s[1]), '.0f')} later. At a fixed share
# $k/G$ noise falls as $1/G$ against the signal, and a length proportional to σ is the limit. A lone failure has no such limit: as G
# grows, its noise over its signal goes to $v_-/\lVert\Delta m\rVert^2$, {=lasting} at the base. There is no
# sign that training drowns the signal at G = 8: {=share[base][8].value:.2f} before it, {=span(share[s][8] for s in ends)} at step
# {=end}, with wide intervals.
#
# **Which groups there are.** The profile is that of groups formed within every prompt, whatever its $p$. Groups as they are drawn lie
# elsewhere: {=natural[base]['few right'].value:.0%} of the base's mixed groups have $k < 4$, and
# {=natural['grpo', end]['few right'].value:.1%} after {=end} steps of GRPO, when {=natural['grpo', end]['few wrong'].value:.0%}
# have $k > 4$.

# %% [markdown]
# A training log shows one group of each prompt: there $k$ differs with the prompt, and so does all else about the scores.

# %%
across = {s: live_run.exponents_across(stages[s]) for s in different}
figure, (left, right) = new_figure(9.5, 3.5, columns=2)
ks = np.array(KS[8])
for s, color, side in ((base, GREY, -0.2), (("grpo", end), BLUE, 0.2)):
    counts = stages[s]["by_k"][:, 0, 1:8].sum(axis=0)
    left.bar(ks + side, 100 * counts / counts.sum(), 0.4, color=color)
    left.text(1.5, 50 - 25 * side, named(*s), color=color)
left.set(title="Mixed groups of 8 as they are drawn, %", xlabel="k, right answers of 8")
for y, s in enumerate(different[::-1]):
    for e, color, shift in ((across[s]["between"], PURPLE, 0.12), (live_run.exponent(stages[s], 8), BLUE, -0.12)):
        right.plot([e.low, e.high], [y + shift] * 2, color=color, linewidth=1.5)
        right.plot(e.value, y + shift, "o", color=color, markersize=4)
right.set_yticks(range(len(different)), [named(*s) for s in different[::-1]], fontsize=8)
right.set(title="b over all k at G = 8", xlim=(-0.7, 2.6))
right.text(1.45, 10.5, "between prompts", color=PURPLE)
right.text(1.45, 9.3, "within prompts", color=BLUE)
show(figure)
apart = sum(not e["between - within"].low <= 0 <= e["between - within"].high for e in across.values())
widths = [e["between"].high - e["between"].low for e in across.values()]

# %% [text]
# *Between prompts, {=n_prompts} of them with {=config['answers'] // 16} groups each do not settle $b$:* the intervals are
# {=span(widths, '.1f')} wide (GRPO at step 40: {=across['grpo', 40]['between']}), and the difference from $b$ within the same
# prompts excludes 0 at {=apart} of {=len(different)} stages.

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


def overstated(s, G, key):
    """By how many points a plug-in is above the prediction from other answers."""
    return 100 * (silent[s, G][key].value - silent[s, G]["predicted"].value)


figure, (left, right) = new_figure(9.5, 3.6, columns=2)
left.plot([0, 1], [0, 1], color=GREY, linewidth=1)
for script in NAMES:
    x, y = (
        np.array([silent[(script, t), G][n].value for t in after[script] for G in GROUP_SIZES])
        for n in ("predicted", "counted")
    )
    left.plot(x, y, "o", color=COLORS[script], markersize=4, alpha=0.8)
    y = {"grpo": 0.35, "dr_grpo": 0.25, "dapo": 0.15}[script]
    label_line(left, 0.6, y, f"run of {NAMES[script]}", COLORS[script])
left.set(title="Silent share: every step and G", xlabel="predicted from other answers", ylabel="counted")
left.set(xlim=(0, 1), ylim=(0, 1))
x = np.arange(len(GROUP_SIZES))
for key, color, marker in (("plug-in, the group itself", RED, "o"), ("plug-in, other answers", BLUE, "s")):
    y = [np.mean([overstated(s, G, key) for s in different]) for G in GROUP_SIZES]
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
own = [overstated(s, 8, "plug-in, the group itself") for s in different]
other = [overstated(s, 64, "plug-in, other answers") for s in different]

# %% [text]
# *The formula holds; where its $p$ comes from matters.* Where at least ten silent groups are predicted there are
# {=len(tests)} intervals for the difference (all right and all wrong apart, every step and G; those of one stage
# share answers). {=missed} of them miss 0; at 95 % one expects {=0.05 * len(tests):.0f}. A group's own $k/G$
# overstates its silence by {=span(own, '.1f')} points at G = 8, $\hat p$ of {=n} other answers by up to
# {=max(other):.1f} points at G = 64.

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
        error = [[weight.value - weight.low], [weight.high - weight.value]]
        axis.errorbar(mean_p, weight.value, error, fmt="o", color=color, markersize=5)
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
# {=len(ratios)} intervals for measured over exact miss 1; it is {=span(ratios.values())}. Dr. GRPO's weight at G = 8 is
# {=span(dr)}, exact {=1 - 1 / 8:.3f}. A single group is another matter: the cosine of its contrast with $\nabla p$ is
# {=span(cosines[2])} at G = 2, {=span(cosines[8])} at 8, {=span(cosines[64])} at 64 (means over mixed groups; the estimate
# of $\nabla p$ is noisy too, which makes them smaller).

# %% [markdown]
# ## Gradient mass across G
#
# Which share of the summed lengths of all updates comes from prompts with $p$ below .1 or above .9? As length $\lVert g\rVert$ (with
# each script's way to average tokens), as σ (σ² for Dr. GRPO), and from the closed form.

# %%
mass = {(s, m, G): live_run.extreme_mass(stages[s], G, m) for s in different for m in NAMES for G in GROUP_SIZES}
figure, axes = new_figure(10, 3.3, columns=3)
for axis, step in zip(axes, (start, middle, end)):
    x = np.arange(len(GROUP_SIZES))
    for j, (key, color) in enumerate((("|g|", BLUE), ("sigma", ORANGE), ("closed form", GREY))):
        found = [mass[("grpo", step), "grpo", G][key] for G in GROUP_SIZES]
        value, low, high = (np.array([100 * getattr(e, name) for e in found]) for name in ("value", "low", "high"))
        axis.plot(x, value, "o-" if j < 2 else "--", color=color, markersize=4)
        axis.fill_between(x, low, high, color=color, alpha=0.13 * (j < 2), linewidth=0)
        label = {"|g|": "length |g|", "sigma": "σ, measured"}.get(key, "E[σ], closed form")
        axis.text(0.04, 0.92 - 0.08 * j, label, color=color, transform=axis.transAxes)
    prompts_there = np.mean([not 0.1 < p <= 0.9 for p in stages["grpo", step]["p"]])
    axis.set(title=f"{named('grpo', step)}: {prompts_there:.0%} of prompts", xlabel="G")
    axis.set_ylim(0, 1.45 * axis.get_ylim()[1])
    axis.set_xticks(x, GROUP_SIZES)
axes[0].set_ylabel("share of the update, %")
show(figure)
exact = 100 * max(abs(e["sigma"].value - e["closed form"].value) for e in mass.values())
gaps = {m: [mass[s, m, G]["gap"] for s in different for G in GROUP_SIZES] for m in NAMES}
sure = {m: [sum(e.low > 0 for e in gaps[m]), sum(e.high < 0 for e in gaps[m]), len(gaps[m])] for m in NAMES}
rows = ["| run, step, its own update | length minus σ: " + " | ".join(f"G = {G}" for G in GROUP_SIZES) + " |"]
rows.append("|---" * (len(GROUP_SIZES) + 1) + "|")
for s in [base, *ends]:
    cells = [mass[s, s[0], G]["gap"] for G in GROUP_SIZES]
    cells = [f"{100 * e.value:+.0f} [{100 * e.low:.0f}, {100 * e.high:.0f}]" for e in cells]
    rows.append(f"| {named(*s)} | " + " | ".join(cells) + " |")
say("\n".join(rows + ["", "(points of the share; base model: GRPO's update; Dr. GRPO: length minus σ²)"]))

# %% [text]
# *σ is its closed form within {=exact:.1f} points at every stage and G. Length is another matter, and depends on how tokens are
# averaged:* the interval of length minus σ is above 0 in {=sure['grpo'][0]} and below in {=sure['grpo'][1]} of {=sure['grpo'][2]}
# cases (stages and G) under GRPO, in {=sure['dapo'][0]} and {=sure['dapo'][1]} under DAPO; that of length minus σ² in
# {=sure['dr_grpo'][0]} and {=sure['dr_grpo'][1]} under Dr. GRPO. GRPO's $1/|y|$ gives short answers longer updates. (DAPO's
# filter changes no shares: it drops what counts 0.)

# %% [markdown]
# ## Later minibatches
#
# The identity is about the first step after sampling, and about whole groups. Each script makes four updates from a batch, each from
# a quarter of its rows, drawn across the groups. Before each one we compare the gradient of the loss with what it would be if all
# ratios were 1, at the same parameters and on the same answers. (For a whole group that would be the identity; for a minibatch it is
# not.) How much of it is left? First with the ratios alone, then with the clip, then with everything (KL, DAPO's overlong penalty).

# %%
where = {script: (results["script"] == script) for script in NAMES}
figure, axes = new_figure(10, 3.6, columns=3, sharey=True)
for axis, script in zip(axes, NAMES):
    for what, (label, color) in enumerate((("ratios", GREY), ("+ clip", BLUE), ("all of the loss", RED))):
        values = results["minibatch"][where[script], :, what, 0]
        axis.plot(range(len(UPDATES)), np.nanmedian(values, axis=0), "o-", color=color, markersize=5)
        quartiles = np.nanquantile(values, [0.25, 0.75], axis=0)
        axis.fill_between(range(len(UPDATES)), *quartiles, color=color, alpha=0.12, linewidth=0)
        axis.text(0.05, 0.3 - 0.09 * what, label, color=color, transform=axis.transAxes)
    axis.axvline(3.5, color="black", linewidth=0.8, linestyle=":")
    axis.set_xticks(range(len(UPDATES)), [u + 1 for u in UPDATES])
    axis.set(title=NAMES[script], xlabel="update of the batch", ylim=(-0.3, 1.25))
axes[0].set_ylabel("left of the gradient at ratio 1")
show(figure)
first, fresh = (results["minibatch"][:, i, :, 0][results["script"] != ""] for i in (0, 3))
assert np.abs(first[:, :2] - 1).max() < 1e-3  # before the first update all ratios are 1 and nothing is clipped
again = results["minibatch"][:, 4, :, 0][results["script"] != ""]
clip_share = results["clipped"][:, 3][results["script"] != ""]
rest = results["minibatch"][:, 3, :, 1][results["script"] != ""]
turned = results["turned"][:, 3][results["script"] != ""]
part = results["part"][results["script"] != ""]
has_kl = np.isin(results["script"], ("grpo", "dr_grpo"))[results["script"] != ""]
clip_takes, kl_takes = fresh[:, 0] - fresh[:, 1], np.abs(fresh[:, 1] - fresh[:, 2])[has_kl]

# %% [text]
# *Medians over seeds and steps, with quartiles. Left of the dotted line a minibatch is used for the first time; the
# scripts go no further (one pass).* Of the four updates of a batch the first is at ratio 1. At the fourth
# {=np.median(fresh[:, 0]):.2f} is left with ratios alone, {=np.median(fresh[:, 1]):.2f} with the clip,
# {=np.median(fresh[:, 2]):.2f} with everything. The clip takes {=np.median(clip_takes):.2f} in the median, and between
# {=clip_takes.min():.2f} and {=clip_takes.max():.2f} in the {=len(fresh)} measurements, all at a learning rate of {=rate:g}; it
# stops {=np.median(clip_share):.1%} of the tokens. The KL term takes {=np.median(kl_takes):.2f}. What points
# elsewhere is {=np.median(rest[:, 2]):.2f} times as long as the gradient at ratio 1.
#
# In a second pass little would be left: {=np.median(again[:, 1]):.2f} with the clip before the eighth update. The gradient at ratio 1
# of a whole group has hardly turned by the fourth update (cosine {=np.nanmedian(turned):.3f} with that at the sampling policy);
# that of the first minibatch has a cosine of {=np.median(part):.2f} with that of the batch.

# %% [markdown]
# ## One group, token by token
#
# How can the clip take so much while it stops so few tokens? A few tokens carry most of the update. Each token's term of a group's
# first update, projected on the whole: the shares sum to 1.

# %%
stage = int(np.flatnonzero((results["script"] == "grpo") & (results["step"] == steps[1]))[0])
view = json.loads(str(results["tokens"][stage]))
longest = max(len(answer) for answer in view["answers"])
figure, axis = new_figure(11, 0.42 * len(view["answers"]) + 0.9)
top = max(abs(token["share"]) for answer in view["answers"] for token in answer)
box = {"width": 0.84, "height": 0.72, "boxstyle": "round,pad=0.02"}
for i, (A, answer) in enumerate(zip(view["advantages"], view["answers"])):
    name, color = ("right", BLUE) if A > 0 else ("wrong", RED)
    axis.text(-0.6, -i, f"{name}, A = {A:+.2f}", ha="right", va="center", fontsize=9, color=color)
    for t, token in enumerate(answer):
        strength, at = min(1.0, abs(token["share"]) / top) ** 0.5, (t - 0.42, -i - 0.36)
        face = BLUE if token["share"] > 0 else RED
        axis.add_patch(FancyBboxPatch(at, **box, facecolor=face, alpha=0.85 * strength, edgecolor="none"))
        if token["clipped"]:
            axis.add_patch(FancyBboxPatch(at, **box, facecolor="none", edgecolor="black", linewidth=1.8))
        text, color = token["token"].replace("EOS", "⏎"), "white" if strength > 0.55 else "black"
        axis.text(t, -i, text, ha="center", va="center", family="DejaVu Sans Mono", fontsize=10, color=color)
axis.set(
    xlim=(-7, longest + 0.5),
    ylim=(-len(view["answers"]) + 0.4, 0.7),
    title=f"{view['prompt']}  share of the update (shade), stopped by the clip before the 4th update (frame)",
)
axis.axis("off")
show(figure)
tokens = [token for answer in view["answers"] for token in answer]
assert abs(sum(token["share"] for token in tokens) - 1) < 1e-3
carried = results["carried"][results["script"] != ""].reshape(-1, 3)
carried = carried[np.isfinite(carried).all(axis=1)]
place = {script: np.nanmean(results["places"][where[script]].reshape(-1, 4), axis=0) for script in NAMES}
table = ["| share of a group's update, mean | first token | rest of the working | digits of the answer | # and end |"]
table.append("|---|---|---|---|---|")
table += [f"| {NAMES[m]} | " + " | ".join(f"{round(value, 2) + 0:.0%}" for value in place[m]) + " |" for m in NAMES]
places_table = "\n".join(table)

# %% [text]
# *Blue: along the update; red: against it; ⏎: end of the answer.* A token of which the policy is nearly certain has
# hardly a gradient.
#
# {=places_table}
#
# Over {=len(carried)} mixed groups, the 5 % of the tokens with the largest shares carry
# {=np.median(carried[:, 0]):.0%} of the update (median; quartiles {=np.quantile(carried[:, 0], 0.25):.0%} and
# {=np.quantile(carried[:, 0], 0.75):.0%}; some others count against it). Before the fourth update the clip stops
# {=np.mean(carried[:, 2]):.1%} of a group's tokens. These carried {=np.median(carried[:, 1]):.0%} of its first update in the
# median, with quartiles of {=abs(np.quantile(carried[:, 1], 0.25)):.0%} and {=np.quantile(carried[:, 1], 0.75):.0%}: in many
# groups nothing, in many nearly all.

# %% [markdown]
# ## What became of the predictions

# %%
at8 = {s: live_run.exponent(stages[s], 8) for s in different}
mean8 = {s: live_run.exponent(stages[s], 8, MEAN) for s in different}
rises = sum(np.all(np.diff([live_run.exponent(stages[s], G).value for G in GROUP_SIZES[1:]]) > 0) for s in different)
crosses = sum(share[s][2].value < 0.5 < share[s][16].value for s in different)
falls = [at8[script, end].value < at8["grpo", 0].value for script in NAMES]
length_gap = max(abs(at8[s].value - mean8[s].value) for s in different)
left = np.median(fresh[:, 2])
mass_wins = sum(mass[s, "grpo", 8]["gap"].value > 0 for s in different)


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
        f"b = {at8['grpo', 0]}, an average of two halves with {b[base, 8, 'few right'].value:.2f} and {b[base, 8, 'few wrong'].value:.2f}",
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
        f"at G = 8, at {mass_wins} of {len(different)} checkpoints",
    ),
    "staleness": (
        verdict([left >= 0.9, np.median(clip_takes) < 0.01, np.median(kl_takes) > np.median(clip_takes[has_kl])]),
        f"left at the fourth update: {left:.2f}; taken by the clip {np.median(clip_takes):.2f}, by the KL term {np.median(kl_takes):.2f} (medians)",
    ),
}
assert set(verdicts) == set(live_run.PREDICTIONS)
rows = [f"| {name} | {v} | {found} |" for name, (v, found) in verdicts.items()]
say("\n".join(["| about | verdict | measured |", "|---|---|---|", *rows]))
off = max(abs(e.value - 1) for e in ratios.values())

# %% [text]
# ## Answer
#
# How long is an update? **σ times a noisy contrast. $v_-/v_+$ and G set its profile over $k$,
# $\mathbb E\,\|g\|^2 = \sigma^2\|\Delta m\|^2 + ((G-k)v_+ + k\,v_-)/G^2$, and no exponent of σ fits all G:** on our task, over
# {=len(different)} stages, $b$ is {=span((b[s, 4, 'few right'] for s in different))} where few are right and
# {=span((b[s, 4, 'few wrong'] for s in different))} where few are wrong at G = 4, {=span((b[s, 64, 'few right'] for s in different))}
# and {=span((b[s, 64, 'few wrong'] for s in different))} at G = 64. What the identity says of expectations,
# $\mathbb E[g] = w_G(p)\nabla p$, holds within {=off:.0%} at every stage and G, and what it says of silence within chance. Of a
# batch's four updates the first is at ratio 1; of the gradient at ratio 1, {=left:.0%} is left at the fourth
# (median), mostly because the clip stops a few tokens that carry much of it.

# %% [text]
# **What this cannot say.** One small model, trained with G = 8, and one task, in which a problem has one right answer and few ways to work
# it out. Where right answers are as varied as wrong ones, as proofs, programs and chains of thought may be, the profile is another; the
# formula says which. Lengths are Euclidean, and Adam follows other ones. {=config['seeds']} training seeds; the intervals are over prompts.

# %% [markdown]
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
# **2. An exponent without signal.** If a prompt has no signal and $v_-/v_+ = r$: what $b$ do the lengths at $k = 1$ and at
# $k = G/2$ give? (Try $r = 9$, about that of our base model, at G = 4, 8 and 64.)


# %% [exercise]
def b_of_noise(G, r):
    """b in |g| ~ sigma^b from k = 1 to k = G / 2, GRPO, for v_wrong = r * v_right and no signal."""
    return ...


# %% [check]
def _noise(k, G, v_right, v_wrong):
    """(|g|^2, sigma) if the scores have these variances and mean 0: from the advantages of the rewards themselves."""
    R = np.arange(G) < k
    A = (R - R.mean()) / R.std()
    return (A**2 * np.where(R, v_right, v_wrong)).sum() / G**2, R.std()


def _exponent(G, r, swap=False, power=2):
    (one, low), (even, high) = (_noise(k, G, *((r, 1) if swap else (1, r))) for k in (1, G // 2))
    return np.log(even / one) / np.log(high / low) / power


check(
    b_of_noise,
    _exponent,
    inputs=[{"G": G, "r": 9.0} for G in (4, 8, 64)],
    mistakes={
        "that is the exponent of the squared length": lambda G, r: _exponent(G, r, power=1),
        "right and wrong are exchanged: v- comes with k": lambda G, r: _exponent(G, r, swap=True),
    },
)

# %% [hint]
# The noise is proportional to (G − k) + k r, and σ² to k (G − k). Take logarithms of the *lengths*.


# %% [solution]
def b_of_noise(G, r):
    noise = (G - 1 + r) / (G / 2 * (1 + r))
    sigma_squared = (G - 1) / (G / 2) ** 2
    return np.log(noise) / np.log(sigma_squared)


# %% [wrong] the squared length
def b_of_noise(G, r):
    return 2 * np.log((G - 1 + r) / (G / 2 * (1 + r))) / np.log((G - 1) / (G / 2) ** 2)


# %% [wrong] right and wrong are exchanged
def b_of_noise(G, r):
    return np.log(((G - 1) * r + 1) / (G / 2 * (1 + r))) / np.log((G - 1) / (G / 2) ** 2)


# %% [markdown]
# **3. Predict the lone failure.** No signal at all, and only wrong answers vary ($v_+ = 0$). How long is GRPO's update with one wrong
# answer of G, relative to the even split? And Dr. GRPO's?


# %% [exercise]
def lone_failure(G):
    """(GRPO, Dr. GRPO): root mean square length at k = G - 1 over that at k = G / 2."""
    return ...


# %% [check]
def _lone(G):
    (one, low), (even, high) = (_noise(k, G, 0, 1) for k in (G - 1, G // 2))
    return np.sqrt(one / even), np.sqrt(one / even) * low / high


check(
    lone_failure,
    _lone,
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
    return (x @ y) / (x @ x)


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


def _centred(prompt, values):
    which = prompt[:, None] == np.unique(prompt)
    return np.log(values) - which @ (which.T @ np.log(values) / which.sum(axis=0))


def _truth(prompt, sigma, length):  # least squares with a column for every prompt
    columns = np.column_stack([np.log(sigma), prompt[:, None] == np.unique(prompt)])
    return np.linalg.lstsq(columns, np.log(length), rcond=None)[0][0]


check(
    exponent,
    _truth,
    inputs=[_log(0), _log(1)],
    bug=lambda prompt, sigma, length: np.polyfit(np.log(sigma), np.log(length), 1)[0],
    mistakes={
        "only the lengths are centred within prompts: sigma's mean differs between prompts too": lambda prompt, sigma, length: (
            np.polyfit(np.log(sigma), _centred(prompt, length), 1)[0]
        ),
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


# %% [wrong] only the lengths
def exponent(prompt, sigma, length):
    x, y = np.log(sigma), np.log(length)
    x = x - x.mean()
    for i in np.unique(prompt):
        y[prompt == i] -= y[prompt == i].mean()
    return (x @ y) / (x @ x)


# %% [wrong] a slope for each prompt
def exponent(prompt, sigma, length):
    slopes = [np.polyfit(np.log(sigma[prompt == i]), np.log(length[prompt == i]), 1)[0] for i in np.unique(prompt)]
    return np.mean(slopes)


# %% [markdown]
# ## What to take along
#
# - The identity held in every group that was checked, through the scripts' own losses. How long an update is also depends on
#   $v_-/v_+$, $\lVert\Delta m\rVert^2$ and G.
# - Compare groups of one prompt. Between prompts, $k$ stands for too much else.
# - Take independent answers for what you compare: $p$ and silence, gradient and update, the two halves of a squared signal.
#
# Sources: *GRPO, Dr. GRPO, and DAPO Are Three Operations on One Number*, [arXiv:2607.00152](https://arxiv.org/abs/2607.00152), §3, Theorem
# `identity`, Limitations. The measurement is ours; `lessons/experiments/live_run.py` and `lessons/experiments/live_measure.py` make it.
