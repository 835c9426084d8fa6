"""The sigma of the batch, the ratio of GSPO and the weight of CISPO by hand.

Everything that the side rungs share with the ladder is in test_group_methods.py.
"""

import pytest
import torch
from test_group_methods import loss_and_gradient

from algorithms import batch_sigma, cispo, dr_grpo, gspo


def test_sigma_of_the_batch_by_hand():
    """Groups of 1, 2 and 4 right of 4: the squares of R - mean add up to 3/4 + 1 + 0, so the sigma
    of 12 is the root of 7/48."""
    rewards = torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 1], [1, 1, 1, 1]]).double()
    sigma = (7 / 48) ** 0.5
    expected = torch.tensor([[0.75, -0.25, -0.25, -0.25], [-0.5, 0.5, -0.5, 0.5], [0] * 4]) / sigma
    ours = batch_sigma.compute_advantages(rewards=rewards)
    torch.testing.assert_close(ours, expected.double(), rtol=1e-6, atol=0)
    rare = torch.zeros(64, 64)
    rare[0, 0] = 1  # far above the floor
    centred = dr_grpo.compute_advantages(rewards=rare)
    ratio = batch_sigma.compute_advantages(rewards=rare)[0] / centred[0]
    torch.testing.assert_close(ratio, torch.full((64,), 64**1.5 / 63**0.5))


def test_sequence_ratio_by_hand():
    """The geometric mean of the ratios of a completion's 1, 4, 2 or 0 tokens, whatever stands on
    the padding."""
    mask = torch.tensor([[t < n for t in range(4)] for n in (1, 4, 2, 0)])
    ratios = torch.tensor([[3.0, 9, 9, 9], [2, 2, 1, 4], [0.5, 0.125, 9, 9], [9, 9, 9, 9]]).double()
    old_logps = torch.arange(1.0, 17.0, dtype=torch.float64).view(4, 4).neg()
    ratio = gspo.sequence_ratio(logps=old_logps + ratios.log(), old_logps=old_logps, mask=mask)
    torch.testing.assert_close(ratio, torch.tensor([[3.0], [2.0], [0.25], [1.0]]).double())


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "trained"),
    [
        (0.5, 2.0, 1.0, True),
        (1.1, 2.0, 2.2, True),
        (1.4, 2.0, 2.6, False),  # held at 1.3
        (0.5, -2.0, -1.8, False),  # held at .9
        (0.95, -2.0, -1.9, True),
        (1.4, -2.0, -2.8, True),
    ],
)
def test_the_clip_of_gspo_acts_on_whole_completions(ratio, advantage, objective, trained):
    """In the range [.9, 1.3]. Where the completion's ratio is clipped no token has a gradient, even
    one whose own ratio lies within the range; elsewhere all tokens have the same, ratio A / length.
    The ratios of its tokens are 3, 1 / 3 and 1 times as large."""
    spread = torch.tensor([[3.0, 1 / 3, 1.0, 99.0]]).double()
    old_logps, mask = torch.full_like(spread, -2.0), torch.tensor([[True, True, True, False]])
    inputs = {"old_logps": old_logps, "advantages": torch.tensor([[advantage]]), "mask": mask}
    settings = {"clip_eps_low": 0.1, "clip_eps_high": 0.3}
    logps = old_logps + (ratio * spread).log()
    loss, gradient = loss_and_gradient(gspo, logps, **inputs, **settings)
    assert loss == pytest.approx(-objective)
    expected = -ratio * advantage / 3 * mask.double() if trained else 0 * logps
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("max_ratio", [0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_no_token_loses_its_gradient_in_cispo(max_ratio, advantage):
    """A token's gradient is -min(ratio, max_ratio) A / tokens: the weight has no gradient of its
    own, so the loss is the sum of gradient times log pi."""
    ratios = torch.tensor([[0.05, 0.4, 0.9, 1.0, 1.1, 1.8, 2.7, 5.5, 20.0]]).double()
    old_logps = torch.linspace(-4.0, -3.1, 9, dtype=torch.float64).view(1, 9)
    inputs = {"old_logps": old_logps, "mask": torch.ones(1, 9).bool(), "max_ratio": max_ratio}
    logps, advantages = old_logps + ratios.log(), torch.tensor([[advantage]]).double()
    loss, gradient = loss_and_gradient(cispo, logps, **inputs, advantages=advantages)
    expected = -advantage / 9 * ratios.clamp(max=max_ratio)
    torch.testing.assert_close(gradient, expected)
    assert loss == pytest.approx((expected * logps).sum().item())
