"""The measurement behind lesson 13: on made-up scores of which everything is known, and on the real model."""

import json
import random
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from algorithms import dapo, dr_grpo, grpo
from lessons import identity
from lessons.experiments import live_measure, live_run
from lessons.experiments.live_measure import GROUP_SIZES, KS, SUM, Pool
from lessons.float64 import to_float64
from toy_env import UsageError
from toy_env.arithmetic import Problem
from toy_env.model import load_policy
from toy_env.rollout import completion_logps
from toy_env.run import Run

SMALL = live_run.Config(seeds=1, prompts=4, answers=128, measure_at=[0, 1], device="cpu", processes=2)


def made_up_pool(right: np.ndarray, scores: np.ndarray, lengths=None) -> Pool:
    """A pool in which every answer is a different one, with these scores (n, d)."""
    lengths = np.ones(len(right)) if lengths is None else lengths
    inner = scores @ scores.T
    return Pool(
        np.arange(len(right)),
        right,
        lengths,
        None,
        torch.from_numpy(scores),
        np.stack([inner, inner / np.outer(lengths, lengths)]),
    )


def measured(pools: list[Pool], monkeypatch) -> dict:
    """What `live_run.at` would give for these pools as the prompts of one stage."""
    monkeypatch.setattr(live_measure, "slope", lambda policy, pool, weights: (np.nan, np.nan))
    rows = [live_measure.measure_prompt(None, pool, np.random.default_rng(i)) for i, pool in enumerate(pools)]
    prompts = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    half = len(pools[0].answers) // 2
    return prompts | {"p": prompts["right"][:, 0] / half, "n": np.array(half)}


def noisy_pools(rng, ps, n=1024, d=600, signal=1.0, noise=(1.0, 1.0)) -> list[Pool]:
    """Prompts with success probability p, class means signal * grad / (p q) apart, and class variances noise^2."""
    pools = []
    for p in ps:
        right = rng.random(n) < p
        direction = rng.normal(size=d) / np.sqrt(d)
        means = np.outer(np.where(right, 1 - p, -p), signal * direction)  # so that E[s] = 0
        scale = np.where(right, *noise)[:, None] / np.sqrt(d)
        pools.append(made_up_pool(right, means + scale * rng.normal(size=(n, d))))
    return pools


def test_a_coin_is_the_regime_of_the_abstract(monkeypatch):
    """One parameter, scores R - p: the length of GRPO's update is sigma, of Dr. GRPO's sigma^2, to the last digit."""
    rng = np.random.default_rng(0)
    pools = []
    for p in (0.3, 0.5, 0.7):
        right = rng.random(1024) < p
        pools.append(made_up_pool(right, (right - p)[:, None].astype(float)))
    prompts = measured(pools, monkeypatch)
    np.testing.assert_allclose(prompts["norm"][..., 0], prompts["sigma"][..., 0], rtol=1e-9)
    np.testing.assert_allclose(prompts["norm"][..., 2], prompts["sigma"][..., 1], rtol=1e-9)
    for G in GROUP_SIZES[1:]:
        assert live_run.exponent(prompts, G).value == pytest.approx(1, abs=1e-9)
        assert live_run.signal_share(prompts, G).value == pytest.approx(1, abs=1e-9)
    for _ in range(2):
        across = live_run.exponents_across(prompts)
        assert [across["between"].value, across["between"].low, across["between"].high] == pytest.approx([1, 1, 1])
        assert across["between - within"].value == pytest.approx(0, abs=1e-9)
        prompts["by_k"][:, :, 2] = 0  # no group with k = 2
    np.testing.assert_allclose(prompts["cosine"], 1, atol=1e-9)
    assert live_run.half_size(prompts).value == pytest.approx(0, abs=1e-9)


def test_pure_noise_is_the_other_regime(monkeypatch):
    """Class means equal, many dimensions: every mixed group moves the model equally far."""
    prompts = measured(noisy_pools(np.random.default_rng(1), [0.3, 0.5, 0.6], signal=0.0), monkeypatch)
    for G in (4, 8, 16):
        assert live_run.exponent(prompts, G).value == pytest.approx(0, abs=0.06)
        assert live_run.signal_share(prompts, G).value == pytest.approx(0, abs=0.02)
        # the mean update has a length, and no component along the other half's gradient, which is noise as well
        along = prompts["along"][:, GROUP_SIZES.index(G), 0] / prompts["gradient_squared"][:, 1:].mean(axis=1)
        assert np.abs(along).max() < 0.3


