"""Held-out accuracy by level, greedy and sampled, and unbiased pass@k and majority@k.

python -m toy_env.evaluate                 the shipped base model
python -m toy_env.evaluate --model runs/reinforce-0/checkpoint
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from toy_env.evaluation import held_out, held_out_report, report_samples, report_table
from toy_env.model import check_tokenizer, load_policy, pick_device
from toy_env.run import Levels, parse
from toy_env.tasks import TaskConfig, find_model, load_task


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased estimate of P(at least one of k completions is right) from n >= k of them (Chen et
    al. 2021, Eq. 1)."""
    return 1.0 - comb(n - correct, k) / comb(n, k)


def majority_at_k(answers: Sequence[int | None], right: int, k: int) -> float:
    """Unbiased estimate of P(the most frequent of k answers is right), ties broken by a fair draw:
    the exact share over all k-subsets of the n >= k answers.

    None, a completion without an answer, abstains; if all abstain, it counts as wrong.
    """
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
class Config(TaskConfig):
    model: str = "base"  # base (of the task), a folder, or a model on the Hugging Face hub
    device: str = "auto"  # auto, cpu, cuda or mps
    levels: Levels = ()  # difficulties (arithmetic: 1 to 4 operations)
    eval_problems: int = 64  # held-out problems of each level; fewer if a level has fewer
    samples: int = 64  # completions of each problem
    temperature: float = 1.0  # of the samples; greedy accuracy is reported as well
    max_new_tokens: int = 56  # length limit of a completion


def main(config: Config) -> None:
    """Print the table of one policy, and its pass@k and majority@k."""
    task = load_task(config)
    model = find_model(config.model, task)
    problems = held_out(task, config.eval_problems, config.levels)
    policy, tokenizer = load_policy(model, pick_device(config.device))
    check_tokenizer(policy, tokenizer, problems, task)
    print(f"{len(problems)} problems, {config.samples} completions of each, and a greedy one\n")
    report, sampled = held_out_report(
        policy,
        tokenizer,
        problems,
        task=task,
        samples=config.samples,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
    )
    print(f"{report_samples(report)}\n\n{report_table(report)}")
    print(f"\n{'k':>6}{'pass@k':>12}{'majority@k':>12}")
    votes = [[task.extract_answer(text) for text in row] for row in sampled.texts]
    for k in (2**i for i in range(config.samples.bit_length())):
        passed = [pass_at_k(config.samples, int(row.sum()), k) for row in sampled.correct]
        voted = [majority_at_k(row, p.answer, k) for row, p in zip(votes, problems)]
        print(f"{k:6}{np.mean(passed):12.3f}{np.mean(voted):12.3f}")


if __name__ == "__main__":
    main(parse(Config, __doc__))
