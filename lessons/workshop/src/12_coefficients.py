# %% [markdown] 40 minutes, without the second reading
# # 12 · One gradient, five coefficients
#
# Supervised fine-tuning (SFT), rejection-sampling fine-tuning (RFT), direct preference optimization (DPO), proximal
# policy optimization (PPO) and group relative policy optimization (GRPO) look like five inventions. Each moves the model along the
# **scores** of tokens, the gradients of their log-probabilities.
#
# > **The methods differ in two things: who writes the completions, and the number that multiplies each token's score, divisors included.**
# >
# > Who writes can set the pace. In a toy with one divisor, 30 updates bring a hard prompt from .02 to .92 if the policy writes, and to .08 if the
# > frozen base does.
#
# **The smallest case.** A prompt has two completions of four tokens: `#22∎` is right, `#29∎` is wrong (∎: the end). The policy is still the base.
#
# | method | each token of `#22∎` | each token of `#29∎` | why |
# |---|---|---|---|
# | RFT | + 1/4 | 0 | keeps only right ones; a mean over the four tokens kept |
# | DPO, β = .1 | + .05 | − .05 | β times ½, because the policy prefers neither yet |
# | GRPO | + 1/8 | − 1/8 | advantages 1 and −1, over two completions times four tokens |
#
# DPO's and GRPO's updates point in the same direction here; GRPO's is 2.5 times as long. RFT pushes nothing down.
#
# Choose a method for a real group:

# %% [fold]
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from algorithms import grpo, ppo, reinforce
from lessons.experiments.float64 import to_float64
from lessons.workshop.companions import lesson_12
from lessons.workshop.notebook import check, knob, trains
from toy_env.arithmetic import Problem, reward
from toy_env.model import load_policy
from toy_env.rollout import completion_logps, sample

torch.manual_seed(0)
base, tokenizer = load_policy("base")
base, policy = to_float64(base), to_float64(load_policy("base")[0])
moved = parameters_to_vector(base.parameters()).detach()
moved += 0.01 * torch.randn_like(moved)
vector_to_parameters(moved, policy.parameters())  # the policy has left the base
problem, G, C = Problem("20+5-3", answer=22, level=2), 8, reinforce.Config().max_new_tokens
taught, by_base, group = (  # from a teacher (the base, another problem), the base, the policy
    sample(model, tokenizer, [prompt], n, C, 1.0, torch.Generator().manual_seed(seed))
    for model, prompt, n, seed in (
        (base, "29+46-36?", 2, 14), (base, "20+5-3?", G, 3), (policy, "20+5-3?", G, 11)))
KL, DPO_BETA = grpo.Config().kl_coef, 0.1
R_base, R = (torch.tensor([reward(problem, text) for text in data.texts]).double()
             for data in (by_base, group))

def clipped(A, rho):
    """The coefficient under a clip: rho A, or 0 where A > 0 above the range, A < 0 below."""
    return torch.where(((A > 0) & (rho > 1.2)) | ((A < 0) & (rho < 0.8)), 0, rho * A)

@torch.no_grad()
def coefficients(data, R, old_logps, pair, A_ppo=0.0):
    """{method: w}, w (G, T), 0 off the mask. R: (G,); pair: DPO's chosen and rejected one."""
    logps, ref_logps = (completion_logps(model, data, 1.0) for model in (policy, base))
    rho, u = (logps - old_logps).exp(), (ref_logps - logps).exp()
    right, length, k = R.view(-1, 1), data.mask.sum(dim=1, keepdim=True), R.sum()
    A = torch.where(right == 1, ((G - k) / k).sqrt(), -(k / (G - k)).sqrt())
    sign = torch.zeros(G, 1).double()
    sign[pair[0]], sign[pair[1]] = 1, -1
    margin = (sign * (logps - ref_logps)).sum()
    w = {
        "RFT": right / (right * length).sum(),
        "DPO": sign * DPO_BETA / (1 + (DPO_BETA * margin).exp()),
        "REINFORCE": right / (G * C),
        "PPO": clipped(torch.as_tensor(A_ppo), rho) / length.sum(),
        "GRPO": (clipped(A, rho) + KL * (u - 1)) / (G * length),
    }
    return {method: values * data.mask for method, values in w.items()}


old_logps, ref_logps = (completion_logps(m, group, 1.0).detach() for m in (policy, base))
values = R.mean().expand(group.mask.shape)  # of a critic that expects the same everywhere
A_ppo, _ = ppo.compute_advantages(rewards=R.view(1, G), mask=group.mask, values=values,
                                  old_logps=old_logps, ref_logps=ref_logps, config=ppo.Config())
