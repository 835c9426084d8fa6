"""Tasks in parallel, each in a process of its own, and a way to run one silently."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from multiprocessing import connection, get_context, parent_process

from tqdm import tqdm


def in_parallel(
    function: Callable,
    tasks: Sequence[tuple],
    what: str = "runs",
    keep: Callable = lambda i, result: None,
    at_once: int = 0,
) -> None:
    """Call function(*task) for every task, and keep(i, result) here as soon as task i has returned.

    what: the label of the progress bar. at_once: tasks at a time, which share the cores; by default
    one per core. An error in a task is raised at once, without waiting for the other tasks. Raises
    SystemExit on Ctrl-C.
    """
    if not tasks:
        return
    cores = os.cpu_count() or 1
    at_once = at_once or cores
    os.environ["OMP_NUM_THREADS"] = str(max(1, cores // at_once))  # of the processes started now
    processes = min(at_once, len(tasks))
    with (
        ProcessPoolExecutor(processes, get_context("spawn"), initializer=begin) as pool,
        tqdm(total=len(tasks), desc=what, dynamic_ncols=True, smoothing=0) as bar,
    ):
        futures = {pool.submit(function, *task): i for i, task in enumerate(tasks)}
        try:
            for future in as_completed(futures):
                keep(futures[future], future.result())
                bar.update()
        except BaseException as error:
            for process in pool._processes.values():
                process.kill()  # or leaving the pool would wait until all tasks are done
            if isinstance(error, KeyboardInterrupt):
                raise SystemExit("stopped; the same command continues from here") from None
            raise


def begin() -> None:
    """Set up a worker: Ctrl-C is left to its parent, and it ends when its parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tqdm.set_lock(threading.RLock())  # tqdm's own, a semaphore, would outlive a killed process
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """Wait until the parent has ended, then end this process."""
    connection.wait([parent_process().sentinel])
    os._exit(1)


@contextmanager
def silence(path: str = os.devnull) -> Iterator[None]:
    """Inside, standard output and standard error go to a file, by default to none."""
    with (
        open(path, "a", encoding="utf-8") as sink,
        redirect_stdout(sink),
        redirect_stderr(sink),
    ):
        yield
