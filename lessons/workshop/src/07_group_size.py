# %% [markdown] 40 minutes, without the second reading
# # 7 · How much should a group count?
#
# The course ended with [lesson 10](10_dapo.ipynb); what follows goes deeper. A verifier marks completions right or wrong, and a rule, such as
# GRPO (group relative policy optimization), turns the marks of a group of $G$ into advantages $A$. [Lessons 3](03_group_baseline.ipynb) and
# [6](06_identity.ipynb) proved: under *any* such rule a prompt's mean update is a multiple of $\nabla p$, the gradient of the probability $p$ of a right
# completion (first update after sampling, scores summed over tokens),
#
# $$\mathbb E[g] = w(p)\,\nabla p, \qquad w(p) = \mathbb E_j\big[A(\text{right}, j) - A(\text{wrong}, j)\big] \qquad (j \text{ of the } G-1 \text{ others are right})$$
#
# So on average rules differ by a factor, and for one prompt the learning rate makes up for it. It does not make up for noise. GRPO weighs a
# group by σ, the standard deviation of its marks, Dr. GRPO ("GRPO done right") by $\sigma^2$: one of the two is the noisier.
#
# **Guess:** how many more completions does the wrong one need for an update as little noisy? Twice as many? A half more? A tenth?
#
# > **A quarter more at most. However differently noisy right and wrong completions are, in groups of 8 GRPO needs at most 1.15 times the completions
# > of the best weight, and Dr. GRPO 1.25 times.**
# >
# > The best weight is one over a group's noise. (For one prompt, with no KL, Kullback–Leibler, penalty, counting the noise across $\nabla p$;
# > computed on a grid of $p$ from .001 to .999, not proved. With all noise counted: 1.02 and 1.08 on three prompts of our model.)
#
# ## Weights, and the noise we count
#
# Both push along the **contrast**, the mean score of a group's right completions less that of its wrong ones. So does a third rule, MaxRL. They differ in its
# weight $c(k)$, where $k$ of the $G$ completions are right (lesson 6):
#
# | rule | $c(k)$ in a mixed group |
# |---|---|
# | GRPO | $\sigma = \sqrt{k(G-k)}/G$ |
# | Dr. GRPO | $\sigma^2 = k(G-k)/G^2$ |
# | MaxRL (maximum likelihood reinforcement learning): Dr. GRPO's advantages, divided by the mean mark $k/G$ | $(G-k)/G$ |
#
# Whatever $k$ is, the contrast has the mean $\nabla p/(pq)$, with $q = 1 - p$. The rest is noise. Noise *along* $\nabla p$ makes one step longer and another
# shorter, all of them in the right direction or its opposite. Noise *across* $\nabla p$ turns a step: it does not (to first order) change $p$, but
# moves whatever else the model does. **So we count noise across $\nabla p$**, as its mean square, and all noise once at the end.
#
# ## The smallest case
#
# A policy has three completions and a logit for each. A is right and has probability ½; B and C are wrong and have ¼ each. A completion's
# **score** $s$ is the gradient of its log-probability: 1 at its own logit, less the three probabilities. So $s_A = (½, -¼, -¼)$,
# $s_B = (-½, ¾, -¼)$, $s_C = (-½, -¼, ¾)$, and $\nabla p = p\,s_A = (¼, -⅛, -⅛)$.
#
# Draw groups of three. In the mixed ones:
#
# | $k$ | group | probability | contrast | its part across $\nabla p$ | square |
# |---|---|---|---|---|---|
# | 1 | A, B, B | 3/32 | $(1, -1, 0)$ | $(0, -½, ½)$ | ½ |
# | 1 | A, C, C | 3/32 | $(1, 0, -1)$ | $(0, ½, -½)$ | ½ |
# | 1 | A, B, C | 6/32 | $(1, -½, -½)$ | 0 | 0 |
# | 2 | A, A, B | 6/32 | $(1, -1, 0)$ | $(0, -½, ½)$ | ½ |
# | 2 | A, A, C | 6/32 | $(1, 0, -1)$ | $(0, ½, -½)$ | ½ |
#
# Along $\nabla p$ all five agree: their common part is $(1, -½, -½) = 4\,\nabla p$. Across it the groups with $k = 1$ are quieter, for in half of them two
# different wrong scores cancel. The mean square is $n_1 = ¼$ for $k = 1$ and $n_2 = ½$ for $k = 2$; each $k$ occurs 12 times in 32.
#
# Should the quieter groups count more? With weights $c(1)$ and $c(2)$ the mean step is in proportion to $c(1) + c(2)$, the noise to
# $¼\,c(1)^2 + ½\,c(2)^2$. The mean of $N$ groups keeps the step and has $1/N$ of the noise. To be equally little noisy for its step, a rule
# needs completions in proportion to noise ÷ step²:
#
# | $c(1) : c(2)$ | the rule | noise ÷ step² | completions needed |
# |---|---|---|---|
# | 1 : 1 | GRPO, Dr. GRPO | .75 / 4 = .1875 | 1.125 |
# | **2 : 1** | **MaxRL** | **1.5 / 9 = .1667** | **1** |
# | 4 : 1 | | 4.5 / 25 = .1800 | 1.08 |
# | 1 : 0 | only $k = 1$ trains | .25 / 1 = .2500 | 1.5 |
#
# So groups half as noisy should count twice as much. Worst of these is to throw the noisier ones away.

