"""The task for RL libraries: the same problems and the same verifier, as TRL and verl take them.

TRL (1.16), with any model that has a chat template. To switch thinking off as the scripts do:
GRPOConfig(chat_template_kwargs=...), in verl data.apply_chat_template_kwargs.

    GRPOTrainer(model, trl_reward, train_dataset=Dataset.from_list(rows(4096)))

verl (0.9.1) reads files, a row of JSON per line: algorithms/OUTGROW.md has the commands.
"""

import json
from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

from toy_env import arithmetic
from toy_env.model import model_prompts
from toy_env.tasks import find_module

SOURCE = "sigma-ladder/"  # and the name of the task


def rows(
    n: int,
    levels: Sequence[int] = (),
    seed: int = 0,
    split: str = "train",
    chat: bool = True,
    task=arithmetic,
    tokenizer=None,
) -> list[dict]:
    """n problems of a task as plain dicts, for `Dataset.from_list` or `json.dumps`; the same
    arguments give the same rows.

    `split` is "train", drawn as in the scripts from all levels unless some are given, or
    "held_out", n / len(levels) different problems of each level, always the same (of a file of
    questions, no more than it has). `prompt` is a list of one chat message, as in the scripts; with
    `chat=False` the bare problem, "29+46-36?"; with a tokenizer the text that the scripts give its
    model, which may have the beginning of a reply. A reward function reads TRL's column `answer`
    or, as JSON, verl's `reward_model["ground_truth"]`. Raises ValueError if there are no such rows.
    """
    all_levels = levels or task.LEVELS
    if split == "train":
        problems = task.sample_problems(n, levels, Random(seed))
    elif split == "held_out" and n % len(all_levels) == 0:
        problems = task.held_out_problems(n // len(all_levels), all_levels)
    else:
        raise ValueError(
            f"{n} rows of split {split!r}: "
            f"choose train, or held_out and a multiple of {len(all_levels)} rows"
        )
    prompts = [problem.prompt for problem in problems]
    if tokenizer:
        prompts = model_prompts(tokenizer, problems, task)
    elif chat:
        texts = [f"{task.INSTRUCTION}\n{prompt}" for prompt in prompts]
        prompts = [[{"role": "user", "content": text}] for text in texts]
    table = []
    for index, (problem, prompt) in enumerate(zip(problems, prompts)):
        truth = json.dumps(problem.answer, default=str)
        row = {
            "prompt": prompt,
            "answer": json.loads(truth),
            "level": problem.level,
            "data_source": SOURCE + task.__name__.removeprefix("toy_env."),
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": {"split": split, "index": index, "level": problem.level},
        }
        table.append(row)
    return table


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None
) -> float:
    """verl's reward function: the reward of a completion in the task that `data_source` names.
    `ground_truth` is the answer as JSON; raises ValueError if it is not."""
    return task_reward(data_source, solution_str, json.loads(str(ground_truth)))


def trl_reward(
    prompts: list, completions: list, answer: list, data_source: Sequence[str] = (), **columns: Any
) -> list[float]:
    """TRL's reward function: the reward of each completion, a text or a list of one chat message,
    by the rows' columns `answer` and `data_source`; without the latter, in arithmetic."""
    texts = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
    sources = data_source or len(texts) * [SOURCE + "arithmetic"]
    return [task_reward(*row) for row in zip(sources, texts, answer, strict=True)]


def task_reward(data_source: str, completion: str, answer: Any) -> float:
    """The reward that a task gives a completion. All that the task is told of the problem is its
    `answer`."""
    task = find_module(data_source.removeprefix(SOURCE))
    return task.reward(SimpleNamespace(answer=answer), completion)
