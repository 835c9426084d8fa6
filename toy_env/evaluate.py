"""Held-out accuracy by level, greedy and sampled, and unbiased pass@k and majority@k.

python -m toy_env.evaluate                                  the shipped base model
python -m toy_env.evaluate --model runs/reinforce-0/checkpoint
"""

from toy_env import arithmetic, take_over_ctrl_c

if __name__ == "__main__":
    take_over_ctrl_c()

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt
from textwrap import shorten
from types import ModuleType

import numpy as np
import torch

from toy_env.checks import check_model
from toy_env.cli import at_least, run_main
from toy_env.model import load_policy, model_prompts, pick_device
from toy_env.rollout import sample
from toy_env.tasks import base_model, load_task

AT_ONCE, TOKENS_AT_ONCE = 1024, 2**16  # completions that are sampled in one batch, and their tokens
MOST_SAMPLES = 1000  # of a problem: the number of their subsets must be a float64


@dataclass
class Evaluation:
    """A policy's completions: row i of every array belongs to `problems[i]`, column j to its j-th
    completion."""

    problems: list  # of the task's Problem
    texts: list[list[str]]
    correct: np.ndarray  # (problems, samples) bool
    lengths: np.ndarray  # (problems, samples) tokens, EOS included
    truncated: np.ndarray  # (problems, samples) bool: cut at max_new_tokens
    worked: (
        np.ndarray
    )  # (problems, samples) bool: the completion writes out at least one step, "29+46=75"
    entropy: float  # nats per token, mean over all sampled tokens

    def level(self, level: int | None) -> np.ndarray:
        """(problems,) bool: the rows of one level, or all rows for None."""
        return np.array([level is None or problem.level == level for problem in self.problems])


