"""What the exercises of lesson 11 are checked against. `kit.check` explains the keys."""

from collections import Counter
from collections.abc import Callable
from itertools import combinations

import numpy as np

from toy_env.evaluate import majority_at_k


def all_subsets(answers, right, k) -> float:
    """The share of all k-subsets whose vote is won by the right answer; a tie counts in part, and
    None has no vote."""
    scores = []
    for subset in combinations(answers, k):
        counts = Counter(a for a in subset if a is not None)
        winners = [a for a in counts if counts[a] == max(counts.values())]
        scores.append(1 / len(winners) if right in winners else 0.0)
    return float(np.mean(scores))


def probabilities(values) -> np.ndarray:
    values = np.array(values, dtype=float)
    if values.min() < 0 or values.max() > 1:
        raise ValueError("a probability lies between 0 and 1")
    return values


def leads(pair) -> Callable:
    """Whether A leads at K = 1 and B at K = 64, from the probabilities of A and of B on four
    problems."""

    def answer():
        if pair is ... or pair is None:
            return pair
        A, B = probabilities(pair).reshape(2, 4)
        lead = [(1 - (1 - A) ** K).mean() - (1 - (1 - B) ** K).mean() for K in (1, 64)]
        return [lead[0] > 1e-9, lead[1] < -1e-9]

    return answer


def majority_of_three(pi: np.ndarray) -> float:
    """The probability that the first answer wins a vote of three: it has two votes or three, or a
    third of a tie."""
    p, others_differ = pi[0], (1 - pi[0]) ** 2 - (pi[1:] ** 2).sum()
    return p**2 * (3 - 2 * p) + 3 * p * others_differ / 3


def rises(problem) -> Callable:
    """Whether sharpening raises Pass@1, and Maj@3, where the most probable answer is wrong; or what
    is amiss with that answer. The first answer is right."""

    def answer():
        if problem is ... or problem is None:
            return problem
        pi = probabilities(problem)
        if abs(pi.sum() - 1) > 1e-9:
            raise ValueError("the probabilities must sum to 1")
        if pi[0] > pi[1:].max(initial=0) - 1e-9:
            return "a tie" if pi[0] < pi[1:].max(initial=0) + 1e-9 else "the mode is right"
        sharp = pi**2 / (pi**2).sum()
        return [sharp[0] > pi[0] + 1e-9, majority_of_three(sharp) > majority_of_three(pi) + 1e-9]

    return answer


CHECKS = {
    "11.1": {
        "expected": majority_at_k,
        "inputs": [
            {"answers": [5, 5, 6, 7, None], "right": 5, "k": 2},
            {"answers": [5, 6, 6, None, None, 7], "right": 6, "k": 3},
            {"answers": [1, 1, 2, 2, 2, 3], "right": 1, "k": 4},
            {"answers": [5, None, None, None, 6], "right": 5, "k": 2},  # three pairs without a vote
        ],
    },
    "11.2": {
        "expected": lambda: [True, True],
        "inputs": [{}],
    },
    "11.3": {
        "expected": lambda: [True, True],
        "inputs": [{}],
    },
}
