"""A duel of two scripts, which here only write numbers.

Broken on purpose: files beside a script that it does not find; settings of a script that lose
against those of both; a folder named without the script's text; runs that begin again instead of
going on.
"""

import sys
from pathlib import Path

import pytest
from conftest import python
from test_grid import one_by_one

from lessons.experiments import duel

SCRIPT = """
import json
from dataclasses import dataclass
from pathlib import Path

from {module} import GAIN
from toy_env.run import RunConfig


@dataclass
class Config(RunConfig):
    scale: float = 1.0  # of the accuracy


def train(config):
    folder = Path(config.run_dir)
    folder.mkdir(exist_ok=config.resume)
    with (folder.parent / "calls").open("a") as file:
        file.write("resumed " if config.resume else "new ")
    end = config.scale * GAIN * (1 + config.seed / 10)
    for name in ("state.pt", "metrics.jsonl"):
        row = {"step": 1, "accuracy": 0.4, "length": 7.0, "held_out": None, "completions": 8}
        (folder / name).write_text(json.dumps(row))
    before, after = ({"sampled": x, "greedy": 0.5, "length": 7.0} for x in (0.4, end))
    both = {when: {"accuracy": {"all": x}} for when, x in (("before", before), ("after", after))}
    (folder / "results.json").write_text(json.dumps(both))
"""


@pytest.fixture
def fight(tmp_path, monkeypatch, capsys):
    """fight(first, second, *flags): what a duel prints, and the runs that it made since the last
    one. Two folders have a script mine.py, which imports a file beside it."""
    monkeypatch.setattr(duel, "in_parallel", one_by_one)
    monkeypatch.chdir(tmp_path)
    for folder, gain in (("a", 0.5), ("b", 0.6)):
        Path(folder).mkdir()
        text = SCRIPT.replace("{module}", f"gain_{folder}")
        Path(folder, "mine.py").write_text(text, "utf-8")
        Path(folder, f"gain_{folder}.py").write_text(f"GAIN = {gain}", "utf-8")

    def run(*argv: str) -> tuple[str, list[str]]:
        monkeypatch.setattr(sys, "argv", ["duel", *argv])
        Path("runs/duel").mkdir(parents=True, exist_ok=True)
        calls = Path("runs/duel/calls")
        calls.write_text("", "utf-8")
        duel.main()
        return capsys.readouterr().out, calls.read_text("utf-8").split()

    return run


def test_a_duel_by_hand(fight):
    """Differences of -10, -11 and -12 points: 4.303 standard errors of .577 are 2.5. Cohen: one
    standard deviation takes 10 pairs."""
    text, made = fight("a/mine.py", "b/mine.py", "--seeds", "3")
    assert made == 6 * ["new"] and "| folders | mine-" in text
    assert "sampled: A − B is −11.0 [−13.5, −8.5] points" in text and "A ends lower." in text
    assert "with about 10 seeds" in text
    assert "greedy: A − B is +0.0 points, without an interval" in text
    assert len([*Path("runs/duel").glob("mine-*-mine-*.png")]) == 1


def test_the_same_command_goes_on_and_another_does_not_mix_with_it(fight, monkeypatch):
    monkeypatch.setattr(duel, "draw", lambda *_: None)
    both = "a/mine.py", "a/mine.py --scale 1.1"
    text, made = fight(*both, "--seeds", "2", "--scale", "1.2")
    assert "| scale | 1.2 | 1.1 |" in text and len(made) == 4
    assert fight(*both, "--seeds", "3", "--scale", "1.2")[1] == 2 * ["new"]
    next(Path("runs/duel").glob("*-1/results.json")).unlink()
    assert fight(*both, "--seeds", "3", "--scale", "1.2")[1] == ["resumed"]
    assert fight(*both, "--seeds", "3")[1] == 3 * ["new"]
    with Path("a/mine.py").open("a", encoding="utf-8") as script:
        script.write("# another loss")
    assert fight(*both, "--seeds", "1")[1] == 2 * ["new"]


def test_every_setting_that_differs_is_shown():
    arms = duel.read("grpo --kl_coef 0", ["--steps", "3"]), duel.read("dapo", ["--steps", "3"])
    rows = duel.differing(["A", "B"], arms).splitlines()
    assert {"| kl_coef | 0.0 | has none |", "| overlong_buffer | has none | 8 |"} < {*rows}
    assert {row.split()[1] for row in rows}.isdisjoint({"steps", "learning_rate", "seed"})


@pytest.mark.parametrize(
    ("values", "decision"),
    [
        ([0.5], "one seed"),
        ([0.5, 0.7, 0.9], "undecided"),
        ([0.8, 0.7, 0.9], "A ends higher"),
    ],
)
def test_what_a_difference_decides(values, decision):
    """Of B, every seed ends at .4."""
    runs = [[{"after": {"greedy": x}} for x in each] for each in (values, [0.4] * len(values))]
    assert decision in duel.verdict(runs, "greedy")


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("dr_grop", "no script 'dr_grop'"),
        ("grpo --seed 3", "give it --seeds"),
        ("grpo --levels 7", "grpo: --levels"),
    ],
)
def test_a_slip_ends_in_a_line(typed, line):
    with pytest.raises(SystemExit, match=line):
        duel.read(typed, [])


@pytest.mark.slow
def test_the_error_of_a_run_is_shown(tmp_path):
    flags = "--group_size", "1", "--seeds", "1", "--run_dir", tmp_path
    ended = python("-m", "lessons.experiments.duel", "grpo", "dapo", *flags)
    assert ended.returncode == 1 and ended.stderr.splitlines()[-1].startswith("--group_size must")
