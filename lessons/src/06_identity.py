# %% [markdown]
# # 6 · The identity: σ times a contrast
#
# A language model answers one question G times. A verifier marks each answer right or wrong. GRPO turns these marks into
# one update of the model. This lesson proves what that update is:
#
# $$g \;=\; \sigma\,\big(\bar s_+ - \bar s_-\big)$$
#
# The **disagreement** σ of the group, times the **contrast** between what the right answers have in common and what the
# wrong ones have in common. Dr. GRPO's update is the same with σ², and DAPO throws away the groups in which σ is 0. One
# dial, three settings. The claim holds for any model, and we check it on the real one, through the scripts' own loss.
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
# | $s_i$ | the **score** of answer $i$: $\nabla_\theta \log \pi_\theta(y_i \mid x)$, the direction in the space of all parameters θ in which answer $i$ becomes more probable. One number a parameter |
# | $\bar s_+,\ \bar s_-$ | the mean score of the right answers, and of the wrong ones |
# | $g$ | the update direction: $\frac1G \sum_i A_i\, s_i$ |
#
# (Lesson 1 is about scores, lesson 3 about the group's mean as a baseline; neither is needed here.)

# %%
import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from algorithms import dapo, dr_grpo, grpo
from lessons import identity
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
from toy_env.arithmetic import Problem, reward
from toy_env.policy import completion_logps, load_policy, to_float64
from toy_env.rollout import sample

torch.manual_seed(0)
policy, tokenizer = load_policy("base")
policy = to_float64(policy)  # double precision, so that "equal" can mean twelve digits
print(f"{policy.num_parameters():,} parameters")

# %% [markdown]
# ## Eight answers
#
# The model is the repository's base model, before any reinforcement learning. It mostly blurts a number out and sometimes
# works the problem out.

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
# The log-probability of an answer is the sum of the log-probabilities of its tokens, the final end-of-sequence token
# included. Its gradient is the score: eight vectors, as long as the model has parameters.


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
# **Step 2.** Split the sum in $g$ into right and wrong answers. The sum of the scores of the right ones is $k$ times their
# mean:
#
# $$g = \frac1G \sum_i A_i s_i = \frac{k}{G} A_+\, \bar s_+ + \frac{G-k}{G} A_-\, \bar s_-$$
#
# **Step 3.** Put the two values in. Both coefficients are the same number:
#
# $$\frac{k}{G}\sqrt{\frac{G-k}{k}} = \frac{\sqrt{k(G-k)}}{G} = \sigma, \qquad
# -\frac{G-k}{G}\sqrt{\frac{k}{G-k}} = -\sigma$$
#
# **Step 4.** So $g = \sigma\,(\bar s_+ - \bar s_-)$. Dr. GRPO does not divide by σ, so everything is multiplied by σ once
# more: $g = \sigma^2\,(\bar s_+ - \bar s_-)$. If all answers are right or all are wrong, every $R_i$ equals the mean, and
# $g = 0$. ∎
#
# Nothing was said about what a score is. The steps hold for any eight vectors: any model, any size, any task, as long as
# the reward takes two values. Now the check, with the scripts' advantages on one side and no advantages on the other:


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
# What training follows is the gradient of `policy_loss`, so we take the derivative of that. It adds one thing: how token
# terms are averaged. Dr. GRPO divides every response by the same constant $C$ (`max_new_tokens`), so its gradient is
# $\frac{\sigma^2}{C}(\bar s_+ - \bar s_-)$. GRPO divides each response by its own length $|y_i|$. The proof allows that
# (any vectors will do), but the vectors are now $s_i/|y_i|$, the gradients of the *mean* log-probability a token. DAPO
# divides by all tokens of the batch.
#
# The identity asks nothing of the rewards but that they take two values. So we may *declare* the first $k$ answers right
# and go through every $k$:

# %%
mean_scores = scores(group, per_token_mean=True)  # s_i / |y_i|
tokens = int(group.mask.sum())
C = dr_grpo.Config().max_new_tokens


