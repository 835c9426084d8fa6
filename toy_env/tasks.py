"""Which task: a module with problems and a verifier. README.md shows how to add one."""

import math
import sys
import traceback
from importlib import import_module
from pathlib import Path
from random import Random
from types import ModuleType
from typing import SupportsFloat

from toy_env import UsageError, reason

TASKS = ("arithmetic", "expressions")  # those that come with a base model
NEEDED = (
    "LEVELS", "MOST_HELD_OUT", "INSTRUCTION", "sample_problems", "held_out_problems", "extract_answer", "reward",
    "is_worked",
)  # fmt: skip


def load_task(name: str) -> ModuleType:
    """The module toy_env.NAME; a name with a dot is that of a module of your own, my_project.my_task.

    Raises UsageError if there is no such module, or if it lacks something.
    """
    module = name if "." in name else f"toy_env.{name}"
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # `python algorithms/grpo.py` has the folder of the script there
    try:
        task = import_module(module)
        if missing := [part for part in NEEDED if not hasattr(task, part)]:
            raise TypeError(f"it has no {missing[0]}")
        if "." in name:
            check_task(task)
    except Exception as error:
        missing_module = error.name if isinstance(error, ModuleNotFoundError) else None
        if f"{module}.".startswith(f"{missing_module}.") or not all(map(str.isidentifier, module.split("."))):
            raise UsageError(
                f"there is no task {name!r}; choose {' or '.join(TASKS)}, or a module of your own with a dot in its "
                "name"
            ) from None
        at = traceback.extract_tb(error.__traceback__)[-1]
        what = str(error)
        if Path(at.filename) != Path(__file__):  # not raised here
            place = "" if isinstance(error, SyntaxError) else f" ({Path(at.filename).name}, line {at.lineno})"
            what = f"{type(error).__name__}: {reason(error)}{place}"
        raise UsageError(f"{name!r} is no task: {what}; see toy_env/README.md, A task of your own") from None
    return task


def check_task(task: ModuleType) -> None:
    """Try a task. Raises TypeError or ValueError if it does not keep to what toy_env/README.md says, and whatever its
    functions raise."""
    if not isinstance(task.LEVELS, tuple | list | range) or not task.LEVELS:
        raise TypeError(f"LEVELS must be a tuple of one level or more, not {task.LEVELS!r}")
    if not isinstance(task.MOST_HELD_OUT, dict):
        raise TypeError(f"MOST_HELD_OUT must be a dictionary, of a number for every level, not {task.MOST_HELD_OUT!r}")
    for level in task.LEVELS:
        if (most := task.MOST_HELD_OUT.get(level, 0)) < 1:
            raise ValueError(f"MOST_HELD_OUT must have 1 or more problems of level {level}, not {most}")
        problems = task.sample_problems(2, (level,), Random(0)), task.held_out_problems(min(2, most), (level,))
        if (counts := [len(some) for some in problems]) != [2, min(2, most)]:
            raise ValueError(f"of 2 training and {min(2, most)} held-out problems of level {level} it gives {counts}")
        for completion in ("", "#1"):
            reward = task.reward(problems[0][0], completion)
            if not isinstance(reward, SupportsFloat) or not math.isfinite(reward):
                raise ValueError(f"reward must be a finite number, not {reward!r}, for the completion {completion!r}")


def base_model(task: ModuleType) -> str:
    """The folder of the base model that comes with a task. Raises UsageError if there is none."""
    name = task.__name__.removeprefix("toy_env.")
    if name not in TASKS:
        raise UsageError(f"there is no base model for the task {name!r}; give one with --model")
    return str(Path(__file__).parent / ("base_model" if name == "arithmetic" else f"base_{name}"))
