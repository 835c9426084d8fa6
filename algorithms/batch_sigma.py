"""Dr. GRPO with its advantages divided by the standard deviation of the batch (the baseline variant
of REINFORCE++, Hu et al. 2025, arXiv:2501.03262, version 9).

Against dr_grpo.py:

    + / sigma of the batch: the advantage is divided by one standard deviation, that of reward -
      mean of the group over the whole rollout batch

The update of a group is sigma_group^2 / sigma_batch times the contrast of its right and wrong
completions: Dr. GRPO's direction, times one factor for the batch, 1 / sigma, which grows as groups
fall silent. AdamW undoes a common factor, except against the KL term, which then weighs less.

    python algorithms/batch_sigma.py
"""

import copy
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
    clip_eps: float = 0.2  # the ratio is clipped to [1 - clip_eps, 1 + clip_eps]
    kl_coef: float = 0.04  # weight of the KL to the reference policy
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
    """Advantages (P, G) from rewards (P, G): R - mean within each group, divided by its standard
    deviation (ddof 0) over all groups; 0 if all of them are silent.

    Lite PPO (arXiv:2508.08221) and TRL's scale_rewards="batch" divide by that of the raw rewards,
    which is larger where prompts differ; verl and REINFORCE++ weigh each completion by its tokens.
    """
    mean = rewards.mean(dim=1, keepdim=True)  # [GRPO: group baseline]
    sigma = (rewards - mean).std(correction=0)  # [Batch sigma: / sigma of the batch]
    return (rewards - mean) / sigma.clamp(min=1e-4)  # [Dr. GRPO: no / sigma] of the group


def policy_loss(
    *,
    logps: Tensor,  # (B, T), with gradient
    old_logps: Tensor,  # (B, T), recorded while sampling
    ref_logps: Tensor | None,  # (B, T), of the frozen base model; None if kl_coef is 0
    advantages: Tensor,  # (B, 1), one for all tokens of a completion
    mask: Tensor,  # (B, T), 1 up to and including EOS
    config: Config,
) -> Tensor:
    """Minus the clipped objective of Dr. GRPO (section 3.2), each token weighted alike; KL term
    included."""
    ratio = (logps - old_logps).exp()  # (B, T)
    clipped = ratio.clamp(1 - config.clip_eps, 1 + config.clip_eps)  # [PPO: clip]
    per_token = -torch.minimum(advantages * ratio, advantages * clipped)  # (B, T)
    if config.kl_coef:
        log_u = ref_logps - logps  # [GRPO: KL in the loss] u = pi_ref / pi
        per_token = per_token + config.kl_coef * (log_u.exp() - 1 - log_u)  # k3 (Eq. 4)
    return (per_token * mask).sum() / (len(mask) * config.max_new_tokens)  # [Dr. GRPO: no / length]


def train(config: Config) -> dict:
    """Train the policy and return the held-out results before and after."""
    if config.group_size < 2:
        raise SystemExit("--group_size must be 2 or more: a group of one has no baseline")
    run = Run(__file__, config)
    temperature = config.temperature
    policy, tokenizer = load_policy(run.model_path, run.device, config.dtype)
    # Copied here, because begin loads the trained weights when a run is resumed.
    reference = copy.deepcopy(policy).requires_grad_(False) if config.kl_coef else None
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
        if config.kl_coef:  # [PPO: reference policy]
            rollout.ref_logps = completion_logps(reference, rollout, temperature, tokens_per_pass)

        # 3. Update: one optimizer step for each minibatch [PPO: minibatches]
        for minibatch in rollout.minibatches(config.epochs, config.num_minibatches, generator):
            logps = completion_logps(policy, minibatch, temperature, tokens_per_pass)  # (B, T)
            if step == 1:  # print how far the ratio is from 1; exit if far at update 1
                check_ratio(minibatch, logps, config.dtype)
            loss = policy_loss(
                logps=logps,
                old_logps=minibatch.old_logps,
                ref_logps=minibatch.ref_logps,
                advantages=minibatch.advantages,
                mask=minibatch.mask,
                config=config,
            )
            loss.backward()
            grad_norm = clip_grad_norm_(policy.parameters(), config.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            metrics = update_metrics(minibatch, logps, low=config.clip_eps, high=config.clip_eps)
            run.record(loss=loss, grad_norm=grad_norm, **metrics)

        # 4. Log
        run.log(step, rollout, rewards)

    return run.finish()


if __name__ == "__main__":
    run_script(train, Config, __doc__)
