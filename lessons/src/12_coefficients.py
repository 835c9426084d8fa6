# %% [markdown]
# # 12 · One gradient, five coefficients
#
# Supervised fine-tuning (SFT), rejection-sampling fine-tuning (RFT), DPO, PPO and GRPO look like five inventions. Their
# updates have one form:
#
# $$-\nabla_\theta L \;=\; \sum_i \sum_t w_{i,t}\, \nabla_\theta \log \pi_\theta(y_{i,t} \mid x, y_{i,<t})$$
#
# A sum of scores, each with a number $w_{i,t}$ in front. The methods differ in **where the answers come from** and in
# **the coefficient**, the number.
#
# | symbol | meaning |
# |---|---|
# | $x$; $y_i$; $y_{i,t}$ | a prompt; answer $i$; its token $t$. The answers are the method's *data* |
# | $\ell_{i,t}$ | $\log \pi_\theta(y_{i,t} \mid x, y_{i,<t})$; its gradient is the **score** of the token; $s_i$ is their sum |
# | $w_{i,t}$ | the **coefficient** on the score, all divisors included |
# | $R_i$, $G$, $k$ | reward, 1 or 0; answers in the group; how many of them are right |
# | $\sigma$; $A_i$ | $\sqrt{k(G-k)}/G$; the advantage |
# | $\pi_{\text{ref}}$; $u$; $\rho$ | the frozen base model; $\pi_{\text{ref}}/\pi_\theta$ of a token; $\pi_\theta/\pi_{\text{old}}$ of a token, where $\pi_{\text{old}}$ drew it |
# | $\beta$ | the weight of the tie to $\pi_{\text{ref}}$ (a different number in each method) |
# | $C$ | a constant, the limit `max_new_tokens` |
# | $S(z)$ | the logistic function $1/(1+e^{-z})$, which the DPO papers call σ |
#
# ## Proof: the chain rule
#
# Each of these losses sees the model only through the numbers $\ell_{i,t}$ of the answers in its data. So
# $-\nabla L = \sum_{i,t} \big(-\partial L/\partial \ell_{i,t}\big)\, \nabla \ell_{i,t}$, and
# $w_{i,t} = -\partial L/\partial \ell_{i,t}$. ∎
#
# So *any* loss of these numbers has this form. (One that looks at tokens which were not drawn, such as an entropy bonus
# or distillation from a whole distribution, has more terms.) The content is in the coefficients. DeepSeekMath
# (arXiv:2402.03300, Eq. 5, Table 10, App. A.1) lists them. Its list, and what the losses give as written in code:
#
# | method | answers from | judge | coefficient in the paper, after $\frac{1}{\lvert o\rvert}\sum_t$ | $w_{i,t}$ in code, first step ($\rho = 1$) |
# |---|---|---|---|---|
# | SFT | a teacher | the teacher | $1$ | $1/\text{tokens}$ |
# | RFT | the frozen base | rule | $R_i$ | $R_i/\text{tokens kept}$ |
# | online RFT, REINFORCE | the policy | rule | $R_i$ | $R_i/(GC)$ |
# | DPO, one pair | the frozen base | rule or human | $\pm S(\beta \log u^+_t - \beta \log u^-_t)$ | $\pm\beta\,S(-\beta m)$, with the pair's margin $m = \sum_t \log\frac{1}{u^+_t} - \sum_t \log\frac{1}{u^-_t}$ |
# | PPO | the policy | model, critic | $A_t$ | $A_t/\text{tokens}$ |
# | GRPO | the policy | model | $A_i + \beta(u-1)$ | $(A_i + \beta(u-1))/(G\,\lvert y_i\rvert)$ |
# | Dr. GRPO | the policy | rule | – | $(R_i - k/G)/(GC)$, and our script's KL |
# | DAPO | the policy | rule | – | $A_i/\text{tokens}$ |
#
# The base stands for the paper's SFT model; the last column, REINFORCE, Dr. GRPO and DAPO are ours. Two differences are
# stated conventions: all the paper's objectives average over an answer's tokens, $1/|o|$, unlike common SFT, DPO and
# PPO code; and it assumes $\rho = 1$, so no clip appears. One is an error: its **DPO** coefficient (Eq. 14) is not the
# derivative of its objective (Eq. 12).

# %%
from itertools import product

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.colors import LinearSegmentedColormap
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from algorithms import dapo, dr_grpo, grpo, ppo, reinforce
from lessons import identity
from lessons.float64 import to_float64
from lessons.kit import GREY, RIGHT, WRONG, check, knob, label_line, new_figure, show
from toy_env.arithmetic import Problem, reward
from toy_env.model import encode_prompts, load_policy
from toy_env.rollout import Rollout, completion_logps, in_passes, sample

torch.manual_seed(0)
base, tokenizer = load_policy("base")
base = to_float64(base)  # double precision, so that "equal" can mean twelve digits
policy = to_float64(load_policy("base")[0])
problem, G, C = Problem("20+5-3", answer=22, level=2), 8, dr_grpo.Config().max_new_tokens


def written(prompt, texts):
    """Answers to one prompt that somebody else wrote, laid out like sampled ones."""
    ids = [tokenizer(text, add_special_tokens=False).input_ids + [tokenizer.eos_token_id] for text in texts]
    width = max(map(len, ids))
    padded = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in ids])
    mask = torch.tensor([[t < len(row) for t in range(width)] for row in ids])
    prompt_ids, prompt_mask = encode_prompts(tokenizer, [prompt] * len(texts))
    zeros = torch.zeros(mask.shape)
    return Rollout(prompt_ids, prompt_mask, padded, mask, zeros, zeros, torch.zeros(len(texts)).bool(), texts)


def cross_entropy(rollout, mean=True):
    """What supervised training minimises: over the answers' tokens only, the prompt's have the label -100."""
    ids = torch.cat([rollout.prompt_ids, rollout.completion_ids], dim=1)
    is_answer = torch.cat([torch.zeros_like(rollout.prompt_mask), rollout.mask], dim=1)
    labels = torch.where(is_answer, ids, -100)
    logits = policy(input_ids=ids).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="mean" if mean else "sum")


def direction(loss):
    """Minus the gradient of a loss, flattened: where a step would go."""
    return -torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(policy.parameters()))])


def move(step, length):
    vector_to_parameters(
        parameters_to_vector(policy.parameters()).detach() + length * step / step.norm(), policy.parameters()
    )


def draw_group(model, seed):
    generator = torch.Generator().manual_seed(seed)
    return sample(
        model, tokenizer, [problem.prompt], group_size=G, max_new_tokens=C, temperature=1.0, generator=generator
    )


taught = written("29+46-36?", ["29+46=75;75-36=39;#39", "#39"])
old_data = draw_group(base, 3)
move(direction(cross_entropy(taught)), 0.1)  # one step of SFT, so that policy and base differ
group = draw_group(policy, 8)
R_old, R = (torch.tensor([reward(problem, text) for text in data.texts]).double() for data in (old_data, group))
k = int(R.sum())
print("teacher: 29+46-36?", "  ".join(taught.texts))
for name, data in (("base:", old_data), ("policy:", group)):
    print(f"{name:8} 20+5-3?", "  ".join(text + ("" if reward(problem, text) else " ✗") for text in data.texts))

