"""GRPO where every answer can be enumerated: four tokens, two learning rates, five seeds. Lesson 11
reads the results.

    python lessons/experiments/short_answers.py              5 seeds: about a minute
    python lessons/experiments/short_answers.py --quick      1 seed
    python lessons/experiments/short_answers.py --publish    also writes short_answers.json here

Four tokens hold "#14" and the end: nothing can be worked out, and the probability of each answer 0
to 99 is exact, up to odd spellings such as "#014". A run reports, for each of 64 held-out problems,
the probability of the right answer, that of any answer within the four tokens, and the most
probable answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch

from algorithms import grpo
from lessons.experiments.estimators import Batch, collect
from lessons.experiments.grid import GridConfig, config_of, load_runs, results_of
from lessons.experiments.learning import learn
from toy_env.any_model import cache_name
from toy_env.arithmetic import LEVELS, Problem, held_out_problems
from toy_env.cli import run_main
from toy_env.model import encode_prompts, load_policy
from toy_env.rollout import position_ids

RESULTS = Path(__file__).parent / "short_answers.json"
ARMS = {  # learning rate, batches; the product is .008 in the last two
    "GRPO, small steps": (3e-4, 8),
    "GRPO, small steps, 27 batches": (3e-4, 27),
    "GRPO, large steps": (1e-3, 8),
}


Config = config_of("short_answers", seeds=5, quick=1)


@dataclass(frozen=True)
class Run:
    """One training run."""

    arm: str
    learning_rate: float
    batches: int
    seed: int


@torch.no_grad()
def answer_logits(policy, tokenizer, problems: Sequence[Problem]) -> tuple[torch.Tensor, ...]:
    """The logits that decide a completion of four tokens: before "#", before each digit, and before
    the end."""
    prompts, mask = encode_prompts(tokenizer, [problem.prompt for problem in problems])
    inputs = {"attention_mask": mask, "position_ids": position_ids(mask), "use_cache": True}
    start = policy(input_ids=prompts, logits_to_keep=1, **inputs)
    name = cache_name(policy)
    start[name].batch_repeat_interleave(100)
    hash_sign, *digits = tokenizer.convert_tokens_to_ids(list("#0123456789"))
    ids = torch.tensor([[hash_sign, a, b] for a, b in product(digits, digits)]).repeat(
        len(problems), 1
    )  # "#00", ...
    mask = torch.cat(
        [mask.repeat_interleave(100, dim=0), torch.ones_like(ids, dtype=torch.bool)], dim=1
    )
    inputs = {"attention_mask": mask, "position_ids": position_ids(mask)[:, -3:], "use_cache": True}
    rest = policy(input_ids=ids, **{name: start[name]}, **inputs)
    logits = rest.logits.view(len(problems), 10, 10, 3, -1).double()
    return start.logits[:, -1].double(), logits[:, 0, 0, 0], logits[:, :, 0, 1], logits[:, :, :, 2]


def answer_table(logits: tuple[torch.Tensor, ...], tokenizer, T: float = 1.0) -> np.ndarray:
    """(problems, 100): the probability of each answer 0 to 99 within four tokens, at token
    temperature T."""
    hash_sign, *digits = tokenizer.convert_tokens_to_ids(list("#0123456789"))
    first, second, third, fourth = ((x / T).softmax(dim=-1) for x in logits)
    one = first[:, hash_sign, None] * second[:, digits]  # (problems, 10): "#1"
    table = (one.unsqueeze(2) * third[:, :, digits] * fourth[..., tokenizer.eos_token_id]).flatten(
        1
    )  # "#14", end
    table[:, :10] += one * third[..., tokenizer.eos_token_id]  # "#1", end
    return table.numpy()


def measure(run: Run) -> dict:
    """Train with GRPO's advantages and loss on completions of four tokens: one update a batch, no
    KL, no warm-up. Return for each held-out problem the probability of the right answer and that of
    any answer in time, and the most probable answer."""
    problems, (policy, tokenizer) = (
        held_out_problems(16, LEVELS),
        load_policy("base"),
    )  # 64, sixteen of each level
    settings = {
        "rate": run.learning_rate,
        "minibatches": 1,
        "steps": run.batches,
        "warmup": 0,
        "policy": policy,
    }

    def advantages(batch: Batch, step: int) -> np.ndarray:
        return grpo.compute_advantages(rewards=torch.from_numpy(batch.rewards)).numpy()

    learn(
        "arithmetic",
        run.seed,
        advantages,
        grpo,
        **settings,
        sampled=partial(collect, max_new_tokens=4),
    )
    table = answer_table(answer_logits(policy, tokenizer, problems), tokenizer)
    right = table[np.arange(len(table)), [problem.answer for problem in problems]]
    return {
        "right": right.round(6),
        "in time": table.sum(axis=1).round(6),
        "mode": table.argmax(axis=1),
    }


def load(path: Path = RESULTS) -> dict[str, dict[str, np.ndarray]]:
    """By arm: "right" and "in time", probabilities, and "mode", an answer: arrays (seeds,
    problems)."""
    runs = load_runs(path)
    return {
        arm: {
            name: np.array([run[name] for run in runs if run["arm"] == arm])
            for name in ("right", "in time", "mode")
        }
        for arm in dict.fromkeys(run["arm"] for run in runs)
    }


def main(config: GridConfig) -> None:
    """Train every arm from every seed, and with --publish write short_answers.json."""
    config = config.sized()
    runs = [
        Run(arm, *settings, seed) for arm, settings in ARMS.items() for seed in range(config.seeds)
    ]
    results_of(config, measure, runs, RESULTS)


if __name__ == "__main__":
    run_main(Config, main, __doc__)
