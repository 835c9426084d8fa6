"""A step of grpo.py against the same step of TRL's GRPOTrainer. A benchmark, not a test.

    pip install -e '.[parity]'                          for TRL
    python lessons/experiments/bench_speed.py           about 5 minutes; leave the machine alone
    python lessons/experiments/bench_speed.py --real    real_model.py's model instead: 40 minutes

With --publish the numbers go to bench_speed.json beside this file, those of --real and of another
--device to entries of their own, and from there into the tables of README.md and toy_env/README.md.

Each side has a process of its own. They take turns, a few steps each, so that whatever slows the
machine slows both. Both do the same work: the same model, prompts, group size and length limit,
four updates a step, KL to a reference. The learning rate is 1e-12, so that the policy does not
change and all steps sample the same cost.

With --real a step is 64 completions of exactly 8 and of exactly 64 tokens by SmolLM2-135M, in two
updates without KL: its end token is one that it does not write. Memory is the peak of a process, on
Linux and macOS, or of what PyTorch took of a GPU; that of grpo.py is also measured with the
settings of MEMORY.
"""

import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np
import torch
from tqdm import tqdm

from algorithms import grpo
from lessons.experiments.harness.grid import compact, markdown, rounded, write_pages
from lessons.experiments.harness.learning import trained
from lessons.experiments.harness.pool import silence
from toy_env.model import load_policy, model_prompts, pick_device
from toy_env.run import parse
from toy_env.tasks import find_module

RESULTS, SUMS = Path(__file__).parent / "bench_speed.json", "lessons.experiments.sums"
RATE = 1e-12  # at which the policy does not change
WARM_UP = 2  # steps that are not counted
MEMORY = {
    "`--max_tokens_per_pass 1365`": {"max_tokens_per_pass": 1365},
    "`--max_tokens_per_pass 1365 --kl_coef 0.04`": {"max_tokens_per_pass": 1365, "kl_coef": 0.04},
    "`--max_tokens_per_pass 1365 --dtype bfloat16`": {
        "max_tokens_per_pass": 1365,
        "dtype": "bfloat16",
    },
    "`--max_tokens_per_pass 341`": {"max_tokens_per_pass": 341},
}


@dataclass
class Config:
    real: bool = False  # time SmolLM2-135M instead, which real_model.py fetches
    device: str = "cpu"  # cpu or cuda
    publish: bool = False  # update bench_speed.json and the tables


# ---------------------------------------------------------------------- in a process of its own


def peak_memory(device: str) -> float:
    """The peak of this process's memory, or of what it took of the GPU, in GB."""
    import resource  # not on Windows

    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e9 if sys.platform == "darwin" else 1e6)  # bytes there, kB on Linux


def ours(settings: dict, steps: int) -> tuple[list[float], float]:
    """The seconds of each step of grpo.py, and the peak of its memory."""
    common = {"steps": steps, "learning_rate": RATE, "eval_problems": 1}
    with trained(grpo, common | settings) as (_, rows):
        return [row["seconds"] for row in rows], peak_memory(settings["device"])


def trl(settings: dict, steps: int) -> tuple[list[float], float]:
    """The same of GRPOTrainer with these settings, as scale_out.py makes it."""
    from transformers import TrainerCallback

    from lessons.experiments import scale_out

    config, problems, times = grpo.Config(**settings), [], []
    task = find_module(config.task)
    for step in range(1, steps + 2):  # the times between the ends of steps are one fewer
        rng = random.Random(f"0/{step}")  # as grpo.py with seed 0 draws them
        rng.getrandbits(63)
        problems += task.sample_problems(config.prompts_per_step, task.LEVELS, rng)

    class Clock(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs) -> None:
            if state.global_step % config.num_minibatches == 0:
                times.append(time.perf_counter())

    prompts = model_prompts(load_policy(config.model)[1], problems, task)
    rows = [{"prompt": text, "answer": p.answer} for text, p in zip(prompts, problems)]
    with silence(), tempfile.TemporaryDirectory() as folder:
        theirs = scale_out.Config(
            model=config.model,
            steps=steps + 1,
            learning_rate=RATE,
            warmup_steps=0,
            prompts_per_step=config.prompts_per_step,
            num_minibatches=config.num_minibatches,
            max_new_tokens=config.max_new_tokens,
            run_dir=folder,
            trl=(
                f"use_cpu={config.device == 'cpu'}",
                f"bf16={config.dtype == 'bfloat16'}",
                f"beta={config.kl_coef}",
            ),
        )
        trainer = scale_out.build_trainer(theirs, scale_out.trl_settings(theirs, 1), rows)
        trainer.add_callback(Clock())
        trainer.train()
    return np.diff(times).tolist(), peak_memory(config.device)


# ---------------------------------------------------------------------- in the parent process


