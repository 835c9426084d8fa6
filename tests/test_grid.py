"""The harness of the experiments: runs that are kept and continued, its statistics by hand, its
tables and pages."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from lessons.experiments import grid, paired
from lessons.experiments.grid import Grid, GridConfig
from toy_env import RunFailed, UsageError

ROOT = Path(__file__).parents[1]
with_stats = pytest.mark.skipif(
    paired.stats is None, reason="pip install -e '.[stats]' for the statistics"
)


@dataclass(frozen=True)
class Run:
    arm: str
    seed: int = 0


def square(run: Run, moment: float = 0.0) -> dict:
    """A run, which may take a moment, so that it can be stopped."""
    time.sleep(moment)
    return {"curve": np.array([run.seed, run.seed**2]), "share": 1 / 3}


def one_by_one(function, tasks, processes=0, what="", keep=lambda *_: None) -> None:
    """Stands in for in_parallel: everything in this process."""
    for i, task in enumerate(tasks):
        keep(i, function(*task))


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(grid, "in_parallel", one_by_one)


RUNS = [Run(arm, seed) for arm in ("A", "B") for seed in range(3)]


def test_runs_are_made_once_and_kept_in_their_order(tmp_path, here):
    """Whatever was made before, and in whichever order: the same file. Runs of other settings stay
    in it."""
    made = []

    def make(run: Run) -> dict:
        made.append(run)
        if run == Run("B", 1) and len(made) == 2:
            raise RunFailed("the disk is full")
        return square(run)

    def whole(folder: str, *grids: list[Run]) -> tuple[list[dict], bytes]:
        for runs in grids:
            with (
                Grid(GridConfig(output=str(tmp_path / folder)), "x") as one,
                contextlib.suppress(RunFailed),
            ):
                results = one.run(make, runs)
        return results, (tmp_path / folder / "runs.json").read_bytes()

    results, text = whole("a", [RUNS[5], RUNS[4]], RUNS)
    assert made == [
        RUNS[5],
        RUNS[4],
        *RUNS[:5],
    ]  # the one that failed again, the one that was kept not
    assert results[5] == {"arm": "B", "seed": 2, "curve": [2, 4], "share": 1 / 3}
    assert text.count(b"\n") == 1 + 6 + 1 and json.loads(text)["command"].endswith("x.py --publish")
    assert whole("b", RUNS) == (results, text) == whole("a", RUNS)
    whole("c", RUNS[:3], RUNS[3:])
    made.clear()
    few, with_others = whole("c", RUNS[3:])
    assert few == results[3:] and with_others != text and with_others.count(b'"arm"') == len(RUNS)
    assert whole("c", RUNS) == (results, text) and not made


@pytest.mark.parametrize(
    "text", ["", '{"runs": [{"old": 1}]}', '{"runs": 1}', '{"runs": [{"arm": "A", "seed"']
)
def test_a_damaged_file_is_one_line(text, tmp_path, here):
    (tmp_path / "runs.json").write_text(text, "utf-8")
    with (
        Grid(GridConfig(output=str(tmp_path)), "x") as one,
        pytest.raises(UsageError, match="delete it, or choose"),
    ):
        one.run(square, RUNS)
    assert (tmp_path / "runs.json").read_text("utf-8") == text


PROGRAM = """
import sys
from functools import partial
sys.path.insert(0, 'tests')
from toy_env import take_over_ctrl_c
take_over_ctrl_c(__name__)
from test_grid import RUNS, Grid, GridConfig, square
from toy_env.cli import run_main

def main(config):
    with Grid(config, 'x') as one:
        one.run(partial(square, moment=0.5), RUNS)

if __name__ == '__main__':
    run_main(GridConfig, main, '')
