"""Which KL costs what? GRPO and its neighbours with four KL terms, and without one.

    python lessons/experiments/kl.py            all runs: two to three hours on two cores
    python lessons/experiments/kl.py --publish  also writes kl.json here, after every run

Every run is a script's own `train` at its defaults, with one or two functions replaced. Write rho
for pi / pi_old, u for pi_ref / pi, and beta for kl_coef. The loss of a token has beta times

    k3    u - 1 - log u, as in the scripts: the expected gradient of KL(pi_ref || pi)
    ρ·k3  rho (u - 1 - log u): the expected gradient of KL(pi || pi_ref) (DeepSeek-V3.2,
          arXiv:2512.02556; TRL's default)
    k2    (log u)^2 / 2: the gradient of ρ·k3 as long as rho is 1

or the KL is in the reward:

    k1 in the reward  the reward of a completion less beta times the mean of -log u over its tokens,
                      before the baseline. GRPO's sigma is that of these rewards, so that among
                      completions which are all right the KL alone decides, with full-size
                      advantages.

Without / sigma advantages are smaller, so the same beta weighs more. "At equal weight" beta is
multiplied by sigma of the batch.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import product
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from algorithms import dr_grpo
from lessons.experiments.compare import STEPS, kl_times_sigma, summary
from lessons.experiments.compare_tables import README
from lessons.experiments.harness import grid, paired
from lessons.experiments.harness.grid import GridConfig
from lessons.experiments.harness.learning import trained
from lessons.experiments.update_norm import measured
from toy_env.arithmetic import LEVELS, held_out_problems
from toy_env.evaluation import evaluate
from toy_env.model import load_policy
from toy_env.rollout import Rollout, completion_logps
from toy_env.run import parse

RESULTS = Path(__file__).parent / "kl.json"
AS_IT_STANDS = "Dr. GRPO as it stands"
RULES = {  # script; the function that is replaced by dr_grpo.py's; is beta times sigma?
    "GRPO": ("grpo", "", False),
    "GRPO, not ÷ σ": ("grpo", "compute_advantages", True),
    "GRPO, constant length": ("grpo", "policy_loss", False),
    "Dr. GRPO": ("dr_grpo", "", True),
    "÷ σ of the batch": ("batch_sigma", "", False),
    AS_IT_STANDS: ("dr_grpo", "", False),
}
K3_SOURCE = "(log_u.exp() - 1 - log_u)"  # in the policy_loss of every script
PENALTIES = {"ρ·k3": f"ratio * {K3_SOURCE}", "k2": "log_u.square() / 2"}  # in its place
IN_REWARD = "k1 in the reward"


@dataclass(frozen=True)
class Run:
    """One training run."""

    rule: str = "GRPO"  # one of RULES
    kl: str = "none"  # k3, one of PENALTIES, IN_REWARD, or none
    weight: float = 0.04  # beta
    seed: int = 0


# ---------------------------------------------------------------------- which runs

NONE, K3, RHO_K3, K2, K1 = (Run(kl=kl) for kl in ("none", "k3", "ρ·k3", "k2", IN_REWARD))
WEIGHTED = [Run("GRPO", *arm) for arm in product(("k3", "ρ·k3"), (0.01, 0.04, 0.16))]
GRPO_ARMS = [NONE, *WEIGHTED, K2, K1]
RULE_ARMS = [replace(arm, rule=rule) for rule in [*RULES][1:] for arm in (NONE, K3, RHO_K3)]
RULE_ARMS.remove(Run(AS_IT_STANDS))  # without a KL it is Dr. GRPO
PRIMARY = RHO_K3, K3  # their difference in accuracy at the end is tested alone


def base_of(arm: Run) -> Run:
    """The arm with which another one is compared. These comparisons of accuracy at the end are one
    family, corrected by Holm."""
    return NONE if arm.rule == "GRPO" else replace(arm, rule="GRPO")


# Committed before the first run. Known were, in ten seeds each on other machines (results.json),
# GRPO .913 with k3 and .944 without a KL, entropy .020 and .013, wrong completions of 23.4 and 28.5
# tokens; Dr. GRPO .908 with k3, .928 with k3 x sigma, .940 and .937 without; / sigma of the batch
# .929 with k3 and .929 without. In six seeds of a reader, GRPO had .944 with ρ·k3, beside .919 and
# .941 for k3 and none on another machine. In four seeds of another, without a KL, wrong completions
# had 28.6 tokens (GRPO), 28.8 (not / sigma) and 27.9 (constant length). All else is a guess: where
# the policy gains nothing more, KL(pi || pi_ref) stops pulling and KL(pi_ref || pi) does not; it
# keeps a wrong habit of the reference at a rate of about beta times the reference's.
PREDICTIONS = """
Accuracy at the end, means of ten seeds, in points; beta is .04 unless stated. GRPO:
 1. (primary) ρ·k3 ends 1.5 to 4 above k3.
 2. ρ·k3 costs nothing that is seen: at .01 and .04 it ends within 1 of none, at .16 within 2.
 3. What k3 costs grows with beta: at .16 at least twice, at .01 at most half as much as at .04.
 4. A smaller k3 is no substitute: at .01 it ends 0 to 1.5 below ρ·k3 at .04.
 5. KL(pi_ref || pi) per completion is smaller with k3 than with ρ·k3 in all ten seeds;
    KL(pi || pi_ref) per completion differs between them by less than a quarter.
 6. ρ·k3 at .16 is no farther from the base than k3 at .04, by KL(pi || pi_ref) per completion, and
    ends at least 1 above it.
 7. With ρ·k3 the entropy is within .003 of that without a KL, and wrong completions are within 2
    tokens of those without and at least 3 longer than with k3.
 8. k2 ends within 1 of ρ·k3.
 9. k1 in the reward ends at least 2 below ρ·k3, with shorter right completions in 8 seeds or more.
