"""Values and gradients of the scripts' advantages and losses against the functions that TRL and
verl train with.

Every comparison calls the library's own function, or its trainer with log-probabilities handed to
it; no formula is written down a second time. Where a library differs on purpose, the docstring
gives the exact factor. Batches are ragged, in float64, with rows of one token and rows cut at the
limit, silent groups, advantages of both signs and ratios far outside the clip range; padding holds
garbage.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import INSTALL_TRL, build_tiny_model
from torch import Tensor

from algorithms import batch_sigma, cispo, dapo, dr_grpo, grpo, gspo, maxrl, ppo, rloo
from lessons.experiments import losses
from lessons.experiments.baselines import ADVANTAGES, Batch
from lessons.workshop.companions import lesson_04
from toy_env.pretrain import build_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own, on import and in use
BUDGET = 9  # max_new_tokens; two of the three random batches are narrower
P, G = 11, 3  # TRL computes n/(n-1) in float32: exact for groups of 3 and batches of 33
SCRIPTS = {"ppo": ppo, "grpo": grpo, "dr_grpo": dr_grpo, "dapo": dapo}
SCRIPTS |= {"rloo": rloo, "maxrl": maxrl, "batch_sigma": batch_sigma, "gspo": gspo, "cispo": cispo}
WITH_REFERENCE = ("grpo", "dr_grpo", "rloo", "maxrl", "batch_sigma", "gspo")  # KL in the loss
TRL_SCALE = dict.fromkeys(("dr_grpo", "rloo", "maxrl"), "none") | {"batch_sigma": "batch"}
WITH_SIGMA = ("grpo", "dapo", "gspo", "cispo")


@pytest.fixture(scope="module")
def trl():
    datasets = pytest.importorskip("datasets", reason=INSTALL_TRL)
    trl = pytest.importorskip("trl", reason=INSTALL_TRL)
    from trl.rewards import get_soft_overlong_punishment

    return SimpleNamespace(
        GRPO=(trl.GRPOConfig, trl.GRPOTrainer),
        RLOO=(trl.RLOOConfig, trl.RLOOTrainer),
        Dataset=datasets.Dataset,
        get_soft_overlong_punishment=get_soft_overlong_punishment,
    )


def random_rewards(generator: torch.Generator) -> Tensor:
    """(P, G): two silent groups, one with a single 1, one of shaped rewards, the others 0 or 1 at
    random."""
    rewards = torch.randint(0, 2, (P, G), generator=generator).double()
    rewards[0], rewards[1], rewards[2] = 1.0, 0.0, torch.eye(G)[0]
    rewards[3] = 2 * rewards[2] - 1 - torch.rand(G, generator=generator).double()
    return rewards


def random_batch(seed: int) -> SimpleNamespace:
    """P·G rows. Log-ratios and log pi_ref / pi are normal, but every fifth ratio is about e^3 or
    e^-3."""
    generator = torch.Generator().manual_seed(seed)
    T = BUDGET - 2 * (seed > 0)
    B = P * G

    def normal() -> Tensor:
        return torch.randn(B, T, generator=generator, dtype=torch.float64)

    lengths = torch.randint(1, T + 1, (B,), generator=generator)
    lengths[0], lengths[1], lengths[-2], lengths[-1] = 1, T, T, 1
    lengths[2 * G], lengths[2 * G + 1] = T, 1  # a right completion of a group, and a wrong one
    old_logps = -normal().abs() - 0.1
    far = torch.rand(B, T, generator=generator) < 0.2
    log_ratio = torch.where(far, 3 * normal().sign() + 0.1 * normal(), 0.3 * normal())
    logps = old_logps + log_ratio
    values, old_values = 0.5 + 0.4 * normal(), 0.5 + 0.4 * normal()
    return SimpleNamespace(
        rewards=random_rewards(generator),
        logps=logps.requires_grad_(),
        old_logps=old_logps,
        ref_logps=(logps + 0.7 * normal()).detach(),
        token_advantages=normal(),
        values=values.requires_grad_(),
        old_values=old_values,
        returns=0.5 + 0.5 * normal(),
        mask=torch.arange(T) < lengths.unsqueeze(1),
        lengths=lengths,
    )


@pytest.fixture(params=[0, 1])
def batch(request) -> SimpleNamespace:
    return random_batch(request.param)


OTHER_CLIP = {"gspo": {"clip_eps_low": 0.2, "clip_eps_high": 0.3}, "cispo": {"max_ratio": 1.5}}


def script_config(name: str, kl_coef: float, clip: str = "default"):
    """The script's config. PPO has its KL in the reward, DAPO and CISPO have none; clip="other" is
    a clip range that is not the default."""
    settings = {"kl_coef": kl_coef} if name in WITH_REFERENCE else {}
    settings |= OTHER_CLIP[name] if clip == "other" else {}
    return SCRIPTS[name].Config(max_new_tokens=BUDGET, group_size=G, **settings)


def clip_range(config) -> tuple[float, float]:
    """The distances below and above 1 at which the ratio is clipped. CISPO has no lower bound, so 1
    below."""
    if hasattr(config, "max_ratio"):
        return 1.0, config.max_ratio - 1
    if hasattr(config, "clip_eps"):
        return config.clip_eps, config.clip_eps
    return config.clip_eps_low, config.clip_eps_high


def script_advantages(name: str, batch: SimpleNamespace) -> Tensor:
    """(B, 1), or for PPO (B, T)."""
    if name == "ppo":
        return batch.token_advantages
    return SCRIPTS[name].compute_advantages(rewards=batch.rewards).view(-1, 1)


def script_loss(
    name: str, batch: SimpleNamespace, advantages: Tensor, config, mask: Tensor | None = None
) -> Tensor:
    ref_logps = {"ref_logps": batch.ref_logps} if name in WITH_REFERENCE else {}
    mask = batch.mask if mask is None else mask
    return SCRIPTS[name].policy_loss(
        logps=batch.logps,
        old_logps=batch.old_logps,
        advantages=advantages,
        mask=mask,
        config=config,
        **ref_logps,
    )


def ddof_factor(rewards: Tensor, epsilon: float) -> Tensor:
    """The libraries' advantages over ours in each group, (P, 1): their sigma has ddof 1 and an
    epsilon added."""
    sigma = rewards.std(dim=1, keepdim=True)
    return ((G - 1) / G) ** 0.5 * sigma / (sigma + epsilon)


def gradient(loss: Tensor, inputs: Tensor) -> Tensor:
    return torch.autograd.grad(loss, inputs)[0]


def assert_close(
    actual: Tensor, expected: Tensor, rtol: float = 1e-10, atol: float = 1e-12
) -> None:
    assert actual.dtype == torch.float64 and actual.isfinite().all()
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def assert_same_loss(ours: Tensor, theirs: Tensor, inputs: Tensor) -> Tensor:
    """Returns the gradient that both have."""
    assert_close(ours, theirs)
    ours, theirs = gradient(ours, inputs), gradient(theirs, inputs)
    assert_close(ours, theirs)
    assert ours.abs().max() > 1e-3
    return ours


def at_last_token(rewards: Tensor, batch: SimpleNamespace) -> Tensor:
    """Rewards (P, G) as (B, T), on the last token of each completion."""
    out = torch.zeros_like(batch.old_logps)
    for row, (reward, length) in enumerate(zip(rewards.flatten(), batch.lengths)):
        out[row, length - 1] = reward
    return out


# verl


AGGREGATION = {
    "ppo": "token-mean",
    "grpo": "seq-mean-token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "dapo": "token-mean",
    "rloo": "seq-mean-token-sum-norm",
    "maxrl": "seq-mean-token-sum-norm",
    "batch_sigma": "seq-mean-token-sum-norm",
    "gspo": "seq-mean-token-mean",
    "cispo": "token-mean",
}


def verl_config(verl, name: str, config, c: float = 1e9, low: float | None = None):
    """verl's configuration of a script's loss, with its dual clip at `c`. `low` replaces the
    script's lower bound."""
    kl_coef = config.kl_coef if name in WITH_REFERENCE else 0.0
    mode = name if name in ("gspo", "cispo") else "vanilla"
    return verl.config.ActorConfig(
        strategy="fsdp",
        rollout_n=G,
        use_dynamic_bsz=True,
        policy_loss=verl.config.PolicyLossConfig(loss_mode=mode),
        clip_ratio_low=clip_range(config)[0] if low is None else low,
        clip_ratio_high=clip_range(config)[1],
        clip_ratio_c=c,
        loss_agg_mode=AGGREGATION[name],
        loss_scale_factor=BUDGET,
        use_kl_loss=kl_coef > 0,
        kl_loss_coef=kl_coef,
        kl_loss_type="k3",
    )


