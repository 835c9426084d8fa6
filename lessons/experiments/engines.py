"""The task for RL libraries: the same problems and the same verifier, as TRL and verl take them.

TRL (1.16), with any model that has a chat template. To switch thinking off as the scripts do:
GRPOConfig(chat_template_kwargs=...), in verl data.apply_chat_template_kwargs.

    GRPOTrainer(model, trl_reward, train_dataset=Dataset.from_list(rows(4096)))

verl (0.9.1) reads files, a row of JSON per line: algorithms/OUTGROW.md has the commands.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from toy_env.arithmetic import (
    INSTRUCTION,
    LEVELS,
    extract_answer,
    held_out_problems,
    sample_problems,
)

DATA_SOURCE = "sigma-ladder/arithmetic"


def rows(
    n: int, levels: Sequence[int] = LEVELS, seed: int = 0, split: str = "train", chat: bool = True
) -> list[dict]:
    """n problems as plain dicts, for `Dataset.from_list` or `json.dumps`; the same arguments give
    the same rows.

    `split` is "train", each problem of a level drawn uniformly from `levels`, or "held_out",
    n / len(levels) different problems of each level, always the same. `prompt` is a list of one
    chat message, as in the scripts; with `chat=False`, for the base model under TRL, the bare
    problem, "29+46-36?". A reward function reads TRL's column `answer` or verl's
    `reward_model["ground_truth"]`. Raises ValueError if there are no such rows.
    """
    if split == "train":
        problems = sample_problems(n, levels, Random(seed))
    elif split == "held_out" and n % len(levels) == 0:
        problems = held_out_problems(n // len(levels), levels)
    else:
        raise ValueError(
            f"{n} rows of split {split!r}: "
            f"choose train, or held_out and a multiple of {len(levels)} rows"
        )
    table = []
    for index, problem in enumerate(problems):
        message = {"role": "user", "content": f"{INSTRUCTION}\n{problem.prompt}"}
        row = {
            "prompt": [message] if chat else problem.prompt,
            "answer": problem.answer,
            "level": problem.level,
            "data_source": DATA_SOURCE,
            "reward_model": {"style": "rule", "ground_truth": str(problem.answer)},
            "extra_info": {"split": split, "index": index, "level": problem.level},
        }
        table.append(row)
    return table


def compute_score(
    data_source: str, solution_str: str, ground_truth: str | int, extra_info: Any = None
) -> float:
    """verl's reward function: 1.0 if the verifier reads the integer `ground_truth` in the
    completion, else 0.0. Raises ValueError if `ground_truth` is not an integer."""
    return float(extract_answer(solution_str) == int(str(ground_truth)))


def trl_reward(
    prompts: list, completions: list, answer: list[int] | list[str], **columns: Any
) -> list[float]:
    """TRL's reward function: 1.0 or 0.0 for each completion, a text or a list of one chat message,
    by the rows' column `answer`. Raises ValueError as `compute_score` does."""
    texts = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
    pairs = zip(texts, answer, strict=True)
    return [compute_score(DATA_SOURCE, text, ground_truth) for text, ground_truth in pairs]
