"""PPO for language models (Schulman et al. 2017, arXiv:1707.06347; Ouyang et al. 2022,
arXiv:2203.02155).

Against reinforce.py:

    + critic: a second network of the policy's size, and a clipped value loss
    + GAE: advantages from rewards and values, token by token
    + whitening of the advantages over the tokens of the batch
    + reference policy: a frozen copy of the policy as it was before training
    + KL in the reward: a k1 penalty to the reference policy, for every token
    + minibatches: several optimizer steps per batch, with the log-probs kept from sampling
    + clip of the ratio on both sides
    + token mean: the loss is a mean over all tokens of the optimizer batch

    python algorithms/ppo.py
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from toy_env.metrics import check_ratio, update_metrics
from toy_env.model import load_policy, model_prompts
from toy_env.rollout import Rollout, at_completions, completion_logps, in_passes, sample, sequences
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
    gae_lambda: float = 0.95  # GAE: 1 = return minus value, 0 = one-step error of the value
    value_clip: float = 0.2  # how far a value may move from its value at sampling time
    critic_learning_rate: float = 5e-4  # the critic's step size after the warm-up
    learning_rate: float = 2e-4  # AdamW's step size after the warm-up
    warmup_steps: int = 10  # rollout batches over which the learning rate rises linearly
    max_grad_norm: float = 1.0  # maximum gradient norm: a longer gradient is scaled down to it


class Critic(torch.nn.Module):
    """A value network of the policy's size: a copy of its transformer under a head that starts at 0
    everywhere."""

    def __init__(self, policy: torch.nn.Module) -> None:
        super().__init__()
        self.transformer = copy.deepcopy(policy.base_model)
        size = policy.get_input_embeddings().embedding_dim
        self.head = torch.nn.Linear(size, 1, device=policy.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, part: Rollout) -> Tensor:
        """V(x, y_<t), the value of the state *before* each token: (B, T), read where the token is
        predicted."""
        states = self.transformer(input_ids=sequences(part), use_cache=False).last_hidden_state
        return at_completions(self.head(states.to(self.head.weight.dtype)).squeeze(2), part)


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


def compute_advantages(
    *,
    rewards: Tensor,  # (P, G), for the last token of each completion
    values: Tensor,  # (B, T), B = P·G
    old_logps: Tensor,  # (B, T), recorded while sampling
    ref_logps: Tensor | None,  # (B, T), of the frozen base model; None if kl_coef is 0
    mask: Tensor,  # (B, T), 1 up to and including EOS
    config: Config,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, both (B, T), 0 off the mask: GAE (Schulman et al. 2015), gamma = 1.

    The value after the last token is 0, after an EOS and at the length limit alike. Returns come
    from the advantages before they are whitened.
    """
    kl = old_logps - ref_logps if config.kl_coef else torch.zeros_like(values)  # k1
    token_rewards = -config.kl_coef * kl * mask  # [PPO: KL in the reward]
    last = mask.sum(dim=1, keepdim=True) - 1  # (B, 1)
    token_rewards = token_rewards.scatter_add(1, last, rewards.view(-1, 1))
    advantages = torch.zeros_like(values)
    next_value = torch.zeros_like(values[:, 0])
    next_advantage = torch.zeros_like(values[:, 0])
    for t in reversed(range(mask.shape[1])):  # [PPO: GAE]
        delta = token_rewards[:, t] + next_value - values[:, t]
        advantages[:, t] = (delta + config.gae_lambda * next_advantage) * mask[:, t]
        next_value = values[:, t] * mask[:, t]
        next_advantage = advantages[:, t]
    returns = (advantages + values) * mask
    mean = advantages.sum() / mask.sum()  # [PPO: whitening]
    variance = ((advantages - mean).square() * mask).sum() / mask.sum()
    return (advantages - mean) / (variance + 1e-8).sqrt() * mask, returns


def policy_loss(
    *,
    logps: Tensor,  # (B, T), with gradient
    old_logps: Tensor,  # (B, T), recorded while sampling
    advantages: Tensor,  # (B, T)
    mask: Tensor,  # (B, T), 1 up to and including EOS
    config: Config,
) -> Tensor:
    """Minus the clipped objective (PPO, Eq. 7), a mean over all tokens of the optimizer batch."""
    ratio = (logps - old_logps).exp()  # (B, T)
    clipped = ratio.clamp(1 - config.clip_eps, 1 + config.clip_eps)  # [PPO: clip]
    per_token = -torch.minimum(advantages * ratio, advantages * clipped)  # (B, T)
    return (per_token * mask).sum() / mask.sum()  # [PPO: token mean]


