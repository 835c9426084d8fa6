# %% [markdown]
# # 10 · DAPO
#
# A group whose answers are all right or all wrong teaches GRPO nothing ([lesson 8](08_silent_groups.ipynb)). DAPO
# throws it away and refills the batch with groups of *other* prompts. That looks as if it favoured some prompts. It
# does not, and this is the claim: **dropping silent groups and refilling with other prompts leaves GRPO's expected
# direction as it is, and multiplies it with one number**,
#
# $$\mathbb E[\text{DAPO's update}] = \frac{1}{\mathbb E_x[1 - S(p_x)]}\;\mathbb E[\text{GRPO's update}]$$
#
# Drawing *the same prompt* again until its group is mixed is a different algorithm, although it is one line away.
#
# | symbol | meaning |
# |---|---|
# | $x,\ p,\ q$ | a prompt; the probability that an answer to it is right; $q = 1-p$ |
# | $G,\ k$ | answers in a group; how many of them are right |
# | $\sigma$ | standard deviation of the group's rewards, $\sqrt{k(G-k)}/G$; **mixed** group: $\sigma > 0$; **silent**: $\sigma = 0$ |
# | $S(p)$ | probability of a silent group, $p^G + q^G$ |
# | $w_G(p)$ | GRPO's weight of a prompt: $\mathbb E[g] = w_G(p)\,\nabla p$, where $w_G = \mathbb E[\sigma]/(pq)$ ([lesson 7](07_group_size.ipynb)) |
# | $P$ | groups in a batch |
# | $\rho,\ \pi_{old}$ | a token's probability under the policy now, over that under $\pi_{old}$, which sampled it |

# %%
import inspect
import json
import math
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from algorithms import dapo, grpo
from lessons import identity
from lessons.experiments import compare_tables, controlled_run
from lessons.kit import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
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
from toy_env.cli import silence
from toy_env.model import load_policy
from toy_env.rollout import Rollout

torch.set_num_threads(1)
G = 8
R = torch.tensor([[1.0, 1, 0, 0, 0, 0, 0, 0]])
same_code = inspect.getsource(grpo.compute_advantages) == inspect.getsource(dapo.compute_advantages)
same_advantages = torch.allclose(dapo.compute_advantages(rewards=2 * R - 1), grpo.compute_advantages(rewards=R))
assert same_code and same_advantages
print(f"grpo.compute_advantages and dapo.compute_advantages are the same code: {same_code}")
print(f"rewards -1 and 1 instead of 0 and 1 give the same advantages: {same_advantages}")
show_diff(grpo.policy_loss, dapo.policy_loss)
show_diff(grpo.train, dapo.train)
show_source(dapo.groups_to_keep)

# %% [markdown]
# ## The changes, from `grpo.py` to `dapo.py`
#
# 1. **Clip-higher**: the ratio counts up to 1.28, down to .8.
# 2. **Dynamic sampling**: the `while` in `train`, and `groups_to_keep`, our subject.
# 3. **Token-level mean**: one division by all tokens. The paper's Eq. 8 takes it over each group, its authors' code
#    over the minibatch. Not free of length bias either ([lesson 5](05_length.ipynb)).
# 4. **Overlong shaping**: a soft punishment near the length limit; or a filter, which takes cut answers out of the
#    loss.
# 5. **No KL**, so a silent group's gradient is *exactly* zero.
#
# And rewards are −1 and 1, which the advantage, still divided by σ, does not notice.
#
# ## The proof
#
# With $g$ the update of one group,
#
# $$\mathbb E[g] = \Pr(\text{mixed})\;\mathbb E[g \mid \text{mixed}] + \Pr(\text{silent})\cdot 0$$
#
# A refilled batch holds the first $P$ mixed groups in the order drawn, so each is a fair draw *given* that it is mixed.
# Its mean is $\mathbb E[g \mid \text{mixed}] = \mathbb E[g]/\mathbb E_x[1-S(p_x)]$. ∎ (It needs right-or-wrong rewards,
# no KL, averages over groups, the first step after sampling, and a batch that fills. A batch of the first groups to
# *finish* would favour short answers.)
#
# Prompt by prompt: one of difficulty $p$ is kept with probability $1-S(p)$, and a kept group is worth
# $\mathbb E[\sigma \mid \text{mixed}] = \mathbb E[\sigma]/(1-S(p))$. The product is GRPO's $\mathbb E[\sigma]$. A
# redraw of the same prompt keeps *every* prompt, so only the second factor remains:
#
# $$w_{\text{redraw}}(p) = \frac{w_G(p)}{1-S(p)} \;\to\; \frac{\sqrt{G-1}}{G\,p} \quad (p \to 0)$$
#
# GRPO's weight stops at $\sqrt{G-1}$. This one grows like $1/p$, the slope of $\log p$.
#
# ## The experiment
#
# Nine prompts, each a coin with a logit of its own. We run the three procedures draw by draw, with the script's
# advantages, and the redraw once more with at most four draws, as in the controlled run of the identity paper
# (arXiv:2607.00152), whose "DAPO" arm it is. Lines and ratios: exact sums over $k$.

# %%
difficulties = np.array([0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99])
n = len(difficulties)
groups = (torch.arange(G) < torch.arange(G + 1).view(-1, 1)).double()  # row k: k right answers
A = dapo.compute_advantages(rewards=2 * groups - 1)


def simulate(slots, same_prompt_draws, replace, rng):
    """Weight of each prompt, with its standard error: the mean update of its logit over the batch, over p q."""
    prompt = rng.integers(n, size=slots)
    k = rng.binomial(G, difficulties[prompt])
    draws = 1
    while (silent := (k == 0) | (k == G)).any() and (replace or draws < same_prompt_draws):
        if replace:  # DAPO: another prompt
            prompt[silent] = rng.integers(n, size=silent.sum())
        k[silent] = rng.binomial(G, difficulties[prompt[silent]])
        draws += 1
    p = difficulties[prompt]
    push = A.mul(groups).sum(dim=1).numpy()[k] - A.sum(dim=1).numpy()[k] * p  # sum of A (R - p): R - p is the score
    update = push / G / (p * (1 - p)) * n
    mine = prompt[:, None] == np.arange(n)
    return (update[:, None] * mine).mean(axis=0), (update[:, None] * mine).std(axis=0) / np.sqrt(slots)


