"""The clinic: every patch applies and changes little, bands and signs by hand, and what the command
says of a log."""

import json
import re

import numpy as np
import pytest

from lessons.clinic import __main__ as command
from lessons.clinic import signs
from lessons.experiments import clinic
from lessons.experiments.grid import into_page
from toy_env import RunFailed, UsageError

PATCHES = signs.patches()
BUGS = {name for name, patch in PATCHES.items() if "Fix" in patch}


@pytest.mark.parametrize("name", PATCHES)
def test_a_patch_has_its_header_and_applies_to_the_tree(name, tmp_path):
    patch = PATCHES[name]
    fields = {"Symptom", "Threads", "Mathematics", "Fix"} if name in BUGS else {"Alarm", "Harmless"}
    assert patch.keys() == fields | {"patch"} and all(patch.values())
    if name in BUGS:
        assert all(
            re.fullmatch(r"[\w-]+/[\w.-]+#\d+", thread) for thread in patch["Threads"].split(", ")
        )
    lines = patch["patch"].splitlines()
    added, removed = (
        sum(line[:1] == sign and line[:3] != 3 * sign for line in lines) for sign in "+-"
    )
    assert 1 <= max(added, removed) <= 5
    clinic.broken_copy(tmp_path, name)
    for file in (line[6:] for line in lines if line.startswith("+++ ")):
        compile((tmp_path / file).read_text("utf-8"), file, "exec")


def test_there_are_enough_and_one_that_does_not_apply_is_one_line(tmp_path, monkeypatch):
    assert len(BUGS) >= 16 and len(PATCHES) - len(BUGS) >= 5
    torn = PATCHES["ddof_1"]["patch"].replace("-    sigma", "-    sigmas")
    monkeypatch.setattr(signs, "patches", lambda: {"ddof_1": {"patch": torn}})
    with pytest.raises(RunFailed, match="ddof_1.diff does not apply"):
        clinic.broken_copy(tmp_path, "ddof_1")


# Bands and signs


def rows_of(steps: int = 60, noise: int = 0, **metrics) -> list[dict]:
    """Rows whose metrics are functions of the step, plus the same small noise for all."""
    rng = np.random.default_rng(noise)
    return [
        {"step": t, **{m: f(t) + 0.001 * rng.normal() for m, f in metrics.items()}}
        for t in range(1, steps + 1)
    ]


HEALTHY = [
    signs.curves(rows_of(noise=seed, reward=lambda t: 0.01 * t, kl=lambda t: 0.01))
    for seed in range(10)
]
METRIC = {name: i for i, name in enumerate(signs.FLOORS)}


def test_a_curve_is_a_running_mean_of_what_is_there():
    rows = [
        {"step": 2, "reward": 1.0},
        {"step": 4, "reward": None},
        {"step": 6, "reward": 3.0, "kl": 0.1},
    ]
    curves = signs.curves(rows)
    np.testing.assert_allclose(curves[METRIC["reward"], :6], [np.nan, 1, 1, 1, 1, 2])
    assert np.isnan(curves[:, 6:]).all() and np.isnan(curves[METRIC["kl"], :5]).all()
    assert (
        curves[METRIC["kl"], 5] == pytest.approx(np.log10(0.1 + 1e-5))
        and np.isnan(curves[METRIC["length"]]).all()
    )


def test_a_band_is_that_of_one_more_run():
    made, values = signs.band(HEALTHY)[:, METRIC["reward"]], np.array(HEALTHY)[:, METRIC["reward"]]
    np.testing.assert_allclose(
        made, [values.mean(axis=0), np.full(60, 0.005 * np.sqrt(1.1))]
    )  # noise below the floor


