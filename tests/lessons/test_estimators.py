"""The closed forms of progress and noise, against every group of a small policy; the measurements
built on them; and the training of the experiments."""

import random
from itertools import product
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from enumeration import flat_gradient

from algorithms import dr_grpo, grpo
from lessons import identity
from lessons.experiments import baselines, estimators, shrinkage, weights
from lessons.experiments.baselines import ADVANTAGES, Batch
from lessons.experiments.float64 import to_float64
from lessons.experiments.harness import learning
from toy_env import arithmetic, expressions
from toy_env.model import load_policy
from toy_env.rollout import completion_logps, sample

CONTRASTS = {
    f"sigma^{c}": identity.contrast(lambda k, G, c=c: identity.sigma(k, G) ** c)
    for c in (0, 0.5, 3)
}
RULES = {**identity.RULES, **CONTRASTS, "quietest": identity.contrast(identity.quietest(5.0))}


# A policy of one prompt with seven answers, two of them right, in 5 parameters: everything can be
# listed.
RANDOM = np.random.default_rng(0)
FEATURES, THETA = RANDOM.normal(size=(7, 5)), RANDOM.normal(size=5)
P = np.exp(FEATURES @ THETA) / np.exp(FEATURES @ THETA).sum()  # of each answer
SCORES = FEATURES - P @ FEATURES  # (7, 5)
R = np.array([1, 0, 0, 1, 0, 0, 0])
CLASSES = [P * R / (P @ R), P * (1 - R) / (P @ (1 - R))]  # answers among right and wrong ones


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("G", [2, 4])
def test_progress_and_noise_over_every_group(name, G):
    """E g, E|g|^2 and the noise across grad p of every rule."""
    rule, p, grad_p = RULES[name], P @ R, (P * R) @ SCORES
    groups = np.array(list(product(range(7), repeat=G)))
    table = np.array([[rule(reward, others, G) for reward in (0, 1)] for others in range(G)])
    A = table[R[groups].sum(axis=1, keepdims=True) - R[groups], R[groups]]
    chances = P[groups].prod(axis=1)
    g = (A[:, :, None] * SCORES[groups]).mean(axis=1)  # (groups, 5)
    np.testing.assert_allclose(chances @ g, identity.weight(rule, p, G) * grad_p, atol=1e-13)

    unit = grad_p / np.linalg.norm(grad_p)
    means = [weights @ SCORES for weights in CLASSES]
    v = [weights @ ((SCORES - mean) ** 2).sum(1) for weights, mean in zip(CLASSES, means)]
    along = [weights @ ((SCORES - mean) @ unit) ** 2 for weights, mean in zip(CLASSES, means)]
    contrast = ((means[0] - means[1]) ** 2).sum()
    squared = identity.mean_square(rule, p, G, *v, contrast)
    assert chances @ (g**2).sum(axis=1) == pytest.approx(squared, rel=1e-12)
    noise = identity.noise(rule, p, G, *(np.array(v) - along))
    across = (g**2).sum(axis=1) - (g @ unit) ** 2
    assert chances @ across == pytest.approx(noise, rel=1e-12)


@pytest.mark.parametrize("ratio", [0.01, 1.0, 46.0])
@pytest.mark.parametrize("p", [0.1, 0.9])
def test_no_weight_of_the_contrast_beats_the_quietest(ratio, p):
    rng, best = np.random.default_rng(0), identity.quietest(ratio)
    value = identity.efficiency(identity.contrast(best), p, 8, ratio)
    for factor in 1 + 0.1 * rng.normal(size=(20, 9)):
        other = identity.contrast(lambda k, G, factor=factor: best(k, G) * factor[k])
        assert identity.efficiency(other, p, 8, ratio) < value
    for name in ("GRPO", "Dr. GRPO", "MaxRL"):
        assert identity.efficiency(name, p, 8, ratio) < value + 1e-12


def test_the_ends_of_the_best_weight():
    """Dr. GRPO at v- = v+, where it has 1 - 1/G at every p; MaxRL and its mirror image at the two
    ends."""
    k, p = np.arange(1, 8), np.array([0.01, 0.5, 0.9])
    np.testing.assert_allclose(identity.quietest(1.0)(k, 8), identity.sigma(k, 8) ** 2)
    np.testing.assert_allclose(identity.quietest(1e9)(k, 8), (8 - k) / 16, rtol=1e-7)
    np.testing.assert_allclose(identity.quietest(1e-9)(k, 8), k / 16, rtol=1e-7)
    np.testing.assert_allclose(identity.efficiency("Dr. GRPO", p, 8), 7 / 8)


