"""Sampling and scoring: the log-probabilities are the model's own, whatever the batch, the padding
and the cache do.

The truth they are compared with is `alone`: one row, no padding, no cache, one position at a time.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conftest import build_tiny_model
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedTokenizerFast

from lessons.float64 import to_float64
from toy_env import any_model, arithmetic
from toy_env.any_model import passes
from toy_env.checks import self_check
from toy_env.model import encode_prompts, end_ids, load_policy, model_prompts
from toy_env.rollout import Rollout, completion_logps, in_passes, sample

PROMPTS = ["1+1?", "29+46-36?", "5-5?", "12+34-5+6-7?"]  # different lengths: left padding


def draw(
    policy,
    tokenizer,
    prompts=PROMPTS,
    *,
    group_size=3,
    max_new_tokens=12,
    temperature=1.0,
    seed=0,
    **settings,
):
    generator = torch.Generator().manual_seed(seed)
    return sample(
        policy, tokenizer, prompts, group_size, max_new_tokens, temperature, generator, **settings
    )


@torch.no_grad()
def alone(
    policy, prompt_ids: list[int], completion_ids: list[int], temperature: float
) -> list[float]:
    """Log-probability of each completion token, from the whole prefix before it, by the definition
    of softmax."""
    logps = []
    for t, token in enumerate(completion_ids):
        prefix = torch.tensor([prompt_ids + completion_ids[:t]])
        scaled = policy(input_ids=prefix).logits[0, -1].double() / temperature
        logps.append(
            (scaled[token] - scaled.max() - (scaled - scaled.max()).exp().sum().log()).item()
        )
    return logps


def rows(rollout: Rollout):
    """(prompt ids, completion ids, recorded log-probs) of every row, padding removed."""
    for i in range(len(rollout)):
        yield (
            rollout.prompt_ids[i][rollout.prompt_mask[i]].tolist(),
            rollout.completion_ids[i][rollout.mask[i]].tolist(),
            rollout.logps[i][rollout.mask[i]].tolist(),
        )


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.8])
@pytest.mark.parametrize("which", ["tiny", "base"])
def test_every_row_has_the_logps_it_has_alone(which, temperature, request, tokenizer):
    """Sampled (with the cache) and recomputed (without) alike, to 1e-5: no trace of padding,
    neighbours or cache."""
    policy = request.getfixturevalue(which)
    policy = policy[0] if which == "base" else policy
    rollout = draw(policy, tokenizer, temperature=temperature)
    recomputed = completion_logps(policy, rollout, temperature, max_tokens_per_pass=100)
    assert rollout.truncated.any() or which == "base"
    for i, (prompt_ids, completion_ids, sampled) in enumerate(rows(rollout)):
        truth = alone(policy, prompt_ids, completion_ids, temperature)
        assert sampled == pytest.approx(truth, abs=1e-5)
        assert recomputed[i, : len(truth)].tolist() == pytest.approx(truth, abs=1e-5)
        assert not recomputed[i, len(truth) :].any() and not rollout.logps[i, len(truth) :].any()


SIZE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "initializer_range": 0.4,
}
LLAMA_LIKE = SIZE | {"intermediate_size": 32, "head_dim": 8, "num_key_value_heads": 2}
FAMILIES = {  # rotary, learned and linear-bias positions, sliding windows, experts, sinks; lfm2: convolutions, too
    "qwen3": LLAMA_LIKE,
    "gemma2": LLAMA_LIKE | {"sliding_window": 6},
    "mistral": LLAMA_LIKE | {"sliding_window": 6},
    "gpt_oss": LLAMA_LIKE | {"sliding_window": 6, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt2": SIZE,
    "opt": SIZE
    | {"ffn_dim": 32, "word_embed_proj_dim": 16, "max_position_embeddings": 128, "init_std": 0.4},
    "bloom": SIZE,
    "falcon": SIZE,
    "lfm2": LLAMA_LIKE | {"layer_types": ["conv", "full_attention"]},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_other_architectures_are_scored_as_they_are_sampled(family, tokenizer):
    """In one pass and in many, and the sampled log-probabilities are those of every row alone."""
    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](
        vocab_size=len(tokenizer),
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **FAMILIES[family],
    )
    policy = AutoModelForCausalLM.from_config(config).eval()
    rollout = draw(policy, tokenizer, group_size=4)
    assert not rollout.truncated.all()
    for budget in (10**6, 60):
        torch.testing.assert_close(
            completion_logps(policy, rollout, 1.0, budget), rollout.logps, atol=1e-5, rtol=0
        )
    for prompt_ids, completion_ids, sampled in list(rows(rollout))[::4]:
        assert sampled == pytest.approx(alone(policy, prompt_ids, completion_ids, 1.0), abs=1e-5)


# ---------------------------------------------------------------------- passes


@pytest.fixture(scope="module")
def ragged(base):
    """160 completions of the shipped base model: most have 4 tokens, a few 50."""
    return draw(*base, group_size=40, max_new_tokens=56)


@pytest.mark.parametrize("budget", [1, 40, 200, 1000, 10**6])
def test_passes_hold_every_row_once_within_the_budget_and_with_little_padding(ragged, budget):
    prompts, completions = (mask.sum(dim=1).tolist() for mask in (ragged.prompt_mask, ragged.mask))
    lengths = [n + t for n, t in zip(prompts, completions)]
    parts, cost = passes(prompts, completions, budget)
    order = [row for part in parts for row in part]
    assert sorted(order) == list(range(len(ragged)))
    assert [lengths[row] for row in order] == sorted(lengths, reverse=True)  # the longest first
    tokens = [len(part) * max(lengths[row] for row in part) for part in parts]
    assert sum(tokens) == cost
    for part, padded in zip(parts, tokens):
        assert padded <= budget or len(part) == 1
        assert padded - sum(lengths[row] for row in part) <= any_model.MOST_PADDING
    if budget == 10**6:  # as few passes as the padding allows, and most of a batch is not padding
        assert len(parts) < 8 and cost < 1.3 * sum(lengths) < 0.7 * len(ragged) * max(lengths)


@pytest.mark.parametrize("budget", [1, 40, 200, 10**6])
def test_passes_are_put_back_in_order(ragged, budget):
    """A `forward` that knows the row and the position of every token: each value returns to its own
    place."""
    named = replace(ragged, completion_ids=torch.arange(ragged.mask.numel()).view_as(ragged.mask))
    seen = []

    def forward(part):
        seen.append(int(part.prompt_mask.sum() + part.mask.sum()))
        return part.completion_ids.float()

    values = in_passes(forward, named, budget)
    assert sum(seen) == ragged.prompt_mask.sum() + ragged.mask.sum()
    assert torch.equal(values, torch.where(ragged.mask, named.completion_ids.float(), 0.0))


def test_logps_are_normalised(tiny, tokenizer):
    """The probabilities of all 19 possible first tokens sum to 1, at any temperature and behind any
    padding."""
    rollout = draw(
        tiny, tokenizer, ["1+1?", "29+46-36+1-1?"], group_size=len(tokenizer), max_new_tokens=1
    )
    every = replace(rollout, completion_ids=torch.arange(len(tokenizer)).repeat(2).unsqueeze(1))
    for temperature in (0.5, 1.0, 2.0):
        total = completion_logps(tiny, every, temperature).exp().view(2, -1).sum(dim=1)
        torch.testing.assert_close(total, torch.ones(2))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_tokens_are_drawn_from_the_full_softmax_at_the_temperature(tiny, tokenizer, temperature):
    """Frequencies of 40,000 first tokens against softmax(logits / T) over the whole vocabulary: no
    top-k, no top-p."""
    rollout = draw(
        tiny, tokenizer, ["7+8?"], group_size=40_000, max_new_tokens=1, temperature=temperature
    )
    logits = tiny(input_ids=tokenizer("7+8?", return_tensors="pt").input_ids).logits[0, -1]
    expected = 40_000 * torch.softmax(logits / temperature, dim=0)
    counts = torch.bincount(rollout.completion_ids[:, 0], minlength=len(tokenizer))
    assert (
        ((counts - expected) ** 2 / expected).sum() < 19 + 5 * 38**0.5
    ).item()  # chi-square, five deviations
    entropy = torch.distributions.Categorical(logits=logits / temperature).entropy().item()
    assert rollout.entropies[:, 0].tolist() == pytest.approx([entropy] * 40_000, abs=1e-5)


def test_mask_runs_up_to_the_first_eos_and_includes_it(tiny, tokenizer):
    rollout = draw(tiny, tokenizer, group_size=64, max_new_tokens=9)
    eos = tokenizer.eos_token_id
    finished = 0
    for ids, mask, cut in zip(
        rollout.completion_ids.tolist(), rollout.mask.tolist(), rollout.truncated.tolist()
    ):
        length = ids.index(eos) + 1 if eos in ids else 9
        assert mask == [t < length for t in range(len(ids))]
        assert cut == (eos not in ids)
        finished += not cut
    assert 0 < finished < len(rollout)


def test_a_completion_ends_at_any_end_token(tiny, tokenizer):
    """The tokenizer's, and those that generation_config names: the draws are the same, cut at the
    first of them."""
    four, seven = tokenizer.convert_tokens_to_ids(["4", "7"])
    whole = draw(tiny, tokenizer, ["1+1?"], group_size=64, max_new_tokens=1)
    tiny.generation_config.eos_token_id = [four, seven]
    assert end_ids(tiny, tokenizer).tolist() == sorted([tokenizer.eos_token_id, four, seven])
    first = draw(tiny, tokenizer, ["1+1?"], group_size=64, max_new_tokens=1)
    assert torch.equal(first.completion_ids, whole.completion_ids)
    cut = draw(tiny, tokenizer, group_size=64, max_new_tokens=9)
    seen = set()
    for ids, mask, truncated, text in zip(cut.completion_ids, cut.mask, cut.truncated, cut.texts):
        *inside, last = ids[mask].tolist()
        assert not {2, four, seven} & set(inside) and (last in (2, four, seven)) == (not truncated)
        assert tokenizer.decode(inside + [last] * int(truncated)) == text
        seen.add(last)
    assert {2, four, seven} <= seen
    logps = completion_logps(tiny, cut, 1.0)
    torch.testing.assert_close(logps, cut.logps)
    assert "completions end with their EOS" in self_check(
        cut, logps, None, tokenizer, end_ids(tiny, tokenizer)
    )
    with pytest.raises(RuntimeError, match="self-check failed"):
        self_check(cut, logps, None, tokenizer, torch.tensor([2]))


@pytest.mark.parametrize("temperature", [0.7, 0.0])
def test_drawing_with_generate_gives_every_row_the_logps_it_has_alone(
    temperature, tiny, tokenizer, monkeypatch
):
    """The path of models whose state cannot be cut row by row. Greedily it is the other path's
    completions; drawing, no penalty that the model's generation_config asks for has a say."""
    tiny.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(["9"])
    other = draw(tiny, tokenizer, temperature=temperature)
    monkeypatch.setattr("toy_env.rollout.has_rows", lambda cache: False)
    tiny.generation_config.repetition_penalty = 5.0
    rollout = draw(tiny, tokenizer, temperature=temperature)
    for prompt_ids, completion_ids, sampled in rows(rollout):
        assert sampled == pytest.approx(
            alone(tiny, prompt_ids, completion_ids, temperature or 1.0), abs=1e-5
        )
    assert rollout.truncated.any() and not rollout.truncated.all()
    assert tiny.generation_config.repetition_penalty == 5.0
    if temperature == 0:
        assert (
            torch.equal(rollout.completion_ids, other.completion_ids)
            and rollout.texts == other.texts
        )
        torch.testing.assert_close(rollout.entropies, other.entropies)


