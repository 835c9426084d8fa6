"""From the command line to a config: flags from a dataclass, settings checked, bad input answered in one line."""

import contextlib
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import fields

import tyro

from toy_env import UsageError
from toy_env.arithmetic import LEVELS

ABOVE_ZERO = ("temperature", "learning_rate", "max_grad_norm", "clip")  # in the name of a setting
AT_LEAST_ONE = {
    "steps", "prompts_per_step", "group_size", "max_new_tokens", "epochs", "num_minibatches", "max_tokens_per_pass",
    "save_every", "eval_problems", "problems", "samples", "seeds", "batch_size",
}  # fmt: skip


def check_settings(config) -> None:
    """Raises UsageError, in one line, for the first setting that makes no sense.

    Numbers must be finite and 0 or more; those named above must be more. A config may have a method `check` for what
    only it can know.
    """
    for field in fields(config):
        name, value = field.name, getattr(config, field.name)
        if name == "levels" and not (value and set(value) <= set(LEVELS)):
            wrong = next((f"level {level} does not exist" for level in value if level not in LEVELS), "no level given")
            raise UsageError(f"--levels: {wrong}; choose from {' '.join(map(str, LEVELS))}")
        if type(value) not in (int, float):
            continue
        if any(part in name for part in ABOVE_ZERO) and not 0 < value < math.inf:
            raise UsageError(f"--{name} must be above 0, not {value}")
        if not (least := int(name in AT_LEAST_ONE)) <= value < math.inf:
            raise UsageError(f"--{name} must be {least} or more, not {value}")
    if callable(getattr(config, "check", None)):  # a flag may have this name too
        config.check()


def wrapped(text: str, width: int) -> str:
    """A docstring at most `width` columns wide: paragraphs are filled, indented lines stay lines."""
    text = re.sub(r"(?<=\S)\n(?=\S)", " ", text)
    starts = [(line, re.match(r" *([+-] )?", line)[0]) for line in text.splitlines()]
    return "\n".join(textwrap.fill(line, width, subsequent_indent=" " * len(start)) for line, start in starts)


def parse(config_class: type, description: str | None, default=None):
    """The config that the command line spells; exits with code 2 and tyro's message if it spells none."""
    if {"-h", "--help"} & set(sys.argv[1:]):  # printed here, because tyro would not wrap it
        print(wrapped(description or "", min(100, shutil.get_terminal_size().columns)))
    return tyro.cli(
        config_class,
        description="",
        default=default,
        use_underscores=True,
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def run_main(config_class: type, main: Callable, description: str | None, defaults: Callable | None = None) -> None:
    """Call main(config) with the config that the command line spells.

    Exit code 2 and one line on standard error for bad input (UsageError), 130 for Ctrl-C. `defaults`, given the
    config, may return a config whose values are the defaults of a second reading: that is how a run is resumed.
    """
    try:
        config = parse(config_class, description)
        if defaults and (default := defaults(config)):
            config = parse(config_class, description, default)
        check_settings(config)
        main(config)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as stop:
        print(f"stopped {stop}".strip(), file=sys.stderr)
        sys.exit(130)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Inside, nothing is written to standard output and error: for a program that runs many scripts."""
    with open(os.devnull, "w") as sink, contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        yield