@pytest.mark.slow
def test_between_the_regimes(monkeypatch):
    """|m+ - m-|^2 = 4, v+ = 1, v- = 3: equal shares at G = 2 (1 + 3) / 4 = 2; E|g|^2 and E[g] as in closed form."""
    ps = [0.2, 0.35, 0.5, 0.5, 0.65, 0.8] * 2
    pools = noisy_pools(np.random.default_rng(2), ps, signal=2.0, noise=(1.0, np.sqrt(3)))
    prompts = measured(pools, monkeypatch)
    assert live_run.half_size(prompts).value == pytest.approx(2, rel=0.1)
    np.testing.assert_allclose(np.nanmean(prompts["variances"][:, SUM], axis=0), [1, 3], rtol=0.1)
    for G in (4, 8, 16):
        j = GROUP_SIZES.index(G)
        for k, rms in zip(KS[G], np.sqrt((prompts["same_prompt"][:, j, SUM] ** 2).mean(axis=0))):
            assert rms**2 == pytest.approx(identity.update_norm_squared(k, G, 4, 1, 3), rel=0.1)
        for side, half in (("few right", np.array(KS[G]) <= G / 2), ("few wrong", np.array(KS[G]) >= G / 2)):
            ks = np.array(KS[G])[half]
            lengths = [identity.update_norm_squared(k, G, 4, 1, 3) ** 0.5 for k in ks]
            expected = np.polyfit(np.log(identity.sigma(ks, G)), np.log(lengths), 1)[0]
            assert live_run.exponent(prompts, G, SUM, side).value == pytest.approx(expected, abs=0.06)
        for script in ("grpo", "dr_grpo"):
            closed = live_run.weights(prompts, G, script)["measured / closed form"]
            assert closed.low < 1 < closed.high and closed.value == pytest.approx(1, abs=0.1)
        silent = live_run.silent_shares(prompts, G)
        assert silent["difference"].low < 0 < silent["difference"].high
        assert silent["counted"].value == pytest.approx(np.mean([p**G + (1 - p) ** G for p in ps]), abs=0.03)
        assert silent["plug-in, the group itself"].value > silent["counted"].value
    np.testing.assert_allclose(prompts["gradient_squared"][:, 0], [4 * (p * (1 - p)) ** 2 for p in ps], rtol=0.6)


def test_nothing_that_is_compared_shares_answers(monkeypatch):
    """Garbage in the half that makes the groups leaves p alone; in the other half, the groups."""
    rng = np.random.default_rng(3)
    right, scores = rng.random(256) < 0.5, rng.normal(size=(256, 20))
    whole = measured([made_up_pool(right, scores)], monkeypatch)
    first, second = scores.copy(), scores.copy()
    first[128:], second[:128] = 100, 100
    changed = measured([made_up_pool(right, first)], monkeypatch)
    np.testing.assert_array_equal(changed["gradient_squared"][:, 1], whole["gradient_squared"][:, 1])
    changed = measured([made_up_pool(right, second)], monkeypatch)
    np.testing.assert_array_equal(changed["norm"], whole["norm"])
    np.testing.assert_array_equal(changed["silent"], whole["silent"])


def test_shares_of_the_update_by_hand():
    prompts = {
        "p": np.array([0.05, 0.5, 0.95]),
        "norm": np.zeros((3, 6, 3)) + np.array([1.0, 2.0, 1.0])[:, None, None],
        "sigma": np.zeros((3, 6, 2)) + np.array([[0.1, 0.01], [0.4, 0.16], [0.3, 0.09]])[:, None],
    }
    prompts["norm"][0, 0] = 7  # at G = 2
    shares = live_run.extreme_mass(prompts, 8, "grpo")
    assert shares["|g|"].value == 0.5 and shares["sigma"].value == pytest.approx(0.5)
    assert shares["|g|"].low == 0 and shares["|g|"].high == 1  # three prompts say little
    assert live_run.extreme_mass(prompts, 2, "grpo")["|g|"].value == pytest.approx(0.8)
    shares = live_run.extreme_mass(prompts, 8, "dr_grpo")
    assert shares["sigma"].value == pytest.approx(10 / 26) and shares["gap"].value == pytest.approx(0.5 - 10 / 26)
    assert shares["closed form"].value == pytest.approx(38 / 138)


