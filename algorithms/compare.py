"""The scripts of the ladder against each other, over several seeds: tables with intervals, and figures.

    python algorithms/compare.py                          the five scripts, 5 seeds
    python algorithms/compare.py --quick                  the same, small: 3 seeds, 25 steps
    python algorithms/compare.py --experiments shared matched pieces ablation sampling

Every run is the script's own `train`. Runs go on in parallel, one thread each; a run that is finished is not run again,
and one that was stopped goes on. Experiments:

    shared     the scripts as they are: all settings, the learning rate among them, are the same
    matched    learning rates scaled so that the mean update is as long as GRPO's in `shared`
    pieces     GRPO and Dr. GRPO from `shared`, and what lies between: without / sigma only, the constant length only
    ablation   from GRPO to DAPO one change at a time, in the order of DAPO's Table 1
    sampling   pass@k and majority@k of the base model and of the policies trained in `shared`

With --publish the numbers also go to algorithms/results.json, the figures to algorithms/figures, and the tables made
from the numbers into README.md. The verdicts there also need results_before.json, the numbers of an earlier time: true
only as long as the scripts compute the same up to rounding.
"""

import json
import os
import platform
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock, Timeout
from tqdm import tqdm
from transformers.hf_argparser import HfArg

from toy_env import UsageError
from toy_env.arithmetic import LEVELS, extract_answer, held_out_problems
from toy_env.cli import run_main, silence
from toy_env.evaluate import evaluate, majority_at_k, pass_at_k
from toy_env.policy import load_policy, pick_device
from toy_env.run import MAY_CHANGE_ON_RESUME

ROOT = Path(__file__).parent.parent
BEFORE = ROOT / "algorithms/results_before.json"  # what an earlier time gave; "what" in it says which
TRAINING = ("shared", "matched", "pieces", "ablation")
EXPERIMENTS = (*TRAINING, "sampling")
SCRIPTS = {"REINFORCE": "reinforce", "PPO": "ppo", "GRPO": "grpo", "Dr. GRPO": "dr_grpo", "DAPO": "dapo"}
COLORS = dict(zip([*SCRIPTS, "base"], ("#000000", "#E69F00", "#0072B2", "#009E73", "#D55E00", "#777777")))
KS = (1, 2, 4, 8, 16, 32, 64)

# At the defaults no answer reaches the limit of 56 tokens, and 4 updates a batch hardly make the clip bind.
ABLATION_SETTING = {"max_new_tokens": 36, "minibatches": 16, "eval_every": 5}
ABLATION = {  # label: (what changes against the row above, AIME 2024 in DAPO's Table 1)
    "GRPO without KL": ({"max_draws": 0, "clip_eps_high": 0.2, "overlong_buffer": 0}, 30),
    "+ overlong filtering": ({"overlong_filtering": True}, 36),
    "+ clip-higher": ({"clip_eps_high": 0.28}, 38),
    "+ soft overlong punishment": ({"overlong_buffer": 8}, 41),
    "+ token-level loss": ({}, 42),
    "+ dynamic sampling": ({"max_draws": 10}, 50),
}
PIECES = {"GRPO, not / sigma": "compute_advantages", "GRPO, constant length": "policy_loss"}  # taken from dr_grpo.py


@dataclass
class Config:
    experiments: list[str] = HfArg(default_factory=lambda: ["shared"], help=f"any of {' '.join(EXPERIMENTS)}")
    seeds: int = HfArg(default=5, help="seeds 0, 1, ... of every run")
    steps: int = HfArg(default=60, help="rollout batches of every run")
    quick: bool = HfArg(default=False, help="3 seeds and 25 steps, in the folder OUTPUT-quick")
    samples: int = HfArg(default=128, help="responses to each held-out problem for pass@k and majority@k")
    processes: int = HfArg(default=0, help="runs at a time, of one thread each; 0 for one a core")
    device: str = HfArg(default="auto", help="auto (cuda, else mps, else cpu), cuda, mps or cpu")
    output: str = HfArg(default="runs/compare", help="folder for the runs, results.json and the figures")
    publish: bool = HfArg(default=False, help="update the committed results, figures and README tables")


