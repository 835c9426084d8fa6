"""How fast lessons/group.html trains and answers in Chromium. A benchmark, not a test.

    python lessons/page/measure.py        a few minutes; leave the machine alone meanwhile

The speed is that of GRPO's step with 8 problems of 8 completions and four updates, by the base
model, whose completions are short, and by one that has trained for 40 steps and works problems out.
The learning rate is then 1e-12, so that the policy stays the same. With 0 workers the page computes
by itself. Then, while a run trains, the pointer moves over its strip, clicks completions and flips
switches; an answer is the time from such an event to the picture that follows it, in steps of 8 ms.
Those below 16 ms are not recorded.
"""

import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
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
# By the browser's own clock, until the next picture is drawn.
LISTEN = """() => { globalThis.answers = [];
    const listen = (list) => answers.push(...list.getEntries().map((event) => event.duration));
    new PerformanceObserver(listen).observe({ type: "event", durationThreshold: 16 }); }"""
SIZES = (1200, 900), (390, 844)


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


def answers(page) -> list[float]:
    """Train for 50 steps and use the page meanwhile. Returns its answers, in milliseconds."""
    page.evaluate(LISTEN)
    page.click("#train")
    for turn in count():
        if page.evaluate("sigmaLadder.lanes[0].steps") >= 50:
            return page.evaluate("answers")
        strip = page.locator("#strips .columns").first.bounding_box()
        x, y = (turn * share % 1 for share in (0.618, 0.414))  # spread over the strip
        place = strip["x"] + x * strip["width"], strip["y"] + y * strip["height"]
        page.mouse.move(*place) if turn % 2 else page.mouse.click(*place)
        if turn % 3 == 0:
            page.locator("#group button").nth(turn % 8).click()
        if turn % 7 == 0:
            page.click("#sigma")
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(70)


def main(config: Config) -> None:
    """Time both policies with 1, 2 and no workers, then the answers on two screens."""
    with opened_page() as page:
        print("policy          workers  tokens  seconds a step")
        for policy, trained in (("base model", 0), ("after 40 steps", 40)):
            page.evaluate(TRAIN, trained)
            for workers in (1, 2, 0):
                length, seconds = map(median, zip(*page.evaluate(TIME, [workers, config.steps])))
                print(f"{policy:14} {workers:8}  {length:6.1f}  {seconds:14.2f}", flush=True)
    print("screen      answers  median, ms  longest, ms")
    for width, height in SIZES:
        with opened_page() as page:
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_selector("#group button")
            times = answers(page)
        print(f"{width:4} x {height:4}  {len(times):7}  {median(times):10.0f}  {max(times):11.0f}")


if __name__ == "__main__":
    main(parse(Config, __doc__))
