"""The closed forms of progress and noise, against every group of a small policy; and the
measurement built on them."""

import json
import random
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from algorithms import dr_grpo
from lessons import identity
from lessons.experiments import baselines, estimators, learning
from lessons.experiments.estimators import ESTIMATORS, Batch
from lessons.float64 import to_float64
from toy_env import arithmetic, expressions
from toy_env.model import load_policy
from toy_env.rollout import completion_logps, sample

CONTRASTS = {
    f"sigma^{c}": identity.contrast(lambda k, G, c=c: identity.sigma(k, G) ** c)
    for c in (0, 0.5, 3)
}
RULES = {**identity.RULES, **CONTRASTS, "quietest": identity.contrast(identity.quietest(5.0))}


class Softmax:
    """A policy of one prompt with seven answers, two of them right, in 5 parameters: everything can
    be listed."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        features, theta = rng.normal(size=(7, 5)), rng.normal(size=5)
        self.probs = np.exp(features @ theta) / np.exp(features @ theta).sum()
        self.scores = features - self.probs @ features  # (7, 5)
        self.R = np.array([1.0, 0, 0, 1, 0, 0, 0])
        self.p, self.grad_p = self.probs @ self.R, (self.probs * self.R) @ self.scores
        classes = [(self.probs * (r == self.R) / self.probs[r == self.R].sum()) for r in (1, 0)]
        self.means = [weights @ self.scores for weights in classes]
        self.v = [w @ ((self.scores - m) ** 2).sum(axis=1) for w, m in zip(classes, self.means)]
        self.squared = ((self.means[0] - self.means[1]) ** 2).sum()

    def groups(self, rule, G: int):
        """The probability (n,) and the update (n, 5) of every group."""
        groups = np.array(list(product(range(7), repeat=G)))
        k = self.R[groups].sum(axis=1).astype(int)
        table = np.array(
            [[rule(r, i, G) if i < G else 0 for r in (0, 1)] for i in range(G + 1)]
        )  # by others right
        A = table[k[:, None] - self.R[groups].astype(int), self.R[groups].astype(int)]
        return self.probs[groups].prod(axis=1), (A[:, :, None] * self.scores[groups]).mean(axis=1)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("G", [2, 4])
def test_progress_and_noise_over_every_group(name, G):
    """E g, E|g|^2 and the noise across grad p of every rule."""
    policy = Softmax()
    chance, g = policy.groups(RULES[name], G)
    expected = identity.weight(RULES[name], policy.p, G) * policy.grad_p
    np.testing.assert_allclose(chance @ g, expected, atol=1e-13)
    np.testing.assert_allclose(
        policy.means[0] - policy.means[1], policy.grad_p / (policy.p * (1 - policy.p))
    )
    moments = {"v_right": policy.v[0], "v_wrong": policy.v[1]}
    squared = identity.mean_square(
        RULES[name], policy.p, G, **moments, difference_squared=policy.squared
    )
    assert chance @ (g**2).sum(axis=1) == pytest.approx(squared, rel=1e-12)
    unit = policy.grad_p / np.linalg.norm(policy.grad_p)
    across = g - np.outer(g @ unit, unit)
    classes = (
        (policy.R / policy.p, policy.means[0]),
        ((1 - policy.R) / (1 - policy.p), policy.means[1]),
    )
    along = [policy.probs * which @ ((policy.scores - mean) @ unit) ** 2 for which, mean in classes]
    noise = identity.noise(RULES[name], policy.p, G, policy.v[0] - along[0], policy.v[1] - along[1])
    assert chance @ (across**2).sum(axis=1) == pytest.approx(noise, rel=1e-12)


@pytest.mark.parametrize("ratio", [0.01, 0.3, 1.0, 46.0])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_no_weight_of_the_contrast_beats_the_quietest(ratio, p):
    rng, best = np.random.default_rng(0), identity.quietest(ratio)
    value = identity.efficiency(identity.contrast(best), p, 8, ratio)
    for _ in range(20):
        factor = 1 + 0.1 * rng.normal(size=9)
        assert (
            identity.efficiency(identity.contrast(lambda k, G: best(k, G) * factor[k]), p, 8, ratio)
            < value
        )  # noqa: B023
    for name in ("GRPO", "Dr. GRPO", "MaxRL"):
        assert identity.efficiency(name, p, 8, ratio) < value + 1e-12


def test_the_ends_of_the_best_weight():
    """Dr. GRPO at v- = v+, where it has 1 - 1/G at every p; MaxRL and its mirror image at the two
    ends."""
    k = np.arange(1, 8)
    np.testing.assert_allclose(identity.quietest(1.0)(k, 8), identity.sigma(k, 8) ** 2)
    np.testing.assert_allclose(identity.quietest(1e9)(k, 8), (8 - k) / 16, rtol=1e-7)
    np.testing.assert_allclose(identity.quietest(1e-9)(k, 8), k / 16, rtol=1e-7)
    np.testing.assert_allclose(
        identity.efficiency("Dr. GRPO", np.array([0.01, 0.5, 0.9]), 8), 7 / 8
    )
    names = ("GRPO", "Dr. GRPO", "MaxRL", identity.contrast(identity.quietest(46)), "REINFORCE")
    by_p = {
        0.5: [0.868, 0.875, 0.977, 0.978, 11.75],
        0.1: [0.529, 0.481, 0.554, 0.555, 4.95],
    }  # worked out elsewhere
    for p, values in by_p.items():
        np.testing.assert_allclose(
            [identity.efficiency(name, p, 8, 46.0) for name in names], values, rtol=2e-3
        )


# ---------------------------------------------------------------------- the measurement


@pytest.fixture(scope="module", params=["arithmetic", "expressions"])
def rollout(request):
    task = estimators.load_task(request.param)
    policy, tokenizer = load_policy(estimators.base_model(task))
    problem = {
        "arithmetic": arithmetic.Problem("2+10+2", 14, 2),
        "expressions": expressions.Problem(55),
    }[request.param]
    generator = torch.Generator().manual_seed(0)
    drawn = estimators.Completions.draw(policy, tokenizer, task, problem, 256, generator)
    prompts = [problem.prompt, task.sample_problems(1, task.LEVELS, random.Random(1))[0].prompt]
    return to_float64(policy), drawn, sample(policy, tokenizer, prompts, 6, 56, 1.0, generator)


def test_scores_are_the_gradients_of_the_log_probabilities(rollout):
    policy, drawn, mixed = rollout
    S = estimators.scores(policy, mixed, at_once=5)
    total = completion_logps(policy, mixed, 1.0).sum(dim=1)
    for i, row in enumerate(total):
        gradient = torch.autograd.grad(row, list(policy.parameters()), retain_graph=True)
        torch.testing.assert_close(
            S[i], torch.cat([part.flatten() for part in gradient]), rtol=1e-9, atol=1e-10
        )
    S = estimators.scores(policy, drawn.different).numpy()
    assert len(drawn.drawn) == 256 and 0 < drawn.right.sum() < len(drawn.right) == len(
        set(drawn.drawn)
    )
    np.testing.assert_allclose(drawn.inner, S @ S.T, rtol=1e-3, atol=1e-3 * drawn.inner.max())


def test_moments_by_hand():
    """Right scores (2, 0) and (0, 0), wrong ones (0, 3) and (0, 1), the last drawn twice."""
    scores = np.array([[2.0, 0], [0, 0], [0, 3], [0, 1]])
    right, drawn = np.array([True, True, False, False]), np.array([0, 1, 2, 3, 3])
    values = estimators.moments(drawn, right, scores @ scores.T)
    assert values[:2] == pytest.approx([2.0, 4 / 3])
    assert values[2] == pytest.approx(1 + 25 / 9 - 2 / 2 - (4 / 3) / 3)
    assert np.isnan(estimators.moments(drawn[1:], right, scores @ scores.T)).all()


def test_the_estimators_by_hand():
    """Advantages of two groups of four, one of them silent."""
    R, lengths = np.array([[1.0, 0, 0, 1], [1, 1, 1, 1]]), np.array([[2.0, 1, 1, 4], [1, 1, 1, 1]])
    batch = Batch(R, lengths, squared=np.array([[3.0, 2, 5, 1], [1, 1, 1, 1]]), v_ratio=3.0)
    mixed = {name: estimator(batch)[0].tolist() for name, estimator in ESTIMATORS.items()}
    assert mixed["σ^1"] == pytest.approx([1, -1, -1, 1]) == mixed["(G − k)/G"] == mixed["k/G"]
    assert mixed["σ^2"] == pytest.approx([0.5, -0.5, -0.5, 0.5])
    assert mixed["c(k)"] == pytest.approx([0.5, -0.5, -0.5, 0.5])  # 4 / (8 (1/2 + 3/2)) times 2
    assert mixed["σ, k < G − 2"] == [0, 0, 0, 0]
    assert mixed["no baseline"] == [1, 0, 0, 1] and mixed["b = 1"] == [0, -1, -1, 0]
    assert mixed["OPO"] == pytest.approx([0.25, -0.75, -0.75, 0.25])
    assert mixed["best b of the others"] == pytest.approx([1 - 1 / 8, -4 / 9, -4 / 6, 1 - 3 / 10])
    silent = {name: np.abs(estimator(batch)[1]).max() for name, estimator in ESTIMATORS.items()}
    assert [name for name in silent if silent[name]] == ["no baseline"]


def test_the_true_gradient_comes_in_two_halves(rollout):
    """The mean over completions of (reward less that of the five others) times score, of every
    other rollout."""
    policy, _, mixed = rollout
    rewards = [
        np.array([[1.0, 0, 0, 1, 0, 0], [0, 1, 1, 1, 1, 1]]),
        np.array([[1.0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]),
    ]
    draws = iter([(mixed, R) for R in (*rewards, *rewards)])
    halves = estimators.true_gradient(policy, lambda P, G: next(draws), 4 * estimators.BATCH)
    S = estimators.scores(policy, mixed)
    for half, R in zip(halves, rewards):
        A = np.array([[r - (group.sum() - r) / 5 for r in group] for group in R]).flatten()
        expected = (torch.from_numpy(A)[:, None] * S).mean(dim=0)
        torch.testing.assert_close(half, expected, rtol=1e-4, atol=1e-5, check_dtype=False)


def test_length_and_progress_of_a_batch(rollout):
    """Of groups as they are drawn: by the inner products, and by adding scores."""
    policy, _, mixed = rollout
    D = torch.randn(
        2, policy.num_parameters(), dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    D[1] = D[0]
    R = np.array([[1.0, 0, 0, 1, 0, 0], [0, 1, 1, 1, 1, 1]])
    factor = torch.rand(D.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    scales = {"gradient": torch.ones(()), "Adam": factor}
    result = estimators.measure_batches(
        policy, lambda P, G: (mixed, R), 2, 6, D, scales, v_ratio=2.0
    )
    S, lengths = estimators.scores(policy, mixed), mixed.mask.sum(dim=1, keepdim=True)
    A = {
        "σ^1": [
            2**0.5,
            -(0.5**0.5),
            -(0.5**0.5),
            2**0.5,
            -(0.5**0.5),
            -(0.5**0.5),
            -(5**0.5),
            *[0.2**0.5] * 5,
        ]
    }
    A["no baseline"] = R.flatten()
    cosines = {tuple(row[:3]): row[3] for row in result["estimators"]}
    for name, advantages in A.items():
        for divisor, tokens in (("sum", 1), ("mean", lengths)):
            for scale, times in scales.items():
                g = (torch.tensor(advantages)[:, None] / tokens * S * times).mean(dim=0)
                assert cosines[name, divisor, scale] == pytest.approx(
                    float(torch.cosine_similarity(g, D[0], dim=0))
                )
    contrast = S[[0, 3]].mean(dim=0) - S[[1, 2, 4, 5]].mean(dim=0)
    length, progress = float(contrast.norm()), float(contrast @ D[0])
    assert result["by k"][1] == pytest.approx(
        [2, length**2, length**2, progress, progress / length]
    )
    assert result["by k"][0] == [0] * 5 and result["by k"][4][0] == 2


# ---------------------------------------------------------------------- weights.py


def test_every_step_has_the_same_length_and_adamws_direction():
    a, b = (torch.nn.Linear(3, 2) for _ in range(2))
    b.load_state_dict(a.state_dict())
    for length in (0.1, 0.002):
        start = torch.nn.utils.parameters_to_vector(a.parameters()).detach()
        b.load_state_dict(a.state_dict())
        moved = []
        for model in (a, b):
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
            optimizer.zero_grad()
            model(torch.tensor([[1.0, 2, 3]])).square().sum().backward()
            learning.step_of_length(length, model, optimizer) if model is a else optimizer.step()
            moved.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach() - start)
        assert moved[0].norm().item() == pytest.approx(length, rel=1e-3)
        assert torch.cosine_similarity(*moved, dim=0) > 0.9999


# ---------------------------------------------------------------------- learning.py


@pytest.mark.slow
def test_learning_is_the_training_of_the_script(tmp_path, monkeypatch):
    """The same problems, completions, advantages and steps as dr_grpo.py: the same weights."""
    weights_at_the_end, drawn = [], []

    def evaluate(policy, *_, **__):
        weights_at_the_end.append(torch.nn.utils.parameters_to_vector(policy.parameters()).detach())
        return SimpleNamespace(correct=np.zeros(1))

    monkeypatch.setattr(learning, "evaluate", evaluate)

    def advantages(batch, step):
        drawn.append(batch.rewards.mean())
        return batch.rewards - batch.rewards.mean(axis=1, keepdims=True)

    learnt = learning.learn("arithmetic", 3, advantages, dr_grpo, steps=3, kl_coef=0.04)
    settings = {"seed": 3, "steps": 3, "eval_every": 0, "eval_problems": 1, "device": "cpu"}
    dr_grpo.train(dr_grpo.Config(**settings, run_dir=str(tmp_path)))
    rows = [
        json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()
    ]
    assert [row["accuracy"] for row in rows] == pytest.approx(drawn) and learnt[
        "training"
    ] == pytest.approx(np.mean(drawn))
    script = load_policy(str(tmp_path / "checkpoint"))[0]
    torch.testing.assert_close(
        weights_at_the_end[0], torch.nn.utils.parameters_to_vector(script.parameters()).detach()
    )


def test_a_proxy_is_the_squared_gradient_in_the_logits(rollout):
    policy, _, mixed = rollout
    values = learning.proxies(policy, mixed)
    for row in (0, len(mixed) - 1):
        prompt, tokens = (
            mixed.prompt_ids[row, mixed.prompt_mask[row]],
            mixed.completion_ids[row, mixed.mask[row]],
        )
        logits = (
            policy(input_ids=torch.cat([prompt, tokens])[None])
            .logits[0, -len(tokens) - 1 : -1]
            .detach()
        )
        logps = logits.requires_grad_().log_softmax(dim=-1).gather(1, tokens[:, None])
        squared = torch.autograd.grad(logps.sum(), logits)[0].square().sum(dim=1)
        torch.testing.assert_close(
            values[row, : len(tokens)], squared, rtol=1e-4, atol=1e-6, check_dtype=False
        )
        assert not values[row, len(tokens) :].any()


def test_a_kl_that_leaves_silent_groups_out(monkeypatch):
    """Their reference is the policy itself; that of mixed groups is the base model."""
    seen = []

    def policy_loss(**inputs):
        silent = (inputs["advantages"] == 0).squeeze(1)
        distance = (inputs["ref_logps"] - inputs["logps"]).abs().sum(dim=1)
        seen.append((distance[silent].max().item(), distance[~silent].max().item()))
        return dr_grpo.policy_loss(**inputs)

    script = SimpleNamespace(Config=dr_grpo.Config, policy_loss=policy_loss)
    monkeypatch.setattr(learning, "evaluate", lambda *_, **__: SimpleNamespace(correct=np.zeros(1)))
    for on_silent in (True, False):
        seen.clear()
        settings = {"steps": 2, "kl_coef": 0.04, "kl_on_silent": on_silent}
        learning.learn(
            "arithmetic", 0, lambda batch, _: ESTIMATORS["σ^2"](batch), script, **settings
        )
        assert seen[-1][1] > 0 and (seen[-1][0] > 0) == on_silent


def test_the_squares_of_tokens_are_those_of_autograd():
    policy, tokenizer = load_policy("base")
    rollout, _ = estimators.collect(
        policy, tokenizer, arithmetic, 2, 2, random.Random(0), torch.Generator()
    )
    squares, logps = learning.token_squares(policy, rollout), completion_logps(policy, rollout, 1.0)
    assert not squares[~rollout.mask].any()
    for row, column in rollout.mask.nonzero().tolist():
        parts = torch.autograd.grad(
            logps[row, column], list(policy.parameters()), retain_graph=True
        )
        expected = sum(part.square().sum() for part in parts)
        torch.testing.assert_close(squares[row, column], expected, rtol=1e-3, atol=1e-4)


def test_the_rates_are_those_of_the_tuning_seeds(monkeypatch):
    """The best mean over the tuning seeds, by outcome; a grid is widened until no best rate is at
    its edge."""
    best = {"end": 2e-4, "training": 1.6e-3}

    class Trials:
        def run(self, function, runs, name):
            assert {run.seed for run in runs} == set(baselines.TUNING) and name == "tuning"
            away = [
                {name: -abs(np.log(run.rate / rate)) for name, rate in best.items()} for run in runs
            ]
            return [{"rate": run.rate} | of_run for run, of_run in zip(runs, away)]

    arm = baselines.Run("arithmetic", "R", 1, 0.0, 0)
    assert baselines.best_rates(Trials(), [arm]) == {arm: pytest.approx([*best.values()])}


# ---------------------------------------------------------------------- baselines.py


def test_noise_of_baselines_is_that_of_the_closed_forms():
    """Along and across the contrast, from groups of a pool whose moments are known; the oracle has
    the least noise."""
    rng = np.random.default_rng(1)
    scores, right = (
        rng.normal(size=(6, 5)) * [[3], [1], [1], [2], [1], [0.5]],
        np.array([1, 0, 1, 0, 0, 1], dtype=bool),
    )
    half = rng.integers(6, size=2000)
    lengths = (scores**2).sum(axis=1)  # so that length is the whole of |score|^2
    different = SimpleNamespace(mask=SimpleNamespace(sum=lambda dim: torch.from_numpy(lengths)))
    drawn = estimators.Completions(np.append(half, half), different, right, scores @ scores.T)
    result = baselines.noise_of(drawn, np.ones(6), rng, n=100_000)
    assert result["fits"] == [pytest.approx(1.0), 0.0]

    pool, r = scores[half], right[half]
    b = (r * (pool**2).sum(axis=1)).sum() / (pool**2).sum()
    assert result["best b"] == pytest.approx(b)
    terms = (r - b)[
        :, None
    ] * pool  # with the oracle's b an update is a mean of 8 independent terms
    progress, along, beside = result["noise"]["best b of the prompt"]
    squared = terms.var(axis=0).sum() / 8 + terms.mean(axis=0) @ terms.mean(axis=0)
    assert progress**2 + along + beside == pytest.approx(squared, rel=0.02)
    unit = pool[r].mean(axis=0) - pool[~r].mean(axis=0)
    unit /= np.linalg.norm(unit)
    covariance = (r[:, None] * pool).mean(axis=0) - r.mean() * pool.mean(axis=0)
    loo, dr = (np.array(result["noise"][name]) for name in ("leave-one-out", "R − mean"))
    np.testing.assert_allclose(loo, dr * [8 / 7, (8 / 7) ** 2, (8 / 7) ** 2])
    np.testing.assert_allclose(loo[0], covariance @ unit, rtol=0.02)
    efficient = {
        n: baselines.efficiency([{"prompts_measured": [result, {}]}], n) for n in result["noise"]
    }
    assert (
        efficient["leave-one-out"] == pytest.approx(efficient["R − mean"])
        and efficient["best b of the prompt"] == 1
    )
    ends = []
    for x in (r[:, None] * pool, terms):
        signal = (x.mean(axis=0) @ unit) ** 2
        ends.append(signal / (x.var(axis=0).sum() / 8 + x.mean(axis=0) @ x.mean(axis=0) - signal))
    assert efficient["R"] == pytest.approx(ends[0] / ends[1], rel=0.03)


@pytest.mark.slow
def test_a_stage_is_measured_and_every_draw_is_seeded(tmp_path):
    stage = estimators.Run("arithmetic", 0, 0, prompts=1, completions=256, batches=2, gradient=1024)
    measured = baselines.measure(stage, tmp_path)
    assert measured == baselines.measure(stage, tmp_path) and all(
        len(x) == 2 for x in measured["cosines"].values()
    )
    cosine = {name: np.mean(values) for name, values in measured["cosines"].items()}
    assert cosine["R"] > cosine["R − 1"] and set(cosine) == set(baselines.BASELINES)
    assert measured["prompts_measured"][0]["noise"]["R"][2] > 0
