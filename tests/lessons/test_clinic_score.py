"""The clinic's benchmark: its file, how programs are started, and our scores."""

import json
import sys

import pytest

from lessons.clinic import __main__ as command
from lessons.clinic import logs, score, signs


def test_the_file_has_all_patches_in_the_names_of_trl():
    patches, runs = {"": {}} | signs.patches(), score.runs()
    assert {run["patch"] for run in runs} == patches.keys()
    for run in runs:
        header, rows = patches[run["patch"]], run["log_history"]
        assert run["class"] == header.get("Class", "")
        assert run["kind"] == ("bug" if run["class"] else "control" if header else "healthy")
        assert len(rows) == 60 and not logs.TRL.keys() & rows[0].keys()


PROGRAM = """
import json, pathlib, sys
log = pathlib.Path(sys.argv[1])
settings = log.with_name("config.json")
said = [log.read_text(), settings.exists() and settings.read_text(), *sys.argv[2:]]
print("a line before")
print(json.dumps({"class": said}))
"""


@pytest.mark.parametrize("bare, settings", [(False, '{"seed": 7}'), (True, False)])
def test_a_program_gets_the_log_and_its_last_line_counts(bare, settings):
    run = {"log_history": [{"step": 1}], "patch": "cut", "settings": {"seed": 7}}
    command = [sys.executable, "-c", PROGRAM, "LOG", "--without", "PATCH"]
    said = score.verdict(command, run, bare)["class"]
    assert said == ['{"step": 1}\n', settings, "--without", "cut"]


@pytest.mark.parametrize("name", ("ours", "ours, bare"))
def test_our_scores_are_those_of_the_command(name, tmp_path, capsys):
    log, found = tmp_path / "log.jsonl", []
    for run in score.runs():
        log.write_text("\n".join(map(json.dumps, run["log_history"])), "utf-8")
        settings = {} if name == "ours, bare" else run["settings"]
        log.with_name("config.json").write_text(json.dumps(settings), "utf-8")
        command.main(command.Config(str(log), json=True, without=run["patch"]))
        found.append((run, json.loads(capsys.readouterr().out)))
    assert score.score(found) == json.loads(score.SCORES.read_text("utf-8"))[name]
