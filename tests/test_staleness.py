"""The staleness experiment: one way of averaging for all arms, what U and the samplers mean, statistics by hand."""

import copy
import math
import random
from dataclasses import asdict

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from algorithms import grpo
from lessons.experiments import staleness
from lessons.experiments.staleness import ARMS, Config, Run
from toy_env.model import load_policy
from toy_env.rollout import completion_logps, sample

CLIP = "GRPO's clip"


def batch() -> dict[str, torch.Tensor]:
    """Six completions of 1 to 7 tokens with ratios from e^-2 to e^2, advantages of both signs and one of 0."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(7) < torch.tensor([1, 7, 3, 4, 2, 5]).unsqueeze(1)
    old_logps = -2 * torch.rand(6, 7, generator=generator, dtype=torch.float64) * mask
    moved = torch.linspace(-2, 2, 42, dtype=torch.float64).view(6, 7)[torch.randperm(6, generator=generator)]
    moved[5, 0], moved[0, 0] = 0.22, 0.6  # a ratio between 1.2 and 1.28, and one above it
    advantages = torch.tensor([[1.5], [-0.5], [0.7], [0.0], [-1.2], [2.0]]).double()
    return {"logps": (old_logps + moved) * mask, "old_logps": old_logps, "advantages": advantages, "mask": mask}


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
    value = sum(ARMS[arm](**row) for row in rows) / 6
    torch.testing.assert_close(ARMS[arm](**tensors), value, rtol=1e-12, atol=1e-14)


def test_at_ratio_1_all_arms_have_one_gradient_and_away_from_it_five():
    tensors = batch()
    fresh = {arm: gradient(ARMS[arm], **tensors | {"old_logps": tensors["logps"]}) for arm in ARMS}
    for of_arm in fresh.values():
        torch.testing.assert_close(of_arm, fresh[CLIP], rtol=1e-12, atol=1e-14)
    stale = {arm: gradient(ARMS[arm], **tensors) for arm in ARMS}
    torch.testing.assert_close(stale["no correction"], fresh["no correction"])
    for a in ARMS:
        assert all(a == b or not torch.allclose(stale[a], stale[b]) for b in ARMS)


def test_the_bfloat16_sampler_computes_as_torch_does():
    """Linear layers are those of a plain copy in bfloat16, but for the order of a sum: one rounding step at most."""
    policy, _ = load_policy("base")
    half = staleness.in_precision(policy, "bfloat16")
    plain = dict(copy.deepcopy(policy).to(torch.bfloat16).named_modules())
    generator = torch.Generator().manual_seed(0)
    for name, layer in half.named_modules():
        if isinstance(layer, torch.nn.Linear):
            x = torch.randn(50, layer.in_features, generator=generator).bfloat16()
            ours, theirs = layer(x), plain[name](x)
            assert ours.dtype == torch.bfloat16
            assert (ours == theirs).double().mean() > 0.95
            torch.testing.assert_close(ours, theirs, rtol=2**-7, atol=2**-9)


def test_samplers_round_a_copy():
    policy, _ = load_policy("base")
    before = [parameter.clone() for parameter in policy.parameters()]
    assert staleness.in_precision(policy, "float32") is policy
    half, eighth = (staleness.in_precision(policy, precision) for precision in staleness.CORRECTIONS)
    assert half.dtype == torch.bfloat16 and eighth.dtype == torch.float32
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters()))
    pairs = {name: (module, eighth.get_submodule(name)) for name, module in policy.named_modules()}
    linear = [pair for pair in pairs.values() if isinstance(pair[0], torch.nn.Linear)]
    assert len(linear) > 10
    for exact, rounded in linear:
        scaled = rounded.weight / exact.weight.abs().max() * 448  # 448 is the largest float8
        torch.testing.assert_close(scaled, scaled.to(torch.float8_e4m3fn).float(), rtol=1e-5, atol=0)
        large = exact.weight.abs() > exact.weight.abs().max() / 1000  # below that e4m3 has fewer than three bits
        assert ((rounded.weight / exact.weight)[large] - 1).abs().max() <= 1 / 16 + 1e-6
    norms = [pair for name, pair in pairs.items() if name.endswith("norm")]
    assert norms and all(torch.equal(exact.weight, rounded.weight) for exact, rounded in norms)


def test_sampling_weights_by_hand():
    """C = 2: of tokens one by one; of a completion the product of all its ratios, cut once."""
    log_ratio = torch.tensor([[3.0, 0.5, 1.0], [1.5, 1.5, 1.0]]).log()
    of_tokens = staleness.sampling_weights(log_ratio, "token")
    torch.testing.assert_close(of_tokens, torch.tensor([[2.0, 0.5, 1.0], [1.5, 1.5, 1.0]]))
    torch.testing.assert_close(staleness.sampling_weights(log_ratio, "sequence"), torch.tensor([[1.5], [2.0]]))
    assert staleness.sampling_weights(log_ratio, "none").tolist() == [[1.0], [1.0]]


def test_spread_by_hand():
    log_ratio = torch.tensor([[3.0, 1.0], [1.0, 1.0]]).log()
    found = staleness.spread(log_ratio, torch.tensor([[True, True], [True, False]]))
    assert found["spread of tokens"] == pytest.approx(math.sqrt(4 / 3))  # 3, 1, 1
    assert found["spread of completions"] == pytest.approx(math.sqrt(2))  # 3, 1
    assert (found["tokens above 2"], found["completions above 2"]) == (pytest.approx(1 / 3), 0.5)


def test_the_runs_of_all_settings():
    """At U = 1 one arm stands for all; no run is made twice; all draw the same number of completions."""
    runs = staleness.runs_of(Config())
    assert len(runs) == len(set(runs)) == 5 * (1 + 4 * 5 + 5 + 5 + 2)
    for run in runs:
        completions = run.updates * staleness.MINIBATCH / run.epochs
        assert completions == (6144 if run.epochs == 1 else 3072)
        assert run.updates % run.evaluations() == 0 == run.updates % (run.staleness * run.epochs)
    quick = staleness.runs_of(Config(quick=True).sized())
    assert {run.seed for run in quick} == {0} and len(quick) < 20


def test_differences_are_paired_by_seed():
    runs = [{"seed": i, "accuracy": [0.1, 0.5 + i / 100]} for i in range(5)]
    others = [{"seed": i, "accuracy": [0.2, 0.49]} for i in range(5)]
    half = 2.7764451 * math.sqrt(2.5 / 5)  # of 1, 2, 3, 4 and 5 points
    assert staleness.difference(runs, others) == pytest.approx((3, 3 - half, 3 + half))
    assert staleness.difference(runs, others, at=0, others_at=0)[0] == pytest.approx(-10)
    with pytest.raises(AssertionError):
        staleness.difference(runs, others[::-1])


def test_the_committed_results_are_those_of_all_runs():
    results = staleness.load()
    settings = [asdict(run) for run in staleness.runs_of(Config())]
    assert [{name: run[name] for name in settings[0]} for run in results] == settings
    assert all(len(run["accuracy"]) == (4 if run["staleness"] == 8 else 1) for run in results)
    fresh = staleness.select(results, arm="CISPO", staleness=1)
    assert [run["seed"] for run in fresh] == [0, 1, 2, 3, 4] and {run["arm"] for run in fresh} == {CLIP}
    assert staleness.table(results).count("\n") == 4 * 5 + 5 + 5


def small(**settings) -> dict:
    """A run of 4 updates on 32 completions of level 1."""
    return staleness.train(Run(**{"arm": CLIP, "staleness": 1, "seed": 7, "updates": 4, **settings}))


@pytest.fixture
def cheap(monkeypatch):
    """Evaluation on a few problems."""
    few = staleness.held_out_problems
    monkeypatch.setattr(staleness, "held_out_problems", lambda problems, levels: few(2, levels))


def as_predicted() -> list[dict]:
    """Runs of which every prediction is true: accuracies (at 3,072 completions and at the end) put in by hand."""
    ends = {1: dict.fromkeys(ARMS, 0.9), 4: dict.fromkeys(ARMS, 0.9), 8: dict.fromkeys(ARMS, 0.89)}
    ends[16] = {**dict.fromkeys(ARMS, 0.88), "no correction": 0.6}
    ends[32] = {"no correction": 0.2, CLIP: 0.85, "clip-higher": 0.86, "GSPO": 0.84, "CISPO": 0.88}
    stopped = {"GSPO": 0.3, CLIP: 0.05}
    runs = []
    for run in map(asdict, staleness.runs_of(Config())):
        end = ends[run["staleness"]][run["arm"]]
        if run["epochs"] == 4:
            end = 0.1 if run["arm"] == "no correction" else 0.85
        wide = run["sampler"] == "float8"
        apart = {"spread of tokens": 0.07 if wide else 0.014, "tokens above 2": 3e-4 if wide else 0.0}
        runs.append(run | apart | {"accuracy": [0.5, 0.75, 0.8, end], "stopped": stopped.get(run["arm"], 0.0)})
    return runs


HALF, EIGHTH = ({"staleness": 4, "sampler": sampler} for sampler in ("bfloat16", "float8"))
BREAK = [  # prediction, settings of runs, what they get: every clause of `judge`, and its sign. `...`: any correction
    ("fresh", {"arm": "GSPO", "staleness": 4}, {"accuracy": 0.86}),
    ("no correction", {"arm": "no correction", "staleness": 32}, {"accuracy": 0.5}),
    ("no correction", {"arm": "no correction", "staleness": 4}, {"accuracy": 0.86}),
    (CLIP, {"staleness": 32}, {"accuracy": 0.89}),
    (CLIP, {"staleness": 32}, {"accuracy": 0.95}),
    (CLIP, {"staleness": 32, "seeds": range(1)}, {"accuracy": 0.69}),
    ("clip-higher", {"arm": "clip-higher", "staleness": 16}, {"accuracy": 0.8}),
    ("clip-higher", {"arm": "clip-higher", "staleness": 32}, {"accuracy": 0.84}),
    ("GSPO", {"arm": "GSPO", "staleness": 32}, {"accuracy": 0.5}),
    ("GSPO", {"arm": "GSPO", "staleness": 32}, {"stopped": 0.14}),
    ("CISPO", {"arm": "CISPO", "staleness": 32}, {"accuracy": 0.86}),
    ("CISPO", {"arm": "CISPO", "staleness": 32}, {"accuracy": 0.8}),
    ("reuse", {"arm": "CISPO", "staleness": 8, "epochs": 4}, {"accuracy": 0.78}),
    ("reuse", {"arm": "no correction", "staleness": 8, "epochs": 4}, {"accuracy": 0.9}),
    ("bfloat16", HALF | {"correction": "token"}, {"accuracy": 0.87}),
    ("bfloat16", HALF | {"correction": ...}, {"spread of tokens": 0.004}),
    ("bfloat16", HALF | {"correction": ...}, {"spread of tokens": 0.04}),
    ("bfloat16", HALF | {"correction": ...}, {"tokens above 2": 1e-6}),
    ("float8", EIGHTH, {"accuracy": 0.8}),
    ("float8", EIGHTH | {"correction": ...}, {"tokens above 2": 2e-3}),
    ("float8", EIGHTH | {"correction": "sequence"}, {"accuracy": 0.86}),
]


def test_every_prediction_can_hold():
    held = staleness.judge(as_predicted())
    assert list(held) == list(staleness.PREDICTIONS) == list(dict.fromkeys(about for about, *_ in BREAK))
    assert all(outcome for outcome, _ in held.values()) and "GSPO +10.0 [+10.0, +10.0]" in held["reuse"][1]


@pytest.mark.parametrize(("about", "settings", "numbers"), BREAK)
def test_every_clause_of_a_prediction_can_fail(about, settings, numbers):
    runs, correction = as_predicted(), settings.get("correction", "none")
    every = staleness.CORRECTIONS[settings["sampler"]] if correction is ... else (correction,)
    chosen = [run for c in every for run in staleness.select(runs, **{"arm": CLIP} | settings | {"correction": c})]
    assert len(chosen) == len(every) * (1 if "seeds" in settings else 5)
    for run in chosen:
        run |= numbers | ({"accuracy": [*run["accuracy"][:-1], numbers["accuracy"]]} if "accuracy" in numbers else {})
    assert not staleness.judge(runs)[about][0]


@pytest.mark.slow
def test_at_u_1_the_arms_are_one_and_at_4_they_are_not(cheap):
    numbers = ("accuracy", "length", "stopped")
    fresh = [small(arm=arm) for arm in ARMS]
    assert all(run[name] == fresh[0][name] for run in fresh for name in numbers)
    assert all(run["entropy"] == pytest.approx(fresh[0]["entropy"], rel=1e-3) for run in fresh)
    assert all(run["moved"] < 1e-6 for run in fresh)
    stale = [small(arm=arm, staleness=4) for arm in ARMS]
    assert all(run["moved"] > 1e-4 for run in stale) and len({run["entropy"] for run in stale}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("sampler", staleness.CORRECTIONS)
def test_the_ratio_of_the_clip_is_the_trainers_alone(cheap, sampler):
    """With another sampler too every ratio starts at 1: what lies between the two is in the weights."""
    run = small(sampler=sampler, correction="token")
    assert run["moved"] < 1e-6 and run["stopped"] == 0 and run["spread of tokens"] > 1e-3


@pytest.mark.slow
def test_an_epoch_uses_every_completion_once(cheap, monkeypatch):
    """Two epochs of four minibatches: eight updates, of one batch of 128 completions."""
    drawn, scored = [], []
    monkeypatch.setattr(staleness, "sample", lambda *settings: drawn.append(sample(*settings)) or drawn[-1])

    def score(policy, part, temperature):
        scored.append(part)
        return completion_logps(policy, part, temperature)

    monkeypatch.setattr(staleness, "completion_logps", score)
    small(staleness=4, epochs=2, updates=8)
    (rollout,) = drawn

    def rows(parts):
        return sorted(
            (tuple(ids.tolist()[:3]), text) for part in parts for ids, text in zip(part.prompt_ids, part.texts)
        )

    assert len(rollout) == 128 and len(scored) == 8
    assert rows(scored[:4]) == rows(scored[4:]) == rows([rollout])
    orders = [[text for part in parts for text in part.texts] for parts in (scored[:4], scored[4:], [rollout])]
    assert all(a != b for a, b in zip(orders, orders[1:] + orders[:1]))  # each epoch in an order of its own
    assert grpo.Config().learning_rate == staleness.LEARNING_RATE


@pytest.mark.slow
@pytest.mark.parametrize("correction", staleness.CORRECTIONS["bfloat16"])
def test_a_correction_multiplies_advantages_by_trainer_over_sampler(cheap, monkeypatch, correction):
    """And the sampler is a copy of the policy as it is at every batch."""
    drawn, tensors, copies = [], [], []
    collect, loss, in_precision = staleness.collect, ARMS[CLIP], staleness.in_precision

    def see(*settings):
        drawn.append(collect(*settings))
        drawn[-1] = (drawn[-1][1].logps, drawn[-1][2], drawn[-1])  # train puts the trainer's in their place
        return drawn[-1][2]

    monkeypatch.setattr(staleness, "collect", see)
    monkeypatch.setattr(staleness, "in_precision", lambda *a: copies.append(in_precision(*a)) or copies[-1])
    monkeypatch.setitem(ARMS, CLIP, lambda **batch: tensors.append(batch) or loss(**batch))
    monkeypatch.setattr(torch, "randperm", lambda n, generator: torch.arange(n).flip(0))
    small(sampler="float8", correction=correction)
    assert len(drawn) == len(tensors) == len(copies) == 4
    prompts = [[problem.prompt for problem in found[0]] for _, _, found in drawn]
    assert all(a != b for a, b in zip(prompts, prompts[1:]))
    for (sampled, advantages, _), batch in zip(drawn, tensors):
        log_ratio, advantages = batch["old_logps"] - sampled.flip(0), advantages.flip(0)
        if correction == "sequence":
            log_ratio = log_ratio.sum(dim=1, keepdim=True)
        weight = 1.0 if correction == "none" else log_ratio.exp().clamp(max=2)
        assert log_ratio[log_ratio != 0].abs().mean() > 1e-3
        torch.testing.assert_close(batch["advantages"], advantages * weight)


@pytest.mark.slow
def test_the_learning_rate_warms_up_and_gradients_are_scaled_down(cheap):
    rates, norms = [], []

    def see(optimizer, *_):
        rates.append(optimizer.param_groups[0]["lr"])
        gradients = [p.grad for p in optimizer.param_groups[0]["params"]]
        norms.append(torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients])).item())

    hook = register_optimizer_step_pre_hook(see)
    try:
        small(updates=12)
    finally:
        hook.remove()
    assert rates == pytest.approx([2e-4 * min(1, i / 11) for i in range(1, 13)])
    assert max(norms) == pytest.approx(1, abs=1e-3)


def test_collect_judges_every_completion_by_its_own_problem():
    policy, tokenizer = load_policy("base")

    def batch_of(seed):
        return staleness.collect(policy, tokenizer, 8, random.Random(seed), torch.Generator().manual_seed(seed))

    problems, rollout, advantages = batch_of(0)
    rewards = torch.tensor([staleness.reward(problems[row // 8], text) for row, text in enumerate(rollout.texts)])
    prompts = [tokenizer.decode(ids[mask]) for ids, mask in zip(rollout.prompt_ids, rollout.prompt_mask)]
    assert all(problems[row // 8].prompt in prompt for row, prompt in enumerate(prompts))
    assert ((advantages > 0) <= rewards.view(-1, 1)).all() and ((advantages < 0) <= 1 - rewards.view(-1, 1)).all()
    assert advantages.count_nonzero() >= 16
    assert [problem.prompt for problem in batch_of(1)[0]] != [problem.prompt for problem in problems]
