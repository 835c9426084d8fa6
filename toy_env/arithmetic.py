"""The task: chains of additions and subtractions with one right answer, and the verifier.

    29+46-36?               the prompt of a level-2 problem (level = number of operations, 1 to 4)
    #39                     a direct completion
    29+46=75;75-36=39;#39   a worked completion

Operands are 1..50 and every running total stays in 0..99. A problem belongs to the training split
or to the held-out split by a hash of its expression, so no held-out problem is ever trained on, in
pretraining or in RL. Plain Python: nothing here knows about models or tensors.
"""

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

LEVELS = (1, 2, 3, 4)
MAX_OPERAND = 50
MAX_TOTAL = 99
HELD_OUT_SHARE = 0.2
INSTRUCTION = """\
Compute the value. You may work step by step. End your reply with # and the integer, as in this \
example.

29+46-36?
29+46=75;75-36=39;#39
"""  # for models that have not learnt the task
# held-out problems of each level: all there are at 1, more than enough at the others
MOST_HELD_OUT = {1: 767, 2: 10_000, 3: 10_000, 4: 10_000}


@dataclass(frozen=True)
class Problem:
    """One problem, such as Problem("29+46-36", 39, 2)."""

    expression: str
    answer: int
    level: int  # number of operations

    @property
    def prompt(self) -> str:
        """The text the model is asked to continue, "29+46-36?"."""
        return self.expression + "?"


def is_held_out(expression: str) -> bool:
    """True if the problem is reserved for evaluation: a fifth of all expressions, the same in every
    process."""
    digest = hashlib.sha256(expression.encode()).digest()
    return int.from_bytes(digest[:8], "big") < HELD_OUT_SHARE * 2**64


def sample_problem(level: int, rng: random.Random, held_out: bool = False) -> Problem:
    """Draw a problem uniformly from all problems of one level and split, by rejection."""
    while True:
        total = rng.randint(1, MAX_OPERAND)
        expression = str(total)
        for _ in range(level):
            operator, operand = rng.choice("+-"), rng.randint(1, MAX_OPERAND)
            total = total + operand if operator == "+" else total - operand
            expression += f"{operator}{operand}"
            if not 0 <= total <= MAX_TOTAL:
                break
        else:  # no total left the range
            if is_held_out(expression) == held_out:
                return Problem(expression, total, level)


def sample_problems(n: int, levels: Sequence[int], rng: random.Random) -> list[Problem]:
    """n training problems, each of a level drawn uniformly from `levels`; no levels: from all."""
    return [sample_problem(rng.choice(levels or LEVELS), rng) for _ in range(n)]


def held_out_problems(per_level: int, levels: Sequence[int] = LEVELS) -> list[Problem]:
    """The evaluation set: `per_level` different held-out problems of each level, or all that there
    are; always the same."""
    problems: dict[str, Problem] = {}
    for level in dict.fromkeys(levels):
        rng = random.Random(f"held-out-0-{level}")
        wanted = len(problems) + min(per_level, MOST_HELD_OUT[level])
        while len(problems) < wanted:
            problem = sample_problem(level, rng, held_out=True)
            problems[problem.expression] = problem
    return list(problems.values())


_INTEGER = re.compile(r"([+-]?)0*([0-9]{1,9})", re.ASCII)
# A minus in front of a box belongs to the number. \u2212 is read, too, so that _INTEGER refuses it.
_BOXED = re.compile(r"([-\u2212]?)\\boxed\{([^{}0-9]*[0-9][^{}]*)\}")
_DRESS = " \t\r\n*$`\\()[]"  # white space, and marks of bold type, code and mathematics


def extract_answer(completion: str) -> int | None:
    """The integer after the last "#", or None if there is none. A number in a box, \\boxed{39}, is
    read as #39.

    Everything after the last "#" must be one integer in ASCII digits: an optional sign, any number
    of leading zeros, at most nine digits. Around it may stand white space and any of * $ ` \\ ( ) [
    ], and at the end one full stop. "#39 apples", "#39.5", "#3 9", "#1,039" and "#" hold no answer.
    Linear in the length of the completion; evaluates nothing; raises nothing.
    """
    _, hash_sign, tail = _BOXED.sub(r"#\1\2 ", completion).rpartition("#")
    match = _INTEGER.fullmatch(tail.strip(_DRESS).removesuffix(".").rstrip(_DRESS))
    return int(match[1] + match[2]) if hash_sign and match else None


def reward(problem: Problem, completion: str) -> float:
    """The verifiable reward: 1.0 if the completion's answer is the right one, else 0.0."""
    return float(extract_answer(completion) == problem.answer)


def is_worked(completion: str) -> bool:
    """True if the completion writes out at least one step, such as "29+46=75;". Measured only,
    never rewarded."""
    return "=" in completion
