"""The clinic: every patch applies and changes little, bands and signs by hand, and what the command
says of a log.

Broken on purpose: a patch that does not apply or changes too much; bands without the mean's own
error; signs of two steps, on either side, or of too few seeds; unpaired seeds.
"""

import json
import re
import subprocess

import numpy as np
import pytest
from test_clinic_logs import series

from lessons.clinic import __main__ as command
from lessons.clinic import make, signs

PATCHES = signs.patches()


def test_every_patch_applies_and_changes_little():
    for name in PATCHES:
        command = ["git", "apply", "--check", "--numstat", f"lessons/clinic/{name}.diff"]
        end = subprocess.run(command, cwd=make.ROOT, capture_output=True, text=True)
        assert end.returncode == 0, end.stderr
        for line in end.stdout.splitlines():
            added, removed, _ = line.split()
            assert 1 <= int(added) + int(removed) <= 10, name


# Bands and signs


def made_up(seed: int, kl: float = 0.01, steps: int = 60) -> list[dict]:
    """Rows of a run whose reward rises while its KL stays."""
    return series(steps, noise=0.001, seed=seed, reward=(0.01, 0.01 * steps), kl=(kl, kl))


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
    made = signs.band(HEALTHY)

    def found(jump) -> dict:
        run = signs.curves(made_up(0, steps=99))  # what follows step 60 is not judged
        run[METRIC["reward"]] += [9 * signs.WIDTH * 0.005 * jump(t) for t in range(1, 100)]
        return signs.signs(run, made)

    for jump in (lambda t: 0, lambda t: t in (7, 8), lambda t: (-1) ** t, lambda t: t > 58):
        assert found(jump) == {}
    assert found(lambda t: t >= 7) == {"reward": (7, "high")}
    assert found(lambda t: -(t >= 7)) == {"reward": (7, "low")}


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
    text = "kl_sign (KL): accuracy +0.0, reward +0.0\n    kl high 1\n"
    assert text in make.table(published)


def test_signs_that_all_seeds_share():
    seeds = [{"kl": (t, "high"), "loss": (1, side)} for t, side in ((9, "low"), (3, "high"))]
    assert make.in_all(seeds) == [(9, "high", "kl")]


def test_the_page_shows_what_is_committed():
    data = json.loads(signs.RESULTS.read_text("utf-8"))
    assert data["settings"] == json.loads(json.dumps(make.ACTING))
    page = (signs.HERE / "README.md").read_text("utf-8")
    assert all(f"({name}.diff)" in page for name in PATCHES)
    pictures = set(re.findall(r"!\[.* of .*\]\(figures/(.*)\)", page))
    assert pictures == {path.name for path in signs.HERE.glob("figures/*")}


def test_what_the_command_says_of_a_run_of_ours(published, tmp_path, capsys):
    """The band judges runs whose settings are its own, but for those that do not act on curves."""
    rows = made_up(77, kl=0.1, steps=20)  # the KL of kl_sign
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")

    def said(setting: str = '"steps": 20', **options) -> str:
        (tmp_path / "config.json").write_text(f'{{"script": "grpo", {setting}}}', "utf-8")
        command.main(command.Config(str(tmp_path), **options))
        return capsys.readouterr().out

    text = said()
    assert re.search(r"kl  +leaves the band at step 1: high", text)
    assert "look first at: KL\nlike kl_sign.diff: The loss is minus the objective" in text
    assert (tmp_path / "clinic.png").stat().st_size > 1000
    assert "look first at: KL\nsee" in said(without="kl_sign")
    verdict = json.loads(said(json=True))
    assert verdict["class"] == "KL" and verdict["patch"] == "kl_sign"
    text = said('"levels": [1]')
    assert "not the band's: levels [1]; judged by the rules" in text and "band at" not in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", *signs.patches()])
def test_a_broken_run_makes_twenty_steps(name):
    run = make.train(make.Run(name, seed=10, steps=20))
    assert len(run["rows"]) == 20
    assert "update_norm" in run["rows"][0]
