"""What must hold before a policy is trained: of a model, before the run begins, and of its first minibatch."""

import contextlib
import traceback
from collections.abc import Iterator, Sequence
from textwrap import indent

import torch
from torch import Tensor

from toy_env import Diverged, UsageError, is_out_of_memory, reason
from toy_env.any_model import in_float32, is_in_bfloat16, require_positions
from toy_env.model import encode_prompts, end_ids
from toy_env.rollout import Rollout, completion_logps, sample, token_logps

PROMPTS = ("12+34-56+78-90?", "1+2?")  # of arithmetic: the longest, with every character, and the shortest
TOLERANCE = 1e-3  # between two log-probabilities that should be the same, in float32
TOLERANCE_BFLOAT16 = 0.05  # of their mean distance, in bfloat16: which rounds a logit of 20 by up to .06
FAR_IN_BFLOAT16 = "in bfloat16 the model's log-probabilities differ by {:.2f} on average, by rounding alone"


def check_model(
    policy, tokenizer, max_new_tokens: int, prompts: Sequence[str] = PROMPTS, networks: Sequence | None = None
) -> None:
    """Try a model on the prompts of a task. Raises UsageError, in one line, if it cannot be used here.

    Its tokenizer must fit it, keep every character of a problem and not end it; its positions must suffice, no
    prediction may depend on a later token, and a completion must have the same log-probabilities whether it is sampled
    in a batch from which rows leave, scored in a padded batch, or read alone. All of that in float32, where rounding
    hides no mistake; if the policy computes in bfloat16, then there as well, with a wider tolerance. `networks` is
    given if the policy is to be trained, and holds what is trained with it: each must run, and the policy's gradient
    must be finite.
    """
    prompts = sorted(prompts, key=len, reverse=True)
    ids, mask = encode_prompts(tokenizer, prompts, policy.device)  # (P, N)
    ends, vocabulary = end_ids(policy, tokenizer), policy.get_input_embeddings().weight.shape[0]
    added = tokenizer.get_added_vocab()  # harmless as long as no text holds these tokens
    own = [i for token, i in tokenizer.get_vocab().items() if token not in added]
    if (largest := max(tokenizer.pad_token_id, ids.max().item(), *ends.tolist(), *own)) >= vocabulary:
        raise UsageError(
            f"the tokenizer has ids up to {largest}, the model a vocabulary of {vocabulary}: they do not belong "
            "together; give the folder of a model with its own tokenizer"
        )
    for prompt, text in zip(prompts, tokenizer.batch_decode(ids)):
        if "".join(prompt.split()) not in "".join(text.split()):
            raise UsageError(
                f"the tokenizer or its chat template loses the problem: {prompt!r} became {text[:200]!r}; give a model "
                "that reads every character of it"
            )
    if torch.isin(ids[:, -1], ends).any():
        raise UsageError("the tokenizer ends every prompt, which leaves nothing to complete; give another model")
    require_positions(policy, ids.shape[1], max_new_tokens)

    def try_sampling() -> Rollout:
        """Completions of the longest and the shortest prompt. A third of all tokens end them: their lengths differ."""
        generator, third = torch.Generator(policy.device).manual_seed(0), torch.arange(0, vocabulary, 3).to(ids.device)
        both = [prompts[0], prompts[-1]]
        return sample(policy, tokenizer, both, 4, min(8, max_new_tokens), 1.0, generator, ends=third)

    with in_float32(policy), blaming_the_model(policy):
        require_causal(policy, ids[0, mask[0]])
        difference = differences_alone(policy, try_sampling()).max().item()
        if not difference <= TOLERANCE:
            raise UsageError(
                f"the model's log-probabilities change with the batch (by {difference:.1e}), so sampling and training "
                "would disagree; give another one"
            )
    with blaming_the_model(policy):
        if is_in_bfloat16(policy):
            difference = differences_alone(policy, try_sampling()).mean().item()
            if not difference <= TOLERANCE_BFLOAT16:
                raise UsageError(f"{FAR_IN_BFLOAT16.format(difference)}; leave out --dtype bfloat16")
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
    """Inside, an error that transformers raises becomes a UsageError. An error in the code of this repository, which
    its readers edit, stays as it is."""
    try:
        yield
    except Diverged:
        raise UsageError("the model's logits are not finite; give another model") from None
    except Exception as error:
        modules = [frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__)]
        if is_out_of_memory(error) or not any(name.startswith("transformers.") for name in modules):
            raise
        instead = "leave out --dtype bfloat16" if is_in_bfloat16(policy) else "give another one"
        raise UsageError(f"the model fails here ({type(error).__name__}: {reason(error)}); {instead}") from error


