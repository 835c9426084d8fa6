"""Read the log of a run, of ours or of another program, into rows under our names."""

import csv
import json
import re
from pathlib import Path

TRL = {  # names of TRL 1.16, and ours
    "frac_reward_zero_std": "silent",
    "completions/mean_length": "length",
    "completions/clipped_ratio": "truncated",
    "clip_ratio/low_mean": "clipped_down",
    "clip_ratio/high_mean": "clipped_up",
    "sampling/sampling_logp_difference/mean": "mismatch",
}
NAMES = TRL | {  # of TRL since 0.15, Unsloth, ms-swift, verl, and exports of W&B and SwanLab
    "global_step/max_steps": "step",
    "global_step": "step",
    "_step": "step",
    "Step": "step",
    "completion_length": "length",
    "mean_completion_length": "length",
    "clipped_completions_ratio": "truncated",
    "clip_ratio": "clipped",
    "clip_ratio/region_mean": "clipped",
    "critic/rewards/mean": "reward",
    "response_length/mean": "length",
    "response_length/clip_ratio": "truncated",
    "actor/entropy": "entropy",
    "actor/entropy_loss": "entropy",
    "actor/pg_loss": "loss",
    "actor/pg_clipfrac": "clipped",
    "actor/grad_norm": "grad_norm",
    "actor/kl_loss": "kl",
}
FILES = ("metrics.jsonl", "results.json", "trainer_state.json", "logging.jsonl")


def number(value) -> float | None:
    """A number, also one in a text such as "0.3", "nan" or "12/100"; None for all else."""
    try:
        return float(str(value).partition("/")[0])
    except ValueError:
        return None


def ours(row: dict) -> dict[str, float]:
    """The numbers of a row by our names. W&B and SwanLab write "run - train/reward" for reward, and
    verl puts its metrics into a dictionary of their own."""
    renamed = {}
    for name, value in row.items():
        if isinstance(value, dict):
            renamed |= ours(value)
        elif (value := number(value)) is not None:
            name = re.sub(r"^(.* - )?(train/|training/)?", "", name)
            renamed.setdefault(NAMES.get(name, name), value)
    if renamed.get("reward_std") == 0:
        renamed.setdefault("silent", 1.0)
    return renamed


def parsed(path: Path) -> list:
    """The rows of a CSV file, of JSON or of JSON lines, as they stand there."""
    text = path.read_text("utf-8", errors="replace")
    if path.suffix == ".csv":
        return list(csv.DictReader(text.splitlines()))
    try:
        data = json.loads(text)
        if isinstance(data, dict):
            data = data.get("log_history") or data.get("log") or data
        return data if isinstance(data, list) else [data]
    except ValueError:
        rows, lines = [], text.splitlines()
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    if len(rows) < len(lines):
        print(f"{len(lines) - len(rows)} of {len(lines)} lines are not whole JSON: left out")
    return rows


def find(path: Path) -> Path:
    """The file of a log: the path itself, or the one in this folder, in its newest checkpoint, or
    in the run that this checkpoint is of. SystemExit if there is none."""
    saves = sorted(path.glob("checkpoint-*"), key=lambda save: number(save.name[11:]) or 0)
    for folder in (path, *saves[::-1], path.parent if path.is_dir() else path):
        if folder.is_file():
            return folder
        for file in FILES:
            text = (folder / file).read_text("utf-8") if (folder / file).is_file() else ""
            if text and (file != "results.json" or '"log"' in text):
                return folder / file
    raise SystemExit(f"there is no log in {path}; give a run's folder, or the file of its log")


def load(name: str) -> tuple[list[dict], dict, Path]:
    """The rows of a log, one for each step that has a reward, the settings of a run of ours, {} for
    others, and the file. SystemExit if it is no log of such a run."""
    path = find(Path(name).expanduser())
    rows, settings = {}, path.parent / "config.json"
    for i, row in enumerate(parsed(path), 1):
        if isinstance(row, dict):
            row = {"step": i} | ours(row)
            rows[row["step"]] = rows.get(row["step"], {}) | row  # a resumed run repeats steps
    rewarded = [rows[step] for step in sorted(rows) if "reward" in rows[step]]
    if not rewarded:
        names = sorted({name for row in rows.values() for name in row} - {"step"})
        logged = ", ".join(names[:6]) or "nothing"
        raise SystemExit(f"no row of {path} has a reward; it logs {logged}")
    settings = json.loads(settings.read_text("utf-8")) if settings.is_file() else {}
    return rewarded, settings if "script" in settings else {}, path  # or it is a model's
