"""The sloppy student, and the base model that imitates him."""

import hashlib
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from toy_env import expressions, pretrain
from toy_env.arithmetic import LEVELS, Problem, extract_answer, held_out_problems, sample_problems
from toy_env.evaluate import evaluate
from toy_env.model import BASE_MODEL, load_policy
from toy_env.tasks import TASKS, base_model, load_task

ROOT = Path(__file__).parent.parent


def few_steps() -> str:
    """The digest of the weights after four steps on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model, _ = pretrain.train(pretrain.Config(steps=4, batch_size=16))
    finally:
        torch.set_num_threads(threads)
    return hashlib.sha256(
        b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    ).hexdigest()


@pytest.mark.slow
def test_pretraining_is_reproduced_bit_for_bit_in_another_process():
    """Four steps in two processes with different hash seeds give the same weights."""
    code = "import sys; sys.path.insert(0, 'tests'); from test_pretrain import few_steps; print(few_steps())"
    env = {**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    there = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert there.stdout.strip() == few_steps(), there.stderr


def test_completion_loss_counts_completion_tokens_and_eos_only(tiny, tokenizer):
    """Against one softmax at a time: no prompt token, no padding, EOS included."""
    rows = [("1+1?", "#2"), ("29+46-36?", "29+46=75;75-36=39;#39")]
    truth = 0.0
    for prompt, completion in rows:
        characters = tokenizer.convert_tokens_to_ids(list(prompt + completion))
        ids = [tokenizer.bos_token_id, *characters, tokenizer.eos_token_id]
        logp = tiny(input_ids=torch.tensor([ids])).logits[0].log_softmax(dim=-1)
        truth -= sum(logp[i - 1, ids[i]].item() for i in range(1 + len(prompt), len(ids)))
    assert pretrain.completion_loss(tiny, tokenizer, rows).item() == pytest.approx(truth, rel=1e-5)


def test_the_student_is_sloppy_as_described():
    rng = random.Random(0)
    worked, right, total = Counter(), Counter(), Counter()
    for problem in sample_problems(20_000, LEVELS, rng):
        completion = pretrain.demonstrate(problem, rng)
        kind = "worked" if "=" in completion else "direct"
        assert 0 <= extract_answer(completion) <= 99
        total[problem.level] += 1
        worked[problem.level] += kind == "worked"
        total[kind] += 1
        right[kind] += extract_answer(completion) == problem.answer
    for level in LEVELS:
        assert worked[level] / total[level] == pytest.approx(pretrain.WORKED[level], abs=0.03)
    assert right["worked"] / total["worked"] > 0.95 and right["direct"] / total["direct"] < 0.4


def test_worked_demonstrations_are_written_out_in_full():
    rng = random.Random(1)
    problem = Problem("29+46-36", 39, 2)
    seen = Counter(pretrain.demonstrate(problem, rng) for _ in range(2000))
    assert seen["29+46=75;75-36=39;#39"] > 300
    assert (
        seen["#49"] > seen["#39"]
    )  # in his head he forgets the carry of 29+46, or the borrow of 75-36


def test_the_student_of_expressions_gives_one_or_repeats_the_number():
    """He is right with probability (last digit + 1/2) / 10, in any of all ways, and else he has one
    answer."""
    rng = random.Random(0)
    for target in (37, 50, 99):
        said = Counter(
            pretrain.demonstrate_expression(expressions.Problem(target), rng) for _ in range(10_000)
        )
        right = {
            text: n
            for text, n in said.items()
            if expressions.reward(expressions.Problem(target), text) == 1
        }
        assert set(said) - set(right) == {f"#{target}"} and len(right) == 98
        assert abs(sum(right.values()) / 10_000 - (target % 10 + 0.5) / 10) < 0.02
        assert max(right.values()) < 2 * sum(right.values()) / 98 + 20


@pytest.mark.parametrize(
    "flags, code, message",
    [
        ("--out_dir=.", 2, "folder '.' is not empty; choose another --out_dir"),
        ("--out_dir=file/x", 1, "error: file/x (Not a directory)"),
        ("--task=toy_env.algebra", 2, "there is no task 'toy_env.algebra'"),
        (
            "--task=my.task",
            2,
            "--task my.task has no student, a function demonstrate(problem, rng, diligent=False)",
        ),
        ("--steps=1000000000000", 2, "error: --steps must be 1"),
        ("--learning_rate=1e38 --steps=3", 1, "loss is nan in step 3: training has diverged"),
        ("--learning_rate=1e38 --steps=2", 1, "a weight is not finite: training has diverged"),
    ],
)
def test_what_fails_is_one_line_and_leaves_nothing(
    flags, code, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    monkeypatch.setattr("sys.argv", ["pretrain", "--out_dir=new", "--batch_size=4", *flags.split()])
    monkeypatch.setattr("sys.path", [*sys.path])
    Path("my").mkdir()
    Path("my/task.py").write_text("from toy_env.arithmetic import *\n", "utf-8")
    with pytest.raises(SystemExit) as stop:
        pretrain.run_main(pretrain.Config, pretrain.main, None)
    err = capsys.readouterr().err.rpartition("\r")[2].splitlines()
    assert stop.value.code == code and message in err[-1] and len(err) <= 1 + (code != 2), err
    assert not Path("new").exists() or not os.listdir("new")  # so that the next try can use it


def test_a_task_may_bring_its_student_along():
    """That of the experiments runs; what the model cannot read is refused."""
    config = pretrain.Config(task="lessons.experiments.slips", steps=1, batch_size=4)
    pretrain.train(config)
    task = pretrain.load_task(config.task)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "demonstrate", lambda problem, rng, diligent: "x")
        with pytest.raises(
            pretrain.UsageError, match="the model reads only .*, and --task .*slips has 'x'"
        ):
            pretrain.train(config)


def test_pretrain_command_writes_what_transformers_loads(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["pretrain", f"--out_dir={tmp_path / 'm'}", "--steps=2", "--batch_size=4"]
    )
    pretrain.run_main(pretrain.Config, pretrain.main, None)
    assert "Saved in" in capsys.readouterr().out
    AutoModelForCausalLM.from_pretrained(tmp_path / "m")


def test_tokenizer_is_one_character_one_token():
    tokenizer = AutoTokenizer.from_pretrained(BASE_MODEL)
    assert len({tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}) == 3
    text = "29+46=75;75-36=39;#39?108"
    ids = tokenizer(text).input_ids
    assert ids[0] == tokenizer.bos_token_id and len(ids) == 1 + len(text)
    assert tokenizer.decode(ids[1:]) == text
    assert tokenizer.get_vocab() == pretrain.build_tokenizer().get_vocab() and len(tokenizer) == 19


@pytest.mark.parametrize("task", TASKS)
def test_the_shipped_base_models_are_small_and_plain(task):
    folder = Path(base_model(load_task(task)))
    assert sum(path.stat().st_size for path in folder.iterdir()) < 3 * 1024**2
    assert {path.suffix for path in folder.iterdir()} <= {".json", ".safetensors", ".md"}
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32 and sum(p.numel() for p in model.parameters()) == 152_192
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert digest in (folder / "README.md").read_text(
        "utf-8"
    )  # the card describes these weights and no others


def test_the_shipped_base_model_is_what_its_card_says(base):
    """The demands on a base that RL can improve, on the card's problems, 32 samples each (the card:
    64)."""
    problems = held_out_problems(64)
    sampled = evaluate(*base, problems, samples=32, max_new_tokens=56)
    greedy = evaluate(*base, problems, samples=1, max_new_tokens=56, temperature=0)
    rates = sampled.correct.mean(axis=1)
    assert 0.30 <= rates.mean() <= 0.45
    assert 0.08 <= sampled.worked.mean() <= 0.30
    assert (rates < 0.1).mean() >= 0.1 and (rates > 0.9).mean() >= 0.1
    assert sampled.entropy > 0.15
    assert greedy.worked.mean() < 0.1
    assert all(greedy.correct[greedy.level(level)].mean() < 0.5 for level in (2, 3, 4))
    assert sampled.correct[sampled.worked].mean() > 0.85  # what RL has to discover


def test_the_base_model_of_expressions_is_what_its_card_says():
    """Success probabilities spread over the targets, and nearly every wrong answer the same."""
    policy = load_policy(base_model(expressions))
    sampled = evaluate(
        *policy, expressions.HELD_OUT, samples=64, max_new_tokens=56, task=expressions
    )
    rates = sampled.correct.mean(axis=1)
    assert 0.38 <= rates.mean() <= 0.52 and rates.min() < 0.15 and rates.max() > 0.85
    answers = zip(sampled.problems, map(np.array, sampled.texts), sampled.correct)
    wrong = [(problem, text) for problem, texts, correct in answers for text in texts[~correct]]
    assert np.mean([text == f"#{problem.answer}" for problem, text in wrong]) > 0.97
    right = [
        len(set(np.array(row)[ok])) / ok.sum()
        for row, ok in zip(sampled.texts, sampled.correct)
        if ok.sum() > 9
    ]
    assert np.mean(right) > 0.6
