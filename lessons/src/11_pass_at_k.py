# %% [markdown]
# # 11 · Maj@K and Pass@K
#
# DeepSeekMath compared its model before and after GRPO (section 5.2.2, Fig. 7). **Maj@K** (is the most frequent of K
# answers right?) had risen, **Pass@K** (is any of K answers right?) had not. To the authors the gain seems to come from
# "boosting the correct response from TopK rather than the enhancement of fundamental capabilities". This is often
# called *sharpening*.
#
# What can be proved:
#
# > Sharpening answers never changes which one is the most probable, so it never changes $M$, the share of problems on
# which that answer is
# > right. Maj@K tends to $M$ as $K \to \infty$; at any fixed K, Maj@K and Pass@K tend to $M$ as the sharpening grows.
# Short of these
# > limits both can rise, even where the most probable answer is wrong; but Maj@K never exceeds $(1 + M)/2$.
#
# Did RL sharpen our model's answers? No: it changed $M$.
#
# | symbol | meaning |
# |---|---|
# | $n,\ c$ | answers sampled to one problem; how many of them are right |
# | $\pi(a)$ | the probability that the model's answer to a problem is $a$ |
# | $p,\ q$ | the probability of the right answer; $q = 1 - p$ |
# | Pass@K | the mean over problems of $1 - q^K$ |
# | Maj@K | the mean over problems of the probability that the right answer wins a vote of K answers |
# | $M$ | the share of problems whose most probable answer (the **mode**) is right |

# %%
import json
import random
from collections import Counter
from itertools import combinations, product
from math import comb
from pathlib import Path

import numpy as np

from lessons import identity
from lessons.experiments import paired, short_answers
from lessons.kit import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    RIGHT,
    WRONG,
    check,
    knob,
    label_line,
    new_figure,
    show,
    show_source,
)
from toy_env.arithmetic import LEVELS, extract_answer, held_out_problems
from toy_env.evaluate import evaluate, majority_at_k, pass_at_k
from toy_env.model import load_policy

base, tokenizer = load_policy("base")
problems = held_out_problems(16, LEVELS)  # 64, sixteen of each level
rights = np.array([problem.answer for problem in problems])
n = 64
sampled = {
    T: evaluate(base, tokenizer, problems, samples=n, max_new_tokens=56, temperature=T, batch_rows=4096)
    for T in (0.3, 1.0)
}
show_source(pass_at_k)
show_source(majority_at_k)

# %% [markdown]
# ## Two estimators
#
# From $n \ge K$ answers, *all* subsets of K give an unbiased estimate. For Pass@K that is
# $1 - \binom{n-c}{K}/\binom nK$ (Chen et al., [arXiv:2107.03374](https://arxiv.org/abs/2107.03374), Eq. 1). Maj@K needs
# the counts of all answers, not only $c$. A tie is a fair draw, an answer without a number has no vote. First, both
# against brute force:

# %%
rng = random.Random(0)
for _ in range(40):
    answers = [rng.choice([7, 7, 8, 8, 9, None]) for _ in range(7)]
    for K in range(1, 8):
        votes = []
        for subset in combinations(answers, K):
            counts = Counter(a for a in subset if a is not None)
            winners = [a for a in counts if counts[a] == max(counts.values())]
            votes.append((7 in winners) / max(1, len(winners)))
        assert abs(majority_at_k(answers, 7, K) - np.mean(votes)) < 1e-12
        assert abs(pass_at_k(7, answers.count(7), K) - np.mean([7 in s for s in combinations(answers, K)])) < 1e-12
print("both agree with all subsets of 40 random lists: True\n")

print("expected estimate of Pass@16 where p = 0.05    (all n + 1 outcomes, weighted)")
K, p = 16, 0.05
truth = 1 - (1 - p) ** K
for n_answers in (16, 64, 256):
    c = np.arange(n_answers + 1)
    chance = identity.binomial(p, n_answers)
    unbiased = chance @ [pass_at_k(n_answers, int(x), K) for x in c]
    plug_in = chance @ (1 - (1 - c / n_answers) ** K)
    assert abs(unbiased - truth) < 1e-12 and plug_in < truth
    print(f"n = {n_answers:3}   truth {truth:.4f}   unbiased {unbiased:.4f}   plug-in 1 - (1 - c/n)^K: {plug_in:.4f}")

# %% [markdown]
# The plug-in is too **low**: $1-(1-p)^K$ is concave in $p$, and the mean of a concave function is below the function of
# the mean (Jensen).
#
# ## What an interval covers
#
# We have 64 answers to each of 64 problems. These are not 4,096 independent draws: answers to one problem share its
# difficulty. To ask how the model would do on other problems, resample the *problems*.

# %%
is_right = sampled[1.0].correct
rates = is_right.mean(axis=1)
wrong_half = 1.96 * np.sqrt(rates.mean() * (1 - rates.mean()) / is_right.size)
low, high = paired.interval_over_both(rates[None])  # one seed, 64 problems: the bootstrap of the results' tables
print(f"Pass@1 of the base, may work it out: {rates.mean():.3f}")
print(
    f"  as if 4,096 independent draws:     {rates.mean() - wrong_half:.3f} to {rates.mean() + wrong_half:.3f}, "
    "too narrow"
)
print(
    f"  problems drawn anew:               {low:.3f} to {high:.3f}, {(high - low) / (2 * wrong_half):.1f} times as wide"
)
assert (high - low) / (2 * wrong_half) > 3

