# %% [markdown]
# # 11 · Maj@K and Pass@K
#
# DeepSeekMath compared its model before and after GRPO (section 5.2.2, Fig. 7). **Maj@K**, is the most frequent of K
# answers right, had risen. **Pass@K**, is any of K answers right, had not. The authors conclude that RL works by "boosting
# the correct response from TopK rather than the enhancement of fundamental capabilities". People call this *sharpening*.
#
# This lesson proves what sharpening does, which is a conditional statement:
#
# > Sharpening never changes which answer is the most frequent. It pulls Maj@K and Pass@K, at every K, towards one number: the
# > share of problems whose most frequent answer is right. Pass@K at large K can only lose by that.
#
# Then it asks whether RL *is* sharpening, on our model. It is not, even where the two curves cross.
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
from math import ceil, comb, log
from pathlib import Path

import numpy as np
import torch

from algorithms import compare, grpo
from lessons import identity
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
from toy_env.arithmetic import LEVELS, extract_answer, held_out_problems, reward, sample_problems
from toy_env.evaluate import evaluate, majority_at_k, pass_at_k
from toy_env.policy import completion_logps, encode_prompts, load_policy, position_ids
from toy_env.rollout import sample

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
# From $n \ge K$ answers, *all* subsets of K give an unbiased estimate. For Pass@K that is $1 - \binom{n-c}{K}/\binom nK$
# (Chen et al., [arXiv:2107.03374](https://arxiv.org/abs/2107.03374), Eq. 1). Maj@K needs the counts of all answers, not only
# $c$. A tie is a fair draw, an answer without a number has no vote. First, both against brute force:

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
# The plug-in is too **low**: $1-(1-p)^K$ is concave in $p$, and the mean of a concave function is below the function of the
# mean (Jensen).
#
# ## What an interval speaks of
#
# We have 64 answers to each of 64 problems. These are not 4,096 draws: answers to one problem share its difficulty. If the question
# is "how would it do on other problems", it is the *problems* that must be drawn anew.

# %%
is_right = sampled[1.0].correct
rates = is_right.mean(axis=1)
wrong_half = 1.96 * np.sqrt(rates.mean() * (1 - rates.mean()) / is_right.size)
low, high = compare.interval_over_both(rates[None])  # one seed, 64 problems: the bootstrap of the README's table
print(f"Pass@1 of the base, may work it out: {rates.mean():.3f}")
print(
    f"  as if 4,096 independent draws:     {rates.mean() - wrong_half:.3f} to {rates.mean() + wrong_half:.3f}, too narrow"
)
print(
    f"  problems drawn anew:               {low:.3f} to {high:.3f}, {(high - low) / (2 * wrong_half):.1f} times as wide"
)
assert (high - low) / (2 * wrong_half) > 3

# %% [markdown]
# Neither says anything about another *training run*: that needs seeds.
#
# ## A task that we know exactly
#
# Allow four tokens: `#14` and the end. Nothing can be worked out, only blurted. Then all answers 0 to 99 can be enumerated,
# and $\pi(a)$ is exact, up to odd spellings such as `#014`. It also tells whether the estimators are right *on the model*. (Its
# samples we have already: an answer cut after four tokens is the first four characters of the long one.)


# %%
@torch.no_grad()
def blurt_logits(policy):
    """What decides a four-token answer: the logits before "#", before each digit, and before the end."""
    prompts, mask = encode_prompts(tokenizer, [problem.prompt for problem in problems])
    start = policy(
        input_ids=prompts, attention_mask=mask, position_ids=position_ids(mask), use_cache=True, logits_to_keep=1
    )
    start.past_key_values.batch_repeat_interleave(100)
    hash_sign, *digits = tokenizer.convert_tokens_to_ids(list("#0123456789"))
    ids = torch.tensor([[hash_sign, a, b] for a, b in product(digits, digits)]).repeat(
        len(problems), 1
    )  # "#00" .. "#99"
    mask = torch.cat([mask.repeat_interleave(100, dim=0), torch.ones_like(ids, dtype=torch.bool)], dim=1)
    rest = policy(
        input_ids=ids,
        attention_mask=mask,
        position_ids=position_ids(mask)[:, -3:],
        past_key_values=start.past_key_values,
        use_cache=True,
    )
    logits = rest.logits.view(len(problems), 10, 10, 3, -1).double()
    return start.logits[:, -1].double(), logits[:, 0, 0, 0], logits[:, :, 0, 1], logits[:, :, :, 2]