# ---------------------------------------------------------------------- the measurement


@pytest.fixture(scope="module", params=["arithmetic", "expressions"])
def rollout(request):
    """A policy in float64, completions of one prompt, and a rollout of two prompts."""
    task = estimators.load_task(request.param)
    policy, tokenizer = load_policy(estimators.base_model(task))
    problem = expressions.Problem(55)
    if request.param == "arithmetic":
        problem = arithmetic.Problem("2+10+2", 14, 2)
    generator = torch.Generator().manual_seed(0)
    drawn = estimators.Completions.draw(policy, tokenizer, task, problem, 256, generator)
    prompts = [problem.prompt, task.sample_problems(1, task.LEVELS, random.Random(1))[0].prompt]
    return to_float64(policy), drawn, sample(policy, tokenizer, prompts, 6, 56, 1.0, generator)


@pytest.mark.slow
def test_scores_are_the_gradients_of_the_log_probabilities(rollout):
    policy, drawn, mixed = rollout
    S = estimators.scores(policy, mixed)
    total = completion_logps(policy, mixed, 1.0).sum(dim=1)
    for score, value in zip(S, total):
        torch.testing.assert_close(
            score, flat_gradient(value, policy, retain=True), rtol=1e-9, atol=1e-10
        )
    S = estimators.scores(policy, drawn.different).numpy()
    np.testing.assert_allclose(drawn.inner, S @ S.T, rtol=1e-3, atol=1e-3 * drawn.inner.max())


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
    A |= estimators.estimators(R, lengths)
    mixed = {name: of_name[0].tolist() for name, of_name in A.items()}
    assert mixed["σ^1"] == [1, -1, -1, 1] and mixed["σ^1 ÷ length"] == [0.5, -1, -1, 0.25]
    assert mixed["σ^2"] == mixed["R − mean"] == [0.5, -0.5, -0.5, 0.5]
    assert mixed["no baseline"] == mixed["R"] == [1, 0, 0, 1] and mixed["R − 1"] == [0, -1, -1, 0]
    assert mixed["OPO"] == pytest.approx([0.25, -0.75, -0.75, 0.25])
    assert mixed["best b of the others"] == pytest.approx([1 - 1 / 8, -4 / 9, -4 / 6, 1 - 3 / 10])
    assert [name for name in A if A[name][1].any()] == ["R", "no baseline"]
    fewer = weights.WEIGHTS["σ, k < G − 2"]
    assert fewer(2, 4) == 0 and fewer(2, 8) == identity.sigma(2, 8)


def test_the_true_gradient_is_the_mean_of_two_halves(rollout):
    """Of (reward less that of the five others) times score, over the completions of every other
    rollout; its squared length is the product of the halves."""
    policy, _, mixed = rollout
    one, other = np.zeros((2, 2, 6))
    one[0, [0, 3]] = other[0, [0, 3]] = other[1, 0] = 1
    draws = iter([(mixed, R) for R in (one, other, one, other)])
    run = SimpleNamespace(gradient=4 * estimators.BATCH)
    stage = SimpleNamespace(policy=policy, draw=lambda P, G: next(draws), run=run)
    gradient, length = estimators.true_gradient(stage)
    S, halves = estimators.scores(policy, mixed), []
    for R in (one, other):
        A = torch.from_numpy(R - (R.sum(axis=1, keepdims=True) - R) / 5).view(-1, 1)
        halves.append((A * S).mean(dim=0))
    expected = (halves[0] + halves[1]) / 2
    torch.testing.assert_close(gradient, expected.float(), rtol=1e-4, atol=1e-5)
    squared = (halves[0] @ halves[1]).item()
    assert length**2 == pytest.approx(squared, rel=1e-4) and squared > 0


@pytest.mark.slow
def test_length_and_progress_of_a_batch(rollout, monkeypatch):
    """Of groups as they are drawn: by the inner products, and by adding scores."""
    monkeypatch.setattr(estimators, "G", 6)
    policy, _, mixed = rollout
    generator, size = torch.Generator().manual_seed(2), policy.num_parameters()
    direction = torch.randn(size, dtype=torch.float64, generator=generator)
    R = np.array([[1.0, 0, 0, 1, 0, 0], [0, 1, 1, 1, 1, 1]])
    run = SimpleNamespace(batches=2)
    stage = SimpleNamespace(draw=lambda P, G: (mixed, R), policy=policy, run=run)
    result = estimators.measure_batches(stage, direction, direction.norm().item())
    S, lengths = estimators.scores(policy, mixed), mixed.mask.sum(dim=1, keepdim=True)
    for name, A in estimators.estimators(R, lengths.view(2, 6).numpy()).items():
        g = (torch.from_numpy(A).view(-1, 1) * S).mean(dim=0)
        cosine = torch.cosine_similarity(g, direction, dim=0).item()
        assert result["cosines"][name] == pytest.approx(cosine)
    contrast = S[[0, 3]].mean(dim=0) - S[[1, 2, 4, 5]].mean(dim=0)
    length, progress = contrast.norm().item(), (contrast @ direction).item()
    assert result["by k"][1] == pytest.approx([2, length**2, progress])
    assert result["by k"][0] == [0] * 3 and result["by k"][4][0] == 2


