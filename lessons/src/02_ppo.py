# %% [markdown]
# # 2 · PPO
#
# REINFORCE (lesson 1) takes one step and throws its samples away. Sampling is expensive, so PPO takes several steps
# from one batch. From the second on, the samples come from a policy that no longer exists. PPO corrects for that with a
# **ratio**, and stops the gradient of tokens that have moved far enough with a **clip**.
#
# The claim: outside the clip's range there are four cases (ratio too high or too low, advantage positive or negative),
# and **clipping stops the gradient in exactly two of them**. Then comes PPO's other half: where the advantages come
# from.
#
# | symbol | meaning |
# |---|---|
# | $y_1, \dots, y_L$ | the tokens of an answer, the end-of-sequence token included |
# | $\pi,\ \pi_{old}$ | the current policy, and the one that sampled the batch |
# | $\ell_t,\ \ell^{old}_t,\ \ell^{ref}_t$ | the log-probability of token $t$ under $\pi$, under $\pi_{old}$, and under the **reference**, a frozen copy of the start |
# | $\rho_t$ | the **ratio** $\exp(\ell_t - \ell^{old}_t)$: how much more probable the token has become |
# | $A_t$ | the **advantage**: how strongly token $t$ is pushed, up or down. A constant: no gradient flows through it |
# | $\varepsilon$ | half the width of the clip's range, `clip_eps` = 0.2 |
# | $R$ | the reward of the answer, 1 or 0 |
# | $r_t$ | the reward of token $t$ |
# | $V_t$ | the critic's forecast, before token $t$, of the rewards still to come |
# | $\lambda$ | GAE's trust in rewards against forecasts, `gae_lambda` |

# %%
import random

import numpy as np
import torch

from algorithms import ppo, reinforce
from lessons.float64 import to_float64
from lessons.kit import (
    BLUE,
    GREY,
    ORANGE,
    RIGHT,
    WRONG,
    check,
    knob,
    label_line,
    new_figure,
    show,
    show_diff,
    show_source,
)
from toy_env.arithmetic import LEVELS, reward, sample_problems
from toy_env.model import load_policy
from toy_env.rollout import completion_logps, in_passes, sample

# %% [markdown]
# ## Several updates from one batch
#
# A **rollout batch** is sampled once and cut into **minibatches**, one optimizer step each (4 in `ppo.py`). While
# sampling, the script records every $\ell^{old}_t$. After the first step the policy has changed, and an average over
# old samples is no longer its expectation. For answers of one token, the ratio repairs that:
#
# $$\mathbb E_{y\sim\pi_{old}}\big[\rho(y)\,A(y)\,\nabla\ell(y)\big] =
# \sum_y \pi_{old}(y)\,\frac{\pi(y)}{\pi_{old}(y)}\,A(y)\,\nabla\log\pi(y) = \nabla \sum_y \pi(y)\,A(y)$$
#
# We check it without sampling error. Three answers have the old probabilities ½, ¼, ¼, so four rows hold them in exact
# proportion. The truth is the derivative of the success probability, enumerated.

# %%
rows = torch.tensor([0, 0, 1, 2])
old = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log()
R = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)  # the last two are right; A = R, as in REINFORCE
moved = old + torch.tensor([-0.5, 1.2, -0.3])
for when, start in (("first update", old), ("a later one", moved)):
    logits = start.clone().requires_grad_()
    (truth,) = torch.autograd.grad(logits.softmax(dim=0) @ R, logits)
    logps = logits.log_softmax(dim=0)[rows].view(4, 1)
    batch = {"logps": logps, "advantages": R[rows].view(4, 1), "mask": torch.ones(4, 1).bool()}
    unclipped = ppo.Config(clip_eps=float("inf"))
    with_ratio = ppo.policy_loss(**batch, old_logps=old[rows].view(4, 1), config=unclipped)
    without = reinforce.policy_loss(**batch, config=reinforce.Config(max_new_tokens=1))
    with_ratio, without = (-torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (with_ratio, without))
    assert torch.allclose(with_ratio, truth, rtol=1e-12)
    assert torch.allclose(without, truth, rtol=1e-12) == (when == "first update")
    print(
        f"{when:12}  truth {truth.numpy().round(4)}  ratio {with_ratio.numpy().round(4)}  "
        f"no ratio {without.numpy().round(4)}"
    )