def lengths_by_k(squared: dict[int, np.ndarray]) -> np.ndarray:
    """`same_prompt` from |g|^2 at each k, (prompts, ks) for some group sizes."""
    n = len(next(iter(squared.values())))
    rms = np.full((n, len(GROUP_SIZES), 2, live_measure.MOST_KS), np.nan)
    for G, values in squared.items():
        rms[:, GROUP_SIZES.index(G), SUM, : len(KS[G])] = np.sqrt(values)
    return rms


def test_exponents_by_hand_and_prompts_that_drop_out():
    """|g|^2 at k = 1, 2, 3 of 4, where sigma^2 is 3/16, 4/16, 3/16: sigma^2b up to a factor of the prompt."""
    b = np.array([1.5, 0.5, -0.5])
    four = 7 * np.array([3, 4, 3]) ** b[:, None] * np.array([1.0, 10.0, 100.0])[:, None]
    sigma = identity.sigma(np.array(KS[16]), 16)
    sixteen = sigma ** (2 * np.array([[1.25], [0.25], [9.0]]))
    sixteen[2, 3:] = np.nan  # the third prompt has too few right answers for half of 16, or more
    prompts = {"same_prompt": lengths_by_k({4: four, 16: sixteen}), "p": np.zeros(3)}
    for side in ("few right", "few wrong", "both"):
        assert live_run.exponent(prompts, 4, SUM, side).value == pytest.approx(0.5)
        assert live_run.exponent(prompts, 16, SUM, side).value == pytest.approx(0.75)
        change = live_run.exponent_change(prompts, 4, 16, side)  # of the two that are there at both
        assert [change.value, change.low, change.high] == pytest.approx([-0.25] * 3)
    lone = live_run.lone_failure(prompts, 4)  # the geometric mean of the lengths is that of sigma's power
    assert lone.value == pytest.approx((3 / 4) ** 0.25) and lone.low < lone.value < lone.high
    assert live_run.complete(prompts, 4) == 3 and live_run.complete(prompts, 16) == 2
    prompts["same_prompt"][1, GROUP_SIZES.index(16), SUM, 0] = np.nan  # one of 16: of the side with few right only
    assert [live_run.complete(prompts, 16, side) for side in ("few right", "few wrong", "both")] == [1, 2, 1]
    assert live_run.exponent(prompts, 16, SUM, "few right").value == pytest.approx(1.25)
    assert live_run.exponent(prompts, 16, SUM, "few wrong").value == pytest.approx(0.75)
    four[0] = [1, 4, 4]  # log 4 / log (4 / 3) on one side, 0 on the other
    found = live_run.slopes(four[:1], 4, "few right"), live_run.slopes(four[:1], 4, "few wrong")
    np.testing.assert_allclose(found, [[np.log(4) / np.log(4 / 3)], [0]], atol=1e-12)
    lone = live_run.lone_failure({"same_prompt": lengths_by_k({4: four[:1]})}, 4)
    assert [lone.value, lone.low, lone.high] == pytest.approx([1, 1, 1])  # a lone success is half as long


def test_noise_alone_by_hand():
    """At G = 4 the noise is 3 v+ + v-, 2 v+ + 2 v-, v+ + 3 v-, over 16: no slope for equal variances, and with v+ = 0
    the square root of k; with v- = 0, of G - k."""
    variances = np.zeros((1, 2, 2))
    prompts = {"same_prompt": lengths_by_k({4: np.ones((1, 3))}), "contrast_squared": np.ones((1, 2))}
    prompts["variances"] = variances
    half = np.log(4 / 3)  # of log sigma^2, from k = 1 or 3 to 2
    for (v_right, v_wrong), expected in (
        ((2, 2), (0, 0)),
        ((0, 5), (np.log(2) / half, -np.log(1.5) / half)),
        ((5, 0), (-np.log(1.5) / half, np.log(2) / half)),
    ):
        variances[:] = v_right, v_wrong
        found = [live_run.noise_exponent(prompts, 4, side).value for side in ("few right", "few wrong")]
        np.testing.assert_allclose(found, expected, atol=1e-12)
    prompts["same_prompt"] = prompts["same_prompt"] * np.nan
    assert np.isnan(live_run.noise_exponent(prompts, 4).value)  # a prompt that is not measured is not counted


