# %% [markdown]
# # 5 · Length normalisation
#
# One answer has 5 tokens, another 50. The loss averages all their token terms, and what it divides by decides how hard
# each token is pushed. The claim: **the winner reverses with the sign of the advantage**. GRPO's $1/|y|$, by itself,
# shortens right answers and lengthens wrong ones. Where the lengths $a < b$ are equally likely, whether right or wrong,
# one step moves the share of long answers in proportion to
#
# $$\mathbb E[\sigma]\,(1-2p)\,\Big(\frac1a - \frac1b\Big), \qquad \mathbb E[\sigma] \to \sqrt{pq}
# \ \text{ for large } G$$
#
# up while most answers are wrong, down once most are right. A constant divisor has no such drift.
#
# | symbol | meaning |
# |---|---|
# | $y_i,\ \lvert y_i\rvert$ | answer $i$ of a **group** of G answers to one prompt; its number of tokens, end-of-sequence included |
# | $R_i,\ A_i$ | its reward, 1 (right) or 0 (wrong); its advantage, the same for all its tokens |
# | $p,\ q$ | the probability that an answer is right; $q = 1 - p$ |
# | $\sigma$ | the standard deviation of the rewards in the group |
# | $f_{i,t}$ | the loss term of token $t$ of answer $i$; on the first step after sampling its gradient is $-A_i \nabla_\theta \log \pi_\theta(y_{i,t})$ |
# | $B$ | answers in the optimizer batch |
# | $C$ | a constant, here the limit `max_new_tokens` = 56 |
# | $s_i$ | the score $\nabla_\theta \log \pi_\theta(y_i)$: the sum of the gradients of all its tokens |
#
# ## Four ways to average
#
# | name | formula | used by |
# |---|---|---|
# | `seq_mean` | $\frac1B\sum_i\frac{1}{\lvert y_i\rvert}\sum_t f_{i,t}$ | GRPO (Eq. 3), our `grpo.py` |
# | `token_mean_group` | mean over prompts of $\frac{1}{\sum_{i}\lvert y_i\rvert}\sum_{i}\sum_t f_{i,t}$, sums over one group | DAPO (Eq. 8) |
# | `token_mean_batch` | the same quotient, sums over the whole optimizer batch | DAPO's authors' code, TRL's `dapo`, our `dapo.py` |
# | `seq_sum_const` | $\frac{1}{BC}\sum_i\sum_t f_{i,t}$ | Dr. GRPO: its equation has $C = 1$, its code the limit, as our `dr_grpo.py` |
#
# From GRPO's loss to Dr. GRPO's, one line changes:

# %%
import json
import math
import random
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch.autograd.functional import jacobian

from algorithms import dapo, dr_grpo, grpo
from lessons import identity
from lessons.kit import BLUE, GREEN, ORANGE, RIGHT, WRONG, check, knob, label_line, new_figure, show, show_diff
from toy_env.arithmetic import LEVELS, is_worked, reward, sample_problems
from toy_env.model import load_policy
from toy_env.rollout import sample

C = dr_grpo.Config().max_new_tokens