# %% [markdown]
# ## Two sides
#
# **The losses.** `F.cross_entropy` for SFT and RFT, `F.logsigmoid` for DPO (the mean over all pairs of a right and a
# wrong answer), and the scripts' own `compute_advantages` and `policy_loss`. Autograd gives the gradients.

# %%
DPO_BETA, kl = 0.1, grpo.Config().kl_coef
critic = ppo.Critic(policy).double()
torch.nn.init.normal_(critic.head.weight, std=0.05)  # an untrained critic will do: the claim asks nothing of V
torch.nn.init.constant_(critic.head.bias, 0.5)


def log_ratios(data):
    """(B,) log pi - log pi_ref of whole answers: summed, as DPO has it."""
    with torch.no_grad():
        of_base = completion_logps(base, data, 1.0)
    return (completion_logps(policy, data, 1.0) - of_base).sum(dim=1)


def dpo_loss(data, rewards, beta=DPO_BETA):
    h = log_ratios(data)
    margins = h[rewards == 1].unsqueeze(1) - h[rewards == 0]  # (right, wrong): every pair
    return -F.logsigmoid(beta * margins).mean()


def script_directions(data, rewards, old_logps):
    """Where each script's loss would go, on one group whose tokens had old_logps when it was drawn."""
    with torch.no_grad():
        ref_logps = completion_logps(base, data, 1.0)
        values = in_passes(critic, data, ppo.Config().max_tokens_per_pass)
    rewards = rewards.view(1, -1)
    out = {}
    judged = {"values": values, "old_logps": old_logps, "ref_logps": ref_logps, "mask": data.mask}
    for script in (reinforce, ppo, grpo, dr_grpo, dapo):
        batch, config = {"logps": completion_logps(policy, data, 1.0), "mask": data.mask}, script.Config()
        if script is not reinforce:
            batch["old_logps"] = old_logps
        if script in (grpo, dr_grpo):
            batch["ref_logps"] = ref_logps
        if script is ppo:
            A, _ = ppo.compute_advantages(rewards=rewards, **judged, config=config)
        else:
            A = script.compute_advantages(rewards=2 * rewards - 1 if script is dapo else rewards).view(-1, 1)
        out[script] = direction(script.policy_loss(**batch, advantages=A, config=config))
    return out


# %% [markdown]
# **The scores and coefficients.** Each answer goes through the model alone, and each token's log-probability is
# differentiated by itself: one vector per token. The coefficients are the table's last column in plain numpy, with no
# loss; for PPO that includes GAE as a double sum and the whitening. ρ and the clip are already in it.


# %%
def token_scores(data):
    """For each answer: log-probabilities (L,) under policy and base, and a gradient for each token (L, parameters)."""
    out = []
    for prompt, ids, mask in zip(data.prompt_ids, data.completion_ids, data.mask):
        ids, n = torch.cat([prompt, ids[mask]]), len(prompt)
        ell, ref = (
            m(input_ids=ids[None]).logits[0, n - 1 : -1].log_softmax(-1).gather(1, ids[n:, None])[:, 0]
            for m in (policy, base)
        )
        rows = [torch.autograd.grad(one, list(policy.parameters()), retain_graph=True) for one in ell]
        scores = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
        out.append((ell.detach().numpy(), ref.detach().numpy(), scores))
    return out


def clipped(A, rho, low=0.2, high=0.2):
    """The coefficient under a clip: rho A, and 0 where A > 0 above the range or A < 0 below it."""
    stopped = ((A > 0) & (rho > 1 + high)) | ((A < 0) & (rho < 1 - low))
    return np.where(stopped, 0, rho * A)


def ppo_advantages(rewards, values, old, ref):
    """GAE as the double sum it abbreviates, sum over l of lambda^l delta_(t+l), and whitening."""
    out = []
    for r, V, before, base_logps in zip(rewards, values, old, ref):
        reward_at = -kl * (before - base_logps) + r * (np.arange(len(V)) == len(V) - 1)
        delta = reward_at + np.append(V[1:], 0) - V
        out.append([sum(0.95**j * delta[t + j] for j in range(len(V) - t)) for t in range(len(V))])
    every = np.concatenate(out)
    return [(np.array(row) - every.mean()) / np.sqrt(every.var() + 1e-8) for row in out]


def by_hand(rewards, scored, old, values):
    """name: (a coefficient for each token of each answer, the divisor of each answer)."""
    rewards, k, G = rewards.numpy(), int(rewards.sum()), len(rewards)
    ell, ref, _ = zip(*scored)
    L = np.array([len(row) for row in ell])
    rho, u = [np.exp(a - b) for a, b in zip(ell, old)], [np.exp(b - a) for a, b in zip(ell, ref)]
    A = np.where(rewards == 1, np.sqrt((G - k) / k), -np.sqrt(k / (G - k)))
    h = np.array([(a - b).sum() for a, b in zip(ell, ref)])
    pair = DPO_BETA / (1 + np.exp(DPO_BETA * (h[rewards == 1][:, None] - h[rewards == 0])))  # beta S(-beta m)
    in_pairs = np.zeros(G)
    in_pairs[rewards == 1], in_pairs[rewards == 0] = pair.sum(axis=1), -pair.sum(axis=0)
    A_ppo = ppo_advantages(rewards, values, old, ref)
    tokens = np.full(G, L.sum())
    return {
        "RFT": ([r + 0 * e for r, e in zip(rewards, ell)], np.full(G, L[rewards == 1].sum())),
        "DPO, all pairs": ([w + 0 * e for w, e in zip(in_pairs, ell)], np.full(G, k * (G - k))),
        "REINFORCE": ([r + 0 * e for r, e in zip(rewards, ell)], np.full(G, G * C)),
        "PPO": ([clipped(a, r) for a, r in zip(A_ppo, rho)], tokens),
        "GRPO": ([clipped(a, r) + kl * (v - 1) for a, r, v in zip(A, rho, u)], G * L),
        "Dr. GRPO": ([clipped(r - k / G, x) + kl * (v - 1) for r, x, v in zip(rewards, rho, u)], np.full(G, G * C)),
        "DAPO": ([clipped(a, r, high=0.28) for a, r in zip(A, rho)], tokens),
    }


def weighted(scored, coefficients, divisors):
    """The sum of w times score over all tokens."""
    return sum(torch.tensor(c / n) @ scores for (_, _, scores), c, n in zip(scored, coefficients, divisors))


def error(a, b):
    return ((a - b).norm() / b.norm()).item()


# %% [markdown]
# ## The experiment
#
# The first step after sampling: coefficients on tokens of right and of wrong answers, before the divisor; where they
# differ from token to token, the range.

# %%
old_logps = completion_logps(policy, group, 1.0).detach()


