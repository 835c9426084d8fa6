"""From the command line to a config: flags from a dataclass, settings checked, bad input answered
in one line."""

import json
import math
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated

import tyro

from toy_env import Diverged, RunFailed, Stopped, UsageError, is_out_of_memory, leave, reason, stop
from toy_env.tasks import load_task

MOST_TOKENS = 2**31  # of a rollout batch
STOPPING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


@dataclass(frozen=True)
class Bounds:
    """What a setting may be: `least` or more, or above it; and `most`, which may name another
    setting, or less."""

    least: float = -math.inf
    most: float | str = math.inf
    above: bool = False

    def unmet(self, value: float, settings: dict) -> str:
        """What a value must be and is not, such as "2 or more"; empty if it keeps to the bounds."""
        if not math.isfinite(value):
            return "finite"
        if value < self.least or (self.above and value == self.least):
            return f"above {self.least:g}" if self.above else f"{self.least:g} or more"
        most = settings.get(self.most, self.most)
        shown = f"{most:g}" if isinstance(most, float) else most
        return (
            f"{shown}{f' ({self.most})' * (self.most in settings)} or less" if value > most else ""
        )


def at_least(least: int | float, most: int | float | str = math.inf):
    """The type of a setting that is `least` or more: an integer if `least` is one, else a float."""
    return Annotated[type(least), Bounds(least, most)]


def above(least: int | float):
    """The type of a setting that is more than `least`: an integer if `least` is one, else a
    float."""
    return Annotated[type(least), Bounds(least, above=True)]


@dataclass
class RunConfig:
    """The settings of every run, whatever its algorithm. The comment behind a field is its help
    text."""

    steps: at_least(1) = 60  # rollout batches
    seed: at_least(0, 2**63 - 1) = 0  # seeds the problems and the sampling of every step
    device: str = "auto"  # auto (cuda, else mps, else cpu), cuda, mps or cpu
    task: str = (
        "arithmetic"  # arithmetic, expressions, or a module of your own, such as my_project.my_task
    )
    model: str = "base"  # base, a folder, or a model on the hub (its memory: toy_env/README.md)
    dtype: str = "float32"  # precision of the forward pass, float32 or bfloat16; weights and optimizer stay float32
    gradient_checkpointing: bool = False  # save memory: recompute each layer in the backward pass
    run_dir: str = ""  # the run's folder; by default runs/SCRIPT-SEED, numbered if that exists
    resume: bool = False  # continue the run in --run_dir from its last save
    save_every: at_least(1) = 20  # steps between two saves for --resume
    eval_problems: at_least(1) = (
        64  # held-out problems of each level (or all it has), before and after training
    )
    eval_every: at_least(0) = 10  # steps between two evaluations during training; 0 for none
    levels: tuple[
        int, ...
    ] = ()  # difficulties (arithmetic: number of operations, 1 to 4); none given: all
    max_tokens_per_pass: at_least(1) = (
        16_384  # in a forward pass: lower it to save memory; the gradient is unchanged
    )
    measure_updates: bool = (
        False  # log update_norm, the distance that each optimizer step moves the policy
    )