def test_mask_does_not_depend_on_the_pad_token(tiny, tokenizer):
    """With PAD = EOS, as in many models, the mask still ends after the first EOS and nothing else
    changes."""
    pad_is_eos = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<eos>",
        padding_side="left",
    )
    rollout, other = draw(tiny, tokenizer, group_size=16), draw(tiny, pad_is_eos, group_size=16)
    assert torch.equal(rollout.mask, other.mask) and rollout.texts == other.texts
    torch.testing.assert_close(rollout.logps, other.logps)
    torch.testing.assert_close(
        completion_logps(tiny, rollout, 1.0), completion_logps(tiny, other, 1.0)
    )


def test_eos_is_trained(tiny, tokenizer):
    """The logit of EOS at the last step gets a gradient: deciding to stop is an action."""
    rollout = draw(tiny, tokenizer, group_size=16)
    logps = completion_logps(tiny, rollout, 1.0)
    finished = ~rollout.truncated
    last = rollout.mask.sum(dim=1) - 1
    assert (rollout.completion_ids[finished, last[finished]] == tokenizer.eos_token_id).all()
    eos_logps = logps[finished, last[finished]]
    assert (eos_logps != 0).all()
    gradient = torch.autograd.grad(eos_logps.sum(), tiny.lm_head.weight)[0]
    assert gradient[tokenizer.eos_token_id].abs().max() > 1e-3


