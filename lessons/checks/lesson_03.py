"""What the exercises of lesson 3 are checked against. `kit.check` explains the keys."""

import torch
from torch import Tensor


def leave_one_out(rewards: Tensor, verified: Tensor) -> Tensor:
    """Rewards less the mean of the others that were verified; 0 for what was not."""
    total, n = (
        (x * verified).sum(dim=1, keepdim=True) for x in (rewards, torch.ones_like(rewards))
    )
    return (rewards - (total - rewards) / (n - 1)) * verified


def by_group(texts: list[str], rewards: Tensor, G: int) -> Tensor:
    groups = rewards.view(-1, G)
    return (groups - groups.mean(dim=1, keepdim=True)).flatten()


some_rewards = torch.tensor([[1, 0, 0, 1, 1], [0, 0.5, 1, 0.25, 0]]).double()
some_verified = torch.tensor([[1, 1, 0, 1, 0], [1, 1, 1, 1, 0]]).bool()
pictures = ["how many?"] * 4 + ["what colour?"] * 4 + ["how many?"] * 4
marks = torch.tensor([0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1]).double()

CHECKS = {
    "3.1": {
        "expected": leave_one_out,
        "inputs": [
            {"rewards": some_rewards, "verified": some_verified},
            {"rewards": 1 - some_rewards, "verified": some_verified.flip(0)},
        ],
    },
    "3.2": {
        "expected": lambda G: ((G - 1) / G) ** 0.5,
        "inputs": [{"G": 2}, {"G": 8}, {"G": 64}],
    },
    "3.3": {
        "expected": by_group,
        "inputs": [
            {"texts": pictures, "rewards": marks, "G": 4},
            {"texts": ["how many?"] * 6, "rewards": marks[3:9], "G": 2},
        ],
    },
}
