"""Completions and their log-probabilities: sampling them, and scoring them again with gradient.

The two must agree: same temperature, same full softmax, same positions. That is why they are in
one file.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from toy_env.any_model import generate, has_rows
from toy_env.model import encode_prompts, end_ids

# Tokens of padding that a pass may have. A GPU is waiting for more work, by estimate.
MOST_PADDING, MOST_PADDING_ON_GPU = 256, 4096
LEFT_PADDED = {"prompt_ids", "prompt_mask"}  # columns of a rollout; all others end in padding


@dataclass
class Rollout:
    """B sampled completions: P·G of a rollout batch, or those of a minibatch. Rows of one group are
    contiguous in a batch, so `rewards.view(P, G)` regroups anything.

    The mask is True up to and including the first EOS, which is an action like any other. It comes
    from where the sampler stopped and never from comparing ids with PAD. A truncated row has a full
    mask and no EOS.
    """

    prompt_ids: Tensor  # (B, N) left-padded
    prompt_mask: Tensor  # (B, N) bool, False on the padding
    completion_ids: Tensor  # (B, T) right-padded, T = longest completion of the batch
    mask: Tensor  # (B, T) bool
    old_logps: Tensor  # (B, T) log-probability of each token when it was sampled, 0 off the mask
    entropies: Tensor  # (B, T) nats, of the distribution each token was drawn from, 0 off the mask
    truncated: Tensor  # (B,) bool: cut at max_new_tokens before an EOS
    texts: list[str]  # B completions, without their EOS
    ends: list[int]  # ids of all tokens that end a completion
    updates: int = 0  # minibatches of this batch that came before, each with an optimizer step
    # A script adds:
    ref_logps: Tensor | None = None  # (B, T) under the frozen reference policy
    advantages: Tensor | None = None  # (B, 1), one for all tokens of a completion, or (B, T)
    values: Tensor | None = None  # (B, T) the critic's value of the state before each token
    returns: Tensor | None = None  # (B, T) the critic's targets

    def __len__(self) -> int:
        return len(self.texts)

    def columns(self) -> dict[str, Tensor]:
        """The tensors by name. The first dimension of each is the row."""
        return {name: column for name, column in vars(self).items() if isinstance(column, Tensor)}

    def __getitem__(self, rows: Tensor) -> "Rollout":
        """The rollout restricted to some rows, by their indices."""
        columns = {name: column[rows] for name, column in self.columns().items()}
        texts = [self.texts[row] for row in rows.tolist()]
        return Rollout(**columns, texts=texts, ends=self.ends)

    def groups(self, kept: Tensor, group_size: int) -> "Rollout":
        """The rollout restricted to some groups, by their indices."""
        rows = torch.arange(len(self), device=kept.device).view(-1, group_size)
        return self[rows[kept].flatten()]

    def minibatches(
        self, epochs: int, num_minibatches: int, generator: torch.Generator
    ) -> Iterator["Rollout"]:
        """The rows in a new random order for every epoch, cut into minibatches that are equal
        to within a row. With fewer rows than minibatches, each row is one."""
        updates = 0
        for _ in range(epochs):
            order = torch.randperm(len(self), generator=generator, device=self.mask.device)
            for rows in order.tensor_split(num_minibatches):
                if len(rows):
                    yield replace(self[rows], updates=updates)
                    updates += 1

    @staticmethod
    def concatenate(rollouts: Sequence["Rollout"]) -> "Rollout":
        """The rows of several rollouts, padded to the widest: prompts on the left, completions on
        the right."""
        columns = {"texts": [text for rollout in rollouts for text in rollout.texts]}
        for name, column in rollouts[0].columns().items():
            rows = [row for rollout in rollouts for row in getattr(rollout, name)]
            if column.ndim == 1:
                columns[name] = torch.stack(rows)
            else:
                side = "left" if name in LEFT_PADDED else "right"
                columns[name] = pad_sequence(rows, batch_first=True, padding_side=side)
        return Rollout(**columns, ends=rollouts[0].ends)


def position_ids(attention_mask: Tensor) -> Tensor:
    """Positions counted from the first real token, so that left padding moves nothing: (B, N), bool
    to int."""
    return (attention_mask.cumsum(dim=1) - 1).clamp(min=0)


def token_logps(logits: Tensor, temperature: float) -> Tensor:
    """log softmax(logits / temperature) over the last axis, in float32 or better."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1:  # the division would make a copy
        logits = logits / temperature
    return logits.log_softmax(dim=-1)


