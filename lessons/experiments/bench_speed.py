"""A step of grpo.py against the same step of TRL's GRPOTrainer and against a floor. A benchmark,
not a test.

    pip install -e '.[parity]'                          for TRL
    python lessons/experiments/bench_speed.py           about 10 minutes; leave the machine alone

With --publish the numbers go to bench_speed.json beside this file and, as a table, into README.md
there.

Each side has a process of its own. They take turns, step by step, so that whatever slows the
machine slows all of them. All do the same work: the same model, prompts, group size and length
limit, four updates a step, KL to a reference. The learning rate is 1e-12, so that the policy does
not change and all steps sample the same cost. The floor is what no such loop can do without: the
forward passes of the decode loop, and one forward and one backward pass over as many tokens,
without padding. It draws nothing, scores nothing, and has neither a reference model nor an
optimizer. The larger model is the shipped one inside matrices of ten times the size, zero
elsewhere: it computes the same logits.
"""

import copy
import importlib.util
import json
import math
import multiprocessing
import os
import platform
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from algorithms import grpo
from lessons.experiments.grid import compact, markdown, refuse_partial_publish, rounded, write_pages
from lessons.experiments.pool import begin, silence
from toy_env.any_model import cache_name
from toy_env.arithmetic import LEVELS, Problem, sample_problems
from toy_env.model import encode_prompts, load_policy
from toy_env.rollout import position_ids, sample
from toy_env.run import parse

RESULTS = Path(__file__).parent / "bench_speed.json"
PROMPTS, GROUP, LIMIT, MINIBATCHES = 32, 8, 56, 4


@dataclass
class Config:
    steps: int = 20  # timed steps of each side for each model
    publish: bool = False  # update bench_speed.json and the table in README.md beside it


# ---------------------------------------------------------------------- in the worker processes


class Stopwatch:
    """Times steps. Sends the parent a report of each, and before each waits for its word to go
    on."""

    def __init__(self, connection) -> None:
        self.connection, self.started = connection, 0.0

    def step_done(self) -> None:
        """Report the seconds of the step that ends here; the first call ends none, and only
        waits."""
        if self.started:
            self.connection.send(time.perf_counter() - self.started)
        self.connection.recv()
        self.started = time.perf_counter()


def ours(connection, model: str) -> None:
    """grpo.train itself."""
    watch, log = Stopwatch(connection), grpo.Run.log

    def log_and_report(*arguments) -> None:
        log(*arguments)
        watch.step_done()

    grpo.Run.log = log_and_report
    endless = {"steps": 10**6, "save_every": 10**6, "eval_problems": 1}
    settings = {"model": model, "device": "cpu", "learning_rate": 1e-12}
    with tempfile.TemporaryDirectory() as folder:
        grpo.train(grpo.Config(run_dir=f"{folder}/run", **settings, **endless))


def trl(connection, model: str) -> None:
    """GRPOTrainer with the settings of grpo.py, as scale_out.py makes it."""
    from transformers import TrainerCallback

    from lessons.experiments import scale_out

    watch = Stopwatch(connection)
    problems = [problem for step in range(1, 201) for problem in drawn_at(step)[1]]

    class Turns(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs) -> None:
            if state.global_step % MINIBATCHES == 0:
                watch.step_done()

    rows = [{"prompt": problem.prompt, "answer": problem.answer} for problem in problems]
    scale_out.rows = lambda *_, **__: rows
    config = scale_out.Config(model=model, steps=200, learning_rate=1e-12, warmup_steps=0)
    config.run_dir, config.trl = tempfile.mkdtemp(), ("use_cpu=true",)
    trainer = scale_out.build_trainer(config, scale_out.trl_settings(config, 1))
    trainer.add_callback(Turns())
    trainer.train()


def floor(connection, model: str) -> None:
    """The forward passes of the decode loop, and one pass forward and back over as many tokens
    without padding."""
    watch, generator = Stopwatch(connection), torch.Generator()
    policy, tokenizer = load_policy(model)

    @torch.no_grad()
    def decode(prompts, ids, lengths) -> None:
        prompt_ids, prompt_mask = encode_prompts(tokenizer, prompts)
        name, inputs = cache_name(policy), {"position_ids": position_ids(prompt_mask)}
        inputs |= {"attention_mask": prompt_mask, "use_cache": True}
        cache = policy(input_ids=prompt_ids, **inputs)[name]
        cache.batch_repeat_interleave(GROUP)
        mask = prompt_mask.repeat_interleave(GROUP, dim=0)
        positions = mask.sum(dim=1, keepdim=True)
        for t in range(1, ids.shape[1]):
            alive = lengths > t
            if not alive.all():
                cache.batch_select_indices(alive)
                ids, lengths, mask, positions = (x[alive] for x in (ids, lengths, mask, positions))
            mask = torch.cat([mask, mask[:, :1] | True], dim=1)
            inputs = {"attention_mask": mask, "position_ids": positions, "use_cache": True}
            policy(input_ids=ids[:, t - 1 : t], **{name: cache}, **inputs)
            positions = positions + 1

    watch.step_done()
    for step in range(1, 10**6):
        seed, problems = drawn_at(step)
        prompts = [problem.prompt for problem in problems]
        rollout = sample(policy, tokenizer, prompts, GROUP, LIMIT, 1.0, generator.manual_seed(seed))
        tokens = int(rollout.prompt_mask.sum() + rollout.mask.sum())
        ids = torch.randint(len(tokenizer), (len(rollout), round(tokens / len(rollout))))
        policy.zero_grad()
        watch.started = time.perf_counter()
        decode(prompts, rollout.completion_ids, rollout.mask.sum(dim=1))
        policy(input_ids=ids, use_cache=False).logits.logsumexp(dim=-1).mean().backward()
        watch.step_done()


