"""The comparison of the scripts: its arms, its program, and the committed numbers on the pages."""

import json
import re
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from conftest import ROOT
from test_grid import one_by_one, with_stats
from test_staleness import batch

from algorithms import dapo, grpo
from lessons.experiments import (
    baselines,
    baselines_tables,
    bench_speed,
    compare,
    compare_tables,
    kl,
    update_norm,
    write_pages,
)
from lessons.experiments.compare import Arm, Config, Run
from lessons.experiments.compare_tables import README
from lessons.experiments.harness import grid, paired
from lessons.experiments.losses import over_mixed
from toy_env.model import load_policy

SMALL = {"steps": 2, "prompts_per_step": 4, "group_size": 4, "max_new_tokens": 24}
SMALL |= {"eval_problems": 2, "eval_every": 0}


@pytest.fixture
def rows_of(monkeypatch, no_curves):
    """rows_of(script, replaced, **settings): the metrics of a run of two steps."""
    monkeypatch.setattr(compare, "summary", lambda folder, rows: rows)

    def rows(script: str, replaced: str = "", **settings) -> list[dict]:
        return compare.train(Run(Arm(script, SMALL | settings, replaced), 0))

    return rows


# ---------------------------------------------------------------------- the arms


def test_a_token_mean_over_mixed_groups_is_that_without_the_silent():
    """Row 3 has an advantage of 0, and here row 0, too: the loss is that of the others alone."""
    tensors, loss = batch(), partial(dapo.policy_loss, config=dapo.Config())
    tensors["advantages"][0] = 0
    mixed = {name: tensor[[1, 2, 4, 5]] for name, tensor in tensors.items()}
    torch.testing.assert_close(over_mixed(loss)(**tensors), loss(**mixed))
    assert not torch.isclose(loss(**tensors), loss(**mixed))


@pytest.mark.slow
def test_the_ablation_starts_at_grpo_and_ends_at_dapo(rows_of):
    """Its first row trains as grpo.py does without KL, step for step; its last row is dapo.py."""
    first, *_, last = compare.EXPERIMENTS["ablation"].values()
    change = {name: first.settings[name] for name in compare.PLAIN_DAPO}
    ours = rows_of("dapo", first.replaced, **change)
    for mine, theirs in zip(ours, rows_of("grpo", kl_coef=0.0)):
        assert mine["groups_by_k"] == theirs["groups_by_k"] and mine["length"] == theirs["length"]
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
        assert mine["update_norm"] == pytest.approx(theirs["update_norm"], rel=1e-3)
    assert dapo.policy_loss.__module__ == "algorithms.dapo" and not last.replaced  # put back
    assert vars(dapo.Config()).items() >= {name: last.settings[name] for name in change}.items()


@pytest.mark.slow
def test_update_norm_is_the_move_of_the_policy(tmp_path, train):
    """One step of one update: the distance between the base and the checkpoint. And nothing else
    changes."""
    settings = {"steps": 1, "num_minibatches": 1, "learning_rate": 1e-3}
    (plain,) = train(grpo, "plain", **settings)
    with update_norm.measured():
        (row,) = train(grpo, "measured", **settings)
    before, after = (
        torch.nn.utils.parameters_to_vector(load_policy(model)[0].parameters())
        for model in ("base", str(tmp_path / "measured/checkpoint"))
    )
    moved = (after - before).norm().item()
    assert row.pop("update_norm") == pytest.approx(moved, rel=1e-4) and moved > 0
    assert row == plain


# ---------------------------------------------------------------------- a run, and the program


