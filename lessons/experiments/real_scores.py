"""The identity and the lean of updates in a pretrained model. Read by the page of real_model.py.

    python lessons/experiments/real_scores.py            half an hour on two cores
    python lessons/experiments/real_scores.py --quick    two prompts: some minutes
    python lessons/experiments/real_scores.py --publish  also writes real_scores.json here

For one group of eight in float64, the update of the scripts' losses is compared with sigma times
(GRPO) or sigma^2 times (Dr. GRPO) the contrast of right and wrong completions.

For PROMPTS prompts that are neither easy nor hard, with SAMPLES completions each, the scores
(gradients of log pi(completion)) are measured: v+ and v-, the variance within the right and within
the wrong ones, and the contrast Delta m of their means. A score has 134,515,008 entries; each is
multiplied by a random sign and they are summed into WIDTH buckets, which keeps inner products in
the mean and to about one part in the square root of WIDTH. The squared length of an update given k,

    sigma^2 |Delta m|^2 + ((G - k) v+ + k v-) / G^2,

is computed from one half of a prompt's completions and measured on groups drawn from the other.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import pad
from torch.nn.utils import parameters_to_vector

from algorithms import dr_grpo, grpo
from lessons.experiments import sums
from lessons.experiments.estimators import each_score, moments
from lessons.experiments.float64 import to_float64
from lessons.experiments.harness.grid import Grid, load_runs, markdown, rounded, short, write_pages
from lessons.experiments.real_model import MODEL, PAGE, RESULTS, Config, prepare
from lessons.identity import sigma, update_norm_squared
from toy_env.arithmetic import MOST_HELD_OUT
from toy_env.model import load_policy, model_prompts
from toy_env.rollout import Rollout, completion_logps, sample
from toy_env.run import parse

SCORES = RESULTS.with_name("real_scores.json")
G, PROMPTS, SAMPLES, WIDTH, GROUPS = 8, 16, 96, 2**16, 20_000

# Committed before the first score was measured.
PREDICTIONS = """
v- is larger than v+ in most prompts, and their ratio less extreme than in the small model: its
    median over prompts is between 1 and 10.
So updates lean towards few wrong answers: with G = 8, one wrong makes GRPO's update longer than one
    right does, in the root mean square over prompts.
