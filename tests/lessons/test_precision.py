"""bfloat16, recomputed layers, small passes and no reference policy: each saves memory or time and
changes nothing else.

Broken on purpose: bfloat16 weights in place of autocast, copies that call the original, layers and
passes that keep their activations, a reference policy without a KL.
"""

import copy

import pytest
import torch
from enumeration import flat_gradient
from transformers import LlamaForCausalLM

from algorithms import dr_grpo, grpo, ppo
from toy_env.model import load_policy
from toy_env.rollout import completion_logps, in_passes, sample

PROMPTS = ["1+1?", "29+46-36?", "5-5?", "12+34-5+6-7?"]
ROUNDING = 7 / 256  # a few roundings to bfloat16, each with a relative error of up to 1/256


def draw(policy, tokenizer, group_size=8):
    return sample(policy, tokenizer, PROMPTS, group_size, 20, 1.0, torch.Generator().manual_seed(0))


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
    logps = completion_logps(policy, batch, 1.0)
    results = (*policy.parameters(), batch.old_logps, batch.entropies, logps)
    results = (*results, flat_gradient(logps.sum(), policy))
    assert {tensor.dtype for tensor in results} == {torch.float32}
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
    ours, theirs = flat_gradient(scored.sum(), policy), flat_gradient(exact.sum(), base[0])
    assert 1e-4 < (ours - theirs).norm() / theirs.norm() < 3 * ROUNDING


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_copies_compute_with_their_own_weights(gradient_checkpointing):
    """In bfloat16, the reference policy and the critic do not call the policy that they are copied
    from."""
    policy, tokenizer = load_policy("base", "cpu", "bfloat16", gradient_checkpointing)
    batch = draw(policy, tokenizer)
    reference, critic = copy.deepcopy(policy).requires_grad_(False), ppo.Critic(policy)
    torch.nn.init.ones_(critic.head.weight)

    seen = []
    layer = critic.transformer.layers[0].mlp.up_proj
    layer.register_forward_hook(lambda module, args, output: seen.append(output.dtype))

    def outputs() -> list[torch.Tensor]:
        logps = [completion_logps(model, batch, 1.0) for model in (policy, reference)]
        return [*logps, in_passes(critic, batch, 1_000_000)]

    before = outputs()
    assert torch.equal(before[0], before[1]) and set(seen) == {torch.bfloat16}
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
    assert [torch.equal(*pair) for pair in zip(outputs(), before)] == [False, True, True]


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
    critics = [ppo.Critic(policy) for policy in policies]
    for critic in critics:
        torch.nn.init.ones_(critic.head.weight)
    values = [in_passes(critic, batch, max_tokens_per_pass) for critic in critics]
    for models, outputs in ((policies, logps), (critics, values)):
        assert torch.equal(*outputs)
        gradients = (flat_gradient(x.square().sum(), m) for x, m in zip(outputs, models))
        assert torch.equal(*gradients)


@pytest.mark.parametrize(("which", "limit", "times"), [(0, 10**6, 0), (1, 10**6, 1), (0, 60, 1)])
def test_what_the_backward_pass_computes_again(plain_and_again, which, limit, times):
    """Layers where this is wanted, and passes if there are several: they need not be kept."""
    policy, batch, calls = plain_and_again[which], plain_and_again[2], []
    policy.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    total = completion_logps(policy, batch, 1.0, limit).sum()
    forward = len(calls)
    total.backward()
    assert len(calls) - forward == times * forward


@pytest.mark.parametrize("script", [grpo, dr_grpo, ppo])
def test_without_kl_there_is_no_reference(script, train, spy):
    """And the metrics, except for `kl`, are those of a KL of next to no weight."""
    copies, metrics = spy(copy, "deepcopy"), []
    for kl_coef in (0.0, 1e-30):
        copies.clear()
        metrics.append(train(script, f"run-{kl_coef}", prompts_per_step=4, kl_coef=kl_coef))
        models = [call for call in copies if isinstance(call.args[0], LlamaForCausalLM)]
        assert len(models) == (kl_coef > 0)
    without, with_kl = metrics
    assert without == [{name: row[name] for name in row if name != "kl"} for row in with_kl]
