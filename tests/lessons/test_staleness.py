"""The staleness experiment: one average for all arms, predictions that can fail, and runs from
inside."""

import copy
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

from algorithms import grpo
from lessons.experiments import precision, staleness
from lessons.experiments.harness import learning
from lessons.experiments.harness.grid import load_runs
from lessons.experiments.losses import ARMS
from lessons.experiments.staleness import CLIP, OLD, PREDICTIONS, UNWEIGHTED, Run
from toy_env.model import load_policy

# ---------------------------------------------------------------------- losses


def batch() -> dict[str, torch.Tensor]:
    """Six completions of 1 to 7 tokens with ratios from e^-2 to e^2, advantages of both signs and
    one of 0."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(7) < torch.tensor([1, 7, 3, 4, 2, 5]).unsqueeze(1)
    old_logps = -2 * torch.rand(6, 7, generator=generator, dtype=torch.float64) * mask
    moved = torch.linspace(-2, 2, 42, dtype=torch.float64).view(6, 7)
    moved = moved[torch.randperm(6, generator=generator)]
    moved[5, 0], moved[0, 0] = 0.22, 0.6  # a ratio between 1.2 and 1.28, and one above it
    advantages = torch.tensor([[1.5], [-0.5], [0.7], [0.0], [-1.2], [2.0]]).double()
    logps = (old_logps + moved) * mask
    return {"logps": logps, "old_logps": old_logps, "advantages": advantages, "mask": mask}


def gradient(arm: str, **tensors) -> torch.Tensor:
    logps = tensors.pop("logps").clone().requires_grad_()
    return torch.autograd.grad(ARMS[arm](logps=logps, **tensors), logps)[0]


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_is_averaged_over_tokens_and_then_over_completions(arm):
    """The gradient of the batch is the mean of those of each completion alone."""
    tensors = batch()
    rows = [{name: value[i : i + 1] for name, value in tensors.items()} for i in range(6)]
    alone = torch.cat([gradient(arm, **row) for row in rows]) / 6
    together = gradient(arm, **tensors)
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-14)
    assert together[tensors["mask"] & (tensors["advantages"] != 0)].count_nonzero() > 3


def test_at_ratio_1_all_arms_have_one_gradient_and_away_from_it_none_has_anothers():
    tensors = batch()
    fresh = {arm: gradient(arm, **tensors | {"old_logps": tensors["logps"]}) for arm in ARMS}
    for of_arm in fresh.values():
        torch.testing.assert_close(of_arm, fresh[CLIP], rtol=1e-12, atol=1e-14)
    stale = {arm: gradient(arm, **tensors) for arm in ARMS}
    torch.testing.assert_close(stale[OLD], fresh[OLD])
    for a in ARMS:
        assert all(a == b or not torch.allclose(stale[a], stale[b]) for b in ARMS)


def test_the_clip_without_weights_stops_what_the_clip_stops_and_weights_nothing():
    for sign in (1, -1):
        tensors = batch() | {"advantages": sign * batch()["advantages"]}
        clip, unweighted, old = (gradient(arm, **tensors) for arm in (CLIP, UNWEIGHTED, OLD))
        assert (clip == 0).sum() >= (old == 0).sum() + 2 and torch.equal(clip == 0, unweighted == 0)
        torch.testing.assert_close(unweighted, torch.where(clip == 0, 0.0, old))


# ---------------------------------------------------------------------- results and predictions


def test_the_committed_results_are_those_of_all_runs():
    results = load_runs(staleness.RESULTS)
    settings = [asdict(run) for run in staleness.runs_of(10)]
    assert [{name: run[name] for name in settings[0]} for run in results] == settings


def all_at_a_half(shifts: list[tuple[dict, float]]) -> list[dict]:
    """All runs with an accuracy of .5, to which the runs with some settings have points added."""
    runs = [asdict(run) | {"accuracy": [0.5]} for run in staleness.runs_of(10)]
    for settings, points in shifts:
        chosen = staleness.select(runs, **settings)
        assert len(chosen) == (10 if settings.get("epochs") == 4 else 5)
        for run in chosen:
            run["accuracy"] = [run["accuracy"][0] + points / 100]
    return runs


@pytest.mark.parametrize("about", PREDICTIONS)
def test_a_prediction_is_about_every_pair_and_both_bounds(about):
    (low, high), sentence, pairs, *_ = PREDICTIONS[about]
    middle = [(one, (low + high) / 2) for one, _ in pairs]
    held, numbers = staleness.judge(all_at_a_half(middle))[sentence]
    assert held and numbers.count(";") == len(pairs) - 1
    beyond = (high - low) / 2 + 0.1
    for one, other in pairs:
        for shift in ((one, beyond), (one, -beyond), (other, high - low)):
            assert not staleness.judge(all_at_a_half([*middle, shift]))[sentence][0]


# ---------------------------------------------------------------------- runs


@pytest.fixture
def seen(monkeypatch):
    """The batches, the inputs of the loss, and the weights at every evaluation of runs of GRPO's
    clip."""
    seen = SimpleNamespace(batches=[], losses=[], weights=[])
    collect, loss = grpo.collect, ARMS[CLIP]

    def seen_collect(*settings):
        rollout, rewards = collect(*settings)
        seen.batches.append((copy.copy(rollout), rewards))
        return rollout, rewards

    def seen_loss(**batch):
        seen.losses.append(batch)
        return loss(**batch)

    def evaluate(policy, *_, **__):
        seen.weights.append(parameters_to_vector(policy.parameters()).detach())
        return SimpleNamespace(correct=np.zeros(1))

    monkeypatch.setattr(grpo, "collect", seen_collect)
    monkeypatch.setitem(ARMS, CLIP, seen_loss)
    monkeypatch.setattr(learning, "evaluate", evaluate)
    return seen


def small(arm: str = CLIP, u: int = 1, updates: int = 4, epochs: int = 1, **settings) -> dict:
    return staleness.train(Run(arm, 7, u, 32 * updates // epochs, epochs, **settings))


@pytest.mark.slow
def test_at_u_1_the_arms_are_one_and_at_4_they_are_not(seen):
    fresh, stale = ([small(arm, u) for arm in (CLIP, OLD)] for u in (1, 4))
    assert all(run["moved"] < 1e-6 and run["stopped"] == 0 for run in fresh)
    assert all(run["moved"] > 1e-4 for run in stale)
    one, other, *apart = seen.weights
    torch.testing.assert_close(one, other, rtol=0, atol=2e-6)
    assert (apart[0] - apart[1]).abs().max() > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "correction"), [("float32", "none"), ("bfloat16", "token"), ("float8", "sequence")]
)
def test_a_correction_multiplies_advantages_by_trainer_over_sampler(
    seen, monkeypatch, sampler, correction
):
    """While the clip's ratio is the trainer's alone: with another sampler too it starts at 1."""
    monkeypatch.setattr(torch, "randperm", lambda n, generator, device: torch.arange(n))
    run = small(sampler=sampler, correction=correction)
    assert run["moved"] < 1e-6 and (run.get("spread of tokens", 0) > 1e-3) == (sampler != "float32")
    assert len(seen.batches) == len(seen.losses) == 4
    for (rollout, rewards), batch in zip(seen.batches, seen.losses):
        A = grpo.compute_advantages(rewards=rewards).view(-1, 1)
        weight = precision.sampling_weights(batch["old_logps"] - rollout.old_logps, correction)
        torch.testing.assert_close(batch["advantages"], A * weight, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_steps_have_the_given_length_after_a_warm_up_by_updates(seen, spy):
    """1/11, 2/11, ... of it; and a repeat starts from weights that rounding might have changed."""
    steps = spy(staleness, "step_of_length")
    small(u=4, updates=16, epochs=2, step_length=0.02)
    lengths = [min(1, n / 11) * 0.02 for n in range(1, 17)]
    assert [step.args[0] for step in steps] == pytest.approx(lengths)
    base = parameters_to_vector(load_policy("base")[0].parameters()).detach()
    for repeat in (1, 2, 1):
        small(updates=1, repeat=repeat, step_length=1e-9)
    one, two, again = (weights / base - 1 for weights in seen.weights[1:])
    assert torch.equal(one, again) and not torch.equal(one, two)
    assert 1e-8 < one[base.abs() > 1e-3].abs().mean() < 1e-6
