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
from types import ModuleType

import numpy as np
import torch

from algorithms import dr_grpo, grpo
from lessons.experiments.estimators import collect
from lessons.experiments.harness import grid, paired
from lessons.experiments.harness.grid import GridConfig, rounded
from lessons.experiments.harness.learning import learn, warm_up
from lessons.experiments.losses import ARMS
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
    steps: int
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
    larger = min(1 - J, 0.8 if J >= 0 else 1.0)
    smaller = 1 - J - larger
    accepted, rejected = (larger, smaller) if composition == "accepted" else (smaller, larger)
    if composition == "both":
        accepted = rejected = (1 - J) / 2
    return {"accepted": round(accepted, 3), "rejected": round(rejected, 3)}


# Groups of runs, by their subject: the settings of Run.
COMPOSED = {(J, made): errors(J, made) for J in JS for made in COMPOSITIONS}
REINFORCE = {"accepted": {"advantage": "REINFORCE"} | errors(0.4, "accepted")}
FIXED = {J: errors(J, "both") | {"fixed": True} for J in (0.6, 0.2)}
FORMS = {name: {"form": name} for name in WRONG_VERDICTS}
AS_OFTEN = {  # random errors, as often as two of the forms err at the base model
    "last digit decides": {"accepted": 0.47, "rejected": 0.0},
    "long ones rejected": {"accepted": 0.0, "rejected": 0.23},
}
SIGNAL = {J: errors(J, "both") | {"batch": 8 * round(32 / J**2)} for J in (0.8, 0.6)}
RANDOM = {
    clip: errors(0.0, "both") | {"clip": clip, "minibatches": 16}
    for clip in ("symmetric", "higher", "none")
}
DESCENT = {"advantage": "Dr. GRPO", "plain_rate": 0.1, "steps": 16}
PLAIN = {(J, made): DESCENT | errors(J, made) for J, made in product(JS[:3], COMPOSITIONS[:2])}
# How the updates of a batch are made: four that are clipped, four that are not, or one of four
# times the rate, where no ratio has left 1. By gradient descent the rate is divided by J.
UPDATES = {
    "clipped": {},
    "unclipped": {"clip": "none"},
    "one": {"minibatches": 1, "faster": 4.0},
}
BASE = 0.38  # share of right completions before training
CALM = 2048  # completions of a batch: an eighth of the noise
LAGS = {}
for updates, batch, J, made in product(UPDATES, (256, CALM), (1.0, *JS[:3]), COMPOSITIONS):
    rate = round(0.1 * UPDATES[updates].get("faster", 1) / J, 3)
    descent = DESCENT | UPDATES[updates] | errors(J, made) | {"batch": batch}
    LAGS[updates, batch, J, made] = descent | {"plain_rate": rate, "faster": 1.0}
    if updates == "clipped":  # AdamW: the runs of COMPOSED
        LAGS[updates, "AdamW", J, made] = errors(J, made)
    else:
        LAGS[updates, "AdamW", J, made] = UPDATES[updates] | errors(J, made) | {"steps": 16}
COIN = {"clipped": COMPOSED[0.0, "both"]}
COIN["unclipped"] = COIN["clipped"] | UPDATES["unclipped"]
GROUPS = [COMPOSED, REINFORCE, FIXED, FORMS, AS_OFTEN, SIGNAL, RANDOM, PLAIN, LAGS, COIN]


