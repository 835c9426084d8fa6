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
NEEDED = "LEVELS MOST_HELD_OUT INSTRUCTION sample_problems held_out_problems extract_answer reward is_worked"


def load_task(name: str) -> ModuleType:
    """The module toy_env.NAME; a name with a dot is that of a module of your own, my_project.my_task. Raises UsageError
    if there is no such module, or if it is no task."""
    module = name if "." in name else f"toy_env.{name}"
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # `python algorithms/grpo.py` has the folder of the script there
    try:
        task = import_module(module)
        if missing := [part for part in NEEDED.split() if not hasattr(task, part)]:
            raise UsageError(f"it has no {missing[0]}")
        if "." in name:
            try_task(task)
        return task
    except UsageError as error:
        what = str(error)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            choices = f"{' or '.join(TASKS)}, or a module of your own with a dot in its name"
            raise UsageError(f"there is no task {name!r}; choose {choices}") from None
        at = traceback.extract_tb(error.__traceback__)[-1]
        place = "" if isinstance(error, SyntaxError) else f" ({Path(at.filename).name}, line {at.lineno})"
        what = f"{type(error).__name__}: {reason(error)}{place}"
    raise UsageError(f"{name!r} is no task: {what}; see toy_env/README.md, A task of your own")


def try_task(task: ModuleType) -> None:
    """Draw problems of each level and reward two completions. Raises UsageError, and whatever the task raises."""
    for level in task.LEVELS or [None]:
        problems = [*task.sample_problems(1, (level,), Random(0)), *task.held_out_problems(1, (level,))]
        if len(problems) != 2 or task.MOST_HELD_OUT.get(level, 0) < 1:
            raise UsageError(f"level {level} must have problems to train on, problems held out, and a MOST_HELD_OUT")
        for completion in ("", "#1"):
            reward = task.reward(problems[0], completion)
            if not (isinstance(reward, SupportsFloat) and math.isfinite(reward)):
                raise UsageError(f"reward must be a finite number, not {reward!r}, for the completion {completion!r}")


def base_model(task: ModuleType) -> str:
    """The folder of the base model that comes with a task. Raises UsageError if there is none."""
    name = task.__name__.removeprefix("toy_env.")
    if name not in TASKS:
        raise UsageError(f"there is no base model for the task {name!r}; give one with --model")
    return str(Path(__file__).parent / ("base_model" if name == "arithmetic" else f"base_{name}"))
