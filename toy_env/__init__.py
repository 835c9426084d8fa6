"""The half of sigma-ladder that knows no algorithm: a tiny verifiable-arithmetic task, a small model, plumbing."""

import os
import signal
import threading


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


def system_error(error: BaseException | None) -> OSError | None:
    """What the system said, if that is behind an error."""
    while error is not None and not (isinstance(error, OSError) and error.strerror):
        error = error.__cause__ or error.__context__
    return error


def reason(error: Exception) -> str:
    """What went wrong, in one line: what the system said, if that is behind it."""
    if cause := system_error(error):
        return cause.strerror
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


def take_over_ctrl_c(name: str = "__main__") -> None:
    """Have Ctrl-C end the program called `name` in one line while it imports torch, which is to come after this call.

    Does nothing in a module that is imported, whose name is another.
    """
    if name == "__main__" and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, leave)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, or torch on any device, could not allocate memory."""
    import torch

    allocators = ("DefaultCPUAllocator", "MPS backend out of memory")  # these two raise a plain RuntimeError
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(name in str(error) for name in allocators)
