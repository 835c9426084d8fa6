"""The training of a script, of which an experiment replaces a function or two.

The settings, the seeds, the sampling and the loss are the script's, so that the same seed draws the
same problems and completions there and here. Nothing is logged or saved, and a run takes a third of
the time of the script's.
"""

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import comb
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_

from lessons.experiments.harness.pool import silence
from toy_env.evaluate import pass_at_k
from toy_env.evaluation import Evaluation, evaluate, held_out
from toy_env.model import load_policy
from toy_env.rollout import completion_logps
from toy_env.run import Run

EVALUATED = 1024  # held-out completions of an evaluation


def majority_at_k(answers: Sequence[int | None], right: int, k: int) -> float:
    """Unbiased estimate of P(the most frequent of k answers is right), ties broken by a fair draw:
    the exact share over all k-subsets of the n >= k answers.

    None, a completion without an answer, abstains; if all abstain, it counts as wrong.
    """
    counts = Counter(answers)
    abstain, n_right = counts.pop(None, 0), counts.pop(right, 0)
    wins = 0.0
    for votes in range(1, min(k, n_right) + 1):
        # ways[size, ties]: choices of `size` other completions in which no wrong answer has more
        # than `votes` votes and `ties` of them have exactly that many. Abstentions come first; each
        # wrong answer is convolved in.
        rest = k - votes
        ways = np.zeros((rest + 1, rest // votes + 1))
        ways[: abstain + 1, 0] = [comb(abstain, a) for a in range(min(abstain, rest) + 1)]
        for count in counts.values():
            update = np.zeros_like(ways)
            for chosen in range(min(count, votes, rest) + 1):
                tied = int(chosen == votes)
                before = ways[: rest + 1 - chosen, : ways.shape[1] - tied]
                update[chosen:, tied:] += comb(count, chosen) * before
            ways = update
        wins += comb(n_right, votes) * (ways[rest] / np.arange(1, ways.shape[1] + 1)).sum()
    return wins / comb(len(answers), k)


def pass_and_majority(
    sampled: Evaluation, problems: Sequence, task: ModuleType, k: int
) -> dict[str, list[float]]:
    """The unbiased pass@k ("pass") and majority@k ("majority") of each problem."""
    passed = [pass_at_k(len(row), int(row.sum()), k) for row in sampled.correct]
    answers = np.array([task.extract_answer(text) for text in sampled.rollout.texts])
    answers = answers.reshape(sampled.correct.shape)
    voted = [majority_at_k(row, problem.answer, k) for row, problem in zip(answers, problems)]
    return {"pass": passed, "majority": voted}


def warm_up(config, number: int) -> float:
    """The share of the learning rate in step `number` (1, 2, ...), which rises linearly to 1."""
    return min(1.0, number / (config.warmup_steps + 1))


def clipped_step(policy, optimizer: torch.optim.Optimizer, config, step: int) -> None:
    """The optimizer step of the scripts: a warm-up and a limit of the gradient's norm."""
    optimizer.param_groups[0]["lr"] = config.learning_rate * warm_up(config, step)
    clip_grad_norm_(policy.parameters(), config.max_grad_norm)
    optimizer.step()


def learn(
    script: ModuleType,
    settings: dict,
    *,
    policy=None,
    collect: Callable | None = None,
    advantages: Callable | None = None,
    policy_loss: Callable | None = None,
    update: Callable = clipped_step,
    evaluated: tuple[int, ...] = (),
) -> dict:
    """Train the base model of a task as `script` does, one of the group methods.

    settings: those of the script's Config that differ; by default there is no KL, and the device is
    the CPU. policy: trained in place of the base model. These replace the script's own:

        collect(run, policy, tokenizer, config, rng, generator)  -> rollout, rewards (P, G), or None
                                                                    to end training
        advantages(policy, rollout, rewards)  -> (P, G), or (P, G, T) for tokens
        policy_loss(logps=, old_logps=, ref_logps=, advantages=, mask=, config=)  -> loss
        update(policy, optimizer, config, step)  makes the step from the gradient

    Returns the accuracy on held-out problems after the last step ("end") and after the steps that
    are `evaluated` ("held_out"), and the mean accuracy on training problems ("training").
    """
    torch.set_num_threads(1)
    config = script.Config(**{"device": "cpu", "kl_coef": 0.0} | settings)
    run = Run(script.__file__, config)
    base, tokenizer = load_policy(run.model_path, run.device)
    policy = policy or base
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=config.learning_rate, weight_decay=0.0, fused=True
    )
    collect, policy_loss = collect or script.collect, policy_loss or script.policy_loss
    problems = held_out(run.task, 32, run.task.LEVELS)

    def accuracy() -> float:
        limits = {"samples": EVALUATED // len(problems), "max_new_tokens": config.max_new_tokens}
        return float(evaluate(policy, tokenizer, problems, task=run.task, **limits).correct.mean())

    training, held_out_accuracy = [], []
    for step in range(1, config.steps + 1):
        rng, generator = run.seeded(step)
        drawn = collect(run, policy, tokenizer, config, rng, generator)
        if drawn is None:
            break
        rollout, rewards = drawn
        rewards = rewards.cpu().double()  # not every device has float64
        if advantages:
            A = torch.as_tensor(advantages(policy, rollout, rewards))
        else:
            A = script.compute_advantages(rewards=rewards)
        rollout.advantages = A.float().view(len(rollout), -1).to(run.device)  # (P·G, 1), (P·G, T)
        if config.kl_coef:
            rollout.ref_logps = completion_logps(reference, rollout, config.temperature)
        for minibatch in rollout.minibatches(config.epochs, config.num_minibatches, generator):
            loss = policy_loss(
                logps=completion_logps(policy, minibatch, config.temperature),
                old_logps=minibatch.old_logps,
                ref_logps=minibatch.ref_logps,
                advantages=minibatch.advantages,
                mask=minibatch.mask,
                config=config,
            )
            optimizer.zero_grad()
            loss.backward()
            update(policy, optimizer, config, step)
        training.append(rewards.mean().item())
        if step in evaluated:
            held_out_accuracy.append(accuracy())
    return {"end": accuracy(), "training": float(np.mean(training)), "held_out": held_out_accuracy}


@contextmanager
def trained(script: ModuleType, settings: dict) -> Iterator[tuple[Path, list[dict]]]:
    """Train by the script itself, silently, by default on the CPU. Inside, the folder of the run
    and the rows of its metrics.jsonl; then the folder is gone."""
    with TemporaryDirectory() as parent:
        folder = Path(parent, "run")
        with silence():
            script.train(script.Config(**{"device": "cpu", "run_dir": str(folder)} | settings))
        lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
        yield folder, [json.loads(line) for line in lines]
