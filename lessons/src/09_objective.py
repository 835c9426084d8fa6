# %% [markdown]
# # 9 · What is being climbed
#
# GRPO, Dr. GRPO and their relatives differ in one line, the advantage. With right-or-wrong rewards that line decides
# one thing: *which function of the success probability training climbs*. The claim:
#
# - a rule that sees only its group's rewards climbs some $h(p)$, averaged over the prompts, with a weight
#   $h'(p) = w(p)$ that one sum gives;
# - Dr. GRPO climbs $p$ itself;
# - GRPO climbs $2\arcsin\sqrt p$ only as $G \to \infty$. At finite G its weight never exceeds $\sqrt{G-1}$, and **at
#   G = 2 and 3 it has no difficulty bias at all**.
#
# Then we repeat the experiment with which the identity paper ([2607.00152](https://arxiv.org/abs/2607.00152), "the
# paper" from here) shows the bias at work, and see what it can show.
#
# | symbol | meaning |
# |---|---|
# | $G,\ k$ | answers in a group, all to one prompt; how many of them are right |
# | $p,\ q$ | the probability that an answer is right; $q = 1 - p$ |
# | $\sigma$ | the standard deviation of the group's rewards, $\sqrt{k(G-k)}/G$; a **silent** group has $\sigma = 0$ |
# | $A(\pm \mid S)$ | the advantage of a right (+) or wrong (−) answer when $S$ of the *other* $G-1$ are right |
# | $s,\ g$ | the score $\nabla_\theta\log\pi_\theta(y)$ of an answer, summed over tokens; the update $\frac1G\sum_i A_i s_i$ |
# | $w(p),\ h(p)$ | the weight of a prompt, $\mathbb E[g] = w(p)\,\nabla p$; the objective, $h' = w$ |

# %%
import math
from itertools import product

import numpy as np
import torch
from torch.autograd.functional import jacobian

from algorithms import dr_grpo, grpo
from lessons import identity
from lessons.experiments import bigmath, controlled_run
from lessons.experiments.controlled_run import at_progress, run, run_arms, start
from lessons.kit import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, check, knob, label_line, new_figure, show

# %% [markdown]
# ## One formula for every rule
#
# Take one answer of the group, and fix how many of the others are right. The others are independent of it, so its
# advantage is $A(+\mid S)$ if it is right and $A(-\mid S)$ if it is wrong. Lesson 1 gave $\mathbb E[R\,s] = \nabla p$
# and $\mathbb E[s] = 0$, hence $\mathbb E[(1-R)\,s] = -\nabla p$. Together, and averaged over $S$:
#
# $$\mathbb E[g] = w(p)\,\nabla p, \qquad w(p) = \mathbb E_{S\sim \mathrm{Bin}(G-1,\,p)}\big[A(+\mid S) - A(-\mid
# S)\big]$$
#
# (Davis and Recht, [2510.13651](https://arxiv.org/abs/2510.13651).) Since $w(p)\,\nabla p = \nabla h(p)$, the expected
# update is the gradient of $h$. All $h$ of this lesson increase, so each is greatest where every prompt is solved. They
# differ in which prompts come first, and in which lose where prompts compete.
#
# The check: a policy over six answers with three shared parameters, *all* $6^4$ groups and $\nabla p$ from autograd,
# against the formula.

# %%
G = 4
features = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
theta = torch.tensor([0.7, -0.4, 0.9], dtype=torch.float64, requires_grad=True)
reward = torch.tensor([1.0, 0, 1, 0, 0, 0], dtype=torch.float64)


def log_probs(theta):
    return (2 * torch.tanh(features @ theta)).log_softmax(dim=0)


scores = jacobian(log_probs, theta)  # (6, 3)
grad_p = torch.autograd.grad(log_probs(theta).exp() @ reward, theta)[0]
answers = torch.tensor(list(product(range(6), repeat=G)))  # (1296, 4)
chance = log_probs(theta).detach()[answers].sum(dim=1).exp()
R = reward[answers]
k = R.sum(dim=1, keepdim=True)
p = float(chance @ R[:, 0])
found_some = (k > 0).double()

grpo_advantages, spread = grpo.compute_advantages(rewards=R), R.std(dim=1, correction=0, keepdim=True)
as_written = {
    "REINFORCE": R,
    "RLOO": R - (k - R) / (G - 1),
    "Dr. GRPO": dr_grpo.compute_advantages(rewards=R),
    "Dr. GRPO, rewards -1 and 1": dr_grpo.compute_advantages(rewards=2 * R - 1),
    "GRPO": grpo_advantages,
    "GRPO, divided by sigma twice": grpo_advantages / spread.clamp(1e-9),
    "mean over the right": R * G / k.clamp(1),
    "MaxRL": (R - k / G) / (k.clamp(1) / G) * found_some,
    "pass@G": G * found_some.expand_as(R),
}
assert set(as_written) == set(identity.RULES)
print(f"p = {p:.3f}, G = {G}           E[g] / grad p   formula   nothing sideways")
for rule, A in as_written.items():
    mean = chance @ (A.unsqueeze(2) * scores[answers]).mean(dim=1)
    along = (mean @ grad_p / (grad_p @ grad_p)).item()
    straight = bool((mean - along * grad_p).norm() < 1e-12 * grad_p.norm())
    formula = float(identity.weight(rule, p, G))
    assert straight and abs(along / formula - 1) < 1e-12
    print(f"{rule:30} {along:.4f}         {formula:.4f}    {straight}")

updates = (as_written["GRPO"].unsqueeze(2) * scores[answers]).mean(dim=1)
mixed = ((k > 0) & (k < G)).flatten()
backwards = float(chance[mixed & (updates @ grad_p < 0)].sum() / chance[mixed].sum())
assert 0.03 < backwards < 0.06
print(f"\nsingle mixed groups whose GRPO update points away from grad p: {backwards:.0%}")

