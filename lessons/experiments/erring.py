"""Training with a verifier that errs: random errors, and errors that follow the text. Read by
lesson 17.

    python lessons/experiments/erring.py              all runs: two to three hours on two cores
    python lessons/experiments/erring.py --publish    also writes erring.json here

Every run is `learning.learn` with the losses of the scripts and no KL, in batches of 256
completions, by AdamW, unless its group, below, says otherwise.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import torch

from algorithms import dr_grpo, grpo
from lessons.experiments.harness import grid, paired
from lessons.experiments.harness.grid import GridConfig, rounded
from lessons.experiments.harness.learning import learn, warm_up
from lessons.experiments.losses import LOSSES
from toy_env import arithmetic
from toy_env.arithmetic import Problem, extract_answer
from toy_env.rollout import Rollout
from toy_env.run import parse

RESULTS = Path(__file__).parent / "erring.json"
JS = (0.8, 0.6, 0.4, 0.2, 0.0, -0.2)
WINDOW, FIRST = 4, 4  # batches of a window; windows of the initial slope
COMPOSITIONS = ("accepted", "rejected", "both")  # which errors 1 - J consists of, mostly if J < .2
LONG = 16  # characters


def same_last_digit(problem: Problem, answer: int | None) -> bool:
    """True if the answer is a number without a sign that ends in the right digit."""
    return answer is not None and answer >= 0 and answer % 10 == problem.answer % 10


# Errors that follow the text: (problem, completion, True if it is right) -> True if the verdict is
# wrong. Of the base model's wrong completions 3 % answer 0 and 47 % have the right last digit; of
# its right ones 23 % are long.
WRONG_VERDICTS = {
    "answer 0 accepted": lambda problem, text, right: not right and extract_answer(text) == 0,
    "last digit decides": lambda problem, text, right: (
        not right and same_last_digit(problem, extract_answer(text))
    ),
    "long ones rejected": lambda problem, text, right: right and len(text) > LONG,
}


@dataclass(frozen=True)
class Run:
    """One training run."""

    seed: int
    steps: int = 40
    accepted: float = 0.0  # probability that a wrong completion passes
    rejected: float = 0.0  # probability that a right one does not
    fixed: bool = False  # the same completion of the same problem always gets the same verdict
    form: str = ""  # one of FORMS, or none
    advantage: str = "GRPO"  # or Dr. GRPO, REINFORCE
    batch: int = 256
    clip: str = "symmetric"
    minibatches: int = 4
    faster: float = 1.0  # times AdamW's learning rate
    plain_rate: float = 0.0  # above 0: the rate of gradient descent, in place of AdamW


def errors(J: float, composition: str) -> dict[str, float]:
    """The error rates of a verifier with this J. A rate of more than .8 is kept for J < 0: at
    1 - J = 1 every completion would pass, or none."""
    larger = (1 - J) / 2 if composition == "both" else min(1 - J, 0.8 if J >= 0 else 1.0)
    rates = round(larger, 3), round(1 - J - larger, 3)
    return dict(zip(("accepted", "rejected"), rates if composition == "accepted" else rates[::-1]))


# Settings of Run, by subject
NO_ERRORS = {}
COMPOSED = {(J, made): errors(J, made) for J in JS for made in COMPOSITIONS}
REINFORCE = {"advantage": "REINFORCE"} | errors(0.4, "accepted")
FIXED = {J: errors(J, "both") | {"fixed": True} for J in (0.6, 0.2)}
FORMS = {name: {"form": name} for name in WRONG_VERDICTS}
AS_OFTEN = {  # random errors, as often as two of the forms err at the base model
    "last digit decides": {"accepted": 0.47, "rejected": 0.0},
    "long ones rejected": {"accepted": 0.0, "rejected": 0.23},
}
SIGNAL = [errors(J, "both") | {"batch": 8 * round(32 / J**2)} for J in (0.8, 0.6)]
RANDOM = {
    clip: errors(0.0, "both") | {"clip": clip, "minibatches": 16}
    for clip in ("symmetric", "higher", "none")
}
DESCENT = {"advantage": "Dr. GRPO", "plain_rate": 0.1, "steps": 16}
PLAIN = [DESCENT | errors(J, made) for J, made in product(JS[:3], COMPOSITIONS[:2])]
# How the updates of a batch are made: four that are clipped, four that are not, or one of four
# times the rate, where no ratio has left 1. By gradient descent the rate is divided by J.
UPDATES = {
    "clipped": {},
    "unclipped": {"clip": "none", "steps": 16},
    "one": {"minibatches": 1, "faster": 4.0, "steps": 16},
}
BASE = 0.38  # share of right completions before training
CALM = 2048  # completions of a batch: an eighth of the noise
LAGS = {}  # by ((updates, batch or "AdamW"), J, composition)
for updates, batch, J, made in product(UPDATES, (256, CALM), (1.0, *JS[:3]), COMPOSITIONS):
    by_adamw = UPDATES[updates] | errors(J, made)
    rate = round(0.1 * by_adamw.get("faster", 1) / J, 3)
    descent = {"plain_rate": rate, "faster": 1.0, "batch": batch}
    LAGS[(updates, batch), J, made] = DESCENT | by_adamw | descent
    LAGS[(updates, "AdamW"), J, made] = by_adamw
COIN = COMPOSED[0.0, "both"]
UNCLIPPED_COIN = COIN | {"clip": "none"}
SETTINGS = [NO_ERRORS, *COMPOSED.values(), REINFORCE, *FIXED.values(), *FORMS.values()]
SETTINGS += [*AS_OFTEN.values(), *SIGNAL, *RANDOM.values(), *PLAIN, *LAGS.values(), UNCLIPPED_COIN]

# In brackets are the outcomes in the committed runs, as hundredths: of the accuracy at the end, of
# the slope without errors, or of the arms for which the sentence holds. Commit 7a996b2 computes
# them.
# The first part was written before the first run, but for its last sentence, which was written with
# the last six about slopes. Of the others the first failed. The next was written before the first
# run of gradient descent with errors: E[g] = J (G - 1)/G grad p for Dr. GRPO. It failed for
# acceptances, whose noise acts in second order of the step, so the third was written before runs
# with an eighth of the noise. It failed, too. Then a referee found that the clip is the reason. The
# last six were written before our runs of LAGS without a clip; known from him were, at J = .4,
# acceptances in batches of 2,048 (.84 unclipped, .93 with one update), both kinds clipped (.24),
# AdamW at 256, and the coin on six seeds. Commit 3ece9ab has the measurement of the aim.
PREDICTIONS = """
- failed: At J = .4 rejections leave 15 points more than acceptances. (+0.7 [−0.2, +1.7])
- held: Down to J = .4, rejections alone cost at most 4 points. (+0.4 [−0.8, +1.7]; +0.4 [−1.2,
    +1.9]; −0.6 [−1.9, +0.7])