w = {1: coefficients(group, R, old_logps, (2, 1), A_ppo)}
w_base = coefficients(by_base, R_base, by_base.old_logps, (3, 1))
w_taught = taught.mask / taught.mask.sum().double()
shown = {  # who writes the completions; they, their rewards, and their coefficients; what to see
    "GRPO": ("the policy", group, R, w[1]["GRPO"],
             "Right ones go up, wrong ones down, each divided\n"
             "by its length. (Small differences: the KL term.)"),
    "PPO": ("the policy", group, R, w[1]["PPO"],
            "Each token is judged for itself. (The critic here\nexpects the same everywhere; "
            "the jump at the 7\nis a KL penalty.)"),
    "DPO": ("the base", by_base, R_base, w_base["DPO"],
            "One right completion goes up,\none wrong one down."),
    "RFT": ("the base", by_base, R_base, w_base["RFT"],
            "Only right completions, all tokens alike."),
    "SFT": ("a teacher", taught, torch.ones(2), w_taught,
            "All tokens of the teacher, alike."),
}

updates = [lesson_12.online_update, lesson_12.sampled_update, lesson_12.kept_update,
           partial(lesson_12.sampled_update, times=2)]  # of the batch half is kept
hard, easy = ([f"{lesson_12.success(update, p)[30]:.2f}" for update in updates]
              for p in (0.02, 0.5))
online, rft = (np.array(lesson_12.success(updates[i])) for i in (0, 3))
overtakes = int((online > rft).argmax())
assert hard == ["0.92", "0.08", "0.99", "0.24"]  # the box
assert (online[1:overtakes] < rft[1:overtakes]).all() and (online > rft)[overtakes:].all()


def show_method(method="GRPO"):
    writer, data, rewards, w, note = shown[method]
    title = f"{method}: {writer} answers {'20+5-3?' if method != 'SFT' else '29+46-36?'}"
    return lesson_12.coefficients_of_a_group(data, rewards.numpy(), w.numpy(), title, note)

knob(show_method, method=list(shown))

# %% [markdown]
# *A row is a completion, a square a token. Blue tokens are pushed up, orange ones down. On the right: the mean coefficient of the
# row. See first who is pushed at all, then change the method.*
#
# All five pictures have one form, a weighted sum of scores over completions $i$ and their tokens $t$:
#
# $$-\nabla_\theta L \;=\; \sum_i \sum_t w_{i,t}\, \nabla_\theta\, \ell_{i,t}, \qquad \ell_{i,t} = \log \pi_\theta(y_{i,t} \mid x, y_{i,<t})$$
#
# The prompt is $x$, a token $y_{i,t}$, its **coefficient** $w_{i,t}$, divisors included.
#
# ## The proof: the chain rule
#
# Each of these losses depends on the model only through the numbers $\ell_{i,t}$. So
# $-\nabla L = \sum_{i,t} \big(-\partial L/\partial \ell_{i,t}\big)\, \nabla \ell_{i,t}$, and
# $w_{i,t} = -\partial L/\partial \ell_{i,t}$. ∎
#
# ## The methods
#
# So we know a method once we know its completions and its $w$. Take DPO. For a chosen and a rejected completion its loss is
#
# $$L = -\log \text{sigmoid}(\beta m), \qquad m = \sum_t \big(\ell_{+,t} - \ell^{ref}_{+,t}\big) - \sum_t \big(\ell_{-,t} - \ell^{ref}_{-,t}\big)$$
#
# with the *margin* $m$, the base as the reference and $\text{sigmoid}(z) = 1/(1+e^{-z})$. So $-\partial L/\partial m = \beta\,\text{sigmoid}(-\beta m)$, and $m$ contains each
# $\ell$ once, with + if chosen and − if rejected: DPO's row below.
#
# And GRPO. A token's loss is $-\rho A + \beta\,(u - 1 - \log u)$, with its ratio $\rho = \pi_\theta/\pi_{old}$ and $u = \pi_{ref}/\pi_\theta$, averaged over tokens and completions.
# With respect to $\ell$, ρ has the derivative ρ, which is 1 in a batch's first update, and $u$ has $-u$, so minus the loss has $A + \beta\,(u - 1)$: GRPO's row.
#
# $R_i$ is the reward of a completion, 1 or 0, and $A_i$ its advantage
# ($A_{i,t}$: of a token). A group has $G$ completions.
#
# | method | completions from | $w_{i,t}$ in the first update of a batch |
# |---|---|---|
# | SFT | a teacher | $1/\text{tokens}$ |
# | RFT | the frozen base | $R_i/\text{tokens kept}$ |
# | DPO, one pair | the frozen base | $\pm\beta\,\text{sigmoid}(-\beta m)$ |
# | PPO | the policy | $A_{i,t}/\text{tokens}$ |
# | GRPO | the policy | $\big(A_i + \beta\,(u_{i,t} - 1)\big)/(G\,\lvert y_i\rvert)$ |
#
# - Who judges (a rule, people, a reward model, PPO's critic) acts through $w$ alone.
# - The term with $u$ is GRPO's KL penalty ([lesson 4](04_kl.ipynb)), 0 while the policy is the base. DPO's β is another one; both tie the policy to the base.
# - From a batch's second update on, PPO and GRPO multiply $A$ by ρ, and their clip sets some products to 0. (Checked on a real model: second reading.)
#
# The first three methods train on a fixed set of completions (*offline*), the last two on the policy's own, new in every batch (*online*).
# REINFORCE, $w = R_i/(GC)$ with the limit $C$ on tokens, is online RFT, up to its divisor.