def values_of(data):
    with torch.no_grad():
        values = in_passes(critic, data, ppo.Config().max_tokens_per_pass)
    return [row[mask].numpy() for row, mask in zip(values, data.mask)]


def unpadded(logps, data):
    return [row[mask].numpy() for row, mask in zip(logps, data.mask)]


def span(rows):
    low, high = (f"{x + 0.0:+.3f}" for x in (min(map(np.min, rows)), max(map(np.max, rows))))
    return low if low == high else f"{low} to {high}"


taught_scored, old_scored, scored = token_scores(taught), token_scores(old_data), token_scores(group)
of_old = by_hand(R_old, old_scored, [row[0] for row in old_scored], values_of(old_data))
of_group = by_hand(R, scored, unpadded(old_logps, group), values_of(group))
of_scripts = script_directions(group, R, old_logps)
kept = torch.nonzero(R_old == 1).flatten()
lengths = [len(row[0]) for row in taught_scored]
of_taught = [np.ones(n) for n in lengths], [sum(lengths)] * 2
of_pairs = of_old["DPO, all pairs"]
experiment = {  # name: answers from, judge, gradient, scores, coefficients, divisor in words
    "SFT": ("teacher", "teacher", direction(cross_entropy(taught)), taught_scored, of_taught, "tokens"),
    "RFT": ("base", "rule", direction(cross_entropy(old_data[kept])), old_scored, of_old["RFT"], "tokens kept"),
    "DPO, all pairs": ("base", "rule", direction(dpo_loss(old_data, R_old)), old_scored, of_pairs, "pairs"),
    "REINFORCE": ("policy", "rule", of_scripts[reinforce], scored, of_group["REINFORCE"], "G C"),
    "PPO": ("policy", "rule + critic", of_scripts[ppo], scored, of_group["PPO"], "tokens"),
    "GRPO": ("policy", "rule", of_scripts[grpo], scored, of_group["GRPO"], "G |y|"),
    "Dr. GRPO": ("policy", "rule", of_scripts[dr_grpo], scored, of_group["Dr. GRPO"], "G C"),
    "DAPO": ("policy", "rule", of_scripts[dapo], scored, of_group["DAPO"], "tokens"),
}
print(f"k = {k} of G = {G} right in the policy's group, {int(R_old.sum())} in the base's\n")
assert R_old.sum() == 4
print(f"{'method':15}{'answers':9}{'judge':15}{'right answers':20}{'wrong answers':20}{'divided by':13}error < 1e-12")
for name, (source, judge, exact, scores, (c, n), divisor) in experiment.items():
    rewards = R_old if source == "base" else R
    right = span(c if name == "SFT" else [row for row, r in zip(c, rewards) if r == 1])
    wrong = "" if name == "SFT" else span([row for row, r in zip(c, rewards) if r == 0])
    holds = error(exact, weighted(scores, c, n)) < 1e-12
    assert holds
    print(f"{name:15}{source:9}{judge:15}{right:20}{wrong:20}{divisor:13}{holds}")

ids = torch.cat([taught.prompt_ids, taught.completion_ids], dim=1)
labels = torch.cat(
    [torch.full_like(taught.prompt_ids, -100), torch.where(taught.mask, taught.completion_ids, -100)], dim=1
)
built_in = direction(policy(input_ids=ids, labels=labels).loss)
sft = weighted(taught_scored, *experiment["SFT"][4])
print(f"\nSFT by transformers' own labels=, which casts to float32: error < 1e-5: {error(built_in, sft) < 1e-5}")
assert error(built_in, sft) < 1e-5

# %% [markdown]
# DPO's numbers contain β (and each answer is in four pairs). PPO's have both signs: each token has a value of its own,
# and the script whitens the advantages to mean 0. GRPO's differ from its advantage by $\beta(u-1)$, positive where the
# base gives the token a higher probability than the policy does, in right and wrong answers alike.
#
# ## The paper's list against the losses
#
# **$1/|o|$** is not what `F.cross_entropy` computes over demonstrations of different length; with our two, the
# directions hardly differ. **DPO**: the paper's objective (Eq. 12, with a misprint, $o^-_{<t}$ for $o^-_t$) is
# $\log S\big(\beta\,\overline{\log 1/u^+} - \beta\,\overline{\log 1/u^-}\big)$, means over tokens; the original (Eq. 7
# of the DPO paper) has whole answers, so sums. The derivative of Eq. 12 is $\pm\frac{1}{|o|}\beta\,S(-\beta m)$ with
# $m$ the difference of the two *means*. The printed coefficient (Eq. 14) has no factor β, and inside the logistic token
# $t$ of one answer is set against token $t$ of the other, which need not exist.

# %%
mean_each = weighted(taught_scored, [np.ones(n) for n in lengths], [2 * n for n in lengths])
cosine = torch.cosine_similarity(direction(cross_entropy(taught)), mean_each, dim=0).item()
assert 0.98 < cosine < 0.999
print(f"SFT with 1/|o| instead of the token mean: cosine {cosine:.2f} with the gradient of F.cross_entropy")

longest = max(range(G), key=lambda i: R_old[i] * len(old_scored[i][0]))  # a right answer, worked out
other = int((R_old == 0).nonzero()[0])
pair = old_data[torch.tensor([longest, other])]
L_pair = pair.mask.sum(dim=1)
h_mean = torch.stack([(completion_logps(m, pair, 1.0)).sum(dim=1) / L_pair for m in (policy, base)])
eq12 = -F.logsigmoid(DPO_BETA * ((h_mean[0] - h_mean[1])[0] - (h_mean[0] - h_mean[1])[1]))
pair_scored = [old_scored[longest], old_scored[other]]
(a, a_ref, _), (b, b_ref, _) = pair_scored
m = (a - a_ref).mean() - (b - b_ref).mean()
right_coefficient = DPO_BETA / (1 + np.exp(DPO_BETA * m))
ours = weighted(pair_scored, [np.full(len(a), right_coefficient), np.full(len(b), -right_coefficient)], L_pair.tolist())
n = min(len(a), len(b))
theirs = 1 / (1 + np.exp(DPO_BETA * ((a - a_ref)[:n] - (b - b_ref)[:n])))  # Eq. 14, as far as both answers go
exact = direction(eq12)
assert np.ptp(theirs) > 0.01  # it differs from token to token
assert error(exact, ours) < 1e-12 and 9 < min(theirs) / right_coefficient < max(theirs) / right_coefficient < 11
print(f"DPO, Eq. 12, a right answer of {len(a)} tokens and a wrong one of {len(b)}:")
print(
    f"  with beta and the pair's margin: coefficient {right_coefficient:.4f}, "
    f"error < 1e-12: {error(exact, ours) < 1e-12}"
)
print(
    f"  Eq. 14 on tokens 1 to {n}: "
    + ", ".join(f"{x:.4f}" for x in theirs)
    + f"; on tokens {n + 1} to {len(a)}: undefined"
)