# %% [fold]
import math

import numpy as np
import torch

from algorithms import dr_grpo, grpo, maxrl
from lessons import identity
from lessons.experiments import estimators
from lessons.workshop.companions.lesson_07 import needed_over_p
from lessons.workshop.notebook import check, say, show
from toy_env import arithmetic
from toy_env.model import load_policy

RULES = ("GRPO", "Dr. GRPO", "MaxRL")


def completions_needed(p, G, v_ratio, along=0):
    """Of each rule, over those of the best weight of the contrast. v_ratio: v₋/v₊; along: for
    all noise, |m₊ - m₋|²/v₊."""

    def noise(rule):  # over the square of the mean step
        step = identity.weight(rule, p, G) * p * (1 - p)
        return identity.mean_square(rule, p, G, 1, v_ratio, along) / step**2 - along

    best = noise(identity.contrast(lambda k, G: 1 / (along + 1 / k + v_ratio / (G - k))))
    return {name: noise(name) / best for name in RULES}


# The smallest case: scores (3, 3), and all groups of three
of_three, grad_p = torch.tensor([2.0, 1, 1]) / 4, torch.tensor([2.0, -1, -1]) / 8
groups, price = torch.cartesian_prod(*[torch.arange(3)] * 3), {}
chance = of_three[groups].prod(dim=1)
for name, script in zip(RULES, (grpo, dr_grpo, maxrl)):
    A = script.compute_advantages(rewards=(groups == 0).float())
    g = (A[..., None] * (torch.eye(3) - of_three)[groups]).mean(dim=1)  # (27, 3)
    w = float(chance @ g[:, 0] / grad_p[0])
    assert torch.allclose(chance @ g, w * grad_p)
    assert np.isclose(w, identity.weight(name, 0.5, 3))  # the formula above
    price[name] = float(chance @ (g[:, 1] - g[:, 2]).square()) / w**2
print("Over all 27 groups, by the scripts' own advantages, completions needed:",
      ", ".join(f"{name} {price[name] / price['MaxRL']:.3f}" for name in RULES))
assert np.allclose([price["GRPO"], price["Dr. GRPO"]], 1.125 * price["MaxRL"])

# %% [markdown]
# ## Why one over the noise
#
# The same holds for any number of values of $k$. Let $n_k$ be the mean square of the contrast's part across $\nabla p$. The step is in proportion to
# $\mathbb E[c]$, the noise is $\mathbb E[c^2 n]$ (means over the mixed groups). By the inequality of Cauchy and Schwarz
#
# $$\mathbb E[c]^2 = \mathbb E\Big[c\sqrt n \cdot \tfrac1{\sqrt n}\Big]^2 \le \mathbb E[c^2 n]\;\mathbb E\big[\tfrac1n\big], \qquad\text{so}\qquad
# \frac{\mathbb E[c^2 n]}{\mathbb E[c]^2} \ge \frac1{\mathbb E[1/n]}$$
#
# with equality where $c\sqrt n$ is in proportion to $1/\sqrt n$, that is, $c(k)$ to $1/n_k$. ∎ How often a $k$ occurs does not matter.
#
# It remains to find $n_k$. Completions are independent. Across $\nabla p$ their scores have mean 0, and the variance $v_+$ if they are right,
# $v_-$ if wrong. (In the example $v_+ = 0$ and $v_- = ½$.)
#
# **1. The noise of a contrast.** Write $n_k$. One over it is then the best weight.


# %% [exercise]
def contrast_noise(k, G, v_right, v_wrong):
    """n_k of a mixed group."""
    return ...


# %% [check]
check("7.1", contrast_noise)

# %% [hint]
# What is the variance of a mean of $k$ independent scores? And of the difference of two independent means? Test it on the example.


# %% [solution]
def contrast_noise(k, G, v_right, v_wrong):
    return v_right / k + v_wrong / (G - k)


# %% [markdown]
# <details><summary>After the exercise</summary>
#
# If right and wrong scores are equally noisy, $n_k$ is in proportion to $\frac1k + \frac1{G-k} = \frac{G}{k(G-k)}$, and the best weight to $k(G-k)$:
# Dr. GRPO's σ². If wrong ones are far noisier, it tends to a multiple of $G - k$, MaxRL's weight, as in the example; if right ones are, to one
# of $k$. **GRPO's σ is the geometric mean of these two ends**, $\sqrt{\frac kG \cdot \frac{G-k}G}$, and so not far from either.
#
# </details>
#
# ## On our model
#
# So the best weight depends on $v_-/v_+$. We measure it on our base model for the three prompts of lesson 6.

