"""DAPO: Decoupled Clip and Dynamic sAmpling Policy Optimization (Yu et al. 2025, arXiv:2503.14476).

Against dr_grpo.py (and, as DAPO was written against GRPO, against grpo.py without the first line):

    + advantage / sigma again                                                   (Eq. 9)
    + clip-higher: the ratio counts up to 1 + clip_eps_high, down to 1 - clip_eps_low   (section 3.1)
    + dynamic sampling: silent groups are replaced by new prompts, until P groups are mixed   (section 3.2)
    + mean over the tokens of the optimizer batch, so that every token weighs alike   (section 3.3)
    + soft overlong punishment, and overlong filtering as a flag that is off   (section 3.4)
    + reward 1 or -1                                                            (Eq. 7)
    - KL and reference policy                                                   (section 2.3)

Eq. 8 takes the token mean over each group; like the authors' code this takes it over the optimizer batch.

    python algorithms/dapo.py
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.hf_argparser import HfArg

from toy_env.arithmetic import LEVELS, reward, sample_problems
from toy_env.policy import completion_logps, load_policy
from toy_env.rollout import sample
from toy_env.run import Run, run_script, update_metrics


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
    clip_eps_low: float = HfArg(default=0.2, help="the ratio counts down to 1 - this")
    clip_eps_high: float = HfArg(default=0.28, help="the ratio counts up to 1 + this")
    max_draws: int = HfArg(default=10, help="rollout batches for a step, at most; 0: one, silent groups stay")
    overlong_buffer: int = HfArg(default=8, help="last tokens before the limit, which cost up to 1 of reward")
    overlong_filtering: bool = HfArg(default=False, help="leave responses cut at the limit out of the loss")
    learning_rate: float = HfArg(default=2e-4, help="AdamW's step size after the warm-up")
    warmup_steps: int = HfArg(default=10, help="steps over which the learning rate rises linearly")
    max_grad_norm: float = HfArg(default=1.0, help="the gradient is scaled down to this norm where it is longer")
    micro_batch_size: int = HfArg(
        default=1024, help="completions in one forward pass: a smaller one saves memory, leaves the gradient as it is"
    )


def compute_advantages(*, rewards: Tensor) -> Tensor:
    """Advantages (P, G) from rewards (P, G): (R - mean) / sigma within each group, and exactly 0 in a unanimous one.

    DeepSeekMath, section 4.1.2, which leaves open the degrees of freedom of sigma and the case sigma = 0: here sigma is
    the population standard deviation (ddof 0), without an epsilon. Raises ValueError for groups of one.
    """
    if rewards.shape[1] < 2:
        raise ValueError(f"a group needs at least 2 completions, not {rewards.shape[1]}; try --group_size 8")
    mean = rewards.mean(dim=1, keepdim=True)  # [group baseline]
    sigma = rewards.std(dim=1, keepdim=True, correction=0)  # [/ sigma]
    mixed = (rewards != rewards[:, :1]).any(dim=1, keepdim=True)
    return torch.where(mixed, (rewards - mean) / sigma, 0.0)


def overlong_penalty(lengths: Tensor, config: Config) -> Tensor:
    """Soft overlong punishment (Eq. 13): 0 up to max_new_tokens - overlong_buffer tokens, down to -1 at the limit."""
    free = config.max_new_tokens - config.overlong_buffer
    return ((free - lengths) / max(1, config.overlong_buffer)).clamp(-1, 0)


def policy_loss(
    *,
    logps: Tensor,  # (B, T), with gradient
    old_logps: Tensor,  # (B, T), recorded while sampling
    advantages: Tensor,  # (B, 1), one for all tokens of a response
    mask: Tensor,  # (B, T), 1 up to and including EOS
    config: Config,
) -> Tensor:
    """Minus the objective of DAPO Eq. 8, the token mean taken over the optimizer batch."""
    ratio = (logps - old_logps).exp()  # (B, T)
    clipped = ratio.clamp(1 - config.clip_eps_low, 1 + config.clip_eps_high)  # [clip-higher]
    per_token = torch.maximum(-advantages * ratio, -advantages * clipped)  # (B, T)
    return (per_token * mask).sum() / mask.sum().clamp(min=1)  # [token mean]


def train(config: Config) -> dict:
    """Train the policy and return the held-out results before and after."""
    run = Run(__file__, config, min_group_size=2)
    policy, tokenizer = load_policy(config.model, run.device)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=config.learning_rate, weight_decay=0.0, fused=True)
    run.begin(policy, tokenizer, optimizer=optimizer)
    P, G = config.prompts_per_step, config.group_size
    drawn = []  # [dynamic sampling] (rollout, rewards) of every draw of the step

    for step in run.steps():
        optimizer.param_groups[0]["lr"] = config.learning_rate * min(1.0, step / (config.warmup_steps + 1))

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

        # [dynamic sampling] Draw more prompts until P groups are mixed: by right and wrong, not by shaped reward
        drawn.append((rollout, rewards))
        everything, correct = rollout.concatenate([r for r, _ in drawn]), torch.cat([r for _, r in drawn])
        k = correct.sum(dim=1)  # right answers of each group
        mixed = ((k > 0) & (k < G) | (config.max_draws == 0)).nonzero()[:P]  # (<= P, 1) indices of the groups kept
        if len(mixed) < P and len(drawn) < config.max_draws:
            run.repeat_step()
            continue
        run.record(draws=len(drawn), discarded_right=(k == G).sum(), discarded_wrong=(k == 0).sum())
        drawn = []
        if len(mixed) == 0:
            run.say(f"stopped at step {step}: no mixed group in {config.max_draws} draws, so nothing to learn from")
            break
        rollout = everything[(mixed * G + torch.arange(G, device=run.device)).flatten()]  # (<= P)·G rows
        # [overlong] Rewards (<= P, G): 1 or -1, and up to 1 less for a response near the limit
        rewards = 2 * correct[mixed.flatten()] - 1 + overlong_penalty(rollout.mask.sum(dim=1).view(-1, G), config)

        # 3. Judge: advantages
        advantages = compute_advantages(rewards=rewards)  # (P, G)

        # 4. Update: one optimizer step for each minibatch
        for rows in run.minibatches(len(rollout), config.epochs, config.minibatches):
            logps = completion_logps(policy, rollout[rows], config.temperature, config.micro_batch_size)  # (b, T)
            run.self_check(rollout, logps, advantages, rows)
            batch = {"logps": logps, "old_logps": rollout.logps[rows], "mask": rollout.mask[rows]}
            batch["advantages"] = advantages.view(-1, 1)[rows]
            if config.overlong_filtering:  # [overlong]
                batch["mask"] = batch["mask"] & ~rollout.truncated[rows].unsqueeze(1)
            loss = policy_loss(**batch, config=config)
            optimizer.zero_grad()
            loss.backward()
            grad_norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), config.max_grad_norm)
            optimizer.step()
            run.record(loss=loss, grad_norm=grad_norm)
            run.record(**update_metrics(**batch, config=config))

        # 5. Log
        run.log(step, rollout=everything, rewards=correct)  # [dynamic sampling]

    return run.finish()


def main() -> None:
    run_script(Config, train, __doc__)


if __name__ == "__main__":
    main()
