# %% [markdown]
# # 4 · KL estimators
#
# Training moves the policy π away from the model it started as, the **reference**. A KL penalty pulls it back. PPO puts
# it into the reward, GRPO into the loss, each as one number for every sampled token. Three such numbers are in use, and
# what they do depends on where they are put:
#
# - **As values**, $k_1$ and $k_3$ are unbiased estimates of $\mathrm{KL}(\pi\Vert\pi_\text{ref})$.
# - **As losses**, $k_1$ has a mean gradient of zero, $k_2$ gives the gradient of $\mathrm{KL}(\pi\Vert\pi_\text{ref})$,
#   and $k_3$ gives the gradient of $\mathrm{KL}(\pi_\text{ref}\Vert\pi)$, another divergence. GRPO has $k_3$ as a loss.
#
# | symbol | meaning |
# |---|---|
# | $\pi,\ \pi_\text{ref}$ | the policy, with parameters θ, and the frozen reference |
# | $y$ | an outcome sampled from π: for a language model, the next token |
# | $\mathbb E$ | the mean over $y \sim \pi$ |
# | $u$ | $\pi_\text{ref}(y)/\pi(y)$, so that $\log u$ is the difference of two log-probabilities |
# | $k_1,\ k_2,\ k_3$ | $-\log u$, $\quad\frac12(\log u)^2$, $\quad u - 1 - \log u$ (Schulman 2020) |
# | $s$ | the **score** $\nabla_\theta \log \pi(y)$: the direction in which $y$ becomes more probable |
# | $\mathrm{KL}(\pi\Vert\pi_\text{ref})$ | $\sum_y \pi \log(\pi/\pi_\text{ref})$, the **reverse** KL: an average over what the policy does |
# | $\mathrm{KL}(\pi_\text{ref}\Vert\pi)$ | $\sum_y \pi_\text{ref} \log(\pi_\text{ref}/\pi)$, the **forward** KL: an average over what the reference does |

# %%
import numpy as np
import torch

from algorithms import grpo, ppo
from lessons.kit import BLUE, GREY, ORANGE, check, knob, label_line, new_figure, show_source

# %% [markdown]
# ## A batch without sampling noise
#
# Our policy has five outcomes, and its probabilities are sixteenths. In the batch below every outcome occurs exactly as
# often as it should, so a mean over the batch *is* the expectation. We compare with the definitions: the two sums over
# all outcomes, differentiated by autograd.

# %%
counts = torch.tensor([8, 4, 2, 1, 1])
batch = torch.arange(5).repeat_interleave(counts)  # (16,) outcomes
logits = (counts.double() / 16).log().requires_grad_()  # the parameters θ
ref = torch.tensor([0.10, 0.15, 0.05, 0.40, 0.30], dtype=torch.float64).log()  # log pi_ref


def reverse_kl(logits, ref):
    pi = logits.log_softmax(dim=-1)
    return (pi.exp() * (pi - ref)).sum(dim=-1)


def forward_kl(logits, ref):
    return (ref.exp() * (ref - logits.log_softmax(dim=-1))).sum(dim=-1)


def same(a, b):
    return bool((a - b).abs().max() < 1e-14)


estimators = {
    "k1": lambda log_u: -log_u,
    "k2": lambda log_u: log_u**2 / 2,
    "k3": lambda log_u: log_u.exp() - 1 - log_u,
    "k3, u inverted": lambda log_u: (-log_u).exp() - 1 + log_u,  # a slip: u = pi / pi_ref
}
truth = reverse_kl(logits, ref)
log_u = (ref - logits.log_softmax(dim=0))[batch]  # (16,)
print(f"KL(pi || ref) = {truth:.4f}\n                  mean     std  lowest  unbiased")
for name, k in estimators.items():
    values = k(log_u).detach()
    unbiased = same(values.mean(), truth)
    print(f"{name:15} {values.mean():7.4f} {values.std(correction=0):7.4f} {values.min():7.4f}  {unbiased}")
    assert unbiased == (name in ("k1", "k3"))

