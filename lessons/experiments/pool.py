"""What long experiments share: their folder, and many tasks at a time."""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, get_context, parent_process
from pathlib import Path

from filelock import FileLock, Timeout
from tqdm import tqdm

from toy_env import RunFailed, Stopped, UsageError

AGAIN = "the same command continues from here"


def lock_folder(output: str, command: str):
    """Make the folder of an experiment and keep other processes out of it until the returned context ends. Raises
    UsageError if that cannot be."""
    try:
        Path(output).mkdir(parents=True, exist_ok=True)
        return FileLock(Path(output) / "lock", timeout=0).acquire()
    except Timeout:
        raise UsageError(f"another {command} is running in {output!r}; wait, or choose another --output") from None
    except OSError as error:
        raise UsageError(f"cannot write to {output!r} ({error.strerror}); choose another --output") from None


def in_parallel(function: Callable, tasks: Sequence[tuple], processes: int = 0, total: int = 0, what: str = "runs"):
    """Call function(*task) for every task; what a task finds, it leaves on disk.

    processes: tasks at a time; 0 for one per core. total: of the bar, which begins at what is not among the tasks.
    Raises Stopped on Ctrl-C or SIGTERM, RunFailed if a process was killed, and what a task raises: all at once, without
    waiting for the other tasks.
    """
    if not tasks:
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that are started now
    total = max(total, len(tasks))
    processes = min(processes or os.cpu_count() or 1, len(tasks))
    pool = ProcessPoolExecutor(processes, get_context("spawn"), initializer=begin)
    try:
        futures = [pool.submit(function, *task) for task in tasks]
        with tqdm(total=total, initial=total - len(tasks), desc=what, dynamic_ncols=True, smoothing=0) as bar:
            for future in as_completed(futures):
                future.result()
                bar.update()
    except BrokenProcessPool:
        raise RunFailed(f"a process was killed, perhaps for want of memory; lower --processes; {AGAIN}") from None
    except BaseException as end:
        stopped = isinstance(end, KeyboardInterrupt)
        if stopped:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would interrupt the end
        for process in list(pool._processes.values()):
            process.kill()  # to wait for a task to end would invite a second Ctrl-C, which hangs the pool
        if stopped:
            raise Stopped(getattr(end, "number", signal.SIGINT), f"({AGAIN})") from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def begin() -> None:
    """In each process: Ctrl-C is answered by the parent alone, and if that is killed, the process ends too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tqdm.set_lock(threading.RLock())  # its own is a semaphore, which would outlive a killed process, with a warning
    threading.Thread(target=leave_with_parent, daemon=True).start()


def leave_with_parent() -> None:
    connection.wait([parent_process().sentinel])
    os._exit(1)
