"""With verl's options in algorithms/options.json, read by verl's own configuration, verl computes
what the script does."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import INSTALL_VERL, ROOT
from test_parity import (
    OPTIONS,
    SCRIPTS,
    WITH_SIGMA,
    G,
    P,
    assert_close,
    assert_same_loss,
    ddof_factor,
    gradient,
    random_batch,
    script_advantages,
    script_loss,
)
from torch import Tensor

from algorithms import dr_grpo, ppo
from toy_env.model import BASE_MODEL

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own, on import and in use
SETTINGS = {  # numbers that a script's Config has, too
    "data.max_response_length": "max_new_tokens",
    "actor_rollout_ref.rollout.temperature": "temperature",
    "actor_rollout_ref.actor.optim.clip_grad": "max_grad_norm",
    "actor_rollout_ref.actor.optim.lr": "learning_rate",
    "actor_rollout_ref.actor.optim.lr_warmup_steps": "warmup_steps",
    "critic.optim.lr": "critic_learning_rate",
    "critic.optim.lr_warmup_steps": "warmup_steps",
    "critic.cliprange_value": "value_clip",
}


def options_of(name: str) -> dict:
    """verl's options for a script."""
    return OPTIONS["all scripts"]["verl"] | OPTIONS[name]["verl"]


def read_verl(name: str, without: str = ""):
    """verl's configuration under the options of a script but one. Raises if verl does not have an
    option."""
    hydra = pytest.importorskip("hydra", reason=INSTALL_VERL)
    options = options_of(name) | {"critic.model.path": BASE_MODEL}
    options.pop(without, None)
    texts = [f"{key}={value}" for key, value in options.items()]
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        return hydra.compose("ppo_trainer", texts)


def verl_loss(verl, batch: SimpleNamespace, advantages: Tensor, config) -> Tensor:
    """verl's `ppo_loss`: clip, aggregation and KL term. Its unpadding of the model's output is
    switched off."""
    tensors = {
        "response_mask": batch.mask.long(),
        "old_log_probs": batch.old_logps,
        "advantages": advantages.expand_as(batch.mask),
        "ref_log_prob": batch.ref_logps,
    }
    world = {"dp_size": 1, "batch_num_tokens": None, "global_batch_size": None}
    data = verl.tensordict.get_tensordict(tensors, non_tensor_dict=world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verl.losses, "no_padding_2_padding", lambda x, data: x)
        return verl.losses.ppo_loss(config, {"log_probs": batch.logps}, data)[0]


def verl_advantages(verl, name: str, batch: SimpleNamespace, algorithm) -> tuple[Tensor, Tensor]:
    """verl's advantages and returns under its configuration of an algorithm."""
    mask = batch.mask.double()
    last = torch.arange(mask.shape[1]) == batch.lengths.unsqueeze(1) - 1
    rewards = batch.rewards.view(-1, 1) * last
    if algorithm.use_kl_in_reward:
        kl = verl.core.kl_penalty(batch.old_logps, batch.ref_logps, algorithm.kl_penalty)
        rewards = rewards - algorithm.kl_ctrl.kl_coef * kl * mask
    groups = np.arange(P * G) // (1 if name == "reinforce" else G)
    settings = {"index": groups, "norm_adv_by_std_in_grpo": algorithm.norm_adv_by_std_in_grpo}
    if name == "ppo":
        settings = {"values": batch.old_values, "gamma": algorithm.gamma, "lam": algorithm.lam}
    estimator = verl.core.get_adv_estimator_fn(algorithm.adv_estimator)
    return estimator(rewards, response_mask=mask, **settings)


