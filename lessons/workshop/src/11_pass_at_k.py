# %% [markdown] 45 minutes
# # 11 · Maj@K and Pass@K
#
# Ask a model one question many times and count its answers. **Sharpening** raises their probabilities to a power and normalises: what was
# likely becomes likelier. Reinforcement learning is often said to do no more than that.
#
# > **Sharpening never changes which answer is the most probable. If training has changed which answer is the most probable, it has done more
# > than sharpen the answers.**
#
# This is easily proved, and it settles only half of the question. On our task training does more than sharpen the *answers*; whether it
# sharpens whole *completions* stays open on the full task.
#
# Below, the answers of our base model to one problem (right: 64, blue), the same sharpened, and those after training with GRPO (group
# relative policy optimization).

# %% [fold]
import random
from collections import Counter
from itertools import combinations, product

import numpy as np

from algorithms import grpo
from lessons import identity
from lessons.experiments import compare_tables, paired, short_answers
from lessons.experiments.learning import learn
from lessons.workshop.kit import check, knob, show
from lessons.workshop.parts.drawing import bars
from lessons.workshop.parts.lesson_11 import (
    all_subsets,
    curves_of_training,
    leads,
    own_code,
    rises,
    sharpening,
)
from toy_env.arithmetic import LEVELS, extract_answer, held_out_problems
from toy_env.evaluate import majority_at_k, pass_at_k
from toy_env.held_out import evaluate
from toy_env.model import load_policy

base, tokenizer = load_policy("base")
problems = held_out_problems(16, LEVELS)  # 64, sixteen of each level
rights = np.array([problem.answer for problem in problems])
sampled = evaluate(base, tokenizer, problems, samples=64, max_new_tokens=4)
answers = [[extract_answer(text) for text in row] for row in sampled.texts]  # or None
logits = short_answers.answer_logits(base, tokenizer, problems)
exact = short_answers.answer_table(logits, tokenizer)  # (problems, 100), of each answer
answered = exact / exact.sum(axis=1, keepdims=True)  # among completions that give an answer

def sharpened(table, beta):
    logs = beta * np.log(table)
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)

def p_right(table):
    return table[np.arange(len(table)), rights]

def majority(table, K, rounds=100):
    """(problems,): the share of simulated votes that the right answer wins; ties in part."""
    no_vote = (1 - table.sum(axis=1, keepdims=True)).clip(0)
    chances, size = np.hstack([table, no_vote]), (rounds, len(table))
    votes = np.random.default_rng(0).multinomial(K, chances, size=size)[..., :-1]
    top = votes.max(axis=2)
    wins = (votes[:, np.arange(len(table)), rights] == top) & (top > 0)
    return (wins / (votes == top[..., None]).sum(axis=2)).mean(axis=0)

policy, one = load_policy("base")[0], 23
settings = {"seed": 0, "steps": 8, "learning_rate": 3e-4, "warmup_steps": 0,
            "num_minibatches": 1, "max_new_tokens": 4}
learn(grpo, settings, policy=policy)
after = short_answers.answer_table(
    short_answers.answer_logits(policy, tokenizer, problems), tokenizer)
tables = {"before": answered, "sharpened, β = 4": sharpened(answered, 4),
          "after GRPO": after / after.sum(axis=1, keepdims=True)}
of_one = {name: table[one] for name, table in tables.items()}
modes = [int(table.argmax()) for table in of_one.values()]
modes_right = [(table.argmax(axis=1) == rights).mean() for table in tables.values()]
assert (problems[one].prompt, problems[one].answer, modes) == ("15+16+33?", 64, [54, 54, 64])
likely = np.flatnonzero(np.max([*of_one.values()], axis=0) > 0.01)
some = {name: table[likely] for name, table in of_one.items()}
show(bars(some, likely, chosen=int((likely == 64).argmax())))

trained, base_mode = short_answers.load(), exact.argmax(axis=1)  # five seeds of each, see below
M_of = {name: (policy["mode"] == rights).mean() for name, policy in trained.items()}
results = compare_tables.load()["sampling"]["arms"]  # of the full task
before, *arms = ({(kind, rate["k"]): rate for kind in arm for rate in arm[kind]}
                 for arm in results.values())  # the base comes first
least = {key: min(arm[key]["mean"] for arm in arms) for key in before}
for key in (("majority", 64), ("pass", 4)):
    assert all(arm[key]["interval"][0] > before[key]["interval"][1] for arm in arms)

