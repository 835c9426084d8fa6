"""The closed forms of the lessons against all 2^G outcomes of a group.

Published numbers: test_published.py. The identity: test_group_methods.py.

Broken on purpose: sigma with ddof 1, a biased estimate of the silent rate, class variances
exchanged.
"""

import itertools

import numpy as np
import pytest
import torch

from algorithms import grpo, maxrl
from lessons import identity


def outcomes(p: float, G: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (2^G,) and rewards (2^G, G) of all groups of completions that are right with
    probability p, independently."""
    rewards = np.array(list(itertools.product((0, 1), repeat=G)))
    return np.where(rewards, p, 1 - p).prod(axis=1), rewards


def advantages(rule: str, rewards: np.ndarray) -> np.ndarray:
    """(groups, G) from (groups, G)."""
    others = rewards.sum(axis=1, keepdims=True) - rewards
    return np.vectorize(identity.RULES[rule], otypes=[float])(rewards, others, rewards.shape[1])


@pytest.mark.parametrize(("rule", "script"), [("GRPO", grpo), ("MaxRL", maxrl)])
def test_rules_are_the_advantages_of_the_scripts(rule, script):
    rewards = outcomes(0.5, 5)[1]
    A = script.compute_advantages(rewards=torch.tensor(rewards).double())
    np.testing.assert_allclose(advantages(rule, rewards), A, atol=1e-12)


@pytest.mark.parametrize("G", [2, 3, 8, 11])
@pytest.mark.parametrize("p", [0.03, 0.3, 0.5, 0.92])
def test_sigma_and_silence_over_all_outcomes(p, G):
    chances, rewards = outcomes(p, G)
    sigmas = rewards.std(axis=1)
    np.testing.assert_allclose(identity.sigma(rewards.sum(axis=1), G), sigmas, atol=1e-13)
    assert identity.expected_sigma(p, G) == pytest.approx(chances @ sigmas, abs=1e-13)
    assert identity.silent_rate(p, G) == pytest.approx(chances @ (sigmas == 0), abs=1e-13)


def test_the_calculator(tmp_path, capsys):
    """Groups of two, by hand, of a prompt that is never and one that is half the time solved."""
    (tmp_path / "rates").write_text("0\n.5\n", "utf-8")
    identity.main(identity.Config(group_size=2, accuracies=str(tmp_path / "rates")))
    shown = capsys.readouterr().out
    for part in ("12% all right", "62% all wrong", "8.0 comp", "groups'   50%     50%"):
        assert part in shown
    assert identity.binomial(0.3, identity.LARGEST).sum() == pytest.approx(1)


@pytest.mark.parametrize("G", [2, 3, 6])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.85])
def test_the_weight_where_silent_groups_are_drawn_again(G, p):
    """E[mean of A s] / grad p over all mixed groups, for a coin of log-odds theta: s = R - p and
    grad p = p q."""
    chances, rewards = outcomes(p, G)
    weights = (advantages("GRPO", rewards) * (rewards - p)).mean(axis=1) / (p * (1 - p))
    mixed = chances * (rewards.std(axis=1) > 0)
    expected = mixed @ weights / mixed.sum()
    assert identity.weight_same_prompt_resampling(p, G) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("G", [2, 3, 4, 8])
def test_weights_in_closed_form(G):
    p = np.array([0.05, 0.3, 0.5, 0.9])
    q = 1 - p
    expected = {
        "GRPO": identity.expected_sigma(p, G) / (p * q),
        "mean over the right": (1 - q**G) / p,
        "MaxRL": (1 - q ** (G - 1)) / p,
    }
    for rule, weight in expected.items():
        np.testing.assert_allclose(identity.weight(rule, p, G), weight, rtol=1e-12, err_msg=rule)
    if G < 5:  # no difficulty bias at all in groups of 2 and 3
        bias = (3 - 2 * np.sqrt(3)) * p * q * (G == 4)
        np.testing.assert_allclose(identity.weight("GRPO", p, G), np.sqrt(G - 1) + bias)


@pytest.mark.parametrize("rule", identity.RULES)
def test_objectives_have_the_weights_as_derivatives(rule):
    for G in (2, 5, 9):
        below, above = (identity.objective(rule, p, G) for p in (0.4 - 1e-5, 0.4 + 1e-5))
        assert (above - below) / 2e-5 == pytest.approx(identity.weight(rule, 0.4, G), rel=1e-7)
        assert identity.objective(rule, 0.0, G) == 0


def test_silent_rate_estimates():
    """Over all outcomes of n = 12 completions: the subset estimate has no bias, the plug-in is too
    high."""
    n, p = 12, 0.15
    chances, right = identity.binomial(p, n), np.arange(n + 1)
    for G in (2, 4, 12):
        truth = identity.silent_rate(p, G)
        unbiased = chances @ identity.silent_rate_unbiased(right, n, G)
        assert unbiased == pytest.approx(truth, abs=1e-13)
        assert chances @ identity.silent_rate_plug_in(right, n, G) > truth + 1e-3


def test_length_of_the_update_given_k():
    """Its mean over k is `mean_square`, which the last test compares with all groups."""
    G, p, v_right, v_wrong, squared = 8, 0.3, 2.0, 5.0, 0.7
    of_mixed = identity.update_norm_squared(np.arange(1, G), G, squared, v_right, v_wrong)
    expected = identity.mean_square("GRPO", p, G, v_right, v_wrong, squared)
    assert identity.binomial(p, G)[1:-1] @ of_mixed == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rule", identity.RULES)
def test_mean_square_over_all_groups(rule):
    """A softmax policy of four completions, two of them right: all 4^3 groups."""
    rng, G = np.random.default_rng(0), 3
    probs, right = np.array([0.1, 0.3, 0.35, 0.25]), np.arange(4) < 2
    scores = (np.eye(4) - probs) @ rng.normal(size=(4, 5))  # with the mean 0, as all scores
    groups = np.array(list(itertools.product(range(4), repeat=G)))
    chances, rewards = probs[groups].prod(axis=1), right[groups].astype(int)
    g = (advantages(rule, rewards)[..., None] * scores[groups]).mean(axis=1)  # (64, 5)

    p = probs[right].sum()
    shares = probs * right / p, probs * ~right / (1 - p)
    v = [share @ ((scores - share @ scores) ** 2).sum(axis=1) for share in shares]
    contrast = (shares[0] - shares[1]) @ scores
    factor = identity.weight(rule, p, G)
    np.testing.assert_allclose(chances @ g, factor * p * (1 - p) * contrast, atol=1e-15)
    square, silent = chances @ (g**2).sum(axis=1), chances @ (rewards.std(axis=1) == 0)
    expected = identity.mean_square(rule, p, G, *v, contrast @ contrast)
    assert square == pytest.approx(expected, rel=1e-12)
    assert silent == pytest.approx(identity.silent_rate(p, G), rel=1e-12)
