"""Dr. GRPO: "GRPO Done Right" (Liu et al. 2025, arXiv:2503.20783, section 3.2 and Listing 1).

Against grpo.py:

    - the advantage's division by sigma: the advantage is reward - mean of the group
    - the loss's division by each response's length: the sum over tokens is divided by a constant, G and a fixed
      generation budget of max_new_tokens (Listing 1; the paper's equation divides by G alone)

On-policy and without KL, the expected gradient is then the gradient of the success probability, times (G-1)/G and over
max_new_tokens: unbiased up to a constant. The KL term of grpo.py stays, aggregated like the rest; the paper has none
(--kl_coef 0).

    python algorithms/dr_grpo.py
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
    clip_eps: float = HfArg(default=0.2, help="the ratio counts within 1 - this and 1 + this")
    kl_coef: float = HfArg(default=0.04, help="weight of the KL to the reference policy")
    learning_rate: float = HfArg(default=2e-4, help="AdamW's step size after the warm-up")
    warmup_steps: int = HfArg(default=10, help="steps over which the learning rate rises linearly")
    max_grad_norm: float = HfArg(default=1.0, help="the gradient is scaled down to this norm where it is longer")
    micro_batch_size: int = HfArg(
        default=1024, help="completions in one forward pass: a smaller one saves memory, leaves the gradient as it is"
    )


def compute_advantages(*, rewards: Tensor) -> Tensor:
    """Advantages (P, G) from rewards (P, G): R - mean within each group (Dr. GRPO, App. A; no division by sigma).

    Raises ValueError for groups of one.
    """
    if rewards.shape[1] < 2:
        raise ValueError(f"a group needs at least 2 completions, not {rewards.shape[1]}; try --group_size 8")
    mean = rewards.mean(dim=1, keepdim=True)  # [group baseline]
    return rewards - mean  # [no / sigma]


def policy_loss(
    *,
    logps: Tensor,  # (B, T), with gradient
    old_logps: Tensor,  # (B, T), recorded while sampling
    ref_logps: Tensor,  # (B, T), of the frozen base model
    advantages: Tensor,  # (B, 1), one for all tokens of a response
    mask: Tensor,  # (B, T), 1 up to and including EOS
    config: Config,
) -> Tensor:
    """Minus the clipped objective of Dr. GRPO (section 3.2), each token weighted alike; KL term included."""
    ratio = (logps - old_logps).exp()  # (B, T)
    clipped = ratio.clamp(1 - config.clip_eps, 1 + config.clip_eps)
    per_token = torch.maximum(-advantages * ratio, -advantages * clipped)  # (B, T)
    log_u = ref_logps - logps  # [KL] u = pi_ref / pi; k3 = u - 1 - log u (Eq. 4)
    per_token = per_token + config.kl_coef * (log_u.exp() - 1 - log_u)
    return (per_token * mask).sum() / (len(mask) * config.max_new_tokens)  # [no / length] the same constant for all


def train(config: Config) -> dict:
    """Train the policy and return the held-out results before and after."""
    run = Run(__file__, config, min_group_size=2)
    policy, tokenizer = load_policy(config.model, run.device)
    reference, _ = load_policy(config.model, run.device)  # [KL] the policy as it was, frozen
    optimizer = torch.optim.AdamW(policy.parameters(), lr=config.learning_rate, weight_decay=0.0, fused=True)
    run.begin(policy, tokenizer, optimizer=optimizer)
    P, G = config.prompts_per_step, config.group_size

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

        # 3. Judge: advantages
        advantages = compute_advantages(rewards=rewards)  # (P, G)

        with torch.no_grad():  # [KL]
            ref_logps = completion_logps(reference, rollout, config.temperature, config.micro_batch_size)  # (P·G, T)

        # 4. Update: one optimizer step for each minibatch
        for rows in run.minibatches(len(rollout), config.epochs, config.minibatches):
            logps = completion_logps(policy, rollout[rows], config.temperature, config.micro_batch_size)  # (b, T)
            run.self_check(rollout, logps, advantages, rows)
            batch = {"logps": logps, "old_logps": rollout.logps[rows], "mask": rollout.mask[rows]}
            batch["advantages"] = advantages.view(-1, 1)[rows]
            batch["ref_logps"] = ref_logps[rows]  # [KL]
            loss = policy_loss(**batch, config=config)
            optimizer.zero_grad()
            loss.backward()
            grad_norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), config.max_grad_norm)
            optimizer.step()
            run.record(loss=loss, grad_norm=grad_norm)
            run.record(**update_metrics(**batch, config=config))

        # 5. Log
        run.log(step, rollout=rollout, rewards=rewards)

    return run.finish()


def main() -> None:
    run_script(Config, train, __doc__)


if __name__ == "__main__":
    main()