# %% [text]
# *One of the problems whose most probable answer changed: its answers with a probability above 1 %. Before training the most probable one,
# {=modes[0]}, is wrong, and sharpening makes it more probable still. Eight batches of GRPO raise the right one from {=of_one["before"][64]:.0%} to
# {=of_one["after GRPO"][64]:.0%}. Of all 64 problems, the most probable answer is right in {=modes_right[0]:.0%} before and after sharpening, and in
# {=modes_right[2]:.0%} after GRPO (one run; the mean of five is {=M_of["GRPO, small steps"]:.0%}, see below).*
#
# The share of problems whose most probable answer is right is called $M$. Two curves over K are often read. **Maj@K** is how often the most frequent of K
# answers is right. **Pass@K** is how often at least one of K answers is right.
#
# | symbol | meaning |
# |---|---|
# | $\pi(a)$ | the probability that the model's answer to a problem is $a$; the most probable answer is the **mode** |
# | $M$ | the share of problems whose mode is right |
# | $p,\ q$ | the probability of the right answer; $q = 1 - p$ |
# | Pass@K; Maj@K | $1 - q^K$; the chance that the right answer wins a vote of K answers; both averaged over problems |
# | $\beta,\ \pi_\beta,\ p_\beta$ | the exponent of the sharpening; the sharpened distribution $\pi_\beta(a) = \pi(a)^\beta / \sum_b \pi(b)^\beta$; its $p$ |
#
# **What DeepSeekMath saw.** In section 5.2.2 (Fig. 7) Maj@K is higher after GRPO and Pass@K is not. The authors read this as "boosting the
# correct response from TopK rather than the enhancement of fundamental capabilities". But such curves do not tell sharpening from
# learning: Maj@K reaches $M$ only with infinitely many votes or infinite sharpening. Before that, sharpening can raise both curves, even
# on a problem whose mode is wrong.

# %% [markdown]
# ## A task that we know exactly
#
# Allow four tokens: `#14` and the end of the completion. The model cannot work anything out, and the probability of each answer from 0 to
# 99 can be computed (up to spellings such as `#014`). A tie is broken by a fair draw. A completion without a number is wrong and has no
# vote. Estimates from 64 sampled answers to each problem agree:

# %% [fold]
print("            Pass@K                      Maj@K")
print("   K   exact   from 64 samples   simulated   from 64 samples")
for K in (1, 4, 16, 64):
    passed, won = 1 - (1 - p_right(exact)) ** K, majority(exact, K)
    counted = np.mean([pass_at_k(64, row.count(y), K) for row, y in zip(answers, rights)])
    voted = np.mean([majority_at_k(row, y, K) for row, y in zip(answers, rights)])
    print(f"{K:4}   {passed.mean():.3f}   {counted:.3f}         "
          f"    {won.mean():.3f}       {voted:.3f}")
    for true, estimate in ((passed, counted), (won, voted)):  # at K = 64 as noisy as one draw
        noise = np.sqrt((true * (1 - true)).sum()) / len(true) / (8 if K == 1 else 1)
        assert abs(estimate - true.mean()) < 4 * noise + 0.01

# %% [text]
# ## Sharpening: the proof
#
# **The limits.** Powers preserve order, so $\pi_\beta$ and $\pi$ have the same most probable answer. Therefore, without ties: for
# $K \to \infty$ at a fixed β, Maj@K $\to M$ and Pass@K $\to 1$; for $\beta \to \infty$ at a fixed K, both tend to $M$.
#
# **Between the limits.** Differentiate:
#
# $$\frac{d}{d\beta}\log p_\beta = \log\pi(\text{right}) - \sum_a \pi_\beta(a) \log \pi(a)$$
#
# The sum grows with β (its derivative is the variance of $\log\pi$ under $\pi_\beta$) and tends to the $\log\pi$ of the most probable
# answer. So if that answer is right, $p_\beta$ rises all the way to 1. If it is wrong, $p_\beta$ may rise at first, but finally
# falls to 0.
#
# **A bound.** Suppose the most probable answer is wrong. In any list of K answers whose vote the right answer wins, swap the right answer
# and the most probable one: now the latter wins, and the list is at least as probable. So the right answer wins at most half of
# all polls of K answers, at every K and β. On average over problems, Maj@K $\le M + \frac12(1-M)$. ∎
#
# The table sharpens answers, so here $\pi$ is a distribution over answers: completions without one are left out, and Pass@1 begins at
# {=p_right(answered).mean():.2f}. Everywhere else they count as wrong, and it is {=p_right(exact).mean():.2f}.

