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

PATCHES = signs.patches()
BUGS = {name for name, patch in PATCHES.items() if "Fix" in patch}


@pytest.mark.parametrize("name", PATCHES)
def test_a_patch_has_its_header_and_applies_to_the_tree(name, tmp_path):
    patch = PATCHES[name]
    fields = {"Symptom", "Threads", "Mathematics", "Fix"} if name in BUGS else {"Alarm", "Harmless"}
    assert patch.keys() == fields | {"patch"} and all(patch.values())
    for thread in patch.get("Threads", "a/b#1").split(", "):
        assert re.fullmatch(r"[\w-]+/[\w.-]+#\d+", thread)
    for mark in (r"^-[^-]", r"^\+[^+]"):
        assert len(re.findall(mark, patch["patch"], re.MULTILINE)) <= 5
    clinic.broken_copy(tmp_path, name)
    for file in re.findall(r"^\+\+\+ b/(.*)", patch["patch"], re.MULTILINE):
        text = (tmp_path / file).read_text("utf-8")
        assert text != (clinic.ROOT / file).read_text("utf-8")
        compile(text, file, "exec")


# Bands and signs


def rows_of(steps: int = 60, noise: int = 0, **metrics) -> list[dict]:
    """Rows whose metrics are functions of the step, plus the same small noise for all."""
    rng, rows = np.random.default_rng(noise), []
    for t in range(1, steps + 1):
        rows.append({"step": t, **{m: f(t) + 0.001 * rng.normal() for m, f in metrics.items()}})
    return rows


def made_up(noise: int, kl: float = 0.01, steps: int = 60) -> list[dict]:
    """Rows of a run whose reward rises while its KL stays."""
    return rows_of(steps, noise, reward=lambda t: 0.01 * t, kl=lambda t: kl)


HEALTHY = [signs.curves(made_up(seed)) for seed in range(10)]
METRIC = {name: i for i, name in enumerate(signs.FLOORS)}


def test_a_curve_is_a_running_mean_of_what_is_there():
    rows = [{"step": 2, "reward": 1.0}, {"step": 4, "reward": None}]
    curves = signs.curves([*rows, {"step": 6, "reward": 3.0, "kl": 0.1}])
    np.testing.assert_allclose(curves[METRIC["reward"], :6], [np.nan, 1, 1, 1, 1, 2])
    assert np.isnan(curves[:, 6:]).all() and np.isnan(curves[METRIC["kl"], :5]).all()
    assert curves[METRIC["kl"], 5] == pytest.approx(np.log10(0.1 + 1e-5))


def test_a_band_is_that_of_one_more_run():
    made, values = signs.band(HEALTHY)[:, METRIC["reward"]], np.array(HEALTHY)[:, METRIC["reward"]]
    floor = np.full(60, 0.005 * np.sqrt(1.1))  # the noise is below it
    np.testing.assert_allclose(made, [values.mean(axis=0), floor])


def test_a_sign_is_outside_for_three_steps_on_one_side():
    made, limit = signs.band(HEALTHY), signs.WIDTH * 0.005

    def found(jump) -> dict:
        run = signs.curves(made_up(0))
        run[METRIC["reward"]] += [9 * limit * jump(t) for t in range(1, 61)]
        return signs.signs(run, made)

    assert found(lambda t: 0) == {} == found(lambda t: t in (7, 8)) == found(lambda t: (-1) ** t)
    assert found(lambda t: t >= 7) == {"reward": (7, 1)}
    assert found(lambda t: -(t >= 7)) == {"reward": (7, -1)}
    run = signs.curves(made_up(0, kl=0.1))
    assert signs.diagnosis(run, made, {"opposite": -signs.signature(run, made)}) == []


