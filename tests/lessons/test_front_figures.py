"""The README's figures draw what the scripts compute and what was measured."""

import pytest
import torch

from algorithms import dapo, dr_grpo, grpo
from lessons.experiments import compare_tables, front_figures


def drawn(figure, label: str) -> list[tuple[float, float]]:
    """The points with this label."""
    lines = [line for line in figure.axes[0].lines if line.get_label() == label]
    return [point for line in lines for point in zip(*line.get_data())]


@pytest.mark.parametrize(
    ("name", "script"), [("GRPO", grpo), ("Dr. GRPO", dr_grpo), ("DAPO", dapo)]
)
def test_the_push_of_a_group_is_that_of_the_script(name, script):
    """Its height is the weight that the script's advantages give to the mean score of the right
    completions. DAPO keeps no silent group."""
    points = drawn(front_figures.push(), name)
    assert [k for k, _ in points] == list(range(1, 8) if script is dapo else range(9))
    for k, height in points:
        rewards = torch.tensor([[1.0] * k + [0.0] * (8 - k)])
        advantages = script.compute_advantages(rewards=rewards)
        assert height == pytest.approx((rewards * advantages).mean().item())


def test_the_scores_are_the_committed_ones():
    results = compare_tables.load()
    figure = front_figures.scores(results)
    for arm in compare_tables.LADDER:
        numbers = [results[name]["arms"][arm]["at_budget"] for name in ("shared", "no_kl")]
        expected = {100 * x for of_arm in numbers for x in (of_arm["mean"], *of_arm["interval"])}
        assert {x for x, _ in drawn(figure, arm)} == expected
