"""REINFORCE for verifiable rewards: the first rung of the ladder.

Sample G completions for each of P prompts, score each completion 1 (right) or 0 (wrong), and step along

    grad J = E[ R(x, y) * sum_t grad log pi(y_t | x, y_<t) ]          (Williams 1992)

There is no baseline, no clipping and no critic: every token of a right answer is made likelier, and nothing pushes
against a wrong one but the softmax. One optimizer step per batch, so the data are always on-policy. The sum over the
tokens of a response is the policy gradient; a mean over them would be another estimator.

    python algorithms/reinforce.py
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.hf_argparser import HfArg

from toy_env.arithmetic import LEVELS, reward, sample_problems
from toy_env.policy import completion_logps, load_policy
from toy_env.rollout import sample
from toy_env.run import Run, run_script


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
    learning_rate: float = HfArg(default=2e-4, help="AdamW's step size after the warm-up")
    warmup_steps: int = HfArg(default=10, help="steps over which the learning rate rises linearly")
    max_grad_norm: float = HfArg(default=1.0, help="the gradient is scaled down to this norm where it is longer")
    micro_batch_size: int = HfArg(
        default=1024, help="completions in one forward pass: a smaller one saves memory, leaves the gradient as it is"
    )


def compute_advantages(*, rewards: Tensor) -> Tensor:
    """The advantage of each completion, (P, G), from its reward, (P, G): the reward itself. No baseline.

    Williams (1992), with b = 0. Any b that does not depend on the completion would leave the expectation unchanged.
    """
    return rewards


def policy_loss(
    *,
    logps: Tensor,  # (B, T), with gradient
    advantages: Tensor,  # (B, 1), one for all tokens of a response
    mask: Tensor,  # (B, T), 1 up to and including EOS
    config: Config,
) -> Tensor:
    """The scalar whose gradient is minus the estimate of grad J, up to the constant 1 / max_new_tokens."""
    per_token = -advantages * logps  # (B, T)
    return (per_token * mask).sum() / (len(mask) * config.max_new_tokens)


def train(config: Config) -> dict:
    """Train the policy and return the held-out results before and after."""
    run = Run(__file__, config)
    policy, tokenizer = load_policy(config.model, run.device)
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

        # 4. Update: one optimizer step
        logps = completion_logps(policy, rollout, config.temperature, config.micro_batch_size)  # (P·G, T)
        run.self_check(rollout, logps, advantages)
        loss = policy_loss(logps=logps, advantages=advantages.view(-1, 1), mask=rollout.mask, config=config)
        optimizer.zero_grad()
        loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), config.max_grad_norm)
        optimizer.step()
        run.record(loss=loss, grad_norm=grad_norm)

        # 5. Log
        run.log(step, rollout=rollout, rewards=rewards)

    return run.finish()


def main() -> None:
    run_script(Config, train, __doc__)


if __name__ == "__main__":
    main()