def answer_table(logits, T=1.0):
    """(problems, 100): the probability of each answer 0..99 within four tokens, at token temperature T."""
    hash_sign, *digits = tokenizer.convert_tokens_to_ids(list("#0123456789"))
    first, second, third, fourth = ((x / T).softmax(dim=-1) for x in logits)
    one = first[:, hash_sign, None] * second[:, digits]  # (problems, 10): "#1"
    table = (one.unsqueeze(2) * third[:, :, digits] * fourth[..., tokenizer.eos_token_id]).flatten(1)  # "#14", end
    table[:, :10] += one * third[..., tokenizer.eos_token_id]  # "#1", end
    return table.numpy()


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


base_logits = blurt_logits(base)
exact = answer_table(base_logits)
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
# **Sharpening** the answers to a problem means $\pi_\beta(a) = \pi(a)^\beta / \sum_b \pi(b)^\beta$ with $\beta > 1$, and $p_\beta$ is the
# probability of the right one.
#
# **Step 1. One problem never crosses.** $1 - q^K$ rises with $p$. Of two policies, the one with the larger $p$ is ahead at every
# K. A crossing is a property of an *average over problems*.
#
# **Step 2. What happens to $p$.** Differentiate:
#
# $$\frac{d}{d\beta}\log p_\beta = \log\pi(\text{right}) - \sum_a \pi_\beta(a) \log \pi(a)$$
#
# The sum grows with β (its derivative is the variance of $\log\pi$), up to the $\log\pi$ of the mode. So if the mode is right,
# $p_\beta$ rises all the way to 1. If it is wrong, $p_\beta$ may rise at first, then falls to 0.
#
# **Step 3. The ends.** $\pi_\beta$ has the mode of $\pi$. So, without ties: for $K \to \infty$ at any fixed β, Maj@K $\to M$ and
# Pass@K $\to 1$; for $\beta \to \infty$ at any fixed K, *both* $\to M$.
#
# **Step 4. The price.** $1-(1-p)^K$ is concave in $p$: among all ways to have the same Pass@1, spread-out rates (some problems at 0,
# the others at 1) have the lowest Pass@K. This is where sharpening ends. ∎
#
# So sharpening does to one answer what voting does to many, and cannot do more: **Maj@∞ is $M$ before and after.** Whether Maj@1 =
# Pass@1 rises on the way depends on whether $M$ is larger. Pass@K at large K falls from near 1 to $M$.

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

print("beta     Pass@1   Pass@4   Pass@64   Maj@64   mode right (M)")
Ks = (1, 4, 64)
for beta in (1, 2, 4, 16, 4096):
    table = sharpened(given, beta)
    one, four, many = pass_curve(table, Ks).mean(axis=1)
    vote = majority_curve(table, (64,)).mean()
    kept = (table.argmax(axis=1) == rights).mean()
    assert kept == M and many <= 1 - (1 - one) ** 64 + 1e-12
    print(f"{beta:5}    {one:.3f}    {four:.3f}    {many:.3f}     {vote:.3f}    {kept:.3f}")

# %% [markdown]
# *Pass@64 pays more than half. Pass@1 gains little and Maj@64 nothing: this model's mode is right on a third of the problems only.*
#
# ## Turn it
#
# Lowering the temperature sharpens *tokens*, not answers, which is not quite the same: it renormalises after every token.
# Left, each problem's $p$. Right, the two curves. The dotted line is $M$.

# %%
KS = tuple(2**i for i in range(9))


def draw(T, K, what):
    table = answer_table(base_logits, T) if what.startswith("tokens") else sharpened(given, 1 / T)
    before = exact if what.startswith("tokens") else given
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


knob(draw, T=(0.1, 2.0, 0.1, 0.3), K=[16, *(k for k in KS if k != 16)],
     what=["tokens, by temperature", "answers, by power 1/T"])  # fmt: skip

