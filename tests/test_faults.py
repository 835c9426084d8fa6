"""What can go wrong around a run, and the line that answers it.

A test's cases are rows of the table in FAULTS.md, which `python tests/test_faults.py` writes: the
fault, the answer as it is printed, with … for what differs from time to time, and the exit code.
"""

import contextlib
import errno
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from tokenizers import processors

from algorithms import dapo, reinforce
from toy_env import arithmetic, cli, save

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
FAULTS_PAGE = ROOT / "tests/FAULTS.md"
SCRIPTS = ("reinforce", "ppo", "grpo", "dr_grpo", "dapo", "rloo", "maxrl", "gspo", "cispo")
SMALL = {"steps": 4, "save_every": 2, "prompts_per_step": 2, "group_size": 4, "max_new_tokens": 16, "eval_problems": 1, "eval_every": 0, "device": "cpu"}  # fmt: skip
FLAGS = [f"--{name}={value}" for name, value in SMALL.items()]
HEADINGS = ("Saves", "Folder and disk", "Stopping", "Training", "Models")
FAULTS: dict[str, list[tuple[str, str, int]]] = {heading: [] for heading in HEADINGS}
posix = pytest.mark.skipif(
    os.name == "nt", reason="Windows has no such path, signal or file descriptor"
)
RESUME = "to continue: python … --resume"
DIVERGED = "training has diverged; start a new run with a smaller --learning_rate"
NO_SAVE = "error: 'run' has no save to resume from…; start a new run elsewhere"


def fault(heading: str, what: str, answer: str, code: int, *arguments):
    """A case of a test, which is given `arguments`, the answer and the exit code. Its row of the
    table, if it says what the fault is: a case without it is another way to the row before."""
    if what:
        FAULTS[heading].append((what, answer, code))
    return pytest.param(*arguments, answer, code, id=what)


def cases(names: str, *params) -> Callable:
    """The cases of a test with these arguments, besides the answer and the exit code."""
    return pytest.mark.parametrize([*names.split(), "answer", "code"], params)


def page() -> str:
    """FAULTS.md."""
    table = ["| fault | answer | exit |", "|---|---|---|"]
    for heading, faults in FAULTS.items():
        table.append(f"| **{heading}** | | |")
        table += [
            f"| {what} | {f'`{answer}`' if answer else ''} | {code} |"
            for what, answer, code in faults
        ]
    return f"""\
# When something goes wrong

The faults that are tried around a run, and the line that answers each; `…` stands for what differs from time to time.
Written by `python tests/test_faults.py`, whose tests they are.

{chr(10).join(table)}
"""


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
        lines = [
            line for line in err.rpartition("\r")[2].splitlines() if not line.startswith(script)
        ]
        assert len(lines) == (code != 0), err
        return code, out + err

    def starts(self, *argv: str, script: str = "reinforce") -> tuple[int, str]:
        return self.types(*FLAGS, "--run_dir=run", *argv, script=script)

    def resumes(self, *argv: str, script: str = "reinforce") -> tuple[int, str]:
        return self.types("--run_dir=run", "--resume", *argv, script=script)

    def starts_under(self, disturbance, *argv: str) -> tuple[int, str]:
        """Starts a run in which something goes wrong: disturbance(patch) sets it up, and its
        patches end with it."""
        return self.under(disturbance, self.starts, *argv)

    def under(self, disturbance, act: Callable, *argv: str) -> tuple[int, str]:
        with self.monkeypatch.context() as patch:
            disturbance(patch)
            return act(*argv)


def in_step(step: int, action: Callable) -> Callable:
    """The disturbance that `action` happens at the start of a step."""

    def disturb(patch) -> None:
        draw, calls = arithmetic.sample_problems, []

        def draw_and_act(*args):
            if hasattr(reinforce.Run.current, "bar"):  # in a step
                calls.append(1)
            if len(calls) == step:
                action()
            return draw(*args)

        patch.setattr(arithmetic, "sample_problems", draw_and_act)

    return disturb


