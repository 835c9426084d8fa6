"""The ratio of GSPO and the weight of CISPO: by hand, and in what `train` records of them.

What the side rungs share with the ladder's scripts is in test_group_methods.py.
"""

import math

import pytest
import torch
from test_group_methods import loss_and_gradient, ragged

from algorithms import cispo, gspo
from toy_env.metrics import update_metrics
from toy_env.rollout import Rollout


def test_sequence_ratio_by_hand():
    """Completions of 1, 4 and 2 tokens: the geometric mean of the ratios of their tokens, and 1
    where there is none. Neither the ratios nor the width of the padding count."""
    mask = torch.tensor(
        [[True, False, False, False], [True] * 4, [True, True, False, False], [False] * 4]
    )
    ratios = torch.tensor(
        [[3.0, 9, 9, 9], [2, 2, 1, 4], [0.5, 0.125, 9, 9], [9, 9, 9, 9]], dtype=torch.float64
    )
    old_logps = torch.arange(1.0, 17.0, dtype=torch.float64).view(4, 4).neg()
    ratio = gspo.sequence_ratio(logps=old_logps + ratios.log(), old_logps=old_logps, mask=mask)
    torch.testing.assert_close(
        ratio, torch.tensor([[3.0], [2.0], [0.25], [1.0]], dtype=torch.float64)
    )


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
    """Range [.9, 1.3]. Where the completion's ratio is stopped no token has a gradient, though the
    ratios of single tokens may lie within the range; elsewhere all have the same, ratio A / (B
    length), though some lie outside it."""
    _, _, mask = ragged()
    length = int(mask[row].sum())
    spread = torch.tensor([-1.0, 1.0, 2.0, -2.0], dtype=torch.float64)[
        :length
    ]  # of the tokens' log-ratios
    log_ratio, advantages = (
        torch.zeros(3, 4, dtype=torch.float64),
        torch.zeros(3, 1, dtype=torch.float64),
    )
    log_ratio[row, :length] = math.log(ratio) + (spread - spread.mean())
    advantages[row] = advantage
    old_logps = torch.full((3, 4), -2.0, dtype=torch.float64)
    settings = {"clip_eps_low": 0.1, "clip_eps_high": 0.3}
    loss, gradient = loss_and_gradient(gspo, old_logps + log_ratio, old_logps=old_logps, advantages=advantages,
                                       mask=mask, **settings)  # fmt: skip
    assert loss == pytest.approx(-objective / 3)
    expected = torch.zeros(3, 4, dtype=torch.float64)
    expected[row, :length] = -ratio * advantage / (3 * length) if trained else 0.0
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("max_ratio", [0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_no_token_loses_its_gradient_in_cispo(max_ratio, advantage):
    """Ratios from e^-3 to e^3, A above and below 0: each token's gradient is -min(ratio, max_ratio)
    A / tokens. It is never 0, and the weight has no gradient of its own. The loss is the sum of
    gradient times log pi."""
    log_ratio = torch.tensor(
        [[-3.0, -1.0, -0.1, 0.0, 0.1, 0.6, 1.0, 1.7, 3.0]], dtype=torch.float64
    )
    old_logps = torch.linspace(-4.0, -3.1, 9, dtype=torch.float64).view(1, 9)
    advantages, mask = torch.tensor([[advantage]], dtype=torch.float64), torch.ones(1, 9).bool()
    loss, gradient = loss_and_gradient(cispo, old_logps + log_ratio, old_logps=old_logps, advantages=advantages,
                                       mask=mask, max_ratio=max_ratio)  # fmt: skip
    expected = [
        -(math.exp(x) if math.exp(x) < max_ratio else max_ratio) * advantage / 9
        for x in log_ratio[0].tolist()
    ]
    torch.testing.assert_close(gradient, torch.tensor([expected], dtype=torch.float64))
    logps = (old_logps + log_ratio).flatten().tolist()
    assert loss == pytest.approx(sum(slope * logp for slope, logp in zip(expected, logps)))


# Metrics


def test_metrics_of_gspo_are_of_the_ratio_of_the_completion():
    """Five completions of 1, 4, 2, 3 and 0 tokens at ratios 3, 1.5, .25, 2 and 1, clipped to [.5,
    1.6]. Ratios of their tokens from 1/64 to 6 lie on the other side of either end, and count
    nowhere."""
    mask = torch.tensor([[t < n for t in range(4)] for n in (1, 4, 2, 3, 0)])
    ratio = torch.tensor(
        [[3, 9, 9, 9], [6, 0.75, 1.5, 0.75], [1 / 64, 4, 9, 9], [4, 2, 1, 9], [9, 9, 9, 9]]
    )
    old_logps = torch.linspace(-1, -3, 20).view(5, 4)
    logps, zeros = old_logps + ratio.log(), torch.zeros(5, 4)
    minibatch = Rollout(
        prompt_ids=zeros, prompt_mask=zeros, completion_ids=zeros, mask=mask, logps=old_logps, entropies=zeros,
        truncated=zeros[:, 0], texts=[""] * 5,
    )  # fmt: skip
    own = gspo.sequence_ratio(logps=logps, old_logps=old_logps, mask=mask)

    def shown(*advantages: float) -> dict:
        minibatch.advantages = torch.tensor(advantages).view(5, 1)
        return {
            name: value.item()
            for name, value in update_metrics(minibatch, logps, (0.5, 1.6), own).items()
        }

    up, down, mixed = shown(1, 1, 1, 1, 1), shown(-1, -1, -1, -1, -1), shown(-1, -1, 1, 2, 1)
    assert up["clipped_up"] == pytest.approx((1 + 3) / 10) and up["clipped_down"] == 0
    assert up["ratio_deviation"] == pytest.approx(2)
    probabilities = [math.exp(old_logps[i, j]) for i, j in ((0, 0), (3, 0), (3, 1), (3, 2))]
    assert up["clipped_up_probability"] == pytest.approx(sum(probabilities) / 4)
    assert down["clipped_down"] == pytest.approx(2 / 10) and down["clipped_up"] == 0
    assert mixed["clipped_up"] == pytest.approx(3 / 10) and mixed["clipped_down"] == 0
    assert shown(0, 0, 0, 0, 0)["clipped_up"] == 0


@pytest.mark.parametrize("script", [gspo, cispo])
def test_what_train_records_of_the_clip(script, train, spy):
    """Minibatch by minibatch: shares counted here from the log-probabilities that the loss got. In
    GSPO the tokens of completions whose gradient is 0 though A is not; in CISPO the tokens with A >
    0 whose weight is held, and none downwards."""
    low, high = (0.7, 1.02) if script is gspo else (0.0, 1.55)
    settings = (
        {"clip_eps_low": 1 - low, "clip_eps_high": high - 1}
        if script is gspo
        else {"max_ratio": high}
    )
    losses, metrics = spy(script, "policy_loss"), spy(script, "update_metrics")
    train(
        script,
        steps=1,
        num_minibatches=4,
        warmup_steps=0,
        levels=(1, 2),
        learning_rate=1e-3,
        **settings,
    )
    assert len(losses) == len(metrics) == 4
    counted_up = counted_down = 0
    for inputs, values in zip(losses, (call.result for call in metrics)):
        up = down = 0
        deviations = []
        batch = zip(inputs.logps.tolist(), inputs.old_logps.tolist(), inputs.mask.tolist())
        for (new, old, kept), A in zip(batch, inputs.advantages.flatten().tolist()):
            log_ratios = [a - b for a, b, k in zip(new, old, kept) if k]
            if script is gspo:
                log_ratios = [sum(log_ratios) / len(log_ratios)] * len(log_ratios)
            ratios = [math.exp(x) for x in log_ratios]
            deviations += [abs(ratio - 1) for ratio in ratios]
            up += sum(A > 0 and ratio > high for ratio in ratios)
            down += sum(A < 0 and ratio < low for ratio in ratios)
        assert values["clipped_up"].item() == pytest.approx(up / len(deviations))
        assert values["clipped_down"].item() == pytest.approx(down / len(deviations))
        assert values["ratio_deviation"].item() == pytest.approx(max(deviations), abs=1e-5)
        counted_up, counted_down = counted_up + up, counted_down + down
    assert counted_up > 0 and (counted_down > 0) == (script is gspo)