def test_what_stands_behind_the_eos_changes_nothing(tiny, tokenizer):
    rollout = draw(tiny, tokenizer, group_size=16)
    garbage = torch.where(
        rollout.mask, rollout.completion_ids, torch.randint(3, 19, rollout.mask.shape)
    )
    changed = replace(rollout, completion_ids=garbage)
    assert torch.equal(completion_logps(tiny, rollout, 1.0), completion_logps(tiny, changed, 1.0))


def test_groups_are_contiguous(base):
    """Row i belongs to prompt i // G: greedily, all rows of a group are what the prompt gives
    alone."""
    policy, tokenizer = base
    together = draw(policy, tokenizer, PROMPTS, group_size=3, temperature=0)
    assert together.texts == [
        text
        for p in PROMPTS
        for text in draw(policy, tokenizer, [p], group_size=3, temperature=0).texts
    ]
    decoded = tokenizer.batch_decode(together.prompt_ids, skip_special_tokens=True)
    assert decoded == [p for p in PROMPTS for _ in range(3)]


def test_greedy_takes_the_likeliest_token(tiny, tokenizer):
    rollout = draw(tiny, tokenizer, group_size=1, temperature=0, max_new_tokens=5)
    for prompt_ids, completion_ids, _ in rows(rollout):
        for t, token in enumerate(completion_ids):
            assert (
                tiny(input_ids=torch.tensor([prompt_ids + completion_ids[:t]]))
                .logits[0, -1]
                .argmax()
                == token
            )


