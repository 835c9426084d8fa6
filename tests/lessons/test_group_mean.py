"""When the mean of the others hurts: the theorem, and its measurement, against every group of small
policies."""

from itertools import product
from math import inf

import numpy as np
import pytest

from lessons import identity
from lessons.experiments import group_mean
from lessons.experiments.estimators import Completions
from lessons.experiments.shrinkage import shrunk


def policy(stretch: float) -> tuple:
    """Probabilities (5,), rewards and scores (5, 4) of a prompt with five answers, two of them
    right, whose features are stretched."""
    rng, R = np.random.default_rng(0), np.array([1.0, 1, 0, 0, 0])
    features = rng.normal(size=(5, 4)) * np.where(R, stretch, 1)[:, None]
    P = np.array([0.1, 0.2, 0.3, 0.25, 0.15])
    return P, R, features - P @ features


def over_all_groups(P, R, scores, G: int, kappa: float) -> float:
    """The variance of a group's update."""
    groups = np.array([*product(range(len(P)), repeat=G)])
    g = (shrunk(R[groups], kappa)[..., None] * scores[groups]).mean(axis=1)
    return P[groups].prod(axis=1) @ ((g - (P * R) @ scores) ** 2).sum(axis=1)


@pytest.mark.parametrize("G", [2, 3, 4])
@pytest.mark.parametrize("stretch", [0.1, 0.7, 1, 3])
def test_the_variance_and_its_minimum(G, stretch):
    P, R, scores = policy(stretch)
    squared, p = (scores**2).sum(axis=1), P @ R
    right, wrong = (P * R) @ squared / p, (P * (1 - R)) @ squared / (1 - p)
    known = wrong / right, (((P * R) @ scores / p) ** 2).sum() / right  # ratio, signal
    best = identity.best_kappa(p, G, *known)
    kappas = np.array([0, inf, 7, best, best + 0.01, best - 0.01])
    exact = np.array([over_all_groups(P, R, scores, G, kappa) for kappa in kappas])
    formula = [identity.shrunk_variance(p, G, kappa, *known) for kappa in kappas]
    np.testing.assert_allclose(formula, G * exact / (p * right), rtol=1e-10)
    assert exact[3] < min(exact[4:])
    assert (exact[0] > exact[1]) == (best > G - 1)  # the theorem


def test_ten_answers_one_right():
    """All of one probability. The mean of the others costs most in groups of two: G / (G - 1)."""
    P, R, scores = np.full(10, 0.1), np.eye(10)[0], np.eye(10) - 0.1
    for G, times in ((2, 2.0), (3, 1.44), (4, 1.26)):
        noise = [over_all_groups(P, R, scores, G, kappa) for kappa in (0, inf)]
        assert noise[0] / noise[1] == pytest.approx(times, abs=0.005)
    assert identity.best_kappa(0.1, 4, signal=1) == pytest.approx(10)  # the odds, and one


def test_dealt_groups_have_the_exact_variance():
    """In the mean over all blocks of four completions, dealt into groups of two."""
    P, R, scores = policy(2)
    kappas, mean = [inf, 0.0, 3.0], np.zeros(3)
    for block in map(list, product(range(5), repeat=4)):
        rng, inner = np.random.default_rng(0), scores[block] @ scores[block].T
        mean += P[block].prod() * group_mean.variances(R[block], inner, kappas, 2, rng)
    expected = [over_all_groups(P, R, scores, 2, kappa) for kappa in kappas]
    np.testing.assert_allclose(mean, expected, rtol=1e-10)


def test_prompts_are_taken_from_the_strata_in_turn():
    assert group_mean.choose(np.array([0.9, 0.8, 0.3, 0.95, 0.01]), 4) == [0, 2, 4, 1]


def test_a_prompt_and_its_cells(monkeypatch):
    """A quarter right, scores (2, 0), the others wrong, (0, 1): the best kappas are .75, -.375."""

    def fake(R, inner, kappas, G, rng):
        return 1 + np.exp(-np.array(kappas))

    monkeypatch.setattr(group_mean, "SIZES", (2, 4))
    monkeypatch.setattr(group_mean, "variances", fake)
    inner, right, rng = np.diag([4.0, 1]), np.array([True, False]), np.random.default_rng(0)
    few, many = (Completions(np.tile([0, 1, 1, 1], n), None, right, inner) for n in (32, 64))
    assert not group_mean.measure_prompt(few, rng)
    prompt = group_mean.measure_prompt(many, rng)
    values = [prompt[name] for name in ("p", "ratio", "signal")]
    assert values == pytest.approx([1 / 4, 1 / 4, 45 / 64])
    assert prompt["groups"][0] == pytest.approx([1, 2, 1 + np.exp(-0.75), 1, 1])
    cells = group_mean.cells([{"task": "", "step": 0, "of prompts": [prompt]}])
    signs = [[cell[rule] for rule in ("says", "exact", "equal")] for cell in cells]
    assert signs == [[False, True, True], [False, False, False]]
