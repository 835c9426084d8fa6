"""REINFORCE for verifiable rewards: the first rung of the ladder.

Sample G completions for each of P prompts, score each completion 1 (right) or 0 (wrong), and step
along

    grad J = E[ R(x, y) * sum_t grad log pi(y_t | x, y_<t) ]          (Williams 1992)

There is no baseline, no clipping and no critic: every token of a right completion is made more
likely, and a wrong one loses probability only because probabilities sum to 1. One optimizer step
per batch, so the data are always on-policy. The policy gradient sums over the tokens of a
completion; a mean over them would be a different estimator.

    python algorithms/reinforce.py
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from toy_env.metrics import check_ratio
from toy_env.model import load_policy, model_prompts
from toy_env.rollout import Rollout, completion_logps, sample
from toy_env.run import Run, RunConfig, run_script


@dataclass
class Config(RunConfig):
    prompts_per_step: int = 32  # P, problems in a rollout batch
    group_size: int = 8  # G, completions sampled for each problem
    max_new_tokens: int = 56  # length limit of a completion, in tokens
    temperature: float = 1.0  # the policy trained is softmax(logits / temperature)
    learning_rate: float = 2e-4  # AdamW's step size after the warm-up
    warmup_steps: int = 10  # rollout batches over which the learning rate rises linearly
    max_grad_norm: float = 1.0  # maximum gradient norm: a longer gradient is scaled down to it


def collect(run: Run, policy, tokenizer, config: Config, rng, generator) -> tuple[Rollout, Tensor]:
    """Sample G completions for each of P new prompts and verify them.

    Returns the rollout, P·G rows with those of a group contiguous, and the rewards (P, G), 1 for
    right, 0 for wrong.
    """
    G = config.group_size
    problems = run.task.sample_problems(config.prompts_per_step, config.levels, rng)
    prompts = model_prompts(tokenizer, problems, run.task)
    rollout = sample(
        policy,
        tokenizer,
        prompts,
        group_size=G,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        generator=generator,
    )
    repeated = [problem for problem in problems for _ in range(G)]  # the problem of each row
    rewards = [run.task.reward(problem, text) for problem, text in zip(repeated, rollout.texts)]
    return rollout, torch.tensor(rewards, dtype=torch.float32, device=run.device).view(-1, G)


def compute_advantages(*, rewards: Tensor) -> Tensor:
    """The advantage of each completion, (P, G), from its reward, (P, G): the reward itself. No
    baseline.

    Williams (1992), with b = 0. Any b that does not depend on the completion would leave the
    expectation unchanged.
    """
    return rewards


def policy_loss(
    *,
    logps: Tensor,  # (B, T), with gradient
    advantages: Tensor,  # (B, 1), one for all tokens of a completion
    mask: Tensor,  # (B, T), 1 up to and including EOS
    config: Config,
) -> Tensor:
    """The scalar whose gradient is minus the estimate of grad J, up to the constant 1 /
    max_new_tokens."""
    per_token = -advantages * logps  # (B, T)
    return (per_token * mask).sum() / (len(mask) * config.max_new_tokens)


def train(config: Config) -> dict:
    """Train the policy and return the held-out results before and after."""
    run = Run(__file__, config)
    temperature = config.temperature
    policy, tokenizer = load_policy(run.model_path, run.device, config.dtype)
    optimizer = torch.optim.AdamW(policy.parameters(), weight_decay=0.0, fused=True)

    # Evaluate the policy as it is, or load the last save.
    first = run.begin(tokenizer, policy=policy, optimizer=optimizer)
    tokens_per_pass = run.config.max_tokens_per_pass  # what memory holds, unless given
    for step in range(first, config.steps + 1):
        rng, generator = run.seeded(step)
        warmup = min(1.0, step / (config.warmup_steps + 1))
        optimizer.param_groups[0]["lr"] = config.learning_rate * warmup

        # 1. Sample and verify: G completions for each of P prompts, rewards (P, G)
        rollout, rewards = collect(run, policy, tokenizer, config, rng, generator)

        # 2. Advantages
        rollout.advantages = compute_advantages(rewards=rewards).view(-1, 1)  # (P·G, 1)

        # 3. Update: one optimizer step
        logps = completion_logps(policy, rollout, temperature, tokens_per_pass)  # (P·G, T)
        if step == 1:
            check_ratio(rollout, logps, config.dtype)
        loss = policy_loss(
            logps=logps, advantages=rollout.advantages, mask=rollout.mask, config=config
        )
        loss.backward()
        grad_norm = clip_grad_norm_(policy.parameters(), config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        run.record(loss=loss, grad_norm=grad_norm)

        # 4. Log
        run.log(step, rollout, rewards)

    return run.finish()


if __name__ == "__main__":
    run_script(train, Config, __doc__)
