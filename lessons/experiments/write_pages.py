"""Write the committed numbers into the pages again:

python lessons/experiments/write_pages.py
"""

from pathlib import Path

from lessons.experiments import baselines_tables, bench_speed, compare_tables, kl, real_model
from lessons.experiments.harness.grid import write_pages


def pages() -> list[dict[Path, dict[str, str]]]:
    """The tables of all experiments, by the page and the place where they stand."""
    parts = (bench_speed, baselines_tables, kl, real_model)
    return [compare_tables.texts(compare_tables.load()), *(part.texts() for part in parts)]


if __name__ == "__main__":
    for texts in pages():
        write_pages(texts)