# %% [markdown]
# ## As values
#
# $\mathbb E[k_1]$ is the definition of the KL. Next,
# $\mathbb E[u] = \sum_y \pi\,\frac{\pi_\text{ref}}{\pi} = \sum_y \pi_\text{ref} = 1$, as long as π can reach whatever
# the reference can. So $u - 1$ has mean zero, and $k_3 = k_1 + (u - 1)$ has the mean of $k_1$. It is never negative,
# because $\log u \le u - 1$. $k_2$ is biased.
#
# Note the last row. With $u$ upside down, $k_3$ is still never negative, still zero where the policies agree, and as a
# loss it still pulls towards the reference. In this table only its mean gives it away.
#
# Is $k_3$ also the less noisy one? Schulman compares the Gaussians $\pi = N(0,1)$ and $\pi_\text{ref} = N(m,1)$ at
# $m = 0.1$ and 1 and says that $k_3$, compared with $k_2$, "appears to be a strictly better estimator". At $m = 2$ and
# 3, $k_3$ is the noisiest of the three:
#
# $$\operatorname{Var} k_1 = m^2, \qquad \operatorname{Var} k_3 = e^{m^2} - 1 - m^2, \qquad \mathrm{KL} = m^2/2$$
#
# The $u$ that was to cancel noise has a variance of its own, $e^{m^2} - 1$. Between these Gaussians $k_1$ is less noisy
# than $k_3$ from a KL of 0.63 on. We check the formulas by numerical integration:


# %%
def spreads(m):
    """Standard deviations of k1, k2, k3, then the bias of k2, all divided by the KL: closed forms."""
    return np.array([m, m**2 / 2 * np.sqrt(2 + m**2), np.sqrt(np.expm1(m**2) - m**2), m**4 / 8]) / (m**2 / 2)


y = np.linspace(-15, 20, 35_001)
weight = np.exp(-(y**2) / 2) / np.sqrt(2 * np.pi) * (y[1] - y[0])  # pi(y) dy
print("   m     KL   std/KL of k1     k2     k3   bias/KL of k2")
for m in (0.1, 1.0, 2.0, 3.0):
    integrated = []
    for name in ("k1", "k2", "k3"):
        values = estimators[name](torch.tensor(m * y - m**2 / 2)).numpy()  # log u = my - m²/2
        mean = weight @ values
        integrated.append(np.sqrt(weight @ (values - mean) ** 2))
        integrated += [mean - m**2 / 2] * (name == "k2")
    std_1, std_2, bias_2, std_3 = np.array(integrated) / (m**2 / 2)
    assert np.allclose([std_1, std_2, std_3, bias_2], spreads(m), rtol=1e-6)
    print(f"{m:4.1f} {m**2 / 2:6.3f} {std_1:14.2f} {std_2:6.2f} {std_3:6.2f} {bias_2:15.4f}")
assert spreads(np.sqrt(2 * 0.62))[0] > spreads(np.sqrt(2 * 0.62))[2]
assert spreads(np.sqrt(2 * 0.63))[0] < spreads(np.sqrt(2 * 0.63))[2]

# %% [markdown]
# ## As losses
#
# Autograd differentiates what stands in the loss at the sampled $y$. It does not know that $y$ was drawn from π. By the
# product rule, with $\nabla \pi = \pi s$,
#
# $$\nabla\,\mathbb E[k] \;=\; \nabla \sum_y \pi\,k \;=\; \underbrace{\mathbb E[\nabla k]}_{k \text{ as a loss}} \;+\;
# \underbrace{\mathbb E[k\,s]}_{k \text{ in the reward}}$$
#
# The second half is the policy gradient of a penalty $k$ ([lesson 1](01_score_function.ipynb)). Each placement delivers
# one half. Because $\nabla \log u = -s$,
#
# $$\nabla k_1 = s, \qquad \nabla k_2 = -\log u \; s, \qquad \nabla k_3 = (1 - u)\, s$$
#
# Three means finish the proof, one for each $k$:
#
# $$\mathbb E[s] = \sum_y \nabla \pi = \nabla 1 = 0$$
#
# $$\nabla\mathrm{KL}(\pi\Vert\pi_\text{ref}) = \sum_y \nabla\pi \log\frac{\pi}{\pi_\text{ref}} + \sum_y \pi s
# = \mathbb E[-\log u\; s]$$
#
# $$\nabla\mathrm{KL}(\pi_\text{ref}\Vert\pi) = -\sum_y \pi_\text{ref}\,s = -\mathbb E[u\,s] = \mathbb E[(1-u)\,s]
# \qquad \blacksquare$$
#
# | | as a loss, $\mathbb E[\nabla k]$ | in the reward, $\mathbb E[k\,s]$ |
# |---|---|---|
# | $k_1$ | 0: only noise | ∇reverse |
# | $k_2$ | ∇reverse | neither (its value is biased) |
# | $k_3$ | ∇forward | ∇reverse − ∇forward |
#
# So $k_3$ *in the reward* is wrong too: near the reference the two gradients agree to first order, so that their
# difference hardly pulls. Now the same without algebra. (With $u$ inverted, the loss follows half the gradient of a
# third divergence, $\chi^2 = \sum_y \pi^2/\pi_\text{ref} - 1$.)