Dr. GRPO and the rules between:
10. ρ·k3 ends 0 to 1.5 above k3 at equal weight, 1.5 to 4 above as the script stands.
11. Without a KL, not ÷ σ, constant length and Dr. GRPO end within 1.5 of GRPO, and their wrong
    completions are within 2 tokens of GRPO's; so with ρ·k3 at equal weight.
12. ÷ σ of the batch ends 1 to 3 above Dr. GRPO as it stands with k3, within 1 with ρ·k3.
"""


def runs_of(seeds: int) -> list[Run]:
    """All runs, those of the main question first, then GRPO's."""
    order = (product(range(seeds), arms) for arms in ((NONE, K3, RHO_K3), GRPO_ARMS, RULE_ARMS))
    runs = (replace(arm, seed=seed) for part in order for seed, arm in part)
    return list(dict.fromkeys(runs))


# ---------------------------------------------------------------------- a run


def with_penalty(loss: Callable, penalty: str) -> Callable:
    """A script's policy_loss with a penalty in place of k3."""
    source, names = inspect.getsource(loss), {**loss.__globals__}
    assert source.count(K3_SOURCE) == 1
    exec(source.replace(K3_SOURCE, penalty), names)
    return names["policy_loss"]


def k1_in_reward(script: ModuleType, weight: float) -> dict:
    """The functions that replace collect and compute_advantages. Rewards are rounded to 5 digits,
    so that those of equal completions stay equal."""
    reference, _ = load_policy()
    plain_collect, plain_advantages = script.collect, script.compute_advantages
    k1 = None  # of the batch (P, G): each completion's mean over its tokens

    def collect(*arguments):
        nonlocal k1
        rollout, rewards = plain_collect(*arguments)
        k1 = log_ratios(rollout, reference).sum(dim=1) / rollout.mask.sum(dim=1)
        k1 = k1.view_as(rewards)
        return rollout, rewards

    def compute_advantages(*, rewards):
        return plain_advantages(rewards=(rewards - weight * k1).round(decimals=5))

    return {"collect": collect, "compute_advantages": compute_advantages}


@torch.no_grad()
def log_ratios(rollout: Rollout, other) -> Tensor:
    """log pi - log pi_other of every token, pi being the policy that sampled: (B, T)."""
    return rollout.old_logps - completion_logps(other, rollout, temperature=1.0)


def replacements(run: Run, script: ModuleType) -> dict:
    """The functions of the script that a run replaces, by their names."""
    _, piece, times_sigma = RULES[run.rule]
    if run.kl == IN_REWARD:
        return k1_in_reward(script, run.weight)
    functions = {each: vars(script)[each] for each in ("compute_advantages", "policy_loss")}
    if piece:
        functions[piece] = vars(dr_grpo)[piece]
    if run.kl in PENALTIES:
        functions["policy_loss"] = with_penalty(functions["policy_loss"], PENALTIES[run.kl])
    return kl_times_sigma(*functions.values()) if times_sigma else functions


