"""Why do all-right groups pay? The arms of lessons/experiments/all_right.py, and its table.

Broken on purpose: a placebo with one sign, a projection of the wrong part, a step scaled by the
share of all-right groups, seeds paired by their order.
"""

from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from test_grid import with_stats

from algorithms import dr_grpo
from lessons.experiments import all_right
from lessons.experiments.all_right import HALF, ONE_SIGN, PLACEBO, PROJECTED, RLOO, SHORTENED, Run
from toy_env.tasks import TASKS


@pytest.mark.parametrize(("arm", "mean", "product"), [(PLACEBO, 0, 0), (ONE_SIGN, 0, 0.25)])
def test_a_placebo_has_the_square_of_a_half_and_no_mean(arm, mean, product):
    """Of groups of two, all right and mixed in turn; completions agree by chance, or always."""
    R, rng = np.tile([[1.0, 1], [1, 0]], (2000, 1)), np.random.default_rng(0)
    mixed, right = np.moveaxis(all_right.in_two_parts(arm, R, rng), 2, 0)
    assert (mixed == 2000 * [[0, 0], [1, -1]]).all() and not right[1::2].any()
    assert (right[::2] ** 2 == 0.25).all() and abs(right.mean(axis=0)).max() < 0.02
    assert right[::2].prod(axis=1).mean() == pytest.approx(product, abs=0.02)


def test_the_projected_part_is_orthogonal_to_the_mixed_groups():
    mixed, right, none = torch.tensor([[2.0, 0], [1, 3], [0, 0]])
    expected = [(HALF, mixed, [3, 3]), (PROJECTED, mixed, [2, 3]), (PROJECTED, none, [1, 3])]
    for arm, other, whole in expected:
        assert all_right.whole(arm, other, right).tolist() == whole


def test_a_step_is_shortened_to_the_share_of_mixed_groups(monkeypatch):
    """One group of four, after the warm-up."""
    made, ones = MagicMock(), torch.ones(1)

    def learn(script, settings, policy, advantages, policy_loss, update):
        for _ in range(6):
            rewards = torch.tensor([[1.0, 1], [1, 1], [1, 0], [0, 0]])
            advantages(policy, SimpleNamespace(entropies=ones, mask=ones), rewards)
            update(policy, None, dr_grpo.Config(), 11)
        return {"end": 0.0, "training": 0.0}

    monkeypatch.setattr(all_right, "learn", learn)
    monkeypatch.setattr(all_right, "step_of_length", made)
    for arm, length in ((RLOO, 0.4), (SHORTENED, 0.1)):
        all_right.train(Run("expressions", arm, True, 0.4, 0))
        assert made.call_args.args[0] == pytest.approx(length)


@with_stats
def test_a_table_of_the_runs_that_are_there():
    """Seeds are paired; one that lacks a task is left out."""
    ends = {(HALF, 1): 0.7, (HALF, 2): 0.9, (PLACEBO, 0): 0.2, (PLACEBO, 1): 0.5, (PLACEBO, 2): 0.6}
    ends[RLOO, 2] = 0.5
    settings = {"scaled": True, "steps": 60, "training": 0}
    runs = [
        settings | {"task": task, "arm": arm, "seed": seed, "end": end}
        for task in TASKS
        for (arm, seed), end in ends.items()
    ]
    table, (row, column) = all_right.compared(runs[:-1]), all_right.PRIMARY
    assert table[row][column]["gap"]["difference"] == pytest.approx((0.2 + 0.3) / 2)
    assert [*table[HALF]] == ["arithmetic"] and not table[ONE_SIGN]
