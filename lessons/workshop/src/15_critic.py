# %% [markdown] 40 minutes, without the second reading
# # 15 · PPO's critic
#
# REINFORCE gives every token of a completion the same advantage. PPO (proximal policy optimization) trains a second network, the
# **critic**, which reads the completion so far and predicts its final reward. A token can be judged by how it changed this.
# λ, the parameter of generalized advantage estimation (GAE), says whose judgement counts: at λ = 0 the critic's, at λ = 1 the reward's.
#
# > **With λ = 1 the critic is only a baseline: however bad it is, the mean of a completion's gradient stays right, if it was not trained on
# > that completion's reward; a smaller λ trusts the critic's judgement of single tokens.**
# >
# > After 320 optimizer steps of one run our critic valued right completions above wrong ones in 90 % of pairs, but in 55 ± 5 % (a coin: 50) where problem
# > and form were the same; it blamed none of 83 mistakes by more than .07 (λ = 0).
#
# Here is a completion of `48+38-28?` with the mistake `48+38=96`. The **true value** of a prefix is the share of 64 continuations that end right.

# %% [fold]
import random
from os.path import commonprefix

import numpy as np
import torch

from algorithms import ppo
from lessons.experiments.estimators import collect
from lessons.experiments.harness.grid import markdown, signed
from lessons.workshop.companions.lesson_15 import (
    blame,
    error,
    errors_by_lambda,
    right_steps,
    slip_of,
)
from lessons.workshop.notebook import check, knob, say, show, trains
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
generator, rng, written = torch.Generator().manual_seed(0), random.Random(0), 0
problems = arithmetic.held_out_problems(64)  # 256 problems
prompts, once = [problem.prompt for problem in problems], torch.Generator().manual_seed(1)
held_out = sample(policy, tokenizer, prompts, 32, 56, 1.0, once)  # 8,192 completions
V_after = []  # values, (8192, T), at 32 and at 320 steps
for _ in range(10):  # 1,024 completions at once, in 8 batches
    sampled, R = collect(policy, tokenizer, arithmetic, 128, 8, rng, generator)
    written += sum(map(is_worked, np.array(sampled.texts)[R.ravel() == 0]))  # and are wrong
    for rows in torch.arange(1024).split(128):
        rollout = sampled[rows]
        rollout.values = in_passes(critic, rollout).detach()
        _, rollout.returns = ppo.compute_advantages(
            rewards=torch.from_numpy(R.ravel()[rows]).float().view(-1, 8), values=rollout.values,
            mask=rollout.mask, old_logps=rollout.old_logps, ref_logps=None, config=config)
        for part in rollout.minibatches(config.epochs, config.num_minibatches, generator):
            values = in_passes(critic, part)
            loss = ppo.value_loss(values=values, old_values=part.values, returns=part.returns,
                                  mask=part.mask, config=config)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(critic.parameters(), config.max_grad_norm)
            optimizer.step()
    if not V_after:
        V_after.append(in_passes(critic, held_out).detach())

