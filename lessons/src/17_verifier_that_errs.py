# %% [markdown] 35 minutes
# # 17 · A verifier that errs
#
# No verifier is perfect: it accepts some wrong completions and rejects some right ones. **Errors that do not depend on the text leave the
# direction of the expected update as it is and multiply it by $J$, one less both rates; how fast one learns is decided by the noise, to
# which acceptances add and rejections hardly. Errors that follow the text are another reward, and that is what is learnt.**
#
# | symbol | meaning |
# |---|---|
# | $R,\ \tilde R$ | whether a completion is right; the verdict, 1 if it passes |
# | $f,\ m$ | the probability that a wrong completion passes (false acceptance); that a right one does not (false rejection) |
# | $J$ | $1 - f - m$, Youden's index: 1 for a perfect verifier, 0 for a coin |
# | $p,\ \tilde p$ | the probability that a completion is right; that it passes, $f + Jp$ |
# | $q,\ \tilde q$ | $1-p$; $1-\tilde p$ |
# | $s,\ \sigma,\ G$ | the score $\nabla_\theta\log\pi_\theta(y)$; the standard deviation of a group's verdicts; its completions |
#
# ## Two lines
#
# Given the text, a verdict has the mean $\mathbb E[\tilde R \mid y] = f + J R$, and $\mathbb E\,s = 0$, so
#
# $$\mathbb E[\tilde R\,s] = J\,\mathbb E[R\,s] = J\,\nabla p .$$
#
# A group's advantages see verdicts only, so [lesson 7](07_group_size.ipynb) holds for them, with $\tilde p$ in place of $p$ and
# $\nabla\tilde p = J\,\nabla p$:
#
# $$\mathbb E[g] = w(\tilde p)\,J\,\nabla p, \qquad w_\text{GRPO} = \frac{\mathbb E[\sigma]}{\tilde p\,\tilde q}, \quad
# w_\text{Dr. GRPO} = \frac{G-1}{G} .$$
#
# DAPO replaces silent groups by other prompts, which divides by the share of groups that are kept: one factor for all prompts. We check this
# on a policy with six answers, over all groups of three and all their verdicts, through the scripts' own advantages:

# %% [fold]
from itertools import product

import numpy as np
import torch

from algorithms import dr_grpo, grpo
from lessons import identity
from lessons.experiments import erring, estimators
from lessons.experiments.grid import change, load_runs, markdown, short
from lessons.figures.lesson_17 import accuracy_and_rates
from lessons.kit import check, knob, say

# %%
pi = torch.tensor([0.5, -0.3, 0.1, 0.9, -1.2, 0.0], dtype=torch.float64).softmax(dim=0)
R, S = torch.tensor([1.0, 1, 0, 0, 0, 0], dtype=torch.float64), torch.eye(6, dtype=torch.float64) - pi  # scores in rows
f, m, G = 0.3, 0.1, 3
p, J = pi @ R, 1 - f - m
passes = f + J * R  # (6,) the probability that an answer passes
groups = torch.tensor([*product(range(6), repeat=G)])
verdicts = torch.tensor([*product([0.0, 1.0], repeat=G)], dtype=torch.float64)
chances = torch.where(verdicts == 1, passes[groups][:, None], 1 - passes[groups][:, None]).prod(
    dim=2
)  # (groups, verdicts)
chances = chances * pi[groups].prod(dim=1)[:, None]

for name, script in (("GRPO", grpo), ("Dr. GRPO", dr_grpo)):
    A = script.compute_advantages(rewards=verdicts)  # (verdicts, G)
    update = torch.einsum("gv,vi,gip->p", chances, A, S[groups]) / G
    predicted = identity.weight(name, float(f + J * p), G) * J * (pi * (R - p))
    print(f"{name}: relative error of E[g] < 1e-12:", bool((update - predicted).norm() / predicted.norm() < 1e-12))
silent = (chances * (verdicts == verdicts[:, :1]).all(dim=1)).sum()
print("silent share as predicted:", bool(abs(silent - identity.silent_rate(float(f + J * p), G)) < 1e-12))

# %% [markdown]
# ## Longer gradients, fewer silent groups, and less is learnt
#
# We train the model of arithmetic by GRPO, 40 batches of 256 completions, with verdicts that err at random, drawn anew for each completion
# (ten seeds; the true accuracy, on held-out problems). The same $J$ is made of acceptances, of rejections, and of both; below .2, where one
# kind alone would pass or fail nearly everything, mostly of one kind. *Before you look: at one $J$, which kind costs more?*


# %%
runs, aims = load_runs(erring.RESULTS), load_runs(erring.AIMS)
prompts = [prompt for run in estimators.published() if (run["task"], run["step"]) == ("arithmetic", 0)
           for prompt in run["of prompts"]]  # fmt: skip
v_right, v_wrong, squared = np.nanmedian([prompt["moments"][0][0][:3] for prompt in prompts], axis=0)


