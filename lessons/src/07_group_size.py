# %% [markdown]
# # 7 · Expected gradient and group size
#
# One group's update is σ times a contrast ([lesson 6](06_identity.ipynb)). Groups are random, so what does GRPO do *on
# average*? The claim, for any policy:
#
# $$\mathbb E[g] \;=\; w_G(p)\,\nabla p, \qquad w_G(p) = \frac{\mathbb E[\sigma]}{p\,q}$$
#
# The direction is that of this prompt's policy gradient; only the length depends on the group size. From the length
# comes a published design rule, $G^\star = 1/(8\varepsilon\,pq)$. It is a leading order, printed beside the exact G,
# and it answers another question than "which G should I take?". That one we ask at the end.
#
# | symbol | meaning |
# |---|---|
# | $G,\ k$ | answers in a group, all to one prompt; how many of them are right |
# | $p,\ q$ | the probability that an answer is right; $q = 1 - p$ |
# | $\sigma$ | the standard deviation of the group's rewards, $\sqrt{k(G-k)}/G$; a **silent** group has $\sigma = 0$ |
# | $s_i$ | the score of answer $i$: $\nabla_\theta \log \pi_\theta(y_i)$, summed over its tokens |
# | $m_+,\ m_-$ | the expected score of a right answer, and of a wrong one |
# | $g$ | the update of one group, $\frac1G \sum_i A_i s_i$ with the advantages $A_i$ |
# | $\nabla p$ | the gradient of $p$: the direction in which right answers become more probable |

# %%
import json
import math
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import torch

from algorithms import dr_grpo, grpo
from lessons import identity
from lessons.experiments import compare_tables
from lessons.float64 import to_float64
from lessons.kit import BLUE, GREY, ORANGE, PURPLE, check, knob, new_figure
from toy_env.arithmetic import Problem, reward
from toy_env.model import load_policy
from toy_env.rollout import completion_logps, sample

# %% [markdown]
# ## The theorem, in three steps
#
# **Step 1: fix k.** Once it is known how many answers are right, each right one is a draw from the policy's right
# answers, each wrong one from its wrong answers. So $\mathbb E[\bar s_+ - \bar s_-] = m_+ - m_-$ in every mixed group,
# whatever $k$ is, and by lesson 6
#
# $$\mathbb E[g \mid k] = \sigma\,(m_+ - m_-)$$
#
# **Step 2: the contrast.** A score has mean 0, and $\mathbb E[R\,s] = \nabla p$ ([lesson 1](01_score_function.ipynb)).
# Split both by the reward: $p\,m_+ + q\,m_- = 0$ and $p\,m_+ = \nabla p$. So $m_+ = \nabla p/p$, $m_- = -\nabla p/q$,
# and
#
# $$m_+ - m_- = \frac{\nabla p}{p\,q}$$
#
# **Step 3: average over k**, binomial with G draws. A silent group counts with $g = 0$ and σ = 0:
# $\mathbb E[g] = \frac{\mathbb E[\sigma]}{pq}\nabla p$. Dr. GRPO has σ² in place of σ, and $\mathbb E[\sigma^2] =
# pq\,(1 - \frac1G)$, so its weight is $1 - \frac1G$ for every $p$, as in [lesson 3](03_group_baseline.ipynb). ∎
#
# The paper behind the identity (arXiv:2607.00152, Prop. `expectation`) states this for a prompt with a single
# parameter. Nothing needs that; lesson 3's formula for any advantage rule gives the same weight. What the proof does
# need: samples from the policy itself (the first step after sampling), no clip, no KL, and scores summed over tokens.
# With $1/|y|$ step 2 breaks: $s/|y|$ does not have mean 0.
#
# ### All groups of a small network
#
# A network with 43 shared parameters writes up to three tokens, 0, 1 or the end. That makes 15 answers, of one to three
# tokens. We visit every group, through the scripts' advantages; $\nabla p$ comes from autograd alone.

# %%
END = 2
ANSWERS = [(END,)] + [(a, END) for a in (0, 1)] + [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1, END)]
torch.manual_seed(7)
network = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)).double()
weights = list(network.parameters())
with torch.no_grad():
    for weight in weights:
        weight.mul_(2)  # away from equal probabilities


def log_prob(answer):
    """Sum over tokens; the network sees the position and the token before."""
    total = 0
    for position, token in enumerate(answer):
        seen = torch.zeros(6, dtype=torch.float64)
        seen[position] = seen[3 + (answer[position - 1] if position else END)] = 1
        total = total + network(seen).log_softmax(dim=0)[token]
    return total


def flat_gradient(value):
    return torch.cat([part.flatten() for part in torch.autograd.grad(value, weights)])


scores = torch.stack([flat_gradient(log_prob(answer)) for answer in ANSWERS])  # (15, 43)
mean_scores = scores / torch.tensor([len(answer) for answer in ANSWERS]).view(-1, 1)  # what 1/|y| puts in their place