def verl_loss(
    verl, batch: SimpleNamespace, advantages: Tensor, config, old_logps: Tensor | None = None
) -> Tensor:
    """verl's `ppo_loss`: clip, aggregation and KL term. Its unpadding of the model's output is
    switched off."""
    tensors = {
        "response_mask": batch.mask.long(),
        "old_log_probs": batch.old_logps if old_logps is None else old_logps,
        "advantages": advantages.expand_as(batch.mask),
        "ref_log_prob": batch.ref_logps,
    }
    world = {"dp_size": 1, "batch_num_tokens": None, "global_batch_size": None}
    data = verl.tensordict.get_tensordict(tensors, non_tensor_dict=world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verl.losses, "no_padding_2_padding", lambda x, data: x)
        return verl.losses.ppo_loss(config, {"log_probs": batch.logps}, data)[0]


LOSSES = [
    ("ppo", 0.0),
    ("grpo", 0.0),
    ("grpo", 0.04),
    ("dr_grpo", 0.0),
    ("dr_grpo", 0.04),
    ("dapo", 0.0),
]
ALL_LOSSES = [(*loss, "default") for loss in LOSSES] + [
    *((name, 0.04, "default") for name in ("rloo", "maxrl", "batch_sigma")),  # dr_grpo.py's loss
    *(("gspo", kl_coef, clip) for kl_coef in (0.0, 0.04) for clip in ("default", "other")),
    *((name, 0.0, "filtered") for name in ("dapo", "cispo")),
    *(("cispo", 0.0, clip) for clip in ("default", "other")),
]


