# %% [markdown] 40 minutes, without the second reading
# # 2 · PPO: the ratio and the clip
#
# REINFORCE ([lesson 1](01_score_function.ipynb)) makes one update and discards its samples. Sampling is expensive, so PPO (proximal
# policy optimization) makes several updates with one batch. It multiplies each token's push by a **ratio** $\rho$, the token's probability
# now divided by its probability when it was sampled. And it adds a **clip**:
#
# > **The clip stops pushing (gradient 0) a token whose probability has already moved far enough the way it is pushed; a token that has moved
# > the other way is still pushed.**
# >
# > So it stops gradients, not ratios: after 16 steps on one batch, 23 % of the tokens are outside its range, without the clip 30 %; after
# > the usual 4 steps, 16 and 17 % (a small model, five batches).
#
# Move the ratio:

# %% [fold]
import math
import random

import numpy as np
import torch

from algorithms import ppo, reinforce
from lessons.experiments.float64 import to_float64
from lessons.workshop.companions import lesson_02
from lessons.workshop.companions.lesson_02 import clip_and_gradient, share_outside
from lessons.workshop.notebook import check, knob, say, show, show_diff, trains
from toy_env.arithmetic import LEVELS, reward, sample_problems
from toy_env.model import load_policy
from toy_env.rollout import completion_logps, sample

base, tokenizer = load_policy("base")

def objective(ratio, A, eps=0.2):
    """J of each token, and its derivative by that token's log-probability."""
    ratio, A = torch.as_tensor(ratio).double(), torch.as_tensor(A).double()
    ratio, A = torch.broadcast_tensors(ratio, A)
    logps, one = ratio.log().requires_grad_(), torch.ones(1, 1).double()

    def loss_of_one(logp, A):
        token = {"logps": logp * one, "old_logps": 0 * one, "advantages": A * one, "mask": one}
        return ppo.policy_loss(**token, config=ppo.Config(clip_eps=eps))

    J = -torch.vmap(loss_of_one)(logps, A)
    return J.detach().numpy(), torch.autograd.grad(J.sum(), logps)[0].numpy() + 0.0


def draw(ratio, eps):
    return clip_and_gradient(objective, ratio, eps)

knob(draw, ratio=(0.1, 2.9, 0.1, 1.5), eps=(0.05, 0.6, 0.05, 0.2))

# %% [markdown]
# *The objective $J$ of one token and its gradient. Blue: a token that is pushed up, with advantage $A = 1$. Orange: pushed down, $A = -1$.
# Grey: the clip's range. Thick lines: the gradient is exactly 0, above the range for $A > 0$, below it for $A < 0$.*
#
# For example, at $\rho = 1.5$ the objective is the smaller of $1.5\,A$ and $1.2\,A$. With $A = 1$ this is 1.2, a constant: the token has
# become more probable, as it should, and is pushed no further. With $A = -1$ it is $-1.5 = -\rho$: the token is still pushed down.
#
# | symbol | meaning |
# |---|---|
# | $\pi,\ \pi_{old}$ | the current policy; the policy that sampled the batch |
# | $\ell_t,\ \ell^{old}_t$ | the log-probability of token $t$, $y_t$, under $\pi$ and under $\pi_{old}$ |
# | $\rho_t$ | the **ratio** $\exp(\ell_t - \ell^{old}_t) = \pi(y_t)/\pi_{old}(y_t)$ |
# | $A_t$ | the **advantage**: how strongly token $t$ is pushed, up or down. A constant: no gradient flows through it |
# | $\varepsilon$ | half the width of the clip's range, `clip_eps` = 0.2 |
#
# The diff from the loss of `reinforce.py` to that of `ppo.py` (token mean: [lesson 5](05_length.ipynb)):

# %%
show_diff(reinforce.policy_loss, ppo.policy_loss)

# %% [markdown]
# ## First the ratio: several updates with one batch
#
# After the first step on a batch the policy has changed, and a mean over the old samples
# no longer estimates the new policy's expectation. For completions of one token the ratio repairs this:
#
# $$\mathbb E_{y\sim\pi_{old}}\big[\rho(y)\,A(y)\,\nabla\ell(y)\big] =
# \sum_y \pi_{old}(y)\,\frac{\pi(y)}{\pi_{old}(y)}\,A(y)\,\nabla\log\pi(y) = \nabla \sum_y \pi(y)\,A(y)$$
#
# A check without sampling error: three completions of one token, the first wrong, have old probabilities ½, ¼, ¼, and a batch
# of four holds them in exactly this proportion. The advantage is $R - ½$, the reward minus the batch's mean. The truth is the derivative of
# the success probability with respect to the three logits.

