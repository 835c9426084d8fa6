"""A task with many right answers: write an expression that has a given value.

    39?          the prompt
    #12+27       a right answer; so are #50-11 and #40-2+1

Targets are 10 to 99; a hash, as in `arithmetic.py`, puts 74 into the training split and holds out
16. Plain Python.
"""

import random
import re
from collections.abc import Sequence

from toy_env.arithmetic import Problem, is_held_out

LEVELS = (1,)
TARGETS, MOST_OPERAND = range(10, 100), 99
INSTRUCTION = """\
Write an expression that has the given value: integers from 1 to 99, joined by + or -, at least \
two of them. End your
reply with # and the expression, as in this example.

39?
#12+27
"""


# Problem("39", answer=39, level=1) asks for an expression with the value 39.
PROBLEMS = [Problem(str(n), n, level=1) for n in TARGETS]
TRAINING = [problem for problem in PROBLEMS if not is_held_out(problem.prompt)]
HELD_OUT = [problem for problem in PROBLEMS if is_held_out(problem.prompt)]


def sample_problems(n: int, levels: Sequence[int], rng: random.Random) -> list[Problem]:
    """n training problems, drawn uniformly. There is one level."""
    return rng.choices(TRAINING, k=n)


def held_out_problems(per_level: int, levels: Sequence[int] = LEVELS) -> list[Problem]:
    """The evaluation set: `per_level` different held-out problems, or all; always the same."""
    return random.Random("held-out-0").sample(HELD_OUT, min(per_level, len(HELD_OUT)))


_EXPRESSION = re.compile(r"[1-9][0-9]?(?:[+-][1-9][0-9]?)+", re.ASCII)
_TERM = re.compile(r"[+-]?[0-9]+", re.ASCII)


def extract_answer(completion: str) -> int | None:
    """The value of the expression after the last "#", or None if there is none.

    Everything after the last "#" must be two or more integers from 1 to 99, without leading zeros,
    joined by + or -. "#39" repeats the target and is no expression, nor are "#39+0", "#-11+50",
    "#12 + 27" or "#12+27." Linear in the length of the completion; evaluates nothing; raises
    nothing.
    """
    _, hash_sign, tail = completion.rpartition("#")
    if not (hash_sign and _EXPRESSION.fullmatch(tail)):
        return None
    return sum(map(int, _TERM.findall(tail)))


def reward(problem: Problem, completion: str) -> float:
    """The verifiable reward: 1.0 if the completion's expression has the value that is asked for,
    else 0.0."""
    return float(extract_answer(completion) == problem.answer)


def is_worked(completion: str) -> bool:
    """Nothing is worked out in this task."""
    return False
