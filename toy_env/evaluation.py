"""Held-out accuracy: completions of held-out problems, and the report of them by level."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from types import ModuleType

import numpy as np
import torch

from toy_env import arithmetic
from toy_env.memory import rows_at_once
from toy_env.metrics import rollout_metrics
from toy_env.model import encode_prompts, model_prompts
from toy_env.rollout import Rollout, sample

AT_ONCE = 57_344  # tokens that are sampled in one batch at most: 1,024 rows of 56


@dataclass
class Evaluation:
    """A policy's completions of some problems."""

    correct: np.ndarray  # (problems, samples) bool
    rollout: Rollout  # the completions, those of a problem contiguous
    entropy: float  # nats per token, mean over all sampled tokens

    def metrics(self, rows: Sequence[int], task: ModuleType) -> dict:
        """`rollout_metrics` of some of the problems, by their indices, and the 95 % interval of
        their accuracy."""
        correct = self.correct[rows]
        chosen = self.rollout.groups(torch.tensor(rows), correct.shape[1])
        interval = {"interval": confidence_interval(correct.mean(axis=1))}
        return rollout_metrics(chosen, torch.from_numpy(correct), task) | interval


def held_out(task: ModuleType, problems: int, levels: Sequence[int]) -> list:
    """`problems` held-out problems of each level, or all that there are; no levels: of all levels.
    Raises SystemExit if a level does not exist."""
    levels = levels or task.LEVELS
    if not set(levels) <= set(task.LEVELS):
        raise SystemExit(f"--levels must be among {task.LEVELS}")
    return task.held_out_problems(problems, levels)


