"""The tasks: modules with problems and a verifier, or a file of questions. README.md shows both."""

import os.path
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

TASKS = ("arithmetic", "expressions")  # these come with a base model


@dataclass
class TaskConfig:
    """The settings that choose a task. All but --task are those of --task questions."""

    task: str = "arithmetic"  # arithmetic, expressions, questions, or your own my_project.my_task
    questions: str = ""  # file of questions: a row {"question": "6 times 3?", "answer": 18} each
    held_out: str = ""  # file of questions to evaluate on; by default a fifth of --questions
    instruction: str = ""  # what the model reads before each question; by default how to answer
    reply: str = ""  # how the model's reply begins, such as "The answer is"; it goes on from there


def load_task(config: TaskConfig):
    """The task that settings choose: a module, or the task of a file, which has the same parts.
    Raises SystemExit if there is no such task."""
    module = find_module(config.task)
    own = config.questions, config.held_out, config.instruction, config.reply
    if (config.task == "questions") != any(own):
        raise SystemExit(
            "--task questions takes --questions FILE.jsonl, and if you like --held_out, "
            "--instruction and --reply; no other task does"
        )
    return module.Questions(*own) if any(own) else module


def find_module(name: str) -> ModuleType:
    """The module toy_env.NAME, or a module of your own, whose name has a dot: my_project.my_task.
    Raises SystemExit if there is no such module."""
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.append(folder)  # a script finds modules beside itself, not in this folder
    module = name if "." in name else f"toy_env.{name}"
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name and not module.startswith(error.name):
            raise  # the task is there and imports another module that is not
        own = "questions, or a module of your own, such as my_project.my_task"
        raise SystemExit(f"no task {name!r}; choose {', '.join(TASKS)}, {own}") from None


def find_model(name: str, task) -> str:
    """What --model means: the base model of a task, a folder, or a name on the hub."""
    return base_model(task) if name == "base" else os.path.expanduser(name)


def base_model(task) -> str:
    """The folder of the base model that comes with a task. Raises SystemExit if there is none."""
    name = task.__name__.removeprefix("toy_env.")
    if name not in TASKS:
        raise SystemExit(
            f"{name} has no base model; give one, as in --model HuggingFaceTB/SmolLM2-135M-Instruct"
            " (or --model toy_env/base_model, which reads only 0123456789+-?=;#)"
        )
    return str(Path(__file__).parent / ("base_model" if name == "arithmetic" else f"base_{name}"))
