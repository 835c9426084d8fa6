"""Samplers in another precision than the trainer's, and truncated importance sampling, for lesson
18."""

import copy

import torch
from torch import Tensor
from torch.nn import functional as F

# The corrections that are tried for each precision of the sampler
CORRECTIONS = {"bfloat16": ("none", "token", "sequence"), "float8": ("none", "sequence")}
CAP = 2.0  # C, the largest weight of truncated importance sampling


def in_precision(policy: torch.nn.Module, precision: str) -> torch.nn.Module:
    """The policy that samples: itself for float32; a copy that computes in bfloat16; or a copy
    whose linear layers (including the head and the embeddings tied to it) have weights rounded to
    float8 (e4m3), scaled so that the largest weight of a layer is the largest float8.

    A linear layer in bfloat16 sums in float32 and rounds the sum, as accelerators do. Here the sum
    is a float32 product of the rounded numbers, which is up to ten times as fast where a processor
    has no bfloat16 instructions.
    """
    if precision == "float32":
        return policy
    copied = copy.deepcopy(policy).requires_grad_(False)
    linear = [layer for layer in copied.modules() if isinstance(layer, torch.nn.Linear)]
    for layer in linear:
        if precision == "bfloat16":
            weight = layer.weight.bfloat16().float()
            layer.forward = lambda x, weight=weight: F.linear(x.float(), weight).bfloat16()
        else:
            scale = layer.weight.abs().max() / torch.finfo(torch.float8_e4m3fn).max
            layer.weight.copy_((layer.weight / scale).to(torch.float8_e4m3fn).float() * scale)
    return copied.to(torch.bfloat16) if precision == "bfloat16" else copied


def sampling_weights(log_ratio: Tensor, correction: str) -> Tensor:
    """The weights of truncated importance sampling, min(pi_trainer / pi_sampler, CAP), for each
    token (B, T) or each completion (B, 1); 1 without a correction. log_ratio: (B, T), 0 off the
    mask."""
    if correction == "none":
        return torch.ones_like(log_ratio[:, :1])
    summed = log_ratio if correction == "token" else log_ratio.sum(dim=1, keepdim=True)
    return summed.exp().clamp(max=CAP)


def spread(log_ratio: Tensor, mask: Tensor) -> dict[str, float]:
    """The distance of trainer and sampler: the standard deviation of their ratio, over the tokens
    and over the completions of a rollout batch."""
    return {
        "spread of tokens": log_ratio[mask].exp().std().item(),
        "spread of completions": log_ratio.sum(dim=1).exp().std().item(),
    }
