"""The controlled run of arXiv:2607.00152: its published numbers, and the arms it leaves out."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lessons import identity
from lessons.experiments import controlled_run
from lessons.experiments.controlled_run import at_progress, run, run_arms, start
from toy_env import UsageError
from toy_env.cli import check_settings

G = 8


@pytest.mark.parametrize("rule", ["GRPO", "Dr. GRPO"])
def test_the_share_of_the_extreme_tenths_over_many_groups(rule):
    p0 = start(0)
    expected = 100 * controlled_run.extreme_share(rule, p0, G)
    assert 100 * controlled_run.extreme_share(rule, p0, G, groups=100) == pytest.approx(expected, abs=0.1)


def test_where_it_starts():
    p0 = start(seed=0)
    assert p0.shape == (6000,) and p0.min() == 0.02 and p0.max() == 0.98
    assert p0.mean() == pytest.approx(0.465, abs=4 * 0.33 / np.sqrt(6000))  # the mean of the bars 1 to 63


def test_the_updates_are_sigma_and_its_square():
    """What the paper's script adds to a logit; and for other rules, the mean of A (R - p) over an explicit group."""
    k, p = np.arange(G + 1), np.linspace(0.1, 0.9, G + 1)

    def updates(rule, k, p):
        return controlled_run._updates(controlled_run._advantage_sums(rule, G), k, p)

    np.testing.assert_allclose(updates("GRPO", k, p), np.sqrt(k * (G - k)) / G, atol=1e-15)
    np.testing.assert_allclose(updates("Dr. GRPO", k, p), k * (G - k) / G**2, atol=1e-15)
    for right, chance in zip(k, p):
        R = (np.arange(G) < right).astype(float)
        A = (R - R.mean()) / R.mean() if right else 0 * R  # MaxRL, Algorithm 1
        found = updates("MaxRL", np.array([right]), np.array([chance]))
        assert found[0] == pytest.approx((A * (R - chance)).mean(), abs=1e-15)


def test_no_update_is_negative_so_nothing_can_be_lost():
    for (result,) in run_arms([0], ["GRPO", "Dr. GRPO", "same-prompt redraw"]).values():
        assert result.smallest_update == 0 and (np.diff(result.hard) > 0).all()


def test_r_squared_measures_the_number_of_prompts():
    found = {}
    for n in (60, 600, 6000):
        runs = [run("GRPO", start(seed, n), seed, steps=80) for seed in range(6)]
        found[n] = np.mean([1 - controlled_run.r_squared(r) for r in runs])
        assert found[n] == pytest.approx(np.mean([1 - controlled_run.expected_r_squared(r) for r in runs]), rel=0.5)
    assert 5 < found[60] / found[600] < 20 and 5 < found[600] / found[6000] < 20


def test_replacing_prompts_keeps_grpos_weights_and_redrawing_does_not():
    """One huge step with a tiny learning rate on frozen prompts: the logits' moves against the exact sums over k."""
    p0 = np.repeat([0.03, 0.1, 0.3, 0.5, 0.8], 20_000)
    exact = identity.expected_sigma(p0[::20_000], G)
    silent = identity.silent_rate(p0[::20_000], G)
    tiny = {"learning_rate": 1e-6, "steps": 1}

    def moves(**settings):
        moved = run("GRPO", p0, 0, **tiny, **settings).p
        return (np.log(moved / (1 - moved)) - np.log(p0 / (1 - p0))).reshape(5, -1).mean(axis=1) / 1e-6

    np.testing.assert_allclose(moves(), exact, rtol=0.03)
    replaced = moves(silent="replace")
    np.testing.assert_allclose(replaced / replaced.mean(), exact / exact.mean(), rtol=0.03)
    np.testing.assert_allclose(replaced, exact / (1 - silent).mean(), rtol=0.03)  # one common factor
    np.testing.assert_allclose(moves(silent="redraw"), exact * (1 + silent + silent**2 + silent**3), rtol=0.03)
    np.testing.assert_allclose(moves(silent="redraw", max_draws=500), exact / (1 - silent), rtol=0.03)


