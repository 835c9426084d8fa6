"""The options on the page algorithms/OUTGROW.md: TRL's are those of scale_out.py, and with verl's
options verl computes what the script does."""

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import test_parity
from conftest import INSTALL_VERL, ROOT

from algorithms import ppo, reinforce
from lessons.experiments import scale_out
from toy_env.model import BASE_MODEL

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own, on import and in use


def page_section(section: str) -> str:
    return (
        (ROOT / "algorithms/OUTGROW.md")
        .read_text("utf-8")
        .split(f"\n### {section}\n")[1]
        .split("\n#")[0]
    )


def page_options(section: str, library: str) -> dict[str, str]:
    """The options NAME=VALUE in the column of a library in the table of a section, after those of
    the section that a row "otherwise as SECTION" names."""
    table = [line.split("|") for line in page_section(section).splitlines() if line.startswith("|")]
    column = [cell.strip() for cell in table[0]].index(library)
    options = dict(
        re.findall(r"`([+a-z][a-z_.]*)=([^`]*)`", " ".join(row[column] for row in table))
    )
    other = re.findall(
        r"^otherwise as (\w+)$", "\n".join(row[1].strip() for row in table), re.MULTILINE
    )
    return page_options(other[0], library) | options if other else options


@pytest.mark.parametrize("name", scale_out.ALGORITHMS)
def test_the_options_of_trl_on_the_page_are_those_of_the_program(name):
    """Those that it leaves at TRL's default are in TRL's own list, with that default."""
    settings = scale_out.trl_settings(scale_out.Config(algorithm=name), 1)
    options = page_options("all scripts", "TRL") | page_options(name, "TRL")
    assert len(options) > 12
    for option, value in scale_out.further_options(
        [f"{key}={value}" for key, value in options.items()]
    ).items():
        if option != "scale_rewards" or name == "dr_grpo":
            assert settings[option] == value
    if find_spec("trl"):
        theirs = (Path(find_spec("trl").origin).parent / "trainer/grpo_config.py").read_text(
            "utf-8"
        )
        assert re.search(r'scale_rewards: str = field\(\s+default="group"', theirs)
        assert "    mask_truncated_completions: bool" in theirs


def read_verl(name: str):
    """verl's configuration under the options of the page; raises if it does not have one of
    them."""
    hydra = pytest.importorskip("hydra", reason=INSTALL_VERL)
    options = page_options("all scripts", "verl") | page_options(name, "verl")
    assert len(options) > 12
    options = {
        re.sub(r"^(actor|rollout)\.", r"actor_rollout_ref.\1.", key): options[key]
        for key in options
    }
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        options["critic.model.path"] = BASE_MODEL
        return hydra.compose("ppo_trainer", [f"{key}={value}" for key, value in options.items()])


@pytest.mark.slow  # imports verl
@pytest.mark.parametrize("name", ["reinforce", *test_parity.SCRIPTS])
def test_verl_computes_what_the_script_does_under_the_options_of_the_page(verl, monkeypatch, name):
    """Its advantages, up to the degrees of freedom and epsilon of sigma, and its loss and gradient
    exactly."""
    from verl.utils.config import omega_conf_to_dataclass

    script = reinforce if name == "reinforce" else test_parity.SCRIPTS[name]
    ours, theirs, batch = script.Config(), read_verl(name), test_parity.random_batch(0)
    algorithm, actor = theirs.algorithm, omega_conf_to_dataclass(theirs.actor_rollout_ref.actor)
    P, G = test_parity.P, test_parity.G

    rollout, prompts, optimizer = (
        theirs.actor_rollout_ref.rollout,
        theirs.data.train_batch_size,
        actor.optim,
    )
    assert rollout.n * prompts == ours.prompts_per_step * ours.group_size
    assert prompts / actor.ppo_mini_batch_size == getattr(ours, "num_minibatches", 1)
    assert (theirs.data.max_response_length, rollout.temperature) == (
        ours.max_new_tokens,
        ours.temperature,
    )
    optimizer = (
        optimizer.lr,
        optimizer.lr_warmup_steps,
        optimizer.clip_grad,
        optimizer.weight_decay,
    )
    assert optimizer == (ours.learning_rate, ours.warmup_steps, ours.max_grad_norm, 0.0)
    reference = omega_conf_to_dataclass(theirs.actor_rollout_ref.ref.fsdp_config)
    for engine in (actor.engine, reference, omega_conf_to_dataclass(theirs.critic).engine):
        assert engine.mixed_precision == {"param_dtype": "fp32"}

    rewards, mask = test_parity.at_last_token(batch.rewards, batch), batch.mask.double()
    if algorithm.use_kl_in_reward:
        kl = verl.core.kl_penalty(batch.old_logps, batch.ref_logps, algorithm.kl_penalty)
        rewards = rewards - algorithm.kl_ctrl.kl_coef * kl * mask
    if name == "maxrl":  # what the page says to register
        monkeypatch.setattr(
            verl.core, "ADV_ESTIMATOR_REGISTRY", {**verl.core.ADV_ESTIMATOR_REGISTRY}
        )
        exec(page_section(name).split("```python\n")[1].split("```")[0], {})
    group = np.arange(P * G) // (rollout.n if name == "reinforce" else G)
    settings = {"index": group, "norm_adv_by_std_in_grpo": algorithm.norm_adv_by_std_in_grpo}
    if name == "ppo":
        settings = {"values": batch.old_values, "gamma": algorithm.gamma, "lam": algorithm.lam}
    estimator = verl.core.get_adv_estimator_fn(algorithm.adv_estimator)
    advantages, their_returns = estimator(rewards, response_mask=mask, **settings)
    if name == "ppo":
        old = {
            "values": batch.old_values,
            "old_logps": batch.old_logps,
            "ref_logps": batch.ref_logps,
        }
        expected, returns = ppo.compute_advantages(
            rewards=batch.rewards, **old, mask=batch.mask, config=ours
        )
        test_parity.assert_close(their_returns[batch.mask], returns[batch.mask])
        expected = expected * ((mask.sum() - 1) / mask.sum()) ** 0.5
    else:
        sigma_factor = (
            test_parity.ddof_factor(batch.rewards, 1e-6) if name in test_parity.WITH_SIGMA else 1
        )
        expected = (script.compute_advantages(rewards=batch.rewards) * sigma_factor).view(
            -1, 1
        ) * mask
    test_parity.assert_close(advantages * mask, expected, atol=1e-8)

    if (
        name == "reinforce"
    ):  # one optimizer step for each batch: the ratio is 1, and the value of the loss is another
        loss = reinforce.policy_loss(
            logps=batch.logps, advantages=advantages, mask=batch.mask, config=ours
        )
        their_loss = test_parity.verl_loss(
            verl, batch, advantages, actor, old_logps=batch.logps.detach()
        )
        test_parity.assert_close(
            *(test_parity.gradient(x, batch.logps) for x in (loss, their_loss))
        )
    else:
        loss = test_parity.script_loss(name, batch, advantages, ours)
        their_loss = test_parity.verl_loss(verl, batch, advantages, actor)
        test_parity.assert_same_loss(loss, their_loss, batch.logps)
    if name == "ppo":
        optimizer = theirs.critic.optim
        settings = (
            optimizer.lr,
            optimizer.weight_decay,
            optimizer.lr_warmup_steps,
            theirs.critic.cliprange_value,
        )
        assert settings == (ours.critic_learning_rate, 0.0, ours.warmup_steps, ours.value_clip)
