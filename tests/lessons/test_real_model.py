"""The runs of a pretrained model, with a random one in its place: the task of sums, and a run."""

import pytest
from conftest import build_tiny_model

from lessons.experiments import real_model, sums
from toy_env import arithmetic
from toy_env.model import model_prompts


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
    monkeypatch.setattr(real_model, "MODEL", folder)
    return folder


@pytest.mark.filterwarnings("ignore:std")  # DAPO keeps no group of a random model
def test_a_run_of_every_script_is_made_and_leaves_its_result_alone(model, monkeypatch):
    monkeypatch.setattr(real_model, "PROBLEMS", 2)
    runs = [real_model.Run(script, 1e-3, 0, 1) for script in real_model.CHOSEN]
    for run in (real_model.Run("", 0.0, 0, 0), *runs):
        result = real_model.train(run)
        assert all(len(values) == run.steps for values in result["log"].values())
        assert {"sampled", "greedy", "pass@16", "majority@16", "entropy"} < result["end"].keys()
    assert [path.name for path in model.parent.iterdir()] == ["model"]


def test_unpacking_prints_the_folder_for_model(model, capsys):
    real_model.main(real_model.Config(unpack=True))
    assert capsys.readouterr().out == f"{model}\n"
