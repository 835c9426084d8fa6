"""One training run: its folder, progress bar, metrics, checkpoints, and the evaluation before and
after.

Nothing here belongs to an algorithm. A script uses a run in this order:

    run = Run(__file__, config)                     checks the settings, writes nothing
    run.begin(policy, tokenizer, optimizer=...)     makes the folder (or resumes), evaluates the policy as it is
    for step in run.steps():                        every step seeded by (seed, step), under a progress bar
        run.self_check(...)                         the first batch: do sampler and trainer agree?
        run.record(...); run.log(...)               one row of metrics.jsonl per step
    run.finish()                                    evaluates again, prints the table, draws curves.png
"""

import json
import math
import random
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from toy_env import Diverged, Stopped, UsageError, cli
from toy_env.checks import check_model, self_check
from toy_env.cli import RunConfig, above, at_least  # noqa: F401, for the scripts
from toy_env.evaluate import evaluate, held_out, held_out_report, report_samples, report_table
from toy_env.metrics import OF_A_STEP, measure_updates, rollout_metrics
from toy_env.model import end_ids, model_prompts, pick_device
from toy_env.rollout import Rollout
from toy_env.save import RunFolder, fingerprint, refuse_to_overwrite, saves, step_of
from toy_env.tasks import base_model, load_task

SAMPLES = 4  # of each held-out problem
COLLAPSED = 20  # steps without a right completion, after which a line says so


def run_script(config_class: type, train: Callable, description: str | None) -> None:
    """Command line to `train(config)`; with --resume, under the settings that the run was started
    with."""
    warnings.filterwarnings(
        "ignore", message=r"std\(\): degrees of freedom"
    )  # of no group: nothing to train on
    Run.current = None

    def defaults(config):
        return cli.saved_settings(config_class, config.run_dir) if config.resume else None

    try:
        cli.run_main(
            config_class,
            train,
            description,
            defaults,
            lambda: Run.current.saved() if Run.current else "",
        )
    finally:
        if Run.current:
            Run.current.folder.release()


