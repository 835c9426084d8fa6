# %% [markdown] 38 minutes, without the second reading
# # 11 · Maj@K and Pass@K
#
# Reinforcement learning is often said only to **sharpen** a model: what was likely becomes likelier, and nothing new is learnt. We take the
# word strictly: sharpening raises the probability of every *answer* to one power and divides by the sum. (A lower temperature
# sharpens every token instead.) How can one tell, from a model's answers, whether training did more?
#
# > **Sharpening never changes a problem's most probable answer. So where that changed, training did more than sharpen. The share of
# > majority votes that are right proves it only above ½(1 + M), if the most probable answer was right on a share M of the problems.**
# >
# > In each of our five runs of GRPO (64 held-out sums, answers of four tokens) the most probable answer changed on more than half of the
# > problems, not always for the better. In one run the vote passed the bound; clear leaders of the vote changed in all five.
#
# **By hand.** A problem has three answers. To sharpen with the exponent β = 2, square the probabilities and divide by their sum, .38:
#
# | | wrong | right | wrong |
# |---|---|---|---|
# | before | .50 | .30 | .20 |
# | squared | .25 | .09 | .04 |
# | sharpened (rounded) | .66 | .24 | .11 |
#
# Powers keep the order, at every β. So the first answer stays the most probable one, and the right one never wins more than half of the votes.
#
# **In a model.** Below, the answers of our base model, a small transformer trained on worked sums, to `15+16+33?` (right: 64, blue); the same,
# sharpened with β = 4; and those after GRPO (group relative policy optimization).

# %% [fold]
from itertools import product

import numpy as np

from lessons.experiments import short_answers
from lessons.experiments.harness import paired
from lessons.experiments.harness.learning import majority_at_k, pass_and_majority
from lessons.workshop.companions.drawing import bars
from lessons.workshop.companions.lesson_11 import rises, seen_to_change, two_curves
from lessons.workshop.notebook import check, knob, say, show
from toy_env import arithmetic
from toy_env.arithmetic import LEVELS, held_out_problems
from toy_env.evaluation import evaluate
from toy_env.model import load_policy

base, tokenizer = load_policy("base")
problems = held_out_problems(16, LEVELS)  # 64, sixteen of each level
rights = np.array([problem.answer for problem in problems])
exact = short_answers.answer_table(base, tokenizer, problems)  # (problems, 100), of each answer

def among_answers(table):
    return table / table.sum(axis=1, keepdims=True)

def sharpened(table, beta):
    logs = beta * np.log(table)
    return among_answers(np.exp(logs - logs.max(axis=1, keepdims=True)))

def p_right(table):
    return table[np.arange(len(table)), rights]

def majority(table, K, rounds=50):
    """(problems,): the share of simulated votes that the right answer wins; ties in part."""
    no_vote = (1 - table.sum(axis=1, keepdims=True)).clip(0)
    chances, size = np.hstack([table, no_vote]), (rounds, len(table))
    votes = np.random.default_rng(0).multinomial(K, chances, size=size)[..., :-1]
    top = votes.max(axis=2)
    wins = (votes[:, np.arange(len(table)), rights] == top) & (top > 0)
    return (wins / (votes == top[..., None]).sum(axis=2)).mean(axis=0)

def trained(seed):
    run = short_answers.Run("GRPO, small steps", seed)
    return among_answers(short_answers.table_after(run, problems))

runs, answered, one = [trained(seed) for seed in range(5)], among_answers(exact), 23
after = runs[0]
tables = {"before": answered, "sharpened, β = 4": sharpened(answered, 4), "after GRPO": after}
of_one = {name: table[one] for name, table in tables.items()}
modes = [int(table.argmax()) for table in of_one.values()]
assert (problems[one].prompt, problems[one].answer, modes) == ("15+16+33?", 64, [54, 54, 64])
likely = np.flatnonzero(np.max([*of_one.values()], axis=0) > 0.01)
some = {name: table[likely] for name, table in of_one.items()}
show(bars(some, likely, chosen=int((likely == 64).argmax())))

base_mode = exact.argmax(axis=1)
policies = {"base": {"right": p_right(exact)[None], "mode": base_mode[None]}}
policies |= short_answers.load()  # five seeds of each
M = {name: (policy["mode"] == rights).mean() for name, policy in policies.items()}
new = {name: (policy["mode"] != base_mode).mean() for name, policy in policies.items()}
small, longer, large = [*policies][1:]
modes_after = policies[small]["mode"]  # (5, problems)
single = (modes_after != base_mode) & (modes_after > 9) & (base_mode > 9)  # one completion each
assert 0.58 < new[small] < 0.64 and M[small] > 0.5 and round(M["base"], 2) == 0.34  # the claim