# ---------------------------------------------------------------------- training


def vector(policy) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(policy.parameters()).detach()


@pytest.fixture
def trained(monkeypatch) -> list[torch.Tensor]:
    """The weights at every evaluation of `learn`, which is skipped."""
    seen = []

    def evaluate(policy, *_, **__):
        seen.append(vector(policy))
        return SimpleNamespace(correct=np.zeros(1))

    monkeypatch.setattr(learning, "evaluate", evaluate)
    return seen


def differences(policy, rollout, rewards, step: int) -> torch.Tensor:
    """Dr. GRPO's advantages."""
    return rewards - rewards.mean(dim=1, keepdim=True)


@pytest.mark.slow
def test_learning_is_the_training_of_the_script(tmp_path, train, trained):
    """The same problems, completions, advantages and steps as dr_grpo.py: the same weights."""
    settings = {"seed": 3, "steps": 3, "prompts_per_step": 8, "kl_coef": 0.04}
    learnt = learning.learn(dr_grpo, settings, differences)
    rows = train(dr_grpo, **settings, group_size=8, max_new_tokens=56)
    assert learnt["training"] == pytest.approx(np.mean([row["accuracy"] for row in rows]))
    script, _ = load_policy(str(tmp_path / "run/checkpoint"))
    torch.testing.assert_close(trained[0], vector(script), rtol=0, atol=0)


def test_a_step_is_scaled_to_its_length_and_skipped_without_a_gradient():
    """It keeps AdamW's direction: at first the sign of the gradient."""
    model = torch.nn.Linear(3, 2)
    optimizer, start = (
        torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0),
        vector(model),
    )
    model(torch.tensor([[1.0, 2, 3]])).square().sum().backward()
    signs = torch.cat([weight.grad.sign().flatten() for weight in model.parameters()])
    weights.step_of_length(0.1, model, optimizer)
    moved = vector(model) - start
    torch.testing.assert_close(moved, -0.1 * signs / signs.norm(), rtol=1e-2, atol=0)
    optimizer.zero_grad(set_to_none=False)
    weights.step_of_length(0.1, model, optimizer)
    assert torch.equal(vector(model) - start, moved)


def test_a_kl_that_leaves_silent_groups_out():
    """Where the advantage is 0 there is no gradient at all."""
    logps, old_logps, ref_logps = -torch.rand(3, 4, 5)
    inputs = {"logps": logps.requires_grad_(), "old_logps": old_logps, "ref_logps": ref_logps}
    inputs |= {"advantages": torch.tensor([[1.0], [0.0], [-1.0], [0.0]])}
    inputs |= {"mask": torch.ones(4, 5), "config": grpo.Config(kl_coef=0.04)}
    losses = baselines.without_silent(**inputs), grpo.policy_loss(**inputs)
    ours, grpos = (torch.autograd.grad(loss, logps)[0] for loss in losses)
    torch.testing.assert_close(ours[[0, 2]], grpos[[0, 2]])
    assert not ours[[1, 3]].any() and grpos[[1, 3]].all()


# ---------------------------------------------------------------------- baselines.py


def test_a_proxy_is_the_squared_gradient_in_the_logits(rollout):
    policy, _, mixed = rollout
    proxies, row = baselines.proxies(policy, mixed), len(mixed) - 1
    tokens = mixed.completion_ids[row, mixed.mask[row]]
    ids = torch.cat([mixed.prompt_ids[row, mixed.prompt_mask[row]], tokens])
    logits = policy(input_ids=ids[None]).logits[0, -len(tokens) - 1 : -1].detach().requires_grad_()
    logps = logits.log_softmax(dim=-1).gather(1, tokens[:, None])
    squared = torch.autograd.grad(logps.sum(), logits)[0].square().sum(dim=1)
    expected = torch.zeros_like(proxies[row])
    expected[: len(tokens)] = squared
    torch.testing.assert_close(proxies[row], expected, rtol=1e-4, atol=1e-6)


