# %% [markdown]
# # 6 · The identity: σ times a contrast
#
# A language model answers one question G times. A verifier marks each answer right or wrong. GRPO turns these marks
# into one update of the model:
#
# $$g \;=\; \sigma\,\big(\bar s_+ - \bar s_-\big)$$
#
# The **disagreement** σ of the group, times the **contrast** between what the right answers have in common and what the
# wrong ones have in common. Dr. GRPO's update is the same with σ², and DAPO throws away the groups in which σ is 0. One
# dial, three settings. The proof holds for any model; we check it on a real one, through the scripts' own loss with its
# KL term at 0.
#
# Every symbol, before we use it:
#
# | symbol | meaning |
# |---|---|
# | $x$ | a prompt, here `2+10+2?` |
# | $y_1, \dots, y_G$ | a **group**: G answers to it, sampled from the model (here G = 8) |
# | $R_i$ | the **reward** of answer $i$: 1 if it is right, 0 if it is wrong |
# | $k$ | how many of the G answers are right |
# | $\sigma$ | the standard deviation of the rewards, $\sqrt{k(G-k)}/G$ |
# | $A_i$ | the **advantage** of answer $i$: how strongly it is pushed, up or down |
# | $s_i$ | the **score** of answer $i$: $\nabla_\theta \log \pi_\theta(y_i \mid x)$, the direction in the space of all parameters θ in which answer $i$ becomes more probable |
# | $\bar s_+,\ \bar s_-$ | the mean score of the right answers, and of the wrong ones |
# | $g$ | the update direction: $\frac1G \sum_i A_i\, s_i$ |
#
# (Lesson 1 is about scores, lesson 3 about the group's mean as a baseline; neither is needed here.)

# %%
import numpy as np
import torch
from matplotlib.figure import Figure
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from algorithms import dapo, dr_grpo, grpo
from lessons import identity
from lessons.experiments import update_length
from lessons.experiments.update_length import EVERY_TOKEN, parts, squared_lengths, with_k_right
from lessons.float64 import to_float64
from lessons.kit import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    check,
    knob,
    label_line,
    new_figure,
    show,
    show_diff,
    show_source,
)
from toy_env import arithmetic
from toy_env.arithmetic import Problem, held_out_problems, reward
from toy_env.model import load_policy
from toy_env.rollout import completion_logps, sample

torch.manual_seed(0)
policy, tokenizer = load_policy("base")
policy = to_float64(policy)  # double precision, so that "equal" can mean twelve digits
print(f"{policy.num_parameters():,} parameters")

# %% [markdown]
# ## Eight answers
#
# The model is the repository's base model, before any reinforcement learning. It mostly blurts a number out and
# sometimes works the problem out.

# %%
G = 8
problem = Problem("2+10+2", answer=14, level=2)
generator = torch.Generator().manual_seed(6)
group = sample(
    policy, tokenizer, [problem.prompt], group_size=G, max_new_tokens=56, temperature=1.0, generator=generator
)
R = torch.tensor([reward(problem, text) for text in group.texts], dtype=torch.float64)
k = int(R.sum())
for text, r in zip(group.texts, R):
    print(f"{problem.prompt} {text:<24} R = {r:.0f}")
print(f"\nk = {k} of G = {G} are right; sigma = sqrt({k} * {G - k}) / {G} = {identity.sigma(k, G):.4f}")

# %% [markdown]
# ## Eight scores
#
# The log-probability of an answer is the sum over its tokens, the final end-of-sequence token included. Its gradient is
# the score: eight vectors, with one entry for each parameter.


# %%
def scores(rollout, per_token_mean=False):
    """(B, parameters): the gradient of each answer's log-probability, or of its mean over the answer's tokens."""
    rows = []
    for i in range(len(rollout)):
        answer = rollout[torch.tensor([i])]
        total = completion_logps(policy, answer, temperature=1.0).sum()
        parts = torch.autograd.grad(total / answer.mask.sum() if per_token_mean else total, list(policy.parameters()))
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows)


s = scores(group)
print(f"scores: {s.shape[0]} vectors of {s.shape[1]:,} numbers; their lengths:", s.norm(dim=1).numpy().round(0))

