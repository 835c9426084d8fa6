"""Support for models other than those of this repository; skip it on a first reading.

Sampling where the cache cannot be cut row by row, forward passes that fit into memory, bfloat16,
and recomputed layers.
"""

import itertools
from collections.abc import Callable
from functools import partial
from inspect import signature
from types import MethodType

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

MOST_PADDING = 256  # tokens of padding in a pass
LOGITS_PER_TOKEN = 4096  # in scoring, this many logits count as one token of a pass


def has_rows(cache) -> bool:
    """True if a cache can be repeated and cut row by row: it holds keys and values, nothing else.

    Other kinds inherit the methods for it, and would leave the rest of their state as it is.
    """
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    kinds = (DynamicLayer, DynamicSlidingWindowLayer)
    return type(cache) is DynamicCache and all(type(layer) in kinds for layer in cache.layers)


def cache_name(policy) -> str:
    """The name of a model's cache among its arguments and outputs: transformers 5.24 renamed it."""
    return "cache" if "cache" in signature(policy.forward).parameters else "past_key_values"


def generate(policy, prompt_ids: Tensor, prompt_mask: Tensor, T: int, ends: Tensor, draw) -> None:
    """Call draw(t, rows, logits) for t = 0, 1, ..., T - 1 through `model.generate`, which handles
    any kind of state. All rows run until the last has ended. prompt_ids and prompt_mask: (B, N).

    A logits processor draws each token and masks all others, so that greedy decoding picks it.
    """
    from transformers import GenerationConfig, LogitsProcessorList

    rows, steps = torch.arange(len(prompt_ids), device=prompt_ids.device), itertools.count()

    def keep_one(ids: Tensor, logits: Tensor) -> Tensor:
        tokens = draw(next(steps), rows, logits)
        return torch.full_like(logits, -torch.inf).scatter(1, tokens, 0.0)

    settings = {"max_new_tokens": T, "eos_token_id": ends.tolist(), "pad_token_id": ends[0].item()}
    own = policy.generation_config  # its penalties would change the distribution
    policy.generation_config = GenerationConfig(**settings, do_sample=False)
    processors = LogitsProcessorList([keep_one])
    policy.generate(prompt_ids, attention_mask=prompt_mask, logits_processor=processors)
    policy.generation_config = own


def in_passes(forward: Callable, rollout, max_tokens_per_pass: int, vocabulary: int = 0) -> Tensor:
    """forward(part), (b, T), for parts of a `Rollout`, put back in order: (B, T), 0 off the mask.

    The loss is still taken over all B rows at once, so cutting a batch into passes changes no
    normaliser and no gradient. If more than one is needed, each is recomputed in the backward pass
    instead of being kept. `vocabulary` is the number of logits that forward makes for each token of
    a completion.
    """
    prompts, completions = rollout.prompt_mask.sum(dim=1), rollout.mask.sum(dim=1)
    parts, total = passes(prompts.tolist(), completions.tolist(), max_tokens_per_pass, vocabulary)
    order = [torch.tensor(rows, device=rollout.mask.device) for rows in parts]
    if total > max_tokens_per_pass and torch.is_grad_enabled():
        forward = partial(checkpoint, forward, use_reentrant=False)
    values = torch.cat([forward(rollout[rows]) for rows in order])
    return torch.where(rollout.mask, values[torch.cat(order).argsort()], 0.0)


def passes(
    prompts: list[int], completions: list[int], max_tokens: int, vocabulary: int = 0
) -> tuple[list[list[int]], float]:
    """The row indices of each pass, and the cost of all passes, from the lengths of prompts and
    completions.

    The longest rows come first. A pass has at most 256 tokens of padding, and costs at most
    `max_tokens` unless it is a single row. Its cost is the number of its tokens, padding included,
    or of its logits, 4096 to a token, if that is more.
    """
    lengths = [n + t for n, t in zip(prompts, completions)]
    parts, costs, width, shortest, padding = [], [], 0, 0, 0
    for i in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        shortest, padding = min(shortest, prompts[i]), padding + width - lengths[i]
        row = max(width, (width - shortest) * vocabulary / LOGITS_PER_TOKEN)
        if not parts or padding > MOST_PADDING or row * (len(parts[-1]) + 1) > max_tokens:
            width, shortest, padding = lengths[i], prompts[i], 0
            row = max(width, (width - shortest) * vocabulary / LOGITS_PER_TOKEN)
            parts.append([])
            costs.append(0.0)
        parts[-1].append(i)
        costs[-1] = row * len(parts[-1])
    return parts, sum(costs)


def compute_in_bfloat16(policy) -> None:
    """Run every forward pass of a policy, and of its copies, under autocast to bfloat16."""
    for module in {policy, policy.base_model}:
        autocast = torch.autocast(policy.device.type, torch.bfloat16)
        # bound to the module, so that a deep copy calls its own forward
        module.forward = MethodType(autocast(type(module).forward), module)


def checkpoint_layers(policy) -> None:
    """Have each layer keep only its input, and recompute the rest in the backward pass.
    transformers itself would do so in training mode only, where dropout is on."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    def recomputed(layer: torch.nn.Module, *args, **kwargs):
        forward = partial(type(layer).forward, layer)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    for layer in policy.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.forward = MethodType(recomputed, layer)
