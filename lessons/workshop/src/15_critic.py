# %% [markdown] 34 minutes
# # 15 · PPO's critic
#
# REINFORCE gives every token of a completion the same advantage. PPO (proximal policy optimization) trains a second network, the
# **critic**, which reads the completion so far and predicts its final reward. A token can then be judged by how it changed the prediction.
# How far that judgement counts is set by λ, the parameter of generalized advantage estimation (GAE).
#
# > **With λ = 1 the critic is only a baseline: before whitening, the mean of a completion's gradient stays right however bad the critic is. A smaller λ
# > trusts the critic's judgement of single tokens.**
# >
# > In our runs: a critic that was trained briefly, on 2,048 completions, judged the form of a completion. At none of the 16 mistakes that we looked
# > at did it see the mistake.
#
# So look at what a critic judges before you lower λ: draw its values along some wrong completions. Here is one of `10-6+48?`, which the
# model of arithmetic begins with the mistake `10-6=14`. The **true value** of a prefix is the share of 64 continuations that end right. Move λ,
# then choose another completion.

# %% [fold]
import random
from os.path import commonprefix

import numpy as np
import torch

from algorithms import ppo
from lessons.experiments.estimators import collect
from lessons.experiments.grid import markdown, signed
from lessons.workshop.kit import check, knob, say, trains
from lessons.workshop.parts.lesson_15 import blame, errors_by_lambda, right_steps, slip_of
from toy_env import arithmetic
from toy_env.arithmetic import is_worked, reward
from toy_env.model import load_policy
from toy_env.rollout import in_passes, sample

policy, tokenizer = load_policy("base")


def advantages(rewards, values, gae_lambda):
    """The script's advantages (B, T) before whitening, without KL, for completions of T
    tokens with rewards (B, 1)."""
    config = ppo.Config(gae_lambda=gae_lambda, kl_coef=0.0)
    batch = {"rewards": rewards, "values": values, "mask": torch.ones_like(values).bool()}
    _, returns = ppo.compute_advantages(**batch, old_logps=None, ref_logps=None, config=config)
    return returns - values


torch.manual_seed(0)
critic = ppo.Critic(policy)
config = ppo.Config(kl_coef=0.0)  # the policy is its own reference: no KL yet
optimizer = torch.optim.AdamW(critic.parameters(), lr=config.critic_learning_rate,
                              weight_decay=0.0)
generator, rng = torch.Generator().manual_seed(0), random.Random(0)
for _ in range(8):
    rollout, R = collect(policy, tokenizer, arithmetic, 32, 8, rng, generator)
    rollout.values = in_passes(critic, rollout, config.max_tokens_per_pass).detach()
    white, rollout.returns = ppo.compute_advantages(  # (256, T) both
        rewards=torch.from_numpy(R).float(), values=rollout.values, mask=rollout.mask,
        old_logps=rollout.old_logps, ref_logps=None, config=config)
    for part in rollout.minibatches(config.epochs, config.num_minibatches, generator):
        values = in_passes(critic, part, config.max_tokens_per_pass)
        loss = ppo.value_loss(values=values, old_values=part.values, returns=part.returns,
                              mask=part.mask, config=config)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(critic.parameters(), config.max_grad_norm)
        optimizer.step()
# The share of tokens of the last batch whose advantage changes its sign
turned = ((rollout.returns - rollout.values) * white < 0).sum() / rollout.mask.sum()