- failed: Errors of 10 % of either kind (J = .8) cost 2 to 10 points at equal completions. (+0.5
    [−1.0, +1.9])
- held: With 1/J² times the completions an update they cost at most 2, as do 20 % (J = .6). (+1.1
    [−0.4, +2.5]; +1.5 [+0.4, +2.6])
- failed: At J = 0 the accuracy drifts by at most 5 points. (−9.2 [−10.8, −7.6]; −3.8 [−6.6, −1.0];
    −7.1 [−10.0, −4.2])
- held: At J = −.2 accuracy falls by 3 points or more. (−20.9 [−23.3, −18.5])
- failed: Fixed errors cost what fresh ones cost, within 4 points. (−1.2 [−2.9, +0.5]; −10.9
    [−18.4, −3.5])
- held: That the last digit decides costs 20 points more than random errors as often. (−22.1
    [−26.2, −18.0])
- held: Long ones rejected: 5 points more than random errors as often. (−28.0 [−29.9, −26.0])
- held: That 0 always passes, which 3 % of wrong completions answer, is not found in 40 batches.
    (−0.4 [−1.7, +1.0])
- failed: REINFORCE loses 5 points more than GRPO by acceptances at J = .4. (−3.5 [−4.6, −2.4])
- failed: Under random verdicts a symmetric clip ends .01 nats below no clip. (+13.6 [+5.2, +22.0])
- failed: Under random verdicts the clip, clip-higher and none all drift by at most 5 points.
    (−17.6 [−20.1, −15.2]; −16.9 [−19.2, −14.6]; −30.6 [−33.4, −27.9])
