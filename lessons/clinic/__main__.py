"""Does a run look healthy, and if not, which bug of this folder does it look like?

    python -m lessons.clinic runs/grpo-0            the folder of a run of ours
    python -m lessons.clinic out/checkpoint-60      the trainer_state.json of TRL's GRPOTrainer

Draws the metrics into clinic.png beside the log. The band of healthy runs is that of grpo.py, its
base model and arithmetic; any other run is judged only by signs that do not depend on these.
"""

import json
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import tyro

from algorithms import grpo
from lessons.clinic import signs
from toy_env.run import RunConfig, parse

TRL = {  # metrics of TRL 1.16, and ours of the same meaning
    "frac_reward_zero_std": "silent",
    "completions/mean_length": "length",
    "completions/clipped_ratio": "truncated",
    "clip_ratio/low_mean": "clipped_down",
    "clip_ratio/high_mean": "clipped_up",
    "sampling/sampling_logp_difference/mean": "mismatch",
}
# Signs in a run of any model and task: the metric, the sign in words and as a test of the metric's
# values, and the bugs that look like that.
ANYWHERE = (
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
    run: tyro.conf.Positional[str]  # the folder of a run, or TRL's trainer_state.json


def load(path: Path) -> tuple[list[dict], dict]:
    """The rows of a run, under our names, and its settings, {} for TRL's. SystemExit if the path
    leads to no log."""
    if (path / "metrics.jsonl").is_file():
        lines = (path / "metrics.jsonl").read_text("utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        return rows, json.loads((path / "config.json").read_text("utf-8"))
    log = path / "trainer_state.json" if path.is_dir() else path
    if not log.is_file():
        raise SystemExit(f"there is no log in {path}; give a run's folder, or trainer_state.json")
    data = json.loads(log.read_text("utf-8"))
    history = data["log_history"] if isinstance(data, dict) else data
    history = [row for row in history if "reward" in row]
    if not history:
        raise SystemExit(f"no step of a training is logged in {log}")
    return [{TRL.get(name, name): value for name, value in row.items()} for row in history], {}


def in_the_band(run: np.ndarray, settings: dict) -> None:
    """Print the settings that differ from the band's, what leaves the band, and which patches look
    like that."""
    own = fields(grpo.Config)[len(fields(RunConfig)) :]  # those of the algorithm
    values = {field.name: settings.get(field.name, field.default) for field in own}
    changed = [f"{x.name} {values[x.name]}" for x in own if values[x.name] != x.default]
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
        bugs = [name for name in patches if "Fix" in patches[name]]
        hidden = [name for name in bugs if not results["patches"][name]["signs"]]
        print("looks like no bug that a metric shows; bugs that none shows:", ", ".join(hidden))


def anywhere(rows: list[dict]) -> None:
    """Print what looks like a bug in a run of any script, task and model."""
    print("another script, task or model than the band's: fewer signs can be read")
    columns = {}
    for name in signs.FLOORS:
        columns[name] = [row[name] for row in rows if row.get(name) is not None]
    missing = [name for name, column in columns.items() if not column]
    print("  not logged:", ", ".join(missing) or "nothing")
    seen = []
    for name, sign, test, bugs in ANYWHERE:
        if columns[name] and test(columns[name]):
            seen.append(f"  {sign}: looks like {bugs}")
    none = "  nothing here looks like a bug, which does not mean that there is none"
    print("\n".join(seen) or none)


def main(config: Config) -> None:
    """Print what the metrics of a run look like, and draw them."""
    path = Path(config.run)
    rows, settings = load(path)
    run = signs.curves(rows)
    subject = path.resolve().name.partition("-")[0], settings.get("task"), settings.get("model")
    same = subject == ("grpo", "arithmetic", "base")  # the folder is called runs/grpo-0
    if same:
        in_the_band(run, settings)
    else:
        anywhere(rows)
    logged = [name for name, curve in zip(signs.FLOORS, run) if np.isfinite(curve).any()]
    picture = (path if path.is_dir() else path.parent) / "clinic.png"
    band = signs.results()["band"] if same else None
    signs.draw({path.name: run}, logged, band).savefig(picture, dpi=100)
    print(f"see {picture}")


if __name__ == "__main__":
    main(parse(Config, __doc__))