def test_the_rates_are_those_of_the_tuning_seeds():
    """The best mean over the tuning seeds, by outcome; a grid is widened until no best rate is at
    its edge."""
    best = {"end": 2e-4, "training": 1.6e-3}

    class Trials:
        def run(self, function, runs, name):
            assert {run.seed for run in runs} == set(baselines.TUNING) and name == "tuning"
            trials = []
            for run in runs:
                away = {outcome: -abs(np.log(run.rate / rate)) for outcome, rate in best.items()}
                trials.append({"rate": run.rate, "seed": run.seed} | away)
            return trials

    arm = baselines.Run("arithmetic", "R", 1, 0.0, 0)
    settings = arm, baselines.RATES, baselines.OUTCOMES
    rates, trials = baselines.best_rates(Trials(), baselines.train, *settings)
    assert rates == pytest.approx([*best.values()]) and len(trials) == 6 * 3


@pytest.mark.slow
def test_noise_of_baselines_is_that_of_the_closed_forms():
    """Signal and noise of groups from a pool whose moments are known."""
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(6, 5)) * [[3], [1], [1], [2], [1], [0.5]]
    right, half = np.array([1, 0, 1, 0, 0, 1], dtype=bool), rng.integers(6, size=2000)
    lengths = (scores**2).sum(axis=1)  # so that length is the whole of |score|^2
    different = SimpleNamespace(mask=SimpleNamespace(sum=lambda dim: torch.from_numpy(lengths)))
    drawn = estimators.Completions(np.append(half, half), different, right, scores @ scores.T)
    result = baselines.noise_of(drawn, rng, n=100_000)
    assert result["fits"] == [pytest.approx(1.0)]

    pool, r = scores[half], right[half]
    b = (r * (pool**2).sum(axis=1)).sum() / (pool**2).sum()
    unit = pool[r].mean(axis=0) - pool[~r].mean(axis=0)
    unit /= np.linalg.norm(unit)
    efficiencies = []
    for name, A in (("R", r), ("best b of the prompt", r - b)):
        terms = A[:, None] * pool  # an update is the mean of 8 independent ones
        mean = terms.mean(axis=0)
        signal = (mean @ unit) ** 2
        noise = terms.var(axis=0).sum() / 8 + mean @ mean - signal
        progress, along, across = result["noise"][name]
        assert [progress**2, along + across] == pytest.approx([signal, noise], rel=0.03)
        efficiencies.append(signal / noise)
    ratio = baselines.efficiency([{"prompts_measured": [result, {}]}], "R")
    assert ratio == pytest.approx(efficiencies[0] / efficiencies[1], rel=0.03)


# ---------------------------------------------------------------------- shrinkage.py


@pytest.mark.parametrize(("kappa", "m0"), [(0.0, 0.0), (3.0, 0.0), (7.0, 0.6), (np.inf, 0.6)])
def test_a_shrunk_baseline_is_unbiased(kappa, m0):
    """Over every group; and all-right groups train as the formula says."""
    groups = np.array(list(product(range(7), repeat=3)))
    A, chances = shrinkage.shrunk(R[groups].astype(float), kappa, m0), P[groups].prod(axis=1)
    g = (A[:, :, None] * SCORES[groups]).mean(axis=1)
    np.testing.assert_allclose(chances @ g, (P * R) @ SCORES, atol=1e-13)
    all_right = shrinkage.shrunk(np.ones((1, 3)), kappa, m0)
    np.testing.assert_allclose(all_right, (1 - 1 / (1 + kappa / 2)) * (1 - m0))


def test_silent_groups_are_replaced_until_the_completions_are_spent(monkeypatch):
    rewards = torch.tensor([[0.0, 1.0] * 4, [1.0] * 8]).repeat(16, 1)  # every second is silent
    drawn = MagicMock(return_value=(MagicMock(**{"__len__.return_value": 256}), rewards))

    def learn(script, settings, advantages, *, policy, collect):
        with pytest.raises(StopIteration):
            while True:
                assert len(collect()[1]) == 32
        return {"end": 0.5, "training": 0.5}

    monkeypatch.setattr(dr_grpo, "collect", drawn)
    monkeypatch.setattr(shrinkage, "learn", learn)
    monkeypatch.setattr(shrinkage, "Rollout", MagicMock())
    shrinkage.train(shrinkage.Run("arithmetic", shrinkage.REPLACED, 1e-4, 0, steps=5))
    assert drawn.call_count == 5
