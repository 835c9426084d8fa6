"""What must hold before a policy is trained: of a model, before the run begins, and of its first
minibatch."""

import contextlib
import traceback
from collections.abc import Iterator, Sequence
from textwrap import indent

import torch
from torch import Tensor

from toy_env import Diverged, UsageError, is_out_of_memory, reason
from toy_env.any_model import in_float32, is_in_bfloat16
from toy_env.model import encode_prompts, end_ids
from toy_env.rollout import Rollout, completion_logps, sample, token_logps

PROMPTS = (
    "12+34-56+78-90?",
    "1+2?",
)  # of arithmetic: the longest, with every character, and the shortest
TOLERANCE = 1e-3  # between two log-probabilities that should be the same, in float32
TOLERANCE_BFLOAT16 = (
    0.05  # of their mean distance, in bfloat16: which rounds a logit of 20 by up to .06
)


def check_model(
    policy, tokenizer, max_new_tokens: int, prompts: Sequence[str] = PROMPTS, networks=None
) -> None:
    """Try a model on the prompts of a task. Raises UsageError, in one line, if it cannot be used
    here.

    Its tokenizer must fit it, keep every character of a problem and not end it; its positions must
    suffice, and a completion must have the same log-probabilities whether it is sampled in a batch
    from which rows leave, scored in a padded batch, or read alone: in float32, where rounding hides
    no mistake. `networks` is given if the policy is to be trained: a list of what is trained with
    it. Each must run, and the policy's gradient must be finite.
    """
    prompts = sorted(prompts, key=len, reverse=True)
    ids, _ = encode_prompts(tokenizer, prompts, policy.device)  # (P, N)
    ends, vocabulary = end_ids(policy, tokenizer), policy.get_input_embeddings().weight.shape[0]
    if (largest := max(tokenizer.pad_token_id, ids.max().item(), *ends.tolist())) >= vocabulary:
        sizes = f"the tokenizer has ids up to {largest}, the model a vocabulary of {vocabulary}"
        raise UsageError(
            f"{sizes}: they do not belong together; give the folder of a model with its own tokenizer"
        )
    for prompt, text in zip(prompts, tokenizer.batch_decode(ids)):
        if "".join(prompt.split()) not in "".join(text.split()):
            raise UsageError(
                f"the tokenizer loses characters: {prompt!r} became {text[:200]!r}; give another model"
            )
    if torch.isin(ids[:, -1], ends).any():
        raise UsageError(
            "the tokenizer ends every prompt, which leaves nothing to complete; give another model"
        )
    positions = getattr(policy.config.get_text_config(), "max_position_embeddings", None)
    if positions and 0 < positions < (needed := ids.shape[1] + max_new_tokens):
        both = f"a prompt of {ids.shape[1]} tokens and a completion of {max_new_tokens} (--max_new_tokens)"
        instead = "give a smaller --max_new_tokens or another model"
        raise UsageError(
            f"{both} need {needed} positions, and the model has {positions}; {instead}"
        )

    def try_sampling() -> Rollout:
        """Completions of the longest and the shortest prompt. A third of all tokens end them: their
        lengths differ."""
        generator, third = (
            torch.Generator(policy.device).manual_seed(0),
            torch.arange(0, vocabulary, 3).to(ids.device),
        )
        both = [prompts[0], prompts[-1]]
        return sample(
            policy, tokenizer, both, 4, min(8, max_new_tokens), 1.0, generator, ends=third
        )

    with in_float32(policy), blaming_the_model(policy):
        difference = differences_alone(policy, try_sampling()).max().item()
        if not difference <= TOLERANCE:
            change = f"the model's log-probabilities change with later tokens, or with the batch (by {difference:.1e})"
            raise UsageError(f"{change}, so sampling and training would disagree; give another one")
    with blaming_the_model(policy):
        if networks is not None:
            rollout = try_sampling()
            completion_logps(policy, rollout, 1.0).sum().backward()
            if not all(p.grad.isfinite().all() for p in policy.parameters() if p.grad is not None):
                raise UsageError("the model's gradient is not finite; give another model")
            policy.zero_grad(set_to_none=True)
            for network in networks:
                network(rollout)


