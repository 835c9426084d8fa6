"""The experiment of lesson 17: verifiers that err, and training from their verdicts."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from algorithms import grpo
from lessons.experiments import erring
from lessons.experiments.erring import Run, Verifier, train
from lessons.experiments.harness import learning
from toy_env.arithmetic import Problem

PROBLEM = Problem("29+46-36", 39, 2)


def passing(*texts: str, **errors) -> float:
    """The share of the completions of PROBLEM that pass."""
    verifier = Verifier(Run(0, 40, **errors))
    return np.mean([verifier.reward(PROBLEM, text) for text in texts])


def test_the_verifier_errs_at_its_rates():
    errors, texts = {"accepted": 0.2, "rejected": 0.3}, [f"#{n}" for n in range(100, 3100)]
    assert passing(*["#38"] * 4000, **errors) == pytest.approx(0.2, abs=0.03)
    assert passing(*["#39"] * 4000, **errors) == pytest.approx(0.7, abs=0.03)
    fixed = errors | {"fixed": True}
    assert {passing(*[text] * 20, **fixed) for text in texts[:60]} == {0, 1}  # one verdict each
    assert passing(*texts, **fixed) == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize(
    ("form", "verdicts"),
    [
        ("answer 0 accepted", [1, 0, 0, 1, 0, 1]),
        ("last digit decides", [1, 0, 1, 0, 0, 1]),
        ("long ones rejected", [1, 0, 0, 0, 0, 0]),
    ],
)
def test_forms_of_errors(form, verdicts):
    texts = ("#39", "#38", "#49", "#0", "9", "29+46=75;75-36=39;#39")
    assert [passing(text, form=form) for text in texts] == verdicts


@pytest.mark.slow
def test_a_run_trains_on_verdicts_and_logs_the_truth_too(monkeypatch, spy):
    monkeypatch.setattr(erring, "WINDOW", 1)
    monkeypatch.setattr(learning, "EVALUATED", 256)
    trained_on = spy(grpo, "compute_advantages")
    run = train(Run(0, 2, accepted=0.5, rejected=0.5))
    right, passed = (np.mean(run["windows"][name]) for name in ("right", "passed"))
    assert passed == pytest.approx(0.5, abs=0.1) and 0.25 < right < 0.45
    rewards = torch.stack([call.rewards for call in trained_on])
    assert rewards.mean().item() == pytest.approx(passed, rel=1e-3)


def test_gradient_descent_moves_the_weights_by_the_gradient():
    """Without a limit of its norm, in the second of 11 warm steps."""
    policy = torch.nn.Linear(3, 2, bias=False)
    expected = policy.weight.detach() - 0.1 * 2 / 11
    policy.weight.grad = torch.full((2, 3), 100.0)
    erring.descend(policy, None, SimpleNamespace(learning_rate=1e-3, warmup_steps=10), 2)
    torch.testing.assert_close(policy.weight.detach(), expected)
