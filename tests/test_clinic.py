"""The clinic: every patch applies and changes little, bands and signs by hand, and what the command says of a log."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from lessons.clinic import __main__ as command
from lessons.clinic import signs
from lessons.experiments import clinic
from lessons.experiments.grid import into_page
from toy_env import RunFailed, UsageError

PATCHES = signs.patches()
BUGS = {name for name, patch in PATCHES.items() if "Mending" in patch}


def test_there_are_bugs_and_controls():
    assert len(BUGS) >= 16 and len(PATCHES) - len(BUGS) >= 5


@pytest.mark.parametrize("name", PATCHES)
def test_a_patch_has_its_header_and_applies_to_the_tree(name, tmp_path):
    patch = PATCHES[name]
    fields = {"Symptom", "Threads", "Mathematics", "Mending"} if name in BUGS else {"Alarm", "Harmless"}
    assert patch.keys() == fields | {"patch"} and all(patch.values())
    if name in BUGS:
        assert all(re.fullmatch(r"[\w-]+/[\w.-]+#\d+", thread) for thread in patch["Threads"].split(", "))
    lines = patch["patch"].splitlines()
    added, removed = (sum(line[:1] == sign and line[:3] != 3 * sign for line in lines) for sign in "+-")
    assert 1 <= max(added, removed) <= 5
    assert {line[6:] for line in lines if line.startswith("+++ ")} <= {
        "algorithms/grpo.py", "toy_env/arithmetic.py", "toy_env/rollout.py", "toy_env/run.py",
    }  # fmt: skip
    clinic.broken_copy(tmp_path, name)
    for line in lines:
        if line.startswith("+++ "):
            compile((tmp_path / line[6:]).read_text("utf-8"), line, "exec")


def test_a_patch_that_does_not_apply_is_one_line(tmp_path, monkeypatch):
    torn = PATCHES["ddof_1"]["patch"].replace("-    sigma", "-    sigmas")
    monkeypatch.setattr(signs, "patches", lambda: {"ddof_1": {"patch": torn}})
    with pytest.raises(RunFailed, match="ddof_1.diff does not apply"):
        clinic.broken_copy(tmp_path, "ddof_1")


# Bands and signs


def rows_of(steps: int = 60, noise: int = 0, **metrics) -> list[dict]:
    """Rows whose metrics are functions of the step, plus the same small noise for all."""
    rng = np.random.default_rng(noise)
    return [{"step": t, **{m: f(t) + 0.001 * rng.normal() for m, f in metrics.items()}} for t in range(1, steps + 1)]


HEALTHY = [signs.curves(rows_of(noise=seed, reward=lambda t: 0.01 * t, kl=lambda t: 0.01)) for seed in range(10)]
METRIC = {name: i for i, name in enumerate(signs.FLOORS)}


def test_a_curve_is_a_running_mean_of_what_is_there():
    rows = [{"step": 2, "reward": 1.0}, {"step": 4, "reward": None}, {"step": 6, "reward": 3.0, "kl": 0.1}]
    curves = signs.curves(rows)
    np.testing.assert_allclose(curves[METRIC["reward"], :6], [np.nan, 1, 1, 1, 1, 2])
    assert np.isnan(curves[:, 6:]).all() and np.isnan(curves[METRIC["kl"], :5]).all()
    assert curves[METRIC["kl"], 5] == pytest.approx(np.log10(0.1 + 1e-5)) and np.isnan(curves[METRIC["length"]]).all()


def test_a_band_is_that_of_one_more_run():
    made, values = signs.band(HEALTHY)[:, METRIC["reward"]], np.array(HEALTHY)[:, METRIC["reward"]]
    np.testing.assert_allclose(made, [values.mean(axis=0), np.full(60, 0.005 * np.sqrt(1.1))])  # noise below the floor
    wide = signs.band([curves * (1 + i) for i, curves in enumerate(HEALTHY)])[1, METRIC["reward"], 59]
    assert wide == pytest.approx(np.std(range(1, 11), ddof=1) * np.sqrt(1.1) * values[0, 59], rel=0.01)


def test_a_sign_is_outside_for_three_steps_on_one_side():
    made, limit = signs.band(HEALTHY), signs.WIDTH * 0.005

    def found(jump) -> dict:
        run = signs.curves(rows_of(reward=lambda t: 0.01 * t, kl=lambda t: 0.01))
        run[METRIC["reward"]] += [9 * limit * jump(t) for t in range(1, 61)]
        return signs.signs(run, made)

    assert found(lambda t: 0) == {} == found(lambda t: t in (7, 8)) == found(lambda t: (-1) ** t)
    assert found(lambda t: t >= 7) == {"reward": (7, 1)} and found(lambda t: -(t >= 7)) == {"reward": (7, -1)}


# The runs


def test_patches_have_other_seeds_than_the_band():
    runs = clinic.runs_of(clinic.Config())
    healthy = {run.seed for run in runs if not run.patch}
    assert healthy == set(range(15)) and len(runs) == 15 + 5 * len(PATCHES) == len(set(runs))
    assert {run.seed for run in runs if run.patch} == set(range(10, 15))


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Results of made-up runs: with kl_sign the KL is ten times as large, all others are healthy."""
    runs = []
    for run in clinic.runs_of(clinic.Config()):
        kl = 0.1 if run.patch == "kl_sign" else 0.01
        rows = rows_of(noise=run.seed, reward=lambda t: 0.01 * t, kl=lambda t, kl=kl: kl)
        outcome = {"rows": rows, "ended": "", "accuracy": 0.9 + 0.001 * run.seed, "found by": {}}
        runs.append({"patch": run.patch, "seed": run.seed, "steps": 60} | outcome)
    monkeypatch.setattr(signs, "RESULTS", tmp_path / "results.json")
    data = clinic.summary(runs)
    signs.RESULTS.write_text(json.dumps(data), "utf-8")
    signs.results.cache_clear()
    yield data
    signs.results.cache_clear()


