"""The scripts of the ladder against each other, over several seeds: tables with intervals, and figures.

    python lessons/experiments/compare.py            the five scripts, 5 seeds
    python lessons/experiments/compare.py --quick    3 seeds, 25 steps
    python lessons/experiments/compare.py --experiments pieces ablation

Every run is the script's own `train`. Runs go on in parallel, one thread each; a run that is finished is not run again,
and one that was stopped is continued. Experiments:

    shared     the scripts as they are, at one learning rate
    matched    learning rates at which all mean updates are as long as GRPO's
    pieces     GRPO with one of Dr. GRPO's two changes: no / sigma, no / length
    ablation   from GRPO to DAPO one change at a time, as in DAPO's Table 1
    sampling   pass@k and majority@k of the base model and after `shared`

With --publish, in this folder: the numbers to results.json, the figures to figures/, and the tables made from the
numbers into README.md (and one into the front page). The verdicts also need results_before.json, the numbers of an
earlier time, which is valid only as long as the scripts compute the same up to rounding.
"""

import json
import os
import platform
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, get_args
from unittest.mock import patch

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor
from tqdm import tqdm

from lessons.experiments import report
from lessons.experiments.report import KS
from toy_env import RunFailed, UsageError
from toy_env.arithmetic import LEVELS, extract_answer, held_out_problems
from toy_env.cli import run_main, silence
from toy_env.evaluate import evaluate, majority_at_k, pass_at_k
from toy_env.model import load_policy, pick_device
from toy_env.save import MAY_CHANGE_ON_RESUME

Experiment = Literal["shared", "matched", "pieces", "ablation", "sampling"]
SCRIPTS = {"REINFORCE": "reinforce", "PPO": "ppo", "GRPO": "grpo", "Dr. GRPO": "dr_grpo", "DAPO": "dapo"}
COMMON = {"eval_every": 5, "measure_updates": True}  # settings of every run
PIECES = {"GRPO, not / sigma": "compute_advantages", "GRPO, constant length": "policy_loss"}  # taken from dr_grpo.py

# At the defaults no completion reaches the limit of 56 tokens, and with 4 updates a batch the clip hardly ever binds.
ABLATION_SETTING = {"max_new_tokens": 36, "num_minibatches": 16}
ABLATION = {  # label: what changes against the row above
    "GRPO without KL": {"dynamic_sampling": False, "clip_eps_high": 0.2, "overlong_buffer": 0},
    "+ overlong filtering": {"overlong_filtering": True},
    "+ clip-higher": {"clip_eps_high": 0.28},
    "+ soft overlong punishment": {"overlong_buffer": 8},
    "+ token-level loss": {},  # Job.sample_level
    "+ dynamic sampling": {"dynamic_sampling": True},
}


@dataclass
class Config:
    experiments: tuple[Experiment, ...] = ("shared",)  # which of those above; all but ablation include shared
    seeds: int = 5  # seeds 0, 1, ... of every run
    steps: int = 60  # rollout batches of every run
    quick: bool = False  # 3 seeds and 25 steps, in the folder OUTPUT-quick
    samples: int = 128  # completions of each held-out problem for pass@k and majority@k
    processes: int = 0  # runs at a time, of one thread each; 0 for one per core
    device: str = "auto"  # auto (cuda, else mps, else cpu), cuda, mps or cpu
    output: str = "runs/compare"  # folder for the runs, results.json and the figures
    publish: bool = False  # run all experiments; update the committed results, figures and tables

    def check(self) -> None:
        if self.samples < max(KS):
            raise UsageError(f"--samples must be {max(KS)} or more, not {self.samples}")
        if self.publish and self.quick:
            raise UsageError("--publish is for full runs; leave out --quick")


# ---------------------------------------------------------------------- one run


@dataclass(frozen=True)
class Job:
    """One training run, with seed `seed`, of the arm `arm` of an experiment."""

    experiment: str
    arm: str
    seed: int
    script: str
    settings: dict = field(default_factory=dict)
    sample_level: bool = False  # DAPO's loss averaged as GRPO does
    from_dr_grpo: str = ""  # the function of the script that is replaced by that of dr_grpo.py

    def folder(self, output: Path) -> Path:
        return output / self.experiment / f"{re.sub(r'[^a-z0-9]+', '-', self.arm.lower()).strip('-')}-{self.seed}"

    def config(self, output: Path):
        folder = self.folder(output)
        return import_module(f"algorithms.{self.script}").Config(
            seed=self.seed, run_dir=str(folder), resume=(folder / "config.json").is_file(), **self.settings
        )

    def is_finished(self, output: Path) -> bool:
        """Raises UsageError if the folder holds a run with other settings."""
        config, folder = self.config(output), self.folder(output)
        if not config.resume:
            return False
        saved = json.loads((folder / "config.json").read_text())
        for name, value in json.loads(json.dumps(asdict(config))).items():
            if saved.get(name) != value and name not in MAY_CHANGE_ON_RESUME - {"steps"} | {"resume", "run_dir"}:
                raise UsageError(
                    f"{folder} holds a run with {name} {saved.get(name)}, not {value}; choose another --output"
                )
        return (folder / "results.json").is_file()