# %% [markdown]
# On the first update $\rho = 1$ changes nothing. Later, leaving the ratio out gives a wrong gradient: here it pushes
# the second answer, a right one, down.
#
# For answers of many tokens, each token's own ratio is an approximation: the tokens before it came from the old policy
# as well, and that stays uncorrected. The error is small while the policies are close. Hence the clip.
#
# ## The clip
#
# PPO maximises, averaged over the tokens,
#
# $$J_t = \min\big(\rho_t A_t,\ \mathrm{clip}(\rho_t,\, 1-\varepsilon,\, 1+\varepsilon)\, A_t\big)$$
#
# The loss is $-J$, so the minimum becomes a maximum of negatives. This is the step from `reinforce.py` to `ppo.py`:

# %%
show_diff(reinforce.policy_loss, ppo.policy_loss)

# %% [markdown]
# (The mean is over all tokens of the minibatch. DeepSeekMath prints PPO with a division by each answer's length, Dr.
# GRPO without; both call theirs PPO. Lesson 5 is about that.)
#
# **The proof.** Since $\nabla\rho_t = \rho_t\nabla\ell_t$, the first branch of the minimum has the gradient
# $\rho_t A_t \nabla\ell_t$. Outside the range the second is a constant: gradient 0. Inside, both are the same. It
# remains to see which branch is smaller.
#
# - $\rho > 1+\varepsilon$, so the clipped ratio is smaller than $\rho$. Times $A > 0$ it stays smaller: the constant is
#   taken, **gradient 0**. Times $A < 0$ the order turns: $\rho A$ is taken, gradient $\rho A\nabla\ell$.
# - $\rho < 1-\varepsilon$, so the clipped ratio is larger than $\rho$. Times $A > 0$: $\rho A$ is taken. Times $A < 0$
#   the order turns: **gradient 0**. ∎
#
# | | $\rho < 1-\varepsilon$ | $\rho > 1+\varepsilon$ |
# |---|---|---|
# | $A > 0$ | alive, $\rho A$ | **stopped** |
# | $A < 0$ | **stopped** | alive, $\rho A$, without bound |
#
# A token is stopped when it has already moved by more than ε *where its advantage wanted it*. In the other two cases it
# has gone the wrong way (other tokens use the same parameters), and the gradient pulls it back.
#
# **The check.** Autograd through the script's loss, token by token, against a table worked out by hand, and then over a
# grid:


# %%
def objective(ratio, A, eps=0.2):
    """J of one token and dJ / d(its log-probability), both from the script's loss and autograd."""
    one = torch.ones(1, 1, dtype=torch.float64)
    logps = (ratio * one).log().requires_grad_()
    config = ppo.Config(clip_eps=eps)
    loss = ppo.policy_loss(logps=logps, old_logps=0 * one, advantages=A * one, mask=one.bool(), config=config)
    return 0 - loss.item(), 0 - torch.autograd.grad(loss, logps)[0].item()


by_hand = {  # (A, ratio): (J, gradient), eps = 0.2
    (1, 0.5): (0.5, 0.5),
    (1, 1.0): (1, 1),
    (1, 1.5): (1.2, 0),
    (-1, 0.5): (-0.8, 0),
    (-1, 1.0): (-1, -1),
    (-1, 1.5): (-1.5, -1.5),
}
print(" A   ratio      J   gradient")
for (A, ratio), expected in by_hand.items():
    J, gradient = objective(ratio, A)
    assert np.allclose((J, gradient), expected, atol=1e-14) and (gradient == 0) == (expected[1] == 0)
    print(f"{A:+d}    {ratio:.1f}   {J:+.2f}      {gradient:+.2f}" + "   stopped" * (gradient == 0))

zeros = set()
for A in (-2, -0.5, 0.5, 2):
    for ratio in np.exp(np.linspace(-3, 3, 61)):  # from 0.05 to 20
        _, gradient = objective(ratio, A)
        assert gradient == 0 or abs(gradient - ratio * A) < 1e-12  # all or nothing
        if gradient == 0:
            zeros.add((A > 0, "above" if ratio > 1.2 else "below" if ratio < 0.8 else "inside"))
assert zeros == {(True, "above"), (False, "below")}
print("\ngrid: zero exactly where A > 0 is above the range or A < 0 below it: True")
print(f"A = -1 at ratio 20: gradient {objective(20.0, -1)[1]:.0f}")

