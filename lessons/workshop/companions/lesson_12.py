"""The pictures of lesson 12, and the right answers and usual mistakes of its exercises."""

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from lessons.identity import sigma
from lessons.workshop.notebook import RIGHT, WRONG, new_figure
from toy_env.rollout import Rollout

SHADES = LinearSegmentedColormap.from_list("w", [WRONG, "white", RIGHT], N=257)


def coefficients_of_a_group(
    data: Rollout, rewards: np.ndarray, w: np.ndarray, title: str, note: str
) -> Figure:
    """Lesson 12: the tokens of a group, one completion a row, in the colour of their coefficients;
    right ones first.

    w: the coefficients, (B, T), 0 off the mask. The largest has the darkest colour, and white is 0;
    beside a row stands the mean over its tokens.
    """
    lengths = data.mask.sum(dim=1).numpy()
    order, shown, end = np.argsort(-rewards, kind="stable"), w / abs(w).max(), lengths.max() - 0.1
    figure, axis = new_figure(8.5, 3.8)
    axis.imshow(shown[order], aspect="auto", cmap=SHADES, vmin=-1, vmax=1)
    axis.text(end, -0.85, "mean", va="center")
    for row, i in enumerate(order):
        for t, token in enumerate(f"{data.texts[i]}∎"[: lengths[i]]):
            color = "white" if abs(shown[i, t]) > 0.8 else "black"
            axis.text(t, row, token, ha="center", va="center", fontsize=10.5, color=color)
        mean = w[i].sum() / lengths[i]
        axis.text(end, row, f"{mean:+.3f}".replace("-", "−") if mean else "0", va="center")
    axis.axhline(rewards.sum() - 0.5, color="black", linewidth=1.2)
    axis.set_xticks([])
    axis.set_yticks(range(len(order)), ["right" if rewards[i] else "wrong" for i in order])
    axis.set(xlim=(-0.5, end + 1.6), ylim=(7.5, -0.5), xlabel=note)  # also where rows are fewer
    axis.set_title(title, pad=16)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    return figure


# Exercises; `notebook.check` explains the keys of CHECKS


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


def sampled_update(pi, sampler, R, times=1):
    """The mean of R times the score, over all of the sampler's answers, some times as long."""
    return times * (sampler * R - (sampler * R).sum() * pi)


def online_update(pi, sampler, R):
    """The same over the policy's own answers."""
    return sampled_update(pi, pi, R)


def kept_update(pi, sampler, R):
    """The mean over those of the sampler's answers that are right."""
    return sampled_update(pi, sampler, R) / (sampler @ R)


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
            "that divides by the completions kept: the mean is over all": kept_update,
            "the score belongs to the policy that learns, whoever wrote the completion": (
                lambda pi, sampler, R: sampled_update(sampler, sampler, R)
            ),
            "π is subtracted too often: a wrong completion has the coefficient 0": (
                lambda pi, sampler, R: sampler * R - pi
            ),
            "R is missing: all completions have the coefficient 1, as in SFT": (
                lambda pi, sampler, R: sampler - pi
            ),
        },
    },
    "12.3": {
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
            "Dr. GRPO: by C, not by the completion's own length": (
                lambda k, lengths, C: placed(k, lengths, lengths[0])
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
    "12.2": {
        "curve": success,
        "right": "the base writes, ÷ all",
        "mistakes": {
            "the policy writes, ÷ all": online_update,
            "the base writes, ÷ kept\n(half of its batch)": partial(sampled_update, times=2),
        },
        "labels": ("updates", "p of a hard prompt"),
    },
}