# %%
def gradient(value, of=logits):
    return torch.autograd.grad(value, of, retain_graph=True)[0]


reverse, forward = gradient(reverse_kl(logits, ref)), gradient(forward_kl(logits, ref))
known = {"0": 0 * reverse, "reverse": reverse, "forward": forward, "reverse - forward": reverse - forward}
known["half chi-squared"] = gradient((2 * logits.log_softmax(dim=0) - ref).exp().sum()) / 2


def which(found):
    """The name of the known gradient that this one equals to 1e-14."""
    return next((name for name, value in known.items() if same(found, value)), "neither")


table = {}
logp = logits.log_softmax(dim=0)[batch]  # (16,), its gradient is the score
for name, k in estimators.items():
    value = k(ref[batch] - logp)
    table[name] = which(gradient(value.mean())), which(gradient((value.detach() * logp).mean()))
    print(f"{name:15} as a loss: {table[name][0]:17} in the reward: {table[name][1]}")
assert table["k1"] == ("0", "reverse") and table["k2"] == ("reverse", "neither")
assert table["k3"] == ("forward", "reverse - forward") and table["k3, u inverted"][0] == "half chi-squared"

# %% [markdown]
# ## Through the scripts
#
# Here is GRPO's loss. With all advantages 0, only the KL term is left.

# %%
show_source(grpo.policy_loss)

# %% [markdown]
# PPO subtracts $\beta k_1$ from the reward of every token (β is `kl_coef`). With rewards and values 0, its returns are
# that penalty alone.

# %%
zeros, mask = torch.zeros(16, 1).double(), torch.ones(16, 1).bool()
old_logps, ref_logps = logp.detach().view(16, 1), ref[batch].view(16, 1)  # (B, T), T = 1
new = {"logps": logp.view(16, 1), "old_logps": old_logps, "mask": mask}

loss = grpo.policy_loss(**new, ref_logps=ref_logps, advantages=zeros, config=grpo.Config(kl_coef=1.0))
in_grpo = which(gradient(loss))

judged = {"rewards": zeros.view(2, 8), "values": zeros, "old_logps": old_logps, "ref_logps": ref_logps, "mask": mask}
whitened, returns = ppo.compute_advantages(**judged, config=ppo.Config(kl_coef=1.0))
in_ppo = which(gradient(ppo.policy_loss(**new, advantages=returns, config=ppo.Config())))
direction = gradient(ppo.policy_loss(**new, advantages=whitened, config=ppo.Config()))
parallel = same(direction / direction.norm(), reverse / reverse.norm())

A, beta, u = torch.linspace(-1, 1, 16).double(), 0.04, (ref[batch] - logp).exp().detach()
eq_21 = -gradient(((A + beta * (u - 1)) * logp).mean())  # as the paper prints it, for one token a response
ours = gradient(
    grpo.policy_loss(**new, ref_logps=ref_logps, advantages=A.view(16, 1), config=grpo.Config(kl_coef=beta))
)
print(f"grpo.py: {in_grpo}; the gradient that the paper prints: {same(ours, eq_21)}")
print(f"ppo.py:  {in_ppo}; whitened advantages: the same direction: {parallel}")
assert (in_grpo, in_ppo, parallel, same(ours, eq_21)) == ("forward", "reverse", True, True)

