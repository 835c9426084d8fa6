"""The comparison: its statistics by hand, its runs against the scripts, its program from the outside, its tables."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from algorithms import dapo, dr_grpo, grpo
from lessons.experiments import (
    bench_memory,
    bench_rollout,
    bench_speed,
    compare,
    compare_answers,
    compare_figures,
    compare_runs,
    compare_tables,
    page,
    paired,
    short_answers,
    staleness,
    update_length,
)
from lessons.experiments.compare import Config, Experiments
from lessons.experiments.compare_runs import SCRIPTS, Arm, Job, of_script, summary
from lessons.experiments.page import into_page
from lessons.experiments.pool import in_parallel, lock_folder
from lessons.experiments.staleness import averaged_as_grpo
from toy_env import RunFailed, UsageError
from toy_env.cli import check_settings, parse

TINY = {"prompts_per_step": 4, "group_size": 4, "max_new_tokens": 24, "eval_problems": 2, "eval_every": 0}
SMALL = TINY | {"measure_updates": True}
with_stats = pytest.mark.skipif(paired.stats is None, reason="pip install -e '.[stats]' for the statistics")


@pytest.fixture
def in_this_process(monkeypatch):
    """Runs of the comparison in this process, without curves.png; what they change is put back."""
    monkeypatch.setattr(compare_runs, "silence", contextlib.nullcontext)
    monkeypatch.setattr(compare, "in_parallel", lambda function, tasks, *_, **__: [function(*task) for task in tasks])
    monkeypatch.setattr("toy_env.plots.draw_curves", lambda rows, results, path, title: path.touch())
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def job(name: str, script: str, folder: Path, settings: dict = SMALL, replaced: str = "") -> Job:
    return Job(Arm(name, script, settings, replaced), 0, 2, "cpu", folder)


def rows_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]


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
    loss = averaged_as_grpo(dapo.policy_loss)(config=config, **(given | {"logps": ours}))
    expected = grpo.policy_loss(
        **(given | {"logps": theirs}), ref_logps=given["logps"], config=grpo.Config(kl_coef=0.0)
    )
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(x, y)[0] for x, y in ((loss, ours), (expected, theirs))))


def test_a_filtered_completion_counts_in_the_sample_level_mean_with_nothing():
    given, config, loss = batch(), dapo.Config(), averaged_as_grpo(dapo.policy_loss)
    cut = given | {"mask": given["mask"] & (torch.arange(6) != 2).unsqueeze(1)}
    without = {name: tensor[[0, 1, 3, 4, 5]] for name, tensor in given.items()}
    torch.testing.assert_close(loss(config=config, **cut), loss(config=config, **without) * 5 / 6)
    none = given | {"mask": torch.zeros_like(given["mask"])}
    assert loss(config=config, **none) == 0


def test_the_ablation_starts_at_grpo_and_ends_at_dapo(tmp_path, in_this_process):
    """Its first row trains as grpo.py does without KL, step for step; its last row is dapo.py."""
    first, *_, last = compare_runs.ablation().values()
    assert compare_runs.ABLATION["GRPO without KL"].items() <= first.settings.items()
    changed = compare_runs.ABLATION["GRPO without KL"] | SMALL
    ours = job("first", first.script, tmp_path, changed, first.replaced)
    compare_runs.train(ours)
    grpo.train(grpo.Config(kl_coef=0.0, run_dir=str(tmp_path / "grpo"), steps=2, device="cpu", **SMALL))
    for mine, theirs in zip(rows_of(ours.folder), rows_of(tmp_path / "grpo")):
        assert mine["groups_by_k"] == theirs["groups_by_k"] and mine["length"] == theirs["length"]
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
        assert mine["update_norm"] == pytest.approx(theirs["update_norm"], rel=1e-3)
    assert dapo.policy_loss.__module__ == "algorithms.dapo"  # put back
    settings = {k: last.settings[k] for change in compare_runs.ABLATION.values() for k in change}
    assert (
        settings.pop("eval_every") == of_script("DAPO").settings["eval_every"] == 2
        and first.settings["eval_every"] == 5
    )
    assert not last.replaced and settings.pop("overlong_filtering")  # the one thing dapo.py leaves out by default
    assert all(getattr(dapo.Config(), name) == value for name, value in settings.items())
    arms = list(compare_runs.ablation().values())
    assert [bool(arm.replaced) for arm in arms] == [True] * 4 + [False] * 2


@pytest.mark.parametrize(
    ("piece", "other"), [("policy_loss", "compute_advantages"), ("compute_advantages", "policy_loss")]
)
def test_grpo_with_both_pieces_of_dr_grpo_is_dr_grpo(piece, other, tmp_path, monkeypatch, in_this_process):
    """One piece swapped by the comparison, the other here: step for step dr_grpo.py. With one alone it is not."""
    assert {arm.replaced for arm in compare_runs.pieces().values()} == {"", piece, other}
    one, both = (job(name, "grpo", tmp_path, replaced=piece) for name in ("one", "both"))
    compare_runs.train(one)
    monkeypatch.setattr(grpo, other, getattr(dr_grpo, other))
    compare_runs.train(both)
    dr_grpo.train(dr_grpo.Config(run_dir=str(tmp_path / "dr_grpo"), steps=2, device="cpu", **SMALL))
    folders = one.folder, both.folder, tmp_path / "dr_grpo"
    alone, ours, theirs = ([row["grad_norm"] for row in rows_of(folder)] for folder in folders)
    assert ours == pytest.approx(theirs, rel=1e-5) and alone != pytest.approx(theirs, rel=0.05)


def test_without_a_baseline_the_way_to_reinforce_is_reinforce(tmp_path, monkeypatch, in_this_process):
    """The last arm but one, with REINFORCE's advantages: step for step reinforce.py. With its own it is not."""
    *first, _, before, last = compare_runs.to_reinforce().values()
    assert [*first, last] == [of_script(name) for name in ("GRPO", "Dr. GRPO", "REINFORCE")]
    small, reinforce = before.settings | SMALL, compare_runs.import_module("algorithms.reinforce")
    with_baseline, without, theirs = (job(name, before.script, tmp_path, small) for name in ("with", "without", "last"))
    theirs = replace(theirs, arm=replace(last, settings=SMALL))
    compare_runs.train(with_baseline)
    compare_runs.train(theirs)
    monkeypatch.setattr(dr_grpo, "compute_advantages", reinforce.compute_advantages)
    compare_runs.train(without)
    alone, ours, expected = (
        [row["grad_norm"] for row in rows_of(of.folder)] for of in (with_baseline, without, theirs)
    )
    assert ours == pytest.approx(expected, rel=1e-5) and alone != pytest.approx(expected, rel=0.05)


