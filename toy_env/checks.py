"""What must hold before a policy is trained: of a model, before the run begins, and of its first minibatch."""

import contextlib
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import indent

import torch
from torch import Tensor

from toy_env import Diverged, UsageError, is_out_of_memory, reason
from toy_env.any_model import in_float32, is_in_bfloat16, require_positions
from toy_env.model import encode_prompts, end_ids
from toy_env.rollout import Rollout, completion_logps, sample, token_logps

PROMPTS = ("12+34-56+78-90?", "1+2?")  # of arithmetic: as long as can be, with every character, and as short
TOLERANCE = 1e-3  # between two log-probabilities that should be the same, in float32
TOLERANCE_BFLOAT16 = 0.05  # of their mean distance, in bfloat16: which rounds a logit of 20 by up to .06
FAR_IN_BFLOAT16 = "in bfloat16 the model's log-probabilities differ by {:.2f} on average, by rounding alone"


def check_model(
    policy, tokenizer, max_new_tokens: int, prompts: Sequence[str] = PROMPTS, networks: Sequence | None = None
) -> None:
    """Try a model on the prompts of a task. Raises UsageError, in one line, if it cannot be used here.

    Its tokenizer must fit it, keep every character of a problem and not end it; its positions must suffice, no
    prediction may depend on a later token, and a completion must have the same log-probabilities whether it is sampled
    in a batch from which rows leave, scored in a padded batch, or read alone. All of that in float32, in which what is
    wrong stands out from rounding; then, if the policy computes in bfloat16, up to more rounding. `networks` is given
    where the policy is to be trained, and holds those that are trained with it: its gradient must be finite, and each
    of them must run.
    """
    prompts = sorted(prompts, key=len, reverse=True)
    ids, mask = encode_prompts(tokenizer, prompts, policy.device)  # (P, N)
    ends = end_ids(policy, tokenizer)
    added = tokenizer.get_added_vocab()  # a token added later is harmless as long as no text holds it
    largest = max(
        tokenizer.pad_token_id,
        *ends.tolist(),
        ids.max().item(),
        *(i for token, i in tokenizer.get_vocab().items() if token not in added),
    )
    vocabulary = policy.get_input_embeddings().weight.shape[0]
    if largest >= vocabulary:
        raise UsageError(
            f"the tokenizer has ids up to {largest}, the model a vocabulary of {vocabulary}: they do not belong "
            "together; give the folder of a model with its own tokenizer"
        )
    for prompt, row in zip(prompts, tokenizer.batch_decode(ids)):
        if "".join(prompt.split()) not in "".join(row.split()):
            raise UsageError(
                f"the tokenizer or its chat template loses the problem: {prompt!r} became {row[:200]!r}; give a model "
                "that reads every character of it"
            )
    if torch.isin(ids[:, -1], ends).any():
        raise UsageError(
            f"the tokenizer appends the end token {tokenizer.decode(ids[0, -1:])!r} to a prompt, so that nothing is "
            "left to complete; give a model whose tokenizer does not"
        )
    require_positions(policy, ids.shape[1], max_new_tokens)
    tokens = min(8, max_new_tokens)
    with blaming_the_model("give another one"), in_float32(policy):
        require_causal(policy, ids[0, mask[0]])
        difference = differences_alone(policy, tokenizer, prompts, tokens).max().item()
    if not difference <= TOLERANCE:
        raise UsageError(
            f"the model's log-probabilities change with the batch (by {difference:.1e}), so sampling and training "
            "would disagree; give another one"
        )
    with blaming_the_model("leave out --dtype bfloat16" if is_in_bfloat16(policy) else "give another one"):
        if is_in_bfloat16(policy):
            difference = differences_alone(policy, tokenizer, prompts, tokens).mean().item()
            if not difference <= TOLERANCE_BFLOAT16:
                raise UsageError(f"{FAR_IN_BFLOAT16.format(difference)}; leave out --dtype bfloat16")
        if networks is not None:
            rollout = try_sampling(policy, tokenizer, prompts, tokens)
            require_finite_gradient(policy, rollout)
            for network in networks:
                network(rollout)


@contextlib.contextmanager
def blaming_the_model(instead: str) -> Iterator[None]:
    """Inside, what transformers raises becomes a UsageError: the model's fault. What the code of this repository
    raises, which its readers edit, stays as it is."""
    try:
        yield
    except Diverged:
        raise UsageError("the model's logits are not finite; give another model") from None
    except Exception as error:
        if isinstance(error, UsageError) or is_out_of_memory(error):
            raise
        import transformers

        of_torch, of_transformers = (Path(library.__file__).parent for library in (torch, transformers))
        files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
        innermost = [file for file in files if not file.is_relative_to(of_torch)][-1]
        if not innermost.is_relative_to(of_transformers):
            raise
        raise UsageError(f"the model fails here ({type(error).__name__}: {reason(error)}); {instead}") from error


