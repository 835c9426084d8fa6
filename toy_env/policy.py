"""The policy: a causal language model and its tokenizer, and the log-probabilities it gives to sampled completions."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from huggingface_hub import HfApi, snapshot_download
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from toy_env import UsageError

if TYPE_CHECKING:
    from toy_env.rollout import Rollout

BASE_MODEL = Path(__file__).parent / "base_model"
INSTRUCTION = "Compute the value. You may work step by step; end your reply with # and the integer, for example #39."


def pick_device(name: str = "auto") -> torch.device:
    """The device called `name`; "auto" takes cuda, then mps, then cpu. Raises UsageError if it is not to be had."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UsageError(f"device {name!r} is not available here; choose auto, cpu, cuda or mps") from None
    return torch.device(name)


def locate(model: str) -> str | Path:
    """What `from_pretrained` is to be given for "base", a local folder, or a model's name on the Hugging Face hub.

    Raises UsageError, after seconds and not after the hub client's half minute of retries, if there is no such model.
    """
    if model == "base":
        return BASE_MODEL
    if Path(model).is_dir():
        if not (Path(model) / "config.json").is_file():
            raise UsageError(f"folder {model!r} holds no model: config.json is missing; expected a folder written by "
                             "save_pretrained, such as runs/reinforce-0/checkpoint")  # fmt: skip
        return model
    try:
        HfApi().model_info(model, timeout=5)
        return model
    except Exception as error:  # offline, or no such repository, or not a name that a repository can have
        try:
            return snapshot_download(model, local_files_only=True)
        except Exception:
            reason = str(error).strip().splitlines()[0]
            raise UsageError(f"model {model!r} is neither a folder here nor to be had from the Hugging Face hub "
                             f"({reason}); give base, a folder, or a name like Qwen/Qwen3-0.6B") from None  # fmt: skip