# %% [markdown]
# ## Exercises
#
# **1. DPO on a group.** Let the loss be the *sum* over all pairs of a right and a wrong completion of the group; $k$ of its $G$ completions are
# right. Give the coefficient on each completion's score. At log-ratios of 0, where DPO starts, they are Dr. GRPO's advantages $R_i - k/G$
# times a constant. Which one?


# %% [exercise]
def dpo_on_a_group(log_ratios, rewards, beta):
    """(G,) coefficients. log_ratios: (G,), log π/π_ref summed over tokens; rewards: (G,)."""
    right, wrong = rewards == 1, rewards == 0
    margins = log_ratios[right][:, None] - log_ratios[wrong]  # of each pair, (k, G - k)
    return ...


# %% [check]
check("12.1", dpo_on_a_group)

# %% [hint]
# Each pair gives its two completions the coefficients in the table. A completion's coefficient is the sum over its pairs: a row or a column.


# %% [solution]
def dpo_on_a_group(log_ratios, rewards, beta):
    right, wrong = rewards == 1, rewards == 0
    margins = log_ratios[right][:, None] - log_ratios[wrong]  # of each pair, (k, G - k)
    by_pair = beta / (1 + np.exp(beta * margins))
    w = np.zeros(len(rewards))
    w[right], w[wrong] = by_pair.sum(axis=1), -by_pair.sum(axis=0)
    return w


# At log-ratios of 0 the constant is beta G / 2
r = np.array([1.0, 0, 0, 1, 0])
start = dpo_on_a_group(np.zeros(5), r, 0.1)
assert np.allclose(start, 0.1 * 5 / 2 * (r - r.mean()), rtol=1e-12)


# %% [markdown]
# Coefficients do not tell everything: in DeepSeekMath's experiments ([section 5.2.1](https://arxiv.org/abs/2402.03300), Fig. 5) online RFT is as
# good as RFT at first and better later. A toy shows how the writer can do this.
#
# **2. The writer.** A completion is now one of five answers. `sampler` holds the probabilities of the model that writes it, `pi` those of
# the policy that learns. The score of answer $y$ with respect to the policy's five logits is $e_y - \pi$, where $e_y$ is 1 at $y$ and 0 elsewhere.
# The coefficient is $R_y$, divided by the number of *all* completions. What is the mean of $R_y\,(e_y - \pi)$ over the sampler's completions?


# %% [exercise]
def expected_update(pi, sampler, R):
    """(5,) from three arrays (5,): of the policy, of the sampler, and the rewards (numpy)."""
    return ...


# %% [check]
check("12.2", expected_update)
trains("12.2", expected_update)

# %% [markdown]
# *A prompt whose right answer has the probability .02 at first; expected updates, learning rate 2. Thick: the base writes, divided by all
# completions; your function, dashed, should lie on it. See first where the policy's curve leaves it.*

# %% [hint]
# Answer $y$ comes with probability `sampler[y]`. Of $\sum_y$ `sampler[y]` $R_y\,(e_y - \pi)$, write the part with $e_y$ and the part
# with $\pi$ separately.


# %% [solution]
def expected_update(pi, sampler, R):
    return sampler * R - (sampler * R).sum() * pi


# With one right answer y this is sampler[y] (e_y - pi): the writer sets the length alone.
# With several right answers it changes the direction, too.