def train(run: Run) -> dict:
    """Train silently. Returns the numbers of the summary, and the KL between the policy and the
    base as [per token, per completion], in nats: "reverse_kl" of the policy to the base,
    "forward_kl" of the base to the policy."""
    torch.set_num_threads(1)
    script = import_module(f"algorithms.{RULES[run.rule][0]}")
    weight = 0.0 if run.kl in ("none", IN_REWARD) else run.weight
    settings = {"seed": run.seed, "steps": STEPS, "kl_coef": weight}
    settings |= {"eval_every": 0, "save_every": STEPS}
    replaced = patch.dict(vars(script), replacements(run, script))
    with measured(), replaced, trained(script, settings) as (folder, rows):
        result = summary(folder, rows)
        policy, tokenizer = load_policy(str(folder / "checkpoint"))
    del result["curves"]
    base, _ = load_policy()
    result["reverse_kl"] = distance(policy, base, tokenizer)
    result["forward_kl"] = distance(base, policy, tokenizer)
    return grid.rounded(result)


def distance(policy, other, tokenizer) -> list[float]:
    """KL(policy || other) over completions of held-out problems, sampled by the policy, in nats:
    per token and per completion."""
    problems = held_out_problems(64, LEVELS)
    rollout = evaluate(policy, tokenizer, problems, samples=4, max_new_tokens=56).rollout
    total = log_ratios(rollout, other).sum().item()
    return [total / rollout.mask.sum().item(), total / len(rollout)]


# ---------------------------------------------------------------------- the tables


def of_arm(runs: list[dict], arm: Run) -> list[dict]:
    """The runs of an arm by seed."""
    return grid.select(runs, {"rule": arm.rule, "kl": arm.kl, "weight": arm.weight})


def tables(runs: list[dict], seeds: int = 10) -> list[str]:
    """The KLs of GRPO, and the rules by KL, of arms that are complete. Distances are in nats a
    completion."""
    made = {arm: of_arm(runs, arm) for arm in GRPO_ARMS + RULE_ARMS}
    made = {arm: of for arm, of in made.items() if len(of) == seeds}
    ends = {arm: [run["final"] for run in of] for arm, of in made.items()}
    gaps = {arm: paired.difference(ends[arm], ends[base_of(arm)]) for arm in ends if arm != NONE}
    paired.holm([*gaps.values()])

    def cells(arm: Run, *names: str) -> list[str]:
        """Accuracy, or its difference from the base, and the means of other numbers."""
        if arm not in made:
            return []
        end = grid.change(gaps[arm]) if arm in gaps else grid.cell(paired.estimate(ends[arm]))
        means = [np.mean([np.ravel(run[name])[-1] for run in made[arm]]) for name in names]
        return [end, *(f"{value:.1f}" for value in means)]

    kls, rules = [], []
    for arm in GRPO_ARMS:
        name = arm.kl if arm == NONE else f"{arm.kl}, {grid.short(arm.weight, 2)}"
        kls.append([name, *cells(arm, "reverse_kl", "forward_kl")])
    for rule in RULES:
        arms = (Run(rule, arm.kl) for arm in (NONE, RHO_K3, K3))
        rules.append([rule, *("; ".join(cells(arm, "length_wrong")) for arm in arms)])
    heading = ["KL, β", "accuracy", "KL(π‖base)", "KL(base‖π)"]
    columns = ["accuracy; tokens of wrong completions", "no KL", "ρ·k3, .04", "k3, .04"]
    machines = " and ".join(sorted({run["machine"] for run in runs}))
    more = f" on {machines}, one family with the table above"
    below = grid.note(range(seeds), [*gaps.values()], more)
    return [grid.markdown(heading, kls), f"{grid.markdown(columns, rules)}\n\n{below}"]


def texts() -> dict[Path, dict[str, str]]:
    """The tables of the committed results, by the page and the place where they stand."""
    return {README: dict(zip(("kl", "sigma"), tables(grid.load_runs(RESULTS))))}


def main(config: GridConfig) -> None:
    """Print the predictions, make the runs that are missing, and with --publish write kl.json."""
    print(PREDICTIONS)
    grid.results_of(config, train, runs_of(config.seeds), RESULTS)


if __name__ == "__main__":
    main(parse(GridConfig, __doc__))