def loss_gradient(script, rewards, **settings):
    """Minus the gradient of the script's policy_loss on our group, flattened: the direction it moves in."""
    logps = completion_logps(policy, group, temperature=1.0)
    batch = {"logps": logps, "old_logps": logps.detach(), "mask": group.mask}
    if script is not dapo:
        batch["ref_logps"] = logps.detach()
    A = script.compute_advantages(rewards=rewards.view(1, G)).view(G, 1)
    loss = script.policy_loss(**batch, advantages=A, config=script.Config(**settings))
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
# **DAPO is the third setting of the dial.** Its coefficient is GRPO's σ. What it adds is upstream: a group with σ = 0 moves
# nothing, so DAPO replaces it by a group of another prompt until the batch is full of groups with σ > 0. It discards exactly
# the groups whose update is exactly zero: no direction is lost, only sampling time. (Its token-level mean changes which
# common factor stands in front; soft overlong punishment, left out here, makes rewards take more than two values.)
#
# And its rewards are −1 and 1. The mean and σ stretch alike, so GRPO's and DAPO's advantages do not notice. Dr. GRPO's are
# doubled:

# %%
signed = 2 * R - 1
same = torch.equal(grpo.compute_advantages(rewards=R.view(1, G)), grpo.compute_advantages(rewards=signed.view(1, G)))
doubled = torch.equal(
    2 * dr_grpo.compute_advantages(rewards=R.view(1, G)), dr_grpo.compute_advantages(rewards=signed.view(1, G))
)
print(f"rewards -1 and 1 instead of 0 and 1: GRPO unchanged: {same}; Dr. GRPO doubled: {doubled}")

# %% [markdown]
# ## Turn the dial
#
# Move $k$. Left, the advantages: one lone right answer among wrong ones is pushed hard, 2.65 under GRPO. Right, what the whole
# group's update is multiplied with. The lone answer's large advantage does **not** make its group's update large: σ is
# smallest there.


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
    right.set(title="What the group's update is multiplied with", xlabel="k, right answers", ylim=(0, 0.6), xticks=ks)
    if k in (0, G):
        right.text(G / 2, 0.03, "silent group: DAPO draws another prompt", ha="center", color=GREEN)
    return figure


knob(draw, k=(0, 16, 1, 1), G=(2, 16, 1, 8))

# %% [markdown]
# *Dividing by σ flattens the profile over $k$ (from a parabola to an arch); it does not turn it upside down.*
#
# ## Is σ the *length* of the update?
#
# It is often said that the disagreement "is the size of the update". Careful: the length is $\sigma\,\|\bar s_+ - \bar s_-\|$,
# and the second factor changes with $k$ too. If the model were one number (a coin with a bias), the contrast would be the same
# in every mixed group and the saying exact. In a model of many parameters the contrast of a few answers can be mostly noise: the mean of
# one score is noisier than the mean of four. With class means $m_\pm$ and variances $v_\pm$ of the scores,
#
# $$\mathbb E\,\|g\|^2 = \sigma^2\,\|m_+ - m_-\|^2 + \frac{(G-k)\,v_+ + k\,v_-}{G^2}$$
#
# Two extremes. **Signal dominates** ($v_\pm$ small): GRPO's length is proportional to σ. **Noise dominates** ($v_+ = v_- = v$
# large): the second term is $v/G$ *whatever $k$ is*, so GRPO's updates of all mixed groups are equally long, and it is
# *Dr. GRPO's* length that is proportional to σ. Which is our model? We take 128 answers to the one prompt and form many groups
# with each $k$ from them.

# %%
many = sample(
    policy, tokenizer, [problem.prompt], group_size=128, max_new_tokens=56, temperature=1.0, generator=generator
)
R_many = np.array([reward(problem, text) for text in many.texts])
S = scores(many)
inner = (S @ S.T).numpy()  # (128, 128): all we need, because the length of a weighted sum is made of inner products
pools = np.flatnonzero(R_many == 1), np.flatnonzero(R_many == 0)
rng = np.random.default_rng(0)


def measured_length(k, groups=2000):
    """Root mean square length of GRPO's update over random groups with k right answers."""
    A = np.r_[np.full(k, np.sqrt((G - k) / k)), np.full(G - k, -np.sqrt(k / (G - k)))]
    rows = np.array([np.r_[rng.choice(pools[0], k), rng.choice(pools[1], G - k)] for _ in range(groups)])
    return np.sqrt(np.mean([A @ inner[np.ix_(row, row)] @ A for row in rows])) / G