def expected_update(rule, G, R, vectors):
    """E[g] over all groups of G. Those with the same answers in another order count together."""
    probs = torch.stack([log_prob(answer) for answer in ANSWERS]).exp().detach()
    groups = torch.tensor(list(combinations_with_replacement(range(15), G)))  # (n, G)
    counts = torch.nn.functional.one_hot(groups, 15).sum(dim=1)  # (n, 15)
    factorial = torch.tensor([math.factorial(i) for i in range(G + 1)], dtype=torch.float64)
    chance = factorial[G] / factorial[counts].prod(dim=1) * (probs**counts).prod(dim=1)
    push = torch.zeros(len(groups), 15, dtype=torch.float64).scatter_add(1, groups, rule(rewards=R[groups]) / G)
    return chance @ push @ vectors


verifiers = {
    "its first digit is its last": lambda digits: digits[:1] == digits[-1:] != [],
    "it has an odd number of 1s": lambda digits: digits.count(1) % 2 == 1,
    "it is 0, 1, 0": lambda digits: digits == [0, 1, 0],
}
print("right if                      p      G   GRPO     E[sigma]/pq   Dr. GRPO   1-1/G    equal   cosine with 1/|y|")
for name, verifier in verifiers.items():
    R = torch.tensor([float(verifier([token for token in y if token != END])) for y in ANSWERS], dtype=torch.float64)
    success = sum(r * log_prob(answer).exp() for r, answer in zip(R, ANSWERS))
    p, grad_p = success.item(), flat_gradient(success)
    for G in (2, 4, 6):
        found = []
        for rule in (grpo.compute_advantages, dr_grpo.compute_advantages):
            mean = expected_update(rule, G, R, scores)
            found.append((mean @ grad_p / (grad_p @ grad_p)).item())
            assert (mean - found[-1] * grad_p).norm() < 1e-12 * grad_p.norm()  # nothing sideways
        claimed = [float(identity.expected_sigma(p, G)) / (p * (1 - p)), 1 - 1 / G]
        equal = np.allclose(found, claimed, rtol=1e-12, atol=0)
        assert np.isclose(identity.weight("GRPO", p, G), claimed[0], rtol=1e-12)  # lesson 3's formula
        assert equal
        cosine = torch.cosine_similarity(expected_update(grpo.compute_advantages, G, R, mean_scores), grad_p, 0).item()
        print(
            f"{name:27}   {p:.3f}  {G}   {found[0]:.4f}   {claimed[0]:.4f}        {found[1]:.4f}     "
            f"{claimed[1]:.4f}   {equal}    {cosine:.3f}"
        )
        assert cosine < 0.99

# %% [markdown]
# ### Groups of the real model
#
# The base model gives the same answers again and again. So we can list nearly all it ever says, with exact
# probabilities and scores, and get $p$ and $\nabla p$ without any sampling. Against them: the mean update of groups
# that were really sampled.


# %%
sampler, tokenizer = load_policy("base")
policy = to_float64(load_policy("base")[0])
parameters = list(policy.parameters())


def study(problem, n):
    """n sampled answers as indices into the list of different ones, with probability, score and reward of each."""
    drawn = sample(
        sampler,
        tokenizer,
        [problem.prompt],
        group_size=n,
        max_new_tokens=56,
        temperature=1.0,
        generator=torch.Generator().manual_seed(7),
    )
    ids = drawn.completion_ids.masked_fill(~drawn.mask, -1).numpy()
    _, first, index = np.unique(ids, axis=0, return_index=True, return_inverse=True)
    probs, S = [], []
    for row in first:
        logp = completion_logps(policy, drawn[torch.tensor([row])], temperature=1.0).sum()
        probs.append(logp.exp().item())
        S.append(torch.cat([part.flatten() for part in torch.autograd.grad(logp, parameters)]))
    R = np.array([reward(problem, drawn.texts[row]) for row in first], dtype=float)
    return index.flatten(), np.array(probs), torch.stack(S), R


def pushes(rule, index, R, G):
    """(groups, answers): the factor of each listed answer's score, in each group of G."""
    groups = torch.tensor(index).view(-1, G)
    A = rule(rewards=torch.tensor(R)[groups]) / G
    return torch.zeros(len(groups), len(R), dtype=torch.float64).scatter_add(1, groups, A)


problem = Problem("12+7-4+9", answer=24, level=3)
index, probs, S, R = study(problem, 8192)
p = probs @ R
grad_p = torch.tensor(probs * R) @ S
print(
    f"{problem.prompt} {len(index):,} samples, {len(R)} different answers with {probs.sum():.1%} of all probability; "
    f"p = {p:.3f}\n"
)
on_average = (S @ grad_p / (grad_p @ grad_p)).numpy()  # each score along grad p, in units of grad p
sideways = S - torch.tensor(on_average).view(-1, 1) * grad_p
inner = (sideways @ sideways.T).numpy()
print("rule       G    groups   mean of g along grad p, 95 %   claimed   cosine   noise alone would give")
for name, rule, G in (("GRPO", grpo, 2), ("GRPO", grpo, 8), ("GRPO", grpo, 32), ("Dr. GRPO", dr_grpo, 8)):
    push = pushes(rule.compute_advantages, index, R, G)
    push = push.numpy()
    along = push @ on_average
    half_width = 1.96 * along.std(ddof=1) / np.sqrt(len(along))
    claimed = float(identity.expected_sigma(p, G)) / (p * (1 - p)) if rule is grpo else 1 - 1 / G
    length = along.mean() * grad_p.norm().item()
    off = (push.mean(axis=0) @ inner @ push.mean(axis=0)) / length**2  # squared, sideways against along
    noise = ((push @ inner) * push).sum(axis=1).mean() / len(push) / length**2  # what it is if the true one is 0
    print(
        f"{name:9} {G:2}   {len(along):6}   {along.mean():.3f} [{along.mean() - half_width:.3f}, "
        f"{along.mean() + half_width:.3f}]           {claimed:.3f}     {(1 + off) ** -0.5:.4f}   "
        f"{(1 + noise) ** -0.5:.4f}"
    )
    assert abs(along.mean() - claimed) < half_width and off < 3 * noise