def test_a_run_is_summed_up_by_hand(tmp_path):
    """20 steps of 1 prompt x 10 completions, evaluated after 10 (150 drawn) and 20 (400 drawn):
    budget 200."""
    common = {"held_out": None, "silent": 0.5}
    updates = {"update_norm": 0.5, "clipped_up": 0.1, "clipped_down": 0.2}
    rows = [
        common | updates | {"step": step, "entropy": step, "completions": 15 * step}
        for step in range(1, 21)
    ]
    rows[4] = common | {"step": 5, "entropy": 5, "silent": 1.0}  # no group was mixed: no update
    rows[9]["held_out"], rows[19]["completions"] = 0.6, 400
    config = {"steps": 20, "prompts_per_step": 1, "group_size": 10, "num_minibatches": 4}
    config |= {"learning_rate": 1e-3}
    after, before = ({"accuracy": {"all": {"sampled": rate}}} for rate in (0.8, 0.3))
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    results = {"before": before, "after": after}
    (tmp_path / "results.json").write_text(json.dumps(results), "utf-8")
    shown = compare.summary(tmp_path, rows)
    assert shown["budget"] == 200 and shown["at_budget"] == pytest.approx(0.6 + 0.2 * 50 / 250)
    assert shown["update_norm"] == 0.5 and shown["silent"] == pytest.approx(0.525)
    assert shown["entropy"] == 15.5 and shown["length_right"] is None  # of the last ten
    curves = shown["curves"]
    assert curves["completions"] == [[0, 150, 400], [0.3, 0.6, 0.8]]
    assert curves["updates"] == [[0, 40, 80], [0.3, 0.6, 0.8]]
    assert curves["clipped"] == [[3, 8, 13, 18], pytest.approx([0.3] * 4)]
    assert curves["silent"][1] == pytest.approx([0.6, 0.5, 0.5, 0.5])


@with_stats
@pytest.mark.slow
def test_the_program_makes_the_numbers_of_every_arm(tmp_path, monkeypatch, spy, no_curves):
    arms = {title: Arm(compare.SCRIPTS[title], SMALL) for title in ("GRPO", "DAPO")}
    experiments = {"shared": arms, "sampling": {"base": Arm("")} | arms}
    problems = compare.held_out_problems(2, compare.LEVELS)
    monkeypatch.setattr(compare, "EXPERIMENTS", experiments)
    monkeypatch.setattr(compare, "held_out_problems", lambda n, levels: problems)
    monkeypatch.setattr(compare, "SAMPLES", 64)
    monkeypatch.setattr(grid, "in_parallel", one_by_one)
    written = spy(compare_tables, "texts")
    compare.main(Config(experiments=tuple(experiments), seeds=2, output=str(tmp_path)))
    for name, of_experiment in experiments.items():
        numbers = written[0].args[0][name]
        assert numbers["seeds"] == [0, 1] and numbers["arms"].keys() == of_experiment.keys()
    assert (tmp_path / "shared.png").stat().st_size > 10_000


@with_stats
def test_samplings_are_compared_problem_by_problem(monkeypatch):
    """The spread between problems is in both; of a difference only its own is left."""
    monkeypatch.setattr(paired, "DRAWS", 200)
    rng, gains = np.random.default_rng(0), {"pass@1": 0.02, "pass@4": 0.03, "pass@64": 0.04}
    base = rng.random((3, 50))
    better = base + np.array([*gains.values()])[:, None] + 0.001 * rng.normal(size=(4, 1, 50))
    rates = {"base": [{"pass": base, "majority": base}]}
    rates["GRPO"] = [{"pass": of_seed, "majority": base} for of_seed in better]
    for c in compare_tables.sampling_numbers(rates, compare.KS)["comparisons"]:
        gain = gains.get(c["number"], 0.0)
        assert gain - 0.001 < c["interval"][0] <= c["difference"] <= c["interval"][1] < gain + 0.001
        assert c["p_holm"] < 0.05 if gain else c["p_holm"] == 1


# ---------------------------------------------------------------------- the committed numbers


@with_stats
def test_the_pages_show_the_committed_numbers():
    """python lessons/experiments/write_pages.py writes them."""
    for texts in write_pages.pages():
        for page, places in texts.items():
            text = page.read_text("utf-8")
            assert grid.into_page(text, places) == text