# ---------------------------------------------------------------------- runs


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
        return output / self.experiment / f"{file_name(self.arm)}-{self.seed}"

    def config(self, output: Path):
        folder = self.folder(output)
        config_class = import_module(f"algorithms.{self.script}").Config
        return config_class(
            seed=self.seed, run_dir=str(folder), resume=(folder / "state.pt").is_file(), **self.settings
        )

    def is_finished(self, output: Path) -> bool:
        """Raises UsageError if the folder holds a run with other settings."""
        folder = self.folder(output)
        if not (folder / "state.pt").is_file():
            return False
        saved = json.loads((folder / "config.json").read_text())
        for name, value in asdict(self.config(output)).items():
            if saved[name] != value and name not in MAY_CHANGE_ON_RESUME - {"steps"}:
                raise UsageError(
                    f"{folder} holds a run with {name} {saved[name]}, not {value}; choose another --output"
                )
        return "after" in json.loads((folder / "results.json").read_text())


def file_name(label: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")


def sample_level_loss(token_level_loss: Callable, *, config, **batch: torch.Tensor) -> torch.Tensor:
    """DAPO's loss averaged as GRPO does: over the tokens of each response, then over responses.

    The token mean over a batch of one response is the mean over that response; `batch` is as in `dapo.policy_loss`.
    """
    rows = zip(*(tensor.split(1) for tensor in batch.values()))
    return torch.stack([token_level_loss(**dict(zip(batch, row)), config=config) for row in rows]).mean()


def train(job: Job, output: Path) -> str | None:
    """Run a job in this process, silently, from where it stands. Returns what stopped it, if training diverged."""
    torch.set_num_threads(1)
    script, config = import_module(f"algorithms.{job.script}"), job.config(output)
    if not config.resume:
        shutil.rmtree(config.run_dir, ignore_errors=True)  # what was stopped before its first save
    own = {name: getattr(script, name) for name in ("compute_advantages", "policy_loss")}
    with silence():
        try:
            if job.sample_level:
                script.policy_loss = lambda **batch: sample_level_loss(own["policy_loss"], **batch)
            if job.from_dr_grpo:
                setattr(script, job.from_dr_grpo, getattr(import_module("algorithms.dr_grpo"), job.from_dr_grpo))
            script.train(config)
        except UsageError as error:
            return str(error)
        finally:
            for name, function in own.items():
                setattr(script, name, function)
    return None


def sample_many(model: str, path: Path, config: Config) -> None:
    """Write to `path` the unbiased pass@k and majority@k of each held-out problem: lists (KS, problems)."""
    torch.set_num_threads(1)
    policy, tokenizer = load_policy(model, pick_device(config.device))
    evaluation = evaluate(policy, tokenizer, held_out_problems(64, LEVELS), samples=config.samples, max_new_tokens=56)
    answers = [[extract_answer(text) for text in row] for row in evaluation.texts]
    rights = [problem.answer for problem in evaluation.problems]
    passed = [[pass_at_k(config.samples, int(row.sum()), k) for row in evaluation.correct] for k in KS]
    voted = [[majority_at_k(row, right, k) for row, right in zip(answers, rights)] for k in KS]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"samples": config.samples, "pass": passed, "majority": voted}))


def jobs_of(experiment: str, config: Config, rates: dict[str, float]) -> list[Job]:
    """All runs of an experiment; `rates` are the learning rates of `matched`."""
    common = {"steps": config.steps, "device": config.device, "eval_every": 5}
    jobs = []
    for seed in range(config.seeds):
        if experiment in ("shared", "matched"):
            for arm, script in SCRIPTS.items():
                rate = {"learning_rate": rates[arm]} if experiment == "matched" else {}
                jobs.append(Job(experiment, arm, seed, script, common | rate))
        elif experiment == "pieces":
            jobs += [Job(experiment, arm, seed, "grpo", common, from_dr_grpo=name) for arm, name in PIECES.items()]
        else:
            settings = common | ABLATION_SETTING
            for row, (arm, (change, _)) in enumerate(ABLATION.items()):
                settings = settings | change
                jobs.append(Job(experiment, arm, seed, "dapo", settings, sample_level=row < 4))
    return jobs


