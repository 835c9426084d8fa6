"""The sigma of the batch, the ratio of GSPO and the weight of CISPO: by hand, and in the metrics of
training.

Everything that the side rungs share with the ladder is in test_group_methods.py.
"""

import math

import pytest
import torch
from test_group_methods import loss_and_gradient, ragged

from algorithms import batch_sigma, cispo, dr_grpo, gspo


def test_sigma_of_the_batch_by_hand():
    """Groups of 1, 2 and 4 right of 4: the squares of R - mean add up to 3/4 + 1 + 0, so the sigma
    of 12 is the root of 7/48. It is that of the groups in the mean square, and of what is divided
    by it 1; silent batches have advantages of 0."""
    rewards = torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 1], [1, 1, 1, 1]]).double()
    sigma = (7 / 48) ** 0.5
    expected = torch.tensor([[0.75, -0.25, -0.25, -0.25], [-0.5, 0.5, -0.5, 0.5], [0] * 4]) / sigma
    ours = batch_sigma.compute_advantages(rewards=rewards)
    torch.testing.assert_close(ours, expected.double(), rtol=1e-6, atol=0)
    assert rewards.var(dim=1, correction=0).mean() ** 0.5 == pytest.approx(sigma)
    shuffled = batch_sigma.compute_advantages(rewards=rewards[[2, 0, 1]])
    assert torch.equal(shuffled, ours[[2, 0, 1]])
    raw = rewards.std(correction=0)  # what Lite PPO and TRL divide by: the prompts differ, too
    assert raw > 1.2 * sigma
    for value in (0.0, 1.0):
        silent = batch_sigma.compute_advantages(rewards=torch.full((3, 8), value))
        assert not silent.any()
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


# Metrics


@pytest.mark.parametrize("script", [gspo, cispo])
def test_metrics_of_the_clip(script, train, spy):
    """In every minibatch they are the shares counted from the inputs of the loss. In GSPO a clipped
    completion counts with all its tokens; in CISPO the tokens with A > 0 whose weight is capped
    count, and none downwards."""
    low, high = (0.7, 1.02) if script is gspo else (0.0, 1.55)
    settings = {"num_minibatches": 4, "warmup_steps": 0, "learning_rate": 1e-3, "levels": (1, 2)}
    if script is gspo:
        settings |= {"clip_eps_low": 1 - low, "clip_eps_high": high - 1}
    else:
        settings |= {"max_ratio": high}
    losses, metrics = spy(script, "policy_loss"), spy(script, "update_metrics")
    train(script, steps=1, **settings)
    assert len(losses) == len(metrics) == 4
    ups, downs = 0, 0
    for inputs, values in zip(losses, (call.result for call in metrics)):
        up, down, ratios = 0, 0, []
        log_ratio = (inputs.logps - inputs.old_logps).detach()
        for row, A in enumerate(inputs.advantages.flatten().tolist()):
            log_ratios = log_ratio[row][inputs.mask[row]].tolist()
            if script is gspo:
                log_ratios = [sum(log_ratios) / len(log_ratios)] * len(log_ratios)
            own = [math.exp(x) for x in log_ratios]
            up += sum(A > 0 and ratio > high for ratio in own)
            down += sum(A < 0 and ratio < low for ratio in own)
            ratios += own
        deviation = max(abs(ratio - 1) for ratio in ratios)
        assert float(values["clipped_up"]) == pytest.approx(up / len(ratios))
        assert float(values["clipped_down"]) == pytest.approx(down / len(ratios))
        assert float(values["ratio_deviation"]) == pytest.approx(deviation, abs=1e-5)
        ups, downs = ups + up, downs + down
    assert ups > 0 and (downs > 0) == (script is gspo)