# %% [markdown]
# Without its β, Eq. 14 is about ten times too large here, which a learning rate would absorb. But it also differs from
# token to token; the derivative does not.
#
# **The clip** shows on the second step, when the policy has moved and the group stays. The coefficient is then
# $\rho A$, and 0 for the tokens that the clip stops; the KL's $u$ moves too. DAPO's higher edge lets a few more
# through:

# %%
move(of_scripts[dr_grpo], 0.05)  # the group's first step; from here it is off-policy
later_directions, later = script_directions(group, R, old_logps), token_scores(group)
of_later = by_hand(R, later, unpadded(old_logps, group), values_of(group))
stops = {}
print("second step, same group:  tokens stopped   error < 1e-12   error of the first step's coefficients")
for script, name in ((ppo, "PPO"), (grpo, "GRPO"), (dr_grpo, "Dr. GRPO"), (dapo, "DAPO")):
    c, n = of_later[name]
    exact = later_directions[script]
    still = error(exact, weighted(later, *of_group[name]))
    A = R.numpy() - k / G
    rho = [np.exp(row[0] - before) for row, before in zip(later, unpadded(old_logps, group))]
    high = 1.28 if name == "DAPO" else 1.2
    if name == "PPO":
        stopped = sum(int((row == 0).sum()) for row in c)
    else:
        stopped = sum(int(((r > high) if a > 0 else (r < 0.8)).sum()) for r, a in zip(rho, A))
    assert error(exact, weighted(later, c, n)) < 1e-12 < 0.05 < still and stopped > 0
    stops[name] = stopped
    print(f"{name:26}{f'{stopped} of {int(group.mask.sum())}':>14}   {True!s:13}   {still:.2f}")
assert stops["DAPO"] < stops["GRPO"]  # clip-higher lets more right tokens through

# %% [markdown]
# ## One group, seven judgements
#
# The policy's group of the first step: $w_{i,t}$, averaged over each answer's tokens, as a share of the largest in its
# row.

# %%
names = ["RFT", "REINFORCE", "DPO, all pairs", "PPO", "GRPO", "DAPO", "Dr. GRPO"]
W = np.array([[np.mean(row) / n for row, n in zip(*of_group[name])] for name in names])
W = W / np.abs(W).max(axis=1, keepdims=True)
order = np.argsort(-R.numpy(), kind="stable")
figure, axis = new_figure(9.5, 3.9)
axis.grid(False)
shades = LinearSegmentedColormap.from_list("w", [WRONG, "white", RIGHT])
axis.imshow(W[:, order], cmap=shades, vmin=-1.3, vmax=1.3, aspect="auto")
for row, column in np.ndindex(W.shape):
    text = f"{W[row, order[column]]:+.2f}".replace("-", "−") if W[row, order[column]] else "0"
    axis.text(column, row, text, ha="center", va="center", fontsize=10)
axis.set_yticks(range(len(names)), names)
axis.set_xticks(range(G), [group.texts[i].replace(";", ";\n") for i in order], fontsize=8.5)
axis.axvline(k - 0.5, color="black", linewidth=1.5)
axis.tick_params(length=0)
axis.spines[:].set_visible(False)
axis.set_title(f"Coefficient on a token: {k} right answers, {G - k} wrong ones")
show(figure)

# %% [markdown]
# *RFT and REINFORCE ignore wrong answers, the others push against them; GRPO alone divides by the answer's own length.*
#
# ## RFT: right answers only
#
# We take a policy with six possible answers, enumerate all its groups of 4, and differentiate each real loss. With $p$
# the probability of a right answer and $q = 1-p$, the expectations are:
#
# - **Online RFT, the sum** (without $1/|o|$), is `reinforce.py`, and $\mathbb E[R\,s] = \nabla p$: no negative example,
#   and no bias ([lesson 1](01_score_function.ipynb)).
# - **SFT on the answers kept**, a mean over the $k$ right ones: $\frac{1-q^G}{p}\nabla p$. The divisor $k$ lifts hard
#   prompts; for large $G$ this climbs $\log p$.
# - **Dr. GRPO's praise**, the terms with $A > 0$: $\frac{G-1}{G}\,q\,\nabla p$. **Its blame**, those with $A < 0$:
#   $\frac{G-1}{G}\,p\,\nabla p$. On a hard prompt nearly all of the expected update is praise.
#
# **Offline RFT** starts with the same gradient. Then its data go stale: the frozen policy's right answers stay its
# target.


# %%
def enumerate_groups(loss, logits_of, theta, right, G):
    """The expected gradient of a loss(logits, answers, rewards) over all groups of G answers, minus sign included."""
    total = 0
    for answers in product(range(len(right)), repeat=G):
        answers = torch.tensor(answers)
        logits = logits_of(theta)
        chance = logits.log_softmax(dim=0)[answers].sum().exp().item()
        total = total - chance * torch.autograd.grad(loss(logits, answers, right[answers]), theta)[0]
    return total


def by_rule(keep):
    """The loss of algorithms/dr_grpo.py, without 1 / C and KL, on the answers that `keep` picks by their advantage."""

    def loss(logits, answers, rewards):
        A = dr_grpo.compute_advantages(rewards=rewards.view(1, -1)).view(-1, 1)
        logps = logits.log_softmax(dim=0)[answers].view(-1, 1)
        batch = {
            "logps": logps,
            "old_logps": logps.detach(),
            "ref_logps": logps.detach(),
            "mask": torch.ones_like(logps),
        }
        return dr_grpo.policy_loss(**batch, advantages=A * keep(A), config=dr_grpo.Config(max_new_tokens=1))

    return loss


def reinforce_loss(logits, answers, rewards):
    logps, config = logits.log_softmax(dim=0)[answers].view(-1, 1), reinforce.Config(max_new_tokens=1)
    return reinforce.policy_loss(
        logps=logps, advantages=rewards.view(-1, 1), mask=torch.ones_like(logps), config=config
    )


def kept_loss(logits, answers, rewards):
    """Supervised cross-entropy on the right answers, their mean; a group without any gives nothing."""
    labels = torch.where(rewards == 1, answers, -100)
    return F.cross_entropy(logits.expand(len(answers), -1), labels) if rewards.any() else 0 * logits.sum()


rng = np.random.default_rng(4)
features, right, n = torch.tensor(rng.normal(size=(6, 2))), torch.tensor([1.0, 1, 1, 0, 0, 0]).double(), 4
theta = torch.tensor(rng.normal(size=2)).requires_grad_()
p = (features @ theta).softmax(dim=0) @ right
grad_p, p = torch.autograd.grad(p, theta)[0], p.item()
rules = {
    "online RFT, sum": (reinforce_loss, 1.0),
    "mean over the kept": (kept_loss, (1 - (1 - p) ** n) / p),
    "Dr. GRPO's praise": (by_rule(lambda A: A > 0), (n - 1) / n * (1 - p)),
    "Dr. GRPO's blame": (by_rule(lambda A: A < 0), (n - 1) / n * p),
    "Dr. GRPO": (by_rule(lambda A: 1), (n - 1) / n),
}
assert np.isclose(identity.weight("mean over the right", p, n), rules["mean over the kept"][1], rtol=1e-12)
print(f"p = {p:.3f}, G = {n}      weight on grad p    error of the formula < 1e-12")
for name, (loss, formula) in rules.items():
    g = enumerate_groups(loss, lambda theta: features @ theta, theta, right, n)
    assert error(g, formula * grad_p) < 1e-12
    print(f"{name:26}{(g @ grad_p / grad_p.square().sum()).item():9.3f}{error(g, formula * grad_p) < 1e-12!s:>24}")

