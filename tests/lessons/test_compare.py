"""The comparison of the scripts: its arms, its program, its tables, and the committed numbers."""

import contextlib
import json
import re
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, metrics
from test_grid import one_by_one, with_stats
from test_staleness import batch

from algorithms import dapo, dr_grpo, grpo
from lessons.experiments import (
    baselines,
    baselines_tables,
    bench_speed,
    compare,
    compare_figures,
    compare_tables,
    real_model,
    real_scores,
    update_norm,
)
from lessons.experiments.compare import Arm, Config, Run, summary
from lessons.experiments.compare_tables import README
from lessons.experiments.harness import grid, paired
from lessons.experiments.losses import averaged_as_grpo, over_mixed
from toy_env.model import load_policy

SMALL = {
    "prompts_per_step": 4,
    "group_size": 4,
    "max_new_tokens": 24,
    "eval_problems": 2,
    "eval_every": 0,
    "steps": 2,
}


@pytest.fixture
def in_this_process(monkeypatch, no_curves):
    """Runs of the comparison in this process."""
    monkeypatch.setattr(compare, "silence", contextlib.nullcontext)
    monkeypatch.setattr(grid, "in_parallel", one_by_one)


def rows_of(script: str, folder: Path, replaced: str = "", **settings) -> list[dict]:
    """The metrics of a run of two steps."""
    run = Run(Arm(script, SMALL | settings, replaced), 0)
    compare.train(run, folder)
    return metrics(run.folder(folder))


# ---------------------------------------------------------------------- the arms


def test_a_filtered_completion_counts_in_the_sample_level_loss_with_nothing():
    """Its mask is empty; that the loss is GRPO's is tested below."""
    tensors, loss = batch(), partial(averaged_as_grpo(dapo.policy_loss), config=dapo.Config())
    filtered = tensors | {"mask": tensors["mask"] & (torch.arange(6) != 2).unsqueeze(1)}
    without = {name: tensor[[0, 1, 3, 4, 5]] for name, tensor in tensors.items()}
    torch.testing.assert_close(loss(**filtered), loss(**without) * 5 / 6)


def test_a_token_mean_over_mixed_groups_is_that_without_the_silent():
    """Row 3 has an advantage of 0, and here row 0, too: the loss is that of the others alone."""
    tensors, loss = batch(), partial(dapo.policy_loss, config=dapo.Config())
    tensors["advantages"][0] = 0
    mixed = {name: tensor[[1, 2, 4, 5]] for name, tensor in tensors.items()}
    torch.testing.assert_close(over_mixed(loss)(**tensors), loss(**mixed))
    assert not torch.isclose(loss(**tensors), loss(**mixed))


def test_kl_times_sigma_is_sigma_of_the_batch_in_another_scale(tmp_path, in_this_process):
    """Adam undoes the scale in step 1, so in step 2 both arms have the same policy and draws, and
    the norms of their gradients, of advantages and KL, differ by that batch's sigma."""
    settings = {"kl_coef": 5.0, "num_minibatches": 1, "warmup_steps": 0, "learning_rate": 1e-3}
    settings |= {"prompts_per_step": 8, "levels": (1,)}
    names = ("dr_grpo", compare.KL_TIMES_SIGMA), ("batch_sigma", ""), ("dr_grpo", "")
    scaled, over, plain = (rows_of(name, tmp_path, other, **settings)[1] for name, other in names)
    by_k = np.array(scaled["groups_by_k"])
    sigma = sum(by_k[k] * k * (4 - k) / 16 for k in range(5)) ** 0.5
    assert scaled["groups_by_k"] == over["groups_by_k"] and 0 < sigma < 0.5
    assert scaled["grad_norm"] == pytest.approx(sigma * over["grad_norm"], rel=0.01)
    assert plain["grad_norm"] != pytest.approx(scaled["grad_norm"], rel=0.1)
    assert dr_grpo.compute_advantages.__module__ == "algorithms.dr_grpo"  # it was put back


