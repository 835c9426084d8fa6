"""Training with a verifier that errs: random errors, and errors that follow the text. Read by
lesson 17.

    python lessons/experiments/erring.py              all runs: an hour on two cores
    python lessons/experiments/erring.py --quick      eight of the runs: some minutes
    python lessons/experiments/erring.py --publish    also writes erring.json here

Every run is `learning.learn` with the losses of the scripts and no KL, in batches of 256
completions, by AdamW, unless its group, below, says otherwise.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch

from algorithms import dr_grpo, grpo
from lessons.experiments import grid, paired
from lessons.experiments.estimators import collect
from lessons.experiments.grid import GridConfig, rounded
from lessons.experiments.learning import learn, warm_up
from lessons.workshop.losses import ARMS
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
ALGORITHMS = {
    (name, made): {"advantage": name} | (errors(0.4, made) if made else {})
    for name in ("Dr. GRPO", "REINFORCE")
    for made in ("", "accepted", "rejected")
}
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
PLAIN = {}
for name, J, made in product(("rate", "rate / J"), JS[:3], COMPOSITIONS[:2]):
    rate = 0.1 if name == "rate" else round(0.1 / J, 3)
    PLAIN[name, J, made] = DESCENT | errors(J, made) | {"plain_rate": rate}
CALM = {"batch": 2048}  # an eighth of the noise; five seeds
CALMER = {arm: PLAIN[arm] | CALM for arm in PLAIN if arm[0] == "rate / J"}
CALMER = {"none": DESCENT | CALM} | CALMER
GROUPS = [COMPOSED, ALGORITHMS, FIXED, FORMS, AS_OFTEN, SIGNAL, RANDOM, {"none": DESCENT}, PLAIN]
GROUPS.append(CALMER)


class Verifier:
    """A task for `estimators.collect`, whose rewards err: always on the completions of a form, and
    at random on others. `right` holds the truth about each completion so far."""

    LEVELS, sample_problems = arithmetic.LEVELS, staticmethod(arithmetic.sample_problems)

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

    def truth(self, shape: tuple[int, int]) -> np.ndarray:
        """(P, G): 1 for each of the last completions that is right, 0 for the others."""
        return np.array(self.right[-np.prod(shape) :], dtype=float).reshape(shape)


def descend(policy, optimizer, config, step: int) -> None:
    """A step of gradient descent, without a limit of the norm, in place of AdamW's."""
    for weight in policy.parameters():
        weight.data.add_(weight.grad, alpha=-config.learning_rate * warm_up(config, step))


def clipped_loss(clip: str) -> Callable | None:
    """The loss of a batch by the name of its clip; None is the script's own."""
    wide = grpo.Config(kl_coef=0.0, clip_eps=1e6)
    if clip == "none":
        return lambda config, **batch: grpo.policy_loss(config=wide, **batch)
    if clip == "higher":
        return lambda config, ref_logps, **batch: ARMS["clip-higher"](**batch)
    return None


def train(run: Run) -> dict:
    """Train. Returns the true accuracy on held-out problems at the end, and means over windows of
    WINDOW batches of training completions: the share that is right and the share that passes, the
    length, the silent share of groups, and minus the log-probability of a sampled token, whose mean
    is the entropy."""
    verifier, batches = Verifier(run), []

    def verified(_, policy, tokenizer, config, *draws) -> tuple[Rollout, torch.Tensor]:
        P, G = config.prompts_per_step, config.group_size
        rollout, R = collect(policy, tokenizer, verifier, P, G, *draws)
        length = rollout.mask.sum(dim=1).float().mean().item()
        entropy = -rollout.old_logps[rollout.mask].mean().item()
        silent = (R.std(axis=1) == 0).mean()
        batches.append([verifier.truth(R.shape).mean(), R.mean(), length, silent, entropy])
        return rollout, torch.from_numpy(R)

    settings = {
        "seed": run.seed,
        "steps": run.steps,
        "prompts_per_step": run.batch // 8,
        "num_minibatches": run.minibatches,
    }
    replaced = {"collect": verified, "policy_loss": clipped_loss(run.clip)}
    if run.advantage == "REINFORCE":
        replaced["advantages"] = lambda policy, rollout, rewards, step: rewards
    if run.plain_rate:
        settings["learning_rate"] = run.plain_rate
        replaced["update"] = descend
    script = grpo if run.advantage == "GRPO" else dr_grpo
    learnt = learn(script, settings, **replaced)
    whole = len(batches) // WINDOW * WINDOW
    means = np.array(batches[:whole]).reshape(-1, WINDOW, 5).mean(axis=1)  # (windows, 5)
    names = ("right", "passed", "length", "silent", "entropy")
    return rounded({"end": learnt["end"], "windows": dict(zip(names, means.T.tolist()))})