# %% [fold]
drawn = torch.tensor([0, 0, 1, 2])  # the batch: one number per completion
old = torch.tensor([0.5, 0.25, 0.25]).double().log()
R = torch.tensor([0.0, 1.0, 1.0]).double()  # the last two are right
starts = {"first": old, "a later one": old + torch.tensor([-0.5, 1.2, -0.3])}
rows = "| update | policy | truth | with the ratio | without |\n|---|---|---|---|---|"
for when, start in starts.items():
    logits = start.clone().requires_grad_()
    (truth,) = torch.autograd.grad(logits.softmax(dim=0) @ R, logits)
    logps = logits.log_softmax(dim=0)[drawn].view(4, 1)
    A, mask = R[drawn].view(4, 1) - 0.5, torch.ones(4, 1).bool()
    batch = {"logps": logps, "advantages": A, "mask": mask}
    unclipped = ppo.Config(clip_eps=math.inf)
    losses = (ppo.policy_loss(**batch, old_logps=old[drawn].view(4, 1), config=unclipped),
              reinforce.policy_loss(**batch, config=reinforce.Config(max_new_tokens=1)))
    with_ratio, without = (torch.autograd.grad(-loss, logits, retain_graph=True)[0]
                           for loss in losses)
    assert torch.allclose(with_ratio, truth, rtol=1e-12)
    assert torch.allclose(without, truth, rtol=1e-12) == (when == "first")
    assert np.allclose(without, [-0.25, 0.125, 0.125], rtol=1e-12)
    shown = [", ".join(f"{one:.3f}" for one in each)
             for each in (start.softmax(dim=0), truth, with_ratio, without)]
    rows += f"\n| {when} | {' | '.join(shown)} |"
say(rows)

# %% [markdown]
# On the first update every ratio is 1 and changes nothing. Without the ratio the gradient stays that of the first update (the advantages
# have mean 0): it does not notice that the second completion now matters more than the third.
#
# For completions of many tokens, each token's own ratio is an approximation, good while the two policies are close (second reading).
#
# ## Then the clip
#
# The clip is meant to keep them close. PPO maximises the mean over the tokens of
#
# $$J_t = \min\big(\rho_t A_t,\ \mathrm{clip}(\rho_t,\, 1-\varepsilon,\, 1+\varepsilon)\, A_t\big)$$
#
# **The proof.** Since $\nabla\rho_t = \rho_t\nabla\ell_t$, the first term of the minimum has the gradient $\rho_t A_t \nabla\ell_t$.
# Outside the range the second term is a constant, with gradient 0. Inside, the two terms are equal. Which is smaller?
#
# - If $\rho > 1+\varepsilon$, the clipped ratio is smaller than $\rho$. Multiplied by $A > 0$ it stays smaller: the constant is taken,
#   **gradient 0**. Multiplication by $A < 0$ reverses the order: $\rho A$ is taken, gradient $\rho A\nabla\ell$.
# - If $\rho < 1-\varepsilon$, the clipped ratio is larger than $\rho$. For $A > 0$, $\rho A$ is taken. For $A < 0$ the order is
#   reversed: the constant is taken, **gradient 0**. ∎
#
# | | $\rho < 1-\varepsilon$ | $\rho > 1+\varepsilon$ |
# |---|---|---|
# | $A > 0$ | alive, $\rho A$ | **stopped** |
# | $A < 0$ | **stopped** | alive, $\rho A$, without bound |
#
# In the two cases that are alive, other tokens or the optimizer's momentum have moved the token against its advantage. Its own gradient
# pulls it back.
#
# Autograd, for the script's loss:

# %% [fold]
ratio = np.exp(np.linspace(-3, 3, 61))
for A in (-2, -0.5, 0.5, 2):
    all_or_nothing = np.where(ratio > 1.2 if A > 0 else ratio < 0.8, 0, ratio * A)
    assert np.allclose(objective(ratio, A)[1], all_or_nothing, rtol=1e-12, atol=0)
print("table confirmed at 61 ratios from .05 to 20, for A = -2, -.5, .5 and 2")
print(f"at ratio 20 and A = -1 the gradient is {objective([20.0], -1.0)[1].item():.0f}")

# %% [markdown]
# ## The clip on a real model
#
# The clip stops a *gradient*. Does it keep the *ratio* within the range? A small model writes 8 completions for each of 8 problems and
# is trained on this batch for 16 steps (advantages as above, AdamW), with and without the clip, on five batches.


