"""The pictures of lesson 12, and the right answers and usual mistakes of its exercises."""

from functools import partial
from itertools import zip_longest

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from lessons.identity import sigma
from lessons.workshop.kit import RIGHT, WRONG, new_figure

SHADES = LinearSegmentedColormap.from_list("w", [WRONG, "white", RIGHT])


def token_table(axis, texts: list[str], values: np.ndarray, dark: np.ndarray, size: float, **look):
    """Draw tokens, one completion a row, on the colours of their values, (B, T); there are none
    where the value is nan. dark: where they are white, (B, T); size: that of the font."""
    for row, t in np.argwhere(~np.isnan(values)):
        color = "white" if dark[row, t] else "black"
        token = f"{texts[row]}∎"[t]
        axis.text(t, row, token, ha="center", va="center", fontsize=size, color=color)
    axis.set_xticks([])
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    return axis.imshow(values, aspect="auto", **look)


def coefficients_of_a_group(
    texts: list[str], rewards: np.ndarray, w: list[np.ndarray], most: float, title: str
) -> Figure:
    """Lesson 12: the tokens of a group, one completion a row, in the colour of their coefficients;
    right ones first.

    w: the coefficients of each completion, (tokens,). The colours run from -most to most, and white
    is 0; beside a row stands the mean over its tokens, divided by most.
    """
    order, longest = np.argsort(-rewards, kind="stable"), max(map(len, w))
    shown = np.array([*zip_longest(*(w[i] for i in order), fillvalue=np.nan)]).T / most
    figure, axis = new_figure(8.5, 3.8)
    token_table(axis, [texts[i] for i in order], shown, abs(shown) > 0.8, 10.5, cmap=SHADES,
                vmin=-1, vmax=1)  # fmt: skip
    axis.text(longest - 0.1, -0.85, "mean", va="center")
    for row, mean in enumerate(np.nanmean(shown, axis=1)):
        text = f"{mean:+.2f}".replace("-", "−") if mean else "0"
        axis.text(longest - 0.1, row, text, va="center")
    axis.axhline(rewards.sum() - 0.5, color="black", linewidth=1.2)
    axis.set_yticks(range(len(texts)), ["right" if rewards[i] else "wrong" for i in order])
    axis.set_xlim(-0.5, longest + 1.5)
    axis.set_ylim(7.5, -0.5)  # eight rows, also where there are fewer
    axis.set_title(title, pad=16)
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def dpo(log_ratios: np.ndarray, rewards: np.ndarray, beta: float) -> np.ndarray:
    """The coefficients that DPO's loss of every pair gives: minus its gradient, by autograd."""
    leaf = torch.tensor(log_ratios, dtype=torch.float64, requires_grad=True)
    margins = leaf[rewards == 1].unsqueeze(1) - leaf[rewards == 0]  # (right, wrong)
    return torch.autograd.grad(F.logsigmoid(beta * margins).sum(), leaf)[0].numpy()


def placed(k: int, lengths: list[int], C: int, powers=(0, 1)) -> np.ndarray:
    """w of Dr. GRPO and of DAPO; their advantages are R - k/G over these powers of σ."""
    G = len(lengths)
    advantages = (1 - k / G) / sigma(k, G) ** np.array(powers)
    return advantages / [G * C, sum(lengths)]


MIXED = np.array([0.02, 0.1, 0.3, 0.6])  # success probabilities at the start
q = 1 - MIXED
# In groups of 8 a prompt's expected first update is as long as pq if A = R, and (1 - q^8) / p times
# as long for the mean over the right ones; this is for all of MIXED together
AS_LONG = np.linalg.norm(q - q**9) / np.linalg.norm(MIXED * q)
OVER_RIGHT = {
    "A = R, equal first step": lambda R: AS_LONG * R,
    "divided by G twice": lambda R: R / max(R.sum(), 1),
    "k = 0 not caught": lambda R: R * len(R) / R.sum(),
}


def sampled_update(pi, sampler, R, of=None):
    """The mean of R times the score, over the sampler's answers. of: the model whose score it is,
    if it is not the policy."""
    return sampler * R - (sampler * R).sum() * (pi if of is None else of)


some_log_ratios = np.array([1.5, -2.0, 0.0, 4.0, -7.0])

