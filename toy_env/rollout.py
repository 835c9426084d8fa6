"""Completions and their log-probabilities: sampling them, and scoring them again with gradient.

The two must agree: same temperature, same full softmax, same positions. That is why they are in one
file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from toy_env import Diverged
from toy_env.any_model import cache_name, generate, has_rows, in_passes, keep_casts
from toy_env.model import encode_prompts, end_ids


@dataclass
class Rollout:
    """B = P·G sampled completions. Rows of one group are contiguous, so `rewards.view(P, G)`
    regroups anything.

    The mask is True up to and including the first EOS, which is an action like any other. It comes
    from where the sampler stopped and never from comparing ids with PAD. A truncated row has a full
    mask and no EOS.
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
    values: Tensor | None = None  # (B, T) the critic's value of the state before each token
    returns: Tensor | None = None  # (B, T) the critic's targets

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows: Tensor) -> "Rollout":
        """The rollout restricted to some rows: a 1-d tensor of indices, or a mask (B,)."""
        rows = rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows
        columns = {
            name: column[rows] for name, column in vars(self).items() if isinstance(column, Tensor)
        }
        return Rollout(**columns, texts=[self.texts[row] for row in rows.tolist()])

    def groups(self, kept: Tensor, group_size: int) -> "Rollout":
        """The rollout restricted to some groups, by their indices."""
        return self[
            torch.arange(len(self), device=kept.device).view(-1, group_size)[kept].flatten()
        ]

    def minibatches(
        self, epochs: int, num_minibatches: int, generator: torch.Generator
    ) -> Iterator["Rollout"]:
        """The rows in a new random order for every epoch, cut into equal minibatches. An empty
        rollout has none."""
        for _ in range(epochs if len(self) else 0):
            order = torch.randperm(len(self), generator=generator, device=self.mask.device)
            yield from (self[rows] for rows in order.tensor_split(min(len(self), num_minibatches)))

    @staticmethod
    def concatenate(rollouts: Sequence["Rollout"]) -> "Rollout":
        """The rows of several rollouts, padded to the widest: prompts on the left, completions on
        the right."""
        columns = {"texts": [text for rollout in rollouts for text in rollout.texts]}
        for name in (
            name for name, column in vars(rollouts[0]).items() if isinstance(column, Tensor)
        ):
            parts = [getattr(rollout, name) for rollout in rollouts]
            if parts[0].ndim > 1:
                missing = [max(part.shape[1] for part in parts) - part.shape[1] for part in parts]
                parts = [
                    pad(p, (n, 0) if name.startswith("prompt") else (0, n))
                    for p, n in zip(parts, missing)
                ]
            columns[name] = torch.cat(parts)
        return Rollout(**columns)


def position_ids(attention_mask: Tensor) -> Tensor:
    """Positions counted from the first real token, so that left padding moves nothing: (B, N), bool
    to int."""
    return (attention_mask.cumsum(dim=1) - 1).clamp(min=0)


