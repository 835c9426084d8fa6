"""The scripts against each other, over ten seeds: tables with paired statistics, and figures.

    python lessons/experiments/compare.py                      the scripts as they are
    python lessons/experiments/compare.py --quick              3 seeds, 25 steps
    python lessons/experiments/compare.py --experiments pieces ablation
    python lessons/experiments/compare.py --first_seed 200     a replication

Every run is the script's own `train`. Runs go on in parallel, one thread each; a run that is finished is not run again,
whichever experiment wants it, and one that was stopped is continued. Experiments:

    shared       all nine scripts at one learning rate
    matched      the ladder's five, at rates at which all mean updates are as long as GRPO's
    tuned        all nine, each at the best of four rates on three seeds that are used for nothing else
    pieces       GRPO with one of Dr. GRPO's two changes: no / sigma, no / length
    ablation     from GRPO to DAPO one change at a time, as in DAPO's Table 1
    reinforce    from GRPO to REINFORCE one change at a time
    sampling     pass@k and majority@k of the base model and of the ladder's five after `shared`
    group_size   GRPO and Dr. GRPO with groups of 2 to 64 completions, as many completions in all (six seeds)

With --publish the numbers go to results.json, the figures to figures/, and the tables into README.md of this folder
(and one onto the front page). Statistics need `pip install -e '.[stats]'`.
"""

from toy_env import RunFailed, UsageError, take_over_ctrl_c

if __name__ == "__main__":
    take_over_ctrl_c()

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch

from lessons.experiments import compare_figures, compare_tables, page, paired
from lessons.experiments.compare_runs import (
    GROUP_SIZES,
    LADDER,
    RATE,
    RATES,
    SCRIPTS,
    Arm,
    Job,
    ablation,
    of_script,
    pieces,
    sample_many,
    to_reinforce,
    train,
)  # fmt: skip
from lessons.experiments.pool import in_parallel, lock_folder
from toy_env.cli import at_least, run_main
from toy_env.model import pick_device

TUNING = 100  # the seeds that choose learning rates begin this far behind the first of the comparison
Experiment = Literal["shared", "matched", "tuned", "pieces", "ablation", "reinforce", "sampling", "group_size"]


@dataclass
class Config:
    experiments: tuple[Experiment, ...] = ()  # which of those above; none: shared, or with --publish all
    first_seed: at_least(0) = 0  # of every run's seeds
    seeds: int = 10  # seeds first_seed, first_seed + 1, ...
    steps: at_least(1) = 60  # rollout batches of every run
    quick: bool = False  # 3 seeds and 25 steps, in the folder OUTPUT-quick
    processes: at_least(0) = 0  # runs at a time, of one thread each; 0 for one per core
    device: str = "auto"  # auto (cuda, else mps, else cpu), cuda, mps or cpu
    output: str = "runs/compare"  # folder for the runs, the numbers and the figures
    publish: bool = False  # update the committed results, figures and tables

    def check(self) -> None:
        if not 2 <= self.seeds <= TUNING:
            raise UsageError(
                f"--seeds must be from 2 (for an interval) to {TUNING} (the next ones tune), not {self.seeds}"
            )
        pick_device(self.device)
        if self.quick and (self.seeds, self.steps) != (10, 60):
            raise UsageError("--quick is 3 seeds and 25 steps; leave out --seeds and --steps")
        if self.publish and (self.quick, self.first_seed, self.seeds, self.steps) != (False, 0, 10, 60):
            raise UsageError("--publish is for full runs; leave out --quick, --first_seed, --seeds and --steps")


