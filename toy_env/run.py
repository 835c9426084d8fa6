"""Everything around the algorithm in a script: settings, seeds, log, saves, held-out report."""

import difflib
import io
import json
import math
import random
import re
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from tqdm import tqdm

from toy_env.evaluation import evaluate, held_out, held_out_report, report_samples, report_table
from toy_env.memory import tokens_per_pass
from toy_env.metrics import rollout_metrics, step_metrics, warn_if_silent
from toy_env.model import check_tokenizer, pick_device
from toy_env.plots import draw_curves
from toy_env.rollout import Rollout
from toy_env.tasks import TaskConfig, find_model, load_task

# In --help, an empty default would show as nothing
Levels = Annotated[Sequence[int], tyro.conf.arg(help_behavior_hint="(default: all)")]


@dataclass
class RunConfig(TaskConfig):
    """The settings that all scripts have; each adds its own. The comment on a field is its help."""

    steps: int = 60  # rollout batches, each with epochs * num_minibatches updates
    seed: int = 0  # seeds the problems and the sampling of every step
    device: str = "auto"  # auto (cuda, else mps, else cpu), cuda, mps or cpu
    levels: Levels = ()  # difficulties (arithmetic: 1 to 4 operations)
    model: str = "base"  # base, a folder, or a model on the Hugging Face hub
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the forward pass; weights stay float32
    max_tokens_per_pass: int = 0  # of a forward pass in training; 0: as many as memory holds
    run_dir: str = ""  # by default runs/SCRIPT-SEED, numbered if that exists
    resume: bool = False  # continue the run in --run_dir from its last save, if it has one
    save_every: int = 20  # steps between two saves
    eval_problems: int = 64  # held-out problems of each level, before and after training
    eval_every: int = 10  # steps between two evaluations during training; 0 for none


# What the report before training depends on, and the reference
AS_BEFORE = (
    *TaskConfig.__dataclass_fields__,
    "model",
    "levels",
    "eval_problems",
    "max_new_tokens",
    "temperature",
)
LEAST = {  # the smallest value of a setting; of all other numbers it is 0
    "steps": 1,
    "save_every": 1,
    "epochs": 1,
    "num_minibatches": 1,
    "prompts_per_step": 1,
    "group_size": 1,
    "max_new_tokens": 1,
    "eval_problems": 1,
    "samples": 1,
    "temperature": 0.01,
}


def parse(config_class: type, description: str | None):
    """Parse the command line. With --resume, the run's own settings are the defaults."""
    with suppress(AttributeError):  # a notebook's stdout has no encoding to fail
        sys.stdout.reconfigure(errors="backslashreplace")
    config, unknown = read_flags(config_class, description)
    if isinstance(config, RunConfig) and config.resume:
        path = Path(config.run_dir, "config.json").expanduser()
        saved = json.loads(path.read_text("utf-8")) if config.run_dir and path.is_file() else {}
        if saved.pop("script", "") != Path(sys.argv[0]).stem:
            raise SystemExit(f"no run of this script to resume in --run_dir {config.run_dir!r}")
        before = config_class(**saved)
        config, unknown = read_flags(config_class, description, default=before)
        for name in AS_BEFORE:
            if getattr(config, name) != getattr(before, name):
                raise SystemExit(f"a resumed run keeps its --{name}; begin another run instead")
    if unknown:
        flag = unknown[0].partition("=")[0]
        typed = flag.lstrip("-").replace("-", "_")
        letters = ".*".join(map(re.escape, typed))  # lr is short for learning_rate
        likely = [name for name in vars(config) if re.match(letters, name)]
        likely += difflib.get_close_matches(typed, vars(config))
        hint = f"; did you mean --{likely[0]}?" if likely else ""
        raise SystemExit(f"there is no {flag}{hint} (--help lists all)")
    for name, value in vars(config).items():
        least = LEAST.get(name, 0)
        if isinstance(value, int | float) and not least <= value < math.inf:
            raise SystemExit(f"--{name} must be {least} or more, not {value}")
    return config


