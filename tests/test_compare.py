"""The comparison: its statistics by hand, its ablation against the scripts, its runs from the outside, its tables."""

import contextlib
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from algorithms import dapo, dr_grpo, grpo
from lessons.experiments import bench_speed, compare, report
from lessons.experiments.compare import Config, Job
from lessons.experiments.report import bootstrap, estimate, into_page, summary, verdict
from toy_env import UsageError
from toy_env.cli import parse

TINY = {"prompts_per_step": 4, "group_size": 4, "max_new_tokens": 24, "eval_problems": 2, "eval_every": 0}
SMALL = TINY | {"steps": 2, "device": "cpu"}


@pytest.fixture
def in_this_process(monkeypatch):
    """Runs of the comparison in this process, without curves.png; what they change is put back."""
    monkeypatch.setattr(compare, "silence", contextlib.nullcontext)
    monkeypatch.setattr("toy_env.plots.draw_curves", lambda rows, results, path, title: path.touch())
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def rows_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def batch(rows: int = 6, width: int = 9) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    lengths = torch.randint(1, width + 1, (rows, 1))
    mask = torch.arange(width) < lengths
    logps = (-torch.rand(rows, width, dtype=torch.float64) * 3).masked_fill(~mask, 0.0)
    old_logps = (logps + 0.5 * torch.randn(rows, width, dtype=torch.float64)).masked_fill(~mask, 0.0)
    advantages = torch.randn(rows, 1, dtype=torch.float64)
    return {"logps": logps, "old_logps": old_logps, "advantages": advantages, "mask": mask}


def test_the_sample_level_loss_is_grpos():
    given = batch()
    ours, theirs = (given["logps"].clone().requires_grad_() for _ in range(2))
    config = dapo.Config(clip_eps_low=0.2, clip_eps_high=0.2)
    loss = compare.sample_level_loss(dapo.policy_loss, config=config, **(given | {"logps": ours}))
    expected = grpo.policy_loss(
        **(given | {"logps": theirs}), ref_logps=given["logps"], config=grpo.Config(kl_coef=0.0)
    )
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(x, y)[0] for x, y in ((loss, ours), (expected, theirs))))


def test_a_filtered_completion_counts_in_the_sample_level_mean_with_nothing():
    given = batch()
    config = dapo.Config()
    cut = given | {"mask": given["mask"] & (torch.arange(6) != 2).unsqueeze(1)}
    without = {name: tensor[[0, 1, 3, 4, 5]] for name, tensor in given.items()}
    five = compare.sample_level_loss(dapo.policy_loss, config=config, **without)
    torch.testing.assert_close(compare.sample_level_loss(dapo.policy_loss, config=config, **cut), five * 5 / 6)


def test_the_ablation_starts_at_grpo_and_ends_at_dapo(tmp_path, in_this_process):
    """Its first row trains as grpo.py does without KL, step for step; its last row is dapo.py."""
    first, *_, last = compare.jobs_of("ablation", Config(seeds=1))
    changed = compare.ABLATION[first.arm] | {"measure_updates": True}
    assert changed.items() <= first.settings.items()
    compare.train(replace(first, settings=changed | SMALL), tmp_path)
    grpo.train(grpo.Config(kl_coef=0.0, run_dir=str(tmp_path / "grpo"), measure_updates=True, **SMALL))
    for ours, theirs in zip(rows_of(first.folder(tmp_path)), rows_of(tmp_path / "grpo")):
        assert ours["groups_by_k"] == theirs["groups_by_k"] and ours["length"] == theirs["length"]
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
        assert ours["update_norm"] == pytest.approx(theirs["update_norm"], rel=1e-3)
    assert dapo.policy_loss.__module__ == "algorithms.dapo"  # put back
    settings = {k: last.settings[k] for change in compare.ABLATION.values() for k in change}
    assert not last.sample_level and settings.pop("overlong_filtering")  # the one thing dapo.py leaves out by default
    assert all(getattr(dapo.Config(), name) == value for name, value in settings.items())