# %% [markdown]
# **The name and the gradient.** DeepSeekMath ([2402.03300](https://arxiv.org/abs/2402.03300)) has
# $-\beta\,\mathbb D_{KL}[\pi_\theta\Vert\pi_\text{ref}]$ in its objective (Eq. 3), estimates it with $k_3$ (Eq. 4), an
# unbiased estimate as it says, and prints the gradient that it follows: $\hat A + \beta(u - 1)$ before every score
# (Eq. 20–21). So nothing is hidden, but name and gradient disagree: what is descended is the KL with its arguments
# exchanged, and `grpo.py` does the same. The forward KL, too, has its minimum at the reference, but it is another
# regulariser.
#
# The abstract of Tang and Munos ([2506.09477](https://arxiv.org/abs/2506.09477)) calls differentiating through a KL
# estimate "generally incorrect"; that of Liu et al. ([2510.01555](https://arxiv.org/abs/2510.01555)) finds $k_2$ as a
# loss equivalent to $k_1$ in the reward, on-policy, and $k_3$ as a loss a "first-order, biased approximation". Both fit
# the table above.
#
# ## Move the reference away
#
# The policy is $N(0,1)$, the reference $N(m,1)$. Left, the noise of one sample. Right, the coefficients of $s$ in a
# loss, and in grey where the samples fall.


# %%
def draw(m):
    figure, (left, right) = new_figure(9.5, 3.6, columns=2)
    ms = np.linspace(0.1, 3, 200)
    styles = {"k1": (GREY, ":"), "k2": (BLUE, "-"), "k3": (ORANGE, "--")}
    curves = np.array([spreads(x) for x in ms]).T
    for (name, (color, line)), curve, here in zip(styles.items(), curves, spreads(m)):
        left.plot(ms, curve, line, color=color)
        left.plot(m, here, "o", color=color, markersize=8)
        label_line(left, 3, curve[-1], f"$k_{name[1]}$", color, xytext=(8, 0))
    left.axvline(m, color=GREY, linewidth=0.8)
    left.set(title=f"Std of one sample / KL (KL = {m**2 / 2:.3g})", xlabel="m, shift of the reference", yscale="log")
    left.set_yticks([0.5, 1, 2, 5, 10, 20], ["0.5", "1", "2", "5", "10", "20"])
    left.minorticks_off()
    bias = left.text(0.03, 0.05, f"bias of $k_2$: {25 * m**2:.3g} % of the KL", color=BLUE, transform=left.transAxes)
    bias.set_bbox({"color": "white", "pad": 2})
    x = np.linspace(-3, 6, 400)  # log(pi / ref) = -log u, which is N(m²/2, m²) under pi
    density = np.exp(-((x - m**2 / 2) ** 2) / (2 * m**2))
    right.fill_between(x, -7, -7 + 3 * density, color=GREY, alpha=0.25, linewidth=0)
    for (color, line), values in zip(styles.values(), (np.ones_like(x), x, 1 - np.exp(-x))):
        right.plot(x, values, line, color=color)
    label_line(right, 5, 5, "$k_2$: $-\\log u$", BLUE, xytext=(-8, 4), ha="right")
    label_line(right, 6, 1, "$k_1$: 1", GREY, xytext=(0, 10), ha="right")
    label_line(right, -1.4, 1 - np.exp(1.4), "$k_3$: $1 - u$", ORANGE, xytext=(8, -2))
    right.axhline(0, color="black", linewidth=0.8)
    right.set(
        title="Coefficient of the score in a loss", xlabel=r"$\log(\pi/\pi_\mathrm{ref})$ of the sample", ylim=(-7, 6.5)
    )
    return figure


knob(draw, m=(0.1, 3.0, 0.1, 1.5))

# %% [text]
# *Where the policy is far above the reference, $k_2$ pulls ever harder and $k_3$ saturates at 1 (at $\log u = -5$ it
# has {=-np.expm1(-5):.3f}); far below it, $k_3$ explodes, on rare samples (at $\log u = 5$ it has
# {=-np.expm1(5):.0f}).*
#
# ## Off-policy: the ratio repairs both halves
#
# From the second minibatch on, $y$ comes from an older policy $\pi_\text{old}$. Multiply by the ratio
# $\rho = \pi/\pi_\text{old}$:
# $\mathbb E_\text{old}[\rho\,k_3] = \sum_y \pi\,k_3 = \mathrm{KL}(\pi\Vert\pi_\text{ref})$, with θ *inside* the sum. So
# if autograd goes through ρ too, $k_3$ yields the reverse KL, on the first minibatch as well: there ρ is 1, but its
# gradient is not 0; it is the missing half. Sample by sample,
#
# $$\nabla(\rho\,k_3) = \rho\,(k_3 + 1 - u)\,s = \rho\,k_1\,s$$
#
# A detached ρ keeps the forward KL. TRL has multiplied $k_3$ by ρ by default since 1.10 (`use_bias_correction_kl`), for
# this reason and after DeepSeek-V3.2; OpenRLHF offers $\rho\,k_1\,s$, with ρ clamped, as an option
# (`unbiased_gradient`).

