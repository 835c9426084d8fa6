# %% [markdown] 38 minutes
# # 0 · The loop: sample, verify, update
#
# A language model reads a prompt and writes a **completion**. A **verifier**, an ordinary program, says whether it is right. Reinforcement
# learning (RL) from verifiable rewards repeats three steps:
#
# 1. **Sample.** The model, called the **policy**, writes several completions, drawn at random from its own distribution.
# 2. **Verify.** Each completion receives a **reward** $R$: 1 if it is right, 0 if it is wrong.
# 3. **Update.** The model's parameters are changed a little, so that rewarded completions become more probable.
#
# > **A model that is told only "right" or "wrong" can become right more often by repeating these three steps; large steps along
# > noisy updates can ruin it instead.**
# >
# > In one run of a tiny policy, at learning rate 1, thirty updates raise right answers from 19 to 93 %. With 3 added to every
# > reward (same mean update, far noisier) three in ten longer runs at this rate are ruined; subtracting 3.42 ruins two in ten;
# > leaving the reward alone ruins none.
#
# In supervised learning somebody has to write the completions to imitate. Here the verifier only has to *recognise* a right one. The
# price: what the policy never samples cannot be rewarded.
#
# ## A policy that fits on the screen
#
# To see the loop at work we need something to train. The prompt is "name an even number". There are three tokens, `1`, `2` and the full
# stop, which ends the completion. A completion is cut off after three tokens. Of the 15 completions the verifier, `text.endswith("2.")`,
# calls three right: `12.`, `22.` and `2.`
#
# For each of the seven possible prefixes the policy has three numbers (logits), whose softmax is the distribution of the next
# token. A language model does the same, with a neural network in place of the table. This function is the whole policy (`uses` is 1 where a
# completion takes a token after a prefix):

# %% [fold]
import inspect
import math

import torch
from torch.func import grad, jacrev

from lessons.workshop.companions.lesson_00 import COMPLETIONS, PREFIXES, fans, text_of
from lessons.workshop.notebook import (
    GREY,
    RIGHT,
    check,
    knob,
    label_line,
    new_figure,
    say,
    show,
    trains,
)

texts = [text_of(y) for y in COMPLETIONS]  # 15
R = torch.tensor([float(text.endswith("2.")) for text in texts]).double()  # (15,): the verifier
uses = torch.zeros(15, 7, 3).double()  # 1 where a completion takes this token after this prefix
for i, y in enumerate(COMPLETIONS):
    uses[i, [PREFIXES.index(y[:t]) for t in range(len(y))], y] = 1


def log_probabilities(logits):
    """log π(y) of all completions, (..., 15): a sum over the tokens of y. logits: (..., 7, 3)"""
    return logits.log_softmax(dim=-1).flatten(-2) @ uses.flatten(1).T


say(f"```python\n{inspect.getsource(log_probabilities)}```")

# %% [markdown]
# ## The loop
#
# The direction in logit space that makes a completion $y$ more probable is the gradient of its log-probability,
# $\nabla\log\pi(y)$, called its **score**. The **update** is the mean over the batch of $R\,\nabla\log\pi(y)$, over four
# completions. This is REINFORCE (Williams 1992):

# %%
logits = torch.zeros(7, 3, dtype=torch.float64, requires_grad=True)  # uniform
optimizer = torch.optim.SGD([logits], lr=1.0)
generator, batches, trace = torch.Generator().manual_seed(26), [], []
for _ in range(31):
    log_pi = log_probabilities(logits)  # (15,)
    pi = log_pi.detach().exp()
    drawn = torch.multinomial(pi, 4, replacement=True, generator=generator)  # 1. sample
    rewards = R[drawn]  # 2. verify
    loss = -(rewards * log_pi[drawn]).mean()  # 3. update
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    batches.append(drawn)
    trace.append(pi)

# %% [fold]
trace = torch.stack(trace)  # (31, 15)
figure, axis = new_figure(7, 2.8)
axis.plot(trace[:, R == 0], color=GREY, linewidth=1)
axis.plot(trace[:, R == 1], color=RIGHT)
axis.plot(trace @ R, color="black", linewidth=2.5)
axis.text(9, 0.66, "sum, right", ha="right")
favourite, first = trace[-1].argmax(), trace[0].argmax()
label_line(axis, 30, trace[-1, favourite], f'"{texts[favourite]}"', RIGHT)
label_line(axis, 0, trace[0, first], f'"{texts[first]}"', GREY, xytext=(8, 8))
axis.set(
    xlim=(0, 33),
    ylim=(0, 1.02),
    xlabel="updates",
    ylabel="probability",
    title="15 completions: blue right, grey wrong",
)
show(figure)
start, end = (trace[[0, -1]] @ R).tolist()
assert R[favourite] == 1 and (round(start, 2), round(end, 2)) == (0.19, 0.93)

