"""The promises about a run: one line for what a person types wrong, resuming bit for bit, no run in
the folder of another, and nothing executed that a model or a run brings along."""

import copy
import io
import json
import os
import runpy
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from conftest import ROOT, metrics
from safetensors.torch import load_file

from algorithms import dr_grpo, ppo, reinforce
from toy_env.model import BASE_MODEL
from toy_env.run import Run, parse

SMALL = {"steps": 4, "save_every": 2, "prompts_per_step": 2, "group_size": 4, "max_new_tokens": 16}
SMALL |= {"eval_problems": 1, "eval_every": 3, "device": "cpu"}
FLAGS = [*(f"--{name}={value}" for name, value in SMALL.items()), "--levels", "1", "2"]


def files(folder: str | Path) -> dict[str, bytes]:
    """The contents of every file below a folder."""
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in paths}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys, no_curves):
    """run(script, *flags) runs a command in an empty folder. Returns what it shows, with the line
    that a SystemExit ends it in."""
    monkeypatch.chdir(tmp_path)

    def command(script: str, *flags: str) -> str:
        monkeypatch.setattr(sys, "argv", [f"algorithms/{script}.py", *flags])
        line = ""
        try:
            runpy.run_path(str(ROOT / f"algorithms/{script}.py"), run_name="__main__")
        except SystemExit as end:
            line = str(end)
        return "".join(capsys.readouterr()) + line

    return command


# Typed wrong


WRONG = """\
grpo --save_every=0 -> --save_every
grpo --learning_rate=-1e-4 -> --learning_rate
ppo --temperature=nan -> --temperature
rloo --temperature=0 -> --temperature
grpo --group_size=1 -> --group_size
dapo --group_size=1 -> --group_size
reinforce --task=algebra -> arithmetic
reinforce --task=my_tasks.none -> my_tasks.none
grpo --task=questions -> FILE.jsonl
grpo --task=questions --reply=# -> --questions FILE
grpo --task=questions --questions=nowhere.jsonl -> nowhere.jsonl
grpo --questions=nowhere.jsonl -> --task questions
dapo --task=expressions --reply=# -> --task questions
reinforce --levels 1 5 -> --levels
reinforce --model=runs/missing/checkpoint -> runs/missing/checkpoint
reinforce --device=gpu -> cuda
reinforce --run_dir=mine -> --resume
reinforce --resume -> --run_dir
grpo --lr=1e-3 -> did you mean --learning_rate?
ppo --gae 1 -> did you mean --gae_lambda?
dapo --group 4 -> did you mean --group_size?
rloo --eval=4 -> did you mean --eval_
grpo --wings 2 -> no --wings (--help
grpo --dtype=fp16 -> bfloat16
reinforce --steps=ten -> --steps
reinforce --levels one -> --levels
rloo --resume --run_dir=mine -> this script
dr_grpo --resume --run_dir=mine -> keeps its --"""


@pytest.mark.parametrize("typed", WRONG.split("\n"))
def test_one_line(typed, run):
    """One line names what to type instead, and nothing is written or lost. The folder `mine` is a
    run of another script; a run that is resumed keeps what its first report depends on. Broken on
    purpose: what tyro says in its box."""
    Path("mine").mkdir()
    saved = json.dumps({"script": "dr_grpo"} | vars(dr_grpo.Config()))
    Path("mine/config.json").write_text(saved, "utf-8")
    command, _, part = typed.partition(" -> ")
    script, *flags = command.split()
    shown = run(script, *FLAGS, *flags)
    assert len(shown.strip().splitlines()) == 1 and part in shown, shown
    assert files(".") == {"mine/config.json": saved.encode()} and os.listdir() == ["mine"]


# Ended and resumed


class Killed(BaseException):
    """Ends a run at once, as SIGKILL would: nothing catches it."""


def end(folder: str) -> dict:
    """The rows without times, the reports, the weights and the names of a run's files."""
    return {
        "rows": metrics(folder),
        "results": json.loads(Path(folder, "results.json").read_text("utf-8")),
        "weights": Path(folder, "checkpoint/model.safetensors").read_bytes(),
        "names": sorted(os.listdir(folder)),
    }


AT_THE_END = pytest.param(Run, "finish", marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("owner", "name"), [(torch, "save"), (Path, "rename"), (shutil, "rmtree"), AT_THE_END]
)
def test_killed_and_resumed(owner, name, run, monkeypatch):
    """Killed in the second save, with a file written or a folder removed by half, or at the end: it
    leaves a whole checkpoint or none. Resumed, it ends like a run that nothing disturbed, bit for
    bit, and its log has each step once, even if the last line was written by half. Broken on
    purpose: a save written in place, an old checkpoint removed first, rows kept that are later than
    the save."""
    honest = getattr(owner, name)

    def do_half(place, *rest, **named):
        if not Path("killed/state.pt").exists() or (name == "rmtree" and not place.exists()):
            return honest(place, *rest, **named)
        if name == "save":
            Path(rest[0]).write_bytes(b"PK" * 1000)
        if name == "rmtree":
            next(place.rglob("*.json")).unlink()
        raise Killed

    run("ppo", "--run_dir=whole", *FLAGS)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(owner, name, do_half)
        run("ppo", "--run_dir=killed", *FLAGS)
    assert len(files("killed/checkpoint")) in (0, len(files("whole/checkpoint")))
    with open("killed/metrics.jsonl", "a", encoding="utf-8") as log:
        log.write('{"step": 4, "compl')
    run("ppo", "--run_dir=killed", "--resume")
    ours, whole = end("killed"), end("whole")
    for part in whole:
        assert ours[part] == whole[part], part


