"""bfloat16, small passes and no reference policy: each saves memory or time and changes nothing
else.

Broken on purpose: bfloat16 weights in place of autocast, copies that call the original, passes that
keep their activations, a reference policy without a KL.
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


def test_bfloat16_is_float32_with_fewer_digits(base):
    """In the forward pass only: sampled or scored, values and gradients are float32, within
    rounding of those without bfloat16, and different."""
    policy, tokenizer = load_policy("base", dtype="bfloat16")
    batch = draw(policy, tokenizer)
    scored, exact = completion_logps(policy, batch, 1.0), completion_logps(base[0], batch, 1.0)
    for logps in (scored, batch.old_logps):
        error = (logps - exact).abs()[batch.mask]
        assert 0 < error.mean() < ROUNDING and error.max() < 0.3
    ours, theirs = flat_gradient(scored.sum(), policy), flat_gradient(exact.sum(), base[0])
    assert 1e-4 < (ours - theirs).norm() / theirs.norm() < 3 * ROUNDING
    results = (*policy.parameters(), batch.old_logps, batch.entropies, scored, ours)
    assert {tensor.dtype for tensor in results} == {torch.float32}
    assert not torch.is_autocast_enabled("cpu")


def test_copies_compute_with_their_own_weights():
    """In bfloat16, the reference policy and the critic do not call the policy that they are copied
    from."""
    policy, tokenizer = load_policy("base", dtype="bfloat16")
    batch = draw(policy, tokenizer)
    reference, critic = copy.deepcopy(policy), ppo.Critic(policy)
    torch.nn.init.ones_(critic.head.weight)

    def outputs() -> list[torch.Tensor]:
        logps = [completion_logps(model, batch, 1.0) for model in (policy, reference)]
        return [*logps, in_passes(critic, batch, 1_000_000)]

    before = outputs()
    assert torch.equal(before[0], before[1])
    for parameter in policy.parameters():
        parameter.data.zero_()
    assert [*map(torch.equal, outputs(), before)] == [False, True, True]


@pytest.mark.parametrize(("limit", "times"), [(1_000_000, 0), (60, 1)])
def test_the_backward_pass_computes_several_passes_again(limit, times):
    """So that their activations need not be kept."""
    policy, tokenizer = load_policy()
    batch, calls = draw(policy, tokenizer), []
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
        rows = train(script, f"run-{kl_coef}", prompts_per_step=4, kl_coef=kl_coef)
        models = [call for call in copies if isinstance(call.args[0], LlamaForCausalLM)]
        assert len(models) == (kl_coef > 0)
        metrics.append([row | {"kl": 0} for row in rows])
    assert metrics[0] == metrics[1]
