"""From the command line to a config: flags from a dataclass, settings checked, bad input answered in one line."""

import contextlib
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
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated

import torch
import tyro

from toy_env import Diverged, RunFailed, Stopped, UsageError, is_out_of_memory, leave, stop
from toy_env.save import is_unused
from toy_env.tasks import load_task

MOST_TOKENS = 2**31  # of a rollout batch
MOST_FLOAT = torch.finfo(torch.float32).max
MOST_INT = 2**63 - 1
STOPPING = ("SIGINT", "SIGTERM", "SIGHUP")
LESS_MEMORY = ("max_tokens_per_pass", "samples", "batch_size")  # the settings to lower


@dataclass(frozen=True)
class Bounds:
    """What a setting may be: from `least` to `most`, which may be the name of another setting; without its lower end
    if `above`."""

    least: float
    most: float | str
    above: bool = False

    def unmet(self, value: float, most: float) -> str:
        """What a value must be and is not, such as "2 or more"; empty if it keeps to the bounds. most: a number."""
        least = f"{self.least:g}"
        if self.above and value <= self.least:
            return f"above {least}"
        if value < self.least:
            return f"{least} or more"
        if value > most:
            called = f"{most:g}" if isinstance(most, float) else most
            called = {MOST_INT: "2**63 - 1", MOST_FLOAT: f"{MOST_FLOAT:.0e} (float32)"}.get(most, called)
            return f"{called}{f' ({self.most})' * isinstance(self.most, str)} or less"
        return ""


def at_least(least: int | float, most: int | float | str | None = None):
    """The type of a setting that is `least` or more: of integers if that is one, else of floats."""
    most = most if most is not None else MOST_INT if isinstance(least, int) else MOST_FLOAT
    return Annotated[type(least), Bounds(least, most)]


def above(least: int | float):
    """The type of a setting that is more than `least`: of integers if that is one, else of floats."""
    return Annotated[type(least), Bounds(least, at_least(least).__metadata__[0].most, above=True)]


def check_settings(config) -> None:
    """Raises UsageError, in one line, for the first setting that makes no sense.

    Numbers must be finite, integers fit 64 bits, and both keep to the bounds that their type names (`at_least`,
    `above`). A config may have a method `check` for what only it can know.
    """
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    task = load_task(values.get("task", "arithmetic"))
    levels = list(values.get("levels", ()))
    for level in levels:
        if level not in task.LEVELS or levels.count(level) > 1:
            wrong = f"level {level} " + ("is given twice" if level in task.LEVELS else "does not exist")
            raise UsageError(f"--levels: {wrong}; choose from {' '.join(map(str, task.LEVELS))}")
    for field in fields(config):
        name, value = field.name, values[field.name]
        if type(value) not in (int, float):
            continue
        if type(value) is float and not math.isfinite(value):
            raise UsageError(f"--{name} must be finite, not {value}")
        plain = Bounds(-MOST_INT, MOST_INT) if type(value) is int else Bounds(-math.inf, math.inf)
        notes = getattr(field.type, "__metadata__", ())  # of an Annotated type, which may hold tyro's too
        bounds = next((note for note in notes if isinstance(note, Bounds)), plain)
        most = values[bounds.most] if isinstance(bounds.most, str) else bounds.most
        if requirement := bounds.unmet(value, most):
            raise UsageError(f"--{name} must be {requirement}, not {value}")
    sizes = [name for name in ("prompts_per_step", "group_size", "samples", "max_new_tokens") if name in values]
    if "max_new_tokens" in sizes and math.prod(values[name] for name in sizes) > MOST_TOKENS:
        raise UsageError(f"{' x '.join(f'--{name}' for name in sizes)} must be {MOST_TOKENS} tokens or fewer")
    completions = values.get("prompts_per_step", 1) * values.get("group_size", 1)
    if "prompts_per_step" in values and values.get("num_minibatches", 1) > completions:
        raise UsageError(
            f"--num_minibatches must be {completions} (the completions of a batch) or fewer, not "
            f"{values['num_minibatches']}"
        )
    if callable(getattr(config, "check", None)):  # a flag may have this name too
        config.check()


def saved_settings(config_class: type, run_dir: str):
    """The config that a run was started with, from its config.json; None if that is lost and there is a save, which has
    the settings as well.

    Raises UsageError if there is no run, or if a setting in the file is not of its type.
    """
    if not run_dir:
        raise UsageError("--resume needs the run to continue; add --run_dir, for example --run_dir runs/reinforce-0")
    folder, path = Path(run_dir), Path(run_dir) / "config.json"
    if not folder.is_dir():
        raise UsageError(f"there is no run folder {run_dir!r}; leave out --resume to start a run there")
    if not path.exists():
        if any(folder.glob("state-*.pt")):
            return None
        if is_unused(folder):
            raise UsageError(f"{run_dir!r} holds no run yet; leave out --resume to start one there")
        raise UsageError(f"{run_dir!r} is not a run folder: it has no config.json; choose another --run_dir")
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(saved, dict):
            raise ValueError("it holds no settings by name")
        saved = {field.name: saved[field.name] for field in fields(config_class) if field.name in saved}
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"{str(path)!r} cannot be read as JSON settings ({error}); repair it") from None
    default = asdict(config_class())
    for name, value in saved.items():
        kind = type(default[name])
        if kind is tuple and type(value) is list and all(type(item) is int for item in value):
            saved[name] = tuple(value)
        elif type(value) is not kind and not (kind is float and type(value) is int):
            raise UsageError(f"{name} in {str(path)!r} must be like {default[name]!r}, not {value!r}")
    return config_class(**saved)


