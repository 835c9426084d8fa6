"""Samplers in another precision than the trainer's, and the weights that correct for them."""

import copy
import math

import pytest
import torch

from lessons.experiments import precision
from toy_env.model import load_policy


def test_the_bfloat16_sampler_computes_as_torch_does():
    """Linear layers are those of a plain copy in bfloat16, but for the order of a sum: one rounding
    step at most."""
    policy, _ = load_policy("base")
    half = precision.in_precision(policy, "bfloat16")
    plain = dict(copy.deepcopy(policy).to(torch.bfloat16).named_modules())
    generator = torch.Generator().manual_seed(0)
    for name, layer in half.named_modules():
        if isinstance(layer, torch.nn.Linear):
            x = torch.randn(50, layer.in_features, generator=generator).bfloat16()
            ours, theirs = layer(x), plain[name](x)
            assert ours.dtype == torch.bfloat16
            assert (ours == theirs).double().mean() > 0.95
            torch.testing.assert_close(ours, theirs, rtol=2**-7, atol=2**-9)


def test_samplers_round_a_copy():
    policy, _ = load_policy("base")
    before = copy.deepcopy(policy.state_dict())
    half, eighth = (precision.in_precision(policy, name) for name in precision.CORRECTIONS)
    assert precision.in_precision(policy, "float32") is policy and half.dtype == torch.bfloat16
    assert all(torch.equal(weight, before[name]) for name, weight in policy.state_dict().items())
    for name, module in policy.named_modules():
        if isinstance(module, torch.nn.Linear):
            exact, rounded = module.weight, eighth.get_submodule(name).weight
            scaled = rounded / exact.abs().max() * 448  # 448 is the largest float8
            torch.testing.assert_close(
                scaled, scaled.to(torch.float8_e4m3fn).float(), rtol=1e-5, atol=0
            )
            large = (
                exact.abs() > exact.abs().max() / 1000
            )  # below that e4m3 has fewer than three bits
            assert ((rounded / exact)[large] - 1).abs().max() <= 1 / 16 + 1e-6
        elif name.endswith("norm"):
            assert torch.equal(module.weight, eighth.get_submodule(name).weight)


def test_sampling_weights_by_hand():
    """C = 2: of tokens one by one; of a completion the product of all its ratios, cut once."""
    log_ratio = torch.tensor([[3.0, 0.5, 1.0], [1.5, 1.5, 1.0]]).log()
    tokens = precision.sampling_weights(log_ratio, "token")
    torch.testing.assert_close(tokens, torch.tensor([[2.0, 0.5, 1.0], [1.5, 1.5, 1.0]]))
    torch.testing.assert_close(
        precision.sampling_weights(log_ratio, "sequence"), torch.tensor([[1.5], [2.0]])
    )
    assert precision.sampling_weights(log_ratio, "none").tolist() == [[1.0], [1.0]]


def test_spread_by_hand():
    log_ratio = torch.tensor([[3.0, 1.0], [1.0, 1.0]]).log()
    found = precision.spread(log_ratio, torch.tensor([[True, True], [True, False]]))
    assert found["spread of tokens"] == pytest.approx(math.sqrt(4 / 3))  # 3, 1, 1
    assert found["spread of completions"] == pytest.approx(math.sqrt(2))  # 3, 1
    assert (found["tokens above 2"], found["completions above 2"]) == (pytest.approx(1 / 3), 0.5)