# %% [text]
# ## What the writer does, and the divisor
#
# **Who writes.** Divided by all, the first update is the same. Then the policy finds right answers ever more often; the base goes on finding one
# in 50. After 30 updates $p$ is {=hard[0]} if the policy writes and {=hard[1]} if the base does. On a prompt that
# begins at .5 the base finds enough: {=easy[0]} and {=easy[1]}.
#
# **The divisor.** RFT divides by what it *keeps* of the whole batch. On the hard prompt, which keeps one in 50, the base's completions give:
#
# | divided by | push on this prompt | $p$ after 30 |
# |---|---|---|
# | all | × 1 | {=hard[1]} |
# | those kept, if the base solves half of the batch | × 2 | {=hard[3]} |
# | those kept, if the prompt is alone in its batch | × 50 | {=hard[2]} |
#
# For one prompt a divisor is a learning rate. With × 2 the base's completions lead at first; from update {=overtakes} on the policy's own do.

# %% [markdown]
# Divisors also tell GRPO's relatives apart.
#
# **3. Place Dr. GRPO (GRPO done right) and DAPO** (decoupled clip and dynamic sampling policy optimization). The batch is one group, whose first
# $k$ completions are right; it is its first update, without a KL term. What is $w$ for a token of the *first* completion: under
# Dr. GRPO, and under DAPO, whose rewards are −1 and 1 and whose loss is a mean over all tokens of the batch?


# %% [exercise]
def two_placed(k, lengths, C):
    """(w of Dr. GRPO, w of DAPO) for a token of the first completion, which is right. lengths:
    a list of G numbers."""
    return ...


# %% [check]
check("12.3", two_placed)

# %% [hint]
# First the advantage: R − k/G for one method, and that divided by σ, the standard deviation of the rewards, for the other. Then the
# divisor: compare REINFORCE's and PPO's.


# %% [solution]
def two_placed(k, lengths, C):
    G = len(lengths)
    return (1 - k / G) / (G * C), np.sqrt((G - k) / k) / sum(lengths)


# %% [markdown]
# ## To remember
#
# - Any loss that is a function of the data's token log-probabilities has the gradient $-\sum w\,\nabla\log\pi$.
# - To compare two methods, ask who writes the completions, and write down $w$ with its divisors.
# - At its start, DPO on all pairs of a group has Dr. GRPO's advantages times $\beta G/2$. As the margins grow, its coefficients fade.
# - A policy that improves finds more right completions; a frozen base does not.
#
# ## For a second reading (10 minutes): a check, and an error in DeepSeekMath's table
#
# Autograd gives each loss's gradient and each score of a real model. Is the weighted sum the gradient, in the first update and the second?

# %% [fold]
def sft_loss(data):
    ids = torch.cat([data.prompt_ids, data.completion_ids], dim=1)
    logits = policy(input_ids=ids).logits[:, data.prompt_ids.shape[1] - 1 : -1]
    return F.cross_entropy(logits[data.mask], data.completion_ids[data.mask])  # token mean

def dpo_loss(pair):
    """pair: a rollout of two, the chosen completion and the rejected one."""
    logps, ref_logps = (completion_logps(model, pair, 1.0) for model in (policy, base))
    log_ratios = (logps - ref_logps).sum(dim=1)
    return -F.logsigmoid(DPO_BETA * (log_ratios[0] - log_ratios[1]))

def direction(loss):
    """Minus the gradient of a loss: where a step would go, (parameters,)."""
    gradients = torch.autograd.grad(loss, list(policy.parameters()), retain_graph=True)
    return -parameters_to_vector(gradients)

def agree(loss, data, w):
    """True if direction(loss) is the sum over all tokens of w times score, to 1e-12."""
    singles, exact = (data[torch.tensor([i])] for i in range(len(data))), direction(loss)
    scores = [-direction(logp) for one in singles
              for logp in completion_logps(policy, one, 1.0)[one.mask]]
    return bool((w[data.mask] @ torch.stack(scores) - exact).norm() < 1e-12 * exact.norm())


pair = by_base[torch.tensor([3, 1])]
holds = {"SFT": agree(sft_loss(taught), taught, w_taught)}
holds["RFT"] = agree(sft_loss(by_base[R_base.nonzero()[:, 0]]), by_base, w_base["RFT"])
holds["DPO"] = agree(dpo_loss(pair), by_base, w_base["DPO"])
old, ref = {"old_logps": old_logps}, {"ref_logps": ref_logps}
A_grpo = grpo.compute_advantages(rewards=R.view(1, G)).view(-1, 1)
scripts = {"REINFORCE": (reinforce, R.view(-1, 1), {}), "PPO": (ppo, A_ppo, old),
           "GRPO": (grpo, A_grpo, old | ref)}