means = [S[pool].mean(dim=0) for pool in pools]
v_right, v_wrong = (S[pool].var(dim=0, correction=0).sum().item() for pool in pools)
difference_squared = (means[0] - means[1]).norm().item() ** 2
ks = np.arange(1, G)
measured = np.array([measured_length(int(k)) for k in ks])
predicted = np.array([identity.update_norm_squared(int(k), G, difference_squared, v_right, v_wrong) for k in ks]) ** 0.5
assert np.allclose(measured, predicted, rtol=0.05)

figure, axis = new_figure(7.5, 3.6)
middle = measured[G // 2 - 1]
spread = identity.sigma(ks, G)
axis.plot(ks, measured / middle, "o", color=BLUE, markersize=8)
axis.plot(ks, predicted / middle, "-", color=BLUE)
axis.plot(ks, spread / 0.5, "--", color=GREY)
axis.plot([1, 7], [1, 1], color=GREY, linestyle=":")
axis.plot(ks, measured * spread / (middle * 0.5), "s-", color=ORANGE)
label_line(axis, 7, 1.0, "flat, if noise dominates", GREY, xytext=(10, 4))
label_line(axis, 7, measured[-1] / middle, "GRPO: dots measured, line the formula", BLUE, xytext=(10, 0))
label_line(axis, 7, spread[-1] / 0.5, "σ, if signal dominates", GREY, xytext=(10, 5))
label_line(axis, 7, measured[-1] * spread[-1] / (middle * 0.5), "Dr. GRPO, measured", ORANGE, xytext=(10, -5))
axis.set(
    title="Length of the update, relative to k = 4", xlabel="k, right answers of 8", ylim=(0, 1.2), xlim=(0.8, 11.5)
)
axis.set_xticks(ks)
show(figure)
share = spread**2 * difference_squared / predicted**2
print("share of the squared length that is signal:", ", ".join(f"{share[k - 1]:.0%} at k = {k}" for k in (1, 4, 7)))

# %% [markdown]
# *On this prompt our small model lies between the extremes, nearer to the signal. What another prompt or a larger model
# would show, it does not say; lesson 13 measures ours while it trains.* So: "**multiplied with σ**" is a theorem, "**as long as σ**" depends on the model.
#
# ## What breaks it, and what does not

# %%
A_ddof1 = (R - R.mean()) / R.std()  # torch's default divides by G - 1
ratio = ((A_ddof1.unsqueeze(1) * s).mean(dim=0).norm() / (sigma * contrast).norm()).item()
print(f"1. sigma with ddof 1: {ratio:.4f} times the identity, for every k; sqrt((G-1)/G) = {np.sqrt((G - 1) / G):.4f}")

old_logps = completion_logps(policy, group, temperature=1.0).detach()
start = parameters_to_vector(policy.parameters()).detach()
step = loss_gradient(grpo, R)
vector_to_parameters(start + 0.2 * step / step.norm(), policy.parameters())  # from here on, the group is off-policy
logps = completion_logps(policy, group, temperature=1.0)
batch = {"logps": logps, "old_logps": old_logps, "ref_logps": logps.detach(), "mask": group.mask}
A = grpo.compute_advantages(rewards=R.view(1, G)).view(G, 1)
loss = grpo.policy_loss(**batch, advantages=A, config=grpo.Config())
off_policy = -torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(policy.parameters()))])
now = scores(group, per_token_mean=True)
expected = sigma * (now[R == 1].mean(dim=0) - now[R == 0].mean(dim=0))
print(f"2. one step later, ratios and clip: holds to 1e-12: {relative_error(off_policy, expected) < 1e-12}")
vector_to_parameters(start, policy.parameters())

mean_contrast = mean_scores[R == 1].mean(dim=0) - mean_scores[R == 0].mean(dim=0)
errors = [relative_error(loss_gradient(grpo, R), sigma * vector) for vector in (mean_contrast, contrast)]
print(f"3. 1/|y|: holds with s/|y|: {errors[0] < 1e-12}, with s: {errors[1] < 1e-12}")