# %% [markdown]
# Neither interval covers another *training run*: for that, resample seeds too.
#
# ## A task that we know exactly
#
# Allow four tokens: `#14` and the end. Nothing can be worked out, only blurted. Then all answers 0 to 99 can be
# enumerated (`lessons/experiments/short_answers.py`), and $\pi(a)$ is exact, up to odd spellings such as `#014`. The
# first four characters of the sampled answers test the estimators on the model.


# %%
def p_right(table):
    return table[np.arange(len(table)), rights]


def pass_curve(table, Ks):
    """(Ks, problems), exact."""
    return 1 - (1 - p_right(table)) ** np.array(Ks)[:, None]


def majority_curve(table, Ks, rounds=100):
    """(Ks, problems): share of votes won by the right answer; K answers are drawn from the table `rounds` times."""
    shape = (len(table), rounds, max(Ks))
    rng = np.random.default_rng(0)
    strata = rng.permuted(np.broadcast_to(np.arange(rounds)[:, None], shape), axis=1)
    u = (strata + rng.random(shape)) / rounds  # each draw's rounds spread evenly over 0..1: less noise
    drawn = np.stack([row.cumsum().searchsorted(draws) for row, draws in zip(table, u)])  # 100: no answer in time
    cell = np.arange(len(table) * rounds).reshape(len(table), rounds, 1) * 101
    wins = []
    for K in Ks:
        counts = np.bincount((cell + drawn[..., :K]).ravel(), minlength=len(table) * rounds * 101)
        counts = counts.reshape(len(table), rounds, 101)[..., :100]
        top = counts.max(axis=-1)
        won = counts[np.arange(len(table)), :, rights] == top
        wins.append((won * (top > 0) / (counts == top[..., None]).sum(axis=-1)).mean(axis=1))
    return np.array(wins)


base_logits = short_answers.answer_logits(base, tokenizer, problems)
exact = short_answers.answer_table(base_logits, tokenizer)
short = [[extract_answer(text[:4]) for text in row] for row in sampled[1.0].texts]
print("four tokens, T = 1      exact   from 64 samples a problem")
Ks = (1, 4, 16, 64)
for K, truth, vote in zip(Ks, pass_curve(exact, Ks), majority_curve(exact, Ks)):
    passed = np.mean([pass_at_k(n, row.count(right), K) for row, right in zip(short, rights)])
    voted = np.mean([majority_at_k(row, right, K) for row, right in zip(short, rights)])
    for name, t, estimate in (("Pass", truth, passed), ("Maj ", vote, voted)):
        noise = np.sqrt((t * (1 - t)).sum()) / len(t) / (np.sqrt(n) if K == 1 else 1)  # at most, for K > 1
        assert abs(estimate - t.mean()) < 4 * noise + 0.01 * (name == "Maj ")
        print(f"{name}@{K:<3}               {t.mean():.3f}   {estimate:.3f}")
print(f"answers in time: {exact.sum(axis=1).mean():.0%}")

# %% [markdown]
# ## Sharpening, in four steps
#
# **Sharpening** the answers to a problem means $\pi_\beta(a) = \pi(a)^\beta / \sum_b \pi(b)^\beta$ with $\beta > 1$,
# and $p_\beta$ is the probability of the right one.
#
# **Step 1. One problem never crosses.** $1 - q^K$ rises with $p$. Of two policies, the one with the larger $p$ is ahead
# at every K. A crossing is a property of an *average over problems*.
#
# **Step 2. What happens to $p$.** Differentiate:
#
# $$\frac{d}{d\beta}\log p_\beta = \log\pi(\text{right}) - \sum_a \pi_\beta(a) \log \pi(a)$$
#
# The sum grows with β (its derivative is the variance of $\log\pi$), up to the $\log\pi$ of the mode. So if the mode is
# right, $p_\beta$ rises all the way to 1. If it is wrong, $p_\beta$ may rise at first, then falls to 0.
#
# **Step 3. The limits.** $\pi_\beta$ has the mode of $\pi$. So, without ties: for $K \to \infty$ at any fixed β, Maj@K
# $\to M$ and Pass@K $\to 1$; for $\beta \to \infty$ at any fixed K, *both* $\to M$.
#
# **Step 4. The bound.** Suppose the mode is wrong. Take any list of K answers whose vote the right answer wins, and
# swap it with the mode: now the mode wins, and the list is at least as probable. So the right answer wins at most half
# the votes, at every K and β. Averaged over problems, Maj@K $\le M + (1-M)/2$. ∎
#
# No more holds at finite β: where the mode is wrong, Maj@1 = Pass@1 may rise, and with it Pass@K at every K (exercise
# 4).

# %%
given = exact / exact.sum(axis=1, keepdims=True)  # among the answers that came in time


def sharpened(table, beta):
    logs = beta * np.log(table)
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


