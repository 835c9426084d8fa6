"""From the command line to a config: flags from a dataclass, settings checked, bad input answered in one line."""

import contextlib
import difflib
import math
import os
import sys
from argparse import Action, ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator
from dataclasses import fields

from transformers import HfArgumentParser

from toy_env import UsageError
from toy_env.arithmetic import LEVELS

AT_LEAST = {
    "steps": 1, "seed": 0, "prompts_per_step": 1, "group_size": 1, "max_new_tokens": 1, "warmup_steps": 0, "epochs": 1,
    "minibatches": 1, "kl_coef": 0, "gae_lambda": 0, "value_coef": 0, "overlong_buffer": 0, "max_draws": 0,
    "eval_every": 0, "seeds": 1, "processes": 0,
    "micro_batch_size": 1, "eval_problems": 1, "save_every": 1, "samples": 1, "problems": 1, "batch_size": 1,
}  # fmt: skip
ABOVE_ZERO = {"temperature", "learning_rate", "critic_learning_rate", "max_grad_norm", "clip_eps", "clip_eps_low",
              "clip_eps_high", "value_clip"}  # fmt: skip


def check_settings(config, min_group_size: int = 1) -> None:
    """Raises UsageError, in one line, for the first setting that makes no sense."""
    at_least = AT_LEAST | {"group_size": min_group_size}
    for field in fields(config):
        name, value = field.name, getattr(config, field.name)
        if name in at_least and not at_least[name] <= value < math.inf:
            raise UsageError(f"--{name} must be {at_least[name]} or more, not {value}")
        if name == "gae_lambda" and value > 1:
            raise UsageError(f"--gae_lambda must be 1 or less, not {value}")
        if name == "minibatches" and value > config.prompts_per_step * config.group_size:
            completions = config.prompts_per_step * config.group_size
            raise UsageError(f"--minibatches must be {completions} (the completions of a batch) or fewer, not {value}")
        if name == "overlong_buffer" and value > config.max_new_tokens:
            raise UsageError(f"--overlong_buffer must be {config.max_new_tokens} (max_new_tokens) or less, not {value}")
        if name in ABOVE_ZERO and not 0 < value < math.inf:
            raise UsageError(f"--{name} must be above 0, not {value}")
        if name == "levels" and not set(value) <= set(LEVELS):
            wrong = next(level for level in value if level not in LEVELS)
            raise UsageError(f"--levels: level {wrong} does not exist; choose from {' '.join(map(str, LEVELS))}")


class Formatter(RawDescriptionHelpFormatter, ArgumentDefaultsHelpFormatter):
    """Help with one line a flag: no second spelling, no default where it is empty."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=120)

    def _format_action_invocation(self, action: Action) -> str:
        return action.option_strings[-1] if action.nargs == 0 else action.option_strings[0]

    def _get_help_string(self, action: Action) -> str | None:
        return action.help if action.default == "" or action.default is False else super()._get_help_string(action)


class Parser(HfArgumentParser):
    """Flags from the fields of a dataclass. A wrong flag or value is one line (a UsageError), not a page of usage."""

    def __init__(self, config_class: type, description: str | None) -> None:
        super().__init__(
            config_class,
            description=description,
            usage="%(prog)s [--flag value ...]",
            formatter_class=Formatter,
            allow_abbrev=False,
        )
        self.flags = [f"--{field.name}" for field in fields(config_class)]

    def error(self, message: str):
        raise UsageError(f"{message.removeprefix('argument ')}; see --help")

    def parse(self, argv: list[str]):
        """The config that `argv` spells, checked."""
        config, unknown = self.parse_args_into_dataclasses(
            argv, return_remaining_strings=True, look_for_args_file=False
        )
        if unknown:
            close = difflib.get_close_matches(unknown[0].split("=")[0], self.flags, n=1)
            raise UsageError(
                f"unknown argument {unknown[0]!r}; {f'did you mean {close[0]}?' if close else 'see --help'}"
            )
        check_settings(config)
        return config


def run_main(config_class: type, main: Callable, description: str | None, defaults: Callable | None = None) -> None:
    """Call main(config) with the config the command line spells.

    Exit code 2 and one line on standard error for bad input (UsageError), 130 for Ctrl-C. `defaults`, given the
    config, may return other default values to read the command line again with: that is how a run is resumed.
    """
    try:
        parser = Parser(config_class, description)
        config = parser.parse(sys.argv[1:])
        if defaults:
            parser.set_defaults(**defaults(config))
            config = parser.parse(sys.argv[1:])
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