# %% [markdown]
# *Cooling pushes each problem's p to 0 or 1. The curves flatten towards one level; Pass@K crosses its old self.*
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
    print(f"T = {T}: worked out {evaluation.worked.mean():4.0%} of all answers")
figure, axes = new_figure(9.5, 3.7, columns=2, sharey=True)
for axis, kind in zip(axes, ("Maj", "Pass")):
    for T, color in ((0.3, BLUE), (1.0, GREY)):
        values = per_problem[T][kind]
        band = np.array([compare.interval_over_both(row[None]) for row in values])
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
    low, high = compare.interval_over_both(gap[None])
    assert high < 0
    print(f"{kind}@64: {gap.mean():+.3f} [{low:+.3f}, {high:+.3f}]")

# %% [markdown]
# *Cooling lowers Pass@64, as promised, and Maj@64 too.*
#
# Sharpening the answers leaves every mode in place; here right ones were lost. The reason is in the first lines: cooling tokens sharpens
# the choice of *how* to answer. Blurting is the likelier way, so cooling picks it, and the reliable way vanishes. "Sharpening raises
# Maj@K" needs a subject: sharpening of what?
#
# ## Is RL sharpening?
#
# Solved exactly, no. What maximises expected reward minus λ times the KL to the base is $\pi^*(y) \propto \pi(y)\,e^{R(y)/\lambda}$.
# It multiplies the odds of being right, $p/q$, by $e^{1/\lambda}$: on *every* problem $p$ rises, so Pass@K rises at every K, and no
# right mode is lost. If a trained model's Pass@K falls, it is not the objective but the way there: finite groups, shared parameters,
# step sizes.
#
# So we train. GRPO on the four-token task, 8 batches of 32 groups of 8, one update each, no KL and no warm-up, at two learning rates:


# %%
lam = 0.5
R = np.arange(100) == rights[:, None]
tilted = given * np.exp(R / lam)
tilted /= tilted.sum(axis=1, keepdims=True)
odds = p_right(given) / (1 - p_right(given))
assert np.allclose(p_right(tilted), odds * np.exp(1 / lam) / (1 + odds * np.exp(1 / lam)), rtol=1e-12)
assert (p_right(tilted) > p_right(given)).all()


