"""CISPO: Clipped IS-weight Policy Optimization (MiniMax-M1, arXiv:2506.13585, Eq. 4 and 5).

Against dapo.py:

    + capped weight: the ratio, capped at max_ratio, is a constant factor in front of A log pi
    - clip: no token loses its gradient, however far its ratio has moved

The gradient of a token is that of min(ratio, max_ratio) * A * log pi, with the first factor held
constant; on the first minibatch of a batch it is DAPO's. Eq. 5 has a lower bound too, which the
paper switches off. The paper does not give the value of the upper bound; 5 is what TRL recommends,
following ScaleRL (Khatri et al. 2025, arXiv:2510.13786).

    python algorithms/cispo.py
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from toy_env.metrics import check_ratio, update_metrics
from toy_env.model import load_policy, model_prompts
from toy_env.rollout import Rollout, completion_logps, sample
from toy_env.run import Run, RunConfig, run_script


@dataclass
class Config(RunConfig):
    prompts_per_step: int = 32  # P, problems in a rollout batch
    group_size: int = 8  # G, completions sampled for each problem
    max_new_tokens: int = 56  # length limit of a completion, in tokens
    temperature: float = 1.0  # the policy trained is softmax(logits / temperature)
    epochs: int = 1  # passes over each rollout batch
    num_minibatches: int = 4  # optimizer steps per epoch; if it and epochs are 1, every ratio is 1
    max_ratio: float = 5.0  # upper bound of the ratio as a weight of the gradient
    dynamic_sampling: bool = True  # replace silent groups (all right or all wrong) by new prompts
    max_draws: int = 10  # rollout batches that dynamic sampling may draw for one step
    overlong_buffer: int = 8  # soft-penalty zone before the length limit, in tokens
    overlong_filtering: bool = False  # leave completions that reach the limit out of the loss
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
    """Advantages (P, G) from rewards (P, G): (R - mean) / sigma within each group, and exactly 0 in
    a silent one.

    DeepSeekMath, section 4.1.2, which leaves open the degrees of freedom of sigma and the case
    sigma = 0: here sigma is the population standard deviation (ddof 0), without an epsilon.
    """
    mean = rewards.mean(dim=1, keepdim=True)  # [GRPO: group baseline]
    sigma = rewards.std(dim=1, keepdim=True, correction=0)  # [GRPO: / sigma]
    silent = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)  # sigma may round to > 0
    return torch.where(silent, 0.0, (rewards - mean) / sigma)  # where silent, 0 / 0 is discarded


def overlong_penalty(mask: Tensor, config: Config) -> Tensor:
    """Overlong punishment (DAPO, Eq. 13), (B,): 0 up to max_new_tokens - overlong_buffer tokens, -1
    at the limit."""
    free = config.max_new_tokens - config.overlong_buffer
    return ((free - mask.sum(dim=1)) / max(1, config.overlong_buffer)).clamp(-1, 0)


def is_mixed(correct: Tensor) -> Tensor:
    """True for each group, (groups,), with both right and wrong completions. correct: (groups, G).
    Right and wrong decide, not the shaped reward."""
    return (correct != correct[:, :1]).any(dim=1)


def policy_loss(
    *,
    logps: Tensor,  # (B, T), with gradient
    old_logps: Tensor,  # (B, T), recorded while sampling
    advantages: Tensor,  # (B, 1), one for all tokens of a completion
    mask: Tensor,  # (B, T), 1 up to and including EOS
    config: Config,
) -> Tensor:
    """Minus the objective of CISPO Eq. 4, the token mean taken over the optimizer batch."""
    ratio = (logps - old_logps).exp()  # (B, T)
    weight = ratio.detach().clamp(max=config.max_ratio)  # [CISPO: capped weight]
    per_token = -advantages * weight * logps  # (B, T) [CISPO: no clip]
    return (per_token * mask).sum() / mask.sum().clamp(min=1)  # [DAPO: token mean]


def train(config: Config) -> dict:
    """Train the policy and return the held-out results before and after."""
    if config.group_size < 2:
        raise SystemExit("--group_size must be 2 or more: a group of one has no baseline")
    run = Run(__file__, config)
    temperature = config.temperature
    policy, tokenizer = load_policy(run.model_path, run.device, config.dtype)
    optimizer = torch.optim.AdamW(policy.parameters(), weight_decay=0.0, fused=True)
    P, G = config.prompts_per_step, config.group_size

    # Evaluate the policy as it is, or load the last save.
    first = run.begin(tokenizer, policy=policy, optimizer=optimizer)
    tokens_per_pass = run.config.max_tokens_per_pass  # what memory holds, unless given
    for step in range(first, config.steps + 1):
        rng, generator = run.seeded(step)
        warmup = min(1.0, step / (config.warmup_steps + 1))
        optimizer.param_groups[0]["lr"] = config.learning_rate * warmup

        # 1. Sample and verify: G completions for each of P prompts, more until P groups are mixed
        drawn, correct = collect(run, policy, tokenizer, config, rng, generator)
        kept = torch.arange(P, device=run.device)
        if config.dynamic_sampling:  # [DAPO: dynamic sampling]
            while is_mixed(correct).sum() < P and len(correct) < config.max_draws * P:
                more, more_correct = collect(run, policy, tokenizer, config, rng, generator)
                drawn = Rollout.concatenate([drawn, more])
                correct = torch.cat([correct, more_correct])
            kept = is_mixed(correct).nonzero().flatten()[:P]
        rollout = drawn.groups(kept, G)  # at most P groups
        # [DAPO: reward 1 or -1] [DAPO: overlong]
        rewards = 2 * correct[kept] - 1 + overlong_penalty(rollout.mask, config).view(-1, G)

        # 2. Advantages
        rollout.advantages = compute_advantages(rewards=rewards).view(-1, 1)  # (P·G, 1)

        # 3. Update: one optimizer step for each minibatch [PPO: minibatches]
        for minibatch in rollout.minibatches(config.epochs, config.num_minibatches, generator):
            logps = completion_logps(policy, minibatch, temperature, tokens_per_pass)  # (B, T)
            if step == 1:  # print how far the ratio is from 1; exit if far at update 1
                check_ratio(minibatch, logps, config.dtype)
            if config.overlong_filtering:  # [DAPO: overlong]
                minibatch.mask = minibatch.mask & ~minibatch.truncated.unsqueeze(1)
            loss = policy_loss(
                logps=logps,
                old_logps=minibatch.old_logps,
                advantages=minibatch.advantages,
                mask=minibatch.mask,
                config=config,
            )
            loss.backward()
            grad_norm = clip_grad_norm_(policy.parameters(), config.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            # beyond max_ratio the weight is capped, and no gradient stops
            metrics = update_metrics(minibatch, logps, low=1.0, high=config.max_ratio - 1)
            run.record(loss=loss, grad_norm=grad_norm, **metrics)

        # 4. Log
        run.log(step, drawn, correct)

    return run.finish()


if __name__ == "__main__":
    run_script(train, Config, __doc__)