@pytest.mark.parametrize("name, kl_coef", [*LOSSES, ("cispo", 0.0)])
def test_a_bound_on_the_ratio_is_all_that_verl_adds(verl, batch, name, kl_coef):
    """By default verl also clips the ratio at c = 3 where the advantage is negative: those tokens
    have the gradient of the KL term alone. In CISPO it has a lower bound, .8: those tokens have .8
    / ratio times ours. All other tokens have ours."""
    advantages, config = script_advantages(name, batch), script_config(name, kl_coef)
    settings = verl_config(verl, name, config, c=3.0)
    ours = gradient(script_loss(name, batch, advantages, config), batch.logps)
    ratio = (batch.logps - batch.old_logps).exp().detach()
    if name == "cispo":
        settings = verl_config(verl, name, config, low=0.2)
        bounded, expected = (ratio < 0.8) & (advantages != 0) & batch.mask, 0.8 / ratio * ours
    else:
        bounded = (ratio > 3) & (advantages < 0) & batch.mask
        expected = gradient(verl_loss(verl, batch, 0 * advantages, settings), batch.logps)
    theirs = gradient(verl_loss(verl, batch, advantages, settings), batch.logps)
    assert_close(ours[~bounded], theirs[~bounded])
    assert_close(expected[bounded], theirs[bounded])
    assert bounded.sum() > 3 and not torch.isclose(ours, theirs)[bounded].any()


@pytest.mark.parametrize(
    "name, mode, width",
    [("sapo", "sapo", 0.2), ("gmpo", "geo_mean", 0.4), ("dppo", "dppo_tv", losses.DELTA)],
)
def test_the_losses_of_lesson_14_are_those_of_verl(verl, batch, name, mode, width):
    """Averaged over tokens, then over completions, without verl's cap on DPPO's ratio
    (clip_ratio_c). DPPO's loss has another value and the same gradient: verl multiplies log pi by
    the detached ratio."""
    config = verl.config.ActorConfig(
        strategy="fsdp", rollout_n=G, use_dynamic_bsz=True, clip_ratio=width, clip_ratio_low=width,
        clip_ratio_high=width, clip_ratio_c=1e9, tau_pos=1.0, tau_neg=1.05,
    )  # fmt: skip
    advantages = script_advantages("grpo", batch)
    inputs = {"logps": batch.logps, "old_logps": batch.old_logps, "mask": batch.mask}
    ours = getattr(losses, name)(**inputs, advantages=advantages)
    theirs, _ = verl.core.get_policy_loss_fn(mode)(
        old_log_prob=batch.old_logps,
        log_prob=batch.logps,
        advantages=advantages.expand_as(batch.mask),
        response_mask=batch.mask.long(),
        loss_agg_mode="seq-mean-token-mean",
        config=config,
    )
    if name == "dppo":
        ours, theirs = (loss - loss.detach() for loss in (ours, theirs))
    stopped = assert_same_loss(ours, theirs, batch.logps) == 0
    assert stopped[batch.mask & (advantages != 0)].any() == (name != "sapo")


@pytest.mark.parametrize("value_clip", [0.2, 1e9])
def test_value_loss_is_that_of_verl(verl, batch, value_clip):
    """Exactly: both have the factor 1/2."""
    inputs = {name: getattr(batch, name) for name in ("values", "old_values", "returns", "mask")}
    ours = ppo.value_loss(**inputs, config=ppo.Config(value_clip=value_clip))
    theirs, clipped = verl.core.compute_value_loss(
        batch.values, batch.returns, batch.old_values, batch.mask.long(), cliprange_value=value_clip
    )
    assert_same_loss(ours, theirs, batch.values)
    assert (clipped > 0.1) == (value_clip < 1)