"""


@dataclass(frozen=True)
class Run:
    """The scores of one prompt: the n-th that is neither easy nor hard."""

    prompt: int


def draw(policy, tokenizer, problem, n: int, seed: int) -> tuple[Rollout, torch.Tensor]:
    """n completions of a problem, and their rewards (n,)."""
    generator = torch.Generator().manual_seed(seed)
    rollout = sample(
        policy, tokenizer, model_prompts(tokenizer, [problem], sums), n, 8, 1.0, generator
    )
    return rollout, torch.tensor([sums.reward(problem, text) for text in rollout.texts])


def identity() -> dict:
    """The relative distance of each script's update from its closed form, for the first group with
    3 right completions, in float64. (With 4 all factors are powers of two, and it is exactly 0.)"""
    policy, tokenizer = load_policy(str(MODEL))
    policy = to_float64(policy)  # RMSNorm, too, which is float32 otherwise
    for seed, problem in enumerate(sums.held_out_problems(MOST_HELD_OUT[1])):
        rollout, R = draw(policy, tokenizer, problem, G, seed)
        if R.sum() == 3:
            break
    right, parameters = R == 1, list(policy.parameters())

    def gradient(value: torch.Tensor) -> torch.Tensor:
        return parameters_to_vector(torch.autograd.grad(value, parameters, retain_graph=True))

    gaps = {}
    for script, power, lengths in ((grpo, 1, rollout.mask.sum(dim=1)), (dr_grpo, 2, 8)):
        logps = completion_logps(policy, rollout, 1.0)
        loss = script.policy_loss(
            logps=logps,
            old_logps=logps.detach(),
            ref_logps=None,
            advantages=script.compute_advantages(rewards=R.view(1, G).double()).view(G, 1),
            mask=rollout.mask,
            config=script.Config(kl_coef=0.0, max_new_tokens=8),
        )
        update, means = -gradient(loss), logps.sum(dim=1) / lengths
        contrast = gradient(means[right].mean() - means[~right].mean())
        gap = (update - R.double().std(correction=0) ** power * contrast).norm() / update.norm()
        gaps[script.__name__.rpartition(".")[2]] = gap.item()
    return gaps


def scores(policy, rollout: Rollout) -> np.ndarray:
    """(n, WIDTH): the scores of completions, folded with random signs."""
    signs = torch.Generator().manual_seed(0)
    size = policy.num_parameters()
    beyond = -size % WIDTH  # zeros that fill the last row
    sign = torch.randint(0, 2, (size + beyond,), generator=signs, dtype=torch.int8) * 2 - 1
    folded = [
        (pad(score, (0, beyond)) * sign).view(-1, WIDTH).sum(dim=0)
        for score in each_score(policy, rollout)
    ]
    return torch.stack(folded).double().numpy()


def measure(run: Run) -> dict:
    """Variances, and squared lengths of GRPO's update by k, measured and by the formula, for one
    prompt."""
    torch.set_num_threads(1)
    policy, tokenizer = load_policy(str(MODEL))
    found = 0
    for seed, problem in enumerate(sums.held_out_problems(MOST_HELD_OUT[1])):
        _, R = draw(policy, tokenizer, problem, 32, seed)
        found += 0.2 <= R.mean() <= 0.8
        if found > run.prompt:
            break
    rollout, R = draw(policy, tokenizer, problem, SAMPLES, 10_000 + seed)
    S, right = scores(policy, rollout), R.numpy() == 1
    inner, half, other = S @ S.T, np.arange(0, SAMPLES, 2), np.arange(1, SAMPLES, 2)
    v_right, v_wrong, squared = moments(half, right, inner)
    rng, kinds = np.random.default_rng(seed), (other[right[other]], other[~right[other]])
    lengths = {}
    for k in range(1, G):
        if len(kinds[0]) < k or len(kinds[1]) < G - k:
            continue  # too few of a kind for groups without replacement
        squares, a = [], sigma(k, G) * np.repeat([1 / k, -1 / (G - k)], [k, G - k])
        for _ in range(GROUPS // G):
            picked = [rng.choice(kind, n, replace=False) for kind, n in zip(kinds, (k, G - k))]
            rows = np.concatenate(picked)
            squares.append(a @ inner[np.ix_(rows, rows)] @ a)
        formula = update_norm_squared(k, G, squared, v_right, v_wrong)
        lengths[str(k)] = [np.mean(squares), formula]
    return rounded({"v right": v_right, "v wrong": v_wrong, "lengths": lengths})


def main(config: Config) -> None:
    """Print the predictions, the identity and the measurements; with --publish write them."""
    print(PREDICTIONS)
    prepare(config.model)
    gaps = identity()
    print(gaps)
    grid = Grid(config, "real_scores")
    results = grid.run(measure, [Run(i) for i in range(2 if config.quick else PROMPTS)])
    # 0 where all right completions of a prompt are one text
    print("v+ / v-:", spread([run["v right"] / run["v wrong"] for run in results]))
    if config.publish and not config.quick:
        grid.publish(SCORES, [rounded(gaps), *results])
        write_pages(texts())


# ---------------------------------------------------------------------- the table


def texts() -> dict[Path, dict[str, str]]:
    """The table of the committed results, by the page and the place where it stands."""
    return {PAGE: {"real_scores": table(load_runs(SCORES)[1:])}}


def table(prompts: list[dict]) -> str:
    """By k, over the prompts that have enough completions of both kinds: the squared length of
    GRPO's update, measured over its formula, and its length over that at k = 4. Below: v+ / v-,
    and the lengths with one wrong and with one right."""
    rows = []
    for k in map(str, range(1, G)):
        lengths = [prompt["lengths"] for prompt in prompts if k in prompt["lengths"]]
        squares = [each[k][0] / each[k][1] for each in lengths]
        against = [(each[k][0] / each["4"][0]) ** 0.5 for each in lengths if "4" in each]
        rows.append([k, str(len(lengths)), spread(squares), spread(against)])
    small = spread([prompt["v right"] / prompt["v wrong"] for prompt in prompts])
    both = [prompt["lengths"] for prompt in prompts if "7" in prompt["lengths"]]
    one_right, one_wrong = (np.mean([each[k][0] for each in both]) ** 0.5 for k in "17")
    header = ["right of 8", "prompts", "measured / formula", "length / that at 4"]
    return (
        f"{markdown(header, rows)}\n\nv₊ / v₋ is {small}. With one wrong of eight the update is "
        f"{one_wrong / one_right:.2f} times as long as with one right (root mean squares)."
    )


def spread(values: list[float]) -> str:
    """Median and range: "1.02 [.90, 1.30]"."""
    low, middle, high = (short(float(np.quantile(values, at)), 2) for at in (0, 0.5, 1))
    return f"{middle} [{low}, {high}]"


if __name__ == "__main__":
    main(parse(Config, __doc__))