mode_right = given.argmax(axis=1) == rights
M = mode_right.mean()
betas = 2.0 ** np.arange(-2, 12.1, 0.25)
p_beta = np.array([p_right(sharpened(given, beta)) for beta in betas])  # (betas, problems)
slopes = np.sign(np.diff(p_beta, axis=0).round(12))
assert (slopes[:, mode_right] >= 0).all()  # step 2, mode right: never falls
assert (np.diff(np.where(slopes == 0, -1, slopes)[:, ~mode_right], axis=0) <= 0).all()  # else: rises, then falls
h, two = 1e-5, sharpened(given, 2.0)
finite_difference = (np.log(p_right(sharpened(given, 2 + h))) - np.log(p_right(sharpened(given, 2 - h)))) / (2 * h)
assert np.allclose(finite_difference, np.log(p_right(given)) - (two * np.log(given)).sum(axis=1), atol=1e-6)
assert np.allclose(p_beta[-1], mode_right, atol=1e-6)
for pi in np.random.default_rng(0).dirichlet(np.ones(4), size=5):  # step 4: the runner-up is right, all votes of K
    for K in (1, 2, 3, 5):
        won = (majority_at_k(vote, pi.argsort()[-2], K) * pi[list(vote)].prod() for vote in product(range(4), repeat=K))
        assert sum(won) <= 0.5

print("beta     Pass@1   Pass@4   Pass@64   Maj@64   mode right (M)")
Ks = (1, 4, 64)
for beta in (1, 2, 4, 16, 4096):
    table = sharpened(given, beta)
    one, four, many = pass_curve(table, Ks).mean(axis=1)
    vote = majority_curve(table, (64,)).mean()
    kept = (table.argmax(axis=1) == rights).mean()
    assert kept == M and vote <= (1 + M) / 2
    print(f"{beta:5}    {one:.3f}    {four:.3f}    {many:.3f}     {vote:.3f}    {kept:.3f}")

# %% [markdown]
# *On this model, whose mode is right on a third of the problems, Pass@64 falls to that third, Pass@1 gains a little,
# Maj@64 nothing.*
#
# ## Temperature
#
# Lowering the temperature sharpens *tokens*, not answers: it renormalises after every token, and $M$ may move. Left,
# each problem's $p$. Right, the two curves. The dotted line is $M$.

# %%
KS = tuple(2**i for i in range(9))


def draw(T, K, what):
    before, table = given, sharpened(given, 1 / T)
    if what.startswith("tokens"):
        before, table = exact, short_answers.answer_table(base_logits, tokenizer, T)
    figure, (left, right) = new_figure(10, 3.9, columns=2)
    order = np.argsort(-p_right(before))
    is_mode = (before.argmax(axis=1) == rights)[order]
    x = np.arange(len(order))
    left.plot(x, p_right(before)[order], "-", color=GREY, linewidth=1.2)
    for rows, color, marker, name in (
        (is_mode, RIGHT, "o", "mode right at T = 1"),
        (~is_mode, WRONG, "s", "mode wrong"),
    ):
        left.plot(x[rows], p_right(table)[order][rows], marker, color=color, markersize=4.5, label=name)
    left.set(
        title=f"p of each problem, T = {T:.1f} (line: T = 1)", xlabel="problems, by p at T = 1", ylim=(-0.03, 1.03)
    )
    left.legend(loc="upper right")
    at = KS.index(K)
    for shown, color, width in ((before, GREY, 1.2), (table, BLUE, 2)):
        passed, voted = pass_curve(shown, KS).mean(axis=1), majority_curve(shown, KS).mean(axis=1)
        right.plot(KS, passed, "-", color=color, linewidth=width)
        right.plot(KS, voted, "--", color=ORANGE if color == BLUE else GREY, linewidth=width)
    right.plot(K, passed[at], "o", color=BLUE)
    right.plot(K, voted[at], "o", color=ORANGE)
    level = (table.argmax(axis=1) == rights).mean()
    right.axhline(level, color=GREEN, linestyle=":", linewidth=1.5)
    label_line(right, 1, level, "M", GREEN, xytext=(-2, 8))
    label_line(right, KS[-1], passed[-1], "Pass@K", BLUE)
    label_line(right, KS[-1], voted[-1], "Maj@K", ORANGE, xytext=(5, 8 if voted[-1] >= level else -8))
    right.set_xscale("log", base=2)
    right.set_xticks(KS, [str(k) for k in KS])
    right.set(title=f"Pass@{K} = {passed[at]:.2f}, Maj@{K} = {voted[at]:.2f} (grey: T = 1)", xlabel="K", ylim=(0, 1.03))
    right.set_xlim(0.9, 700)
    return figure


knob(
    draw,
    T=(0.1, 2.0, 0.1, 0.3),
    K=[16, *(k for k in KS if k != 16)],
    what=["tokens, by temperature", "answers, by power 1/T"],
)

# %% [markdown]
# *Cooling moves most problems' p towards 0 or 1. Both curves flatten, and Pass@K crosses the curve of T = 1.*
#
# ## Which distribution is sharpened?
#
# Now the full task: 56 tokens, in which the model sometimes works the problem out. The same base, cooled:

# %%
Ks = (1, 4, 16, 64)
per_problem = {}
for T, evaluation in sampled.items():
    answers = [[extract_answer(text) for text in row] for row in evaluation.texts]
    passed = np.array([[pass_at_k(n, int(row.sum()), K) for row in evaluation.correct] for K in Ks])
    voted = np.array([[majority_at_k(row, int(right), K) for row, right in zip(answers, rights)] for K in Ks])
    per_problem[T] = {"Pass": passed, "Maj": voted}
    worked, correct = evaluation.worked, evaluation.correct
    print(
        f"T = {T}: {worked.mean():4.0%} of all answers worked out, of these {correct[worked].mean():4.0%} right; "
        f"of the others {correct[~worked].mean():.0%}"
    )
