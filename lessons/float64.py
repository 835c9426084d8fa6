"""Double precision, so that "equal" in a lesson or a test can mean twelve digits."""

import torch


def to_float64(policy):
    """The transformers model in double precision throughout, changed in place and returned.

    `.double()` alone is not enough: the RMSNorm of transformers computes in float32 whatever it is
    given.
    """
    for name, module in list(policy.named_modules()):
        if type(module).__name__.endswith("RMSNorm") and not isinstance(module, torch.nn.RMSNorm):
            norm = torch.nn.RMSNorm(module.weight.shape, eps=module.variance_epsilon)
            norm.weight = module.weight
            policy.set_submodule(name, norm)
    return policy.double()
