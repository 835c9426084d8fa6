"""What several test files share: a tiny transformer with random weights, tokenizers, the shipped base model."""

import shutil

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from toy_env.model import load_policy
from toy_env.pretrain import build_tokenizer


def build_tiny_model(vocab_size: int, seed: int = 0, **settings) -> LlamaForCausalLM:
    """A two-layer Llama whose weights are large enough that its predictions are far from uniform."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.4,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        **settings,
    )
    return LlamaForCausalLM(config).eval()


def value_of(prompt: str) -> int:
    """The value of "29+46-36?", by addition of signed numbers."""
    return sum(int(x) for x in prompt.removesuffix("?").replace("-", "+-").split("+"))


@pytest.fixture(scope="session")
def tokenizer():
    return build_tokenizer()


@pytest.fixture
def tiny(tokenizer):
    """A tiny random model with the tokenizer of the task."""
    return build_tiny_model(len(tokenizer))


@pytest.fixture(scope="session")
def base():
    """The shipped base model and its tokenizer. Not to be changed by a test."""
    return load_policy("base")


@pytest.fixture(scope="module")
def browser():
    """Chromium, for the pages; skips where it or playwright is missing, and says how to install them."""
    how = "pip install -e '.[page]' and apt install chromium"
    api = pytest.importorskip("playwright.sync_api", reason=f"pages in a browser: {how}")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not path:
        pytest.skip(f"pages in a browser: {how}")
    with api.sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield one
        one.close()


@pytest.fixture
def no_curves(monkeypatch):
    """Runs end with an empty curves.png, which takes longer to draw than a few steps on a few problems."""
    monkeypatch.setattr("toy_env.plots.draw_curves", lambda rows, results, path, title: path.touch())


@pytest.fixture
def letters():
    """A tokenizer like a general language model's: it knows letters, pads on the right, and has special tokens."""
    vocab = {
        token: i
        for i, token in enumerate(["<pad>", "<bos>", "<eos>", "<user>", "<assistant>", *map(chr, range(9, 127))])
    }
    tokenizer = Tokenizer(models.WordLevel(vocab))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"<[a-z]+>|[\s\S]"), behavior="isolated")
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")
