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


def sampled_update(pi, sampler, R, of=None):
    """The mean of R times the score, over the sampler's answers. of: the model whose score it is,
    if it is not the policy."""
    return sampler * R - (sampler * R).sum() * (pi if of is None else of)


def online_update(pi, sampler, R):
    """The same over the policy's own answers."""
    return sampled_update(pi, pi, R)


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
            "those are the policy's own completions: here the sampler writes them": online_update,
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


def success(expected_update, start=0.02) -> list[float]:
    """The success probability of a prompt that begins at `start`, under expected updates on
    completions of the base: a softmax over five answers, the first right, at a rate of 2."""
    R, base, curve = np.eye(5)[0], np.array([start, *[(1 - start) / 4] * 4]), []
    z = np.log(base)
    for _ in range(61):
        pi = np.exp(z) / np.exp(z).sum()
        curve.append(pi[0])
        z = z + 2 * np.asarray(expected_update(pi, base, R), float)
    return curve


TRAINED = {
    "12.3": {
        "curve": success,
        "right": "your function: the base writes",
        "mistakes": {"the policy writes": online_update},
        "labels": ("updates", "p of a hard prompt"),
    },
}
