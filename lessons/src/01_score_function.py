# %% [markdown]
# # 1 · Score function and baseline
#
# A language model writes a response, a verifier says right or wrong, and the model should become right more often.
# The verifier cannot be differentiated. REINFORCE (Williams 1992) gets a gradient all the same, by sampling, and may
# subtract a number $b$ from every reward, the **baseline**. The claim of this lesson:
#
# > **A baseline changes the variance of the gradient estimate, never its mean.**
#
# We prove it, and check it on policies so small that every response can be listed: the averages are exact.
#
# | symbol | meaning |
# |---|---|
# | $x$, $y$ | a prompt, and a **response** to it: tokens $y_1, y_2, \dots$ up to and including the end-of-sequence token (**EOS**) |
# | $\lvert y\rvert$ | its length in tokens. EOS counts: to stop is an action like any other |
# | $\theta$ | the parameters of the model |
# | $\pi(y)$ | the **policy**: the model's probability of $y$ given $x$, a product over the tokens |
# | $R(y)$ | the **reward**: 1 if $y$ is right, 0 if it is wrong |
# | $p$ | the success probability, $\sum_y \pi(y) R(y)$ |
# | $\mathbb E$ | the average over responses drawn from the policy: $\mathbb E[f] = \sum_y \pi(y) f(y)$ |
# | $s(y)$ | the **score** of $y$: $\nabla_\theta \log \pi(y)$, one number for each parameter |
#
# The score is not a mark: it is the direction in which $y$ becomes likelier. The mark is $R$.

# %%
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from algorithms import reinforce
from lessons.float64 import to_float64
from lessons.kit import BLUE, GREEN, GREY, ORANGE, RED, check, knob, label_line, new_figure, show_source
from toy_env.arithmetic import Problem, reward
from toy_env.model import load_policy
from toy_env.rollout import Rollout, completion_logps, sample

# %% [markdown]
# ## A policy with fifteen responses
#
# The prompt is "name an even number". There are three tokens: `1`, `2`, and the full stop, which is EOS. After three
# tokens a response is cut; if it has not ended by then, it is wrong. The policy is a table: for each of the seven
# possible prefixes, three logits, whose softmax is the distribution of the next token. 21 parameters in all.

# %%
TOKENS, EOS, LIMIT = "12.", 2, 3


def continuations(prefix=()):
    """All responses that begin with `prefix`: up to the first EOS, or cut at LIMIT tokens without one."""
    if len(prefix) == LIMIT or EOS in prefix:
        return [prefix]
    return [y for token in range(3) for y in continuations((*prefix, token))]


responses = continuations()
texts = ["".join(TOKENS[token] for token in y) for y in responses]
lengths = np.array([len(y) for y in responses])
R = np.array([float(text.endswith("2.")) for text in texts])

prefixes = sorted({y[:t] for y in responses for t in range(len(y))})
theta = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(10)).requires_grad_()


def table(prefix):
    """(3,): the distribution of the token that follows the prefix."""
    return theta[prefixes.index(prefix)].softmax(dim=0)


def probabilities(next_token):
    """(15,): pi(y) of every response, a product of probabilities, with gradient."""
    return torch.stack([torch.stack([next_token(y[:t])[token] for t, token in enumerate(y)]).prod() for y in responses])


every_pi = probabilities(table)
pi = every_pi.detach().numpy()
success = every_pi @ torch.tensor(R)
grad_p = torch.autograd.grad(success, theta, retain_graph=True)[0].flatten().numpy()
p = success.item()

for i in np.argsort(-pi):
    print(f"{texts[i]:4} {'right' if R[i] else 'wrong'}{'' if '.' in texts[i] else ', cut':5}  pi = {pi[i]:.3f}")
assert abs(pi.sum() - 1) < 1e-12
print(f"\n{len(responses)} responses, sum of pi = 1: {abs(pi.sum() - 1) < 1e-12}, p = {p:.3f}")

