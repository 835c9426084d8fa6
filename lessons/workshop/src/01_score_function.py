# %% [markdown] 45 minutes
# # 1 · Score function and baseline
#
# A language model writes a completion, a verifier says whether it is right, and the model should become right more often. The verifier
# cannot be differentiated. REINFORCE (Williams 1992) nevertheless estimates a gradient, by sampling, and may subtract a number $b$, the
# **baseline**, from every reward.
#
# > **A baseline that does not depend on the completion changes how noisy the gradient estimate is, but not its mean; with the usual one,
# > the mean reward, the estimate can be far noisier than without any.**
#
# We give three prompts to the base model of this repository, a small transformer that has learned sums by imitation. It answers `2+10+2?`
# right in nearly half of its attempts.

# %% [fold]
import numpy as np
import torch

from algorithms import reinforce
from lessons.workshop.kit import check, knob, show, show_source, trains
from lessons.workshop.parts.lesson_01 import cloud_and_variance, noise_of_prompts
from toy_env.arithmetic import Problem, reward
from toy_env.model import load_policy
from toy_env.rollout import completion_logps, sample

base, tokenizer = load_policy("base")
weights, generator = list(base.parameters()), torch.Generator().manual_seed(0)

def squared_score(completion):
    gradients = torch.autograd.grad(completion_logps(base, completion, 1.0).sum(), weights)
    return sum(g.square().sum().item() for g in gradients)

measured = {}  # p, and the mean |s|^2 of right and of wrong completions
for problem in (Problem("35+14", 49, 1), Problem("2+10+2", 14, 2), Problem("19+28-25", 22, 2)):
    drawn = sample(base, tokenizer, [problem.prompt], 512, 56, 1.0, generator)
    row_of = dict(zip(drawn.texts, range(512)))  # equal texts have equal scores
    scores = {text: squared_score(drawn[torch.tensor([i])]) for text, i in row_of.items()}
    squared = np.array([scores[text] for text in drawn.texts])
    rewards = np.array([reward(problem, text) for text in drawn.texts])
    lengths = [squared[rewards == R].mean() for R in (1, 0)]
    measured[problem.prompt] = rewards.mean(), *lengths

def noise(b, p, right, wrong):
    """E[(R - b)^2 |s|^2]: the mean squared estimate, Var(b) plus a constant that no b changes."""
    return p * (1 - b) ** 2 * right + (1 - p) * b**2 * wrong

def lowest_point(parabola, *arguments):
    """The b at which parabola(b, *arguments) is smallest."""
    at = [-1, 0, 1]
    square, linear, _ = np.polyfit(at, [parabola(b, *arguments) for b in at], 2)
    return -linear / (2 * square)

bests = {prompt: lowest_point(noise, *each) for prompt, each in measured.items()}
usual = {prompt: noise(each[0], *each) / noise(0, *each) for prompt, each in measured.items()}
assert all(bests[prompt] < each[0] and each[1] < each[2] for prompt, each in measured.items())
coin, coin_gradient = (0.9, 0.1**2, 0.9**2), 0.9 * 0.1  # p, and |s|^2 as in `noise`; dp/dlogit
coin_noise = [[noise(b, *coin) - constant for b in (0.9, 0)] for constant in (0, coin_gradient**2)]
coin_square, coin_variance = (at_p / at_0 for at_p, at_0 in coin_noise)
rows = "\n".join(f"| `{prompt}` | {p:.2f} | {wrong / right:.1f} | {bests[prompt]:.2f} |"
                 for prompt, (p, right, wrong) in measured.items())
show(noise_of_prompts(measured, noise, bests))

