"""Evaluation: the estimators against full enumeration, the interval against published numbers and
its own coverage."""

import random
from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from toy_env import UsageError
from toy_env.arithmetic import held_out_problems
from toy_env.cli import check_settings
from toy_env.evaluate import (
    MOST_SAMPLES,
    Config,
    confidence_interval,
    evaluate,
    held_out_report,
    majority_at_k,
    pass_at_k,
    report_samples,
    report_table,
)


def test_pass_at_k_is_the_share_of_all_subsets_with_a_right_completion():
    for n in (1, 4, 7):
        for correct in range(n + 1):
            for k in range(1, n + 1):
                subsets = list(combinations([True] * correct + [False] * (n - correct), k))
                assert pass_at_k(n, correct, k) == pytest.approx(
                    sum(map(any, subsets)) / len(subsets)
                )


def majority_by_enumeration(answers, right, k):
    total = 0.0
    subsets = list(combinations(answers, k))
    for subset in subsets:
        votes = Counter(answer for answer in subset if answer is not None)
        winners = [answer for answer, count in votes.items() if count == max(votes.values())]
        total += winners.count(right) / len(winners) if winners else 0.0
    return total / len(subsets)


def test_majority_at_k_is_the_share_of_all_subsets_that_vote_right():
    rng = random.Random(0)
    for _ in range(60):
        answers = [rng.choice([None, 1, 1, 2, 2, 3, 4]) for _ in range(rng.randint(1, 9))]
        for k in range(1, len(answers) + 1):
            assert majority_at_k(answers, 1, k) == pytest.approx(
                majority_by_enumeration(answers, 1, k)
            ), (answers, k)


def test_interval_of_single_completions_is_wilsons():
    """Newcombe (1998), Table I, method 3: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    for right, n, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        rates = np.array([1] * right + [0] * (n - right))
        assert confidence_interval(rates) == pytest.approx((low, high), abs=5e-5)
    assert confidence_interval(np.ones(20)) == pytest.approx((1 - 0.1611, 1), abs=5e-5)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 1.0])
def test_a_constant_sample_has_the_interval_of_as_many_single_answers(rate):
    """Whatever rounding makes of its variance; so does one that differs from a constant by rounding
    error alone."""
    low, high = confidence_interval(np.full(255, rate))
    assert low <= rate <= high and 0.01 < high - low < 0.13
    almost = [1.0] * 255 + [pass_at_k(64, 30, 32)]
    assert confidence_interval(almost) == pytest.approx(confidence_interval(np.ones(256)), abs=1e-9)


def test_as_many_samples_as_are_accepted_can_be_counted():
    """And no more are: the number of their subsets would overflow, after all of them were
    sampled."""
    config = Config(samples=MOST_SAMPLES)
    check_settings(config)
    assert majority_at_k([1] * 500 + [2] * 500, 1, 512) == pytest.approx(0.5)
    with pytest.raises(UsageError, match="--samples must be 1000 or less, not 1001"):
        check_settings(replace(config, samples=MOST_SAMPLES + 1))


def test_interval_covers_when_completions_share_a_problem():
    """Problems with their own success rates, four completions each: close to 95 % of intervals hold
    the true mean."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        p = rng.choice([0.02, 0.3, 0.9], size=64, p=[0.4, 0.4, 0.2])
        low, high = confidence_interval(rng.binomial(4, p) / 4)
        hits += low <= 0.4 * 0.02 + 0.4 * 0.3 + 0.2 * 0.9 <= high
    assert 0.93 < hits / 2000 < 0.97


def test_evaluation_does_not_depend_on_how_it_is_cut(base, monkeypatch):
    """Greedy completions, and the order of problems and samples, are the same in one batch and in
    many."""
    policy, tokenizer = base
    problems = held_out_problems(3)
    whole = evaluate(policy, tokenizer, problems, samples=2, temperature=0, max_new_tokens=40)
    monkeypatch.setattr("toy_env.evaluate.AT_ONCE", 5)
    cut = evaluate(policy, tokenizer, problems, samples=2, temperature=0, max_new_tokens=40)
    assert (
        whole.texts == cut.texts
        and (whole.correct == cut.correct).all()
        and (whole.lengths == cut.lengths).all()
    )
    again = evaluate(policy, tokenizer, problems, samples=2, max_new_tokens=40)
    assert again.texts == evaluate(policy, tokenizer, problems, samples=2, max_new_tokens=40).texts
    for problem, row, lengths, correct in zip(problems, again.texts, again.lengths, again.correct):
        for text, length, right in zip(row, lengths, correct):
            assert length == len(text) + 1 and right == text.endswith(f"#{problem.answer}")


def test_report_reads_well(base):
    results, sampled = held_out_report(
        *base, problems=4, levels=[1, 3], samples=2, max_new_tokens=40, temperature=1.0
    )
    assert sampled.correct.shape == (8, 2)
    assert results["accuracy"]["all"]["sampled"] == pytest.approx(
        (results["accuracy"]["1"]["sampled"] + results["accuracy"]["3"]["sampled"]) / 2
    )
    one, two = report_table(results), report_table(results, results)
    assert "8 held-out problems" in one and "before" in two and "before" not in one
    assert max(map(len, two.splitlines())) <= 80
    assert len(report_samples(results, "after").splitlines()) == 5