@torch.no_grad()
def sample(
    policy,
    tokenizer,
    prompts: list[str],
    group_size: int,
    max_new_tokens: int,
    temperature: float,
    generator: torch.Generator,
) -> Rollout:
    """Draw `group_size` completions of every prompt from the full softmax at `temperature`.

    No top-k, no top-p: the distribution drawn from is the one that is scored. A row stops at its
    first end token and leaves the running batch there. Temperature 0 is greedy and records the
    log-probabilities of temperature 1. The generator must be on the policy's device. Models whose
    state cannot be cut row by row are sampled through `model.generate`. Raises FloatingPointError
    if a logit is not finite. Numbers stay on the device, as a GPU that is asked for one lets the
    program wait; only the rows that go on are read, once a token.
    """
    prompt_ids, prompt_mask = encode_prompts(tokenizer, prompts, policy.device)  # (P, N)
    # The model reads each prompt once; its keys and values are then copied for the whole group.
    output = policy(
        input_ids=prompt_ids,
        attention_mask=prompt_mask,
        position_ids=position_ids(prompt_mask),
        use_cache=True,
        logits_to_keep=1,
    )
    name = "cache" if "cache" in output else "past_key_values"  # transformers 5.24 renamed it
    cache = output.get(name)
    logits = output.logits[:, -1].repeat_interleave(group_size, dim=0)  # (B, V): after the prompt
    prompt_ids = prompt_ids.repeat_interleave(group_size, dim=0)  # (B, N)
    prompt_mask = prompt_mask.repeat_interleave(group_size, dim=0)  # (B, N)

    B, T, device = len(prompt_ids), max_new_tokens, policy.device
    ends = end_ids(policy, tokenizer)
    ids = torch.zeros(B, T, dtype=torch.long, device=device)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    logps = torch.zeros(B, T, dtype=torch.promote_types(logits.dtype, torch.float32), device=device)
    entropies = torch.zeros_like(logps)
    running = torch.ones(B, dtype=torch.bool, device=device)  # has drawn no end token yet

    def draw(t: int, alive: Tensor, logits: Tensor) -> Tensor:
        """Draw token t of the rows `alive` from their logits (rows, V) and write it into the
        columns above. Returns the tokens (rows, 1)."""
        log_p = token_logps(logits, temperature or 1.0)  # (rows, V)
        p = log_p.exp()
        if temperature:  # what torch.multinomial does after checks that read numbers
            noise = torch.empty_like(p).exponential_(generator=generator)
            tokens = (p / noise).argmax(dim=1, keepdim=True)
        else:
            tokens = log_p.argmax(dim=1, keepdim=True)
        ids[alive, t] = tokens[:, 0]
        mask[alive, t] = running[alive]
        logps[alive, t] = log_p.gather(1, tokens)[:, 0]
        entropies[alive, t] = -(p * log_p).sum(dim=1)
        running[alive] = running[alive] & ~(tokens == ends).any(dim=1)
        return tokens

    # In bfloat16 each forward pass enables autocast itself. Its copies of the weights are dropped
    # when the outermost context ends: this one, which casts nothing, keeps them for all tokens.
    with torch.autocast(device.type, enabled=False):
        if not has_rows(cache):
            generate(policy, prompt_ids, prompt_mask, T, ends, draw)
        else:
            cache.batch_repeat_interleave(group_size)
            alive = torch.arange(B, device=device)  # the rows that are still running
            attention_mask = prompt_mask
            positions = prompt_mask.sum(dim=1, keepdim=True)
            for t in range(T):
                tokens = draw(t, alive, logits)  # (rows, 1)
                kept = running[alive].nonzero().squeeze(1)  # of the rows, those that go on
                if t + 1 == T or not len(kept):
                    break
                if len(kept) < len(alive):
                    alive, tokens = alive[kept], tokens[kept]
                    attention_mask, positions = attention_mask[kept], positions[kept]
                    cache.batch_select_indices(kept)
                attention_mask = pad(attention_mask, (0, 1), value=True)
                output = policy(
                    input_ids=tokens,
                    attention_mask=attention_mask,
                    position_ids=positions,
                    use_cache=True,
                    **{name: cache},
                )
                logits, positions = output.logits[:, -1], positions + 1

    if not entropies.isfinite().all():
        raise FloatingPointError("the policy's logits are not finite")
    lengths = mask.sum(dim=1)
    shown = lengths - (~running).long()  # a text does not show its EOS
    texts = tokenizer.batch_decode(
        [tokens[:length] for tokens, length in zip(ids.tolist(), shown.tolist())]
    )
    ids = ids.masked_fill(~mask, tokenizer.pad_token_id)
    columns = ids, mask, logps * mask, entropies * mask
    ids, mask, logps, entropies = (column[:, : int(lengths.max())] for column in columns)
    return Rollout(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        completion_ids=ids,
        mask=mask,
        old_logps=logps,
        entropies=entropies,
        truncated=running,
        texts=texts,
        ends=ends.tolist(),
    )