@pytest.mark.parametrize("max_tokens_per_pass", [1, 40, 200, 10**6])
def test_passes_of_any_size_leave_the_gradient_as_it_is(tiny, tokenizer, max_tokens_per_pass):
    """For a loss with a normaliser of its own (the mean over all tokens of the batch) and unequal
    lengths, against the same loss from one forward pass a row."""
    policy = to_float64(tiny)
    rollout = draw(policy, tokenizer, max_new_tokens=40)
    assert len(set(rollout.mask.sum(dim=1).tolist())) > 3

    def gradient(logps: torch.Tensor) -> torch.Tensor:
        policy.zero_grad()
        assert logps.dtype == torch.float64 and logps.shape == rollout.mask.shape
        (
            (logps * torch.linspace(-1, 1, len(rollout)).unsqueeze(1)).sum() / rollout.mask.sum()
        ).backward()
        return torch.cat([p.grad.flatten() for p in policy.parameters()])

    def row_by_row() -> torch.Tensor:
        logps = torch.zeros_like(rollout.logps)
        for i, (prompt_ids, completion_ids, _) in enumerate(rows(rollout)):
            logits = policy(input_ids=torch.tensor([prompt_ids + completion_ids])).logits[
                0, len(prompt_ids) - 1 : -1
            ]
            logps[i, : len(completion_ids)] = torch.stack(
                [scores.log_softmax(dim=0)[token] for scores, token in zip(logits, completion_ids)]
            )
        return logps

    ours = gradient(completion_logps(policy, rollout, 1.0, max_tokens_per_pass))
    torch.testing.assert_close(ours, gradient(row_by_row()), rtol=1e-10, atol=1e-13)
    assert ours.abs().max() > 1e-3


