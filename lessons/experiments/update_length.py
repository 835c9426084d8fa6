"""How long is a group's update, on two tasks, trained at four group sizes? What lesson 13 is made from.

    python lessons/experiments/update_length.py              GRPO and Dr. GRPO at G = 4, 8, 16 and 64, 3 seeds
    python lessons/experiments/update_length.py --quick      1 seed, 4 prompts, G = 8 alone
    python lessons/experiments/update_length.py --publish    also writes update_length.npz here

The runs are the scripts' own `train`, 256 completions a step. At three steps of training many answers to each held-out
prompt are drawn. One half of them gives p, the class variances v+ and v-, and |dm|^2, and with these the predicted
E|g|^2 of a group with k of G right; the other half forms groups, with every k and as they were drawn. The score of
every different answer is computed exactly, and lengths follow from inner products.
"""

from toy_env import take_over_ctrl_c

if __name__ == "__main__":
    take_over_ctrl_c()

import random
import shutil
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lessons import identity
from lessons.experiments import update_length_tables
from lessons.experiments.grid import Grid, GridConfig
from lessons.experiments.update_length_tables import EVERY_TOKEN, GROUP_SIZES, KS, MEAN, RESULTS
from toy_env.cli import at_least, run_main, silence
from toy_env.evaluate import held_out
from toy_env.model import load_policy
from toy_env.rollout import Rollout, completion_logps, sample
from toy_env.save import saves, step_of
from toy_env.tasks import TASKS, base_model, load_task

SCRIPTS = {"GRPO": "grpo", "Dr. GRPO": "dr_grpo"}
TRAINED_AT, BATCH = (4, 8, 16, 64), 256  # group sizes; completions a step
STEPS = (0, 20, 60)  # of training, to measure at
MOST_KS = max(map(len, KS.values()))
GROUPS = 128  # with each k, of each prompt

# Written down before the first measurement, and before the code that makes it.
PREDICTIONS = {
    "formula": "Lengths predicted from the other half of a prompt's answers are within 10 % of the measured ones "
    "(median over prompts) at every G and k, on both tasks, at every stage.",
    "arithmetic": "v- is several times v+ at every stage, so that at G = 4 one wrong answer of four moves the model "
    "further than an even split, and at G = 64 less far.",
    "expressions": "Before training v- is at most v+ on most prompts, and the profile leans the other way: at G = 4 "
    "one right answer of four moves the model further than an even split, and one wrong one does not.",
    "training": "On expressions training turns it round: what is still wrong at step 60 are miscalculations, no longer "
    "the repeated number, and v-/v+ is above 1 on most prompts. On arithmetic it stays above 4.",
    "noise": "At every stage of both tasks an even split has as much signal as noise at a G between 4 and 64.",
    "trained at": "The G that a policy was trained at shows in its accuracy alone: at G = 8 the profiles of policies "
    "trained at 4 and at 64 differ less than those of steps 20 and 60.",
    "silent": "At every G and stage the silent share is the mean of p^G + q^G, p from other answers, within 2 points.",
    "mass": "On arithmetic prompts with p up to .1 or above .9 have a larger share of the summed |g| than of the "
    "summed sigma, at every G; on expressions, before training, they have not.",
}


@dataclass
class Config(GridConfig):
    seeds: at_least(1, 1000) = 3  # training seeds 0, 1, ...
    prompts: at_least(1, 1000) = 16  # held-out prompts
    answers: at_least(128, 2**16) = 2048  # to each: half to predict from, half to form groups of, of up to 64
    quick: bool = False  # 1 seed, 4 prompts, 1,024 answers, trained at G = 8 alone; in the folder OUTPUT-quick
    output: str = "runs/update_length"  # folder for the runs and the measurements

    QUICK = {"seeds": 1, "prompts": 4, "answers": 1024}


