"""One training run: its folder, progress bar, metrics, plots, checkpoints, and the evaluation before and after.

Nothing here belongs to an algorithm. A script uses a run in this order:

    run = Run(__file__, config)                     checks the settings, touches nothing
    run.begin(policy, tokenizer, optimizer=...)     makes the folder (or resumes), evaluates the policy as it is
    for step in run.steps():                        every step seeded by (seed, step), under a progress bar
        run.self_check(...)                         the first batch: do sampler and trainer agree?
        run.record(...); run.log(...)               one row of metrics.jsonl a step
    run.finish()                                    evaluates again, prints the table, draws curves.png
"""

import json
import math
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path

import torch
from tqdm import tqdm

from toy_env import UsageError
from toy_env.arithmetic import held_out_problems, is_worked
from toy_env.cli import check_settings, run_main
from toy_env.evaluate import evaluate, held_out_report, report_samples, report_table
from toy_env.policy import pick_device
from toy_env.rollout import Rollout

SAMPLES = 4  # of each held-out problem
MAY_CHANGE_ON_RESUME = {"steps", "resume", "run_dir", "device", "save_every", "micro_batch_size"}


def run_script(config_class: type, train: Callable, description: str | None) -> None:
    """Command line to `train(config)`; with --resume, under the settings that the run was started with."""

    def defaults(config) -> dict:
        if not config.resume:
            return {}
        saved = saved_config(config.run_dir)
        return {field.name: saved[field.name] for field in fields(config) if field.name in saved} | {"resume": True}

    def train_in_memory(config) -> None:
        try:
            train(config)
        except torch.OutOfMemoryError:
            raise UsageError("out of memory on the device; try a smaller --micro_batch_size (now "
                             f"{config.micro_batch_size}), then a smaller --group_size") from None  # fmt: skip

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
    return saved