def test_every_arm_has_its_own_folder_and_the_completions_of_all(tmp_path):
    """Where an arm appears in several experiments, it is the same."""
    program = Experiments(Config(output=str(tmp_path)))
    arms = [of_script(name, rate) for name in SCRIPTS for rate in compare_runs.RATES]
    arms += [
        arm
        for name in ("shared", "pieces", "ablation", "reinforce", "group_size")
        for arm in program.arms(name).values()
    ]
    assert len({(arm.name, str(arm)) for arm in arms}) == len({arm.name for arm in arms}) == 9 * 4 + 2 + 6 + 2 + 10
    jobs = [Job(arm, 0, 60, "cpu", tmp_path) for arm in arms]
    assert len({job.folder for job in jobs}) == len({arm.name for arm in arms})
    for config in (job.config() for job in jobs):
        check_settings(config)
        assert config.prompts_per_step * config.group_size == 256 and config.measure_updates
    assert program.arms("pieces")["GRPO"] == program.arms("group_size")["GRPO, G = 8"] == of_script("GRPO", 2e-4)
    assert [*program.seeds("shared")] == [*range(10)] and [*program.seeds("group_size")] == [*range(6)]
    assert dapo.Config().learning_rate == grpo.Config().learning_rate == compare_runs.RATE


