"""The policy: a causal language model and its tokenizer, and the log-probabilities it gives to sampled completions."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from huggingface_hub import HfApi, snapshot_download
from torch.nn.functional import pad
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
        if type(module).__name__.endswith("RMSNorm"):
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


def model_inputs(rollout: "Rollout") -> dict:
    """Prompts and completions in one row, (B, N + T), as a transformer takes them."""
    attention_mask = torch.cat([rollout.prompt_mask, rollout.mask], dim=1)
    return {
        "input_ids": torch.cat([rollout.prompt_ids, rollout.completion_ids], dim=1),
        "attention_mask": attention_mask,
        "position_ids": position_ids(attention_mask),
        "use_cache": False,
    }


def completion_logps(
    policy: PreTrainedModel, rollout: "Rollout", temperature: float, micro_batch_size: int = 64
) -> torch.Tensor:
    """Log-probability of every sampled token under `policy`, with gradient: (B, T), 0 off the mask.

    `temperature` must be the one the rollout was drawn at: the policy being trained is softmax(logits / temperature).
    """

    def score(rollout: "Rollout") -> torch.Tensor:
        T = rollout.completion_ids.shape[1]
        logits = policy(**model_inputs(rollout), logits_to_keep=T + 1).logits  # (b, T + 1, V)
        # The causal shift: the output at a position predicts the *next* token. So the predictions of y_1 .. y_T stand
        # at the last prompt token and at y_1 .. y_{T-1}, and the output at y_T, which predicts nothing here, is cut.
        logps = token_logps(logits[:, :-1], temperature)  # (b, T, V)
        return logps.gather(-1, rollout.completion_ids.unsqueeze(-1)).squeeze(-1)  # (b, T)

    return by_length(score, rollout, micro_batch_size).masked_fill(~rollout.mask, 0.0)


class Critic(torch.nn.Module):
    """A value network of the policy's size: a copy of its transformer under a head that starts at 0 everywhere."""

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        self.transformer = copy.deepcopy(policy.base_model)
        self.head = torch.nn.Linear(policy.get_input_embeddings().embedding_dim, 1).to(policy.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)


def completion_values(critic: Critic, rollout: "Rollout", micro_batch_size: int = 64) -> torch.Tensor:
    """V(x, y_<t), the critic's value of the state *before* each sampled token: (B, T), 0 off the mask."""

    def value(rollout: "Rollout") -> torch.Tensor:
        T = rollout.completion_ids.shape[1]
        states = critic.transformer(**model_inputs(rollout)).last_hidden_state  # (b, N + T, hidden)
        # The same shift as for log-probabilities: what is known before y_t stands one position to the left of y_t.
        return critic.head(states[:, -T - 1 : -1]).squeeze(-1)  # (b, T)

    return by_length(value, rollout, micro_batch_size).masked_fill(~rollout.mask, 0.0)


def by_length(forward: Callable[["Rollout"], torch.Tensor], rollout: "Rollout", micro_batch_size: int) -> torch.Tensor:
    """forward(rollout) of shape (B, T), computed in micro-batches of rows of similar length, each cut to its longest.

    The loss is still taken over all B rows at once, so the micro-batch size changes no normaliser and no gradient.
    It saves the work on padding: half of it for base-model rollouts (most answers have 4 tokens, a few have 50).
    """
    order = (rollout.prompt_mask.sum(dim=1) + rollout.mask.sum(dim=1)).argsort(stable=True)
    T = rollout.mask.shape[1]
    parts = [forward(rollout[rows].trimmed()) for rows in order.split(micro_batch_size)]  # each (b, t <= T)
    return torch.cat([pad(part, (0, T - part.shape[1])) for part in parts])[order.argsort()]