def completion_logps(
    policy, rollout: Rollout, temperature: float, max_tokens_per_pass: int = 16_384
) -> Tensor:
    """Log-probability of every sampled token under `policy`, with gradient: (B, T), 0 off the mask.

    `temperature` must be the one the rollout was drawn at: the policy being trained is
    softmax(logits / temperature).
    """

    def score(part: Rollout) -> Tensor:
        ids = sequences(part)  # (b, S)
        unused = int(part.prompt_mask.sum(dim=1).min()) - 1  # outputs that predict only prompts
        used = ids.shape[1] - unused
        # The slice is for models that ignore logits_to_keep.
        logits = policy(input_ids=ids, use_cache=False, logits_to_keep=used).logits[:, -used:]
        # The causal shift: the output at a position predicts the *next* token, so the last output
        # predicts nothing here.
        log_p, predicted = token_logps(logits[:, :-1], temperature), ids[:, unused + 1 :]
        logps = log_p.gather(2, predicted.unsqueeze(2)).squeeze(2)  # (b, S - 1 - unused)
        return at_completions(logps, part, unused)

    return in_passes(score, rollout, max_tokens_per_pass)


def sequences(part: Rollout) -> Tensor:
    """Prompts and completions as a model reads them: (b, S), S the longest of the two together.

    Rows have no padding in front: it comes last, where no token attends to it, so that no mask is
    needed.
    """
    ids = torch.cat([part.prompt_ids, part.completion_ids], dim=1)
    padding = ~torch.cat([part.prompt_mask, part.mask], dim=1)
    # A stable sort moves the padding to the end and keeps the order of the tokens.
    ids = ids.gather(1, padding.int().argsort(dim=1, stable=True))
    return ids[:, : int((~padding).sum(dim=1).max())]


def at_completions(values: Tensor, part: Rollout, unused: int = 0) -> Tensor:
    """The values of the tokens of each completion, (b, T), from values along `sequences`, (b, S).

    The value of a token stands one position *before* it, where it is predicted. `values` lacks the
    first `unused` positions.
    """
    first = part.prompt_mask.sum(dim=1, keepdim=True) - 1 - unused  # (b, 1): y_1 is predicted here
    positions = first + torch.arange(part.mask.shape[1], device=values.device)  # (b, T)
    return values.gather(1, positions.clamp(max=values.shape[1] - 1))


def in_passes(forward: Callable, rollout: Rollout, max_tokens: int = 16_384) -> Tensor:
    """forward(part), (b, T), for parts of a `Rollout` (elsewhere called micro-batches), put back in
    order: (B, T), 0 off the mask.

    The loss is still taken over all B rows at once, so that passes change neither a normaliser nor,
    but for rounding, the gradient. If the rows have more than `max_tokens`, each pass is recomputed
    in the backward pass instead of being kept.
    """
    device = rollout.mask.device
    lengths = (rollout.prompt_mask.sum(dim=1) + rollout.mask.sum(dim=1)).tolist()
    most_padding = MOST_PADDING if device.type == "cpu" else MOST_PADDING_ON_GPU
    parts = passes(lengths, max_tokens, most_padding)
    order = [torch.tensor(rows, device=device) for rows in parts]
    if sum(lengths) > max_tokens and torch.is_grad_enabled():
        forward = partial(checkpoint, forward, use_reentrant=False)
    values = torch.cat([forward(rollout[rows]) for rows in order])
    return torch.where(rollout.mask, values[torch.cat(order).argsort()], 0.0)


def passes(lengths: list[int], max_tokens: int, most_padding: int) -> list[list[int]]:
    """The row indices of each pass, from the lengths of the rows.

    The longest rows come first. A pass has at most `most_padding` tokens of padding, and at most
    `max_tokens` with its padding unless it is a single row.
    """
    parts, width, padding = [], 0, 0
    for i in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        padding += width - lengths[i]
        if not parts or padding > most_padding or width * (len(parts[-1]) + 1) > max_tokens:
            width, padding = lengths[i], 0
            parts.append([])
        parts[-1].append(i)
    return parts