S = identity.silent_rate(difficulties, G)
w = identity.weight("GRPO", difficulties, G)
arms = {  # name: (draws of the same prompt, other prompts, exact weights, colour, marker)
    "GRPO": (1, False, w, BLUE, "o"),
    "DAPO: other prompts": (1, True, w / (1 - S).mean(), GREEN, "x"),
    "same prompt, unlimited": (10**9, False, identity.weight_same_prompt_resampling(difficulties, G), RED, "s"),
    "same prompt, at most 4 draws": (4, False, w * (1 + S + S**2 + S**3), ORANGE, "^"),
}
rng, found = np.random.default_rng(10), {}
print("weight over GRPO's, at p =      " + " ".join(f"{p:6.2f}" for p in difficulties))
for name, (draws, replace, exact, _, _) in arms.items():
    found[name], error = simulate(200_000, draws, replace, rng)
    assert (np.abs(found[name] - exact) < 4.5 * error).all(), name
    print(f"{name:30}  " + " ".join(f"{ratio:6.2f}" for ratio in exact / w))
print("all simulated weights within 4.5 standard errors of these: True")
tiny = 1e-6
assert np.isclose(identity.weight_same_prompt_resampling(tiny, G) * tiny, math.sqrt(G - 1) / G, rtol=1e-3)

figure, axis = new_figure(8.2, 3.9)
grid = 1 / (1 + np.exp(-np.linspace(-4.8, 4.8, 121)))
curve, silent = identity.weight("GRPO", grid, G), identity.silent_rate(grid, G)
curves = {"GRPO": curve, "same prompt, unlimited": curve / (1 - silent)}
curves["same prompt, at most 4 draws"] = curve * (1 + silent + silent**2 + silent**3)
for name, values in curves.items():
    axis.plot(grid, values / values[60], color=arms[name][3], linewidth=1.5)
for name, (_, _, _, color, marker) in arms.items():
    size = 9 if marker == "x" else 6
    axis.plot(difficulties, found[name] / found[name][4], marker, color=color, markersize=size, markeredgewidth=1.8)
axis.set(xscale="logit", yscale="log", xlabel="p, probability of a right answer", ylim=(0.8, 40))
axis.set_xticks([0.01, 0.1, 0.5, 0.9, 0.99], [".01", ".1", ".5", ".9", ".99"])
axis.set_xticks([], minor=True)
axis.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
axis.set_title("Weight of a prompt, relative to one of p = ½ (markers simulated, lines exact)")
label_line(axis, 0.5, 20, "■ same prompt, unlimited", RED, xytext=(0, 0), ha="center")
label_line(axis, 0.5, 12.5, "▲ same prompt, at most 4 draws", ORANGE, xytext=(0, 0), ha="center")
label_line(axis, 0.5, 7.8, "✕ DAPO: other prompts", GREEN, xytext=(0, 0), ha="center")
label_line(axis, 0.5, 4.9, "● GRPO", BLUE, xytext=(0, 0), ha="center")
show(figure)

# %% [markdown]
# *DAPO's crosses lie in GRPO's circles; the redraws are other curves, steep at both ends.*
#
# So what the identity paper's run shows about "DAPO" on hard prompts belongs to the triangles, another algorithm (its
# section 5 discards prompts, as DAPO does; its run redraws them). Its **"3.5×" oversampling** does too. Here is that
# run ([lesson 9](09_objective.ipynb)), with solve rates spread evenly instead of Big-Math's:

# %%
spread_evenly = np.linspace(0.02, 0.98, 2000)
redraw = controlled_run.run("GRPO", spread_evenly, seed=0, G=G, silent="redraw", max_draws=4)
drawn = redraw.groups[-1] / controlled_run.STEPS  # a prompt and step
still_silent = 1 - redraw.mixed[-1] / controlled_run.STEPS
other_prompts = 1 / (1 - redraw.expected_silent)
assert abs(drawn - 3.5) < 0.05  # as published
print(f"same prompt, at most 4 draws: {drawn:.2f} draws a prompt, and {still_silent:.0%} still silent")
print(
    f"other prompts would cost {other_prompts[0]:.2f} groups for each kept one at first, "
    f"{other_prompts[-1]:.0f} at the end"
)
print(f"Big-Math, frozen, 44 % silent at G = 8 (published): {1 / (1 - 0.44):.2f}")

# %% [markdown]
# With four draws at most, no more than a factor of 4 can come out. Nor does the arm "never spend an update on a silent
# group": three quarters are silent still. What DAPO pays is $1/\mathbb E[1-S]$ groups for each kept one: little on a
# fresh data set, without bound on one that is solved.
#
# ## The script itself
#
# Three steps of `dapo.train` from the base model, keeping what `collect` draws and what each update gets. (Limit of 36
# tokens and 16 updates a batch, so that clip and punishment have something to do; no warm-up; GRPO's upper clip, for a
# question below.) Does it train on exactly the first $P$ mixed groups, with their shaped rewards?


# %%
def watch(**settings):
    """Run dapo.train. By step: all that was collected, and minibatch, log-probs and advantages of each update."""
    collect, update_metrics, steps = dapo.collect, dapo.update_metrics, []

    def keep_drawn(run, config):
        if not steps or steps[-1]["updates"]:
            steps.append({"drawn": [], "updates": []})
        steps[-1]["drawn"].append(collect(run, config))
        return steps[-1]["drawn"][-1]

    def keep_update(minibatch, logps, advantages, clip):
        steps[-1]["updates"].append((minibatch, logps.detach(), advantages))
        return update_metrics(minibatch, logps, advantages, clip)

    ears = patch.multiple(dapo, collect=keep_drawn, update_metrics=keep_update)
    with tempfile.TemporaryDirectory() as folder, ears, silence():
        dapo.train(dapo.Config(run_dir=f"{folder}/run", device="cpu", eval_problems=1, eval_every=0, **settings))
    return steps


