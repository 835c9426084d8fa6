"""The identity inside a language model that is training: what the paper leaves open (arXiv:2607.00152, Limitations).

    python lessons/experiments/live_run.py              3 seeds of GRPO, Dr. GRPO and DAPO at 5 steps: about 15 minutes
    python lessons/experiments/live_run.py --quick      1 seed, 8 prompts, 2 steps: about a minute
    python lessons/experiments/live_run.py --publish    also writes live_run.npz here, which lesson 13 is made from

The runs are the scripts' own `train`. At each step that is measured, each held-out prompt gets 1,024 answers: one half
gives p and grad p, the other half is cut into groups of G = 2, 4, ..., 64. The score of every different answer is
computed exactly, and from the inner products of the scores follows all else: lengths, cosines, variances. What is
finished is not measured again, so an interrupted command goes on where it was.
"""

import json
import shutil
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from lessons import identity
from lessons.experiments.live_measure import (
    GROUP_SIZES,
    KS,
    SCRIPTS,
    SUM,
    draw_pool,
    identity_errors,
    later_updates,
    measure_prompt,
)
from lessons.experiments.pool import in_parallel
from lessons.float64 import to_float64
from toy_env import UsageError
from toy_env.arithmetic import LEVELS, held_out_problems
from toy_env.cli import run_main, silence
from toy_env.model import load_policy, pick_device
from toy_env.save import saves, step_of

RESULTS = Path(__file__).parent / "live_run.npz"

# Written down before the first measurement, and kept as they were. b is the exponent in |g| ~ sigma^b among groups of
# one prompt: 1 if the length of the update is the disagreement, 0 if every mixed group moves the model equally far.
# What had been seen before: one prompt of the base model (lesson 6), where the signal had 44 to 72 % of |g|^2 at G = 8.
PREDICTIONS = {
    "identity": "Both sides agree in every group, script and group size: to 1e-4 in float32, to 1e-11 in float64.",
    "silent": "The silent share is the mean of p^G + q^G, all right and all wrong apart, at every G and checkpoint, "
    "if p comes from other answers. With k/G of the group itself put for p it comes out at least 5 points "
    "too high at G = 8.",
    "weight": "E[g] is w_G(p) times grad p: over all prompts the measured weight is within 10 % of the closed form at "
    "every G, and in no range of p above sqrt(G - 1) by more than its interval.",
    "start": "Before training, at G = 8, neither extreme holds: b of GRPO lies between .3 and .8.",
    "training": "Noise gains as the policy gets better: b is smaller at the end than at the start, in all three runs.",
    "group size": "b rises with G at every checkpoint. The signal passes half of |g|^2 between G = 2 and G = 16.",
    "length": "Dividing each score by its length, as GRPO's loss does, changes b by less than .15.",
    "mass": "Prompts with p below .1 or above .9 have a larger share of GRPO's update if it is measured as |g| than "
    "as sigma, at every checkpoint.",
    "staleness": "At the last of four minibatches at least 90 % of the identity survives, the clip takes away less "
    "than 1 %, and the KL term turns the update more than the clip does.",
}


@dataclass
class Config:
    seeds: int = 3  # training seeds 0, 1, ... of each script; every seed has prompts of its own
    prompts: int = 32  # held-out prompts of a seed, as many of each level; a multiple of 4
    answers: int = 1024  # to each prompt: half for p and its gradient, half for groups
    measure_at: tuple[int, ...] = (0, 10, 20, 40, 60)  # steps of training to measure at, from 0
    quick: bool = False  # 1 seed, 8 prompts, 256 answers, steps 0 20, in the folder OUTPUT-quick
    processes: int = 0  # processes of one thread each; 0 for one a core
    device: str = "auto"  # auto (cuda, else cpu), cuda or cpu
    output: str = "runs/live_run"  # folder for the runs and the measurements
    publish: bool = False  # update the committed results


# ---------------------------------------------------------------------- measuring


@dataclass(frozen=True)
class Stage:
    """One seed's run of a script (none for the base model), at one step of training."""

    seed: int
    script: str
    step: int

    def draws(self) -> int:
        """The seed of all draws made here: no two stages share them."""
        return 10_000 * self.seed + 1_000 * ("", *SCRIPTS.values()).index(self.script) + self.step

    def path(self, output: Path) -> Path:
        return output / f"measured/{self.script or 'base'}-{self.seed}-{self.step}.npz"


