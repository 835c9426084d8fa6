"""Logs as they come: other spacings, types, names and programs; what the rules say of each kind of
trouble, and that they leave healthy runs alone."""

import csv
import json

import numpy as np
import pytest

from lessons.clinic import __main__ as command
from lessons.clinic import logs, rules, signs


def series(n: int = 40, noise: float = 0.01, **metrics) -> list[dict]:
    """Rows of a log, a metric being a number or a function of the time from 0 to 1, plus noise."""
    rng, rows = np.random.default_rng(3), []
    for i in range(n):
        row = {"step": i + 1}
        for name, value in metrics.items():
            row[name] = value(i / (n - 1)) + noise * rng.normal() if callable(value) else value
        rows.append(row)
    return rows


def up(t: float) -> float:
    return 0.2 + 0.6 * t


def classes(rows: list[dict]) -> list[str]:
    return [kind for kind, _ in rules.findings([logs.ours(row) for row in rows], {}) if kind]


def signs_of(rows: list[dict]) -> str:
    return " / ".join(sign for _, sign in rules.findings([logs.ours(row) for row in rows], {}))


def write(path, rows: list[dict]):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def said(path, capsys, **settings) -> str:
    command.main(command.Config(str(path), **settings))
    return capsys.readouterr().out


# D1, D6: every spacing has a picture of the whole run, and numbers may be texts


@pytest.mark.parametrize("spacing", (1, 25, 750))
def test_any_spacing_and_numbers_in_texts(spacing, tmp_path, capsys):
    rows = [{"step": f"{spacing * i}.0", "reward": f"{i / 90:.3f}"} for i in range(1, 81)]
    text = said(write(tmp_path / "run.jsonl", rows), capsys)
    assert f"80 rows, steps {spacing} to {80 * spacing}" in text
    assert ("a mean over" in text) == (spacing > 1) and "nothing here looks like a bug" in text
    assert (tmp_path / "clinic.png").stat().st_size > 1000
    curve = signs.curves([logs.ours(row) for row in rows], len(rows))
    (line,) = signs.draw({"run": curve}, ["reward"]).axes[0].lines
    assert len(line.get_xdata()) == 80 and line.get_ydata()[-1] == pytest.approx(78 / 90, abs=1e-3)


# D2: numbers that are none, and a gradient of 0


@pytest.mark.parametrize("name", ("kl", "grad_norm", "loss"))
@pytest.mark.parametrize("value", (np.nan, -np.inf, "nan"))
def test_what_is_no_number_comes_first_with_its_step(name, value):
    rows = series(30, reward=up, grad_norm=0.5)
    for row in rows[16:]:
        row[name] = value
    ((kind, sign),) = rules.findings([logs.ours(row) for row in rows], {})
    assert kind == "numerics" and sign == f"{name} is not a number from step 17"


@pytest.mark.parametrize("differ", ({"frac_reward_zero_std": 0.25}, {"reward_std": 0.3}))
def test_no_gradient_although_groups_differ(differ):
    assert classes(series(reward=lambda t: 0.4, grad_norm=0.0, kl=0.0, **differ)) == ["loss"]
    assert "loss" not in classes(series(reward=up, grad_norm=0.02, **differ))


# D3: trends, measured against noise, whatever the scale


@pytest.mark.parametrize("scale, shift", ((1, 0), (0.004, 0), (300, -100)))
def test_trends_of_any_scale(scale, shift):
    def of(reward, n=60, noise=0.02) -> str:
        values = [row["reward"] for row in series(n, noise, reward=reward)]
        return rules.trend(shift + scale * np.array(values))

    assert of(up) == "rises" and of(lambda t: 0.9 - 0.5 * t) == "falls"
    assert of(lambda t: np.sin(3 * t)) == "rises and then falls"
    assert of(lambda t: 0.4) == "flat" == of(lambda t: 0.4, noise=0.2)
    assert of(up, n=9) == "too few rows" != of(up, n=10)


def test_a_reward_at_the_top_is_not_accused():
    rows = series(noise=0.003, reward=lambda t: 0.985, kl=lambda t: 0.0001)
    assert not classes(rows) and "at the top" in signs_of(rows)
    assert "too few rows" in signs_of(rows[:6]) and not classes(rows[:6])


# D4: folders


def test_the_log_of_a_folder(tmp_path, capsys):
    old, new = tmp_path / "checkpoint-90", tmp_path / "checkpoint-1000"
    for folder, n in ((old, 12), (new, 33)):
        folder.mkdir()
        (folder / "config.json").write_text('{"dtype": "bfloat16"}', "utf-8")  # the model's
        state = {"log_history": series(n, reward=up) + [{"step": n, "eval_reward": 0.3}]}
        (folder / "trainer_state.json").write_text(json.dumps(state), "utf-8")
    text = said(tmp_path, capsys)
    assert "33 rows" in text and "since the band has not: script of another program\n" in text
    ours = tmp_path / "scaled"
    (ours / "checkpoint").mkdir(parents=True)
    results = {"settings": {"algorithm": "dapo"}, "log": series(14, reward=up)}
    (ours / "results.json").write_text(json.dumps(results), "utf-8")
    for path in (ours, ours / "results.json", ours / "checkpoint"):
        assert "14 rows" in said(path, capsys)


# D5, D8, D9, D11, D12: facts of the first row, silence, mismatch, entropy


def test_a_kl_in_the_first_row_is_that_of_another_reference():
    rows = series(reward=up, kl=lambda t: 0.4 + 0.02 * t)
    assert classes(rows) == ["KL"] and "the reference is not the policy" in signs_of(rows)
    assert not classes(series(reward=up, kl=lambda t: 0.06 + t))  # an early row of a long step


