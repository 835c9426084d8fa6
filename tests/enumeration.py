"""Policies so small that all their completions can be listed: the truth behind the tests of
expectations."""

from itertools import product

import torch
from torch.nn.utils.rnn import pad_sequence

from toy_env.rollout import Rollout

PROMPT, EOS = [1, 0, 1], 2


def every_completion(vocab_size: int, limit: int) -> list[list[int]]:
    """All completions of at most `limit` tokens: up to the first EOS, or cut at the limit without
    one."""
    completions = []
    for tokens in product(range(vocab_size), repeat=limit):
        length = tokens.index(EOS) + 1 if EOS in tokens else limit
        if list(tokens[:length]) not in completions:
            completions.append(list(tokens[:length]))
    return completions


def as_rollout(completions: list[list[int]], prompt: list[int] = PROMPT) -> Rollout:
    """Completions of one prompt as a rollout with two columns of left padding."""
    B, lengths = len(completions), torch.tensor([[len(ids)] for ids in completions])
    completion_ids = pad_sequence([torch.tensor(ids) for ids in completions], batch_first=True)
    return Rollout(
        prompt_ids=torch.tensor([[0, 0, *prompt]] * B),
        prompt_mask=torch.tensor([[False, False] + [True] * len(prompt)] * B),
        completion_ids=completion_ids,
        mask=torch.arange(completion_ids.shape[1]) < lengths,
        old_logps=torch.zeros(completion_ids.shape),
        entropies=torch.zeros(completion_ids.shape),
        truncated=torch.tensor([EOS not in ids for ids in completions]),
        texts=[""] * B,
        ends=[EOS],
    )


def probability(policy, completion: list[int]) -> torch.Tensor:
    """P(completion | PROMPT), with gradient: a product of softmax entries, each from its own
    unpadded forward pass."""
    p = torch.ones((), dtype=torch.float64)
    for t, token in enumerate(completion):
        logits = policy(input_ids=torch.tensor([PROMPT + completion[:t]])).logits[0, -1]
        p = p * logits.softmax(dim=0)[token]
    return p


def flat_gradient(value: torch.Tensor, policy, retain: bool = False) -> torch.Tensor:
    """The gradient for all parameters in one dimension; `retain` keeps the graph for another."""
    parameters = list(policy.parameters())
    gradients = torch.autograd.grad(
        value, parameters, retain_graph=retain, allow_unused=True, materialize_grads=True
    )
    return torch.cat([gradient.flatten() for gradient in gradients])
