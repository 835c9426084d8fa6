"""The harness of the experiments: runs that are kept and continued, and statistics by hand.

Broken on purpose: differences that are not paired, intervals too narrow, p values not corrected; a
finished run made again or lost.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest

from lessons.experiments.harness import grid, paired
from lessons.experiments.harness.grid import Grid, GridConfig
from lessons.experiments.harness.learning import majority_at_k

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


def one_by_one(function, tasks, what="", keep=lambda *_: None, at_once=0) -> None:
    """Stands in for in_parallel: everything in this process."""
    for i, task in enumerate(tasks):
        keep(i, function(*task))


def test_runs_are_made_once_and_returned_in_their_order(tmp_path, monkeypatch):
    """A run that fails is made again; what is made is published, a line for each run."""
    monkeypatch.setattr(grid, "in_parallel", one_by_one)
    config, path = GridConfig(output=str(tmp_path), publish=True), tmp_path / "x.json"
    make = MagicMock(side_effect=[square(RUNS[5]), OSError("full"), *map(square, RUNS[4::-1])])
    with pytest.raises(OSError, match="full"):
        grid.results_of(config, make, RUNS[::-1], path)
    assert len(grid.load_runs(path)) == 1
    results = grid.results_of(config, make, RUNS[::-1], path)
    assert results[0].pop("machine") == grid.machine()
    assert results[0] == {"arm": "B", "seed": 2, "curve": [2, 4], "share": 1 / 3}
    assert grid.results_of(config, make, RUNS, path)[::-1] == grid.load_runs(path)
    assert make.call_count == 7 and path.read_text("utf-8").count("\n") == 8


def test_a_committed_run_is_not_made_again(tmp_path, monkeypatch):
    """Its folder may be on another machine. All rows of the file stay."""
    monkeypatch.setattr(grid, "in_parallel", one_by_one)
    config, path = GridConfig(output=str(tmp_path), publish=True), tmp_path / "x.json"
    committed = [grid.settings_of(run) | {"share": 0.5} for run in RUNS[:2]]
    Grid(config, "x").publish(path, committed)
    make = MagicMock(side_effect=square)
    results = grid.results_of(config, make, RUNS[1:3], path)
    assert make.call_count == 1 and results[0] == committed[1]
    assert grid.load_runs(path) == [*committed, results[1]]


@dataclass(frozen=True)
class Placed(Run):
    device: str = "cpu"


def test_only_another_device_is_a_setting_of_a_run():
    """Otherwise all runs that were made before there was a choice would be made again."""
    assert grid.digest(Placed("A")) == grid.digest(RUNS[0]) != grid.digest(Placed("A", 0, "cuda"))


PROGRAM = """
import sys
sys.path.insert(0, 'tests/lessons')
from functools import partial
from test_grid import RUNS, Grid, GridConfig, square

if __name__ == '__main__':
    Grid(GridConfig(output=sys.argv[1]), 'x').run(partial(square, moment=0.5), RUNS)
"""


@pytest.mark.slow
def test_a_command_that_is_killed_goes_on_where_it_stopped(tmp_path, monkeypatch):
    """Killed, then stopped by Ctrl-C, then finished here: its files are whole, and no process is
    left over."""
    program, runs = tmp_path / "program.py", tmp_path / "runs"
    program.write_text(PROGRAM, "utf-8")

    # Ctrl-C in a terminal goes to all processes
    for finished, kill, number in ((1, os.kill, signal.SIGKILL), (3, os.killpg, signal.SIGINT)):
        with subprocess.Popen(
            [sys.executable, program, tmp_path],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            while len([*runs.glob("*.json")]) < finished:
                assert process.poll() is None
                time.sleep(0.02)
            kill(process.pid, number)
            error = process.communicate(timeout=30)[1]
        with pytest.raises(ProcessLookupError):
            for _ in range(300):
                os.killpg(process.pid, 0)
                time.sleep(0.1)
    assert process.returncode == 1 and b"Traceback" not in error
    made = MagicMock(side_effect=square)
    monkeypatch.setattr(grid, "in_parallel", one_by_one)
    results = Grid(GridConfig(output=str(tmp_path)), "x").run(made, RUNS)
    assert [run["curve"] for run in results] == 2 * [[0, 0], [1, 1], [2, 4]]
    assert 2 <= made.call_count <= 3


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


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 12.706), (9, 2.262), (120, 1.980)])
def test_the_quantile_of_t_is_that_of_the_table(degrees, quantile):
    assert paired.t_quantile(degrees) == pytest.approx(quantile, abs=5e-4)


def test_the_seeds_for_a_point_are_those_of_the_tables():
    """Cohen: 34 pairs for d = .5 (33.4), 15 for .8 (14.3); d = 1 takes 10."""
    for sd, seeds in ((0.02, 34), (0.01, 10), (0.0125, 15)):
        assert paired.seeds_needed(sd, 0.01) == seeds
    power = pytest.importorskip("statsmodels.stats.power").TTestPower().power
    for sd in (0.0005, 0.001, 0.003, 0.005, 0.0075, 0.03, 0.1):
        exact = next(n for n in range(2, 1000) if power(0.01 / sd, n, paired.LEVEL) >= 0.8)
        assert abs(paired.seeds_needed(sd, 0.01) - exact) <= 1


@with_stats
def test_holm_by_hand():
    """The smallest of three p values counts three times, the next twice, and none less than one
    before it."""
    family = [{"p": p} for p in (0.03, 0.005, 0.02)]
    paired.holm(family)
    assert [comparison["p_holm"] for comparison in family] == pytest.approx([0.04, 0.015, 0.04])


@pytest.mark.parametrize(("values", "others"), [([0.3], [0.2]), ([0.3, 0.9], [0.2, 0.8])])
def test_there_is_no_interval_of_one_seed_nor_of_equal_values(values, others):
    assert paired.estimate(values[:1] * len(values))["interval"] is None
    result = paired.difference(values, others)
    assert (result["interval"], result["p"], result["sd"]) == (None, 1, None)
    assert grid.change(result) == "+10.0"


@pytest.mark.slow
def test_intervals_are_those_of_problems_and_seeds(monkeypatch):
    """The interval over both holds the truth where both vary."""
    rng, inside = np.random.default_rng(6), 0
    monkeypatch.setattr(paired, "DRAWS", 300)
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


def majority_by_enumeration(answers, right, k):
    total = 0.0
    subsets = list(combinations(answers, k))
    for subset in subsets:
        votes = Counter(answer for answer in subset if answer is not None)
        winners = [answer for answer, count in votes.items() if count == max(votes.values())]
        total += winners.count(right) / len(winners) if winners else 0.0
    return total / len(subsets)


def test_majority_at_k():
    """The share of all subsets of k completions that vote right."""
    rng = random.Random(0)
    for _ in range(60):
        answers = [rng.choice([None, 1, 1, 2, 2, 3, 4]) for _ in range(rng.randint(1, 9))]
        for k in range(1, len(answers) + 1):
            assert majority_at_k(answers, 1, k) == pytest.approx(
                majority_by_enumeration(answers, 1, k)
            ), (answers, k)
