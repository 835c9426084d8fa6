"""GRPO where every answer can be enumerated: four tokens, two learning rates, five seeds. Lesson 11 reads the results.

    python lessons/experiments/short_answers.py              5 seeds: about a minute on one core
    python lessons/experiments/short_answers.py --publish    also writes short_answers.json here

Four tokens hold "#14" and the end:
nothing can be worked out, and the probability of each answer 0 to 99 is exact, up to odd spellings such as "#014". What
is kept of a run, for each of 64 held-out problems: the probability of the right answer, that of any answer in time, and
the most probable answer.
"""

from toy_env import UsageError, take_over_ctrl_c

if __name__ == "__main__":
    take_over_ctrl_c()

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from algorithms import grpo
from toy_env.arithmetic import LEVELS, Problem, held_out_problems, reward, sample_problems
from toy_env.cli import at_least, run_main
from toy_env.model import encode_prompts, load_policy
from toy_env.rollout import completion_logps, position_ids, sample

RESULTS = Path(__file__).parent / "short_answers.json"
ARMS = {  # learning rate, batches; the product is .008 in the last two
    "GRPO, small steps": (3e-4, 8),
    "GRPO, small steps, 27 batches": (3e-4, 27),
    "GRPO, large steps": (1e-3, 8),
}


@dataclass
class Config:
    seeds: at_least(1, 1000) = 5  # seeds 0, 1, ... of each arm
    publish: bool = False  # write short_answers.json, which lesson 11 reads

    def check(self) -> None:
        if self.publish and self.seeds != 5:
            raise UsageError("--publish is for the full experiment; leave out --seeds")


@torch.no_grad()
def answer_logits(policy, tokenizer, problems: Sequence[Problem]) -> tuple[torch.Tensor, ...]:
    """What decides a completion of four tokens: the logits before "#", before each digit, and before the end."""
    prompts, mask = encode_prompts(tokenizer, [problem.prompt for problem in problems])
    start = policy(
        input_ids=prompts, attention_mask=mask, position_ids=position_ids(mask), use_cache=True, logits_to_keep=1
    )
    start.past_key_values.batch_repeat_interleave(100)
    hash_sign, *digits = tokenizer.convert_tokens_to_ids(list("#0123456789"))
    ids = torch.tensor([[hash_sign, a, b] for a, b in product(digits, digits)]).repeat(len(problems), 1)  # "#00", ...
    mask = torch.cat([mask.repeat_interleave(100, dim=0), torch.ones_like(ids, dtype=torch.bool)], dim=1)
    rest = policy(
        input_ids=ids,
        attention_mask=mask,
        position_ids=position_ids(mask)[:, -3:],
        past_key_values=start.past_key_values,
        use_cache=True,
    )
    logits = rest.logits.view(len(problems), 10, 10, 3, -1).double()
    return start.logits[:, -1].double(), logits[:, 0, 0, 0], logits[:, :, 0, 1], logits[:, :, :, 2]


def answer_table(logits: tuple[torch.Tensor, ...], tokenizer, T: float = 1.0) -> np.ndarray:
    """(problems, 100): the probability of each answer 0 to 99 within four tokens, at token temperature T."""
    hash_sign, *digits = tokenizer.convert_tokens_to_ids(list("#0123456789"))
    first, second, third, fourth = ((x / T).softmax(dim=-1) for x in logits)
    one = first[:, hash_sign, None] * second[:, digits]  # (problems, 10): "#1"
    table = (one.unsqueeze(2) * third[:, :, digits] * fourth[..., tokenizer.eos_token_id]).flatten(1)  # "#14", end
    table[:, :10] += one * third[..., tokenizer.eos_token_id]  # "#1", end
    return table.numpy()


def train(learning_rate: float, batches: int, seed: int, P: int = 32, G: int = 8):
    """GRPO's advantages and loss on completions of four tokens: one update a batch, no KL, no warm-up."""
    policy, tokenizer = load_policy("base")
    optimizer = torch.optim.AdamW(policy.parameters(), lr=learning_rate, weight_decay=0.0)
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    for _ in range(batches):
        problems = sample_problems(P, LEVELS, rng)
        rollout = sample(
            policy,
            tokenizer,
            [problem.prompt for problem in problems],
            group_size=G,
            max_new_tokens=4,
            temperature=1.0,
            generator=generator,
        )
        rewards = torch.tensor([reward(problems[i // G], text) for i, text in enumerate(rollout.texts)])
        A = grpo.compute_advantages(rewards=rewards.view(P, G)).view(-1, 1)
        logps = completion_logps(policy, rollout, 1.0)
        fixed = {"old_logps": logps.detach(), "ref_logps": logps.detach()}  # ratio 1; unused reference
        loss = grpo.policy_loss(logps=logps, advantages=A, mask=rollout.mask, config=grpo.Config(kl_coef=0.0), **fixed)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    return policy


def load(path: Path = RESULTS) -> dict[str, dict[str, np.ndarray]]:
    """By arm: "right" and "in time", probabilities, and "mode", an answer: arrays (seeds, problems)."""
    runs = json.loads(path.read_text("utf-8"))["runs"]
    return {
        arm: {name: np.array([run[name] for run in runs if run["arm"] == arm]) for name in ("right", "in time", "mode")}
        for arm in dict.fromkeys(run["arm"] for run in runs)
    }


def main(config: Config) -> None:
    """Train every arm from every seed, print a line for each run, and with --publish write what is kept of them."""
    torch.set_num_threads(1)
    problems, (_, tokenizer) = held_out_problems(16, LEVELS), load_policy("base")  # 64, sixteen of each level
    rights = [problem.answer for problem in problems]
    runs = []
    for arm, seed in tqdm(list(product(ARMS, range(config.seeds))), desc="runs", dynamic_ncols=True):
        learning_rate, batches = ARMS[arm]
        table = answer_table(answer_logits(train(learning_rate, batches, seed), tokenizer, problems), tokenizer)
        runs.append(
            {"arm": arm, "learning_rate": learning_rate, "batches": batches, "seed": seed}
            | {"right": table[np.arange(len(table)), rights].round(6).tolist()}
            | {"in time": table.sum(axis=1).round(6).tolist(), "mode": table.argmax(axis=1).tolist()}
        )
        last = runs[-1]
        p, mode_right = np.array(last["right"]), np.equal(last["mode"], rights).mean()
        tqdm.write(
            f"{arm}, seed {seed}: Pass@1 {p.mean():.3f}, Pass@64 {(1 - (1 - p) ** 64).mean():.3f}, "
            f"most probable answer right {mode_right:.3f}"
        )
    if config.publish:
        lines = ",\n".join(json.dumps(run) for run in runs)
        command = "python lessons/experiments/short_answers.py --publish"
        RESULTS.write_text(f'{{"command": "{command}", "runs": [\n{lines}\n]}}\n', "utf-8")
        print(f"written: {RESULTS}")


if __name__ == "__main__":
    run_main(Config, main, __doc__)