# %% [fold]
policy, tokenizer = load_policy("base")
generator, prompts, total, table = torch.Generator().manual_seed(6), {}, [], ""
for problem in arithmetic.held_out_problems(1, levels=(1, 2, 3)):
    pool = estimators.Completions.draw(policy, tokenizer, arithmetic, problem, 3072, generator)
    half, other = np.array_split(pool.drawn, 2)  # for the direction ∇p, and for the variances
    means = estimators.class_means(half, pool.right)[1]
    along = pool.inner @ (means[0] - means[1])
    along /= np.sqrt((means[0] - means[1]) @ along)  # of each score, in the direction of ∇p
    v_all, v = (np.array(estimators.moments(other, pool.right, inner))
                for inner in (pool.inner, pool.inner - np.outer(along, along)))
    p, ratio = pool.right[pool.drawn].mean(), v[1] / v[0]
    prompts[problem.prompt] = (p, ratio, needs := completions_needed(p, 8, ratio))
    total.append([*completions_needed(p, 8, *(v_all / v_all[0])[1:]).values()])
    cells = [f"{p:.2f}", f"{ratio:.0f}", *(f"{x:.2f}" for x in needs.values())]
    table += f"\n| `{problem.prompt}` | " + " | ".join(cells) + " |"

ps = np.linspace(0.01, 0.99, 99)
show(needed_over_p({f"{name}  $v_-/v_+$ = {r:.0f}": (completions_needed(ps, 8, r), p, needs)
                    for name, (p, r, needs) in prompts.items()}))
total = np.max(total, axis=0)
cells = " | ".join(f"{x:.2f}" for x in total)
say(f"""*Completions needed, where the best weight needs 1, in groups of 8. Curves: at the
prompt's $v_-/v_+$, over all p; dots: at its own p.*

| prompt | p | $v_-/v_+$ | GRPO needs | Dr. GRPO | MaxRL |
|---|---|---|---|---|---|{table}
| all noise counted, at most | | | {cells} |""")
all_p, ratios = np.linspace(0.001, 0.999, 999), [0, *10.0 ** np.arange(-3, 3.1, 0.25), 1e9]
everywhere = [completions_needed(all_p, 8, r) for r in ratios]
worst = {name: max(e[name].max() for e in everywhere) for name in RULES}
worst = {name: math.ceil(100 * x) / 100 for name, x in worst.items()}  # an upper bound
assert min(e[name].min() for e in everywhere for name in RULES) > 1 - 1e-12
assert [*worst.values()] == [1.15, 1.25, 1.74]  # the claim
nearest = [min(needs, key=needs.get) for *_, needs in prompts.values()]
assert nearest == ["MaxRL", "MaxRL", "GRPO"]
assert [*total.round(2)] == [1.02, 1.08, 1.29]  # the claim

# The second reading's comparison:
baseline = {}  # completions of the best R - b at p = 1/2, over those of the best weight
for r in (0.1, 1, 10):
    best = identity.efficiency(identity.contrast(identity.quietest(r)), 0.5, 8, r)
    constant = identity.efficiency(lambda R, others, G, b=1 / (1 + r): R - b, 0.5, 8, r)
    assert np.isclose(constant, (1 + r) * (1 + 1 / r) / 4)
    assert constant > max(identity.efficiency(name, 0.5, 8, r) for name in identity.RULES)
    baseline[r] = best / constant
assert np.isclose(baseline[0.1], baseline[10]) and baseline[10] < 1 / 3  # "far quieter"

# %% [text]
# Wrong scores are the noisier ones, so MaxRL is nearest to the best weight, except on the hardest prompt, where GRPO is. No rule needs more than
# {=max(max(needs.values()) for *_, needs in prompts.values()) - 1:.0%} more. With all noise counted (last row; another weight is best then)
# σ needs at most {=total[0] - 1:.0%} more, $\sigma^2$ {=total[1] - 1:.0%}. (Lesson 6's ratios are of all noise, too.)
#
# **So for one prompt's noise σ or $\sigma^2$ matters little**: the bounds in the box hold for $p$ from .001 to .999 and $v_-/v_+$ from 0 to a billion. (MaxRL: {=worst["MaxRL"]:.2f}.)
# A better *baseline* can gain more: see the second reading.

# %% [markdown]
# **2. The price of a weight.** Write how many times the completions of the best weight a weight $c$ needs. In the example,
# `needed` of `c = [1, 1]`, `n = [1/4, 1/2]` and `chance = [3/8, 3/8]` is 1.125.