@contextlib.contextmanager
def blaming_the_model(policy) -> Iterator[None]:
    """Inside, an error that transformers raises becomes a UsageError. An error in the code of this
    repository, which its readers edit, stays as it is."""
    try:
        yield
    except Diverged:
        raise UsageError("the model's logits are not finite; give another model") from None
    except Exception as error:
        modules = [
            frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__)
        ]
        if is_out_of_memory(error) or not any(name.startswith("transformers.") for name in modules):
            raise
        instead = "leave out --dtype bfloat16" if is_in_bfloat16(policy) else "give another one"
        raise UsageError(
            f"the model fails here ({type(error).__name__}: {reason(error)}); {instead}"
        ) from error


@torch.no_grad()
def differences_alone(policy, rollout: Rollout) -> Tensor:
    """How far log-probabilities, sampled and scored in a batch, are from those of each completion
    alone, by a single forward pass over it and its prompt: no padding, no cache, no positions
    given, as the model was trained: (n,)."""
    together = completion_logps(policy, rollout, 1.0)
    alone = torch.zeros_like(together)
    for row, mask in enumerate(rollout.mask):
        prompt, completion = (
            rollout.prompt_ids[row, rollout.prompt_mask[row]],
            rollout.completion_ids[row, mask],
        )
        logits = policy(input_ids=torch.cat([prompt, completion]).unsqueeze(0)).logits[
            0, -len(completion) - 1 : -1
        ]
        alone[row, mask] = token_logps(logits, 1.0).gather(1, completion.unsqueeze(1)).squeeze(1)
    return torch.cat([(logps - alone).abs()[rollout.mask] for logps in (rollout.logps, together)])


def self_check(
    minibatch: Rollout,
    logps: Tensor,
    advantages: Tensor | None,
    tokenizer,
    ends: Tensor,
    dtype: str = "float32",
) -> str:
    """What must hold on the first minibatch of a run, before any update, as lines to print.

    logps: (b, T). advantages: (P, G), where completions of a group are compared. ends: ids of the
    end tokens. dtype: of the forward pass. Raises RuntimeError if it does not hold, for then the
    program is wrong and not its user; raises UsageError if the model rounds too much in bfloat16.
    """
    mask, log_ratio = minibatch.mask, (logps - minibatch.logps).detach()  # 0 off the mask
    mean, most = log_ratio.abs()[mask].mean().item(), log_ratio.abs().max().item()
    spreads = [x.exp().std(correction=0).item() for x in (log_ratio[mask], log_ratio.sum(dim=1))]
    is_end = torch.isin(minibatch.completion_ids, ends) & mask
    last = is_end.gather(1, mask.sum(dim=1, keepdim=True) - 1).squeeze(1)
    if dtype != "float32" and not mean <= TOLERANCE_BFLOAT16:
        far = f"in bfloat16 the model's log-probabilities differ by {mean:.2f} on average, by rounding alone"
        raise UsageError(f"{far}; start a new run without --dtype bfloat16")
    if dtype == "float32" and not most <= TOLERANCE:
        found = f"max |recomputed - sampled log-prob| = {most:.1e}"
        raise RuntimeError(f"self-check failed: {found}, expected at most {TOLERANCE:g}")
    if not (
        torch.equal(last, ~minibatch.truncated) and torch.equal(is_end.sum(dim=1), last.long())
    ):
        raise RuntimeError(
            "self-check failed: not every mask ends with an end token or at the limit"
        )
    cut, centred = int(minibatch.truncated.sum()), ""
    if advantages is not None:
        total = advantages.sum(dim=1).abs().max().item()
        centred = (
            f"  the advantages of a group do not sum to 0 (up to {total:g}): there is no baseline\n"
        )
        if total < 1e-4:
            centred = "  the advantages of every group sum to 0: a loss near 0 says nothing (its gradient is not 0)\n"
    starts = (
        "so every ratio starts at 1"
        if dtype == "float32"
        else f"mean {mean:.0e}: rounding in {dtype}"
    )
    prompt = tokenizer.decode(minibatch.prompt_ids[0, minibatch.prompt_mask[0]]).rstrip()
    return f"""Self-check on the first minibatch
  max |recomputed - sampled log-prob| = {most:.0e}, {starts}
  the ratio trainer / sampler spreads by {spreads[0]:.0e} over tokens, {spreads[1]:.0e} over completions
  the masks of {len(minibatch) - cut} finished completions end with their EOS; {cut} were cut at the limit
{centred}  a prompt as the model reads it:
{indent(prompt, "    ")}
"""
