"""What makes a step fast, each thing timed against the usual way, alternating in one process. A benchmark.

    python lessons/experiments/bench_rollout.py
    python lessons/experiments/bench_rollout.py --model runs/grpo-0/checkpoint

The sampler against `model.generate`; scoring in passes of similar length against one padded to the longest, and how
many tokens cost as much as one more pass, which decides how much padding is worth it (`any_model.passes`); the fused
AdamW against the default one; in bfloat16, casting the weights once for a rollout against once for every token.
"""

from toy_env import UsageError, take_over_ctrl_c

if __name__ == "__main__":
    take_over_ctrl_c()

import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median

import torch

from toy_env import rollout as sampling
from toy_env.any_model import compute_in_bfloat16, keep_casts
from toy_env.arithmetic import LEVELS, sample_problems
from toy_env.cli import MOST_TOKENS, at_least, run_main
from toy_env.model import load_policy, pick_device
from toy_env.rollout import Rollout, completion_logps, position_ids, sample, token_logps

ADAMW = ("fused", "default")


@dataclass
class Config:
    model: str = "base"  # base, a folder, or a causal language model on the Hugging Face hub
    device: str = "auto"  # auto (cuda, else mps, else cpu), cuda, mps or cpu
    problems: at_least(1) = 32  # prompts in a rollout batch
    group_size: at_least(1) = 8  # completions sampled for each problem
    max_new_tokens: at_least(1) = 56  # length limit of a completion, in tokens
    samples: at_least(1) = 20  # rollout batches that are timed

    def check(self) -> None:
        if self.problems * self.group_size * self.max_new_tokens > MOST_TOKENS:
            raise UsageError(f"--problems x --group_size x --max_new_tokens must be {MOST_TOKENS} tokens or fewer")


def compare(what: str, ways: dict[str, Callable], turns: int) -> tuple[float, float]:
    """Print and return the median seconds of two ways of doing one thing, which take turns; the first turn warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - started)
    (first, a), (second, b) = ((name, median(times[1:])) for name, times in seconds.items())
    print(f"{what}: {first} {1e3 * a:.2f} ms, {second} {1e3 * b:.2f} ms, {b / a:.2f} times as long", flush=True)
    return a, b


def main(config: Config) -> None:
    device = pick_device(config.device)
    policy, tokenizer = load_policy(config.model, device)
    generator = torch.Generator(device).manual_seed(0)
    prompts = [problem.prompt for problem in sample_problems(config.problems, LEVELS, random.Random(0))]
    print(
        f"{config.problems} prompts x {config.group_size}, at most {config.max_new_tokens} tokens, {config.model} "
        f"on {device}, {torch.get_num_threads()} threads, median of {config.samples}"
    )

    def ours() -> Rollout:
        return sample(policy, tokenizer, prompts, config.group_size, config.max_new_tokens, 1.0, generator=generator)

    @torch.no_grad()
    def generate() -> None:
        inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left").to(device)
        limits = {"num_return_sequences": config.group_size, "max_new_tokens": config.max_new_tokens}
        scored = {"return_dict_in_generate": True, "output_logits": True}  # from which log-probabilities are taken
        policy.generate(**inputs, do_sample=True, top_k=0, top_p=1.0, **limits, **scored)

    def padded_logps(part: Rollout) -> torch.Tensor:
        ids = torch.cat([part.prompt_ids, part.completion_ids], dim=1)
        mask = torch.cat([part.prompt_mask, part.mask], dim=1)
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": position_ids(mask), "use_cache": False}
        logits = policy(**inputs, logits_to_keep=part.mask.shape[1] + 1).logits[:, :-1]
        return token_logps(logits, 1.0).gather(2, part.completion_ids.unsqueeze(2)).squeeze(2).where(part.mask, 0.0)

    def score(part: Rollout) -> torch.Tensor:
        return completion_logps(policy, part, 1.0)

    def update(score: Callable, minibatches: list[Rollout]) -> Callable:
        """Forward and back over each minibatch."""
        return lambda: [score(minibatch).sum().backward() for minibatch in minibatches]

    compare("a rollout batch", {"toy_env.rollout.sample": ours, "model.generate": generate}, config.samples)
    rollout = ours()
    minibatches = list(rollout.minibatches(1, 4, generator))
    ways = {
        "passes of similar length": update(score, minibatches),
        "one padded pass": update(padded_logps, minibatches),
    }
    compare("forward and back", ways, config.samples)
    longest = int(rollout.mask.sum(dim=1).argmax())
    few, many = (rollout[torch.full((n,), longest, device=device)] for n in (8, 64))
    ways = {f"{len(part)} equal rows": update(score, [part]) for part in (few, many)}
    a, b = compare("one pass forward and back", ways, config.samples)
    few, many = (int(part.prompt_mask.sum() + part.mask.sum()) for part in (few, many))
    print(f"  so a pass takes by itself as long as {a * (many - few) / (b - a) - few:.0f} tokens", flush=True)
    ways = {name: torch.optim.AdamW(policy.parameters(), lr=1e-12, fused=name == "fused").step for name in ADAMW}
    compare("AdamW", ways, 5 * config.samples)
    compute_in_bfloat16(policy)

    def casting_with(keep: Callable) -> None:
        sampling.keep_casts = keep
        ours()

    ways = {"once": lambda: casting_with(keep_casts), "every token": lambda: casting_with(lambda policy: nullcontext())}
    compare("a rollout batch in bfloat16, casting", ways, config.samples)


if __name__ == "__main__":
    run_main(Config, main, __doc__)
