"""Does a run look healthy, and if not, which bug of this folder does it look like?

    python -m lessons.clinic runs/grpo-0            the folder of a run of ours python -m
    lessons.clinic out/checkpoint-60      what TRL's GRPOTrainer has logged: trainer_state.json

Draws the metrics into clinic.png beside the log. The band of healthy runs is that of grpo.py, its
base model and arithmetic. Of any other run only what does not depend on these is read.
"""

from toy_env import take_over_ctrl_c

if __name__ == "__main__":
    take_over_ctrl_c()

import json
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import tyro

from algorithms import grpo
from lessons.clinic import signs
from toy_env import UsageError, reason
from toy_env.cli import RunConfig, run_main

TRL = {  # metrics of TRL 1.16, and ours of the same meaning
    "frac_reward_zero_std": "silent", "completions/mean_length": "length", "completions/clipped_ratio": "truncated",
    "clip_ratio/low_mean": "clipped_down", "clip_ratio/high_mean": "clipped_up",
    "sampling/sampling_logp_difference/mean": "mismatch",
}  # fmt: skip
ANYWHERE = (  # a metric, what is seen in it, whether it is, and which bugs look like that, whatever the model and task
    (
        "mismatch",
        "the sampler disagrees with the trainer at first",
        lambda x: x[0] > 1e-3,
        "one_late, temperature",
    ),
    (
        "mismatch",
        "the sampler disagrees with the trainer later",
        lambda x: x[0] < 1e-3 < x[-1],
        "stale_sampler",
    ),
    (
        "ratio_deviation",
        "every ratio is 1, as it is with one update a batch",
        lambda x: max(x) < 1e-4,
        "ratio_one",
    ),
    (
        "silent",
        "every group is silent in the first step",
        lambda x: x[0] == 1,
        "verifier_strict, cut",
    ),
    ("truncated", "half of the first completions, or more, are cut", lambda x: x[0] >= 0.5, "cut"),
    ("kl", "the KL is not near 0 in the first step", lambda x: x[0] > 0.05, "one_late, rate_high"),
    (
        "kl",
        "the KL is 0 at every step",
        lambda x: max(x) < 1e-7,
        "stale_optimizer, reference_moves",
    ),
    ("loss", "the loss is not near 0 in the first step", lambda x: abs(x[0]) > 1, "one_late"),
    (
        "reward",
        "the reward stays flat",
        lambda x: np.mean(x[-5:]) < np.mean(x[:5]) + 0.02,
        "rate_low, stale_sampler",
    ),
    (
        "entropy",
        "the entropy rises",
        lambda x: np.mean(x[-5:]) > np.mean(x[:5]) + 0.1,
        "rate_high, shaped",
    ),
)


@dataclass
class Config:
    run: tyro.conf.Positional[
        str
    ]  # the folder of a run, or a file with the log_history of TRL's GRPOTrainer


def load(path: Path) -> tuple[list[dict], dict]:
    """The rows of a run, under our names, and its settings, {} for TRL's. Raises UsageError if
    there are none."""
    try:
        if (path / "metrics.jsonl").is_file():
            rows = [
                json.loads(line)
                for line in (path / "metrics.jsonl").read_text("utf-8").splitlines()
            ]
            settings = json.loads((path / "config.json").read_text("utf-8"))
        else:
            data = json.loads(
                (path / "trainer_state.json" if path.is_dir() else path).read_text("utf-8")
            )
            log = [
                row
                for row in (data["log_history"] if isinstance(data, dict) else data)
                if "reward" in row
            ]
            rows, settings = (
                [{TRL.get(name, name): value for name, value in row.items()} for row in log],
                {},
            )
        if not rows or not all(row["step"] >= 1 for row in rows):
            raise ValueError("no step in it")
        return rows, settings
    except Exception as error:
        why = (
            f"{str(path)!r} holds no log that can be read ({type(error).__name__}: {reason(error)})"
        )
        raise UsageError(f"{why}; give a run's folder or TRL's trainer_state.json") from None


def in_the_band(run: np.ndarray, settings: dict) -> None:
    """Print the settings that differ from the band's, what leaves the band, and which patches look
    like that."""
    own = fields(grpo.Config)[len(fields(RunConfig)) :]  # those of the algorithm
    changed = [
        f"{x.name} {settings[x.name]}" for x in own if settings.get(x.name, x.default) != x.default
    ]
    if changed:
        print("the band is that of grpo.py at its defaults; this run has", ", ".join(changed))
    results, patches = signs.results(), signs.patches()
    for name, (step, side) in signs.signs(run, results["band"]).items():
        print(f"  {name:24} leaves the band at step {step}, {'above' if side > 0 else 'below'}")
    alike = signs.diagnosis(run, results["band"], results["signatures"])[:3]
    for likeness, name in alike:
        print(f"looks like lessons/clinic/{name}.diff ({likeness:.2f} of 1)")
        print("   ", patches[name].get("Fix", "Harmless."))
    if not alike:
        hidden = [
            name
            for name in patches
            if "Fix" in patches[name] and not results["patches"][name]["signs"]
        ]
        print("looks like no bug that a metric shows; bugs that none shows:", ", ".join(hidden))


def anywhere(rows: list[dict]) -> None:
    """Print what looks like a bug in a run of any script, task and model."""
    print(
        "another script, task or model than the band's: only what does not depend on these is read"
    )
    columns = {
        name: [row[name] for row in rows if row.get(name) is not None] for name in signs.FLOORS
    }
    print(
        "  not logged:",
        ", ".join(name for name, column in columns.items() if not column) or "nothing",
    )
    seen = [
        f"  {what}: looks like {bugs}"
        for name, what, test, bugs in ANYWHERE
        if columns[name] and test(columns[name])
    ]
    print(
        *seen or ["  nothing here looks like a bug, which does not mean that there is none"],
        sep="\n",
    )


def main(config: Config) -> None:
    """Print what the metrics of a run look like, and draw them."""
    rows, settings = load(path := Path(config.run))
    run = signs.curves(rows)
    same = [settings.get(name) for name in ("script", "task", "model")] == [
        "grpo",
        "arithmetic",
        "base",
    ]
    in_the_band(run, settings) if same else anywhere(rows)
    logged = [name for name, curve in zip(signs.FLOORS, run) if np.isfinite(curve).any()]
    picture = (path if path.is_dir() else path.parent) / "clinic.png"
    signs.draw({path.name: run}, logged, signs.results()["band"] if same else None).savefig(
        picture, dpi=100
    )
    print(f"see {picture}")


if __name__ == "__main__":
    run_main(Config, main, __doc__)