figure, axes = new_figure(9.5, 3.7, columns=2, sharey=True)
for axis, kind in zip(axes, ("Maj", "Pass")):
    for T, color in ((0.3, BLUE), (1.0, GREY)):
        values = per_problem[T][kind]
        band = np.array([paired.interval_over_both(row[None]) for row in values])
        axis.fill_between(Ks, *band.T, color=color, alpha=0.13, linewidth=0)
        axis.plot(Ks, values.mean(axis=1), "o-", color=color, markersize=4)
        label_line(axis, Ks[-1], values[-1].mean(), f"T = {T}", color)
    axis.set_xscale("log", base=2)
    axis.set_xticks(Ks, [str(k) for k in Ks])
    axis.set(
        title=f"{kind}@K, base model, full task", xlabel="K, answers to each problem", ylim=(0.2, 1.04), xlim=(0.9, 140)
    )
show(figure)
print("\nfrom T = 1 to T = 0.3, paired over problems")
for kind in ("Maj", "Pass"):
    gap = per_problem[0.3][kind][-1] - per_problem[1.0][kind][-1]
    low, high = paired.interval_over_both(gap[None])
    assert high < 0
    print(f"{kind}@64: {gap.mean():+.3f} [{low:+.3f}, {high:+.3f}]")
vote_before, vote_after = (per_problem[T]["Maj"][-1] for T in (1.0, 0.3))  # of all 64 answers
print(
    f"of {len(problems)} votes, {((vote_before == 1) & (vote_after == 0)).sum()} turned from right to wrong, "
    f"{((vote_before == 0) & (vote_after == 1)).sum()} from wrong to right"
)

# %% [markdown]
# *Here cooling lowers Pass@64, and Maj@64 too.*
#
# Sharpening the answers keeps every mode; cooling lost right ones. The first lines suggest why: cooling sharpens the
# choice of *how* to answer. Blurting is the likelier way, so cooling picks it, and the reliable way vanishes.
# Sharpening whole texts is a third thing: if one text says the right answer (.3) and two say a wrong one (.2 each),
# squaring turns .3 to .4 into .09 to .08.
#
# ## Is RL sharpening?
#
# Solved exactly, no. What maximises expected reward minus λ times the KL to the base is
# $\pi^*(y) \propto \pi(y)\,e^{R(y)/\lambda}$. It multiplies the odds of being right, $p/q$, by $e^{1/\lambda}$: on
# *every* problem $p$ rises, so Pass@K rises at every K, and no right mode is lost. A model whose Pass@K fell is not
# there: groups are finite, parameters shared, steps long.
#
# So we train: GRPO on the four-token task, 8 or 27 batches of 32 groups of 8, one update each, no KL, at learning rates
# 3e-4 (small steps) and 1e-3 (large), five seeds each (`python lessons/experiments/short_answers.py`):

# %%
lam = 0.5
R = np.arange(100) == rights[:, None]
tilted = given * np.exp(R / lam)
tilted /= tilted.sum(axis=1, keepdims=True)
odds = p_right(given) / (1 - p_right(given))
assert np.allclose(p_right(tilted), odds * np.exp(1 / lam) / (1 + odds * np.exp(1 / lam)), rtol=1e-12)
assert (p_right(tilted) > p_right(given)).all()

show_source(short_answers.train)
trained = short_answers.load()
base_row = {"right": p_right(exact)[None], "in time": exact.sum(axis=1)[None], "mode": exact.argmax(axis=1)[None]}
cooled = short_answers.answer_table(base_logits, tokenizer, 0.3)
cooled = {"right": p_right(cooled)[None], "in time": cooled.sum(axis=1)[None], "mode": cooled.argmax(axis=1)[None]}
policies = {"base": base_row, "base, T = 0.3": cooled} | trained
print("four tokens, means           Pass@1   Pass@64   Pass@1024      M   other mode   in time   Pass@1 if in time")
for name, found in policies.items():
    right, in_time = found["right"], found["in time"]
    one, many, huge = ((1 - (1 - right) ** K).mean() for K in (1, 64, 1024))
    found["M"] = (found["mode"] == rights).mean(axis=1)  # of each seed
    other = (found["mode"] != base_row["mode"]).mean()
    print(
        f"{name:30} {one:.3f}    {many:.3f}     {huge:.4f}   {found['M'].mean():.3f}      {other:4.0%}       "
        f"{in_time.mean():4.0%}       {(right / in_time).mean():.3f}"
    )
print("\nagainst the base: paired over problems, seeds and problems resampled")
gaps = {}
for name, found in trained.items():
    for K in (1, 64):
        gap = (1 - base_row["right"]) ** K - (1 - found["right"]) ** K  # (seeds, problems)
        gaps[name, K] = gap.mean(), paired.interval_over_both(gap), (gap.mean(axis=1) > 0).sum()
        mean, (low, high), up = gaps[name, K]
        print(f"{name:29}  Pass@{K:<2} {mean:+.3f} [{low:+.3f}, {high:+.3f}], higher in {up} of {len(gap)} seeds")