# %% [markdown]
# That last line is the case without bound. The *dual clip* ([1912.09729](https://arxiv.org/abs/1912.09729)) keeps $J_t$
# of a token with $A < 0$ from falling below $cA$, so the gradient ends at $\rho = c$. verl has it on by default, with
# $c = 3$: its "vanilla" loss is not plain PPO.
#
# Move the ratio through the range:


# %%
def draw(ratio, eps):
    figure, (left, right) = new_figure(9.5, 3.6, columns=2)
    grid = np.linspace(0.02, 3, 299)
    for A, color in ((1, RIGHT), (-1, WRONG)):
        name = "A = +1" if A > 0 else "A = −1"
        J, gradient = np.array([objective(value, A, eps) for value in grid]).T
        now = objective(ratio, A, eps)
        left.plot(grid, A * grid, ":", color=color, linewidth=1.2)
        left.plot(grid, J, color=color)
        left.plot(ratio, now[0], "o", color=color, markersize=9)
        right.plot(grid, np.where(gradient != 0, gradient, np.nan), color=color)
        right.plot(grid, np.where(gradient == 0, 0, np.nan), color=color, linewidth=5, alpha=0.6)
        right.plot(ratio, now[1], "o", color=color, markersize=9)
        state = f"{name}: " + ("stopped, exactly 0" if now[1] == 0 else f"{now[1]:+.2f}".replace("-", "−"))
        right.text(
            0.03,
            0.97 if A > 0 else 0.03,
            state,
            color=color,
            transform=right.transAxes,
            va="top" if A > 0 else "bottom",
        )
        label_line(left, 2.4, objective(2.4, A, eps)[0], name, color, xytext=(6, 8))
    left.set(title="Objective J (dotted: without the clip)", xlabel="ratio ρ", ylim=(-3.2, 3.2))
    right.set(title="Its gradient in the log-probability", xlabel="ratio ρ", ylim=(-3.2, 3.2))
    for axis in (left, right):
        axis.axvspan(1 - eps, 1 + eps, color=GREY, alpha=0.18, linewidth=0)
        axis.axvline(ratio, color=GREY, linewidth=1)
        axis.axhline(0, color="black", linewidth=0.6)
    return figure


knob(draw, ratio=(0.1, 2.9, 0.1, 1.5), eps=(0.05, 0.6, 0.05, 0.2))

# %% [markdown]
# *Thick lines: the gradient is exactly 0, above the (grey) range for $A > 0$, below it for $A < 0$.* The left picture
# redraws Fig. 1 of the PPO paper.
#
# ## The critic and credit assignment
#
# REINFORCE gives every token of an answer the same advantage. PPO trains a second network, here of the policy's size,
# the **critic**, to forecast the rewards still to come. Each token has one,
#
# $$r_t = \mathbb 1[t = L]\,R \;-\; \beta\,\big(\ell^{old}_t - \ell^{ref}_t\big)$$
#
# the verifier's at the end, and along the way a charge for a token likelier than under the reference: the estimate k1
# of the KL divergence (lesson 4), $\beta$ = `kl_coef`. The minus matters. The widely read *N Implementation Details of
# RLHF with PPO* prints the formula without it; the code it describes has it.
#
# With $V_{L+1} = 0$, the **one-step error** $\delta_t = r_t + V_{t+1} - V_t$ says how much better things look after
# token $t$ than before. Generalized advantage estimation (GAE) adds up what follows, fading by λ:
#
# $$A_t = \delta_t + \lambda A_{t+1} = \delta_t + \lambda\delta_{t+1} + \lambda^2\delta_{t+2} + \dots$$
#
# For $\lambda = 0$, $A_t = \delta_t$. For $\lambda = 1$ every forecast but the first enters once with plus and once
# with minus, and what is left is return minus value:
#
# $$A_t = (r_t + r_{t+1} + \dots + r_L) - V_t$$
#
# So with $\lambda = 1$ the critic is only a baseline: $V_t$ depends on $y_{<t}$ and multiplies the score of $y_t$
# alone. By lesson 1 it leaves the mean gradient as it is, however bad the forecasts (before the whitening below). With
# $\lambda = 0$ they are believed blindly. `ppo.py` takes 0.95.

# %%
show_source(ppo.compute_advantages)

# %% [markdown]
# The critic learns the targets $A_t + V_t$ (`value_loss`, clipped too). **Whitening** then gives the token advantages
# of the batch mean 0 and variance 1. Scaling changes no sign, but the shift does: a token with a positive advantage
# below the average is now pushed *down*.


