"""The experiments on a pretrained model, with a random one in its place: the task of sums, a run,
folded scores, and what the benchmark has TRL read.

Broken on purpose: scores folded without signs; a rate that is not the best.
"""

import numpy as np
import pytest
import torch
from conftest import build_tiny_model

from lessons.experiments import bench_speed, real_model, real_scores, scale_out, sums
from lessons.experiments.harness.grid import load_runs
from toy_env import arithmetic
from toy_env.model import model_prompts
from toy_env.rollout import completion_logps, sample


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (" 49", 49),
        ("\n49.\n", 49),
        ("-3", -3),
        ("49 apples", None),
        ("4 9", None),
        ("49..", None),
        ("49.0", None),
        ("\u0664\u0669", None),  # 49 in Arabic digits
        ("", None),
    ],
)
def test_a_completion_is_the_number_and_nothing_else(completion, answer):
    problem = sums.held_out_problems(1)[0]
    assert sums.extract_answer(completion) == answer
    assert sums.reward(problem, f" {problem.answer}.") == 1
    assert sums.reward(problem, f" {problem.answer + 1}") == 0


def test_the_problems_are_those_of_arithmetic_with_one_operation(letters):
    ours, theirs = sums.held_out_problems(64), arithmetic.held_out_problems(64, (1,))
    assert [problem.answer for problem in ours] == [problem.answer for problem in theirs]
    for problem in ours:
        expression = problem.reply.removesuffix(" =")
        assert problem.prompt == f"What is {expression}?" and eval(expression) == problem.answer
    (prompt,) = model_prompts(letters, ours[:1], sums)
    assert prompt == f"{sums.INSTRUCTION}\n{ours[0].prompt}{ours[0].reply}"


@pytest.fixture
def model(tmp_path, monkeypatch, letters, no_curves):
    """A random model in the place of the pretrained one."""
    folder = tmp_path / "model"
    build_tiny_model(len(letters)).save_pretrained(folder)
    letters.save_pretrained(folder)
    for module in (real_model, real_scores):
        monkeypatch.setattr(module, "MODEL", folder)
    return folder


def test_a_run_is_made_and_leaves_its_result_alone(model, monkeypatch):
    monkeypatch.setattr(real_model, "PROBLEMS", 2)
    for run in (real_model.Run("", 0.0, 0, 0), real_model.Run("grpo", 1e-3, 0, 1)):
        result = real_model.train(run)
        assert all(len(values) == run.steps for values in result["log"].values())
        assert {"sampled", "greedy", "pass@16", "majority@16", "entropy"} < result["end"].keys()
    assert [path.name for path in model.parent.iterdir()] == ["model"]


def test_each_script_gets_what_it_knows_and_its_best_rate():
    settings = real_model.settings_of(real_model.Run("reinforce", 3e-5, 7, 5))
    assert settings["learning_rate"] == 3e-5 and settings["seed"] == 7
    assert not {"kl_coef", "num_minibatches"} & settings.keys()
    trials = [(script, rate) for script in ("grpo", "dapo") for rate in (1, 2, 3)]
    accuracies = (0.1, 0.3, 0.2, 0.6, 0.4, 0.5)
    trials = [
        {"script": script, "rate": rate, "end": {"sampled": accuracy}}
        for (script, rate), accuracy in zip(trials, accuracies)
    ]
    assert real_model.best_rates(trials) == {"grpo": 2, "dapo": 1}


def test_folded_scores_keep_inner_products(model, letters, monkeypatch):
    """In the mean over signs; here of one draw, for scores of more entries than buckets."""
    policy = build_tiny_model(len(letters)).eval()
    rollout = sample(policy, letters, ["ab"], 4, 6, 1.0, torch.Generator().manual_seed(0))
    whole = []
    for row in range(4):
        logp = completion_logps(policy, rollout[torch.tensor([row])], 1.0).sum()
        parts = torch.autograd.grad(logp, list(policy.parameters()))
        whole.append(torch.cat([part.flatten() for part in parts]).double().numpy())
    exact = np.stack(whole) @ np.stack(whole).T
    monkeypatch.setattr(real_scores, "WIDTH", 2048)
    assert len(whole[0]) > 4 * 2048
    folded = real_scores.scores(policy, rollout)
    size = np.sqrt(np.diag(exact))
    assert np.abs(folded @ folded.T - exact).max() < 0.15 * np.outer(size, size).max()


def test_the_page_has_the_committed_distances_from_the_identity():
    gaps, text = load_runs(real_scores.SCORES)[0], real_scores.PAGE.read_text("utf-8")
    assert gaps.keys() == {"grpo", "dr_grpo"} and max(gaps.values()) < 1e-10
    assert all(f"{gap:.1e}" in text for gap in gaps.values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # about names that TRL uses
def test_in_the_benchmark_trl_reads_the_prompts_of_the_task_alone(model, monkeypatch):
    pytest.importorskip("trl")
    build_trainer = scale_out.build_trainer

    def look(*arguments):
        raise InterruptedError(build_trainer(*arguments).train_dataset[0])

    monkeypatch.setattr(scale_out, "build_trainer", look)
    with pytest.raises(InterruptedError, match="'Answer with the number only"):
        settings = {"prompts_per_step": 2, "num_minibatches": 2, "task": sums.__name__}
        bench_speed.trl(None, {"model": str(model)} | settings)