def test_silence_explains_the_rest():
    quiet = {"reward": 0.0, "grad_norm": 0.0, "kl": 0.0, "loss": 0.0}
    rows = series(30, frac_reward_zero_std=lambda t: 0.97, noise=0.005, **quiet)
    assert classes(rows) == ["verifier"]
    assert classes([row | {"completions/clipped_ratio": 0.9} for row in rows]) == ["sampler"]
    ((_, sign),) = rules.findings([logs.ours(row | {"reward": 1}) for row in rows], {})
    assert "all are right" in sign
    old = [{name: x for name, x in row.items() if "frac" not in name} for row in rows]
    assert classes([row | {"reward_std": 0.0} for row in old]) == ["verifier"]


def test_another_engine_differs_a_little():
    mismatch = "sampling/sampling_logp_difference/mean"
    assert not classes(series(reward=up, **{mismatch: lambda t: 0.03}))
    assert classes(series(reward=up, **{mismatch: lambda t: 0.2})) == ["scoring"]
    assert classes(series(reward=up, **{mismatch: lambda t: 0.004 + 0.3 * t})) == ["sampler"]


def test_entropy_may_rise_with_the_reward():
    rising = lambda t: 0.3 + 0.4 * t  # noqa: E731
    assert not classes(series(reward=up, entropy=rising))
    rows = series(reward=lambda t: 0.3, entropy=rising)
    assert classes(rows) == ["optimizer"] and "garbage" in signs_of(rows)


# D7, D10, D14 and other programs


def test_old_names_are_read():
    row = {"step": 1, "reward": 0.5, "completion_length": 80.0, "reward_std": 0.0}
    assert {"length": 80.0, "silent": 1.0}.items() <= logs.ours(row).items()
    row = {"mean_completion_length": 9, "clipped_completions_ratio": 0.4, "clip_ratio": 0.1}
    assert logs.ours(row) == {"length": 9, "truncated": 0.4, "clipped": 0.1}


@pytest.mark.parametrize(
    "rows, logged",
    (
        ([{"step": 5, "loss": 2.0, "mean_token_accuracy": 0.4}], "loss, mean_token_accuracy"),
        ([{"step": 5, "rewards/chosen": 0.1}], "rewards/chosen"),
        (["text"], "nothing"),
    ),
)
def test_a_log_of_something_else_is_one_line(rows, logged, tmp_path, capsys):
    with pytest.raises(SystemExit, match=f"has a reward; it logs {logged}"):
        said(write(tmp_path / "log.jsonl", rows), capsys)
    assert not (tmp_path / "clinic.png").exists()


def test_a_file_that_is_still_being_written(tmp_path, capsys):
    path = write(tmp_path / "metrics.jsonl", series(25, reward=up))
    path.write_text(path.read_text("utf-8")[:-17], "utf-8")
    text = said(path, capsys)
    assert "not whole JSON, so left out: {" in text and "24 rows" in text


def as_csv(path, rows: list[dict]):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_logs_of_other_programs(tmp_path, capsys):
    rows = series(21, reward=up, kl=0.002)
    wandb = [{"Step": r["step"], "brisk-7 - train/reward": r["reward"]} for r in rows]
    history = [{"_step": r["step"], "train/reward": r["reward"], "train/kl": ""} for r in rows]
    swift = [{"global_step/max_steps": f"{r['step']}/21", "reward": r["reward"]} for r in rows]
    verl = []
    for row in rows:
        data = {"critic/rewards/mean": row["reward"], "actor/kl_loss": row["kl"]}
        verl.append({"step": row["step"], "data": data | {"response_length/clip_ratio": 0.8}})
    paths = as_csv(tmp_path / "a.csv", wandb), as_csv(tmp_path / "b.csv", history)
    paths += write(tmp_path / "logging.jsonl", swift), write(tmp_path / "verl.jsonl", verl)
    for path in paths:
        text = said(path, capsys)
        assert "21 rows, steps 1 to 21" in text and "reward" not in text.split("\n")[1]
    assert "half of the first completions" in text


# D13: the band's patches are not named in a run that is not the band's


def test_other_settings_are_not_compared_with_the_band(tmp_path, capsys):
    path = write(tmp_path / "metrics.jsonl", series(60, reward=up, update_norm=0.5))
    for name, value in (("num_minibatches", 2), ("learning_rate", 5e-4), ("levels", [1])):
        settings = {"script": "grpo", name: value}
        (tmp_path / "config.json").write_text(json.dumps(settings), "utf-8")
        text = said(tmp_path, capsys)
        assert f"the band has not: {name} {value}" in text and ".diff" not in text
        assert "leaves the band" not in text
    (tmp_path / "config.json").write_text('{"script": "grpo", "steps": 9}', "utf-8")
    assert "update_norm              leaves the band at step 1, above" in said(tmp_path, capsys)
    assert path.is_file()


# --against


def test_where_two_runs_part(tmp_path, capsys):
    rows = series(20, reward=up, length_right=lambda t: 4 + t, loss=0.1)
    other = [dict(row) for row in rows]
    for row in other[12:]:
        row["loss"] += 0.5
    other[13]["length_right"] += 1
    a, b = write(tmp_path / "a.jsonl", rows), write(tmp_path / "b.jsonl", other)
    text = said(a, capsys, against=str(b))
    assert "identical to step 12; then loss (0.1 against 0.6)" in text
    assert "computed from the same samples" in text
    other[12]["length_right"] += 1
    write(b, other)
    text = said(a, capsys, against=str(b))
    assert "identical to step 12; then length_right (" in text and "also: loss" in text
    assert "what is sampled" in text
    assert "identical to step 20, and no further" in said(a, capsys, against=str(a))