def wrapped(text: str, width: int) -> str:
    """A docstring at most `width` columns wide: paragraphs are filled, indented lines stay lines."""
    text = re.sub(r"(?<=\S)\n(?=\S)", " ", text)
    starts = [(line, re.match(r" *([+-] )?", line)[0]) for line in text.splitlines()]
    return "\n".join(textwrap.fill(line, width, subsequent_indent=" " * len(start)) for line, start in starts)


def parse(config_class: type, description: str | None, default=None):
    """The config that the command line spells; exits with code 2 and tyro's message if it spells none."""
    settings = config_class.__dataclass_fields__  # in the help, the script's own come before those of every run
    own = sorted(settings, key=lambda name: name not in config_class.__annotations__)
    config_class.__dataclass_fields__ = {name: settings[name] for name in own}
    if {"-h", "--help"} & set(sys.argv[1:]):  # printed here, because tyro would not wrap it
        print(wrapped(description or "", min(100, shutil.get_terminal_size().columns)))
    return tyro.cli(
        config_class,
        description="",
        default=default,
        use_underscores=True,
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def run_main(
    config_class: type,
    main: Callable,
    description: str | None,
    defaults: Callable = lambda config: None,
    saved: Callable[[], str] = lambda: "",
) -> None:
    """Call main(config) with the config that the command line spells.

    `defaults`, given the config, may return a config whose values are the defaults of a second reading: that is how a
    run is resumed. What ends the program early is one line on standard error: exit code 2 for bad input, 1 for what
    fails on the way, 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP. All but the first end with what `saved` says.
    """
    config, code, ending = None, 1, False

    def on_signal(number: int, frame) -> None:
        if not ending:  # the last line is on its way
            raise Stopped(number)

    with on_signals(on_signal, *STOPPING):
        try:
            try:
                prepare_output()
                config = parse(config_class, description)
                if default := defaults(config):
                    config = parse(config_class, description, default)
                check_settings(config)
                main(config)
                return
            finally:
                ending = True
        except UsageError as error:
            line, code = f"error: {error}", 2
        except Diverged as error:
            line = f"error: {error}"
        except RunFailed as error:
            line = f"error: {error}{saved()}"
        except KeyboardInterrupt as end:
            line, code = f"stopped {end}".strip() + saved(), 128 + getattr(end, "number", signal.SIGINT)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            advice = [f"lower --{name} (now {getattr(config, name)})" for name in LESS_MEMORY if hasattr(config, name)]
            if not getattr(config, "gradient_checkpointing", True):
                advice.append("add --gradient_checkpointing")
            if hasattr(config, "group_size"):
                advice.append(f"start a new run with a smaller --group_size (now {config.group_size})")
            line = f"error: out of memory; {', or '.join(advice)}{saved()}"
        except OSError as error:
            line = f"error: {error.filename or 'cannot print'} ({error.strerror or error}){saved()}"
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr)
    sys.exit(code)


def prepare_output() -> None:
    """Have output appear line by line, through a pipe as well, and replace what the terminal cannot show.

    Raises RunFailed if standard output is closed.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, it stays open
    if sys.stdout is None:
        sys.stdout = sys.stderr
        raise RunFailed("standard output is closed; send it somewhere, for example > run.log")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace", line_buffering=True)


@contextlib.contextmanager
def on_signals(handler: Callable, *names: str) -> Iterator[None]:
    """Inside, the main thread answers these signals with handler(number, frame). One that is ignored (SIGHUP under
    nohup) stays ignored, but Ctrl-C."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name) and in_main_thread]
    before = {number: signal.getsignal(number) for number in numbers}
    before = {n: old for n, old in before.items() if old != signal.SIG_IGN or n == signal.SIGINT}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():  # `leave` is for a start; when this ends, the program does
            signal.signal(number, signal.SIG_IGN if old is leave else old)


def stop_from_now_on() -> None:
    """What would have ended the process at once (`leave`) raises Stopped from now on: a run has begun."""
    for name in STOPPING:
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) is leave:
            signal.signal(getattr(signal, name), stop)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Inside, nothing is written to standard output and error: for a program that runs many scripts."""
    with (
        open(os.devnull, "w", encoding="utf-8") as sink,
        contextlib.redirect_stdout(sink),
        contextlib.redirect_stderr(sink),
    ):
        yield
