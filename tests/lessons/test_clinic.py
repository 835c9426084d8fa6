"""The clinic: every patch applies and changes little, bands and signs by hand, and what the command
says of a log.

Broken on purpose: a patch that does not apply or changes too much; bands without the mean's own
error; signs of two steps, on either side, or of too few seeds; unpaired seeds.
"""

import json
import re

import numpy as np
import pytest

from lessons.clinic import __main__ as command
from lessons.clinic import make, signs

PATCHES = signs.patches()
CLASSES = "scoring sampler verifier grouping advantage loss normaliser mask KL optimizer data"
BUGS = {name for name, patch in PATCHES.items() if "Fix" in patch}


@pytest.mark.parametrize("name", PATCHES)
def test_a_patch_has_its_header_and_applies_to_the_tree(name, tmp_path):
    patch = PATCHES[name]
    fields = {"Symptom", "Class", "Threads", "Mathematics", "Fix"}
    fields = fields if name in BUGS else {"Alarm", "Harmless"}
    assert patch.keys() == fields and all(patch.values())
    assert patch.get("Class", "KL") in CLASSES.split()
    for thread in patch.get("Threads", "a/b#1").split(", "):
        assert re.fullmatch(r"[\w-]+/[\w.-]+#\d+", thread)
    changes = (signs.HERE / f"{name}.diff").read_text("utf-8").partition("diff --git")[2]
    for mark in (r"^-[^-]", r"^\+[^+]"):
        assert len(re.findall(mark, changes, re.MULTILINE)) <= 5
    make.broken_copy(tmp_path, name)
    for file in re.findall(r"^\+\+\+ b/(.*)", changes, re.MULTILINE):
        text = (tmp_path / file).read_text("utf-8")
        assert text != (make.ROOT / file).read_text("utf-8")
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
    rows = [{"reward": 1.0}, *[{"reward": None}] * 5, {"reward": 3.0, "kl": 0.1}, {"reward": 2.0}]
    curves = signs.curves(rows)
    np.testing.assert_allclose(curves[METRIC["reward"]], [1, 1, 1, 1, 1, np.nan, 3, 2.5])
    assert np.isnan(curves[METRIC["kl"], :6]).all()
    assert curves[METRIC["kl"], 6] == pytest.approx(np.log10(0.1 + 1e-5))


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
    assert found(lambda t: t >= 7) == {"reward": (7, "high")}
    assert found(lambda t: -(t >= 7)) == {"reward": (7, "low")}
    for n in (1, 2):  # too few steps for a sign
        assert signs.signs(signs.curves(made_up(0, kl=9.0)[:n]), made) == {}
    assert signs.signs(signs.curves(made_up(0, kl=9.0, steps=99)), made) == {"kl": (1, "high")}


@pytest.fixture
def published(tmp_path, monkeypatch):
    """The results of made-up runs: the KL is ten times as large with kl_sign, and in three seeds
    with cut; tiled costs accuracy."""
    runs = []
    for run in make.runs_of(5):
        high = run.patch == "kl_sign" or (run.patch == "cut" and run.seed < 13)
        rows = made_up(run.seed, 0.1 if high else 0.01)
        accuracy = 0.9 + 0.001 * run.seed - 0.1 * (run.patch == "tiled")
        runs.append(vars(run) | {"rows": rows, "accuracy": accuracy})
    monkeypatch.setattr(signs, "RESULTS", tmp_path / "results.json")
    data = make.summary(runs)
    signs.RESULTS.write_text(json.dumps(data), "utf-8")
    signs.results.cache_clear()
    yield data
    signs.results.cache_clear()


def test_the_summary_of_made_up_runs(published):
    patches = published["patches"]
    assert {name for name, patch in patches.items() if patch["signs"]} == {"kl_sign"}
    assert patches["kl_sign"]["signs"] == [[1, "high", "kl"]] and published["alarms"] == [0] * 5
    assert patches["tiled"]["accuracy"]["difference"] == pytest.approx(-0.1)
    table = make.table(published)
    assert "kl_sign (KL): accuracy +0.0, reward +0.0\n    kl high 1\n" in table
    assert "tiled (grouping): accuracy −10.0, reward +0.0\n    no metric" in table


def test_signs_that_all_seeds_share():
    seeds = [{"kl": (t, "high"), "loss": (1, "low")} for t in (9, 3, 7)]
    assert make.in_all(seeds) == [(1, "low", "loss"), (9, "high", "kl")]
    assert make.in_all([*seeds, {"kl": (2, "high"), "loss": (2, "high")}]) == [(9, "high", "kl")]


def test_the_page_shows_what_is_committed():
    data = json.loads(signs.RESULTS.read_text("utf-8"))
    assert data["settings"] == json.loads(json.dumps(make.ACTING))
    page = (signs.HERE / "README.md").read_text("utf-8")
    assert all(f"({name}.diff)" in page for name in PATCHES)
    pictures = set(re.findall(r"!\[.* of .*\]\(figures/(.*)\)", page))
    assert pictures == {path.name for path in signs.HERE.glob("figures/*")}


def test_a_patch_is_named_by_its_class_and_its_own_run(published):
    def named(kl: float, kind: str = "KL", **rest) -> str:
        return signs.named(signs.curves(made_up(77, kl)), kind, **rest)

    assert named(0.1) == "kl_sign" == signs.named(signs.curves(made_up(77, 0.1, 9)), "KL")
    assert named(0.1, "sampler") == named(0.1, without="kl_sign") == named(0.02) == ""
    assert named(1e9) == "kl_sign"  # both are as far outside as one counts


def test_what_the_command_says_of_a_run_of_ours(published, tmp_path, capsys):
    rows, folder = made_up(77, kl=0.1, steps=20), tmp_path / "grpo-0"  # the KL of kl_sign
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    (folder / "config.json").write_text('{"script": "grpo", "model": "base"}', "utf-8")

    def said(**settings) -> str:
        command.main(command.Config(str(folder), **settings))
        return capsys.readouterr().out

    text = said()
    assert re.search(r"kl  +leaves the band at step 1: high", text)
    assert "look first at: KL\nlike kl_sign.diff: The loss is minus the objective" in text
    assert (folder / "clinic.png").stat().st_size > 1000
    assert "look first at: KL\nsee" in said(without="kl_sign")
    found = json.loads(said(json=True))
    assert found["class"] == "KL" and found["patch"] == "kl_sign"
    (folder / "config.json").write_text('{"script": "grpo", "model": "other"}', "utf-8")
    assert "model other; judged" in said() and "look first at: KL\nsee" in said()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", *PATCHES])
def test_a_broken_run_makes_twenty_steps(name):
    run = make.train(make.Run(name, seed=10, steps=20))
    assert len(run["rows"]) == 20
    assert "update_norm" in run["rows"][0]
