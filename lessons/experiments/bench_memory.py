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
from dataclasses import dataclass
from pathlib import Path

from lessons.experiments.bench_speed import Worker
from toy_env.any_model import LOGITS_PER_TOKEN, MOST_LOGITS
from toy_env.cli import MOST_TOKENS, at_least, run_main

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


SIZES = {  # Qwen2.5: layers, width, width of the MLP, heads, key-value heads (arXiv:2412.15115, Table 1)
    "Qwen2.5-0.5B": (24, 896, 4864, 14, 2),
    "Qwen2.5-1.5B": (28, 1536, 8960, 12, 2),
    "Qwen2.5-3B": (36, 2048, 11008, 16, 2),
}


def shape(layers: int, *sizes: int, **ids: int):
    """The transformers configuration of a model of these sizes."""
    from transformers import Qwen2Config

    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    settings = {"vocab_size": 151_936, "tie_word_embeddings": True}
    return Qwen2Config(num_hidden_layers=layers, **dict(zip(names, sizes)), **settings, **ids)


def parameters(model) -> int:
    import torch
    from transformers import Qwen2ForCausalLM

    with torch.device("meta"):
        return Qwen2ForCausalLM(model).num_parameters()


def calculate(model, config: Config, completions: int, prompt: int) -> dict[str, float]:
    """GB that a step takes beyond the process itself: "kept" all the time, and "sampling" and "update" on top of it.

    prompt: tokens of a prompt. The formula of toy_env/README.md.
    """
    half = config.dtype == "bfloat16"
    size = 2 if half else 4  # bytes of an activation
    P, T, layers, V = parameters(model), config.max_new_tokens, model.num_hidden_layers, model.vocab_size
    width, head = prompt + T, model.hidden_size // model.num_attention_heads
    copies = 2 * P if half else 0  # of the weights, for the forward pass
    keys_and_values = completions * width * layers * 2 * model.num_key_value_heads * head * size
    rows = min(completions, max(1, MOST_LOGITS // max(T * V, width * LOGITS_PER_TOKEN)))  # of a pass
    layer = (10 * model.hidden_size + 4 * model.intermediate_size) * size  # a token's activations in one layer
    activations = layers * model.hidden_size * size + layer if config.gradient_checkpointing else layers * layer
    logits = 4 * 4 * V  # of one token: four copies in float32
    drawn = min(completions * logits, 4 * 4 * MOST_LOGITS)
    parts = {
        "kept": P * (16 + 4 * (config.kl_coef > 0)),
        "sampling": keys_and_values + 2 * completions * V * size + drawn + copies,
        "update": rows * width * activations + rows * T * logits + 4 * V * model.hidden_size + copies,
    }
    return {part: size / 1e9 for part, size in parts.items()}


def measure(connection, config: Config, completions: int) -> None:
    """Report the GB of this process before the training starts, and the most while sampling and while updating."""
    import torch
    from transformers import Qwen2ForCausalLM

    from algorithms import grpo
    from toy_env.model import load_policy

    _, tokenizer = load_policy("base")
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e9

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

    grpo.sample, grpo.completion_logps = during("sampling", grpo.sample), during("update", grpo.completion_logps)
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        Qwen2ForCausalLM(shape(config.layers, *SIZES["Qwen2.5-0.5B"][1:], **ids)).save_pretrained(f"{folder}/model")
        tokenizer.save_pretrained(f"{folder}/model")
        phase, most = "process", {"process": resident()}
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
    for name, sizes in SIZES.items():
        cells = []
        for settings in (Config(max_new_tokens=256), Config(max_new_tokens=256, **less)):
            parts = [calculate(shape(*sizes), settings, completions, prompt=100) for completions in (256, 1024)]
            cells.append("{:.0f} ({:.0f})".format(*(p["kept"] + max(p["sampling"], p["update"]) for p in parts)))
        print(f"  {name}, {parameters(shape(*sizes)) / 1e9:.2f} B parameters: {'; '.join(cells)}")
    model = shape(config.layers, *SIZES["Qwen2.5-0.5B"][1:])
    print(f"{config.layers} layers of Qwen2.5-0.5B, {parameters(model):,} parameters; GB measured / calculated")
    for completions in config.completions:
        worker = Worker(measure, config, completions)
        most, calculated = worker.receive(), calculate(model, config, completions, prompt=15)
        worker.close()
        parts = [
            f"{phase} {most[phase]:.2f} / {most['process'] + calculated['kept'] + calculated[phase]:.2f}"
            for phase in ("sampling", "update")
        ]
        print(f"{completions:5} completions: process {most['process']:.2f}, {', '.join(parts)}", flush=True)


if __name__ == "__main__":
    run_main(Config, main, __doc__)
