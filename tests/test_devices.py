"""The scripts on a device that is not the CPU: on a GPU where there is one, and on a stand-in for
one everywhere.

A tensor on the stand-in keeps its values in a CPU tensor that nothing else can reach. As on a GPU,
an operation that mixes it with a CPU tensor is an error, and so is .numpy(): a tensor made in the
wrong place is found on a machine without a GPU. (It is stricter: a GPU takes an index from the
CPU.) Like Apple's mps it has no float64. It draws as the CPU does, so the runs must be the same up
to rounding. It bears the name of torch's "meta" device, which every build of torch has.
"""

import importlib
import json
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    return_and_correct_aliasing,
)
from torch.utils._pytree import tree_leaves, tree_map
from transformers import AutoModelForCausalLM, PreTrainedModel

from toy_env.arithmetic import LEVELS, held_out_problems
from toy_env.model import load_policy, pick_device
from toy_env.rollout import Rollout, completion_logps, sample

SCRIPTS = [
    "reinforce",
    "ppo",
    "grpo",
    "dr_grpo",
    "dapo",
    "gspo",
    "cispo",
]  # rloo and maxrl make no tensor of their own
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
        self.here = here

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return compute(function, args, kwargs or {})

    def __reduce_ex__(self, protocol):
        return self.here.__reduce_ex__(protocol)

    def tolist(self) -> list:
        return self.here.tolist()


class StandIn(TorchDispatchMode):
    """Inside, tensors can be made on the stand-in device, and a module goes there with its tied
    weights tied."""

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
    here = any(
        x.ndim and not isinstance(x, Elsewhere) for x in tensors
    )  # a CPU number may meet a GPU tensor
    if elsewhere and here and function not in ACROSS_DEVICES:
        raise RuntimeError(f"{function}: expected all tensors to be on the same device")
    device = kwargs.get("device")
    if device is not None:
        elsewhere, kwargs = (
            torch.device(device) == STAND_IN,
            kwargs | {"device": torch.device("cpu")},
        )
    if not elsewhere and not any(isinstance(x, Elsewhere) for x in tensors):
        return function(*args, **kwargs)
    args_here, kwargs_here = tree_map(
        lambda x: x.here if isinstance(x, Elsewhere) else x, (args, kwargs)
    )
    result = function(*args_here, **kwargs_here)
    if not elsewhere:
        return result
    if any(x.dtype == torch.float64 for x in tree_leaves(result) if isinstance(x, torch.Tensor)):
        raise TypeError(f"{function}: this device has no float64")
    result = tree_map(lambda x: Elsewhere(x) if isinstance(x, torch.Tensor) else x, result)
    return return_and_correct_aliasing(function, args, kwargs, result)


@pytest.fixture
def stand_in(monkeypatch, base):
    """A context in which the device "meta" computes. `base` is loaded before: torch notes then what
    makes tensors."""
    generator, tensor, load, save = (
        torch.Generator,
        torch.tensor,
        torch.load,
        PreTrainedModel.save_pretrained,
    )
    pretrained = AutoModelForCausalLM.from_pretrained

    def load_on_cpu(*args, **settings):  # transformers has a use of its own for that device
        with _disable_current_modes():
            return pretrained(*args, **settings)

    def tensor_anywhere(data, **settings):  # torch itself makes no values on that device
        if settings.get("device") == STAND_IN:
            return tensor(data, **settings | {"device": "cpu"}).to(STAND_IN)
        return tensor(data, **settings)

    def save_from_cpu(model, folder) -> None:
        save(
            model,
            folder,
            state_dict={name: value.cpu() for name, value in model.state_dict().items()},
        )

    monkeypatch.setattr(torch, "Generator", lambda device="cpu": generator("cpu"))
    monkeypatch.setattr(torch, "tensor", tensor_anywhere)
    monkeypatch.setattr(torch, "load", lambda path, map_location, **how: load(path, **how))
    monkeypatch.setattr(
        importlib.import_module("torch.optim.optimizer"),
        "_get_fused_kernels_supported_devices",
        lambda: ["cpu", "meta"],
    )
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", load_on_cpu)
    monkeypatch.setattr(PreTrainedModel, "save_pretrained", save_from_cpu)
    return StandIn()


def numbers(train, folder: Path, script: str, **settings) -> list[dict]:
    """The numbers of a run: its rows of metrics.jsonl, then the accuracies in its results."""
    settings = {"max_new_tokens": 24} | settings
    rows = train(importlib.import_module(f"algorithms.{script}"), folder, **settings)
    results = json.loads((folder / "results.json").read_text("utf-8"))
    rows = [{name: value for name, value in row.items() if value is not None} for row in rows]
    return [*rows, *(report["accuracy"] for report in results.values())]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_keeps_to_its_device(script, stand_in, train, tmp_path):
    on_cpu = numbers(train, tmp_path / "cpu", script)
    with stand_in:
        numbers(train, tmp_path / "there", script, device="meta", steps=1)
        on_stand_in = numbers(train, tmp_path / "there", script, device="meta", resume=True)
    torch.testing.assert_close(on_stand_in, on_cpu, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(pick_device().type == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_runs_on_a_gpu(script, train, tmp_path):
    """Its self-check, whether sampled and recomputed log-probabilities agree, is part of the
    run."""
    settings = {"device": "auto", "measure_updates": True}
    numbers(train, tmp_path / "run", script, steps=1, **settings)
    first, second, *_ = numbers(train, tmp_path / "run", script, resume=True, **settings)
    assert first["update_norm"] > 0 and second["update_norm"] > 0
    base, _ = load_policy("base")
    trained, _ = load_policy(str(tmp_path / "run/checkpoint"))
    assert not torch.equal(base.lm_head.weight, trained.lm_head.weight)


@pytest.mark.skipif(pick_device().type == "cpu", reason="needs a GPU")
def test_a_gpu_gives_the_log_probabilities_of_the_cpu():
    device, prompts = pick_device(), [problem.prompt for problem in held_out_problems(4, LEVELS)]
    policy, tokenizer = load_policy("base", device)
    settings = {"group_size": 8, "max_new_tokens": 56, "temperature": 1.0}
    rollout = sample(
        policy, tokenizer, prompts, **settings, generator=torch.Generator(device).manual_seed(0)
    )
    tensors = {f.name: getattr(rollout, f.name) for f in fields(rollout) if f.name != "texts"}
    moved = Rollout(**{name: tensor.cpu() for name, tensor in tensors.items()}, texts=rollout.texts)
    on_cpu = completion_logps(load_policy("base")[0], moved, temperature=1.0)
    torch.testing.assert_close(on_cpu, moved.logps, rtol=0, atol=1e-3)