def answers_in(rollout, advantages):
    """Prompt, text and advantage of each row, sorted."""
    prompts = tokenizer.batch_decode(rollout.prompt_ids, skip_special_tokens=True)
    return sorted(zip(prompts, rollout.texts, advantages.flatten().tolist()))


tokenizer = load_policy("base")[1]
settings = {"max_new_tokens": 36, "num_minibatches": 16, "warmup_steps": 0, "clip_eps_high": 0.2}
config = dapo.Config(**settings)
P = config.prompts_per_step
watched = watch(steps=3, **settings)
spread, shaped, trained_on = [], [], 0  # sigma (groups,) and shaped rewards (groups, G) of all that was drawn
for step in watched:
    rollouts, rewards = zip(*step["drawn"])
    drawn, right = Rollout.concatenate(rollouts), torch.cat(rewards)
    spread.append(right.std(dim=1, correction=0))
    assert torch.allclose(
        spread[-1].double(), torch.tensor(identity.sigma(right.double().sum(dim=1).numpy(), G)), atol=1e-6
    )
    shaped.append(2 * right - 1 + dapo.overlong_penalty(mask=drawn.mask, config=config).view(-1, G))
    mixed = (spread[-1] > 0).nonzero().flatten()
    first = mixed[:P]
    wanted = answers_in(
        drawn[torch.arange(len(drawn)).view(-1, G)[first].flatten()],
        dapo.compute_advantages(rewards=shaped[-1][first]),
    )
    minibatches, _, advantages = zip(*step["updates"])
    same = answers_in(Rollout.concatenate(minibatches), torch.cat(advantages)) == wanted
    assert same
    trained_on += len(first)
    print(
        f"{len(rollouts)} draws of {P} groups, {len(mixed)} mixed: trained on the first {len(first)} of these: {same}"
    )
spread, shaped = torch.cat(spread), torch.cat(shaped)
silent_share = (spread == 0).double().mean().item()
assert 0.1 < silent_share < 0.5
differ = ((spread == 0) & (shaped != shaped[:, :1]).any(dim=1)).sum().item()
print(
    f"silent: {silent_share:.0%} of all groups; "
    f"{differ} of these {int((spread == 0).sum())} have unequal shaped rewards"
)


def whole_batches(S, P=P, most=10):
    """Expected groups drawn for each one kept, in whole batches of P, when each group is silent with probability S."""
    seen = [1 - identity.binomial(1 - S, P * m)[P:].sum() for m in range(1, most)]  # fewer than P mixed after m draws
    return 1 + sum(seen)


for S_ in (0.3, 0.6):  # against simulation: silent groups before the P-th mixed one are negative binomial
    batches = np.ceil((rng.negative_binomial(P, 1 - S_, size=50_000) + P) / P)
    assert abs(np.minimum(batches, 10).mean() - whole_batches(S_)) < 0.01


results = json.loads((Path(compare_tables.__file__).parent / "results.json").read_text())
shared, ablation = (results[experiment]["arms"] for experiment in ("shared", "ablation"))
seeds = len(results["ablation"]["seeds"])
ours = {name: np.array(shared["DAPO"][name]["seeds"]) for name in ("silent", "completions")}
ours["cost"] = ours["completions"] / shared["DAPO"]["budget"]
print(
    f"ten whole runs: silent {ours['silent'].mean():.0%}, "
    f"{ours['cost'].mean():.2f} completions drawn for each trained on"
)
assert abs(ours["cost"].mean() - 3.455) < 0.01 and (ours["cost"] > 1 / (1 - ours["silent"])).all()

figure, axis = new_figure(8.2, 3.6)
axis.plot(x := np.linspace(0, 0.93, 94), 1 / (1 - x), color=GREEN)
axis.plot(x[:80], [whole_batches(s) for s in x[:80]], "--", color=GREY, linewidth=1.5)
axis.plot(x, (1 - x**4) / (1 - x), ":", color=ORANGE)
axis.plot(silent_share, len(spread) / trained_on, "D", color=BLUE)
axis.plot(ours["silent"], ours["cost"], "o", color=PURPLE, markersize=5)
axis.set(ylim=(1, 8), xlim=(0, 1), xlabel="S, share of silent groups", title="Groups drawn for each group trained on")
label_line(axis, 0.85, 1 / 0.15, "other prompts,\none by one: 1/(1−S)", GREEN, xytext=(-8, 0), ha="right")
label_line(axis, x[79], whole_batches(x[79]), "in batches of 32", GREY, xytext=(-8, 2), ha="right")
label_line(axis, 0.93, 3.5, "same prompt,\n4 draws at most", ORANGE, xytext=(4, -12))
label_line(axis, silent_share, 2.0, "the three steps above", BLUE, xytext=(-4, 12), ha="center")
label_line(axis, ours["silent"].mean(), 3.5, "our ten runs, 60 steps", PURPLE, xytext=(-8, 8), ha="right")
show(figure)

# %% [markdown]
# *Whole batches round the price up; a silent share that grows while training raises the mean price above the price of
# the mean share.* (That our runs, too, come out at 3.5 is a coincidence.) With the settings of its DAPO page verl stops
# with an error after 10 batches; our script then trains on what it has.
#
# ## What a refill does buy
#
# Not direction, then: a batch that does not shrink. Without refill, the number of groups with a gradient falls and
# fluctuates. If the mixed groups' mean update is $m$ and their variance $v$, the batch mean has
#
# $$\mathbb E\,\|\bar g\|^2 = \underbrace{(1-S)^2\|m\|^2}_{\text{signal}}
# + \underbrace{\tfrac{1-S}{P}\big(v + S\|m\|^2\big)}_{\text{noise}}$$
#
# with refill $\|m\|^2 + v/P$, whatever $S$. Left: this, and simulated batches, some of whose prompts are solved (signal
# and noise are about equal where none is). Right: the lengths of Adam's steps.