# %% [text]
# *How noisy the estimate from one completion is, for every baseline $b$. Noise is here the mean square of the estimate: its variance plus
# $\|\nabla p\|^2$, which no baseline changes. The usual choice is $b = p$, the share of completions that are right. On the easy prompt,
# `{=next(iter(measured))}` ({=measured["35+14?"][0]:.0%} right), it multiplies the mean square by {=usual["35+14?"]:.1f}.*
#
# How can a baseline do harm, and why does the mean not change? We prove both, and check them on a policy so small that all its
# completions can be listed. There a slider shows the whole claim: the cloud of estimates grows and shrinks, its mean stays.
#
# | symbol | meaning |
# |---|---|
# | $x,\ y$ | a prompt, and a completion: tokens $y_1, y_2, \dots$ up to and including the end-of-sequence token (EOS) |
# | $\lvert y\rvert$ | its length in tokens; the EOS counts, because stopping is a decision like any other |
# | $\theta,\ \pi(y)$ | the model's parameters; the **policy**, its probability of $y$ given $x$: a product over the tokens |
# | $R(y)$ | the **reward**: 1 if $y$ is right, 0 if it is wrong |
# | $\mathbb E$ | the mean over completions drawn from the policy: $\mathbb E[f] = \sum_y \pi(y) f(y)$ |
# | $p$ | the success probability, $\mathbb E[R]$ |
# | $s(y)$ | the **score**, $\nabla_\theta \log \pi(y)$: the direction in which $y$ becomes more probable, one entry per parameter |
# | $b,\ A$ | the baseline, and the **advantage** $R - b$ |

# %% [markdown]
# ## A policy with fifteen completions
#
# The prompt is "name an even number". There are three tokens: `1`, `2` and the full stop, which is the EOS. A completion is cut after
# three tokens; without a full stop it is wrong. The policy is a table: three logits for each of the seven possible prefixes, whose
# softmax is the distribution of the next token. That makes 21 parameters.

# %% [fold]
TOKENS, EOS, LIMIT = "12.", 2, 3

def continuations(prefix=()):
    """All completions that begin with `prefix`: up to the first EOS, or LIMIT tokens."""
    if len(prefix) == LIMIT or EOS in prefix:
        return [prefix]
    return [y for token in range(3) for y in continuations((*prefix, token))]

completions = continuations()
texts = ["".join(TOKENS[token] for token in y) for y in completions]
R = torch.tensor([float(text.endswith("2.")) for text in texts]).double()  # (15,)
prefixes = sorted({y[:t] for y in completions for t in range(len(y))})
generator = torch.Generator().manual_seed(10)
theta = torch.randn(7, 3, dtype=torch.float64, generator=generator).requires_grad_()

next_token = {prefix: theta[i].softmax(dim=0) for i, prefix in enumerate(prefixes)}
factors = [[next_token[y[:t]][token] for t, token in enumerate(y)] for y in completions]
every_pi = torch.stack([torch.stack(probabilities).prod() for probabilities in factors])
pi = every_pi.detach()
p = every_pi @ R
grad_p = torch.autograd.grad(p, theta, retain_graph=True)[0].flatten()  # (21,)
for i in pi.argsort(descending=True)[:6]:
    print(f"{texts[i]:4} {'right' if R[i] else 'wrong'}   probability {pi[i]:.3f}")
together = abs(pi.sum() - 1) < 1e-12
print(f"... {len(completions)} completions, together 1: {together}, p = {p:.3f}")

# %% [markdown]
# `grad_p` is the exact value to be estimated: $\nabla p$ from the definition of $p$, without logarithms or scores.
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
# **Step 3.** Therefore, for every number $b$,
#
# $$\mathbb E[(R - b)\, s] = \mathbb E[R\, s] - b\, \mathbb E[s] = \nabla p$$
#
# $b$ may differ from prompt to prompt. If it depended on the completion, it could not be taken out of $\mathbb E$: with the mean reward
# of $G$ completions, which contains the completion's own, the mean estimate is $\frac{G-1}{G}\nabla p$
# ([lesson 3](03_group_baseline.ipynb)).
#
# **Step 4.** The variance of the estimate $(R-b)\,s$ from one completion, summed over the parameters, is
#
# $$\mathrm{Var}(b) = \mathbb E\big[(R-b)^2\, \|s\|^2\big] - \|\nabla p\|^2$$
#
# Only the first term contains $b$, so this is a parabola in $b$ that opens upwards. ∎

