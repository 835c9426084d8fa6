"""A step of grpo.py against the same step of TRL's GRPOTrainer. A benchmark, not a test.

    pip install -e '.[parity]'                          for TRL
    python lessons/experiments/bench_speed.py           about 5 minutes; leave the machine alone
    python lessons/experiments/bench_speed.py --real    real_model.py's model instead: 40 minutes

With --publish the numbers go to bench_speed.json beside this file, those of --real to an entry of
their own, and from there into the tables of README.md and toy_env/README.md.

Each side has a process of its own. They take turns, step by step, so that whatever slows the
machine slows both. Both do the same work: the same model, prompts, group size and length limit,
four updates a step, KL to a reference. The learning rate is 1e-12, so that the policy does not
change and all steps sample the same cost.

With --real a step is 64 completions of exactly 8 and of exactly 64 tokens by SmolLM2-135M, in two
updates without KL: its end token is one that it does not write. At 64 tokens grpo.py computes each
forward pass twice, to save memory, unless a pass holds a whole minibatch (WHOLE). Memory is the
peak of a process; that of grpo.py is also measured with the settings of MEMORY.
"""

import json
import multiprocessing
import os
import platform
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tqdm import tqdm

from algorithms import grpo
from lessons.experiments.harness.grid import compact, markdown, rounded, write_pages
from lessons.experiments.harness.pool import begin, silence
from toy_env.model import load_policy, model_prompts
from toy_env.run import parse
from toy_env.tasks import load_task

RESULTS, SUMS = Path(__file__).parent / "bench_speed.json", "lessons.experiments.sums"
# Steps without end and of one cost: at this rate the policy does not change.
ENDLESS = {"steps": 10**6, "save_every": 10**6, "eval_problems": 1, "learning_rate": 1e-12}
WHOLE = 65_536  # tokens of a pass; with SmolLM2's vocabulary a twelfth of them
MEMORY = {
    "with a reference, `--kl_coef 0.04`": {"kl_coef": 0.04},
    "`--max_tokens_per_pass 4096`": {"max_tokens_per_pass": 4096},
    "`--gradient_checkpointing`": {"gradient_checkpointing": True},
    "`--dtype bfloat16`": {"dtype": "bfloat16"},
}


@dataclass
class Config:
    real: bool = False  # time SmolLM2-135M instead, which real_model.py fetches
    publish: bool = False  # update bench_speed.json and the table in README.md beside it


# ---------------------------------------------------------------------- in the worker processes


def stopwatch(connection) -> Iterator[None]:
    """Time steps: each `next` ends one and begins the next; the first only begins. Before a step
    wait for the parent's word; after it send its seconds and the process's peak memory in GB."""
    while True:
        connection.recv()
        started = time.perf_counter()
        yield
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # from kB, on Linux
        connection.send((time.perf_counter() - started, memory))


def ours(connection, settings: dict) -> None:
    """grpo.train itself."""
    steps, log = stopwatch(connection), grpo.Run.log

    def log_and_report(*arguments) -> None:
        log(*arguments)
        next(steps)

    grpo.Run.log = log_and_report
    with tempfile.TemporaryDirectory() as folder:
        grpo.train(grpo.Config(run_dir=f"{folder}/run", device="cpu", **settings, **ENDLESS))


def trl(connection, settings: dict) -> None:
    """GRPOTrainer with the same settings, as scale_out.py makes it."""
    from transformers import TrainerCallback

    from lessons.experiments import scale_out

    config, steps, problems = grpo.Config(**settings), stopwatch(connection), []
    task = load_task(config.task)
    for step in range(1, 201):
        rng = random.Random(f"0/{step}")  # as grpo.py with seed 0 draws them
        rng.getrandbits(63)
        problems += task.sample_problems(config.prompts_per_step, task.LEVELS, rng)

    class Turns(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs) -> None:
            if state.global_step % config.num_minibatches == 0:
                next(steps)

    prompts = model_prompts(load_policy(config.model)[1], problems, task)
    rows = [{"prompt": text, "answer": p.answer} for text, p in zip(prompts, problems)]
    theirs = scale_out.Config(
        model=config.model,
        steps=200,
        learning_rate=ENDLESS["learning_rate"],
        warmup_steps=0,
        prompts_per_step=config.prompts_per_step,
        num_minibatches=config.num_minibatches,
        max_new_tokens=config.max_new_tokens,
        run_dir=tempfile.mkdtemp(),
        trl=("use_cpu=true", f"beta={config.kl_coef}"),
    )
    trainer = scale_out.build_trainer(theirs, scale_out.trl_settings(theirs, 1), rows)
    trainer.add_callback(Turns())
    trainer.train()


def work(connection, side: Callable, settings: dict) -> None:
    """Run a side in a worker process, silently but for an error's traceback."""
    begin()
    with silence():
        side(connection, settings)


# ---------------------------------------------------------------------- in the parent process


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
    cases = {f"SmolLM2, {n} tokens": real | {"max_new_tokens": n} for n in (8, 64)}
    whole = cases["SmolLM2, 64 tokens"] | {"max_tokens_per_pass": WHOLE}
    return cases | {f"SmolLM2, 64 tokens, `--max_tokens_per_pass {WHOLE}`": whole}


class Worker:
    """A worker process, and the reports it sends."""

    def __init__(self, side: Callable, settings: dict) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=work, args=(other, side, settings), daemon=True)
        self.process.start()
        other.close()  # so that a worker that ends early is an EOFError here

    def step(self) -> tuple[float, float]:
        """Have it make a step. Returns the seconds, and the peak of its memory so far in GB."""
        self.connection.send("go")
        return self.connection.recv()


def peak(settings: dict) -> float:
    """The peak of the memory of two steps of grpo.py, in GB."""
    worker = Worker(ours, settings)
    memory = max(worker.step()[1] for _ in range(2))
    worker.process.kill()
    return memory


def measure(settings: dict, steps: int) -> dict:
    """The parameters of the model, the median seconds of a step of each side, the median of their
    ratio within a turn, and the peak of their memory. The first two steps of each warm up, while
    the other side waits."""
    workers = {}
    for side in (ours, trl):
        workers[side.__name__] = Worker(side, settings)
        workers[side.__name__].step()
    turns = [{name: one.step() for name, one in workers.items()} for _ in range(steps)]
    for worker in workers.values():
        worker.process.kill()
    return {
        "parameters": load_policy(settings["model"])[0].num_parameters(),
        "seconds": {name: median(turn[name][0] for turn in turns) for name in workers},
        "speed_against_trl": median(turn["trl"][0] / turn["ours"][0] for turn in turns),
        "memory": {name: turns[-1][name][1] for name in workers},
    }


def main(config: Config) -> None:
    """Time one part, toy or real, print its table, and with --publish write it onto the pages."""
    memory = {}
    with tempfile.TemporaryDirectory() as folder:
        with silence():
            cases = (real_cases if config.real else toy_cases)(folder)
        steps = 4 if config.real else 20  # timed ones of each side
        models = {name: measure(case, steps) for name, case in tqdm(cases.items())}
        for name, more in MEMORY.items() if config.real else ():
            memory[name] = peak(cases["SmolLM2, 64 tokens"] | more)
    machine = f"{os.cpu_count()} {platform.machine()} cores"
    part = {"machine": machine, "models": models, "memory": memory}
    measured = rounded({"real" if config.real else "toy": part})
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