def short_grpo(learning_rate, steps=8, P=32, G=8, seed=0):
    policy, _ = load_policy("base")
    optimizer = torch.optim.AdamW(policy.parameters(), lr=learning_rate, weight_decay=0.0)
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = sample_problems(P, LEVELS, rng)
        rollout = sample(policy, tokenizer, [problem.prompt for problem in batch], group_size=G, max_new_tokens=4,
                         temperature=1.0, generator=generator)  # fmt: skip
        rewards = torch.tensor([reward(batch[i // G], text) for i, text in enumerate(rollout.texts)])
        A = grpo.compute_advantages(rewards=rewards.view(P, G)).view(-1, 1)
        logps = completion_logps(policy, rollout, 1.0)
        fixed = {"old_logps": logps.detach(), "ref_logps": logps.detach()}  # ratio 1; reference = itself: no KL
        loss = grpo.policy_loss(logps=logps, advantages=A, mask=rollout.mask, config=grpo.Config(), **fixed)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    return policy


tables = {"base": exact, "base, T = 0.3": answer_table(base_logits, 0.3)}
for name, rate in (("GRPO, small steps", 3e-4), ("GRPO, large steps", 1e-3)):
    tables[name] = answer_table(blurt_logits(short_grpo(rate)))
mode = exact.argmax(axis=1)
print("four tokens            Pass@1   Pass@64   Pass@1024      M   other mode   in time   Pass@1 if in time")
for name, table in tables.items():
    one, many, huge = pass_curve(table, (1, 64, 1024)).mean(axis=1)
    other = (table.argmax(axis=1) != mode).mean()
    in_time = table.sum(axis=1)
    print(f"{name:20}   {one:.3f}    {many:.3f}      {huge:.3f}    {(table.argmax(axis=1) == rights).mean():.3f}      "
          f"{other:4.0%}       {in_time.mean():4.0%}       {(p_right(table) / in_time).mean():.3f}")  # fmt: skip
print("\nagainst the base, paired over problems")
for name in list(tables)[2:]:
    for K in (1, 64):
        gap = pass_curve(tables[name], (K,)) - pass_curve(exact, (K,))
        low, high = compare.interval_over_both(gap)
        print(f"{name}  Pass@{K:<2} {gap.mean():+.3f} [{low:+.3f}, {high:+.3f}]")
assert high < 0  # large steps, K = 64

# %%
many = 2 ** np.arange(13)
figure, axis = new_figure(8.5, 4.0)
LOOK = {
    "base": (GREY, "-"),
    "base, T = 0.3": (GREEN, "-."),
    "GRPO, small steps": (BLUE, "-"),
    "GRPO, large steps": (RED, "-"),
}
for name, (color, style) in LOOK.items():
    axis.plot(many, pass_curve(tables[name], many).mean(axis=1), style, color=color)
guess = 1 - 0.99**many
axis.plot(many, guess, ":", color="black", linewidth=1.5)
for x, y, name, color in ((1.1, 0.74, "GRPO, small steps", BLUE), (2.1, 0.27, "base", GREY), (4096, 0.87, "GRPO, large steps", RED),
                          (4096, 0.93, "base, T = 0.3", GREEN), (48, 0.22, "guessing 0 to 99", "black")):  # fmt: skip
    label_line(axis, x, y, name, color)
axis.set_xscale("log", base=2)
axis.set_xticks(many[::2], [str(k) for k in many[::2]])
axis.set(
    title="Pass@K, answers of four tokens, exact",
    xlabel="K, answers to each problem",
    ylim=(0, 1.03),
    xlim=(0.9, 33000),
)
show(figure)

print(f"K = 64: guessing {guess[6]:.3f}, base {pass_curve(exact, (64,)).mean():.3f}")
for name in ("base, T = 0.3", "GRPO, large steps"):
    overtaken = many[pass_curve(tables[name], many).mean(axis=1) < guess][0]
    crossed = many[pass_curve(tables[name], many).mean(axis=1) < pass_curve(exact, many).mean(axis=1)][0]
    print(f"{name}: below the base from K = {crossed} on, below the guesser from K = {overtaken} on (powers of two)")

# %% [markdown]
# *One learning rate lifts the curve, another makes a crossing that looks like cooling. A guesser overtakes that one in the end.*
#
# **Small steps** change the most frequent answer on half of the problems, often to a right one: $M$ grows by more than half. That is
# not sharpening. (The base imitates a student who forgets nine carries in ten. The verifier rewards the tenth.) At K = 64 no
# difference from the base is seen. **Large steps** give the picture known from the literature: a little ahead at K = 1, far behind at
# K = 64. That is not sharpening either: even more modes moved, and few more of them are right. The lead at K = 1 is only that more
# answers end in time; among those that do, as many are right as before.
#
# We expected sharpening here, since nothing can be worked out, and were wrong. What this cannot show: one seed for each rate, a
# tiny model, rates picked to differ.
#
# On the full task, with the scripts' own settings, five seeds each (from the README's table, `python algorithms/compare.py`):

# %%
results = json.loads((Path(grpo.__file__).parent / "results.json").read_text())["sampling"]
print("full task, 256 problems   Pass@1 = Maj@1         Maj@64                 Pass@4                 Pass@64")
for name, kinds in results.items():
    if name != "samples":
        of = {kind: {entry["k"]: entry for entry in kinds[kind]} for kind in ("majority", "pass")}
        row = [of["pass"][1], of["majority"][64], of["pass"][4], of["pass"][64]]
        print(
            f"{name:23}" + "".join(f"   {x['mean']:.3f} [{x['interval'][0]:.3f}, {x['interval'][1]:.3f}]" for x in row)
        )
        if name == "base":
            base_row = row
        else:
            assert all(mine["interval"][0] > theirs["interval"][1] for mine, theirs in zip(row[:3], base_row[:3]))

# %% [markdown]
# **Both rise**, under all five scripts. The base knows the reliable way and rarely takes it, so its Pass@64 has nothing left to gain or
# to show; the most frequent answer becomes right almost everywhere. DeepSeekMath's finding is about a model that had been
# instruction-tuned on the distribution of its RL prompts, and the authors say so.
#
# ## Does RL teach new answers?
#
# Yue et al. ([arXiv:2504.13837](https://arxiv.org/abs/2504.13837)) find the crossing in many models: RL ahead at K = 1, the base
# catching up at tens or hundreds of answers and then ahead. That shows that on *some problems* the trained model has less probability left for the right
# answer. It cannot show more than that:
#
# - **Not a border of ability.** A softmax gives every answer some probability: Pass@K goes to 1 for base, trained model and noise
#   alike. Large K compares tails.
# - **Not knowledge, where answers are few.** Our answers are 0 to 99. The dotted line knows nothing, and at large K it beats
#   two of the four policies. Wen et al. ([2506.14245](https://arxiv.org/abs/2506.14245)) count an answer only if its reasoning is
#   right too.
# - **Not the objective.** Solved exactly it lowers no problem's $p$; here a learning rate decided.
# - **Nor that it must be.** DAPO's Fig. 1 has pass@32 climbing through training.
#
# ## What climbs Pass@K?
#
# On one problem, anything that raises $p$. On average, what counts is how effort is divided: an update $w(p)\,\nabla p$ climbs the mean of $h(p)$
# with $h' = w$ ([lesson 9](09_objective.ipynb)). For Pass@K that is $w = Kq^{K-1}$: nearly all of it goes to problems that are almost
# never solved. GRPO weighs easy problems as much as hard ones.

# %%
grid = np.linspace(0.001, 0.999, 400)
figure, axis = new_figure(7.5, 3.4)
for K, color, style in ((4, ORANGE, "--"), (16, RED, "-")):
    w = identity.weight("pass@G", grid, K)
    assert np.allclose(w, ((1 - (1 - grid - 1e-6) ** K) - (1 - (1 - grid + 1e-6) ** K)) / 2e-6, atol=1e-5)
    axis.plot(grid, w, style, color=color)
assert identity.weight("pass@G", 1 / 3, 16) < 0.04 < 1.9 < identity.weight("GRPO", 1 / 3, 16)
axis.plot(grid, identity.weight("GRPO", grid, 16), color=BLUE)
axis.plot(grid, identity.weight("Dr. GRPO", grid, 16), "-.", color=GREEN)
for x, y, name, color in ((0.06, 8.5, "Pass@16", RED), (0.12, 3.5, "Pass@4", ORANGE), (0.72, 3.3, "GRPO, G = 16", BLUE),
                          (0.72, 1.4, "Dr. GRPO, G = 16", GREEN)):  # fmt: skip
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
# **2. Maj@k by enumeration.** `answers` is a list of integers and None (no vote). A tie is a fair draw; if nobody votes, the
# majority is wrong. (`itertools.combinations`, `collections.Counter`)


# %% [exercise]
def majority_by_enumeration(answers, right, k):
    """The probability that the most frequent of k answers is right, over all k-subsets."""
    return ...


# %% [check]
def enumerated(answers, right, k, tie, abstain=True):
    scores = []
    for subset in combinations(answers, k):
        counts = Counter(a for a in subset if a is not None or not abstain)
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
    },
)

# %% [hint]
# In each subset count the votes and list all answers that reach the largest count. If the right one is among m winners, the
# subset is worth 1/m.


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


# %% [markdown]
# **3. Build a crossing.** Two policies, four problems: give each policy four success probabilities, so that A is ahead in Pass@1 and
# B is ahead in Pass@64.

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
# Step 1: on one problem it cannot be done. Let A be certain on some problems and hopeless on another; let B be mediocre on all.

# %% [solution]
crossing = [[1, 1, 1, 0], [0.2, 0.2, 0.2, 0.2]]

# %% [wrong] but A does not lead at K = 1
crossing = [[1, 0, 0, 0], [0.5, 0.5, 0.5, 0.5]]

# %% [wrong] but B does not lead at K = 64
crossing = [[0.6, 0.6, 0.6, 0.6], [0.1, 0.1, 0.1, 0.1]]

# %% [markdown]
# **4. The guesser.** Someone draws each answer uniformly from $m$ possible ones, knowing nothing. How many attempts, at least, until
# Pass@K reaches `target`? (Multiple choice: m = 4. Ours: m = 100. AIME: m = 1,000.)


# %% [exercise]
def attempts(target, m):
    """The smallest whole K for which a uniform guesser among m answers has Pass@K >= target."""
    return ...


# %% [check]
def by_counting(target, m):
    K, q = 0, 1.0
    while 1 - q < target:
        K, q = K + 1, q * (1 - 1 / m)
    return K


check(
    attempts,
    by_counting,
    inputs=[{"target": 0.5, "m": 100}, {"target": 0.9, "m": 4}, {"target": 0.95, "m": 1000}],
    mistakes={
        "that is a guesser who never says the same twice: samples are independent": lambda target, m: ceil(target * m),
        "not yet there: round up": lambda target, m: int(log(1 - target) / log(1 - 1 / m)),
    },
)

# %% [hint]
# Solve $(1 - 1/m)^K = 1 - \text{target}$ for K with logarithms, then round up.


# %% [solution]
def attempts(target, m):
    return ceil(log(1 - target) / log(1 - 1 / m))


# %% [wrong] never says the same twice
def attempts(target, m):
    return ceil(target * m)


# %% [wrong] round up
def attempts(target, m):
    return int(log(1 - target) / log(1 - 1 / m))


# %% [markdown]
# **5. Find the bug.** An evaluation script knows the right answers of each problem, computes the model's success rate, and from it pass@k.
# It runs. Repair it. (`pass_at_k(n, c, k)` is the estimator from above.)


# %% [exercise]
def benchmark_pass_at_k(right, n, k):
    """Pass@k of a benchmark: right[i] of n answers to problem i are right."""
    rate = sum(right) / (n * len(right))  # <- runs, and is wrong
    return ...  # 1 - (1 - rate) ** k, or what is right


# %% [check]
check(
    benchmark_pass_at_k,
    lambda right, n, k: np.mean([pass_at_k(n, c, k) for c in right]),
    inputs=[{"right": [8, 0, 1, 0], "n": 8, "k": 4}, {"right": [2, 5, 16], "n": 16, "k": 8}],
    mistakes={
        "still one rate for all: the mean of the curve is below the curve of the mean (Jensen)": lambda right, n, k: (
            1 - (1 - sum(right) / (n * len(right))) ** k
        ),
        "all problems in one pot: k answers to *different* problems do not help each other": lambda right, n, k: (
            pass_at_k(n * len(right), sum(right), k)
        ),
        "one rate for each problem now, but the plug-in is biased: use pass_at_k": lambda right, n, k: np.mean(
            [1 - (1 - c / n) ** k for c in right]
        ),
    },
)

# %% [hint]
# Pass@k is a mean over problems. Estimate it for each problem, then average.


# %% [solution]
def benchmark_pass_at_k(right, n, k):
    return sum(pass_at_k(n, c, k) for c in right) / len(right)


# %% [wrong] still one rate for all
def benchmark_pass_at_k(right, n, k):
    rate = sum(right) / (n * len(right))
    return 1 - (1 - rate) ** k


# %% [wrong] all problems in one pot
def benchmark_pass_at_k(right, n, k):
    return pass_at_k(n * len(right), sum(right), k)


# %% [wrong] the plug-in is biased
def benchmark_pass_at_k(right, n, k):
    return sum(1 - (1 - c / n) ** k for c in right) / len(right)


# %% [markdown]
# ## What to take along
#
# - Estimate Pass@K and Maj@K from all K-subsets, problem by problem; take intervals over problems, and over training runs if the claim
#   is about training.
# - Sharpening the answers keeps $M$, lowers Pass@K at large K to $M$, and lifts Maj@K only as far as $M$. Cooling tokens may sharpen
#   something else.
# - If $M$ moves, it was not sharpening. Under all our scripts it moved, and both curves rose. A crossing can come from a learning rate.
# - At large K, compare with a guesser.
#
# Next: the five methods as one gradient with five coefficients, [lesson 12](12_coefficients.ipynb).
#
# Sources: DeepSeekMath, [arXiv:2402.03300](https://arxiv.org/abs/2402.03300), section 5.2.2, Fig. 7; the estimator, Chen et al. 2021; weights
# of Pass@K as in Davis and Recht, [2510.13651](https://arxiv.org/abs/2510.13651); DAPO, [2503.14476](https://arxiv.org/abs/2503.14476),
# Fig. 1. The four steps and the four-token experiment are ours.
