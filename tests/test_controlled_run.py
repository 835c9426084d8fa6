"""The controlled run of arXiv:2607.00152: its updates by hand and what it can show. test_published
has its numbers."""

import numpy as np
import pytest

from lessons import identity
from lessons.experiments import controlled_run
from lessons.experiments.controlled_run import (
    at_progress,
    matched_learning_rate,
    run,
    run_arms,
    start,
)

G = 8


def test_where_it_starts():
    p0 = start(seed=0)
    assert p0.shape == (6000,) and p0.min() == 0.02 and p0.max() == 0.98
    assert p0.mean() == pytest.approx(
        0.465, abs=4 * 0.33 / np.sqrt(6000)
    )  # the mean of the bars 1 to 63


def test_the_updates_are_sigma_and_its_square():
    """What the paper's script adds to a logit; and for MaxRL, the mean of A (R - p) over an
    explicit group."""
    k, p = np.arange(G + 1), np.linspace(0.1, 0.9, G + 1)

    def updates(rule, k, p):
        return controlled_run._updates(rule, G, k, p)

    np.testing.assert_allclose(updates("GRPO", k, p), np.sqrt(k * (G - k)) / G, atol=1e-15)
    np.testing.assert_allclose(updates("Dr. GRPO", k, p), k * (G - k) / G**2, atol=1e-15)
    for right, chance in zip(k, p):
        R = (np.arange(G) < right).astype(float)
        A = (R - R.mean()) / R.mean() if right else 0 * R  # MaxRL, Algorithm 1
        update = updates("MaxRL", np.array([right]), np.array([chance]))[0]
        assert update == pytest.approx((A * (R - chance)).mean(), abs=1e-15)


def test_redrawing_changes_the_weights():
    """One step with a tiny learning rate on frozen prompts: the logits' moves against the exact
    sums over k."""
    p0 = np.repeat([0.03, 0.1, 0.3, 0.5, 0.8], 20_000)
    exact, silent = identity.expected_sigma(p0[::20_000], G), identity.silent_rate(p0[::20_000], G)

    def moves(**settings):
        moved = run("GRPO", p0, 0, learning_rate=1e-6, steps=1, **settings).p
        return (np.log(moved / (1 - moved)) - np.log(p0 / (1 - p0))).reshape(5, -1).mean(
            axis=1
        ) / 1e-6

    np.testing.assert_allclose(moves(), exact, rtol=0.03)
    np.testing.assert_allclose(
        moves(silent="redraw"), exact * (1 + silent + silent**2 + silent**3), rtol=0.03
    )
    np.testing.assert_allclose(
        moves(silent="redraw", max_draws=500), exact / (1 - silent), rtol=0.03
    )


def test_the_cap_makes_the_oversampling():
    """3.5 draws with a cap of 4; without one there is no end to it, because solved prompts stay
    silent."""
    p0 = start(0, 300)
    cost = {
        cap: run("GRPO", p0, 0, silent="redraw", max_draws=cap).groups[-1] / 150
        for cap in (4, 8, 64)
    }
    assert cost[4] == pytest.approx(3.5, abs=0.06) and cost[8] > 6 and cost[64] > 30
    capped = run("GRPO", p0, 0, silent="redraw")
    assert 1 - capped.mixed[-1] / 150 == pytest.approx(
        0.75, abs=0.03
    )  # still silent after four draws


def test_at_matched_steps_the_arms_agree_and_nothing_is_lost():
    p0 = start(0)
    rate = matched_learning_rate("Dr. GRPO", p0, G, 0.5)
    assert rate / 0.5 == pytest.approx(2.36, abs=0.02)
    arms = {name: runs[0] for name, runs in run_arms([0]).items()}
    assert arms["Dr. GRPO, matched first step"].hard[-1] == pytest.approx(0.991, abs=0.001)
    for level in (0.8, 0.9):
        rates = [
            at_progress(arms[name], level) for name in ("GRPO", "Dr. GRPO, matched first step")
        ]
        assert abs(rates[0] - rates[1]) < 0.01
    assert at_progress(arms["same-prompt redraw"], 0.8) > at_progress(arms["GRPO"], 0.8) + 0.01
    assert all(arm.smallest_update == 0 and (np.diff(arm.hard) > 0).all() for arm in arms.values())
    for size, factor in (
        (2, 2),
        (3, 3 / np.sqrt(2)),
    ):  # here every update is the same, not only on average
        rate = matched_learning_rate("Dr. GRPO", p0, size, 0.5)
        assert rate == pytest.approx(0.5 * factor)
        ours = (
            run("GRPO", p0, 0, G=size, steps=5).p,
            run("Dr. GRPO", p0, 0, G=size, steps=5, learning_rate=rate).p,
        )
        np.testing.assert_allclose(*ours, rtol=1e-9)


def test_competing_prompts_keep_their_sum_and_show_the_bias():
    p0 = start(0)
    rate = matched_learning_rate("Dr. GRPO", p0, G, 0.5)
    grpo, dr = (
        run("GRPO", p0, 0, compete=1.0),
        run("Dr. GRPO", p0, 0, compete=1.0, learning_rate=rate),
    )
    for result in (grpo, dr):
        assert np.log(result.p / (1 - result.p)).sum() == pytest.approx(np.log(p0 / (1 - p0)).sum())
    assert grpo.hard[-1] > dr.hard[-1] + 0.015
