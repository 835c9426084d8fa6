"""RLOO, MaxRL, GSPO and CISPO: what each has of its own, against enumeration, autograd and values worked out by hand.

What they share with the ladder's scripts is in test_group_methods.py.
"""

import math
from itertools import product

import pytest
import torch
from conftest import build_tiny_model
from enumeration import as_rollout, every_completion, flat_gradient, probability
from test_group_methods import expected_gradient, loss_of, ragged

from algorithms import cispo, dapo, dr_grpo, grpo, gspo, maxrl, rloo
from lessons.float64 import to_float64
from toy_env.metrics import update_metrics
from toy_env.rollout import Rollout, completion_logps

GROUP_SIZES = [2, 3, pytest.param(4, marks=pytest.mark.slow)]
LIMIT = 2  # max_new_tokens of the enumerated policy


def batch_of(script, logps: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor, old_logps: torch.Tensor,
             **settings) -> tuple[float, torch.Tensor]:  # fmt: skip
    """The loss of a script without KL, and its gradient with respect to each log-probability."""
    logps = logps.detach().clone().requires_grad_()
    loss = loss_of(script, logps, old_logps=old_logps, advantages=advantages, mask=mask, **settings)
    return loss.item(), torch.autograd.grad(loss, logps)[0]


# ---------------------------------------------------------------------- advantages of RLOO and MaxRL