def sample_level_loss(token_level_loss: Callable, *, config, **batch: Tensor) -> Tensor:
    """DAPO's loss averaged as GRPO does: over the tokens of each completion, then over completions.

    The token mean over a batch of one completion is the mean over that completion; `batch` is as in `dapo.policy_loss`.
    """
    rows = zip(*(tensor.split(1) for tensor in batch.values()))
    return torch.stack([token_level_loss(**dict(zip(batch, row)), config=config) for row in rows]).mean()


def train(job: Job, output: Path) -> str | None:
    """Run a job in this process, silently, from where it stands. Returns what stopped it, if training diverged."""
    torch.set_num_threads(1)
    script, config = import_module(f"algorithms.{job.script}"), job.config(output)
    if not config.resume:
        shutil.rmtree(config.run_dir, ignore_errors=True)  # what was stopped before its first save
    replaced = {}
    if job.sample_level:
        replaced["policy_loss"] = partial(sample_level_loss, script.policy_loss)
    if job.from_dr_grpo:
        replaced[job.from_dr_grpo] = getattr(import_module("algorithms.dr_grpo"), job.from_dr_grpo)
    with ExitStack() as stack:
        stack.enter_context(silence())
        for name, function in replaced.items():
            stack.enter_context(patch.object(script, name, function))
        try:
            script.train(config)
        except (RunFailed, UsageError) as error:
            return str(error)


def sample_many(model: str, path: Path, samples: int, device: str) -> None:
    """Write to `path` the unbiased pass@k and majority@k of each held-out problem: lists (KS, problems)."""
    torch.set_num_threads(1)
    policy, tokenizer = load_policy(model, pick_device(device))
    evaluation = evaluate(policy, tokenizer, held_out_problems(64, LEVELS), samples=samples, max_new_tokens=56)
    answers = [[extract_answer(text) for text in row] for row in evaluation.texts]
    rights = [problem.answer for problem in evaluation.problems]
    passed = [[pass_at_k(samples, int(row.sum()), k) for row in evaluation.correct] for k in KS]
    voted = [[majority_at_k(row, right, k) for row, right in zip(answers, rights)] for k in KS]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"samples": samples, "pass": passed, "majority": voted}))


# ---------------------------------------------------------------------- all runs


def jobs_of(experiment: str, config: Config, rates: dict[str, float] | None = None) -> list[Job]:
    """All runs of a training experiment; `rates` are the learning rates of `matched`."""
    common = {"steps": config.steps, "device": config.device} | COMMON
    jobs = []
    for seed in range(config.seeds):
        if experiment in ("shared", "matched"):
            for arm, script in SCRIPTS.items():
                rate = {"learning_rate": rates[arm]} if rates else {}
                jobs.append(Job(experiment, arm, seed, script, common | rate))
        elif experiment == "pieces":
            jobs += [Job(experiment, arm, seed, "grpo", common, from_dr_grpo=name) for arm, name in PIECES.items()]
        else:
            settings = common | ABLATION_SETTING
            for row, (arm, change) in enumerate(ABLATION.items()):
                settings = settings | change
                jobs.append(Job(experiment, arm, seed, "dapo", settings, sample_level=row < 4))
    return jobs


def load(jobs: list[Job], output: Path) -> dict[str, list[dict | None]]:
    """The summaries of each arm's runs by seed, None for one that has not finished. UsageError if none has."""
    arms: dict[str, list[dict | None]] = {}
    for job in jobs:
        run = report.summary(job.folder(output)) if job.is_finished(output) else None
        arms.setdefault(job.arm, []).append(run)
    if missing := [arm for arm, runs in arms.items() if not any(runs)]:
        experiment = jobs[0].experiment
        raise UsageError(
            f"no finished run of {', '.join(missing)} in {output / experiment}; add {experiment} to --experiments"
        )
    return arms


def matched_rates(config: Config, output: Path) -> dict[str, float]:
    """Learning rates at which every script's mean update should be as long as GRPO's was in `shared`.

    Under Adam the mean length grows a little slower than the rate, about with its power 0.75: REINFORCE's from .0175 to
    .0269 between 1.13e-4 and 2e-4 (`results.json`, 5 seeds). The table shows how well it was met.
    """
    arms = load(jobs_of("shared", config), output)
    lengths = {arm: np.mean([run["update_norm"] for run in runs if run]) for arm, runs in arms.items()}
    return {arm: float(f"{2e-4 * (lengths['GRPO'] / length) ** (1 / 0.75):.3g}") for arm, length in lengths.items()}