# %%
moved = (logits.detach() + torch.tensor([0.5, -0.3, 0.2, 0.9, -0.6])).requires_grad_()  # the policy after some updates
known = {"reverse": gradient(reverse_kl(moved, ref), moved), "forward": gradient(forward_kl(moved, ref), moved)}
now = moved.log_softmax(dim=0)[batch]  # the batch is still that of the old policy
k3, rho = estimators["k3"](ref[batch] - now), (now - logp.detach()).exp()


def rho_k3(logps, old_logps, ref_logps):
    return (logps - old_logps).exp() * estimators["k3"](ref_logps - logps)


loss = rho_k3(now, logp.detach(), ref[batch])
results = {
    "k3, as in grpo.py": which(gradient(k3.mean(), moved)),
    "rho k3": which(gradient(loss.mean(), moved)),
    "rho k3, rho detached": which(gradient((rho.detach() * k3).mean(), moved)),
}
assert same(gradient(loss.sum(), now), rho * estimators["k1"](ref[batch] - now))
print("\n".join(f"{name:21} {result}" for name, result in results.items()))
assert list(results.values()) == ["neither", "reverse", "forward"]

# %% [markdown]
# ## Sequences: a token loss does not see what a token leads to
#
# Two tokens, each 0 or 1. The policy differs from the reference in one place only: in the second token, if the first
# was a 1. The KL of the *sequences* then tells the first token "be 1 less often, the trouble is there". A loss summed
# over tokens cannot say it: every term differentiates its own token's log-probability, as if the prefixes came from a
# fixed distribution. $k_1$ in the reward can, because the return of the first token contains the penalty of the second
# (with λ = 1, or a perfect critic).

# %%
theta = torch.tensor([[3, 1], [1, 1], [1, 3]]).double().log().requires_grad_()  # first token; second after 0; after 1
theta_ref = torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.9, 0.1]]).double().log()
sequences = torch.tensor([[0, 0]] * 6 + [[0, 1]] * 6 + [[1, 0]] * 1 + [[1, 1]] * 3)  # 16, as often as they should occur


def sequence_logps(theta):
    rows = theta.log_softmax(dim=1)
    return torch.stack([rows[0, sequences[:, 0]], rows[1 + sequences[:, 0], sequences[:, 1]]], dim=1)  # (16, 2)


pi, pi_ref = theta.softmax(dim=1), theta_ref.softmax(dim=1)
joint, joint_ref = (p[0].unsqueeze(1) * p[1:] for p in (pi, pi_ref))  # (2, 2): probability of each sequence
true = gradient((joint * (joint / joint_ref).log()).sum(), theta)
prefix = torch.tensor([1, 0.75, 0.25]).double()  # probability of each prefix, frozen
frozen_reverse = gradient((prefix * reverse_kl(theta, theta_ref.log_softmax(dim=1))).sum(), theta)
frozen_forward = gradient((prefix * forward_kl(theta, theta_ref.log_softmax(dim=1))).sum(), theta)

logps, ref_logps, mask = sequence_logps(theta), sequence_logps(theta_ref), torch.ones(16, 2).bool()
zeros, new = torch.zeros(16, 2).double(), {"logps": logps, "old_logps": logps.detach(), "mask": mask}
judged = {"rewards": zeros[:, 0].view(4, 4), "values": zeros, "old_logps": logps.detach(), "ref_logps": ref_logps}
_, returns = ppo.compute_advantages(**judged, mask=mask, config=ppo.Config(kl_coef=1.0, gae_lambda=1.0))
settings = {"ref_logps": ref_logps, "advantages": zeros, "config": grpo.Config(kl_coef=1.0)}
losses = {  # times 2, because the scripts average over the two tokens
    "k1 in the reward, ppo.py": (2 * ppo.policy_loss(**new, advantages=returns, config=ppo.Config()), true),
    "k2 as a loss": (estimators["k2"](ref_logps - logps).sum(dim=1).mean(), frozen_reverse),
    "k3 as a loss, grpo.py": (2 * grpo.policy_loss(**new, **settings), frozen_forward),
    "rho k3 as a loss": (rho_k3(logps, logps.detach(), ref_logps).sum(dim=1).mean(), frozen_reverse),
}
print("gradient for the logit of        first token 1   second token 1 after 1")
print(f"{'true KL of the sequences':30} {true[0, 1]:11.4f} {true[2, 1]:18.4f}")
for name, (loss, expected) in losses.items():
    found = gradient(loss, theta)
    assert same(found, expected)
    print(f"{name:30} {round(found[0, 1].item(), 4) + 0:11.4f} {found[2, 1]:18.4f}")
