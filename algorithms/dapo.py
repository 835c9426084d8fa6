"""DAPO: Decoupled Clip and Dynamic sAmpling Policy Optimization (Yu et al. 2025, arXiv:2503.14476).

Against dr_grpo.py (and, as DAPO was written against GRPO, against grpo.py without the first line):

    + / sigma again (Eq. 9)
    + clip-higher: the ratio is clipped to [1 - clip_eps_low, 1 + clip_eps_high] (section 3.1)
    + dynamic sampling: silent groups are replaced by new prompts, until P groups are mixed (section
    3.2)
    + token mean: over the tokens of the optimizer batch, so that every token weighs alike (section
    3.3)
    + overlong: soft punishment, and filtering as a flag that is off (section 3.4)
    + reward 1 or -1 (Eq. 7)
    - KL in the loss, and the reference policy (section 2.3)

Eq. 8 takes the token mean over each group; this script, like the authors' code, takes it over the
optimizer batch.

    python algorithms/dapo.py
"""

from dataclasses import dataclass

from toy_env import take_over_ctrl_c

take_over_ctrl_c(__name__)  # while torch is imported

from toy_env.metrics import update_metrics
from toy_env.model import load_policy
from toy_env.rollout import Rollout, completion_logps, sample
from toy_env.run import Run, RunConfig, above, at_least, run_script

import torch
from torch import Tensor


@dataclass
class Config(RunConfig):
    prompts_per_step: at_least(1) = 32  # P, problems in a rollout batch
    group_size: at_least(2) = 8  # G, completions sampled for each problem
    max_new_tokens: at_least(1) = 56  # length limit of a completion, in tokens
    temperature: at_least(1e-3) = (
        1.0  # sampling temperature; the policy trained is softmax(logits / temperature)
    )
    epochs: at_least(1) = 1  # passes over each rollout batch
    num_minibatches: at_least(1) = (
        4  # optimizer steps in an epoch; with 1 (and 1 epoch) every ratio is 1: no clip
    )
    clip_eps_low: above(0.0) = 0.2  # the ratio is clipped to [1 - clip_eps_low, 1 + clip_eps_high]
    clip_eps_high: above(0.0) = 0.28  # see clip_eps_low
    dynamic_sampling: bool = (
        True  # whether silent groups (all right or all wrong) are replaced by new prompts
    )
    max_draws: at_least(1) = 10  # rollout batches that dynamic sampling may draw for one step
    overlong_buffer: at_least(0, most="max_new_tokens") = (
        8  # soft-penalty zone before the length limit, in tokens
    )
    overlong_filtering: bool = (
        False  # leave completions that reach the length limit out of the loss
    )
    learning_rate: above(0.0) = 2e-4  # AdamW's step size after the warm-up
    warmup_steps: at_least(0) = 10  # steps over which the learning rate rises linearly
    max_grad_norm: above(0.0) = 1.0  # maximum gradient norm: a longer gradient is scaled down to it


