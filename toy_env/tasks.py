"""Which task: a module with problems and a verifier. README.md shows how to add one."""

import sys
import traceback
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from toy_env import UsageError

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
        found = find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise UsageError(
            f"there is no task {name!r}; choose {' or '.join(TASKS)}, or a module of your own with a dot in its name"
        )
    try:
        task = import_module(module)
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if isinstance(error, SyntaxError) else f" ({Path(at.filename).name}, line {at.lineno})"
        raise UsageError(f"the task {name!r} cannot be imported: {type(error).__name__}: {error}{where}") from None
    if missing := [part for part in NEEDED if not hasattr(task, part)]:
        raise UsageError(f"{name!r} is no task: it has no {missing[0]}; see toy_env/README.md, A task of your own")
    if not task.LEVELS or any(task.MOST_HELD_OUT.get(level, 0) < 1 for level in task.LEVELS):
        raise UsageError(
            f"{name!r} is no task: LEVELS names one level or more, and MOST_HELD_OUT has 1 or more of each"
        )
    return task


def base_model(task: ModuleType) -> str:
    """The folder of the base model that comes with a task. Raises UsageError if there is none."""
    name = task.__name__.removeprefix("toy_env.")
    if name not in TASKS:
        raise UsageError(f"there is no base model for the task {name!r}; give one with --model")
    return str(Path(__file__).parent / ("base_model" if name == "arithmetic" else f"base_{name}"))
