"""The half of sigma-ladder that knows no algorithm: a tiny verifiable-arithmetic task, a small model, plumbing."""


class UsageError(ValueError):
    """The user asked for something impossible. The message is one line: what was wrong and what to type instead."""