# %%
dimensions, noise = 20, 64.0  # the variance of one answer's score, over all dimensions; its contrast has length 1
direction = np.eye(dimensions)[0]
by_k = identity.binomial(0.5, G)[1:G] / (1 - identity.silent_rate(0.5, G))  # live prompts have p = 1/2
mean_sigma = by_k @ identity.sigma(np.arange(1, G), G)
square = by_k @ [identity.update_norm_squared(k, G, 1.0, noise, noise) for k in range(1, G)]
m2, v = mean_sigma**2, square - mean_sigma**2
assert 0.8 < m2 / (v / P) < 1.25  # signal and noise


def batch_means(solved, batches=200, refill=False):
    """(batches, dimensions): mean updates of batches, a share `solved` of whose prompts is always answered right."""
    count = batches * P * (12 if refill else 1)
    p = np.where(rng.random(count) < solved, 1.0, 0.5)
    R = (rng.random((count, G)) < p[:, None]).astype(float)
    if refill:
        R = R[(R[:, :1] != R).any(axis=1)][: batches * P]
    scores = R[:, :, None] * direction + rng.normal(size=(len(R), G, dimensions)) * np.sqrt(noise / dimensions)
    A = dapo.compute_advantages(rewards=torch.tensor(R)).numpy()
    return ((A[:, :, None] * scores).mean(axis=1)).reshape(batches, P, dimensions).mean(axis=1)


solved = np.linspace(0, 0.9, 7)
S_mix = solved + (1 - solved) * identity.silent_rate(0.5, G)
without = np.array([np.sqrt((batch_means(f) ** 2).sum(axis=1).mean()) for f in solved])
refilled = np.array([np.sqrt((batch_means(f, refill=True, batches=100) ** 2).sum(axis=1).mean()) for f in solved])
law = np.sqrt((1 - S_mix) ** 2 * m2 + (1 - S_mix) / P * (v + S_mix * m2))
assert np.allclose(without, law, rtol=0.06) and np.allclose(refilled, np.sqrt(m2 + v / P), rtol=0.06)