# %%
show_source(reinforce.policy_loss)

# %% [markdown]
# This is the loss of `algorithms/reinforce.py`. Minus its gradient is the estimate $A\,s$, averaged over the completions of the batch and
# divided by a constant. (`B` completions have at most `T` tokens; `per_token * mask` is summed over the tokens, because $\log\pi(y)$ is
# such a sum. As usual, the EOS also serves as padding, and the **mask** marks the real tokens.)
#
# The check takes the gradient of this loss for each of the 15 completions and averages with their probabilities:

# %% [fold]
ids = torch.tensor([[*y, *[EOS] * (LIMIT - len(y))] for y in completions])  # (15, 3), padded
mask = torch.arange(LIMIT) < torch.tensor([[len(y)] for y in completions])  # (15, 3), with EOS
before = [[y[: min(t, len(y) - 1)] for t in range(LIMIT)] for y in completions]
prefix_ids = torch.tensor([[prefixes.index(prefix) for prefix in row] for row in before])
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
b_t = torch.rand(7, generator=torch.Generator().manual_seed(0))[prefix_ids]  # one per prefix
A = R.unsqueeze(1)  # without a baseline
named = {f"b = {b}": A - b for b in (-1.0, 0.0, 0.25, 1.0, 10.0)}
named["b = R"] = A - A  # depends on the completion: its own reward
named |= {"b_t, at token t": A - b_t, "b_2, at all tokens": A - b_t[:, [1]]}
error = {name: (pi @ estimates(A) - grad_p).abs().max() for name, A in named.items()}
for name, size in list(error.items())[:6]:  # for the others see the second reading
    print(f"{name:9}   mean estimate = ∇p, within 1e-12: {size < 1e-12}")
assert [size < 1e-12 for size in error.values()] == [True] * 5 + [False, True, False]
assert (pi @ s).abs().max() < 1e-12

# %% [markdown]
# The last line shows what the claim forbids: a baseline that is the completion's own reward leaves no gradient at all.
#
# ## What the baseline does change
#
# $\mathrm{Var}(b)$ is the variance with one completion. With $B$ independent completions it is $\mathrm{Var}(b)/B$: half the variance is
# worth twice the completions. Here it is computed by listing all completions, and measured on 4,000 sampled batches of 64. The
# mean square, the measure of the first picture, is larger by the constant $\|\nabla p\|^2$.


# %%
def variance(b, pi=pi, R=R, s=s):
    """Var(b): the mean squared distance of (R - b) s from its mean, exact."""
    g = (R - b).unsqueeze(1) * s
    return (pi @ (g - pi @ g).square().sum(dim=1)).item()

shares = np.random.default_rng(0).multinomial(64, pi, size=4000) / 64
batches = torch.tensor(shares)  # (4000, 15)
b_best = lowest_point(variance)
baselines = {"none": 0.0, "success probability": p.item(), "best": b_best, "one": 1.0}
print("baseline                 b  mean square  Var(b)  over the best  measured")
for name, b in baselines.items():
    measured = 64 * (batches @ ((R - b).unsqueeze(1) * s)).var(dim=0).sum().item()
    assert abs(measured / variance(b) - 1) < 0.06
    square, times = variance(b) + grad_p @ grad_p, variance(b) / variance(b_best)
    print(f"{name:20} {b:.3f} {square:12.3f} {variance(b):7.3f} {times:14.2f} {measured:9.3f}")

# %% [text]
# Because a parabola is symmetric about its lowest point, a baseline is less noisy than $b = 0$ exactly if it lies between 0 and twice the
# best, here {=2 * b_best:.2f}. Move $b$. Each dot is a completion: its area is the probability, its position the estimate that it alone would give, in two
# of the 21 dimensions: along $\nabla p$, and along the orthogonal direction in which the scores vary most. (The slider needs the cells
# above.)

