"""The memory of a training step, measured and calculated, and what it comes to for real models. A benchmark.

    python lessons/experiments/bench_memory.py                          half an hour on one core
    python lessons/experiments/bench_memory.py --dtype bfloat16 --gradient_checkpointing --kl_coef 0
    python lessons/experiments/bench_memory.py --completions            only calculate

A step of GRPO runs on a randomly initialised model of the shape of Qwen2.5-0.5B, cut to a few layers, with its whole
vocabulary of 151,936 tokens. Each number of completions has a process of its own, whose resident memory is watched
while it samples and while it updates. No completion of such a model ends early, so all have --max_new_tokens.
"""

from toy_env import UsageError, take_over_ctrl_c

if __name__ == "__main__":
    take_over_ctrl_c()

import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from lessons.experiments.bench_speed import Worker
from toy_env.any_model import LOGITS_PER_TOKEN, MOST_LOGITS
from toy_env.cli import MOST_TOKENS, at_least, run_main

GB = 1e9
GROUP_SIZE = 8
MEASURED_WITH = ("max_new_tokens", "dtype", "gradient_checkpointing", "kl_coef")  # settings of the step


@dataclass
class Config:
    completions: tuple[int, ...] = (64, 256)  # of a rollout batch, groups of 8; none to calculate only
    layers: at_least(1, 1000) = 2  # of the model that is measured
    max_new_tokens: at_least(1) = 56  # length of every completion
    dtype: str = "float32"  # of the forward pass, float32 or bfloat16
    gradient_checkpointing: bool = False  # compute each layer again in the backward pass
    kl_coef: at_least(0.0) = 0.04  # 0 leaves out the reference policy

    def check(self) -> None:
        for completions in self.completions:
            if completions < 1 or completions % GROUP_SIZE:
                raise UsageError(f"--completions must be multiples of {GROUP_SIZE}, not {completions}")
            if completions * self.max_new_tokens > MOST_TOKENS:
                raise UsageError(f"--completions x --max_new_tokens must be {MOST_TOKENS} tokens or fewer")
        if self.dtype not in ("float32", "bfloat16"):
            raise UsageError(f"--dtype must be float32 or bfloat16, not {self.dtype!r}")


