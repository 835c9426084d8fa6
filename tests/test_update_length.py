"""The measurement behind lesson 13: on made-up scores of which everything is known, and on the real models."""

from dataclasses import replace
from math import comb
from pathlib import Path

import numpy as np
import pytest
import torch
from test_grid import one_by_one
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from lessons import identity
from lessons.experiments import grid, update_length, update_length_tables
from lessons.experiments.grid import load_runs
from lessons.experiments.update_length import EVERY_TOKEN, GROUP_SIZES, KS, MEAN, Answers
from lessons.experiments.update_length_tables import errors, profile
from lessons.float64 import to_float64
from toy_env import UsageError, arithmetic, expressions
from toy_env.model import load_policy
from toy_env.rollout import completion_logps

SMALL = update_length.Config(seeds=1, prompts=4, answers=128)


def made_up(right: np.ndarray, scores: np.ndarray, lengths=1.0) -> Answers:
    """Answers that are all different, with these scores (n, d)."""
    inner = scores @ scores.T
    lengths = np.broadcast_to(lengths, len(right))
    return Answers(np.arange(len(right)), right, np.stack([inner, inner / np.outer(lengths, lengths)]))


def noisy(rng, p, n=1024, d=600, signal=1.0, noise=(1.0, 1.0)) -> Answers:
    """Class means `signal` apart, and class variances noise^2; E[s] = 0."""
    right = rng.random(n) < p
    means = np.outer(np.where(right, 1 - p, -p), signal * rng.normal(size=d) / np.sqrt(d))
    return made_up(right, means + np.where(right, *noise)[:, None] / np.sqrt(d) * rng.normal(size=(n, d)))


def stage_of(*prompts: Answers) -> dict:
    """What `update_length_tables.stage` gives for these answers as the prompts of one seed."""
    rows = [update_length.measure_prompt(answers, np.random.default_rng(i)) for i, answers in enumerate(prompts)]
    results = {name: np.stack([row[name] for row in rows])[None] for name in rows[0]}
    named = {"task": np.array(["x"]), "script": np.array([""]), "G": np.array([0]), "step": np.array([0])}
    return update_length_tables.stage(results | named | {"answers": np.array(len(prompts[0].drawn))}, "x")