toys = 20
features = torch.tensor(rng.normal(size=(toys, 6, 2)))
start = torch.tensor(rng.normal(size=(toys, 2)))
final, cosine = {}, []
for online in (True, False):
    theta = start.clone().requires_grad_()
    frozen = (features @ start.unsqueeze(2)).squeeze(2).softmax(dim=1)
    for step in range(301):
        logps = (features @ theta.unsqueeze(2)).squeeze(2).log_softmax(dim=1)
        p_now = logps.exp() @ right
        g_on = torch.autograd.grad(p_now.sum(), theta, retain_graph=True)[0]
        g_off = torch.autograd.grad(((frozen * right) * logps).sum(), theta)[0]
        if not online and step in (0, 10, 300):
            cosine.append(torch.cosine_similarity(g_on, g_off, dim=1).median().item())
        theta = (theta + (g_on if online else g_off)).detach().requires_grad_()
    final[online] = p_now.detach().numpy()
assert abs(cosine[0] - 1) < 1e-12 and (final[True] > final[False]).all()
print(
    f"\noffline RFT against grad p, {toys} random toys: median cosine "
    + ", ".join(f"{c:.2f} at step {s}" for c, s in zip(cosine, (0, 10, 300)))
)
print(
    f"p after 300 steps, median: online {np.median(final[True]):.2f}, offline {np.median(final[False]):.2f}; "
    f"online higher in {(final[True] > final[False]).sum()} of {toys}"
)

# %% [markdown]
# These toys share two parameters among six answers; with one for each answer, the target itself has $p = 1$.
#
# ## DPO starts as Dr. GRPO, then fades
#
# At $\pi_\theta = \pi_{\text{ref}}$ every margin is 0 and every pair has the coefficient $\pm\beta/2$. Sum over all
# $k(G-k)$ pairs; $\bar s_+$ and $\bar s_-$ are the mean scores of right and of wrong answers:
#
# $$\frac\beta2 \sum_{i\ \text{right}}\ \sum_{j\ \text{wrong}} (s_i - s_j) = \frac\beta2\, k(G-k)\,(\bar s_+ - \bar s_-)
# = \frac\beta2\, G^2 \cdot \sigma^2 (\bar s_+ - \bar s_-)$$
#
# and $\sigma^2(\bar s_+ - \bar s_-)$ is Dr. GRPO's update, without KL ([lesson 6](06_identity.ipynb)). **Summed over
# all pairs, DPO's first step is Dr. GRPO's**, up to a constant, for every $k$. A group of two with one right answer is
# one pair. (That GRPO is akin to DPO, down to $G = 2$: Wu et al., arXiv:2510.00977.)

# %%
vector_to_parameters(parameters_to_vector(base.parameters()).detach(), policy.parameters())  # back to the base
for declared in range(1, G):
    R_k = (torch.arange(G) < declared).double()  # the algebra asks only that rewards are 0 or 1
    all_pairs = declared * (G - declared) * direction(dpo_loss(old_data, R_k))
    dr = script_directions(old_data, R_k, old_data.logps)[dr_grpo]
    assert error(all_pairs, G**2 * C * DPO_BETA / 2 * dr) < 1e-12
print("sum over pairs = G² C beta / 2 times the gradient of dr_grpo.policy_loss, k = 1 to 7: error < 1e-12: True")

one, zero = torch.tensor([1.0, 0.0]).double(), pair.mask.sum(dim=1)
of_two, of_dpo = (
    script_directions(pair, one, completion_logps(policy, pair, 1.0).detach()),
    direction(dpo_loss(pair, one)),
)
print(f"\nG = 2, lengths {zero.tolist()}:    cosine with DPO   length relative to DPO")
for script, expected in ((dr_grpo, 1 / (2 * DPO_BETA * C)), (dapo, 2 / (DPO_BETA * zero.sum().item())), (grpo, None)):
    cosine, ratio = (
        torch.cosine_similarity(of_two[script], of_dpo, dim=0).item(),
        (of_two[script].norm() / of_dpo.norm()).item(),
    )
    assert expected is None or (abs(cosine - 1) < 1e-12 and np.isclose(ratio, expected, rtol=1e-12))
    print(f"{script.__name__:27}{cosine:8.4f}          {ratio:8.4f}")
assert abs(cosine - 1) > 1e-3  # GRPO's 1 / |y|

print("\nsteps on this pair   margin   DPO coefficient   P(right answer)   |A| in a group of one right, one wrong")
for step in range(13):
    h = log_ratios(pair).detach().requires_grad_()
    w = -torch.autograd.grad(-F.logsigmoid(DPO_BETA * (h[0] - h[1])), h)[0][0].item()
    A = grpo.compute_advantages(rewards=one.view(1, 2))[0, 0].item()
    assert np.isclose(w, DPO_BETA / (1 + np.exp(DPO_BETA * (h[0] - h[1]).item()))) and 0 < w < DPO_BETA and A == 1
    if step % 4 == 0:
        chance = completion_logps(policy, pair, 1.0)[0].sum().exp().item()
        print(f"{step:10}{(h[0] - h[1]).item():19.1f}{w:15.4f}{chance:18.2f}{A:15.0f}")
    move(direction(dpo_loss(pair, one)), 0.1)
vector_to_parameters(parameters_to_vector(base.parameters()).detach(), policy.parameters())

values = (R_old.mean() * old_data.mask).double()
logps = completion_logps(policy, old_data, 1.0)
judged = {"values": values, "old_logps": logps.detach(), "ref_logps": logps.detach(), "mask": old_data.mask}
A, returns = ppo.compute_advantages(rewards=R_old.view(1, G), **judged, config=ppo.Config(gae_lambda=1.0, kl_coef=0.0))
of_ppo = direction(
    ppo.policy_loss(
        logps=logps, old_logps=logps.detach(), advantages=returns - values, mask=old_data.mask, config=ppo.Config()
    )
)
dr = script_directions(old_data, R_old, old_data.logps)[dr_grpo]
assert error(of_ppo, dr * G * C / old_data.mask.sum()) < 1e-12
print("\nPPO with lambda = 1, V = k/G, no whitening, no KL is Dr. GRPO times G C / tokens: error < 1e-12: True")