@with_stats
def test_an_interval_and_a_difference_by_hand():
    """1 to 5 have mean 3 and variance 2.5; the quantile of Student's t with 4 degrees of freedom is 2.776."""
    half = 2.7764451 * np.sqrt(2.5 / 5)
    found = paired.estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found["mean"] == 3 and found["interval"] == pytest.approx([3 - half, 3 + half])
    np.testing.assert_allclose(paired.band(np.array([[1.0, 2, 3, 4, 5], [2, 3, 4, 5, 6]]).T)[1], [3 + half, 4 + half])
    found = paired.difference([2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found["difference"], found["pairs"]) == (3, 5)
    assert found["interval"] == pytest.approx([3 - half, 3 + half]) and found["sd"] == pytest.approx(np.sqrt(2.5))
    assert found["p"] == pytest.approx(0.013236, abs=1e-5)  # t = 3 / sqrt(0.5) = 4.243, from a table
    assert paired.difference([1.0, 2.0, 3.0], [2.0, 2.5, 2.0])["difference"] == pytest.approx(-1 / 6)


@with_stats
def test_an_interval_holds_the_truth_in_95_percent_of_repetitions():
    rng = np.random.default_rng(0)
    hits = [low < 0 < high for low, high in (paired.estimate(rng.normal(size=10).tolist())["interval"]
                                             for _ in range(2000))]  # fmt: skip
    assert np.mean(hits) == pytest.approx(0.95, abs=0.015)


@with_stats
def test_holm_by_hand():
    """The smallest of three p values counts three times, the next twice, and none less than one before it."""
    family = [{"p": p} for p in (0.03, 0.005, 0.02)]
    paired.holm(family)
    assert [comparison["p_holm"] for comparison in family] == pytest.approx([0.04, 0.015, 0.04])


@with_stats
def test_what_several_tables_show_counts_once_in_the_correction():
    """Three different comparisons in two tables, one of them in both; `pieces` is a family of its own."""
    arms = {"A": {"x": {"seeds": [1, 2]}}, "B": {"x": {"seeds": [1, 3]}}, "C": {"x": {"seeds": [2, 2]}}}

    def compared(arm: str, p: float) -> dict:
        return {"arm": arm, "other": "A", "number": "x", "p": p}

    results = {
        "shared": {"arms": arms, "comparisons": [compared("B", 0.03), compared("C", 0.005)]},
        "tuned": {
            "arms": arms | {"C": {"x": {"seeds": [5, 5]}}},
            "comparisons": [compared("B", 0.03), compared("C", 0.02)],
        },
        "pieces": {"arms": arms, "comparisons": [compared("B", 0.03) | {"p_holm": 0.03}]},
    }
    assert compare_tables.correct(results) == 3
    p_holm = [c["p_holm"] for found in results.values() for c in found["comparisons"]]
    assert p_holm == pytest.approx([0.04, 0.015, 0.04, 0.04, 0.03])


@with_stats
@pytest.mark.parametrize(("sd", "seeds"), [(0.02, 34), (0.01, 10), (0.0125, 15)])
def test_the_seeds_that_a_point_needs(sd, seeds):
    """Cohen's tables: 34 pairs for d = .5 (33.4), 15 for .8 (14.3); d = 1 takes 10. And by simulation."""
    assert paired.seeds_needed(sd, 0.01) == seeds
    gaps = np.random.default_rng(0).normal(0.01, sd, size=(20_000, seeds))
    seen = abs(gaps.mean(axis=1)) > paired.stats.t.ppf(0.975, seeds - 1) * paired.stats.sem(gaps, axis=1)
    assert 0.79 < seen.mean() < 0.86


@with_stats
def test_seeds_without_a_value_count_nowhere_and_shift_nothing():
    """A diverged run must not pair seed 2 of one script with seed 1 of another."""
    assert paired.estimate([None, None])["mean"] is None
    assert paired.estimate([0.25, None, 0.25]) == {"mean": 0.25, "interval": None, "seeds": [0.25, None, 0.25]}
    run = dict.fromkeys(compare_tables.NUMBERS, 0.25) | {"learning_rate": 1e-3, "budget": 10}
    assert compare_tables.training_numbers({"A": [None, run, None]})["A"]["final"]["seeds"] == [None, 0.25, None]
    found = paired.difference([0.1, None, 0.3, 0.5], [0.2, 0.9, 0.2, None])
    assert found["pairs"] == 2 and found["difference"] == pytest.approx(0)
    for values, text in (([0.1, None], "−10.0"), ([0.3, 1.0], "+10.0"), ([None, None], "")):
        found = paired.difference(values, [0.2, 0.9]) | {"number": "at_budget", "p_holm": 1.0}
        assert (found["interval"], found["p"], found["sd"]) == (None, 1, None)
        assert compare_tables.change(found) == text
    assert compare_tables.cell(paired.estimate([0.25, 0.75, None]) | {"interval": [0.2, 0.8]}) == (
        ".500 [.200, .800] (2 of 3 runs)"
    )


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
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    accuracy = {"all": {"sampled": 0.3, "greedy": 0.2}}, {"all": {"sampled": 0.8, "greedy": 0.9}}
    results = {when: {"accuracy": numbers} for when, numbers in zip(("before", "after"), accuracy)}
    (tmp_path / "results.json").write_text(json.dumps(results), "utf-8")
    config = {"steps": 20, "prompts_per_step": 1, "group_size": 10, "num_minibatches": 4, "learning_rate": 1e-3}
    (tmp_path / "config.json").write_text(json.dumps(config | {"dynamic_sampling": True}), "utf-8")
    found = summary(tmp_path)
    assert found["curve"]["updates"] == [0, 40, 80]
    assert found["curve"]["completions"] == [0, 150, 400] and found["budget"] == 200
    assert found["at_budget"] == pytest.approx(0.6 + 0.2 * 50 / 250)
    area = 150 * (0.3 + 0.6) / 2 + 50 * (0.6 + 0.64) / 2  # two trapezoids
    assert found["mean_accuracy"] == pytest.approx(area / 200, abs=1e-3)
    assert found["clipped"] == pytest.approx(0.3) and found["clipped_up_probability"] is None
    assert found["update_norm"] == 0.5 and found["length_right"] is None and found["length_wrong"] == 4.0
    assert found["windows"]["step"] == [3, 8, 13, 18] and found["windows"]["silent"] == pytest.approx([0.6, *[0.5] * 3])
    assert found["silent_trained_on"] == 0 and found["silent"] == pytest.approx(0.525)
    (tmp_path / "config.json").write_text(json.dumps(config | {"dynamic_sampling": False}), "utf-8")
    assert summary(tmp_path)["silent_trained_on"] == pytest.approx(0.525)
    rows[-1]["held_out"] = None  # not one of the evaluated steps: the last point is the evaluation at the end
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    assert summary(tmp_path)["curve"] == found["curve"]


def fake(arms) -> dict[str, list[dict]]:
    """Summaries of four runs of every arm: the i-th arm is i points above the first, but for noise."""
    rng = np.random.default_rng(0)
    runs: dict[str, list[dict]] = {}
    for i, arm in enumerate(arms):
        runs[arm] = []
        for _ in range(4):
            number = 0.5 + 0.01 * i + 0.001 * rng.normal()
            run = {name: number + 0.1 * n + 0.001 * rng.normal() for n, name in enumerate(compare_tables.NUMBERS)}
            run |= {"budget": 15_360, "learning_rate": 2e-4, "completions": 15_360 + (50_000 if arm == "DAPO" else 0)}
            run["curve"] = {"updates": [0, 20], "completions": [0, 1280], "held_out": [0.4, number]}
            names = (
                "update_norm",
                "clipped",
                "clipped_up_probability",
                "truncated",
                "silent",
                "entropy",
                "length_wrong",
            )
            run["windows"] = {"step": [3.0, 8.0]} | dict.fromkeys(names, [number, number]) | {"clipped": [None, None]}
            runs[arm].append(run)
    return runs


def names_of(experiment: str) -> list[str]:
    if experiment in ("matched", "tuned"):
        return list(compare_runs.LADDER if experiment == "matched" else SCRIPTS)
    return list(Experiments(Config()).arms(experiment))


@with_stats
@pytest.mark.parametrize("experiment", ["shared", "matched", "tuned", "pieces", "ablation", "reinforce", "group_size"])
def test_every_experiment_has_its_table_and_its_figure(experiment, tmp_path):
    """At most seven columns, every comparison of the family in it, true differences bold, and a figure."""
    runs = fake(names_of(experiment))
    found = {"seeds": [0, 1, 2, 3], "arms": compare_tables.training_numbers(runs)}
    found |= compare_tables.compared(experiment, found["arms"])
    if experiment == "tuned":
        found["tuning"] = {name: {"0.0001": [0.5], "0.0002": [0.6], "0.0004": [0.6]} for name in SCRIPTS}
        found["tuning"]["MaxRL"] = {"0.0001": [0.5], "0.0002": [0.6]}
    found = compare_tables.rounded(found)
    text = compare_tables.table(experiment, found)
    words = " ".join(text.split())
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({row.count(" | ") for row in rows}) == 1 and rows[0].count(" | ") <= 6
    assert text.count("**") // 2 == sum(c["p_holm"] < 0.05 for c in found["comparisons"]) > 0
    digits = {"entropy": 3}
    shown = [c for c in found["comparisons"] if compare_tables.change(c, digits.get(c["number"], 1)) in text]
    assert len(shown) == len(found["comparisons"]) == len(compare_tables.family(experiment))
    assert f"{text.count('**') // 2} of this table's {len(shown)} comparisons are bold" in words
    for arm, of in found["arms"].items():  # what stands in a column is what its heading says
        for row in (row for row in rows if row.startswith(f"| {arm} |")):
            for heading, number in (("at 15,360 completions", "at_budget"), ("mean over training", "mean_accuracy")):
                if heading in rows[0]:
                    column = rows[0].split(" | ").index(heading)
                    assert row.split(" | ")[column] == compare_tables.cell(of[number])
    assert (text.count("at 65,360") == 1) == (experiment in ("shared", "matched", "tuned"))
    assert ("| 2e-4 (the edge) |" in text) == (experiment == "tuned") and text.count("(the edge)") <= 1
    sds = [c["sd"] for c in found["comparisons"] if c["number"] == "at_budget"]
    assert f"median sd of a difference {100 * np.median(sds):.1f}" in words
    compare_figures.draw(experiment, runs, found, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


@with_stats
def test_what_is_so_by_construction_has_no_interval():
    runs = fake(names_of("ablation"))
    for run in runs["+ dynamic sampling"]:
        run["silent_trained_on"] = 0.0
    found = {"seeds": [0, 1, 2, 3], "arms": compare_tables.training_numbers(runs)}
    found |= compare_tables.compared("ablation", found["arms"])
    (row,) = (line for line in compare_tables.table("ablation", found).splitlines() if "+ dynamic" in line)
    assert row.endswith("| 0, by construction |")


@pytest.mark.parametrize("experiment", compare_figures.PANELS)
def test_each_line_of_a_figure_has_dashes_and_a_marker_of_its_own(experiment, tmp_path, monkeypatch):
    if paired.stats is None:
        monkeypatch.setattr(compare_figures, "band", lambda ys: (ys.mean(axis=0), ys.mean(axis=0)))
    drawn = []
    monkeypatch.setattr(compare_figures, "finish", lambda figure, path: drawn.append(figure))
    names = names_of(experiment)
    compare_figures.draw_curves(compare_figures.PANELS[experiment], fake(names), tmp_path / "figure.png")
    for axis, panel in zip(drawn[0].axes, compare_figures.PANELS[experiment]):
        looks = {(str(line.get_linestyle()), str(line._dash_pattern), line.get_marker()) for line in axis.lines}
        assert len(looks) == len(axis.lines) == (0 if panel[-1] == "clipped" else len(names))


@with_stats
def test_a_comparison_is_the_arms_number_minus_the_others():
    arms = compare_tables.training_numbers(fake(["GRPO", *(name for name in SCRIPTS if name != "GRPO")]))
    found = compare_tables.compared("shared", arms)
    for c in found["comparisons"]:
        expected = np.mean(arms[c["arm"]][c["number"]]["seeds"]) - np.mean(arms["GRPO"][c["number"]]["seeds"])
        assert c["difference"] == pytest.approx(expected) and c["difference"] > 0
    sds = [c["sd"] for c in found["comparisons"] if c["number"] == "at_budget"]
    assert found["sd"] == np.median(sds) and found["seeds_for_a_point"] == paired.seeds_needed(found["sd"], 0.01)


def test_what_does_not_survive_the_correction_is_not_bold():
    comparison = {"number": "at_budget", "difference": 0.0123, "interval": [0.002, 0.0226], "p": 0.02, "p_holm": 0.06}
    assert compare_tables.change(comparison) == "+1.2 [+0.2, +2.3]"
    assert compare_tables.change(comparison | {"p_holm": 0.04}) == "**+1.2 [+0.2, +2.3]**"
    assert compare_tables.change(comparison | {"difference": -0.0004}) == "+0.0 [+0.2, +2.3]"
    assert compare_tables.change(comparison | {"interval": [-0.0004, 0.02]}) == "+1.2 [−0.0, +2.0]"  # contains 0
    assert compare_tables.change(comparison | {"number": "entropy", "interval": [-0.002, 0.0226]}, 3) == (
        "+0.012 [−0.002, +0.023]"
    )


@with_stats
def test_what_diverged_is_said():
    runs = fake(SCRIPTS)
    runs["PPO"] = [None, *runs["PPO"][1:]]
    found = {"seeds": [0, 1, 2, 3], "arms": compare_tables.training_numbers(runs)}
    found |= compare_tables.compared("shared", found["arms"])
    text = " ".join(compare_tables.table("shared", found).split())
    assert "(3 of 4 runs)" in text and "Runs that diverged (in 1 of the arms) are left out" in text
    assert compare_tables.find(found, "PPO", "GRPO")["pairs"] == 3


@with_stats
def test_samplings_are_compared_problem_by_problem():
    """The spread between problems is in both; of a difference only its own is left."""
    rng = np.random.default_rng(0)
    base = rng.random((1, len(compare_runs.KS), 50))
    better = base + 0.02 + 0.001 * rng.normal(size=(4, 1, 50))
    trained = {"pass": better, "majority": base.repeat(4, axis=0)}
    found = compare_tables.sampling_numbers({"base": {"pass": base, "majority": base}, "GRPO": trained})
    for c in found["comparisons"]:
        if c["number"].startswith("pass"):
            assert c["difference"] == pytest.approx(0.02, abs=1e-3) and c["p_holm"] < 0.05
            assert 0.019 < c["interval"][0] < c["interval"][1] < 0.021
        else:
            assert c["difference"] == 0 and c["p_holm"] == 1
    text = compare_tables.table("sampling", compare_tables.rounded({"seeds": [0, 1, 2, 3], "steps": 60} | found))
    assert text.count("**") == 2 * 3 and "3 of this table's 5 comparisons are bold" in " ".join(text.split())


def test_rates_are_the_best_of_tuning_and_those_of_equal_updates(monkeypatch, in_this_process):
    """Tuning seeds are no seeds of the comparison. A diverged run counts as 0."""
    asked = []

    def at_budget(self):
        asked.append(self.seed)
        rate = self.arm.settings.get("learning_rate", 2e-4)
        if rate == 8e-4 and self.seed == 101:
            return None
        return {"at_budget": {1e-4: 0.7, 2e-4: 0.8, 4e-4: 0.9, 8e-4: 0.95}[rate], "update_norm": 0.02}

    monkeypatch.setattr(Job, "is_finished", lambda self: True)
    monkeypatch.setattr(Job, "summary", at_budget)
    program = Experiments(Config())
    rates = {name: arm.settings.get("learning_rate") for name, arm in program.arms("tuned").items()}
    assert rates == dict.fromkeys(SCRIPTS, 4e-4) and set(asked) == {100, 101, 102}
    assert compare.best_rate({1e-4: [0.5, 0.7], 2e-4: [0.6, 0.6], 4e-4: [0.6, 0.5]}) == 1e-4
    Experiments(Config(first_seed=200)).tuning()
    assert set(asked) == {100, 101, 102, 300, 301, 302}
    lengths = {"reinforce": 0.04, "grpo": 0.02}
    monkeypatch.setattr(Job, "summary", lambda self: {"update_norm": lengths.get(self.arm.script, 0.02)})
    assert program.matched_rates() == dict.fromkeys(compare_runs.LADDER, 2e-4) | {"REINFORCE": 7.9e-5}  # 2e-4 / 2^(4/3)


@with_stats
@pytest.mark.slow
@pytest.mark.parametrize("experiment", ["shared", "tuned", "sampling"])
def test_runs_are_made_once_and_go_on_where_they_stopped(experiment, tmp_path, capsys, monkeypatch, in_this_process):
    """GRPO and DAPO, and the same command again."""
    ladder = {"GRPO": "grpo", "DAPO": "dapo"}
    for module in (compare, compare_runs, compare_tables):
        for name in ("SCRIPTS", "LADDER"):
            monkeypatch.setattr(module, name, ladder)
    monkeypatch.setattr(compare_runs, "COMMON", SMALL | {"eval_every": 1})
    monkeypatch.setattr(compare, "RATES", (2e-4, 4e-4))
    few, sampled = compare_runs.held_out_problems, []
    monkeypatch.setattr(compare_runs, "SAMPLES", 64)
    monkeypatch.setattr(compare_runs, "held_out_problems", lambda n, levels: sampled.append(n) or few(2, levels))
    out = tmp_path / "out"
    config = Config(experiments=(experiment,), seeds=2, steps=2, output=str(out), device="cpu")
    compare.main(config)
    assert "DAPO" in capsys.readouterr().out
    found = json.loads((out / f"{experiment}.json").read_text("utf-8"))
    assert found["seeds"] == [0, 1] and (out / f"{experiment}.png").read_bytes().startswith(b"\x89PNG")
    if experiment == "sampling":
        assert set(found["arms"]) == {"base", *ladder} and [of["k"] for of in found["arms"]["base"]["pass"]][-1] == 64
    else:
        assert set(found["arms"]) == set(ladder)
        assert found["arms"]["DAPO"]["completions"]["mean"] > found["arms"]["GRPO"]["completions"]["mean"] == 32
        assert found["arms"]["GRPO"]["update_norm"]["mean"] > 0

    times = {path: path.stat().st_mtime_ns for path in out.glob("*-*/*")}
    tuning = [
        f"{script}{rate}-{seed}" for script in ("grpo", "dapo") for rate in ("", "-0.0004") for seed in range(100, 103)
    ]
    runs = {path.parent.name for path in times}
    assert runs >= set(tuning if experiment == "tuned" else ["grpo-0", "grpo-1", "dapo-0", "dapo-1"])
    stopped = next(path for path in times if path.name == "results.json" and path.parent.name.startswith("grpo"))
    stopped.unlink()  # as if stopped in its last evaluation
    sampled.clear()
    compare.main(config)
    assert not sampled
    assert json.loads((out / f"{experiment}.json").read_text("utf-8")) == found
    assert all(path.stat().st_mtime_ns == time for path, time in times.items() if path.parent != stopped.parent)
    with pytest.raises(UsageError, match="steps 2, not 3; choose another --output"):
        compare.main(replace(config, steps=3))


def test_a_run_that_diverges_leaves_its_line_and_no_number(tmp_path, in_this_process):
    diverges = job("GRPO", "grpo", tmp_path, SMALL | {"learning_rate": 1e30, "warmup_steps": 0})
    assert not diverges.is_finished()
    compare_runs.train(diverges)
    assert "training has diverged" in (diverges.folder / "diverged.txt").read_text("utf-8")
    assert diverges.is_finished() and diverges.summary() is None


@with_stats
def test_only_divergence_is_kept_as_such(tmp_path, monkeypatch, capsys, in_this_process):
    """A full disk, say, is not: the run is to be made again. Runs that all diverged are nothing to compare."""

    def fail(config):
        Path(config.run_dir).mkdir(parents=True, exist_ok=True)
        raise RunFailed("cannot write state.pt (No space left on device)")

    one = job("GRPO", "grpo", tmp_path)
    monkeypatch.setattr(grpo, "train", fail)
    with pytest.raises(RunFailed, match="No space left"):
        compare_runs.train(one)
    assert not one.is_finished()
    for name in ("LADDER", "SCRIPTS"):
        monkeypatch.setattr(compare, name, {"GRPO": "grpo"})
    monkeypatch.setattr(Job, "is_finished", lambda self: True)
    for seed in (0, 1):
        (tmp_path / f"out/grpo-{seed}").mkdir(parents=True)
        (tmp_path / f"out/grpo-{seed}/diverged.txt").write_text("the loss is nan: training has diverged", "utf-8")
    config = Config(seeds=2, output=str(tmp_path / "out"))
    with pytest.raises(RunFailed, match="every run of GRPO diverged"):
        compare.main(config)
    assert "grpo-1: the loss is nan: training has diverged" in capsys.readouterr().out
    with lock_folder(str(tmp_path / "out"), ""), pytest.raises(UsageError, match="another compare.py is running"):
        compare.main(config)


@with_stats
def test_what_is_published_is_whole(tmp_path, monkeypatch):
    """Results, figure and pages; without a place on the page nothing is written, and nothing is run."""
    monkeypatch.setattr(page, "HERE", tmp_path / "lessons/experiments")
    monkeypatch.setattr(page, "RESULTS", page.HERE / "results.json")
    monkeypatch.setattr(page, "answer", lambda experiment, found: f"What {experiment} shows.")
    (page.HERE / "figures").mkdir(parents=True)
    places = ("shared", "shared-answer", "reinforce", "reinforce-answer")
    places += ("speed", "speed-parts", "growth", "start-up", "memory")
    (page.HERE / "README.md").write_text("".join(f"<!-- {name} -->\n<!-- /{name} -->\n" for name in places), "utf-8")
    front = "<!-- summary -->\n<!-- /summary -->\n"
    (tmp_path / "README.md").write_text(front, "utf-8")
    (tmp_path / "shared.png").touch()
    found = {"seeds": [0, 1, 2, 3], "arms": compare_tables.training_numbers(fake(SCRIPTS))}
    found |= compare_tables.compared("shared", found["arms"])
    page.publish("shared", found, tmp_path / "shared.png")
    assert (tmp_path / "README.md").read_text("utf-8") == front  # wants `reinforce` as well
    (tmp_path / "reinforce.png").touch()
    other = {"seeds": [0, 1, 2, 3], "arms": compare_tables.training_numbers(fake(names_of("reinforce")))}
    other |= compare_tables.compared("reinforce", other["arms"])
    page.publish("reinforce", other, tmp_path / "reinforce.png")
    assert (
        json.loads(page.RESULTS.read_text("utf-8"))["shared"]["arms"]["PPO"]
        and (page.HERE / "figures/shared.png").is_file()
    )
    table = compare_tables.table("shared", compare_tables.rounded(found))
    assert f"{table}\n" in (page.HERE / "README.md").read_text("utf-8") and "What front shows." in (
        tmp_path / "README.md"
    ).read_text("utf-8")
    assert "DAPO" in (tmp_path / "README.md").read_text("utf-8")
    with (
        monkeypatch.context() as patch,
        pytest.raises(RunFailed, match="'shared' no longer bear out what compare_answers"),
    ):
        patch.setattr(page, "answer", compare_answers.answer)
        page.publish("shared", found, tmp_path / "shared.png")
    page.RESULTS.unlink()
    monkeypatch.setattr(Experiments, "run", lambda self, experiment: (found, tmp_path / "shared.png"))
    compare.main(Config(experiments=("shared",), publish=True, output=str(tmp_path / "runs")))
    before, expected = page.RESULTS.read_text("utf-8"), {"shared": compare_tables.rounded(found)}
    compare_tables.correct(expected)
    assert json.loads(before) == compare_tables.rounded(expected)
    with pytest.raises(UsageError, match="no place for the table 'matched'"):
        page.publish("matched", found, tmp_path / "shared.png")
    assert page.RESULTS.read_text("utf-8") == before and not list(page.HERE.glob("*.tmp"))
    with pytest.raises(UsageError, match="no place for the table 'pieces'"):
        compare.main(Config(experiments=("pieces",), publish=True, output=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("module", "settings", "message"),
    [
        (compare, {"seeds": 1}, r"--seeds must be from 2 \(for an interval\) to 100 \(the next ones tune\), not 1"),
        (compare, {"seeds": 101}, "not 101"),
        (compare, {"quick": True, "steps": 10}, "--quick is 3 seeds and 25 steps; leave out --seeds and --steps"),
        (compare, {"publish": True, "quick": True}, "leave out --quick, --first_seed, --seeds and --steps"),
        (compare, {"publish": True, "first_seed": 200}, "leave out --quick"),
        (compare, {"publish": True, "seeds": 9}, "leave out --quick"),
        (compare, {"publish": True, "steps": 59}, "leave out --quick"),
        (compare, {"device": "nosuch"}, "device 'nosuch' is not available here"),
        (short_answers, {"publish": True, "seeds": 1}, "leave out --seeds"),
        (short_answers, {"seeds": 10**12}, "--seeds must be 1000 or less, not 1000000000000"),
        (staleness, {"seeds": 10**12}, "--seeds must be 1000 or less"),
        (update_length, {"seeds": 10**12}, "--seeds must be 1000 or less"),
        (update_length, {"prompts": 10**12}, "--prompts must be 1000 or less"),
        (update_length, {"answers": 10**12}, "--answers must be 65536 or less"),
        (bench_memory, {"completions": (8 * 10**12,)}, "tokens or fewer"),
        (bench_memory, {"layers": 10**12}, "--layers must be 1000 or less"),
        (bench_rollout, {"problems": 10**12}, "tokens or fewer"),
        (bench_rollout, {"samples": 10**12}, "tokens or fewer"),
        (bench_speed, {"device": "nosuch"}, "--device must be cpu or cuda, not 'nosuch'"),
        (bench_speed, {"largest": 10**12}, "--largest must be 100000 or less"),
        (bench_speed, {"largest": 1}, "--largest must be 64 or more, not 1"),
        (bench_speed, {"publish": True, "steps": 1}, "leave out every other setting"),
    ],
)
def test_bad_input_is_one_line(module, settings, message):
    with pytest.raises(UsageError, match=message):
        check_settings(module.Config(**settings))


@pytest.mark.parametrize("module", [compare, staleness, update_length])
def test_a_folder_that_cannot_be_is_refused_before_the_work(module, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(paired, "require", lambda: None)
    monkeypatch.setattr(module, "in_parallel", lambda *_, **__: pytest.fail("worked"))
    with pytest.raises(UsageError, match="^cannot write to .*file/x'.*; choose another --output$"):
        module.main(module.Config(output=str(tmp_path / "file/x")))


def test_without_the_statistics_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(paired, "stats", None)
    with pytest.raises(UsageError, match=r"need scipy and statsmodels; pip install -e '.\[stats\]'"):
        compare.main(Config(output=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def test_an_experiment_that_does_not_exist_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["compare.py", "--experiments", "all"])
    with pytest.raises(SystemExit, match="2"):
        parse(Config, None)
    assert "ablation" in capsys.readouterr().err


def note_and_wait(path: Path, kills_itself: bool) -> None:
    """A task: leaves its process number, then kills itself, or waits."""
    path.write_text(str(os.getpid()), "utf-8")
    if kills_itself:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text("utf-8").split()[2] != "Z"
    return False


@pytest.mark.slow
def test_a_killed_process_is_one_line_and_no_process_outlives_its_parent(tmp_path):
    with pytest.raises(
        RunFailed, match="a process was killed, perhaps for want of memory; lower --processes; the same"
    ):
        in_parallel(note_and_wait, [(tmp_path / "a", True)], processes=1)
    started = time.monotonic()
    with pytest.raises(AttributeError):  # of one task, while the other would go on for a minute
        in_parallel(note_and_wait, [(tmp_path / "c", False), (None, False)], processes=10**12)
    assert time.monotonic() < started + 50
    program, noted = tmp_path / "program.py", tmp_path / "b"
    program.write_text(
        "import sys\nfrom pathlib import Path\nsys.path.insert(0, 'tests')\nfrom test_compare import note_and_wait\n"
        "from lessons.experiments.pool import in_parallel\n"
        f"if __name__ == '__main__':\n    in_parallel(note_and_wait, [(Path({str(noted)!r}), False)], processes=1)\n",
        "utf-8",
    )
    deadline = time.monotonic() + 60
    with subprocess.Popen([sys.executable, str(program)], cwd=Path(__file__).parents[1]) as parent:
        while not (noted.exists() and noted.read_text("utf-8")) and time.monotonic() < deadline:
            time.sleep(0.05)
        parent.kill()
    while is_alive(int(noted.read_text("utf-8"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(int(noted.read_text("utf-8")))


@with_stats
@pytest.mark.slow
def test_two_interrupts_end_it_at_once(tmp_path):
    """Ctrl-C reaches every process of a terminal's group, and is pressed again: one line, and no process is left."""
    command = [sys.executable, "-m", "lessons.experiments.compare", "--quick", "--output", str(tmp_path / "out")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as program:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("out-quick/*/metrics.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.1)
        for _ in range(2):
            os.killpg(program.pid, signal.SIGINT)
            time.sleep(0.05)
        error = program.communicate(timeout=30)[1]
    assert program.returncode == 130 and "Traceback" not in error
    assert error.splitlines()[-1].strip().endswith("stopped (the same command continues from here)")
    with pytest.raises(ProcessLookupError):
        for _ in range(300):  # the processes of the pool end on their own
            os.killpg(program.pid, 0)
            time.sleep(0.1)


@pytest.mark.parametrize("path", [page.HERE / "README.md", page.HERE.parents[1] / "README.md"], ids=["own", "front"])
def test_the_pages_show_the_committed_numbers(path):
    """python lessons/experiments/page.py writes them."""
    assert page.pages()[path] == path.read_text("utf-8")


@with_stats
def test_the_committed_comparisons_are_those_of_the_committed_seeds():
    """And the same runs say the same in every table: one difference, bold in all of them or in none."""
    results, bold = json.loads(page.RESULTS.read_text("utf-8")), {}
    del results["sampling"]
    again = {name: found | compare_tables.compared(name, found["arms"]) for name, found in results.items()}
    different = compare_tables.correct(again)
    assert f"their {different} different" in (page.HERE / "README.md").read_text("utf-8")
    assert f"over {different} comparisons" in (page.HERE.parents[1] / "README.md").read_text("utf-8")
    for name, found in results.items():
        for mine, theirs in zip(again[name]["comparisons"], found["comparisons"], strict=True):
            seeds = [found["arms"][theirs[arm]][theirs["number"]]["seeds"] for arm in ("arm", "other")]
            rounding = 2.5e-4 * max(map(abs, seeds[0]))
            assert mine["difference"] == pytest.approx(theirs["difference"], abs=rounding)
            assert mine["p_holm"] == pytest.approx(theirs["p_holm"], rel=0.05, abs=1e-3)
            bold.setdefault(str([theirs["number"], *seeds]), set()).add(theirs["p_holm"] < paired.LEVEL)
    assert all(len(verdicts) == 1 for verdicts in bold.values())


@pytest.mark.slow
def test_the_benchmark_times_every_part_of_our_step():
    worker = bench_speed.Worker(bench_speed.ours, "cpu", "base", 4, num_minibatches=2, eval_problems=1)
    worker.receive()
    step = worker.step()
    worker.close()
    assert set(step["parts"]) == {"sampling", "reference log-probs", "forward", "backward", "optimizer"}
    assert all(seconds > 0 for seconds in step["parts"].values()) and step["completions"] == 32


def test_the_page_is_short():
    """Its text, without tables, under 1,500 words; every comparison's table within seven columns."""
    lines = [
        line
        for line in (page.HERE / "README.md").read_text("utf-8").splitlines()
        if not line.startswith(("![", "<!--"))
    ]
    assert len(" ".join(line for line in lines if not line.startswith("|")).split()) < 1500
    tables = [compare_tables.table(*item) for item in json.loads(page.RESULTS.read_text("utf-8")).items()]
    assert all(line.count(" | ") <= 6 for table in tables for line in table.splitlines() if line.startswith("|"))


def test_a_table_without_a_place_is_an_error():
    assert into_page("a\n<!-- t -->\nold\n<!-- /t -->\nb", {"t": "new"}) == "a\n<!-- t -->\nnew\n<!-- /t -->\nb"
    with pytest.raises(UsageError, match="no place for the table 't'"):
        into_page("", {"t": "new"})