# %% [text]
# *Before training the most probable answer, {=modes[0]}, is wrong; sharpening makes it more probable still. Eight batches of GRPO raise the
# right one from {=of_one["before"][64]:.0%} to {=of_one["after GRPO"][64]:.0%}. (Answers above 1 %; one of the five runs.)*
#
# | symbol | meaning |
# |---|---|
# | $\pi(a)$ | the probability that the model's answer to a problem is $a$; the most probable answer is the **mode** |
# | $M$ | the share of problems whose mode is right |
# | **Maj@K** | how often the right answer wins a vote of K answers |
# | **Pass@K** | how often at least one of K answers is right |
#
# Here, where every answer's probability is known, Pass@K is simply $1 - (1-p)^K$. (How to estimate it: second reading.)
#
# **Sharpening keeps the mode of every problem, and with it $M$.** The larger β, the more the mode takes: for $\beta \to \infty$
# Maj@K and Pass@K both tend to $M$ (ties apart). On the way there, more can happen:
#
# **1. Sharpening that helps where the mode is wrong.** In the table by hand sharpening takes the right answer from .30 to .24. It can also do the
# opposite. Build such a problem: the probabilities of all its answers, the right one first. The most probable answer must be
# wrong, yet sharpening with β = 2 must raise Pass@1 *and* Maj@3. (Tied answers share a vote's win.)

# %% [exercise]
# [probability of the right answer, of a wrong one, of another, ...]: any number, sum 1
problem = ...

# %% [check]
check("11.1", rises(problem))

# %% [hint]
# The right answer and the mode may be nearly equal. Which answers can lose what the right answer gains?

# %% [solution]
problem = [0.40, 0.41, 0.19]

# At β = 2 the right answer has .16 / .364 = .44. Maj@3 rises from .41 to .45: the rare wrong
# answer loses more than the wrong mode gains. For large β both fall to 0.

# %% [markdown]
# ## What can a vote prove?
#
# DeepSeekMath finds Maj@K higher after GRPO, and Pass@K not, and reads this as "boosting the
# correct response from TopK rather than the enhancement of fundamental capabilities". Sharpening, too, raises Maj@K: where the mode is right, a
# vote finds it more often. How far can it go?
#
# **The bound.** Suppose the mode is wrong. Take any list of K answers whose vote the right answer wins. Replace in it every right answer by the
# mode, and every mode by the right answer: now the mode wins, and the list is at least as probable. So the right answer wins at most half of
# all votes, at every K and β. Where the mode is right, it wins at most all of them. On
# average over problems, whatever the β,
#
# $$\text{Maj@}K \;\le\; M + \tfrac12 (1-M) = \tfrac12 (1 + M) \qquad ∎$$
#
# It holds for every model, with its own $M$: one whose Maj@K is $v$ has the right mode on at least a share $2v - 1$ of the problems.

# %% [markdown]
# ## The test
#
# Our task is arithmetic in four tokens: `#14` and the end of the completion. The model cannot work anything out, and the probability
# of each answer from 0 to 99 can be computed. (The curves leave out completions without an answer.)
#
# **Guess:** how will the curves of Pass@K and Maj@K over K move if you raise β?

# %% [fold] guess
KS, BETAS = (1, 4, 16, 64), [4, 2, 8, 16]

def curves(table):
    passed = [(1 - (1 - p_right(table)) ** K).mean() for K in KS]
    return passed, [majority(table, K).mean() for K in KS]

M_after = (after.argmax(axis=1) == rights).mean()
M_each = (modes_after == rights).mean(axis=1)
assert ((modes_after != base_mode).mean(axis=1) > 0.5).all()  # as in the box
assert (M_each > 0.5).sum() == 4 and round(M_each.min(), 2) == 0.33
both = {"before": curves(answered), "after GRPO": curves(after)}
by_beta = {beta: curves(sharpened(answered, beta)) for beta in BETAS}

def draw(beta):
    return two_curves(KS, both | {f"sharpened, β = {beta}": by_beta[beta]}, M["base"], M_after)

knob(draw, beta=BETAS)
bound, (passed, _), (passed_after, _) = (1 + M["base"]) / 2, *both.values()
assert max(both["after GRPO"][1]) < bound
assert np.greater(passed_after, passed).all()  # no crossing, but by sharpening:
assert by_beta[4][0][0] > passed[0] and by_beta[4][0][1] < passed[1]
say(f"""*Look at the dotted lines, $M$. Sharpening keeps $M$ at {M["base"]:.2f}: Maj@K stays near it, and
Pass@K falls to it as β grows. GRPO moves $M$ to {M_after:.2f} in this run, and Maj@K goes with it. Maj@K
stays below {bound:.2f}, the bound: here the vote proves nothing. The modes do.*""")

