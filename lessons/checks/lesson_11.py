"""What the exercises of lesson 11 are checked against. `kit.check` explains the keys."""

from collections import Counter
from collections.abc import Callable
from itertools import combinations

import numpy as np

from toy_env.evaluate import majority_at_k


def all_subsets(answers, right, k, tie: Callable = lambda winners: 1 / len(winners), abstain=True) -> float:
    """The share of all k-subsets whose vote is won by the right answer. tie: what a subset is worth that has these
    winners, the right answer among them; abstain: None has no vote."""
    scores = []
    for subset in combinations(answers, k):
        counts = Counter(a for a in subset if a is not None or not abstain)
        winners = [a for a in counts if counts[a] == max(counts.values())]
        scores.append(tie(winners) if right in winners else 0.0)
    return float(np.mean(scores))


def voted(**rules) -> Callable:
    """The vote of exercise 1 under other rules."""
    return lambda answers, right, k: all_subsets(answers, right, k, **rules)


def probabilities(values) -> np.ndarray:
    values = np.array(values, dtype=float)
    if values.min() < 0 or values.max() > 1:
        raise ValueError("a probability lies between 0 and 1")
    return values


def leads(pair) -> Callable:
    """Whether A leads at K = 1 and B at K = 64, from the probabilities of A and of B on four problems."""

    def answer():
        if pair is ... or pair is None:
            return pair
        A, B = probabilities(pair).reshape(2, 4)
        lead = [(1 - (1 - A) ** K).mean() - (1 - (1 - B) ** K).mean() for K in (1, 64)]
        return [lead[0] > 1e-9, lead[1] < -1e-9]

    return answer


def majority_of_three(pi: np.ndarray) -> float:
    """The probability that the first answer wins a vote of three: it has two votes or three, or a third of a tie."""
    p, others_differ = pi[0], (1 - pi[0]) ** 2 - (pi[1:] ** 2).sum()
    return p**2 * (3 - 2 * p) + 3 * p * others_differ / 3


def rises(problem) -> Callable:
    """Whether sharpening raises Pass@1, and Maj@3, where the most probable answer is wrong; or what is amiss with that
    answer. The first answer is right."""

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


def fixed(*values) -> Callable:
    return lambda: list(values)


CHECKS = {
    "11.1": {
        "expected": majority_at_k,
        "inputs": [
            {"answers": [5, 5, 6, 7, None], "right": 5, "k": 2},
            {"answers": [5, 6, 6, None, None, 7], "right": 6, "k": 3},
            {"answers": [1, 1, 2, 2, 2, 3], "right": 1, "k": 4},
            {"answers": [5, None, None, None, 6], "right": 5, "k": 2},  # three pairs without a vote
        ],
        "mistakes": {
            "a tie counts as right: with k = 2 that would be Pass@2": voted(tie=lambda winners: 1.0),
            "a tie counts as wrong": voted(tie=lambda winners: float(len(winners) == 1)),
            "None is not an answer: it has no vote": voted(abstain=False),
            "in some subsets nobody votes: there `max` has nothing to compare": lambda *_: max([]),
        },
    },
    "11.2": {
        "expected": fixed(True, True),
        "inputs": [{}],
        "mistakes": {
            "B leads at K = 64, but A does not lead at K = 1": fixed(False, True),
            "A leads at K = 1, but B does not lead at K = 64": fixed(True, False),
            "neither leads where it should": fixed(False, False),
        },
    },
    "11.3": {
        "expected": fixed(True, True),
        "inputs": [{}],
        "mistakes": {
            "here the most probable answer is right": lambda: "the mode is right",
            "a tie: no wrong answer is more probable than the right one": lambda: "a tie",
            "the most probable answer is wrong, but neither Pass@1 nor Maj@3 rises": fixed(False, False),
            "Pass@1 rises, but Maj@3 does not": fixed(True, False),
        },
    },
}