# %% [markdown]
# The claimed weight lies in all four intervals, and the cosines miss 1 by as much as noise alone explains. (One prompt,
# one set of samples.)
#
# ## Fidelity: how long is the expected step?
#
# For large groups σ tends to $\sqrt{pq}$, and the weight to $1/\sqrt{pq}$. The paper calls the share that a group of G
# reaches its **fidelity**, $\varphi = \mathbb E[\sigma]/\sqrt{pq}$. The *delta method* approximates it. σ is a function
# of $k/G$, $f(x) = \sqrt{x(1-x)}$, and $k/G$ has mean $p$ and variance $pq/G$. Taylor's second order (exercise 1):
#
# $$\mathbb E[\sigma] \approx f(p) + \tfrac12 f''(p)\,\frac{pq}{G} \quad\Longrightarrow\quad
# \varphi \approx 1 - \frac{1}{8Gpq} \quad\Longrightarrow\quad G^\star = \frac{1}{8\varepsilon\,pq}
# \ \text{ for } \varphi = 1-\varepsilon$$
#
# These are the paper's Cor. `attenuation` and `designrule`. The next order (ours: Taylor to the fourth) is
# $-\frac{7-16pq}{128\,(Gpq)^2}$. It is negative at every $p$, because $16pq \le 4$. So the expansion promises too much
# and $G^\star$ is too small for large groups at every $p$, not only near $p \in \{0, 1\}$, where the paper expects it.

# %%
print("        p    fidelity   expansion   mixed groups   fidelity of these alone")
for G in (8, 64):
    for p in (0.5, 0.3, 0.1, 0.05, 0.01):
        phi, expansion = float(identity.fidelity(p, G)), float(identity.fidelity_expansion(p, G))
        mixed = 1 - float(identity.silent_rate(p, G))
        print(f"G = {G:2}  {p:4}   {phi:.3f}     {expansion:7.3f}      {mixed:4.0%}          {phi / mixed:.2f}")
        assert expansion > phi or expansion < 0
assert f"{identity.fidelity(0.05, 8):.2f} {identity.fidelity_expansion(0.05, 8):.2f}" == "0.54 0.67"  # published

outcomes = np.array([[bits >> i & 1 for i in range(8)] for bits in range(2**8)])  # all groups of 8
for p in (0.5, 0.05):
    chance = p ** outcomes.sum(axis=1) * (1 - p) ** (8 - outcomes.sum(axis=1))
    assert abs(chance @ outcomes.std(axis=1) / np.sqrt(p * (1 - p)) - identity.fidelity(p, 8)) < 1e-12
    G, pq = 800, p * (1 - p)
    next_order = (identity.fidelity(p, G) - identity.fidelity_expansion(p, G)) * G**2
    assert abs(next_order / (-(7 - 16 * pq) / (128 * pq**2)) - 1) < 0.05
print("exact values agree with all 256 groups of 8, the next order with the exact sum at G = 800: True")

# %% [markdown]
# At $p = .05$ and G = 8 the exact fidelity is .54, the expansion says .67 (the paper gives both). At $p = .01$ the
# expansion is below 0, which no fidelity can be.
#
# The last column is a warning. At $p = .05$ most groups of 8 are silent, and the expected update of the mixed ones is
# *longer* than the limit, not shorter. Low fidelity is a story about silent groups.
#
# ## The published table, and what its law reaches
#
# The paper's Table `groupsize` prints the exact G from which on fidelity is at least 90, 95 or 99 %, and its own
# leading-order $G^\star$ beside it: 24 numbers. We add the fidelity of a group of the law's size.

