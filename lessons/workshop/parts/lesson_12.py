"""The pictures of lesson 12, and the right answers and usual mistakes of its exercises."""

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from lessons.workshop.kit import RIGHT, WRONG, new_figure

SHADES = LinearSegmentedColormap.from_list("w", [WRONG, "white", RIGHT])


def coefficients_of_a_group(
    texts: list[str], rewards: np.ndarray, w: list[np.ndarray], most: float, title: str
) -> Figure:
    """Lesson 12: the tokens of a group, one completion a row, in the colour of their coefficients;
    right ones first.

    w: the coefficients of each completion, (tokens,). The colours run from -most to most, and white
    is 0; beside a row stands the mean over its tokens, divided by most.
    """
    order, longest = np.argsort(-rewards, kind="stable"), max(map(len, w))
    figure, axis = new_figure(8.5, 0.36 * len(texts) + 0.9)
    shown = np.full((len(texts), longest), np.nan)
    for row, i in enumerate(order):
        shown[row, : len(w[i])] = w[i] / most
        for t in range(len(w[i])):
            token = texts[i][t] if t < len(texts[i]) else "∎"
            color = "white" if abs(shown[row, t]) > 0.8 else "black"
            axis.text(t, row, token, ha="center", va="center", fontsize=10.5, color=color)
        mean = f"{w[i].mean() / most:+.2f}".replace("-", "−") if w[i].any() else "0"
        axis.text(longest - 0.1, row, mean, ha="left", va="center", fontsize=10)
    axis.text(longest - 0.1, -0.85, "mean", ha="left", va="center", fontsize=10)
    axis.imshow(shown, cmap=SHADES, vmin=-1, vmax=1, aspect="auto")
    axis.axhline(rewards.sum() - 0.5, color="black", linewidth=1.2)
    axis.set_yticks(range(len(texts)), ["right" if rewards[i] else "wrong" for i in order])
    axis.set_xticks([])
    axis.set_xlim(-0.5, longest + 1.5)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    axis.set_title(title, pad=16)
    return figure


# Exercises; `kit.check` explains the keys of CHECKS


def dpo(log_ratios: np.ndarray, rewards: np.ndarray, beta: float) -> np.ndarray:
    """The coefficients that DPO's loss of every pair gives: minus its gradient, by autograd."""
    leaf = torch.tensor(log_ratios, dtype=torch.float64, requires_grad=True)
    margins = leaf[rewards == 1].unsqueeze(1) - leaf[rewards == 0]  # (right, wrong)
    return torch.autograd.grad(F.logsigmoid(beta * margins).sum(), leaf)[0].numpy()


def mean_margin(log_ratios: np.ndarray, rewards: np.ndarray, beta: float) -> np.ndarray:
    right = rewards == 1
    margin = log_ratios[right].mean() - log_ratios[~right].mean()
    return beta / (1 + np.exp(beta * margin)) * np.where(right, (~right).sum(), -right.sum())


def by_mean(k: int, G: int) -> float:
    """Dr. GRPO's advantage of a right completion."""
    return 1 - k / G


def by_sigma(k: int, G: int) -> float:
    """DAPO's advantage of a right completion."""
    return ((G - k) / k) ** 0.5


def dr_grpo_and_dapo(k: int, lengths: list[int], C: int) -> np.ndarray:
    G = len(lengths)
    return np.array([by_mean(k, G) / (G * C), by_sigma(k, G) / sum(lengths)])


some_log_ratios = np.array([1.5, -2.0, 0.0, 4.0, -7.0])

CHECKS = {
    "12.1": {
        "expected": dpo,
        "inputs": [
            {"log_ratios": some_log_ratios, "rewards": np.array([1.0, 0, 0, 1, 0]), "beta": 0.1},
            {"log_ratios": some_log_ratios, "rewards": np.array([0.0, 1, 1, 1, 0]), "beta": 0.5},
            {"log_ratios": np.zeros(5), "rewards": np.array([1.0, 0, 0, 0, 0]), "beta": 0.1},
        ],
        "mistakes": {
            "a factor is missing, the one that is missing in Eq. 14": (
                lambda log_ratios, rewards, beta: dpo(log_ratios, rewards, beta) / beta
            ),
            "the sign inside the sigmoid: a large margin should get less": (
                lambda log_ratios, rewards, beta: dpo(-log_ratios, rewards, beta)
            ),
            "every pair has a margin of its own: the mean margin will not do": mean_margin,
            "a wrong completion is pushed down, by its pairs": (
                lambda log_ratios, rewards, beta: dpo(log_ratios, rewards, beta).clip(min=0)
            ),
            "beta stands inside the sigmoid, too": (
                lambda log_ratios, rewards, beta: beta * dpo(log_ratios, rewards, 1.0)
            ),
            "the signs: a right completion is pushed up, a wrong one down": (
                lambda log_ratios, rewards, beta: -dpo(log_ratios, rewards, beta)
            ),
        },
    },
    "12.2": {
        "expected": dr_grpo_and_dapo,
        "inputs": [
            {"k": 1, "lengths": [20, 4, 4, 8], "C": 56},
            {"k": 3, "lengths": [4, 20, 20, 8, 5], "C": 30},
        ],
        "mistakes": {
            "Dr. GRPO does not divide by σ": lambda k, lengths, C: (
                by_sigma(k, len(lengths)) / (len(lengths) * C),
                by_sigma(k, len(lengths)) / sum(lengths),
            ),
            "DAPO: by all tokens, not by the completion's own": lambda k, lengths, C: (
                by_mean(k, len(lengths)) / (len(lengths) * C),
                by_sigma(k, len(lengths)) / (len(lengths) * lengths[0]),
            ),
            "σ doubles, too: DAPO's advantage is not doubled": (
                lambda k, lengths, C: dr_grpo_and_dapo(k, lengths, C) * [1, 2]
            ),
            "Dr. GRPO: by C, not by the completion's own length": (
                lambda k, lengths, C: dr_grpo_and_dapo(k, lengths, lengths[0])
            ),
            "DAPO's advantage is divided by σ": lambda k, lengths, C: (
                by_mean(k, len(lengths)) / (len(lengths) * C),
                by_mean(k, len(lengths)) / sum(lengths),
            ),
            "the other way round: first Dr. GRPO, then DAPO": (
                lambda k, lengths, C: dr_grpo_and_dapo(k, lengths, C)[::-1]
            ),
        },
    },
    "12.3": {
        "expected": lambda R: R * len(R) / max(R.sum(), 1),
        "inputs": [
            {"rewards": np.array(row)} for row in ([1.0, 0, 0, 1, 0], [0.0, 0, 0], [1.0, 0, 0, 0])
        ],
        "mistakes": {
            "that is online RFT, a sum: a mean over the right ones also divides by their number": (
                lambda R: R
            ),
            "the loss of reinforce.py divides by G already: put G back": (
                lambda R: R / max(R.sum(), 1)
            ),
            "a group without right completions: 0, not a division by 0": (
                lambda R: R * len(R) / R.sum() if R.any() else np.full(len(R), np.nan)
            ),
        },
    },
}