problems = arithmetic.held_out_problems(16)  # 64 problems
prompts, generator = [problem.prompt for problem in problems], torch.Generator().manual_seed(1)
held_out = sample(policy, tokenizer, prompts, 32, 56, 1.0, generator)  # 2,048 completions
R = torch.tensor([reward(problems[i // 32], text) for i, text in enumerate(held_out.texts)])
with torch.no_grad():
    V = in_passes(critic, held_out, config.max_tokens_per_pass)  # (2048, T)
last = held_out.mask.sum(dim=1, keepdim=True) - 1
worked = torch.tensor([is_worked(text) for text in held_out.texts])  # are steps written out?

first = 32 * [problem.expression for problem in problems].index("10-6+48")
kinds = {(bool(worked[i]), int(R[i])): i for i in range(first, first + 32)}
shown = {"steps, right": kinds[True, 1], "steps, wrong": kinds[True, 0],
         "no steps, right": kinds[False, 1], "no steps, wrong": kinds[False, 0]}
# True values: the share of right ones among 64 continuations of each prefix
task, generator = problems[first // 32], torch.Generator().manual_seed(2)
prefixes = {i: [held_out.texts[i][:t] for t in range(last[i] + 1)] for i in shown.values()}
distinct = sorted(set(sum(prefixes.values(), [])))
prompts = [task.prompt + text for text in distinct]
ends = sample(policy, tokenizer, prompts, 64, 56, 1.0, generator).texts
passed = torch.tensor([reward(task, distinct[j // 64] + end) for j, end in enumerate(ends)])
value = dict(zip(distinct, passed.view(-1, 64).mean(dim=1)))
truth = {i: torch.stack([value[text] for text in prefixes[i]]) for i in shown.values()}


def draw(completion, gae_lambda):
    i = shown[completion]
    values = {"the critic": V[i, : last[i] + 1], "the true values": truth[i]}
    A = {name: advantages(R[i].view(1, 1), each.view(1, -1), gae_lambda)[0]
         for name, each in values.items()}
    title = f"{completion}, λ = {gae_lambda:.2f}"
    return blame(held_out.texts[i], values, A, slip_of(truth[i], R[i]), title)


choices = ["steps, wrong", "steps, right", "no steps, wrong", "no steps, right"]
knob(draw, completion=choices, gae_lambda=(0.0, 1.0, 0.05, 0.0))

# %% [markdown]
# *Above: the value before each token. Below: each token's advantage. (∎: end of the completion.) See first the shaded token, the mistake: the
# true value falls there from .9 to 0, and the critic's does not.*
#
# At λ = 0 both value functions credit the first token, which chose to write the steps. But only the true values blame the mistake. The critic blames the last
# token, where the reward arrives. At λ = 1 it blames nearly all tokens alike.
#
# ## GAE by hand
#
# A completion of three tokens is wrong. The values before its tokens are .5, .9 and .1: the second token was the mistake. The **one-step
# error** (TD error) of a token is the value after it minus the value before it; for the last token it is the reward, 0, minus the value. This
# makes +.4, −.8 and −.1. GAE adds to each error those after it, faded by λ for each step:
#
# | λ | token 1 | token 2 | token 3 |
# |---|---|---|---|
# | 0 | +.4 | −.8 | −.1 |
# | .5 | .4 − .4 − .025 = −.025 | −.8 − .05 = −.85 | −.1 |
# | 1 | .4 − .8 − .1 = −.5 | −.8 − .1 = −.9 | −.1 |
#
# The last row is the reward minus the values. So it is in general. The symbols:
#
# | symbol | meaning |
# |---|---|
# | $y_t,\ \lvert y\rvert$ | token $t$ of a completion; its number of tokens, the end-of-sequence token included |
# | $R,\ r_t$ | the completion's reward, 1 or 0; that of token $t$: $R$ for the last token, 0 before |
# | $V_t,\ \delta_t,\ A_t$ | the value before token $t$; its one-step error; its advantage |
# | $\gamma,\ \lambda$ | the discount, 1 here and in `ppo.py`; GAE's parameter, `gae_lambda` |
#
# $$\delta_t = r_t + V_{t+1} - V_t, \qquad V_{|y|+1} = 0, \qquad
# A_t = \delta_t + \lambda\,\delta_{t+1} + \lambda^2\,\delta_{t+2} + \dots$$
#
# If $\lambda = 1$, every value after $V_t$ enters once with plus and once with minus, which leaves
#
# $$A_t = (r_t + r_{t+1} + \dots + r_{|y|}) - V_t = R - V_t \qquad \text{∎}$$
#
# Here $V_t$ depends on the tokens before $t$ and multiplies the score of $y_t$ alone. So by [lesson 1](01_score_function.ipynb) it leaves
# the mean gradient unchanged, **however bad the critic**. (Before whitening, see the end, and up to a division by the batch's tokens, which bends it as in
# [lesson 5](05_length.ipynb): little in large batches.) For $\lambda < 1$ later values remain, and in general
# the mean gradient is right only if those values are right.
#
# **1. Write GAE** for one completion, with γ = 1. (`numpy` arrays of length |y|.) Your function then trains a policy, with a critic that
# sees each mistake one token late.


# %% [exercise]
def gae(rewards, values, gae_lambda):
    """Advantages (|y|,), not whitened."""
    return ...


# %% [check]
check("15.1", gae)
trains("15.1", gae)

# %% [markdown]
# *A completion has 16 tokens, each right with probability .9 at first, and passes if all are right; advantages whitened. See first that λ = .7 (right)
# learns faster than 0 and 1: this is what GAE is for. λ = 0 misses the mistakes, because this critic sees them late. λ = 1 adds the noise of
# later tokens. "Earlier errors" runs the recursion from the left. "λ on the next value" has λ before $V_{t+1}$, too, as if it were a discount.*

# %% [hint]
# Write $A_t$ in terms of $A_{t+1}$. At which end do you begin, and with what value?


# %% [solution]
def gae(rewards, values, gae_lambda):
    advantages, next_value, next_advantage = 0 * values, 0.0, 0.0
    for t in reversed(range(len(rewards))):
        advantages[t] = rewards[t] + next_value - values[t] + gae_lambda * next_advantage
        next_value, next_advantage = values[t], advantages[t]
    return advantages


# %% [markdown]
# **2. An optimistic critic.** Every $V_t$ of a completion of n tokens is too high by c. By how much does this change its n advantages?
# Try λ = 1 and λ = 0 first.


# %% [exercise]
def shift(c, n, gae_lambda):
    """The change of A_1 ... A_n, (n,)."""
    return ...


# %% [check]
check("15.2", shift)

# %% [hint]
# Which one-step errors change? Only one: elsewhere c is added and subtracted.


# %% [solution]
def shift(c, n, gae_lambda):
    # only δ of the last token falls by c: no value follows it. λ fades this to the start
    return -c * gae_lambda ** np.arange(n - 1, -1, -1.0)


# λ = 1: every advantage falls by c, as with a baseline.


# %% [markdown]
# ## When does a smaller λ pay?
#
# When the critic guesses well. A small example: a completion has ten tokens, each right with probability .6, and passes if at least seven are right.
# The critic sees how many were right so far, and predicts the share of its training completions that passed from there. Move their number.

# %% [fold]
y = torch.cartesian_prod(*[torch.arange(2)] * 10)  # (1024, 10): all completions; 1 is a right token
pi = torch.tensor([0.4, 0.6], dtype=torch.float64)[y].prod(dim=1)  # (1024,)
passes = (y.sum(dim=1, keepdim=True) >= 7).double()  # (1024, 1)
state = y.cumsum(dim=1) - y + 11 * torch.arange(10)  # place, and right tokens so far
scores = y.double() - 0.6  # of each token, by its own logit
target = pi @ (passes * scores)  # the gradient of the success probability, (10,)

def predicted(weights):
    """(1024, 10): the share that passed of the weighted completions in each state, or 0."""
    visits, passed = (torch.zeros(110).double().index_add(0, state.flatten(), w.flatten())
                      for w in (weights.expand(10, -1).T, (weights * passes.T).expand(10, -1).T))
    return (passed / visits.clamp(min=1e-12))[state]

def off_and_variance(V, gae_lambda):
    """How far the mean estimate is off, over the gradient's length; and the variance."""
    gradients = advantages(passes, V, gae_lambda) * scores
    mean = pi @ gradients
    variance = (pi @ (gradients - mean).square()).sum().item()
    return ((mean - target).norm() / target.norm()).item(), variance

LAMBDAS, generator = np.linspace(0, 1, 21), torch.Generator().manual_seed(0)
trained = {0: [predicted(0 * pi)]}
for n in (32, 128, 512, 2048, 8192):
    draws = [torch.multinomial(pi, n, True, generator=generator) for _ in range(20)]
    trained[n] = [predicted(drawn.bincount(minlength=1024).double()) for drawn in draws]
errors = {}  # (2, 21): the squared error of the mean and of 256 completions' noise
for n, critics in trained.items():
    parts = [[off_and_variance(V, gae_lambda) for gae_lambda in LAMBDAS] for V in critics]
    off, variance = np.array(parts).transpose(2, 0, 1)  # (critics, 21) each
    errors[n] = np.array([(off**2).mean(axis=0) * (target @ target).item(),
                          variance.mean(axis=0) / 256])
unit = errors[0][:, -1].sum()  # λ = 1 without a critic: REINFORCE
errors = {n: parts / unit for n, parts in errors.items()}
best = {n: LAMBDAS[parts.sum(axis=0).argmin()] for n, parts in errors.items()}
assert [*best.values()] == sorted(best.values(), reverse=True) and (best[0], best[8192]) == (1, 0)

def draw(training_completions):
    return errors_by_lambda(LAMBDAS, errors, training_completions)

knob(draw, training_completions=[32, 0, 128, 512, 2048, 8192])

# %% [text]
# *See first how the best λ moves to the left as the critic learns: from 1 for an untrained one to 0 after 8,192 completions. Drawn is the
# squared error of the gradient from 256 completions; that of REINFORCE (λ = 1, no critic) is 1. Dashed: the part from a wrong mean, the **bias**.*
#
# ## What does our critic see?
#
# It is a copy of the policy's transformer with a new head, trained on the squared error against $A_t + V_t$: eight of PPO's steps, with the
# script's functions and settings, but without warm-up, KL and policy updates.
#
# Take a right and a wrong completion of one held-out problem, just before the end-of-sequence token, when the answer is already written. *In what share
# of such pairs does the critic value the right one more? (A coin: half. The verifier: all.) Guess, then open the output (click the … under the cell).*


# %% [fold] guess
problem = torch.arange(2048) // 32
pairs = (R.view(-1, 1) == 1) & (R == 0)
same = pairs & (problem.view(-1, 1) == problem)
alike = same & (worked.view(-1, 1) == worked)
rows = []
for what, chosen in (("any two problems", pairs), ("one problem", same),
                     ("one problem, both write steps or neither", alike)):
    higher = V.gather(1, last) > V.gather(1, last).T
    rows.append([what, f"{100 * higher[chosen].double().mean():.0f} %", f"{chosen.sum():,}"])
no_steps, all_pairs = (alike & ~worked).sum(), alike.sum()
won, n = (x.view(64, -1).sum(dim=1) for x in (higher & alike, alike))  # last row, by problem
generator = torch.Generator().manual_seed(0)
redrawn = torch.randint(64, (2000, 64), generator=generator)  # problems, resampled 2,000 times
shares = won[redrawn].sum(dim=1) / n[redrawn].sum(dim=1)
low, high = shares.quantile(torch.tensor([0.025, 0.975])).tolist()
say(markdown(["pairs from", "right one valued more", "pairs"], rows))

# %% [fold]
right = [right_steps(problem) for problem in problems]
wrong = [i for i in range(2048) if worked[i] and R[i] == 0]
mistake = {i: len(commonprefix([held_out.texts[i], right[i // 32]])) for i in wrong}
assert mistake[shown["steps, wrong"]] == truth[shown["steps, wrong"]].diff().argmin()
at_mistake = {0.0: [], 0.95: [], 1.0: []}  # advantages, by lambda
for gae_lambda, found in at_mistake.items():
    for i, t in mistake.items():
        A = advantages(R[i].view(1, 1), V[i : i + 1, : last[i] + 1], gae_lambda)
        found.append(A[0, t])
assert len(wrong) == 16  # the box says so
medians = {gae_lambda: signed(torch.stack(A).median().item(), 2)
           for gae_lambda, A in at_mistake.items()}

# %% [text]
# **The critic sees the form**: whether steps are written out. Between completions of one form it can hardly tell which is right (last row: {=100 * low:.0f} to
# {=100 * high:.0f} %, 95 % interval, problems resampled). Its mean value after the first token, which shows the form, is {=V[worked, 1].mean():.2f} with steps and
# {=V[~worked, 1].mean():.2f} without; the shares that are right are {=R[worked].mean():.2f} and {=R[~worked].mean():.2f}. (In {=no_steps:,} of the {=all_pairs:,} pairs of the last row neither writes steps. To
# judge a bare answer the critic would have to work the problem out in one pass, at which the policy mostly fails.)
#
# Now the mistakes: {=len(wrong)} of the 2,048 completions write wrong steps. Call the first token that departs from the right steps the mistake. Its
# advantage, by our critic:
#
# | λ | 0 | 0.95 (`ppo.py`) | 1 |
# |---|---|---|---|
# | median of {=len(wrong)} mistakes | {=medians[0.0]} | {=medians[0.95]} | {=medians[1.0]} |
#
# **The blame comes from the reward alone: this critic does not find the mistake, at any λ.** At λ = 0, where the critic judges alone, it never
# blames a mistake by more than {=np.ceil(-100 * min(at_mistake[0.0]).item()) / 100:.2f}.
#
# This is one small critic. Few of its 2,048 training completions contain a written mistake; a larger one, or one trained longer, may see more.
# But every critic must learn the value of each token from a reward at the last: one of DeepSeekMath's reasons for dropping it
# ([2402.03300](https://arxiv.org/abs/2402.03300), section 4.1).
#
# ## To remember
#
# - With γ = λ = 1 the advantage is the reward minus $V_t$: the critic is a baseline, and the mean gradient (before whitening) stays right.
# - A smaller λ puts the critic's guesses in place of the reward: usually less variance, and a mean gradient as good as the guesses.
# - For 0 < λ < 1 an optimistic critic favours long completions: the first tokens of a short one lose more (exercise 2).
# - Predicting rewards well is not seeing where they were lost.
#
# ## For a second reading (10 minutes): what `ppo.py` does besides
#
# **A KL in the reward.** With the weight $\beta$ (`kl_coef`) and a token's log-probability $\ell_t$ under the policy that sampled it (*old*)
# and under the initial policy (*ref*),
#
# $$r_t = \mathbb 1[t = |y|]\,R \;-\; \beta\,\big(\ell^{old}_t - \ell^{ref}_t\big)$$
#
# The second term charges every token that has become likelier. It is k1, an estimate of the Kullback–Leibler (KL) divergence: PPO puts the KL into the
# reward, GRPO into the loss ([lesson 4](04_kl.ipynb)).
#
# **Whitening.** The advantages of a batch are shifted and scaled to mean 0 and variance 1 over its tokens. The shift turns
# signs: {=100 * turned:.0f} % of the tokens of our last batch are pushed in the opposite direction.
#
# **A clipped critic.** A value that has moved towards its target by more than .2 since the batch was sampled has no gradient.

# %% [markdown]
# **3. The KL in the reward.** Completions have two tokens; `pi`, `ref` and `R` hold, for each pair of tokens, its probability under the
# policy (which has just sampled it), its probability under the reference policy, and its reward. What is the true value before the first
# token, $V_1$?


# %% [exercise]
def first_value(pi, ref, R, beta):
    """From numpy arrays (n, n), (n, n), (n, n) and a number: a number."""
    return ...


# %% [check]
check("15.3", first_value)

# %% [hint]
# $r_1 + r_2$ of one completion: the sum of the log-ratios of its tokens is the log-ratio of the whole completion. Then the mean.


# %% [solution]
def first_value(pi, ref, R, beta):
    # the success probability minus beta KL(pi || ref)
    return (pi * (R - beta * np.log(pi / ref))).sum()


# %% [fold]
# |A| at λ = 1 in groups of 8: from the critic, and from the problem's other 24 completions
k, n = R.view(64, 4, 8).sum(dim=2), held_out.mask.sum(dim=1)
others = (k.sum(dim=1, keepdim=True) - k).unsqueeze(2) / 24
by_critic = (((R.view(-1, 1) - V).abs() * held_out.mask).sum(dim=1) / n).view(64, 4, 8)
by_problem, silent = (R.view(64, 4, 8) - others).abs(), (k == 0) | (k == 8)
(calm, loud), (quiet, busy) = ((A[silent].mean().item(), A[~silent].mean().item())
                               for A in (by_critic, by_problem))
assert 2 * quiet < calm < loud and 3 * quiet < busy

# %% [text]
# **A critic silences softly.** Where GRPO falls silent, in a group of 8 that is all right or all wrong, a baseline that knows the problem's
# difficulty leaves a mean $|A|$ of {=quiet:.2f}, against {=busy:.2f} in mixed groups. This critic leaves {=calm:.2f} and {=loud:.2f}: it still pushes there.
#
# **With or without a critic?** It is a second network to store, run and train. [Lesson 3](03_group_baseline.ipynb) replaces it by the mean of a
# group. VAPO ([2504.05118](https://arxiv.org/abs/2504.05118)), a recipe with a critic and several changes to PPO, reports more than ten points above DAPO on AIME 2024.
#
# Sources: GAE: [1506.02438](https://arxiv.org/abs/1506.02438). PPO for language models: [2203.02155](https://arxiv.org/abs/2203.02155); the
# KL in the reward of each token: DeepSeekMath, Eq. 2.