# %%
EXACT = {0.5: (7, 11, 51), 0.3: (9, 14, 61), 0.1: (22, 36, 144), 0.05: (42, 69, 273)}  # as published
LAW = {0.5: (5, 10, 50), 0.3: (6, 12, 60), 0.1: (14, 28, 139), 0.05: (26, 53, 263)}
TARGETS = (0.9, 0.95, 0.99)
print("p      target   exact G   law G*   fidelity at G*   with the next order")
for p in EXACT:
    assert (np.diff([identity.fidelity(p, G) for G in range(2, 300)]) > 0).all()  # once reached, a target stays reached
    for i, target in enumerate(TARGETS):
        exact, law = identity.group_size_exact(p, target), round(float(identity.group_size_law(p, 1 - target)))
        assert (exact, law) == (EXACT[p][i], LAW[p][i])
        reached = float(identity.fidelity(p, law))
        assert reached < target
        better = math.ceil(float(identity.group_size_law(p, 1 - target)) + 7 / (16 * p * (1 - p)) - 1)
        assert law < better <= exact and (target < 0.99 or exact - better <= 1)
        print(f"{p:<4}    {target:.0%}      {exact:4}      {law:4}        {reached:.2%}           {better:4}")
rng = np.random.default_rng(0)
drawn = rng.binomial(26, 0.05, size=400_000)
simulated = np.sqrt(drawn * (26 - drawn)).mean() / 26 / np.sqrt(0.05 * 0.95)
assert abs(simulated - identity.fidelity(0.05, 26)) < 0.003  # seven standard errors
print("all 24 published numbers: True. The law misses its own target in all 12 rows: True")
print(
    "expected right answers in the exact G for 90 %:",
    ", ".join(f"{identity.group_size_exact(p, 0.9) * p:.2f} at p = {p}" for p in (0.05, 0.02, 0.01)),
)

# %% [markdown]
# The exact column is right, and larger than the law's in all twelve rows: the paper shows it by printing both. So its
# sentence "$\varphi \ge 1-\varepsilon$ once $G \ge G^\star$" (Cor. `designrule`) holds to leading order only, not as an
# inequality. It is worst on hard prompts: 26 answers at $p = .05$ reach 82 %, not 90 %. The next order adds
# $\frac{7}{16pq} - 1$ to $G^\star$, whatever ε is, and is right to one answer in the 99 % rows. For hard prompts there
# is a simpler rule: 90 % needs about two right answers in the group on average.
#
# ## Which G should I take?
#
# It is tempting to read the table as an answer: hard prompts need large groups. The paper does: "one uniform group size
# spends [...] too little on the hard tails". It does not follow.
#
# **Fidelity is a length.** A step of fidelity .54 points in the same direction, and a learning rate can make it longer.
# Under Dr. GRPO the same ratio, $\mathbb E[\sigma^2]/(pq) = 1 - \frac1G$, does not see difficulty at all.
#
# **Groups cost completions.** From n completions come n/G groups. The sum of their expected updates is proportional to
# $n\,\mathbb E[\sigma]/G$, and *that* is largest at G = 2, at every $p$. No answer either: a length again.
#
# **What counts at a fixed budget is noise.** Take the mean update of n completions of one prompt. Its signal is the
# length of its expectation; its noise is the root mean square length of what is *sideways* of $\nabla p$. (A prompt
# with one parameter has no sideways: simulated coins cannot show this.) In a group with $k$ right, the sideways part of
# the contrast has mean 0 and mean squared length $\frac{v_+}{k} + \frac{v_-}{G-k}$, where $v_\pm$ are the sideways
# variances of the scores of right and of wrong answers. Times σ², averaged over $k$:
#
# $$\mathbb E\|g_\perp\|^2 = \frac{v_+(q - q^G) + v_-(p - p^G)}{G}, \qquad
# \frac1n\Big(\frac{\text{signal}}{\text{noise}}\Big)^2 =
# \frac{\mathbb E[\sigma]^2\,\|m_+ - m_-\|^2}{v_+(q - q^G) + v_-(p - p^G)}$$
#
# We call the right-hand side, relative to its limit for large G, the **efficiency** of G. If $v_+ = v_-$ it is
#
# $$\text{efficiency} = \frac{\varphi^2}{1 - p^G - q^G} \;\le\; 1 - \frac1G$$
#
# by the inequality of Cauchy and Schwarz: σ vanishes in silent groups, so
# $\mathbb E[\sigma]^2 \le \mathbb E[\sigma^2]\,(1 - p^G - q^G)$. Dr. GRPO reaches $1 - \frac1G$ at every $p$: of G
# completions, one pays for the baseline. Silent groups lower the signal, but they add no noise.
#
# On the real model's scores $v_+$ and $v_-$ need not be equal:


# %%
def efficiency(p, G, r=1.0, power=1):
    """Squared signal-to-noise per completion, relative to G -> infinity; r = v- / v+. GRPO: power 1, Dr. GRPO: 2."""
    q, k, chance = 1 - p, np.arange(1, G), identity.binomial(p, G)[1:-1]
    length = identity.sigma(k, G) ** power  # the contrast's factor
    noise = G * (chance @ (length**2 * (1 / k + r / (G - k))))
    return (chance @ length) ** 2 / noise * (q + r * p) / (p * q)


def variances(probs, S, R):
    """Scores without their part along grad p and without the mean of their class; v+ and v-."""
    grad_p = torch.tensor(probs * R) @ S
    sideways = S - torch.outer(S @ grad_p, grad_p) / (grad_p @ grad_p)
    sizes = []
    for of_class in (R == 1, R == 0):
        rows = np.flatnonzero(of_class)
        share = torch.tensor(probs[rows] / probs[rows].sum())
        sideways[rows] -= share @ sideways[rows]
        sizes.append((share @ sideways[rows].square().sum(dim=1)).item())
    return sideways, *sizes


