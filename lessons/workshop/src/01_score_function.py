# %% [markdown] 40 minutes, without the second reading
# # 1 · Score function and baseline
#
# A language model should become right more often, but the verifier that says so cannot be differentiated. REINFORCE (Williams 1992)
# nevertheless estimates a gradient, by sampling. It may subtract a number $b$, the **baseline**, from every reward $R$.
#
# > **A baseline that does not depend on the completion changes how noisy the gradient estimate is, but not its mean; with the usual one,
# > the mean reward, the estimate can be far noisier than without any.**
# >
# > On a sum that a small model gets right in 93 % of its answers, the mean reward made the mean square of the estimate from one completion
# > 8.6 times as large as without a baseline (512 completions; 95 % interval 3 to 18).
#
# Start with exercise 2 of [lesson 0](00_loop.ipynb), a model with one logit and two completions, of which the right one has probability
# $p = .9$. The **score** $s$ of a completion is the derivative of its log-probability with respect to the logit. One sampled completion gives
# the estimate $(R - b)\,s$ of the derivative of $p$:
#
# | completion | probability | score $s$ | estimate with $b = 0$ | estimate with $b = .9$, the mean reward |
# |---|---|---|---|---|
# | right, $R = 1$ | .9 | .1 | .1 | .01 |
# | wrong, $R = 0$ | .1 | −.9 | 0 | .81 |
# | **mean** | | 0 | **.09** | **.09** |
# | **mean square** | | | **.0090** | **.0657** |
#
# Both means are the derivative of $p$. The variance, lesson 0's noise, is the mean square minus $.09^2$ for every $b$: .0009 and .0576. So
# mean squares order the baselines. With the mean reward the mean square is seven times as large (the variance 64 times): the wrong
# completion is rare and has the long score, and without a baseline it contributes nothing.
#
# Can that happen in a language model? We ask our **base model**, a small transformer trained on worked sums. It answers `2+10+2?` with `#14`,
# or first works it out, `2+10=12;12+2=14;#14`.

# %% [fold]
import numpy as np
import torch

from algorithms import reinforce
from lessons.experiments.estimators import Completions
from lessons.workshop.companions.lesson_00 import COMPLETIONS, EOS, LIMIT, PREFIXES, text_of
from lessons.workshop.companions.lesson_01 import cloud, mean_squares
from lessons.workshop.notebook import check, knob, show, show_source, trains
from toy_env import arithmetic
from toy_env.arithmetic import Problem
from toy_env.model import load_policy

base, tokenizer = load_policy("base")
generator = torch.Generator().manual_seed(0)

def mean_square(b, chance, R, squared):
    """E[(R - b)² |s|²], from each completion's probability, reward and |s|²."""
    return (chance @ ((R - b) ** 2 * squared)).item()

def best(chance, R, squared):
    """The b with the smallest mean square, E[R |s|²] / E[|s|²]: see step 4."""
    return (chance @ (R * squared) / (chance @ squared)).item()

def usual_over_none(chance, R, squared):  # the mean square with b = p over that with b = 0
    return mean_square(R.mean(), chance, R, squared) / mean_square(0, chance, R, squared)

measured, long = {}, {}  # each prompt's sample; mean |s|² of wrong completions over right ones
for problem in (Problem("35+14", 49, 1), Problem("2+10+2", 14, 2), Problem("19+28-25", 22, 2)):
    pool = Completions.draw(base, tokenizer, arithmetic, problem, 512, generator)
    squared = np.diag(pool.inner)[pool.drawn]  # |s|², equal for equal texts
    rewards = pool.right[pool.drawn].astype(float)
    measured[problem.prompt] = np.full(512, 1 / 512), rewards, squared
    long[problem.prompt] = squared[rewards == 0].mean() / squared[rewards == 1].mean()