"""


@pytest.mark.slow
def test_a_command_that_is_killed_goes_on_where_it_stopped(tmp_path):
    """Killed, then stopped by Ctrl-C pressed twice, then finished: byte for byte the file of a run
    that was left alone. While it runs, another process is refused in one line; when it has stopped,
    no process is left."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, "utf-8")
    file = tmp_path / "out/runs.json"

    def start(folder: str) -> subprocess.Popen:
        command = [
            sys.executable,
            str(program),
            "--processes",
            "1",
            "--output",
            str(tmp_path / folder),
        ]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            command,
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def wait_for(runs: int) -> None:
        deadline = time.monotonic() + 120
        while (
            not (file.exists() and file.read_bytes().count(b'"arm"') >= runs)
            and time.monotonic() < deadline
        ):
            time.sleep(0.02)

    with start("out") as killed:
        wait_for(1)
        with pytest.raises(
            UsageError, match=r"another process is writing there.*; choose another --output$"
        ):
            Grid(GridConfig(output=str(tmp_path / "out")), "x")
        killed.kill()
    assert file.read_bytes().count(b'"arm"') < len(RUNS)
    with start("out") as stopped:
        wait_for(3)
        for _ in range(2):  # Ctrl-C reaches every process of a terminal's group
            os.killpg(stopped.pid, signal.SIGINT)
            time.sleep(0.05)
        error = stopped.communicate(timeout=30)[1]
    assert (
        stopped.returncode == 130
        and "Traceback" not in error
        and 3 <= file.read_bytes().count(b'"arm"') < len(RUNS)
    )
    assert error.splitlines()[-1].strip().endswith("stopped (the same command continues from here)")
    with pytest.raises(ProcessLookupError):
        for _ in range(300):  # the processes of the pool end on their own
            os.killpg(stopped.pid, 0)
            time.sleep(0.1)
    for folder in ("out", "whole"):
        with start(folder) as finished:
            assert finished.communicate(timeout=120)[0] is None and finished.returncode == 0
    assert file.read_bytes() == (tmp_path / "whole/runs.json").read_bytes()


# ---------------------------------------------------------------------- statistics


def test_an_interval_and_a_difference_by_hand():
    """1 to 5 have mean 3 and variance 2.5; the quantile of Student's t with 4 degrees of freedom is
    2.776."""
    half = 2.7764451 * np.sqrt(2.5 / 5)
    result = paired.estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    assert result["mean"] == 3 and result["interval"] == pytest.approx([3 - half, 3 + half])
    np.testing.assert_allclose(
        paired.t_interval(np.array([[1.0, 2, 3, 4, 5], [2, 3, 4, 5, 6]]).T)[1], [3 + half, 4 + half]
    )
    result = paired.difference([2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 2.0, 3.0, 4.0, 5.0])
    assert (result["difference"], result["pairs"]) == (3, 5) and result["sd"] == pytest.approx(
        np.sqrt(2.5)
    )
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


@with_stats
def test_seeds_without_a_value_count_nowhere_and_shift_nothing():
    """A diverged run must not pair seed 2 of one script with seed 1 of another."""
    assert paired.estimate([None, None])["mean"] is None
    assert paired.estimate([0.25, None, 0.25]) == {
        "mean": 0.25,
        "interval": None,
        "seeds": [0.25, None, 0.25],
    }
    result = paired.difference([0.1, None, 0.3, 0.5], [0.2, 0.9, 0.2, None])
    assert result["pairs"] == 2 and result["difference"] == pytest.approx(0)
    for values, text in (([0.1, None], "−10.0"), ([0.3, 1.0], "+10.0"), ([None, None], "")):
        result = paired.difference(values, [0.2, 0.9])
        assert (result["interval"], result["p"], result["sd"]) == (None, 1, None) and grid.change(
            result
        ) == text
    assert (
        grid.cell(paired.estimate([0.25, 0.75, None]) | {"interval": [0.2, 0.8]})
        == ".500 [.200, .800] (2 of 3 runs)"
    )


def test_intervals_are_those_of_problems_and_seeds():
    """Seeds that repeat the same numbers make an interval no narrower; problems that do leave the
    seeds' spread."""
    rng, width = np.random.default_rng(6), lambda rates: np.ptp(paired.interval_over_both(rates))
    one = rng.normal(size=(1, 16))
    assert width(np.tile(one, (3, 1))) == pytest.approx(width(one), rel=0.15)
    assert width(np.tile([[0.0], [1.0], [2.0]], (1, 16))) > 1
    inside = 0
    for _ in range(100):
        rates = (
            rng.normal(size=(1, 30)) + rng.normal(size=(6, 30)) / 2 + rng.normal(size=(6, 1)) / 4
        )
        inside += np.prod(paired.interval_over_both(rates)) < 0
    assert 85 <= inside <= 100  # .88: six seeds are few


# ---------------------------------------------------------------------- tables and pages


def test_what_does_not_survive_the_correction_is_not_bold():
    comparison = {"difference": 0.0123, "interval": [0.002, 0.0226], "p_holm": 0.06}
    assert grid.change(comparison) == "+1.2 [+0.2, +2.3]"
    assert grid.change(comparison | {"p_holm": 0.04}) == "**+1.2 [+0.2, +2.3]**"
    assert grid.change(comparison | {"difference": -0.0004}) == "+0.0 [+0.2, +2.3]"
    assert (
        grid.change(comparison | {"interval": [-0.0004, 0.02]}) == "+1.2 [−0.0, +2.0]"
    )  # contains 0
    assert (
        grid.change(comparison | {"interval": [-0.002, 0.0226]}, 3, scale=1)
        == "+0.012 [−0.002, +0.023]"
    )