def instead_of(place: str, action: Callable) -> Callable:
    """The disturbance that something else happens in the place of a function."""
    return lambda patch: patch.setattr(place, lambda *_, **__: action())


def raising(error: Exception) -> Callable:
    """An action that fails."""

    def fail() -> None:
        raise error

    return fail


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def user(tmp_path, monkeypatch, capsys, no_curves) -> User:
    monkeypatch.chdir(tmp_path)
    return User(monkeypatch, capsys)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict:
    """What a run leaves that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    reinforce.train(reinforce.Config(**SMALL, run_dir=str(folder)))
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
    lines = (Path(folder) / "metrics.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line, parse_constant=pytest.fail) for line in lines]  # NaN is not JSON


def on_disk(folder: str = "run") -> dict[str, bytes]:
    return {
        str(path): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()
    }


def put_back() -> None:
    shutil.rmtree("run")
    shutil.copytree("kept", "run")


@contextlib.contextmanager
def process(*argv: str, **settings) -> Iterator[subprocess.Popen]:
    """A script in a process of its own, as its user starts it, which ends at the latest with the
    block."""
    script = [str(ROOT / "algorithms/reinforce.py"), *FLAGS, "--run_dir=run", *argv]
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | settings
    settings["env"] = os.environ | {
        "OMP_NUM_THREADS": str(torch.get_num_threads())
    }  # another number rounds otherwise
    with subprocess.Popen([sys.executable, *script], **settings) as run:
        try:
            yield run
        finally:
            run.kill()


# ---------------------------------------------------------------------- saves


def damaged(change: Callable[[bytes], bytes]) -> Callable:
    """Puts changed bytes into the last save."""
    return lambda last: last.write_bytes(change(last.read_bytes()))


NOT_USED = "state-000004-….pt is damaged, or holds something other than tensors and plain values; continuing from step 2"  # fmt: skip


@cases(
    "changes",
    fault("Saves", "the last save is damaged: a flipped bit, cut short, extended, empty", NOT_USED, 0, [
        damaged(lambda data: data[: len(data) // 2]),
        damaged(lambda data: data + b"\0"),
        damaged(lambda data: data[:4096] + bytes([data[4096] ^ 1]) + data[4097:]),
        damaged(lambda data: b""),
    ]),
)  # fmt: skip
def test_a_damaged_save_is_never_trained_on(changes, user, whole, answer, code):
    user.starts()
    Path("run/results.json").unlink()
    shutil.copytree("run", "kept")
    for change in changes:
        put_back()
        change(save.saves(Path("run"))[0])
        status, shown = user.resumes()
        assert status == code and says(answer, shown) and end() == whole
        assert [save.step_of(path) for path in save.saves(Path("run"))] == [4, 2]


def edit(path: str | Path, **changes) -> None:
    path = Path(path)
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


def weights(change: Callable[[dict], object]) -> Callable:
    """Changes the weights of the model in the folder."""

    def write(*_) -> None:
        tensors = load_file("model/model.safetensors")
        change(tensors)
        save_file(tensors, "model/model.safetensors", metadata={"format": "pt"})

    return write


def lose_a_part() -> None:
    """The last save has another one in its place, without a part, with the right checksum."""
    last = save.saves(Path("run"))[0]
    torch.save(
        {name: part for name, part in torch.load(last).items() if name != "optimizer"}, "forged"
    )
    last.unlink()
    os.replace("forged", f"run/state-000004-{save.digest(Path('forged'))}.pt")


KEEPS = "when 'run' was saved and is … now; a resumed run keeps its settings"
UNREADABLE = "error: 'run/config.json' cannot be read as JSON settings (…); repair it"
BROKEN = (b"[1]", b"\xff\xfe", b'{"steps": "x"}')
CONFIG = Path("run/config.json")


@cases("change flags script",
    fault("Saves", "both that are kept are damaged", NO_SAVE, 2, lambda: [path.write_bytes(b"") for path in save.saves(Path("run"))], [], "reinforce"),
    fault("Saves", "both are missing", NO_SAVE, 2, lambda: [path.unlink() for path in save.saves(Path("run"))], ["--steps=8"], "reinforce"),
    fault("Saves", "the script has been changed, so that the save lacks a part", "error: the save in 'run' is not of this program: 'optimizer'; start a new run", 2, lose_a_part, ["--steps=8"], "reinforce"),
    fault("Saves", "the save was made by another script", f"error: script was 'reinforce' {KEEPS}", 2, lambda: None, ["--steps=8", "--num_minibatches=1"], "ppo"),
    fault("Saves", "the model in its folder has changed", f"error: fingerprint of --model was … {KEEPS}", 2, weights(lambda tensors: tensors["model.norm.weight"].add_(1e-3)), ["--steps=8"], "reinforce"),
    fault("Saves", "a setting in `config.json` was edited by hand", f"error: learning_rate was 0.0002 {KEEPS}", 2, lambda: edit(CONFIG, learning_rate=0.1), ["--steps=8"], "reinforce"),
    fault("Saves", "`config.json` cannot be read, or a value has the wrong type", UNREADABLE, 2, lambda: CONFIG.write_bytes(b""), [], "reinforce"),
    *(fault("Saves", "", UNREADABLE, 2, lambda text=text: CONFIG.write_bytes(text), [], "reinforce") for text in BROKEN),
)  # fmt: skip
def test_a_run_that_cannot_be_resumed_is_left_as_it_is(
    change, flags, script, user, base, answer, code
):
    for part in base:
        part.save_pretrained("model")
    assert user.starts("--model=model")[0] == 0
    change()
    before = on_disk()
    status, shown = user.resumes(*flags, script=script)
    assert status == code and says(answer, shown) and on_disk() == before, shown


@cases("", fault("Saves", "`metrics.jsonl` is missing or damaged: it is written anew from the save", "Resuming after step 3", 0))  # fmt: skip
def test_metrics_are_written_anew(user, whole, answer, code):
    """What is behind the save is cut off and made again; what was changed or lost before it is as
    it was."""
    user.starts_under(in_step(3, interrupt))
    shutil.copytree("run", "kept")
    log = Path("run/metrics.jsonl")
    lines = log.read_text("utf-8")
    for text in (
        lines + '{"step": 4, "loss": 1',
        lines + "\0" * 512,
        lines.replace("0.", "1."),
        "",
        None,
    ):
        put_back()
        log.unlink() if text is None else log.write_text(text, "utf-8")
        status, shown = user.resumes()
        assert status == code and says(answer, shown) and end() == whole, text


# ---------------------------------------------------------------------- folder and disk


@cases("", fault("Folder and disk", "another process is writing there", "error: cannot use the run folder 'run' (another process is writing there); choose another --run_dir", 2))  # fmt: skip
def test_one_writer(user, answer, code):
    """The lock is gone with the first, however that ends. A second that does not resume is refused
    in any case."""
    with process("--steps=100000", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        while not Path("run/metrics.jsonl").exists():
            time.sleep(0.05)
        status, shown = user.resumes("--steps=1")
        assert status == code and says(answer, shown)
        assert user.starts()[0] == code
    status, shown = user.resumes("--steps=0")
    assert status == 2 and "another process" not in shown


RUN_EXISTS = "error: run folder 'run' exists and no run overwrites another; choose another --run_dir, or add --resume to continue that run"
NO_RUN = "error: 'run' holds no run: it has no config.json; leave out --resume to start a run there"


@cases("folder flags",
    fault("Folder and disk", "there is a run, or anything else, and no `--resume`", RUN_EXISTS, 2, "run", []),
    fault("Folder and disk", "`--resume`, and there is no run", NO_RUN, 2, "run", ["--resume"]),
    fault("Folder and disk", "the folder cannot be made", "error: cannot use the run folder '/dev/null/run' (Not a directory); choose another --run_dir", 2, "/dev/null/run", []),
)  # fmt: skip
@posix
def test_a_folder_that_is_refused_is_left_as_it_is(folder, flags, user, answer, code):
    Path("run").mkdir()
    Path("run/notes.txt").write_text("mine", "utf-8")
    status, shown = user.types(*FLAGS, f"--run_dir={folder}", *flags)
    assert status == code and says(answer, shown) and on_disk() == {"run/notes.txt": b"mine"}


def full_for(name: str) -> Callable:
    """The disturbance that the disk is full when a file of this name is to be written."""
    replace = os.replace

    def no_place_for(old, new) -> None:
        if Path(new).name.startswith(name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(old, new)

    return lambda patch: patch.setattr(os, "replace", no_place_for)


def full_log() -> None:
    Path("run/metrics.jsonl").unlink()
    Path("run/metrics.jsonl").symlink_to("/dev/full")


FULL = f"error: cannot write 'run/…' (No space left on device); saved up to step …; {RESUME}"
STOPPED = f"stopped after step 3; saved up to step 3; {RESUME}"
AT_THE_END = f"stopped; saved up to step 4; {RESUME}"
LESS = "lower --max_tokens_per_pass (now 16384), or add --gradient_checkpointing, or start a new run with a smaller --group_size"
MEMORY = f"error: out of memory; {LESS}; saved up to step 2; {RESUME}"
LINUX = pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has /dev/full")


@cases("disturbance",
    fault("Folder and disk", "the disk is full, at any write; or over its quota, or read-only", FULL, 1, full_for("state-000004")),
    *(fault("Folder and disk", "", FULL, 1, full_for(name)) for name in ("checkpoint", "samples.txt", "curves.png", "results.json")),
    pytest.param(in_step(3, full_log), FULL, 1, marks=LINUX),
    fault("Folder and disk", "... before anything is written", "error: cannot write 'run/config.json' (No space left on device); nothing is saved: start a new run", 1, full_for("config.json")),
    fault("Folder and disk", "... before the first save", f"error: cannot write 'run/state-000000.pt' (No space left on device); nothing is saved yet; {RESUME}", 1, full_for("state-000000")),
    fault("Folder and disk", "the folder is deleted during the run", "error: cannot write 'run/metrics.jsonl' (No such file or directory); nothing is saved: start a new run", 1, in_step(3, lambda: shutil.rmtree("run"))),
    fault("Stopping", "Ctrl-C in a step", STOPPED, 130, in_step(3, interrupt)),
    fault("Stopping", "SIGTERM (a job that is preempted)", STOPPED, 143, in_step(3, lambda: signal.raise_signal(signal.SIGTERM))),
    fault("Stopping", "SIGHUP (a terminal that is closed)", STOPPED, 129, in_step(3, lambda: signal.raise_signal(signal.SIGHUP))),
    fault("Stopping", "a second Ctrl-C: the step is not waited for", f"stopped in the middle of a step; saved up to step 2; {RESUME}", 130, in_step(3, lambda: (interrupt(), interrupt()))),
    fault("Stopping", "Ctrl-C in the first evaluation", f"stopped; nothing is saved yet; {RESUME}", 130, instead_of("toy_env.run.held_out_report", interrupt)),
    fault("Stopping", "Ctrl-C in the last evaluation, or while plotting", AT_THE_END, 130, instead_of("toy_env.run.report_table", interrupt)),
    fault("Stopping", "", AT_THE_END, 130, instead_of("toy_env.plots.draw_curves", interrupt)),
    fault("Training", "out of memory, on a GPU or not", MEMORY, 1, in_step(3, raising(torch.OutOfMemoryError("CUDA out of memory.")))),
    fault("Training", "", MEMORY, 1, in_step(3, lambda: torch.empty(10**15))),
    fault("Training", "", MEMORY, 1, in_step(3, lambda: bytearray(10**15))),
)  # fmt: skip
@posix
def test_a_run_that_is_disturbed_and_resumed_ends_like_one_that_was_not(
    disturbance, user, whole, answer, code
):
    """What ended it early is one line, nothing half-written stays behind, and the old handlers of
    signals are back."""
    before = [
        signal.signal(number, signal.default_int_handler) for number in cli.STOPPING
    ]  # whatever runs these tests
    try:
        status, shown = user.starts_under(disturbance)
        assert status == code and says(answer, shown) and not Path("run/write.tmp").exists(), shown
        assert {signal.getsignal(number) for number in cli.STOPPING} == {signal.default_int_handler}
    finally:
        for number, old in zip(cli.STOPPING, before):
            signal.signal(number, old)
    again = user.resumes if Path("run/config.json").exists() else user.starts
    assert again("--max_tokens_per_pass=8000")[0] == 0 and end() == whole


@posix
@cases("", fault("Folder and disk", "nobody reads the output any more (`\\| head -1`)", f"error: cannot print (Broken pipe); saved up to step 0; {RESUME}", 1))  # fmt: skip
def test_output_that_nobody_reads(user, whole, answer, code):
    with process() as run:
        run.stdout.readline()
        run.stdout.close()
        err = run.stderr.read()
    assert run.returncode == code and says(answer, err) and "Exception" not in err
    assert user.resumes()[0] == 0 and end() == whole


# ---------------------------------------------------------------------- stopping

FAULTS["Stopping"].append(
    ("killed at any moment (`soak/test_kills.py`), then `--resume`", "Resuming after step …", 0)
)
FAULTS["Stopping"].append(
    ("Ctrl-C before the start (`test_start.py`)", "stopped before the start", 130)
)


def test_under_nohup_a_run_goes_on(user, whole):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        status, _ = user.starts_under(in_step(3, lambda: signal.raise_signal(signal.SIGHUP)))
        assert status == 0 and end() == whole
    finally:
        signal.signal(signal.SIGHUP, before)


# ---------------------------------------------------------------------- training


def test_a_readers_own_error_shows_its_traceback(user):
    """In what the check of a model runs first, in a step, and in what is drawn at the end."""

    def typo():
        return torch.log_sofmax

    for place in (
        "toy_env.rollout.token_logps",
        "algorithms.reinforce.policy_loss",
        "toy_env.plots.draw_curves",
    ):
        with pytest.raises(AttributeError, match="log_sofmax"):
            user.starts_under(instead_of(place, typo), f"--run_dir={place}")
    with pytest.raises(
        RuntimeError, match="illegal memory access"
    ):  # which speaks of memory, and is no lack of it
        user.starts_under(
            in_step(
                3, raising(RuntimeError("CUDA error: an illegal memory access was encountered"))
            )
        )


def spoil(part: str, value: float = math.inf) -> None:
    """Write a value into the policy."""
    with torch.no_grad():
        reinforce.Run.current.policy.get_parameter(part)[..., 3] = value


def spoil_before_the_save(patch) -> None:
    def spoil_and_save(run, save=reinforce.Run.save) -> None:
        if run.last_step == 4:
            spoil("model.norm.weight")
        save(run)

    patch.setattr(reinforce.Run, "save", spoil_and_save)


LOGITS = f"error: the policy's logits are not finite: {DIVERGED}"


@cases("disturbance",
    fault("Training", "the loss or the gradient is not finite", f"error: loss is nan in step 3: {DIVERGED}", 1, lambda patch: in_step(3, lambda: instead_of("algorithms.reinforce.policy_loss", lambda: torch.tensor(math.nan, requires_grad=True))(patch))(patch)),
    fault("Training", "a logit is not finite", LOGITS, 1, in_step(3, lambda: spoil("model.embed_tokens.weight"))),
    fault("Training", "", LOGITS, 1, in_step(3, lambda: spoil("model.embed_tokens.weight", math.nan))),
    fault("Training", "a weight is not finite when it is to be saved", f"error: policy.model.norm.weight is not finite after step 4, so it is not saved: {DIVERGED}", 1, spoil_before_the_save),
)  # fmt: skip
def test_a_number_that_is_not_finite(disturbance, user, answer, code):
    status, shown = user.starts_under(disturbance)
    assert status == code and says(answer, shown), shown
    state, notes = save.newest_save(Path("run"))
    assert state["step"] == 2 and not notes and not save.not_finite(state) and len(rows()) >= 2


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("rate", ["1e4", "1e38"])
def test_a_run_that_diverges_leaves_a_finite_save_and_json(script, rate, user):
    flags = [] if script == "reinforce" else ["--num_minibatches=2"]
    status, shown = user.starts(
        f"--learning_rate={rate}", "--warmup_steps=0", *flags, script=script
    )
    assert status == 0 or (status == 1 and DIVERGED in shown)
    assert rate == "1e4" or status == 1
    state, notes = save.newest_save(Path("run"))
    assert not notes and not save.not_finite(state)
    assert not state["step"] or len(rows()) >= state["step"]


@cases("", fault("Training", "no completion is right for 20 steps (said once)", "No completion was right in 20 steps: nothing is learnt from rewards that are all 0", 0))  # fmt: skip
@pytest.mark.parametrize("module", [reinforce, dapo])
def test_a_collapsed_run_says_so_once(module, user, answer, code):
    """And DAPO, which then finds no group to train on, ends like the others. Resumed, it is not
    said again."""
    user.monkeypatch.setattr(arithmetic, "reward", lambda *_: 0.0)
    script = module.__name__.rpartition(".")[2]
    flags = ["--max_draws=2"] if module is dapo else []
    status, shown = user.starts("--steps=25", *flags, script=script)
    assert status == code and shown.count(answer) == 1 and len(rows()) == 25
    assert answer not in user.resumes("--steps=46", script=script)[1]


# ---------------------------------------------------------------------- models


@pytest.fixture
def gpt2(letters) -> Path:
    """The folder of a small GPT-2 that can be trained."""
    a_gpt2(n_positions=256)(letters)
    letters.save_pretrained("model")
    return Path("model")


def a_model(model: type, config: type, **sizes) -> Callable:
    """The change that the folder holds another model, with random weights."""

    def save_model(letters) -> None:
        ids = {"bos_token_id": 1, "eos_token_id": 2}
        torch.manual_seed(0)
        model(config(**({"vocab_size": len(letters)} | ids | sizes))).save_pretrained("model")

    return save_model


def pickled(_) -> None:
    torch.save(load_file(WEIGHTS), "model/pytorch_model.bin")
    WEIGHTS.unlink()


def own_code(letters) -> None:
    Path("model/own.py").write_text("import os\nos.mkdir('harm')\n", "utf-8")
    own = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    edit("model/config.json", model_type="own", auto_map=own)


WEIGHTS = Path("model/model.safetensors")


def a_gpt2(**sizes) -> Callable:
    return a_model(hf.GPT2LMHeadModel, hf.GPT2Config, n_embd=16, n_layer=1, n_head=2, **sizes)


SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
ENCODER = a_model(hf.BertLMHeadModel, hf.BertConfig, initializer_range=0.4, **SIZES)
SIZES = {"d_model": 16, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 32}
BART = a_model(
    hf.BartForCausalLM, hf.BartConfig, init_std=0.4, max_position_embeddings=256, **SIZES
)


def a_tokenizer_that_appends_eos(letters) -> None:
    ends = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    letters.backend_tokenizer.post_processor = ends
    letters.save_pretrained("model")


def template(text: str) -> Callable:
    def write(letters) -> None:
        letters.chat_template = text
        letters.save_pretrained("model")

    return write


CANNOT = "error: cannot load a causal language model from 'model': "
TEMPLATE_FAILS = "error: the tokenizer's chat template fails (…); give another model"
POSITIONS = "error: a prompt of … tokens and a completion of 16 (--max_new_tokens) need … positions, and the model has 64; give a smaller --max_new_tokens or another model"


@cases("change",
    fault("Models", "it brings code of its own", f"{CANNOT}…", 2, own_code),
    fault("Models", "its weights are a pickle", f"{CANNOT}…", 2, pickled),
    fault("Models", "its weights are damaged", f"{CANNOT}…", 2, lambda _: WEIGHTS.write_bytes(WEIGHTS.read_bytes()[:1000])),
    fault("Models", "some are missing", "error: 'model' lacks 1 weights of its model, such as transformer.h.0.mlp.c_fc.weight; give a complete causal language model", 2, weights(lambda tensors: tensors.pop("transformer.h.0.mlp.c_fc.weight"))),
    fault("Models", "some are not finite", "error: the model's logits are not finite; give another model", 2, weights(lambda tensors: tensors["transformer.ln_f.weight"].fill_(math.nan))),
    fault("Models", "it is an encoder", "error: the model's log-probabilities change with later tokens, or with the batch (by …), so sampling and training would disagree; give another one", 2, ENCODER),
    fault("Models", "what it predicts depends on the batch, as where positions ignore padding", "error: the model's log-probabilities change with later tokens, or with the batch (by …), so sampling and training would disagree; give another one", 2, BART),
    fault("Models", "its tokenizer ends every prompt", "error: the tokenizer ends every prompt, which leaves nothing to complete; give another model", 2, a_tokenizer_that_appends_eos),
    fault("Models", "its chat template fails", TEMPLATE_FAILS, 2, template("{{ raise_exception('no') }}")),
    fault("Models", "its chat template loses the problem", "error: the chat template loses the problem: … became …; give another model", 2, template("<user>{{ messages[0].role }}<assistant>")),
    fault("Models", "its tokenizer is of another model", "error: the tokenizer has ids up to 117, the model a vocabulary of 100: they do not belong together; give the folder of a model with its own tokenizer", 2, a_gpt2(vocab_size=100)),
    fault("Models", "its positions do not suffice", POSITIONS, 2, a_gpt2(n_positions=64)),
)  # fmt: skip
def test_a_model_that_is_refused(change, user, gpt2, letters, answer, code):
    user.monkeypatch.setattr(
        "builtins.input", lambda *_: "y"
    )  # at transformers' prompt this would run a model's code
    change(letters)
    status, shown = user.starts("--model=model")
    assert status == code and says(answer, shown) and shown.count("\n") == 1, shown
    assert not Path("run").exists() and not Path("harm").exists()


def test_a_tokenizers_own_code_is_passed_over(user, gpt2):
    (gpt2 / "own.py").write_text("import os\nos.mkdir('harm')\n", "utf-8")
    edit(
        gpt2 / "tokenizer_config.json",
        tokenizer_class="Own",
        auto_map={"AutoTokenizer": [None, "own.Own"]},
    )
    user.starts("--model=model")
    assert not Path("harm").exists()


@cases("", fault("Models", "its gradient is not finite", "error: the model's gradient is not finite; give another model", 2))  # fmt: skip
def test_a_gradient_that_is_not_finite(user, gpt2, answer, code):
    """As of a norm of a zero embedding."""
    backward = torch.Tensor.backward
    user.monkeypatch.setattr(
        torch.Tensor, "backward", lambda loss, **how: backward(loss * math.inf, **how)
    )
    status, shown = user.starts("--model=model")
    assert status == code and says(answer, shown) and not Path("run").exists()


@cases("expression",
    fault("Models", "its tokenizer lacks a character of a problem", "error: the tokenizer cannot read …", 2, "1\N{SNOWMAN}1"),
    fault("Models", "", "error: a prompt of … positions, and the model has 256; …", 2, "1+" * 200 + "1"),
)  # fmt: skip
def test_training_prompts_are_tried_too(expression, user, gpt2, answer, code):
    """No held-out prompt is as long as the one, or has the character of the other."""
    draw, odd = arithmetic.sample_problems, arithmetic.Problem(expression, 1, 1)
    user.monkeypatch.setattr(arithmetic, "sample_problems", lambda n, *a: [odd, *draw(n - 1, *a)])
    status, shown = user.starts("--model=model")
    assert (
        status == code
        and says(answer, shown)
        and shown.count("\n") == 1
        and not Path("run").exists()
    ), shown


# ---------------------------------------------------------------------- the table


def test_the_table_of_faults_is_that_of_the_page():
    assert FAULTS_PAGE.read_text(encoding="utf-8") == page()


if __name__ == "__main__":
    FAULTS_PAGE.write_text(page(), encoding="utf-8")
    print(f"{sum(map(len, FAULTS.values()))} faults, written to {FAULTS_PAGE}")