V_after.append(in_passes(critic, held_out).detach())
V = V_after[1]
R = torch.tensor([reward(problems[i // 32], text) for i, text in enumerate(held_out.texts)])
last = held_out.mask.sum(dim=1, keepdim=True) - 1
worked = torch.tensor([is_worked(text) for text in held_out.texts])  # are steps written out?

first = 32 * [problem.expression for problem in problems].index("48+38-28")
kinds = {(bool(worked[i]), int(R[i])): i for i in range(first, first + 32)}
shown = {"right, with steps": kinds[True, 1], "wrong, with steps": kinds[True, 0],
         "right, without": kinds[False, 1], "wrong, without": kinds[False, 0]}
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
    A = {f"λ = {x:g}": [advantages(R[i].view(1, 1), each.view(1, -1), x)[0]
                        for each in values.values()] for x in (0.0, gae_lambda)}
    return blame(held_out.texts[i], values, A, slip_of(truth[i], R[i]), completion)


choices = ["wrong, with steps", "right, with steps", "wrong, without", "right, without"]
knob(draw, completion=choices, gae_lambda=(0.05, 1.0, 0.05, 1.0))

# %% [text]
# *Above: the value before each token. Below: its advantage, by which an update pushes it up or down. (∎: the end.) See first the
# shaded mistake: the true value falls there from 1 to 0, the critic's does not. Then move λ in the last panel, and choose another completion.*
#
# At λ = 0 only the true values blame the mistake; the critic blames the last token, where the reward arrives. At λ = 1 the critic blames nearly all tokens alike.
#
# ## GAE by hand
#
# Take a wrong completion of three tokens, with the values .5, .9 and .1 before them: the second token was the mistake. The **one-step
# error** (TD error) of a token is the value after it minus the value before it; for the last token, the reward minus the value. This makes +.4, −.8
# and −.1. GAE adds to each error the later ones, faded by λ for each step:
#
# | λ | token 1 | token 2 | token 3 |
# |---|---|---|---|
# | 0 | +.4 | −.8 | −.1 |
# | .5 | .4 − .4 − .025 = −.025 | −.8 − .05 = −.85 | −.1 |
# | 1 | .4 − .8 − .1 = −.5 | −.8 − .1 = −.9 | −.1 |
#
# The last row is the reward minus the values. Let $r_t$ be the reward of token $t$: $R$, 1 or 0, for the last of the $|y|$ tokens, 0 before. $V_t$
# is the value before it, $\delta_t$ its one-step error, $A_t$ its advantage (and the discount $\gamma$ is 1, as in `ppo.py`):
#
# $$\delta_t = r_t + V_{t+1} - V_t, \qquad V_{|y|+1} = 0, \qquad
# A_t = \delta_t + \lambda\,\delta_{t+1} + \lambda^2\,\delta_{t+2} + \dots$$
#
# If $\lambda = 1$, every value after $V_t$ enters once with plus and once with minus, which leaves
#
# $$A_t = (r_t + r_{t+1} + \dots + r_{|y|}) - V_t = R - V_t \qquad \text{∎}$$
#
# Given the tokens before $t$, the score of token $t$ has mean 0 ([lesson 1](01_score_function.ipynb), second reading).
# $V_t$ multiplies this score and is fixed by then. So it drops out, **however bad the critic**, if it was not trained on these very rewards. For
# $\lambda < 1$ values *after* the token remain; they depend on the token, so the mean is in general right only if they are.
#
# **1. Write GAE** for one completion. Below the check it trains a policy, with a critic that sees each mistake one token late.


# %% [exercise]
def gae(rewards, values, gae_lambda):
    """From numpy arrays (|y|,) twice and a number: advantages (|y|,)."""
    return ...


# %% [check]
check("15.1", gae)
trains("15.1", gae)

# %% [markdown]
# *A completion has 16 tokens, each right with probability .9 at first, and passes if all are right. See first "right" (λ = .7).
# λ = 0 misses the mistakes, which this critic sees one token late; λ = 1 adds the noise of later tokens.*

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
# ## When does a smaller λ pay?
#
# When the critic guesses well. Here we can count it out: a completion has ten tokens, each right with probability .6, and passes if at least seven are right. The critic
# sees how many were right so far, and predicts the share of its training completions that passed from there.

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
for n in (32, 512, 8192):
    draws = [torch.multinomial(pi, n, True, generator=generator) for _ in range(20)]
    trained[n] = [predicted(drawn.bincount(minlength=1024).double()) for drawn in draws]
errors, bias = {}, {}  # (21,): the squared error with 256 completions; its part from the mean
for n, critics in trained.items():
    parts = [[off_and_variance(V, gae_lambda) for gae_lambda in LAMBDAS] for V in critics]
    off, variance = np.array(parts).transpose(2, 0, 1)  # (critics, 21) each
    bias[n] = (off**2).mean(axis=0) * (target @ target).item()
    errors[n] = bias[n] + variance.mean(axis=0) / 256
unit = errors[0][-1]  # λ = 1 without a critic: REINFORCE
errors = {n: error / unit for n, error in errors.items()}
best = [LAMBDAS[error.argmin()] for error in errors.values()]
assert best == sorted(best, reverse=True) and best[0] == 1 and best[-1] < 0.1
assert max(one[-1] for one in bias.values()) < 1e-24  # λ = 1: a right mean with every critic
names = "none", "32", "512", "8,192"
show(errors_by_lambda(LAMBDAS, dict(zip(names, errors.values()))))

# %% [text]
# *A line for each critic, by the completions that it was trained on; the dot is its best λ. See first that the dot moves left as the critic learns.
# The gradient is averaged over 256 completions. Over more, noise shrinks and bias does not: the dots move right.*
#
# At λ = 1 the error is noise alone. At λ = 0 the critic of 32 completions has {=100 * bias[32][0] / (errors[32][0] * unit):.0f} % of its squared error from **bias**: its mean is wrong.
#
# ## What does our critic see?
#
# This critic was told what to look at. PPO's has to find it. Ours is a copy of the policy's transformer with a new head, trained on the squared error against
# $A_t + V_t$, the policy fixed: 32 optimizer steps, then 288 more.
#
# Take a right and a wrong completion of *one* held-out problem that both write steps or both do not, with only the end-of-sequence token to come. *In what
# share of such pairs does the critic of 320 steps value the right one more? Guess, then open the output (…).*


# %% [fold] guess
problem = torch.arange(8192) // 32
pairs = (R.view(-1, 1) == 1) & (R == 0)
same = pairs & (problem.view(-1, 1) == problem)
alike = same & (worked.view(-1, 1) == worked)

def judged(V, chosen):
    higher = V.gather(1, last) > V.gather(1, last).T
    won, n = (x.view(256, -1).sum(dim=1) for x in (higher & chosen, chosen))
    return f"{100 * won.sum() / n.sum():.0f} ± {100 * error(won, n):.0f} %"

asked = {"any two problems": pairs, "one problem": same,
         "one problem, both write steps or neither": alike}
rows = [["a coin", *["50 %"] * 3]]
rows += [[f"{n} steps", *(judged(V, chosen) for chosen in asked.values())]
         for n, V in zip((32, 320), V_after)]
say(markdown(["right one valued more, of two from", *asked], rows))
with_steps = judged(V, alike & worked)
assert rows[2][1][:2] == "90" and rows[2][3] == "55 ± 5 %"  # the box

# Mistakes: where wrong steps depart from the right ones
right = [right_steps(problem) for problem in problems]
wrong = [i for i in range(8192) if worked[i] and R[i] == 0]
mistake = {i: len(commonprefix([held_out.texts[i], right[i // 32]])) for i in wrong}
slip = shown["wrong, with steps"]
assert mistake[slip] == truth[slip].diff().argmin()
assert config.num_minibatches * config.epochs * 8 == 32  # optimizer steps for each 1,024
at_mistake = {0.0: [], 0.95: [], 1.0: []}  # advantages, by lambda
for gae_lambda, found in at_mistake.items():
    for i, t in mistake.items():
        A = advantages(R[i].view(1, 1), V[i : i + 1, : last[i] + 1], gae_lambda)
        found.append(A[0, t])
assert (len(wrong), written) == (83, 77) and min(at_mistake[0.0]) >= -0.07  # the box
medians = {gae_lambda: signed(round(torch.stack(A).median().item(), 2) + 0, 2)
           for gae_lambda, A in at_mistake.items()}

# |A| at λ = 1 in groups of 8: from the critic, and from the problem's other 24 completions
k, n = R.view(256, 4, 8).sum(dim=2), held_out.mask.sum(dim=1)
others = (k.sum(dim=1, keepdim=True) - k).unsqueeze(2) / 24
by_critic = (((R.view(-1, 1) - V).abs() * held_out.mask).sum(dim=1) / n).view(256, 4, 8)
by_problem, silent = (R.view(256, 4, 8) - others).abs(), (k == 0) | (k == 8)
(calm, loud), (quiet, busy) = ((A[silent].mean().item(), A[~silent].mean().item())
                               for A in (by_critic, by_problem))
assert quiet < calm < loud < busy and 3 * quiet < busy

# %% [text]
# *256 held-out problems, 32 completions each; ±: 95 %, over problems.*
#
# **The critic sees the form**: whether steps are written out. After the first token it says {=V[worked, 1].mean():.2f} with steps and
# {=V[~worked, 1].mean():.2f} without; the shares that are right are {=R[worked].mean():.2f} and {=R[~worked].mean():.2f}. Where the form is the same, it does hardly better than a coin, after
# ten times the steps, too; both writing steps: {=with_steps}.
#
# ## Does it see the mistakes?
#
# Wrong steps are few: {=len(wrong)} of the held-out completions have one, and {=written} of those that the critic was trained on.
# Call the first token that departs from the right steps the mistake.
#
# **2. Who blames the mistake?** From the values before the tokens of one completion, the mistake's place (never the last) and the
# reward, give the mistake's advantage at λ = 0 and at λ = 1.


# %% [exercise]
def at_the_mistake(values, mistake, R):
    """(A at λ = 0, A at λ = 1), from a numpy array (n,), an integer and 0 or 1."""
    return ...


# %% [check]
check("15.2", at_the_mistake)

# %% [hint]
# λ = 0: how did this token change the prediction? λ = 1: see ∎ above.


# %% [solution]
def at_the_mistake(values, mistake, R):
    return values[mistake + 1] - values[mistake], R - values[mistake]


# Only the second contains the reward: with a high value and R = 0 it is blame for certain.
# The first is blame only if the critic's value falls.

# %% [text]
# On our critic, by the script's GAE:
#
# | λ | 0 | .95 | 1 |
# |---|---|---|---|
# | median of {=len(wrong)} mistakes | {=medians[0.0].strip('+')} | {=medians[0.95]} | {=medians[1.0]} |
#
# **Nearly all the blame comes from the reward.** At λ = 0 the critic never blames a mistake by more than {=np.ceil(-100 * min(at_mistake[0.0]).item()) / 100:.2f}.
# (Would it with more training? Write `range(40)` in the first folded cell, four times as long and about a minute, and look at the last column of the
# pairs' table and at λ = 0.)
#
# So before you lower λ, draw your critic's values along wrong completions.
#
# ## To remember
#
# - At λ = 1 the advantage is the reward minus $V_t$: the critic is a baseline, and the mean gradient stays right.
# - A smaller λ puts the critic's guesses in place of the reward: usually less noise, and a mean as good as the guesses.
# - Predicting rewards well is not seeing where they were lost.
#
# ## For a second reading (10 minutes): what `ppo.py` does besides
#
# **A KL in the reward.** With the weight $\beta$ and a token's log-probability $\ell_t$ under the policy that sampled it (*old*)
# and under the initial one (*ref*),
#
# $$r_t = \mathbb 1[t = |y|]\,R \;-\; \beta\,\big(\ell^{old}_t - \ell^{ref}_t\big)$$
#
# The second term is k1, an estimate of the Kullback–Leibler (KL) divergence: PPO puts it into the reward, GRPO into the loss ([lesson 4](04_kl.ipynb)).
#
# **Whitening.** A batch's advantages are shifted and scaled to mean 0 and variance 1 over its tokens. In a large batch shift and scale are
# nearly constant, so the direction of the mean hardly changes.
#
# **A critic silences softly.** Where GRPO falls silent, in a group of 8 that is all right or all wrong, a baseline that knows the problem's
# difficulty leaves a mean $|A|$ of {=quiet:.2f}, against {=busy:.2f} in mixed groups. This critic leaves {=calm:.2f} and {=loud:.2f}: it still pushes there.
#
# **With or without a critic?** A critic must learn each token's value from a reward that comes last: one of DeepSeekMath's reasons to drop it
# ([2402.03300](https://arxiv.org/abs/2402.03300), section 4.1). VAPO ([2504.05118](https://arxiv.org/abs/2504.05118)), with a critic and several changes to PPO, reports more than ten points above DAPO on AIME 2024.
#
# Sources: GAE: [1506.02438](https://arxiv.org/abs/1506.02438). PPO for language models: [2203.02155](https://arxiv.org/abs/2203.02155); the
# KL in the reward of each token: DeepSeekMath, Eq. 2.