def token_logps(logits: Tensor, temperature: float) -> Tensor:
    """log softmax(logits / temperature) over the last axis, in float32 or better."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (logits if temperature == 1 else logits / temperature).log_softmax(
        dim=-1
    )  # one copy less at 1


@torch.no_grad()
def sample(
    policy,
    tokenizer,
    prompts: list,
    group_size: int,
    max_new_tokens: int,
    temperature: float,
    generator,
    ends=None,
) -> Rollout:
    """Draw `group_size` completions of every prompt from the full softmax at `temperature` (0 =
    greedy, which records the log-probabilities of temperature 1), with a torch.Generator on the
    policy's device.

    No top-k, no top-p: the distribution drawn from is the one that is scored. A row stops at its
    first end token (one of `ends`, a tensor of ids, by default `model.end_ids`) and leaves the
    running batch there. Raises Diverged if a logit is not finite. `model.generate`, by which TRL
    samples, serves models whose state cannot be cut row by row.
    """
    prompt_ids, prompt_mask = encode_prompts(tokenizer, prompts, policy.device)  # (P, N)
    ends = end_ids(policy, tokenizer) if ends is None else ends
    # The prompt is read once per problem; its keys and values are then copied for the G rows of the group.
    attention = {"attention_mask": prompt_mask, "position_ids": position_ids(prompt_mask)}
    output = policy(input_ids=prompt_ids, **attention, use_cache=True, logits_to_keep=1)
    name = cache_name(policy)
    cache = getattr(output, name, None)
    logits = output.logits[:, -1].repeat_interleave(
        group_size, dim=0
    )  # (B, V): what follows the prompt
    prompt_ids, prompt_mask = (
        x.repeat_interleave(group_size, dim=0) for x in (prompt_ids, prompt_mask)
    )  # (B, N)

    B, T, device = len(prompt_ids), max_new_tokens, policy.device
    ids, mask = (
        torch.zeros(B, T, dtype=dtype, device=device) for dtype in (torch.long, torch.bool)
    )
    logps = torch.zeros(B, T, dtype=torch.promote_types(logits.dtype, torch.float32), device=device)
    entropies, truncated = torch.zeros_like(logps), torch.ones(B, dtype=torch.bool, device=device)

    def draw(t: int, rows: Tensor, logits: Tensor) -> Tensor:
        """Draw and keep the t-th token of some rows from logits (rows, V); returns the tokens
        (rows, 1)."""
        log_p = token_logps(logits, temperature or 1.0)  # (rows, V)
        p = log_p.exp()
        if not p.isfinite().all():
            raise Diverged("the policy's logits are not finite")
        tokens = (
            torch.multinomial(p, 1, generator=generator)
            if temperature
            else log_p.argmax(dim=1, keepdim=True)
        )
        ids[rows, t] = tokens[:, 0]
        mask[rows, t] = truncated[rows]  # False where the row has ended before
        logps[rows, t] = log_p.gather(1, tokens)[:, 0]
        entropies[rows, t] = -(p * log_p).sum(dim=1)
        truncated[rows] = truncated[rows] & ~(tokens == ends).any(dim=1)
        return tokens

    with keep_casts(policy):
        if has_rows(cache):
            cache.batch_repeat_interleave(group_size)
            rows = torch.arange(B, device=device)  # those still running
            attention_mask, positions = prompt_mask, prompt_mask.sum(dim=1, keepdim=True)
            for t in range(T):
                tokens = draw(t, rows, logits)  # (rows, 1)
                running = truncated[rows]
                if t + 1 == T or not running.any():
                    break
                if not running.all():
                    rows, tokens = rows[running], tokens[running]
                    attention_mask, positions = attention_mask[running], positions[running]
                    cache.batch_select_indices(running)
                attention_mask = torch.cat(
                    [attention_mask, torch.ones_like(tokens, dtype=torch.bool)], dim=1
                )
                attention = {"attention_mask": attention_mask, "position_ids": positions}
                output = policy(input_ids=tokens, **attention, **{name: cache}, use_cache=True)
                logits, positions = output.logits[:, -1], positions + 1
        else:
            generate(policy, prompt_ids, prompt_mask, T, ends, draw)

    lengths = mask.sum(dim=1)
    ids, logps, entropies = (
        ids.masked_fill(~mask, tokenizer.pad_token_id),
        logps * mask,
        entropies * mask,
    )
    finished = zip(ids.tolist(), lengths.tolist(), truncated.tolist())
    texts = tokenizer.batch_decode([row[: n - (not cut)] for row, n, cut in finished])
    sampled = (column[:, : int(lengths.max())] for column in (ids, mask, logps, entropies))
    return Rollout(prompt_ids, prompt_mask, *sampled, truncated, texts)


def completion_logps(
    policy, rollout: Rollout, temperature: float, max_tokens_per_pass: int = 16_384
) -> Tensor:
    """Log-probability of every sampled token under `policy`, with gradient: (B, T), 0 off the mask.

    `temperature` must be the one the rollout was drawn at: the policy being trained is
    softmax(logits / temperature).
    """

    def score(part: Rollout) -> Tensor:
        ids = sequences(part)  # (b, S)
        S, unused = (
            ids.shape[1],
            int(part.prompt_mask.sum(dim=1).min()) - 1,
        )  # no completion needs the first outputs
        logits = policy(input_ids=ids, use_cache=False, logits_to_keep=S - unused).logits[
            :, unused - S :
        ]
        # The causal shift: the output at a position predicts the *next* token, and the last one predicts nothing here.
        logits, predicted = (
            logits[:, :-1],
            ids[:, unused + 1 :],
        )  # (b, S - 1 - unused, V), (b, S - 1 - unused)
        logps = token_logps(logits, temperature).gather(2, predicted.unsqueeze(2)).squeeze(2)
        return at_completions(logps, part, unused)

    return in_passes(
        score, rollout, max_tokens_per_pass, policy.get_input_embeddings().weight.shape[0]
    )


def sequences(part: Rollout) -> Tensor:
    """Prompts and completions as a model reads them: (b, S), S the longest of the two together.

    Rows have no padding in front: it comes last, where no token attends to it, so that no mask is
    needed.
    """
    ids = torch.cat([part.prompt_ids, part.completion_ids], dim=1)
    padding = ~torch.cat([part.prompt_mask, part.mask], dim=1)
    ids = ids.gather(1, padding.int().argsort(dim=1, stable=True))
    return ids[:, : int((~padding).sum(dim=1).max())]


def at_completions(values: Tensor, part: Rollout, unused: int = 0) -> Tensor:
    """The values of the tokens of each completion, (b, T), from those along `sequences`, (b, S -
    unused): each stands a position *before* its token, and the first `unused` positions are left
    out."""
    last_of_prompt = part.prompt_mask.sum(dim=1, keepdim=True) - 1  # (b, 1): y_1 is predicted here
    positions = (
        last_of_prompt - unused + torch.arange(part.mask.shape[1], device=values.device)
    )  # (b, T)
    return values.gather(1, positions.clamp(max=values.shape[1] - 1))
