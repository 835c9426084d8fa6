"""What is chosen by memory: the tokens of a pass, and the completions that are sampled at once."""

import os

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from toy_env import arithmetic, evaluation, memory
from toy_env.evaluation import evaluate, held_out


@pytest.fixture
def machine(monkeypatch):
    """A function that gives the machine so many bytes of memory."""

    def has(size: float) -> None:
        sizes = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": int(size)}
        monkeypatch.setattr(os, "sysconf", sizes.__getitem__)

    return has


@pytest.mark.parametrize("wide, heads", [(176, 1), (384, 4)])
def test_a_pass_keeps_what_is_estimated(wide, heads, machine):
    """The tensors that autograd keeps for the backward pass, counted: within a factor of 2 of the
    estimate, which leaves half of the memory free. Fails if SAVED is 10."""
    sizes = {"hidden_size": 64, "intermediate_size": wide, "num_hidden_layers": 2}
    attention = {"num_attention_heads": 4, "num_key_value_heads": heads}
    policy, kept = LlamaForCausalLM(LlamaConfig(vocab_size=512, **sizes, **attention)).eval(), {}
    machine(1e8)
    weights = {p.data_ptr() for p in policy.parameters()}

    def keep(tensor):  # a view keeps its whole storage
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    ids = torch.ones(4, 100, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy(input_ids=ids, use_cache=False).logits.log_softmax(dim=-1)
    stored = [kept[where].untyped_storage().nbytes() / 4 for where in kept.keys() - weights]
    floats = memory.floats_to_spare([policy]) / memory.tokens_per_pass([policy], longest=1)
    assert 0.5 < sum(stored) / (floats * ids.numel()) < 1.33


def test_more_memory_makes_larger_passes_and_there_are_always_eight_rows(tiny, machine):
    sizes = []
    for size in (1e5, 1e8, 1e9):
        machine(size)
        sizes.append(memory.tokens_per_pass([tiny], longest=100))
    assert sizes[0] == 800 < sizes[1] < sizes[2] / 9
    both = memory.tokens_per_pass([tiny, tiny], longest=100)
    assert 0.4 < both / sizes[2] <= 0.5  # PPO's critic needs its share


def test_evaluation_draws_as_many_rows_as_memory_holds(base, machine, monkeypatch):
    """All 1,024 at once, or the committed numbers would change; fewer where memory is small."""
    draw, rows = evaluation.sample, []

    def sample(policy, tokenizer, prompts, group_size, limit, *rest):
        rows.append(len(prompts) * group_size)
        return draw(policy, tokenizer, prompts, group_size, 1, *rest)

    monkeypatch.setattr(evaluation, "sample", sample)
    problems = held_out(arithmetic, 64, ())
    evaluate(*base, problems, samples=4, max_new_tokens=56)
    machine(20 * 2**20)
    evaluate(*base, problems, samples=4, max_new_tokens=56)
    assert rows[0] == 1024 == sum(rows[1:])
    # Keys and values of a row: 3 layers, 64 wide, a prompt of at most 16 tokens and its completion
    assert rows[1] * 2 * 3 * 64 * 4 * (16 + 56) < 20 * 2**20