# %% [markdown]
# Note the last line: on average GRPO goes uphill, a single group need not.
#
# ## GRPO: flat, then a bathtub with a rim
#
# **G = 2 and 3.** A mixed group of two has $k = 1$, one of three has $k = 1$ or 2, and σ is the same for both. So ÷σ
# divides by a constant: every single advantage is Dr. GRPO's, times 2 or $3/\sqrt2$.
#
# **The limit.** $S/(G-1) \to p$, so
# $A(+) - A(-) \to \frac{1-p}{\sqrt{pq}} + \frac{p}{\sqrt{pq}} = \frac{1}{\sqrt{pq}}$, the derivative of
# $2\arcsin\sqrt p$ (Thrampoulidis et al., [2510.23049](https://arxiv.org/abs/2510.23049); the paper, Eq. `weight`).
#
# **In between.** The weight is an average of $A(+\mid S) - A(-\mid S)$, so it cannot exceed the largest of these, which
# is at $S = 0$ and $S = G-1$: $\sqrt{G-1}$ (exercise 2; checked below for every G up to 64). From G = 4 on a prompt
# weighs the more the further its $p$ is from ½, and $w(0)/w(\frac12)$ bounds GRPO's difficulty bias.

# %%
sizes = {2: GREY, 3: GREY, 4: GREEN, 8: BLUE, 16: PURPLE, 64: RED}
grid = 1 / (1 + np.exp(-np.linspace(-6.9, 6.9, 301)))

for size in (2, 3):
    rewards = torch.tensor(list(product((0.0, 1.0), repeat=size)), dtype=torch.float64)
    ours, plain = (script.compute_advantages(rewards=rewards) for script in (grpo, dr_grpo))
    assert torch.allclose(ours, plain * {2: 2, 3: 3 / math.sqrt(2)}[size], atol=1e-12)  # every group, not only the mean
for size in range(2, 65):
    groups = (np.arange(size) < np.arange(size + 1)[:, None]).astype(float)
    A = grpo.compute_advantages(rewards=torch.tensor(groups)).numpy()  # row k: k right answers, which come first
    differences = A[1:, 0] - A[:-1, -1]  # S others right: own answer right (k = S + 1), own answer wrong (k = S)
    assert differences.max() < math.sqrt(size - 1) + 1e-12
    assert np.allclose(identity.weight("GRPO", [0.0, 1.0], size), math.sqrt(size - 1))
by_hand = math.sqrt(3) * grid + (3 - 2 * math.sqrt(3)) * (grid**2 / 2 - grid**3 / 3)
assert np.allclose(identity.objective("GRPO", grid, 4), by_hand)

print("  G   cap √(G−1)   w(0) / w(.5)   w(.05) / w(.5)   h(1)    largest distance of h / h(1) from the limit's")
few = np.linspace(0, 1, 41)
distances = []
for size in (2, 3, 4, 8, 16, 64, 256):
    edge, w_05, middle = identity.weight("GRPO", np.array([0.0, 0.05, 0.5]), size)
    h = identity.objective("GRPO", few, size)
    distances.append(np.abs(h / h[-1] - 2 / np.pi * np.arcsin(np.sqrt(few))).max())
    print(
        f"{size:3}   {math.sqrt(size - 1):5.2f}        {edge / middle:.2f}           {w_05 / middle:.2f}             "
        f"{h[-1]:.3f}   {distances[-1]:.3f}"
    )
    falling = np.diff(identity.weight("GRPO", grid[:151], size))  # from p near 0 to one half
    assert (falling < 0).all() if size > 3 else np.allclose(falling, 0)
    assert (
        f"{edge / middle:.2f}"
        == {2: "1.00", 3: "1.00", 4: "1.07", 8: "1.43", 16: "2.00", 64: "4.00", 256: "8.00"}[size]
    )
    missing = (np.pi - h[-1]) * math.sqrt(size)
    assert size < 64 or abs(missing - 2.93) < 0.01  # falls like 1 / sqrt(G): h(1) is about pi - 2.93 / sqrt(G)
    assert size != 8 or f"{w_05 / middle:.2f}" == "1.33"
    assert size != 64 or round(1 - h[-1] / np.pi, 2) == 0.12
    assert identity.expected_sigma(grid, size).argmax() == len(grid) // 2  # in log-odds the step is longest at one half
assert (np.diff(distances[1:]) < 0).all()
at_05 = float(identity.weight_limit(0.05))
assert f"{at_05:.1f}" == "4.6"  # published
print(f"  ∞       ∞           ∞           {at_05 / 2:.2f}             {np.pi:.3f}   0")

figure, (left, right) = new_figure(10.5, 4.0, columns=2)
left.plot(grid, identity.weight_limit(grid), "--", color="black", linewidth=1.5)
for size, color in sizes.items():
    w = identity.weight("GRPO", grid, size)
    left.plot(grid, w, ":" if size == 2 else "-", color=color)
    label_line(left, grid[0], w[0], f"G = {size}", color, xytext=(-6, 0), ha="right")
label_line(left, 0.02, identity.weight_limit(0.02), "G → ∞", "black", xytext=(4, 8))
left.set(xscale="logit", yscale="log", ylim=(0.8, 14), xlim=(1e-4, 0.9992), xlabel="p")
left.set_title("GRPO: weight of a prompt, w(p)")
left.set_xticks([0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999], [".001", ".01", ".1", ".5", ".9", ".99", ".999"])
left.set_xticks([], minor=True)
left.set_yticks([1, 2, 4, 8], ["1", "2", "4", "8"])
left.set_yticks([], minor=True)
p_axis = np.linspace(0, 1, 201)
for rule, name, color, style, x, y in (
    ("pass@G", "pass@8 (dotted)", GREEN, ":", 0.30, 1.05),
    ("mean over the right", "mean over the right", RED, "-", 0.36, 0.92),
    ("MaxRL", "MaxRL (dash-dot)", PURPLE, "-.", 0.56, 0.41),
    ("Dr. GRPO", "Dr. GRPO, RLOO; GRPO at G = 2, 3", ORANGE, "-", 0.48, 0.31),
    ("GRPO", "GRPO, G = 8", BLUE, "-", 0.48, 0.21),
):
    h = identity.objective(rule, p_axis, 8)
    right.plot(p_axis, h / h[-1], style, color=color)
    right.text(x, y, name, color=color, va="center")