share = {prompt: rewards.mean() for prompt, (_, rewards, _) in measured.items()}
usual = {prompt: usual_over_none(*case) for prompt, case in measured.items()}
smallest = np.array([0.9, 0.1]), np.array([1, 0]), np.array([0.1, -0.9]) ** 2
values = np.array([mean_square(0, *smallest), mean_square(0.9, *smallest)])
assert np.allclose([*values, *(values - 0.09**2)], [0.009, 0.0657, 0.0009, 0.0576])
assert np.isclose(best(*smallest), 0.1)
assert all((usual[x] > 1) == (long[x] > (2 - p) / (1 - p)) for x, p in share.items())
assert round(usual["35+14?"], 1) == 8.6  # as the claim says
chance, R, squared = measured["35+14?"]
again = np.random.default_rng(0).integers(512, size=(2000, 512))  # a bootstrap of the claim
ratios = [usual_over_none(chance, R[i], squared[i]) for i in again]
assert np.allclose(np.quantile(ratios, [0.025, 0.975]), [3, 18], atol=0.5)
assert 0.4 < squared.max() / sum(squared[R == 0]) < 0.6  # half, of 38
rows = "\n".join(f"| `{x}` | {p:.3f} | {long[x]:.3g} | {(2 - p) / (1 - p):.1f} | "
                 f"{best(*measured[x]):.2f} |" for x, p in share.items())
show(mean_squares(measured, mean_square, best))

# %% [text]
# *The mean square of the estimate, for every baseline $b$, over that without one; logarithmic scale. Yellow: the
# usual choice $b = p$, the share of right completions, {=share["35+14?"]:.0%} for the first prompt. Its wrong completions have long scores:
# they contain an improbable token, and the score of a token shrinks as its probability goes to 1.*
#
# Why does the mean not change, and which baseline is the best?
#
# | symbol | meaning |
# |---|---|
# | $\pi(y)$ | the **policy**: the model's probability of the completion $y$, with the parameters $\theta$ |
# | $\mathbb E$ | the mean over completions drawn from the policy: $\mathbb E[f] = \sum_y \pi(y) f(y)$ |
# | $s(y)$ | the score $\nabla_\theta \log \pi(y)$: the direction in which $y$ becomes more probable, one entry per parameter |
#
# ## The theorem, in four steps
#
# **Step 1.** The derivative of a logarithm gives $\nabla \pi(y) = \pi(y)\, \nabla \log \pi(y)$. So
#
# $$\nabla p = \sum_y R(y)\, \nabla \pi(y) = \sum_y \pi(y)\, R(y)\, s(y) = \mathbb E[R\, s]$$
#
# The last form can be *sampled*: draw completions and average $R\,s$. The reward is never differentiated.
#
# **Step 2.** Probabilities sum to 1 whatever the parameters are, so the mean score is zero:
#
# $$\mathbb E[s] = \sum_y \pi(y)\, \nabla \log \pi(y) = \nabla \sum_y \pi(y) = \nabla 1 = 0$$
#
# (The table's third column: $.9 \cdot .1 - .1 \cdot .9 = 0$.)
#
# **Step 3.** Therefore, for every number $b$,
#
# $$\mathbb E[(R - b)\, s] = \mathbb E[R\, s] - b\, \mathbb E[s] = \nabla p$$
#
# If $b$ depends on the completion, it cannot be taken out of $\mathbb E$. (The mean over a few completions does, a little:
# [lesson 3](03_group_baseline.ipynb). Here $b = p$ is exact.)
#
# So the mean leaves us free to choose $b$, and the noise decides.
#
# **Step 4.** The mean square of the estimate is a parabola in $b$ that opens upwards:
#
# $$N(b) = \mathbb E\big[(R-b)^2\, \|s\|^2\big] \qquad \text{with the lowest point} \qquad b^* = \frac{\mathbb E[R\,\|s\|^2]}{\mathbb E[\|s\|^2]}$$
#
# where its derivative, $-2\,\mathbb E[(R-b)\|s\|^2]$, is 0. ∎
#
# **The best baseline is a mean reward in which completions with long scores weigh more.** In the table it is $.009 / (.009 + .081) = .1$.
# A parabola is symmetric about its lowest point, so a baseline is less noisy than none exactly between 0 and $2b^*$. There $b = .9$ is far
# outside.
#
# ## A policy with fifteen completions
#
# We check our script on [lesson 0](00_loop.ipynb)'s policy, with 21 random logits. (The full
# stop is the end-of-sequence token, EOS.)

# %% [fold]
completions = sorted(COMPLETIONS)
texts = [text_of(y) for y in completions]
R = torch.tensor([float(text.endswith("2.")) for text in texts]).double()  # (15,)
generator = torch.Generator().manual_seed(10)
theta = torch.randn(7, 3, dtype=torch.float64, generator=generator).requires_grad_()