@pytest.mark.parametrize(
    ("piece", "other"), [("policy_loss", "compute_advantages"), ("compute_advantages", "policy_loss")]
)
def test_grpo_with_both_pieces_of_dr_grpo_is_dr_grpo(piece, other, tmp_path, monkeypatch, in_this_process):
    """One piece swapped by the comparison, the other here: step for step dr_grpo.py. With one alone it is not."""
    one, both = (Job("pieces", arm, 0, "grpo", SMALL, from_dr_grpo=piece) for arm in ("one", "both"))
    compare.train(one, tmp_path)
    monkeypatch.setattr(grpo, other, getattr(dr_grpo, other))
    compare.train(both, tmp_path)
    dr_grpo.train(dr_grpo.Config(run_dir=str(tmp_path / "dr_grpo"), **SMALL))
    folders = one.folder(tmp_path), both.folder(tmp_path), tmp_path / "dr_grpo"
    alone, ours, theirs = ([row["grad_norm"] for row in rows_of(folder)] for folder in folders)
    assert ours == pytest.approx(theirs, rel=1e-5) and alone != pytest.approx(theirs, rel=0.05)


def test_bootstrap_intervals_against_all_resamples():
    values = np.array([0.1, 0.4, 0.2, 0.9, 0.5])
    means = [np.mean(pick) for pick in itertools.product(values, repeat=5)]
    np.testing.assert_allclose(bootstrap(values, draws=200_000), np.percentile(means, [2.5, 97.5]), atol=0.01)
    curves = np.stack([values, values + 1], axis=1)
    np.testing.assert_allclose(np.diff(bootstrap(curves), axis=1), 1.0)


def test_seeds_without_a_value_count_nowhere_and_shift_nothing():
    """A diverged run must not pair seed 2 of one script with seed 1 of another."""
    assert estimate([None, None])["mean"] is None
    assert estimate([0.25, None, 0.75]) == {"mean": 0.5, "interval": [0.25, 0.75], "seeds": [0.25, None, 0.75]}
    run = dict.fromkeys(report.NUMBERS, 0.25) | {"learning_rate": 1e-3, "budget": 10}
    assert report.training_numbers({"A": [None, run, None]})["A"]["final"]["seeds"] == [None, 0.25, None]
    assert verdict((estimate([0.1, None, 0.3]), estimate([0.2, 0.9, 0.2]))) == "no difference seen (1 of 2 higher)"


def test_overlapping_intervals_are_no_difference():
    low, middle, high = estimate([0.1, 0.2, 0.3]), estimate([0.15, 0.25, 0.32]), estimate([0.7, 0.8, 0.9])
    assert verdict((high, low)) == "higher in 3 of 3" and verdict((low, high)) == "lower in 3 of 3"
    assert verdict((middle, low)) == "no difference seen (3 of 3 higher)"


def test_a_difference_must_be_seen_each_time():
    low, middle, high = estimate([0.1, 0.2, 0.3]), estimate([0.15, 0.25, 0.32]), estimate([0.7, 0.8, 0.9])
    assert verdict((high, low), (high, middle)) == "higher in 3 of 3 and 3 of 3"
    assert verdict((low, high), (middle, high)) == "lower in 3 of 3 and 3 of 3"
    again = "not repeated (3 of 3 and 3 of 3 higher)"
    assert verdict((high, low), (middle, low)) == verdict((middle, low), (high, low)) == again
    assert verdict((high, low), (low, high)) == "not repeated (3 of 3 and 0 of 3 higher)"
    assert verdict((low, high), (low, middle)) == "not repeated (0 of 3 and 0 of 3 higher)"
    assert verdict((middle, low), (low, middle)) == "no difference seen (3 of 3 and 0 of 3 higher)"