def collect(run: Run, policy, tokenizer, config: Config) -> tuple[Rollout, Tensor]:
    """Sample G completions for each of P new prompts and verify them.

    Returns the rollout, P·G rows with those of a group contiguous, and the rewards (P, G), 1 for
    right, 0 for wrong.
    """
    P, G = config.prompts_per_step, config.group_size
    problems = run.task.sample_problems(P, config.levels, run.random)
    prompts = run.prompts(problems)
    rollout = sample(
        policy, tokenizer, prompts, G, config.max_new_tokens, config.temperature, run.generator
    )
    rewards = [run.task.reward(problems[row // G], text) for row, text in enumerate(rollout.texts)]
    return rollout, torch.tensor(rewards, dtype=torch.float32, device=run.device).view(P, G)


def compute_advantages(*, rewards: Tensor) -> Tensor:
    """Advantages (P, G) from rewards (P, G): (R - mean) / sigma within each group, and exactly 0 in
    a silent one.

    DeepSeekMath, section 4.1.2, which leaves open the degrees of freedom of sigma and the case
    sigma = 0: here sigma is the population standard deviation (ddof 0), without an epsilon. Raises
    ValueError for groups of one.
    """
    if rewards.shape[1] < 2:
        raise ValueError(
            f"a group needs at least 2 completions, not {rewards.shape[1]}; try --group_size 8"
        )
    mean = rewards.mean(dim=1, keepdim=True)  # [GRPO: group baseline]
    sigma = rewards.std(dim=1, keepdim=True, correction=0)  # [GRPO: / sigma]
    silent = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    return torch.where(silent, 0.0, (rewards - mean) / sigma)


def overlong_penalty(*, mask: Tensor, config: Config) -> Tensor:
    """Soft overlong punishment (Eq. 13), (B,): 0 up to max_new_tokens - overlong_buffer tokens, -1
    at the limit."""
    free = config.max_new_tokens - config.overlong_buffer
    return ((free - mask.sum(dim=1)) / max(1, config.overlong_buffer)).clamp(-1, 0)


def groups_to_keep(*, correct: Tensor, config: Config) -> Tensor:
    """Indices of the groups to train on, at most P, from correct (groups, G) in {0, 1}: with
    dynamic sampling the first that are mixed, neither all right nor all wrong. Right and wrong
    decide, not the shaped reward."""
    kept = (correct != correct[:, :1]).any(dim=1) | (not config.dynamic_sampling)
    return kept.nonzero().flatten()[: config.prompts_per_step]


def policy_loss(
    *,
    logps: Tensor,  # (B, T), with gradient
    old_logps: Tensor,  # (B, T), recorded while sampling
    advantages: Tensor,  # (B, 1), one for all tokens of a completion
    mask: Tensor,  # (B, T), 1 up to and including EOS
    config: Config,
) -> Tensor:
    """Minus the objective of DAPO Eq. 8, the token mean taken over the optimizer batch."""
    ratio = (logps - old_logps).exp()  # (B, T)
    clipped = ratio.clamp(1 - config.clip_eps_low, 1 + config.clip_eps_high)  # [DAPO: clip-higher]
    per_token = torch.maximum(-advantages * ratio, -advantages * clipped)  # (B, T)
    return (per_token * mask).sum() / mask.sum().clamp(min=1)  # [DAPO: token mean]


def train(config: Config) -> dict:
    """Train the policy and return the held-out results before and after."""
    run = Run(__file__, config)
    policy, tokenizer = load_policy(
        run.model_path, run.device, config.dtype, config.gradient_checkpointing
    )
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=config.learning_rate, weight_decay=0.0, fused=True
    )
    run.begin(policy, tokenizer, optimizer=optimizer)
    P, G = config.prompts_per_step, config.group_size

    for step in run.steps():
        optimizer.param_groups[0]["lr"] = config.learning_rate * min(
            1.0, step / (config.warmup_steps + 1)
        )

        # 1. Sample and verify: G completions for each of P prompts, and of more until P groups are mixed
        drawn, correct = collect(run, policy, tokenizer, config)  # P·G rows; (P, G)
        while (
            len(kept := groups_to_keep(correct=correct, config=config)) < P
            and len(correct) < config.max_draws * P
        ):
            more, more_correct = collect(run, policy, tokenizer, config)  # [DAPO: dynamic sampling]
            drawn, correct = Rollout.concatenate([drawn, more]), torch.cat([correct, more_correct])
        rollout = drawn.groups(kept, G)  # (<= P)·G rows
        # [DAPO: reward 1 or -1] [DAPO: overlong] rewards (<= P, G)
        rewards = (
            2 * correct[kept] - 1 + overlong_penalty(mask=rollout.mask, config=config).view(-1, G)
        )

        # 2. Advantages
        rollout.advantages = compute_advantages(rewards=rewards).view(-1, 1)  # ((<= P)·G, 1)

        # 3. Update: one optimizer step for each minibatch [PPO: minibatches]
        for minibatch in rollout.minibatches(config.epochs, config.num_minibatches, run.generator):
            logps = completion_logps(
                policy, minibatch, config.temperature, config.max_tokens_per_pass
            )  # (b, T)
            run.self_check(minibatch, logps, rollout.advantages)
            if config.overlong_filtering:  # [DAPO: overlong]
                minibatch.mask = minibatch.mask & ~minibatch.truncated.unsqueeze(1)
            loss = policy_loss(
                logps=logps,
                old_logps=minibatch.logps,
                advantages=minibatch.advantages,
                mask=minibatch.mask,
                config=config,
            )
            optimizer.zero_grad()
            loss.backward()
            grad_norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), config.max_grad_norm)
            optimizer.step()
            run.record(loss=loss, grad_norm=grad_norm)
            clip = (1 - config.clip_eps_low, 1 + config.clip_eps_high)
            run.record(**update_metrics(minibatch, logps, clip))

        # 4. Log
        run.log(step, rollout=drawn, rewards=correct)

    return run.finish()


def main() -> None:
    run_script(Config, train, __doc__)


if __name__ == "__main__":
    main()