# %% [markdown]
# ## The theorem, in four steps
#
# GRPO's advantage is $A_i = (R_i - k/G)/\sigma$. Here it is, as the script has it:

# %%
show_source(grpo.compute_advantages)

# %% [markdown]
# **Step 1.** Rewards are 0 or 1, so the advantage takes only two values. With $\sigma = \sqrt{k(G-k)}/G$:
#
# $$A_+ = \frac{1 - k/G}{\sigma} = \sqrt{\frac{G-k}{k}}, \qquad A_- = \frac{0 - k/G}{\sigma} = -\sqrt{\frac{k}{G-k}}$$
#
# **Step 2.** Split the sum in $g$ into right and wrong answers. The sum of the scores of the right ones is $k$ times
# their mean:
#
# $$g = \frac1G \sum_i A_i s_i = \frac{k}{G} A_+\, \bar s_+ + \frac{G-k}{G} A_-\, \bar s_-$$
#
# **Step 3.** Put the two values in. Both coefficients are the same number:
#
# $$\frac{k}{G}\sqrt{\frac{G-k}{k}} = \frac{\sqrt{k(G-k)}}{G} = \sigma, \qquad
# -\frac{G-k}{G}\sqrt{\frac{k}{G-k}} = -\sigma$$
#
# **Step 4.** So $g = \sigma\,(\bar s_+ - \bar s_-)$. Dr. GRPO does not divide by σ, so everything is multiplied by σ
# once more: $g = \sigma^2\,(\bar s_+ - \bar s_-)$. If all answers are right or all are wrong, every $R_i$ equals the
# mean, and $g = 0$. ∎
#
# Nothing was said about what a score is: the steps hold for any model and any task with two-valued rewards. Now the
# check, with the scripts' advantages on one side and no advantages on the other:


# %%
def relative_error(a, b):
    return ((a - b).norm() / b.norm()).item()


contrast = s[R == 1].mean(dim=0) - s[R == 0].mean(dim=0)  # no advantage anywhere in this line
sigma = float(identity.sigma(k, G))
for script, coefficient in ((grpo, sigma), (dr_grpo, sigma**2)):
    A = script.compute_advantages(rewards=R.view(1, G)).flatten()
    error = relative_error((A.unsqueeze(1) * s).mean(dim=0), coefficient * contrast)
    assert error < 1e-12
    print(f"{script.__name__:20} coefficient {coefficient:.4f}   relative error < 1e-12: {error < 1e-12}")

# %% [markdown]
# ## Through the scripts' own loss
#
# Training follows the gradient of `policy_loss`, which adds two things. **A KL term**, in GRPO and in our Dr. GRPO,
# pulls the policy towards a reference. Here the reference is the policy itself, as at the start of a run: the term and
# its gradient are 0. "What breaks it" turns it on. **An average over tokens**: Dr. GRPO divides every answer by the
# same constant $C$ (`max_new_tokens`), so its gradient is $\frac{\sigma^2}{C}(\bar s_+ - \bar s_-)$. GRPO divides each
# answer by its own length $|y_i|$; the proof allows that, but its vectors are now $s_i/|y_i|$. DAPO divides by all
# tokens of the batch.
#
# The identity asks only that rewards take two values. So we may *declare* the first $k$ answers right, for every $k$:

# %%
mean_scores = scores(group, per_token_mean=True)  # s_i / |y_i|
tokens = int(group.mask.sum())
C = dr_grpo.Config().max_new_tokens


def loss_gradient(script, rewards, old_logps=None, ref_logps=None):
    """Minus the gradient of the script's policy_loss on our group, flattened: the direction it moves in.

    The log-probabilities of the old policy and of the reference default to the policy's own: ratios of 1, a KL of 0."""
    logps = completion_logps(policy, group, temperature=1.0)
    batch = {"logps": logps, "old_logps": logps.detach() if old_logps is None else old_logps, "mask": group.mask}
    if script is not dapo:
        batch["ref_logps"] = logps.detach() if ref_logps is None else ref_logps
    A = script.compute_advantages(rewards=rewards.view(1, G)).view(G, 1)
    loss = script.policy_loss(**batch, advantages=A, config=script.Config())
    return -torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(policy.parameters()))])


