"""The closed forms of the lessons against all 2^G outcomes of a group, and the identity once a
policy has moved.

Published numbers: test_published.py. The identity at ratio 1: test_group_methods.py.
"""

import itertools

import numpy as np
import pytest
import torch

from algorithms import dapo, dr_grpo, grpo
from lessons import identity


def outcomes(p: float, G: int):
    """(probability, rewards) of every group of G completions that are right with probability p,
    independently."""
    for rewards in itertools.product((0, 1), repeat=G):
        yield p ** sum(rewards) * (1 - p) ** (G - sum(rewards)), np.array(rewards)


@pytest.mark.parametrize("G", [2, 3, 8, 11])
@pytest.mark.parametrize("p", [0.03, 0.3, 0.5, 0.92])
def test_sigma_and_silence_over_all_outcomes(p, G):
    groups = list(outcomes(p, G))
    assert identity.expected_sigma(p, G) == pytest.approx(
        sum(w * r.std() for w, r in groups), abs=1e-13
    )
    assert identity.silent_rate(p, G) == pytest.approx(
        sum(w for w, r in groups if r.std() == 0), abs=1e-13
    )
    assert identity.fidelity(p, G) == pytest.approx(
        identity.expected_sigma(p, G) / np.sqrt(p * (1 - p)), abs=1e-13
    )
    np.testing.assert_allclose(
        identity.sigma(np.arange(G + 1), G), [(np.arange(G) < k).std() for k in range(G + 1)]
    )


def test_group_sizes_that_are_too_large():
    with pytest.raises(ValueError, match="no group size up to 10"):
        identity.group_size_exact(0.05, 0.99, largest=10)
    assert identity.binomial(0.3, 1000).sum() == pytest.approx(
        1
    )  # as far as group_size_exact looks


def test_fidelity_approaches_its_expansion():
    for p in (0.5, 0.2):
        gaps = [identity.fidelity(p, G) - identity.fidelity_expansion(p, G) for G in (50, 100, 200)]
        assert all(
            abs(a / b) == pytest.approx(4, rel=0.15) for a, b in zip(gaps, gaps[1:])
        )  # second order in 1/G


@pytest.mark.parametrize("rule", identity.RULES)
@pytest.mark.parametrize("G", [2, 3, 6])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.85])
def test_every_weight_over_all_outcomes(rule, G, p):
    """E[mean of A s] / grad p, for a coin of log-odds theta: s = R - p and grad p = p q, over all
    2^G groups."""
    advantage = identity.RULES[rule]
    mean = sum(
        w * np.mean([advantage(int(r), int(rewards.sum() - r), G) * (r - p) for r in rewards])
        for w, rewards in outcomes(p, G)
    )
    assert identity.weight(rule, p, G) == pytest.approx(mean / (p * (1 - p)), abs=1e-12)


@pytest.mark.parametrize("G", [2, 3, 4, 8])
def test_weights_in_closed_form(G):
    p = np.array([0.05, 0.3, 0.5, 0.9])
    q, one = 1 - p, np.ones(4)
    for rule, expected in {
        "REINFORCE": one,
        "RLOO": one,
        "Dr. GRPO": (1 - 1 / G) * one,
        "Dr. GRPO, rewards -1 and 1": 2 * (1 - 1 / G) * one,
        "GRPO": identity.expected_sigma(p, G) / (p * q),
        "mean over the right": (1 - q**G) / p,
        "MaxRL": (1 - q ** (G - 1)) / p,
        "pass@G": G * q ** (G - 1),
        "GRPO, divided by sigma twice": (1 - p**G - q**G) / (p * q),
    }.items():
        np.testing.assert_allclose(identity.weight(rule, p, G), expected, rtol=1e-12, err_msg=rule)
    if G in (2, 3):
        np.testing.assert_allclose(
            identity.weight("GRPO", p, G), np.sqrt(G - 1)
        )  # no difficulty bias at all
    if G == 4:
        np.testing.assert_allclose(
            identity.weight("GRPO", p, G), np.sqrt(3) + (3 - 2 * np.sqrt(3)) * p * q
        )


