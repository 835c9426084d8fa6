"""PPO: GAE, whitening, KL in the reward and the value loss by hand, and where it meets Dr. GRPO."""

import pytest
import torch
from conftest import build_tiny_model, is_right
from enumeration import flat_gradient

from algorithms import dr_grpo, ppo
from algorithms.ppo import Critic, explained_variance
from lessons.float64 import to_float64
from toy_env import UsageError
from toy_env.model import load_policy
from toy_env.rollout import completion_logps, in_passes, sample


def judge(rewards, values, mask, *, log_ratio=None, **settings):
    """compute_advantages with these values; `log_ratio` is log pi - log ref of each token, by
    default 0."""
    log_ratio = torch.zeros_like(values) if log_ratio is None else log_ratio
    return ppo.compute_advantages(rewards=rewards, values=values, old_logps=log_ratio, ref_logps=0 * log_ratio,
                                  mask=mask, config=ppo.Config(**settings))  # fmt: skip


@pytest.mark.parametrize(
    ("gae_lambda", "expected"),
    [(0.95, [0.46575, 0.385, 0.3]), (1.0, [0.5, 0.4, 0.3]), (0.0, [0.1, 0.1, 0.3])],
)
def test_gae_by_hand(gae_lambda, expected):
    """r = (0, 0, 1), V = (.5, .6, .7), gamma = 1. The returns are the advantages before whitening,
    plus V."""
    values = torch.tensor([[0.5, 0.6, 0.7]], dtype=torch.float64)
    mask = torch.ones(1, 3).bool()
    advantages, returns = judge(torch.ones(1, 1).double(), values, mask, gae_lambda=gae_lambda)
    expected = torch.tensor([expected], dtype=torch.float64)
    torch.testing.assert_close(returns - values, expected)
    torch.testing.assert_close(
        advantages, (expected - expected.mean()) / (expected.var(correction=0) + 1e-8).sqrt()
    )


def test_the_reward_sits_on_the_last_token_and_padding_does_not_leak():
    """With V = 0 and lambda = 1 the return of every token is the reward of its completion and that
    of padding 0, in rows that fill their mask too; and garbage values on the padding change
    nothing."""
    mask = torch.tensor([[True, True, False, False], [True] * 4, [True, False, False, False]])
    rewards = torch.tensor([[2.0, -3.0, 5.0]])
    _, returns = judge(rewards, torch.zeros(3, 4), mask, gae_lambda=1.0)
    torch.testing.assert_close(returns, rewards.view(3, 1) * mask)

    values = torch.randn(3, 4) * mask
    garbage = torch.where(mask, values, 1e3)
    for clean, dirty in zip(judge(rewards, values, mask), judge(rewards, garbage, mask)):
        torch.testing.assert_close(clean, dirty)


def test_kl_is_in_the_reward_with_a_minus():
    """Log-ratios .3, .1, .2, kl_coef .5: with V = 0 and lambda = 1 the returns are 1 - .5 * (what
    is still to come)."""
    log_ratio = torch.tensor([[0.3, 0.1, 0.2]])
    _, returns = judge(torch.ones(1, 1), torch.zeros(1, 3), torch.ones(1, 3).bool(), log_ratio=log_ratio,
                       gae_lambda=1.0, kl_coef=0.5)  # fmt: skip
    torch.testing.assert_close(returns, torch.tensor([[0.7, 0.85, 0.9]]))


def test_whitening_is_over_unmasked_tokens():
    torch.manual_seed(0)
    mask = torch.tensor([[t < n for t in range(6)] for n in (1, 6, 3, 4)])
    advantages, _ = judge((torch.rand(2, 2) < 0.5).double(), torch.rand(4, 6).double() * mask, mask)
    assert advantages[mask].mean().item() == pytest.approx(0, abs=1e-12)
    assert advantages[mask].var(correction=0).item() == pytest.approx(1, rel=1e-6)
    assert not advantages[~mask].any()
    assert not advantages.requires_grad


