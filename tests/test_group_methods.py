"""What group methods share: advantages, clip, KL and aggregation by hand, expectations by enumeration, the identity.

What RLOO, MaxRL, GSPO and CISPO have of their own is in test_side_rungs.py.
"""

import json
import math
from itertools import product
from math import comb

import pytest
import torch
from conftest import build_tiny_model, value_of
from enumeration import as_rollout, every_completion, flat_gradient, probability

from algorithms import cispo, dapo, dr_grpo, grpo, gspo, maxrl, ppo, rloo
from lessons.float64 import to_float64
from toy_env.arithmetic import held_out_problems, reward
from toy_env.model import load_policy
from toy_env.rollout import completion_logps, sample
from toy_env.run import Run

GROUP_METHODS = [grpo, dr_grpo, dapo, rloo, maxrl, gspo, cispo]
WITH_KL = [grpo, dr_grpo, rloo, maxrl, gspo]
WITH_SIGMA = [grpo, dapo, gspo, cispo]
WITH_DYNAMIC_SAMPLING = [dapo, cispo]


def loss_of(script, logps, *, old_logps=None, ref_logps=None, advantages, mask, **settings):
    """The script's policy_loss; on-policy and without KL unless said otherwise."""
    if script in WITH_KL:
        settings = {"kl_coef": 0.0} | settings
    inputs = {"logps": logps, "old_logps": logps.detach() if old_logps is None else old_logps, "mask": mask}
    if script in WITH_KL:
        inputs["ref_logps"] = logps.detach() if ref_logps is None else ref_logps
    return script.policy_loss(**inputs, advantages=advantages, config=script.Config(**settings))


# ---------------------------------------------------------------------- advantages


@pytest.mark.parametrize(
    ("rewards", "sigma"),
    [([1, 0, 0, 0], 0.4330), ([1, 1, 0, 0], 0.5), ([1, 0, 0, 0, 0, 0, 0, 0], 0.3307), ([1] * 7 + [0], 0.3307)],
)
def test_advantages_by_hand(rewards, sigma):
    """A+ = sqrt((G-k)/k), A- = -sqrt(k/(G-k)) for GRPO, DAPO, GSPO and CISPO; R - k/G for Dr. GRPO."""
    G, k = len(rewards), sum(rewards)
    rewards = torch.tensor([rewards], dtype=torch.float64)
    right, wrong = math.sqrt((G - k) / k), -math.sqrt(k / (G - k))
    for script in WITH_SIGMA:
        advantages = script.compute_advantages(rewards=rewards)
        torch.testing.assert_close(advantages, torch.where(rewards == 1, right, wrong).double())
        assert advantages.sum().item() == pytest.approx(0, abs=1e-12)
        assert advantages.square().sum().item() == pytest.approx(G)  # ddof 0
    centred = dr_grpo.compute_advantages(rewards=rewards)
    torch.testing.assert_close(centred, rewards - k / G)
    torch.testing.assert_close(centred, sigma * grpo.compute_advantages(rewards=rewards), atol=1e-4, rtol=0)


@pytest.mark.parametrize("script", GROUP_METHODS)
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -1.0, 1e6 + 0.1])
def test_unanimous_groups_get_exactly_zero(script, value):
    """Also where the mean of equal floats is off by rounding, which a tiny sigma would blow up."""
    advantages = script.compute_advantages(rewards=torch.full((3, 7), value))
    assert advantages.isfinite().all()
    if script in WITH_SIGMA or value in (0, 1):
        assert (advantages == 0).all()
    assert advantages.abs().max() <= max(1, abs(value)) * 1e-6


@pytest.mark.parametrize("script", GROUP_METHODS)
def test_advantages_stay_with_their_group(script):
    """Row by row the same as for each group alone; shuffling the completions of a group shuffles its advantages."""
    torch.manual_seed(0)
    rewards = (torch.rand(20, 6) < 0.4).float()
    advantages = script.compute_advantages(rewards=rewards)
    for i in range(20):
        torch.testing.assert_close(advantages[i : i + 1], script.compute_advantages(rewards=rewards[i : i + 1]))
    order = torch.randperm(6)
    torch.testing.assert_close(script.compute_advantages(rewards=rewards[:, order]), advantages[:, order])
    assert not advantages.requires_grad


