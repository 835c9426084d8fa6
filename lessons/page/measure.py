"""How fast lessons/group.html trains in Chromium, and how well. A benchmark, not a test.

    python lessons/page/measure.py                a few minutes; leave the machine alone meanwhile
    python lessons/page/measure.py --seeds 10     also ten trainings of 60 steps, beside ten of grpo.py: half an hour

The speed is that of GRPO's step with 8 problems of 8 completions and four updates, by the base model, whose completions
are short, and by one that has trained for 40 steps and works problems out. The learning rate is then 1e-12, so that the
policy stays the same. With 0 workers the page computes by itself. Accuracy is on held-out problems; length and entropy
are those of the completions of the last ten steps.
"""

import json
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory

from algorithms import grpo
from lessons.experiments.grid import cell
from lessons.experiments.paired import estimate
from lessons.page import build
from toy_env import UsageError
from toy_env.cli import at_least, run_main, silence

STEPS = 60  # of a training
TRAIN = """async ([seed, steps]) => {
    const pool = await Pool.open(2, document.querySelector("#engine").textContent), { base, world } = sigmaLadder;
    const trainer = new Trainer({ weights: base, algorithm: ALGORITHMS.GRPO, pool, seed });
    const metrics = [];
    while (trainer.steps < steps) metrics.push((await trainer.step()).metrics);
    globalThis.start = trainer.policy.weights;
    const { heldOut } = world, prompts = heldOut.map((problem) => problem + "?"), seeds = heldOut.map((_, i) => i);
    const rows = await pool.share("sample", start, { prompts, seeds });
    pool.close();
    const late = (name) => mean(metrics.slice(-10).map((row) => row[name]));
    const right = rows.map((row, i) => Number(answer(textOf(row.ids)) === value(heldOut[i])));
    return [mean(right), late("length"), late("entropy")]; }"""
TIME = """async ([workers, steps]) => {
    const pool = await Pool.open(workers, document.querySelector("#engine").textContent), results = [];
    const trainer = new Trainer({ weights: start, algorithm: { ...ALGORITHMS.GRPO, learning_rate: 1e-12 }, pool });
    for (let step = 0; step <= steps; step++) {
        const started = performance.now(), { metrics } = await trainer.step();
        results.push([metrics.length, (performance.now() - started) / 1000]);
    }
    pool.close();
    return results.slice(1); }"""  # the first step compiles


@dataclass
class Config:
    steps: at_least(1) = 5  # timed steps of each kind
    seeds: at_least(0) = 0  # trainings


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


def train_script(seed: int) -> list[float]:
    """The accuracy, length and entropy of a training by grpo.py with the settings of the page."""
    with TemporaryDirectory() as folder, silence():
        grpo.train(grpo.Config(seed=seed, steps=STEPS, prompts_per_step=8, run_dir=f"{folder}/run", device="cpu"))
        results = json.loads(Path(folder, "run/results.json").read_text("utf-8"))
        rows = [json.loads(line) for line in Path(folder, "run/metrics.jsonl").read_text("utf-8").splitlines()[-10:]]
    late = [mean(row[name] for row in rows) for name in ("length", "entropy")]
    return [results["after"]["accuracy"]["all"]["sampled"], *late]


def main(config: Config) -> None:
    with opened_page() as page:
        print("policy          workers  tokens  seconds a step")
        for policy, trained in (("base model", 0), ("after 40 steps", 40)):
            page.evaluate(TRAIN, [0, trained])
            for workers in (1, 2, 0):
                length, seconds = map(median, zip(*page.evaluate(TIME, [workers, config.steps])))
                print(f"{policy:14} {workers:8}  {length:6.1f}  {seconds:14.2f}", flush=True)
        if config.seeds:
            print(f"after {STEPS} steps, {config.seeds} seeds: accuracy, length, entropy")
            trainings = {"page": lambda seed: page.evaluate(TRAIN, [seed, STEPS]), "grpo.py": train_script}
            for name, training in trainings.items():
                numbers = zip(*map(training, range(config.seeds)))
                print(f"{name:8}", *(cell(estimate([*values])) for values in numbers), sep="   ", flush=True)


if __name__ == "__main__":
    run_main(Config, main, __doc__)