def read_flags(config_class: type, description: str | None, **default):
    """Read the command line with tyro. Returns the settings, and flags that are unknown. A mistake,
    which tyro explains in a box, ends in a line."""
    if {"-h", "--help"} & {*sys.argv} and description:
        print(description)  # tyro would tear its lines apart
    box = io.StringIO()
    style = {"description": "", "use_underscores": True, "return_unknown_args": True}
    try:
        with redirect_stderr(box):
            return tyro.cli(config_class, **style, **default)
    except SystemExit as end:
        if end.code == 0:  # after --help
            raise
        reason = re.split("[─-]{3,}", box.getvalue())[1]
        raise SystemExit(" ".join(reason.strip("╮").replace("│", " ").split())) from None


def run_script(train, config_class: type, description: str | None) -> None:
    """Train with the command line's settings. Ctrl-C ends in a line that says how to resume."""
    config = parse(config_class, description)
    try:
        train(config)
    except KeyboardInterrupt:
        if Run.begun is None:
            raise SystemExit("\nstopped before the run began") from None
        command = ["python", sys.argv[0], "--run_dir", str(Run.begun), "--resume"]
        how = f"to go on from step {Run.saved + 1}, type {shlex.join(command)}"
        raise SystemExit(f"\nstopped; {how}") from None