for beta in (*BETAS, 4096):
    table = sharpened(answered, beta)
    assert (table.argmax(axis=1) == base_mode).all()
    assert majority(table, 64).mean() <= bound
assert np.allclose(p_right(table), base_mode == rights, atol=1e-6)  # the limit of both curves
votes_each = np.array([majority(table, 64).mean() for table in runs])
assert ((votes_each > bound + 0.01) == [0, 0, 0, 0, 1]).all()  # as in the box
# The bound, over all lists of five votes, if the second most probable answer is right:
pi, lists = np.array([0.28, 0.3, 0.22, 0.2]), product(range(4), repeat=5)
assert sum(majority_at_k(votes, 0, 5) * pi[list(votes)].prod() for votes in lists) <= 0.5

changed, was_right, is_right = modes_after != base_mode, base_mode == rights, modes_after == rights
by_run = changed.mean(axis=1)
worst = M_each.argmin()
assert worst == by_run.argmax()
won, lost = (is_right & ~was_right)[worst].sum(), (was_right & ~is_right)[worst].sum()

def row(values):
    return " | ".join(f"{value:.2f}" for value in values)

rng = np.random.default_rng(0)

def votes(table):
    """(problems, answers): how often each answer was given, of 64."""
    return rng.multinomial(64, table)

def seen(table):
    return np.mean([seen_to_change(votes(answered), votes(table)) for _ in range(40)])

by_votes = [*map(seen, runs)]
assert (by_votes < by_run / 2).all()  # "less than half"
copies = {f"β={beta}": sharpened(answered, beta) for beta in (1, 2, 4)}
assert not any(map(seen, copies.values()))

# %% [markdown]
# **2. The test, on any model.** Elsewhere modes cannot be computed, but everybody can draw answers: say 64 to each problem before training, and 64
# after it. A leader with $x$ votes over a second with $y$ is *clear* if $x - y > 2\sqrt{x + y}$, two standard errors. On which share of all problems are
# both leaders clear, and different? In `before` and `after` a row is a problem, a number the votes of an answer. Below
# the check, your function judges copies sharpened with β and the five runs.


# %% [exercise]
def modes_changed(before, after):
    """The share, from two arrays (problems, answers)."""
    return ...


# %% [check]
check("11.2", modes_changed)

# %%
compared = copies | {f"{i}": table for i, table in enumerate(runs, 1)}
found = [modes_changed(votes(answered), votes(table)) for table in compared.values()]
if found[0] is not ...:
    exact = [(table.argmax(axis=1) != base_mode).mean() for table in compared.values()]
    figure = bars({"modes changed": exact, "found by your function": found}, [*compared], -1)
    figure.axes[0].set_ylabel("share of problems")
    show(figure)

# %% [hint]
# `np.sort(before, axis=1)` has the two largest numbers of each row at its end, `before.argmax(axis=1)` finds the leaders.


# %% [solution]
def modes_changed(before, after):
    found = before.argmax(axis=1) != after.argmax(axis=1)
    for votes_of in (before, after):
        second, first = np.sort(votes_of, axis=1)[:, -2:].T
        found &= first - second > 2 * np.sqrt(first + second)
    return found.mean()


# %% [text]
# On 64 held-out problems, after eight batches of 32 groups of 8 (learning rate 3e-4, no Kullback–Leibler (KL) penalty; run 1 is that of the
# pictures; [short_answers.json](experiments/short_answers.json)):
#
# | | before | run 1 | 2 | 3 | 4 | 5 |
# |---|---|---|---|---|---|---|
# | modes changed | | {=row(by_run)} |
# | seen to change in votes | | {=row(by_votes)} |
# | the same of sharpened copies, β = 1, 2, 4 | 0, 0, 0 | | | | | |
# | $M$ | {=M["base"]:.2f} | {=row(M_each)} |
# | Maj@64, bound {=bound:.2f} | {=majority(answered, 64).mean():.2f} | {=row(votes_each)} |
#
# Only run 5's vote passes the bound, but in all five the modes show more than sharpening. Votes (means of 40 draws) see less than half of the
# changes, but still {=64 * min(by_votes):.0f} to {=64 * max(by_votes):.0f} problems, and in sharpened copies none. So **if you have votes only, count the problems
# whose clear leaders differ: more than a few per cent is more than sharpening** of the answers. It need not be learning: of the modes that run {=worst + 1} changed, the most of the five, {=won}
# became right, and {=lost} had been right.
#
# (Where a model reasons first, sharpening its *completions* can change the mode of its answers: two completions of .2 together beat one of .3,
# but squared, .08 does not beat .09.)
#
# ## Is reinforcement learning sharpening?
#
# In the strict sense no: not of the answers, on this task. Often a looser sense is meant, that training
# raises what the model already writes. The usual evidence is a crossing: the trained model has the higher Pass@K at K = 1, and its base at tens or
# hundreds of answers (Yue et al., [2504.13837](https://arxiv.org/abs/2504.13837), for many models). Two problems can show one:
#
# | $p$ of the two | Pass@1 | Pass@64 |
# |---|---|---|
# | base: .50 and .01 | .255 | (1 + .474)/2 = .74 |
# | trained: .90 and 0 | **.45** | (1 + 0)/2 = .50 |
#
# On one problem the larger $p$ leads at every K. So a crossing means that on *some* problems the trained model gives the right answer less
# probability, and no more. In the picture sharpening crosses the base like this, GRPO does not.
#
# ## To remember
#
# - Sharpening keeps the order of the answers, so it keeps every mode and $M$. Where a mode has changed, more took place, but not
#   always learning.
# - A rising Maj@K is no evidence of more until it passes $\frac12(1+M)$, with the base's $M$.
#
# ## For a second reading (10 minutes): completions, estimates, a failed run