class Verifier:
    """A task for `estimators.collect`, whose rewards err: always on the completions of a form, and
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
        return lambda config, ref_logps, **batch: ARMS["clip-higher"](**batch)
    return None


def train(run: Run) -> dict:
    """Train. Returns the true accuracy on held-out problems at the end, and means over windows of
    WINDOW batches of training completions: the share that is right and the share that passes, the
    length, and minus the log-probability of a sampled token, whose mean is the entropy."""
    verifier, batches = Verifier(run), []

    def verified(_, policy, tokenizer, config, *draws) -> tuple[Rollout, torch.Tensor]:
        P, G = config.prompts_per_step, config.group_size
        verifier.right.clear()
        rollout, R = collect(policy, tokenizer, verifier, P, G, *draws)
        length = rollout.mask.sum(dim=1).float().mean().item()
        entropy = -rollout.old_logps[rollout.mask].mean().item()
        batches.append([np.mean(verifier.right), R.mean(), length, entropy])
        return rollout, torch.from_numpy(R)

    script = grpo if run.advantage == "GRPO" else dr_grpo
    settings = {
        "seed": run.seed,
        "steps": run.steps,
        "prompts_per_step": run.batch // 8,
        "num_minibatches": run.minibatches,
        "learning_rate": run.plain_rate or run.faster * script.Config.learning_rate,
    }
    replaced = {"collect": verified, "policy_loss": clipped_loss(script, run.clip)}
    if run.advantage == "REINFORCE":
        replaced["advantages"] = lambda policy, rollout, rewards, step: rewards
    if run.plain_rate:
        replaced["update"] = descend
    learnt = learn(script, settings, **replaced)
    means = np.array(batches).reshape(-1, WINDOW, 4).mean(axis=1)  # (windows, 4)
    names = ("right", "passed", "length", "entropy")
    return rounded({"end": learnt["end"], "windows": dict(zip(names, means.T.tolist()))})


# ---------------------------------------------------------------------- predictions


def select(runs: list[dict], settings: dict) -> list[dict]:
    """The runs with these settings, by seed; settings that are not given are the defaults of
    `Run`."""
    return grid.select(runs, grid.defaults(Run) | settings)


def values(runs: list[dict], settings: dict, what: str) -> list[float]:
    """A number of each seed: the accuracy at the "end", its "slope" over the first windows (by
    least squares), its "drift" from the first window to the last, or the last window of right,
    passed, length or entropy."""
    chosen = select(runs, settings)
    if what == "end":
        return [run["end"] for run in chosen]
    right = [run["windows"]["right"] for run in chosen]
    if what == "slope":
        return [float(np.polyfit(range(FIRST), windows[:FIRST], 1)[0]) for windows in right]
    if what == "drift":
        return [windows[-1] - windows[0] for windows in right]
    return [run["windows"][what][-1] for run in chosen]


def ratio(runs: list[dict], settings: dict, plain: dict) -> np.ndarray:
    """(3,): the ratio of the slopes under two settings, and its 95 % interval (to first order, that
    of a ratio of means)."""
    pairs = zip(values(runs, settings, "slope"), values(runs, plain, "slope"))  # seeds of both
    slope, plain_slope = np.array(list(pairs)).T
    kept = slope.mean() / plain_slope.mean()
    ends = kept + paired.t_interval(slope - kept * plain_slope) / plain_slope.mean()
    return np.append(kept, ends)


def slopes(runs: list[dict]) -> dict:
    """`ratio` of the arms with J of .4 and more to the same arm without errors: by (updates, batch)
    of LAGS, and by "rate" for gradient descent whose rate is not divided by J, without both kinds.
    Each is (3, J, composition): ratios, and the two ends of their intervals."""
    kept, at_one_rate = {}, [ratio(runs, settings, DESCENT) for settings in PLAIN.values()]
    kept["rate"] = np.transpose(at_one_rate).reshape(3, 3, 2)
    for updates, batch in product(UPDATES, (256, CALM, "AdamW")):
        ratios = []
        for J, made in product(JS[:3], COMPOSITIONS):
            pair = LAGS[updates, batch, J, made], LAGS[updates, batch, 1.0, made]
            ratios.append(ratio(runs, *pair))
        kept[updates, batch] = np.transpose(ratios).reshape(3, 3, 3)
    return kept


# Written before the first run. Each prediction is that all differences between its pairs of
# settings lie between two bounds, in hundredths: of the accuracy at the end, unless something else
# is named.
NO_ERRORS = {}
PREDICTIONS = [
    (
        (15, 100),
        "At J = .4 rejections leave 15 points more than acceptances.",
        [(COMPOSED[0.4, "rejected"], COMPOSED[0.4, "accepted"])],
    ),
    (
        (-4, 1),
        "Down to J = .4, rejections alone cost at most 4 points.",
        [(COMPOSED[J, "rejected"], NO_ERRORS) for J in (0.8, 0.6, 0.4)],
    ),
    (
        (-10, -2),
        "Errors of 10 % of either kind (J = .8) cost 2 to 10 points at equal completions.",
        [(COMPOSED[0.8, "both"], NO_ERRORS)],
    ),
    (
        (-2, 2),
        "With 1/J² times the completions an update they cost at most 2, as do 20 % (J = .6).",
        [(settings, NO_ERRORS) for settings in SIGNAL.values()],
    ),
    (
        (-5, 5),
        "At J = 0 the accuracy drifts by at most 5 points.",
        [(COMPOSED[0.0, made], None) for made in COMPOSITIONS],
        "drift",
    ),
    (
        (-40, -3),
        "At J = −.2 accuracy falls by 3 points or more.",
        [(COMPOSED[-0.2, "both"], None)],
        "drift",
    ),
    (
        (-4, 4),
        "Fixed errors cost what fresh ones cost, within 4 points.",
        [(settings, COMPOSED[J, "both"]) for J, settings in FIXED.items()],
    ),
    (
        (-100, -20),
        "That the last digit decides costs 20 points more than random errors as often.",
        [(FORMS["last digit decides"], AS_OFTEN["last digit decides"])],
    ),
    (
        (-100, -5),
        "Long ones rejected: 5 points more than random errors as often.",
        [(FORMS["long ones rejected"], AS_OFTEN["long ones rejected"])],
    ),
    (
        (-3, 3),
        "That 0 always passes, which 3 % of wrong completions answer, is not found in 40 batches.",
        [(FORMS["answer 0 accepted"], NO_ERRORS)],
    ),
    (
        (-100, -5),
        "REINFORCE loses 5 points more than GRPO by acceptances at J = .4.",
        [(REINFORCE["accepted"], COMPOSED[0.4, "accepted"])],
    ),
    (
        (-100, -1),
        "Under random verdicts a symmetric clip ends .01 nats below no clip.",
        [(RANDOM["symmetric"], RANDOM["none"])],
        "entropy",
    ),
    (
        (-5, 5),
        "Under random verdicts the clip, clip-higher and none all drift by at most 5 points.",
        [(each, None) for each in RANDOM.values()],
        "drift",
    ),
    (  # written with the last six of `about_slopes`
        (-100, -3),
        "Under a coin the accuracy falls 3 points more without the clip than with it.",
        [(COIN["unclipped"], COIN["clipped"])],
        "drift",
    ),
]


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


def holding(slopes: np.ndarray, value) -> np.ndarray:
    """True for each arm of one way to make updates whose interval holds a value."""
    _, low, high = slopes
    return (low <= value) & (value <= high)


def about_slopes(kept: dict) -> list[tuple]:
    """Predictions about `slopes`, in hundredths as well: bounds, sentence, and what is to lie
    between them: shares of a slope, or of the arms for which the sentence holds.

    The first failed. The next was written before the first run of gradient descent with errors:
    E[g] = J (G - 1)/G grad p for Dr. GRPO. It failed for acceptances, whose noise acts in second
    order of the step, so the third was written before runs with an eighth of the noise. It failed,
    too. Then a referee found that the clip is the reason. The others were written before our runs
    of LAGS without a clip; known from him were, at J = .4, acceptances in batches of 2,048 (.84
    unclipped, .93 with one update), both kinds clipped (.24), AdamW at 256, and the coin on six
    seeds.
    """
    unclipped, clipped = kept["unclipped", CALM][0], kept["clipped", CALM][0]
    divided, calm = (holding(kept["clipped", n][:, :, :2], 1) for n in (256, CALM))  # one kind
    descent = np.append(holding(kept["rate"], np.array(JS[:3])[:, None]), divided)
    ranks = [values.argsort().argsort() for values in made_by_clip(kept)]
    return [
        (
            (84, 100),
            "The aim of a minibatch, its cosine with the true gradient, predicts the initial slope "
            "with AdamW: 11 of 13 arms.",
            1 / 13,  # commit 3ece9ab has the measurement
        ),
        (
            (91, 100),
            "With gradient descent a slope is J times that without errors, or equal at 1/J times "
            "the rate: 11 of 12 arms.",
            descent.mean(),
        ),
        (
            (100, 100),
            "In batches of 2,048, at 1/J times the rate, the slope is that without errors: all 6 "
            "arms.",
            calm.mean(),
        ),
        (
            (70, np.inf),
            "Unclipped, in batches of 2,048, each of nine arms keeps .7 of its slope or more.",
            unclipped,
        ),
        (
            (88, 100),
            "With one update a batch of 2,048 the intervals of eight of nine arms hold 1.",
            holding(kept["one", CALM], 1).mean(),
        ),
        (
            (0, np.inf),
            "Clipped, in batches of 2,048, both kinds cost most at every J, and rejections least.",
            np.diff(clipped[:, [2, 0, 1]]),
        ),
        (
            (80, 100),
            "There the lags that the clip makes rank as B does: a rank correlation of .8 or more.",
            np.corrcoef(*ranks)[0, 1],
        ),
        (
            (-np.inf, 50),
            "In batches of 256, unclipped, acceptances keep less than half of the slope at J = .4.",
            kept["unclipped", 256][0, 2, 0],
        ),
        (
            (-15, 15),
            "Under AdamW the slopes with and without the clip differ by at most .15 in all nine "
            "arms.",
            kept["unclipped", "AdamW"][0] - kept["clipped", "AdamW"][0],
        ),
    ]


def gap(runs: list[dict], one: dict, other: dict | None, what: str = "end") -> dict:
    """`paired.difference` between two settings, or from 0 if there is no other, over the seeds."""
    ours = values(runs, one, what)
    theirs = [0.0] * len(ours) if other is None else values(runs, other, what)
    return paired.difference(*zip(*zip(ours, theirs)))  # the seeds of both


def verdicts(runs: list[dict]) -> str:
    """The predictions and their outcomes, as a table in Markdown."""
    predictions = grid.with_gaps(runs, PREDICTIONS, gap)
    for bounds, sentence, numbers in about_slopes(slopes(runs)):
        gaps = [{"difference": number, "interval": None} for number in np.ravel(numbers)]
        predictions.append((bounds, sentence, gaps))
    return grid.verdict_table(grid.judge(predictions))


def runs_of(seeds: int) -> list[Run]:
    """All runs, seed by seed."""
    runs = []
    for seed in range(seeds):
        settings = [{}, *(each for group in GROUPS for each in group.values())]
        runs += [Run(**{"seed": seed, "steps": 40} | each) for each in settings]
    return list(dict.fromkeys(runs))


def main(config: GridConfig) -> None:
    """Make the missing runs, print the outcomes of the predictions, and publish with --publish."""
    results = grid.results_of(config, train, runs_of(config.seeds), RESULTS)
    print(verdicts(results))


if __name__ == "__main__":
    main(parse(GridConfig, __doc__))