@pytest.mark.slow
def test_the_ablation_starts_at_grpo_and_ends_at_dapo(tmp_path, in_this_process):
    """Its first row trains as grpo.py does without KL, step for step; its last row is dapo.py."""
    arms = list(compare.EXPERIMENTS["ablation"].values())
    first, last = arms[0], arms[-1]
    change = compare.ABLATION["GRPO without KL"]
    assert change.items() <= first.settings.items()
    ours = rows_of("dapo", tmp_path, first.replaced, **change)
    for mine, theirs in zip(ours, rows_of("grpo", tmp_path, kl_coef=0.0)):
        assert mine["groups_by_k"] == theirs["groups_by_k"] and mine["length"] == theirs["length"]
        for name in ("grad_norm", "update_norm"):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-3)
    assert dapo.policy_loss.__module__ == "algorithms.dapo"  # it was put back
    changed = {name for change in compare.ABLATION.values() for name in change}
    for name in changed - {"eval_every", "overlong_filtering"}:  # dapo.py has no filtering
        assert getattr(dapo.Config(), name) == last.settings[name]
    assert [bool(arm.replaced) for arm in arms] == [True] * 4 + [False] * 2


@pytest.mark.slow
def test_both_changes_to_grpo_make_dr_grpo(tmp_path, monkeypatch, in_this_process):
    """One function of dr_grpo.py is put in by the comparison, the other one here."""
    names = ("policy_loss", "compute_advantages")
    alone = [rows_of("grpo", tmp_path / "alone", name) for name in names]
    theirs = rows_of("dr_grpo", tmp_path)
    monkeypatch.setattr(grpo, names[0], getattr(dr_grpo, names[0]))
    both = rows_of("grpo", tmp_path, names[1])
    *alone, theirs, both = ([row["grad_norm"] for row in rows] for rows in (*alone, theirs, both))
    assert both == pytest.approx(theirs, rel=1e-5)
    assert all(norms != pytest.approx(theirs, rel=0.05) for norms in alone)
    assert {arm.replaced for arm in compare.EXPERIMENTS["pieces"].values()} == {"", *names}


def test_every_arm_has_its_own_folder(tmp_path):
    """Where an arm appears in several experiments, it is the same."""
    arms = []
    for experiment in compare.EXPERIMENTS.values():
        arms += experiment.values()
    folders = {Run(arm, 0).folder(tmp_path) for arm in arms}
    assert len(folders) == len({str(arm) for arm in arms}) == 9 + 6 + 2 + 2 + 6 + 1 + 5 + 1


@pytest.mark.slow
def test_update_norm_is_the_move_of_the_policy(tmp_path, train):
    """One step of one update: the distance between the base and the checkpoint. And nothing else
    changes."""
    settings = {"steps": 1, "num_minibatches": 1, "learning_rate": 1e-3}
    (plain,) = train(grpo, "plain", **settings)
    with update_norm.measured():
        (row,) = train(grpo, "measured", **settings)
    vectors = [
        torch.nn.utils.parameters_to_vector(load_policy(model)[0].parameters())
        for model in ("base", str(tmp_path / "measured/checkpoint"))
    ]
    moved = (vectors[1] - vectors[0]).norm().item()
    assert row.pop("update_norm") == pytest.approx(moved, rel=1e-4) and moved > 0
    assert row == plain


def test_matched_rates_are_those_of_equal_updates():
    shared = compare_tables.load()["shared"]["arms"]
    for name, arm in compare.EXPERIMENTS["matched"].items():
        longer = shared[name]["update_norm"]["mean"] / shared["GRPO"]["update_norm"]["mean"]
        rate = arm.settings.get("learning_rate", 2e-4)
        assert rate == float(f"{2e-4 / longer ** (1 / 0.75):.2g}")


# ---------------------------------------------------------------------- a run, and the program


