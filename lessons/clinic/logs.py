"""Read the log of a run, of ours or of another program, into rows under our names."""

import csv
import json
import re
from contextlib import suppress
from pathlib import Path

from lessons.clinic.signs import METRICS

TRL = {name: trl for name, trl, *_ in METRICS if trl}  # its names by ours
NAMES = {  # ours by those of all others
    other: name
    for name, trl, others, *_ in METRICS
    for other in re.findall("[^`, ]+", f"{trl} {others}")
}
FILES = ("metrics.jsonl", "results.json", "trainer_state.json", "logging.jsonl")


def ours(row: dict) -> dict[str, float]:
    """The numbers of a row by our names, also those in texts such as "0.3", "nan" or "12/100". W&B
    and SwanLab write "run - train/reward" for reward, and verl puts its metrics into a dictionary
    of their own."""
    renamed = {}
    for name, value in row.items():
        if isinstance(value, dict):
            renamed |= ours(value)
            continue
        name = re.sub(r"^(.* - )?(train/|training/)?", "", name)
        with suppress(ValueError):
            renamed.setdefault(NAMES.get(name, name), float(str(value).partition("/")[0]))
    if renamed.get("reward_std") == 0:
        renamed.setdefault("silent", 1.0)
    return renamed


def parsed(path: Path) -> list:
    """The rows of a CSV file, of JSON or of JSON lines, as they stand there."""
    text = path.read_text("utf-8", errors="replace")
    lines, rows = text.splitlines(), []
    if path.suffix == ".csv":
        return [*csv.DictReader(lines)]
    with suppress(ValueError):
        data = json.loads(text)
        return data if isinstance(data, list) else data.get("log_history", data.get("log", [data]))
    for line in lines:
        with suppress(ValueError):
            rows.append(json.loads(line))
    if len(rows) < len(lines):
        print(f"{len(lines) - len(rows)} of {len(lines)} lines are not whole JSON: left out")
    return rows


def find(path: Path) -> Path:
    """The file of a log: the path itself, or the one in this folder, in its newest checkpoint, or
    in the run that this checkpoint is of. SystemExit if there is none."""
    if path.is_file():
        return path
    for folder in ("", "checkpoint-*/", "../"):
        found = [file for name in FILES for file in path.glob(folder + name)]
        if found:
            return max(found, key=lambda file: (len(file.parent.name), file.parent.name))
    raise SystemExit(f"there is no log in {path}; give a run's folder, or the file of its log")


def load(name: str) -> tuple[list[dict], dict, Path]:
    """The rows of a log, one for each step that has a reward, the settings of a run of ours, and
    the file. SystemExit if it is no log of such a run."""
    path, rows = find(Path(name).expanduser()), {}
    for i, row in enumerate(parsed(path), 1):
        row = {"step": i} | ours({"row": row})  # a text is no row, and no number
        rows.setdefault(row["step"], {}).update(row)  # a resumed run repeats steps
    rewarded = [rows[step] for step in sorted(rows) if "reward" in rows[step]]
    if not rewarded:
        logged = ", ".join(sorted(set().union(*rows.values())))
        raise SystemExit(f"no row of {path} has a reward; it logs {logged}")
    config = path.with_name("config.json")
    settings = json.loads(config.read_text("utf-8")) if config.is_file() else {}
    # without a script there is none, or it is a model's
    return rewarded, settings if "script" in settings else {"script": "unknown"}, path