# %%
mode_right, raised = answered.argmax(axis=1) == rights, {}
M, p_1 = mode_right.mean(), p_right(answered)
print("beta   Pass@1   Pass@64  Maj@64   M        p raised where the mode is wrong")
for beta in (1, 2, 4, 16, 4096):
    table = sharpened(answered, beta)
    p, votes = p_right(table), majority(table, 64).mean()
    raised[beta] = f"{(p > p_1 + 1e-12)[~mode_right].sum()} of {(~mode_right).sum()}"
    print(f"{beta:4}   {p.mean():.3f}    {(1 - (1 - p) ** 64).mean():.3f}    "
          f"{votes:.3f}    {M:.3f}    {raised[beta]}")
    same_modes = (table.argmax(axis=1) == answered.argmax(axis=1)).all()
    assert same_modes and votes <= (1 + M) / 2
assert np.allclose(p_right(table), mode_right, atol=1e-6)  # the limit

# %% [text]
# *$M$ stays constant, and Pass@64 falls to it; Maj@64 is near it from the start. At β = 2, $p$ has risen in {=raised[2]} problems whose
# mode is wrong, and with it Pass@K at every K.* On a single problem the policy with the larger $p$ leads in Pass@K at every K. So curves of
# Pass@K can cross only after averaging over problems.
#
# A lower temperature $T = 1/\beta$ sharpens *tokens*, not answers. That can change the mode, and so $M$. Compare the two.

# %% [fold]
for beta in (1, 2, 4, 16):  # the derivative above, against a difference
    ends = [np.log(p_right(sharpened(answered, beta + step))) for step in (-1e-6, 1e-6)]
    slope = np.log(p_1) - (sharpened(answered, beta) * np.log(answered)).sum(axis=1)
    assert np.allclose((ends[1] - ends[0]) / 2e-6, slope, atol=1e-6)

# The bound, over all lists of five votes, if the second most probable answer is right:
pi, lists = np.array([0.28, 0.3, 0.22, 0.2]), product(range(4), repeat=5)
assert sum(majority_at_k(votes, 0, 5) * pi[list(votes)].prod() for votes in lists) <= 0.5

KS, BETAS = (1, 4, 16, 64, 256), [2, 4, 8, 16]
tables = {("answers", 1): answered, ("tokens", 1): exact}
for beta in BETAS:
    tables["answers", beta] = sharpened(answered, beta)
    tables["tokens", beta] = short_answers.answer_table(logits, tokenizer, T=1 / beta)
shown = {}
for (kind, beta), table in tables.items():
    p, modes = p_right(table), tables[kind, 1].argmax(axis=1)
    shown[kind, beta] = {
        "p": p,
        "mode right": table.argmax(axis=1) == rights,
        "Pass@K": [(1 - (1 - p) ** K).mean() for K in KS],
        "Maj@K": [majority(table, K, rounds=50).mean() for K in KS],
    }

def draw(beta=2, what="answers"):
    names = {"answers": f"answers to the power {beta}",
             "tokens": f"tokens at T = {1 / beta:g}"}
    return sharpening(shown[what, 1], shown[what, beta], KS, names[what])

knob(draw, beta=BETAS, what=["answers", "tokens"])

# %% [text]
# *Left: squares above the grey line are problems whose $p$ has risen although the mode is wrong. Right: sharpening answers keeps $M$ (dotted)
# and draws both curves to it. Cooling tokens moves $M$ as well.*
#
# ## Is reinforcement learning sharpening?
#
# **On the full task Maj@64 rose, so $M$ moved.** With 56 tokens a problem can be worked out. There five scripts at their own settings raise
# Maj@64 from {=before["majority", 64]["mean"]:.2f} to {=least["majority", 64]:.2f} or more ([results](experiments/README.md)). Sharpening of answers could not have lifted it
# above $(1 + M)/2$. With the base's Maj@64 for $M$, that is {=(1 + before["majority", 64]["mean"]) / 2:.2f}.
#
# **This excludes sharpening of answers, not of whole completions:**
#
# | what is raised to a power | is the mode kept? |
# |---|---|
# | answers | yes |
# | completions | not always: an answer with a few very probable completions can overtake one with many improbable ones |
# | tokens | not always |
#
# **What ideal RL would do.** Suppose RL with a penalty of $c$ times the KL (Kullback–Leibler) divergence from the base is solved exactly. The
# solution is $\pi_{base}(a)\,e^{R(a)/c}$, normalised. So the odds $p/q$ of *every* problem are multiplied by the same factor, $e^{1/c}$. A wrong mode can be overtaken, a right one stays, and **Pass@K rises at every K**. If Pass@K fell,
# training did not find this solution: groups are finite, parameters are shared, steps are long.
#
# On the four-token task $M$ can be computed, so there we watch it move. We train with GRPO, without a KL penalty: 8 batches of 32 groups of
# 8, one update per batch, five seeds. *Small steps* have the learning rate 3e-4, *large steps* 1e-3. Small steps are also taken for 27
# batches: then learning rate times batches is that of the large steps.

