"""Any script, with one more metric: `update_norm`, how far an optimizer step moves the policy.

    python -m lessons.experiments.update_norm algorithms/grpo.py --steps 10

What follows the module's name is the script's own command line.
"""

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch.linalg import vector_norm

from toy_env.run import Run


@contextmanager
def measured() -> Iterator[None]:
    """Inside, every run of a script also records `update_norm`: the Euclidean length of the move of
    the policy's parameters in each optimizer step."""
    honest = Run.begin

    def begin(run: Run, tokenizer, **state) -> int:
        measure_steps(run, state["policy"], state["optimizer"])
        return honest(run, tokenizer, **state)

    with patch.object(Run, "begin", begin):
        yield


def measure_steps(run: Run, policy: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Have every step of the optimizer call run.record(update_norm=...)."""
    parameters = list(policy.parameters())
    before = []

    def remember(*_) -> None:
        before[:] = [parameter.detach().clone() for parameter in parameters]

    def record(*_) -> None:
        moves = [vector_norm(now.detach() - old) for now, old in zip(parameters, before)]
        run.record(update_norm=vector_norm(torch.stack(moves)))

    optimizer.register_step_pre_hook(remember)
    optimizer.register_step_post_hook(record)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        raise SystemExit("name a script behind the module, such as algorithms/grpo.py")
    sys.argv = sys.argv[1:]
    with measured():
        runpy.run_path(sys.argv[0], run_name="__main__")
