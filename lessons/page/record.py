"""Record lessons/page/training.gif, the README's moving picture: the page as it trains, in
Chromium. A few minutes.

    python lessons/page/record.py
"""

import io
from dataclasses import dataclass

from PIL import Image

from lessons.page import build
from lessons.page.measure import opened_page
from toy_env.run import parse

PICTURE = build.SOURCES / "training.gif"
STEP = "sigmaLadder.lanes[0].steps"


@dataclass
class Config:
    every: int = 3  # steps between two frames


def main(config: Config) -> None:
    """Let the page train for 60 steps, and save a picture after every few of them."""
    frames = []
    with opened_page() as page:
        page.set_viewport_size({"width": 1200, "height": 610})
        page.wait_for_selector("#group button")
        for step in range(0, 61, config.every):
            page.wait_for_function(f"{STEP} >= {step}", timeout=0)
            page.wait_for_timeout(200)  # until the step is drawn
            frame = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            frame = frame.resize((840, 427), Image.Resampling.LANCZOS)
            few = frame.quantize(128, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
            frames.append(few)
            if not step:
                page.click("#train")
    # it plays once, and stays at the whole run
    durations = [1500] + [300] * (len(frames) - 2) + [4000]  # milliseconds
    animation = {"append_images": frames[1:], "duration": durations}
    frames[0].save(PICTURE, save_all=True, optimize=True, **animation)
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1e6:.2f} MB, {len(frames)} frames")


if __name__ == "__main__":
    main(parse(Config, __doc__))
