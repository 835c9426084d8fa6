"""What models other than those of this repository need; a reader of the toy may leave it closed.

Sampling where there is no cache that can be cut row by row, passes that fit into memory where there
are many tokens or a large vocabulary, bfloat16, and recomputed layers.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from inspect import signature
from types import MethodType

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from toy_env import UsageError, reason

MOST_PADDING = 256  # tokens in a pass
LOGITS_PER_TOKEN = 4096  # in scoring, this many logits count as one token of a pass


def has_rows(cache) -> bool:
    """Whether a cache can be repeated and cut row by row: it holds attention's keys and values and
    nothing else. Other kinds inherit the methods from these two, and would leave the rest of their
    state as it is."""
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    kinds = (DynamicLayer, DynamicSlidingWindowLayer)
    return type(cache) is DynamicCache and all(type(layer) in kinds for layer in cache.layers)


def cache_name(policy) -> str:
    """What `policy` calls its cache, as an argument and in its output: transformers 5.24 renamed
    it."""
    return "cache" if "cache" in signature(policy.forward).parameters else "past_key_values"


def generate(
    policy, prompt_ids: Tensor, prompt_mask: Tensor, max_new_tokens: int, ends: Tensor, draw
) -> None:
    """Call draw(t, rows, logits) for t = 0, 1, ... through `model.generate`, which handles any kind
    of state. All rows run until the last has ended. prompt_ids and prompt_mask: (B, N).

    A logits processor draws each token and masks all others, so that greedy decoding picks the
    token drawn.
    """
    from transformers import GenerationConfig, LogitsProcessorList

    rows, steps = torch.arange(len(prompt_ids), device=prompt_ids.device), itertools.count()

    def keep_one(ids: Tensor, logits: Tensor) -> Tensor:
        return torch.full_like(logits, -torch.inf).scatter(1, draw(next(steps), rows, logits), 0.0)

    stop = ends.tolist()
    plain = GenerationConfig(
        max_new_tokens=max_new_tokens, eos_token_id=stop, pad_token_id=stop[0], do_sample=False
    )
    own, policy.generation_config = (
        policy.generation_config,
        plain,
    )  # its penalties would change the distribution
    try:
        policy.generate(
            prompt_ids, attention_mask=prompt_mask, logits_processor=LogitsProcessorList([keep_one])
        )
    finally:
        policy.generation_config = own


def in_passes(forward: Callable, rollout, max_tokens_per_pass: int, vocabulary: int = 0) -> Tensor:
    """(B, T): forward(part), (b, T), for parts of a `Rollout`, put back in order and 0 off the
    mask.

    The loss is still taken over all B rows at once, so cutting a batch into passes changes no
    normaliser and no gradient. If more than one is needed, each is recomputed in the backward pass
    instead of being kept. `vocabulary` is the number of logits that forward makes for each token of
    a completion.
    """
    lengths = (mask.sum(dim=1).tolist() for mask in (rollout.prompt_mask, rollout.mask))
    parts, total = passes(*lengths, max_tokens_per_pass, vocabulary)
    order = [torch.tensor(rows, device=rollout.mask.device) for rows in parts]
    if total > max_tokens_per_pass and torch.is_grad_enabled():
        forward = partial(checkpoint, forward, use_reentrant=False)
    values = [forward(rollout[rows]) for rows in order]
    return torch.where(rollout.mask, torch.cat(values)[torch.cat(order).argsort()], 0.0)


def passes(
    prompts: list[int], completions: list[int], max_tokens: int, vocabulary: int = 0
) -> tuple[list[list[int]], float]:
    """The row indices of each pass, and the cost of all passes, from the lengths of all prompts and
    completions.

    The longest rows come first. A pass has at most 256 tokens of padding, and costs at most
    `max_tokens` unless it is a single row. Its cost is the number of its tokens, padding included;
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
    """Run every forward pass of a policy, of its copies and of its transformer under autocast to
    bfloat16. Raises UsageError if the device does not support it."""
    for module in {policy, policy.base_model}:
        try:
            autocast = torch.autocast(policy.device.type, torch.bfloat16)
        except RuntimeError as error:
            raise UsageError(
                f"--dtype bfloat16 is not available on {policy.device}: {reason(error)}"
            ) from None
        module.forward = MethodType(
            autocast(type(module).forward), module
        )  # bound, so that copies call their own


def is_in_bfloat16(policy) -> bool:
    """Whether `compute_in_bfloat16` was called for the policy."""
    return "forward" in vars(policy)


def keep_casts(policy) -> contextlib.AbstractContextManager:
    """A context, for use without gradient, that casts the weights to bfloat16 once instead of in
    every forward pass: an enclosing autocast keeps the casts made inside it."""
    return (
        torch.autocast(policy.device.type, enabled=False)
        if is_in_bfloat16(policy)
        else contextlib.nullcontext()
    )


@contextlib.contextmanager
def in_float32(policy) -> Iterator[None]:
    """A context in which the policy computes in float32, whatever --dtype it was loaded with."""
    own = {module: vars(module).pop("forward", None) for module in {policy, policy.base_model}}
    try:
        yield
    finally:
        for module, forward in own.items():
            if forward:
                module.forward = forward


def checkpoint_layers(policy) -> None:
    """Have each layer keep only its input, and recompute the rest in the backward pass, which
    transformers itself does in training mode only. Raises UsageError if the model's layers do not
    support it."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    def recomputed(layer: torch.nn.Module, *args, **kwargs):
        return checkpoint(
            type(layer).forward,
            layer,
            *args,
            use_reentrant=False,
            preserve_rng_state=False,
            **kwargs,
        )

    layers = [
        module for module in policy.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    if not layers:
        raise UsageError("--gradient_checkpointing: this model does not support it; leave it out")
    for layer in layers:
        layer.forward = MethodType(recomputed, layer)