print(" k   sigma    GRPO   Dr. GRPO   DAPO    (relative error < 1e-12)")
for declared in range(G + 1):
    R_k = (torch.arange(G) < declared).double()
    spread = float(identity.sigma(declared, G))
    found = {script: loss_gradient(script, R_k) for script in (grpo, dr_grpo, dapo)}
    if declared in (0, G):
        results = [bool((gradient == 0).all()) for gradient in found.values()]
    else:
        by_score, by_mean_score = (v[R_k == 1].mean(dim=0) - v[R_k == 0].mean(dim=0) for v in (s, mean_scores))
        expected = {
            grpo: spread * by_mean_score,
            dr_grpo: spread**2 / C * by_score,
            dapo: spread * G / tokens * by_score,
        }
        results = [relative_error(found[script], expected[script]) < 1e-12 for script in found]
    assert all(results)
    print(
        f"{declared:2}  {spread:.4f}   {results[0]}    {results[1]}     {results[2]}" + "   exactly 0" * (spread == 0)
    )

# %% [markdown]
# **DAPO is the third setting of the dial.** Its coefficient is GRPO's σ, but it replaces each group with σ = 0 by a
# group of another prompt until the batch is full of groups with σ > 0. With two-valued rewards and no KL, what it
# discards are exactly the groups with a zero update: only sampling time is lost. (Its token mean changes the common
# factor; its soft overlong punishment, left out here, makes rewards take more than two values.)
#
# Its rewards are −1 and 1. Deviations and σ double together, so GRPO's and DAPO's advantages are unchanged. Dr. GRPO's
# are doubled:

# %%
signed = 2 * R - 1
same = torch.equal(grpo.compute_advantages(rewards=R.view(1, G)), grpo.compute_advantages(rewards=signed.view(1, G)))
doubled = torch.equal(
    2 * dr_grpo.compute_advantages(rewards=R.view(1, G)), dr_grpo.compute_advantages(rewards=signed.view(1, G))
)
print(f"rewards -1 and 1 instead of 0 and 1: GRPO unchanged: {same}; Dr. GRPO doubled: {doubled}")

# %% [markdown]
# ## Advantage and coefficient
#
# Move $k$. Left: a lone right answer among seven wrong ones has the advantage 2.65 under GRPO. Right: that does **not**
# make the coefficient of the whole group's update large. Of all mixed groups, σ is smallest there.


