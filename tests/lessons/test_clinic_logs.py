"""Logs as they come: other spacings, types, names and programs; what the rules say of each kind of
trouble, and that they leave healthy runs alone.

Broken on purpose: a log of another spacing, name, type or program; a healthy log accused; a
consequence named beside its cause.
"""

import json
from functools import partial

import numpy as np
import pytest

from lessons.clinic import __main__ as command
from lessons.clinic import logs, rules, signs


def line(start: float, end: float, t: float) -> float:
    return start + (end - start) * t


def series(n: int = 40, noise: float = 0.01, **metrics) -> list[dict]:
    """Rows of a log. A metric is a number, or a pair that it goes between, with noise."""
    rng, rows = np.random.default_rng(3), []
    for i, t in enumerate(np.linspace(0, 1, n), 1):
        rows.append({"step": i})
        for name, value in metrics.items():
            noisy = isinstance(value, tuple) and line(*value, t) + noise * rng.normal()
            rows[-1][name] = noisy or value
    return rows


UP, FLAT = (0.2, 0.8), (0.4, 0.4)
QUIET = {"reward": 0.0, "grad_norm": 0.0, "kl": 0.0, "loss": 0.0}
MISMATCH = "sampling/sampling_logp_difference/mean"
SHARE = "frac_reward_zero_std"


def write(path, rows: list[dict]):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def said(path, capsys, **settings) -> str:
    command.main(command.Config(str(path), **settings))
    return capsys.readouterr().out


@pytest.mark.parametrize("spacing", (1, 25, 750))  # D1, D6
def test_any_spacing_and_numbers_in_texts(spacing, tmp_path, capsys):
    rows = [{"step": f"{spacing * i}.0", "reward": f"{i / 90:.3f}"} for i in range(1, 81)]
    text = said(write(tmp_path / "run.jsonl", rows), capsys)
    assert f"80 rows, steps {spacing} to {80 * spacing}" in text
    assert ("a mean over" in text) == (spacing > 1) and "nothing here looks like a bug" in text
    assert (tmp_path / "clinic.png").stat().st_size > 1000
    curve, none = signs.curves([logs.ours(row) for row in rows]), signs.results()["band"] * np.nan
    (drawn,) = signs.draw({"run": curve}, ["reward"], none).axes[0].lines
    assert len(drawn.get_xdata()) == 80 and drawn.get_ydata()[-1] == pytest.approx(
        78 / 90, abs=1e-3
    )


@pytest.mark.parametrize("name", ("kl", "grad_norm", "loss"))  # D2
@pytest.mark.parametrize("value", (np.nan, -np.inf, "nan"))
def test_what_is_no_number_comes_first_with_its_step(name, value):
    rows = [logs.ours(row) for row in series(16, reward=UP) + [{"step": 17, name: value}]]
    assert [*rules.findings(rows, {})] == [("numerics", f"{name}: not a number from step 17")]


@pytest.mark.parametrize("scale, shift", ((1, 0), (0.004, 0), (300, -100)))  # D3
def test_trends_of_any_scale(scale, shift):
    def of(reward, n=60, noise=0.02) -> str:
        values = [row["reward"] for row in series(n, noise, reward=reward)]
        return rules.trend(shift + scale * np.array(values))

    assert of(UP) == "rises" and of((0.9, 0.4)) == "falls"
    assert of(FLAT) == "flat" == of(FLAT, noise=0.2)
    assert of(UP, n=9) == "too few rows" != of(UP, n=10)
    hill = np.sin(np.linspace(0, 3, 60)) + 0.02 * np.random.default_rng(0).normal(size=60)
    assert rules.trend(shift + scale * hill) == "rises and then falls"


CASES = (
    ({"reward": FLAT, "grad_norm": 0.0, SHARE: 0.25}, "loss", "the gradient is 0"),  # D2
    ({"reward": FLAT, "grad_norm": 0.0, "reward_std": 0.3}, "loss", "the gradient is 0"),
    ({"reward": UP, "grad_norm": 0.02, SHARE: 0.25}, "", ""),
    ({"reward": (0.98, 0.98), "kl": 1e-4, "noise": 0.003}, "", "at the top"),  # D3
    ({"reward": UP, "n": 6}, "", "too few rows"),
    ({"reward": UP, "kl": (0.4, 0.42)}, "KL", "the reference is not the policy"),  # D5
    ({"reward": UP, "kl": (0.07, 1)}, "", ""),
    ({"reward": UP, "kl": (0.001, 0.0012), "noise": 1e-5}, "", "move along?"),
    (QUIET | {SHARE: (0.97, 0.97), "noise": 0.002}, "verifier", "accepts nothing"),  # D8, D9
    (QUIET | {"reward_std": 0.0}, "verifier", "accepts nothing"),  # D7
    (QUIET | {SHARE: 0.99, "clipped_completions_ratio": 0.9}, "sampler", "completions are cut"),
    (QUIET | {SHARE: 1, "reward": 1.0}, "verifier", "all are right"),
    ({"reward": UP, MISMATCH: (0.03, 0.03)}, "", ""),  # D11
    ({"reward": UP, MISMATCH: (0.2, 0.2)}, "scoring", "before the first update"),
    ({"reward": UP, MISMATCH: (0.004, 0.3), "noise": 0.001}, "sampler", "more and more"),
    ({"reward": UP, "entropy": (0.3, 0.7)}, "", ""),  # D12
    ({"reward": FLAT, "entropy": (0.3, 0.7)}, "optimizer", "garbage"),
    ({"reward": UP, "loss": (-0.4, -0.4), "sigma": 0.4}, "advantage", "negative advantages"),
    ({"reward": UP, "held_out": 0.25}, "data", "held-out"),
)


