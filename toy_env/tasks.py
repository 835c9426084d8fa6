"""The tasks: modules with problems and a verifier. README.md shows how to add one."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

TASKS = ("arithmetic", "expressions")  # these come with a base model


def load_task(name: str) -> ModuleType:
    """The module toy_env.NAME, or a module of your own, whose name has a dot: my_project.my_task.
    Raises SystemExit if there is no such module."""
    sys.path.append(str(Path.cwd()))  # a script finds modules beside itself, not in this folder
    module = name if "." in name else f"toy_env.{name}"
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name and not module.startswith(error.name):
            raise  # the task is there and imports another module that is not
        own = "a module of your own, such as my_project.my_task"
        raise SystemExit(f"no task {name!r}; choose {', '.join(TASKS)}, or {own}") from None


def find_model(name: str, task: ModuleType) -> tuple[str, str]:
    """--model as a run keeps it, a folder as its whole path, and what to load: a folder or a name
    on the hub."""
    folder = Path(name).expanduser()
    if name != "base" and folder.is_dir():
        name = str(folder.resolve())
    return name, base_model(task) if name == "base" else name


def base_model(task: ModuleType) -> str:
    """The folder of the base model that comes with a task. Raises SystemExit if there is none."""
    name = task.__name__.removeprefix("toy_env.")
    if name not in TASKS:
        raise SystemExit(f"{name} has no base model; give one, as in --model toy_env/base_model")
    return str(Path(__file__).parent / ("base_model" if name == "arithmetic" else f"base_{name}"))
