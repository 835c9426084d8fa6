"""The task for RL engines: the same problems and the same verifier in the forms that TRL and verl take.

TRL (1.16), with any model that has a chat template; the second line needs a template that knows tools. To switch
thinking off as the scripts do: GRPOConfig(chat_template_kwargs=...), in verl data.apply_chat_template_kwargs.

    GRPOTrainer(model, trl_reward, train_dataset=Dataset.from_list(rows(4096)))
    GRPOTrainer(model, environment_factory=Arithmetic, train_dataset=Dataset.from_list(rows(4096)))
    trl grpo --model_name_or_path MODEL --dataset_name FOLDER --reward_funcs toy_env.engines.trl_reward

verl (0.9.1); in both command lines the problems are files, a row of JSON per line:

    python -m verl.trainer.main_ppo data.train_files=FOLDER/train.jsonl data.val_files=FOLDER/test.jsonl
        reward.custom_reward_function.path=pkg://toy_env.engines actor_rollout_ref.model.path=MODEL ...
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from toy_env.arithmetic import INSTRUCTION, LEVELS, extract_answer, held_out_problems, sample_problems

DATA_SOURCE = "sigma-ladder/arithmetic"


def rows(n: int, levels: Sequence[int] = LEVELS, seed: int = 0, split: str = "train", chat: bool = True) -> list[dict]:
    """n problems as plain dicts, for `Dataset.from_list` or `json.dumps`; the same arguments give the same rows.

    `split` is "train", each problem of a level drawn uniformly from `levels`, or "held_out", n / len(levels) different
    problems of each level. `prompt` is a list of one chat message, as in the scripts; with `chat=False`, for the base
    model under TRL, the bare problem, "29+46-36?". Of what the engines hand to a reward function, TRL's column `answer`
    and verl's `reward_model["ground_truth"]` are read. Raises ValueError if there are no such rows.
    """
    if not levels or len(set(levels)) < len(levels) or not set(levels) <= set(LEVELS):
        raise ValueError(f"levels {levels}: give one or more different ones of {', '.join(map(str, LEVELS))}")
    if split not in ("train", "held_out"):
        raise ValueError(f"split {split!r} does not exist; choose train or held_out")
    if n < 1 or (split == "held_out" and n % len(levels)):
        raise ValueError(f"{n} rows of split {split!r}: give 1 or more, and for held_out a multiple of {len(levels)}")
    held_out = split == "held_out"
    problems = (
        held_out_problems(n // len(levels), levels, seed) if held_out else sample_problems(n, levels, Random(seed))
    )
    return [
        {
            "prompt": [{"role": "user", "content": f"{INSTRUCTION}\n{problem.prompt}"}] if chat else problem.prompt,
            "answer": problem.answer,
            "level": problem.level,
            "data_source": DATA_SOURCE,
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(problem.answer)},
            "extra_info": {"split": split, "index": index, "level": problem.level},
        }
        for index, problem in enumerate(problems)
    ]


def compute_score(data_source: str, solution_str: str, ground_truth: str | int, extra_info: Any = None) -> float:
    """verl's reward function: 1.0 if the verifier reads the integer `ground_truth` in the completion, else 0.0. Raises
    ValueError if `ground_truth` is not an integer."""
    try:
        answer = int(str(ground_truth))
    except ValueError:
        raise ValueError(f"the right answer must be an integer, such as 39 or '39', not {ground_truth!r}") from None
    return float(extract_answer(solution_str) == answer)


def trl_reward(prompts: list, completions: list, answer: list[int] | list[str], **columns: Any) -> list[float]:
    """TRL's reward function: 1.0 or 0.0 for each completion, a text or a list of chat messages, by the rows' column
    `answer`. Raises ValueError as `compute_score` does."""
    return [compute_score(DATA_SOURCE, text_of(one), right) for one, right in zip(completions, answer, strict=True)]


def text_of(completion: str | list[dict]) -> str:
    """A completion's text. Of chat messages the last one counts, and only if the model wrote it: the result of a tool
    is no answer. Its content may be a text, a list of parts, or missing, as in the call of a tool."""
    if isinstance(completion, str):
        return completion
    last = completion[-1] if completion else {}
    content = last.get("content") if last.get("role") == "assistant" else None
    if isinstance(content, list):
        content = "".join(part.get("text") or "" for part in content)
    return content or ""


class Arithmetic:
    """TRL's environment: the model hands its reply in by calling a tool, `submit`.

    TRL keeps one instance for each completion of a batch, calls `reset` with the row before sampling and `get_reward`
    after it. Every other public method is a tool, described to the model by its signature and docstring.
    """

    _answer: int | str | None = None
    _reply = ""

    def reset(self, prompt: Any = None, answer: int | str | None = None, **columns: Any) -> str:
        """Start on the problem of a row; returns what TRL appends to the last message of its prompt. Raises ValueError
        without a dataset: a problem drawn here would be another one for each completion of a group."""
        if not isinstance(prompt, list) or answer is None:
            raise ValueError("no chat messages or no answer; give train_dataset=Dataset.from_list(rows(...))")
        self._answer, self._reply = answer, ""
        return "\nHand in your reply with the tool submit."

    def submit(self, reply: str) -> str:
        """Hand in the reply to the problem. If several are handed in, the last one counts.

        Args:
            reply: The reply, which ends with # and the integer, for example #39.
        """
        self._reply = str(reply)
        return "received"

    def get_reward(self) -> float:
        """1.0 if the reply handed in last is right, else 0.0."""
        return compute_score(DATA_SOURCE, self._reply, self._answer)