# %% [text]
# *The black line is the **success probability** $p$, the probability that a completion is right, here the sum of the blue lines.
# `{=texts[favourite]}` runs ahead: it was likelier than the other right ones, and what is rewarded is
# sampled more often.*
#
# What happened in the very first pass?

# %% [fold]
before, after = trace[:2]
for i in batches[0]:
    print(
        f"{texts[i]:4} reward {R[i]:.0f}, its probability: "
        f"{before[i]:.3f} before, {after[i]:.3f} after"
    )
print(f"success probability: {before @ R:.3f} before, {after @ R:.3f} after")
assert math.isclose(0.391**2, after[texts.index("2.")], abs_tol=5e-4)

# %% [text]
# By hand: `2.` has ⅓ · ⅓ = .111. Its score at the empty prefix, in the logits of `1`, `2` and `.`, is 1 for the token taken, 0 for others, less
# their probabilities: $(-\frac13, \frac23, -\frac13)$. One completion of four is rewarded, so the logits move by ¼ of that, to
# $(-\frac1{12}, \frac16, -\frac1{12})$. The softmax gives `2` .391, likewise `.` after `2`, and $.391^2 = .153$.
#
# The other three add nothing; they become less probable because probabilities sum to 1. So a batch of four without a right completion
# changes nothing. That has the probability $(1-p)^4$: at the start {=(1 - start) ** 4:.0%}, at $p = .001$ {=(1 - 0.001) ** 4:.1%}.
#
# ## What can go wrong? Four baselines
#
# So the loop learns, but from chance: four other completions would have given another update. How much updates scatter from batch to batch
# is their **noise**, measured by the variance.
#
# To change it, and not the mean, one subtracts a number $b$, the **baseline**, from every reward. The difference, $R - b$, is the **advantage**: if positive, it makes a
# completion more probable, if negative, less. [Lesson 1](01_score_function.ipynb) proves that the *mean* update is $\nabla p$, the gradient
# of $p$, for every $b$. We compare:
#
# - **b = p**: right completions are pushed up and wrong ones down.
# - **b = 0**, no baseline: right completions are pushed up.
# - **b = −3**: as if every reward were 3 points higher. All completions are pushed up, right ones more.
# - **b = 3.42**: all are pushed down, wrong ones more, as noisy as b = −3.
#
# From all 15 completions, the mean and the noise of the update from one:


# %% [fold]
def success(logits):
    return log_probabilities(logits).exp() @ R


BASELINES = {
    "b = p": success,
    "b = 0": lambda logits: 0 * success(logits),
    "b = −3": lambda logits: 0 * success(logits) - 3,
    "b = 3.42": lambda logits: 0 * success(logits) + 3.42,
}


def mean_and_variance(logits, baseline):
    """The mean (21,) of the update from one completion, and its variance, over all logits."""
    pi = log_probabilities(logits).exp()
    scores = jacrev(log_probabilities)(logits).flatten(1)  # (15, 21)
    updates = (R - baseline(logits))[:, None] * scores  # (15, 21)
    mean = pi @ updates
    return mean, (pi @ (updates - mean).square().sum(dim=1)).item()


start_logits, variances = torch.zeros(7, 3).double(), {}
for name, baseline in BASELINES.items():
    mean, variances[name] = mean_and_variance(start_logits, baseline)
    exact = torch.allclose(mean, grad(success)(start_logits).flatten(), rtol=0, atol=1e-12)
    assert exact
    print(f"{name:8} mean update = gradient of p, within 1e-12: {exact}", end="   ")
    print(f"variance {variances[name]:5.2f}")

# %% [markdown]
# Does the noise matter? We train with each baseline: 1,000 runs of 200 updates, 4 completions per update. A run is **lost** if it ends with
# $p < .1$. *Guess: how many are lost at rate 4, with $b = 0$, $-3$ and $3.42$?* Then open the output (click the … under the cell) and
# move the rate.


# %% [fold] guess
def train(baseline, rate, runs=1000, updates=200, batch=4):
    """(updates + 1, runs): the exact success probability along independent runs."""
    generator = torch.Generator().manual_seed(0)
    logits, curves = torch.zeros(runs, 7, 3).double(), []
    for _ in range(updates + 1):
        logits.requires_grad_()
        log_pi = log_probabilities(logits)  # (runs, 15)
        pi = log_pi.detach().exp()
        curves.append(pi @ R)  # (runs,)
        drawn = torch.multinomial(pi, batch, True, generator=generator)  # (runs, batch)
        b = baseline(logits.detach())[:, None]
        loss = -((R[drawn] - b) * log_pi.gather(1, drawn)).mean(dim=1).sum()
        logits = (logits - rate * torch.autograd.grad(loss, logits)[0]).detach()
    return torch.stack(curves)