def drawn_at(step: int) -> tuple[int, list[Problem]]:
    """The seed of the sampling and the problems of a step of grpo.py with seed 0."""
    rng = random.Random(f"0/{step}")
    return rng.getrandbits(63), sample_problems(PROMPTS, LEVELS, rng)


def make_models(connection, folder: str) -> None:
    """Train a policy, put it and the base into matrices ten times as large, and report where the
    four are and how many parameters they have."""
    from transformers import AutoModelForCausalLM

    grpo.train(grpo.Config(steps=40, eval_problems=1, run_dir=f"{folder}/run"))
    models = {}
    for name, source in (("base", "base"), ("trained", f"{folder}/run/checkpoint")):
        policy, tokenizer = load_policy(source)
        config = copy.deepcopy(policy.config)
        share = config.hidden_size / 208
        config.update({"hidden_size": 208, "num_attention_heads": 13, "num_key_value_heads": 13})
        config.update({"intermediate_size": 544, "rms_norm_eps": config.rms_norm_eps * share})
        wide = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        small = dict(policy.named_parameters())
        with torch.no_grad():
            for key, parameter in wide.named_parameters():
                # RMSNorm divides by the root of a mean over more entries, most of them 0: its
                # weights make up for it.
                value = small[key] * math.sqrt(share) if "norm" in key else small[key]
                parameter.zero_()[tuple(slice(0, n) for n in value.shape)] = value
        ids = torch.randint(3, 19, (64, 40))
        logits = (network(input_ids=ids).logits for network in (wide, policy))
        torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)
        for part in (wide, tokenizer):
            part.save_pretrained(f"{folder}/{name}-10x")
        models[name] = source, policy.num_parameters()
        models[f"{name}, 10x"] = f"{folder}/{name}-10x", wide.num_parameters()
    order = ("base", "trained", "base, 10x", "trained, 10x")
    connection.send({name: models[name] for name in order})


def work(connection, function: Callable, *args) -> None:
    """Run one of these functions in a worker process, silently but for an error's traceback."""
    begin()
    with silence():
        function(connection, *args)


# ---------------------------------------------------------------------- in the parent process


class Worker:
    """A worker process, and the reports it sends."""

    def __init__(self, function: Callable, *args) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=work, args=(other, function, *args), daemon=True)
        self.process.start()
        other.close()

    def step(self):
        """Have it make a step, and return the report."""
        try:
            self.connection.send("go")
            return self.connection.recv()
        except (EOFError, OSError):
            raise RuntimeError("a worker process has ended early") from None


def take_turns(workers: dict[str, Worker], steps: int) -> dict[str, list[float]]:
    """The seconds of `steps` steps of every worker, step by step in turn; the first two steps of
    each warm up."""
    turns = [{name: worker.step() for name, worker in workers.items()} for _ in range(steps + 1)]
    for worker in workers.values():
        worker.process.kill()
        worker.process.join()
    return {name: [turn[name] for turn in turns[1:]] for name in workers}


def measure(model: str, steps: int) -> dict:
    """The median seconds of a step of each side, and the medians of two ratios within a turn."""
    turns = take_turns({side.__name__: Worker(side, model) for side in (ours, trl, floor)}, steps)
    return {
        "seconds": {side: median(seconds) for side, seconds in turns.items()},
        "speed_against_trl": median(a / b for a, b in zip(turns["trl"], turns["ours"])),
        "share_of_floor": median(a / b for a, b in zip(turns["floor"], turns["ours"])),
    }


def main(config: Config) -> None:
    """Time everything, print the table, and with --publish write it onto the page."""
    refuse_partial_publish(config, {"publish"})
    if importlib.util.find_spec("trl") is None:
        raise SystemExit("TRL is not installed; type pip install -e '.[parity]'")
    machine, models = f"{os.cpu_count()} {platform.machine()} cores", {}
    print(f"{PROMPTS} prompts x {GROUP} completions; medians of {config.steps} steps", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, (model, parameters) in Worker(make_models, folder).step().items():
            models[name] = {"parameters": parameters} | measure(model, config.steps)
            seconds = models[name]["seconds"].items()
            print(name, *(f"{side} {1e3 * s:.0f} ms" for side, s in seconds), flush=True)
    results = {"machine": machine, "steps": config.steps, "models": models}
    print(f"\n{table(results)}")
    if config.publish:
        RESULTS.write_text(compact(rounded(results), 2) + "\n", "utf-8")
        write_pages(texts())


# ---------------------------------------------------------------------- the table


def texts() -> dict[Path, dict[str, str]]:
    """The table of the committed results, by the page and the place where it stands."""
    return {RESULTS.parent / "README.md": {"speed": table(json.loads(RESULTS.read_text("utf-8")))}}


def table(results: dict) -> str:
    """The results as a table of Markdown."""
    header = ["policy, parameters", "ours, a step", "TRL, a step", "TRL / ours", "floor / ours"]
    rows = []
    for name, row in results["models"].items():
        seconds = (f"{1e3 * row['seconds'][side]:.0f} ms" for side in ("ours", "trl"))
        ratios = f"{row['speed_against_trl']:.2f}", f"{row['share_of_floor']:.0%}"
        rows.append([f"{name}, {row['parameters']:,}", *seconds, *ratios])
    return markdown(header, rows)


if __name__ == "__main__":
    main(parse(Config, __doc__))
