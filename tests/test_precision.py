"""bfloat16, recomputed layers and passes: what they change, and that they change nothing else."""

import copy

import numpy as np
import pytest
import torch
from conftest import build_tiny_model
from enumeration import flat_gradient
from torch import Tensor

from algorithms import dr_grpo, grpo, ppo
from toy_env import UsageError, any_model, checks
from toy_env.any_model import checkpoint_layers, in_float32, passes
from toy_env.checks import check_model, self_check
from toy_env.model import end_ids, load_policy
from toy_env.rollout import completion_logps, in_passes, sample

PROMPTS = ["1+1?", "29+46-36?", "5-5?", "12+34-5+6-7?"]
KEPT = 7 / 256  # a few roundings to bfloat16, each with a relative error of up to 1/256


def draw(policy, tokenizer, group_size=8):
    return sample(policy, tokenizer, PROMPTS, group_size, 20, 1.0, torch.Generator().manual_seed(0))


def distance(ours: Tensor, theirs: Tensor) -> float:
    """Of two gradients: the norm of their difference over the norm of the second."""
    return ((ours - theirs).norm() / theirs.norm()).item()


@pytest.fixture
def half():
    """The shipped base model, computing in bfloat16."""
    return load_policy("base", dtype="bfloat16")


def test_the_forward_pass_is_bfloat16_and_weights_gradients_and_log_probs_are_float32(half):
    policy, tokenizer = half
    batch = draw(policy, tokenizer)
    ids = {"input_ids": batch.prompt_ids, "attention_mask": batch.prompt_mask}
    assert policy(**ids).logits.dtype == torch.bfloat16
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    logps = completion_logps(policy, batch, 1.0)
    assert batch.logps.dtype == batch.entropies.dtype == logps.dtype == torch.float32
    assert flat_gradient(logps.sum(), policy).dtype == torch.float32
    assert not torch.is_autocast_enabled("cpu")
    with in_float32(policy):
        assert policy(**ids).logits.dtype == torch.float32
    assert policy(**ids).logits.dtype == torch.bfloat16


def test_bfloat16_is_float32_with_fewer_digits(half, base):
    """Sampled and scored, value and gradient are within rounding of float32's, and not equal to
    them."""
    policy, tokenizer = half
    batch = draw(policy, tokenizer)
    scored, exact = completion_logps(policy, batch, 1.0), completion_logps(base[0], batch, 1.0)
    for logps in (scored, batch.logps):
        error = (logps - exact).abs()[batch.mask]
        assert 0 < error.mean() < KEPT and error.max() < 0.3
    ours, theirs = (flat_gradient(x.sum(), p) for x, p in ((scored, policy), (exact, base[0])))
    assert 1e-4 < distance(ours, theirs) < 3 * KEPT
    assert torch.equal(
        draw(policy, tokenizer).completion_ids, batch.completion_ids
    )  # the same seed, the same draws


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_a_copy_computes_with_its_own_weights_in_the_same_precision(gradient_checkpointing):
    """The reference policy and the critic are copies: they must not call the policy that they were
    copied from."""
    policy, tokenizer = load_policy("base", "cpu", "bfloat16", gradient_checkpointing)
    batch = draw(policy, tokenizer)
    reference, critic = copy.deepcopy(policy).requires_grad_(False), ppo.Critic(policy)
    torch.nn.init.ones_(critic.head.weight)
    before = completion_logps(reference, batch, 1.0), in_passes(critic, batch, 10**6)
    assert torch.equal(before[0], completion_logps(policy, batch, 1.0))
    seen = []
    critic.transformer.register_forward_hook(
        lambda module, args, output: seen.append(torch.is_autocast_enabled("cpu"))
    )
    layer = critic.transformer.layers[0].mlp.up_proj
    layer.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
    assert not completion_logps(policy, batch, 1.0).equal(before[0])
    assert torch.equal(completion_logps(reference, batch, 1.0), before[0])
    assert (
        torch.equal(in_passes(critic, batch, 10**6), before[1]) and before[1].dtype == torch.float32
    )
    assert set(seen) == {torch.bfloat16, False}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("max_tokens_per_pass", [60, 10**6])
def test_layers_computed_again_have_the_same_gradient(dtype, max_tokens_per_pass):
    (plain, tokenizer), (again, _) = (
        load_policy("base", dtype=dtype, gradient_checkpointing=x) for x in (False, True)
    )
    batch, same = draw(plain, tokenizer), draw(again, tokenizer)
    assert torch.equal(batch.logps, same.logps)
    both = [completion_logps(policy, batch, 1.0, max_tokens_per_pass) for policy in (plain, again)]
    assert torch.equal(*both)
    assert torch.equal(
        *(flat_gradient(logps.square().sum(), p) for logps, p in zip(both, (plain, again)))
    )
    critics = ppo.Critic(plain), ppo.Critic(again)
    for critic in critics:
        torch.nn.init.ones_(critic.head.weight)
    values = (in_passes(critic, batch, max_tokens_per_pass) for critic in critics)
    assert torch.equal(
        *(flat_gradient(value.square().sum(), critic) for value, critic in zip(values, critics))
    )


def test_layers_computed_again_keep_less():
    """Of what a forward pass keeps for the backward pass, weights aside."""

    def kept_bytes(policy) -> int:
        weights = {p.untyped_storage().data_ptr() for p in policy.parameters()}
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            kept.update(
                {storage.data_ptr(): storage.nbytes()} if storage.data_ptr() not in weights else {}
            )
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            assert completion_logps(policy, batch, 1.0).requires_grad
        return sum(kept.values())

    (plain, tokenizer), (again, _) = (
        load_policy("base", gradient_checkpointing=x) for x in (False, True)
    )
    batch = draw(plain, tokenizer)
    assert kept_bytes(again) < 0.5 * kept_bytes(plain)


