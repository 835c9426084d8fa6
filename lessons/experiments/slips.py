"""A third task for the experiments: that of expressions, from a student who miscalculates where the
other one repeats.

    python -m toy_env.pretrain --task lessons.experiments.slips --steps 4000

Asked for an expression with the value 39 he writes "#12+27", or one that is a little off, "#12+29".
So both right and wrong completions are diverse. How often he is right depends on the last digit, as
there.
"""

import random

from toy_env import expressions
from toy_env.expressions import (  # noqa: F401, what a task has
    INSTRUCTION,
    LEVELS,
    Problem,
    extract_answer,
    held_out_problems,
    is_worked,
    reward,
    sample_problems,
)

MISSES = (-20, -10, -2, -1, 1, 2, 10, 20)


def demonstrate(problem: Problem, rng: random.Random, diligent: bool = False) -> str:
    """One completion of the student: "#12+27", or "#12+29" where 39 is asked for."""
    target, most = problem.answer, expressions.MOST_OPERAND
    value = target if rng.random() < (target % 10 + 0.5) / 10 else target + rng.choice(MISSES)
    first = rng.choice([n for n in range(1, most + 1) if n != value and abs(value - n) <= most])
    return f"#{first}{value - first:+d}"