def doubles(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


show_diff(grpo.policy_loss, dr_grpo.policy_loss)

# %% [markdown]
# ## What each token gets
#
# A group of four: right and short, right and long, wrong and short, wrong and long. Autograd says how strongly each
# script's `policy_loss` pushes each token's log-probability. Rewards of −1 and 1 make the advantages −1 and 1 under
# all three scripts, and the reference is the policy itself, so that the KL term has no gradient: only the divisor
# differs.


# %%
def token_push(script, rewards, lengths):
    """(G, T): minus the derivative of the script's loss with respect to each token's log-probability."""
    mask = torch.arange(int(lengths.max())) < lengths.view(-1, 1)
    logps = torch.full(mask.shape, -0.5).double().requires_grad_()  # any value: on the first step every ratio is 1
    batch = {"logps": logps, "old_logps": logps.detach(), "mask": mask}
    if script is not dapo:
        batch["ref_logps"] = logps.detach()  # the gradient of the KL term is 0 here
    A = script.compute_advantages(rewards=rewards.view(1, -1)).view(-1, 1)
    loss = script.policy_loss(**batch, advantages=A, config=script.Config())
    return -torch.autograd.grad(loss, logps)[0]


a, b = 5, 50
signs, lengths = doubles(1, 1, -1, -1), torch.tensor([a, b, a, b])
by_hand = {  # G = 4, so 1 / (4 * 5) and so on
    grpo: [1 / 20, 1 / 200, -1 / 20, -1 / 200],
    dapo: [1 / 110, 1 / 110, -1 / 110, -1 / 110],
    dr_grpo: [1 / 224, 1 / 224, -1 / 224, -1 / 224],
}
print("push on one token     right, 5  right, 50  wrong, 5  wrong, 50   push on a whole answer")
for script, expected in by_hand.items():
    push = token_push(script, signs, lengths)
    inside = torch.arange(b) < lengths.view(4, 1)
    assert torch.allclose(push, doubles(*expected).view(4, 1) * inside, rtol=1e-12, atol=0)  # 0 on padding
    one, whole = push[:, 0].tolist(), push.sum(dim=1)[:2].tolist()
    print(f"{script.__name__:20} " + " ".join(f"{x:9.4f}" for x in one) + f"    5: {whole[0]:.3f}, 50: {whole[1]:.3f}")

# %% [markdown]
# Compare within a row only. In GRPO's, **$A > 0$:** a token of the short right answer is raised ten times as hard as
# one of the long. Brevity wins. **$A < 0$:** a token of the short wrong answer is *lowered* ten times as hard. Length
# wins. Under $1/|y|$ whole answers weigh alike; under the others, tokens do. It acts as if the reward were $A/|y|$: a
# right answer is worth more if short, a wrong one costs less if long.
#
# **A widespread reading** sets two *right* answers side by side, 10 and 100 tokens, finds .05 against .005 a token,
# and concludes that GRPO is "biased toward shorter responses" and has a "structural anti-reasoning bias". It is half
# right: the arithmetic holds, but it leaves out $A < 0$. The paper that named the bias (Dr. GRPO, section 3.1) has both
# halves, and measures (Fig. 6) *excess* length, of wrong answers most of all.
#
# ## The drift, in four steps
#
# The smallest policy with lengths: four kinds of answer, one logit each, probabilities $p/2, p/2, q/2, q/2$
# (right-short, right-long, wrong-short, wrong-long). Length says nothing about being right, so any drift of length is
# the divisor's work.
#
# **Step 1.** Each rule pushes $s_i$ with $A_i/G$ times a function of the length, in expectation $f(|y_i|)$:
#
# $$f(L) = \frac1L \ \text{(GRPO)}, \qquad f(L) = \frac1C \ \text{(Dr. GRPO)}, \qquad
# f(L) = \mathbb E\Big[\frac{B}{L + \text{lengths of the other } B-1}\Big] \ \text{(token mean)}$$
#
# **Step 2.** $\frac1G\sum A_i$ over the right answers of a group is σ, over the wrong ones −σ
# ([lesson 6](06_identity.ipynb), step 3; σ² for Dr. GRPO). Half of each are short. So the four kinds are pushed with
# $\tfrac12\mathbb E[\sigma]$ times $f(a),\ f(b),\ -f(a),\ -f(b)$.
#
# **Step 3.** The score of kind $j$ is 1 at logit $j$, minus the probabilities; these cancel, because the four pushes
# sum to 0. So a step with learning rate η moves the long logit minus the short one by
# $-\tfrac\eta2\mathbb E[\sigma]\,(f(a)-f(b))$ among the right, and by the opposite among the wrong. A probability of
# one half moves by a quarter of that:
#
# $$\Delta P(\text{long}\mid\text{right}) = -\frac\eta8\,\mathbb E[\sigma]\,\big(f(a)-f(b)\big), \qquad
# \Delta P(\text{long}\mid\text{wrong}) = +\frac\eta8\,\mathbb E[\sigma]\,\big(f(a)-f(b)\big)$$
#
# **Step 4.** Weigh the first with $p$ and the second with $q$:
#
# $$\Delta P(\text{long}) = \frac\eta8\,\mathbb E[\sigma]\,(1-2p)\,\big(f(a)-f(b)\big)$$
#
# With $f(L) = 1/L$ this is the claim ($\mathbb E[\sigma] \to \sqrt{pq}$ for large G: lesson 7). With a constant,
# $f(a) = f(b)$, and all three are 0. ∎
#
# The token mean is not free of the bias: a long answer lengthens its own denominator, so still $f(a) > f(b)$. The
# signs are GRPO's, the size about $1/B$ of it.
#
# ## The experiment: all groups
#
# With G = 8 there are $4^8$ groups, of 165 compositions. Each goes through the script's own advantages and loss, and
# autograd. Dividing by the change of $p$ cancels the learning rate.

# %%
G = 8
compositions = torch.tensor([n for n in product(range(G + 1), repeat=4) if sum(n) == G])  # (165, 4): of each kind
ways = doubles(*(math.factorial(G) / math.prod(math.factorial(m) for m in n) for n in compositions.tolist()))


def kind_pushes(script, a, b):
    """(165, 4): the coefficient of each kind's score in each composition, through the script's loss."""
    rewards, lengths = doubles(1, 1, 0, 0), torch.tensor([a, b, a, b])
    rows = []
    for n in compositions:
        kinds = torch.arange(4).repeat_interleave(n)  # (8,)
        push = token_push(script, rewards[kinds], lengths[kinds])[:, 0]  # the same for all tokens of an answer
        rows.append(doubles(0, 0, 0, 0).index_add(0, kinds, push))
    return torch.stack(rows)


def expected_push(pushes, pi):
    """(4,): the mean over all groups, where the four kinds have probabilities pi."""
    return (ways * (pi**compositions).prod(dim=1)) @ pushes


def outcomes(logits):
    """P(long | right), P(long | wrong), P(long), p."""
    P = logits.softmax(dim=0)
    return torch.stack([P[1] / (P[0] + P[1]), P[3] / (P[2] + P[3]), P[1] + P[3], P[0] + P[1]])


def drift(pushes, p):
    """(4,): change of the four outcomes for a small expected step, per unit of learning rate."""
    pi = doubles(p, p, 1 - p, 1 - p) / 2
    push = expected_push(pushes, pi)
    g = push - pi * push.sum()  # the expected update of the four logits: score of kind j = onehot(j) - pi
    return jacobian(outcomes, pi.log()) @ g


def token_mean_f(L, a, b, B):
    """E[B / (L + lengths of B - 1 others)]: how many of the others are long is binomial."""
    long = np.arange(B)
    return float(identity.binomial(0.5, B - 1) @ (B / (L + long * b + (B - 1 - long) * a)))


f = {grpo: (1 / a, 1 / b), dapo: (token_mean_f(a, a, b, G), token_mean_f(b, a, b, G)), dr_grpo: (1 / C, 1 / C)}
print("script              p     long|right  long|wrong  long     (change for each unit of p)")
for script, (f_a, f_b) in f.items():
    pushes = kind_pushes(script, a, b)
    for p in (0.3, 0.7):
        found = drift(pushes, p).numpy()
        size = identity.expected_sigma(p, G) if script is not dr_grpo else 0.0
        law = size / 8 * (f_a - f_b) * np.array([-1, 1, 1 - 2 * p])
        assert np.abs(found[:3] - law).max() < 1e-12 * found[3]
        per_point = (found[:3] / found[3]).round(9) + 0
        if script is grpo:  # by hand: (b - a) / (b + a) / (4 p q) is 45 / 55 / 0.84, and 1 - 2 p is 0.4 or -0.4
            assert np.allclose(per_point, 45 / 55 / 0.84 * np.array([-1, 1, 0.4 if p == 0.3 else -0.4]))
        print(f"{script.__name__:18} {p}   " + "   ".join(f"{x:9.3f}" for x in per_point))
print("the formula holds to 12 digits in all rows: True")

# %% [markdown]
# With these lengths GRPO's drift is as large as its progress: while $p$ gains a point, the share of long answers loses
# about a point among the right and gains one among the wrong. DAPO's is 6 times smaller in a batch of 8 and, by the
# formula, 60 times in its script's minibatch of 64 (Eq. 8's mean per *group* stays at $1/G$).
#
# ## Try it
#
# Left, the group of four, in a unit of its own for each script: the push on a token of the short right answer. Right,
# the drift against $p$: solid for right answers, dashed for wrong ones, dotted for all. `A > 0 only` shows what the
# widespread reading sees.

# %%
RULES = ((grpo, "GRPO", BLUE), (dapo, "DAPO", GREEN), (dr_grpo, "Dr. GRPO", ORANGE))


def draw(short, long, p, A):
    figure, (*own, right) = new_figure(12.6, 3.7, columns=4, width_ratios=[1, 1, 1, 2.1])
    shown = [sign in A for sign in (">", ">", "<", "<")] if "only" in A else [True] * 4
    grid = np.linspace(0.02, 0.98, 41)
    for axis, (script, name, color), divisor in zip(own, RULES, ("1/|y|", "token mean", "constant")):
        push = token_push(script, signs, torch.tensor([short, long, short, long]))[:, 0].numpy()
        push = push / push[0] * shown  # in the script's own unit
        axis.bar(np.arange(4), push, 0.7, color=color)
        for x, y in enumerate(push):
            if y:
                axis.annotate(
                    f"{y:+.2f}".replace("-", "−"),
                    (x, y),
                    xytext=(0, 3 if y > 0 else -3),
                    fontsize=8.5,
                    textcoords="offset points",
                    ha="center",
                    va="bottom" if y > 0 else "top",
                )
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set(title=f"{name}: {divisor}", ylim=(-1.3, 1.3), yticks=[-1, 0, 1])
        axis.set_xticks(np.arange(4), [short, long, short, long])
        axis.set_xlabel("right          wrong\ntokens of the answer")
        pushes = kind_pushes(script, short, long)
        unit = drift(pushes, 0.5)[3]  # a step that raises p = 1/2 by one point
        curves = np.array([(drift(pushes, float(x)) / unit).numpy() for x in grid])
        here = (drift(pushes, p) / unit).numpy()
        for column, style, visible in ((0, "-", shown[0]), (1, "--", shown[2]), (2, ":", all(shown))):
            if visible:
                right.plot(grid, curves[:, column], style, color=color)
                right.plot(p, here[column], "o", color=color, markersize=6)
        if script is grpo:
            at, later = len(grid) // 2, 2 * len(grid) // 3
            if shown[0]:
                label_line(right, 0.5, curves[at, 0], "GRPO, right answers", color, xytext=(0, -11), ha="center")
            if shown[2]:
                label_line(right, 0.5, curves[at, 1], "GRPO, wrong answers", color, xytext=(0, 10), ha="center")
            if all(shown) and curves[at, 1] > 0.3:
                label_line(right, grid[later], curves[later, 2], "GRPO, all", color, xytext=(-8, -9), ha="right")
        if script is dapo:
            label_line(right, 0.99, 0, "DAPO,\nB = 8", color, xytext=(4, 15))
        if script is dr_grpo:
            label_line(right, 0.99, 0, "Dr. GRPO", color, xytext=(4, -9))
    own[0].set_ylabel("push on one token's log-probability,\nin each script's own unit")
    right.set(
        title="Drift of the share of long answers",
        xlabel="p, probability of a right answer",
        ylabel="points, for a step that lifts p = ½ by one",
        ylim=(-1.15, 1.15),
        xlim=(0, 1.2),
    )
    right.set_xticks([0, 0.25, 0.5, 0.75, 1])
    return figure


knob(
    draw,
    short=(2, 20, 1, 5),
    long=(31, 56, 1, 50),
    p=(0.05, 0.95, 0.05, 0.3),
    A=["both signs", "A > 0 only", "A < 0 only"],
)

# %% [markdown]
# *Under $1/|y|$ a token of the short answer gets the larger push, up or down; all answers together grow if most are
# wrong.*
#
# ## What the table leaves out
#
# **Shared parameters.** Mid-answer a network may not know whether it will be right. Let one logit decide whether an
# answer is right and another, shared by both classes, whether it is long: now one right answer in ten, one wrong one in
# two. On the shared logit the two pushes meet, each times the variance of the choice in its class,
# $v = P(\text{long})\,P(\text{short})$. And $p$ moves too.

# %%
long_share = doubles(0.1, 0.5)  # of the right answers, of the wrong ones
v_right, v_wrong = (long_share * (1 - long_share)).tolist()


def two_logits(theta):
    """Log-probabilities of the four kinds, from the logit of "right" and what is added to both logits of "long"."""
    p, (in_right, in_wrong) = theta[0].sigmoid(), (long_share.logit() + theta[1]).sigmoid()
    return torch.stack([p * (1 - in_right), p * in_right, (1 - p) * (1 - in_wrong), (1 - p) * in_wrong]).log()


print("GRPO, one step    long|right  long|wrong  both, at fixed p  through p    long     (per unit of learning rate)")
for p, expected in ((0.3, -0.003), (0.5, -0.0045), (0.7, -0.003)):
    theta, eta = torch.stack([doubles(p).logit()[0], doubles(0)[0]]), 1e-6
    g = expected_push(kind_pushes(grpo, a, b), two_logits(theta).exp()) @ jacobian(two_logits, theta)
    assert abs(g[1] - identity.expected_sigma(p, G) * (1 / a - 1 / b) * (v_wrong - v_right)) < 1e-12
    moved = ((outcomes(two_logits(theta + eta * g)) - outcomes(two_logits(theta))) / eta).tolist()
    within, through_p = p * moved[0] + (1 - p) * moved[1], (0.1 - 0.5) * moved[3]
    assert min(moved[:2]) > 0 > moved[2] and abs(within + through_p - moved[2]) < 1e-6
    assert abs(moved[2] - expected) < 2e-4
    print(f"p = {p}           {moved[0]:9.4f}   {moved[1]:9.4f}   {within:12.4f}   {through_p:12.4f}   {moved[2]:8.4f}")

# %% [markdown]
# If wrong answers vary more in length than right ones, answers grow in *both* classes, at any $p$. All together need
# not: here $p$ rises, right answers are shorter, and that outweighs it (under any divisor: it comes with learning).
#
# **Length that matters.** Where long answers are right more often, the policy gradient itself moves length, as it
# should; $1/|y|$ then weakens what long answers of either sign teach.
#
# ## Our runs
#
# Is this visible in training? Mean lengths over the last ten of 60 steps, for ten seeds:

# %%
found = json.loads((Path(identity.__file__).parent / "experiments/results.json").read_text())
results = {experiment: found[experiment]["arms"] for experiment in ("shared", "pieces", "ablation")}
panels = (
    (
        "Three scripts",
        results["shared"],
        {"GRPO": "GRPO\n1/|y|", "Dr. GRPO": "Dr. GRPO\nconstant", "DAPO": "DAPO\ntoken mean"},
    ),
    (
        "DAPO's ablation: only the divisor differs",
        results["ablation"],
        {"+ soft overlong punishment": "1/|y|", "+ token-level loss": "token mean"},
    ),
)
figure, axes = new_figure(9.5, 3.6, columns=2, width_ratios=[3, 2])
for axis, (title, arms, names) in zip(axes, panels):
    for x, arm in enumerate(names):
        for of, color, marker, shift in (("right", RIGHT, "o", -0.12), ("wrong", WRONG, "s", 0.12)):
            n = arms[arm][f"length_{of}"]
            axis.plot([x + shift] * 2, n["interval"], color=color, linewidth=11, alpha=0.25, solid_capstyle="butt")
            axis.plot(np.full(len(n["seeds"]), x + shift), n["seeds"], marker, color=color, markersize=3.5)
            label_line(
                axis,
                x + shift,
                n["mean"],
                f"{n['mean']:.1f}",
                color,
                xytext=(-8 if shift < 0 else 8, 0),
                ha="right" if shift < 0 else "left",
            )
    axis.set_xticks(range(len(names)), names.values())
    axis.set(title=title, xlim=(-0.6, len(names) - 0.4), ylim=(0, 32))
axes[0].set_ylabel("tokens, last ten steps")
axes[0].text(-0.5, 8, "● right answers", color=RIGHT)
axes[0].text(-0.5, 4, "■ wrong answers", color=WRONG)
show(figure)

problems = sample_problems(64, LEVELS, random.Random(0))
prompts, generator = [problem.prompt for problem in problems], torch.Generator().manual_seed(0)
base, tokenizer = load_policy("base")
rollout = sample(base, tokenizer, prompts, group_size=8, max_new_tokens=C, temperature=1.0, generator=generator)
tokens = rollout.mask.sum(dim=1).numpy()
is_right = np.array([reward(problems[row // 8], text) for row, text in enumerate(rollout.texts)]) == 1
worked = np.array([is_worked(text) for text in rollout.texts])
print("the base model:")
for name, rows in (("blurted", ~worked), ("worked", worked)):
    share, length = rows.mean(), tokens[rows].mean()
    print(f"{name:8} {share:.0%} of all answers, {length:4.1f} tokens, {is_right[rows].mean():.0%} right")


def longer(experiment, of, one, other):
    """By how many tokens right or wrong answers are longer in one of two arms, by seed."""
    return np.subtract(*(results[experiment][name][f"length_{of}"]["seeds"] for name in (one, other)))


def interval(gaps):
    """Mean over ten seeds and its 95 % interval, by Student's t."""
    half = 2.262 * gaps.std(ddof=1) / math.sqrt(10)
    return gaps.mean(), gaps.mean() - half, gaps.mean() + half


gap = {of: longer("shared", of, "GRPO", "Dr. GRPO") for of in ("right", "wrong")}
assert (gap["right"] > 0).all() and (gap["wrong"] > 0).all()
assert 0 < interval(longer("shared", "right", "DAPO", "Dr. GRPO"))[1] < 1  # not equally long under all
pair = interval(longer("ablation", "wrong", "+ token-level loss", "+ soft overlong punishment"))
assert pair[1] > 0

# %% [text]
# *Wrong answers are not equally long under the three scripts, nor, by less than a token, are right ones; neither order
# is that of the divisors.*
#
# Wrong answers are {=gap["wrong"].mean():.1f} tokens longer under GRPO than under Dr. GRPO: the direction of step 3 and
# of the paper's Fig. 6. Right answers are longer too, by {=gap["right"].mean():.1f}, in {=(gap["right"] > 0).sum()} of 10 seeds: against step 3.
# Neither need be the divisor's doing.
#
# - **Selection.** Only about one answer in ten, or fewer, is *still* wrong. An answer is either blurted, in 4 tokens,
#   or worked out, in some 20: the mean mostly says how many of the failures are blurts, and at which problems.
# - **The scripts differ in more.** Dr. GRPO drops σ too, DAPO changes everything.
# - **The pair on the right** goes against step 3, if anything: with the token mean wrong answers are {=pair[0]:.1f}
#   [{=pair[1]:.1f}, {=pair[2]:.1f}] tokens *longer*. But there a punishment of long answers acts as well.
#
# So we take one divisor at a time out of GRPO (`python lessons/experiments/compare.py --experiments pieces`, ten
# seeds):


# %%
def four(of):
    """[1/|y| or constant, / sigma or not, seed]: mean lengths of right or of wrong answers."""
    names = ("GRPO", "GRPO, not / σ"), ("GRPO, constant length", "Dr. GRPO")
    return np.array([[results["pieces"][name][f"length_{of}"]["seeds"] for name in row] for row in names])


effect = {}
for of in ("wrong", "right"):
    n = four(of)
    print(f"length of {of + ' answers':18}/ sigma        not / sigma")
    print("1/|y|                       {:.1f} (GRPO)    {:.1f}".format(*n[0].mean(axis=1)))
    print("constant                    {:.1f}           {:.1f} (Dr. GRPO)".format(*n[1].mean(axis=1)))
    for name, gaps in (("1/|y|", n[0] - n[1]), ("/ sigma", n[:, 0] - n[:, 1])):
        effect[f"{name}, {of}"] = interval(gaps.mean(axis=0))
        print(
            "{:24} makes answers longer by {:.2f} tokens [{:.2f}, {:.2f}]".format(
                f"{name}, {of}", *effect[f"{name}, {of}"]
            )
            + f", in {(gaps > 0).sum()} of 20 pairs of runs"
        )
assert effect["1/|y|, wrong"][1] > 0 and effect["/ sigma, wrong"][1] > 4
assert abs(effect["1/|y|, right"][0]) < 0.05 and effect["1/|y|, right"][1] < 0 < effect["1/|y|, right"][2]

# %% [text]
# On right answers the divisor has no effect that we can see ({=effect["1/|y|, right"][0]:+.2f} tokens, where step 3
# wants fewer). On wrong ones it has the predicted sign and is small: {=effect["1/|y|, wrong"][0]:.1f} tokens
# [{=effect["1/|y|, wrong"][1]:.1f}, {=effect["1/|y|, wrong"][2]:.1f}]. **Most of the difference between the two scripts
# comes from σ** ({=effect["/ sigma, wrong"][0]:.1f} tokens): here a comparison of GRPO with Dr. GRPO does not measure the
# length bias.
#
# ## Exercises
#
# **1. `seq_mean`.** Write GRPO's average. `f` and `mask` are (B, T); the padding holds arbitrary numbers.


# %% [exercise]
def seq_mean(f, mask):
    """Mean over the tokens of each response, then over responses: a number."""
    return ...


# %% [check]
terms = doubles([1, 2, 9, 9], [3, 9, 9, 9], [1, 1, 1, 5])
real = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]]).bool()
cases = [{"f": terms, "mask": real}, {"f": -terms.square(), "mask": real.flip(0)}]


def by_script(script, f, mask, **settings):
    """The script's own loss, told that its token terms are f: the ratio is 1 and the advantages are -f."""
    zero = torch.zeros_like(f)
    batch = {"logps": zero, "old_logps": zero, "mask": mask} | ({} if script is dapo else {"ref_logps": zero})
    return script.policy_loss(**batch, advantages=-f, config=script.Config(**settings))


check(
    seq_mean,
    lambda f, mask: by_script(grpo, f, mask),
    inputs=cases,
    mistakes={
        "the padding is counted: divide by each response's own tokens, not by T": lambda f, mask: (f * mask).mean(),
        "that is the token mean: first average within each response": lambda f, mask: f[mask].mean(),
        "the padding is summed: multiply by the mask": lambda f, mask: (f.sum(dim=1) / mask.sum(dim=1)).mean(),
    },
)

# %% [hint]
# `(f * mask).sum(dim=1)` has one sum for each response. What is its own length?


# %% [solution]
def seq_mean(f, mask):
    return ((f * mask).sum(dim=1) / mask.sum(dim=1)).mean()


# %% [wrong] the padding is counted
def seq_mean(f, mask):
    return (f * mask).mean()


# %% [wrong] that is the token mean
def seq_mean(f, mask):
    return (f * mask).sum() / mask.sum()


# %% [wrong] the padding is summed
def seq_mean(f, mask):
    return (f.sum(dim=1) / mask.sum(dim=1)).mean()


# %% [markdown]
# **2. `token_mean_batch` and `seq_sum_const`.** Return both, in this order.


# %% [exercise]
def two_aggregators(f, mask, C):
    """(token_mean_batch, seq_sum_const) of f: two numbers."""
    return ...


# %% [check]
check(
    two_aggregators,
    lambda f, mask, C: [by_script(dapo, f, mask).item(), by_script(dr_grpo, f, mask, max_new_tokens=C).item()],
    inputs=[case | {"C": C} for case, C in zip(cases, (4, 10))],
    mistakes={
        "seq_sum_const divides by the number of responses too": lambda f, mask, C: (f[mask].mean(), f[mask].sum() / C),
        "the constant is not the width of the batch: use C": lambda f, mask, C: (
            f[mask].mean(),
            (f * mask).sum() / (len(f) * f.shape[1]),
        ),
        "the first is a mean of means: divide once, by all tokens": lambda f, mask, C: (
            by_script(grpo, f, mask),
            f[mask].sum() / (len(f) * C),
        ),
    },
)

# %% [hint]
# Both have the same numerator, the sum over all real tokens. One divides by how many there are, the other by B · C.


# %% [solution]
def two_aggregators(f, mask, C):
    total = (f * mask).sum()
    return total / mask.sum(), total / (len(f) * C)


# %% [wrong] divides by the number of responses too
def two_aggregators(f, mask, C):
    total = (f * mask).sum()
    return total / mask.sum(), total / C


# %% [wrong] the constant is not the width
def two_aggregators(f, mask, C):
    total = (f * mask).sum()
    return total / mask.sum(), total / mask.numel()


# %% [wrong] mean of means
def two_aggregators(f, mask, C):
    total = (f * mask).sum()
    return ((f * mask).sum(dim=1) / mask.sum(dim=1)).mean(), total / (len(f) * C)


# %% [markdown]
# **3. Predict.** Four kinds of answer as in the proof, $p = 0.7$, one small step: will the share of long ones rise (1),
# fall (−1) or stay (0)? Rows: GRPO, DAPO (token mean), Dr. GRPO. In each: among right answers, among wrong ones, among
# all.

# %% [exercise]
prediction = ...  # [[?, ?, ?], [?, ?, ?], [?, ?, ?]]

# %% [check]
check(
    prediction,
    [(drift(kind_pushes(script, a, b), 0.7)[:3] * 1e9).round().sign().tolist() for script in (grpo, dapo, dr_grpo)],
    mistakes={
        "wrong answers have A < 0: there the short ones are pushed down hardest": [
            [-1, -1, -1],
            [-1, -1, -1],
            [0, 0, 0],
        ],
        "the token mean is not free of the bias: |y| is inside its own denominator": [
            [-1, 1, -1],
            [0, 0, 0],
            [0, 0, 0],
        ],
        "in total: at p = 0.7 most answers are right, and those shorten": [[-1, 1, 1], [-1, 1, 1], [0, 0, 0]],
    },
)

# %% [hint]
# Steps 3 and 4. The sign of f(a) − f(b) is that of 1/a − 1/b for GRPO and for the token mean.

# %% [solution]
prediction = [[-1, 1, -1], [-1, 1, -1], [0, 0, 0]]

# %% [wrong] wrong answers have A < 0
prediction = [[-1, -1, -1], [-1, -1, -1], [0, 0, 0]]

# %% [wrong] not free of the bias
prediction = [[-1, 1, -1], [0, 0, 0], [0, 0, 0]]

# %% [wrong] most answers are right
prediction = [[-1, 1, 1], [-1, 1, 1], [0, 0, 0]]

# %% [markdown]
# **4. Find the bug.** To save memory, an optimizer batch is cut into micro-batches whose gradients are added up.
# Several trainers averaged the token means of the micro-batches (see prime-rl pull request 583, open-instruct 1161). It
# runs, and the gradient depends on how the batch was cut. Repair the marked line.


# %% [exercise]
def token_mean_in_parts(f, mask, size):
    """token_mean_batch of f (B, T), computed from micro-batches of `size` responses."""
    total, parts = 0, len(f) / size
    for start in range(0, len(f), size):
        part, real = f[start : start + size], mask[start : start + size]
        total += (part * real).sum() / real.sum() / parts  # <- runs, and is wrong
    return total


# %% [check]
many = {"f": torch.cat([terms, terms[:1] / 2]), "mask": torch.cat([real, real[1:2]])}


def parts_with(average):
    """What micro-batches give if each is averaged by `average` and then all of them are."""
    return lambda f, mask, size: torch.stack([average(*part) for part in zip(f.split(size), mask.split(size))]).mean()


check(
    token_mean_in_parts,
    lambda f, mask, size: by_script(dapo, f, mask),
    inputs=[many | {"size": size} for size in (1, 2, 4)],
    bug=parts_with(lambda f, mask: (f * mask).sum() / mask.sum()),
    mistakes={
        "that is the sum of the means: divide by the tokens of the whole batch": lambda f, mask, size: (
            parts_with(lambda f, mask: (f * mask).sum() / mask.sum())(f, mask, size) * (len(f) / size)
        ),
        "padding is counted as tokens": parts_with(lambda f, mask: (f * mask).mean()),
        "divided twice: the token count of the whole batch is enough": lambda f, mask, size: (
            by_script(dapo, f, mask) / (len(f) / size)
        ),
    },
)

# %% [hint]
# Count the tokens of the *whole* batch before the loop. Each micro-batch adds its sum, divided by that count.


# %% [solution]
def token_mean_in_parts(f, mask, size):
    tokens = mask.sum()  # of the whole batch, known before the first backward pass
    total = 0
    for start in range(0, len(f), size):
        part, real = f[start : start + size], mask[start : start + size]
        total += (part * real).sum() / tokens
    return total


# %% [wrong] that is the sum of the means
def token_mean_in_parts(f, mask, size):
    return sum((part * real).sum() / real.sum() for part, real in zip(f.split(size), mask.split(size)))


# %% [wrong] padding is counted
def token_mean_in_parts(f, mask, size):
    return (f * mask).sum() / mask.numel()


# %% [wrong] divided twice
def token_mean_in_parts(f, mask, size):
    parts = list(zip(f.split(size), mask.split(size)))
    return sum((part * real).sum() / mask.sum() for part, real in parts) / len(parts)


# %% [markdown]
# With micro-batches of one response the bug *is* exercise 1: DAPO has silently become GRPO's $1/|y|$.
#
# ## What to remember
#
# - $1/|y|$ pushes the tokens of short answers harder in *both* directions: by itself it shortens right answers and
#   lengthens wrong ones. "GRPO favours short answers" is the half with $A > 0$. The mean over all also moves with $p$.
# - A constant divisor keeps the policy gradient's direction. A token mean keeps about $1/B$ of GRPO's bias, so take it
#   over the whole optimizer batch.
# - Lengths at the end of a run do not measure the divisor. Change one thing at a time.
#
# Next: what one group's update is, all of it, in [Lesson 6](06_identity.ipynb).
#
# Sources: Dr. GRPO, [arXiv:2503.20783](https://arxiv.org/abs/2503.20783), section 3.1, Fig. 6, Listing 1 (which
# counts token means among the biased); GRPO, [2402.03300](https://arxiv.org/abs/2402.03300), Eq. 3; DAPO,
# [2503.14476](https://arxiv.org/abs/2503.14476), Eq. 8. The drift, for $1/|y|$, token mean and shared logit, is ours.