# %% [fold]
def train(eps, beta=0.9):  # beta: Adam's momentum
    """(17, B, T): the log-probabilities before each of 16 steps and after; the gradient there."""
    policy, history, config = to_float64(load_policy("base")[0]), [], ppo.Config(clip_eps=eps)
    optimizer = torch.optim.AdamW(
        policy.parameters(), config.learning_rate, (beta, 0.999), weight_decay=0)
    for _ in range(17):
        history.append(logps := completion_logps(policy, rollout, temperature=1.0))
        optimizer.zero_grad()
        loss = ppo.policy_loss(logps=logps, **batch, config=config)
        loss.backward(inputs=[*policy.parameters(), logps])
        optimizer.step()
    return torch.stack(history).detach(), logps.grad

shares = []  # (5, 2, 17): outside the range, with the clip and without, step by step
for seed in (4, 3, 2, 1, 0):  # the text and the picture show the last
    problems, generator = sample_problems(8, LEVELS, random.Random(seed)), torch.Generator()
    prompts = [problem.prompt for problem in problems]
    rollout = sample(to_float64(base), tokenizer, prompts, 8, 56, 1.0, generator.manual_seed(seed))
    R = [reward(problems[row // 8], text) for row, text in enumerate(rollout.texts)]
    R = torch.tensor(R).double().view(64, 1)
    A, real = R - R.mean(), rollout.mask  # (B, 1) and (B, T)
    batch = {"old_logps": rollout.old_logps, "advantages": A, "mask": real}
    (clip, gradient), (no_clip, _) = train(0.2), train(math.inf)
    ratios = (torch.stack([clip, no_clip]) - rollout.old_logps)[..., real].exp()
    shares.append(((ratios - 1).abs() > 0.2).double().mean(dim=2))
shares = torch.stack(shares)
means = 100 * shares.mean(dim=0)[:, [4, 16]]  # (2, 2)
first, last, free, calm = ((at - rollout.old_logps).exp() for at in (
    clip[1], clip[16], no_clip[16], train(0.2, 0.0)[0][16]))
outside, escaped, without = (((at - 1).abs() > 0.2) & real for at in (last, free, calm))
stopped, up = (gradient == 0) & real, (A > 0) & real
assert torch.equal(stopped, outside & ((last - 1).sign() == A.sign()))
assert [int(x.sum()) for x in (outside, escaped, without, real)] == [98, 137, 90, 472]
assert means.round().tolist() == [[16, 23], [17, 30]]  # as the claim says
assert (shares[:, 0, 16] < shares[:, 1, 16]).all()
task = lesson_02.TRAINED["2.2"]  # exercise 2
rules = lesson_02.CHECKS["2.2"]["expected"], task["mistakes"]["no clip"]
found = [task["curve"](rule)[-1] for rule in rules]
assert found[0] > 0.9 and found[1] < 0.4
show(share_outside(shares[-1]))

# %% [text]
# *After each step, on one batch.*
#
# **The clip holds some tokens back, not all, and at the usual 4 steps hardly any: on average {=means[0, 0]:.0f} % are outside the range with
# it, {=means[1, 0]:.0f} % without; after 16 steps {=means[0, 1]:.0f} and {=means[1, 1]:.0f} %, fewer with it on each batch.** In the picture, after 16 steps,
# {=int(stopped.sum())} of the {=int(outside.sum())} tokens outside it moved where their advantage pushes them: their gradient is exactly 0.
#
# How did they get there? A single step may go far: here the first made a token with $A > 0$ {=first[up].max():.1f} times as likely.
# And a stopped token still moves, with other tokens' gradients and Adam's momentum. Without momentum {=int(without.sum())} tokens
# still end outside, instead of {=int(outside.sum())}. In [lesson 14](14_staleness.ipynb) the clip
# helps the real model to learn if steps are long; in exercise 2 it helps, too.
#
# ## Exercises
#
# **1. How much of a batch is stopped?** Compute the share of the real tokens whose gradient is 0 under the clip. Tensors
# have the shape (B, T); the mask is False on the padding; no advantage is 0.


# %% [exercise]
def stopped_share(ratio, A, mask, eps):
    """A number from 0 to 1."""
    return ...


# %% [check]
check("2.1", stopped_share)

# %% [hint]
# Where does a token with A > 0 lie if it is stopped, and where one with A < 0? And over which tokens is the mean taken?


# %% [solution]
def stopped_share(ratio, A, mask, eps):
    stopped = torch.where(A > 0, ratio > 1 + eps, ratio < 1 - eps)
    return stopped[mask].double().mean()


# %% [markdown]
# **2. Find the bug.** This objective takes the smaller of the two *ratios* and multiplies by the advantage afterwards. With one update per
# batch it does no harm. Which tokens does it stop? Repair it. Below the check, your objective trains a policy over ten
# tokens, with ten steps on each batch of eight; one token is right with probability .9, the others with .5.


# %% [exercise]
def clipped_objective(ratio, A, eps):
    """J of each token; tensors of equal shape."""
    clipped = ratio.clamp(1 - eps, 1 + eps)
    return A * torch.minimum(ratio, clipped)  # <- runs, and is wrong


# %% [check]
check("2.2", clipped_objective)
trains("2.2", clipped_objective)

# %% [markdown]
# *By the end nearly every run has settled on one token, so a curve ends at about the share of runs that settled on the best. (100 runs.)*

# %% [hint]
# Forget A for a moment: at which ratios is `torch.minimum(ratio, clipped)` a constant? Is that the right side if A < 0?


# %% [solution]
def clipped_objective(ratio, A, eps):
    clipped = ratio.clamp(1 - eps, 1 + eps)
    return torch.minimum(A * ratio, A * clipped)


# %% [text]
# <details><summary>After the exercise</summary>
#
# The smaller *ratio* is the constant above the range and the ratio itself below it, whatever the sign of A. For $A < 0$ that is the wrong way
# round: a bad token that has become likelier is stopped, and one that has already lost half its probability is pushed down further. So unlucky
# tokens fall without limit, and one run in five settles on a wrong token. PPO takes the minimum of the two *products*: the best token's
# probability reaches {=found[0]:.2f}, without any clip {=found[1]:.2f} (means of 100 runs).
#
# </details>
#
# ## To remember
#
# - The ratio corrects for samples drawn from the old policy: exactly for completions of one token, approximately for longer ones.
# - The clip stops a token that has already moved where its advantage pushes it. All other tokens keep their gradient, which for $A < 0$
#   has no bound.
# - So it stops gradients, not ratios.
#
# ## For a second reading (5 minutes)
#
# **Why a token's own ratio is not enough.** The tokens before and after a token also came from the old policy, and its advantage depends on
# them, but PPO leaves their ratios out. An example: completions have two tokens, each 0 or 1, which the old policy draws with probability ½.
# A completion is right if its second token is 1. An update has raised the probability of a 1 after a 1 to ¾ and changed nothing else. What is
# the gradient for the first token?

# %% [fold]
first = torch.zeros(2).double().requires_grad_()  # logits of the first token
second = torch.tensor([0.5, 0.5, 0.25, 0.75]).double().log()  # log p, in 00, 01, 10, 11
logps = torch.stack([first.log_softmax(dim=0)[[0, 0, 1, 1]], second], dim=1)  # (4, 2)
old, R = torch.full((4, 2), 0.5).double().log(), torch.tensor([0, 1, 0, 1]).double()
(truth,) = torch.autograd.grad(logps.sum(dim=1).exp() @ R, first, retain_graph=True)
batch = {"logps": logps, "advantages": R.view(4, 1), "mask": torch.ones(4, 2).bool()}
loss = 2 * ppo.policy_loss(**batch, old_logps=old, config=unclipped)  # a sum over the tokens
estimate = torch.autograd.grad(-loss, first)[0]
print(f"truth {truth.numpy()}   with each token's own ratio {estimate.numpy()}")
assert np.allclose(truth, [-1 / 16, 1 / 16], rtol=1e-12) and estimate.abs().max() < 1e-12

# %% [markdown]
# A 1 has become the better first token, but the estimate does not show it: in the old batch, completions that begin with 0 and with 1 were
# right equally often.
#
# **The dual clip** ([1912.09729](https://arxiv.org/abs/1912.09729)) bounds the table's last cell: $J_t$ does not fall below $cA$ for a token
# with $A < 0$, so its gradient is 0 beyond $\rho = c$. verl enables it by default, with $c = 3$: its "vanilla" loss is not plain PPO.
#
# Sources: PPO: [1707.06347](https://arxiv.org/abs/1707.06347), Eq. 7 and Fig. 1. PPO for language models:
# [2203.02155](https://arxiv.org/abs/2203.02155); with a division by length DeepSeekMath, [2402.03300](https://arxiv.org/abs/2402.03300), Eq. 1;
# without it Dr. GRPO, [2503.20783](https://arxiv.org/abs/2503.20783), Eq. 2.
