"""Three more answers to a policy that has moved: SAPO, GMPO and DPPO, beside the GRPO, GSPO and CISPO of the scripts.

All six take the same keywords (see `LOSSES`) and are averaged alike: over the tokens of each completion, then over
completions. Tested against verl in tests/test_parity.py.
"""

import torch
from torch import Tensor

from lessons.experiments.staleness import ARMS

DELTA = 0.2  # of DPPO; a choice of ours


def average(per_token: Tensor, mask: Tensor) -> Tensor:
    """Over the tokens of each completion, then over completions. per_token: (B, T) or (B, 1). mask: (B, T)."""
    return ((per_token * mask).sum(dim=1) / mask.sum(dim=1)).mean()


def sapo(*, logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """SAPO (arXiv:2511.20347): a smooth gate in place of the clip."""
    tau = 1.05 - 0.05 * (advantages > 0).to(logps)  # 1 where A > 0, 1.05 where A < 0
    gate = 4 / tau * torch.sigmoid(tau * ((logps - old_logps).exp() - 1))
    return -average(gate * advantages, mask)


def gmpo(*, logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor, width: float = 0.4) -> Tensor:
    """GMPO (arXiv:2507.20673): the geometric mean of ratios that are clipped one by one, on the side of A's sign."""
    log_ratio = logps - old_logps
    clipped = torch.where(advantages > 0, log_ratio.clamp(max=width), log_ratio.clamp(min=-width))
    mean = (clipped * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)
    return -average(mean.exp() * advantages, mask)


def dppo(*, logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor, delta: float = DELTA) -> Tensor:
    """DPPO, binary TV (arXiv:2602.04879): no clip; a token is dropped if its own push has moved its probability by more
    than delta."""
    rise = logps.detach().exp() - old_logps.exp()
    kept = torch.where(advantages > 0, rise <= delta, rise >= -delta)
    return -average(kept * (logps - old_logps).exp() * advantages, mask)


LOSSES = {
    "GRPO": ARMS["GRPO's clip"],
    "GSPO": ARMS["GSPO"],
    "CISPO": ARMS["CISPO"],
    "SAPO": sapo,
    "GMPO": gmpo,
    "DPPO": dppo,
}