every_p = np.linspace(0.005, 0.995, 199)
steps = np.array([identity.expected_sigma(every_p, G) / G for G in range(2, 65)])  # expected step per completion
assert (np.diff(steps, axis=0) < 1e-12).all() and np.allclose(steps[0], every_p * (1 - every_p) / 2, atol=1e-12)
for p in (0.05, 0.3, 0.5):
    assert abs(identity.fidelity(p, 2) - np.sqrt(p * (1 - p))) < 1e-12
    for G in (2, 3, 8, 32):
        closed = identity.expected_sigma(p, G) ** 2 / (p * (1 - p)) / (1 - identity.silent_rate(p, G))
        assert abs(efficiency(p, G) - closed) < 1e-12 and abs(efficiency(p, G, power=2) - (1 - 1 / G)) < 1e-12
print("efficiency of G           r = v-/v+    p      2     4     8    16    32    64")
for p in (0.5, 0.05):
    print(
        f"equal noise                  1.0     {p:.2f}   "
        + "   ".join(f"{efficiency(p, 2**i):.2f}" for i in range(1, 7))
    )
studies = [(problem, probs, S, R)]
studies += [(other, *study(other, 4096)[1:]) for other in (Problem("11+19", 30, 1), Problem("37+26", 63, 1))]
for prompt, listed, vectors, marks in studies:
    sideways, v_right, v_wrong = variances(listed, vectors, marks)
    p = listed @ marks / listed.sum()
    values = [efficiency(p, 2**i, v_wrong / v_right) for i in range(1, 7)]
    print(
        f"base model, {prompt.prompt:12} {v_wrong / v_right:8.1f}     {p:.2f}   "
        + "   ".join(f"{x:.2f}" for x in values)
    )
    inner = (sideways @ sideways.T).numpy()
    for G in (2, 8, 32):  # many groups, drawn from the listed answers
        push = pushes(grpo.compute_advantages, rng.choice(len(marks), size=8000 * G, p=listed / listed.sum()), marks, G)
        found = ((push.numpy() @ inner) * push.numpy()).sum(axis=1).mean()
        claimed = (v_right * (1 - p - (1 - p) ** G) + v_wrong * (p - p**G)) / G
        assert abs(found / claimed - 1) < 0.1
assert efficiency(0.95, 32, 10) < efficiency(0.95, 8, 10)
lowest = min(efficiency(p, 8) for p in np.linspace(0.001, 0.999, 999))
assert lowest > 0.85
print(f"\nequal noise, G = 8: at least {lowest:.2f} at every p. Formula for the noise against simulated groups: True")

# %% [markdown]
# With equal noise G = 2 has half of the limit, 4 three quarters, and 8 at least 85 %, *at every difficulty*. Fidelity
# at $p = .05$ and G = 8 is .54; efficiency is .86. Where the more common kind of answer is the noisier one, as are the
# wrong ones on our first prompt, small groups cost more; where the rarer kind is, less. (Rare answers with long scores
# are not on our lists: take $r$ as rough.) Efficiency need not even rise with G: move $p$ to .95 and $r$ to 10.
#
# ## Move p, the target and G
#
# Left, fidelity: the exact sum, the expansion, the target, and the exact and the law's group size with what they reach
# (dot: yours). Right, what G does at a fixed number of completions.


# %%
SIZES = np.unique(np.geomspace(2, 512, 60).round().astype(int))


def draw(p, target, G, r):
    figure, (left, right) = new_figure(10.5, 4.0, columns=2)
    phi = np.array([identity.fidelity(p, int(size)) for size in SIZES])
    left.plot(SIZES, 1 - 1 / SIZES, "--", color=ORANGE)
    left.plot(SIZES, phi, color=BLUE)
    left.plot(SIZES, identity.fidelity_expansion(p, SIZES), ":", color=PURPLE)
    left.plot(G, identity.fidelity(p, G), "o", color=BLUE, markersize=9)
    left.axhline(target / 100, color=GREY, linewidth=1)
    exact, law = identity.group_size_exact(p, target / 100), round(float(identity.group_size_law(p, 1 - target / 100)))
    for size, name, color, height in ((exact, "exact", BLUE, 0.17), (law, "law", PURPLE, 0.06)):
        reached, side = identity.fidelity(p, size), -1 if name == "law" or size > 200 else 1
        left.plot([size, size], [0, reached], color=color, linewidth=1)
        left.plot(size, reached, "s", color=color, markersize=5)
        left.annotate(
            f"{name}: {size}",
            (size, height),
            xytext=(5 * side, 0),
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            color=color,
        )
    left.set(title=f"Fidelity at p = {p:.2f}", ylabel="share of the large-group length", ylim=(0, 1.06))
    left.set_yticks([0, 0.25, 0.5, 0.75, target / 100], ["0", ".25", ".5", ".75", f".{target}"])
    for y, text, color in (
        (0.42, "GRPO, exact", BLUE),
        (0.35, "its expansion", PURPLE),
        (0.28, "Dr. GRPO, every p", ORANGE),
    ):
        left.text(
            0.98,
            y,
            text,
            color=color,
            transform=left.transAxes,
            ha="right",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )

    curves = [
        ("GRPO, efficiency", BLUE, "-", lambda size: efficiency(p, size, r)),
        ("Dr. GRPO, efficiency", ORANGE, "--", lambda size: efficiency(p, size, r, power=2)),
        (
            "GRPO, summed length\nof steps; G = 2 is 1",
            GREY,
            ":",
            lambda size: identity.expected_sigma(p, size) / size / (p * (1 - p) / 2),
        ),
    ]
    for _, color, style, curve in curves:
        right.plot(SIZES, [curve(int(size)) for size in SIZES], style, color=color)
        right.plot(G, curve(G), "o", color=color, markersize=7)
    for y, (name, color, _, _) in zip((0.44, 0.37, 0.23), curves):
        right.text(1.02, y, name, color=color, transform=right.transAxes)
    right.set(title=f"At equal completions, v₋/v₊ = {r}", ylabel="relative to large groups", ylim=(0, 1.06))
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_xticks([2, 8, 32, 128, 512], ["2", "8", "32", "128", "512"])
        axis.set(xlabel="G", xlim=(1.9, 540))
    return figure