CHECKS = {
    "12.1": {
        "expected": dpo,
        "inputs": [
            {"log_ratios": some_log_ratios, "rewards": np.array([1.0, 0, 0, 1, 0]), "beta": 0.1},
            {"log_ratios": some_log_ratios, "rewards": np.array([0.0, 1, 1, 1, 0]), "beta": 0.5},
        ],
        "mistakes": {
            "the sign inside the sigmoid: a large margin should get less": (
                lambda log_ratios, rewards, beta: dpo(-log_ratios, rewards, beta)
            ),
        },
    },
    "12.2": {
        "expected": placed,
        "inputs": [
            {"k": 1, "lengths": [20, 4, 4, 8], "C": 56},
            {"k": 3, "lengths": [4, 20, 20, 8, 5], "C": 30},
        ],
        "mistakes": {
            "Dr. GRPO does not divide by σ": partial(placed, powers=(1, 1)),
            "DAPO's advantage is divided by σ": partial(placed, powers=(0, 0)),
            "σ doubles, too: DAPO's advantage is not doubled": (
                lambda k, lengths, C: placed(k, lengths, C) * [1, 2]
            ),
            "1 - mean doubles, too: DAPO's advantage is not halved": (
                lambda k, lengths, C: placed(k, lengths, C) * [1, 0.5]
            ),
            "Dr. GRPO: by C, not by the completion's own length": (
                lambda k, lengths, C: placed(k, lengths, lengths[0])
            ),
        },
    },
    "12.3": {
        "expected": lambda R: R * len(R) / max(R.sum(), 1),
        "inputs": [{"rewards": np.array(row)} for row in ([1.0, 0, 0, 1, 0], [0.0, 0, 0])],
        "mistakes": {
            "that is online RFT, a sum: a mean over the right ones also divides by their number": (
                lambda R: R
            ),
            "the loss of reinforce.py divides by G already: put G back": (
                OVER_RIGHT["divided by G twice"]
            ),
        },
    },
    "12.4": {
        "expected": sampled_update,
        "inputs": [
            {
                "pi": np.array([0.5, 0.2, 0.1, 0.15, 0.05]),
                "sampler": np.array([0.1, 0.3, 0.2, 0.15, 0.25]),
                "R": np.array(R),
            }
            for R in ([1.0, 0, 0, 0, 0], [0.0, 1, 0, 0, 1])
        ],
        "mistakes": {
            "those are the policy's own completions: here the sampler writes them": (
                lambda pi, sampler, R: sampled_update(pi, pi, R)
            ),
            "the score belongs to the policy that learns, whoever wrote the completion": (
                lambda pi, sampler, R: sampled_update(pi, sampler, R, of=sampler)
            ),
            "π is subtracted too often: a wrong completion has the coefficient 0": (
                lambda pi, sampler, R: sampler * R - pi
            ),
            "R is missing: all completions have the coefficient 1, as in SFT": (
                lambda pi, sampler, R: sampler - pi
            ),
        },
    },
}


def mean_success(mean_over_right, starts=MIXED[:1]) -> list[float]:
    """The success probability, the mean over 40 prompts that begin at these: a softmax over five
    answers, the first right, at a rate of .3. Where the logits are nan it counts as 0."""
    starts, generator, means = np.tile(starts, 40 // len(starts)), torch.Generator(), []
    z = F.pad(torch.tensor(np.log(4 * starts / (1 - starts))).view(-1, 1), (0, 4))
    generator.manual_seed(0)
    for _ in range(61):
        pi = z.softmax(dim=1)
        means.append(pi[:, 0].nan_to_num().mean().item())
        drawn = pi.nan_to_num(1).multinomial(8, True, generator=generator)
        with np.errstate(all="ignore"):
            A = [mean_over_right(R) for R in (drawn == 0).double().numpy()]
        score = F.one_hot(drawn, 5) - pi.unsqueeze(1)
        z = z + 0.3 * (torch.tensor(np.array(A, float)).unsqueeze(2) * score).mean(dim=1)
    return means


def mean_success_from_base(expected_update) -> list[float]:
    """The success probability, the mean over four prompts, under expected updates on completions
    of the base: a softmax over five answers, the first right, at a rate of 2."""
    starts, R, means = MIXED.reshape(4, 1), np.eye(5)[0], []
    base = np.hstack([starts, np.tile((1 - starts) / 4, 4)])
    z = np.log(base)
    for _ in range(61):
        pi = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        means.append(pi[:, 0].mean())
        z = z + 2 * np.array([expected_update(*pair, R) for pair in zip(pi, base)], float)
    return means


TRAINED = {
    "12.3": {
        "curve": mean_success,
        "mistakes": OVER_RIGHT,
        "labels": ("updates", "p, mean of 40 hard prompts"),
    },
    "12.4": {
        "curve": mean_success_from_base,
        "right": "your function: the base writes",
        "mistakes": {"the policy writes": lambda pi, sampler, R: sampled_update(pi, pi, R)},
        "labels": ("updates", "p, mean of four prompts"),
    },
}