def adam_steps(gradients):
    """Lengths of the steps that Adam takes with a learning rate of 1."""
    weights = torch.zeros(gradients.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer, taken = torch.optim.Adam([weights], lr=1.0, eps=1e-30), []
    for gradient in gradients:
        before, weights.grad = weights.detach().clone(), torch.tensor(gradient)
        optimizer.step()
        taken.append((weights.detach() - before).norm().item())
    return np.array(taken)


updates, wide = 240, 500  # as many optimizer steps as our runs take
rising = np.linspace(0, 0.9, updates)
mixed_groups = rng.binomial(P, 1 - rising)[:, None]
signal, normal = mean_sigma / np.sqrt(wide), rng.normal(size=(updates, wide)) * np.sqrt(v / wide)
shrinking = mixed_groups / P * signal + np.sqrt(mixed_groups) / P * normal
constant = signal + normal / np.sqrt(P)
steps = {"shrinking": adam_steps(shrinking), "constant": adam_steps(constant)}
scale_free = np.allclose(adam_steps(3 * constant), steps["constant"], rtol=1e-9)
assert scale_free
print(f"three times the gradient, the same Adam steps: {scale_free}")
lengths_of = [shared[name]["update_norm"]["mean"] for name in ("GRPO", "DAPO")]
assert abs(lengths_of[1] / lengths_of[0] - 1.035) < 0.002
print(
    "mean update length in our runs (Adam, one learning rate, 10 seeds): "
    + "GRPO {:.4f}, DAPO {:.4f}".format(*lengths_of)
)

figure, (left, right_axis) = new_figure(9.5, 3.5, columns=2)
left.plot(S_mix, refilled / refilled[0], "x", color=GREEN, markersize=8, markeredgewidth=2)
left.plot(S_mix, np.ones(7), color=GREEN, linewidth=1.2)
left.plot(S_mix, without / refilled[0], "o", color=BLUE)
left.plot(S_mix, law / np.sqrt(m2 + v / P), color=BLUE, linewidth=1.2)
left.set(title="Length of the batch's update", xlabel="S, share of silent groups", ylim=(0, 1.25), xlim=(0, 1))
label_line(left, S_mix[3], 1, "✕ refilled", GREEN, xytext=(0, 12), ha="center")
label_line(left, S_mix[3], without[3] / refilled[0], "● no refill", BLUE, xytext=(8, 8))
smooth = {name: np.convolve(taken, np.ones(15) / 15, mode="valid") for name, taken in steps.items()}
base_length = smooth["constant"][100:].mean()
for name, color in (("constant", GREEN), ("shrinking", BLUE)):
    right_axis.plot(rising[7:-7], smooth[name] / base_length, color=color, linewidth=1.5)
right_axis.set(title="Length of Adam's step, S rising over 240 updates", xlabel="S, share of silent groups")
right_axis.set(ylim=(0, 1.25), xlim=(0, 1))
label_line(right_axis, 0.62, 1.0, "refilled", GREEN, xytext=(0, 12))
label_line(right_axis, 0.62, smooth["shrinking"][158] / base_length, "no refill", BLUE, xytext=(0, -12), ha="right")
show(figure)

# %% [markdown]
# *Without refill the update shrinks as prompts become uniformly right or wrong; with it, it keeps its length.*
#
# Adam divides a *constant* factor out, so the $1/\mathbb E[1-S]$ of the claim is no larger step. It follows a
# *changing* one only as fast as it forgets (its memory, 1/(1 − .999), is a thousand updates): without refill late steps
# shrink in this toy; over our whole runs the mean lengths differ by 3.5 %. And a mixed group costs the same either way:
# plain GRPO with $P/(1-S)$ prompts gets as many for as many completions. **On average a refill is GRPO with a batch
# that grows as groups fall silent.**
#
# ## Clip-higher
#
# For $A > 0$ a token's own gradient stops once $\rho > 1+\epsilon$ ([lesson 2](02_ppo.ipynb)). The bound is a *factor*:


# %%
def stops_at(script, p_old):
    """The probability beyond which autograd finds no upward push from the script's loss; None if there is none."""
    low, high = p_old, 1.0
    if pushes(script, p_old, 1.0):
        return None
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if pushes(script, p_old, middle) else (low, middle)
    return low


def pushes(script, p_old, p_new, A=1.0, **settings):
    """Minus the derivative of the script's loss with respect to the token's log-probability."""
    old, new = (torch.tensor([[p]], dtype=torch.float64).log() for p in (p_old, p_new))
    new.requires_grad_()
    batch = {"logps": new, "old_logps": old, "mask": torch.tensor([[True]])}
    if script is grpo:
        batch["ref_logps"] = new.detach()
    loss = script.policy_loss(**batch, advantages=torch.tensor([[A]]).double(), config=script.Config(**settings))
    return -torch.autograd.grad(loss, new)[0].item()


by_hand = {0.01: (0.012, 0.0128), 0.1: (0.12, 0.128), 0.5: (0.6, 0.64), 0.8: (0.96, None), 0.9: (None, None)}
print("old probability   GRPO (1.2) stops at   DAPO (1.28) stops at")
for p_old, bounds in by_hand.items():
    got = [stops_at(script, p_old) for script in (grpo, dapo)]
    assert all((a is None) == (b is None) and (a is None or abs(a - b) < 1e-9) for a, b in zip(got, bounds))
    print(f"{p_old:15}   " + "   ".join(f"{'never' if b is None else f'{b:.4f}':>19}" for b in got))
climb = [math.ceil(math.log(50) / math.log(1 + eps)) for eps in (0.2, 0.28)]
print(f"rollout batches from .01 to .5, if it stops at the bound each time: {climb[0]} and {climb[1]}")

# %% [markdown]
# The own gradient of a token of probability .01 stops after a gain of .002, that of one of .8 after .16, and beyond
# 1/1.2 none is stopped. If the rare tokens are where exploration lives, here is where the upper bound holds it back.
# Move the bounds and the old probability:


# %%
def draw(eps_low, eps_high, old_probability):
    figure, (left, right) = new_figure(9.5, 3.5, columns=2)
    bounds = {"clip_eps_low": eps_low, "clip_eps_high": eps_high}
    ratios = np.linspace(0.3, 1.8, 301)
    news = ratios * old_probability
    possible = news < 1
    for A, color, name in ((1.0, RIGHT, "right answer, A = 1"), (-1.0, WRONG, "wrong answer, A = −1")):
        values = [pushes(dapo, old_probability, p, A, **bounds) for p in news[possible]]
        left.plot(news[possible], values, color=color)
        left.text(0.03, 0.93 if A > 0 else 0.07, name, color=color, transform=left.transAxes, va="center")
    left.axvline(old_probability, color=GREY, linewidth=1, linestyle=":")
    left.set(xlim=(0.3 * old_probability, 1.8 * old_probability), ylim=(-2.3, 2.3))
    left.set(title="Push on the token's log-probability", xlabel="its probability now (dotted: when sampled)")
    if not possible.all():
        left.axvspan(1, 1.8 * old_probability, color=GREY, alpha=0.25)
        left.text(1.01, 0, "not a\nprobability", color=GREY, va="center", fontsize=9)
    p = np.linspace(0.001, 0.999, 400)
    right.plot(p, np.minimum(p * eps_high, 1 - p), color=RIGHT)
    right.plot(p, np.minimum(p * 0.2, 1 - p), "--", color=GREY, linewidth=1.5)
    right.plot(p, -p * eps_low, color=WRONG)
    for y in (min(old_probability * eps_high, 1 - old_probability), -old_probability * eps_low):
        right.plot(old_probability, y, "o", color=RIGHT if y > 0 else WRONG, markersize=8)
    right.axhline(0, color="black", linewidth=0.8)
    right.set(title="Room before the gradient stops", xlabel="probability when sampled", ylabel="probability gained")
    right.set(ylim=(-0.55, 0.5), xlim=(0, 1))
    right.text(0.03, 0.43, f"up: 1 + {eps_high:.2f} (dashed: 1.2)", color=RIGHT)
    right.text(0.03, -0.5, f"down: 1 − {eps_low:.2f}", color=WRONG)
    return figure


knob(draw, eps_low=(0.05, 0.5, 0.01, 0.2), eps_high=(0.05, 0.6, 0.01, 0.28), old_probability=[0.1, 0.01, 0.5, 0.8, 0.9])

# %% [markdown]
# *The room is widest for a token of probability $1/(1+\epsilon)$, and vanishes for rare ones.*
#
# In DAPO's Fig. 3a the mean probability of up-clipped tokens settles below .2. And ours? First those of the run above,
# then the means over whole training runs:

# %%
clipped = []  # of each up-clipped token: step, text before it, token, old probability, ratio, does it come first?
for s, step in enumerate(watched, start=1):
    for batch, logps, advantages in step["updates"]:
        ratios = (logps - batch.logps).exp()
        for row, t in ((advantages > 0) & (ratios > 1 + config.clip_eps_high) & batch.mask).nonzero().tolist():
            before = torch.cat([batch.prompt_ids[row], batch.completion_ids[row, :t]])
            texts = (tokenizer.decode(x, skip_special_tokens=True) for x in (before, batch.completion_ids[row, t]))
            clipped.append((s, *texts, batch.logps[row, t].exp().item(), ratios[row, t].item(), t == 0))
step, old, ratio = (np.array([row[i] for row in clipped]) for i in (0, 3, 4))
begins = np.array([is_first and token != "#" for _, _, token, _, _, is_first in clipped])
print("up-clipped at step 1, every sixth:     token   old probability   ratio")
for _, text, token, p_old, r, _ in [row for row in clipped if row[0] == 1][::6]:
    print(f"    {text:>30}     {token!r:>5}   {p_old:15.2f}   {r:5.2f}")
for s in (1, 2, 3):
    here = step == s
    print(
        f"step {s}: {here.sum()} tokens, mean old probability {old[here].mean():.2f}, "
        f"{(old[here] < 0.2).mean():.0%} below .2, {begins[here].mean():.0%} begin a worked answer, "
        f"{(ratio[here] < 1.28).mean():.0%} within 1.28"
    )
assert begins.mean() > 0.5 and (ratio[step == 1] > 1.28).mean() > 0.5 and old[step == 1].mean() < old[step == 3].mean()
clip_means = {arm: ablation[arm]["clipped_up_probability"] for arm in ablation}
print(f"whole runs, {seeds} seeds:", ", ".join(f"{arm} {x['mean']:.2f}" for arm, x in clip_means.items()))
before, after = (ablation[arm] for arm in ("+ overlong filtering", "+ clip-higher"))
gain = np.array(after["final"]["seeds"]) - np.array(before["final"]["seeds"])
entropy = np.array(after["entropy"]["seeds"]) - np.array(before["entropy"]["seeds"])
print(f"adding clip-higher: accuracy higher in {(gain > 0).sum()} of {seeds} seeds, entropy in {(entropy > 0).sum()}")

# %% [markdown]
# In the first batch the picture is near DAPO's: what the clip stops is mostly the digit that *begins* a worked answer,
# the rare and right decision. But the window is short. Two batches on, working things out is common, and over whole
# runs up-clipped tokens have .4 to .5 on average. And most ratios in the first batch are beyond 1.28 too. Each answer
# is used once here, so its ratio is the work of *other* answers' updates: the clip stops a gradient, it bounds no
# ratio. **In our ablation no effect of clip-higher on accuracy or entropy is seen.** (The three steps are one seed, and
# tokens of one group move together.) With 19 characters, that says little of a model with a hundred thousand tokens.
#
# ## The overlong punishment
#
# Eq. 13 adds to the reward of an answer of $|y|$ tokens ($L_{max}$: the limit, $L_c$: the punished zone before it)
#
# $$0 \ \text{ if } |y| \le L_{max}-L_c, \qquad \frac{(L_{max}-L_c)-|y|}{L_c} \ \text{ up to } L_{max}, \qquad -1 \
# \text{ beyond}$$

# %%
published = dapo.Config(max_new_tokens=20480, overlong_buffer=4096)
marks = torch.tensor([1000, 16384, 18432, 20480])
penalties = dapo.overlong_penalty(mask=torch.arange(20480) < marks.view(-1, 1), config=published)
assert penalties.tolist() == [0, 0, -0.5, -1]  # by hand
print(
    "L_max = 20480, L_c = 4096:", ", ".join(f"{n} tokens {x:+.2f}" for n, x in zip(marks.tolist(), penalties.tolist()))
)

rewards = torch.tensor([1, 0.9, 1, -1, -1, -1.5, -1, -1]).double()
vectors = torch.randn(8, 5, generator=torch.Generator().manual_seed(0)).double()
update = (dapo.compute_advantages(rewards=rewards.view(1, 8)).view(8, 1) * vectors).mean(dim=0)
R = (rewards > 0).double()
two_classes = identity.sigma(3, 8) * (vectors[R == 1].mean(dim=0) - vectors[R == 0].mean(dim=0))
covariance = torch.cov(torch.cat([rewards.view(1, 8), vectors.T]), correction=0)
holds = [torch.allclose(update, x, rtol=1e-12) for x in (two_classes, covariance[0, 1:] / covariance[0, 0].sqrt())]
assert holds == [False, True]
print(f"more than two reward values: sigma times the contrast: {holds[0]}; Cov(R, s) / sigma_R: {holds[1]}")

all_right = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 0.999]]).double()
lone_wrong = torch.tensor([[1, 1, 1, 1, 1, 1, 1, -1]]).double()
long_one, wrong_one = (dapo.compute_advantages(rewards=r)[0, -1].item() for r in (all_right, lone_wrong))
assert np.allclose([long_one, wrong_one], -math.sqrt(7))
print(f"8 right, one a little long: its advantage is {long_one:.3f}; a lone wrong answer's is {wrong_one:.3f}")

