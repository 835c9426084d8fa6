"""Completions and their log-probabilities: sampling them, and scoring them again with gradient.

The two must agree: same temperature, same full softmax, same positions. That is why they are in one file.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from toy_env import Diverged
from toy_env.model import encode_prompts, end_ids, keep_casts, require_positions

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MOST_LOGITS = 2**26  # that sampling handles at once: a quarter of a gigabyte, and a few copies of it
LOGITS_PER_TOKEN = 4096  # in scoring, this many logits count as one token of a pass: by default 2**26 in all


@dataclass
class Rollout:
    """B = P·G sampled completions. Rows of one group are contiguous, so `rewards.view(P, G)` regroups anything.

    The mask is True up to and including the first EOS, which is an action like any other. It comes from where the
    sampler stopped and never from comparing ids with PAD. A truncated row has a full mask and no EOS.
    """

    prompt_ids: Tensor  # (B, N) left-padded
    prompt_mask: Tensor  # (B, N) bool, False on the padding
    completion_ids: Tensor  # (B, T) right-padded, T = longest completion of the batch
    mask: Tensor  # (B, T) bool
    logps: Tensor  # (B, T) log-probability of each sampled token under the policy that drew it, 0 off the mask
    entropies: Tensor  # (B, T) nats, of the distribution each token was drawn from, 0 off the mask
    truncated: Tensor  # (B,) bool: cut at max_new_tokens before an EOS
    texts: list[str]  # B completions, without their EOS
    # What a script adds:
    ref_logps: Tensor | None = None  # (B, T) under the frozen reference policy
    advantages: Tensor | None = None  # (B, 1), one for all tokens of a completion, or (B, T)
    values: Tensor | None = None  # (B, T) what a critic forecast before each token
    returns: Tensor | None = None  # (B, T) what it should have forecast

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows: Tensor) -> "Rollout":
        """The rollout restricted to some rows: a 1-d tensor of indices, or a mask (B,)."""
        rows = rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows
        picked = {name: column[rows] for name, column in vars(self).items() if isinstance(column, Tensor)}
        return Rollout(**picked, texts=[self.texts[row] for row in rows.tolist()])

    def groups(self, kept: Tensor, group_size: int) -> "Rollout":
        """The rollout restricted to some groups, by their indices."""
        rows = torch.arange(len(self), device=kept.device).view(-1, group_size)  # (P, G)
        return self[rows[kept].flatten()]

    @staticmethod
    def concatenate(rollouts: Sequence["Rollout"]) -> "Rollout":
        """The rows of several rollouts in turn, padded to the widest (prompts left, completions right), without what a
        script has added."""
        n = max(rollout.prompt_ids.shape[1] for rollout in rollouts)
        t = max(rollout.completion_ids.shape[1] for rollout in rollouts)

        def column(name: str) -> Tensor:
            parts = [getattr(rollout, name) for rollout in rollouts]
            if name != "truncated":
                left, width = (n, 0) if name.startswith("prompt") else (0, t)
                parts = [pad(p, (max(0, left - p.shape[1]), max(0, width - p.shape[1]))) for p in parts]
            return torch.cat(parts)

        texts = [text for rollout in rollouts for text in rollout.texts]
        names = [field.name for field in fields(Rollout) if field.default is MISSING and field.name != "texts"]
        return Rollout(**{name: column(name) for name in names}, texts=texts)


def position_ids(attention_mask: Tensor) -> Tensor:
    """Positions counted from the first real token, so that left padding moves nothing: (B, N), bool to int."""
    return (attention_mask.cumsum(dim=1) - 1).clamp(min=0)


def token_logps(logits: Tensor, temperature: float) -> Tensor:
    """log softmax(logits / temperature) over the last axis, in float32 or better."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (logits if temperature == 1 else logits / temperature).log_softmax(dim=-1)  # one copy less at 1


# ---------------------------------------------------------------------- sampling


