"""What can go wrong around a run, and the line that answers it.

Each test is a row of the table in FAULTS.md, which `python tests/test_faults.py` writes: the fault,
the answer as it is printed, with … for what differs from time to time, and the exit code.
"""

import contextlib
import errno
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import processors
from transformers import (
    BartConfig,
    BartForCausalLM,
    BertConfig,
    BertLMHeadModel,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

from algorithms import dapo, reinforce
from toy_env import arithmetic, checks, leave, save, take_over_ctrl_c
from toy_env.evaluate import report_samples

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
FAULTS_PAGE = ROOT / "tests/FAULTS.md"
SCRIPTS = ("reinforce", "ppo", "grpo", "dr_grpo", "dapo", "rloo", "maxrl", "gspo", "cispo")
SMALL = [
    "--steps=4", "--save_every=2", "--prompts_per_step=2", "--group_size=4", "--max_new_tokens=16", "--eval_problems=1",
    "--eval_every=0", "--device=cpu",
]  # fmt: skip
HEADINGS = ("Saves", "Folder and disk", "Stopping", "Training", "Settings", "Models")
FAULTS: dict[str, list[tuple[str, str, int]]] = {heading: [] for heading in HEADINGS}
posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no such path, signal or file descriptor")
RESUME = "to continue: python … --resume"
DIVERGED = "training has diverged; start a new run with a smaller --learning_rate"


def fault(heading: str, what: str, answer: str, code: int) -> Callable:
    """A test of one fault: its row of the table, and what the test is given as `answer` and `code` (the exit code)."""
    FAULTS[heading].append((what, answer, code))
    return pytest.mark.parametrize(("answer", "code"), [pytest.param(answer, code, id="")])


def table() -> str:
    """The table of faults as Markdown."""
    lines = ["| fault | answer | exit |", "|---|---|---|"]
    for heading, faults in FAULTS.items():
        lines.append(f"| **{heading}** | | |")
        for what, answer, code in faults:
            lines.append(f"| {what} | {f'`{answer}`' if answer else ''} | {code} |")
    return "\n".join(lines)


def with_table(text: str) -> str:
    """A page with the table between its marks."""
    return re.sub(r"(<!-- faults -->\n).*(<!-- /faults -->)", lambda m: f"{m[1]}{table()}\n{m[2]}", text, flags=re.S)


def says(answer: str, text: str) -> bool:
    """Whether a line of the text is the answer."""
    lines = [line.rpartition("\r")[2] for line in text.splitlines()]
    return any(re.fullmatch(re.escape(answer).replace("…", ".*"), line) for line in lines)


class User:
    """Types commands in a folder of its own, and sees what comes of them."""

    def __init__(self, monkeypatch, capsys) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def types(self, *argv: str, script: str = "reinforce") -> tuple[int, str]:
        """The exit code of a script, and all that it prints. What ends it early is one line."""
        self.monkeypatch.setattr(sys, "argv", [f"{script}.py", *map(str, argv)])
        try:
            import_module(f"algorithms.{script}").main()
            code = 0
        except SystemExit as stop:
            code = stop.code
        out, err = self.capsys.readouterr()
        lines = [line for line in err.rpartition("\r")[2].splitlines() if not line.startswith(script)]
        assert len(lines) == (code != 0), err
        return code, out + err

    def starts(self, *argv: str, script: str = "reinforce") -> tuple[int, str]:
        return self.types(*SMALL, "--run_dir=run", *argv, script=script)

    def resumes(self, *argv: str, script: str = "reinforce") -> tuple[int, str]:
        return self.types("--run_dir=run", "--resume", *argv, script=script)

    @contextlib.contextmanager
    def at_step(self, step: int, action: Callable):
        """Inside, `action` happens at the start of a step."""
        draw, calls = arithmetic.sample_problems, []

        def draw_and_act(*args):
            if hasattr(reinforce.Run.current, "bar"):  # in a step
                calls.append(1)
            if len(calls) == step:
                action()
            return draw(*args)

        with self.monkeypatch.context() as patch:
            patch.setattr(arithmetic, "sample_problems", draw_and_act)
            yield

    def is_stopped_in_step(self, step: int) -> None:
        with self.at_step(step, lambda: signal.raise_signal(signal.SIGINT)):
            assert self.starts()[0] == 130


@pytest.fixture
def user(tmp_path, monkeypatch, capsys, no_curves) -> User:
    monkeypatch.chdir(tmp_path)
    return User(monkeypatch, capsys)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict:
    """What a run leaves that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    settings = {flag.split("=")[0][2:]: flag.split("=")[1] for flag in SMALL}
    settings = {name: value if name == "device" else int(value) for name, value in settings.items()}
    reinforce.train(reinforce.Config(**settings, run_dir=str(folder)))
    return end(folder)


def end(folder: str | Path = "run") -> dict:
    """The end of a run: rows without wall times, reports, weights."""
    folder = Path(folder)
    assert (folder / "curves.png").exists() and not (folder / "write.tmp").exists()
    return {
        "rows": [row | {"seconds": 0} for row in rows(folder)],
        "results": json.loads((folder / "results.json").read_text("utf-8")),
        "samples": (folder / "samples.txt").read_text("utf-8"),
        "weights": (folder / "checkpoint/model.safetensors").read_bytes(),
    }


def rows(folder: str | Path = "run") -> list[dict]:
    def refuse(constant: str):
        raise AssertionError(f"{constant} is not JSON")

    lines = (Path(folder) / "metrics.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def on_disk(folder: str = "run") -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


def put_back(files: dict[str, bytes], folder: str = "run") -> None:
    shutil.rmtree(folder)
    for path, content in files.items():
        Path(path).parent.mkdir(exist_ok=True, parents=True)
        Path(path).write_bytes(content)


@contextlib.contextmanager
def process(*argv: str, program: str | None = None, **settings) -> Iterator[subprocess.Popen]:
    """A script in a process of its own, as its user starts it, which ends at the latest with the block."""
    command = [sys.executable, str(ROOT / "algorithms/reinforce.py"), *SMALL, "--run_dir=run", *argv]
    command = [sys.executable, "-m", program] if program else command
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}  # another number rounds otherwise
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": os.environ} | settings
    settings["env"] = settings["env"] | threads
    with subprocess.Popen(command, **settings) as run:
        try:
            yield run
        finally:
            run.kill()


# ---------------------------------------------------------------------- saves

DAMAGE = {
    "cut to half": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "one byte short": lambda data: data[:-1],
    "one byte more": lambda data: data + b"\0",
    "a block of zeros": lambda data: data[:4096] + bytes(4096) + data[8192:],
    "all zeros": lambda data: bytes(len(data)),
}


@fault(
    "Saves",
    "the last save is damaged: flipped bits, cut short, zeroed",
    "state-000004-….pt is not used: its bytes do not match the checksum in its name; continuing from step 2",
    0,
)
def test_a_damaged_save_is_never_trained_on(user, whole, answer, code):
    user.starts()
    Path("run/results.json").unlink()
    kept = on_disk()
    last, _ = save.saves(Path("run"))
    data = last.read_bytes()
    for i in range(100):  # bits all over the file: noticed
        at = i * len(data) // 100
        last.write_bytes(data[:at] + bytes([data[at] ^ (1 << i % 8)]) + data[at + 1 :])
        state, problems = save.newest_save(Path("run"))
        assert state["step"] == 2 and len(problems) == 1
    for name, damage in DAMAGE.items():
        put_back(kept)
        last.write_bytes(damage(data))
        status, shown = user.resumes()
        assert status == code and says(answer, shown) and end() == whole, name
        assert [save.step_of(path) for path in save.saves(Path("run"))] == [4, 2]


@fault(
    "Saves",
    "both that are kept are damaged, or missing",
    "error: 'run' has no save to resume from…; start a new run in another --run_dir",
    2,
)
def test_without_a_whole_save_nothing_is_changed(user, answer, code):
    user.starts()
    for path in save.saves(Path("run")):
        path.write_bytes(path.read_bytes()[:-100])
    for _ in range(2):
        before = on_disk()
        for argv in ([], ["--steps=8"]):
            status, shown = user.resumes(*argv)
            assert status == code and says(answer, shown) and on_disk() == before
        for path in save.saves(Path("run")):
            path.unlink()


class Hostile:
    """Unpickled, it makes a folder."""

    def __reduce__(self):
        return os.mkdir, ("harm",)


def replace_last_save(write: Callable[[Path], None]) -> None:
    """Another file in place of the last save, with the right checksum."""
    save.saves(Path("run"))[0].unlink()
    write(Path("forged"))
    os.replace("forged", f"run/state-000004-{save.digest(Path('forged'))}.pt")


@fault(
    "Saves",
    "it is a pickle that would run code",
    "state-000004-….pt is not used: it holds something else than tensors and plain values; continuing from step 2",
    0,
)
def test_a_hostile_pickle_is_not_opened(user, whole, answer, code):
    user.starts()
    state = torch.load(save.saves(Path("run"))[0])
    ways = (
        lambda path: torch.save(state | {"x": Hostile()}, path),
        lambda path: path.write_bytes(pickle.dumps(Hostile())),
    )
    for write in ways:
        Path("run/results.json").unlink()
        replace_last_save(write)
        status, shown = user.resumes()
        assert status == code and says(answer, shown) and end() == whole and not Path("harm").exists()


@fault(
    "Saves",
    "a weight in it is not finite",
    "state-000004-….pt is not used: policy.model.norm.weight is not finite; continuing from step 2",
    0,
)
def test_a_save_that_is_not_finite_is_not_used(user, whole, answer, code):
    user.starts()
    state = torch.load(save.saves(Path("run"))[0])
    state["policy"]["model.norm.weight"][3] = float("nan")
    replace_last_save(lambda path: torch.save(state, path))
    status, shown = user.resumes("--save_every=4")
    assert status == code and says(answer, shown) and end() == whole


@fault(
    "Saves",
    "it holds less than a save does",
    "state-000004-….pt is not used: it is not the save of a run of this version; …",
    0,
)
def test_a_save_with_missing_parts_is_not_used(user, whole, answer, code):
    user.starts()
    state = torch.load(save.saves(Path("run"))[0])
    del state["before"]
    replace_last_save(lambda path: torch.save(state, path))
    status, shown = user.resumes("--save_every=4")
    assert status == code and says(answer, shown) and end() == whole
    state = torch.load(save.saves(Path("run"))[0])
    del state["optimizer"]
    replace_last_save(lambda path: torch.save(state, path))
    status, shown = user.resumes("--steps=8")
    assert status == 2 and says("error: the save in 'run' does not fit this model: 'optimizer'", shown)


def test_an_optimizer_of_another_shape_is_not_used(user):
    """AdamW would read past the end of its tensors."""
    user.starts()
    state = torch.load(save.saves(Path("run"))[0])
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(3)
    replace_last_save(lambda path: torch.save(state, path))
    status, shown = user.resumes("--steps=8")
    assert status == 2 and "does not fit this model: exp_avg of the optimizer is (3,), not (" in shown


@fault(
    "Saves",
    "it was made by another script",
    "error: script was 'reinforce' when 'run' was saved and is 'ppo' now; a resumed run keeps its settings",
    2,
)
def test_another_script(user, answer, code):
    user.starts()
    before = on_disk()
    status, shown = user.resumes("--steps=8", "--num_minibatches=1", script="ppo")
    assert status == code and says(answer, shown) and on_disk() == before


@fault(
    "Saves",
    "it was made from another model, or the model in that folder has changed",
    "error: the weights of --model model are not those that 'run' started from; put them back, or start a new run",
    2,
)
def test_another_model(user, base, answer, code):
    for part in base:
        part.save_pretrained("model")
    assert user.starts("--model=model")[0] == 0
    weights = load_file("model/model.safetensors")
    weights["model.norm.weight"] += 1e-3
    save_file(weights, "model/model.safetensors", metadata={"format": "pt"})
    before = on_disk()
    status, shown = user.resumes("--steps=8")
    assert status == code and says(answer, shown) and on_disk() == before


@fault(
    "Saves",
    "a setting in `config.json` was edited by hand",
    "error: learning_rate was 0.002 when 'run' was saved and is 0.1 now; a resumed run keeps its settings",
    2,
)
def test_an_edited_setting(user, answer, code):
    user.starts("--learning_rate=0.002")
    config = json.loads(Path("run/config.json").read_text("utf-8"))
    Path("run/config.json").write_text(json.dumps(config | {"learning_rate": 0.1}), "utf-8")
    before = on_disk()
    status, shown = user.resumes("--steps=8")
    assert status == code and says(answer, shown) and on_disk() == before


def test_a_setting_that_may_change_is_said(user):
    user.starts()
    status, shown = user.resumes("--steps=6", "--save_every=3")
    assert status == 0 and says("steps was 4 and is 6 now", shown) and says("save_every was 2 and is 3 now", shown)


def test_a_save_that_cannot_be_read_now_is_kept(user, whole):
    """For want of memory, or of the right to read it, it is not taken for damaged, and nothing is changed."""
    user.is_stopped_in_step(3)
    before, honest = on_disk(), torch.load
    for error in (
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        PermissionError(13, "Permission denied"),
    ):

        def fail(*_, error=error, **__):
            raise error

        user.monkeypatch.setattr(torch, "load", fail)
        assert user.resumes()[0] == 1 and on_disk() == before
    user.monkeypatch.setattr(torch, "load", honest)
    assert user.resumes()[0] == 0 and end() == whole


@fault("Saves", "to a value of the wrong type", "error: … in 'run/config.json' must be like …, not …", 2)
def test_an_edited_setting_of_the_wrong_type(user, answer, code):
    user.starts()
    config = json.loads(Path("run/config.json").read_text("utf-8"))
    for name in (field for field in config if field not in ("script", "run_dir", "resume")):
        for value in ("x", 1, 1.5, None, [], [1.5], {}, True):
            if type(value) is type(config[name]) or (type(config[name]), value) in ((float, 1), (list, [1.5])):
                continue
            Path("run/config.json").write_text(json.dumps(config | {name: value}), "utf-8")
            before = on_disk()
            status, shown = user.resumes("--steps=8")
            assert status == code and (says(answer, shown) or "--levels" in shown), (name, value)
            assert on_disk() == before


@fault("Saves", "it is not JSON any more", "error: 'run/config.json' cannot be read as JSON settings (…); repair it", 2)
def test_an_unreadable_config(user, whole, answer, code):
    """Without the file, the settings are those of the command line, compared with those in the save."""
    user.is_stopped_in_step(3)
    for content in (b"", b"{", b"[1]", b"\0" * 100, b"null", b"[" * 100_000, b"\xff\xfe"):
        Path("run/config.json").write_bytes(content)
        status, shown = user.resumes()
        assert status == code and says(answer, shown)
    Path("run/config.json").unlink()
    status, shown = user.resumes()
    assert status == 2 and "prompts_per_step was 2 when 'run' was saved and is 32 now" in shown
    assert user.types(*SMALL, "--run_dir=run", "--resume")[0] == 0 and end() == whole


@fault(
    "Saves",
    "rows of `metrics.jsonl` are missing or unreadable",
    "metrics.jsonl lacks 1 of 3 rows, first of step 1",
    0,
)
def test_metrics_are_a_log(user, whole, answer, code):
    """What is behind the save is cut off and made again; what is missing before it is said, and the rest is kept."""
    user.is_stopped_in_step(3)
    kept = on_disk()
    one, two, three = Path("run/metrics.jsonl").read_text("utf-8").splitlines(keepends=True)
    for behind in ('{"step": 4, "loss": 1', three.replace("3", "4", 1), "\0" * 512, "not json\n", "[]\n{}\n3\n", three):
        put_back(kept)
        Path("run/metrics.jsonl").write_text(one + two + three + behind, "utf-8")
        status, shown = user.resumes()
        assert status == 0 and "lacks" not in shown and end() == whole, behind
    for first in (
        "",
        "\0" * len(one),
        one[:50] + "\n",
        '{"step": 1, "loss": NaN}\n',
        '{"step": 1}\n',  # a row without its other keys
        one.replace('"accuracy"', '"accuracz"'),  # a flipped bit
        one.replace('"seconds": 0', '"seconds": 1'),
        "[" * 10**5 + "\n",
    ):
        put_back(kept)
        Path("run/metrics.jsonl").write_text(first + two + three, "utf-8")
        status, shown = user.resumes()
        assert status == code and says(answer, shown), first
        assert end() == whole | {"rows": whole["rows"][1:]}
    put_back(kept)
    Path("run/metrics.jsonl").write_text(
        (one + two + three).replace('"seconds": ', '"seconds": 1'), "utf-8"
    )  # of another run
    assert says(answer.replace("1 of", "3 of"), user.resumes()[1])
    (Path("run") / "metrics.jsonl").unlink()  # and of a run that had finished
    Path("run/results.json").unlink()
    status, shown = user.resumes()
    assert status == 0 and says("metrics.jsonl lacks 4 of 4 rows, first of step 1", shown)


@fault(
    "Saves",
    "`metrics.jsonl` cannot be read now",
    "error: cannot read 'run/metrics.jsonl' (…)",
    1,
)
def test_metrics_that_cannot_be_read_now_are_kept(user, whole, answer, code):
    user.is_stopped_in_step(3)
    Path("run/metrics.jsonl").rename("kept")
    Path("run/metrics.jsonl").mkdir()
    before = on_disk()
    status, shown = user.resumes()
    assert status == code and says(answer, shown) and on_disk() == before
    Path("run/metrics.jsonl").rmdir()
    Path("kept").rename("run/metrics.jsonl")
    assert user.resumes()[0] == 0 and end() == whole


# ---------------------------------------------------------------------- folder and disk


@fault(
    "Folder and disk",
    "another process is writing there",
    "error: another process (pid …) is writing to 'run'; wait until it has ended, or choose another --run_dir",
    2,
)
def test_one_writer(user, answer, code):
    """Whether the second starts or resumes. The lock is gone with the first, however that ends."""
    with process("--steps=100000", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        while not Path("run/metrics.jsonl").exists():
            time.sleep(0.05)
        for command in (user.starts, user.resumes):
            status, shown = command("--steps=1")
            assert status == code and says(answer.replace("…", str(first.pid)), shown)
    status, shown = user.resumes("--steps=0")
    assert status == 2 and "another process" not in shown


@fault(
    "Folder and disk",
    "there is a run, and no `--resume`",
    "error: run folder 'run' exists and no run overwrites another; choose another --run_dir, or add --resume to continue "
    "that run",
    2,
)
def test_no_run_overwrites_another(user, answer, code):
    user.starts()
    before = on_disk()
    status, shown = user.starts()
    assert status == code and says(answer, shown) and on_disk() == before


@fault(
    "Folder and disk",
    "`--resume`, and there is no run",
    "error: there is no run folder 'run'; leave out --resume to start a run there",
    2,
)
def test_resume_without_a_run(user, answer, code):
    status, shown = user.resumes()
    assert status == code and says(answer, shown) and not Path("run").exists()


WRITTEN = ("lock.pid", "config.json", "state-000000", "metrics.jsonl", "state-000004", "checkpoint", "samples.txt",
           "curves.png", "results.json")  # fmt: skip


@fault(
    "Folder and disk",
    "the disk is full, at any write; or over its quota, or read-only",
    f"error: cannot write 'run/…' (No space left on device); saved up to step …; {RESUME}",
    1,
)
@pytest.mark.parametrize("name", WRITTEN)
def test_a_full_disk(name, user, whole, answer, code):
    """When there is space again, the run that is resumed ends like the one that never met the limit."""
    replace, sync = os.replace, os.fsync

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def no_place_for(old, new) -> None:
        full() if Path(new).name.startswith(name) else replace(old, new)

    def no_third_row(descriptor) -> None:
        log = Path("run/metrics.jsonl")
        is_log = log.exists() and os.path.samestat(log.stat(), os.fstat(descriptor))
        full() if is_log and name == "metrics.jsonl" and len(rows()) == 3 else sync(descriptor)

    with user.monkeypatch.context() as patch:
        patch.setattr(os, "replace", no_place_for)
        patch.setattr(os, "fsync", no_third_row)
        status, shown = user.starts()
    assert status == code and f"error: cannot write 'run/{name}" in shown and "write.tmp" not in os.listdir("run")
    assert WRITTEN.index(name) < 3 or says(answer, shown)
    assert (user.resumes if WRITTEN.index(name) > 1 else user.starts)()[0] == 0 and end() == whole


@pytest.mark.parametrize("kind", [errno.EROFS, errno.EDQUOT, errno.EACCES, errno.EIO])
def test_a_folder_that_becomes_read_only_or_meets_its_quota(kind, user, whole):
    def refuse(old, new) -> None:
        raise OSError(kind, os.strerror(kind))

    with user.monkeypatch.context() as patch, user.at_step(3, lambda: patch.setattr(os, "replace", refuse)):
        status, shown = user.starts()
    reason = os.strerror(kind)
    assert status == 1 and says(
        f"error: cannot write 'run/state-000004.pt' ({reason}); saved up to step 2; {RESUME}", shown
    )
    assert user.resumes()[0] == 0 and end() == whole


def test_a_file_that_grows_over_a_limit(user, whole):
    """The same from the system itself, in a process that may write files of a megabyte, which a save exceeds."""
    resource = pytest.importorskip("resource")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, resource.RLIM_INFINITY))

    with process(preexec_fn=limit) as run:
        err = run.communicate()[1]
    assert run.returncode == 1 and says(
        f"error: cannot write 'run/state-000002.pt' (File too large); saved up to step 0; {RESUME}", err
    )
    assert user.resumes()[0] == 0 and end() == whole


@fault(
    "Folder and disk",
    "the folder is deleted during the run",
    "error: cannot write 'run/metrics.jsonl' (No such file or directory); the folder 'run' is gone: start a new run",
    1,
)
def test_a_folder_that_is_deleted(user, answer, code):
    with user.at_step(3, lambda: shutil.rmtree("run")):
        status, shown = user.starts()
    assert status == code and says(answer, shown) and not Path("run").exists()


@posix
@fault(
    "Folder and disk",
    "it cannot be made",
    "error: cannot make the run folder '/dev/null/run' (Not a directory); choose another with --run_dir",
    2,
)
def test_a_folder_that_cannot_be_made(user, answer, code):
    status, shown = user.types(*SMALL, "--run_dir=/dev/null/run")
    assert status == code and says(answer, shown)


@posix
@fault(
    "Folder and disk",
    "nobody reads the output any more (`\\| head -1`)",
    f"error: cannot print (Broken pipe); saved up to step 0; {RESUME}",
    1,
)
def test_output_that_nobody_reads(user, whole, answer, code):
    with process() as run:
        run.stdout.readline()
        run.stdout.close()
        err = run.stderr.read()
    assert run.returncode == code and says(answer, err) and "Exception" not in err
    assert user.resumes()[0] == 0 and end() == whole
    shutil.rmtree("run")
    if not Path("/dev/full").exists():  # Linux has it
        return
    with open("/dev/full", "w", encoding="utf-8") as full, process(stdout=full) as run:
        err = run.stderr.read()
    assert run.returncode == code and "error: cannot print (No space left on device); nothing is saved yet" in err
    assert "Exception" not in err and user.resumes()[0] == 0 and end() == whole


@posix
@fault(
    "Folder and disk",
    "standard output is closed",
    "error: standard output is closed; send it somewhere, for example > run.log",
    1,
)
def test_closed_output(user, answer, code):
    with process(preexec_fn=lambda: os.close(1), stdout=None) as run:
        err = run.stderr.read()
    assert run.returncode == code and says(answer, err) and err.count("\n") == 1 and not Path("run").exists()
    with process(preexec_fn=lambda: os.close(2), stdout=subprocess.DEVNULL, stderr=None) as run:
        assert run.wait() == 0
    assert end()["rows"]


def test_a_terminal_that_knows_only_ascii(user, whole):
    """Files are UTF-8 all the same, and what it cannot show is replaced."""
    old = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "PYTHONIOENCODING": ""}
    code = "from toy_env.cli import prepare_output; prepare_output(); print('caf\\xe9')"
    shown = subprocess.run([sys.executable, "-c", code], env=os.environ | old, capture_output=True)
    assert shown.stdout == b"caf?\n"
    with process(env=os.environ | old) as run:
        _, err = run.communicate()
    assert run.returncode == 0 and end() == whole, err


def test_an_escape_sequence_in_a_completion_does_not_reach_the_terminal():
    completion = {"prompt": "1+2?", "verdict": "right", "completion": "\x1b[2J\u2261 caf\xe9\x00#3"}
    line = "  1+2?              \ufffd[2J\u2261 caf\xe9\ufffd#3   (right)"
    assert report_samples({"completions": [completion]}) == line


# ---------------------------------------------------------------------- stopping

FAULTS["Stopping"].append(("killed at any moment, then `--resume` (`test_kills.py`)", "Resuming after step …", 0))


@fault("Stopping", "killed before its first save, then `--resume`: it begins anew", "", 0)
@pytest.mark.parametrize("left", [[], ["lock", "lock.pid"], ["lock", "config.json", "write.tmp"]])
def test_a_run_without_a_save_begins_anew(left, user, whole, answer, code):
    user.starts()
    for path in Path("run").iterdir():
        if path.name not in left:
            save.remove(path)
    for name in left:
        Path("run", name).touch()
    status, shown = user.resumes() if "config.json" in left else user.starts()
    assert status == code and "Resuming" not in shown and end() == whole


def stop_in_step_3(number: int, user: User, whole: dict, answer: str, code: int) -> None:
    """The step ends and is saved; what is resumed is the run that was not stopped; the old handler is back."""
    before = signal.getsignal(number)
    with user.at_step(3, lambda: signal.raise_signal(number)):
        status, shown = user.starts()
    assert status == code and says(answer, shown) and len(rows()) == 3 and signal.getsignal(number) == before
    assert user.resumes()[0] == 0 and end() == whole


@fault("Stopping", "Ctrl-C in a step", f"stopped after step 3; saved up to step 3; {RESUME}", 130)
def test_ctrl_c(user, whole, answer, code):
    stop_in_step_3(signal.SIGINT, user, whole, answer, code)


@fault("Stopping", "SIGTERM (a job that is preempted)", f"stopped after step 3; saved up to step 3; {RESUME}", 143)
def test_sigterm(user, whole, answer, code):
    stop_in_step_3(signal.SIGTERM, user, whole, answer, code)


@posix
@fault("Stopping", "SIGHUP (a terminal that is closed)", f"stopped after step 3; saved up to step 3; {RESUME}", 129)
def test_sighup(user, whole, answer, code):
    """Under nohup, which ignores it, the run goes on."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever these tests run under
    try:
        stop_in_step_3(signal.SIGHUP, user, whole, answer, code)
        shutil.rmtree("run")
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with user.at_step(3, lambda: signal.raise_signal(signal.SIGHUP)):
            assert user.starts()[0] == 0 and end() == whole
    finally:
        signal.signal(signal.SIGHUP, before)


@fault(
    "Stopping", "a second Ctrl-C: the step is not waited for", f"stopped in step 3; saved up to step 2; {RESUME}", 130
)
def test_a_second_ctrl_c(user, whole, answer, code):
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with user.at_step(3, twice):
        status, shown = user.starts()
    assert status == code and says(answer, shown)
    assert user.resumes()[0] == 0 and end() == whole


def test_a_signal_while_a_run_ends_does_not_lose_the_line(user, whole):
    saved = reinforce.Run.saved

    def interrupted(run) -> str:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        return saved(run)

    with user.monkeypatch.context() as patch, user.at_step(3, lambda: signal.raise_signal(signal.SIGINT)):
        patch.setattr(reinforce.Run, "saved", interrupted)
        status, shown = user.starts()
    assert status == 130 and says(f"stopped after step 3; saved up to step 3; {RESUME}", shown)
    assert user.resumes()[0] == 0 and end() == whole


@fault("Stopping", "Ctrl-C in the first evaluation", f"stopped; nothing is saved yet; {RESUME}", 130)
def test_ctrl_c_in_the_first_evaluation(user, whole, answer, code):
    with user.monkeypatch.context() as patch:
        patch.setattr("toy_env.run.held_out_report", lambda *_, **__: signal.raise_signal(signal.SIGINT))
        status, shown = user.starts()
    assert status == code and says(answer, shown)
    assert user.resumes()[0] == 0 and end() == whole


@fault("Stopping", "SIGTERM in the last evaluation, or while plotting", f"stopped; saved up to step 4; {RESUME}", 143)
@pytest.mark.parametrize("place", ["toy_env.run.report_table", "toy_env.plots.draw_curves"])
def test_sigterm_at_the_end(place, user, whole, answer, code):
    with user.monkeypatch.context() as patch:
        patch.setattr(place, lambda *_, **__: signal.raise_signal(signal.SIGTERM))
        status, shown = user.starts()
    assert status == code and says(answer, shown)
    assert user.resumes()[0] == 0 and end() == whole


def test_a_finished_run_that_is_continued_and_stopped_at_its_end(user):
    """The report of its first end does not pass for that of its second."""
    user.starts()
    with user.monkeypatch.context() as patch:
        patch.setattr("toy_env.run.report_table", lambda *_, **__: signal.raise_signal(signal.SIGINT))
        assert user.resumes("--steps=6")[0] == 130
    assert not Path("run/results.json").exists()
    assert user.resumes()[0] == 0 and len(end()["rows"]) == 6


@posix
@fault("Stopping", "Ctrl-C before the start", "stopped…", 130)
@pytest.mark.parametrize("program", [None, "toy_env.evaluate"])
def test_ctrl_c_during_the_imports(program, user, answer, code):
    for wait in (0.15, 0.6, 1.2, 2.0):
        with process(program=program) as run:
            time.sleep(wait)
            run.send_signal(signal.SIGINT)
            _, err = run.communicate()
        assert run.returncode in (code, -signal.SIGINT), err  # a shell calls both 130
        assert err.count("\n") == 1 and says(answer, err), (wait, err)
        shutil.rmtree("run", ignore_errors=True)


def test_only_a_script_that_starts_takes_over_ctrl_c():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        take_over_ctrl_c("algorithms.grpo")
        with ThreadPoolExecutor() as threads:
            threads.submit(take_over_ctrl_c).result()  # there it would be an error
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        take_over_ctrl_c()
        assert signal.getsignal(signal.SIGINT) is leave
    finally:
        signal.signal(signal.SIGINT, before)


# ---------------------------------------------------------------------- training


def test_a_readers_own_error_shows_its_traceback(user, monkeypatch):
    """In what the check of a model runs first, in a step, and in what is drawn at the end."""

    def typo(*_, **__):
        return torch.log_sofmax

    for place in ("toy_env.rollout.token_logps", "algorithms.reinforce.policy_loss", "toy_env.plots.draw_curves"):
        with monkeypatch.context() as patch, pytest.raises(AttributeError, match="log_sofmax"):
            patch.setattr(place, typo)
            user.starts(f"--run_dir={place}")


@pytest.mark.parametrize("folder", ["transformers", "torch", "modules"])
def test_a_readers_error_is_his_wherever_the_clone_lies(folder):
    typo = compile("torch.log_sofmax", f"/home/me/{folder}/sigma-ladder/toy_env/rollout.py", "exec")
    with pytest.raises(AttributeError, match="log_sofmax"), checks.blaming_the_model("give another one"):
        exec(typo, {"torch": torch})


@fault("Training", "the loss or the gradient is not finite", f"error: loss is nan in step 3: {DIVERGED}", 1)
def test_a_loss_that_is_not_finite(user, answer, code):
    loss = reinforce.policy_loss
    with user.at_step(
        3, lambda: user.monkeypatch.setattr(reinforce, "policy_loss", lambda **x: loss(**x) * float("nan"))
    ):
        status, shown = user.starts()
    assert status == code and says(answer, shown)
    state, problems = save.newest_save(Path("run"))
    assert state["step"] == len(rows()) == 2 and not problems


@fault("Training", "a logit is not finite", f"error: the policy's logits are not finite: {DIVERGED}", 1)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_logit_that_is_not_finite(bad, user, answer, code):
    def spoil() -> None:
        with torch.no_grad():
            reinforce.Run.current.policy.model.embed_tokens.weight[:, 3] = bad

    with user.at_step(3, spoil):
        status, shown = user.starts()
    assert status == code and says(answer, shown) and save.newest_save(Path("run"))[0]["step"] == 2


@fault(
    "Training",
    "a weight is not finite when it is to be saved",
    f"error: policy.model.norm.weight is not finite after step 4, so it is not saved: {DIVERGED}",
    1,
)
def test_a_weight_that_is_not_finite_is_not_saved(user, answer, code):
    log = reinforce.Run.log

    def log_and_spoil(run, step, **batch) -> None:
        log(run, step, **batch)
        if step == 4:
            with torch.no_grad():
                run.policy.model.norm.weight[5] = float("inf")

    user.monkeypatch.setattr(reinforce.Run, "log", log_and_spoil)
    status, shown = user.starts()
    assert status == code and says(answer, shown) and save.newest_save(Path("run"))[0]["step"] == 2


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("rate", ["1e4", "1e38"])
def test_a_run_that_diverges_leaves_a_finite_save_and_json(script, rate, user):
    flags = [] if script == "reinforce" else ["--num_minibatches=2"]
    status, shown = user.starts(f"--learning_rate={rate}", "--warmup_steps=0", *flags, script=script)
    assert status == 0 or (status == 1 and DIVERGED in shown)
    assert rate == "1e4" or status == 1
    state, problems = save.newest_save(Path("run"))
    assert not problems and not any(save.not_finite(state))
    if Path("run/metrics.jsonl").exists():  # there is none, if the first step diverged
        assert len(rows()) >= state["step"]


@fault(
    "Training",
    "no completion is right for 20 steps (said once)",
    "No completion was right in 20 steps: nothing is learnt from rewards that are all 0",
    0,
)
@pytest.mark.parametrize("module", [reinforce, dapo])
def test_a_collapsed_run_says_so_once(module, user, answer, code):
    """And DAPO, which then finds no group to train on, ends like the others. Resumed, it is not said again."""
    user.monkeypatch.setattr(arithmetic, "reward", lambda *_: 0.0)
    script = module.__name__.rpartition(".")[2]
    flags = ["--max_draws=2"] if module is dapo else []
    status, shown = user.starts("--steps=25", *flags, script=script)
    assert status == code and shown.count(answer) == 1 and len(rows()) == 25
    assert answer not in user.resumes("--steps=46", script=script)[1]


@fault(
    "Training",
    "out of memory, on a GPU or not",
    f"error: out of memory; lower --max_tokens_per_pass (now 16384), or add --gradient_checkpointing, or start a new run with a smaller --group_size (now 4); saved up to step 2; {RESUME}",
    1,
)
def test_out_of_memory(user, whole, answer, code):
    def by_torch() -> None:
        torch.empty(10**15)  # what the system refuses

    def by_python() -> None:
        bytearray(10**15)

    def on_a_gpu() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 EiB.")

    for way in (by_torch, by_python, on_a_gpu):
        with user.at_step(3, way):
            status, shown = user.starts()
        assert status == code and says(answer, shown)
        assert user.resumes("--max_tokens_per_pass=8000")[0] == 0 and end() == whole
        shutil.rmtree("run")

    def by_a_bug() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with user.at_step(3, by_a_bug), pytest.raises(RuntimeError, match="illegal memory access"):
        user.starts()


# ---------------------------------------------------------------------- settings

BIG = 10**30
SETTINGS = {
    "--seed=18446744073709551616": "error: --seed must be 2**63 - 1 or less, not 18446744073709551616",
    f"--group_size={BIG}": f"error: --group_size must be 2**63 - 1 or less, not {BIG}",
    f"--max_tokens_per_pass={BIG}": f"error: --max_tokens_per_pass must be 2**63 - 1 or less, not {BIG}",
    "--max_new_tokens=1000000000": "error: --prompts_per_step x --group_size x --max_new_tokens must be 2147483648 tokens or fewer",
    "--prompts_per_step=1000000000000": "error: --prompts_per_step x --group_size x --max_new_tokens must be 2147483648 tokens or fewer",
    "--task algebra": "error: there is no task 'algebra'; choose arithmetic or expressions, or a "
    "module of your own with a dot in its name",
    "--task run": "error: 'run' is no task: it has no LEVELS; see toy_env/README.md, A task of your own",
    "--task expressions --levels 2": "error: --levels: level 2 does not exist; choose from 1",
    "--levels 1 1": "error: --levels: level 1 is given twice; choose from 1 2 3 4",
    "--dtype=float16": "error: --dtype must be float32 or bfloat16, not 'float16'",
    "--device=meta": "error: device 'meta' is not available here; choose auto, cpu, cuda or mps",
    "--run_dir=run-\udcff": "error: --run_dir must be valid UTF-8, not 'run-\\udcff'; choose another name",
    "--temperature=1e-45": "error: --temperature must be 0.001 or more, not 1e-45",
    "--max_new_tokens=200": "error: a prompt of 16 tokens and a completion of 200 (--max_new_tokens) need 216 positions, and the "
    "model has 128; give a smaller --max_new_tokens or another model",
}  # fmt: skip
FAULTS["Settings"] += [
    (f"`{flag}`", answer, 2) for flag, answer in SETTINGS.items() if flag.isascii() and str(BIG) not in flag
]


@pytest.mark.parametrize("flag", SETTINGS)
def test_settings_that_make_no_sense(flag, user):
    status, shown = user.starts(*flag.split())
    assert status == 2 and shown == SETTINGS[flag] + "\n" and not Path("run").exists()


def test_more_held_out_problems_than_there_are_mean_all_of_them(user):
    assert user.starts("--eval_problems=768", "--levels", "1", "--steps=1")[0] == 0
    assert json.loads(Path("run/results.json").read_text("utf-8"))["before"]["problems"] == 767


def test_the_largest_settings_that_are_accepted(user):
    largest = str(2**63 - 1)
    flags = ("seed", "max_tokens_per_pass", "save_every", "eval_every")
    assert user.starts(*(f"--{name}={largest}" for name in flags), "--steps=1")[0] == 0


# ---------------------------------------------------------------------- models


@pytest.fixture
def gpt2(letters) -> Path:
    """The folder of a small GPT-2 that can be trained."""
    config = GPT2Config(
        vocab_size=len(letters), n_embd=16, n_layer=1, n_head=2, n_positions=256, bos_token_id=1, eos_token_id=2
    )
    torch.manual_seed(0)
    GPT2LMHeadModel(config).save_pretrained("model")
    letters.save_pretrained("model")
    return Path("model")


def edit(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


def refused(user: User, answer: str, code: int, *argv: str) -> None:
    status, shown = user.starts("--model=model", *argv)
    assert status == code and says(answer, shown), shown
    assert shown.count("\n") == 1 and not Path("run").exists()


@fault(
    "Models",
    "it brings code of its own",
    "error: cannot load a causal language model from 'model': it needs Python code of its own, which is not run here; give "
    "a model that transformers knows",
    2,
)
def test_a_models_own_code_is_not_run(user, gpt2, answer, code):
    """Nor is the user asked: at transformers' prompt a "y" would run it. Its tokenizer's is passed over."""
    user.monkeypatch.setattr("builtins.input", lambda *_: "y")
    (gpt2 / "own.py").write_text("import os\nos.mkdir('harm')\n", "utf-8")
    tokenizer = (gpt2 / "tokenizer_config.json").read_text("utf-8")
    edit(gpt2 / "tokenizer_config.json", tokenizer_class="Own", auto_map={"AutoTokenizer": [None, "own.Own"]})
    user.starts("--model=model", "--run_dir=own_tokenizer")
    assert not Path("harm").exists()
    (gpt2 / "tokenizer_config.json").write_text(tokenizer, "utf-8")
    own = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    edit(gpt2 / "config.json", model_type="own", auto_map=own)
    refused(user, answer, code)
    assert not Path("harm").exists()


@fault(
    "Models",
    "its weights are a pickle",
    "error: cannot load a causal language model from 'model': its weights are a pickle, which can run code when it is opened; "
    "if you trust it, convert it: python -c …",
    2,
)
def test_pickled_weights_are_refused_with_the_way_to_convert_them(user, gpt2, answer, code):
    torch.save(load_file(gpt2 / "model.safetensors"), gpt2 / "pytorch_model.bin")
    (gpt2 / "model.safetensors").unlink()
    user.monkeypatch.setattr(sys, "argv", ["reinforce.py"])
    status, shown = user.starts("--model=model")
    assert status == code and says(answer, shown) and not Path("run").exists()
    command = shown.strip().partition("python -c ")[2].strip('"')
    subprocess.run([sys.executable, "-c", command], check=True, capture_output=True)
    assert user.starts("--model=model")[0] == 0


@fault("Models", "its weights are damaged", "error: cannot load a causal language model from 'model': …", 2)
def test_damaged_weights(user, gpt2, answer, code):
    data = (gpt2 / "model.safetensors").read_bytes()
    for part in (b"", data[:4], data[: len(data) // 2], b"\xff" * len(data)):
        (gpt2 / "model.safetensors").write_bytes(part)
        refused(user, answer, code)


@fault(
    "Models",
    "some are missing",
    "error: 'model' lacks 1 weights of its model, such as transformer.h.0.mlp.c_fc.weight; give a complete causal language model",
    2,
)
def test_missing_weights(user, gpt2, answer, code):
    weights = load_file(gpt2 / "model.safetensors")
    del weights["transformer.h.0.mlp.c_fc.weight"]
    save_file(weights, gpt2 / "model.safetensors", metadata={"format": "pt"})
    refused(user, answer, code)


@fault("Models", "some are not finite", "error: the model's logits are not finite; give another model", 2)
def test_weights_that_are_not_finite(user, gpt2, answer, code):
    weights = load_file(gpt2 / "model.safetensors")
    weights["transformer.ln_f.weight"][0] = float("nan")
    save_file(weights, gpt2 / "model.safetensors", metadata={"format": "pt"})
    refused(user, answer, code)


@fault(
    "Models",
    "it is an encoder",
    "error: the model's predictions depend on later tokens, as an encoder's do; give a causal one",
    2,
)
def test_an_encoder(user, gpt2, letters, answer, code):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(letters), initializer_range=0.4, **sizes)
    BertLMHeadModel(config).save_pretrained("model")
    refused(user, answer, code)


@fault(
    "Models",
    "it has an encoder and a decoder",
    "error: cannot load a causal language model from 'model': Unrecognized configuration class …",
    2,
)
def test_an_encoder_and_a_decoder(user, gpt2, letters, answer, code):
    config = T5Config(vocab_size=len(letters), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained("model")
    refused(user, answer, code)


@fault(
    "Models",
    "what it predicts depends on the batch, as where positions ignore padding",
    "error: the model's log-probabilities change with the batch (by …), so sampling and training would disagree; give another one",
    2,
)
def test_a_model_whose_positions_ignore_padding(user, gpt2, letters, answer, code):
    """BART's. `test_families.py` tries every family that transformers has."""
    sizes = {"d_model": 16, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 32}
    config = BartConfig(vocab_size=len(letters), init_std=0.4, max_position_embeddings=256, eos_token_id=2, **sizes)
    torch.manual_seed(0)
    BartForCausalLM(config).save_pretrained("model")
    refused(user, answer, code)


@fault("Models", "its gradient is not finite", "error: the model's gradient is not finite, …; give another model", 2)
def test_a_gradient_that_is_not_finite(user, gpt2, letters, answer, code):
    """As of a norm of a zero embedding."""
    backward = torch.Tensor.backward

    def not_a_number(loss, **how) -> None:
        backward(loss * float("inf"), **how)

    user.monkeypatch.setattr(torch.Tensor, "backward", not_a_number)
    refused(user, answer, code)


@fault(
    "Models",
    "its tokenizer ends every prompt",
    "error: the tokenizer appends the end token '<eos>' to a prompt, so that nothing is left to complete; give a model "
    "whose tokenizer does not",
    2,
)
def test_a_tokenizer_that_appends_eos(user, gpt2, letters, answer, code):
    ends = processors.TemplateProcessing(single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)])
    letters.backend_tokenizer.post_processor = ends
    letters.save_pretrained("model")
    refused(user, answer, code)


@fault(
    "Models",
    "`eos_token_id` is no token",
    "error: eos_token_id in the generation_config of 'model' must be ids of tokens, not …; repair it",
    2,
)
@pytest.mark.parametrize("ids", ["x", -1, [2, 1.5], [None], True])
def test_odd_end_tokens(ids, user, gpt2, answer, code):
    edit(gpt2 / "generation_config.json", eos_token_id=ids)
    status, shown = user.starts("--model=model")
    assert status == code and shown.count("\n") == 1 and (says(answer, shown) or "cannot load" in shown), shown


@fault("Models", "its chat template fails", "error: the tokenizer's chat template fails (…); give another model", 2)
@pytest.mark.parametrize(
    "template", ["{{ raise_exception('no') }}", "{% for %}", "{{ messages[3].content }}", "{{ 1 / 0 }}"]
)
def test_a_chat_template_that_fails(template, user, gpt2, letters, answer, code):
    letters.chat_template = template
    letters.save_pretrained("model")
    refused(user, answer, code)


@fault(
    "Models",
    "its chat template, or its tokenizer, loses the problem",
    "error: the tokenizer or its chat template loses the problem: … became …; give a model that reads "
    "every character of it",
    2,
)
def test_a_problem_that_is_lost(user, gpt2, letters, answer, code):
    letters.chat_template = "<user>{{ messages[0].role }}<assistant>"
    letters.save_pretrained("model")
    refused(user, answer, code)
    letters.chat_template = "{{ '' }}"
    letters.save_pretrained("model")
    nothing = "error: the tokenizer, or its chat template, makes nothing of a prompt; give another model"
    assert says(nothing, user.starts("--model=model")[1])
    letters.chat_template = None
    letters.save_pretrained("model")
    (gpt2 / "chat_template.jinja").unlink()
    tokens = json.loads((gpt2 / "tokenizer.json").read_text("utf-8"))
    tokens["model"]["vocab"] = {t if t != "7" else "seven": i for t, i in tokens["model"]["vocab"].items()}
    (gpt2 / "tokenizer.json").write_text(json.dumps(tokens), "utf-8")
    assert "error: the tokenizer cannot read" in user.starts("--model=model")[1]


@fault(
    "Models",
    "its tokenizer is of another model",
    "error: the tokenizer has ids up to 122, the model a vocabulary of 100: they do not belong together; give the folder of a "
    "model with its own tokenizer",
    2,
)
def test_a_tokenizer_larger_than_the_vocabulary(user, gpt2, answer, code):
    config = GPT2Config(vocab_size=100, n_embd=16, n_layer=1, n_head=2, eos_token_id=2)
    GPT2LMHeadModel(config).save_pretrained("model")
    refused(user, answer, code)


@fault(
    "Models",
    "its positions do not suffice",
    "error: a prompt of … tokens and a completion of 16 (--max_new_tokens) need … positions, and the model has 64; give a "
    "smaller --max_new_tokens or another model",
    2,
)
def test_a_model_with_too_few_positions(user, gpt2, letters, answer, code):
    config = GPT2Config(vocab_size=len(letters), n_embd=16, n_layer=1, n_head=2, n_positions=64, eos_token_id=2)
    GPT2LMHeadModel(config).save_pretrained("model")
    refused(user, answer, code)


def test_training_prompts_are_tried_too(user, gpt2, monkeypatch):
    """One that no held-out prompt is like: longer than the positions, or with a character that cannot be read."""
    draw = arithmetic.sample_problems
    for expression, message in (
        ("1+" * 200 + "1", "positions, and the model has 256"),
        ("1\N{SNOWMAN}1", "cannot read"),
    ):
        odd = arithmetic.Problem(expression, 1, 1)
        monkeypatch.setattr(arithmetic, "sample_problems", lambda n, *a, odd=odd: [odd, *draw(n - 1, *a)])
        status, shown = user.starts("--model=model")
        assert status == 2 and message in shown and shown.count("\n") == 1, shown
        assert not Path("run").exists()


# ---------------------------------------------------------------------- the table


def test_the_table_of_faults_is_that_of_the_page():
    assert with_table(FAULTS_PAGE.read_text(encoding="utf-8")) == FAULTS_PAGE.read_text(
        encoding="utf-8"
    ) and table() in FAULTS_PAGE.read_text(encoding="utf-8")


if __name__ == "__main__":
    FAULTS_PAGE.write_text(with_table(FAULTS_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{sum(map(len, FAULTS.values()))} faults, written to {FAULTS_PAGE}")