# %% [markdown]
# DPO's coefficient lies between 0 and β and fades as the margin grows, but never is 0. A group of GRPO is silent when
# the policy's answers are all right (or all wrong) *now*; a pair of DPO fades when its margin against the reference is
# large, whatever the policy would answer today. The last line is a third relative: PPO with a critic that knows the
# group's mean. (The script whitens, so the line takes its advantages from returns − values.)
#
# ## Every coefficient, as $k$ and the policy change
#
# Left: the coefficients $c_i$ in a group with $k$ right answers, on the first step, so that the update is
# $\frac1G\sum_i c_i s_i$. Right: the same as the policy moves away, by autograd through each loss, for a right answer
# and for a wrong one. DPO's are in units of β, against the pair's margin. KL terms are left out.

# %%
METHODS = ["GRPO", "DPO", "RFT", "mean over the right", "PPO, V = ½", "Dr. GRPO", "DAPO", "CISPO, cap 2"]
CLIPPED = {"GRPO": grpo, "PPO, V = ½": ppo, "Dr. GRPO": dr_grpo, "DAPO": dapo}


def first_step(method, k):
    """(c of a right answer, c of a wrong one); DPO in units of beta, the mean over all pairs."""
    spread = float(identity.sigma(k, G))
    if method in ("RFT", "mean over the right"):
        return (1.0 if method == "RFT" else G / max(k, 1)), 0.0
    if method == "PPO, V = ½":
        return 0.5, -0.5
    if spread == 0:
        return 0.0, 0.0
    if method == "DPO":
        return G / (2 * k), -G / (2 * (G - k))
    scale = 1 if method == "Dr. GRPO" else spread
    return (1 - k / G) / scale, -k / G / scale


def moved(method, c, x):
    """The coefficient c of the first step where log-probabilities have changed by x (all but DPO)."""
    x = torch.tensor(x).requires_grad_()
    if method in ("RFT", "mean over the right"):
        loss = -c * x.sum()
    elif method.startswith("CISPO"):
        loss = -(x.exp().clamp(max=2).detach() * c * x).sum()
    else:
        script, column = CLIPPED[method], x.view(-1, 1)
        batch = {"logps": column, "old_logps": 0 * column.detach(), "mask": torch.ones_like(column)}
        if script in (grpo, dr_grpo):
            batch["ref_logps"] = column.detach()
        loss = script.policy_loss(**batch, advantages=torch.full_like(column, c), config=script.Config())
        loss = loss * len(x) * (C if script is dr_grpo else 1)
    return -torch.autograd.grad(loss, x)[0].numpy()


def draw(method, k, beta):
    figure, (left, curve) = new_figure(10, 3.7, columns=2)
    c = first_step(method, k)
    unit = " / β" if method == "DPO" else ""
    left.bar(range(G), [c[i >= k] for i in range(G)], 0.7, color=[RIGHT if i < k else WRONG for i in range(G)])
    left.set_axisbelow(True)
    left.axhline(0, color="black", linewidth=0.8)
    top = max(3.0, 1.15 * max(map(abs, c)))
    left.set(title=f"{method}, first step: {k} right, {G - k} wrong", ylabel=f"coefficient{unit}", ylim=(-top, top))
    left.set_xticks(range(G), ["right" if i < k else "wrong" for i in range(G)], fontsize=8)
    if not any(c) or (c[1] == 0 and k == 0):
        left.text(3.5, 0.1 * top, "silent", ha="center", color=GREY, fontsize=12)
    x = np.linspace(-60, 60, 241) if method == "DPO" else np.linspace(-1, 1, 401)
    for sign, color, name in ((0, RIGHT, "right"), (1, WRONG, "wrong")):
        if method == "DPO":
            margins = torch.tensor(x).requires_grad_()
            loss = -F.logsigmoid(beta * margins).sum() * 2 * c[sign] / beta
            y = -torch.autograd.grad(loss, margins)[0].numpy()
        else:
            y = moved(method, c[sign], x)
        curve.plot(x, y, color=color, linestyle="-" if sign == 0 else "--")
        label_line(curve, x[-1], y[-1], name, color, xytext=(4, 5 if sign == 0 else -5))
    curve.axvline(0, color=GREY, linewidth=0.8)
    curve.margins(y=0.12)
    if not any(c):
        curve.set_ylim(-1, 1)
    curve.set_title("As the policy moves away from the data's")
    curve.set_xlabel("margin of the pair" if method == "DPO" else "change of the token's log-probability, log ρ")
    curve.set_xlim(x[0], x[-1] * 1.25)
    return figure


for script, name in ((grpo, "GRPO"), (dr_grpo, "Dr. GRPO"), (dapo, "DAPO")):
    for right_ones in range(G + 1):
        A = script.compute_advantages(rewards=(torch.arange(G) < right_ones).double().view(1, G))[0]
        c = first_step(name, right_ones)
        assert np.allclose(A, [c[i >= right_ones] for i in range(G)], rtol=1e-12)
knob(draw, method=METHODS, k=(0, 8, 1, 2), beta=(0.05, 0.5, 0.05, 0.1))

# %% [markdown]
# *A clip switches a token off at the edge, on one side only; DPO fades out; RFT never stops.*
#
# ## Exercises
#
# **1. Derive DPO's coefficients.** The loss of a pair is $-\log S(\beta m)$, $m = h^+ - h^-$, where $h$ is an answer's
# $\log\pi_\theta/\pi_{\text{ref}}$. Give the coefficients on the chosen and on the rejected answer's score.


# %% [exercise]
def dpo_coefficients(m, beta):
    """(w_chosen, w_rejected)."""
    return ...


# %% [check]
def by_autograd(m, beta):
    h = torch.tensor([m, 0.0], dtype=torch.float64, requires_grad=True)
    return -torch.autograd.grad(-F.logsigmoid(beta * (h[0] - h[1])), h)[0]


check(
    dpo_coefficients,
    by_autograd,
    inputs=[{"m": 0.0, "beta": 0.1}, {"m": 12.0, "beta": 0.1}, {"m": -3.0, "beta": 0.5}],
    mistakes={
        "the factor beta is missing, as in the paper's Eq. 14": lambda m, beta: (
            1 / (1 + np.exp(beta * m)),
            -1 / (1 + np.exp(beta * m)),
        ),
        "the sign inside the logistic: a settled pair should get less": lambda m, beta: (
            beta / (1 + np.exp(-beta * m)),
            -beta / (1 + np.exp(-beta * m)),
        ),
        "beta / 2 is right on the first step only, where m = 0": lambda m, beta: (beta / 2, -beta / 2),
    },
)

# %% [hint]
# The derivative of log S(z) is 1 − S(z) = S(−z). Then the chain rule through z = βm.


# %% [solution]
def dpo_coefficients(m, beta):
    w = beta / (1 + np.exp(beta * m))
    return w, -w


# %% [wrong] the factor beta is missing
def dpo_coefficients(m, beta):
    w = 1 / (1 + np.exp(beta * m))
    return w, -w


# %% [wrong] the sign inside the logistic
def dpo_coefficients(m, beta):
    w = beta / (1 + np.exp(-beta * m))
    return w, -w


# %% [wrong] right on the first step only
def dpo_coefficients(m, beta):
    return beta / 2, -beta / 2


