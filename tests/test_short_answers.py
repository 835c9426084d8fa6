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
    for T in (1.0, 0.5):
        table = short_answers.answer_table(
            short_answers.answer_logits(policy, tokenizer, problems), tokenizer, T
        )
        for row, problem in enumerate(problems):
            for answer in (0, 7, 10, 14, 99):
                tail = [
                    *tokenizer.convert_tokens_to_ids(list(f"#{answer}")),
                    tokenizer.eos_token_id,
                ]
                tails = [tail]
                if answer < 10:  # "#07" is the other spelling
                    tails.append(
                        [
                            *tokenizer.convert_tokens_to_ids(list(f"#0{answer}")),
                            tokenizer.eos_token_id,
                        ]
                    )
                total = 0.0
                for ids in tails:
                    prompt, _ = encode_prompts(tokenizer, [problem.prompt])
                    whole = torch.cat([prompt, torch.tensor([ids])], dim=1)
                    mask = torch.ones_like(whole, dtype=torch.bool)
                    with torch.no_grad():
                        logits = policy(
                            input_ids=whole, attention_mask=mask, position_ids=position_ids(mask)
                        ).logits
                    logps = (logits[0, -len(ids) - 1 : -1].double() / T).log_softmax(dim=-1)
                    total += logps[torch.arange(len(ids)), ids].sum().exp().item()
                assert table[row, answer] == pytest.approx(total, rel=1e-4)