# %%
def draw(k, G):
    k = min(k, G)
    figure, (left, right) = new_figure(9, 3.3, columns=2)
    rewards = np.arange(G) < k
    spread = identity.sigma(k, G)
    dr = rewards - k / G
    grpo_values = dr / spread if 0 < k < G else dr * 0
    at = np.arange(G)
    left.bar(at - 0.2, grpo_values, 0.4, color=BLUE, label="GRPO, DAPO")
    left.bar(at + 0.2, dr, 0.4, color=ORANGE, label="Dr. GRPO")
    left.axhline(0, color="black", linewidth=0.8)
    left.set(title=f"Advantages: {k} right, {G - k} wrong", xlabel="answer", xticks=at, ylim=(-4, 4))
    left.set_xticks(
        at, ["right" if r else "wrong" for r in rewards], fontsize=8 if G <= 8 else 5, rotation=0 if G <= 8 else 90
    )
    left.legend(loc="upper right")
    ks = np.arange(G + 1)
    for values, color, name in ((identity.sigma(ks, G), BLUE, "σ"), (identity.sigma(ks, G) ** 2, ORANGE, "σ²")):
        right.plot(ks, values, "o-", color=color, markersize=4)
        right.plot(k, values[k], "o", color=color, markersize=11)
        label_line(right, G // 2, values[G // 2], name, color, xytext=(0, 9), ha="center")
    right.set(title="Coefficient of the group's update", xlabel="k, right answers", ylim=(0, 0.6), xticks=ks)
    if k in (0, G):
        right.text(G / 2, 0.03, "silent group: DAPO draws another prompt", ha="center", color=GREEN)
    return figure


knob(draw, k=(0, 16, 1, 1), G=(2, 16, 1, 8))

# %% [markdown]
# *Dividing by σ flattens the coefficient's profile over $k$ (from a parabola to an arch); it does not turn it upside
# down.*
#
# ## Is σ the *length* of the update?
#
# The abstract of the paper behind the identity says that "the disagreement is exactly the size of the training update".
# For the scalar prompts of its analysis, one parameter θ with $p = 1/(1+e^{-\theta})$, this is exact: a right answer
# has the score $1-p$, a wrong one $-p$, so the contrast is 1 in every mixed group. In any dimension, what its theorem
# proves is the *coefficient*; the length is $\sigma\,\|\bar s_+ - \bar s_-\|$, and the mean of one score is noisier
# than the mean of four. With class means $m_\pm$ and variances $v_\pm$ of the scores,
#
# $$\mathbb E\,\|g\|^2 = \sigma^2\,\|m_+ - m_-\|^2 + \frac{(G-k)\,v_+ + k\,v_-}{G^2}$$
#
# If **signal dominates** ($v_\pm$ small), GRPO's length is proportional to σ. If **noise dominates** with
# $v_+ = v_- = v$, the second term is $v/G$ *whatever $k$ is*: GRPO's updates of all mixed groups are equally long, and
# *Dr. GRPO's* length is proportional to σ. If $v_- \gg v_+$, the noise grows with $k$. Which is our model? We take the
# first three held-out prompts of levels 1, 2 and 3 (rows), 640 answers each (1,536 at level 1, where few are wrong):
# one half gives the line, the other the groups.

# %%
coin = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)  # the scalar case, by autograd
s_right, s_wrong = (torch.autograd.grad(torch.nn.functional.logsigmoid(way * coin), coin)[0] for way in (1, -1))
assert abs(s_right - s_wrong - 1) < 1e-12
rng = np.random.default_rng(0)
figure, ks = Figure(figsize=(9, 6.6), layout="constrained"), np.arange(1, G)
spread, ratios, shares, rises, off_line = identity.sigma(ks, G), [], [], [], []
for axis, prompt in zip(figure.subplots(3, 3, sharex=True, sharey=True).flat, held_out_problems(3, (1, 2, 3))):
    answers = update_length.draw(policy, tokenizer, arithmetic, prompt, 1536 if prompt.level == 1 else 640, generator)
    inner, (for_line, for_groups) = answers.inner[EVERY_TOKEN], np.array_split(answers.drawn, 2)
    v_right, v_wrong, signal = parts(answers, for_line, inner)
    groups = [with_k_right(answers, for_groups, int(k), G, 500, rng) for k in ks]
    line = np.array([identity.update_norm_squared(int(k), G, signal, v_right, v_wrong) for k in ks]) ** 0.5
    dots = np.array([squared_lengths(answers, of_k, "grpo", inner).mean() for of_k in groups]) ** 0.5
    ratios.append(v_wrong / v_right)
    shares.append(spread**2 * signal / line**2)
    rises.append(min(dots[6] / dots[3], line[6] / line[3]) > 1.05)
    off_line.append(np.abs(dots / line - 1))
    unit = line[G // 2 - 1]
    axis.plot(ks, spread / 0.5, "--", color=GREY, label="σ")
    axis.plot(ks, line / unit, color=BLUE, label="GRPO, the formula")
    axis.plot(ks, dots / unit, "o", color=BLUE, label="GRPO, measured")
    axis.plot(ks, 2 * dots * spread / unit, "s-", color=ORANGE, markersize=4, linewidth=1, label="Dr. GRPO, measured")
    p_hat, ratio = answers.right[answers.drawn].mean(), f"{ratios[-1]:.{int(ratios[-1] < 10)}f}"
    axis.set_title(f"{prompt.prompt}  {p_hat:.0%} right, v₋/v₊ = {ratio}", fontsize=9)
    axis.set(ylim=(0, 1.5), xticks=ks, xlabel="k, right answers of 8" if prompt.level == 3 else "")
figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=4)
figure.suptitle("Length of the update, relative to the formula's at k = 4", x=0.01, ha="left", fontsize=11)
show(figure)
shares, off_line = np.array(shares), np.array(off_line)
assert np.median(off_line) < 0.1 and off_line.max() < 0.4  # the formula, on answers that it has not seen
assert min(ratios) < 4 and max(ratios) > 20 and 2 <= sum(rises) <= 7

