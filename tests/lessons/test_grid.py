"""The harness of the experiments: runs that are kept and continued, and statistics by hand.

Broken on purpose: differences that are not paired, intervals too narrow, p values not corrected; a
finished run made again or lost.
"""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from lessons.experiments.harness import grid, paired
from lessons.experiments.harness.grid import Grid, GridConfig

ROOT = Path(__file__).parents[2]
with_stats = pytest.mark.skipif(
    paired.stats is None, reason="pip install -e '.[stats]' for the statistics"
)


@dataclass(frozen=True)
class Run:
    arm: str
    seed: int = 0


RUNS = [Run(arm, seed) for arm in ("A", "B") for seed in range(3)]


def square(run: Run, moment: float = 0.0) -> dict:
    """A run, which may take a moment, and much longer with seed 2, so that it can be stopped."""
    time.sleep(moment * (120 if run.seed == 2 else 1))
    return {"curve": np.array([run.seed, run.seed**2]), "share": 1 / 3}


def one_by_one(function, tasks, what="", keep=lambda *_: None) -> None:
    """Stands in for in_parallel: everything in this process."""
    for i, task in enumerate(tasks):
        keep(i, function(*task))


def test_runs_are_made_once_and_returned_in_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "in_parallel", one_by_one)
    made = []

    def make(run: Run) -> dict:
        made.append(run)
        if len(made) == 2:
            raise OSError("the disk is full")
        return square(run)

    def results(runs: list[Run]) -> list[dict]:
        return Grid(GridConfig(output=str(tmp_path)), "x").run(make, runs)

    with pytest.raises(OSError, match="full"):
        results([RUNS[5], RUNS[4]])
    whole = results(RUNS)
    assert made == [RUNS[5], RUNS[4], *RUNS[:5]]  # the run that failed is made again
    assert whole[5] == {"arm": "B", "seed": 2, "curve": [2, 4], "share": 1 / 3}
    assert results(RUNS[::-1]) == whole[::-1] and len(made) == 7


def test_results_are_published_a_line_for_each_run(tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "in_parallel", one_by_one)
    path, config = tmp_path / "x.json", GridConfig(output=str(tmp_path / "out"), publish=True)
    results = grid.results_of(config, square, RUNS, path)
    assert grid.load_runs(path) == results and path.read_text("utf-8").count("\n") == 8


PROGRAM = """
import os, sys
from functools import partial
sys.path.insert(0, 'tests')
from test_grid import RUNS, Grid, GridConfig, square
from toy_env.run import parse

if __name__ == '__main__':
    make = partial(square, moment=float(os.environ['MOMENT']))
    Grid(parse(GridConfig, ''), 'x').run(make, RUNS)
"""