next_token = {prefix: theta[i].softmax(dim=0) for i, prefix in enumerate(PREFIXES)}
factors = [[next_token[y[:t]][token] for t, token in enumerate(y)] for y in completions]
every_pi = torch.stack([torch.stack(probabilities).prod() for probabilities in factors])
pi = every_pi.detach()
p = every_pi @ R
grad_p = torch.autograd.grad(p, theta, retain_graph=True)[0].flatten()  # (21,)
for i in pi.argsort(descending=True)[:6]:
    print(f"{texts[i]:4} {'right' if R[i] else 'wrong'}   probability {pi[i]:.3f}")
print(f"... {len(completions)} completions, together {pi.sum():.3f}, p = {p:.3f}")
show_source(reinforce.policy_loss)

# %% [markdown]
# In this loss the `advantages` are $R - b$, and "grad J" is $\nabla p$. We average its negative gradient over the 15 completions, with their
# probabilities, and compare with $\nabla p$ from the definition of $p$:

# %% [fold]
ids = torch.tensor([[*y, *[EOS] * (LIMIT - len(y))] for y in completions])  # (15, 3), padded
mask = torch.arange(LIMIT) < torch.tensor([[len(y)] for y in completions])  # (15, 3), with EOS
before = [[y[: min(t, len(y) - 1)] for t in range(LIMIT)] for y in completions]
prefix_ids = torch.tensor([[PREFIXES.index(prefix) for prefix in row] for row in before])
logps = theta.log_softmax(dim=1)[prefix_ids, ids]  # (15, 3)
config = reinforce.Config(max_new_tokens=LIMIT)

def estimates(advantages):
    """(15, 21): each completion's estimate of the gradient. advantages: (15, 1) or (15, 3)."""
    rows = [{"logps": logps[[i]], "advantages": advantages[[i]], "mask": mask[[i]]}
            for i in range(15)]
    losses = [LIMIT * reinforce.policy_loss(**row, config=config) for row in rows]
    gradients = [torch.autograd.grad(-loss, theta, retain_graph=True)[0] for loss in losses]
    return torch.stack(gradients).flatten(1)

s = estimates(torch.ones(15, 1))  # the scores
b_t = torch.rand(7, generator=generator)[prefix_ids]  # one per prefix
A = R.unsqueeze(1)  # without a baseline
named = {f"b = {b}": A - b for b in (-1.0, 0.0, 0.25, 1.0, 10.0)}
named["b = R"] = A - A  # depends on the completion: its own reward
named |= {"b_t, at token t": A - b_t, "b_2, at all tokens": A - b_t[:, [1]]}
error = {name: (pi @ estimates(A) - grad_p).abs().max() for name, A in named.items()}
for name, size in list(error.items())[:6]:  # the others: at the end
    print(f"{name:9}   mean estimate = ∇p, within 1e-12: {size < 1e-12}")
assert [size < 1e-12 for size in error.values()] == [True] * 5 + [False, True, False]

# %% [markdown]
# Last line: $b = R$ depends on the completion, and no gradient is left.
#
# Now the mean square. Move $b$. Each dot is a completion: its area is the probability, its position its
# estimate, along $\nabla p$ and, across it, where they spread most. The cross is their mean.

# %% [fold]
squared = s.square().sum(dim=1)
knob(
    lambda b: cloud(b, pi, R, s, grad_p, mean_square(b, pi, R, squared)),
    b=(-0.25, 1.25, 0.05, 0.35),
)

# %% [text]
# *Whatever the baseline, the cross stays in place; only the cloud around it grows or shrinks.* Here the mean reward is quieter than no
# baseline ({=mean_square(p.item(), pi, R, squared):.2f} against {=mean_square(0, pi, R, squared):.2f}), on the first prompt it was far noisier. What decides?
#
# ## Exercises
#
# **1. When is $b = p$ noisier than no baseline?** For a prompt with success probability $p$, let the mean $\|s\|^2$ of the wrong
# completions be $w$ times that of the right ones. Write down $b^*$, then: above what $w$ is $b = p$ noisier than $b = 0$?


# %% [exercise]
def worse_than_none_above(p):
    """The w above which N(p) > N(0)."""
    return ...


# %% [check]
check("1.1", worse_than_none_above)

# %% [hint]
# Take $\|s\|^2 = 1$ for right completions and $w$ for wrong ones. When does $p$ lie above $2b^*$?


# %% [solution]
def worse_than_none_above(p):
    # the best baseline is p / (p + (1 - p) w); p is above twice that if p + (1 - p) w > 2
    return (2 - p) / (1 - p)