# TRL


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    build_tiny_model(len(build_tokenizer())).save_pretrained(folder)
    return str(folder)


def trl_trainer(
    trl,
    folder: str,
    batch: SimpleNamespace,
    truncated: Tensor | None = None,
    kind="GRPO",
    **settings,
):
    """A GRPOTrainer or RLOOTrainer with the completions and rewards of `batch`, and with the
    log-probabilities in trainer.logps, under "policy" and "reference"; the rest of it is TRL's."""
    Config, Trainer = getattr(trl, kind)
    defaults = {"use_bias_correction_kl": False} if kind == "GRPO" else {}
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
        **{**defaults, **settings},
    )
    prompts = trl.Dataset.from_dict({"prompt": ["1+2?"] * P})
    trainer = Trainer(folder, lambda **_: None, config, prompts, processing_class=build_tokenizer())
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1  # set by train()
    trainer.logps = {"policy": batch.old_logps, "reference": batch.ref_logps}
    eos, digit = 2, 5
    truncated = torch.zeros(P * G) if truncated is None else truncated
    lengths = zip(batch.lengths.tolist(), truncated)
    ids = [[digit] * (n - 1) + [digit if cut else eos] for n, cut in lengths]

    def generate(prompts):
        prompt_ids, texts = [[1, digit]] * len(prompts), ["5"] * len(prompts)
        if kind == "RLOO":
            return prompt_ids, ids, texts
        return prompt_ids, ids, None, texts, None, {}, None, None

    def recorded(model, input_ids, *_, **__):
        logps = trainer.logps["reference" if model is trainer.ref_model else "policy"]
        assert len(input_ids) == len(logps)
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
    and divides by no length. Where every ratio is 1 its gradient is max_new_tokens times ours;
    elsewhere there is no such factor.
    """
    config = script_config("rloo", 0.0)
    trainer = trl_trainer(trl, tiny_folder, batch, kind="RLOO", beta=0.0)
    judged = trl_judged(trainer)
    advantages = script_advantages("rloo", batch)
    assert_close(advantages.flatten(), judged["advantages"])
    for logps, same in ((batch.logps, False), (batch.old_logps.clone().requires_grad_(), True)):
        batch.logps = trainer.logps["policy"] = logps
        ours = BUDGET * gradient(script_loss("rloo", batch, advantages, config), logps)
        theirs = gradient(trainer.compute_loss(trainer.model, judged), logps)
        assert torch.allclose(ours, theirs, rtol=1e-10 if same else 0.1) == same


TRL_LOSS = {"ppo": "dapo", "gspo": "grpo"}
TRL_LOSS |= dict.fromkeys(("rloo", "maxrl", "batch_sigma"), "dr_grpo")


@pytest.mark.parametrize("name, kl_coef, clip", ALL_LOSSES)
def test_policy_loss_is_that_of_trl(trl, tiny_folder, batch, name, kl_coef, clip):
    """Exactly, with TRL's own advantages and its other defaults. Its advantages differ by the
    degrees of freedom of sigma and an epsilon of 1e-4; for Dr. GRPO (scale_rewards = "none" besides
    loss_type = "dr_grpo") they are equal. With scale_rewards = "batch" sigma is that of the raw
    rewards, in batch_sigma.py that of the centred ones. By default TRL multiplies k3 by the ratio
    (use_bias_correction_kl): off here, on in the next test. PPO is its "dapo" with advantages per
    token, GSPO its "grpo" with importance sampling at the level of a sequence. CISPO's cap is its
    epsilon_high. Overlong filtering is its mask_truncated_completions: they count in the group's
    mean and sigma, but neither in the loss nor in the number of tokens that it is divided by."""
    config = script_config(name, kl_coef, clip)
    low, high = clip_range(config)
    if name == "cispo":
        low, high = 0.2, config.max_ratio
    truncated = (batch.lengths == batch.lengths.max()) & (clip == "filtered")
    trainer = trl_trainer(
        trl,
        tiny_folder,
        batch,
        truncated,
        loss_type=TRL_LOSS.get(name, name),
        scale_rewards=TRL_SCALE.get(name, "group"),
        importance_sampling_level="sequence" if name == "gspo" else "token",
        beta=kl_coef,
        epsilon=low,
        epsilon_high=high,
        mask_truncated_completions=clip == "filtered",
    )
    judged, mask = trl_judged(trainer), batch.mask & ~truncated.unsqueeze(1)
    assert torch.equal(judged["completion_mask"].bool(), mask)
    if name in ("ppo", "rloo", "maxrl"):  # TRL has none of these advantages here
        judged["advantages"] = script_advantages(name, batch)
    else:
        factor = ddof_factor(batch.rewards, 1e-4) if name in WITH_SIGMA else 1
        if name == "batch_sigma":
            centred = dr_grpo.compute_advantages(rewards=batch.rewards)
            factor = centred.std(correction=0) / (batch.rewards.std() + 1e-4)
        ours = script_advantages(name, batch).view(P, G) * factor
        assert_close(ours.flatten(), judged["advantages"])
    advantages = judged["advantages"].view(P * G, -1)
    trainer.logps["policy"] = batch.logps
    theirs = trainer.compute_loss(trainer.model, judged)
    assert_same_loss(script_loss(name, batch, advantages, config, mask), theirs, batch.logps)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo"])
def test_k3_times_the_ratio_is_what_trl_does_by_default(trl, tiny_folder, batch, name):
    """Without advantages TRL's loss is its KL: the ratio times lesson 4's k3. The gradient of a
    token is the ratio times k1 and the token's weight in the mean."""
    default = trl.GRPO[0].use_bias_correction_kl
    assert default is True
    settings = {"loss_type": name, "beta": 0.04, "use_bias_correction_kl": default}
    trainer = trl_trainer(trl, tiny_folder, batch, **settings)
    judged = trl_judged(trainer)
    judged["advantages"] = torch.zeros_like(judged["advantages"])
    trainer.logps["policy"] = batch.logps
    theirs = trainer.compute_loss(trainer.model, judged)
    tokens = torch.full_like(batch.lengths, BUDGET) if name == "dr_grpo" else batch.lengths
    ratio = (batch.logps - batch.old_logps).exp().detach()
    weight = 0.04 * batch.mask.double() * ratio / (tokens.unsqueeze(1) * P * G)
    assert_close((weight * lesson_04.k3(batch.logps, batch.ref_logps)).sum(), theirs)
    k1 = (batch.logps - batch.ref_logps).detach()
    assert_close(weight * k1, gradient(theirs, batch.logps))


