"""Lesson 14 and its experiment: one average for all losses, exact weights, runs from inside.

Broken on purpose: a clip on both sides, the mean of a completion's log-ratios in place of the sum,
the two advantages added in a prompt's weight.
"""

import random
from itertools import combinations, product
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from algorithms import grpo
from lessons import identity
from lessons.experiments import precision, staleness
from lessons.experiments.harness import learning
from lessons.experiments.losses import LOSSES
from lessons.experiments.staleness import CISPO, CLIP, UNWEIGHTED, Run
from lessons.workshop.companions import lesson_14
from toy_env import arithmetic
from toy_env.rollout import completion_logps

# ---------------------------------------------------------------------- losses


def batch() -> dict[str, torch.Tensor]:
    """Seven completions of 1 to 7 tokens and of none, with ratios from e^-2 to e^2, advantages of
    both signs and one of 0."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(7) < torch.tensor([1, 7, 3, 4, 2, 5, 0]).unsqueeze(1)
    old_logps = -2 * torch.rand(7, 7, generator=generator, dtype=torch.float64)
    moved = torch.linspace(-2, 2, 49, dtype=torch.float64).view(7, 7)
    moved[5, 0], moved[0, 0] = 0.22, 0.6  # a ratio between 1.2 and 1.28, and one above it
    advantages = torch.tensor([[1.5], [-0.5], [0.7], [0.0], [-1.2], [2.0], [1.0]]).double()
    logps = old_logps + moved
    return {"logps": logps, "old_logps": old_logps, "advantages": advantages, "mask": mask}


def gradient(arm: str, **tensors) -> torch.Tensor:
    logps = tensors.pop("logps").clone().requires_grad_()
    return torch.autograd.grad(LOSSES[arm](logps=logps, **tensors), logps)[0]


@pytest.mark.parametrize("arm", LOSSES)
def test_every_loss_is_averaged_over_tokens_and_then_over_completions(arm):
    """The gradient of the batch is the mean of those of each completion alone, also where one has
    no tokens, as overlong filtering leaves it."""
    tensors = batch()
    rows = [{name: value[i : i + 1] for name, value in tensors.items()} for i in range(7)]
    alone = torch.cat([gradient(arm, **row) for row in rows]) / 7
    together = gradient(arm, **tensors)
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-14)
    assert together[tensors["mask"] & (tensors["advantages"] != 0)].count_nonzero() > 3


def test_all_losses_have_one_gradient_at_ratio_1_and_their_own_away_from_it():
    tensors = batch()
    fresh, stale = (
        torch.stack([gradient(arm, **tensors | {"old_logps": old}) for arm in LOSSES])
        for old in (tensors["logps"], tensors["old_logps"])
    )
    torch.testing.assert_close(fresh, fresh[:1].expand_as(fresh), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(stale[0], fresh[0])  # no correction
    assert min((one - other).abs().max() for one, other in combinations(stale, 2)) > 1e-6


def test_the_factors_of_exercise_1_are_those_of_the_losses():
    ratios = torch.tensor([[1.35, 0.6]]).double()
    for arm, row in zip((CISPO, UNWEIGHTED, "GSPO"), lesson_14.CHECKS["14.1"]["expected"]):
        found = [lesson_14.factors(LOSSES[arm], ratios, A) for A in (1.0, -1.0)]
        assert torch.cat(found, dim=1)[0].tolist() == pytest.approx(row)


# ---------------------------------------------------------------------- weights


def test_with_exact_weights_an_update_has_the_samplers_weight_of_the_prompt():
    """The mean of GRPO's update over all groups of three of the 15 texts is w(p_sampler) grad p;
    Dr. GRPO's is grad p up to a constant."""
    theta, R = lesson_14.LOGITS.clone().requires_grad_(), lesson_14.R
    logps = lesson_14.token_logps(theta).sum(dim=1)
    sampled = lesson_14.token_logps(lesson_14.LOGITS + lesson_14.NOISE).sum(dim=1)
    groups = torch.tensor([*product(range(15), repeat=3)])
    A, w = grpo.compute_advantages(rewards=R[groups]), (logps - sampled).detach().exp()
    updates = (A * w[groups] * logps[groups]).mean(dim=1)
    (ours,) = torch.autograd.grad(
        sampled.exp()[groups].prod(dim=1) @ updates, theta, retain_graph=True
    )
    (truth,) = torch.autograd.grad(logps.exp() @ R, theta)
    weight = identity.weight("GRPO", (sampled.exp() @ R).item(), 3)
    torch.testing.assert_close(ours, weight * truth)
    ours = lesson_14.mean_update(lesson_14.LOGITS, lesson_14.of_completions, lesson_14.NOISE)
    torch.testing.assert_close(ours, truth)