knob(draw, p=(0.05, 0.95, 0.05, 0.05), target=[90, 95, 99], G=(2, 128, 1, 8), r=[1, 3, 10])

# %% [markdown]
# *At p = .05 a group of 8 has half the length of a large group's step and most of its signal-to-noise: two questions.*
#
# ### What this does not say
#
# Efficiency is about one step and one prompt. It leaves out that at a fixed budget a larger group means *fewer
# different prompts*, which speaks for small groups. It weighs all sideways directions alike, and knows no Adam, no clip
# and no second minibatch. And G changes how hard prompts weigh against easy ones, because $w_G(p)$ depends on it
# (lesson 9). One trial from outside: the abstract of arXiv:2510.00977 reports that groups of 2, whose fidelity is
# $\sqrt{pq} \le \frac12$, reach about 98 % of the performance of groups of 16. And ours: `grpo.py`, 256 completions a
# batch in groups of G, six seeds, accuracy at equal completions, and points above groups of 8.

# %%
results = json.loads((Path(identity.__file__).parent / "experiments/results.json").read_text())["group_size"]
for G in (2, 4, 8, 16, 32, 64):
    against = "" if G == 8 else compare_tables.change(compare_tables.find(results, f"GRPO, G = {G}", "GRPO, G = 8"))
    print(
        f"G = {G:2}, {256 // G:3} prompts   {compare_tables.cell(results['arms'][f'GRPO, G = {G}']['at_budget'])}   {against}"
    )
seen = [c["arm"] for c in results["comparisons"] if c["number"] == "at_budget" and c["p_holm"] < 0.05]
assert seen == ["GRPO, G = 64", "Dr. GRPO, G = 2", "Dr. GRPO, G = 64"]

# %% [markdown]
# *Between stars: what survives the correction for many comparisons.* From 4 to 32 no difference is left. A group of 64
# leaves four prompts in a batch, and loses; so does Dr. GRPO with groups of 2. GRPO's smaller loss there does not
# survive the correction.
#
# ## Exercises
#
# **1. The delta method.** Give $f''(p)$ for $f(x) = \sqrt{x(1-x)}$, and with it the number $c$ in
# $\varphi \approx 1 - c/G$.


# %% [exercise]
def delta_method(p):
    """(f''(p), c)."""
    return ...


# %% [check]
def by_numbers(p):
    """f'' from finite differences, c from exact sums at two large G, extrapolated."""
    f, h = (lambda x: (x * (1 - x)) ** 0.5), 1e-4
    drops = [G * (1 - identity.fidelity(p, G)) for G in (400, 800)]
    return (f(p + h) - 2 * f(p) + f(p - h)) / h**2, 2 * drops[1] - drops[0]


check(
    delta_method,
    by_numbers,
    inputs=[{"p": 0.5}, {"p": 0.3}, {"p": 0.8}],
    mistakes={
        "c is of the fidelity: divide the drop of E[sigma] by sqrt(pq)": lambda p: (
            -((p * (1 - p)) ** -1.5) / 4,
            (p * (1 - p)) ** -0.5 / 8,
        ),
        "Taylor's second order has a factor one half": lambda p: (
            -((p * (1 - p)) ** -1.5) / 4,
            1 / (4 * p * (1 - p)),
        ),
        "f is concave: its second derivative is negative": lambda p: (
            (p * (1 - p)) ** -1.5 / 4,
            1 / (8 * p * (1 - p)),
        ),
    },
    tolerance=2e-3,
)

# %% [hint]
# $f^2 = x - x^2$. Differentiate twice: $2ff' = 1 - 2x$, then $2f'^2 + 2ff'' = -2$. Multiply by $f^2$ and use
# $(1-2x)^2 = 1 - 4f^2$. Then $\frac12 f''(p)\,pq/G$ is the drop of $\mathbb E[\sigma]$.


