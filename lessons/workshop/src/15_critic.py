# %% [markdown] 35 minutes
# # 15 · PPO's critic
#
# REINFORCE gives every token of a completion the same advantage. PPO (proximal policy optimization) trains a second network, the
# **critic**, which reads the completion so far and predicts its final reward. Each token can then be judged by how it changed the prediction.
# Generalized advantage estimation (GAE) does this with one parameter, λ, from 0 to 1.
#
# > **With λ = 1 the critic is only a baseline: a token's advantage is what the completion earned, minus the critic's value. A smaller λ
# > replaces what was earned with what the critic guesses, and that pays once the critic guesses well.**
#
# A small example: a completion has ten tokens, each right with probability .6, and passes if at least seven are right. The critic
# sees how many were right so far. It predicts the share of its training completions that passed from there. Move the number of training
# completions: which λ gives the best estimate of the gradient?

# %% [fold]
import random
from os.path import commonprefix

import numpy as np
import torch

from algorithms import ppo
from lessons.experiments.estimators import collect
from lessons.experiments.grid import signed
from lessons.workshop.kit import check, knob, show, trains
from lessons.workshop.parts.lesson_15 import (
    credit,
    errors_by_lambda,
    right_steps,
    slip_of,
    values_along,
)
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

y = torch.cartesian_prod(*[torch.arange(2)] * 10)  # (1024, 10): all completions; 1 is a right token
pi = torch.tensor([0.4, 0.6], dtype=torch.float64)[y].prod(dim=1)  # (1024,)
passes = (y.sum(dim=1, keepdim=True) >= 7).double()  # (1024, 1)
state = y.cumsum(dim=1) - y + 11 * torch.arange(10)  # place, and right tokens so far
scores = y.double() - 0.6  # of each token, by its own logit
truth = pi @ (passes * scores)  # the gradient of the success probability, (10,)

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
    return ((mean - truth).norm() / truth.norm()).item(), variance

LAMBDAS, generator = np.linspace(0, 1, 21), torch.Generator().manual_seed(0)
trained = {0: [predicted(0 * pi)]}
for n in (32, 128, 512, 2048, 8192):
    draws = [torch.multinomial(pi, n, True, generator=generator) for _ in range(20)]
    trained[n] = [predicted(drawn.bincount(minlength=1024).double()) for drawn in draws]
errors = {}  # (2, 21): the squared error of the mean and of 256 completions' noise
for n, critics in trained.items():
    parts = [[off_and_variance(V, gae_lambda) for gae_lambda in LAMBDAS] for V in critics]
    off, variance = np.array(parts).transpose(2, 0, 1)  # (critics, 21) each
    errors[n] = np.array([(off**2).mean(axis=0) * (truth @ truth).item(),
                          variance.mean(axis=0) / 256])
unit = errors[0][:, -1].sum()  # λ = 1 without a critic: REINFORCE
errors = {n: parts / unit for n, parts in errors.items()}
best = {n: LAMBDAS[parts.sum(axis=0).argmin()] for n, parts in errors.items()}
assert [*best.values()] == sorted(best.values(), reverse=True) and (best[0], best[8192]) == (1, 0)

true_V, p = predicted(pi), (pi @ passes).item()
known = {(name, gae_lambda): off_and_variance(V, gae_lambda)
         for name, V in (("true", true_V), ("p", 0 * true_V + p)) for gae_lambda in (0.0, 1.0)}
exact = [off < 1e-12 for off, _ in known.values()]
assert exact == [True, True, False, True]  # only λ = 0 with p everywhere is wrong
assert torch.allclose(advantages(passes, true_V, 1.0), passes - true_V)

def draw(training_completions):
    return errors_by_lambda(LAMBDAS, errors, training_completions)

knob(draw, training_completions=[32, 0, 128, 512, 2048, 8192])

