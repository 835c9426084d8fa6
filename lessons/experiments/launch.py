"""`accelerate launch` without its traceback: where a run is stopped or refused, its first process says so in one line.

python lessons/experiments/launch.py --multi_gpu --num_processes 2 lessons/experiments/scale_out.py --algorithm dapo
"""

import logging
import signal
import sys

if __name__ == "__main__":  # Ctrl-C during the imports, which take seconds
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from accelerate.commands.launch import launch_command, launch_command_parser
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

if __name__ == "__main__":
    logging.disable(logging.ERROR)  # of every process that ends
    try:
        launch_command(launch_command_parser().parse_args())
    except SignalException as end:
        sys.exit(128 + end.sigval)
    except ChildFailedError as end:
        if (code := max(failure.exitcode for failure in end.failures.values())) <= 0:
            raise  # killed, so that it could say nothing
        sys.exit(code)