# ---------------------------------------------------------------------- predictions


def select(runs: list[dict], settings: dict) -> list[dict]:
    """The runs with these settings, by seed; settings that are not given are the defaults of
    `Run`."""
    return grid.select(runs, grid.defaults(Run) | settings)


def values(runs: list[dict], settings: dict, what: str) -> list[float]:
    """A number of each seed: the accuracy at the "end", its "slope" over the first windows (by
    least squares), its slope over half of them ("early"), its "drift" from the first window to the
    last, or the last window of right, passed, length, silent or entropy."""

    chosen = select(runs, settings)
    if what == "end":
        return [run["end"] for run in chosen]
    right = [run["windows"]["right"] for run in chosen]
    if what in ("slope", "early"):
        n = FIRST if what == "slope" else FIRST // 2
        return [float(np.polyfit(range(n), windows[:n], 1)[0]) for windows in right]
    if what == "drift":
        return [windows[-1] - windows[0] for windows in right]
    return [run["windows"][what][-1] for run in chosen]


def ratio(
    runs: list[dict], settings: dict, plain: dict, what: str = "slope"
) -> tuple[float, np.ndarray]:
    """The ratio of the slopes under two settings, and its 95 % interval (to first order, that of a
    ratio of means)."""
    slope, plain_slope = (np.array(values(runs, each, what)) for each in (settings, plain))
    kept = slope.mean() / plain_slope.mean()
    return kept, kept + paired.t_interval(slope - kept * plain_slope) / plain_slope.mean()


def slopes(runs: list[dict]) -> dict[tuple, tuple[float, np.ndarray]]:
    """`ratio` of the arms with J of .4 and more to the arm without errors. Keys are, with AdamW,
    algorithm, J and composition; with descent the first is "rate", "rate / J", "calm" (rate / J in
    batches of 2,048) or "early" (these, by their early slope)."""
    arms = {("GRPO", *arm): settings for arm, settings in COMPOSED.items() if arm[0] >= 0.4}
    arms |= {(name, 0.4, made): settings for (name, made), settings in ALGORITHMS.items() if made}
    kept = {arm: ratio(runs, settings, {"advantage": arm[0]}) for arm, settings in arms.items()}
    kept |= {arm: ratio(runs, settings, DESCENT) for arm, settings in PLAIN.items()}
    for name, what in (("calm", "slope"), ("early", "early")):
        for arm, settings in CALMER.items():
            if arm != "none":
                kept[(name, *arm[1:])] = ratio(runs, settings, CALMER["none"], what)
    return kept


