"""A run: the files that it leaves, and that they tell the truth; evaluation along the way, numbers
that are not finite, and the help of its settings."""

import json
import math
import re
import runpy
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, SCRIPTS, is_right, metrics
from matplotlib.figure import Figure
from transformers import AutoModelForCausalLM, AutoTokenizer

from algorithms import dapo, reinforce
from toy_env.arithmetic import held_out_problems
from toy_env.model import BASE_MODEL
from toy_env.plots import draw_curves
from toy_env.run import Run

# The files of a run

# Four steps take greedy completions from .42 right to .94. At this temperature only .58 of the
# sampled ones are right then, so nobody can take one column of the report for the other.
HOT = {"levels": (2,), "eval_problems": 48, "temperature": 1.4, "max_new_tokens": 24}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> SimpleNamespace:
    """The folder of a short run of dapo.py, and the reports in its results.json."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    settings = {"steps": 4, "prompts_per_step": 16, "learning_rate": 5e-4, "warmup_steps": 0}
    settings |= {"run_dir": str(folder), "eval_every": 0, "device": "cpu"}
    dapo.train(dapo.Config(**HOT | settings))
    reports = json.loads((folder / "results.json").read_text("utf-8"))
    return SimpleNamespace(folder=folder, reports=reports)


def test_files(trained):
    """Those that the README lists; the picture is one."""
    written = "config.json metrics.jsonl results.json curves.png state.pt checkpoint"
    assert {path.name for path in trained.folder.iterdir()} == set(written.split())
    assert (trained.folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def decode(folder: Path, **settings) -> np.ndarray:
    """A model's completions of the held-out problems, by transformers alone: for each whether it is
    right and whether it is worked, (2, completions)."""
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    prompts = [problem.prompt for problem in held_out_problems(48, levels=[2])]
    inputs = tokenizer(prompts, padding=True, return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=24, **settings)
    texts = tokenizer.batch_decode(ids[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    repeated = np.repeat(prompts, len(texts) // len(prompts))
    return np.array([(is_right(*row), "=" in row[1]) for row in zip(repeated, texts)]).T


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_checkpoint_answers_as_results_json_says(when, trained):
    """Whoever loads checkpoint/ finds the accuracies that the report calls `after`, greedy ones
    exactly and sampled ones up to chance; the shipped base has those called `before`. Broken on
    purpose: the base saved as the checkpoint, a greedy column that is sampled, the columns
    exchanged, `before` twice, an evaluation at another temperature."""
    folder = BASE_MODEL if when == "before" else trained.folder / "checkpoint"
    report = trained.reports[when]["accuracy"]["all"]
    right, worked = decode(folder, do_sample=False).mean(axis=1)
    assert report["greedy"] == pytest.approx(right) and report["greedy_worked"] == worked
    torch.manual_seed(0)
    hot = {"do_sample": True, "temperature": 1.4, "top_k": 0, "num_return_sequences": 8}
    right, worked = decode(folder, **hot).mean(axis=1)
    assert report["sampled"] == pytest.approx(right, abs=0.15)  # 3.4 standard errors
    assert report["worked"] == pytest.approx(worked, abs=0.15)


def test_the_screen(capsys, train):
    """It shows problems before and after, and a table by level."""
    train(reinforce, steps=1, levels=(1, 2), eval_problems=2)
    shown = capsys.readouterr().out
    assert shown.count("?") >= 8 and re.findall("^([1-4]|all) ", shown, re.M) == ["1", "2", "all"]


CURVES = {  # words of a curve's label, or of its panel's heading: the metric that it must show
    "training problems": "accuracy",
    "held-out problems": "held_out",
    "right completions": "length_right",
    "wrong completions": "length_wrong",
    "Entropy": "entropy",
    "all right": "silent_right",
    "all wrong": "silent_wrong",
    "all right or all wrong": "silent",
    "step by step": "worked",
    "length limit": "truncated",
    "Gradient norm": "grad_norm",
    "upwards": "clipped_up",
    "downwards": "clipped_down",
    "KL to the base model": "kl",
    "explained variance": "explained_variance",
    "value loss": "value_loss",
}


@pytest.mark.parametrize("absent", [(), ("held_out", "kl")])
def test_curves_show_what_they_name(absent, tmp_path, spy):
    """Each curve of curves.png has the numbers of the metric that its label names, at their steps.
    A legend has the curves that are drawn, and covers none. Nothing is drawn of a metric without
    values. Broken on purpose: the lengths of right and wrong completions exchanged, a legend within
    the axes."""
    expected = {words: name for words, name in CURVES.items() if name not in absent}
    rows = [{"step": s} | {n: i + s / 10 for i, n in enumerate(expected.values())} for s in (3, 4)]
    rows = [{"held_out": None} | row for row in rows]
    saved = spy(Figure, "savefig")
    draw_curves(rows, tmp_path / "curves.png", "a run")
    shown = {}
    for axis in saved[0].args[0].axes:
        legend = axis.get_legend()
        if legend:
            labels = [line.get_label() for line in axis.lines]
            assert labels == [text.get_text() for text in legend.get_texts()]
            assert legend.get_bbox_to_anchor().y1 < axis.bbox.y0
        for line in axis.lines:
            label = line.get_label() if legend else axis.get_title()
            words = max((words for words in CURVES if words in label), key=len)
            shown[words] = list(zip(*line.get_data()))
    assert shown == {
        words: [(row["step"], row[name]) for row in rows] for words, name in expected.items()
    }


# Settings


def test_a_folder_in_the_home_folder(monkeypatch, tmp_path):
    """The shell leaves the ~ in --run_dir=~/run, at the start and when the run is resumed."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for resume in (False, True):
        config = reinforce.Config(run_dir="~/run", resume=resume, device="cpu")
        assert Run("script.py", config).path == tmp_path / "run"