def test_a_run_is_summed_up_by_hand(tmp_path):
    """20 steps of 1 prompt x 10 completions, evaluated after 10 (150 drawn) and 20 (400 drawn): budget 200."""
    common = {"update_norm": 0.5, "clipped_up": 0.1, "clipped_down": 0.2, "entropy": 1.0, "length_right": None}
    common |= {"length_wrong": 4.0, "truncated": 0.0, "silent": 0.5, "seconds": 2.0}
    rows = [
        common
        | {"step": s, "rollouts": 15 * s if s <= 10 else 150 + 25 * (s - 10)}
        | {"held_out": {10: 0.6, 20: 0.8}.get(s)}
        for s in range(1, 21)
    ]
    rows[4] |= {"silent": 1.0}
    for name in ("update_norm", "clipped_up", "clipped_down"):  # no mixed group was found, nothing was updated
        del rows[4][name]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    accuracy = {"all": {"sampled": 0.3, "greedy": 0.2}}, {"all": {"sampled": 0.8, "greedy": 0.9}}
    results = {when: {"accuracy": numbers} for when, numbers in zip(("before", "after"), accuracy)}
    (tmp_path / "results.json").write_text(json.dumps(results))
    config = {"steps": 20, "prompts_per_step": 1, "group_size": 10, "num_minibatches": 4, "learning_rate": 1e-3}
    (tmp_path / "config.json").write_text(json.dumps(config | {"dynamic_sampling": True}))
    found = summary(tmp_path)
    assert found["curve"]["updates"] == [0, 40, 80] and found["curve"]["seconds"] == [0, 20, 40]
    assert found["curve"]["completions"] == [0, 150, 400] and found["budget"] == 200
    assert found["at_budget"] == pytest.approx(0.6 + 0.2 * 50 / 250)
    area = 150 * (0.3 + 0.6) / 2 + 50 * (0.6 + 0.64) / 2  # two trapezoids
    assert found["mean_accuracy"] == pytest.approx(area / 200, abs=1e-3)
    assert found["clipped"] == pytest.approx(0.3) and found["clipped_up_probability"] is None
    assert found["update_norm"] == 0.5 and found["length_right"] is None and found["length_wrong"] == 4.0
    assert found["windows"]["step"] == [3, 8, 13, 18] and found["windows"]["silent"] == pytest.approx([0.6, *[0.5] * 3])
    assert found["silent_trained_on"] == 0 and found["silent"] == pytest.approx(0.525)
    (tmp_path / "config.json").write_text(json.dumps(config | {"dynamic_sampling": False}))
    assert summary(tmp_path)["silent_trained_on"] == pytest.approx(0.525)


@pytest.mark.parametrize("processes", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_runs_are_made_once_and_go_on_where_they_stopped(processes, tmp_path, capsys, monkeypatch, in_this_process):
    """GRPO and DAPO with their figure, and the same command again; in a thread of this process, and as it is."""
    if not processes:
        monkeypatch.setattr(compare, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))
    monkeypatch.setattr(compare, "COMMON", TINY | {"eval_every": 1, "measure_updates": True})
    monkeypatch.setattr(compare, "SCRIPTS", {"GRPO": "grpo", "DAPO": "dapo"})
    out = tmp_path / "out"
    config = Config(seeds=1, steps=2, processes=1, output=str(out), device="cpu")
    compare.main(config)
    assert "DAPO" in capsys.readouterr().out
    results = json.loads((out / "results.json").read_text())
    assert set(results["shared"]) == set(compare.SCRIPTS) and results["diverged"] == []
    assert results["shared"]["DAPO"]["completions"]["mean"] > results["shared"]["GRPO"]["completions"]["mean"] == 32
    assert results["shared"]["GRPO"]["update_norm"]["mean"] > 0
    assert (out / "shared.png").read_bytes().startswith(b"\x89PNG")

    times = {path: path.stat().st_mtime_ns for path in out.glob("shared/*/*")}
    stopped = out / "shared/grpo-0/results.json"
    before = json.loads(stopped.read_text())
    stopped.unlink()  # as if stopped in its last evaluation
    compare.main(config)
    assert json.loads(stopped.read_text()) == before
    assert json.loads((out / "results.json").read_text()) == results
    assert all(path.stat().st_mtime_ns == time for path, time in times.items() if "grpo-0" not in str(path.parent.name))
    with pytest.raises(UsageError, match="steps 2, not 3; choose another --output"):
        compare.main(replace(config, steps=3))