def alone(side: Callable, settings: dict, steps: int) -> tuple[list[float], float]:
    """What a side returns from a process of its own, without the warm-up."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        seconds, memory = pool.submit(side, settings, WARM_UP + steps).result()
    return seconds[WARM_UP:], memory


def toy_cases(folder: str) -> dict[str, dict]:
    """The shipped policy, and one that is trained here: its completions are longer."""
    grpo.train(grpo.Config(steps=40, eval_problems=1, run_dir=f"{folder}/run"))
    return {"base": {"model": "base"}, "trained": {"model": f"{folder}/run/checkpoint"}}


def real_cases(folder: str) -> dict[str, dict]:
    """SmolLM2-135M with an end token that it does not write, and completions of 8 and 64 tokens."""
    from lessons.experiments.real_model import MODEL, prepare

    prepare("")
    policy, tokenizer = load_policy(str(MODEL))
    tokenizer.eos_token, tokenizer.chat_template = "<empty_output>", None  # its turns end, too
    policy.generation_config.eos_token_id = tokenizer.eos_token_id
    for part in (policy, tokenizer):
        part.save_pretrained(f"{folder}/real")
    real = {"model": f"{folder}/real", "task": SUMS, "prompts_per_step": 8}
    real |= {"num_minibatches": 2, "kl_coef": 0.0}
    return {f"SmolLM2, {n} tokens": real | {"max_new_tokens": n} for n in (8, 64)}


def measure(settings: dict, turns: int, steps: int) -> dict:
    """The parameters of the model, the median seconds of a step of each side, the median of their
    ratio, and the peak of their memory."""
    seconds, memory = {"ours": [], "trl": []}, {}
    for _ in range(turns):
        for side in (ours, trl):
            name = side.__name__
            of_turn, memory[name] = alone(side, settings, steps)
            seconds[name] += of_turn
    return {
        "parameters": load_policy(settings["model"])[0].num_parameters(),
        "seconds": {name: median(each) for name, each in seconds.items()},
        "speed_against_trl": median(np.divide(seconds["trl"], seconds["ours"]).tolist()),
        "memory": memory,
    }


def main(config: Config) -> None:
    """Time one part, toy or real, print its table, and with --publish write it onto the pages."""
    name, make_cases, turns, steps, more = "toy", toy_cases, 4, 5, {}
    if config.real:
        name, make_cases, turns, steps, more = "real", real_cases, 2, 2, MEMORY
    machine = f"{os.cpu_count()} {platform.machine()} cores"
    if pick_device(config.device).type == "cuda":
        name, machine = f"{name}, GPU", torch.cuda.get_device_name()
    models, device = {}, {"device": config.device}
    with tempfile.TemporaryDirectory() as folder:
        with silence():
            cases = {title: case | device for title, case in make_cases(folder).items()}
        for title, case in tqdm(cases.items()):
            models[title] = measure(case, turns, steps)
            tqdm.write(f"{title}: {json.dumps(rounded(models[title]))}")  # in case it is stopped
        memory = {
            title: alone(ours, cases["SmolLM2, 64 tokens"] | change, 0)[1]
            for title, change in more.items()
        }
    measured = rounded({name: {"machine": machine, "models": models, "memory": memory}})
    print(table(measured))
    if config.publish:
        results = json.loads(RESULTS.read_text("utf-8")) | measured
        RESULTS.write_text(compact(results, 3) + "\n", "utf-8")
        write_pages(texts())


# ---------------------------------------------------------------------- the table


def texts() -> dict[Path, dict[str, str]]:
    """The tables of the committed results, by the page and the place where they stand."""
    results = json.loads(RESULTS.read_text("utf-8"))
    toy_env = RESULTS.parents[2] / "toy_env/README.md"
    speed = {"speed": table(results)}
    return {RESULTS.parent / "README.md": speed, toy_env: {"memory": memory_table(results["real"])}}


def table(results: dict) -> str:
    """The seconds of all parts as a table of Markdown."""
    header = ["policy, parameters", "ours, a step", "TRL, a step", "TRL / ours"]
    rows = []
    for part in results.values():
        for name, row in part["models"].items():
            seconds = (f"{1e3 * row['seconds'][side]:,.0f} ms" for side in ("ours", "trl"))
            ratio = f"{row['speed_against_trl']:.2f}"
            rows.append([f"{name}, {row['parameters']:,}", *seconds, ratio])
    return markdown(header, rows)


def memory_table(real: dict) -> str:
    """The peaks of memory of SmolLM2 as a table of Markdown."""
    rows = []
    for name, row in real["models"].items():
        peaks = (f"{gb:.1f}" for gb in row["memory"].values())
        rows.append([name.removeprefix("SmolLM2, "), *peaks])
    rows += [[f"64 tokens, {name}", f"{gb:.1f}", ""] for name, gb in real["memory"].items()]
    return markdown(["64 completions of", "grpo.py, GB", "TRL, GB"], rows)


if __name__ == "__main__":
    main(parse(Config, __doc__))