def test_a_coin_is_the_regime_of_the_abstract():
    """One parameter, scores R - p: GRPO's update has the length sigma, Dr. GRPO's sigma^2, and so says the formula."""
    rng = np.random.default_rng(0)
    right = [rng.random(1024) < p for p in (0.3, 0.5, 0.7)]
    stage = stage_of(*(made_up(R, (R - 0.4)[:, None].astype(float)) for R in right))
    length = stage["length"]
    np.testing.assert_allclose(length[..., 0::2], length[..., 1::2], rtol=1e-9)
    np.testing.assert_allclose(stage["parts"], np.tile([0, 0, 1], (1, 3, 2, 1)), atol=1e-9)
    for G in GROUP_SIZES:
        assert max(e.value for e in errors(stage, G)) < 1e-9
        estimates = profile(update_length_tables.measured(stage, G), G)
        np.testing.assert_allclose([e.value for e in estimates], 2 * identity.sigma(KS[G], G), rtol=1e-9)
    assert update_length_tables.even_size(stage).value == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("signal", "noise"),
    [(2, (1, 3)), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0, (1, 1)), (2, (3, 1)), (1, (0.5, 4))))],
)
def test_lengths_and_predictions_are_those_of_the_closed_form(signal, noise):
    """Squared lengths of groups, and those predicted from the other answers, by class means and variances we chose."""
    rng = np.random.default_rng(1)
    stage = stage_of(*(noisy(rng, p, signal=signal, noise=noise) for p in (0.4, 0.5, 0.6) * 2))
    v_right, v_wrong = noise[0] ** 2, noise[1] ** 2
    np.testing.assert_allclose(stage["parts"][..., :2].mean(axis=(0, 1, 2)), [v_right, v_wrong], rtol=0.05)
    assert stage["parts"][..., 2].mean() == pytest.approx(signal**2, abs=0.15 + 0.1 * signal**2)
    for G in (4, 8, 64):
        truth = [identity.update_norm_squared(k, G, signal**2, v_right, v_wrong) for k in KS[G]]
        for lengths in (update_length_tables.measured(stage, G), update_length_tables.predicted(stage, G)):
            np.testing.assert_allclose((lengths**2).mean(axis=(0, 1)), truth, rtol=0.12)
        even = truth[KS[G].index(G // 2)]
        estimates = [e.value for e in profile(update_length_tables.measured(stage, G), G)]
        np.testing.assert_allclose(estimates, np.sqrt(np.array(truth) / even), rtol=0.06)
    assert update_length_tables.median(update_length_tables.lopsidedness(stage)).value == pytest.approx(
        v_wrong / v_right, rel=0.05
    )
    if signal:
        expected = 2 * (v_right + v_wrong) / signal**2
        assert update_length_tables.even_size(stage).value == pytest.approx(expected, rel=0.15)


def test_scores_over_their_lengths():
    """GRPO's loss averages over a completion's tokens: scores of answers twice as long count half."""
    right = np.arange(1024) % 2 == 0
    scores = np.random.default_rng(2).normal(size=(1024, 50))
    stage = stage_of(made_up(right, scores, lengths=np.where(right, 2.0, 1.0)))
    halved = stage_of(made_up(right, np.where(right[:, None], scores / 2, scores)))
    np.testing.assert_allclose(stage["squared"][:, :, :, MEAN], halved["squared"][:, :, :, EVERY_TOKEN])
    np.testing.assert_allclose(stage["parts"][:, :, MEAN], halved["parts"][:, :, EVERY_TOKEN])
    np.testing.assert_allclose(stage["length"][..., 0], halved["length"][..., 0])  # GRPO's
    assert not np.allclose(stage["length"][..., 2], halved["length"][..., 2])  # Dr. GRPO's has no 1 / |y|


def test_prediction_and_measurement_share_no_answer():
    """Garbage in the half that groups are formed of leaves the prediction alone; in the other half, the groups."""
    rng = np.random.default_rng(3)
    right, scores = rng.random(256) < 0.5, rng.normal(size=(256, 20))
    whole = stage_of(made_up(right, scores))
    for half, kept in ((slice(128, None), "parts"), (slice(128), "squared"), (slice(128), "length")):
        garbage = scores.copy()
        garbage[half] = 100
        changed = stage_of(made_up(right, garbage))
        np.testing.assert_array_equal(changed[kept], whole[kept])
        assert not np.array_equal(changed["squared" if kept == "parts" else "parts"], whole["parts"])
    flipped = np.where(np.arange(256) < 128, right, ~right)
    changed = stage_of(made_up(flipped, scores))
    np.testing.assert_array_equal(changed["p"], whole["p"])
    assert not np.array_equal(changed["drawn"], whole["drawn"])


def test_parts_by_hand():
    """Two right answers (2, 0) and (0, 0), two wrong ones (0, 3) and (0, 1), the last drawn twice in a row of five."""
    scores = np.array([[2.0, 0], [0, 0], [0, 3], [0, 1]])
    answers = made_up(np.array([True, True, False, False]), scores)
    drawn = np.array([0, 1, 2, 3, 3])
    v_right, v_wrong, signal = update_length.parts(answers, drawn, answers.inner[EVERY_TOKEN])
    assert (v_right, v_wrong) == pytest.approx((2.0, 4 / 3))  # deviations 1, 1 over 1; 4/3, 2/3, 2/3 over 2
    assert signal == pytest.approx(1 + 25 / 9 - 2 / 2 - (4 / 3) / 3)
    assert np.isnan(update_length.parts(answers, drawn[1:], answers.inner[EVERY_TOKEN])).all()


def test_a_prompt_without_enough_answers_of_a_kind_drops_out():
    right = np.arange(256) >= 250  # all in the half that groups are formed of
    stage = stage_of(made_up(right, np.random.default_rng(4).normal(size=(256, 5))))
    assert np.isnan(stage["parts"]).all()
    lengths = update_length_tables.measured(stage, 8)
    assert np.isfinite(lengths[0, 0]).tolist() == [k <= 6 for k in KS[8]]
    assert errors(stage, 8)[0].n == 0 and np.isnan(errors(stage, 8)[0].value)
    assert profile(lengths, 8)[0].n == 0


def test_groups_as_they_are_drawn_by_hand():
    """The second half holds groups of 4 with k = 0, 1, 2, 3, 4, over and over; k below 1 is no mixed group."""
    half = [R for k in range(5) for R in [1] * k + [0] * (4 - k)] * 16
    right = np.array([1, 0] * 160 + half[:320], dtype=bool)
    stage = stage_of(made_up(right, np.random.default_rng(5).normal(size=(640, 5))))
    assert [e.value for e in update_length_tables.frequencies(stage, 4)] == pytest.approx([0.2, 0, 0.6, 0, 0.2])
    assert stage["length"][0, 0, 0, 1] == pytest.approx(identity.sigma(np.arange(5), 4).mean())
    assert stage["length"][0, 0, 0, 3] == pytest.approx((identity.sigma(np.arange(5), 4) ** 2).mean())
    silent = update_length_tables.silent(stage, 4)
    assert silent["counted"].value == pytest.approx(0.4)
    assert silent["predicted"].value == pytest.approx(2 * comb(160, 4) / comb(320, 4))
    assert silent["difference"].value == pytest.approx(0.4 - 2 * comb(160, 4) / comb(320, 4))


def test_shares_of_the_update_by_hand():
    length = np.zeros((1, 3, len(GROUP_SIZES), 4))
    length[0, :, 1] = [[1, 0.1, 7, 0.01], [2, 0.4, 2, 0.16], [1, 0.3, 1, 0.09]]  # at G = 8
    stage = {"p": np.array([[0.05, 0.5, 0.95]]), "length": length}
    shares = update_length_tables.mass(stage, "grpo", 8)
    assert shares["|g|"].value == 0.5 and shares["sigma"].value == pytest.approx(0.5) and 0 in shares["difference"]
    shares = update_length_tables.mass(stage, "dr_grpo", 8)
    assert shares["|g|"].value == 0.8 and shares["sigma"].value == pytest.approx(10 / 26)
    assert shares["difference"].value == pytest.approx(0.8 - 10 / 26)
    assert shares["closed form"].value == pytest.approx(38 / 138)


def test_the_variance_without_a_baseline_by_hand():
    """Right answers have the scores (1, 1) and (1, -1), wrong ones (-1, 3) and (-1, -3), p = 1/2: grad p = (1/2, 0).
    Without a baseline half of all answers have |g|^2 = 2, with b = p one half has 2 / 4 and the other 10 / 4. The mean
    g of a pair is half the contrast if one is right, in half of all pairs: (2, 2) or (2, 4) by length, |g|^2 = 14 / 4
    on average, and g = 0 in the others; twice its variance counts for one answer."""
    stage = {"p": np.array([[0.5]]), "parts": np.array([[[[1.0, 9.0, 4.0]] * 2]])}
    estimates = update_length_tables.variance_without_baseline(stage, G=10**9)
    assert estimates.value == pytest.approx((1 - 0.25) / (1.5 - 0.25))
    estimates = update_length_tables.variance_without_baseline(stage, G=2)
    assert estimates.value == pytest.approx((1 - 0.25) / (2 * (14 / 8 - 0.25)))
    # p = 1/4, right (3, 1) and (3, -1), wrong (-1, 2) and (-1, -2): grad p = (3/4, 0), |s|^2 = 10 and 5
    stage = {"p": np.array([[0.25]]), "parts": np.array([[[[1.0, 4.0, 16.0]] * 2]])}
    estimates = update_length_tables.variance_without_baseline(stage, G=10**9)
    with_p = 0.25 * 0.75**2 * 10 + 0.75 * 0.25**2 * 5 - 0.75**2
    assert estimates.value == pytest.approx((0.25 * 10 - 0.75**2) / with_p)


# ---------------------------------------------------------------------- on the real models


@pytest.fixture(scope="module", params=["arithmetic", "expressions"])
def answers(request):
    task = update_length.load_task(request.param)
    policy, tokenizer = load_policy(update_length.base_model(task))
    problem = {"arithmetic": arithmetic.Problem("2+10+2", 14, 2), "expressions": expressions.Problem(55)}[request.param]
    policy = to_float64(policy)
    return policy, update_length.draw(policy, tokenizer, task, problem, 256, torch.Generator().manual_seed(0))


def test_scores_are_the_gradients_of_the_log_probabilities(answers):
    """Against the change of the log-probabilities when the parameters move a little."""
    policy, answers = answers
    assert np.bincount(answers.drawn).sum() == 256 and 0 < answers.right.sum() < len(answers.right)
    direction = torch.randn(answers.scores.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    here, sides = parameters_to_vector(policy.parameters()).detach(), []
    for sign in (1e-6, -1e-6):
        vector_to_parameters(here + sign * direction, policy.parameters())
        with torch.no_grad():
            sides.append(completion_logps(policy, answers.different, 1.0).sum(dim=1))
    vector_to_parameters(here, policy.parameters())
    torch.testing.assert_close((sides[0] - sides[1]) / 2e-6, answers.scores @ direction, rtol=1e-5, atol=1e-5)
    over_length = (answers.scores / answers.different.mask.sum(dim=1, keepdim=True)).numpy()
    for inner, scores in ((answers.inner[EVERY_TOKEN], answers.scores.numpy()), (answers.inner[MEAN], over_length)):
        np.testing.assert_allclose(inner, scores @ scores.T, rtol=1e-9, atol=1e-9)


def test_both_sides_of_the_identity_through_the_scripts_losses(answers, monkeypatch):
    for script in ("grpo", "dr_grpo"):
        assert update_length.identity_error(*answers, script) < 1e-11
    monkeypatch.setattr(identity, "sigma", lambda k, G: np.sqrt(k * (G - k) / G / (G - 1)))  # ddof 1
    for script in ("grpo", "dr_grpo"):
        assert update_length.identity_error(*answers, script) > 1e-2


@pytest.mark.slow
def test_a_small_run_measures_everything_and_nothing_twice(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(update_length, "TRAINED_AT", (8,))
    monkeypatch.setattr(update_length, "STEPS", (0, 1, 2))
    monkeypatch.setattr(update_length, "RESULTS", tmp_path / "results.npz")
    monkeypatch.setattr(grid, "in_parallel", one_by_one)
    monkeypatch.setattr(update_length.Config, "check", lambda config: None)
    config = replace(SMALL, output=str(tmp_path / "length"), publish=True)
    update_length.main(config)
    results = dict(np.load(update_length.RESULTS))
    stages = update_length_tables.stages_of(results)
    assert len(stages) == 2 * (1 + 2 * 2) and ("expressions", "dr_grpo", 8, 2) in stages
    assert np.nanmax(results["error"]) < 1e-4 and np.isfinite(results["error"]).any(axis=(1, 2)).all()
    first = capsys.readouterr().out
    run = update_length.runs_of(config)[1]
    kept = load_runs(tmp_path / "length/runs.json")[1]
    assert grid.plain(update_length.measure(run, tmp_path / "again")) == {"stages": kept["stages"]}  # from the start
    monkeypatch.setattr(update_length, "measure", lambda run, folder: pytest.fail("measured again"))
    update_length.main(config)
    assert capsys.readouterr().out == first


def test_no_two_measurements_share_their_draws():
    draws = [run.draws(step) for run in update_length.runs_of(update_length.Config()) for step in run.steps()]
    assert len(set(draws)) == len(draws) == 2 * 3 * (1 + 8 * 2)


def test_results_that_are_missing_are_one_line():
    with pytest.raises(UsageError, match="there is no nothing.npz"):
        update_length_tables.load(Path("nothing.npz"))


# ---------------------------------------------------------------------- the committed results


def test_the_committed_results_are_those_of_the_command():
    results, config = update_length_tables.load(), update_length.Config()
    runs = [(run.task, run.script, run.G, step) for run in update_length.runs_of(config) for step in run.steps()]
    assert set(update_length_tables.stages_of(results)) == set(runs) and len(results["step"]) == len(runs)
    assert results["right"].shape[1] == config.prompts and int(results["answers"]) == config.answers
    assert np.nanmax(results["error"]) < 1e-4 and update_length.RESULTS.stat().st_size < 2e6
