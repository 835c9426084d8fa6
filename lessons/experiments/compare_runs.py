"""The runs of compare.py: which there are, one of them, and what is kept of it."""

import json
import re
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from lessons.experiments.staleness import averaged_as_grpo
from toy_env import Diverged, UsageError
from toy_env.arithmetic import LEVELS, extract_answer, held_out_problems
from toy_env.cli import silence
from toy_env.evaluate import evaluate, majority_at_k, pass_at_k
from toy_env.model import load_policy, pick_device
from toy_env.save import MAY_CHANGE_ON_RESUME

LADDER = {"REINFORCE": "reinforce", "PPO": "ppo", "GRPO": "grpo", "Dr. GRPO": "dr_grpo", "DAPO": "dapo"}
SCRIPTS = LADDER | {"RLOO": "rloo", "MaxRL": "maxrl", "GSPO": "gspo", "CISPO": "cispo"}
COMMON = {"eval_every": 5, "measure_updates": True}  # settings of every run
OFTENER = {"eval_every": 2}  # of those with dynamic sampling, whose batches are larger: as fine between evaluations
RATE, RATES = 2e-4, (1e-4, 2e-4, 4e-4, 8e-4)
GROUP_SIZES, BATCH = (2, 4, 8, 16, 32, 64), 256  # completions
KS, SAMPLES = (1, 2, 4, 8, 16, 32, 64), 128  # of pass@k and majority@k

# At the defaults no completion reaches the limit of 56 tokens, and with 4 updates a batch the clip hardly ever binds.
ABLATION_SETTING = {"max_new_tokens": 36, "num_minibatches": 16}
ABLATION = {  # what changes against the row above; the token-level loss is what the rows before it have replaced
    "GRPO without KL": {"dynamic_sampling": False, "clip_eps_high": 0.2, "overlong_buffer": 0},
    "+ overlong filtering": {"overlong_filtering": True},
    "+ clip-higher": {"clip_eps_high": 0.28},
    "+ soft overlong punishment": {"overlong_buffer": 8},
    "+ token-level loss": {},
    "+ dynamic sampling": {"dynamic_sampling": True} | OFTENER,
}
SAMPLE_LEVEL = "sample-level loss"
TO_REINFORCE = {  # what changes against the row above; GRPO, Dr. GRPO and the last are the scripts as they are
    "GRPO": {},
    "Dr. GRPO: no ÷ σ, constant length": {},
    "+ no KL": {"kl_coef": 0.0},
    "+ one update a batch": {"num_minibatches": 1},
    "+ no baseline: REINFORCE": {},
}


@dataclass(frozen=True)
class Arm:
    """What is trained, with any seed: a script, what differs from its defaults, and a function of it that is replaced:
    by that of dr_grpo.py, or (SAMPLE_LEVEL) the loss of dapo.py, averaged as GRPO does."""

    name: str  # names the folders
    script: str
    settings: dict = field(default_factory=dict)
    replaced: str = ""


