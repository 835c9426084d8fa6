"""The KL terms of lessons/experiments/kl.py: by enumeration, and by hand."""

from types import SimpleNamespace

import pytest
import torch

from algorithms import dr_grpo, grpo
from lessons.experiments import kl
from lessons.experiments.kl import Run

COUNTS = torch.tensor([8, 4, 2, 1, 1])  # a batch of one-token completions, each as often as it
OLD = (COUNTS.double() / 16).log()  # is expected from the policy that sampled
MOVED = torch.tensor([0.1, 0.3, -0.2, 0.5, 0.0]).double()
REF = torch.tensor([0.10, 0.15, 0.05, 0.40, 0.30]).double().log()


@pytest.mark.parametrize(("name", "move"), [("ρ·k3", MOVED), ("k2", 0), ("k3", 0)])
def test_the_gradient_of_every_penalty_is_that_of_an_enumerated_kl(name, move):
    """Of KL(policy || reference), with ρ·k3 also where the policy has moved; with k3 the other."""
    logits = (OLD + move).requires_grad_()
    log_pi = logits.log_softmax(dim=0)
    columns = {"logps": log_pi, "old_logps": OLD, "ref_logps": REF, "advantages": 0 * OLD}
    columns = {key: x.repeat_interleave(COUNTS).unsqueeze(1) for key, x in columns.items()}
    loss = kl.replacements(Run(kl=name), grpo)["policy_loss"]
    mask, config = torch.ones(16, 1).bool(), grpo.Config(kl_coef=1.0)
    p, q = (REF, log_pi) if name == "k3" else (log_pi, REF)
    truth = p.exp() @ (p - q)
    mine = loss(**columns, mask=mask, config=config)
    gradients = [torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (mine, truth)]
    torch.testing.assert_close(*gradients)


def test_the_kl_in_the_reward_is_the_mean_over_tokens(monkeypatch):
    """Two completions of one and two tokens, a right one and a wrong one."""
    rollout = SimpleNamespace(mask=torch.tensor([[1, 0], [1, 1]]))
    monkeypatch.setattr(kl, "load_policy", lambda: (None, None))
    monkeypatch.setattr(kl, "log_ratios", lambda *_: torch.tensor([[0.2, 0.0], [0.6, -1.0]]))
    script = SimpleNamespace(collect=lambda *_: (rollout, torch.tensor([[1.0, 0.0]])))
    script.compute_advantages = lambda rewards: rewards
    collect, advantages = kl.k1_in_reward(script, weight=0.5).values()
    torch.testing.assert_close(advantages(rewards=collect()[1]), torch.tensor([[0.9, 0.1]]))


def test_times_sigma_multiplies_beta_by_sigma_of_the_batch():
    """Rewards of three groups: one right completion in four, two, and none."""
    rewards = torch.tensor([[1.0, 0, 0, 0], [1.0, 1, 0, 0], [0.0, 0, 0, 0]])
    functions = kl.kl_times_sigma(dr_grpo.compute_advantages, lambda config: config.kl_coef)
    functions["compute_advantages"](rewards=rewards)
    beta = functions["policy_loss"](config=grpo.Config(kl_coef=0.5))
    assert beta == pytest.approx(0.5 * ((3 / 16 + 1 / 4) / 3) ** 0.5)