assert [gaps[name, 64][2] for name in trained] == [5, 5, 0] and gaps["GRPO, large steps", 64][1][1] < 0
few, more, _ = (((1 - found["right"]) ** 64).mean(axis=1) for found in trained.values())
assert (more < few).all()  # in every seed

# %%
many = 2 ** np.arange(13)
curves = {name: 1 - (1 - found["right"][..., None]) ** many for name, found in policies.items()}  # (seeds, problems, K)
curves = {name: values.mean(axis=1) for name, values in curves.items()}
figure, axis = new_figure(8.5, 4.0)
LOOK = dict(zip(policies, ((GREY, "-"), (GREEN, "-."), (BLUE, "-"), (BLUE, "--"), (RED, "-"))))
for name, (color, style) in LOOK.items():
    for curve in curves[name][1:]:
        axis.plot(many, curve, style, color=color, linewidth=0.6, alpha=0.5)
    curves[name] = curves[name].mean(axis=0)
    axis.plot(many, curves[name], style, color=color)
guess = 1 - 0.99**many
axis.plot(many, guess, ":", color="black", linewidth=1.5)
for x, y, name, color in (
    (4096, 1.0, "small steps\n(dashed: 27 batches)", BLUE),
    (1.5, 0.17, "base", GREY),
    (4096, 0.9, "large steps", RED),
    (4096, 0.82, "base, T = 0.3", GREEN),
    (48, 0.22, "guessing 0 to 99", "black"),
):
    label_line(axis, x, y, name, color)
axis.set_xscale("log", base=2)
axis.set_xticks(many[::2], [str(k) for k in many[::2]])
axis.set(
    title="Pass@K, answers of four tokens, exact; mean and (thin) each seed",
    xlabel="K, answers to each problem",
    ylim=(0, 1.05),
    xlim=(0.9, 60000),
)
show(figure)

print(f"K = 64: guessing {guess[6]:.3f}, base {curves['base'][6]:.3f}")
for name in ("base, T = 0.3", "GRPO, large steps"):
    overtaken, crossed = many[curves[name] < guess][0], many[curves[name] < curves["base"]][0]
    print(f"{name}: below the base from K = {crossed} on, below the guesser from K = {overtaken} on (powers of two)")

# %% [text]
# *Small steps raise Pass@64 in five of five seeds; large steps lower it in five of five.*
#
# **Small steps** change {=(trained["GRPO, small steps"]["mode"] != base_row["mode"]).mean():.0%} of the modes, often to
# a right answer: $M$ rises from {=M:.2f} to {=trained["GRPO, small steps"]["M"].mean():.2f}. That is not sharpening.
# (The base imitates a student who forgets nine carries in ten. The verifier rewards the tenth.) **Large steps** give a
# curve like the cooled base's: far behind at K = 64, ahead at K = 1 by {=gaps["GRPO, large steps", 1][0]:.2f}
# [{=gaps["GRPO, large steps", 1][1][0]:.2f}, {=gaps["GRPO, large steps", 1][1][1]:.2f}], which may be nothing. That is
# not sharpening either: even more modes changed, about as many are right ($M$ from
# {=trained["GRPO, large steps"]["M"].min():.2f} to {=trained["GRPO, large steps"]["M"].max():.2f} by seed). More
# training at the small rate, up to the same rate times batches, raises Pass@64 further.
#
# We expected sharpening here, since nothing can be worked out, and were wrong. The limits: a tiny model, one task,
# rates picked to differ. On the full task, with the scripts' own settings (the table is in
# `lessons/experiments/README.md`):

# %%
results = json.loads((Path(paired.__file__).parent / "results.json").read_text())["sampling"]["arms"]
print("full task, 256 problems   Pass@1 = Maj@1         Maj@64                 Pass@4                 Pass@64")
for name, kinds in results.items():
    of = {kind: {entry["k"]: entry for entry in kinds[kind]} for kind in ("majority", "pass")}
    row = [of["pass"][1], of["majority"][64], of["pass"][4], of["pass"][64]]
    print(f"{name:23}" + "".join(f"   {x['mean']:.3f} [{x['interval'][0]:.3f}, {x['interval'][1]:.3f}]" for x in row))
    if name == "base":
        first = row
    else:
        assert all(mine["interval"][0] > theirs["interval"][1] for mine, theirs in zip(row[:3], first[:3]))
        assert row[1]["interval"][0] > (1 + first[1]["interval"][1]) / 2  # step 4, M of the base from its Maj@64

# %% [text]
# **Both rise**, Maj@64 and Pass@4, under all five scripts. With the base's $M$ at about {=first[1]["mean"]:.2f} (its
# Maj@64), sharpening its answers reaches a Maj@K of {=(1 + first[1]["mean"]) / 2:.2f} at most (step 4): this is not
# sharpening. The base knows the reliable way and rarely takes it, so its Pass@64 has nothing left to gain or to show.
# DeepSeekMath's model had been instruction-tuned on the questions that RL then used, and the authors name that as a
# possible reason for their finding.
#
# ## Does RL teach new answers?
#
# Yue et al. ([arXiv:2504.13837](https://arxiv.org/abs/2504.13837)) find the crossing in many models: RL ahead at K = 1,
# the base catching up at tens or hundreds of answers and then ahead. On *some problems*, then, the trained model gives
# the right answer less probability. By itself the crossing shows no more:
#
# - **Not a limit of ability.** A full softmax gives every answer some probability: Pass@K goes to 1 for base, trained
#   model and noise alike. Large K compares tails.
# - **Not knowledge, where answers are few.** The dotted line knows nothing, and at K = 1024 it is far above the cooled
#   base and the large steps. Wen et al. ([2506.14245](https://arxiv.org/abs/2506.14245)) count an answer only if its
#   reasoning is right too.
# - **Not the objective.** Solved exactly it lowers no problem's $p$; on our four-token task the learning rate decided.
# - **Nor that it must be.** DAPO's Fig. 1 has pass@32 climbing through training.
#
# ## What climbs Pass@K?
#
# On one problem, anything that raises $p$. On average, an update $w(p)\,\nabla p$ climbs the mean of $h(p)$ with
# $h' = w$ ([lesson 9](09_objective.ipynb)). For Pass@K that is $w = Kq^{K-1}$, nearly all of it, at large K, for
# problems that are almost never solved. GRPO gives problems at $p$ and at $1-p$ the same weight.

