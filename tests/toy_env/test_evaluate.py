"""Evaluation: pass@k against full enumeration, the interval against published numbers and by its
coverage."""

from itertools import combinations

import numpy as np
import pytest
import torch

from toy_env.arithmetic import held_out_problems
from toy_env.evaluate import pass_at_k
from toy_env.evaluation import (
    confidence_interval,
    evaluate,
    held_out_report,
    report_table,
)


def test_pass_at_k():
    """The share of all subsets of k completions with a right one."""
    for n in (1, 4, 7):
        for correct in range(n + 1):
            for k in range(1, n + 1):
                subsets = list(combinations([True] * correct + [False] * (n - correct), k))
                assert pass_at_k(n, correct, k) == pytest.approx(
                    sum(map(any, subsets)) / len(subsets)
                )


def test_interval_of_wilson():
    """Newcombe (1998), Table I, method 3: 81 of 263, 15 of 148, 0 of 20, 1 of 29, 20 of 20."""
    for right, n, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (20, 20, 1 - 0.1611, 1),
    ):
        rates = np.array([1] * right + [0] * (n - right))
        assert confidence_interval(rates) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 1.0])
def test_interval_of_equal_rates(rate):
    """As of single completions, also where rates differ by rounding error alone."""
    rates = np.full(255, rate)
    for first in (rate, np.nextafter(rate, 0.5)):
        rates[0] = first
        low, high = confidence_interval(rates)
        assert low <= rate <= high and 0.01 < high - low < 0.13


def test_coverage_of_the_interval():
    """Problems with their own success rates, four completions each: close to 95 % of intervals hold
    the true mean."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        p = rng.choice([0.02, 0.3, 0.9], size=64, p=[0.4, 0.4, 0.2])
        low, high = confidence_interval(rng.binomial(4, p) / 4)
        hits += low <= 0.4 * 0.02 + 0.4 * 0.3 + 0.2 * 0.9 <= high
    assert 0.93 < hits / 2000 < 0.97


def test_evaluation_in_batches(base, monkeypatch):
    """Greedy completions, and the order of problems and samples, are the same in one batch and in
    many."""
    settings = {"samples": 2, "temperature": 0, "max_new_tokens": 40}
    whole = evaluate(*base, held_out_problems(3), **settings)
    monkeypatch.setattr("toy_env.evaluation.AT_ONCE", 5 * 40)
    cut = evaluate(*base, held_out_problems(3), **settings)
    assert whole.rollout.texts == cut.rollout.texts and np.array_equal(whole.correct, cut.correct)
    assert torch.equal(whole.rollout.mask, cut.rollout.mask)


def test_report(base):
    """Numbers of a level are those of its problems; tables are 80 columns wide at most."""
    sampling = {"samples": 2, "max_new_tokens": 40, "temperature": 1.0}
    results, sampled = held_out_report(*base, held_out_problems(4, levels=[1, 3]), **sampling)
    rows = {"1": slice(0, 4), "3": slice(4, 8), "all": slice(0, 8)}
    for level, numbers in results["accuracy"].items():
        assert numbers["sampled"] == pytest.approx(sampled.correct[rows[level]].mean())
    one, two = report_table(results), report_table(results, results)
    assert "before" in two and "before" not in one
    assert max(map(len, two.splitlines())) <= 80
