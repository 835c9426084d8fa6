"""Samplers in another precision than the trainer's, and the weights that correct for them."""

import copy

import pytest
import torch

from lessons.experiments import precision


def test_the_bfloat16_sampler_computes_as_torch_does(base):
    """Linear layers are those of a plain copy in bfloat16, but for the order of a sum: one rounding
    step at most."""
    half = precision.in_precision(base[0], "bfloat16")
    plain = dict(copy.deepcopy(base[0]).to(torch.bfloat16).named_modules())
    generator = torch.Generator().manual_seed(0)
    for name, layer in half.named_modules():
        if isinstance(layer, torch.nn.Linear):
            x = torch.randn(50, layer.in_features, generator=generator).bfloat16()
            ours, theirs = layer(x), plain[name](x)
            assert ours.dtype == torch.bfloat16
            assert (ours == theirs).double().mean() > 0.95
            torch.testing.assert_close(ours, theirs, rtol=2**-7, atol=2**-9)


def test_the_float8_sampler_has_rounded_weights(base):
    before = copy.deepcopy(base[0].state_dict())
    eighth = precision.in_precision(base[0], "float8")
    for name, layer in eighth.named_modules():
        if isinstance(layer, torch.nn.Linear):
            exact = base[0].get_submodule(name).weight
            assert torch.equal(exact, before[f"{name}.weight"])  # a copy was rounded
            largest = exact.abs().max().item()
            scaled = layer.weight / largest * 448  # 448 is the largest float8
            float8 = scaled.to(torch.float8_e4m3fn).float()
            torch.testing.assert_close(scaled, float8, rtol=1e-5, atol=0)
            torch.testing.assert_close(layer.weight, exact, rtol=1 / 15, atol=largest / 1000)


def test_weights_and_spread_by_hand():
    """C = 2: each token's ratio is cut, or once the product of all ratios of a completion."""
    log_ratio = torch.tensor([[3.0, 0.5, 1.0], [1.5, 1.5, 1.0]]).log()
    expected = {"token": [[2.0, 0.5, 1.0], [1.5, 1.5, 1.0]], "sequence": [[1.5], [2.0]]}
    for correction, weights in (expected | {"none": [[1.0], [1.0]]}).items():
        made = precision.sampling_weights(log_ratio, correction)
        torch.testing.assert_close(made, torch.tensor(weights))
    mask = torch.tensor([[True, True, True], [True, True, False]])
    # Of 3, .5, 1, 1.5, 1.5 (ddof 1), and of 1.5, 2.25
    spread = {"spread of tokens": 0.875**0.5, "spread of completions": 0.75 / 2**0.5}
    assert precision.spread(log_ratio, mask) == pytest.approx(spread)
