"""The closed forms behind the lessons: groups of G completions of one prompt, k of them right.

A completion is right with probability p, wrong with q = 1 - p. sigma = sqrt(k (G - k)) / G is the
standard deviation of the rewards. A group with k = 0 or k = G is zero-variance (silent): sigma is 0
and nothing is learnt from it. "The paper" is arXiv:2607.00152, *GRPO, Dr. GRPO, and DAPO Are Three
Operations on One Number*. It states its expectations for one scalar prompt; the weights here hold
for any policy.

Everything takes numbers or arrays for p and plain integers for G. Nothing here imports torch.

    python lessons/identity.py --p .76 --group_size 4       what groups of 4 make of such a prompt
    python lessons/identity.py --accuracies FILE            of many: a column of solve rates
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from math import comb

import numpy as np

LARGEST = 1000  # group size that is looked at

# ---------------------------------------------------------------------- one group


def sigma(k, G: int):
    """Standard deviation (ddof 0) of k ones and G - k zeros: sqrt(k (G - k)) / G."""
    return np.sqrt(np.asarray(k) * (G - np.asarray(k))) / G


def binomial(p, G: int) -> np.ndarray:
    """P(k of G completions are right) for k = 0..G: (..., G + 1) from p (...)."""
    p = np.asarray(p, dtype=float)[..., None]
    k = np.arange(G + 1)
    ways = np.array([float(comb(G, i)) for i in range(G + 1)])
    return ways * p**k * (1 - p) ** (G - k)


# ---------------------------------------------------------------------- silent groups


def silent_rate(p, G: int):
    """P(all G completions right or all wrong) = p^G + q^G (the paper, Eq. 10)."""
    return p**G + (1 - p) ** G


def silent_rate_plug_in(right, n: int, G: int):
    """The silent rate at p = right / n. Biased upwards: p^G + q^G is convex in p (Jensen)."""
    return silent_rate(np.asarray(right) / n, G)


def silent_rate_unbiased(right, n: int, G: int):
    """Unbiased estimate of p^G + q^G from n >= G completions, `right` of them right: the share of
    their G-subsets that are silent."""
    table = np.array([(comb(c, G) + comb(n - c, G)) / comb(n, G) for c in range(n + 1)])
    return table[np.asarray(right)]


# ---------------------------------------------------------------------- expected length of the step


def expected_sigma(p, G: int):
    """E[sigma] over groups: the exact binomial sum (the paper, Prop. 2)."""
    return binomial(p, G) @ sigma(np.arange(G + 1), G)


def fidelity(p, G: int):
    """phi = E[sigma] / sqrt(p q): the expected sigma relative to its limit for G -> infinity."""
    return expected_sigma(p, G) / np.sqrt(p * (1 - p))


def fidelity_expansion(p, G: int):
    """The first order of `fidelity` in 1 / G: 1 - 1 / (8 G p q) (the paper, Cor. 1)."""
    return 1 - 1 / (8 * G * p * (1 - p))


def group_size_exact(p: float, target: float) -> int:
    """The smallest G with fidelity(p, G) >= target. Raises OverflowError above some 1,000,
    where `binomial` ends."""
    return next(G for G in count(2) if fidelity(p, G) >= target)


def group_size_law(p, loss):
    """The paper's design rule G* = 1 / (8 loss p q) for a fidelity of 1 - loss: leading order
    only."""
    return 1 / (8 * loss * p * (1 - p))


# ---------------------------------------------------------------------- weight: E[g] = w(p) grad p

# (own reward, others that are right, G) -> advantage
AdvantageRule = Callable[[int, int, int], float]


def contrast(weight: Callable) -> AdvantageRule:
    """The rule whose update is weight(k, G) times s+ - s- in a mixed group, the mean score of the
    right completions less that of the wrong ones, and 0 in a silent one. GRPO: sigma; Dr. GRPO:
    sigma^2; MaxRL: (G - k) / G."""

    def rule(reward: int, others: int, G: int) -> float:
        k = others + reward
        if k in (0, G):
            return 0.0
        return float(weight(k, G)) * (G / k if reward else -G / (G - k))

    return rule


RULES: dict[str, AdvantageRule] = {
    "REINFORCE": lambda reward, others, G: reward,
    "RLOO": lambda reward, others, G: reward - others / (G - 1),
    "Dr. GRPO": lambda reward, others, G: reward - (others + reward) / G,
    "GRPO": contrast(sigma),  # (R - mean) / sigma
    "mean over the right": lambda reward, others, G: reward * G / (others + 1),
    "MaxRL": contrast(lambda k, G: (G - k) / G),  # (R - mean) / mean
}


def advantages(rule: str | AdvantageRule, G: int) -> list[np.ndarray]:
    """The advantage of a right and of a wrong completion where 0..G - 1 others are right, (G,)
    each."""
    advantage = RULES[rule] if isinstance(rule, str) else rule
    return [
        np.array([advantage(reward, others, G) for others in range(G)], dtype=float)
        for reward in (1, 0)
    ]


def weight(rule: str | AdvantageRule, p, G: int):
    """w(p) in E[g] = w(p) grad p, for any policy, of g = mean over the group of advantage times
    score.

    w(p) = E[A(right | S) - A(wrong | S)], where S ~ Bin(G - 1, p) is how many of the *others* are
    right (Davis and Recht, arXiv:2510.13651). It needs 0-1 rewards, scores summed over tokens,
    samples from the policy itself, and no clip. The rule is a name in RULES or a function (own
    reward, others right, G) -> advantage.
    """
    right, wrong = advantages(rule, G)
    return binomial(p, G - 1) @ (right - wrong)


def weight_limit(p):
    """GRPO's weight for G -> infinity, 1 / sqrt(p q): the derivative of 2 arcsin sqrt(p)."""
    return 1 / np.sqrt(p * (1 - p))