def test_ctrl_c(run, monkeypatch):
    """A line says from which step a command continues the run, and that command works. Until then
    there are a picture and the model of the last save. Broken on purpose: both written in the
    end."""
    seeded = Run.seeded

    def seeded_or_ended(self, step: int):
        if step == 4:
            raise KeyboardInterrupt
        return seeded(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "seeded", seeded_or_ended)
        shown = run("reinforce", "--run_dir=my run", *FLAGS)
    (line,) = [line for line in shown.splitlines() if "--resume" in line]
    assert "from step 3," in line and Path("my run/curves.png").exists()
    weights = load_file("my run/checkpoint/model.safetensors")
    saved = torch.load("my run/state.pt", weights_only=True)["policy"]
    assert all(torch.equal(tensor, saved[name]) for name, tensor in weights.items())
    run("reinforce", *shlex.split(line.partition("python ")[2])[1:])
    assert len(metrics("my run")) == 4 and Path("my run/results.json").exists()


def test_fewer_steps_than_a_run_has(run):
    """One line, and nothing is written; as many as it has only evaluate it again."""
    run("reinforce", "--run_dir=mine", *FLAGS)
    before = files("mine")
    shown = run("reinforce", "--run_dir=mine", "--resume", "--steps=3")
    assert "has 4 steps; give --steps 5" in shown and files("mine") == before
    run("reinforce", "--run_dir=mine", "--resume", "--steps=4")
    assert files("mine") | {"mine/config.json": before["mine/config.json"]} == before


def test_ctrl_c_before_the_run(run, monkeypatch):
    """There is nothing to resume, and nothing says so."""
    monkeypatch.setattr(Run, "begun", None)  # other tests have run in this process
    monkeypatch.setattr(Run, "find_folder", MagicMock(side_effect=KeyboardInterrupt))
    assert "--resume" not in run("grpo", "--run_dir=new", *FLAGS)


# Characters that the terminal lacks


def test_other_characters(monkeypatch):
    """Are written as \\u0142 and end no run. A notebook's stdout takes them. Broken on purpose:
    stdout left as it is."""
    monkeypatch.setattr(sys, "argv", ["reinforce.py"])
    page = io.TextIOWrapper(io.BytesIO(), encoding="cp1252", write_through=True)
    for stdout in (io.StringIO(), page):
        monkeypatch.setattr(sys, "stdout", stdout)
        parse(reinforce.Config, None)
        print("łódź", end="")
    assert page.buffer.getvalue() == b"\\u0142\xf3d\\u017a"


# Folders and seeds


def test_a_new_folder_and_the_same_numbers(tmp_path, monkeypatch, no_curves):
    """Without --run_dir a run makes its own folder, and the same seed gives the same metrics. One
    Config serves for several runs, as in a notebook's cell that is run again. Broken on purpose: a
    run that writes into its Config."""
    monkeypatch.chdir(tmp_path)
    config = reinforce.Config(**SMALL | {"steps": 2})
    settings = copy.deepcopy(vars(config))
    reinforce.train(config)
    first = files("runs/reinforce-0")
    reinforce.train(config)
    assert vars(config) == settings
    reinforce.train(replace(config, seed=1))
    assert sorted(os.listdir("runs")) == ["reinforce-0", "reinforce-0-2", "reinforce-1"]
    assert files("runs/reinforce-0") == first
    one, two, other = (metrics(f"runs/reinforce-{name}") for name in ("0", "0-2", "1"))
    assert one == two != other


# Nothing is executed


class Harm:
    def __reduce__(self):
        return os.mkdir, ("harm",)


@pytest.fixture
def model(tmp_path, monkeypatch) -> Path:
    """A copy of the base model, below the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # transformers asks before it runs code
    return Path(shutil.copytree(BASE_MODEL, "model"))


def own_code(model: Path) -> None:
    """The model's configuration names code that comes with it."""
    (model / "own.py").write_text("import os\nos.mkdir('harm')\n", "utf-8")
    config = json.loads((model / "config.json").read_text("utf-8"))
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    (model / "config.json").write_text(json.dumps(config), "utf-8")


def pickled(model: Path) -> None:
    """The weights are a pickle."""
    weights = model / "model.safetensors"
    torch.save(load_file(weights) | {"harm": Harm()}, model / "pytorch_model.bin")
    weights.unlink()


@pytest.mark.parametrize("change", [own_code, pickled])
def test_a_model_that_brings_code(change, model):
    change(model)
    with pytest.raises(SystemExit):
        ppo.train(ppo.Config(**SMALL, model="model"))
    assert os.listdir() == ["model"]


def test_a_save_that_brings_code(tmp_path, monkeypatch, train):
    monkeypatch.chdir(tmp_path)
    train(reinforce)
    torch.save({"policy": Harm()}, "run/state.pt")
    with pytest.raises(Exception, match="weights_only|Weights only"):
        train(reinforce, steps=4, resume=True)
    assert os.listdir() == ["run"]
