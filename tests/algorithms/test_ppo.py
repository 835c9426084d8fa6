"""PPO: GAE, whitening, KL in the reward and the value loss by hand; the critic; which numbers meet
which rows."""

import pytest
import torch
from conftest import build_tiny_model, is_right
from enumeration import flat_gradient

from algorithms import ppo
from algorithms.ppo import Critic, explained_variance
from lessons.experiments.float64 import to_float64
from toy_env.rollout import in_passes, sample


def judge(rewards, values, mask, *, log_ratio=None, **settings):
    """compute_advantages with these values; `log_ratio` is log pi - log ref of each token, by
    default 0."""
    log_ratio = torch.zeros_like(values) if log_ratio is None else log_ratio
    inputs = {"rewards": rewards, "values": values, "mask": mask}
    inputs |= {"old_logps": log_ratio, "ref_logps": 0 * log_ratio}
    return ppo.compute_advantages(**inputs, config=ppo.Config(**settings))


@pytest.mark.parametrize(
    ("gae_lambda", "expected"),
    [(0.95, [0.46575, 0.385, 0.3]), (1.0, [0.5, 0.4, 0.3]), (0.0, [0.1, 0.1, 0.3])],
)
def test_gae_by_hand(gae_lambda, expected):
    """r = (0, 0, 1), V = (.5, .6, .7), gamma = 1. The returns are V plus the advantages before
    whitening."""
    values = torch.tensor([[0.5, 0.6, 0.7]], dtype=torch.float64)
    mask = torch.ones(1, 3).bool()
    _, returns = judge(torch.ones(1, 1).double(), values, mask, gae_lambda=gae_lambda)
    torch.testing.assert_close(returns - values, torch.tensor([expected], dtype=torch.float64))


def test_the_reward_is_that_of_the_last_token():
    """With V = 0 and lambda = 1 the return of every token is the reward of its completion. Return
    and advantage of padding are 0. Garbage values on the padding change nothing."""
    mask = torch.tensor([[True, True, False, False], [True] * 4, [True, False, False, False]])
    rewards = torch.tensor([[2.0, -3.0, 5.0]])
    advantages, returns = judge(rewards, torch.zeros(3, 4), mask, gae_lambda=1.0)
    torch.testing.assert_close(returns, rewards.view(3, 1) * mask)
    assert not advantages[~mask].any()

    values = torch.randn(3, 4) * mask
    garbage = torch.where(mask, values, 1e3)
    for clean, dirty in zip(judge(rewards, values, mask), judge(rewards, garbage, mask)):
        torch.testing.assert_close(clean, dirty)


def test_kl_is_in_the_reward_with_a_minus():
    """With V = 0 and lambda = 1 the returns are 1 - kl_coef times the log-ratios still to come."""
    inputs = torch.ones(1, 1), torch.zeros(1, 3), torch.ones(1, 3).bool()
    log_ratio = torch.tensor([[0.3, 0.1, 0.2]])
    _, returns = judge(*inputs, log_ratio=log_ratio, gae_lambda=1.0, kl_coef=0.5)
    torch.testing.assert_close(returns, torch.tensor([[0.7, 0.85, 0.9]]))


def test_value_loss_by_hand():
    """From the old value .5, with target 1 and clip .2: moved to .6 (free), to .9 (clipped at .7,
    so no gradient), to .1 (clipped at .3; the larger error counts)."""
    values = torch.tensor([[0.6, 0.9, 0.1, 7.0]], requires_grad=True)
    old, returns = torch.full((1, 4), 0.5), torch.ones(1, 4)
    mask = torch.tensor([[True, True, True, False]])
    inputs = {"values": values, "old_values": old, "returns": returns, "mask": mask}
    loss = ppo.value_loss(**inputs, config=ppo.Config(value_clip=0.2))
    assert loss.item() == pytest.approx(0.5 * (0.16 + 0.09 + 0.81) / 3)
    (gradient,) = torch.autograd.grad(loss, values)
    torch.testing.assert_close(gradient, torch.tensor([[-0.4, 0.0, -0.9, 0.0]]) / 3)