@with_stats
def test_the_committed_comparisons_are_those_of_the_committed_seeds():
    results = compare_tables.load()
    for name in ("shared", "no_kl", "ablation", "movement"):
        numbers = results[name]
        again = compare_tables.compared(numbers["arms"])["comparisons"]
        for mine, theirs in zip(again, numbers["comparisons"], strict=True):
            assert mine["difference"] == pytest.approx(theirs["difference"], rel=0.01, abs=2.5e-4)
            assert mine["p_holm"] == pytest.approx(theirs["p_holm"], rel=0.05, abs=1e-3)


def points(comparison: dict, scale: float) -> str:
    """A difference with its interval as the text of the page has it: "2.8 [2.3, 3.3]"."""
    mean, low, high = (scale * x for x in (comparison["difference"], *comparison["interval"]))
    text = f"{mean:.1f} [{min(low, high):.1f}, {max(low, high):.1f}]"
    return text.replace("-", "−")


@with_stats
def test_every_interval_in_the_text_is_that_of_a_comparison():
    results = compare_tables.load()
    comparisons = [c for numbers in results.values() for c in numbers["comparisons"]]
    seeds = [results[name]["arms"]["GRPO"]["at_budget"]["seeds"] for name in ("no_kl", "shared")]
    comparisons.append(paired.difference(*seeds))  # what the KL costs GRPO
    no_kl = results["no_kl"]["arms"]
    lengths = [no_kl[arm]["length_wrong"]["seeds"] for arm in ("GRPO", "Dr. GRPO")]
    comparisons.append(paired.difference(*lengths))
    made = [kl.of_arm(grid.load_runs(kl.RESULTS), arm) for arm in kl.GRPO_ARMS + kl.RULE_ARMS]
    made = [runs for runs in made if len(runs) == 10]
    for arm, other, number in product(made, made, ("final", "length_wrong")):
        values = ([run[number] for run in runs] for runs in (arm, other))
        comparisons.append(paired.difference(*values))
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
    at_budget = {
        "shared": {"REINFORCE", "DAPO"},
        "no_kl": {"DAPO", "MaxRL", "GSPO", "CISPO"},
        "ablation": {"+ dynamic sampling"},
        "movement": {"dynamic sampling, 1.8e-4"},
    }
    for experiment, arms in at_budget.items():
        comparisons = results[experiment]["comparisons"]
        assert {c["arm"] for c in comparisons if c["p_holm"] < paired.LEVEL} == arms

    def seeds(experiment: str, arm: str) -> np.ndarray:
        return np.array(results[experiment]["arms"][arm]["at_budget"]["seeds"])

    costs = (seeds("no_kl", "GRPO") - seeds("shared", "GRPO")).mean()
    gain = results["ablation"]["comparisons"][-1]["difference"]
    ladder = " ".join((ROOT / "algorithms/README.md").read_text("utf-8").split())
    assert f"costs {100 * costs:.1f} points" in ladder
    assert f"worth {100 * gain:.1f} points" in ladder
    without_kl = results["no_kl"]["arms"]
    assert max(without_kl, key=lambda arm: seeds("no_kl", arm).mean()) == "GRPO"
    runs = grid.load_runs(baselines.RESULTS)
    for G in baselines.SIGN_SIZES:
        both = ({"advantage": name, "G": G, "steps": 60} for name in ("2R − 1", "R − mean"))
        ends = [[run["end"] for run in grid.select(runs, arm | {"minibatches": 4})] for arm in both]
        assert np.mean(ends[0]) > np.mean(ends[1])


@pytest.mark.slow
@pytest.mark.parametrize("side", [bench_speed.ours, bench_speed.trl])
def test_the_benchmark_times_a_step(side):
    pytest.importorskip("trl")
    settings = {"model": "base", "prompts_per_step": 4, "device": "cpu"}
    (seconds,), memory = bench_speed.alone(side, settings, 1)
    assert seconds > 0 and 0.1 < memory < 100