@pytest.mark.slow  # imports verl
@pytest.mark.parametrize("name", [name for name in SCRIPTS if OPTIONS[name]["verl"]])
def test_verl_computes_what_the_script_does_under_these_options(verl, monkeypatch, name):
    """Its advantages, up to the degrees of freedom and epsilon of sigma, and its loss and gradient
    exactly."""
    if name == "maxrl":  # what OUTGROW.md says to register
        registry = dict(verl.core.ADV_ESTIMATOR_REGISTRY)
        monkeypatch.setattr(verl.core, "ADV_ESTIMATOR_REGISTRY", registry)
        page = (ROOT / "algorithms/OUTGROW.md").read_text("utf-8")
        exec(page.split("```python\n")[1].split("```")[0], {})
    ours, batch = SCRIPTS[name].Config(), random_batch(0)
    theirs = read_verl(name)
    reference = verl.typed(theirs.actor_rollout_ref.ref.fsdp_config)
    actor, critic = verl.typed(theirs.actor_rollout_ref.actor), verl.typed(theirs.critic)
    mask = batch.mask.double()
    advantages, returns = verl_advantages(verl, name, batch, theirs.algorithm)
    if name == "ppo":
        columns = {"old_logps": batch.old_logps, "ref_logps": batch.ref_logps, "mask": batch.mask}
        expected, our_returns = ppo.compute_advantages(
            rewards=batch.rewards, values=batch.old_values, **columns, config=ours
        )
        assert_close(returns[batch.mask], our_returns[batch.mask])
        expected = expected * ((mask.sum() - 1) / mask.sum()) ** 0.5
    elif name == "batch_sigma":  # verl whitens over tokens
        centred = dr_grpo.compute_advantages(rewards=batch.rewards).view(-1, 1).expand_as(mask)
        expected = verl.core.verl_F.masked_whiten(centred, mask)
    else:
        factor = ddof_factor(batch.rewards, 1e-6) if name in WITH_SIGMA else torch.ones(P, 1)
        expected = script_advantages(name, batch) * factor.repeat_interleave(G, dim=0)
    assert_close(advantages * mask, expected * mask, atol=1e-8)

    if name == "reinforce":  # one optimizer step for each batch: the ratio is 1
        batch.old_logps = batch.logps.detach()
    losses = script_loss(name, batch, advantages, ours), verl_loss(verl, batch, advantages, actor)
    if name == "reinforce":  # only the gradients are equal
        losses = (loss - loss.detach() for loss in losses)
    assert_same_loss(*losses, batch.logps)

    data, completions = theirs.data, ours.prompts_per_step * ours.group_size
    assert data.train_batch_size * theirs.actor_rollout_ref.rollout.n == completions
    minibatches = data.train_batch_size / actor.ppo_mini_batch_size
    assert minibatches == getattr(ours, "num_minibatches", 1)
    for engine in (actor.engine, reference, critic.engine):
        assert engine.mixed_precision == {"param_dtype": "fp32"}
    for option, value in options_of(name).items():
        if option in SETTINGS:
            assert value == getattr(ours, SETTINGS[option]), option
        assert value == 0 or not option.endswith("weight_decay")


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ["ppo", "grpo", "dr_grpo", "dapo", "cispo"])
def test_a_bound_on_the_ratio_is_all_that_verl_adds(verl, name, seed):
    """By default verl also clips the ratio at c = 3 where the advantage is negative: those tokens
    have the gradient of the KL term alone. In CISPO it has a lower bound, .8: those tokens have .8
    / ratio times ours. All other tokens have ours."""
    batch = random_batch(seed)
    advantages = script_advantages(name, batch)
    ours = gradient(script_loss(name, batch, advantages, SCRIPTS[name].Config()), batch.logps)
    ratio = (batch.logps - batch.old_logps).exp().detach()
    bound = "clip_ratio_low" if name == "cispo" else "clip_ratio_c"
    default = read_verl(name, without=f"actor_rollout_ref.actor.{bound}")
    default = verl.typed(default.actor_rollout_ref.actor)
    if name == "cispo":
        bounded, expected = (ratio < 0.8) & (advantages != 0) & batch.mask, 0.8 / ratio * ours
    else:
        bounded = (ratio > 3) & (advantages < 0) & batch.mask
        expected = gradient(verl_loss(verl, batch, 0 * advantages, default), batch.logps)
    theirs = gradient(verl_loss(verl, batch, advantages, default), batch.logps)
    assert_close(ours[~bounded], theirs[~bounded])
    assert_close(expected[bounded], theirs[bounded])
    assert bounded.sum() > 3 and not torch.isclose(ours, theirs)[bounded].any()
