"""The runs behind lesson 11, and what it says about sharpening: on an answer table that a forward pass confirms."""

import json
from dataclasses import replace

import pytest
import torch
from test_grid import one_by_one

from lessons.experiments import grid, short_answers
from toy_env.arithmetic import LEVELS, held_out_problems
from toy_env.model import encode_prompts, load_policy
from toy_env.rollout import position_ids


def test_the_table_holds_what_whole_forward_passes_give():
    policy, tokenizer = load_policy("base")
    problems = held_out_problems(1, LEVELS)
    for T in (1.0, 0.5):
        table = short_answers.answer_table(short_answers.answer_logits(policy, tokenizer, problems), tokenizer, T)
        for row, problem in enumerate(problems):
            for answer in (0, 7, 10, 14, 99):
                tail = [*tokenizer.convert_tokens_to_ids(list(f"#{answer}")), tokenizer.eos_token_id]
                tails = [tail]
                if answer < 10:  # "#07" is the other spelling
                    tails.append([*tokenizer.convert_tokens_to_ids(list(f"#0{answer}")), tokenizer.eos_token_id])
                total = 0.0
                for ids in tails:
                    prompt, _ = encode_prompts(tokenizer, [problem.prompt])
                    whole = torch.cat([prompt, torch.tensor([ids])], dim=1)
                    mask = torch.ones_like(whole, dtype=torch.bool)
                    with torch.no_grad():
                        logits = policy(input_ids=whole, attention_mask=mask, position_ids=position_ids(mask)).logits
                    logps = (logits[0, -len(ids) - 1 : -1].double() / T).log_softmax(dim=-1)
                    total += logps[torch.arange(len(ids)), ids].sum().exp().item()
                assert table[row, answer] == pytest.approx(total, rel=1e-4)


def test_the_committed_runs_are_those_of_the_command(tmp_path, monkeypatch):
    """One arm, one seed, trained again: the same probabilities, up to what another machine's rounding may change."""
    arm, stored = "GRPO, large steps", short_answers.load()
    assert set(stored) == set(short_answers.ARMS)
    assert all(values.shape == (5, 64) for of_arm in stored.values() for values in of_arm.values())
    committed, threads = json.loads(short_answers.RESULTS.read_text("utf-8")), torch.get_num_threads()
    assert {(run["arm"], run["learning_rate"], run["batches"]) for run in committed["runs"]} == {
        (name, *settings) for name, settings in short_answers.ARMS.items()
    }
    monkeypatch.setattr(grid, "in_parallel", one_by_one)
    monkeypatch.setattr(short_answers, "RESULTS", tmp_path / "again.json")
    monkeypatch.setattr(short_answers, "ARMS", {arm: short_answers.ARMS[arm]})
    config = short_answers.Config(seeds=1, output=str(tmp_path / "runs"))
    short_answers.main(config)
    assert not short_answers.RESULTS.exists(), "only --publish replaces the committed runs"
    short_answers.main(replace(config, publish=True))
    torch.set_num_threads(threads)
    again, before = short_answers.load(short_answers.RESULTS)[arm], stored[arm]
    same = torch.__version__.startswith("2.13")  # the torch that made them; another one draws other answers
    for name in ("right", "in time"):
        means, mean = before[name].mean(axis=1), again[name][0].mean()
        assert mean == pytest.approx(means[0], abs=0.02) if same else min(means) - 0.2 < mean < max(means) + 0.2
    assert not same or (again["mode"][0] == before["mode"][0]).mean() > 0.9
    assert committed["command"] == json.loads(short_answers.RESULTS.read_text("utf-8"))["command"]