assert frozen_reverse[0].abs().max() < 1e-14 and true[0, 1] > 0.01

# %% [markdown]
# A ratio per token, as in TRL, corrects the direction of the KL, not the frozen prefixes. Tang and Munos's abstract
# says of implementations that ignore the sequence: "a partial gradient at best".
#
# ## Exercises
#
# **1. Close to the reference.** Training runs in float32, where $e^{\log u}$ is rounded at the seventh digit; then 1 is
# subtracted. At $\log u = 10^{-4}$, $k_3$ is $5\cdot10^{-9}$, smaller than that rounding error. Write $k_3$ without the
# loss of digits.


# %% [exercise]
def k3_exact(log_u):
    """u - 1 - log u for a float32 tensor log_u, accurate for small log_u too."""
    return ...


# %% [check]
def over_square(k):
    """k / (log u)²: near 1/2 for small log u, so that a relative error shows."""

    def ratio(log_u):
        value = k(log_u.clone())
        return value if value is ... else value / log_u**2

    return ratio


def series(log_u):
    x, term, total = log_u.double(), torch.ones(()).double(), 0.0
    for n in range(1, 40):
        term = term * x / n
        total = total + term * (n >= 2)  # x²/2! + x³/3! + ...
    return total


check(
    over_square(k3_exact),
    over_square(series),
    inputs=[{"log_u": torch.tensor(x)} for x in (1e-4, -3e-4, 1e-2, -2.0)],
    mistakes={
        "the digits are lost: in float32, exp(log u) - 1 has the rounding error of a number near 1": over_square(
            estimators["k3"]
        ),
        "u is inverted: this is k3 of pi / pi_ref": over_square(lambda log_u: torch.expm1(-log_u) + log_u),
    },
    tolerance=1e-2,
)

# %% [hint]
# `torch.expm1(x)` is $e^x - 1$, computed without forming the 1.


# %% [solution]
def k3_exact(log_u):
    return torch.expm1(log_u) - log_u  # the error is now a rounding error of log u, not of 1


# %% [wrong] the digits are lost
def k3_exact(log_u):
    return log_u.exp() - 1 - log_u


# %% [wrong] u is inverted
def k3_exact(log_u):
    return torch.expm1(-log_u) + log_u


# %% [markdown]
# (The scripts keep the plain form: it spoils only a printed KL that is tiny.)
#
# **2. A loss for the reverse KL.** Write a scalar whose mean gradient is that of $\mathrm{KL}(\pi\Vert\pi_\text{ref})$,
# on-policy.


# %% [exercise]
def reverse_kl_loss(logps, ref_logps):
    """logps (B,) of sampled tokens, with gradient; ref_logps (B,). Returns a scalar to minimise."""
    return ...


# %% [check]
def gradient_by(loss_of):
    def compute(ref):
        loss = loss_of(logits.log_softmax(dim=0)[batch], ref[batch])
        return loss if loss is ... else gradient(loss)

    return compute


check(
    gradient_by(reverse_kl_loss),
    lambda ref: gradient(reverse_kl(logits, ref)),
    inputs=[{"ref": ref}, {"ref": ref.flip(0)}],
    mistakes={
        "that is k1 as a loss: its mean gradient is 0": lambda ref: torch.zeros(5),
        "that is k3 as a loss: it follows the forward KL": lambda ref: gradient(forward_kl(logits, ref)),
        "stop the gradient through the penalty": gradient_by(lambda logps, ref: ((logps - ref) * logps).mean()),
        "the sign: this drives the policy away from the reference": lambda ref: -gradient(reverse_kl(logits, ref)),
    },
)

# %% [hint]
# The table under "As losses" has two cells with ∇reverse. One is a loss as it stands. The other needs `detach()`.