# %% [markdown]
# **2. Place Dr. GRPO and DAPO.** One group, the first $k$ answers right; first step, no KL. With which $w$, divisor
# included, is a token of the *first* answer's score multiplied by Dr. GRPO, and with which by DAPO (rewards −1 and 1,
# token mean over the batch, which is this group)?


# %% [exercise]
def two_placed(k, lengths, C):
    """(w of Dr. GRPO, w of DAPO) for a token of the first answer, which is right. lengths: a list of G numbers."""
    return ...


# %% [check]
def placed_by_scripts(k, lengths, C):
    G = len(lengths)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).view(-1, 1)
    rewards, out = (torch.arange(G) < k).double().view(1, G), []
    for script in (dr_grpo, dapo):
        logps = torch.zeros(mask.shape).double().requires_grad_()
        batch = {"logps": logps, "old_logps": logps.detach(), "mask": mask}
        if script is dr_grpo:
            batch["ref_logps"] = logps.detach()
        A = script.compute_advantages(rewards=2 * rewards - 1 if script is dapo else rewards).view(-1, 1)
        loss = script.policy_loss(**batch, advantages=A, config=script.Config(max_new_tokens=C))
        out.append(-torch.autograd.grad(loss, logps)[0][0, 0].item())
    return out


check(
    two_placed,
    placed_by_scripts,
    inputs=[{"k": 1, "lengths": [20, 4, 4, 8], "C": 56}, {"k": 3, "lengths": [4, 20, 20, 8, 5], "C": 30}],
    mistakes={
        "Dr. GRPO does not divide by sigma": lambda k, lengths, C: [
            ((len(lengths) - k) / k) ** 0.5 / n for n in (len(lengths) * C, sum(lengths))
        ],
        "DAPO divides by all tokens of the batch, not by the answer's own": lambda k, lengths, C: [
            (1 - k / len(lengths)) / (len(lengths) * C),
            ((len(lengths) - k) / k) ** 0.5 / (len(lengths) * lengths[0]),
        ],
        "rewards -1 and 1 stretch sigma too: DAPO's advantage is not doubled": lambda k, lengths, C: [
            (1 - k / len(lengths)) / (len(lengths) * C),
            2 * ((len(lengths) - k) / k) ** 0.5 / sum(lengths),
        ],
        "Dr. GRPO divides by G as well as by C": lambda k, lengths, C: [
            (1 - k / len(lengths)) / C,
            ((len(lengths) - k) / k) ** 0.5 / sum(lengths),
        ],
    },
)

# %% [hint]
# The advantage first: $1 - k/G$, and the same over σ, which is √((G−k)/k). Then the last column of the first table.


# %% [solution]
def two_placed(k, lengths, C):
    G = len(lengths)
    return (1 - k / G) / (G * C), np.sqrt((G - k) / k) / sum(lengths)


# %% [wrong] Dr. GRPO does not divide by sigma
def two_placed(k, lengths, C):
    G = len(lengths)
    return np.sqrt((G - k) / k) / (G * C), np.sqrt((G - k) / k) / sum(lengths)


# %% [wrong] not by the answer's own
def two_placed(k, lengths, C):
    G = len(lengths)
    return (1 - k / G) / (G * C), np.sqrt((G - k) / k) / (G * lengths[0])


# %% [wrong] DAPO's advantage is not doubled
def two_placed(k, lengths, C):
    G = len(lengths)
    return (1 - k / G) / (G * C), 2 * np.sqrt((G - k) / k) / sum(lengths)


# %% [markdown]
# **3. RFT as an advantage.** Which advantages turn `reinforce.py` (up to $1/C$ it follows $\frac1G\sum_i A_i s_i$) into
# supervised training on the right answers, the mean of their $s_i$? A group without right answers gives nothing.


# %% [exercise]
def rft_advantages(rewards):
    """(G,) advantages from (G,) rewards of 0 and 1 (numpy)."""
    return ...


# %% [check]
def rft_by_autograd(rewards):
    logps = torch.zeros(len(rewards)).double().requires_grad_()
    loss = -logps[torch.tensor(rewards) == 1].mean() if rewards.any() else 0 * logps.sum()
    return -torch.autograd.grad(loss, logps)[0] * len(rewards)


check(
    rft_advantages,
    rft_by_autograd,
    inputs=[{"rewards": np.array(row)} for row in ([1.0, 0, 0, 1, 0], [0.0, 0, 0], [1.0, 0, 0, 0])],
    mistakes={
        "that is online RFT, the sum: the mean over the right divides by k": lambda rewards: rewards,
        "the loss divides by G already: put G back": lambda rewards: rewards / max(rewards.sum(), 1),
        "a group without right answers: 0, not a division by 0": lambda rewards: (
            rewards * len(rewards) / (rewards.sum() or np.nan)
        ),
    },
)

# %% [hint]
# $\frac1G\sum A_i s_i$ should equal $\frac1k\sum_{\text{right}} s_i$. What if k is 0?


# %% [solution]
def rft_advantages(rewards):
    return rewards * len(rewards) / max(rewards.sum(), 1)


# %% [wrong] that is online RFT
def rft_advantages(rewards):
    return rewards


# %% [wrong] put G back
def rft_advantages(rewards):
    return rewards / max(rewards.sum(), 1)


# %% [wrong] a group without right answers
def rft_advantages(rewards):
    with np.errstate(invalid="ignore"):
        return rewards * len(rewards) / np.float64(rewards.sum())


# %% [markdown]
# **4. Past the edge.** CISPO (arXiv:2506.13585) has in effect the objective
# $\mathrm{sg}[\min(\rho, \text{cap})]\,A\,\ell$; sg means that no gradient flows through the bracket. Give the
# coefficients of DAPO and of CISPO on one token, before the divisor, at ratio ρ.


# %% [exercise]
def past_the_edge(A, rho, low, high, cap):
    """(DAPO's, CISPO's) coefficient; DAPO's range is 1 - low to 1 + high."""
    return ...


# %% [check]
def past_by_autograd(A, rho, low, high, cap):
    out, one = [], torch.ones(1, 1).double()
    for name in ("DAPO", "CISPO"):
        logp = torch.full((1, 1), float(np.log(rho)), dtype=torch.float64, requires_grad=True)
        batch = {"logps": logp, "old_logps": 0 * one, "mask": one, "advantages": A * one}
        config = dapo.Config(clip_eps_low=low, clip_eps_high=high)
        cispo = -(logp.exp().clamp(max=cap).detach() * A * logp).sum()
        loss = dapo.policy_loss(**batch, config=config) if name == "DAPO" else cispo
        out.append(-torch.autograd.grad(loss, logp)[0].item())
    return out


def dapo_coefficient(A, rho, low, high):
    return 0 if (A > 0 and rho > 1 + high) or (A < 0 and rho < 1 - low) else rho * A


