"""The sloppy student, and the base model that imitates him."""

import hashlib
import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import python
from transformers import AutoModelForCausalLM, AutoTokenizer

from lessons.experiments import slips
from toy_env import pretrain
from toy_env.arithmetic import LEVELS, extract_answer, sample_problems
from toy_env.model import BASE_MODEL
from toy_env.tasks import TASKS, base_model, find_module


@pytest.mark.slow
def test_pretraining_is_reproduced_in_another_process():
    """Four steps in two processes with different hash seeds give the same weights, bit for bit."""
    code = """
import hashlib
from toy_env import pretrain
model, _ = pretrain.train(pretrain.Config(steps=4, batch_size=16))
weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print(hashlib.sha256(weights).hexdigest())
"""
    one, two = (python("-c", code, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert one.stdout == two.stdout and len(one.stdout) == 65, one.stderr


def test_completion_loss(tiny, tokenizer):
    """Against one softmax at a time: EOS counts; prompts and padding do not."""
    rows = [("1+1?", "#2"), ("29+46-36?", "29+46=75;75-36=39;#39")]
    truth = 0.0
    for prompt, completion in rows:
        characters = tokenizer.convert_tokens_to_ids(list(prompt + completion))
        ids = [tokenizer.bos_token_id, *characters, tokenizer.eos_token_id]
        logp = tiny(input_ids=torch.tensor([ids])).logits[0].log_softmax(dim=-1)
        truth -= sum(logp[i - 1, ids[i]].item() for i in range(1 + len(prompt), len(ids)))
    assert pretrain.completion_loss(tiny, tokenizer, rows).item() == pytest.approx(truth, rel=1e-5)


def test_the_student_is_sloppy():
    """He works problems out as often as described, and is right then, but rarely otherwise."""
    rng = random.Random(0)
    right: dict[tuple[int, bool], list[bool]] = defaultdict(list)
    for problem in sample_problems(8_000, LEVELS, rng):
        completion = pretrain.demonstrate(problem, rng)
        key = problem.level, "=" in completion
        right[key].append(extract_answer(completion) == problem.answer)
    for level in LEVELS:
        worked, direct = right[level, True], right[level, False]
        share = len(worked) / len(worked + direct)
        assert share == pytest.approx(pretrain.WORKED[level], abs=0.04)
        assert np.mean(worked) > 0.9 > 0.7 > np.mean(direct)


def test_a_task_may_bring_its_student_along(spy, monkeypatch):
    """Worked demonstrations, those that the task calls so, go through apart from the others.

    Seen to fail: with arithmetic's `is_worked`."""
    demonstrations, losses = spy(slips, "demonstrate"), spy(pretrain, "completion_loss")
    monkeypatch.setattr(slips, "is_worked", lambda completion: "+" in completion)
    pretrain.train(pretrain.Config(task="lessons.experiments.slips", steps=1, batch_size=16))
    assert len(demonstrations) == 16
    parts = [{"+" in text for _, text in call.args[2]} for call in losses]
    assert parts == [{True}, {False}]


def test_the_command(tmp_path):
    """Its folder is one that transformers loads; a folder that is not empty is refused."""
    folder = tmp_path / "new"
    config = pretrain.Config(out_dir=str(folder), steps=2, batch_size=4)
    pretrain.main(config)
    AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(SystemExit, match="--out_dir"):
        pretrain.main(config)


def test_tokenizer_is_one_character_one_token():
    tokenizer = AutoTokenizer.from_pretrained(BASE_MODEL)
    assert len({tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}) == 3
    text = "29+46=75;75-36=39;#39?108"
    ids = tokenizer(text).input_ids
    assert ids[0] == tokenizer.bos_token_id and len(ids) == 1 + len(text)
    assert tokenizer.decode(ids[1:]) == text
    assert tokenizer.get_vocab() == pretrain.build_tokenizer().get_vocab()


@pytest.mark.parametrize("task", TASKS)
def test_the_shipped_base_models_are_small_and_plain(task):
    folder = Path(base_model(find_module(task)))
    assert sum(path.stat().st_size for path in folder.iterdir()) < 3 * 1024**2
    assert {path.suffix for path in folder.iterdir()} <= {".json", ".safetensors", ".md"}
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert digest in (folder / "README.md").read_text("utf-8")  # the card is of these weights