@torch.no_grad()
def sample(
    policy: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    prompts: Sequence[str],
    group_size: int,
    max_new_tokens: int,
    temperature: float,
    generator: torch.Generator,
    ends: Tensor | None = None,
) -> Rollout:
    """Draw `group_size` completions of every prompt from the full softmax at `temperature` (0 = greedy, which records
    the log-probabilities of temperature 1).

    No top-k, no top-p: the distribution drawn from is the one that is scored. A row stops at its first end token (one
    of `ends`, by default of `model.end_ids`) and leaves the running batch there. Raises Diverged if a logit is not
    finite, UsageError if the model has too few positions.

    Why not `model.generate`: it takes 2.4 to 3 times as long for the base model and 1.4 times for a trained policy,
    and its prefill repeats every prompt G times (`lessons/experiments/bench_rollout.py`). It is used where it must be:
    for models that keep a state which cannot be repeated and cut row by row.
    """
    prompt_ids, prompt_mask = encode_prompts(tokenizer, prompts, policy.device)  # (P, N)
    require_positions(policy, prompt_ids.shape[1], max_new_tokens)
    # The prompt is read once per problem; its keys and values are then copied for the G rows of the group.
    output = policy(
        input_ids=prompt_ids,
        attention_mask=prompt_mask,
        position_ids=position_ids(prompt_mask),
        use_cache=True,
        logits_to_keep=1,
    )
    cache = getattr(output, "past_key_values", None)
    logits = output.logits[:, -1].repeat_interleave(group_size, dim=0)  # (B, V): what follows the prompt
    prompt_ids = prompt_ids.repeat_interleave(group_size, dim=0)  # (B, N)
    prompt_mask = prompt_mask.repeat_interleave(group_size, dim=0)

    ends = end_ids(policy, tokenizer) if ends is None else ends
    draws = Draws(logits, max_new_tokens, temperature, generator, ends)
    with keep_casts(policy):
        if has_rows(cache):
            cache.batch_repeat_interleave(group_size)
            draw_with_cache(policy, prompt_mask, cache, logits, draws)
        else:
            draw_with_generate(policy, prompt_ids, prompt_mask, draws)

    mask = torch.arange(max_new_tokens, device=policy.device) < draws.lengths.unsqueeze(1)  # (B, max_new_tokens)
    longest = int(draws.lengths.max())
    completion_ids = draws.ids.masked_fill(~mask, tokenizer.pad_token_id)
    lengths, truncated = draws.lengths.tolist(), draws.truncated.tolist()
    texts = tokenizer.batch_decode(
        [ids[: n - (not cut)] for ids, n, cut in zip(completion_ids.tolist(), lengths, truncated)]
    )
    return Rollout(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        completion_ids=completion_ids[:, :longest],
        mask=mask[:, :longest],
        logps=(draws.logps * mask)[:, :longest],
        entropies=(draws.entropies * mask)[:, :longest],
        truncated=draws.truncated,
        texts=texts,
    )