@pytest.mark.slow
def test_signal_and_noise_add_up_to_what_groups_show(monkeypatch):
    """Groups formed of noise of which nothing but the variances is known, and with a signal of length 2."""
    rng = np.random.default_rng(4)
    for signal in (0.0, 2.0):
        prompts = measured(noisy_pools(rng, [0.4, 0.5, 0.6] * 3, signal=signal, noise=(1.0, 3.0)), monkeypatch)
        for G in (4, 8):
            found = live_run.profile(prompts, G)
            even = signal**2 / 4 + (1 + 9) / 2 / G  # |g|^2 of the even split: v+ = 1, v- = 9
            for i, k in enumerate(KS[G]):
                expected = k * (G - k) / G**2 * signal**2 / even, (G - k + 9 * k) / G**2 / even
                for name, value in zip(("signal", "noise", "measured"), (*expected, sum(expected))):
                    assert found[name][i].value == pytest.approx(value, abs=0.1)
            for side in ("few right", "few wrong"):
                both = live_run.exponent(prompts, G, SUM, side), live_run.noise_exponent(prompts, G, side)
                gap = abs(both[0].value - both[1].value)
                # v- = 9 v+ and G = 8: noise alone has b near 1 where few are right, as the signal has
                alike = signal == 0 or (G == 8 and side == "few right")
                assert gap < 0.12 if alike else gap > 0.12


def test_the_variance_without_a_baseline_by_hand():
    """Right answers have the scores (1, 1) and (1, -1), wrong ones (-1, 3) and (-1, -3), p = 1/2: grad p = (1/2, 0).
    Without a baseline half of all answers have |g|^2 = 2, with b = p one half has 2 / 4 and the other 10 / 4. The mean
    g of a pair is half the contrast if one is right, in half of all pairs: (2, 2) or (2, 4) by length, |g|^2 = 14 / 4
    on average, and g = 0 in the others; twice its variance counts for one answer."""
    prompts = {"right": np.array([[2, 2]]), "n": np.array(4), "variances": np.array([[[1.0, 9.0]]])}
    prompts["gradient_squared"] = np.array([[0.25, 0.0, 0.0]])
    assert live_run.variance_without_baseline(prompts, G=10**9).value == pytest.approx((1 - 0.25) / (1.5 - 0.25))
    assert live_run.variance_without_baseline(prompts, G=2).value == pytest.approx((1 - 0.25) / (2 * (14 / 8 - 0.25)))


def test_which_groups_there_are_by_hand():
    by_k = np.zeros((2, 2, 9))
    by_k[0, 0] = [50, 1, 2, 3, 4, 5, 6, 9, 20]
    by_k[1, 0] = [0, 0, 0, 0, 6, 0, 0, 4, 90]
    shares = live_run.mixed_shares({"by_k": by_k})
    assert [shares[name].value for name in ("few right", "even", "few wrong")] == [6 / 40, 10 / 40, 24 / 40]
    assert shares["few right"].low == 0 and shares["few right"].high == 6 / 30


def test_exponents_between_prompts_by_hand():
    """One prompt's groups all have k = 1 and |g| = 2, another's k = 4 and |g| = 6; within prompts b is 1."""
    by_k = np.zeros((40, 2, 9))
    by_k[:20, :, 1], by_k[20:, :, 4] = [10, 40], [5, 180]
    within = np.tile(identity.sigma(np.array(KS[8]), 8) ** 2, (40, 1))
    prompts = {"by_k": by_k, "same_prompt": lengths_by_k({8: within})}
    expected = np.log(3) / np.log(4 / 7**0.5)
    found = live_run.exponents_across(prompts)
    for name, value in (("between", expected), ("between - within", expected - 1)):
        assert [found[name].value, found[name].low, found[name].high] == pytest.approx([value] * 3)
    by_k[0, 1, 1] = 400  # one prompt with long updates: now it matters who is drawn
    found = live_run.exponents_across(prompts)["between"]
    assert found.value == pytest.approx(np.log(6 / np.sqrt(5.8)) / np.log(4 / 7**0.5))
    assert found.low < found.value < expected <= found.high + 1e-9