@pytest.mark.slow
def test_a_command_that_is_killed_goes_on_where_it_stopped(tmp_path, monkeypatch):
    """Killed, then stopped by Ctrl-C, then finished: the files of a command that was left alone. No
    process is left over."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, "utf-8")
    command = [sys.executable, str(program), f"--output={tmp_path / 'out'}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MOMENT": "0.5"}
    settings = {"cwd": ROOT, "env": environment, "text": True}

    def start() -> subprocess.Popen:
        return subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True, **settings)

    def files(folder: str = "out") -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tmp_path.glob(f"{folder}/runs/*.json")}

    def wait_for(runs: int, process: subprocess.Popen) -> None:
        while len(files()) < runs:
            assert process.poll() is None
            time.sleep(0.02)

    with start() as killed:
        wait_for(1, killed)
        killed.kill()
    with start() as stopped:
        wait_for(3, stopped)
        os.killpg(stopped.pid, signal.SIGINT)  # as a terminal sends Ctrl-C: to all its processes
        error = stopped.communicate(timeout=30)[1]
    assert stopped.returncode == 1 and "Traceback" not in error
    for pid in (killed.pid, stopped.pid):
        with pytest.raises(ProcessLookupError):
            for _ in range(300):
                os.killpg(pid, 0)
                time.sleep(0.1)
    assert 3 <= len(files()) < len(RUNS)
    environment["MOMENT"] = "0"
    subprocess.run(command, check=True, **settings)
    monkeypatch.setattr(grid, "in_parallel", one_by_one)
    Grid(GridConfig(output=str(tmp_path / "whole")), "x").run(square, RUNS)
    assert files() == files("whole")


# ---------------------------------------------------------------------- statistics


def test_an_interval_and_a_difference_by_hand():
    """1 to 5 have mean 3 and variance 2.5; the quantile of Student's t with 4 degrees of freedom is
    2.776."""
    values, half = [1.0, 2.0, 3.0, 4.0, 5.0], 2.7764451 * np.sqrt(2.5 / 5)
    result = paired.estimate(values)
    assert result["mean"] == 3 and result["interval"] == pytest.approx([3 - half, 3 + half])
    result = paired.difference([2.0, 4.0, 6.0, 8.0, 10.0], values)
    assert result["difference"] == 3
    assert result["sd"] == pytest.approx(np.sqrt(2.5))
    assert result["interval"] == pytest.approx([3 - half, 3 + half])
    if paired.stats:  # t = 3 / sqrt(0.5) = 4.243, from a table
        assert result["p"] == pytest.approx(0.013236, abs=1e-5)
        for n, quantile in paired.T_975.items():
            assert quantile == pytest.approx(paired.stats.t.ppf(0.975, n - 1), abs=1e-7)


@with_stats
def test_holm_and_the_seeds_for_a_point_by_hand():
    """Holm: the smallest of three p values counts three times, the next twice, and none less than
    one before it. Seeds, Cohen's tables: 34 pairs for d = .5 (33.4), 15 for .8 (14.3); d = 1 takes
    10. And by simulation."""
    family = [{"p": p} for p in (0.03, 0.005, 0.02)]
    paired.holm(family)
    assert [comparison["p_holm"] for comparison in family] == pytest.approx([0.04, 0.015, 0.04])
    for sd, seeds in ((0.02, 34), (0.01, 10), (0.0125, 15)):
        assert paired.seeds_needed(sd, 0.01) == seeds
        gaps = np.random.default_rng(0).normal(0.01, sd, size=(seeds, 20_000))
        assert 0.79 < (np.prod(paired.t_interval(gaps), axis=0) > 0).mean() < 0.86


def test_there_is_no_interval_of_one_seed_nor_of_equal_values():
    equal = paired.estimate([0.25, 0.25])
    assert equal == {"mean": 0.25, "interval": None, "seeds": [0.25, 0.25]}
    for values, others in (([0.3], [0.2]), ([0.3, 0.9], [0.2, 0.8])):
        result = paired.difference(values, others)
        assert (result["interval"], result["p"], result["sd"]) == (None, 1, None)
        assert grid.change(result) == "+10.0"


@pytest.mark.slow
def test_intervals_are_those_of_problems_and_seeds(monkeypatch):
    """Seeds that repeat the same numbers make an interval no narrower; problems that do leave the
    seeds' spread."""
    rng, width = np.random.default_rng(6), lambda rates: np.ptp(paired.interval_over_both(rates))
    one = rng.normal(size=(1, 16))
    assert width(np.tile(one, (3, 1))) == pytest.approx(width(one), rel=0.15)
    assert width(np.tile([[0.0], [1.0], [2.0]], (1, 16))) > 1
    monkeypatch.setattr(paired, "DRAWS", 300)
    inside = 0
    for _ in range(100):
        problems, seeds = rng.normal(size=(1, 30)), rng.normal(size=(6, 1)) / 4
        rates = problems + seeds + rng.normal(size=(6, 30)) / 2
        inside += np.prod(paired.interval_over_both(rates)) < 0
    assert 85 <= inside <= 100  # .88: six seeds are few


# ---------------------------------------------------------------------- tables


def test_only_a_difference_that_survives_the_correction_is_bold():
    comparison = {"difference": 0.0123, "interval": [0.002, 0.0226], "p_holm": 0.06}
    assert grid.change(comparison) == "+1.2 [+0.2, +2.3]"
    assert grid.change(comparison | {"p_holm": 0.04}) == "**+1.2 [+0.2, +2.3]**"
