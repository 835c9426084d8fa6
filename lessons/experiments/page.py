"""The pages with committed numbers, README.md beside this file and the front page, and
baselines.py's figures, anew:

python lessons/experiments/page.py
"""

from lessons.experiments import (
    baselines_tables,
    bench_speed,
    compare_tables,
    real_model,
    real_scores,
)
from lessons.experiments.grid import write_pages

if __name__ == "__main__":
    write_pages(compare_tables.texts(compare_tables.load()))
    write_pages(bench_speed.texts())
    write_pages(baselines_tables.texts())
    write_pages(real_scores.texts())
    write_pages(real_model.texts())
    baselines_tables.draw()