# %% [solution]
def reverse_kl_loss(logps, ref_logps):
    return (0.5 * (ref_logps - logps) ** 2).mean()  # or ((logps - ref_logps).detach() * logps).mean()


# %% [wrong] its mean gradient is 0
def reverse_kl_loss(logps, ref_logps):
    return (logps - ref_logps).mean()


# %% [wrong] it follows the forward KL
def reverse_kl_loss(logps, ref_logps):
    return ((ref_logps - logps).exp() - 1 - (ref_logps - logps)).mean()


# %% [wrong] stop the gradient
def reverse_kl_loss(logps, ref_logps):
    return ((logps - ref_logps) * logps).mean()


# %% [markdown]
# **3. How hard does each pull?** Give the coefficients of $s = \nabla\log\pi$ in $\nabla k_1$, $\nabla k_2$ and
# $\nabla k_3$, as functions of $\log u$. Then put in $\log u = -5$ and 5: which pull saturates on a token that the
# reference finds very improbable, and which explodes on a token that the policy has nearly given up?


# %% [exercise]
def coefficients(log_u):
    """Three numbers: what stands before grad log pi in grad k1, grad k2, grad k3."""
    return ...


# %% [check]
def by_autograd(log_u):
    log_pi = torch.zeros((), dtype=torch.float64, requires_grad=True)
    return [gradient(estimators[name](log_u - log_pi), log_pi).item() for name in ("k1", "k2", "k3")]


check(
    coefficients,
    by_autograd,
    inputs=[{"log_u": x} for x in (-5.0, 0.0, 0.5, 5.0)],
    mistakes={
        "these are derivatives with respect to log u, and log u contains -log pi": lambda log_u: [
            -c for c in by_autograd(log_u)
        ],
        "these are the values, not the derivatives": lambda log_u: [
            estimators[name](torch.tensor(log_u)).item() for name in ("k1", "k2", "k3")
        ],
    },
)

# %% [hint]
# $\log u = \log\pi_\text{ref} - \log\pi$: every derivative with respect to $\log\pi$ is minus that with respect to
# $\log u$.


# %% [solution]
def coefficients(log_u):
    # at log u = -5: 1, 5, 0.993 (k3 saturates, k2 does not); at log u = 5: 1, -5, -147 (k3 explodes)
    return 1, -log_u, 1 - np.exp(log_u)


# %% [wrong] derivatives with respect to log u
def coefficients(log_u):
    return -1, log_u, np.exp(log_u) - 1


# %% [wrong] these are the values
def coefficients(log_u):
    return -log_u, log_u**2 / 2, np.exp(log_u) - 1 - log_u


# %% [markdown]
# **4. Find the bug.** The penalty in the reward has two signs to get wrong, that of the log-ratio and that of β. The
# text of Hugging Face's *The N Implementation Details of RLHF with PPO* has `non_score_reward = beta * kl` added to the
# score, where the code it describes has a minus. The function below says minus, and pays the policy for leaving the
# reference all the same. Nothing crashes. Repair it.


# %% [exercise]
def token_rewards(rewards, logps, ref_logps, mask, beta):
    """(B, T): -beta * k1 for every token, and the reward of the response (B,) on its last token."""
    kl = ref_logps - logps  # <- runs, and is wrong
    last = mask.sum(dim=1, keepdim=True) - 1
    return (-beta * kl * mask).scatter_add(1, last, rewards.view(-1, 1))


# %% [check]
def shaped_with(kl, last=lambda mask: mask.sum(dim=1) - 1):
    def compute(rewards, logps, ref_logps, mask, beta):
        charged = -beta * kl(logps, ref_logps, mask)
        return charged.scatter_add(1, last(mask).view(-1, 1), rewards.view(-1, 1))

    return compute


def k1(logps, ref_logps, mask):
    return (logps - ref_logps) * mask