def test_value_loss_by_hand():
    """Old value .5, target 1, clip .2, one token each: moved to .6 (free), .9 (clipped at .7), .1
    (clipped at .3; the larger error counts). Only what is not held back by the clip has a
    gradient."""
    values = torch.tensor([[0.6, 0.9, 0.1, 7.0]], requires_grad=True)
    old, returns = torch.full((1, 4), 0.5), torch.ones(1, 4)
    mask = torch.tensor([[True, True, True, False]])
    loss = ppo.value_loss(
        values=values, old_values=old, returns=returns, mask=mask, config=ppo.Config(value_clip=0.2)
    )
    assert loss.item() == pytest.approx(0.5 * (0.16 + 0.09 + 0.81) / 3)
    (gradient,) = torch.autograd.grad(loss, values)
    torch.testing.assert_close(gradient, torch.tensor([[-0.4, 0.0, -0.9, 0.0]]) / 3)


PROMPTS = ["1+1?", "29+46-36?"]


def draw(policy, tokenizer, group_size=3, max_new_tokens=9):
    return sample(
        policy,
        tokenizer,
        PROMPTS,
        group_size,
        max_new_tokens,
        1.0,
        torch.Generator().manual_seed(3),
    )


def test_with_the_group_mean_as_value_ppo_is_dr_grpo(tokenizer):
    """gamma = lambda = 1, no KL, V the mean reward of the group at every token, no whitening (read
    off the returns): the same gradient as Dr. GRPO, up to the two normalisers, B·C and the tokens
    of the batch."""
    policy, C = to_float64(build_tiny_model(len(tokenizer))), 12
    rollout = draw(policy, tokenizer, 4, C)
    rewards = torch.tensor([[1.0, 0, 0, 1], [0, 0, 1, 0]]).double()
    mean = rewards.mean(dim=1, keepdim=True).expand(2, 4).reshape(8, 1)
    values = mean * rollout.mask
    _, returns = judge(rewards, values, rollout.mask, gae_lambda=1.0, kl_coef=0.0)
    centred = dr_grpo.compute_advantages(rewards=rewards).view(-1, 1)

    def gradient(script, factor: float = 1, **inputs) -> torch.Tensor:
        logps = completion_logps(policy, rollout, temperature=1.0)
        config = script.Config(kl_coef=0.0, max_new_tokens=C)
        loss = script.policy_loss(
            logps=logps, old_logps=rollout.logps, mask=rollout.mask, config=config, **inputs
        )
        return flat_gradient(factor * loss, policy)

    factor = 8 * C / rollout.mask.sum().item()
    expected = gradient(dr_grpo, factor, advantages=centred, ref_logps=None)
    assert (
        (gradient(ppo, advantages=returns - values) - expected).abs().max()
        < 1e-13
        < 1e-3
        < expected.abs().max()
    )


@pytest.mark.parametrize("max_tokens_per_pass", [1, 40, 10**6])
def test_critic_sees_what_comes_before_each_token_and_starts_at_zero(
    tokenizer, max_tokens_per_pass
):
    """V_t is the head at the position left of y_t, in passes of any size; value and gradient,
    against one forward pass a row, without padding, in float64."""
    policy = to_float64(build_tiny_model(len(tokenizer)))
    critic, rollout = Critic(policy).double(), draw(policy, tokenizer)
    assert policy.base_model is not critic.transformer
    assert not in_passes(critic, rollout, max_tokens_per_pass).any()
    torch.manual_seed(1)
    torch.nn.init.normal_(critic.head.weight)
    weights = torch.linspace(-1, 1, rollout.mask.numel(), dtype=torch.float64).view_as(rollout.mask)
    alone = torch.zeros_like(weights)
    for i in range(len(rollout)):
        prompt, completion = (
            rollout.prompt_ids[i][rollout.prompt_mask[i]],
            rollout.completion_ids[i][rollout.mask[i]],
        )
        states = critic.transformer(
            input_ids=torch.cat([prompt, completion]).unsqueeze(0)
        ).last_hidden_state[0]
        alone[i, : len(completion)] = critic.head(states[len(prompt) - 1 : -1]).squeeze(1)
    values = in_passes(critic, rollout, max_tokens_per_pass)
    torch.testing.assert_close(values, alone, rtol=1e-10, atol=1e-13)
    ours, expected = (flat_gradient((x * weights).sum(), critic) for x in (values, alone))
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-13)
    assert ours.abs().max() > 1e-3


