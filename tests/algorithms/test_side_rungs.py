"""The sigma of the batch, the ratio of GSPO and the weight of CISPO by hand.

Everything that the side rungs share with the ladder is in test_group_methods.py.
"""

import math

import pytest
import torch
from test_group_methods import loss_and_gradient, ragged

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
@pytest.mark.parametrize("row", [0, 1, 2])
def test_the_clip_of_gspo_acts_on_whole_completions(ratio, advantage, objective, trained, row):
    """In the range [.9, 1.3]. Where the completion's ratio is clipped no token has a gradient, even
    one whose own ratio lies within the range; elsewhere all tokens have the same, ratio A / (B
    length)."""
    _, _, mask = ragged()
    length = int(mask[row].sum())
    spread = torch.tensor([-1.0, 1.0, 2.0, -2.0], dtype=torch.float64)[:length]
    log_ratio = torch.zeros(3, 4, dtype=torch.float64)
    advantages = torch.zeros(3, 1, dtype=torch.float64)
    log_ratio[row, :length] = math.log(ratio) + (spread - spread.mean())
    advantages[row] = advantage
    old_logps = torch.full((3, 4), -2.0, dtype=torch.float64)
    inputs = {"old_logps": old_logps, "advantages": advantages, "mask": mask}
    settings = {"clip_eps_low": 0.1, "clip_eps_high": 0.3}
    loss, gradient = loss_and_gradient(gspo, old_logps + log_ratio, **inputs, **settings)
    assert loss == pytest.approx(-objective / 3)
    expected = torch.zeros(3, 4, dtype=torch.float64)
    expected[row, :length] = -ratio * advantage / (3 * length) if trained else 0.0
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("max_ratio", [0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_no_token_loses_its_gradient_in_cispo(max_ratio, advantage):
    """For ratios from e^-3 to e^3 a token's gradient is -min(ratio, max_ratio) A / tokens: the
    weight has no gradient of its own, so the loss is the sum of gradient times log pi."""
    log_ratio = torch.tensor([[-3.0, -1.0, -0.1, 0.0, 0.1, 0.6, 1.0, 1.7, 3.0]]).double()
    old_logps = torch.linspace(-4.0, -3.1, 9, dtype=torch.float64).view(1, 9)
    advantages, mask = torch.tensor([[advantage]], dtype=torch.float64), torch.ones(1, 9).bool()
    inputs = {"old_logps": old_logps, "advantages": advantages, "mask": mask}
    loss, gradient = loss_and_gradient(cispo, old_logps + log_ratio, **inputs, max_ratio=max_ratio)
    expected = [-min(math.exp(x), max_ratio) * advantage / 9 for x in log_ratio[0].tolist()]
    torch.testing.assert_close(gradient, torch.tensor([expected], dtype=torch.float64))
    logps = (old_logps + log_ratio).flatten().tolist()
    assert loss == pytest.approx(sum(slope * logp for slope, logp in zip(expected, logps)))
