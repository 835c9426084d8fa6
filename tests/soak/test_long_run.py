"""Two thousand steps cost as much at their end as at their beginning: nothing is kept that should have been let go.

`python tests/soak/test_long_run.py` prints by how much memory and step time differ.
"""

import statistics
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from algorithms import grpo
from toy_env.run import Run

STEPS, WINDOW = 2000, 200


def long_run(folder: Path, steps: int) -> tuple[list[float], list[float]]:
    """Resident memory in MiB, and processor seconds, of every step of a run whose policy hardly moves."""
    memory, seconds = [], []
    log, before = Run.log, time.process_time()

    def see(run, step, **batch) -> None:
        nonlocal before
        log(run, step, **batch)
        memory.append(int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * 4096 / 2**20)
        seconds.append(time.process_time() - before)
        before = time.process_time()

    with patch.object(Run, "log", see):
        grpo.train(
            grpo.Config(
                steps=steps,
                prompts_per_step=1,
                group_size=2,
                max_new_tokens=4,
                num_minibatches=1,
                eval_problems=1,
                eval_every=50,
                save_every=50,
                learning_rate=1e-9,
                device="cpu",
                run_dir=str(folder),
            )  # fmt: skip
        )
    return memory, seconds


def drift(values: list[float]) -> float:
    """The median of the last 200 steps over that of the 200 after the first 200, minus 1."""
    return statistics.median(values[-WINDOW:]) / statistics.median(values[WINDOW : 2 * WINDOW]) - 1


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_memory_stays_where_it_is(tmp_path, no_curves):
    memory, _ = long_run(tmp_path / "run", steps=800)
    assert len(memory) == 800 and drift(memory) < 0.02


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        memory, seconds = long_run(Path(folder) / "run", STEPS)
    print(f"after {STEPS} steps, against steps {WINDOW} to {2 * WINDOW} (medians of {WINDOW}):")
    print(f"  resident memory {statistics.median(memory[-WINDOW:]):.0f} MiB, {drift(memory):+.1%}")
    print(f"  processor time {1000 * statistics.median(seconds[-WINDOW:]):.1f} ms a step, {drift(seconds):+.1%}")