def test_all_right_share_is_a_share_of_subsets():
    from itertools import combinations

    for c in range(7):
        answers = [1] * c + [0] * (6 - c)
        share = np.mean([all(subset) for subset in combinations(answers, 3)])
        assert live_run.all_right_share(np.array([c]), 6, 3)[0] == pytest.approx(share)


def test_intervals_hold_the_mean_as_often_as_they_say():
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(200):
        estimate = live_run.ratio(rng.exponential(size=60), rng.exponential(size=60))
        inside.append(estimate.low < 1 < estimate.high)
    assert 0.88 < np.mean(inside) <= 0.99


def test_four_digits_are_kept():
    values = np.array([1 / 3, -1e-13, 512.0, np.nan, 0.0])
    kept = live_run.shorten(values)
    np.testing.assert_allclose(kept[:3], values[:3], rtol=2e-4)
    assert kept[2] == 512 and np.isnan(kept[3]) and kept[4] == 0 and kept.dtype == np.float32


# ---------------------------------------------------------------------- on the real model


@pytest.fixture(scope="module")
def base():
    policy, tokenizer = load_policy("base")
    return to_float64(policy), tokenizer


@pytest.fixture(scope="module")
def pool(base):
    return live_measure.draw_pool(
        *base, Problem("2+10+2", answer=14, level=2), 256, 56, torch.Generator().manual_seed(0)
    )


def test_scores_are_the_gradients_of_the_log_probabilities(base, pool):
    """Against the change of the log-probabilities when the parameters move a little."""
    policy, _ = base
    assert len(pool.right) < 80 and np.bincount(pool.answers).sum() == 256
    direction = torch.randn(pool.scores.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    here = torch.nn.utils.parameters_to_vector(policy.parameters()).detach()
    sides = []
    for sign in (1e-6, -1e-6):
        with live_measure.parameters_of(policy, here + sign * direction), torch.no_grad():
            sides.append(completion_logps(policy, pool.different, 1.0).sum(dim=1))
    torch.testing.assert_close((sides[0] - sides[1]) / 2e-6, pool.scores @ direction, rtol=1e-5, atol=1e-5)
    assert torch.equal(torch.nn.utils.parameters_to_vector(policy.parameters()), here)  # put back


def test_p_grows_along_its_estimated_gradient_as_fast_as_it_says(base, pool):
    right = pool.right[pool.answers]
    weights = np.bincount(pool.answers, right - right.mean(), len(pool.right)) / (len(right) - 1)
    found, seen = live_measure.slope(base[0], pool, weights)
    expected = np.sqrt(weights @ pool.inner[SUM] @ weights)
    assert 0.9 < seen <= 1 and found == pytest.approx(expected, rel=0.25)  # the estimate has the noise of 256 answers


def test_both_sides_of_the_identity_and_a_wrong_one(base, pool, monkeypatch):
    errors = live_measure.identity_errors(base[0], [pool])
    assert np.nanmax(errors) < 1e-11 and np.isfinite(errors).all()
    monkeypatch.setattr(identity, "sigma", lambda k, G: np.sqrt(k * (G - k) / G / (G - 1)))  # ddof 1
    assert np.nanmin(live_measure.identity_errors(base[0], [pool])) > 1e-3


def test_shares_of_tokens_against_their_own_gradients(base, pool):
    """Each token's term of the update along the update, from one backward pass a token."""
    policy, _ = base
    rows = torch.tensor([0, 1, 2, 3, 4])
    group, A = pool.different[rows], torch.tensor([1.5, -0.5, -1.0, 0.5, -0.5])
    shares = live_measure.token_shares(policy, "dr_grpo", dr_grpo.Config(), group, A)
    total = torch.zeros(pool.scores.shape[1], dtype=torch.float64)
    terms = {}
    for i, row in enumerate(rows.tolist()):
        for t in range(int(group.mask[i].sum())):
            logps = completion_logps(policy, pool.different[torch.tensor([row])], 1.0)
            gradient = torch.autograd.grad(logps[0, t], list(policy.parameters()))
            terms[i, t] = A[i] * torch.cat([part.flatten() for part in gradient])
            total += terms[i, t]
    for (i, t), term in terms.items():
        assert shares[i, t].item() == pytest.approx((term @ total / total.square().sum()).item(), abs=1e-6)
    assert shares.sum().item() == pytest.approx(1, abs=1e-6) and (shares[~group.mask] == 0).all()


def test_what_the_clip_stops_by_hand():
    """A > 0 above the range, A < 0 below it; DAPO's range reaches higher; nothing off the mask."""
    ratio = torch.tensor([[0.7, 1.0, 1.25, 1.5]] * 2)
    rollout = SimpleNamespace(logps=torch.zeros(2, 4), mask=torch.tensor([[True] * 4, [True, True, True, False]]))
    A = torch.tensor([1.0, -1.0])
    found = live_measure.clipped("grpo", grpo.Config(), ratio.log(), rollout, A)
    assert found.tolist() == [[False, False, True, True], [True, False, False, False]]
    found = live_measure.clipped("dapo", dapo.Config(), ratio.log(), rollout, A)
    assert found.tolist() == [[False, False, False, True], [True, False, False, False]]


def test_places_of_tokens_by_hand(base):
    policy, tokenizer = base
    rows = [f"{text}\n" for text in ("1+2=3;#3", "#14", "12")]
    ids = [tokenizer(text[:-1], add_special_tokens=False).input_ids + [tokenizer.eos_token_id] for text in rows]
    width = max(map(len, ids))
    mask = torch.tensor([[t < len(row) for t in range(width)] for row in ids])
    padded = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in ids])
    group = SimpleNamespace(mask=mask, completion_ids=padded)
    assert [row[: len(i)] for row, i in zip(live_measure.places(tokenizer, group).tolist(), ids)] == [
        [0, 1, 1, 1, 1, 1, 3, 2, 3],
        [0, 2, 2, 3],
        [0, 1, 3],
    ]
    assert live_measure.places(tokenizer, group)[1, 4:].unique().tolist() == [-1]