# %% [markdown]
# Rewards now take more than two values. The two-class identity fails; what survives is the covariance
# ([lesson 6](06_identity.ipynb), exercise 3). And dividing by σ forgets how *small* a difference is: among eight right
# answers, one a thousandth of a point short is pushed down like a lone wrong one. DAPO filters on **accuracy, not on
# shaped reward** (verl: `metric: acc`), so such groups go, too. With the punishment the filter thus drops some updates
# that are not zero (the three steps above had some), and the claim holds but for these.
#
# ## The published ablation, and ours

# %%
labels = [
    "GRPO",
    "+ overlong filtering",
    "+ clip-higher",
    "+ soft punishment",
    "+ token-level loss",
    "+ dynamic sampling",
]
arms_in_order = list(ablation.values())
y = np.arange(6)[::-1]
figure, (left, right_axis) = new_figure(9.8, 3.7, columns=2)
left.plot(compare_tables.AIME_2024, y, "o-", color=BLUE)
left.plot([44, 50, 52], [2, 1, 0], "s", color=ORANGE, markersize=7)
left.set(title="AIME 2024, Qwen2.5-32B, no seeds reported", xlim=(28, 59), xlabel="score")
left.set_yticks(y, labels)
label_line(left, 42, 1, "DAPO, Table 1", BLUE, xytext=(-8, 0), ha="right")
label_line(left, 50, 1, "verl's own\nreproduction", ORANGE, xytext=(4, 16))
for height, arm in zip(y, arms_in_order):
    right_axis.plot(arm["final"]["interval"], [height] * 2, color=BLUE, linewidth=11, alpha=0.25, solid_capstyle="butt")
    right_axis.plot(arm["final"]["seeds"], [height] * seeds, "o", color=BLUE, markersize=4)