def rates(f, m, p=0.3, G=8):
    """The silent share of GRPO's groups, the root mean square of its update for one prompt, and the cosine with grad p
    of the mean of eight groups' updates, for the median prompt's scores."""
    seen, *moments = identity.with_errors(p, v_right, v_wrong, squared, f, m)
    progress = identity.weight("GRPO", seen, G) * (1 - f - m) * p * (1 - p) * squared**0.5
    square = identity.mean_square("GRPO", seen, G, *moments)
    return identity.silent_rate(seen, G), square**0.5, progress / np.sqrt(progress**2 + (square - progress**2) / 8)


def draw(f, m):
    return accuracy_and_rates(runs, f, m, rates(f, m), rates(0, 0))


knob(draw, f=(0.0, 0.9, 0.1, 0.3), m=(0.0, 0.9, 0.1, 0.3))

# %% [results]

# %% [markdown]
# ## Exercises
#
# **1. Which groups are silent?** How large is the share of silent groups, if the verifier errs?


# %% [exercise]
def silent_share(p, f, m, G):
    return ...


# %% [check]
check("17.1", silent_share)

# %% [hint]
# A group is silent if all of its completions pass, or none. What is the probability that one passes?


# %% [solution]
def silent_share(p, f, m, G):
    passes = f + (1 - f - m) * p
    return passes**G + (1 - passes) ** G


# %% [wrong] not which are right
def silent_share(p, f, m, G):
    return p**G + (1 - p) ** G


# %% [wrong] counted twice
def silent_share(p, f, m, G):
    passes = f + (1 - m) * p
    return passes**G + (1 - passes) ** G


# %% [wrong] fail, too
def silent_share(p, f, m, G):
    return (f + (1 - f - m) * p) ** G


# %% [markdown]
# **2. What an error costs.** Take REINFORCE, $\tilde R\,s$, with all scores equally long, and $p$ small enough that the noise is the mean square.
# How many times as many completions does it take for the signal-to-noise ratio that a perfect verifier has?


# %% [exercise]
def completions_needed(p, f, m):
    return ...


# %% [check]
check("17.2", completions_needed)

# %% [hint]
# n completions have the ratio n · signal² / noise. The signal is multiplied by J. The noise is the mean of R̃².


# %% [solution]
def completions_needed(p, f, m):
    J = 1 - f - m
    return (f + J * p) / p / J**2  # rejections alone: 1 / (1 - m); acceptances alone, for a small p: f / p / (1 - f)^2


# %% [wrong] also in the noise
def completions_needed(p, f, m):
    return 1 / (1 - f - m) ** 2


# %% [wrong] squared
def completions_needed(p, f, m):
    return (f + (1 - f - m) * p) / p / (1 - f - m)


# %% [wrong] the other way
def completions_needed(p, f, m):
    return p * (1 - f - m) ** 2 / (f + (1 - f - m) * p)


# %% [markdown]
# **3. Correct the verdicts.** With known rates, $(\tilde R - f)/J$ has the mean $R$ given the text: an unbiased reward. By which factors does it
# change the advantages of GRPO and of Dr. GRPO, if it is put in place of $\tilde R$?


# %% [exercise]
def factors(f, m):
    """Of GRPO, and of Dr. GRPO."""
    return ...


# %% [check]
check("17.3", factors)

# %% [hint]
# What do the group's mean and σ do to a reward to which a constant is added, and which is multiplied?


# %% [solution]
def factors(f, m):
    return 1.0, 1 / (
        1 - f - m
    )  # all of Dr. GRPO's alike, which AdamW takes out again: nothing is gained within a group


# %% [wrong] ÷ σ takes
def factors(f, m):
    return 1 / (1 - f - m), 1 / (1 - f - m)


# %% [wrong] multiplied back
def factors(f, m):
    return 1.0, 1 - f - m


# %% [markdown]
# **4. A coin as the verifier, and the clip.** The advantages 1 and −1 are equally probable, whatever the text. What is a token's expected push,
# as a multiple of $\nabla\log\pi$, under GRPO's clip at the ratio $\rho$?


# %% [exercise]
def mean_push(ratio, eps):
    return ...


# %% [check]
check("17.4", mean_push)

# %% [hint]
# Without a clip, the pushes ρ and −ρ cancel. Which of the two does the clip stop above 1 + ε, and which below 1 − ε?


# %% [solution]
def mean_push(ratio, eps):
    if ratio > 1 + eps:
        return -ratio / 2  # only A < 0 is left: back down
    return ratio / 2 if ratio < 1 - eps else 0.0  # only A > 0 is left: back up


# %% [wrong] cancel only
def mean_push(ratio, eps):
    return 0.0


# %% [wrong] exchanged
def mean_push(ratio, eps):
    if ratio > 1 + eps:
        return ratio / 2
    return -ratio / 2 if ratio < 1 - eps else 0.0


# %% [wrong] half of the time
def mean_push(ratio, eps):
    if ratio > 1 + eps:
        return -ratio
    return ratio if ratio < 1 - eps else 0.0


# %% [markdown]
# ## To remember
#
# - Random errors multiply the expected update by $J = 1-f-m$ and by the weight at the observed $\tilde p$: the direction stays while $J > 0$.
# - Fewer silent groups and longer gradients are no sign of more learning.
# - [results]