@pytest.mark.parametrize("script", GROUP_METHODS)
def test_a_group_of_one_is_an_error(script):
    with pytest.raises(ValueError, match="a group needs at least 2 completions, not 1; try --group_size 8"):
        script.compute_advantages(rewards=torch.ones(4, 1))


def test_plus_minus_one_rewards_leave_grpo_and_double_dr_grpo():
    rewards = (torch.rand(10, 8, dtype=torch.float64) < 0.5).double()
    for script, factor in ((grpo, 1), (dr_grpo, 2)):
        torch.testing.assert_close(
            script.compute_advantages(rewards=2 * rewards - 1), factor * script.compute_advantages(rewards=rewards)
        )


# ---------------------------------------------------------------------- clip


@pytest.mark.parametrize("script", [ppo, *(script for script in GROUP_METHODS if script is not cispo)])
@pytest.mark.parametrize(
    ("advantage", "ratio", "objective", "trained"),
    [
        (1.0, 0.5, 0.5, True),
        (1.0, 1.0, 1.0, True),
        (1.0, 1.5, None, False),  # 1 + eps: 1.2, and 1.28 for DAPO and GSPO
        (1.0, 1.25, None, None),
        (-1.0, 0.5, -0.8, False),
        (-1.0, 1.0, -1.0, True),
        (-1.0, 1.5, -1.5, True),
        (2.0, 0.9, 1.8, True),
    ],
)
def test_clip_in_all_quadrants(script, advantage, ratio, objective, trained):
    """One token: the objective min(rho A, clip(rho) A), and a gradient of rho A except in the two clipped corners."""
    upper = 1.28 if script in (dapo, gspo) else 1.2
    settings = {"clip_eps_low": 0.2, "clip_eps_high": 0.28} if script is gspo else {}
    objective = advantage * min(ratio, upper) if objective is None else objective
    trained = ratio <= upper if trained is None else trained
    logps = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True]])
    advantages, old = torch.tensor([[advantage]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    loss = loss_of(script, logps, old_logps=old, ref_logps=logps.detach(), advantages=advantages, mask=mask,
                   max_new_tokens=1, **settings)  # fmt: skip
    assert -loss.item() == pytest.approx(objective)
    (gradient,) = torch.autograd.grad(loss, logps)
    assert -gradient.item() == pytest.approx(ratio * advantage if trained else 0)


# ---------------------------------------------------------------------- aggregation


def ragged():
    """Three completions of 1, 4 and 2 tokens with advantages 2, -1 and 3; -log p runs 1, 2, 3, ..."""
    mask = torch.tensor([[True, False, False, False], [True] * 4, [True, True, False, False]])
    return torch.arange(1.0, 13.0, dtype=torch.float64).view(3, 4).neg(), torch.tensor([[2.0], [-1.0], [3.0]]), mask


@pytest.mark.parametrize(
    ("script", "weights"),
    [
        (grpo, [1 / 3, 1 / 12, 1 / 6]),  # 1 / (B |y|)
        (dr_grpo, [1 / 30] * 3),  # 1 / (B C), C = max_new_tokens = 10
        (dapo, [1 / 7] * 3),  # 1 / all tokens
        (rloo, [1 / 30] * 3),
        (maxrl, [1 / 30] * 3),
        (gspo, [1 / 3, 1 / 12, 1 / 6]),
        (cispo, [1 / 7] * 3),
        (ppo, [1 / 7] * 3),
    ],
)
def test_weight_of_a_token(script, weights):
    """The gradient with respect to each log-probability is -A times the weight of its token, by hand."""
    logps, advantages, mask = ragged()
    logps.requires_grad_()
    loss = loss_of(script, logps, advantages=advantages, mask=mask, max_new_tokens=10)
    (gradient,) = torch.autograd.grad(loss, logps)
    expected = -advantages * torch.tensor(weights).unsqueeze(1) * mask
    torch.testing.assert_close(gradient, expected.double(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("script", [ppo, *GROUP_METHODS])
def test_padding_changes_nothing(script):
    logps, advantages, mask = ragged()
    wide = torch.cat([logps, torch.full((3, 5), -3.0)], dim=1), torch.cat([mask, torch.zeros(3, 5).bool()], dim=1)
    settings = {"advantages": advantages, "max_new_tokens": 10}
    a = loss_of(script, logps, old_logps=logps - 0.1, mask=mask, **settings)
    b = loss_of(script, wide[0], old_logps=wide[0] - 0.1, mask=wide[1], **settings)
    assert a.item() == pytest.approx(b.item(), rel=1e-12)


@pytest.mark.parametrize("script", WITH_SIGMA)
def test_a_row_with_an_empty_mask_adds_nothing(script):
    """To the loss or its gradient; the mean over completions of GRPO and GSPO still counts the row."""
    logps, advantages, mask = ragged()
    mask = torch.cat([mask, torch.zeros(1, 4).bool()])
    logps = torch.cat([logps, torch.full((1, 4), -2.0)]).requires_grad_()
    advantages = torch.cat([advantages, torch.tensor([[5.0]])])
    settings = {"max_new_tokens": 10, "kl_coef": 0.5} if script in WITH_KL else {"max_new_tokens": 10}
    inputs = {"old_logps": logps.detach() - 0.1, "ref_logps": logps.detach() + 0.3}

    def of(rows: int) -> torch.Tensor:
        return loss_of(script, logps[:rows], **{name: value[:rows] for name, value in inputs.items()},
                       advantages=advantages[:rows], mask=mask[:rows], **settings)  # fmt: skip

    assert of(4).item() == pytest.approx(of(3).item() * (3 / 4 if script in WITH_KL else 1), rel=1e-12)
    (gradient,) = torch.autograd.grad(of(4), logps)
    assert gradient.isfinite().all() and not gradient[3].any() and gradient[:3].any()


@pytest.mark.parametrize("script", GROUP_METHODS)
def test_a_batch_of_empty_masks_has_loss_0(script):
    logps = torch.full((2, 3), -1.0, requires_grad=True)
    loss = loss_of(script, logps, advantages=torch.ones(2, 1), mask=torch.zeros(2, 3).bool())
    (gradient,) = torch.autograd.grad(loss, logps)
    assert loss.item() == 0 and not gradient.any()


# ---------------------------------------------------------------------- KL


@pytest.mark.parametrize("script", WITH_KL)
def test_k3_as_a_loss_has_the_gradient_of_the_forward_kl(script):
    """At one position, over the whole vocabulary: E_pi[grad k3] = grad KL(ref || pi), and 0 at pi = ref."""
    torch.manual_seed(0)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(6, dtype=torch.float64).log_softmax(dim=0)
    mask = torch.ones(1, 1).bool()
    for ref_logps, same in ((reference, False), (logits.detach().log_softmax(dim=0), True)):
        pi = logits.log_softmax(dim=0)
        expected = sum(
            pi[v].detach().exp()
            * loss_of(
                script,
                pi[v].view(1, 1),
                ref_logps=ref_logps[v].view(1, 1),
                advantages=torch.zeros(1, 1),
                mask=mask,
                kl_coef=1.0,
                max_new_tokens=1,
            )  # fmt: skip
            for v in range(6)
        )
        kl_value = (pi.exp() * (pi - ref_logps)).sum()  # the value of k3 is unbiased for KL(pi || ref)
        assert expected.item() == pytest.approx(kl_value.item(), abs=1e-12)
        (gradient,) = torch.autograd.grad(expected, logits, retain_graph=True)
        forward = torch.autograd.grad((ref_logps.exp() * (ref_logps - pi)).sum(), logits)[0]
        torch.testing.assert_close(gradient, forward, rtol=1e-9, atol=1e-12)
        assert (gradient.abs().max() < 1e-12) == same


@pytest.mark.parametrize("script", WITH_KL)
def test_kl_is_weighted_like_the_rest(script):
    """With k3 = 1 - log 2 ... the same for every token, the loss is kl_coef * k3 times the sum of the weights."""
    logps, advantages, mask = ragged()
    k3 = 2 - 1 - math.log(2)
    loss = loss_of(script, logps, ref_logps=logps + math.log(2), advantages=0 * advantages, mask=mask, kl_coef=0.5,
                   max_new_tokens=10)  # fmt: skip
    assert loss.item() == pytest.approx(0.5 * k3 * (1 if script in WITH_SIGMA else 7 / 30))


# ---------------------------------------------------------------------- expectations


def difficulty_weight(G: int, p: float) -> float:
    """w_G(p) = E[sigma] / (p q), by the binomial sum (Prop. 2 of arXiv:2607.00152)."""
    q = 1 - p
    return sum(comb(G, k) * p**k * q ** (G - k) * math.sqrt(k * (G - k)) / G for k in range(G + 1)) / (p * q)


def expected_gradient(script, policy, completions, rewards, G: int) -> torch.Tensor:
    """Sum over all groups of G completions of their probability times the gradient of the script's loss on them."""
    pi = torch.stack([probability(policy, ids) for ids in completions]).detach()
    rollout = as_rollout(completions)
    logps = completion_logps(policy, rollout, temperature=1.0)
    groups = torch.tensor(list(product(range(len(completions)), repeat=G)))  # (n, G)
    chances = pi[groups].prod(dim=1)
    assert chances.sum().item() == pytest.approx(1, abs=1e-12)
    advantages = script.compute_advantages(rewards=rewards[groups])
    total = sum(
        chance * loss_of(script, logps[rows], advantages=a.view(-1, 1), mask=rollout.mask[rows], max_new_tokens=2)
        for chance, rows, a in zip(chances, groups, advantages)
        if a.any()
    )
    return flat_gradient(-total, policy)


@pytest.mark.parametrize("G", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_expected_gradient_of_dr_grpo(G):
    """(G-1)/G times the gradient of the success probability, over C = 2: completions of 1 and of 2 tokens."""
    policy = to_float64(build_tiny_model(vocab_size=3))
    completions = every_completion(vocab_size=3, limit=2)
    rewards = torch.tensor([float(ids in ([2], [0, 1], [1, 2])) for ids in completions]).double()
    p = sum(probability(policy, ids) * r for ids, r in zip(completions, rewards))
    assert len(completions) == 7 and 0.1 < p.item() < 0.9
    expected = (G - 1) / G * flat_gradient(p, policy) / 2
    torch.testing.assert_close(
        expected_gradient(dr_grpo, policy, completions, rewards, G), expected, rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("script", [grpo, dapo])
@pytest.mark.parametrize("G", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_expected_gradient_of_grpo(script, G):
    """w_G(p) times the gradient of p, over the length, where all completions have the same length (1 token here).

    With unequal lengths the 1/|y| of GRPO spoils it: no function of p is climbed. DAPO's update is GRPO's as long as
    silent groups are counted with weight 0.
    """
    policy = to_float64(build_tiny_model(vocab_size=5))
    completions = [[v] for v in range(5)]
    rewards = torch.tensor([1.0, 1, 0, 1, 0]).double()
    p = sum(probability(policy, ids) * r for ids, r in zip(completions, rewards))
    assert 0.02 < p.item() < 0.98
    expected = difficulty_weight(G, p.item()) * flat_gradient(p, policy)
    torch.testing.assert_close(
        expected_gradient(script, policy, completions, rewards, G), expected, rtol=1e-9, atol=1e-12
    )


# ---------------------------------------------------------------------- the identity


def test_the_identity_on_the_shipped_transformer():
    """For every k of G = 8 the gradient through the script's own functions is sigma * (mean score of the right - mean
    score of the wrong) for GRPO and sigma^2 times that for Dr. GRPO, to 1e-12 in float64. GRPO's scores carry 1/|y|,
    Dr. GRPO's the constant 1/C."""
    policy, tokenizer = load_policy("base")
    policy, G = to_float64(policy), 8
    for problem in held_out_problems(8, levels=[2]):
        generator = torch.Generator().manual_seed(1)
        rollout = sample(policy, tokenizer, [problem.prompt], group_size=64, max_new_tokens=40, temperature=1.0,
                         generator=generator)  # fmt: skip
        right = torch.tensor([reward(problem, text) for text in rollout.texts]).bool()
        if min(right.sum(), (~right).sum()) >= 7:
            break
    rows = {True: right.nonzero().flatten()[:7], False: (~right).nonzero().flatten()[:7]}
    assert len(set(rollout.mask.sum(dim=1)[torch.cat(list(rows.values()))].tolist())) > 1  # unequal lengths

    def score(row: torch.Tensor) -> torch.Tensor:
        return flat_gradient(completion_logps(policy, rollout[row.view(1)], temperature=1.0).sum(), policy)

    scores = {int(row): score(row) for row in torch.cat(list(rows.values()))}
    lengths = rollout.mask.sum(dim=1).double()
    for k in range(1, G):
        group = torch.cat([rows[True][:k], rows[False][: G - k]])
        rewards = torch.tensor([[1.0] * k + [0.0] * (G - k)], dtype=torch.float64)
        sigma = math.sqrt(k * (G - k)) / G
        for script, factor, weight in (
            (grpo, sigma, lambda row: 1 / lengths[row]),
            (dr_grpo, sigma**2, lambda row: 1 / 40),
        ):
            logps = completion_logps(policy, rollout[group], temperature=1.0)
            advantages = script.compute_advantages(rewards=rewards).view(-1, 1)
            loss = loss_of(script, logps, advantages=advantages, mask=rollout.mask[group], max_new_tokens=40)
            gradient = flat_gradient(-loss, policy)
            weighted = [scores[int(row)] * weight(row) for row in group]
            contrast = sum(weighted[:k]) / k - sum(weighted[k:]) / (G - k)
            assert ((gradient - factor * contrast).norm() / gradient.norm()).item() < 1e-12, (script.__name__, k)


@pytest.mark.parametrize("script", GROUP_METHODS)
def test_a_silent_group_has_no_gradient(script):
    logps = torch.randn(4, 3, requires_grad=True)
    advantages = script.compute_advantages(rewards=torch.ones(1, 4)).view(-1, 1)
    (gradient,) = torch.autograd.grad(
        loss_of(script, logps, advantages=advantages, mask=torch.ones(4, 3).bool()), logps
    )
    assert not gradient.any()


@pytest.mark.parametrize("script", GROUP_METHODS)
def test_every_advantage_meets_the_row_it_was_earned_by(script, tmp_path, monkeypatch, no_curves):
    """In `train`, minibatch by minibatch: above 0 where the row's own text answers the row's own prompt, below 0 where
    it does not, and 0 in silent groups only. In step 1 the reference is the policy that sampled: its log-probabilities
    are those recorded while sampling, row by row."""
    rows, met = [], []
    check, loss = Run.self_check, script.policy_loss

    def see_minibatch(run, minibatch, logps, advantages):
        prompts = run.tokenizer.batch_decode(minibatch.prompt_ids, skip_special_tokens=True)
        rows.extend(zip(prompts, minibatch.texts))
        return check(run, minibatch, logps, advantages)

    monkeypatch.setattr(Run, "self_check", see_minibatch)
    monkeypatch.setattr(script, "policy_loss", lambda **given: met.append(given) or loss(**given))
    script.train(script.Config(steps=2, prompts_per_step=12, group_size=6, eval_problems=2, num_minibatches=3,
                               levels=(1, 2), device="cpu", run_dir=str(tmp_path / "run")))  # fmt: skip
    advantages = torch.cat([given["advantages"] for given in met]).flatten().tolist()
    assert len(advantages) == len(rows) == 2 * 12 * 6
    for (prompt, text), advantage in zip(rows, advantages):
        right = text.split("#")[-1] == str(value_of(prompt))
        assert (advantage > 0) == right if advantage else script not in WITH_DYNAMIC_SAMPLING
    assert sum(a > 0 for a in advantages) > 30 and sum(a < 0 for a in advantages) > 30
    for given in met[:3] if script in WITH_KL else []:
        torch.testing.assert_close(given["ref_logps"], given["old_logps"], atol=1e-4, rtol=0)


def test_the_ratio_leaves_1_exactly_where_it_should(tmp_path, no_curves):
    """One update a batch: every ratio is 1 and nothing is clipped. A second epoch over the same batch: both move."""

    def last_row(**settings) -> dict:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        grpo.train(grpo.Config(steps=2, prompts_per_step=8, group_size=4, eval_problems=2, device="cpu", warmup_steps=0,
                               learning_rate=1e-3, run_dir=str(folder), **settings))  # fmt: skip
        return json.loads((folder / "metrics.jsonl").read_text("utf-8").splitlines()[-1])

    once, twice = last_row(num_minibatches=1), last_row(num_minibatches=1, epochs=2)
    assert once["ratio_deviation"] < 1e-4 and once["clipped_up"] == once["clipped_down"] == 0
    assert abs(once["loss"] - 0.04 * once["kl"]) < 0.04 * once["kl"] + 1e-3  # 0 but for the KL term
    assert twice["ratio_deviation"] > 0.01 and twice["clipped_up"] + twice["clipped_down"] > 0
    assert once["kl"] > 0


# ---------------------------------------------------------------------- DAPO's own, and CISPO's


@pytest.mark.parametrize("script", WITH_DYNAMIC_SAMPLING)
def test_overlong_penalty_by_hand(script):
    """Limit 56, buffer 8: free up to 48 tokens, then an eighth a token (Eq. 13); no buffer, no penalty."""
    lengths = torch.tensor([4, 48, 49, 52, 56])
    mask = torch.arange(56) < lengths.unsqueeze(1)
    config = script.Config(max_new_tokens=56, overlong_buffer=8)
    assert script.overlong_penalty(mask=mask, config=config).tolist() == [0, 0, -0.125, -0.5, -1]
    config = script.Config(max_new_tokens=56, overlong_buffer=0)
    assert script.overlong_penalty(mask=mask, config=config).tolist() == [0] * 5


@pytest.mark.parametrize("script", WITH_DYNAMIC_SAMPLING)
def test_groups_to_keep_by_hand(script):
    """Groups 1, 3 and 4 of five are mixed; at most P, the first of them. Without dynamic sampling: the first P."""
    correct = torch.tensor([[1.0, 1, 1], [1, 0, 1], [0, 0, 0], [0, 0, 1], [0, 1, 1]])

    def kept(P: int, **settings) -> list[int]:
        return script.groups_to_keep(correct=correct, config=script.Config(prompts_per_step=P, **settings)).tolist()

    assert kept(5) == kept(3) == [1, 3, 4] and kept(2) == [1, 3]
    assert kept(5, dynamic_sampling=False) == [0, 1, 2, 3, 4] and kept(2, dynamic_sampling=False) == [0, 1]
    correct = torch.ones(2, 3)
    assert kept(2) == [] and kept(2, dynamic_sampling=False) == [0, 1]


def run_dapo(tmp_path, monkeypatch, verdict, script=dapo, **settings) -> tuple[list, list, list]:
    """Run DAPO, or a script that samples like it, with the rewards `verdict(prompt)`, one for each of 4 completions, in
    place of the verifier's.

    Returns what compute_advantages got, what was logged, and the policies before and after each step.
    """
    judged, logged, weights = [], [], []
    collect, honest, log = script.collect, script.compute_advantages, Run.log

    def collect_and_judge(run, policy, tokenizer, config):
        if len(weights) == 2 * len(logged):  # the first draw of a step
            weights.append(parameters(policy))
        rollout, rewards = collect(run, policy, tokenizer, config)
        prompts = tokenizer.batch_decode(rollout.prompt_ids, skip_special_tokens=True)[::4]
        return rollout, torch.tensor([verdict(prompt) for prompt in prompts], dtype=rewards.dtype)

    def see_log(run, step, **given):
        weights.append(parameters(run.policy))
        logged.append(given)
        log(run, step, **given)

    config = {
        "steps": 2,
        "prompts_per_step": 6,
        "group_size": 4,
        "eval_problems": 2,
        "num_minibatches": 2,
        "device": "cpu",
    }
    with monkeypatch.context() as patch:
        patch.setattr(script, "collect", collect_and_judge)
        patch.setattr(script, "compute_advantages", lambda rewards: judged.append(rewards) or honest(rewards=rewards))
        patch.setattr(Run, "log", see_log)
        script.train(script.Config(**(config | {"run_dir": str(tmp_path / "run")} | settings)))
    return judged, logged, list(zip(weights[::2], weights[1::2]))


def parameters(policy) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in policy.parameters()])


def level_of(prompt: str) -> int:
    return prompt.count("+") + prompt.count("-")


@pytest.mark.parametrize("script", WITH_DYNAMIC_SAMPLING)
def test_dynamic_sampling_draws_until_enough_groups_are_mixed(script, tmp_path, monkeypatch, no_curves):
    """Level 1 all right, level 2 all wrong, levels 3 and 4 mixed: only the latter are trained on, P of them a step, and
    no batch is drawn that is not needed."""
    verdicts = {1: [1, 1, 1, 1], 2: [0, 0, 0, 0], 3: [1, 0, 0, 0], 4: [1, 1, 0, 1]}
    judged, logged, weights = run_dapo(tmp_path, monkeypatch, lambda prompt: verdicts[level_of(prompt)], script)
    assert len(judged) == len(logged) == 2
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text("utf-8").splitlines()]
    for rewards, given, row, (before, after) in zip(judged, logged, rows, weights):
        assert rewards.shape == (6, 4)
        assert {tuple(row) for row in rewards.tolist()} <= {(1, -1, -1, -1), (1, 1, -1, 1)}  # 1 or -1, Eq. 7
        drawn = given["rewards"]  # everything drawn is logged, the discarded groups too
        assert len(drawn) > 6 and len(drawn) % 6 == 0 and len(given["rollout"]) == 4 * len(drawn) == row["sampled"]
        mixed = drawn.sum(dim=1) % 4 != 0
        assert mixed.sum() >= 6 > mixed[:-6].sum()  # the last draw was needed
        assert torch.equal(rewards, 2 * drawn[mixed][:6] - 1)  # the first six, in the order they were drawn
        assert not torch.equal(before, after)


def test_dynamic_sampling_goes_by_right_and_wrong_and_not_by_shaped_reward(tmp_path, monkeypatch, no_curves):
    """All-right groups whose shaped rewards differ by length are dropped all the same."""
    verdict = {1: [1, 1, 1, 1], 2: [1, 1, 1, 1], 3: [1, 0, 0, 0], 4: [1, 1, 0, 1]}
    judged, _, _ = run_dapo(tmp_path, monkeypatch, lambda prompt: verdict[level_of(prompt)], overlong_buffer=56)
    assert all((rewards.max(dim=1).values - rewards.min(dim=1).values > 1).all() for rewards in judged)
    assert any((rewards % 1 != 0).any() for rewards in judged)  # the punishment is in the rewards


@pytest.mark.filterwarnings("ignore:std")  # torch's, of the standard deviations of no group at all
def test_dynamic_sampling_stops_at_max_draws(tmp_path, monkeypatch, no_curves):
    """One mixed group in three draws: the step makes do with it. None at all: no update, and the run goes on."""
    seen = []

    def rarely(prompt):
        seen.append(prompt)
        return [float(len(seen) in (1, 6 * 6 + 1)), 0, 0, 0]  # the first group of step 1 and of step 3

    judged, logged, weights = run_dapo(tmp_path, monkeypatch, rarely, steps=3, max_draws=3, num_minibatches=8)
    assert [len(rewards) for rewards in judged] == [1, 0, 1] and len(logged) == 3
    assert all(len(given["rewards"]) == 18 and len(given["rollout"]) == 72 for given in logged)
    assert [torch.equal(before, after) for before, after in weights] == [False, True, False]
    assert torch.equal(weights[0][1], weights[1][0])
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text("utf-8").splitlines()]
    assert [row["sampled"] for row in rows] == [72] * 3 and [row["rollouts"] for row in rows] == [72, 144, 216]
    assert [row["silent"] for row in rows] == [17 / 18, 1.0, 17 / 18]
    assert ["loss" in row for row in rows] == ["grad_norm" in row for row in rows] == [True, False, True]


@pytest.mark.parametrize(("max_draws", "dynamic_sampling"), [(1, True), (10, False)])
def test_without_dynamic_sampling_silent_groups_stay(max_draws, dynamic_sampling, tmp_path, monkeypatch, no_curves):
    """One draw a step in both cases; only `dynamic_sampling=False` keeps the groups that are all right or all wrong."""
    verdict = {1: [1, 1, 1, 1], 2: [0, 0, 0, 0], 3: [1, 0, 0, 0], 4: [1, 1, 0, 1]}
    settings = {"max_draws": max_draws, "dynamic_sampling": dynamic_sampling}
    judged, logged, _ = run_dapo(tmp_path, monkeypatch, lambda prompt: verdict[level_of(prompt)], **settings)
    for rewards, given in zip(judged, logged):
        drawn = given["rewards"]
        mixed = drawn.sum(dim=1) % 4 != 0
        assert len(drawn) == 6 and 0 < mixed.sum() < 6
        assert torch.equal(rewards, 2 * (drawn[mixed] if dynamic_sampling else drawn) - 1)


def test_a_step_trains_on_the_completions_of_the_groups_it_kept(tmp_path, monkeypatch, no_curves):
    """Every row of every minibatch is one of a kept group, each once, with its own sampled log-probabilities."""
    verdict = {1: [1, 1, 1, 1], 2: [0, 0, 0, 0], 3: [1, 0, 0, 0], 4: [1, 1, 0, 1]}
    trained, honest = [], dapo.completion_logps

    def see_minibatch(policy, minibatch, *settings):
        trained.append(minibatch)
        return honest(policy, minibatch, *settings)

    monkeypatch.setattr(dapo, "completion_logps", see_minibatch)
    _, (given,), _ = run_dapo(tmp_path, monkeypatch, lambda prompt: verdict[level_of(prompt)], steps=1)
    drawn, rewards = given["rollout"], given["rewards"]
    mixed = (rewards.sum(dim=1) % 4 != 0).nonzero().flatten()[:6].tolist()
    expected = [4 * group + i for group in mixed for i in range(4)]

    def keys(rollout, rows) -> list[tuple]:
        return sorted(
            (rollout.texts[row], *rollout.prompt_ids[row][rollout.prompt_mask[row]].tolist(),
             *rollout.logps[row][rollout.mask[row]].tolist()) for row in rows
        )  # fmt: skip

    assert keys(drawn, expected) == sorted(key for part in trained for key in keys(part, range(len(part))))


@pytest.mark.parametrize("script", [dapo, pytest.param(cispo, marks=pytest.mark.slow)])
def test_overlong_filtering_takes_truncated_completions_out_of_the_loss(script, tmp_path, monkeypatch, no_curves):
    masks, honest = [], script.policy_loss
    monkeypatch.setattr(script, "policy_loss", lambda **given: masks.append(given["mask"]) or honest(**given))
    for filtering in (False, True):
        settings = {"max_new_tokens": 4, "overlong_buffer": 0, "overlong_filtering": filtering, "temperature": 2.0}
        run_dapo(tmp_path / str(filtering), monkeypatch, lambda prompt: [1, 0, 0, 0], script, steps=1, **settings)
        rows = torch.cat([mask.any(dim=1) for mask in masks])
        assert rows.all() != filtering
        masks.clear()