# %% [text]
# *On these nine prompts of our base model $v_-/v_+$ runs from {=min(ratios):.1f} to {=max(ratios):.0f}, and the signal
# is {=shares[:, 3].min():.0%} to {=shares[:, 3].max():.0%} of the squared length at k = 4. On {=sum(rises)} of the nine
# an update with seven right answers is longer than one with four, by more than 5% in dots and line.* (These come from
# different answers: they differ by {=np.median(off_line):.0%} in the median, {=off_line.max():.0%} at most.) So
# "**multiplied by σ**" is a theorem; "**as long as σ**" depends on the model and the prompt.
# [Lesson 13](13_update_length.ipynb) measures other G, and later steps.
#
# ## What breaks it, and what does not

# %%
start = parameters_to_vector(policy.parameters()).detach()
step = loss_gradient(grpo, R)
before = completion_logps(policy, group, temperature=1.0).detach()
vector_to_parameters(start + 0.01 * step / step.norm(), policy.parameters())  # the policy moves a little
now, log_u = scores(group, per_token_mean=True), before - completion_logps(policy, group, temperature=1.0).detach()
expected = sigma * (now[R == 1].mean(dim=0) - now[R == 0].mean(dim=0))
with_kl, silent = (loss_gradient(grpo, rewards, ref_logps=before) for rewards in (R, torch.zeros(G).double()))
errors = [relative_error(found, expected) for found in (with_kl, with_kl - silent, loss_gradient(grpo, R, before))]
vector_to_parameters(start, policy.parameters())
k3 = (log_u.exp() - 1 - log_u)[group.mask].mean()
print(f"1. KL, the reference {k3:.3f} nats a token away: relative error {errors[0]:.3f};")
print(f"   length of a silent group's gradient: {silent.norm():.2f}, of our group's: {with_kl.norm():.2f};")
print(f"   our group's minus the silent one's: relative error < 1e-12: {errors[1] < 1e-12}")
print(f"2. ratios and clip, after the same small step: relative error {errors[2]:.2f}")
assert 1e-3 < errors[0] < 0.2 and errors[1] < 1e-12 and errors[2] > 0.01 and silent.norm() > 0.01

mean_contrast = mean_scores[R == 1].mean(dim=0) - mean_scores[R == 0].mean(dim=0)
errors = [relative_error(loss_gradient(grpo, R), sigma * vector) for vector in (mean_contrast, contrast)]
print(f"3. 1/|y|: relative error < 1e-12 with s/|y|: {errors[0] < 1e-12}, with s: {errors[1] < 1e-12}")
A_ddof1 = (R - R.mean()) / R.std()  # torch's default divides by G - 1
ratio = ((A_ddof1.unsqueeze(1) * s).mean(dim=0).norm() / (sigma * contrast).norm()).item()
print(f"4. sigma with ddof 1: {ratio:.4f} times the identity; sqrt((G-1)/G) = {np.sqrt((G - 1) / G):.4f}")

# %% [markdown]
# 1. **The KL term** adds its own gradient to every group, whatever σ is, and a silent group moves the model: from a
#    run's second update on, and more with distance. DAPO and the published Dr. GRPO have none; the identity's paper
#    sets KL and clip aside.
# 2. **A later update** from the same rollout is off-policy: tokens carry ratios, some are clipped, and advantages no
#    longer multiply whole scores.
# 3. **1/|y|** leaves the identity true, of other vectors. The expected contrast of $s_i$ points along the gradient of
#    the success probability (lesson 7); that of $s_i/|y_i|$ in general does not (lesson 5).
# 4. **ddof 1** (`torch.std`'s default, used by several libraries) multiplies all updates by one constant, at a given G.
# 5. **A third reward value** breaks the two-class form. Exercise 3 finds what survives.
#
# ## Exercises
#
# **1. Derive the weights.** Write the advantage of a right answer and of a wrong one under GRPO, from $k$ and $G$
# alone.


# %% [exercise]
def two_advantages(k, G):
    """(A_right, A_wrong) of a group with k of G right, 0 < k < G."""
    return ...


