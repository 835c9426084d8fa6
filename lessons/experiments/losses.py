"""Losses for a policy that has moved since it sampled: those that lesson 14 compares.

All take the keywords logps, with gradient, old_logps, mask, (B, T), and advantages, (B, 1) or (B,
T), and are averaged alike: over the tokens of each completion, then over completions. The losses of
the scripts have their own tests; tests/engines compares SAPO with verl.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from algorithms import cispo, dapo, grpo, gspo


def sapo(*, logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """SAPO (arXiv:2511.20347): a smooth gate in place of the clip."""
    tau = 1.05 - 0.05 * (advantages > 0).to(logps)  # 1 where A > 0, 1.05 where A < 0
    gate = 4 / tau * torch.sigmoid(tau * ((logps - old_logps).exp() - 1))
    per_token = gate * advantages * mask
    return -(per_token.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).mean()


def averaged_as_grpo(token_mean: Callable) -> Callable:
    """Turn a policy_loss that averages over the tokens of the batch into one that averages over
    the tokens of each completion and then over completions.

    It is linear in the advantages: each is multiplied by the number of tokens in the batch, over
    the number in its own completion, over the number of completions. A completion without tokens is
    counted, as in GRPO.
    """

    def loss(*, advantages: Tensor, mask: Tensor, **batch) -> Tensor:
        lengths = mask.sum(dim=1, keepdim=True).to(advantages)
        weight = lengths.sum() / (len(mask) * lengths.clamp(min=1))
        return token_mean(advantages=advantages * weight, mask=mask, **batch)

    return loss


def over_mixed(loss: Callable) -> Callable:
    """Turn a policy_loss into one for which a silent group's completions, whose advantages are 0,
    have no tokens: a token mean then divides by the tokens of mixed groups alone."""

    def of_mixed(*, advantages: Tensor, mask: Tensor, **batch) -> Tensor:
        return loss(advantages=advantages, mask=mask & (advantages != 0), **batch)

    return of_mixed


def uncorrected(*, logps: Tensor, old_logps: Tensor, **batch: Tensor) -> Tensor:
    """GRPO's loss as if the policy had not moved: every ratio 1."""
    return LOSSES["GRPO's clip"](logps=logps, old_logps=logps.detach(), **batch)


def clip_without_weights(
    *, logps: Tensor, old_logps: Tensor, advantages: Tensor, **batch: Tensor
) -> Tensor:
    """GRPO's clip without the ratio: it stops the same tokens, and every other token counts as if
    its ratio were 1."""
    ratio, eps = (logps - old_logps).detach().exp(), grpo.Config().clip_eps
    kept = torch.where(advantages > 0, ratio <= 1 + eps, ratio >= 1 - eps)  # (B, T)
    return uncorrected(logps=logps, old_logps=old_logps, advantages=advantages * kept, **batch)


LOSSES: dict[str, Callable] = {  # all but the last are arms of staleness.py
    "no correction": uncorrected,
    "GRPO's clip": partial(grpo.policy_loss, config=grpo.Config(kl_coef=0.0), ref_logps=None),
    "clip-higher": averaged_as_grpo(partial(dapo.policy_loss, config=dapo.Config())),
    "GSPO": partial(gspo.policy_loss, config=gspo.Config(kl_coef=0.0), ref_logps=None),
    "CISPO": averaged_as_grpo(partial(cispo.policy_loss, config=cispo.Config())),
    "clip without weights": clip_without_weights,
    "SAPO": sapo,
}
