"""Double precision, so that "equal" in a lesson or a test can mean twelve digits."""

import torch


def to_float64(policy):
    """Put a transformers model into double precision throughout, in place, and return it.

    `.double()` alone is not enough: the RMSNorm of transformers always computes in float32.
    """
    for name, module in list(policy.named_modules()):
        if type(module).__name__.endswith("RMSNorm") and not isinstance(module, torch.nn.RMSNorm):
            norm = torch.nn.RMSNorm(module.weight.shape, eps=module.variance_epsilon)
            norm.weight = module.weight
            policy.set_submodule(name, norm)
    return policy.double()
