"""The comparison: its arms against the scripts, its program, its tables and answers, and the
committed numbers."""

import contextlib
import json
import re
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
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
    grid,
    paired,
    short_answers,
    staleness,
    weights,
)
from lessons.experiments.compare import SCRIPTS, Arm, Comparison, Config, Run, of_script, summary
from lessons.experiments.compare_tables import FRONT, README
from lessons.losses import averaged_as_grpo
from toy_env import RunFailed, UsageError
from toy_env.cli import check_settings

TINY = {
    "prompts_per_step": 4,
    "group_size": 4,
    "max_new_tokens": 24,
    "eval_problems": 2,
    "eval_every": 0,
}
SMALL = TINY | {"measure_updates": True}


@pytest.fixture
def in_this_process(monkeypatch):
    """Runs of the comparison in this process, without curves.png; what they change is put back."""
    monkeypatch.setattr(compare, "silence", contextlib.nullcontext)
    monkeypatch.setattr(grid, "in_parallel", one_by_one)
    monkeypatch.setattr(
        "toy_env.plots.draw_curves", lambda rows, results, path, title: path.touch()
    )
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def rows_of(
    name: str, script: str, folder: Path, settings: dict = SMALL, replaced: str = ""
) -> list[dict]:
    """The metrics of a run of two steps."""
    run = Run(Arm(name, script, settings, replaced), 0, 2)
    result = compare.train(run, folder)
    assert "diverged" not in result
    return [
        json.loads(line)
        for line in (run.folder(folder) / "metrics.jsonl").read_text("utf-8").splitlines()
    ]


def test_the_sample_level_loss_is_grpos():
    """A filtered completion, whose mask is empty, counts in the mean with nothing."""
    tensors = batch()
    ours, theirs = (tensors["logps"].clone().requires_grad_() for _ in range(2))
    config = dapo.Config(clip_eps_low=0.2, clip_eps_high=0.2)
    loss = averaged_as_grpo(dapo.policy_loss)
    value = loss(config=config, **(tensors | {"logps": ours}))
    expected = grpo.policy_loss(
        **(tensors | {"logps": theirs}), ref_logps=tensors["logps"], config=grpo.Config(kl_coef=0.0)
    )
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(
        *(torch.autograd.grad(x, y)[0] for x, y in ((value, ours), (expected, theirs)))
    )
    filtered = tensors | {"mask": tensors["mask"] & (torch.arange(6) != 2).unsqueeze(1)}
    without = {name: tensor[[0, 1, 3, 4, 5]] for name, tensor in tensors.items()}
    torch.testing.assert_close(
        loss(config=config, **filtered), loss(config=config, **without) * 5 / 6
    )
    assert loss(config=config, **(tensors | {"mask": torch.zeros_like(tensors["mask"])})) == 0


def test_the_ablation_starts_at_grpo_and_ends_at_dapo(tmp_path, in_this_process):
    """Its first row trains as grpo.py does without KL, step for step; its last row is dapo.py."""
    arms = list(compare.ablation().values())
    first, last = arms[0], arms[-1]
    assert compare.ABLATION["GRPO without KL"].items() <= first.settings.items()
    ours = rows_of(
        "a", "dapo", tmp_path, compare.ABLATION["GRPO without KL"] | SMALL, first.replaced
    )
    for mine, theirs in zip(ours, rows_of("b", "grpo", tmp_path, SMALL | {"kl_coef": 0.0})):
        assert mine["groups_by_k"] == theirs["groups_by_k"] and mine["length"] == theirs["length"]
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
        assert mine["update_norm"] == pytest.approx(theirs["update_norm"], rel=1e-3)
    assert dapo.policy_loss.__module__ == "algorithms.dapo"  # put back
    settings = {k: last.settings[k] for change in compare.ABLATION.values() for k in change}
    assert settings.pop("eval_every") == of_script("DAPO").settings["eval_every"] == 2
    assert not last.replaced and settings.pop(
        "overlong_filtering"
    )  # the one thing dapo.py leaves out by default
    assert all(getattr(dapo.Config(), name) == value for name, value in settings.items())
    assert [bool(arm.replaced) for arm in arms] == [True] * 4 + [False] * 2