def test_a_run_that_diverges_leaves_its_line_and_no_number(tmp_path, in_this_process):
    job = Job("shared", "GRPO", 0, "grpo", SMALL | {"learning_rate": 1e30, "warmup_steps": 0})
    assert "training has diverged" in compare.train(job, tmp_path)
    with pytest.raises(UsageError, match=r"no finished run of GRPO in .*shared; add shared to --experiments"):
        compare.load([job], tmp_path)


@pytest.mark.parametrize("experiment", report.PANELS)
def test_each_line_of_a_figure_has_dashes_and_a_marker_of_its_own(experiment, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(report, "finish", lambda figure, title, path: drawn.append(figure))
    windows = dict.fromkeys(("step", "clipped", *report.NUMBERS), [3.0, 8.0]) | {"clipped": [None, None]}
    curve = {"updates": [0, 20], "completions": [0, 1280], "seconds": [0, 5], "held_out": [0.4, 0.6]}
    run = {"curve": curve, "windows": windows, "budget": 1280}
    arms = compare.ABLATION if experiment == "ablation" else compare.SCRIPTS
    report.draw_experiment(experiment, {arm: [run, None] for arm in arms}, tmp_path / "figure.png")
    for axis, panel in zip(drawn[0].axes, report.PANELS[experiment]):
        looks = {(str(line.get_linestyle()), str(line._dash_pattern), line.get_marker()) for line in axis.lines}
        assert len(looks) == len(axis.lines) == (0 if panel[-1] == "clipped" else len(arms))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"samples": 8}, "--samples must be 64 or more, not 8"), ({"publish": True, "quick": True}, "leave out --quick")],
)
def test_bad_input_is_one_line(settings, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        compare.main(Config(output=str(tmp_path / "out"), **settings))
    assert not (tmp_path / "out").exists()


def test_an_experiment_that_does_not_exist_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["compare.py", "--experiments", "all"])
    with pytest.raises(SystemExit, match="2"):
        parse(Config, None)
    assert "ablation" in capsys.readouterr().err


@pytest.mark.parametrize(
    "path", [report.HERE / "README.md", report.HERE.parents[1] / "README.md"], ids=["own", "front"]
)
def test_the_pages_show_the_committed_numbers(path):
    """python lessons/experiments/report.py writes them."""
    assert report.pages()[path] == path.read_text()


def test_what_was_seen_twice_is_no_longer_unrepeated():
    results = json.loads(report.RESULTS.read_text())
    same = report.tables(results, results)
    assert "in 17, the second in\n17, both in 17. Of the 0 differences" in same["repeated"]  # 7, 8 and 2 in the tables
    assert "not repeated" not in "".join(same.values()) and "higher in 5 of 5 and 5 of 5" in same["verdicts"]


@pytest.mark.slow
def test_the_benchmark_times_every_part_of_our_step():
    worker = bench_speed.Worker(bench_speed.ours, "cpu", "base", 4, num_minibatches=2, eval_problems=1)
    worker.receive()
    step = worker.step()
    worker.close()
    assert set(step["parts"]) == {"sampling", "reference log-probs", "forward", "backward", "optimizer"}
    assert all(seconds > 0 for seconds in step["parts"].values()) and step["completions"] == 32


def test_a_table_without_a_place_is_an_error():
    assert into_page("a\n<!-- t -->\nold\n<!-- /t -->\nb", {"t": "new"}) == "a\n<!-- t -->\nnew\n<!-- /t -->\nb"
    with pytest.raises(UsageError, match="no place for the table 't'"):
        into_page("", {"t": "new"})
