"""The answer table of lesson 11, against whole forward passes."""

import pytest
import torch

from lessons.experiments import short_answers
from toy_env.arithmetic import LEVELS, held_out_problems
from toy_env.model import encode_prompts, load_policy


def test_the_table_holds_what_whole_forward_passes_give():
    policy, tokenizer = load_policy("base")
    problems = held_out_problems(1, LEVELS)
    table = short_answers.answer_table(policy, tokenizer, problems)

    def probability(prompt: str, completion: str) -> float:
        end = tokenizer.convert_tokens_to_ids([*completion, tokenizer.eos_token])
        whole = torch.cat([encode_prompts(tokenizer, [prompt])[0], torch.tensor([end])], dim=1)
        with torch.no_grad():
            logps = policy(whole).logits.double().log_softmax(dim=-1)
        return logps[0, range(-len(end) - 1, -1), end].sum().exp().item()

    for row, problem in zip(table, problems):
        for answer in (0, 7, 10, 14, 99):
            spellings = {f"#{answer}", f"#{answer:02}"}
            total = sum(probability(problem.prompt, text) for text in spellings)
            assert row[answer] == pytest.approx(total, rel=1e-4)
