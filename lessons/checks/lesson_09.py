"""What the exercises of lesson 9 are checked against. `kit.check` explains the keys."""

from lessons import identity


def powers(p: float, n: int) -> float:
    """The sum of (1 - q^j) / j for j = 1..n."""
    return sum((1 - (1 - p) ** j) / j for j in range(1, n + 1))


CHECKS = {
    "9.1": {
        "expected": lambda G: [identity.weight("MaxRL", p, G) for p in (1e-9, 1 - 1e-9)],
        "inputs": [{"G": 2}, {"G": 8}, {"G": 64}],
    },
    "9.2": {
        "expected": powers,
        "inputs": [{"p": 0.3, "G": 2}, {"p": 0.05, "G": 8}, {"p": 0.9, "G": 5}],
    },
    "9.3": {
        "expected": lambda p, G: identity.weight("GRPO", p, G),
        "inputs": [{"p": 0.02, "G": 3}, {"p": 0.5, "G": 8}, {"p": 0.9, "G": 5}],
    },
}
