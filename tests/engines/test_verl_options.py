"""The options in algorithms/options.json: TRL's are those of scale_out.py, and with verl's options
verl computes what the script does."""

import json

import numpy as np
import pytest
import test_parity
from conftest import INSTALL_VERL, ROOT

from algorithms import dr_grpo, ppo, reinforce
from lessons.experiments import scale_out
from toy_env.model import BASE_MODEL

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own, on import and in use


OPTIONS = json.loads((ROOT / "algorithms/options.json").read_text("utf-8"))


def options_of(name: str, library: str) -> dict:
    """What a script is called in a library, after what all scripts share."""
    return OPTIONS["all scripts"][library] | OPTIONS[name][library]


@pytest.mark.parametrize("name", scale_out.ALGORITHMS)
def test_the_options_of_trl_are_those_of_the_program(name):
    """They name TRL's default of scale_rewards, which the program does not set."""
    settings = {"scale_rewards": "group"} | scale_out.trl_settings(scale_out.Config(name), 1)
    expected = options_of(name, "TRL")
    assert {key: settings[key] for key in expected} == expected


def read_verl(name: str):
    """verl's configuration under the options; raises if it does not have one of them."""
    hydra = pytest.importorskip("hydra", reason=INSTALL_VERL)
    options = options_of(name, "verl") | {"critic.model.path": BASE_MODEL}
    texts = [f"{key}={value}" for key, value in options.items()]
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        return hydra.compose("ppo_trainer", texts)


@pytest.mark.slow  # imports verl
@pytest.mark.parametrize("name", ["reinforce", *test_parity.SCRIPTS])
def test_verl_computes_what_the_script_does_under_these_options(verl, monkeypatch, name):
    """Its advantages, up to the degrees of freedom and epsilon of sigma, and its loss and gradient
    exactly."""
    from verl.utils.config import omega_conf_to_dataclass

    script = reinforce if name == "reinforce" else test_parity.SCRIPTS[name]
    ours, theirs, batch = script.Config(), read_verl(name), test_parity.random_batch(0)
    algorithm, actor = theirs.algorithm, omega_conf_to_dataclass(theirs.actor_rollout_ref.actor)
    P, G = test_parity.P, test_parity.G

    rollout, optim, data = theirs.actor_rollout_ref.rollout, actor.optim, theirs.data
    assert rollout.n * data.train_batch_size == ours.prompts_per_step * ours.group_size
    minibatches = data.train_batch_size / actor.ppo_mini_batch_size
    assert minibatches == getattr(ours, "num_minibatches", 1)
    limits = data.max_response_length, rollout.temperature, optim.clip_grad
    assert limits == (ours.max_new_tokens, ours.temperature, ours.max_grad_norm)
    rates = optim.lr, optim.lr_warmup_steps, optim.weight_decay
    assert rates == (ours.learning_rate, ours.warmup_steps, 0.0)
    reference = omega_conf_to_dataclass(theirs.actor_rollout_ref.ref.fsdp_config)
    for engine in (actor.engine, reference, omega_conf_to_dataclass(theirs.critic).engine):
        assert engine.mixed_precision == {"param_dtype": "fp32"}

    rewards, mask = test_parity.at_last_token(batch.rewards, batch), batch.mask.double()
    if algorithm.use_kl_in_reward:
        kl = verl.core.kl_penalty(batch.old_logps, batch.ref_logps, algorithm.kl_penalty)
        rewards = rewards - algorithm.kl_ctrl.kl_coef * kl * mask
    if name == "maxrl":  # what OUTGROW.md says to register
        registry = dict(verl.core.ADV_ESTIMATOR_REGISTRY)
        monkeypatch.setattr(verl.core, "ADV_ESTIMATOR_REGISTRY", registry)
        page = (ROOT / "algorithms/OUTGROW.md").read_text("utf-8")
        exec(page.split("```python\n")[1].split("```")[0], {})
    group = np.arange(P * G) // (rollout.n if name == "reinforce" else G)
    settings = {"index": group, "norm_adv_by_std_in_grpo": algorithm.norm_adv_by_std_in_grpo}
    if name == "ppo":
        settings = {"values": batch.old_values, "gamma": algorithm.gamma, "lam": algorithm.lam}
    estimator = verl.core.get_adv_estimator_fn(algorithm.adv_estimator)
    advantages, their_returns = estimator(rewards, response_mask=mask, **settings)
    if name == "ppo":
        columns = {"old_logps": batch.old_logps, "ref_logps": batch.ref_logps, "mask": batch.mask}
        expected, returns = ppo.compute_advantages(
            rewards=batch.rewards, values=batch.old_values, **columns, config=ours
        )
        test_parity.assert_close(their_returns[batch.mask], returns[batch.mask])
        expected = expected * ((mask.sum() - 1) / mask.sum()) ** 0.5
    else:
        expected = script.compute_advantages(rewards=batch.rewards)
        if name in test_parity.WITH_SIGMA:
            expected = expected * test_parity.ddof_factor(batch.rewards, 1e-6)
        expected = expected.view(-1, 1) * mask
    if name == "batch_sigma":  # whitened over tokens; see test_parity.py
        centred = dr_grpo.compute_advantages(rewards=batch.rewards).view(-1, 1).expand_as(mask)
        expected = verl.core.verl_F.masked_whiten(centred, mask) * mask
    test_parity.assert_close(advantages * mask, expected, atol=1e-8)

    if name == "reinforce":
        # One optimizer step for each batch: the ratio is 1. Only the gradients are equal.
        loss = reinforce.policy_loss(
            logps=batch.logps, advantages=advantages, mask=batch.mask, config=ours
        )
        old = batch.logps.detach()
        their_loss = test_parity.verl_loss(verl, batch, advantages, actor, old_logps=old)
        gradients = (test_parity.gradient(x, batch.logps) for x in (loss, their_loss))
        test_parity.assert_close(*gradients)
    else:
        loss = test_parity.script_loss(name, batch, advantages, ours)
        their_loss = test_parity.verl_loss(verl, batch, advantages, actor)
        test_parity.assert_same_loss(loss, their_loss, batch.logps)
    if name == "ppo":
        optim = theirs.critic.optim
        rates = optim.lr, optim.lr_warmup_steps, optim.weight_decay
        assert rates == (ours.critic_learning_rate, ours.warmup_steps, 0.0)
        assert theirs.critic.cliprange_value == ours.value_clip
