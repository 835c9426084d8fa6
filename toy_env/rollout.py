"""Sampling: G completions for each of P prompts, with the log-probabilities they were drawn with."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from toy_env.policy import encode_prompts, position_ids, token_logps


@dataclass
class Rollout:
    """B = P·G sampled completions. Rows of one group are contiguous, so `rewards.view(P, G)` regroups anything.

    The mask is True up to and including the first EOS, which is an action like any other. It comes from where the
    sampler stopped and never from comparing ids with PAD. A truncated row has a full mask and no EOS.
    """

    prompt_ids: torch.Tensor  # (B, N) left-padded
    prompt_mask: torch.Tensor  # (B, N) bool, False on the padding
    completion_ids: torch.Tensor  # (B, T) right-padded, T = longest completion of the batch
    mask: torch.Tensor  # (B, T) bool
    logps: torch.Tensor  # (B, T) log-probability of each sampled token under the policy that drew it, 0 off the mask
    entropies: torch.Tensor  # (B, T) nats, of the distribution each token was drawn from, 0 off the mask
    truncated: torch.Tensor  # (B,) bool: cut at max_new_tokens before an EOS
    texts: list[str]  # B responses, EOS left out

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows: torch.Tensor) -> "Rollout":
        """The rollout restricted to some rows (a 1-d tensor of indices)."""
        picked = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "texts"}
        return Rollout(**picked, texts=[self.texts[row] for row in rows.tolist()])

    @staticmethod
    def concatenate(rollouts: Sequence["Rollout"]) -> "Rollout":
        """The rows of several rollouts in turn, padded to the widest (prompts left, completions right)."""
        n = max(rollout.prompt_ids.shape[1] for rollout in rollouts)
        t = max(rollout.completion_ids.shape[1] for rollout in rollouts)

        def column(name: str) -> torch.Tensor:
            parts = [getattr(rollout, name) for rollout in rollouts]
            if name != "truncated":
                left, width = (n, 0) if name.startswith("prompt") else (0, t)
                parts = [pad(p, (max(0, left - p.shape[1]), max(0, width - p.shape[1]))) for p in parts]
            return torch.cat(parts)

        texts = [text for rollout in rollouts for text in rollout.texts]
        return Rollout(**{f.name: column(f.name) for f in fields(Rollout) if f.name != "texts"}, texts=texts)


@torch.no_grad()
def sample(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    *,
    group_size: int,
    max_new_tokens: int,
    temperature: float,
    generator: torch.Generator,
) -> Rollout:
    """Draw `group_size` completions of every prompt from the full softmax at `temperature` (0 = greedy, which records
    the log-probabilities of temperature 1).

    No top-k, no top-p: the distribution drawn from is the one that is scored. A row stops at its first EOS and leaves
    the running batch there.

    Why not `model.generate`: measured side by side it takes 2.4 to 3 times as long for the base model (296 against
    122 ms a batch of 32 x 8 on two CPU cores) and 1.4 times for a trained policy, and its prefill repeats every prompt
    G times. `python tests/bench_rollout.py` measures it anew.
    """
    prompt_ids, prompt_mask = encode_prompts(tokenizer, prompts, policy.device)  # (P, N)
    # The prompt is read once per problem; its keys and values are then copied for the G rows of the group.
    output = policy(
        input_ids=prompt_ids,
        attention_mask=prompt_mask,
        position_ids=position_ids(prompt_mask),
        use_cache=True,
        logits_to_keep=1,
    )
    cache = output.past_key_values
    cache.batch_repeat_interleave(group_size)
    logits = output.logits[:, -1].repeat_interleave(group_size, dim=0)  # (B, V): what follows the prompt
    prompt_ids = prompt_ids.repeat_interleave(group_size, dim=0)  # (B, N)
    prompt_mask = prompt_mask.repeat_interleave(group_size, dim=0)

    shape, device = (len(prompt_ids), max_new_tokens), policy.device
    completion_ids = torch.full(shape, tokenizer.pad_token_id, device=device)
    dtype = torch.promote_types(logits.dtype, torch.float32)
    logps, entropies = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))

    lengths = torch.full(shape[:1], max_new_tokens, device=device)
    truncated = torch.ones_like(lengths, dtype=torch.bool)

    rows = torch.arange(shape[0], device=device)  # the rows still running
    attention_mask, positions = prompt_mask, prompt_mask.sum(dim=1, keepdim=True)
    for t in range(max_new_tokens):
        distribution = token_logps(logits, temperature or 1.0)  # (rows, V)
        probabilities = distribution.exp()
        if temperature == 0:
            tokens = distribution.argmax(dim=1, keepdim=True)
        else:
            tokens = torch.multinomial(probabilities, 1, generator=generator)  # (rows, 1)
        completion_ids[rows, t] = tokens[:, 0]
        logps[rows, t] = distribution.gather(1, tokens)[:, 0]
        entropies[rows, t] = -(probabilities * distribution).sum(dim=1)

        going = tokens[:, 0] != tokenizer.eos_token_id
        if not going.all():
            lengths[rows[~going]], truncated[rows[~going]] = t + 1, False
            rows, tokens, attention_mask, positions = (x[going] for x in (rows, tokens, attention_mask, positions))
            cache.batch_select_indices(going)
        if t + 1 == max_new_tokens or len(rows) == 0:
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

    mask = torch.arange(max_new_tokens, device=device) < lengths.unsqueeze(1)  # (B, max_new_tokens)
    longest = int(lengths.max())
    texts = tokenizer.batch_decode(
        [ids[: n - (not cut)] for ids, n, cut in zip(completion_ids.tolist(), lengths.tolist(), truncated.tolist())]
    )
    return Rollout(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        completion_ids=completion_ids[:, :longest],
        mask=mask[:, :longest],
        logps=logps[:, :longest],
        entropies=entropies[:, :longest],
        truncated=truncated,
        texts=texts,
    )
