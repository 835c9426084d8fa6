"""The pictures of lesson 4, and the right answers and usual mistakes of its exercises."""

from collections.abc import Callable

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lessons.workshop.kit import BLUE, GREY, ORANGE, label_line, new_figure, ticks

STYLES = [(GREY, ":"), (BLUE, "-"), (ORANGE, "--")]  # colour and line: k1, k2, k3


def estimates_of_gaussians(d: float, shifts: np.ndarray, stds: np.ndarray) -> Figure:
    """Lesson 4: the noise of k1, k2 and k3, and the coefficient of the score of each as a loss, for
    the policy N(0, 1) and the reference N(d, 1). stds (3, n): the standard deviation of each at the
    shifts (n,)."""
    figure, (left, right) = new_figure(8.5, 3.7, columns=2)
    at = np.abs(shifts - d).argmin()
    for i, (color, line) in enumerate(STYLES):
        relative = stds[i] / (shifts**2 / 2)
        left.plot(shifts, relative, line, color=color)
        left.plot(d, relative[at], "o", color=color, markersize=8)
        label_line(left, shifts[-1], relative[-1], f"$k_{i + 1}$", color)
    left.axvline(d, color=GREY, linewidth=0.8)
    left.set(
        title="Std of one sample, relative to the KL",
        xlabel=f"d, shift of the reference; KL = {d**2 / 2:.3g}",
    )
    left.set(yscale="log", xlim=(0, 3.25), ylim=(0.5, 25))
    ticks(left.yaxis, [0.5, 1, 2, 5, 10, 20])

    x = np.linspace(-3, 6, 400)  # log(pi / ref), which is N(d²/2, d²) under pi
    bell = 3 * np.exp(-((x - d**2 / 2) ** 2) / (2 * d**2))
    right.fill_between(x, -7, -7 + bell, color=GREY, alpha=0.25, linewidth=0)
    for (color, line), values in zip(STYLES, (np.ones_like(x), x, 1 - np.exp(-x))):
        right.plot(x, values, line, color=color)
    label_line(right, 4.6, 4.6, "$k_2$: $-\\log u$", BLUE, xytext=(-8, 4), ha="right")
    label_line(right, 6, 1, "$k_1$: 1", GREY, xytext=(0, 10), ha="right")
    label_line(right, -1.4, 1 - np.exp(1.4), "$k_3$: $1 - u$", ORANGE, xytext=(8, -2))
    right.axhline(0, color="black", linewidth=0.8)
    right.set(
        xlabel=r"$\log(\pi/\pi_\mathrm{ref}) = -\log u$ of the sample", xlim=(-3, 6), ylim=(-7, 6.5)
    )
    right.set_title("Coefficient of the score in a loss")
    return figure


# Exercises; `kit.check` explains the keys of CHECKS

# ---------------------------------------------------------------------- exercise 1: single tokens

counts = torch.tensor([8, 4, 2, 1, 1])
tokens = torch.arange(5).repeat_interleave(counts)  # (16,), each as often as it should occur
logits = (counts.double() / 16).log()
ref = torch.tensor([0.10, 0.15, 0.05, 0.40, 0.30]).double().log()


def gradient(loss: float | Tensor, parameters: Tensor) -> Tensor | str:
    """The gradient of the loss that a reader returns, or a word for what is wrong with the loss;
    `...` and None are returned unchanged."""
    if loss is None or loss is ...:
        return loss
    loss = torch.as_tensor(loss)
    if loss.dim():
        return "not a scalar"
    return torch.autograd.grad(loss, parameters)[0] if loss.requires_grad else "detached"


def value_and_gradient(loss_of: Callable, ids: Tensor = tokens) -> Callable:
    """From loss_of(logps, ref_logps) of the tokens to its value and its gradient with respect to
    five logits, (6,)."""

    def answer(ref: Tensor) -> Tensor | str:
        parameters = logits.clone().requires_grad_()
        loss = loss_of(parameters.log_softmax(dim=0)[ids], ref[ids])
        slope = gradient(loss, parameters)
        return torch.cat([loss.detach().view(1), slope]) if isinstance(slope, Tensor) else slope

    return answer


# The sums over all five tokens
reverse_kl = value_and_gradient(
    lambda logps, ref: (logps.exp() * (logps - ref)).sum(), torch.arange(5)
)
forward_kl = value_and_gradient(
    lambda logps, ref: (ref.exp() * (ref - logps)).sum(), torch.arange(5)
)


def k3(logps: Tensor, ref: Tensor) -> Tensor:
    return (ref - logps).exp() - 1 - (ref - logps)


# ---------------------------------------------------------------------- exercise 2: two tokens

# Logits of the first token; of the second after 0, and after 1
theta = torch.tensor([[3, 1], [1, 1], [1, 3]]).double().log()
theta_ref = torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.9, 0.1]]).double().log()
other_ref = torch.tensor([[0.6, 0.4], [0.8, 0.2], [0.9, 0.1]]).double().log()  # no gradient is 0
# 16 pairs, each as often as it should occur
pairs = torch.tensor([[0, 0]] * 6 + [[0, 1]] * 6 + [[1, 0]] * 1 + [[1, 1]] * 3)


def token_logps(rows: Tensor, chosen: Tensor = pairs) -> Tensor:
    """(n, 2): the log-probability of each token of the pairs."""
    rows = rows.log_softmax(dim=1)
    return torch.stack([rows[0, chosen[:, 0]], rows[1 + chosen[:, 0], chosen[:, 1]]], dim=1)