RATES = [1.0, 0.2, 0.5, 2.0, 4.0]  # the slider begins at the first
curves = {rate: {name: train(b, rate) for name, b in BASELINES.items()} for rate in RATES}
lost = {
    name: [(curves[rate][name][-1] < 0.1).double().mean().item() for rate in (0.2, 1.0, 4.0)]
    for name in BASELINES
}
assert max(lost["b = p"] + lost["b = 0"]) == 0
# three and two in ten, as the claim says
assert 0.15 < lost["b = 3.42"][1] < 0.25 < lost["b = −3"][1] < 0.34
logits = start_logits  # to a policy halfway, along the exact gradient
while success(logits) < 0.5:
    logits = logits + 0.05 * grad(success)(logits)
halfway = {name: mean_and_variance(logits, b)[1] for name, b in BASELINES.items()}
for noise in (variances, halfway):
    assert noise["b = p"] < noise["b = 0"] < noise["b = 3.42"]
assert round(variances["b = −3"], 1) == round(variances["b = 3.42"], 1) == 14.7
knob(lambda rate: fans(curves[rate], rate), rate=RATES)
rows = "\n".join(
    f"| {name} | {variances[name]:.2f} | " + " | ".join(f"{1000 * x:.0f}" for x in shares) + " |"
    for name, shares in lost.items()
)
say(f"""*Line: the median run. Band: the middle eight runs in ten.*

**The answer.** Lost runs, of 1,000:

| | noise at the start | rate .2 | rate 1 | rate 4 |
|---|---|---|---|---|
{rows}

**Only the two noisy ones lose runs, whether they push up or down.** A large noisy step can make the right
completions improbable by chance; then they are hardly ever sampled, and nothing brings them back. Small steps
mostly average the noise out. (Noise is not the whole story: $b = -3$ loses more. It also pushes up a wrong completion
that was sampled by chance, and so it is sampled again. Halfway, at $p = ½$, the noise has the same order.)""")

# %% [markdown]
# ## Exercises
#
# Now without autograd. The smallest policy has one logit $z$ and two completions: the right one has
# probability $p = 1/(1 + e^{-z})$, the wrong one $1 - p$.
#
# **1. Write the loop.** Each update uses one completion: it is right if the next number in `uniforms` (random, between 0 and 1) is below $p$.
# It receives the reward 1 or 0, and $z$ makes a step with baseline $b$ and learning rate `rate`. Collect $p$ before each update.


# %% [exercise]
def learn(z, uniforms, b, rate):
    """A list: the success probability before each update, one update for each number."""
    return ...


# %% [check]
check("0.1", learn)
trains("0.1", learn)  # from p = .12, with b = .5

# %% [markdown]
# *"Score as if right": a sampled wrong completion gets the right one's score. "Slope of p": the slope of the probability in place of its
# logarithm's.*

# %% [hint]
# Five lines inside `for u in uniforms:`, namely $p$, a note of it, the reward, the score, the step. For the score, differentiate $\log p$ with
# respect to $z$, and $\log(1 - p)$ as well. Which of the two was sampled?


# %% [solution]
def learn(z, uniforms, b, rate):
    curve = []
    for u in uniforms:
        p = 1 / (1 + math.exp(-z))
        curve.append(p)
        R = 1 if u < p else 0  # sample and verify
        score = 1 - p if R == 1 else -p
        z = z + rate * (R - b) * score  # update
    return curve


# %% [markdown]
# **2. Which baseline is the least noisy?** Before you calculate: at $p = .9$, is it $b = 0$, $b = .5$ or $b = .9$? Then write a function
# that picks the candidate with the smallest variance of the estimate $(R - b)\,\nabla\log\pi$ of one completion.


# %% [exercise]
def least_noisy(p, candidates):
    """The b among the candidates whose estimate has the smallest variance."""
    return ...


# %% [check]
check("0.2", least_noisy)

# %% [hint]
# There are two outcomes, so the variance is an exact sum: list them with their probabilities and estimates. The mean is the same for
# every b, so the mean square is enough.


# %% [solution]
def least_noisy(p, candidates):
    def mean_square(b):
        return p * ((1 - b) * (1 - p)) ** 2 + (1 - p) * ((0 - b) * -p) ** 2

    return min(candidates, key=mean_square)


# %% [markdown]
# <details><summary>After the exercise</summary>
#
# At $p = .9$ it is $b = 0$, not the mean reward: the rare wrong completion has the long score, and $b = 0$ leaves it out. Of all
# numbers the best is $b = 1 - p$: there both outcomes give the estimate $p(1-p)$, and no noise is left. (In the policy with 15 completions
# right and wrong ones have scores of similar length, so there $b = p$ is the quieter.)
#
# </details>
#
# ## To remember
#
# The policy samples, the verifier rewards, and rewarded completions become more probable. A baseline that does not depend on the completion
# leaves the mean update unchanged. It changes the noise, and with large steps noise can ruin a run, whichever way it pushes.
#
# Sources: Williams 1992 (*Machine Learning* 8, REINFORCE). The policy and its runs are ours.
