"""Held-out accuracy by level, greedy and sampled, and unbiased pass@k.

python -m toy_env.evaluate                 the shipped base model
python -m toy_env.evaluate --model runs/reinforce-0/checkpoint
"""

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
    """Print the table of one policy, and its pass@k."""
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
    print(f"\n{'k':>6}{'pass@k':>12}")
    for k in (2**i for i in range(config.samples.bit_length())):
        passed = [pass_at_k(config.samples, int(row.sum()), k) for row in sampled.correct]
        print(f"{k:6}{np.mean(passed):12.3f}")


if __name__ == "__main__":
    main(parse(Config, __doc__))