def test_weights_that_are_not_a_rule_of_one_group():
    p, G = 0.2, 8
    rng = np.random.default_rng(0)
    rewards = rng.random((400_000, G)) < p
    k = rewards.sum(axis=1)
    mixed = (k > 0) & (k < G)
    sigma = rewards.std(axis=1)
    step = (
        ((rewards - rewards.mean(axis=1, keepdims=True)) * (rewards - p)).mean(axis=1)[mixed]
        / sigma[mixed]
    ).mean()
    assert identity.weight_same_prompt_resampling(p, G) == pytest.approx(
        step / (p * (1 - p)), rel=0.01
    )
    limit = (
        np.arcsin(np.sqrt(p + 1e-5)) - np.arcsin(np.sqrt(p - 1e-5))
    ) / 1e-5  # the slope of 2 arcsin sqrt(p)
    assert identity.weight_limit(p) == pytest.approx(limit, rel=1e-6)


@pytest.mark.parametrize("rule", identity.RULES)
def test_objectives_have_the_weights_as_derivatives(rule):
    for G in (2, 5, 9):
        slope = (
            identity.objective(rule, 0.4 + 1e-5, G) - identity.objective(rule, 0.4 - 1e-5, G)
        ) / 2e-5
        assert slope == pytest.approx(identity.weight(rule, 0.4, G), rel=1e-7)
        assert identity.objective(rule, 0.0, G) == 0


def test_silent_rate_estimates():
    """Over all outcomes of n = 12 completions: the subset estimate has no bias, the plug-in is too
    high."""
    n, p = 12, 0.15
    weights = identity.binomial(p, n)
    right = np.arange(n + 1)
    for G in (2, 4, 12):
        truth = identity.silent_rate(p, G)
        assert weights @ identity.silent_rate_unbiased(right, n, G) == pytest.approx(
            truth, abs=1e-13
        )
        assert weights @ identity.silent_rate_plug_in(right, n, G) > truth + 1e-3
    with pytest.raises(ValueError, match="12 answers hold no group of 16"):
        identity.silent_rate_unbiased(3, 12, 16)


def test_length_of_the_update_by_simulation():
    rng = np.random.default_rng(0)
    G, k, n = 8, 3, 40
    means = rng.normal(size=(2, n))
    scale = np.array([0.5, 1.5])
    scores = means[:, None, None] + scale[:, None, None, None] * rng.normal(size=(2, 20_000, G, n))
    A = np.sqrt((G - k) / k), -np.sqrt(k / (G - k))
    g = (A[0] * scores[0, :, :k].sum(axis=1) + A[1] * scores[1, :, k:].sum(axis=1)) / G
    expected = identity.update_norm_squared(
        k, G, ((means[0] - means[1]) ** 2).sum(), n * 0.5**2, n * 1.5**2
    )
    assert (g**2).sum(axis=1).mean() == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("script", "distance", "stopped"),
    [(grpo, 0.04, 4), (grpo, 0.06, 7), (grpo, 0.08, 9), (dr_grpo, 0.06, 7), (dapo, 0.06, 6)],
)
def test_the_identity_holds_at_a_later_update_clip_included(script, distance, stopped):
    """The gradient of the script's own loss is its coefficient times a difference of means, right
    minus wrong, of the gradients of single completions: of the sum over tokens of min(ratio, 1 +
    eps) where the completion is right, of max(ratio, 1 - eps) where it is wrong."""
    G, T, k, generator = 8, 6, 3, torch.Generator().manual_seed(0)
    features = torch.randn(
        G, T, 5, 20, dtype=torch.float64, generator=generator
    )  # of a log-linear policy, 5 tokens
    old, direction = torch.randn(2, 20, dtype=torch.float64, generator=generator)
    mask = torch.arange(T) < torch.tensor([2, 6, 4, 3, 5, 6, 1, 4]).view(G, 1)
    theta = (old + distance * direction).requires_grad_()
    old_logps, logps = ((features @ at).log_softmax(dim=-1)[..., 0] * mask for at in (old, theta))
    config = script.Config() if script is dapo else script.Config(kl_coef=0.0)
    low, high = (0.8, 1.28) if script is dapo else (0.8, 1.2)

    right = torch.arange(G) < k
    A = script.compute_advantages(rewards=right.double().view(1, G)).view(G, 1)
    inputs = {
        "logps": logps,
        "old_logps": old_logps,
        "advantages": A,
        "mask": mask,
        "config": config,
    }
    loss = (
        script.policy_loss(**inputs)
        if script is dapo
        else script.policy_loss(**inputs, ref_logps=None)
    )
    (update,) = torch.autograd.grad(-loss, theta, retain_graph=True)

    ratio, vectors = (logps - old_logps).exp(), []
    for i in range(G):
        kept = ratio[i].clamp(max=high) if right[i] else ratio[i].clamp(min=low)
        vectors.append(torch.autograd.grad(kept[mask[i]].sum(), theta, retain_graph=True)[0])
        stopped -= int((kept != ratio[i]).sum())
    assert stopped == 0
    lengths, sigma = mask.double().sum(dim=1, keepdim=True), float(identity.sigma(k, G))
    coefficient = {
        grpo: sigma / lengths,
        dr_grpo: sigma**2 / config.max_new_tokens,
        dapo: sigma * G / lengths.sum(),
    }
    vectors = torch.stack(vectors) * coefficient[script]
    expected = vectors[right].mean(dim=0) - vectors[~right].mean(dim=0)
    assert (update - expected).norm() < 1e-12 * expected.norm()


