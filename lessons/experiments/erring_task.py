"""Arithmetic with a verifier that errs, for lesson 17 and its experiment, erring.py.

    python algorithms/grpo.py --task lessons.experiments.erring_task --model toy_env/base_model

There the verifier looks only at the last digit. The accuracy that the script prints is the one that
the verifier sees.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from toy_env import arithmetic
from toy_env.arithmetic import (
    INSTRUCTION,
    LEVELS,
    MOST_HELD_OUT,
    Problem,
    extract_answer,
    held_out_problems,
    is_worked,
    sample_problems,
)

__all__ = ["INSTRUCTION", "LEVELS", "MOST_HELD_OUT", "Problem", "extract_answer"]
__all__ += ["held_out_problems", "is_worked", "reward", "sample_problems"]
LONG = 16  # characters

# Errors that follow the text: (problem, completion, True if it is right) -> True if the verdict is
# wrong. Of the base model's wrong completions 3 % answer 0 and 47 % have the right last digit; of
# its right ones 23 % are long.
FORMS: dict[str, Callable[[Problem, str, bool], bool]] = {
    "answer 0 accepted": lambda problem, text, right: not right and extract_answer(text) == 0,
    "last digit decides": lambda problem, text, right: (
        not right and same_last_digit(problem, extract_answer(text))
    ),
    "long ones rejected": lambda problem, text, right: right and len(text) > LONG,
}


def same_last_digit(problem: Problem, answer: int | None) -> bool:
    """True if the answer is a number without a sign that ends in the right digit."""
    return answer is not None and answer >= 0 and answer % 10 == problem.answer % 10


@dataclass(frozen=True)
class Errors:
    """The errors of a verifier: always on the completions of a form, and at random on others."""

    accepted: float = 0.0  # probability that a wrong completion passes
    rejected: float = 0.0  # probability that a right one does not
    fixed: bool = False  # the same completion of the same problem always gets the same verdict
    form: str = ""  # one of FORMS


class Verifier:
    """A task for `estimators.collect`, whose rewards err; `right` holds the truth about each
    completion so far."""

    LEVELS, sample_problems = LEVELS, staticmethod(sample_problems)

    def __init__(self, errors: Errors, seed: str) -> None:
        self.errors, self.seed, self.fresh, self.right = errors, seed, random.Random(seed), []

    def reward(self, problem: Problem, completion: str) -> float:
        """1.0 if the completion passes, else 0.0."""
        right, errors = arithmetic.reward(problem, completion) == 1, self.errors
        draws = self.fresh
        if errors.fixed:
            draws = random.Random(f"{self.seed} {problem.expression} {completion}")
        wrong_verdict = draws.random() < (errors.rejected if right else errors.accepted)
        if errors.form:
            wrong_verdict |= FORMS[errors.form](problem, completion, right)
        self.right.append(right)
        return float(right != wrong_verdict)

    def truth(self, shape: tuple[int, int]) -> np.ndarray:
        """(P, G): 1 for each of the last completions that is right, 0 for the others."""
        return np.array(self.right[-np.prod(shape) :], dtype=float).reshape(shape)


def reward(problem: Problem, completion: str) -> float:
    """The reward of the task of this module: 1.0 if the last digit of the answer is right."""
    return Verifier(Errors(form="last digit decides"), "").reward(problem, completion)