right.plot(p_axis, 2 / np.pi * np.arcsin(np.sqrt(p_axis)), "--", color="black", linewidth=1.3)
right.text(0.48, 0.11, "GRPO, G → ∞: arcsine (dashed)", va="center")
right.set(title="What is climbed at G = 8: h(p) / h(1)", xlabel="p", xlim=(0, 1), ylim=(0, 1.1))
show(figure)

# %% [markdown]
# *Left: the limit diverges, no group size does. Right: GRPO's objective is bent less than the limit's, and both less
# than those that climb something like log p.*
#
# So the paper's 4.6 at $p = .05$, "more than twice the weight of a coin-flip prompt", is, as it says, the limit. At G =
# 8 the ratio is 1.33. The paper says itself that at finite G the shift is milder: from Dr. GRPO to GRPO the extreme
# prompts' share of the updates grows from 14.3 to 17.0 % in its run at G = 8, from 13.9 to 24.7 % on all of Big-Math in
# the limit.
#
# A weight is no step length. It multiplies $\nabla p$, which for a coin is small at the edges; in log-odds the expected
# step is $w\,pq = \mathbb E[\sigma]$, longest at $p = \frac12$ (at all G above). That GRPO pushes "extra-strong updates
# onto the hardest and the easiest prompts", as one summary has it, is true only relative to Dr. GRPO; the paper says
# that a split group pushes hardest.
#
# ## Every rule, at the edge
#
# The weight of a hard and of an easy prompt, relative to one of $p = .5$, each computed in two ways.

# %%
edge = np.array([0.02, 0.5, 0.98])
q = 1 - edge


def slope(h, p):
    return (h(p + 1e-6) - h(p - 1e-6)) / 2e-6


def table(G):
    S = identity.silent_rate(edge, G)
    w, twice = (identity.weight(rule, edge, G) for rule in ("GRPO", "GRPO, divided by sigma twice"))
    redrawn, draws = identity.weight_same_prompt_resampling(edge, G), np.arange(1, 3000)[:, None]
    S_powers = S ** np.arange(20_000)[:, None]
    rows = {  # name: weight, the same by another way, what is climbed
        "Dr. GRPO, RLOO, ÷ batch std": (identity.weight("Dr. GRPO", edge, G), np.full(3, 1 - 1 / G), "p"),
        "GRPO": (w, identity.expected_sigma(edge, G) / (edge * q), "a polynomial"),
        "GRPO, G → ∞": (identity.weight_limit(edge), slope(lambda p: 2 * np.arcsin(np.sqrt(p)), edge), "2 arcsin √p"),
        "GRPO ÷ σ once more": (twice, (1 - S) / (edge * q), "→ log(p/q)"),
        "GRPO, same prompt redrawn": (redrawn, w * S_powers.sum(axis=0), ""),
        "  the same, at most 4 draws": (w * (1 - S**4) / (1 - S), w * S_powers[:4].sum(axis=0), ""),
        "mean over the right": (identity.weight("mean over the right", edge, G), (1 - q**G) / edge, "→ log p"),
        "MaxRL": (identity.weight("MaxRL", edge, G), (1 - q ** (G - 1)) / edge, "→ log p"),
        "draw until right, raise that": (
            identity.weight_until_success(edge),
            (draws * edge * q ** (draws - 1)).sum(axis=0),
            "log p",
        ),
        "pass@G": (identity.weight("pass@G", edge, G), G * q ** (G - 1), "1 − q^G"),
    }
    for name, (values, closed, _) in rows.items():
        assert np.allclose(values, closed, rtol=1e-6), name
    return {name: (values / values[1], climbs) for name, (values, _, climbs) in rows.items()}


def short(ratio):
    return "> 1000" if ratio > 1000 else "< .001" if ratio < 0.001 else f"{ratio:.2f}"


def chen(reward, others, N, K=4):
    """Pass@K training, standardised, all K-subsets of N answers as groups."""
    wrong = N - others - reward
    mean = 1 - math.comb(wrong, K) / math.comb(N, K)
    if mean in (0, 1):
        return 0.0
    own = 1 - mean - (0 if reward else math.comb(wrong - 1, K - 1) / math.comb(N - 1, K - 1))
    return own / math.sqrt(mean * (1 - mean))


p_some = np.array([0.1, 0.2, 0.4])
pass_at_4 = slope(lambda p: 2 / 4 * np.arcsin(np.sqrt(1 - (1 - p) ** 4)), p_some)
assert np.allclose(identity.weight(chen, p_some, 500), pass_at_4, rtol=0.02)

small, large = table(8), table(64)
print("weight relative to p = .5          G = 8                G = 64")
print("                                 p = .02   p = .98     p = .02   p = .98    climbs")
for name, (values, climbs) in small.items():
    others = large[name][0]
    cells = [f"{short(ratio):>7}" for ratio in (values[0], values[2], others[0], others[2])]
    print(f"{name:31}  {cells[0]}   {cells[1]}     {cells[2]}   {cells[3]}    {climbs}".rstrip())

