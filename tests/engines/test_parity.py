"""Values and gradients of the scripts' advantages and losses against the functions that TRL and
verl train with.

Every comparison calls the library's own function, or its trainer with log-probabilities handed to
it; no formula is written down a second time. Where a library differs on purpose, the docstring
gives the exact factor. Batches are ragged, in float64, with rows of one token and rows cut at the
limit, silent groups, advantages of both signs and ratios far outside the clip range; padding holds
garbage.
"""

import json
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, build_tiny_model, policy_loss
from torch import Tensor

from algorithms import cispo, dapo, dr_grpo, ppo
from lessons.experiments import losses
from lessons.experiments.baselines import ADVANTAGES, Batch
from toy_env.pretrain import build_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own, on import and in use
BUDGET = 9  # max_new_tokens; the second random batch is narrower
P, G = 11, 3  # TRL computes n/(n-1) in float32: exact for groups of 3 and batches of 33
OPTIONS = json.loads((ROOT / "algorithms/options.json").read_text("utf-8"))
SCRIPTS = {name: import_module(f"algorithms.{name}") for name in OPTIONS if name != "all scripts"}
WITH_SIGMA = ("grpo", "dapo", "gspo", "cispo")  # that of the group; the libraries' has ddof 1


def random_batch(seed: int) -> SimpleNamespace:
    """P·G rows. Log-ratios and log pi_ref / pi are normal, but every fifth ratio is about e^3 or
    e^-3. Of the groups two are silent, one has a single 1, one has shaped rewards."""
    generator = torch.Generator().manual_seed(seed)
    T = BUDGET - 2 * (seed > 0)
    B = P * G

    def normal() -> Tensor:
        return torch.randn(B, T, generator=generator, dtype=torch.float64)

    lengths = torch.randint(1, T + 1, (B,), generator=generator)
    # The second pair is a right completion of a group and a wrong one.
    lengths[[0, 1, 2 * G, 2 * G + 1, -2, -1]] = torch.tensor([1, T, T, 1, T, 1])
    rewards = torch.randint(0, 2, (P, G), generator=generator).double()
    rewards[:4] = torch.tensor([[1, 1, 1], [0, 0, 0], [1, 0, 0], [0.7, -1.2, -1.6]])
    old_logps = -normal().abs() - 0.1
    far = torch.rand(B, T, generator=generator) < 0.2
    log_ratio = torch.where(far, 3 * normal().sign() + 0.1 * normal(), 0.3 * normal())
    logps = old_logps + log_ratio
    values, old_values = 0.5 + 0.4 * normal(), 0.5 + 0.4 * normal()
    return SimpleNamespace(
        rewards=rewards,
        logps=logps.requires_grad_(),
        old_logps=old_logps,
        ref_logps=(logps + 0.7 * normal()).detach(),
        token_advantages=normal(),
        values=values.requires_grad_(),
        old_values=old_values,
        returns=0.5 + 0.5 * normal(),
        mask=torch.arange(T) < lengths.unsqueeze(1),
        lengths=lengths,
        truncated=torch.zeros(B, dtype=torch.bool),
    )


@pytest.fixture(params=[0, 1])
def batch(request) -> SimpleNamespace:
    return random_batch(request.param)


def script_advantages(name: str, batch: SimpleNamespace) -> Tensor:
    """(B, 1), or for PPO (B, T)."""
    if name == "ppo":
        return batch.token_advantages
    return SCRIPTS[name].compute_advantages(rewards=batch.rewards).view(-1, 1)


def script_loss(name: str, batch: SimpleNamespace, advantages: Tensor, config) -> Tensor:
    inputs = vars(batch) | {"advantages": advantages, "config": config}
    return policy_loss(SCRIPTS[name], **inputs)


def ddof_factor(rewards: Tensor, epsilon: float) -> Tensor:
    """The libraries' advantages over ours in each group, (P, 1): their sigma has ddof 1 and an
    epsilon added."""
    sigma, n = rewards.std(dim=1, keepdim=True), rewards.shape[1]
    return ((n - 1) / n) ** 0.5 * sigma / (sigma + epsilon)