# %% [solution]
def delta_method(p):
    pq = p * (1 - p)
    second = -(pq**-1.5) / 4
    return second, -second * pq / 2 / np.sqrt(pq)  # 1 / (8 pq)


# %% [wrong] divide the drop of E[sigma] by sqrt(pq)
def delta_method(p):
    second = -((p * (1 - p)) ** -1.5) / 4
    return second, -second * p * (1 - p) / 2


# %% [wrong] a factor one half
def delta_method(p):
    pq = p * (1 - p)
    return -(pq**-1.5) / 4, 1 / (4 * pq)


# %% [wrong] f is concave
def delta_method(p):
    pq = p * (1 - p)
    return pq**-1.5 / 4, 1 / (8 * pq)


# %% [markdown]
# **2. The exact group size.** Find the smallest G whose fidelity is at least `target`. You may use
# `identity.expected_sigma(p, G)`. The check compares with the published column.


# %% [exercise]
def needed(p, target):
    """The smallest G >= 2 with E[sigma] / sqrt(pq) >= target."""
    return ...


# %% [check]
def first_above(value, target):
    return next(G for G in range(2, 400) if value(G) >= target)


check(
    needed,
    lambda p, target: EXACT[p][TARGETS.index(target)],
    inputs=[{"p": p, "target": target} for p in (0.5, 0.1, 0.05) for target in TARGETS[:2]],
    mistakes={
        "that is the law, rounded up: the leading order only": lambda p, target: math.ceil(
            identity.group_size_law(p, 1 - target)
        ),
        "that solves the expansion, not the exact sum": lambda p, target: first_above(
            lambda G: identity.fidelity_expansion(p, G), target
        ),
        "that is Dr. GRPO's: E[sigma^2] / pq = 1 - 1/G": lambda p, target: first_above(
            lambda G: 1 - 1 / G + 1e-12, target
        ),
        "E[sigma] alone is at most 1/2 and never gets there: divide by sqrt(pq)": lambda p, target: (
            identity.expected_sigma(p, 2000)  # where counting up ends: an OverflowError
        ),
    },
)

# %% [hint]
# Count up from 2. Fidelity grows with G, so the first G that reaches the target is the answer.


# %% [solution]
def needed(p, target):
    G = 2
    while identity.expected_sigma(p, G) / np.sqrt(p * (1 - p)) < target:
        G += 1
    return G


# %% [wrong] the leading order only
def needed(p, target):
    return math.ceil(1 / (8 * (1 - target) * p * (1 - p)))


# %% [wrong] that is Dr. GRPO's
def needed(p, target):
    return math.ceil(1 / (1 - target) - 1e-9)


# %% [wrong] divide by sqrt(pq)
def needed(p, target):
    G = 1000  # 2 takes long to get here
    while identity.expected_sigma(p, G) < target:
        G += 1
    return G


# %% [markdown]
# **3. Does ddof 1 mend it?** Let $s = \sigma\sqrt{G/(G-1)}$ be the standard deviation with ddof 1, as `torch.std` has
# it by default. (a) What is $\mathbb E[s]/\sqrt{pq}$, from φ and G? Its square $s^2$ is unbiased; is $s$? (b) The
# advantages are now $(R - \mu)/s$. What is the new fidelity, the length of $\mathbb E[g]$ relative to its limit for
# large G?


# %% [exercise]
def with_ddof1(phi, G):
    """(E[s] / sqrt(pq), fidelity of the update whose advantages are divided by s)."""
    return ...


# %% [check]
def over_all_groups(p, G):
    """Both numbers for a coin of log-odds theta, whose scores are R - p, over all 2^G groups."""
    rewards = np.array([[bits >> i & 1 for i in range(G)] for bits in range(2**G)])
    chance = p ** rewards.sum(axis=1) * (1 - p) ** (G - rewards.sum(axis=1))
    s = rewards.std(axis=1, ddof=1)
    g = ((rewards - rewards.mean(axis=1, keepdims=True)) * (rewards - p)).mean(axis=1) / np.where(s > 0, s, 1)
    return np.array([chance @ s, chance @ g]) / np.sqrt(p * (1 - p))


cases = [(0.5, 2), (0.3, 4), (0.05, 8)]
truth = {G: over_all_groups(p, G) for p, G in cases}
check(
    with_ddof1,
    lambda phi, G: truth[G],
    inputs=[{"phi": float(identity.fidelity(*case)), "G": case[1]} for case in cases],
    mistakes={
        "s^2 is unbiased, its root is not: E[s] < sqrt(pq)": lambda phi, G: (1, 1),
        "(b): the advantages are divided by a larger number, so the update shrinks": lambda phi, G: (
            phi * np.sqrt(G / (G - 1)),
            phi * np.sqrt(G / (G - 1)),
        ),
        "the factor belongs to the variance: sigma has its root": lambda phi, G: (
            phi * G / (G - 1),
            phi * (G - 1) / G,
        ),
    },
)

# %% [hint]
# $\sqrt{G/(G-1)}$ does not depend on $k$, so it comes out of every expectation: once as a factor, once as a divisor.


