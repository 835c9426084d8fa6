"""Models that are not of this repository: which of them grpo.py trains, and which it refuses at the
start or at the first minibatch."""

import json

import pytest
import torch
from tokenizers import AddedToken, normalizers, processors
from transformers import AutoConfig, AutoModelForCausalLM, BartForCausalLM, BertLMHeadModel

from algorithms import grpo
from toy_env import arithmetic, rollout
from toy_env.evaluation import held_out
from toy_env.model import BASE_MODEL, check_tokenizer, end_ids, load_policy, turn_end
from toy_env.rollout import completion_logps, sample
from toy_env.tasks import find_model

GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 256}
LLAMA = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
LLAMA |= {"intermediate_size": 32, "initializer_range": 0.4}
BART = {"d_model": 16, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 32}
BART |= {"init_std": 0.4, "max_position_embeddings": 256}


@pytest.fixture
def save(tmp_path, letters):
    """save(kind, **sizes) writes a random model and the tokenizer to the folder "model"."""

    def write(kind: str, model=AutoModelForCausalLM, **sizes) -> None:
        torch.manual_seed(0)
        ids = {"vocab_size": len(letters), "bos_token_id": 1, "eos_token_id": 2}
        config = AutoConfig.for_model(kind, **ids | sizes)
        build = getattr(model, "from_config", model)
        build(config).save_pretrained(tmp_path / "model")
        letters.save_pretrained(tmp_path / "model")

    return write


@pytest.fixture
def train_on(train, tmp_path):
    """train_on(**settings) trains that model with grpo.py."""

    def run(**settings) -> list[dict]:
        settings = {"prompts_per_step": 4, "max_new_tokens": 8} | settings
        return train(grpo, model=str(tmp_path / "model"), **settings)

    return run


# Trained


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("gpt2", GPT2 | {"resid_pdrop": 0.5}),
        ("qwen3", LLAMA | {"num_key_value_heads": 2, "attention_dropout": 0.5}),
        ("lfm2", LLAMA | {"num_key_value_heads": 2, "layer_types": ["conv", "full_attention"]}),
    ],
)
def test_trained(kind, sizes, save, train_on, letters, tmp_path, spy, capsys):
    """A checkpoint in bfloat16, without PAD. Dropout, which two of them bring along, stays off: it
    would train other log-probabilities than were sampled. The cache of LFM2 cannot be cut row by
    row. Nothing is right in two batches, which is said once."""
    letters.pad_token = None
    save(kind, **sizes, dtype=torch.bfloat16)
    generated = spy(rollout, "generate")
    rows = train_on()
    assert bool(generated) == (kind == "lfm2")
    assert len(rows) == 2 and all(row["mismatch"] < 1e-5 for row in rows)
    assert capsys.readouterr().out.count("teach nothing") == 1
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "run/checkpoint")
    assert trained.dtype == torch.float32


def test_what_ends_a_reply(save, letters, tmp_path):
    """The tokenizer's EOS, the one in generation_config.json, and the special token after a turn in
    the chat template, which may change what is said; no other text after it, and none of a template
    that writes no reply."""
    letters.add_tokens([AddedToken(text, special=True) for text in ("<|stop|>", "<|turn|>")])
    stop, turn = letters.convert_tokens_to_ids(["<|stop|>", "<|turn|>"])
    start = "{% for turn in messages %}{{ turn.role | upper }} {{ turn.content | upper }}"
    letters.chat_template = start + " <|turn|>\n{% endfor %}"
    save("gpt2", **GPT2)
    path = tmp_path / "model/generation_config.json"
    path.write_text(json.dumps({"eos_token_id": stop}), "utf-8")
    policy, tokenizer = load_policy(str(tmp_path / "model"))
    assert end_ids(policy, tokenizer).tolist() == [2, stop, turn]
    no_reply = "<|turn|>{{ messages[0].content }}"
    others = [start + end + "{% endfor %}" for end in ("", "ab", " a<|turn|>")]
    for template in [no_reply, *others]:
        tokenizer.chat_template = template
        assert turn_end(tokenizer) == []


def test_what_a_model_is_called(monkeypatch):
    """The shell leaves the ~ in --model=~/model."""
    monkeypatch.setenv("HOME", "/home/me")
    assert find_model("~/model", arithmetic) == "/home/me/model"
    assert find_model("owner/model", arithmetic) == "owner/model"
    assert find_model("base", arithmetic) == str(BASE_MODEL)


# Refused


