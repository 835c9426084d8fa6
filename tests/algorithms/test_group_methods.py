"""Advantages, clip, KL and aggregation by hand; expected gradients by enumeration; dynamic
sampling.

The ratio of GSPO and the weight of CISPO are in test_side_rungs.py.
"""

import math
from itertools import product

import pytest
import torch
from conftest import build_tiny_model, policy_loss
from enumeration import as_rollout, every_completion, flat_gradient, probability
from torch.nn.functional import pad

from algorithms import batch_sigma, cispo, dapo, dr_grpo, grpo, gspo, maxrl, ppo, reinforce, rloo
from lessons import identity
from lessons.experiments.float64 import to_float64
from toy_env.rollout import completion_logps
from toy_env.run import Run

GROUP_METHODS = [grpo, dr_grpo, dapo, rloo, maxrl, batch_sigma, gspo, cispo]
SCRIPTS = [reinforce, ppo, *GROUP_METHODS]
WITH_KL = [grpo, dr_grpo, rloo, maxrl, batch_sigma, gspo]
WITH_SIGMA = [grpo, dapo, gspo, cispo]
WITH_TOKEN_MEAN = [ppo, dapo, cispo]
WITH_DYNAMIC_SAMPLING = [dapo, cispo]
TRAINED = [dapo, pytest.param(cispo, marks=pytest.mark.slow)]  # of these
GROUP_SIZES = [2, 3, pytest.param(4, marks=pytest.mark.slow)]


def loss_of(script, logps, *, old_logps=None, ref_logps=None, advantages, mask, **settings):
    """The script's policy_loss: by default on-policy, without KL, and for GSPO with DAPO's clip."""
    if script is gspo:
        settings = {"clip_eps_low": 0.2, "clip_eps_high": 0.28} | settings
    if script in WITH_KL:
        settings = {"kl_coef": 0.0} | settings
    inputs = {"logps": logps, "advantages": advantages, "mask": mask}
    inputs["old_logps"] = logps.detach() if old_logps is None else old_logps
    inputs["ref_logps"] = logps.detach() if ref_logps is None else ref_logps
    return policy_loss(script, **inputs, config=script.Config(**settings))


def loss_and_gradient(script, logps, **inputs) -> tuple[float, torch.Tensor]:
    """The loss, and its gradient for each log-probability."""
    logps = logps.detach().clone().requires_grad_()
    loss = loss_of(script, logps, **inputs)
    return loss.item(), torch.autograd.grad(loss, logps)[0]


# Advantages


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("rewards", "over_sigma", "centred", "leave_one_out", "over_mean"),
    [  # advantages in the order of the rewards, the highest first
        ([0, 1, 1, 1], (3**-0.5, -(3**0.5)), (1 / 4, -3 / 4), (1 / 3, -1), (1 / 3, -1)),
        ([1, 0], (1, -1), (1 / 2, -1 / 2), (1, -1), (1, -1)),
        ([0] * 7 + [1], (7**0.5, -(7**-0.5)), (7 / 8, -1 / 8), (1, -1 / 7), (7, -1)),
        ([3, 1, -1], (1.5**0.5, 0, -(1.5**0.5)), (2, 0, -2), (3, 0, -3), (2, 0, -2)),
    ],
)
def test_advantages_by_hand(rewards, over_sigma, centred, leave_one_out, over_mean, dtype):
    levels = sorted(set(rewards), reverse=True)
    expected = dict.fromkeys(WITH_SIGMA, over_sigma) | {
        reinforce: levels,  # no baseline
        dr_grpo: centred,
        rloo: leave_one_out,
        maxrl: over_mean,
        batch_sigma: over_sigma,  # of a batch of one group
    }
    for script, advantages in expected.items():
        by_hand = [[advantages[levels.index(reward)] for reward in rewards]]
        ours = script.compute_advantages(rewards=torch.tensor([rewards], dtype=dtype))
        torch.testing.assert_close(ours, torch.tensor(by_hand, dtype=dtype))


@pytest.mark.parametrize("script", GROUP_METHODS)
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -1.0, 1e6 + 0.1])
def test_silent_groups_get_exactly_zero(script, value):
    """Also where the mean of equal floats is off by rounding, which a tiny sigma would magnify."""
    if script is batch_sigma and value not in (0, 1):
        return  # one sigma for all groups; its floor is made for rewards of 0 and 1
    for G in (2, 7, 64):
        advantages = script.compute_advantages(rewards=torch.full((3, G), value))
        exact = script in WITH_SIGMA or value in (0, 1)
        assert advantages.abs().max() <= (0 if exact else max(1, abs(value)) * 1e-6)