def test_a_run_is_summed_up_by_hand(tmp_path):
    """20 steps of 1 prompt x 10 completions, evaluated after 10 (150 drawn) and 20 (400 drawn):
    budget 200."""
    common = {"update_norm": 0.5, "clipped_up": 0.1, "clipped_down": 0.2, "entropy": 1.0}
    common |= {"length_wrong": 4.0, "truncated": 0.0, "silent": 0.5, "held_out": None}
    rows = [common | {"step": step, "completions": 15 * step} for step in range(1, 21)]
    rows[4] |= {"silent": 1.0}
    for name in ("update_norm", "clipped_up", "clipped_down"):
        del rows[4][name]  # no group was mixed, and nothing was updated
    rows[9] |= {"held_out": 0.6}
    rows[19] |= {"completions": 400}  # evaluated at the end of the run
    config = {"steps": 20, "prompts_per_step": 1, "group_size": 10, "num_minibatches": 4}
    config |= {"learning_rate": 1e-3}
    after, before = ({"accuracy": {"all": {"sampled": rate}}} for rate in (0.8, 0.3))
    files = {"config.json": config, "results.json": {"before": before, "after": after}}
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content), "utf-8")
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    shown = summary(tmp_path)
    curve = {"updates": [0, 40, 80], "completions": [0, 150, 400], "held_out": [0.3, 0.6, 0.8]}
    assert shown["curve"] == curve and shown["budget"] == 200
    assert shown["at_budget"] == pytest.approx(0.6 + 0.2 * 50 / 250)
    assert shown["update_norm"] == 0.5 and shown["length_right"] is None
    windows = shown["windows"]
    assert windows["clipped"] == pytest.approx([0.3] * 4) and windows["step"] == [3, 8, 13, 18]
    assert windows["silent"] == pytest.approx([0.6, 0.5, 0.5, 0.5])
    assert shown["silent"] == pytest.approx(0.525)


@with_stats
@pytest.mark.slow
def test_the_program_makes_the_numbers_of_every_arm(tmp_path, monkeypatch, spy, in_this_process):
    few = {"GRPO": "grpo", "DAPO": "dapo"}
    monkeypatch.setattr(compare_tables, "LADDER", few)
    monkeypatch.setattr(compare, "COMMON", SMALL | {"eval_every": 1})
    arms = {title: compare.of_script(title) for title in few}
    monkeypatch.setitem(compare.EXPERIMENTS, "shared", arms)
    monkeypatch.setitem(compare.EXPERIMENTS, "sampling", {"base": Arm("", {})} | arms)
    monkeypatch.setattr(compare, "SAMPLES", 64)
    problems = compare.held_out_problems(2, compare.LEVELS)
    monkeypatch.setattr(compare, "held_out_problems", lambda n, levels: problems)
    experiments = {"shared": {"GRPO", "DAPO"}, "sampling": {"base", "GRPO", "DAPO"}}
    written = spy(compare_tables, "texts")
    compare.main(Config(experiments=tuple(experiments), seeds=2, output=str(tmp_path)))
    for experiment, arms in experiments.items():
        numbers = written[0].args[0][experiment]
        assert numbers["seeds"] == [0, 1] and set(numbers["arms"]) == arms


# ---------------------------------------------------------------------- tables


def fake(experiment: str) -> dict[str, list[dict]]:
    """Summaries of four runs of every arm: the i-th arm is i points above the first, but for
    noise."""
    rng, runs = np.random.default_rng(0), {}
    names = ("clipped", "truncated", "silent", "entropy", "length_wrong")
    for i, arm in enumerate(compare.EXPERIMENTS[experiment]):
        runs[arm] = []
        for _ in range(4):
            number = 0.5 + 0.01 * i + 0.001 * rng.normal()
            run = {"budget": 15_360, "learning_rate": 2e-4}
            for n, name in enumerate(compare_tables.NUMBERS):
                run[name] = number + 0.1 * n + 0.001 * rng.normal()
            run["completions"] = 65_360 if arm == "DAPO" else 15_360
            run["curve"] = {"updates": [0, 20], "completions": [0, 1280], "held_out": [0.4, number]}
            run["windows"] = {"step": [3.0, 8.0]} | dict.fromkeys(names, [number, number])
            run["windows"]["clipped"] = [None, None]
            runs[arm].append(run)
    return runs


def results_of(experiment: str, runs: dict) -> dict:
    """The numbers of an experiment from the summaries of its runs."""
    results = {"seeds": [0, 1, 2, 3], "arms": compare_tables.training_numbers(runs)}
    return results | compare_tables.compared(experiment, results["arms"])