# %% [markdown]
# - **The order on hard prompts**: RLOO 1, GRPO at most $\sqrt{G-1}$, MaxRL
#   ([2602.02710](https://arxiv.org/abs/2602.02710)) at most G − 1, log p without a bound.
# - **GRPO raises the weight of easy prompts as much as that of hard ones.** MaxRL and pass@G lower that of easy ones.
# - **Rejection sampling (RFT)**, the mean over the right answers, climbs $\log p$ up to order G (exercise 3). MaxRL's
#   Algorithm 1 zeroes the advantages of an all-wrong group, which makes it order G − 1.
# - Replacing silent prompts, DAPO's way, changes no ratio. Redrawing the same prompt does ([lesson 10](10_dapo.ipynb)).
# - Training on pass@K with *standardised* rewards (Chen et al., [2508.10751](https://arxiv.org/abs/2508.10751)) climbs
#   $\frac2K\arcsin\sqrt{1-q^K}$, for many groups a prompt: GRPO's arcsine, of pass@K.
#
# All this holds on the first step after sampling, without clip and KL. With $1/|y|$ nothing that depends on $p$ alone
# is climbed ([lesson 5](05_length.ipynb)).
#
# ## Try it

# %%
CHOICES = ["GRPO", "Dr. GRPO", "MaxRL", "mean over the right", "pass@G", "GRPO, divided by sigma twice"]


def draw(rule, G):
    figure, (left, right) = new_figure(10, 3.6, columns=2)
    h = identity.objective(rule, p_axis, G)
    left.plot(grid, identity.weight(rule, grid, G) / h[-1], color=BLUE)
    left.axhline(1, color=ORANGE, linewidth=1.2)
    left.plot(grid, identity.weight_limit(grid) / np.pi, "--", color=GREY, linewidth=1.2)
    left.set(
        xscale="logit",
        yscale="log",
        ylim=(0.05, 80),
        xlabel="p",
        title=f"{rule}, G = {G}: w(p) / its mean",
    )
    left.set_xticks([0.01, 0.1, 0.5, 0.9, 0.99], [".01", ".1", ".5", ".9", ".99"])
    left.set_xticks([], minor=True)
    left.set_yticks([0.1, 1, 10], [".1", "1", "10"])
    right.plot(p_axis, h / h[-1], color=BLUE)
    right.plot(p_axis, p_axis, color=ORANGE, linewidth=1.2)
    right.plot(p_axis, 2 / np.pi * np.arcsin(np.sqrt(p_axis)), "--", color=GREY, linewidth=1.2)
    right.set(title="h(p) / h(1)", xlabel="p", xlim=(0, 1), ylim=(0, 1.05))
    for y, name, color in ((0.26, rule, BLUE), (0.16, "Dr. GRPO", ORANGE), (0.06, "GRPO, G → ∞ (dashed)", GREY)):
        right.text(0.97, y, name, color=color, ha="right")
    return figure


knob(draw, rule=CHOICES, G=(2, 64, 1, 8))

# %% [markdown]
# *Move G from 2 upwards under GRPO: the weight is flat at 2 and 3, then rises at both edges.*
#
# ## The paper's controlled run
#
# Section 8 of the paper trains 6,000 prompts, each a coin with a logit of its own, for 150 steps at G = 8, starting
# from Big-Math's solve rates strictly between 0 and 1, clipped to [.02, .98]. Each step adds the learning rate, 0.5,
# times the update of one group: σ under GRPO, σ² under Dr. GRPO. Its "DAPO" arm redraws the *same* prompt, up to three
# more times (its section 5 describes DAPO as it is: prompts are discarded). The hardest quartile of the prompts ends at
# .99, .88 and (read off the figure) .998, and the paper concludes that GRPO's bias "changes the learning trajectory" of
# hard prompts. It says, too, that this is a check of the formulas on scalar prompts, and a language model "the natural
# next test".
#
# Here is the run (`controlled_run.py`). We start from a reconstruction of Big-Math
# ([lesson 8](08_silent_groups.ipynb)), not from the data: its mean is .516, the data's .4845. So a second start tilts
# it to that mean and sets the bars at 1/64 and 63/64 to what the paper's histogram shows, 6.8 and 4.1 %.

# %%
SEEDS = range(4)
share = bigmath.reconstruct()
starts = {"reconstruction": share, "made harder": controlled_run.harder(share)}
PAPER = ("GRPO", "Dr. GRPO", "same-prompt redraw")
TWICE, MATCHED, DAPO = (
    "Dr. GRPO, twice the learning rate",
    "Dr. GRPO, matched mean step",
    "DAPO: other prompts, equal samples",
)
results = {
    "reconstruction": run_arms(share, SEEDS, (*PAPER, TWICE, MATCHED, DAPO)),
    "made harder": run_arms(starts["made harder"], SEEDS, PAPER),
}


def summary(values, digits=3):
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}"


print(f"mean ± standard deviation, {len(SEEDS)} seeds      reconstruction    made harder       published")
for name in PAPER:
    finals = {where: [r.hard[-1] for r in results[where][name]] for where in starts}
    cells = "     ".join(summary(f) for f in finals.values())
    print(f"hardest quartile, {name:20}  {cells}     {controlled_run.PUBLISHED[name]}")
    sd = max(np.std(finals["made harder"], ddof=1), 0.002)  # .99 is printed for .993
    assert abs(np.mean(finals["made harder"]) - controlled_run.PUBLISHED[name]) < 3 * sd
for rule, published in (("GRPO", 17.0), ("Dr. GRPO", 14.3)):
    shares = [[100 * controlled_run.extreme_share(rule, start(s, seed)) for seed in SEEDS] for s in starts.values()]
    cells = "       ".join(summary(s, 1) for s in shares)
    print(f"% of updates, extreme tenths, {rule:8}  {cells}       {published}")
    assert abs(np.mean(shares[1]) - published) < 3 * np.std(shares[1], ddof=1)
