"""The algorithm-free half of sigma-ladder: a tiny verifiable-arithmetic task, a small model, and the plumbing."""


class UsageError(ValueError):
    """Something the user asked for cannot be had. Its message is one line: what was wrong and what to type instead."""
