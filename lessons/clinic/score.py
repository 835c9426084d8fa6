"""Score a program that reads the log of a run and says what is wrong with it.

    python -m lessons.clinic.score ours python -m lessons.clinic LOG --json --without PATCH
    python -m lessons.clinic.score --bare "rlprobe 0.1.0" \\
        PYTHON lessons/clinic/other_programs.py rlprobe LOG

The program is started once for each run of benchmark.jsonl.gz, with LOG replaced by a file of JSON
lines in TRL's names, and PATCH by the patch that was applied, so that it can be left out of what
the program knows. A config.json beside the file has the run's settings; with --bare there is none.
Its last line is a JSON object: "class" is "" for a run without a bug, else one of the classes of
RULES.md, or any other text; "patch" is the bug that it looks like, if that is sure. A bug is found
if the class is not "". The scores go into scores.json, under the first name.
"""

import gzip
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tqdm import tqdm

HERE = Path(__file__).parent
SCORES = HERE / "scores.json"


def runs() -> list[dict]:
    """The runs of the benchmark: kind (bug, control or healthy), class, patch, settings, rows."""
    text = gzip.decompress((HERE / "benchmark.jsonl.gz").read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


def verdict(command: list[str], run: dict, bare: bool) -> dict:
    """What a program says of a run."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log.jsonl")
        log.write_text("".join(json.dumps(row) + "\n" for row in run["log_history"]), "utf-8")
        if not bare:
            Path(folder, "config.json").write_text(json.dumps(run["settings"]), "utf-8")
        words = {"LOG": str(log), "PATCH": run["patch"]}
        command = [words.get(word, word) for word in command]
        out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        return json.loads(out.splitlines()[-1])


def score(found: list[tuple[dict, dict]]) -> dict:
    """The counts for pairs of a run and a verdict, and what was said of each run."""
    counts, named = Counter(), {}
    for run, said in found:
        kind, accused = run["kind"], bool(said["class"])
        counts[kind] += 1
        counts[f"{kind} accused"] += accused
        if kind == "bug":
            counts["class right"] += said["class"] == run["class"]
            counts["patch wrong"] += said.get("patch", "") not in ("", run["patch"])
        what = run["patch"] or " ".join(f"{x}" for x in run["settings"].values())
        named.setdefault(what, []).append(said.get("alarms", said["class"]))
    return {"counts": counts, "named": named}


def main() -> None:
    bare = sys.argv[1] == "--bare"
    name, *command = sys.argv[1 + bare :]
    found = [(run, verdict(command, run, bare)) for run in tqdm(runs())]
    scores = json.loads(SCORES.read_text("utf-8")) if SCORES.is_file() else {}
    scores[name] = score(found)
    SCORES.write_text(json.dumps(scores, indent=1) + "\n", "utf-8")
    print(name, dict(scores[name]["counts"]))


if __name__ == "__main__":
    main()
