"""Shared by the tests: tiny models and tokenizers, the shipped base, and ways to train a script, to
watch calls and to run Python."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

if "PYTEST_XDIST_WORKER" in os.environ:  # a process on each core, so a thread each
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

# torch and transformers take seconds to load, so they are imported where they are used: the process
# that only hands out tests does without.

signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
ROOT = Path(__file__).parent.parent
INSTALL_TRL = "pip install -e '.[parity]' to compare with TRL"
INSTALL_VERL = (
    "pip install -e '.[parity]' && pip install --no-deps verl==0.9.1 to compare with verl"
)
SCRIPTS = [  # of the ladder and its side rungs
    path.stem
    for path in sorted((ROOT / "algorithms").glob("*.py"))
    if "class Config(RunConfig)" in path.read_text("utf-8")
]
SMALL = {"steps": 2, "prompts_per_step": 8, "group_size": 4, "max_new_tokens": 24}
SMALL |= {"eval_problems": 1, "device": "cpu"}


# Models and tokenizers


def build_tiny_model(vocab_size: int, seed: int = 0, layers: int = 2, **settings):
    """A small Llama whose weights are large enough that its predictions are far from
    uniform."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    size = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
    }
    tokens = {"vocab_size": vocab_size, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return LlamaForCausalLM(LlamaConfig(**size, **tokens, initializer_range=0.4, **settings)).eval()


@pytest.fixture
def letters():
    """A tokenizer like a general language model's: it knows letters, and pads on the right."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokens = ["<pad>", "<bos>", "<eos>", "<user>", "<assistant>", *map(chr, range(9, 127))]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}))
    one = Regex(r"<[a-z]+>|[\s\S]")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(one, behavior="isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 1)]
    )
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )


@pytest.fixture(scope="session")
def tokenizer():
    """The tokenizer of the task."""
    from toy_env.pretrain import build_tokenizer

    return build_tokenizer()


@pytest.fixture
def tiny(tokenizer):
    """A tiny random model with the tokenizer of the task."""
    return build_tiny_model(len(tokenizer))


@pytest.fixture(scope="session")
def base():
    """The shipped base model and its tokenizer. Not to be changed by a test."""
    from toy_env.model import load_policy

    return load_policy("base")


# Runs


def value_of(prompt: str) -> int:
    """The value of "29+46-36?", by addition of signed numbers."""
    return sum(int(x) for x in prompt.removesuffix("?").replace("-", "+-").split("+"))


def is_right(prompt: str, text: str) -> bool:
    """True if a completion answers an arithmetic prompt, by an addition that shares nothing with
    toy_env."""
    return text.split("#")[-1] == str(value_of(prompt))


def metrics(folder: Path | str) -> list[dict]:
    """The rows of metrics.jsonl of a run folder, without the wall times."""
    rows = [
        json.loads(line)
        for line in (Path(folder) / "metrics.jsonl").read_text("utf-8").splitlines()
    ]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def python(*argv, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess:
    """Run Python with these arguments, such as a script and its flags, on the CPU and one thread.
    Returns its exit code and its output as text."""
    env = (
        os.environ
        | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        | env
    )
    return subprocess.run(
        [sys.executable, *map(str, argv)], cwd=cwd, env=env, capture_output=True, text=True
    )


def policy_loss(script: ModuleType, **inputs):
    """A script's policy_loss, which is given those of the inputs that it takes."""
    names = script.policy_loss.__annotations__
    return script.policy_loss(**{name: value for name, value in inputs.items() if name in names})


def watch(patch: pytest.MonkeyPatch, owner, name: str) -> list[SimpleNamespace]:
    """A list that grows with every call of owner.name. An entry holds the positional arguments as
    `args`, the keyword arguments under their names, and `result`."""
    calls, honest = [], getattr(owner, name)

    def watched(*args, **named):
        calls.append(SimpleNamespace(args=args, **named))
        calls[-1].result = honest(*args, **named)
        return calls[-1].result

    patch.setattr(owner, name, watched)
    return calls


@pytest.fixture
def spy(monkeypatch):
    """spy(owner, name) is `watch`, for the time of one test."""
    return partial(watch, monkeypatch)


@pytest.fixture
def no_curves(monkeypatch):
    """Leaves curves.png empty: drawing it takes longer than a few steps on a few problems."""
    monkeypatch.setattr("toy_env.run.draw_curves", lambda rows, path, title: path.touch())


@pytest.fixture
def train(tmp_path, no_curves) -> Callable[..., list[dict]]:
    """train(script, folder="run", **settings) trains a script in a folder below tmp_path, with
    SMALL as defaults, and returns the metrics of the run."""

    def train_script(script: ModuleType, folder: str | Path = "run", **settings) -> list[dict]:
        script.train(script.Config(**SMALL | {"run_dir": str(tmp_path / folder)} | settings))
        return metrics(tmp_path / folder)

    return train_script


# Libraries and programs that may be missing


@pytest.fixture(scope="session")
def trl():
    """TRL, with the library that holds its data."""
    pytest.importorskip("datasets", reason=INSTALL_TRL)
    return pytest.importorskip("trl", reason=INSTALL_TRL)


@pytest.fixture(scope="session")
def verl() -> SimpleNamespace:
    """The modules of verl that hold its formulas and its configuration."""
    pytest.importorskip("verl", reason=INSTALL_VERL)
    from verl.trainer.ppo import core_algos
    from verl.utils import tensordict_utils
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers import config
    from verl.workers.utils import losses

    return SimpleNamespace(
        core=core_algos,
        losses=losses,
        config=config,
        tensordict=tensordict_utils,
        typed=omega_conf_to_dataclass,
    )


@pytest.fixture(scope="module")
def browser():
    """Chromium; skips if it or playwright is missing, and says how to install them."""
    how = "pip install -e '.[page]' and apt install chromium"
    api = pytest.importorskip("playwright.sync_api", reason=f"pages in a browser: {how}")
    path = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if not path:
        pytest.skip(f"pages in a browser: {how}")
    with api.sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield one
        one.close()