@pytest.mark.parametrize("script", [*WITH_SIGMA, dr_grpo, rloo, maxrl])
def test_advantages_stay_with_their_group(script):
    """Row by row the same as for each group alone."""
    torch.manual_seed(0)
    rewards = (torch.rand(20, 6) < 0.4).float()
    alone = [script.compute_advantages(rewards=row.unsqueeze(0)) for row in rewards]
    torch.testing.assert_close(script.compute_advantages(rewards=rewards), torch.cat(alone))


# Clip


@pytest.mark.parametrize(
    "script", [ppo, *(script for script in GROUP_METHODS if script is not cispo)]
)
@pytest.mark.parametrize(
    ("advantage", "ratio", "objective"),
    [
        (1.0, 0.5, 0.5),
        (1.0, 1.25, None),
        (1.0, 1.5, None),
        (-1.0, 0.5, -0.8),
        (-1.0, 1.5, -1.5),
        (2.0, 0.9, 1.8),
    ],
)
def test_clip_in_all_quadrants(script, advantage, ratio, objective):
    """For one token the objective is min(rho A, clip(rho) A), and its gradient rho A unless it is
    clipped. The range ends at 1.2, and at 1.28 for DAPO and GSPO."""
    if objective is None:
        objective = min(ratio, 1.28 if script in (dapo, gspo) else 1.2)
    logps = torch.tensor([[math.log(ratio)]], dtype=torch.float64)
    loss, gradient = loss_and_gradient(
        script,
        logps,
        old_logps=torch.zeros_like(logps),
        ref_logps=logps,
        advantages=torch.full_like(logps, advantage),
        mask=torch.tensor([[True]]),
        max_new_tokens=1,
    )
    assert -loss == pytest.approx(objective)
    slope = ratio * advantage if objective == ratio * advantage else 0
    assert -gradient.item() == pytest.approx(slope)


# Aggregation


def ragged():
    """Log-probabilities -1, -2, ..., advantages 2, -1 and 3, and the mask of three completions of
    1, 4 and 2 tokens."""
    logps = -torch.arange(1.0, 13.0, dtype=torch.float64).view(3, 4)
    mask = torch.tensor([[True, False, False, False], [True] * 4, [True, True, False, False]])
    return logps, torch.tensor([[2.0], [-1.0], [3.0]]), mask