# %%
grid = np.linspace(0.001, 0.999, 400)
figure, axis = new_figure(7.5, 3.4)
for K, color, style in ((4, ORANGE, "--"), (16, RED, "-")):
    w = identity.weight("pass@G", grid, K)
    assert np.allclose(w, ((1 - (1 - grid - 1e-6) ** K) - (1 - (1 - grid + 1e-6) ** K)) / 2e-6, atol=1e-5)
    axis.plot(grid, w, style, color=color)
assert np.allclose(identity.weight("GRPO", grid, 16), identity.weight("GRPO", 1 - grid, 16))
assert identity.weight("pass@G", 1 / 3, 16) < 0.04 < 1.9 < identity.weight("GRPO", 1 / 3, 16)
axis.plot(grid, identity.weight("GRPO", grid, 16), color=BLUE)
axis.plot(grid, identity.weight("Dr. GRPO", grid, 16), "-.", color=GREEN)
for x, y, name, color in (
    (0.06, 8.5, "Pass@16", RED),
    (0.12, 3.5, "Pass@4", ORANGE),
    (0.72, 3.3, "GRPO, G = 16", BLUE),
    (0.72, 1.4, "Dr. GRPO, G = 16", GREEN),
):
    label_line(axis, x, y, name, color)
axis.set(title="Weight of a problem in the expected update", xlabel="p", ylabel="w(p)", ylim=(0, 16.5), xlim=(0, 1))
show(figure)

# %% [markdown]
# *To climb Pass@16 is to all but ignore a problem that is solved one time in three.*
#
# ## Exercises
#
# **1. Pass@k without bias.** From $n$ answers, $c$ of them right.


# %% [exercise]
def unbiased_pass_at_k(n, c, k):
    """The share of all k-subsets of n answers, c of them right, that hold a right one."""
    return ...


# %% [check]
check(
    unbiased_pass_at_k,
    lambda n, c, k: np.mean([any(subset) for subset in combinations([True] * c + [False] * (n - c), k)]),
    inputs=[{"n": 5, "c": 2, "k": 2}, {"n": 10, "c": 1, "k": 4}, {"n": 9, "c": 7, "k": 3}, {"n": 6, "c": 0, "k": 3}],
    mistakes={
        "that is the plug-in, which draws with replacement: the same answer may not be drawn twice": lambda n, c, k: (
            1 - (1 - c / n) ** k
        ),
        "that is the share of subsets without a right answer": lambda n, c, k: comb(n - c, k) / comb(n, k),
        "that is the share in which all k are right": lambda n, c, k: comb(c, k) / comb(n, k),
    },
)

# %% [hint]
# How many of the subsets hold only wrong answers? `math.comb(a, b)` is 0 if b > a.


# %% [solution]
def unbiased_pass_at_k(n, c, k):
    return 1 - comb(n - c, k) / comb(n, k)


# %% [wrong] draws with replacement
def unbiased_pass_at_k(n, c, k):
    return 1 - (1 - c / n) ** k


# %% [wrong] without a right answer
def unbiased_pass_at_k(n, c, k):
    return comb(n - c, k) / comb(n, k)


# %% [wrong] all k are right
def unbiased_pass_at_k(n, c, k):
    return comb(c, k) / comb(n, k)


# %% [markdown]
# **2. Maj@k by enumeration.** `answers` is a list of integers and None (no vote). A tie is a fair draw; if nobody
# votes, the majority is wrong. (`itertools.combinations`, `collections.Counter`)


# %% [exercise]
def majority_by_enumeration(answers, right, k):
    """The probability that the most frequent of k answers is right, over all k-subsets."""
    return ...


# %% [check]
def enumerated(answers, right, k, tie, abstain=True, skip=False):
    scores = []
    for subset in combinations(answers, k):
        counts = Counter(a for a in subset if a is not None or not abstain)
        if skip and not counts:
            continue
        winners = [a for a in counts if counts[a] == max(counts.values())]
        scores.append(tie(winners) if right in winners else 0.0)
    return np.mean(scores)