# %% [markdown]
# `grad_p` is the truth to estimate: $\nabla p$ from the definition of $p$, with no logarithm and no score in it. A
# real model has too many responses for this.
#
# ## The score
#
# The probability of a response is a product over its tokens, so its logarithm is a sum, and so is the score:
#
# $$s(y) = \nabla \log \pi(y) = \sum_{t=1}^{\lvert y\rvert} \nabla \log \pi(y_t \mid y_{<t})$$
#
# where $y_{<t}$ are the tokens before $y_t$. In code, each response is a row padded to three tokens. As usual, EOS
# serves as padding too, and a **mask** says which tokens are real.

# %%
ids = torch.tensor([[*y, *[EOS] * (LIMIT - len(y))] for y in responses])  # (15, 3)
mask = torch.arange(LIMIT) < torch.tensor(lengths).unsqueeze(1)  # (15, 3), True up to and including the EOS
state = torch.tensor([[prefixes.index(y[: min(t, len(y) - 1)]) for t in range(LIMIT)] for y in responses])
logps = theta.log_softmax(dim=1)[state, ids] * mask  # (15, 3)


def scores(totals):
    """(15, 21): the gradient of each entry of `totals`, one entry a response."""
    rows = [torch.autograd.grad(total, theta, retain_graph=True)[0].flatten() for total in totals]
    return torch.stack(rows).numpy()


s = scores(logps.sum(dim=1))
first = s[texts.index("2.")].reshape(7, 3)[prefixes.index(())]
print("score of '2.', at the logits of the first token (1, 2, full stop):", first.round(2))
assert np.abs(pi @ s).max() < 1e-12
print("mean score E[s] = 0:", np.abs(pi @ s).max() < 1e-12)

# %% [markdown]
# To make `2.` likelier, raise the logit of `2` first, and lower the other two. But the *mean* score is zero: the
# heart of the proof.
#
# ## The theorem, in four steps
#
# **Step 1.** The derivative of a logarithm gives $\nabla \pi(y) = \pi(y)\, \nabla \log \pi(y)$. So
#
# $$\nabla p = \sum_y R(y)\, \nabla \pi(y) = \sum_y \pi(y)\, R(y)\, s(y) = \mathbb E[R\, s]$$
#
# The last form can be *sampled*: draw responses, average $R\,s$. Nobody differentiates the reward.
#
# **Step 2.** Probabilities sum to 1 whatever the parameters are, so the mean score is zero:
#
# $$\mathbb E[s] = \sum_y \pi(y)\, \nabla \log \pi(y) = \nabla \sum_y \pi(y) = \nabla 1 = 0$$
#
# **Step 3.** Therefore, for every number $b$,
#
# $$\mathbb E[(R - b)\, s] = \mathbb E[R\, s] - b\, \mathbb E[s] = \nabla p$$
#
# $b$ may differ from prompt to prompt. If it depended on the response, it could not be taken out of $\mathbb E$.
#
# **Step 4.** One sample of the estimate is $g = (R-b)\,s$. Its variance, summed over the parameters, is
#
# $$V(b) = \mathbb E\,\|g\|^2 - \|\mathbb E\, g\|^2 = \mathbb E\big[(R-b)^2\, \|s\|^2\big] - \|\nabla p\|^2$$
#
# Only the first term knows $b$: a parabola, open upwards. ∎
#
# **Token by token.** Given the tokens before it, the probabilities of $y_t$ sum to 1 as well. So step 2 holds for the
# score of one token, $s_t = \nabla\log\pi(y_t \mid y_{<t})$, and for every factor $c_t$ that depends on $y_{<t}$ only:
#
# $$\mathbb E[c_t\, s_t] = \mathbb E\big[c_t\; \mathbb E[s_t \mid y_{<t}]\big] = 0$$
#
# - **Causality.** Rewards received before $y_t$ are such a factor: $s_t$ needs only those from $y_t$ on.
# - **A baseline $b_t$ may depend on $y_{<t}$**, subtracted *at its own token*:
#   $\mathbb E\big[\sum_t (R - b_t)\, s_t\big] = \nabla p$. On the whole score the same $b_t$ is biased: by step 1,
#   $\mathbb E[b_t\, s] = \nabla\, \mathbb E[b_t]$, in general not 0.
#
# The check lists all fifteen responses; autograd gives the truths without a score. What multiplies the score is called
# the **advantage**, $A$. The script has no baseline, $A = R$.

