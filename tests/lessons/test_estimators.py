"""The measurements of the experiments, against sums of scores and every group of a small policy;
and their training, against the scripts'."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from enumeration import flat_gradient

from algorithms import dr_grpo, grpo
from lessons import identity
from lessons.experiments import baselines, estimators, shrinkage, weights
from lessons.experiments.baselines import ADVANTAGES, Batch
from lessons.experiments.float64 import to_float64
from lessons.experiments.harness import learning, paired
from lessons.experiments.harness.grid import load_runs
from toy_env.model import load_policy
from toy_env.rollout import at_completions, completion_logps, sample, sequences

# A policy of one prompt with seven answers, two of them right, in 5 parameters: everything can be
# listed.
RANDOM = np.random.default_rng(0)
FEATURES, THETA = RANDOM.normal(size=(7, 5)), RANDOM.normal(size=5)
P = np.exp(FEATURES @ THETA) / np.exp(FEATURES @ THETA).sum()  # of each answer
SCORES = FEATURES - P @ FEATURES  # (7, 5)
R = np.array([1, 0, 0, 1, 0, 0, 0])


def test_the_ends_of_the_best_weight():
    """Dr. GRPO at v- = v+, where it has 1 - 1/G at every p; MaxRL at one end."""
    k, p = np.arange(1, 8), np.array([0.01, 0.5, 0.9])
    np.testing.assert_allclose(identity.quietest(1.0)(k, 8), identity.sigma(k, 8) ** 2)
    np.testing.assert_allclose(identity.quietest(1e9)(k, 8), (8 - k) / 16, rtol=1e-7)
    np.testing.assert_allclose(identity.efficiency("Dr. GRPO", p, 8), 7 / 8)


def test_the_largest_gain_of_the_square_of_sigma_survives_its_correction():
    """As lesson 13 says: one family of all tasks, step lengths, divisors and outcomes."""
    pytest.importorskip("statsmodels")
    runs, family = load_runs(weights.RESULTS), []
    for length in weights.STEP_LENGTHS:
        arms = weights.arms(runs, length)
        for task, divided, outcome in product(weights.TASKS, (True, False), ("end", "training")):
            values = (arms[task, divided, weight][outcome] for weight in ("σ^2", "σ^1"))
            family.append(paired.difference(*values))
    paired.holm(family)
    assert len(family) == 24
    assert max(family, key=lambda gap: gap["difference"])["p_holm"] < paired.LEVEL


# ---------------------------------------------------------------------- the measurement


@pytest.fixture(scope="module")
def sampled():
    """A policy in float64, a rollout of two prompts, and its scores (12, parameters)."""
    policy, tokenizer = load_policy("base")
    generator = torch.Generator().manual_seed(0)
    rollout = sample(policy, tokenizer, ["2+10+2?", "29+46-36?"], 6, 56, 1.0, generator)
    return to_float64(policy), rollout, estimators.scores(policy, rollout)


def test_scores_are_the_gradients_of_the_log_probabilities(sampled):
    policy, mixed, S = sampled
    for score, value in zip(S, completion_logps(policy, mixed, 1.0).sum(dim=1)):
        expected = flat_gradient(value, policy, retain=True)
        torch.testing.assert_close(score, expected, rtol=1e-9, atol=1e-10)


def test_moments_by_hand():
    """Right scores (2, 0) and (0, 0), wrong ones (0, 3) and (0, 1), the last drawn twice."""
    scores = np.array([[2.0, 0], [0, 0], [0, 3], [0, 1]])
    right, drawn = np.array([True, True, False, False]), np.array([0, 1, 2, 3, 3])
    values = estimators.moments(drawn, right, scores @ scores.T)
    assert values[:2] == pytest.approx([2.0, 4 / 3])
    assert values[2] == pytest.approx(1 + 25 / 9 - 2 / 2 - (4 / 3) / 3)
    assert np.isnan(estimators.moments(drawn[1:], right, scores @ scores.T)).all()


def test_the_advantages_by_hand():
    """Of two groups of four, one of them silent."""
    R, lengths = np.array([[1.0, 0, 0, 1], [1, 1, 1, 1]]), np.array([[2.0, 1, 1, 4], [1, 1, 1, 1]])
    batch = Batch(R, lengths, squared=np.array([[3.0, 2, 5, 1], [1, 1, 1, 1]]))
    A = {name: ADVANTAGES[name](batch) for name in baselines.BASELINES if name != "OTB"}
    assert [name for name in A if A[name][1].any()] == ["R"]
    A |= estimators.estimators(R, lengths)
    by_hand = {
        "R, all-right groups left out": [1, 0, 0, 1],
        "σ^1 ÷ length": [0.5, -1, -1, 0.25],
        "OPO": [0.25, -0.75, -0.75, 0.25],
        "best b of the others": [1 - 1 / 8, -4 / 9, -4 / 6, 1 - 3 / 10],
    }
    for name, expected in by_hand.items():
        assert A[name][0] == pytest.approx(expected)


def test_the_true_gradient_is_the_mean_of_two_halves(sampled):
    """Of (reward less that of the five others) times score, over the completions of every other
    rollout; its squared length is the product of the halves."""
    policy, mixed, S = sampled
    R = np.zeros((2, 2, 6))  # of a rollout in each half
    R[:, 0, [0, 3]] = R[1, 1, 0] = 1
    draws = iter([(mixed, rewards) for rewards in (*R, *R)])
    run = SimpleNamespace(gradient=4 * estimators.BATCH)
    stage = SimpleNamespace(policy=policy, draw=lambda P, G: next(draws), run=run)
    gradient, length = estimators.true_gradient(stage)
    A = R - (R.sum(axis=2, keepdims=True) - R) / 5
    one, other = torch.from_numpy(A).view(2, 12) @ S / 12
    torch.testing.assert_close(gradient, (one + other).float() / 2, rtol=1e-4, atol=1e-5)
    assert length**2 == pytest.approx((one @ other).item(), rel=1e-4) and length > 0


@pytest.mark.slow
def test_length_and_progress_of_a_batch(sampled, monkeypatch):
    """Of groups as they are drawn: by the inner products, and by adding scores."""
    monkeypatch.setattr(estimators, "G", 6)
    policy, mixed, S = sampled
    direction = S.sum(dim=0) / S.sum(dim=0).norm()
    R = np.array([[1.0, 0, 0, 1, 0, 0], [0, 1, 1, 1, 1, 1]])
    run = SimpleNamespace(batches=2)
    stage = SimpleNamespace(draw=lambda P, G: (mixed, R), policy=policy, run=run)
    result = estimators.measure_batches(stage, direction, 1.0)
    lengths = mixed.mask.sum(dim=1).view(2, 6).numpy()
    for name, A in estimators.estimators(R, lengths).items():
        update = torch.from_numpy(A).view(-1) @ S
        cosine = torch.cosine_similarity(update, direction, dim=0).item()
        assert result["cosines"][name] == pytest.approx(cosine)
    contrast = S[[0, 3]].mean(dim=0) - S[[1, 2, 4, 5]].mean(dim=0)
    length, progress = contrast.norm().item(), (contrast @ direction).item()
    assert result["by k"][1] == pytest.approx([2, length**2, progress])
    assert [groups for groups, *_ in result["by k"]] == [0, 2, 0, 0, 2]


def test_noise_of_baselines_over_every_group():
    """Of two, from four completions with known scores; the mean of the update along the contrast,
    its variance along it, and the rest of its mean square."""
    right, scores = R[:4] == 1, SCORES[:4]
    groups = np.array([*product(range(4), repeat=2)])
    squared = (scores**2).sum(axis=1)
    # so that length is the whole of |score|^2
    different = SimpleNamespace(mask=torch.diag(torch.from_numpy(squared)))
    drawn = estimators.Completions(np.arange(8) % 4, different, right, scores @ scores.T)
    result = baselines.noise_of(drawn, SimpleNamespace(choice=lambda *_: groups), G=2)
    assert result["fits"] == [pytest.approx(1.0)]
    unit = scores[right].mean(axis=0) - scores[~right].mean(axis=0)
    unit /= np.linalg.norm(unit)
    best = squared[right].sum() / squared.sum()
    for name, A in (("R", right), ("best b of the prompt", right - best)):
        g = (A[groups, None] * scores[groups]).mean(axis=1)
        along = g @ unit
        expected = [along.mean(), along.var(), (g**2).sum(axis=1).mean() - (along**2).mean()]
        assert result["noise"][name] == pytest.approx(expected)


def test_efficiency_by_hand():
    """2^2 / (1 + 3) over 1^2 / (1 + 1)."""
    stage = {"prompts_measured": [{"noise": {"A": [2.0, 1.0, 3.0], "B": [1.0, 1.0, 1.0]}}, {}]}
    assert baselines.efficiency([stage], "A", "B") == 2


def test_a_proxy_is_the_squared_gradient_in_the_logits(sampled):
    policy, mixed, _ = sampled
    ids = sequences(mixed)  # (12, S)
    logits = policy(input_ids=ids).logits.detach().requires_grad_()
    logps = logits[:, :-1].log_softmax(dim=2).gather(2, ids[:, 1:, None])
    (gradient,) = torch.autograd.grad(logps.sum(), logits)
    expected = at_completions(gradient.square().sum(dim=2), mixed) * mixed.mask
    proxies = baselines.proxies(policy, mixed)
    torch.testing.assert_close(proxies, expected, rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------------- training


@pytest.mark.slow
def test_learning_is_the_training_of_the_script(tmp_path, train):
    """The same problems, completions, advantages and steps as dr_grpo.py: the same weights."""
    settings = {"seed": 3, "steps": 3, "prompts_per_step": 8, "kl_coef": 0.04}
    ours, _ = load_policy("base")
    learnt = learning.learn(dr_grpo, settings, policy=ours)
    rows = train(dr_grpo, **settings, group_size=8, max_new_tokens=56)
    assert learnt["training"] == pytest.approx(np.mean([row["accuracy"] for row in rows]))
    scripts, _ = load_policy(str(tmp_path / "run/checkpoint"))
    for one, other in zip(ours.parameters(), scripts.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_step_is_scaled_to_its_length_and_skipped_without_a_gradient():
    """It keeps AdamW's direction: at first the sign of the gradient."""
    policy, gradient = torch.nn.Linear(3, 1, bias=False), torch.tensor([[1.0, -2, 3]])
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4, weight_decay=0.0)
    expected = policy.weight.detach() - 0.1 * gradient.sign() / 3**0.5
    for policy.weight.grad in (gradient, 0 * gradient):
        weights.step_of_length(0.1, policy, optimizer)
        torch.testing.assert_close(policy.weight.detach(), expected, rtol=0, atol=1e-3)


