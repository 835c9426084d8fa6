"""What makes a step fast, each thing timed against the usual way, alternating in one process. A benchmark.

    python lessons/experiments/bench_rollout.py
    python lessons/experiments/bench_rollout.py --model runs/grpo-0/checkpoint

The sampler against `model.generate`; how many tokens cost as much as one more forward and backward pass, which decides
how much padding is worth it (`any_model.passes`); in bfloat16, casting the weights once for a rollout against once for
every token.
"""

from toy_env import take_over_ctrl_c

if __name__ == "__main__":
    take_over_ctrl_c()

import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from toy_env import rollout as sampling
from toy_env.any_model import compute_in_bfloat16, keep_casts
from toy_env.arithmetic import LEVELS, sample_problems
from toy_env.cli import at_least, run_main
from toy_env.model import load_policy, pick_device
from toy_env.rollout import Rollout, completion_logps, sample

P, G, MAX_NEW_TOKENS = 32, 8, 56


@dataclass
class Config:
    model: str = "base"  # base, a folder, or a causal language model on the Hugging Face hub
    device: str = "auto"  # auto (cuda, else mps, else cpu), cuda, mps or cpu
    samples: at_least(1, 10_000) = 20  # rollout batches that are timed


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
    prompts = [problem.prompt for problem in sample_problems(P, LEVELS, random.Random(0))]
    print(f"{P} prompts x {G}, {config.model} on {device}, {torch.get_num_threads()} threads, {config.samples} samples")

    def ours(keep: Callable = keep_casts) -> Rollout:
        sampling.keep_casts = keep
        return sample(policy, tokenizer, prompts, G, MAX_NEW_TOKENS, 1.0, generator)

    @torch.no_grad()
    def generate() -> None:
        inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left").to(device)
        limits = {"num_return_sequences": G, "max_new_tokens": MAX_NEW_TOKENS}
        scored = {"return_dict_in_generate": True, "output_logits": True}  # from which log-probabilities are taken
        policy.generate(**inputs, do_sample=True, top_k=0, top_p=1.0, **limits, **scored)

    def train(part: Rollout) -> None:
        completion_logps(policy, part, 1.0).sum().backward()

    compare("a rollout batch", {"toy_env.rollout.sample": ours, "model.generate": generate}, config.samples)
    rollout = ours()
    longest = int(rollout.mask.sum(dim=1).argmax())
    parts = [rollout[torch.full((n,), longest, device=device)] for n in (8, 64)]
    ways = {f"{len(part)} equal rows": partial(train, part) for part in parts}
    a, b = compare("one pass forward and back", ways, config.samples)
    few, many = (int(part.prompt_mask.sum() + part.mask.sum()) for part in parts)
    print(f"  so a pass takes by itself as long as {a * (many - few) / (b - a) - few:.0f} tokens", flush=True)
    compute_in_bfloat16(policy)
    ways = {"once": ours, "every token": partial(ours, lambda policy: nullcontext())}
    compare("a rollout batch in bfloat16, casting", ways, config.samples)


if __name__ == "__main__":
    run_main(Config, main, __doc__)
