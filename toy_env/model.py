"""The model: where it runs, how it is loaded, and how a prompt becomes tokens.

transformers takes seconds to import; that happens where a model is loaded, so `--help` is fast.
"""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from toy_env.any_model import compute_in_bfloat16

BASE_MODEL = Path(__file__).parent / "base_model"
# Two names of the switch; a chat template ignores those that it lacks.
NO_THINKING = {"enable_thinking": False, "thinking": False}


def pick_device(name: str = "auto") -> torch.device:
    """The device called `name`; "auto" takes cuda or mps, else cpu. Raises SystemExit if it is not
    available."""
    if name == "auto":
        name = "mps" if torch.backends.mps.is_available() else "cpu"
        name = "cuda" if torch.cuda.is_available() else name
    try:
        torch.zeros(1, device=name).item()  # "meta" holds no numbers
    except (RuntimeError, AssertionError, NotImplementedError):
        raise SystemExit(f"no device {name!r} here; choose auto, cpu, cuda or mps") from None
    return torch.device(name)


def load_policy(model: str = "base", device="cpu", dtype: str = "float32"):
    """The model on `device`, and its tokenizer. `model` is "base", a folder, or a name on the hub.

    The weights are float32. With dtype "bfloat16" the forward pass is computed under autocast. The
    model stays in evaluation mode during training: dropout would make the log-probabilities that
    are trained differ from those that were sampled. Nothing that a model brings along is run: no
    code of its own, and no weights but safetensors, because opening a pickle can run code. Raises
    SystemExit if there is no such model.
    """
    from huggingface_hub.utils import logging as hub_logging
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    path = BASE_MODEL if model == "base" else model
    if Path(path, "adapter_config.json").is_file():
        raise SystemExit(f"--model {model} is a LoRA adapter; merge it into its base model first")
    logging.disable_progress_bar()  # a bar for loading half a megabyte
    hub_logging.set_verbosity_error()  # without a network it tells of every retry
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        policy = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise SystemExit(
            f"cannot load --model {model}; give base, a name such as Qwen/Qwen3-0.6B, or a folder "
            "of safetensors, such as checkpoint in a run's folder, a merged LoRA, or what python "
            f"lessons/experiments/real_model.py --unpack writes without the hub ({reason})"
        ) from None
    if tokenizer.pad_token_id is None:  # masks never come from comparing ids with PAD
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(int(end_ids(policy, tokenizer)[0]))
    policy = policy.to(device).eval()
    if dtype == "bfloat16":
        compute_in_bfloat16(policy)
    return policy, tokenizer


def end_ids(policy, tokenizer) -> Tensor:
    """The ids of all tokens that end a completion: the tokenizer's EOS, those that
    generation_config names, and the one that the chat template writes after a reply. One dimension,
    in order, on the policy's device."""
    named = policy.generation_config.eos_token_id  # None, an id or a list of ids
    ids = {tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])}
    if tokenizer.chat_template:
        ids |= {*turn_end(tokenizer)}
    return torch.tensor(sorted(ids - {None}), device=policy.device)


def turn_end(tokenizer) -> list[int]:
    """The id of the special token that the chat template writes after a reply, if there is one."""
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "39"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, **NO_THINKING)
    rest = text.partition("39")[2].strip()
    first = tokenizer(rest, add_special_tokens=False).input_ids[:1]
    return [] if tokenizer.decode(first, skip_special_tokens=True) else first


def model_prompts(tokenizer, problems: Sequence, task: ModuleType) -> list[str]:
    """The text that the model is given to read for each problem of a task.

    A base model of ours reads a problem as it is. A tokenizer that knows letters belongs to a
    general language model, which is given the instruction of the task as well, in its chat template
    if it has one, with thinking switched off if the template can do so. If a problem has a `reply`,
    the model's reply begins with it.
    """
    if "a" not in tokenizer.get_vocab():
        return [problem.prompt for problem in problems]
    prompts = [f"{task.INSTRUCTION}\n{problem.prompt}" for problem in problems]
    if tokenizer.chat_template:
        chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
        prompts = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, tokenize=False, **NO_THINKING
        )
    return [prompt + getattr(problem, "reply", "") for prompt, problem in zip(prompts, problems)]


def encode_prompts(tokenizer, prompts: Sequence[str], device="cpu") -> tuple[Tensor, Tensor]:
    """Token ids and mask of the prompts, both (P, N), left-padded so that every completion starts
    in the same column."""
    encoded = tokenizer(
        list(prompts),
        return_tensors="pt",
        padding=True,
        padding_side="left",
        add_special_tokens=not tokenizer.chat_template,  # which has written them already
    ).to(device)
    return encoded.input_ids, encoded.attention_mask.bool()


def check_tokenizer(policy, tokenizer, problems: Sequence, task: ModuleType) -> int:
    """Raises SystemExit if the tokenizer does not fit the model, or a task of which these are some
    problems: if it ends every prompt or an answer, or it or its chat template loses characters.
    Returns the tokens of the longest prompt."""
    prompts = model_prompts(tokenizer, problems, task)
    instruction = f"{task.INSTRUCTION}\n"
    if "a" not in tokenizer.get_vocab():  # a base model of ours
        instruction = ""
        if any(map(str.isalpha, "".join(prompts))):
            raise SystemExit(
                "this model reads no letters, which the task has; give another --model"
            )
    ids, _ = encode_prompts(tokenizer, prompts)
    ends = end_ids(policy, tokenizer).cpu()
    if torch.isin(ids[:, -1], ends).any():
        raise SystemExit("the tokenizer ends every prompt; give another --model")
    decoded = tokenizer.batch_decode(ids, clean_up_tokenization_spaces=False)
    for problem, text in zip(problems, decoded):
        asked = f"{instruction}{problem.prompt}"
        if folded(asked) not in folded(text):
            raise SystemExit(
                f"the tokenizer or its chat template turns {asked[-40:]!r} into {text[-80:]!r} "
                "and loses characters; give another --model"
            )
        answer = f"#{problem.answer}"
        needed = tokenizer(answer, add_special_tokens=False).input_ids
        ended = [token for token in needed if token in ends]
        if ended and task.reward(problem, answer) == 1:
            raise SystemExit(
                f"{tokenizer.decode(ended)!r} ends a completion, and the answer {answer} needs it; "
                "give another --model"
            )
    return ids.shape[1]


def folded(text: str) -> str:
    """A text in lower case with single spaces: a tokenizer or template may change no more."""
    return " ".join(text.casefold().split())