# %% [text]
# <details><summary>After the exercise</summary>
#
# Your formula explains the first picture:
#
# | prompt | $p$ | $w$, measured | $b = p$ is noisier than none above $w$ = | best $b$ |
# |---|---|---|---|---|
# {=rows}
#
# (512 completions each; on the third prompt too close to call. On the first, one wrong completion of 38 makes up half of $w$.)
#
# </details>
#
# The mean reward is nevertheless usual: it needs no scores, and it cancels any constant added to all rewards. What it does to
# training: [lesson 19](19_which_baseline.ipynb), where, in short runs of one update a batch, the bare reward ended highest.
#
# **2. Find the bug.** Many tokenizers have no padding token, so the EOS is used for it. The mask `ids != pad` then also leaves out the
# EOS that ended the completion, and the EOS's score is missing from the update: several public trainers have had this bug. Repair the **mask**:
# true up to and *including* the first EOS; everything later is padding, whatever its id. Below the check, REINFORCE trains a policy with
# your mask on lesson 0's task.


# %% [exercise]
def completion_mask(ids, eos):
    """ids (B, T). Returns (B, T): True on the tokens of the completion."""
    return ids != eos  # <- runs, and is wrong


# %% [check]
check("1.2", completion_mask)
trains("1.2", completion_mask)

# %% [markdown]
# *One run with each mask, 5,000 completions an update; the policy has one distribution for each place. Why does the bug's curve stay at ⅓?*

# %% [hint]
# `(ids == eos).cumsum(dim=1)` counts the EOS tokens up to and including a position. A token belongs to the completion if there is no EOS
# *before* it.


# %% [solution]
def completion_mask(ids, eos):
    is_eos = (ids == eos).long()
    return is_eos.cumsum(dim=1) - is_eos == 0


# %% [markdown]
# <details><summary>After the exercise</summary>
#
# Right are `2.`, `12.` and `22.`, and with the bug (the baseline is 0) only their digits are pushed up. At place 2 that is the `2` of `12.` and `22.`, and the
# softmax lowers the full stop: stopping is trained *down*. At place 3 a right completion has only the full stop, which is masked, so
# nothing there is ever pushed. The policy comes to write `22` and then one of three tokens at random: right one time in three.
#
# </details>

# %% [markdown]
# ## To remember
#
# - The mean score is zero, so $\mathbb E[(R-b)\,s] = \nabla p$ for every $b$ that does not depend on the completion.
# - The mean square of the estimate is a parabola in $b$. Its lowest point is a mean reward in which long scores weigh more, so in general
#   it is not $p$.
# - A mask without the EOS breaks the theorem, because a part of the score need not have mean 0.
#
# ## For a second reading (5 minutes)
#
# **Token by token.** Given the earlier tokens $y_{<t}$, the probabilities of $y_t$ also sum to 1, so step 2 holds for the score of one
# token, $s_t = \nabla\log\pi(y_t \mid y_{<t})$. A baseline $b_t$ may therefore depend on $y_{<t}$ if it is subtracted *at its own token*:
#
# $$\mathbb E\Big[\sum_t (R - b_t)\, s_t\Big] = \nabla p$$
#
# But subtract $b_2$, which depends on $y_1$, at *all* tokens: then the push on $y_1$ is multiplied by a number that depends on $y_1$ itself,
# and step 3 fails. Both, with random $b_t$, on the fifteen completions:

# %% [fold]
for name in ("b_t, at token t", "b_2, at all tokens"):
    print(f"{name:18}   mean estimate = ∇p, within 1e-12: {error[name] < 1e-12}")

# %% [markdown]
# **Which baseline is optimal?** Weaver and Tao (2001) found the average reward optimal, in a special limit; in general it is not
# (Greensmith, Bartlett and Baxter 2004). Where $\|s\|^2$ is proportional to the number of tokens, $b^*$ is the mean reward with weights
# proportional to length: the baseline of OPO ([2505.23585](https://arxiv.org/abs/2505.23585)).
#
# Sources: Williams 1992 (*Machine Learning* 8, REINFORCE with a baseline); Weaver and Tao:
# [1301.2315](https://arxiv.org/abs/1301.2315); Greensmith et al.: *JMLR* 5; Dr. GRPO,
# [2503.20783](https://arxiv.org/abs/2503.20783), App. A, Eq. 4–5, for language models. EOS left out of the mask:
# RAGEN's issue 59, Megatron-Bridge's pull request 4660. The small policy and the measurement are ours.