def test_a_sign_is_outside_for_three_steps_on_one_side():
    made, limit = signs.band(HEALTHY), signs.WIDTH * 0.005

    def found(jump) -> dict:
        run = signs.curves(rows_of(reward=lambda t: 0.01 * t, kl=lambda t: 0.01))
        run[METRIC["reward"]] += [9 * limit * jump(t) for t in range(1, 61)]
        return signs.signs(run, made)

    assert found(lambda t: 0) == {} == found(lambda t: t in (7, 8)) == found(lambda t: (-1) ** t)
    assert found(lambda t: t >= 7) == {"reward": (7, 1)} and found(lambda t: -(t >= 7)) == {
        "reward": (7, -1)
    }


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Of made-up runs: the KL is ten times as large with kl_sign, and in three seeds with cut;
    tiled costs accuracy."""
    runs, planned = [], clinic.runs_of(clinic.Config())
    assert len(planned) == 15 + 5 * len(PATCHES) == len({*planned}) and not any(
        x.patch for x in planned if x.seed < 10
    )
    for run in planned:
        kl = 0.1 if run.patch == "kl_sign" or (run.patch == "cut" and run.seed < 13) else 0.01
        rows = rows_of(noise=run.seed, reward=lambda t: 0.01 * t, kl=lambda t, kl=kl: kl)
        runs.append(
            vars(run)
            | {
                "rows": rows,
                "accuracy": 0.9 + 0.001 * run.seed - 0.1 * (run.patch == "tiled"),
                "found by": {},
            }
        )
    monkeypatch.setattr(signs, "RESULTS", tmp_path / "results.json")
    data = clinic.summary(runs)
    signs.RESULTS.write_text(json.dumps(data), "utf-8")
    signs.results.cache_clear()
    yield data
    signs.results.cache_clear()


def test_the_summary_of_made_up_runs(published):
    patches = published["patches"]
    assert patches["kl_sign"]["signs"] == {"kl": [1, 1, 5]} and [*published["signatures"]] == [
        "kl_sign"
    ]
    assert (
        patches["kl_sign"]["taken for"] == ["kl_sign"] * 5
        and patches["tiled"]["taken for"] == [""] * 5
    )
    assert {name for name, patch in patches.items() if patch["outside"]} == {"cut", "kl_sign"}
    assert (
        patches["tiled"]["accuracy"]["difference"] == pytest.approx(-0.1)
        and not patches["cut"]["signs"]
    )
    texts = clinic.tables(published)
    assert (
        "| ↑1 |" in texts["signs"] and "no metric" in texts["kinds"] and "5 of 5" in texts["alarms"]
    )


def test_the_page_shows_what_is_committed():
    page, data = clinic.PAGE.read_text("utf-8"), json.loads(signs.RESULTS.read_text("utf-8"))
    assert into_page(page, clinic.tables(data)) == page, (
        "run python lessons/experiments/clinic.py --publish"
    )
    words = re.findall(r"[^\s|]*\w[^\s|]*", page)
    assert len(words) <= 2000 and all(f"({name}.diff)" in page for name in PATCHES)
    pictures = re.findall(r"!\[(.*) of (.*)\]\((.*)\)", page)
    assert {file for *_, file in pictures} == {
        f"figures/{path.name}" for path in signs.HERE.glob("figures/*")
    }
    assert max(path.stat().st_size for path in signs.HERE.glob("figures/*")) < 40_000
    bugs = {name for name in data["signatures"] if name in BUGS}
    right = sum(
        patch["taken for"].count(name) for name, patch in data["patches"].items() if name in bugs
    )
    accused = [
        other
        for name, patch in data["patches"].items()
        if name not in BUGS
        for other in patch["taken for"]
    ]
    assert right >= 0.8 * 5 * len(bugs) and not BUGS & {*accused}
    assert (
        np.mean([data["patches"][name]["outside"] for name in PATCHES if name not in BUGS]) < 1 / 20
    )


def test_what_the_command_says_of_a_run_of_ours(published, tmp_path, capsys):
    rows = rows_of(20, noise=77, reward=lambda t: 0.01 * t, kl=lambda t: 0.1)  # the KL of kl_sign
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")

    def said(task: str) -> str:
        settings = {
            "script": "grpo",
            "model": "base",
            "task": task,
            "num_minibatches": 1,
            "group_size": 8,
        }
        (tmp_path / "config.json").write_text(json.dumps(settings), "utf-8")
        command.main(command.Config(str(tmp_path)))
        return capsys.readouterr().out

    text = said("arithmetic")
    assert "defaults; this run has num_minibatches 1\n" in text
    assert "kl                       leaves the band at step 1, above" in text
    assert re.search(
        r"looks like lessons/clinic/kl_sign.diff \((0.9\d|1.00) of 1\)\n    The loss is minus", text
    )
    assert (tmp_path / "clinic.png").stat().st_size > 1000
    text = said("expressions")
    assert "another script, task or model" in text and "the band at step" not in text


def test_what_the_command_says_of_a_log_of_trl(published, tmp_path, capsys):
    row = {"loss": 0.0, "grad_norm": 0.0, "learning_rate": 1e-6, "reward": 0.0, "reward_std": 0.0, "entropy": 0.4,
           "frac_reward_zero_std": 1.0, "completions/mean_length": 256.0, "completions/clipped_ratio": 1.0, "kl": 0.0,
           "clip_ratio/low_mean": 0.0, "clip_ratio/high_mean": 0.0, "epoch": 0.1}  # fmt: skip
    history = [*(row | {"step": step} for step in (1, 2, 3)), {"eval_reward": 0.1, "step": 3}]
    for name, data in (("trainer_state.json", {"log_history": history}), ("history.json", history)):
        (tmp_path / name).write_text(json.dumps(data), "utf-8")
        command.main(command.Config(str(tmp_path / name)))
        text = capsys.readouterr().out
        assert "every group is silent in the first step: looks like verifier_strict, cut" in text
        assert "half of the first completions, or more, are cut: looks like cut" in text
        assert (
            "the KL is 0 at every step" in text and "not logged: silent_right, silent_wrong" in text
        )


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "not json", '[{"reward": 1}]', '{"log_history": [3]}']
)
def test_bad_input_is_one_line(text, tmp_path):
    (tmp_path / "log.json").write_text(text, "utf-8")
    for path in (tmp_path / "log.json", tmp_path / "nowhere"):
        with pytest.raises(UsageError, match=f"{path.name}.*; give a run"):
            command.main(command.Config(str(path)))


@pytest.mark.slow
@pytest.mark.parametrize("name", PATCHES)
def test_a_broken_run_makes_twenty_steps(name):
    run = clinic.train(clinic.Run(name, seed=10, steps=20))
    assert len(run["rows"]) == 20 or "diverged" in run["ended"]
