"""Our sampler against `model.generate` for the same work, alternating in one process. A benchmark, not a test.

python tests/bench_rollout.py [--model runs/reinforce-0/checkpoint]
"""

import random
import time
from dataclasses import dataclass
from statistics import median

import torch
from transformers.hf_argparser import HfArg

from toy_env.arithmetic import LEVELS, sample_problems
from toy_env.cli import run_main
from toy_env.policy import load_policy, pick_device
from toy_env.rollout import sample


@dataclass
class Config:
    model: str = HfArg(default="base", help="base, a folder, or a model on the Hugging Face hub")
    device: str = HfArg(default="auto", help="auto, cpu, cuda or mps")
    problems: int = HfArg(default=32, help="prompts in a rollout batch")
    group_size: int = HfArg(default=8, help="completions of each")
    max_new_tokens: int = HfArg(default=56, help="length limit of a completion")
    samples: int = HfArg(default=20, help="timed batches of each sampler")


def main(config: Config) -> None:
    device = pick_device(config.device)
    policy, tokenizer = load_policy(config.model, device)
    generator = torch.Generator(device).manual_seed(0)
    rng = random.Random(0)

    def ours(prompts: list[str]) -> int:
        settings = {"group_size": config.group_size, "max_new_tokens": config.max_new_tokens, "temperature": 1.0}
        return int(sample(policy, tokenizer, prompts, **settings, generator=generator).mask.sum())

    @torch.no_grad()
    def generate(prompts: list[str]) -> int:
        inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left").to(device)
        output = policy.generate(
            **inputs,
            do_sample=True,
            top_k=0,
            top_p=1.0,
            num_return_sequences=config.group_size,
            max_new_tokens=config.max_new_tokens,
            return_dict_in_generate=True,
            output_logits=True,  # what the log-probabilities of the sampled tokens would be taken from
        )
        return output.sequences.shape[0]

    seconds: dict[str, list[float]] = {"toy_env.rollout.sample": [], "model.generate": []}
    for turn in range(config.samples + 1):
        prompts = [problem.prompt for problem in sample_problems(config.problems, LEVELS, rng)]
        for name, sampler in zip(seconds, (ours, generate)):
            started = time.perf_counter()
            sampler(prompts)
            if turn:  # the first warms up
                seconds[name].append(time.perf_counter() - started)
    a, b = (median(times) for times in seconds.values())
    print(f"{config.problems} prompts x {config.group_size}, at most {config.max_new_tokens} tokens, {config.model} "
          f"on {device}, {torch.get_num_threads()} threads, median of {config.samples}")  # fmt: skip
    for name, times in seconds.items():
        low, high = 1e3 * min(times), 1e3 * max(times)
        print(f"  {name:24} {1e3 * median(times):7.1f} ms a batch ({low:.1f} to {high:.1f})")
    print(f"  ours is {b / a:.2f} times as fast")


if __name__ == "__main__":
    run_main(Config, main, __doc__)