@pytest.mark.parametrize("script", [dapo, cispo])
@pytest.mark.parametrize("buffer", [0, 1, 8, 56])
def test_overlong_penalty_is_that_of_trl(trl, buffer, script):
    """At every length from 0 to one more than the limit."""
    mask = torch.ones(58, 57).tril(-1).double()
    theirs = trl.get_soft_overlong_punishment(max_completion_len=56, soft_punish_cache=buffer)
    expected = theirs(completion_ids=[[5] * n for n in range(58)])
    config = script.Config(max_new_tokens=56, overlong_buffer=buffer)
    ours = script.overlong_penalty(mask=mask, config=config)
    assert_close(ours, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(3))
def test_token_baseline_and_opo_are_those_of_verl(verl, seed):
    """The baselines of lessons/experiments/baselines.py, on ragged groups, one of which has a
    single longest completion, and another is silent."""
    rng, T = np.random.default_rng(seed), 9
    R, lengths = rng.integers(0, 2, (P, G)).astype(float), rng.integers(1, T - 1, (P, G))
    lengths[0, 0], R[1] = T, 1.0
    mask = np.arange(T) < lengths[:, :, None]
    p, squares = rng.uniform(0.05, 0.95, (P, G, T)), rng.uniform(0, 1, (P, G, T))
    batch = Batch(R, lengths, proxies=(1 - 2 * p + squares) * mask)
    rewards = R[:, :, None] * (np.arange(T) == lengths[:, :, None] - 1)
    columns = (rewards, 1.0 * mask, np.log(p), squares)
    rewards, mask, log_p, squares = (torch.from_numpy(x).flatten(0, 1) for x in columns)
    inputs = {"token_level_rewards": rewards, "response_mask": mask}
    inputs["index"] = np.repeat(np.arange(P), G)
    token_baseline = verl.core.compute_optimal_token_baseline_advantage
    otb, _ = token_baseline(**inputs, old_log_probs=log_p, sum_pi_squared=squares)
    opo, _ = verl.core.compute_opo_outcome_advantage(**inputs)
    for name, theirs in (("OTB", otb), ("OPO", opo)):
        ours = torch.from_numpy(ADVANTAGES[name](batch)).view(P * G, -1)
        torch.testing.assert_close(ours * mask, theirs, rtol=1e-6, atol=1e-6)