check(
    past_the_edge,
    past_by_autograd,
    inputs=[
        {"A": a, "rho": r, "low": 0.2, "high": 0.28, "cap": 2.0} for a in (1.5, -0.5) for r in (0.5, 1.1, 1.5, 3.0)
    ],
    mistakes={
        "a token that DAPO stops has the coefficient 0: its clipped ratio is constant": lambda A, rho, low, high, cap: (
            min(max(rho, 1 - low), 1 + high) * A,
            min(rho, cap) * A,
        ),
        "DAPO stops each sign on one side only: A < 0 below the range, A > 0 above it": lambda A, rho, low, high, cap: (
            rho * A * (1 - low <= rho <= 1 + high),
            min(rho, cap) * A,
        ),
        "CISPO stops no token: past the cap its coefficient is cap times A": lambda A, rho, low, high, cap: (
            dapo_coefficient(A, rho, low, high),
            rho * A * (rho <= cap),
        ),
    },
)

# %% [hint]
# Exactly two cases of DAPO are 0 ([lesson 2](02_ppo.ipynb)). In CISPO the bracket is a number, and the derivative of
# ℓ by ℓ is 1.


# %% [solution]
def past_the_edge(A, rho, low, high, cap):
    stopped = (A > 0 and rho > 1 + high) or (A < 0 and rho < 1 - low)
    return 0.0 if stopped else rho * A, min(rho, cap) * A


# %% [wrong] its clipped ratio is constant
def past_the_edge(A, rho, low, high, cap):
    return min(max(rho, 1 - low), 1 + high) * A, min(rho, cap) * A


# %% [wrong] on one side only
def past_the_edge(A, rho, low, high, cap):
    return rho * A if 1 - low <= rho <= 1 + high else 0.0, min(rho, cap) * A


# %% [wrong] CISPO stops no token
def past_the_edge(A, rho, low, high, cap):
    stopped = (A > 0 and rho > 1 + high) or (A < 0 and rho < 1 - low)
    return 0.0 if stopped else rho * A, rho * A if rho <= cap else 0.0


# %% [markdown]
# **5. Find the bug.** This DPO loss trains, and its very first gradient is right, so a test on a fresh model passes.
# Then its pairs settle after a margin of a few nats, whatever β is. Repair it. (The log-probabilities are sums over
# answers.)


# %% [exercise]
def dpo_of(chosen, rejected, ref_chosen, ref_rejected, beta):
    m = (chosen - ref_chosen) - (rejected - ref_rejected)
    loss = -beta * F.logsigmoid(m).mean()  # <- runs, and is wrong
    return loss


# %% [check]
h = torch.zeros(2, dtype=torch.float64, requires_grad=True)  # the claim: at margin 0 both have the same gradient
twins = [
    torch.autograd.grad(loss, h)[0] for loss in (-0.1 * F.logsigmoid(h[0] - h[1]), -F.logsigmoid(0.1 * (h[0] - h[1])))
]
assert torch.allclose(*twins, rtol=1e-12)

some = torch.tensor([[-9.0, -20], [-14, -12], [-11, -18], [-13, -25]]).double()
pairs = dict(zip(("chosen", "rejected", "ref_chosen", "ref_rejected"), some))


def from_the_definition(chosen, rejected, ref_chosen, ref_rejected, beta):
    """The Bradley-Terry probability that chosen wins, with rewards beta log pi / pi_ref (Rafailov et al., Eq. 7)."""
    won, lost = ((beta * (a - b)).exp() for a, b in ((chosen, ref_chosen), (rejected, ref_rejected)))
    return -(won / (won + lost)).log().mean()


check(
    dpo_of,
    from_the_definition,
    inputs=[pairs | {"beta": beta} for beta in (0.1, 0.5)],
    bug=lambda chosen, rejected, ref_chosen, ref_rejected, beta: (
        -beta * F.logsigmoid(chosen - ref_chosen - rejected + ref_rejected).mean()
    ),
    mistakes={
        "now beta is nowhere": lambda chosen, rejected, ref_chosen, ref_rejected, beta: (
            -F.logsigmoid(chosen - ref_chosen - rejected + ref_rejected).mean()
        ),
        "beta belongs inside only": lambda chosen, rejected, ref_chosen, ref_rejected, beta: (
            -beta * F.logsigmoid(beta * (chosen - ref_chosen - rejected + ref_rejected)).mean()
        ),
        "the references are exchanged": lambda chosen, rejected, ref_chosen, ref_rejected, beta: (
            -F.logsigmoid(beta * (chosen - ref_rejected - rejected + ref_chosen)).mean()
        ),
    },
)

# %% [hint]
# Compare the coefficients: β S(−βm) should stand on the scores, and this has β S(−m).


# %% [solution]
def dpo_of(chosen, rejected, ref_chosen, ref_rejected, beta):
    m = (chosen - ref_chosen) - (rejected - ref_rejected)
    return -F.logsigmoid(beta * m).mean()


# %% [wrong] now beta is nowhere
def dpo_of(chosen, rejected, ref_chosen, ref_rejected, beta):
    m = (chosen - ref_chosen) - (rejected - ref_rejected)
    return -F.logsigmoid(m).mean()


# %% [wrong] beta belongs inside only
def dpo_of(chosen, rejected, ref_chosen, ref_rejected, beta):
    m = (chosen - ref_chosen) - (rejected - ref_rejected)
    return -beta * F.logsigmoid(beta * m).mean()


# %% [wrong] the references are exchanged
def dpo_of(chosen, rejected, ref_chosen, ref_rejected, beta):
    m = (chosen - ref_rejected) - (rejected - ref_chosen)
    return -F.logsigmoid(beta * m).mean()


# %% [markdown]
# ## What to take along
#
# - Any loss of the data's token log-probabilities is $\sum w\,\nabla\log\pi$, by the chain rule. To compare methods,
#   ask where the answers come from, who judges, and write down $w$ with its divisor.
# - RFT uses right answers only. While they are fresh, a prompt's expected update still points along ∇p; in our 20 toys,
#   imitating a frozen policy's answers ended lower every time.
# - At the reference, DPO's loss summed over all pairs has Dr. GRPO's gradient, up to a constant; then its coefficient
#   fades with the margin.
# - DeepSeekMath's list averages over $1/|o|$ and sets ρ = 1 by convention; its DPO coefficient lacks β and the pair's
#   margin.
# - All of this is algebra on a few answers of one small model. Which coefficient trains best, it does not say.
#
# Next: how long an update with these coefficients is, in [lesson 13](13_update_length.ipynb).
#
# Sources: DeepSeekMath, [arXiv:2402.03300](https://arxiv.org/abs/2402.03300), Eq. 5, Table 10, App. A.1 (DPO: Eq.
# 12–14); DPO, [2305.18290](https://arxiv.org/abs/2305.18290), Eq. 7; GRPO and DPO as contrastive losses,
# [2510.00977](https://arxiv.org/abs/2510.00977); Dr. GRPO, [2503.20783](https://arxiv.org/abs/2503.20783); DAPO,
# [2503.14476](https://arxiv.org/abs/2503.14476); CISPO, [2506.13585](https://arxiv.org/abs/2506.13585). The sum over
# all pairs and the split into praise and blame are derived here.