def of_script(title: str, rate: float = RATE, G: int = 8) -> Arm:
    """A script as it is, but for its learning rate and group size, at BATCH completions a batch."""
    name, settings = title, dict(COMMON)
    if SCRIPTS[title] in ("dapo", "cispo"):
        settings |= OFTENER
    if rate != RATE:
        name, settings = f"{name} {rate:g}", settings | {"learning_rate": rate}
    if G != 8:
        name, settings = f"{name} G {G}", settings | {"group_size": G, "prompts_per_step": BATCH // G}
    return Arm(name, SCRIPTS[title], settings)


def pieces() -> dict[str, Arm]:
    """From GRPO to Dr. GRPO: each of the two changes alone."""
    return {
        "GRPO": of_script("GRPO"),
        "GRPO, not / σ": Arm("GRPO not by sigma", "grpo", COMMON, "compute_advantages"),
        "GRPO, constant length": Arm("GRPO constant length", "grpo", COMMON, "policy_loss"),
        "Dr. GRPO": of_script("Dr. GRPO"),
    }


def ablation() -> dict[str, Arm]:
    """From GRPO to DAPO, one change at a time."""
    arms, settings = {}, COMMON | ABLATION_SETTING
    for row, (name, change) in enumerate(ABLATION.items()):
        settings = settings | change
        arms[name] = Arm(f"ablation {row} {name}", "dapo", settings, SAMPLE_LEVEL if row < 4 else "")
    return arms


def to_reinforce() -> dict[str, Arm]:
    """From GRPO to REINFORCE, the first step Dr. GRPO's two changes together, then one at a time."""
    first, second, *between, last = TO_REINFORCE
    arms, settings = {first: of_script("GRPO"), second: of_script("Dr. GRPO")}, COMMON
    for name in between:
        settings = settings | TO_REINFORCE[name]
        arms[name] = Arm(f"Dr. GRPO {name}", "dr_grpo", settings)
    return arms | {last: of_script("REINFORCE")}


@dataclass(frozen=True)
class Job:
    """One training run, in a folder of its own: the same for every experiment that has this arm."""

    arm: Arm
    seed: int
    steps: int
    device: str
    output: Path

    @property
    def folder(self) -> Path:
        return self.output / f"{re.sub('[^a-z0-9.]+', '-', self.arm.name.lower()).strip('-')}-{self.seed}"

    @property
    def diverged(self) -> Path:
        """The file that says so, if the run did."""
        return self.folder / "diverged.txt"

    def config(self):
        is_there = (self.folder / "config.json").is_file()
        settings = self.arm.settings | {"steps": self.steps, "device": self.device}
        return import_module(f"algorithms.{self.arm.script}").Config(
            seed=self.seed, run_dir=str(self.folder), resume=is_there, **settings
        )

    def is_finished(self) -> bool:
        """Whether it has ended or diverged. Raises UsageError if the folder holds a run with other settings."""
        config = self.config()
        if config.resume:
            saved = json.loads((self.folder / "config.json").read_text("utf-8"))
            for name, value in json.loads(json.dumps(asdict(config))).items():
                if saved.get(name) != value and name not in MAY_CHANGE_ON_RESUME - {"steps"} | {"resume", "run_dir"}:
                    raise UsageError(
                        f"{self.folder} holds a run with {name} {saved.get(name)}, not {value}; choose another --output"
                    )
        return self.diverged.is_file() or (self.folder / "results.json").is_file()

    def summary(self) -> dict | None:
        """What it showed; None if it diverged."""
        return None if self.diverged.is_file() else summary(self.folder)


def train(job: Job) -> None:
    """Run a job in this process, silently, from where it stands. That training diverged is written to diverged.txt in
    its folder; what else stops a run raises RunFailed or UsageError."""
    torch.set_num_threads(1)
    script, replaced = import_module(f"algorithms.{job.arm.script}"), nullcontext()
    if job.arm.replaced == SAMPLE_LEVEL:
        replaced = patch.object(script, "policy_loss", averaged_as_grpo(script.policy_loss))
    elif job.arm.replaced:
        name = job.arm.replaced
        replaced = patch.object(script, name, getattr(import_module("algorithms.dr_grpo"), name))
    with silence(), replaced:
        try:
            script.train(job.config())
        except Diverged as error:
            job.diverged.write_text(f"{error}\n", "utf-8")


def sample_many(model: str, path: Path, device: str) -> None:
    """Write to `path` the unbiased pass@k and majority@k of each held-out problem, from SAMPLES completions: lists (KS,
    problems)."""
    torch.set_num_threads(1)
    policy, tokenizer = load_policy(model, pick_device(device))
    evaluation = evaluate(policy, tokenizer, held_out_problems(64, LEVELS), samples=SAMPLES, max_new_tokens=56)
    answers = [[extract_answer(text) for text in row] for row in evaluation.texts]
    rights = [problem.answer for problem in evaluation.problems]
    passed = [[pass_at_k(SAMPLES, int(row.sum()), k) for row in evaluation.correct] for k in KS]
    voted = [[majority_at_k(row, right, k) for row, right in zip(answers, rights)] for k in KS]
    path.with_suffix(".tmp").write_text(json.dumps({"pass": passed, "majority": voted}), "utf-8")
    path.with_suffix(".tmp").rename(path)


def summary(folder: Path) -> dict:
    """What a finished run showed: single numbers, a curve over its evaluations, and means over windows of 5 steps.

    `mean_accuracy` is the held-out accuracy averaged from 0 to `budget` completions, those that a script without
    dynamic sampling draws; `at_budget` is the accuracy there, interpolated between two evaluations.
    """
    config, results = (json.loads((folder / name).read_text("utf-8")) for name in ("config.json", "results.json"))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    for row in rows:
        if "clipped_up" in row:
            row["clipped"] = row["clipped_up"] + row["clipped_down"]

    def mean(name: str, rows: list[dict]) -> float | None:
        values = [row[name] for row in rows if row.get(name) is not None]
        return float(np.mean(values)) if values else None

    before, after = (results[when]["accuracy"]["all"] for when in ("before", "after"))
    evaluated = [row for row in rows if row["held_out"] is not None]
    updates = config.get("num_minibatches", 1) * config.get("epochs", 1)
    curve = {
        "updates": [0] + [row["step"] * updates for row in evaluated],
        "completions": [0] + [row["rollouts"] for row in evaluated],
        "held_out": [before["sampled"]] + [row["held_out"] for row in evaluated],
    }
    if curve["completions"][-1] < rows[-1]["rollouts"]:  # the last step was not one of those evaluated
        for name, value in zip(curve, (rows[-1]["step"] * updates, rows[-1]["rollouts"], after["sampled"])):
            curve[name].append(value)
    budget = config["steps"] * config["prompts_per_step"] * config["group_size"]
    grid = np.interp(np.linspace(0, budget, 201), curve["completions"], curve["held_out"])
    of_all_steps = ("update_norm", "clipped", "clipped_up_probability", "truncated", "silent")
    of_the_last_ten = ("entropy", "length_right", "length_wrong")
    of_windows = ("step", *of_all_steps, *of_the_last_ten)
    return {
        "learning_rate": config["learning_rate"],
        "budget": budget,
        "final": after["sampled"],
        "at_budget": float(grid[-1]),
        "mean_accuracy": float(grid.mean()),
        "completions": rows[-1]["rollouts"],
        **{name: mean(name, rows) for name in of_all_steps},
        **{name: mean(name, rows[-10:]) for name in of_the_last_ten},
        # dynamic sampling draws silent groups and does not train on them
        "silent_trained_on": 0.0 if config.get("dynamic_sampling") else mean("silent", rows),
        "curve": curve,
        "windows": {name: [mean(name, rows[i : i + 5]) for i in range(0, len(rows), 5)] for name in of_windows},
    }