# ---------------------------------------------------------------------- runs


@pytest.fixture
def hooks(monkeypatch):
    """hooks(run): what a run passes to `learn`, which is not called."""

    def of_run(run: Run) -> dict:
        learn = MagicMock(side_effect=InterruptedError)
        monkeypatch.setattr(staleness, "learn", learn)
        with pytest.raises(InterruptedError):
            staleness.train(run)
        return learn.call_args.kwargs

    return of_run


@pytest.mark.parametrize(
    ("sampler", "correction"), [("float32", "none"), ("bfloat16", "token"), ("float8", "sequence")]
)
def test_a_correction_multiplies_advantages_by_trainer_over_sampler(
    hooks, base, sampler, correction
):
    """While the old policy of the clip's ratio is the trainer, with another sampler, too."""
    policy, tokenizer = base
    given = hooks(Run(CLIP, 7, sampler=sampler, correction=correction))

    def sampled(collect, policy):
        learner = SimpleNamespace(task=arithmetic, device="cpu")
        config, generator = grpo.Config(prompts_per_step=4), torch.Generator().manual_seed(0)
        return collect(learner, policy, tokenizer, config, random.Random(0), generator)

    rollout, rewards = sampled(given["collect"], policy)
    samplers, _ = sampled(grpo.collect, precision.in_precision(policy, sampler))
    trainers = completion_logps(policy, rollout, 1.0).detach()
    torch.testing.assert_close(rollout.old_logps, trainers, rtol=0, atol=1e-5)
    log_ratio = rollout.old_logps - samplers.old_logps
    assert (log_ratio.abs().max() > 1e-3) == (sampler != "float32")
    expected = grpo.compute_advantages(rewards=rewards).view(-1, 1)
    expected = expected * precision.sampling_weights(log_ratio, correction)
    torch.testing.assert_close(given["advantages"](policy, rollout, rewards), expected)


def test_steps_have_the_given_length_after_a_warm_up_by_updates(hooks, monkeypatch):
    """1/11, 2/11, ... of it."""
    update, lengths = hooks(Run(CLIP, 7, step_length=0.02))["update"], []
    monkeypatch.setattr(staleness, "step_of_length", lambda length, *_: lengths.append(length))
    for _ in range(16):
        update(None, None, grpo.Config(), 1)
    assert lengths == pytest.approx([min(1, n / 11) * 0.02 for n in range(1, 17)])


def test_a_repeat_starts_from_weights_that_rounding_might_have_changed(hooks):
    base, one, two = (
        parameters_to_vector(hooks(Run(CLIP, 7, repeat=repeat))["policy"].parameters()).detach()
        for repeat in range(3)
    )
    assert not torch.equal(one, two)
    assert 1e-8 < (one / base - 1)[base.abs() > 1e-3].abs().mean() < 1e-6


@pytest.mark.slow
def test_at_u_1_the_policy_has_not_moved(monkeypatch):
    monkeypatch.setattr(learning, "EVALUATED", 128)
    run = staleness.train(Run(CLIP, 7, 1, 64))
    assert run["moved"] < 1e-6 and run["stopped"] == 0