# Written before the first run. Each prediction is that all differences between its pairs of
# settings lie between two bounds, in hundredths: of the accuracy at the end, unless something else
# is named.
NO_ERRORS, J_0 = {}, [COMPOSED[0.0, made] for made in COMPOSITIONS]
PREDICTIONS = {
    "composition": (
        (15, 100),
        "At J = .4 rejections leave 15 points more than acceptances.",
        [(COMPOSED[0.4, "rejected"], COMPOSED[0.4, "accepted"])],
    ),
    "rejections": (
        (-4, 1),
        "Down to J = .4, rejections alone cost at most 4 points.",
        [(COMPOSED[J, "rejected"], NO_ERRORS) for J in (0.8, 0.6, 0.4)],
    ),
    "a tenth each": (
        (-10, -2),
        "Errors of 10 % of either kind (J = .8) cost 2 to 10 points at equal completions.",
        [(COMPOSED[0.8, "both"], NO_ERRORS)],
    ),
    "signal": (
        (-2, 2),
        "With 1/J² times the completions an update they cost at most 2, as do 20 % (J = .6).",
        [(settings, NO_ERRORS) for settings in SIGNAL.values()],
    ),
    "random": (
        (-5, 5),
        "At J = 0 the accuracy drifts by at most 5 points.",
        [(each, None) for each in J_0],
        "drift",
    ),
    "reversed": (
        (-40, -3),
        "At J = −.2 accuracy falls by 3 points or more.",
        [(COMPOSED[-0.2, "both"], None)],
        "drift",
    ),
    "fixed": (
        (-4, 4),
        "Fixed errors cost what fresh ones cost, within 4 points.",
        [(settings, COMPOSED[J, "both"]) for J, settings in FIXED.items()],
    ),
    "last digit": (
        (-100, -20),
        "That the last digit decides costs 20 points more than random errors as often.",
        [(FORMS["last digit decides"], AS_OFTEN["last digit decides"])],
    ),
    "long": (
        (-100, -5),
        "Long ones rejected: 5 points more than random errors as often.",
        [(FORMS["long ones rejected"], AS_OFTEN["long ones rejected"])],
    ),
    "answer 0": (
        (-3, 3),
        "That 0 always passes, which 3 % of wrong completions answer, is not found in 40 batches.",
        [(FORMS["answer 0 accepted"], NO_ERRORS)],
    ),
    "REINFORCE": (
        (-100, -5),
        "REINFORCE loses 5 points more than GRPO by acceptances at J = .4.",
        [(ALGORITHMS["REINFORCE", "accepted"], COMPOSED[0.4, "accepted"])],
    ),
    "entropy": (
        (-100, -1),
        "Under random verdicts a symmetric clip ends .01 nats below no clip.",
        [(RANDOM["symmetric"], RANDOM["none"])],
        "entropy",
    ),
    "clip": (
        (-5, 5),
        "Under random verdicts the clip, clip-higher and none all drift by at most 5 points.",
        [(each, None) for each in RANDOM.values()],
        "drift",
    ),
}
# A first prediction of the slopes with AdamW, from the cosine of a minibatch's gradient with the
# true one, failed (1 of 13 arms; commit 3ece9ab has the measurement). This one was written before
# the first run of gradient descent with errors: E[g] = J (G - 1)/G grad p for Dr. GRPO.
SLOPES = (
    "With gradient descent a slope is J times that without errors, or equal at 1/J times the rate: "
    "11 of 12 arms."
)
# It failed for acceptances (see the slopes), whose noise acts in second order of the step. So this
# one was written before runs with an eighth of the noise. It failed, too; over the first half of
# these windows ("early", looked at afterwards) all six arms agree.
CALM_SLOPES = (
    "In batches of 2,048, at 1/J times the rate, the slope is that without errors: all 6 arms."
)


def gap(runs: list[dict], one: dict, other: dict | None, what: str = "end") -> dict:
    """`paired.difference` between two settings, or from 0 if there is no other, over the seeds."""
    ours = values(runs, one, what)
    theirs = [0.0] * len(ours) if other is None else values(runs, other, what)
    return paired.difference(ours, theirs)


def verdicts(runs: list[dict]) -> str:
    """The predictions and their outcomes, as a table in Markdown."""
    sentences = [sentence for _, sentence, *_ in PREDICTIONS.values()]
    outcomes = dict(zip(sentences, grid.judge(runs, PREDICTIONS, gap).values()))
    kept = slopes(runs)
    for sentence, names, least in ((SLOPES, ("rate", "rate / J"), 11), (CALM_SLOPES, ("calm",), 6)):
        within = []
        for (name, J, *_), (_, (low, high)) in kept.items():
            if name in names:
                within.append(low <= (J if name == "rate" else 1) <= high)
        outcomes[sentence] = sum(within) >= least, f"{sum(within)} of {len(within)}"
    return grid.verdict_table(outcomes)


def runs_of(seeds: int) -> list[Run]:
    """All runs, seed by seed; those in large batches have five seeds."""
    settings = [{}, *(each for group in GROUPS for each in group.values())]
    runs = []
    for seed in range(seeds):
        for each in settings:
            if seed < 5 or not CALM.items() <= each.items():
                runs.append(Run(**{"seed": seed, "steps": 40} | each))
    return runs


def main(config: GridConfig) -> None:
    """Make the missing runs, print the outcomes of the predictions, and publish with --publish."""
    results = grid.results_of(config, train, runs_of(config.seeds), RESULTS)
    print(*(results if config.quick else [verdicts(results)]), sep="\n")


if __name__ == "__main__":
    main(parse(GridConfig, __doc__))