def sequence_gradient(loss_of: Callable, chosen: Tensor = pairs) -> Callable:
    """From loss_of(logps, ref_logps) of pairs of tokens to its gradient with respect to the logits,
    (3, 2)."""

    def answer(theta_ref: Tensor) -> Tensor | str:
        parameters = theta.clone().requires_grad_()
        return gradient(
            loss_of(token_logps(parameters, chosen), token_logps(theta_ref, chosen)), parameters
        )

    return answer


# The sum over all four sequences
kl_of_sequences = sequence_gradient(
    lambda logps, ref: logps.sum(dim=1).exp() @ (logps - ref).sum(dim=1),
    torch.cartesian_prod(*[torch.arange(2)] * 2),
)


def from_here_on(log_ratio: Tensor) -> Tensor:
    return log_ratio.flip(1).cumsum(dim=1).flip(1)


# ---------------------------------------------------------------------- exercise 3: in the reward


def with_reward(charges: Tensor, rewards: Tensor, mask: Tensor) -> Tensor:
    """Charges of all tokens (B, n), and the reward (B,) on the last token under the mask."""
    return charges.scatter_add(1, mask.sum(dim=1, keepdim=True) - 1, rewards.view(-1, 1))


three = {
    "rewards": torch.tensor([0.0, 1.0, 1.0]),
    "logps": torch.tensor([[-0.2, -0.9, -0.5], [-0.1, -2.0, -3.0], [-1.5, -0.4, -0.7]]),
    "ref_logps": torch.tensor([[-0.5, -1.0, -0.7], [-0.5, -1.0, -1.0], [-1.2, -0.6, -0.1]]),
    "mask": torch.tensor([[True, True, True], [True, True, False], [True, False, False]]),
}
last_column = torch.tensor([[0.0, 0, 1]])

CHECKS = {
    "4.1": {
        "expected": forward_kl,
        "inputs": [{"ref": ref}, {"ref": ref.flip(0)}],
        "mistakes": {
            "the gradient is right, but the value is that of the reverse KL": value_and_gradient(
                lambda logps, ref: k3(logps, ref).mean()
            ),
            "that is the reverse KL, value and gradient": reverse_kl,
            "the value is right; autograd must not go through the weight": value_and_gradient(
                lambda logps, ref: ((ref - logps).exp() * (ref - logps)).mean()
            ),
            "the tokens come from the policy, and without the weight they count as its own": (
                value_and_gradient(lambda logps, ref: (ref - logps).mean())
            ),
            "no gradient reaches the policy: everything in this loss is detached": (
                value_and_gradient(lambda logps, ref: (ref - logps).mean().item())
            ),
            "return one number: the mean of the tokens' losses": (
                value_and_gradient(lambda logps, ref: ref - logps)
            ),
        },
    },
    "4.2": {
        "expected": kl_of_sequences,
        "inputs": [{"theta_ref": other_ref}, {"theta_ref": other_ref.flip(1)}],
        "mistakes": {
            "a token loss: it does not know what a token leads to": sequence_gradient(
                lambda logps, ref: ((logps - ref) ** 2 / 2).sum(dim=1).mean()
            ),
            "a token loss, and of the forward KL": sequence_gradient(
                lambda logps, ref: k3(logps, ref).sum(dim=1).mean()
            ),
            "autograd must not go through the penalty": sequence_gradient(
                lambda logps, ref: (from_here_on(logps - ref) * logps).sum(dim=1).mean()
            ),
            "this averages over tokens and does not sum": sequence_gradient(
                lambda logps, ref: (from_here_on((logps - ref).detach()) * logps).mean()
            ),
            "return one number: the mean of the tokens' losses": sequence_gradient(
                lambda logps, ref: from_here_on((logps - ref).detach()) * logps
            ),
            "no gradient reaches the policy: everything in this loss is detached": (
                sequence_gradient(lambda logps, ref: (logps - ref).detach().sum(dim=1).mean())
            ),
        },
    },
    "4.3": {
        "bug": lambda rewards, logps, ref_logps, mask, beta: with_reward(
            -beta * (ref_logps - logps) * mask, rewards, mask
        ),
        "expected": lambda rewards, logps, ref_logps, mask, beta: [
            [-0.3 * beta, -0.1 * beta, -0.2 * beta],
            [-0.4 * beta, 1 + beta, 0],
            [1 + 0.3 * beta, 0, 0],
        ],
        "inputs": [{**three, "beta": 0.5}, {**three, "beta": 0.04}],
        "mistakes": {
            "the reward stands on the padding: it belongs on the last token of the completion": (
                lambda rewards, logps, ref_logps, mask, beta: (
                    -beta * (logps - ref_logps) * mask + rewards.view(-1, 1) * last_column
                )
            ),
            "the distance has lost its sign: k1 may be negative": (
                lambda rewards, logps, ref_logps, mask, beta: with_reward(
                    -beta * (logps - ref_logps).abs() * mask, rewards, mask
                )
            ),
            "the padding is charged too": lambda rewards, logps, ref_logps, mask, beta: with_reward(
                -beta * (logps - ref_logps), rewards, mask
            ),
            "that is k3 in the reward: its gradient is another": (
                lambda rewards, logps, ref_logps, mask, beta: with_reward(
                    -beta * k3(logps, ref_logps) * mask, rewards, mask
                )
            ),
        },
    },
}