# %% [markdown]
# 1. **ddof 1** (`torch.std`'s default, used by several libraries) only multiplies by a constant. Harmless, but twelve digits
#    become one.
# 2. **A second minibatch** from the same rollout is off-policy: each token carries a ratio, some are clipped, and advantages no
#    longer multiply whole scores. The identity is a statement about the first step after sampling.
# 3. **1/|y|** leaves the identity true, of other vectors. What is lost is what the vectors *mean*: the expectation of the
#    contrast of $s_i$ points along the gradient of the success probability (lesson 7); that of $s_i/|y_i|$ does not
#    (lesson 5).
# 4. **A third reward value** breaks the two-class form. Exercise 3 finds what survives.
#
# ## Exercises
#
# **1. Derive the weights.** Write the advantage of a right answer and of a wrong one under GRPO, from $k$ and $G$ alone.


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
# **2. How much does the lone right answer get?** In a group of G with $k = 1$, GRPO pushes the one right answer with
# $\sqrt{G-1}$: the rarer, the harder. How long is the coefficient of the *whole group's* update at $k = 1$, as a share of the
# largest coefficient that a group of the same (even) size can have?


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
# **3. Three-valued rewards.** A length penalty turns some rewards into 0.5. Right and wrong are no longer two classes; the update
# is still $\frac1G\sum_i \frac{R_i - \bar R}{\sigma} s_i$. Write it as one covariance: without computing any advantage, from the
# rewards and the scores, with means over the group only. (`numpy`: `rewards` (G,), `scores` (G, n).)


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
# **4. Find the bug.** Sampling code often repeats prompts as `a b c a b c` (tiled) while the rewards are regrouped as if they were
# `a a b b c c` (interleaved). Several public trainers had this at some time: the code runs, the reward curve looks plausible, and
# every group mixes the prompts. The function below gets rewards in the *tiled* order, G rounds over P prompts, and should return
# GRPO's advantages in the same order. Repair it.


# %% [exercise]
def advantages_tiled(rewards, P, G):
    """rewards (G * P,), tiled: row i belongs to prompt i % P. Advantages, same order."""
    groups = rewards.view(P, G)  # <- runs, and is wrong
    A = grpo.compute_advantages(rewards=groups)
    return ...  # A.flatten(), once the groups are right


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
    mistakes={
        "the groups still mix the prompts: row i belongs to prompt i % P": lambda rewards, P, G: (
            grpo.compute_advantages(rewards=rewards.view(P, G)).flatten()
        ),
        "the groups are right, but the advantages come back in another order": lambda rewards, P, G: (
            grpo.compute_advantages(rewards=rewards.view(G, P).T).flatten()
        ),
    },
)

# %% [hint]
# `rewards.view(G, P)` has one round over all prompts in each row, so a group is a column. Transpose before, and transpose
# back after.


# %% [solution]
def advantages_tiled(rewards, P, G):
    groups = rewards.view(G, P).T
    A = grpo.compute_advantages(rewards=groups)
    return A.T.flatten()


# %% [wrong] the groups still mix the prompts
def advantages_tiled(rewards, P, G):
    return grpo.compute_advantages(rewards=rewards.view(P, G)).flatten()


# %% [wrong] in another order
def advantages_tiled(rewards, P, G):
    return grpo.compute_advantages(rewards=rewards.view(G, P).T).flatten()


# %% [markdown]
# ## What to remember
#
# - For right-or-wrong rewards, GRPO's update of one prompt is σ times (mean score of the right − mean score of the wrong); Dr. GRPO's
#   is σ² times that; DAPO's is GRPO's, with the σ = 0 groups replaced.
# - It is algebra about one group, exact for any model, on the first step after sampling.
# - "Multiplied with σ" is not "as long as σ": the contrast has a length of its own.
#
# The diff between the two scripts that this lesson is about:

# %%
show_diff(grpo.compute_advantages, dr_grpo.compute_advantages)

# %% [markdown]
# Source of the identity: *GRPO, Dr. GRPO, and DAPO Are Three Operations on One Number: The
# Group-Standard-Deviation Identity*, [arXiv:2607.00152](https://arxiv.org/abs/2607.00152), Theorem 1. GRPO:
# [2402.03300](https://arxiv.org/abs/2402.03300), Eq. 3; Dr. GRPO: [2503.20783](https://arxiv.org/abs/2503.20783), App. A; DAPO:
# [2503.14476](https://arxiv.org/abs/2503.14476), Eq. 8–9. The formula for the length, and the remark that "the size is σ" holds only where the
# contrast does not vary, are ours.