costs = [np.mean([r.groups[-1] / 150 for r in results[where]["same-prompt redraw"]]) for where in starts]
fits = [np.mean([controlled_run.r_squared(r) for r in results[where]["GRPO"]]) for where in starts]
print(f"oversampling, same-prompt redraw        {costs[0]:.2f}              {costs[1]:.2f}              3.5")
print(f"R² of the silent share, GRPO            {fits[0]:.4f}            {fits[1]:.4f}            .999")
assert abs(costs[1] - 3.5) < 0.05 and abs(fits[1] - 0.999) < 0.001

# %% [markdown]
# The numbers come out, but for Dr. GRPO's, which has not arrived yet and so depends on the start. From the easier
# reconstruction it gets three points further than the paper's, from the harder start one to two (the paper's figure
# shows .8833), two to three standard deviations: an unlucky draw of 6,000 problems, or what three numbers do not mend.
#
# ## What remains of it
#
# All arms have the learning rate 0.5, which stands only in the script. But $\sigma \le \frac12$ makes
# $\sigma \ge 2\sigma^2$: GRPO's steps are at least twice as long, on every prompt, easy ones included. So: the same run
# with Dr. GRPO's mean step matched at the start, with DAPO's *real* prompt replacement (batches of 500 from shuffled
# passes, silent groups thrown away, more batches drawn until there are 500 mixed groups; stopped after as many samples
# as GRPO draws), and compared at equal progress. Finally, a run in which prompts **compete**: the mean push of all
# prompts is subtracted from each, so that the sum of the logits stays, and one prompt's gain is the others' loss.

# %%
ours = results["reconstruction"]
print("hardest quartile at the end")
ended = {name: np.mean([r.hard[-1] for r in runs]) for name, runs in ours.items()}
for name, wanted in (("GRPO", 0.993), (TWICE, 0.988), (MATCHED, 0.991), (DAPO, 0.992)):
    assert abs(ended[name] - wanted) < 0.0015
    print(f"    {name:36} {summary([r.hard[-1] for r in ours[name]], 4)}")
rate = np.mean([controlled_run.matched_learning_rate("Dr. GRPO", start(share, seed), 8, 0.5) / 0.5 for seed in SEEDS])
print(f"(matched: learning rate x {rate:.2f})\n")


def lead(name, level):
    """On the hardest quartile, over Dr. GRPO from the same start, when all prompts together are at `level`."""
    return np.array([at_progress(a, level) - at_progress(b, level) for a, b in zip(ours[name], ours[MATCHED])])


print("lead over Dr. GRPO on the hardest quartile, when all prompts together are at")
print(" " * 42 + "   ".join(f"{level:<14}" for level in (0.7, 0.8, 0.9)).rstrip())
for name in ("GRPO", DAPO, "same-prompt redraw"):
    leads = [lead(name, level) for level in (0.7, 0.8, 0.9)]
    print(f"    {name:36}  " + "   ".join(f"{d.mean():+.3f} ± {d.std(ddof=1):.3f}" for d in leads))
assert (
    0.005 < lead("GRPO", 0.7).mean() < 0.015
    and abs(lead("GRPO", 0.8).mean()) < 0.004
    and abs(lead("GRPO", 0.9).mean()) < 0.002
)
assert max(lead("GRPO", level).mean() for level in np.linspace(0.52, 0.98, 47)) < 0.0105  # nowhere more than a point
assert lead("same-prompt redraw", 0.7).mean() > 3 * lead("GRPO", 0.7).mean()
smallest = min(r.smallest_update for runs in ours.values() for r in runs)
assert smallest == 0
for name in ("same-prompt redraw", DAPO):  # behind, for the same samples
    for plain, other in zip(ours["GRPO"], ours[name]):
        assert (np.interp(np.arange(5, 151), other.groups, other.hard) < plain.hard[5:]).all()
print(f"\nsmallest update of any prompt in any arm: {smallest:g}")

fits = {n: [run("GRPO", start(share, seed, n), seed) for seed in SEEDS] for n in (60, 600)} | {6000: ours["GRPO"]}
print("\nR² of the silent share with   60        600       6,000 prompts")
for name, value in (("measured", controlled_run.r_squared), ("from sampling alone", controlled_run.expected_r_squared)):
    means = [np.mean([value(r) for r in runs]) for runs in fits.values()]
    print(f"    {name:24}  " + "    ".join(f"{mean:.4f}" for mean in means))
assert abs(means[0] - 0.94) < 0.02 and abs(means[2] - 0.9994) < 0.0002

rivals, gaps = {}, {}
for size in (3, 8, 64):
    for rule in ("GRPO", "Dr. GRPO"):
        for seed in SEEDS if size > 3 else [0]:
            p0 = start(share, seed)
            rate = controlled_run.matched_learning_rate(rule, p0, size, 0.5)
            rivals.setdefault((rule, size), []).append(run(rule, p0, seed, G=size, compete=1.0, learning_rate=rate))
assert np.allclose(rivals["GRPO", 3][0].p, rivals["Dr. GRPO", 3][0].p, rtol=1e-9)
print("\nprompts compete: hardest quartile at the end   GRPO    Dr. GRPO    difference")
for size in (3, 8, 64):
    ends = [np.array([r.hard[-1] for r in rivals[rule, size]]) for rule in ("GRPO", "Dr. GRPO")]
    gaps[size] = ends[0] - ends[1]
    gap = summary(gaps[size]) if size > 3 else "0, every update is the same"
    assert {3: -1, 8: 0.02, 64: 0.08}[size] < gaps[size].min()
    print(f"    G = {size:2} {'':36} {ends[0].mean():.3f}    {ends[1].mean():.3f}      {gap}")

figure, (left, middle, right) = new_figure(13.2, 4.0, columns=3)
for name, color, style in (
    ("GRPO", BLUE, "-"),
    (MATCHED, ORANGE, "-"),
    ("Dr. GRPO", ORANGE, ":"),
    (DAPO, GREEN, "--"),
    ("same-prompt redraw", RED, "-."),
):
    one = ours[name][0]
    inside = one.groups <= 150
    left.plot(one.groups[inside], one.hard[inside], style, color=color, linewidth=1.6)