dynamic, plain = arms_in_order[-1], arms_in_order[-2]
right_axis.plot(dynamic["at_budget"]["seeds"], [-0.3] * seeds, "x", color=GREEN, markersize=6)
label_line(right_axis, 0.72, -0.3, "✕ at equal completions", GREEN, xytext=(0, 0), ha="right")
right_axis.set(
    title=f"Our task: accuracy at the end, {seeds} seeds each", xlim=(0.6, 0.8), ylim=(-0.7, 5.4), xlabel="accuracy"
)
right_axis.set_yticks(y, [""] * 6)
right_axis.set_xticks([0.6, 0.65, 0.7, 0.75, 0.8])
left.set_ylim(-0.7, 5.4)
show(figure)
more = np.array(dynamic["at_budget"]["seeds"]) > np.array(plain["at_budget"]["seeds"])
times = dynamic["completions"]["mean"] / plain["completions"]["mean"]
print(
    f"dynamic sampling: {times:.1f} times the completions; at equal completions higher in {more.sum()} of {seeds} seeds"
)
main = compare_tables.find(results["shared"], "DAPO", "GRPO")
gained = compare_tables.find(results["ablation"], "+ dynamic sampling", "+ token-level loss")
assert main["interval"][0] > 0 and gained["interval"][0] > 0 and gained["p_holm"] < 0.05 < main["p_holm"]
print("at equal completions, in points: dynamic sampling", compare_tables.change(gained).strip("*"), end="; ")
print("main comparison, DAPO against GRPO", compare_tables.change(main))

# %% [markdown]
# *Dynamic sampling is the largest step in both; the intervals of our other rows overlap.*
#
# **The +8 is not robust.** Table 1 is cumulative, on 30 problems, without seeds. In verl's own reproduction full
# DAPO reaches 52, and 50 *without* dynamic sampling; 44 without token-level loss too, in an earlier setup.
# Overlong filtering, worth +6 in the table, was off in the best run, say the same docs. And DAPO's Fig. 6, on speed,
# counts training steps, not the completions that a refill costs (it argues that the longest ones dominate the time).
#
# At equal completions our ablation shows a gain, too. In the main comparison, where the rest of DAPO changes as well
# and completions are not cut, the gain is smaller and does not survive the correction for the other comparisons of its
# table. The claim promises neither.
#
# DAPO's Fig. 3b shows the share of prompts with accuracy 1 *in training*, groups of 16: $\mathbb E[p^{16}]$. The
# identity paper takes it for avg@32, which in DAPO's text is the AIME evaluation, and fits $\mathbb E[p^{32}]$, as "a
# consistency check"; for training it names $\mathbb E[p^{16}]$ itself.
#
# ## Exercises
#
# **1. Refill.** Prompts of probabilities `p` (an array) are equally frequent. What *share* of the expected update, in
# logit units ($\mathbb E[g]$ of a coin is $\mathbb E[\sigma]$), does each get under DAPO's prompt replacement? And
# under the redraw of the same prompt? `identity.expected_sigma(p, G)` and `identity.silent_rate(p, G)` are there to be
# used.


# %% [exercise]
def shares(p, G):
    """(2, n): each prompt's share of the update, rows summing to 1; first prompt replacement, then the redraw."""
    return ...


# %% [check]
def by_enumeration(p, G):
    """Groups k = 0..G one by one; the probabilities of the mixed ones renormalised over all prompts, or by prompt."""
    chance = identity.binomial(p, G) * (identity.sigma(np.arange(G + 1), G) > 0)
    A = [grpo.compute_advantages(rewards=(torch.arange(G) < k).double().view(1, G))[0] for k in range(G + 1)]
    pushes_of_k = np.array([A[k][:k].sum().item() for k in range(G + 1)]) / G
    rows = chance / chance.sum(), chance / chance.sum(axis=1, keepdims=True)
    return [(row @ pushes_of_k) / (row @ pushes_of_k).sum() for row in rows]


def _share(x):
    return x / x.sum()


check(
    shares,
    by_enumeration,
    inputs=[{"p": np.array([0.02, 0.2, 0.5]), "G": 8}, {"p": np.array([0.1, 0.9, 0.95, 0.6]), "G": 4}],
    mistakes={
        "the rows are exchanged": lambda p, G: by_enumeration(p, G)[::-1],
        "that is each prompt's share of the kept groups; a kept group of a hard prompt also pushes less": lambda p, G: (
            _share(1 - identity.silent_rate(p, G)),
            by_enumeration(p, G)[1],
        ),
        "replacement does not divide a prompt by its own 1 - S: that is the redraw": lambda p, G: (
            by_enumeration(p, G)[1],
            by_enumeration(p, G)[1],
        ),
    },
)

# %% [hint]
# Replacement: kept with 1 − S, worth E[σ]/(1 − S). Redraw: kept always. Divide each row by its sum.


# %% [solution]
def shares(p, G):
    sigma = identity.expected_sigma(p, G)
    redraw = sigma / (1 - identity.silent_rate(p, G))
    return sigma / sigma.sum(), redraw / redraw.sum()


# %% [wrong] share of the kept groups
def shares(p, G):
    kept = 1 - identity.silent_rate(p, G)
    redraw = identity.expected_sigma(p, G) / kept
    return kept / kept.sum(), redraw / redraw.sum()


# %% [wrong] that is the redraw
def shares(p, G):
    redraw = identity.expected_sigma(p, G) / (1 - identity.silent_rate(p, G))
    return redraw / redraw.sum(), redraw / redraw.sum()


# %% [markdown]
# **2. Soft overlong punishment.** Write Eq. 13. `lengths` is an array.


# %% [exercise]
def penalty(lengths, L_max, L_c):
    """What is added to the reward of each answer: 0 to -1."""
    return ...


# %% [check]
check(
    penalty,
    lambda lengths, L_max, L_c: dapo.overlong_penalty(
        mask=torch.arange(lengths.max()) < torch.tensor(lengths).view(-1, 1),
        config=dapo.Config(max_new_tokens=L_max, overlong_buffer=L_c),
    ),
    inputs=[
        {"lengths": np.array([10, 48, 50, 54, 56]), "L_max": 56, "L_c": 8},
        {"lengths": np.array([9000, 17000, 20000, 30000]), "L_max": 20480, "L_c": 4096},
    ],
    mistakes={
        "no floor: beyond the limit it stays at -1": lambda lengths, L_max, L_c: np.minimum(
            (L_max - L_c - lengths) / L_c, 0
        ),
        "no ceiling: short answers get a bonus": lambda lengths, L_max, L_c: np.maximum(
            (L_max - L_c - lengths) / L_c, -1
        ),
        "it reaches -1 at the limit, so the zone lies before it": lambda lengths, L_max, L_c: np.clip(
            (L_max - lengths) / L_c, -1, 0
        ),
    },
)

