"""The experiment of lesson 17: what the verifier accepts and rejects, what the runs are, and what
is made of them."""

import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import lessons
from algorithms import dr_grpo
from lessons.experiments import erring, erring_task, learning
from lessons.experiments.erring import Run, gap, slopes, train
from lessons.experiments.erring_task import Errors, Verifier
from lessons.experiments.grid import load_runs
from toy_env.arithmetic import Problem
from toy_env.model import load_policy
from toy_env.tasks import load_task

PROBLEM = Problem("29+46-36", 39, 2)


def rate(errors: Errors, completion: str, n: int = 4000) -> float:
    verifier = Verifier(errors, "a seed")
    return np.mean([verifier.reward(PROBLEM, completion) for _ in range(n)])


def test_the_verifier_errs_at_its_rates():
    errors = Errors(accepted=0.2, rejected=0.3)
    assert rate(errors, "#38") == pytest.approx(0.2, abs=0.03) and rate(
        errors, "#39"
    ) == pytest.approx(0.7, abs=0.03)
    assert rate(Errors(), "#38") == 0 and rate(Errors(), "#39") == 1
    fixed = Errors(accepted=0.2, rejected=0.3, fixed=True)
    assert {rate(fixed, f"#{n}", 20) for n in range(60) if n != 39} == {
        0,
        1,
    }  # the same verdict each time
    texts = [f"#{n}" for n in range(100, 3100)]
    verifier = Verifier(fixed, "another")
    assert np.mean([verifier.reward(PROBLEM, text) for text in texts]) == pytest.approx(
        0.2, abs=0.03
    )
    assert verifier.right == [False] * 3000 and not verifier.truth((10, 8)).any()
    verifier.reward(PROBLEM, "#39")
    assert verifier.truth((1, 2)).tolist() == [[0, 1]]


def test_forms_of_errors():
    def verdicts(form: str) -> list[float]:
        return [Verifier(Errors(form=form), "").reward(PROBLEM, text)
                for text in ("#39", "#38", "#49", "#0", "9", "29+46=75;75-36=39;#39")]  # fmt: skip

    assert verdicts("answer 0 accepted") == [1, 0, 0, 1, 0, 1]
    assert Verifier(Errors(form="answer 0 accepted"), "").reward(Problem("29-29", 0, 1), "#0") == 1
    assert verdicts("last digit decides") == [1, 0, 1, 0, 0, 1]
    assert verdicts("long ones rejected") == [1, 0, 0, 0, 0, 0]
    task = load_task("lessons.experiments.erring_task")
    assert [task.reward(PROBLEM, text) for text in ("#49", "#38", "#-1")] == [1, 0, 0]
    assert len(erring_task.sample_problems(3, (2,), random.Random(0))) == 3


def test_a_run_logs_truth_and_verdicts(monkeypatch):
    monkeypatch.setattr(erring, "WINDOW", 1)
    run = train(Run(0, 2, accepted=0.5, rejected=0.5))
    right, passed = (np.mean(run["windows"][name]) for name in ("right", "passed"))
    assert passed == pytest.approx(0.5, abs=0.1) and 0.25 < right < 0.45 and 0.3 < run["end"] < 0.5
    assert max(run["windows"]["silent"]) < 0.1


def test_gradient_descent_moves_the_weights_by_the_gradient(monkeypatch):
    """One update by a gradient far longer than the scripts' limit of its norm, in the first of 11
    warm steps."""
    policy = load_policy("base")[0]
    before, gradients = (
        torch.nn.utils.parameters_to_vector(policy.parameters()).detach().clone(),
        [],
    )

    def loss(logps, **_):
        gradients.append(torch.autograd.grad(logps.sum(), policy.parameters(), retain_graph=True))
        return logps.sum()

    monkeypatch.setattr(learning, "evaluate", lambda *_, **__: SimpleNamespace(correct=np.zeros(1)))
    settings = {
        "rate": 1e-3,
        "plain": True,
        "minibatches": 1,
        "steps": 1,
        "loss": loss,
        "policy": policy,
    }
    learning.learn("arithmetic", 0, lambda batch, _: batch.rewards, dr_grpo, **settings)
    moved = torch.nn.utils.parameters_to_vector(policy.parameters()).detach() - before
    gradient = torch.cat([part.flatten() for part in gradients[0]])
    assert gradient.norm() > 10 and (moved + 1e-3 / 11 * gradient).norm() < 1e-3 * moved.norm()


def test_the_index_says_what_the_committed_runs_say():
    runs = load_runs(erring.RESULTS)
    assert len(runs) == 535 and [run["seed"] for run in erring.select(runs, {})] == [*range(10)]
    index = " ".join((Path(lessons.__file__).parent / "README.md").read_text("utf-8").split())
    kept = {arm: f"{100 * ratio:.0f} %" for arm, (ratio, _) in slopes(runs).items()}
    assert (
        f"GRPO keeps {kept['GRPO', 0.4, 'accepted']} of its initial slope if all errors are acceptances, "
        in index
    )
    assert f"acceptances, {kept['GRPO', 0.4, 'rejected']} if they are rejections" in index
    form, random_ones = erring.FORMS["long ones rejected"], erring.AS_OFTEN["long ones rejected"]
    assert (
        f"costs {-100 * gap(runs, form, random_ones)['difference']:.1f} points; rejecting" in index
    )
    low, high = gap(runs, random_ones, {})["interval"]
    assert low < 0 < high
