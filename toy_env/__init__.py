"""The part of sigma-ladder that knows no algorithm: tiny verifiable tasks, a small model, and what
a run needs."""

import os
import signal


class UsageError(ValueError):
    """The user asked for something impossible. The message is one line: what is wrong and what to
    type instead."""


class RunFailed(RuntimeError):
    """A run cannot go on, through no fault of its settings. The message is one line that says
    why."""


class Diverged(RunFailed):
    """A number of the training is not finite; `what` says which. A resumed run would come to the
    same step again."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: training has diverged; start a new run with a smaller --learning_rate"
        )


class Stopped(KeyboardInterrupt):
    """A signal asked for the end: `number` is SIGINT (Ctrl-C), SIGTERM or SIGHUP."""

    def __init__(self, number: int, message: str = "") -> None:
        super().__init__(message)
        self.number = number


def system_error(error: BaseException | None) -> OSError | None:
    """The error of the operating system that is behind an error, if there is one."""
    while error is not None and not (isinstance(error, OSError) and error.strerror):
        error = error.__cause__ or error.__context__
    return error


def reason(error: Exception) -> str:
    """What went wrong, in one line: the words of the operating system, if it is behind the
    error."""
    cause = system_error(error)
    return (
        cause.strerror if cause else str(error).strip().partition("\n")[0] or type(error).__name__
    )


def leave(number: int, frame) -> None:
    """What a signal does before a run has begun: it ends the process at once. Nothing is lost then,
    and the imports of torch and transformers, which take seconds, would swallow a
    KeyboardInterrupt."""
    os.write(2, b"stopped before the start\n")
    os._exit(128 + number)


def stop(number: int, frame) -> None:
    """What a signal does once something could be lost: it raises Stopped."""
    raise Stopped(number)


def take_over_ctrl_c(name: str = "__main__") -> None:
    """Have Ctrl-C end the program called `name` in one line while it imports torch, which is to
    come after this call. In a module that is imported, and so has another name, nothing happens."""
    if name == "__main__":
        signal.signal(signal.SIGINT, leave)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, or torch on any device, could not allocate memory."""
    import torch

    allocators = (
        "DefaultCPUAllocator",
        "MPS backend out of memory",
    )  # these two raise a plain RuntimeError
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        name in str(error) for name in allocators
    )