def gradient(loss: Tensor, inputs: Tensor) -> Tensor:
    return torch.autograd.grad(loss, inputs)[0]


def assert_close(
    actual: Tensor, expected: Tensor, rtol: float = 1e-10, atol: float = 1e-12
) -> None:
    assert actual.dtype == torch.float64 and actual.isfinite().all()
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def assert_same_loss(ours: Tensor, theirs: Tensor, inputs: Tensor) -> None:
    """Equal values, and equal gradients that are not 0."""
    assert_close(ours, theirs)
    ours, theirs = gradient(ours, inputs), gradient(theirs, inputs)
    assert_close(ours, theirs)
    assert ours.abs().max() > 1e-4


# verl


def test_sapo_is_that_of_verl(verl, batch):
    """Averaged over tokens, then over completions."""
    config = verl.config.ActorConfig(
        strategy="fsdp", rollout_n=G, use_dynamic_bsz=True, tau_pos=1.0, tau_neg=1.05
    )  # fmt: skip
    advantages = script_advantages("grpo", batch)
    inputs = {"logps": batch.logps, "old_logps": batch.old_logps, "mask": batch.mask}
    ours = losses.sapo(**inputs, advantages=advantages)
    theirs, _ = verl.core.get_policy_loss_fn("sapo")(
        old_log_prob=batch.old_logps,
        log_prob=batch.logps,
        advantages=advantages.expand_as(batch.mask),
        response_mask=batch.mask.long(),
        loss_agg_mode="seq-mean-token-mean",
        config=config,
    )
    assert_same_loss(ours, theirs, batch.logps)


@pytest.mark.parametrize("value_clip", [0.2, 1e9])
def test_value_loss_is_that_of_verl(verl, batch, value_clip):
    """Exactly: both have the factor 1/2."""
    inputs = {name: getattr(batch, name) for name in ("values", "old_values", "returns", "mask")}
    ours = ppo.value_loss(**inputs, config=ppo.Config(value_clip=value_clip))
    theirs, _ = verl.core.compute_value_loss(
        batch.values, batch.returns, batch.old_values, batch.mask.long(), cliprange_value=value_clip
    )
    assert_same_loss(ours, theirs, batch.values)


# TRL


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    build_tiny_model(len(build_tokenizer())).save_pretrained(folder)
    return str(folder)


def trl_trainer(trl, folder: str, batch: SimpleNamespace, kind: str = "GRPO", **settings):
    """A GRPOTrainer or RLOOTrainer with the completions and rewards of `batch`, and with the
    log-probabilities in trainer.logps, under "policy" and "reference"; the rest of it is TRL's."""
    from datasets import Dataset

    Config, Trainer = getattr(trl, f"{kind}Config"), getattr(trl, f"{kind}Trainer")
    config = Config(
        output_dir=f"{folder}/out",
        per_device_train_batch_size=P * G,
        num_generations=G,
        num_iterations=2,  # so that it asks for the old log-probs
        max_completion_length=BUDGET,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        report_to="none",
        disable_tqdm=True,
        **settings,
    )
    prompts = Dataset.from_dict({"prompt": ["1+2?"] * P})
    trainer = Trainer(folder, lambda **_: None, config, prompts, processing_class=build_tokenizer())
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1  # set by train()
    trainer.logps = {"policy": batch.old_logps, "reference": batch.ref_logps}
    eos, digit = 2, 5
    lengths = zip(batch.lengths.tolist(), batch.truncated)
    ids = [[digit] * (n - 1) + [digit if cut else eos] for n, cut in lengths]

    def generate(prompts):
        prompt_ids, texts = [[1, digit]] * len(prompts), ["5"] * len(prompts)
        if kind == "RLOO":
            return prompt_ids, ids, texts
        return prompt_ids, ids, None, texts, None, {}, None, None

    def recorded(model, *_, **__):
        logps = trainer.logps["reference" if model is trainer.ref_model else "policy"]
        return logps, torch.zeros_like(logps), None

    trainer._generate = generate
    trainer._calculate_rewards = lambda *_: batch.rewards.view(-1, 1)
    trainer._get_per_token_logps_and_entropies = recorded
    return trainer