# %%
A = reinforce.compute_advantages(rewards=torch.tensor(R).view(1, -1)).numpy().T  # (15, 1): one for all tokens
s_token = np.stack([scores(logps[:, t]) for t in range(LIMIT)], axis=1)  # (15, 3, 21), 0 on the padding
rng, real = np.random.default_rng(0), mask.numpy()
b_t = rng.random(7)[state] * real  # (15, 3): a random number for each prefix
b_2 = b_t[:, [1]]
r = rng.normal(size=(7, 3))[state, ids] * real  # (15, 3): a random reward for each token
total, before = r.sum(axis=1, keepdims=True), r.cumsum(axis=1) - r


def gradient(values):
    """Of E[values], by autograd."""
    return torch.autograd.grad(every_pi @ torch.tensor(values[:, 0]), theta, retain_graph=True)[0].flatten().numpy()


def compare(estimate, factors, truth, equal=True):
    """factors: what multiplies the score of each token. (15, 3), or (15, 1) for all tokens alike."""
    error = np.abs(np.einsum("y,yt,ytk->k", pi, factors * real, s_token) - truth).max()
    assert error < 1e-12 if equal else error > 0.01
    print(f"{estimate:52} within 1e-12: {error < 1e-12}")


for b in (-1.0, 0.0, 0.25, 1.0, 10.0):
    compare(f"E[(R - b) s] = grad p, b = {b}", A - b, grad_p)
compare("E[(R - b_2) s] = grad p", A - b_2, grad_p, equal=False)
compare("E[(R - b_2) s] = grad p - grad E[b_2]", A - b_2, grad_p - gradient(b_2))
compare("E[sum of (R - b_t) s_t] = grad p", A - b_t, grad_p)
compare("E[sum of (rewards before y_t) s_t] = 0", before, 0)
compare("E[sum of (rewards from y_t on) s_t] = grad E[total]", total - before, gradient(total))

# %% [markdown]
# ## What the baseline does change
#
# $V(b)$ is the variance with one response. With $B$ independent ones it is $V(b)/B$: half the variance is worth twice
# the responses. We compute $V$ by listing, and also measure it on 4,000 sampled batches of 64 responses.


# %%
def variance(b, pi=pi, R=R, s=s):
    """V(b): the mean squared distance of (R - b) s from its mean, by listing."""
    g = (R - b)[:, None] * s
    return pi @ ((g - pi @ g) ** 2).sum(axis=1)


def parabola(pi=pi, R=R, s=s):
    """The three coefficients of the parabola through V(-1), V(0) and V(1), the highest power first."""
    return np.polyfit([-1, 0, 1], [variance(b, pi, R, s) for b in (-1, 0, 1)], 2)


grid = np.linspace(-0.3, 1.3, 81)
assert np.allclose(np.polyval(parabola(), grid), [variance(b) for b in grid], rtol=1e-10)
b_best = -parabola()[1] / (2 * parabola()[0])  # the lowest point

batches = np.random.default_rng(0).multinomial(64, pi, size=4000) / 64  # (4000, 15): shares of the responses
lines = ["baseline                   b       V(b)   measured   V(b) / V(best)"]
by_length = pi @ (lengths * R) / (pi @ lengths)
for name, b in {"none": 0, "success probability": p, "length-weighted": by_length, "best": b_best, "one": 1}.items():
    measured = 64 * (batches @ ((R - b)[:, None] * s)).var(axis=0).sum()
    assert abs(measured / variance(b) - 1) < 0.06
    lines.append(f"{name:20}   {b:5.3f}   {variance(b):8.4f}   {measured:8.4f}   {variance(b) / variance(b_best):8.2f}")
print("\n".join(lines))

# %% [markdown]
# Move $b$. Each dot is a response: its area is the probability, its place the estimate $g$ that it alone would give,
# in two of the 21 dimensions: along $\nabla p$, and where the scores vary most across it. The cross is the mean.

# %%
along = grad_p / np.linalg.norm(grad_p)
across = s - np.outer(s @ along, along)
widest = np.linalg.svd(np.sqrt(pi)[:, None] * across, full_matrices=False)[2][0]
view = np.stack([along, widest * np.sign(widest[np.abs(widest).argmax()])], axis=1)  # (21, 2)