@dataclass(frozen=True)
class Shape:
    """A decoder with grouped queries, a gated MLP and tied embeddings, like Qwen2.5's up to 3B (arXiv:2412.15115)."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    key_value_heads: int
    head: int  # width of a head
    vocabulary: int = 151_936

    @property
    def parameters(self) -> int:
        keys = self.key_value_heads * self.head
        attention = 2 * self.hidden * self.hidden + self.hidden + 2 * (self.hidden + 1) * keys
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.vocabulary * self.hidden + self.layers * layer + self.hidden


SHAPES = [
    Shape("Qwen2.5-0.5B", 24, 896, 4864, 2, 64),
    Shape("Qwen2.5-1.5B", 28, 1536, 8960, 2, 128),
    Shape("Qwen2.5-3B", 36, 2048, 11008, 2, 128),
]


def calculate(shape: Shape, config: Config, completions: int, prompt: int) -> dict[str, float]:
    """Bytes that a step takes beyond the process itself: "kept" all the time, and "sampling" and "update" on top of it.

    prompt: tokens of a prompt. The formula of toy_env/README.md.
    """
    half = config.dtype == "bfloat16"
    size = 2 if half else 4  # bytes of an activation
    P, T = shape.parameters, config.max_new_tokens
    width = prompt + T
    copies = 2 * P if half else 0  # of the weights, for the forward pass
    keys_and_values = completions * width * shape.layers * 2 * shape.key_value_heads * shape.head * size
    rows = min(completions, max(1, MOST_LOGITS // max(T * shape.vocabulary, width * LOGITS_PER_TOKEN)))  # of a pass
    layer = (10 * shape.hidden + 4 * shape.intermediate) * size  # a token's activations in one layer
    activations = shape.layers * layer
    if config.gradient_checkpointing:
        activations = shape.layers * shape.hidden * size + layer
    logits = 4 * 4 * shape.vocabulary  # of one token: four copies in float32
    drawn = min(completions * logits, 4 * 4 * MOST_LOGITS)
    return {
        "kept": P * (16 + 4 * (config.kl_coef > 0)),
        "sampling": keys_and_values + 2 * completions * shape.vocabulary * size + drawn + copies,
        "update": rows * width * activations + rows * T * logits + 4 * shape.vocabulary * shape.hidden + copies,
    }


def measure(connection, shape: Shape, config: Config, completions: int) -> None:
    """Report the bytes of this process before the model is loaded, and the most while sampling and while updating."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from algorithms import grpo
    from toy_env.model import load_policy

    _, tokenizer = load_policy("base")
    phase = "before"

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def watch() -> None:
        while True:
            most[phase] = max(most.get(phase, 0), resident())
            time.sleep(0.002)

    def during(name: str, function: Callable) -> Callable:
        def call(*args, **kwargs):
            nonlocal phase
            phase = name
            return function(*args, **kwargs)

        return call

    grpo.sample = during("sampling", grpo.sample)
    grpo.completion_logps = during("update", grpo.completion_logps)
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
        heads = {"num_attention_heads": shape.hidden // shape.head, "num_key_value_heads": shape.key_value_heads}
        sizes = {"hidden_size": shape.hidden, "intermediate_size": shape.intermediate, "vocab_size": shape.vocabulary}
        model = Qwen2ForCausalLM(
            Qwen2Config(num_hidden_layers=shape.layers, tie_word_embeddings=True, **sizes, **heads, **ids)
        )
        assert model.num_parameters() == shape.parameters
        model.save_pretrained(f"{folder}/model")
        tokenizer.save_pretrained(f"{folder}/model")
        del model
        most = {"process": resident()}
        threading.Thread(target=watch, daemon=True).start()
        settings = {name: getattr(config, name) for name in MEASURED_WITH}
        batch = {"prompts_per_step": completions // GROUP_SIZE, "group_size": GROUP_SIZE, "num_minibatches": 1}
        folders = {"model": f"{folder}/model", "run_dir": f"{folder}/run", "device": "cpu"}
        # two steps: the second has the optimizer's state from its start
        grpo.train(grpo.Config(steps=2, eval_problems=1, eval_every=0, **folders, **batch, **settings))
    connection.send(most)


def main(config: Config) -> None:
    """Print what was measured beside what is calculated, and what is calculated for models of full size."""
    less = {"dtype": "bfloat16", "gradient_checkpointing": True, "kl_coef": 0.0}
    print("GB calculated for 256 completions (for 1,024) of 256 tokens, prompts of 100, beside the process itself:")
    print("as it is; with --dtype bfloat16 --gradient_checkpointing --kl_coef 0")
    for shape in SHAPES:
        cells = []
        for settings in (Config(max_new_tokens=256), Config(max_new_tokens=256, **less)):
            parts = [calculate(shape, settings, completions, prompt=100) for completions in (256, 1024)]
            cells.append("{:.0f} ({:.0f})".format(*((p["kept"] + max(p["sampling"], p["update"])) / GB for p in parts)))
        print(f"  {shape.name}, {shape.parameters / 1e9:.2f} B parameters: {'; '.join(cells)}")
    if not config.completions:
        return
    shape = replace(SHAPES[0], name="", layers=config.layers)
    print(f"{config.layers} layers of Qwen2.5-0.5B, {shape.parameters:,} parameters; GB measured / calculated")
    for completions in config.completions:
        worker = Worker(measure, shape, config, completions)
        most, calculated = worker.receive(), calculate(shape, config, completions, prompt=15)
        worker.close()
        parts = [
            f"{phase} {most[phase] / GB:.2f} / {(most['process'] + calculated['kept'] + calculated[phase]) / GB:.2f}"
            for phase in ("sampling", "update")
        ]
        print(f"{completions:5} completions: process {most['process'] / GB:.2f}, {', '.join(parts)}", flush=True)


if __name__ == "__main__":
    run_main(Config, main, __doc__)