# %%
knob(
    lambda b: cloud_and_variance(b, pi, R, s, grad_p, texts, variance, b_best),
    b=(-0.25, 1.25, 0.05, 0.35),
)

# %% [text]
# *Whatever the baseline, the cross stays in place; only the cloud around it grows or shrinks. Grey circles: where the right completions
# lie at $b = 0$.*
#
# Without a baseline all wrong completions lie at the origin: their advantage is 0. REINFORCE then only pushes right completions up; a
# wrong one moves because probabilities sum to 1 and parameters are shared. With $0 < b < 1$ right completions are pushed up less, and
# wrong ones down.
#
# ## Is $p$ the best baseline?
#
# The usual baseline is the mean reward, an estimate of $p$. In the table above it is better than no baseline but not the best. Take a
# coin that is right with $p = .9$ (exercise 2 of [lesson 0](00_loop.ipynb)). The rare outcome, a wrong completion, has the long score, and
# without a baseline it contributes nothing. So $b = p$ has {=coin_variance:.0f} times the variance of $b = 0$. (Its mean square, which contains
# the constant $\|\nabla p\|^2$, is {=coin_square:.1f} times as large: compare this with the first picture.) The base model is like the coin:
# on the three prompts of the first picture the scores of wrong completions are longer, and the best baseline lies below $p$:
#
# | prompt | $p$ | mean $\|s\|^2$ of wrong completions, over that of right ones | best $b$ |
# |---|---|---|---|
# {=rows}
#
# Weaver and Tao (2001) found the average reward optimal, in a special limit; in general it is not (Greensmith, Bartlett and Baxter 2004).
# But it needs no scores, it is the best where $\|s\|^2$ does not depend on the reward, and with it a prompt whose completions are always
# right causes no update (not always an advantage: [lesson 19](19_which_baseline.ipynb)).
#
# ## Exercises
#
# **1. Derive the score of a softmax policy.** One token is drawn from $\mathrm{softmax}(z)$ with logits $z$. Write the gradient of
# $\log \mathrm{softmax}(z)_a$ with respect to all of $z$, without autograd. Then show on paper that its mean over the tokens, each with its
# probability, is 0 for every $z$: step 2, which carries the theorem.


# %% [exercise]
def softmax_score(logits, token):
    """The gradient of log softmax(logits)[token] with respect to the logits, of the same
    length."""
    softmax = np.exp(logits) / np.exp(logits).sum()
    return ...


# %% [check]
check("1.1", softmax_score)

# %% [hint]
# $\log \mathrm{softmax}(z)_a = z_a - \log \sum_j e^{z_j}$. The first term has derivative 1 at $a$ and 0 elsewhere. What is the derivative
# of the second with respect to $z_j$?


# %% [solution]
def softmax_score(logits, token):
    softmax = np.exp(logits) / np.exp(logits).sum()
    # its mean over the tokens: softmax from the first term, minus softmax, which is 0
    return (np.arange(len(logits)) == token) - softmax


# %% [markdown]
# **2. When is $b = p$ noisier than no baseline?** For a prompt with success probability $p$, let the mean $\|s\|^2$ of the wrong
# completions be $w$ times that of the right ones. Minimise $\mathrm{Var}(b)$ of step 4 by hand: above what $w$ is $b = p$ noisier than
# $b = 0$? Compare with the first picture.


# %% [exercise]
def worse_than_none_above(p):
    """The w above which Var(p) > Var(0)."""
    return ...


# %% [check]
check("1.2", worse_than_none_above)

# %% [hint]
# The derivative of $\mathbb E[(R - b)^2\|s\|^2]$ with respect to $b$ is $-2\,\mathbb E[(R - b)\|s\|^2]$. Set it to 0 and solve for $b$, with
# $\|s\|^2 = 1$ for right completions and $w$ for wrong ones. A parabola is symmetric about its lowest point.