def value_loss(*, values, old_values, returns, mask, config: Config) -> Tensor:
    """Half the mean over tokens of the larger of two squared errors: of the value, and of the value
    clipped to within value_clip of what it was when the batch was sampled. All tensors are (B, T).
    """
    clipped = old_values + (values - old_values).clamp(-config.value_clip, config.value_clip)
    per_token = torch.maximum((values - returns).square(), (clipped - returns).square())
    return 0.5 * (per_token * mask).sum() / mask.sum()


def explained_variance(*, values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """1 - Var(returns - values) / Var(returns) over unmasked tokens: 1 for a perfect critic, 0 for
    a constant one."""
    variance = returns[mask].var(correction=0)
    return torch.where(variance > 0, 1 - (returns - values)[mask].var(correction=0) / variance, 0.0)


def train(config: Config) -> dict:
    """Train the policy and return the held-out results before and after."""
    run = Run(__file__, config)
    temperature = config.temperature
    policy, tokenizer = load_policy(run.model_path, run.device, config.dtype)
    # Copied here, because begin loads the trained weights when a run is resumed.
    reference = copy.deepcopy(policy).requires_grad_(False) if config.kl_coef else None
    critic = Critic(policy)  # [PPO: critic]
    optimizer = torch.optim.AdamW(policy.parameters(), weight_decay=0.0, fused=True)
    optimizer.add_param_group({"params": critic.parameters()})

    # Evaluate the policy as it is, or load the last save.
    first = run.begin(tokenizer, policy=policy, critic=critic, optimizer=optimizer)
    tokens_per_pass = run.config.max_tokens_per_pass  # what memory holds, unless given
    for step in range(first, config.steps + 1):
        rng, generator = run.seeded(step)
        warmup = min(1.0, step / (config.warmup_steps + 1))
        optimizer.param_groups[0]["lr"] = config.learning_rate * warmup
        optimizer.param_groups[1]["lr"] = config.critic_learning_rate * warmup

        # 1. Sample and verify: G completions for each of P prompts, rewards (P, G)
        rollout, rewards = collect(run, policy, tokenizer, config, rng, generator)

        # 2. Advantages
        if config.kl_coef:  # [PPO: reference policy]
            rollout.ref_logps = completion_logps(reference, rollout, temperature, tokens_per_pass)
        with torch.no_grad():
            rollout.values = in_passes(critic, rollout, tokens_per_pass)  # (P·G, T)
        rollout.advantages, rollout.returns = compute_advantages(  # (P·G, T) each
            rewards=rewards,
            values=rollout.values,
            old_logps=rollout.old_logps,
            ref_logps=rollout.ref_logps,
            mask=rollout.mask,
            config=config,
        )
        ev = explained_variance(values=rollout.values, returns=rollout.returns, mask=rollout.mask)
        run.record(explained_variance=ev)

        # 3. Update: one optimizer step for each minibatch [PPO: minibatches]
        for minibatch in rollout.minibatches(config.epochs, config.num_minibatches, generator):
            logps = completion_logps(policy, minibatch, temperature, tokens_per_pass)  # (B, T)
            if step == 1:  # print how far the ratio is from 1; exit if far at update 1
                check_ratio(minibatch, logps, config.dtype)
            loss = policy_loss(
                logps=logps,
                old_logps=minibatch.old_logps,
                advantages=minibatch.advantages,
                mask=minibatch.mask,
                config=config,
            )
            critic_loss = value_loss(
                values=in_passes(critic, minibatch, tokens_per_pass),  # (B, T)
                old_values=minibatch.values,
                returns=minibatch.returns,
                mask=minibatch.mask,
                config=config,
            )
            (loss + critic_loss).backward()  # of two networks: no weight needed
            grad_norm = clip_grad_norm_(policy.parameters(), config.max_grad_norm)
            clip_grad_norm_(critic.parameters(), config.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            metrics = update_metrics(minibatch, logps, low=config.clip_eps, high=config.clip_eps)
            run.record(loss=loss, value_loss=critic_loss, grad_norm=grad_norm, **metrics)

        # 4. Log
        run.log(step, rollout, rewards)

    return run.finish()


if __name__ == "__main__":
    run_script(train, Config, __doc__)
