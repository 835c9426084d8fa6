"""Write the pages with committed numbers anew, such as README.md beside this file:

python lessons/experiments/write_pages.py
"""

from lessons.experiments import (
    baselines_tables,
    bench_speed,
    compare_tables,
    erring,
    real_model,
    real_scores,
)
from lessons.experiments.harness.grid import write_pages

if __name__ == "__main__":
    write_pages(compare_tables.texts(compare_tables.load()))
    for part in (bench_speed, baselines_tables, erring, real_scores, real_model):
        write_pages(part.texts())