# %% [hint]
# One straight line, cut off at 0 and at −1 (`np.clip`). Where does it cross 0?


# %% [solution]
def penalty(lengths, L_max, L_c):
    return np.clip((L_max - L_c - lengths) / L_c, -1, 0)


# %% [wrong] no floor
def penalty(lengths, L_max, L_c):
    return np.where(lengths > L_max - L_c, (L_max - L_c - lengths) / L_c, 0)


# %% [wrong] the zone lies before it
def penalty(lengths, L_max, L_c):
    return np.clip((L_max - lengths) / L_c, -1, 0)


# %% [wrong] no ceiling
def penalty(lengths, L_max, L_c):
    return np.maximum(-1, (L_max - L_c - lengths) / L_c)


# %% [markdown]
# **3. Count the wasted rollouts.** Prompts of probabilities `p`, equally frequent, replaced one by one until a group is
# mixed. How many completions are thrown away, on average, for each group kept?


# %% [exercise]
def wasted(p, G):
    """Expected number of discarded completions for each kept group."""
    return ...


# %% [check]
def by_waiting(p, G, most=4000):
    """G times the sum over n of P(the first n groups are all silent)."""
    silent_group = np.mean([x**G + (1 - x) ** G for x in p])
    return G * sum(silent_group**n for n in range(1, most))


check(
    wasted,
    by_waiting,
    inputs=[{"p": np.array([0.05, 0.5]), "G": 8}, {"p": np.array([0.01, 0.3, 0.9]), "G": 16}],
    mistakes={
        "that is the price of redrawing the same prompt: average S first, then invert": lambda p, G: (
            G * (1 / (1 - identity.silent_rate(p, G)) - 1).mean()
        ),
        "the G completions of the kept group are not wasted": lambda p, G: G / (1 - identity.silent_rate(p, G).mean()),
        "those are groups; a group has G completions": lambda p, G: 1 / (1 - identity.silent_rate(p, G).mean()) - 1,
    },
)

# %% [hint]
# Waiting for a success of probability $1-\bar S$ takes $1/(1-\bar S)$ draws on average, the success included. $\bar S$
# is the mean of S over prompts, because every draw is a new prompt.


# %% [solution]
def wasted(p, G):
    silent = identity.silent_rate(p, G).mean()
    return G * silent / (1 - silent)


# %% [wrong] redrawing the same prompt
def wasted(p, G):
    silent = identity.silent_rate(p, G)
    return (G * silent / (1 - silent)).mean()


# %% [wrong] are not wasted
def wasted(p, G):
    return G / (1 - identity.silent_rate(p, G).mean())


# %% [wrong] those are groups
def wasted(p, G):
    silent = identity.silent_rate(p, G).mean()
    return silent / (1 - silent)


# %% [markdown]
# **4. Find the bug.** This filter gets the shaped rewards (1 or −1, and up to 1 less for a long answer), (P, G), and
# marks the groups to keep. It runs, no batch is ever short, and the model learns to be brief where it should learn
# nothing. Repair it.


# %% [exercise]
def keep(shaped):
    """(P,) bool: which groups DAPO keeps."""
    return shaped.std(dim=1) > 0  # <- runs, and is wrong


# %% [check]
many_shaped = torch.tensor(
    [
        [1, 1, 0.4, 1],
        [-1, -1.8, -1, -1],
        [1, 1, 1, -1],
        [0, -1, -1, -2],
        [1, 0, 1, 0],
        [-1, -1, -1, -1],
        [0, -1, -1, -1],
    ]
).double()
check(
    keep,
    lambda shaped: torch.tensor([False, False, True, True, False, False, True]),
    inputs=[{"shaped": many_shaped}],
    bug=lambda shaped: shaped.std(dim=1) > 0,
    mistakes={
        "no threshold will do: a unanimous group can spread more than a mixed one": lambda shaped: (
            shaped.std(dim=1) > 0.5
        ),
        "a right answer at the limit has a shaped reward of 0: it is right": lambda shaped: (
            (shaped > 0).any(dim=1) & (shaped <= 0).any(dim=1)
        ),
        "turned round: these are the groups to throw away": lambda shaped: (
            (shaped >= 0).all(dim=1) | (shaped < 0).all(dim=1)
        ),
    },
)

# %% [hint]
# Right answers have 1 to 0, wrong ones −1 to −2. Recover right and wrong first; better still, filter before shaping.


# %% [solution]
def keep(shaped):
    right = shaped >= 0
    return (right != right[:, :1]).any(dim=1)


# %% [wrong] no threshold will do
def keep(shaped):
    return shaped.std(dim=1) > 0.5


# %% [wrong] a right answer at the limit
def keep(shaped):
    right = shaped > 0
    return (right != right[:, :1]).any(dim=1)


# %% [wrong] turned round
def keep(shaped):
    right = shaped >= 0
    return (right == right[:, :1]).all(dim=1)


# %% [markdown]
# ## What to take along
#
# - Drop and refill with *other* prompts: GRPO's expected direction, one common factor, a batch that keeps its size.
#   Redraw the *same* prompt: other weights, $1/p$ where it is hard.
# - The price is $1/(1-\bar S)$, rounded up by whole batches, and grows as prompts are solved. At equal completions the
#   claim promises no gain.
# - Clip bounds are factors: a rare token's own gradient stops after a small gain. Whether this matters depends on how
#   long a model has rare tokens worth raising.
# - Filter on right and wrong, never on shaped reward: dividing by σ makes any difference a large one.
#
# Next: does all this teach a model new answers, or make one it has more frequent? [Lesson 11](11_pass_at_k.ipynb).
#
# Sources: DAPO, [arXiv:2503.14476](https://arxiv.org/abs/2503.14476), Eq. 7–13, sections 3.1–3.4, Fig. 3, Table 1;
# verl's [DAPO page](https://verl.readthedocs.io/en/latest/algo/dapo.html) for filter and reproduction runs; the
# identity paper, [2607.00152](https://arxiv.org/abs/2607.00152), for the controlled run and the reading of Fig. 3b.
# That prompt replacement leaves the weights as they are, and that the run's arm does not, is our derivation.
