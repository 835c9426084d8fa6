"""What the exercises of lesson 4 are checked against. `kit.check` explains the keys."""

from collections.abc import Callable

import torch
from torch import Tensor

counts = torch.tensor([8, 4, 2, 1, 1])
tokens = torch.arange(5).repeat_interleave(counts)  # (16,), each as often as it should occur
logits = (counts.double() / 16).log()
ref = torch.tensor([0.10, 0.15, 0.05, 0.40, 0.30]).double().log()

theta = (
    torch.tensor([[3, 1], [1, 1], [1, 3]]).double().log()
)  # logits of the 1st token; of the 2nd after 0, after 1
theta_ref = torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.9, 0.1]]).double().log()
other_ref = (
    torch.tensor([[0.6, 0.4], [0.8, 0.2], [0.9, 0.1]]).double().log()
)  # all six gradients differ from 0
pairs = torch.tensor(
    [[0, 0]] * 6 + [[0, 1]] * 6 + [[1, 0]] * 1 + [[1, 1]] * 3
)  # 16, each as often as it should occur


def gradient(loss: float | Tensor, parameters: Tensor) -> Tensor | str:
    """Of what a reader returns, or what is the matter with it; `...` and None as they are."""
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


# The sums over all five tokens, and over all four sequences
reverse_kl = value_and_gradient(
    lambda logps, ref: (logps.exp() * (logps - ref)).sum(), torch.arange(5)
)
forward_kl = value_and_gradient(
    lambda logps, ref: (ref.exp() * (ref - logps)).sum(), torch.arange(5)
)
kl_of_sequences = sequence_gradient(
    lambda logps, ref: logps.sum(dim=1).exp() @ (logps - ref).sum(dim=1),
    torch.cartesian_prod(*[torch.arange(2)] * 2),
)


three = {
    "rewards": torch.tensor([0.0, 1.0, 1.0]),
    "logps": torch.tensor([[-0.2, -0.9, -0.5], [-0.1, -2.0, -3.0], [-1.5, -0.4, -0.7]]),
    "ref_logps": torch.tensor([[-0.5, -1.0, -0.7], [-0.5, -1.0, -1.0], [-1.2, -0.6, -0.1]]),
    "mask": torch.tensor([[True, True, True], [True, True, False], [True, False, False]]),
}

CHECKS = {
    "4.1": {
        "expected": forward_kl,
        "inputs": [{"ref": ref}, {"ref": ref.flip(0)}],
    },
    "4.2": {
        "expected": kl_of_sequences,
        "inputs": [{"theta_ref": other_ref}, {"theta_ref": other_ref.flip(1)}],
    },
    "4.3": {
        "expected": lambda rewards, logps, ref_logps, mask, beta: [
            [-0.3 * beta, -0.1 * beta, -0.2 * beta],
            [-0.4 * beta, 1 + beta, 0],
            [1 + 0.3 * beta, 0, 0],
        ],
        "inputs": [{**three, "beta": 0.5}, {**three, "beta": 0.04}],
    },
}