def run_all(config: Config, output: Path) -> list[str]:
    """Do what is not yet done, under one progress bar. Returns a line for every run that diverged."""
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that are started now
    steps_of_sampling = 10  # what sampling counts for in the bar
    failures = []
    trained = [name for name in TRAINING if name in config.experiments]
    runs = sum(len(jobs_of(name, config, dict.fromkeys(SCRIPTS, 1.0))) for name in trained)
    samplings = (1 + len(SCRIPTS) * config.seeds) * ("sampling" in config.experiments)
    total = runs * config.steps + samplings * steps_of_sampling
    bar = tqdm(total=total, desc=f"{runs} runs, steps", dynamic_ncols=True)
    pool = ProcessPoolExecutor(config.processes or os.cpu_count(), mp_context=get_context("spawn"))
    futures: dict = {}
    jobs: list[Job] = []

    def watch() -> None:
        """Wait for all that was submitted, and show how far everything is."""
        waiting = set(futures)
        while True:
            finished, waiting = wait(waiting, timeout=0.5)
            for future in finished:
                if problem := future.result():
                    failures.append(f"{futures[future]}: {problem}")
            rows = sum(count_lines(job.folder(output) / "metrics.jsonl") for job in jobs)
            sampled = sum(1 for _ in (output / "sampling").glob("*.json")) if samplings else 0
            bar.n = rows + steps_of_sampling * sampled
            bar.initial = bar.initial or bar.n  # what was done before does not count for the pace
            bar.refresh()
            if not waiting:
                break
        futures.clear()

    def submit(experiment: str) -> None:
        rates = matched_rates(config, output) if experiment == "matched" else {}
        for job in jobs_of(experiment, config, rates):
            jobs.append(job)
            if not job.is_finished(output):
                futures[pool.submit(train, job, output)] = f"{job.experiment}, {job.arm}, seed {job.seed}"

    try:
        if "shared" in config.experiments:
            submit("shared")
        for experiment in ("pieces", "ablation"):
            if experiment in config.experiments:
                submit(experiment)
        watch()
        if "matched" in config.experiments:
            submit("matched")
        if "sampling" in config.experiments:
            models = {"base": "base"}
            for job in jobs_of("shared", config, {}):
                models[job.folder(output).name] = str(job.folder(output) / "checkpoint")
            for name, model in models.items():
                if not (output / "sampling" / f"{name}.json").is_file() and (name == "base" or Path(model).is_dir()):
                    future = pool.submit(sample_many, model, output / "sampling" / f"{name}.json", config)
                    futures[future] = f"sampling, {name}"
        watch()
    except KeyboardInterrupt:
        raise KeyboardInterrupt("; the same command goes on from here") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        bar.close()
    return failures


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def matched_rates(config: Config, output: Path) -> dict[str, float]:
    """Learning rates at which every script's mean update should be as long as GRPO's was in `shared`.

    Under Adam the mean length grows a little slower than the rate, about with its power 0.75: REINFORCE's from .0175 to
    .0269 between 1.13e-4 and 2e-4 (`results.json`, 5 seeds). The table shows how well it was met.
    """
    runs = load("shared", config, output)
    lengths = {arm: np.mean([run["update_norm"] for run in runs[arm]]) for arm in SCRIPTS}
    return {arm: float(f"{2e-4 * (lengths['GRPO'] / lengths[arm]) ** (1 / 0.75):.3g}") for arm in SCRIPTS}


# ---------------------------------------------------------------------- numbers


def load(experiment: str, config: Config, output: Path) -> dict[str, list[dict]]:
    """The finished runs of each arm, summed up. Raises UsageError if there are none."""
    rates = matched_rates(config, output) if experiment == "matched" else {}
    arms: dict[str, list[dict]] = {}
    for job in jobs_of(experiment, config, rates):
        if job.is_finished(output):
            arms.setdefault(job.arm, []).append(summary(job, output))
    missing = {job.arm for job in jobs_of(experiment, config, rates)} - set(arms)
    if missing:
        raise UsageError(f"no finished run of {', '.join(sorted(missing))} in {output / experiment}; "
                         f"add {experiment} to --experiments")  # fmt: skip
    return arms


