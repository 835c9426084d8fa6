"""GRPO where every answer can be enumerated: four tokens, two learning rates, five seeds. Lesson 11
reads the results.

    python lessons/experiments/short_answers.py              5 seeds: about a minute
    python lessons/experiments/short_answers.py --publish    also writes short_answers.json here

Four tokens hold "#14" and the end: nothing can be worked out, and the probability of each answer 0
to 99 is exact, up to odd spellings such as "#014". A run reports, for each of 64 held-out problems,
the probability of the right answer, and the most probable answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import pad

from algorithms import grpo
from lessons.experiments.harness.grid import GridConfig, load_runs, results_of, select
from lessons.experiments.harness.learning import learn
from toy_env.arithmetic import LEVELS, Problem, held_out_problems
from toy_env.model import encode_prompts, load_policy
from toy_env.rollout import position_ids
from toy_env.run import parse

RESULTS = Path(__file__).parent / "short_answers.json"
ARMS = {  # learning rate, batches; the product is .008 in the last two
    "GRPO, small steps": (3e-4, 8),
    "GRPO, small steps, 27 batches": (3e-4, 27),
    "GRPO, large steps": (1e-3, 8),
}


@dataclass
class Config(GridConfig):
    seeds: int = 5  # seeds 0, 1, ... of every arm


@dataclass(frozen=True)
class Run:
    """One training run."""

    arm: str  # one of ARMS
    seed: int


@torch.no_grad()
def answer_table(policy, tokenizer, problems: Sequence[Problem]) -> np.ndarray:
    """(problems, 100): the probability of each answer 0 to 99 within four tokens."""
    hash_sign, *digits = tokenizer.convert_tokens_to_ids(list("#0123456789"))
    answers = torch.tensor([[hash_sign, a, b] for a, b in product(digits, digits)])  # "#00", ...
    prompts, mask = encode_prompts(tokenizer, [problem.prompt for problem in problems])
    prompts, mask = (part.repeat_interleave(100, dim=0) for part in (prompts, mask))
    ids = torch.cat([prompts, answers.repeat(len(problems), 1)], dim=1)
    mask = pad(mask, (0, 3), value=True)
    places = {"attention_mask": mask, "position_ids": position_ids(mask)}
    logits = policy(input_ids=ids, **places, use_cache=False, logits_to_keep=4).logits
    probs = logits.double().softmax(dim=-1).view(len(problems), 10, 10, 4, -1)
    # Before "#" and the first digit (n, V), the second (n, 10, V), the third or the end
    # (n, 10, 10, V)
    first, second, third = probs[:, 0, 0, 0], probs[:, 0, 0, 1], probs[:, :, 0, 2]
    end = probs[..., tokenizer.eos_token_id]
    one = first[:, hash_sign, None] * second[:, digits]  # (problems, 10): "#1"
    two = one.unsqueeze(2) * third[:, :, digits] * end[..., 3]  # (problems, 10, 10): "#14"
    table = two.flatten(1)
    table[:, :10] += one * end[:, :, 0, 2]  # "#1" and the end
    return table.numpy()


def table_after(run: Run, problems: Sequence[Problem]) -> np.ndarray:
    """The answer table after training with GRPO on completions of four tokens: one update a batch,
    no KL, no warm-up."""
    policy, tokenizer = load_policy("base")
    learning_rate, batches = ARMS[run.arm]
    settings = {
        "seed": run.seed,
        "steps": batches,
        "learning_rate": learning_rate,
        "warmup_steps": 0,
        "num_minibatches": 1,
        "max_new_tokens": 4,
    }
    learn(grpo, settings, policy=policy)
    return answer_table(policy, tokenizer, problems)


def measure(run: Run) -> dict:
    """Train. Returns for each held-out problem the probability of the right answer, and the most
    probable answer."""
    problems = held_out_problems(16, LEVELS)  # 64, sixteen of each level
    table = table_after(run, problems)
    right = table[np.arange(len(table)), [problem.answer for problem in problems]]
    return {"right": right.round(6), "mode": table.argmax(axis=1)}


def load() -> dict[str, dict[str, np.ndarray]]:
    """By arm: "right", a probability, and "mode", an answer: arrays (seeds, problems)."""
    arms, runs = {}, load_runs(RESULTS)
    for arm in ARMS:
        of_arm = select(runs, {"arm": arm})
        arms[arm] = {name: np.array([run[name] for run in of_arm]) for name in ("right", "mode")}
    return arms


def main(config: Config) -> None:
    """Train every arm from every seed, and with --publish write short_answers.json."""
    runs = [Run(arm, seed) for arm in ARMS for seed in range(config.seeds)]
    results_of(config, measure, runs, RESULTS)


if __name__ == "__main__":
    main(parse(Config, __doc__))