@pytest.mark.parametrize("experiment", ["policy_loss", "compute_advantages"])
def test_the_changes_between_two_scripts_make_the_one_of_the_other(
    experiment, tmp_path, monkeypatch, in_this_process
):
    """One of Dr. GRPO's functions swapped by the comparison and the other here: step for step
    dr_grpo.py."""
    arm, after, swapped = Arm("one", "grpo", SMALL, experiment), dr_grpo, "policy_loss"
    if experiment == "policy_loss":
        swapped = "compute_advantages"
    alone = rows_of("alone", arm.script, tmp_path, arm.settings, arm.replaced)
    theirs = rows_of("theirs", after.__name__.split(".")[1], tmp_path)
    monkeypatch.setattr(f"algorithms.{arm.script}.{swapped}", getattr(after, swapped))
    ours = rows_of("ours", arm.script, tmp_path, arm.settings, arm.replaced)
    alone, ours, theirs = ([row["grad_norm"] for row in rows] for rows in (alone, ours, theirs))
    assert ours == pytest.approx(theirs, rel=1e-5) and alone != pytest.approx(theirs, rel=0.05)
    assert {arm.replaced for arm in compare.pieces().values()} == {
        "",
        "policy_loss",
        "compute_advantages",
    }


def test_every_arm_has_its_own_folder_and_the_completions_of_all(tmp_path):
    """Where an arm appears in several experiments, it is the same."""
    program = Comparison(Config(), None)
    arms = [of_script(name, rate) for name in SCRIPTS for rate in (1e-4, 2e-4)]
    for experiment in ("shared", "no_kl", "pieces", "ablation", "movement"):
        arms += program.arms(experiment).values()
    assert (
        len({(arm.name, str(arm)) for arm in arms})
        == len({arm.name for arm in arms})
        == 9 * 2 + 6 + 2 + 6 + 1
    )
    runs = [Run(arm, 0, 60) for arm in arms]
    assert len({run.folder(tmp_path) for run in runs}) == len({arm.name for arm in arms})
    for config in (run.config(tmp_path) for run in runs):
        check_settings(config)
        assert config.prompts_per_step * config.group_size == 256 and config.measure_updates
    assert program.arms("pieces")["GRPO"] == of_script("GRPO", 2e-4) and [*program.seeds()] == [
        *range(10)
    ]
    assert dapo.Config().learning_rate == grpo.Config().learning_rate == compare.RATE


def test_a_run_is_summed_up_by_hand(tmp_path):
    """20 steps of 1 prompt x 10 completions, evaluated after 10 (150 drawn) and 20 (400 drawn):
    budget 200."""
    common = {"update_norm": 0.5, "clipped_up": 0.1, "clipped_down": 0.2, "entropy": 1.0}
    common |= {"length_wrong": 4.0, "truncated": 0.0, "silent": 0.5, "seconds": 2.0}
    rows = [
        common
        | {"step": s, "rollouts": 15 * s if s <= 10 else 150 + 25 * (s - 10)}
        | {"held_out": {10: 0.6, 20: 0.8}.get(s)}
        for s in range(1, 21)
    ]
    rows[4] |= {"silent": 1.0}
    for name in (
        "update_norm",
        "clipped_up",
        "clipped_down",
    ):  # no group was mixed, nothing was updated
        del rows[4][name]
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows), "utf-8"
    )
    accuracy = {"all": {"sampled": 0.3, "greedy": 0.2}}, {"all": {"sampled": 0.8, "greedy": 0.9}}
    results = {when: {"accuracy": numbers} for when, numbers in zip(("before", "after"), accuracy)}
    (tmp_path / "results.json").write_text(json.dumps(results), "utf-8")
    config = {
        "steps": 20,
        "prompts_per_step": 1,
        "group_size": 10,
        "num_minibatches": 4,
        "learning_rate": 1e-3,
    }
    (tmp_path / "config.json").write_text(json.dumps(config | {"dynamic_sampling": True}), "utf-8")
    shown = summary(tmp_path)
    assert shown["curve"]["updates"] == [0, 40, 80]
    assert shown["curve"]["completions"] == [0, 150, 400] and shown["budget"] == 200
    assert shown["at_budget"] == pytest.approx(0.6 + 0.2 * 50 / 250)
    assert (
        shown["windows"]["clipped"][0] == pytest.approx(0.3)
        and shown["clipped_up_probability"] is None
    )
    assert shown["update_norm"] == 0.5 and shown["length_wrong"] == 4.0
    assert shown["windows"]["step"] == [3, 8, 13, 18] and shown["windows"][
        "silent"
    ] == pytest.approx([0.6, *[0.5] * 3])
    assert shown["silent_trained_on"] == 0 and shown["silent"] == pytest.approx(0.525)
    (tmp_path / "config.json").write_text(json.dumps(config | {"dynamic_sampling": False}), "utf-8")
    assert summary(tmp_path)["silent_trained_on"] == pytest.approx(0.525)
    rows[-1]["held_out"] = (
        None  # not one of the evaluated steps: the last point is the evaluation at the end
    )
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows), "utf-8"
    )
    assert summary(tmp_path)["curve"] == shown["curve"]