@pytest.mark.parametrize(
    ("accepted", "rejected"), [(0.0, 0.0), (0.2, 0.0), (0.05, 0.3), (0.5, 0.5), (0.7, 0.4)]
)
@pytest.mark.parametrize("rule", ["GRPO", "Dr. GRPO", "RLOO"])
def test_a_verifier_that_errs_over_all_groups(rule, accepted, rejected):
    """A softmax policy of four completions, two of them right, each of which passes or fails: all
    8^3 groups."""
    rng, G = np.random.default_rng(0), 3
    probs, right = np.array([0.1, 0.3, 0.35, 0.25]), np.array([True, True, False, False])
    scores = (np.eye(4) - probs) @ rng.normal(
        size=(4, 5)
    )  # whatever the parameters, their mean is 0
    passes = np.where(right, 1 - rejected, accepted)
    atoms = [
        (chance, R, s)
        for p, ok, s in zip(probs, passes, scores)
        for R, chance in ((1, p * ok), (0, p * (1 - ok)))
    ]
    mean, square, silent = np.zeros(5), 0.0, 0.0
    for group in itertools.product(atoms, repeat=G):
        chance, k = np.prod([a[0] for a in group]), sum(a[1] for a in group)
        g = np.mean([identity.RULES[rule](R, k - R, G) * s for _, R, s in group], axis=0)
        mean, square, silent = (
            mean + chance * g,
            square + chance * g @ g,
            silent + chance * (k in (0, G)),
        )

    p = probs[right].sum()
    means = [probs[part] @ scores[part] / probs[part].sum() for part in (right, ~right)]
    v = [
        probs[part] @ ((scores[part] - m) ** 2).sum(axis=1) / probs[part].sum()
        for part, m in zip((right, ~right), means)
    ]
    contrast = means[0] - means[1]
    seen, *moments = identity.with_errors(p, *v, contrast @ contrast, accepted, rejected)
    J = 1 - accepted - rejected
    np.testing.assert_allclose(
        mean, J * identity.weight(rule, seen, G) * p * (1 - p) * contrast, atol=1e-15
    )
    assert square == pytest.approx(identity.mean_square(rule, seen, G, *moments), rel=1e-12)
    assert silent == pytest.approx(identity.silent_rate(seen, G), rel=1e-12)