def trl_judged(trainer) -> dict:
    """TRL's advantages (B,), masks, old and reference log-probabilities of the completions."""
    return trainer._generate_and_score_completions([{"prompt": "1+2?"} for _ in range(P * G)])


def test_rloo_is_that_of_trl_where_the_ratio_is_1(trl, tiny_folder, batch):
    """The advantages of RLOOTrainer are ours, exactly, with its KL in the reward off (beta = 0).

    Its loss has one ratio for a completion, the product of those of its tokens, clipped as a whole,
    and divides by no length. Where every ratio is 1 its gradient is max_new_tokens times ours.
    """
    config = SCRIPTS["rloo"].Config(max_new_tokens=BUDGET, kl_coef=0.0)
    trainer = trl_trainer(trl, tiny_folder, batch, kind="RLOO", beta=0.0)
    judged = trl_judged(trainer)
    advantages = script_advantages("rloo", batch)
    assert_close(advantages.flatten(), judged["advantages"])
    batch.logps = trainer.logps["policy"] = batch.old_logps.clone().requires_grad_()
    ours = gradient(script_loss("rloo", batch, advantages, config), batch.logps)
    theirs = gradient(trainer.compute_loss(trainer.model, judged), batch.logps)
    assert_close(BUDGET * ours, theirs)


# What options.json says, and for scripts that TRL has no advantages for, what their loss is there
TRL_OPTIONS = {name: dict(OPTIONS[name]["TRL"] or {}) for name in SCRIPTS}
TRL_OPTIONS["ppo"] = {"loss_type": "dapo"}
TRL_OPTIONS["rloo"] = TRL_OPTIONS["maxrl"] = TRL_OPTIONS["dr_grpo"]
OTHER_CLIP = {  # in the script, in TRL
    "gspo": ({"clip_eps_low": 0.2, "clip_eps_high": 0.3}, {"epsilon": 0.2, "epsilon_high": 0.3}),
    "cispo": ({"max_ratio": 1.5}, {"epsilon_high": 1.5}),
}
CASES = [(name, "as it is") for name, options in TRL_OPTIONS.items() if options]
CASES += [(name, "without KL") for name in ("grpo", "dr_grpo", "gspo")]
CASES += [("gspo", "other clip"), ("gspo", "other clip, without KL"), ("cispo", "other clip")]
CASES += [("dapo", "filtered"), ("cispo", "filtered")]


@pytest.mark.parametrize("name, case", CASES)
def test_policy_loss_is_that_of_trl_under_the_options(trl, tiny_folder, batch, name, case):
    """Exactly, with TRL's own advantages. Its advantages differ by the degrees of freedom of sigma
    and an epsilon of 1e-4; for Dr. GRPO they are equal. With scale_rewards = "batch" sigma is that
    of the raw rewards, in batch_sigma.py that of the centred ones. PPO is its "dapo" with
    advantages per token. Overlong filtering is its mask_truncated_completions: they count in the
    group's mean and sigma, but neither in the loss nor in the number of tokens that it is divided
    by."""
    settings, options = {}, TRL_OPTIONS[name] | {"mask_truncated_completions": case == "filtered"}
    options.pop("reward_weights", None)  # of the verdict and a penalty; here is one reward
    if "without KL" in case:
        settings["kl_coef"] = options["beta"] = 0.0
    if "other clip" in case:
        settings |= OTHER_CLIP[name][0]
        options |= OTHER_CLIP[name][1]
    if case == "filtered":
        batch.truncated = batch.lengths == batch.lengths.max()
    config = SCRIPTS[name].Config(max_new_tokens=BUDGET, group_size=G, **settings)
    trainer = trl_trainer(trl, tiny_folder, batch, **options)
    judged = trl_judged(trainer)
    batch.mask = batch.mask & ~batch.truncated.unsqueeze(1)
    assert torch.equal(judged["completion_mask"].bool(), batch.mask)
    ours = script_advantages(name, batch)
    if name in ("ppo", "rloo", "maxrl"):  # TRL has none of these advantages here
        judged["advantages"] = ours
    else:
        factor = ddof_factor(batch.rewards, 1e-4) if name in WITH_SIGMA else 1
        if name == "batch_sigma":
            centred = dr_grpo.compute_advantages(rewards=batch.rewards)
            factor = centred.std(correction=0) / (batch.rewards.std() + 1e-4)
        assert_close((ours.view(P, G) * factor).flatten(), judged["advantages"])
    trainer.logps["policy"] = batch.logps
    theirs = trainer.compute_loss(trainer.model, judged)
    advantages = judged["advantages"].view(P * G, -1)
    assert_same_loss(script_loss(name, batch, advantages, config), theirs, batch.logps)


