"""GSPO: Group Sequence Policy Optimization (Zheng et al. 2025, arXiv:2507.18071, Eq. 5 and 7).

Against grpo.py:

    + one ratio a completion: the geometric mean of its tokens' ratios, in place of one ratio for
      each token
    + narrow clip: that ratio is clipped to [1 - clip_eps_low, 1 + clip_eps_high]

The clip stops whole completions: right ones whose mean log-ratio has risen above the range, and
wrong ones whose mean log-ratio has fallen below it. The paper's range, 3e-4 and 4e-4, is meant for
completions of thousands of tokens and small steps; the default here is thirty times as wide. With 4
updates a batch it stops 6 % of the tokens that have an advantage, where GRPO's clip stops .5 %
(lessons/experiments/staleness.py). On the first minibatch of a batch every ratio is 1, and the
gradient is GRPO's. The KL of grpo.py stays; the paper's equations leave it out (--kl_coef 0).

    python algorithms/gspo.py
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
    clip_eps_low: float = 9e-3  # a completion's ratio is clipped to [1 - this, 1 + clip_eps_high]
    clip_eps_high: float = 12e-3  # see clip_eps_low
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
    """Advantages (P, G) from rewards (P, G): (R - mean) / sigma within each group, and exactly 0 in
    a silent one.

    DeepSeekMath, section 4.1.2, which leaves open the degrees of freedom of sigma and the case
    sigma = 0: here sigma is the population standard deviation (ddof 0), without an epsilon.
    """
    mean = rewards.mean(dim=1, keepdim=True)  # [GRPO: group baseline]
    sigma = rewards.std(dim=1, keepdim=True, correction=0)  # [GRPO: / sigma]
    silent = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)  # sigma may round to > 0
    return torch.where(silent, 0.0, (rewards - mean) / sigma)  # where silent, 0 / 0 is discarded


def sequence_ratio(*, logps: Tensor, old_logps: Tensor, mask: Tensor) -> Tensor:
    """Ratio of each completion, (B, 1): exp of the mean log-ratio of its tokens (Eq. 7). From (B,
    T) each.

    (pi / pi_old)^(1 / length) of the whole completion: not the weight that importance sampling
    would give it.
    """
    log_ratio = ((logps - old_logps) * mask).sum(dim=1, keepdim=True)
    return (log_ratio / mask.sum(dim=1, keepdim=True).clamp(min=1)).exp()


def policy_loss(
    *,
    logps: Tensor,  # (B, T), with gradient
    old_logps: Tensor,  # (B, T), recorded while sampling
    ref_logps: Tensor | None,  # (B, T), of the frozen base model; None if kl_coef is 0
    advantages: Tensor,  # (B, 1), one for all tokens of a completion
    mask: Tensor,  # (B, T), 1 up to and including EOS
    config: Config,
) -> Tensor:
    """Minus the clipped objective of GSPO Eq. 5, GRPO's KL term included."""
    # [GSPO: one ratio a completion] (B, 1)
    ratio = sequence_ratio(logps=logps, old_logps=old_logps, mask=mask)
    clipped = ratio.clamp(1 - config.clip_eps_low, 1 + config.clip_eps_high)  # [GSPO: narrow clip]
    per_token = -torch.minimum(advantages * ratio, advantages * clipped)  # (B, 1)
    if config.kl_coef:
        log_u = ref_logps - logps  # [GRPO: KL in the loss] u = pi_ref / pi
        per_token = per_token + config.kl_coef * (log_u.exp() - 1 - log_u)  # k3 (Eq. 4)
    return ((per_token * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)).mean()  # [GRPO: / length]


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
            ratio = sequence_ratio(logps=logps, old_logps=minibatch.old_logps, mask=minibatch.mask)
            metrics = update_metrics(
                minibatch, logps, config.clip_eps_low, config.clip_eps_high, ratio
            )
            run.record(loss=loss, grad_norm=grad_norm, **metrics)

        # 4. Log
        run.log(step, rollout, rewards)

    return run.finish()


if __name__ == "__main__":
    run_script(train, Config, __doc__)