def test_passes_change_no_gradient_of_bfloat16(half, base):
    """Beyond rounding, which depends on the processor: in passes, whose gradients are added in
    float32, it is no further from the gradient of float32 than whole. Of float32 weights:
    test_rollout.py."""
    batch = draw(*half)
    whole, cut, exact = (flat_gradient(completion_logps(policy, batch, 1.0, most).sum(), policy)
                         for policy, most in ((half[0], 10**6), (half[0], 60), (base[0], 10**6)))  # fmt: skip
    assert (
        1e-4 < distance(cut, exact) < 1.2 * distance(whole, exact)
        and distance(cut, whole) < 2 * KEPT
    )


# Vocabulary


def test_a_large_vocabulary_makes_passes_smaller(tokenizer):
    """The logits of a pass, which are what memory holds at once, count as its tokens: 4,096 for
    one."""
    policy = build_tiny_model(40_960)
    batch = draw(policy, tokenizer)
    shapes = []
    policy.lm_head.register_forward_hook(lambda module, args, output: shapes.append(output.shape))
    budget = 500
    logps = completion_logps(policy, batch, 1.0, budget)
    assert len(shapes) > 10 and {shape[2] for shape in shapes} == {40_960}
    for b, t, vocabulary in shapes:  # one position more than the completions have
        assert b * (t - 1) * vocabulary <= budget * any_model.LOGITS_PER_TOKEN or b == 1
    first = len(shapes)
    logps.sum().backward()
    assert len(shapes) == 2 * first  # each pass is computed again, so that its logits are not kept
    torch.testing.assert_close(
        logps, completion_logps(policy, batch, 1.0, 10**9), atol=1e-5, rtol=0
    )
    lengths = (tokens.sum(dim=1).tolist() for tokens in (batch.prompt_mask, batch.mask))
    assert len(passes(*lengths, budget)[0]) < first  # of a critic, which has no logits


# No reference policy where there is no KL


@pytest.mark.parametrize("script", [grpo, dr_grpo, ppo])
def test_without_a_kl_there_is_no_reference_and_nothing_else_changes(script, train, spy):
    """The same metrics as with a KL of next to no weight, except for `kl`."""
    passes, copies = spy(script, "completion_logps"), spy(copy, "deepcopy")
    metrics = {}
    for kl_coef in (0.0, 1e-30):
        passes.clear(), copies.clear()
        rows = train(script, f"run-{kl_coef}", prompts_per_step=4, kl_coef=kl_coef)
        assert len({id(call.args[0]) for call in passes}) == 1 + (kl_coef > 0)
        whole = [
            call
            for call in copies
            if isinstance(call.args[0], torch.nn.Module) and len(call.args) == 1
        ]
        assert len(whole) == (kl_coef > 0) + (script is ppo)  # whose critic is a copy too
        assert all(("kl" in row) == (kl_coef > 0) for row in rows)
        metrics[kl_coef] = [
            {name: value for name, value in row.items() if name != "kl"} for row in rows
        ]
    assert metrics[0.0] == metrics[1e-30] and len(metrics[0.0]) == 2


# What is checked and reported


def test_the_self_check_follows_the_precision_and_shows_a_prompt(half):
    policy, tokenizer = half
    batch, ends = draw(policy, tokenizer), end_ids(policy, tokenizer)
    logps = completion_logps(policy, batch, 1.0)
    text = self_check(batch, logps, None, tokenizer, ends, "bfloat16")
    mean = (logps - batch.logps).abs()[batch.mask].mean().item()
    assert f", mean {mean:.0e}: rounding in bfloat16" in text and text.endswith(
        "as the model reads it:\n    <bos>1+1?\n"
    )
    moved = (
        batch.logps
        + 0.01 * torch.arange(batch.mask.numel()).view(batch.mask.shape).sin() * batch.mask
    )
    text = self_check(batch, moved, None, tokenizer, ends, "bfloat16")
    log_ratio = (moved - batch.logps).numpy()
    spreads = np.exp(log_ratio[batch.mask.numpy()]).std(), np.exp(log_ratio.sum(axis=1)).std()
    assert (
        "trainer / sampler spreads by {:.0e} over tokens, {:.0e} over completions".format(*spreads)
        in text
    )
    assert spreads[0] > 0.005 and f"{spreads[0]:.0e}" != f"{spreads[1]:.0e}"
    with pytest.raises(RuntimeError, match=r"expected at most 0.001"):
        self_check(batch, batch.logps + 0.002, None, tokenizer, ends)
    shifted = logps.roll(1, dims=1)
    with pytest.raises(
        UsageError, match=r"in bfloat16 the model's log-probabilities differ by .* without --dtype"
    ):
        self_check(batch, shifted, None, tokenizer, ends, "bfloat16")


def test_a_model_is_checked_in_float32_whatever_it_computes_in(half, monkeypatch):
    """Log-probabilities that are wrong by .002 are refused; rounding would have hidden them."""
    policy, tokenizer = half
    check_model(policy, tokenizer, 56)
    alone = checks.token_logps
    monkeypatch.setattr(checks, "token_logps", lambda *args: alone(*args) + 0.002)
    with pytest.raises(
        UsageError, match=r"log-probabilities change .* with the batch \(by 2.0e-03\)"
    ):
        check_model(policy, tokenizer, 56)


def test_a_model_without_layers_to_compute_again_is_refused(tiny):
    tiny.model.layers = torch.nn.ModuleList()
    with pytest.raises(
        UsageError, match="--gradient_checkpointing: this model does not support it"
    ):
        checkpoint_layers(tiny)