def test_evaluating_along_the_way(train, tmp_path):
    """Changes nothing else."""
    two, none = (train(reinforce, str(n), eval_every=n) for n in (2, 0))
    results = json.loads((tmp_path / "2/results.json").read_text("utf-8"))
    after = results["after"]["accuracy"]["all"]["sampled"]
    assert [row["held_out"] for row in two] == [None, after]
    assert [row | {"held_out": None} for row in two] == none


def test_every_seed_and_step_has_draws_of_its_own():
    draws = set()
    for seed in (0, 1):
        run = Run("script.py", reinforce.Config(seed=seed, device="cpu"))
        draws |= {torch.rand(1, generator=run.seeded(step)[1]).item() for step in (1, 2)}
    assert len(draws) == 4


@pytest.mark.parametrize("place", ["loss", "logits"])
def test_numbers_that_are_not_finite(place, train, tmp_path, monkeypatch):
    """End the run with FloatingPointError before they are logged or saved."""
    log = Run.log

    def log_and_spoil(run, *inputs):
        log(run, *inputs)
        if place == "loss":
            monkeypatch.setattr(reinforce, "policy_loss", lambda logps, **_: math.nan * logps.sum())
        else:
            run.policy.get_input_embeddings().weight.data[:, 3] = math.inf

    monkeypatch.setattr(Run, "log", log_and_spoil)
    with pytest.raises(FloatingPointError):
        train(reinforce)
    assert len(metrics(tmp_path / "run")) == 1


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script, monkeypatch, capsys):
    """A setting's help is the comment behind its field, in 80 columns; above stands the docstring,
    whose indented lines are kept. Broken on purpose: the docstring as tyro prints it."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", [f"{script}.py", "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / f"algorithms/{script}.py"), run_name="__main__")
    text, module = capsys.readouterr().out, import_module(f"algorithms.{script}")
    assert all(len(line) <= 80 for line in text.splitlines() if line.startswith("│"))
    assert "\n\n\n" not in text and "(default: )" not in text
    about, _, settings = text.partition("usage:")
    assert about.split() == module.__doc__.split()
    assert all(line in about for line in module.__doc__.splitlines() if line.startswith(" "))
    plain = " ".join(settings.replace("│", " ").split())
    paths = (f"algorithms/{script}.py", "toy_env/run.py", "toy_env/tasks.py")
    source = "".join((ROOT / path).read_text("utf-8") for path in paths)
    for field in fields(module.Config):
        comment = re.search(rf"^    {field.name}: .* = .*  # (.+)$", source, flags=re.M)[1]
        assert f"{comment} (default" in plain, field.name