- held: Under a coin the accuracy falls 3 points more without the clip than with it. (−5.2 [−8.4,
    −2.1])

- failed: The aim of a minibatch, its cosine with the true gradient, predicts the initial slope
    with AdamW: 11 of 13 arms. (+7.7)
- failed: With gradient descent a slope is J times that without errors, or equal at 1/J times the
    rate: 11 of 12 arms. (+50.0)
- failed: In batches of 2,048, at 1/J times the rate, the slope is that without errors: all 6 arms.
    (+33.3)
- held: Unclipped, in batches of 2,048, each of nine arms keeps .7 of its slope or more. (+96.5;
    +99.5; +98.4; +95.3; +100.1; +94.8; +77.4; +99.0; +75.8)
- held: With one update a batch of 2,048 the intervals of eight of nine arms hold 1. (+100.0)
- failed: Clipped, in batches of 2,048, both kinds cost most at every J, and rejections least.
    (−8.3; +20.7; −3.6; +42.3; +6.7; +54.1)
- held: There the lags that the clip makes rank as B does: a rank correlation of .8 or more.
    (+90.0)
- held: In batches of 256, unclipped, acceptances keep less than half of the slope at J = .4.
    (+25.0)
- held: Under AdamW the slopes with and without the clip differ by at most .15 in all nine arms.
    (−1.8; −0.2; +3.1; −5.2; +1.4; −2.1; −10.6; −0.7; −7.0)
"""


class Verifier:
    """A task for `grpo.collect`, whose rewards err: always on the completions of a form, and
    at random on others. `right` holds the truth about each completion since it was emptied."""

    sample_problems = staticmethod(arithmetic.sample_problems)

    def __init__(self, run: Run) -> None:
        self.run, self.seed, self.right = run, f"verifier {run.seed}", []
        self.fresh = random.Random(self.seed)

    def reward(self, problem: Problem, completion: str) -> float:
        """1.0 if the completion passes, else 0.0."""
        run, right = self.run, arithmetic.reward(problem, completion) == 1
        draws = self.fresh
        if run.fixed:
            draws = random.Random(f"{self.seed} {problem.expression} {completion}")
        wrong_verdict = draws.random() < (run.rejected if right else run.accepted)
        if run.form:
            wrong_verdict |= WRONG_VERDICTS[run.form](problem, completion, right)
        self.right.append(right)
        return float(right != wrong_verdict)


def descend(policy, optimizer, config, step: int) -> None:
    """A step of gradient descent, without a limit of the norm, in place of AdamW's."""
    for weight in policy.parameters():
        weight.data.add_(weight.grad, alpha=-config.learning_rate * warm_up(config, step))


def clipped_loss(script: ModuleType, clip: str) -> Callable | None:
    """The loss of a batch by the name of its clip; None is the script's own."""
    if clip == "none":
        return lambda config, **batch: script.policy_loss(
            config=replace(config, clip_eps=1e6), **batch
        )
    if clip == "higher":
        return lambda config, ref_logps, **batch: LOSSES["clip-higher"](**batch)
    return None


def train(run: Run) -> dict:
    """Train. Returns the true accuracy on held-out problems at the end, and means over windows of
    WINDOW batches of training completions: the share that is right and the share that passes, the
    length, and minus the log-probability of a sampled token, whose mean is the entropy."""
    verifier, batches = Verifier(run), []

    def collect(learner, *others) -> tuple[Rollout, torch.Tensor]:
        verifier.right.clear()
        rollout, rewards = grpo.collect(SimpleNamespace(task=verifier, device="cpu"), *others)
        length = rollout.mask.sum(dim=1).float().mean()
        entropy = -rollout.old_logps[rollout.mask].mean()
        batches.append([np.mean(verifier.right), rewards.double().mean(), length, entropy])
        return rollout, rewards

    script = grpo if run.advantage == "GRPO" else dr_grpo
    settings = {
        "seed": run.seed,
        "steps": run.steps,
        "prompts_per_step": run.batch // 8,
        "num_minibatches": run.minibatches,
        "learning_rate": run.plain_rate or run.faster * script.Config.learning_rate,
    }
    replaced = {"collect": collect, "policy_loss": clipped_loss(script, run.clip)}
    if run.advantage == "REINFORCE":
        replaced["advantages"] = lambda policy, rollout, rewards: rewards
    if run.plain_rate:
        replaced["update"] = descend
    learnt = learn(script, settings, **replaced)
    means = np.array(batches).reshape(-1, WINDOW, 4).mean(axis=1)  # (windows, 4)
    windows = dict(zip(("right", "passed", "length", "entropy"), means.T.tolist()))
    return rounded({"end": learnt["end"], "windows": windows})