check(
    majority_by_enumeration,
    majority_at_k,
    inputs=[
        {"answers": [5, 5, 6, 7, None], "right": 5, "k": 2},
        {"answers": [5, 6, 6, None, None, 7], "right": 6, "k": 3},
        {"answers": [1, 1, 2, 2, 2, 3], "right": 1, "k": 4},
        {"answers": [5, None, None, None, 6], "right": 5, "k": 2},  # three pairs without a vote
    ],
    mistakes={
        "a tie counts as right: with k = 2 that would be Pass@2": lambda answers, right, k: enumerated(
            answers, right, k, lambda winners: 1.0
        ),
        "a tie counts as wrong": lambda answers, right, k: enumerated(
            answers, right, k, lambda winners: float(len(winners) == 1)
        ),
        "None is not an answer: it has no vote": lambda answers, right, k: enumerated(
            answers, right, k, lambda winners: 1 / len(winners), abstain=False
        ),
        "a subset in which nobody votes counts, as wrong": lambda answers, right, k: enumerated(
            answers, right, k, lambda winners: 1 / len(winners), skip=True
        ),
        "in some subsets nobody votes: there `max` has nothing to compare": lambda answers, right, k: max([]),
    },
)

# %% [hint]
# In each subset count the votes and list all answers that reach the largest count. If the right one is among m winners,
# the subset is worth 1/m.


# %% [solution]
def majority_by_enumeration(answers, right, k):
    total, subsets = 0.0, list(combinations(answers, k))
    for subset in subsets:
        counts = Counter(answer for answer in subset if answer is not None)
        winners = [answer for answer in counts if counts[answer] == max(counts.values())]
        if right in winners:
            total += 1 / len(winners)
    return total / len(subsets)


# %% [wrong] a tie counts as right
def majority_by_enumeration(answers, right, k):
    subsets, total = list(combinations(answers, k)), 0
    for subset in subsets:
        counts = Counter(answer for answer in subset if answer is not None)
        total += counts[right] > 0 and counts[right] == max(counts.values())
    return total / len(subsets)


# %% [wrong] a tie counts as wrong
def majority_by_enumeration(answers, right, k):
    subsets, total = list(combinations(answers, k)), 0
    for subset in subsets:
        counts = Counter(answer for answer in subset if answer is not None)
        total += all(counts[right] > counts[other] for other in set(answers) - {right, None})
    return total / len(subsets)


# %% [wrong] it has no vote
def majority_by_enumeration(answers, right, k):
    total, subsets = 0.0, list(combinations(answers, k))
    for subset in subsets:
        counts = Counter(subset)
        winners = [answer for answer in counts if counts[answer] == max(counts.values())]
        total += (right in winners) / len(winners)
    return total / len(subsets)


# %% [wrong] a subset in which nobody votes counts, as wrong
def majority_by_enumeration(answers, right, k):
    scores = []
    for subset in combinations(answers, k):
        counts = Counter(answer for answer in subset if answer is not None)
        winners = [answer for answer in counts if counts[answer] == max(counts.values())]
        if winners:
            scores.append((right in winners) / len(winners))
    return np.mean(scores)


# %% [wrong] nobody votes: there `max` has nothing to compare
def majority_by_enumeration(answers, right, k):
    scores = []
    for subset in combinations(answers, k):
        counts = Counter(answer for answer in subset if answer is not None)
        top = max(counts.values())
        winners = [answer for answer in counts if counts[answer] == top]
        scores.append((right in winners) / len(winners))
    return np.mean(scores)


# %% [markdown]
# **3. Build a crossing.** Two policies, four problems: give each policy four success probabilities, so that A is ahead
# in Pass@1 and B is ahead in Pass@64.

# %% [exercise]
crossing = ...  # [[?, ?, ?, ?], [?, ?, ?, ?]]: A's p on four problems, then B's


# %% [check]
def who_leads(pair):
    if pair is ... or pair is None:
        return pair
    A, B = np.array(pair, dtype=float).reshape(2, 4)
    if min(A.min(), B.min()) < 0 or max(A.max(), B.max()) > 1:
        raise ValueError("a probability lies between 0 and 1")
    lead = [(1 - (1 - A) ** K).mean() - (1 - (1 - B) ** K).mean() for K in (1, 64)]
    return [lead[0] > 1e-9, lead[1] < -1e-9]


check(
    lambda: who_leads(crossing),
    lambda: [True, True],
    inputs=[{}],
    mistakes={
        "B leads at K = 64, but A does not lead at K = 1": lambda: [False, True],
        "A leads at K = 1, but B does not lead at K = 64: leave A a problem that it never solves": lambda: [
            True,
            False,
        ],
        "neither leads where it should": lambda: [False, False],
    },
)

# %% [hint]
# Step 1: on one problem it cannot be done. Let A be certain on some problems and hopeless on another; let B be mediocre
# on all.

# %% [solution]
crossing = [[1, 1, 1, 0], [0.2, 0.2, 0.2, 0.2]]

# %% [wrong] but A does not lead at K = 1
crossing = [[1, 0, 0, 0], [0.5, 0.5, 0.5, 0.5]]

# %% [wrong] but B does not lead at K = 64
crossing = [[0.6, 0.6, 0.6, 0.6], [0.1, 0.1, 0.1, 0.1]]

# %% [markdown]
# **4. Sharpening where the mode is wrong.** One problem: the right answer has probability .30, one wrong answer .31,
# and 39 others .01 each, so $M = 0$. Sharpen with β = 2. Do Maj@1 and Pass@K fall? Guess, then compute $p_\beta$.


# %% [exercise]
def p_sharpened(right, wrong, beta):
    """The probability of the right answer after sharpening; `wrong` lists the probability of each wrong answer."""
    return ...