def test_the_summary_of_made_up_runs(published):
    patches = published["patches"]
    assert patches["kl_sign"]["signs"] == {"kl": [1, 1, 5]} and [*published["signatures"]] == ["kl_sign"]
    assert patches["kl_sign"]["taken for"] == ["kl_sign"] * 5 and patches["cut"]["taken for"] == [""] * 5
    assert not any(patch["signs"] or patch["outside"] for name, patch in patches.items() if name != "kl_sign")
    texts = clinic.tables(published)
    assert "| ↑1 |" in texts["signs"] and "no metric" in texts["kinds"] and "5 of 5" in texts["alarms"]


def test_the_page_shows_what_is_committed():
    page, data = clinic.PAGE.read_text("utf-8"), json.loads(signs.RESULTS.read_text("utf-8"))
    assert into_page(page, clinic.tables(data)) == page, "run python lessons/experiments/clinic.py --publish"
    words = re.findall(r"[^\s|]*\w[^\s|]*", page)
    assert len(words) <= 2000 and all(f"({name}.diff)" in page for name in PATCHES)
    pictures = re.findall(r"!\[(.*) of (.*)\]\((.*)\)", page)
    assert all({*metrics.split(", ")} <= {*signs.FLOORS} for metrics, _, _ in pictures)
    assert {file for *_, file in pictures} == {f"figures/{path.name}" for path in signs.HERE.glob("figures/*")}
    assert max(path.stat().st_size for path in signs.HERE.glob("figures/*")) < 40_000
    bugs = {name for name in data["signatures"] if name in BUGS}
    right = sum(patch["taken for"].count(name) for name, patch in data["patches"].items() if name in bugs)
    accused = [other for name, patch in data["patches"].items() if name not in BUGS for other in patch["taken for"]]
    assert right >= 0.8 * 5 * len(bugs) and not BUGS & {*accused}
    assert np.mean([data["patches"][name]["outside"] for name in PATCHES if name not in BUGS]) < 1 / 20


# The command


def log_of_ours(folder, **settings):
    """A run's folder with the KL of kl_sign, and the settings of grpo.py but for those given."""
    rows = rows_of(20, noise=77, reward=lambda t: 0.01 * t, kl=lambda t: 0.1)
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    default = vars(command.grpo.Config()) | {"script": "grpo"} | settings
    (folder / "config.json").write_text(json.dumps(default), "utf-8")
    return folder


def test_what_the_command_says_of_a_run_of_ours(published, tmp_path, capsys):
    command.main(command.Config(str(log_of_ours(tmp_path / "run"))))
    text = capsys.readouterr().out
    assert "kl                       leaves the band at step 1, above" in text
    assert re.search(r"looks like lessons/clinic/kl_sign.diff \((0.9\d|1.00) of 1\)\n    The loss is minus", text)
    assert (tmp_path / "run/clinic.png").stat().st_size > 1000
    command.main(command.Config(str(log_of_ours(tmp_path / "other", task="expressions"))))
    text = capsys.readouterr().out
    assert "another script, task or model" in text and "the band at step" not in text


def test_what_the_command_says_of_a_log_of_trl(published, tmp_path, capsys):
    row = {"loss": 0.0, "grad_norm": 0.0, "learning_rate": 1e-6, "reward": 0.0, "reward_std": 0.0, "entropy": 0.4,
           "frac_reward_zero_std": 1.0, "completions/mean_length": 256.0, "completions/clipped_ratio": 1.0, "kl": 0.0,
           "clip_ratio/low_mean": 0.0, "clip_ratio/high_mean": 0.0, "epoch": 0.1}  # fmt: skip
    history = [row | {"step": step} for step in (1, 2, 3)] + [
        {"eval_reward": 0.1, "step": 3},
        {"train_loss": 0, "step": 3},
    ]
    for name, data in (("trainer_state.json", {"log_history": history}), ("history.json", history)):
        (tmp_path / name).write_text(json.dumps(data), "utf-8")
        command.main(command.Config(str(tmp_path / name)))
        text = capsys.readouterr().out
        assert "every group is silent in the first step: looks like verifier_strict, cut" in text
        assert "half of the first completions, or more, are cut: looks like cut" in text
        assert "the KL is 0 at every step" in text and "not logged: silent_right, silent_wrong" in text


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "not json", '[{"reward": 1}]', '{"log_history": 3}', '{"log_history": [3]}']
)
def test_bad_input_is_one_line(text, tmp_path):
    (tmp_path / "log.json").write_text(text, "utf-8")
    with pytest.raises(UsageError, match="log.json.*; give a run"):
        command.main(command.Config(str(tmp_path / "log.json")))


def test_a_run_that_does_not_exist_is_one_line():
    done = subprocess.run([sys.executable, "-m", "lessons.clinic", "nowhere"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: 'nowhere'") and len(done.stderr.splitlines()) == 1


# Long


@pytest.mark.slow
@pytest.mark.parametrize("name", PATCHES)
def test_a_broken_run_makes_twenty_steps(name):
    run = clinic.train(clinic.Run(name, seed=10, steps=20))
    assert len(run["rows"]) == 20 or "diverged" in run["ended"]
