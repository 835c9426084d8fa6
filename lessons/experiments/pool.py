"""Many tasks at a time, each in a process of its own."""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, get_context, parent_process

from tqdm import tqdm

from toy_env import RunFailed, Stopped

AGAIN = "the same command continues from here"


def in_parallel(
    function: Callable,
    tasks: Sequence[tuple],
    processes: int = 0,
    what: str = "runs",
    keep: Callable = lambda *_: None,
) -> None:
    """Call function(*task) for every task, and keep(i, result) here as soon as task number i has
    returned.

    processes: tasks at a time; 0 for one per core. what: the label of the progress bar. Raises
    Stopped on Ctrl-C or SIGTERM, RunFailed if a process was killed, and what a task raises: at
    once, without waiting for the other tasks.
    """
    if not tasks:
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that are started now
    processes = min(processes or os.cpu_count() or 1, len(tasks))
    pool = ProcessPoolExecutor(processes, get_context("spawn"), initializer=begin)
    try:
        futures = {pool.submit(function, *task): i for i, task in enumerate(tasks)}
        with tqdm(total=len(tasks), desc=what, dynamic_ncols=True, smoothing=0) as bar:
            for future in as_completed(futures):
                keep(futures[future], future.result())
                bar.update()
    except BrokenProcessPool:
        raise RunFailed(
            f"a process was killed, perhaps for want of memory; lower --processes; {AGAIN}"
        ) from None
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
    """Set up a worker process: the parent alone answers Ctrl-C, and a worker whose parent is killed
    ends too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tqdm.set_lock(threading.RLock())  # tqdm's own lock, a semaphore, would outlive a killed process
    threading.Thread(target=leave_with_parent, daemon=True).start()


def leave_with_parent() -> None:
    connection.wait([parent_process().sentinel])
    os._exit(1)