def cloud(axis, b):
    dots = ((R - b)[:, None] * s) @ view
    for value, color, height, name in ((1, BLUE, 0.93, "right"), (0, RED, 0.86, "wrong")):
        rows = value == R
        axis.scatter(*dots[rows].T, s=1500 * pi[rows], color=color, alpha=0.55, linewidth=0)
        axis.text(0.04, height, f"● {name}", color=color, transform=axis.transAxes)
    axis.plot(*(pi @ dots), "+", color="black", markersize=18, markeredgewidth=2.5)
    axis.text(0.04, 0.79, "+ mean", transform=axis.transAxes)
    axis.set(xlabel="along ∇p", xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")


def draw(b):
    figure, (left, middle, right) = new_figure(11, 3.6, columns=3)
    cloud(left, 0)
    for i in np.flatnonzero(R):
        label_line(left, *(s[i] @ view), texts[i], BLUE, xytext=(3 + 22 * pi[i] ** 0.5, 0))
    left.set(title="Estimates without a baseline", ylabel="across")
    cloud(middle, b)
    middle.set(title=f"Estimates with b = {b:.2f}")
    right.plot(grid, [variance(b) for b in grid], color=GREY)
    points = (
        ("none", 0, GREY, (5, 6), "left"),
        ("p", p, ORANGE, (8, -7), "left"),
        ("best", b_best, GREEN, (0, -16), "center"),
    )
    for name, x, color, offset, side in points:
        right.plot(x, variance(x), "o", color=color, markersize=8)
        label_line(right, x, variance(x), name, color, xytext=offset, ha=side)
    right.plot(b, variance(b), "o", color="black", markersize=14, fillstyle="none", markeredgewidth=1.5)
    title = f"V(b) = {variance(b):.2f}, {variance(b) / variance(b_best):.2f} times the best"
    right.set(title=title, xlabel="b", xlim=(-0.35, 1.35), ylim=(0, 1.2))
    return figure


knob(draw, b=(-0.25, 1.25, 0.05, 0.35))

# %% [markdown]
# *Whatever the baseline, the cross stays where it is; only the cloud around it widens or shrinks.*
#
# Without a baseline all wrong responses lie on the origin: their advantage is 0. **With 0-1 rewards and no baseline,
# REINFORCE only pushes right answers up**; a wrong one moves only because probabilities sum to 1 and parameters are
# shared. With $0 < b < 1$ right answers are pushed up less, and wrong ones down. The mean gradient is the same.
#
# ## Is $p$ the best baseline?
#
# The usual baseline is the mean reward. It is not the best in the table, and can be far worse than none. Take a coin:
# one logit, right with probability $p = 0.9$. Its two scores are $1 - p$ (right) and $-p$ (wrong).

# %%
coin = {"pi": np.array([0.9, 0.1]), "R": np.array([1.0, 0.0]), "s": np.array([[0.1], [-0.9]])}
for b in (0, 0.9, 0.1):
    print(f"coin, b = {b}: V = {variance(b, **coin):.4f}")
assert variance(0.1, **coin) < 1e-30

# %% [markdown]
# With $b = p$ the variance is 64 times that of no baseline; with $b = 1 - p$ it is zero, because both sides of the
# coin then give the same $g$. The rare side has the long score, and that must count (exercise 2). Is a language model
# like that? Here is the repository's base model: three prompts, 512 sampled answers each.

# %%
base, tokenizer = load_policy("base")
generator = torch.Generator().manual_seed(0)


def measure(problem):
    """The rewards, lengths and squared score lengths of 512 answers, (512,) each."""
    drawn = sample(
        base, tokenizer, [problem.prompt], group_size=512, max_new_tokens=56, temperature=1.0, generator=generator
    )
    squared = {}  # of each different text once
    for i, text in enumerate(drawn.texts):
        if text not in squared:
            total = completion_logps(base, drawn[torch.tensor([i])], temperature=1.0).sum()
            parts = torch.autograd.grad(total, list(base.parameters()))
            squared[text] = sum(part.square().sum().item() for part in parts)
    rewards = np.array([reward(problem, text) for text in drawn.texts])
    return rewards, drawn.mask.sum(dim=1).numpy(), np.array([squared[text] for text in drawn.texts])


def mean_square(b, rewards, squared):
    """The mean of |g|^2 = (R - b)^2 |s|^2: V(b), plus a constant that no b changes."""
    return np.mean((rewards - b) ** 2 * squared)


lines = [
    "           mean |s|^2 of     baselines                 mean |g|^2 with b =",
    "prompt      right   wrong      p   by length   best    none      p    best",
]
for problem in (Problem("35+14", 49, level=1), Problem("2+10+2", 14, level=2), Problem("19+28-25", 22, level=2)):
    rewards, tokens, squared = measure(problem)
    values = [mean_square(b, rewards, squared) for b in (-1, 0, 1)]
    square, linear, _ = np.polyfit([-1, 0, 1], values, 2)
    baselines = rewards.mean(), rewards @ tokens / tokens.sum(), -linear / (2 * square)
    right, wrong = squared[rewards == 1].mean(), squared[rewards == 0].mean()
    assert wrong > right and baselines[2] < baselines[0]
    none, by_mean, by_best = (mean_square(b, rewards, squared) for b in (0, baselines[0], baselines[2]))
    lines.append(
        f"{problem.prompt:10} {right:6.0f}  {wrong:6.0f}   {baselines[0]:.2f}        {baselines[1]:.2f}   "
        f"{baselines[2]:.2f}   {none:5.0f}  {by_mean:5.0f}   {by_best:5.0f}"
    )
print("\n".join(lines))

# %% [markdown]
# On these three prompts wrong answers have the longer scores, so the best baseline lies below $p$, and on the first,
# an easy one, $p$ is much worse than none, as for the coin. Weaver and Tao (2001) found the average reward optimal in
# a limit of their own setting; in general it is not (Greensmith, Bartlett and Baxter 2004). But it needs no scores, it
# is the best where $\|s\|^2$ does not depend on the reward, and a prompt that is always answered right moves nothing.
#
# ## The script's own loss, and a transformer
#
# An optimizer wants a loss. The gradient of this one is minus the estimate, times a constant:

# %%
show_source(reinforce.policy_loss)

# %% [markdown]
# - `-advantages * logps`: the advantage is a plain number; the gradient runs through `logps` only.
# - `(per_token * mask).sum()`: the sum over tokens that makes a score.
# - `/ (len(mask) * config.max_new_tokens)`: the mean over the responses, and a constant, the same for every response.
#   It rescales the gradient and does not turn it. AdamW hardly notices; the gradient-norm clip does.
#
# Nothing in the proof needed a table. The same check on a small transformer, through this loss:

# %%
torch.manual_seed(1)
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
llama = LlamaForCausalLM(LlamaConfig(vocab_size=3, initializer_range=0.4, bos_token_id=EOS, eos_token_id=EOS, **sizes))
llama = to_float64(llama.eval())
B = len(responses)
rollout = Rollout(
    prompt_ids=torch.full((B, 1), EOS),  # the prompt: one token
    prompt_mask=torch.ones(B, 1, dtype=torch.bool),
    completion_ids=ids,
    mask=mask,
    logps=torch.zeros(B, LIMIT),
    entropies=torch.zeros(B, LIMIT),
    truncated=torch.tensor([EOS not in y for y in responses]),
    texts=texts,
)


def flat_gradient(value):
    parts = torch.autograd.grad(value, list(llama.parameters()), retain_graph=True)
    return torch.cat([part.flatten() for part in parts])


pi_llama = probabilities(lambda prefix: llama(input_ids=torch.tensor([[EOS, *prefix]])).logits[0, -1].softmax(dim=0))
truth = flat_gradient(pi_llama @ torch.tensor(R))
logps_llama = completion_logps(llama, rollout, temperature=1.0)
config = reinforce.Config(max_new_tokens=LIMIT)

lines = [f"{llama.num_parameters():,} parameters, p = {(pi_llama.detach() @ torch.tensor(R)).item():.3f}"]
for b in (-1.0, 0.0, 0.25, 1.0, 10.0):
    advantages = reinforce.compute_advantages(rewards=torch.tensor(R).view(1, B)).view(B, 1) - b
    losses = [
        reinforce.policy_loss(logps=logps_llama[[i]], advantages=advantages[[i]], mask=mask[[i]], config=config)
        for i in range(B)
    ]
    mean = -LIMIT * flat_gradient(pi_llama.detach() @ torch.stack(losses))
    error = ((mean - truth).norm() / truth.norm()).item()
    assert error < 1e-12
    lines.append(
        f"b = {b:5}: mean of -{LIMIT} * gradient of the loss = grad p, relative error < 1e-12: {error < 1e-12}"
    )
print("\n".join(lines))

# %% [markdown]
# ## Why the sum over tokens, and not the mean
#
# Because $\log \pi(y)$ *is* a sum. The mean over the tokens, $s(y)/\lvert y\rvert$, looks harmless. But the length
# depends on the response, so this is another estimator. By steps 1 and 2 its mean is
#
# $$\mathbb E\Big[(R-b)\,\frac{s}{\lvert y\rvert}\Big] = \nabla\,\mathbb E\Big[\frac{R}{\lvert y\rvert}\Big]
# - b\,\nabla\,\mathbb E\Big[\frac{1}{\lvert y\rvert}\Big]$$
#
# It climbs another quantity, and the baseline is no longer free: with $b > 0$ its term climbs
# $-\mathbb E[1/\lvert y\rvert]$, which favours *long* responses.


# %%
def direction(v):
    """The cosine of the angle to grad p: 1 is the same direction."""
    return v @ grad_p / np.linalg.norm(v) / np.linalg.norm(grad_p)


for b in (0, 0.5, 1):
    mean = pi @ ((R - b)[:, None] * s / lengths[:, None])
    objective = every_pi @ torch.tensor((R - b) / lengths)
    predicted = torch.autograd.grad(objective, theta, retain_graph=True)[0].flatten().numpy()
    error = np.linalg.norm(mean - predicted) / np.linalg.norm(predicted)
    assert error < 1e-12
    print(f"token mean, b = {b:3}: as predicted to 1e-12: {error < 1e-12}; cosine with grad p = {direction(mean):.3f}")

# %% [markdown]
# [Lesson 5](05_length.ipynb): what this does in GRPO.
#
# ## Exercises
#
# **1. Derive the score of a softmax policy.** One token is drawn from $\mathrm{softmax}(z)$ with logits $z$. Write
# the gradient of $\log \mathrm{softmax}(z)_a$ with respect to all of $z$.


# %% [exercise]
def softmax_score(logits, token):
    """The gradient of log softmax(logits)[token] with respect to the logits: as long as the logits."""
    softmax = np.exp(logits) / np.exp(logits).sum()
    return ...


# %% [check]
def by_autograd(logits, token):
    z = torch.tensor(logits, requires_grad=True)
    return torch.autograd.grad(z.log_softmax(dim=0)[token], z)[0]


check(
    softmax_score,
    by_autograd,
    inputs=[
        {"logits": np.array([0.0, 1.0, -1.0]), "token": 1},
        {"logits": np.array([2.0, 0.5, 0.0, 1.0]), "token": 3},
    ],
    mistakes={
        "the sign: this is the gradient of the cross-entropy, minus the log-probability": lambda **given: (
            -by_autograd(**given)
        ),
        "that is the gradient of the probability; the logarithm divides it by the probability": lambda logits, token: (
            by_autograd(logits, token) * torch.tensor(logits).softmax(dim=0)[token]
        ),
        "the other logits matter too: they are in the denominator of the softmax": lambda logits, token: (
            by_autograd(logits, token) * (torch.arange(len(logits)) == token)
        ),
    },
)

# %% [hint]
# log softmax(z)_a = z_a − log Σ_j exp(z_j). The first term has derivative 1 at a and 0 elsewhere. What is the
# derivative of the second with respect to z_j?


# %% [solution]
def softmax_score(logits, token):
    softmax = np.exp(logits) / np.exp(logits).sum()
    return (np.arange(len(logits)) == token) - softmax


# %% [wrong] the sign
def softmax_score(logits, token):
    softmax = np.exp(logits) / np.exp(logits).sum()
    return softmax - (np.arange(len(logits)) == token)


# %% [wrong] the gradient of the probability
def softmax_score(logits, token):
    softmax = np.exp(logits) / np.exp(logits).sum()
    return softmax[token] * ((np.arange(len(logits)) == token) - softmax)


# %% [wrong] the other logits matter too
def softmax_score(logits, token):
    softmax = np.exp(logits) / np.exp(logits).sum()
    return (np.arange(len(logits)) == token) * (1 - softmax)


# %% [markdown]
# **2. The optimal baseline.** Minimise $V(b)$ of step 4 by hand and write the $b$ at the lowest point, from the
# probabilities `pi` (n,), the rewards `R` (n,) and the scores `s` (n, parameters).


# %% [exercise]
def optimal_baseline(pi, R, s):
    """The b that minimises E[(R - b)^2 |s|^2]."""
    return ...


# %% [check]
def lowest_point(pi, R, s):
    square, linear, _ = parabola(pi, R, s)
    return -linear / (2 * square)


policies = [{"pi": pi, "R": R, "s": s}, coin]
check(
    optimal_baseline,
    lowest_point,
    inputs=policies,
    mistakes={
        "that is p, the mean reward: weigh each response with the squared length of its score": lambda pi, R, s: pi @ R,
        "square it: the weight is |s|^2, not |s|": lambda pi, R, s: (
            pi @ (R * np.linalg.norm(s, axis=1)) / (pi @ np.linalg.norm(s, axis=1))
        ),
        "divide by the mean of |s|^2": lambda pi, R, s: pi @ (R * (s**2).sum(axis=1)),
        "responses are not equally likely: average with pi": lambda pi, R, s: (
            (R * (s**2).sum(axis=1)).sum() / (s**2).sum()
        ),
    },
)

# %% [hint]
# The derivative of E[(R − b)²|s|²] with respect to b is −2 E[(R − b)|s|²]. Set it to 0 and solve for b. The squared
# lengths are `(s**2).sum(axis=1)`.


# %% [solution]
def optimal_baseline(pi, R, s):
    squared = (s**2).sum(axis=1)
    return pi @ (R * squared) / (pi @ squared)  # E[R |s|^2] / E[|s|^2]: a mean reward in which long scores weigh more


# %% [wrong] that is p, the mean reward
def optimal_baseline(pi, R, s):
    return pi @ R


# %% [wrong] square it
def optimal_baseline(pi, R, s):
    size = np.linalg.norm(s, axis=1)
    return (pi * size) @ R / (pi @ size)


# %% [wrong] divide by the mean
def optimal_baseline(pi, R, s):
    return pi @ (R * (s**2).sum(axis=1))


# %% [markdown]
# (Where $\|s\|^2$ grows in proportion to the length, this is the length-weighted mean reward of the two tables, OPO's
# baseline, [2505.23585](https://arxiv.org/abs/2505.23585). In our base model it does not: on the last two prompts
# `by length` lies above $p$, and the best below.)
#
# **3. $b = 0$ is not the worst choice.** With rewards 0 and 1, exactly the baselines between 0 and some end have less
# variance than none. Where is the end? (Compare it with $p$ for the coin.)


# %% [exercise]
def end_of_the_better(pi, R, s):
    """The number e such that V(b) < V(0) exactly where 0 < b < e."""
    return ...


# %% [check]
def other_root(pi, R, s):
    square, linear, constant = parabola(pi, R, s)
    return max(np.roots([square, linear, constant - variance(0, pi, R, s)]).real, key=abs)


check(
    end_of_the_better,
    other_root,
    inputs=policies,
    mistakes={
        "that is the best baseline; beyond it V rises, but stays below V(0) for a while": lowest_point,
        "a parabola is symmetric about its lowest point, and that is not p": lambda pi, R, s: 2 * pi @ R,
        "not all b below 1: V knows the scores as well as the rewards": lambda pi, R, s: 1.0,
    },
)

# %% [hint]
# A parabola is symmetric about its lowest point. Which b is the mirror image of 0?


# %% [solution]
def end_of_the_better(pi, R, s):
    squared = (s**2).sum(axis=1)
    return 2 * (pi @ (R * squared)) / (pi @ squared)  # the coin: 0.2, and p = 0.9 lies far outside


# %% [wrong] that is the best baseline
def end_of_the_better(pi, R, s):
    squared = (s**2).sum(axis=1)
    return pi @ (R * squared) / (pi @ squared)


# %% [wrong] that is not p
def end_of_the_better(pi, R, s):
    return 2 * (pi @ R)


# %% [markdown]
# **4. Find the bug.** Many tokenizers have no padding token, so EOS is used for it. The mask `ids != pad` then leaves
# out the EOS that ended the response, too, and the decision to stop is never trained. Several public trainers have
# had this bug. What it does to our policy:

# %%
s_bug = scores((logps * (ids != EOS)).sum(dim=1))
assert np.abs(pi @ s_bug).max() > 0.1
print(f"mean score with the bug is 0: {np.abs(pi @ s_bug).max() < 1e-12}")
for b in (0, 0.5, 1):
    print(f"b = {b:3}: cosine of the mean estimate with grad p = {direction(pi @ ((R - b)[:, None] * s_bug)):.3f}")

# %% [markdown]
# The estimate is biased, and again the baseline is not free. Repair the mask: true up to and *including* the first
# EOS. What comes later is padding, whatever its id.


# %% [exercise]
def response_mask(ids, eos):
    """ids (B, T) to (B, T), True on the tokens of the response."""
    return ids != eos  # <- runs, and is wrong


# %% [check]
def by_loop(ids, eos):
    rows = [row.index(eos) + 1 if eos in row else len(row) for row in ids.tolist()]
    return torch.tensor([[t < end for t in range(ids.shape[1])] for end in rows])


check(
    response_mask,
    by_loop,
    inputs=[
        {"ids": torch.tensor([[0, 1, 2, 2, 2], [0, 2, 2, 2, 2], [2, 2, 2, 2, 2], [0, 1, 1, 0, 1]]), "eos": 2},
        {"ids": torch.tensor([[1, 1, 2, 0, 0], [1, 2, 0, 0, 0], [1, 1, 1, 1, 1]]), "eos": 2},  # another padding token
    ],
    mistakes={
        "the EOS itself is still left out": lambda ids, eos: by_loop(ids, eos) & (ids != eos),
        "this trains the padding too": lambda ids, eos: torch.ones_like(ids, dtype=torch.bool),
        "after the first EOS nothing counts, whatever its id": lambda ids, eos: (ids == eos).cumsum(dim=1) <= 1,
    },
    bug=lambda ids, eos: ids != eos,
)

# %% [hint]
# `(ids == eos).cumsum(dim=1)` counts the EOS up to and including a place. A token belongs to the response if there
# was no EOS *before* it.


# %% [solution]
def response_mask(ids, eos):
    is_eos = (ids == eos).long()
    return is_eos.cumsum(dim=1) - is_eos == 0


# %% [wrong] the EOS itself is still left out
def response_mask(ids, eos):
    return (ids == eos).cumsum(dim=1) == 0


# %% [wrong] after the first EOS nothing counts
def response_mask(ids, eos):
    return (ids == eos).cumsum(dim=1) <= 1


# %% [markdown]
# ## What to remember
#
# - The score is $\nabla\log\pi(y)$, a sum over tokens, EOS included. Its mean is zero, so
#   $\mathbb E[(R-b)\,s] = \nabla p$ for every $b$ that does not depend on the response. A token's own score allows a
#   $b_t$ that depends on the tokens before it.
# - The baseline sets the variance, a parabola in $b$. Its lowest point weighs rewards with squared score lengths. It
#   is not $p$ in general, and a bad baseline is worse than none.
# - With a mean over tokens, or a mask without the EOS, the estimate is biased, and the bias depends on the baseline.
#
# Such a $b_t$ can be *learned*: PPO's critic, in [Lesson 2](02_ppo.ipynb). A baseline made from the responses to the
# same prompt is in [Lesson 3](03_group_baseline.ipynb).
#
# Sources: Williams 1992 (*Machine Learning* 8, REINFORCE with a baseline); Weaver and Tao 2001,
# [1301.2315](https://arxiv.org/abs/1301.2315); Greensmith, Bartlett and Baxter 2004 (*JMLR* 5, the optimal baseline);
# Dr. GRPO, [2503.20783](https://arxiv.org/abs/2503.20783), App. A, Eq. 4–5, for language models. The small policies,
# the coin and the measurement are ours.
