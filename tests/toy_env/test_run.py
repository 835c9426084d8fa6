"""A run: the files that it leaves, evaluation along the way, numbers that are not finite, and the
help of its settings."""

import json
import math
import re
import runpy
import sys
from dataclasses import fields
from importlib import import_module

import pytest
import torch
from conftest import ROOT, metrics
from test_ladder import SCRIPTS
from transformers import AutoTokenizer

from algorithms import reinforce
from toy_env.run import Run

SMALL = {"steps": 4, "prompts_per_step": 4, "group_size": 4, "max_new_tokens": 24}
SMALL |= {"eval_problems": 2, "levels": (1, 2), "device": "cpu"}


def test_files(tmp_path, capsys):
    """Those of the README. The screen shows problems before and after, and a table by level."""
    folder = tmp_path / "run"
    results = reinforce.train(reinforce.Config(**SMALL, run_dir=str(folder)))
    written = "config.json metrics.jsonl results.json curves.png state.pt checkpoint"
    assert {path.name for path in folder.iterdir()} == set(written.split())
    saved = json.loads((folder / "results.json").read_text("utf-8"))
    assert saved == json.loads(json.dumps(results))
    assert [row["completions"] for row in metrics(folder)] == [16, 32, 48, 64]
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert AutoTokenizer.from_pretrained(folder / "checkpoint")("1+1?").input_ids[0] == 1
    shown = capsys.readouterr().out
    assert shown.count("?") >= 8 and re.findall("^([1-4]|all) ", shown, re.M) == ["1", "2", "all"]


def test_a_folder_in_the_home_folder(train, monkeypatch, tmp_path):
    """The shell leaves the ~ in --run_dir=~/run, at the start and when the run is resumed."""
    monkeypatch.setenv("HOME", str(tmp_path))
    train(reinforce, run_dir="~/run", steps=1)
    assert len(train(reinforce, run_dir="~/run", steps=2, resume=True)) == 2


def test_evaluating_along_the_way(tmp_path, no_curves):
    """Changes nothing else."""
    two, none = (SMALL | {"run_dir": str(tmp_path / str(n)), "eval_every": n} for n in (2, 0))
    results = reinforce.train(reinforce.Config(**two))
    reinforce.train(reinforce.Config(**none))
    rows = metrics(tmp_path / "2")
    held_out = [row["held_out"] for row in rows]
    assert [value is None for value in held_out] == [True, False, True, False]
    assert held_out[-1] == results["after"]["accuracy"]["all"]["sampled"]
    assert [row | {"held_out": None} for row in rows] == metrics(tmp_path / "0")


def test_seeds():
    """Every seed and every step has its own random numbers, and always the same."""

    def draws(seed: int, step: int) -> tuple[float, float]:
        run = Run("script.py", reinforce.Config(seed=seed, device="cpu"))
        rng, generator = run.seeded(step)
        return rng.random(), torch.rand(1, generator=generator).item()

    cases = [(0, 1), (0, 2), (1, 1), (1, 2)]
    every = [draws(*case) for case in cases]
    assert every == [draws(*case) for case in cases]
    assert all(len(set(numbers)) == 4 for numbers in zip(*every))


@pytest.mark.parametrize("place", ["loss", "logits"])
def test_numbers_that_are_not_finite(place, train, tmp_path, monkeypatch):
    """End the run with FloatingPointError before they are saved."""
    log = reinforce.Run.log

    def log_and_spoil(run, step, *inputs):
        log(run, step, *inputs)
        if step == 2 and place == "loss":
            monkeypatch.setattr(reinforce, "policy_loss", lambda logps, **_: math.nan * logps.sum())
        if step == 2 and place == "logits":
            run.policy.get_input_embeddings().weight.data[:, 3] = math.inf

    monkeypatch.setattr(reinforce.Run, "log", log_and_spoil)
    with pytest.raises(FloatingPointError):
        train(reinforce, steps=4, save_every=1)
    assert len(metrics(tmp_path / "run")) == 2
    saved = torch.load(tmp_path / "run/state.pt", weights_only=True)
    assert all(tensor.isfinite().all() for tensor in saved["policy"].values())


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script, monkeypatch, capsys):
    """A setting's help is the comment behind its field, in 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", [f"{script}.py", "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / f"algorithms/{script}.py"), run_name="__main__")
    text = capsys.readouterr().out
    assert all(len(line) <= 80 for line in text.splitlines() if line.startswith("│"))
    plain = " ".join(text.replace("│", " ").split())
    paths = (f"algorithms/{script}.py", "toy_env/run.py")
    source = "".join((ROOT / path).read_text("utf-8") for path in paths)
    comments = re.findall(r"^    (\w+): \S+.* = .*  # (.+)$", source, flags=re.M)
    assert len(comments) == len(fields(import_module(f"algorithms.{script}").Config))
    for name, comment in comments:
        shown = rf"--(no_)?{name} (\{{.*?\}} |[A-Z\[\] .]+ )?{re.escape(comment)} \(default"
        assert re.search(shown, plain), (name, comment)
