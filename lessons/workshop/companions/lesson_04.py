"""The right answers and usual mistakes of the exercises of lesson 4."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

# Exercises; `notebook.check` explains the keys of CHECKS

counts = torch.tensor([8, 4, 2, 1, 1])
logits = (counts.double() / 16).log()
ref = torch.tensor([0.10, 0.15, 0.05, 0.40, 0.30]).double().log()


def k3(logps, ref):
    return (ref - logps).exp() - 1 - (ref - logps)


# ---------------------------------------------------------------------- exercise 2: two tokens

# Logits of the first token; of the second after 0, and after 1
theta = torch.tensor([[3, 1], [1, 1], [1, 3]]).double().log()
other_ref = torch.tensor([[0.6, 0.4], [0.8, 0.2], [0.9, 0.1]]).double().log()  # no gradient is 0
every_pair = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
pairs = every_pair.repeat_interleave(torch.tensor([6, 6, 1, 3]), dim=0)  # (16, 2), in proportion


def token_logps(rows: Tensor, chosen: Tensor = pairs) -> Tensor:
    """(n, 2): the log-probability of each token of the pairs."""
    first, second = chosen.T
    rows = rows.log_softmax(dim=1)
    return torch.stack([rows[0, first], rows[1 + first, second]], dim=1)


def gradient(loss: float | Tensor, parameters: Tensor) -> Tensor | str:
    """The gradient of the loss that a reader returns, or a word for what is wrong with the loss;
    `...` and None are returned unchanged."""
    if loss is None or loss is ...:
        return loss
    loss = torch.as_tensor(loss)
    if loss.dim():
        return "not a scalar"
    return torch.autograd.grad(loss, parameters)[0] if loss.requires_grad else "detached"


def sequence_gradient(loss_of: Callable, chosen: Tensor = pairs) -> Callable:
    """From loss_of(logps, ref_logps) of the chosen pairs to its gradient with respect to the
    logits, at `theta`."""

    def answer(theta_ref: Tensor) -> Tensor | str:
        parameters = theta.clone().requires_grad_()
        loss = loss_of(token_logps(parameters, chosen), token_logps(theta_ref, chosen))
        return gradient(loss, parameters)

    return answer


# The sum over all four sequences
kl_of_sequences = sequence_gradient(
    lambda logps, ref: logps.sum(dim=1).exp() @ (logps - ref).sum(dim=1), every_pair
)


# ---------------------------------------------------------------------- exercise 1: in the reward


def token_rewards(rewards, logps, ref_logps, mask, beta, k=torch.sub):
    """-beta k for all tokens (B, n), by default k1, and the reward (B,) on the last token under the
    mask."""
    charges = -beta * k(logps, ref_logps) * mask
    return charges.scatter_add(1, mask.sum(dim=1, keepdim=True) - 1, rewards.view(-1, 1))


WRONG_PENALTIES = {
    "the bug": partial(token_rewards, k=k3),
    "|k1|": partial(token_rewards, k=lambda logps, ref: (logps - ref).abs()),
    "wrong sign": partial(token_rewards, k=lambda logps, ref: ref - logps),
}
four = {
    "rewards": torch.arange(4).double(),
    "logps": token_logps(theta, every_pair),
    "ref_logps": token_logps(other_ref, every_pair),
    "mask": torch.tensor([[1, 1], [1, 1], [1, 0], [1, 0]]).bool(),
}

CHECKS = {
    "4.1": {
        "bug": WRONG_PENALTIES["the bug"],
        "expected": token_rewards,
        "inputs": [four | {"beta": 0.5}, four | {"beta": 0.04}],
        "mistakes": {
            "the distance has lost its sign: k1 may be negative": WRONG_PENALTIES["|k1|"],
            "the log-ratio's sign: that rewards leaving the reference": WRONG_PENALTIES[
                "wrong sign"
            ],
        },
    },
    "4.2": {
        "bug": sequence_gradient(lambda logps, ref: ((logps - ref) ** 2 / 2).sum(dim=1).mean()),
        "expected": kl_of_sequences,
        "inputs": [{"theta_ref": other_ref}],
        "mistakes": {
            "autograd must not go through the penalty": sequence_gradient(
                lambda logps, ref: (
                    ((logps - ref).flip(1).cumsum(dim=1).flip(1) * logps).sum(dim=1).mean()
                )
            ),
        },
    },
}


def distance(rewards_of: Callable) -> list[float]:
    """KL(pi || ref) before each update of a policy over five tokens by REINFORCE, with 64 sampled
    tokens and rewards_of(...), where only the penalty is not 0."""
    generator, parameters, curve = torch.Generator().manual_seed(0), logits.clone(), []
    for _ in range(60):
        log_pi = parameters.requires_grad_().log_softmax(dim=0)
        curve.append((log_pi.exp() @ (log_pi - ref)).item())
        ids = log_pi.exp().multinomial(64, True, generator=generator).view(64, 1)
        zeros, mask = torch.zeros(64).double(), torch.ones(64, 1).bool()
        R = rewards_of(zeros, log_pi[ids].detach(), ref[ids], mask, 1.0)
        J = ((R - R.mean()) * log_pi[ids]).mean()
        parameters.data += 0.2 * torch.autograd.grad(J, parameters)[0]
    return curve


TRAINED = {
    "4.1": {
        "curve": distance,
        "mistakes": WRONG_PENALTIES,
        "labels": ("updates", "KL(policy || reference)"),
    }
}
