"""The answer table of lesson 11, against whole forward passes."""

import pytest
import torch

from lessons.experiments import short_answers
from toy_env.arithmetic import LEVELS, held_out_problems
from toy_env.model import encode_prompts, load_policy
from toy_env.rollout import position_ids


def test_the_table_holds_what_whole_forward_passes_give():
    policy, tokenizer = load_policy("base")
    problems = held_out_problems(1, LEVELS)
    table = short_answers.answer_table(policy, tokenizer, problems)

    def probability(prompt: str, completion: str) -> float:
        ids = tokenizer.convert_tokens_to_ids(list(completion)) + [tokenizer.eos_token_id]
        whole = torch.cat([encode_prompts(tokenizer, [prompt])[0], torch.tensor([ids])], dim=1)
        mask = torch.ones_like(whole, dtype=torch.bool)
        with torch.no_grad():
            logits = policy(whole, attention_mask=mask, position_ids=position_ids(mask)).logits[0]
        logps = logits[-len(ids) - 1 : -1].double().log_softmax(dim=-1)
        return logps[torch.arange(len(ids)), ids].sum().exp().item()

    for row, problem in zip(table, problems):
        for answer in (0, 7, 10, 14, 99):
            spellings = [f"#{answer}", f"#0{answer}"] if answer < 10 else [f"#{answer}"]
            total = sum(probability(problem.prompt, text) for text in spellings)
            assert row[answer] == pytest.approx(total, rel=1e-4)
