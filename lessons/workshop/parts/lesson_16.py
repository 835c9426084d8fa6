"""The right answers and usual mistakes of lesson 16's exercises; `kit.check` explains the keys."""

import re
from functools import partial

import torch

logits = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)).double()
sequence = torch.tensor([1, 3, 0, 2, 2, 1, 0])


def is_strict(reward, right="40+2=42", wrong=("42+1=43", "140+2=142")):
    """True if a verifier of the answer 42 accepts the right text, and none of the wrong ones."""
    return reward(right) == 1 and not any(map(reward, wrong))


def scores(logits, sequence, n, early=1, normalised=torch.log_softmax):
    """The log-probabilities of the tokens behind the first n, from outputs so many positions
    early."""
    rows = normalised(logits, 1)[n - early : len(logits) - early]
    return rows.gather(1, sequence[n:, None])[:, 0]


CHECKS = {
    "16.1": {
        "expected": is_strict,
        "inputs": [
            {"reward": reward}
            for reward in (
                lambda text: re.findall(r"\d+", text)[-1:] == ["42"],
                lambda text: "42" in text,
                lambda text: "42" in re.findall(r"\d+", text),
                lambda text: text.endswith("42"),
                lambda text: 0,
            )
        ],
        "mistakes": {
            "a verifier that finds 42 anywhere passes: try wrong texts, too": (
                partial(is_strict, wrong=())
            ),
            "a verifier that compares the last characters passes: 142 ends in 42, too": (
                partial(is_strict, wrong=("42+1=43",))
            ),
            "a verifier that looks for the number 42 passes: what if it is not the last one?": (
                partial(is_strict, wrong=("140+2=142",))
            ),
            "a verifier that rejects everything passes: try a right text, too": (
                lambda reward: not any(map(reward, ("42+1=43", "140+2=142")))
            ),
        },
    },
    "16.2": {
        "bug": partial(scores, early=0),
        "expected": scores,
        "inputs": [{"logits": logits, "sequence": sequence, "n": n} for n in (3, 5)],
        "mistakes": {
            "the right outputs, but logits: log_softmax over the vocabulary is missing": (
                partial(scores, normalised=lambda logits, _: logits)
            ),
            "one position early now": partial(scores, early=2),
        },
    },
}
