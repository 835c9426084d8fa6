"""The model: where it runs, how it is found and loaded, and how a prompt becomes tokens.

transformers takes seconds to import, so it is imported where a model is loaded: `--help` does not
wait for it.
"""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from toy_env import UsageError, reason
from toy_env.any_model import checkpoint_layers, compute_in_bfloat16

BASE_MODEL = Path(__file__).parent / "base_model"
NO_THINKING = {
    "enable_thinking": False,
    "thinking": False,
}  # names of the switch; templates ignore those they lack


def pick_device(name: str = "auto") -> torch.device:
    """The device called `name`; "auto" takes cuda, then mps, then cpu. Raises UsageError if it is
    not available."""
    if name == "auto":
        name = (
            "cuda"
            if torch.cuda.is_available()
            else "mps"
            if torch.backends.mps.is_available()
            else "cpu"
        )
    try:
        torch.zeros(1, device=name).item()  # "meta" holds no numbers
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UsageError(
            f"device {name!r} is not available here; choose auto, cpu, cuda or mps"
        ) from None
    return torch.device(name)


def locate(model: str) -> str | Path:
    """What `from_pretrained` takes for "base", a local folder, or a model's name on the Hugging
    Face hub. Raises UsageError if there is no such model, after seconds rather than the hub
    client's half minute of retries."""
    from huggingface_hub import HfApi, snapshot_download

    if model == "base":
        return BASE_MODEL
    if Path(model).is_dir():
        return model
    try:
        HfApi().model_info(model, timeout=5)
        return model
    except (
        Exception
    ) as error:  # offline, or no such repository, or not a name that a repository can have
        try:
            return snapshot_download(model, local_files_only=True)
        except Exception:
            missing = (
                f"neither a local folder nor available from the Hugging Face hub ({reason(error)})"
            )
            instead = "give base, a folder, or a name like Qwen/Qwen3-0.6B"
            raise UsageError(f"model {model!r} is {missing}; {instead}") from None


def load_policy(
    model: str = "base", device="cpu", dtype: str = "float32", gradient_checkpointing: bool = False
):
    """The model on `device`, and its tokenizer. `model` is "base", a folder, or a name on the hub.

    The weights are float32. With dtype "bfloat16" the forward pass is computed under autocast. With
    `gradient_checkpointing` each layer keeps only its input and is recomputed in the backward pass.
    The model is put in evaluation mode and stays there during training: dropout would make the
    log-probabilities that are trained differ from those that were sampled. Nothing that a model
    brings along is run: no code of its own, and no weights but safetensors, because opening a
    pickle can run code. Raises UsageError if there is no such model, or if it or the device cannot
    do this.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    if dtype not in ("float32", "bfloat16"):
        raise UsageError(f"--dtype must be float32 or bfloat16, not {dtype!r}")
    path = locate(model)
    logging.disable_progress_bar()  # a bar for loading half a megabyte
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        policy, loaded = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=torch.float32,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:
        raise UsageError(
            f"cannot load a causal language model from {str(path)!r}: {reason(error)}"
        ) from error
    if loaded["missing_keys"]:
        some = f"{len(loaded['missing_keys'])} weights of its model, such as {min(loaded['missing_keys'])}"
        raise UsageError(f"{str(path)!r} lacks {some}; give a complete causal language model")
    if not len(ends := end_ids(policy, tokenizer)):
        raise UsageError(
            f"{str(path)!r} names no end-of-sequence token, so nothing could stop; give another model"
        )
    if tokenizer.pad_token_id is None:  # harmless: masks never come from comparing ids with PAD
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(int(ends[0]))
    policy = policy.to(device).eval()
    if dtype == "bfloat16":
        compute_in_bfloat16(policy)
    if gradient_checkpointing:
        checkpoint_layers(policy)
    return policy, tokenizer


def end_ids(policy, tokenizer) -> Tensor:
    """The ids of all tokens that end a completion: the tokenizer's EOS, and what generation_config
    names, such as the end of a turn in a chat. One dimension, in order, on the policy's device."""
    named = getattr(policy.generation_config, "eos_token_id", None)
    ids = {tokenizer.eos_token_id, *(named if isinstance(named, list | tuple) else [named])} - {
        None
    }
    return torch.tensor(sorted(ids), dtype=torch.long, device=policy.device)


def model_prompts(tokenizer, problems: Sequence, task: ModuleType) -> list[str]:
    """What the model is given to read for each problem of a task.

    A base model of ours reads a problem as it is. A tokenizer that knows letters belongs to a
    general language model, which is given the instruction of the task as well, in its chat template
    if it has one, with thinking switched off if the template can do so. Raises UsageError if the
    template fails, or loses a problem.
    """
    if "a" not in tokenizer.get_vocab():
        return [problem.prompt for problem in problems]
    prompts = [f"{task.INSTRUCTION}\n{problem.prompt}" for problem in problems]
    if not tokenizer.chat_template:
        return prompts
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    try:
        texts = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, tokenize=False, **NO_THINKING
        )
    except Exception as error:  # whatever jinja2, or the template itself, raises
        raise UsageError(
            f"the tokenizer's chat template fails ({reason(error)}); give another model"
        ) from error
    for problem, text in zip(problems, texts):
        if "".join(problem.prompt.split()) not in "".join(text.split()):
            became = f"{problem.prompt!r} became {text[:200]!r}"
            raise UsageError(f"the chat template loses the problem: {became}; give another model")
    return texts


def encode_prompts(
    tokenizer, prompts: Sequence[str], device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Token ids and mask of the prompts, both (P, N), left-padded so that every completion starts
    in the same column. Raises UsageError if the tokenizer cannot read a prompt."""
    plain = not tokenizer.chat_template  # a template has written the special tokens already
    settings = {
        "return_tensors": "pt",
        "padding": True,
        "padding_side": "left",
        "add_special_tokens": plain,
    }
    try:
        encoded = tokenizer(list(prompts), **settings)
    except (
        Exception
    ) as error:  # `tokenizers` raises just that, where it has no token for unknown characters
        raise UsageError(
            f"the tokenizer cannot read {prompts[0]!r} ({reason(error)}); give another model"
        ) from error
    return encoded.input_ids.to(device), encoded.attention_mask.bool().to(device)
