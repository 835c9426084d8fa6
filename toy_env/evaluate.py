"""Held-out accuracy by level, greedy and sampled, and unbiased pass@k and majority@k.

python -m toy_env.evaluate                                  the shipped base model
python -m toy_env.evaluate --model runs/reinforce-0/checkpoint
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Literal

import numpy as np

from toy_env.held_out import confidence_interval, held_out, held_out_report, report_table
from toy_env.model import check_tokenizer, load_policy, pick_device
from toy_env.run import parse
from toy_env.tasks import base_model, load_task


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased estimate of P(at least one of k completions is right) from n >= k of them (Chen et
    al. 2021, Eq. 1). Raises ValueError if k is not between 1 and n."""
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k}: k must be between 1 and n = {n}, the number of completions")
    return 1.0 - comb(n - correct, k) / comb(n, k)


def majority_at_k(answers: Sequence[int | None], right: int, k: int) -> float:
    """Unbiased estimate of P(the most frequent of k answers is right), ties broken by a fair draw:
    the exact share over all k-subsets of the n >= k answers.

    None, a completion without an answer, abstains; if all abstain, it counts as wrong. Raises
    ValueError if k is not between 1 and n.
    """
    if not 1 <= k <= len(answers):
        raise ValueError(f"majority@{k}: k must be between 1 and n = {len(answers)}")
    counts = Counter(answers)
    abstain, n_right = counts.pop(None, 0), counts.pop(right, 0)
    wins = 0.0
    for votes in range(1, min(k, n_right) + 1):
        # ways[size, ties]: choices of `size` other completions in which no wrong answer has more
        # than `votes` votes and `ties` of them have exactly that many. Abstentions come first; each
        # wrong answer is convolved in.
        rest = k - votes
        ways = np.zeros((rest + 1, rest // votes + 1))
        ways[: abstain + 1, 0] = [comb(abstain, a) for a in range(min(abstain, rest) + 1)]
        for count in counts.values():
            update = np.zeros_like(ways)
            for chosen in range(min(count, votes, rest) + 1):
                tied = int(chosen == votes)
                before = ways[: rest + 1 - chosen, : ways.shape[1] - tied]
                update[chosen:, tied:] += comb(count, chosen) * before
            ways = update
        wins += comb(n_right, votes) * (ways[rest] / np.arange(1, ways.shape[1] + 1)).sum()
    return wins / comb(len(answers), k)


@dataclass
class Config:
    task: str = "arithmetic"  # arithmetic, expressions, or your own module, my_project.my_task
    model: str = "base"  # base (of the task), a folder, or a model on the Hugging Face hub
    device: str = "auto"  # auto, cpu, cuda or mps
    dtype: Literal["float32", "bfloat16"] = "float32"  # precision of the forward pass
    levels: tuple[int, ...] = ()  # difficulties (arithmetic: 1 to 4 operations); none given: all
    problems: int = 64  # held-out problems of each level; fewer if a level has fewer
    samples: int = 64  # completions of each problem
    temperature: float = 1.0  # sampling temperature
    max_new_tokens: int = 56  # length limit of a completion


def main(config: Config) -> None:
    """Print the table of one policy, its per-problem success rates, pass@k and majority@k."""
    task = load_task(config.task)
    model = base_model(task) if config.model == "base" else config.model
    problems = held_out(task, config.problems, config.levels)
    policy, tokenizer = load_policy(model, pick_device(config.device), config.dtype)
    check_tokenizer(policy, tokenizer, problems, task)
    sampling = {"samples": config.samples, "temperature": config.temperature}
    sampling |= {"max_new_tokens": config.max_new_tokens, "task": task}
    report, sampled = held_out_report(policy, tokenizer, problems, **sampling)
    print(report_table(report))
    rates = sampled.correct.mean(axis=1)
    below, above = (rates < 0.1).mean(), (rates > 0.9).mean()
    print(
        f"problems solved in under a tenth of samples {below:.1%}, in over nine tenths {above:.1%}"
    )
    print(f"\n{'k':>6} {'pass@k':>19} {'majority@k':>19}")
    answers = [[task.extract_answer(text) for text in row] for row in sampled.texts]
    rights = [problem.answer for problem in problems]
    for k in (2**i for i in range(config.samples.bit_length())):
        passed = [pass_at_k(config.samples, int(row.sum()), k) for row in sampled.correct]
        voted = [majority_at_k(row, right, k) for row, right in zip(answers, rights)]
        line = f"{k:6}"
        for estimates in (passed, voted):
            low, high = confidence_interval(estimates)
            line += f"{np.mean(estimates):7.3f} [{low:.2f}, {high:.2f}]"
        print(line)


if __name__ == "__main__":
    main(parse(Config, __doc__))
