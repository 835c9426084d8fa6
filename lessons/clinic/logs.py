"""Read the log of a run, of ours or of another program, into rows under our names."""

import csv
import json
import re
from contextlib import suppress
from pathlib import Path

from lessons.clinic.signs import METRICS

TRL = {trl: name for name, trl, *_ in METRICS if trl}  # its names, and ours
OTHERS = [(others.split("`, `"), name) for name, _, others, *_ in METRICS if others]
NAMES = TRL | {other: name for others, name in OTHERS for other in others}
FILES = ("metrics.jsonl", "results.json", "trainer_state.json", "logging.jsonl")


def number(value) -> float | None:
    """A number, also one in a text such as "0.3", "nan" or "12/100"; None for all else."""
    with suppress(ValueError):
        return float(str(value).partition("/")[0])


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
    with suppress(ValueError):
        data = json.loads(text)
        if isinstance(data, dict):
            data = data.get("log_history") or data.get("log") or [data]
        return data
    rows, lines = [], text.splitlines()
    for line in lines:
        with suppress(ValueError):
            rows.append(json.loads(line))
    if len(rows) < len(lines):
        print(f"{len(lines) - len(rows)} of {len(lines)} lines are not whole JSON: left out")
    return rows


def find(path: Path) -> Path:
    """The file of a log: the path itself, or the one in this folder, in its newest checkpoint, or
    in the run that this checkpoint is of. SystemExit if there is none."""
    saves = sorted(path.glob("checkpoint-*"), key=lambda save: (len(save.name), save.name))
    folders = (path, *saves[::-1], path.parent) if path.is_dir() else ()
    for file in (path, *(folder / name for folder in folders for name in FILES)):
        if file.is_file():
            return file
    raise SystemExit(f"there is no log in {path}; give a run's folder, or the file of its log")


def load(name: str) -> tuple[list[dict], dict, Path]:
    """The rows of a log, one for each step that has a reward, the settings of a run of ours, and
    the file. SystemExit if it is no log of such a run."""
    path, rows = find(Path(name).expanduser()), {}
    for i, row in enumerate(parsed(path), 1):
        if isinstance(row, dict):
            row = {"step": i} | ours(row)
            rows.setdefault(row["step"], {}).update(row)  # a resumed run repeats steps
    rewarded = [rows[step] for step in sorted(rows) if "reward" in rows[step]]
    if not rewarded:
        logged = sorted(set().union(*rows.values()) - {"step"})
        names = ", ".join(logged[:6]) or "nothing"
        raise SystemExit(f"no row of {path} has a reward; it logs {names}")
    config = path.with_name("config.json")
    settings = json.loads(config.read_text("utf-8")) if config.is_file() else {}
    if "script" not in settings:  # there is none, or it is a model's
        settings = {"script": "unknown"}
    return rewarded, settings, path