# ---------------------------------------------------------------------- results


def select(runs: list[dict], settings: dict) -> list[dict]:
    """The runs with these settings, by seed; settings that are not given are the defaults of
    `Run`."""
    return grid.select(runs, grid.defaults(Run) | settings)


def shares(runs: list[dict], settings: dict, what: str) -> np.ndarray:
    """(seeds, windows): what is right or passed over training, or its length or entropy."""
    return np.array([run["windows"][what] for run in select(runs, settings)])


def values(runs: list[dict], settings: dict, what: str = "end") -> np.ndarray:
    """A number of each seed: the accuracy at the end, or what `shares` has in the last window."""
    if what == "end":
        return np.array([run["end"] for run in select(runs, settings)])
    return shares(runs, settings, what)[:, -1]


def gap(runs: list[dict], one: dict, other: dict, what: str = "end") -> dict:
    """`paired.difference` between two settings."""
    return paired.difference(values(runs, one, what), values(runs, other, what))


def ratio(runs: list[dict], settings: dict, plain: dict) -> np.ndarray:
    """(3,): the ratio of the slopes under two settings, over the first windows by least squares,
    and its 95 % interval (to first order, that of a ratio of means)."""
    rising = (shares(runs, each, "right")[:, :FIRST].T for each in (settings, plain))
    slope, plain_slope = (np.polyfit(range(FIRST), windows, 1)[0] for windows in rising)
    kept = slope.mean() / plain_slope.mean()
    ends = kept + paired.t_interval(slope - kept * plain_slope) / plain_slope.mean()
    return np.append(kept, ends)


def slopes(runs: list[dict]) -> dict:
    """`ratio` of the arms with J of .4 and more to the same arm without errors: by (updates, batch)
    of LAGS. Each is (3, J, composition): ratios, and the two ends of their intervals."""
    kept = {}
    for way in product(UPDATES, (256, CALM, "AdamW")):
        arms = product(JS[:3], COMPOSITIONS)
        ratios = [ratio(runs, LAGS[way, J, made], LAGS[way, 1.0, made]) for J, made in arms]
        kept[way] = np.transpose(ratios).reshape(3, 3, 3)
    return kept


def push_back(p: float, f: float, m: float, G: int = 8) -> float:
    """B: what a clip leaves of Dr. GRPO's advantages at 1/J times the rate, if every token of a
    wrong completion is below the range and every token of a right one above. p: the probability
    that a completion is right; f and m: rates of acceptance and of rejection."""
    return (1 - 1 / G) * (p**2 * m + (1 - p) ** 2 * f + f * m / (1 - f - m))


def made_by_clip(kept: dict) -> tuple[np.ndarray, np.ndarray]:
    """Of the nine arms in batches of 2,048: B, and how much more of its slope an arm keeps without
    the clip."""
    predicted = [push_back(BASE, *errors(*arm).values()) for arm in product(JS[:3], COMPOSITIONS)]
    measured = kept["unclipped", CALM][0] - kept["clipped", CALM][0]
    return np.array(predicted), measured.flatten()


def runs_of(seeds: int) -> list[Run]:
    """All runs, seed by seed."""
    order = product(range(seeds), SETTINGS)
    return list(dict.fromkeys(Run(seed, **settings) for seed, settings in order))


def main(config: GridConfig) -> None:
    """Print the predictions, make the missing runs, and publish with --publish."""
    print(PREDICTIONS)
    grid.results_of(config, train, runs_of(config.seeds), RESULTS)


if __name__ == "__main__":
    main(parse(GridConfig, __doc__))