class Experiments:
    """What the experiments of a config have run, and what they have found."""

    def __init__(self, config: Config) -> None:
        self.config, self.output = config, Path(config.output)

    def seeds(self, experiment: str = "") -> range:
        """Those of an experiment."""
        first, seeds = self.config.first_seed, self.config.seeds
        return range(first, first + (min(seeds, 6) if experiment == "group_size" else seeds))

    def train(self, arms: Iterable[Arm], seeds: Iterable[int], what: str) -> dict[str, list[Job]]:
        """Train what is not there yet, and print a line for each run that diverged. Returns each arm's jobs by name."""
        jobs = [Job(arm, seed, self.config.steps, self.config.device, self.output) for seed in seeds for arm in arms]
        left = [(job,) for job in jobs if not job.is_finished()]
        in_parallel(train, left, self.config.processes, total=len(jobs), what=what)
        by_name: dict[str, list[Job]] = {}
        for job in jobs:
            by_name.setdefault(job.arm.name, []).append(job)
            if job.diverged.is_file():
                print(f"{job.folder.name}: {job.diverged.read_text('utf-8').strip()}")
        return by_name

    def runs(self, arms: dict[str, Arm], experiment: str) -> dict[str, list[dict | None]]:
        """The summaries of each arm's runs by seed, None for one that diverged; those that are missing are made.

        Raises RunFailed if all runs of an arm diverged.
        """
        jobs = self.train(arms.values(), self.seeds(experiment), experiment)
        found = {name: [job.summary() for job in jobs[arm.name]] for name, arm in arms.items()}
        if lost := [name for name, of in found.items() if not any(of)]:
            raise RunFailed(f"every run of {', '.join(lost)} diverged, so that there is nothing to compare")
        return found

    def arms(self, experiment: str) -> dict[str, Arm]:
        """By their names in the tables. `matched` and `tuned` make the runs that choose learning rates."""
        if experiment == "pieces":
            return pieces()
        if experiment == "ablation":
            return ablation()
        if experiment == "reinforce":
            return to_reinforce()
        if experiment == "group_size":
            return {f"{name}, G = {G}": of_script(name, G=G) for name in ("GRPO", "Dr. GRPO") for G in GROUP_SIZES}
        if experiment == "matched":
            return {name: of_script(name, rate) for name, rate in self.matched_rates().items()}
        if experiment == "tuned":
            return {name: of_script(name, best_rate(of)) for name, of in self.tuning().items()}
        return {name: of_script(name) for name in (SCRIPTS if experiment == "shared" else LADDER)}

    def matched_rates(self) -> dict[str, float]:
        """Learning rates, to two digits, at which every script's mean update should be as long as GRPO's in `shared`.

        Under Adam the mean length grows a little slower than the rate, about with its power 0.75: REINFORCE's from
        .0175 to .0269 between 1.13e-4 and 2e-4. The table shows how well it was met.
        """
        runs = self.runs({name: of_script(name) for name in LADDER}, "shared")
        lengths = {arm: np.mean([run["update_norm"] for run in of_arm if run]) for arm, of_arm in runs.items()}
        return {arm: float(f"{RATE * (lengths['GRPO'] / length) ** (1 / 0.75):.2g}") for arm, length in lengths.items()}

    def tuning(self) -> dict[str, dict[float, list[float]]]:
        """Accuracy at equal completions, by script, learning rate and tuning seed; 0 of a run that diverged."""
        first = self.config.first_seed + TUNING
        arms = {(name, rate): of_script(name, rate) for name in SCRIPTS for rate in RATES}
        jobs = self.train(arms.values(), range(first, first + (1 if self.config.quick else 3)), "tuning")
        found: dict[str, dict[float, list[float]]] = {name: {} for name in SCRIPTS}
        for (name, rate), arm in arms.items():
            runs = [job.summary() for job in jobs[arm.name]]
            found[name][rate] = [run["at_budget"] if run else 0.0 for run in runs]
        return found

    def sampling(self) -> dict[str, dict[str, np.ndarray]]:
        """pass@k and majority@k of the base and of each script of the ladder: arrays (seeds, KS, problems)."""
        arms = {name: of_script(name) for name in LADDER}
        self.runs(arms, "shared")
        files = {"base": {self.output / "base-sampling.json": "base"}}
        for name, arm in arms.items():
            jobs = (Job(arm, seed, self.config.steps, self.config.device, self.output) for seed in self.seeds())
            files[name] = {
                job.folder / "sampling.json": str(job.folder / "checkpoint") for job in jobs if job.summary()
            }
        left = [(model, file, self.config.device) for of in files.values() for file, model in of.items()
                if not file.is_file()]  # fmt: skip
        in_parallel(sample_many, left, self.config.processes, total=sum(map(len, files.values())), what="sampling")
        read = {name: [json.loads(file.read_text("utf-8")) for file in of] for name, of in files.items()}
        return {
            name: {kind: np.array([run[kind] for run in runs]) for kind in ("majority", "pass")}
            for name, runs in read.items()
        }

    def run(self, experiment: str) -> tuple[dict, Path]:
        """What an experiment found, as plain data, and its figure."""
        processes, replication = self.config.processes or os.cpu_count(), self.config.first_seed
        figure = self.output / f"{experiment}{f'-{replication}' if replication else ''}.png"
        found = {
            "machine": f"{os.cpu_count()} {platform.machine()} cores, torch {torch.__version__.split('+')[0]}, "
            f"{processes} runs at a time on one thread each, {pick_device(self.config.device)}",
            "seeds": [*self.seeds(experiment)],
            "steps": self.config.steps,
        }
        if experiment == "sampling":
            rates = self.sampling()
            compare_figures.draw_sampling(rates, figure)
            return found | compare_tables.sampling_numbers(rates), figure
        runs = self.runs(self.arms(experiment), experiment)
        found["arms"] = compare_tables.training_numbers(runs)
        if experiment == "tuned":
            found["tuning"] = {name: {f"{rate:g}": of[rate] for rate in of} for name, of in self.tuning().items()}
        found |= compare_tables.compared(experiment, found["arms"])
        compare_figures.draw(experiment, runs, found, figure)
        return found, figure


def best_rate(accuracy: dict[float, list[float]]) -> float:
    """The learning rate with the best mean; the smallest of equals."""
    return max(accuracy, key=lambda rate: np.mean(accuracy[rate]))


def main(config: Config) -> None:
    """Run what is missing; write and print the tables and draw the figures, one experiment after the other."""
    paired.require()
    chosen = dict.fromkeys(config.experiments or (get_args(Experiment) if config.publish else ("shared",)))
    if config.publish:
        page.check_places(chosen)
    if config.quick:
        config = replace(config, seeds=3, steps=25, output=f"{config.output}-quick")
    with lock_folder(config.output, "compare.py"):
        for experiment in chosen:
            found, figure = Experiments(config).run(experiment)
            found = compare_tables.rounded(found)
            figure.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
            print(f"\n{experiment}\n{compare_tables.table(experiment, found)}\n{compare_tables.LEGEND}\n")
            print(f"written: {figure}, and the numbers beside it")
            if config.publish:
                page.publish(experiment, found, figure)


if __name__ == "__main__":
    run_main(Config, main, __doc__)