def test_the_cap_makes_the_oversampling():
    """3.5 draws with a cap of 4; without one there is no end to it, because solved prompts stay silent."""
    p0 = start(0, 300)
    cost = {cap: run("GRPO", p0, 0, silent="redraw", max_draws=cap).groups[-1] / 150 for cap in (4, 8, 64)}
    assert cost[4] == pytest.approx(3.5, abs=0.06) and cost[8] > 6 and cost[64] > 30
    capped = run("GRPO", p0, 0, silent="redraw")
    assert 1 - capped.mixed[-1] / 150 == pytest.approx(0.75, abs=0.03)  # still silent after four draws


def test_matched_steps_and_equal_samples():
    p0 = start(0)
    rate = controlled_run.matched_learning_rate("Dr. GRPO", p0, G, 0.5)
    assert rate / 0.5 == pytest.approx(2.36, abs=0.02)
    first = [run(rule, p0, 0, steps=1, learning_rate=lr).p for rule, lr in (("GRPO", 0.5), ("Dr. GRPO", rate))]
    lengths = [(np.log(p / (1 - p)) - np.log(p0 / (1 - p0))).mean() for p in first]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.02)

    arms = {name: runs[0] for name, runs in run_arms([0]).items()}
    assert arms["Dr. GRPO, twice the learning rate"].hard[-1] == pytest.approx(0.988, abs=0.001)
    assert arms["Dr. GRPO, matched first step"].hard[-1] == pytest.approx(0.991, abs=0.001)
    grpo, dapo = arms["GRPO, batches of a twelfth"], arms["DAPO: other prompts, equal samples"]
    assert grpo.groups[-1] == 150 and 150 <= dapo.groups[-1] < 154
    assert dapo.hard[-1] == pytest.approx(grpo.hard[-1], abs=0.002)
    for level in (0.8, 0.9):
        rates = [at_progress(arms[name], level) for name in ("GRPO", "Dr. GRPO, matched first step")]
        assert abs(rates[0] - rates[1]) < 0.01
    assert at_progress(arms["same-prompt redraw"], 0.8) > at_progress(arms["GRPO"], 0.8) + 0.01


@pytest.mark.parametrize("size", [2, 3])
def test_in_groups_of_two_and_three_the_arms_are_one(size):
    """Not only on average: with the learning rate times 2 or 3 / sqrt(2) every update is the same."""
    p0 = start(0, 200)
    rate = controlled_run.matched_learning_rate("Dr. GRPO", p0, size, 0.5)
    assert rate == pytest.approx(0.5 * {2: 2, 3: 3 / np.sqrt(2)}[size])
    ours = run("GRPO", p0, 0, G=size).p, run("Dr. GRPO", p0, 0, G=size, learning_rate=rate).p
    np.testing.assert_allclose(*ours, rtol=1e-9)


def test_competing_prompts_keep_their_sum_and_show_the_bias():
    p0 = start(0)
    rate = controlled_run.matched_learning_rate("Dr. GRPO", p0, G, 0.5)
    grpo, dr = run("GRPO", p0, 0, compete=1.0), run("Dr. GRPO", p0, 0, compete=1.0, learning_rate=rate)
    for result in (grpo, dr):
        assert np.log(result.p / (1 - result.p)).sum() == pytest.approx(np.log(p0 / (1 - p0)).sum())
    assert grpo.hard[-1] > dr.hard[-1] + 0.015


def test_the_same_seed_gives_the_same_run():
    p0 = start(1, 240)
    for settings in ({}, {"silent": "redraw"}, {"silent": "replace", "batch": 20, "budget": 30}):
        first, again, other = (run("GRPO", p0, seed, **settings) for seed in (1, 1, 2))
        np.testing.assert_array_equal(first.p, again.p)
        assert (first.p != other.p).any()
    np.testing.assert_array_equal(start(5), start(5))


def test_the_command():
    script = Path(controlled_run.__file__)
    done = subprocess.run([sys.executable, script, "--seeds", "1", "--steps", "3"], capture_output=True, text=True)
    assert done.returncode == 0 and "same-prompt redraw" in done.stdout and "G = 8, 3 steps; 1 seed" in done.stdout


@pytest.mark.parametrize("setting", [{"group_size": 1}, {"steps": 10**12}, {"learning_rate": 100.0}, {"seeds": 10**12}])
def test_settings_out_of_range_are_refused(setting):
    with pytest.raises(UsageError, match=r"--\w+ must be \d+ or (more|less), not "):
        check_settings(controlled_run.Config(**setting))