def load_policy(
    model: str = "base", device: torch.device | str = "cpu"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model in float32 on `device`, and its tokenizer. `model` is "base", a folder, or a name on the hub.

    The model is put in evaluation mode and stays there, in training too: dropout would make the log-probabilities that
    are trained differ from those that were sampled. Raises UsageError if there is no such model.
    """
    path = locate(model)
    logging.disable_progress_bar()  # a bar for loading half a megabyte
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        policy = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    except Exception as error:
        raise UsageError(
            f"cannot load a causal language model from {str(path)!r}: {str(error).splitlines()[0]}"
        ) from error
    if tokenizer.eos_token_id is None:
        raise UsageError(f"the tokenizer of {str(path)!r} has no end-of-sequence token, so no response could ever stop")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token  # harmless: masks never come from comparing ids with PAD
    return policy.to(device).eval(), tokenizer


def to_float64(policy: PreTrainedModel) -> PreTrainedModel:
    """The policy in double precision throughout, changed in place and returned.

    `.double()` alone is not enough: the RMSNorm of transformers computes in float32 whatever it is given.
    """
    for name, module in list(policy.named_modules()):
        if type(module).__name__.endswith("RMSNorm") and not isinstance(module, torch.nn.RMSNorm):
            norm = torch.nn.RMSNorm(module.weight.shape, eps=module.variance_epsilon)
            norm.weight = module.weight
            policy.set_submodule(name, norm)
    return policy.double()


def encode_prompts(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask of the prompts, both (P, N), left-padded so that every completion starts in the same column.

    The base model reads a problem as it stands. A tokenizer that knows letters belongs to a general language model,
    which is given one line of instructions as well, in its chat template where it has one.
    """
    if "a" in tokenizer.get_vocab():
        prompts = [f"{INSTRUCTION}\n{prompt}" for prompt in prompts]
        if tokenizer.chat_template:
            chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
            prompts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    encoded = tokenizer(
        list(prompts),
        return_tensors="pt",
        padding=True,
        padding_side="left",
        add_special_tokens=not tokenizer.chat_template,  # the template has written them already
    )
    return encoded.input_ids.to(device), encoded.attention_mask.bool().to(device)


def position_ids(attention_mask: torch.Tensor) -> torch.Tensor:
    """Positions counted from the first real token, so that left padding moves nothing: (B, N), bool to int."""
    return (attention_mask.cumsum(dim=1) - 1).clamp(min=0)


def token_logps(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """log softmax(logits / temperature) over the last axis, in float32 or better."""
    return (logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature).log_softmax(dim=-1)


def pack(rollout: "Rollout") -> tuple[dict, torch.Tensor]:
    """The rows of a rollout laid end to end without their padding, in as few packed rows of W tokens as they fit in.

    Returns the inputs of a transformer, (R, W) each, and for every token of a completion, in the order of the mask, the
    index in (R·W) of the output that predicts it. Positions that start again at 0 tell transformers where the next
    sequence begins: no token attends to another sequence. W is the longest sequence; the longest are placed first,
    each in the first packed row with room for it.

    Most of a padded batch of base-model rollouts is padding (nearly all answers have 4 tokens, a few have 50). Packing
    makes a pass forward and back 2.3 times as fast there and 1.3 times for a trained policy (`tests/bench_rollout.py`).
    """
    is_token = torch.cat([rollout.prompt_mask, rollout.mask], dim=1)  # (B, N + T)
    positions = position_ids(is_token)
    lengths = is_token.sum(dim=1).tolist()
    width, room, first = max(lengths), [], [0] * len(lengths)
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        row = next((row for row, free in enumerate(room) if free >= lengths[i]), len(room))
        if row == len(room):
            room.append(width)
        first[i] = (row + 1) * width - room[row]
        room[row] -= lengths[i]
    place = torch.tensor(first, device=is_token.device).unsqueeze(1) + positions  # (B, N + T) index in (R·W)

    def packed(values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(len(room) * width).scatter(0, place[is_token], values[is_token]).view(-1, width)

    ids = torch.cat([rollout.prompt_ids, rollout.completion_ids], dim=1)
    # The causal shift: the output at a token predicts the *next* one. So the predictions of y_1 .. y_T stand at the
    # last prompt token and at y_1 .. y_{T-1}, one place to the left; the output at y_T predicts nothing here.
    before = place[:, rollout.prompt_mask.shape[1] :][rollout.mask] - 1
    return {"input_ids": packed(ids), "position_ids": packed(positions)}, before


def over_completions(
    forward: Callable[[dict, torch.Tensor, torch.Tensor], torch.Tensor], rollout: "Rollout", micro_batch_size: int
) -> torch.Tensor:
    """(B, T): what forward(inputs, before, tokens), see `pack`, gives for each completion token, and 0 off the mask.

    It runs on micro-batches of rows. The loss is still taken over all B rows at once, so the micro-batch size changes
    no normaliser and no gradient. Where there are several, each is computed once more in the backward pass instead of
    being kept: memory stays that of one micro-batch, for 5 to 75 % more time (`tests/bench_speed.py`).
    """
    parts = []
    for rows in torch.arange(len(rollout), device=rollout.mask.device).split(micro_batch_size):
        inputs, before = pack(part := rollout[rows])
        arguments = (inputs, before, part.completion_ids[part.mask])
        if len(rows) < len(rollout) and torch.is_grad_enabled():
            parts.append(checkpoint(forward, *arguments, use_reentrant=False))
        else:
            parts.append(forward(*arguments))
    values = torch.cat(parts)
    return values.new_zeros(rollout.mask.shape).masked_scatter(rollout.mask, values)


def completion_logps(
    policy: PreTrainedModel, rollout: "Rollout", temperature: float, micro_batch_size: int = 1024
) -> torch.Tensor:
    """Log-probability of every sampled token under `policy`, with gradient: (B, T), 0 off the mask.

    `temperature` must be the one the rollout was drawn at: the policy being trained is softmax(logits / temperature).
    """

    def score(inputs: dict, before: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        logits = policy(**inputs, use_cache=False).logits.flatten(0, 1)[before]  # (tokens, V)
        return token_logps(logits, temperature).gather(1, tokens.unsqueeze(1)).squeeze(1)

    return over_completions(score, rollout, micro_batch_size)


class Critic(torch.nn.Module):
    """A value network of the policy's size: a copy of its transformer under a head that starts at 0 everywhere."""

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        self.transformer = copy.deepcopy(policy.base_model)
        self.head = torch.nn.Linear(policy.get_input_embeddings().embedding_dim, 1).to(policy.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)


def completion_values(critic: Critic, rollout: "Rollout", micro_batch_size: int = 1024) -> torch.Tensor:
    """V(x, y_<t), the critic's value of the state *before* each sampled token: (B, T), 0 off the mask."""

    def value(inputs: dict, before: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        states = critic.transformer(**inputs, use_cache=False).last_hidden_state.flatten(0, 1)  # (R·W, hidden)
        return critic.head(states[before]).squeeze(1)

    return over_completions(value, rollout, micro_batch_size)