# %% [fold]
def with_interval(lead):
    """The mean of (seeds, problems), with an interval over both."""
    bottom, top = paired.interval_over_both(lead)
    return f"{lead.mean():+.2f} [{bottom:+.2f}, {top:+.2f}]"

policies = {"base": {"right": p_right(exact)[None], "mode": base_mode[None]}} | trained
cooled = short_answers.answer_table(logits, tokenizer, T=0.3)
p_of = {name: policy["right"] for name, policy in policies.items()}  # (seeds, problems)
show(curves_of_training(p_of | {"base, T = 0.3": p_right(cooled)[None]}))
print(f"{'means over seeds':23} Pass@1   M    new mode  Pass@64  its gain")
pass_1, pass_64, new_mode, higher = {}, {}, {}, {}
for name, policy in policies.items():
    M_of[name] = (policy["mode"] == rights).mean()
    new_mode[name] = (policy["mode"] != base_mode).mean()
    pass_1[name], pass_64[name] = ((1 - (1 - p_of[name]) ** K).mean() for K in (1, 64))
    lead = (1 - p_of["base"]) ** 64 - (1 - p_of[name]) ** 64
    gain = "" if name == "base" else with_interval(lead)
    print(f"{name.removeprefix('GRPO, '):23} {pass_1[name]:.3f}   {M_of[name]:.2f} "
          f"{new_mode[name]:>7.0%}   {pass_64[name]:.3f}    {gain}".rstrip())
    higher[name] = int((lead.mean(axis=1) > 0).sum())  # seeds with Pass@64 above the base's
large, small = "GRPO, large steps", "GRPO, small steps"  # the first has failed
assert [*higher.values()] == [0, 5, 5, 0] and pass_64[large] < pass_64["base"] - 0.2
assert pass_1[large] < pass_1[small] - 0.05 and M_of[large] < M
tilted = answered * np.exp(2 * (np.arange(100) == rights[:, None]))
odds = p_right(tilted) / (tilted.sum(axis=1) - p_right(tilted))  # penalty KL / 2: exact
assert np.allclose(odds, np.exp(2) * p_1 / (1 - p_1), rtol=1e-12)

# %% [text]
# *Thick lines are means of five seeds. Small steps stay above the base. Large steps end far below it. In the table, new mode is the share of problems
# whose most probable answer has changed; gains have 95 % intervals over seeds and problems.*
#
# **Small steps** raise Pass@64 in five of five seeds, and further in 27 batches. They change the mode of {=new_mode["GRPO, small steps"]:.0%} of the problems, often to the right answer: $M$ rises from {=M:.2f}
# to {=M_of["GRPO, small steps"]:.2f}.
#
# **Large steps are a failed run, not a crossing.** Pass@1 ends at {=pass_1["GRPO, large steps"]:.2f}, where small steps reach
# {=pass_1["GRPO, small steps"]:.2f} in as many batches. Pass@64 falls from {=pass_64["base"]:.3f} to {=pass_64["GRPO, large steps"]:.3f}, in
# five of five seeds. So a Pass@64 below the base's can come from the learning rate alone, on one task and one tiny model.

# %% [markdown]
# ## Exercises
#
# **1. Maj@k by counting.** `answers` is a list of integers and None (no vote). A tie is broken by a fair draw; if nobody votes, the
# majority is wrong.


# %% [exercise]
def majority_by_counting(answers, right, k):
    """The probability that the most frequent of k answers is right, over all k-subsets."""
    return ...


# %% [check]
check("11.1", own_code(majority_by_counting))

# %% [hint]
# In each subset count the votes and list all answers with the largest count. What is the subset worth if the right answer is one of m
# winners?


# %% [solution]
def majority_by_counting(answers, right, k):
    total, subsets = 0.0, list(combinations(answers, k))
    for subset in subsets:
        votes = Counter(answer for answer in subset if answer is not None)
        winners = [answer for answer in votes if votes[answer] == max(votes.values())]
        total += (right in winners) / max(1, len(winners))
    return total / len(subsets)


# %% [markdown]
# **2. Build a crossing.** Two policies, four problems: give each policy four probabilities of success, so that A is
# ahead in Pass@1 and B is ahead in Pass@64.