def test_a_kl_that_leaves_silent_groups_out():
    """Where the advantage is 0 there is no gradient; elsewhere it is GRPO's."""
    logps, old_logps, ref_logps = -torch.rand(3, 2, 5)
    inputs = {"old_logps": old_logps, "ref_logps": ref_logps, "mask": torch.ones(2, 5)}
    inputs |= {"advantages": torch.tensor([[1.0], [0.0]]), "config": grpo.Config(kl_coef=0.04)}
    logps.requires_grad_()
    ours, grpos = (
        torch.autograd.grad(loss(logps=logps, **inputs), logps)[0]
        for loss in (baselines.without_silent, grpo.policy_loss)
    )
    torch.testing.assert_close(ours[0], grpos[0])
    assert not ours[1].any() and grpos[1].all()


@pytest.mark.parametrize(("kappa", "m0"), [(0.0, 0.0), (3.0, 0.0), (7.0, 0.6), (np.inf, 0.6)])
def test_a_shrunk_baseline_is_unbiased(kappa, m0):
    """Over every group; and all-right groups train as the formula says."""
    groups = np.array(list(product(range(7), repeat=3)))
    A, chances = shrinkage.shrunk(R[groups].astype(float), kappa, m0), P[groups].prod(axis=1)
    g = (A[:, :, None] * SCORES[groups]).mean(axis=1)
    np.testing.assert_allclose(chances @ g, (P * R) @ SCORES, atol=1e-13)
    all_right = shrinkage.shrunk(np.ones((1, 3)), kappa, m0)
    np.testing.assert_allclose(all_right, (1 - 1 / (1 + kappa / 2)) * (1 - m0))


@pytest.mark.slow
def test_silent_groups_are_replaced_until_the_completions_are_spent(monkeypatch, spy):
    """All groups trained on are mixed, and no more completions are drawn than by other arms."""
    monkeypatch.setattr(learning, "EVALUATED", 128)
    drawn, trained_on = spy(dr_grpo, "collect"), spy(shrinkage, "shrunk")
    shrinkage.train(shrinkage.Run("arithmetic", shrinkage.REPLACED, 1e-4, 0, steps=4))
    assert len(drawn) == 4 and 1 <= len(trained_on) < 4
    for call in trained_on:
        assert (np.ptp(call.args[0], axis=1) > 0).all() and len(call.args[0]) == 32
