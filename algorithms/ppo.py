"""PPO for language models (Schulman et al. 2017, arXiv:1707.06347; Ouyang et al. 2022, arXiv:2203.02155).

Against reinforce.py:

    + a critic, a second network of the policy's size; advantages from GAE, whitened over the tokens of the batch
    + KL to the reference policy, as a k1 penalty inside the reward of every token
    + log-probs kept from sampling, several minibatches per batch, the ratio clipped on both sides
    + clipped value loss
    + mean over all tokens of the optimizer batch

    python algorithms/ppo.py
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.hf_argparser import HfArg

from toy_env.arithmetic import LEVELS, reward, sample_problems
from toy_env.policy import Critic, completion_logps, completion_values, load_policy
from toy_env.rollout import sample
from toy_env.run import Run, explained_variance, run_script, update_metrics


@dataclass
class Config:
    steps: int = HfArg(default=60, help="rollout batches")
    seed: int = HfArg(default=0, help="seeds the problems and the sampling of every step")
    device: str = HfArg(default="auto", help="auto (cuda, else mps, else cpu), cuda, mps or cpu")
    model: str = HfArg(default="base", help="base, a folder, or a causal language model on the Hugging Face hub")
    run_dir: str = HfArg(default="", help="the run's folder (default: runs/SCRIPT-SEED, numbered if that exists)")
    resume: bool = HfArg(default=False, help="continue the run in --run_dir from its last save")
    save_every: int = HfArg(default=20, help="steps between two saves for --resume")
    eval_problems: int = HfArg(default=64, help="held-out problems per level, before and after training")
    eval_every: int = HfArg(default=10, help="steps between two evaluations during training; 0 for none")
    levels: list[int] = HfArg(default_factory=lambda: list(LEVELS), help="difficulties: number of operations, 1 to 4")
    prompts_per_step: int = HfArg(default=32, help="P, problems in a rollout batch")
    group_size: int = HfArg(default=8, help="G, completions sampled for each problem")
    max_new_tokens: int = HfArg(default=56, help="length limit of a completion, in tokens")
    temperature: float = HfArg(default=1.0, help="sampling temperature; the policy trained is softmax(logits / T)")
    epochs: int = HfArg(default=1, help="passes over each rollout batch")
    minibatches: int = HfArg(
        default=4, help="optimizer steps in a pass; with 1 every ratio is 1 and nothing is clipped"
    )
    clip_eps: float = HfArg(default=0.2, help="the ratio counts within 1 - this and 1 + this")
    kl_coef: float = HfArg(default=0.04, help="weight of the KL to the reference policy")
    gae_lambda: float = HfArg(default=0.95, help="GAE: 1 = return minus value, 0 = one-step error of the value")
    value_clip: float = HfArg(default=0.2, help="how far a value may move in one rollout batch")
    value_coef: float = HfArg(default=1.0, help="weight of the value loss")
    critic_learning_rate: float = HfArg(default=5e-4, help="the critic's step size after the warm-up")
    learning_rate: float = HfArg(default=2e-4, help="AdamW's step size after the warm-up")
    warmup_steps: int = HfArg(default=10, help="steps over which the learning rate rises linearly")
    max_grad_norm: float = HfArg(default=1.0, help="the gradient is scaled down to this norm where it is longer")
    micro_batch_size: int = HfArg(
        default=1024, help="completions in one forward pass: a smaller one saves memory, leaves the gradient as it is"
    )


def compute_advantages(
    *, rewards: Tensor, values: Tensor, old_logps: Tensor, ref_logps: Tensor, mask: Tensor, config: Config
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, both (B, T) and 0 off the mask: GAE (Schulman et al. 2015) with gamma = 1.

    rewards (P, G), for the last token of each response; values, old_logps, ref_logps and mask (B, T), B = P·G. The
    value after the last token is 0, after an EOS and at the length limit alike. Returns come from the advantages before
    they are whitened.
    """
    token_rewards = -config.kl_coef * (old_logps - ref_logps) * mask  # [KL in the reward] k1
    last = mask.sum(dim=1, keepdim=True) - 1  # (B, 1)
    token_rewards = token_rewards.scatter_add(1, last, rewards.view(-1, 1))
    advantages = torch.zeros_like(values)
    next_value = next_advantage = torch.zeros_like(values[:, 0])
    for t in reversed(range(mask.shape[1])):  # [GAE]
        delta = token_rewards[:, t] + next_value - values[:, t]
        advantages[:, t] = (delta + config.gae_lambda * next_advantage) * mask[:, t]
        next_value, next_advantage = values[:, t] * mask[:, t], advantages[:, t]
    returns = (advantages + values) * mask
    mean = advantages.sum() / mask.sum()  # [whitening]
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
    ratio = (logps - old_logps).exp()  # [clip] (B, T)
    clipped = ratio.clamp(1 - config.clip_eps, 1 + config.clip_eps)
    per_token = torch.maximum(-advantages * ratio, -advantages * clipped)  # (B, T)
    return (per_token * mask).sum() / mask.sum()  # [token mean]


