"""The controlled run of arXiv:2607.00152: its updates by hand. test_published has its numbers, and
lesson 9 asserts its comparisons."""

import numpy as np
import pytest

from lessons import identity
from lessons.experiments import controlled_run
from lessons.experiments.controlled_run import run, start

G = 8


@pytest.mark.parametrize("rule", identity.RULES)
def test_an_update_is_the_mean_of_advantage_times_score(rule):
    """Over an explicit group, whose scores are R - p."""
    k, p = np.arange(G + 1), np.linspace(0.1, 0.9, G + 1)
    updates = controlled_run._updates(rule, G, k, p)
    for right in k:
        R = (np.arange(G) < right).astype(float)
        A = [identity.RULES[rule](reward, right - reward, G) for reward in R]
        assert updates[right] == pytest.approx((A * (R - p[right])).mean(), abs=1e-15)


def test_redrawing_changes_the_weights():
    """One step with a tiny learning rate on frozen prompts: the logits' moves against the exact
    sums over k."""
    rates = np.array([0.03, 0.1, 0.3, 0.5, 0.8])
    exact, S = identity.expected_sigma(rates, G), identity.silent_rate(rates, G)
    p0 = rates.repeat(20_000)

    def moves(**settings) -> np.ndarray:
        p = run("GRPO", p0, 0, learning_rate=1e-6, steps=1, **settings).p
        logits = np.log(p / (1 - p)) - np.log(p0 / (1 - p0))
        return logits.reshape(5, -1).mean(axis=1) / 1e-6

    np.testing.assert_allclose(moves(), exact, rtol=0.03)
    np.testing.assert_allclose(moves(max_draws=4), exact * (1 + S + S**2 + S**3), rtol=0.03)


def test_competing_prompts_keep_their_sum():
    p0 = start(0)
    p = run("GRPO", p0, 0, compete=1.0).p
    assert np.log(p / (1 - p)).sum() == pytest.approx(np.log(p0 / (1 - p0)).sum())