@dataclass(frozen=True)
class Run:
    """A training run that is measured at some steps; without a script the base model, which is measured at step 0."""

    task: str
    seed: int
    script: str
    G: int
    prompts: int
    answers: int

    def name(self) -> str:
        return f"{self.task}-{self.script or 'base'}-{self.G}-{self.seed}"

    def steps(self) -> tuple[int, ...]:
        return STEPS[1:] if self.script else STEPS[:1]

    def draws(self, step: int) -> int:
        """The seed of everything that is drawn to measure at a step; no two measurements share it."""
        return random.Random(f"{self.name()}-{step}").getrandbits(62)


def runs_of(config: Config) -> list[Run]:
    """All runs, each task's and seed's base model first."""
    trained_at, sizes = (8,) if config.quick else TRAINED_AT, (config.prompts, config.answers)
    return [
        Run(task, seed, script, G, *sizes) for seed in range(config.seeds) for task in TASKS
        for script, G in (("", 0), *((script, G) for G in trained_at for script in SCRIPTS.values()))
    ]  # fmt: skip


# ---------------------------------------------------------------------- one prompt


@dataclass
class Answers:
    """Answers to one prompt. U of them are different, and an answer is represented by its index among these."""

    drawn: np.ndarray  # (n,) the index of every answer, in the order in which they were drawn
    right: np.ndarray  # (U,) bool
    inner: np.ndarray  # (2, U, U) inner products of the scores, and of the scores over their lengths
    different: Rollout | None = None  # the U answers, one row each
    scores: Tensor | None = None  # (U, parameters): gradient of the log-probability of each

    def of_class(self, drawn: np.ndarray, right: bool) -> np.ndarray:
        """The right ones of some answers, or the wrong ones."""
        return drawn[self.right[drawn] == right]


def draw(policy, tokenizer, task, problem, n: int, generator: torch.Generator) -> Answers:
    """n answers of a policy to a problem."""
    rollout = sample(policy, tokenizer, [problem.prompt], n, 56, 1.0, generator)
    keys = [*zip(rollout.texts, rollout.truncated.tolist())]  # a text cut at the limit differs from the same one ended
    index = {key: u for u, key in enumerate(dict.fromkeys(keys))}
    different = rollout[torch.tensor([keys.index(key) for key in index])]
    scores = torch.stack([score(policy, different, u) for u in range(len(different))])
    inner, lengths = (scores.double() @ scores.double().T).numpy(), different.mask.sum(dim=1).numpy()
    return Answers(
        drawn=np.array([index[key] for key in keys]),
        right=np.array([task.reward(problem, text) == 1 for text in different.texts]),
        inner=np.stack([inner, inner / np.outer(lengths, lengths)]),
        different=different,
        scores=scores,
    )


def score(policy, rollout: Rollout, row: int) -> Tensor:
    """(parameters,): the gradient of the log-probability of one answer, that is of all its tokens and the EOS."""
    total = completion_logps(policy, rollout[torch.tensor([row])], temperature=1.0).sum()
    return torch.cat([part.flatten() for part in torch.autograd.grad(total, list(policy.parameters()))])


def parts(answers: Answers, drawn: np.ndarray, inner: np.ndarray) -> tuple[float, float, float]:
    """Unbiased v+, v- and |dm|^2 from some answers: the variances of the scores of right and of wrong answers, summed
    over parameters (ddof 1), and the squared length of the difference of their means, less what the noise in the means
    adds. nan if there are fewer than two right or two wrong answers."""
    means, variances, noise = [], [], 0.0
    for right in (True, False):
        of_class = answers.of_class(drawn, right)
        n = len(of_class)
        if n < 2:
            return np.nan, np.nan, np.nan
        mean = np.bincount(of_class, minlength=len(answers.right)) / n
        variance = (mean @ np.diag(inner) - mean @ inner @ mean) * n / (n - 1)
        means.append(mean)
        variances.append(variance)
        noise += variance / n
    contrast = means[0] - means[1]
    return *variances, contrast @ inner @ contrast - noise


