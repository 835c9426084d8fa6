"""What a rollout batch and an update show. Every name is explained in the glossary of
toy_env/README.md."""

from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from toy_env import arithmetic
from toy_env.rollout import Rollout

OF_A_STEP = {
    "ratio_deviation": max,
    "mismatch": lambda updates: updates[0],
}  # from its updates; others: the mean


def rollout_metrics(rollout: Rollout, rewards: Tensor, task: ModuleType = arithmetic) -> dict:
    """What a rollout batch shows by itself, from rewards (P, G) in {0, 1}. Lengths in tokens, EOS
    included. None stands where there is nothing to average (the length of right completions when
    none was right)."""

    def mean(values: Tensor) -> float | None:
        return values.double().mean().item() if values.numel() else None

    rewards, lengths = rewards.cpu(), rollout.mask.sum(dim=1).cpu()
    right, G = rewards == 1, rewards.shape[1]
    k = right.sum(dim=1)  # (P,) right completions of each group
    return {
        "reward": mean(rewards),
        "accuracy": mean(right),
        "silent": mean((k == 0) | (k == G)),
        "silent_right": mean(k == G),
        "silent_wrong": mean(k == 0),
        "sigma": mean((k * (G - k)).double().sqrt() / G),
        "groups_by_k": (torch.bincount(k, minlength=G + 1) / len(k)).tolist(),
        "length": mean(lengths),
        "length_right": mean(lengths[right.flatten()]),
        "length_wrong": mean(lengths[~right.flatten()]),
        "truncated": mean(rollout.truncated.cpu()),
        "worked": sum(map(task.is_worked, rollout.texts)) / len(rollout),
        "entropy": (rollout.entropies.sum() / rollout.mask.sum()).item(),
    }


def measure_updates(
    policy: torch.nn.Module, optimizer: torch.optim.Optimizer, record: Callable
) -> None:
    """Have every optimizer step call record(update_norm=...): the Euclidean length of the move,
    over all parameters."""
    before = {}

    def remember(*_) -> None:
        before.update({parameter: parameter.detach().clone() for parameter in policy.parameters()})

    def measure(*_) -> None:
        moves = [
            torch.linalg.vector_norm(parameter.detach() - old) for parameter, old in before.items()
        ]
        record(update_norm=torch.linalg.vector_norm(torch.stack(moves)))

    optimizer.register_step_pre_hook(remember)
    optimizer.register_step_post_hook(measure)


@torch.no_grad()
def update_metrics(
    minibatch: Rollout,  # with its advantages
    logps: Tensor,  # (b, T)
    clip: tuple[float, float],  # the two ends of the range that the ratio is clipped to
    ratio: Tensor
    | None = None,  # (b, 1) or (b, T), what is clipped; by default each token's own ratio
) -> dict[str, Tensor]:
    """What a minibatch shows before its optimizer step, over its unmasked tokens.

    `clipped_up`, `clipped_down`: shares of tokens whose gradient the clip stops (A > 0 and the
    ratio above the range; A < 0 and the ratio below it), or, where the ratio is a weight, whose
    weight it caps (of those with A > 0). `ratio_deviation`: the largest |ratio - 1|. `mismatch`:
    mean |log-probability - the sampler's|. `kl`: mean of the k3 estimate of KL(policy ||
    reference), if there is a reference. `clipped_up_probability`: mean probability, under the
    policy that sampled them, of the tokens in `clipped_up`, if there are any.
    """
    mask, advantages = minibatch.mask, minibatch.advantages
    ratio, tokens = (
        (logps - minibatch.logps).exp() if ratio is None else ratio,
        mask.sum().clamp(min=1),
    )
    up = (advantages > 0) & (ratio > clip[1]) & mask
    metrics = {
        "clipped_up": up.sum() / tokens,
        "clipped_down": ((advantages < 0) & (ratio < clip[0]) & mask).sum() / tokens,
        "ratio_deviation": ((ratio - 1).abs() * mask).max(),
        "mismatch": ((logps - minibatch.logps).abs() * mask).sum() / tokens,
    }
    if up.any():
        metrics["clipped_up_probability"] = minibatch.logps[up].exp().mean()
    if minibatch.ref_logps is not None:
        log_u = minibatch.ref_logps - logps
        metrics["kl"] = ((log_u.exp() - 1 - log_u) * mask).sum() / tokens
    return metrics