@torch.no_grad()
def require_causal(policy, ids: Tensor) -> None:
    """Raises UsageError if a prediction depends on a later token, Diverged if a logit is not finite.

    ids: (N,), a prompt without padding, at whose places a causal model may look ahead.
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


def try_sampling(policy, tokenizer, prompts: list[str], max_new_tokens: int) -> Rollout:
    """Completions of the first and the last prompt. A third of all tokens end them, so that they differ in length."""
    generator = torch.Generator(policy.device).manual_seed(0)
    vocabulary = policy.get_input_embeddings().weight.shape[0]
    third = torch.arange(0, vocabulary, 3, device=policy.device)
    return sample(policy, tokenizer, [prompts[0], prompts[-1]], 4, max_new_tokens, 1.0, generator, ends=third)


def require_finite_gradient(policy, rollout: Rollout) -> None:
    """Raises UsageError if the gradient of a completion's log-probability is not finite. Leaves no gradient behind."""
    completion_logps(policy, rollout, 1.0).sum().backward()
    for name, parameter in policy.named_parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            raise UsageError(f"the model's gradient is not finite, for example that of {name}; give another model")
    policy.zero_grad(set_to_none=True)


@torch.no_grad()
def differences_alone(policy, tokenizer, prompts: list[str], max_new_tokens: int) -> Tensor:
    """The distances of log-probabilities, sampled and scored in a batch, from those of each completion alone: (n,)."""
    rollout = try_sampling(policy, tokenizer, prompts, max_new_tokens)
    together = completion_logps(policy, rollout, 1.0)
    alone = torch.zeros_like(together)
    for row, mask in enumerate(rollout.mask):
        alone[row, mask] = plain_logps(policy, rollout, row)
    return torch.cat([(logps - alone).abs()[rollout.mask] for logps in (rollout.logps, together)])


def plain_logps(policy, rollout: Rollout, row: int) -> Tensor:
    """Log-probabilities of one completion by a single forward pass over it and its prompt: (n,), n its tokens. No
    padding, no cache, no positions given: as the model was trained, whatever else we do."""
    prompt, completion = (
        rollout.prompt_ids[row, rollout.prompt_mask[row]],
        rollout.completion_ids[row, rollout.mask[row]],
    )
    logits = policy(input_ids=torch.cat([prompt, completion]).unsqueeze(0)).logits[0, -len(completion) - 1 : -1]
    return token_logps(logits, 1.0).gather(1, completion.unsqueeze(1)).squeeze(1)


def self_check(
    minibatch: Rollout, logps: Tensor, advantages: Tensor | None, tokenizer, ends: Tensor, dtype: str = "float32"
) -> str:
    """What must hold on the first minibatch of a run, before any update, as lines to print.

    logps: (b, T). advantages: (P, G), where completions of a group are compared. ends: ids of the end tokens. dtype: of
    the forward pass. Raises RuntimeError if it does not hold: then the program is wrong, not its user. Raises
    UsageError if the model rounds too much in bfloat16.
    """
    mask, log_ratio = minibatch.mask, (logps - minibatch.logps).detach()  # 0 off the mask
    difference = log_ratio.abs()[mask]
    mean, most = difference.mean().item(), difference.max().item()
    token_spread, completion_spread = (
        log_ratios.exp().std(correction=0).item() for log_ratios in (log_ratio[mask], log_ratio.sum(dim=1))
    )
    is_end = torch.isin(minibatch.completion_ids, ends) & mask
    last_is_end = is_end.gather(1, mask.sum(dim=1, keepdim=True) - 1).squeeze(1)
    masks_right = torch.equal(last_is_end, ~minibatch.truncated) and torch.equal(is_end.sum(dim=1), last_is_end.long())
    if dtype != "float32" and not mean <= TOLERANCE_BFLOAT16:
        raise UsageError(f"{FAR_IN_BFLOAT16.format(mean)}; start a new run without --dtype bfloat16")
    if dtype == "float32" and not most <= TOLERANCE:
        raise RuntimeError(
            f"self-check failed: max |recomputed - sampled log-prob| = {most:.1e}, expected at most {TOLERANCE:g}"
        )
    if not masks_right:
        raise RuntimeError("self-check failed: not every mask ends with an end token or at the limit")
    cut = int(minibatch.truncated.sum())
    starts = "so every ratio starts at 1" if dtype == "float32" else f"mean {mean:.0e}: rounding in {dtype}"
    prompt = tokenizer.decode(minibatch.prompt_ids[0, minibatch.prompt_mask[0]])
    lines = [
        "Self-check on the first minibatch",
        f"  max |recomputed - sampled log-prob| = {most:.0e}, {starts}",
        f"  the ratio trainer / sampler spreads by {token_spread:.0e} over tokens, {completion_spread:.0e} over "
        "completions",
        f"  the masks of {len(minibatch) - cut} finished completions end with their EOS; {cut} were cut at the limit",
    ]
    if advantages is not None:
        total = advantages.sum(dim=1).abs().max().item()
        lines.append(
            "  the advantages of every group sum to 0: a loss near 0 says nothing (its gradient is not 0)"
            if total < 1e-4
            else f"  the advantages of a group do not sum to 0 (up to {total:g}): there is no baseline"
        )
    lines.append(f"  a prompt as the model reads it:\n{indent(prompt.rstrip(), '    ')}")
    return "\n".join(lines) + "\n"
