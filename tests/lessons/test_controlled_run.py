"""The controlled run of arXiv:2607.00152: its updates by hand. test_published has its numbers, and
lesson 9 asserts its comparisons."""

import numpy as np
import pytest

from lessons import identity
from lessons.experiments import controlled_run
from lessons.experiments.controlled_run import run, start

G = 8


def test_the_updates_are_sigma_and_its_square():
    """As the paper's script adds them to a logit; and MaxRL's, the mean of A (R - p) over an
    explicit group."""
    k, p = np.arange(G + 1), np.linspace(0.1, 0.9, G + 1)
    updates = {rule: controlled_run._updates(rule, G, k, p) for rule in identity.RULES}
    np.testing.assert_allclose(updates["GRPO"], np.sqrt(k * (G - k)) / G, atol=1e-15)
    np.testing.assert_allclose(updates["Dr. GRPO"], k * (G - k) / G**2, atol=1e-15)
    for right in range(1, G + 1):
        R = (np.arange(G) < right).astype(float)
        A = (R - R.mean()) / R.mean()  # MaxRL, Algorithm 1
        assert updates["MaxRL"][right] == pytest.approx((A * (R - p[right])).mean(), abs=1e-15)


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
    np.testing.assert_allclose(moves(max_draws=500), exact / (1 - S), rtol=0.03)


def test_competing_prompts_keep_their_sum():
    p0 = start(0)
    p = run("GRPO", p0, 0, compete=1.0).p
    assert np.log(p / (1 - p)).sum() == pytest.approx(np.log(p0 / (1 - p0)).sum())