@pytest.mark.slow
@with_stats
@pytest.mark.parametrize("experiment", ["shared", "pieces", "ablation", "movement"])
def test_every_experiment_has_its_table_and_its_figure(experiment, tmp_path):
    """Every comparison of the family is in the table, true differences bold, and the accuracies
    stand below their heading."""
    runs = fake(experiment)
    results = grid.rounded(results_of(experiment, runs))
    beside = dict.fromkeys(("shared", "no_kl", "matched"), results)
    others = beside if experiment == "shared" else {experiment: results}
    texts = compare_tables.texts(compare_tables.load() | others)[README]
    text = texts["headline" if experiment == "shared" else experiment]
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("|")]
    assert len({len(row) for row in rows}) == 1 and len(rows[0]) <= 7
    bold = [c["p_holm"] < 0.05 for c in results["comparisons"]]
    assert len(bold) == len(compare_tables.family(experiment, runs)) and any(bold)
    assert text.count("**") == 2 * sum(bold) * (2 if experiment == "shared" else 1)
    for c in results["comparisons"]:
        assert compare_tables.change(c, 3 if c["number"] == "entropy" else 1) in text
    if experiment != "pieces":
        heading = "as it stands" if experiment == "shared" else "at 15,360 completions"
        for row, arm in zip(rows[2:], results["arms"].values()):
            assert row[rows[0].index(heading)] == grid.cell(arm["at_budget"])
    if experiment in compare_figures.PANELS:
        compare_figures.draw(compare_figures.PANELS[experiment], runs, tmp_path / "figure.png")


@with_stats
def test_samplings_are_compared_problem_by_problem(monkeypatch):
    """The spread between problems is in both; of a difference only its own is left."""
    monkeypatch.setattr(paired, "DRAWS", 200)
    rng = np.random.default_rng(0)
    base = rng.random((len(compare.KS), 50))
    better = base + 0.02 + 0.001 * rng.normal(size=(4, 1, 50))
    rates = {"base": [{"pass": base, "majority": base}]}
    rates["GRPO"] = [{"pass": of_seed, "majority": base} for of_seed in better]
    for c in compare_tables.sampling_numbers(rates, compare.KS)["comparisons"]:
        if c["number"].startswith("pass"):
            assert c["difference"] == pytest.approx(0.02, abs=1e-3) and c["p_holm"] < 0.05
            assert 0.019 < c["interval"][0] < c["interval"][1] < 0.021
        else:
            assert c["difference"] == 0 and c["p_holm"] == 1


# ---------------------------------------------------------------------- the committed numbers


@with_stats
@pytest.mark.parametrize("page", [README, real_scores.PAGE], ids=["own", "real"])
def test_the_pages_show_the_committed_numbers(page):
    """python lessons/experiments/write_pages.py writes them."""
    text = page.read_text("utf-8")
    pages = [compare_tables.texts(compare_tables.load())]
    parts = bench_speed, baselines_tables, real_scores, real_model
    pages += (part.texts() for part in parts)
    for texts in pages:
        assert grid.into_page(text, texts.get(page, {})) == text


@with_stats
def test_the_committed_comparisons_are_those_of_the_committed_seeds():
    results = compare_tables.load()
    del results["sampling"]
    for name, numbers in results.items():
        again = compare_tables.compared(name, numbers["arms"])["comparisons"]
        for mine, theirs in zip(again, numbers["comparisons"], strict=True):
            arm = numbers["arms"].get(theirs["arm"])  # none: a difference of differences
            seeds = arm[theirs["number"]]["seeds"] if arm else [1.0]
            rounding = 2.5e-4 * max(map(abs, seeds))
            assert mine["difference"] == pytest.approx(theirs["difference"], abs=rounding)
            p = pytest.approx(theirs.get("p_holm", 1), rel=0.05, abs=1e-3)
            assert mine.get("p_holm", 1) == p