def evaluate(
    policy,
    tokenizer,
    problems: Sequence,
    *,
    samples: int,
    max_new_tokens: int,
    temperature: float = 1.0,
    task: ModuleType = arithmetic,
) -> Evaluation:
    """Complete every problem `samples` times at `temperature` (0 = greedy), with a sampler seeded
    for this call.

    As many problems at once as memory holds: the number is part of the draw, so a large model's
    completions may differ on another machine.
    """
    generator = torch.Generator(device=policy.device).manual_seed(0)
    prompts = model_prompts(tokenizer, problems, task)
    longest = encode_prompts(tokenizer, prompts)[0].shape[1] + max_new_tokens
    rows = min(AT_ONCE // max_new_tokens, rows_at_once(policy, longest))
    chunk = max(1, rows // samples)  # problems
    rollouts = []
    for start in range(0, len(prompts), chunk):
        part = prompts[start : start + chunk]
        rollouts.append(
            sample(policy, tokenizer, part, samples, max_new_tokens, temperature, generator)
        )
    rollout = Rollout.concatenate(rollouts)
    repeated = [problem for problem in problems for _ in range(samples)]  # the problem of each row
    rewards = [task.reward(problem, text) for problem, text in zip(repeated, rollout.texts)]
    entropy = rollout.entropies.sum().item() / rollout.mask.sum().item()
    return Evaluation(np.array(rewards).reshape(-1, samples) == 1.0, rollout, entropy)


def confidence_interval(rates: np.ndarray) -> tuple[float, float]:
    """95 % Wilson interval (Wilson 1927) for the mean m of per-problem rates in [0, 1].

    The sample size is the effective one, m(1-m) / variance of the rates: that of as informative a
    sample with one completion a problem. With one completion a problem, or if all rates are equal,
    it is the number of problems.
    """
    z, mean, n = 1.959964, rates.mean(), len(rates)
    if np.ptp(rates) > 1e-9:  # else the rates are equal but for rounding
        n *= mean * (1 - mean) / rates.var()
    centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
    return float(max(0.0, centre - half)), float(min(1.0, centre + half))


def held_out_report(
    policy, tokenizer, problems: Sequence, *, task=arithmetic, **sampling
) -> tuple[dict, Evaluation]:
    """Evaluate a policy with `sampling` (samples, max_new_tokens, temperature) and greedily.

    Returns plain data for tables and files: by level and for "all", accuracies with 95 % intervals,
    share of worked completions, mean length; and two sampled completions of each level to look at.
    Returns the samples, too.
    """
    sampled = evaluate(policy, tokenizer, problems, task=task, **sampling)
    alone = sampling | {"samples": 1, "temperature": 0.0}
    greedy = evaluate(policy, tokenizer, problems, task=task, **alone)
    accuracy, completions = {}, []
    for level in [*dict.fromkeys(problem.level for problem in problems), "all"]:
        rows = [i for i, problem in enumerate(problems) if level in (problem.level, "all")]
        of_sampled, of_greedy = sampled.metrics(rows, task), greedy.metrics(rows, task)
        accuracy[str(level)] = {
            "greedy": of_greedy["accuracy"],
            "greedy_interval": of_greedy["interval"],
            "greedy_worked": of_greedy["worked"],
            "sampled": of_sampled["accuracy"],
            "sampled_interval": of_sampled["interval"],
            "worked": of_sampled["worked"],
            "length": of_sampled["length"],
            "truncated": of_sampled["truncated"],
        }
        for row in rows[:2] if level != "all" else []:
            first = row * sampling["samples"]
            problem, text, verdict = problems[row], sampled.rollout.texts[first], "right"
            if not sampled.correct[row, 0]:
                verdict = f"wrong, {problem.answer} expected"
                if hasattr(task, "NO_ANSWER") and task.extract_answer(text) is None:
                    verdict = f"wrong: {task.NO_ANSWER}"
                if sampled.rollout.truncated[first]:
                    verdict += "; cut at the length limit"
            completions.append({"prompt": problem.prompt, "completion": text, "verdict": verdict})
    report = {
        "samples": sampling["samples"],
        "temperature": sampling["temperature"],
        "problems": len(problems),
        "entropy": sampled.entropy,
        "accuracy": accuracy,
        "completions": completions,
    }
    return report, sampled


def report_samples(report: dict, when: str = "") -> str:
    """The completions of a report, one per line: the problem, the completion, the middle of a long
    one left out, and the verdict."""
    lines = [f"Held-out problems{when}, one sample each"]
    for row in report["completions"]:
        text = row["completion"]
        if len(text) > 70:
            text = f"{text[:30]} [...] {text[-34:]}"
        shown = repr(text)[1:-1]  # without control characters
        lines.append(f"  {row['prompt']:<17} {shown}   ({row['verdict']})")
    return "\n".join(lines)


def report_table(*reports: dict) -> str:
    """Held-out accuracy by level with 95 % intervals as text: one report, or one before and one
    after side by side."""
    first, width = reports[0], 18 * len(reports)
    sampled = f"sampled, T = {first['temperature']:g}"
    lines = [
        f"Accuracy on {first['problems']} held-out problems, with 95 % intervals",
        f"{'':6}{sampled:{width}}greedy",
    ]
    if len(reports) == 2:
        lines.append(f"{'level':6}" + f"{'before':18}{'after':18}" * 2)
    for level in first["accuracy"]:
        line = f"{level:6}"
        for kind in ("sampled", "greedy"):
            for report in reports:
                numbers = report["accuracy"][level]
                low, high = numbers[f"{kind}_interval"]
                line += f"{numbers[kind]:.2f} [{low:.2f}, {high:.2f}] "
        lines.append(line)
    for label, name, style in (
        ("worked step by step, sampled", "worked", ".1%"),
        ("worked step by step, greedy", "greedy_worked", ".1%"),
        ("mean length in tokens, sampled", "length", ".1f"),
        ("cut at the length limit", "truncated", ".1%"),
        ("entropy in nats per token", "entropy", ".3f"),
    ):
        values = [(report | report["accuracy"]["all"])[name] for report in reports]
        lines.append(f"{label:34}" + " -> ".join(format(value, style) for value in values))
    return "\n".join(line.rstrip() for line in lines)