@pytest.mark.parametrize("script", SCRIPTS)
def test_weight_of_a_token(script):
    """On-policy, the gradient for a log-probability is -A times the weight of its token, by hand;
    with a KL of weight 1/2, where pi is half of the reference, k3 adds (1 - 2) / 2 to -A."""
    logps, advantages, mask = ragged()
    weights = [1 / 30] * 3  # 1 / (B C), C = max_new_tokens = 10
    if script in (grpo, gspo):
        weights = [1 / 3, 1 / 12, 1 / 6]  # 1 / (B |y|)
    elif script in WITH_TOKEN_MEAN:
        weights = [1 / 7] * 3  # 1 / all tokens
    settings = {"max_new_tokens": 10} | ({"kl_coef": 0.5} if script in WITH_KL else {})
    inputs = {"ref_logps": logps + math.log(2), "advantages": advantages, "mask": mask}
    _, gradient = loss_and_gradient(script, logps, **inputs, **settings)
    slopes = -advantages - (0.5 if script in WITH_KL else 0)
    expected = slopes * torch.tensor(weights).unsqueeze(1) * mask
    torch.testing.assert_close(gradient, expected.double(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("garbage", [0.0, -50.0, 30.0])
def test_padding_changes_nothing(script, garbage):
    """Neither its log-probabilities, nor its width, nor a row that is padding only change the loss
    or the gradient, which is 0 there; but a mean over completions counts that row."""
    logps, advantages, mask = ragged()
    settings = {"max_new_tokens": 10} | ({"kl_coef": 0.5} if script in WITH_KL else {})
    inputs = {"old_logps": logps - 0.1, "ref_logps": logps + 0.3, "mask": mask}
    loss, gradient = loss_and_gradient(script, logps, advantages=advantages, **inputs, **settings)
    assert gradient[mask].all() and not gradient[~mask].any()
    wide = {name: pad(column, (0, 2, 0, 1)) for name, column in inputs.items()}
    logps = torch.where(wide["mask"], pad(logps, (0, 2, 0, 1)), garbage)
    advantages = torch.cat([advantages, torch.tensor([[5.0]])])
    inputs = wide | settings
    wide_loss, wide_gradient = loss_and_gradient(script, logps, advantages=advantages, **inputs)
    factor = 1 if script in WITH_TOKEN_MEAN else 3 / 4
    assert wide_loss == pytest.approx(factor * loss, rel=1e-12)
    torch.testing.assert_close(wide_gradient, factor * pad(gradient, (0, 2, 0, 1)))


@pytest.mark.parametrize("script", GROUP_METHODS)
def test_a_batch_of_empty_masks_has_loss_0(script):
    """As overlong filtering can leave one."""
    logps, empty = torch.full((2, 3), -1.0), torch.zeros(2, 3).bool()
    loss, gradient = loss_and_gradient(script, logps, advantages=torch.ones(2, 1), mask=empty)
    assert loss == 0 and not gradient.any()


# KL


@pytest.mark.parametrize("script", WITH_KL)
def test_gradient_of_k3(script):
    """At one position, over the whole vocabulary: E_pi[grad k3] = grad KL(ref || pi). The value of
    k3 is unbiased for KL(pi || ref)."""
    torch.manual_seed(0)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    pi, ref_logps = logits.log_softmax(dim=0), torch.randn(6).double().log_softmax(dim=0)
    mask, settings = torch.ones(1, 1).bool(), {"kl_coef": 1.0, "max_new_tokens": 1}
    k3 = [
        loss_of(script, logp, ref_logps=ref, advantages=torch.zeros(1, 1), mask=mask, **settings)
        for logp, ref in zip(pi.view(6, 1, 1), ref_logps.view(6, 1, 1))
    ]
    expected = pi.detach().exp() @ torch.stack(k3)
    torch.testing.assert_close(expected, pi.exp() @ (pi - ref_logps))
    ours, forward = (
        torch.autograd.grad(value, logits, retain_graph=True)[0]
        for value in (expected, ref_logps.exp() @ (ref_logps - pi))
    )
    torch.testing.assert_close(ours, forward, rtol=1e-9, atol=1e-12)


# Expectations


@pytest.fixture(scope="module")
def enumerated():
    """A policy, its 7 completions of 1 or 2 tokens, their rewards, the success probability p and
    its gradient."""
    policy = to_float64(build_tiny_model(vocab_size=3))
    completions = every_completion(vocab_size=3, limit=2)
    rewards = torch.tensor([float(ids in ([2], [0, 1], [1, 2])) for ids in completions]).double()
    p = sum(probability(policy, ids) * r for ids, r in zip(completions, rewards))
    assert len(completions) == 7 and 0.1 < p.item() < 0.9
    slope = flat_gradient(p, policy)
    assert slope.norm() > 0.01
    return policy, completions, rewards, p.item(), slope


def expected_gradient(script, policy, completions, rewards, G: int) -> torch.Tensor:
    """Minus the expected gradient of the script's loss, over all groups of G completions."""
    pi = torch.stack([probability(policy, ids) for ids in completions]).detach()
    rollout = as_rollout(completions)
    logps = completion_logps(policy, rollout, temperature=1.0)
    groups = torch.tensor(list(product(range(len(completions)), repeat=G)))  # (n, G)
    chances = pi[groups].prod(dim=1)
    assert chances.sum().item() == pytest.approx(1, abs=1e-12)
    advantages = script.compute_advantages(rewards=rewards[groups])
    total = sum(
        chance
        * loss_of(
            script,
            logps[group],
            advantages=a.view(-1, 1),
            mask=rollout.mask[group],
            max_new_tokens=2,
        )
        for chance, group, a in zip(chances, groups, advantages)
        if a.any()
    )
    return flat_gradient(-total, policy)


@pytest.mark.parametrize("G", GROUP_SIZES)
@pytest.mark.parametrize("script", [reinforce, dr_grpo, rloo, maxrl])
def test_expected_gradient(script, G, enumerated):
    """The gradient of the success probability p over max_new_tokens = 2, times (G-1)/G for Dr.
    GRPO, 1 for REINFORCE and RLOO, and 1 + q + ... + q^(G-2) for MaxRL, the series of log p cut off
    after G-1 terms."""
    policy, completions, rewards, p, slope = enumerated
    q = 1 - p
    factors = {reinforce: 1, rloo: 1, dr_grpo: (G - 1) / G, maxrl: sum(q**j for j in range(G - 1))}
    ours = expected_gradient(script, policy, completions, rewards, G)
    torch.testing.assert_close(ours, factors[script] * slope / 2, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("script", WITH_SIGMA)
@pytest.mark.parametrize("G", GROUP_SIZES)
def test_expected_gradient_with_sigma(script, G):
    """w_G(p) times the gradient of p, where all completions have one token.

    With unequal lengths the 1/|y| of GRPO spoils this: its update climbs no function of p. DAPO's
    update is GRPO's as long as silent groups count with weight 0.
    """
    policy = to_float64(build_tiny_model(vocab_size=5))
    completions = [[v] for v in range(5)]
    rewards = torch.tensor([1.0, 1, 0, 1, 0]).double()
    p = sum(probability(policy, ids) * r for ids, r in zip(completions, rewards))
    assert 0.02 < p.item() < 0.98
    expected = identity.weight("GRPO", p.item(), G) * flat_gradient(p, policy)
    ours = expected_gradient(script, policy, completions, rewards, G)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("script", [grpo, dr_grpo, dapo])
@pytest.mark.parametrize("distance", [0.0, 0.04, 0.08])
@pytest.mark.parametrize("k", [1, 3, 7])
def test_the_identity(script, distance, k):
    """Minus the gradient of a group's loss is the script's coefficient, sigma or sigma^2 over its
    normaliser, times a difference of means, right minus wrong, of the gradients of single
    completions. At the first update these are scores. At a later one, clip included, they are the
    gradients of the sum over tokens of min(ratio, 1 + eps) where the completion is right, and of
    max(ratio, 1 - eps) where it is wrong. Lesson 6 shows it on the shipped base."""
    G, T, C, generator = 8, 6, 10, torch.Generator().manual_seed(0)
    # A log-linear policy over 5 tokens
    features = torch.randn(G, T, 5, 20, dtype=torch.float64, generator=generator)
    old, direction = torch.randn(2, 20, dtype=torch.float64, generator=generator)
    theta = (old + distance * direction).requires_grad_()
    lengths = torch.tensor([2, 6, 4, 3, 5, 6, 1, 4]).double()
    mask, right = torch.arange(T) < lengths.view(G, 1), torch.arange(G) < k
    old_logps, logps = ((features @ at).log_softmax(dim=-1)[..., 0] * mask for at in (old, theta))
    advantages = script.compute_advantages(rewards=right.double().view(1, G)).view(G, 1)
    inputs = {"old_logps": old_logps, "advantages": advantages, "mask": mask}
    loss = loss_of(script, logps, **inputs, max_new_tokens=C)
    (update,) = torch.autograd.grad(-loss, theta, retain_graph=True)

    ratio, high = (logps - old_logps).exp(), 1.28 if script is dapo else 1.2
    kept = torch.where(right.view(G, 1), ratio.clamp(max=high), ratio.clamp(min=0.8))
    assert ((kept != ratio)[mask].sum() > 2) == (distance > 0)
    sigma = math.sqrt(k * (G - k)) / G
    coefficient = {grpo: sigma / lengths, dr_grpo: sigma**2 / C, dapo: sigma * G / lengths.sum()}
    objective = coefficient[script] * (kept * mask).sum(dim=1)  # (G,)
    contrast = objective[right].mean() - objective[~right].mean()
    (expected,) = torch.autograd.grad(contrast, theta)
    assert (update - expected).norm() < 1e-12 * expected.norm()


# Dynamic sampling and overlong completions, in DAPO and CISPO


@pytest.mark.parametrize("script", WITH_DYNAMIC_SAMPLING)
def test_overlong_penalty_by_hand(script):
    """Limit 56, buffer 8: none up to 48 tokens, then an eighth for each (Eq. 13). Without a buffer
    there is no penalty."""
    mask = torch.arange(56) < torch.tensor([4, 48, 49, 52, 56]).unsqueeze(1)
    for buffer, expected in ((8, [0, 0, -0.125, -0.5, -1]), (0, [0] * 5)):
        config = script.Config(max_new_tokens=56, overlong_buffer=buffer)
        assert script.overlong_penalty(mask=mask, config=config).tolist() == expected


@pytest.fixture
def train_on_verdicts(train, spy, monkeypatch, tokenizer):
    """train_on_verdicts(script, verdict, **settings) trains on verdict(prompt), 1 or 0 for each of
    4 completions, in place of the verifier's rewards. Returns the rewards that advantages were
    computed from, the calls of `log`, and the metrics."""

    def train_script(script, verdict, **settings):
        collect, judged, logged = script.collect, spy(script, "compute_advantages"), spy(Run, "log")

        def collect_and_judge(*args):
            rollout, rewards = collect(*args)
            prompts = tokenizer.batch_decode(rollout.prompt_ids, skip_special_tokens=True)[::4]
            return rollout, torch.tensor([verdict(x) for x in prompts], dtype=rewards.dtype)

        monkeypatch.setattr(script, "collect", collect_and_judge)
        rows = train(script, prompts_per_step=6, **{"num_minibatches": 2, "steps": 1} | settings)
        return [call.rewards for call in judged], logged, rows

    return train_script


@pytest.mark.parametrize("script", TRAINED)
@pytest.mark.parametrize(
    "settings", [{}, {"overlong_buffer": 24}, {"max_draws": 1}, {"dynamic_sampling": False}]
)
def test_dynamic_sampling(script, settings, train_on_verdicts, spy):
    """Level 1 all right, level 2 all wrong, levels 3 and 4 mixed: only the latter are trained on, P
    of them, with their own completions, and no batch is drawn that is not needed. All-right groups
    whose rewards differ by the overlong penalty are dropped all the same. With one draw at most
    there are fewer groups; without dynamic sampling silent groups stay."""
    verdicts = {1: [1, 1, 1, 1], 2: [0, 0, 0, 0], 3: [1, 0, 0, 0], 4: [1, 1, 0, 1]}
    passes = spy(script, "completion_logps")
    settings = {"overlong_buffer": 0} | settings
    (rewards,), (logged,), (row,) = train_on_verdicts(
        script, lambda prompt: verdicts[prompt.count("+") + prompt.count("-")], **settings
    )
    _, _, drawn, correct = logged.args  # discarded groups are logged too
    mixed = correct.sum(dim=1) % 4 != 0
    if "max_draws" in settings or "dynamic_sampling" in settings:
        assert len(correct) == 6 > mixed.sum() > 0
    else:
        assert len(correct) % 6 == 0 and mixed.sum() >= 6 > mixed[:-6].sum()
    assert len(drawn) == 4 * len(correct) == row["sampled"]
    if not settings.get("dynamic_sampling", True):
        mixed[:] = True
    kept = mixed.nonzero().flatten()[:6]  # in the order of drawing
    lengths = drawn.mask.sum(dim=1).view(-1, 4)[kept]
    penalty = lengths / 24 if settings["overlong_buffer"] else 0
    torch.testing.assert_close(rewards, 2 * correct[kept] - 1 - penalty)  # 1 or -1, Eq. 7

    trained = [text for call in passes for text in call.args[1].texts]
    assert sorted(trained) == sorted(drawn.groups(kept, 4).texts)


@pytest.mark.filterwarnings("ignore:std")  # torch warns of a standard deviation over no group
def test_dynamic_sampling_stops_at_max_draws(train_on_verdicts):
    """A step with one mixed group in three draws trains on that; a step without any makes no
    update, and the run goes on."""
    seen = []

    def rarely(prompt):
        seen.append(prompt)
        return [float(len(seen) in (1, 6 * 6 + 1)), 0, 0, 0]  # in steps 1 and 3, the first group

    judged, _, rows = train_on_verdicts(dapo, rarely, steps=3, max_draws=3, num_minibatches=8)
    assert [len(rewards) for rewards in judged] == [1, 0, 1]
    assert [row["completions"] for row in rows] == [72, 144, 216]
    assert ["loss" in row for row in rows] == [True, False, True]


@pytest.mark.parametrize("script", TRAINED)
def test_overlong_filtering(script, train_on_verdicts, spy):
    """Truncated completions are taken out of the loss."""
    passes, losses = spy(script, "completion_logps"), spy(script, "policy_loss")
    settings = {"max_new_tokens": 4, "overlong_buffer": 0, "temperature": 2.0}
    for filtering in (False, True):
        settings |= {"folder": str(filtering), "overlong_filtering": filtering}
        train_on_verdicts(script, lambda prompt: [1, 0, 0, 0], **settings)
        truncated = torch.cat([call.args[1].truncated for call in passes])
        assert truncated.any() and not truncated.all()
        counted = torch.cat([call.mask.any(dim=1) for call in losses])
        assert torch.equal(counted, ~(truncated & filtering))
        passes.clear(), losses.clear()