# %% [check]
def asked_until_unanimous(right, wrong, beta):
    """Another way to sharpen: draw `beta` answers and keep them only if all are the same. Over all lists of answers."""
    pi = [right, *wrong]
    same = np.zeros(len(pi))
    for draws in product(range(len(pi)), repeat=beta):
        if len(set(draws)) == 1:
            same[draws[0]] += np.prod([pi[a] for a in draws])
    return same[0] / same.sum()


check(
    p_sharpened,
    asked_until_unanimous,
    inputs=[
        {"right": 0.30, "wrong": [0.31] + [0.01] * 39, "beta": 2},
        {"right": 0.5, "wrong": [0.2, 0.2, 0.1], "beta": 3},
        {"right": 0.2, "wrong": [0.7, 0.1], "beta": 4},
    ],
    mistakes={
        "the powers do not sum to 1: divide by their sum": lambda right, wrong, beta: right**beta,
        "the wrong answers are different ones: raise each to the power β, not their sum": lambda right, wrong, beta: (
            right**beta / (right**beta + sum(wrong) ** beta)
        ),
        "β is a power: as a factor it cancels": lambda right, wrong, beta: right,
    },
)

# %% [hint]
# Raise every probability to the power β, then divide by the sum of all.


# %% [solution]
def p_sharpened(right, wrong, beta):
    return right**beta / (right**beta + sum(w**beta for w in wrong))


# At β = 2 it is .09 / .19 = .47, up from .30: the 39 lose more than the mode gains. So Maj@1 = Pass@1 rises, and Pass@K
# with it at every K. Maj@64 falls, from .46 to .40; that p falls to M = 0 holds in the limit.


# %% [wrong] divide by their sum
def p_sharpened(right, wrong, beta):
    return right**beta


# %% [wrong] raise each to the power β, not their sum
def p_sharpened(right, wrong, beta):
    return right**beta / (right**beta + sum(wrong) ** beta)


# %% [wrong] as a factor it cancels
def p_sharpened(right, wrong, beta):
    return beta * right / (beta * right + sum(beta * w for w in wrong))


# %% [markdown]
# **5. Find the bug.** An evaluation script knows the right answers of each problem, computes the model's success rate,
# and from it pass@k. It runs. Repair it. (`pass_at_k(n, c, k)` is the estimator from above.)


# %% [exercise]
def benchmark_pass_at_k(right, n, k):
    """Pass@k of a benchmark: right[i] of n answers to problem i are right."""
    rate = sum(right) / (n * len(right))
    return 1 - (1 - rate) ** k


# %% [check]
check(
    benchmark_pass_at_k,
    lambda right, n, k: np.mean([pass_at_k(n, c, k) for c in right]),
    inputs=[{"right": [8, 0, 1, 0], "n": 8, "k": 4}, {"right": [2, 5, 16], "n": 16, "k": 8}],
    mistakes={
        "still one rate for all: the mean of the curve is below the curve of the mean (Jensen)": lambda right, n, k: (
            pass_at_k(n, round(sum(right) / len(right)), k)
        ),
        "all problems in one pot: k answers to *different* problems do not help each other": lambda right, n, k: (
            pass_at_k(n * len(right), sum(right), k)
        ),
        "one rate for each problem now, but the plug-in is biased: use pass_at_k": lambda right, n, k: np.mean(
            [1 - (1 - c / n) ** k for c in right]
        ),
    },
    bug=lambda right, n, k: 1 - (1 - sum(right) / (n * len(right))) ** k,
)

# %% [hint]
# Pass@k is a mean over problems. Estimate it for each problem, then average.


# %% [solution]
def benchmark_pass_at_k(right, n, k):
    return sum(pass_at_k(n, c, k) for c in right) / len(right)


# %% [wrong] still one rate for all
def benchmark_pass_at_k(right, n, k):
    return pass_at_k(n, round(sum(right) / len(right)), k)


# %% [wrong] all problems in one pot
def benchmark_pass_at_k(right, n, k):
    return pass_at_k(n * len(right), sum(right), k)


# %% [wrong] the plug-in is biased
def benchmark_pass_at_k(right, n, k):
    return sum(1 - (1 - c / n) ** k for c in right) / len(right)


# %% [markdown]
# ## What to take along
#
# - Estimate Pass@K and Maj@K from all K-subsets, problem by problem; take intervals over problems, and over training
#   runs if the claim is about training.
# - Sharpening the answers keeps $M$. Maj@K and Pass@K come to $M$ only in the limits; before, both can rise. Cooling
#   tokens can change $M$.
# - If $M$ changes, the answers were not just sharpened. Under all our scripts it did, and both curves rose. On the
#   four-token task the learning rate decided whether Pass@64 rose or fell.
# - At large K, compare with a guesser.
#
# Next: the five methods as one gradient with five coefficients, [lesson 12](12_coefficients.ipynb).
#
# Sources: DeepSeekMath, [arXiv:2402.03300](https://arxiv.org/abs/2402.03300), section 5.2.2, Fig. 7; the estimator,
# Chen et al. 2021; weights of Pass@K as in Davis and Recht, [2510.13651](https://arxiv.org/abs/2510.13651); DAPO,
# [2503.14476](https://arxiv.org/abs/2503.14476), Fig. 1. The steps as given here and the four-token experiment are
# ours.