class Run:
    """The bookkeeping of one training run.

    `run.random` and `run.generator` are seeded anew at every step from (seed, step), and all draws
    of a step come from these two, so a resumed run draws exactly what an uninterrupted one would
    have drawn.
    """

    current = None  # the Run that this process has begun

    def __init__(self, script_file: str, config) -> None:
        cli.check_settings(config)
        self.script, self.config = Path(script_file).stem, config
        self.task = load_task(config.task)
        self.model_path = base_model(self.task) if config.model == "base" else config.model
        self.sampling = {
            "samples": SAMPLES,
            "max_new_tokens": config.max_new_tokens,
            "temperature": config.temperature,
        }
        self.device = pick_device(config.device)
        self.random = random.Random()
        self.generator = torch.Generator(self.device)
        self.last_step = self.completions = 0  # completions: sampled so far
        self.checked = self.finished = False
        self.recorded: dict[str, list[float]] = {}
        if config.run_dir and not config.resume:
            refuse_to_overwrite(Path(config.run_dir))
        torch.manual_seed(
            config.seed
        )  # for weights that a script initialises itself, such as a critic's

    def begin(self, policy, tokenizer, **state) -> None:
        """Make the run folder and evaluate the policy as it is; or, with `resume`, load what was
        saved there. `state` names everything else that training changes and that has a state_dict:
        the optimizer=, a critic=."""
        self.policy, self.tokenizer, self.state = policy, tokenizer, {"policy": policy, **state}
        self.fingerprint = fingerprint(policy)
        examples = held_out(self.task, 64, ()) + self.task.sample_problems(
            64, self.config.levels, random.Random(0)
        )
        networks = [module for module in state.values() if isinstance(module, torch.nn.Module)]
        check_model(policy, tokenizer, self.config.max_new_tokens, self.prompts(examples), networks)
        if self.config.measure_updates:
            measure_updates(policy, state["optimizer"], self.record)
        self.folder = RunFolder(self.config.run_dir, f"{self.script}-{self.config.seed}")
        Run.current = self
        resumed = self.config.resume and self._load()
        self.folder.write_json("config.json", self._settings())
        model = f"model {self.config.model} ({policy.num_parameters():,} parameters)"
        print(f"{self.script}: {model} on {self.device}, folder {self.folder.path}")
        if resumed:
            print(f"Resuming after step {self.last_step}")
        else:
            self.before = self._evaluate()
            self.save()
            print(f"\n{report_samples(self.before, 'before')}\n")

    def _settings(self) -> dict:
        """What config.json and every save hold: a resumed run keeps these settings."""
        settings = {
            "script": self.script,
            **asdict(self.config),
            "run_dir": str(self.folder.path),
            "resume": False,
        }
        return json.loads(json.dumps(settings | {"fingerprint of --model": self.fingerprint}))

    def _load(self) -> bool:
        """Continue from the newest save that is whole; False if the run was stopped before its
        first."""
        state, notes = self.folder.load(self._settings(), self.state, self.device)
        if state is None:
            return False
        self.last_step = state["step"]
        self.completions, self.before, self.checked = (
            state["rollouts"],
            state["before"],
            self.last_step > 0,
        )
        if self.last_step >= self.config.steps and (self.folder.path / "results.json").exists():
            finished = f"{str(self.folder.path)!r} has finished its {self.last_step} steps"
            raise UsageError(f"{finished}; to continue, give a larger --steps")
        self.folder.cut_off_after(self.last_step)
        print(*notes, sep="\n", end="\n" * bool(notes))
        return True

    def _evaluate(self) -> dict:
        chosen = {
            "task": self.task,
            "problems": self.config.eval_problems,
            "levels": self.config.levels,
        }
        return held_out_report(self.policy, self.tokenizer, **chosen, **self.sampling)[0]

    def steps(self) -> Iterator[int]:
        """The steps still to do, each seeded by (seed, step), under a progress bar. Saves the run
        as it goes. Ctrl-C, SIGTERM and SIGHUP let the step in progress end, save, and raise
        Stopped; a second one stops at once."""
        layout = (
            "{desc} {n_fmt}/{total_fmt} |{bar}| {elapsed}<{remaining}{postfix}"  # fits 80 columns
        )
        numbers = {"initial": self.last_step, "total": self.config.steps}
        self.bar = tqdm(desc=self.script, **numbers, dynamic_ncols=True, bar_format=layout)
        with cli.finishing_the_step() as stopped_by, self.bar:
            for step in range(self.last_step + 1, self.config.steps + 1):
                self.random.seed(f"{self.config.seed}/{step}")
                self.generator.manual_seed(self.random.getrandbits(63))
                self.started = time.perf_counter()
                yield step
                self.last_step = step
                self.bar.update()
                if step % self.config.save_every == 0 or step == self.config.steps or stopped_by:
                    self.save()
                if stopped_by:
                    raise Stopped(stopped_by[0], f"after step {step}")

    def prompts(self, problems: list) -> list[str]:
        """What the policy is given to read for each problem."""
        return model_prompts(self.tokenizer, problems, self.task)

    def self_check(
        self, minibatch: Rollout, logps: Tensor, advantages: Tensor | None = None
    ) -> None:
        """Before the first update, print what must hold, or raise RuntimeError. advantages: (P·G,
        1), of the batch."""
        if not self.checked:
            self.checked = True
            ends = end_ids(self.policy, self.tokenizer)
            advantages = None if advantages is None else advantages.view(-1, self.config.group_size)
            text = self_check(minibatch, logps, advantages, self.tokenizer, ends, self.config.dtype)
            self.bar.write(text, sys.stdout)

    def record(self, **values: float | Tensor) -> None:
        """Keep numbers of one optimizer step, for `log` (see OF_A_STEP). Raises Diverged if one is
        not finite."""
        for name, value in values.items():
            value = float(value.detach() if isinstance(value, Tensor) else value)
            if not math.isfinite(value):
                raise Diverged(f"{name} is {value} in step {self.last_step + 1}")
            self.recorded.setdefault(name, []).append(value)

    def log(self, step: int, *, rollout: Rollout, rewards: Tensor) -> None:
        """Append the step's row to metrics.jsonl: metrics of the rollout, and what was recorded of
        its updates."""
        self.completions += len(rollout)
        row = {"step": step, "rollouts": self.completions, "sampled": len(rollout)}
        row |= rollout_metrics(rollout, rewards, self.task)
        for name, values in self.recorded.items():
            row[name] = (
                OF_A_STEP[name](values) if name in OF_A_STEP else math.fsum(values) / len(values)
            )
        row |= {"seconds": round(time.perf_counter() - self.started, 3), "held_out": None}
        if (
            self.config.eval_every and step % self.config.eval_every == 0
        ):  # as the report does, without the rest of it
            problems = held_out(self.task, self.config.eval_problems, self.config.levels)
            sampled = evaluate(
                self.policy, self.tokenizer, problems, task=self.task, **self.sampling
            )
            row["held_out"] = float(sampled.correct.mean())
        self.recorded.clear()
        self.folder.append_row(row)
        if (
            len(list(takewhile(lambda row: not row["accuracy"], reversed(self.folder.rows))))
            == COLLAPSED
        ):
            line = f"No completion was right in {COLLAPSED} steps: nothing is learnt from rewards that are all 0"
            self.bar.write(line, sys.stdout)
        shown = "acc {accuracy:.2f} len {length:.1f} silent {silent:.2f} entropy {entropy:.3f}"
        self.bar.set_postfix_str(shown.format(**row))

    def finish(self) -> dict:
        """Evaluate, print the table, and write checkpoint/, samples.txt, curves.png and, last of
        all, results.json. Returns {"before": ..., "after": ...}, the reports of
        `evaluate.held_out_report`."""
        from toy_env.plots import (
            draw_curves,
        )  # matplotlib takes .2 s that no start of a script should wait for

        results, folder = {"before": self.before, "after": self._evaluate()}, self.folder
        before, after = (report_samples(report, when) for when, report in results.items())
        table, title = report_table(*results.values()), f"{self.script}, seed {self.config.seed}"
        folder.write(
            "checkpoint",
            lambda path: [part.save_pretrained(path) for part in (self.policy, self.tokenizer)],
        )
        folder.write("samples.txt", f"{before}\n\n{after}\n")
        folder.write("curves.png", lambda path: draw_curves(folder.rows, results, path, title))
        folder.write_json("results.json", results)
        print(
            f"\n{after}\n\n{table}\n\nSee curves.png, samples.txt, metrics.jsonl and checkpoint in {folder.path}"
        )
        self.finished = True
        self.folder.release()
        return results

    def save(self) -> None:
        """Save all that `--resume` needs. Raises Diverged if a weight is not finite."""
        state = {name: module.state_dict() for name, module in self.state.items()}
        numbers = {"step": self.last_step, "rollouts": self.completions, "before": self.before}
        self.folder.save({**numbers, "settings": self._settings(), **state})

    def saved(self) -> str:
        """The end of a message about an early end: what is saved, and how to continue."""
        path = self.folder.path
        if self.finished:
            return f"; the run had finished, see {path}"
        if not (path / "config.json").exists():
            return "; nothing is saved: start a new run"
        what = (
            f"saved up to step {step_of(saves(path)[0])}" if saves(path) else "nothing is saved yet"
        )
        return f"; {what}; to continue: {shlex.join(['python', sys.argv[0], '--run_dir', str(path), '--resume'])}"