def test_every_advantage_return_and_value_meets_the_row_it_belongs_to(train, spy, tokenizer):
    """In `train`, minibatch by minibatch. With lambda = 1 and no KL the return of every token is
    the reward of its own completion; with a critic that is still 0 everywhere, the advantages of
    step 1 are these rewards whitened, and those of step 2 the whitened returns minus values. Until
    an update of step 2 has moved the critic, its values are those it had when the batch was
    sampled."""
    passes, losses, value_losses = (
        spy(ppo, "completion_logps"),
        spy(ppo, "policy_loss"),
        spy(ppo, "value_loss"),
    )
    train(ppo, prompts_per_step=12, num_minibatches=3, levels=(1, 2), gae_lambda=1.0, kl_coef=0.0)
    minibatches = [call.args[1] for call in passes]
    assert len(minibatches) == len(losses) == len(value_losses) == 2 * 3
    judged = 0
    for update, (minibatch, policy_side, critic_side) in enumerate(
        zip(minibatches, losses, value_losses)
    ):
        mask, prompts = (
            policy_side.mask,
            tokenizer.batch_decode(minibatch.prompt_ids, skip_special_tokens=True),
        )
        assert torch.equal(critic_side.mask, mask) and torch.equal(
            policy_side.old_logps, minibatch.logps
        )
        right = torch.tensor(
            [[is_right(prompt, text)] for prompt, text in zip(prompts, minibatch.texts)]
        )
        torch.testing.assert_close(critic_side.returns, right * mask.float(), atol=1e-5, rtol=0)
        if update < 3:
            assert ((policy_side.advantages > 0) == right)[mask].all()
            assert not critic_side.old_values.any()
        judged += int(right.sum())
    assert 10 < judged < 80 and value_losses[3].old_values.any()
    errors = torch.cat([(call.returns - call.old_values)[call.mask] for call in value_losses[3:]])
    advantages = torch.cat([call.advantages[call.mask] for call in losses[3:]])
    whitened = (errors - errors.mean()) / errors.std(correction=0)
    torch.testing.assert_close(advantages, whitened, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        value_losses[3].values, value_losses[3].old_values, atol=1e-5, rtol=0
    )


def test_explained_variance():
    returns, mask = torch.tensor([[0.0, 1.0, 9.0]]), torch.tensor([[True, True, False]])
    assert explained_variance(values=returns, returns=returns, mask=mask) == 1
    constant = torch.full((1, 3), 0.3)
    assert explained_variance(values=constant, returns=returns, mask=mask) == pytest.approx(
        0, abs=1e-6
    )
    assert explained_variance(values=returns, returns=torch.ones(1, 3), mask=mask) == 0


def test_a_model_without_a_transformer_of_its_own_has_no_critic(tiny):
    """As in transformers' classes for Llama 4 and Mllama."""
    tiny.base_model_prefix = "not_there"
    with pytest.raises(UsageError, match="PPO needs a transformer apart from its head"):
        Critic(tiny)


def test_the_critic_has_the_size_of_the_policy():
    policy, _ = load_policy("base")
    critic = Critic(policy)
    assert (
        sum(p.numel() for p in critic.parameters())
        == sum(p.numel() for p in policy.parameters()) + 65
    )