# %% [fold]
sampled = evaluate(base, tokenizer, problems, samples=64, max_new_tokens=4)
for K in (1, 4, 16, 64):  # estimates from 64 samples against the exact values
    counted, voted = pass_and_majority(sampled, problems, arithmetic, K).values()
    for true, estimate in ((1 - (1 - p_right(exact)) ** K, counted), (majority(exact, K), voted)):
        noise = np.sqrt((true * (1 - true)).sum()) / len(true) / (8 if K == 1 else 1)
        assert abs(np.mean(estimate) - true.mean()) < 4 * noise + 0.01

assert np.allclose([1 - 0.99**64, (2 - 0.99**64) / 2], [0.474, 0.74], atol=0.005)  # two problems
p_of = {name: policy["right"] for name, policy in policies.items()}  # (seeds, problems)
pass_1, pass_64 = ({name: (1 - (1 - p) ** K).mean() for name, p in p_of.items()} for K in (1, 64))
leads = {name: (1 - p_of["base"]) ** 64 - (1 - p) ** 64 for name, p in p_of.items()}
higher = [int((lead.mean(axis=1) > 0).sum()) for lead in leads.values()]
assert higher == [0, 5, 5, 0] and pass_64[large] < pass_64["base"] - 0.2
assert M[large] < M["base"]
ends = {name: paired.interval_over_both(leads[name]) for name in (small, longer)}
assert ends[small][0] < 0 < ends[longer][0]

# %% [text]
# **Did training sharpen the completions?** No. A two-digit answer *is* one completion here, `#64` and the end. The mode changed on {=new[small]:.0%} of the problems (mean of
# five runs). On {=single.mean():.0%} both modes have two digits: there training reversed the order of two completions, which sharpening keeps.
#
# **Estimates of Pass@K.** Of all subsets of K of $n$ answers, of which $c$ are right, a share of $1 - \binom{n-c}{K}/\binom nK$ has a right one (Chen et al.,
# [2107.03374](https://arxiv.org/abs/2107.03374), Eq. 1): unbiased, as in [lesson 8](08_silent_groups.ipynb).
#
# **A failed run.** A Pass@K below the base's can come from the learning rate alone. On the four-token task, in five seeds (a completion without
# an answer counts as wrong, so the base is lower than in the picture):
#
# | | Pass@1 | $M$ | Pass@64 |
# |---|---|---|---|
# | base | {=pass_1["base"]:.2f} | {=M["base"]:.2f} | {=pass_64["base"]:.3f} |
# | 8 batches, 3e-4 | {=pass_1[small]:.2f} | {=M[small]:.2f} | {=pass_64[small]:.3f} |
# | 27 batches, 3e-4 | {=pass_1[longer]:.2f} | {=M[longer]:.2f} | {=pass_64[longer]:.3f} |
# | 8 batches, 1e-3 | {=pass_1[large]:.2f} | {=M[large]:.2f} | {=pass_64[large]:.3f} |
#
# At 3e-4 Pass@64 rises in five of five seeds, at 1e-3 it falls in five of five. (If the choice of problems counts as chance, too, only the
# rise after 27 batches is clear.) So look at Pass@1 before reading Pass@K.
#
# Sources: DeepSeekMath, [2402.03300](https://arxiv.org/abs/2402.03300), section 5.2.2, Fig. 7. The proofs and the
# four-token experiment (`python lessons/experiments/short_answers.py`) are ours.