def value_loss(*, values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, config: Config) -> Tensor:
    """Half the mean over tokens of the larger of two squared errors: of the value, and of the value clipped to within
    value_clip of what it was when the batch was sampled. All (B, T)."""
    clipped = old_values + (values - old_values).clamp(-config.value_clip, config.value_clip)
    per_token = torch.maximum((values - returns).square(), (clipped - returns).square())
    return 0.5 * (per_token * mask).sum() / mask.sum()


def train(config: Config) -> dict:
    """Train the policy and return the held-out results before and after."""
    run = Run(__file__, config)
    policy, tokenizer = load_policy(config.model, run.device)
    reference, _ = load_policy(config.model, run.device)  # [KL in the reward] the policy as it was, frozen
    critic = Critic(policy)  # [critic]
    optimizer = torch.optim.AdamW(policy.parameters(), lr=config.learning_rate, weight_decay=0.0, fused=True)
    optimizer.add_param_group({"params": critic.parameters()})
    run.begin(policy, tokenizer, critic=critic, optimizer=optimizer)
    P, G = config.prompts_per_step, config.group_size

    for step in run.steps():
        optimizer.param_groups[0]["lr"] = config.learning_rate * min(1.0, step / (config.warmup_steps + 1))
        optimizer.param_groups[1]["lr"] = config.critic_learning_rate * min(1.0, step / (config.warmup_steps + 1))

        # 1. Sample: G completions for each of P prompts
        problems = sample_problems(P, config.levels, run.random)
        rollout = sample(
            policy,
            tokenizer,
            [problem.prompt for problem in problems],
            group_size=G,
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            generator=run.generator,
        )  # P·G rows, the G rows of a group contiguous

        # 2. Verify: rewards (P, G) in {0, 1}
        rewards = [reward(problems[row // G], text) for row, text in enumerate(rollout.texts)]
        rewards = torch.tensor(rewards, device=run.device).view(P, G)

        # 3. Judge: advantages
        with torch.no_grad():  # [KL in the reward] [critic]
            ref_logps = completion_logps(reference, rollout, config.temperature, config.micro_batch_size)  # (P·G, T)
            old_values = completion_values(critic, rollout, config.micro_batch_size)  # (P·G, T)
        judged = {"old_logps": rollout.logps, "ref_logps": ref_logps, "values": old_values, "mask": rollout.mask}
        advantages, returns = compute_advantages(rewards=rewards, **judged, config=config)  # (P·G, T)
        run.record(explained_variance=explained_variance(old_values, returns, rollout.mask))

        # 4. Update: one optimizer step for each minibatch  [minibatches]
        for rows in run.minibatches(len(rollout), config.epochs, config.minibatches):
            logps = completion_logps(policy, rollout[rows], config.temperature, config.micro_batch_size)  # (b, T)
            run.self_check(rollout, logps, advantages[rows], rows)
            batch = {"logps": logps, "old_logps": rollout.logps[rows], "mask": rollout.mask[rows]}
            batch["advantages"] = advantages[rows]
            loss = policy_loss(**batch, config=config)
            values = completion_values(critic, rollout[rows], config.micro_batch_size)  # [critic] (b, T)
            judged = {"old_values": old_values[rows], "returns": returns[rows], "mask": rollout.mask[rows]}
            critic_loss = value_loss(values=values, **judged, config=config)
            optimizer.zero_grad()
            (loss + config.value_coef * critic_loss).backward()
            grad_norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), config.max_grad_norm)
            torch.nn.utils.clip_grad_norm_(critic.parameters(), config.max_grad_norm)
            optimizer.step()
            run.record(loss=loss, grad_norm=grad_norm)
            run.record(value_loss=critic_loss, **update_metrics(**batch, ref_logps=ref_logps[rows], config=config))

        # 5. Log
        run.log(step, rollout=rollout, rewards=rewards)

    return run.finish()


def main() -> None:
    run_script(Config, train, __doc__)


if __name__ == "__main__":
    main()
