"""Logs as they come: other spacings, types, names and programs; what the rules say of each kind of
trouble, and that they leave healthy runs alone.

Broken on purpose: a log of another spacing, name, type or program; a healthy log accused; a
consequence named beside its cause.
"""

import json

import numpy as np
import pytest

from lessons.clinic import __main__ as command
from lessons.clinic import logs, rules


def series(n: int = 40, noise: float = 0.01, seed: int = 3, **metrics) -> list[dict]:
    """Rows of a log. A metric is a number, or a pair that it goes between, with noise."""
    rng, rows = np.random.default_rng(seed), []
    for i, t in enumerate(np.linspace(0, 1, n), 1):
        rows.append({"step": i})
        for name, value in metrics.items():
            if isinstance(value, tuple):
                value = value[0] + (value[1] - value[0]) * t + noise * rng.normal()
            rows[-1][name] = value
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


@pytest.mark.parametrize("spacing", (1, 25))  # D1, D6
def test_any_spacing_numbers_in_texts_and_a_file_that_is_still_being_written(
    spacing, tmp_path, capsys
):
    rows = [{"step": f"{spacing * i}.0", "reward": f"{i / 90:.3f}"} for i in range(1, 82)]
    path = write(tmp_path / "run.jsonl", rows)
    path.write_text(path.read_text("utf-8")[:-9], "utf-8")
    text = said(path, capsys)
    assert "1 of 81 lines are not whole JSON: left out" in text  # D14
    assert f"80 rows, steps {spacing} to {80 * spacing}" in text
    assert ("a mean over" in text) == (spacing > 1) and "nothing here looks like a bug" in text


@pytest.mark.parametrize("scale, shift", ((1, 0), (0.004, 0), (300, -100)))  # D3
def test_trends_of_any_scale(scale, shift):
    times, noise = np.linspace(0, 1, 60), 0.02 * np.random.default_rng(3).normal(size=60)
    curves = {
        "rises": times,
        "falls": -times,
        "flat": 9 * noise,
        "rises and then falls": np.sin(3 * times),
    }
    for name, curve in curves.items():
        assert rules.trend(shift + scale * (curve + noise)) == name
    assert rules.trend(times[:9]) == "too few rows" != rules.trend(times[:10])


CASES = (
    ({"reward": FLAT, "loss": np.nan, "grad_norm": 0.0}, "numerics", "loss: not a number from"),
    ({"reward": "-inf"}, "numerics", "reward: not a number from step 1"),
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


def test_the_log_of_a_folder(tmp_path, capsys):  # D4
    def folder(name: str, file: str, log: str, n: int):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text('{"dtype": "bfloat16"}', "utf-8")  # a model's
        (tmp_path / name / file).write_text(json.dumps({log: series(n, reward=UP, kl=0.4)}))

    folder("checkpoint-90", "trainer_state.json", "log_history", 12)
    folder("checkpoint-1000", "trainer_state.json", "log_history", 33)
    folder("scaled/checkpoint", "../results.json", "log", 14)
    text = said(tmp_path, capsys)
    assert "33 rows" in text and "not the band's: script unknown;" in text
    assert "look first at: KL" in text and ".diff" not in text  # none was compared
    for path in ("scaled", "scaled/results.json", "scaled/checkpoint"):
        assert "14 rows" in said(tmp_path / path, capsys)


def test_a_log_of_something_else_is_one_line(tmp_path):  # D10
    path = write(tmp_path / "log.jsonl", [{"rewards/chosen": 1}, "text"])
    with pytest.raises(SystemExit, match="has a reward; it logs rewards/chosen, step$"):
        logs.load(str(path))


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


def test_where_two_runs_part(tmp_path, capsys):
    rows, other = (series(20, reward=UP, loss=0.1) for _ in range(2))

    def compared() -> str:
        one, two = write(tmp_path / "a.jsonl", rows), write(tmp_path / "b.jsonl", other)
        return said(one, capsys, against=str(two))

    assert "identical in all 20 steps" in compared()
    other[13]["loss"] = 1.1
    assert "identical before step 14; then loss (0.1 against 1.1)\n" in compared()
    other[12] |= {"loss": 2, "reward": 9}
    assert "against 9), loss (0.1 against 2)\nwhat comes before the loss is sampled" in compared()