# %%
def judge(rewards, values, mask, gae_lambda, log_ratio=None, kl_coef=0.0):
    """The script's advantages before whitening (returns - values) and after. log_ratio: old minus reference."""
    logs = {"old_logps": torch.zeros_like(values) if log_ratio is None else log_ratio, "ref_logps": 0 * values}
    config = ppo.Config(gae_lambda=gae_lambda, kl_coef=kl_coef)
    white, returns = ppo.compute_advantages(rewards=rewards, values=values, mask=mask, **logs, config=config)
    return (returns - values) * mask, white


V = torch.tensor([[0.5, 0.6, 0.7]], dtype=torch.float64)
reward_1, all_real = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 3).bool()
by_hand = {1.0: [0.5, 0.4, 0.3], 0.95: [0.46575, 0.385, 0.3], 0.0: [0.1, 0.1, 0.3]}  # r = (0, 0, 1), V as above
for gae_lambda, expected in by_hand.items():
    A, _ = judge(reward_1, V, all_real, gae_lambda)
    assert np.allclose(A, [expected], atol=1e-14)
    print(f"lambda = {gae_lambda:<4}  A = {A[0].numpy().round(5)}")

torch.manual_seed(0)  # now 6 answers of other lengths, with a KL: the sums written out forwards
lengths, beta = [1, 7, 3, 5, 7, 2], 0.3
mask = torch.tensor([[t < n for t in range(7)] for n in lengths])
values, log_ratio = 0.5 * torch.rand(2, 6, 7, dtype=torch.float64)
R6 = torch.tensor([[1.0, 1, 0, 1, 1, 0]], dtype=torch.float64)
ones, white = judge(R6, values, mask, 1.0, log_ratio, beta)
zero, _ = judge(R6, values, mask, 0.0, log_ratio, beta)
for i, n in enumerate(lengths):
    r = [-beta * log_ratio[i, t].item() + (t == n - 1) * R6[0, i].item() for t in range(n)]
    v = [*values[i, :n].tolist(), 0.0]
    assert np.allclose(ones[i, :n], [sum(r[t:]) - v[t] for t in range(n)], atol=1e-14)
    assert np.allclose(zero[i, :n], [r[t] + v[t + 1] - v[t] for t in range(n)], atol=1e-14)
print("lambda = 1 is return minus value, lambda = 0 the one-step error, KL with a minus: True")
flipped = int(((ones > 0) & (white < 0) & mask).sum())
assert np.allclose(white[mask].mean(), 0) and np.allclose(white[mask].var(correction=0), 1)
print(f"whitened over the real tokens: {flipped} of {int((ones > 0).sum())} positive advantages turned negative")

# %% [markdown]
# A made-up critic reads a wrong answer to `29+46-36?`. Before the `8` (29+46 is 75) it expects a reward of 0.6,
# afterwards 0. Move λ:

# %%
answer = list("29+46=85;85-36=49;#49") + ["end"]
slip = 6  # the 8
forecasts = torch.tensor([[0.6] * (slip + 1) + [0.0] * (len(answer) - slip - 1)], dtype=torch.float64)


def draw_blame(gae_lambda):
    nothing, full = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, len(answer)).bool()
    A = judge(nothing, forecasts, full, gae_lambda)[0][0].numpy()
    figure, axis = new_figure(8.5, 3.2)
    at = np.arange(len(answer))
    axis.bar(at, A, color=[ORANGE if t == slip else BLUE for t in at])
    axis.step(at, -forecasts[0], where="mid", color=GREY, linestyle="--", linewidth=1.2)
    label_line(axis, len(answer) - 1, 0, "return minus value (λ = 1)", GREY, xytext=(0, -16), ha="right")
    axis.annotate(
        "the slip",
        (slip, A[slip]),
        xytext=(slip + 1.5, -0.5),
        color=ORANGE,
        va="center",
        arrowprops={"arrowstyle": "-", "color": ORANGE},
    )
    axis.axhline(0, color="black", linewidth=0.6)
    axis.set(title=f"Advantage of each token, λ = {gae_lambda:.2f}", ylim=(-0.7, 0.1))
    axis.set_xticks(at, answer)
    axis.grid(axis="x", visible=False)
    return figure


knob(draw_blame, gae_lambda=(0.0, 1.0, 0.05, 0.95))