class Draws:
    """Tokens drawn so far for B rows of at most T tokens, with their log-probabilities and entropies."""

    def __init__(
        self, logits: Tensor, max_new_tokens: int, temperature: float, generator: torch.Generator, ends: Tensor
    ) -> None:
        shape, device = (len(logits), max_new_tokens), logits.device
        dtype = torch.promote_types(logits.dtype, torch.float32)
        self.temperature, self.generator, self.ends = temperature, generator, ends
        self.ids = torch.zeros(shape, dtype=torch.long, device=device)
        self.logps, self.entropies = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        self.lengths = torch.full(shape[:1], max_new_tokens, device=device)
        self.truncated = torch.ones_like(self.lengths, dtype=torch.bool)

    def draw(self, t: int, rows: Tensor, logits: Tensor) -> Tensor:
        """Draw the t-th token of some rows from logits (rows, V); returns the tokens (rows, 1)."""
        at_once = max(1, MOST_LOGITS // logits.shape[1])
        return torch.cat([self._draw(t, *part) for part in zip(rows.split(at_once), logits.split(at_once))])

    def _draw(self, t: int, rows: Tensor, logits: Tensor) -> Tensor:
        distribution = token_logps(logits, self.temperature or 1.0)
        probabilities = distribution.exp()
        if not probabilities.isfinite().all():
            raise Diverged("the policy's logits are not finite")
        if self.temperature == 0:
            tokens = distribution.argmax(dim=1, keepdim=True)
        else:
            tokens = torch.multinomial(probabilities, 1, generator=self.generator)
        self.ids[rows, t] = tokens[:, 0]
        self.logps[rows, t] = distribution.gather(1, tokens)[:, 0]
        self.entropies[rows, t] = -(probabilities * distribution).sum(dim=1)
        ended = rows[(tokens == self.ends).any(dim=1)]
        ended = ended[self.truncated[ended]]  # for the first time
        self.lengths[ended], self.truncated[ended] = t + 1, False
        return tokens


def has_rows(cache) -> bool:
    """Whether a cache can be repeated and cut row by row: it holds attention's keys and values and nothing else.

    Other kinds inherit the methods from these two, and would leave the rest of their state as it is.
    """
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    kinds = (DynamicLayer, DynamicSlidingWindowLayer)
    return type(cache) is DynamicCache and all(type(layer) in kinds for layer in cache.layers)


def draw_with_cache(policy: "PreTrainedModel", prompt_mask: Tensor, cache, logits: Tensor, draws: Draws) -> None:
    """Draw with a cache of the prompts' keys and values and logits (B, V) of the first tokens. Rows leave as they end.

    prompt_mask: (B, N).
    """
    rows = torch.arange(len(prompt_mask), device=policy.device)  # the rows still running
    attention_mask, positions = prompt_mask, prompt_mask.sum(dim=1, keepdim=True)
    for t in range(draws.ids.shape[1]):
        tokens = draws.draw(t, rows, logits)  # (rows, 1)
        going = draws.lengths[rows] > t + 1
        if not going.all():
            rows, tokens, attention_mask, positions = (x[going] for x in (rows, tokens, attention_mask, positions))
            cache.batch_select_indices(going)
        if not going.any():
            break
        attention_mask = torch.cat([attention_mask, torch.ones_like(tokens, dtype=torch.bool)], dim=1)
        output = policy(
            input_ids=tokens,
            attention_mask=attention_mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        )
        logits, positions = output.logits[:, -1], positions + 1


def draw_with_generate(policy: "PreTrainedModel", prompt_ids: Tensor, prompt_mask: Tensor, draws: Draws) -> None:
    """Draw by `model.generate`, which knows every kind of state: all rows run until the last has ended.

    It is asked for the most probable token after a processor of logits has drawn one and left no other.
    """
    from transformers import GenerationConfig, LogitsProcessorList

    rows, steps = torch.arange(len(prompt_ids), device=prompt_ids.device), itertools.count()

    def draw(ids: Tensor, logits: Tensor) -> Tensor:
        return torch.full_like(logits, -torch.inf).scatter(1, draws.draw(next(steps), rows, logits), 0.0)

    ends, most = draws.ends.tolist(), draws.ids.shape[1]
    plain = GenerationConfig(max_new_tokens=most, eos_token_id=ends, pad_token_id=ends[0], do_sample=False)
    own, policy.generation_config = policy.generation_config, plain  # its penalties would change the distribution
    try:
        policy.generate(prompt_ids, attention_mask=prompt_mask, logits_processor=LogitsProcessorList([draw]))
    finally:
        policy.generation_config = own


# ---------------------------------------------------------------------- scoring


def completion_logps(
    policy: "PreTrainedModel", rollout: Rollout, temperature: float, max_tokens_per_pass: int = 16_384
) -> Tensor:
    """Log-probability of every sampled token under `policy`, with gradient: (B, T), 0 off the mask.

    `temperature` must be the one the rollout was drawn at: the policy being trained is softmax(logits / temperature).
    """

    def score(part: Rollout) -> Tensor:
        T = part.completion_ids.shape[1]
        logits = policy(**model_inputs(part), logits_to_keep=T + 1).logits  # (b, T + 1, V), of the last T + 1 positions
        # The causal shift: the output at a position predicts the *next* token. y_1 .. y_T are predicted at the last
        # prompt token and at y_1 .. y_{T-1}: positions N-1 .. N+T-2. The output at y_T predicts nothing here.
        logits = logits[:, -(T + 1) : -1]  # (b, T, V)
        return token_logps(logits, temperature).gather(2, part.completion_ids.unsqueeze(2)).squeeze(2)  # (b, T)

    return in_passes(score, rollout, max_tokens_per_pass, policy.get_input_embeddings().weight.shape[0])


def model_inputs(part: Rollout) -> dict:
    """What a transformer takes to read prompts and completions, (b, N + T) each."""
    attention_mask = torch.cat([part.prompt_mask, part.mask], dim=1)
    return {
        "input_ids": torch.cat([part.prompt_ids, part.completion_ids], dim=1),
        "attention_mask": attention_mask,
        "position_ids": position_ids(attention_mask),
        "use_cache": False,
    }


def in_passes(
    forward: Callable[[Rollout], Tensor], rollout: Rollout, max_tokens_per_pass: int, vocabulary: int = 0
) -> Tensor:
    """(B, T): forward(part), (b, t), for parts of the rollout, put back in order and 0 off the mask.

    The loss is still taken over all B rows at once, so cutting a batch into passes changes no normaliser and no
    gradient. If the batch exceeds `max_tokens_per_pass`, each part is computed again in the backward pass instead of
    being kept: memory stays that of one pass. `vocabulary` is the number of logits that forward makes for each token of
    a completion.
    """
    parts = list(passes(rollout, max_tokens_per_pass, vocabulary))
    tokens = sum(cost(len(p), p.prompt_ids.shape[1], p.mask.shape[1], vocabulary) for _, p in parts)
    again = tokens > max_tokens_per_pass and torch.is_grad_enabled()
    values = [checkpoint(forward, part, use_reentrant=False) if again else forward(part) for _, part in parts]
    T = rollout.mask.shape[1]
    values = torch.cat([pad(value, (0, T - value.shape[1])) for value in values])  # (B, T), longest rows first
    order = torch.cat([rows for rows, _ in parts])
    return torch.where(rollout.mask, values[order.argsort()], 0.0)


def cost(rows: int, n: int, t: int, vocabulary: int) -> float:
    """What rows of n prompt and t completion tokens count for in a pass: their tokens, or if that is more their logits,
    4096 for a token."""
    return rows * max(n + t, t * vocabulary / LOGITS_PER_TOKEN)


def passes(rollout: Rollout, max_tokens: int, vocabulary: int = 0) -> Iterator[tuple[Tensor, Rollout]]:
    """Row indices, and those rows cut to their longest prompt and completion: longest completions first, in parts that
    cost at most `max_tokens` (or are one row), in which no row is padded to more than 1.5 times its length.

    Completions of the base model have 4 tokens or 50: without the second rule most of a batch would be padding.
    """
    prompts, completions = (mask.sum(dim=1).tolist() for mask in (rollout.prompt_mask, rollout.mask))
    order = sorted(range(len(rollout)), key=lambda i: (completions[i], prompts[i]), reverse=True)
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
        rows = torch.tensor(order[:count], device=rollout.mask.device)
        part = rollout[rows]
        part.prompt_ids, part.prompt_mask = part.prompt_ids[:, -n:], part.prompt_mask[:, -n:]
        part.completion_ids, part.mask = part.completion_ids[:, :t], part.mask[:, :t]
        yield rows, part
        order = order[count:]