@torch.no_grad()
def require_causal(policy, ids: Tensor) -> None:
    """Raises UsageError if a prediction depends on a later token, Diverged if a logit is not finite.

    ids: (N,), a prompt without padding, so that nothing hides what its last token changes.
    """
    later = ids.clone()
    later[-1] = (later[-1] + 1) % policy.get_input_embeddings().weight.shape[0]
    both = torch.stack([ids, later])
    logits = policy(input_ids=both, use_cache=False).logits
    earlier = logits[:, :-1].float().log_softmax(dim=-1)  # of every position but the last
    if earlier.isnan().any():
        raise Diverged("the logits are not finite")
    if not torch.allclose(earlier[0], earlier[1], rtol=0, atol=1e-5):
        raise UsageError("the model's predictions depend on later tokens, as an encoder's do; give a causal one")


@torch.no_grad()
def differences_alone(policy, rollout: Rollout) -> Tensor:
    """The distances of log-probabilities, sampled and scored in a batch, from those of each completion alone: (n,)."""
    together = completion_logps(policy, rollout, 1.0)
    alone = torch.zeros_like(together)
    for row, mask in enumerate(rollout.mask):
        alone[row, mask] = plain_logps(policy, rollout, row)
    return torch.cat([(logps - alone).abs()[rollout.mask] for logps in (rollout.logps, together)])


def plain_logps(policy, rollout: Rollout, row: int) -> Tensor:
    """Log-probabilities of one completion by a single forward pass over it and its prompt: (n,), n its tokens. No
    padding, no cache, no positions given: the way the model was trained."""
    prompt = rollout.prompt_ids[row, rollout.prompt_mask[row]]
    completion = rollout.completion_ids[row, rollout.mask[row]]
    logits = policy(input_ids=torch.cat([prompt, completion]).unsqueeze(0)).logits[0, -len(completion) - 1 : -1]
    return token_logps(logits, 1.0).gather(1, completion.unsqueeze(1)).squeeze(1)


def self_check(
    minibatch: Rollout, logps: Tensor, advantages: Tensor | None, tokenizer, ends: Tensor, dtype: str = "float32"
) -> str:
    """What must hold on the first minibatch of a run, before any update, as lines to print.

    logps: (b, T). advantages: (P, G), where completions of a group are compared. ends: ids of the end tokens. dtype: of
    the forward pass. If it does not hold, the program is wrong and not its user: raises RuntimeError. Raises UsageError
    if the model rounds too much in bfloat16.
    """
    mask, log_ratio = minibatch.mask, (logps - minibatch.logps).detach()  # 0 off the mask
    mean, most = log_ratio.abs()[mask].mean().item(), log_ratio.abs().max().item()
    spreads = [x.exp().std(correction=0).item() for x in (log_ratio[mask], log_ratio.sum(dim=1))]
    is_end = torch.isin(minibatch.completion_ids, ends) & mask
    last = is_end.gather(1, mask.sum(dim=1, keepdim=True) - 1).squeeze(1)
    if dtype != "float32" and not mean <= TOLERANCE_BFLOAT16:
        raise UsageError(f"{FAR_IN_BFLOAT16.format(mean)}; start a new run without --dtype bfloat16")
    if dtype == "float32" and not most <= TOLERANCE:
        raise RuntimeError(
            f"self-check failed: max |recomputed - sampled log-prob| = {most:.1e}, expected at most {TOLERANCE:g}"
        )
    if not (torch.equal(last, ~minibatch.truncated) and torch.equal(is_end.sum(dim=1), last.long())):
        raise RuntimeError("self-check failed: not every mask ends with an end token or at the limit")
    cut, centred = int(minibatch.truncated.sum()), ""
    if advantages is not None:
        total = advantages.sum(dim=1).abs().max().item()
        centred = f"  the advantages of a group do not sum to 0 (up to {total:g}): there is no baseline\n"
        if total < 1e-4:
            centred = "  the advantages of every group sum to 0: a loss near 0 says nothing (its gradient is not 0)\n"
    starts = "so every ratio starts at 1" if dtype == "float32" else f"mean {mean:.0e}: rounding in {dtype}"
    prompt = tokenizer.decode(minibatch.prompt_ids[0, minibatch.prompt_mask[0]]).rstrip()
    return f"""Self-check on the first minibatch
  max |recomputed - sampled log-prob| = {most:.0e}, {starts}
  the ratio trainer / sampler spreads by {spreads[0]:.0e} over tokens, {spreads[1]:.0e} over completions
  the masks of {len(minibatch) - cut} finished completions end with their EOS; {cut} were cut at the limit
{centred}  a prompt as the model reads it:
{indent(prompt, "    ")}
"""