@pytest.mark.parametrize(
    ("script", "rewards", "advantages"),
    [
        (rloo, [1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
        (rloo, [1, 1, 0, 0], [2 / 3, 2 / 3, -2 / 3, -2 / 3]),
        (rloo, [0, 1, 1, 1], [-1, 1 / 3, 1 / 3, 1 / 3]),
        (rloo, [1, 0], [1, -1]),
        (rloo, [3, 1, -1], [3, 0, -3]),  # any rewards: 3 - 0, 1 - 1, -1 - 2
        (maxrl, [1, 0, 0, 0], [3, -1, -1, -1]),
        (maxrl, [1, 1, 0, 0], [1, 1, -1, -1]),
        (maxrl, [0, 1, 1, 1], [-1, 1 / 3, 1 / 3, 1 / 3]),
        (maxrl, [1, 0], [1, -1]),
        (maxrl, [0, 0, 0, 0, 0, 0, 0, 1], [-1, -1, -1, -1, -1, -1, -1, 7]),
    ],
)
def test_advantages_by_hand(script, rewards, advantages):
    for dtype in (torch.float32, torch.float64):
        found = script.compute_advantages(rewards=torch.tensor([rewards], dtype=dtype))
        torch.testing.assert_close(found, torch.tensor([advantages], dtype=dtype))


@pytest.mark.parametrize("script", [rloo, maxrl])
def test_only_the_mixed_group_of_a_batch_has_advantages(script):
    """All wrong and all right: exactly 0, for every group size up to 64, and whatever group stands beside them."""
    for G in range(2, 65):
        rewards = torch.zeros(3, G)
        rewards[1], rewards[2, 0] = 1, 1
        advantages = script.compute_advantages(rewards=rewards)
        assert not advantages[:2].any() and advantages[2].all(), G
        assert advantages[2, 0].item() == pytest.approx(1 if script is rloo else G - 1)


def test_advantages_against_those_of_dr_grpo():
    """RLOO's are G/(G-1) times Dr. GRPO's in every group; at G = 2, MaxRL's are 2 times Dr. GRPO's."""
    for G in (2, 3, 5):
        rewards = torch.tensor(list(product((0.0, 1.0), repeat=G)), dtype=torch.float64)  # every group
        centred = dr_grpo.compute_advantages(rewards=rewards)
        torch.testing.assert_close(rloo.compute_advantages(rewards=rewards), G / (G - 1) * centred)
        if G == 2:
            torch.testing.assert_close(maxrl.compute_advantages(rewards=rewards), 2 * centred)


# ---------------------------------------------------------------------- expectations of RLOO and MaxRL


@pytest.fixture(scope="module")
def enumerated():
    """A policy, its 7 completions of 1 and of 2 tokens, their rewards, and p with its gradient."""
    policy = to_float64(build_tiny_model(vocab_size=3))
    completions = every_completion(vocab_size=3, limit=LIMIT)
    rewards = torch.tensor([float(ids in ([2], [0, 1], [1, 2])) for ids in completions]).double()
    p = sum(probability(policy, ids) * r for ids, r in zip(completions, rewards))
    assert len(completions) == 7 and 0.1 < p.item() < 0.9
    slope = flat_gradient(p, policy)
    assert slope.norm() > 0.01
    return policy, completions, rewards, p.item(), slope


@pytest.mark.parametrize("G", GROUP_SIZES)
def test_expected_gradient_of_rloo(G, enumerated):
    """Exactly the gradient of the success probability, over max_new_tokens: no factor of G."""
    policy, completions, rewards, _, slope = enumerated
    found = expected_gradient(rloo, policy, completions, rewards, G)
    torch.testing.assert_close(found, slope / LIMIT, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("G", GROUP_SIZES)
def test_expected_gradient_of_maxrl(G, enumerated):
    """The gradient of log p with its series in q cut off after G-1 terms, -(q + q^2/2 + ... + q^(G-1)/(G-1)), over
    max_new_tokens. A series of G terms has q^(G-1) grad p more."""
    policy, completions, rewards, p, slope = enumerated
    found = LIMIT * expected_gradient(maxrl, policy, completions, rewards, G)

    def series(terms: int) -> torch.Tensor:
        q = 1 - sum(probability(policy, ids) * r for ids, r in zip(completions, rewards))
        return flat_gradient(-sum(q**j / j for j in range(1, terms + 1)), policy)

    torch.testing.assert_close(found, series(G - 1), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found, {2: 1, 3: 2 - p, 4: 3 - 3 * p + p**2}[G] * slope, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(series(G) - found, (1 - p) ** (G - 1) * slope, rtol=1e-9, atol=1e-12)
    assert ((series(G) - found).norm() / found.norm()).item() > 0.05


@pytest.mark.parametrize("G", GROUP_SIZES)
def test_maxrl_has_order_g_where_all_wrong_groups_keep_the_share_of_the_baseline(G, enumerated, monkeypatch):
    """What the docstring says of the paper's theorem. The mean score of the right (0 if there are none) has the
    gradient of G terms of the series; so has that minus the mean score of all, in every group; so has maxrl.py with an
    advantage of -1 in all-wrong groups."""
    policy, completions, rewards, p, slope = enumerated
    rollout = as_rollout(completions)
    scores = [flat_gradient(logps.sum(), policy) for logps in
              (completion_logps(policy, rollout[torch.tensor([i])], temperature=1.0) for i in range(7))]  # fmt: skip
    pi = [probability(policy, ids).item() for ids in completions]
    right_only, with_baseline = torch.zeros_like(slope), torch.zeros_like(slope)
    for group in product(range(7), repeat=G):
        chance, right = math.prod(pi[i] for i in group), [i for i in group if rewards[i]]
        mean_of_right = sum(scores[i] for i in right) / len(right) if right else torch.zeros_like(slope)
        right_only += chance * mean_of_right
        with_baseline += chance * (mean_of_right - sum(scores[i] for i in group) / G)
    order_g = sum((1 - p) ** (j - 1) for j in range(1, G + 1)) * slope
    torch.testing.assert_close(right_only, order_g, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(with_baseline, order_g, rtol=1e-9, atol=1e-12)

    honest = maxrl.compute_advantages
    kept = lambda rewards: torch.where(rewards.any(dim=1, keepdim=True), honest(rewards=rewards), -1.0)  # noqa: E731
    monkeypatch.setattr(maxrl, "compute_advantages", kept)
    found = LIMIT * expected_gradient(maxrl, policy, completions, rewards, G)
    torch.testing.assert_close(found, order_g, rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------------- GSPO


def test_sequence_ratio_by_hand():
    """Completions of 1, 4 and 2 tokens: the geometric mean of the ratios of their tokens, and 1 where there is none.
    What stands in the padding does not count, nor does the length of the padding."""
    mask = torch.tensor([[True, False, False, False], [True] * 4, [True, True, False, False], [False] * 4])
    ratios = torch.tensor([[3.0, 9, 9, 9], [2, 2, 1, 4], [0.5, 0.125, 9, 9], [9, 9, 9, 9]], dtype=torch.float64)
    old_logps = torch.arange(1.0, 17.0, dtype=torch.float64).view(4, 4).neg()
    found = gspo.sequence_ratio(logps=old_logps + ratios.log(), old_logps=old_logps, mask=mask)
    torch.testing.assert_close(found, torch.tensor([[3.0], [2.0], [0.25], [1.0]], dtype=torch.float64))


def test_at_ratio_1_gspo_has_the_gradient_of_grpo():
    """Loss and gradient, with KL and without, of a ragged batch."""
    logps, advantages, mask = ragged()
    for kl_coef in (0.0, 0.5):
        found = []
        for script in (gspo, grpo):
            ours = logps.clone().requires_grad_()
            loss = loss_of(script, ours, ref_logps=logps + 0.3, advantages=advantages, mask=mask, kl_coef=kl_coef)
            found.append((loss.detach(), torch.autograd.grad(loss, ours)[0]))
        torch.testing.assert_close(found[0], found[1], rtol=1e-14, atol=0)
        assert found[0][1][mask].all()


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
    """Range [.9, 1.3]. Where the completion's ratio is stopped no token has a gradient, though the ratios of single
    tokens may lie within the range; elsewhere all have the same, ratio A / (B length), though some lie outside it."""
    _, _, mask = ragged()
    length = int(mask[row].sum())
    spread = torch.tensor([-1.0, 1.0, 2.0, -2.0], dtype=torch.float64)[:length]  # of the tokens' log-ratios
    log_ratio = torch.zeros(3, 4, dtype=torch.float64)
    log_ratio[row, :length] = math.log(ratio) + (spread - spread.mean())
    old_logps = torch.full((3, 4), -2.0, dtype=torch.float64)
    advantages = torch.zeros(3, 1, dtype=torch.float64)
    advantages[row] = advantage
    loss, gradient = batch_of(
        gspo, old_logps + log_ratio, advantages, mask, old_logps, clip_eps_low=0.1, clip_eps_high=0.3
    )
    assert loss == pytest.approx(-objective / 3)
    expected = torch.zeros(3, 4, dtype=torch.float64)
    expected[row, :length] = -ratio * advantage / (3 * length) if trained else 0.0
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=0)


def test_the_gradient_of_gspo_by_finite_differences():
    """Every entry of a ragged batch, KL included; the first two ratios are inside the range, the third outside."""
    torch.manual_seed(0)
    logps, advantages, mask = ragged()
    old_logps = logps - 0.02 * torch.randn(3, 4, dtype=torch.float64)
    old_logps[2] = logps[2] - 0.5
    settings = {"old_logps": old_logps, "ref_logps": logps + 0.1, "advantages": advantages, "mask": mask,
                "clip_eps_low": 0.1, "clip_eps_high": 0.1, "kl_coef": 0.1}  # fmt: skip
    ours = logps.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(gspo, ours, **settings), ours)
    differences = torch.zeros(3, 4, dtype=torch.float64)
    for i, j in product(range(3), range(4)):
        step = torch.zeros(3, 4, dtype=torch.float64)
        step[i, j] = 1e-6
        ends = [loss_of(gspo, logps + sign * step, **settings).item() for sign in (1, -1)]
        differences[i, j] = (ends[0] - ends[1]) / 2e-6
    torch.testing.assert_close(gradient, differences, rtol=0, atol=1e-8)
    assert gradient[mask].all() and not gradient[~mask].any()


@pytest.mark.parametrize("script", [gspo, cispo])
@pytest.mark.parametrize("garbage", [0.0, -50.0, 30.0, 1e30])
def test_what_stands_in_the_padding_changes_nothing(script, garbage):
    """Off the mask, in log-probabilities that the ratio is taken of: neither the loss nor a gradient, which is 0 there.
    Not by longer padding either."""
    logps, advantages, mask = ragged()
    clean, dirty = (torch.where(mask, 0.2, value) for value in (0.0, garbage))  # log-ratios
    settings = {"clip_eps_low": 0.5, "clip_eps_high": 0.5} if script is gspo else {}
    loss, gradient = batch_of(script, logps + clean, advantages, mask, logps, **settings)
    assert gradient[mask].all() and not gradient[~mask].any()
    wide = [torch.cat([x, torch.zeros(3, 2).to(x)], dim=1) for x in (logps + dirty, mask, logps)]
    wide[0][:, 4:] = garbage
    loss_of_wide, gradient_of_wide = batch_of(script, wide[0], advantages, wide[1], wide[2], **settings)
    assert loss_of_wide == pytest.approx(loss, rel=1e-12)
    torch.testing.assert_close(gradient_of_wide[:, :4], gradient)
    assert not gradient_of_wide[:, 4:].any()


@pytest.mark.parametrize("script", [gspo, cispo])
def test_a_row_without_a_token_far_off_its_old_log_probabilities(script):
    """Has no gradient and leaves those of the others, but for GSPO's mean over 4 completions in place of 3."""
    logps, advantages, mask = ragged()
    settings = {"clip_eps_low": 0.5, "clip_eps_high": 0.5} if script is gspo else {}
    loss, gradient = batch_of(script, logps, advantages, mask, logps - 0.2, **settings)
    old_logps = torch.cat([logps - 0.2, torch.full((1, 4), -20.0)])
    logps = torch.cat([logps, torch.full((1, 4), -2.0)])
    advantages, mask = torch.cat([advantages, torch.tensor([[5.0]])]), torch.cat([mask, torch.zeros(1, 4).bool()])
    with_row, gradient_with_row = batch_of(script, logps, advantages, mask, old_logps, **settings)
    factor = 3 / 4 if script is gspo else 1
    assert with_row == pytest.approx(factor * loss)
    torch.testing.assert_close(gradient_with_row, torch.cat([factor * gradient, torch.zeros(1, 4)]))


# ---------------------------------------------------------------------- CISPO


def test_at_ratio_1_cispo_has_the_gradient_of_dapo():
    """The gradient, not the loss: CISPO's is -A log pi, which is not 0 on average."""
    logps, advantages, mask = ragged()
    (loss, gradient), (_, gradient_of_dapo) = (
        batch_of(script, logps, advantages, mask, logps) for script in (cispo, dapo)
    )
    assert torch.equal(gradient, gradient_of_dapo) and gradient[mask].all()
    assert loss == pytest.approx(-(2 * -1 - 1 * -(5 + 6 + 7 + 8) + 3 * -(9 + 10)) / 7)  # log p runs -1, -2, -3, ...


@pytest.mark.parametrize("max_ratio", [0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_no_token_loses_its_gradient_in_cispo(max_ratio, advantage):
    """Ratios from e^-3 to e^3, A above and below 0: each token's gradient is -min(ratio, max_ratio) A / tokens. It is
    never 0, and the weight has no gradient of its own."""
    ratios = [math.exp(x) for x in (-3.0, -1.0, -0.1, 0.0, 0.1, 0.6, 1.0, 1.7, 3.0)]
    log_ratio = torch.tensor([ratios], dtype=torch.float64).log()
    old_logps = torch.linspace(-4.0, -3.1, 9, dtype=torch.float64).view(1, 9)
    mask = torch.ones(1, 9).bool()
    advantages = torch.tensor([[advantage]], dtype=torch.float64)
    loss, gradient = batch_of(cispo, old_logps + log_ratio, advantages, mask, old_logps, max_ratio=max_ratio)
    expected = [-(ratio if ratio < max_ratio else max_ratio) * advantage / 9 for ratio in ratios]
    torch.testing.assert_close(gradient, torch.tensor([expected], dtype=torch.float64))
    assert gradient.all() and (gradient.sign() == -math.copysign(1, advantage)).all()
    logps = (old_logps + log_ratio).flatten().tolist()
    assert loss == pytest.approx(sum(slope * logp for slope, logp in zip(expected, logps)))


# ---------------------------------------------------------------------- metrics


def minibatch_of(old_logps: torch.Tensor, mask: torch.Tensor) -> Rollout:
    B, T = mask.shape
    return Rollout(
        prompt_ids=torch.zeros(B, 1), prompt_mask=torch.ones(B, 1), completion_ids=torch.zeros(B, T), mask=mask,
        logps=old_logps, entropies=torch.zeros(B, T), truncated=torch.zeros(B).bool(), texts=[""] * B,
    )  # fmt: skip


def test_metrics_of_gspo_are_of_the_ratio_of_the_completion():
    """Five completions of 1, 4, 2, 3 and 0 tokens at ratios 3, 1.5, .25, 2 and 1, clipped to [.5, 1.6]. Ratios of their
    tokens from 1/64 to 6 lie on the other side of either end, and count nowhere."""
    mask = torch.tensor([[t < n for t in range(4)] for n in (1, 4, 2, 3, 0)])
    ratio = torch.tensor([[3, 9, 9, 9], [6, 0.75, 1.5, 0.75], [1 / 64, 4, 9, 9], [4, 2, 1, 9], [9, 9, 9, 9]])
    old_logps = torch.linspace(-1, -3, 20).view(5, 4)
    logps, minibatch = old_logps + ratio.log(), minibatch_of(old_logps, mask)
    own = gspo.sequence_ratio(logps=logps, old_logps=old_logps, mask=mask)

    def shown(*advantages: float) -> dict:
        minibatch.advantages = torch.tensor(advantages).view(5, 1)
        return {name: value.item() for name, value in update_metrics(minibatch, logps, (0.5, 1.6), own).items()}

    up = shown(1, 1, 1, 1, 1)
    assert up["clipped_up"] == pytest.approx((1 + 3) / 10) and up["clipped_down"] == 0
    assert up["ratio_deviation"] == pytest.approx(2)
    probabilities = [math.exp(old_logps[i, j]) for i, j in ((0, 0), (3, 0), (3, 1), (3, 2))]
    assert up["clipped_up_probability"] == pytest.approx(sum(probabilities) / 4)
    down = shown(-1, -1, -1, -1, -1)
    assert down["clipped_down"] == pytest.approx(2 / 10) and down["clipped_up"] == 0
    mixed = shown(-1, -1, 1, 2, 1)
    assert mixed["clipped_up"] == pytest.approx(3 / 10) and mixed["clipped_down"] == 0
    assert shown(0, 0, 0, 0, 0)["clipped_up"] == 0


@pytest.mark.parametrize("script", [gspo, cispo])
def test_what_train_records_of_the_clip(script, tmp_path, monkeypatch, no_curves):
    """In `train`, minibatch by minibatch: shares counted here from the log-probabilities that the loss got. In GSPO the
    tokens of completions whose gradient is 0 though A is not; in CISPO the tokens with A > 0 whose weight is held, and
    none downwards."""
    low, high = (0.7, 1.02) if script is gspo else (0.0, 1.55)
    settings = {"clip_eps_low": 1 - low, "clip_eps_high": high - 1} if script is gspo else {"max_ratio": high}
    given, shown = [], []
    loss, metrics = script.policy_loss, update_metrics
    monkeypatch.setattr(script, "policy_loss", lambda **inputs: given.append(inputs) or loss(**inputs))

    def see(*inputs):
        shown.append(metrics(*inputs))
        return shown[-1]

    monkeypatch.setattr(script, "update_metrics", see)
    script.train(script.Config(
        steps=1, prompts_per_step=8, group_size=4, eval_problems=1, num_minibatches=4, warmup_steps=0, levels=(1, 2),
        learning_rate=1e-3, device="cpu", run_dir=str(tmp_path / "run"), **settings,
    ))  # fmt: skip
    assert len(given) == len(shown) == 4
    counted_up = counted_down = 0
    for inputs, values in zip(given, shown):
        up = down = tokens = 0
        deviations = [0.0]
        rows = zip(inputs["logps"].tolist(), inputs["old_logps"].tolist(), inputs["mask"].tolist())
        for (new, old, kept), A in zip(rows, inputs["advantages"].flatten().tolist()):
            log_ratios = [a - b for a, b, k in zip(new, old, kept) if k]
            if script is gspo:
                log_ratios = [sum(log_ratios) / len(log_ratios)] * len(log_ratios)
            ratios = [math.exp(x) for x in log_ratios]
            deviations += [abs(ratio - 1) for ratio in ratios]
            tokens += len(ratios)
            up += sum(A > 0 and ratio > high for ratio in ratios)
            down += sum(A < 0 and ratio < low for ratio in ratios)
        assert values["clipped_up"].item() == pytest.approx(up / tokens)
        assert values["clipped_down"].item() == pytest.approx(down / tokens)
        assert values["ratio_deviation"].item() == pytest.approx(max(deviations), abs=1e-5)
        counted_up, counted_down = counted_up + up, counted_down + down
    assert counted_up > 0 and (counted_down > 0) == (script is gspo)