# %% [check]
check(
    two_advantages,
    lambda k, G: [
        grpo.compute_advantages(rewards=(torch.arange(G) < k).double().view(1, G))[0, i].item() for i in (0, -1)
    ],
    inputs=[{"k": 1, "G": 8}, {"k": 3, "G": 4}, {"k": 8, "G": 16}],
    mistakes={
        "these are Dr. GRPO's: divide by sigma": lambda k, G: (1 - k / G, -k / G),
        "ddof: you divided by G - 1 inside the standard deviation": lambda k, G: [
            (r - k / G) / np.sqrt(k * (G - k) / G / (G - 1)) for r in (1, 0)
        ],
        "right and wrong are exchanged": lambda k, G: (-np.sqrt(k / (G - k)), np.sqrt((G - k) / k)),
    },
)

# %% [hint]
# The mean is k/G and σ = √(k(G−k))/G. Put R = 1 and then R = 0 into (R − k/G)/σ and cancel.


# %% [solution]
def two_advantages(k, G):
    return np.sqrt((G - k) / k), -np.sqrt(k / (G - k))


# %% [wrong] these are Dr. GRPO's
def two_advantages(k, G):
    return 1 - k / G, -k / G


# %% [wrong] ddof
def two_advantages(k, G):
    rewards = np.arange(G) < k
    advantages = (rewards - rewards.mean()) / rewards.std(ddof=1)
    return advantages[0], advantages[-1]


# %% [wrong] right and wrong are exchanged
def two_advantages(k, G):
    return -np.sqrt(k / (G - k)), np.sqrt((G - k) / k)


# %% [markdown]
# **2. The lone right answer.** At $k = 1$ GRPO gives the one right answer the advantage $\sqrt{G-1}$. How large is the
# coefficient of the *whole group's* update, as a share of the largest that a group of the same (even) size can have?


# %% [exercise]
def lone_share(G):
    """sigma at k = 1, divided by sigma at k = G / 2."""
    return ...


# %% [check]
check(
    lone_share,
    lambda G: identity.sigma(1, G) / identity.sigma(np.arange(G + 1), G).max(),
    inputs=[{"G": 2}, {"G": 8}, {"G": 64}],
    mistakes={
        "that is sigma at k = 1 itself; divide by the largest, 1/2": lambda G: np.sqrt(G - 1) / G,
        "that is the square: Dr. GRPO's share": lambda G: 4 * (G - 1) / G**2,
    },
)

# %% [hint]
# σ at k = 1 is √(G−1)/G. The largest σ is 1/2, at k = G/2.


# %% [solution]
def lone_share(G):
    return 2 * np.sqrt(G - 1) / G


# %% [wrong] divide by the largest
def lone_share(G):
    return np.sqrt(G - 1) / G


# %% [wrong] Dr. GRPO's share
def lone_share(G):
    return 4 * (G - 1) / G**2


# %% [markdown]
# **3. Three-valued rewards.** A length penalty turns some rewards into 0.5. Right and wrong are no longer two classes;
# the update is still $\frac1G\sum_i \frac{R_i - \bar R}{\sigma} s_i$. Write it as one covariance: without computing any
# advantage, from the rewards and the scores, with means over the group only. (`numpy`: `rewards` (G,), `scores` (G,
# n).)


# %% [exercise]
def update(rewards, scores):
    """mean(R s) - mean(R) mean(s), over the standard deviation of R: (n,)."""
    return ...


# %% [check]
some_scores = np.random.default_rng(1).normal(size=(5, 3))
some_rewards = [np.array([1, 0.5, 0, 0, 1]), np.array([0, 0, 1, 0, 0.25])]
check(
    update,
    lambda rewards, scores: (
        grpo.compute_advantages(rewards=torch.tensor(rewards).view(1, -1)).T.numpy() * scores
    ).mean(axis=0),
    inputs=[{"rewards": rewards, "scores": some_scores} for rewards in some_rewards],
    mistakes={
        "divide by the standard deviation, not by the variance": lambda rewards, scores: (
            ((rewards - rewards.mean())[:, None] * scores).mean(axis=0) / rewards.var()
        ),
        "without the division it is Dr. GRPO's update": lambda rewards, scores: (
            (rewards - rewards.mean())[:, None] * scores
        ).mean(axis=0),
    },
)