# %% [text]
# *Squared error of the gradient estimate from 256 completions; 1 is that of REINFORCE (λ = 1, no critic). Dashed: the part that comes from a
# wrong mean, the **bias**. Grey: other numbers of training completions.*
#
# The best λ is 1 for an untrained critic, which predicts 0 everywhere, {=best[32]:.2f} after 32 training completions, and {=best[8192]:.0f} after 8,192, where the error is
# {=100 * errors[8192].sum(axis=0).min():.0f} % of REINFORCE's.
#
# | symbol | meaning |
# |---|---|
# | $y_t,\ \lvert y\rvert$ | token $t$ of a completion; its number of tokens, the end-of-sequence token included |
# | $R$ | the reward of the completion: 1 if it is right, 0 if it is wrong |
# | $r_t$ | the reward of token $t$ |
# | $V_t$ | the critic's **value** before token $t$: its prediction of $r_t + r_{t+1} + \dots$ |
# | $\delta_t$ | the **one-step error** (TD error): how much better things look after token $t$ than before |
# | $A_t$ | the **advantage** of token $t$, by which the gradient of its log-probability is multiplied |
# | $\gamma,\ \lambda$ | the discount, 1 here and in `ppo.py`; GAE's parameter, `gae_lambda` |
#
# ## GAE
#
# The verifier's reward comes with the last token: $r_t = R$ there, and 0 before.
#
# $$\delta_t = r_t + V_{t+1} - V_t, \qquad V_{|y|+1} = 0, \qquad
# A_t = \delta_t + \lambda\,\delta_{t+1} + \lambda^2\,\delta_{t+2} + \dots$$
#
# If $\lambda = 0$, $A_t = \delta_t$. If $\lambda = 1$, every value after $V_t$ enters once with plus and once with minus, which leaves
#
# $$A_t = (r_t + r_{t+1} + \dots + r_{|y|}) - V_t \qquad \text{∎}$$
#
# Here $V_t$ depends on the tokens before $t$ and multiplies the score of $y_t$ alone, so by [lesson 1](01_score_function.ipynb) it leaves
# the mean gradient unchanged, **however bad the critic**. For $\lambda < 1$ the later values remain, and in general the mean gradient is
# right only if these values are.
#
# In the example above, the true values at λ = 0 give the right mean and {=known["true", 1.0][1] / known["true", 0.0][1]:.0f} times less variance than
# at λ = 1. A critic that predicts the success probability $p$ everywhere has the right mean at λ = 1, but at λ = 0 it is off by
# {=100 * known["p", 0.0][0]:.0f} %: every token but the last gets no gradient. The default of `ppo.py` is λ = 0.95: with 20 tokens,
# the last one-step error counts .95¹⁹ = 38 % at the first token.
#
# ## PPO's own critic
#
# The critic is a copy of the policy's transformer with a new head, trained on the squared error against $A_t + V_t$. We take eight of PPO's
# steps (2,048 completions) with the script's functions and settings, but without warm-up, KL and policy updates.

# %% [fold]
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

# %% [text]
# Now we turn to held-out problems. Take a right and a wrong completion, just before the end-of-sequence token, when the answer is already
# written. Does the critic value the right one more? A coin would be right in half of the pairs, the verifier in all. *In what share of pairs from
# the same problem will this critic be right? Guess, then open the output (click the … under the cell).*
#
# In the last row both completions write their steps, or neither does. It says little about judging reasoning: in nearly all of its pairs
# neither writes steps, and to judge a bare answer the critic would have to work the problem out in one pass, at which the policy mostly
# fails.