# %% [exercise]
crossing = ...  # [[?, ?, ?, ?], [?, ?, ?, ?]]: p of the four problems under A, then under B


# %% [check]
check("11.2", leads(crossing))

# %% [hint]
# With one problem it cannot be done. At K = 64, only problems that are hardly ever solved still make a difference.

# %% [solution]
crossing = [[1, 1, 1, 0], [0.2, 0.2, 0.2, 0.2]]

# %% [markdown]
# **3. Sharpening that helps where the mode is wrong.** Build one problem: the probabilities of all its answers, the right one first. The
# most probable answer must be wrong, yet sharpening with β = 2 must raise Pass@1 *and* Maj@3.

# %% [exercise]
# [probability of the right answer, of a wrong one, of another, ...]: any number, sum 1
problem = ...

# %% [check]
check("11.3", rises(problem))

# %% [hint]
# See the derivative: the right answer has to be more probable than the (geometric) mean of the answers. Which answers can lose what the
# right answer gains?

# %% [solution]
problem = [0.30, 0.31] + 39 * [0.01]

# At β = 2 the right answer has .09 / .19 = .47: the 39 lose more than the mode gains. Maj@3
# rises from .33 to .47. In the limit both fall to 0, but that is far away.

# %% [markdown]
# Many rare wrong answers lose more to sharpening than one wrong mode gains.
#
# ## To remember
#
# - Sharpening the answers keeps $M$. Where $M$ changes, more took place (or whole completions were sharpened).
# - Maj@K and Pass@K reach $M$ only in limits. Before that, sharpening can raise both.
# - A Pass@K below the base's can come from a failed run: look at its Pass@1.
#
# ## For a second reading (5 minutes): estimators, and what a crossing shows
#
# **The estimators.** Any K of $n$ independent answers are K independent answers. So the share of *all* K-subsets that succeed is an unbiased estimate. For
# Pass@K, with $c$ right answers, that share is $1 - \binom{n-c}{K}/\binom nK$ (Chen et al., [2107.03374](https://arxiv.org/abs/2107.03374), Eq. 1). Maj@K depends
# on how often each answer was given, not only on $c$.

# %% [fold]
rng = random.Random(0)
for _ in range(40):  # both estimators against a list of all subsets
    votes = [rng.choice([7, 7, 8, 8, 9, None]) for _ in range(7)]
    for K in range(1, 8):
        share = np.mean([7 in subset for subset in combinations(votes, K)])
        assert abs(pass_at_k(7, votes.count(7), K) - share) < 1e-12
        assert abs(majority_at_k(votes, 7, K) - all_subsets(votes, 7, K)) < 1e-12

n, K, p = 64, 16, 0.05
c, chance = np.arange(n + 1), identity.binomial(p, n)  # right answers, and their probability
truth = 1 - (1 - p) ** K
unbiased = chance @ [pass_at_k(n, int(right), K) for right in c]
plug_in = chance @ (1 - (1 - c / n) ** K)
assert abs(unbiased - truth) < 1e-12 and plug_in < truth

rates = sampled.correct.mean(axis=1)  # (64,): each problem's solve rate
half = 1.96 * np.sqrt(rates.mean() * (1 - rates.mean()) / sampled.correct.size)
low, high = paired.interval_over_both(rates[None])  # bootstrap: problems drawn anew
wider = (high - low) / (2 * half)
assert wider > 3

# %% [text]
# Putting the estimate $c/n$ into $1 - q^K$ is biased: where $p$ = {=p}, Pass@{=K} is {=truth:.3f}, and with {=n} answers this plug-in
# gives {=plug_in:.3f} on average.
#
# {=n} answers to each of 64 problems are not 4,096 independent draws: answers to one problem share its difficulty. Resampling the
# *problems* gives Pass@1 the interval [{=low:.2f}, {=high:.2f}], {=wider:.0f} times as wide as for independent draws.
#
# **What a crossing shows.** Yue et al. ([2504.13837](https://arxiv.org/abs/2504.13837)) find for many models that the trained model leads at K = 1 and its base at
# tens or hundreds of answers. On *some problems*, then, the trained model gives the right answer less probability. A crossing alone shows
# no more: at K = 1024 even random guessing (dotted above) is far better than the cooled base and the large steps.

# %% [markdown]
# Sources: DeepSeekMath, [2402.03300](https://arxiv.org/abs/2402.03300), section 5.2.2, Fig. 7; Chen et al. 2021, Eq. 1. The proofs and the four-token experiment
# (`python lessons/experiments/short_answers.py`) are ours.