def check_settings(config) -> None:
    """Raises UsageError for the first setting that makes no sense: a number that is not finite or
    does not keep to the bounds that its type names (`at_least`, `above`), or what the config's own
    method `check` refuses, if it has one."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    task, levels = load_task(values.get("task", "arithmetic")), list(values.get("levels", ()))
    for level in levels:
        if level not in task.LEVELS or levels.count(level) > 1:
            wrong = "is given twice" if level in task.LEVELS else "does not exist"
            raise UsageError(
                f"--levels: level {level} {wrong}; choose from {' '.join(map(str, task.LEVELS))}"
            )
    for field in fields(config):
        value = values[field.name]
        notes = getattr(
            field.type, "__metadata__", ()
        )  # of an Annotated type, which may hold tyro's too
        bounds = next((note for note in notes if isinstance(note, Bounds)), Bounds())
        if type(value) in (int, float) and (requirement := bounds.unmet(value, values)):
            raise UsageError(f"--{field.name} must be {requirement}, not {value}")
    sizes = [
        name
        for name in ("prompts_per_step", "group_size", "samples", "max_new_tokens")
        if name in values
    ]
    if "max_new_tokens" in sizes and math.prod(values[name] for name in sizes) > MOST_TOKENS:
        raise UsageError(
            f"{' x '.join(f'--{name}' for name in sizes)} must be {MOST_TOKENS} tokens or fewer"
        )
    if callable(getattr(config, "check", None)):  # a flag may have this name too
        config.check()


def saved_settings(config_class: type, run_dir: str):
    """The config that a run was started with, from its config.json. Raises UsageError if there is
    none."""
    if not run_dir:
        raise UsageError(
            "--resume needs the run to continue; add --run_dir, for example --run_dir runs/reinforce-0"
        )
    path = Path(run_dir) / "config.json"
    if not path.exists():
        raise UsageError(
            f"{run_dir!r} holds no run: it has no config.json; leave out --resume to start a run there"
        )
    try:
        saved = dict(json.loads(path.read_text(encoding="utf-8")))
        values = {
            name: type(default)(saved.get(name, default))
            for name, default in asdict(config_class()).items()
        }
    except Exception as error:
        raise UsageError(
            f"{str(path)!r} cannot be read as JSON settings ({reason(error)}); repair it"
        ) from None
    return config_class(**values)


def wrapped(text: str, width: int) -> str:
    """A docstring at most `width` columns wide: paragraphs are filled, indented lines stay
    lines."""
    text = re.sub(r"(?<=\S)\n(?=\S)", " ", text)
    starts = [(line, re.match(r" *([+-] )?", line)[0]) for line in text.splitlines()]
    return "\n".join(
        textwrap.fill(line, width, subsequent_indent=" " * len(start)) for line, start in starts
    )


def parse(config_class: type, description: str | None, default=None):
    """The config that the command line spells; exits with code 2 and tyro's message if it spells
    none."""
    settings = (
        config_class.__dataclass_fields__.items()
    )  # in the help, the script's own come before those of every run
    own_first = sorted(settings, key=lambda setting: setting[0] not in config_class.__annotations__)
    config_class.__dataclass_fields__ = dict(own_first)
    if {"-h", "--help"} & set(sys.argv[1:]):  # printed here, because tyro would not wrap it
        print(wrapped(description or "", min(100, shutil.get_terminal_size().columns)))
    style = {"use_underscores": True, "config": (tyro.conf.FlagCreatePairsOff,)}
    return tyro.cli(config_class, description="", default=default, **style)


def run_main(
    config_class, main: Callable, description: str | None, defaults=lambda _: None, saved=lambda: ""
) -> None:
    """Call main(config) with the config that the command line spells.

    `defaults`, given the config, may return a config whose values are the defaults of a second
    reading: that is how a run is resumed. What ends the program early is one line on standard
    error: exit code 2 for bad input, 1 for what fails on the way, 130 for Ctrl-C, 143 for SIGTERM,
    129 for SIGHUP. All but the first end with what `saved` says.
    """
    config, code = None, 1
    try:
        with on_signals(stop):
            prepare_output()
            config = parse(config_class, description)
            if default := defaults(config):
                config = parse(config_class, description, default)
            check_settings(config)
            main(config)
            return
    except (UsageError, Diverged) as error:
        line, code = f"error: {error}", 2 if isinstance(error, UsageError) else 1
    except RunFailed as error:
        line = f"error: {error}{saved()}"
    except KeyboardInterrupt as end:
        line, code = f"stopped {end}".strip() + saved(), 128 + getattr(end, "number", signal.SIGINT)
    except OSError as error:
        line = f"error: {error.filename or 'cannot print'} ({error.strerror or error}){saved()}"
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        line = f"error: out of memory; {less_memory(config)}{saved()}"
    with suppress(OSError):
        print(line, file=sys.stderr)
    sys.exit(code)


def less_memory(config) -> str:
    """Which settings to change when memory does not suffice."""
    lower = ("max_tokens_per_pass", "samples", "batch_size")
    advice = [
        f"lower --{name} (now {getattr(config, name)})" for name in lower if hasattr(config, name)
    ]
    if hasattr(config, "group_size"):
        advice += ["add --gradient_checkpointing", "start a new run with a smaller --group_size"]
    return ", or ".join(advice)


def prepare_output() -> None:
    """Have output appear line by line, through a pipe as well, and replace what the terminal cannot
    show."""
    for name in ("stdout", "stderr"):
        if hasattr(getattr(sys, name), "reconfigure"):  # not under pytest, or in a notebook
            getattr(sys, name).reconfigure(errors="replace", line_buffering=True)


@contextmanager
def on_signals(handler: Callable) -> Iterator[None]:
    """Inside, the main thread answers the signals of STOPPING with handler(number, frame). A signal
    that is ignored (SIGHUP under nohup) stays ignored, except Ctrl-C."""
    taken = [n for n in STOPPING if n == signal.SIGINT or signal.getsignal(n) != signal.SIG_IGN]
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in taken if in_main_thread}
    try:
        yield
    finally:
        for (
            number,
            old,
        ) in before.items():  # `leave` is for a start; when this ends, the program does
            signal.signal(number, signal.SIG_IGN if old is leave else old)


@contextmanager
def finishing_the_step() -> Iterator[list[int]]:
    """Inside, a first signal of STOPPING is only noted in the list, so that the step in progress
    can end and be saved; a second one raises Stopped at once."""
    noted: list[int] = []

    def note(number: int, frame) -> None:
        if noted:
            raise Stopped(number, "in the middle of a step")
        noted.append(number)

    with on_signals(note):
        yield noted


@contextmanager
def silence() -> Iterator[None]:
    """Inside, nothing is written to standard output and error: for a program that runs many
    scripts."""
    with (
        open(os.devnull, "w", encoding="utf-8") as sink,
        redirect_stdout(sink),
        redirect_stderr(sink),
    ):
        yield
