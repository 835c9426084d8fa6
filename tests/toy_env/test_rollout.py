"""Sampling and scoring: a batch, its padding and the cache leave the model's log-probabilities as
they are.

They are compared with `alone`: one row, no padding, no cache, one position at a time.
"""

import copy
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from conftest import build_tiny_model
from enumeration import flat_gradient
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from lessons.experiments.float64 import to_float64
from toy_env import arithmetic
from toy_env.model import encode_prompts, model_prompts
from toy_env.rollout import MOST_PADDING, Rollout, completion_logps, passes, sample

PROMPTS = ["1+1?", "29+46-36?", "5-5?", "12+34-5+6-7?"]  # different lengths: left padding


def draw(
    policy, tokenizer, prompts=PROMPTS, *, group_size=3, max_new_tokens=12, temperature=1.0
) -> Rollout:
    generator = torch.Generator().manual_seed(0)
    return sample(policy, tokenizer, prompts, group_size, max_new_tokens, temperature, generator)


@torch.no_grad()
def alone(
    policy, prompt_ids: list[int], completion_ids: list[int], temperature: float
) -> list[float]:
    """Log-probability of each completion token, from the whole prefix before it, by the definition
    of softmax."""
    logps = []
    for t, token in enumerate(completion_ids):
        prefix = torch.tensor([prompt_ids + completion_ids[:t]])
        logits = policy(input_ids=prefix).logits[0, -1].double() / temperature
        logits = logits - logits.max()
        logps.append((logits[token] - logits.exp().sum().log()).item())
    return logps


def rows(rollout: Rollout):
    """Prompt ids, completion ids and recorded log-probabilities of every row, without padding."""
    for i in range(len(rollout)):
        yield (
            rollout.prompt_ids[i][rollout.prompt_mask[i]].tolist(),
            rollout.completion_ids[i][rollout.mask[i]].tolist(),
            rollout.old_logps[i][rollout.mask[i]].tolist(),
        )


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.8])
@pytest.mark.parametrize("which", ["tiny", "base"])
def test_logps_are_those_of_each_row_alone(which, temperature, request, tokenizer):
    """To 1e-5, both the sampled ones (with the cache) and the scored ones (without)."""
    policy = request.getfixturevalue(which)
    policy = policy[0] if which == "base" else policy
    rollout = draw(policy, tokenizer, temperature=temperature)
    scored = completion_logps(policy, rollout, temperature, max_tokens_per_pass=100)
    assert rollout.truncated.any() or which == "base"
    for i, (prompt_ids, completion_ids, sampled) in enumerate(rows(rollout)):
        truth = alone(policy, prompt_ids, completion_ids, temperature)
        assert sampled == pytest.approx(truth, abs=1e-5)
        assert scored[i, : len(truth)].tolist() == pytest.approx(truth, abs=1e-5)
        assert not scored[i, len(truth) :].any() and not rollout.old_logps[i, len(truth) :].any()