def test_by_default_trl_multiplies_k3_by_the_ratio(trl, tiny_folder, batch):
    """use_bias_correction_kl, which options.json turns off. Without advantages the gradient of a
    token is the ratio times k1, and the token's weight in the mean."""
    trainer = trl_trainer(trl, tiny_folder, batch, loss_type="grpo", beta=0.04)
    judged = trl_judged(trainer)
    judged["advantages"] = torch.zeros_like(judged["advantages"])
    trainer.logps["policy"] = batch.logps
    theirs = gradient(trainer.compute_loss(trainer.model, judged), batch.logps)
    k1, ratio = batch.logps - batch.ref_logps, (batch.logps - batch.old_logps).exp()
    weight = 0.04 * batch.mask.double() / (batch.lengths.unsqueeze(1) * P * G)
    assert_close((weight * ratio * k1).detach(), theirs)


@pytest.mark.parametrize("script", [dapo, cispo])
@pytest.mark.parametrize("buffer", [0, 1, 8, 56])
def test_overlong_penalty_is_that_of_trl(trl, buffer, script):
    """At every length from 0 to one more than the limit."""
    from trl.rewards import get_soft_overlong_punishment

    mask = torch.ones(58, 57).tril(-1).double()
    theirs = get_soft_overlong_punishment(max_completion_len=56, soft_punish_cache=buffer)
    expected = theirs(completion_ids=[[5] * n for n in range(58)])
    config = script.Config(max_new_tokens=56, overlong_buffer=buffer)
    ours = script.overlong_penalty(mask=mask, config=config)
    assert_close(ours, torch.tensor(expected, dtype=torch.float64))


def test_token_baseline_and_opo_are_those_of_verl(verl, batch):
    """The baselines of lessons/experiments/baselines.py. A group has a single longest completion,
    others are silent."""
    squares, mask = batch.values.detach().abs(), batch.mask  # sums of squared probabilities
    proxies = (1 - 2 * batch.old_logps.exp() + squares) * mask
    last = torch.arange(mask.shape[1]) == batch.lengths.unsqueeze(1) - 1
    inputs = {"token_level_rewards": batch.rewards.view(-1, 1) * last, "response_mask": mask}
    inputs["index"] = np.repeat(np.arange(P), G)
    token_baseline = verl.core.compute_optimal_token_baseline_advantage
    otb, _ = token_baseline(**inputs, old_log_probs=batch.old_logps, sum_pi_squared=squares)
    opo, _ = verl.core.compute_opo_outcome_advantage(**inputs)
    columns = batch.rewards, batch.lengths.view(P, G), proxies.view(P, G, -1)
    R, lengths, proxies = (column.numpy() for column in columns)
    for name, theirs in (("OTB", otb), ("OPO", opo)):
        ours = ADVANTAGES[name](Batch(R, lengths, proxies=proxies))
        ours = torch.from_numpy(ours).view(P * G, -1) * mask
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
