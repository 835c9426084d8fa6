"""The training of the scripts as one function, whose advantages, loss and optimizer step an
experiment chooses.

It samples the problems and completions that the scripts sample for the same seed, with their
warm-up and their limit of the gradient's norm, and leaves no folder behind: a run takes a third of
the time of a script's.
"""

import copy
import random
from collections.abc import Callable
from types import ModuleType

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

from lessons.experiments.estimators import BATCH, Batch, collect, scores
from toy_env.evaluate import evaluate, held_out
from toy_env.model import load_policy
from toy_env.rollout import Rollout, at_completions, completion_logps, sequences, token_logps
from toy_env.tasks import base_model, load_task

STEPS, WARMUP = 60, 10  # rollout batches; those over which the rate rises, as in the scripts


def proxies(policy, rollout: Rollout) -> torch.Tensor:
    """(B, T): 1 - 2 pi + sum of pi^2 over the vocabulary, for each sampled token of probability pi:
    the squared length of the gradient of its log-probability in the logits, which arXiv:2602.07078
    takes for that in the parameters."""
    with torch.no_grad():
        log_p = token_logps(policy(input_ids=sequences(rollout), use_cache=False).logits, 1.0)
    squares = at_completions(log_p.exp().square().sum(dim=-1), rollout)
    return (1 - 2 * rollout.logps.exp() + squares) * rollout.mask


def token_squares(policy, rollout: Rollout) -> torch.Tensor:
    """(B, T): the squared length of the gradient of each sampled token's log-probability in the
    parameters, which `proxies` stand for; 0 off the mask. A token's gradient is the score of the
    completion up to it less that before."""
    squares, columns = torch.zeros(rollout.mask.shape), torch.arange(rollout.mask.shape[1])
    for row, length in enumerate(rollout.mask.sum(dim=1).tolist()):
        prefixes = rollout[torch.full((length,), row)]
        prefixes.mask = columns <= columns[:length, None]
        S = scores(policy, prefixes)
        squares[row, :length] = S.diff(dim=0, prepend=torch.zeros_like(S[:1])).square().sum(dim=1)
    return squares


def measured_batch(policy, rollout: Rollout, R: np.ndarray, measured: tuple[str, ...]) -> Batch:
    """What advantages may use of a rollout with the rewards R (P, G): its lengths, and what is
    `measured`."""
    batch = Batch(R, rollout.mask.sum(dim=1).numpy().reshape(R.shape))
    if "squared" in measured:
        batch.squared = scores(policy, rollout).square().sum(dim=1).numpy().reshape(R.shape)
    if "proxies" in measured:
        batch.proxies = proxies(policy, rollout).numpy().reshape(*R.shape, -1)
    return batch


def step_of_length(length: float, policy, optimizer: torch.optim.Optimizer) -> None:
    """An optimizer step, with its change of the weights scaled to the Euclidean length."""
    before = parameters_to_vector(policy.parameters()).detach()
    optimizer.step()
    change = parameters_to_vector(policy.parameters()).detach() - before
    vector_to_parameters(before + change * (length / change.norm()), policy.parameters())


def learn(
    task: str, seed: int, advantages: Callable[[Batch, int], np.ndarray], script: ModuleType, *, rate: float = 2e-4,
    step_length: float = 0.0, minibatches: int = 4, G: int = 8, steps: int = STEPS, kl_coef: float = 0.0,
    kl_on_silent: bool = True, measured: tuple[str, ...] = (), evaluated: tuple[int, ...] = (), loss: Callable = None,
    policy=None, sampled: Callable = collect, batch: int = BATCH, epochs: int = 1, warm_by_update: bool = False,
    plain: bool = False, warmup: int = WARMUP,
) -> dict:  # fmt: skip
    """Train the base model of a task on `steps` batches of `batch` completions, with the loss of
    `script`.

    advantages(batch, step): (P, G), or (P, G, T) for each token. step_length: of every optimizer
    step, if above 0, in place of AdamW's own under `rate`. kl_on_silent: whether the KL of silent
    groups counts. measured: what else a batch must hold, "squared" or "proxies". loss(logps,
    old_logps, advantages, mask): in place of the script's, without a KL. policy: what is trained,
    in place of the base model. sampled: in place of `collect`. The rate rises over the first
    `warmup` batches, or with warm_by_update updates. plain: gradient descent without a limit of the
    norm, in place of AdamW. Returns the accuracy on held-out problems after the last step and after
    those `evaluated`, 1,024 completions, and the mean over all batches of the accuracy on training
    problems.
    """
    torch.set_num_threads(1)
    module, config = load_task(task), script.Config(kl_coef=kl_coef)
    base, tokenizer = load_policy(base_model(module))
    policy = policy or base
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=rate, weight_decay=0.0, fused=True)
    if plain:
        optimizer = torch.optim.SGD(policy.parameters(), lr=rate)
    problems = held_out(module, 32, module.LEVELS)

    def accuracy() -> float:
        settings = {
            "samples": 1024 // len(problems),
            "max_new_tokens": config.max_new_tokens,
            "task": module,
        }
        return float(evaluate(policy, tokenizer, problems, **settings).correct.mean())

    training, held_out_accuracy = [], []
    for step in range(1, steps + 1):
        rng = random.Random(f"{seed}/{step}")
        generator = torch.Generator().manual_seed(rng.getrandbits(63))
        rollout, R = sampled(policy, tokenizer, module, batch // G, G, rng, generator)
        A = advantages(measured_batch(policy, rollout, R, measured), step)
        rollout.advantages = (
            torch.from_numpy(A).float().view(len(rollout), -1)
        )  # (P·G, 1) or (P·G, T)
        if kl_coef:
            rollout.ref_logps = completion_logps(reference, rollout, 1.0)
            if not kl_on_silent:  # nan: the policy itself, from which the KL is 0
                rollout.ref_logps[np.repeat(R.std(axis=1) == 0, G)] = torch.nan
        for i, minibatch in enumerate(rollout.minibatches(epochs, minibatches, generator), start=1):
            warm_up = (step - 1) * epochs * minibatches + i if warm_by_update else step
            warm = min(1.0, warm_up / (warmup + 1))
            if step_length and not minibatch.advantages.any():
                continue  # no gradient; AdamW's momentum alone would be scaled to a full step
            logps, ref_logps = completion_logps(policy, minibatch, 1.0), minibatch.ref_logps
            if kl_coef:
                ref_logps = torch.where(ref_logps.isnan(), logps.detach(), ref_logps)
            inputs = {
                "logps": logps,
                "old_logps": minibatch.logps,
                "advantages": minibatch.advantages,
            }
            inputs["mask"] = minibatch.mask
            value = (
                loss(**inputs)
                if loss
                else script.policy_loss(**inputs, ref_logps=ref_logps, config=config)
            )
            optimizer.zero_grad()
            value.backward()
            if step_length:
                step_of_length(step_length * warm, policy, optimizer)
            else:
                optimizer.param_groups[0]["lr"] = rate * warm
                if not plain:
                    clip_grad_norm_(policy.parameters(), config.max_grad_norm)
                optimizer.step()
        training.append(R.mean())
        if step in evaluated:
            held_out_accuracy.append(accuracy())
    return {"end": accuracy(), "training": float(np.mean(training)), "held_out": held_out_accuracy}
