"""How much fits into memory: the tokens of a forward pass, and the completions sampled at once.

A rough count from the sizes of the model and the total memory of the device, so that the same
machine always chooses the same numbers: they decide how results are rounded.
"""

import os
from collections.abc import Sequence

import torch

HELD = 5  # floats kept for each parameter: weight, reference, gradient, AdamW's two moments
SAVED = 32  # ... for the backward pass, for each token, layer and hidden unit (counted: 19 to 40)
LOGITS = 3  # ... for each token of the vocabulary: logits, their logarithm, a gradient
FEWEST_ROWS = 8  # of a pass, however little memory there seems to be


def floats_to_spare(models: Sequence) -> int:
    """Half of the floats for which there is memory beside what training these models holds. The
    other half is for all that is not counted."""
    device = models[0].device
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
    elif hasattr(os, "sysconf"):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    else:  # on Windows, where Python cannot tell
        total = 8 * 2**30
    parameters = sum(p.numel() for model in models for p in model.parameters())
    return max(0, total // 4 - HELD * parameters) // 2  # a float has four bytes


def tokens_per_pass(models: Sequence, longest: int) -> int:
    """The tokens of a forward pass with gradient that fit into memory, prompts and padding
    included.

    models: the policy, and a critic of its size if there is one. longest: tokens of a row, at most.
    """
    sizes = models[0].config.get_text_config()
    token = SAVED * sizes.num_hidden_layers * sizes.hidden_size + LOGITS * sizes.vocab_size
    return max(FEWEST_ROWS * longest, floats_to_spare(models) // (token * len(models)))


def rows_at_once(policy, longest: int) -> int:
    """The completions that can be sampled at once: their keys and values fit into memory. longest:
    tokens of a row, at most."""
    sizes = policy.config.get_text_config()
    heads = sizes.num_attention_heads
    width = getattr(sizes, "head_dim", None) or sizes.hidden_size // heads
    cached = getattr(sizes, "num_key_value_heads", None) or heads
    token = 2 * sizes.num_hidden_layers * cached * width
    return floats_to_spare([policy]) // (token * longest + LOGITS * sizes.vocab_size)