# %% [fold] guess
problems = arithmetic.held_out_problems(16)  # 64 problems
prompts, generator = [problem.prompt for problem in problems], torch.Generator().manual_seed(1)
held_out = sample(policy, tokenizer, prompts, 32, 56, 1.0, generator)  # 2,048 completions
R = torch.tensor([reward(problems[i // 32], text) for i, text in enumerate(held_out.texts)])
with torch.no_grad():
    V = in_passes(critic, held_out, config.max_tokens_per_pass)  # (2048, T)
last = held_out.mask.sum(dim=1, keepdim=True) - 1
worked = torch.tensor([is_worked(text) for text in held_out.texts])  # are steps written out?
problem = torch.arange(2048) // 32
pairs = (R.view(-1, 1) == 1) & (R == 0)
same = pairs & (problem.view(-1, 1) == problem)
alike = same & (worked.view(-1, 1) == worked)
rows = [("before the first token, all pairs", 0 * last, pairs),
        ("before the last token, all pairs", last, pairs),
        ("before the last token, same problem", last, same),
        ("same problem, and both write steps or neither", last, alike)]
for what, at, chosen in rows:
    higher = V.gather(1, at) > V.gather(1, at).T
    print(f"{what:46} {higher[chosen].double().mean():.0%} of {chosen.sum():6} pairs")
no_steps, all_pairs = (alike & ~worked).sum(), alike.sum()
won, n = (x.view(64, -1).sum(dim=1) for x in (higher & alike, alike))  # last row, by problem
generator = torch.Generator().manual_seed(0)
redrawn = torch.randint(64, (2000, 64), generator=generator)  # problems, resampled 2,000 times
shares = won[redrawn].sum(dim=1) / n[redrawn].sum(dim=1)
low, high = shares.quantile(torch.tensor([0.025, 0.975])).tolist()

# %% [text]
# The critic knows how hard the problem is and whether the steps are written out. Beyond that it can hardly tell which completion is right
# (last row: 95 % interval {=100 * low:.0f} to {=100 * high:.0f} %, from resampling the problems; in {=no_steps:,} of its {=all_pairs:,} pairs neither writes steps).
#
# What should it have predicted? The **true value** of a prefix is the probability that the policy completes it correctly, estimated from 64
# continuations. Here are four completions of `10-6+48?`.

# %% [fold]
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
show(values_along(held_out.texts, shown, V, truth, R))
right = [right_steps(problem) for problem in problems]
wrong = [i for i in range(2048) if worked[i] and R[i] == 0]
mistake = {i: len(commonprefix([held_out.texts[i], right[i // 32]])) for i in wrong}
assert mistake[shown["steps, wrong"]] == truth[shown["steps, wrong"]].diff().argmin()
at_mistake = {0.0: [], 0.95: [], 1.0: []}  # advantages, by lambda
for gae_lambda, found in at_mistake.items():
    for i, t in mistake.items():
        A = advantages(R[i].view(1, 1), V[i : i + 1, : last[i] + 1], gae_lambda)
        found.append(A[0, t])
blame = {gae_lambda: signed(torch.stack(A).median().item(), 2)
         for gae_lambda, A in at_mistake.items()}

# %% [text]
# *$V_t$ is drawn between the tokens $t-1$ and $t$; the block marks the end of the completion. Shaded: the token at which the true value
# falls most.*
#
# **The critic does not see the mistake.** Of the 2,048 held-out completions only {=len(wrong)} write wrong steps; call the first token that departs from the
# right steps the mistake. There the critic's value changes by {=blame[0.0]} (median), and never falls by more than
# {=-min(at_mistake[0.0]).item():.2f}. The true value falls steeply at the mistake and nowhere else.
#
# **The critic sees the form.** Its value moves most after the first token, which shows whether steps follow:
#
# | completions | mean value after the first token | right |
# |---|---|---|
# | with steps | {=V[worked, 1].mean():.2f} | {=R[worked].mean():.2f} |
# | without | {=V[~worked, 1].mean():.2f} | {=R[~worked].mean():.2f} |
#
# **What we cannot say.** This is one small critic after 2,048 training completions, few of which contain a written mistake. A larger
# critic, or one that is trained longer, may see more. But every critic must learn the value at each token from a
# reward at the last. That is one of DeepSeekMath's reasons for dropping it ([2402.03300](https://arxiv.org/abs/2402.03300), section 4.1).
#
# Move λ. Above are the advantages from the critic, below those from the true values.


# %% [fold]
def draw(completion, gae_lambda):
    i = shown[completion]
    sources = {"the trained critic": V[i, : last[i] + 1], "the true values": truth[i]}
    A = {name: advantages(R[i].view(1, 1), values.view(1, -1), gae_lambda)[0]
         for name, values in sources.items()}
    title = f"{completion}, λ = {gae_lambda:.2f}"
    return credit(held_out.texts[i], A, slip_of(truth[i], R[i]), title)


choices = ["steps, wrong", "steps, right", "no steps, wrong", "no steps, right"]
knob(draw, completion=choices, gae_lambda=(0.0, 1.0, 0.05, 0.95))

# %% [text]
# *With the true values λ = 0 blames the mistake, and credits the first token, which chose to write the steps.* With this critic (λ = 0: the critic alone):
#
# | λ | 0 | 0.95 | 1 |
# |---|---|---|---|
# | the mistaken token's advantage, median of {=len(wrong)} | {=blame[0.0]} | {=blame[0.95]} | {=blame[1.0]} |
#
# **The blame comes from the reward alone: this critic does not find the mistake, at any λ.** λ = 1 gives all tokens about the same blame; with 0.95 it fades towards the start.
#
# ## Exercises
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
# *A completion has 16 tokens, each right with probability .9 at first, and passes if all are right. λ = .7; advantages are whitened (see
# the end). λ = 0 misses the mistakes, because this critic sees them late; λ = 1 adds the noise of later tokens. "Earlier errors" runs the
# recursion from the left: a token is judged by what came before it. "λ on the next value" puts λ into the one-step error as well; then the
# later values cancel, and λ only discounts the reward.*

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


# %% [text]
# ## To remember
#
# - With γ = λ = 1 the advantage is what was earned minus $V_t$. The critic is a baseline: however bad it is, the mean gradient (before
#   whitening) stays right.
# - A smaller λ replaces what was earned with what the critic guesses: usually less variance, and a mean gradient as good as the guess.
# - For 0 < λ < 1 an optimistic critic favours long completions (exercise 2): the first tokens of a short one lose more.
# - Predicting rewards well is not the same as seeing where they were lost.
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