def test_an_adapter_alone(save, tmp_path):
    """Also beside the weights of a model, where transformers leaves it out without a word."""
    save("gpt2", **GPT2)
    (tmp_path / "model/adapter_config.json").write_text("{}", "utf-8")
    with pytest.raises(SystemExit, match="is a LoRA adapter; merge it"):
        load_policy(str(tmp_path / "model"))


def refused(train_on, tmp_path, **settings) -> str:
    """The line that ends a run before its first step."""
    with pytest.raises(SystemExit) as end:
        train_on(**settings)
    log = tmp_path / "run/metrics.jsonl"
    assert not log.exists() or not log.read_text("utf-8")
    line = str(end.value.code)
    assert len(line.splitlines()) == 1 and "give another" in line
    return line


@pytest.mark.parametrize(
    ("kind", "model", "sizes"),
    [("bert", BertLMHeadModel, LLAMA), ("bart", BartForCausalLM, BART)],
)
def test_log_probabilities_that_change(kind, model, sizes, save, train_on, tmp_path):
    """In an encoder with later tokens, in BART with the padding, which moves its positions."""
    save(kind, model, **sizes)
    refused(train_on, tmp_path)


def test_a_tokenizer_that_ends_every_prompt(save, train_on, tmp_path, letters):
    special = [("<bos>", 1), ("<eos>", 2)]
    ends = processors.TemplateProcessing(single="<bos> $A <eos>", special_tokens=special)
    letters.backend_tokenizer.post_processor = ends
    save("gpt2", **GPT2)
    assert "tokenizer" in refused(train_on, tmp_path)


TEMPLATE = "{% for turn in messages %}<user>{{ turn.content CHANGE }}{% endfor %}<assistant>"


@pytest.mark.parametrize(
    ("lost", "template"), [("7", None), (" ", None), ("", "| replace(' ', '')"), ("qwen2", None)]
)
def test_a_tokenizer_that_loses_characters(lost, template, save, train_on, tmp_path, letters):
    """A digit; spaces, in the tokenizer, in its chat template, and because transformers replaces
    the tokenizer in the folder of a Qwen2 by one of its own. Broken on purpose: spaces left out of
    the comparison, or what the template makes of a prompt."""
    letters.chat_template = template and TEMPLATE.replace("CHANGE", template)
    if lost == "qwen2":
        save(lost, **LLAMA)
    else:
        letters.backend_tokenizer.normalizer = normalizers.Replace(lost, "") if lost else None
        save("gpt2", **GPT2)
    assert "loses characters" in refused(train_on, tmp_path)


@pytest.mark.parametrize("change", ["| upper", "| replace('\n', '  ')"])
@pytest.mark.parametrize("normalizer", [normalizers.Lowercase(), normalizers.Prepend(" "), None])
def test_a_tokenizer_that_writes_otherwise(change, normalizer, save, tmp_path, letters):
    """In another case, with other white space or with a space in front, and loses nothing: it is
    taken. Broken on purpose: case compared."""
    letters.chat_template = TEMPLATE.replace("CHANGE", change)
    letters.backend_tokenizer.normalizer = normalizer
    save("gpt2", **GPT2)
    model = load_policy(str(tmp_path / "model"))
    check_tokenizer(*model, held_out(arithmetic, 64, ()), arithmetic)


@pytest.mark.parametrize("end", ["#", "9"])
def test_an_end_token_that_an_answer_needs(end, save, train_on, tmp_path, letters):
    """Also a digit of some answers. Broken on purpose: only the sign in front looked at."""
    save("gpt2", **GPT2)
    ends = json.dumps({"eos_token_id": [2, letters.convert_tokens_to_ids(end)]})
    (tmp_path / "model/generation_config.json").write_text(ends, "utf-8")
    assert f"'{end}' ends a completion" in refused(train_on, tmp_path, eval_problems=16)


def test_scores_that_are_not_those_of_the_sampler(train, monkeypatch):
    """A mistake in the code, such as another temperature, is refused too."""

    def score(policy, rollout, temperature, most):
        return completion_logps(policy, rollout, 1.1 * temperature, most)

    monkeypatch.setattr(grpo, "completion_logps", score)
    with pytest.raises(SystemExit):
        train(grpo, kl_coef=0.0)


def test_a_mask_without_the_eos(train, monkeypatch):
    """Is refused at the first minibatch: the last action, to stop, would not be trained."""

    def sample_without_eos(*inputs, **settings):
        rollout = sample(*inputs, **settings)
        rollout.mask.scatter_(1, rollout.mask.sum(dim=1, keepdim=True) - 1, False)
        rollout.old_logps *= rollout.mask
        return rollout

    monkeypatch.setattr(grpo, "sample", sample_without_eos)
    with pytest.raises(SystemExit):
        train(grpo)