for y, name, color in (
    (0.44, "GRPO (solid)", BLUE),
    (0.35, "DAPO, other prompts (dashed)", GREEN),
    (0.26, "Dr. GRPO, same mean step (solid)", ORANGE),
    (0.17, "Dr. GRPO, same learning rate (dotted)", ORANGE),
    (0.08, "same prompt redrawn (dash-dot)", RED),
):
    left.text(148, y, name, color=color, fontsize=9, ha="right")
left.set(
    title="Hardest quartile, for the same samples", xlabel="groups drawn per prompt", xlim=(0, 150), ylim=(0, 1.02)
)
levels = np.linspace(0.52, 0.98, 93)
for name, color, style in (("same-prompt redraw", RED, "-."), (DAPO, GREEN, "--"), ("GRPO", BLUE, "-")):
    leads = np.array([lead(name, level) for level in levels])
    middle.plot(levels, leads.mean(axis=1), style, color=color)
    middle.fill_between(levels, leads.min(axis=1), leads.max(axis=1), color=color, alpha=0.2, linewidth=0)
middle.axhline(0, color=ORANGE)
for x, y, text, color in (
    (0.74, 0.042, "same prompt redrawn", RED),
    (0.51, -0.0045, "GRPO (solid)", BLUE),
    (0.51, -0.0095, "DAPO, other prompts (dashed)", GREEN),
    (0.51, -0.0145, "0 is Dr. GRPO, same mean step", ORANGE),
):
    middle.text(x, y, text, color=color, fontsize=9, va="center")
middle.set(
    title="Its lead over Dr. GRPO, at equal progress", xlabel="mean solve rate of all prompts", ylim=(-0.018, 0.05)
)
for (rule, size), runs in rivals.items():
    if size != 3:
        curve, color = np.mean([r.hard for r in runs], axis=0), BLUE if rule == "GRPO" else ORANGE
        right.plot(curve, "-" if size == 8 else "--", color=color)
        label_line(
            right, 150, curve[-1] + (0.004 if size == 8 else -0.004) * (rule != "GRPO"), f"{rule}, G = {size}", color
        )
right.set(title="The same where prompts compete", xlabel="step", ylim=(0, 0.2), xlim=(0, 235))
right.set_xticks([0, 50, 100, 150])
show(figure)

# %% [text]
# *Left: the equal learning rate made the gap (one seed). Middle: what is left of it (range over seeds shaded). Right:
# the bias where prompts compete (mean of four seeds).*
#
# **So what remains of ".99 against .88"? A point.** Twice the learning rate brings Dr. GRPO to {=ended[TWICE]:.4f}, the
# matched step to {=ended[MATCHED]:.4f}; GRPO has {=ended["GRPO"]:.4f}. At equal progress GRPO's lead on the hardest
# quartile is {=100 * lead("GRPO", 0.7).mean():.1f} points when all prompts together are at .7, where it is largest,
# {=100 * lead("GRPO", 0.8).mean():.1f} at .8 and none at .9. DAPO with real prompt replacement stays near it
# ({=100 * lead(DAPO, 0.7).mean():.1f} points at .7). Only the redraw of the same prompt, which is not DAPO, has other
# weights ({=100 * lead("same-prompt redraw", 0.7).mean():.1f}). For the same samples both are behind GRPO: the one
# discards what overfills a batch, the other spends four draws on solved prompts.
#
# The R² of .999 compares an average over 6,000 prompts with its own expectation: sampling alone predicts it, and
# predicts .94 for 60 prompts. It checks the code. And no update in the run is ever negative: with one parameter a
# prompt the contrast is always 1, as the paper says. No prompt can lose, none is in another's way: all rise towards 1,
# and the rule decides only in which order. Where prompts compete, the two rules do part: GRPO's hardest quartile ends
# {=100 * gaps[8].mean():.0f} points higher at G = 8, {=100 * gaps[64].mean():.0f} at G = 64, and not at all at G = 3,
# as the weights say. **The bias is real; where no prompt can lose, at G = 8, it is worth a point.** (Our competition is
# a caricature as well. Real prompts share parameters unevenly, may help each other, and single updates can point the
# wrong way, as some did in the first check.)
#
# ## Exercises
#
# **1. Derive the arcsine.** For large G GRPO's weight is $1/\sqrt{p(1-p)}$. Which $h$ with $h(0) = 0$ has this
# derivative?


# %% [exercise]
def climbed(p):
    """h(p)."""
    return ...


# %% [check]
def integral(p):
    """Of 1 / sqrt(x (1 - x)) from 0 to p, numerically: with x = p t^2 the integrand is smooth."""
    t, weights = np.polynomial.legendre.leggauss(80)
    t, weights = (t + 1) / 2, weights / 2
    return 2 * np.sqrt(p) * (weights / np.sqrt(1 - p * t**2)).sum()


check(
    climbed,
    integral,
    inputs=[{"p": 0.0}, {"p": 0.1}, {"p": 0.5}, {"p": 0.9}],
    mistakes={
        "factor: the derivative of this is half of it": lambda p: np.arcsin(np.sqrt(p)),
        "this is w itself; you want its integral": lambda p: 1 / np.sqrt(p * (1 - p)) if p else np.inf,
        "the root is missing: put p = sin² u": lambda p: 2 * np.arcsin(p),
    },
)

# %% [hint]
# Put $p = \sin^2 u$. Then $dp = 2 \sin u \cos u\, du$, and $\sqrt{p(1-p)} = \sin u \cos u$.


# %% [solution]
def climbed(p):
    return 2 * np.arcsin(np.sqrt(p))