SIZE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "initializer_range": 0.4,
}
LLAMA_LIKE = SIZE | {"intermediate_size": 32, "head_dim": 8, "num_key_value_heads": 2}
FAMILIES = {  # rotary, learned, linear-bias positions; sliding windows, experts, convolutions
    "qwen3": LLAMA_LIKE,
    "gemma2": LLAMA_LIKE | {"sliding_window": 6},
    "mistral": LLAMA_LIKE | {"sliding_window": 6},
    "gpt_oss": LLAMA_LIKE | {"sliding_window": 6, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt2": SIZE,
    "opt": SIZE | {"ffn_dim": 32, "word_embed_proj_dim": 16, "init_std": 0.4},
    "bloom": SIZE,
    "falcon": SIZE,
    "lfm2": LLAMA_LIKE | {"layer_types": ["conv", "full_attention"]},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_other_architectures(family, tokenizer):
    """They are scored as they are sampled, in one pass and in many, and as every row alone."""
    torch.manual_seed(0)
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = CONFIG_MAPPING[family](vocab_size=len(tokenizer), **ids, **FAMILIES[family])
    policy = AutoModelForCausalLM.from_config(config).eval()
    rollout = draw(policy, tokenizer, group_size=4)
    assert not rollout.truncated.all()
    for budget in (1_000_000, 60):
        scored = completion_logps(policy, rollout, 1.0, budget)
        torch.testing.assert_close(scored, rollout.old_logps, atol=1e-5, rtol=0)
    for prompt_ids, completion_ids, sampled in list(rows(rollout))[::4]:
        assert sampled == pytest.approx(alone(policy, prompt_ids, completion_ids, 1.0), abs=1e-5)


# Passes


@pytest.mark.parametrize("budget, most", [(1, 160), (200, 14), (1_000_000, 3)])
def test_passes(budget, most):
    """A few hold every row once, the longest first, within the budget and with little padding."""
    lengths = [8 + n % 7 + 40 * (n % 10 == 0) for n in range(160)]  # every tenth is long
    parts = passes(lengths, budget, MOST_PADDING)
    assert sorted(sum(parts, [])) == [*range(160)]
    widths = [[lengths[row] for row in part] for part in parts]
    assert sum(widths, []) == sorted(lengths, reverse=True) and len(parts) <= most
    for part in widths:
        tokens = len(part) * part[0]
        assert tokens <= budget or len(part) == 1
        assert tokens - sum(part) <= MOST_PADDING


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_tokens_are_drawn_from_the_full_softmax(tiny, tokenizer, temperature):
    """Frequencies of 40,000 first tokens against softmax(logits / T): no top-k, no top-p."""
    settings = {"group_size": 40_000, "max_new_tokens": 1, "temperature": temperature}
    rollout = draw(tiny, tokenizer, ["7+8?"], **settings)
    logits = tiny(input_ids=tokenizer("7+8?", return_tensors="pt").input_ids).logits[0, -1]
    truth = torch.distributions.Categorical(logits=logits / temperature)
    expected = 40_000 * truth.probs
    counts = torch.bincount(rollout.completion_ids[:, 0], minlength=len(tokenizer))
    five_deviations = 5 * 38**0.5
    assert ((counts - expected) ** 2 / expected).sum() < 19 + five_deviations
    entropies = truth.entropy().expand(40_000)
    torch.testing.assert_close(rollout.entropies[:, 0], entropies, atol=1e-5, rtol=0)


def test_the_mask_ends_with_the_first_end_token(tiny, tokenizer):
    """The tokenizer's, which is PAD in many models, or one that generation_config names."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.pad_token = "<eos>"
    ends, seen = {*tokenizer.convert_tokens_to_ids(["<eos>", "4", "7"])}, set()
    tiny.generation_config.eos_token_id = [*ends]
    rollout = draw(tiny, tokenizer, group_size=64, max_new_tokens=9)
    for ids, mask, truncated in zip(rollout.completion_ids, rollout.mask, rollout.truncated):
        *inside, last = ids[: mask.sum()].tolist()
        assert mask[: len(inside) + 1].all()
        assert not ends & set(inside) and (last in ends) == (not truncated)
        seen.add(last)
    assert ends <= seen
    torch.testing.assert_close(completion_logps(tiny, rollout, 1.0), rollout.old_logps)


def test_sampling_with_generate(tiny, tokenizer, monkeypatch):
    """For models whose cache cannot be cut row by row. Log-probabilities are those of each row
    alone, whatever penalty generation_config names; greedy completions are the usual ones."""
    tiny.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(["9"])
    greedy = draw(tiny, tokenizer, temperature=0)
    monkeypatch.setattr("toy_env.rollout.has_rows", lambda cache: False)
    tiny.generation_config.repetition_penalty = 5.0
    rollout = draw(tiny, tokenizer, temperature=0.7)
    for prompt_ids, completion_ids, sampled in rows(rollout):
        truth = alone(tiny, prompt_ids, completion_ids, 0.7)
        assert sampled == pytest.approx(truth, abs=1e-5)
    assert rollout.truncated.any() and not rollout.truncated.all()
    assert draw(tiny, tokenizer, temperature=0).texts == greedy.texts


@pytest.mark.parametrize("max_tokens_per_pass", [1, 40])
def test_passes_leave_the_gradient_as_it_is(tiny, tokenizer, max_tokens_per_pass):
    """For a mean over all tokens of a batch of unequal lengths, against one pass."""
    policy = to_float64(tiny)
    rollout = draw(policy, tokenizer, max_new_tokens=40)
    assert len(set(rollout.mask.sum(dim=1).tolist())) > 3
    weights = torch.linspace(-1, 1, len(rollout)).unsqueeze(1) / rollout.mask.sum()
    ours, whole = (
        flat_gradient((completion_logps(policy, rollout, 1.0, most) * weights).sum(), policy)
        for most in (max_tokens_per_pass, 1_000_000)
    )
    torch.testing.assert_close(ours, whole, rtol=1e-10, atol=1e-13)
    assert ours.dtype == torch.float64 and ours.abs().max() > 1e-3


def test_the_verifier_sees_special_tokens(tiny, tokenizer, monkeypatch):
    """A PAD sampled between two digits must not vanish: "#3<pad>9" is not "#39"."""
    wanted = iter(tokenizer.convert_tokens_to_ids(["#", "3", "<pad>", "9", "<eos>"]))

    def sure(logits, temperature):
        return torch.full_like(logits, -99.0).index_fill(1, torch.tensor(next(wanted)), 0.0)

    monkeypatch.setattr("toy_env.rollout.token_logps", sure)
    assert draw(tiny, tokenizer, ["36+3?"], group_size=1).texts == ["#3<pad>9"]


@pytest.mark.parametrize("layers", [1, 6])
def test_sampling_waits_for_the_device_once_a_token(tokenizer, layers):
    """A GPU is waited for where a tensor's number or length is read. At most one look for true
    entries and two numbers a token, and one look more at the end, however many layers. Here
    completions end one by one.

    Fails if the cache is cut by a mask, or if finite logits are asked for in every step.
    """
    policy, waits = build_tiny_model(len(tokenizer), layers=layers), Counter()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = function.overloadpacket.__name__
            masks = [x for x in tree_leaves(args[1:2]) if getattr(x, "dtype", None) == torch.bool]
            if name == "nonzero" or (name in ("index", "index_put_") and masks):
                waits["masks"] += 1
            waits["numbers"] += name in ("_local_scalar_dense", "multinomial")
            return function(*args, **kwargs or {})

    with Count():
        rollout = draw(policy, tokenizer, group_size=16, max_new_tokens=40)
    assert len(rollout.mask.sum(dim=1).unique()) > 10
    tokens = rollout.mask.shape[1]
    assert waits["masks"] <= tokens + 1 and waits["numbers"] <= 2 * tokens, waits


def test_prompts(tokenizer, letters):
    """Of the base model, padded on the left; of a language model, with the task's instruction; and
    of a chat model, in its template with thinking switched off."""
    ids, mask = encode_prompts(tokenizer, PROMPTS)
    assert tokenizer.decode(ids[0][mask[0]]) == "<bos>1+1?"
    assert not mask[0, 0] and mask[:, -1].all()

    problems = [SimpleNamespace(prompt="1+1?", reply="="), SimpleNamespace(prompt="29+46-36?")]
    one, two = (f"{arithmetic.INSTRUCTION}\n{problem.prompt}" for problem in problems)
    assert model_prompts(letters, problems, arithmetic) == [f"{one}=", two]
    letters.chat_template = (
        "{{ bos_token }}{% for m in messages %}<user>{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
        "{% if enable_thinking is undefined or enable_thinking %}Let me think{% endif %}"
        "{% if thinking is undefined or thinking %}Hmm{% endif %}"
    )
    prompts = model_prompts(letters, problems, arithmetic)
    assert prompts == [f"<bos><user>{one}<assistant>=", f"<bos><user>{two}<assistant>"]
    ids, mask = encode_prompts(letters, prompts)
    assert letters.decode(ids[1]) == prompts[1]  # with one BOS
    assert not mask[0, 0]  # though this tokenizer pads on the right by default