case = {
    "rewards": torch.tensor([0.0, 1.0, 1.0]),
    "logps": torch.tensor([[-0.2, -0.9, -0.5], [-0.1, -2.0, -3.0], [-1.5, -0.4, -0.7]]),
    "ref_logps": torch.tensor([[-0.5, -1.0, -0.7], [-0.5, -1.0, -1.0], [-1.2, -0.6, -0.1]]),
    "mask": torch.tensor([[True, True, True], [True, True, False], [True, False, False]]),
}
check(
    token_rewards,
    lambda beta, **_: [[-0.3 * beta, -0.1 * beta, -0.2 * beta], [-0.4 * beta, 1 + beta, 0], [1 + 0.3 * beta, 0, 0]],
    inputs=[{**case, "beta": 0.5}, {**case, "beta": 0.04}],
    mistakes={
        "the padding is charged too": shaped_with(lambda logps, ref_logps, mask: logps - ref_logps),
        "the reward stands on the padding: it belongs on the last token of the response": shaped_with(
            k1, last=lambda mask: torch.full((len(mask),), mask.shape[1] - 1)
        ),
        "the distance has lost its sign: k1 is negative where the policy is below the reference": shaped_with(
            lambda *given: k1(*given).abs()
        ),
        "that is k3 in the reward: its gradient is reverse minus forward": shaped_with(
            lambda logps, ref_logps, mask: estimators["k3"](ref_logps - logps) * mask
        ),
    },
    bug=shaped_with(lambda *given: -k1(*given)),
)

# %% [hint]
# $k_1 = -\log u = \log\pi - \log\pi_\text{ref}$: positive where the policy is above the reference. Compare the line
# marked `[PPO: KL in the reward] k1` in `algorithms/ppo.py`.


# %% [solution]
def token_rewards(rewards, logps, ref_logps, mask, beta):
    kl = logps - ref_logps
    last = mask.sum(dim=1, keepdim=True) - 1
    return (-beta * kl * mask).scatter_add(1, last, rewards.view(-1, 1))


# %% [wrong] the reward stands on the padding
def token_rewards(rewards, logps, ref_logps, mask, beta):
    shaped = -beta * (logps - ref_logps) * mask
    shaped[:, -1] += rewards
    return shaped


# %% [wrong] the distance has lost its sign
def token_rewards(rewards, logps, ref_logps, mask, beta):
    kl = (ref_logps - logps).abs()
    last = mask.sum(dim=1, keepdim=True) - 1
    return (-beta * kl * mask).scatter_add(1, last, rewards.view(-1, 1))


# %% [wrong] the padding is charged too
def token_rewards(rewards, logps, ref_logps, mask, beta):
    last = mask.sum(dim=1, keepdim=True) - 1
    return (-beta * (logps - ref_logps)).scatter_add(1, last, rewards.view(-1, 1))


# %% [wrong] that is k3 in the reward
def token_rewards(rewards, logps, ref_logps, mask, beta):
    log_u = ref_logps - logps
    last = mask.sum(dim=1, keepdim=True) - 1
    return (-beta * (log_u.exp() - 1 - log_u) * mask).scatter_add(1, last, rewards.view(-1, 1))


# %% [markdown]
# ## What to remember
#
# - An unbiased value does not make a right gradient. As a loss, $k_1$ gives nothing, $k_2$ the reverse KL, $k_3$ the
#   forward KL; in the reward, $k_1$ gives the reverse KL.
# - $k_3$ is a good number to log while the policy is near the reference; far from it, it can be the noisiest of the
#   three.
# - Multiplied by a ratio that autograd goes through, $k_3$ gives the reverse KL, on-policy and off. Over sequences, of
#   all these only $k_1$ in the reward (with λ = 1) gives the whole gradient.
#
# Next: how long a response is changes how much its tokens count, in [Lesson 5](05_length.ipynb).
#
# Sources: Schulman (2020), [*Approximating KL Divergence*](http://joschu.net/blog/kl-approx.html); DeepSeekMath,
# [arXiv:2402.03300](https://arxiv.org/abs/2402.03300), Eq. 3–4 and 20–21; Tang and Munos,
# [2506.09477](https://arxiv.org/abs/2506.09477), and Liu et al., [2510.01555](https://arxiv.org/abs/2510.01555), of
# both the abstracts only; DeepSeek-V3.2, [2512.02556](https://arxiv.org/abs/2512.02556), as TRL's documentation cites
# it; pull requests [6503](https://github.com/huggingface/trl/pull/6503) of TRL and
# [1309](https://github.com/OpenRLHF/OpenRLHF/pull/1309) of OpenRLHF; Huang et al. (2023),
# [Hugging Face blog](https://huggingface.co/blog/the_n_implementation_details_of_rlhf_with_ppo). The proofs, the
# inverted $u$ and the sequence example are ours.
