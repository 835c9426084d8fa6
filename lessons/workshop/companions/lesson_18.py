"""The example of lesson 18, and the right answers and usual mistakes of its exercises."""

from itertools import product
from math import inf, log

import torch
from torch.nn.utils.rnn import pad_sequence

# A policy that writes at most three letters, each an a or a b. $ ends texts of fewer
TEXTS = ["".join(letters) for n in range(4) for letters in product("ab", repeat=n)]
TOKENS = [(text + "$")[:3] for text in TEXTS]
R = (torch.arange(15) % 3 == 0).double()
generator = torch.Generator().manual_seed(0)
# After each of the 7 prefixes
LOGITS, NOISE = torch.randn(2, 7, 3, generator=generator, dtype=torch.float64)


def token_logps(logits: torch.Tensor) -> torch.Tensor:
    """(15, 3), 0 where a text has ended."""
    logps = logits.log_softmax(dim=1)
    rows = [[logps[TEXTS.index(y[:t]), "ab$".index(y[t])] for t in range(len(y))] for y in TOKENS]
    return pad_sequence([torch.stack(row) for row in rows], batch_first=True)


# Exercises; `notebook.check` explains the keys of CHECKS


def weight(old, sampled, C):
    """min(w, C) of whole completions, (texts, 1)."""
    return (old - sampled).sum(dim=1, keepdim=True).exp().clamp(max=C)


def of_tokens(old, sampled, C):
    return (old - sampled).exp().clamp(max=C)


CHECKS = {
    "18.1": {
        "expected": weight,
        "inputs": [{"old": token_logps(LOGITS), "sampled": token_logps(LOGITS + NOISE), "C": 1.5}],
        "mistakes": {
            "each token has a weight of its own: those of a completion must be one": of_tokens,
            "cap once, after the product over the tokens": lambda old, sampled, C: weight(
                (old - sampled).clamp(max=log(C)), 0, inf
            ),
            "the weight has no bound": lambda old, sampled, C: weight(old, sampled, inf),
            "what the sampler writes too often must count less": (
                lambda old, sampled, C: weight(sampled, old, C)
            ),
        },
    },
}


def values(weight, beta=0.5):
    """Reward - beta KL over training by mean updates without a cap, at a rate of 2; the KL is that
    from the start, and its gradient exact."""
    theta, start, curve = LOGITS.clone(), token_logps(LOGITS).sum(dim=1), []
    for _ in range(51):
        logps = token_logps(theta.requires_grad_())
        total, sampled = logps.sum(dim=1), token_logps(theta.detach() + 1.5 * NOISE)
        chance, kl = sampled.sum(dim=1).exp(), total.exp() @ (total - start)
        curve.append((total.exp() @ R - beta * kl).item())
        weighted = weight(logps.detach(), sampled, inf) * logps
        goal = chance * (R - chance @ R) @ weighted.sum(dim=1) - beta * kl
        theta = theta.detach() + 2 * torch.autograd.grad(goal, theta)[0]
    return curve


TRAINED = {
    "18.1": {
        "curve": values,
        "right": "whole completions",
        "mistakes": {
            "no weight": lambda old, sampled, C: 1,
            "each token's own": of_tokens,
            "completions, cap 3": lambda old, sampled, C: weight(old, sampled, 3),
        },
        "labels": ("updates", "reward − KL / 2"),
    }
}
