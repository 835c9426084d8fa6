"""One training run: its folder, progress bar, metrics, checkpoints, and the evaluation before and after.

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
import os
import random
import shlex
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from toy_env import UsageError
from toy_env.arithmetic import LEVELS, held_out_problems
from toy_env.cli import check_settings, run_main
from toy_env.evaluate import evaluate, held_out_report, report_samples, report_table
from toy_env.metrics import LARGEST, rollout_metrics
from toy_env.model import pick_device
from toy_env.rollout import Rollout

SAMPLES = 4  # of each held-out problem
MAY_CHANGE_ON_RESUME = {"steps", "resume", "run_dir", "device", "save_every", "max_tokens_per_pass"}


@dataclass
class RunConfig:
    """What every run has, whatever its algorithm. The comment behind a field is its help text."""

    steps: int = 60  # rollout batches
    seed: int = 0  # seeds the problems and the sampling of every step
    device: str = "auto"  # auto (cuda, else mps, else cpu), cuda, mps or cpu
    model: str = "base"  # base, a folder, or a causal language model on the Hugging Face hub
    run_dir: str = ""  # the run's folder; by default runs/SCRIPT-SEED, numbered if that exists
    resume: bool = False  # continue the run in --run_dir from its last save
    save_every: int = 20  # steps between two saves for --resume
    eval_problems: int = 64  # held-out problems per level, before and after training
    eval_every: int = 10  # steps between two evaluations during training; 0 for none
    levels: tuple[int, ...] = LEVELS  # difficulties: number of operations, 1 to 4
    max_tokens_per_pass: int = 16_384  # tokens in one forward pass: fewer save memory and leave the gradient as it is
    measure_updates: bool = False  # log update_norm, the distance that each optimizer step moves the policy


def run_script(config_class: type, train: Callable, description: str | None) -> None:
    """Command line to `train(config)`; with --resume, under the settings that the run was started with."""

    def defaults(config):
        if not config.resume:
            return None
        saved = saved_config(config.run_dir)
        return config_class(**{field.name: saved[field.name] for field in fields(config) if field.name in saved})

    def train_in_memory(config) -> None:
        warnings.filterwarnings("ignore", message=r"std\(\): degrees of freedom")  # of no group: nothing to train on
        try:
            train(config)
        except torch.OutOfMemoryError:
            raise UsageError(
                f"out of memory on the device; try a smaller --max_tokens_per_pass (now {config.max_tokens_per_pass}), "
                "then a smaller --group_size"
            ) from None

    run_main(config_class, train_in_memory, description, defaults)


def saved_config(run_dir: str) -> dict:
    """The settings a run was started with, from its config.json. Raises UsageError if there is nothing to resume."""
    if not run_dir:
        raise UsageError("--resume needs the run to continue; add --run_dir, for example --run_dir runs/reinforce-0")
    try:
        saved = json.loads((Path(run_dir) / "config.json").read_text())
    except (OSError, ValueError):
        raise UsageError(
            f"{run_dir!r} is not a run folder: it has no readable config.json; leave out --resume"
        ) from None
    if not (Path(run_dir) / "state.pt").is_file():
        raise UsageError(f"{run_dir!r} has no state.pt to resume from; start a new run without --resume")
    return {**saved, "levels": tuple(saved["levels"])} if "levels" in saved else saved


class Run:
    """The bookkeeping of one training run.

    `run.random` and `run.generator` are seeded anew at every step from (seed, step), and all draws of a step come from
    these two, so a resumed run draws exactly what an uninterrupted one would have drawn.
    """

    def __init__(self, script_file: str, config, min_group_size: int = 1) -> None:
        check_settings(config)
        completions = config.prompts_per_step * config.group_size
        if config.group_size < min_group_size:
            raise UsageError(f"--group_size must be {min_group_size} or more, not {config.group_size}")
        if getattr(config, "num_minibatches", 1) > completions:
            raise UsageError(
                f"--num_minibatches must be {completions} (the completions of a batch) or fewer, not "
                f"{config.num_minibatches}"
            )
        for name, value in asdict(config).items():
            if name.endswith("_buffer") and value > config.max_new_tokens:  # a part of a completion, in tokens
                raise UsageError(f"--{name} must be {config.max_new_tokens} (max_new_tokens) or less, not {value}")
        self.script, self.config = Path(script_file).stem, config
        self.device = pick_device(config.device)
        self.random = random.Random()
        self.generator = torch.Generator(self.device)
        self.last_step = self.rollouts = 0
        self.checked = False
        self.recorded: dict[str, list[float]] = {}
        if config.run_dir and not config.resume and Path(config.run_dir).exists():
            raise UsageError(
                f"run folder {config.run_dir!r} exists and no run overwrites another; choose another --run_dir, or add "
                "--resume to continue that run"
            )
        torch.manual_seed(config.seed)  # for weights that a script initialises itself, such as a critic's

    # ------------------------------------------------------------------ start

    def begin(self, policy, tokenizer, **state) -> None:
        """Make the run folder and evaluate the policy as it is; or, with `resume`, load what was saved there.

        `state` names everything else that training changes and that has a state_dict: the optimizer=, a critic=.
        """
        self.policy, self.tokenizer = policy, tokenizer
        self.state = {"policy": policy, **state}
        if self.config.measure_updates:
            self._measure_updates(state["optimizer"])
        if self.config.resume:
            self._load()
        else:
            self._make_folder()
        size = sum(parameter.numel() for parameter in policy.parameters())
        print(f"{self.script}: model {self.config.model} ({size:,} parameters) on {self.device}, folder {self.folder}")
        if self.config.resume:
            print(f"Resuming after step {self.last_step}")
        else:
            self.before = self._evaluate()
            self._write_json("results.json", {"before": self.before})
            self.save()
            print(f"\nHeld-out problems before training, one sample each\n{report_samples(self.before)}\n")

    def _make_folder(self) -> None:
        try:
            if self.config.run_dir:
                self.folder = Path(self.config.run_dir)
                self.folder.mkdir(parents=True)
            else:
                number = 1
                while True:  # runs/reinforce-0, runs/reinforce-0-2, ...; mkdir decides between two that start together
                    self.folder = Path("runs") / f"{self.script}-{self.config.seed}{f'-{number}' * (number > 1)}"
                    try:
                        self.folder.mkdir(parents=True)
                        break
                    except FileExistsError:
                        if not self.folder.exists():
                            raise
                        number += 1
            self._write_json("config.json", {"script": self.script, **asdict(self.config), "run_dir": str(self.folder)})
        except OSError as error:
            raise UsageError(
                f"cannot make the run folder {str(self.folder)!r} ({error.strerror}); choose another with --run_dir"
            ) from None

    def _load(self) -> None:
        self.folder = Path(self.config.run_dir)
        saved = saved_config(self.config.run_dir)
        for name, value in {"script": self.script, **asdict(self.config)}.items():
            if name not in MAY_CHANGE_ON_RESUME and saved.get(name) != value:
                raise UsageError(
                    f"{name} was {saved.get(name)!r} in {str(self.folder)!r} and is {value!r} now; a resumed run keeps "
                    "its settings"
                )
        state = torch.load(self.folder / "state.pt", map_location=self.device)
        self.last_step, self.rollouts = state["step"], state["rollouts"]
        self.checked = self.last_step > 0
        results = json.loads((self.folder / "results.json").read_text())
        if self.last_step >= self.config.steps and "after" in results:
            raise UsageError(
                f"{str(self.folder)!r} has finished its {self.last_step} steps; to continue, give a larger --steps"
            )
        for name, module in self.state.items():
            module.load_state_dict(state[name])
        self.before = results["before"]
        self._write_json("results.json", {"before": self.before})
        rows = (self.folder / "metrics.jsonl").read_text().splitlines()[: self.last_step]
        self._write("metrics.jsonl", "".join(row + "\n" for row in rows))
        self._write_json("config.json", {**saved, "steps": self.config.steps})

    def _measure_updates(self, optimizer) -> None:
        """Record how far each optimizer step moves the policy: the Euclidean norm over all its parameters."""
        parameters, before = list(self.policy.parameters()), []

        def remember(*_) -> None:
            before[:] = [parameter.detach().clone() for parameter in parameters]

        def measure(*_) -> None:
            moves = [torch.linalg.vector_norm(p.detach() - old) for p, old in zip(parameters, before)]
            norm = torch.linalg.vector_norm(torch.stack(moves)).item()
            self.recorded.setdefault("update_norm", []).append(norm)  # if it is not finite, neither was the gradient

        optimizer.register_step_pre_hook(remember)
        optimizer.register_step_post_hook(measure)

    def _evaluate(self) -> dict:
        config = self.config
        results, _ = held_out_report(
            self.policy,
            self.tokenizer,
            problems=config.eval_problems,
            levels=config.levels,
            samples=SAMPLES,
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
        )
        return results

    def _held_out_accuracy(self) -> float:
        """The sampled accuracy of `_evaluate`, without the rest of its report."""
        config = self.config
        evaluation = evaluate(
            self.policy,
            self.tokenizer,
            held_out_problems(config.eval_problems, config.levels),
            samples=SAMPLES,
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
        )
        return float(evaluation.correct.mean())

    # ------------------------------------------------------------------ during

    def steps(self) -> Iterator[int]:
        """The steps still to do, each seeded by (seed, step), under a progress bar. Saves the run as it goes.

        Ctrl-C lets the step in progress end, saves, and raises KeyboardInterrupt; a second Ctrl-C stops at once.
        """
        interrupted = threading.Event()

        def on_interrupt(number, frame) -> None:
            interrupted.set()
            signal.signal(signal.SIGINT, signal.default_int_handler)

        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread:
            handler = signal.signal(signal.SIGINT, on_interrupt)
        self.bar = tqdm(
            total=self.config.steps,
            initial=self.last_step,
            desc=self.script,
            dynamic_ncols=True,
            bar_format="{desc} {n_fmt}/{total_fmt} |{bar}| {elapsed}<{remaining}{postfix}",  # fits 80 columns
        )
        try:
            for step in range(self.last_step + 1, self.config.steps + 1):
                self.random.seed(f"{self.config.seed}/{step}")
                self.generator.manual_seed(self.random.getrandbits(63))
                self.started = time.perf_counter()
                yield step
                self.last_step = step
                self.bar.update()
                if step % self.config.save_every == 0 or step == self.config.steps or interrupted.is_set():
                    self.save()
                if interrupted.is_set() and step < self.config.steps:
                    raise KeyboardInterrupt(f"after step {step}; to continue: {self._command()}")
        finally:
            self.bar.close()
            if in_main_thread:
                signal.signal(signal.SIGINT, handler)

    def _command(self) -> str:
        """What to type to continue this run."""
        return shlex.join(["python", sys.argv[0], "--run_dir", str(self.folder), "--resume"])

    def self_check(self, minibatch: Rollout, logps: Tensor, advantages: Tensor | None = None) -> None:
        """On the first batch of a run, print what must hold there; raises RuntimeError if it does not.

        logps: (b, T), recomputed before any update. advantages: (P, G), where completions of a group are compared.
        """
        if self.checked:
            return
        self.checked = True
        mask = minibatch.mask
        difference = (logps - minibatch.logps).abs().max().item()
        is_eos = (minibatch.completion_ids == self.tokenizer.eos_token_id) & mask
        last = is_eos.gather(1, mask.sum(dim=1, keepdim=True) - 1).squeeze(1)
        masks_right = torch.equal(last, ~minibatch.truncated) and torch.equal(is_eos.sum(dim=1), last.long())
        if difference > 1e-3 or not masks_right:
            raise RuntimeError(
                f"self-check failed: max |recomputed - sampled log-prob| = {difference:.1e}, expected at most 1e-3; "
                f"every mask ends with the EOS or at the limit: {masks_right}"
            )
        cut = int(minibatch.truncated.sum())
        lines = [
            "Self-check on the first minibatch",
            f"  max |recomputed - sampled log-prob| = {difference:.0e}, so every ratio starts at 1",
            f"  the masks of {len(minibatch) - cut} finished completions end with EOS; {cut} were cut at the limit",
        ]
        if advantages is not None:
            total = advantages.sum(dim=1).abs().max().item()
            lines.append(
                "  the advantages of every group sum to 0: expect a loss near 0 (its gradient is not 0)"
                if total < 1e-4
                else f"  the advantages of a group do not sum to 0 (up to {total:g}): there is no baseline"
            )
        self.say("\n".join(lines) + "\n")

    def minibatches(self, rows: int, epochs: int, num_minibatches: int) -> Iterator[Tensor]:
        """The row indices of each minibatch: in every epoch a fresh permutation of all rows, cut into equal parts."""
        for _ in range(epochs if rows else 0):
            permutation = torch.randperm(rows, generator=self.generator, device=self.device)
            yield from permutation.tensor_split(min(rows, num_minibatches))

    def say(self, line: str) -> None:
        """Print a line above the progress bar."""
        self.bar.write(line, file=sys.stdout)

    def record(self, **values: float | Tensor) -> None:
        """Numbers of one optimizer step; `log` writes their means over the step (of `ratio_deviation` the largest).

        Raises UsageError if one of them is not finite.
        """
        for name, value in values.items():
            value = float(value.detach() if isinstance(value, Tensor) else value)
            if not math.isfinite(value):
                raise UsageError(
                    f"{name} is {value} after step {self.last_step}: training has diverged; try a smaller "
                    f"--learning_rate (the last save is in {self.folder})"
                )
            self.recorded.setdefault(name, []).append(value)

    def log(self, step: int, *, rollout: Rollout, rewards: Tensor) -> None:
        """Append the step's row to metrics.jsonl: what the rollout shows, and what was recorded of its updates."""
        self.rollouts += len(rollout)
        row = {"step": step, "rollouts": self.rollouts, "sampled": len(rollout), **rollout_metrics(rollout, rewards)}
        for name, values in self.recorded.items():
            row[name] = max(values) if name in LARGEST else math.fsum(values) / len(values)
        row["seconds"] = round(time.perf_counter() - self.started, 3)
        every = self.config.eval_every
        row["held_out"] = self._held_out_accuracy() if every and step % every == 0 else None
        self.recorded.clear()
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        reward = f"reward {row['reward']:.2f} " if row["reward"] != row["accuracy"] else ""
        self.bar.set_postfix_str(
            f"{reward}acc {row['accuracy']:.2f} len {row['length']:.1f} silent {row['silent']:.2f} "
            f"entropy {row['entropy']:.3f}"
        )

    # ------------------------------------------------------------------ end

    def finish(self) -> dict:
        """Evaluate, print the table, and write results.json, samples.txt, curves.png and checkpoint/.

        Returns {"before": ..., "after": ...}, the reports of `evaluate.held_out_report`.
        """
        self.policy.save_pretrained(self.folder / "checkpoint")
        self.tokenizer.save_pretrained(self.folder / "checkpoint")
        results = {"before": self.before, "after": self._evaluate()}
        self._write_json("results.json", results)
        before, after = (
            f"Held-out problems {when} training, one sample each\n{report_samples(results[when])}\n" for when in results
        )
        table = report_table(results["before"], results["after"])
        self._write("samples.txt", f"{before}\n{after}")
        rows = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        from toy_env.plots import draw_curves  # matplotlib takes .2 s that no start of a script should wait for

        draw_curves(rows, results, self.folder / "curves.png", f"{self.script}, seed {self.config.seed}")
        print(f"\n{after}\n{table}\n\nSee curves.png, samples.txt, metrics.jsonl and checkpoint in {self.folder}")
        return results

    def save(self) -> None:
        """Write state.pt, all that `--resume` needs, in one step: a write cut short leaves the last one in place."""
        state = {name: module.state_dict() for name, module in self.state.items()}
        torch.save({"step": self.last_step, "rollouts": self.rollouts, **state}, self.folder / "state.tmp")
        os.replace(self.folder / "state.tmp", self.folder / "state.pt")

    def _write(self, name: str, text: str) -> None:
        (self.folder / "write.tmp").write_text(text)
        os.replace(self.folder / "write.tmp", self.folder / name)

    def _write_json(self, name: str, value) -> None:
        self._write(name, json.dumps(value, indent=1) + "\n")