# %% [hint]
# The covariance of R and s over the group is the mean of the product minus the product of the means. The mean of the
# advantages is 0, so it does not matter whether the scores are centred.


# %% [solution]
def update(rewards, scores):
    covariance = (rewards[:, None] * scores).mean(axis=0) - rewards.mean() * scores.mean(axis=0)
    return covariance / rewards.std()


# %% [wrong] not by the variance
def update(rewards, scores):
    return ((rewards - rewards.mean())[:, None] * scores).mean(axis=0) / rewards.var()


# %% [wrong] Dr. GRPO's update
def update(rewards, scores):
    return ((rewards - rewards.mean())[:, None] * scores).mean(axis=0)


# %% [markdown]
# **4. Find the bug.** Sampling code often repeats prompts as `a b c a b c` (tiled) while the rewards are regrouped as
# if they were `a a b b c c` (interleaved). The code runs, the reward curve looks plausible, and every group mixes the
# prompts. The function below gets rewards in the *tiled* order, G rounds over P prompts, and should return GRPO's
# advantages in the same order. Repair it.


# %% [exercise]
def advantages_tiled(rewards, P, G):
    """rewards (G * P,), tiled: row i belongs to prompt i % P. Advantages, same order."""
    groups = rewards.view(P, G)  # <- runs, and is wrong
    A = grpo.compute_advantages(rewards=groups)
    return A.T.flatten()  # back in the tiled order


# %% [check]
tiled = torch.tensor([1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 1, 0]).double()


def by_hand(rewards, P, G):
    values = np.zeros(P * G)
    for prompt in range(P):
        mine = rewards.numpy()[prompt::P]
        values[prompt::P] = (mine - mine.mean()) / mine.std() if mine.std() else 0
    return values


check(
    advantages_tiled,
    by_hand,
    inputs=[{"rewards": tiled, "P": 3, "G": 4}, {"rewards": tiled, "P": 2, "G": 6}],
    bug=lambda rewards, P, G: grpo.compute_advantages(rewards=rewards.view(P, G)).T.flatten(),
    mistakes={
        "each row is now one round over all prompts; a group is a column": lambda rewards, P, G: (
            grpo.compute_advantages(rewards=rewards.view(G, P)).T.flatten()
        ),
        "the groups are right, but the advantages come back in another order": lambda rewards, P, G: (
            grpo.compute_advantages(rewards=rewards.view(G, P).T).flatten()
        ),
    },
)

# %% [hint]
# `rewards.view(G, P)` has one round over all prompts in each row, so a group is a column. Transpose.


# %% [solution]
def advantages_tiled(rewards, P, G):
    groups = rewards.view(G, P).T
    A = grpo.compute_advantages(rewards=groups)
    return A.T.flatten()


# %% [wrong] a group is a column
def advantages_tiled(rewards, P, G):
    return grpo.compute_advantages(rewards=rewards.view(G, P)).T.flatten()


# %% [wrong] in another order
def advantages_tiled(rewards, P, G):
    return grpo.compute_advantages(rewards=rewards.view(G, P).T).flatten()


# %% [markdown]
# ## What to remember
#
# - For right-or-wrong rewards, GRPO's update of one prompt is σ times a contrast, mean score of the right − mean score
#   of the wrong; Dr. GRPO's is σ² times the contrast; DAPO's is GRPO's, with the σ = 0 groups replaced.
# - It is algebra about one whole group, exact for any model, at ratio 1 and without KL.
# - "Multiplied by σ" is not "as long as σ": the contrast has a length of its own.
#
# The diff that this lesson is about:

# %%
show_diff(grpo.compute_advantages, dr_grpo.compute_advantages)

# %% [markdown]
# Source of the identity: *GRPO, Dr. GRPO, and DAPO Are Three Operations on One Number: The
# Group-Standard-Deviation Identity*, [arXiv:2607.00152](https://arxiv.org/abs/2607.00152), Theorem 1. GRPO:
# [2402.03300](https://arxiv.org/abs/2402.03300), Eq. 3; Dr. GRPO: [2503.20783](https://arxiv.org/abs/2503.20783), App.
# A; DAPO: [2503.14476](https://arxiv.org/abs/2503.14476), Eq. 8–9. The formula for the length is ours.