class Run:
    """The bookkeeping of one training run.

    `run.random` and `run.generator` are seeded anew at every step from (seed, step), and all draws of a step come from
    these two, so a resumed run draws exactly what an uninterrupted one would have drawn.
    """

    def __init__(self, script_file: str, config, min_group_size: int = 1) -> None:
        check_settings(config, min_group_size)
        self.script, self.config = Path(script_file).stem, config
        self.device = pick_device(config.device)
        self.random = random.Random()
        self.generator = torch.Generator(self.device)
        self.last_step = self.rollouts = 0
        self.checked = False
        self.recorded: dict[str, list[float]] = {}
        if config.run_dir and not config.resume and Path(config.run_dir).exists():
            raise UsageError(f"run folder {config.run_dir!r} exists and no run overwrites another; choose another "
                             "--run_dir, or add --resume to continue that run")  # fmt: skip
        torch.manual_seed(config.seed)  # for weights that a script initialises itself, such as a critic's

    # ------------------------------------------------------------------ start

    def begin(self, policy, tokenizer, **state) -> None:
        """Make the run folder and evaluate the policy as it is; or, with `resume`, load what was saved there.

        `state` names everything else that changes in training and has a state_dict: the optimizer=, a critic=.
        """
        self.policy, self.tokenizer = policy, tokenizer
        self.state = {"policy": policy, **state}
        self._measure_updates(state["optimizer"])
        if self.config.resume:
            self._load()
        else:
            self._make_folder()
        size = sum(parameter.numel() for parameter in policy.parameters())
        print(f"{self.script}: model {self.config.model} ({size:,} parameters) on {self.device}, folder {self.folder}")
        if self.config.resume:
            print(f"Going on after step {self.last_step}")
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
            raise UsageError(f"cannot make the run folder {str(self.folder)!r} ({error.strerror}); "
                             "choose another with --run_dir") from None  # fmt: skip

    def _load(self) -> None:
        self.folder = Path(self.config.run_dir)
        saved = saved_config(self.config.run_dir)
        for name, value in {"script": self.script, **asdict(self.config)}.items():
            if name not in MAY_CHANGE_ON_RESUME and saved.get(name) != value:
                raise UsageError(f"{name} was {saved.get(name)!r} in {str(self.folder)!r} and is {value!r} now; "
                                 "a resumed run keeps its settings")  # fmt: skip
        state = torch.load(self.folder / "state.pt", map_location=self.device)
        self.last_step, self.rollouts = state["step"], state["rollouts"]
        self.checked = self.last_step > 0
        results = json.loads((self.folder / "results.json").read_text())
        if self.last_step >= self.config.steps and "after" in results:
            raise UsageError(
                f"{str(self.folder)!r} has done its {self.last_step} steps; to go on, give a larger --steps"
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
                self.repeated = True
                while self.repeated:
                    self.repeated = False
                    yield step
                self.last_step = step
                self.bar.update()
                if step % self.config.save_every == 0 or step == self.config.steps or interrupted.is_set():
                    self.save()
                if interrupted.is_set() and step < self.config.steps:
                    raise KeyboardInterrupt(f"after step {step}; to go on, add --run_dir {self.folder} --resume")
        finally:
            self.bar.close()
            if in_main_thread:
                signal.signal(signal.SIGINT, handler)

    def repeat_step(self) -> None:
        """Make the next iteration of the loop over `steps()` this step again, drawing on from the same generators."""
        self.repeated = True

    def self_check(
        self,
        rollout: Rollout,
        logps: torch.Tensor,
        advantages: torch.Tensor,
        rows: torch.Tensor | None = None,
    ) -> None:
        """On the first batch of a run, print what must hold there; raises RuntimeError where it does not.

        logps: (B, T), recomputed before any update, of all rows of the rollout or of `rows`. advantages: (P, G), or
        (B, T) where there is a critic.
        """
        if self.checked:
            return
        self.checked = True
        rollout = rollout if rows is None else rollout[rows]
        difference = (logps - rollout.logps).abs().max().item()
        is_eos = (rollout.completion_ids == self.tokenizer.eos_token_id) & rollout.mask
        last = is_eos.gather(1, rollout.mask.sum(dim=1, keepdim=True) - 1).squeeze(1)
        masks_right = torch.equal(last, ~rollout.truncated) and torch.equal(is_eos.sum(dim=1), last.long())
        if difference > 1e-3 or not masks_right:
            raise RuntimeError(f"self-check failed: max |recomputed - sampled| = {difference:.1e}, expected at "
                               f"most 1e-3; every mask ends with the EOS or at the limit: {masks_right}")  # fmt: skip
        cut = int(rollout.truncated.sum())
        finished = len(rollout) - cut
        lines = [
            "Self-check on the first batch",
            f"  max |recomputed - sampled log-prob| = {difference:.0e}, so every ratio starts at 1",
            f"  the masks of {finished} finished responses end with EOS; {cut} were cut at the limit",
        ]
        if advantages.shape != rollout.mask.shape:
            total = advantages.sum(dim=1).abs().max().item()
            lines.append(
                "  the advantages of every group sum to 0: expect a loss near 0 (its gradient is not 0)"
                if total < 1e-4
                else f"  the advantages of a group do not sum to 0 (up to {total:g}): there is no baseline"
            )
        self.say("\n".join(lines) + "\n")

    def minibatches(self, rows: int, epochs: int, minibatches: int) -> Iterator[torch.Tensor]:
        """The row indices of each minibatch: in every epoch a fresh permutation of all rows, cut into equal parts."""
        for _ in range(epochs):
            permutation = torch.randperm(rows, generator=self.generator, device=self.device)
            yield from permutation.tensor_split(min(rows, minibatches))

    def say(self, line: str) -> None:
        """Print a line above the progress bar."""
        self.bar.write(line, file=sys.stdout)

    def record(self, **values: float | torch.Tensor) -> None:
        """Numbers of one optimizer step. `log` writes their means over the optimizer steps of the rollout batch.

        Raises UsageError if one of them is no longer a finite number.
        """
        for name, value in values.items():
            value = float(value.detach() if isinstance(value, torch.Tensor) else value)
            if not math.isfinite(value):
                raise UsageError(f"{name} is {value} after step {self.last_step}: training has diverged; try a smaller "
                                 f"--learning_rate (the last save is in {self.folder})")  # fmt: skip
            self.recorded.setdefault(name, []).append(value)

    def log(self, step: int, *, rollout: Rollout, rewards: torch.Tensor) -> None:
        """Append the step's row to metrics.jsonl: what the rollout shows, and the means of what was recorded (of
        `ratio_deviation` the largest)."""
        self.rollouts += len(rollout)
        row = {"step": step, "rollouts": self.rollouts, **rollout_metrics(rollout, rewards)}
        row |= {name: math.fsum(values) / len(values) for name, values in self.recorded.items()}
        if "ratio_deviation" in self.recorded:  # the largest of the step, and no mean of maxima
            row["ratio_deviation"] = max(self.recorded["ratio_deviation"])
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


def rollout_metrics(rollout: Rollout, rewards: torch.Tensor) -> dict:
    """What a rollout batch shows by itself, from rewards (P, G) in {0, 1}. Lengths in tokens, EOS included.

    None stands where there is nothing to average (the length of right answers when none was right).
    """

    def mean(values: torch.Tensor) -> float | None:
        return values.double().mean().item() if values.numel() else None

    rewards, lengths = rewards.cpu(), rollout.mask.sum(dim=1).cpu()
    right, G = rewards == 1, rewards.shape[1]
    k = right.sum(dim=1)  # (P,) right answers of each group
    return {
        "reward": mean(rewards),
        "accuracy": mean(right),
        "silent": mean((k == 0) | (k == G)),
        "silent_right": mean(k == G),
        "silent_wrong": mean(k == 0),
        "sigma": mean((k * (G - k)).double().sqrt() / G),
        "groups_by_k": (torch.bincount(k, minlength=G + 1) / len(k)).tolist(),
        "length": mean(lengths),
        "length_right": mean(lengths[right.flatten()]),
        "length_wrong": mean(lengths[~right.flatten()]),
        "truncated": mean(rollout.truncated),
        "worked": sum(map(is_worked, rollout.texts)) / len(rollout),
        "entropy": (rollout.entropies.sum() / rollout.mask.sum()).item(),
    }


@torch.no_grad()
def update_metrics(
    *,
    logps: torch.Tensor,
    old_logps: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    config,
    ref_logps: torch.Tensor | None = None,
) -> dict[str, torch.Tensor]:
    """What a minibatch shows, as means over its unmasked tokens: the shares whose gradient the clip stops (up: A > 0
    and a ratio above the range; down: A < 0 and a ratio below it), the largest |ratio - 1|, and the k3 estimate of
    KL(policy || reference) where there is a reference; and, where the clip stops tokens upwards, the mean probability
    that the old policy gave them."""
    ratio, tokens = (logps - old_logps).exp(), mask.sum().clamp(min=1)
    low = 1 - getattr(config, "clip_eps_low", getattr(config, "clip_eps", math.inf))
    high = 1 + getattr(config, "clip_eps_high", getattr(config, "clip_eps", math.inf))
    up = (advantages > 0) & (ratio > high) & mask
    metrics = {
        "clipped_up": up.sum() / tokens,
        "clipped_down": ((advantages < 0) & (ratio < low) & mask).sum() / tokens,
        "ratio_deviation": ((ratio - 1).abs() * mask).max(),
    }
    if up.any():
        metrics["clipped_up_probability"] = old_logps[up].exp().mean()
    if ref_logps is not None:
        log_u = ref_logps - logps
        metrics["kl"] = ((log_u.exp() - 1 - log_u) * mask).sum() / tokens
    return metrics


def explained_variance(values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """1 - Var(returns - values) / Var(returns) over unmasked tokens: 1 for a perfect critic, 0 for a constant one."""
    variance = returns[mask].var(correction=0)
    return torch.where(variance > 0, 1 - (returns - values)[mask].var(correction=0) / variance, 0.0)


def draw_curves(rows: list[dict], results: dict, path: Path, title: str) -> None:
    """A run's metrics over its steps, as one PNG of small multiples: those panels that the run has numbers for."""
    from matplotlib.figure import Figure  # here, because it takes .2 s that no start of a script should wait for

    blue, orange, green, grey = "#0072B2", "#D55E00", "#009E73", "#777777"  # Okabe and Ito, colour-blind safe
    panels = {  # heading: {metric: (label, colour, line style)}
        "Accuracy, sampled": {"accuracy": ("training problems", blue, "-")},
        "Response length in tokens": {
            "length_right": ("right answers", blue, "-"),
            "length_wrong": ("wrong answers", orange, "--"),
        },
        "Entropy in nats a token": {"entropy": ("", blue, "-")},
        "Silent groups, share of all groups": {
            "silent": ("all silent", grey, "-"),
            "silent_right": ("all right", blue, "-"),
            "silent_wrong": ("all wrong", orange, "--"),
        },
        "Share of responses": {
            "worked": ("worked step by step", blue, "-"),
            "truncated": ("cut at the length limit", orange, "--"),
        },
        "Gradient norm, before it is clipped": {"grad_norm": ("", blue, "-")},
        "Share of tokens stopped by the clip": {
            "clipped_up": ("upwards (advantage > 0)", blue, "-"),
            "clipped_down": ("downwards (advantage < 0)", orange, "--"),
        },
        "KL to the base model, nats a token": {"kl": ("", blue, "-")},
        "Critic": {
            "explained_variance": ("explained variance", blue, "-"),
            "value_loss": ("value loss", orange, "--"),
        },
        "Rollout batches drawn for a step": {"draws": ("", blue, "-")},
    }
    panels = {heading: lines for heading, lines in panels.items() if set(lines) <= set(rows[0])}
    columns = math.ceil(len(panels) / 2)
    figure = Figure(figsize=(3.7 * columns, 5.8), layout="constrained")
    figure.suptitle(title, fontsize=11)
    axes = list(figure.subplots(2, columns, sharex=True).flat)
    for axis, (heading, lines) in zip(axes, panels.items()):
        for name, (label, color, style) in lines.items():
            values = [math.nan if row[name] is None else row[name] for row in rows]
            axis.plot([row["step"] for row in rows], values, color=color, linestyle=style, linewidth=1.3, label=label)
        if heading.startswith("Accuracy"):
            ends = [results[when]["accuracy"]["all"] for when in ("before", "after")]
            held_out = {row["step"]: row["held_out"] for row in rows if row["held_out"] is not None}
            sampled = {0: ends[0]["sampled"]} | held_out | {rows[-1]["step"]: ends[1]["sampled"]}
            axis.plot(
                *zip(*sampled.items()), "o-", markersize=4, color=orange, clip_on=False, label="held out, sampled"
            )
            greedy = [end["greedy"] for end in ends]
            axis.plot([0, rows[-1]["step"]], greedy, "^", color=green, clip_on=False, label="held out, greedy")
            axis.set_ylim(0, 1)
        elif heading != "Critic":
            axis.set_ylim(bottom=0)
        axis.set_title(heading, fontsize=9.5, loc="left")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if len(axis.lines) > 1:
            axis.legend(fontsize=8, frameon=False)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis in axes[columns:]:
        axis.set_xlabel("step")
    figure.savefig(path, dpi=130)