def with_k_right(answers: Answers, drawn: np.ndarray, k: int, G: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """(n, G): random groups of some answers, k of them right; (0, G) if there are too few right or wrong answers."""
    of_class = ((answers.of_class(drawn, True), k), (answers.of_class(drawn, False), G - k))
    if any(len(part) < m for part, m in of_class):
        n = 0
    chosen = [part[rng.random((n, len(part))).argsort(axis=1)[:, :m]] for part, m in of_class]
    return np.concatenate(chosen, axis=1)


def squared_lengths(answers: Answers, groups: np.ndarray, script: str, inner: np.ndarray) -> np.ndarray:
    """(M,): |g|^2 of each group's update g, the mean of the script's advantages times scores. groups: (M, G)."""
    R = torch.from_numpy(answers.right[groups].astype(float))
    A = import_module(f"algorithms.{script}").compute_advantages(rewards=R).numpy() / groups.shape[1]
    weights = np.zeros((len(groups), len(answers.right)))
    np.add.at(weights, (np.arange(len(groups))[:, None], groups), A)
    return np.maximum((weights @ inner * weights).sum(axis=1), 0)


def identity_error(policy, answers: Answers, script: str, k: int = 3, G: int = 8) -> float:
    """Relative difference between minus the gradient of the script's own loss on one group, and sigma (Dr. GRPO: its
    square) times the contrast of the scores; nan if there are too few right or wrong answers for such a group."""
    of_class = [answers.of_class(answers.drawn, right)[:n] for right, n in ((True, k), (False, G - k))]
    group = torch.from_numpy(np.concatenate(of_class))
    if len(group) < G:
        return np.nan
    module, rewards = import_module(f"algorithms.{script}"), torch.arange(G) < k
    config, rollout, advantages = module.Config(), answers.different[group], module.compute_advantages
    logps = completion_logps(policy, rollout, config.temperature)
    loss = module.policy_loss(
        logps=logps, old_logps=logps.detach(), ref_logps=logps.detach(), mask=rollout.mask, config=config,
        advantages=advantages(rewards=rewards.to(answers.scores)[None]).view(-1, 1),
    )  # fmt: skip
    left = -torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(policy.parameters()))])
    lengths, sigma = rollout.mask.sum(dim=1, keepdim=True), float(identity.sigma(k, G))
    scores = answers.scores[group] / (lengths if script == "grpo" else config.max_new_tokens)
    right = sigma ** (1 if script == "grpo" else 2) * (scores[:k].mean(dim=0) - scores[k:].mean(dim=0))
    return ((left - right).norm() / right.norm()).item()


