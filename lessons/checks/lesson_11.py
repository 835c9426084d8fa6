"""Right answers and usual mistakes of lesson 11's exercises; `kit.check` explains the keys."""

from collections import Counter
from collections.abc import Callable
from itertools import combinations

import numpy as np

from toy_env.evaluate import majority_at_k


def over_subsets(score: Callable) -> Callable:
    """From score(votes, right) of the answers of one subset to its mean over all k-subsets."""

    def answer(answers, right, k) -> float:
        return float(np.mean([score(subset, right) for subset in combinations(answers, k)]))

    return answer


def share_of_winners(votes, right) -> float:
    """1 if the right answer has the most votes, less in a tie. Raises ValueError without votes."""
    counts = Counter(votes)
    winners = [vote for vote in counts if counts[vote] == max(counts.values())]
    return (right in winners) / len(winners)


def without_none(subset) -> list:
    return [answer for answer in subset if answer is not None]


def is_a_winner(subset, right) -> bool:
    votes = without_none(subset)
    return right in votes and votes.count(right) == max(map(votes.count, votes))


def is_alone(subset, right) -> bool:
    return is_a_winner(subset, right) and share_of_winners(without_none(subset), right) == 1


# The vote of a subset without votes is lost; a tie counts in part.
all_subsets = over_subsets(
    lambda subset, right: share_of_winners(without_none(subset) or [None], right)
)


def probabilities(values) -> np.ndarray:
    values = np.array(values, dtype=float)
    if values.min() < 0 or values.max() > 1:
        raise ValueError("a probability lies between 0 and 1")
    return values


def leads(pair) -> Callable:
    """From the probabilities of A and of B on four problems: does A lead at K = 1, and B at
    K = 64?"""

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
    """Does sharpening raise Pass@1, and Maj@3? Only asked where the most probable answer is wrong:
    of any other problem, the reason why it does not count. The first answer is right."""

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
        "mistakes": {
            "a tie counts as right: with k = 2 that would be Pass@2": over_subsets(is_a_winner),
            "a tie counts as wrong": over_subsets(is_alone),
            "None is not an answer: it has no vote": over_subsets(share_of_winners),
            "in some subsets nobody votes: there `max` has nothing to compare": over_subsets(
                lambda subset, right: max(without_none(subset))  # as it fails: a ValueError
            ),
        },
    },
    "11.2": {
        "expected": lambda: [True, True],
        "inputs": [{}],
        "mistakes": {
            "B leads at K = 64, but A does not lead at K = 1": lambda: [False, True],
            "A leads at K = 1, but B does not lead at K = 64": lambda: [True, False],
            "neither leads where it should": lambda: [False, False],
        },
    },
    "11.3": {
        "expected": lambda: [True, True],
        "inputs": [{}],
        "mistakes": {
            "a tie: no wrong answer is more probable than the right one": lambda: "a tie",
            "here the most probable answer is right": lambda: "the mode is right",
            "Pass@1 rises, but Maj@3 does not": lambda: [True, False],
            "the most probable answer is wrong, but neither Pass@1 nor Maj@3 rises": (
                lambda: [False, False]
            ),
        },
    },
}
