"""The clinic's benchmark: its file, how programs are started and scored, and the scores shown."""

import json
import sys

import pytest

from lessons.clinic import __main__ as command
from lessons.clinic import logs, score, signs

PATCHES = signs.patches()


def test_the_file_has_all_patches_in_the_names_of_trl():
    assert (signs.HERE / "benchmark.jsonl.gz").stat().st_size <= 3e6
    runs = score.runs()
    assert {run["patch"] for run in runs} == PATCHES.keys() | {""}
    for run in runs:
        header = PATCHES.get(run["patch"], {})
        assert run["class"] == header.get("Class", "")
        assert run["kind"] == ("bug" if run["class"] else "control" if header else "healthy")
        row = run["log_history"][-1]
        assert row["step"] == 60 == len(run["log_history"])
        has_no_ratio = run["settings"]["script"] == "reinforce"
        assert len({*logs.TRL.values()} - row.keys()) == 3 * has_no_ratio
        assert not {"silent", "mismatch", "length"} & row.keys()
    healthy = [run["settings"] for run in runs if run["kind"] == "healthy"]
    assert {settings["script"] for settings in healthy} >= {"grpo", "ppo", "dr_grpo", "dapo"}
    assert {"task", "learning_rate", "num_minibatches"} <= {n for each in healthy for n in each}


PROGRAM = """
import json, pathlib, sys
log = pathlib.Path(sys.argv[1])
settings = log.with_name("config.json")
said = [log.read_text(), settings.exists() and settings.read_text(), *sys.argv[2:]]
print("a line before")
print(json.dumps({"class": said}))
"""


def test_a_program_gets_the_log_and_its_last_line_counts():
    run = {"log_history": [{"step": 1}], "patch": "cut", "settings": {"seed": 7}}
    command = [sys.executable, "-c", PROGRAM, "LOG", "--without", "PATCH"]
    for bare, settings in ((False, '{"seed": 7}'), (True, False)):
        said = score.verdict(command, run, bare)["class"]
        assert said == ['{"step": 1}\n', settings, "--without", "cut"]


def test_scores_by_hand():
    found = []
    for kind, name, patch, said, named in (
        ("bug", "KL", "kl_sign", "KL", "kl_sign"),
        ("bug", "KL", "kl_sign", "KL", "cut"),
        ("bug", "mask", "eos_masked", "loss", ""),
        ("bug", "data", "same_prompts", "", ""),
        ("control", "", "ddof_1", "loss", ""),
        ("healthy", "", "", "", ""),
    ):
        run = {"kind": kind, "class": name, "patch": patch, "settings": {"script": "grpo"}}
        found.append((run, {"class": said, "patch": named}))
    scored = score.score(found)
    assert [*scored["counts"].values()] == [4, 3, 2, 1, 1, 1, 1, 0]
    assert scored["named"]["kl_sign"] == ["KL", "KL"] and scored["named"]["grpo"] == [""]


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


def test_the_page_shows_the_scores():
    page = (signs.HERE / "README.md").read_text("utf-8")
    scores = json.loads(score.SCORES.read_text("utf-8"))
    for name, scored in scores.items():
        n = scored["counts"]
        cells = [f"{n['bug accused']} of {n['bug']}", n["class right"], n["patch wrong"]]
        cells += [f"{n[f'{kind} accused']} of {n[kind]}" for kind in ("healthy", "control")]
        assert f"| {name} | {' | '.join(map(str, cells))} |" in page, name
    for name in ("rl-doctor 0.2.0", "rlprobe 0.1.0"):
        named = scores[name]["named"]
        healthy, bugs = {*named["grpo 10"][0]}, [n for n in named if "Fix" in PATCHES.get(n, {})]
        own = sum(bool({*named[patch][0]} - healthy) for patch in bugs)
        assert f"{name.split()[0]} for {own}" in page
