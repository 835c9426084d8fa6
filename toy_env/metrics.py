"""Metrics of a rollout batch and of an update, all explained in the glossary of README.md."""

import math
from types import ModuleType

import torch
from torch import Tensor
from tqdm import tqdm

from toy_env import arithmetic
from toy_env.rollout import Rollout

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.05}  # see check_ratio


def rollout_metrics(rollout: Rollout, rewards: Tensor, task: ModuleType = arithmetic) -> dict:
    """Metrics of a rollout batch, from rewards (P, G) in {0, 1}. Lengths in tokens, EOS included.

    None stands where there is nothing to average: the length of right completions if none is right.
    """

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


def step_metrics(recorded: dict[str, list[float]]) -> dict:
    """One number for each metric of a step, from those of its updates."""
    row = {name: math.fsum(values) / len(values) for name, values in recorded.items()}
    if "mismatch" in row:  # only at the first update are sampler and trainer the same policy
        row["mismatch"] = recorded["mismatch"][0]
        row["ratio_deviation"] = max(recorded["ratio_deviation"])
    return row


@torch.no_grad()
def update_metrics(
    minibatch: Rollout,  # with its advantages
    logps: Tensor,  # (b, T)
    clip: tuple[float, float],  # the two ends of the range that the ratio is clipped to
    ratio: Tensor | None = None,  # (b, 1) or (b, T), clipped; by default each token's own ratio
) -> dict[str, Tensor]:
    """Metrics of a minibatch before its optimizer step, over its unmasked tokens.

    `clipped_up`, `clipped_down`: shares of tokens whose gradient the clip stops (A > 0 and the
    ratio above the range; A < 0 and the ratio below it), or, where the ratio is a weight, whose
    weight it caps (of those with A > 0). `ratio_deviation`: the largest |ratio - 1|. `mismatch`:
    mean |log-probability - the sampler's|. `kl`: mean of the k3 estimate of KL(policy ||
    reference), if there is a reference. `clipped_up_probability`: mean probability, under the
    policy that sampled them, of the tokens in `clipped_up`, if there are any.
    """
    mask, advantages = minibatch.mask, minibatch.advantages
    log_ratio = logps - minibatch.old_logps
    ratio = log_ratio.exp() if ratio is None else ratio
    tokens = mask.sum().clamp(min=1)
    up = (advantages > 0) & (ratio > clip[1]) & mask
    metrics = {
        "clipped_up": up.sum() / tokens,
        "clipped_down": ((advantages < 0) & (ratio < clip[0]) & mask).sum() / tokens,
        "ratio_deviation": ((ratio - 1).abs() * mask).max(),
        "mismatch": (log_ratio.abs() * mask).sum() / tokens,
    }
    if up.any():
        metrics["clipped_up_probability"] = minibatch.old_logps[up].exp().mean()
    if minibatch.ref_logps is not None:
        log_u = minibatch.ref_logps - logps
        metrics["kl"] = ((log_u.exp() - 1 - log_u) * mask).sum() / tokens
    return metrics


def check_ratio(minibatch: Rollout, logps: Tensor, dtype: str) -> None:
    """Print how far log-probabilities, (b, T), are from those recorded while sampling.

    Before the first update they are the same but for rounding, and every ratio is 1. Raises
    SystemExit if they are not: such a model cannot be trained. In bfloat16, which rounds single
    tokens far, the mean counts instead of the largest distance.
    """
    distance = (logps.detach() - minibatch.old_logps).abs()  # (b, T), 0 off the mask
    most, mean = distance.max().item(), distance[minibatch.mask].mean().item()
    tqdm.write(f"after {minibatch.updates} updates, max |log pi - log pi_old| = {most:.0e}")
    far = most if dtype == "float32" else mean
    if minibatch.updates == 0 and not far <= TOLERANCE[dtype]:
        disagree = "sampled and recomputed log-probabilities of this model differ"
        raise SystemExit(f"{disagree} by {far:.0e} in {dtype}; give another --model")