# %% [solution]
def worse_than_none_above(p):
    # The best baseline is E[R|s|²] / E[|s|²] = p / (p + (1 - p) w), a mean reward in which
    # long scores weigh more. b = p is noisier than b = 0 if it is above twice that: in the
    # picture, on the first prompt and the third.
    return (2 - p) / (1 - p)


# %% [markdown]
# The best baseline is a mean reward in which long scores weigh more. Where $\|s\|^2$ is proportional to the number of tokens, it is OPO's
# ([2505.23585](https://arxiv.org/abs/2505.23585)).
#
# **3. Find the bug.** Many tokenizers have no padding token, so the EOS is used for it. The mask `ids != pad` then also leaves out the
# EOS that ended the completion, and the decision to stop is never trained: several public trainers have had this bug. The rest of the
# score no longer has mean 0. Repair the mask: true up to and *including* the first EOS; everything later is padding, whatever its id.
# Below the check, REINFORCE trains a policy with your mask: the same task, one distribution for each of three places, no baseline.


# %% [exercise]
def completion_mask(ids, eos):
    """ids (B, T). Returns (B, T): True on the tokens of the completion."""
    return ids != eos  # <- runs, and is wrong


# %% [check]
check("1.3", completion_mask)
trains("1.3", completion_mask)

# %% [markdown]
# *One run with each mask, 5,000 completions an update. Without the EOS (the bug) the policy learns which digits to write, but not when to
# stop. Yellow is another wrong mask: it leaves out the first token.*

# %% [hint]
# `(ids == eos).cumsum(dim=1)` counts the EOS tokens up to and including a position. A token belongs to the completion if there is no EOS
# *before* it.


# %% [solution]
def completion_mask(ids, eos):
    # (To count the padding as well would be harmless here: it pushes the EOS once more.)
    is_eos = (ids == eos).long()
    return is_eos.cumsum(dim=1) - is_eos == 0


# %% [text]
# ## To remember
#
# - The mean score is zero, so $\mathbb E[(R-b)\,s] = \nabla p$ for every $b$ that does not depend on the completion. At each token, $b_t$
#   may depend on the tokens before it (second reading).
# - The variance is a parabola in $b$. Its lowest point is not $p$ in general.
# - A mask without the EOS, or a mean over the tokens of a completion ([lesson 5](05_length.ipynb)), breaks the theorem: then the mean
#   estimate depends on the baseline.
#
# A learned $b_t$ is PPO's critic ([lesson 15](15_critic.ipynb)); a baseline from the other completions to the same prompt is the subject
# of [lesson 3](03_group_baseline.ipynb).
#
# ## For a second reading (5 minutes): token by token
#
# Given the earlier tokens $y_{<t}$, the probabilities of $y_t$ also sum to 1, so step 2 holds for the score of one token,
# $s_t = \nabla\log\pi(y_t \mid y_{<t})$. A baseline $b_t$ may therefore depend on $y_{<t}$ if it is subtracted *at its own token*:
#
# $$\mathbb E\Big[\sum_t (R - b_t)\, s_t\Big] = \nabla p$$
#
# But subtract $b_2$, which depends on $y_1$, at *all* tokens: then the push on $y_1$ is multiplied by a number that depends on $y_1$ itself,
# and step 3 fails. The check on the fifteen completions has tried both with random $b_t$: at its own token the mean estimate is
# $\nabla p$ within $10^{-12}$, and with $b_2$ at all tokens it is off by {=error["b_2, at all tokens"]:.3f} in one of the parameters.
#
# Textbooks also drop rewards earned before the token ("reward-to-go"). With one reward at the end there are none.
#
# Sources: Williams 1992 (*Machine Learning* 8, REINFORCE with a baseline); Weaver and Tao 2001,
# [1301.2315](https://arxiv.org/abs/1301.2315); Greensmith, Bartlett and Baxter 2004 (*JMLR* 5, the optimal baseline); Dr. GRPO,
# [2503.20783](https://arxiv.org/abs/2503.20783), App. A, Eq. 4–5, for language models. The small policy and the measurement are ours.