class Run:
    """The bookkeeping of one training run; it knows nothing of the algorithm."""

    begun = None  # the folder of the newest run, once it has one
    saved = 0  # steps in its last save

    def __init__(self, script: str, config) -> None:
        self.name = Path(script).stem
        self.config = replace(config)  # the caller's may serve for another run
        self.path = self.find_folder()
        self.device = pick_device(config.device)
        self.task = load_task(config)
        self.model_path = find_model(config.model, self.task)
        self.problems = held_out(self.task, config.eval_problems, config.levels)
        self.sampling = {
            "task": self.task,
            "samples": 4,  # completions of each held-out problem
            "max_new_tokens": config.max_new_tokens,
            "temperature": config.temperature,
        }
        self.rows = []  # of metrics.jsonl
        self.recorded = {}  # numbers of the step's updates, by name
        torch.manual_seed(config.seed)  # for weights that a script initializes, such as a critic's

    def find_folder(self) -> Path:
        """--run_dir, or by default the first of runs/SCRIPT-SEED, -2, -3 that does not exist."""
        first = self.config.run_dir or f"runs/{self.name}-{self.config.seed}"
        path = Path(first).expanduser()
        number = 1
        while path.exists() and not self.config.run_dir:
            number += 1
            path = Path(f"{first}-{number}")
        return path

    def begin(self, tokenizer, **state) -> int:
        """Make the folder, then evaluate the policy, or load the last save of `state`.

        `state` names what a save holds: the policy, the optimizer, a critic. Returns the first step
        to do.
        """
        self.policy, self.tokenizer, self.state = state["policy"], tokenizer, state
        longest = check_tokenizer(self.policy, tokenizer, self.problems, self.task)
        if not self.config.max_tokens_per_pass:
            models = [part for part in state.values() if isinstance(part, torch.nn.Module)]
            most = tokens_per_pass(models, longest + self.config.max_new_tokens)
            self.config.max_tokens_per_pass = most
        try:
            self.path.mkdir(parents=True, exist_ok=self.config.resume)
        except FileExistsError:  # also where another run was faster
            raise SystemExit(
                f"{self.path} exists; choose another --run_dir, or --resume that run"
            ) from None
        self.config.run_dir = str(self.path)
        resumed = self.config.resume and (self.path / "state.pt").is_file()
        if resumed:  # first, so that nothing is written if the save does not fit the settings
            saved = torch.load(self.path / "state.pt", map_location=self.device, weights_only=True)
            for name, part in state.items():
                part.load_state_dict(saved[name])
            self.rows, self.before = saved["rows"], saved["before"]
            done = len(self.rows)
            if done > self.config.steps:
                raise SystemExit(f"the run has {done} steps; give --steps {done + 1} or more")
        settings = json.dumps({"script": self.name} | vars(self.config), indent=1)
        (self.path / "config.json").write_text(settings, "utf-8")
        Run.begun, Run.saved = self.path, len(self.rows)
        fitting = f"passes of up to {self.config.max_tokens_per_pass:,} tokens"
        print(f"{self.name} on {self.device}, {fitting}, folder {self.path}\n")
        if not resumed:
            self.before, _ = held_out_report(self.policy, tokenizer, self.problems, **self.sampling)
            print(report_samples(self.before, " before training"), end="\n\n")
        self.write_rows(self.rows, "w")  # drops those logged after the last save
        self.bar = tqdm(
            desc=self.name,
            initial=len(self.rows),
            total=self.config.steps,
            leave=False,
            bar_format="{desc} {n_fmt}/{total_fmt} |{bar}| {elapsed}<{remaining}{postfix}",
        )
        return len(self.rows) + 1

    def seeded(self, step: int) -> tuple[random.Random, torch.Generator]:
        """Start a step's clock. Returns its random numbers, which depend on seed and step alone, so
        that a resumed run draws the same."""
        self.started = time.perf_counter()
        rng = random.Random(f"{self.config.seed}/{step}")
        return rng, torch.Generator(self.device).manual_seed(rng.getrandbits(63))

    def record(self, **values: float | torch.Tensor) -> None:
        """Keep numbers of one optimizer step for `log`. Raises FloatingPointError at nan or inf."""
        for name, value in values.items():
            value = value.item() if isinstance(value, torch.Tensor) else value
            if not math.isfinite(value):
                raise FloatingPointError(f"{name} is {value}; try a smaller --learning_rate")
            self.recorded.setdefault(name, []).append(value)

    def log(self, step: int, rollout: Rollout, rewards: torch.Tensor) -> None:
        """End a step: write its row, evaluate and save when it is time. rewards: (P, G)."""
        before = sum(row["sampled"] for row in self.rows)
        row = {"step": step, "completions": before + len(rollout), "sampled": len(rollout)}
        row |= rollout_metrics(rollout, rewards, self.task) | step_metrics(self.recorded)
        row |= {"seconds": round(time.perf_counter() - self.started, 3), "held_out": None}
        if self.config.eval_every and step % self.config.eval_every == 0:
            sampled = evaluate(self.policy, self.tokenizer, self.problems, **self.sampling)
            row["held_out"] = float(sampled.correct.mean())
        self.rows.append(row)
        self.recorded = {}
        warn_if_silent(self.rows)
        self.write_rows([row], "a")
        shown = "acc {accuracy:.2f} len {length:.1f} silent {silent:.2f} entropy {entropy:.3f}"
        self.bar.set_postfix_str(shown.format(**row), refresh=False)
        self.bar.update()
        if step % self.config.save_every == 0 or step == self.config.steps:
            self.save()

    def write_rows(self, rows: list[dict], mode: str) -> None:
        """Write rows of metrics.jsonl, anew ("w") or at its end ("a")."""
        with (self.path / "metrics.jsonl").open(mode, encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def save(self) -> None:
        """Write curves.png, checkpoint/ and state.pt. The last two are written beside the old ones,
        which they then replace: an interrupted save leaves each whole or absent."""
        model = "/".join(Path(self.config.model).parts[-2:])
        title = f"{self.path.name}: {self.name} on {self.config.task}, model {model}"
        draw_curves(self.rows, self.path / "curves.png", title)
        checkpoint, beside = self.path / "checkpoint", self.path / "checkpoint.tmp"
        shutil.rmtree(beside, ignore_errors=True)  # of an interrupted save
        for part in (self.policy, self.tokenizer):
            part.save_pretrained(beside / "new")
        if checkpoint.exists():  # a folder cannot be renamed to one that is not empty
            checkpoint.rename(beside / "old")
        (beside / "new").rename(checkpoint)
        shutil.rmtree(beside)
        # Last, so that a resumed run writes again what an interrupted save lacks
        saved = {name: part.state_dict() for name, part in self.state.items()}
        saved |= {"rows": self.rows, "before": self.before}
        torch.save(saved, self.path / "state.tmp")
        (self.path / "state.tmp").replace(self.path / "state.pt")
        Run.saved = len(self.rows)

    def finish(self) -> dict:
        """Evaluate again, print the table, and write results.json."""
        self.bar.leave = True
        self.bar.close()
        after, _ = held_out_report(self.policy, self.tokenizer, self.problems, **self.sampling)
        results = {"before": self.before, "after": after}
        (self.path / "results.json").write_text(json.dumps(results, indent=1), "utf-8")
        print(
            f"\n{report_samples(after, ' after training')}\n\n{report_table(self.before, after)}\n"
        )
        print(f"See curves.png, metrics.jsonl, results.json and checkpoint in {self.path}")
        return results