def run_all(config: Config, output: Path) -> tuple[dict[str, list[Job]], list[str]]:
    """Do what is not yet done. Returns the jobs of each training experiment, and a line for every run that diverged."""
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that are started now
    jobs: dict[str, list[Job]] = {}
    failures: list[str] = []
    pool = ProcessPoolExecutor(config.processes or os.cpu_count(), mp_context=get_context("spawn"))

    def finish(what: str, tasks: dict[str, tuple]) -> None:
        """Run the tasks, a function and its arguments by name, under a progress bar."""
        futures = {pool.submit(*task): name for name, task in tasks.items()}
        for future in tqdm(as_completed(futures), what, len(futures), dynamic_ncols=True):
            if problem := future.result():
                failures.append(f"{futures[future]}: {problem}")

    def train_all(*experiments: str) -> None:
        todo = [job for name in experiments for job in jobs.get(name, []) if not job.is_finished(output)]
        finish("runs", {f"{job.experiment}, {job.arm}, seed {job.seed}": (train, job, output) for job in todo})

    try:
        for name in ("shared", "pieces", "ablation"):
            if name in config.experiments:
                jobs[name] = jobs_of(name, config)
        train_all(*jobs)
        if "matched" in config.experiments:
            jobs["matched"] = jobs_of("matched", config, matched_rates(config, output))
            train_all("matched")
        if "sampling" in config.experiments:
            models = {"base": "base"} | {
                job.folder(output).name: str(job.folder(output) / "checkpoint")
                for job in jobs["shared"]
                if job.is_finished(output)
            }
            files = {name: output / "sampling" / f"{name}.json" for name in models}
            finish(
                "samplings",
                {
                    f"sampling, {name}": (sample_many, models[name], path, config.samples, config.device)
                    for name, path in files.items()
                    if not path.is_file()
                },
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt("by Ctrl-C; the same command continues from here") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return jobs, failures


def load_samplings(jobs: list[Job], output: Path) -> dict[str, dict[str, np.ndarray]]:
    """pass@k and majority@k of the base and of each script: arrays (seeds, KS, problems)."""
    arms: dict[str, list[dict]] = {}
    for arm, name in [("base", "base"), *((job.arm, job.folder(output).name) for job in jobs)]:
        path = output / "sampling" / f"{name}.json"
        if path.is_file():
            arms.setdefault(arm, []).append(json.loads(path.read_text()))
    return {
        arm: {kind: np.array([run[kind] for run in runs]) for kind in ("majority", "pass")}
        for arm, runs in arms.items()
    }


def main(config: Config) -> None:
    """Run what is missing, then write and print the tables and draw the figures."""
    config.check()
    if config.publish:
        config = replace(config, experiments=get_args(Experiment))
    if {"matched", "pieces", "sampling"} & set(config.experiments):
        config = replace(config, experiments=("shared", *config.experiments))
    if config.quick:
        config = replace(config, seeds=3, steps=25, output=f"{config.output}-quick")
    output = Path(config.output)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make the folder {config.output!r} ({error.strerror}); choose another --output"
        ) from None
    try:
        with FileLock(output / "lock", timeout=0):
            jobs, failures = run_all(config, output)
    except Timeout:
        raise UsageError(
            f"another compare.py is running in {config.output!r}; wait, or choose another --output"
        ) from None
    for line in failures:
        print(f"diverged: {line}")

    processes = config.processes or os.cpu_count()
    results = {
        "machine": f"{os.cpu_count()} {platform.machine()} cores, torch {torch.__version__.split('+')[0]}, "
        f"{processes} runs at a time on one thread each, {pick_device(config.device)}",
        "seeds": config.seeds,
        "steps": config.steps,
        "diverged": failures,
    }
    figures = []
    for name in jobs:
        arms = load(jobs[name], output)
        results[name] = report.training_numbers(arms)
        if name in report.PANELS:
            figures.append(output / f"{name}.png")
            report.draw_experiment(name, arms, figures[-1])
    if "sampling" in config.experiments:
        samplings = load_samplings(jobs["shared"], output)
        results["sampling"] = {"samples": config.samples} | report.sampling_numbers(samplings)
        figures.append(output / "sampling.png")
        report.draw_sampling(samplings, figures[-1])
    results = report.rounded(results)
    (output / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    for name, table in report.tables(results).items():
        print(f"\n{name}\n{table}")
    print(f"\nSee {', '.join(path.name for path in figures)} and results.json in {output}")
    if config.publish:
        shutil.copy(output / "results.json", report.RESULTS)
        for path in figures:
            shutil.copy(path, report.HERE / "figures")
        report.write_pages()


if __name__ == "__main__":
    run_main(Config, main, __doc__)