def weight_same_prompt_resampling(p, G: int):
    """GRPO's weight where a silent group is drawn again *from the same prompt* until it is mixed:
    w_G / (1 - p^G - q^G).

    DAPO replaces the prompt instead, which leaves GRPO's weights unchanged up to one common factor.
    """
    return weight("GRPO", p, G) / (1 - silent_rate(p, G))


def objective(rule: str | AdvantageRule, p, G: int):
    """The objective J(p) that the rule climbs: J' = w and J(0) = 0. w is a polynomial of degree
    below G, so Gauss-Legendre quadrature is exact."""
    p = np.asarray(p, dtype=float)
    nodes, weights = np.polynomial.legendre.leggauss(G // 2 + 1)
    points = p[..., None] * (nodes + 1) / 2
    return p / 2 * (weight(rule, points, G) @ weights)


# ---------------------------------------------------------------------- progress and noise
#
# The scores of a prompt's right and wrong completions have the means m+ and m-, which differ by
# dm = m+ - m- = grad p / (p q), and the variances v+ and v-, summed over parameters or taken in
# some directions only.


def coefficients(rule: str | AdvantageRule, G: int) -> tuple[np.ndarray, np.ndarray]:
    """alpha and beta for k = 0..G, (G + 1,) each, in the update g = alpha_k s+ - beta_k s- of any
    rule."""
    right, wrong = advantages(rule, G)
    k = np.arange(1, G + 1)
    return np.append(0.0, k * right / G), np.append(-k[::-1] * wrong / G, 0.0)


def noise(rule: str | AdvantageRule, p, G: int, v_right, v_wrong):
    """E[alpha^2 v+ / k + beta^2 v- / (G - k)] over groups: the part of E|g|^2 that comes from the
    spread of scores within each class, and all of it in directions across grad p."""
    alpha, beta = coefficients(rule, G)
    k, chance = np.arange(G + 1), binomial(p, G)
    of_right = chance @ (alpha**2 / np.maximum(k, 1)) * v_right
    of_wrong = chance @ (beta**2 / np.maximum(G - k, 1)) * v_wrong
    return of_right + of_wrong


def mean_square(rule: str | AdvantageRule, p, G: int, v_right, v_wrong, difference_squared):
    """E|g|^2 over groups: `noise` and E[(alpha q + beta p)^2] |dm|^2, as E[g | k] = (alpha q + beta
    p) dm."""
    alpha, beta = coefficients(rule, G)
    mean = np.multiply.outer(1 - p, alpha) + np.multiply.outer(p, beta)
    along = (binomial(p, G) * mean**2).sum(axis=-1)
    return noise(rule, p, G, v_right, v_wrong) + along * difference_squared


def efficiency(rule: str | AdvantageRule, p, G: int, v_ratio=1.0):
    """|E g|^2 over the noise across grad p, per completion; it tends to 1 for G -> infinity under
    any rule that weights the contrast. v_ratio: v- / v+."""
    progress = weight(rule, p, G) * p * (1 - p)  # relative to |dm|
    return progress**2 / (G * noise(rule, p, G, 1.0, v_ratio)) * (1 / p + v_ratio / (1 - p))


def quietest(v_ratio: float) -> Callable:
    """The weight of the contrast with the best `efficiency`, by Cauchy and Schwarz: 1 / (v+ / k +
    v- / (G - k)).

    It is sigma^2 (Dr. GRPO) at v_ratio = v- / v+ = 1, and tends to (G - k) / 2G (MaxRL) for a large
    ratio and to k / 2G for a small one.
    """
    return lambda k, G: (1 + v_ratio) / (2 * G * (1 / k + v_ratio / (G - k)))


def update_norm_squared(
    k: int, G: int, difference_squared: float, v_right: float, v_wrong: float
) -> float:
    """E|g|^2 of GRPO's update given k, for independent scores: sigma^2 |dm|^2 + ((G - k) v+ + k v-)
    / G^2.

    So |g| is sigma times a constant only where the variances vanish (one scalar parameter). Where
    they dominate and are equal it is sqrt(v / G) for *every* mixed k, and Dr. GRPO's, sigma times
    it, is the one that shows disagreement.
    """
    return sigma(k, G) ** 2 * difference_squared + ((G - k) * v_right + k * v_wrong) / G**2


# ---------------------------------------------------------------------- the mean of the others
#
# Take the advantages A = R - c S: S is the number of the n = G - 1 others that are right, and
# c = 1 / (n + kappa). kappa = 0 is RLOO, kappa = inf is A = R. Since S does not depend on the
# completion itself, E[g] = grad p for every kappa, and E|g|^2 has two parts. S ~ Bin(n, p), so
#
#     E|A s|^2 = p a+ E(1 - c S)^2 + q a- E(c S)^2,  E S = n p,  E S^2 = n p (q + n p)
#
# with a+ and a-, the mean |s|^2 of right and of wrong completions. For two completions, E s = 0
# leaves only the products in which each score meets its own reward, once:
#
#     E<A1 s1, A2 s2> = E<(R1 - c R2 - ..) s1, (R2 - c R1 - ..) s2> = (1 + c^2) |grad p|^2
#
# So G Var(g) = E|A s|^2 + (n c^2 - 1) |grad p|^2, a parabola in c that passes c = 0 at the height
# of A = R. Its minimum, at c = 1 / (n + kappa*), gives `best_kappa`. RLOO, at c = 1 / n, is above
# A = R exactly if it is more than twice as far out as the minimum: if kappa* > G - 1. With equally
# long scores (ratio 1) and without signal kappa* = q / p, so that this is p < 1 / G.


def best_kappa(p, G: int, ratio=1.0, signal=0.0):
    """The kappa whose update is quietest. It may be negative, where wrong scores are short.

    ratio: a- / a+. signal: |m+|^2 / a+, the part of a right completion's mean square that is not
    noise, 0 to 1. So the signal never counts for more than one imaginary wrong completion.
    """
    q = 1 - p
    return q * (1 + q * ratio / p + (G - 1) * (ratio - 1)) + signal


def shrunk_variance(p, G: int, kappa, ratio=1.0, signal=0.0):
    """G Var(g) / (p a+), the variance summed over parameters. Without signal it is 1 for A = R."""
    n = G - 1
    c = 1 / (n + kappa)
    return 1 - p * signal - n * p * c * (2 - c * (n + best_kappa(p, G, ratio, signal)))


# ---------------------------------------------------------------------- a calculator


@dataclass
class Config:
    p: float = 0.5  # probability that a completion is right
    group_size: int = 8  # G
    accuracies: str = ""  # a file with a solve rate for each prompt in a line, in place of --p


def expected_step(p: np.ndarray, G: int) -> float:
    """GRPO's expected step over prompts p (n,), as a share of its own in large groups."""
    return expected_sigma(p, G).sum() / np.sqrt(p * (1 - p)).sum()


def describe(p: np.ndarray, G: int) -> str:
    """What groups of G make of prompts p (n,), some of them neither 0 nor 1."""
    right, wrong, open_p = (p**G).mean(), ((1 - p) ** G).mean(), p[(p > 0) & (p < 1)]
    sizes = range(2, LARGEST + 1)
    needed = next((size for size in sizes if expected_step(p, size) >= 0.9), "more")
    quality = [efficiency(name, open_p, G).mean() for name in ("GRPO", "Dr. GRPO")]
    return f"""\
{right + wrong:.0%} of the groups are silent: {right:.0%} all right, {wrong:.0%} all wrong
{G / (1 - right - wrong):.1f} completions for each mixed group, where silent ones are replaced

                                            GRPO    Dr. GRPO
expected step, as a share of large groups'  {expected_step(p, G):4.0%}    {1 - 1 / G:4.0%}
G for 90 % of it                            {needed:>4}      10
efficiency of a completion                  {quality[0]:4.0%}    {quality[1]:4.0%}

The last row takes right and wrong scores to be equally noisy; 100 % is that of large groups.
"""


def main(config: Config) -> None:
    """Print what groups of a size make of one prompt, or of a file of solve rates."""
    p = np.array([config.p])
    if config.accuracies:
        try:
            p = np.loadtxt(config.accuracies, ndmin=1)
        except (OSError, ValueError) as error:
            raise SystemExit(f"--accuracies must name a column of numbers: {error}") from None
    if not 2 <= config.group_size <= LARGEST:
        raise SystemExit(f"--group_size must be 2 to {LARGEST}")
    if set(p) <= {0, 1} or not 0 <= p.min() <= p.max() <= 1:
        raise SystemExit("solve rates must be shares from 0 to 1, and not all of them 0 or 1")
    of = f"{len(p)} prompts, {p.mean():.0%} right" if config.accuracies else f"p = {config.p:g}"
    print(f"{of}, in groups of {config.group_size}\n\n{describe(p, config.group_size)}")


if __name__ == "__main__":
    import tyro

    main(tyro.cli(Config, description=__doc__, use_underscores=True))
