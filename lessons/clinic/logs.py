"""Read the log of a run, of ours or of another program, into rows under our names."""

import csv
import json
import re
from pathlib import Path

NAMES = {  # ours: those of TRL since 0.15, Unsloth, ms-swift and verl, for the same thing
    "step": ("global_step/max_steps", "global_step", "training/global_step", "_step", "Step"),
    "reward": ("critic/score/mean", "critic/rewards/mean"),
    "silent": ("frac_reward_zero_std",),
    "length": (
        "completions/mean_length",
        "completion_length",
        "mean_completion_length",
        "response_length/mean",
    ),
    "truncated": (
        "completions/clipped_ratio",
        "clipped_completions_ratio",
        "response_length/clip_ratio",
    ),
    "entropy": ("actor/entropy", "actor/entropy_loss"),
    "loss": ("actor/loss", "actor/pg_loss"),
    "grad_norm": ("actor/grad_norm",),
    "kl": ("actor/kl_loss",),
    "clipped_down": ("clip_ratio/low_mean",),
    "clipped_up": ("clip_ratio/high_mean",),
    "clipped": ("clip_ratio/region_mean", "clip_ratio", "actor/pg_clipfrac"),
    "mismatch": ("sampling/sampling_logp_difference/mean",),
}
OURS = {theirs: name for name, names in NAMES.items() for theirs in names}
FILES = ("metrics.jsonl", "results.json", "trainer_state.json", "logging.jsonl")


def number(value) -> float | None:
    """A number, also one in a text such as "0.3", "nan" or "12/100"; None for all else."""
    text = str(value).partition("/")[0] if isinstance(value, str | int | float) else ""
    try:
        return float(text)
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
            name = re.sub(r"^(.* - )?(train/(?!global_step))?", "", name)
            renamed.setdefault(OURS.get(name, name), value)
    if renamed.get("reward_std") == 0:
        renamed.setdefault("silent", 1.0)
    return renamed


def parsed(path: Path) -> tuple[list[dict], dict]:
    """The rows of a file as they stand there, and the settings, if the file has any."""
    text = path.read_text("utf-8", errors="replace")
    if path.suffix == ".csv":
        return list(csv.DictReader(text.splitlines())), {}
    try:
        data = json.loads(text)
        if isinstance(data, dict):
            settings = data.get("settings", {})
            data = data.get("log_history") or data.get("log") or [data]
            return data, {"script": "scale_out"} | settings if settings else {}
        return data, {}
    except ValueError:
        pass
    rows, lines = [], text.splitlines()
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    if rows and len(rows) < len(lines):
        print(f"{len(lines) - len(rows)} of {len(lines)} lines are not whole JSON: left out")
    return rows, {}


def find(path: Path) -> Path:
    """The file of a log: `path`, or the one in this folder, its newest checkpoint or the run that
    the checkpoint is of. SystemExit if there is none."""
    saves = sorted(path.glob("checkpoint-*"), key=lambda save: number(save.name[11:]) or 0)
    for folder in (path, *saves[::-1], path.parent):
        for file in FILES:
            text = (folder / file).is_file() and (folder / file).read_text("utf-8")
            if text and (file != "results.json" or '"log"' in text):
                return folder / file
        if folder == path and path.is_file():
            return path
    raise SystemExit(f"there is no log in {path}; give a run's folder, or the file of its log")


def load(name: str) -> tuple[list[dict], dict, Path]:
    """The rows of a log, a row for each step that has a reward, its settings as far as they are
    known, and its file. SystemExit if it is no log of such a run."""
    path = find(Path(name).expanduser())
    found, settings = parsed(path)
    rows = {}
    for i, row in enumerate(found, 1):
        if isinstance(row, dict):
            row = {"step": i} | ours(row)
            rows[row["step"]] = rows.get(row["step"], {}) | row  # a resumed run repeats steps
    rewarded = [rows[step] for step in sorted(rows) if "reward" in rows[step]]
    if not rewarded:
        names = ", ".join(sorted({name for row in rows.values() for name in row} - {"step"})[:6])
        raise SystemExit(f"no row of {path} has a reward; it logs {names or 'nothing'}")
    config = path.parent / "config.json"
    if config.is_file():
        settings = {"script": path.parent.name.partition("-")[0]}
        settings |= json.loads(config.read_text("utf-8"))
    return rewarded, settings, path