def fake(arms) -> dict[str, list[dict]]:
    """Summaries of four runs of every arm: the i-th arm is i points above the first, but for
    noise."""
    rng = np.random.default_rng(0)
    runs: dict[str, list[dict]] = {}
    for i, arm in enumerate(arms):
        runs[arm] = []
        for _ in range(4):
            number = 0.5 + 0.01 * i + 0.001 * rng.normal()
            run = {
                name: number + 0.1 * n + 0.001 * rng.normal()
                for n, name in enumerate(compare_tables.NUMBERS)
            }
            run |= {
                "budget": 15_360,
                "learning_rate": 2e-4,
                "completions": 15_360 + (50_000 if arm == "DAPO" else 0),
            }
            run["curve"] = {"updates": [0, 20], "completions": [0, 1280], "held_out": [0.4, number]}
            names = ("update_norm", "clipped", "truncated", "silent", "entropy", "length_wrong")
            run["windows"] = (
                {"step": [3.0, 8.0]}
                | dict.fromkeys(names, [number, number])
                | {"clipped": [None, None]}
            )
            runs[arm].append(run)
    return runs


def names_of(experiment: str) -> list[str]:
    if experiment == "matched":
        return list(compare_tables.LADDER)
    return list(Comparison(Config(), None).arms(experiment))


def results_of(experiment: str, runs: dict) -> dict:
    """The numbers of an experiment from the summaries of its runs."""
    results = {"seeds": [0, 1, 2, 3], "arms": compare_tables.training_numbers(runs)}
    return results | compare_tables.compared(experiment, results["arms"])


