"""Two-digit sums for a small chat model, whose reply is begun for it: 35 + 14 =

    python algorithms/grpo.py --task lessons.experiments.sums --model FOLDER_OR_NAME \\
        --prompts_per_step 8 --max_new_tokens 8 --learning_rate 1e-5 --kl_coef 0

The problems are those of the task of arithmetic with one operation. A completion is right if it is
the number, with a full stop or without, and ends there.
"""

import re
from dataclasses import dataclass

from toy_env import arithmetic

INSTRUCTION = "Answer with the number only."
LEVELS = (1,)
is_worked = arithmetic.is_worked


@dataclass(frozen=True)
class Problem:
    prompt: str  # "What is 35 + 14?"
    reply: str  # "35 + 14 =", how the model's reply begins
    answer: int
    level: int = 1


def spelt_out(problem: arithmetic.Problem) -> Problem:
    """The same problem in words."""
    spaced = re.sub(r"([+-])", r" \1 ", problem.expression)
    return Problem(f"What is {spaced}?", f"{spaced} =", problem.answer)


def sample_problems(n, levels, rng):
    return [spelt_out(problem) for problem in arithmetic.sample_problems(n, LEVELS, rng)]


def held_out_problems(per_level, levels=LEVELS):
    return [spelt_out(problem) for problem in arithmetic.held_out_problems(per_level, LEVELS)]


def extract_answer(completion: str) -> int | None:
    """The number, if there is nothing else but white space and one full stop."""
    match = re.fullmatch(r"\s*(-?[0-9]{1,9})\.?\s*", completion, flags=re.ASCII)
    return int(match[1]) if match else None


def reward(problem: Problem, completion: str) -> float:
    return float(extract_answer(completion) == problem.answer)
