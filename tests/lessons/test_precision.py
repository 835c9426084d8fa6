"""bfloat16, recomputed layers, small passes and no reference policy: each saves memory or time and
changes nothing else.

Broken on purpose: bfloat16 weights in place of autocast, copies that call the original, layers and
passes that keep their activations, a reference policy without a KL.
"""

import copy
from collections.abc import Callable

import pytest
import torch
from enumeration import flat_gradient
from torch import Tensor

from algorithms import dr_grpo, grpo, ppo
from toy_env.model import load_policy
from toy_env.rollout import completion_logps, in_passes, sample

PROMPTS = ["1+1?", "29+46-36?", "5-5?", "12+34-5+6-7?"]
ROUNDING = 7 / 256  # a few roundings to bfloat16, each with a relative error of up to 1/256


def draw(policy, tokenizer, group_size=8):
    return sample(policy, tokenizer, PROMPTS, group_size, 20, 1.0, torch.Generator().manual_seed(0))


def distance(ours: Tensor, theirs: Tensor) -> float:
    """The norm of the difference of two gradients over the norm of the second."""
    return ((ours - theirs).norm() / theirs.norm()).item()


@pytest.fixture
def half():
    """The shipped base model, computing in bfloat16."""
    return load_policy("base", dtype="bfloat16")


def test_bfloat16_is_for_the_forward_pass_only(half):
    """Weights, gradients and log-probabilities are float32."""
    policy, tokenizer = half
    batch = draw(policy, tokenizer)
    ids = {"input_ids": batch.prompt_ids, "attention_mask": batch.prompt_mask}
    assert policy(**ids).logits.dtype == torch.bfloat16
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    logps = completion_logps(policy, batch, 1.0)
    assert batch.old_logps.dtype == batch.entropies.dtype == logps.dtype == torch.float32
    assert flat_gradient(logps.sum(), policy).dtype == torch.float32
    assert not torch.is_autocast_enabled("cpu")


def test_bfloat16_is_float32_with_fewer_digits(half, base):
    """Sampled or scored, values and gradients are within rounding of those of float32, and
    different."""
    policy, tokenizer = half
    batch = draw(policy, tokenizer)
    scored, exact = completion_logps(policy, batch, 1.0), completion_logps(base[0], batch, 1.0)
    for logps in (scored, batch.old_logps):
        error = (logps - exact).abs()[batch.mask]
        assert 0 < error.mean() < ROUNDING and error.max() < 0.3
    ours, theirs = (flat_gradient(x.sum(), p) for x, p in ((scored, policy), (exact, base[0])))
    assert 1e-4 < distance(ours, theirs) < 3 * ROUNDING
    assert torch.equal(draw(policy, tokenizer).completion_ids, batch.completion_ids)  # seeded


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_copies_compute_with_their_own_weights(gradient_checkpointing):
    """In bfloat16, the reference policy and the critic do not call the policy that they are copied
    from."""
    policy, tokenizer = load_policy("base", "cpu", "bfloat16", gradient_checkpointing)
    batch = draw(policy, tokenizer)
    reference, critic = copy.deepcopy(policy).requires_grad_(False), ppo.Critic(policy)
    torch.nn.init.ones_(critic.head.weight)
    logps, values = completion_logps(reference, batch, 1.0), in_passes(critic, batch, 1_000_000)
    assert torch.equal(logps, completion_logps(policy, batch, 1.0))
    seen = []
    layer = critic.transformer.layers[0].mlp.up_proj
    layer.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
    assert not torch.equal(completion_logps(policy, batch, 1.0), logps)
    assert torch.equal(completion_logps(reference, batch, 1.0), logps)
    assert (
        torch.equal(in_passes(critic, batch, 1_000_000), values) and values.dtype == torch.float32
    )
    assert set(seen) == {torch.bfloat16}


@pytest.fixture(params=["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def plain_and_again(request):
    """The shipped base model twice, the second time with layers to compute again, and a rollout."""
    plain, tokenizer = load_policy("base", dtype=request.param)
    again, _ = load_policy("base", dtype=request.param, gradient_checkpointing=True)
    return plain, again, draw(plain, tokenizer)


@pytest.mark.parametrize("max_tokens_per_pass", [200, 1_000_000])
def test_layers_computed_again_have_the_same_gradient(plain_and_again, max_tokens_per_pass):
    """Bit for bit, in the policy and in a critic."""
    *policies, batch = plain_and_again
    logps = [completion_logps(policy, batch, 1.0, max_tokens_per_pass) for policy in policies]
    assert torch.equal(*logps)
    gradients = [flat_gradient(x.square().sum(), policy) for x, policy in zip(logps, policies)]
    assert torch.equal(*gradients)
    gradients = []
    for critic in map(ppo.Critic, policies):
        torch.nn.init.ones_(critic.head.weight)
        values = in_passes(critic, batch, max_tokens_per_pass)
        gradients.append(flat_gradient(values.square().sum(), critic))
    assert torch.equal(*gradients)


def forward_calls(module, logps: Callable[[], Tensor]) -> tuple[int, int]:
    """How often a module is called for log-probabilities, and then for their gradient."""
    calls = []
    module.register_forward_pre_hook(lambda *_: calls.append(1))
    total = logps().sum()
    forward = len(calls)
    total.backward()
    return forward, len(calls) - forward


def test_layers_are_computed_again(plain_and_again):
    """In the backward pass, and only where this is wanted."""
    plain, again, batch = plain_and_again
    for policy, times in ((plain, 0), (again, 1)):
        layer = policy.model.layers[0].mlp
        forward, backward = forward_calls(layer, lambda p=policy: completion_logps(p, batch, 1.0))
        assert backward == times * forward


@pytest.mark.parametrize(("max_tokens_per_pass", "times"), [(60, 1), (1_000_000, 0)])
def test_several_passes_are_computed_again(tiny, tokenizer, max_tokens_per_pass, times):
    """In the backward pass, so that they need not be kept; those of a batch within the limit are
    kept."""
    batch = draw(tiny, tokenizer)
    forward, backward = forward_calls(
        tiny.lm_head, lambda: completion_logps(tiny, batch, 1.0, max_tokens_per_pass)
    )
    assert forward > times and backward == times * forward


# No reference policy where there is no KL


@pytest.mark.parametrize("script", [grpo, dr_grpo, ppo])
def test_without_kl_there_is_no_reference(script, train, spy):
    """And the metrics, except for `kl`, are those of a KL of next to no weight."""
    passes, copies = spy(script, "completion_logps"), spy(copy, "deepcopy")
    metrics = {}
    for kl_coef in (0.0, 1e-30):
        passes.clear(), copies.clear()
        rows = train(script, f"run-{kl_coef}", prompts_per_step=4, kl_coef=kl_coef)
        assert len({id(call.args[0]) for call in passes}) == 1 + (kl_coef > 0)
        calls = [call.args for call in copies]
        models = [args for args in calls if isinstance(args[0], torch.nn.Module) and len(args) == 1]
        assert len(models) == (kl_coef > 0) + (script is ppo)  # PPO copies its critic too
        for row in rows:
            assert (row.pop("kl", None) is not None) == (kl_coef > 0)
        metrics[kl_coef] = rows
    assert metrics[0.0] == metrics[1e-30] and len(metrics[0.0]) == 2
