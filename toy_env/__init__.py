"""The half of sigma-ladder that knows no algorithm: a tiny verifiable-arithmetic task, a small model, plumbing."""

import sys


class UsageError(ValueError):
    """The user asked for something impossible. The message is one line: what was wrong and what to type instead."""


class RunFailed(RuntimeError):
    """A run cannot go on, through no fault of its settings. The message is one line that says why."""


class Diverged(RunFailed):
    """A number of the training is not finite; `what` says which. To resume would come to the same step again."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: training has diverged; start a new run with a smaller --learning_rate")


class Stopped(KeyboardInterrupt):
    """A signal asked for the end: `number` is SIGINT (Ctrl-C), SIGTERM or SIGHUP."""

    def __init__(self, number: int, message: str = "") -> None:
        super().__init__(message)
        self.number = number


def _show(kind, error, trace) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("stopped before the start", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _show  # torch takes a second or more to import: Ctrl-C is one line there as well
