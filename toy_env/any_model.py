"""Support for models other than those of this repository; skip it on a first reading.

Sampling where the cache cannot be cut row by row, and bfloat16.
"""

import itertools
from types import MethodType

import torch
from torch import Tensor


def has_rows(cache) -> bool:
    """True if a cache can be repeated and cut row by row: it holds keys and values, nothing else.

    Other kinds inherit the methods for it, and would leave the rest of their state as it is.
    """
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    kinds = {DynamicLayer, DynamicSlidingWindowLayer}
    return type(cache) is DynamicCache and {type(layer) for layer in cache.layers} <= kinds


def generate(policy, prompt_ids: Tensor, prompt_mask: Tensor, T: int, ends: Tensor, draw) -> None:
    """Call draw(t, rows, logits) for t = 0, 1, ..., T - 1 through `model.generate`, which handles
    any kind of state. All rows run until the last has ended. prompt_ids and prompt_mask: (B, N).

    A logits processor draws each token and masks all others, so that greedy decoding picks it.
    """
    from transformers import GenerationConfig

    steps = itertools.count()

    def keep_one(ids: Tensor, logits: Tensor) -> Tensor:
        tokens = draw(next(steps), slice(None), logits)
        return torch.full_like(logits, -torch.inf).scatter(1, tokens, 0.0)

    settings = {"max_new_tokens": T, "eos_token_id": ends.tolist(), "pad_token_id": ends[0].item()}
    own = policy.generation_config  # its penalties would change the distribution
    policy.generation_config = GenerationConfig(**settings, do_sample=False)
    try:
        policy.generate(prompt_ids, attention_mask=prompt_mask, logits_processor=[keep_one])
    finally:
        policy.generation_config = own


def compute_in_bfloat16(policy) -> None:
    """Run every forward pass of a policy, and of its copies, under autocast to bfloat16."""
    for module in {policy, policy.base_model}:
        autocast = torch.autocast(policy.device.type, torch.bfloat16)
        # bound to the module, so that a deep copy calls its own forward
        module.forward = MethodType(autocast(type(module).forward), module)