def summary(job: Job, output: Path) -> dict:
    """What a finished run showed: curves over its evaluations, and single numbers.

    `mean_accuracy` is the held-out accuracy averaged from 0 to `budget` completions, those that a script without
    dynamic sampling draws; `at_budget` is the accuracy there, interpolated between two evaluations.
    """
    folder = job.folder(output)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    results = json.loads((folder / "results.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    updates = config.get("minibatches", 1) * config.get("epochs", 1)
    evaluated = [row for row in rows if row["held_out"] is not None]
    seconds = np.cumsum([row["seconds"] for row in rows])
    curve = {
        "updates": [0] + [row["step"] * updates for row in evaluated],
        "completions": [0] + [row["rollouts"] for row in evaluated],
        "seconds": [0.0] + [float(seconds[row["step"] - 1]) for row in evaluated],
        "held_out": [results["before"]["accuracy"]["all"]["sampled"]] + [row["held_out"] for row in evaluated],
    }
    budget = config["steps"] * config["prompts_per_step"] * config["group_size"]
    grid = np.linspace(0, budget, 201)
    after = results["after"]["accuracy"]["all"]
    last = rows[-10:]

    def mean(name: str, of: list[dict]) -> float | None:
        values = [row[name] for row in of if row.get(name) is not None]
        return float(np.mean(values)) if values else None

    dynamic = config.get("max_draws", 0) > 0  # silent groups are drawn and thrown away
    return {
        "seed": job.seed,
        "learning_rate": config["learning_rate"],
        "final": after["sampled"],
        "greedy": after["greedy"],
        "at_budget": float(np.interp(budget, curve["completions"], curve["held_out"])),
        "mean_accuracy": float(np.interp(grid, curve["completions"], curve["held_out"]).mean()),
        "budget": budget,
        "completions": rows[-1]["rollouts"],
        "seconds": float(seconds[-1]),
        "update_norm": mean("update_norm", rows),
        "clipped": mean("clipped_up", rows) + mean("clipped_down", rows) if "clipped_up" in rows[0] else None,
        "clipped_up": mean("clipped_up", rows),
        "clipped_up_probability": mean("clipped_up_probability", rows),
        "entropy": mean("entropy", last),
        "length_right": mean("length_right", last),
        "length_wrong": mean("length_wrong", last),
        "truncated": mean("truncated", rows),
        "silent": mean("silent", rows),
        "silent_trained_on": 0.0 if dynamic else mean("silent", rows),
        "curve": curve,
        "rows": rows,
    }


def bootstrap(values: np.ndarray, draws: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """95 % percentile bootstrap interval of the mean over axis 0, the seeds: (n, ...) to two arrays (...)."""
    picks = np.random.default_rng(0).integers(len(values), size=(draws, len(values)))
    low, high = np.percentile(np.asarray(values)[picks].mean(axis=1), [2.5, 97.5], axis=0)
    return low, high


def estimate(values: list[float | None]) -> dict:
    """Mean over seeds, its interval, and the values themselves; a seed without a value (None) counts in neither."""
    found = [value for value in values if value is not None]
    if not found:
        return {"mean": None, "interval": None, "seeds": []}
    low, high = bootstrap(np.array(found))
    return {"mean": float(np.mean(found)), "interval": [float(low), float(high)], "seeds": values}


def by_seed(runs: list[dict], name: str, seeds: int) -> list[float | None]:
    """One number of every seed's run, None for a run that is missing because it diverged."""
    values = {run["seed"]: run[name] for run in runs}
    return [values.get(seed) for seed in range(seeds)]


def collect(config: Config, output: Path, failures: list[str]) -> dict:
    """All numbers of the experiments asked for, as plain data."""
    numbers = [
        "final", "greedy", "at_budget", "mean_accuracy", "completions", "seconds", "update_norm", "clipped",
        "clipped_up_probability", "entropy", "length_right", "length_wrong", "truncated", "silent", "silent_trained_on",
    ]  # fmt: skip
    results = {
        "machine": f"{os.cpu_count()} {platform.machine()} cores, torch {torch.__version__.split('+')[0]}, "
        f"{config.processes or os.cpu_count()} runs at a time on one thread each, {pick_device(config.device)}",
        "seeds": config.seeds,
        "steps": config.steps,
        "diverged": failures,
    }
    for experiment in TRAINING:
        if experiment in config.experiments:
            results[experiment] = {
                arm: {
                    "learning_rate": runs[0]["learning_rate"],
                    "budget": runs[0]["budget"],
                    **{name: estimate(by_seed(runs, name, config.seeds)) for name in numbers},
                }
                for arm, runs in load(experiment, config, output).items()
            }
    if "sampling" in config.experiments:
        results["sampling"] = {"samples": config.samples} | {
            arm: {
                kind: [
                    {"k": k, "mean": float(rates[:, i].mean()), "interval": interval_over_both(rates[:, i])}
                    for i, k in enumerate(KS)
                ]
                for kind, rates in kinds.items()
            }
            for arm, kinds in load_samplings(config, output).items()
        }
    return rounded(results)


def load_samplings(config: Config, output: Path) -> dict[str, dict[str, np.ndarray]]:
    """pass@k and majority@k of the base and of each script: arrays (seeds, KS, problems)."""
    arms: dict[str, list[dict]] = {"base": [json.loads((output / "sampling/base.json").read_text())]}
    for job in jobs_of("shared", config, {}):
        path = output / "sampling" / f"{job.folder(output).name}.json"
        if path.is_file():
            arms.setdefault(job.arm, []).append(json.loads(path.read_text()))
    return {
        arm: {kind: np.array([run[kind] for run in runs]) for kind in ("majority", "pass")}
        for arm, runs in arms.items()
    }


def interval_over_both(rates: np.ndarray, draws: int = 2000) -> list[float]:
    """95 % percentile bootstrap interval of the mean of (seeds, problems), both drawn anew with replacement."""
    rng, (seeds, problems) = np.random.default_rng(0), rates.shape
    means = [
        rates[rng.integers(seeds, size=seeds)][:, rng.integers(problems, size=problems)].mean() for _ in range(draws)
    ]
    return np.percentile(means, [2.5, 97.5]).tolist()


def rounded(value):
    """The same plain data with its floats to 4 significant digits."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


# ---------------------------------------------------------------------- tables


def cell(number: dict, digits: int = 3) -> str:
    """Mean and interval, ".926 [.919, .932]"."""
    if number["mean"] is None:
        return "none"

    def text(value: float) -> str:
        return re.sub(r"^(-?)0\.", r"\1.", f"{value:,.{digits}f}")

    return f"{text(number['mean'])} [{text(number['interval'][0])}, {text(number['interval'][1])}]"


def verdict(*comparisons: tuple[dict, dict]) -> str:
    """Whether an arm's number lies above another's, from the (arm, other) of each time the comparison was made.

    The intervals decide, the seeds in favour are counted. A difference seen at one time only is "not repeated".
    """
    higher, lower, directions = [], [], set()
    for arm, other in comparisons:
        pairs = [pair for pair in zip(arm["seeds"], other["seeds"]) if None not in pair]
        higher.append(f"{sum(a > b for a, b in pairs)} of {len(pairs)}")
        lower.append(f"{sum(a < b for a, b in pairs)} of {len(pairs)}")
        above = arm["interval"][0] > other["interval"][1]
        below = arm["interval"][1] < other["interval"][0]
        directions.add("higher" if above else "lower" if below else "")
    if directions == {"higher"}:
        return f"higher in {' and '.join(higher)}"
    if directions == {"lower"}:
        return f"lower in {' and '.join(lower)}"
    seen = "no difference seen" if directions == {""} else "not repeated"
    return f"{seen} ({' and '.join(higher)} higher)"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def tables(results: dict, before: dict | None = None) -> dict[str, str]:
    """The README's tables by name, from the numbers of `collect`; the verdicts also from `before`, an earlier time."""
    made, times = {}, [results] if before is None else [before, results]
    singly: list[list[str]] = []  # the verdicts of each time

    def judged(name: str, experiment: str, arm: str, other_experiment: str, other: str) -> str:
        pairs = [(time[experiment][arm][name], time[other_experiment][other][name]) for time in times]
        singly.append([verdict(pair) for pair in pairs])
        return verdict(*pairs)

    for experiment in ("shared", "matched"):
        if experiment in results:
            arms = results[experiment]
            budget = next(iter(arms.values()))["budget"]
            made[experiment] = markdown(
                ["script", "learning rate", "mean update length", "accuracy, mean over training",
                 f"at {budget:,} completions", "at the end", "completions", "seconds"],
                [[arm, f"{n['learning_rate']:.3g}", cell(n["update_norm"], 4), cell(n["mean_accuracy"]),
                  cell(n["at_budget"]), cell(n["final"]), f"{n['completions']['mean']:,.0f}",
                  f"{n['seconds']['mean']:.0f}"] for arm, n in arms.items()],
            )  # fmt: skip
    if "shared" in results:
        made["behaviour"] = markdown(
            ["script", "length of right answers", "of wrong answers", "entropy", "silent share, all steps",
             "tokens clipped, all steps", "greedy accuracy"],
            [[arm, cell(n["length_right"], 1), cell(n["length_wrong"], 1), cell(n["entropy"]), cell(n["silent"], 2),
              "no clip" if n["clipped"]["mean"] is None else f"{n['clipped']['mean']:.2%}", cell(n["greedy"])]
             for arm, n in results["shared"].items()],
        )  # fmt: skip
    if "pieces" in results:
        rows = [("shared", "GRPO"), *(("pieces", arm) for arm in PIECES), ("shared", "Dr. GRPO")]
        shown = ("mean_accuracy", "length_wrong", "entropy")
        made["pieces"] = markdown(
            ["", *(text for title in ("accuracy, mean over training", "length of wrong answers", "entropy at the end")
                   for text in (title, "against GRPO"))],
            [[arm, *(text for name in shown
                     for text in (cell(results[experiment][arm][name], 1 if name == "length_wrong" else 3),
                                  "" if arm == "GRPO" else judged(name, experiment, arm, "shared", "GRPO")))]
             for experiment, arm in rows],
        )  # fmt: skip
    columns = [
        (experiment, name, f"{title} {experiment}")
        for experiment in ("shared", "matched")
        if experiment in results
        for name, title in (("mean_accuracy", "mean over training,"), ("at_budget", "at equal completions,"))
    ]
    if columns:
        made["verdicts"] = markdown(
            ["against GRPO", *(title for _, _, title in columns)],
            [[arm, *(judged(name, experiment, arm, experiment, "GRPO") for experiment, name, _ in columns)]
             for arm in SCRIPTS if arm != "GRPO"],
        )  # fmt: skip
    if "ablation" in results:
        arms = list(results["ablation"].items())
        above = [None, *(arm for arm, _ in arms)]
        compared = (("at_budget", f"at {arms[0][1]['budget']:,} completions"), ("mean_accuracy", "mean over training"))
        made["ablation"] = markdown(
            ["change, on top of the row above", "AIME 2024, published", "accuracy at the end", "completions",
             *(text for _, title in compared for text in (title, "against the row above"))],
            [[arm, str(ABLATION[arm][1]), cell(n["final"]), f"{n['completions']['mean']:,.0f}",
              *(text for name, _ in compared
                for text in (cell(n[name]), judged(name, "ablation", arm, "ablation", last) if last else ""))]
             for (arm, n), last in zip(arms, above)],
        )  # fmt: skip
        made["mechanisms"] = markdown(
            ["change", "entropy at the end", "tokens clipped", "probability of up-clipped tokens",
             "silent share trained on", "cut at the limit", "length of wrong answers"],
            [[arm, cell(n["entropy"]), f"{n['clipped']['mean']:.2%}", cell(n["clipped_up_probability"], 2),
              cell(n["silent_trained_on"], 2) if any(n["silent_trained_on"]["seeds"]) else "0, by construction",
              f"{n['truncated']['mean']:.1%}", cell(n["length_wrong"], 1)] for arm, n in arms],
        )  # fmt: skip
    if "sampling" in results:
        arms = {arm: kinds for arm, kinds in results["sampling"].items() if arm != "samples"}
        shown = [i for i, k in enumerate(KS) if k in (1, 4, 16, 64)]
        made["sampling"] = markdown(
            ["policy", "Pass@1 = Maj@1", *(f"{kind}@{KS[i]}" for kind in ("Maj", "Pass") for i in shown[1:])],
            [[arm, cell(kinds["pass"][0]), *(cell(kinds[kind][i]) for kind in ("majority", "pass") for i in shown[1:])]
             for arm, kinds in arms.items()],
        )  # fmt: skip
    if before:
        seen = [[text.startswith(("higher", "lower")) for text in texts] for texts in singly]
        first, second = (sum(column) for column in zip(*seen))
        once = [texts[shown.index(True)] for texts, shown in zip(singly, seen) if sum(shown) == 1]
        whole = sum(text.endswith(f"{results['seeds']} of {results['seeds']}") for text in once)
        made["repeated"] = (
            f"Of the {len(singly)} comparisons in the three tables with verdicts, the first time showed a difference "
            f"in {first}, the second in\n{second}, both in {sum(map(all, seen))}. Of the {len(once)} differences seen "
            f"once only, {whole} had all seeds on their side."
        )
    return made


def into_readme(readme: str, made: dict[str, str]) -> str:
    """The README with each table put between its two comments, <!-- name --> and <!-- /name -->."""
    for name, table in made.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if start not in readme or end not in readme:
            raise UsageError(f"README.md has no place for the table {name!r}: it needs {start} and {end}")
        before, rest = readme.split(start)
        readme = f"{before}{start}\n{table}\n{end}{rest.split(end)[1]}"
    return readme


# ---------------------------------------------------------------------- figures


def draw_lines(axis, runs: list[dict], x: Callable, y: Callable, color, label: str, style: str = "-") -> None:
    """The mean of y over seeds against the mean of x, its bootstrap band, and every seed's own line, faintly."""
    xs, ys = (np.array([[np.nan if v is None else v for v in of(run)] for run in runs], dtype=float) for of in (x, y))
    for one_x, one_y in zip(xs, ys):
        axis.plot(one_x, one_y, color=color, alpha=0.2, linewidth=0.7)
    with np.errstate(invalid="ignore"):
        low, high = bootstrap(ys)
    axis.fill_between(xs.mean(axis=0), low, high, color=color, alpha=0.2, linewidth=0)
    axis.plot(xs.mean(axis=0), ys.mean(axis=0), style, color=color, linewidth=1.8, label=label)


def smoothed(name: str) -> Callable:
    """A metric of the training rows, as means over windows of 5 steps."""

    def values(run: dict) -> list[float]:
        rows = [[row.get(name) for row in run["rows"][i : i + 5]] for i in range(0, len(run["rows"]), 5)]
        rows = [[value for value in window if value is not None] for window in rows]
        return [float(np.mean(window)) if window else np.nan for window in rows]

    return values


def step_axis(run: dict) -> list[float]:
    return [float(np.mean([row["step"] for row in run["rows"][i : i + 5]])) for i in range(0, len(run["rows"]), 5)]


def clipped(run: dict) -> list[float]:
    return (np.array(smoothed("clipped_up")(run)) + np.array(smoothed("clipped_down")(run))).tolist()


def over(name: str) -> Callable:
    return lambda run: run["curve"][name]


def figure_of(arms: dict[str, list[dict]], panels: list[tuple], colors: dict, path: Path, title: str) -> None:
    """Small multiples, one (heading, x label, x, y) each, with one line an arm."""
    from matplotlib.figure import Figure

    columns = (len(panels) + 1) // 2
    figure = Figure(figsize=(3.5 * columns, 6.4), layout="constrained")
    axes = list(figure.subplots(2, columns).flat)
    for axis, (heading, label, x, y) in zip(axes, panels):
        for arm, runs in arms.items():
            if not (heading.startswith("Tokens") and "clipped_up" not in runs[0]["rows"][0]):
                draw_lines(axis, runs, x, y, colors[arm], arm)
        axis.set_title(heading, fontsize=10, loc="left")
        axis.set_xlabel(label, fontsize=9)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
        if heading.startswith("Held-out"):
            axis.set_ylim(0.3, 1)
        if "DAPO goes on" in label:
            axis.set_xlim(0, 1.3 * arms["GRPO"][0]["budget"])
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    fitting = int(3.5 * columns / (0.6 + 0.08 * max(map(len, labels))))  # inches, at this font size
    figure.legend(handles, labels, loc="outside lower center", ncols=min(fitting, len(labels)), frameon=False)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=120)


def figures(config: Config, output: Path) -> list[Path]:
    """Draw the figures of the experiments asked for; their paths."""
    from matplotlib.figure import Figure

    paths = []
    seeds = f"{config.seeds} seeds: mean, 95 % bootstrap band, each seed"
    held_out, steps = over("held_out"), "rollout batch"
    for experiment, title in (("shared", "One learning rate for all"), ("matched", "Updates of one mean length")):
        if experiment in config.experiments:
            paths.append(output / f"{experiment}.png")
            panels = [
                ("Held-out accuracy", "completions sampled (DAPO goes on)", over("completions"), held_out),
                ("Held-out accuracy", "optimizer steps", over("updates"), held_out),
                ("Held-out accuracy", "seconds of training, one thread", over("seconds"), held_out),
                ("Length of an update", steps, step_axis, smoothed("update_norm")),
                ("Length of right answers, tokens", steps, step_axis, smoothed("length_right")),
                ("Length of wrong answers, tokens", steps, step_axis, smoothed("length_wrong")),
                ("Entropy, nats a token", steps, step_axis, smoothed("entropy")),
                ("Silent groups, share of those drawn", steps, step_axis, smoothed("silent")),
                ("Tokens stopped by the clip, share", steps, step_axis, clipped),
            ]
            panels = panels[:3] + panels[4:] if experiment == "shared" else panels[:4]
            arms = load(experiment, config, output)
            figure_of(arms, panels, COLORS, paths[-1], f"{title} · {seeds}")
    if "ablation" in config.experiments:
        from matplotlib import colormaps

        paths.append(output / "ablation.png")
        panels = [
            ("Held-out accuracy", "completions sampled", over("completions"), held_out),
            ("Entropy, nats a token", steps, step_axis, smoothed("entropy")),
            ("Tokens stopped by the clip, share", steps, step_axis, clipped),
            ("Cut at the length limit, share", steps, step_axis, smoothed("truncated")),
            ("Length of wrong answers, tokens", steps, step_axis, smoothed("length_wrong")),
            ("Silent groups, share of those drawn", steps, step_axis, smoothed("silent")),
        ]
        colors = dict(zip(ABLATION, colormaps["viridis_r"](np.linspace(0.08, 1, len(ABLATION)))))
        arms = load("ablation", config, output)
        figure_of(arms, panels, colors, paths[-1], f"From GRPO to DAPO, one change at a time · {seeds}")
    if "sampling" in config.experiments:
        paths.append(output / "sampling.png")
        figure = Figure(figsize=(9, 4), layout="constrained")
        for axis, kind, title in zip(figure.subplots(1, 2, sharey=True), ("majority", "pass"), ("Maj@K", "Pass@K")):
            for arm, kinds in load_samplings(config, output).items():
                rates = kinds[kind]  # (seeds, KS, problems)
                bands = np.array([interval_over_both(rates[:, i]) for i in range(len(KS))])
                axis.fill_between(KS, *bands.T, color=COLORS[arm], alpha=0.15, linewidth=0)
                axis.plot(KS, rates.mean(axis=(0, 2)), "o-", markersize=4, color=COLORS[arm], label=arm)
            axis.set_xscale("log", base=2)
            axis.set_xticks(KS, [str(k) for k in KS])
            axis.set_title(f"{title} on held-out problems", fontsize=10, loc="left")
            axis.set_xlabel("K, answers to each problem")
            axis.grid(alpha=0.25)
            axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False)
        figure.savefig(paths[-1], dpi=120)
    return paths


# ---------------------------------------------------------------------- command


def main(config: Config) -> None:
    """Run what is missing, then write and print the tables and draw the figures."""
    if wrong := set(config.experiments) - set(EXPERIMENTS):
        raise UsageError(f"--experiments: there is no {min(wrong)!r}; choose from {' '.join(EXPERIMENTS)}")
    if config.samples < max(KS):
        raise UsageError(f"--samples must be {max(KS)} or more, not {config.samples}")
    if config.publish and config.quick:
        raise UsageError("--publish is for full runs; leave out --quick")
    if config.publish:
        config = replace(config, experiments=list(EXPERIMENTS))
    if {"matched", "pieces", "sampling"} & set(config.experiments):
        config = replace(config, experiments=["shared", *config.experiments])
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
            failures = run_all(config, output)
    except Timeout:
        raise UsageError(
            f"another compare.py is at work in {config.output!r}; wait, or choose another --output"
        ) from None
    for line in failures:
        print(f"diverged: {line}")
    results = collect(config, output, failures)
    (output / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    made, paths = tables(results), figures(config, output)
    for name, table in made.items():
        print(f"\n{name}\n{table}")
    print(f"\nSee {', '.join(path.name for path in paths)} and results.json in {output}")
    if config.publish:
        shutil.copy(output / "results.json", ROOT / "algorithms/results.json")
        for path in paths:
            shutil.copy(path, ROOT / "algorithms/figures" / path.name)
        readme, before = ROOT / "README.md", json.loads(BEFORE.read_text())
        readme.write_text(into_readme(readme.read_text(), tables(results, before)))


if __name__ == "__main__":
    run_main(Config, main, __doc__)
