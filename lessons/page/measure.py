"""Measure the engine of lessons/group.html in Chromium. A benchmark, not a test.

    python lessons/page/measure.py                a few minutes; leave the machine alone meanwhile
    python lessons/page/measure.py --seeds 10     also ten trainings there and with grpo.py, in runs/measure: an hour

The speed is that of GRPO's step with 8 problems of 8 completions and four updates, by the base model, whose completions
are short, and by one that has trained for 40 steps and works problems out. The learning rate is then 1e-12, so that the
policy stays the same. Other processes lengthen a step by the clock, so the seconds of the processor are given too; and
the speed of the matrix product alone, measured between the steps. The pause is the longest time for which the page did
not answer.
"""

from toy_env import UsageError, take_over_ctrl_c

if __name__ == "__main__":
    take_over_ctrl_c()

import base64
import random
import re
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch

from algorithms import grpo
from lessons.experiments.paired import difference, estimate
from lessons.page import build
from toy_env import arithmetic
from toy_env.cli import at_least, run_main
from toy_env.evaluate import evaluate, held_out
from toy_env.model import load_policy

POLICIES = {"base model": 0, "after 40 steps": 40}
STEPS, PROBLEMS = 60, 8  # of a training
TRAINED = """async (steps) => {
    const weights = sigmaLadder.base, pool = await Pool.open(2, document.querySelector("#engine").textContent);
    const trainer = new Trainer({ weights, algorithm: ALGORITHMS.GRPO, pool });
    while (trainer.steps < steps) await trainer.step();
    globalThis.start = trainer.policy.weights;
    pool.close(); }"""
START = """async ([workers, settings]) => {
    globalThis.pool = await Pool.open(workers, document.querySelector("#engine").textContent);
    globalThis.trainer = new Trainer({ weights: start, algorithm: { ...ALGORITHMS.GRPO, ...settings }, pool });
    return pool.workers.length; }"""
STEP = """async () => {
    let pause = 0, last = performance.now();
    const note = () => { pause = Math.max(pause, performance.now() - last); last = performance.now(); };
    const watch = setInterval(note);
    const started = performance.now(), { metrics } = await trainer.step();
    const seconds = (performance.now() - started) / 1000;
    clearInterval(watch);
    return { seconds, pause, length: metrics.length }; }"""
PRODUCT = """() => { // 2 x 160 x 176 x 64 operations each
    const [A, B, C] = [160 * 64, 176 * 64, 160 * 176].map((n) => new Float32Array(n).fill(0.5));
    const started = performance.now();
    for (let i = 0; i < 40; i++) product(C, A, 64, 1, B, 64, 1, 160, 176, 64, false);
    return 40 * 2 * 160 * 176 * 64 / (performance.now() - started) / 1e6; }"""
TRAIN = """async ([seed, problems]) => {
    globalThis.trainer.seed = seed;
    trainer.takeBack(0);
    trainer.draw = () => problems.shift();
    while (problems.length) await trainer.step();
    const bytes = new Uint8Array(Float32Array.from(trainer.policy.weights).buffer);
    return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join("")); }"""


@dataclass
class Config:
    steps: at_least(1) = 5  # timed steps of each kind
    seeds: at_least(0) = 0  # trainings to compare with grpo.py


@contextmanager
def opened_page():
    """lessons/group.html in Chromium."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise UsageError("playwright is missing; pip install -e '.[page]'") from None
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not path:
        raise UsageError("no Chromium was found; apt install chromium")
    with sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"]).new_page()
        page.goto(build.PAGE.as_uri())
        yield page


def processor_seconds_and_megabytes(page) -> tuple[float, float]:
    """What the browser's pages have used so far, and the largest one's own memory (0 where there is no /proc)."""
    processes = page.context.browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    pages = [process for process in processes if process["type"] == "renderer"]
    files = [Path(f"/proc/{process['id']}/status") for process in pages]
    held = [int(re.search(r"RssAnon:\s+(\d+)", file.read_text("utf-8"))[1]) for file in files if file.exists()]
    return sum(process["cpuTime"] for process in pages), max(held, default=0) / 1024


def measure_speed(page, steps: int) -> None:
    print("policy                 workers  KL    tokens  clock s  processor s  product GFLOP/s  pause ms  memory MB")
    for policy, trained in POLICIES.items():
        page.evaluate(TRAINED, trained)
        for workers, kl_coef in ((1, 0.04), (1, 0.0), (2, 0.04), (0, 0.04)):
            page.evaluate(START, [workers, {"learning_rate": 1e-12, "kl_coef": kl_coef}])
            page.evaluate(STEP)  # compiles
            rows, used, products = [], [], []
            for _ in range(steps):
                products.append(page.evaluate(PRODUCT))
                before, _ = processor_seconds_and_megabytes(page)
                rows.append(page.evaluate(STEP))
                after, memory = processor_seconds_and_megabytes(page)
                used.append(after - before)
            seconds, pause, length = (median(row[name] for row in rows) for name in ("seconds", "pause", "length"))
            print(f"{policy:22} {workers:7}  {kl_coef:4}  {length:6.1f}  {seconds:7.2f}  {median(used):11.2f}", end="")
            print(f"  {median(products):15.2f}  {pause:8.0f}  {memory:9.0f}")
            page.evaluate("pool.close()")


def compare_trainings(page, seeds: int) -> None:
    """Held-out accuracy, tokens and entropy after training on the page and with grpo.py, on the same problems."""
    page.evaluate(TRAINED, 0)
    page.evaluate(START, [2, {}])
    found: dict[str, list[list[float]]] = {"page": [], "grpo.py": []}
    for seed in range(seeds):
        problems = []
        for step in range(1, STEPS + 1):
            rng = random.Random(f"{seed}/{step}")  # as in toy_env/run.py
            rng.getrandbits(63)
            problems += [problem.expression for problem in arithmetic.sample_problems(PROBLEMS, (), rng)]
        trained, tokenizer = load_policy("base")
        weights, at = np.frombuffer(base64.b64decode(page.evaluate(TRAIN, [seed, problems])), np.float32), 0
        for name in build.TENSORS:
            tensor = trained.state_dict()[name]
            tensor.copy_(torch.from_numpy(weights[at : (at := at + tensor.numel())].copy()).view_as(tensor))
        folder = build.ROOT / "runs/measure" / f"grpo-{seed}"
        if not (folder / "results.json").exists():
            settings = {"steps": STEPS, "prompts_per_step": PROBLEMS, "seed": seed, "eval_every": 0, "device": "cpu"}
            grpo.train(grpo.Config(run_dir=str(folder), resume=folder.exists(), **settings))
        for name, policy in (("page", trained), ("grpo.py", load_policy(str(folder / "checkpoint"))[0])):
            result = evaluate(policy, tokenizer, held_out(arithmetic, 64, ()), samples=4, max_new_tokens=56)
            found[name].append([result.correct.mean(), result.lengths.mean(), result.entropy])
    for i, metric in enumerate(("held-out accuracy", "tokens", "entropy")):
        ours, theirs = ([float(row[i]) for row in found[name]] for name in ("page", "grpo.py"))
        for name, values in (("page", ours), ("grpo.py", theirs)):
            print(f"{metric}, {name}: {estimate(values)}")
        print(f"{metric}, page minus grpo.py, paired by seed: {difference(ours, theirs)}")


def main(config: Config) -> None:
    with opened_page() as page:
        measure_speed(page, config.steps)
        if config.seeds:
            compare_trainings(page, config.seeds)


if __name__ == "__main__":
    run_main(Config, main, __doc__)
