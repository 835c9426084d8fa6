"""The promises about a run: one line for what a person types wrong, resuming bit for bit, no run in
the folder of another, and nothing executed that a model or a run brings along.

A command that is ended from within runs in a forked process, which has torch loaded already.
"""

import copy
import json
import multiprocessing
import os
import runpy
import shlex
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from conftest import ROOT, metrics
from safetensors.torch import load_file

from algorithms import ppo, reinforce
from toy_env.model import BASE_MODEL
from toy_env.run import Run

SMALL = {"steps": 4, "save_every": 2, "prompts_per_step": 2, "group_size": 4, "max_new_tokens": 16}
SMALL |= {"eval_problems": 1, "eval_every": 3, "device": "cpu"}
FLAGS = [*(f"--{name}={value}" for name, value in SMALL.items()), "--levels", "1", "2"]


def files(folder: str | Path) -> dict[str, bytes]:
    """The contents of every file below a folder."""
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in paths}


# Typed wrong


@pytest.fixture
def types(tmp_path, monkeypatch, capsys):
    """types(script, *flags) runs a command in an empty folder; returns its exit code and output."""
    monkeypatch.chdir(tmp_path)

    def run(script: str, *flags: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", [f"algorithms/{script}.py", *FLAGS, *flags])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / f"algorithms/{script}.py"), run_name="__main__")
        out, err = capsys.readouterr()
        if isinstance(end.value.code, str):  # Python prints it and exits with 1
            return 1, f"{out}{err}{end.value.code}\n"
        return end.value.code, out + err

    return run


@pytest.mark.parametrize(
    ("script", "flags", "part"),
    [
        ("grpo", "--save_every=0", "--save_every"),
        ("grpo", "--learning_rate=-1e-4", "--learning_rate"),
        ("ppo", "--temperature=nan", "--temperature"),
        ("rloo", "--temperature=0", "--temperature"),
        ("grpo", "--group_size=1", "--group_size"),
        ("dapo", "--group_size=1", "--group_size"),
        ("reinforce", "--task=algebra", "arithmetic"),
        ("reinforce", "--levels 1 5", "--levels"),
        ("reinforce", "--model=runs/missing/checkpoint", "runs/missing/checkpoint"),
        ("reinforce", "--device=gpu", "cuda"),
        ("reinforce", "--run_dir=mine", "--resume"),
        ("reinforce", "--resume", "--run_dir"),
        ("rloo", "--resume --run_dir=mine", "this script"),
    ],
)
def test_one_line(script, flags, part, types):
    """One line names what to type instead, and nothing is written or lost. The folder `mine` is a
    run of another script."""
    Path("mine").mkdir()
    Path("mine/config.json").write_text('{"script": "dr_grpo"}', "utf-8")
    code, shown = types(script, *flags.split())
    assert code == 1 and len(shown.strip().splitlines()) == 1 and part in shown, shown
    assert files(".") == {"mine/config.json": b'{"script": "dr_grpo"}'} and os.listdir() == ["mine"]


# Ended and resumed


def half_a_file(state, path) -> None:
    """In place of torch.save: write a part of a file, and die."""
    Path(path).write_bytes(b"PK" * 1000)
    os.kill(os.getpid(), signal.SIGKILL)


def command(argv: list[str], moment: str, output: str) -> None:
    """Run a script in this process, and end it at a moment."""
    sys.stdout = sys.stderr = open(output, "w", encoding="utf-8")  # noqa: SIM115
    torch.set_num_threads(1)
    import toy_env.run as run

    seeded = run.Run.seeded

    def seeded_or_ended(self, step: int):
        if step == 4 and moment == "Ctrl-C":
            signal.raise_signal(signal.SIGINT)
        if step == 3 and moment == "in a save":
            torch.save = half_a_file
        return seeded(self, step)

    def draw_curves(rows, path, title) -> None:  # an empty file, which takes no time
        if moment == "at the end":
            os.kill(os.getpid(), signal.SIGKILL)
        path.touch()

    run.Run.seeded, run.draw_curves = seeded_or_ended, draw_curves
    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")


def end(folder: Path) -> dict:
    """The rows without times, the reports, the weights and the names of a run's files."""
    return {
        "rows": metrics(folder),
        "results": json.loads((folder / "results.json").read_text("utf-8")),
        "weights": (folder / "checkpoint/model.safetensors").read_bytes(),
        "names": {path.name for path in folder.iterdir()},
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """run(name, *flags, moment="") runs ppo.py in a process, to be ended at a moment. Returns the
    exit code, the output and the folder."""
    if os.name == "nt":
        pytest.skip("Windows has no SIGKILL and no fork")
    method = "fork" if sys.platform == "linux" else "forkserver"  # macOS may crash in a fork
    context = multiprocessing.get_context(method)
    runs = tmp_path_factory.mktemp("runs")

    def run_command(name: str, *flags: str, moment: str = "") -> tuple[int, str, Path]:
        argv = [str(ROOT / "algorithms/ppo.py"), f"--run_dir={runs / name}", *flags]
        process = context.Process(target=command, args=(argv, moment, f"{runs / name}.txt"))
        process.start()
        process.join()
        return process.exitcode, Path(f"{runs / name}.txt").read_text("utf-8"), runs / name

    return run_command


@pytest.fixture(scope="module")
def whole(run) -> dict:
    """The end of a run that nothing disturbed."""
    code, shown, folder = run("whole", *FLAGS)
    assert code == 0, shown
    return end(folder)


AT_THE_END = pytest.param("at the end", marks=pytest.mark.slow)


@pytest.mark.parametrize("moment", ["in a save", AT_THE_END])
def test_killed_and_resumed(moment, run, whole):
    """It ends like a run that nothing disturbed, bit for bit, and its log has each step once, even
    if the last line was written by half."""
    code, shown, folder = run(moment, *FLAGS, moment=moment)
    assert code == -signal.SIGKILL, shown
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as log:
        log.write('{"step": 4, "compl')
    code, shown, folder = run(moment, "--resume")
    assert code == 0, shown
    ours = end(folder)
    for part in whole:
        assert ours[part] == whole[part], part


def test_ctrl_c(run, whole):
    """A line has the command that continues the run, and that command works."""
    code, shown, folder = run("stopped", *FLAGS, moment="Ctrl-C")
    assert code == 1 and "Traceback" not in shown, shown
    (line,) = [line for line in shown.splitlines() if "--resume" in line]
    flags = shlex.split(line.partition("python ")[2])[1:]
    assert str(folder) in " ".join(flags)
    code, shown, _ = run("stopped", *flags)
    assert code == 0, shown
    assert end(folder) == whole


def test_ctrl_c_before_the_run(types, monkeypatch):
    """There is nothing to resume, and nothing says so."""
    monkeypatch.setattr(Run, "begun", None)  # other tests have run in this process
    monkeypatch.setattr(Run, "make_folder", MagicMock(side_effect=KeyboardInterrupt))
    code, shown = types("grpo", "--run_dir=new")
    assert code == 1 and "--resume" not in shown


# Folders and seeds


def test_a_new_folder_and_the_same_numbers(tmp_path, monkeypatch, no_curves):
    """Without --run_dir a run makes its own folder, and the same seed gives the same metrics. One
    Config serves for several runs, as in a notebook's cell that is run again."""
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
    weights = "checkpoint/model.safetensors"
    assert Path("runs/reinforce-0-2", weights).read_bytes() == first[f"runs/reinforce-0/{weights}"]


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


def test_a_save_that_brings_code(tmp_path, monkeypatch, no_curves):
    monkeypatch.chdir(tmp_path)
    settings = SMALL | {"steps": 2, "run_dir": "run"}
    reinforce.train(reinforce.Config(**settings))
    settings |= {"steps": 4, "resume": True}
    torch.save({"policy": Harm()}, "run/state.pt")
    with pytest.raises(Exception, match="weights_only|Weights only"):
        reinforce.train(reinforce.Config(**settings))
    assert os.listdir() == ["run"]