# %% [exercise]
def needed(c, n, chance):
    """From arrays (numpy): for k = 1..G-1 the weight, the noise of the contrast, and how often
    k occurs."""
    return ...


# %% [check]
check("7.2", needed)

# %% [hint]
# What the weight $c$ needs, over what the best needs. The proof has both.


# %% [solution]
def needed(c, n, chance):
    return (chance @ (c**2 * n)) * (chance @ (1 / n)) / (chance @ c) ** 2


# %% [markdown]
# ## To remember
#
# - On average every rule moves a prompt along $\nabla p$. Across it there is noise, and the least noisy weight of a group is one over the noise of its
#   contrast.
# - In groups of 8 GRPO's and Dr. GRPO's weights are near the best. What they really choose between is prompts ([lesson 9](09_objective.ipynb)).
#
# ## For a second reading (25 minutes): a rule of your own, and which group size?
#
# **3. A rule of your own.** All completions of a group, right and wrong, get the advantage 1 if at least one of them is right, and 0 otherwise.
# What is $w(p)$?


# %% [exercise]
def step(p, G):
    """w(p) of this rule."""
    return ...


# %% [check]
check("7.3", step)

# %% [hint]
# Take the formula of the first lines. For which $j$ does it matter whether the completion itself is right?


# %% [solution]
def step(p, G):
    # A(right, j) is 1, and A(wrong, j) is 1, too, unless j = 0. So w is P(j = 0) = q^(G-1).
    # This is the slope of Pass@G, divided by G: the rule climbs the probability that at least
    # one of G completions is right.
    return (1 - p) ** (G - 1)


# %% [text]
# **Quieter than any weight.** Our best weight is the best of the contrast. Another rule, the mark less [lesson 1](01_score_function.ipynb)'s best
# baseline, can be far quieter: it needs {=baseline[10]:.2f} times the completions at $p = ½$ and $v_-/v_+ = 10$. But that baseline has to be estimated.
#
# **Which group size?** Our runs leave it open: batches of large groups also held fewer prompts ([all runs](experiments/README.md)).
#
# **A published rule** ([2607.00152](https://arxiv.org/abs/2607.00152), Cor. 1 and 2) says when σ is near its limit in large groups, $\sqrt{pq}$. It
# expands the **fidelity** $\varphi = \mathbb E[\sigma]/\sqrt{pq}$ and solves for $G$:
#
# $$\varphi \approx 1 - \frac{1}{8Gpq} \quad\Longrightarrow\quad G^\star = \frac{1}{8\,(1-\varphi)\,pq}$$
#
# Its Table 2 for 90 %, with the smallest $G$ that reaches it:

# %% [fold]
# As published, for .9, .95 and .99:
EXACT = {0.5: (7, 11, 51), 0.3: (9, 14, 61), 0.1: (22, 36, 144), 0.05: (42, 69, 273)}
RULE = {0.5: (5, 10, 50), 0.3: (6, 12, 60), 0.1: (14, 28, 139), 0.05: (26, 53, 263)}
print(" p     exact G    G*, rounded   fidelity at G*")
for p in EXACT:
    rising = np.diff([identity.fidelity(p, G) for G in range(2, 300)]) > 0
    assert rising.all()  # once reached, a target stays reached
    for target, exact, rule in zip((0.9, 0.95, 0.99), EXACT[p], RULE[p]):
        assert identity.group_size_exact(p, target) == exact
        assert round(float(identity.group_size_law(p, 1 - target))) == rule
        reached = float(identity.fidelity(p, rule))
        assert reached < target and rule < exact
        if target == 0.9:
            print(f"{p:<4}    {exact:4}     {rule:4}             {reached:.1%}")


p, G = 0.05, 800  # the next term of the expansion, ours
next_term = float(identity.fidelity(p, G) - identity.fidelity_expansion(p, G))
assert abs(next_term / (-(7 - 16 * p * (1 - p)) / (128 * (G * p * (1 - p)) ** 2)) - 1) < 0.05
# %% [text]
# *Read as an inequality, the rule misses its target in all twelve rows of that table*: the next term of the expansion is negative. And φ is a
# *length*: a longer step of one prompt, not a better one.

# %% [markdown]
# Sources: *GRPO, Dr. GRPO, and DAPO Are Three Operations on One Number*, [arXiv:2607.00152](https://arxiv.org/abs/2607.00152), Prop. 2 (for a
# prompt with a single parameter); weights of any rule: Davis and Recht, [2510.13651](https://arxiv.org/abs/2510.13651); MaxRL:
# [2602.02710](https://arxiv.org/abs/2602.02710); a weight of the group once $k$ is known, and its variance: RL2ML,
# [2605.30154](https://arxiv.org/abs/2605.30154) (abstract read). The bounds are ours.