# %% [wrong] factor
def climbed(p):
    return np.arcsin(np.sqrt(p))


# %% [wrong] this is w itself
def climbed(p):
    return 1 / np.sqrt(p * (1 - p)) if p else np.inf


# %% [wrong] the root is missing
def climbed(p):
    return 2 * np.arcsin(p)


# %% [markdown]
# **2. The cap, by hand.** As $p \to 0$ only one outcome of the others survives in
# $w(p) = \mathbb E_S[A(+\mid S) - A(-\mid S)]$. What are GRPO's two advantages there, and so its weight at $p = 0$?


# %% [exercise]
def at_the_edge(G):
    """(A of a right answer, A of a wrong answer, weight) for p -> 0."""
    return ...


# %% [check]
def from_the_script(G):
    lone, none = (
        grpo.compute_advantages(rewards=(torch.arange(G) < n).double().view(1, G))[0, 0].item() for n in (1, 0)
    )
    return lone, none, float(identity.weight("GRPO", 0.0, G))


check(
    at_the_edge,
    from_the_script,
    inputs=[{"G": 2}, {"G": 8}, {"G": 64}],
    mistakes={
        "a wrong answer among wrong ones is in a silent group: its advantage is 0": lambda G: (
            math.sqrt(G - 1),
            -1 / math.sqrt(G - 1),
            G / math.sqrt(G - 1),
        ),
        "that is Dr. GRPO's: divide by sigma": lambda G: (1 - 1 / G, 0, 1 - 1 / G),
        "the mean contains the own reward: 1 − 1/G over σ": lambda G: (math.sqrt(G), 0, math.sqrt(G)),
    },
)

# %% [hint]
# All others are wrong, S = 0. If the answer is right, $k = 1$, the mean is $1/G$ and $\sigma = \sqrt{G-1}/G$. If it is
# wrong too, the group is silent.


# %% [solution]
def at_the_edge(G):
    return math.sqrt(G - 1), 0, math.sqrt(G - 1)


# %% [wrong] its advantage is 0
def at_the_edge(G):
    return math.sqrt(G - 1), -1 / math.sqrt(G - 1), G / math.sqrt(G - 1)


# %% [wrong] Dr. GRPO's
def at_the_edge(G):
    return 1 - 1 / G, 0, 1 - 1 / G


# %% [wrong] the mean contains the own reward
def at_the_edge(G):
    return math.sqrt(G), 0, math.sqrt(G)


# %% [markdown]
# **3. Rejection sampling climbs log p, up to an order.** The mean of the scores of the right answers (0 if there is
# none) has the weight $(1 - q^G)/p$. Since $p = 1 - q$, this is a geometric sum. Integrate it: which $h$ with
# $h(0) = 0$?


# %% [exercise]
def climbed_by_rft(p, G):
    """h(p): a sum over powers of q = 1 - p."""
    return ...


# %% [check]
check(
    climbed_by_rft,
    lambda p, G: float(identity.objective("mean over the right", p, G)),
    inputs=[{"p": 0.3, "G": 2}, {"p": 0.05, "G": 8}, {"p": 0.9, "G": 5}],
    mistakes={
        "one power is missing: this is MaxRL's, of order G − 1": lambda p, G: sum(
            (1 - (1 - p) ** j) / j for j in range(1, G)
        ),
        "this is right up to a constant: make h(0) = 0": lambda p, G: -sum((1 - p) ** j / j for j in range(1, G + 1)),
        "this is the limit for G → ∞, where h(0) = −∞": lambda p, G: math.log(p),
    },
)

# %% [hint]
# $\frac{1-q^G}{1-q} = 1 + q + \dots + q^{G-1}$, and the integral of $q^{j-1}$ over $p$ from 0 is $(1 - q^j)/j$. For
# $G \to \infty$, $-\sum_j q^j/j = \log(1-q) = \log p$.


# %% [solution]
def climbed_by_rft(p, G):
    return sum((1 - (1 - p) ** j) / j for j in range(1, G + 1))


# %% [wrong] one power is missing
def climbed_by_rft(p, G):
    return sum((1 - (1 - p) ** j) / j for j in range(1, G))


# %% [wrong] right up to a constant
def climbed_by_rft(p, G):
    return -sum((1 - p) ** j / j for j in range(1, G + 1))


# %% [wrong] this is the limit
def climbed_by_rft(p, G):
    return math.log(p)


# %% [markdown]
# **4. Climb the log-odds.** $\log\frac{p}{q}$ has the derivative $\frac1{pq}$. Write the advantage rule that has this
# weight for $G \to \infty$: GRPO's, divided by σ once more. (The check puts your rule through `identity.weight`.)


# %% [exercise]
def log_odds_rule(reward, others, G):
    """Advantage of an answer with this reward (0 or 1) when `others` of the other G - 1 are right."""
    return ...


# %% [check]
def weight_of(rule):
    return lambda p, G: None if rule(1, 1, 4) in (None, ...) else float(identity.weight(rule, p, G))


check(
    weight_of(log_odds_rule),
    lambda p, G: (1 - p**G - (1 - p) ** G) / (p * (1 - p)),  # mixed groups of all, over p q
    inputs=[{"p": 0.1, "G": 4}, {"p": 0.5, "G": 8}, {"p": 0.95, "G": 16}],
    mistakes={
        "that is GRPO: divide by σ once more": lambda p, G: float(identity.weight("GRPO", p, G)),
        "k is the number of right answers with the own one: others + reward": weight_of(
            lambda reward, others, G: (reward - others / G) / (others * (G - others) / G**2) if 0 < others < G else 0.0
        ),
    },
)

# %% [hint]
# $k = $ `others + reward`, $\sigma^2 = k(G-k)/G^2$. A silent group gets 0.


# %% [solution]
def log_odds_rule(reward, others, G):
    k = others + reward
    return (reward - k / G) / (k * (G - k) / G**2) if 0 < k < G else 0.0


