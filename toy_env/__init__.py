"""The half of sigma-ladder that knows no algorithm: a tiny verifiable-arithmetic task, a small model, plumbing."""

import os
import signal
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


def reason(error: Exception) -> str:
    """What went wrong, in one line: what the system said, if that is behind it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error).strip().partition("\n")[0] or type(error).__name__


def leave(number: int, frame) -> None:
    """What a signal does before a run has begun: nothing is lost, so the process ends here and now.

    To raise KeyboardInterrupt would not do: imports of torch and transformers, seconds of them, swallow it or break.
    """
    os.write(2, b"stopped before the start\n")
    os._exit(128 + number)


def stop(number: int, frame) -> None:
    """What a signal does once there is something to say: it raises Stopped."""
    raise Stopped(number)


if sys.argv and os.path.basename(os.path.dirname(os.path.abspath(sys.argv[0]))) == "algorithms":  # a script is starting
    signal.signal(signal.SIGINT, leave)