# %% [markdown]
# *λ = 1 blames every token before the slip as much as the slip itself; λ = 0 blames the slip alone, if the critic is
# right.*
#
# ## The clip on a real model
#
# The clip stops a *gradient*. Does it hold the *ratio* in the range? The base model answers 8 problems 8 times each,
# and takes 16 steps on this batch at the full learning rate (more than usual), with the clip and without. The critic
# starts at $V = 0$.

# %%
base, tokenizer = load_policy("base")
base = to_float64(base)
problems = sample_problems(8, LEVELS, random.Random(0))
prompts = [problem.prompt for problem in problems]
rollout = sample(
    base,
    tokenizer,
    prompts,
    group_size=8,
    max_new_tokens=56,
    temperature=1.0,
    generator=torch.Generator().manual_seed(0),
)
rewards = torch.tensor([reward(problems[row // 8], text) for row, text in enumerate(rollout.texts)]).view(8, 8)
values = in_passes(ppo.Critic(base).double(), rollout, ppo.Config().max_tokens_per_pass).detach()
_, A = judge(rewards.double(), values, rollout.mask, gae_lambda=0.95)  # the reference is the policy itself: no KL yet
config = {"clip": ppo.Config(), "no clip": ppo.Config(clip_eps=float("inf"))}


def loss_now(logps, name):
    batch = {"logps": logps, "old_logps": rollout.logps, "advantages": A, "mask": rollout.mask}
    return ppo.policy_loss(**batch, config=config[name])


def train_on_this_batch(name, steps=16):
    """The log-probabilities of the batch before each step and after the last."""
    policy = to_float64(load_policy("base")[0])
    optimizer = torch.optim.AdamW(policy.parameters(), lr=config[name].learning_rate, weight_decay=0.0)
    history = []
    for _ in range(steps + 1):
        logps = completion_logps(policy, rollout, temperature=1.0)
        history.append(logps.detach())
        optimizer.zero_grad()
        loss_now(logps, name).backward()
        optimizer.step()
    return history


history = {name: train_on_this_batch(name) for name in config}
logps = history["clip"][-1].clone().requires_grad_()
(gradient,) = torch.autograd.grad(loss_now(logps, "clip"), logps)
ratio = (logps - rollout.logps).exp().detach()
print(f"{int(rollout.mask.sum())} tokens after 16 steps, with the clip:")
for sign, where in ((1, "above"), (-1, "below"), (1, "below"), (-1, "above")):
    case = (sign * A > 0) & rollout.mask & ((ratio > 1.2) if where == "above" else (ratio < 0.8))
    stopped = (sign > 0) == (where == "above")
    assert case.any() and bool(((gradient[case] == 0) == stopped).all())
    print(
        f"{int(case.sum()):4} with A {'>' if sign > 0 else '<'} 0 {where} the range: "
        f"gradient {'exactly 0' if stopped else 'alive'} for all"
    )

# %%
figure, axis = new_figure(7.5, 3.8)
axis.axhspan(0.8, 1.2, color=GREY, alpha=0.18, linewidth=0)
for name, style in (("clip", "-"), ("no clip", "--")):
    for sign, color in ((1, RIGHT), (-1, WRONG)):
        chosen = (sign * A > 0) & rollout.mask
        tail = [(logps - rollout.logps)[chosen].quantile(0.95 if sign > 0 else 0.05).exp() for logps in history[name]]
        axis.plot(range(17), tail, style, color=color)
        if sign < 0:
            label_line(axis, 16, tail[-1], f"A < 0, {name}", color)
label_line(axis, 16, 1, "A > 0, either way", RIGHT)
axis.set(
    title="Ratio of the tokens that moved furthest (95th percentile for A > 0, 5th for A < 0)",
    xlabel="steps on one batch",
    yscale="log",
    xlim=(0, 20),
)
axis.set_xticks(range(0, 17, 4))
axis.set_yticks([1, 0.1, 0.01, 0.001], ["1", "0.1", "0.01", "0.001"])
show(figure)

pushed_up = (A > 0) & rollout.mask
p_old, p_next = (history["clip"][step].exp()[pushed_up] for step in (0, 1))
furthest = (p_next - p_old).argmax()
assert p_next[furthest] > 2 * 1.2 * p_old[furthest]

# %% [text]
# *On this batch the clip slows tokens with $A < 0$ down outside the (grey) range; it does not keep them in.* A step
# that starts inside may end far outside: the first, with every ratio 1, took a token with $A > 0$ from
# {=p_old[furthest]:.3f} to {=p_next[furthest]:.3f}. And a stopped token still moves, with the gradients of others and
# Adam's momentum. The clip is a brake, not a wall. (Of {=len(p_old)} tokens with $A > 0$,
# {=int((p_old > 1 / 1.2).sum())} cannot leave the range upwards: their probability was above 1/1.2 when sampled.)
#
# ## Exercises
#
# **1. Write GAE** for one answer, without discounting (γ = 1). (`numpy` arrays of length L.)


# %% [exercise]
def gae(rewards, values, gae_lambda):
    """Advantages (L,), not whitened."""
    return ...


# %% [check]
def gae_of_the_script(rewards, values, gae_lambda):
    """A reward of its own for every token, by way of the KL term: r_t = -kl_coef * log_ratio."""
    log_ratio, values = -torch.tensor(rewards)[None], torch.tensor(values)[None]
    nothing = torch.zeros(1, 1, dtype=torch.float64)
    return judge(nothing, values, torch.ones(values.shape).bool(), gae_lambda, log_ratio, kl_coef=1.0)[0][0].numpy()


def discounted(errors, gae_lambda):
    return np.array([sum(gae_lambda**j * e for j, e in enumerate(errors[t:])) for t in range(len(errors))])


check(
    gae,
    gae_of_the_script,
    inputs=[
        {"rewards": np.array([0, 0, 1.0]), "values": np.array([0.5, 0.6, 0.7]), "gae_lambda": 0.95},
        {"rewards": np.array([0.1, -0.2, 0, 1.0]), "values": np.array([0.5, 0.1, 0.9, 0.3]), "gae_lambda": 0.5},
    ],
    mistakes={
        "the forecast after the last token is 0, not the last value again": lambda rewards, values, gae_lambda: (
            discounted(rewards + np.append(values[1:], values[-1]) - values, gae_lambda)
        ),
        "these are the critic's targets: leave V_t out": lambda rewards, values, gae_lambda: (
            gae_of_the_script(rewards, values, gae_lambda) + values
        ),
        "lambda fades the errors that follow; here it fades the rewards": lambda rewards, values, gae_lambda: (
            discounted(rewards, gae_lambda) - values
        ),
    },
)

# %% [hint]
# Go backwards: δ_t = r_t + V_{t+1} − V_t with V_{L+1} = 0, then A_t = δ_t + λ A_{t+1} with A_{L+1} = 0.


# %% [solution]
def gae(rewards, values, gae_lambda):
    advantages = np.zeros(len(rewards))
    next_value = next_advantage = 0.0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + next_value - values[t]
        advantages[t] = delta + gae_lambda * next_advantage
        next_value, next_advantage = values[t], advantages[t]
    return advantages


# %% [wrong] the forecast after the last token is 0
def gae(rewards, values, gae_lambda):
    advantages = np.zeros(len(rewards))
    next_value, next_advantage = values[-1], 0.0
    for t in reversed(range(len(rewards))):
        advantages[t] = rewards[t] + next_value - values[t] + gae_lambda * next_advantage
        next_value, next_advantage = values[t], advantages[t]
    return advantages


# %% [wrong] these are the critic's targets
def gae(rewards, values, gae_lambda):
    errors = rewards + np.append(values[1:], 0) - values
    return discounted(errors, gae_lambda) + values


# %% [wrong] here it fades the rewards
def gae(rewards, values, gae_lambda):
    return discounted(rewards, gae_lambda) - values


# %% [markdown]
# **2. Write the clipped objective** $J_t$ of each token: to be maximised, not the loss. (`ratio` and `A` are `numpy`
# arrays.)


# %% [exercise]
def clipped_objective(ratio, A, eps):
    return ...


# %% [check]
six = {"ratio": np.array([0.5, 1.0, 1.5] * 2), "A": np.array([1.0] * 3 + [-1.0] * 3)}
check(
    clipped_objective,
    lambda ratio, A, eps: [objective(float(rho), float(a), eps)[0] for rho, a in zip(ratio, A)],
    inputs=[{**six, "eps": 0.2}, {**six, "eps": 0.3}],
    mistakes={
        "that is the loss: the objective has the other sign": lambda ratio, A, eps: (
            -np.minimum(ratio * A, ratio.clip(1 - eps, 1 + eps) * A)
        ),
        "the larger of the two is the optimistic one: it stops the wrong two cases": lambda ratio, A, eps: np.maximum(
            ratio * A, ratio.clip(1 - eps, 1 + eps) * A
        ),
        "without the minimum all four cases are stopped, and nothing brings a token back": lambda ratio, A, eps: (
            ratio.clip(1 - eps, 1 + eps) * A
        ),
    },
)

# %% [hint]
# `np.minimum` of two products: the advantage with the ratio, and with `ratio.clip(low, high)`.


# %% [solution]
def clipped_objective(ratio, A, eps):
    return np.minimum(ratio * A, ratio.clip(1 - eps, 1 + eps) * A)


# %% [wrong] that is the loss
def clipped_objective(ratio, A, eps):
    return np.maximum(-ratio * A, -ratio.clip(1 - eps, 1 + eps) * A)


# %% [wrong] it stops the wrong two cases
def clipped_objective(ratio, A, eps):
    return np.maximum(ratio * A, ratio.clip(1 - eps, 1 + eps) * A)


# %% [wrong] without the minimum
def clipped_objective(ratio, A, eps):
    return ratio.clip(1 - eps, 1 + eps) * A


# %% [markdown]
# **3. How far does its own gradient push a token?** It had probability `p_old` when it was sampled, and its advantage
# is positive. At which probability does the push end, until the next batch is sampled? Try 0.01 and 0.9 with ε = 0.2.


# %% [exercise]
def pushed_up_to(p_old, eps):
    return ...


# %% [check]
def where_autograd_stops(p_old, eps):
    """The probability at which the gradient turns to 0, by bisection; 1 if it never does."""
    low, high = p_old, 1.0
    if objective(high / p_old, 1.0, eps)[1] != 0:
        return 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if objective(middle / p_old, 1.0, eps)[1] != 0 else (low, middle)
    return low


check(
    pushed_up_to,
    where_autograd_stops,
    inputs=[{"p_old": p_old, "eps": eps} for eps in (0.2, 0.28) for p_old in (0.01, 0.5, 0.9)],
    mistakes={
        "the bound is on the ratio: it multiplies, it does not add": lambda p_old, eps: min(1, p_old + eps),
        "right for 0.01; but there is no probability of 1.08, so 0.9 is never stopped": lambda p_old, eps: (
            (1 + eps) * p_old
        ),
    },
)

# %% [hint]
# The gradient is 0 once p / p_old > 1 + ε. A probability cannot exceed 1. From which `p_old` on is a token never
# stopped?


# %% [solution]
def pushed_up_to(p_old, eps):
    return min(1.0, (1 + eps) * p_old)  # never stopped from p_old = 1 / (1 + eps) on


# %% [wrong] it multiplies, it does not add
def pushed_up_to(p_old, eps):
    return min(1, p_old + eps)


# %% [wrong] there is no probability of 1.08
def pushed_up_to(p_old, eps):
    return p_old * (1 + eps)


# %% [text]
# The push on a token of 0.01 ends at 0.012, that on one of 0.9 never: the clip restrains rare tokens. Hence DAPO's
# *clip-higher* (ε = 0.28 upwards: 0.0128). DAPO calls 0.012 the "maximum possible updated" probability. It is no such
# bound: in the run above the push on one token ended at {=1.2 * p_old[furthest]:.3f}, and a single step took it to
# {=p_next[furthest]:.3f}.
#
# **4. Find the bug.** Public code, teaching code among it, takes the minimum for $A \ge 0$ and the *maximum* for
# $A < 0$; one comment calls that standard PPO. It looks symmetric, and with one update a batch ($\rho = 1$) it does no
# harm. Which two cases does it stop? Repair it. The check looks at the gradient.


# %% [exercise]
def repaired_loss(logps, old_logps, A, eps):
    ratio = (logps - old_logps).exp()
    clipped = ratio.clamp(1 - eps, 1 + eps)
    smaller, larger = torch.minimum(A * ratio, A * clipped), torch.maximum(A * ratio, A * clipped)
    J = torch.where(A >= 0, smaller, larger)  # <- runs, and is wrong
    return -J.mean()


# %% [check]
def gradient_of(loss):
    """From a loss to its gradient in the log-probabilities."""

    def gradient(logps, **others):
        logps = logps.clone().requires_grad_()
        return torch.autograd.grad(loss(logps=logps, **others), logps)[0]

    return gradient


def loss_of_the_script(logps, old_logps, A, eps):
    mask = torch.ones(1, len(logps)).bool()
    config = ppo.Config(clip_eps=eps)
    return ppo.policy_loss(logps=logps[None], old_logps=old_logps[None], advantages=A[None], mask=mask, config=config)


def chosen(of_positive, of_negative):
    """The loss that takes one of the two products for A >= 0 and one for A < 0."""

    def loss(logps, old_logps, A, eps):
        ratio = (logps - old_logps).exp()
        products = torch.stack([A * ratio, A * ratio.clamp(1 - eps, 1 + eps)])
        return -torch.where(A >= 0, of_positive(products, dim=0), of_negative(products, dim=0)).mean()

    return gradient_of(loss)


tokens = {"logps": torch.tensor(six["ratio"]).log(), "old_logps": torch.zeros(6).double(), "A": torch.tensor(six["A"])}
check(
    gradient_of(repaired_loss),
    gradient_of(loss_of_the_script),
    inputs=[{**tokens, "eps": 0.2}, {**tokens, "eps": 0.6}],
    mistakes={
        "now A < 0 is right, and A > 0 is wrong": chosen(torch.amax, torch.amin),
        "now all four cases are stopped: the minimum is gone": gradient_of(
            lambda logps, old_logps, A, eps: -(A * (logps - old_logps).exp().clamp(1 - eps, 1 + eps)).mean()
        ),
        "the sign: an optimizer makes a loss smaller": gradient_of(lambda **given: -loss_of_the_script(**given)),
    },
    bug=chosen(torch.amin, torch.amax),
)

# %% [hint]
# Take A = −1. At ρ = 0.5 compare −0.5 with −0.8, at ρ = 1.5 compare −1.5 with −1.2. Which one should have no gradient,
# and which one is the constant? The minimum needs no case distinction: the sign of A has already turned the order.


# %% [solution]
def repaired_loss(logps, old_logps, A, eps):
    ratio = (logps - old_logps).exp()
    clipped = ratio.clamp(1 - eps, 1 + eps)
    # The maximum for A < 0 left a bad token that had become likelier alone,
    # and pushed down one at half its probability.
    J = torch.minimum(A * ratio, A * clipped)
    return -J.mean()


# %% [wrong] now A < 0 is right, and A > 0 is wrong
def repaired_loss(logps, old_logps, A, eps):
    ratio = (logps - old_logps).exp()
    clipped = ratio.clamp(1 - eps, 1 + eps)
    smaller, larger = torch.minimum(A * ratio, A * clipped), torch.maximum(A * ratio, A * clipped)
    return -torch.where(A >= 0, larger, smaller).mean()


# %% [wrong] now all four cases are stopped
def repaired_loss(logps, old_logps, A, eps):
    return -(A * (logps - old_logps).exp().clamp(1 - eps, 1 + eps)).mean()


# %% [wrong] the sign
def repaired_loss(logps, old_logps, A, eps):
    ratio = (logps - old_logps).exp()
    return torch.minimum(A * ratio, A * ratio.clamp(1 - eps, 1 + eps)).mean()


# %% [markdown]
# ## What to remember
#
# - The ratio makes old samples count for the new policy. The clip stops a token that has already gone where its
#   advantage pushed it: $A > 0$ above the range, $A < 0$ below. In the other two cases the gradient is alive, and for
#   $A < 0$ without bound.
# - The clip stops gradients, not ratios. Its bound multiplies: the push on a rare token soon ends, that on a probable
#   one never.
# - GAE: λ = 1 is return minus value, λ = 0 the one-step error. The KL enters each token's reward with a minus.
#
# The critic is a second network to store, to run and to train. [Lesson 3](03_group_baseline.ipynb) replaces it by the
# mean of a group.
#
# Sources: PPO: [1707.06347](https://arxiv.org/abs/1707.06347), Eq. 7 and Fig. 1. GAE:
# [1506.02438](https://arxiv.org/abs/1506.02438). PPO for language models:
# [2203.02155](https://arxiv.org/abs/2203.02155); with the KL in the reward of each token, DeepSeekMath,
# [2402.03300](https://arxiv.org/abs/2402.03300), Eq. 1 and 2; without the division by length, Dr. GRPO,
# [2503.20783](https://arxiv.org/abs/2503.20783), Eq. 2. Clip-higher: DAPO,
# [2503.14476](https://arxiv.org/abs/2503.14476), section 3.1. Details: Huang et al., *The N Implementation Details of
# RLHF with PPO*, 2023.