PROMPTS = ["1+1?", "29+46-36?"]


def draw(policy, tokenizer, group_size=3, max_new_tokens=9):
    generator = torch.Generator().manual_seed(3)
    return sample(policy, tokenizer, PROMPTS, group_size, max_new_tokens, 1.0, generator)


@pytest.mark.parametrize("max_tokens_per_pass", [1, 40, 1_000_000])
def test_critic(tokenizer, max_tokens_per_pass):
    """The critic starts at 0. V_t is its head one position before y_t, in passes of any size: value
    and gradient against one forward pass for each row, without padding, in float64."""
    policy = to_float64(build_tiny_model(len(tokenizer)))
    critic, rollout = Critic(policy).double(), draw(policy, tokenizer)
    assert policy.base_model is not critic.transformer
    assert not in_passes(critic, rollout, max_tokens_per_pass).any()
    torch.manual_seed(1)
    torch.nn.init.normal_(critic.head.weight)
    weights = torch.linspace(-1, 1, rollout.mask.numel(), dtype=torch.float64).view_as(rollout.mask)
    alone = torch.zeros_like(weights)
    for i in range(len(rollout)):
        prompt = rollout.prompt_ids[i][rollout.prompt_mask[i]]
        completion = rollout.completion_ids[i][rollout.mask[i]]
        ids = torch.cat([prompt, completion]).unsqueeze(0)
        states = critic.transformer(input_ids=ids).last_hidden_state[0]
        alone[i, : len(completion)] = critic.head(states[len(prompt) - 1 : -1]).squeeze(1)
    values = in_passes(critic, rollout, max_tokens_per_pass)
    torch.testing.assert_close(values, alone, rtol=1e-10, atol=1e-13)
    ours, expected = (flat_gradient((x * weights).sum(), critic) for x in (values, alone))
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-13)
    assert ours.abs().max() > 1e-3


def test_advantages_returns_and_values_meet_their_rows(train, spy, tokenizer):
    """With lambda = 1 and no KL the return of every token is the reward of its own completion, and
    advantages are returns minus the values at sampling time, whitened over the batch. The critic is
    0 in step 1; in the first update of step 2 its values are those recorded with the batch."""
    passes, losses = spy(ppo, "completion_logps"), spy(ppo, "policy_loss")
    critics = spy(ppo, "value_loss")
    train(ppo, num_minibatches=2, levels=(1, 2), gae_lambda=1.0, kl_coef=0.0)
    for call, critic in zip(passes, critics, strict=True):
        minibatch = call.args[1]
        prompts = tokenizer.batch_decode(minibatch.prompt_ids, skip_special_tokens=True)
        right = torch.tensor([[is_right(*row)] for row in zip(prompts, minibatch.texts)])
        torch.testing.assert_close(critic.returns, right * critic.mask.float(), atol=1e-5, rtol=0)
    assert not critics[0].old_values.any() and critics[2].old_values.any()
    torch.testing.assert_close(critics[2].values, critics[2].old_values, atol=1e-5, rtol=0)
    for step in (slice(0, 2), slice(2, 4)):
        errors = torch.cat([(x.returns - x.old_values)[x.mask] for x in critics[step]])
        advantages = torch.cat([x.advantages[x.mask] for x in losses[step]])
        whitened = (errors - errors.mean()) / errors.std(correction=0)
        torch.testing.assert_close(advantages, whitened, atol=1e-4, rtol=1e-4)


def test_explained_variance():
    returns, mask = torch.tensor([[0.0, 1.0, 9.0]]), torch.tensor([[True, True, False]])
    constant = torch.full((1, 3), 0.3)
    for values, truth, expected in (
        (returns, returns, 1),
        (constant, returns, 0),
        (returns, torch.ones(1, 3), 0),
    ):
        ours = explained_variance(values=values, returns=truth, mask=mask)
        assert ours == pytest.approx(expected, abs=1e-6)