# %% [wrong] that is GRPO
def log_odds_rule(reward, others, G):
    k = others + reward
    return (reward - k / G) / (math.sqrt(k * (G - k)) / G) if 0 < k < G else 0.0


# %% [wrong] with the own one
def log_odds_rule(reward, others, G):
    return (reward - others / G) / (others * (G - others) / G**2) if 0 < others < G else 0.0


# %% [wrong] ZeroDivisionError
def log_odds_rule(reward, others, G):
    k = others + reward
    return (reward - k / G) / (k * (G - k) / G**2)


# %% [markdown]
# **5. Find the bug.** This wants GRPO's weight: over all groups, the advantage of a right answer minus that of a wrong
# one. It says that at G = 3 a prompt of $p = .02$ has a twelfth of the weight of one of $p = .5$. Repair it.


# %% [exercise]
def grpo_weight(p, G):
    total = 0.0
    for k in range(1, G):  # a mixed group with k right
        chance = math.comb(G, k) * p**k * (1 - p) ** (G - k)
        right, wrong = math.sqrt((G - k) / k), -math.sqrt(k / (G - k))
        total += chance * (right - wrong)
    return total


# %% [check]
def buggy(p, G):
    return sum(math.comb(G, k) * p**k * (1 - p) ** (G - k) * G / math.sqrt(k * (G - k)) for k in range(1, G))


def also_wrong(p, G, chance_of):
    """Right and wrong as they should be, from S = 1 on or with the wrong number of others."""
    return sum(
        chance_of(S) * (math.sqrt((G - S - 1) / (S + 1)) + (math.sqrt(S / (G - S)) if S < G else 0)) for S in range(G)
    )


assert round(buggy(0.02, 3) / buggy(0.5, 3), 2) == 0.08  # a twelfth
check(
    grpo_weight,
    lambda p, G: float(identity.expected_sigma(p, G)) / (p * (1 - p)),
    inputs=[{"p": 0.02, "G": 3}, {"p": 0.5, "G": 8}, {"p": 0.9, "G": 5}],
    bug=buggy,
    mistakes={
        "the weight is no share of the mixed groups: a right and a wrong answer of one group see different others": (
            lambda p, G: buggy(p, G) / (1 - identity.silent_rate(p, G))
        ),
        "S counts the others, of whom there are G − 1": lambda p, G: also_wrong(
            p, G, lambda S: math.comb(G, S) * p**S * (1 - p) ** (G - S)
        ),
        "S = 0 and S = G − 1 count too: there the own reward makes the group mixed": lambda p, G: also_wrong(
            p, G, lambda S: math.comb(G - 1, S) * p**S * (1 - p) ** (G - 1 - S) * (0 < S < G - 1)
        ),
    },
)

# %% [hint]
# The formula holds the *others* fixed, $S \sim \mathrm{Bin}(G-1, p)$, and lets the one answer be right ($k = S+1$) or
# wrong ($k = S$). The code compares two answers of one group: for the right one $k-1$ others are right, for the wrong
# one $k$.


# %% [solution]
def grpo_weight(p, G):
    total = 0.0
    for S in range(G):
        chance = math.comb(G - 1, S) * p**S * (1 - p) ** (G - 1 - S)
        right = math.sqrt((G - S - 1) / (S + 1))  # k = S + 1; 0 if all are right
        wrong = -math.sqrt(S / (G - S))  # k = S; 0 if all are wrong
        total += chance * (right - wrong)
    return total


# %% [wrong] no share of the mixed groups
def grpo_weight(p, G):
    return sum(math.comb(G, k) * p**k * (1 - p) ** (G - k) * G / math.sqrt(k * (G - k)) for k in range(1, G)) / (
        1 - p**G - (1 - p) ** G
    )


# %% [wrong] S counts the others
def grpo_weight(p, G):
    total = 0.0
    for S in range(G):
        chance = math.comb(G, S) * p**S * (1 - p) ** (G - S)
        total += chance * (math.sqrt((G - S - 1) / (S + 1)) + math.sqrt(S / (G - S)))
    return total


# %% [wrong] S = 0 and S = G − 1 count too
def grpo_weight(p, G):
    total = 0.0
    for S in range(1, G - 1):
        chance = math.comb(G - 1, S) * p**S * (1 - p) ** (G - 1 - S)
        total += chance * (math.sqrt((G - S - 1) / (S + 1)) + math.sqrt(S / (G - S)))
    return total


# %% [markdown]
# ## What to take along
#
# - One sum over the others, $w(p) = \mathbb E[A(+\mid S) - A(-\mid S)]$, says what any advantage rule climbs.
# - Dr. GRPO climbs $p$. GRPO's weight is flat at G = 2 and 3, capped at $\sqrt{G-1}$ (against a coin-flip prompt: 1.4
#   times at G = 8, 4 times at 64), and tends to the arcsine's slowly: at G = 64 its $h(1)$ is still 12 % short.
# - The difficulty bias decides who gains where prompts compete. A comparison at one learning rate, on prompts that
#   cannot lose, measures mostly the length of the step. Compare at matched steps, equal samples or equal progress.
#
# Next: [lesson 10](10_dapo.ipynb), DAPO, and why replacing prompts is not redrawing them.
#
# Sources: the formula for $w$ and the limits for GRPO and rejection sampling: Davis and Recht,
# [2510.13651](https://arxiv.org/abs/2510.13651); GRPO's arcsine also Thrampoulidis et al.,
# [2510.23049](https://arxiv.org/abs/2510.23049); the name "question-level difficulty bias": Dr. GRPO,
# [2503.20783](https://arxiv.org/abs/2503.20783), section 3.1; the run: the paper, section 8 and its script. The cap,
# G = 3, the comparisons at matched step and equal progress, and the competing prompts are ours.
