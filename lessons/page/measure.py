"""How fast lessons/group.html trains in Chromium. A benchmark, not a test.

    python lessons/page/measure.py        a few minutes; leave the machine alone meanwhile

The speed is that of GRPO's step with 8 problems of 8 completions and four updates, by the base
model, whose completions are short, and by one that has trained for 40 steps and works problems out.
The learning rate is then 1e-12, so that the policy stays the same. With 0 workers the page computes
by itself.
"""

import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from lessons.page import build
from toy_env.run import parse

TRAIN = """async (steps) => {
    const pool = await Pool.open(2, document.querySelector("#engine").textContent);
    const trainer = new Trainer({ weights: sigmaLadder.base, algorithm: ALGORITHMS.GRPO, pool });
    while (trainer.steps < steps) await trainer.step();
    globalThis.start = trainer.policy.weights;
    pool.close(); }"""
# The first step compiles, and does not count.
TIME = """async ([workers, steps]) => {
    const pool = await Pool.open(workers, document.querySelector("#engine").textContent);
    const algorithm = { ...ALGORITHMS.GRPO, learning_rate: 1e-12 }, results = [];
    const trainer = new Trainer({ weights: start, algorithm, pool });
    for (let step = 0; step <= steps; step++) {
        const started = performance.now();
        await trainer.step();
        const seconds = (performance.now() - started) / 1000, { drawn } = trainer.batch;
        results.push([mean(drawn.flat().map((row) => row.ids.length)), seconds]);
    }
    pool.close();
    return results.slice(1); }"""


@dataclass
class Config:
    steps: int = 5  # timed steps of each kind


@contextmanager
def opened_page():
    """lessons/group.html in Chromium."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise SystemExit("playwright is missing; type pip install -e '.[page]'") from None
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if not path:
        raise SystemExit("no Chromium was found; type apt install chromium")
    with sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"]).new_page()
        page.goto(build.PAGE.as_uri())
        yield page


def main(config: Config) -> None:
    """Time both policies with 1, 2 and no workers."""
    with opened_page() as page:
        print("policy          workers  tokens  seconds a step")
        for policy, trained in (("base model", 0), ("after 40 steps", 40)):
            page.evaluate(TRAIN, trained)
            for workers in (1, 2, 0):
                length, seconds = map(median, zip(*page.evaluate(TIME, [workers, config.steps])))
                print(f"{policy:14} {workers:8}  {length:6.1f}  {seconds:14.2f}", flush=True)


if __name__ == "__main__":
    main(parse(Config, __doc__))