def test_effective_number_of_answers():
    right = np.array([True, True, False, False, False])
    pool = made_up_pool(right, np.zeros((5, 1)))
    assert live_measure.effective_number(pool, True) == pytest.approx(2)
    pool.answers = np.array([0] * 30 + [1] * 10 + [2] * 100)
    assert live_measure.effective_number(pool, True) == pytest.approx(4 / 3**0.75)  # exp of the entropy of 3/4 and 1/4
    assert live_measure.effective_number(pool, False) == pytest.approx(1)


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    config = replace(SMALL, output=str(tmp_path_factory.mktemp("live")))
    live_run.run_all(config)
    return config, live_run.collect(config)


@pytest.mark.slow
def test_a_small_run_measures_everything(small_run):
    config, results = small_run
    assert results["script"].tolist() == ["", "grpo", "dr_grpo", "dapo"] and results["step"].tolist() == [0, 1, 1, 1]
    assert np.nanmax(results["error_float32"]) < 1e-4 and np.nanmax(results["error_float64"]) < 1e-11
    assert live_run.table(results).count("\n") > 6
    # before the first update of a batch all ratios are 1: the loss without KL is the identity, and nothing is clipped
    for first in (results["minibatch"][1:, 0, :2], np.moveaxis(results["group"], 3, 2)[1:, 0, :, :2]):
        found = np.isfinite(first[..., 0])
        assert found.any()
        np.testing.assert_allclose(first[..., 0][found], 1, atol=1e-3)
        assert first[..., 1][found].max() < 1e-3
    assert (results["clipped"][1:, 0] == 0).all() and (results["clipped"][1:, -1] > 0).all()
    assert np.nanmin(results["turned"][1:, 0]) > 0.999 and np.nanmin(results["turned"][1:, 3]) < 0.9999
    assert np.nanmax(np.abs(results["part"][1:])) < 0.999
    np.testing.assert_allclose(results["places"][1:, :2].sum(axis=-1), 1, atol=1e-3)
    most, stopped, tokens = np.moveaxis(results["carried"][1:], -1, 0)
    assert np.nanmin(most) > 0.05 and np.nanmax(tokens) < 1
    for tokens in results["tokens"][1:]:
        view = json.loads(str(tokens))
        assert sum(token["share"] for answer in view["answers"] for token in answer) == pytest.approx(1, abs=1e-3)
        assert view["answers"][0][-1]["token"] == "EOS" and len(view["advantages"]) == 8


