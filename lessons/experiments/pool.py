"""Many independent tasks in processes of one thread each, under one progress bar."""

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from tqdm import tqdm

from toy_env import Stopped


def in_parallel(
    function: Callable, tasks: Sequence[tuple], processes: int = 0, total: int = 0, what: str = "runs"
) -> list:
    """function(*task) of every task, in their order.

    processes: tasks at a time; 0 for one per core. total: of the bar, which begins at what is not among the tasks.
    Raises Stopped on Ctrl-C or SIGTERM, at once; a task should leave what it has finished on disk.
    """
    if not tasks:
        return []
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that are started now; Ctrl-C is answered by this one alone
    ignore = {"initializer": signal.signal, "initargs": (signal.SIGINT, signal.SIG_IGN)}
    pool = ProcessPoolExecutor(processes or os.cpu_count(), mp_context=get_context("spawn"), **ignore)
    total = max(total, len(tasks))
    try:
        futures = [pool.submit(function, *task) for task in tasks]
        with tqdm(total=total, initial=total - len(tasks), desc=what, dynamic_ncols=True, smoothing=0) as bar:
            for future in as_completed(futures):
                future.result()
                bar.update()
        return [future.result() for future in futures]
    except KeyboardInterrupt as end:
        for process in list(pool._processes.values()):
            process.kill()  # to wait for a task to end would invite a second Ctrl-C, which hangs the pool
        raise Stopped(getattr(end, "number", signal.SIGINT), "(the same command continues from here)") from None
    finally:
        pool.shutdown(cancel_futures=True)
