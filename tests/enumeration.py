"""Policies so small that all their completions can be listed: the truth behind the tests of
expectations."""

from itertools import product

import torch

from toy_env.rollout import Rollout

PROMPT, EOS = [1, 0, 1], 2


def every_completion(vocab_size: int, limit: int) -> list[list[int]]:
    """All completions of at most `limit` tokens: up to the first EOS, or cut at the limit without
    one."""
    out = []
    for ids in product(range(vocab_size), repeat=limit):
        ids = list(ids)
        ids = ids[: ids.index(EOS) + 1] if EOS in ids else ids
        if ids not in out:
            out.append(ids)
    return out


def as_rollout(completions: list[list[int]], prompt: list[int] = PROMPT) -> Rollout:
    """Completions of one prompt as a rollout with two columns of left padding; the masks are
    spelled out here."""
    B, T = len(completions), max(map(len, completions))
    return Rollout(
        prompt_ids=torch.tensor([[0, 0, *prompt]] * B),
        prompt_mask=torch.tensor([[False, False] + [True] * len(prompt)] * B),
        completion_ids=torch.tensor([ids + [0] * (T - len(ids)) for ids in completions]),
        mask=torch.tensor([[t < len(ids) for t in range(T)] for ids in completions]),
        logps=torch.zeros(B, T),
        entropies=torch.zeros(B, T),
        truncated=torch.tensor([EOS not in ids for ids in completions]),
        texts=[""] * B,
    )


def probability(policy, completion: list[int]) -> torch.Tensor:
    """P(completion | PROMPT), with gradient: a product of softmax entries, each from its own
    unpadded forward pass."""
    p = torch.ones((), dtype=torch.float64)
    for t, token in enumerate(completion):
        p = (
            p
            * policy(input_ids=torch.tensor([PROMPT + completion[:t]]))
            .logits[0, -1]
            .softmax(dim=0)[token]
        )
    return p


def flat_gradient(value: torch.Tensor, policy) -> torch.Tensor:
    gradients = torch.autograd.grad(value, list(policy.parameters()), allow_unused=True)
    return torch.cat(
        [
            torch.zeros_like(p).flatten() if g is None else g.flatten()
            for p, g in zip(policy.parameters(), gradients)
        ]
    )