def measure_prompt(answers: Answers, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """All numbers of one prompt at one step of training. Prediction and measurement share no answer."""
    first, second = np.array_split(answers.drawn, 2)
    numbers = {
        "right": np.array([answers.right[part].sum() for part in (first, second)]),
        "different": np.array([len(set(answers.of_class(answers.drawn, right))) for right in (True, False)]),
        "parts": np.array([parts(answers, first, inner) for inner in answers.inner]),  # (2, 3): v+, v-, |dm|^2
        "squared": np.full((len(GROUP_SIZES), 2, MOST_KS), np.nan),  # mean |g|^2 of GRPO with each k of KS
        # groups as drawn: shares with k = 0, below G / 4, from there to 3 G / 4, above, and k = G
        "drawn": np.full((len(GROUP_SIZES), 5), np.nan),
        # and their means of |g| and sigma for GRPO, of |g| and sigma^2 for Dr. GRPO
        "length": np.full((len(GROUP_SIZES), 4), np.nan),
    }
    for i, G in enumerate(GROUP_SIZES):
        groups = second[: len(second) // G * G].reshape(-1, G)
        k = answers.right[groups].sum(axis=1)
        numbers["drawn"][i] = [
            (k == 0).mean(), ((k > 0) & (4 * k < G)).mean(), ((4 * k >= G) & (4 * k <= 3 * G)).mean(),
            ((4 * k > 3 * G) & (k < G)).mean(), (k == G).mean(),
        ]  # fmt: skip
        for j, (script, kind) in enumerate((("grpo", MEAN), ("dr_grpo", EVERY_TOKEN))):
            lengths = np.sqrt(squared_lengths(answers, groups, script, answers.inner[kind]))
            numbers["length"][i, 2 * j : 2 * j + 2] = lengths.mean(), (identity.sigma(k, G) ** (j + 1)).mean()
        for j, k in enumerate(KS[G]):
            groups = with_k_right(answers, second, k, G, GROUPS, rng)
            if len(groups):
                for kind, inner in enumerate(answers.inner):
                    numbers["squared"][i, kind, j] = squared_lengths(answers, groups, "grpo", inner).mean()
    return numbers


# ---------------------------------------------------------------------- all of them


def measure(run: Run, folder: Path) -> dict:
    """Train a run and measure it at each of its steps. Returns the numbers of each step, lists (prompts, ...)."""
    torch.set_num_threads(1)
    task, stages = load_task(run.task), []
    problems = held_out(task, -(-run.prompts // len(task.LEVELS)), task.LEVELS)[: run.prompts]
    for step in run.steps():
        policy, tokenizer = load_policy(train(run, step, folder / run.name()) if run.script else base_model(task))
        generator = torch.Generator().manual_seed(run.draws(step))
        rng, prompts = np.random.default_rng(run.draws(step)), []
        for problem in problems:
            answers = draw(policy, tokenizer, task, problem, run.answers, generator)
            error = np.array([identity_error(policy, answers, script) for script in SCRIPTS.values()])
            prompts.append(measure_prompt(answers, rng) | {"error": error})
        stages.append({"step": step} | {name: np.stack([prompt[name] for prompt in prompts]) for name in prompts[0]})
    return {"stages": stages}


def train(run: Run, step: int, folder: Path) -> str:
    """Train a run up to a step, from where it stands. Returns the folder of the policy."""
    script, at = import_module(f"algorithms.{run.script}"), next(map(step_of, saves(folder)), -1)
    if not 0 <= at <= step:
        shutil.rmtree(folder, ignore_errors=True)
    settings = script.Config(
        task=run.task, seed=run.seed, group_size=run.G, prompts_per_step=BATCH // run.G, steps=step,
        run_dir=str(folder), resume=0 <= at <= step, eval_every=0, eval_problems=16, device="cpu",
    )  # fmt: skip
    if at != step or not (folder / "results.json").is_file():  # written last, when checkpoint/ is of this step
        with silence():
            script.train(settings)
    return str(folder / "checkpoint")


def collect(results: list[dict]) -> dict[str, np.ndarray]:
    """All measurements: (stages, prompts, ...) each, and the task, seed, script, G and step of each stage. A task that
    has fewer held-out prompts gets rows of nan."""
    stages = [(run, stage) for run in results for stage in run["stages"]]
    most = max(len(stage["right"]) for _, stage in stages)
    arrays = {}
    for name in (name for name in stages[0][1] if name != "step"):
        parts = [np.array(stage[name], dtype=np.float32) for _, stage in stages]
        arrays[name] = np.full((len(parts), most, *parts[0].shape[1:]), np.nan, np.float32)
        for rows, part in zip(arrays[name], parts):
            rows[: len(part)] = part
    for name in ("task", "seed", "script", "G"):
        arrays[name] = np.array([run[name] for run, _ in stages])
    return arrays | {
        "step": np.array([stage["step"] for _, stage in stages]),
        "answers": np.array(results[0]["answers"]),
    }


def main(config: Config) -> None:
    """Measure the runs that are missing, print the table, and with --publish write update_length.npz."""
    config = config.sized()
    with Grid(config, "update_length.py") as grid:
        results = collect(grid.run(partial(measure, folder=grid.path), runs_of(config)))
    print(update_length_tables.table(results))
    if config.publish:
        np.savez_compressed(RESULTS, **results)
        print(f"written: {RESULTS.name}; now python lessons/site/build.py --only 13")


if __name__ == "__main__":
    run_main(Config, main, __doc__)
