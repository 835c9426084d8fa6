"""Our sampler against `model.generate`, packed scoring against padded, a fused optimizer against the default one, each
pair alternating in one process. A benchmark.

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
from toy_env.policy import completion_logps, load_policy, pick_device, position_ids, token_logps
from toy_env.rollout import Rollout, sample


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

    def padded(rollout: Rollout) -> torch.Tensor:
        mask = torch.cat([rollout.prompt_mask, rollout.mask], dim=1)
        ids = torch.cat([rollout.prompt_ids, rollout.completion_ids], dim=1)
        T = rollout.mask.shape[1]
        logits = policy(ids, attention_mask=mask, position_ids=position_ids(mask), use_cache=False).logits
        logps = token_logps(logits[:, -T - 1 : -1], 1.0).gather(-1, rollout.completion_ids.unsqueeze(-1)).squeeze(-1)
        return logps.masked_fill(~rollout.mask, 0.0)

    scoring: dict[str, list[float]] = {"packed": [], "padded": []}

    def score() -> None:
        """One pass forward and back over a rollout in four minibatches, packed and padded."""
        prompts = [problem.prompt for problem in sample_problems(config.problems, LEVELS, rng)]
        settings = {"group_size": config.group_size, "max_new_tokens": config.max_new_tokens, "temperature": 1.0}
        rollout = sample(policy, tokenizer, prompts, **settings, generator=generator)
        for name, scorer in zip(scoring, (lambda part: completion_logps(policy, part, 1.0), padded)):
            started = time.perf_counter()
            for rows in torch.arange(len(rollout), device=device).tensor_split(4):
                scorer(rollout[rows]).sum().backward()
            scoring[name].append(time.perf_counter() - started)

    for _ in range(config.samples):
        score()
    optimizers = [torch.optim.AdamW(policy.parameters(), lr=1e-12, fused=fused) for fused in (True, False)]
    steps: dict[str, list[float]] = {"fused": [], "default": []}
    for _ in range(5 * config.samples):  # with the gradient that the last pass left
        for times, optimizer in zip(steps.values(), optimizers):
            started = time.perf_counter()
            optimizer.step()
            times.append(time.perf_counter() - started)
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
    packed, padded_ = (median(times[1:]) for times in scoring.values())
    print(
        f"forward and back: packed {1e3 * packed:.1f} ms, padded {1e3 * padded_:.1f} ms, "
        f"packed is {padded_ / packed:.2f} times as fast"
    )
    fused, default = (median(times) for times in steps.values())
    print(f"AdamW: fused {1e3 * fused:.2f} ms an update, default {1e3 * default:.2f} ms")


if __name__ == "__main__":
    run_main(Config, main, __doc__)
