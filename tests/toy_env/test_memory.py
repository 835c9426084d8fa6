"""What is chosen by memory: the tokens of a pass, and the completions that are sampled at once."""

import os

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from toy_env import evaluation, memory
from toy_env.evaluation import evaluate, held_out
from toy_env.tasks import load_task

LLAMA = {"intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES = {  # with the proportions of SmolLM2, Qwen3-0.6B, Gemma 3 1B and GPT-2
    "llama": LLAMA | {"num_key_value_heads": 1},
    "qwen3": LLAMA | {"intermediate_size": 192, "num_key_value_heads": 2, "head_dim": 32},
    "gemma3_text": LLAMA | {"intermediate_size": 384, "num_key_value_heads": 1, "head_dim": 16},
    "gpt2": {"n_layer": 2, "n_head": 4},
}


def build(kind: str):
    config = CONFIG_MAPPING[kind](vocab_size=512, hidden_size=64, pad_token_id=0, **SIZES[kind])
    config.bos_token_id = config.eos_token_id = None
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture
def machine(monkeypatch):
    """A function that gives the machine so many bytes of memory."""

    def has(size: float) -> None:
        sizes = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": int(size)}
        monkeypatch.setattr(os, "sysconf", sizes.__getitem__)

    return has


@pytest.mark.parametrize("kind", SIZES)
def test_a_pass_keeps_what_is_estimated(kind, machine):
    """The tensors that autograd keeps for the backward pass, counted: at most a third more than the
    estimate, which is doubled, and at least a third of it. Fails if SAVED is 10."""
    policy, kept = build(kind), {}
    machine(1e8)
    weights = {p.untyped_storage().data_ptr() for p in policy.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes(), tensor  # so that its memory is not reused
        return tensor

    ids = torch.ones(4, 100, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy(input_ids=ids, use_cache=False).logits.log_softmax(dim=-1)
    floats = sum(size for size, _ in kept.values()) / 4
    estimate = ids.numel() * memory.floats_to_spare([policy])
    estimate /= memory.tokens_per_pass([policy], longest=1)
    assert estimate / 3 < floats < 4 / 3 * estimate


def test_more_memory_makes_larger_passes_and_there_are_always_eight_rows(machine):
    policy, sizes = build("llama"), []
    for size in (1e6, 1e8, 1e9):
        machine(size)
        sizes.append(memory.tokens_per_pass([policy], longest=100))
    assert sizes[0] == 800 < sizes[1] < sizes[2] / 9
    both = memory.tokens_per_pass([policy, build("llama")], longest=100)
    assert 0.4 < both / sizes[2] < 0.5  # PPO's critic needs its share


def test_evaluation_draws_as_many_rows_as_memory_holds(base, machine, monkeypatch):
    """All 1,024 at once, or the committed numbers would change; fewer where memory is small, and
    then their keys and values fit."""
    task, rows = load_task("arithmetic"), []

    def sample(policy, tokenizer, prompts, group_size, *rest):
        rows.append(len(prompts) * group_size)
        return original(policy, tokenizer, prompts, group_size, 2, *rest[1:])

    original = evaluation.sample
    monkeypatch.setattr(evaluation, "sample", sample)
    problems = held_out(task, 64, ())
    evaluate(*base, problems, samples=4, max_new_tokens=56)
    assert rows == [1024]
    rows.clear()
    machine(20 * 2**20)
    evaluate(*base, problems, samples=4, max_new_tokens=56)
    assert len(rows) > 1 and sum(rows) == 1024
    cache = 2 * 3 * 64 * 4 * (16 + 56)  # bytes of a row: 3 layers, 64 wide, prompt and completion
    assert rows[0] * cache < 20 * 2**20 - 16 * 152_192 < 4 * rows[0] * cache
