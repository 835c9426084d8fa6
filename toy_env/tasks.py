"""Which task: a module with problems and a verifier. README.md shows how to add one."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from toy_env import UsageError

TASKS = ("arithmetic", "expressions")  # those that come with a base model
NEEDED = "LEVELS MOST_HELD_OUT INSTRUCTION sample_problems held_out_problems extract_answer reward is_worked"


def load_task(name: str) -> ModuleType:
    """The module toy_env.NAME; a name with a dot is that of a module of your own,
    my_project.my_task. Raises UsageError if there is no such module, or if it lacks a part of a
    task; an error in your module keeps its traceback."""
    module = name if "." in name.strip(".") else f"toy_env.{name}"
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # `python algorithms/grpo.py` has the folder of the script there
    try:
        task = import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):  # one that the task itself imports
            raise
        choices = f"{' or '.join(TASKS)}, or a module of your own with a dot in its name"
        raise UsageError(f"there is no task {name!r}; choose {choices}") from None
    if missing := [part for part in NEEDED.split() if not hasattr(task, part)]:
        raise UsageError(
            f"{name!r} is no task: it has no {missing[0]}; see toy_env/README.md, A task of your own"
        )
    return task


def base_model(task: ModuleType) -> str:
    """The folder of the base model that comes with a task. Raises UsageError if there is none."""
    name = task.__name__.removeprefix("toy_env.")
    if name not in TASKS:
        ours = "toy_env/base_model (arithmetic) and toy_env/base_expressions"
        raise UsageError(
            f"there is no base model for the task {name!r}; --model takes {ours}, or a model of the hub"
        )
    return str(Path(__file__).parent / ("base_model" if name == "arithmetic" else f"base_{name}"))