@with_stats
@pytest.mark.parametrize("experiment", sorted({*get_args(compare.Experiment)} - {"sampling"}))
def test_every_experiment_has_its_table_and_its_figure(experiment, tmp_path):
    """At most seven columns, every comparison of the family in it, true differences bold if tested,
    and a figure."""
    runs = fake(names_of(experiment))
    results = grid.rounded(results_of(experiment, runs))
    text = compare_tables.table(experiment, results)
    words = " ".join(text.split())
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({row.count(" | ") for row in rows}) == 1 and rows[0].count(" | ") <= 6
    bold = [c.get("p_holm", 1) < 0.05 for c in results["comparisons"]]
    assert text.count("**") == 2 * sum(bold) and any(bold) == (
        experiment not in compare_tables.UNTESTED
    )
    digits = {"entropy": 3}
    shown = [
        c
        for c in results["comparisons"]
        if compare_tables.change(c, digits.get(c["number"], 1)) in text
    ]
    assert len(shown) == len(results["comparisons"]) == len(compare_tables.family(experiment, runs))
    assert not any(bold) or f"{sum(bold)} of {len(bold)} comparisons are bold." in words
    for arm, of in results["arms"].items():  # what stands in a column is what its heading says
        for row in (row for row in rows if row.startswith(f"| {arm} |")):
            if "at 15,360 completions" in rows[0]:
                column = rows[0].split(" | ").index("at 15,360 completions")
                assert row.split(" | ")[column] == grid.cell(of["at_budget"])
    assert (text.count("at 65,360") == 1) == (experiment in ("shared", "no_kl", "matched"))
    sds = [c["sd"] for c in results["comparisons"] if c["number"] == "at_budget"]
    assert results["sd"] == pytest.approx(np.median(sds), rel=1e-3)
    assert f"takes {results['seeds_for_a_point']} seeds." in words
    compare_figures.draw(compare_figures.PANELS[experiment], runs, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


@with_stats
def test_what_is_so_by_construction_has_no_interval_and_what_diverged_is_said():
    runs = fake(names_of("ablation"))
    for run in runs["+ dynamic sampling"]:
        run["silent_trained_on"] = 0.0
    runs["+ clip-higher"][0] = None
    results = results_of("ablation", runs)
    text = compare_tables.table("ablation", results)
    (row,) = (line for line in text.splitlines() if "+ dynamic" in line)
    assert "| 0, by construction |" in row
    assert (
        "(3 of 4 runs)" in text
        and "Runs that diverged (in 1 of the arms) are left out" in " ".join(text.split())
    )
    assert compare_tables.find(results, "+ clip-higher", "+ overlong filtering")["pairs"] == 3


@with_stats
def test_samplings_are_compared_problem_by_problem():
    """The spread between problems is in both; of a difference only its own is left."""
    rng = np.random.default_rng(0)
    base = rng.random((1, len(compare.KS), 50))
    better = base + 0.02 + 0.001 * rng.normal(size=(4, 1, 50))
    trained = {"pass": better, "majority": base.repeat(4, axis=0)}
    results = compare_tables.sampling_numbers(
        {"base": {"pass": base, "majority": base}, "GRPO": trained}, compare.KS
    )
    for c in results["comparisons"]:
        if c["number"].startswith("pass"):
            assert c["difference"] == pytest.approx(0.02, abs=1e-3) and c["p_holm"] < 0.05
            assert 0.019 < c["interval"][0] < c["interval"][1] < 0.021
        else:
            assert c["difference"] == 0 and c["p_holm"] == 1
    text = compare_tables.table(
        "sampling", grid.rounded({"seeds": [0, 1, 2, 3], "steps": 60} | results)
    )
    assert text.count("**") == 2 * 2 and "2 of 3 comparisons are bold" in " ".join(text.split())


def test_matched_rates_are_those_of_equal_updates(monkeypatch):
    def answer(grid, function, runs, name="runs"):
        for run in runs:
            length = 0.04 if run.arm.script == "reinforce" else 0.02
            yield {"arm": {"name": run.arm.name}, "seed": run.seed, "update_norm": length}

    monkeypatch.setattr(grid.Grid, "run", answer)
    monkeypatch.setattr(grid.Grid, "path", Path(), raising=False)
    program = Comparison(Config(), grid.Grid.__new__(grid.Grid))
    assert program.matched_rates() == dict.fromkeys(compare_tables.LADDER, 2e-4) | {
        "REINFORCE": 7.9e-5
    }  # / 2^(4/3)


@with_stats
@pytest.mark.slow
@pytest.mark.parametrize("experiment", ["shared", "sampling"])
def test_the_program_makes_every_run_once(
    experiment, tmp_path, capsys, monkeypatch, in_this_process
):
    """GRPO and DAPO, and the same command again."""
    for name in ("SCRIPTS", "LADDER"):
        monkeypatch.setattr(compare, name, {"GRPO": "grpo", "DAPO": "dapo"})
    monkeypatch.setattr(compare, "COMMON", SMALL | {"eval_every": 1})
    monkeypatch.setattr(compare, "SAMPLES", 64)
    few = compare.held_out_problems
    monkeypatch.setattr(compare, "held_out_problems", lambda n, levels: few(2, levels))
    config = Config(experiments=(experiment,), seeds=2, steps=2, output=str(tmp_path))
    compare.main(config)
    assert "DAPO" in capsys.readouterr().out
    numbers = json.loads((tmp_path / f"{experiment}.json").read_text("utf-8"))
    assert numbers["seeds"] == [0, 1] and (tmp_path / f"{experiment}.png").read_bytes().startswith(
        b"\x89PNG"
    )
    if experiment == "sampling":
        assert set(numbers["arms"]) == {"base", "GRPO", "DAPO"}
        assert [rate["k"] for rate in numbers["arms"]["base"]["pass"]][-1] == 64
    else:
        drawn = {arm: n["completions"]["mean"] for arm, n in numbers["arms"].items()}
        assert (
            drawn["DAPO"] > drawn["GRPO"] == 32
            and numbers["arms"]["GRPO"]["update_norm"]["mean"] > 0
        )
    made, text = [], (tmp_path / "runs.json").read_text("utf-8")
    monkeypatch.setattr(grid, "in_parallel", lambda function, tasks, *_: made.extend(tasks))
    compare.main(config)
    assert not made and (tmp_path / "runs.json").read_text("utf-8") == text


@with_stats
def test_a_run_that_diverges_leaves_its_line_and_no_number(
    tmp_path, monkeypatch, capsys, in_this_process
):
    """A full disk, say, does not: the run is to be made again. Runs that all diverged are nothing
    to compare."""
    diverges = Run(Arm("GRPO", "grpo", SMALL | {"learning_rate": 1e30, "warmup_steps": 0}), 0, 2)
    result = compare.train(diverges, tmp_path)
    assert [*result] == ["diverged"] and "training has diverged" in result["diverged"]

    def fail(config):
        raise RunFailed("cannot write state.pt (No space left on device)")

    monkeypatch.setattr(grpo, "train", fail)
    with pytest.raises(RunFailed, match="No space left"):
        compare.train(diverges, tmp_path)
    monkeypatch.setattr(compare, "SCRIPTS", {"GRPO": "grpo"})
    monkeypatch.setattr(compare, "train", lambda run, output: result)
    with pytest.raises(RunFailed, match="every run of GRPO diverged"):
        compare.main(Config(seeds=2, output=str(tmp_path / "out")))
    assert "GRPO, seed 1: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("module", "settings", "message"),
    [
        (compare, {"seeds": 1}, "--seeds must be 2 or more, not 1"),
        (
            compare,
            {"quick": True, "steps": 10},
            "--quick chooses seeds and steps itself; leave out --steps",
        ),
        (compare, {"publish": True, "first_seed": 200}, "leave out --first_seed"),
        (short_answers, {"publish": True, "seeds": 1}, "leave out --seeds"),
        (staleness, {"publish": True, "quick": True}, "leave out --quick"),
        (staleness, {"seeds": 1}, "--seeds must be 2 or more, not 1"),
        (weights, {"seeds": 10**12}, "--seeds must be 1000 or less"),
        (bench_speed, {"publish": True, "steps": 1}, "leave out --steps"),
    ],
)
def test_bad_input_is_one_line(module, settings, message):
    with pytest.raises(UsageError, match=message):
        check_settings(module.Config(**settings))


