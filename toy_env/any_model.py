"""What models other than those of this repository need; a reader of the toy may leave it closed.

Sampling where there is no cache that can be cut row by row, and work in parts that fit into memory where there are many
tokens or a large vocabulary. Nothing here knows a rollout: it takes tensors and functions.
"""

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MOST_LOGITS = 2**26  # that sampling handles at once: a quarter of a gigabyte, and a few copies of it
LOGITS_PER_TOKEN = 4096  # in scoring, this many logits count as one token of a pass: by default 2**26 in all


def has_rows(cache) -> bool:
    """Whether a cache can be repeated and cut row by row: it holds attention's keys and values and nothing else.

    Other kinds inherit the methods from these two, and would leave the rest of their state as it is.
    """
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    kinds = (DynamicLayer, DynamicSlidingWindowLayer)
    return type(cache) is DynamicCache and all(type(layer) in kinds for layer in cache.layers)


def generate(
    policy: "PreTrainedModel",
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    max_new_tokens: int,
    ends: Tensor,
    draw: Callable[[int, Tensor, Tensor], Tensor],
) -> None:
    """Call draw(t, rows, logits) for t = 0, 1, ... by `model.generate`, which knows every kind of state: all rows run
    until the last has ended. prompt_ids and prompt_mask: (B, N).

    It is asked for the most probable token after a processor of logits has drawn one and left no other.
    """
    from transformers import GenerationConfig, LogitsProcessorList

    rows, steps = torch.arange(len(prompt_ids), device=prompt_ids.device), itertools.count()

    def keep_one(ids: Tensor, logits: Tensor) -> Tensor:
        return torch.full_like(logits, -torch.inf).scatter(1, draw(next(steps), rows, logits), 0.0)

    stop = ends.tolist()
    plain = GenerationConfig(max_new_tokens=max_new_tokens, eos_token_id=stop, pad_token_id=stop[0], do_sample=False)
    own, policy.generation_config = policy.generation_config, plain  # its penalties would change the distribution
    try:
        policy.generate(prompt_ids, attention_mask=prompt_mask, logits_processor=LogitsProcessorList([keep_one]))
    finally:
        policy.generation_config = own


def few_logits_at_once(draw: Callable[[int, Tensor, Tensor], Tensor]) -> Callable[[int, Tensor, Tensor], Tensor]:
    """draw(t, rows, logits) for at most MOST_LOGITS logits at a time."""

    def in_chunks(t: int, rows: Tensor, logits: Tensor) -> Tensor:
        at_once = max(1, MOST_LOGITS // logits.shape[1])
        return torch.cat([draw(t, *chunk) for chunk in zip(rows.split(at_once), logits.split(at_once))])

    return in_chunks


def by_passes(
    value: Callable[[Tensor, int, int], Tensor], prompt_mask: Tensor, mask: Tensor, max_tokens: int, vocabulary: int
) -> Tensor:
    """(B, T): value(rows, n, t), (rows, t), of rows whose prompts have n tokens at most and completions t, for all rows
    in passes. Off the mask it is 0.

    If all rows together exceed `max_tokens`, each pass is computed again in the backward pass instead of being kept.
    """
    parts = passes(prompt_mask.sum(dim=1).tolist(), mask.sum(dim=1).tolist(), max_tokens, vocabulary)
    again = sum(cost(len(rows), n, t, vocabulary) for rows, n, t in parts) > max_tokens and torch.is_grad_enabled()
    values, order = [], []
    for indices, n, t in parts:
        rows = torch.tensor(indices, device=mask.device)
        result = checkpoint(value, rows, n, t, use_reentrant=False) if again else value(rows, n, t)
        values.append(pad(result, (0, mask.shape[1] - t)))
        order.append(rows)
    return torch.where(mask, torch.cat(values)[torch.cat(order).argsort()], 0.0)


def cost(rows: int, n: int, t: int, vocabulary: int) -> float:
    """What rows of n prompt and t completion tokens count for in a pass: their tokens, or if that is more their logits,
    4096 for a token."""
    return rows * max(n + t, t * vocabulary / LOGITS_PER_TOKEN)


def passes(
    prompts: list[int], completions: list[int], max_tokens: int, vocabulary: int = 0
) -> list[tuple[list[int], int, int]]:
    """The row indices of each pass and its longest prompt and completion, from the lengths of all rows in tokens.

    Longest completions come first, in passes that cost at most `max_tokens` (or are one row), in which no row is padded
    to more than 1.5 times its length. Completions of the base model have 4 tokens or 50: without the second rule most
    of a batch would be padding.
    """
    order = sorted(range(len(prompts)), key=lambda i: (completions[i], prompts[i]), reverse=True)
    parts = []
    while order:
        n = t = count = 0
        shortest = prompts[order[0]] + completions[order[0]]
        for i in order:
            wider_n, wider_t = max(n, prompts[i]), max(t, completions[i])
            shorter = min(shortest, prompts[i] + completions[i])
            too_much = cost(count + 1, wider_n, wider_t, vocabulary) > max_tokens
            if count and (too_much or wider_n + wider_t > 1.5 * shorter):
                break
            n, t, shortest, count = wider_n, wider_t, shorter, count + 1
        parts.append((order[:count], n, t))
        order = order[count:]
    return parts
