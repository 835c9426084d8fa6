"""The scripts on a device that is not the CPU: on a GPU, if there is one, and on a stand-in.

A tensor on the stand-in keeps its values in a CPU tensor that nothing else can reach. As on a GPU,
an operation that mixes it with a CPU tensor is an error, and so is .numpy(), so a tensor made in
the wrong place is found on a machine without a GPU. As on a GPU, an index may come from the CPU.
Like Apple's mps it has no float64. It draws as the CPU does, so runs are the same up to rounding.
It bears the name of torch's "meta" device, which every build of torch has.
"""

import importlib

import pytest
import torch
from conftest import SCRIPTS
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    return_and_correct_aliasing,
)
from torch.utils._pytree import tree_leaves, tree_map
from transformers import AutoModelForCausalLM, PreTrainedModel

from toy_env.model import pick_device

STAND_IN = torch.device("meta")
ACROSS_DEVICES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}


class Elsewhere(torch.Tensor):
    """A tensor on the stand-in device; `here` holds its values."""

    @staticmethod
    def __new__(cls, here: torch.Tensor) -> "Elsewhere":
        layout = {
            "strides": here.stride(),
            "storage_offset": here.storage_offset(),
            "dtype": here.dtype,
        }
        return torch.Tensor._make_wrapper_subclass(cls, here.size(), **layout, device=STAND_IN)

    def __init__(self, here: torch.Tensor) -> None:
        if here.dtype == torch.float64:
            raise TypeError("this device has no float64")
        self.here = here

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return compute(function, args, kwargs or {})

    def __reduce_ex__(self, protocol):
        return self.here.__reduce_ex__(protocol)

    def tolist(self) -> list:
        return self.here.tolist()


class StandIn(TorchDispatchMode):
    """A context in which tensors can be made on the stand-in, and a module moves there with its
    tied weights tied."""

    def __enter__(self):
        torch.__future__.set_swap_module_params_on_conversion(True)
        return super().__enter__()

    def __exit__(self, *error):
        torch.__future__.set_swap_module_params_on_conversion(False)
        return super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return compute(function, args, kwargs or {})


def compute(function, args, kwargs):
    """One operation of torch, on the CPU or on the stand-in, and never on both."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    elsewhere = any(isinstance(x, Elsewhere) for x in tensors)
    # A number on the CPU may meet a tensor on a GPU.
    here = any(x.ndim and not isinstance(x, Elsewhere) for x in tensors)
    from_cpu = function is torch.ops.aten.index.Tensor and isinstance(args[0], Elsewhere)
    if elsewhere and here and not from_cpu and function not in ACROSS_DEVICES:
        raise RuntimeError(f"{function}: expected all tensors to be on the same device")
    device = kwargs.get("device")
    if device is not None:
        elsewhere = torch.device(device) == STAND_IN
        kwargs = kwargs | {"device": torch.device("cpu")}
    if not elsewhere and not any(isinstance(x, Elsewhere) for x in tensors):
        return function(*args, **kwargs)
    args_here, kwargs_here = tree_map(
        lambda x: x.here if isinstance(x, Elsewhere) else x, (args, kwargs)
    )
    result = function(*args_here, **kwargs_here)
    if not elsewhere:
        return result
    result = tree_map(lambda x: Elsewhere(x) if isinstance(x, torch.Tensor) else x, result)
    return return_and_correct_aliasing(function, args, kwargs, result)


@pytest.fixture
def stand_in(monkeypatch, base):
    """A context in which the device "meta" computes. `base` has to be loaded before it."""
    generator, tensor, load, autocast = torch.Generator, torch.tensor, torch.load, torch.autocast
    save, pretrained = PreTrainedModel.save_pretrained, AutoModelForCausalLM.from_pretrained

    def load_on_cpu(*args, **settings):  # transformers has a use of its own for that device
        with _disable_current_modes():
            return pretrained(*args, **settings)

    def tensor_anywhere(data, **settings):  # torch itself makes no values on that device
        if settings.get("device") == STAND_IN:
            return tensor(data, **settings | {"device": "cpu"}).to(STAND_IN)
        return tensor(data, **settings)

    def save_from_cpu(model, folder) -> None:
        state = {name: value.cpu() for name, value in model.state_dict().items()}
        save(model, folder, state_dict=state)

    monkeypatch.setattr(torch, "Generator", lambda device="cpu": generator("cpu"))
    monkeypatch.setattr(torch, "tensor", tensor_anywhere)
    monkeypatch.setattr(torch, "autocast", lambda device, **how: autocast("cpu", **how))
    monkeypatch.setattr(torch, "load", lambda path, map_location, **how: load(path, **how))
    optim = importlib.import_module("torch.optim.optimizer")
    fused_on = "_get_fused_kernels_supported_devices"
    monkeypatch.setattr(optim, fused_on, lambda: ["cpu", "meta"])
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", load_on_cpu)
    monkeypatch.setattr(PreTrainedModel, "save_pretrained", save_from_cpu)
    return StandIn()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_keeps_to_its_device(script, stand_in, train):
    module = importlib.import_module(f"algorithms.{script}")
    on_cpu = train(module, "cpu", eval_every=2)
    with stand_in:
        train(module, "there", device="meta", steps=1)
        on_stand_in = train(module, "there", device="meta", eval_every=2, resume=True)
    torch.testing.assert_close(on_stand_in, on_cpu, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(pick_device().type == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_runs_on_a_gpu(script, train):
    """Sampled and scored log-probabilities are compared in its first step. It is resumed once."""
    module = importlib.import_module(f"algorithms.{script}")
    train(module, steps=1, device="auto")
    assert [row["step"] for row in train(module, device="auto", resume=True)] == [1, 2]