@pytest.mark.parametrize("metrics, kind, sign", CASES)
def test_one_cause_is_named(metrics, kind, sign):
    rows = [logs.ours(row) for row in series(**metrics)]
    seen = [*rules.findings(rows, {})]
    assert [name for name, _ in seen if name] == ([kind] if kind else [])
    assert sign in " ".join(text for _, text in seen) and (sign or not seen)


def test_sides_and_steps_of_the_band():
    holds = partial(rules.holds, rows=[], left={"kl": (7, "high")})
    assert holds("high kl <= 7") and not holds("high kl <= 6") and not holds("low kl <= 60")
    assert holds("not low kl <= 60") and not holds("high loss <= 60")


def test_the_log_of_a_folder(tmp_path, capsys):  # D4
    old, new, ours = (tmp_path / name for name in ("checkpoint-90", "checkpoint-1000", "scaled"))
    for folder, n in ((old, 12), (new, 33), (ours / "checkpoint", 14)):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text('{"dtype": "bfloat16"}', "utf-8")  # the model's
        log = series(n, reward=UP, kl=0.4) + [{"step": n, "eval_reward": 0.3}]
        file, name = folder / "trainer_state.json", "log_history"
        if n == 14:
            file, name = ours / "results.json", "log"
        file.write_text(json.dumps({name: log}), "utf-8")
    text = said(tmp_path, capsys)
    assert "33 rows" in text and "not the band's: script unknown;" in text
    for path in (ours, ours / "results.json", ours / "checkpoint"):
        assert "14 rows" in said(path, capsys)
    assert "look first at: KL" in text and ".diff" not in text  # none was compared


def test_a_log_of_something_else_is_one_line(tmp_path):  # D10
    for row, logged in (({"rewards/chosen": 1}, "rewards/chosen, step"), ("text", "step")):
        with pytest.raises(SystemExit, match=f"has a reward; it logs {logged}$"):
            logs.load(str(write(tmp_path / "log.jsonl", [row, row])))
    with pytest.raises(SystemExit, match="no log in .*nowhere"):
        logs.load(str(tmp_path / "nowhere"))


def test_a_file_that_is_still_being_written(tmp_path, capsys):  # D14
    path = write(tmp_path / "metrics.jsonl", series(25, reward=UP))
    path.write_text(path.read_text("utf-8")[:-17], "utf-8")
    text = said(path, capsys)
    assert "1 of 25 lines are not whole JSON: left out" in text and "24 rows" in text


def test_logs_of_other_programs(tmp_path):  # D7 and others
    def loaded(name: str, text: str) -> list[dict]:
        (tmp_path / name).write_text(text, "utf-8")
        return logs.load(str(tmp_path / name))[0]

    want = [{"step": 3, "reward": 0.5}]
    assert loaded("a.csv", 'Step,"brisk-7 - train/reward"\n3,0.5\n') == want
    assert loaded("b.csv", "_step,train/reward,train/kl\n3,0.5,\n") == want
    assert loaded("logging.jsonl", '{"reward": 0.5, "global_step/max_steps": "3/40"}') == want
    verl = {"critic/rewards/mean": 0.5, "training/global_step": 3, "response_length/mean": 9}
    assert loaded("v.jsonl", json.dumps({"step": 3, "data": verl})) == [want[0] | {"length": 9}]
    old = {"mean_completion_length": 9, "clip_ratio": 0.1, "completions/clipped_ratio": 0.4}
    assert logs.ours(old) == {"length": 9, "clipped": 0.1, "truncated": 0.4}


def test_other_settings_are_not_compared_with_the_band(tmp_path, capsys):  # D13
    write(tmp_path / "metrics.jsonl", series(60, reward=UP, update_norm=0.5))
    for name, value in (("num_minibatches", 2), ("learning_rate", 5e-4), ("levels", [1])):
        settings = {"script": "grpo", name: value}
        (tmp_path / "config.json").write_text(json.dumps(settings), "utf-8")
        text = said(tmp_path, capsys)
        assert f"not the band's: {name} {value};" in text and ".diff" not in text
        assert "leaves the band" not in text
    (tmp_path / "config.json").write_text('{"script": "grpo", "steps": 9}', "utf-8")
    assert "update_norm              leaves the band at step 1: high" in said(tmp_path, capsys)


def test_where_two_runs_part(tmp_path, capsys):
    rows, other = (series(20, reward=UP, length_right=(4, 5), loss=0.1) for _ in range(2))
    compare = partial(said, tmp_path / "a.jsonl", capsys, against=str(tmp_path / "b.jsonl"))
    write(tmp_path / "a.jsonl", rows)
    for row, name, words in (
        (13, "loss", "identical before step 14; then loss (0.1 against 1.1)"),
        (13, "length_right", "identical before step 14; then length_right ("),
        (12, "loss", "13; then loss (0.1 against 1.1)\n"),
        (12, "reward", "), loss (0.1 against 1.1)\nwhat comes before the loss is sampled"),
    ):
        other[row][name] += 1
        write(tmp_path / "b.jsonl", other)
        assert words in compare()
    write(tmp_path / "b.jsonl", rows)
    assert "identical in all 20 steps" in compare()