# %% [solution]
def with_ddof1(phi, G):
    bessel = np.sqrt(G / (G - 1))
    return phi * bessel, phi / bessel  # .93 -> .99 and .87 at p = .5, G = 8: the estimate mends, the update does not


# %% [wrong] its root is not
def with_ddof1(phi, G):
    return 1, 1


# %% [wrong] so the update shrinks
def with_ddof1(phi, G):
    return phi * np.sqrt(G / (G - 1)), phi * np.sqrt(G / (G - 1))


# %% [wrong] the factor belongs to the variance
def with_ddof1(phi, G):
    return phi * G / (G - 1), phi * (G - 1) / G


# %% [markdown]
# **4. Find the bug.** A run writes down the rewards of every group it drew of one prompt, and the function below
# estimates the prompt's fidelity from them. On a hard prompt it says 1.6, more than the limit. Repair it.


# %% [exercise]
def logged_fidelity(rewards, p):
    """rewards (groups, G) of one prompt with success probability p: an estimate of E[sigma] / sqrt(pq)."""
    sigma = rewards.std(axis=1)
    sigma = sigma[sigma > 0]  # silent groups have no gradient anyway
    return sigma.mean() / np.sqrt(p * (1 - p))


# %% [check]
logs = [(np.random.default_rng(seed).random((4000, G)) < p).astype(float) for seed, p, G in ((1, 0.05, 8), (2, 0.3, 4))]


def by_counting(rewards, p):
    G = rewards.shape[1]
    return sum(math.sqrt(k * (G - k)) / G for k in rewards.sum(axis=1)) / len(rewards) / math.sqrt(p * (1 - p))


for log, p in zip(logs, (0.05, 0.3)):
    assert abs(by_counting(log, p) - identity.fidelity(p, log.shape[1])) < 0.05
check(
    logged_fidelity,
    by_counting,
    inputs=[{"rewards": logs[0], "p": 0.05}, {"rewards": logs[1], "p": 0.3}],
    mistakes={
        "that is the root of the mean variance: E[sigma] is smaller (Jensen)": lambda rewards, p: np.sqrt(
            rewards.var(axis=1).mean() / (p * (1 - p))
        ),
        "ddof: you divided by G - 1 inside the standard deviation": lambda rewards, p: (
            rewards.std(axis=1, ddof=1).mean() / np.sqrt(p * (1 - p))
        ),
        "that pools all groups: their means differ, so it is always near 1": lambda rewards, p: (
            rewards.std() / np.sqrt(p * (1 - p))
        ),
    },
    bug=lambda rewards, p: (
        rewards.std(axis=1)[rewards.any(axis=1) & ~rewards.all(axis=1)].mean() / math.sqrt(p * (1 - p))
    ),
)

# %% [hint]
# The expectation in the theorem is over all groups that are drawn, and a silent one adds 0 to it.


# %% [solution]
def logged_fidelity(rewards, p):
    return rewards.std(axis=1).mean() / np.sqrt(p * (1 - p))


# %% [wrong] the root of the mean variance
def logged_fidelity(rewards, p):
    return np.sqrt((rewards.std(axis=1) ** 2).mean() / (p * (1 - p)))


# %% [wrong] ddof
def logged_fidelity(rewards, p):
    return rewards.std(axis=1, ddof=1).mean() / np.sqrt(p * (1 - p))


# %% [wrong] that pools all groups
def logged_fidelity(rewards, p):
    return rewards.std() / np.sqrt(p * (1 - p))


# %% [markdown]
# The buggy number is the mean over the groups that DAPO keeps. Times the share of groups kept it is the fidelity again,
# so DAPO's expected update per *drawn* group is GRPO's.
#
# ## What to take along
#
# - For any policy, GRPO's expected update for a prompt is $\frac{\mathbb E[\sigma]}{pq}\nabla p$, on the first step,
#   without clip and KL, with scores summed over tokens. With $1/|y|$ the direction changes.
# - Fidelity, $\mathbb E[\sigma]/\sqrt{pq}$, is how long the expected step is, not how good.
#   $G^\star = 1/(8\varepsilon pq)$ is its leading order and too small in all twelve rows of the paper's table; the
#   exact G, beside it, costs a line of code.
# - At a fixed budget what counts is signal-to-noise. If right and wrong answers are equally noisy, G = 8 has at least
#   85 % of what large groups have, at any difficulty; if the more common kind is much noisier, as on one prompt here,
#   65 %.
#
# How often is a group silent, and is there something to do about it? Next: [lesson 8](08_silent_groups.ipynb).
#
# Sources: *GRPO, Dr. GRPO, and DAPO Are Three Operations on One Number*,
# [arXiv:2607.00152](https://arxiv.org/abs/2607.00152), Prop. `expectation`, Cor. `attenuation` and `designrule`, Table
# `groupsize`; weights of any rule: Davis and Recht, [2510.13651](https://arxiv.org/abs/2510.13651); groups of two:
# [2510.00977](https://arxiv.org/abs/2510.00977). The next order and the efficiency are ours.