def points(comparison: dict, scale: float) -> str:
    """A difference with its interval as the text of the pages has it: "2.8 [2.3, 3.3]"."""
    mean, low, high = (scale * x for x in (comparison["difference"], *comparison["interval"]))
    text = f"{mean:.1f} [{min(low, high):.1f}, {max(low, high):.1f}]"
    return text.replace("-", "−")


@with_stats
def test_every_interval_in_the_text_is_that_of_a_comparison():
    results = compare_tables.load()
    comparisons = [c for numbers in results.values() for c in numbers["comparisons"]]
    seeds = [results[name]["arms"]["GRPO"]["at_budget"]["seeds"] for name in ("no_kl", "shared")]
    comparisons.append(paired.difference(*seeds))  # what the KL costs GRPO
    learned, sizes = baselines_tables.found()
    for row, other, column in product(learned, learned, baselines_tables.COLUMNS):
        comparisons.append(baselines_tables.difference(learned, row, other, column))
    comparisons.append(paired.difference(*(sizes[G][-1]["seeds"] for G in (2, 8))))
    known = {points(c, scale) for c in comparisons if c["interval"] for scale in (100, -100, 1, -1)}
    lines = README.read_text("utf-8").splitlines()
    text = " ".join(line for line in lines if not line.startswith("|"))
    shown = re.findall(r"[−\d.]+ \[[−\d.]+, [−\d.]+\]", text)
    assert shown and [each for each in shown if each not in known] == []


def test_the_conclusions_of_the_pages_follow_from_the_comparisons():
    results = compare_tables.load()

    def different(experiment: str, number: str = "at_budget") -> set[str]:
        chosen = [c for c in results[experiment]["comparisons"] if c["number"] == number]
        return {c["arm"] for c in chosen if c["p_holm"] < paired.LEVEL}

    assert different("shared") == {"REINFORCE", "DAPO"}
    assert different("no_kl") == {"DAPO", "MaxRL", "GSPO", "CISPO"}
    assert different("pieces") == set() and "GRPO, constant length" not in different(
        "pieces", "length_wrong"
    )
    assert different("ablation") == {"+ dynamic sampling"}
    assert different("movement") == {"dynamic sampling, 1.8e-4"}
    assert different("batch_sigma") == {"÷ σ of the batch", "with KL"}
    predicted = (0.01, 0.03), (-0.015, 0), (-0.01, 0.01), (-0.01, 0.01)  # all held, and this:
    for (low, high), gap in zip(predicted, results["batch_sigma"]["comparisons"]):
        assert low <= gap["difference"] <= high
    dr, over, _, dr_no_kl, over_no_kl, *_ = (
        np.array(arm["at_budget"]["seeds"]) for arm in results["batch_sigma"]["arms"].values()
    )
    assert ((over - dr) > (over_no_kl - dr_no_kl)).all()
    without_kl, with_kl = results["no_kl"]["arms"], results["shared"]["arms"]
    costs = without_kl["GRPO"]["at_budget"]["mean"] - with_kl["GRPO"]["at_budget"]["mean"]
    gain = results["ablation"]["comparisons"][-1]["difference"]
    ladder = " ".join((ROOT / "algorithms/README.md").read_text("utf-8").split())
    assert f"costs {100 * costs:.1f} points" in ladder
    assert f"worth {100 * gain:.1f} points" in ladder
    assert max(without_kl, key=lambda arm: without_kl[arm]["at_budget"]["mean"]) == "GRPO"
    runs = grid.load_runs(baselines.RESULTS)
    for G in baselines.SIGN_SIZES:
        both = ({"advantage": name, "G": G, "steps": 60} for name in ("2R − 1", "R − mean"))
        ends = [[run["end"] for run in grid.select(runs, arm | {"minibatches": 4})] for arm in both]
        assert np.mean(ends[0]) > np.mean(ends[1])


@pytest.mark.slow
@pytest.mark.parametrize("side", ["ours", "trl"])
def test_the_benchmark_times_a_step(side):
    pytest.importorskip("trl")
    worker = bench_speed.Worker(getattr(bench_speed, side), {"model": "base"})
    assert min(worker.step()) > 0
    worker.process.kill()