def test_without_the_statistics_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(paired, "stats", None)
    with pytest.raises(
        UsageError, match=r"need scipy and statsmodels; pip install -e '.\[stats\]'"
    ):
        compare.main(Config(output=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------------- the committed numbers


@pytest.mark.parametrize("page", [README, FRONT], ids=["own", "front"])
def test_the_pages_show_the_committed_numbers(page):
    """python lessons/experiments/page.py writes them."""
    text = page.read_text("utf-8")
    for texts in (
        compare_tables.texts(compare_tables.load()),
        bench_speed.texts(),
        baselines_tables.texts(),
    ):
        assert grid.into_page(text, texts.get(page, {})) == text


@with_stats
def test_the_committed_comparisons_are_those_of_the_committed_seeds():
    results = compare_tables.load()
    del results["sampling"]
    for name, of_one in results.items():
        again = compare_tables.compared(name, of_one["arms"])["comparisons"]
        for mine, theirs in zip(again, of_one["comparisons"], strict=True):
            seeds = of_one["arms"][theirs["arm"]][theirs["number"]]["seeds"]
            assert mine["difference"] == pytest.approx(
                theirs["difference"], abs=2.5e-4 * max(map(abs, seeds))
            )
            assert mine.get("p_holm", 1) == pytest.approx(
                theirs.get("p_holm", 1), rel=0.05, abs=1e-3
            )


def test_the_pages_say_in_words_what_the_numbers_say():
    """Every number in the text, and every claim without one: where new results do not bear it out,
    write it anew."""
    results, short = compare_tables.load(), grid.short
    page = " ".join((README.read_text("utf-8") + FRONT.read_text("utf-8")).split())

    def of(experiment: str, arm: str, number: str) -> float:
        return results[experiment]["arms"][arm][number]["mean"]

    def points(experiment: str, arm: str, other: str, sign: int, number: str = "at_budget") -> str:
        """A difference that survives the correction and has the sign; with sign 0, a loss that does
        not survive."""
        c = compare_tables.find(results[experiment], arm, other, number)
        assert (
            (c["p_holm"] < paired.LEVEL and c["difference"] * sign > 0)
            if sign
            else c["p_holm"] > paired.LEVEL
        )
        scale = (sign or -1) * (1 if number == "length_wrong" else 100)
        mean, low, high = (scale * value for value in (c["difference"], *c["interval"]))
        return f"{mean:.1f} [{min(low, high):.1f}, {max(low, high):.1f}]"

    def different(experiment: str, other: str = "") -> set[str]:
        """The arms whose difference at equal completions survives the correction."""
        chosen = [
            c
            for c in results[experiment]["comparisons"]
            if c["number"] == "at_budget" and other in c["other"]
        ]
        return {c["arm"] for c in chosen if c["p_holm"] < paired.LEVEL}

    ends = [n["at_budget"]["mean"] for n in results["shared"]["arms"].values()]
    assert (
        f"all nine lie between {short(min(ends))} and {short(max(ends))}; REINFORCE and DAPO are above GRPO"
        in page
    )
    dapo, cispo = (short(of("shared", name, "final")) for name in ("DAPO", "CISPO"))
    times = [f"{of('shared', name, 'completions') / 15_360:.1f}" for name in ("DAPO", "CISPO")]
    assert (
        f"go on to {dapo} and {cispo}, for {times[0]} and {times[1]} times the completions" in page
    )
    assert (
        f"all nine lie from {short(min(ends))} to {short(max(ends))}; after correction REINFORCE and DAPO"
        in page
    )
    assert different("shared") == {"REINFORCE", "DAPO"}

    without = {name: n["at_budget"]["mean"] for name, n in results["no_kl"]["arms"].items()}
    gap = paired.difference(
        *(results[name]["arms"]["GRPO"]["at_budget"]["seeds"] for name in ("no_kl", "shared"))
    )
    gained = "{:.1f} [{:.1f}, {:.1f}]".format(
        *(100 * x for x in (gap["difference"], *gap["interval"]))
    )
    assert max(without, key=without.get) == "GRPO" and len(without) == 9
    assert (
        f"its own, GRPO gains {gained} points and ends at {short(without['GRPO'])}, the highest mean of the nine. DAPO"
        in page
    )
    ends_without = " and ".join(short(end(without.values())) for end in (min, max))
    assert (
        f"all nine lie between {ends_without}; GRPO gains {gained} points and has the highest mean. DAPO"
        in page
    )
    assert f"DAPO goes on to {dapo}, for {times[0]} times the completions" in page

    grpo, sigma, length, both = results["pieces"]["arms"]
    assert different("pieces") == set()
    assert f"get shorter, by {points('pieces', sigma, grpo, -1, 'length_wrong')} tokens" in page
    assert points("pieces", length, grpo, 0, "length_wrong")
    whole, shorter, longer = (of("pieces", arm, "update_norm") for arm in (grpo, sigma, length))
    assert (
        f"{1 - shorter / whole:.0%} shorter without ÷ σ, {longer / whole - 1:.0%} longer with the constant"
        in page
    )

    (_, _, higher, soft, token_level, dynamic), (_, slower) = (
        results[n]["arms"] for n in ("ablation", "movement")
    )
    end = f"{short(of('ablation', dynamic, 'final'))} at {of('ablation', dynamic, 'completions'):,.0f}."
    assert (
        f"correction**, {points('ablation', dynamic, token_level, 1)} points; it goes on to {end}"
        in page
    )
    assert different("ablation") == {dynamic}
    moved = [
        of(*arm, "update_norm")
        for arm in (("ablation", dynamic), ("ablation", token_level), ("movement", slower))
    ]
    assert (
        f"updates are {moved[0] / moved[1] - 1:.0%} longer, but that is not why: where they are not, it gains "
        in page
    )
    assert (
        f"it gains {points('movement', slower, token_level, 1)}. The soft" in page
        and moved[2] < moved[1]
    )
    cut, wrong = (
        [of("ablation", arm, n) for arm in (soft, higher)] for n in ("truncated", "length_wrong")
    )
    assert f"{cut[0]:.0%} of completions are cut and not {cut[1]:.0%}, and" in page
    assert f"wrong ones end at {wrong[0]:.0f} tokens and not {wrong[1]:.0f}." in page

    base, *trained = results["sampling"]["arms"]
    for column, text in (
        (("majority", 64), "Maj@64 from {} to {} or"),
        (("pass", 4), "Pass@4 from {} to {} or more."),
    ):
        first, *rates = (
            compare_tables.rate_of(results["sampling"], arm, *column)["mean"]
            for arm in (base, *trained)
        )
        assert first < min(rates) and text.format(short(first, 2), short(min(rates), 2)) in page
    assert (
        f"Pass@64 = {short(compare_tables.rate_of(results['sampling'], base, 'pass', 64)['mean'])}"
        in page
    )
    assert compare_tables.rate_of(results["sampling"], base, "majority", 64)["mean"] < 0.5


@with_stats
def test_the_pages_say_of_baselines_what_the_runs_say():
    page = " ".join((README.read_text("utf-8") + FRONT.read_text("utf-8")).split())
    of_baselines, of_signs, of_sizes = baselines_tables.found()
    arithmetic, _, expressions, _ = baselines_tables.COLUMNS

    def points(row: str, column: str = arithmetic, survives: bool = True) -> str:
        gap = of_baselines[row][column]["gap"]
        assert (gap["p_holm"] < paired.LEVEL) == survives
        numbers = (100 * number for number in (gap["difference"], *gap["interval"]))
        return "{:.1f} [{:.1f}, {:.1f}]".format(*numbers).replace("-", "−")

    left_out = "R, all-right groups left out"
    without = " and ".join(
        points(left_out, column, survives=False) for column in (arithmetic, expressions)
    )
    assert (
        f"A = R ends {points('R')} and {points('R', expressions)} points above R − mean, and without these"
        in page
    )
    assert f"without these groups {without}, which do not survive" in page
    four = [
        of_baselines[row][column]["gap"]["difference"]
        for row in ("R", left_out)
        for column in (arithmetic, expressions)
    ]
    assert (
        "ended {:.1f} and {:.1f} points above R − mean on our two small tasks, without them {:.1f} and {:.1f}".format(
            *(100 * gap for gap in four)
        )
        in page
    )
    assert (
        f"exact norms gain {points('best b of the others')} on arithmetic; length and logits gain"
        in page
    )
    for row, column in product(("OPO", "OTB"), baselines_tables.COLUMNS):
        points(row, column, survives=False)
    for column in (arithmetic, expressions):
        one_update = {
            row: of_row[column]["mean"] for row, of_row in of_baselines.items() if row[0] != "4"
        }
        assert max(one_update, key=one_update.get) == "R"
    gaps = [100 * number["gap"]["difference"] for number in of_signs["2R − 1"].values()]
    assert all(1 < gap < 3 for gap in gaps)  # which lesson 19 shows
    means = {G: [number["mean"] for number in of_size] for G, of_size in of_sizes.items()}
    best = [max(means, key=lambda G: means[G][i]) for i in range(len(baselines.BUDGETS))]
    assert {*best[:3]} == {4, 8} and best[-1] == 2
    assert all(
        max(means[G][i] for G in (32, 64)) < max(means[G][i] for G in (4, 8))
        for i in range(len(best))
    )


@pytest.mark.slow
@pytest.mark.parametrize("side", ["ours", "trl", "floor"])
def test_the_benchmark_times_a_step(side):
    pytest.importorskip("trl")
    worker = bench_speed.Worker(getattr(bench_speed, side), "base")
    assert worker.step() > 0
    worker.process.kill()


def test_the_page_is_short():
    """Under 1,600 words, those in tables with them; a number is none."""
    assert len(re.findall(r"[^\s|]*[^\W\d_][^\s|]*", README.read_text("utf-8"))) < 1600