def stages(config: Config) -> list[Stage]:
    """What is to be measured, each run's steps in their order."""
    return [
        Stage(seed, script, step)
        for seed in range(config.seeds)
        for script in ("", *SCRIPTS.values())
        for step in sorted(config.measure_at)
        if (step == 0) == (script == "")
    ]


def measure(stage: Stage, config: Config) -> None:
    """Train on to the step of a stage, measure there, and write its file."""
    torch.set_num_threads(1)
    output, device = Path(config.output), pick_device(config.device)
    model, later, tokens = "base", {}, ""
    if stage.script:
        script = import_module(f"algorithms.{stage.script}")
        folder = output / f"{stage.script}-{stage.seed}"
        at = next(map(step_of, saves(folder)), -1)
        if at > stage.step or at < 0:
            shutil.rmtree(folder, ignore_errors=True)
        settings = script.Config(
            seed=stage.seed,
            steps=stage.step,
            device=config.device,
            run_dir=str(folder),
            resume=0 <= at <= stage.step,
            eval_every=0,
            eval_problems=16,
        )
        is_finished = (folder / "results.json").is_file()  # written last, when checkpoint/ is of this step
        if at != stage.step or not is_finished:
            with silence():
                script.train(settings)
        model = str(folder / "checkpoint")
        later, tokens = later_updates(stage.script, settings, folder, seed=stage.draws())
    policy, tokenizer = load_policy(model, device)
    problems = held_out_problems(config.prompts // len(LEVELS), LEVELS, seed=100 + stage.seed)
    generator, rng = torch.Generator(device).manual_seed(stage.draws()), np.random.default_rng(stage.draws())
    rows, pools = [], []
    for i, problem in enumerate(problems):
        pool = draw_pool(policy, tokenizer, problem, config.answers, 56, generator)
        rows.append(measure_prompt(policy, pool, rng))
        if i % (len(problems) // 4) == 0:
            pools.append(pool)
    results = {name: np.stack([row[name] for row in rows]) for name in rows[0]} | later
    results["level"] = np.array([problem.level for problem in problems])
    results["error_float32"] = identity_errors(policy, pools)
    policy = to_float64(policy)
    pool = draw_pool(policy, tokenizer, problems[len(problems) // 2], config.answers // 2, 56, generator)
    results["error_float64"] = identity_errors(policy, [pool])
    path = stage.path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path.with_suffix(".part.npz"), tokens=np.array(tokens), **results)
    path.with_suffix(".part.npz").rename(path)  # a file is whole or is not there


def keep_to_settings(output: Path, settings: dict) -> None:
    """Raises UsageError if the folder holds measurements made with other settings; else notes these there."""
    path = output / "settings.json"
    if path.is_file():
        for name, value in json.loads(path.read_text()).items():
            if settings[name] != value:
                raise UsageError(
                    f"{output} holds measurements with {name} {value}, not {settings[name]}; choose "
                    "another --output, or delete that folder"
                )
    else:
        output.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings))


def measure_all(chain: list[Stage], config: Config) -> None:
    """The stages of one run, in order."""
    for stage in chain:
        measure(stage, config)


def run_all(config: Config) -> None:
    """Measure what is not yet measured, runs side by side in processes, under one progress bar."""
    output, everything = Path(config.output), stages(config)
    keep_to_settings(output, {"prompts": config.prompts, "answers": config.answers})
    chains: dict[tuple, list[Stage]] = {}  # the stages still to do of each run
    for stage in everything:
        if not stage.path(output).is_file():
            chains.setdefault((stage.seed, stage.script), []).append(stage)
    in_parallel(measure_all, [(chain, config) for chain in chains.values()], config.processes)


def collect(config: Config) -> dict[str, np.ndarray]:
    """All measurements in one dictionary: (stages, ...) each, nan where a stage has none."""
    parts = [dict(np.load(stage.path(Path(config.output)))) for stage in stages(config)]
    shapes = {name: part[name].shape for part in parts for name in part}
    results = {
        name: np.stack([part.get(name, np.full(shape, np.nan)) for part in parts])
        if name != "tokens"
        else np.array([str(part["tokens"]) for part in parts])
        for name, shape in shapes.items()
    }
    for name in ("seed", "script", "step"):
        results[name] = np.array([getattr(stage, name) for stage in stages(config)])
    for name, values in results.items():
        if values.dtype == np.float64:
            results[name] = shorten(values)
    kept = ("seeds", "prompts", "answers", "measure_at")
    results["config"] = np.array(json.dumps({name: getattr(config, name) for name in kept}))
    return results


def shorten(values: np.ndarray) -> np.ndarray:
    """float32 with 12 bits after the point (4 digits), which packs into half the space."""
    bits = values.astype(np.float32).view(np.uint32)
    return (bits + 0x400 & 0xFFFFF800).astype(np.uint32).view(np.float32)


# ---------------------------------------------------------------------- reading the results


@dataclass(frozen=True)
class Estimate:
    """A number over all prompts of a stage, with its 95 % interval from resampling the prompts."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def ratio(numerator: np.ndarray, denominator: np.ndarray | float = 1.0) -> Estimate:
    """Sum of one over sum of the other, over prompts; a prompt where one of the two is nan is left out."""
    numerator, denominator = np.broadcast_arrays(numerator, np.asarray(denominator, dtype=float))
    there = np.isfinite(numerator) & np.isfinite(denominator)
    n = there.sum()
    if n == 0:
        return Estimate(np.nan, np.nan, np.nan)
    numerator, denominator = numerator[there].astype(float), denominator[there].astype(float)
    times = resamplings(int(n))
    with np.errstate(invalid="ignore"):
        low, high = np.nanquantile((times @ numerator) / (times @ denominator), [0.025, 0.975])
    return Estimate(numerator.sum() / denominator.sum(), low, high)


@cache
def resamplings(n: int) -> np.ndarray:
    """(2000, n): how often each of n prompts is drawn in each of 2,000 resamplings."""
    return np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=2000).astype(float)


def load(path: Path = RESULTS) -> dict[str, np.ndarray]:
    """The results, as `collect` gives them. Raises UsageError if there are none."""
    if not path.is_file():
        raise UsageError(f"there is no {path.name}; python lessons/experiments/live_run.py --publish makes it")
    return dict(np.load(path))


def at(results: dict, script: str, step: int) -> dict[str, np.ndarray]:
    """What was measured at one step of a script's runs (step 0: the base), for the prompts of all seeds.

    (prompts, ...) each. With "p", the success probability from the half of the answers that no group is made of, and
    "n", their number.
    """
    chosen = (results["step"] == step) & ((results["script"] == script) | (step == 0))
    prompts = {
        name: np.concatenate(values[chosen])
        for name, values in results.items()
        if values.ndim > 1 and values.shape[:2] == results["level"].shape
    }
    n = json.loads(str(results["config"]))["answers"] // 2
    return prompts | {"p": prompts["right"][:, 0] / n, "n": np.array(n)}


def steps_of(results: dict, script: str) -> list[int]:
    """The steps at which a script's runs were measured, 0 (the base) first."""
    return sorted(set(results["step"][(results["script"] == script) | (results["step"] == 0)].tolist()))


def of_size(prompts: dict, name: str, G: int) -> np.ndarray:
    """The column of group size G."""
    return prompts[name][:, GROUP_SIZES.index(G)]


def silent_shares(prompts: dict, G: int) -> dict[str, Estimate]:
    """Share of groups that are all right or all wrong: counted, and predicted from p of other answers without bias; the
    difference; and two plug-ins, with p of the other answers and with k / G of the group itself."""
    counted = of_size(prompts, "silent", G)  # (prompts, 2): all right, all wrong
    n, right = int(prompts["n"]), prompts["right"][:, 0]
    predicted = np.stack([all_right_share(right, n, G), all_right_share(n - right, n, G)], axis=1)
    return {
        "counted": ratio(counted.sum(axis=1)),
        "predicted": ratio(predicted.sum(axis=1)),
        "difference": ratio((counted - predicted).sum(axis=1)),
        "all right": ratio(counted[:, 0]),
        "all right, difference": ratio((counted - predicted)[:, 0]),
        "all wrong": ratio(counted[:, 1]),
        "all wrong, difference": ratio((counted - predicted)[:, 1]),
        "plug-in, other answers": ratio(identity.silent_rate(prompts["p"], G)),
        "plug-in, the group itself": ratio(of_size(prompts, "plug_in", G)),
    }


def all_right_share(right: np.ndarray, n: int, G: int) -> np.ndarray:
    """Unbiased estimate of p^G: the share of all G-subsets of n answers that hold right ones only."""
    j = np.arange(G)
    return np.prod(np.maximum(right[:, None] - j, 0) / (n - j), axis=1)


def lengths_squared(prompts: dict, G: int, kind: int = SUM) -> np.ndarray:
    """(prompts, ks): mean |g|^2 over 64 groups of one prompt with k right answers each, for every k in KS[G]; nan where
    a prompt has too few right or wrong answers."""
    return of_size(prompts, "same_prompt", G)[:, kind, : len(KS[G])].astype(float) ** 2


def parts_squared(prompts: dict, G: int, kind: int = SUM) -> tuple[np.ndarray, np.ndarray]:
    """What E|g|^2 consists of, (prompts, ks) each: signal sigma^2 |m+ - m-|^2, noise ((G - k) v+ + k v-) / G^2."""
    k = np.array(KS[G])
    v_right, v_wrong = prompts["variances"][:, kind].T.astype(float)
    signal = identity.sigma(k, G) ** 2 * prompts["contrast_squared"][:, kind, None].astype(float)
    return signal, ((G - k) * v_right[:, None] + k * v_wrong[:, None]) / G**2


def profile(prompts: dict, G: int, kind: int = SUM) -> dict[str, list[Estimate]]:
    """|g|^2 at each k over that of the prompt's own even split: measured, and its two parts. Means over all prompts
    that have every k."""
    squared, (signal, noise) = lengths_squared(prompts, G, kind), parts_squared(prompts, G, kind)
    there = np.isfinite(squared + noise).all(axis=1, keepdims=True)
    own = np.where(there, squared[:, [KS[G].index(G // 2)]], np.nan)
    return {
        name: [ratio(column) for column in (values / own).T]
        for name, values in (("measured", squared), ("signal", signal), ("noise", noise))
    }


def half(G: int, side: str) -> np.ndarray:
    """Which of KS[G] are on a side: "few right" up to k = G / 2, "few wrong" from there on, or "both"."""
    k = np.array(KS[G])
    return {"both": k > 0, "few right": k <= G // 2, "few wrong": k >= G // 2}[side]


def slopes(squared: np.ndarray, G: int, side: str = "both") -> np.ndarray:
    """(prompts,): b of each prompt in |g| ~ sigma^b, the slope of log |g| on log sigma over k, from |g|^2 at each k;
    nan for a prompt without one of the side's k."""
    x = np.log(identity.sigma(KS[G], G))[half(G, side)]
    x = x - x.mean()
    if len(x) == 1:
        return np.full(len(squared), np.nan)  # G = 2: one mixed group only
    with np.errstate(divide="ignore", invalid="ignore"):
        b = np.log(squared[:, half(G, side)]) / 2 @ x / (x @ x)
    return np.where(np.isfinite(b), b, np.nan)


def exponent(prompts: dict, G: int, kind: int = SUM, side: str = "both") -> Estimate:
    """b in |g| ~ sigma^b for GRPO's update on groups of one prompt: the mean over prompts."""
    return ratio(slopes(lengths_squared(prompts, G, kind), G, side))


def noise_exponent(prompts: dict, G: int, side: str = "both") -> Estimate:
    """b if there were no signal: from the measured variances alone, over the prompts that `exponent` counts."""
    there = np.isfinite(lengths_squared(prompts, G))
    return ratio(slopes(np.where(there, parts_squared(prompts, G)[1], np.nan), G, side))


def exponent_change(prompts: dict, small: int, large: int, side: str = "both") -> Estimate:
    """b at a large group size minus b at a small one, on the same prompts: those that have every k at both."""
    b = [slopes(lengths_squared(prompts, G), G, side) for G in (small, large)]
    return ratio(b[1] - b[0])


def complete(prompts: dict, G: int, side: str = "both") -> int:
    """How many prompts have right and wrong answers enough for every k of a side."""
    return int(np.isfinite(lengths_squared(prompts, G)[:, half(G, side)]).all(axis=1).sum())


def lone_failure(prompts: dict, G: int) -> Estimate:
    """|g| with one wrong answer of G over that of the prompt's even split: the geometric mean over prompts."""
    squared = lengths_squared(prompts, G)
    logs = ratio(np.log(squared[:, -1] / squared[:, KS[G].index(G // 2)]) / 2)
    return Estimate(*np.exp([logs.value, logs.low, logs.high]))


def mixed_shares(prompts: dict) -> dict[str, Estimate]:
    """Of the mixed groups of 8 as they were drawn, the share with fewer right than wrong answers, as many, and more."""
    by_k = prompts["by_k"][:, 0, 1:8]
    ranges = {"few right": slice(0, 3), "even": slice(3, 4), "few wrong": slice(4, 7)}
    return {name: ratio(by_k[:, ks].sum(axis=1), by_k.sum(axis=1)) for name, ks in ranges.items()}


def exponents_across(prompts: dict) -> dict[str, Estimate]:
    """b at G = 8 with one group's k against another prompt's: the groups of all prompts as they were drawn, pooled by
    k ("between"); and that minus `exponent` on the same prompts ("between - within").

    A k that no group had counts in nothing; in the intervals, neither does a resampling in which all groups have one k.
    """
    by_k, within = prompts["by_k"][:, :, 1:8].astype(float), slopes(lengths_squared(prompts, 8), 8)
    times = np.vstack([np.ones(len(by_k)), resamplings(len(by_k))])  # the first row: the prompts as they are
    counts, squares = np.moveaxis(np.tensordot(times, by_k, axes=1), 1, 0)
    seen = counts > 0
    x = np.log(identity.sigma(np.arange(1, 8), 8))
    there = np.isfinite(within)
    with np.errstate(divide="ignore", invalid="ignore"):
        x = np.where(seen, x - (seen * x).sum(axis=1, keepdims=True) / seen.sum(axis=1, keepdims=True), 0)
        between = (x * np.log(np.where(seen, squares / counts, 1)) / 2).sum(axis=1) / (x * x).sum(axis=1)
        inside = times[:, there] @ within[there] / times[:, there].sum(axis=1)
    found = {"between": between, "between - within": between - inside}
    return {name: Estimate(b[0], *np.nanquantile(b[1:], [0.025, 0.975])) for name, b in found.items()}


def signal_share(prompts: dict, G: int) -> Estimate:
    """Share of |g|^2 over all groups that is signal, sigma^2 |m+ - m-|^2; class means m from independent halves."""
    return ratio(
        of_size(prompts, "sigma", G)[:, 1] * prompts["contrast_squared"][:, SUM],
        of_size(prompts, "norm_squared", G)[:, 0],
    )


def half_size(prompts: dict) -> Estimate:
    """G at which signal and noise are equal in an evenly split group: 2 (v+ + v-) / |m+ - m-|^2."""
    return ratio(2 * prompts["variances"][:, SUM].sum(axis=1), prompts["contrast_squared"][:, SUM])


def variance_without_baseline(prompts: dict, G: int = 8) -> Estimate:
    """Variance of an answer's gradient R s without a baseline, over that with the mean of the G - 1 others of its group
    (lesson 3; per answer, so that both have the mean grad p); each summed over prompts.

    From E[R s] = grad p and E[s] = 0: right answers have the mean score grad p / p, wrong ones -grad p / q.
    """
    p = prompts["right"].sum(axis=1) / (2 * prompts["n"])
    v_right, v_wrong = prompts["variances"][:, SUM].T.astype(float)
    squared = prompts["gradient_squared"][:, 0].astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        right, wrong = v_right + squared / p**2, v_wrong + squared / (1 - p) ** 2  # mean squared scores
    with_p = p * (1 - p) ** 2 * right + (1 - p) * p**2 * wrong - squared
    price = (p * (1 - p) * (p * right + (1 - p) * wrong) + squared) / (G - 1)  # of not knowing p
    return ratio(p * right - squared, with_p + price)


def weights(prompts: dict, G: int, script: str = "grpo", within: tuple[float, float] = (0, 1)) -> dict[str, Estimate]:
    """E[g] over grad p, and that over the closed form w_G(p), over the prompts with p in a range."""
    inside = (prompts["p"] >= within[0]) & (prompts["p"] <= within[1])
    squared = np.where(inside, prompts["gradient_squared"][:, 0], np.nan)
    rule = "GRPO" if script == "grpo" else "Dr. GRPO"
    along = of_size(prompts, "along", G)[:, 0 if script == "grpo" else 1]
    return {
        "measured": ratio(along, squared),
        "measured / closed form": ratio(along, identity.weight(rule, prompts["p"], G) * squared),
    }


def extreme_mass(prompts: dict, G: int, script: str) -> dict[str, Estimate]:
    """Share of the summed lengths of all updates that prompts with p up to .1 or above .9 have: with |g| for a length,
    with sigma's power, with the closed form for sigma's mean; and the first minus the second ("gap").

    GRPO and DAPO: sigma; Dr. GRPO: sigma^2. |g| of GRPO is taken with its 1/|y|.
    """
    column, power = {"grpo": (1, 0), "dr_grpo": (2, 1), "dapo": (0, 0)}[script]
    p = prompts["p"]
    closed = p * (1 - p) * (1 - 1 / G) if script == "dr_grpo" else identity.expected_sigma(p, G)
    quantities = {
        "|g|": of_size(prompts, "norm", G)[:, column],
        "sigma": of_size(prompts, "sigma", G)[:, power],
        "closed form": closed,
    }
    times = np.vstack([np.ones(len(p)), resamplings(len(p))])  # the first row: the prompts as they are
    extreme = times * ((p <= 0.1) | (p > 0.9))
    shares = {name: (extreme @ values) / (times @ values) for name, values in quantities.items()}
    shares["gap"] = shares["|g|"] - shares["sigma"]
    return {name: Estimate(values[0], *np.quantile(values[1:], [0.025, 0.975])) for name, values in shares.items()}


def table(results: dict) -> str:
    """What the command prints: every step of every run, at G = 8, over all seeds and prompts."""

    def short(estimate: Estimate) -> str:
        return f"{estimate.value:.2f} ±{(estimate.high - estimate.low) / 2:.2f}"

    rows = [("run", "step", "right", "silent", "p^G+q^G", "few right", "few wrong", "signal", "E[g]/w", "left")]
    measured = [
        (label, script, step) for label, script in SCRIPTS.items() for step in steps_of(results, script) if step
    ]
    for label, script, step in [("base", "", 0)] * (0 in results["step"]) + measured:
        prompts = at(results, script, step)
        silent = silent_shares(prompts, 8)
        left = results["minibatch"][(results["script"] == script) & (results["step"] == step), 3, 2, 0]
        rows.append(
            (
                label,
                f"{step}",
                f"{prompts['p'].mean():.2f}",
                f"{silent['counted'].value:.3f}",
                f"{silent['predicted'].value:.3f}",
                short(exponent(prompts, 8, SUM, "few right")),
                short(exponent(prompts, 8, SUM, "few wrong")),
                short(signal_share(prompts, 8)),
                short(weights(prompts, 8)["measured / closed form"]),
                f"{np.median(left):.2f}" if step else "",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    errors = [np.nanmax(results[name]) for name in ("error_float32", "error_float64")]
    return "\n".join(
        [
            *lines,
            "",
            "Groups of 8 answers to one prompt, GRPO's advantages; ± is half a 95 % interval over prompts.",
            "silent, p^G+q^G       share of silent groups: counted, and predicted from other answers",
            "few right, few wrong  b in |g| ~ sigma^b, up to the even split and from there on",
            "signal                share of |g|^2 that is signal",
            "E[g]/w                mean update over w(p) grad p",
            "left                  of the gradient at ratio 1, in the loss of a batch's 4th update; median of seeds",
            "",
            f"The identity through the scripts' losses: relative error < 1e-4 in float32: {errors[0] < 1e-4}, "
            f"< 1e-11 in float64: {errors[1] < 1e-11}",
        ]
    )


def main(config: Config) -> None:
    if config.quick:
        config = replace(config, seeds=1, prompts=8, answers=256, measure_at=[0, 20], output=config.output + "-quick")
    if config.prompts % len(LEVELS) or config.prompts <= 0:
        raise UsageError(f"--prompts is {config.prompts}; give a multiple of {len(LEVELS)}, as many of each level")
    if config.answers < 128 or config.seeds < 1 or min(config.measure_at) < 0 or max(config.measure_at) < 1:
        raise UsageError("--answers must be at least 128, --seeds at least 1, --measure_at 0 or more, with one above 0")
    if config.device == "mps":
        raise UsageError("mps has no double precision, which the checks need; choose --device cpu or cuda")
    if config.device == "auto":
        config = replace(config, device="cuda" if torch.cuda.is_available() else "cpu")
    if config.quick and config.publish:
        raise UsageError("a quick run is too small to publish; leave out --quick or --publish")
    run_all(config)
    results = collect(config)
    print(f"\n{table(results)}")
    if config.publish:
        np.savez_compressed(RESULTS, **results)
        print(f"\nwritten: {RESULTS.name}; now python lessons/build.py --only 13")


if __name__ == "__main__":
    run_main(Config, main, __doc__)