def evaluate(
    policy,
    tokenizer,
    problems: Sequence,
    *,
    samples: int,
    max_new_tokens: int,
    temperature=1.0,
    task=arithmetic,
) -> Evaluation:
    """Complete every problem `samples` times at `temperature` (0 = greedy), with a sampler seeded
    for this call."""
    generator = torch.Generator(device=policy.device).manual_seed(0)
    texts, lengths, truncated, entropy = [], [], [], 0.0
    chunk = max(1, min(AT_ONCE, TOKENS_AT_ONCE // max_new_tokens) // samples)
    for start in range(0, len(problems), chunk):
        prompts = model_prompts(tokenizer, problems[start : start + chunk], task)
        rollout = sample(
            policy, tokenizer, prompts, samples, max_new_tokens, temperature, generator
        )
        texts += rollout.texts
        lengths += rollout.mask.sum(dim=1).tolist()
        truncated += rollout.truncated.tolist()
        entropy += rollout.entropies.sum().item()
    shape, texts = (
        (len(problems), samples),
        [texts[i : i + samples] for i in range(0, len(texts), samples)],
    )
    return Evaluation(
        problems=list(problems),
        texts=texts,
        correct=np.array(
            [[task.reward(p, text) == 1.0 for text in row] for p, row in zip(problems, texts)]
        ),
        lengths=np.array(lengths).reshape(shape),
        truncated=np.array(truncated).reshape(shape),
        worked=np.array([[task.is_worked(text) for text in row] for row in texts]),
        entropy=entropy / sum(lengths),
    )


def confidence_interval(rates: np.ndarray) -> tuple[float, float]:
    """95 % Wilson interval (Wilson 1927) for the mean m of per-problem rates in [0, 1].

    The sample size is the effective one, m(1-m) / variance of the rates: that of as informative a
    sample with one completion a problem. With one completion a problem, or if all rates are equal,
    it is the number of problems.
    """
    rates = np.asarray(rates, dtype=float)
    z, mean = 1.959964, rates.mean()
    n = len(rates) * (
        1 if np.ptp(rates) < 1e-9 else mean * (1 - mean) / rates.var()
    )  # equal, but for rounding
    centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
    return float(max(0.0, centre - half)), float(min(1.0, centre + half))


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased estimate of P(at least one of k completions is right) from n >= k of them (Chen et
    al. 2021, Eq. 1)."""
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k}: k must be between 1 and n = {n}, the number of completions")
    return 1.0 - comb(n - correct, k) / comb(n, k)


def majority_at_k(answers: Sequence[int | None], right: int, k: int) -> float:
    """Unbiased estimate of P(the most frequent of k answers is right), ties broken by a fair draw:
    the exact share over all k-subsets of the n >= k answers. None, a completion without an answer,
    has no vote; with no vote it is wrong."""
    if not 1 <= k <= len(answers) <= MOST_SAMPLES:
        raise ValueError(
            f"majority@{k}: k must be between 1 and n = {len(answers)}, and n at most {MOST_SAMPLES}"
        )
    counts = Counter(answers)
    abstain, n_right = counts.pop(None, 0), counts.pop(right, 0)
    wins = 0.0
    for votes in range(1, min(k, n_right) + 1):
        # ways[size, ties]: choices of `size` other completions in which no wrong answer has more than `votes` votes and
        # `ties` of them have exactly that many. Abstentions come first; each wrong answer is convolved in.
        rest = k - votes
        ways = np.zeros((rest + 1, rest // votes + 1))
        ways[: abstain + 1, 0] = [comb(abstain, a) for a in range(min(abstain, rest) + 1)]
        for count in counts.values():
            update = np.zeros_like(ways)
            for chosen in range(min(count, votes, rest) + 1):
                tied = int(chosen == votes)
                update[chosen:, tied:] += (
                    comb(count, chosen) * ways[: rest + 1 - chosen, : ways.shape[1] - tied]
                )
            ways = update
        wins += comb(n_right, votes) * (ways[rest] / np.arange(1, ways.shape[1] + 1)).sum()
    return wins / comb(len(answers), k)


def held_out(task: ModuleType, problems: int, levels: Sequence[int]) -> list:
    """`problems` held-out problems of each level (no levels: all), or as many of each as the
    smallest level has."""
    levels = levels or task.LEVELS
    return task.held_out_problems(
        min(problems, *(task.MOST_HELD_OUT[level] for level in levels)), levels
    )


def held_out_report(
    policy,
    tokenizer,
    *,
    problems: int,
    levels: Sequence[int],
    task: ModuleType = arithmetic,
    **sampling,
) -> tuple[dict, Evaluation]:
    """Evaluate on held-out problems, with `sampling` (samples, max_new_tokens, temperature) and
    greedily.

    Returns plain data for tables and files (by level and for "all": accuracies with 95 % intervals,
    share of worked completions, mean length; and two sampled completions per level to look at), and
    the samples themselves.
    """
    chosen = held_out(task, problems, levels)
    sampled = evaluate(policy, tokenizer, chosen, task=task, **sampling)
    greedy = evaluate(
        policy, tokenizer, chosen, task=task, **(sampling | {"samples": 1, "temperature": 0.0})
    )

    def numbers(level: int | None) -> dict:
        at, report = sampled.level(level), {}
        for name, evaluation in (("sampled", sampled), ("greedy", greedy)):
            correct = evaluation.correct[at]
            report |= {
                name: float(correct.mean()),
                f"{name}_interval": confidence_interval(correct.mean(axis=1)),
            }
        means = {
            "worked": sampled.worked,
            "greedy_worked": greedy.worked,
            "length": sampled.lengths,
        }
        means |= {"truncated": sampled.truncated}
        return report | {name: float(values[at].mean()) for name, values in means.items()}

    def shown(row: int) -> dict:
        problem = chosen[row]
        only_one = (
            task.reward(problem, f"#{problem.answer}") == 1
        )  # else many completions are right
        wrong = f"wrong, {problem.answer} expected" if only_one else "wrong"
        verdict = "right" if sampled.correct[row, 0] else wrong
        return {"prompt": problem.prompt, "completion": sampled.texts[row][0], "verdict": verdict}

    levels = levels or task.LEVELS
    results = {
        "problems": len(chosen),
        "samples": sampling["samples"],
        "temperature": sampling["temperature"],
    }
    accuracy = {str(level): numbers(level) for level in levels} | {"all": numbers(None)}
    completions = [
        shown(row) for level in levels for row in np.flatnonzero(sampled.level(level))[:2]
    ]
    return results | {
        "entropy": sampled.entropy,
        "accuracy": accuracy,
        "completions": completions,
    }, sampled


def report_samples(results: dict, when: str) -> str:
    """The completions of a report, one per line: the problem, the completion, and whether it is
    right."""
    lines = [f"Held-out problems {when} training, one sample each"]
    for row in results["completions"]:
        shown = "".join(c if c.isprintable() else "\ufffd" for c in shorten(row["completion"], 70))
        lines.append(f"  {row['prompt']:<17} {shown}   ({row['verdict']})")
    return "\n".join(lines)


def report_table(before: dict, after: dict | None = None) -> str:
    """Held-out accuracy by level with 95 % intervals as a text table: one report, or two side by
    side."""
    reports, share = [before, after] if after else [before], "{:.2f} [{:.2f}, {:.2f}]".format
    table = [["", f"sampled, T = {before['temperature']:g}", *[""] * bool(after), "greedy"]]
    table += [["level", *["before", "after"] * 2]] * bool(after)
    for level in before["accuracy"]:
        numbers = [
            (results["accuracy"][level], kind)
            for kind in ("sampled", "greedy")
            for results in reports
        ]
        table.append(
            [level, *(share(report[kind], *report[f"{kind}_interval"]) for report, kind in numbers)]
        )
    lines = [f"Accuracy on {before['problems']} held-out problems, with 95 % intervals"]
    lines += [
        f"{label:6}{''.join(f'{cell:18}' for cell in cells)}".rstrip() for label, *cells in table
    ]
    for label, name, style in (
        ("worked step by step, sampled", "worked", ".1%"),
        ("worked step by step, greedy", "greedy_worked", ".1%"),
        ("mean length in tokens, sampled", "length", ".1f"),
        ("cut at the length limit", "truncated", ".1%"),
        ("entropy in nats per token", "entropy", ".3f"),
    ):
        values = [(results | results["accuracy"]["all"])[name] for results in reports]
        lines.append(f"{label:34}" + " -> ".join(format(value, style) for value in values))
    return "\n".join(lines)


@dataclass
class Config:
    task: str = (
        "arithmetic"  # arithmetic, expressions, or a module of your own, such as my_project.my_task
    )
    model: str = "base"  # base (of the task), a folder, or a model on the Hugging Face hub
    device: str = "auto"  # auto, cpu, cuda or mps
    dtype: str = "float32"  # precision of the forward pass, float32 or bfloat16
    levels: tuple[
        int, ...
    ] = ()  # difficulties (arithmetic: number of operations, 1 to 4); none given: all
    problems: at_least(1) = 64  # held-out problems per level; fewer if a level has fewer
    samples: at_least(1, most=MOST_SAMPLES) = 64  # completions to each problem
    temperature: at_least(1e-3) = 1.0  # sampling temperature
    max_new_tokens: at_least(1) = 56  # length limit of a completion


def main(config: Config) -> None:
    """Print the table of one policy, its per-problem success rates, and pass@k beside
    majority@k."""
    task = load_task(config.task)
    model = base_model(task) if config.model == "base" else config.model
    policy, tokenizer = load_policy(model, pick_device(config.device), config.dtype)
    check_model(
        policy,
        tokenizer,
        config.max_new_tokens,
        model_prompts(tokenizer, held_out(task, 64, ()), task),
    )
    settings = ("problems", "levels", "samples", "max_new_tokens", "temperature")
    chosen = {name: getattr(config, name) for name in settings}
    results, sampled = held_out_report(policy, tokenizer, task=task, **chosen)
    print(report_table(results))
    rates = sampled.correct.mean(axis=1)
    print(f"\nShare of problems by success rate over {config.samples} samples")
    for low, share in enumerate(np.histogram(rates, bins=10, range=(0, 1))[0] / len(rates)):
        print(f"  {low / 10} to {(low + 1) / 10} {share:7.1%}  {'#' * round(share * 100)}")
    print(f"  below .1: {(rates < 0.1).mean():.1%}, above .9: {(rates > 0.9).mean():.1%}")
    print(f"\n{'k':>6} {'pass@k':>19} {'majority@k':>19}")
    answers = [[task.extract_answer(text) for text in row] for row in sampled.texts]
    for k in (2**i for i in range(config.samples.bit_length())):
        passed = [pass_at_k(config.samples, int(row.sum()), k) for row in sampled.correct]
        voted = [
            majority_at_k(row, problem.answer, k) for row, problem in zip(answers, sampled.problems)
        ]
        cells = (
            "{:7.3f} [{:.2f}, {:.2f}]".format(np.mean(x), *confidence_interval(x))
            for x in (passed, voted)
        )
        print(f"{k:6}{''.join(cells)}")


if __name__ == "__main__":
    run_main(Config, main, __doc__)