@pytest.mark.slow
def test_the_same_command_gives_the_same_numbers_and_does_nothing_twice(small_run, tmp_path):
    config, _ = small_run
    stage = live_run.stages(config)[1]
    live_run.measure(stage, replace(config, output=str(tmp_path)))
    with np.load(stage.path(tmp_path)) as one, np.load(stage.path(live_run.Path(config.output))) as other:
        for name in other:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    paths = [stage.path(live_run.Path(config.output)) for stage in live_run.stages(config)]
    stamps = [path.stat().st_mtime_ns for path in paths]
    live_run.run_all(config)
    assert [path.stat().st_mtime_ns for path in paths] == stamps


@pytest.mark.parametrize("script", ["grpo", "dr_grpo", "dapo"])
def test_the_batch_taken_apart_is_the_batch_that_the_script_would_train_on(script, tmp_path, monkeypatch):
    """The first batch and its advantages, as the script shows them to the self-check."""
    module, seen = import_module(f"algorithms.{script}"), {}

    def look(self, minibatch, logps, advantages):
        seen.update(texts=minibatch.texts, advantages=advantages)
        raise StopIteration

    monkeypatch.setattr(Run, "self_check", look)
    monkeypatch.setattr(Run, "minibatches", lambda self, rows, *_: [torch.arange(rows)])
    config = module.Config(steps=1, eval_problems=1, eval_every=0, device="cpu", run_dir=str(tmp_path / "run"))
    with pytest.raises(StopIteration):
        module.train(config)
    draws = random.Random("0/1")  # a run's seed and step
    generator = torch.Generator().manual_seed(draws.getrandbits(63))
    rollout, correct, advantages = live_measure.next_batch(*load_policy("base"), script, config, draws, generator)
    assert rollout.texts == seen["texts"] and torch.equal(advantages, seen["advantages"])
    assert len(correct) == 32 and (script != "dapo" or ((correct.sum(dim=1) % 8) > 0).all())


@pytest.mark.slow
def test_measurements_with_other_settings_are_not_mixed(small_run):
    config, _ = small_run
    with pytest.raises(UsageError, match="holds measurements with answers 128, not 256; choose another --output"):
        live_run.run_all(replace(config, answers=256))


def test_no_two_stages_share_their_draws():
    stages = live_run.stages(live_run.Config())
    assert len({stage.draws() for stage in stages}) == len(stages) == 39


def test_bad_settings_get_one_line():
    for change, message in (
        ({"prompts": 6}, "give a multiple of 4"),
        ({"answers": 64}, "--answers must be at least 128"),
        ({"quick": True, "publish": True}, "too small to publish"),
        ({"device": "mps"}, "mps has no double precision"),
    ):
        with pytest.raises(UsageError, match=message):
            live_run.main(replace(live_run.Config(), **change))
    with pytest.raises(UsageError, match="there is no nothing.npz"):
        live_run.load(live_run.Path("nothing.npz"))


@pytest.mark.slow
def test_a_step_done_by_hand_is_the_step_of_the_script(small_run, tmp_path):
    """`later_updates` makes the script's optimizer step from a gradient at hand: the same step as the script's."""
    policy, _ = load_policy("base")
    vector = torch.nn.utils.parameters_to_vector(policy.parameters()).detach()
    gradient = torch.randn(len(vector), generator=torch.Generator().manual_seed(0))
    moved = []
    for by_hand in (True, False):
        policy, _ = load_policy("base")
        optimizer = torch.optim.AdamW(policy.parameters(), lr=grpo.Config().learning_rate, weight_decay=0.0, fused=True)
        if by_hand:
            live_measure.update(policy, optimizer, gradient, SimpleNamespace(max_grad_norm=1.0))
        else:
            (torch.nn.utils.parameters_to_vector(policy.parameters()) @ -gradient).backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
        moved.append(torch.nn.utils.parameters_to_vector(policy.parameters()).detach())
    torch.testing.assert_close(*moved)
    assert not torch.equal(moved[0], vector)


# ---------------------------------------------------------------------- the committed results


def test_the_committed_results_are_those_of_the_command():
    results, config = live_run.load(), live_run.Config()
    made_with = json.loads(str(results["config"]))
    assert made_with == json.loads(json.dumps({name: getattr(config, name) for name in made_with}))
    assert len(results["step"]) == len(live_run.stages(config))
    assert np.nanmax(results["error_float32"]) < 1e-4 and np.nanmax(results["error_float64"]) < 1e-11
