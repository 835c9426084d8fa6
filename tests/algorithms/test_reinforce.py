"""REINFORCE: its expected gradient by full enumeration, and which rewards meet which rows."""

import pytest
import torch
from conftest import build_tiny_model, is_right
from enumeration import EOS, as_rollout, every_completion, flat_gradient, probability

from algorithms import reinforce
from lessons.experiments.float64 import to_float64
from toy_env.rollout import completion_logps
from toy_env.run import Run

BUDGET = 3


def test_expected_gradient():
    """The sum over all 85 completions of pi(y) times the gradient of the script's loss on y is
    minus the gradient of the success probability p over max_new_tokens."""
    policy = to_float64(build_tiny_model(vocab_size=5))
    completions = every_completion(vocab_size=5, limit=BUDGET)
    assert len(completions) == 1 + 4 + 16 + 64
    right = [ids[0] in (1, 3) or ids[-2:] == [4, EOS] for ids in completions]
    rewards = torch.tensor(right).double()
    pi = torch.stack([probability(policy, ids) for ids in completions])
    assert pi.sum().item() == pytest.approx(1, abs=1e-12)
    p = (pi * rewards).sum()
    assert 0.05 < p.item() < 0.95

    config = reinforce.Config(max_new_tokens=BUDGET)
    logps = completion_logps(policy, as_rollout(completions), temperature=1.0)
    mask = as_rollout(completions).mask
    advantages = reinforce.compute_advantages(rewards=rewards.view(1, -1)).view(-1, 1)
    losses = []
    for i in range(len(completions)):
        inputs = {"logps": logps[[i]], "advantages": advantages[[i]], "mask": mask[[i]]}
        losses.append(reinforce.policy_loss(**inputs, config=config))
    ours = -BUDGET * flat_gradient((pi.detach() * torch.stack(losses)).sum(), policy)
    torch.testing.assert_close(ours, flat_gradient(p, policy), rtol=1e-9, atol=1e-12)


def test_loss_by_hand():
    """Completions of 3 and 1 tokens, rewards 1 and .5, a budget of 4: -(1 * (-1 - 2 - 3) + .5 * -4)
    / (2 * 4) = 1."""
    logps = torch.tensor([[-1.0, -2.0, -3.0], [-4.0, -99.0, -99.0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    loss = reinforce.policy_loss(
        logps=logps,
        advantages=torch.tensor([[1.0], [0.5]]),
        mask=mask,
        config=reinforce.Config(max_new_tokens=4),
    )
    assert loss.item() == 1.0


def test_there_is_no_baseline():
    rewards = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    assert torch.equal(reinforce.compute_advantages(rewards=rewards), rewards)


def test_rewards_meet_their_rows(train, spy, tokenizer):
    """Every logged reward, and every advantage, is that of the prompt and text of its own row."""
    logged, losses = spy(Run, "log"), spy(reinforce, "policy_loss")
    train(reinforce, prompts_per_step=16, levels=[1, 2])
    checked = 0
    for call, inputs in zip(logged, losses, strict=True):
        _, _, rollout, rewards = call.args
        assert rewards.shape == (16, 4)
        prompts = tokenizer.batch_decode(rollout.prompt_ids, skip_special_tokens=True)
        assert prompts == [prompt for prompt in prompts[::4] for _ in range(4)]
        right = [is_right(prompt, text) for prompt, text in zip(prompts, rollout.texts)]
        assert rewards.flatten().tolist() == inputs.advantages.flatten().tolist() == right
        checked += sum(right)
    assert 20 < checked < 110