def test_a_batch_over_the_budget_keeps_no_activations_for_the_backward_pass(tiny, tokenizer):
    rollout = draw(tiny, tokenizer, group_size=32)  # 128 rows

    def bytes_kept(max_tokens_per_pass: int) -> int:
        kept = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: kept.update({tensor.data_ptr(): tensor.nbytes}) or tensor,
            lambda tensor: tensor,
        ):
            completion_logps(tiny, rollout, 1.0, max_tokens_per_pass)
        return sum(kept.values())

    assert bytes_kept(200) < 0.1 * bytes_kept(10**6)


def test_no_dropout_when_training(tokenizer, tmp_path):
    build_tiny_model(len(tokenizer), attention_dropout=0.5).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    policy, _ = load_policy(str(tmp_path))
    rollout = draw(policy, tokenizer)
    assert torch.equal(
        completion_logps(policy, rollout, 1.0), completion_logps(policy, rollout, 1.0)
    )
    torch.testing.assert_close(
        completion_logps(policy, rollout, 1.0), rollout.logps, atol=1e-5, rtol=0
    )


def test_special_tokens_inside_a_completion_are_seen_by_the_verifier(tiny, tokenizer, monkeypatch):
    """PAD or BOS sampled between two digits must not vanish: "#3<pad>9" is not "#39"."""
    wanted = iter(tokenizer.convert_tokens_to_ids(["#", "3", "<pad>", "9", "<eos>"]))
    monkeypatch.setattr(
        torch, "multinomial", lambda p, n, generator: torch.full((len(p), 1), next(wanted))
    )
    assert draw(tiny, tokenizer, ["36+3?"], group_size=1).texts == ["#3<pad>9"]


def test_prompts_of_the_base_model_and_of_a_chat_model(tokenizer, letters):
    chat = letters
    ids, mask = encode_prompts(tokenizer, PROMPTS)
    assert tokenizer.decode(ids[0][mask[0]]) == "<bos>1+1?"
    assert (
        ids.shape == mask.shape
        and mask.dtype == torch.bool
        and not mask[0, 0]
        and mask[:, -1].all()
    )

    problems = [SimpleNamespace(prompt=prompt) for prompt in ("1+1?", "29+46-36?")]
    ids, mask = encode_prompts(chat, model_prompts(chat, problems[:1], arithmetic))
    assert chat.decode(ids[0]).startswith("<bos>Compute")
    assert chat.decode(ids[0]).endswith("example.\n\n29+46-36?\n29+46=75;75-36=39;#39\n\n1+1?")
    chat.chat_template = (
        "{{ bos_token }}{% for m in messages %}<user>{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}{% if enable_thinking is undefined or enable_thinking %}"
        "Let me think{% endif %}{% if thinking is undefined or thinking %}Hmm{% endif %}"
    )
    ids, mask = encode_prompts(chat, model_prompts(chat, problems, arithmetic))
    text = chat.decode(ids[1])
    assert text.startswith("<bos><user>Compute") and text.endswith("29+46-36?<assistant>")
    assert text.count("<bos>") == 1  # the template wrote it, so the tokenizer does not
    assert (
        not mask[0, 0] and mask[1].all()
    )  # left-padded, although this tokenizer's own default is right
