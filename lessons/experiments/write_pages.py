"""Write the committed numbers into the pages again, and print the predictions of erring.py with
their outcomes, which no page shows:

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
from lessons.experiments.harness.grid import load_runs, write_pages

if __name__ == "__main__":
    write_pages(compare_tables.texts(compare_tables.load()))
    for part in (bench_speed, baselines_tables, real_scores, real_model):
        write_pages(part.texts())
    print(erring.verdicts(load_runs(erring.RESULTS)))