@pytest.fixture
def published(tmp_path, monkeypatch):
    """The results of made-up runs: the KL is ten times as large with kl_sign, and in three seeds
    with cut; tiled costs accuracy."""
    runs = []
    for run in clinic.runs_of(5):
        high = run.patch == "kl_sign" or (run.patch == "cut" and run.seed < 13)
        rows = made_up(run.seed, 0.1 if high else 0.01)
        accuracy = 0.9 + 0.001 * run.seed - 0.1 * (run.patch == "tiled")
        runs.append(vars(run) | {"rows": rows, "accuracy": accuracy})
    monkeypatch.setattr(signs, "RESULTS", tmp_path / "results.json")
    data = clinic.summary(runs)
    signs.RESULTS.write_text(json.dumps(data), "utf-8")
    signs.results.cache_clear()
    yield data
    signs.results.cache_clear()


def test_the_summary_of_made_up_runs(published):
    patches = published["patches"]
    assert [*published["signatures"]] == ["kl_sign"]
    assert patches["kl_sign"]["signs"] == {"kl": [1, 1, 5]} and not patches["cut"]["signs"]
    assert patches["kl_sign"]["taken for"] == ["kl_sign"] * 5
    assert patches["tiled"]["taken for"] == [""] * 5
    assert {name for name, patch in patches.items() if patch["outside"]} == {"cut", "kl_sign"}
    assert patches["tiled"]["accuracy"]["difference"] == pytest.approx(-0.1)
    texts = clinic.tables(published)
    assert "| [kl_sign](kl_sign.diff) | ↑1 |" in texts["signs"] and "5 of 5" in texts["alarms"]


def test_the_page_shows_what_is_committed():
    page, data = clinic.PAGE.read_text("utf-8"), json.loads(signs.RESULTS.read_text("utf-8"))
    shown = into_page(page, clinic.tables(data))
    assert shown == page, "run python lessons/experiments/clinic.py --publish"
    assert all(f"({name}.diff)" in page for name in PATCHES)
    pictures = set(re.findall(r"!\[.* of .*\]\(figures/(.*)\)", page))
    assert pictures == {path.name for path in signs.HERE.glob("figures/*")}


def test_what_the_command_says_of_a_run_of_ours(published, tmp_path, capsys):
    rows, folder = made_up(77, kl=0.1, steps=20), tmp_path / "grpo-0"  # the KL of kl_sign
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")

    def said(task: str) -> str:
        settings = {"model": "base", "task": task, "num_minibatches": 1}
        (folder / "config.json").write_text(json.dumps(settings), "utf-8")
        command.main(command.Config(str(folder)))
        return capsys.readouterr().out

    text = said("arithmetic")
    assert "this run has num_minibatches 1\n" in text
    assert re.search(r"kl  +leaves the band at step 1, above", text)
    assert re.search(r"looks like lessons/clinic/kl_sign.diff \((0.9\d|1.00) of 1\)\n +The", text)
    assert (folder / "clinic.png").stat().st_size > 1000
    text = said("expressions")
    assert "another script, task or model" in text and "the band at step" not in text


def test_what_the_command_says_of_a_log_of_trl(published, tmp_path, capsys):
    row = {"reward": 0.0, "kl": 0.0, "frac_reward_zero_std": 1.0, "completions/clipped_ratio": 1.0}
    history = [*(row | {"step": step} for step in (1, 2, 3)), {"eval_reward": 0.1, "step": 3}]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}), "utf-8")
    command.main(command.Config(str(tmp_path)))
    text = capsys.readouterr().out
    assert "every group is silent in the first step: looks like verifier_strict, cut" in text
    assert "half of the first completions, or more, are cut: looks like cut" in text
    assert "the KL is 0 at every step" in text and "not logged: silent_right, " in text


def test_a_path_without_a_log_is_one_line(tmp_path):
    (tmp_path / "log.json").write_text("[]", "utf-8")
    for path in (tmp_path / "log.json", tmp_path, tmp_path / "nowhere"):
        with pytest.raises(SystemExit, match=path.name):
            command.main(command.Config(str(path)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", *PATCHES])
def test_a_broken_run_makes_twenty_steps(name):
    run = clinic.train(clinic.Run(name, seed=10, steps=20))
    assert len(run["rows"]) == 20
    assert "update_norm" in run["rows"][0]