for update in (1, 2):
    w[update] = coefficients(group, R, old_logps, (2, 1), A_ppo)
    for name, (script, A, more) in scripts.items():
        logps = completion_logps(policy, group, 1.0)
        batch = {"logps": logps, "advantages": A, "mask": group.mask} | more
        loss = script.policy_loss(**batch, config=script.Config())
        holds[f"{name}, update {update}"] = agree(loss, group, w[update][name])
    moved += 0.05 * (2 - update) * direction(loss) / direction(loss).norm()  # GRPO's
    vector_to_parameters(moved, policy.parameters())
print(f"equal, with an error below 1e-12: {sum(holds.values())} of {len(holds)}"
      " (the five and REINFORCE; the three online ones again in update 2)")
assert all(holds.values()) and not agree(loss, group, w[1]["GRPO"])  # those of update 1 do not
rho = (logps - old_logps).exp().detach()
stopped, same = (((clipped(A, rho) == 0) & group.mask) for A in (A_grpo, A_ppo))
print(f"update 2: the clip stops {stopped.sum()} of {group.mask.sum()} tokens, the same under GRPO"
      " and PPO (it looks at rho and the sign of A)")
assert stopped.any() and (stopped == same).all()

# %% [markdown]
# DeepSeekMath lists its methods' coefficients (Eq. 5, Table 10, App. A.1). They differ from our table by conventions that the paper states: it averages
# over each completion's tokens ($1/|y|$) and assumes $\rho = 1$.
#
# **One entry is an error: the coefficient of DPO (Eq. 14) is not the derivative of its objective (Eq. 12).** The objective is printed with
# means over tokens, where the original (Eq. 7 of the DPO paper) has sums. Its derivative,
# after $1/|y|$, is $\pm\beta\,\text{sigmoid}(-\beta \cdot \text{margin})$ with the margin of the *means*: one number for all tokens of a
# completion. Printed is $\pm\,\text{sigmoid}(\beta \log u^+_t - \beta \log u^-_t)$, with $u = \pi_{ref}/\pi_\theta$ of token $t$ of the chosen (+) and of the
# rejected completion (−). The factor β is missing, and token $t$ of one completion is compared with token $t$ of the other, which need not exist.

# %% [fold]
with torch.no_grad():
    logps, ref_logps = (completion_logps(model, pair, 1.0) for model in (policy, base))
length, log_u = pair.mask.sum(dim=1), ref_logps - logps
leaf = logps.clone().requires_grad_()
means = (leaf - ref_logps).sum(dim=1) / length
loss = -F.logsigmoid(DPO_BETA * (means[0] - means[1]))
w_12 = -length.view(2, 1) * torch.autograd.grad(loss, leaf)[0]
w_12, n = w_12[0][pair.mask[0]], int(length.min())
w_14 = (DPO_BETA * (log_u[0] - log_u[1])[:n]).sigmoid()  # as printed
print(f"the chosen completion has {length[0]} tokens, the rejected one {length[1]}")
print(f"derivative of Eq. 12, all {len(w_12)} tokens of the chosen one: {w_12[0]:.4f}"
      f"   (over β: {w_12[0] / DPO_BETA:.4f})")
print(f"Eq. 14, tokens 1 to {n}: {', '.join(f'{x:.4f}' for x in w_14)}; "
      f"tokens {n + 1} to {length[0]}: undefined")
by_formula = DPO_BETA / (1 + (DPO_BETA * (means[0] - means[1])).exp())
assert w_12.max() - w_12.min() < 1e-15 and abs(w_12[0] - by_formula) < 1e-12
assert w_14.max() - w_14.min() > 0.01 and 9 < w_14.min() / w_12[0] < w_14.max() / w_12[0] < 11

# %% [markdown]
# Sources: DeepSeekMath, [2402.03300](https://arxiv.org/abs/2402.03300), Eq. 5, Table 10, App. A.1 (DPO: Eq. 12–14); DPO,
# [2305.18290](https://arxiv.org/abs/2305.18290), Eq. 7; GRPO and DPO as contrastive losses,
# [2510.00977](https://arxiv.org/abs/2510.00977); Dr. GRPO, [2503.20783](https://arxiv.org/abs/2503.20783); DAPO,
# [2503.14476](https://arxiv.org/abs/2503.14476). The sum over all pairs (exercise 1) is ours.
