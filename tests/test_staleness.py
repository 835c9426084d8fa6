"""The staleness experiment: one average for all arms, what U and the samplers mean, predictions
that can fail."""

import copy
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

from lessons.experiments import learning, precision, staleness
from lessons.experiments.grid import load_runs
from lessons.experiments.staleness import CLIP, OLD, PREDICTIONS, UNWEIGHTED, Config, Run
from lessons.losses import ARMS
from toy_env.model import load_policy


def batch() -> dict[str, torch.Tensor]:
    """Six completions of 1 to 7 tokens with ratios from e^-2 to e^2, advantages of both signs and
    one of 0."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(7) < torch.tensor([1, 7, 3, 4, 2, 5]).unsqueeze(1)
    old_logps = -2 * torch.rand(6, 7, generator=generator, dtype=torch.float64) * mask
    moved = torch.linspace(-2, 2, 42, dtype=torch.float64).view(6, 7)[
        torch.randperm(6, generator=generator)
    ]
    moved[5, 0], moved[0, 0] = 0.22, 0.6  # a ratio between 1.2 and 1.28, and one above it
    advantages = torch.tensor([[1.5], [-0.5], [0.7], [0.0], [-1.2], [2.0]]).double()
    return {
        "logps": (old_logps + moved) * mask,
        "old_logps": old_logps,
        "advantages": advantages,
        "mask": mask,
    }


def gradient(loss, **tensors) -> torch.Tensor:
    logps = tensors.pop("logps").clone().requires_grad_()
    return torch.autograd.grad(loss(logps=logps, **tensors), logps)[0]


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_is_averaged_over_tokens_and_then_over_completions(arm):
    """The loss and gradient of the batch are the mean of those of each completion alone."""
    tensors = batch()
    rows = [{name: value[i : i + 1] for name, value in tensors.items()} for i in range(6)]
    alone = torch.cat([gradient(ARMS[arm], **row) for row in rows]) / 6
    together = gradient(ARMS[arm], **tensors)
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-14)
    assert together[tensors["mask"] & (tensors["advantages"] != 0)].count_nonzero() > 3


def test_at_ratio_1_all_arms_have_one_gradient_and_away_from_it_none_has_anothers():
    tensors = batch()
    fresh = {arm: gradient(ARMS[arm], **tensors | {"old_logps": tensors["logps"]}) for arm in ARMS}
    for of_arm in fresh.values():
        torch.testing.assert_close(of_arm, fresh[CLIP], rtol=1e-12, atol=1e-14)
    stale = {arm: gradient(ARMS[arm], **tensors) for arm in ARMS}
    torch.testing.assert_close(stale[OLD], fresh[OLD])
    for a in ARMS:
        assert all(a == b or not torch.allclose(stale[a], stale[b]) for b in ARMS)


def test_the_clip_without_weights_stops_what_the_clip_stops_and_weights_nothing():
    for sign in (1, -1):
        tensors = batch() | {"advantages": sign * batch()["advantages"]}
        clip, unweighted, old = (gradient(ARMS[arm], **tensors) for arm in (CLIP, UNWEIGHTED, OLD))
        assert (clip == 0).sum() >= (old == 0).sum() + 2 and torch.equal(clip == 0, unweighted == 0)
        torch.testing.assert_close(
            unweighted, torch.where(clip == 0, 0.0, old), rtol=1e-12, atol=1e-14
        )


def test_the_committed_results_are_those_of_all_runs():
    results = load_runs(staleness.RESULTS)
    settings = [asdict(run) for run in staleness.runs_of(Config())]
    assert [{name: run[name] for name in settings[0]} for run in results] == settings
    points = {(8, 1): 5, (8, 4): 4}
    assert all(
        len(run["accuracy"]) == points.get((run["staleness"], run["epochs"]), 1) for run in results
    )
    given = [run for run in results if run["step_length"]]
    assert all(
        run["step"] == pytest.approx(run["step_length"], rel=0.05) for run in given
    )  # less in the warm-up


def all_at(end: float, shifts: tuple[tuple[dict, float], ...] = ()) -> list[dict]:
    """All runs, each with one accuracy, to which the runs with some settings have points added."""
    runs = [asdict(run) | {"accuracy": [end]} for run in staleness.runs_of(Config())]
    for settings, points in shifts:
        chosen = staleness.select(runs, **settings)
        assert len(chosen) == (10 if settings.get("epochs") == 4 else 5)
        for run in chosen:
            run["accuracy"] = [run["accuracy"][0] + points / 100]
    return runs


@pytest.mark.parametrize("about", [about for about in PREDICTIONS if PREDICTIONS[about][3]])
def test_a_prediction_is_about_every_pair_and_both_bounds(about):
    low, high, _, pairs, *_ = PREDICTIONS[about]
    middle = [(one, (low + high) / 2) for one, _ in pairs]
    held, numbers = staleness.judge(all_at(0.5, middle))[about]
    assert held and numbers.count(";") == len(pairs) - 1
    for one, other in pairs:
        for shift in (
            (one, (high - low) / 2 + 0.1),
            (one, (low - high) / 2 - 0.1),
            (other, high - low),
        ):
            assert not staleness.judge(all_at(0.5, [*middle, shift]))[about][0]


@pytest.fixture
def seen(monkeypatch):
    """A run of `small`, seen from inside: tensors of the loss, batches, and what was trained, step
    by step."""
    seen = SimpleNamespace(batches=[], losses=[], weights=[])
    collect, loss = staleness.collect, ARMS[CLIP]

    def sampled(*settings):
        seen.batches.append(collect(*settings))
        return copy.copy(seen.batches[-1][0]), seen.batches[-1][1]

    def seen_loss(**batch):
        seen.losses += [batch] if batch["logps"].grad_fn else []  # not the second call, of a leaf
        return loss(**batch)

    def evaluate(policy, *_, **__):
        seen.weights.append(parameters_to_vector(policy.parameters()).detach())
        return SimpleNamespace(correct=np.zeros(1))

    monkeypatch.setattr(staleness, "collect", sampled)
    monkeypatch.setitem(ARMS, CLIP, seen_loss)
    monkeypatch.setattr(learning, "evaluate", evaluate)
    return seen


def small(arm: str = CLIP, u: int = 1, updates: int = 4, epochs: int = 1, **settings) -> dict:
    return staleness.train(Run(arm, 7, u, 32 * updates // epochs, epochs, **settings))


def test_at_u_1_the_arms_are_one_and_at_4_they_are_not(seen):
    fresh, stale = ([small(arm, u) for arm in (CLIP, "CISPO", OLD)] for u in (1, 4))
    assert (
        all(run["moved"] < 1e-6 and run["stopped"] == 0 for run in fresh)
        and min(s["moved"] for s in stale) > 1e-4
    )
    for one, other in zip(seen.weights[:2], seen.weights[1:3]):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-6)
    assert (
        (seen.weights[3] - seen.weights[4]).abs().max()
        > 1e-5
        < (seen.weights[3] - seen.weights[5]).abs().max()
    )


def test_an_epoch_uses_every_completion_once(seen):
    """Two epochs of four updates, of one batch of 128 completions, each in an order of its own."""
    small(u=4, updates=8, epochs=2)
    ((rollout, _),) = seen.batches
    orders = [
        torch.cat([batch["old_logps"] for batch in part])
        for part in (seen.losses[:4], seen.losses[4:])
    ]
    assert len(rollout) == 128 and len(seen.losses) == 8
    for rows in orders:
        assert sorted(rows.tolist()) == sorted(rollout.logps.tolist()) and not torch.equal(
            rows, rollout.logps
        )
    assert not torch.equal(*orders)


@pytest.mark.parametrize(("sampler", "correction"), [("float32", "none"), ("float8", "none"), ("bfloat16", "token"),
                                                     ("float8", "sequence")])  # fmt: skip
def test_a_correction_multiplies_advantages_by_trainer_over_sampler(
    seen, monkeypatch, sampler, correction
):
    """While the clip's ratio is the trainer's alone: with another sampler too it starts at 1."""
    monkeypatch.setattr(torch, "randperm", lambda n, generator, device: torch.arange(n))
    run = small(sampler=sampler, correction=correction)
    assert run["moved"] < 1e-6 and (run.get("spread of tokens", 0) > 1e-3) == (sampler != "float32")
    assert len(seen.batches) == len(seen.losses) == 4
    for (rollout, R), batch in zip(seen.batches, seen.losses):
        log_ratio = batch["old_logps"] - rollout.logps
        A = torch.from_numpy(
            (R - R.mean(axis=1, keepdims=True)) / np.maximum(R.std(axis=1, keepdims=True), 1e-9)
        )
        weight = precision.sampling_weights(log_ratio, correction)
        torch.testing.assert_close(
            batch["advantages"], A.view(-1, 1).float() * weight, rtol=1e-5, atol=1e-6
        )


def test_steps_have_the_given_length_after_a_warm_up_by_updates(seen):
    """1/11, 2/11, ... of it; and a repeat starts from weights that rounding might have changed."""
    run = small(u=4, updates=16, epochs=2, step_length=0.02)
    assert run["step"] == pytest.approx(
        0.02 * (sum(range(1, 11)) / 11 + 5) / 15, rel=1e-3
    )  # of the first fifteen
    base = parameters_to_vector(load_policy("base")[0].parameters()).detach()
    for repeat in (1, 2, 1):
        small(updates=1, repeat=repeat, step_length=1e-9)
    one, two, again = (weights / base - 1 for weights in seen.weights[1:])
    assert torch.equal(one, again) and not torch.equal(one, two)
    assert 1e-8 < one[base.abs() > 1e-3].abs().mean() < 1e-6
